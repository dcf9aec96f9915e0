//! Compares pod sets by what they request, not by how they are written.
//!
//! A running job that does not match its Workload is stopped, so only real differences may count.
//! The Workload of a running job may have been written by Kueue, by an older release, or by a user
//! as a prebuilt Workload. Hence `cpu: 1000m` equals `cpu: "1"`, an empty list equals none, and a
//! default that the API server fills in equals the missing field.

use berth_api::kueue::v1beta2::PodSet;
use berth_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use serde_json::{Map, Value, json};

/// True if both lists describe the same pods. Once `admitted`, node selectors and tolerations may
/// differ, because admission adds to them.
pub(super) fn same_pod_sets(a: &[PodSet], b: &[PodSet], admitted: bool) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| {
            a.name == b.name
                && a.count == b.count
                && a.min_count == b.min_count
                && same_template(&a.template, &b.template, admitted)
        })
}

fn same_template(a: &PodTemplateSpec, b: &PodTemplateSpec, admitted: bool) -> bool {
    let (Some(a), Some(b)) = (&a.spec, &b.spec) else { return a.spec.is_none() == b.spec.is_none() };
    let init = |spec: &PodSpec| spec.init_containers.clone().unwrap_or_default();
    if !same_containers(&a.containers, &b.containers) || !same_containers(&init(a), &init(b)) {
        return false;
    }
    if admitted {
        return true;
    }
    let tolerations = |spec: &PodSpec| spec.tolerations.clone().unwrap_or_default();
    let selector = |spec: &PodSpec| spec.node_selector.clone().unwrap_or_default();
    tolerations(a) == tolerations(b) && selector(a) == selector(b)
}

fn same_containers(a: &[Container], b: &[Container]) -> bool {
    // Most containers are equal as written; the normalized forms are computed only for the
    // others.
    let same = |a: &Container, b: &Container| a == b || normalized(a).is_some_and(|a| normalized(b) == Some(a));
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
}

/// The container in its shortest equivalent form: canonical quantities, without default values and
/// empty fields. `None` if it cannot be serialized; such a container equals no other.
fn normalized(container: &Container) -> Option<Value> {
    let mut normalized = berth_api::json::to_value(container).ok()?;
    let default_pull =
        if is_latest(container.image.as_deref().unwrap_or_default()) { "Always" } else { "IfNotPresent" };
    for (field, default) in [
        ("imagePullPolicy", json!(default_pull)),
        ("terminationMessagePath", json!("/dev/termination-log")),
        ("terminationMessagePolicy", json!("File")),
        ("stdin", json!(false)),
        ("stdinOnce", json!(false)),
        ("tty", json!(false)),
        ("workingDir", json!("")),
    ] {
        drop_default(&mut normalized, field, &default);
    }
    for port in each(&mut normalized, "ports") {
        drop_default(port, "protocol", &json!("TCP"));
        drop_default(port, "hostPort", &json!(0));
    }
    for mount in each(&mut normalized, "volumeMounts") {
        drop_default(mount, "readOnly", &json!(false));
    }
    for variable in each(&mut normalized, "env") {
        drop_default(variable, "value", &json!(""));
        if let Some(field) = variable.pointer_mut("/valueFrom/fieldRef") {
            drop_default(field, "apiVersion", &json!("v1"));
        }
        if let Some(field) = variable.pointer_mut("/valueFrom/resourceFieldRef") {
            if let Some(divisor) = field.get_mut("divisor") {
                canonical(divisor);
            }
            drop_default(field, "divisor", &json!("0"));
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = normalized.get_mut(probe) else { continue };
        for (field, default) in [
            ("initialDelaySeconds", 0),
            ("timeoutSeconds", 1),
            ("periodSeconds", 10),
            ("successThreshold", 1),
            ("failureThreshold", 3),
        ] {
            drop_default(probe, field, &json!(default));
        }
        if let Some(grpc) = probe.get_mut("grpc") {
            drop_default(grpc, "service", &json!(""));
        }
        drop_http_get_defaults(probe);
    }
    for hook in ["/lifecycle/postStart", "/lifecycle/preStop"] {
        if let Some(hook) = normalized.pointer_mut(hook) {
            drop_http_get_defaults(hook);
        }
    }
    for resources in ["/resources/requests", "/resources/limits"] {
        let quantities = normalized.pointer_mut(resources).and_then(Value::as_object_mut);
        quantities.into_iter().flat_map(Map::values_mut).for_each(canonical);
    }
    drop_empty(&mut normalized);
    Some(normalized)
}

fn drop_default(object: &mut Value, field: &str, default: &Value) {
    if let Some(fields) = object.as_object_mut()
        && fields.get(field) == Some(default)
    {
        fields.remove(field);
    }
}

/// Drops default values of an HTTP request in a probe or hook.
fn drop_http_get_defaults(handler: &mut Value) {
    if let Some(get) = handler.get_mut("httpGet") {
        drop_default(get, "scheme", &json!("HTTP"));
        drop_default(get, "path", &json!("/"));
    }
}

fn each<'a>(object: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}

/// Replaces a quantity by its canonical form; other values stay.
fn canonical(quantity: &mut Value) {
    if let Ok(read) = Quantity::from_json(quantity) {
        // The suffix shows only how it was written: 1024Mi, 1Gi and 1073741824 are the same.
        *quantity = read.decimal().into();
    }
}

/// Removes fields that are null, empty lists or empty maps; list items stay.
fn drop_empty(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.retain(|_, field| {
            drop_empty(field);
            !matches!(field, Value::Null)
                && field.as_array().is_none_or(|list| !list.is_empty())
                && field.as_object().is_none_or(|map| !map.is_empty())
        }),
        Value::Array(items) => items.iter_mut().for_each(drop_empty),
        _ => {}
    }
}

