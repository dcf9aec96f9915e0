//! Stays of workloads, as their objects show them: since when a workload waits, holds quota or
//! runs, and how that ended.

use berth_api::berth::SUBMITTED_BY_ANNOTATION;
use berth_api::berth::explanation::{Held, Job, ObjectName};
use berth_api::berth::usage::{Stay, StayState};
use berth_api::kueue::reasons::{admission, eviction, finished};
use berth_api::kueue::v1beta2::Workload;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;

use crate::concurrent_admission::is_variant;
use crate::conditions;
use crate::stores::controller_of;
use crate::workload::status;

/// Label that AppWrapper's webhook sets to the name of the user.
const CODEFLARE_USER: &str = "workload.codeflare.dev/user";

/// The user that created the job of a workload; empty if not known.
fn user(workload: &Workload) -> String {
    let by_annotation = workload.annotations().get(SUBMITTED_BY_ANNOTATION);
    by_annotation.or_else(|| workload.labels().get(CODEFLARE_USER)).cloned().unwrap_or_default()
}

/// The amounts of a workload's admission.
pub(crate) fn holds(workload: &Workload) -> Vec<Held> {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let sets = admission.into_iter().flat_map(|admission| &admission.pod_set_assignments);
    let held = sets.flat_map(|set| {
        set.resource_usage.iter().filter_map(|(resource, amount)| {
            let flavor = set.flavors.get(resource)?.clone();
            Some(Held { flavor, resource: resource.clone(), amount: amount.clone() })
        })
    });
    held.collect()
}

fn pods(workload: &Workload) -> i64 {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let admitted = admission.map(|admission| {
        let counts = admission.pod_set_assignments.iter().map(|set| set.count);
        counts.map(|count| i64::from(count.unwrap_or(0))).sum()
    });
    admitted.unwrap_or_else(|| workload.spec.pod_sets.iter().map(|set| i64::from(set.count)).sum())
}

/// True for a stay that ended by an eviction.
pub(super) fn is_eviction(state: StayState) -> bool {
    matches!(state, StayState::Preempted | StayState::Evicted)
}

/// The current stay of a workload, or the stay that an object shows to have ended. `since` is the
/// end of the stay before, if there was one; `cluster_queue` is that of its local queue.
///
/// Until an evicted workload releases its quota, the object shows the stay that the eviction ended.
pub(crate) fn of(workload: &Workload, since: Option<Timestamp>, cluster_queue: &str) -> Stay {
    let (state, reason, ended) = state(workload);
    let at = |type_: &str| status::true_condition(workload, type_).map(|it| it.last_transition_time.clone());
    let created = workload.metadata.creation_timestamp.clone();
    // A workload that finishes while it is being evicted held its quota in the stay before.
    let holds_quota = status::has_quota_reservation(workload) && (!status::is_evicted(workload) || is_eviction(state));
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    Stay {
        workload: ObjectName { namespace: workload.namespace().unwrap_or_default(), name: workload.name_any() },
        uid: workload.metadata.uid.clone().unwrap_or_default(),
        job: controller_of(&workload.metadata).map(|owner| Job { kind: owner.kind.clone(), name: owner.name.clone() }),
        labels: workload.labels().clone(),
        user: user(workload),
        queue: workload.spec.queue_name.clone(),
        cluster_queue: admission.map_or(cluster_queue, |admission| &admission.cluster_queue).to_owned(),
        priority: i64::from(workload.spec.priority.unwrap_or(0)),
        pods: pods(workload),
        queued: since.map(Time).into_iter().chain(created).max(),
        reserved: at(conditions::QUOTA_RESERVED).filter(|_| holds_quota),
        admitted: at(conditions::ADMITTED).filter(|_| holds_quota),
        ended,
        state,
        reason,
        holds: if holds_quota { holds(workload) } else { Vec::new() },
    }
}

/// The stay that a Workload shows, for clients that know only the object. Its wait begins with the
/// last eviction that the object shows. `None` for the variant of another workload, whose parent
/// has the same admission.
pub fn shown(workload: &Workload, cluster_queue: &str) -> Option<Stay> {
    if is_variant(workload) {
        return None;
    }
    let evicted = status::true_condition(workload, conditions::EVICTED);
    let since = evicted.filter(|_| !status::has_quota_reservation(workload)).map(|it| it.last_transition_time.0);
    Some(of(workload, since, cluster_queue))
}

/// The state of a workload in the words of every list and page.
pub fn state_of(workload: &Workload) -> StayState {
    state(workload).0
}

