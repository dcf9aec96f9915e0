//! Validation of pods and pod templates: the required and the immutable fields, in upstream's words.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::quantity::Quantity;
use berth_apimachinery::{names, validation};
use serde_json::{Map, Value};

/// Restart policies of pods.
const RESTART_POLICIES: [&str; 3] = ["Always", "Never", "OnFailure"];
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const MESSAGE_POLICIES: [&str; 2] = ["File", "FallbackToLogsOnError"];
/// What a container that was not there from the start cannot have.
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

/// Checks a PodSpec.
pub(crate) fn pod_spec(spec: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let containers = spec["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    if containers.is_empty() {
        errors.push(Error::required(&path.child("containers"), ""));
    }
    let volumes: Vec<&str> =
        spec["volumes"].as_array().into_iter().flatten().filter_map(|volume| volume["name"].as_str()).collect();
    check_volumes(&spec["volumes"], &path.child("volumes"), &mut errors);
    let mut seen: Vec<String> = Vec::new();
    for kind in ["containers", "initContainers"] {
        let list = path.child(kind);
        for (index, container) in spec[kind].as_array().into_iter().flatten().enumerate() {
            check_container(container, &volumes, &mut seen, &list.index(index), &mut errors);
        }
    }
    let ephemeral = path.child("ephemeralContainers");
    for (index, container) in spec["ephemeralContainers"].as_array().into_iter().flatten().enumerate() {
        let at = ephemeral.index(index);
        check_container(container, &volumes, &mut seen, &at, &mut errors);
        check_ephemeral(container, containers, &at, &mut errors);
    }
    let policy = spec["restartPolicy"].as_str().unwrap_or_default();
    if !RESTART_POLICIES.contains(&policy) {
        errors.push(Error::not_supported(&path.child("restartPolicy"), policy, &RESTART_POLICIES));
    }
    if let Some(seconds) = spec["terminationGracePeriodSeconds"].as_i64().filter(|seconds| *seconds < 0) {
        let at = path.child("terminationGracePeriodSeconds");
        errors.push(Error::invalid(&at, seconds, "must be greater than or equal to 0"));
    }
    if let Some(seconds) = spec["activeDeadlineSeconds"].as_i64().filter(|seconds| *seconds < 1) {
        let detail = "must be between 1 and 2147483647, inclusive";
        errors.push(Error::invalid(&path.child("activeDeadlineSeconds"), seconds, detail));
    }
    errors.extend(validation::validate_labels(&spec["nodeSelector"], &path.child("nodeSelector")));
    for field in ["nodeName", "serviceAccountName", "priorityClassName"] {
        if let Some(name) = spec[field].as_str().filter(|name| !name.is_empty()) {
            for message in names::is_dns1123_subdomain(name) {
                errors.push(Error::invalid(&path.child(field), name, message));
            }
        }
    }
    for field in ["hostname", "subdomain"] {
        if let Some(name) = spec[field].as_str().filter(|name| !name.is_empty()) {
            for message in names::is_dns1123_label(name) {
                errors.push(Error::invalid(&path.child(field), name, message));
            }
        }
    }
    check_tolerations(&spec["tolerations"], &path.child("tolerations"), &mut errors);
    let gates = path.child("schedulingGates");
    for (index, gate) in spec["schedulingGates"].as_array().into_iter().flatten().enumerate() {
        let name = gate["name"].as_str().unwrap_or_default();
        for message in names::is_qualified_name(name) {
            errors.push(Error::invalid(&gates.index(index).child("name"), name, message));
        }
    }
    errors
}

fn check_volumes(volumes: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, volume) in volumes.as_array().into_iter().flatten().enumerate() {
        let at = path.index(index);
        let name = volume["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.push(Error::required(&at.child("name"), ""));
            continue;
        }
        for message in names::is_dns1123_label(name) {
            errors.push(Error::invalid(&at.child("name"), name, message));
        }
        if seen.contains(&name) {
            errors.push(Error::duplicate(&at.child("name"), name));
        }
        seen.push(name);
    }
}

fn check_container(
    container: &Value,
    volumes: &[&str],
    seen: &mut Vec<String>,
    path: &Path<'_>,
    errors: &mut Vec<Error>,
) {
    let name = container["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        errors.push(Error::required(&path.child("name"), ""));
    } else {
        for message in names::is_dns1123_label(name) {
            errors.push(Error::invalid(&path.child("name"), name, message));
        }
        if seen.iter().any(|other| other == name) {
            errors.push(Error::duplicate(&path.child("name"), name));
        }
        seen.push(name.to_owned());
    }
    if container["image"].as_str().unwrap_or_default().is_empty() {
        errors.push(Error::required(&path.child("image"), ""));
    }
    let env = path.child("env");
    for (index, variable) in container["env"].as_array().into_iter().flatten().enumerate() {
        let name = variable["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.push(Error::required(&env.index(index).child("name"), ""));
        } else {
            for message in names::is_env_var_name(name) {
                errors.push(Error::invalid(&env.index(index).child("name"), name, message));
            }
        }
    }
    let mounts = path.child("volumeMounts");
    for (index, mount) in container["volumeMounts"].as_array().into_iter().flatten().enumerate() {
        let name = mount["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.push(Error::required(&mounts.index(index).child("name"), ""));
        } else if !volumes.contains(&name) {
            errors.push(Error::not_found(&mounts.index(index).child("name"), name));
        }
        if mount["mountPath"].as_str().unwrap_or_default().is_empty() {
            errors.push(Error::required(&mounts.index(index).child("mountPath"), ""));
        }
    }
    for (field, known) in [("imagePullPolicy", &PULL_POLICIES[..]), ("terminationMessagePolicy", &MESSAGE_POLICIES)] {
        if let Some(policy) = container[field].as_str().filter(|policy| !known.contains(policy)) {
            errors.push(Error::not_supported(&path.child(field), policy, known));
        }
    }
    check_resources(&container["resources"], &path.child("resources"), errors);
}

