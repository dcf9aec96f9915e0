//! Figures for the statuses of queues and cohorts, and the positions of waiting workloads.

use std::collections::BTreeMap;

use crate::amount::Amount;
use crate::ids::Name;
use crate::model::{Time, WorkloadKey};

/// Amounts in use of one flavor and resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlavorUsage {
    /// Amount in use.
    pub total: i64,
    /// Part of it above nominal quota; zero for queues without cohort.
    pub borrowed: i64,
}

/// Figures of a ClusterQueue's status.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClusterQueueStatus {
    /// Waiting workloads: in the heap, inadmissible and in flight.
    pub pending: u32,
    /// Workloads that hold quota.
    pub reserving: u32,
    /// Workloads that are admitted.
    pub admitted: u32,
    /// Per flavor (in the order of the queue's resource groups) and resource, reserved amounts.
    pub flavors_reservation: Vec<(Name, BTreeMap<Name, FlavorUsage>)>,
    /// Amounts that admitted workloads use, in the same order.
    pub flavors_usage: Vec<(Name, BTreeMap<Name, FlavorUsage>)>,
    /// Whether it may admit workloads, and why not.
    pub readiness: QueueReadiness,
    /// Weighted share, if fair sharing is configured.
    pub weighted_share: WeightedShare,
}

/// Counts and amounts of a ClusterQueue that metrics show in addition to those in its status.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClusterQueueFigures {
    /// Figures of the ClusterQueue's status.
    pub status: ClusterQueueStatus,
    /// Waiting workloads that are inadmissible until something changes.
    pub inadmissible: u32,
    /// Distinct scheduling-equivalence classes among the waiting workloads that may be popped
    /// (§4.8).
    pub kinds_active: u32,
    /// Distinct scheduling-equivalence classes among the inadmissible workloads (§4.8).
    pub kinds_inadmissible: u32,
    /// Total requests of the waiting workloads, by resource, in base units.
    pub pending_requests: BTreeMap<Name, i64>,
    /// Parent cohort.
    pub cohort: Option<Name>,
    /// Root cohort of the tree.
    pub root: Option<Name>,
    /// The queue's quotas, in the order of its resource groups, flavors and resources.
    pub quotas: Vec<QuotaFigures>,
}

/// Quota of one flavor and resource as configured, in base units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaFigures {
    /// Flavor.
    pub flavor: Name,
    /// Resource.
    pub resource: Name,
    /// Nominal quota.
    pub nominal: Amount,
    /// Maximum amount that it may borrow; `None`: no limit.
    pub borrowing_limit: Option<Amount>,
    /// Maximum amount that it lends; `None`: all of its nominal quota.
    pub lending_limit: Option<Amount>,
}

/// Figures of a cohort that metrics show.
#[derive(Debug, Clone, PartialEq)]
pub struct CohortFigures {
    /// Name of the cohort.
    pub name: Name,
    /// Parent cohort.
    pub parent: Option<Name>,
    /// Root cohort of the tree; the cohort itself if it has no parent.
    pub root: Name,
    /// Weighted share of the cohort.
    pub weighted_share: WeightedShare,
    /// Number of admitted workloads in the queues below it.
    pub admitted: u32,
    /// Per flavor and resource, in name order: the cohort's quota, including the amounts that its
    /// members lend it, and the amount reserved by the queues below it.
    pub quotas: Vec<(Name, Name, Amount, i64)>,
}

/// Whether a ClusterQueue may admit workloads: its condition Active (§5.3).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueueReadiness {
    /// Everything that keeps it from admitting workloads. The first problem gives the condition's
    /// reason.
    pub problems: Vec<QueueProblem>,
}

/// Why a ClusterQueue admits no workloads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueProblem {
    /// The queue does not exist.
    NotFound,
    /// The queue is being deleted.
    Terminating,
    /// `spec.stopPolicy` stops it.
    Stopped,
    /// These flavors do not exist.
    FlavorsNotFound(Vec<Name>),
    /// These admission checks do not exist.
    ChecksNotFound(Vec<Name>),
    /// These admission checks are not active.
    ChecksInactive(Vec<Name>),
    /// The queue has several MultiKueue admission checks.
    SeveralMultiKueueChecks(Vec<Name>),
    /// The queue's MultiKueue admission check is for some flavors only.
    MultiKueueCheckPerFlavor(Vec<Name>),
    /// The queue has MultiKueue checks and ProvisioningRequest checks. The list has all checks of
    /// the queue.
    MultiKueueWithProvisioning(Vec<Name>),
    /// The topology of a flavor does not exist.
    TopologyNotFound {
        /// The topology.
        topology: Name,
        /// The flavor.
        flavor: Name,
    },
    /// The queue's cohorts form a cycle. Not part of the condition.
    CohortCycle,
    /// A problem that a recorded case prescribes.
    #[cfg(feature = "lab")]
    Prescribed {
        /// Reason of the condition.
        reason: &'static str,
        /// Message of the condition.
        message: String,
    },
}

