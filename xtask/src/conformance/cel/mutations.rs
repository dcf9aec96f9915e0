//! Mutating policies.

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
        Err(error) => Err(format!("error {error}\nwanted {wanted:?}")),
        Ok(_) if !wanted.is_empty() => Err(format!("must fail with {wanted}")),
        Ok(object) => same("object", written(object), written(want(case, "expectedResult").clone())),
    }
}

/// The name of the definition of the objects that a group, version and resource are of.
fn definition(resource: &Value) -> Option<&'static str> {
    let resource =
        GroupVersionResource::new(text(resource, "group"), text(resource, "version"), text(resource, "resource"));
    let kind = builtin::document().kinds().find(|kind| kind.guess_resource().0 == resource)?;
    builtin::document().definition_name(kind)
}

fn mutate(case: &Case, patch_type: PatchType) -> Result<Value, String> {
    let definition = definition(input(case, "gvr")).ok_or("no definition of the resource")?;
    let expression = text(&case.input, "expression");
    let declared = Declared { authorizer: true, ..Declared::default() };
    let mutator = Mutator::compile(expression, patch_type, Env::default(), &declared)?;
    let none = Value::Null;
    let object = input(case, "object");
    let inputs =
        Inputs { object, old_object: &none, request: &none, params: &none, namespace: &none, authorizer: None };
    let mut budget = POLICY_COST_MAX;
    let mutation = mutator.evaluate(&inputs, &mut budget)?;
    let schema = builtin::document().definition(definition).ok_or("no schema of the resource")?;
    mutation::apply(&mutation, object, Some((&schema, &Types::from_schema(&schema))))
}

/// Without what a Go struct writes although it is empty.
fn written(mut value: Value) -> Value {
    match &mut value {
        Value::Object(map) => {
            let entries = std::mem::take(map).into_iter().map(|(key, value)| (key, written(value)));
            map.extend(
                entries.filter(|(_, value)| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty())),
            );
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = written(item.take())),
        _ => {}
    }
    value
}
