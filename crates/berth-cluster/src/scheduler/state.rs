//! The scheduler's state: the cluster as it will be after all decisions are written, and the
//! pending pods. This module applies changes; [`super::decide`] decides.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::scheduling::PodGroup;
use berth_runtime::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use super::gangs::{Gang, GangKind, Gangs};
use super::profile::Profile;
use crate::placement::{
    Choice, Cluster, ExtendedClaim, PodInfo, Resources, Storage, claim_pod, created_claims, fits, is_extended_claim,
    is_free,
};
use crate::storage::facts::claim_key;

/// The decision for one pod, or for the pods of a gang.
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
    /// The pod has a node, which is reserved until enough pods of its group have one.
    Hold {
        /// The pod.
        pod: Arc<PodInfo>,
        /// What it waits for.
        message: String,
    },
    /// Write the results of a gang, and then the decisions for its pods.
    Gang {
        /// The results; `None` for gangs that have none.
        results: Option<Results>,
        /// The decisions for its pods.
        members: Vec<Decision>,
    },
    /// Delete a claim that an earlier attempt made for the pod's extended resources, before the pod
    /// is tried again.
    Discard {
        /// The pod.
        pod: Arc<PodInfo>,
        /// The claim.
        claim: ObjectKey,
    },
    /// Release the devices of a claim that only this pod uses, because no node can use them that
    /// the pod fits on.
    Release {
        /// The pod.
        pod: Arc<PodInfo>,
        /// The claim.
        claim: ObjectKey,
    },
    /// The pod names a scheduler that the cluster does not have.
    NoScheduler {
        /// The pod.
        pod: Arc<PodInfo>,
        /// The name, and the accepted ones.
        message: String,
    },
}

/// What is written to the ConfigMap and the pods of a Sakkara group.
#[derive(Clone, Debug)]
pub struct Results {
    /// The group's ConfigMap.
    pub config_map: Arc<ConfigMap>,
    /// Data to write before the decisions for its pods; `None` deletes a key.
    pub data: BTreeMap<String, Option<String>>,
    /// Labels to write before its pods are bound.
    pub labels: Vec<(Arc<PodInfo>, BTreeMap<String, String>)>,
    /// Time of the first attempt, if the decisions bind the last pods of the group.
    pub completes: Option<Timestamp>,
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

/// Order of attempts: the most important first, then the longest waiting, then gangs by name, so
/// that the pods of a gang are adjacent; pods of the same second in the order in which they were
/// seen. The time of a gang is that of its declaration, or of its last rejection.
pub(super) type Turn = (Reverse<i32>, Timestamp, String, u64);

/// A pod without a node.
#[derive(Clone)]
pub(super) struct Waiting {
    pub(super) turn: Turn,
    pub(super) pod: Arc<PodInfo>,
    /// The class of pods that fit on the same nodes; `None` if the pod's placement depends on other
    /// pods.
    pub(super) class: Option<Arc<str>>,
    /// Its scheduler.
    pub(super) profile: Arc<Profile>,
    /// Its gang, if its scheduler forms gangs.
    pub(super) gang: Option<Gang>,
}

/// The scheduler's state. All of it can be rebuilt from the API, except reservations.
pub struct State {
    /// The schedulers by name; the default is the one of pods without a name.
    pub(super) profiles: BTreeMap<String, Arc<Profile>>,
    pub(super) cluster: Cluster,
    seen: u64,
    /// Pods without a node, by key.
    pub(super) waiting: BTreeMap<ObjectKey, Waiting>,
    /// All pending pods, in their order.
    pub(super) turns: BTreeMap<Turn, ObjectKey>,
    /// Pods that are to be tried: new ones, and those that a change concerns.
    pub(super) active: BTreeMap<Turn, ObjectKey>,
    /// Nodes that may have more free capacity than when the pending pods were last tried.
    pub(super) changed: BTreeSet<String>,
    /// Pods whose binding is being written, or that hold a node for their gang: they are counted on
    /// their node, and changes to the unbound pod are ignored.
    pub(super) assumed: BTreeSet<ObjectKey>,
    pub(super) storage: Storage,
    /// Pods without a node that use claims, by claim.
    pub(super) users: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
    /// Pods without a node that claim devices.
    pub(super) device_users: BTreeSet<ObjectKey>,
    /// Assumed pods whose claims, or the claims of whose gang, wait for volumes.
    pub(super) preparing: BTreeMap<ObjectKey, Preparing>,
    /// Assumed pods whose claims have changed.
    pub(super) to_check: BTreeSet<ObjectKey>,
    pub(super) gangs: Gangs,
    /// Sakkara groups whose pods may all be bound although their ConfigMap does not say so: the
    /// process may have ended between these writes.
    pub(super) unreported: BTreeSet<Gang>,
    /// UIDs of the pods whose scheduler does not exist, by key.
    without_scheduler: BTreeMap<ObjectKey, Option<String>>,
    /// Decisions that changes have led to.
    pub(super) ready: Vec<Decision>,
}

/// An assumed pod whose claims wait for volumes.
pub(super) struct Preparing {
    pub(super) node: String,
    /// True if the choices for its claims are written.
    pub(super) is_written: bool,
    /// The gang whose pods are bound together.
    pub(super) gang: Option<Gang>,
}

impl State {
    /// An empty state for these schedulers.
    pub fn new(profiles: Vec<Profile>) -> Self {
        Self {
            profiles: profiles.into_iter().map(|profile| (profile.name.clone(), Arc::new(profile))).collect(),
            cluster: Cluster::default(),
            seen: 0,
            waiting: BTreeMap::new(),
            turns: BTreeMap::new(),
            active: BTreeMap::new(),
            changed: BTreeSet::new(),
            assumed: BTreeSet::new(),
            storage: Storage::default(),
            users: BTreeMap::new(),
            device_users: BTreeSet::new(),
            preparing: BTreeMap::new(),
            to_check: BTreeSet::new(),
            gangs: Gangs::default(),
            unreported: BTreeSet::new(),
            without_scheduler: BTreeMap::new(),
            ready: Vec::new(),
        }
    }

