//! Conditions of a set, and the events of their changes.

use berth_api::jobset::constants::{COMPLETED, FAILED, STARTUP_POLICY_COMPLETED, STARTUP_POLICY_IN_PROGRESS};
use berth_api::jobset::v1alpha2::JobSetStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Sets a condition. Returns true if anything changed. A new condition is only added if it is True.
/// At most one of the two startup conditions is True.
pub fn set_condition(status: &mut JobSetStatus, new: Condition) -> bool {
    let mut changed = false;
    if new.status == "True" {
        for other in &mut status.conditions {
            if are_exclusive(&other.type_, &new.type_) && other.status == "True" {
                other.status = "False".into();
                other.last_transition_time = new.last_transition_time.clone();
                changed = true;
            }
        }
    }
    match status.conditions.iter_mut().find(|known| known.type_ == new.type_) {
        Some(known) if known.status != new.status => {
            *known = new;
            true
        }
        Some(known) if known.reason != new.reason || known.message != new.message => {
            known.reason = new.reason;
            known.message = new.message;
            true
        }
        Some(_) => changed,
        None if new.status == "True" => {
            status.conditions.push(new);
            true
        }
        None => changed,
    }
}

fn are_exclusive(one: &str, other: &str) -> bool {
    let pair = [STARTUP_POLICY_IN_PROGRESS, STARTUP_POLICY_COMPLETED];
    one != other && pair.contains(&one) && pair.contains(&other)
}

/// The condition of this type, if it is True.
pub fn true_condition<'a>(status: Option<&'a JobSetStatus>, type_: &str) -> Option<&'a Condition> {
    status?.conditions.iter().find(|condition| condition.type_ == type_ && condition.status == "True")
}

/// The terminal condition of a set, if it has finished.
pub fn finished_condition(status: Option<&JobSetStatus>) -> Option<&Condition> {
    true_condition(status, COMPLETED).or_else(|| true_condition(status, FAILED))
}
