//! Cool-down of flavors (semantics §18.6): a flavor whose capacity was not provisioned, or whose
//! pods did not start in time, gets no further workloads for a while.
//!
//! The state is in annotations of the ResourceFlavor, so that it survives a restart, and users can
//! read and change it with kubectl. Recording failures is an option of the configuration
//! (`flavorCoolDown`, off by default). A cool-down that a user sets by hand works without it.

pub(crate) mod controller;

use std::collections::BTreeSet;

use berth_api::kueue::v1beta2::{ClusterQueue, ResourceFlavor, Workload};
use berth_runtime::later;
use jiff::Timestamp;
use kube::ResourceExt;

use crate::configuration::FlavorCoolDown;
use crate::translate::requests as pod_requests;

/// Annotation of a flavor: time until which it gets no further workloads (RFC 3339).
pub const UNTIL: &str = "berth.dev/cool-down-until";
/// Annotation of a flavor: why it cools down.
pub const REASON: &str = "berth.dev/cool-down-reason";
/// Annotation of a flavor: number of recent failures since the last success.
pub const FAILURES: &str = "berth.dev/recent-failures";
/// Annotation of a flavor: time and cause of the last failure. A failure with the same cause is not
/// counted again.
pub const LAST_FAILURE: &str = "berth.dev/last-failure";

/// A failure of the flavors of one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The flavors.
    pub flavors: Vec<String>,
    /// Identity of the failure. A failure with the cause of the last recorded one is not counted
    /// again.
    pub cause: String,
    /// What failed.
    pub message: String,
}

/// Time until which a flavor cools down, if it does. A time that cannot be read counts as none.
pub fn until(flavor: &ResourceFlavor) -> Option<Timestamp> {
    flavor.annotations().get(UNTIL)?.parse().ok()
}

/// Why a flavor gets no workloads now; `None` if it does not cool down.
pub fn text(flavor: &ResourceFlavor) -> Option<String> {
    let until = until(flavor)?;
    match flavor.annotations().get(REASON).filter(|reason| !reason.is_empty()) {
        Some(reason) => Some(format!("until {until}: {reason}")),
        None => Some(format!("until {until}")),
    }
}

/// The flavor after a failure; `None` if the failure was recorded before.
///
/// The cool-down doubles with each failure, up to the maximum. The count starts again at one if
/// twice the maximum has passed since the last failure.
pub fn failed(
    flavor: &ResourceFlavor,
    config: &FlavorCoolDown,
    failure: &Failure,
    now: Timestamp,
) -> Option<ResourceFlavor> {
    let known = flavor.annotations().get(LAST_FAILURE).and_then(|text| text.split_once(' '));
    if known.is_some_and(|(_, cause)| cause == failure.cause) {
        return None;
    }
    let last: Option<Timestamp> = known.and_then(|(time, _)| time.parse().ok());
    let is_recent = last.is_some_and(|last| later(last, config.maximum().saturating_mul(2)) > now);
    let before: u32 = flavor.annotations().get(FAILURES).and_then(|text| text.parse().ok()).unwrap_or(0);
    let failures = if is_recent { before.saturating_add(1) } else { 1 };
    let factor = 1_u32.checked_shl(failures - 1).unwrap_or(u32::MAX);
    let until = later(now, config.first().saturating_mul(factor).min(config.maximum()));
    let counted = if failures == 1 { "1 recent failure".to_owned() } else { format!("{failures} recent failures") };
    let mut flavor = flavor.clone();
    flavor.annotations_mut().extend([
        (UNTIL.to_owned(), until.to_string()),
        (REASON.to_owned(), format!("{counted}: {}", failure.message)),
        (FAILURES.to_owned(), failures.to_string()),
        (LAST_FAILURE.to_owned(), format!("{now} {}", failure.cause)),
    ]);
    Some(flavor)
}

/// The flavor after a success; `None` if it had no recent failures.
pub fn recovered(flavor: &ResourceFlavor) -> Option<ResourceFlavor> {
    without(flavor, &[UNTIL, REASON, FAILURES, LAST_FAILURE])
}

/// The flavor after its cool-down; `None` if it does not cool down, or its cool-down is not over.
pub fn expired(flavor: &ResourceFlavor, now: Timestamp) -> Option<ResourceFlavor> {
    until(flavor).filter(|until| *until <= now)?;
    without(flavor, &[UNTIL, REASON])
}

fn without(flavor: &ResourceFlavor, keys: &[&str]) -> Option<ResourceFlavor> {
    let mut flavor = flavor.clone();
    let annotations = flavor.metadata.annotations.as_mut()?;
    let before = annotations.len();
    annotations.retain(|key, _| !keys.contains(&key.as_str()));
    (annotations.len() < before).then_some(flavor)
}

