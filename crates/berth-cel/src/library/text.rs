//! Functions on strings. Positions count characters, not octets.

use berth_apimachinery::regexp;
use regex::Regex;

use super::{Implementation, no_overload};
use crate::eval::EvalError;
use crate::value::Value;

pub(super) fn implementation(name: &str) -> Option<Implementation> {
    Some(match name {
        "contains" => |_, args| match args {
            [Value::String(text), Value::String(part)] => Ok(Value::Bool(text.contains(&**part))),
            _ => no_overload(),
        },
        "startsWith" => |_, args| match args {
            [Value::String(text), Value::String(part)] => Ok(Value::Bool(text.starts_with(&**part))),
            _ => no_overload(),
        },
        "endsWith" => |_, args| match args {
            [Value::String(text), Value::String(part)] => Ok(Value::Bool(text.ends_with(&**part))),
            _ => no_overload(),
        },
        "matches" => |_, args| match args {
            [Value::String(text), Value::String(pattern)] => {
                with_regex(pattern, |regex| Value::Bool(regex.is_match(text)))
            }
            _ => no_overload(),
        },
        "find" => |_, args| match args {
            [Value::String(text), Value::String(pattern)] => {
                with_regex(pattern, |regex| Value::from(regex.find(text).map_or("", |found| found.as_str()).to_owned()))
            }
            _ => no_overload(),
        },
        "findAll" => |_, args| {
            let (text, pattern, limit) = match args {
                [Value::String(text), Value::String(pattern)] => (text, pattern, -1),
                [Value::String(text), Value::String(pattern), Value::Int(limit)] => (text, pattern, *limit),
                _ => return no_overload(),
            };
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            with_regex(pattern, |regex| {
                let found = regex.find_iter(text).take(limit).map(|found| Value::from(found.as_str().to_owned()));
                Value::from(found.collect::<Vec<_>>())
            })
        },
        "charAt" => |_, args| match args {
            [Value::String(text), Value::Int(at)] => {
                let length = text.chars().count();
                match usize::try_from(*at) {
                    Ok(at) if at < length => Ok(Value::from(text.chars().skip(at).take(1).collect::<String>())),
                    Ok(at) if at == length => Ok(Value::from(String::new())),
                    _ => Err(EvalError::message(format!("index out of range: {at}"))),
                }
            }
            _ => no_overload(),
        },
        "lowerAscii" => |_, args| match args {
            [Value::String(text)] => Ok(Value::from(text.to_ascii_lowercase())),
            _ => no_overload(),
        },
        "upperAscii" => |_, args| match args {
            [Value::String(text)] => Ok(Value::from(text.to_ascii_uppercase())),
            _ => no_overload(),
        },
        "trim" => |_, args| match args {
            [Value::String(text)] => Ok(Value::from(text.trim().to_owned())),
            _ => no_overload(),
        },
        "replace" => |_, args| match args {
            [Value::String(text), Value::String(from), Value::String(to)] => {
                bounded_replace(text, from, to, usize::MAX)
            }
            [Value::String(text), Value::String(from), Value::String(to), Value::Int(limit)] => {
                bounded_replace(text, from, to, usize::try_from(*limit).unwrap_or(usize::MAX))
            }
            _ => no_overload(),
        },
        "split" => |_, args| match args {
            [Value::String(text), Value::String(by)] => Ok(split(text, by, -1)),
            [Value::String(text), Value::String(by), Value::Int(limit)] => Ok(split(text, by, *limit)),
            _ => no_overload(),
        },
        "substring" => |_, args| match args {
            [Value::String(text), Value::Int(from)] => {
                let length = text.chars().count();
                match usize::try_from(*from) {
                    Ok(from) if from <= length => Ok(Value::from(text.chars().skip(from).collect::<String>())),
                    _ => Err(EvalError::message(format!("index out of range: {from}"))),
                }
            }
            [Value::String(text), Value::Int(from), Value::Int(to)] => {
                if from > to {
                    return Err(EvalError::message(format!("invalid substring range. start: {from}, end: {to}")));
                }
                let length = text.chars().count();
                match (usize::try_from(*from), usize::try_from(*to)) {
                    (Ok(from), Ok(to)) if to <= length => {
                        Ok(Value::from(text.chars().skip(from).take(to - from).collect::<String>()))
                    }
                    (Err(_), _) => Err(EvalError::message(format!("index out of range: {from}"))),
                    _ => Err(EvalError::message(format!("index out of range: {to}"))),
                }
            }
            _ => no_overload(),
        },
        "join" => |_, args| {
            let (list, by) = match args {
                [Value::List(list)] => (list, ""),
                [Value::List(list), Value::String(by)] => (list, &**by),
                _ => return no_overload(),
            };
            let mut joined = String::new();
            for (index, item) in list.iter().enumerate() {
                let Value::String(item) = item? else { return no_overload() };
                if index > 0 {
                    joined.push_str(by);
                }
                joined.push_str(&item);
                if joined.len() > TEXT_MAX {
                    return Err(EvalError::message("text too long"));
                }
            }
            Ok(Value::from(joined))
        },
        "strings.quote" => |_, args| match args {
            [Value::String(text)] => Ok(Value::from(berth_apimachinery::field::quote(text))),
            _ => no_overload(),
        },
        "jsonpatch.escapeKey" => |_, args| match args {
            [Value::String(text)] => Ok(Value::from(text.replace('~', "~0").replace('/', "~1"))),
            _ => no_overload(),
        },
        _ => return None,
    })
}

/// Maximum size of a string that an expression creates, in bytes. Useful expressions reach their
/// cost limit first.
const TEXT_MAX: usize = 64 << 20;

fn with_regex<'a>(pattern: &str, apply: impl FnOnce(&Regex) -> Value<'a>) -> Result<Value<'a>, EvalError> {
    thread_local! {
        static LAST: std::cell::RefCell<Option<(String, Regex)>> = const { std::cell::RefCell::new(None) };
    }
    LAST.with_borrow_mut(|last| {
        if !matches!(last, Some((known, _)) if known == pattern) {
            let regex = regexp::compile(pattern).map_err(EvalError::message)?;
            *last = Some((pattern.to_owned(), regex));
        }
        match last {
            Some((_, regex)) => Ok(apply(regex)),
            None => no_overload(),
        }
    })
}

fn bounded_replace<'a>(text: &str, from: &str, to: &str, limit: usize) -> Result<Value<'a>, EvalError> {
    let count = if from.is_empty() { text.chars().count() + 1 } else { text.matches(from).count() }.min(limit);
    if text.len().saturating_add(count.saturating_mul(to.len())) > TEXT_MAX {
        return Err(EvalError::message("text too long"));
    }
    Ok(Value::from(text.replacen(from, to, limit)))
}

fn split<'a>(text: &str, by: &str, limit: i64) -> Value<'a> {
    let parts: Vec<String> = match (limit, by) {
        (0, _) => Vec::new(),
        (1, _) => vec![text.to_owned()],
        (limit, "") => {
            let mut parts: Vec<String> = text.chars().map(String::from).collect();
            if let Ok(limit) = usize::try_from(limit)
                && parts.len() > limit
            {
                let rest = parts.split_off(limit - 1).concat();
                parts.push(rest);
            }
            parts
        }
        (limit, by) => match usize::try_from(limit) {
            Ok(limit) => text.splitn(limit, by).map(str::to_owned).collect(),
            Err(_) => text.split(by).map(str::to_owned).collect(),
        },
    };
    Value::from(parts.into_iter().map(Value::from).collect::<Vec<_>>())
}
