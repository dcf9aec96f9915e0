//! The published OpenAPI definitions of Kubernetes' built-in kinds, embedded.
//!
//! One compressed document (see `data/NOTICE`) is unpacked on first use and then shared: the API server validates,
//! prunes, patches and documents built-in objects with it, and generated CustomResourceDefinitions embed its pod and
//! job templates. The document has definitions only; paths are the server's business. It carries no defaults: the
//! defaults of built-in kinds are code upstream, so they are code here too, elsewhere. What OpenAPI v3 states as defaults
//! (mostly what a field is when nobody sets it) is listed beside it.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use crate::meta::GroupVersionKind;
use crate::openapi::Document;

/// Which number and type each field has in Kubernetes' protobuf encoding, and whether it is written when it is zero, a message a
/// line (see `data/NOTICE`).
pub const PROTOBUF_FIELDS: &str = include_str!("../data/protobuf-fields.txt");

static DEFAULTS: &str = include_str!("../data/defaults.txt");
static COMPRESSED: &[u8] = include_bytes!("../data/openapi-v2.json.gz");
static DOCUMENT: OnceLock<Document> = OnceLock::new();

const REFERENCE_PREFIX: &str = "#/definitions/";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const RAW_EXTENSION: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";
const FIELDS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The pattern CustomResourceDefinitions put on quantities, as kubebuilder's generator does.
pub const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// The whole document. Unpacked once, on first call.
pub fn document() -> &'static Document {
    DOCUMENT.get_or_init(|| {
        let mut text = String::new();
        flate2::read::GzDecoder::new(COMPRESSED)
            .read_to_string(&mut text)
            .expect("the embedded OpenAPI document is well-formed gzip, a test unpacks it");
        Document::new(&text).expect("the embedded OpenAPI document is JSON, a test parses it")
    })
}

/// One definition as published, with its `$ref`s. `None` when Kubernetes has none of that name among the kinds served.
pub fn definition(name: &str) -> Option<&'static Value> {
    document().raw(name)
}

/// The defaults stated for fields of definitions, where they do not follow from the document.
fn stated_defaults() -> &'static BTreeMap<(&'static str, &'static str), Value> {
    static STATED: OnceLock<BTreeMap<(&'static str, &'static str), Value>> = OnceLock::new();
    STATED.get_or_init(|| {
        let mut stated = BTreeMap::new();
        for line in DEFAULTS.lines() {
            let mut words = line.split(' ');
            let definition = words.next().unwrap_or_default();
            for word in words {
                let (field, default) = word.split_once('=').unwrap_or((word, "{}"));
                let default = serde_json::from_str(default).expect("the embedded defaults are JSON, a test reads them");
                stated.insert((definition, field), default);
            }
        }
        stated
    })
}

/// What OpenAPI v3 states as the default of a field: `{}` for an object that is always there, the zero value of a required
/// text, number or boolean, and some that are filled in. `None` when it states none.
pub fn default_of(name: &str, field: &str) -> Option<Value> {
    if let Some(stated) = stated_defaults().get(&(name, field)) {
        return Some(stated.clone()).filter(|stated| !stated.is_null());
    }
    let definition = definition(name)?;
    let is_required = definition["required"].as_array().is_some_and(|list| list.iter().any(|it| it == field));
    match definition["properties"][field]["type"].as_str().filter(|_| is_required)? {
        "string" => Some(json!("")),
        "integer" | "number" => Some(json!(0)),
        "boolean" => Some(json!(false)),
        _ => None,
    }
}

/// The paths of the containers that every object of a kind has from the start: objects that are values in Kubernetes' own
/// types and not pointers, and required lists and maps, of those that are owned part by part. None for a kind that is not
/// built in.
pub fn always_there(kind: &GroupVersionKind) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    if let Some(name) = document().definition_name(kind) {
        add_always_there(name, &mut Vec::new(), &mut paths);
    }
    paths
}

fn add_always_there(name: &str, path: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    let Some(definition) = definition(name) else { return };
    let required = definition["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (field, schema) in definition["properties"].as_object().into_iter().flatten() {
        let target = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix(REFERENCE_PREFIX));
        let is_atomic = |schema: &Value| schema["x-kubernetes-map-type"] == "atomic";
        let is_there = match target {
            Some(target) => {
                default_of(name, field).is_some_and(|default| default.is_object())
                    && !is_atomic(schema)
                    && !self::definition(target).is_some_and(is_atomic)
            }
            None if required.iter().all(|it| it != field) => false,
            None => match schema["type"].as_str() {
                Some("array") => matches!(schema["x-kubernetes-list-type"].as_str(), Some("map" | "set")),
                Some("object") => !is_atomic(schema),
                _ => false,
            },
        };
        if !is_there || path.is_empty() && field == "metadata" {
            continue;
        }
        path.push(field.clone());
        paths.push(path.clone());
        if let Some(target) = target {
            add_always_there(target, path, paths);
        }
        path.pop();
    }
}

/// One definition as a structural schema, ready to be embedded in a CustomResourceDefinition: references are
/// replaced by what they refer to, quantities and int-or-strings get the spelling CustomResourceDefinitions use,
/// free-form objects preserve unknown fields, object metadata is a plain object, and extensions that a
/// CustomResourceDefinition must not carry (`x-kubernetes-patch-*`, `-unions`, `-group-version-kind`) are gone.
/// A field's own description wins over that of the type it refers to.
///
/// `None` when there is no such definition. A definition that contains itself (only JSON schemas do) is cut at the
/// second visit with a node that preserves unknown fields.
pub fn structural(name: &str) -> Option<Value> {
    definition(name)?;
    Some(resolve_name(name, &mut Vec::new()))
}

