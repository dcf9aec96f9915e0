//! Releases and health assessments of workloads given as manifests.

use std::sync::Arc;

use berth_api::kueue::v1beta2::Workload;
use berth_runtime::Cache;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::health::{Outcome, View, assess, reads_pods};
use super::release::{may_release, releases};
use crate::conditions;
use crate::gates::{Gate, Gates};

const NOW: &str = "2026-01-01T00:10:00Z";

/// An admitted workload with these hosts and numbers of pods per host.
fn workload(hosts: &[(&str, i32)], request: Value, unhealthy: &[&str]) -> Workload {
    let count: i32 = hosts.iter().map(|(_, count)| count).sum();
    let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let slices: Vec<Value> = hosts
        .iter()
        .map(|(host, count)| {
            json!({"domainCount": 1, "valuesPerLevel": [{"universal": host}], "podCounts": {"universal": count}})
        })
        .collect();
    let nodes: Vec<Value> = unhealthy.iter().map(|name| json!({"name": name})).collect();
    serde_json::from_value(json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"queueName": "main", "podSets": [{
            "name": "main", "count": count, "topologyRequest": request,
            "template": {"spec": {"containers": [], "tolerations": [{"key": "tolerated", "operator": "Exists"}]}}}]},
        "status": {
            "conditions": [condition("QuotaReserved"), condition("Admitted")],
            "unhealthyNodes": nodes,
            "admission": {"clusterQueue": "q", "podSetAssignments": [{
                "name": "main", "count": count, "flavors": {"cpu": "batch"}, "resourceUsage": {"cpu": "1"},
                "topologyAssignment": {"levels": ["kubernetes.io/hostname"], "slices": slices}}]}}
    }))
    .expect("a workload")
}

/// A pod with an index: gated, or released to a host and, unless Pending, bound to it.
fn pod(index: usize, host: Option<&str>, phase: &str) -> Arc<Pod> {
    let mut pod = json!({
        "metadata": {"name": format!("train-{index}"), "namespace": "default",
            "labels": {"kueue.x-k8s.io/podset": "main", "batch.kubernetes.io/job-completion-index": index.to_string()},
            "annotations": {"kueue.x-k8s.io/workload": "train"}},
        "spec": {"containers": [], "nodeSelector": {"tier": "batch"}}, "status": {"phase": phase}});
    match host {
        None => pod["spec"]["schedulingGates"] = json!([{"name": "kueue.x-k8s.io/topology"}, {"name": "other"}]),
        Some(host) => {
            pod["spec"]["nodeSelector"]["kubernetes.io/hostname"] = json!(host);
            if phase != "Pending" {
                pod["spec"]["nodeName"] = json!(host);
            }
        }
    }
    Arc::new(serde_json::from_value(pod).expect("a pod"))
}

fn by_index() -> Value {
    json!({"required": "rack", "podIndexLabel": "batch.kubernetes.io/job-completion-index"})
}

/// Released pods and their hosts.
fn sent(workload: &Workload, pods: &[Arc<Pod>]) -> Vec<(String, String)> {
    let host = |selector: &std::collections::BTreeMap<String, String>| selector["kubernetes.io/hostname"].clone();
    releases(workload, pods).iter().map(|it| (it.pod.name_any(), host(&it.node_selector))).collect()
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(pod, host)| ((*pod).to_owned(), (*host).to_owned())).collect()
}

#[test]
fn a_pod_is_released_to_the_slot_of_its_rank_and_keeps_other_gates() {
    let workload = workload(&[("a", 2), ("b", 1)], by_index(), &[]);
    let pods = [pod(2, None, "Pending"), pod(0, None, "Pending")];
    assert_eq!(sent(&workload, &pods), pairs(&[("train-2", "b"), ("train-0", "a")]));
    let released = releases(&workload, &pods)[0].released();
    let spec = released.spec.expect("a spec");
    assert_eq!(spec.scheduling_gates.expect("gates").iter().map(|gate| &*gate.name).collect::<Vec<_>>(), ["other"]);
    assert_eq!(spec.node_selector.expect("a selector")["tier"], "batch");
}

