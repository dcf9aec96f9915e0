//! Reconciles batch Jobs given as manifests.

use berth_api::frameworks::{MPIJob, RayJob};
use berth_api::kueue::v1beta2::Workload;
use berth_api::kueue::{annotations, constants, labels};
use berth_runtime::ObjectKey;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::prebuilt_workload;
use super::reconcile::{Context, reconcile};
use crate::configuration::Config;
use crate::gates::{Gate, Gates};
use crate::plan::{Plan, Step};
use crate::stores::Stores;
use crate::workload::status;

const NOW: &str = "2026-01-01T01:00:00Z";

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object")
}

/// The plan for this Job.
fn plan(job: Value, workload: Value) -> Plan<Job> {
    plan_with(job, &[workload], &Gates::default())
}

/// The plan for this Job, with these Workloads and gates.
fn plan_with(job: Value, workloads: &[Value], gates: &Gates) -> Plan<Job> {
    plan_of(job, workloads, gates)
}

/// The plan for this job of any kind, with these Workloads and gates.
fn plan_of<J: super::Job>(job: Value, workloads: &[Value], gates: &Gates) -> Plan<J> {
    let stores = Stores::by_hand();
    stores.namespaces.observe(read::<Namespace>(json!({"metadata": {"name": "ns"}})));
    for workload in workloads {
        stores.workloads.observe(read::<Workload>(workload.clone()));
    }
    let config = Config::default();
    let context = Context { stores: &stores, config: &config, gates, now: NOW.parse().expect("a time") };
    let job: J = read(job);
    reconcile(context, &ObjectKey::of(&job), Some(&job))
}

/// The conditions of a Workload, each of which is (type, status, reason).
fn with_conditions(conditions: &[(&str, &str, &str)]) -> Value {
    let condition = |(type_, status, reason): &(&str, &str, &str)| json!({"type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": NOW});
    conditions.iter().map(condition).collect()
}

/// The workloads as the reconcile of this Job writes them, without their statuses.
fn written(job: Value, workload: Value) -> Vec<Workload> {
    let of_workloads = plan(job, workload).steps.into_iter().filter_map(|step| match step {
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

#[test]
fn a_running_job_whose_reservation_is_withdrawn_keeps_its_workload_and_is_not_ready() {
    let containers = json!([{"name": "c"}]);
    let recorded = json!({"spec": {"restartPolicy": "Never", "containers": containers}});
    let running = json!({"metadata": {"labels": {labels::POD_SET: "main"}},
        "spec": {"restartPolicy": "Never", "containers": containers, "nodeSelector": {"disk": "fast"}}});
    let job = json!({"metadata": {"name": "j", "namespace": "ns", "uid": "u", "labels": {labels::QUEUE_NAME: "q"}},
        "spec": {"suspend": false, "parallelism": 1, "template": running}, "status": {"active": 1, "ready": 1}});
    let condition = |type_: &str, status: &str, reason: &str| json!({"type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": NOW});
    let workload = json!({
        "metadata": {"name": "w", "namespace": "ns", "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true}]},
        "spec": {"queueName": "q", "podSets": [{"name": "main", "count": 1, "template": recorded}]},
        "status": {"conditions": [condition("QuotaReserved", "False", "Withdrawn"),
            condition("Admitted", "False", "NoReservation"), condition("PodsReady", "True", "Started")]}});
    let steps = plan(job.clone(), workload.clone()).steps;
    let [Step::PatchWorkloadStatus(after)] = &steps[..] else { panic!("{steps:?}") };
    let ready = status::condition(after, "PodsReady").expect("a condition");
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "WaitForStart"));
    // Then it is stopped.
    let mut stored = workload;
    stored["status"]["conditions"][2] = condition("PodsReady", "False", "WaitForStart");
    stored["status"]["conditions"][2]["message"] = json!("Not all pods are ready or succeeded");
    let steps = plan(job, stored).steps;
    let is_stop = |step: &Step<Job>| matches!(step, Step::Patch(job) if job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true)));
    assert!(steps.iter().any(is_stop), "{steps:?}");
    assert!(!steps.iter().any(|step| matches!(step, Step::DeleteWorkload(_))), "{steps:?}");
}

#[test]
fn a_workload_evicted_before_its_pods_were_seen_is_released_as_not_ready() {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}});
    let job = json!({"metadata": {"name": "j", "namespace": "ns", "uid": "u", "labels": {labels::QUEUE_NAME: "q"}},
        "spec": {"suspend": true, "parallelism": 1, "template": template}});
    let workload = |pods_ready: Option<(&str, &str)>| {
        let mut conditions = vec![
            ("QuotaReserved", "True", "QuotaReserved"),
            ("Admitted", "True", "Admitted"),
            ("Evicted", "True", "PodsReadyTimeout"),
        ];
        conditions.extend(pods_ready.map(|(status, reason)| ("PodsReady", status, reason)));
        json!({
            "metadata": {"name": "w", "namespace": "ns", "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true}]},
            "spec": {"queueName": "q", "podSets": [{"name": "main", "count": 1, "template": template}]},
            "status": {"conditions": with_conditions(&conditions), "admission": {"clusterQueue": "cq",
                "podSetAssignments": [{"name": "main", "count": 1}]}}})
    };
    for known in [None, Some(("True", "Started")), Some(("False", "WaitForRecovery"))] {
        let steps = plan(job.clone(), workload(known)).steps;
        let [Step::PatchWorkloadStatus(after)] = &steps[..] else { panic!("{known:?}: {steps:?}") };
        let ready = status::condition(after, "PodsReady").expect("a condition");
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "WaitForStart"), "{known:?}");
        assert!(!status::has_quota_reservation(after), "{known:?}");
    }
}

