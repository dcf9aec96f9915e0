//! Parses OpenAPI JSON into a [`Schema`].

use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use super::{AdditionalProperties, Bound, ListType, Pattern, Reference, Rule, Schema, Type};

/// Maximum nesting depth of a schema. Published schemas stay below 30.
const DEPTH_MAX: usize = 200;

/// The reason why a schema could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("schema: {at}: {problem}")]
pub struct SchemaError {
    /// Path in the schema.
    pub at: String,
    /// The problem at that path.
    pub problem: String,
}

/// The dialect of a schema.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `openAPIV3Schema` of a CustomResourceDefinition.
    Crd,
    /// A definition of the OpenAPI document of built-in kinds.
    BuiltIn,
}

pub(crate) fn parse(schema: &Value, dialect: Dialect) -> Result<Schema, SchemaError> {
    Parser { dialect, at: Vec::new() }.node(schema)
}

struct Parser {
    dialect: Dialect,
    at: Vec<String>,
}

impl Parser {
    fn error(&self, problem: &str) -> SchemaError {
        let at = if self.at.is_empty() { "root".to_owned() } else { self.at.join(".") };
        SchemaError { at, problem: problem.to_owned() }
    }

    fn below<T>(
        &mut self,
        step: &str,
        parse: impl FnOnce(&mut Self) -> Result<T, SchemaError>,
    ) -> Result<T, SchemaError> {
        if self.at.len() >= DEPTH_MAX {
            return Err(self.error("nested too deeply"));
        }
        self.at.push(step.to_owned());
        let parsed = parse(self)?;
        self.at.pop();
        Ok(parsed)
    }

    fn node(&mut self, value: &Value) -> Result<Schema, SchemaError> {
        let Some(map) = value.as_object() else { return Err(self.error("must be an object")) };
        let text = |key: &str| map.get(key).and_then(Value::as_str);
        let flag = |key: &str| map.get(key).and_then(Value::as_bool).unwrap_or_default();
        let count = |key: &str| map.get(key).and_then(Value::as_u64);
        let bound = |key: &str, exclusive: &str| match map.get(key) {
            Some(Value::Number(number)) => Some(Bound { value: number.clone(), exclusive: flag(exclusive) }),
            _ => None,
        };
        let schema_type = match text("type") {
            None | Some("") => None,
            Some("object") => Some(Type::Object),
            Some("array") => Some(Type::Array),
            Some("string") => Some(Type::String),
            Some("integer") => Some(Type::Integer),
            Some("number") => Some(Type::Number),
            Some("boolean") => Some(Type::Boolean),
            Some(other) => return Err(self.error(&format!("unknown type \"{other}\""))),
        };
        // The keywords that have no schema below them.
        let mut schema = Schema {
            schema_type,
            format: text("format").unwrap_or_default().to_owned(),
            required: texts(map.get("required")),
            default: map.get("default").cloned(),
            enumeration: map.get("enum").and_then(Value::as_array).cloned(),
            minimum: bound("minimum", "exclusiveMinimum"),
            maximum: bound("maximum", "exclusiveMaximum"),
            multiple_of: map.get("multipleOf").and_then(Value::as_f64),
            min_length: count("minLength"),
            max_length: count("maxLength"),
            pattern: text("pattern").filter(|pattern| !pattern.is_empty()).map(Pattern::new),
            min_items: count("minItems"),
            max_items: count("maxItems"),
            unique_items: flag("uniqueItems"),
            min_properties: count("minProperties"),
            max_properties: count("maxProperties"),
            nullable: flag("nullable"),
            preserve_unknown_fields: flag("x-kubernetes-preserve-unknown-fields"),
            embedded_resource: flag("x-kubernetes-embedded-resource"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            list_type: match text("x-kubernetes-list-type") {
                Some("set") => Some(ListType::Set),
                Some("map") => Some(ListType::Map),
                Some("atomic") => Some(ListType::Atomic),
                _ => None,
            },
            list_map_keys: texts(map.get("x-kubernetes-list-map-keys")),
            atomic_map: text("x-kubernetes-map-type") == Some("atomic"),
            patch_strategy: text("x-kubernetes-patch-strategy")
                .map(|strategy| strategy.split(',').map(str::to_owned).collect())
                .unwrap_or_default(),
            patch_merge_key: text("x-kubernetes-patch-merge-key").map(str::to_owned),
            rules: rules(map.get("x-kubernetes-validations")),
            reference: text("$ref").map(|reference| Reference {
                name: reference.rsplit('/').next().unwrap_or_default().to_owned(),
                target: OnceLock::new(),
            }),
            ..Schema::default()
        };
        self.children(map, &mut schema)?;
        // What follows from all keywords together.
        if self.dialect == Dialect::BuiltIn {
            built_in(&mut schema);
        }
        summarize(&mut schema);
        Ok(schema)
    }

    /// Parses the schemas below this one.
    fn children(&mut self, map: &Map<String, Value>, schema: &mut Schema) -> Result<(), SchemaError> {
        for (name, property) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let parsed = self.below(name, |parser| parser.node(property))?;
            schema.properties.insert(name.clone(), Arc::new(parsed));
        }
        if let Some(items) = map.get("items").filter(|items| items.is_object()) {
            schema.items = Some(Arc::new(self.below("items", |parser| parser.node(items))?));
        }
        schema.additional_properties = match map.get("additionalProperties") {
            Some(Value::Bool(allowed)) => Some(AdditionalProperties::Allowed(*allowed)),
            Some(entry @ Value::Object(_)) => {
                let parsed = self.below("additionalProperties", |parser| parser.node(entry))?;
                Some(AdditionalProperties::Schema(Arc::new(parsed)))
            }
            _ => None,
        };
        schema.all_of = self.list(map, "allOf")?;
        schema.any_of = self.list(map, "anyOf")?;
        schema.one_of = self.list(map, "oneOf")?;
        if let Some(not) = map.get("not").filter(|not| not.is_object()) {
            schema.not = Some(Arc::new(self.below("not", |parser| parser.node(not))?));
        }
        Ok(())
    }

