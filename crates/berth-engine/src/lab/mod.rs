//! Single functions of an engine, for tests: the assignment it would make, the workloads it would
//! preempt, the quota that is left.
//!
//! A cycle uses all of them together. Here tests, benches and recorded cases of single functions
//! call them one at a time, and no decision is made. The code is the same. No call changes the
//! engine, except where its documentation says so ([`Lab::add_usage`], [`Lab::hide`]).

mod functions;
mod topology;
mod waiting;
mod workloads;

use std::collections::BTreeMap;

use crate::assignment::search::assign_flavors;
use crate::assignment::{Assignment, AssignmentRequest, Oracle, Simulated};
use crate::cycle::process::amounts_to_reserve;
use crate::decision::{AssignmentMode, FlavorAttempt, PendingReason, PreemptionMode, PreemptionReason};
use crate::ids::{FrId, Name, NodeId, QueueId};
use crate::model::{PreemptionPolicy, ResourceList, Time, TopologyAssignment, WorkloadKey};
use crate::preemption::{Preemptor, RealOracle, find_targets, satisfies};
use crate::quota::{FrAmounts, add_amount};
use crate::status::WeightedShare;
use crate::topology::Places;
use crate::world::World;
use crate::{Amount, Engine, text};

/// Amounts per flavor and resource.
pub type FlavorAmounts = BTreeMap<(Name, Name), i64>;

pub use functions::*;
pub use topology::{GivenPodSet, PodsInDomain, ToPlace};
pub use waiting::NotQueued;
pub use workloads::PodSetTotal;

/// Access to single functions of an engine; see the module's documentation.
#[derive(Debug)]
pub struct Lab<'a> {
    engine: &'a mut Engine,
}

impl Engine {
    /// Gives access to single functions.
    pub fn lab(&mut self) -> Lab<'_> {
        self.world.tree.refresh();
        Lab { engine: self }
    }
}

/// A stub for the simulation of preemption: its result per flavor and resource. Others have the
/// result `(Preempt, 0)`.
pub type SimulationTable = BTreeMap<(Name, Name), (PreemptionMode, u32)>;

/// Options of an assignment.
#[derive(Debug, Clone, Default)]
pub struct AssignOptions {
    /// Results of the preemption simulation. `None`: preemption is really simulated.
    pub simulation: Option<SimulationTable>,
    /// Flavors to restrict the search to, per pod set and resource.
    pub pinned: Option<BTreeMap<Name, BTreeMap<Name, Name>>>,
    /// The elastic slice that is replaced.
    pub replaced: Option<WorkloadKey>,
}

/// An assignment, with names in place of ids.
#[derive(Debug, Clone, PartialEq)]
pub struct AssignmentReport {
    /// The assignment mode of the workload.
    pub mode: AssignmentMode,
    /// Highest level borrowed from; 0 if nothing is borrowed.
    pub borrowing: u32,
    /// Why it does not fit.
    pub no_fit: Option<PendingReason>,
    /// Quota that it uses.
    pub usage: FlavorAmounts,
    /// Per flavor, the domains that it uses: values, amounts that one pod uses, number of pods.
    pub places: Vec<(Name, Vec<Name>, ResourceList, i64)>,
    /// Result per pod set.
    pub pod_sets: Vec<PodSetReport>,
}

/// Result of an assignment for one pod set.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSetReport {
    /// Name.
    pub name: Name,
    /// Pods.
    pub count: i32,
    /// Total requests.
    pub requests: ResourceList,
    /// Flavor, mode and index of the last flavor tried, per resource.
    pub flavors: BTreeMap<Name, (Name, AssignmentMode, i32)>,
    /// Findings, as in messages.
    pub reasons: Vec<String>,
    /// Why its topology request cannot be served, if it cannot.
    pub error: Option<String>,
    /// Flavors tried.
    pub attempts: Vec<FlavorAttempt>,
    /// Domains.
    pub topology: Option<TopologyAssignment>,
    /// Whether the topology is chosen later.
    pub delayed: Option<bool>,
}

/// Quota of one node of the cohort tree.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodeReport {
    /// Nominal quota, borrowing and lending limit where configured.
    pub quotas: BTreeMap<(Name, Name), (Amount, Option<Amount>, Option<Amount>)>,
    /// Quota of the node, including the amounts that its children lend it.
    pub subtree: BTreeMap<(Name, Name), Amount>,
    /// Usage.
    pub usage: BTreeMap<(Name, Name), Amount>,
    /// Parent cohort in effect.
    pub parent: Option<Name>,
    /// Workloads that hold quota here.
    pub workloads: Vec<WorkloadKey>,
}

