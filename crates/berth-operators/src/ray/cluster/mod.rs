//! The RayCluster controller: the pods, Services and status of a Ray cluster.

use berth_runtime::Manager;

/// Adds the controller to the manager.
pub fn install(_manager: &mut Manager) {}
