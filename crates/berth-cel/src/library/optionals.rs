//! Functions that create and read CEL's optional values.

use std::sync::Arc;

use super::{Implementation, no_overload};
use crate::error::EvalError;
use crate::value::Value;

pub(super) fn implementation(name: &str) -> Option<Implementation> {
    Some(match name {
        "optional.of" => |_, args| match args {
            [value] => Ok(Value::Optional(Some(Arc::new(value.clone())))),
            _ => no_overload(),
        },
        "optional.ofNonZeroValue" => |_, args| match args {
            [value] => Ok(Value::Optional((!is_zero(value)).then(|| Arc::new(value.clone())))),
            _ => no_overload(),
        },
        "optional.none" => |_, _| Ok(Value::Optional(None)),
        "value" => |_, args| match args {
            [Value::Optional(Some(value))] => Ok((**value).clone()),
            [Value::Optional(None)] => Err(EvalError::message("optional.none() dereference")),
            _ => no_overload(),
        },
        "hasValue" => |_, args| match args {
            [Value::Optional(value)] => Ok(Value::Bool(value.is_some())),
            _ => no_overload(),
        },
        // Both operands are evaluated here; the evaluator usually skips the second one if the first
        // has a value.
        "or" => |_, args| match args {
            [Value::Optional(None), other] => Ok(other.clone()),
            [some, _] => Ok(some.clone()),
            _ => no_overload(),
        },
        "orValue" => |_, args| match args {
            [Value::Optional(None), other] => Ok(other.clone()),
            [Value::Optional(Some(value)), _] => Ok((**value).clone()),
            _ => no_overload(),
        },
        _ => return None,
    })
}

/// True if a value is the zero value of its type, of which `optional.ofNonZeroValue` makes none.
fn is_zero(value: &Value<'_>) -> bool {
    match value {
        Value::Null | Value::Optional(None) => true,
        Value::Bool(value) => !value,
        Value::Int(value) | Value::Duration(value) => *value == 0,
        Value::Uint(value) => *value == 0,
        Value::Double(value) => *value == 0.0,
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::List(list) => list.is_empty(),
        Value::Map(map) => map.is_empty(),
        Value::Struct(value) => value.fields.is_empty(),
        _ => false,
    }
}
