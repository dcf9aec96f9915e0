//! The state that the workers of a node share.

use std::sync::Arc;

use berth_pod_runtime::{Devices, PodRuntime};
use berth_runtime::{Cache, Clock, ObjectKey, Recorder};
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod, PodStatus};
use tokio::sync::Mutex;

use crate::kubelet::lifecycle::PodEvent;
use crate::kubelet::options::KubeletOptions;
use crate::kubelet::resolve::{Amounts, Context, Objects};
use crate::kubelet::write::Writer;

/// A node with its runtime, and access to the API.
#[derive(Clone)]
pub struct Node {
    /// Name of the Node object.
    pub name: String,
    /// The runtime of its pods.
    pub runtime: Arc<dyn PodRuntime>,
    /// Its devices.
    pub devices: Arc<dyn Devices>,
    /// Options of its kubelet.
    pub options: KubeletOptions,
    /// Writes pods, and has the cache of pods.
    pub writer: Writer,
    /// The objects that pods refer to.
    pub objects: Objects,
    /// Nodes.
    pub nodes: Cache<NodeObject>,
    /// Locked while the node grants a resize, until the cache shows the grant.
    pub resizes: Arc<Mutex<()>>,
    /// Records events.
    pub recorder: Recorder,
    /// The clock.
    pub clock: Clock,
}

impl Node {
    /// Allocatable resources of the node.
    pub fn allocatable(&self) -> Amounts {
        let node = self.nodes.get(&ObjectKey::cluster(&self.name));
        node.and_then(|node| node.status.as_ref()?.allocatable.clone()).unwrap_or_default()
    }

    /// The input for resolving the values of a pod's spec.
    pub fn context<'a>(&'a self, pod: &'a Pod, status: &'a PodStatus, allocatable: &'a Amounts) -> Context<'a> {
        Context { pod, status, objects: &self.objects, allocatable, services: self.options.services.as_ref() }
    }

    /// Records an event about a pod.
    pub fn record(&self, pod: &Pod, event: &PodEvent) {
        self.recorder.event_about(event.regarding(pod), event.kind, event.reason, &event.message);
    }
}
