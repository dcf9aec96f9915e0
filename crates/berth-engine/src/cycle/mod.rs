//! The scheduling cycle (§5). One head per queue gets one decision. The heads are decided in an
//! order, each against a state that includes the earlier decisions.
//!
//! [`nominate`] computes the assignment that each head would get on its own. [`order`] decides
//! which entry is next, [`process`] decides the entries, and [`parts`] decides which heads are
//! independent of the others. A cycle works on the live state instead of on a snapshot, as Kueue
//! does. Everything tried on the state is rolled back at the end; only then are admissions counted
//! permanently.

#![expect(clippy::vec_box, reason = "entries are large, and a cycle sorts and moves them")]

mod claims;
pub(crate) mod nominate;
pub(crate) mod order;
mod parts;
pub(crate) mod process;
mod tournament;
mod victims;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::assignment::{Assignment, RequestedPodSet};
use crate::decision::{
    Admit, AssignmentMode, Considered, CycleOutcome, CycleResult, Decision, Eviction, Verdict, Victim, Wait, WaitCause,
};
use crate::ids::{Name, NodeId, QueueId, WorkloadId};
use crate::model::Time;
use crate::preemption::Target;
use crate::quota::FrAmounts;
use crate::topology::Places;
use crate::waiting::PendingQueues;
use crate::waiting::second_pass::needs_second_pass;
use crate::world::World;

pub(crate) use parts::Parts;

/// One head of a cycle.
#[derive(Debug)]
pub(crate) struct Entry {
    pub workload: WorkloadId,
    pub queue: QueueId,
    /// True if the entry waits for preemptions that it started (§3.4).
    pub is_preemptor: bool,
    /// True if the entry holds quota already. Only its topology is computed (§17.6).
    pub second_pass: bool,
    pub assignment: Assignment,
    pub requested: Arc<[RequestedPodSet]>,
    pub targets: Vec<Target>,
    /// The elastic slice that it replaces, if that slice holds quota here.
    pub replaced: Option<WorkloadId>,
    /// See [`Entry::net_places`].
    net_places: Option<Arc<Places>>,
}

/// Outcome of an entry's turn in its cycle (§5.6).
#[derive(Debug)]
pub(crate) enum Turn {
    /// The entry is admitted.
    Admits,
    /// The entry evicts these victims and waits for them to leave.
    Preempts(Vec<Victim>),
    /// The entry evicts these sibling variants and waits until all `siblings` on worse flavors have
    /// left (§23).
    Migrates { evicts: Vec<WorkloadId>, siblings: usize },
    /// The entry waits.
    Waits(WaitCause),
    /// The entry is evicted itself: these nodes failed, and no other nodes can take its pods (§5.6
    /// step 2).
    LosesNodes(Vec<Name>),
}

impl Entry {
    pub fn new(workload: WorkloadId, queue: QueueId, is_preemptor: bool, second_pass: bool) -> Entry {
        Entry {
            workload,
            queue,
            is_preemptor,
            second_pass,
            assignment: Assignment::default(),
            requested: Arc::default(),
            targets: Vec::new(),
            replaced: None,
            net_places: None,
        }
    }

    /// Replaces the entry's assignment.
    pub fn take(&mut self, assignment: Assignment, requested: Arc<[RequestedPodSet]>, targets: Vec<Target>) {
        self.assignment = assignment;
        self.requested = requested;
        self.targets = targets;
        self.net_places = None;
    }

    /// The decision about the entry.
    fn decision(&self, world: &World, verdict: Verdict) -> Decision {
        Decision {
            workload: world.record(self.workload).key().clone(),
            cluster_queue: world.queue(self.queue).name.clone(),
            verdict,
        }
    }

    /// Quota that its assignment uses in addition to the quota that it, or the elastic slice it
    /// replaces, holds (§5.8, §13.2).
    pub fn quota_usage(&self) -> FrAmounts {
        if self.second_pass { FrAmounts::new() } else { self.assignment.usage.clone() }
    }