    /// The scheduler of a pod, if the cluster has it.
    pub(super) fn profile_of(&self, pod: &PodInfo) -> Option<&Arc<Profile>> {
        self.profiles.get(pod.scheduler_name())
    }

    /// Applies a change to a pod.
    pub fn pod_changed(&mut self, old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>) -> Wake {
        self.gangs.pod_changed(old, new);
        let info = new.map(|pod| PodInfo::new(pod.clone()));
        let Some(info) = info.filter(|info| !info.is_terminal()) else {
            let key = new.or(old).map(|pod| ObjectKey::of(pod.as_ref()));
            if let Some(key) = key {
                self.forget(&key);
            }
            self.gangs.forget_unused();
            return self.soon();
        };
        if let Some(node) = info.node_name().map(str::to_owned) {
            self.stop_waiting(&info.key);
            self.stop_assuming(&info.key);
            self.without_scheduler.remove(&info.key);
            let gang = self.profile_of(&info).and_then(|profile| Gang::of(&info, profile));
            self.cluster.place(Arc::new(info), &node);
            return gang.map_or(Wake::Never, |gang| self.check_report(gang));
        }
        if info.is_gated() || info.is_terminating() {
            self.forget(&info.key);
            return self.soon();
        }
        if self.profile_of(&info).is_none() {
            let reported = self.without_scheduler.remove(&info.key);
            self.forget(&info.key);
            return self.report_missing_scheduler(info, reported);
        }
        if self.assumed.contains(&info.key) {
            return Wake::Never;
        }
        let is_same = old.is_some_and(|old| {
            old.spec == info.pod.spec
                && old.metadata.labels == info.pod.metadata.labels
                && old.metadata.uid == info.pod.metadata.uid
                && created_claims(old) == created_claims(&info.pod)
        });
        let info = self.with_backed(Arc::new(info));
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

    /// Reports once for each pod that its scheduler does not exist. `reported` is the UID of the
    /// last pod of this name for which that was reported.
    fn report_missing_scheduler(&mut self, pod: PodInfo, reported: Option<Option<String>>) -> Wake {
        let uid = pod.pod.metadata.uid.clone();
        self.without_scheduler.insert(pod.key.clone(), uid.clone());
        if reported == Some(uid) {
            return self.soon();
        }
        let names: Vec<&str> = self.profiles.keys().map(String::as_str).collect();
        let message =
            format!("no scheduler is named {:?} in this cluster: expected {}", pod.scheduler_name(), names.join(", "));
        self.ready.push(Decision::NoScheduler { pod: Arc::new(pod), message });
        Wake::Now
    }

    /// Applies a change to a PodGroup.
    pub fn pod_group_changed(&mut self, key: &ObjectKey, new: Option<&Arc<PodGroup>>) -> Wake {
        if !self.gangs.pod_group_changed(key, new) {
            return Wake::Never;
        }
        for kind in [GangKind::Coscheduled, GangKind::Whole] {
            let gang = Gang { key: key.clone(), kind };
            if new.is_none() {
                let released = self.release_all(&gang);
                self.changed.extend(released.into_iter().map(|(_, node)| node));
            }
            self.try_gang_again(&gang);
        }
        self.soon()
    }

    /// Applies a change to a ConfigMap, which may declare a Sakkara group or a topology.
    pub fn config_map_changed(&mut self, old: Option<&Arc<ConfigMap>>, new: Option<&Arc<ConfigMap>>) -> Wake {
        let (groups, is_topology) = self.gangs.config_map_changed(old, new);
        let namespace = new.or(old).and_then(|map| map.namespace()).unwrap_or_default();
        for name in groups {
            let gang = Gang { key: ObjectKey::namespaced(&namespace, name), kind: GangKind::Sakkara };
            self.try_gang_again(&gang);
            self.check_report(gang);
        }
        if is_topology {
            let gangs = self.waiting.values().filter_map(|waiting| waiting.gang.clone());
            let gangs: BTreeSet<Gang> = gangs.filter(|gang| gang.kind != GangKind::Coscheduled).collect();
            for gang in gangs {
                self.try_gang_again(&gang);
            }
        }
        self.soon()
    }

    /// Lets the next round check if a group's ConfigMap has to state that its pods are bound.
    fn check_report(&mut self, gang: Gang) -> Wake {
        if gang.kind != GangKind::Sakkara || !self.gangs.is_unreported(&gang) {
            return Wake::Never;
        }
        self.unreported.insert(gang);
        Wake::Soon
    }

    /// Computes the turns of the waiting pods of a gang anew, and lets them be tried.
    pub(super) fn try_gang_again(&mut self, gang: &Gang) {
        for pod in self.waiting_members(gang) {
            self.wait(pod);
        }
    }

    /// The pods of a gang without a node.
    pub(super) fn waiting_members(&self, gang: &Gang) -> Vec<Arc<PodInfo>> {
        let waiting = self.gangs.pods(gang).filter_map(|key| self.waiting.get(key));
        waiting.filter(|waiting| waiting.gang.as_ref() == Some(gang)).map(|waiting| waiting.pod.clone()).collect()
    }

    /// Takes the reserved nodes from the pods of a gang. They wait again, and are not tried before
    /// a change.
    pub(super) fn release_all(&mut self, gang: &Gang) -> Vec<(Arc<PodInfo>, String)> {
        let held = self.gangs.take_held(gang);
        let mut released = Vec::new();
        for key in held.keys() {
            let node = self.cluster.place_of(key).map(str::to_owned);
            self.give_back_devices(key);
            self.assumed.remove(key);
            if let (Some(pod), Some(node)) = (self.cluster.remove_pod(key), node) {
                self.enqueue(pod.clone(), false);
                released.push((pod, node));
            }
        }
        released
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
                    self.check_held_on(&node.name_any());
                }
            }
            None => {
                if let Some(old) = old {
                    let name = old.name_any();
                    let assumed = self.cluster.node(&name).into_iter().flat_map(|node| node.pods.keys());
                    let assumed: Vec<ObjectKey> = assumed.filter(|key| self.is_kept(key)).cloned().collect();
                    self.cluster.remove_node(&name);
                    for key in assumed {
                        self.binding_failed(&key);
                    }
                }
            }
        }
        self.soon()
    }

    /// Takes the reservations of pods that no longer fit on a changed node.
    fn check_held_on(&mut self, name: &str) {
        let here = self.cluster.node(name).into_iter().flat_map(|node| node.pods.keys());
        let held: Vec<ObjectKey> = here.filter(|key| self.gangs.is_held(key)).cloned().collect();
        for key in held {
            let Some(pod) = self.cluster.remove_pod(&key) else { continue };
            if self.cluster.node(name).is_some_and(|node| fits(&pod, node, &Resources::default()).is_ok()) {
                self.cluster.place(pod, name);
            } else {
                self.stop_assuming(&key);
                self.wait(pod);
            }
        }
    }

    fn soon(&self) -> Wake {
        let has_work = self.has_active() || !self.changed.is_empty() && !self.waiting.is_empty();
        if has_work { Wake::Soon } else { Wake::Never }
    }

    /// True if pods are to be tried, without a change to nodes.
    pub fn has_active(&self) -> bool {
        !self.active.is_empty() || !self.to_check.is_empty() || !self.ready.is_empty() || !self.unreported.is_empty()
    }

    /// True if the pod keeps its node without a write in progress: for its claims or its gang.
    fn is_kept(&self, key: &ObjectKey) -> bool {
        self.preparing.contains_key(key) || self.gangs.is_held(key)
    }

    /// Applies a change to a namespace's labels.
    pub fn namespace_changed(&mut self, old: Option<&Arc<Namespace>>, new: Option<&Arc<Namespace>>) {
        let Some(any) = new.or(old) else { return };
        self.cluster.set_namespace(&any.name_any(), new.map(|namespace| namespace.labels().clone()));
    }

    /// Applies a change to a disruption budget.
    pub fn budget_changed(&mut self, key: &ObjectKey, new: Option<&Arc<PodDisruptionBudget>>) {
        self.cluster.set_budget(key, new.cloned());
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

    /// Applies a change to a claim of devices.
    pub fn device_claim_changed(&mut self, key: &ObjectKey, new: Option<&Arc<ResourceClaim>>) -> Wake {
        self.storage.devices.set_claim(key, new.cloned());
        if let Some(pod) = new.filter(|claim| is_extended_claim(claim)).and_then(|claim| claim_pod(claim)) {
            let pod = self.waiting.get(&ObjectKey::namespaced(&key.namespace, &pod.name));
            if let Some(pod) = pod.map(|waiting| waiting.pod.clone()) {
                self.discard_claims(&pod);
            }
        }
        self.try_device_users()
    }

    /// Has the claims deleted that earlier attempts made for the extended resources of a pod
    /// without a node: the devices may fit no longer, and the pod may get another node.
    fn discard_claims(&mut self, pod: &Arc<PodInfo>) {
        let claims = self.storage.devices.made_claims(pod.pod.metadata.uid.as_deref().unwrap_or_default());
        let discards = claims.map(|claim| Decision::Discard { pod: pod.clone(), claim: claim.clone() });
        self.ready.extend(discards);
    }

    /// Lets a pod be tried again whose claim could not be deleted.
    pub fn discard_failed(&mut self, pod: &ObjectKey) {
        if let Some(pod) = self.waiting.get(pod).map(|waiting| waiting.pod.clone()) {
            self.discard_claims(&pod);
        }
    }

    /// The pod, with whether a device class backs any extended resource that it requests.
    fn with_backed(&self, pod: Arc<PodInfo>) -> Arc<PodInfo> {
        let is_backed = self.storage.devices.backs_any(&pod.requests);
        if is_backed == pod.is_backed() { pod } else { Arc::new(pod.with_backed(is_backed)) }
    }

    /// Applies a change to a device class.
    pub fn device_class_changed(&mut self, name: &str, new: Option<&Arc<DeviceClass>>) -> Wake {
        self.storage.devices.set_class(name, new.cloned());
        let waiting = self.waiting.values().map(|waiting| &waiting.pod);
        let is_backed = |pod: &PodInfo| self.storage.devices.backs_any(&pod.requests);
        let changed: Vec<_> = waiting.filter(|pod| is_backed(pod) != pod.is_backed()).cloned().collect();
        for pod in changed {
            self.wait(pod);
        }
        self.try_device_users();
        self.soon()
    }

    /// Applies a change to published devices.
    pub fn device_slice_changed(&mut self, name: &str, new: Option<&Arc<ResourceSlice>>) -> Wake {
        self.storage.devices.set_slice(name, new.cloned());
        self.try_device_users()
    }

    fn try_device_users(&mut self) -> Wake {
        if self.device_users.is_empty() {
            return Wake::Never;
        }
        for pod in self.device_users.clone() {
            self.try_again(&pod);
        }
        self.soon()
    }

    /// The claim of devices with this key, as last seen.
    pub fn device_claim(&self, key: &ObjectKey) -> Option<Arc<ResourceClaim>> {
        self.storage.devices.claim(key).cloned()
    }

    /// The devices that were chosen for a claim and are not written yet.
    pub fn chosen_devices(&self, claim: &ObjectKey) -> Option<Arc<AllocationResult>> {
        self.storage.devices.chosen(claim)
    }

    /// The claim that is to be made for the extended resources of a pod.
    pub fn claim_to_make(&self, pod: &ObjectKey) -> Option<Arc<ExtendedClaim>> {
        self.storage.devices.claim_to_make(pod)
    }

    /// True if the pod gets devices on this node in place of extended resources that the node
    /// lacks.
    pub fn needs_extended_claim(&self, pod: &PodInfo, node: &str) -> bool {
        let Some(node) = self.cluster.node(node).filter(|_| pod.is_backed()) else { return false };
        let mut lacking = Resources::default();
        for (resource, amount) in pod.requests.extended().filter(|(name, _)| node.allocatable.get(name) == 0) {
            lacking.set(resource, amount);
        }
        self.storage.devices.backs_any(&lacking)
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
            self.active.insert(turn.clone(), key.clone());
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

    pub(super) fn forget_uses(&mut self, pod: &PodInfo) {
        for claim in pod.claims() {
            if let Some(users) = self.users.get_mut(&claim) {
                users.remove(&pod.key);
                if users.is_empty() {
                    self.users.remove(&claim);
                }
            }
        }
    }

    fn forget(&mut self, key: &ObjectKey) {
        self.without_scheduler.remove(key);
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

    /// Adds a pod without a node, to be tried now.
    pub(super) fn wait(&mut self, pod: Arc<PodInfo>) {
        self.enqueue(pod, true);
    }

    /// Adds a pod without a node. One that is not active is tried after a change that may help it.
    pub(super) fn enqueue(&mut self, pod: Arc<PodInfo>, is_active: bool) {
        self.stop_waiting(&pod.key);
        let Some(profile) = self.profile_of(&pod).cloned() else { return };
        let pod = self.with_backed(pod);
        self.discard_claims(&pod);
        self.seen += 1;
        let gang = Gang::of(&pod, &profile);
        let turn = self.turn(&pod, gang.as_ref());
        if is_active {
            self.active.insert(turn.clone(), pod.key.clone());
        }
        self.turns.insert(turn.clone(), pod.key.clone());
        // Claims of equal pods differ: some may have devices already.
        let has_class = !pod.depends_on_pods() && !pod.claims_devices();
        let class = has_class.then(|| pod.class().clone());
        if pod.claims_devices() {
            self.device_users.insert(pod.key.clone());
        }
        for claim in pod.claims() {
            self.users.entry(claim).or_default().insert(pod.key.clone());
        }
        self.waiting.insert(pod.key.clone(), Waiting { turn, pod, class, profile, gang });
    }

    fn turn(&self, pod: &PodInfo, gang: Option<&Gang>) -> Turn {
        let Some(gang) = gang else { return (Reverse(pod.priority), pod.created(), String::new(), self.seen) };
        let failed_at = self.gangs.memory(gang).and_then(|memory| memory.failed_at);
        let (priority, declared_at) = match gang.kind {
            GangKind::Sakkara => {
                let declared = self.gangs.declared(gang);
                let priority = declared.as_ref().and_then(|it| it.group.as_ref().ok()).map(|group| group.priority);
                (priority.unwrap_or(pod.priority), declared.and_then(|it| it.config_map.creation_timestamp()))
            }
            GangKind::Coscheduled | GangKind::Whole => {
                (pod.priority, self.gangs.pod_group(gang).and_then(|group| group.creation_timestamp()))
            }
        };
        let time = failed_at.or(declared_at.map(|time| time.0)).unwrap_or_else(|| pod.created());
        (Reverse(priority), time, gang.key.to_string(), self.seen)
    }

    pub(super) fn stop_waiting(&mut self, key: &ObjectKey) {
        if let Some(Waiting { turn, pod, .. }) = self.waiting.remove(key) {
            self.active.remove(&turn);
            self.turns.remove(&turn);
            self.device_users.remove(key);
            self.forget_uses(&pod);
        }
    }
}
