//! Conversion of Kueue's objects between v1beta1 and v1beta2, as pure functions on JSON values.
//!
//! Conversion works on JSON values instead of types: fields that this crate does not know
//! (annotations, fields of later versions) are kept, and only fields that the versions spell
//! differently are rewritten. Fields that only one version has are dropped, as upstream drops them;
//! all other fields survive a round trip. Defaults are not applied; the API server applies them
//! after conversion.

mod topology;

use serde_json::{Map, Value, json};

use super::constants::{
    GROUP, POD_PRIORITY_CLASS_GROUP, POD_PRIORITY_CLASS_KIND, POD_PRIORITY_CLASS_SOURCE, WORKLOAD_PRIORITY_CLASS_GROUP,
    WORKLOAD_PRIORITY_CLASS_KIND, WORKLOAD_PRIORITY_CLASS_SOURCE,
};

/// The kinds that [`convert`] supports, which are all of Kueue's.
pub const KINDS: &[&str] = &[
    "AdmissionCheck",
    "ClusterQueue",
    "Cohort",
    "LocalQueue",
    "MultiKueueCluster",
    "MultiKueueConfig",
    "ProvisioningRequestConfig",
    "ResourceFlavor",
    "Topology",
    "Workload",
    "WorkloadPriorityClass",
];

/// Why an object cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    /// The object is not of Kueue's group, or its version does not exist.
    #[error(
        "apiVersion: {observed:?} cannot be converted to {wanted:?}, expected kueue.x-k8s.io/v1beta1 or kueue.x-k8s.io/v1beta2"
    )]
    Version {
        /// `apiVersion` of the object.
        observed: String,
        /// The requested version.
        wanted: String,
    },
    /// The kind is not one of Kueue's.
    #[error("kind: {observed:?} is not a kind of kueue.x-k8s.io")]
    Kind {
        /// `kind` of the object.
        observed: String,
    },
    /// The other version cannot represent a field's value.
    #[error("{field}: {detail}")]
    Field {
        /// Path of the field.
        field: String,
        /// The expected and the observed value.
        detail: String,
    },
}

impl ConversionError {
    fn field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Field { field: field.into(), detail: detail.into() }
    }
}

/// The API version to which an object is converted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    V1beta1,
    V1beta2,
}

/// Converts the object to the requested version: `v1beta1` or `v1beta2`, with or without its group.
///
/// # Errors
/// A version or the kind is not one of Kueue's, or a topology assignment is inconsistent. The error
/// contains the field path.
pub fn convert(mut object: Value, to_version: &str) -> Result<Value, ConversionError> {
    let observed = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
    let to_version = to_version.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix('/')).unwrap_or(to_version);
    let unknown = || ConversionError::Version { observed: observed.clone(), wanted: to_version.to_owned() };
    let to = match to_version {
        "v1beta1" => To::V1beta1,
        "v1beta2" => To::V1beta2,
        _ => return Err(unknown()),
    };
    let from = match observed.split_once('/') {
        Some((GROUP, "v1beta1")) => To::V1beta1,
        Some((GROUP, "v1beta2")) => To::V1beta2,
        _ => return Err(unknown()),
    };
    if from == to {
        return Ok(object);
    }
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    let root = object.as_object_mut().ok_or_else(unknown)?;
    match kind.as_str() {
        "ClusterQueue" => cluster_queue(root, to),
        "Cohort" => remove(root, &["status", "fairSharing"], &["admissionFairSharingStatus"], to == To::V1beta2),
        "LocalQueue" => local_queue(root, to),
        "Workload" => workload(root, to)?,
        "AdmissionCheck" => remove(root, &["spec"], &["retryDelayMinutes"], to == To::V1beta2),
        "MultiKueueCluster" => multikueue_cluster(root, to),
        "MultiKueueConfig" => remove(root, &["spec"], &["quotaManagement"], to == To::V1beta1),
        "ProvisioningRequestConfig" | "ResourceFlavor" | "Topology" | "WorkloadPriorityClass" => {}
        _ => return Err(ConversionError::Kind { observed: kind }),
    }
    root.insert("apiVersion".into(), format!("{GROUP}/{to_version}").into());
    Ok(object)
}

