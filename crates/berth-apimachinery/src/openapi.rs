//! The OpenAPI document of built-in kinds as schemas.
//!
//! The document is large and most of it is never used. Its definitions are therefore kept as text,
//! and parsed to schemas, together with the definitions they refer to, on first use. Supports
//! OpenAPI v2 (`definitions`) and the schemas of v3 (`components.schemas`).

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::meta::GroupVersionKind;
use crate::schema::{AdditionalProperties, Otherwise, Reads, Reference, Schema, parse_built_in};
use crate::zeros;

/// Definition of `resource.Quantity`, a string type that holds an amount.
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
/// Prefix of the type names of CustomResourceDefinitions.
const EXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.";

/// The part of a v2 or v3 document that is used.
#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    definitions: BTreeMap<String, Box<RawValue>>,
    #[serde(default)]
    components: Components,
}

#[derive(Default, Deserialize)]
struct Components {
    #[serde(default)]
    schemas: BTreeMap<String, Box<RawValue>>,
}

/// The kinds that a definition declares.
#[derive(Deserialize)]
struct Described {
    #[serde(default, rename = "x-kubernetes-group-version-kind")]
    kinds: Vec<WrittenKind>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WrittenKind {
    group: String,
    version: String,
    kind: String,
}

/// A definition as published.
struct Definition {
    text: Box<str>,
    value: OnceLock<Value>,
}

impl Definition {
    fn value(&self) -> &Value {
        self.value.get_or_init(|| serde_json::from_str(&self.text).expect("a part of a JSON text is JSON"))
    }
}

/// A published OpenAPI document.
pub struct Document {
    definitions: BTreeMap<String, Definition>,
    kinds: BTreeMap<GroupVersionKind, String>,
    parsed: Mutex<BTreeMap<String, Arc<Schema>>>,
}

impl std::fmt::Debug for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Document").field("definitions", &self.definitions.len()).finish_non_exhaustive()
    }
}

impl Document {
    /// Splits the text of a document into definitions; no definition is parsed yet.
    ///
    /// # Errors
    /// The text is not an OpenAPI document.
    pub fn new(text: &str) -> Result<Self, serde_json::Error> {
        let Written { definitions, components } = serde_json::from_str(text)?;
        let written = if definitions.is_empty() { components.schemas } else { definitions };
        let mut document = Document { definitions: BTreeMap::new(), kinds: BTreeMap::new(), parsed: Mutex::default() };
        for (name, text) in written {
            let Described { kinds } = serde_json::from_str(text.get())?;
            for WrittenKind { group, version, kind } in kinds {
                document.kinds.insert(GroupVersionKind { group, version, kind }, name.clone());
            }
            document.definitions.insert(name, Definition { text: text.into(), value: OnceLock::new() });
        }
        Ok(document)
    }

    /// The schema of a kind.
    pub fn by_gvk(&self, gvk: &GroupVersionKind) -> Option<Arc<Schema>> {
        self.definition(self.kinds.get(gvk)?)
    }

    /// The name of the definition of a kind.
    pub fn definition_name(&self, gvk: &GroupVersionKind) -> Option<&str> {
        self.kinds.get(gvk).map(String::as_str)
    }

    /// The kinds that have a definition, in order.
    pub fn kinds(&self) -> impl Iterator<Item = &GroupVersionKind> {
        self.kinds.keys()
    }

