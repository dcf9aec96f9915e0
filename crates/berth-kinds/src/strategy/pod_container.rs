//! Containers: validation of ports, environment, mounts, devices, probes, hooks and resources.

use std::collections::{HashMap, HashSet};

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use berth_apimachinery::quantity::Quantity;
use serde_json::{Map, Value};

use super::pod_validation::SpecOwner;
use super::pod_volumes::{ENVIRONMENT_FIELDS, field_ref, resource_ref};
use super::rules::{items, named, no_backsteps, number, port, port_number, required, supported, text};
use super::{non_negative, pod_security};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const MESSAGE_POLICIES: [&str; 2] = ["File", "FallbackToLogsOnError"];
const PROPAGATIONS: [&str; 3] = ["Bidirectional", "HostToContainer", "None"];
const RESTARTS: [&str; 3] = ["Always", "Never", "OnFailure"];
/// Resources of containers, besides huge pages and extended resources.
const STANDARD: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];
/// Names without a domain that quotas, nodes or claims use.
const KNOWN: [&str; 16] = [
    "cpu",
    "ephemeral-storage",
    "memory",
    "configmaps",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.memory",
    "resourcequotas",
    "secrets",
    "services",
    "storage",
];
const NON_OVERCOMMITTED: &str = "Limit must be set for non overcommitable resources";
/// Sources of an environment variable, in the order of validation.
const FROM: [&str; 5] = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
/// Handlers of a probe or a hook, in the order of validation.
const HANDLERS: [&str; 5] = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];

/// The parts of a pod that the validation of its containers needs.
pub(super) struct Pod<'a> {
    spec: &'a Value,
    of: SpecOwner<'a>,
    /// Volumes by name; the first one if several have the same name.
    volumes: HashMap<&'a str, &'a Value>,
    /// Names of the containers that were validated so far.
    names: HashSet<String>,
}

impl<'a> Pod<'a> {
    pub(super) fn new(spec: &'a Value, of: SpecOwner<'a>) -> Self {
        let mut volumes = HashMap::new();
        for volume in items(&spec["volumes"]) {
            volumes.entry(text(volume, "name")).or_insert(volume);
        }
        volumes.remove("");
        Pod { spec, of, volumes, names: HashSet::new() }
    }

    fn volume(&self, name: &str) -> Option<&'a Value> {
        self.volumes.get(name).copied()
    }

    /// Records a container's name. Reports an error if another container has it.
    fn add_name(&mut self, name: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
        if !self.names.insert(name.to_owned()) {
            errors.push(Error::duplicate(&path.child("name"), name));
        }
    }

    /// Reports an error for whitespace around an image name. As upstream, templates are not
    /// checked.
    fn check_image(&self, container: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
        if let SpecOwner::Pod(_) = self.of {
            padded_image(container, path, errors);
        }
    }
}

/// The values of a field in the items of a list.
fn values_of<'a>(list: &'a Value, field: &str) -> HashSet<&'a str> {
    items(list).iter().map(|item| text(item, field)).collect()
}

/// Validates a regular container.
pub(super) fn container(container: &Value, pod: &mut Pod<'_>, path: &Path<'_>, errors: &mut Vec<Error>) {
    common(container, pod, path, errors);
    if !text(container, "name").is_empty() {
        pod.add_name(text(container, "name"), path, errors);
    }
    handlers(container, pod, path, errors);
    supported(container, "restartPolicy", &RESTARTS, path, errors);
    pod.check_image(container, path, errors);
}

/// Validates an init container. With `restartPolicy: Always` it is a sidecar.
pub(super) fn init_container(container: &Value, pod: &mut Pod<'_>, path: &Path<'_>, errors: &mut Vec<Error>) {
    common(container, pod, path, errors);
    if container["restartPolicy"] == "Always" {
        pod.add_name(text(container, "name"), path, errors);
        handlers(container, pod, path, errors);
    } else {
        supported(container, "restartPolicy", &RESTARTS, path, errors);
        pod.add_name(text(container, "name"), path, errors);
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if !container[field].is_null() {
                let detail = "may not be set for init containers without restartPolicy=Always";
                errors.push(Error::forbidden(&path.child(field), detail));
            }
        }
    }
    pod.check_image(container, path, errors);
}

/// Validates an ephemeral container.
pub(super) fn ephemeral_container(container: &Value, pod: &mut Pod<'_>, path: &Path<'_>, errors: &mut Vec<Error>) {
    common(container, pod, path, errors);
    pod.add_name(text(container, "name"), path, errors);
    pod.check_image(container, path, errors);
}

