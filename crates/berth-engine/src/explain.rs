//! Explanations: why a workload waits, or what quota it holds. Computed on request.
//!
//! Every decision of a cycle carries what was tried ([`crate::Considered`]). Details that cost more
//! than the decision are computed here. For a quota that is short they are every level of the tree
//! above it, the workloads that hold it, whether those could be preempted, and the policy that
//! protects them. The workloads ahead in the queue are listed as well. The search is that of the
//! cycle. It runs on the live state and is rolled back, so it changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::amount::Amount;
use crate::cycle::nominate::{Nomination, nominate};
use crate::cycle::process;
use crate::cycle::{Entry, Turn};
use crate::decision::{AssignmentMode, Considered, Finding, FlavorAttempt, PendingReason, PreemptionReason, WaitCause};
use crate::engine::Engine;
use crate::engine::hold::checks_for;
use crate::ids::{FrId, Name, NodeId, QueueId, WorkloadId};
use crate::model::{Admission, CheckState, PreemptionPolicy, StopPolicy, Time, WorkloadKey};
use crate::preemption::fair::below_common;
use crate::preemption::{Preemptor, candidates, satisfies};
use crate::quota::amount_of;
use crate::status::{QueuePosition, QueueProblem, QueueReadiness, WeightedShare};
use crate::waiting::order::keep_first;
use crate::waiting::{is_backoff_over, is_queueable};
use crate::withheld::WithheldHolders;
use crate::world::{Holding, World};

/// Maximum number of workloads ahead, and of holders of a quota, in an explanation.
const LISTED_MAX: usize = 50;

/// Why a workload waits, or what it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The workload.
    pub workload: WorkloadKey,
    /// The local queue that it names.
    pub local_queue: Name,
    /// The cluster queue in which it holds quota or waits, or else the one that its local queue
    /// names. `None` without such a local queue.
    pub cluster_queue: Option<Name>,
    /// Whether it holds quota, waits, or is not queued.
    pub standing: Standing,
    /// Why its cluster queue admits no workloads now. `None` if it admits workloads or does not
    /// exist (§5.3).
    pub queue_inactive: Option<QueueReadiness>,
    /// The decision that it would get if its turn came now. `None` unless it waits.
    pub verdict: Option<Outlook>,
}

/// Whether a workload holds quota, waits, or is not queued.
#[derive(Debug, Clone, PartialEq)]
pub enum Standing {
    /// The workload holds quota.
    Holding {
        /// True if it is admitted.
        admitted: bool,
        /// True while the reservation was decided but the object does not show it yet.
        assumed: bool,
        /// Reason of its eviction, if it is being evicted.
        evicted: Option<Name>,
        /// Admission checks that are not Ready, in name order.
        checks: Vec<Name>,
        /// Quota and topology domains that it holds.
        admission: Admission,
    },
    /// The workload waits in a queue.
    Waiting {
        /// The workload's position in the queues.
        position: QueuePosition,
        /// Workloads that are considered before it, the next one first; at most fifty.
        ahead: Vec<WorkloadKey>,
        /// Number of workloads ahead whose names are withheld from the reader
        /// ([`Explanation::withhold`]).
        ahead_withheld: usize,
        /// True while it is not considered because its back-off has not expired (§4.6).
        backing_off: bool,
    },
    /// The workload is not in a queue.
    NotQueued(NotQueued),
}

/// Why a workload is not in a queue (§4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotQueued {
    /// The workload has finished.
    Finished,
    /// The workload is being deleted.
    Deleting,
    /// `spec.active` is false.
    Inactive,
    /// An admission gate is closed.
    AdmissionGated,
    /// QuotaReserved=False with reason OnHold.
    OnHold,
    /// The workload waits for replacement pods.
    WaitingForReplacementPods,
    /// The workload's concurrent-admission variants wait in its place (§23).
    VariantsWait,
    /// The local queue does not exist (§21.4).
    NoLocalQueue,
    /// The workload's local queue is stopped (§21.3).
    LocalQueueStopped,
    /// The cluster queue of its local queue does not exist (§21.4).
    NoClusterQueue,
    /// The workload was submitted just now and was not added to its queue yet.
    NotSeenYet,
}

