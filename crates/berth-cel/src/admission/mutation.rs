//! Results of mutations: a list of JSON patch operations, or an object to apply.

use berth_apimachinery::apply::{Types, merge};
use berth_apimachinery::patch;
use berth_apimachinery::schema::{ListType, Root, Schema};
use serde_json::{Map as JsonMap, Value as Json, json};

use super::policy::OutOfBudget;
use super::{Declared, Inputs, environment};
use crate::env::Env;
use crate::program::{Program, Run};
use crate::rules::CALL_COST_MAX;
use crate::types::Type;
use crate::value::{List, Map, Value};
use crate::variables::Variables;

/// The result of a mutation.
#[derive(Clone, Debug, PartialEq)]
pub enum Mutation {
    /// JSON patch operations.
    Patch(Json),
    /// Fields to apply.
    Apply(Json),
}

/// The result type of a mutation's expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// A list of `JSONPatch{...}`.
    JsonPatch,
    /// An `Object{...}`.
    ApplyConfiguration,
}

impl PatchType {
    /// The type of an entry of `mutations`, and the field that holds its expression.
    pub fn of(mutation: &Json) -> Option<(PatchType, &'static str)> {
        match mutation.get("patchType").and_then(Json::as_str) {
            Some("JSONPatch") => Some((PatchType::JsonPatch, "jsonPatch")),
            Some("ApplyConfiguration") => Some((PatchType::ApplyConfiguration, "applyConfiguration")),
            _ => None,
        }
    }
}

/// A compiled mutation.
#[derive(Debug)]
pub struct Mutator {
    program: Program,
    patch_type: PatchType,
}

impl Mutator {
    /// Compiles the expression of a mutation.
    pub fn compile(text: &str, patch_type: PatchType, base: Env, declared: &Declared) -> Result<Mutator, String> {
        let env = environment(base.patches(), declared);
        let program = env.compile(text).map_err(|issues| format!("compilation failed: {issues}"))?;
        let found = program.result_type();
        let fits = match (patch_type, found) {
            (_, Type::Dyn) => true,
            (PatchType::ApplyConfiguration, Type::Object(object)) => object.name == "Object",
            (PatchType::JsonPatch, Type::List(item)) => match &**item {
                Type::Object(object) => object.name == "JSONPatch",
                Type::Dyn => true,
                _ => false,
            },
            _ => false,
        };
        if !fits {
            let wanted = match patch_type {
                PatchType::JsonPatch => "list(JSONPatch)",
                PatchType::ApplyConfiguration => "Object",
            };
            return Err(format!("must evaluate to {wanted} but got {found}"));
        }
        Ok(Mutator { program, patch_type })
    }

    /// Evaluates the mutation for a request. `budget` is the remaining cost budget of all
    /// mutations.
    pub fn evaluate(&self, inputs: &Inputs<'_>, budget: &mut u64) -> Result<Mutation, String> {
        self.evaluate_with(inputs, None, budget)
    }

    pub(crate) fn evaluate_with<'a>(
        &self,
        inputs: &Inputs<'a>,
        variables: Option<&'a Variables<'a>>,
        budget: &mut u64,
    ) -> Result<Mutation, String> {
        let values = inputs.values();
        let run = Run { limit: Some(CALL_COST_MAX), authorizer: inputs.authorizer, variables, ..Run::default() };
        let ran = self.program.run(&values, run);
        *budget = budget.checked_sub(ran.cost).ok_or_else(|| OutOfBudget.to_string())?;
        let value = ran.result.map_err(|error| error.to_string())?;
        match self.patch_type {
            PatchType::ApplyConfiguration => {
                let Value::Struct(object) = &value else {
                    return Err(format!("must evaluate to Object but got {}", value.type_name()));
                };
                check_names(&value, &object.name)?;
                json_of(&value).map(Mutation::Apply)
            }
            PatchType::JsonPatch => {
                let Value::List(list) = &value else {
                    return Err(format!(
                        "type mismatch: JSONPatchType.expression should evaluate to array, but got {}",
                        value.type_name()
                    ));
                };
                operations(list).map(Mutation::Patch)
            }
        }
    }
}

fn operations(list: &List<'_>) -> Result<Json, String> {
    let mut operations = Vec::with_capacity(list.len());
    for index in 0..list.len() {
        let Some(Value::Struct(operation)) = list.item(index) else {
            return Err("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch".to_owned());
        };
        let text = |field: &str| match operation.fields.get(field) {
            Some(Value::String(text)) => text.to_string(),
            _ => String::new(),
        };
        let mut json = JsonMap::new();
        for field in ["op", "path", "from"] {
            if !text(field).is_empty() {
                json.insert(field.to_owned(), text(field).into());
            }
        }
        if let Some(value) = operation.fields.get("value") {
            json.insert("value".to_owned(), json_of(value)?);
        }
        if !json.contains_key("path") {
            json.insert("path".to_owned(), json!(""));
        }
        operations.push(Json::Object(json));
    }
    Ok(Json::Array(operations))
}

