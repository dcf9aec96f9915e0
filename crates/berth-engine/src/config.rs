//! Configuration of the engine: feature gates, and the parts of Kueue's configuration that
//! decisions depend on.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::Name;

/// Configuration of an engine, fixed for its lifetime.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Feature gates.
    pub gates: FeatureGates,
    /// Fair sharing between cluster queues (§6.2, §10). `None`: off.
    pub fair_sharing: Option<FairSharing>,
    /// Usage-based fair sharing between local queues (§16). `None`: off.
    pub admission_fair_sharing: Option<AdmissionFairSharing>,
    /// Handling of requested resources that no resource group covers (§2.7).
    pub quota_check_strategy: QuotaCheckStrategy,
    /// Timestamp by which a workload that was evicted for `PodsReadyTimeout` is ordered in its
    /// queue (§3.2).
    pub requeuing_timestamp: RequeuingTimestamp,
    /// `waitForPodsReady.blockAdmission`: admit nothing while an admitted workload's pods are not
    /// ready (§20.4).
    pub block_admission_on_pods_ready: bool,
    /// Reports why a new workload waits whose class is inadmissible (§4.8), also without the gate
    /// UnadmittedWorkloadsExplicitStatus. Kueue leaves such a workload without a condition, so this
    /// is off where its recorded decisions are repeated.
    pub report_represented: bool,
    /// How long flush requests of one cohort tree are collected before they take effect (§4.7).
    pub flush_delay: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            gates: FeatureGates::default(),
            fair_sharing: None,
            admission_fair_sharing: None,
            quota_check_strategy: QuotaCheckStrategy::BlockUndeclared,
            requeuing_timestamp: RequeuingTimestamp::Eviction,
            block_admission_on_pods_ready: false,
            report_represented: false,
            flush_delay: Duration::from_secs(1),
        }
    }
}

/// Fair sharing between cluster queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FairSharing {
    /// Rules of which a preemption must satisfy one; they are tried in this order.
    pub preemption_strategies: Vec<PreemptionStrategy>,
}

impl Default for FairSharing {
    fn default() -> Self {
        FairSharing {
            preemption_strategies: vec![
                PreemptionStrategy::LessThanOrEqualToFinalShare,
                PreemptionStrategy::LessThanInitialShare,
            ],
        }
    }
}

/// Condition under which fair sharing allows a preemption (§10.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PreemptionStrategy {
    /// The preemptor's share is at most the victim's share after losing the workload.
    LessThanOrEqualToFinalShare,
    /// The preemptor's share is below the victim's share before losing the workload.
    LessThanInitialShare,
}

/// Usage-based fair sharing between local queues.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmissionFairSharing {
    /// Time after which half of the recorded usage is forgotten. Zero: all usage is forgotten at
    /// once.
    pub usage_half_life: Duration,
    /// How often usage is recorded.
    pub usage_sampling_interval: Duration,
    /// Weight of each resource, in thousandths; 1000 if not listed.
    pub resource_weights_milli: BTreeMap<Name, i64>,
}

/// Handling of a requested resource that no resource group of the queue covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum QuotaCheckStrategy {
    /// The workload does not fit.
    #[default]
    BlockUndeclared,
    /// The resource is not counted.
    IgnoreUndeclared,
}

/// `waitForPodsReady.requeuingStrategy.timestamp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RequeuingTimestamp {
    /// Time of the eviction.
    #[default]
    Eviction,
    /// Creation time of the workload.
    Creation,
}

