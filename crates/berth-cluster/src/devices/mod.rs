//! Dynamic resource allocation in an embedded cluster: claims of pods, and the devices of simulated
//! nodes.
//!
//! - `claims`: creates a ResourceClaim for each template that a pod uses.
//! - `users`: releases claims whose pods have ended.
//! - `publish`: publishes the devices that node pools declare, as a driver does.
//!
//! The pod scheduler allocates devices: [`crate::placement`].
//!
//! Source: Kubernetes documentation, "Dynamic Resource Allocation".

mod claims;
mod publish;
mod users;

use berth_runtime::Manager;

pub use publish::slices_of;
pub(crate) use users::release;

/// Finalizer of claims that have devices.
pub const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// Adds the controllers.
pub fn install(manager: &mut Manager) {
    claims::install(manager);
    users::install(manager);
    publish::install(manager);
}
