//! What the engine may do and how: feature gates and the parts of Kueue's configuration that decisions depend on.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::Name;

/// Configuration of an engine, fixed for its life.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Feature gates.
    pub gates: FeatureGates,
    /// Fair sharing between cluster queues (§6.2, §10); off when absent.
    pub fair_sharing: Option<FairSharing>,
    /// Usage-based fair sharing between local queues (§16); off when absent.
    pub admission_fair_sharing: Option<AdmissionFairSharing>,
    /// What to do with requested resources no quota covers (§2.7).
    pub quota_check_strategy: QuotaCheckStrategy,
    /// Which time a workload evicted for `PodsReadyTimeout` queues by (§3.2).
    pub requeuing_timestamp: RequeuingTimestamp,
    /// `waitForPodsReady.blockAdmission`: admit nothing while an admitted workload's pods are not ready (§20.4).
    pub block_admission_on_pods_ready: bool,
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
            flush_delay: Duration::from_secs(1),
        }
    }
}

/// Fair sharing between cluster queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FairSharing {
    /// Rules a preemption must satisfy, tried in order.
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

/// When fair sharing allows a preemption (§10.7).
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
    /// Time after which half of the recorded usage is forgotten; zero: all of it, at once.
    pub usage_half_life: Duration,
    /// How often usage is recorded.
    pub usage_sampling_interval: Duration,
    /// Weight of each resource, in thousandths of 1; 1000 when not listed.
    pub resource_weights_milli: BTreeMap<Name, i64>,
}

/// What happens to a requested resource that no resource group of the queue covers.
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
    /// When it was evicted.
    #[default]
    Eviction,
    /// When it was created.
    Creation,
}

macro_rules! feature_gates {
    ($($(#[$doc:meta])* $field:ident $name:literal = $default:literal;)*) => {
        /// Feature gates decisions depend on, with Kueue's names and defaults (§24).
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct FeatureGates {
            $($(#[$doc])* pub $field: bool,)*
        }

        impl Default for FeatureGates {
            fn default() -> Self {
                FeatureGates { $($field: $default,)* }
            }
        }

        impl FeatureGates {
            /// Every gate's upstream name, in order of declaration.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            /// Sets a gate by its upstream name. False if the engine knows no such gate.
            pub fn set(&mut self, name: &str, enabled: bool) -> bool {
                match name {
                    $($name => self.$field = enabled,)*
                    _ => return false,
                }
                true
            }

            /// The state of a gate by its upstream name, if the engine knows it.
            pub fn get(&self, name: &str) -> Option<bool> {
                match name {
                    $($name => Some(self.$field),)*
                    _ => None,
                }
            }
        }
    };
}

feature_gates! {
    /// Admit fewer pods, down to `minCount`, when all of them do not fit (§12).
    partial_admission "PartialAdmission" = true;
    /// `flavorFungibility` decides when the scan of flavors stops (§8.10); off: the first that fits, else the best.
    flavor_fungibility "FlavorFungibility" = true;
    /// Keep scan progress across cycles, even when the queue's quota changed meanwhile (§8.12).
    flavor_fungibility_preserve_scan_progress "FlavorFungibilityPreserveScanProgress" = true;
    /// Order the entries of a cycle by priority before age (§6.1); off changes timestamps too (§3.2).
    priority_sorting_within_cohort "PrioritySortingWithinCohort" = true;
    /// A queue within its nominal quota preempts borrowers regardless of shares (§10.7).
    fair_sharing_preempt_within_nominal "FairSharingPreemptWithinNominal" = true;
    /// In the tournament, a child that does not borrow goes first (§6.2).
    fair_sharing_prioritize_non_borrowing "FairSharingPrioritizeNonBorrowing" = true;
    /// Recompute an entry whose victims an earlier entry of the cycle claimed (§5.6 step 1).
    recompute_assignment_upon_preemption_targets_overlap "RecomputeAssignmentUponPreemptionTargetsOverlap" = true;
    /// A workload that waits for its preemptions goes first in a cycle (§6.1, §6.2).
    prioritize_preemptor_workloads "PrioritizePreemptorWorkloads" = false;
    /// Add annotation `priority-boost` to the priority (§3.1).
    priority_boost "PriorityBoost" = false;
    /// Place pods on topology domains (§14).
    topology_aware_scheduling "TopologyAwareScheduling" = true;
    /// Place unconstrained pod sets by LeastFreeCapacity instead of BestFit (§14.6).
    tas_profile_mixed "TASProfileMixed" = true;
    /// Spread `preferred` pod sets evenly over domains (§14.8).
    tas_balanced_placement "TASBalancedPlacement" = false;
    /// Score domains by preferred node affinity (§14.5).
    tas_respect_node_affinity_preferred "TASRespectNodeAffinityPreferred" = false;
    /// Permit slices within slices, up to three layers (§14.9).
    tas_multi_layer_topology "TASMultiLayerTopology" = true;
    /// Count a node's usage over all flavors that contain the node (§14.1).
    tas_handle_overlapping_flavors "TASHandleOverlappingFlavors" = true;
    /// Place an entry anew when earlier entries of the cycle took its domains (§5.6 step 1).
    tas_recompute_assignment_within_scheduling_cycle "TASRecomputeAssignmentWithinSchedulingCycle" = true;
    /// Replace a failed node of a running workload (§15).
    tas_failed_node_replacement "TASFailedNodeReplacement" = true;
    /// Evict a workload whose failed node has no replacement, instead of retrying (§5.6 step 2).
    tas_failed_node_replacement_fail_fast "TASFailedNodeReplacementFailFast" = true;
    /// Keep the nodes of workloads that one Pod owns (§15.5).
    skip_reassignment_for_pod_owned_workloads "SkipReassignmentForPodOwnedWorkloads" = true;
    /// Jobs may change their size while they run (§13).
    elastic_jobs_via_workload_slices "ElasticJobsViaWorkloadSlices" = true;
    /// Elastic jobs may be placed by topology (§13.5).
    elastic_jobs_via_workload_slices_with_tas "ElasticJobsViaWorkloadSlicesWithTAS" = false;
    /// Order local queues of a cluster queue by their usage over time (§16).
    admission_fair_sharing "AdmissionFairSharing" = true;
    /// Pods that ended for good return their quota (§2.3).
    reclaimable_pods "ReclaimablePods" = true;
    /// One failure makes all equivalent workloads of a queue inadmissible (§4.8).
    scheduling_equivalence_hashing "SchedulingEquivalenceHashing" = true;
    /// Honour `resources.quotaCheckStrategy` for undeclared resources (§2.7).
    quota_check_strategy "QuotaCheckStrategy" = true;
    /// Annotation `admission-gated-by` keeps a workload from its queue (§4.1).
    admission_gated_by "AdmissionGatedBy" = true;
    /// Granular reasons of QuotaReserved=False (§8.13, §22).
    unadmitted_workloads_observability "UnadmittedWorkloadsObservability" = true;
    /// A workload may wait as one variant per flavor (§23).
    concurrent_admission "ConcurrentAdmission" = false;
    /// Preemption gates are honoured for work on several clusters too (§5.6 step 5).
    multikueue_orchestrated_preemption "MultiKueueOrchestratedPreemption" = false;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_set_by_their_upstream_names() {
        let mut gates = FeatureGates::default();
        assert_eq!(gates.get("PartialAdmission"), Some(true));
        assert!(gates.set("PartialAdmission", false));
        assert!(!gates.partial_admission);
        assert!(!gates.set("NoSuchGate", true));
        assert!(FeatureGates::NAMES.iter().all(|name| gates.get(name).is_some()));
    }
}