/// Reports an error if there is whitespace around the name of an image.
pub(super) fn padded_image(container: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let image = text(container, "image");
    if image.trim() != image {
        errors.push(Error::invalid(&path.child("image"), image, "must not have leading or trailing whitespace"));
    }
}

fn common(container: &Value, pod: &Pod<'_>, path: &Path<'_>, errors: &mut Vec<Error>) {
    if required(container, "name", path, errors) {
        named(text(container, "name"), names::is_dns1123_label, &path.child("name"), errors);
    }
    required(container, "image", path, errors);
    supported(container, "terminationMessagePolicy", &MESSAGE_POLICIES, path, errors);
    ports(&container["ports"], &path.child("ports"), errors);
    environment(&container["env"], &path.child("env"), errors);
    environment_from(&container["envFrom"], &path.child("envFrom"), errors);
    mounts(container, pod, path, errors);
    devices(container, pod, &path.child("volumeDevices"), errors);
    supported(container, "imagePullPolicy", &PULL_POLICIES, path, errors);
    resources(&container["resources"], &path.child("resources"), errors);
    resize_policy(&container["resizePolicy"], pod.spec, &path.child("resizePolicy"), errors);
    let host_users = pod.spec["hostUsers"] != false;
    pod_security::container(&container["securityContext"], host_users, &path.child("securityContext"), errors);
}

fn ports(ports: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, given) in items(ports).iter().enumerate() {
        let at = path.index(index);
        let name = text(given, "name");
        if !name.is_empty() {
            let before = errors.len();
            named(name, names::is_port_name, &at.child("name"), errors);
            if errors.len() == before && seen.contains(name) {
                errors.push(Error::duplicate(&at.child("name"), name));
            }
            seen.insert(name);
        }
        match number(given, "containerPort") {
            0 => errors.push(Error::required(&at.child("containerPort"), "")),
            number => port_number(number, &at.child("containerPort"), errors),
        }
        let host = number(given, "hostPort");
        if host != 0 {
            port_number(host, &at.child("hostPort"), errors);
        }
        if text(given, "protocol").is_empty() {
            errors.push(Error::required(&at.child("protocol"), ""));
        } else {
            supported(given, "protocol", &PROTOCOLS, &at, errors);
        }
    }
}

/// Validates that no two ports of the containers have the same host port.
pub(super) fn host_ports(containers: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let mut taken: HashSet<String> = HashSet::new();
    for (index, container) in items(containers).iter().enumerate() {
        let at = path.index(index);
        let list = at.child("ports");
        for (index, given) in items(&container["ports"]).iter().enumerate() {
            let host = number(given, "hostPort");
            if host == 0 {
                continue;
            }
            let place = format!("{}/{}/{host}", text(given, "protocol"), text(given, "hostIP"));
            if taken.contains(&place) {
                errors.push(Error::duplicate(&list.index(index).child("hostPort"), place.as_str()));
            }
            taken.insert(place);
        }
    }
}

fn environment(variables: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    for (index, variable) in items(variables).iter().enumerate() {
        let at = path.index(index);
        if required(variable, "name", &at, errors) {
            named(text(variable, "name"), names::is_env_var_name, &at.child("name"), errors);
        }
        if !variable["valueFrom"].is_null() {
            value_from(variable, &at.child("valueFrom"), errors);
        }
    }
}

