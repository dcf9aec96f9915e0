//! Why a workload waits.

use std::sync::Arc;

use super::Considered;
use crate::ids::Name;
use crate::model::ResourceList;

/// Why a workload waits, with what was tried for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Wait {
    /// Why it waits.
    pub cause: WaitCause,
    /// True if it returned to the second-pass queue. Then only the event `SecondPassFailed` is
    /// emitted; neither the condition nor `status.resourceRequests` is written (§5.10).
    pub second_pass_failed: bool,
    /// Total requests per pod set, for `status.resourceRequests`.
    pub requests: Arc<Vec<(Name, ResourceList)>>,
    /// Flavors and searches for victims that were tried.
    pub considered: Considered,
}

/// Why a workload waits. Its reason, its message and how it returns to the queue follow from this
/// (§5.10).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum WaitCause {
    /// The workload was not evaluated yet.
    #[default]
    NotEvaluated,
    /// One of the workload's admission checks is Retry or Rejected.
    FailedChecks,
    /// The workload's cluster queue does not exist.
    QueueNotFound {
        /// The cluster queue.
        queue: Name,
    },
    /// The workload's cluster queue admits no workloads now.
    QueueInactive {
        /// The cluster queue.
        queue: Name,
    },
    /// The workload's namespace does not exist.
    NamespaceNotFound {
        /// The namespace.
        namespace: Name,
    },
    /// The workload's cluster queue does not select its namespace.
    NamespaceMismatch,
    /// The workload's object cannot be admitted (§2.8).
    Invalid {
        /// Problem of the object, as reported when the object was read.
        problem: String,
    },
    /// No flavor can take the workload.
    NoFit {
        /// The least severe of the flavors' reasons.
        reason: PendingReason,
    },
    /// The workload needs preemption and has no preemption candidates.
    NoCandidates,
    /// The workload needs preemption, and its preemption gate is closed (§5.6 step 5).
    PreemptionGated,
    /// Another entry of the cycle evicts victims that this workload had chosen. The workload will
    /// fit when they have left, without further preemption.
    FitsAfterPreemption,
    /// Another entry of the cycle evicts at least one victim that this workload had chosen. The
    /// workload must choose its victims again.
    VictimsTaken,
    /// The workload no longer fits after another entry of the cycle.
    NoLongerFits,
    /// The workload waits for its victims to leave.
    Preempting {
        /// Number of its victims.
        victims: usize,
    },
    /// The pods of an admitted workload are not ready (§20.4).
    PodsNotReady,
    /// The workload waits for its sibling variants on worse flavors to leave (§23).
    Migrating {
        /// Number of those siblings.
        siblings: usize,
    },
    /// A sibling variant on a better flavor is admitted (§23).
    BetterSiblingAdmitted,
    /// The workload would migrate to a flavor below the last one that its queue accepts (§23).
    BelowLastAcceptableFlavor,
    /// A cause that a test case sets. The test case was recorded from Kueue.
    #[cfg(feature = "lab")]
    Prescribed {
        /// The reason to show.
        reason: PendingReason,
        /// How it returns to its queue.
        requeue: RequeueReason,
        /// True if it waits for its preemption gate.
        gated: bool,
        /// The message to show.
        message: String,
    },
}

impl WaitCause {
    /// Reason of condition QuotaReserved=False.
    pub fn reason(&self) -> PendingReason {
        match self {
            WaitCause::NotEvaluated
            | WaitCause::FailedChecks
            | WaitCause::BetterSiblingAdmitted
            | WaitCause::BelowLastAcceptableFlavor => PendingReason::PendingEvaluation,
            WaitCause::QueueNotFound { .. }
            | WaitCause::NamespaceNotFound { .. }
            | WaitCause::NamespaceMismatch
            | WaitCause::Invalid { .. } => PendingReason::Misconfigured,
            WaitCause::QueueInactive { .. } => PendingReason::Suspended,
            WaitCause::NoFit { reason } => *reason,
            WaitCause::NoCandidates | WaitCause::VictimsTaken | WaitCause::NoLongerFits => {
                PendingReason::WaitingForQuota
            }
            WaitCause::PreemptionGated => PendingReason::AdmissionGated,
            WaitCause::FitsAfterPreemption | WaitCause::Preempting { .. } | WaitCause::Migrating { .. } => {
                PendingReason::WaitingForPreemptedWorkloads
            }
            WaitCause::PodsNotReady => PendingReason::WaitingForPodsReady,
            #[cfg(feature = "lab")]
            WaitCause::Prescribed { reason, .. } => *reason,
        }
    }

    /// How the workload returns to its queue (§4.4).
    pub fn requeue(&self) -> RequeueReason {
        match self {
            WaitCause::NotEvaluated
            | WaitCause::FailedChecks
            | WaitCause::QueueNotFound { .. }
            | WaitCause::QueueInactive { .. }
            | WaitCause::NamespaceNotFound { .. }
            | WaitCause::Invalid { .. } => RequeueReason::Generic,
            WaitCause::NamespaceMismatch => RequeueReason::NamespaceMismatch,
            WaitCause::NoFit { .. } => RequeueReason::NoFit,
            WaitCause::NoCandidates => RequeueReason::PreemptionNoCandidates,
            WaitCause::PreemptionGated => RequeueReason::PreemptionGated,
            WaitCause::FitsAfterPreemption | WaitCause::Preempting { .. } => RequeueReason::PendingPreemption,
            WaitCause::Migrating { .. } => RequeueReason::PendingMigration,
            WaitCause::VictimsTaken
            | WaitCause::NoLongerFits
            | WaitCause::PodsNotReady
            | WaitCause::BetterSiblingAdmitted
            | WaitCause::BelowLastAcceptableFlavor => RequeueReason::FailedAfterNomination,
            #[cfg(feature = "lab")]
            WaitCause::Prescribed { requeue, .. } => *requeue,
        }
    }

