//! Deployments, ReplicaSets, StatefulSets, DaemonSets, CronJobs: defaults and the few rules their controllers rely on.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::{self, map_mut};
use berth_apimachinery::selector::LabelSelector;
use serde_json::{Map, Value, json};

use super::{
    Context, Strategy, immutable, job, non_negative, pod_defaults, pod_validation, set_default, set_default_text,
    spec_mut, storage,
};

fn default_template(spec: &mut Map<String, Value>) {
    let template = map_mut(spec.entry("template").or_insert_with(|| json!({})));
    let pod = map_mut(template.entry("spec").or_insert_with(|| json!({})));
    pod_defaults::pod_spec(pod);
    pod_defaults::service_account(pod);
}

/// Checks selector and template, which all four kinds share.
fn validate_template(object: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    let spec = &object["spec"];
    non_negative(&spec["replicas"], &path.child("replicas"), &mut errors);
    let template = path.child("template");
    if spec["selector"].is_null() {
        errors.push(Error::required(&path.child("selector"), ""));
    } else if let Ok(selector) = LabelSelector::from_object(&spec["selector"]) {
        let empty = Map::new();
        let labels = spec["template"]["metadata"]["labels"].as_object().unwrap_or(&empty);
        if selector.is_empty() {
            let detail = "empty selector is invalid for deployment";
            errors.push(Error::invalid(&path.child("selector"), spec["selector"].clone(), detail));
        } else if !selector.matches(labels) {
            let metadata = template.child("metadata");
            let detail = "`selector` does not match template `labels`";
            errors.push(Error::invalid(&metadata.child("labels"), Value::Object(labels.clone()), detail));
        }
    }
    let pod = template.child("spec");
    errors.extend(pod_validation::pod_spec(&spec["template"]["spec"], &pod));
    if let Some(policy) = spec["template"]["spec"]["restartPolicy"].as_str().filter(|policy| *policy != "Always") {
        errors.push(Error::not_supported(&pod.child("restartPolicy"), policy, &["Always"]));
    }
    errors
}

fn validate_template_update(new: &Value, old: &Value) -> Vec<Error> {
    let mut errors = validate_template(new);
    immutable(new, old, &["spec", "selector"], &mut errors);
    errors
}

/// What a controller's template was at some time: never another.
pub(crate) struct ControllerRevisions;

impl Strategy for ControllerRevisions {
    fn validate(&self, revision: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        if revision["data"].is_null() {
            errors.push(Error::required(&Path::new("data"), "data is mandatory"));
        }
        non_negative(&revision["revision"], &Path::new("revision"), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        immutable(new, old, &["data"], &mut errors);
        errors
    }
}

pub(crate) struct PodTemplates;

impl Strategy for PodTemplates {
    fn has_generation(&self) -> bool {
        true
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        default_template(map_mut(object));
    }
}

pub(crate) struct ReplicationControllers;

impl Strategy for ReplicationControllers {
    fn has_generation(&self) -> bool {
        true
    }

    fn orphans_dependents(&self) -> bool {
        true
    }

    /// Selector and labels are those of the template unless something else is said.
    fn default(&self, object: &mut Value) {
        let labels = object.pointer("/spec/template/metadata/labels").filter(|labels| labels.is_object()).cloned();
        let has_labels = meta::labels(object).is_some_and(|labels| !labels.is_empty());
        if let Some(labels) = labels {
            let spec = spec_mut(object);
            if spec.get("selector").and_then(Value::as_object).is_none_or(Map::is_empty) {
                spec.insert("selector".to_owned(), labels.clone());
            }
            if !has_labels {
                meta::metadata_mut(object).insert("labels".to_owned(), labels);
            }
        }
        let spec = spec_mut(object);
        set_default(spec, "replicas", 1);
        default_template(spec);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        map_mut(object).insert("status".to_owned(), json!({"replicas": 0}));
    }
}

pub(crate) struct Deployments;

impl Strategy for Deployments {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        let spec = spec_mut(object);
        set_default(spec, "replicas", 1);
        set_default(spec, "revisionHistoryLimit", 10);
        set_default(spec, "progressDeadlineSeconds", 600);
        let strategy = map_mut(spec.entry("strategy").or_insert_with(|| json!({})));
        set_default_text(strategy, "type", "RollingUpdate");
        if strategy["type"] == "RollingUpdate" {
            let rolling = map_mut(strategy.entry("rollingUpdate").or_insert_with(|| json!({})));
            set_default(rolling, "maxUnavailable", "25%");
            set_default(rolling, "maxSurge", "25%");
        }
        default_template(spec);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        map_mut(object).insert("status".to_owned(), json!({}));
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        validate_template(object)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        validate_template_update(new, old)
    }
}

