//! The implementations of the functions that expressions can call.
//!
//! Source: Kubernetes documentation, "Common Expression Language in Kubernetes"; the language
//! definition of CEL.

mod authorizer;
mod collections;
mod convert;
mod format;
mod network;
mod numbers;
mod optionals;
mod text;
mod time;

pub(crate) use collections::sum;

use crate::authorization::Authorizer;
use crate::error::EvalError;
use crate::value::{Outcome, Value};

/// Implements a function. Arguments are checked at run time, because dynamic values may have any
/// type. Authorization checks use the authorizer.
pub(crate) type Implementation = for<'a> fn(Option<&'a dyn Authorizer>, &[Value<'a>]) -> Outcome<'a>;

/// The implementation of a function that is not an operator of the evaluator itself.
pub(crate) fn implementation(name: &str) -> Option<Implementation> {
    text::implementation(name)
        .or_else(|| collections::implementation(name))
        .or_else(|| convert::implementation(name))
        .or_else(|| time::implementation(name))
        .or_else(|| numbers::implementation(name))
        .or_else(|| network::implementation(name))
        .or_else(|| format::implementation(name))
        .or_else(|| optionals::implementation(name))
        .or_else(|| authorizer::implementation(name))
}

/// The error for arguments that no overload accepts.
pub(crate) fn no_overload<'a>() -> Outcome<'a> {
    Err(EvalError::NoOverload)
}

/// A function of one string.
fn of_text<'a>(args: &[Value<'a>], apply: fn(&str) -> Value<'static>) -> Outcome<'a> {
    match args {
        [Value::String(text)] => Ok(apply(text)),
        _ => no_overload(),
    }
}
