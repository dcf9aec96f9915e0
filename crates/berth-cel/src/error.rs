//! Why an evaluation returned no value.

use std::fmt;
use std::sync::Arc;

/// Why an evaluation returned no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvalError {
    /// An error with this message.
    Message(Arc<str>),
    /// A field or key does not exist.
    NoSuchKey(Arc<str>),
    /// No overload of the function accepts the arguments.
    NoOverload,
    /// The expression exceeded its cost limit.
    CostLimit,
    /// The caller cancelled the evaluation.
    Interrupted,
}

impl EvalError {
    pub(crate) fn message(text: impl Into<Arc<str>>) -> EvalError {
        EvalError::Message(text.into())
    }

    /// True if the evaluation must stop, without evaluating the other side of `||`.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, EvalError::CostLimit | EvalError::Interrupted)
    }
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EvalError::Message(text) => f.write_str(text),
            EvalError::NoSuchKey(key) => write!(f, "no such key: {key}"),
            EvalError::NoOverload => f.write_str("no such overload"),
            EvalError::CostLimit => f.write_str("operation cancelled: actual cost limit exceeded"),
            EvalError::Interrupted => f.write_str("operation interrupted"),
        }
    }
}

impl std::error::Error for EvalError {}
