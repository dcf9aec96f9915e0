//! Pod indexes that several controllers of this crate use.

use berth_api::pod::node_of;
use berth_runtime::{Cache, Index};
use k8s_openapi::api::core::v1::Pod;

/// Pods that have not terminated, by the name of their node.
pub fn pods_by_node(pods: &Cache<Pod>) -> Index<Pod> {
    pods.index(|pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).filter(|name| !name.is_empty());
        node.into_iter().filter(|_| !matches!(phase, Some("Succeeded" | "Failed"))).collect()
    })
}

/// Bound pods that have not terminated, all under the key `bound`.
pub fn bound_pods(pods: &Cache<Pod>) -> Index<Pod> {
    pods.index(|pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let is_bound = node_of(pod).is_some();
        let counts = is_bound && !matches!(phase, Some("Succeeded" | "Failed"));
        if counts { vec!["bound".to_owned()] } else { Vec::new() }
    })
}
