//! Suites of the code that all job integrations share. Batch Jobs replace upstream's mock jobs: the
//! mock's pod sets become the Job's template, and the runner adds the mock's own validation errors.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::jobset::v1alpha2::JobSet;
use berth_api::kueue::conditions;
use berth_api::kueue::v1beta2::{PodSet, Workload, WorkloadPriorityClass};
use berth_apimachinery::field::{Error, ErrorKind, Path};
use berth_controllers::Stores;
use berth_controllers::configuration::frameworks;
use berth_controllers::configuration::{Config, WaitForPodsReady};
use berth_controllers::jobs::reconcile::{Context, reconcile};
use berth_controllers::plan::Step;
use berth_controllers::webhooks;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{Namespace, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::compare::{differences, verdict};
use super::jobs::{apply, compare_workloads, config, event};
use super::webhooks::{Compare, errors};
use super::{gates, input, now, read};
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "jobframework-reconcile-generic-job" => reconcile_job,
        "jobframework-reconcile-generic-job-with-wait-for-pods-ready" => with_pods_ready,
        "jobframework-extract-priority-reports-missing-workload-priority-class" => missing_class,
        "jobframework-validate-job-on-create" => validate_create,
        "jobframework-validate-job-on-update" => validate_update,
        "jobframework-validate-on-create" => |case| with_own_rules(case, &case.input["job"], None),
        "jobframework-validate-on-update" => |case| {
            let args = &case.input["args"];
            with_own_rules(case, &args["newObj"], Some(&args["oldObj"]))
        },
        "jobframework-workload-should-be-suspended" => should_be_suspended,
        "jobframework-implicitly-enabled-integrations" => implicitly_enabled,
        "jobframework-enabled-integrations-dependencies" => dependencies,
        "jobframework-validate-immutable-pod-spec" => immutable_pod_spec,
        _ => return None,
    })
}

/// The job of a case, with the pod template and count of the mock's first pod set.
fn job_with(job: &Value, pod_sets: &Value) -> Result<BatchJob, String> {
    let mut job: BatchJob = read(job)?;
    if let Some(set) = read::<Vec<PodSet>>(pod_sets)?.first() {
        let spec = job.spec.get_or_insert_default();
        spec.template = set.template.clone();
        spec.parallelism = Some(set.count);
    }
    Ok(job)
}

/// Stores with one namespace.
fn stores_with(namespace: Option<String>) -> Stores {
    let stores = Stores::by_hand();
    let metadata = ObjectMeta { name: namespace, ..ObjectMeta::default() };
    stores.namespaces.observe(Namespace { metadata, ..Namespace::default() });
    stores
}

fn reconcile_job(case: &Case) -> Verdict {
    let gates = gates(case);
    let data = &case.input;
    let job = job_with(&data["job"], &data["podSets"])?;
    let stores = stores_with(job.namespace());
    let workloads: Vec<Workload> = input(case, "objs")?;
    for workload in &workloads {
        stores.workloads.observe(workload.clone());
    }
    stores.jobs.observe(job.clone());
    let config = config(&data["reconcilerOptions"])?;
    let context = Context { stores: &stores, config: &config, gates: &gates, now: now(case) };
    let plan = reconcile(context, &berth_runtime::ObjectKey::of(&job), Some(&job));
    let mut lines = Vec::new();
    if let Some(error) = &plan.error {
        lines.push(format!("error: {error}"));
    }
    let after = apply(Some(job), workloads, plan);
    let want = &case.want;
    if let Some(info) = want["podSets"].as_array().and_then(|infos| infos.first()) {
        let template = after.job.as_ref().and_then(|job| job.spec.as_ref()).map(|spec| spec.template.clone());
        let template = serde_json::to_value(template).map_err(|e| e.to_string())?;
        for part in ["labels", "annotations"] {
            let name = format!("podSets[0].{part}");
            lines.extend(differences(&json!({&name: info[part]}), &json!({&name: template["metadata"][part]}), &[]));
        }
    }
    // A batch Job's pod sets have a topology request with the pod index label. A mock's have none.
    let mut workloads = after.workloads;
    for set in workloads.iter_mut().flat_map(|workload| &mut workload.spec.pod_sets) {
        set.topology_request = None;
    }
    lines.extend(compare_workloads(&want["workloads"], &workloads, &[])?);
    // A suite without an expectation of events does not compare them.
    if !want["events"].is_null() {
        lines.extend(differences(&want["events"], &Value::from(after.events), &[]));
    }
    verdict(lines)
}

