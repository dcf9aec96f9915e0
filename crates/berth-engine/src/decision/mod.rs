//! Decisions of a cycle, with their reasons.
//!
//! A [`Decision`] is complete: carrying it out needs no further choice. Its reasons are data, made
//! by the deciding code. No message is composed here: [`crate::text`] renders every message from
//! that data, and `tests/it/prose.rs` checks this for the deciding modules.

mod finding;
mod victims;
mod wait;

use std::collections::BTreeMap;

use crate::ids::Name;
use crate::model::{Admission, Time, WorkloadKey};

pub use finding::{
    AssignmentMode, Considered, Exclusion, Finding, FlavorAttempt, LayerShortage, LevelCapacity, PodSetConsidered,
    PreemptionBar, PreemptionMode, TopologyProblem, TopologyShortage,
};
pub use victims::{
    Balance, ConsideredVictim, Preemption, PreemptionReason, Priority, QuotaChange, SearchOutcome, Victim, VictimFate,
    VictimSearch, WithheldCandidates,
};
pub use wait::{PendingReason, RequeueReason, Wait, WaitCause};

/// Result of a scheduling cycle, or of a part of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CycleOutcome {
    /// Number of the cycle, from 1. All its parts have the same number.
    pub cycle: u64,
    /// True if some heads of the cycle were not decided yet. The next call continues with them.
    pub is_incomplete: bool,
    /// Result of the whole cycle, all its parts together. `None` until the cycle is complete, and
    /// if it had no heads.
    pub result: Option<CycleResult>,
    /// Decisions, in the order they were taken.
    pub decisions: Vec<Decision>,
    /// Workloads that became inadmissible because an equivalent one just failed (§4.8), with the
    /// reason to show. They were not evaluated themselves.
    pub bypassed: Vec<(WorkloadKey, PendingReason)>,
    /// Per cluster queue, entries whose preemption was dropped in this cycle because of other
    /// entries (§5.6 steps 7 and 8).
    pub skipped_preemptions: BTreeMap<Name, u32>,
    /// Per cluster queue and result (`new_targets`, `deferred_fit`, `skipped`), recomputed
    /// preemption targets.
    pub target_recomputations: BTreeMap<Name, BTreeMap<&'static str, u32>>,
    /// True if another call without a new event could decide more: the rest of this cycle, or
    /// another one.
    pub more: bool,
    /// When to call `cycle` next even if no event arrives (back-offs, flush delays, second passes);
    /// see [`crate::Engine::next_wakeup`].
    pub next_wakeup: Option<Time>,
}

impl CycleOutcome {
    /// True if a decision of this outcome admits a workload, or evicts one for which no other
    /// workload needs the quota. Preemptions do not count.
    pub(crate) fn is_success(&self) -> bool {
        self.decisions.iter().any(|decision| matches!(decision.verdict, Verdict::Admit(_) | Verdict::Evict(_)))
    }
}

/// Result of a cycle (§5.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CycleResult {
    /// At least one workload was admitted, or evicted although no other workload needs its quota.
    /// Preemptions do not count.
    Success,
    /// The cycle decided, but without such a success.
    Inadmissible,
}

impl CycleResult {
    /// The name that Kueue gives the result.
    pub fn as_str(self) -> &'static str {
        match self {
            CycleResult::Success => "success",
            CycleResult::Inadmissible => "inadmissible",
        }
    }
}

/// Decision about one workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The workload.
    pub workload: WorkloadKey,
    /// The cluster queue that it waits in.
    pub cluster_queue: Name,
    /// Outcome for the workload.
    pub verdict: Verdict,
}

/// Outcome of one entry of a cycle.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Write this admission. The engine already counts it; report `AdmissionFailed` if the write
    /// fails.
    Admit(Admit),
    /// Evict these victims, then show why the workload still waits. The engine keeps the victims'
    /// quota counted until their objects show its release.
    Preempt {
        /// Workloads to evict.
        victims: Vec<Victim>,
        /// Why the preemptor waits.
        wait: Wait,
    },
    /// The workload waits; show why.
    Wait(Wait),
    /// Evict the workload itself, not in favour of another workload.
    Evict(Eviction),
}

/// Why a workload is evicted although no other workload needs its quota.
#[derive(Debug, Clone, PartialEq)]
pub enum Eviction {
    /// Nodes of the workload failed, and its pods found no other nodes (§5.6 step 2).
    NodeFailures {
        /// The failed nodes.
        nodes: Vec<Name>,
        /// Why its pods found no other nodes. Shown if the eviction cannot be written.
        considered: Considered,
    },
    /// A variant that makes way for a sibling on a better flavor (§23).
    FlavorMigration {
        /// UID of the sibling.
        sibling_uid: Name,
    },
}

impl Eviction {
    /// Reason of condition Evicted.
    pub fn reason(&self) -> &'static str {
        match self {
            Eviction::NodeFailures { .. } => "NodeFailures",
            Eviction::FlavorMigration { .. } => "FlavorMigration",
        }
    }
}

/// An admission to write.
#[derive(Debug, Clone, PartialEq)]
pub struct Admit {
    /// Quota, counts and topology.
    pub admission: Admission,
    /// Admission checks that this admission needs, in name order. Without checks, the workload is
    /// admitted at once (§17.2).
    pub checks: Vec<Name>,
    /// True if the workload held a reservation already and only its topology is new (§17.6).
    pub second_pass: bool,
    /// The elastic slice that ends with this admission (§13.3).
    pub replaces: Option<WorkloadKey>,
    /// Flavors and searches for victims that were tried for it.
    pub considered: Considered,
}
