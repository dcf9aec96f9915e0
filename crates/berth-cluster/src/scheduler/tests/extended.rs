//! Extended resources that device classes back.

use std::sync::Arc;

use berth_runtime::ObjectKey;
use serde_json::{Value, json};

use super::World;
use crate::placement::{EXTENDED_CLAIM, ExtendedClaim, PodInfo};

const GPU: &str = "example.com/gpu";

impl World {
    /// A node with this many GPUs of a device plugin; `None`: none was registered.
    fn gpu_node(&mut self, name: &str, plugin: Option<i64>) {
        self.node(name, 64);
        let mut node = serde_json::to_value(self.nodes[name].as_ref()).unwrap();
        if let Some(count) = plugin {
            node["status"]["allocatable"][GPU] = json!(count.to_string());
        }
        let node = Arc::new(serde_json::from_value(node).unwrap());
        let old = self.nodes.insert(name.to_owned(), node);
        self.state.node_changed(old.as_ref(), Some(&self.nodes[name]));
    }

    /// Devices of a node.
    pub(super) fn slice(&mut self, node: &str, count: usize) {
        let devices: Vec<Value> = (0..count).map(|number| json!({"name": format!("gpu-{number}")})).collect();
        let slice = json!({"metadata": {"name": node}, "spec": {"driver": "gpu.example.com", "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}, "devices": devices}});
        self.state.device_slice_changed(node, Some(&Arc::new(serde_json::from_value(slice).unwrap())));
    }

    pub(super) fn class(&mut self, name: &str, resource: Option<&str>) {
        let class = json!({"metadata": {"name": name}, "spec": {"extendedResourceName": resource,
            "selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}});
        self.state.device_class_changed(name, Some(&Arc::new(serde_json::from_value(class).unwrap())));
    }

    fn gpu_pod(&mut self, name: &str, resource: &str, count: i64) {
        let container = json!({"name": "c", "resources": {"requests": {resource: count.to_string()}}});
        self.pod(name, "default-scheduler", None, 1, json!({"containers": [container]}));
    }

    /// Makes the claim for a pod's extended resources, as the write before its binding does.
    pub(super) fn make_claim(&mut self, pod: &PodInfo) {
        let Some(chosen) = self.state.claim_to_make(&pod.key) else { return };
        self.set_claim(pod, &chosen);
    }

    fn set_claim(&mut self, pod: &PodInfo, chosen: &ExtendedClaim) {
        let name = format!("{}-extended-resources-x", pod.key.name);
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod.key.name,
            "uid": pod.pod.metadata.uid, "controller": true});
        let claim = json!({"metadata": {"name": name, "namespace": "ns", "annotations": {EXTENDED_CLAIM: "true"},
            "ownerReferences": [owner]}, "spec": chosen.spec,
            "status": {"allocation": chosen.allocation, "reservedFor": [super::devices::user(pod)]}});
        let claim = Arc::new(serde_json::from_value(claim).unwrap());
        self.state.device_claim_changed(&ObjectKey::namespaced("ns", name.as_str()), Some(&claim));
        self.claims.insert(name, claim);
    }

    pub(super) fn delete_claim(&mut self, name: &str) {
        self.claims.remove(name).expect("the claim exists");
        self.state.device_claim_changed(&ObjectKey::namespaced("ns", name), None);
    }

    /// The devices of a pod's claim.
    fn devices_of(&self, pod: &str) -> String {
        let Some(claim) = self.claims.get(&format!("{pod}-extended-resources-x")) else { return "none".to_owned() };
        let claim = serde_json::to_value(claim.as_ref()).unwrap();
        let results = claim["status"]["allocation"]["devices"]["results"].as_array().unwrap();
        let names = results.iter().map(|it| format!("{}/{}", it["pool"], it["device"]).replace('"', ""));
        names.collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn a_pod_gets_devices_in_place_of_an_extended_resource_that_the_node_lacks() {
    let mut world = World::new(json!({}));
    world.gpu_node("n1", None);
    world.slice("n1", 3);
    world.class("gpu", Some(GPU));
    world.gpu_pod("two", GPU, 2);
    world.gpu_pod("more", GPU, 2);
    world.gpu_pod("one", GPU, 1);
    world.settle();
    assert_eq!(world.devices_of("two"), "n1/gpu-0 n1/gpu-1");
    assert_eq!(world.devices_of("one"), "n1/gpu-2");
    assert_eq!(world.node_of("more"), None);
    assert!(world.message("more").starts_with("0/1 nodes are available: 1 cannot allocate all claims."));
    // The devices are free once the claim is deleted, which is when its pod has ended.
    world.change("two", |pod| pod["status"]["phase"] = json!("Succeeded"));
    world.settle();
    assert_eq!(world.node_of("more"), None, "the claim still has the devices");
    world.delete_claim("two-extended-resources-x");
    world.settle();
    assert_eq!(world.devices_of("more"), "n1/gpu-0 n1/gpu-1");
}

#[test]
fn a_node_that_has_the_resource_gives_it_without_a_claim() {
    let mut world = World::new(json!({}));
    world.gpu_node("plugin", Some(1));
    world.class("gpu", Some(GPU));
    world.gpu_pod("first", GPU, 1);
    world.gpu_pod("second", GPU, 1);
    world.settle();
    assert_eq!((world.node_of("first"), world.devices_of("first").as_str()), (Some("plugin"), "none"));
    assert!(world.message("second").starts_with("0/1 nodes are available: 1 Insufficient example.com/gpu."));
    world.gpu_node("devices", None);
    world.slice("devices", 1);
    world.settle();
    assert_eq!((world.node_of("second"), world.devices_of("second").as_str()), (Some("devices"), "devices/gpu-0"));
}

#[test]
fn a_device_class_that_is_created_late_helps_waiting_pods() {
    let mut world = World::new(json!({}));
    world.gpu_node("n1", None);
    world.slice("n1", 1);
    world.class("other", Some("example.com/other"));
    world.gpu_pod("named", GPU, 1);
    world.gpu_pod("implicit", "deviceclass.resource.kubernetes.io/gpu", 1);
    world.settle();
    assert!(world.message("named").contains("1 Insufficient example.com/gpu"), "{}", world.message("named"));
    world.class("gpu", None);
    world.settle();
    assert_eq!((world.node_of("named"), world.devices_of("implicit").as_str()), (None, "n1/gpu-0"));
    world.slice("n1", 2);
    world.class("gpu", Some(GPU));
    world.settle();
    assert_eq!(world.devices_of("named"), "n1/gpu-1");
}

#[test]
fn the_claim_of_an_attempt_that_failed_is_deleted_before_the_next_attempt() {
    let mut world = World::new(json!({}));
    world.gpu_node("n1", None);
    world.slice("n1", 1);
    world.class("gpu", Some(GPU));
    world.gpu_pod("pod", GPU, 1);
    let decisions = world.state.decide(world.now);
    assert_eq!(decisions.len(), 1);
    let pod = Arc::new(PodInfo::new(world.pods["pod"].clone()));
    world.make_claim(&pod);
    world.state.binding_failed(&pod.key);
    assert_eq!(world.devices_of("pod"), "n1/gpu-0");
    let decisions = world.state.decide(world.now);
    assert!(matches!(decisions[0], super::Decision::Discard { .. }), "{decisions:?}");
    world.apply(decisions);
    world.settle();
    assert_eq!((world.node_of("pod"), world.devices_of("pod").as_str()), (Some("n1"), "n1/gpu-0"));
    assert_eq!(world.bound, ["pod"]);
}

#[test]
fn a_binding_that_failed_before_its_claim_was_made_gives_the_devices_back() {
    let mut world = World::new(json!({}));
    world.gpu_node("n1", None);
    world.slice("n1", 1);
    world.class("gpu", Some(GPU));
    world.gpu_pod("pod", GPU, 1);
    assert_eq!(world.state.decide(world.now).len(), 1);
    world.delete("pod");
    world.gpu_pod("next", GPU, 1);
    world.settle();
    assert_eq!(world.devices_of("next"), "n1/gpu-0");
}

#[test]
fn a_change_to_the_claim_of_an_earlier_pod_of_the_same_name_frees_no_devices() {
    let mut world = World::new(json!({}));
    world.gpu_node("n1", None);
    world.slice("n1", 2);
    world.class("gpu", Some(GPU));
    world.gpu_pod("pod", GPU, 1);
    world.settle();
    assert_eq!(world.devices_of("pod"), "n1/gpu-0");
    world.delete("pod");
    world.gpu_pod("pod", GPU, 1);
    assert_eq!(world.state.decide(world.now).len(), 1, "the later pod gets gpu-1, and its claim is not made yet");
    // The claim of the earlier pod is being deleted.
    let name = "pod-extended-resources-x";
    let claim = world.claims[name].clone();
    world.state.device_claim_changed(&ObjectKey::namespaced("ns", name), Some(&claim));
    world.gpu_pod("other", GPU, 1);
    world.settle();
    assert_eq!(world.node_of("other"), None, "{}", world.devices_of("other"));
}
