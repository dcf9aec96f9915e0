//! Checks that the schema of a CustomResourceDefinition is structural.
//!
//! A structural schema declares the type of every field it mentions. It separates value validations
//! (`allOf` and the like) from structure. Pruning and defaulting rely on that. The schema is
//! checked as JSON, before it is parsed.
//!
//! Source: Kubernetes documentation, "Custom Resources: Specifying a structural schema". CEL rules
//! are not checked here.

use serde_json::{Map, Value};

use crate::field::{Error, Path};
use crate::regexp;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// The checks beyond the basic shape. New definitions must pass all; a stored one may be older than
/// a check.
#[derive(Clone, Copy, Debug)]
pub struct StructuralOptions {
    /// True if the schema must be structural.
    pub structural: bool,
    /// True if types must be among the known ones.
    pub valid_types: bool,
    /// True if patterns must be regular expressions.
    pub valid_patterns: bool,
    /// True if items of sets must be atomic.
    pub atomic_sets: bool,
    /// True if keys of keyed lists must be required or have a default; items of sets must not be
    /// null.
    pub map_keys: bool,
    /// True if defaults may be given.
    pub defaults: bool,
    /// True if the version has a status subresource.
    pub status_subresource: bool,
}

impl StructuralOptions {
    /// The checks for a new definition of apiextensions.k8s.io/v1.
    pub const V1: StructuralOptions = StructuralOptions {
        structural: true,
        valid_types: true,
        valid_patterns: true,
        atomic_sets: true,
        map_keys: true,
        defaults: true,
        status_subresource: false,
    };
}

/// Exceptions that the structural check allows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exceptions {
    /// True if value validations may mention a property that the structure allows only by
    /// `additionalProperties`.
    pub properties_by_additional: bool,
    /// True if `additionalProperties` may occur inside value validations.
    pub nested_additional_properties: bool,
    /// True if `x-kubernetes-validations` may occur inside value validations.
    pub nested_rules: bool,
}

/// Checks the `openAPIV3Schema` of a version.
pub fn check(schema: &Value, options: StructuralOptions, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    if options.status_subresource
        && let Some(kind) = schema.get("type").and_then(Value::as_str)
        && kind != "object"
    {
        let detail =
            "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        errors.push(Error::invalid(&path.child("type"), kind, detail));
        return errors;
    }
    if options.status_subresource {
        root_with_status(schema, path, &mut errors);
    }
    keywords(schema, options, Place::default(), true, path, &mut errors);
    // A schema that cannot be parsed has no structure to check.
    if options.structural && !refuses_to_preserve(schema) {
        errors.extend(check_structural(schema, Exceptions::default(), path));
    }
    errors
}

/// Checks that a schema is structural.
pub fn check_structural(schema: &Value, exceptions: Exceptions, path: &Path<'_>) -> Vec<Error> {
    let mut checker = Checker { exceptions, errors: Vec::new() };
    checker.structure(schema, Level::Root, path);
    checker.errors
}

fn text<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn flag(schema: &Value, key: &str) -> bool {
    schema.get(key).and_then(Value::as_bool).unwrap_or_default()
}

fn entries<'a>(schema: &'a Value, key: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    schema.get(key).and_then(Value::as_object).into_iter().flatten()
}

fn list<'a>(schema: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    schema.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// Visits every schema directly below one, structure and value validations alike.
fn below(schema: &Value, path: &Path<'_>, visit: &mut dyn FnMut(&Value, &Path<'_>)) {
    for (name, property) in entries(schema, "properties") {
        visit(property, &path.child("properties").key(name));
    }
    for key in ["additionalProperties", "items", "not"] {
        if let Some(child) = schema.get(key).filter(|child| child.is_object()) {
            visit(child, &path.child(key));
        }
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for (i, child) in list(schema, key).enumerate() {
            visit(child, &path.child(key).index(i));
        }
    }
}

