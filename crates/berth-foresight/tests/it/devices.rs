//! Devices of dynamic resource allocation in checks, forecasts and comparisons.

use berth_foresight::check::{Finding, check};
use berth_foresight::command::source::Known;
use berth_foresight::live::forecast::{Plan, Unknown, forecast};
use berth_foresight::live::what_if::compare;
use berth_foresight::objects::{Document, Objects};
use berth_foresight::policy::Prices;
use berth_foresight::snapshot::{Changes, Snapshot};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::template;

const AT: &str = "2026-01-05T10:00:00Z";
const KUEUE: &str = "kueue.x-k8s.io/v1beta2";

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"cloud.google.com/gke-nodepool": "gpus"}},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"}, "conditions": [
            {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
             "lastTransitionTime": "2026-01-05T08:00:00Z", "lastHeartbeatTime": "2026-01-05T08:00:00Z"}]}})
}

/// Two machines of four GPUs each, quota for `quota` of them, and a template of two GPUs per pod.
fn platform(quota: u32) -> Vec<Value> {
    vec![
        node("gpus-1"),
        node("gpus-2"),
        json!({"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "resources": {
            "deviceClassMappings": [{"name": "example.com/gpus", "deviceClassNames": ["gpu.example.com"]}]}}),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}),
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": "NodePool", "metadata": {"name": "gpus"}, "spec": {
            "machineType": "e2-standard-8", "initialNodes": 2, "maxNodes": 2, "devices": [
                {"driver": "gpu.example.com", "deviceClass": "gpu.example.com", "name": "gpu", "count": 4}]}}),
        json!({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "default"}}),
        json!({"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "team"}, "spec": {
            "namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu", "example.com/gpus"], "flavors": [
                {"name": "default", "resources": [{"name": "cpu", "nominalQuota": 14},
                                                  {"name": "example.com/gpus", "nominalQuota": quota}]}]}]}}),
        json!({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "main", "namespace": "team"},
               "spec": {"clusterQueue": "team"}}),
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
               "metadata": {"name": "two", "namespace": "team"}, "spec": {"spec": {"devices": {"requests": [
                   {"name": "gpus", "exactly": {"deviceClassName": "gpu.example.com", "count": 2}}]}}}}),
    ]
}

/// A job of some pods that claim two GPUs each and run for an hour.
fn job(name: &str, pods: i32) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "main"}},
        "spec": {"parallelism": pods, "completions": pods, "template": {
            "metadata": {"annotations": {"berth.dev/run-duration": "1h"}},
            "spec": {"restartPolicy": "Never", "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "two"}],
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}, "claims": [{"name": "gpus"}]}}]}}}})
}

fn objects(all: Vec<Value>) -> Objects {
    let objects = Objects::read(all.into_iter().map(|value| Document { value, source: None }).collect());
    assert_eq!(objects.invalid, []);
    objects
}

fn now() -> Timestamp {
    AT.parse().expect("a time")
}

fn found(all: Vec<Value>) -> Vec<Finding> {
    let objects = objects(all);
    let mut findings = check(&objects, &template, now()).findings;
    findings.retain(|it| ["quota-above-supply", "job-never-fits", "pod-fits-no-node"].contains(&it.rule));
    findings
}

/// Minutes from now to the start of each new job.
fn starts(all: Vec<Value>) -> Vec<(String, Option<i64>)> {
    let known = Known::of(&objects(all), now(), None, &template);
    let forecasts = forecast(&known.state, &known.prospect, Plan { draws: 1, only: None });
    let minutes = |it: berth_engine::model::Time| (it.0 - known.state.at.0) / 60_000_000_000;
    forecasts.into_iter().map(|it| (it.owner.expect("a job").name, it.median.map(minutes))).collect()
}

#[test]
fn a_forecast_counts_the_devices_that_pods_claim() {
    let with_jobs = |quota: u32| {
        let mut all = platform(quota);
        all.extend([job("first", 3), job("second", 2)]);
        all
    };
    // Three pods claim six of eight GPUs, so the two pods of the second job wait for an hour.
    assert_eq!(starts(with_jobs(8)), [("first".to_owned(), Some(0)), ("second".to_owned(), Some(60))]);
    // Ten GPUs of quota are enough for both; the machines are not.
    let known = Known::of(&objects(with_jobs(10)), now(), None, &template);
    let future = known.prospect.expected(None);
    let number = known.find("team/second").expect("the job");
    assert_eq!(future.jobs[number].admitted, Some(known.state.at));
    let running = future.jobs[number].running.expect("its pods run");
    assert!(known.state.at.until(running).as_secs() >= 3600, "the machines have eight GPUs: {running:?}");
}