fn check_ephemeral(container: &Value, others: &[Value], path: &Path<'_>, errors: &mut Vec<Error>) {
    if let Some(target) = container["targetContainerName"].as_str().filter(|target| !target.is_empty())
        && !others.iter().any(|other| other["name"] == target)
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
            errors.push(Error::forbidden(&path.child(field), "cannot be set for an Ephemeral Container"));
        }
    }
}

fn check_resources(resources: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let empty = Map::new();
    let list = |field: &str| resources[field].as_object().unwrap_or(&empty);
    for field in ["limits", "requests"] {
        let at = path.child(field);
        for (name, amount) in list(field) {
            let key = at.key(name);
            for message in names::is_qualified_name(name) {
                errors.push(Error::invalid(&key, name.as_str(), message));
            }
            let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
            match Quantity::parse(&text) {
                Ok(_) if text.trim().starts_with('-') => {
                    errors.push(Error::invalid(&key, text.as_str(), "must be greater than or equal to 0"));
                }
                Ok(_) => {}
                Err(error) => errors.push(Error::invalid(&key, text.as_str(), error.to_string())),
            }
        }
    }
    let requests = path.child("requests");
    for (name, request) in list("requests") {
        let Some(limit) = list("limits").get(name) else {
            if is_extended(name) {
                let detail = "Limit must be set for non overcommitable resources";
                errors.push(Error::required(&path.child("limits"), detail));
            }
            continue;
        };
        let parse = |value: &Value| Quantity::parse(value.as_str().unwrap_or_default()).ok();
        let (Some(request), Some(limit)) = (parse(request), parse(limit)) else { continue };
        let shown = request.to_string();
        if is_extended(name) && request != limit {
            let detail = format!("must be equal to {name} limit of {limit}");
            errors.push(Error::invalid(&requests, shown, detail));
        } else if request > limit {
            let detail = format!("must be less than or equal to {name} limit of {limit}");
            errors.push(Error::invalid(&requests, shown, detail));
        }
    }
}

/// Resources named `domain/name` outside kubernetes.io are counted in whole devices and never overcommitted.
pub(crate) fn is_extended(name: &str) -> bool {
    name.split_once('/').is_some_and(|(domain, _)| !(domain == "kubernetes.io" || domain.ends_with(".kubernetes.io")))
}

fn check_tolerations(tolerations: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    for (index, toleration) in tolerations.as_array().into_iter().flatten().enumerate() {
        let at = path.index(index);
        let text = |field: &str| toleration[field].as_str().unwrap_or_default();
        if !text("key").is_empty() {
            for message in names::is_qualified_name(text("key")) {
                errors.push(Error::invalid(&at.child("key"), text("key"), message));
            }
        } else if text("operator") != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(Error::invalid(&at.child("operator"), text("operator"), detail));
        }
        match text("operator") {
            "" | "Equal" => {}
            "Exists" if text("value").is_empty() => {}
            "Exists" => {
                let detail = "value must be empty when `operator` is 'Exists'";
                errors.push(Error::invalid(&at.child("operator"), "Exists", detail));
            }
            other => errors.push(Error::not_supported(&at.child("operator"), other, &["Equal", "Exists"])),
        }
        if !matches!(text("effect"), "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            let known = ["NoExecute", "NoSchedule", "PreferNoSchedule"];
            errors.push(Error::not_supported(&at.child("effect"), text("effect"), &known));
        }
        if !toleration["tolerationSeconds"].is_null() && text("effect") != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(Error::invalid(&at.child("effect"), text("effect"), detail));
        }
    }
}

/// Checks what an update changes in a pod's specification: images, deadlines, added tolerations; while it is gated
/// also narrower node selection and fewer gates.
pub(crate) fn pod_update(new: &Value, old: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    let (new_spec, old_spec) = (&new["spec"], &old["spec"]);
    let gated = old_spec["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty());
    let gates = |spec: &Value| spec["schedulingGates"].as_array().cloned().unwrap_or_default();
    if let Some(added) = gates(new_spec).iter().find(|gate| !gates(old_spec).contains(gate)) {
        let detail = format!(
            "only deletion is allowed, but found new scheduling gate '{}'",
            added["name"].as_str().unwrap_or_default()
        );
        errors.push(Error::forbidden(&path.child("schedulingGates"), detail));
    }
    let tolerations = |spec: &Value| spec["tolerations"].as_array().cloned().unwrap_or_default();
    let kept = |old: &Value| {
        tolerations(new_spec).iter().any(|new| {
            let mut new = new.clone();
            let mut old = old.clone();
            // The time a pod stays may be changed.
            for toleration in [&mut new, &mut old] {
                if let Some(map) = toleration.as_object_mut() {
                    map.remove("tolerationSeconds");
                }
            }
            new == old
        })
    };
    if !tolerations(old_spec).iter().all(kept) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(Error::forbidden(&path.child("tolerations"), detail));
    }
    // Everything that may differ is made equal; what is left must be.
    let mut munged = new_spec.clone();
    let fields = munged.as_object_mut();
    let Some(fields) = fields else { return errors };
    let mut free = vec!["activeDeadlineSeconds", "tolerations", "schedulingGates", "terminationGracePeriodSeconds"];
    if gated {
        free.extend(["nodeSelector", "affinity"]);
        check_narrower(new_spec, old_spec, &path, &mut errors);
    }
    for field in free {
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
    if munged != *old_spec {
        let detail = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
        errors.push(Error::forbidden(&path, detail));
    }
    errors
}

/// A gated pod's node selector may only grow.
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
}
