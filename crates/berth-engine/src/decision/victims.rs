//! Preemptions: victims, and the searches that chose them.

use std::sync::Arc;

use crate::amount::Amount;
use crate::ids::Name;
use crate::model::{PreemptionPolicies, WorkloadKey};
use crate::status::WeightedShare;

/// A workload to evict for another.
#[derive(Debug, Clone, PartialEq)]
pub struct Victim {
    /// The workload.
    pub workload: WorkloadKey,
    /// UID of the workload.
    pub uid: Name,
    /// The cluster queue in which it runs.
    pub cluster_queue: Name,
    /// That cluster queue and the cohorts above it, from the root down.
    pub path: Vec<Name>,
    /// Why it may be preempted.
    pub reason: PreemptionReason,
    /// False if it is already being evicted: no object has to be written.
    pub write: bool,
    /// Priority of the victim.
    pub priority: Priority,
    /// The preemption of which it is a victim.
    pub preemption: Arc<Preemption>,
}

/// A preemption: the workload that needs quota, and the state in which its victims were chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Preemption {
    /// The workload that needs quota.
    pub workload: WorkloadKey,
    /// The preemptor's UID.
    pub uid: Name,
    /// UID of its job.
    pub job_uid: Option<Name>,
    /// The cluster queue in which it waits.
    pub cluster_queue: Name,
    /// That cluster queue and the cohorts above it, from the root down.
    pub path: Vec<Name>,
    /// The preemptor's priority.
    pub priority: Priority,
    /// The preemption policies of its cluster queue.
    pub policies: PreemptionPolicies,
    /// The search that found the victims, with every candidate and its fate.
    pub search: Option<VictimSearch>,
    /// Quota and shares of the queues and cohorts concerned, the preemptor's side first.
    pub balances: Vec<Balance>,
}

/// Quota use of a queue or cohort before a preemption and after it, when the victims have left and
/// the preemptor is admitted.
#[derive(Debug, Clone, PartialEq)]
pub struct Balance {
    /// Queue or cohort.
    pub name: Name,
    /// True for a cohort.
    pub is_cohort: bool,
    /// The change of each quota of which the preemptor requests an amount.
    pub quotas: Vec<QuotaChange>,
    /// Under fair sharing: the share before and after.
    pub shares: Option<(WeightedShare, WeightedShare)>,
}

/// Use of one quota before and after a preemption, in base units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaChange {
    /// Flavor.
    pub flavor: Name,
    /// Resource.
    pub resource: Name,
    /// Nominal quota, with what children lend to a cohort.
    pub quota: Amount,
    /// Usage before.
    pub before: Amount,
    /// Usage after.
    pub after: Amount,
}

/// A workload's priority and its parts (§3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Priority {
    /// `spec.priority`.
    pub base: i64,
    /// Amount that the boost annotation adds.
    pub boost: i64,
}

impl Priority {
    /// The priority that decisions use: the sum of base and boost.
    pub fn effective(self) -> i64 {
        self.base + self.boost
    }
}

/// Why a victim may be preempted (§9.4, §10.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PreemptionReason {
    /// The victim is in the preemptor's queue, and `withinClusterQueue` allows its preemption.
    InClusterQueue,
    /// The victim's queue borrows quota of the preemptor's queue.
    InCohortReclamation,
    /// Fair sharing lets the preemptor take quota from the victim's queue.
    InCohortFairSharing,
    /// The victim has lower priority in a queue that borrows, and the preemptor would borrow as
    /// well.
    InCohortReclaimWhileBorrowing,
}

impl PreemptionReason {
    /// Reason of condition Preempted.
    pub fn as_str(self) -> &'static str {
        match self {
            PreemptionReason::InClusterQueue => "InClusterQueue",
            PreemptionReason::InCohortReclamation => "InCohortReclamation",
            PreemptionReason::InCohortFairSharing => "InCohortFairSharing",
            PreemptionReason::InCohortReclaimWhileBorrowing => "InCohortReclaimWhileBorrowing",
        }
    }
}

/// One search for victims (§9, §10). It is for a single resource of a flavor while flavors are
/// compared (§8.6), or for everything that the assignment lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VictimSearch {
    /// Flavor and resource of the search, if it was for a single one.
    pub only: Option<(Name, Name)>,
    /// Outcome of the search.
    pub outcome: SearchOutcome,
    /// Workloads that the policies allow to be preempted, in the order they were tried; at most
    /// fifty.
    pub candidates: Vec<ConsideredVictim>,
    /// Candidates whose names are withheld from the reader ([`crate::Explanation::withhold`]).
    pub withheld: Vec<WithheldCandidates>,
    /// Number of candidates beyond those listed.
    pub unlisted: u32,
}

/// Outcome of a search for victims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SearchOutcome {
    /// Enough victims were found.
    Found,
    /// `withinClusterQueue` and, if the queue has a cohort, `reclaimWithinCohort` are Never.
    Forbidden,
    /// The policies allow no workload that holds the needed quota to be preempted.
    NoCandidates,
    /// The workload would not fit even if every allowed candidate were preempted.
    NotEnough,
    /// Every candidate is protected in another way: by its priority while the preemptor borrows, by
    /// its queue's own quota, or by shares.
    Protected,
}

/// A workload that the policies allow to be preempted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsideredVictim {
    /// The workload.
    pub workload: WorkloadKey,
    /// The cluster queue in which it holds quota.
    pub cluster_queue: Name,
    /// Effective priority.
    pub priority: i64,
    /// Outcome of the search for this candidate.
    pub fate: VictimFate,
}

/// What a search for victims decided about one candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VictimFate {
    /// The candidate is one of the victims.
    Victim(PreemptionReason),
    /// The candidate was chosen and later dropped: the other victims suffice (§9.9).
    GivenBack,
    /// Earlier candidates sufficed.
    NotReached,
    /// The candidate was chosen, but all candidates together did not suffice.
    NotEnough,
    /// The candidate's priority protects it while the preemptor borrows (§9.4).
    OnlyWithoutBorrowing,
    /// When its turn came, its queue or a cohort above it used no more than its own quota (§9.7).
    WithinNominal,
    /// The share of the candidate's queue is not large enough, compared with the preemptor's share,
    /// for fair sharing to take quota from that queue (§10.7).
    ShareTooSmall,
}

/// Candidates of a search for victims whose names are withheld, grouped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithheldCandidates {
    /// Cluster queue in which they hold quota.
    pub cluster_queue: Name,
    /// Outcome of the search for each of them.
    pub fate: VictimFate,
    /// Number of workloads.
    pub workloads: usize,
}
