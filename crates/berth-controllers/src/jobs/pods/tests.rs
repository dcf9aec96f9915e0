//! The life of pod groups, from their first pod to their last.

use std::sync::Arc;

use berth_api::kueue::v1beta2::{ResourceFlavor, Workload};
use berth_api::kueue::{annotations, constants, labels};
use berth_runtime::Cache;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::reconcile::reconcile;
use super::{Unit, group, replica};
use crate::conditions;
use crate::configuration::Config;
use crate::gates::{Gate, Gates};
use crate::jobs::reconcile::Context;
use crate::plan::{Plan, Step};
use crate::stores::Stores;
use crate::workload::status;

fn read<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object of the kind")
}

/// A pod of group `g`, which consists of two pods.
fn pod(name: &str, role: &str, gated: bool, phase: &str) -> Value {
    let gates = if gated { json!([{"name": constants::ADMISSION_GATE}]) } else { json!([]) };
    json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "finalizers": [constants::POD_FINALIZER],
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {labels::MANAGED: "true", labels::QUEUE_NAME: "q", labels::POD_GROUP_NAME: "g"},
            "annotations": {annotations::POD_GROUP_TOTAL_COUNT: "2", annotations::ROLE_HASH: role}},
        "spec": {"containers": [{"name": "c"}], "schedulingGates": gates}, "status": {"phase": phase}})
}

struct World {
    stores: Stores,
    config: Config,
}

impl World {
    fn new() -> Self {
        let stores = Stores::by_hand();
        stores.flavors.observe(read::<ResourceFlavor>(
            json!({"metadata": {"name": "f"}, "spec": {"nodeLabels": {"disk": "fast"}}}),
        ));
        World { stores, config: Config { wait_for_pods_ready: None, ..Config::default() } }
    }

    fn reconcile(&self, pods: &[Value]) -> Plan<Pod> {
        self.reconcile_with(pods, &Gates::default())
    }

    fn reconcile_with(&self, pods: &[Value], gates: &Gates) -> Plan<Pod> {
        let pods: Vec<Arc<Pod>> = pods.iter().map(|pod| Arc::new(read(pod.clone()))).collect();
        let now = "2026-01-01T01:00:00Z".parse().expect("a timestamp");
        let context = Context { stores: &self.stores, config: &self.config, gates, now };
        reconcile(context, "ns", &Unit::Group { name: "g".to_owned() }, &pods)
    }

    /// The group's Workload, for one role of two pods, with these conditions.
    fn with_workload(&self, conditions: &[(&str, &str)]) {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(type_, reason)| {
                json!({"type": type_, "status": "True", "reason": reason, "message": "why",
                    "lastTransitionTime": "2026-01-01T00:30:00Z"})
            })
            .collect();
        let owners = ["a", "b"].map(|name| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name}));
        let assignment = json!({"name": "r", "count": 2, "flavors": {"cpu": "f"}});
        self.stores.workloads.observe(read::<Workload>(json!({
            "metadata": {"name": "g", "namespace": "ns", "ownerReferences": owners,
                "annotations": {annotations::IS_GROUP_WORKLOAD: "true"}},
            "spec": {"queueName": "q", "podSets": [
                {"name": "r", "count": 2, "template": {"spec": {"containers": []}}}]},
            "status": {"conditions": conditions,
                "admission": {"clusterQueue": "cq", "podSetAssignments": [assignment]}}})));
    }
}

const ADMITTED: [(&str, &str); 2] = [("QuotaReserved", "QuotaReserved"), ("Admitted", "Admitted")];

fn patched(plan: &Plan<Pod>) -> Vec<&Pod> {
    plan.steps.iter().filter_map(|step| if let Step::Patch(pod) = step { Some(&**pod) } else { None }).collect()
}

fn deleted(plan: &Plan<Pod>) -> Vec<String> {
    let gone =
        plan.steps.iter().filter_map(|step| if let Step::Delete(pod) = step { Some(pod.name_any()) } else { None });
    gone.collect()
}

