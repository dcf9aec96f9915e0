//! The engine: its state, [`Engine::apply`] and [`Engine::cycle`].

pub(crate) mod hold;
mod objects;
mod report;
mod workloads;

use std::ops::Range;
use std::time::Duration;

use crate::config::EngineConfig;
use crate::cycle::{self, Parts};
use crate::decision::{CycleOutcome, Verdict};
use crate::event::Event;
use crate::ids::{Name, QueueId, WorkloadId};
use crate::model::{Admission, Labels, Time, WorkloadKey};
use crate::ordered_set::OrderedSet;
use crate::status::{
    ClusterQueueFigures, ClusterQueueStatus, CohortFigures, CohortStatus, LocalQueueStatus, QueuePosition, QuotaHolder,
};
use crate::waiting::PendingQueues;
use crate::waiting::second_pass::needs_second_pass;
use crate::world::World;
use crate::world::record::Place;

/// Number of heads per part of a cycle ([`Engine::cycle_part`]). A part of this size takes well
/// under a millisecond, unless some head searches for victims among many candidates.
pub const HEADS_PER_PART: usize = 64;

/// Objects whose status may have changed because of an event or a cycle, apart from the cycle's
/// decisions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Effects {
    /// Cluster queues.
    pub cluster_queues: OrderedSet<Name>,
    /// Local queues, as (namespace, name).
    pub local_queues: OrderedSet<(Name, Name)>,
    /// True if a cycle could decide something now.
    pub wake: bool,
}

/// State of one cluster's queues, nodes and workloads, and the decisions about them. The crate's
/// documentation describes the order of calls.
#[derive(Debug)]
pub struct Engine {
    pub(crate) world: World,
    pub(crate) pending_queues: PendingQueues,
    parts: Parts,
}

impl Engine {
    /// An engine without objects.
    pub fn new(config: EngineConfig) -> Self {
        Engine { world: World::new(config), pending_queues: PendingQueues::default(), parts: Parts::default() }
    }

    /// The configuration with which the engine was created.
    pub fn config(&self) -> &EngineConfig {
        &self.world.config
    }

    /// Applies an event. The cost depends on the change, not on the number of objects.
    pub fn apply(&mut self, event: Event, now: Time) -> Effects {
        let mut effects = Effects::default();
        self.dispatch(event, &mut effects, now);
        effects.wake = self.has_candidates()
            || !self.pending_queues.to_report.is_empty()
            || self.next_wakeup().is_some_and(|at| at <= now);
        effects
    }

    fn dispatch(&mut self, event: Event, effects: &mut Effects, now: Time) {
        match event {
            Event::ClusterQueueUpserted(spec) => self.upsert_cluster_queue(spec, effects, now),
            Event::ClusterQueueRemoved(name) => self.remove_cluster_queue(&name, effects, now),
            Event::CohortUpserted(spec) => self.upsert_cohort(spec, effects, now),
            Event::CohortRemoved(name) => self.remove_cohort(&name, effects, now),
            Event::LocalQueueUpserted(spec) => self.upsert_local_queue(spec, effects, now),
            Event::LocalQueueRemoved { namespace, name } => self.remove_local_queue(&namespace, &name, effects),
            Event::FlavorUpserted(flavor) => self.upsert_flavor(flavor, effects, now),
            Event::FlavorRemoved(name) => self.remove_flavor(&name, effects, now),
            Event::TopologyUpserted(topology) => {
                let name = topology.name.clone();
                self.world.topologies.upsert_topology(topology);
                self.topology_changed(Some(&name), effects, now);
            }
            Event::TopologyRemoved(name) => {
                self.world.topologies.remove_topology(&name);
                self.topology_changed(Some(&name), effects, now);
            }
            Event::AdmissionCheckUpserted(check) => {
                let name = check.name.clone();
                if self.world.checks.insert(name.clone(), check.clone()) != Some(check) {
                    self.facts_changed(|engine, queue| engine.uses_check(queue, &name), effects, now);
                }
            }
            Event::AdmissionCheckRemoved(name) => {
                self.world.checks.remove(&name);
                self.facts_changed(|engine, queue| engine.uses_check(queue, &name), effects, now);
            }
            Event::NamespaceUpserted { name, labels } => self.upsert_namespace(&name, labels, effects, now),
            Event::NamespaceRemoved(name) => {
                self.world.namespaces.remove(&name);
                self.world.selection += 1;
            }
            Event::NodeUpserted(node) => {
                if self.world.topologies.upsert_node(node) {
                    self.topology_changed(None, effects, now);
                }
            }
            Event::NodeRemoved(name) => {
                if self.world.topologies.remove_node(&name) {
                    self.topology_changed(None, effects, now);
                }
            }
            Event::NodePodUpserted(pod) => self.world.topologies.upsert_pod(pod),
            Event::NodePodRemoved { namespace, name } => {
                if self.world.topologies.remove_pod(&namespace, &name) {
                    self.topology_changed(None, effects, now);
                }
            }
            Event::WorkloadUpserted(workload) => self.upsert_workload(*workload, effects, now),
            Event::WorkloadRemoved(key) => self.remove_workload(&key, effects, now),
            Event::AdmissionFailed(key) => self.admission_failed(&key, effects, now),
            Event::PreemptionFailed(key) => {
                if let Some(id) = self.world.workloads.id(&key) {
                    self.world.record_mut(id).eviction_expected = false;
                    if needs_second_pass(&self.world.record(id).facts) {
                        self.pending_queues.second_pass.schedule(id, now);
                    }
                }
            }
            Event::FlushRequested { cluster_queue } => {
                if let Some(&id) = self.world.queue_ids.get(&cluster_queue) {
                    self.request_flush(id, now);
                }
            }
            Event::LocalQueueUsageRestored { namespace, name, consumed, at } => {
                self.restore_usage(&namespace, &name, &consumed, at);
            }
            Event::PreemptorRestored(known) => self.restore_preemptor(&known),
        }
    }

