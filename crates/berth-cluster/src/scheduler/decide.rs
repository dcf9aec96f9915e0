//! Decides about all pods that are worth trying.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_runtime::ObjectKey;
use jiff::Timestamp;

use super::gangs::{Gang, GangKind};
use super::profile::Profile;
use super::state::{Decision, State, Turn, Waiting};
use crate::placement::{
    DeviceNeeds, Placement, PodInfo, Preemption, Resources, Unfit, fits, place_by, preempt, unschedulable_message,
};

/// One round of decisions.
pub(super) struct Round {
    pub(super) now: Timestamp,
    /// The gangs that are tried in this round.
    tried: BTreeSet<Gang>,
    /// Pods that are to be tried.
    new: BTreeMap<Turn, ObjectKey>,
    /// Nodes that may have more free capacity.
    changed: BTreeSet<String>,
    /// True for classes of pods that a changed node could take.
    helped: BTreeMap<Arc<str>, bool>,
    /// Messages of classes of pods that fit nowhere, by scheduler: placing pods only reduces
    /// capacity, so that no later pod of the class fits in this round. Emptied when a gang gives
    /// its nodes back.
    hopeless: BTreeMap<(String, Arc<str>), String>,
    /// Gangs whose attempt has failed in this round, with the message for their further pods.
    pub(super) rejected: BTreeMap<Gang, String>,
    /// Gangs that were tried as a whole.
    whole: BTreeSet<Gang>,
    /// Pods that got a reservation in this round.
    pub(super) held: Vec<ObjectKey>,
    /// Pods that found no node while pods of gangs held nodes, with these gangs.
    crowded_out: Vec<(ObjectKey, BTreeSet<Gang>)>,
}

/// Why a pod has no node.
pub(super) struct Unplaced {
    pub(super) message: String,
    pub(super) nominated: Option<String>,
    pub(super) victims: Vec<Arc<PodInfo>>,
}

impl State {
    /// Decides all pods that are worth trying.
    pub fn decide(&mut self, now: Timestamp) -> Vec<Decision> {
        let mut decisions = std::mem::take(&mut self.ready);
        decisions.extend(self.check_prepared());
        decisions.extend(self.report_bound(now));
        self.expire(now, &mut decisions);
        let new = std::mem::take(&mut self.active);
        let mut round = Round {
            now,
            tried: BTreeSet::new(),
            new,
            changed: std::mem::take(&mut self.changed),
            helped: BTreeMap::new(),
            hopeless: BTreeMap::new(),
            rejected: BTreeMap::new(),
            whole: BTreeSet::new(),
            held: Vec::new(),
            crowded_out: Vec::new(),
        };
        self.choose_gangs(&mut round);
        for (turn, key) in self.turns_of(&round) {
            self.try_pod(&turn, &key, &mut round, &mut decisions);
        }
        self.announce_held(&round, &mut decisions);
        decisions
    }

    /// A gang is tried as a whole: if one of its pods is to be tried, all are.
    fn choose_gangs(&mut self, round: &mut Round) {
        let new: Vec<ObjectKey> = round.new.values().cloned().collect();
        for key in new {
            if let Some(gang) = self.waiting.get(&key).and_then(|waiting| waiting.gang.clone()) {
                round.tried.insert(gang);
            }
        }
        if round.changed.is_empty() {
            return;
        }
        let gangs: Vec<_> =
            self.waiting.values().filter_map(|it| Some((it.gang.clone()?, it.pod.clone(), it.class.clone()))).collect();
        for (gang, pod, class) in gangs {
            let backs_off = self.gangs.memory(&gang).is_some_and(|memory| memory.back_off_until.is_some());
            if !backs_off && !round.tried.contains(&gang) && self.is_helped(&pod, class.as_ref(), round) {
                round.tried.insert(gang);
            }
        }
    }

    /// The pods to look at, in their order.
    fn turns_of(&self, round: &Round) -> BTreeMap<Turn, ObjectKey> {
        if !round.changed.is_empty() {
            return self.turns.clone();
        }
        let mut turns = round.new.clone();
        for gang in &round.tried {
            let members =
                self.gangs.pods(gang).filter_map(|key| Some((self.waiting.get(key)?.turn.clone(), key.clone())));
            turns.extend(members);
        }
        turns
    }

