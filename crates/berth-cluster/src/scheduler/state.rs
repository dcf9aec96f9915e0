//! The scheduler's state: the cluster as it will be after all decisions are written, and the
//! pending pods.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_runtime::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use crate::scheduling::{
    Choice, Cluster, Packing, Placement, PodInfo, Preemption, Resources, Storage, Unfit, fits, is_free, place, preempt,
    unschedulable_message,
};
use crate::storage::facts::claim_key;

/// The decision for one pod.
#[derive(Clone, Debug)]
pub enum Decision {
    /// Bind the pod to a node.
    Bind {
        /// The pod.
        pod: Arc<PodInfo>,
        /// The node.
        node: String,
    },
    /// Bind the pod to a node after its claims have volumes there.
    Prepare {
        /// The pod.
        pod: Arc<PodInfo>,
        /// The node.
        node: String,
        /// The choice for each unbound claim.
        choices: Vec<Choice>,
    },
    /// The pod fits nowhere now.
    Wait {
        /// The pod.
        pod: Arc<PodInfo>,
        /// The reason, in kube-scheduler's words.
        message: String,
        /// The node on which preemption makes room.
        nominated: Option<String>,
        /// Pods to evict for it.
        victims: Vec<Arc<PodInfo>>,
    },
}

/// When the next decisions are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// There is nothing to decide.
    Never,
    /// Pods that fitted nowhere may fit now. More such changes are likely to follow shortly.
    Soon,
    /// A new pod is pending.
    Now,
}

/// Order of attempts: the most important first, then the longest waiting; pods of the same second
/// in the order in which they were seen.
type Turn = (Reverse<i32>, Timestamp, u64);

/// A pod without a node.
#[derive(Clone)]
struct Waiting {
    turn: Turn,
    pod: Arc<PodInfo>,
    /// The class of pods that fit on the same nodes; `None` if the pod's placement depends on other
    /// pods.
    class: Option<Arc<str>>,
}

/// The scheduler's state. All of it can be rebuilt from the API.
pub struct State {
    scheduler: String,
    packing: Packing,
    preemption: bool,
    cluster: Cluster,
    seen: u64,
    /// Pods without a node, by key.
    waiting: BTreeMap<ObjectKey, Waiting>,
    /// All pending pods, in their order.
    turns: BTreeMap<Turn, ObjectKey>,
    /// New pods that were not tried yet.
    active: BTreeMap<Turn, ObjectKey>,
    /// Nodes that may have more free capacity than when the pending pods were last tried.
    changed: BTreeSet<String>,
    /// Pods whose binding is being written: they are counted on their node, and changes to the
    /// unbound pod are ignored.
    assumed: BTreeSet<ObjectKey>,
    storage: Storage,
    /// Pods without a node that use claims, by claim.
    users: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
    /// Assumed pods whose claims wait for volumes, with their node.
    preparing: BTreeMap<ObjectKey, Preparing>,
    /// Assumed pods whose claims have changed.
    to_check: BTreeSet<ObjectKey>,
}

/// An assumed pod whose claims wait for volumes.
struct Preparing {
    node: String,
    /// True if the choices for its claims are written.
    is_written: bool,
}