struct TableOracle {
    table: BTreeMap<FrId, (PreemptionMode, u32)>,
}

impl Oracle for TableOracle {
    fn simulate(&mut self, _: &mut World, _: &AssignmentRequest, fr: FrId, _: i64) -> Simulated {
        let (mode, level) = self.table.get(&fr).copied().unwrap_or((PreemptionMode::Preempt, 0));
        Simulated { mode, level }
    }
}

impl Lab<'_> {
    fn queue(&self, name: &str) -> Option<QueueId> {
        self.engine.world.queue_ids.get(name).copied()
    }

    fn fr(&mut self, flavor: &Name, resource: &Name) -> FrId {
        let flavor = self.engine.world.flavor_id(flavor);
        let resource = self.engine.world.resources.intern(resource);
        self.engine.world.frs.intern(flavor, resource)
    }

    fn amounts(&mut self, amounts: &FlavorAmounts) -> FrAmounts {
        let mut list = FrAmounts::new();
        for ((flavor, resource), amount) in amounts {
            let fr = self.fr(flavor, resource);
            add_amount(&mut list, fr, *amount);
        }
        list
    }

    fn names(&self, fr: FrId) -> (Name, Name) {
        let world = &self.engine.world;
        let fr = world.frs.get(fr);
        (world.flavor_name(fr.flavor).clone(), world.resource_name(fr.resource).clone())
    }

    /// Adds usage to a queue, without a workload to which the usage belongs.
    pub fn add_usage(&mut self, queue: &str, amounts: &FlavorAmounts) {
        let amounts = self.amounts(amounts);
        if let Some(id) = self.queue(queue) {
            let node = self.engine.world.queue(id).node;
            self.engine.world.add_usage(node, &amounts);
        }
    }

    /// Removes usage added by [`Lab::add_usage`].
    pub fn remove_usage(&mut self, queue: &str, amounts: &FlavorAmounts) {
        let amounts = self.amounts(amounts);
        if let Some(id) = self.queue(queue) {
            let node = self.engine.world.queue(id).node;
            self.engine.world.remove_usage(node, &amounts);
        }
    }

    /// Adds usage to a flavor's topology, without a workload to which the usage belongs.
    pub fn add_places(&mut self, flavor: &Name, assignment: &TopologyAssignment, per_pod: &ResourceList) {
        let flavor = self.engine.world.flavor_id(flavor);
        let mut places = Places::default();
        let topologies = &mut self.engine.world.topologies;
        let demand = topologies.demand(per_pod);
        topologies.add_places(&mut places, flavor, assignment, &demand);
        topologies.add_usage(&places);
    }

    /// Assumes that a workload has left, until [`Lab::unhide`] is called.
    pub fn hide(&mut self, workload: &WorkloadKey) {
        if let Some(id) = self.engine.world.workloads.id(workload) {
            self.engine.world.hide(id);
        }
    }

    /// Undoes [`Lab::hide`].
    pub fn unhide(&mut self, workload: &WorkloadKey) {
        if let Some(id) = self.engine.world.workloads.id(workload) {
            self.engine.world.unhide(id);
        }
    }

    /// Amount available to a queue, and the amount available if nothing were in use.
    pub fn available(&mut self, queue: &str, flavor: &Name, resource: &Name) -> Option<(Amount, Amount)> {
        let fr = self.fr(flavor, resource);
        let world = &self.engine.world;
        let node = world.queue(self.queue(queue)?).node;
        Some((world.tree.available(node, fr).or_zero(), world.tree.potential(node, fr)))
    }

    /// Quota and usage of a cluster queue.
    pub fn queue_report(&self, queue: &str) -> Option<NodeReport> {
        let id = self.queue(queue)?;
        let entry = self.engine.world.queue(id);
        let visible = entry.holding.iter().filter(|id| !self.engine.world.hidden.contains(id));
        let mut report = self.node_report(entry.node);
        report.workloads = visible.map(|id| self.engine.world.record(*id).key().clone()).collect();
        report.workloads.sort();
        Some(report)
    }

    /// True if cycles consider a queue.
    pub fn is_schedulable(&self, queue: &str) -> bool {
        self.queue(queue).is_some_and(|id| self.engine.world.is_schedulable(id))
    }

    /// Quota and usage of a cohort.
    pub fn cohort_report(&self, cohort: &str) -> Option<NodeReport> {
        Some(self.node_report(self.engine.world.cohorts.get(cohort)?.node))
    }

    /// Names of the cohorts that queues or objects name.
    pub fn cohorts(&self) -> Vec<Name> {
        let mut names: Vec<Name> = self.engine.world.cohorts.keys().cloned().collect();
        names.sort();
        names
    }

    fn node_report(&self, id: NodeId) -> NodeReport {
        let tree = &self.engine.world.tree;
        let node = tree.node(id);
        let mut report =
            NodeReport { parent: node.parent.map(|id| tree.node(id).name.clone()), ..NodeReport::default() };
        for (fr, cell) in node.cells() {
            let key = self.names(*fr);
            let quota = cell.quota;
            if quota != crate::quota::NodeQuota::default() || (node.is_queue && cell.declared) {
                report.quotas.insert(key.clone(), (quota.nominal, quota.borrowing_limit, quota.lending_limit));
            }
            if cell.declared {
                report.subtree.insert(key.clone(), cell.subtree);
            }
            report.usage.insert(key, cell.usage);
        }
        report
    }

    /// The dominant resource share that a cohort or cluster queue would have after these amounts
    /// were added at a cluster queue.
    pub fn share_with(&mut self, node: (&str, bool), queue: &str, added: &FlavorAmounts) -> Option<WeightedShare> {
        let added = self.amounts(added);
        let target = match node {
            (name, true) => self.engine.world.queue(self.queue(name)?).node,
            (name, false) => self.engine.world.cohorts.get(name)?.node,
        };
        let leaf = self.engine.world.queue(self.queue(queue)?).node;
        let mark = self.engine.world.mark();
        self.engine.world.add_usage(leaf, &added);
        let share = self.engine.report_share(target);
        self.engine.world.rollback(mark);
        Some(share)
    }

    /// True if a queue uses more than its own quota on one of the flavor-resources.
    pub fn is_borrowing_on(&mut self, queue: &str, requested: &FlavorAmounts) -> bool {
        let requested = self.amounts(requested);
        let Some(id) = self.queue(queue) else { return false };
        let node = self.engine.world.queue(id).node;
        self.engine.world.share(node).is_borrowing_on(&requested)
    }

    /// Number of changes that make a queue's workloads start their search over (§7.8).
    pub fn generation(&self, queue: &str) -> Option<u64> {
        Some(self.engine.world.queue(self.queue(queue)?).generation)
    }

    /// Computes the assignment of a known workload in a queue, for its full counts.
    pub fn assign(
        &mut self,
        workload: &WorkloadKey,
        queue: &str,
        options: &AssignOptions,
        now: Time,
    ) -> Option<AssignmentReport> {
        let queue = self.queue(queue)?;
        let id = self.engine.world.workloads.id(workload)?;
        let replaced = options.replaced.as_ref().and_then(|key| self.engine.world.workloads.id(key));
        let shape = self.engine.world.record(id).shape.clone();
        let pinned = options.pinned.as_ref().map(|pins| {
            let world = &mut self.engine.world;
            let pin = |flavors: &BTreeMap<Name, Name>, world: &mut World| {
                flavors
                    .iter()
                    .map(|(resource, flavor)| (world.resources.intern(resource), world.flavor_id(flavor)))
                    .collect()
            };
            pins.iter().map(|(set, flavors)| (set.clone(), pin(flavors, world))).collect()
        });
        let ask = AssignmentRequest {
            queue,
            workload: id,
            pod_sets: shape.requested().clone(),
            pinned,
            replaced,
            second_pass: false,
            resume: false,
        };
        let mut assignment = match &options.simulation {
            Some(table) => {
                let table =
                    table.iter().map(|((flavor, resource), answer)| (self.fr(flavor, resource), *answer)).collect();
                assign_flavors(&mut self.engine.world, &ask, &mut TableOracle { table })
            }
            None => assign_flavors(&mut self.engine.world, &ask, &mut RealOracle::at(now)),
        };
        crate::topology::assign::place(&mut self.engine.world, &ask, &mut assignment);
        Some(self.report(&assignment, &ask))
    }

    fn report(&mut self, assignment: &Assignment, ask: &AssignmentRequest) -> AssignmentReport {
        let places = assignment.places(&mut self.engine.world, &ask.pod_sets);
        let world = &self.engine.world;
        AssignmentReport {
            mode: assignment.mode(),
            borrowing: assignment.borrowing,
            no_fit: assignment.no_fit,
            usage: assignment.usage.iter().map(|(fr, amount)| (self.names(*fr), *amount)).collect(),
            places: places
                .list
                .iter()
                .map(|it| {
                    let topologies = &world.topologies;
                    let flavor = world.flavor_name(it.flavor).clone();
                    (flavor, topologies.row_values(it.row), topologies.requests(&it.demand), it.count)
                })
                .collect(),
            pod_sets: assignment
                .pod_sets
                .iter()
                .map(|set| PodSetReport {
                    name: set.name.clone(),
                    count: set.count,
                    requests: set.requests.iter().map(|(id, it)| (world.resource_name(*id).clone(), *it)).collect(),
                    flavors: set
                        .flavors
                        .iter()
                        .map(|it| {
                            let flavor = world.flavor_name(it.flavor).clone();
                            (world.resource_name(it.resource).clone(), (flavor, it.mode, it.tried))
                        })
                        .collect(),
                    reasons: set.findings.iter().map(ToString::to_string).collect(),
                    error: set.error.as_ref().map(ToString::to_string),
                    attempts: set.attempts.clone(),
                    topology: set.topology.clone(),
                    delayed: set.delayed,
                })
                .collect(),
        }
    }

    /// Workloads that a workload would preempt in a queue, given its request and the part of it
    /// that is short.
    pub fn targets(
        &mut self,
        workload: &WorkloadKey,
        queue: &str,
        request: &FlavorAmounts,
        short: &[(Name, Name)],
        now: Time,
    ) -> Vec<(WorkloadKey, PreemptionReason)> {
        let (Some(queue), Some(id)) = (self.queue(queue), self.engine.world.workloads.id(workload)) else {
            return Vec::new();
        };
        let request = self.amounts(request);
        let mut need: Vec<FrId> = short.iter().map(|(flavor, resource)| self.fr(flavor, resource)).collect();
        need.sort_unstable();
        need.dedup();
        let world = &mut self.engine.world;
        let node = world.queue(queue).node;
        let preemptor = Preemptor {
            workload: id,
            queue,
            node,
            replaced: None,
            need: &need,
            request: &request,
            placement: None,
            now,
        };
        let (targets, _) = find_targets(world, &preemptor);
        targets.into_iter().map(|it| (world.record(it.workload).key().clone(), it.reason)).collect()
    }

    /// The message of a victim's conditions, with the paths of both queues.
    pub fn preemption_message(
        &self,
        preemptor: &WorkloadKey,
        queue: &str,
        victim: &WorkloadKey,
        reason: PreemptionReason,
    ) -> Option<String> {
        let world = &self.engine.world;
        let facts = &world.record(world.workloads.id(preemptor)?).facts;
        let holding = world.record(world.workloads.id(victim)?).holding.as_ref()?;
        let path = |queue: QueueId| text::path(&world.tree.names_from_root(world.queue(queue).node));
        Some(text::preemption(
            &facts.uid,
            facts.job_uid.as_deref(),
            reason.human(),
            &path(self.queue(queue)?),
            &path(holding.queue),
        ))
    }

    /// The order in which fair sharing takes victims from queues. If `drops[i]` is true, the queue
    /// at position `i` is dropped instead of providing a victim (§10.6).
    pub fn victim_queue_order(
        &mut self,
        preemptor: &WorkloadKey,
        queue: &str,
        candidates: &[WorkloadKey],
        drops: &[bool],
        now: Time,
    ) -> Vec<Name> {
        let (Some(queue), Some(id)) = (self.queue(queue), self.engine.world.workloads.id(preemptor)) else {
            return Vec::new();
        };
        let world = &self.engine.world;
        let node = world.queue(queue).node;
        let preemptor = Preemptor {
            workload: id,
            queue,
            node,
            replaced: None,
            need: &[],
            request: &Vec::new(),
            placement: None,
            now,
        };
        let ids: Vec<_> = candidates.iter().filter_map(|key| world.workloads.id(key)).collect();
        let mut queues = crate::preemption::fair::VictimQueues::new(world, &preemptor, &ids);
        let mut order = Vec::new();
        while let Some(next) = queues.next(world, &preemptor) {
            if drops.get(order.len()).copied().unwrap_or(false) {
                queues.drop_queue(next);
            } else {
                queues.pop(next);
            }
            order.push(world.tree.node(next).name.clone());
        }
        order
    }

    /// Candidates in the order in which they would be preempted (§9.5), each with the queue in
    /// which it is assumed to run.
    pub fn candidate_order(&mut self, own: &str, candidates: &[(WorkloadKey, Name)], now: Time) -> Vec<WorkloadKey> {
        let own_name = Name::from(own);
        let own = self.engine.world.queue_id(&own_name);
        let mut list: Vec<_> = candidates
            .iter()
            .filter_map(|(key, queue)| {
                let queue = self.engine.world.queue_id(queue);
                Some((self.engine.world.workloads.id(key)?, queue))
            })
            .collect();
        let world = &self.engine.world;
        crate::preemption::candidates::sort_by_order(world, &mut list, own, now, |it| *it);
        list.into_iter().map(|(id, _)| world.record(id).key().clone()).collect()
    }

    /// True if a policy lets one workload preempt another (§9.2).
    pub fn satisfies(&self, policy: PreemptionPolicy, preemptor: &WorkloadKey, candidate: &WorkloadKey) -> bool {
        let world = &self.engine.world;
        match (world.workloads.id(preemptor), world.workloads.id(candidate)) {
            (Some(preemptor), Some(candidate)) => satisfies(world, policy, preemptor, candidate),
            _ => false,
        }
    }

    /// Effective priority of a workload (§3.1).
    pub fn priority(&self, workload: &WorkloadKey) -> Option<i64> {
        Some(self.engine.world.record(self.engine.world.workloads.id(workload)?).priority)
    }

    /// Amounts reserved for a workload that must preempt and has no targets (§5.9).
    pub fn amounts_to_reserve(&mut self, queue: &str, usage: &FlavorAmounts, borrows: bool) -> FlavorAmounts {
        let usage = self.amounts(usage);
        let Some(id) = self.queue(queue) else { return FlavorAmounts::new() };
        let reserved = amounts_to_reserve(&self.engine.world, id, &usage, borrows);
        reserved.into_iter().map(|(fr, amount)| (self.names(fr), amount)).collect()
    }

    /// True if an admission is charged to its local queue because its usage does not show yet
    /// (§16.3).
    pub fn has_penalty(&self, workload: &WorkloadKey) -> bool {
        let world = &self.engine.world;
        world
            .workloads
            .id(workload)
            .is_some_and(|id| world.local(world.record(id).local).ledger.penalties.contains_key(&id))
    }

    /// Domains of the pods of a workload in one flavor's topology, per pod set and regardless of
    /// quota, or the reason why there are none. A workload with failed nodes keeps the rest of its
    /// placement. An elastic workload keeps the `earlier` slice's placement that is given, per pod
    /// set.
    pub fn place(
        &mut self,
        workload: &WorkloadKey,
        queue: &str,
        flavor: &Name,
        earlier: &BTreeMap<Name, TopologyAssignment>,
    ) -> Vec<(Name, Result<TopologyAssignment, String>)> {
        let (Some(queue), Some(id)) = (self.queue(queue), self.engine.world.workloads.id(workload)) else {
            return Vec::new();
        };
        let flavor = self.engine.world.flavor_id(flavor);
        let record = self.engine.world.record(id);
        let ask = AssignmentRequest {
            queue,
            workload: id,
            pod_sets: record.shape.requested().clone(),
            pinned: None,
            replaced: None,
            second_pass: record.holding.is_some(),
            resume: false,
        };
        let places = crate::topology::assign::places_in(&mut self.engine.world, &ask, flavor, earlier);
        places.into_iter().map(|(name, result)| (name, result.map_err(|finding| finding.to_string()))).collect()
    }

    /// Drops cached topology counts. They only save work: no result may change.
    pub fn forget_counts(&mut self) {
        self.engine.world.topologies.forget_counts();
    }

    /// Replaces the usage of a node through all flavors together.
    pub fn set_node_usage(&mut self, host: &Name, usage: ResourceList) {
        self.engine.world.topologies.set_host_usage(host.clone(), &usage);
    }
}
