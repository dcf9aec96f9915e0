//! Compile errors of an expression with their positions.

use std::fmt;

/// Compile errors of an expression, in the order they were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issues {
    text: String,
    issues: Vec<(u32, String)>,
}

/// Position of an error that concerns the expression as a whole.
pub(crate) const NOWHERE: u32 = u32::MAX;
/// Maximum number of errors to list.
const SHOWN_MAX: usize = 100;

impl Issues {
    pub(crate) fn new(text: &str) -> Self {
        Issues { text: text.to_owned(), issues: Vec::new() }
    }

    pub(crate) fn push(&mut self, at: u32, message: impl Into<String>) {
        if self.issues.len() < SHOWN_MAX {
            self.issues.push((at, message.into()));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.issues.is_empty()
    }

    /// The messages alone.
    pub fn messages(&self) -> impl Iterator<Item = &str> {
        self.issues.iter().map(|(_, message)| message.as_str())
    }
}

/// Each error with its source line and a mark below the position.
impl fmt::Display for Issues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut issues: Vec<&(u32, String)> = self.issues.iter().collect();
        issues.sort_by_key(|(at, _)| *at);
        for (index, (at, message)) in issues.into_iter().enumerate() {
            if *at == NOWHERE {
                write!(f, "ERROR: <input>:-1:0: {message}")?;
                continue;
            }
            let before: String = self.text.chars().take(*at as usize).collect();
            let line = before.matches('\n').count();
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
            let shown = self.text.split('\n').nth(line).unwrap_or_default().replace('\t', " ");
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "ERROR: <input>:{}:{}: {message}\n | {shown}\n | {}^", line + 1, column + 1, ".".repeat(column))?;
        }
        Ok(())
    }
}
