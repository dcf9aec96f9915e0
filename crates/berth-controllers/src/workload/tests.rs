//! Reconciles workloads given as manifests.

use berth_api::kueue::v1beta2::{ClusterQueue, LocalQueue, Workload};
use k8s_openapi::api::core::v1::{LimitRange, Namespace};
use serde_json::{Value, json};

use super::reconcile::reconcile;
use super::status;
use crate::configuration::Config;
use crate::gates::Gates;
use crate::jobs::reconcile::Context;
use crate::plan::{Plan, Step};
use crate::stores::Stores;

const KUEUE: &str = "kueue.x-k8s.io/v1beta2";
const NOW: &str = "2026-01-01T01:00:00Z";

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object")
}

/// A store with a namespace of team blue, its local queue, and a cluster queue for the namespaces
/// of team `of_team`.
fn stores(of_team: &str) -> Stores {
    let stores = Stores::by_hand();
    stores.namespaces.observe(read::<Namespace>(json!({"metadata": {"name": "ns", "labels": {"team": "blue"}}})));
    stores.local_queues.observe(read::<LocalQueue>(json!({"apiVersion": KUEUE, "kind": "LocalQueue",
        "metadata": {"name": "lq", "namespace": "ns"}, "spec": {"clusterQueue": "cq"}})));
    stores.cluster_queues.observe(read::<ClusterQueue>(json!({"apiVersion": KUEUE, "kind": "ClusterQueue",
        "metadata": {"name": "cq"}, "spec": {"namespaceSelector": {"matchLabels": {"team": of_team}}},
        "status": {"conditions": [{"type": "Active", "status": "True", "reason": "Ready", "message": "",
            "lastTransitionTime": NOW}]}})));
    stores
}

fn workload(resources: Value) -> Workload {
    read(json!({
        "apiVersion": KUEUE, "kind": "Workload",
        "metadata": {"name": "w", "namespace": "ns", "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true}]},
        "spec": {"queueName": "lq", "podSets": [{"name": "main", "count": 1,
            "template": {"spec": {"containers": [{"name": "c", "resources": resources}]}}}]}
    }))
}

/// The last status that a reconcile writes.
fn reconciled(stores: &Stores, workload: &Workload) -> Option<Workload> {
    let (config, gates) = (Config::default(), Gates::default());
    let context = Context { stores, config: &config, gates: &gates, now: NOW.parse().expect("a time") };
    last_status(reconcile(context, workload))
}

/// The last status that a plan writes.
fn last_status(plan: Plan<Workload>) -> Option<Workload> {
    plan.steps.into_iter().rev().find_map(|step| match step {
        Step::PatchStatus(after) => Some(*after),
        _ => None,
    })
}

fn why(stores: &Stores, workload: &Workload) -> Option<String> {
    let after = reconciled(stores, workload)?;
    let condition = status::condition(&after, "QuotaReserved")?;
    Some(format!("{}: {}", condition.reason, condition.message))
}

#[test]
fn a_workload_that_its_queue_can_never_admit_reports_it_before_its_evaluation() {
    let small = || workload(json!({"requests": {"cpu": "1"}}));
    assert_eq!(why(&stores("blue"), &small()), None);
    assert_eq!(
        why(&stores("green"), &small()).as_deref(),
        Some("Misconfigured: workload namespace doesn't match ClusterQueue selector")
    );
    let above = workload(json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}));
    let said = why(&stores("blue"), &above).expect("a reason");
    assert!(said.starts_with("Misconfigured: resources validation failed: "), "{said}");
    let limited = stores("blue");
    limited.limit_ranges.observe(read::<LimitRange>(json!({"metadata": {"name": "limits", "namespace": "ns"},
        "spec": {"limits": [{"type": "Container", "max": {"cpu": "500m"}}]}})));
    let said = why(&limited, &small()).expect("a reason");
    assert!(said.starts_with("Misconfigured: resources didn't satisfy LimitRange constraints: "), "{said}");
}

