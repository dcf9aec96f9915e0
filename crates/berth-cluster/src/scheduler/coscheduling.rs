//! Gangs of the coscheduling plugin: their pods are placed one by one, and hold their nodes until
//! `minMember` of them have one.
//!
//! Two choices of Berth's: once a pod of a gang is rejected, the remaining pods of the gang are not
//! tried in the same round, so that they do not hold nodes for nothing. After a timeout, a gang is
//! not tried for `podGroupBackoffSeconds` or for kube-scheduler's pod back-off, whichever is
//! longer. The pod back-off is 1 s, and doubles with each failure up to 10 s.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::decide::{Round, Unplaced, wait_decision};
use super::gangs::Gang;
use super::profile::{GangPlugin, Profile};
use super::state::{Decision, State, Waiting};
use crate::gangs::pod_group::{Rules, check_resources, check_siblings, is_rejected};
use crate::placement::{PodInfo, Resources};

/// Kube-scheduler's longest pod back-off, in seconds.
const BACK_OFF_SECONDS_MAX: i64 = 10;

/// Settings of the plugin.
struct Settings {
    permit_wait: SignedDuration,
    back_off: SignedDuration,
    reject_percentage: i64,
}

impl Settings {
    fn of(profile: &Profile) -> Self {
        match profile.gangs {
            GangPlugin::Coscheduling { permit_wait, back_off, reject_percentage } => {
                Self { permit_wait, back_off, reject_percentage }
            }
            GangPlugin::None | GangPlugin::PlacementGroup { .. } => {
                unreachable!("only the profiles of the plugin have coscheduled gangs")
            }
        }
    }
}

impl State {
    /// Tries a pod of a gang.
    pub(super) fn try_member(
        &mut self,
        waiting: &Waiting,
        gang: &Gang,
        round: &mut Round,
        decisions: &mut Vec<Decision>,
    ) {
        let settings = Settings::of(&waiting.profile);
        let pod = self.with_volumes(waiting.pod.clone());
        if let Some(message) = round.rejected.get(gang) {
            let message = message.clone();
            decisions.extend(wait_decision(pod, Unplaced { message, nominated: None, victims: Vec::new() }));
            return;
        }
        let checked = self.check_member(&pod, gang, &settings, round.now);
        let rules = match checked {
            Ok(rules) => rules,
            Err(why) => {
                decisions.extend(self.blocked(&pod, &why, &waiting.profile));
                return;
            }
        };
        match self.find_node(&pod, waiting, round) {
            Ok(node) => self.permit(pod, node, gang, &rules, &settings, round, decisions),
            Err(mut unplaced) => {
                let assigned = self.assigned(gang);
                if unplaced.nominated.is_none() && is_rejected(rules.min_member, assigned, settings.reject_percentage) {
                    let key = &gang.key;
                    let why = format!(
                        "PodGroup {key} gets rejected due to Pod {} is unschedulable even after PostFilter",
                        pod.key.name
                    );
                    unplaced.message = format!("{} {why}", unplaced.message);
                    round
                        .rejected
                        .insert(gang.clone(), format!("0/{} nodes are available: {why}.", self.cluster.node_count()));
                    self.reject(gang, &rules, &settings, round, decisions);
                }
                self.note_crowded_out(&pod.key, round);
                decisions.extend(wait_decision(pod, unplaced));
            }
        }
    }

    /// The rules of a gang, if the pod may be tried.
    fn check_member(
        &mut self,
        pod: &PodInfo,
        gang: &Gang,
        settings: &Settings,
        now: Timestamp,
    ) -> Result<Rules, String> {
        let Some(rules) = self.gangs.rules(gang) else { return Err("PodGroup not found".into()) };
        if let Some(why) = pod.blocked() {
            return Err(why.to_owned());
        }
        let memory = self.gangs.memory(gang);
        if memory.is_some_and(|memory| memory.back_off_until.is_some()) {
            return Err(format!("podGroup {} failed recently", gang.key));
        }
        check_siblings(&pod.key.name, &rules, self.gangs.siblings(gang))?;
        let is_permitted = memory.and_then(|memory| memory.permitted_until).is_some_and(|until| now < until);
        if rules.min_resources.is_some() && !is_permitted {
            check_resources(&gang.key.to_string(), &rules, &self.free_for(gang))?;
            let until = now.saturating_add(settings.permit_wait);
            self.gangs.memory_mut(gang).permitted_until = until.ok();
        }
        Ok(rules)
    }

    /// Free amounts of all nodes, without counting the pods of the gang.
    pub(super) fn free_for(&self, gang: &Gang) -> Resources {
        let mut free = Resources::default();
        for node in self.cluster.nodes() {
            let mut of_node = node.allocatable.clone();
            of_node.subtract(&node.used);
            for pod in node.pods.values() {
                if pod.key.namespace == gang.key.namespace && pod.label(gang.label()) == Some(&gang.key.name) {
                    of_node.add(&pod.requests);
                }
            }
            of_node.forget_negative();
            free.add(&of_node);
        }
        free
    }

    /// Number of pods of a gang that have a node, bound or not.
    pub(super) fn assigned(&self, gang: &Gang) -> usize {
        self.gangs.pods(gang).filter(|key| self.cluster.place_of(key).is_some()).count()
    }

    /// True if enough pods of a PodGroup have a node.
    pub(super) fn is_formed(&self, gang: &Gang) -> bool {
        self.gangs.rules(gang).is_some_and(|rules| self.assigned(gang) >= rules.min_member)
    }

