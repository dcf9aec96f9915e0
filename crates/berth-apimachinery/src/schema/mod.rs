//! Schemas of objects, and what a server does with them: default, prune, validate.
//!
//! One type serves both worlds. The schema of a custom resource is parsed from its CustomResourceDefinition
//! ([`Schema::parse_crd`]); the schema of a built-in kind from the published OpenAPI document
//! ([`crate::openapi::Document`]), whose `$ref`s are linked lazily. A schema is parsed once and shared; the walkers
//! ([`Schema::apply_defaults`], [`Schema::prune`], [`Schema::validate`], ...) borrow it and allocate only for what they change
//! or report. Validation rules in CEL are carried ([`Schema::rules`]) but not evaluated here.

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

/// A JSON type a schema can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A map.
    Object,
    /// A list.
    Array,
    /// Text.
    String,
    /// A whole number.
    Integer,
    /// Any number.
    Number,
    /// True or false.
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

/// What entries of a map may be beyond the declared properties.
#[derive(Clone, Debug)]
pub enum AdditionalProperties {
    /// Anything, or nothing.
    Allowed(bool),
    /// Values of this schema.
    Schema(Arc<Schema>),
}

/// How items of a list belong together (`x-kubernetes-list-type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListType {
    /// Replaced as a whole.
    Atomic,
    /// Distinct scalars.
    Set,
    /// Items told apart by key fields.
    Map,
}

/// One rule of `x-kubernetes-validations`, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The CEL expression.
    pub rule: String,
    /// What to say when it is false.
    pub message: Option<String>,
    /// A CEL expression for what to say.
    pub message_expression: Option<String>,
    /// The reason of the error.
    pub reason: Option<String>,
    /// Where to report it, relative to the rule's node.
    pub field_path: Option<String>,
    /// Whether a transition rule also runs when there is no old value.
    pub optional_old_self: Option<bool>,
}

/// A number that bounds values.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// The bound.
    pub value: serde_json::Number,
    /// Whether the bound itself is excluded.
    pub exclusive: bool,
}

/// A regular expression, compiled when first needed.
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

    /// Whether the text matches, or why the expression cannot be compiled.
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

/// The name: definitions refer to themselves, and what is behind a name would have no end.
impl std::fmt::Debug for Reference {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Reference").field(&self.name).finish()
    }
}

/// What Kubernetes' own type of a definition reads, where the published schema says nothing of it.
#[derive(Debug)]
pub enum Reads {
    /// A struct without fields.
    NoFields,
    /// A JSON schema (a reference to its definition), or what else the type takes.
    SchemaOr(Arc<Schema>, Otherwise),
}

/// What may stand where a JSON schema is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// True or false.
    Flag,
    /// A list of schemas.
    Schemas,
    /// A list of texts.
    Texts,
}