fn value_from(variable: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let from = &variable["valueFrom"];
    let mut found = 0;
    for kind in FROM {
        let source = &from[kind];
        if source.is_null() {
            continue;
        }
        found += 1;
        let at = path.child(kind);
        match kind {
            "fieldRef" => field_ref(source, &ENVIRONMENT_FIELDS, &at, errors),
            "resourceFieldRef" => resource_ref(source, false, &at, errors),
            "configMapKeyRef" | "secretKeyRef" => {
                named(text(source, "name"), names::is_dns1123_subdomain, &at.child("name"), errors);
                if required(source, "key", &at, errors) {
                    named(text(source, "key"), names::is_config_map_key, &at.child("key"), errors);
                }
            }
            _ => {}
        }
    }
    let detail = match found {
        0 => "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        _ if !text(variable, "value").is_empty() => "may not be specified when `value` is not empty",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    errors.push(Error::invalid(path, "", detail));
}

fn environment_from(sources: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    for (index, source) in items(sources).iter().enumerate() {
        let at = path.index(index);
        if !text(source, "prefix").is_empty() {
            named(text(source, "prefix"), names::is_env_var_name, &at.child("prefix"), errors);
        }
        let mut found = 0;
        for kind in ["configMapRef", "secretRef"] {
            if source[kind].is_null() {
                continue;
            }
            found += 1;
            if required(&source[kind], "name", &at.child(kind), errors) {
                let name_at = at.child(kind);
                named(text(&source[kind], "name"), names::is_dns1123_subdomain, &name_at.child("name"), errors);
            }
        }
        match found {
            0 => errors.push(Error::invalid(path, "", "must specify one of: `configMapRef` or `secretRef`")),
            1 => {}
            _ => errors.push(Error::invalid(path, "", "may not have more than one field specified at a time")),
        }
    }
}

/// Validates volume mounts. Upstream's error paths of some fields omit the index of the mount.
fn mounts(container: &Value, pod: &Pod<'_>, path: &Path<'_>, errors: &mut Vec<Error>) {
    let list = path.child("volumeMounts");
    let devices = &container["volumeDevices"];
    let (device_names, device_paths) = (values_of(devices, "name"), values_of(devices, "devicePath"));
    let mut places: HashSet<&str> = HashSet::new();
    for (index, mount) in items(&container["volumeMounts"]).iter().enumerate() {
        let at = list.index(index);
        let (name, place) = (text(mount, "name"), text(mount, "mountPath"));
        required(mount, "name", &at, errors);
        if pod.volume(name).is_none() {
            errors.push(Error::not_found(&at.child("name"), name));
        }
        required(mount, "mountPath", &at, errors);
        if !places.insert(place) {
            errors.push(Error::invalid(&at.child("mountPath"), place, "must be unique"));
        }
        if device_names.contains(name) {
            errors.push(Error::invalid(&at.child("name"), name, "must not already exist in volumeDevices"));
        }
        if device_paths.contains(place) {
            let detail = "must not already exist as a path in volumeDevices";
            errors.push(Error::invalid(&at.child("mountPath"), place, detail));
        }
        let below = |field: &str, errors: &mut Vec<Error>| {
            let target = text(mount, field);
            if target.starts_with('/') {
                errors.push(Error::invalid(&list.child(field), target, "must be a relative path"));
            }
            no_backsteps(target, &list.child(field), errors);
        };
        below("subPath", errors);
        if !text(mount, "subPathExpr").is_empty() {
            if !text(mount, "subPath").is_empty() {
                let detail = "subPathExpr and subPath are mutually exclusive";
                errors.push(Error::invalid(&at.child("subPathExpr"), text(mount, "subPathExpr"), detail));
            }
            below("subPathExpr", errors);
        }
        supported(mount, "mountPropagation", &PROPAGATIONS, &list, errors);
        if mount["mountPropagation"] == "Bidirectional" && container["securityContext"]["privileged"] != true {
            let detail = "Bidirectional mount propagation is available only to privileged containers";
            errors.push(Error::forbidden(&list.child("mountPropagation"), detail));
        }
        recursive_read_only(mount, &list, errors);
    }
}

fn recursive_read_only(mount: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let at = path.child("recursiveReadOnly");
    match mount["recursiveReadOnly"].as_str() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if mount["readOnly"] != true {
                errors.push(Error::forbidden(&at, "may only be specified when readOnly is true"));
            }
            if !matches!(mount["mountPropagation"].as_str(), None | Some("None")) {
                let detail = "may only be specified when mountPropagation is None or not specified";
                errors.push(Error::forbidden(&at, detail));
            }
        }
        Some(other) => errors.push(Error::not_supported(&at, other, &["Disabled", "Enabled", "IfPossible"])),
    }
}