    /// Domains that its assignment uses in addition to those it holds.
    pub fn net_places(&mut self, world: &mut World) -> Arc<Places> {
        if let Some(known) = &self.net_places {
            return known.clone();
        }
        let places = Arc::new(self.places_beyond_held(world));
        self.net_places = Some(places.clone());
        places
    }

    fn places_beyond_held(&self, world: &mut World) -> Places {
        let places = self.assignment.places(world, &self.requested);
        match &world.record(self.workload).holding {
            Some(holding) if self.second_pass => places.without(&holding.places),
            _ => match self.replaced.and_then(|id| world.record(id).holding.as_ref()) {
                Some(replaced) => places.without(&replaced.places),
                None => places,
            },
        }
    }
}

/// Runs the next part of the current cycle, or the first part of a new one. Takes whole cohort
/// trees until they have `heads` heads. Trees that must be decided together may have more.
pub(crate) fn run(
    world: &mut World,
    pending_queues: &mut PendingQueues,
    parts: &mut Parts,
    heads: usize,
    now: Time,
) -> CycleOutcome {
    let mut entries = Vec::new();
    if parts.is_done() {
        world.cycle += 1;
        entries = second_passes(world, pending_queues, now);
        *parts = Parts::begin(world, pending_queues, &entries);
    }
    let mut outcome = CycleOutcome { cycle: world.cycle, ..CycleOutcome::default() };
    let queues = parts.next(world, heads);
    if !(entries.is_empty() && queues.is_empty()) {
        parts.progress |= decide(world, pending_queues, entries, &queues, &mut outcome, now);
    }
    parts.has_decided |= !outcome.decisions.is_empty();
    parts.succeeded |= outcome.is_success();
    if parts.is_done() {
        outcome.more = parts.progress && pending_queues.has_schedulable_candidates(world);
        outcome.result = parts.has_decided.then_some(match parts.succeeded {
            true => CycleResult::Success,
            false => CycleResult::Inadmissible,
        });
    } else {
        outcome.more = true;
        outcome.is_incomplete = true;
    }
    outcome
}

/// Decides second passes and the heads of these queues; the heads of one cohort tree are decided
/// together. True if the next cycle may decide something that this one could not.
fn decide(
    world: &mut World,
    pending_queues: &mut PendingQueues,
    mut entries: Vec<Box<Entry>>,
    queues: &[(NodeId, QueueId)],
    outcome: &mut CycleOutcome,
    now: Time,
) -> bool {
    let mut progress = false;
    outcome.decisions.reserve(entries.len() + queues.len());
    let base = world.mark();
    entries.retain_mut(|entry| consider(world, pending_queues, entry, outcome, &mut progress, now));
    for tree in queues.chunk_by(|(a, _), (b, _)| a == b) {
        let first = entries.len();
        for (_, queue) in tree {
            let Some((id, is_preemptor)) = pending_queues.pop(world, *queue) else { continue };
            let mut entry = Box::new(Entry::new(id, *queue, is_preemptor, false));
            if consider(world, pending_queues, &mut entry, outcome, &mut progress, now) {
                entries.push(entry);
            }
        }
        // Entries whose outcome no ordering can change, and that affect no other entry, are decided
        // now.
        let no_entry_acts = process::no_entry_acts(world, &entries[..first], &entries[first..]);
        let is_done = |entry: &mut Box<Entry>| no_entry_acts || process::is_hopeless(world, entry);
        let done: Vec<_> = entries.extract_if(first.., is_done).collect();
        for mut entry in done {
            let cause = process::no_assignment(&entry);
            progress |= put_back(world, pending_queues, &mut entry, cause, Vec::new(), outcome, now);
        }
    }
    let entries = process::run(world, entries, outcome, now);
    world.rollback(base);
    for (entry, turn) in entries {
        progress |= conclude(world, pending_queues, entry, turn, outcome, now);
    }
    progress
}

