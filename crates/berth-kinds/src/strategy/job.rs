//! Jobs: defaults, the generated selector and labels, and the fields that may change while a Job is
//! suspended.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::{self, map_mut};
use berth_apimachinery::names;
use serde_json::{Map, Value, json};

use super::job_policies;
use super::pod_defaults;
use super::pod_validation;
use super::rules::supported;
use super::{Context, Strategy, immutable, non_negative, same_as, set_default, set_default_text, spec_mut};

const UID_LABEL: &str = "batch.kubernetes.io/controller-uid";
const NAME_LABEL: &str = "batch.kubernetes.io/job-name";
const LEGACY_UID_LABEL: &str = "controller-uid";
const LEGACY_NAME_LABEL: &str = "job-name";

/// Maximum parallelism of an indexed Job.
const INDEXED_PARALLELISM_MAX: i64 = 100_000;

pub(crate) struct Jobs;

impl Strategy for Jobs {
    /// As upstream since batch/v1: without a propagation policy, the pods of a deleted Job remain.
    /// kubectl always sends a policy.
    fn orphans_dependents(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, job: &mut Value) {
        let labels = meta::labels(job).cloned().unwrap_or_default();
        let spec = spec_mut(job);
        default_spec(spec);
        // A Job without labels gets those of its pod template.
        if labels.is_empty()
            && let Some(Value::Object(template)) =
                spec.get("template").and_then(|template| template["metadata"].get("labels"))
            && !template.is_empty()
        {
            let template = template.clone();
            meta::metadata_mut(job).insert("labels".to_owned(), Value::Object(template));
        }
    }

    fn prepare_create(&self, job: &mut Value, _context: &Context<'_>) {
        map_mut(job).insert("status".to_owned(), json!({}));
        if job["spec"]["manualSelector"] == true {
            return;
        }
        let (uid, name) = (meta::uid(job).to_owned(), meta::name(job).to_owned());
        let spec = spec_mut(job);
        let template = map_mut(spec.entry("template").or_insert_with(|| json!({})));
        let metadata = map_mut(template.entry("metadata").or_insert_with(|| json!({})));
        let labels = map_mut(metadata.entry("labels").or_insert_with(|| json!({})));
        for (label, value) in
            [(LEGACY_UID_LABEL, &uid), (UID_LABEL, &uid), (LEGACY_NAME_LABEL, &name), (NAME_LABEL, &name)]
        {
            labels.entry(label).or_insert_with(|| value.as_str().into());
        }
        if spec.get("selector").is_none_or(Value::is_null) {
            spec.insert("selector".to_owned(), json!({"matchLabels": {UID_LABEL: uid}}));
        }
    }