/// The object at a path of keys, if every step is an object.
fn at<'a>(root: &'a mut Map<String, Value>, path: &[&str]) -> Option<&'a mut Map<String, Value>> {
    path.iter().try_fold(root, |object, key| object.get_mut(*key)?.as_object_mut())
}

/// Removes keys of the object at a path if the condition holds.
fn remove(root: &mut Map<String, Value>, path: &[&str], keys: &[&str], condition: bool) {
    if let (true, Some(object)) = (condition, at(root, path)) {
        for key in keys {
            object.remove(*key);
        }
    }
}

/// Renames a field.
fn rename(object: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = object.remove(from) {
        object.insert(to.to_owned(), value);
    }
}

fn is_empty_string(value: Option<&Value>) -> bool {
    value.and_then(Value::as_str).is_none_or(str::is_empty)
}

fn cluster_queue(root: &mut Map<String, Value>, to: To) {
    if let Some(spec) = at(root, &["spec"]) {
        match to {
            To::V1beta1 => {
                rename(spec, "cohortName", "cohort");
                spec.remove("concurrentAdmissionPolicy");
            }
            To::V1beta2 => {
                rename(spec, "cohort", "cohortName");
                checks_to_strategy(spec);
                if let Some(fungibility) = at(spec, &["flavorFungibility"]) {
                    for (field, old) in [("whenCanBorrow", "Borrow"), ("whenCanPreempt", "Preempt")] {
                        if fungibility.get(field).is_some_and(|value| value == old) {
                            fungibility.insert(field.into(), "MayStopSearch".into());
                        }
                    }
                }
            }
        }
    }
    if to == To::V1beta2 {
        remove(root, &["status"], &["pendingWorkloadsStatus"], true);
        remove(root, &["status", "fairSharing"], &["admissionFairSharingStatus"], true);
    }
}

/// Converts the plain list of checks to rules without flavors, which are equivalent. If a queue has
/// both, which validation forbids, its rules are extended by the checks they lack.
fn checks_to_strategy(spec: &mut Map<String, Value>) {
    let Some(Value::Array(checks)) = spec.remove("admissionChecks") else { return };
    if checks.is_empty() {
        return;
    }
    let strategy = spec.entry("admissionChecksStrategy").or_insert_with(|| json!({}));
    let Some(strategy) = strategy.as_object_mut() else { return };
    if let Some(rules) = strategy.entry("admissionChecks").or_insert_with(|| json!([])).as_array_mut() {
        for check in checks {
            if !rules.iter().any(|rule| rule.get("name") == Some(&check)) {
                rules.push(json!({ "name": check }));
            }
        }
    }
}

fn local_queue(root: &mut Map<String, Value>, to: To) {
    let Some(status) = at(root, &["status"]) else { return };
    match to {
        To::V1beta1 => rename(status, "flavorsUsage", "flavorUsage"),
        To::V1beta2 => {
            rename(status, "flavorUsage", "flavorsUsage");
            status.remove("flavors");
        }
    }
}

