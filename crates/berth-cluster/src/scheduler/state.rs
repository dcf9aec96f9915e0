//! What the scheduler knows: the cluster as it will be once everything decided is written, and the pods that wait.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_runtime::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::ResourceExt;

use crate::scheduling::{
    Cluster, Packing, Placement, PodInfo, Preemption, Resources, Unfit, fits, place, preempt, unschedulable_message,
};

/// What was decided for one pod.
#[derive(Clone, Debug)]
pub enum Decision {
    /// It goes to a node.
    Bind {
        /// The pod.
        pod: Arc<PodInfo>,
        /// The node.
        node: String,
    },
    /// It fits nowhere now.
    Wait {
        /// The pod.
        pod: Arc<PodInfo>,
        /// Why, in kube-scheduler's words.
        message: String,
        /// The node preemption makes room on.
        nominated: Option<String>,
        /// Pods that have to go for it.
        victims: Vec<Arc<PodInfo>>,
    },
}

/// When there is something to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Nothing is.
    Never,
    /// Pods that fitted nowhere may fit now: more such changes are likely to follow at once.
    Soon,
    /// A new pod waits.
    Now,
}

/// Order of trying: most important first, then longest waiting; pods of one second in the order they were seen.
type Turn = (Reverse<i32>, Timestamp, u64);

/// A pod without a node.
#[derive(Clone)]
struct Waiting {
    turn: Turn,
    pod: Arc<PodInfo>,
    /// What it shares with all pods that fit where it fits; none when its place depends on other pods.
    class: Option<Arc<str>>,
}

/// The scheduler's memory. All of it can be rebuilt from the API.
pub struct State {
    scheduler: String,
    packing: Packing,
    preemption: bool,
    cluster: Cluster,
    seen: u64,
    /// Pods without a node, by key.
    waiting: BTreeMap<ObjectKey, Waiting>,
    /// All of them, in turn.
    turns: BTreeMap<Turn, ObjectKey>,
    /// New ones, not tried yet.
    active: BTreeMap<Turn, ObjectKey>,
    /// Nodes on which there may be more room than when the waiting pods were last tried.
    changed: BTreeSet<String>,
    /// Pods whose binding is being written: they count on their node, and changes of the unbound pod mean nothing.
    assumed: BTreeSet<ObjectKey>,
}

impl State {
    /// An empty memory for the scheduler of this name.
    pub fn new(scheduler: String, packing: Packing, preemption: bool) -> Self {
        Self {
            scheduler,
            packing,
            preemption,
            cluster: Cluster::default(),
            seen: 0,
            waiting: BTreeMap::new(),
            turns: BTreeMap::new(),
            active: BTreeMap::new(),
            changed: BTreeSet::new(),
            assumed: BTreeSet::new(),
        }
    }

    /// Takes in a change of a pod.
    pub fn pod_changed(&mut self, old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>) -> Wake {
        let info = new.map(|pod| PodInfo::new(pod.clone()));
        let Some(info) = info.filter(|info| !info.is_terminal()) else {
            let key = new.or(old).map(|pod| ObjectKey::of(pod.as_ref()));
            if let Some(key) = key {
                self.forget(&key);
            }
            return self.soon();
        };
        if let Some(node) = info.node_name().map(str::to_owned) {
            self.stop_waiting(&info.key);
            self.assumed.remove(&info.key);
            self.cluster.place(Arc::new(info), &node);
            return Wake::Never;
        }
        if info.is_gated() || info.is_terminating() || !info.is_for_scheduler(&self.scheduler) {
            self.forget(&info.key);
            return self.soon();
        }
        if self.assumed.contains(&info.key) {
            return Wake::Never;
        }
        let is_same = old.is_some_and(|old| {
            old.spec == info.pod.spec
                && old.metadata.labels == info.pod.metadata.labels
                && old.metadata.uid == info.pod.metadata.uid
        });
        let info = Arc::new(info);
        if let Some(node) = info.nominated_node().map(str::to_owned) {
            self.cluster.nominate(info.clone(), &node);
        }
        match self.waiting.get_mut(&info.key) {
            // Only the status changed, most likely by our own hand: no reason to try again.
            Some(known) if is_same => {
                known.pod = info;
                Wake::Never
            }
            _ => {
                self.wait(info);
                Wake::Now
            }
        }
    }

    /// Takes in a change of a node.
    pub fn node_changed(&mut self, old: Option<&Arc<Node>>, new: Option<&Arc<Node>>) -> Wake {
        match new {
            Some(node) => {
                let matters = old.is_none_or(|old| {
                    let allocatable = |node: &Node| node.status.as_ref().and_then(|status| status.allocatable.clone());
                    old.spec != node.spec
                        || old.metadata.labels != node.metadata.labels
                        || allocatable(old) != allocatable(node)
                });
                if matters {
                    self.cluster.set_node(node.clone());
                    self.changed.insert(node.name_any());
                }
            }
            None => {
                if let Some(old) = old {
                    self.cluster.remove_node(&old.name_any());
                }
            }
        }
        self.soon()
    }

    fn soon(&self) -> Wake {
        let has_work = !self.active.is_empty() || !self.changed.is_empty() && !self.waiting.is_empty();
        if has_work { Wake::Soon } else { Wake::Never }
    }

