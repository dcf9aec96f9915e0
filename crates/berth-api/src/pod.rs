//! Facts about pods that several crates read.

use k8s_openapi::api::core::v1::Pod;

/// The node to which a pod is bound; `None` if it is not bound.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}
