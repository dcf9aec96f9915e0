//! Defaults of pods and pod templates, as in the core/v1 API.

use berth_apimachinery::meta::map_mut;
use serde_json::{Map, Value, json};

use super::{set_default, set_default_text, storage};

/// Sets the defaults of a PodSpec.
pub(crate) fn pod_spec(spec: &mut Map<String, Value>) {
    set_default_text(spec, "restartPolicy", "Always");
    set_default_text(spec, "dnsPolicy", "ClusterFirst");
    set_default_text(spec, "schedulerName", "default-scheduler");
    set_default(spec, "terminationGracePeriodSeconds", 30);
    set_default(spec, "securityContext", json!({}));
    for kind in ["initContainers", "containers", "ephemeralContainers"] {
        for item in spec.get_mut(kind).and_then(Value::as_array_mut).into_iter().flatten() {
            container(map_mut(item));
        }
    }
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        self::volume(map_mut(volume));
    }
}

/// Sets the defaults of a pod. Unlike a template, a pod also gets `enableServiceLinks`, the old
/// field of its service account and, on the host network, host ports.
pub(crate) fn pod(spec: &mut Map<String, Value>) {
    pod_spec(spec);
    // Older clients could set a negative period, which means the minimum of one second.
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
        spec.insert("terminationGracePeriodSeconds".to_owned(), 1.into());
    }
    set_default(spec, "enableServiceLinks", true);
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        for kind in ["initContainers", "containers"] {
            spec.get_mut(kind).and_then(Value::as_array_mut).into_iter().flatten().for_each(host_ports);
        }
    }
    service_account(spec);
}

/// Sets both `serviceAccountName` and its old name, `serviceAccount`, if one of them is set.
pub fn service_account(spec: &mut Map<String, Value>) {
    let text = |field: &str| spec.get(field).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
    let name = text("serviceAccountName").or_else(|| text("serviceAccount"));
    if let Some(name) = name {
        spec.insert("serviceAccountName".to_owned(), name.as_str().into());
        spec.insert("serviceAccount".to_owned(), name.into());
    }
}

/// Sets host ports to the container ports, as a pod on the host network requires.
fn host_ports(container: &mut Value) {
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let number = port["containerPort"].clone();
        if port["hostPort"].as_i64().unwrap_or_default() == 0 && !number.is_null() {
            port["hostPort"] = number;
        }
    }
}

fn container(container: &mut Map<String, Value>) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let policy = if is_latest(image) { "Always" } else { "IfNotPresent" };
    set_default_text(container, "imagePullPolicy", policy);
    set_default_text(container, "terminationMessagePath", "/dev/termination-log");
    set_default_text(container, "terminationMessagePolicy", "File");
    set_default(container, "resources", json!({}));
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        set_default_text(map_mut(port), "protocol", "TCP");
    }
    for variable in container.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
        let field = variable.get_mut("valueFrom").and_then(|from| from.get_mut("fieldRef"));
        if let Some(Value::Object(field)) = field {
            set_default_text(field, "apiVersion", "v1");
        }
    }
    for hook in ["postStart", "preStop"] {
        let get = container.get_mut("lifecycle").and_then(|hooks| hooks.get_mut(hook)?.get_mut("httpGet"));
        if let Some(Value::Object(get)) = get {
            http_get(get);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(Value::Object(probe)) = container.get_mut(probe) {
            for (field, value) in
                [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
            {
                // Zero means unset in these fields.
                if probe.get(field).and_then(Value::as_i64).unwrap_or_default() == 0 {
                    probe.insert(field.to_owned(), value.into());
                }
            }
            if let Some(Value::Object(get)) = probe.get_mut("httpGet") {
                http_get(get);
            }
            if let Some(Value::Object(grpc)) = probe.get_mut("grpc") {
                set_default(grpc, "service", "");
            }
        }
    }
    let Some(Value::Object(resources)) = container.get_mut("resources") else { return };
    // The default request of a resource is its limit.
    let limits = resources.get("limits").and_then(Value::as_object).cloned().unwrap_or_default();
    if !limits.is_empty() {
        let requests = map_mut(resources.entry("requests").or_insert_with(|| json!({})));
        for (name, amount) in limits {
            requests.entry(name).or_insert(amount);
        }
    }
    amounts(resources);
}

/// Converts the amounts of resource requirements to canonical form.
pub(super) fn amounts(resources: &mut Map<String, Value>) {
    for list in ["limits", "requests"] {
        for amount in resources.get_mut(list).and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
            canonical(amount);
        }
    }
}

fn http_get(get: &mut Map<String, Value>) {
    set_default_text(get, "path", "/");
    set_default_text(get, "scheme", "HTTP");
}