    /// True if it waits because another entry of the cycle, or a sibling variant, came first
    /// (§5.10).
    pub(crate) fn is_skipped(&self) -> bool {
        matches!(
            self,
            WaitCause::VictimsTaken
                | WaitCause::NoLongerFits
                | WaitCause::BetterSiblingAdmitted
                | WaitCause::BelowLastAcceptableFlavor
        )
    }

    /// True if BlockedOnPreemptionGates=True has to be written (§5.6 step 5).
    pub fn is_preemption_gated(&self) -> bool {
        match self {
            WaitCause::PreemptionGated => true,
            #[cfg(feature = "lab")]
            WaitCause::Prescribed { gated, .. } => *gated,
            _ => false,
        }
    }
}

impl Wait {
    /// Reason of condition QuotaReserved=False.
    pub fn reason(&self) -> PendingReason {
        self.cause.reason()
    }
}

/// Why a workload returned to its queue (§4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RequeueReason {
    /// No specific reason.
    #[default]
    Generic,
    /// The workload was nominated, but it was not admitted and evicts no victims.
    FailedAfterNomination,
    /// The workload's namespace is not selected by the queue.
    NamespaceMismatch,
    /// The workload waits for its victims.
    PendingPreemption,
    /// The workload waits for its sibling variant to leave.
    PendingMigration,
    /// The workload's victims could not be evicted.
    PreemptionFailed,
    /// The workload's preemption gate is closed.
    PreemptionGated,
    /// No flavor can take the workload.
    NoFit,
    /// The workload needs preemption and has no preemption candidates.
    PreemptionNoCandidates,
}

impl RequeueReason {
    /// The name that Kueue gives the reason.
    pub fn as_str(self) -> &'static str {
        match self {
            RequeueReason::Generic => "",
            RequeueReason::FailedAfterNomination => "FailedAfterNomination",
            RequeueReason::NamespaceMismatch => "NamespaceMismatch",
            RequeueReason::PendingPreemption => "PendingPreemption",
            RequeueReason::PendingMigration => "PendingMigration",
            RequeueReason::PreemptionFailed => "PreemptionFailed",
            RequeueReason::PreemptionGated => "PreemptionGated",
            RequeueReason::NoFit => "NoFit",
            RequeueReason::PreemptionNoCandidates => "PreemptionNoCandidates",
        }
    }
}

/// Reasons of condition QuotaReserved=False (§22).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PendingReason {
    /// No flavor matches the pods.
    NoMatchingFlavor,
    /// The request exceeds the queue's maximum capacity.
    ExceedsMaxQuota,
    /// The workload would fit if other workloads released quota.
    WaitingForQuota,
    /// Quota suffices, but the nodes do not.
    TopologyPlacementFailed,
    /// The workload's victims are being evicted.
    WaitingForPreemptedWorkloads,
    /// The queue or the object is misconfigured.
    Misconfigured,
    /// The queue is stopped or inactive.
    Suspended,
    /// The workload was not evaluated yet.
    PendingEvaluation,
    /// The pods of an admitted workload are not ready.
    WaitingForPodsReady,
    /// An admission gate is closed.
    AdmissionGated,
    /// The workload's job requests no pods for now.
    OnHold,
    /// The workload is deactivated.
    Deactivated,
}

impl PendingReason {
    /// All reasons.
    const ALL: [PendingReason; 12] = [
        PendingReason::NoMatchingFlavor,
        PendingReason::ExceedsMaxQuota,
        PendingReason::WaitingForQuota,
        PendingReason::TopologyPlacementFailed,
        PendingReason::WaitingForPreemptedWorkloads,
        PendingReason::Misconfigured,
        PendingReason::Suspended,
        PendingReason::PendingEvaluation,
        PendingReason::WaitingForPodsReady,
        PendingReason::AdmissionGated,
        PendingReason::OnHold,
        PendingReason::Deactivated,
    ];

    /// The reason that a condition states; `None` if the text is no such reason.
    pub fn from_condition(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }

    /// True if a workload with this reason is not evaluated until the reason ends. A condition that
    /// still states the reason after that would be misleading.
    pub fn is_block(self) -> bool {
        use PendingReason::{AdmissionGated, Deactivated, Misconfigured, OnHold, Suspended};
        matches!(self, Misconfigured | Suspended | AdmissionGated | OnHold | Deactivated)
    }

    /// The condition's reason.
    pub fn as_str(self) -> &'static str {
        match self {
            PendingReason::NoMatchingFlavor => "NoMatchingFlavor",
            PendingReason::ExceedsMaxQuota => "ExceedsMaxQuota",
            PendingReason::WaitingForQuota => "WaitingForQuota",
            PendingReason::TopologyPlacementFailed => "TopologyPlacementFailed",
            PendingReason::WaitingForPreemptedWorkloads => "WaitingForPreemptedWorkloads",
            PendingReason::Misconfigured => "Misconfigured",
            PendingReason::Suspended => "Suspended",
            PendingReason::PendingEvaluation => "PendingEvaluation",
            PendingReason::WaitingForPodsReady => "WaitingForPodsReady",
            PendingReason::AdmissionGated => "AdmissionGated",
            PendingReason::OnHold => "OnHold",
            PendingReason::Deactivated => "Deactivated",
        }
    }
}