#[test]
fn a_workload_that_its_queue_can_admit_again_waits_for_its_evaluation() {
    let mut mismatched = reconciled(&stores("green"), &workload(json!({"requests": {"cpu": "1"}}))).expect("a write");
    let pending = "PendingEvaluation: Workload is pending evaluation in the scheduling queue";
    assert_eq!(why(&stores("blue"), &mismatched).as_deref(), Some(pending));
    // The scheduler's own reasons stay until it evaluates the workload again.
    let now = NOW.parse().expect("a time");
    status::set(&mut mismatched, "QuotaReserved", false, "Misconfigured", "topology \"t\" doesn't exist", now);
    assert_eq!(why(&stores("blue"), &mismatched), None);
}

#[test]
fn a_workload_deactivated_during_an_eviction_is_not_requeued_by_a_timer() {
    let mut leaving = workload(json!({}));
    leaving.spec.active = Some(false);
    status::set(&mut leaving, "Evicted", true, "PodsReadyTimeout", "late", NOW.parse().expect("a time"));
    status::set_requeue_state(&mut leaving, "2026-01-01T02:00:00Z".parse().expect("a time"), true);
    let after = reconciled(&stores("blue"), &leaving).expect("a write");
    assert_eq!(after.status.and_then(|status| status.requeue_state), None);
}

fn at(time: &str) -> jiff::Timestamp {
    format!("2026-01-01T{time}Z").parse().expect("a time")
}

/// A workload that was admitted at this time.
fn admitted(since: &str) -> Workload {
    let mut workload = workload(json!({"requests": {"cpu": "1"}}));
    let admission = read(json!({"clusterQueue": "cq", "podSetAssignments": [{"name": "main", "count": 1}]}));
    status::set_quota_reservation(&mut workload, admission, at(since));
    status::set(&mut workload, "Admitted", true, "Admitted", "", at(since));
    workload
}

fn reconcile_with(config: &Config, stores: &Stores, workload: &Workload) -> Plan<Workload> {
    let gates = Gates::default();
    reconcile(Context { stores, config, gates: &gates, now: NOW.parse().expect("a time") }, workload)
}

fn text_of(workload: &Workload, condition: &str) -> Option<String> {
    let condition = status::condition(workload, condition)?;
    Some(format!("{} {}: {}", condition.status, condition.reason, condition.message))
}

fn requeue_at(workload: &Workload) -> (Option<i32>, Option<jiff::Timestamp>) {
    let state = workload.status.as_ref().and_then(|status| status.requeue_state.as_ref());
    (state.and_then(|state| state.count), state.and_then(|state| state.requeue_at.as_ref()).map(|at| at.0))
}

/// Semantics §20.3: the backoff grows with each eviction for pods that are not ready in time.
#[test]
fn pods_not_ready_in_time_cause_evictions_with_growing_backoff() {
    let stores = stores("blue");
    let mut config = Config::default();
    config.wait_for_pods_ready.as_mut().expect("on by default").requeuing_strategy.backoff_limit_count = Some(3);
    let plan = reconcile_with(&config, &stores, &admitted("00:40:00"));
    assert_eq!((plan.steps.len(), plan.requeue_after), (0, Some(std::time::Duration::from_secs(600))));
    for (count, returns) in [(None, "01:01:00"), (Some(1), "01:02:00"), (Some(2), "01:04:00")] {
        let mut late = admitted("00:30:00");
        if let Some(count) = count {
            status::status_mut(&mut late).requeue_state = Some(read(json!({"count": count})));
        }
        let after = last_status(reconcile_with(&config, &stores, &late)).expect("a write");
        assert_eq!(
            text_of(&after, "Evicted").as_deref(),
            Some("True PodsReadyTimeout: Exceeded the PodsReady timeout ns/w")
        );
        assert!(status::has_quota_reservation(&after), "quota is held until the job has stopped");
        assert_eq!(requeue_at(&after), (Some(count.unwrap_or(0) + 1), Some(at(returns))));
        let stats = after.status.and_then(|status| status.scheduling_stats).expect("statistics");
        let eviction = &stats.evictions[0];
        assert_eq!(
            (eviction.reason.as_str(), eviction.underlying_cause.as_str()),
            ("PodsReadyTimeout", "WaitForStart")
        );
    }
    let mut often = admitted("00:30:00");
    status::status_mut(&mut often).requeue_state = Some(read(json!({"count": 3})));
    let after = last_status(reconcile_with(&config, &stores, &often)).expect("a write");
    assert_eq!(
        text_of(&after, "DeactivationTarget").as_deref(),
        Some("True RequeuingLimitExceeded: exceeding the maximum number of re-queuing retries")
    );
    assert_eq!(text_of(&after, "Evicted"), None);
}

