//! The shape of a pod: what decides how much quota it needs and where it fits. Pods of a group that have the same shape
//! are one pod set.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// Fields of a pod's spec that decide where it fits.
const FIELDS: [&str; 8] = [
    "nodeSelector",
    "affinity",
    "tolerations",
    "runtimeClassName",
    "priority",
    "topologySpreadConstraints",
    "overhead",
    "resourceClaims",
];
/// Digits of a role's name.
const DIGITS: usize = 8;

/// The name of the pod set a pod of this spec belongs to.
pub fn role(spec: &Value) -> String {
    let mut shape = Map::new();
    for list in ["initContainers", "containers"] {
        let containers = spec[list].as_array().into_iter().flatten();
        let shapes: Vec<Value> = containers
            .map(|container| {
                let requests = present(&container["resources"]["requests"]);
                let ports: Vec<&Value> = container["ports"].as_array().into_iter().flatten().collect();
                let ports: Vec<Value> = ports.iter().map(|port| port["hostPort"].clone()).collect();
                json!({"requests": requests, "hostPorts": ports})
            })
            .collect();
        shape.insert(list.to_owned(), Value::from(shapes));
    }
    for field in FIELDS {
        // Kubernetes adds tolerations of its own to every pod; what is compared is what was asked for, before that.
        shape.insert(field.to_owned(), present(&spec[field]));
    }
    shape.insert("resources".to_owned(), present(&spec["resources"]["requests"]));
    // Keys of JSON objects are sorted, so that the same shape has the same text.
    let digest = hex::encode(Sha256::digest(Value::Object(shape).to_string().as_bytes()));
    digest[..DIGITS].to_owned()
}

/// Nothing and empty are the same.
fn present(value: &Value) -> Value {
    let empty = value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
    if empty { Value::Null } else { value.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_ask_for_the_same_are_of_one_role() {
        let spec =
            |image: &str, cpu: &str| json!({"containers": [{"image": image, "resources": {"requests": {"cpu": cpu}}}]});
        assert_eq!(role(&spec("a", "1")), role(&spec("b", "1")), "what runs is not what is asked for");
        assert_ne!(role(&spec("a", "1")), role(&spec("a", "2")));
        let mut selected = spec("a", "1");
        selected["nodeSelector"] = json!({});
        assert_eq!(role(&spec("a", "1")), role(&selected));
        selected["nodeSelector"] = json!({"disk": "fast"});
        assert_ne!(role(&spec("a", "1")), role(&selected));
    }
}