impl State {
    /// An empty state for the scheduler of this name.
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
            storage: Storage::default(),
            users: BTreeMap::new(),
            preparing: BTreeMap::new(),
            to_check: BTreeSet::new(),
        }
    }

    /// Applies a change to a pod.
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
            self.stop_assuming(&info.key);
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
            // Only the status changed, most likely by the scheduler itself: this is no reason to
            // try again.
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

    /// Applies a change to a node.
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
                    let name = old.name_any();
                    self.cluster.remove_node(&name);
                    let here = self.preparing.iter().filter(|(_, preparing)| preparing.node == name);
                    let here: Vec<_> = here.map(|(key, _)| key.clone()).collect();
                    for key in here {
                        self.binding_failed(&key);
                    }
                }
            }
        }
        self.soon()
    }

    fn soon(&self) -> Wake {
        let has_work = !self.active.is_empty()
            || !self.to_check.is_empty()
            || !self.changed.is_empty() && !self.waiting.is_empty();
        if has_work { Wake::Soon } else { Wake::Never }
    }

    /// Applies a change to a namespace's labels.
    pub fn namespace_changed(&mut self, old: Option<&Arc<Namespace>>, new: Option<&Arc<Namespace>>) {
        let Some(any) = new.or(old) else { return };
        self.cluster.set_namespace(&any.name_any(), new.map(|namespace| namespace.labels().clone()));
    }

    /// Applies a change to a claim.
    pub fn claim_changed(&mut self, key: &ObjectKey, new: Option<&Arc<PersistentVolumeClaim>>) -> Wake {
        self.storage.set_claim(key, new.cloned());
        self.try_users_of(key)
    }

    /// Applies a change to a volume.
    pub fn volume_changed(&mut self, old: Option<&Arc<PersistentVolume>>, new: Option<&Arc<PersistentVolume>>) -> Wake {
        let Some(any) = new.or(old) else { return Wake::Never };
        self.storage.set_volume(&any.name_any(), new.cloned());
        let of: BTreeSet<_> = [old, new].into_iter().flatten().filter_map(|volume| claim_key(volume)).collect();
        for claim in of {
            self.try_users_of(&claim);
        }
        if new.is_some_and(|volume| is_free(volume)) {
            self.try_all_users();
        }
        self.soon()
    }

    /// Applies a change to a storage class.
    pub fn class_changed(&mut self, name: &str, new: Option<&Arc<StorageClass>>) -> Wake {
        self.storage.set_class(name, new.cloned());
        self.try_all_users();
        self.soon()
    }

    fn try_users_of(&mut self, claim: &ObjectKey) -> Wake {
        for pod in self.users.get(claim).cloned().unwrap_or_default() {
            self.try_again(&pod);
        }
        self.soon()
    }

    fn try_all_users(&mut self) {
        let pods: BTreeSet<ObjectKey> = self.users.values().flatten().cloned().collect();
        for pod in pods {
            self.try_again(&pod);
        }
    }

    fn try_again(&mut self, key: &ObjectKey) {
        if self.preparing.contains_key(key) {
            self.to_check.insert(key.clone());
        } else if let Some(Waiting { turn, .. }) = self.waiting.get(key) {
            self.active.insert(*turn, key.clone());
        }
    }

    /// The volume of this name, as last seen.
    pub fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.storage.volume(name).cloned()
    }

    /// The claim with this key, as last seen.
    pub fn claim(&self, key: &ObjectKey) -> Option<Arc<PersistentVolumeClaim>> {
        self.storage.claim(key).cloned()
    }

    /// Records that the choices for a pod's claims are written.
    pub fn prepared(&mut self, key: &ObjectKey) {
        if let Some(preparing) = self.preparing.get_mut(key) {
            preparing.is_written = true;
            self.to_check.insert(key.clone());
        }
    }

    /// True if the claims of assumed pods have changed.
    pub fn has_prepared(&self) -> bool {
        !self.to_check.is_empty()
    }

    /// Decides the pods whose claims have changed: pods with all volumes are bound. Pods whose
    /// volumes are not available on the chosen node are decided again.
    fn check_prepared(&mut self) -> Vec<Decision> {
        let mut decisions = Vec::new();
        for key in std::mem::take(&mut self.to_check) {
            let Some(Preparing { node, is_written: true }) = self.preparing.get(&key) else { continue };
            let node = node.clone();
            let Some(pod) = self.cluster.pod(&key).map(|pod| Arc::new(pod.with_volumes(&self.storage))) else {
                continue;
            };
            let fits = self.cluster.node(&node).is_some_and(|it| pod.volumes().on(it.name(), it.labels()).is_ok());
            if fits && pod.volumes().are_bound() {
                self.stop_preparing(&key);
                decisions.push(Decision::Bind { pod, node });
            } else if !fits || !pod.volumes().are_for(&node) {
                self.binding_failed(&key);
            }
        }
        decisions
    }

    /// Reverts a decision that could not be written.
    pub fn binding_failed(&mut self, key: &ObjectKey) {
        if self.stop_assuming(key)
            && let Some(pod) = self.cluster.remove_pod(key)
        {
            self.wait(pod);
        }
    }

    /// Decides all pods that are worth trying.
    pub fn decide(&mut self) -> Vec<Decision> {
        let mut decisions = self.check_prepared();
        let new = std::mem::take(&mut self.active);
        let changed = std::mem::take(&mut self.changed);
        let turns = if changed.is_empty() { new.clone() } else { self.turns.clone() };
        let mut helped: BTreeMap<Arc<str>, bool> = BTreeMap::new();
        // Placing pods only reduces capacity: if a pod does not fit now, no later pod of its class
        // fits in this round.
        let mut hopeless: BTreeMap<Arc<str>, String> = BTreeMap::new();
        for (turn, key) in turns {
            let Some(Waiting { pod, class, .. }) = self.waiting.get(&key).cloned() else { continue };
            let class = class.filter(|_| pod.nominated_node().is_none());
            // As with kube-scheduler's queueing hints: a pod is not tried again after a change that
            // cannot help it.
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
            let pod = self.with_volumes(pod);
            if let Some(why) = &pod.volumes().blocked {
                decisions.extend(self.blocked(&pod, why));
                continue;
            }
            match place(&pod, &self.cluster, self.packing) {
                Placement::Node(node) => decisions.push(self.assume(pod, node)),
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

    /// The pod with the current requirements of its claims.
    fn with_volumes(&self, pod: Arc<PodInfo>) -> Arc<PodInfo> {
        if pod.claims().next().is_none() { pod } else { Arc::new(pod.with_volumes(&self.storage)) }
    }

    /// The decision for a pod whose claims cannot be used; `None` if its condition has that message
    /// already.
    fn blocked(&self, pod: &Arc<PodInfo>, why: &str) -> Option<Decision> {
        let count = self.cluster.node_count();
        let mut message = unschedulable_message(count, &BTreeMap::new(), "");
        if count > 0 {
            message = format!("0/{count} nodes are available: {why}.");
            if self.preemption
                && let Preemption::Impossible(text) = preempt(pod, &self.cluster, &[])
            {
                message = format!("{message} {text}");
            }
        }
        let pod = pod.clone();
        (!is_said(&pod, &message)).then_some(Decision::Wait { pod, message, nominated: None, victims: Vec::new() })
    }

    /// Counts the pod on its node, and returns the first write.
    fn assume(&mut self, pod: Arc<PodInfo>, node: String) -> Decision {
        self.stop_waiting(&pod.key);
        self.assumed.insert(pod.key.clone());
        self.cluster.place(pod.clone(), &node);
        if pod.volumes().are_bound() {
            return Decision::Bind { pod, node };
        }
        let choices = self.cluster.node(&node).map(|node| pod.volumes().on(node.name(), node.labels()));
        let choices = choices.and_then(Result::ok).unwrap_or_default();
        self.storage.take(&choices);
        self.preparing.insert(pod.key.clone(), Preparing { node: node.clone(), is_written: false });
        for claim in pod.claims() {
            self.users.entry(claim).or_default().insert(pod.key.clone());
        }
        Decision::Prepare { pod, node, choices }
    }

    fn stop_preparing(&mut self, key: &ObjectKey) {
        self.preparing.remove(key);
        self.to_check.remove(key);
        if !self.waiting.contains_key(key)
            && let Some(pod) = self.cluster.pod(key).cloned()
        {
            self.forget_uses(&pod);
            for claim in pod.claims() {
                self.storage.give_back(&claim);
            }
        }
    }

    /// Stops counting an assumed pod. Returns true if the pod was assumed.
    fn stop_assuming(&mut self, key: &ObjectKey) -> bool {
        if self.preparing.contains_key(key) {
            self.stop_preparing(key);
        }
        self.assumed.remove(key)
    }

    fn forget_uses(&mut self, pod: &PodInfo) {
        for claim in pod.claims() {
            if let Some(users) = self.users.get_mut(&claim) {
                users.remove(&pod.key);
                if users.is_empty() {
                    self.users.remove(&claim);
                }
            }
        }
    }

    /// Number of pending pods.
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    fn forget(&mut self, key: &ObjectKey) {
        self.stop_waiting(key);
        self.stop_assuming(key);
        let node = self.cluster.place_of(key).map(str::to_owned);
        if let Some(pod) = self.cluster.remove_pod(key) {
            self.changed.extend(node);
            // Claims that only one pod may use are now free for pods on any node.
            for claim in pod.claims() {
                self.try_users_of(&claim);
            }
        }
    }

    fn wait(&mut self, pod: Arc<PodInfo>) {
        self.stop_waiting(&pod.key);
        self.seen += 1;
        let turn = (Reverse(pod.priority), pod.created(), self.seen);
        self.active.insert(turn, pod.key.clone());
        self.turns.insert(turn, pod.key.clone());
        let class = (!pod.depends_on_pods()).then(|| pod.class().clone());
        for claim in pod.claims() {
            self.users.entry(claim).or_default().insert(pod.key.clone());
        }
        self.waiting.insert(pod.key.clone(), Waiting { turn, pod, class });
    }

    fn stop_waiting(&mut self, key: &ObjectKey) {
        if let Some(Waiting { turn, pod, .. }) = self.waiting.remove(key) {
            self.active.remove(&turn);
            self.turns.remove(&turn);
            self.forget_uses(&pod);
        }
    }

    fn could_take(&self, node: &str, pod: &PodInfo) -> bool {
        let Some(node) = self.cluster.node(node) else { return false };
        let resolved = pod.claims().next().is_some().then(|| pod.with_volumes(&self.storage));
        match fits(resolved.as_ref().unwrap_or(pod), node, &Resources::default()) {
            Ok(()) => true,
            // The pod fits only if pods of lower priority are evicted.
            Err(reasons) => {
                self.preemption
                    && reasons.iter().all(Unfit::is_resolvable)
                    && node.pods.values().any(|other| other.priority < pod.priority)
            }
        }
    }
}

/// True if the pod's condition already has the message.
pub(super) fn is_said(pod: &PodInfo, message: &str) -> bool {
    let conditions = pod.pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|known| {
        known.type_ == "PodScheduled"
            && known.status == "False"
            && known.reason.as_deref() == Some("Unschedulable")
            && known.message.as_deref() == Some(message)
    })
}
