//! Suites of the integrations of batch Jobs and JobSets.

use std::collections::BTreeMap;

use berth_api::jobset::v1alpha2::JobSet;
use berth_api::kueue::v1beta2::{Workload, WorkloadPriorityClass};
use berth_controllers::configuration::{Config, ObjectRetentionPolicies, WaitForPodsReady, WorkloadRetentionPolicy};
use berth_controllers::jobs::reconcile::{Context, reconcile};
use berth_controllers::jobs::{Job, batch_job, elastic};
use berth_controllers::plan::{Plan, Step};
use berth_controllers::podset::PodSetInfo;
use berth_controllers::{Gates, Stores};
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::compare::{differences, verdict};
use super::{gates, input, now, read};
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "job-reconcile" => job_reconcile,
        "jobset-reconcile" => jobset_reconcile,
        "job-pod-sets" => |case| pod_sets::<BatchJob>(case, "job"),
        "jobset-pod-sets" => |case| pod_sets::<JobSet>(case, "jobSet"),
        "job-pods-ready" => |case| pods_ready::<BatchJob>(case, "job"),
        "jobset-pods-ready" => |case| pods_ready::<JobSet>(case, "jobSet"),
        "job-reclaimable-pods" => |case| reclaimable::<BatchJob>(case, "job"),
        "jobset-reclaimable-pods" => |case| reclaimable::<JobSet>(case, "jobSet"),
        "job-pod-sets-info" => job_pod_sets_info,
        "jobset-restore-pod-sets-info" => jobset_restore,
        "job-apply-workload-slice-scheduling-gate" => elastic_gate,
        "job-clean-labels" => clean_labels,
        "job-terminal-indexes-count" => terminal_indexes,
        _ => return None,
    })
}

/// Compares the scheduling gates of an elastic job's pods.
fn elastic_gate(case: &Case) -> Verdict {
    let mut object = case.input["args"]["job"].clone();
    object["spec"]["template"]["spec"]["containers"] = json!([]);
    let job: BatchJob = read(&object)?;
    elastic::add_gates(&mut object, &job, &gates(case));
    let got = &object["spec"]["template"]["spec"]["schedulingGates"];
    verdict(differences(&json!({"gates": case.want["result"]}), &json!({"gates": got}), &[]))
}

// -- reconcile ------------------------------------------------------------------------------------

/// The configuration that corresponds to upstream's reconciler options.
pub(super) fn config(options: &Value) -> Result<Config, String> {
    let mut config = Config { wait_for_pods_ready: None, ..Config::default() };
    config.managed_jobs_namespace_selector = LabelSelector::default();
    config.manage_jobs_without_queue_name = options["manageJobsWithoutQueueName"].as_bool().unwrap_or(false);
    if let Some((key, value)) = options["managedJobsNamespaceSelector"].as_str().and_then(|text| text.split_once('=')) {
        config.managed_jobs_namespace_selector.match_labels =
            Some(BTreeMap::from([(key.to_owned(), value.to_owned())]));
    }
    if options["waitForPodsReady"].as_bool() == Some(true) {
        config.wait_for_pods_ready = Some(WaitForPodsReady::default());
    }
    config.integrations.label_keys_to_copy = read(&options["labelKeysToCopy"])?;
    config.integrations.annotations_to_copy = read(&options["annotationsToCopy"])?;
    if !options["workloadRetentionPolicy"].is_null() {
        let policy: WorkloadRetentionPolicy = read(&options["workloadRetentionPolicy"])?;
        config.object_retention_policies = Some(ObjectRetentionPolicies { workloads: Some(policy) });
    }
    Ok(config)
}

fn stores() -> Stores {
    let stores = Stores::by_hand();
    let namespace = |name: &str, labels: &[(&str, &str)]| {
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.to_owned());
        for (key, value) in labels {
            namespace.labels_mut().insert((*key).to_owned(), (*value).to_owned());
        }
        namespace
    };
    stores.namespaces.observe(namespace("ns", &[("kubernetes.io/metadata.name", "ns")]));
    stores.namespaces.observe(namespace("labelled-ns", &[("managed-by-kueue", "true")]));
    stores.flavors.observe(berth_api::kueue::v1beta2::ResourceFlavor::named("default"));
    stores
}

