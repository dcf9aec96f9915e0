//! The schemas in an OpenAPI document: the published definitions of built-in kinds, and the schemas
//! of custom resources in the form in which Kubernetes publishes them (with `apiVersion`, `kind`,
//! `metadata`, their group, version and kind, and a list kind).

use std::collections::BTreeMap;

use berth_apimachinery::builtin;
use berth_apimachinery::meta::{self, GroupVersionKind};
use serde_json::{Map, Value, json};

use super::Style;
use crate::ResourceInfo;
use crate::registry::{SchemaSource, VersionInfo};

const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
/// Definitions to which the paths of every version refer.
const COMMON: [&str; 5] = ["APIResourceList", "DeleteOptions", "Patch", "Status", "WatchEvent"];

/// Definitions collected for one document, with all definitions to which they refer.
pub(super) struct Definitions {
    style: Style,
    found: BTreeMap<String, Value>,
}

impl Definitions {
    pub(super) fn new(style: Style) -> Definitions {
        let mut definitions = Definitions::empty(style);
        for name in COMMON {
            definitions.add_published(&format!("{META}.{name}"));
        }
        definitions
    }

    /// No definitions, for a document that describes no kind.
    pub(super) fn empty(style: Style) -> Definitions {
        Definitions { style, found: BTreeMap::new() }
    }

    /// Adds the definitions of a version of a kind, its list and its subresources.
    pub(super) fn add(&mut self, row: &ResourceInfo, version: &VersionInfo) {
        match &version.schema {
            SchemaSource::BuiltIn(_) => {
                self.add_kind(&row.group, &version.name, &row.kind);
                self.add_kind(&row.group, &version.name, &row.list_kind);
            }
            custom => {
                let raw = match custom {
                    SchemaSource::Custom(custom) => custom.written(),
                    _ => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
                };
                let name = custom_name(&row.group, &version.name, &row.kind);
                let list = custom_list(self.style, row, version, &name);
                let object = custom_object(self.style, row, version, raw);
                self.add_published(&format!("{META}.ObjectMeta"));
                self.add_published(&format!("{META}.ListMeta"));
                self.found.insert(custom_name(&row.group, &version.name, &row.list_kind), list);
                self.found.insert(name, object);
            }
        }
        for sub in &version.subresources {
            self.add_kind(&sub.group, &sub.version, &sub.kind);
        }
    }

    fn add_kind(&mut self, group: &str, version: &str, kind: &str) {
        if let Some(name) = builtin::document().definition_name(&GroupVersionKind::new(group, version, kind)) {
            self.add_published(name);
        }
    }

    /// Adds a published definition, and all definitions to which it refers.
    pub(super) fn add_published(&mut self, name: &str) {
        let mut wanted = vec![name.to_owned()];
        while let Some(name) = wanted.pop() {
            if self.found.contains_key(&name) {
                continue;
            }
            let Some(definition) = builtin::definition(&name) else { continue };
            let mut refers_to = Vec::new();
            let shown = match (self.style, name.as_str()) {
                (Style::V3, QUANTITY) => {
                    with_type(definition, json!({"oneOf": [{"type": "string"}, {"type": "number"}]}))
                }
                (Style::V3, INT_OR_STRING) => with_type(
                    definition,
                    json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}),
                ),
                _ => translate(definition, self.style, &mut refers_to),
            };
            let shown = if self.style == Style::V3 { with_defaults(&name, shown) } else { shown };
            self.found.insert(name, shown);
            wanted.append(&mut refers_to);
        }
    }

    pub(super) fn finish(self) -> Map<String, Value> {
        self.found.into_iter().collect()
    }
}

/// Name of the definition of a built-in kind or custom resource.
pub(super) fn name_of(group: &str, version: &str, kind: &str) -> String {
    builtin::document()
        .definition_name(&GroupVersionKind::new(group, version, kind))
        .map_or_else(|| custom_name(group, version, kind), str::to_owned)
}

/// A reference to a definition.
pub(super) fn reference(style: Style, name: &str) -> Value {
    match style {
        Style::V2 => json!({"$ref": format!("#/definitions/{name}")}),
        Style::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
    }
}

/// `com.example.shop.v1.Widget` for Widget of `shop.example.com/v1`.
fn custom_name(group: &str, version: &str, kind: &str) -> String {
    let reversed: Vec<&str> = group.split('.').rev().collect();
    format!("{}.{version}.{kind}", reversed.join("."))
}

/// Adds the default values of fields, which only v3 documents have.
fn with_defaults(name: &str, mut definition: Value) -> Value {
    for (field, schema) in definition.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        let (Some(default), Some(schema)) = (builtin::default_of(name, field), schema.as_object_mut()) else {
            continue;
        };
        if let Some(reference) = schema.remove("$ref") {
            schema.insert("allOf".to_owned(), json!([{"$ref": reference}]));
        }
        schema.insert("default".to_owned(), default);
    }
    definition
}

fn with_type(definition: &Value, types: Value) -> Value {
    let mut types = types;
    if let Some(description) = definition.get("description") {
        types["description"] = description.clone();
    }
    types
}