/// The flavors that are assigned to the pod sets of a workload for which `is_concerned` is true.
pub fn flavors_of(workload: &Workload, is_concerned: impl Fn(&str) -> bool) -> Vec<String> {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let assignments = admission.into_iter().flat_map(|admission| &admission.pod_set_assignments);
    let concerned = assignments.filter(|assignment| is_concerned(&assignment.name));
    let flavors: BTreeSet<&String> = concerned.flat_map(|assignment| assignment.flavors.values()).collect();
    flavors.into_iter().cloned().collect()
}

/// The failure of a workload whose pods did not start in time. If pods of the workload request
/// accelerators, only the flavors of their pod sets count as failed.
pub fn not_started(workload: &Workload, message: &str) -> Failure {
    let has_device = |name: &str| {
        let set = workload.spec.pod_sets.iter().find(|set| set.name == name);
        let spec = set.and_then(|set| set.template.spec.as_ref());
        spec.is_some_and(|spec| pod_requests::of_pod(spec).keys().any(|resource| resource.contains('/')))
    };
    let scarce = flavors_of(workload, has_device);
    let flavors = if scarce.is_empty() { flavors_of(workload, |_| true) } else { scarce };
    let transitions = workload.status.iter().flat_map(|status| &status.conditions);
    let reserved = transitions.filter(|condition| condition.type_ == crate::conditions::QUOTA_RESERVED);
    let since = reserved.map(|condition| condition.last_transition_time.0.to_string()).next().unwrap_or_default();
    let uid = workload.metadata.uid.clone().unwrap_or_default();
    Failure { flavors, cause: format!("{uid}@{since}"), message: message.to_owned() }
}

/// True if the queue has another flavor that a workload could use after these have failed: in the
/// same resource group, and not cooling down.
pub fn has_alternative(queue: &ClusterQueue, failed: &[String], is_cooling: impl Fn(&str) -> bool) -> bool {
    queue.spec.resource_groups.iter().any(|group| {
        let names = || group.flavors.iter().map(|flavor| flavor.name.as_str());
        names().any(|name| failed.iter().any(|failed| failed == name))
            && names().any(|name| !failed.iter().any(|failed| failed == name) && !is_cooling(name))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn failure(cause: &str) -> Failure {
        Failure { flavors: vec!["dws".into()], cause: cause.into(), message: "no stock".into() }
    }

    fn config() -> FlavorCoolDown {
        FlavorCoolDown {
            initial: Some(std::time::Duration::from_secs(60)),
            maximum: Some(std::time::Duration::from_secs(200)),
        }
    }

    #[test]
    fn the_cool_down_doubles_up_to_its_maximum_and_a_failure_counts_once() {
        let mut flavor = ResourceFlavor::default();
        let mut ends = Vec::new();
        for (attempt, time) in [0, 100, 200].into_iter().enumerate() {
            let cause = format!("request-{attempt}");
            flavor = failed(&flavor, &config(), &failure(&cause), at(time)).unwrap();
            assert_eq!(failed(&flavor, &config(), &failure(&cause), at(time + 1)), None);
            ends.push(until(&flavor).unwrap().as_second() - at(time).as_second());
        }
        assert_eq!(ends, [60, 120, 200]);
        assert_eq!(text(&flavor).unwrap(), format!("until {}: 3 recent failures: no stock", at(400)));
        // Long after the last failure, the count starts anew.
        let later = failed(&flavor, &config(), &failure("later"), at(700)).unwrap();
        assert_eq!(until(&later), Some(at(760)));
    }

    #[test]
    fn a_cool_down_ends_in_time_and_a_success_forgets_the_failures() {
        let flavor = failed(&ResourceFlavor::default(), &config(), &failure("a"), at(0)).unwrap();
        assert_eq!(expired(&flavor, at(59)), None);
        let after = expired(&flavor, at(60)).unwrap();
        assert_eq!((text(&after), after.annotations().get(FAILURES).map(String::as_str)), (None, Some("1")));
        assert_eq!(until(&failed(&after, &config(), &failure("b"), at(70)).unwrap()), Some(at(190)));
        let good = recovered(&after).unwrap();
        assert!(good.annotations().is_empty());
        assert_eq!(recovered(&good), None);
    }

    #[test]
    fn an_alternative_is_another_flavor_of_the_group_that_does_not_cool_down() {
        let flavors = |names: &[&str]| -> serde_json::Value {
            names.iter().map(|name| json!({ "name": name, "resources": [] })).collect()
        };
        let queue: ClusterQueue = serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": { "name": "q" },
            "spec": { "resourceGroups": [
                { "coveredResources": ["cpu"], "flavors": flavors(&["default"]) },
                { "coveredResources": ["nvidia.com/gpu"], "flavors": flavors(&["on-demand", "dws"]) },
            ] },
        }))
        .unwrap();
        let failed = ["dws".to_owned()];
        assert!(has_alternative(&queue, &failed, |_| false));
        assert!(!has_alternative(&queue, &failed, |name| name == "on-demand"));
        assert!(!has_alternative(&queue, &["default".to_owned()], |_| false));
    }
}
