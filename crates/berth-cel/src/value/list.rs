//! Lists.

use std::sync::Arc;

use serde_json::Value as Json;

use super::{Map, Outcome, Value, untyped, view};
use crate::decl::{Decl, DeclKind, ListKind};
use crate::error::EvalError;

/// A list: borrowed from JSON, or created by an expression.
#[derive(Clone, Debug)]
pub enum List<'a> {
    /// Items of a list in an object.
    Json(&'a [Json], Option<&'a Decl>),
    /// Items created by an expression. The sum of sets or keyed lists has the declaration of its
    /// left list.
    Owned(Arc<Vec<Value<'a>>>, Option<&'a Decl>),
}

impl<'a> From<Vec<Value<'a>>> for Value<'a> {
    fn from(items: Vec<Value<'a>>) -> Self {
        Value::List(List::Owned(Arc::new(items), None))
    }
}

impl<'a> List<'a> {
    /// The number of items.
    pub fn len(&self) -> usize {
        match self {
            List::Json(items, _) => items.len(),
            List::Owned(items, _) => items.len(),
        }
    }

    /// True if the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The item at an index, if it exists and matches its declaration.
    pub fn item(&self, index: usize) -> Option<Value<'a>> {
        self.get(index)?.ok()
    }

    pub(crate) fn get(&self, index: usize) -> Option<Outcome<'a>> {
        match self {
            List::Json(items, decl) => Some(view(items.get(index)?, decl.and_then(Decl::items))),
            List::Owned(items, _) => items.get(index).cloned().map(Ok),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Outcome<'a>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    fn decl(&self) -> Option<&'a Decl> {
        match self {
            List::Json(_, decl) | List::Owned(_, decl) => *decl,
        }
    }

    fn kind(&self) -> Option<&'a ListKind> {
        match self.decl() {
            Some(Decl { kind: DeclKind::List { kind, .. }, .. }) => Some(kind),
            _ => None,
        }
    }

    /// The values of the key `fields` of an item, for keyed lists.
    fn keys(item: &Value<'a>, fields: &[String]) -> Vec<Option<Value<'a>>> {
        fields
            .iter()
            .map(|field| match item {
                // The key is looked up by its name in the object, because it need not be an
                // identifier.
                Value::Map(Map::Json(map, _)) => map.get(field).map(untyped),
                Value::Map(map) => map.get_str(field).and_then(Result::ok),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn equals(&self, other: &List<'a>) -> Result<bool, EvalError> {
        if self.len() != other.len() {
            return Ok(false);
        }
        let unordered = match (self.kind(), other.kind()) {
            (Some(kind), _) if *kind != ListKind::Atomic => Some(kind),
            (_, Some(kind)) if *kind != ListKind::Atomic => Some(kind),
            _ => None,
        };
        let Some(kind) = unordered else {
            for (a, b) in self.iter().zip(other.iter()) {
                if !a?.equals(&b?)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        };
        let mut rest: Vec<Value<'a>> = other.iter().collect::<Result<_, _>>()?;
        for item in self.iter() {
            let item = item?;
            let found = match kind {
                ListKind::Map(fields) => {
                    let keys = List::keys(&item, fields);
                    rest.iter().position(|other| same_keys(&keys, &List::keys(other, fields)))
                }
                _ => rest.iter().position(|other| item.equals(other).unwrap_or(false)),
            };
            let Some(found) = found else { return Ok(false) };
            if !item.equals(&rest.swap_remove(found))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// `a + b`: appended, or merged if the left list is a set or keyed list.
    pub(crate) fn concat(&self, other: &List<'a>) -> Outcome<'a> {
        let mut items: Vec<Value<'a>> = self.iter().collect::<Result<_, _>>()?;
        match self.kind() {
            Some(ListKind::Set) => {
                for item in other.iter() {
                    let item = item?;
                    if !contains(&items, &item)? {
                        items.push(item);
                    }
                }
            }
            Some(ListKind::Map(fields)) => {
                for item in other.iter() {
                    let item = item?;
                    let keys = List::keys(&item, fields);
                    match items.iter().position(|mine| same_keys(&keys, &List::keys(mine, fields))) {
                        Some(found) => items[found] = item,
                        None => items.push(item),
                    }
                }
            }
            _ => {
                for item in other.iter() {
                    items.push(item?);
                }
                return Ok(items.into());
            }
        }
        Ok(Value::List(List::Owned(Arc::new(items), self.decl())))
    }
}

fn same_keys(a: &[Option<Value<'_>>], b: &[Option<Value<'_>>]) -> bool {
    a.iter().zip(b).all(|(a, b)| match (a, b) {
        (Some(a), Some(b)) => a.equals(b).unwrap_or(false),
        (None, None) => true,
        _ => false,
    })
}

pub(crate) fn contains<'a>(items: &[Value<'a>], wanted: &Value<'a>) -> Result<bool, EvalError> {
    for item in items {
        if item.equals(wanted)? {
            return Ok(true);
        }
    }
    Ok(false)
}
