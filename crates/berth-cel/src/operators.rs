//! CEL's operators, applied to evaluated operands. Source: the language definition of CEL.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::error::EvalError;
use crate::node::Operator;
use crate::value::{Outcome, Text, Value, untyped};

pub(crate) fn overflow() -> EvalError {
    EvalError::message("integer overflow")
}

/// `value[index]` of a list or map. With `optional`, or if `value` is an optional, the result is an
/// optional, and a missing element is no error.
pub(crate) fn index_of<'a>(value: Value<'a>, index: &Value<'a>, optional: bool) -> Outcome<'a> {
    let (value, optional) = match value {
        Value::Optional(None) => return Ok(Value::Optional(None)),
        Value::Optional(Some(value)) => ((*value).clone(), true),
        other => (other, optional),
    };
    let found = match &value {
        Value::List(list) => {
            let position = match index {
                Value::Int(index) => Some(*index),
                Value::Uint(index) => i64::try_from(*index).ok(),
                Value::Double(index) if index.fract() == 0.0 => Some(*index as i64),
                _ => None,
            };
            let Some(position) = position else {
                let text = format!("unsupported index type '{}' in list", index.type_name());
                return Err(EvalError::message(text));
            };
            let found = usize::try_from(position).ok().and_then(|position| list.get(position));
            match found {
                None if !optional => return Err(EvalError::message(format!("index out of bounds: {position}"))),
                found => found.transpose()?,
            }
        }
        Value::Map(map) => match map.get(index) {
            None if !optional => {
                let shown = match index {
                    Value::String(text) => text.to_string(),
                    other => other.to_json().map(|json| json.to_string()).unwrap_or_default(),
                };
                return Err(EvalError::NoSuchKey(shown.into()));
            }
            found => found.transpose()?,
        },
        Value::Unknown(json) => return index_of(untyped(json), index, optional),
        _ => return Err(EvalError::NoOverload),
    };
    match (found, optional) {
        (Some(found), false) => Ok(found),
        (found, _) => Ok(Value::Optional(found.map(Arc::new))),
    }
}

/// `<`, `<=`, `>` or `>=`.
pub(crate) fn compare<'a>(operator: Operator, a: &Value<'a>, b: &Value<'a>) -> Outcome<'a> {
    let numeric = |value: &Value<'_>| matches!(value, Value::Int(_) | Value::Uint(_) | Value::Double(_));
    let Some(order) = a.compare(b) else {
        // NaN is not ordered.
        return if numeric(a) && numeric(b) { Ok(Value::Bool(false)) } else { Err(EvalError::NoOverload) };
    };
    Ok(Value::Bool(match operator {
        Operator::Less => order == Ordering::Less,
        Operator::LessOrEqual => order != Ordering::Greater,
        Operator::Greater => order == Ordering::Greater,
        _ => order != Ordering::Less,
    }))
}

/// `a in b`, for a list or the keys of a map.
pub(crate) fn member<'a>(a: &Value<'a>, b: &Value<'a>) -> Outcome<'a> {
    match b {
        Value::List(list) => {
            for item in list.iter() {
                if item?.equals(a)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        Value::Map(map) => Ok(Value::Bool(map.contains(a))),
        _ => Err(EvalError::NoOverload),
    }
}

/// `+`, `-`, `*`, `/` or `%`. Integers, durations and timestamps fail on overflow.
pub(crate) fn arithmetic<'a>(operator: Operator, a: Value<'a>, b: Value<'a>) -> Outcome<'a> {
    use Operator::*;
    macro_rules! checked {
        ($a:ident, $b:ident) => {
            match operator {
                Add => $a.checked_add($b),
                Subtract => $a.checked_sub($b),
                Multiply => $a.checked_mul($b),
                Divide => $a.checked_div($b),
                _ => $a.checked_rem($b),
            }
        };
    }
    match (a, b) {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) if operator == Divide => {
            Err(EvalError::message("division by zero"))
        }
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) if operator == Modulo => {
            Err(EvalError::message("modulus by zero"))
        }
        (Value::Int(a), Value::Int(b)) => checked!(a, b).map(Value::Int).ok_or_else(overflow),
        (Value::Uint(a), Value::Uint(b)) => {
            checked!(a, b).map(Value::Uint).ok_or_else(|| EvalError::message("unsigned integer overflow"))
        }
        (Value::Double(a), Value::Double(b)) => match operator {
            Add => Ok(Value::Double(a + b)),
            Subtract => Ok(Value::Double(a - b)),
            Multiply => Ok(Value::Double(a * b)),
            Divide => Ok(Value::Double(a / b)),
            _ => Err(EvalError::NoOverload),
        },
        (Value::String(a), Value::String(b)) if operator == Add => {
            let mut text = String::with_capacity(a.len() + b.len());
            text.push_str(&a);
            text.push_str(&b);
            Ok(Value::String(Text::Owned(text.into())))
        }
        (Value::Bytes(a), Value::Bytes(b)) if operator == Add => Ok(Value::Bytes([&*a, &*b].concat().into())),
        (Value::List(a), Value::List(b)) if operator == Add => a.concat(&b),
        (Value::Duration(a), Value::Duration(b)) if matches!(operator, Add | Subtract) => {
            checked!(a, b).map(Value::Duration).ok_or_else(|| EvalError::message("duration overflow"))
        }
        (Value::Timestamp(at), Value::Duration(by)) | (Value::Duration(by), Value::Timestamp(at))
            if operator == Add =>
        {
            at.plus(by.into()).map(Value::Timestamp)
        }
        (Value::Timestamp(at), Value::Duration(by)) if operator == Subtract => {
            at.plus(-i128::from(by)).map(Value::Timestamp)
        }
        (Value::Timestamp(a), Value::Timestamp(b)) if operator == Subtract => {
            let nanos = i64::try_from(a.total_nanos() - b.total_nanos());
            nanos.map(Value::Duration).map_err(|_| EvalError::message("duration overflow"))
        }
        _ => Err(EvalError::NoOverload),
    }
}