#[test]
fn with_its_gate_off_the_annotation_of_a_prebuilt_workload_is_ignored() {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}});
    let job: Job = read(json!({
        "metadata": {"name": "j", "namespace": "ns", "annotations": {annotations::PREBUILT_WORKLOAD: "w"}},
        "spec": {"template": template}}));
    let mut gates = Gates::default();
    assert_eq!(prebuilt_workload(&job, &gates), Some("w"));
    gates.set(Gate::WorkloadIdentifierAnnotations, false);
    assert_eq!(prebuilt_workload(&job, &gates), None);
    let mut labelled = job;
    labelled.labels_mut().insert(labels::PREBUILT_WORKLOAD.to_owned(), "v".to_owned());
    assert_eq!(prebuilt_workload(&labelled, &gates), Some("v"));
}

#[test]
fn an_evicted_slice_of_a_job_that_waits_to_grow_is_finished_once_its_pods_have_ended() {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}});
    let job = |active: i32, suspend: bool| {
        json!({"metadata": {"name": "j", "namespace": "ns", "uid": "u", "labels": {labels::QUEUE_NAME: "q"},
                "annotations": {annotations::ELASTIC_JOB: "true"}},
            "spec": {"suspend": suspend, "parallelism": 3, "template": template}, "status": {"active": active}})
    };
    let slice = |name: &str, count: i32, replaces: Option<&str>, conditions: Value| {
        let annotations = replaces.map_or(json!({}), |it| json!({annotations::WORKLOAD_SLICE_REPLACEMENT_FOR: it}));
        json!({"metadata": {"name": name, "namespace": "ns", "annotations": annotations, "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true}]},
            "spec": {"queueName": "q", "podSets": [{"name": "main", "count": count, "template": template}]},
            "status": {"conditions": conditions}})
    };
    let is = |type_: &str, reason: &str| json!({"type": type_, "status": "True", "reason": reason, "message": "", "lastTransitionTime": NOW});
    let evicted = slice("old", 2, None, json!([is("QuotaReserved", "QuotaReserved"), is("Evicted", "Preempted")]));
    let waiting = slice("new", 3, Some("ns/old"), json!([]));
    let mut gates = Gates::default();
    gates.set(Gate::ElasticJobsViaWorkloadSlices, true);
    let steps = |job| plan_with(job, &[evicted.clone(), waiting.clone()], &gates).steps;
    let finished = |steps: &[Step<Job>]| {
        let of = |step: &Step<Job>| match step {
            Step::PatchWorkloadStatus(workload) => {
                status::condition(workload, "Finished").map(|it| (workload.name_any(), it.reason.clone()))
            }
            _ => None,
        };
        steps.iter().filter_map(of).collect::<Vec<_>>()
    };
    let running = steps(job(2, false));
    assert_eq!(finished(&running), [], "its pods use its quota");
    let is_stop = |step: &Step<Job>| matches!(step, Step::Patch(job) if job.spec.as_ref().is_some_and(|it| it.suspend == Some(true)));
    assert!(running.iter().any(is_stop), "{running:?}");
    assert_eq!(finished(&steps(job(0, true))), [("old".to_owned(), "WorkloadSliceReplaced".to_owned())]);
}

/// A RayJob with this deployment status, and its Workload with these conditions.
fn ray_job(deployment: &str, conditions: &[(&str, &str, &str)]) -> (Value, Value) {
    let template = json!({"spec": {"containers": [{"name": "c"}]}});
    let job = json!({
        "metadata": {"name": "j", "namespace": "ns", "uid": "u", "labels": {labels::QUEUE_NAME: "q"}},
        "spec": {"suspend": false, "submissionMode": "HTTPMode", "shutdownAfterJobFinishes": true,
            "rayClusterSpec": {"headGroupSpec": {"template": template}}},
        "status": {"jobDeploymentStatus": deployment}});
    let workload = json!({
        "metadata": {"name": "w", "namespace": "ns", "ownerReferences": [
            {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "j", "uid": "u", "controller": true}]},
        "spec": {"queueName": "q", "podSets": [{"name": "head", "count": 1, "template": template}]},
        "status": {"conditions": with_conditions(conditions),
            "admission": {"clusterQueue": "cq", "podSetAssignments": [{"name": "head", "count": 1, "flavors": {}}]}}});
    (job, workload)
}