fn add_priority_classes(case: &Case, stores: &Stores) -> Result<(), String> {
    for class in case.input["priorityClasses"].as_array().into_iter().flatten() {
        if class["kind"] == "WorkloadPriorityClass" {
            stores.workload_priority_classes.observe(read::<WorkloadPriorityClass>(class)?);
        } else {
            let class = serde_json::from_value(class.clone()).map_err(|e| e.to_string())?;
            stores.priority_classes.observe(class);
        }
    }
    Ok(())
}

/// Objects after a plan was executed, and the Kubernetes events that it recorded.
pub(super) struct After<J> {
    pub job: Option<J>,
    pub workloads: Vec<Workload>,
    pub events: Vec<Value>,
}

/// Executes a plan on objects in memory.
pub(super) fn apply<J: Job>(job: Option<J>, workloads: Vec<Workload>, plan: Plan<J>) -> After<J> {
    let mut after = After { job, workloads, events: Vec::new() };
    for step in plan.steps {
        match step {
            Step::Event(new_event) => {
                let (namespace, name) = match &after.job {
                    Some(job) => (job.namespace().unwrap_or_default(), job.name_any()),
                    None => Default::default(),
                };
                after.events.push(event(&namespace, &name, &new_event));
            }
            Step::EventAbout(job, new_event) => {
                after.events.push(event(&job.namespace().unwrap_or_default(), &job.name_any(), &new_event));
            }
            Step::WorkloadEvent(workload, new_event) => {
                after.events.push(event(&workload.namespace().unwrap_or_default(), &workload.name_any(), &new_event));
            }
            Step::Patch(job) | Step::PatchStatus(job) => after.job = Some(*job),
            Step::Delete(job) => {
                let mut deleted = (*job).clone();
                deleted.meta_mut().deletion_timestamp =
                    Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
                after.job = Some(deleted);
            }
            Step::CreateWorkload(workload) => after.workloads.push(*workload),
            Step::PatchWorkload(new) => {
                if let Some(old) = find(&mut after.workloads, &new) {
                    let status = old.status.take();
                    *old = Workload { status, ..*new };
                }
            }
            Step::PatchWorkloadStatus(new) => {
                if let Some(old) = find(&mut after.workloads, &new) {
                    old.status = new.status;
                }
            }
            Step::DeleteWorkload(deleted) => after.workloads.retain(|w| w.name_any() != deleted.name_any()),
        }
    }
    after
}

fn find<'a>(workloads: &'a mut [Workload], like: &Workload) -> Option<&'a mut Workload> {
    workloads.iter_mut().find(|workload| workload.name_any() == like.name_any())
}

/// An event in the form of the recorded cases.
pub(super) fn event(namespace: &str, name: &str, new_event: &berth_controllers::plan::PlannedEvent) -> Value {
    json!({
        "key": {"namespace": namespace, "name": name},
        "eventType": format!("{:?}", new_event.event_type),
        "reason": new_event.reason,
        "message": new_event.message,
    })
}