/// Semantics §20.2 and §20.3.
#[test]
fn pods_that_were_ready_before_have_the_recovery_timeout() {
    let stores = stores("blue");
    let mut config = Config::default();
    let waits = config.wait_for_pods_ready.as_mut().expect("on by default");
    waits.recovery_timeout = Some(std::time::Duration::from_secs(60));
    let mut failed = admitted("00:00:00");
    status::set(&mut failed, "PodsReady", false, "WaitForRecovery", "", at("00:59:30"));
    let plan = reconcile_with(&config, &stores, &failed);
    assert_eq!((plan.steps.len(), plan.requeue_after), (0, Some(std::time::Duration::from_secs(30))));
    status::set(&mut failed, "PodsReady", true, "Recovered", "", at("00:59:40"));
    let plan = reconcile_with(&config, &stores, &failed);
    assert_eq!((plan.steps.len(), plan.requeue_after), (0, None));
}

/// Semantics §21.1 and §21.2.
#[test]
fn a_workload_at_its_maximum_execution_time_is_deactivated_step_by_step() {
    let stores = stores("blue");
    let config = Config::default();
    let mut runs = admitted("00:55:00");
    status::set(&mut runs, "PodsReady", true, "Started", "", at("00:55:00"));
    runs.spec.maximum_execution_time_seconds = Some(600);
    assert_eq!(reconcile_with(&config, &stores, &runs).requeue_after, Some(std::time::Duration::from_secs(300)));
    // Execution time before an eviction counts.
    status::status_mut(&mut runs).accumulated_past_execution_time_seconds = Some(300);
    let plan = reconcile_with(&config, &stores, &runs);
    let reported = plan
        .steps
        .iter()
        .any(|step| matches!(step, Step::Event(event) if event.reason == "MaximumExecutionTimeExceeded"));
    assert!(reported, "{:?}", plan.steps);
    let mut over = last_status(plan).expect("a write");
    assert_eq!(
        text_of(&over, "DeactivationTarget").as_deref(),
        Some("True MaximumExecutionTimeExceeded: exceeding the maximum execution time")
    );
    let steps = reconcile_with(&config, &stores, &over).steps;
    assert!(matches!(&steps[..], [Step::Patch(after)] if after.spec.active == Some(false)), "{steps:?}");
    over.spec.active = Some(false);
    let after = last_status(reconcile_with(&config, &stores, &over)).expect("a write");
    assert_eq!(
        text_of(&after, "Evicted").as_deref(),
        Some(
            "True DeactivatedDueToMaximumExecutionTimeExceeded: \
             The workload is deactivated due to exceeding the maximum execution time"
        )
    );
    assert_eq!(text_of(&after, "DeactivationTarget"), None);
}

/// Semantics §21.3: `Hold` keeps admitted workloads and releases quota that is only reserved.
#[test]
fn a_stopped_queue_keeps_admitted_workloads_on_hold_and_releases_reservations() {
    let mut reserved = admitted("00:59:00");
    status::set(&mut reserved, "Admitted", false, "NoChecks", "", at("00:59:00"));
    let running = admitted("00:59:00");
    for (policy, evicted) in
        [("Hold", None), ("HoldAndDrain", Some("True ClusterQueueStopped: The ClusterQueue is stopped"))]
    {
        let stores = stores("blue");
        stores.cluster_queues.observe(read::<ClusterQueue>(json!({"apiVersion": KUEUE, "kind": "ClusterQueue",
            "metadata": {"name": "cq", "resourceVersion": "2"}, "spec": {"stopPolicy": policy}})));
        let after = last_status(reconcile_with(&Config::default(), &stores, &running));
        assert_eq!(after.as_ref().and_then(|after| text_of(after, "Evicted")).as_deref(), evicted, "{policy}");
        let after = last_status(reconcile_with(&Config::default(), &stores, &reserved)).expect("a write");
        assert_eq!(text_of(&after, "QuotaReserved").as_deref(), Some("False Suspended: ClusterQueue cq is stopped"));
    }
}

