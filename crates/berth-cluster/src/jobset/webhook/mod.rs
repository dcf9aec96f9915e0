//! The rules of JobSet's admission webhooks, as pure functions for an API server.
//! [`default_jobset`] works on JSON, so that fields that the types lack are kept;
//! [`validate_create`] and [`validate_update`] work on typed sets. The rules in the CRD's schema
//! are not repeated here. [`default_pod`] and [`validate_pod`] are for pods of sets with exclusive
//! placement.

mod defaults;
mod pods;
mod update;
mod validate;

pub use defaults::default_jobset;
pub use pods::{default_pod, validate_pod};
pub use update::validate_update;
pub use validate::{ClaimLookup, validate_create};