/// The decision that a waiting workload would get if its turn came now.
#[derive(Debug, Clone, PartialEq)]
pub struct Outlook {
    /// The assignment mode that the workload could get.
    pub mode: AssignmentMode,
    /// Why it would keep waiting. `None` if it would be admitted.
    pub cause: Option<WaitCause>,
    /// Flavors tried per pod set, and searches for victims.
    pub considered: Considered,
    /// Quotas that are short, in the order in which the search found them.
    pub shortages: Vec<Shortage>,
    /// Workloads that it would preempt, and the rule that allows it.
    pub victims: Vec<(WorkloadKey, PreemptionReason)>,
    /// Number of victims whose names are withheld from the reader, by reason.
    pub victims_withheld: Vec<(PreemptionReason, usize)>,
    /// Under fair sharing, if quota is short: the shares on the workload's side and on the side of
    /// each holder in another queue, each pair once.
    pub shares: Vec<ComparedShares>,
    /// Workloads whose pods must be ready first (§20.4); at most fifty.
    pub unready: Vec<WorkloadKey>,
    /// Number of such workloads whose names are withheld from the reader.
    pub unready_withheld: usize,
    /// Number of such workloads beyond those listed.
    pub unready_unlisted: usize,
}

/// Two shares that fair sharing compares. They belong to two children of the lowest cohort that
/// both queues have in common (§10.7).
#[derive(Debug, Clone, PartialEq)]
pub struct ComparedShares {
    /// The child on the workload's side: its queue, or a cohort above that.
    pub own: Name,
    /// Share of `own` with the workload added.
    pub own_share: WeightedShare,
    /// The child on the holder's side: a queue or a cohort.
    pub other: Name,
    /// Current share of `other`.
    pub other_share: WeightedShare,
}

/// A quota that is short for a pod set.
#[derive(Debug, Clone, PartialEq)]
pub struct Shortage {
    /// Pod set.
    pub pod_set: Name,
    /// Flavor.
    pub flavor: Name,
    /// Resource.
    pub resource: Name,
    /// Amount requested by this and earlier pod sets of the workload.
    pub asked: i64,
    /// Amount available now.
    pub available: Amount,
    /// The queue and its cohorts up to the root.
    pub levels: Vec<Level>,
    /// Name of the level whose quota or borrowing limit is exhausted.
    pub short_at: Name,
    /// Workloads that hold this quota anywhere in the tree, largest amount first; at most fifty.
    pub holders: Vec<Holder>,
    /// Holders whose names are withheld from the reader.
    pub holders_withheld: Vec<WithheldHolders>,
    /// Number of holders beyond those listed.
    pub holders_unlisted: usize,
}

/// Quota of one level of the tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// Queue or cohort.
    pub name: Name,
    /// True for a cohort.
    pub is_cohort: bool,
    /// Nominal quota of the queue or cohort itself.
    pub nominal: Amount,
    /// Nominal quota and the quota its children lend it.
    pub subtree: Amount,
    /// Usage. For a cohort, the usage of its children above the quota that they do not lend.
    pub in_use: Amount,
    /// Maximum amount it may borrow from the levels above.
    pub borrowing_limit: Option<Amount>,
    /// Maximum amount of its quota that others may borrow.
    pub lending_limit: Option<Amount>,
    /// Amount still available here; negative when usage exceeds the quota.
    pub available: Amount,
}

/// A workload that holds some of a quota that is short.
#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// The workload.
    pub workload: WorkloadKey,
    /// The workload's cluster queue.
    pub cluster_queue: Name,
    /// Amount that it holds.
    pub amount: i64,
    /// Effective priority.
    pub priority: i64,
    /// Whether it could be preempted.
    pub preemptible: Preemptible,
}

