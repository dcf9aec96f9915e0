//! Withholds names in an [`Explanation`] from a reader without access to every namespace. Workloads
//! of namespaces that the reader may not read are replaced by their number and the quota that they
//! hold. The record itself is changed, before any message or object is made from it, so that the
//! page and the API object agree.
//!
//! Names of cluster queues and cohorts, their quotas and their usage remain, because they belong to
//! no single tenant. The reason that protects a group of holders from preemption remains too,
//! because it follows from the workload's own outlook.
//!
//! Every record is destructured field by field. A new field does not compile until this module
//! decides what a reader may see of it.

use crate::decision::{Considered, ConsideredVictim, PreemptionReason, VictimSearch, WithheldCandidates};
use crate::explain::{Explanation, Holder, Outlook, Preemptible, Shortage, Standing};
use crate::ids::Name;
use crate::model::WorkloadKey;

/// Holders of a quota whose names are withheld, grouped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithheldHolders {
    /// Cluster queue in which they hold quota.
    pub cluster_queue: Name,
    /// Whether they could be preempted.
    pub preemptible: Preemptible,
    /// Number of workloads.
    pub workloads: usize,
    /// Total amount that they hold, in base units.
    pub amount: i64,
}

/// Returns whether workloads of a namespace may be named.
type MayName<'a> = &'a mut dyn FnMut(&Name) -> bool;

impl Explanation {
    /// Replaces the names of other workloads by counts, for namespaces that `may_name` rejects.
    /// `may_name` is called once for each named workload, so a closure that always returns true can
    /// collect the namespaces.
    ///
    /// The explained workload itself stays named.
    pub fn withhold(&mut self, may_name: MayName<'_>) {
        // The workload, its queues, and the reason why its cluster queue is inactive are not
        // withheld.
        let Explanation { workload: _, local_queue: _, cluster_queue: _, standing, queue_inactive: _, verdict } = self;
        match standing {
            // Everything here belongs to the explained workload.
            Standing::Holding { admitted: _, assumed: _, evicted: _, checks: _, admission: _ } => {}
            Standing::Waiting { position: _, ahead, ahead_withheld, backing_off: _ } => {
                *ahead_withheld += take_out(ahead, |key| key, may_name).len();
            }
            Standing::NotQueued(_) => {}
        }
        if let Some(outlook) = verdict {
            outlook.withhold(may_name);
        }
    }
}

impl Outlook {
    fn withhold(&mut self, may_name: MayName<'_>) {
        // Shares are those of queues and cohorts. A cause has the number of other workloads, not
        // their names.
        let Outlook {
            mode: _,
            cause: _,
            considered: Considered { pod_sets: _, borrowing_level: _, victim_searches },
            shortages,
            victims,
            victims_withheld,
            shares: _,
            unready,
            unready_withheld,
            unready_unlisted: _,
        } = self;
        for (_, reason) in take_out(victims, |(key, _)| key, may_name) {
            add_victim(victims_withheld, reason);
        }
        *unready_withheld += take_out(unready, |key| key, may_name).len();
        for shortage in shortages {
            // Levels belong to the queue and the cohorts above it.
            let Shortage {
                pod_set: _,
                flavor: _,
                resource: _,
                asked: _,
                available: _,
                levels: _,
                short_at: _,
                holders,
                holders_withheld,
                holders_unlisted: _,
            } = shortage;
            for holder in take_out(holders, |holder| &holder.workload, may_name) {
                add_holder(holders_withheld, holder);
            }
        }
        for search in victim_searches {
            let VictimSearch { only: _, outcome: _, candidates, withheld, unlisted: _ } = search;
            for candidate in take_out(candidates, |candidate| &candidate.workload, may_name) {
                add_candidate(withheld, candidate);
            }
        }
    }
}

/// Removes and returns the items that may not be named, in order.
fn take_out<T>(list: &mut Vec<T>, key: impl Fn(&T) -> &WorkloadKey, may_name: MayName<'_>) -> Vec<T> {
    list.extract_if(.., |item| !may_name(&key(item).namespace)).collect()
}

fn add_victim(groups: &mut Vec<(PreemptionReason, usize)>, reason: PreemptionReason) {
    match groups.iter_mut().find(|(of, _)| *of == reason) {
        Some((_, workloads)) => *workloads += 1,
        None => groups.push((reason, 1)),
    }
}

/// Adds a holder to its group. Groups are ordered by their first member, which is their largest.
fn add_holder(groups: &mut Vec<WithheldHolders>, holder: Holder) {
    let Holder { workload: _, cluster_queue, amount, priority: _, preemptible } = holder;
    let same = |group: &&mut WithheldHolders| group.cluster_queue == cluster_queue && group.preemptible == preemptible;
    match groups.iter_mut().find(same) {
        Some(group) => {
            group.workloads += 1;
            group.amount = group.amount.saturating_add(amount);
        }
        None => groups.push(WithheldHolders { cluster_queue, preemptible, workloads: 1, amount }),
    }
}

fn add_candidate(groups: &mut Vec<WithheldCandidates>, candidate: ConsideredVictim) {
    let ConsideredVictim { workload: _, cluster_queue, priority: _, fate } = candidate;
    let same = |group: &&mut WithheldCandidates| group.cluster_queue == cluster_queue && group.fate == fate;
    match groups.iter_mut().find(same) {
        Some(group) => group.workloads += 1,
        None => groups.push(WithheldCandidates { cluster_queue, fate, workloads: 1 }),
    }
}