fn resolve_name(name: &str, stack: &mut Vec<String>) -> Value {
    match name {
        QUANTITY => {
            return json!({
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "pattern": QUANTITY_PATTERN,
                "x-kubernetes-int-or-string": true,
            });
        }
        INT_OR_STRING => {
            return json!({"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true});
        }
        RAW_EXTENSION | FIELDS => return json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        OBJECT_META => return json!({"type": "object"}),
        _ => {}
    }
    let Some(definition) = definition(name) else {
        return json!({"x-kubernetes-preserve-unknown-fields": true});
    };
    if stack.iter().any(|seen| seen == name) {
        return json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    }
    stack.push(name.to_owned());
    let resolved = resolve(definition, stack);
    stack.pop();
    resolved
}

fn resolve(schema: &Value, stack: &mut Vec<String>) -> Value {
    let Some(schema) = schema.as_object() else { return schema.clone() };
    let mut out = Map::new();
    if let Some(name) = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix(REFERENCE_PREFIX))
        && let Value::Object(target) = resolve_name(name, stack)
    {
        out = target;
    }
    for (key, value) in schema {
        let value = match key.as_str() {
            "$ref" | "x-kubernetes-group-version-kind" | "x-kubernetes-unions" => continue,
            key if key.starts_with("x-kubernetes-patch-") => continue,
            "properties" => {
                let fields = value.as_object().into_iter().flatten();
                fields.map(|(name, field)| (name.clone(), resolve(field, stack))).collect::<Map<_, _>>().into()
            }
            "items" | "additionalProperties" => resolve(value, stack),
            _ => value.clone(),
        };
        out.insert(key.clone(), value);
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_the_templates_and_every_reference_leads_somewhere() {
        assert!(definition("io.k8s.api.core.v1.PodTemplateSpec").is_some());
        assert!(definition("io.k8s.api.batch.v1.JobTemplateSpec").is_some());
        fn check(value: &Value) {
            match value {
                Value::Object(map) => {
                    if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                        let name = reference.strip_prefix(REFERENCE_PREFIX).expect("references are local");
                        assert!(definition(name).is_some(), "{name}");
                    }
                    map.values().for_each(check);
                }
                Value::Array(list) => list.iter().for_each(check),
                _ => {}
            }
        }
        for name in document().names() {
            check(document().raw(name).expect("it has a name"));
            assert!(document().definition(name).is_some(), "{name} does not parse");
        }
    }

    #[test]
    fn stated_defaults_are_of_fields_there_are() {
        for (name, field) in stated_defaults().keys() {
            let definition = definition(name).unwrap_or_else(|| panic!("{name} is not published"));
            assert!(!definition["properties"][field].is_null(), "{name} has no {field}");
        }
        let pod = "io.k8s.api.core.v1.Pod";
        assert_eq!(default_of(pod, "spec"), Some(json!({})));
        assert_eq!(default_of(pod, "kind"), None);
        assert_eq!(default_of("io.k8s.api.core.v1.Container", "name"), Some(json!("")));
        assert_eq!(default_of("io.k8s.api.core.v1.ContainerPort", "protocol"), Some(json!("TCP")));
        assert_eq!(default_of("io.k8s.api.core.v1.ContainerRestartRule", "action"), None);
        assert_eq!(default_of("io.k8s.api.apps.v1.DeploymentSpec", "selector"), None);
    }

    #[test]
    fn a_deployment_has_its_template_and_containers_from_the_start() {
        let paths = |group: &str, kind: &str| -> Vec<String> {
            always_there(&GroupVersionKind::new(group, "v1", kind)).iter().map(|path| path.join(".")).collect()
        };
        let deployment = paths("apps", "Deployment");
        for path in ["spec", "status", "spec.strategy", "spec.template.metadata", "spec.template.spec.containers"] {
            assert!(deployment.contains(&path.to_owned()), "{path}: {deployment:?}");
        }
        for path in ["metadata", "spec.selector", "spec.template.spec.volumes", "spec.template.spec.securityContext"] {
            assert!(!deployment.contains(&path.to_owned()), "{path}: {deployment:?}");
        }
        assert_eq!(paths("rbac.authorization.k8s.io", "Role"), Vec::<String>::new(), "its rules are owned as a whole");
        assert_eq!(paths("example.com", "Widget"), Vec::<String>::new());
    }

    #[test]
    fn a_structural_pod_template_has_no_references_and_keeps_list_keys() {
        let template = structural("io.k8s.api.core.v1.PodTemplateSpec").expect("published");
        let text = template.to_string();
        assert!(!text.contains("\"$ref\":\""));
        assert!(!text.contains("x-kubernetes-patch-"));
        let containers = &template["properties"]["spec"]["properties"]["containers"];
        assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
        let limits = &containers["items"]["properties"]["resources"]["properties"]["limits"];
        assert_eq!(limits["additionalProperties"]["x-kubernetes-int-or-string"], json!(true));
        assert_eq!(template["properties"]["metadata"]["type"], json!("object"));
    }
}