/// The state of a workload that holds quota: whether it is admitted, and the reason of its
/// eviction.
pub fn state_of_holder(admitted: bool, evicted: Option<&str>) -> StayState {
    match evicted {
        Some(eviction::PREEMPTED) => StayState::Preempted,
        Some(_) => StayState::Evicted,
        None if admitted => StayState::Running,
        None => StayState::Reserved,
    }
}

/// The condition that says why a workload waits or is held. `None` if there is none, or if the
/// object shows that it is no longer true: the controllers have not replaced it yet.
pub fn wait_of(workload: &Workload) -> Option<&Condition> {
    let reserved = status::condition(workload, conditions::QUOTA_RESERVED).filter(|it| it.status == "False")?;
    let says_inactive = reserved.reason == admission::DEACTIVATED;
    (says_inactive != status::is_active(workload)).then_some(reserved)
}

/// State, reason and end of the stay that an object shows.
fn state(workload: &Workload) -> (StayState, String, Option<Time>) {
    let shown = |state: StayState, by: &Condition| (state, by.reason.clone(), Some(by.last_transition_time.clone()));
    if let Some(by) = status::true_condition(workload, conditions::FINISHED) {
        return match by.reason.as_str() {
            finished::SUCCEEDED => shown(StayState::Succeeded, by),
            finished::FAILED | finished::FAILED_TO_START => shown(StayState::Failed, by),
            finished::OWNER_NOT_FOUND => shown(StayState::Deleted, by),
            _ => shown(StayState::Finished, by),
        };
    }
    let holds_quota = status::has_quota_reservation(workload);
    if let Some(by) = status::true_condition(workload, conditions::EVICTED).filter(|_| holds_quota) {
        return shown(state_of_holder(false, Some(&by.reason)), by);
    }
    let reason = |by: Option<&Condition>| by.map(|it| it.reason.clone()).unwrap_or_default();
    let admitted = reason(status::condition(workload, conditions::ADMITTED));
    if status::is_admitted(workload) {
        (StayState::Running, admitted, None)
    } else if holds_quota {
        (StayState::Reserved, admitted, None)
    } else if !status::is_active(workload) {
        (StayState::Held, admission::DEACTIVATED.to_owned(), None)
    } else if status::is_on_hold(workload) {
        (StayState::Held, admission::ON_HOLD.to_owned(), None)
    } else {
        (StayState::Waiting, reason(wait_of(workload)), None)
    }
}

