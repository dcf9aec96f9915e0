//! Kubernetes' published definitions in the form that `controller-gen` writes into a
//! CustomResourceDefinition.
//!
//! The published document omits three facts that upstream takes from markers in its source:
//! defaults, the references that are atomic maps, and the allowed metadata of embedded templates.
//! The tables below add them.

use std::collections::BTreeMap;

use berth_apimachinery::builtin;
use serde_json::{Value, json};

const CORE: &str = "io.k8s.api.core.v1.";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Types of the core group that merge atomically, although the document does not state it.
const ATOMIC: &[&str] =
    &["ConfigMapEnvSource", "ConfigMapProjection", "ConfigMapVolumeSource", "SecretEnvSource", "SecretProjection"];

/// Default of a field of a type of the core group.
fn default_of(definition: &str, field: &str) -> Option<Value> {
    Some(match (definition, field) {
        (
            "LocalObjectReference"
            | "ConfigMapEnvSource"
            | "ConfigMapKeySelector"
            | "ConfigMapProjection"
            | "ConfigMapVolumeSource"
            | "SecretEnvSource"
            | "SecretKeySelector"
            | "SecretProjection",
            "name",
        )
        | ("GRPCAction", "service") => json!(""),
        ("ContainerPort", "protocol") => json!("TCP"),
        ("FileKeySelector", "optional") | ("AzureDiskVolumeSource", "readOnly") => json!(false),
        ("AzureDiskVolumeSource", "fsType") => json!("ext4"),
        ("ISCSIVolumeSource", "iscsiInterface") => json!("default"),
        ("RBDVolumeSource", "keyring") => json!("/etc/ceph/keyring"),
        ("RBDVolumeSource", "pool") => json!("rbd"),
        ("RBDVolumeSource", "user") => json!("admin"),
        ("ScaleIOVolumeSource", "fsType") => json!("xfs"),
        ("ScaleIOVolumeSource", "storageMode") => json!("ThinProvisioned"),
        _ => return None,
    })
}

/// The metadata fields that a user may set in an embedded template.
fn embedded_metadata() -> Value {
    let string = || json!({ "type": "string" });
    json!({
        "type": "object",
        "properties": {
            "annotations": { "type": "object", "additionalProperties": string() },
            "finalizers": { "type": "array", "items": string() },
            "labels": { "type": "object", "additionalProperties": string() },
            "name": string(),
            "namespace": string(),
        },
    })
}

/// Published definitions with resolved references; each is resolved once.
#[derive(Default)]
pub(crate) struct Published {
    resolved: BTreeMap<String, Value>,
}

impl Published {
    /// The structural schema of a definition, for example `io.k8s.api.core.v1.PodTemplateSpec`. A
    /// definition that the document does not have becomes an object with unknown fields.
    pub(crate) fn schema(&mut self, name: &str) -> Value {
        if let Some(schema) = self.resolved.get(name) {
            return schema.clone();
        }
        let schema = match builtin::definition(name) {
            Some(definition) if definition.get("properties").is_some() && name != OBJECT_META => {
                // A recursive definition is cut where it refers to itself. The definitions embedded
                // here are not recursive.
                self.resolved.insert(name.to_owned(), unknown());
                let mut schema = builtin::with_references(definition, &mut |name| self.schema(name));
                self.complete(name, &mut schema);
                schema
            }
            Some(_) if name == OBJECT_META => embedded_metadata(),
            _ => builtin::structural(name).unwrap_or_else(unknown),
        };
        self.resolved.insert(name.to_owned(), schema.clone());
        schema
    }

    /// Adds the facts that the document omits.
    fn complete(&self, name: &str, schema: &mut Value) {
        let Some(name) = name.strip_prefix(CORE) else { return };
        if ATOMIC.contains(&name) {
            schema["x-kubernetes-map-type"] = "atomic".into();
        }
        let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
        for (field, property) in properties.iter_mut() {
            if let Some(default) = default_of(name, field) {
                property["default"] = default;
            }
        }
    }
}

fn unknown() -> Value {
    json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}
