//! Records of searches for victims, for explanations: each candidate in the order it was tried,
//! and its fate.

use super::Target;
use crate::decision::{ConsideredVictim, SearchOutcome, VictimFate, VictimSearch};
use crate::ids::{FrId, WorkloadId};
use crate::world::World;

/// Maximum number of candidates of one search that are listed by name.
const LISTED_MAX: usize = 50;

/// The fate of one candidate.
pub(crate) type Fate = (WorkloadId, VictimFate);

/// A search for victims, with ids in place of names.
#[derive(Debug, Clone)]
pub(crate) struct Searched {
    /// The flavor-resource of the search, if it was for a single one.
    only: Option<FrId>,
    outcome: SearchOutcome,
    /// The first candidates, at most [`LISTED_MAX`].
    listed: Vec<Fate>,
    /// Number of the other candidates.
    unlisted: usize,
}

impl Searched {
    /// A search without candidates.
    pub fn without_candidates(outcome: SearchOutcome) -> Self {
        Searched { only: None, outcome, listed: Vec::new(), unlisted: 0 }
    }

    /// A search through candidates. `taken` are the candidates that were hidden, and `targets` the
    /// victims among them. `passed_over` gives the reason for candidates that were not taken. A
    /// search without targets has failed.
    pub fn new(
        candidates: impl ExactSizeIterator<Item = WorkloadId>,
        taken: &[WorkloadId],
        targets: &[Target],
        passed_over: Vec<Fate>,
    ) -> Self {
        let total = candidates.len();
        let outcome = match targets {
            [] if total == 0 => SearchOutcome::NoCandidates,
            [] if taken.is_empty() => SearchOutcome::Protected,
            [] => SearchOutcome::NotEnough,
            _ => SearchOutcome::Found,
        };
        // The last fate of a candidate counts: a target was taken first, and a taken candidate may
        // have been passed over before. The sort is stable, so the order of its fates stays.
        let mut fates = passed_over;
        let fate = if targets.is_empty() { VictimFate::NotEnough } else { VictimFate::GivenBack };
        fates.extend(taken.iter().map(|id| (*id, fate)));
        fates.extend(targets.iter().map(|target| (target.workload, VictimFate::Victim(target.reason))));
        fates.sort_by_key(|(id, _)| *id);
        // A failed search has tried every candidate. The queue of each remaining one used no more
        // than its own quota.
        let rest = if targets.is_empty() { VictimFate::WithinNominal } else { VictimFate::NotReached };
        let fate_of = |id: WorkloadId| {
            let end = fates.partition_point(|(other, _)| *other <= id);
            let last = fates[..end].last().filter(|(other, _)| *other == id);
            last.map_or(rest, |(_, fate)| *fate)
        };
        let listed: Vec<Fate> = candidates.take(LISTED_MAX).map(|id| (id, fate_of(id))).collect();
        Searched { only: None, outcome, unlisted: total - listed.len(), listed }
    }

    /// The same record, of a search for one flavor-resource or for the whole request.
    pub fn of_flavor_resource(self, only: Option<FrId>) -> Self {
        Searched { only, ..self }
    }

    /// The record with names.
    pub fn named(&self, world: &World) -> VictimSearch {
        let only = self.only.map(|fr| world.frs.get(fr));
        let listed = self.listed.iter().map(|&(id, fate)| {
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
            unlisted: u32::try_from(self.unlisted).unwrap_or(u32::MAX),
        }
    }
}
