//! Pods that will run on capacity of ordinary nodes that is reserved for their requests.

use std::sync::Arc;

use berth_api::autoscaling::v1::ProvisioningRequest;
use berth_runtime::{Cache, Index, Manager, ObjectKey};
use k8s_openapi::api::core::v1::{Pod, PodTemplate};
use kube::ResourceExt;

use super::QUEUED;
use super::requested::requested_pods;
use crate::placement::{PodInfo, consumed_request};

/// Finds the promised pods.
pub struct Promised {
    requests: Cache<ProvisioningRequest>,
    templates: Cache<PodTemplate>,
    /// Pods by the request that they consume.
    consumers: Index<Pod>,
}

impl Promised {
    /// Reads from the manager's caches.
    pub fn of(manager: &mut Manager) -> Self {
        let pods: Cache<Pod> = manager.cache();
        let consumers = pods.index(|pod| {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            consumed_request(pod).map(|request| format!("{namespace}/{request}")).into_iter().collect()
        });
        Self { requests: manager.cache_if_served(), templates: manager.cache(), consumers }
    }

    /// True if there are pods that consume the request with this key.
    pub fn is_consumed(&self, request: &ObjectKey) -> bool {
        self.consumers.count(&request.to_string()) > 0
    }

    /// Pods of requests that hold capacity of ordinary nodes and that no pod consumes yet. The
    /// request with the UID `except` is left out.
    pub fn pods(&self, except: Option<&str>) -> Vec<Arc<PodInfo>> {
        let requests = self.requests.list();
        let others = requests.iter().filter(|other| other.metadata.uid.as_deref() != except && holds(other));
        let unclaimed = others.filter(|other| !self.is_consumed(&ObjectKey::of(other.as_ref())));
        unclaimed.flat_map(|other| self.pods_of(other)).collect()
    }

    fn pods_of(&self, request: &ProvisioningRequest) -> Vec<Arc<PodInfo>> {
        let namespace = request.namespace().unwrap_or_default();
        let template = |name: &str| self.templates.get(&ObjectKey::namespaced(namespace.clone(), name));
        requested_pods(request, false, template).unwrap_or_default()
    }
}

/// True if the request holds capacity of ordinary nodes: its machines are ordered, or its capacity
/// was found or provisioned and the reservation has not expired. Queued requests have nodes of
/// their own.
fn holds(request: &ProvisioningRequest) -> bool {
    let Some(status) = &request.status else { return false };
    let is_true = |type_: &str| status.conditions.iter().any(|c| c.type_ == type_ && c.status == "True");
    let is_ordered = !status.provisioning_class_details.is_empty();
    request.spec.provisioning_class_name != QUEUED
        && (is_true("Provisioned") || is_ordered)
        && !is_true("BookingExpired")
        && !is_true("Failed")
        && !is_true("CapacityRevoked")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn ordered_and_provisioned_requests_hold_capacity_until_their_reservation_expires() {
        let request = |class: &str, details: Value, conditions: &[&str]| -> ProvisioningRequest {
            let time = "2026-01-01T00:00:00Z";
            let condition = |type_: &&str| json!({ "type": type_, "status": "True", "reason": "R", "message": "", "lastTransitionTime": time });
            let conditions: Value = conditions.iter().map(condition).collect();
            serde_json::from_value(json!({
                "apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest", "metadata": { "name": "r" },
                "spec": { "provisioningClassName": class, "podSets": [] },
                "status": { "conditions": conditions, "provisioningClassDetails": details },
            }))
            .unwrap()
        };
        let (atomic, ordered) = (super::super::ATOMIC_SCALE_UP, json!({ "NodeGroupName": "pool" }));
        assert!(!holds(&request(atomic, json!({}), &["Accepted"])));
        assert!(holds(&request(atomic, ordered.clone(), &["Accepted"])));
        assert!(holds(&request(atomic, ordered.clone(), &["Accepted", "Provisioned"])));
        assert!(!holds(&request(atomic, ordered.clone(), &["Provisioned", "BookingExpired"])));
        assert!(!holds(&request(atomic, ordered.clone(), &["Failed"])));
        assert!(!holds(&request(QUEUED, ordered, &["Provisioned"])));
    }
}