    fn upsert_namespace(&mut self, name: &Name, labels: Labels, effects: &mut Effects, now: Time) {
        let before = self.world.namespaces.insert(name.clone(), labels.clone());
        if before.as_ref() == Some(&labels) {
            return;
        }
        self.world.selection += 1;
        let queues = self.world.queues_of_namespace(name);
        let concerns = |engine: &Engine, queue| {
            queues.contains(&queue) && engine.selects(queue, before.as_ref()) != engine.selects(queue, Some(&labels))
        };
        self.facts_changed(concerns, effects, now);
    }

    /// Runs one scheduling cycle: takes the head of every active queue, decides each, and counts
    /// the admissions. If a cycle was begun in parts, runs the rest of it.
    pub fn cycle(&mut self, now: Time) -> CycleOutcome {
        self.cycle_part(usize::MAX, now)
    }

    ///
    /// Runs a part of a cycle: whole cohort trees, until they have `heads` heads together.
    /// Continues the current cycle. Begins a new one if there is none, or if every queue in it was
    /// decided.
    ///
    /// If no event comes in between, the parts of a cycle together decide what [`Engine::cycle`]
    /// decides. Otherwise later parts take the events into account. Trees whose decisions depend on
    /// each other (common nodes, second passes, waiting for pods to be ready, variants) are in one
    /// part, regardless of their number of heads.
    pub fn cycle_part(&mut self, heads: usize, now: Time) -> CycleOutcome {
        self.world.tree.refresh();
        for root in self.pending_queues.due_flushes(now) {
            // Queues of the flushed tree may already have been decided in this cycle.
            self.parts.progress |= self.pending_queues.flush(&mut self.world, root, now) > 0;
        }
        let mut outcome = cycle::run(&mut self.world, &mut self.pending_queues, &mut self.parts, heads, now);
        let usage_based = self.world.config.admission_fair_sharing.is_some();
        for decision in &outcome.decisions {
            if usage_based
                && let Verdict::Admit(admit) = &decision.verdict
                && !admit.second_pass
                && let Some(id) = self.world.workloads.id(&decision.workload)
            {
                self.push_penalty(id);
            }
        }
        self.report_represented(&mut outcome);
        outcome.next_wakeup = self.next_wakeup();
        outcome
    }

    /// Adds why workloads wait that joined an inadmissible class since the last cycle. They are not
    /// evaluated.
    fn report_represented(&mut self, outcome: &mut CycleOutcome) {
        for key in std::mem::take(&mut self.pending_queues.to_report) {
            let Some(id) = self.world.workloads.id(&key) else { continue };
            let record = self.world.record(id);
            if let Place::Inadmissible(queue) = record.place {
                // The namespace may have been selected, or the workload evaluated, in the meantime.
                if self.world.config.report_represented && !self.world.is_selected(queue, self.world.record(id).local) {
                    outcome.decisions.push(cycle::unselected(&self.world, queue, id));
                }
                continue;
            }
            let reason = self.pending_queues.take_unreported_reason(&self.world, id);
            outcome.bypassed.extend(reason.map(|reason| (key, reason)));
        }
    }