#[test]
fn ranks_that_contradict_running_pods_are_ignored() {
    let workload = workload(&[("a", 1), ("b", 1), ("c", 1)], by_index(), &[]);
    let pods = [pod(0, Some("b"), "Running"), pod(1, None, "Pending"), pod(2, None, "Pending")];
    assert_eq!(sent(&workload, &pods), pairs(&[("train-1", "a"), ("train-2", "c")]));
}

#[test]
fn sub_groups_are_ranked_in_sequence() {
    let request = json!({"podIndexLabel": "batch.kubernetes.io/job-completion-index", "subGroupIndexLabel": "group",
        "subGroupCount": 2});
    let workload = workload(&[("a", 2), ("b", 2)], request, &[]);
    let in_group = |name: &str, group: &str, index: usize| {
        let mut pod = (*pod(index, None, "Pending")).clone();
        pod.metadata.name = Some(name.to_owned());
        pod.labels_mut().insert("group".to_owned(), group.to_owned());
        Arc::new(pod)
    };
    let pods = [in_group("y-1", "1", 1), in_group("x-0", "0", 0)];
    assert_eq!(sent(&workload, &pods), pairs(&[("y-1", "b"), ("x-0", "a")]));
}

#[test]
fn ranks_respect_the_index_offset_and_invalid_ones_are_ignored() {
    let offset = |pod: Arc<Pod>, offset: &str| {
        let mut pod = (*pod).clone();
        pod.annotations_mut().insert("kueue.x-k8s.io/pod-index-offset".to_owned(), offset.to_owned());
        Arc::new(pod)
    };
    let workload = workload(&[("a", 1), ("b", 1)], by_index(), &[]);
    let from_one = [offset(pod(2, None, "Pending"), "1"), offset(pod(1, None, "Pending"), "1")];
    assert_eq!(sent(&workload, &from_one), pairs(&[("train-2", "b"), ("train-1", "a")]));
    // If an index is beyond the assignment, below the offset or a duplicate, domains are filled in
    // order.
    for (first, second) in [((5, "0"), (0, "0")), ((0, "1"), (1, "1"))] {
        let pods = [offset(pod(first.0, None, "Pending"), first.1), offset(pod(second.0, None, "Pending"), second.1)];
        let hosts: Vec<String> = sent(&workload, &pods).into_iter().map(|it| it.1).collect();
        assert_eq!(hosts, ["a", "b"]);
    }
    let twins = [pod(1, None, "Pending"), pod(1, None, "Pending")];
    assert_eq!(sent(&workload, &twins), pairs(&[("train-1", "a"), ("train-1", "b")]));
}

#[test]
fn without_host_level_a_pod_is_pinned_to_every_level() {
    let mut workload = workload(&[("r1", 1)], json!({"required": "rack"}), &[]);
    let admission = workload.status.as_mut().and_then(|status| status.admission.as_mut()).expect("an admission");
    admission.pod_set_assignments[0].topology_assignment = serde_json::from_value(json!({
        "levels": ["block", "rack"],
        "slices": [{"domainCount": 1, "valuesPerLevel": [{"universal": "b1"}, {"universal": "r1"}], "podCounts": {"universal": 1}}],
    }))
    .expect("an assignment");
    let found = releases(&workload, &[pod(0, None, "Pending")]);
    let selector: Vec<(&str, &str)> = found[0].node_selector.iter().map(|(key, value)| (&**key, &**value)).collect();
    assert_eq!(selector, [("block", "b1"), ("rack", "r1")]);
}

#[test]
fn workers_are_ranked_after_their_leader() {
    let index = "leaderworkerset.sigs.k8s.io/worker-index";
    let request = json!({"required": "rack", "podIndexLabel": index, "podSetGroupName": "group"});
    let mut workload = workload(&[("a", 1), ("b", 1), ("c", 1)], request, &[]);
    // The leader's pod set, in addition to the pod set of the workers.
    let mut leader = workload.spec.pod_sets[0].clone();
    (leader.name, leader.count) = ("leader".to_owned(), 1);
    workload.spec.pod_sets.push(leader);
    let admission = workload.status.as_mut().and_then(|status| status.admission.as_mut()).expect("an admission");
    let mut placed = admission.pod_set_assignments[0].clone();
    (placed.name, placed.count) = ("leader".to_owned(), Some(1));
    placed.topology_assignment.as_mut().expect("a topology").slices.truncate(1);
    admission.pod_set_assignments.push(placed);
    let member = |number: usize, set: &str| {
        let mut pod = (*pod(number, None, "Pending")).clone();
        pod.labels_mut().insert(index.to_owned(), number.to_string());
        pod.labels_mut().insert("kueue.x-k8s.io/podset".to_owned(), set.to_owned());
        Arc::new(pod)
    };
    let pods = [member(3, "main"), member(0, "leader"), member(1, "main")];
    assert_eq!(sent(&workload, &pods), pairs(&[("train-3", "c"), ("train-1", "a"), ("train-0", "a")]));
}