fn devices(container: &Value, pod: &Pod<'_>, path: &Path<'_>, errors: &mut Vec<Error>) {
    let mounts = &container["volumeMounts"];
    let (mount_names, mount_paths) = (values_of(mounts, "name"), values_of(mounts, "mountPath"));
    let (mut seen, mut places): (HashSet<&str>, HashSet<&str>) = (HashSet::new(), HashSet::new());
    for (index, device) in items(&container["volumeDevices"]).iter().enumerate() {
        let at = path.index(index);
        let (name, place) = (text(device, "name"), text(device, "devicePath"));
        let (name_at, place_at) = (at.child("name"), at.child("devicePath"));
        required(device, "name", &at, errors);
        if seen.contains(name) {
            errors.push(Error::invalid(&name_at, name, "must be unique"));
        }
        match pod.volume(name) {
            Some(volume) if volume["persistentVolumeClaim"].is_null() && volume["ephemeral"].is_null() => {
                let detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.push(Error::invalid(&name_at, name, detail));
            }
            Some(_) => {}
            None => errors.push(Error::not_found(&name_at, name)),
        }
        required(device, "devicePath", &at, errors);
        if places.contains(place) {
            errors.push(Error::invalid(&place_at, place, "must be unique"));
        }
        if place.split('/').any(|step| step == "..") {
            errors.push(Error::invalid(&place_at, place, "can not contain backsteps ('..')"));
        } else {
            places.insert(place);
        }
        if mount_names.contains(name) {
            errors.push(Error::invalid(&name_at, name, "must not already exist in volumeMounts"));
        }
        if mount_paths.contains(place) {
            let detail = "must not already exist as a path in volumeMounts";
            errors.push(Error::invalid(&place_at, place, detail));
        }
        if !name.is_empty() {
            seen.insert(name);
        }
    }
}

/// Validates the hooks and probes of a container.
fn handlers(container: &Value, pod: &Pod<'_>, path: &Path<'_>, errors: &mut Vec<Error>) {
    let lifecycle = path.child("lifecycle");
    let grace = pod.spec["terminationGracePeriodSeconds"].as_i64();
    for hook in ["postStart", "preStop"] {
        let given = &container["lifecycle"][hook];
        if !given.is_null() {
            handler(given, grace, &lifecycle.child(hook), errors);
        }
    }
    for kind in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let given = &container[kind];
        if !given.is_null() {
            probe(given, kind, &path.child(kind), errors);
        }
    }
}

fn probe(probe: &Value, kind: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    handler(probe, None, path, errors);
    for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        non_negative(&probe[field], &path.child(field), errors);
    }
    let grace = path.child("terminationGracePeriodSeconds");
    let seconds = probe["terminationGracePeriodSeconds"].as_i64();
    if kind == "readinessProbe" {
        if let Some(seconds) = seconds {
            errors.push(Error::invalid(&grace, seconds, "must not be set for readinessProbes"));
        }
        return;
    }
    if let Some(seconds) = seconds.filter(|seconds| *seconds <= 0) {
        errors.push(Error::invalid(&grace, seconds, "must be greater than 0"));
    }
    let successes = number(probe, "successThreshold");
    if successes != 1 {
        errors.push(Error::invalid(&path.child("successThreshold"), successes, "must be 1"));
    }
}

/// Validates the handler of a probe or hook, which must be exactly one. `grace` is the termination
/// grace period of the pod, which limits a sleep.
fn handler(handler: &Value, grace: Option<i64>, path: &Path<'_>, errors: &mut Vec<Error>) {
    let mut found = false;
    for kind in HANDLERS {
        let (given, at) = (&handler[kind], path.child(kind));
        if given.is_null() {
            continue;
        }
        if found {
            errors.push(Error::forbidden(&at, "may not specify more than 1 handler type"));
            continue;
        }
        found = true;
        match kind {
            "exec" => {
                if items(&given["command"]).is_empty() {
                    errors.push(Error::required(&at.child("command"), ""));
                }
            }
            "httpGet" => {
                required(given, "path", &at, errors);
                port(&given["port"], &at.child("port"), errors);
                supported(given, "scheme", &["HTTP", "HTTPS"], &at, errors);
                for header in items(&given["httpHeaders"]) {
                    named(text(header, "name"), names::is_http_header_name, &at.child("httpHeaders"), errors);
                }
            }
            "tcpSocket" => port(&given["port"], &at.child("port"), errors),
            "grpc" => port_number(number(given, "port"), &at.child("port"), errors),
            _ => {
                let (seconds, grace) = (number(given, "seconds"), grace.unwrap_or_default());
                if seconds < 0 || seconds > grace {
                    let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                    errors.push(Error::invalid(&at, seconds, detail));
                }
            }
        }
    }
    if !found {
        errors.push(Error::required(path, "must specify a handler type"));
    }
}

fn resize_policy(policies: &Value, spec: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, policy) in items(policies).iter().enumerate() {
        let resource = text(policy, "resourceName");
        if !seen.insert(resource) {
            errors.push(Error::duplicate(&path.index(index), resource));
        }
        let restart = text(policy, "restartPolicy");
        let fields = [(resource, ["cpu", "memory"]), (restart, ["NotRequired", "RestartContainer"])];
        for (given, known) in fields {
            if given.is_empty() {
                errors.push(Error::required(path, ""));
            } else if !known.contains(&given) {
                errors.push(Error::not_supported(path, given, &known));
            }
        }
        if spec["restartPolicy"] == "Never" && restart != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.push(Error::invalid(path, restart, detail));
        }
    }
}