    /// Time at which [`Engine::cycle`] should be called even if no event comes. `None` if only an
    /// event can change anything.
    pub fn next_wakeup(&self) -> Option<Time> {
        let times = [self.pending_queues.next_flush(), self.pending_queues.second_pass.next_due()];
        times.into_iter().flatten().min()
    }

    /// True if some active queue has a workload to consider.
    pub fn has_candidates(&self) -> bool {
        self.pending_queues.has_candidates(&self.world)
    }

    /// Requests another try for the inadmissible workloads of the whole tree of a queue (§4.7).
    pub(crate) fn request_flush(&mut self, queue: QueueId, now: Time) {
        self.world.tree.refresh();
        let root = self.world.tree.node(self.world.queue(queue).node).root;
        self.pending_queues.request_flush(root, now.after(self.delay()));
    }

    fn delay(&self) -> Duration {
        self.world.config.flush_delay
    }

    /// Tries the workloads of all queues again that use this topology, or any topology.
    fn topology_changed(&mut self, name: Option<&Name>, effects: &mut Effects, now: Time) {
        self.facts_changed(|engine, queue| engine.uses_topology(queue, name), effects, now);
    }

    fn uses_topology(&self, queue: QueueId, name: Option<&Name>) -> bool {
        self.world
            .queue(queue)
            .config
            .flavors()
            .into_iter()
            .filter_map(|id| self.world.flavor(id))
            .any(|flavor| flavor.topology.as_ref().is_some_and(|topology| name.is_none_or(|name| name == topology)))
    }

    fn uses_check(&self, queue: QueueId, name: &Name) -> bool {
        let spec = &self.world.queue(queue).spec;
        spec.as_ref().is_some_and(|spec| spec.checks.iter().any(|rule| rule.check == *name))
    }

    /// True if a queue's selector matches a namespace with these labels; false for an unknown
    /// namespace.
    fn selects(&self, queue: QueueId, labels: Option<&Labels>) -> bool {
        let selector = self.world.queue(queue).spec.as_ref().and_then(|spec| spec.namespace_selector.as_ref());
        selector.zip(labels).is_some_and(|(selector, labels)| selector.matches(labels))
    }

    /// Adds the queues of a workload to the effects.
    fn note_queues(&self, id: WorkloadId, effects: &mut Effects) {
        let record = self.world.record(id);
        let local = self.world.local(record.local);
        if let (Some(namespace), Some(name)) = (&local.namespace, &local.name) {
            effects.local_queues.insert((namespace.clone(), name.clone()));
        }
        let held = record.holding.as_ref().map(|holding| holding.queue).filter(|held| Some(*held) != local.queue);
        for queue in local.queue.into_iter().chain(held) {
            effects.cluster_queues.insert(self.world.queue(queue).name.clone());
        }
    }

    /// Counts and amounts for a cluster queue's status; `None` if the queue does not exist.
    pub fn cluster_queue_status(&self, name: &str) -> Option<ClusterQueueStatus> {
        let id = *self.world.queue_ids.get(name)?;
        self.world.queue(id).spec.as_ref()?;
        Some(self.report_cluster_queue(id))
    }

    /// Counts and amounts of a cluster queue for metrics; `None` if the queue does not exist. The
    /// cost grows with the number of equivalence classes that wait, not with the number of
    /// workloads.
    pub fn cluster_queue_figures(&self, name: &str) -> Option<ClusterQueueFigures> {
        let id = *self.world.queue_ids.get(name)?;
        self.world.queue(id).spec.as_ref()?;
        Some(self.report_cluster_queue_figures(id))
    }

    /// Counts and amounts of every cohort for metrics, by name. The cost grows with the number of
    /// cluster queues and of cohorts above them.
    pub fn cohort_figures(&self) -> Vec<CohortFigures> {
        self.report_cohorts()
    }

    /// The cohorts above a cluster queue, nearest first.
    pub fn cohorts_above(&self, cluster_queue: &str) -> Vec<Name> {
        let Some(id) = self.world.queue_ids.get(cluster_queue) else { return Vec::new() };
        let path = self.world.tree.path_to_root(self.world.queue(*id).node).skip(1);
        path.map(|node| self.world.tree.node(node).name.clone()).collect()
    }

    /// Counts and amounts for a local queue's status; `None` if the queue does not exist.
    pub fn local_queue_status(&self, namespace: &str, name: &str) -> Option<LocalQueueStatus> {
        let id = *self.world.local_ids.get(&(Name::from(namespace), Name::from(name)))?;
        self.world.local(id).spec.as_ref()?;
        Some(self.report_local_queue(id))
    }