    /// True if a change to a node may help the pod. As with kube-scheduler's queueing hints, a pod
    /// is not tried again after a change that cannot help it.
    fn is_helped(&self, pod: &PodInfo, class: Option<&Arc<str>>, round: &mut Round) -> bool {
        let Some(class) = class.filter(|_| pod.nominated_node().is_none()) else { return true };
        if let Some(known) = round.helped.get(class) {
            return *known;
        }
        let may_help = round.changed.iter().any(|node| self.could_take(node, pod));
        round.helped.insert(class.clone(), may_help);
        may_help
    }

    fn try_pod(&mut self, turn: &Turn, key: &ObjectKey, round: &mut Round, decisions: &mut Vec<Decision>) {
        let Some(waiting) = self.waiting.get(key).cloned() else { return };
        match &waiting.gang {
            Some(gang) if !round.tried.contains(gang) => {}
            Some(gang) if gang.kind == GangKind::Coscheduled => {
                let gang = gang.clone();
                self.try_member(&waiting, &gang, round, decisions);
            }
            // Once a PodGroup is formed, its pods do not wait for each other.
            Some(gang) if gang.kind == GangKind::Whole && self.is_formed(gang) => {
                self.try_single(&waiting, round, decisions);
            }
            Some(gang) => {
                if round.whole.insert(gang.clone()) {
                    let gang = gang.clone();
                    self.try_whole(&gang, &waiting.profile, round, decisions);
                }
            }
            None => {
                if round.new.contains_key(turn) || self.is_helped(&waiting.pod, waiting.class.as_ref(), round) {
                    self.try_single(&waiting, round, decisions);
                }
            }
        }
    }

    /// Tries a pod that does not have to wait for a gang.
    pub(super) fn try_single(&mut self, waiting: &Waiting, round: &mut Round, decisions: &mut Vec<Decision>) {
        let pod = self.with_volumes(waiting.pod.clone());
        if let Some(why) = pod.blocked() {
            decisions.extend(self.blocked(&pod, why, &waiting.profile));
            return;
        }
        match self.find_node(&pod, waiting, round) {
            Ok(node) => decisions.push(self.assume(pod, node)),
            Err(unplaced) => {
                self.note_crowded_out(&pod.key, round);
                decisions.extend(wait_decision(pod, unplaced));
            }
        }
    }

    /// The node of a pod, or why it has none and the pods to evict for it.
    pub(super) fn find_node(
        &mut self,
        pod: &Arc<PodInfo>,
        waiting: &Waiting,
        round: &mut Round,
    ) -> Result<String, Unplaced> {
        let profile = &waiting.profile;
        let class = waiting.class.clone().filter(|_| pod.nominated_node().is_none());
        let class = class.map(|class| (profile.name.clone(), class));
        if let Some(message) = class.as_ref().and_then(|class| round.hopeless.get(class)) {
            return Err(Unplaced { message: message.clone(), nominated: None, victims: Vec::new() });
        }
        let (reasons, preemptible) = match place_by(pod, &self.cluster, &profile.ranking) {
            Placement::Node(node) => return Ok(node),
            Placement::Nowhere { reasons, preemptible } => (reasons, preemptible),
        };
        let outcome = match self.release_devices(pod, &reasons) {
            Some(claim) => Preemption::Impossible(format!("resourceclaim \"{claim}\" is released.")),
            None if profile.preemption => self.preempt_for(pod, &preemptible),
            None => Preemption::Impossible(String::new()),
        };
        let (text, nominated, victims) = match outcome {
            Preemption::Possible { node, victims } => {
                // Its needs refer to a state of the devices, which would be copied for each change.
                let pod = if pod.claims_devices() { Arc::new(pod.without_device_needs()) } else { pod.clone() };
                self.cluster.nominate(pod, &node);
                (String::new(), Some(node), victims)
            }
            Preemption::Impossible(text) => (text, None, Vec::new()),
        };
        let message = unschedulable_message(self.cluster.node_count(), &reasons, &text);
        if let (None, Some(class)) = (&nominated, class) {
            round.hopeless.insert(class, message.clone());
        }
        Err(Unplaced { message, nominated, victims })
    }

    /// The pods to evict for a pod. Claims of ended pods count as released, because they soon are.
    fn preempt_for(&self, pod: &Arc<PodInfo>, preemptible: &[String]) -> Preemption {
        let is_lower = |other: &Arc<PodInfo>| other.priority < pod.priority;
        let mut nodes = preemptible.iter().filter_map(|name| self.cluster.node(name));
        let is_alive = |key: &ObjectKey, uid: &str| {
            let waiting = || self.waiting.get(key).map(|waiting| &waiting.pod);
            self.cluster.pod(key).or_else(waiting).is_some_and(|pod| pod.uid() == uid)
        };
        // Without pods to evict, the claims need not be looked up.
        let after = nodes.any(|node| node.pods.values().any(is_lower)).then(|| pod.after_releases(is_alive)).flatten();
        preempt(after.as_ref().unwrap_or(pod), &self.cluster, preemptible)
    }

