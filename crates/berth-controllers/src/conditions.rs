//! Conditions of status objects: find, set, and the two limits Kubernetes puts on texts.
//!
//! Setting follows `meta.SetStatusCondition`: the transition time moves only when the status does. The condition types of
//! Kueue's objects are re-exported, so that a caller needs one `conditions` for both.

pub use berth_api::kueue::conditions::*;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Longest condition message, in bytes.
const MESSAGE_BYTES_MAX: usize = 32 * 1024;

/// The condition of this type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Is the condition there and True?
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// Is the condition there and False?
pub fn is_false(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == "False")
}

/// A new condition's facts, before it has a time.
#[derive(Clone, Debug)]
pub struct NewCondition<'a> {
    /// Type.
    pub type_: &'a str,
    /// True or False.
    pub status: bool,
    /// CamelCase reason.
    pub reason: &'a str,
    /// What a person reads; cut to 32 KiB.
    pub message: &'a str,
    /// The object's generation that was looked at.
    pub generation: Option<i64>,
}

/// Sets a condition, in place or appended. Returns whether anything changed.
pub fn set(conditions: &mut Vec<Condition>, new: NewCondition<'_>, now: Timestamp) -> bool {
    let status = if new.status { "True" } else { "False" };
    let message = truncate(new.message, MESSAGE_BYTES_MAX);
    // Kubernetes leaves out a generation of zero.
    let generation = new.generation.filter(|generation| *generation != 0);
    match conditions.iter_mut().find(|condition| condition.type_ == new.type_) {
        Some(old) => {
            let moved = old.status != status;
            let changed = moved
                || old.reason != new.reason
                || old.message != message
                || (old.observed_generation.unwrap_or(0) != generation.unwrap_or(0));
            if moved {
                old.status = status.to_owned();
                old.last_transition_time = Time(now);
            }
            if changed {
                old.reason = new.reason.to_owned();
                old.message = message;
                old.observed_generation = generation;
            }
            changed
        }
        None => {
            conditions.push(Condition {
                type_: new.type_.to_owned(),
                status: status.to_owned(),
                reason: new.reason.to_owned(),
                message,
                observed_generation: generation,
                last_transition_time: Time(now),
            });
            true
        }
    }
}

/// Removes a condition. Returns whether it was there.
pub fn remove(conditions: &mut Vec<Condition>, type_: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.type_ != type_);
    conditions.len() != before
}

/// The text, or as much of it as `bytes_max` allows, ending in ` ...`.
pub fn truncate(text: &str, bytes_max: usize) -> String {
    const TAIL: &str = " ...";
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let mut end = bytes_max - TAIL.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{TAIL}", &text[..end])
}

/// The time as API objects carry it: whole seconds.
pub fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn ready(status: bool, message: &str) -> NewCondition<'_> {
        NewCondition { type_: "Ready", status, reason: "R", message, generation: None }
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut conditions = Vec::new();
        assert!(set(&mut conditions, ready(false, "a"), at("2026-01-01T00:00:00Z")));
        assert!(set(&mut conditions, ready(false, "b"), at("2026-01-01T00:00:01Z")));
        assert_eq!(conditions[0].last_transition_time.0, at("2026-01-01T00:00:00Z"));
        assert!(!set(&mut conditions, ready(false, "b"), at("2026-01-01T00:00:02Z")));
        assert!(set(&mut conditions, ready(true, "b"), at("2026-01-01T00:00:03Z")));
        assert_eq!(conditions[0].last_transition_time.0, at("2026-01-01T00:00:03Z"));
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let text = "é".repeat(20);
        assert_eq!(truncate(&text, 11), "ééé ...");
    }
}
