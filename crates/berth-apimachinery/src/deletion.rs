//! Graceful deletion: the effect of a delete request on an object with a grace period.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::{meta, times};

/// The outcome of a delete request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The object is removed now.
    Now,
    /// The object was changed and stays until its grace period ends.
    Graceful,
    /// The object is already being deleted, and the request does not shorten its grace period.
    Pending,
}

/// Prepares the deletion of an object that is already being deleted, changing its metadata in
/// place.
///
/// `grace_period_seconds` is the value of the request; `None` keeps the current period. A period
/// can only be shortened. Also returns the requested period (a negative value means 1) or, if none
/// was requested, the current one.
pub fn shorten(object: &mut Value, grace_period_seconds: Option<i64>, now: Timestamp) -> (Deletion, Option<i64>) {
    let wish = grace_period_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds });
    let running = object.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64);
    let running = running.map(|seconds| if seconds < 0 { 1 } else { seconds });
    if let Some(running) = running {
        meta::metadata_mut(object).insert("deletionGracePeriodSeconds".to_owned(), Value::from(running));
    }
    // A grace period of zero on the object means that its termination has been confirmed.
    let Some(running) = running.filter(|running| *running > 0) else { return (Deletion::Now, wish) };
    let Some(wish) = wish.filter(|wish| *wish < running) else {
        return (Deletion::Pending, wish_or_running(wish, running));
    };
    let end = meta::deletion_timestamp(object).and_then(|text| text.parse::<Timestamp>().ok()).unwrap_or(now);
    let shortened = end
        .checked_sub(SignedDuration::from_secs(running))
        .and_then(|start| start.checked_add(SignedDuration::from_secs(wish)))
        .unwrap_or(now);
    // An end in the past means now, with one more second for termination unless the request asks
    // for zero.
    let (end, left) = if shortened < now { (now, wish.min(1)) } else { (shortened, wish) };
    meta::set(object, "deletionTimestamp", &times::time(end));
    meta::metadata_mut(object).insert("deletionGracePeriodSeconds".to_owned(), Value::from(left));
    (Deletion::Graceful, Some(wish))
}

fn wish_or_running(wish: Option<i64>, running: i64) -> Option<i64> {
    Some(wish.unwrap_or(running))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_period_can_only_be_shortened() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("is a time");
        let mut pod =
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}});
        assert_eq!(shorten(&mut pod, Some(60), now).0, Deletion::Pending);
        assert_eq!(shorten(&mut pod, Some(10), now).0, Deletion::Graceful);
        assert_eq!(pod["metadata"]["deletionTimestamp"], "2026-01-01T00:00:10Z");
        assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 10);
    }
}