fn job_reconcile(case: &Case) -> Verdict {
    // Objects before the reconcile.
    let gates = gates(case);
    let want = &case.want;
    let stores = stores();
    add_priority_classes(case, &stores)?;
    let job: BatchJob = input(case, "job")?;
    let has_job = !case.input["job"].is_null() && job.metadata.name.is_some();
    for other in input::<Vec<BatchJob>>(case, "otherJobs")? {
        stores.jobs.observe(other);
    }
    let mut workloads: Vec<Workload> = input(case, "workloads")?;
    for workload in &mut workloads {
        let owned = workload.owner_references().iter().any(|owner| owner.controller == Some(true));
        let prebuilt = job.labels().contains_key("kueue.x-k8s.io/prebuilt-workload-name");
        if !owned && !prebuilt {
            workload.owner_references_mut().push(OwnerReference {
                api_version: "batch/v1".to_owned(),
                kind: "Job".to_owned(),
                name: job.name_any(),
                uid: job.uid().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            });
        }
        stores.workloads.observe(workload.clone());
    }
    if has_job {
        stores.jobs.observe(job.clone());
    }
    let mut config = config(&case.input["reconcilerOptions"])?;
    config.feature_gates = Gates::default();
    let key = &case.input["reconcileKey"];
    let key = match key["name"].as_str() {
        Some(name) => berth_runtime::ObjectKey::namespaced(key["namespace"].as_str().unwrap_or("ns"), name),
        None => berth_runtime::ObjectKey::of(&job),
    };
    let current = stores.jobs.get(&key);
    // Reconcile.
    let context = Context { stores: &stores, config: &config, gates: &gates, now: now(case) };
    let plan = reconcile(context, &key, current.as_deref());
    let error = plan.error.as_ref().map(ToString::to_string);
    let after = apply(has_job.then_some(job), workloads, plan);

    // Compare the job, then the workloads, events and error.
    let mut lines = Vec::new();
    let deleted = after.job.as_ref().is_some_and(|job| job.metadata.deletion_timestamp.is_some());
    let want_job = &want["job"];
    if want_job.is_null() || want_job["metadata"].as_object().is_none_or(|metadata| metadata.is_empty()) {
        // The job must be deleted, unless the case started without one.
        if has_job && !deleted && !want_job.is_null() {
            lines.push("job: want it deleted".to_owned());
        }
        if !want_job.is_null() {
            // An empty Job means that there is no job.
            lines.extend(differences(want_job, &json!({"apiVersion": "batch/v1", "kind": "Job"}), &[]));
        }
    } else {
        let got = serde_json::to_value(&after.job).map_err(|e| e.to_string())?;
        lines.extend(differences(
            &without_metadata(want_job, &["annotations", "ownerReferences"]),
            &without_metadata(&got, &["annotations", "ownerReferences"]),
            &[],
        ));
    }
    let prebuilt = case.input["job"]["metadata"]["labels"]["kueue.x-k8s.io/prebuilt-workload-name"].is_string();
    let hidden: &[&str] = if prebuilt { &["name"] } else { &["name", "ownerReferences"] };
    lines.extend(compare_workloads(&want["workloads"], &after.workloads, hidden)?);
    lines.extend(differences(&or_empty(&want["events"]), &Value::from(after.events), &[]));
    lines.extend(compare_error(&want["err"], error));
    verdict(lines)
}

fn jobset_reconcile(case: &Case) -> Verdict {
    let gates = gates(case);
    let want = &case.want;
    let stores = stores();
    add_priority_classes(case, &stores)?;
    let job: JobSet = input(case, "job")?;
    stores.job_sets.observe(job.clone());
    let config = config(&case.input["reconcilerOptions"])?;
    let key = berth_runtime::ObjectKey::of(&job);
    let context = Context { stores: &stores, config: &config, gates: &gates, now: now(case) };
    let plan = reconcile(context, &key, Some(&job));
    let error = plan.error.as_ref().map(ToString::to_string);
    let after = apply(Some(job), Vec::new(), plan);
    let got = serde_json::to_value(&after.job).map_err(|e| e.to_string())?;
    let mut lines = differences(&want["job"]["spec"], &got["spec"], &[]);
    // Upstream does not compare the pod spec: ignore the templates and the priority that follows
    // from their priority classes.
    let hidden = &["name", "labels", "ownerReferences", "finalizers"];
    let strip = |value: &Value| {
        let mut value = value.clone();
        for workload in value.as_array_mut().into_iter().flatten() {
            for pod_set in workload["spec"]["podSets"].as_array_mut().into_iter().flatten() {
                pod_set["template"] = Value::Null;
            }
            if workload["spec"]["priorityClassRef"].is_null() {
                workload["spec"]["priority"] = Value::Null;
            }
        }
        value
    };
    let got: Vec<Value> = after.workloads.iter().filter_map(|w| serde_json::to_value(w).ok()).collect();
    let got = strip(&Value::from(got));
    let want_workloads = strip(&or_empty(&want["workloads"]));
    lines.extend(compare_lists(&want_workloads, &got, hidden));
    lines.extend(compare_error(&want["err"], error));
    verdict(lines)
}

fn or_empty(value: &Value) -> Value {
    if value.is_null() { json!([]) } else { value.clone() }
}

fn compare_error(want: &Value, got: Option<String>) -> Option<String> {
    match (want.as_str(), got) {
        (None, None) => None,
        (Some("any error"), Some(_)) => None,
        (Some(want), Some(got)) if got.contains(want) => None,
        (want, got) => Some(format!("error: want {want:?}, got {got:?}")),
    }
}

fn without_metadata(object: &Value, fields: &[&str]) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|key, _| !fields.contains(&key.as_str()));
    }
    object
}