/// Semantics §19.3: the cause of an eviction decides when the workload is requeued.
#[test]
fn an_evicted_workload_is_requeued_after_its_cause_ends() {
    let evicted_workload = |reason: &str, returns: Option<&str>| {
        let mut workload = workload(json!({}));
        status::set(&mut workload, "Requeued", false, reason, "", at("00:50:00"));
        if let Some(returns) = returns {
            status::set_requeue_state(&mut workload, at(returns), true);
        }
        workload
    };
    let stopped = |kind: &str| {
        let stores = stores("blue");
        match kind {
            "ClusterQueue" => stores.cluster_queues.observe(read::<ClusterQueue>(json!({"apiVersion": KUEUE,
                "kind": kind, "metadata": {"name": "cq", "resourceVersion": "2"}, "spec": {"stopPolicy": "Hold"}}))),
            _ => stores.local_queues.observe(read::<LocalQueue>(json!({"apiVersion": KUEUE, "kind": kind,
                "metadata": {"name": "lq", "namespace": "ns", "resourceVersion": "2"},
                "spec": {"clusterQueue": "cq", "stopPolicy": "Hold"}}))),
        };
        stores
    };
    let again = |stores: &Stores, workload: &Workload| {
        let after = last_status(reconcile_with(&Config::default(), stores, workload))?;
        text_of(&after, "Requeued").filter(|it| it.starts_with("True"))
    };
    for (reason, returns, said) in [
        ("PodsReadyTimeout", Some("00:59:00"), "True BackoffFinished: The workload backoff was finished"),
        ("AdmissionCheck", Some("00:59:00"), "True BackoffFinished: The workload backoff was finished"),
        ("Deactivated", None, "True Reactivated: The workload was reactivated"),
        ("ClusterQueueStopped", None, "True ClusterQueueRestarted: The ClusterQueue was restarted after being stopped"),
        ("LocalQueueStopped", None, "True LocalQueueRestarted: The LocalQueue was restarted after being stopped"),
    ] {
        assert_eq!(again(&stores("blue"), &evicted_workload(reason, returns)).as_deref(), Some(said));
    }
    let early = evicted_workload("PodsReadyTimeout", Some("01:00:30"));
    assert_eq!(again(&stores("blue"), &early), None);
    let plan = reconcile_with(&Config::default(), &stores("blue"), &early);
    assert_eq!(plan.requeue_after, Some(std::time::Duration::from_secs(30)));
    for kind in ["ClusterQueue", "LocalQueue"] {
        assert_eq!(again(&stopped(kind), &evicted_workload(&format!("{kind}Stopped"), None)), None, "{kind}");
    }
}

/// Users and tests of other programs reserve quota by hand.
#[test]
fn a_reservation_by_hand_is_admitted_without_its_queues() {
    let mut reserved = workload(json!({}));
    let admission = berth_api::kueue::v1beta2::Admission { cluster_queue: "cq".into(), ..Default::default() };
    status::set_quota_reservation(&mut reserved, admission, at("00:59:00"));
    let plan = reconcile_with(&Config::default(), &Stores::by_hand(), &reserved);
    let after = last_status(plan).expect("a write");
    assert_eq!(text_of(&after, "Admitted").as_deref(), Some("True Admitted: The workload is admitted"));
}

