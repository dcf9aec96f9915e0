//! The checks that a kubelet makes on a pod that was bound to its node, possibly without a
//! scheduler. The node rejects a pod that fails a check.
//!
//! Source: Kubernetes documentation, "Node-pressure Eviction", and the kubelet's predicates.
//! Reasons and messages are those that clients see in Kubernetes 1.35.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::placement::{HostPort, host_ports};

/// Why a node rejects a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason in the pod's status and in the event.
    pub reason: &'static str,
    /// Message in the pod's status and in the event.
    pub message: String,
}

impl Refusal {
    /// Why the node rejects a pod that has not started, or `None`. `others` are the pods bound to
    /// the node.
    pub fn of(pod: &Pod, others: impl Iterator<Item = Arc<Pod>>) -> Option<Self> {
        let wanted = ports(pod);
        if wanted.is_empty() {
            return None;
        }
        let mut holders = others.filter(|other| other.metadata.uid != pod.metadata.uid && comes_first(other, pod));
        let is_taken = |holder: Arc<Pod>| ports(&holder).iter().any(|port| wanted.iter().any(|it| it.conflicts(port)));
        holders
            .any(is_taken)
            .then(|| Self { reason: "NodePorts", message: "Pod was rejected: Predicate NodePorts failed".to_owned() })
    }
}

fn ports(pod: &Pod) -> Vec<HostPort<'_>> {
    pod.spec.as_ref().map(|spec| host_ports(spec).collect()).unwrap_or_default()
}

/// True if `other` keeps a host port that both pods use: it has not ended, and it was started or is
/// the older pod.
fn comes_first(other: &Pod, pod: &Pod) -> bool {
    let status = other.status.as_ref();
    if matches!(status.and_then(|status| status.phase.as_deref()), Some("Succeeded" | "Failed")) {
        return false;
    }
    let age = |pod: &Pod| (pod.creation_timestamp(), pod.uid());
    status.is_some_and(|status| status.start_time.is_some()) || age(other) < age(pod)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(uid: &str, host_port: u16, status: Value) -> Pod {
        let containers = json!([{"name": "c", "ports": [{"containerPort": 80, "hostPort": host_port}]}]);
        let metadata = json!({"name": uid, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": containers}, "status": status}))
            .expect("a pod")
    }

    #[test]
    fn a_pod_is_refused_if_a_started_or_an_older_pod_has_its_host_port() {
        let started = json!({"phase": "Running", "startTime": "2026-01-01T00:00:01Z"});
        let refused = |pod: &Pod, other: Pod| Refusal::of(pod, [Arc::new(other)].into_iter()).is_some();
        let own = pod("b", 8080, json!({}));
        assert!(refused(&own, pod("c", 8080, started.clone())));
        assert!(refused(&own, pod("a", 8080, json!({"phase": "Pending"}))));
        assert!(!refused(&own, pod("c", 8080, json!({"phase": "Pending"}))), "the other pod is younger");
        assert!(!refused(&own, pod("a", 8081, started)));
        assert!(!refused(&own, pod("a", 8080, json!({"phase": "Failed", "startTime": "2026-01-01T00:00:01Z"}))));
        assert!(!refused(&own, own.clone()));
    }
}
