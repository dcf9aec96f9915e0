//! Conditions of status objects: find, set, and the two length limits of Kubernetes.
//!
//! Setting follows `meta.SetStatusCondition`: the transition time changes only with the status. The
//! condition types of Kueue's objects are re-exported, so that callers import a single `conditions`
//! module.

pub use berth_api::kueue::conditions::*;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Maximum length of a condition message, in bytes.
const MESSAGE_BYTES_MAX: usize = 32 * 1024;

/// The condition of this type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// True if the condition exists and is True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// True if the condition exists and is False.
pub fn is_false(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == "False")
}

/// A new condition, without its transition time.
#[derive(Clone, Debug)]
pub struct NewCondition<'a> {
    /// Type.
    pub type_: &'a str,
    /// True or False.
    pub status: bool,
    /// CamelCase reason.
    pub reason: &'a str,
    /// Message; cut to 32 KiB.
    pub message: &'a str,
    /// The generation of the object that the condition describes.
    pub generation: Option<i64>,
}

/// Sets a condition, in place or appended. Returns true if anything changed.
pub fn set(conditions: &mut Vec<Condition>, new: NewCondition<'_>, now: Timestamp) -> bool {
    let NewCondition { type_, status, reason, message, generation } = new;
    let message = truncate(message, MESSAGE_BYTES_MAX);
    let condition = Condition {
        observed_generation: generation,
        last_transition_time: Time(now),
        ..berth_runtime::condition(type_, status, reason, &message, now)
    };
    berth_runtime::set_condition(conditions, condition)
}

/// Removes a condition. Returns true if it existed.
pub fn remove(conditions: &mut Vec<Condition>, type_: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.type_ != type_);
    conditions.len() != before
}

/// The text, cut to `bytes_max` bytes with ` ...` at the end if it is longer.
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

/// The time rounded down to whole seconds, the resolution of API objects.
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
