//! Projections: the parts of objects that caches keep.

use k8s_openapi::api::core::v1::{Node, NodeStatus};

/// Keeps the parts of a node that placement, health checks and metrics need: metadata, spec,
/// capacity, allocatable, conditions, addresses and software versions. Drops the images and
/// volumes. The images (up to fifty, with several names each) are most of the bytes of a real node.
pub fn of_node(node: &mut Node) {
    let Some(status) = node.status.take() else { return };
    let NodeStatus { addresses, allocatable, capacity, conditions, node_info, phase, .. } = status;
    node.status =
        Some(NodeStatus { addresses, allocatable, capacity, conditions, node_info, phase, ..NodeStatus::default() });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::{Cache, ObjectKey};

    fn node(version: &str, ready: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n1", "resourceVersion": version, "labels": {"rack": "r1"}, "annotations": {"a": "b"}},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "providerID": "p"},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "allocatable": {"cpu": "4"}, "capacity": {"cpu": "5"},
                "conditions": [{"type": "Ready", "status": ready}],
            },
        })
    }

    #[test]
    fn a_cache_keeps_only_the_projection_of_a_node() {
        let cache: Cache<Node> = Cache::for_tests([]);
        cache.project(of_node);
        for (version, ready) in [("1", "False"), ("2", "True")] {
            let mut full = node(version, ready);
            full["status"]["images"] = json!([{"names": ["registry/image:1"], "sizeBytes": 1}]);
            full["status"]["volumesInUse"] = json!(["v"]);
            // Objects from a watch and from a response are handled in the same way.
            match version {
                "1" => cache.objects().apply(Arc::new(serde_json::from_value::<Node>(full).expect("a node"))),
                _ => cache.observe(serde_json::from_value(full).expect("a node")),
            }
            let kept = cache.get(&ObjectKey::cluster("n1")).expect("the node is in the cache");
            assert_eq!(serde_json::to_value(kept.as_ref()).expect("a tree"), node(version, ready));
        }
    }
}
