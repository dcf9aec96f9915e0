//! The controller of simulated nodes: applies the next step of each pod.

use std::collections::BTreeSet;

use berth_api::berth::SimulatedPods;
use berth_api::pod::node_of;
use berth_runtime::{Action, Cache, Clock, Error, Index, Manager, ObjectKey, Reconciler, Recorder};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use tokio::sync::Mutex;

use super::missing::Missing;
use super::step::{Simulation, Step, step};
use crate::indexes::pods_by_node;
use crate::kubelet::references::{Kind, References};
use crate::kubelet::resize::{frees_resources, has_grown, is_pending, needs_resize, reserved, resize};
use crate::kubelet::resolve::Objects;
use crate::kubelet::write::Writer;
use crate::placement::Resources;
use crate::pools::{are_pods_stuck, is_hosted, is_ready};
use crate::random::{draw, hash};

/// Maximum number of concurrent reconciles.
const CONCURRENCY: usize = 32;
/// Number of locks for resizes. Several nodes share a lock, because resizes are rare.
const LOCKS: usize = 64;

/// Adds the kubelet of all simulated nodes. `others` are the nodes that are not simulated. If there
/// are any, hosted nodes are not simulated either.
pub fn install(manager: &mut Manager, runtime: SimulatedPods, seed: u64, others: BTreeSet<String>) {
    let pods: Cache<Pod> = manager.cache();
    let nodes = manager.nodes();
    let objects = Objects::new(manager);
    let not_simulated = others.clone();
    let is_simulated = move |pod: &Pod| node_of(pod).is_some_and(|node| !not_simulated.contains(node));
    let references = References::new(&pods, is_simulated.clone());
    let (of_map, of_secret) = (references.clone(), references);
    let on_node = pods_by_node(&pods);
    let on_same_node = on_node.clone();
    let kubelet = Kubelet {
        runtime,
        seed,
        others,
        writer: Writer { client: manager.client(), pods: pods.clone() },
        clock: manager.clock(),
        recorder: manager.recorder("kubelet"),
        by_ip: pods.index(|pod| {
            let ended = matches!(phase(pod), "Succeeded" | "Failed");
            pod.status.as_ref().and_then(|status| status.pod_ip.clone()).filter(|_| !ended).into_iter().collect()
        }),
        on_node: on_node.clone(),
        pods: pods.clone(),
        nodes: nodes.clone(),
        objects: objects.clone(),
        resizes: std::array::from_fn(|_| Mutex::default()),
    };
    manager
        .controller("kubelet")
        .watch(&pods, move |delta| {
            let pod = delta.new.as_ref().filter(|pod| is_simulated(pod));
            let mut due: Vec<ObjectKey> = pod.map(|pod| ObjectKey::of(pod.as_ref())).into_iter().collect();
            // A pod that terminates, is deleted or shrinks frees resources for pending resizes.
            let ended = |pod: &Pod| matches!(phase(pod), "Succeeded" | "Failed");
            if let Some(old) = delta.old.as_ref().filter(|old| !ended(old))
                && delta.new.as_ref().is_none_or(|new| ended(new) || frees_resources(old, new))
            {
                due.extend(node_of(old).map(|node| pending_resizes(&on_same_node, node)).unwrap_or_default());
            }
            due
        })
        .watch(&nodes, move |delta| {
            let Some(node) = delta.new.as_ref().filter(|node| runs_pods(node)) else { return Vec::new() };
            match &delta.old {
                Some(old) if runs_pods(old) && has_grown(old, node) => pending_resizes(&on_node, &node.name_any()),
                Some(old) if runs_pods(old) => Vec::new(),
                // A node that becomes ready, or whose pods are no longer stuck, continues its pods.
                _ => on_node.get(&node.name_any()).iter().map(|pod| ObjectKey::of(pod.as_ref())).collect(),
            }
        })
        // A pod that waits for a ConfigMap or Secret starts when the object is created.
        .watch(&objects.config_maps, move |delta| {
            let key = ObjectKey::of(delta.latest().as_ref());
            of_map.to(Kind::ConfigMap, &key.namespace, &key.name)
        })
        .watch(&objects.secrets, move |delta| {
            let key = ObjectKey::of(delta.latest().as_ref());
            of_secret.to(Kind::Secret, &key.namespace, &key.name)
        })
        .concurrency(CONCURRENCY)
        .run(kubelet);
}

/// The pods of a node with a pending resize.
fn pending_resizes(on_node: &Index<Pod>, node: &str) -> Vec<ObjectKey> {
    let pods = on_node.get(node);
    pods.iter().filter(|pod| is_pending(pod)).map(|pod| ObjectKey::of(pod.as_ref())).collect()
}

