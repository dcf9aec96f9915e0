//! Recorded cases of Kubernetes' expressions (CEL): rules of custom resources, the function
//! library, and admission policies.

mod definitions;
mod library;
mod mutations;
mod policies;
mod rules;

use super::fields::{Lookup, input, same, text, want};
use super::{Case, Runner, Verdict};

/// The runner of a suite, if it belongs to this module.
pub fn runner(suite: &str) -> Option<Runner> {
    rules::runner(suite)
        .or_else(|| library::runner(suite))
        .or_else(|| policies::runner(suite))
        .or_else(|| mutations::runner(suite))
        .or_else(|| definitions::runner(suite))
}

/// A boolean field, or false.
fn flag(value: &impl Lookup, field: &str) -> bool {
    value.field(field).as_bool().unwrap_or_default()
}
