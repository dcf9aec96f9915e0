//! Generates the files of [`crds`](crate::crds) from the types, with the feature `schema`: shared
//! parts of schemas, the pass that turns schemas from `schemars` into structural schemas as
//! `controller-gen` writes them, and the table of definitions.
//!
//! Features of Kubernetes' schemas that JSON Schema lacks are declared by short private keywords,
//! which the module `structural` expands:
//! * `x-list`: `atomic`, `set` or `map:<key>[,<key>]` becomes `x-kubernetes-list-type` and
//!   `x-kubernetes-list-map-keys`;
//! * `x-rules`: pairs of CEL rule and message become `x-kubernetes-validations`;
//! * `x-optional` / `x-required`: overrides whether the property is required. By default a property
//!   is required unless it can be omitted when written, which is the rule of Go's `omitempty`.
//! * `x-no-format`: omits `format`, where upstream has a plain `int`.
//!
//! Kubernetes' own types are not derived here (a pod template alone is 8,000 lines). The keyword
//! `x-embed` names such a type. It stays in the files, and [`crds`](crate::crds) replaces it with
//! the definition of the published OpenAPI document of Kubernetes.

mod definitions;
mod structural;

use schemars::{Schema, SchemaGenerator, json_schema};

/// The files of `crates/berth-api/definitions`: their names and texts.
///
/// # Panics
/// A schema is no JSON, which a type of this crate cannot cause.
pub fn files() -> Vec<(String, String)> {
    let file = |definition: serde_json::Value| {
        let name = format!("{}.json", definition["metadata"]["name"].as_str().expect("a definition has a name"));
        (name, format!("{definition:#}\n"))
    };
    definitions::definitions().into_iter().map(file).collect()
}

/// Pattern of a DNS-1123 subdomain, which most object names must be.
pub const DNS_SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// Pattern of a DNS-1123 label.
pub const DNS_LABEL: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// Pattern of the name of a kind.
pub const KIND: &str = r"^(?i)[a-z]([-a-z0-9]*[a-z0-9])?$";
/// Pattern of a label key with an optional prefix.
pub const LABEL_KEY: &str =
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";
/// Pattern of a quantity in text form.
pub const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// A name that is a DNS subdomain of at most 253 characters.
pub fn dns_subdomain(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "maxLength": 253, "pattern": DNS_SUBDOMAIN })
}

/// A name that is a DNS label of at most 63 characters.
pub fn dns_label(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "maxLength": 63, "pattern": DNS_LABEL })
}

/// A quantity: number or string.
pub fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [{ "type": "integer" }, { "type": "string" }],
        "pattern": QUANTITY,
        "x-kubernetes-int-or-string": true,
    })
}

/// Quantities by resource name.
pub fn quantity_map(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": quantity(generator) })
}

/// Flavor names by resource name.
pub fn flavor_map(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": dns_subdomain(generator) })
}

/// Parameters of a provisioning class.
pub fn provisioning_parameters(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "maxProperties": 100, "additionalProperties": { "type": "string", "maxLength": 255 } })
}

/// Details of a provisioned request.
pub fn provisioning_details(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "maxProperties": 64, "additionalProperties": { "type": "string", "maxLength": 32768 } })
}

/// A timestamp.
pub fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// A list of conditions, a map by type.
pub fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-list": "map:type",
        "items": {
            "type": "object",
            "description": "A condition of the object.",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": { "type": "string", "format": "date-time", "description": "Time of the last change of the condition's status." },
                "message": { "type": "string", "maxLength": 32768, "description": "Message that explains the last change of the status." },
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0, "description": "Generation of the object from which the condition was computed." },
                "reason": {
                    "type": "string", "minLength": 1, "maxLength": 1024, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                    "description": "Reason of the last change of the status, in CamelCase.",
                },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"], "description": "Status of the condition: True, False or Unknown." },
                "type": {
                    "type": "string", "maxLength": 316,
                    "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                    "description": "Type of the condition, in CamelCase.",
                },
            },
        },
    })
}

/// A label selector.
pub fn label_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-embed": "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector" })
}

/// A pod template.
pub fn pod_template(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-embed": "io.k8s.api.core.v1.PodTemplateSpec" })
}

/// A job template.
pub fn job_template(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-embed": "io.k8s.api.batch.v1.JobTemplateSpec" })
}

/// Templates of volume claims.
pub fn volume_claim_templates(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 50,
        "x-list": "atomic",
        "items": { "x-embed": "io.k8s.api.core.v1.PersistentVolumeClaim" },
    })
}

/// Taints of a flavor's nodes.
pub fn node_taints(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 8,
        "x-list": "atomic",
        "items": { "x-embed": "io.k8s.api.core.v1.Taint" },
        "x-rules": [
            ["self.all(x, x.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])", "supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'"]
        ],
    })
}

/// Taints as shown in a status, without rules on their effect.
pub fn unchecked_node_taints(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "maxItems": 8, "x-list": "atomic", "items": { "x-embed": "io.k8s.api.core.v1.Taint" } })
}

/// A list of tolerations whose merge semantics are not declared.
pub fn untyped_tolerations(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = tolerations(generator);
    schema.remove("x-list");
    schema
}

/// Tolerations added to pods.
pub fn tolerations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 8,
        "x-list": "atomic",
        "items": { "x-embed": "io.k8s.api.core.v1.Toleration" },
        "x-rules": [
            ["self.all(x, !has(x.key) ? x.operator == 'Exists' : true)", "operator must be Exists when 'key' is empty, which means 'match all values and all keys'"],
            ["self.all(x, has(x.tolerationSeconds) ? x.effect == 'NoExecute' : true)", "effect must be 'NoExecute' when 'tolerationSeconds' is set"],
            ["self.all(x, !has(x.operator) || x.operator in ['Equal', 'Exists'])", "supported toleration values: 'Equal'(default), 'Exists'"],
            ["self.all(x, has(x.operator) && x.operator == 'Exists' ? !has(x.value) : true)", "a value must be empty when 'operator' is 'Exists'"],
            ["self.all(x, !has(x.effect) || x.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])", "supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'"]
        ],
    })
}
