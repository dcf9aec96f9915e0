//! What JobSet's admission webhooks do to sets, as pure functions: [`default_jobset`] on JSON, so that nothing the
//! types do not know is lost, [`validate_create`] and [`validate_update`] on typed sets. Whoever serves the API calls
//! them; the rules that the CRD's schema carries are not repeated here. [`default_pod`] and [`validate_pod`] are for pods
//! of sets with exclusive placement.

mod defaults;
mod pods;
mod update;
mod validate;

pub use defaults::default_jobset;
pub use pods::{default_pod, validate_pod};
pub use update::validate_update;
pub use validate::{ClaimLookup, validate_create};
