//! How pages show states, ages and messages of objects. The words of states are those of
//! [`StayState`], as on the command line.

use berth_api::berth::usage::StayState;
use berth_api::kueue::v1beta2::Workload;
use berth_apimachinery::table::human_duration;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};

/// Maximum number of characters of a message in a table.
const MESSAGE_MAX: usize = 240;

/// A condition of a workload.
pub fn condition<'a>(workload: &'a Workload, name: &str) -> Option<&'a Condition> {
    workload.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == name)
}

/// The CSS class that colours the state of a job.
pub fn class(state: StayState) -> &'static str {
    match state {
        StayState::Waiting | StayState::Reserved => "nowrap wait",
        StayState::Running | StayState::Succeeded => "nowrap good",
        StayState::Failed | StayState::Preempted | StayState::Evicted => "nowrap bad",
        StayState::Held | StayState::Finished | StayState::Deleted => "nowrap quiet",
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