impl QueueProblem {
    /// Reason of condition Active=False.
    pub fn reason(&self) -> &'static str {
        match self {
            QueueProblem::NotFound => "NotFound",
            QueueProblem::Terminating => "Terminating",
            QueueProblem::Stopped => "Stopped",
            QueueProblem::FlavorsNotFound(_) => "FlavorNotFound",
            QueueProblem::ChecksNotFound(_) => "AdmissionCheckNotFound",
            QueueProblem::ChecksInactive(_) => "AdmissionCheckInactive",
            QueueProblem::SeveralMultiKueueChecks(_) => "MultipleMultiKueueAdmissionChecks",
            QueueProblem::MultiKueueCheckPerFlavor(_) => "MultiKueueAdmissionCheckAppliedPerFlavor",
            QueueProblem::MultiKueueWithProvisioning(_) => "MultiKueueWithProvisioningRequest",
            QueueProblem::TopologyNotFound { .. } => "TopologyNotFound",
            QueueProblem::CohortCycle => "CohortCycle",
            #[cfg(feature = "lab")]
            QueueProblem::Prescribed { reason, .. } => reason,
        }
    }
}

impl QueueReadiness {
    /// True if the queue may admit workloads.
    pub fn is_active(&self) -> bool {
        self.problems.is_empty()
    }

    /// The condition's reason: `Ready`, or that of the first problem.
    pub fn reason(&self) -> &'static str {
        self.problems.first().map_or("Ready", QueueProblem::reason)
    }
}

/// Dominant resource share divided by weight (§10.3).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WeightedShare {
    /// The share, rounded up; `i64::MAX` if infinite.
    pub value: i64,
    /// Resource that determines the share, if anything is borrowed.
    pub dominant_resource: Option<Name>,
    /// True if any flavor and resource is above the node's own quota.
    pub borrowing: bool,
    /// The exact value; infinite if the weight is zero.
    pub precise: f64,
}

/// Figures of a LocalQueue's status.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LocalQueueStatus {
    /// Waiting workloads.
    pub pending: u32,
    /// Waiting workloads that are inadmissible until something changes.
    pub inadmissible: u32,
    /// Workloads that hold quota.
    pub reserving: u32,
    /// Workloads that are admitted.
    pub admitted: u32,
    /// Reserved amounts, in the order of the cluster queue's flavors.
    pub flavors_reservation: Vec<(Name, BTreeMap<Name, FlavorUsage>)>,
    /// Amounts that admitted workloads use, in the same order.
    pub flavors_usage: Vec<(Name, BTreeMap<Name, FlavorUsage>)>,
    /// Admission fair sharing: consumed resources in base units, and the time at which they were
    /// recorded (§16.5).
    pub consumed: Option<(BTreeMap<Name, f64>, Time)>,
    /// Admission fair sharing: the usage by which the local queue is ordered. It is consumption
    /// plus penalties, weighted and divided by the queue's weight. `None` without admission fair
    /// sharing, infinite for a weight of zero (§16.4).
    pub usage: Option<f64>,
}

/// Figures of a Cohort's status.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CohortStatus {
    /// Weighted share of the cohort.
    pub weighted_share: WeightedShare,
}

/// Position of a waiting workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePosition {
    /// The workload.
    pub workload: WorkloadKey,
    /// The workload's local queue.
    pub local_queue: Name,
    /// Effective priority.
    pub priority: i64,
    /// Position among all waiting workloads of the cluster queue, from 0.
    pub in_cluster_queue: u32,
    /// Position among the waiting workloads of its local queue, from 0.
    pub in_local_queue: u32,
    /// True if it is inadmissible until something changes, false if it is a candidate now.
    pub inadmissible: bool,
}

/// A workload that holds quota of a cluster queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaHolder {
    /// The workload.
    pub workload: WorkloadKey,
    /// The workload's local queue.
    pub local_queue: Name,
    /// Effective priority.
    pub priority: i64,
    /// Time since which it holds the quota; `None` if the object does not record that time.
    pub since: Option<Time>,
    /// True if it is admitted.
    pub admitted: bool,
    /// Reason of its eviction, if it is being evicted.
    pub evicted: Option<Name>,
    /// Flavor, resource and amount of the quota that it holds. Pods that no longer need their quota
    /// are not counted.
    pub holds: Vec<(Name, Name, i64)>,
}
