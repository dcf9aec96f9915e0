//! Server-side apply: managers own fields, and a write that changes another manager's field
//! conflicts with it.
//!
//! The modules, from the bottom: paths and sets of fields; types, which define the fields of an
//! object; walks over typed values (field sets, merging, comparing, removing); the updater, which
//! computes ownership; and the maintenance of `metadata.managedFields`.
//!
//! Source: Kubernetes' documentation "Server-Side Apply" and KEP-555.

mod compare;
mod created;
pub mod managed;
mod manager;
mod merge;
mod path;
mod reconcile;
mod remove;
mod set;
mod types;
mod update;
mod walk;

pub use compare::{Comparison, compare};
pub use manager::{FieldManager, Write, extract_applied, manager_name, never_owned};
pub use merge::merge;
pub use path::{PathElement, PathError, compare_values, equal_values, path_text};
pub use reconcile::reconcile;
pub use remove::{extract, remove};
pub use set::{Pattern, ReadSets, Set};
pub use types::{Atom, DEDUCED, Field, List, MapType, Relationship, Scalar, TypeRef, Types, read_ref};
pub use update::{
    ApplyError, Conflict, ConversionError, Ignored, Managers, Owned, Typing, Updater, Versioned, Versions,
    conflict_text, managers_difference,
};
pub use walk::{TypeError, to_set, validate};