    /// Takes in a change of a namespace's labels.
    pub fn namespace_changed(&mut self, old: Option<&Arc<Namespace>>, new: Option<&Arc<Namespace>>) {
        let Some(any) = new.or(old) else { return };
        self.cluster.set_namespace(&any.name_any(), new.map(|namespace| namespace.labels().clone()));
    }

    /// Takes back a decision that could not be written.
    pub fn binding_failed(&mut self, key: &ObjectKey) {
        if self.assumed.remove(key)
            && let Some(pod) = self.cluster.remove_pod(key)
        {
            self.wait(pod);
        }
    }

    /// Decides every pod worth trying.
    pub fn decide(&mut self) -> Vec<Decision> {
        let new = std::mem::take(&mut self.active);
        let changed = std::mem::take(&mut self.changed);
        let turns = if changed.is_empty() { new.clone() } else { self.turns.clone() };
        let mut helped: BTreeMap<Arc<str>, bool> = BTreeMap::new();
        let mut decisions = Vec::new();
        // Placing pods only takes room away: what does not fit now fits no pod of the same class later in this round.
        let mut hopeless: BTreeMap<Arc<str>, String> = BTreeMap::new();
        for (turn, key) in turns {
            let Some(Waiting { pod, class, .. }) = self.waiting.get(&key).cloned() else { continue };
            let class = class.filter(|_| pod.nominated_node().is_none());
            // As with kube-scheduler's queueing hints: a change that cannot help a pod is no reason to try it again.
            if let (false, Some(class)) = (new.contains_key(&turn), &class) {
                let may_help = || changed.iter().any(|node| self.could_take(node, &pod));
                if !*helped.entry(class.clone()).or_insert_with(may_help) {
                    continue;
                }
            }
            if let Some(message) = class.as_ref().and_then(|class| hopeless.get(class)) {
                if !is_said(&pod, message) {
                    let message = message.clone();
                    decisions.push(Decision::Wait { pod, message, nominated: None, victims: Vec::new() });
                }
                continue;
            }
            match place(&pod, &self.cluster, self.packing) {
                Placement::Node(node) => {
                    self.stop_waiting(&key);
                    self.assumed.insert(key);
                    self.cluster.place(pod.clone(), &node);
                    decisions.push(Decision::Bind { pod, node });
                }
                Placement::Nowhere { reasons, preemptible } => {
                    let count = self.cluster.node_count();
                    let outcome = if self.preemption {
                        preempt(&pod, &self.cluster, &preemptible)
                    } else {
                        Preemption::Impossible(String::new())
                    };
                    let (text, nominated, victims) = match outcome {
                        Preemption::Possible { node, victims } => {
                            self.cluster.nominate(pod.clone(), &node);
                            (String::new(), Some(node), victims)
                        }
                        Preemption::Impossible(text) => (text, None, Vec::new()),
                    };
                    let message = unschedulable_message(count, &reasons, &text);
                    if nominated.is_none()
                        && let Some(class) = class
                    {
                        hopeless.insert(class, message.clone());
                    }
                    if nominated.is_none() && is_said(&pod, &message) {
                        continue;
                    }
                    decisions.push(Decision::Wait { pod, message, nominated, victims });
                }
            }
        }
        decisions
    }

    /// How many pods wait for a node.
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    fn forget(&mut self, key: &ObjectKey) {
        self.stop_waiting(key);
        self.assumed.remove(key);
        let node = self.cluster.place_of(key).map(str::to_owned);
        if self.cluster.remove_pod(key).is_some() {
            self.changed.extend(node);
        }
    }

    fn wait(&mut self, pod: Arc<PodInfo>) {
        self.stop_waiting(&pod.key);
        self.seen += 1;
        let turn = (Reverse(pod.priority), pod.created(), self.seen);
        self.active.insert(turn, pod.key.clone());
        self.turns.insert(turn, pod.key.clone());
        let class = (!pod.depends_on_pods()).then(|| pod.class().clone());
        self.waiting.insert(pod.key.clone(), Waiting { turn, pod, class });
    }

    fn stop_waiting(&mut self, key: &ObjectKey) {
        if let Some(Waiting { turn, .. }) = self.waiting.remove(key) {
            self.active.remove(&turn);
            self.turns.remove(&turn);
        }
    }

    fn could_take(&self, node: &str, pod: &PodInfo) -> bool {
        let Some(node) = self.cluster.node(node) else { return false };
        match fits(pod, node, &Resources::default()) {
            Ok(()) => true,
            // Room that others would have to make.
            Err(reasons) => {
                self.preemption
                    && reasons.iter().all(Unfit::is_resolvable)
                    && node.pods.values().any(|other| other.priority < pod.priority)
            }
        }
    }
}

/// Does the pod's condition say so already?
pub(super) fn is_said(pod: &PodInfo, message: &str) -> bool {
    let conditions = pod.pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|known| {
        known.type_ == "PodScheduled"
            && known.status == "False"
            && known.reason.as_deref() == Some("Unschedulable")
            && known.message.as_deref() == Some(message)
    })
}
