//! The pods and Services of a Ray cluster, found by their labels.

use berth_runtime::{Cache, Index, ObjectKey};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};

use super::constants::{CLUSTER, NODE_TYPE};

/// The RayCluster that an object belongs to, by its label.
pub fn of_cluster<K: Resource>(object: &K) -> Option<ObjectKey> {
    let name = object.labels().get(CLUSTER)?;
    Some(ObjectKey::namespaced(object.namespace().unwrap_or_default(), name))
}

/// Head pods by `namespace/cluster`.
pub fn heads_by_cluster(pods: &Cache<Pod>) -> Index<Pod> {
    pods.index(|pod: &Pod| {
        let is_head = pod.labels().get(NODE_TYPE).is_some_and(|kind| kind == "head");
        of_cluster(pod).filter(|_| is_head).map(|key| key.to_string()).into_iter().collect()
    })
}
