//! Pods: created with the phase Pending, almost immutable, deleted gracefully.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta;
use serde_json::{Value, json};

use super::pod_defaults::{pod, qos_class};
use super::pod_validation::{SpecOwner, pod_spec, pod_update};
use super::{Context, Strategy, pod_status, spec_mut};

/// Annotation of a mirror pod, which represents a static pod of its node.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

pub(crate) struct Pods;

impl Strategy for Pods {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        pod(spec_mut(object));
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        let mut status = json!({"phase": "Pending", "qosClass": qos_class(&object["spec"])});
        if object["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
            status["conditions"] = json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastProbeTime": null,
                "lastTransitionTime": context.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()}]);
        }
        meta::map_mut(object).insert("status".to_owned(), status);
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        let path = Path::new("spec");
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let mut errors = pod_spec(&object["spec"], SpecOwner::Pod(name), &path);
        if object["spec"]["ephemeralContainers"].as_array().is_some_and(|list| !list.is_empty()) {
            errors.push(Error::forbidden(&path.child("ephemeralContainers"), "cannot be set on create"));
        }
        let has_node = object["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
        if let Some(mirrored) = meta::annotation(object, MIRROR).filter(|_| !has_node) {
            let detail = "must set spec.nodeName if mirror pod annotation is set";
            errors.push(Error::invalid(&Path::new("metadata.annotations").key(MIRROR), mirrored, detail));
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        if new["spec"] != old["spec"] {
            let name = meta::name(new);
            errors.extend(pod_spec(&new["spec"], SpecOwner::Pod(name), &Path::new("spec")));
            errors.extend(pod_update(new, old));
        }
        let rejected = match (meta::annotation(new, MIRROR), meta::annotation(old, MIRROR)) {
            (new, old) if new == old => None,
            (_, None) => Some("may not add mirror pod annotation"),
            _ => Some("may not remove or update mirror pod annotation"),
        };
        let path = Path::new("metadata.annotations");
        errors.extend(rejected.map(|detail| Error::forbidden(&path.key(MIRROR), detail)));
        errors
    }

    fn validate_status_update(&self, new: &Value, _old: &Value) -> Vec<Error> {
        pod_status::device_claims(new)
    }

    fn is_graceful(&self) -> bool {
        true
    }

    /// As upstream: the requested period, or else that of the pod. Zero for pods that are not
    /// assigned to a node or have finished.
    fn grace_period(&self, object: &Value, requested: Option<i64>) -> i64 {
        let spec = &object["spec"];
        let period = requested.or_else(|| spec["terminationGracePeriodSeconds"].as_i64()).unwrap_or(30);
        let unbound = spec["nodeName"].as_str().unwrap_or_default().is_empty();
        let finished = matches!(object["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
        match period {
            _ if unbound || finished => 0,
            // A negative period means the minimum of one second.
            period if period < 0 => 1,
            period => period,
        }
    }
}