/// The entries whose second pass is due.
fn second_passes(world: &World, pending_queues: &mut PendingQueues, now: Time) -> Vec<Box<Entry>> {
    let due = pending_queues.second_pass.take_due(now).into_iter().filter_map(|id| {
        let record = world.record(id);
        let holding = record.holding.as_ref().filter(|_| needs_second_pass(&record.facts))?;
        Some(Box::new(Entry::new(id, holding.queue, false, true)))
    });
    due.collect()
}

/// Nominates an entry. Returns false if the entry drops out of the cycle.
fn consider(
    world: &mut World,
    pending_queues: &mut PendingQueues,
    entry: &mut Entry,
    outcome: &mut CycleOutcome,
    progress: &mut bool,
    now: Time,
) -> bool {
    match nominate::nominate(world, entry, now) {
        nominate::Nomination::Considered => return true,
        nominate::Nomination::Refused(cause) => {
            *progress |= put_back(world, pending_queues, entry, cause, Vec::new(), outcome, now);
        }
        nominate::Nomination::Dropped => pending_queues.forget(world, entry.workload),
    }
    false
}

/// Carries out an entry's outcome: counts the admission, evicts a workload that lost nodes, or puts
/// the workload back (§5.10). True if the next cycle may decide something that this one could not.
fn conclude(
    world: &mut World,
    pending_queues: &mut PendingQueues,
    mut entry: Box<Entry>,
    turn: Turn,
    outcome: &mut CycleOutcome,
    now: Time,
) -> bool {
    let (cause, victims) = match turn {
        Turn::Admits => {
            let verdict = Verdict::Admit(admit(world, pending_queues, &mut entry, now));
            outcome.decisions.push(entry.decision(world, verdict));
            return true;
        }
        Turn::LosesNodes(nodes) => {
            world.record_mut(entry.workload).eviction_expected = true;
            pending_queues.forget(world, entry.workload);
            let considered = entry.assignment.take_considered(world);
            let eviction = Eviction::NodeFailures { nodes, considered };
            outcome.decisions.push(entry.decision(world, Verdict::Evict(eviction)));
            return true;
        }
        Turn::Waits(cause) => (cause, Vec::new()),
        Turn::Preempts(victims) => (WaitCause::Preempting { victims: entry.targets.len() }, victims),
        Turn::Migrates { evicts, siblings } => {
            let sibling_uid = world.record(entry.workload).facts.uid.clone();
            for id in evicts {
                let eviction = Eviction::FlavorMigration { sibling_uid: sibling_uid.clone() };
                let sibling = world.record_mut(id);
                sibling.eviction_expected = true;
                outcome.decisions.push(Decision {
                    workload: sibling.key().clone(),
                    cluster_queue: world.queue(entry.queue).name.clone(),
                    verdict: Verdict::Evict(eviction),
                });
            }
            (WaitCause::Migrating { siblings }, Vec::new())
        }
    };
    put_back(world, pending_queues, &mut entry, cause, victims, outcome, now)
}

/// Why a workload waits that is not evaluated, because its cluster queue does not select its
/// namespace and its class is inadmissible (§4.8).
pub(crate) fn unselected(world: &World, queue: QueueId, workload: WorkloadId) -> Decision {
    let record = world.record(workload);
    let wait = Wait {
        cause: nominate::unselected(world, workload),
        second_pass_failed: false,
        requests: record.shape.totals(world).clone(),
        considered: Considered::default(),
    };
    Decision {
        workload: record.key().clone(),
        cluster_queue: world.queue(queue).name.clone(),
        verdict: Verdict::Wait(wait),
    }
}

