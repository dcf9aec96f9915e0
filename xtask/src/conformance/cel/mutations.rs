//! Suites of mutating admission policies.

use berth_apimachinery::apply::Types;
use berth_apimachinery::builtin;
use berth_apimachinery::meta::GroupVersionResource;
use berth_cel::Env;
use berth_cel::admission::mutation::{self, Mutator, PatchType};
use berth_cel::admission::policy::POLICY_COST_MAX;
use berth_cel::admission::{Declared, Inputs};
use serde_json::Value;

use super::{Case, Runner, Verdict, input, same, text, want};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "map-json-patch" => |case| run(case, PatchType::JsonPatch),
        "map-apply-configuration" => |case| run(case, PatchType::ApplyConfiguration),
        _ => return None,
    })
}

fn run(case: &Case, patch_type: PatchType) -> Verdict {
    let wanted = text(&case.want, "expectedErr");
    match mutate(case, patch_type) {
        Err(error) if !wanted.is_empty() && error.contains(wanted) => Ok(()),
        Err(error) => Err(format!("got error  {error}\nwant error {wanted:?}")),
        Ok(_) if !wanted.is_empty() => Err(format!("want error {wanted}, got none")),
        Ok(object) => same("object", without_empty(object), without_empty(want(case, "expectedResult").clone())),
    }
}

/// The name of the OpenAPI definition of a resource.
fn definition(resource: &Value) -> Option<&'static str> {
    let resource =
        GroupVersionResource::new(text(resource, "group"), text(resource, "version"), text(resource, "resource"));
    let kind = builtin::document().kinds().find(|kind| kind.guess_resource().0 == resource)?;
    builtin::document().definition_name(kind)
}

fn mutate(case: &Case, patch_type: PatchType) -> Result<Value, String> {
    let definition = definition(input(case, "gvr")).ok_or("the resource has no definition")?;
    let expression = text(&case.input, "expression");
    let declared = Declared { authorizer: true, ..Declared::default() };
    let mutator = Mutator::compile(expression, patch_type, Env::default(), &declared)?;
    let none = Value::Null;
    let object = input(case, "object");
    let inputs =
        Inputs { object, old_object: &none, request: &none, params: &none, namespace: &none, authorizer: None };
    let mut budget = POLICY_COST_MAX;
    let mutation = mutator.evaluate(&inputs, &mut budget)?;
    let schema = builtin::document().definition(definition).ok_or("the resource has no schema")?;
    mutation::apply(&mutation, object, Some((&schema, &Types::from_schema(&schema))))
}

/// The value without nulls and empty objects, which Go structs serialize.
fn without_empty(mut value: Value) -> Value {
    match &mut value {
        Value::Object(map) => {
            let entries = std::mem::take(map).into_iter().map(|(key, value)| (key, without_empty(value)));
            map.extend(
                entries.filter(|(_, value)| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty())),
            );
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_empty(item.take())),
        _ => {}
    }
    value
}
