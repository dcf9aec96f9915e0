//! Why a workload is where it is, worked out when somebody asks.
//!
//! Every answer of a cycle carries what was tried ([`crate::Considered`]). What costs more than the decision itself is
//! gathered here, on request: the whole tree above a quota that is short, who holds it, who of them could be preempted and
//! which policy protects the others, and who is ahead in the queue. The search is the cycle's own, run on the live state
//! and rolled back; nothing is decided and nothing changes.

use std::collections::{BTreeMap, BTreeSet};

use crate::amount::Amount;
use crate::cycle::Entry;
use crate::cycle::nominate::{Nomination, nominate};
use crate::cycle::process;
use crate::decision::{
    AssignmentMode, Considered, EntryStatus, Finding, FlavorAttempt, PendingReason, PreemptionReason,
};
use crate::engine::Engine;
use crate::engine::hold::checks_for;
use crate::ids::{FrId, Name, NodeId, QueueId, WorkloadId};
use crate::model::{Admission, CheckState, PreemptionPolicy, StopPolicy, Time, WorkloadKey};
use crate::preemption::fair::below_common;
use crate::preemption::{Preemptor, candidates, satisfies};
use crate::quota::amount_of;
use crate::status::{QueuePosition, WeightedShare};
use crate::waiting::order::keep_first;
use crate::waiting::{is_backoff_over, is_queueable};
use crate::withheld::WithheldHolders;
use crate::world::{Holding, World};

/// Workloads ahead, and holders of a quota, that are listed at most.
const LISTED_MAX: usize = 50;

/// Why a workload is where it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The workload.
    pub workload: WorkloadKey,
    /// The local queue it names.
    pub local_queue: Name,
    /// The cluster queue it holds quota in or waits for, or its local queue names; `None` when there is no such local queue.
    pub cluster_queue: Option<Name>,
    /// Where it is.
    pub standing: Standing,
    /// Why its cluster queue admits nothing at present; `None` if it does, or there is none (§5.3).
    pub queue_inactive: Option<String>,
    /// What would be said about it if its turn came now; `None` for what does not wait.
    pub verdict: Option<Outlook>,
}

/// Where a workload is.
#[derive(Debug, Clone, PartialEq)]
pub enum Standing {
    /// It holds quota.
    Holding {
        /// True when it may run.
        admitted: bool,
        /// True while the reservation is decided but not yet seen on the object.
        assumed: bool,
        /// Reason of its eviction, while it is on its way out.
        evicted: Option<Name>,
        /// Admission checks that are not Ready, in name order.
        checks: Vec<Name>,
        /// What it holds.
        admission: Admission,
    },
    /// It waits.
    Waiting {
        /// Its place.
        position: QueuePosition,
        /// Who is looked at before it, next first; at most fifty.
        ahead: Vec<WorkloadKey>,
        /// How many of those are not named to the reader ([`Explanation::withhold`]).
        ahead_withheld: usize,
        /// True while a back-off keeps it from being looked at (§4.6).
        backing_off: bool,
    },
    /// It waits nowhere.
    NotQueued(NotQueued),
}

/// Why a workload waits nowhere (§4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotQueued {
    /// It has finished.
    Finished,
    /// It is being deleted.
    Deleting,
    /// `spec.active` is false.
    Inactive,
    /// An admission gate is closed.
    AdmissionGated,
    /// QuotaReserved=False with reason OnHold.
    OnHold,
    /// It waits for replacement pods.
    WaitingForReplacementPods,
    /// Its concurrent-admission variants wait in its place (§23).
    VariantsWait,
    /// There is no such local queue (§21.4).
    NoLocalQueue,
    /// Its local queue is stopped (§21.3).
    LocalQueueStopped,
    /// The cluster queue of its local queue does not exist (§21.4).
    NoClusterQueue,
    /// It was put into its queue just now.
    NotSeenYet,
}