fn multikueue_cluster(root: &mut Map<String, Value>, to: To) {
    match to {
        To::V1beta1 => {
            // v1beta1 requires the field, so a cluster without a kubeconfig has an empty one.
            let spec = root.entry("spec").or_insert_with(|| json!({}));
            let Some(spec) = spec.as_object_mut() else { return };
            let source = spec.remove("clusterSource").unwrap_or_default();
            let config =
                source.get("kubeConfig").cloned().unwrap_or_else(|| json!({ "location": "", "locationType": "" }));
            spec.insert("kubeConfig".into(), config);
            if let Some(profile) = source.get("clusterProfileRef") {
                spec.insert("clusterProfileRef".into(), profile.clone());
            }
        }
        To::V1beta2 => {
            let Some(spec) = at(root, &["spec"]) else { return };
            let mut source = Map::new();
            if let Some(config) = spec.remove("kubeConfig").filter(|config| !is_empty_string(config.get("location"))) {
                source.insert("kubeConfig".into(), config);
            }
            if let Some(profile) = spec.remove("clusterProfileRef") {
                source.insert("clusterProfileRef".into(), profile);
            }
            if !source.is_empty() {
                spec.insert("clusterSource".into(), source.into());
            } else if spec.is_empty() {
                root.remove("spec");
            }
        }
    }
}

fn workload(root: &mut Map<String, Value>, to: To) -> Result<(), ConversionError> {
    if let Some(spec) = at(root, &["spec"]) {
        match to {
            To::V1beta1 => {
                priority_class_from_ref(spec);
                spec.remove("preemptionGates");
                for pod_set in spec.get_mut("podSets").and_then(Value::as_array_mut).into_iter().flatten() {
                    if let Some(request) = pod_set.get_mut("topologyRequest").and_then(Value::as_object_mut) {
                        request.remove("podsetSliceRequiredTopologyConstraints");
                    }
                }
            }
            To::V1beta2 => priority_class_to_ref(spec),
        }
    }
    let Some(status) = at(root, &["status"]) else { return Ok(()) };
    const OLD_TIME: &str = "accumulatedPastExexcutionTimeSeconds";
    const TIME: &str = "accumulatedPastExecutionTimeSeconds";
    match to {
        To::V1beta1 => {
            rename(status, TIME, OLD_TIME);
            status.remove("preemptionGates");
        }
        To::V1beta2 => rename(status, OLD_TIME, TIME),
    }
    let assignments = at(status, &["admission"]).and_then(|admission| admission.get_mut("podSetAssignments"));
    for (index, assignment) in assignments.and_then(Value::as_array_mut).into_iter().flatten().enumerate() {
        let Some(topology) = assignment.get_mut("topologyAssignment").filter(|topology| !topology.is_null()) else {
            continue;
        };
        let field = format!("status.admission.podSetAssignments[{index}].topologyAssignment");
        *topology = match to {
            To::V1beta1 => topology::flatten(topology, &field)?,
            To::V1beta2 => topology::compress(topology, &field)?,
        };
    }
    Ok(())
}

/// Converts name and source to one reference. A name without a source refers to a PriorityClass,
/// the only kind before sources existed.
fn priority_class_to_ref(spec: &mut Map<String, Value>) {
    let name = spec.remove("priorityClassName");
    let source = spec.remove("priorityClassSource");
    if is_empty_string(name.as_ref()) {
        return;
    }
    let (group, kind) = match source.as_ref().and_then(Value::as_str) {
        Some(WORKLOAD_PRIORITY_CLASS_SOURCE) => (WORKLOAD_PRIORITY_CLASS_GROUP, WORKLOAD_PRIORITY_CLASS_KIND),
        _ => (POD_PRIORITY_CLASS_GROUP, POD_PRIORITY_CLASS_KIND),
    };
    spec.insert("priorityClassRef".into(), json!({ "group": group, "kind": kind, "name": name }));
}

fn priority_class_from_ref(spec: &mut Map<String, Value>) {
    let Some(reference) = spec.remove("priorityClassRef").filter(|reference| !reference.is_null()) else { return };
    let source = match reference.get("group").and_then(Value::as_str) {
        Some(WORKLOAD_PRIORITY_CLASS_GROUP) => WORKLOAD_PRIORITY_CLASS_SOURCE,
        _ => POD_PRIORITY_CLASS_SOURCE,
    };
    if let Some(name) = reference.get("name") {
        spec.insert("priorityClassName".into(), name.clone());
    }
    spec.insert("priorityClassSource".into(), source.into());
}