/// Keywords allowed at the root of a schema with a status subresource.
const ROOT_KEYWORDS: [(&str, &str); 21] = [
    ("description", "Description"),
    ("type", "Type"),
    ("format", "Format"),
    ("title", "Title"),
    ("maximum", "Maximum"),
    ("exclusiveMaximum", "ExclusiveMaximum"),
    ("minimum", "Minimum"),
    ("exclusiveMinimum", "ExclusiveMinimum"),
    ("maxLength", "MaxLength"),
    ("minLength", "MinLength"),
    ("pattern", "Pattern"),
    ("maxItems", "MaxItems"),
    ("minItems", "MinItems"),
    ("uniqueItems", "UniqueItems"),
    ("multipleOf", "MultipleOf"),
    ("required", "Required"),
    ("items", "Items"),
    ("properties", "Properties"),
    ("externalDocs", "ExternalDocs"),
    ("example", "Example"),
    ("x-kubernetes-preserve-unknown-fields", "XPreserveUnknownFields"),
];

fn root_with_status(schema: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let says_something = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        _ => true,
    };
    let is_known =
        |key: &str| key == "x-kubernetes-validations" || ROOT_KEYWORDS.iter().any(|(known, _)| *known == key);
    let said = schema.as_object().into_iter().flatten();
    if said.into_iter().any(|(key, value)| says_something(value) && !is_known(key)) {
        let names: Vec<&str> = ROOT_KEYWORDS.iter().map(|(_, name)| *name).chain(["XValidations"]).collect();
        let detail = format!(
            "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
            names.join(" ")
        );
        errors.push(Error::invalid(path, schema.clone(), detail));
    }
}

/// True if the schema sets `x-kubernetes-preserve-unknown-fields: false` anywhere.
fn refuses_to_preserve(schema: &Value) -> bool {
    let mut found = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false));
    below(schema, &Path::root(), &mut |child, _| found = found || refuses_to_preserve(child));
    found
}

/// Position of a schema in a resource, as far as it restricts the schema.
#[derive(Clone, Copy, Default)]
struct Place {
    /// True inside apiVersion, kind or metadata.
    inside_meta: bool,
    /// The reason why a default is not allowed at this position.
    no_default: Option<&'static str>,
}

/// Checks each keyword: known types, list and map types, keys, and keywords that are not allowed.
fn keywords(
    schema: &Value,
    options: StructuralOptions,
    place: Place,
    is_root: bool,
    path: &Path<'_>,
    errors: &mut Vec<Error>,
) {
    let kind = text(schema, "type");
    let no_default = place.no_default.or((!options.defaults).then_some("must not be set"));
    if let Some(detail) = no_default.filter(|_| schema.get("default").is_some_and(|default| !default.is_null())) {
        errors.push(Error::forbidden(&path.child("default"), detail));
    }
    let is_embedded = flag(schema, "x-kubernetes-embedded-resource");
    if is_embedded && place.inside_meta {
        let detail = "must not be used inside of resource meta";
        errors.push(Error::forbidden(&path.child("x-kubernetes-embedded-resource"), detail));
    }
    if is_embedded && schema.get("additionalProperties").is_some_and(|value| !value.is_null()) {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(Error::forbidden(&path.child("additionalProperties"), detail));
    }
    if let Some(preserve) = schema.get("x-kubernetes-preserve-unknown-fields").filter(|value| **value == false) {
        let detail = "must be true or undefined";
        errors.push(Error::invalid(&path.child("x-kubernetes-preserve-unknown-fields"), preserve.clone(), detail));
    }
    if kind == "null" {
        errors
            .push(Error::forbidden(&path.child("type"), "type cannot be set to null, use nullable as an alternative"));
    }
    if options.valid_types && !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(Error::not_supported(&path.child("type"), kind, &TYPES));
    }
    let pattern = text(schema, "pattern");
    if options.valid_patterns
        && !pattern.is_empty()
        && let Err(why) = regexp::compile(pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {why}");
        errors.push(Error::invalid(&path.child("pattern"), pattern, detail));
    }
    if flag(schema, "uniqueItems") {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(Error::forbidden(&path.child("uniqueItems"), detail));
    }
    if let Some(additional) = schema.get("additionalProperties").filter(|additional| !additional.is_null()) {
        let has_properties = entries(schema, "properties").next().is_some();
        if has_properties && additional != &Value::Bool(true) {
            let detail = "additionalProperties and properties are mutual exclusive";
            errors.push(Error::forbidden(&path.child("additionalProperties"), detail));
        } else if additional == &Value::Bool(false) {
            errors.push(Error::forbidden(
                &path.child("additionalProperties"),
                "additionalProperties cannot be set to false",
            ));
        }
    }
    for key in ["$ref", "definitions", "dependencies", "id", "patternProperties", "additionalItems"] {
        if schema.get(key).is_some_and(|value| !value.is_null() && value.as_str() != Some("")) {
            errors.push(Error::forbidden(&path.child(key), format!("{key} is not supported")));
        }
    }
    list_keywords(schema, options, path, errors);
    let map_type = text(schema, "x-kubernetes-map-type");
    if !map_type.is_empty() {
        if !matches!(map_type, "atomic" | "granular") {
            errors.push(Error::not_supported(&path.child("x-kubernetes-map-type"), map_type, &["atomic", "granular"]));
        }
        must_be(kind, "object", "must be object if x-kubernetes-map-type is specified", path, errors);
    }
    keywords_below(schema, options, place, is_root, path, errors);
}

