//! Configuration errors: the field, the observed value, and the accepted values.

use std::fmt;

/// An error in one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field, such as `nodePools[2].minNodes`.
    pub path: String,
    /// The observed value and the accepted values.
    pub message: String,
}

impl Problem {
    /// An error in the field at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.path, self.message) }
    }
}

/// All errors of a configuration, one per line; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationError {
    /// The errors, in the order of the fields.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigurationError {}

/// `prefix.field`, or `field` when the prefix is empty.
pub(super) fn join(prefix: &str, field: &str) -> String {
    match (prefix.is_empty(), field.is_empty()) {
        (true, _) => field.to_owned(),
        (_, true) => prefix.to_owned(),
        _ if field.starts_with('[') => format!("{prefix}{field}"),
        _ => format!("{prefix}.{field}"),
    }
}