/// True if the pods of a node make progress.
fn runs_pods(node: &Node) -> bool {
    is_ready(node) && !are_pods_stuck(node)
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

struct Kubelet {
    runtime: SimulatedPods,
    seed: u64,
    /// Nodes with a kubelet of their own.
    others: BTreeSet<String>,
    writer: Writer,
    clock: Clock,
    recorder: Recorder,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    objects: Objects,
    by_ip: Index<Pod>,
    on_node: Index<Pod>,
    /// Serializes the resizes of a node. A lock is held from reading the node's free resources
    /// until the cache shows the pod's new allocation.
    resizes: [Mutex<()>; LOCKS],
}

impl Reconciler for Kubelet {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(pod) = self.pods.get(&key) else { return Ok(Action::Wait) };
        // A change to a node triggers all its pods, including those that another kubelet runs.
        let name = node_of(&pod).filter(|name| !self.others.contains(*name));
        let Some(node) = name.and_then(|name| self.nodes.get(&ObjectKey::cluster(name))) else {
            return Ok(Action::Wait);
        };
        if !self.others.is_empty() && is_hosted(&node) {
            return Ok(Action::Wait);
        }
        // A node that is not ready runs no pods. The pod garbage collector handles its pods once
        // the node is deleted.
        if !runs_pods(&node) {
            return Ok(Action::Wait);
        }
        let now = self.clock.now();
        let pod = if needs_resize(&pod) {
            let lock = hash(&[&node.name_any()]) % LOCKS as u64;
            let _guard = self.resizes[usize::try_from(lock).unwrap_or(0)].lock().await;
            let Some(pod) = self.pods.get(&key) else { return Ok(Action::Wait) };
            if let Some(status) = resize(&pod, &node, || self.used_by_others(&pod, &node), now) {
                self.writer.status(&pod, &status).await?;
                return Ok(Action::Wait);
            }
            pod
        } else {
            pod
        };
        let ip = self.ip_for(&pod);
        let missing = Missing::of(&pod, &self.objects, &self.runtime);
        let simulation =
            Simulation { pods: &self.runtime, seed: self.seed, host_ip: &host_ip(&node), ip: &ip, missing: &missing };
        match step(&pod, &simulation, now) {
            Step::Until(None) => Ok(Action::Wait),
            Step::Until(Some(at)) => Ok(Action::After(self.clock.until(at))),
            Step::Write { status, events } => {
                if self.writer.status(&pod, &status).await? {
                    for event in events {
                        self.recorder.event_about(event.regarding(&pod), event.kind, event.reason, &event.message);
                    }
                }
                // The watch event of this write triggers the next step.
                Ok(Action::Wait)
            }
            Step::Held(event) => {
                self.recorder.event_about(event.regarding(&pod), event.kind, event.reason, &event.message);
                Ok(Action::Wait)
            }
            Step::Remove => {
                self.writer.remove(&pod).await?;
                Ok(Action::Wait)
            }
        }
    }
}

impl Kubelet {
    /// The resources of the node that its other pods use.
    fn used_by_others(&self, pod: &Pod, node: &Node) -> Resources {
        let mut used = Resources::default();
        for other in self.on_node.get(&node.name_any()).iter().filter(|other| other.metadata.uid != pod.metadata.uid) {
            used.add(&reserved(other));
        }
        used
    }

    /// The pod's IP address. A new address is in 10.0.0.0/9 and not in use by another running pod.
    fn ip_for(&self, pod: &Pod) -> String {
        if let Some(ip) = pod.status.as_ref().and_then(|status| status.pod_ip.clone()) {
            return ip;
        }
        let uid = pod.uid().unwrap_or_default();
        let first = draw(self.seed, &["pod-ip", &uid]);
        // One address more than there are pods is tried, so one of them is free.
        let tries = self.pods.len() as u64 + 1;
        (0..tries)
            .map(|offset| {
                let number = first.wrapping_add(offset);
                format!("10.{}.{}.{}", (number >> 16) % 128, (number >> 8) % 256, 2 + number % 250)
            })
            .find(|ip| self.by_ip.count(ip) == 0)
            .unwrap_or_else(|| "10.0.0.2".into())
    }
}

fn host_ip(node: &Node) -> String {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let internal = addresses.into_iter().flatten().find(|address| address.type_ == "InternalIP");
    internal.map(|address| address.address.clone()).unwrap_or_default()
}