/// Whether a holder could be preempted for a workload, and what protects it if not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemptible {
    /// The holder could be preempted.
    Yes,
    /// The policies allow it to be preempted. Fair sharing allows it depending on the shares
    /// (§10.7).
    IfSharesAllow,
    /// The holder is already being evicted.
    Leaving,
    /// The holder is the elastic slice that the workload replaces. It ends when the workload is
    /// admitted (§13.3).
    Replaced,
    /// The policy is Never: `withinClusterQueue` in the workload's own queue,
    /// `reclaimWithinCohort` elsewhere.
    PolicyNever,
    /// The policy depends on priority and age, by which it does not allow the preemption of this
    /// holder.
    PolicyExcludes(PreemptionPolicy),
    /// The holder's queue, or a cohort between it and the common one, uses no more than its own
    /// quota.
    WithinNominal,
}

impl Outlook {
    /// The reason that its condition would show. `None` if it would be admitted.
    pub fn reason(&self) -> Option<PendingReason> {
        self.cause.as_ref().map(WaitCause::reason)
    }
}

impl Engine {
    /// Explains a workload. `None` if the engine does not contain it. The cost is about that of
    /// deciding the workload, plus one read of each workload that waits in its queue or holds quota
    /// that is short.
    pub fn explain(&mut self, workload: &WorkloadKey, now: Time) -> Option<Explanation> {
        let id = self.world.workloads.id(workload)?;
        self.world.tree.refresh();
        let record = self.world.record(id);
        let local_queue = record.facts.queue.clone();
        if let Some(holding) = &record.holding {
            return Some(Explanation {
                workload: workload.clone(),
                local_queue,
                cluster_queue: Some(self.world.queue(holding.queue).name.clone()),
                standing: self.holding_of(id, holding),
                queue_inactive: self.inactive(holding.queue),
                verdict: None,
            });
        }
        let queue = self.waiting_queue(id);
        let named = self.world.local(record.local).queue;
        let name = named.map(|queue| self.world.queue(queue).name.clone());
        let Some(queue) = queue.filter(|_| record.place.queue().is_some()) else {
            let standing = Standing::NotQueued(self.not_queued(id));
            return Some(Explanation {
                workload: workload.clone(),
                local_queue,
                cluster_queue: name,
                standing,
                queue_inactive: queue.and_then(|queue| self.inactive(queue)),
                verdict: None,
            });
        };
        let backing_off = !is_backoff_over(&record.facts, now);
        let (position, ahead) = self.place_in_line(queue, id, LISTED_MAX)?;
        let standing = Standing::Waiting { position, ahead, ahead_withheld: 0, backing_off };
        let queue_inactive = self.inactive(queue);
        let verdict = Some(outlook(&mut self.world, id, queue, now));
        let workload = workload.clone();
        Some(Explanation { workload, local_queue, cluster_queue: name, standing, queue_inactive, verdict })
    }

    fn holding_of(&self, id: WorkloadId, holding: &Holding) -> Standing {
        let record = self.world.record(id);
        let facts = &record.facts;
        let ready = |check: &Name| facts.checks.iter().any(|it| it.name == *check && it.state == CheckState::Ready);
        let mut checks = checks_for(&self.world, holding.queue, Some(&holding.admission));
        checks.retain(|check| !holding.admitted && !ready(check));
        Standing::Holding {
            admitted: holding.admitted,
            assumed: holding.assumed,
            evicted: record.eviction().map(|eviction| eviction.reason.clone()),
            checks,
            admission: holding.admission.clone(),
        }
    }

    fn not_queued(&self, id: WorkloadId) -> NotQueued {
        let facts = &self.world.record(id).facts;
        let gates = &self.world.config.gates;
        match facts {
            _ if facts.finished => NotQueued::Finished,
            _ if facts.deleting => NotQueued::Deleting,
            _ if !facts.active => NotQueued::Inactive,
            _ if facts.on_hold => NotQueued::OnHold,
            _ if facts.waiting_for_replacement_pods => NotQueued::WaitingForReplacementPods,
            _ if self.waiting_queue(id).is_some_and(|queue| self.world.has_variants(id, queue)) => {
                NotQueued::VariantsWait
            }
            _ if !is_queueable(facts, gates) => NotQueued::AdmissionGated,
            _ => self.without_queue(id),
        }
    }