/// Checks the keywords of the schemas in a schema.
fn keywords_below(
    schema: &Value,
    options: StructuralOptions,
    place: Place,
    is_root: bool,
    path: &Path<'_>,
    errors: &mut Vec<Error>,
) {
    let is_embedded = flag(schema, "x-kubernetes-embedded-resource");
    for (name, property) in entries(schema, "properties") {
        let is_meta = (is_root || is_embedded) && matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
        let no_default = (is_root && is_meta).then_some("must not be set in top-level metadata");
        let place = Place { inside_meta: place.inside_meta || is_meta, no_default: place.no_default.or(no_default) };
        keywords(property, options, place, false, &path.child("properties").key(name), errors);
    }
    if let Some(additional) = schema.get("additionalProperties").filter(|additional| additional.is_object()) {
        let why = "must not be set inside additionalProperties applying to object metadata";
        let no_default = place.no_default.or(place.inside_meta.then_some(why));
        let place = Place { no_default, ..place };
        keywords(additional, options, place, false, &path.child("additionalProperties"), errors);
    }
    for key in ["items", "not"] {
        if let Some(child) = schema.get(key).filter(|child| child.is_object()) {
            keywords(child, options, place, false, &path.child(key), errors);
        }
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for (i, child) in list(schema, key).enumerate() {
            keywords(child, options, place, false, &path.child(key).index(i), errors);
        }
    }
}

fn must_be(kind: &str, wanted: &str, detail: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    if kind.is_empty() {
        errors.push(Error::required(&path.child("type"), detail));
    } else if kind != wanted {
        errors.push(Error::invalid(&path.child("type"), kind, detail));
    }
}

fn list_keywords(schema: &Value, options: StructuralOptions, path: &Path<'_>, errors: &mut Vec<Error>) {
    let list_type = text(schema, "x-kubernetes-list-type");
    let keys: Vec<&str> = list(schema, "x-kubernetes-list-map-keys").filter_map(Value::as_str).collect();
    let items = schema.get("items").filter(|items| items.is_object());
    if list_type.is_empty() {
        if !keys.is_empty() {
            let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
            errors.push(Error::required(&path.child("x-kubernetes-list-type"), detail));
        }
        return;
    }
    must_be(text(schema, "type"), "array", "must be array if x-kubernetes-list-type is specified", path, errors);
    if !matches!(list_type, "atomic" | "set" | "map") {
        errors.push(Error::not_supported(&path.child("x-kubernetes-list-type"), list_type, &["atomic", "set", "map"]));
    } else if !keys.is_empty() && list_type != "map" {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(Error::invalid(&path.child("x-kubernetes-list-type"), list_type, detail));
    }
    let items_path = path.child("items");
    if list_type == "set"
        && let Some(items) = items
    {
        let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
        if options.atomic_sets && text(items, "type") == "object" && text(items, "x-kubernetes-map-type") != "atomic" {
            errors.push(Error::invalid(&items_path.child("x-kubernetes-map-type"), Value::Null, detail));
        }
        let nested = text(items, "x-kubernetes-list-type");
        if options.atomic_sets && text(items, "type") == "array" && !matches!(nested, "" | "atomic") {
            errors.push(Error::invalid(&items_path.child("x-kubernetes-list-type"), nested, detail));
        }
        if options.map_keys && flag(items, "nullable") {
            let detail = "cannot be nullable when x-kubernetes-list-type is set";
            errors.push(Error::forbidden(&items_path.child("nullable"), detail));
        }
    }
    if list_type == "map" {
        map_keys(schema, &keys, items, options, path, errors);
    }
}