pub(crate) struct ReplicaSets;

impl Strategy for ReplicaSets {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        let spec = spec_mut(object);
        set_default(spec, "replicas", 1);
        default_template(spec);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        map_mut(object).insert("status".to_owned(), json!({"replicas": 0}));
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        validate_template(object)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        validate_template_update(new, old)
    }
}

pub(crate) struct StatefulSets;

impl Strategy for StatefulSets {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        let spec = spec_mut(object);
        set_default(spec, "replicas", 1);
        set_default(spec, "revisionHistoryLimit", 10);
        set_default_text(spec, "podManagementPolicy", "OrderedReady");
        let strategy = map_mut(spec.entry("updateStrategy").or_insert_with(|| json!({})));
        set_default_text(strategy, "type", "RollingUpdate");
        if strategy["type"] == "RollingUpdate" {
            let rolling = map_mut(strategy.entry("rollingUpdate").or_insert_with(|| json!({})));
            set_default(rolling, "partition", 0);
        }
        set_default(
            spec,
            "persistentVolumeClaimRetentionPolicy",
            json!({"whenDeleted": "Retain", "whenScaled": "Retain"}),
        );
        for claim in spec.get_mut("volumeClaimTemplates").and_then(Value::as_array_mut).into_iter().flatten() {
            let claim = map_mut(claim);
            set_default_text(claim, "apiVersion", "v1");
            set_default_text(claim, "kind", "PersistentVolumeClaim");
            storage::claim_spec(map_mut(claim.entry("spec").or_insert_with(|| json!({}))));
            set_default(claim, "status", json!({"phase": "Pending"}));
        }
        default_template(spec);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        map_mut(object).insert("status".to_owned(), json!({"availableReplicas": 0, "replicas": 0}));
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        validate_template(object)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        validate_template_update(new, old)
    }
}

pub(crate) struct DaemonSets;

impl Strategy for DaemonSets {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        let spec = spec_mut(object);
        set_default(spec, "revisionHistoryLimit", 10);
        let strategy = map_mut(spec.entry("updateStrategy").or_insert_with(|| json!({})));
        set_default_text(strategy, "type", "RollingUpdate");
        if strategy["type"] == "RollingUpdate" {
            let rolling = map_mut(strategy.entry("rollingUpdate").or_insert_with(|| json!({})));
            set_default(rolling, "maxUnavailable", 1);
            set_default(rolling, "maxSurge", 0);
        }
        default_template(spec);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        let status = json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0});
        map_mut(object).insert("status".to_owned(), status);
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        validate_template(object)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        validate_template_update(new, old)
    }
}

pub(crate) struct CronJobs;

impl Strategy for CronJobs {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        let spec = spec_mut(object);
        set_default_text(spec, "concurrencyPolicy", "Allow");
        set_default(spec, "suspend", false);
        set_default(spec, "successfulJobsHistoryLimit", 3);
        set_default(spec, "failedJobsHistoryLimit", 1);
        // Pods of the jobs get their defaults here; the jobs' own come with each job.
        let template = map_mut(spec.entry("jobTemplate").or_insert_with(|| json!({})));
        let job = map_mut(template.entry("spec").or_insert_with(|| json!({})));
        default_template(job);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        map_mut(object).insert("status".to_owned(), json!({}));
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        let path = Path::new("spec");
        let mut errors = Vec::new();
        if object["spec"]["schedule"].as_str().unwrap_or_default().is_empty() {
            errors.push(Error::required(&path.child("schedule"), ""));
        }
        let policy = object["spec"]["concurrencyPolicy"].as_str().unwrap_or_default();
        if !matches!(policy, "Allow" | "Forbid" | "Replace") {
            errors.push(Error::not_supported(
                &path.child("concurrencyPolicy"),
                policy,
                &["Allow", "Forbid", "Replace"],
            ));
        }
        let template = path.child("jobTemplate");
        errors.extend(job::validate_spec(&object["spec"]["jobTemplate"]["spec"], &template.child("spec")));
        errors
    }
}
