//! Plans of DaemonSets.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::plan::{Plan, plan};
use super::pod::{pod_for, target_node};

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn daemon_set(spec: Value, pod: Value) -> DaemonSet {
    let mut full = json!({"selector": {}, "template": {"spec": {"containers": []}}});
    full["template"]["spec"].as_object_mut().unwrap().extend(pod.as_object().unwrap().clone());
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let metadata = json!({"name": "agent", "namespace": "ns", "uid": "u",
        "annotations": {"deprecated.daemonset.template.generation": "2"}});
    serde_json::from_value(json!({"metadata": metadata, "spec": full})).unwrap()
}

fn node(name: &str, taints: &[(&str, &str)]) -> Arc<Node> {
    let taints: Vec<Value> = taints.iter().map(|(key, effect)| json!({"key": key, "effect": effect})).collect();
    let labels = json!({"disk": if name == "c" { "ssd" } else { "hdd" }});
    let node = json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}});
    Arc::new(serde_json::from_value(node).unwrap())
}

fn nodes() -> Vec<Arc<Node>> {
    ["a", "b", "c", "d"].map(|name| node(name, &[])).to_vec()
}

/// The set's pod on a node, of this template and in this phase; running pods are ready.
fn pod(set: &DaemonSet, node: &str, hash: &str, phase: &str) -> Arc<Pod> {
    let mut pod = pod_for(set, node, hash);
    pod.metadata.name = Some(format!("agent-{node}-{hash}"));
    pod.spec.as_mut().unwrap().node_name = Some(node.to_owned());
    let ready = json!([{"type": "Ready", "status": if phase == "Running" { "True" } else { "False" },
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    pod.status = serde_json::from_value(json!({"phase": phase, "conditions": ready})).unwrap();
    Arc::new(pod)
}

fn step(set: &DaemonSet, nodes: &[Arc<Node>], pods: &[Arc<Pod>]) -> Plan {
    plan(set, "new", nodes, pods, &BTreeMap::new(), now())
}

fn deleted(plan: &Plan) -> Vec<String> {
    plan.delete.iter().map(|pod| pod.name_any()).collect()
}

#[test]
fn each_eligible_node_gets_one_pod_that_names_it() {
    let set = daemon_set(json!({}), json!({"nodeSelector": {"disk": "hdd"}}));
    let tainted = vec![
        node("a", &[("node.kubernetes.io/unschedulable", "NoSchedule")]),
        node("b", &[("gpu", "NoSchedule")]),
        node("c", &[]),
        node("d", &[]),
    ];
    let first = step(&set, &tainted, &[]);
    assert_eq!(first.create, ["a", "d"]);
    assert_eq!(first.status.desired_number_scheduled, 2);
    let created = pod_for(&set, "a", "new");
    assert_eq!(target_node(&created), Some("a"));
    assert_eq!(created.labels()["controller-revision-hash"], "new");
    assert_eq!(created.labels()["pod-template-generation"], "2");
    let pods = [pod(&set, "a", "new", "Running"), pod(&set, "d", "new", "Pending")];
    let settled = step(&set, &tainted, &pods);
    assert_eq!((settled.create.len(), settled.delete.len()), (0, 0));
    let status = settled.status;
    assert_eq!((status.current_number_scheduled, status.number_ready, status.number_unavailable), (2, 1, Some(1)));
}

#[test]
fn a_pod_leaves_a_node_that_it_does_not_fit_or_tolerate_any_more() {
    let set = daemon_set(json!({}), json!({"nodeSelector": {"disk": "hdd"}}));
    let pods = ["a", "b", "c"].map(|node| pod(&set, node, "new", "Running"));
    let changed =
        vec![node("a", &[("maintenance", "NoSchedule")]), node("b", &[("maintenance", "NoExecute")]), node("c", &[])];
    let plan = step(&set, &changed, &pods);
    assert_eq!(deleted(&plan), ["agent-b-new", "agent-c-new"]);
    assert_eq!((plan.status.number_misscheduled, plan.status.desired_number_scheduled), (3, 0));
}

#[test]
fn a_pod_that_waits_for_a_deleted_node_is_deleted() {
    let set = daemon_set(json!({}), json!({}));
    let mut waiting = (*pod(&set, "gone", "new", "Pending")).clone();
    waiting.spec.as_mut().unwrap().node_name = None;
    assert_eq!(deleted(&step(&set, &[], &[Arc::new(waiting)])), ["agent-gone-new"]);
}

#[test]
fn a_rolling_update_keeps_all_but_max_unavailable_nodes_served() {
    let rolling = json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "50%"}}});
    let set = daemon_set(rolling, json!({}));
    let on = |states: [(&str, &str); 4]| {
        let pods: Vec<_> =
            ["a", "b", "c", "d"].iter().zip(states).map(|(node, (hash, phase))| pod(&set, node, hash, phase)).collect();
        deleted(&step(&set, &nodes(), &pods))
    };
    let (old, new, broken) = (("old", "Running"), ("new", "Running"), ("new", "Pending"));
    assert_eq!(on([old, old, old, old]), ["agent-a-old", "agent-b-old"]);
    assert_eq!(on([broken, old, old, old]), ["agent-b-old"]);
    assert_eq!(on([broken, broken, old, old]), Vec::<String>::new());
    assert_eq!(on([new, new, new, old]), ["agent-d-old"]);
    // Old pods that are not available are replaced in addition to `maxUnavailable`.
    assert_eq!(on([broken, broken, ("old", "Pending"), old]), ["agent-c-old"]);
}

