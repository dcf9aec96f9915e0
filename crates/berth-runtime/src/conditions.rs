//! Conditions of status objects (`metav1.Condition`).

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::stamp;

/// A condition whose status changed at `now`. It has no generation.
pub fn condition(type_: &str, is_true: bool, reason: &str, message: &str, now: Timestamp) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status: if is_true { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: stamp(now),
        observed_generation: None,
    }
}

/// Sets a condition, in place or appended, as `meta.SetStatusCondition` does: the known transition
/// time stays if the status does. Returns true if anything changed.
pub fn set_condition(conditions: &mut Vec<Condition>, mut new: Condition) -> bool {
    // Kubernetes omits a generation of zero.
    new.observed_generation = new.observed_generation.filter(|generation| *generation != 0);
    let Some(known) = conditions.iter_mut().find(|known| known.type_ == new.type_) else {
        conditions.push(new);
        return true;
    };
    if known.status == new.status {
        new.last_transition_time = known.last_transition_time.clone();
    }
    let is_changed = *known != new;
    *known = new;
    is_changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_moves_with_the_status_only() {
        let at = |second: i64| Timestamp::from_second(second).expect("a time");
        let mut conditions = Vec::new();
        assert!(set_condition(&mut conditions, condition("Ready", true, "Up", "", at(1))));
        assert!(!set_condition(&mut conditions, condition("Ready", true, "Up", "", at(2))), "nothing changed");
        assert!(set_condition(&mut conditions, condition("Ready", true, "Up", "two pods run", at(3))));
        assert_eq!((conditions[0].last_transition_time.0, conditions[0].message.as_str()), (at(1), "two pods run"));
        assert!(set_condition(&mut conditions, condition("Other", false, "No", "", at(4))));
        assert!(set_condition(&mut conditions, condition("Ready", false, "Down", "", at(5))));
        assert_eq!(conditions[0].last_transition_time.0, at(5));
        assert_eq!(conditions.len(), 2);
    }
}