/// What would be said about a waiting workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Outlook {
    /// How well it would be served.
    pub mode: AssignmentMode,
    /// The reason its condition would show; `None` when it would be served.
    pub reason: Option<PendingReason>,
    /// The message, in Kueue's words.
    pub message: String,
    /// Flavors tried per pod set, and searches for victims.
    pub considered: Considered,
    /// Quotas that are short, in the order they were met.
    pub shortages: Vec<Shortage>,
    /// Whom it would preempt, and why that is allowed.
    pub victims: Vec<(WorkloadKey, PreemptionReason)>,
    /// How many of those are not named to the reader, by reason.
    pub victims_withheld: Vec<(PreemptionReason, usize)>,
    /// Under fair sharing, where quota is short: its side and those who hold it elsewhere, each pair once.
    pub shares: Vec<ComparedShares>,
    /// Whose pods it waits for, if it waits for pods to be ready (§20.4); at most fifty.
    pub unready: Vec<WorkloadKey>,
    /// How many of those are not named to the reader.
    pub unready_withheld: usize,
    /// How many more there are.
    pub unready_unlisted: usize,
}

/// Two shares as fair sharing compares them: of the children of the lowest cohort that two queues have in common (§10.7).
#[derive(Debug, Clone, PartialEq)]
pub struct ComparedShares {
    /// The workload's queue, or the cohort it is in.
    pub own: Name,
    /// Its share with the workload.
    pub own_share: WeightedShare,
    /// The other queue or cohort.
    pub other: Name,
    /// Its share now.
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
    /// Asked for by this and earlier pod sets of the workload.
    pub asked: i64,
    /// Available now.
    pub available: Amount,
    /// The queue and its cohorts up to the root.
    pub levels: Vec<Level>,
    /// The level whose limit decides: the one that runs out, or whose borrowing limit does.
    pub short_at: Name,
    /// Who holds it anywhere in the tree, largest first; at most fifty.
    pub holders: Vec<Holder>,
    /// Those of them that are not named to the reader.
    pub holders_withheld: Vec<WithheldHolders>,
    /// How many more hold some of it.
    pub holders_unlisted: usize,
}

/// Quota of one level of the tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// Queue or cohort.
    pub name: Name,
    /// True for a cohort.
    pub is_cohort: bool,
    /// Its own nominal quota.
    pub nominal: Amount,
    /// That and what its children lend it.
    pub subtree: Amount,
    /// In use; for a cohort, what its children could not cover by what they keep for themselves.
    pub in_use: Amount,
    /// How much more it may take from above.
    pub borrowing_limit: Option<Amount>,
    /// How much of its quota others may take.
    pub lending_limit: Option<Amount>,
    /// What could still be taken from here; negative when more is in use than there is.
    pub available: Amount,
}

/// Somebody who holds a quota that is short.
#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// The workload.
    pub workload: WorkloadKey,
    /// Its cluster queue.
    pub cluster_queue: Name,
    /// How much.
    pub amount: i64,
    /// Effective priority.
    pub priority: i64,
    /// Whether it could be preempted.
    pub preemptible: Preemptible,
}

/// Whether a holder could be preempted for a workload, and what protects it if not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemptible {
    /// It could.
    Yes,
    /// The policies expose it; whether it is taken is up to the shares (§10.7).
    IfSharesAllow,
    /// It is on its way out already.
    Leaving,
    /// It is the elastic slice the workload takes over from: it ends when that is admitted (§13.3).
    Replaced,
    /// The policy allows nobody: `withinClusterQueue` in the workload's own queue, `reclaimWithinCohort` elsewhere.
    PolicyNever,
    /// The policy allows others, by priority and age, but not this one.
    PolicyExcludes(PreemptionPolicy),
    /// Its queue, or a cohort between, uses no more than it owns.
    WithinNominal,
}

impl Engine {
    /// Why a workload is where it is; `None` if it is not known. Costs about as much as deciding about the workload, and
    /// a look at each who waits in its queue and who holds what is short.
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

