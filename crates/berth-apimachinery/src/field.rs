//! Field paths, and field errors with the messages of Kubernetes.
//!
//! A [`Path`] is a chain of borrowed steps on the stack: walking an object allocates only when an
//! error is reported. This module reports errors; it does not decide whether a value is valid.

use std::collections::HashSet;
use std::fmt;

use serde_json::Value;

/// The path of a field in an object, for messages such as `spec.template[0].name`.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Root,
    Name(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    /// The object itself; its path is empty.
    pub const fn root() -> Self {
        Path { parent: None, step: Step::Root }
    }

    /// A path that starts with a name (which may itself be dotted, e.g. `spec.template`).
    pub const fn new(name: &'a str) -> Self {
        Path { parent: None, step: Step::Name(name) }
    }

    /// The field `name` below this one.
    pub const fn child(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Name(name) }
    }

    /// The list item at `index`.
    pub const fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), step: Step::Index(index) }
    }

    /// The map entry called `key`.
    pub const fn key(&'a self, key: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Key(key) }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut steps = Vec::new();
        let mut at = Some(self);
        while let Some(path) = at {
            steps.push(path.step);
            at = path.parent;
        }
        let mut written = false;
        for step in steps.into_iter().rev() {
            match step {
                Step::Root => continue,
                // An empty name refers to the node itself and is not shown.
                Step::Name("") => continue,
                Step::Name(name) => {
                    if written {
                        f.write_str(".")?;
                    }
                    f.write_str(name)?;
                }
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) => write!(f, "[{key}]")?,
            }
            written = true;
        }
        Ok(())
    }
}

/// The kind of a field error; [`ErrorKind::reason`] is its cause reason in the Status object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorKind {
    /// A required value is missing or empty.
    Required,
    /// The value is malformed or out of bounds.
    Invalid,
    /// The value has the wrong type.
    TypeInvalid,
    /// The value refers to an object that does not exist.
    NotFound,
    /// The value is not one of the supported values.
    NotSupported,
    /// The value occurs more than once where it must be unique.
    Duplicate,
    /// The field may not be set here.
    Forbidden,
    /// The value is longer than allowed.
    TooLong,
    /// There are more items than allowed.
    TooMany,
    /// An internal error, which the client did not cause.
    Internal,
}

impl ErrorKind {
    /// The machine-readable reason in `details.causes[].reason`.
    pub const fn reason(self) -> &'static str {
        match self {
            ErrorKind::Required => "FieldValueRequired",
            ErrorKind::Invalid => "FieldValueInvalid",
            ErrorKind::TypeInvalid => "FieldValueTypeInvalid",
            ErrorKind::NotFound => "FieldValueNotFound",
            ErrorKind::NotSupported => "FieldValueNotSupported",
            ErrorKind::Duplicate => "FieldValueDuplicate",
            ErrorKind::Forbidden => "FieldValueForbidden",
            ErrorKind::TooLong => "FieldValueTooLong",
            ErrorKind::TooMany => "FieldValueTooMany",
            ErrorKind::Internal => "InternalError",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            ErrorKind::Required => "Required value",
            ErrorKind::Invalid | ErrorKind::TypeInvalid => "Invalid value",
            ErrorKind::NotFound => "Not found",
            ErrorKind::NotSupported => "Unsupported value",
            ErrorKind::Duplicate => "Duplicate value",
            ErrorKind::Forbidden => "Forbidden",
            ErrorKind::TooLong => "Too long",
            ErrorKind::TooMany => "Too many",
            ErrorKind::Internal => "Internal error",
        }
    }

    /// The kind with this reason; the reverse of [`ErrorKind::reason`].
    pub fn from_reason(reason: &str) -> Option<Self> {
        use ErrorKind::*;
        [Required, Invalid, TypeInvalid, NotFound, NotSupported, Duplicate, Forbidden, TooLong, TooMany, Internal]
            .into_iter()
            .find(|kind| kind.reason() == reason)
    }
}

/// An error of one field.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    /// The kind of error.
    pub kind: ErrorKind,
    /// The path of the field; `<nil>` for the whole object.
    pub field: String,
    /// The invalid value; `None` if there is none or it is too large to show.
    pub bad_value: Option<Value>,
    /// The expected value, or why the value was rejected; may be empty.
    pub detail: String,
}

impl Error {
    fn new(kind: ErrorKind, path: &Path<'_>, bad_value: Option<Value>, detail: impl Into<String>) -> Self {
        let mut field = path.to_string();
        if field.is_empty() {
            // An error about the whole object; upstream spells its path so, and clients see it in
            // the causes.
            field.push_str("<nil>");
        }
        Error { kind, field, bad_value, detail: detail.into() }
    }

    /// A required value is missing or empty.
    pub fn required(path: &Path<'_>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Required, path, None, detail)
    }

    /// The value is malformed or out of bounds.
    pub fn invalid(path: &Path<'_>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, path, Some(value.into()), detail)
    }

    /// The value is malformed or out of bounds, and is not shown.
    pub fn invalid_without_value(path: &Path<'_>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, path, None, detail)
    }

    /// The value has the wrong type.
    pub fn type_invalid(path: &Path<'_>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::TypeInvalid, path, Some(value.into()), detail)
    }

    /// The value refers to an object that does not exist.
    pub fn not_found(path: &Path<'_>, value: impl Into<Value>) -> Self {
        Self::new(ErrorKind::NotFound, path, Some(value.into()), "")
    }