fn map_keys(
    schema: &Value,
    keys: &[&str],
    items: Option<&Value>,
    options: StructuralOptions,
    path: &Path<'_>,
    errors: &mut Vec<Error>,
) {
    let keys_path = path.child("x-kubernetes-list-map-keys");
    let shown = schema.get("x-kubernetes-list-map-keys").cloned().unwrap_or_default();
    if keys.is_empty() {
        errors.push(Error::required(&keys_path, "must not be empty if x-kubernetes-list-type is map"));
        return;
    }
    let Some(items) = items else {
        errors.push(Error::required(&path.child("items"), "must have a schema if x-kubernetes-list-type is map"));
        return;
    };
    let items_path = path.child("items");
    let properties_path = items_path.child("properties");
    let kind = text(items, "type");
    if kind != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(Error::invalid(&items_path.child("type"), kind, detail));
    }
    if options.map_keys && flag(items, "nullable") {
        let detail = "cannot be nullable when x-kubernetes-list-type is map";
        errors.push(Error::forbidden(&items_path.child("nullable"), detail));
    }
    let property = |key: &str| items.get("properties").and_then(|properties| properties.get(key));
    if kind == "object" && keys.iter().any(|key| property(key).is_none()) {
        errors.push(Error::invalid(&keys_path, shown.clone(), "entries must all be names of item properties"));
    }
    if keys.iter().enumerate().any(|(i, key)| keys[..i].contains(key)) {
        errors.push(Error::invalid(&keys_path, shown, "must not contain duplicate entries"));
    }
    let required: Vec<&str> = list(items, "required").filter_map(Value::as_str).collect();
    for key in keys {
        let Some(property) = property(key) else { continue };
        let at = properties_path.key(key);
        let kind = text(property, "type");
        if matches!(kind, "object" | "array") {
            let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
            errors.push(Error::invalid(&at.child("type"), kind, detail));
        }
        if options.map_keys {
            let has_default = property.get("default").is_some_and(|default| !default.is_null());
            if !has_default && !required.contains(key) {
                let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                errors.push(Error::required(&at.child("default"), detail));
            }
            if flag(property, "nullable") {
                let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                errors.push(Error::forbidden(&at.child("nullable"), detail));
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Field,
    Item,
}

struct Checker {
    exceptions: Exceptions,
    errors: Vec<Error>,
}

impl Checker {
    fn structure(&mut self, schema: &Value, level: Level, path: &Path<'_>) {
        let kind = text(schema, "type");
        let free = flag(schema, "x-kubernetes-int-or-string") || flag(schema, "x-kubernetes-preserve-unknown-fields");
        match level {
            Level::Root if kind.is_empty() => {
                self.errors.push(Error::required(&path.child("type"), "must not be empty at the root"));
            }
            Level::Root if kind != "object" => {
                self.errors.push(Error::invalid(&path.child("type"), kind, "must be object at the root"));
            }
            Level::Field if kind.is_empty() && !free => {
                self.errors.push(Error::required(&path.child("type"), "must not be empty for specified object fields"));
            }
            Level::Item if kind.is_empty() && !free => {
                self.errors.push(Error::required(&path.child("type"), "must not be empty for specified array items"));
            }
            _ => {}
        }
        if level == Level::Root && schema.get("additionalProperties").is_some_and(|value| !value.is_null()) {
            self.errors.push(Error::forbidden(&path.child("additionalProperties"), "must not be used at the root"));
        }
        self.extensions(schema, level, kind, path);
        let is_resource = level == Level::Root || flag(schema, "x-kubernetes-embedded-resource");
        if is_resource {
            self.meta_fields(schema, level, path);
        }
        for (name, property) in entries(schema, "properties") {
            self.structure(property, Level::Field, &path.child("properties").key(name));
        }
        if let Some(additional) = schema.get("additionalProperties").filter(|value| value.is_object()) {
            self.structure(additional, Level::Field, &path.child("additionalProperties"));
        }
        if let Some(items) = schema.get("items").filter(|items| items.is_object()) {
            self.structure(items, Level::Item, &path.child("items"));
        }
        // Validates the value validations of this node against its structure.
        if ["allOf", "anyOf", "oneOf", "not"].iter().any(|key| schema.get(key).is_some()) {
            let int_or_string = flag(schema, "x-kubernetes-int-or-string");
            self.value_validations(schema, schema, &path.to_string(), "", int_or_string, path);
        }
    }

    fn extensions(&mut self, schema: &Value, level: Level, kind: &str, path: &Path<'_>) {
        let invalid = |field: &str, value: Value, detail: &str| Error::invalid(&path.child(field), value, detail);
        if let Some(preserve) = schema.get("x-kubernetes-preserve-unknown-fields").filter(|value| **value == false) {
            let detail = "must be true or undefined";
            self.errors.push(invalid("x-kubernetes-preserve-unknown-fields", preserve.clone(), detail));
        }
        if flag(schema, "x-kubernetes-embedded-resource") {
            if !matches!(kind, "" | "object") {
                self.errors.push(invalid(
                    "type",
                    kind.into(),
                    "must be object if x-kubernetes-embedded-resource is true",
                ));
            }
            if !flag(schema, "x-kubernetes-preserve-unknown-fields") && entries(schema, "properties").next().is_none() {
                let detail = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
                self.errors.push(Error::required(&path.child("properties"), detail));
            }
            if level == Level::Root {
                let detail = "must not be used at the root";
                self.errors.push(Error::forbidden(&path.child("x-kubernetes-embedded-resource"), detail));
            }
        }
        if flag(schema, "x-kubernetes-int-or-string") && !kind.is_empty() {
            let detail = "must be empty if x-kubernetes-int-or-string is true";
            self.errors.push(invalid("type", kind.into(), detail));
        }
    }

    /// Checks apiVersion, kind and metadata, which the API defines; a schema may only restrict
    /// names.
    fn meta_fields(&mut self, schema: &Value, level: Level, path: &Path<'_>) {
        let property = |name: &str| schema.get("properties").and_then(|properties| properties.get(name));
        let properties_path = path.child("properties");
        for (name, wanted) in [("apiVersion", "string"), ("kind", "string"), ("metadata", "object")] {
            let Some(property) = property(name) else { continue };
            let kind = text(property, "type");
            if !kind.is_empty() && kind != wanted {
                let at = properties_path.key(name);
                self.errors.push(Error::invalid(&at.child("type"), kind, format!("must be {wanted}")));
            }
        }
        if level != Level::Root {
            return;
        }
        if let Some(metadata) = property("metadata").and_then(Value::as_object) {
            let names_only = metadata.iter().all(|(key, value)| match key.as_str() {
                "type" | "description" | "default" => true,
                "properties" => value.as_object().is_some_and(|fields: &Map<String, Value>| {
                    fields.keys().all(|field| field == "name" || field == "generateName")
                }),
                _ => false,
            });
            if !names_only {
                let detail =
                    "must not specify anything other than name and generateName, but metadata is implicitly specified";
                self.errors.push(Error::forbidden(&properties_path.key("metadata"), detail));
            }
        }
    }

    /// Checks `allOf` and the like: they may not declare structure, nor mention fields that the
    /// structure does not have. `inner` is the path within them, for messages.
    fn value_validations(
        &mut self,
        schema: &Value,
        structure: &Value,
        outer: &str,
        inner: &str,
        int_or_string: bool,
        path: &Path<'_>,
    ) {
        let int_or_string_pattern = |branches: &Value| {
            let kinds: Vec<&str> =
                branches.as_array().into_iter().flatten().map(|branch| text(branch, "type")).collect();
            kinds == ["integer", "string"]
        };
        for key in ["allOf", "anyOf", "oneOf"] {
            for (i, branch) in list(schema, key).enumerate() {
                // `x-kubernetes-int-or-string` may be written out at this node or as the first item
                // of allOf.
                let spelled = int_or_string
                    && match key {
                        "anyOf" => schema.get(key).is_some_and(int_or_string_pattern),
                        "allOf" if i == 0 => branch.get("anyOf").is_some_and(int_or_string_pattern),
                        _ => false,
                    };
                let inner = join(inner, &format!("{key}[{i}]"));
                self.nested(branch, Some(structure), outer, &inner, spelled, &path.child(key).index(i));
            }
        }
        if let Some(not) = schema.get("not").filter(|not| not.is_object()) {
            self.nested(not, Some(structure), outer, &join(inner, "not"), false, &path.child("not"));
        }
    }

    fn nested(
        &mut self,
        schema: &Value,
        structure: Option<&Value>,
        outer: &str,
        inner: &str,
        int_or_string: bool,
        path: &Path<'_>,
    ) {
        let said = |key: &str| {
            schema.get(key).is_some_and(|value| match value {
                Value::Null | Value::Bool(false) => false,
                Value::String(text) => !text.is_empty(),
                Value::Array(list) => !list.is_empty(),
                _ => true,
            })
        };
        for (key, allowed, wanted) in [
            ("type", int_or_string, "empty"),
            ("description", false, "empty"),
            ("title", false, "empty"),
            ("default", false, "undefined"),
            ("nullable", false, "false"),
            ("additionalProperties", self.exceptions.nested_additional_properties, "undefined"),
            ("x-kubernetes-preserve-unknown-fields", false, "undefined"),
            ("x-kubernetes-embedded-resource", false, "false"),
            ("x-kubernetes-int-or-string", false, "false"),
            ("x-kubernetes-list-type", false, "undefined"),
            ("x-kubernetes-list-map-keys", false, "empty"),
            ("x-kubernetes-map-type", false, "undefined"),
            ("x-kubernetes-validations", self.exceptions.nested_rules, "empty"),
        ] {
            if said(key) && !allowed {
                self.errors.push(Error::forbidden(&path.child(key), format!("must be {wanted} to be structural")));
            }
        }
        let missing = |place: &str| {
            let at = join(outer, place);
            let at = Path::new(&at);
            Error::required(&at, format!("because it is defined in {}", join(inner, place)))
        };
        if let Some(structure) = structure {
            for (name, child) in entries(schema, "properties") {
                let declared = structure.get("properties").and_then(|properties| properties.get(name));
                let by_additional =
                    structure.get("additionalProperties").filter(|_| self.exceptions.properties_by_additional);
                let place = format!("properties[{name}]");
                match declared.or(by_additional) {
                    Some(declared) => {
                        let (outer, inner) = (join(outer, &place), join(inner, &place));
                        self.nested(child, Some(declared), &outer, &inner, false, &path.child("properties").key(name));
                    }
                    None => {
                        self.errors.push(missing(&place));
                        let inner = join(inner, &place);
                        self.nested(child, None, outer, &inner, false, &path.child("properties").key(name));
                    }
                }
            }
            for key in ["items", "additionalProperties"] {
                let Some(child) = schema.get(key).filter(|child| child.is_object()) else { continue };
                if key == "additionalProperties" && !self.exceptions.nested_additional_properties {
                    continue;
                }
                match structure.get(key).filter(|declared| declared.is_object()) {
                    Some(declared) => {
                        let (outer, inner) = (join(outer, key), join(inner, key));
                        self.nested(child, Some(declared), &outer, &inner, false, &path.child(key));
                    }
                    None => self.errors.push(missing(key)),
                }
            }
            self.value_validations(schema, structure, outer, inner, int_or_string, path);
        }
    }
}

fn join(outer: &str, inner: &str) -> String {
    if outer.is_empty() { inner.to_owned() } else { format!("{outer}.{inner}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check_v1(schema: Value) -> Vec<String> {
        check(&schema, StructuralOptions::V1, &Path::new("schema")).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_field_has_a_type() {
        let errors = check_v1(json!({"type": "object", "properties": {"a": {}, "b": {"type": "array", "items": {}}}}));
        assert_eq!(
            errors,
            [
                "schema.properties[a].type: Required value: must not be empty for specified object fields",
                "schema.properties[b].items.type: Required value: must not be empty for specified array items"
            ]
        );
    }

    #[test]
    fn value_validations_mention_only_declared_fields() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}},
            "anyOf": [{"required": ["a"]}, {"properties": {"b": {"minLength": 1}}}]});
        assert_eq!(
            check_v1(schema),
            ["schema.properties[b]: Required value: because it is defined in anyOf[1].properties[b]"]
        );
    }

    #[test]
    fn an_int_or_string_may_be_written_as_any_of() {
        let schema = json!({"type": "object", "properties": {"port": {
            "x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}}});
        assert!(check_v1(schema).is_empty());
    }

    #[test]
    fn keys_of_a_keyed_list_are_required_or_have_a_default() {
        let schema = json!({"type": "object", "properties": {"list": {"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"], "items": {"type": "object", "properties": {"name": {"type": "string"}}}}}});
        assert_eq!(check_v1(schema).len(), 1);
    }
}