    fn list(&mut self, map: &Map<String, Value>, key: &str) -> Result<Vec<Arc<Schema>>, SchemaError> {
        let nodes = map.get(key).and_then(Value::as_array).into_iter().flatten();
        nodes.map(|node| self.below(key, |parser| parser.node(node)).map(Arc::new)).collect()
    }
}

/// Sets the fields of a schema that summarize it and the schemas below it, such as `has_rules`.
fn summarize(schema: &mut Schema) {
    let children = || {
        let additional = match &schema.additional_properties {
            Some(AdditionalProperties::Schema(entry)) => Some(entry),
            _ => None,
        };
        schema.properties.values().chain(&schema.items).chain(additional)
    };
    let has_rules = children().any(|child| child.has_rules);
    // The target of a reference is not known yet. Assume that it has defaults, embedded resources,
    // and sets or keyed lists.
    let has_defaults =
        children().any(|child| child.has_defaults || child.default.is_some() || child.reference.is_some());
    let is_reference = schema.reference.is_some();
    let has_embedded = is_reference || schema.embedded_resource || children().any(|child| child.has_embedded);
    let is_distinct = matches!(schema.list_type, Some(ListType::Set | ListType::Map));
    let has_distinct = is_reference || is_distinct || children().any(|child| child.has_distinct);
    schema.has_rules = has_rules || !schema.rules.is_empty();
    (schema.has_embedded, schema.has_distinct) = (has_embedded, has_distinct);
    schema.has_defaults = has_defaults;
}

/// Adds properties of Go types that the published document omits.
fn built_in(schema: &mut Schema) {
    // An object without declared fields is raw JSON (RawExtension, FieldsV1, JSON).
    if schema.properties.is_empty()
        && schema.additional_properties.is_none()
        && schema.reference.is_none()
        && matches!(schema.schema_type, Some(Type::Object) | None)
    {
        schema.preserve_unknown_fields = true;
    }
    if schema.format == "int-or-string" {
        schema.int_or_string = true;
        schema.schema_type = None;
        schema.format.clear();
    }
    // Null is decoded as absent in every built-in type. The document has `default: {}` next to
    // every reference to a struct; that default is ignored because it would create empty structs.
    schema.nullable = true;
    if schema.default.as_ref().is_some_and(|default| default.as_object().is_some_and(Map::is_empty)) {
        schema.default = None;
    }
}

fn texts(value: Option<&Value>) -> Vec<String> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn rules(value: Option<&Value>) -> Vec<Rule> {
    let rule = |rule: &Value| {
        let text = |key: &str| rule.get(key).and_then(Value::as_str).map(str::to_owned);
        Rule {
            rule: text("rule").unwrap_or_default(),
            message: text("message"),
            message_expression: text("messageExpression"),
            reason: text("reason"),
            field_path: text("fieldPath"),
            optional_old_self: rule.get("optionalOldSelf").and_then(Value::as_bool),
        }
    };
    value.and_then(Value::as_array).into_iter().flatten().map(rule).collect()
}
