//! What is left when things are deleted: dependents of owners that are gone, contents of namespaces, pods of nodes
//! that vanished, old events, claims and volumes that nobody uses any more.

mod collector;
mod definition;
mod events;
mod graph;
mod kinds;
mod namespaces;
mod pods;
mod volumes;

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