/// One node of a schema.
#[derive(Debug, Default)]
pub struct Schema {
    /// The declared type. `None` where the schema leaves it open (or `x-kubernetes-int-or-string` decides).
    pub schema_type: Option<Type>,
    /// `format`, or empty.
    pub format: String,
    /// The declared fields.
    pub properties: BTreeMap<String, Arc<Schema>>,
    /// What else a map may contain. `None` means the schema does not say, and unknown fields are pruned.
    pub additional_properties: Option<AdditionalProperties>,
    /// The schema of list items.
    pub items: Option<Arc<Schema>>,
    /// Properties that must be there.
    pub required: Vec<String>,
    /// The value to put in when there is none.
    pub default: Option<Value>,
    /// The allowed values.
    pub enumeration: Option<Vec<Value>>,
    /// Smallest number.
    pub minimum: Option<Bound>,
    /// Largest number.
    pub maximum: Option<Bound>,
    /// Numbers must be multiples of this.
    pub multiple_of: Option<f64>,
    /// Fewest characters.
    pub min_length: Option<u64>,
    /// Most characters.
    pub max_length: Option<u64>,
    /// What texts must look like.
    pub pattern: Option<Pattern>,
    /// Fewest items.
    pub min_items: Option<u64>,
    /// Most items.
    pub max_items: Option<u64>,
    /// Whether items must differ.
    pub unique_items: bool,
    /// Fewest map entries.
    pub min_properties: Option<u64>,
    /// Most map entries.
    pub max_properties: Option<u64>,
    /// Whether null is a value.
    pub nullable: bool,
    /// All of these must hold.
    pub all_of: Vec<Arc<Schema>>,
    /// At least one of these must hold.
    pub any_of: Vec<Arc<Schema>>,
    /// Exactly one of these must hold.
    pub one_of: Vec<Arc<Schema>>,
    /// This must not hold.
    pub not: Option<Arc<Schema>>,
    /// `x-kubernetes-preserve-unknown-fields`, or an object of a built-in kind without declared fields.
    pub preserve_unknown_fields: bool,
    /// `x-kubernetes-embedded-resource`: apiVersion, kind and metadata are known fields.
    pub embedded_resource: bool,
    /// `x-kubernetes-int-or-string`.
    pub int_or_string: bool,
    /// The definition is `resource.Quantity`: numbers are accepted and texts are made canonical.
    pub quantity: bool,
    /// The field of a built-in kind is left out when its value is false, zero, or empty: Go has it as a plain value, which is
    /// not written then.
    pub omit_empty: bool,
    /// The definition is of a type that reads less than its schema allows.
    pub reads: Option<Reads>,
    /// `x-kubernetes-list-type`.
    pub list_type: Option<ListType>,
    /// `x-kubernetes-list-map-keys`.
    pub list_map_keys: Vec<String>,
    /// `x-kubernetes-map-type: atomic`.
    pub atomic_map: bool,
    /// `x-kubernetes-patch-strategy`, cut at commas.
    pub patch_strategy: Vec<String>,
    /// `x-kubernetes-patch-merge-key`.
    pub patch_merge_key: Option<String>,
    /// `x-kubernetes-validations`.
    pub rules: Vec<Rule>,
    /// Whether there are rules here or below (not through references).
    pub has_rules: bool,
    /// Whether there are (or, behind references, may be) defaults below.
    pub has_defaults: bool,
    /// Whether there are (or, behind references, may be) embedded resources here or below.
    pub has_embedded: bool,
    /// Whether there are (or, behind references, may be) sets or keyed lists here or below.
    pub has_distinct: bool,
    /// `$ref`; the other fields then hold only what stands beside it.
    pub reference: Option<Reference>,
}

impl Schema {
    /// Parses the `openAPIV3Schema` of a CustomResourceDefinition version.
    pub fn parse_crd(schema: &Value) -> Result<Arc<Schema>, SchemaError> {
        parse::parse(schema, parse::Dialect::Crd).map(Arc::new)
    }

    /// The node itself, or what it refers to. An unlinked reference reads as a schema that says nothing.
    pub fn target(&self) -> &Schema {
        let mut node = self;
        // A chain of references is never longer than a few links; the bound guards against a definition that names itself.
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

    /// The schema of a property: declared, or that of additional entries.
    pub fn property(&self, name: &str) -> Option<&Schema> {
        let node = self.target();
        match (node.properties.get(name), &node.additional_properties) {
            (Some(property), _) => Some(property),
            (None, Some(AdditionalProperties::Schema(schema))) => Some(schema),
            _ => None,
        }
    }

    /// The schema at a path of declared names, e.g. `["spec", "replicas"]`.
    pub fn at(&self, path: &[&str]) -> Option<&Schema> {
        path.iter().try_fold(self, |node, name| node.property(name)).map(Schema::target)
    }
}

/// Parses one definition of the OpenAPI document of built-in kinds; its references are not linked yet.
pub(crate) fn parse_built_in(definition: &Value) -> Result<Schema, SchemaError> {
    parse::parse(definition, parse::Dialect::BuiltIn)
}

/// Where the outermost value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// It is a whole object: apiVersion, kind and metadata are known without being declared.
    Resource,
    /// It is a part of one.
    Value,
}

/// Whether a null stands where the schema wants something else.
fn is_unwanted_null(value: &Value, schema: &Schema) -> bool {
    value.is_null() && !schema.nullable
}

impl Schema {
    /// What a reference leads to one step further, or a schema that says nothing.
    pub(crate) fn target_or_empty(&self) -> &Schema {
        static EMPTY: std::sync::LazyLock<Schema> = std::sync::LazyLock::new(Schema::default);
        match &self.reference {
            Some(reference) => reference.target.get().map_or(&*EMPTY, |target| target),
            None => self,
        }
    }
}