#[test]
fn without_ranks_domains_are_filled_in_order_and_ended_pods_free_their_slots() {
    let workload = workload(&[("a", 1), ("b", 2)], json!({"required": "rack"}), &[]);
    let pods = [
        pod(0, Some("a"), "Succeeded"),
        pod(1, Some("b"), "Running"),
        pod(2, None, "Pending"),
        pod(3, None, "Pending"),
        pod(4, None, "Pending"),
    ];
    assert_eq!(sent(&workload, &pods), pairs(&[("train-2", "a"), ("train-3", "b")]));
}

#[test]
fn no_pod_is_released_to_a_failed_node_or_for_an_evicted_workload() {
    let pods = [pod(0, None, "Pending"), pod(1, None, "Pending")];
    for request in [by_index(), json!({"required": "rack"})] {
        let workload = workload(&[("a", 1), ("b", 1)], request, &["a"]);
        assert_eq!(sent(&workload, &pods).iter().map(|it| &*it.1).collect::<Vec<_>>(), ["b"]);
    }
    let mut evicted = workload(&[("a", 2)], by_index(), &[]);
    let now = NOW.parse().expect("a time");
    crate::workload::status::set(&mut evicted, conditions::EVICTED, true, "Preempted", "", now);
    assert_eq!(sent(&evicted, &pods), []);
}

fn node(name: &str, ready: &str, spec: Value) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:09:50Z"}]}}))
    .expect("a node")
}

fn assessed(workload: &Workload, pods: &[Arc<Pod>], nodes: Vec<Node>, gates: &Gates) -> Outcome {
    let nodes: Cache<Node> = Cache::for_tests(nodes);
    let node = |host: &str| nodes.get(&berth_runtime::ObjectKey::cluster(host));
    let view = View { node: &node, flavor: &|_| None, gates, now: NOW.parse().expect("a time") };
    assess(workload, pods, &view)
}

fn unhealthy(outcome: &Outcome) -> Option<Vec<String>> {
    let status = outcome.workload.as_ref()?.status.as_ref()?;
    Some(status.unhealthy_nodes.iter().map(|node| node.name.clone()).collect())
}

#[test]
fn pods_of_a_workload_without_topology_assignment_have_no_influence() {
    let pods = [pod(0, None, "Pending"), pod(1, Some("gone"), "Pending")];
    let placed = workload(&[("a", 2)], by_index(), &["a"]);
    assert!(may_release(&placed) && reads_pods(&placed));
    let mut unplaced = placed;
    let admission = unplaced.status.as_mut().and_then(|status| status.admission.as_mut()).expect("an admission");
    admission.pod_set_assignments.iter_mut().for_each(|assignment| assignment.topology_assignment = None);
    assert!(!may_release(&unplaced) && !reads_pods(&unplaced));
    assert_eq!(sent(&unplaced, &pods), []);
    let (with, without) = [&pods[..], &[]].map(|pods| assessed(&unplaced, pods, Vec::new(), &Gates::default())).into();
    assert_eq!(unhealthy(&with), Some(Vec::new()), "a node that is no longer assigned is not recorded as failed");
    assert_eq!(with, without);
}