    /// Reserves the node. Once enough pods have one, all are bound.
    #[expect(clippy::too_many_arguments, reason = "the round and the decisions are passed through")]
    fn permit(
        &mut self,
        pod: Arc<PodInfo>,
        node: String,
        gang: &Gang,
        rules: &Rules,
        settings: &Settings,
        round: &mut Round,
        decisions: &mut Vec<Decision>,
    ) {
        let pod = self.count_on(pod, &node);
        let timeout = self.gangs.pod_group(gang).and_then(|group| group.spec.schedule_timeout_seconds);
        let wait = timeout.map_or(settings.permit_wait, |seconds| SignedDuration::from_secs(seconds.max(0).into()));
        let until = round.now.saturating_add(wait).unwrap_or(Timestamp::MAX);
        let memory = self.gangs.memory_mut(gang);
        memory.held.insert(pod.key.clone(), until);
        round.held.push(pod.key.clone());
        if self.assigned(gang) < rules.min_member {
            return;
        }
        let memory = self.gangs.memory_mut(gang);
        memory.retries = 0;
        memory.failed_at = None;
        for key in std::mem::take(&mut memory.held).into_keys() {
            let node = self.cluster.place_of(&key).map(str::to_owned);
            if let (Some(pod), Some(node)) = (self.cluster.pod(&key).cloned(), node) {
                let pod = self.with_volumes(pod);
                decisions.push(self.first_write(pod, node));
            }
        }
    }

    /// Rejects the placed pods of a gang, because one of its pods found no node.
    fn reject(
        &mut self,
        gang: &Gang,
        rules: &Rules,
        settings: &Settings,
        round: &mut Round,
        decisions: &mut Vec<Decision>,
    ) {
        let has_all = self.gangs.siblings(gang).all >= rules.min_member;
        let memory = self.gangs.memory_mut(gang);
        memory.failed_at = Some(round.now);
        memory.permitted_until = None;
        memory.retries += 1;
        if has_all && !settings.back_off.is_zero() {
            memory.back_off_until = round.now.saturating_add(settings.back_off).ok();
        }
        let released = self.release_all(gang);
        if released.is_empty() {
            return;
        }
        for (pod, _) in released {
            decisions.extend(refused(pod, "optimistic rejection in PostFilter"));
        }
        self.nodes_were_given_back(gang, round);
    }

    /// Ends reservations and back-offs that are due.
    pub(super) fn expire(&mut self, now: Timestamp, decisions: &mut Vec<Decision>) {
        let (timed_out, rested) = self.gangs.expired(now);
        for gang in rested {
            self.gangs.memory_mut(&gang).back_off_until = None;
            self.try_gang_again(&gang);
        }
        for gang in timed_out {
            let due: Vec<_> = self.gangs.memory(&gang).into_iter().flat_map(|it| &it.held).collect();
            let due: Vec<_> = due.into_iter().filter(|(_, until)| **until <= now).map(|(key, _)| key.clone()).collect();
            let settings = due.first().and_then(|key| self.cluster.pod(key)).and_then(|pod| self.profile_of(pod));
            let settings = settings.map(|profile| Settings::of(profile));
            let memory = self.gangs.memory_mut(&gang);
            let seconds = (1_i64 << memory.retries.min(4)).min(BACK_OFF_SECONDS_MAX);
            let back_off = settings.as_ref().map_or(SignedDuration::ZERO, |it| it.back_off);
            memory.retries += 1;
            memory.failed_at = Some(now);
            memory.permitted_until = None;
            memory.back_off_until = now.saturating_add(back_off.max(SignedDuration::from_secs(seconds))).ok();
            let timeout = self.gangs.pod_group(&gang).and_then(|group| group.spec.schedule_timeout_seconds);
            let wait = timeout.map(|seconds| SignedDuration::from_secs(seconds.max(0).into()));
            let wait = wait.or(settings.map(|it| it.permit_wait)).unwrap_or_default();
            let timed_out = format!(
                "rejected due to timeout after waiting {} at plugin Coscheduling",
                berth_apimachinery::times::duration(wait)
            );
            for (pod, node) in self.release_all(&gang) {
                let why = if due.contains(&pod.key) { timed_out.as_str() } else { "rejection in Unreserve" };
                decisions.extend(refused(pod, why));
                self.changed.insert(node);
            }
        }
    }

    /// Adds a decision for each pod of this round that still holds a node without being bound. Its
    /// message states how many pods of the gang need a node, and how many have one.
    pub(super) fn announce_held(&self, round: &Round, decisions: &mut Vec<Decision>) {
        for key in &round.held {
            let Some(pod) = self.cluster.pod(key).filter(|_| self.gangs.is_held(key)) else { continue };
            let Some(gang) = self.profile_of(pod).and_then(|profile| Gang::of(pod, profile)) else { continue };
            let node = self.cluster.place_of(key).unwrap_or_default();
            let wanted = self.gangs.rules(&gang).map_or(0, |rules| rules.min_member);
            let message = format!(
                "Node {node} is reserved for the pod until {wanted} pods of {} have a node; {} have one",
                gang.title(),
                self.assigned(&gang)
            );
            decisions.push(Decision::Hold { pod: pod.clone(), message });
        }
    }

    /// The next time at which a reservation or a back-off ends. Decisions are then due even if no
    /// object has changed.
    pub fn due(&self) -> Option<Timestamp> {
        self.gangs.due()
    }
}

/// The decision for a pod whose node was refused.
fn refused(pod: Arc<PodInfo>, why: &str) -> Option<Decision> {
    let message = format!("0/1 nodes are available: 1 {why}.");
    wait_decision(pod, Unplaced { message, nominated: None, victims: Vec::new() })
}