    fn inactive(&self, queue: QueueId) -> Option<String> {
        let readiness = self.world.readiness(queue);
        if readiness.active && !self.world.is_schedulable(queue) {
            return Some("Can't admit new workloads: its cohorts form a cycle.".to_owned());
        }
        (!readiness.active).then_some(readiness.message)
    }
}

/// Takes the workload through a cycle of its own, from the first flavor on, and looks at what is short.
fn outlook(world: &mut World, id: WorkloadId, queue: QueueId, now: Time) -> Outlook {
    let mut entry = Entry::new(id, queue, false, false);
    let scan = world.record_mut(id).scan.take();
    let mark = world.mark();
    let nomination = nominate(world, &mut entry, now);
    let is_considered = matches!(nomination, Nomination::Considered);
    if is_considered {
        process::alone(world, &mut entry, now);
    }
    world.rollback(mark);
    world.record_mut(id).scan = scan;
    if !is_considered {
        return Outlook {
            mode: AssignmentMode::NoFit,
            reason: Some(entry.reason),
            message: entry.message,
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
    let mode = entry.assignment.mode();
    let reason = (entry.status != EntryStatus::Assumed).then_some(entry.reason);
    let considered = entry.assignment.take_considered(world);
    let mut shortages = Vec::new();
    let mut known = Holders::default();
    for set in &considered.pod_sets {
        for attempt in &set.attempts {
            shortages.extend(shortages_of(world, &entry, &set.pod_set, attempt, &mut known));
        }
    }
    let victims = entry.victims.iter().map(|victim| (victim.workload.clone(), victim.reason)).collect();
    let shares = compared_shares(world, &entry, &shortages);
    let mut unready = Vec::new();
    if reason == Some(PendingReason::WaitingForPodsReady) {
        unready.extend(process::workloads_without_ready_pods(world));
    }
    let key = |id: &WorkloadId| world.record(*id).key();
    let unready_unlisted = keep_first(&mut unready, LISTED_MAX, |a, b| key(a).cmp(key(b)));
    let unready = unready.iter().map(|id| key(id).clone()).collect();
    Outlook {
        mode,
        reason,
        message: entry.message,
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

/// The shares that decide whether the workload may take from the queues that hold what is short: those of holders who are
/// preempted only if shares allow.
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

/// What an attempt found short.
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

/// Who holds most of each flavor-resource that was asked for, however often it is short.
#[derive(Default)]
struct Holders {
    largest: BTreeMap<FrId, Largest>,
}

/// The largest holders of a flavor-resource, largest first, and how many others there are.
#[derive(Default)]
struct Largest {
    listed: Vec<(i64, WorkloadId, QueueId)>,
    unlisted: usize,
}

impl Holders {
    /// The largest holders in the queue's tree, and how many others there are, for a workload that asks for so much.
    fn of(&mut self, world: &World, entry: &Entry, fr: FrId, asked: i64) -> (Vec<Holder>, usize) {
        let node = world.queue(entry.queue).node;
        // Flavors are judged by a search for one flavor-resource at a time (§8.6); victims of the assignment that was chosen
        // are searched for all of them together.
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
            // Who is preempted first plays no part here.
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

/// Looks once at everybody in a tree who holds quota; only who is listed is put in order.
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

/// Whether the policies expose a holder (§9.3, §9.4, §10.4); asked of the predicates the search uses.
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

/// True if fair sharing lets the workload take without regard to shares: with it its queue uses no more than it owns (§10.7).
fn takes_back_its_own(world: &World, preemptor: &Preemptor<'_>) -> bool {
    world.config.gates.fair_sharing_preempt_within_nominal
        && preemptor.need.iter().all(|&fr| {
            let cell = world.tree.cell(preemptor.node, fr);
            cell.usage + Amount::Bounded(amount_of(preemptor.request, fr)) <= cell.subtree
        })
}
