//! Conversions between types.

use super::{Implementation, no_overload};
use crate::error::EvalError;
use crate::value::{Timestamp, Value, format_duration, parse_duration, text_of_double};

pub(super) fn implementation(name: &str) -> Option<Implementation> {
    Some(match name {
        "type" => |_, args| match args {
            [value] => Ok(Value::Type(value.type_())),
            _ => no_overload(),
        },
        "dyn" => |_, args| args.first().cloned().map_or_else(no_overload, Ok),
        "bool" => |_, args| match args {
            [Value::Bool(value)] => Ok(Value::Bool(*value)),
            [Value::String(text)] => match &**text {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
                "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
                _ => Err(conversion("bool")),
            },
            _ => no_overload(),
        },
        "bytes" => |_, args| match args {
            [Value::Bytes(bytes)] => Ok(Value::Bytes(bytes.clone())),
            [Value::String(text)] => Ok(Value::Bytes(text.as_bytes().into())),
            _ => no_overload(),
        },
        "double" => |_, args| match args {
            [Value::Double(value)] => Ok(Value::Double(*value)),
            [Value::Int(value)] => Ok(Value::Double(*value as f64)),
            [Value::Uint(value)] => Ok(Value::Double(*value as f64)),
            [Value::String(text)] => text.parse().map(Value::Double).map_err(|_| conversion("double")),
            _ => no_overload(),
        },
        "int" => |_, args| match args {
            [Value::Int(value)] => Ok(Value::Int(*value)),
            [Value::Uint(value)] => i64::try_from(*value).map(Value::Int).map_err(|_| overflow("integer")),
            [Value::Double(value)]
                if value.is_finite() && *value > -9.223372036854775e18 && *value < 9.223372036854775e18 =>
            {
                Ok(Value::Int(*value as i64))
            }
            [Value::Double(_)] => Err(overflow("integer")),
            [Value::String(text)] => text.parse().map(Value::Int).map_err(|_| conversion("int")),
            [Value::Timestamp(at)] => Ok(Value::Int(at.seconds)),
            [Value::Duration(nanos)] => Ok(Value::Int(*nanos)),
            _ => no_overload(),
        },
        "uint" => |_, args| match args {
            [Value::Uint(value)] => Ok(Value::Uint(*value)),
            [Value::Int(value)] => u64::try_from(*value).map(Value::Uint).map_err(|_| overflow("unsigned integer")),
            [Value::Double(value)] if *value >= 0.0 && *value < 1.844674407370955e19 => Ok(Value::Uint(*value as u64)),
            [Value::Double(_)] => Err(overflow("unsigned integer")),
            [Value::String(text)] => text.parse().map(Value::Uint).map_err(|_| conversion("uint")),
            _ => no_overload(),
        },
        "string" => |_, args| match args {
            [Value::String(text)] => Ok(Value::String(text.clone())),
            [Value::Bytes(bytes)] => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Value::from(text.to_owned())),
                Err(_) => Err(EvalError::message("invalid UTF-8 in bytes, cannot convert to string")),
            },
            [value] => text_of_scalar(value).map_or_else(no_overload, |text| Ok(Value::from(text))),
            _ => no_overload(),
        },
        "timestamp" => |_, args| match args {
            [Value::Timestamp(at)] => Ok(Value::Timestamp(*at)),
            [Value::Int(seconds)] => Timestamp::checked(*seconds, 0, 0).map(Value::Timestamp),
            [Value::String(text)] => {
                Timestamp::parse(text).map(Value::Timestamp).ok_or_else(|| conversion("google.protobuf.Timestamp"))
            }
            _ => no_overload(),
        },
        "duration" => |_, args| match args {
            [Value::Duration(nanos)] => Ok(Value::Duration(*nanos)),
            [Value::Int(nanos)] => Ok(Value::Duration(*nanos)),
            [Value::String(text)] => {
                parse_duration(text).map(Value::Duration).ok_or_else(|| conversion("google.protobuf.Duration"))
            }
            _ => no_overload(),
        },
        _ => return None,
    })
}

/// The text of a value that contains no others; `None` for octets and other values.
pub(super) fn text_of_scalar(value: &Value<'_>) -> Option<String> {
    Some(match value {
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Double(value) => text_of_double(*value),
        Value::String(text) => text.to_string(),
        Value::Timestamp(at) => at.to_string(),
        Value::Duration(nanos) => format_duration(*nanos),
        Value::Type(type_) => type_.name().to_owned(),
        Value::Ip(ip) => ip.to_string(),
        Value::Cidr(cidr) => cidr.to_string(),
        _ => return None,
    })
}

fn overflow(what: &str) -> EvalError {
    EvalError::message(format!("{what} overflow"))
}

/// A string cannot be converted to the target type.
fn conversion(to: &str) -> EvalError {
    EvalError::message(format!("type conversion error from 'string' to '{to}'"))
}
