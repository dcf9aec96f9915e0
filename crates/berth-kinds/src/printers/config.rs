//! Printers of ConfigMaps, Secrets, ServiceAccounts, quotas, volumes and role bindings.

use jiff::Timestamp;
use serde_json::Value;

use super::cells::{UNSET, age, count, items, text, text_or};
use super::{AGE, Header, Printer, printer};

const S: &str = "string";
const ROLE_BINDING: &[Header] = &[("Role", S, 0), AGE, ("Users", S, 1), ("Groups", S, 1), ("ServiceAccounts", S, 1)];

pub(super) const PRINTERS: &[Printer] = &[
    printer("", "ComponentStatus", &[("Status", S, 0), ("Message", S, 0), ("Error", S, 0)], component),
    printer("", "ConfigMap", &[("Data", S, 0), AGE], |object, now| {
        vec![(count(object, "/data") + count(object, "/binaryData")).into(), age(object, now)]
    }),
    printer("", "Secret", &[("Type", S, 0), ("Data", S, 0), AGE], |object, now| {
        vec![text_or(object, "/type", "Opaque").into(), count(object, "/data").into(), age(object, now)]
    }),
    printer("", "ServiceAccount", &[AGE], |object, now| vec![age(object, now)]),
    printer("", "ResourceQuota", &[("Request", S, 0), ("Limit", S, 0), AGE], quota),
    printer(
        "",
        "PersistentVolume",
        &[
            ("Capacity", S, 0),
            ("Access Modes", S, 0),
            ("Reclaim Policy", S, 0),
            ("Status", S, 0),
            ("Claim", S, 0),
            ("StorageClass", S, 0),
            ("VolumeAttributesClass", S, 0),
            ("Reason", S, 0),
            AGE,
            ("VolumeMode", S, 1),
        ],
        volume,
    ),
    printer(
        "",
        "PersistentVolumeClaim",
        &[
            ("Status", S, 0),
            ("Volume", S, 0),
            ("Capacity", S, 0),
            ("Access Modes", S, 0),
            ("StorageClass", S, 0),
            ("VolumeAttributesClass", S, 0),
            AGE,
            ("VolumeMode", S, 1),
        ],
        claim,
    ),
    printer("rbac.authorization.k8s.io", "RoleBinding", ROLE_BINDING, role_binding),
    printer("rbac.authorization.k8s.io", "ClusterRoleBinding", ROLE_BINDING, role_binding),
];

fn component(object: &Value, _now: Timestamp) -> Vec<Value> {
    let healthy = items(object, "/conditions").find(|condition| condition["type"] == "Healthy");
    let shown = |field: &str| healthy.map_or("", |condition| condition[field].as_str().unwrap_or_default());
    let status = match healthy.map(|condition| condition["status"] == "True") {
        Some(true) => "Healthy",
        Some(false) => "Unhealthy",
        None => "Unknown",
    };
    vec![status.into(), shown("message").into(), shown("error").into()]
}

fn quota(object: &Value, now: Timestamp) -> Vec<Value> {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    let hard = object.pointer("/status/hard").and_then(Value::as_object);
    for (resource, hard) in hard.into_iter().flatten() {
        let used = object.pointer("/status/used").and_then(|used| used.get(resource)).and_then(Value::as_str);
        let part = format!("{resource}: {}/{}", used.unwrap_or("0"), hard.as_str().unwrap_or_default());
        if resource.starts_with("limits") { limits.push(part) } else { requests.push(part) }
    }
    vec![requests.join(", ").into(), limits.join(", ").into(), age(object, now)]
}

fn access_modes(object: &Value, path: &str) -> String {
    let modes: Vec<&str> = items(object, path)
        .filter_map(Value::as_str)
        .map(|mode| match mode {
            "ReadWriteOnce" => "RWO",
            "ReadOnlyMany" => "ROX",
            "ReadWriteMany" => "RWX",
            "ReadWriteOncePod" => "RWOP",
            other => other,
        })
        .collect();
    modes.join(",")
}

fn volume(object: &Value, now: Timestamp) -> Vec<Value> {
    let claim = match text(object, "/spec/claimRef/name") {
        "" => String::new(),
        name => format!("{}/{name}", text(object, "/spec/claimRef/namespace")),
    };
    vec![
        text(object, "/spec/capacity/storage").into(),
        access_modes(object, "/spec/accessModes").into(),
        text_or(object, "/spec/persistentVolumeReclaimPolicy", "Retain").into(),
        phase(object),
        claim.into(),
        text(object, "/spec/storageClassName").into(),
        text_or(object, "/spec/volumeAttributesClassName", UNSET).into(),
        text(object, "/status/reason").into(),
        age(object, now),
        text_or(object, "/spec/volumeMode", UNSET).into(),
    ]
}

fn phase(object: &Value) -> Value {
    if super::cells::is_being_deleted(object) { "Terminating".into() } else { text(object, "/status/phase").into() }
}

fn claim(object: &Value, now: Timestamp) -> Vec<Value> {
    let volume = text(object, "/spec/volumeName");
    // An unbound claim has neither capacity nor access modes, although it requests them.
    let (capacity, modes) = match volume {
        "" => ("", String::new()),
        _ => (text(object, "/status/capacity/storage"), access_modes(object, "/status/accessModes")),
    };
    vec![
        phase(object),
        volume.into(),
        capacity.into(),
        modes.into(),
        text(object, "/spec/storageClassName").into(),
        text_or(object, "/spec/volumeAttributesClassName", UNSET).into(),
        age(object, now),
        text_or(object, "/spec/volumeMode", UNSET).into(),
    ]
}

fn role_binding(object: &Value, now: Timestamp) -> Vec<Value> {
    let role = format!("{}/{}", text(object, "/roleRef/kind"), text(object, "/roleRef/name"));
    let subjects = |kind: &str| -> Value {
        let names = items(object, "/subjects").filter(|it| text(it, "/kind") == kind).map(|it| {
            match (kind, text(it, "/namespace")) {
                ("ServiceAccount", namespace) => format!("{namespace}/{}", text(it, "/name")),
                _ => text(it, "/name").to_owned(),
            }
        });
        names.collect::<Vec<_>>().join(", ").into()
    };
    vec![role.into(), age(object, now), subjects("User"), subjects("Group"), subjects("ServiceAccount")]
}
