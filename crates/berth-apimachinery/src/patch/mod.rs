//! Patches: JSON patch, JSON merge patch, strategic merge patch, and how clients compute them.
//!
//! The server applies patches. `kubectl apply` and `kubectl edit` compute them (two-way and
//! three-way), as does Berth's command line. A computed patch is correct if the server, when it
//! applies the patch, gets the wanted object.

mod json;
mod merge;
mod strategic;
mod strategic_diff;

use serde_json::Value;

pub use json::{apply_json, parse_json};
pub use merge::{apply_merge, has_conflicts, merge_diff, split_nulls, three_way_merge};
pub use strategic::{apply_strategic, sort_merge_lists};
pub use strategic_diff::{three_way_strategic, two_way_strategic};

/// Maximum number of operations of a JSON patch, as in kube-apiserver.
pub const JSON_PATCH_OPERATIONS_MAX: usize = 10_000;

/// The reason why a patch cannot be applied or computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch itself cannot be read: 400 Bad Request.
    #[error("{0}")]
    Malformed(String),
    /// The patch does not fit the object: 422 Invalid.
    #[error("{0}")]
    Unprocessable(String),
    /// The JSON patch has too many operations: 413 Request Entity Too Large.
    #[error("The allowed maximum operations in a JSON patch is {JSON_PATCH_OPERATIONS_MAX}, got {0}")]
    TooManyOperations(usize),
    /// Two sides changed the same path differently. Both changes are given as patches.
    #[error("patch:\n{patch}\nconflicts with changes made from original to current:\n{changed}")]
    Conflict {
        /// The change that the caller wants.
        patch: String,
        /// The change that another client made in the meantime.
        changed: String,
    },
    /// A field is unknown, so its merge strategy is unknown as well.
    #[error("unable to find api field \"{0}\"")]
    UnknownField(String),
}

impl From<PatchError> for crate::status::Status {
    fn from(error: PatchError) -> Self {
        use crate::status::Status;
        match &error {
            PatchError::Malformed(_) => Status::bad_request(error.to_string()),
            PatchError::TooManyOperations(_) => Status::request_entity_too_large(error.to_string()),
            PatchError::Unprocessable(_) | PatchError::UnknownField(_) => Status::unprocessable(error.to_string()),
            PatchError::Conflict { .. } => Status::apply_conflict(Vec::new(), error.to_string()),
        }
    }
}

/// True if two values have the same JSON type; lists and maps merge only with values of their type.
fn same_type(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.is_f64() == b.is_f64(),
        _ => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}
