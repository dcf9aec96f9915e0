//! Tainted machines with accelerators: the API server adds the toleration to pods that request
//! them.

use berth_foresight::check::{Severity, check};
use berth_foresight::command::source::Known;
use berth_foresight::live::forecast::{Plan, forecast};
use berth_foresight::objects::{Document, Objects};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::template;

const KUEUE: &str = "kueue.x-k8s.io/v1beta2";

/// A pool of two machines with two GPUs each, which GKE taints, and quota for `gpus` of them.
fn platform(gpus: u32) -> Vec<Value> {
    let resources = json!([{"name": "cpu", "nominalQuota": 40}, {"name": "nvidia.com/gpu", "nominalQuota": gpus}]);
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}),
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": "NodePool", "metadata": {"name": "l4"},
               "spec": {"machineType": "g2-standard-24", "initialNodes": 2, "maxNodes": 2}}),
        json!({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "l4"},
               "spec": {"nodeLabels": {"cloud.google.com/gke-accelerator": "nvidia-l4"}}}),
        json!({"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "team"}, "spec": {
            "namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu", "nvidia.com/gpu"], "flavors": [
                {"name": "l4", "resources": resources}]}]}}),
        json!({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "main", "namespace": "team"},
               "spec": {"clusterQueue": "team"}}),
    ]
}

/// A job of an hour; its pod requests these resources and tolerates nothing.
fn job(name: &str, requests: Value) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "main"}},
        "spec": {"template": {"metadata": {"annotations": {"berth.dev/run-duration": "1h"}},
            "spec": {"restartPolicy": "Never", "containers": [
                {"name": "c", "resources": {"requests": requests, "limits": requests}}]}}}})
}

fn objects(gpus: u32, jobs: impl IntoIterator<Item = Value>) -> Objects {
    let all = platform(gpus).into_iter().chain(jobs);
    Objects::read(all.map(|value| Document { value, source: None }).collect())
}

fn now() -> Timestamp {
    "2026-01-05T10:00:00Z".parse().expect("a time")
}

#[test]
fn pods_that_request_the_accelerator_fit_its_tainted_machines_and_others_do_not() {
    let jobs = [job("gpu", json!({"cpu": "1", "nvidia.com/gpu": "2"})), job("cpu", json!({"cpu": "1"}))];
    let findings = check(&objects(4, jobs), &template, now()).findings;
    let misfits: Vec<String> =
        findings.iter().filter(|it| it.rule == "pod-fits-no-node").map(|it| it.object.name.clone()).collect();
    assert_eq!(misfits, ["cpu"], "{findings:#?}");
    let message = findings.iter().find(|it| it.rule == "pod-fits-no-node").map(|it| it.message.as_str());
    assert!(message.is_some_and(|it| it.starts_with("the job is admitted with flavor l4, and then")), "{message:?}");
    let taint = findings.iter().find(|it| it.rule == "node-taint-undeclared").expect("a finding");
    assert_eq!(taint.severity, Severity::Note);
    assert!(
        taint.message.contains("jobs without a toleration, and without a request for nvidia.com/gpu,"),
        "{taint:?}"
    );
}

#[test]
fn a_forecast_runs_pods_on_the_tainted_machines_of_their_accelerator() {
    let gpus = json!({"cpu": "1", "nvidia.com/gpu": "2"});
    let all = objects(2, ["first", "second"].map(|name| job(name, gpus.clone())));
    let known = Known::of(&all, now(), None, &template);
    let forecasts = forecast(&known.state, &known.prospect, Plan { draws: 1, only: None });
    let minutes = |it: berth_engine::model::Time| known.state.at.until(it).as_secs() / 60;
    let starts: Vec<Option<u64>> = forecasts.iter().map(|it| it.median.map(minutes)).collect();
    // The pods of the first job wait two minutes for the pool's machine, and then run for an hour.
    assert_eq!(starts, [Some(0), Some(62)], "{forecasts:#?}");
}