#[test]
fn a_ray_job_that_its_operator_rejects_holds_no_quota_until_its_spec_is_mended() {
    let reserved = |deployment: &str, conditions: &[(&str, &str, &str)]| {
        let (job, workload) = ray_job(deployment, conditions);
        let plan: Plan<RayJob> = plan_of(job, &[workload], &Gates::default());
        let [Step::PatchWorkloadStatus(after)] = &plan.steps[..] else { return None };
        assert_eq!(after.status.as_ref().and_then(|status| status.admission.as_ref()), None);
        let condition = status::condition(after, "QuotaReserved").expect("a condition");
        Some(format!("{}/{}: {}", condition.status, condition.reason, condition.message))
    };
    let admitted = [("QuotaReserved", "True", "QuotaReserved"), ("Admitted", "True", "Admitted")];
    assert_eq!(reserved("ValidationFailed", &admitted).as_deref(), Some("False/OnHold: Job is on hold"));
    let on_hold = [("QuotaReserved", "False", "OnHold")];
    assert_eq!(reserved("ValidationFailed", &on_hold), None, "it stays on hold");
    let again = "False/PendingEvaluation: Job is no longer on hold";
    assert_eq!(reserved("Initializing", &on_hold).as_deref(), Some(again));
}

#[test]
fn a_job_is_suspended_and_loses_the_additions_of_its_admission_in_one_write() {
    let template = |added: bool| {
        let labels = if added { json!({labels::POD_SET: "worker"}) } else { json!({}) };
        let annotations = if added { json!({"own": "1", "check": "2"}) } else { json!({"own": "1"}) };
        json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": {"containers": [{"name": "c"}]}})
    };
    let job = json!({
        "metadata": {"name": "j", "namespace": "ns", "uid": "u", "labels": {labels::QUEUE_NAME: "q"}},
        "spec": {"runPolicy": {"suspend": false}, "mpiReplicaSpecs": {"Worker": {"template": template(true)}}}});
    let workload = json!({
        "metadata": {"name": "w", "namespace": "ns", "ownerReferences": [
            {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "j", "uid": "u", "controller": true}]},
        "spec": {"queueName": "q", "podSets": [{"name": "worker", "count": 1, "template": template(false)}]},
        "status": {"conditions": with_conditions(&[("QuotaReserved", "False", "Withdrawn")])}});
    let plan: Plan<MPIJob> = plan_of(job, &[workload], &Gates::default());
    let [Step::Patch(stopped), Step::Event(_)] = &plan.steps[..] else { panic!("{:?}", plan.steps) };
    assert_eq!(stopped.spec["runPolicy"]["suspend"], true);
    let template = &stopped.spec["mpiReplicaSpecs"]["Worker"]["template"];
    assert_eq!(template["metadata"], json!({"annotations": {"own": "1"}}));
}

#[test]
fn a_job_without_pod_templates_gets_an_event_instead_of_a_workload() {
    let job = json!({
        "metadata": {"name": "j", "namespace": "ns", "uid": "u", "labels": {labels::QUEUE_NAME: "q"}},
        "spec": {"runPolicy": {"suspend": true}, "mpiReplicaSpecs": {}}});
    let plan: Plan<MPIJob> = plan_of(job, &[], &Gates::default());
    let [Step::Event(event)] = &plan.steps[..] else { panic!("{:?}", plan.steps) };
    assert_eq!(event.message, "MPIJob j has no pod templates, so it cannot be queued");
    assert!(event.is_warning());
}

#[test]
fn a_part_of_a_job_runs_freely_in_a_namespace_that_is_not_selected() {
    let steps = |selected: &str| {
        let stores = Stores::by_hand();
        stores.namespaces.observe(read::<Namespace>(json!({"metadata": {"name": "ns", "labels": {"queued": "yes"}}})));
        stores.job_sets.observe(read(json!({"metadata": {"name": "set", "namespace": "ns", "uid": "s"}, "spec": {}})));
        let job: Job = read(json!({"metadata": {"name": "j", "namespace": "ns", "uid": "u", "ownerReferences": [
                {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "set", "uid": "s",
                    "controller": true}]},
            "spec": {"suspend": false, "template": {"spec": {"restartPolicy": "Never", "containers": []}}}}));
        let mut config = Config { manage_jobs_without_queue_name: true, ..Config::default() };
        config.managed_jobs_namespace_selector = read(json!({"matchLabels": {"queued": selected}}));
        let (gates, now) = (Gates::default(), NOW.parse().expect("a time"));
        let context = Context { stores: &stores, config: &config, gates: &gates, now };
        reconcile(context, &ObjectKey::of(&job), Some(&job)).steps.len()
    };
    assert_eq!(steps("yes"), 2, "it is suspended, with an event, until the JobSet is admitted");
    assert_eq!(steps("other"), 0, "the JobSet is not managed");
}