/// Translates a published schema to a version of OpenAPI. In v3 a `$ref` hides the other keys of
/// its object, so such a reference is put into `allOf`.
fn translate(schema: &Value, style: Style, refers_to: &mut Vec<String>) -> Value {
    let Some(schema) = schema.as_object() else { return schema.clone() };
    let mut out = Map::new();
    for (key, value) in schema {
        let value = match key.as_str() {
            "$ref" => {
                let name = value.as_str().and_then(|it| it.rsplit('/').next()).unwrap_or_default();
                refers_to.push(name.to_owned());
                match style {
                    Style::V2 => value.clone(),
                    Style::V3 if schema.len() == 1 => return reference(style, name),
                    Style::V3 => {
                        out.insert("allOf".to_owned(), json!([reference(style, name)]));
                        continue;
                    }
                }
            }
            "properties" => {
                let fields = value.as_object().into_iter().flatten();
                fields
                    .map(|(name, field)| (name.clone(), translate(field, style, refers_to)))
                    .collect::<Map<_, _>>()
                    .into()
            }
            "items" | "additionalProperties" => translate(value, style, refers_to),
            _ => value.clone(),
        };
        out.insert(key.clone(), value);
    }
    Value::Object(out)
}

fn described(style: Style, name: &str, description: &str) -> Value {
    match style {
        Style::V2 => {
            let mut value = reference(style, name);
            value["description"] = json!(description);
            value
        }
        Style::V3 => json!({"allOf": [reference(style, name)], "description": description}),
    }
}

fn text_field(kind: &str, field: &str) -> Value {
    // The published descriptions of these two fields are the same in all kinds.
    let description = builtin::definition(kind)
        .and_then(|definition| definition.pointer(&format!("/properties/{field}/description")))
        .cloned()
        .unwrap_or_default();
    json!({"type": "string", "description": description})
}

fn kind_extension(row: &ResourceInfo, version: &VersionInfo, kind: &str) -> Value {
    json!([{"group": row.group, "version": version.name, "kind": kind}])
}

fn custom_object(style: Style, row: &ResourceInfo, version: &VersionInfo, raw: Value) -> Value {
    let mut object = match (style, raw) {
        (Style::V2, raw) => reduce(&raw),
        (Style::V3, raw) => raw,
    };
    if !object.is_object() {
        object = json!({"type": "object"});
    }
    object["x-kubernetes-group-version-kind"] = kind_extension(row, version, &row.kind);
    let keeps_all = object.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    if style == Style::V2 && keeps_all {
        // v2 clients do not know this extension. A schema without fields allows any field.
        meta::map_mut(&mut object).remove("x-kubernetes-preserve-unknown-fields");
    }
    // A kind that preserves unknown fields and declares none gets no fields, because fields would
    // forbid others.
    let names_fields = object.get("properties").is_some_and(Value::is_object);
    if names_fields || !keeps_all {
        if !names_fields {
            object["properties"] = json!({});
        }
        let pod = "io.k8s.api.core.v1.Pod";
        let properties = &mut object["properties"];
        properties["apiVersion"] = text_field(pod, "apiVersion");
        properties["kind"] = text_field(pod, "kind");
        let text = "Standard object's metadata. More info: \
                    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";
        properties["metadata"] = described(style, &format!("{META}.ObjectMeta"), text);
    }
    object
}

fn custom_list(style: Style, row: &ResourceInfo, version: &VersionInfo, item: &str) -> Value {
    let list = "io.k8s.api.core.v1.PodList";
    let text = "Standard list metadata. More info: \
                https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
    json!({
        "description": format!("{} is a list of {}", row.list_kind, row.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": text_field(list, "apiVersion"),
            "kind": text_field(list, "kind"),
            "metadata": described(style, &format!("{META}.ListMeta"), text),
            "items": {
                "description": format!(
                    "List of {}. More info: \
                     https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md",
                    row.plural
                ),
                "type": "array",
                "items": reference(style, item),
            },
        },
        "x-kubernetes-group-version-kind": kind_extension(row, version, &row.list_kind),
    })
}

/// Reduces a custom resource's schema to OpenAPI v2. Rules that v2 cannot express are omitted: a
/// client that validates against the result accepts every object that the server accepts.
fn reduce(schema: &Value) -> Value {
    let Some(schema) = schema.as_object() else { return schema.clone() };
    let is = |key: &str| schema.get(key).and_then(Value::as_bool).unwrap_or(false);
    let (nullable, either) = (is("nullable"), is("x-kubernetes-int-or-string"));
    let open = is("x-kubernetes-preserve-unknown-fields");
    let mut out = Map::new();
    for (key, value) in schema {
        let value = match key.as_str() {
            "nullable" | "oneOf" | "anyOf" | "allOf" | "not" | "default" => continue,
            "type" if nullable || either => continue,
            "properties" | "items" | "required" if nullable || open => continue,
            "properties" => {
                let fields = value.as_object().into_iter().flatten();
                fields.map(|(name, field)| (name.clone(), reduce(field))).collect::<Map<_, _>>().into()
            }
            "items" | "additionalProperties" => reduce(value),
            _ => value.clone(),
        };
        out.insert(key.clone(), value);
    }
    Value::Object(out)
}