pub(super) fn compare_workloads(want: &Value, got: &[Workload], hidden: &[&str]) -> Result<Vec<String>, String> {
    let mut got = got.to_vec();
    got.sort_by_key(ResourceExt::name_any);
    let got: Vec<Value> = got.iter().map(serde_json::to_value).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    let mut want = or_empty(want);
    if let Some(list) = want.as_array_mut() {
        list.sort_by_key(|workload| workload["metadata"]["name"].as_str().unwrap_or_default().to_owned());
    }
    // Upstream does not compare the admission where merge patches clear it.
    let without_admission = |list: &Value| -> Value {
        let mut list = list.clone();
        for workload in list.as_array_mut().into_iter().flatten() {
            if let Some(status) = workload["status"].as_object_mut() {
                status.remove("admission");
            }
        }
        list
    };
    Ok(compare_lists(&without_admission(&want), &without_admission(&Value::from(got)), hidden))
}

fn compare_lists(want: &Value, got: &Value, hidden: &[&str]) -> Vec<String> {
    let strip = |list: &Value| -> Value {
        let list = list.as_array().into_iter().flatten();
        list.map(|object| without_metadata(object, hidden)).collect::<Vec<_>>().into()
    };
    differences(&strip(want), &strip(got), &["creationTimestamp"])
}

// -- single functions -----------------------------------------------------------------------------

fn pod_sets<J: Job + Default>(case: &Case, field: &str) -> Verdict {
    let job: J = input(case, field)?;
    let got = job.pod_sets(&gates(case))?;
    let got = serde_json::to_value(got).map_err(|e| e.to_string())?;
    verdict(differences(&or_empty(&case.want["podSets"]), &got, &[]))
}

fn pods_ready<J: Job + Default>(case: &Case, field: &str) -> Verdict {
    let job: J = input(case, field)?;
    let want = case.want["result"].as_bool().unwrap_or(false);
    if job.pods_ready() == want { Ok(()) } else { Err(format!("want {want}")) }
}

fn reclaimable<J: Job + Default>(case: &Case, field: &str) -> Verdict {
    let job: J = input(case, field)?;
    let got = serde_json::to_value(job.reclaimable_pods().unwrap_or_default()).map_err(|e| e.to_string())?;
    verdict(differences(&or_empty(&case.want["result"]), &got, &[]))
}

fn job_pod_sets_info(case: &Case) -> Verdict {
    let gates: Gates = gates(case);
    let original: BatchJob = input(case, "job")?;
    let want = &case.want;
    let mut job = original.clone();
    let result = job.run_with(&input::<Vec<PodSetInfo>>(case, "runInfo")?, &gates);
    let mut lines = Vec::new();
    match (want["runError"].as_str(), result) {
        (None, Ok(())) => {}
        (Some(want), Err(error)) if error.to_string().contains(want) => {}
        (want, got) => lines.push(format!("run error: want {want:?}, got {got:?}")),
    }
    let got = serde_json::to_value(&job.spec).map_err(|e| e.to_string())?;
    lines.extend(differences(&want["unsuspended"]["spec"], &got, &[]));
    job.restore(&input::<Vec<PodSetInfo>>(case, "restoreInfo")?);
    job.suspend();
    let got = serde_json::to_value(&job.spec).map_err(|e| e.to_string())?;
    let original = serde_json::to_value(&original.spec).map_err(|e| e.to_string())?;
    lines.extend(differences(&original, &got, &[]));
    verdict(lines)
}

fn jobset_restore(case: &Case) -> Verdict {
    let mut job: JobSet = input(case, "jobSet")?;
    let changed = job.restore(&input::<Vec<PodSetInfo>>(case, "podSetsInfo")?);
    let want = case.want["changed"].as_bool().unwrap_or(false);
    if changed == want { Ok(()) } else { Err(format!("changed: want {want}")) }
}

fn clean_labels(case: &Case) -> Verdict {
    let mut labels: BTreeMap<String, String> = input(case, "labels")?;
    BatchJob::clean_labels(&mut labels);
    let got = serde_json::to_value(labels).map_err(|e| e.to_string())?;
    verdict(differences(&case.want["labels"], &got, &[]))
}

fn terminal_indexes(case: &Case) -> Verdict {
    let text = |field: &str| case.input[field].as_str().unwrap_or_default();
    let completions: i32 = input(case, "completions")?;
    let got = batch_job::terminal_indexes(text("completedIndexes"), text("failedIndexes"), completions);
    let want = case.want["result"].as_i64().unwrap_or(0);
    if i64::from(got) == want { Ok(()) } else { Err(format!("want {want}, got {got}")) }
}
