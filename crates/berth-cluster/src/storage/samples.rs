//! Claims and volumes of unit tests.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

/// Merges `more` into `target`, field by field.
pub fn merge(target: &mut Value, more: Value) {
    match (target, more) {
        (Value::Object(target), Value::Object(more)) => {
            for (key, value) in more {
                merge(target.entry(key).or_insert(Value::Null), value);
            }
        }
        (target, more) => *target = more,
    }
}

/// A pending claim without a class in namespace `ns`.
pub fn claim(name: &str, size: &str, more: Value) -> PersistentVolumeClaim {
    let mut claim = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-of-{name}")},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
        "status": {"phase": "Pending"},
    });
    merge(&mut claim, more);
    serde_json::from_value(claim).unwrap()
}

/// An available volume without a class.
pub fn volume(name: &str, size: &str, more: Value) -> PersistentVolume {
    let mut volume = json!({
        "metadata": {"name": name, "uid": format!("uid-of-{name}")},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}, "hostPath": {"path": "/x"},
            "persistentVolumeReclaimPolicy": "Retain"},
        "status": {"phase": "Available"},
    });
    merge(&mut volume, more);
    serde_json::from_value(volume).unwrap()
}
