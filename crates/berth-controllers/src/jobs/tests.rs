//! Reconciles batch Jobs given as manifests.

use berth_api::kueue::constants;
use berth_api::kueue::v1beta2::Workload;
use berth_runtime::ObjectKey;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::reconcile::{Context, reconcile};
use crate::configuration::Config;
use crate::gates::Gates;
use crate::plan::Step;
use crate::stores::Stores;

const NOW: &str = "2026-01-01T01:00:00Z";

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object")
}

/// The workloads as the reconcile of this Job writes them, without their statuses.
fn written(job: Value, workload: Value) -> Vec<Workload> {
    let stores = Stores::by_hand();
    stores.namespaces.observe(read::<Namespace>(json!({"metadata": {"name": "ns"}})));
    stores.workloads.observe(read::<Workload>(workload));
    let (config, gates) = (Config::default(), Gates::default());
    let context = Context { stores: &stores, config: &config, gates: &gates, now: NOW.parse().expect("a time") };
    let job: Job = read(job);
    let plan = reconcile(context, &ObjectKey::of(&job), Some(&job));
    let of_workloads = plan.steps.into_iter().filter_map(|step| match step {
        Step::PatchWorkload(workload) => Some(*workload),
        _ => None,
    });
    of_workloads.collect()
}

#[test]
fn a_finished_prebuilt_workload_loses_its_finalizer() {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}});
    let job = |labels: Value| {
        json!({"metadata": {"name": "j", "namespace": "ns", "uid": "u", "labels": labels},
            "spec": {"suspend": false, "parallelism": 1, "template": template},
            "status": {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}})
    };
    let workload = json!({
        "metadata": {"name": "w", "namespace": "ns", "finalizers": [constants::RESOURCE_IN_USE_FINALIZER],
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true}]},
        "spec": {"queueName": "q", "podSets": [{"name": "main", "count": 1, "template": template}]},
        "status": {"conditions": [{"type": "Finished", "status": "True", "reason": "Failed", "message": "",
            "lastTransitionTime": NOW}]}});
    let queue = "kueue.x-k8s.io/queue-name";
    let prebuilt = job(json!({queue: "q", "kueue.x-k8s.io/prebuilt-workload-name": "w"}));
    let finalizers =
        |workloads: Vec<Workload>| -> Vec<usize> { workloads.iter().map(|w| w.finalizers().len()).collect() };
    assert_eq!(finalizers(written(prebuilt, workload.clone())), [0]);
    assert_eq!(finalizers(written(job(json!({queue: "q"})), workload)), [0; 0], "its job's deletion will remove it");
}