/// True if the default pull policy is `Always`: the image has the tag `latest`, or neither tag nor
/// digest.
fn is_latest(image: &str) -> bool {
    let (named, digest) = image.split_once('@').map_or((image, None), |(named, digest)| (named, Some(digest)));
    let last = named.rsplit('/').next().unwrap_or(named);
    match last.split_once(':') {
        Some((_, tag)) => tag == "latest",
        None => digest.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(container: Value) -> Container {
        serde_json::from_value(container).expect("a container")
    }

    fn same(a: Value, b: Value) -> bool {
        same_containers(&[container(a)], &[container(b)])
    }

    #[test]
    fn equivalent_forms_of_a_container_are_the_same() {
        let short = json!({"name": "main", "image": "registry:5000/busybox",
            "ports": [{"containerPort": 80}],
            "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}],
            "livenessProbe": {"httpGet": {"port": 80}},
            "lifecycle": {"preStop": {"httpGet": {"port": 80}}},
            "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"cpu": "1.0"}}});
        let long = json!({"name": "main", "image": "registry:5000/busybox", "imagePullPolicy": "Always",
            "command": [], "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "ports": [{"containerPort": 80, "protocol": "TCP"}],
            "env": [{"name": "IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0"}}}],
            "livenessProbe": {"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1,
                "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
            "lifecycle": {"preStop": {"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}}},
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1"}}});
        assert!(same(short.clone(), long.clone()));
        assert!(same(
            json!({"name": "a", "image": "a:1"}),
            json!({"name": "a", "image": "a:1", "resources": {},
            "imagePullPolicy": "IfNotPresent"})
        ));
        // Every change that affects the pods is a difference.
        for (pointer, value) in [
            ("/name", json!("other")),
            ("/image", json!("registry:5000/busybox:1")),
            ("/imagePullPolicy", json!("IfNotPresent")),
            ("/command", json!(["sleep"])),
            ("/terminationMessagePolicy", json!("FallbackToLogsOnError")),
            ("/ports/0/protocol", json!("UDP")),
            ("/env/0/name", json!("OTHER")),
            ("/env/1/valueFrom/resourceFieldRef/divisor", json!("1m")),
            ("/livenessProbe/periodSeconds", json!(11)),
            ("/livenessProbe/httpGet/path", json!("/healthz")),
            ("/resources/requests/cpu", json!("1001m")),
            ("/resources/requests/memory", json!("1G")),
        ] {
            let mut other = long.clone();
            *other.pointer_mut(pointer).expect(pointer) = value;
            assert!(!same(short.clone(), other.clone()), "{pointer}");
            assert!(!same(long.clone(), other), "{pointer}");
        }
    }

    #[test]
    fn images_are_pulled_each_time_only_with_the_latest_tag() {
        for (image, latest) in [
            ("a", true),
            ("a:latest", true),
            ("host:5000/a", true),
            ("", true),
            ("a:1", false),
            ("host:5000/a:1", false),
            ("a@sha256:0", false),
            ("a:latest@sha256:0", true),
        ] {
            assert_eq!(is_latest(image), latest, "{image}");
        }
    }
}
