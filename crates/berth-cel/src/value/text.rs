//! Strings, and the text of octets and floats.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Value;

/// A string, borrowed if possible.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    /// A part of an object or expression.
    Borrowed(&'a str),
    /// Created by an expression.
    Owned(Arc<str>),
}

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Owned(text) => text,
        }
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Value::String(Text::Borrowed(text))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Value::String(Text::Owned(text.into()))
    }
}

/// The shortest form of a float that parses to the same value.
pub(crate) fn text_of_double(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() }
    } else {
        format!("{value}")
    }
}

/// Decodes base64.
pub(crate) fn bytes_of(text: &str) -> Option<Arc<[u8]>> {
    STANDARD.decode(text).ok().map(Into::into)
}

/// Encodes octets as JSON represents them.
pub(crate) fn text_of_bytes(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}