/// The manager of an external framework may evict without setting the condition Requeued.
#[test]
fn a_backoff_without_the_condition_requeued_ends_too() {
    let mut waits = workload(json!({}));
    status::set_requeue_state(&mut waits, at("01:00:30"), true);
    let plan = reconcile_with(&Config::default(), &stores("blue"), &waits);
    assert_eq!(plan.requeue_after, Some(std::time::Duration::from_secs(30)));
    status::status_mut(&mut waits).requeue_state = None;
    status::set_requeue_state(&mut waits, at("00:59:00"), true);
    let after = last_status(reconcile_with(&Config::default(), &stores("blue"), &waits)).expect("a write");
    let state = after.status.and_then(|status| status.requeue_state).expect("the count is kept");
    assert_eq!((state.count, state.requeue_at), (Some(1), None));
}

/// Semantics §22: of several reasons for missing quota, the reason that must be resolved first is
/// reported.
#[test]
fn of_several_reasons_the_one_to_resolve_first_is_reported() {
    let bare = Stores::by_hand();
    let waits = workload(json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}));
    assert_eq!(why(&bare, &waits).as_deref(), Some("Misconfigured: LocalQueue lq doesn't exist"));
    let local = |stop: &str, version: &str| {
        read::<LocalQueue>(json!({"apiVersion": KUEUE, "kind": "LocalQueue",
            "metadata": {"name": "lq", "namespace": "ns", "resourceVersion": version},
            "spec": {"clusterQueue": "cq", "stopPolicy": stop}}))
    };
    bare.local_queues.observe(local("Hold", "1"));
    assert_eq!(why(&bare, &waits).as_deref(), Some("Suspended: LocalQueue lq is inactive"));
    bare.local_queues.observe(local("None", "2"));
    assert_eq!(why(&bare, &waits).as_deref(), Some("Misconfigured: ClusterQueue cq doesn't exist"));
    // The queue is not active yet.
    bare.cluster_queues.observe(read::<ClusterQueue>(json!({"apiVersion": KUEUE, "kind": "ClusterQueue",
        "metadata": {"name": "cq"}, "spec": {}})));
    assert_eq!(why(&bare, &waits).as_deref(), Some("Suspended: ClusterQueue cq is inactive"));
    let said = why(&stores("blue"), &waits).expect("a reason");
    assert!(said.starts_with("Misconfigured: resources validation failed: "), "{said}");
}

/// As when a client with field manager `kueue-admission` applies a status without an admission: it
/// cannot remove fields that Berth's controllers own.
#[test]
fn an_admission_whose_reservation_another_writer_withdrew_is_dropped() {
    let mut withdrawn = admitted("00:40:00");
    status::set(&mut withdrawn, "QuotaReserved", false, "Pending", "By test", at("00:50:00"));
    status::set(&mut withdrawn, "Admitted", false, "NoReservation", "", at("00:50:00"));
    let after = reconciled(&stores("blue"), &withdrawn).expect("a write");
    assert_eq!(after.status.as_ref().and_then(|status| status.admission.as_ref()), None);
    assert!(!status::has_quota_reservation(&after));
    assert_eq!(reconciled(&stores("blue"), &after), None, "it is stable");
}

#[test]
fn checks_that_are_reset_keep_the_delay_of_their_retry() {
    let mut evicted = admitted("00:40:00");
    status::status_mut(&mut evicted).admission_checks = read(json!([
        {"name": "retry", "state": "Retry", "message": "later", "lastTransitionTime": NOW,
         "requeueAfterSeconds": 60, "retryCount": 1, "podSetUpdates": [{"name": "main"}]},
        {"name": "new", "state": "Pending", "message": "", "lastTransitionTime": NOW, "requeueAfterSeconds": 5}]));
    status::reset_checks(&mut evicted, at("01:00:00"));
    let checks = evicted.status.expect("a status").admission_checks;
    assert_eq!(checks[0].requeue_after_seconds, Some(60));
    assert_eq!((checks[0].retry_count, checks[0].pod_set_updates.len()), (Some(2), 0));
    assert_eq!(checks[1].requeue_after_seconds, Some(5));
}