#[test]
fn what_if_with_more_quota_of_devices_starts_the_job_that_waits_for_them() {
    let mut all = platform(8);
    all.extend([job("first", 3), job("second", 2)]);
    let snapshot = Snapshot::of(all, now());
    let quotas = vec!["team/default/example.com/gpus=+2".to_owned()];
    let changed = Changes { quotas, ..Changes::default() }.apply(&snapshot).expect("the quota is there");
    let sides = [&snapshot, &changed].map(|it| Known::of(&it.read(), it.at, None, &template));
    let [before, after] = &sides;
    let compared = compare((&before.state, &before.prospect), (&after.state, &after.prospect), &Prices::default());
    let row = compared.rows.iter().find(|row| row.job == "team/second").expect("the job");
    let admitted =
        |future: &Option<berth_foresight::live::future::JobFuture>| future.as_ref().and_then(|it| it.admitted);
    assert!(admitted(&row.before) > Some(compared.at));
    assert_eq!(admitted(&row.after), Some(compared.at));
}

#[test]
fn a_check_compares_quota_for_devices_with_those_of_the_machines() {
    assert_eq!(found(platform(8)), []);
    let findings = found(platform(12));
    let messages: Vec<&str> = findings.iter().map(|it| it.message.as_str()).collect();
    assert_eq!(findings.len(), 1, "{messages:?}");
    assert!(messages[0].contains("nominal quota of example.com/gpus in ResourceFlavor default is 12"), "{messages:?}");
    assert!(messages[0].contains("the supply at most 8 (NodePool gpus: at most 2 with 4 each)"), "{messages:?}");
}

#[test]
fn a_check_without_the_mappings_of_devices_says_what_it_did_not_check() {
    let mut all = platform(12);
    all.retain(|it| it["kind"] != "Configuration");
    let checked = check(&objects(all), &template, now());
    assert!(checked.findings.iter().all(|it| it.rule != "quota-above-supply"), "{:?}", checked.findings);
    let missing = "the supply of example.com/gpus: the set has no Configuration with deviceClassMappings";
    assert!(checked.unchecked.iter().any(|it| it == missing), "{:?}", checked.unchecked);
}

#[test]
fn a_check_judges_jobs_by_the_devices_that_they_claim() {
    let mut all = platform(8);
    all.extend([job("fits", 4), job("large", 5)]);
    let findings = found(all);
    assert_eq!(findings.len(), 1);
    assert_eq!((findings[0].rule, findings[0].object.name.as_str()), ("job-never-fits", "large"));
    let mut all = platform(8);
    all.retain(|it| it["kind"] != "ResourceClaimTemplate");
    all.push(job("first", 1));
    let findings = found(all.clone());
    assert_eq!(findings.len(), 1);
    assert!(findings[0].message.contains("resourceclaimtemplates"), "{}", findings[0].message);
    assert_eq!(starts(all.clone()), [("first".to_owned(), None)]);
    let known = Known::of(&objects(all), now(), None, &template);
    let forecasts = forecast(&known.state, &known.prospect, Plan { draws: 1, only: None });
    assert!(
        matches!(&forecasts[0].unknown, Some(Unknown::Reason(reason)) if reason.contains("resourceclaimtemplates"))
    );
}

#[test]
fn without_the_mappings_the_recorded_requests_of_a_waiting_workload_count() {
    let mut all = platform(8);
    all.retain(|it| it["kind"] != "Configuration");
    let spec = &job("old", 3)["spec"]["template"];
    let workload = |name: &str, gpus: u32| {
        json!({"apiVersion": KUEUE, "kind": "Workload", "metadata": {"name": name, "namespace": "team", "uid": name,
                "creationTimestamp": "2026-01-05T09:00:00Z"},
            "spec": {"queueName": "main", "podSets": [{"name": "main", "count": 3, "template": spec}]},
            "status": {"resourceRequests": [{"name": "main", "resources": {"cpu": "3", "example.com/gpus": gpus}}]}})
    };
    all.extend([workload("a", 6), workload("b", 3)]);
    let known = Known::of(&objects(all), now(), None, &template);
    let forecasts = forecast(&known.state, &known.prospect, Plan { draws: 1, only: None });
    let waits: Vec<Option<u64>> =
        forecasts.iter().map(|it| it.median.map(|at| known.state.at.until(at).as_secs())).collect();
    assert_eq!(waits, [Some(0), Some(3602)], "six of eight GPUs are in use until the pods of a have run for an hour");
}
