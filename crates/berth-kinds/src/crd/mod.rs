//! CustomResourceDefinitions as objects: their defaults, validation, names and status, and the rows
//! of the table that they define. The server adds and removes these rows.

pub mod cel;
pub mod conditions;
pub mod conversion;
pub mod definition;
pub mod features;
pub mod names;
pub mod row;
pub mod update;
pub mod validate;
pub mod warnings;

use crate::registry::ResourceInfo;

pub use cel::Rules;
pub use validate::{validate, validate_update};

/// Group of CustomResourceDefinitions.
pub const GROUP: &str = "apiextensions.k8s.io";
/// Plural name of CustomResourceDefinitions.
pub const PLURAL: &str = "customresourcedefinitions";

/// True if a row is that of CustomResourceDefinitions.
pub fn is_definitions(row: &ResourceInfo) -> bool {
    row.group == GROUP && row.plural == PLURAL
}
