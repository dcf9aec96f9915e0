//! Queues, cohorts, flavors and checks: the configuration that decisions depend on.

use std::collections::BTreeSet;

use super::{LabelSelector, Labels, Taint, Toleration};
use crate::amount::Amount;
use crate::ids::Name;

/// A ClusterQueue: quota, and the rules by which workloads share it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterQueue {
    /// Name.
    pub name: Name,
    /// Cohort that it belongs to.
    pub cohort: Option<Name>,
    /// Namespaces whose workloads may use it. `None` selects no namespace, an empty selector every
    /// namespace.
    pub namespace_selector: Option<LabelSelector>,
    /// Queueing strategy.
    pub strategy: QueueingStrategy,
    /// Quotas, in order of declaration.
    pub resource_groups: Vec<ResourceGroup>,
    /// Rules for choosing among several usable flavors.
    pub fungibility: FlavorFungibility,
    /// Workloads that its workloads may preempt.
    pub preemption: PreemptionPolicies,
    /// Whether it is stopped.
    pub stop_policy: StopPolicy,
    /// Fair sharing weight in thousandths (default 1000). With weight zero, any borrowing makes the
    /// share infinite.
    pub fair_weight_milli: i64,
    /// Admission checks that its workloads need, for all flavors or for some.
    pub checks: Vec<AdmissionCheckRule>,
    /// Usage-based fairness between its local queues (§16).
    pub admission_scope: Option<AdmissionScope>,
    /// Concurrent admission of variants, if configured (§23).
    pub concurrent_admission: Option<ConcurrentAdmissionPolicy>,
    /// True once it is being deleted.
    pub terminating: bool,
}

impl ClusterQueue {
    /// A queue with the API's defaults and no quota.
    pub fn new(name: impl Into<Name>) -> Self {
        ClusterQueue {
            name: name.into(),
            cohort: None,
            namespace_selector: Some(LabelSelector::default()),
            strategy: QueueingStrategy::BestEffortFifo,
            resource_groups: Vec::new(),
            fungibility: FlavorFungibility::default(),
            preemption: PreemptionPolicies::default(),
            stop_policy: StopPolicy::None,
            fair_weight_milli: 1000,
            checks: Vec::new(),
            admission_scope: None,
            concurrent_admission: None,
            terminating: false,
        }
    }
}

/// Whether a workload that does not fit blocks the workloads behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum QueueingStrategy {
    /// The head blocks every workload behind it.
    StrictFifo,
    /// A workload that does not fit becomes inadmissible, and later ones are tried.
    #[default]
    BestEffortFifo,
}

/// Resources that always get the same flavor, and the flavors in the order they are tried.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResourceGroup {
    /// Resources covered.
    pub resources: Vec<Name>,
    /// Flavors with a quota for each resource.
    pub flavors: Vec<FlavorQuotas>,
}

/// Quotas of one flavor.
#[derive(Debug, Clone, PartialEq)]
pub struct FlavorQuotas {
    /// Flavor name.
    pub flavor: Name,
    /// Resource and quota, in order of declaration.
    pub quotas: Vec<(Name, Quota)>,
}

/// The quota of one flavor and resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    /// Guaranteed amount.
    pub nominal: Amount,
    /// Maximum amount that may be borrowed from the cohort; `None`: no limit.
    pub borrowing_limit: Option<Amount>,
    /// Maximum part of the nominal amount that may be lent; `None`: all of it.
    pub lending_limit: Option<Amount>,
}

/// When the search through flavors stops (§8.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlavorFungibility {
    /// Whether the search stops at a flavor that fits by borrowing.
    pub when_can_borrow: FungibilityPolicy,
    /// Whether the search stops at a flavor that fits by preempting.
    pub when_can_preempt: FungibilityPolicy,
    /// Which flavor is preferred if the search did not stop.
    pub preference: FungibilityPreference,
}

impl Default for FlavorFungibility {
    fn default() -> Self {
        FlavorFungibility {
            when_can_borrow: FungibilityPolicy::MayStopSearch,
            when_can_preempt: FungibilityPolicy::TryNextFlavor,
            preference: FungibilityPreference::BorrowingOverPreemption,
        }
    }
}

/// Whether the search stops at a flavor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FungibilityPolicy {
    /// Take this flavor (v1beta1 spelled it `Borrow` or `Preempt`).
    MayStopSearch,
    /// Try the next flavor.
    TryNextFlavor,
}

