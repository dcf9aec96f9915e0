//! Schemas of objects, and the operations of a server on them: default, prune, validate.
//!
//! One type serves custom resources and built-in kinds. [`Schema::parse_crd`] parses the schema of
//! a custom resource from its CustomResourceDefinition. [`crate::openapi::Document`] parses the
//! schemas of built-in kinds from the published OpenAPI document and links their `$ref`s lazily. A
//! schema is parsed once and shared. The walkers ([`Schema::apply_defaults`], [`Schema::prune`],
//! [`Schema::validate`], ...) borrow it and allocate only for changes and errors. CEL validation
//! rules are kept ([`Schema::rules`]) but not evaluated here.

mod check_defaults;
mod coerce;
mod defaults;
mod formats;
mod lists;
mod parse;
mod prune;
pub mod structural;
mod typed;
mod validate;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

pub(crate) use coerce::json_type;
pub use coerce::{CoerceOptions, coerce_metadata, decode_metadata};
pub use formats::is_known_format;
pub use parse::SchemaError;

/// A JSON type that a schema can require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A map.
    Object,
    /// A list.
    Array,
    /// A string.
    String,
    /// An integer.
    Integer,
    /// Any number.
    Number,
    /// A boolean.
    Boolean,
}

impl Type {
    /// The type's name in schemas.
    pub const fn name(self) -> &'static str {
        match self {
            Type::Object => "object",
            Type::Array => "array",
            Type::String => "string",
            Type::Integer => "integer",
            Type::Number => "number",
            Type::Boolean => "boolean",
        }
    }
}

/// The entries that a map may have besides its declared properties.
#[derive(Clone, Debug)]
pub enum AdditionalProperties {
    /// Any entries, or none.
    Allowed(bool),
    /// Values of this schema.
    Schema(Arc<Schema>),
}

/// Semantics of a list (`x-kubernetes-list-type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListType {
    /// Replaced as a whole.
    Atomic,
    /// Unique scalars.
    Set,
    /// Items identified by key fields.
    Map,
}

/// One rule of `x-kubernetes-validations`, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The CEL expression.
    pub rule: String,
    /// The message of the error if the rule is false.
    pub message: Option<String>,
    /// A CEL expression that computes the message.
    pub message_expression: Option<String>,
    /// The reason of the error.
    pub reason: Option<String>,
    /// Path of the field to report, relative to the rule's node.
    pub field_path: Option<String>,
    /// True if a transition rule also runs when there is no old value.
    pub optional_old_self: Option<bool>,
}

/// A lower or upper bound for numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// The bound.
    pub value: serde_json::Number,
    /// True if the bound itself is excluded.
    pub exclusive: bool,
}

/// A regular expression, compiled at first use.
#[derive(Debug)]
pub struct Pattern {
    /// The expression as written.
    pub text: String,
    compiled: OnceLock<Result<regex::Regex, String>>,
}

impl Pattern {
    fn new(text: &str) -> Self {
        Pattern { text: text.to_owned(), compiled: OnceLock::new() }
    }

    /// True if the text matches. Returns an error if the expression cannot be compiled.
    pub fn matches(&self, text: &str) -> Result<bool, &str> {
        let compiled = self.compiled.get_or_init(|| crate::regexp::compile(&self.text));
        compiled.as_ref().map(|regex| regex.is_match(text)).map_err(String::as_str)
    }
}

/// A `$ref` to another definition of the same document, linked once the definition is parsed.
pub struct Reference {
    /// The definition's name.
    pub name: String,
    pub(crate) target: OnceLock<Arc<Schema>>,
}

/// Prints the name only: definitions may refer to themselves, so printing the target might not end.
impl std::fmt::Debug for Reference {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Reference").field(&self.name).finish()
    }
}

/// How the Go type of a definition decodes its value, where that differs from the published schema.
#[derive(Debug)]
pub enum Reads {
    /// A struct without fields.
    NoFields,
    /// A JSON schema (by a reference to its definition), or an alternative that the Go type
    /// accepts.
    SchemaOr(Arc<Schema>, Otherwise),
}

/// The alternatives to a JSON schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// A boolean.
    Flag,
    /// A list of schemas.
    Schemas,
    /// A list of strings.
    Texts,
}

