//! Values of objects: views of JSON, typed by their declaration.

use serde_json::Value as Json;

use super::{List, Map, Outcome, Timestamp, Value, bytes_of, parse_duration};
use crate::decl::{Decl, DeclKind};
use crate::error::EvalError;

/// A JSON value typed by its declaration; without one, typed by its JSON type.
pub(crate) fn view<'a>(json: &'a Json, decl: Option<&'a Decl>) -> Outcome<'a> {
    let Some(decl) = decl else { return Ok(untyped(json)) };
    if json.is_null() {
        return if decl.nullable {
            Ok(Value::Null)
        } else {
            Err(EvalError::message("invalid data, got null for schema with nullable=false"))
        };
    }
    let wrong = |text: &str| Err(EvalError::message(format!("invalid data, expected {text}")));
    match &decl.kind {
        DeclKind::Unknown => Ok(Value::Unknown(json)),
        DeclKind::IntOrString => match json {
            Json::String(text) => Ok(Value::from(text.as_str())),
            Json::Number(number) if number.is_i64() => Ok(untyped(json)),
            _ => wrong("XIntOrString value to be either a string or integer"),
        },
        DeclKind::Object(_) | DeclKind::Map(_) | DeclKind::EmptyMap => match json {
            Json::Object(map) => Ok(Value::Map(Map::Json(map, Some(decl)))),
            _ => wrong("a map for the provided schema with type=object"),
        },
        DeclKind::List { .. } => match json {
            Json::Array(items) => Ok(Value::List(List::Json(items, Some(decl)))),
            _ => wrong("an array for the provided schema with type=array"),
        },
        DeclKind::Bool => match json {
            Json::Bool(value) => Ok(Value::Bool(*value)),
            other => wrong(&format!("bool, got {}", go_type(other))),
        },
        DeclKind::Int => match json {
            Json::Number(number) if number.is_i64() => Ok(untyped(json)),
            other => wrong(&format!("int, got {}", go_type(other))),
        },
        DeclKind::Double => match json {
            Json::Number(number) => Ok(Value::Double(number.as_f64().unwrap_or(f64::NAN))),
            other => wrong(&format!("float, got {}", go_type(other))),
        },
        DeclKind::String | DeclKind::Bytes | DeclKind::Date | DeclKind::DateTime | DeclKind::Duration => {
            let Json::String(text) = json else { return wrong(&format!("string, got {}", go_type(json))) };
            formatted(text, &decl.kind)
        }
    }
}

fn formatted<'a>(text: &'a str, kind: &DeclKind) -> Outcome<'a> {
    let invalid = |what: &str| EvalError::message(format!("Invalid {what} formatted string {text}"));
    match kind {
        DeclKind::Bytes => bytes_of(text).map(Value::Bytes).ok_or_else(|| invalid("byte")),
        DeclKind::Date => Timestamp::parse_date(text).map(Value::Timestamp).ok_or_else(|| invalid("date")),
        DeclKind::DateTime => Timestamp::parse(text).map(Value::Timestamp).ok_or_else(|| invalid("date-time")),
        DeclKind::Duration => parse_duration(text).map(Value::Duration).ok_or_else(|| invalid("duration")),
        _ => Ok(Value::from(text)),
    }
}

fn go_type(json: &Json) -> &'static str {
    match json {
        Json::Null => "<nil>",
        Json::Bool(_) => "bool",
        Json::Number(number) if number.is_f64() => "float64",
        Json::Number(_) => "int64",
        Json::String(_) => "string",
        Json::Array(_) => "[]interface {}",
        Json::Object(_) => "map[string]interface {}",
    }
}

/// A JSON value without a declaration.
pub fn untyped(json: &Json) -> Value<'_> {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::Int(value),
            (None, Some(value)) => Value::Uint(value),
            _ => Value::Double(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::List(List::Json(items, None)),
        Json::Object(map) => Value::Map(Map::Json(map, None)),
    }
}