    /// The names of all definitions, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.definitions.keys().map(String::as_str)
    }

    /// A definition as published.
    pub fn raw(&self, name: &str) -> Option<&Value> {
        self.definitions.get(name).map(Definition::value)
    }

    /// The schema of a definition, with all its references linked. `None` if the definition does
    /// not exist or cannot be parsed.
    pub fn definition(&self, name: &str) -> Option<Arc<Schema>> {
        let mut parsed = self.parsed.lock();
        if let Some(schema) = parsed.get(name) {
            return Some(schema.clone());
        }
        let mut fresh: Vec<Arc<Schema>> = Vec::new();
        let mut wanted = vec![name.to_owned()];
        while let Some(name) = wanted.pop() {
            if parsed.contains_key(&name) {
                continue;
            }
            let Some(mut schema) = self.raw(&name).and_then(|raw| parse_built_in(raw).ok()) else {
                continue;
            };
            if name == QUANTITY {
                schema.quantity = true;
            }
            schema.reads = reads(&name);
            mark_omitted(&name, &mut schema);
            let schema = Arc::new(schema);
            each_reference(&schema, &mut |reference| wanted.push(reference.name.clone()));
            fresh.push(schema.clone());
            parsed.insert(name, schema);
        }
        for schema in fresh {
            each_reference(&schema, &mut |reference| {
                if let Some(target) = parsed.get(&reference.name) {
                    // Linked already only if the same definition was reached twice, with the same
                    // target.
                    let _ = reference.target.set(target.clone());
                }
            });
        }
        parsed.get(name).cloned()
    }
}

/// How the Go type of a definition decodes its value, if the published schema does not describe it.
///
/// Source: the documentation of the types of apiextensions.k8s.io/v1.
fn reads(definition: &str) -> Option<Reads> {
    let otherwise = match definition.strip_prefix(EXTENSIONS)? {
        "CustomResourceSubresourceStatus" => return Some(Reads::NoFields),
        "JSONSchemaPropsOrBool" => Otherwise::Flag,
        "JSONSchemaPropsOrArray" => Otherwise::Schemas,
        "JSONSchemaPropsOrStringArray" => Otherwise::Texts,
        _ => return None,
    };
    let reference = Reference { name: format!("{EXTENSIONS}JSONSchemaProps"), target: OnceLock::new() };
    let schema = Schema { reference: Some(reference), ..Schema::default() };
    Some(Reads::SchemaOr(Arc::new(schema), otherwise))
}

/// Marks the fields that are omitted when they are empty.
fn mark_omitted(definition: &str, schema: &mut Schema) {
    let kept = zeros::kept(definition);
    for (name, property) in &mut schema.properties {
        let is_kept = match &kept {
            Some(kept) => kept.contains(name.as_str()),
            None => schema.required.contains(name),
        };
        // The property is not shared yet.
        if let Some(property) = Arc::get_mut(property) {
            property.omit_empty = property.reference.is_none() && !is_kept;
        }
    }
}

fn each_reference(schema: &Schema, visit: &mut impl FnMut(&crate::schema::Reference)) {
    if let Some(reference) = &schema.reference {
        visit(reference);
    }
    let additional = match &schema.additional_properties {
        Some(AdditionalProperties::Schema(entry)) => Some(entry),
        _ => None,
    };
    let read = match &schema.reads {
        Some(Reads::SchemaOr(schema, _)) => Some(schema),
        _ => None,
    };
    let combined = schema.all_of.iter().chain(&schema.any_of).chain(&schema.one_of);
    for child in schema.properties.values().chain(&schema.items).chain(additional).chain(combined).chain(read) {
        each_reference(child, visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn references_are_followed_even_in_circles() {
        let text = json!({"definitions": {
            "Node": {"type": "object", "properties": {"next": {"$ref": "#/definitions/Node"}, "q": {"$ref": format!("#/definitions/{QUANTITY}")}},
                "x-kubernetes-group-version-kind": [{"group": "g", "version": "v1", "kind": "Node"}]},
            QUANTITY: {"type": "string"}
        }})
        .to_string();
        let document = Document::new(&text).expect("a document");
        let schema = document.by_gvk(&GroupVersionKind::new("g", "v1", "Node")).expect("is defined");
        let deep = schema.at(&["next", "next", "q"]).expect("is reachable");
        assert!(deep.quantity);
        assert!(document.by_gvk(&GroupVersionKind::new("g", "v1", "Other")).is_none());
    }
}
