//! Claims of devices: preemption, and devices that are released for another node.

use std::sync::Arc;

use berth_runtime::ObjectKey;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};

use super::World;
use crate::placement::{PodInfo, device_claims_of};

/// The reference of a claim to a pod that uses it.
pub(super) fn user(pod: &PodInfo) -> Value {
    json!({"resource": "pods", "name": pod.key.name, "uid": pod.uid()})
}

impl World {
    fn with_devices(nodes: &[(&str, usize)]) -> Self {
        let mut world = Self::new(json!({}));
        world.class("gpu", None);
        for (name, count) in nodes {
            world.node(name, 64);
            world.slice(name, *count);
        }
        world
    }

    /// A claim of this many devices, and a pod that uses it.
    fn claiming_pod(&mut self, name: &str, priority: i32, count: i64) {
        self.claim(name, count);
        self.user_pod(name, priority, &[name]);
    }

    fn claim(&mut self, name: &str, count: i64) {
        let request =
            json!({"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}});
        let claim =
            json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"devices": {"requests": [request]}}});
        self.set_device_claim(serde_json::from_value(claim).unwrap());
    }

    fn user_pod(&mut self, name: &str, priority: i32, claims: &[&str]) {
        let claims: Vec<Value> = claims.iter().map(|name| json!({"name": name, "resourceClaimName": name})).collect();
        self.pod(name, "default-scheduler", None, 1, json!({"priority": priority, "resourceClaims": claims}));
    }

    fn set_device_claim(&mut self, claim: ResourceClaim) {
        let (name, claim) = (claim.metadata.name.clone().unwrap(), Arc::new(claim));
        self.state.device_claim_changed(&ObjectKey::namespaced("ns", name.as_str()), Some(&claim));
        self.claims.insert(name, claim);
    }

    fn change_claim(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut claim = serde_json::to_value(self.claims[name].as_ref()).unwrap();
        change(&mut claim);
        self.set_device_claim(serde_json::from_value(claim).unwrap());
    }

    /// Writes the devices of a pod's claims, as the writes before its binding do.
    pub(super) fn allocate_claims(&mut self, pod: &PodInfo) {
        for key in device_claims_of(&pod.pod).unwrap() {
            let chosen = self.state.chosen_devices(&key);
            self.change_claim(&key.name, |claim| {
                let users = claim["status"]["reservedFor"].as_array().cloned().unwrap_or_default();
                claim["status"]["reservedFor"] = users.into_iter().chain([user(pod)]).collect();
                if let Some(chosen) = chosen {
                    claim["status"]["allocation"] = json!(*chosen);
                }
            });
        }
    }

    /// Releases the devices of a claim, as the controller of claims does when its users have ended.
    pub(super) fn release(&mut self, name: &str) {
        self.change_claim(name, |claim| claim["status"] = json!({}));
    }

    /// Pods with nodes, as `pod=node`.
    fn places(&self) -> String {
        let places = self.pods.keys().filter_map(|pod| Some(format!("{pod}={}", self.node_of(pod)?)));
        places.collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn a_pod_evicts_as_many_pods_of_lower_priority_as_its_devices_need() {
    let mut world = World::with_devices(&[("n1", 3)]);
    world.claiming_pod("low", 0, 1);
    world.claiming_pod("lower", -1, 1);
    world.claiming_pod("equal", 10, 1);
    world.settle();
    world.claiming_pod("high", 10, 1);
    world.settle();
    assert_eq!(world.places(), "equal=n1 low=n1", "the least important pod is evicted");
    world.release("lower");
    world.settle();
    assert_eq!(world.places(), "equal=n1 high=n1 low=n1");
    world.claiming_pod("patient", 5, 2);
    world.settle();
    assert_eq!(world.places(), "equal=n1 high=n1 low=n1", "one device of lower priority is not enough");
    assert_eq!(
        world.message("patient"),
        "0/1 nodes are available: 1 cannot allocate all claims. preemption: 0/1 nodes are available: \
         1 No preemption victims found for incoming pod."
    );
}

#[test]
fn no_further_pod_is_evicted_while_the_claims_of_evicted_pods_are_released() {
    let mut world = World::with_devices(&[("n1", 1), ("n2", 1)]);
    world.claiming_pod("a", 0, 1);
    world.claiming_pod("b", 0, 1);
    world.settle();
    world.claiming_pod("high", 10, 1);
    world.settle();
    // Its victim is gone, and still has its device by its claim.
    assert_eq!(world.places(), "b=n2");
    world.state.device_claim_changed(&ObjectKey::namespaced("ns", "b"), Some(&world.claims["b"].clone()));
    world.settle();
    assert_eq!(world.places(), "b=n2", "{}", world.message("high"));
    world.release("a");
    world.settle();
    assert_eq!(world.places(), "b=n2 high=n1");
}

#[test]
fn released_devices_go_to_the_pod_for_which_others_were_evicted() {
    let mut world = World::with_devices(&[("n1", 2)]);
    world.claiming_pod("a", 0, 1);
    world.claiming_pod("b", 0, 1);
    world.settle();
    world.claiming_pod("high", 10, 2);
    world.settle();
    world.claiming_pod("small", 5, 1);
    world.release("a");
    world.settle();
    assert_eq!(world.places(), "", "the first device is kept for the pod that waits for two");
    world.release("b");
    world.settle();
    assert_eq!(world.places(), "high=n1");
}

#[test]
fn pods_that_share_devices_are_evicted_together_or_not_at_all() {
    let mut world = World::with_devices(&[("n1", 1)]);
    world.claim("shared", 1);
    world.user_pod("low", 0, &["shared"]);
    world.user_pod("middle", 5, &["shared"]);
    world.settle();
    world.claiming_pod("four", 4, 1);
    world.settle();
    assert_eq!(world.places(), "low=n1 middle=n1", "middle would keep the device");
    world.claiming_pod("six", 6, 1);
    world.settle();
    assert_eq!(world.places(), "");
    world.release("shared");
    world.settle();
    assert_eq!(world.places(), "six=n1");
}

#[test]
fn devices_of_extended_resources_are_preempted_for() {
    let mut world = World::with_devices(&[("n1", 1)]);
    world.class("gpu", Some("example.com/gpu"));
    let gpu = json!({"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}});
    world.pod("low", "default-scheduler", None, 1, json!({"containers": [gpu]}));
    world.settle();
    assert_eq!(world.places(), "low=n1");
    world.pod("high", "default-scheduler", None, 1, json!({"priority": 1, "containers": [gpu]}));
    world.settle();
    assert_eq!(world.places(), "");
    world.delete_claim("low-extended-resources-x");
    world.settle();
    assert_eq!(world.places(), "high=n1");
}

#[test]
fn the_devices_of_a_claim_are_released_if_its_only_pod_fits_on_another_node() {
    let mut world = World::with_devices(&[("n1", 1)]);
    world.claiming_pod("p", 0, 1);
    world.settle();
    assert_eq!(world.places(), "p=n1");
    // The pod was deleted and created again: its claim still has the device of the node that is
    // gone.
    world.delete("p");
    world.change_claim("p", |claim| claim["status"]["reservedFor"] = json!([]));
    world.drop_node("n1");
    world.node("n2", 64);
    world.slice("n2", 1);
    world.user_pod("p", 0, &["p"]);
    world.settle();
    assert_eq!(world.places(), "p=n2");
}

#[test]
fn the_devices_of_a_claim_that_another_pod_uses_are_kept() {
    let mut world = World::with_devices(&[("n1", 1), ("n2", 1)]);
    world.claim("shared", 1);
    world.user_pod("first", 0, &["shared"]);
    world.settle();
    world.node("n1", 1);
    world.user_pod("second", 0, &["shared"]);
    world.settle();
    assert_eq!(world.places(), "first=n1");
    assert!(
        world.message("second").contains("1 resourceclaim not available on the node"),
        "{}",
        world.message("second")
    );
    assert!(world.claims["shared"].status.as_ref().is_some_and(|status| status.allocation.is_some()));
}