/// Compares whether the condition PodsReady is written. A failing write is an error of the executor
/// of plans, which this suite does not run.
fn with_pods_ready(case: &Case) -> Verdict {
    let gates = gates(case);
    let job: BatchJob = input(case, "job")?;
    let workload: Workload = input(case, "workload")?;
    let stores = stores_with(job.namespace());
    stores.workloads.observe(workload);
    stores.jobs.observe(job.clone());
    let mut config = config(&Value::Null)?;
    config.wait_for_pods_ready = Some(WaitForPodsReady::default());
    let context = Context { stores: &stores, config: &config, gates: &gates, now: now(case) };
    let plan = reconcile(context, &berth_runtime::ObjectKey::of(&job), Some(&job));
    let ready = |workload: &Workload| {
        let conditions = workload.status.iter().flat_map(|status| status.conditions.iter());
        conditions.into_iter().any(|condition| condition.type_ == conditions::PODS_READY && condition.status == "True")
    };
    let writes = plan.steps.iter().any(|step| matches!(step, Step::PatchWorkloadStatus(after) if ready(after)));
    match plan.error {
        None if writes => Ok(()),
        error => Err(format!("PodsReady written: want true, got {writes}; error: {error:?}")),
    }
}

fn missing_class(case: &Case) -> Verdict {
    let gates = gates(case);
    let data = &case.input;
    let job = job_with(&data["job"], &data["podSets"])?;
    let stores = stores_with(job.namespace());
    for class in input::<Vec<WorkloadPriorityClass>>(case, "objects")? {
        stores.workload_priority_classes.observe(class);
    }
    stores.jobs.observe(job.clone());
    let mut config = config(&Value::Null)?;
    config.manage_jobs_without_queue_name = true;
    let context = Context { stores: &stores, config: &config, gates: &gates, now: now(case) };
    let plan = reconcile(context, &berth_runtime::ObjectKey::of(&job), Some(&job));
    let want = &case.want;
    let mut lines = Vec::new();
    // Compare the kind of the error. The only expected kind is that a priority class is missing.
    let kind =
        plan.error.as_ref().map(|error| if error.to_string().contains("not found") { "NotFound" } else { "other" });
    if kind != want["err"]["reason"].as_str() {
        lines.push(format!("error: want {}, got {:?}", want["err"], plan.error));
    }
    let warnings = plan.steps.iter().filter_map(|step| match step {
        Step::Event(new_event) if new_event.reason == "WorkloadPriorityClassNotFound" => {
            Some(event(&job.namespace().unwrap_or_default(), &job.name_any(), new_event))
        }
        _ => None,
    });
    let got: Vec<Value> = warnings.collect();
    let wanted = if want["events"].is_null() { json!([]) } else { want["events"].clone() };
    lines.extend(differences(&wanted, &Value::from(got), &[]));
    verdict(lines)
}

fn validate_create(case: &Case) -> Verdict {
    let job = &case.input["job"];
    // The recorded kind decides. The content is the same for all kinds.
    let got = match case.input["gvk"]["kind"].as_str() {
        Some("JobSet") => {
            let set = json!({"metadata": job["metadata"], "spec": {"replicatedJobs": []}});
            let set: JobSet = serde_json::from_value(set).map_err(|e| e.to_string())?;
            webhooks::validate_job_on_create(&set, &gates(case))
        }
        _ => webhooks::validate_job_on_create(&read::<BatchJob>(job)?, &gates(case)),
    };
    errors(case, "err", Compare::Fields, got)
}

fn validate_update(case: &Case) -> Verdict {
    let (new, old): (BatchJob, BatchJob) = (input(case, "newJob")?, input(case, "oldJob")?);
    let default_queue = case.input["nsHasDefaultQueue"] == true;
    let gates = gates(case);
    let mut got = webhooks::validate_job_on_create(&new, &gates);
    got.extend(webhooks::validate_job_on_update(&new, &old, default_queue, &gates));
    errors(case, "err", Compare::Fields, got)
}

