//! What a look at a workload leads to, from objects as they are written.

use berth_api::kueue::v1beta2::{ClusterQueue, LocalQueue, Workload};
use k8s_openapi::api::core::v1::{LimitRange, Namespace};
use serde_json::{Value, json};

use super::reconcile::reconcile;
use super::status;
use crate::config::Config;
use crate::gates::Gates;
use crate::jobs::reconcile::Context;
use crate::plan::Step;
use crate::stores::Stores;

const KUEUE: &str = "kueue.x-k8s.io/v1beta2";
const NOW: &str = "2026-01-01T01:00:00Z";

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object")
}

/// A namespace of one team, its local queue, and a cluster queue for the namespaces of a team.
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

/// The last state of the status a look leads to.
fn look(stores: &Stores, workload: &Workload) -> Option<Workload> {
    let (config, gates) = (Config::default(), Gates::default());
    let context = Context { stores, config: &config, gates: &gates, now: NOW.parse().expect("a time") };
    let steps = reconcile(context, workload).steps;
    steps.into_iter().rev().find_map(|step| match step {
        Step::PatchStatus(after) => Some(*after),
        _ => None,
    })
}

fn why(stores: &Stores, workload: &Workload) -> Option<String> {
    let after = look(stores, workload)?;
    let condition = status::condition(&after, "QuotaReserved")?;
    Some(format!("{}: {}", condition.reason, condition.message))
}

#[test]
fn what_its_queue_can_never_admit_says_so_before_its_turn_comes() {
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
fn a_workload_that_is_deactivated_on_its_way_out_does_not_come_back_by_a_timer() {
    let mut leaving = workload(json!({}));
    leaving.spec.active = Some(false);
    status::set(&mut leaving, "Evicted", true, "PodsReadyTimeout", "late", NOW.parse().expect("a time"));
    status::set_requeue_state(&mut leaving, "2026-01-01T02:00:00Z".parse().expect("a time"), true);
    let after = look(&stores("blue"), &leaving).expect("a write");
    assert_eq!(after.status.and_then(|status| status.requeue_state), None);
}
