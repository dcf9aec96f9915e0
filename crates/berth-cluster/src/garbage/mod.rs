//! Controllers that clean up: garbage collection of dependents, the contents of deleted namespaces,
//! pods of deleted nodes, expired events, and the protection of volumes and claims in use.

mod collector;
mod definition;
mod events;
mod graph;
mod kinds;
mod namespaces;
mod pods;
mod volumes;
mod watched;

use berth_runtime::Manager;

pub use graph::{Graph, Owner, Record};

/// Adds the garbage collectors and the namespace controller.
pub fn install(manager: &mut Manager, root_ca: Option<String>) {
    let kinds = kinds::Kinds::default();
    collector::install(manager, kinds.clone());
    namespaces::install(manager, kinds, root_ca);
    pods::install(manager);
    events::install(manager);
    volumes::install(manager);
}