/// Compares the errors of the shared rules, followed by those of the kind's own rules.
fn with_own_rules(case: &Case, new: &Value, old: Option<&Value>) -> Verdict {
    let data = |field: &str| if old.is_some() { &case.input["args"][field] } else { &case.input[field] };
    let want = &case.want["error"];
    if !data("customValidationError").is_null() {
        return Err(format!("want {want}: validation rules of a kind return errors, but cannot fail to run"));
    }
    let gates = gates(case);
    let new: BatchJob = read(new)?;
    let mut got = webhooks::validate_job_on_create(&new, &gates);
    if let Some(old) = old {
        got.extend(webhooks::validate_job_on_update(&new, &read::<BatchJob>(old)?, false, &gates));
    }
    for own in data("customValidationFailure").as_array().into_iter().flatten() {
        let kind = ErrorKind::from_reason(own["type"].as_str().unwrap_or_default()).ok_or("unknown type of error")?;
        let text = |field: &str| own[field].as_str().unwrap_or_default().to_owned();
        got.push(Error { kind, field: text("field"), bad_value: None, detail: text("detail") });
    }
    errors(case, "error", Compare::Exact, got)
}

fn should_be_suspended(case: &Case) -> Verdict {
    let data = &case.input;
    let job: BatchJob = input(case, "obj")?;
    let mut config = Config { managed_jobs_namespace_selector: LabelSelector::default(), ..Config::default() };
    config.manage_jobs_without_queue_name = data["manageJobsWithoutQueueName"] == true;
    // Every case of this suite has one managed job.
    let parent = Arc::new(json!({"metadata": {"name": "parent", "uid": "parent"}}));
    let lookup =
        |_: &str, resource: &str, _: &str, name: &str| (resource == "jobs" && name == "parent").then(|| parent.clone());
    let got = webhooks::should_be_suspended(&job, data["tolerateDeleting"] == true, &config, &gates(case), &lookup);
    let want = &case.want;
    match (got, want["err"].as_str()) {
        (Err(error), Some(wanted)) if error.to_string() == wanted && want["suspend"] != true => Ok(()),
        (Ok(got), None) if got == (want["suspend"] == true) => Ok(()),
        (got, _) => Err(format!("want {want}, got {got:?}")),
    }
}

fn implicitly_enabled(case: &Case) -> Verdict {
    let enabled: Vec<String> = input(case, "enabled")?;
    let implicit: BTreeMap<String, Vec<String>> = input(case, "integrationsImplicit")?;
    let enabled: Vec<&str> = enabled.iter().map(String::as_str).collect();
    let of = |name: &str| implicit.get(name).map(|list| list.iter().map(String::as_str).collect()).unwrap_or_default();
    let got = json!(frameworks::implicitly_enabled(&enabled, of));
    verdict(differences(&json!({"it": case.want["implicit"]}), &json!({"it": got}), &[]))
}

/// Compares the error for enabled integrations whose dependencies are missing. The cases do not
/// list integrations without dependencies: every integration in the map of dependencies is
/// registered.
fn dependencies(case: &Case) -> Verdict {
    let enabled: Vec<String> = input(case, "enabled")?;
    let depends: BTreeMap<String, Vec<String>> = input(case, "integrationsDependencies")?;
    let enabled: Vec<&str> = enabled.iter().map(String::as_str).collect();
    let of = |name: &str| depends.get(name).map(|list| list.iter().map(String::as_str).collect()).unwrap_or_default();
    let on: Vec<&str> = enabled.iter().copied().chain(frameworks::implicitly_enabled(&enabled, of)).collect();
    let is_registered = |name: &&str| depends.contains_key(*name) || depends.values().flatten().any(|it| it == name);
    // A configuration cannot name an integration that is not registered. Berth enables dependencies
    // implicitly.
    let got = on.iter().any(|name| !is_registered(name)).then_some("integration not found");
    verdict(differences(&json!({"error": case.want["error"]}), &json!({"error": got}), &[]))
}

fn immutable_pod_spec(case: &Case) -> Verdict {
    let read_spec = |field: &str| -> Result<PodSpec, String> {
        let mut spec = case.input[field].clone();
        // The cases omit the required field `containers`.
        if spec["containers"].is_null() {
            spec["containers"] = json!([]);
        }
        serde_json::from_value(spec).map_err(|e| e.to_string())
    };
    let (new, old) = (read_spec("newPodSpec")?, read_spec("oldPodSpec")?);
    errors(case, "err", Compare::Fields, webhooks::validate_immutable_pod_spec(&new, &old, &Path::new("spec")))
}
