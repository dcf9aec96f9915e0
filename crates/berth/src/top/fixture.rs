//! A small cluster for the tests of `berth top`: two teams in a cohort, three jobs, two nodes.

use std::sync::Arc;

use berth_api::berth::gpus::GpuUse;
use berth_dashboard::gpu_use::GpuUses;
use berth_runtime::Sight;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::state::{Kind, State};

fn kind<K: DeserializeOwned>(objects: impl IntoIterator<Item = Value>) -> Kind<K> {
    let objects = objects.into_iter().map(|it| Arc::new(serde_json::from_value(it).expect("an object"))).collect();
    Kind { objects, sight: Some(Sight::Live(None)) }
}

fn queue(name: &str, used: &str, borrowed: &str, waiting: i32, admitted: i32) -> Value {
    json!({"metadata": {"name": name},
        "spec": {"cohortName": "research", "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
            {"name": "default", "resources": [{"name": "cpu", "nominalQuota": "4", "borrowingLimit": "8"}]}]}]},
        "status": {"pendingWorkloads": waiting, "reservingWorkloads": admitted, "admittedWorkloads": admitted,
            "flavorsReservation": [{"name": "default", "resources": [
                {"name": "cpu", "total": used, "borrowed": borrowed}]}]}})
}

fn workload(name: &str, user: &str, admitted: bool) -> Value {
    let at = "2026-01-05T09:00:00Z";
    let condition = |type_: &str, status: bool, reason: &str| {
        json!({"type": type_, "status": if status { "True" } else { "False" }, "reason": reason, "message": "",
            "lastTransitionTime": at})
    };
    let mut object = json!({
        "metadata": {"name": format!("job-{name}"), "namespace": "team-blue", "uid": name, "creationTimestamp": at,
            "annotations": {"berth.dev/submitted-by": user},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": "u", "controller": true}]},
        "spec": {"queueName": "main", "priority": 0, "podSets": [{"name": "main", "count": 2, "template": {}}]},
        "status": {"conditions": [condition("QuotaReserved", admitted, if admitted { "QuotaReserved" } else { "WaitingForQuota" })]}});
    if admitted {
        let conditions = object["status"]["conditions"].as_array_mut().expect("a list");
        conditions.push(condition("Admitted", true, "Admitted"));
        object["status"]["admission"] = json!({"clusterQueue": "blue", "podSetAssignments": [
            {"name": "main", "count": 2, "flavors": {"cpu": "default"}, "resourceUsage": {"cpu": "4"}}]});
    }
    object
}

fn node(name: &str, ready: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"cloud.google.com/gke-nodepool": "l4",
            "cloud.google.com/gke-accelerator": "nvidia-l4"}, "creationTimestamp": "2026-01-05T08:00:00Z"},
        "status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": "2"},
            "conditions": [{"type": "Ready", "status": ready, "reason": "KubeletStopped"}]}})
}

fn pod(name: &str, node: &str, gpus: &str) -> Value {
    let requests = json!({"cpu": "500m", "nvidia.com/gpu": gpus});
    json!({"metadata": {"name": name, "namespace": "team-blue", "creationTimestamp": "2026-01-05T09:00:00Z"},
        "status": {"phase": "Running"},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": requests}}]}})
}

fn gpu(utilization: f64) -> GpuUse {
    GpuUse { utilization, ..GpuUse::default() }
}

/// The cluster, ten minutes after its jobs were created.
pub fn state() -> State {
    let event = |name: &str, minute: u32, type_: &str, message: &str| {
        json!({"metadata": {"name": name, "namespace": "team-blue"}, "type": type_, "reason": "Pending", "count": 3,
            "message": message, "involvedObject": {"kind": "Workload", "name": "job-train-3"},
            "lastTimestamp": format!("2026-01-05T09:{minute:02}:00Z")})
    };
    State {
        now: "2026-01-05T09:10:00Z".parse().expect("a time"),
        queues: kind([queue("blue", "8", "4", 1, 2), queue("green", "0", "0", 0, 0)]),
        cohorts: kind([json!({"metadata": {"name": "research"}, "spec": {}})]),
        local_queues: kind([json!({"metadata": {"name": "main", "namespace": "team-blue"},
            "spec": {"clusterQueue": "blue"}, "status": {"pendingWorkloads": 1, "admittedWorkloads": 2}})]),
        workloads: kind([
            workload("train-1", "alice", true),
            workload("train-2", "bob", true),
            workload("train-3", "bob", false),
        ]),
        nodes: kind([node("gpu-1", "True"), node("gpu-2", "False")]),
        gpu_use: GpuUses { nodes: [("gpu-1".to_owned(), [35.0, 0.0].map(gpu).to_vec())].into(), notes: Vec::new() },
        pods: kind([pod("train-1-0", "gpu-1", "1")]),
        events: kind([event("a", 1, "Normal", "older"), event("b", 9, "Warning", "newer: \u{1b}[31mred\nsecond line")]),
    }
}
