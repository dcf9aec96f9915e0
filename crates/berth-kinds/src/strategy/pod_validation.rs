//! Validation of pods and pod templates: required and immutable fields, with upstream's messages.

use std::collections::HashSet;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::{names, validation};
use serde_json::{Map, Value};

use super::pod_container::{Pod, container, ephemeral_container, host_ports, init_container};
use super::rules::{items, named, supported, text};
use super::{pod_placement, pod_security, pod_volumes, same_as};

const RESTART_POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];
const DNS_POLICIES: [&str; 4] = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
const NOT_FOR_EPHEMERAL: &str = "cannot be set for an Ephemeral Container";
/// Fields that an ephemeral container cannot have.
const NOT_EPHEMERAL: [&str; 8] = [
    "ports",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "resources",
    "resizePolicy",
    "restartPolicy",
];

/// The owner of a PodSpec.
#[derive(Clone, Copy)]
pub(crate) enum SpecOwner<'a> {
    /// A pod template, in which some required fields may be unset.
    Template,
    /// The pod with this name.
    Pod(&'a str),
}

/// Validates a PodTemplateSpec.
pub(crate) fn pod_template(template: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    // Upstream's error paths of labels and annotations omit `metadata`.
    let metadata = &template["metadata"];
    errors.extend(validation::validate_labels(&metadata["labels"], &path.child("labels")));
    errors.extend(validation::validate_annotations(&metadata["annotations"], &path.child("annotations")));
    let spec = path.child("spec");
    errors.extend(pod_spec(&template["spec"], SpecOwner::Template, &spec));
    if !items(&template["spec"]["ephemeralContainers"]).is_empty() {
        let detail = "ephemeral containers not allowed in pod template";
        errors.push(Error::forbidden(&spec.child("ephemeralContainers"), detail));
    }
    errors
}

/// Validates a PodSpec.
pub(crate) fn pod_spec(spec: &Value, of: SpecOwner<'_>, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    pod_volumes::volumes(&spec["volumes"], of, &path.child("volumes"), &mut errors);
    resource_claims(&spec["resourceClaims"], &path.child("resourceClaims"), &mut errors);
    containers(spec, of, path, &mut errors);
    let policy = text(spec, "restartPolicy");
    if policy.is_empty() {
        errors.push(Error::required(&path.child("restartPolicy"), ""));
    } else {
        supported(spec, "restartPolicy", &RESTART_POLICIES, path, &mut errors);
    }
    supported(spec, "dnsPolicy", &DNS_POLICIES, path, &mut errors);
    errors.extend(validation::validate_labels(&spec["nodeSelector"], &path.child("nodeSelector")));
    pod_security::pod(spec, matches!(of, SpecOwner::Pod(_)), path, &mut errors);
    pod_placement::affinity(&spec["affinity"], &path.child("affinity"), &mut errors);
    pod_security::dns(spec, path, &mut errors);
    pod_placement::gates(spec, path, &mut errors);
    let constraints = path.child("topologySpreadConstraints");
    pod_placement::spread(&spec["topologySpreadConstraints"], &constraints, &mut errors);
    for (field, check) in [
        ("serviceAccountName", names::is_dns1123_subdomain as fn(&str) -> Vec<String>),
        ("nodeName", names::is_dns1123_subdomain),
    ] {
        if !text(spec, field).is_empty() {
            named(text(spec, field), check, &path.child(field), &mut errors);
        }
    }
    if let Some(seconds) = spec["activeDeadlineSeconds"].as_i64().filter(|n| !(1..=i64::from(i32::MAX)).contains(n)) {
        let detail = "must be between 1 and 2147483647, inclusive";
        errors.push(Error::invalid(&path.child("activeDeadlineSeconds"), seconds, detail));
    }
    for (field, check) in
        [("hostname", names::is_dns1123_label as fn(&str) -> Vec<String>), ("subdomain", names::is_dns1123_label)]
    {
        if !text(spec, field).is_empty() {
            named(text(spec, field), check, &path.child(field), &mut errors);
        }
    }
    if let Some(name) = spec["hostnameOverride"].as_str() {
        named(name, names::is_dns1123_subdomain, &path.child("hostnameOverride"), &mut errors);
    }
    pod_placement::tolerations(&spec["tolerations"], &path.child("tolerations"), &mut errors);
    host_aliases(&spec["hostAliases"], &path.child("hostAliases"), &mut errors);
    for field in ["priorityClassName", "runtimeClassName"] {
        if !text(spec, field).is_empty() {
            named(text(spec, field), names::is_dns1123_subdomain, &path.child(field), &mut errors);
        }
    }
    supported(spec, "preemptionPolicy", &["PreemptLowerPriority", "Never"], path, &mut errors);
    let system = text(&spec["os"], "name");
    if !spec["os"].is_null() && !matches!(system, "linux" | "windows") {
        errors.push(Error::not_supported(&path.child("os"), system, &["linux", "windows"]));
    }
    if !text(spec, "nodeName").is_empty() && !items(&spec["schedulingGates"]).is_empty() {
        let detail = "cannot be set until all schedulingGates have been cleared";
        errors.push(Error::forbidden(&path.child("nodeName"), detail));
    }
    errors
}

