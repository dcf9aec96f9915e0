//! An [`Explanation`] for a reader that may not know every workload: those of namespaces it may not read are counted, with
//! the quota they hold, instead of named. It is done to the record, before anything is written from it, so that the page for
//! people and the object for programs say the same.
//!
//! Names of cluster queues and cohorts, their quotas and how much of them is in use stay: they are not one tenant's. What
//! protects a group of holders from preemption stays too, as it follows from the workload's own outlook.
//!
//! Every record is taken apart field by field: one that gets another field does not compile until it is decided here what a
//! reader may see of it.

use crate::decision::{Considered, ConsideredVictim, PreemptionReason, VictimFate, VictimSearch};
use crate::explain::{Explanation, Holder, Outlook, Preemptible, Shortage, Standing};
use crate::ids::Name;
use crate::model::WorkloadKey;

/// Holders of a quota that are not named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithheldHolders {
    /// Their cluster queue.
    pub cluster_queue: Name,
    /// Whether they could be preempted.
    pub preemptible: Preemptible,
    /// How many they are.
    pub workloads: usize,
    /// How much they hold together.
    pub amount: i64,
}

/// Candidates of a search for victims that are not named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithheldCandidates {
    /// Their cluster queue.
    pub cluster_queue: Name,
    /// What became of them.
    pub fate: VictimFate,
    /// How many they are.
    pub workloads: usize,
}

/// Says of a namespace whether its workloads may be named.
type MayName<'a> = &'a mut dyn FnMut(&Name) -> bool;

impl Explanation {
    /// Counts the other workloads of namespaces `may_name` is false for, instead of naming them. It is asked once for each
    /// workload that is named, so that with one that is always true it finds out which namespaces are.
    ///
    /// The explained workload itself stays named.
    pub fn withhold(&mut self, may_name: MayName<'_>) {
        // What it is about, where that queues, and why its queue admits nothing.
        let Explanation { workload: _, local_queue: _, cluster_queue: _, standing, queue_inactive: _, verdict } = self;
        match standing {
            // All of it is its own.
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
        // Shares are those of queues and cohorts; messages are Kueue's and count workloads.
        let Outlook {
            mode: _,
            reason: _,
            message: _,
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
            // Levels are those of the queue's own cohorts.
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

/// Takes out what may not be named, in order.
fn take_out<T>(list: &mut Vec<T>, key: impl Fn(&T) -> &WorkloadKey, may_name: MayName<'_>) -> Vec<T> {
    list.extract_if(.., |item| !may_name(&key(item).namespace)).collect()
}

fn add_victim(groups: &mut Vec<(PreemptionReason, usize)>, reason: PreemptionReason) {
    match groups.iter_mut().find(|(of, _)| *of == reason) {
        Some((_, workloads)) => *workloads += 1,
        None => groups.push((reason, 1)),
    }
}

/// Groups stand in the order of their first, which is their largest.
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