/// Converts a quantity to canonical form, as decoding does upstream.
pub(super) fn canonical(amount: &mut Value) {
    let text = match amount {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return,
    };
    if let Ok(quantity) = berth_apimachinery::quantity::Quantity::parse(&text) {
        *amount = Value::String(quantity.to_string());
    }
}

fn volume(volume: &mut Map<String, Value>) {
    for source in ["secret", "configMap", "projected", "downwardAPI"] {
        if let Some(Value::Object(source)) = volume.get_mut(source) {
            set_default(source, "defaultMode", 420);
        }
    }
    if let Some(Value::Object(path)) = volume.get_mut("hostPath") {
        set_default(path, "type", "");
    }
    if let Some(Value::Object(template)) = volume.get_mut("ephemeral").and_then(|it| it.get_mut("volumeClaimTemplate"))
    {
        set_default(template, "metadata", json!({}));
        storage::claim_spec(map_mut(template.entry("spec").or_insert_with(|| json!({}))));
    }
    let sources = volume.get_mut("projected").and_then(|projected| projected.get_mut("sources"));
    for source in sources.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(Value::Object(token)) = source.get_mut("serviceAccountToken") {
            set_default(token, "expirationSeconds", 3600);
        }
        downward(source.get_mut("downwardAPI"));
    }
    downward(volume.get_mut("downwardAPI"));
    if volume.iter().all(|(field, value)| field == "name" || value.is_null()) {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
}

/// Sets the defaults of a downward API volume.
fn downward(source: Option<&mut Value>) {
    let items = source.and_then(|source| source.get_mut("items")).and_then(Value::as_array_mut);
    for item in items.into_iter().flatten() {
        if let Some(Value::Object(field)) = item.get_mut("fieldRef") {
            set_default_text(field, "apiVersion", "v1");
        }
    }
}

/// True if an image reference has the tag `latest` or no tag. False for an invalid reference.
fn is_latest(image: &str) -> bool {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let (start, last) = name.rsplit_once('/').map_or((None, name), |(start, last)| (Some(start), last));
    let (last, tag) = last.split_once(':').map_or((last, None), |(last, tag)| (last, Some(tag)));
    // A reference with a digest and no tag does not default to `latest`.
    if tag.map_or(digest.is_some(), |tag| tag != "latest") || !digest.is_none_or(is_digest) {
        return false;
    }
    let steps: Vec<&str> = start.into_iter().flat_map(|start| start.split('/')).chain([last]).collect();
    let is_host = |step: &str| {
        step == "localhost" || step.contains(['.', ':']) || step.bytes().any(|byte| byte.is_ascii_uppercase())
    };
    let path = if steps.len() > 1 && is_host(steps[0]) { &steps[1..] } else { &steps[..] };
    name.len() <= IMAGE_NAME_MAX && path.iter().all(|step| is_path_step(step))
}

/// True if a string is a digest, such as `sha256:` followed by the hash.
fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hash)) = digest.split_once(':') else { return false };
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return false,
    };
    hash.len() == length && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Maximum length of an image name.
const IMAGE_NAME_MAX: usize = 255;

/// True if a path component of an image name is valid: lower-case letters and digits with
/// separators between them.
fn is_path_step(step: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = step.as_bytes();
    bytes.first().is_some_and(|byte| alphanumeric(*byte))
        && bytes.last().is_some_and(|byte| alphanumeric(*byte))
        && step
            .split(|it: char| it.is_ascii_lowercase() || it.is_ascii_digit())
            .all(|between| matches!(between, "" | "." | "_" | "__") || between.bytes().all(|byte| byte == b'-'))
}

/// The quality-of-service class of a pod, which follows from its requests and limits.
pub(crate) fn qos_class(spec: &Value) -> &'static str {
    let containers: Vec<&Value> =
        ["containers", "initContainers"].iter().flat_map(|kind| spec[*kind].as_array().into_iter().flatten()).collect();
    let counted = ["cpu", "memory"];
    let any = containers.iter().any(|container| {
        ["requests", "limits"]
            .iter()
            .any(|list| counted.iter().any(|name| !container["resources"][*list][*name].is_null()))
    });
    if !any {
        return "BestEffort";
    }
    let guaranteed = containers.iter().all(|container| {
        let resources = &container["resources"];
        counted.iter().all(|name| {
            let limit = &resources["limits"][*name];
            let request = &resources["requests"][*name];
            !limit.is_null() && (request.is_null() || request == limit)
        })
    });
    if guaranteed { "Guaranteed" } else { "Burstable" }
}