fn status_of(plan: &Plan<Pod>, type_: &str) -> Option<String> {
    plan.steps.iter().rev().find_map(|step| {
        let Step::PatchWorkloadStatus(workload) = step else { return None };
        let condition = crate::workload::status::condition(workload, type_)?;
        Some(format!("{}/{}: {}", condition.status, condition.reason, condition.message))
    })
}

#[test]
fn a_group_waits_while_a_workload_that_no_group_made_has_its_name() {
    let world = World::new();
    let template = json!({"spec": {"containers": []}});
    world.stores.workloads.observe(read::<Workload>(json!({"metadata": {"name": "g", "namespace": "ns"},
        "spec": {"queueName": "q", "podSets": [{"name": "main", "count": 1, "template": template}]}})));
    let plan = world.reconcile(&[pod("a", "x", true, "Pending")]);
    let [Step::EventAbout(_, event)] = &plan.steps[..] else { panic!("{:?}", plan.steps) };
    let message = "A Workload named \"g\" already exists but is not a pod group workload; this pod group cannot be \
                   admitted";
    assert_eq!((event.reason.as_str(), event.message.as_str()), ("WorkloadNameConflict", message));
}

#[test]
fn a_group_gets_its_workload_once_all_its_pods_exist() {
    let world = World::new();
    let plan = world.reconcile(&[pod("a", "x", true, "Pending")]);
    let [Step::EventAbout(_, event)] = &plan.steps[..] else { panic!("{:?}", plan.steps) };
    assert_eq!(event.message, "group has fewer runnable pods than expected: 1 of 2");
    let plan = world.reconcile(&[pod("a", "x", true, "Pending"), pod("b", "y", true, "Pending")]);
    let Some(Step::CreateWorkload(workload)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!(workload.name_any(), "g");
    let sets: Vec<_> = workload.spec.pod_sets.iter().map(|set| (set.name.as_str(), set.count)).collect();
    assert_eq!(sets, [("x", 1), ("y", 1)], "one pod set per role");
    let owners: Vec<_> = workload.owner_references().iter().map(|owner| owner.name.as_str()).collect();
    assert_eq!(owners, ["a", "b"]);
    assert!(workload.spec.pod_sets[0].template.spec.as_ref().is_some_and(|spec| spec.scheduling_gates.is_none()));
}

#[test]
fn a_group_whose_name_another_workload_has_waits_with_an_event() {
    let world = World::new();
    world.stores.workloads.observe(read::<Workload>(json!({
        "metadata": {"name": "g", "namespace": "ns"},
        "spec": {"queueName": "q", "podSets": [{"name": "main", "count": 1, "template": {"spec": {"containers": []}}}]}})));
    let plan = world.reconcile(&[pod("a", "x", true, "Pending")]);
    let [Step::EventAbout(_, event)] = &plan.steps[..] else { panic!("{:?}", plan.steps) };
    assert_eq!(event.reason, "WorkloadNameConflict");
}

#[test]
fn a_workload_that_a_client_created_before_its_pods_waits_for_them() {
    let world = World::new();
    let workload = |owners: Value| {
        read::<Workload>(json!({
            "metadata": {"name": "g", "namespace": "ns", "ownerReferences": owners,
                "annotations": {annotations::IS_GROUP_WORKLOAD: "true"}},
            "spec": {"queueName": "q", "podSets": [
                {"name": "r", "count": 2, "template": {"spec": {"containers": []}}}]}}))
    };
    world.stores.workloads.observe(workload(json!([])));
    assert!(world.reconcile(&[]).steps.is_empty());
    world.stores.workloads.observe(workload(json!([{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "a"}])));
    assert!(status_of(&world.reconcile(&[]), conditions::FINISHED).is_some(), "its pods are gone");
}

#[test]
fn a_group_of_fast_admission_waits_for_one_replacement() {
    let world = World::new();
    world.with_workload(&ADMITTED);
    let fast = |name: &str, phase: &str| {
        let mut pod = pod(name, "r", phase == "Pending", phase);
        pod["metadata"]["annotations"][annotations::POD_GROUP_FAST_ADMISSION] = json!("true");
        pod
    };
    let waits = |pods: &[Value]| status_of(&world.reconcile(pods), conditions::WAITING_FOR_REPLACEMENT_PODS);
    let some = "True/PodsFailed: Some Failed pods need replacement";
    assert_eq!(waits(&[fast("a", "Failed")]).as_deref(), Some(some));
    assert_eq!(waits(&[fast("a", "Failed"), fast("b", "Pending")]), None, "the second pod may come later");
}

#[test]
fn a_preempted_workload_of_a_single_pod_is_not_requeued() {
    let evicted = |group: bool, gates: &Gates| {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p"});
        let annotations = if group { json!({annotations::IS_GROUP_WORKLOAD: "true"}) } else { json!({}) };
        let condition = |type_: &str, reason: &str| {
            json!({"type": type_, "status": "True", "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:30:00Z"})
        };
        let mut workload: Workload = read(json!({
            "metadata": {"name": "w", "namespace": "ns", "ownerReferences": [owner], "annotations": annotations},
            "spec": {"queueName": "q", "podSets": []},
            "status": {"conditions": [condition("QuotaReserved", "QuotaReserved"), condition("Evicted", "Preempted")]}}));
        status::release_after_eviction(&mut workload, gates, "2026-01-01T01:00:00Z".parse().expect("a timestamp"));
        status::condition(&workload, conditions::REQUEUED).map(|it| it.status.clone())
    };
    let mut gates = Gates::default();
    assert_eq!(evicted(false, &gates).as_deref(), Some("False"), "it ends with its pod");
    assert_eq!(evicted(true, &gates).as_deref(), Some("True"));
    gates.set(Gate::SkipReassignmentForPodOwnedWorkloads, false);
    assert_eq!(evicted(false, &gates).as_deref(), Some("True"));
}

#[test]
fn a_group_whose_pods_differ_in_a_copied_label_gets_no_workload() {
    let mut world = World::new();
    world.config.integrations.label_keys_to_copy = vec!["team".to_owned()];
    let of_team = |name: &str, team: &str| {
        let mut pod = pod(name, "x", true, "Pending");
        pod["metadata"]["labels"]["team"] = json!(team);
        pod
    };
    let plan = world.reconcile(&[of_team("a", "red"), of_team("b", "blue")]);
    let [Step::EventAbout(_, event)] = &plan.steps[..] else { panic!("{:?}", plan.steps) };
    let expected = r#"pods of a group must have the same value of label team: "red" and "blue""#;
    assert_eq!(event.message, expected);
    // A pod without the label is no contradiction.
    let plan = world.reconcile(&[pod("a", "x", true, "Pending"), of_team("b", "blue")]);
    let Some(Step::CreateWorkload(workload)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!(workload.labels()["team"], "blue");
}

#[test]
fn pods_have_the_index_label_of_kueue_for_their_ranks() {
    let world = World::new();
    let plan = world.reconcile(&[pod("a", "x", true, "Pending"), pod("b", "x", true, "Pending")]);
    let Some(Step::CreateWorkload(workload)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    let request = workload.spec.pod_sets[0].topology_request.as_ref().expect("a request");
    assert_eq!(request.pod_index_label.as_deref(), Some(labels::POD_GROUP_POD_INDEX));
    let mut gates = Gates::default();
    gates.set(Gate::TopologyAwareScheduling, false);
    let plan = world.reconcile_with(&[pod("a", "x", true, "Pending"), pod("b", "x", true, "Pending")], &gates);
    let Some(Step::CreateWorkload(workload)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!(workload.spec.pod_sets[0].topology_request, None);
}

/// A group's admitted Workload whose pod set has this name, and the spec of pod `c`.
fn workload_of_role(world: &World, role: &str) {
    let owners = ["a", "b"].map(|name| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name}));
    let conditions = ADMITTED.map(|(type_, reason)| {
        json!({"type": type_, "status": "True", "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:30:00Z"})
    });
    world.stores.workloads.observe(read::<Workload>(json!({
        "metadata": {"name": "g", "namespace": "ns", "ownerReferences": owners,
            "annotations": {annotations::IS_GROUP_WORKLOAD: "true"}},
        "spec": {"queueName": "q", "podSets": [
            {"name": role, "count": 2, "template": {"spec": {"containers": [{"name": "c"}]}}}]},
        "status": {"conditions": conditions, "admission": {"clusterQueue": "cq", "podSetAssignments": [
            {"name": role, "count": 2, "flavors": {"cpu": "f"}}]}}})));
}

#[test]
fn a_replacement_joins_the_role_of_a_group_from_before_an_upgrade() {
    let world = World::new();
    workload_of_role(&world, "0123abcd");
    let running = pod("a", "0123abcd", false, "Running");
    // The webhook of this version names the same role differently.
    let replacement = pod("c", "7aa6c7b8", true, "Pending");
    let plan = world.reconcile(&[running.clone(), replacement]);
    let renamed = patched(&plan);
    assert_eq!(renamed.len(), 1, "{:?}", plan.steps);
    assert_eq!(renamed[0].annotations()[annotations::ROLE_HASH], "0123abcd");
    assert!(group::is_gated(renamed[0]), "it starts in the next step");
    assert_eq!((plan.steps.len(), deleted(&plan)), (1, Vec::new()), "the group stays");
    let plan = world.reconcile(&[running, pod("c", "0123abcd", true, "Pending")]);
    assert!(patched(&plan).iter().any(|pod| pod.name_any() == "c" && !group::is_gated(pod)), "{:?}", plan.steps);
}

#[test]
fn a_pod_of_another_shape_or_of_a_named_role_does_not_join_a_role() {
    for (role, cpu) in [("7aa6c7b8", "1"), ("driver", "")] {
        let world = World::new();
        workload_of_role(&world, "0123abcd");
        let mut other = pod("c", role, true, "Pending");
        if !cpu.is_empty() {
            other["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
        }
        let plan = world.reconcile(&[pod("a", "0123abcd", false, "Running"), other]);
        assert_eq!(deleted(&plan), ["a"], "{role}: the group does not match its Workload");
    }
}

#[test]
fn an_admitted_group_starts_with_the_additions_of_its_flavor() {
    let world = World::new();
    world.with_workload(&ADMITTED);
    let plan = world.reconcile(&[pod("a", "r", true, "Pending"), pod("b", "r", true, "Pending")]);
    let started = patched(&plan);
    assert_eq!(started.len(), 2);
    for pod in started {
        assert!(!group::is_gated(pod));
        let spec = pod.spec.as_ref().expect("a spec");
        assert_eq!(spec.node_selector.as_ref().expect("a selector")["disk"], "fast");
        assert_eq!(pod.labels()[labels::POD_SET], "r");
    }
}

#[test]
fn an_evicted_group_loses_its_pods_and_then_its_quota() {
    let world = World::new();
    world.with_workload(&[ADMITTED[0], ADMITTED[1], ("Evicted", "Preempted")]);
    let mut running = [pod("a", "r", false, "Running"), pod("b", "r", false, "Running")];
    let plan = world.reconcile(&running);
    assert_eq!(deleted(&plan), ["a", "b"]);
    let marked = plan.steps.iter().any(|step| {
        let Step::PatchStatus(pod) = step else { return false };
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|it| {
            it.type_ == "TerminationTarget"
                && it.reason.as_deref() == Some("WorkloadEvictedDueToPreempted")
                && it.message.as_deref() == Some("why")
        })
    });
    assert!(marked, "{:?}", plan.steps);
    assert_eq!(status_of(&plan, conditions::QUOTA_RESERVED), None, "its pods still run");
    for pod in &mut running {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:59:00Z");
        pod["status"]["phase"] = json!("Failed");
    }
    // The first reconcile records the missing pods, the next one releases the quota.
    let plan = world.reconcile(&running);
    let waits = status_of(&plan, conditions::WAITING_FOR_REPLACEMENT_PODS).expect("the condition");
    assert_eq!(waits, "True/Preempted: why");
    let Some(Step::PatchWorkloadStatus(updated)) = plan.steps.last().cloned() else { panic!("{:?}", plan.steps) };
    world.stores.workloads.observe(*updated);
    let plan = world.reconcile(&running);
    assert_eq!(status_of(&plan, conditions::QUOTA_RESERVED).as_deref(), Some("False/PendingEvaluation: why"));
    assert!(patched(&plan).is_empty(), "the pods stay until replacements exist");
}

#[test]
fn an_evicted_group_whose_pods_do_not_run_yet_waits_for_replacements_at_once() {
    let world = World::new();
    world.with_workload(&[ADMITTED[0], ADMITTED[1], ("Evicted", "Preempted")]);
    let plan = world.reconcile(&[pod("a", "r", false, "Pending"), pod("b", "r", true, "Pending")]);
    assert_eq!(deleted(&plan), ["a"]);
    assert_eq!(status_of(&plan, conditions::QUOTA_RESERVED).as_deref(), Some("False/PendingEvaluation: why"));
    let waits = status_of(&plan, conditions::WAITING_FOR_REPLACEMENT_PODS);
    assert_eq!(waits.as_deref(), Some("True/Preempted: why"), "the back-off may end before the pod is gone");
    let plan = world.reconcile(&[pod("a", "r", true, "Pending"), pod("b", "r", true, "Pending")]);
    assert_eq!(status_of(&plan, conditions::WAITING_FOR_REPLACEMENT_PODS), None, "no pod is stopped");
}

#[test]
fn with_fast_quota_release_the_deletion_of_the_pods_releases_the_quota() {
    let world = World::new();
    world.with_workload(&[
        ADMITTED[0],
        ADMITTED[1],
        ("Evicted", "Preempted"),
        ("WaitingForReplacementPods", "Preempted"),
    ]);
    let mut leaving = [pod("a", "r", false, "Running"), pod("b", "r", false, "Running")];
    let fast = Gates::default().with(Gate::FastQuotaReleaseInPodIntegration, true);
    let is_released = |pods: &[Value], gates: &Gates| {
        // Earlier reconciles may record the missing pods first.
        (0..3).any(|_| {
            let plan = world.reconcile_with(pods, gates);
            if let Some(Step::PatchWorkloadStatus(updated)) = plan.steps.last().cloned() {
                world.stores.workloads.observe(*updated);
            }
            status_of(&plan, conditions::QUOTA_RESERVED).as_deref() == Some("False/PendingEvaluation: why")
        })
    };
    assert!(!is_released(&leaving, &fast), "they run");
    for pod in &mut leaving {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:59:00Z");
    }
    assert!(!is_released(&leaving, &Gates::default()), "they have not ended");
    assert!(is_released(&leaving, &fast));
}

#[test]
fn a_group_ends_when_its_pods_succeeded_or_must_not_be_replaced() {
    let world = World::new();
    world.with_workload(&ADMITTED);
    let plan = world.reconcile(&[pod("a", "r", false, "Succeeded"), pod("b", "r", false, "Succeeded")]);
    assert_eq!(status_of(&plan, conditions::FINISHED).as_deref(), Some("True/Succeeded: Pods succeeded: 2/2."));
    assert!(patched(&plan).iter().all(|pod| pod.finalizers().is_empty()) && patched(&plan).len() == 2);
    let mut failed = [pod("a", "r", false, "Succeeded"), pod("b", "r", false, "Failed")];
    assert_eq!(status_of(&world.reconcile(&failed), conditions::FINISHED), None, "the failed one may be replaced");
    failed[0]["metadata"]["annotations"][annotations::RETRIABLE_IN_GROUP] = json!("false");
    let plan = world.reconcile(&failed);
    assert_eq!(status_of(&plan, conditions::FINISHED).as_deref(), Some("True/Failed: Pods succeeded: 1/2."));
}

#[test]
fn a_failed_pod_is_replaced_and_an_excess_pod_is_deleted() {
    let world = World::new();
    world.with_workload(&ADMITTED);
    let mut late = pod("d", "r", true, "Pending");
    late["metadata"]["creationTimestamp"] = json!("2026-01-01T00:50:00Z");
    let pods = [pod("a", "r", false, "Running"), pod("b", "r", false, "Failed"), pod("c", "r", true, "Pending"), late];
    let plan = world.reconcile(&pods);
    assert_eq!(deleted(&plan), ["d"]);
    let released: Vec<_> =
        patched(&plan).into_iter().filter(|pod| pod.finalizers().is_empty()).map(|pod| pod.name_any()).collect();
    assert_eq!(released, ["d", "b"], "the excess pod, and the pod whose place is taken");
    let owners = plan.steps.iter().find_map(|step| match step {
        Step::PatchWorkload(workload) => Some(workload.owner_references().len()),
        _ => None,
    });
    assert_eq!(owners, Some(4), "the new pods keep the Workload alive too");
    let owned = plan.steps.iter().position(|step| matches!(step, Step::PatchWorkload(_)));
    let released = plan.steps.iter().position(|step| matches!(step, Step::Patch(_) | Step::Delete(_)));
    assert!(owned < released, "the Workload always has an owner, or the garbage collector would delete it");
}

#[test]
fn pods_of_a_group_with_different_queues_are_rejected() {
    let world = World::new();
    let mut other = pod("b", "x", true, "Pending");
    other["metadata"]["labels"][labels::QUEUE_NAME] = json!("elsewhere");
    let plan = world.reconcile(&[pod("a", "x", true, "Pending"), other]);
    let error = plan.error.expect("an error").to_string();
    assert_eq!(error, "pods of a group must name the same queue: a names \"q\", b names \"elsewhere\"");
}

#[test]
fn a_group_scaled_up_from_zero_is_queued_in_its_new_size() {
    let world = World::new();
    world.with_workload(&[]);
    let found = world.stores.workloads.get(&berth_runtime::ObjectKey::namespaced("ns", "g")).expect("the workload");
    let mut held = (*found).clone();
    let now = "2026-01-01T00:40:00Z".parse().expect("a timestamp");
    let gates = Gates::default();
    crate::workload::status::unset_quota_reservation(&mut held, "OnHold", "no pods", &gates, now);
    world.stores.workloads.observe(held);
    let mut pod = pod("a", "r", true, "Pending");
    for (key, value) in [
        (annotations::POD_GROUP_TOTAL_COUNT, "5"),
        (annotations::POD_GROUP_FAST_ADMISSION, "true"),
        (annotations::POD_GROUP_SERVING, "true"),
    ] {
        pod["metadata"]["annotations"][key] = json!(value);
    }
    let plan = world.reconcile(&[pod]);
    let Some(Step::PatchWorkload(resized)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!(resized.spec.pod_sets[0].count, 5);
    let queued = status_of(&plan, conditions::QUOTA_RESERVED).expect("the condition");
    assert_eq!(queued, "False/PendingEvaluation: The workload has pods again");
}

/// The events on each pod, as `name: reason`.
fn events(plan: &Plan<Pod>) -> Vec<String> {
    let lines = plan.steps.iter().filter_map(|step| match step {
        Step::EventAbout(pod, event) => Some(format!("{}: {}", pod.name_any(), event.reason)),
        _ => None,
    });
    lines.collect()
}

fn released(plan: &Plan<Pod>) -> Vec<String> {
    let released = patched(plan).into_iter().filter(|pod| pod.finalizers().is_empty());
    released.map(|pod| pod.name_any()).collect()
}

#[test]
fn a_deleted_pod_of_an_incomplete_group_loses_its_finalizer() {
    let world = World::new();
    let mut gone = pod("a", "x", true, "Pending");
    gone["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:59:00Z");
    let plan = world.reconcile(&[gone.clone()]);
    assert_eq!(released(&plan), ["a"]);
    assert_eq!(events(&plan), [""; 0], "no pod waits any more");
    // Another gated pod of the group reports why it waits, and keeps its finalizer.
    let plan = world.reconcile(&[gone.clone(), pod("b", "x", true, "Pending")]);
    assert_eq!(released(&plan), ["a"]);
    assert_eq!(events(&plan), ["b: ErrWorkloadCompose"]);
    // A pod that runs on a node, without a Workload, loses its finalizer once it has ended there.
    let mut running = pod("c", "x", false, "Running");
    running["spec"]["nodeName"] = json!("node");
    running["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:59:00Z");
    assert_eq!(released(&world.reconcile(&[gone.clone(), running.clone()])), ["a"]);
    for phase in ["Failed", "Succeeded"] {
        running["status"]["phase"] = json!(phase);
        assert_eq!(released(&world.reconcile(&[gone.clone(), running.clone()])), ["a", "c"], "{phase}");
    }
}

const OVER: [(&str, &str); 1] = [("Finished", "Succeeded")];

#[test]
fn new_pods_under_a_finished_groups_name_wait_until_the_old_pods_are_deleted() {
    let world = World::new();
    world.with_workload(&OVER);
    let run = [pod("a", "r", false, "Succeeded"), pod("b", "r", false, "Succeeded")];
    let late = [pod("c", "r", true, "Pending"), pod("d", "r", true, "Pending")];
    let both: Vec<Value> = run.iter().chain(&late).cloned().collect();
    let plan = world.reconcile(&both);
    assert_eq!(released(&plan), ["a", "b"], "only the pods of the finished run");
    assert_eq!(events(&plan), ["c: PodGroupFinished", "d: PodGroupFinished"]);
    assert_eq!(deleted(&plan), [""; 0]);
    let message = plan.steps.iter().find_map(|step| match step {
        Step::EventAbout(_, event) => Some(event.message.clone()),
        _ => None,
    });
    assert_eq!(
        message.expect("an event"),
        "pod group g has finished (Succeeded: why), and this pod was not part of that run. Delete the pods of that run (a, b), \
         or create this pod in a group with another name"
    );
    // A new pod that is deleted loses its finalizer.
    let mut gone = both.clone();
    gone[2]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:59:00Z");
    assert_eq!(released(&world.reconcile(&gone)), ["a", "b", "c"]);
    // After the old pods are deleted, their Workload is deleted and the new pods get their own.
    let plan = world.reconcile(&late);
    assert!(plan.steps.iter().any(|step| matches!(step, Step::DeleteWorkload(_))), "{:?}", plan.steps);
    assert_eq!(released(&plan), [""; 0]);
    let fresh = World::new().reconcile(&late);
    assert!(matches!(fresh.steps.first(), Some(Step::CreateWorkload(_))), "{:?}", fresh.steps);
    // The same if the Workload was deleted before the old pods.
    assert_eq!(events(&World::new().reconcile(&both)), ["c: PodGroupFinished", "d: PodGroupFinished"]);
}

#[test]
fn deleting_a_finished_workload_keeps_pods_that_were_not_part_of_its_run() {
    let world = World::new();
    world.with_workload(&OVER);
    let key = berth_runtime::ObjectKey::namespaced("ns", "g");
    let mut going = (*world.stores.workloads.get(&key).expect("the workload")).clone();
    going.metadata.finalizers = Some(vec![constants::RESOURCE_IN_USE_FINALIZER.to_owned()]);
    going.metadata.deletion_timestamp = read(json!("2026-01-01T00:59:00Z"));
    world.stores.workloads.observe(going);
    let plan = world.reconcile(&[pod("a", "r", false, "Succeeded"), pod("c", "r", true, "Pending")]);
    assert_eq!(deleted(&plan), [""; 0]);
    assert_eq!(released(&plan), ["a"]);
    let released = plan.steps.iter().any(|step| matches!(step, Step::PatchWorkload(w) if w.finalizers().is_empty()));
    assert!(released, "{:?}", plan.steps);
}

#[test]
fn pods_that_never_start_or_wait_for_a_replacement_report_it() {
    let world = World::new();
    world.with_workload(&[("Finished", "FailedToStart")]);
    let plan = world.reconcile(&[pod("a", "r", true, "Pending"), pod("b", "r", true, "Pending")]);
    assert_eq!(events(&plan), ["a: WorkloadFinished", "b: WorkloadFinished"]);
    let world = World::new();
    world.with_workload(&ADMITTED);
    let mut gone = pod("a", "r", true, "Pending");
    gone["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:59:00Z");
    let plan = world.reconcile(&[gone, pod("b", "r", false, "Running")]);
    assert_eq!(events(&plan), ["a: WaitingForReplacement"]);
    // An error is reported on a waiting pod.
    let mut other = pod("b", "x", true, "Pending");
    other["metadata"]["labels"][labels::QUEUE_NAME] = json!("elsewhere");
    let plan = World::new().reconcile(&[pod("a", "x", true, "Pending"), other]);
    assert_eq!(events(&plan), ["a: ReconcileFailed"]);
}

#[test]
fn waiting_pods_of_a_stateful_set_follow_its_queue() {
    let mut world = World::new();
    let set = json!({"metadata": {"name": "db", "namespace": "ns", "uid": "set", "resourceVersion": "1",
        "labels": {labels::QUEUE_NAME: "other"}}});
    world.stores.add_owners(Cache::for_tests([read::<StatefulSet>(set)]));
    let of_set = |name: &str, gated: bool| {
        let mut pod = pod(name, "r", gated, "Pending");
        pod["metadata"]["annotations"][annotations::POD_SUSPENDING_PARENT] = json!("statefulset");
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "set", "controller": true}]);
        pod
    };
    let plan = world.reconcile(&[of_set("a", true), of_set("b", false)]);
    let moved: Vec<_> =
        patched(&plan).iter().map(|pod| (pod.name_any(), pod.labels()[labels::QUEUE_NAME].clone())).collect();
    assert_eq!(moved, [("a".to_owned(), "other".to_owned())], "a pod that has started keeps its queue");
    assert_eq!(plan.steps.len(), 1, "the Workload follows the pods");
    let mut settled = of_set("a", true);
    settled["metadata"]["labels"][labels::QUEUE_NAME] = json!("other");
    let mut second = of_set("b", true);
    second["metadata"]["labels"][labels::QUEUE_NAME] = json!("other");
    let plan = world.reconcile(&[settled, second]);
    let Some(Step::CreateWorkload(workload)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!(workload.spec.queue_name, "other");
    assert_eq!(workload.labels()[labels::JOB_UID], "set");
}

#[test]
fn pods_of_a_serving_group_have_its_only_role() {
    let world = World::new();
    world.with_workload(&ADMITTED);
    let of_set = |name: &str, role: &str| {
        let mut pod = pod(name, role, true, "Pending");
        pod["metadata"]["annotations"][annotations::POD_GROUP_SERVING] = json!("true");
        pod["metadata"]["annotations"][annotations::POD_GROUP_FAST_ADMISSION] = json!("true");
        pod
    };
    let plan = world.reconcile(&[of_set("a", "r"), of_set("b", "main")]);
    let renamed: Vec<_> =
        patched(&plan).iter().map(|pod| (pod.name_any(), pod.annotations()[annotations::ROLE_HASH].clone())).collect();
    assert_eq!(renamed, [("b".to_owned(), "r".to_owned())], "an earlier version named the role");
    let batch = world.reconcile(&[pod("a", "r", true, "Pending"), pod("b", "main", true, "Pending")]);
    assert!(batch.error.is_some(), "{:?}", batch.steps);
}

#[test]
fn the_workload_of_a_replica_names_its_leader_worker_set() {
    let world = World::new();
    let set = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "leaders", "ownerReferences": [
        {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "web", "uid": "set",
            "controller": true}]}});
    world.stores.stateful_sets.observe(read::<StatefulSet>(set));
    let member = |name: &str| {
        let mut pod = pod(name, "r", true, "Pending");
        pod["metadata"]["labels"][replica::SET_NAME] = json!("web");
        pod["metadata"]["annotations"][annotations::POD_SUSPENDING_PARENT] = json!(replica::PARENT);
        pod
    };
    let plan = world.reconcile(&[member("web-0"), member("web-0-1")]);
    let Some(Step::CreateWorkload(workload)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!(workload.labels()[labels::JOB_UID], "set");
    // A group that an earlier version admitted keeps the name of its role.
    world.with_workload(&ADMITTED);
    let later = |name: &str, role: &str| {
        let mut pod = member(name);
        pod["metadata"]["annotations"][annotations::ROLE_HASH] = json!(role);
        pod["metadata"]["annotations"][annotations::POD_GROUP_SERVING] = json!("true");
        pod
    };
    let plan = world.reconcile(&[later("web-0", "r"), later("web-0-1", "main")]);
    let renamed: Vec<_> =
        patched(&plan).iter().map(|pod| (pod.name_any(), pod.annotations()[annotations::ROLE_HASH].clone())).collect();
    assert_eq!(renamed, [("web-0-1".to_owned(), "r".to_owned())]);
}