    /// The value is not one of `supported`, which the message lists in the given order.
    pub fn not_supported<S: AsRef<str>>(path: &Path<'_>, value: impl Into<Value>, supported: &[S]) -> Self {
        let mut detail = String::new();
        if !supported.is_empty() {
            detail.push_str("supported values: ");
            let quoted: Vec<String> = supported.iter().map(|s| quote(s.as_ref())).collect();
            detail.push_str(&quoted.join(", "));
        }
        Self::new(ErrorKind::NotSupported, path, Some(value.into()), detail)
    }

    /// The value occurs more than once where it must be unique.
    pub fn duplicate(path: &Path<'_>, value: impl Into<Value>) -> Self {
        Self::new(ErrorKind::Duplicate, path, Some(value.into()), "")
    }

    /// The field may not be set, or not to this value.
    pub fn forbidden(path: &Path<'_>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Forbidden, path, None, detail)
    }

    /// The value has more than `max_bytes` bytes. The message omits the value. A negative maximum
    /// is unknown.
    pub fn too_long(path: &Path<'_>, max_bytes: i64) -> Self {
        let detail = match max_bytes {
            1 => "may not be more than 1 byte".to_owned(),
            n if n >= 0 => format!("may not be more than {n} bytes"),
            _ => "value is too long".to_owned(),
        };
        Self::new(ErrorKind::TooLong, path, None, detail)
    }

    /// There are `actual` items where at most `max` are allowed. A negative `actual` or `max` is
    /// unknown.
    pub fn too_many(path: &Path<'_>, actual: i64, max: i64) -> Self {
        let detail = match max {
            1 => "must have at most 1 item".to_owned(),
            n if n >= 0 => format!("must have at most {n} items"),
            _ => "has too many items".to_owned(),
        };
        let value = (actual >= 0).then(|| Value::from(actual));
        Self::new(ErrorKind::TooMany, path, value, detail)
    }

    /// An internal error, which the client did not cause.
    pub fn internal(path: &Path<'_>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, path, None, detail)
    }

    /// The message without the field path, as in `details.causes[].message`.
    pub fn body(&self) -> String {
        let mut text = self.kind.text().to_owned();
        let shows_value =
            !matches!(self.kind, ErrorKind::Required | ErrorKind::Forbidden | ErrorKind::TooLong | ErrorKind::Internal);
        if shows_value && let Some(value) = &self.bad_value {
            text.push_str(": ");
            text.push_str(&show(value));
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

impl std::error::Error for Error {}

/// Joins errors as a Status message does: a single one alone, several in brackets and without
/// duplicates.
pub fn aggregate(errors: &[Error]) -> String {
    let mut seen: HashSet<String> = HashSet::with_capacity(errors.len());
    let mut texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.retain(|text| seen.insert(text.clone()));
    match texts.len() {
        1 => texts.swap_remove(0),
        _ => format!("[{}]", texts.join(", ")),
    }
}

/// A value as error messages show it: strings quoted, other values as JSON.
pub fn show(value: &Value) -> String {
    match value {
        Value::String(text) => quote(text),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => show_float(float),
            _ => number.to_string(),
        },
        Value::Null | Value::Bool(_) => value.to_string(),
        // Upstream's JSON encoder escapes these characters for HTML; they only occur in strings.
        Value::Array(_) | Value::Object(_) => {
            value.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
        }
    }
}

/// The shortest form of a float that parses to the same value, with an exponent from 1e21 up and
/// below 1e-4.
pub fn show_float(float: f64) -> String {
    let magnitude = float.abs();
    if magnitude != 0.0 && !(1e-4..1e21).contains(&magnitude) {
        let text = format!("{float:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = match exponent.strip_prefix('-') {
            Some(digits) => ('-', digits),
            None => ('+', exponent),
        };
        format!("{mantissa}e{sign}{digits:0>2}")
    } else {
        format!("{float}")
    }
}

/// A string in double quotes with Go's escapes, as upstream messages quote.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_path_is_written_as_in_a_manifest() {
        let spec = Path::new("spec");
        let flavors = spec.child("flavors");
        let third = flavors.index(3);
        assert_eq!(third.child("name").to_string(), "spec.flavors[3].name");
        let labels = Path::root();
        let labels = labels.child("labels");
        assert_eq!(labels.key("a/b").to_string(), "labels[a/b]");
    }

    #[test]
    fn the_error_of_an_unsupported_value_lists_the_supported_values() {
        let error = Error::not_supported(&Path::new("spec.mode"), "c", &["a", "b"]);
        assert_eq!(error.to_string(), "spec.mode: Unsupported value: \"c\": supported values: \"a\", \"b\"");
    }

    #[test]
    fn values_are_shown_as_json_and_strings_are_quoted() {
        assert_eq!(
            Error::invalid(&Path::new("x"), json!({"b": 1}), "no").to_string(),
            "x: Invalid value: {\"b\":1}: no"
        );
        assert_eq!(Error::invalid(&Path::new("x"), "a\"b", "").to_string(), "x: Invalid value: \"a\\\"b\"");
        assert_eq!(Error::invalid(&Path::new("x"), 1e30, "").to_string(), "x: Invalid value: 1e+30");
    }

    #[test]
    fn an_error_about_the_whole_object_has_the_path_nil() {
        assert_eq!(Error::required(&Path::root(), "").to_string(), "<nil>: Required value");
    }

    #[test]
    fn duplicate_errors_are_reported_once() {
        let error = Error::required(&Path::new("a"), "");
        assert_eq!(aggregate(&[error.clone(), error.clone()]), "a: Required value");
        let other = Error::required(&Path::new("b"), "");
        assert_eq!(aggregate(&[error, other]), "[a: Required value, b: Required value]");
    }
}
