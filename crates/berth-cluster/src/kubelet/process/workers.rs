//! Starts a worker for each pod of the nodes. Wakes it when its pod, an object that the pod refers
//! to, or the runtime's report changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::pod::node_of;
use berth_pod_runtime::PodUid;
use berth_runtime::{Action, Cache, Error, Manager, ObjectKey, Reconciler};
use futures::StreamExt as _;
use futures::stream::SelectAll;
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::ProcessNode;
use super::node::Node;
use super::worker::Worker;
use crate::indexes::pods_by_node;
use crate::kubelet::references::{Kind, References};
use crate::kubelet::resolve::Objects;
use crate::kubelet::write::Writer;
use crate::pools::is_hosted;

/// Maximum number of concurrent reconciles. A reconcile only wakes a worker.
const CONCURRENCY: usize = 4;

/// Adds the kubelets of these nodes.
pub fn install(manager: &mut Manager, nodes: Vec<ProcessNode>) {
    if nodes.is_empty() {
        return;
    }
    let pods: Cache<Pod> = manager.cache();
    let node_objects = manager.nodes();
    let objects = Objects::new(manager);
    let writer = Writer { client: manager.client(), pods: pods.clone() };
    let nodes: BTreeMap<String, Arc<Node>> = nodes
        .into_iter()
        .map(|node| {
            let ProcessNode { name, runtime, devices, options } = node;
            let (writer, objects, nodes) = (writer.clone(), objects.clone(), node_objects.clone());
            let (recorder, clock) = (manager.recorder("kubelet"), manager.clock());
            let resizes = Arc::default();
            let node = Node {
                name: name.clone(),
                runtime,
                devices,
                options,
                writer,
                objects,
                nodes,
                resizes,
                recorder,
                clock,
            };
            (name, Arc::new(node))
        })
        .collect();
    // This includes pods of simulated nodes. Whether a node is hosted is read from its Node, which
    // may be cached later than the pod. So the reconciler decides.
    let is_bound = |pod: &Pod| node_of(pod).is_some();
    let references = References::new(&pods, is_bound);
    let on_node = pods_by_node(&pods);
    let (of_map, of_secret, of_claim) = (references.clone(), references.clone(), references);
    let (sender, receiver) = mpsc::unbounded_channel();
    let workers = Arc::new(Workers {
        nodes,
        node_objects: node_objects.clone(),
        pods: pods.clone(),
        wakers: Mutex::default(),
        start: sender,
    });
    let runner = workers.clone();
    manager.task("kubelet-workers", async move { runner.run(receiver).await });
    manager
        .controller("kubelet-processes")
        .watch(&pods, move |delta| {
            let pods = [delta.old.as_ref(), delta.new.as_ref()];
            let is_bound = pods.into_iter().flatten().any(|pod| is_bound(pod));
            is_bound.then(|| ObjectKey::of(delta.latest().as_ref()))
        })
        .watch(&node_objects, move |delta| match (&delta.old, &delta.new) {
            (None, Some(node)) if is_hosted(node) => on_node.keys(&node.name_any()),
            _ => Vec::new(),
        })
        .watch(&objects.config_maps, move |delta| {
            let key = ObjectKey::of(delta.latest().as_ref());
            of_map.to(Kind::ConfigMap, &key.namespace, &key.name)
        })
        .watch(&objects.secrets, move |delta| {
            let key = ObjectKey::of(delta.latest().as_ref());
            of_secret.to(Kind::Secret, &key.namespace, &key.name)
        })
        .watch(&objects.claims, move |delta| {
            let key = ObjectKey::of(delta.latest().as_ref());
            of_claim.to(Kind::Claim, &key.namespace, &key.name)
        })
        .concurrency(CONCURRENCY)
        .run(Waking(workers));
}

/// A worker to start.
struct Begin {
    node: Arc<Node>,
    key: ObjectKey,
    uid: PodUid,
    wake: Arc<Notify>,
}

struct Workers {
    /// The nodes that this process registers. The first one also runs the pods of hosted nodes.
    nodes: BTreeMap<String, Arc<Node>>,
    node_objects: Cache<NodeObject>,
    pods: Cache<Pod>,
    wakers: Mutex<Wakers>,
    start: mpsc::UnboundedSender<Begin>,
}

/// The workers' wakers.
#[derive(Default)]
struct Wakers {
    by_pod: BTreeMap<PodUid, (ObjectKey, Arc<Notify>)>,
    /// UIDs of the pods with workers, by name. A deleted pod and its successor share a name.
    by_name: BTreeMap<ObjectKey, BTreeSet<PodUid>>,
}