/// The stay that a change ended, if any: an eviction, the end of the job, or the deletion of the
/// Workload. Variants are not counted, because their parent has the same admission.
pub(crate) fn ended(
    old: Option<&Workload>,
    new: Option<&Workload>,
    since: Option<Timestamp>,
    cluster_queue: &str,
    now: Timestamp,
) -> Option<Stay> {
    if is_variant(new.or(old)?) {
        return None;
    }
    let Some(new) = new else {
        let old = old?;
        let stay = of(old, since, cluster_queue);
        if stay.state.is_end() && status::is_finished(old) {
            return None;
        }
        let at = old.metadata.deletion_timestamp.as_ref().map_or(now, |at| at.0.min(now));
        // The quota of an evicted workload belongs to the stay that the eviction ended.
        let holds_nothing = stay.state.is_end();
        let stay =
            if holds_nothing { Stay { reserved: None, admitted: None, holds: Vec::new(), ..stay } } else { stay };
        let reason = String::new();
        return Some(Stay { state: StayState::Deleted, reason, ended: Some(Time(at)), ..stay });
    };
    let stay = of(new, since, cluster_queue);
    if stay.state.is_end() {
        return Some(stay);
    }
    // The eviction and the release of quota may arrive as one change.
    let evicted = status::true_condition(new, conditions::EVICTED)?;
    let before = old.filter(|old| status::has_quota_reservation(old) && !status::is_evicted(old))?;
    let state = state_of_holder(false, Some(&evicted.reason));
    let (reason, at) = (evicted.reason.clone(), evicted.last_transition_time.clone());
    Some(Stay { state, reason, ended: Some(at), ..of(before, since, cluster_queue) })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn workload(conditions: Value, holds_quota: bool) -> Workload {
        let mut object = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"name": "w", "namespace": "team", "uid": "1", "creationTimestamp": at(0),
                         "annotations": {SUBMITTED_BY_ANNOTATION: "alice"}},
            "spec": {"queueName": "main", "priority": 7, "podSets": [{"name": "main", "count": 3, "template": {}}]},
            "status": {"conditions": conditions}});
        if holds_quota {
            object["status"]["admission"] = json!({"clusterQueue": "cq", "podSetAssignments": [
                {"name": "main", "count": 2, "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": "4"}}]});
        }
        serde_json::from_value(object).expect("a workload")
    }

    fn at(seconds: i64) -> String {
        berth_apimachinery::times::time(time(seconds))
    }

    fn time(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + seconds).expect("in range")
    }

    fn is(type_: &str, reason: &str, seconds: i64) -> Value {
        json!({"type": type_, "status": "True", "reason": reason, "message": "", "lastTransitionTime": at(seconds)})
    }

    fn running() -> Workload {
        let conditions = json!([is("QuotaReserved", "QuotaReserved", 10), is("Admitted", "Admitted", 20)]);
        workload(conditions, true)
    }

    fn preempted(holds_quota: bool) -> Workload {
        let mut conditions = vec![is("Evicted", "Preempted", 50)];
        if holds_quota {
            conditions.extend([is("QuotaReserved", "QuotaReserved", 10), is("Admitted", "Admitted", 20)]);
        }
        workload(json!(conditions), holds_quota)
    }

    fn times(stay: &Stay) -> [Option<i64>; 4] {
        [&stay.queued, &stay.reserved, &stay.admitted, &stay.ended]
            .map(|it| it.as_ref().map(|it| it.0.as_second() - time(0).as_second()))
    }

    #[test]
    fn a_finished_workload_ends_a_stay_with_its_quota() {
        let conditions = json!([
            is("QuotaReserved", "QuotaReserved", 10),
            is("Admitted", "Admitted", 20),
            is("Finished", "Failed", 90)
        ]);
        let done = workload(conditions, true);
        let stay = ended(Some(&running()), Some(&done), None, "local", time(95)).expect("an end");
        assert_eq!((stay.state, stay.pods, stay.user.as_str()), (StayState::Failed, 2, "alice"));
        assert_eq!(times(&stay), [Some(0), Some(10), Some(20), Some(90)]);
        assert_eq!(stay.holds, [Held { flavor: "spot".into(), resource: "cpu".into(), amount: quantity("4") }]);
        assert_eq!(ended(Some(&done), None, None, "local", time(99)), None, "the end was recorded before");
    }

    fn quantity(text: &str) -> k8s_openapi::apimachinery::pkg::api::resource::Quantity {
        k8s_openapi::apimachinery::pkg::api::resource::Quantity(text.to_owned())
    }

    #[test]
    fn an_eviction_ends_a_stay_even_if_the_release_arrives_with_it() {
        assert_eq!(ended(None, Some(&running()), None, "local", time(30)), None);
        for evicted in [preempted(true), preempted(false)] {
            let stay = ended(Some(&running()), Some(&evicted), None, "local", time(60)).expect("an end");
            assert_eq!((stay.state, stay.holds.len()), (StayState::Preempted, 1));
            assert_eq!(times(&stay), [Some(0), Some(10), Some(20), Some(50)]);
        }
        let waits = of(&preempted(false), Some(time(50)), "local");
        assert_eq!((waits.state, times(&waits)), (StayState::Waiting, [Some(50), None, None, None]));
    }

    #[test]
    fn a_held_or_released_workload_has_no_reason_of_its_state_before() {
        let waits = |reason: &str, active: bool| {
            let is_not = json!({"type": "QuotaReserved", "status": "False", "reason": reason, "message": "",
                "lastTransitionTime": at(10)});
            let mut workload = workload(json!([is_not]), false);
            workload.spec.active = Some(active);
            let stay = of(&workload, None, "local");
            assert_eq!(wait_of(&workload).is_some(), stay.reason == reason, "{reason}, {active}");
            (stay.state.name(), stay.reason)
        };
        assert_eq!(waits("WaitingForQuota", true), ("Waiting", "WaitingForQuota".to_owned()));
        assert_eq!(waits("WaitingForQuota", false), ("Held", "Deactivated".to_owned()));
        assert_eq!(waits("Deactivated", false), ("Held", "Deactivated".to_owned()));
        assert_eq!(waits("Deactivated", true), ("Waiting", String::new()));
        assert_eq!(waits("OnHold", true), ("Held", "OnHold".to_owned()));
    }

    #[test]
    fn a_deleted_workload_ends_its_stay() {
        let stay = ended(Some(&running()), None, None, "local", time(40)).expect("an end");
        assert_eq!((stay.state, times(&stay)), (StayState::Deleted, [Some(0), Some(10), Some(20), Some(40)]));
        let stay = ended(Some(&preempted(true)), None, Some(time(50)), "local", time(55)).expect("an end");
        assert_eq!((times(&stay), stay.holds), ([Some(50), None, None, Some(55)], vec![]));
    }
}