fn resources(resources: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let empty = Map::new();
    let list = |field: &str| resources[field].as_object().unwrap_or(&empty);
    let (limits_at, requests_at) = (path.child("limits"), path.child("requests"));
    for (name, amount) in list("limits") {
        let key = limits_at.key(name);
        resource_name(name, &key, errors);
        resource_amount(name, amount, &key, errors);
    }
    for (name, amount) in list("requests") {
        let key = requests_at.key(name);
        resource_name(name, &key, errors);
        let Some(request) = resource_amount(name, amount, &key, errors) else { continue };
        let Some(limit) = list("limits").get(name) else {
            if is_extended(name) || is_pages(name) {
                errors.push(Error::required(&limits_at, NON_OVERCOMMITTED));
            }
            continue;
        };
        let Ok(limit) = Quantity::from_json(limit) else { continue };
        let shown = request.to_string();
        if (is_extended(name) || is_pages(name)) && request != limit {
            let detail = format!("must be equal to {name} limit of {limit}");
            errors.push(Error::invalid(&requests_at, shown, detail));
        } else if request > limit {
            let detail = format!("must be less than or equal to {name} limit of {limit}");
            errors.push(Error::invalid(&requests_at, shown, detail));
        }
    }
    let named_in = |is: fn(&str) -> bool| list("limits").keys().chain(list("requests").keys()).any(|name| is(name));
    if named_in(is_pages) && !named_in(|name| matches!(name, "cpu" | "memory")) {
        errors.push(Error::forbidden(path, "HugePages require cpu or memory"));
    }
    let claims = path.child("claims");
    for (index, claim) in items(&resources["claims"]).iter().enumerate() {
        if text(claim, "name").is_empty() {
            errors.push(Error::required(&claims.index(index), ""));
        }
    }
}

/// Prefix of the requests for a resource in quotas of objects.
const QUOTA_PREFIX: &str = "requests.";

/// Validates the name of a resource of a container.
fn resource_name(name: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    let before = errors.len();
    named(name, names::is_qualified_name, path, errors);
    let qualified = errors.len() == before;
    if !name.contains('/') {
        if qualified && !KNOWN.contains(&name) && !is_pages(name) {
            errors.push(Error::invalid(path, name, "must be a standard resource type or fully qualified"));
        }
        if !STANDARD.contains(&name) && !is_pages(name) {
            errors.push(Error::invalid(path, name, "must be a standard resource for containers"));
        }
    } else if qualified && name.starts_with("requests.") {
        errors.push(Error::invalid(path, name, "doesn't follow extended resource name standard"));
    }
}

/// Validates an amount of a resource and returns it.
fn resource_amount(name: &str, amount: &Value, path: &Path<'_>, errors: &mut Vec<Error>) -> Option<Quantity> {
    let shown = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
    let quantity = match Quantity::from_json(amount) {
        Ok(quantity) => quantity,
        Err(error) => {
            errors.push(Error::invalid(path, shown, error.to_string()));
            return None;
        }
    };
    if shown.trim().starts_with('-') {
        errors.push(Error::invalid(path, shown, "must be greater than or equal to 0"));
    } else if is_extended(name) && quantity.milli_value() % 1000 != 0 {
        errors.push(Error::invalid(path, shown, "must be an integer"));
    } else if let Some(size) = name.strip_prefix("hugepages-") {
        let whole = Quantity::parse(size).is_ok_and(|size| size.value() > 0 && quantity.value() % size.value() == 0);
        if !whole {
            let detail = format!("{shown} is not positive integer multiple of {name}");
            errors.push(Error::invalid(path, shown, detail));
        }
    }
    Some(quantity)
}

fn is_pages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// True if a resource is extended: named `domain/name`, with a domain outside kubernetes.io. Such
/// resources are counted in whole units and never overcommitted. The name must also be valid with
/// the prefix `requests.`, with which quotas of objects name it.
pub fn is_extended(name: &str) -> bool {
    let is_native = !name.contains('/') || name.contains("kubernetes.io/");
    let is_request = name.starts_with(QUOTA_PREFIX);
    !is_native && !is_request && names::is_qualified_name(&format!("{QUOTA_PREFIX}{name}")).is_empty()
}