/// Puts a workload that was not admitted back into its queue and records why it waits (§5.10).
/// True if the next cycle may decide something that this one could not.
pub(crate) fn put_back(
    world: &mut World,
    pending_queues: &mut PendingQueues,
    entry: &mut Entry,
    cause: WaitCause,
    victims: Vec<Victim>,
    outcome: &mut CycleOutcome,
    now: Time,
) -> bool {
    let (reason, requeue) = (cause.reason(), cause.requeue());
    let keeps_scan = !cause.is_skipped() || world.config.gates.flavor_fungibility_preserve_scan_progress;
    let record = world.record_mut(entry.workload);
    record.evaluated_generation = record.facts.generation;
    let issued = !victims.is_empty();
    let scan = std::mem::take(&mut entry.assignment.scan);
    // The workload has found its flavors and waits for other workloads to leave or to be ready. Its
    // next search starts at the first flavor, so that it considers these flavors again.
    let found = matches!(cause, WaitCause::Migrating { .. } | WaitCause::PodsNotReady);
    let cleared = issued || found || entry.assignment.deferred || cause.is_preemption_gated() || !keeps_scan;
    record.scan = (!cleared && scan.has_more_flavors()).then(|| Box::new(scan));
    let mut second_pass_failed = false;
    let mut progress = false;
    if entry.second_pass {
        second_pass_failed = pending_queues.second_pass.schedule(entry.workload, now);
    } else {
        let scan_continues = world.record(entry.workload).scan.as_ref().is_some_and(|scan| scan.has_more_flavors());
        let requeued = pending_queues.requeue(world, entry.queue, entry.workload, requeue, reason, now);
        progress = !requeued.active || scan_continues || !requeued.bypassed.is_empty();
        for id in requeued.bypassed {
            outcome.bypassed.push((world.record(id).key().clone(), reason));
        }
    }
    for victim in &victims {
        if let Some(id) = world.workloads.id(&victim.workload) {
            world.record_mut(id).eviction_expected |= victim.write;
        }
    }
    let wait = Wait {
        cause,
        second_pass_failed,
        requests: world.record(entry.workload).shape.totals(world).clone(),
        considered: entry.assignment.take_considered(world),
    };
    let verdict = if issued { Verdict::Preempt { victims, wait } } else { Verdict::Wait(wait) };
    outcome.decisions.push(entry.decision(world, verdict));
    progress
}

/// Counts an admission and returns what has to be written.
fn admit(world: &mut World, pending_queues: &mut PendingQueues, entry: &mut Entry, now: Time) -> Admit {
    let admission = entry.assignment.admission(world, entry.queue);
    pending_queues.forget(world, entry.workload);
    let checks = crate::engine::hold::checks_for(world, entry.queue, Some(&admission));
    let replaces = entry.replaced.map(|id| world.record(id).key().clone());
    // The workload takes the computed usage, unless it already holds a part of it.
    let taken = (!entry.second_pass && entry.replaced.is_none()).then(|| {
        let places = entry.net_places(world);
        // No other entry refers to the usage and the places, so they are moved instead of copied.
        entry.net_places = None;
        (std::mem::take(&mut entry.assignment.usage), Arc::unwrap_or_clone(places))
    });
    crate::engine::hold::assume(world, entry.workload, entry.queue, admission.clone(), taken, now);
    world.record_mut(entry.workload).scan = None;
    Admit {
        admission,
        checks,
        second_pass: entry.second_pass,
        replaces,
        considered: if entry.second_pass { Considered::default() } else { entry.assignment.take_considered(world) },
    }
}

/// Adds one to the count of a queue name.
pub(crate) fn count<K: Ord + Clone>(counts: &mut BTreeMap<K, u32>, key: &K) {
    *counts.entry(key.clone()).or_default() += 1;
}

/// True if an assignment can be acted on now or after preemption.
pub(crate) fn is_usable(mode: AssignmentMode, targets: &[Target]) -> bool {
    mode == AssignmentMode::Fit || (mode == AssignmentMode::Preempt && !targets.is_empty())
}