#[test]
fn a_missing_node_is_recorded_and_its_pending_pod_is_terminated() {
    let workload = workload(&[("a", 1), ("b", 1)], by_index(), &[]);
    let pods = [pod(0, Some("a"), "Pending"), pod(1, Some("b"), "Running")];
    let outcome = assessed(&workload, &pods, vec![node("b", "True", json!({}))], &Gates::default());
    assert_eq!(unhealthy(&outcome), Some(vec!["a".to_owned()]));
    let [(before, after)] = outcome.ended.as_slice() else { panic!("{outcome:?}") };
    let status = after.status.clone().expect("a status");
    assert_eq!((before.name_any().as_str(), status.phase.as_deref()), ("train-0", Some("Failed")));
    assert_eq!(status.conditions.expect("conditions")[0].type_, "TerminatedByKueue");
}

#[test]
fn a_node_without_ready_condition_counts_as_failed_even_with_running_pods() {
    let workload = workload(&[("a", 1)], by_index(), &[]);
    let mut silent = node("a", "True", json!({}));
    silent.status.as_mut().expect("a status").conditions = None;
    let outcome = assessed(&workload, &[pod(0, Some("a"), "Running")], vec![silent], &Gates::default());
    assert_eq!(unhealthy(&outcome), Some(vec!["a".to_owned()]));
}

#[test]
fn a_second_failed_node_evicts_the_workload() {
    let workload = workload(&[("a", 1), ("b", 1)], by_index(), &["a"]);
    let outcome = assessed(&workload, &[], Vec::new(), &Gates::default());
    assert_eq!(
        outcome.evicted.as_deref(),
        Some("Workload eviction triggered due to multiple TAS assigned node failures, including: a, b")
    );
    assert_eq!(unhealthy(&outcome), Some(Vec::new()));
    assert_eq!(outcome.ended, []);
}

#[test]
fn a_node_that_is_not_ready_has_failed_once_no_pod_runs_on_it() {
    let workload = workload(&[("a", 1)], by_index(), &[]);
    let nodes = || vec![node("a", "Unknown", json!({}))];
    let running = assessed(&workload, &[pod(0, Some("a"), "Running")], nodes(), &Gates::default());
    assert_eq!(running, Outcome::default());
    let ended = assessed(&workload, &[pod(0, Some("a"), "Failed")], nodes(), &Gates::default());
    assert_eq!(unhealthy(&ended), Some(vec!["a".to_owned()]));
}

#[test]
fn with_fixed_time_a_node_may_be_not_ready_for_thirty_seconds() {
    let gates = Gates::default().with(Gate::TASReplaceNodeOnPodTermination, false);
    let workload = workload(&[("a", 1)], by_index(), &[]);
    let outcome = assessed(&workload, &[pod(0, Some("a"), "Running")], vec![node("a", "False", json!({}))], &gates);
    assert_eq!((unhealthy(&outcome), outcome.reassess_after), (None, Some(std::time::Duration::from_secs(20))));
}

#[test]
fn with_both_gates_a_node_fails_by_pods_or_time_whichever_comes_first() {
    let gates = Gates::default().with(Gate::TASReplaceNodeDueToNotReadyOverFixedTime, true);
    let workload = workload(&[("a", 1)], by_index(), &[]);
    let away = || vec![node("a", "False", json!({}))];
    let running = assessed(&workload, &[pod(0, Some("a"), "Running")], away(), &gates);
    assert_eq!((unhealthy(&running), running.reassess_after), (None, Some(std::time::Duration::from_secs(20))));
    let ended = assessed(&workload, &[pod(0, Some("a"), "Failed")], away(), &gates);
    assert_eq!(unhealthy(&ended), Some(vec!["a".to_owned()]));
}

#[test]
fn an_untolerated_taint_fails_the_node_once_no_pod_runs_on_it() {
    let workload = workload(&[("a", 1)], by_index(), &[]);
    let tainted = |key: &str| vec![node("a", "True", json!({"taints": [{"key": key, "effect": "NoExecute"}]}))];
    let (running, waiting) = ([pod(0, Some("a"), "Running")], [pod(0, Some("a"), "Pending")]);
    assert_eq!(assessed(&workload, &running, tainted("broken"), &Gates::default()), Outcome::default());
    assert_eq!(assessed(&workload, &waiting, tainted("tolerated"), &Gates::default()), Outcome::default());
    let outcome = assessed(&workload, &waiting, tainted("broken"), &Gates::default());
    assert_eq!((unhealthy(&outcome), outcome.ended.len()), (Some(vec!["a".to_owned()]), 1));
    let cordoned =
        assessed(&workload, &waiting, vec![node("a", "True", json!({"unschedulable": true}))], &Gates::default());
    assert_eq!(unhealthy(&cordoned), Some(vec!["a".to_owned()]));
}

