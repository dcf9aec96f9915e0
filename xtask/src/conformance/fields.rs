//! Access to the fields of a case. [`Fields`] records which fields a runner reads, so that a case
//! with unread fields can be reported as a disagreement.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Index;

use serde_json::Value;

#[cfg(any(feature = "cel", feature = "server"))]
use super::{Case, Verdict};

static NULL: Value = Value::Null;

/// The fields of a case, of its `input` or of its `want`. Every read is recorded.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    value: Value,
    read: RefCell<BTreeSet<String>>,
    all: Cell<bool>,
}

impl Fields {
    /// Fields that have not been read.
    pub fn new(value: Value) -> Self {
        Fields { value, ..Fields::default() }
    }

    /// A field, if it is present.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.read.borrow_mut().insert(key.to_owned());
        self.value.get(key)
    }

    /// All fields, for a runner that reads or compares them together.
    pub fn whole(&self) -> &Value {
        self.all.set(true);
        &self.value
    }

    /// The fields that are present and have not been read.
    pub fn unread(&self) -> impl Iterator<Item = (&String, &Value)> {
        let fields = self.value.as_object().into_iter().flatten();
        fields.filter(|(key, _)| !self.all.get() && !self.read.borrow().contains(*key))
    }

    /// A copy with one field replaced. No field counts as read.
    pub fn with(&self, key: &str, value: Value) -> Self {
        let mut fields = self.value.clone();
        fields[key] = value;
        Fields::new(fields)
    }

    /// The names and values of the fields. Does not count as a read.
    pub fn peek(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.value.as_object().into_iter().flatten()
    }
}

impl std::fmt::Display for Fields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.value.fmt(f)
    }
}

impl Index<&str> for Fields {
    type Output = Value;

    fn index(&self, key: &str) -> &Value {
        self.get(key).unwrap_or(&NULL)
    }
}

/// Access by field name, for the fields of a case and for JSON objects.
pub trait Lookup {
    /// A field, if it is present.
    fn find(&self, key: &str) -> Option<&Value>;

    /// A field, or null.
    fn field(&self, key: &str) -> &Value {
        self.find(key).unwrap_or(&NULL)
    }
}

impl Lookup for Fields {
    fn find(&self, key: &str) -> Option<&Value> {
        self.get(key)
    }
}

impl Lookup for Value {
    fn find(&self, key: &str) -> Option<&Value> {
        self.get(key)
    }
}

/// An input field of the case, or null.
#[cfg(any(feature = "cel", feature = "server"))]
pub fn input<'a>(case: &'a Case, field: &str) -> &'a Value {
    &case.input[field]
}

/// An expected field of the case, or null.
#[cfg(any(feature = "cel", feature = "server"))]
pub fn want<'a>(case: &'a Case, field: &str) -> &'a Value {
    &case.want[field]
}

/// A string field, or empty.
#[cfg(any(feature = "cel", feature = "server"))]
pub fn text<'a>(value: &'a impl Lookup, field: &str) -> &'a str {
    value.field(field).as_str().unwrap_or_default()
}

/// Agrees if both values are equal.
#[cfg(any(feature = "cel", feature = "server"))]
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, wanted: T) -> Verdict {
    if got == wanted { Ok(()) } else { Err(format!("{what}:\n  got  {got:?}\n  want {wanted:?}")) }
}
