//! Storage: binds claims to volumes, provisions volumes for claims, expands them, and creates the
//! claims of generic ephemeral volumes.
//!
//! - `matching`: the choice of a volume for a claim, which the scheduler uses as well.
//! - `claim`, `volume`: the next write for a claim or volume (`step`), pure; `binder` makes the
//!   writes.
//! - `local`: the provisioner of class `standard`. On the node of this machine a volume is a folder
//!   ([`VolumeFolders`]); on simulated nodes a volume has no content.
//! - `expansion`: claims that request more than they have.
//! - `ephemeral`: claims that are created for one pod and deleted with it.
//!
//! Protection of claims and volumes in use is in `garbage::volumes`. The kubelet mounts volumes.

mod binder;
mod claim;
mod ephemeral;
mod expansion;
pub mod facts;
mod folders;
pub mod local;
pub mod matching;
#[cfg(test)]
pub(crate) mod samples;
mod step;
mod volume;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_runtime::Manager;

pub(crate) use claim::with_reference;
pub use folders::{DiskFolders, FolderError, VolumeFolders};

/// Nodes that keep volumes in folders, by node name. The volumes of all other nodes are simulated.
pub type Folders = BTreeMap<String, Arc<dyn VolumeFolders>>;

/// Adds the controllers.
pub fn install(manager: &mut Manager, folders: Folders) {
    binder::install(manager);
    local::install(manager, folders);
    expansion::install(manager);
    ephemeral::install(manager);
}