#[test]
fn without_pod_termination_an_untolerated_taint_fails_the_node_at_once() {
    let gates = Gates::default().with(Gate::TASReplaceNodeOnPodTermination, false);
    let tainted = |key: &str| vec![node("a", "True", json!({"taints": [{"key": key, "effect": "NoExecute"}]}))];
    let mut workload = workload(&[("a", 1)], by_index(), &[]);
    let spec = workload.spec.pod_sets[0].template.spec.as_mut().expect("a spec");
    let for_a_while = json!({"key": "brief", "operator": "Exists", "tolerationSeconds": 300});
    spec.tolerations.get_or_insert_default().push(serde_json::from_value(for_a_while).expect("a toleration"));
    let running = [pod(0, Some("a"), "Running")];
    assert_eq!(unhealthy(&assessed(&workload, &running, tainted("broken"), &gates)), Some(vec!["a".to_owned()]));
    assert_eq!(assessed(&workload, &running, tainted("brief"), &gates), Outcome::default());
    let ended = [pod(0, Some("a"), "Succeeded")];
    assert_eq!(unhealthy(&assessed(&workload, &ended, tainted("brief"), &gates)), Some(vec!["a".to_owned()]));
}

#[test]
fn a_pod_released_to_a_replaced_node_is_terminated() {
    let workload = workload(&[("b", 1)], by_index(), &[]);
    let nodes = || vec![node("a", "True", json!({})), node("b", "True", json!({}))];
    let (late, placed) = (pod(0, Some("a"), "Pending"), pod(1, Some("b"), "Pending"));
    let outcome = assessed(&workload, &[late, placed, pod(2, Some("a"), "Running")], nodes(), &Gates::default());
    assert_eq!(outcome.workload, None);
    let ended: Vec<String> = outcome.ended.iter().map(|(pod, _)| pod.name_any()).collect();
    assert_eq!(ended, ["train-0"]);
}

#[test]
fn a_recovered_node_is_removed_from_the_record() {
    let workload = workload(&[("a", 1)], by_index(), &["a"]);
    let outcome = assessed(&workload, &[], vec![node("a", "True", json!({}))], &Gates::default());
    assert_eq!(unhealthy(&outcome), Some(Vec::new()));
}

#[test]
fn a_pod_runs_on_the_node_that_it_is_bound_to() {
    let workload = workload(&[("a", 1)], by_index(), &[]);
    let nodes = || vec![node("a", "False", json!({})), node("b", "True", json!({}))];
    let bound = |to: &str| {
        let mut pod = (*pod(0, Some("a"), "Running")).clone();
        let spec = pod.spec.as_mut().expect("a spec");
        (spec.node_selector, spec.node_name) = (None, Some(to.to_owned()));
        [Arc::new(pod)]
    };
    assert_eq!(assessed(&workload, &bound("a"), nodes(), &Gates::default()), Outcome::default());
    assert_eq!(unhealthy(&assessed(&workload, &bound("b"), nodes(), &Gates::default())), Some(vec!["a".to_owned()]));
}

#[test]
fn a_pod_released_before_its_workload_lost_its_quota_is_terminated() {
    let nodes = || vec![node("a", "True", json!({}))];
    let pods = [pod(0, Some("a"), "Pending"), pod(1, Some("a"), "Running"), pod(2, None, "Pending")];
    let mut waiting = workload(&[("a", 1)], by_index(), &[]);
    waiting.status.as_mut().expect("a status").conditions.retain(|it| it.type_ != conditions::ADMITTED);
    assert_eq!(assessed(&waiting, &pods, nodes(), &Gates::default()), Outcome::default(), "its node is reserved");
    waiting.status = None;
    let outcome = assessed(&waiting, &pods, nodes(), &Gates::default());
    let ended: Vec<String> = outcome.ended.iter().map(|(pod, _)| pod.name_any()).collect();
    assert_eq!((ended, outcome.workload), (vec!["train-0".to_owned()], None));
}
