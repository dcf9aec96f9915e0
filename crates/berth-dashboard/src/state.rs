//! State of a Workload in one word, from its object.

use berth_api::kueue::v1beta2::Workload;
use berth_apimachinery::table::human_duration;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};

/// Maximum number of characters of a message in a table.
const MESSAGE_MAX: usize = 240;

/// State of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Waits for quota.
    Waiting,
    /// Holds quota, and waits for admission checks.
    QuotaReserved,
    /// Admitted.
    Admitted,
    /// Is being evicted.
    Evicted,
    /// Finished.
    Finished,
    /// `spec.active` is false.
    Inactive,
}

impl State {
    /// The state as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Waiting => "Waiting",
            State::QuotaReserved => "Quota reserved",
            State::Admitted => "Admitted",
            State::Evicted => "Being evicted",
            State::Finished => "Finished",
            State::Inactive => "Inactive",
        }
    }

    /// The CSS class that colours the state.
    pub fn class(self) -> &'static str {
        match self {
            State::Waiting | State::QuotaReserved => "nowrap wait",
            State::Admitted => "nowrap good",
            State::Evicted => "nowrap bad",
            State::Finished | State::Inactive => "nowrap quiet",
        }
    }
}

/// A condition of a workload.
pub fn condition<'a>(workload: &'a Workload, name: &str) -> Option<&'a Condition> {
    workload.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == name)
}

/// The state of a workload.
pub fn of(workload: &Workload) -> State {
    let is = |name: &str| condition(workload, name).is_some_and(|condition| condition.status == "True");
    match workload {
        _ if is("Finished") => State::Finished,
        _ if is("Evicted") && is("QuotaReserved") => State::Evicted,
        _ if is("Admitted") => State::Admitted,
        _ if is("QuotaReserved") => State::QuotaReserved,
        _ if workload.spec.active == Some(false) => State::Inactive,
        _ => State::Waiting,
    }
}

/// Age of an object, as kubectl prints it.
pub fn age(metadata: &ObjectMeta, now: Timestamp) -> String {
    let Some(created) = &metadata.creation_timestamp else { return String::new() };
    duration(now.as_second().saturating_sub(created.0.as_second()))
}

/// A duration as kubectl prints it. A negative one, which clock skew causes, counts as zero.
pub fn duration(seconds: i64) -> String {
    human_duration(seconds.max(0))
}

/// A message, shortened for a table.
pub fn shortened(message: &str) -> String {
    if message.chars().count() <= MESSAGE_MAX {
        return message.to_owned();
    }
    let kept: String = message.chars().take(MESSAGE_MAX).collect();
    format!("{kept} …")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_shown_in_their_largest_units() {
        let shown = [-5, 59, 119, 125, 601, 10_800, 90_000, 200_000].map(duration);
        assert_eq!(shown, ["0s", "59s", "119s", "2m5s", "10m", "3h", "25h", "2d7h"]);
    }

    #[test]
    fn a_message_is_cut_between_characters() {
        let long = "ü".repeat(300);
        assert_eq!(shortened(&long).chars().count(), MESSAGE_MAX + 2);
        assert_eq!(shortened("short"), "short");
    }
}