fn containers(spec: &Value, of: SpecOwner<'_>, path: &Path<'_>, errors: &mut Vec<Error>) {
    let mut pod = Pod::new(spec, of);
    let main = items(&spec["containers"]);
    if main.is_empty() {
        errors.push(Error::required(&path.child("containers"), ""));
    }
    let targets: HashSet<&str> = main.iter().map(|container| text(container, "name")).collect();
    type Check = fn(&Value, &mut Pod<'_>, &Path<'_>, &mut Vec<Error>);
    let lists: [(&str, Check); 3] =
        [("containers", container), ("initContainers", init_container), ("ephemeralContainers", ephemeral_container)];
    for (kind, check) in lists {
        let list = path.child(kind);
        for (index, container) in items(&spec[kind]).iter().enumerate() {
            let at = list.index(index);
            check(container, &mut pod, &at, errors);
            if kind == "ephemeralContainers" {
                check_ephemeral(container, &targets, &at, errors);
            }
        }
        host_ports(&spec[kind], &list, errors);
    }
}

/// Validates the resource claims of a pod.
fn resource_claims(claims: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, claim) in items(claims).iter().enumerate() {
        let at = path.index(index);
        let (name, name_at) = (text(claim, "name"), at.child("name"));
        if name.is_empty() {
            errors.push(Error::required(&name_at, ""));
        } else if seen.contains(name) {
            errors.push(Error::duplicate(&name_at, name));
        } else {
            named(name, names::is_dns1123_label, &name_at, errors);
            seen.insert(name);
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        let given = sources.iter().filter(|field| !claim[**field].is_null()).count();
        if given != 1 {
            let detail = match given {
                0 => "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
                _ => "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            };
            errors.push(Error::invalid(&at, claim.clone(), detail));
        }
        for field in sources {
            if let Some(name) = claim[field].as_str() {
                named(name, names::is_dns1123_subdomain, &at.child(field), errors);
            }
        }
    }
}

fn host_aliases(aliases: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    for (index, alias) in items(aliases).iter().enumerate() {
        let at = path.index(index);
        let ip = text(alias, "ip");
        // Addresses in a non-canonical form are valid, as upstream.
        for message in names::is_ip(ip).into_iter().filter(|message| message.starts_with("must be a valid")) {
            errors.push(Error::invalid(&at.child("ip"), ip, message));
        }
        let names_at = at.child("hostnames");
        for (index, name) in items(&alias["hostnames"]).iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            named(name, names::is_dns1123_subdomain, &names_at.index(index), errors);
        }
    }
}