/// One node of a schema.
#[derive(Debug, Default)]
pub struct Schema {
    /// The declared type. `None` if the schema declares none (or uses
    /// `x-kubernetes-int-or-string`).
    pub schema_type: Option<Type>,
    /// `format`, or empty.
    pub format: String,
    /// The declared fields.
    pub properties: BTreeMap<String, Arc<Schema>>,
    /// Schema of undeclared map entries. `None` means the schema has no rule, and unknown fields
    /// are pruned.
    pub additional_properties: Option<AdditionalProperties>,
    /// The schema of list items.
    pub items: Option<Arc<Schema>>,
    /// Required properties.
    pub required: Vec<String>,
    /// The default value.
    pub default: Option<Value>,
    /// The allowed values.
    pub enumeration: Option<Vec<Value>>,
    /// Minimum of a number.
    pub minimum: Option<Bound>,
    /// Maximum of a number.
    pub maximum: Option<Bound>,
    /// Numbers must be multiples of this.
    pub multiple_of: Option<f64>,
    /// Minimum number of characters.
    pub min_length: Option<u64>,
    /// Maximum number of characters.
    pub max_length: Option<u64>,
    /// Pattern that strings must match.
    pub pattern: Option<Pattern>,
    /// Minimum number of items.
    pub min_items: Option<u64>,
    /// Maximum number of items.
    pub max_items: Option<u64>,
    /// True if items must be unique.
    pub unique_items: bool,
    /// Minimum number of map entries.
    pub min_properties: Option<u64>,
    /// Maximum number of map entries.
    pub max_properties: Option<u64>,
    /// True if null is allowed.
    pub nullable: bool,
    /// All of these schemas must match.
    pub all_of: Vec<Arc<Schema>>,
    /// At least one of these schemas must match.
    pub any_of: Vec<Arc<Schema>>,
    /// Exactly one of these schemas must match.
    pub one_of: Vec<Arc<Schema>>,
    /// This schema must not match.
    pub not: Option<Arc<Schema>>,
    /// `x-kubernetes-preserve-unknown-fields`, or a built-in object without declared fields.
    pub preserve_unknown_fields: bool,
    /// `x-kubernetes-embedded-resource`: apiVersion, kind and metadata are known fields.
    pub embedded_resource: bool,
    /// `x-kubernetes-int-or-string`.
    pub int_or_string: bool,
    /// True if the definition is `resource.Quantity`: numbers are accepted and strings are made
    /// canonical.
    pub quantity: bool,
    /// True if a field of a built-in kind is omitted when its value is false, zero or empty,
    /// because its Go type is a plain value with `omitempty`.
    pub omit_empty: bool,
    /// Set if the Go type of the definition accepts less than its schema allows.
    pub reads: Option<Reads>,
    /// `x-kubernetes-list-type`.
    pub list_type: Option<ListType>,
    /// `x-kubernetes-list-map-keys`.
    pub list_map_keys: Vec<String>,
    /// `x-kubernetes-map-type: atomic`.
    pub atomic_map: bool,
    /// `x-kubernetes-patch-strategy`, split at commas.
    pub patch_strategy: Vec<String>,
    /// `x-kubernetes-patch-merge-key`.
    pub patch_merge_key: Option<String>,
    /// `x-kubernetes-validations`.
    pub rules: Vec<Rule>,
    /// True if this node or a node below it (references excluded) has rules.
    pub has_rules: bool,
    /// True if a node below has defaults, or may have them behind a reference.
    pub has_defaults: bool,
    /// True if this node or one below is an embedded resource, or may be one behind a reference.
    pub has_embedded: bool,
    /// True if this node or one below is a set or keyed list, or may be one behind a reference.
    pub has_distinct: bool,
    /// `$ref`; the other fields then have only the keywords next to it.
    pub reference: Option<Reference>,
}

impl Schema {
    /// Parses the `openAPIV3Schema` of a CustomResourceDefinition version.
    pub fn parse_crd(schema: &Value) -> Result<Arc<Schema>, SchemaError> {
        parse::parse(schema, parse::Dialect::Crd).map(Arc::new)
    }

    /// The node itself, or the target of its reference. An unlinked reference acts as an empty
    /// schema.
    pub fn target(&self) -> &Schema {
        let mut node = self;
        // A chain of references has few links; the bound guards against a definition that refers to
        // itself.
        for _ in 0..16 {
            match &node.reference {
                Some(reference) => match reference.target.get() {
                    Some(target) => node = target,
                    None => return node,
                },
                None => return node,
            }
        }
        node
    }

    /// The schema of a property: the declared one, or that of additional properties.
    pub fn property(&self, name: &str) -> Option<&Schema> {
        let node = self.target();
        match (node.properties.get(name), &node.additional_properties) {
            (Some(property), _) => Some(property),
            (None, Some(AdditionalProperties::Schema(schema))) => Some(schema),
            _ => None,
        }
    }

    /// The schema at a path of declared names, such as `["spec", "replicas"]`.
    pub fn at(&self, path: &[&str]) -> Option<&Schema> {
        path.iter().try_fold(self, |node, name| node.property(name)).map(Schema::target)
    }
}

/// Parses one definition of the OpenAPI document of built-in kinds; its references are not linked
/// yet.
pub(crate) fn parse_built_in(definition: &Value) -> Result<Schema, SchemaError> {
    parse::parse(definition, parse::Dialect::BuiltIn)
}

/// Role of the outermost value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// A whole object: apiVersion, kind and metadata are known without being declared.
    Resource,
    /// A part of an object.
    Value,
}

/// True if the value is null and the schema does not allow null.
fn is_unwanted_null(value: &Value, schema: &Schema) -> bool {
    value.is_null() && !schema.nullable
}

impl Schema {
    /// The node itself or, if it is a reference, the target of the reference. An unlinked reference
    /// has an empty target.
    pub(crate) fn target_or_empty(&self) -> &Schema {
        static EMPTY: std::sync::LazyLock<Schema> = std::sync::LazyLock::new(Schema::default);
        match &self.reference {
            Some(reference) => reference.target.get().map_or(&*EMPTY, |target| target),
            None => self,
        }
    }
}
