//! The JobSet controller (jobset.x-k8s.io/v1alpha2).

/// Adds the controller to the manager.
pub fn install(manager: &mut berth_runtime::Manager) {
    let _ = manager;
}
