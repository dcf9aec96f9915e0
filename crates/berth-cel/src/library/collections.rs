//! Functions on lists, maps and sets.

use std::cmp::Ordering;
use std::sync::Arc;

use super::text::out_of_range;
use super::{Implementation, no_overload};
use crate::error::EvalError;
use crate::value::{List, Map, Outcome, OwnedMap, Value, contains};

pub(super) fn implementation(name: &str) -> Option<Implementation> {
    lists(name).or_else(|| sets_and_maps(name))
}

fn lists(name: &str) -> Option<Implementation> {
    Some(match name {
        "size" => |_, args| {
            Ok(Value::Int(match args {
                [Value::String(text)] => text.chars().count() as i64,
                [Value::Bytes(bytes)] => bytes.len() as i64,
                [Value::List(list)] => list.len() as i64,
                [Value::Map(map)] if !map.is_object() => map.len() as i64,
                _ => return no_overload(),
            }))
        },
        "isSorted" => |_, args| {
            for pair in only_list(args)?.windows(2) {
                match pair[0].compare(&pair[1]) {
                    Some(Ordering::Greater) => return Ok(Value::Bool(false)),
                    Some(_) => {}
                    None => return no_overload(),
                }
            }
            Ok(Value::Bool(true))
        },
        "sum" => |_, args| sum(args, Value::Int(0)),
        "min" => |_, args| extreme(args, "min", Ordering::Less),
        "max" => |_, args| extreme(args, "max", Ordering::Greater),
        "indexOf" => |_, args| index_of(args),
        "lastIndexOf" => |_, args| last_index_of(args),
        "flatten" => |_, args| {
            let (list, depth) = match args {
                [list] => (list, 1),
                [list, Value::Int(depth)] => (list, *depth),
                _ => return no_overload(),
            };
            if depth < 0 {
                return Err(EvalError::message("level must be non-negative"));
            }
            let mut flat = Vec::new();
            flatten(list, depth, &mut flat)?;
            Ok(Value::from(flat))
        },
        "slice" => |_, args| slice(args),
        "distinct" => |_, args| {
            let mut kept: Vec<Value<'_>> = Vec::new();
            for item in only_list(args)? {
                if !contains(&kept, &item)? {
                    kept.push(item);
                }
            }
            Ok(Value::from(kept))
        },
        "reverse" => |_, args| Ok(Value::from(only_list(args)?.into_iter().rev().collect::<Vec<_>>())),
        "lists.range" => |_, args| match args {
            [Value::Int(count)] if *count > RANGE_MAX => {
                Err(EvalError::message(format!("list of {count} items is too long")))
            }
            [Value::Int(count)] => Ok(Value::from((0..*count).map(Value::Int).collect::<Vec<_>>())),
            _ => no_overload(),
        },
        "sort" => |_, args| {
            let items = only_list(args)?;
            sorted(items.clone(), items)
        },
        "@sortByAssociatedKeys" => |_, args| {
            let [items, keys] = two_lists(args)?;
            sorted(items, keys)
        },
        _ => return None,
    })
}

fn sets_and_maps(name: &str) -> Option<Implementation> {
    Some(match name {
        "sets.contains" => |_, args| {
            let [all, some] = two_lists(args)?;
            Ok(Value::Bool(covers(&all, &some)?))
        },
        "sets.equivalent" => |_, args| {
            let [a, b] = two_lists(args)?;
            Ok(Value::Bool(covers(&a, &b)? && covers(&b, &a)?))
        },
        "sets.intersects" => |_, args| {
            let [a, b] = two_lists(args)?;
            for item in a {
                if contains(&b, &item)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        },
        "cel.@mapInsert" => |_, args| {
            let [Value::Map(map), rest @ ..] = args else { return no_overload() };
            let mut into = OwnedMap::default();
            into.insert_all(map)?;
            match rest {
                [key, value] => into.insert(key.clone(), value.clone())?,
                [Value::Map(more)] => into.insert_all(more)?,
                _ => return no_overload(),
            }
            Ok(Value::Map(Map::Owned(Arc::new(into))))
        },
        _ => return None,
    })
}

/// The position of an item in a list, or of a part in a string.
fn index_of<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (text, part, from) = match args {
        [list @ Value::List(_), wanted] => return position(items(list)?.iter().enumerate(), wanted),
        [Value::String(text), Value::String(part)] => (text, part, 0),
        [Value::String(text), Value::String(part), Value::Int(from)] => (text, part, *from),
        _ => return no_overload(),
    };
    // An empty part is found at every position.
    if part.is_empty() {
        return Ok(Value::Int(from));
    }
    let Ok(from) = usize::try_from(from) else { return Err(out_of_range(from)) };
    let (text, part): (Vec<char>, Vec<char>) = (text.chars().collect(), part.chars().collect());
    let found = text.windows(part.len()).skip(from).position(|window| window == part.as_slice());
    Ok(Value::Int(found.map_or(-1, |found| (found + from) as i64)))
}