macro_rules! feature_gates {
    ($($(#[$doc:meta])* $field:ident $name:literal = $default:literal;)*) => {
        /// Feature gates that decisions depend on, with Kueue's names and defaults (§24).
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct FeatureGates {
            $(
                $(#[$doc])*
                #[doc = concat!("\n\nGate `", $name, "`.")]
                pub $field: bool,
            )*
        }

        impl Default for FeatureGates {
            fn default() -> Self {
                FeatureGates { $($field: $default,)* }
            }
        }
    };
}

feature_gates! {
    /// Admits a workload with fewer pods, down to `minCount`, when its full count does not fit
    /// (§12).
    partial_admission "PartialAdmission" = true;
    /// Lets a queue's `flavorFungibility` decide whether the search continues with the next flavor
    /// (§8.10).
    flavor_fungibility "FlavorFungibility" = true;
    /// Keeps the progress of the search through a workload's flavors from one cycle to the next,
    /// even if quota changed in between (§8.12).
    flavor_fungibility_preserve_scan_progress "FlavorFungibilityPreserveScanProgress" = true;
    /// Orders the entries of a cycle by priority before queue-order timestamp (§3.2, §6.1).
    priority_sorting_within_cohort "PrioritySortingWithinCohort" = true;
    /// Lets a queue that stays within its own quota preempt without comparing shares (§10.7).
    fair_sharing_preempt_within_nominal "FairSharingPreemptWithinNominal" = true;
    /// Orders entries that borrow none of their requests before entries that borrow, regardless of
    /// their shares (§6.2).
    fair_sharing_prioritize_non_borrowing "FairSharingPrioritizeNonBorrowing" = true;
    /// Computes an entry's assignment again if an earlier entry of the cycle claimed one of its
    /// victims (§5.6).
    recompute_assignment_upon_preemption_targets_overlap "RecomputeAssignmentUponPreemptionTargetsOverlap" = true;
    /// Orders entries that wait for their own preemptions before the other entries of their cycle
    /// (§6.1, §6.2).
    prioritize_preemptor_workloads "PrioritizePreemptorWorkloads" = false;
    /// Adds the priority-boost annotation to a workload's priority (§3.1).
    priority_boost "PriorityBoost" = false;
    /// Places the pods of workloads in topology domains (§14).
    topology_aware_scheduling "TopologyAwareScheduling" = true;
    /// Takes the domains with the least free capacity first, for pods that do not request a level
    /// (§14.6).
    tas_profile_mixed "TASProfileMixed" = true;
    /// Spreads pods that prefer a level evenly over its domains (§14.8).
    tas_balanced_placement "TASBalancedPlacement" = false;
    /// Prefers nodes that match the pods' preferred node affinity (§14.5).
    tas_respect_node_affinity_preferred "TASRespectNodeAffinityPreferred" = false;
    /// Allows several layers of slices in one topology request (§14.9).
    tas_multi_layer_topology "TASMultiLayerTopology" = true;
    /// Counts the usage of a node that several flavors share in all of them (§14.1).
    tas_handle_overlapping_flavors "TASHandleOverlappingFlavors" = true;
    /// Computes an entry's assignment again if its quota is still free but an earlier entry of the
    /// cycle took its domains (§5.6).
    tas_recompute_assignment_within_scheduling_cycle "TASRecomputeAssignmentWithinSchedulingCycle" = true;
    /// Replaces the failed node of an admitted workload instead of evicting the workload (§15).
    tas_failed_node_replacement "TASFailedNodeReplacement" = true;
    /// Evicts a workload whose failed node cannot be replaced at the first try (§5.6).
    tas_failed_node_replacement_fail_fast "TASFailedNodeReplacementFailFast" = true;
    /// Keeps a workload that a single Pod owns on its nodes, even if they fail (§15.5).
    skip_reassignment_for_pod_owned_workloads "SkipReassignmentForPodOwnedWorkloads" = true;
    /// Lets elastic jobs grow and shrink by workload slices (§13).
    elastic_jobs_via_workload_slices "ElasticJobsViaWorkloadSlices" = true;
    /// Lets elastic jobs use topology-aware scheduling (§13.5).
    elastic_jobs_via_workload_slices_with_tas "ElasticJobsViaWorkloadSlicesWithTAS" = false;
    /// Orders local queues of one cluster queue by their usage (§16).
    admission_fair_sharing "AdmissionFairSharing" = true;
    /// Returns the quota of pods that no longer need it (`status.reclaimablePods`, §2.3).
    reclaimable_pods "ReclaimablePods" = true;
    /// Makes all equivalent workloads inadmissible when one of them does not fit (§4.8).
    scheduling_equivalence_hashing "SchedulingEquivalenceHashing" = true;
    /// Allows a configured [`QuotaCheckStrategy`] other than the default (§2.7).
    quota_check_strategy "QuotaCheckStrategy" = true;
    /// Keeps workloads with an admission gate out of the queues (§4.1).
    admission_gated_by "AdmissionGatedBy" = true;
    /// Gives unadmitted workloads a specific reason in their conditions (§8.13, §22).
    unadmitted_workloads_observability "UnadmittedWorkloadsObservability" = true;
    /// Reports at once why a new workload waits whose class is inadmissible (§4.8).
    unadmitted_workloads_explicit_status "UnadmittedWorkloadsExplicitStatus" = false;
    /// Queues one variant of a workload for each flavor (§23).
    concurrent_admission "ConcurrentAdmission" = false;
    /// Honours the preemption gate of a workload: while the gate is closed, the workload must not
    /// preempt (§5.6).
    multikueue_orchestrated_preemption "MultiKueueOrchestratedPreemption" = false;
}