    /// Has the devices of a claim released that only this pod uses, if nodes cannot use them.
    /// Returns the claim's name.
    fn release_devices(&mut self, pod: &Arc<PodInfo>, reasons: &BTreeMap<Unfit, usize>) -> Option<String> {
        if !reasons.contains_key(&Unfit::DevicesElsewhere) {
            return None;
        }
        let claim = self.storage.devices.releasable(pod, &self.cluster)?;
        let name = claim.name.clone();
        self.ready.push(Decision::Release { pod: pod.clone(), claim });
        Some(name)
    }

    /// Notes that a pod found no node. It is tried again if a gang gives the nodes back that it
    /// holds now.
    pub(super) fn note_crowded_out(&self, key: &ObjectKey, round: &mut Round) {
        let holding = self.gangs.holding();
        if !holding.is_empty() {
            round.crowded_out.push((key.clone(), holding));
        }
    }

    /// Lets pods be tried again that found no node while this gang held some, because it gave them
    /// back.
    pub(super) fn nodes_were_given_back(&mut self, gang: &Gang, round: &mut Round) {
        round.hopeless.clear();
        for (key, _) in round.crowded_out.extract_if(.., |(_, holding)| holding.contains(gang)) {
            if let Some(waiting) = self.waiting.get(&key) {
                self.active.insert(waiting.turn.clone(), key);
            }
        }
    }

    /// The pod with the current requirements of its claims.
    pub(super) fn with_volumes(&self, pod: Arc<PodInfo>) -> Arc<PodInfo> {
        if !pod.has_claims() {
            return pod;
        }
        let resolved = pod.with_volumes(&self.storage);
        let mut ahead = self.ahead_of(&pod).peekable();
        let needs = resolved.devices().filter(|_| ahead.peek().is_some()).cloned();
        Arc::new(needs.map(|needs| resolved.with_device_needs(needs.behind(ahead))).unwrap_or(resolved))
    }

    /// The device needs of pods that are at least as important as this one, and are nominated for
    /// nodes.
    pub(super) fn ahead_of(&self, pod: &PodInfo) -> impl Iterator<Item = (String, DeviceNeeds)> {
        let is_ahead = move |other: &PodInfo| {
            let claims_devices = pod.claims_devices() && other.claims_devices();
            claims_devices && other.key != pod.key && other.priority >= pod.priority
        };
        let nominated = self.cluster.all_nominated().filter(move |(_, other)| is_ahead(other));
        nominated.map(|(node, other)| (node.to_owned(), self.storage.devices.needs(&other.pod)))
    }

    /// The decision for a pod that no node can take for this reason; `None` if its condition has
    /// that message already.
    pub(super) fn blocked(&self, pod: &Arc<PodInfo>, why: &str, profile: &Profile) -> Option<Decision> {
        let count = self.cluster.node_count();
        let mut message = unschedulable_message(count, &BTreeMap::new(), "");
        if count > 0 {
            message = format!("0/{count} nodes are available: {why}.");
            if profile.preemption
                && let Preemption::Impossible(text) = preempt(pod, &self.cluster, &[])
            {
                message = format!("{message} {text}");
            }
        }
        wait_decision(pod.clone(), Unplaced { message, nominated: None, victims: Vec::new() })
    }

    fn could_take(&self, node: &str, pod: &PodInfo) -> bool {
        let Some(node) = self.cluster.node(node) else { return false };
        let resolved = pod.has_claims().then(|| pod.with_volumes(&self.storage));
        match fits(resolved.as_ref().unwrap_or(pod), node, &Resources::default()) {
            Ok(()) => true,
            // The pod fits only if pods of lower priority are evicted.
            Err(reasons) => {
                self.profile_of(pod).is_some_and(|profile| profile.preemption)
                    && reasons.iter().all(Unfit::is_resolvable)
                    && node.pods.values().any(|other| other.priority < pod.priority)
            }
        }
    }
}

/// The decision for a pod without a node; `None` if its condition has that message already.
pub(super) fn wait_decision(pod: Arc<PodInfo>, unplaced: Unplaced) -> Option<Decision> {
    let Unplaced { message, nominated, victims } = unplaced;
    (nominated.is_some() || !is_said(&pod, &message)).then_some(Decision::Wait { pod, message, nominated, victims })
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