    fn without_queue(&self, id: WorkloadId) -> NotQueued {
        let local = self.world.local(self.world.record(id).local);
        match &local.spec {
            None => NotQueued::NoLocalQueue,
            Some(spec) if spec.stop_policy != StopPolicy::None => NotQueued::LocalQueueStopped,
            Some(_) if self.waiting_queue(id).is_none() => NotQueued::NoClusterQueue,
            Some(_) => NotQueued::NotSeenYet,
        }
    }

    fn inactive(&self, queue: QueueId) -> Option<QueueReadiness> {
        let mut readiness = self.world.readiness(queue);
        if readiness.is_active() && !self.world.is_schedulable(queue) {
            readiness.problems.push(QueueProblem::CohortCycle);
        }
        (!readiness.is_active()).then_some(readiness)
    }
}

/// Runs the workload through a cycle of its own, starting at the first flavor, and collects what
/// is short.
fn outlook(world: &mut World, id: WorkloadId, queue: QueueId, now: Time) -> Outlook {
    let mut entry = Entry::new(id, queue, false, false);
    let scan = world.record_mut(id).scan.take();
    let mark = world.mark();
    let nomination = nominate(world, &mut entry, now);
    let turn = match nomination {
        Nomination::Considered => Ok(process::alone(world, &mut entry, now)),
        Nomination::Refused(cause) => Err(cause),
        Nomination::Dropped => Err(WaitCause::NotEvaluated),
    };
    world.rollback(mark);
    world.record_mut(id).scan = scan;
    let (cause, victims) = match turn {
        Ok(Turn::Admits) => (None, Vec::new()),
        Ok(Turn::Preempts(victims)) => (Some(WaitCause::Preempting { victims: entry.targets.len() }), victims),
        Ok(Turn::Migrates { siblings, .. }) => (Some(WaitCause::Migrating { siblings }), Vec::new()),
        Ok(Turn::Waits(cause)) => (Some(cause), Vec::new()),
        Ok(Turn::LosesNodes(_)) => (Some(WaitCause::NotEvaluated), Vec::new()),
        Err(cause) => {
            return Outlook {
                mode: AssignmentMode::NoFit,
                cause: Some(cause),
                considered: Considered::default(),
                shortages: Vec::new(),
                victims: Vec::new(),
                victims_withheld: Vec::new(),
                shares: Vec::new(),
                unready: Vec::new(),
                unready_withheld: 0,
                unready_unlisted: 0,
            };
        }
    };
    let mode = entry.assignment.mode();
    // The record is taken from a copy, because the code below computes the assignment again.
    let considered = entry.assignment.clone().take_considered(world);
    let mut shortages = Vec::new();
    let mut known = Holders::default();
    for set in &considered.pod_sets {
        for attempt in &set.attempts {
            shortages.extend(shortages_of(world, &entry, &set.pod_set, attempt, &mut known));
        }
    }
    let victims = victims.into_iter().map(|victim| (victim.workload, victim.reason)).collect();
    let shares = compared_shares(world, &entry, &shortages);
    let mut unready = Vec::new();
    if cause == Some(WaitCause::PodsNotReady) {
        unready.extend(process::workloads_without_ready_pods(world));
    }
    let key = |id: &WorkloadId| world.record(*id).key();
    let unready_unlisted = keep_first(&mut unready, LISTED_MAX, |a, b| key(a).cmp(key(b)));
    let unready = unready.iter().map(|id| key(id).clone()).collect();
    Outlook {
        mode,
        cause,
        considered,
        shortages,
        victims,
        victims_withheld: Vec::new(),
        shares,
        unready,
        unready_withheld: 0,
        unready_unlisted,
    }
}

