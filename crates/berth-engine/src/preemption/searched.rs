//! Records of searches for victims, for explanations: each candidate in the order it was tried,
//! and its fate.

use std::collections::BTreeMap;

use super::Target;
use crate::decision::{ConsideredVictim, SearchOutcome, VictimFate, VictimSearch};
use crate::ids::{FrId, WorkloadId};
use crate::world::World;

/// Maximum number of candidates of one search that are listed by name.
const LISTED_MAX: usize = 50;

/// A search for victims, with ids in place of names.
#[derive(Debug, Clone)]
pub(crate) struct Searched {
    /// The flavor-resource of the search, if it was for a single one.
    pub only: Option<FrId>,
    pub outcome: SearchOutcome,
    pub candidates: Vec<(WorkloadId, VictimFate)>,
}

impl Searched {
    /// A search without candidates.
    pub fn without_candidates(outcome: SearchOutcome) -> Self {
        Searched { only: None, outcome, candidates: Vec::new() }
    }

    /// A search through candidates. `taken` are the candidates that were hidden, and `targets` the
    /// victims among them. `passed_over` gives the reason for candidates that were not taken. A
    /// search without targets has failed.
    pub fn new(
        candidates: impl Iterator<Item = WorkloadId>,
        taken: &[WorkloadId],
        targets: &[Target],
        passed_over: &BTreeMap<WorkloadId, VictimFate>,
    ) -> Self {
        let mut fates = passed_over.clone();
        let fate = if targets.is_empty() { VictimFate::NotEnough } else { VictimFate::GivenBack };
        fates.extend(taken.iter().map(|id| (*id, fate)));
        fates.extend(targets.iter().map(|target| (target.workload, VictimFate::Victim(target.reason))));
        // A failed search has tried every candidate. The queue of each remaining one used no more
        // than its own quota.
        let rest = if targets.is_empty() { VictimFate::WithinNominal } else { VictimFate::NotReached };
        let candidates: Vec<(WorkloadId, VictimFate)> =
            candidates.map(|id| (id, fates.get(&id).copied().unwrap_or(rest))).collect();
        let outcome = match targets {
            [] if candidates.is_empty() => SearchOutcome::NoCandidates,
            [] if taken.is_empty() => SearchOutcome::Protected,
            [] => SearchOutcome::NotEnough,
            _ => SearchOutcome::Found,
        };
        Searched { only: None, outcome, candidates }
    }

    /// The record with names.
    pub fn named(&self, world: &World) -> VictimSearch {
        let only = self.only.map(|fr| world.frs.get(fr));
        let listed = self.candidates.iter().take(LISTED_MAX).map(|&(id, fate)| {
            let record = world.record(id);
            let queue = record.holding.as_ref().map(|holding| world.queue(holding.queue).name.clone());
            ConsideredVictim {
                workload: record.key().clone(),
                cluster_queue: queue.unwrap_or_else(|| crate::ids::Name::from("")),
                priority: record.priority,
                fate,
            }
        });
        VictimSearch {
            only: only.map(|fr| (world.flavor_name(fr.flavor).clone(), world.resource_name(fr.resource).clone())),
            outcome: self.outcome,
            candidates: listed.collect(),
            withheld: Vec::new(),
            unlisted: u32::try_from(self.candidates.len().saturating_sub(LISTED_MAX)).unwrap_or(u32::MAX),
        }
    }
}
