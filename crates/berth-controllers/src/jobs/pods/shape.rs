//! The shape of a pod: the fields that determine its quota and its placement. Pods of a group with
//! the same shape form one pod set.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// Spec fields that determine where a pod fits.
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
/// Number of digits of a role's name.
const DIGITS: usize = 8;

/// Name of the pod set for a pod of this spec.
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
        // This code runs before admission plugins add their tolerations, so only the user's
        // tolerations are compared.
        shape.insert(field.to_owned(), present(&spec[field]));
    }
    shape.insert("resources".to_owned(), present(&spec["resources"]["requests"]));
    // JSON objects have sorted keys, so equal shapes give equal texts.
    let digest = hex::encode(Sha256::digest(Value::Object(shape).to_string().as_bytes()));
    digest[..DIGITS].to_owned()
}

/// Empty lists and maps count as missing.
fn present(value: &Value) -> Value {
    let empty = value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
    if empty { Value::Null } else { value.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_with_equal_requirements_have_one_role() {
        let spec =
            |image: &str, cpu: &str| json!({"containers": [{"image": image, "resources": {"requests": {"cpu": cpu}}}]});
        assert_eq!(role(&spec("a", "1")), role(&spec("b", "1")), "the image is not a requirement");
        assert_ne!(role(&spec("a", "1")), role(&spec("a", "2")));
        let mut selected = spec("a", "1");
        selected["nodeSelector"] = json!({});
        assert_eq!(role(&spec("a", "1")), role(&selected));
        selected["nodeSelector"] = json!({"disk": "fast"});
        assert_ne!(role(&spec("a", "1")), role(&selected));
    }
}