/// Shares that decide whether the workload may preempt in the queues that hold the quota that is
/// short. Only holders whose preemption depends on shares are considered.
fn compared_shares(world: &mut World, entry: &Entry, shortages: &[Shortage]) -> Vec<ComparedShares> {
    let mut list: Vec<ComparedShares> = Vec::new();
    if !world.is_fair_sharing() || entry.assignment.mode() != AssignmentMode::Preempt {
        return list;
    }
    let own = world.queue(entry.queue).node;
    let held = shortages.iter().flat_map(|shortage| &shortage.holders);
    let holders: BTreeSet<&Name> =
        held.filter(|holder| holder.preemptible == Preemptible::IfSharesAllow).map(|it| &it.cluster_queue).collect();
    let others: Vec<NodeId> = holders
        .into_iter()
        .filter_map(|name| world.queue_ids.get(name))
        .map(|id| world.queue(*id).node)
        .filter(|node| *node != own)
        .collect();
    let mark = world.tree.mark();
    world.add_usage(own, &entry.assignment.usage);
    for node in others {
        let (mine, theirs) = below_common(world, own, node);
        let compared = ComparedShares {
            own: world.tree.node(mine).name.clone(),
            own_share: world.weighted_share(mine),
            other: world.tree.node(theirs).name.clone(),
            other_share: world.weighted_share(theirs),
        };
        if !list.contains(&compared) {
            list.push(compared);
        }
    }
    world.tree.rollback(mark);
    list
}

/// Shortages found by an attempt.
fn shortages_of(
    world: &mut World,
    entry: &Entry,
    pod_set: &Name,
    attempt: &FlavorAttempt,
    known: &mut Holders,
) -> Vec<Shortage> {
    let mut list = Vec::new();
    for finding in &attempt.findings {
        let (flavor, resource, asked, short_at) = match finding {
            Finding::InsufficientQuota { resource, flavor, requested, short_at, .. } => {
                (flavor, resource, *requested, short_at)
            }
            Finding::ExceedsMaximum { resource, flavor, assumed, requested, short_at, .. } => {
                (flavor, resource, assumed.saturating_add(*requested), short_at)
            }
            _ => continue,
        };
        let (flavor_id, resource_id) = (world.flavor_id(flavor), world.resources.intern(resource));
        let fr = world.frs.intern(flavor_id, resource_id);
        let node = world.queue(entry.queue).node;
        let (holders, holders_unlisted) = known.of(world, entry, fr, asked);
        list.push(Shortage {
            pod_set: pod_set.clone(),
            flavor: flavor.clone(),
            resource: resource.clone(),
            asked,
            available: world.tree.available(node, fr).or_zero(),
            levels: world.tree.path_to_root(node).map(|node| level(world, node, fr)).collect(),
            short_at: short_at.clone(),
            holders,
            holders_withheld: Vec::new(),
            holders_unlisted,
        });
    }
    list
}

fn level(world: &World, node: NodeId, fr: FrId) -> Level {
    let (cell, entry) = (world.tree.cell(node, fr), world.tree.node(node));
    Level {
        name: entry.name.clone(),
        is_cohort: !entry.is_queue,
        nominal: cell.quota.nominal,
        subtree: cell.subtree,
        in_use: cell.usage,
        borrowing_limit: cell.quota.borrowing_limit,
        lending_limit: cell.quota.lending_limit,
        available: world.tree.available(node, fr),
    }
}

/// The largest holders of each requested flavor-resource. They are computed once, even if it is
/// short several times.
#[derive(Default)]
struct Holders {
    largest: BTreeMap<FrId, Largest>,
}

/// The largest holders of a flavor-resource, largest first, and the number of the others.
#[derive(Default)]
struct Largest {
    listed: Vec<(i64, WorkloadId, QueueId)>,
    unlisted: usize,
}