impl Wakers {
    fn of_name(&self, key: &ObjectKey) -> Vec<Arc<Notify>> {
        let uids = self.by_name.get(key).into_iter().flatten();
        uids.filter_map(|uid| self.by_pod.get(uid)).map(|(_, wake)| wake.clone()).collect()
    }

    fn remove(&mut self, uid: &PodUid) {
        let Some((key, _)) = self.by_pod.remove(uid) else { return };
        if let Some(uids) = self.by_name.get_mut(&key) {
            uids.remove(uid);
            if uids.is_empty() {
                self.by_name.remove(&key);
            }
        }
    }
}

/// Wakes the workers of pods with changes.
struct Waking(Arc<Workers>);

impl Reconciler for Waking {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let workers = &self.0;
        // This includes a deleted pod of the same name.
        workers.wakers.lock().of_name(&key).iter().for_each(|wake| wake.notify_one());
        if let Some(pod) = workers.pods.get(&key)
            && let (Some(uid), Some(node)) = (pod.uid(), node_of(&pod).and_then(|name| workers.node(name)))
        {
            workers.begin(&node, key, PodUid(uid));
        }
        Ok(Action::Wait)
    }
}

impl Workers {
    /// The kubelet of a node; `None` if the pods of the node are simulated.
    fn node(&self, name: &str) -> Option<Arc<Node>> {
        if let Some(node) = self.nodes.get(name) {
            return Some(node.clone());
        }
        self.node_objects.get(&ObjectKey::cluster(name)).filter(|object| is_hosted(object))?;
        Some(Arc::new(self.nodes.values().next()?.hosting(name)))
    }

    /// The kubelet of the node to which a pod is bound. The runtime of `node` has the pod.
    fn kubelet_of(&self, key: &ObjectKey, uid: &PodUid, node: &Arc<Node>) -> Arc<Node> {
        let pod = self.pods.get(key).filter(|pod| pod.metadata.uid.as_ref() == Some(&uid.0));
        match pod.as_deref().and_then(node_of) {
            // The object of a hosted node may be deleted before its pods.
            Some(name) if name != node.name => Arc::new(node.hosting(name)),
            _ => node.clone(),
        }
    }

    /// Starts a worker for a pod that has none.
    fn begin(&self, node: &Arc<Node>, key: ObjectKey, uid: PodUid) {
        let mut wakers = self.wakers.lock();
        if wakers.by_pod.contains_key(&uid) {
            return;
        }
        let wake = Arc::new(Notify::new());
        wakers.by_pod.insert(uid.clone(), (key.clone(), wake.clone()));
        wakers.by_name.entry(key.clone()).or_default().insert(uid.clone());
        // The receiver exists as long as the task of the workers runs.
        let _ = self.start.send(Begin { node: node.clone(), key, uid, wake });
    }

    /// Runs the workers until the future is dropped.
    async fn run(&self, mut receiver: mpsc::UnboundedReceiver<Begin>) {
        let mut changes = SelectAll::new();
        for node in self.nodes.values() {
            changes.push(node.runtime.changes());
            self.adopt(node);
        }
        let mut tasks: JoinSet<PodUid> = JoinSet::new();
        loop {
            tokio::select! {
                Some(Begin { node, key, uid, wake }) = receiver.recv() => {
                    tasks.spawn(Worker::new(node, key, uid, wake).run());
                }
                Some(uid) = changes.next(), if !changes.is_empty() => {
                    if let Some((_, wake)) = self.wakers.lock().by_pod.get(&uid) {
                        wake.notify_one();
                    }
                }
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => match ended {
                    Ok(uid) => {
                        self.wakers.lock().remove(&uid);
                    }
                    // Without its worker, a pod would run unattended, so the process ends.
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    Err(_) => {}
                },
            }
        }
    }

    /// Starts the workers of the pods that the runtime still has. Frees the devices of pods that
    /// exist neither in the runtime nor in the API.
    fn adopt(&self, node: &Arc<Node>) {
        let states = node.runtime.pods();
        for state in &states {
            let key = ObjectKey::namespaced(&state.namespace, &state.name);
            let node = self.kubelet_of(&key, &state.uid, node);
            self.begin(&node, key, state.uid.clone());
        }
        let in_api = self.pods.iter().filter(|pod| node_of(pod) == Some(&node.name)).filter_map(|pod| pod.uid());
        let kept: BTreeSet<PodUid> = states.iter().map(|state| state.uid.clone()).chain(in_api.map(PodUid)).collect();
        node.devices.retain(&kept);
    }
}