#[test]
fn a_rolling_update_with_a_surge_creates_before_it_deletes() {
    let rolling = json!({"updateStrategy": {"type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}});
    let set = daemon_set(rolling, json!({}));
    let mut pods: Vec<_> = ["a", "b", "c", "d"].iter().map(|node| pod(&set, node, "old", "Running")).collect();
    let first = step(&set, &nodes(), &pods);
    assert_eq!((first.create.clone(), deleted(&first)), (vec!["a".to_owned()], vec![]));
    pods.push(pod(&set, "a", "new", "Pending"));
    let waiting = step(&set, &nodes(), &pods);
    assert_eq!((waiting.create.len(), waiting.delete.len()), (0, 0), "the surge is used up");
    pods[4] = pod(&set, "a", "new", "Running");
    assert_eq!(deleted(&step(&set, &nodes(), &pods)), ["agent-a-old"]);
}

#[test]
fn on_delete_replaces_nothing_by_itself() {
    let set = daemon_set(json!({"updateStrategy": {"type": "OnDelete"}}), json!({}));
    let pods: Vec<_> = ["a", "b", "c", "d"].iter().map(|node| pod(&set, node, "old", "Running")).collect();
    let plan = step(&set, &nodes(), &pods);
    assert_eq!((plan.create.len(), plan.delete.len(), plan.status.updated_number_scheduled), (0, 0, None));
}

#[test]
fn failed_pods_are_replaced_with_a_growing_delay() {
    let set = daemon_set(json!({}), json!({}));
    let (nodes, pods) = ([node("a", &[])], [pod(&set, "a", "new", "Failed")]);
    let first = plan(&set, "new", &nodes, &pods, &BTreeMap::new(), now());
    assert_eq!((deleted(&first).len(), first.events[0].reason.as_str()), (1, "FailedDaemonPod"));
    let soon = now() + SignedDuration::from_millis(400);
    let second = plan(&set, "new", &nodes, &pods, &first.backoff, soon);
    assert_eq!((second.delete.len(), second.requeue_after.unwrap().as_millis()), (0, 600));
    let third = plan(&set, "new", &nodes, &pods, &second.backoff, now() + SignedDuration::from_secs(1));
    assert_eq!(third.delete.len(), 1);
    assert_eq!(third.backoff["a"].delay, SignedDuration::from_secs(2));
}

#[test]
fn min_ready_seconds_delay_availability() {
    let set = daemon_set(json!({"minReadySeconds": 4000}), json!({}));
    let plan = step(&set, &[node("a", &[])], &[pod(&set, "a", "new", "Running")]);
    assert_eq!((plan.status.number_ready, plan.status.number_available), (1, None));
    assert_eq!(plan.requeue_after.unwrap().as_secs(), 400);
}