impl Holders {
    /// The largest holders in the queue's tree and the number of the others, seen by a workload
    /// that requests `asked`.
    fn of(&mut self, world: &World, entry: &Entry, fr: FrId, asked: i64) -> (Vec<Holder>, usize) {
        let node = world.queue(entry.queue).node;
        // A flavor is evaluated by a search for one flavor-resource at a time (§8.6); victims of
        // the chosen assignment are searched for all its flavor-resources together.
        let chosen = entry.assignment.frs_needing_preemption();
        let together = entry.assignment.mode() == AssignmentMode::Preempt && chosen.contains(&fr);
        let alone = vec![(fr, asked)];
        let (need, request) = if together { (chosen.as_slice(), &entry.assignment.usage) } else { (&[fr][..], &alone) };
        let largest = self.largest.entry(fr).or_insert_with(|| largest_holders(world, world.tree.node(node).root, fr));
        let preemptor = Preemptor {
            workload: entry.workload,
            queue: entry.queue,
            node,
            replaced: entry.replaced,
            need,
            request,
            placement: None,
            // The order of victims does not matter here.
            now: Time::UNSET,
        };
        let listed = largest.listed.iter().map(|&(amount, id, queue)| {
            let record = world.record(id);
            Holder {
                workload: record.key().clone(),
                cluster_queue: world.queue(queue).name.clone(),
                amount,
                priority: record.priority,
                preemptible: preemptible(world, &preemptor, id, queue),
            }
        });
        (listed.collect(), largest.unlisted)
    }
}

/// The largest holders in a tree. Reads every holder once and sorts only the listed ones.
fn largest_holders(world: &World, root: NodeId, fr: FrId) -> Largest {
    let mut all: Vec<(i64, WorkloadId, QueueId)> = Vec::new();
    for leaf in world.tree.queues_below(root) {
        let Some(queue) = world.queue_of_node(leaf) else { continue };
        let holding = world.queue(queue).holding.iter().map(|id| {
            let amount = world.record(*id).holding.as_ref().map_or(0, |holding| amount_of(&holding.usage, fr));
            (amount, *id, queue)
        });
        all.extend(holding.filter(|(amount, ..)| *amount > 0));
    }
    let unlisted = keep_first(&mut all, LISTED_MAX, |a, b| {
        b.0.cmp(&a.0).then_with(|| world.record(a.1).key().cmp(world.record(b.1).key()))
    });
    Largest { listed: all, unlisted }
}

/// Whether the policies allow a holder to be preempted (§9.3, §9.4, §10.4). Uses the predicates of
/// the search.
fn preemptible(world: &World, preemptor: &Preemptor<'_>, id: WorkloadId, queue: QueueId) -> Preemptible {
    if preemptor.replaced == Some(id) {
        return Preemptible::Replaced;
    }
    if candidates::is_evicted(world, id) {
        return Preemptible::Leaving;
    }
    let policies = world.queue(preemptor.queue).config.preemption;
    let own = queue == preemptor.queue;
    let policy = if own { policies.within_cluster_queue } else { policies.reclaim_within_cohort };
    if policy == PreemptionPolicy::Never {
        return Preemptible::PolicyNever;
    }
    if !satisfies(world, policy, preemptor.workload, id) {
        return Preemptible::PolicyExcludes(policy);
    }
    if own {
        return Preemptible::Yes;
    }
    if !candidates::is_exposed(world, preemptor, world.queue(queue).node) {
        return Preemptible::WithinNominal;
    }
    if world.is_fair_sharing() && !takes_back_its_own(world, preemptor) {
        Preemptible::IfSharesAllow
    } else {
        Preemptible::Yes
    }
}

/// True if fair sharing lets the workload preempt regardless of the shares, because its queue would
/// use no more than its own quota after the admission (§10.7).
fn takes_back_its_own(world: &World, preemptor: &Preemptor<'_>) -> bool {
    world.config.gates.fair_sharing_preempt_within_nominal
        && preemptor.need.iter().all(|&fr| {
            let cell = world.tree.cell(preemptor.node, fr);
            cell.usage + Amount::Bounded(amount_of(preemptor.request, fr)) <= cell.subtree
        })
}