/// The last position of an item in a list, or of a part in a string.
fn last_index_of<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (text, part, from) = match args {
        [list @ Value::List(_), wanted] => return position(items(list)?.iter().enumerate().rev(), wanted),
        [Value::String(text), Value::String(part)] => (text, part, None),
        [Value::String(text), Value::String(part), Value::Int(from)] => (text, part, Some(*from)),
        _ => return no_overload(),
    };
    let (text, part): (Vec<char>, Vec<char>) = (text.chars().collect(), part.chars().collect());
    if part.is_empty() {
        return Ok(Value::Int(from.unwrap_or(text.len() as i64)));
    }
    let from = from.unwrap_or(text.len().saturating_sub(1) as i64);
    let Ok(from) = usize::try_from(from) else { return Err(out_of_range(from)) };
    if from >= text.len() {
        return Ok(Value::Int(-1));
    }
    let found = text.windows(part.len()).take(from + 1).rposition(|window| window == part.as_slice());
    Ok(Value::Int(found.map_or(-1, |found| found as i64)))
}

fn slice<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [list @ Value::List(_), Value::Int(from), Value::Int(to)] = args else { return no_overload() };
    let items = items(list)?;
    let refuse = |why: &str| Err(EvalError::message(format!("cannot slice({from}, {to}), {why}")));
    if *from < 0 || *to < 0 {
        return refuse("negative indexes not supported");
    }
    if from > to {
        return refuse("start index must be less than or equal to end index");
    }
    if *to > items.len() as i64 {
        return refuse(&format!("list is length {}", items.len()));
    }
    Ok(Value::from(items[*from as usize..*to as usize].to_vec()))
}

/// Maximum length of a list from `lists.range`.
const RANGE_MAX: i64 = 1_000_000;

fn items<'a>(list: &Value<'a>) -> Result<Vec<Value<'a>>, EvalError> {
    match list {
        Value::List(List::Owned(items, _)) => Ok((**items).clone()),
        Value::List(list) => list.iter().collect(),
        _ => Err(EvalError::NoOverload),
    }
}

fn only_list<'a>(args: &[Value<'a>]) -> Result<Vec<Value<'a>>, EvalError> {
    match args {
        [list] => items(list),
        _ => Err(EvalError::NoOverload),
    }
}

fn two_lists<'a>(args: &[Value<'a>]) -> Result<[Vec<Value<'a>>; 2], EvalError> {
    match args {
        [a, b] => Ok([items(a)?, items(b)?]),
        _ => Err(EvalError::NoOverload),
    }
}

fn covers<'a>(all: &[Value<'a>], some: &[Value<'a>]) -> Result<bool, EvalError> {
    for item in some {
        if !contains(all, item)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn position<'a, 'i>(items: impl Iterator<Item = (usize, &'i Value<'a>)>, wanted: &Value<'a>) -> Outcome<'a>
where
    'a: 'i,
{
    for (at, item) in items {
        if item.equals(wanted)? {
            return Ok(Value::Int(at as i64));
        }
    }
    Ok(Value::Int(-1))
}

/// The sum of a list; `zero` if the list is empty.
pub(crate) fn sum<'a>(args: &[Value<'a>], zero: Value<'a>) -> Outcome<'a> {
    let mut total: Option<Value<'a>> = None;
    for item in only_list(args)? {
        total = Some(match (total, item) {
            (None, item @ (Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::Duration(_))) => item,
            (Some(Value::Int(a)), Value::Int(b)) => {
                Value::Int(a.checked_add(b).ok_or_else(|| EvalError::message("integer overflow"))?)
            }
            (Some(Value::Uint(a)), Value::Uint(b)) => {
                Value::Uint(a.checked_add(b).ok_or_else(|| EvalError::message("unsigned integer overflow"))?)
            }
            (Some(Value::Double(a)), Value::Double(b)) => Value::Double(a + b),
            (Some(Value::Duration(a)), Value::Duration(b)) => {
                Value::Duration(a.checked_add(b).ok_or_else(|| EvalError::message("duration overflow"))?)
            }
            _ => return no_overload(),
        });
    }
    Ok(total.unwrap_or(zero))
}

fn extreme<'a>(args: &[Value<'a>], name: &str, wanted: Ordering) -> Outcome<'a> {
    let mut items = only_list(args)?.into_iter();
    let Some(mut best) = items.next() else {
        return Err(EvalError::message(format!("{name} called on empty list")));
    };
    for item in items {
        match item.compare(&best) {
            Some(order) if order == wanted => best = item,
            Some(_) => {}
            None => return no_overload(),
        }
    }
    Ok(best)
}

fn flatten<'a>(list: &Value<'a>, depth: i64, flat: &mut Vec<Value<'a>>) -> Result<(), EvalError> {
    for item in items(list)? {
        match item {
            Value::List(_) if depth > 0 => flatten(&item, depth - 1, flat)?,
            item => flat.push(item),
        }
    }
    Ok(())
}

fn sorted<'a>(items: Vec<Value<'a>>, keys: Vec<Value<'a>>) -> Outcome<'a> {
    if items.len() != keys.len() {
        let text = format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} elements respectively",
            items.len(),
            keys.len()
        );
        return Err(EvalError::message(text));
    }
    let comparable =
        |first: &Value<'a>| keys.iter().all(|key| key.type_name() == first.type_name() && first.compare(key).is_some());
    if !keys.first().is_none_or(comparable) {
        return Err(EvalError::message("list elements must have the same type and be comparable"));
    }
    let mut pairs: Vec<(Value<'a>, Value<'a>)> = keys.into_iter().zip(items).collect();
    pairs.sort_by(|(a, _), (b, _)| a.compare(b).unwrap_or(Ordering::Equal));
    Ok(Value::from(pairs.into_iter().map(|(_, item)| item).collect::<Vec<_>>()))
}
