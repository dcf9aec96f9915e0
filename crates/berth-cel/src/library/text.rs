//! Functions on strings. Positions count characters, not octets.

use berth_apimachinery::{field, regexp};
use regex::Regex;

use super::{Implementation, no_overload, of_text};
use crate::error::EvalError;
use crate::value::{Outcome, Value};

pub(super) fn implementation(name: &str) -> Option<Implementation> {
    Some(match name {
        "contains" => |_, args| of_texts(args, |text, part| text.contains(part)),
        "startsWith" => |_, args| of_texts(args, |text, part| text.starts_with(part)),
        "endsWith" => |_, args| of_texts(args, |text, part| text.ends_with(part)),
        "matches" => |_, args| with_regex(args, |regex, text, _| Value::Bool(regex.is_match(text))),
        "find" => |_, args| {
            with_regex(args, |regex, text, _| {
                Value::from(regex.find(text).map_or("", |found| found.as_str()).to_owned())
            })
        },
        "findAll" => |_, args| {
            with_regex(args, |regex, text, limit| {
                let found = regex.find_iter(text).take(limit).map(|found| Value::from(found.as_str().to_owned()));
                Value::from(found.collect::<Vec<_>>())
            })
        },
        "charAt" => |_, args| match args {
            [Value::String(text), Value::Int(at)] => {
                let length = text.chars().count();
                match usize::try_from(*at) {
                    Ok(at) if at <= length => Ok(Value::from(text.chars().skip(at).take(1).collect::<String>())),
                    _ => Err(out_of_range(*at)),
                }
            }
            _ => no_overload(),
        },
        "lowerAscii" => |_, args| of_text(args, |text| Value::from(text.to_ascii_lowercase())),
        "upperAscii" => |_, args| of_text(args, |text| Value::from(text.to_ascii_uppercase())),
        "trim" => |_, args| of_text(args, |text| Value::from(text.trim().to_owned())),
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
        "substring" => |_, args| substring(args),
        "join" => |_, args| join(args),
        "strings.quote" => |_, args| of_text(args, |text| Value::from(field::quote(text))),
        "jsonpatch.escapeKey" => {
            |_, args| of_text(args, |text| Value::from(text.replace('~', "~0").replace('/', "~1")))
        }
        _ => return None,
    })
}

fn of_texts<'a>(args: &[Value<'a>], holds: fn(&str, &str) -> bool) -> Outcome<'a> {
    match args {
        [Value::String(a), Value::String(b)] => Ok(Value::Bool(holds(a, b))),
        _ => no_overload(),
    }
}

/// The error for a position outside of a string.
pub(super) fn out_of_range(at: i64) -> EvalError {
    EvalError::message(format!("index out of range: {at}"))
}

fn substring<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (text, from, to) = match args {
        [Value::String(text), Value::Int(from)] => (text, *from, None),
        [Value::String(text), Value::Int(from), Value::Int(to)] => (text, *from, Some(*to)),
        _ => return no_overload(),
    };
    let length = text.chars().count();
    let end = to.unwrap_or(length as i64);
    if to.is_some_and(|to| from > to) {
        return Err(EvalError::message(format!("invalid substring range. start: {from}, end: {end}")));
    }
    match (usize::try_from(from), usize::try_from(end)) {
        (Ok(from), Ok(end)) if from <= end && end <= length => {
            Ok(Value::from(text.chars().skip(from).take(end - from).collect::<String>()))
        }
        (Ok(_), _) if to.is_some() => Err(out_of_range(end)),
        _ => Err(out_of_range(from)),
    }
}

fn join<'a>(args: &[Value<'a>]) -> Outcome<'a> {
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
}

/// Maximum size of a string that an expression creates, in bytes. Useful expressions reach their
/// cost limit first.
const TEXT_MAX: usize = 64 << 20;

/// Applies a regular expression to a string, with the maximum number of results.
fn with_regex<'a>(args: &[Value<'a>], apply: fn(&Regex, &str, usize) -> Value<'static>) -> Outcome<'a> {
    thread_local! {
        static LAST: std::cell::RefCell<Option<(String, Regex)>> = const { std::cell::RefCell::new(None) };
    }
    let (text, pattern, limit) = match args {
        [Value::String(text), Value::String(pattern)] => (text, pattern, usize::MAX),
        [Value::String(text), Value::String(pattern), Value::Int(limit)] => {
            (text, pattern, usize::try_from(*limit).unwrap_or(usize::MAX))
        }
        _ => return no_overload(),
    };
    LAST.with_borrow_mut(|last| {
        if !matches!(last, Some((known, _)) if **known == **pattern) {
            let regex = regexp::compile(pattern).map_err(EvalError::message)?;
            *last = Some((pattern.to_string(), regex));
        }
        match last {
            Some((_, regex)) => Ok(apply(regex, text, limit)),
            None => no_overload(),
        }
    })
}

fn bounded_replace<'a>(text: &str, from: &str, to: &str, limit: usize) -> Outcome<'a> {
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