    /// Counts and amounts for a cohort's status; `None` if neither a Cohort nor a queue has this
    /// name.
    pub fn cohort_status(&self, name: &str) -> Option<CohortStatus> {
        let entry = self.world.cohorts.get(name)?;
        if entry.spec.is_none() && self.world.tree.node(entry.node).children.is_empty() {
            return None;
        }
        Some(CohortStatus { weighted_share: self.report_share(entry.node) })
    }

    /// The waiting workloads of a cluster queue in the order in which they would be popped.
    /// Inadmissible ones come last.
    pub fn pending(&self, cluster_queue: &str) -> Vec<QueuePosition> {
        self.pending_part(cluster_queue, None, 0..usize::MAX)
    }

    /// The waiting workloads of a cluster queue in no particular order, each with a flag: true if
    /// it is inadmissible until something changes.
    pub fn waiting(&self, cluster_queue: &str) -> Vec<(WorkloadKey, bool)> {
        self.world.queue_ids.get(cluster_queue).map_or_else(Vec::new, |id| self.report_waiting(*id))
    }

    /// Part of the list of [`Engine::pending`], or of its entries from one local queue (by
    /// namespace and name). Reads every waiting workload, and sorts only those that it returns.
    pub fn pending_part(
        &self,
        cluster_queue: &str,
        local_queue: Option<(&str, &str)>,
        part: Range<usize>,
    ) -> Vec<QueuePosition> {
        let Some(id) = self.world.queue_ids.get(cluster_queue) else { return Vec::new() };
        let local = match local_queue {
            None => None,
            Some((namespace, name)) => {
                let key = (Name::from(namespace), Name::from(name));
                let Some(local) = self.world.local_ids.get(&key) else { return Vec::new() };
                Some(*local)
            }
        };
        self.report_pending(*id, local, part)
    }

    /// Part of the workloads that hold quota of a cluster queue, longest-holding first, and their
    /// total number. `None` if the queue does not exist. Reads every holder, and sorts only those
    /// that it returns.
    pub fn holders_part(&self, cluster_queue: &str, part: Range<usize>) -> Option<(Vec<QuotaHolder>, usize)> {
        let id = *self.world.queue_ids.get(cluster_queue)?;
        let queue = self.world.queue(id);
        // A deleted queue is still reported while workloads hold its quota.
        (queue.spec.is_some() || !queue.holding.is_empty()).then(|| self.report_holders(id, part))
    }

    /// The effective priority of a workload (§3.1); higher goes first.
    pub fn priority(&self, workload: &WorkloadKey) -> Option<i64> {
        Some(self.world.record(self.world.workloads.id(workload)?).priority)
    }

    /// The local queue of a workload, in its namespace.
    pub fn local_queue(&self, workload: &WorkloadKey) -> Option<Name> {
        Some(self.world.record(self.world.workloads.id(workload)?).facts.queue.clone())
    }

    /// The cluster queue in which a workload holds quota, if any. Assumed admissions count.
    pub fn reservation(&self, workload: &WorkloadKey) -> Option<Name> {
        let id = self.world.workloads.id(workload)?;
        let holding = self.world.record(id).holding.as_ref()?;
        Some(self.world.queue(holding.queue).name.clone())
    }

    /// The admission of a workload that holds quota. Assumed admissions count.
    pub fn admission(&self, workload: &WorkloadKey) -> Option<&Admission> {
        let id = self.world.workloads.id(workload)?;
        Some(&self.world.record(id).holding.as_ref()?.admission)
    }

    /// Every workload that holds quota, in the order of their keys.
    pub fn holding(&self) -> Vec<&WorkloadKey> {
        let mut keys: Vec<&WorkloadKey> =
            self.world.workloads.iter().filter(|(_, it)| it.holding.is_some()).map(|(_, it)| it.key()).collect();
        keys.sort();
        keys
    }

    /// Admission checks that a workload needs, in name order: those for its assigned flavors if it
    /// holds quota, else those that cover all flavors of the queue (§17.2).
    pub fn required_checks(&self, workload: &WorkloadKey) -> Vec<Name> {
        let Some(id) = self.world.workloads.id(workload) else { return Vec::new() };
        let record = self.world.record(id);
        match &record.holding {
            Some(holding) => hold::checks_for(&self.world, holding.queue, Some(&holding.admission)),
            None => {
                let queue = self.world.local(record.local).queue;
                queue.map(|queue| hold::checks_for(&self.world, queue, None)).unwrap_or_default()
            }
        }
    }
}