/// Preference between two imperfect flavors (§8.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FungibilityPreference {
    /// Prefer borrowing to preempting.
    #[default]
    BorrowingOverPreemption,
    /// Prefer preempting to borrowing.
    PreemptionOverBorrowing,
}

/// Preemption rules for the workloads of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PreemptionPolicies {
    /// Among workloads of the same queue.
    pub within_cluster_queue: PreemptionPolicy,
    /// Among workloads of other queues of the cohort that borrow.
    pub reclaim_within_cohort: PreemptionPolicy,
    /// Whether preempting while borrowing is allowed.
    pub borrow_within_cohort: BorrowWithinCohort,
}

/// Which workloads are eligible victims (§9.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PreemptionPolicy {
    /// No workload.
    #[default]
    Never,
    /// Workloads of lower priority.
    LowerPriority,
    /// Workloads of lower priority, and newer workloads of equal priority.
    LowerOrNewerEqualPriority,
    /// All workloads.
    Any,
}

/// Whether a workload that would borrow may preempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BorrowWithinCohort {
    /// Not allowed.
    #[default]
    Never,
    /// Workloads of lower priority may be preempted, up to the threshold if there is one.
    LowerPriority {
        /// Highest priority that may be preempted.
        max_priority_threshold: Option<i64>,
    },
}

/// `spec.stopPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StopPolicy {
    /// It is not stopped.
    #[default]
    None,
    /// No new reservations.
    Hold,
    /// No new reservations, and admitted workloads are evicted.
    HoldAndDrain,
}

/// An admission check that workloads of a queue need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionCheckRule {
    /// Name of the AdmissionCheck.
    pub check: Name,
    /// Flavors that need the check; empty: all flavors.
    pub on_flavors: BTreeSet<Name>,
}

/// How local queues of one cluster queue share it over time (§16).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AdmissionScope {
    /// The local queue with the least usage goes first.
    UsageBased,
    /// Usage does not affect the order.
    NoFairSharing,
}

/// Concurrent admission of variants (§23).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConcurrentAdmissionPolicy {
    /// True for `RetainFirstAdmission`, false for `TryPreferredFlavors`.
    pub retain_first_admission: bool,
    /// Least favorable flavor from which a migration to a better one is still allowed.
    pub last_acceptable_flavor: Option<Name>,
}

/// A Cohort: quota shared by the queues and cohorts below it.
#[derive(Debug, Clone, PartialEq)]
pub struct Cohort {
    /// Name.
    pub name: Name,
    /// Parent cohort.
    pub parent: Option<Name>,
    /// Quotas of the cohort itself. The covered resources of the groups are not used.
    pub resource_groups: Vec<ResourceGroup>,
    /// Fair sharing weight in thousandths (default 1000).
    pub fair_weight_milli: i64,
}

impl Cohort {
    /// A root cohort without quota of its own.
    pub fn new(name: impl Into<Name>) -> Self {
        Cohort { name: name.into(), parent: None, resource_groups: Vec::new(), fair_weight_milli: 1000 }
    }
}

/// A LocalQueue: routes workloads of a namespace to a cluster queue.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalQueue {
    /// Namespace.
    pub namespace: Name,
    /// Name.
    pub name: Name,
    /// Cluster queue to which it routes.
    pub cluster_queue: Name,
    /// Whether it is stopped.
    pub stop_policy: StopPolicy,
    /// Admission fair sharing weight in thousandths (default 1000).
    pub fair_weight_milli: i64,
}

/// A ResourceFlavor: a kind of nodes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResourceFlavor {
    /// Name.
    pub name: Name,
    /// Labels of its nodes.
    pub node_labels: Labels,
    /// Taints of its nodes.
    pub node_taints: Vec<Taint>,
    /// Tolerations added to its workloads' pods.
    pub tolerations: Vec<Toleration>,
    /// Topology of its nodes; `None` without topology-aware scheduling.
    pub topology: Option<Name>,
    /// Why and until when the flavor gets no further workloads; `None` if it does not cool down.
    pub cool_down: Option<Name>,
}

/// The fields of an AdmissionCheck that decisions depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionCheck {
    /// Name.
    pub name: Name,
    /// Condition Active.
    pub active: bool,
    /// Name of the check's controller. `kueue.x-k8s.io/provisioning-request` delays topology
    /// assignment (§14.3). `kueue.x-k8s.io/multikueue` changes the rules for a queue's readiness
    /// (§5.3).
    pub controller: Name,
}