fn check_ephemeral(container: &Value, others: &HashSet<&str>, path: &Path<'_>, errors: &mut Vec<Error>) {
    if let Some(target) = container["targetContainerName"].as_str().filter(|target| !target.is_empty())
        && !others.contains(target)
    {
        errors.push(Error::not_found(&path.child("targetContainerName"), target));
    }
    for field in NOT_EPHEMERAL {
        let is_empty = match &container[field] {
            Value::Null => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        if !is_empty {
            errors.push(Error::forbidden(&path.child(field), NOT_FOR_EPHEMERAL));
        }
    }
    let mounts = path.child("volumeMounts");
    for (index, mount) in items(&container["volumeMounts"]).iter().enumerate() {
        for field in ["subPath", "subPathExpr"] {
            if !text(mount, field).is_empty() {
                errors.push(Error::forbidden(&mounts.index(index).child(field), NOT_FOR_EPHEMERAL));
            }
        }
    }
}

/// Validates an update of a pod's specification. It may change images, set or shorten the deadline,
/// and add tolerations. While the pod has scheduling gates, it may also remove gates and narrow the
/// node selection.
pub(crate) fn pod_update(new: &Value, old: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    let (new_spec, old_spec) = (&new["spec"], &old["spec"]);
    let gated = old_spec["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty());
    let had: HashSet<&str> = items(&old_spec["schedulingGates"]).iter().map(|gate| text(gate, "name")).collect();
    let gates = path.child("schedulingGates");
    for (index, gate) in items(&new_spec["schedulingGates"]).iter().enumerate() {
        let (at, added) = (gates.index(index), text(gate, "name"));
        if !had.contains(added) {
            let detail = format!("only deletion is allowed, but found new scheduling gate '{added}'");
            errors.push(Error::forbidden(&at.child("name"), detail));
        }
    }
    // All fields except `tolerationSeconds`, which may change.
    fn tolerated(toleration: &Value) -> [&str; 4] {
        ["key", "operator", "value", "effect"].map(|field| text(toleration, field))
    }
    let tolerations: HashSet<[&str; 4]> = items(&new_spec["tolerations"]).iter().map(tolerated).collect();
    if !items(&old_spec["tolerations"]).iter().all(|old| tolerations.contains(&tolerated(old))) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(Error::forbidden(&path.child("tolerations"), detail));
    }
    for kind in ["containers", "initContainers"] {
        if items(&new_spec[kind]).len() != items(&old_spec[kind]).len() {
            let detail = "pod updates may not add or remove containers";
            errors.push(Error::forbidden(&path.child(kind), detail));
            return errors;
        }
    }
    // All allowed changes are reverted in a copy, which must then equal the old specification.
    let mut reverted = new_spec.clone();
    let fields = reverted.as_object_mut();
    let Some(fields) = fields else { return errors };
    deadline_update(&new_spec["activeDeadlineSeconds"], &old_spec["activeDeadlineSeconds"], &path, &mut errors);
    let mut mutable = vec!["activeDeadlineSeconds", "tolerations", "schedulingGates"];
    let period = |spec: &Value| spec["terminationGracePeriodSeconds"].as_i64();
    if period(old_spec).is_some_and(|seconds| seconds < 0) && period(new_spec) == Some(1) {
        mutable.push("terminationGracePeriodSeconds");
    }
    if gated {
        mutable.push("nodeSelector");
        check_narrower(new_spec, old_spec, &path, &mut errors);
        adopt_node_affinity(fields, &old_spec["affinity"]);
    }
    for field in mutable {
        match old_spec.get(field) {
            Some(value) => fields.insert(field.to_owned(), value.clone()),
            None => fields.remove(field),
        };
    }
    for kind in ["containers", "initContainers"] {
        let old_list = old_spec[kind].as_array();
        let new_list = fields.get_mut(kind).and_then(Value::as_array_mut);
        if let (Some(new_list), Some(old_list)) = (new_list, old_list) {
            for (new, old) in new_list.iter_mut().zip(old_list) {
                new["image"] = old["image"].clone();
            }
        }
    }
    if !same_as("io.k8s.api.core.v1.PodSpec", &reverted, old_spec) {
        let detail = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
        errors.push(Error::forbidden(&path, detail));
    }
    errors
}

/// Validates that a deadline is set or shortened, not extended or removed.
fn deadline_update(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let path = path.child("activeDeadlineSeconds");
    match (new.as_i64(), old.as_i64()) {
        (Some(seconds), _) if !(0..=i64::from(i32::MAX)).contains(&seconds) => {
            errors.push(Error::invalid(&path, seconds, "must be between 0 and 2147483647, inclusive"));
        }
        (Some(seconds), Some(before)) if seconds > before => {
            errors.push(Error::invalid(&path, seconds, "must be less than or equal to previous value"));
        }
        (None, Some(_)) => {
            errors.push(Error::invalid(&path, Value::Null, "must not update from a positive integer to nil value"));
        }
        _ => {}
    }
}

/// Validates that the node selection of a gated pod only becomes narrower.
fn check_narrower(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let grown = old["nodeSelector"]
        .as_object()
        .into_iter()
        .flatten()
        .all(|(key, value)| new["nodeSelector"].get(key) == Some(value));
    if !grown {
        let detail = "only additions are allowed";
        errors.push(Error::invalid(&path.child("nodeSelector"), new["nodeSelector"].clone(), detail));
    }
    let required = |spec: &Value| spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"].clone();
    let (before, after) = (required(old), required(new));
    let (had, has) = (items(&before), items(&after));
    if had.is_empty() {
        return;
    }
    let at = path.child("affinity");
    let at = at.child("nodeAffinity");
    let at = at.child(REQUIRED);
    let at = at.child("nodeSelectorTerms");
    if had.len() != has.len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.push(Error::invalid(&at, after.clone(), detail));
        return;
    }
    for (index, (old, new)) in had.iter().zip(has).enumerate() {
        let keeps = |field: &str| items(&old[field]).iter().all(|item| items(&new[field]).contains(item));
        if !keeps("matchExpressions") || !keeps("matchFields") {
            let detail = "only additions are allowed (no mutations or deletions)";
            errors.push(Error::invalid(&at.index(index), new.clone(), detail));
        }
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// Replaces the node affinity of a specification with that of `old`. Removes an affinity that is
/// empty afterwards, unless `old` is an object.
fn adopt_node_affinity(spec: &mut Map<String, Value>, old: &Value) {
    let mut affinity = match spec.remove("affinity") {
        Some(Value::Object(affinity)) => affinity,
        _ => Map::new(),
    };
    match old.get("nodeAffinity") {
        Some(nodes) => affinity.insert("nodeAffinity".to_owned(), nodes.clone()),
        None => affinity.remove("nodeAffinity"),
    };
    if !affinity.is_empty() || old.is_object() {
        spec.insert("affinity".to_owned(), Value::Object(affinity));
    }
}