    fn validate(&self, job: &Value) -> Vec<Error> {
        let mut errors = validate_spec(&job["spec"], &Path::new("spec"));
        let is_indexed = job["spec"]["completionMode"] == "Indexed";
        if let Some(completions) = job["spec"]["completions"].as_i64().filter(|n| is_indexed && *n > 0) {
            // Host names of pods are <job>-<index>, which must be a valid DNS label.
            let longest = format!("{}-{}", meta::name(job), completions - 1);
            for message in names::is_dns1123_label(&longest) {
                let detail = format!("will not able to create pod with invalid DNS label: {message}");
                errors.push(Error::invalid(&Path::new("metadata.name"), meta::name(job), detail));
            }
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = validate_spec(&new["spec"], &Path::new("spec"));
        let completions_may_change =
            new["spec"]["completionMode"] == "Indexed" && new["spec"]["completions"] == new["spec"]["parallelism"];
        if !completions_may_change {
            immutable(new, old, &["spec", "completions"], &mut errors);
        }
        for field in
            ["selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"]
        {
            immutable(new, old, &["spec", field], &mut errors);
        }
        let mut template = new["spec"]["template"].clone();
        // The scheduling fields of a suspended Job may change once no pod of an earlier start
        // remains.
        let is_idle = old["status"]["active"].as_i64().unwrap_or(0) == 0;
        let is_stopped = old["status"]["startTime"].is_null() || has_condition(old, "Suspended");
        if old["spec"]["suspend"] == true && is_idle && is_stopped {
            for path in [
                ["spec", "nodeSelector"],
                ["spec", "affinity"],
                ["spec", "tolerations"],
                ["spec", "schedulingGates"],
                ["metadata", "labels"],
                ["metadata", "annotations"],
            ] {
                let value = old["spec"]["template"][path[0]].get(path[1]).cloned();
                let Some(part) = template.get_mut(path[0]).and_then(Value::as_object_mut) else { continue };
                match value {
                    Some(value) => part.insert(path[1].to_owned(), value),
                    None => part.remove(path[1]),
                };
            }
            adopt_requests(&mut template, &old["spec"]["template"]);
        }
        if !same_as("io.k8s.api.core.v1.PodTemplateSpec", &template, &old["spec"]["template"]) {
            let path = Path::new("spec.template");
            errors.push(Error::invalid(&path, new["spec"]["template"].clone(), "field is immutable"));
        }
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let status = Path::new("status");
        for field in ["active", "succeeded", "failed", "ready", "terminating"] {
            non_negative(&new["status"][field], &status.child(field), &mut errors);
        }
        if has_condition(new, "Complete") && has_condition(new, "Failed") {
            let detail = "cannot set Complete=True and Failed=true conditions";
            errors.push(Error::invalid(&status.child("conditions"), "conditions", detail));
        }
        for kind in ["Complete", "Failed"] {
            if has_condition(old, kind) && !has_condition(new, kind) {
                let detail = format!("cannot disable {kind}=True condition");
                errors.push(Error::invalid(&status.child("conditions"), "conditions", detail));
            }
        }
        errors
    }
}

/// True if a condition of the Job is true.
fn has_condition(job: &Value, kind: &str) -> bool {
    let mut conditions = job["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// Copies the containers' resources from the old template, so that the comparison ignores them:
/// they may change while a Job is suspended.
fn adopt_requests(template: &mut Value, old: &Value) {
    for kind in ["containers", "initContainers"] {
        let old_list = old["spec"][kind].as_array();
        let new_list = template["spec"].get_mut(kind).and_then(Value::as_array_mut);
        if let (Some(new_list), Some(old_list)) = (new_list, old_list) {
            for (new, old) in new_list.iter_mut().zip(old_list) {
                match old.get("resources") {
                    Some(resources) => new["resources"] = resources.clone(),
                    None => {
                        map_mut(new).remove("resources");
                    }
                }
            }
        }
    }
}

/// Sets the defaults of a JobSpec.
pub(crate) fn default_spec(spec: &mut Map<String, Value>) {
    let absent = |spec: &Map<String, Value>, field: &str| spec.get(field).is_none_or(Value::is_null);
    // The default is one pod. If parallelism is set, completions remain unset.
    if absent(spec, "completions") && absent(spec, "parallelism") {
        spec.insert("completions".to_owned(), 1.into());
        spec.insert("parallelism".to_owned(), 1.into());
    }
    set_default(spec, "parallelism", 1);
    if absent(spec, "backoffLimit") {
        let limit = if absent(spec, "backoffLimitPerIndex") { 6 } else { i64::from(i32::MAX) };
        spec.insert("backoffLimit".to_owned(), limit.into());
    }
    set_default_text(spec, "completionMode", "NonIndexed");
    set_default(spec, "suspend", false);
    set_default(spec, "manualSelector", false);
    let replacement = if absent(spec, "podFailurePolicy") { "TerminatingOrFailed" } else { "Failed" };
    set_default_text(spec, "podReplacementPolicy", replacement);
    if let Some(rules) = spec.get_mut("podFailurePolicy").and_then(|policy| policy.get_mut("rules")) {
        for rule in rules.as_array_mut().into_iter().flatten() {
            for pattern in rule.get_mut("onPodConditions").and_then(Value::as_array_mut).into_iter().flatten() {
                set_default_text(map_mut(pattern), "status", "True");
            }
        }
    }
    let template = map_mut(spec.entry("template").or_insert_with(|| json!({})));
    pod_defaults::pod_spec(map_mut(template.entry("spec").or_insert_with(|| json!({}))));
    if let Some(Value::Object(pod)) = template.get_mut("spec") {
        pod_defaults::service_account(pod);
    }
}

/// Validates a JobSpec.
pub(crate) fn validate_spec(spec: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        non_negative(&spec[field], &path.child(field), &mut errors);
    }
    match spec["completionMode"].as_str() {
        Some("Indexed") => {
            if spec["completions"].is_null() {
                errors.push(Error::required(&path.child("completions"), "when completion mode is Indexed"));
            }
            if let Some(parallelism) = spec["parallelism"].as_i64().filter(|n| *n > INDEXED_PARALLELISM_MAX) {
                let detail =
                    format!("must be less than or equal to {INDEXED_PARALLELISM_MAX} when completion mode is Indexed");
                errors.push(Error::invalid(&path.child("parallelism"), parallelism, detail));
            }
        }
        Some("NonIndexed") | None => {
            if !spec["backoffLimitPerIndex"].is_null() {
                let detail = "requires indexed completion mode";
                errors.push(Error::invalid(
                    &path.child("backoffLimitPerIndex"),
                    spec["backoffLimitPerIndex"].clone(),
                    detail,
                ));
            }
        }
        Some(mode) => {
            errors.push(Error::not_supported(&path.child("completionMode"), mode, &["NonIndexed", "Indexed"]));
        }
    }
    job_policies::failed_indexes(spec, path, &mut errors);
    if !spec["podFailurePolicy"].is_null() {
        job_policies::pod_failure_policy(spec, &path.child("podFailurePolicy"), &mut errors);
    }
    if !spec["successPolicy"].is_null() {
        job_policies::success_policy(spec, &path.child("successPolicy"), &mut errors);
    }
    // With a pod failure policy, a pod is replaced only once it has failed.
    let replacements: &[&str] =
        if spec["podFailurePolicy"].is_null() { &["Failed", "TerminatingOrFailed"] } else { &["Failed"] };
    supported(spec, "podReplacementPolicy", replacements, path, &mut errors);
    let template = path.child("template");
    let pod = template.child("spec");
    errors.extend(pod_validation::pod_template(&spec["template"], &template));
    let policy = spec["template"]["spec"]["restartPolicy"].as_str().unwrap_or_default();
    if !matches!(policy, "" | "Always" | "OnFailure" | "Never") {
        errors.push(Error::not_supported(&pod.child("restartPolicy"), policy, &["OnFailure", "Never"]));
    } else if policy == "Always" {
        errors.push(Error::required(&pod.child("restartPolicy"), "valid values: \"OnFailure\", \"Never\""));
    } else if !spec["podFailurePolicy"].is_null() && policy != "Never" {
        let detail = "only \"Never\" is supported when podFailurePolicy is specified";
        errors.push(Error::invalid(&pod.child("restartPolicy"), policy, detail));
    }
    errors
}