/// Checks that nested objects have the type name of their path: `Object.spec` in the field `spec`.
fn check_names(value: &Value<'_>, path: &str) -> Result<(), String> {
    match value {
        Value::Struct(object) => {
            if object.name != path {
                return Err(format!(
                    "unexpected type name \"{}\", expected \"{path}\", which matches field name path from root Object type",
                    object.name
                ));
            }
            object.fields.iter().try_for_each(|(field, value)| check_names(value, &format!("{path}.{field}")))
        }
        Value::List(list @ List::Owned(..)) => {
            (0..list.len()).filter_map(|index| list.item(index)).try_for_each(|item| check_names(&item, path))
        }
        Value::Map(map @ Map::Owned(_)) => {
            map.keys().iter().filter_map(|key| map.get(key)).flatten().try_for_each(|item| check_names(&item, path))
        }
        _ => Ok(()),
    }
}

fn json_of(value: &Value<'_>) -> Result<Json, String> {
    value.to_json().ok_or_else(|| format!("a value of type {} cannot be part of an object", value.type_name()))
}

/// Applies a mutation to an object. If the schema is known, fields must be declared, and an apply
/// configuration may not set parts of atomic lists and maps. `Types` are the types of server-side
/// apply, which include the fields of `metadata` for every kind, regardless of the schema.
pub fn apply(mutation: &Mutation, object: &Json, known: Option<(&Schema, &Types)>) -> Result<Json, String> {
    match mutation {
        Mutation::Patch(operations) => {
            let patched = match patch::apply_json(object, operations) {
                Ok(patched) => patched,
                // A failed `test` operation means that the patch does nothing.
                Err(_) if has_failing_test(object, operations) => return Ok(object.clone()),
                Err(error) => return Err(format!("error applying patch: {error}")),
            };
            let unknown = known.map(|(schema, _)| schema.unknown_fields(&patched, Root::Resource)).unwrap_or_default();
            match unknown.as_slice() {
                [] => Ok(patched),
                fields => {
                    let fields: Vec<String> = fields.iter().map(|field| format!("unknown field \"{field}\"")).collect();
                    Err(format!("strict decoding error: {}", fields.join(", ")))
                }
            }
        }
        Mutation::Apply(applied) => {
            let deduced;
            let types = match known {
                Some((schema, types)) => {
                    check_applied(applied, schema, "").map_err(|error| format!("error applying patch: {error}"))?;
                    types
                }
                None => {
                    deduced = Types::deduced();
                    &deduced
                }
            };
            merge(types, &Types::root(), object, applied).map_err(|error| format!("error applying patch: {error}"))
        }
    }
}

/// True if one of the patch's `test` operations fails, and the operations before it succeed.
fn has_failing_test(object: &Json, operations: &Json) -> bool {
    let Some(list) = operations.as_array() else { return false };
    list.iter().enumerate().filter(|(_, operation)| operation["op"] == "test").any(|(index, _)| {
        let before = Json::from(list[..index].to_vec());
        let with = Json::from(list[..=index].to_vec());
        patch::apply_json(object, &before).is_ok() && patch::apply_json(object, &with).is_err()
    })
}

fn check_applied(applied: &Json, schema: &Schema, path: &str) -> Result<(), String> {
    let schema = schema.target();
    let atomic =
        |what: &str| Err(format!("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {what}"));
    match applied {
        Json::Object(_) if schema.atomic_map && !path.is_empty() => atomic(path),
        Json::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            let at = format!("{path}.{name}");
            match schema.property(name) {
                // This schema only restricts values in `metadata` and does not declare its fields,
                // which are the same for all kinds.
                Some(below) if path.is_empty() && name == "metadata" && below.target().property("labels").is_none() => {
                    Ok(())
                }
                Some(below) => check_applied(value, below, &at),
                // The fields of an object declared without fields (metadata) are checked elsewhere.
                None if schema.preserve_unknown_fields || schema.properties.is_empty() => Ok(()),
                None => {
                    Err(format!("failed to convert patch object to typed object: {at}: field not declared in schema"))
                }
            }
        }),
        Json::Array(items) => match (schema.list_type, &schema.items) {
            (Some(ListType::Map), Some(below)) => items.iter().try_for_each(|item| check_applied(item, below, path)),
            (Some(ListType::Set), _) => Ok(()),
            _ => atomic(path),
        },
        _ => Ok(()),
    }
}
