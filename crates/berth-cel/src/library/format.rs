//! String formatting (`'%s is %d'.format([...])`) and named formats.

use std::sync::Arc;

use super::convert::text_of_scalar;
use super::{Implementation, no_overload};
use crate::error::EvalError;
use crate::value::{Map, NAMED_FORMATS, Outcome, Value, named_format, text_of_double};

/// Maximum number of digits after the point.
const PRECISION_MAX: usize = 1000;

pub(super) fn implementation(name: &str) -> Option<Implementation> {
    /// For each of these names, `implementation` returns a function that ignores its arguments and
    /// returns the format at this index of [`NAMED_FORMATS`].
    macro_rules! constants {
        ($($name:literal => $index:literal),*) => {
            match name {
                $(concat!("format.", $name) => return Some(|_, _| Ok(Value::Format(&NAMED_FORMATS[$index]))),)*
                _ => {}
            }
        };
    }
    constants!("dns1123Label" => 0, "dns1123Subdomain" => 1, "dns1035Label" => 2, "qualifiedName" => 3,
        "dns1123LabelPrefix" => 4, "dns1123SubdomainPrefix" => 5, "dns1035LabelPrefix" => 6, "labelValue" => 7,
        "uri" => 8, "uuid" => 9, "byte" => 10, "date" => 11, "datetime" => 12);
    Some(match name {
        "format.named" => |_, args| match args {
            [Value::String(name)] => Ok(Value::Optional(named_format(name).map(Value::Format).map(Arc::new))),
            _ => no_overload(),
        },
        "validate" => |_, args| match args {
            [Value::Format(format), Value::String(text)] => {
                let problems: Vec<Value<'_>> = (format.check)(text).into_iter().map(Value::from).collect();
                Ok(Value::Optional((!problems.is_empty()).then(|| Arc::new(Value::from(problems)))))
            }
            _ => no_overload(),
        },
        "format" => |_, args| format(args),
        _ => return None,
    })
}

fn format<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::String(template), Value::List(values)] = args else { return no_overload() };
    let mut values = values.iter();
    let mut out = String::with_capacity(template.len());
    let mut chars = template.chars().peekable();
    let refuse = |text: String| Err(EvalError::message(text));
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut precision = 6;
        if chars.next_if_eq(&'%').is_some() {
            out.push('%');
            continue;
        }
        if chars.next_if_eq(&'.').is_some() {
            let mut digits = String::new();
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            precision = match digits.parse() {
                Ok(precision) if precision <= PRECISION_MAX => precision,
                _ => return refuse("could not parse formatting clause: error while parsing precision".to_owned()),
            };
        }
        let Some(clause) = chars.next() else {
            return refuse("could not parse formatting clause: unexpected end of string".to_owned());
        };
        if !matches!(clause, 's' | 'd' | 'f' | 'e' | 'b' | 'x' | 'X' | 'o') {
            return refuse(format!("could not parse formatting clause: unrecognized formatting clause \"{clause}\""));
        }
        let Some(value) = values.next() else {
            return refuse(format!("index {} out of range", args_len(args)));
        };
        let value = value?;
        let Some(text) = clause_text(clause, &value, precision)? else {
            return refuse(format!(
                "error during formatting: {} clause can't be used on {}",
                clause_name(clause),
                value.type_name()
            ));
        };
        out.push_str(&text);
    }
    Ok(Value::from(out))
}

fn args_len(args: &[Value<'_>]) -> usize {
    match args.get(1) {
        Some(Value::List(list)) => list.len(),
        _ => 0,
    }
}

fn clause_name(clause: char) -> &'static str {
    match clause {
        's' => "string",
        'd' => "decimal",
        'f' => "fixed-point",
        'e' => "scientific",
        'b' => "binary",
        'o' => "octal",
        _ => "hex",
    }
}

fn clause_text(clause: char, value: &Value<'_>, precision: usize) -> Result<Option<String>, EvalError> {
    Ok(match (clause, value) {
        ('s', value) => Some(text_of(value)?),
        ('d', Value::Int(value)) => Some(value.to_string()),
        ('d', Value::Uint(value)) => Some(value.to_string()),
        ('d' | 'f' | 'e', Value::Double(value)) if !value.is_finite() => Some(text_of_double(*value)),
        ('f', Value::Double(value)) => Some(format!("{value:.precision$}")),
        ('f', Value::Int(value)) => Some(format!("{:.precision$}", *value as f64)),
        ('e', Value::Double(value)) => Some(scientific(*value, precision)),
        ('e', Value::Int(value)) => Some(scientific(*value as f64, precision)),
        ('b', Value::Bool(value)) => Some(if *value { "1" } else { "0" }.to_owned()),
        ('b', Value::Int(value)) => Some(signed(*value, format!("{:b}", value.unsigned_abs()))),
        ('b', Value::Uint(value)) => Some(format!("{value:b}")),
        ('o', Value::Int(value)) => Some(signed(*value, format!("{:o}", value.unsigned_abs()))),
        ('o', Value::Uint(value)) => Some(format!("{value:o}")),
        ('x' | 'X', value) => {
            let hex = match value {
                Value::Int(value) => signed(*value, format!("{:x}", value.unsigned_abs())),
                Value::Uint(value) => format!("{value:x}"),
                Value::String(text) => text.bytes().map(|b| format!("{b:02x}")).collect(),
                Value::Bytes(bytes) => bytes.iter().map(|b| format!("{b:02x}")).collect(),
                _ => return Ok(None),
            };
            Some(if clause == 'X' { hex.to_ascii_uppercase() } else { hex })
        }
        _ => None,
    })
}

fn signed(value: i64, digits: String) -> String {
    if value < 0 { format!("-{digits}") } else { digits }
}

/// The number in scientific notation: `3.140000×10⁰⁰`.
fn scientific(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ("⁻", digits),
        None => ("", exponent),
    };
    let raised: String = format!("{digits:0>2}")
        .chars()
        .filter_map(|digit| "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(digit.to_digit(10)? as usize))
        .collect();
    format!("{mantissa}×10{sign}{raised}")
}

fn text_of(value: &Value<'_>) -> Result<String, EvalError> {
    Ok(match value {
        Value::Null => "null".to_owned(),
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::List(list) => {
            let mut items = Vec::new();
            for item in list.iter() {
                items.push(text_of(&item?)?);
            }
            format!("[{}]", items.join(", "))
        }
        Value::Map(map) => {
            let mut entries = Vec::new();
            for key in map.keys() {
                if let Some(value) = Map::get(map, &key) {
                    entries.push((text_of(&key)?, text_of(&value?)?));
                }
            }
            entries.sort();
            let entries: Vec<_> = entries.iter().map(|(key, value)| format!("{key}: {value}")).collect();
            format!("{{{}}}", entries.join(", "))
        }
        other => text_of_scalar(other).ok_or_else(|| {
            EvalError::message(format!(
                "error during formatting: string clause can only be used on strings, bools, bytes, ints, doubles, maps, \
                 lists, types, durations, and timestamps, was given {}",
                other.type_name()
            ))
        })?,
    })
}
