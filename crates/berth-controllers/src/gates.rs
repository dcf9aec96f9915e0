//! Feature gates by name, with Kueue's names, defaults and dependencies (main as of August 2026).
//!
//! The engine holds the gates its decisions depend on as typed fields; here every gate is known by its name, because
//! configuration files, admission logic and recorded cases speak of them that way.

use std::collections::BTreeMap;

/// One gate.
struct Gate {
    name: &'static str,
    default: bool,
    /// It is generally available and stays at its default.
    locked: bool,
    /// Gates that must be on for this one to be on.
    needs: &'static [&'static str],
}

impl Gate {
    const fn needs(mut self, needs: &'static [&'static str]) -> Self {
        self.needs = needs;
        self
    }
}

const fn on(name: &'static str) -> Gate {
    Gate { name, default: true, locked: false, needs: &[] }
}

const fn off(name: &'static str) -> Gate {
    Gate { name, default: false, locked: false, needs: &[] }
}

const fn locked(name: &'static str) -> Gate {
    Gate { name, default: true, locked: true, needs: &[] }
}

/// Every gate, in name order.
const GATES: &[Gate] = &[
    on("AdmissionFairSharing"),
    on("AdmissionGatedBy"),
    on("AssignQueueLabelsForPods"),
    on("CleanupProvisioningRequestsOnEviction"),
    off("ConcurrentAdmission"),
    off("CustomMetricLabels"),
    on("DeferRayServiceFinalizationForRedisCleanup"),
    off("DisableWaitForPodsReady"),
    on("ElasticJobsViaWorkloadSlices"),
    off("ElasticJobsViaWorkloadSlicesWithTAS").needs(&["ElasticJobsViaWorkloadSlices", "TopologyAwareScheduling"]),
    off("FailureRecoveryPolicy"),
    on("FairSharingPreemptWithinNominal"),
    on("FairSharingPrioritizeNonBorrowing"),
    off("FastQuotaReleaseInPodIntegration"),
    on("FinishOrphanedWorkloads"),
    on("FlavorFungibility"),
    on("FlavorFungibilityPreserveScanProgress").needs(&["FlavorFungibility"]),
    on("KueueDRAIntegration"),
    off("KueueDRAIntegrationConsumableCapacity").needs(&["KueueDRAIntegration"]),
    on("KueueDRAIntegrationExtendedResource").needs(&["KueueDRAIntegration"]),
    on("KueueDRAIntegrationPartitionableDevices").needs(&["KueueDRAIntegration"]),
    on("KueueDRARejectWorkloadsWhenDRADisabled"),
    on("LWSImmutableGroupSize"),
    on("LocalQueueMetrics"),
    locked("ManagedJobsNamespaceSelectorAlwaysRespected"),
    on("MetricForWorkloadCreationLatency"),
    on("MetricsForCohorts"),
    on("MultiKueue"),
    on("MultiKueueAdaptersForCustomJobs"),
    off("MultiKueueClusterProfile"),
    on("MultiKueueIncrementalDispatcherConfig"),
    on("MultiKueueIncrementalDispatcherRespectConfigOrder"),
    on("MultiKueueKubeConfigPathValidation"),
    off("MultiKueueManagerQuotaAutomation"),
    off("MultiKueueOrchestratedPreemption"),
    on("MultiKueueRemoteSpecSync"),
    on("PartialAdmission"),
    on("PodIntegrationValidateGroupOwner"),
    off("PrioritizePreemptorWorkloads"),
    off("PriorityBoost"),
    on("PrioritySortingWithinCohort"),
    on("QuotaCheckStrategy"),
    on("ReclaimablePods"),
    on("RecomputeAssignmentUponPreemptionTargetsOverlap"),
    off("RejectUpdatesToCQWithInvalidOnFlavors"),
    on("RemoveFinalizersWithStrictPatch"),
    off("SchedulerLibraryIntegration"),
    on("SchedulingEquivalenceHashing"),
    off("ShortWorkloadNames"),
    on("SkipAncestorCheckForDeletedWorkloads"),
    on("SkipReassignmentForPodOwnedWorkloads"),
    off("SparkApplicationIntegration"),
    on("TASAssignmentsEncodingByHostnamePrefix"),
    off("TASBalancedPlacement").needs(&["TopologyAwareScheduling"]),
    on("TASCacheNodeMatchResults"),
    on("TASCacheTopologyTree"),
    on("TASCachingRemainingResources"),
    on("TASFailedNodeReplacement").needs(&["TopologyAwareScheduling"]),
    on("TASFailedNodeReplacementFailFast").needs(&["TopologyAwareScheduling", "TASFailedNodeReplacement"]),
    on("TASHandleOverlappingFlavors").needs(&["TopologyAwareScheduling"]),
    on("TASMultiLayerTopology").needs(&["TopologyAwareScheduling"]),
    on("TASProfileMixed").needs(&["TopologyAwareScheduling"]),
    on("TASRecomputeAssignmentWithinSchedulingCycle").needs(&["TopologyAwareScheduling"]),
    off("TASReplaceNodeDueToNotReadyOverFixedTime").needs(&["TASFailedNodeReplacement"]),
    on("TASReplaceNodeOnNodeTaints").needs(&["TopologyAwareScheduling"]),
    on("TASReplaceNodeOnPodTermination").needs(&["TopologyAwareScheduling", "TASFailedNodeReplacement"]),
    off("TASRespectNodeAffinityPreferred").needs(&["TopologyAwareScheduling"]),
    on("TASValidateWorkloadSliceSize"),
    locked("TLSOptions"),
    on("TopologyAwareScheduling"),
    off("UnadmittedWorkloadsExplicitStatus").needs(&["UnadmittedWorkloadsObservability"]),
    on("UnadmittedWorkloadsObservability"),
    on("ValidateRayAndSparkJobUpdates"),
    on("VectorizedResourceRequests"),
    on("VisibilityOnDemand"),
    on("WorkloadIdentifierAnnotations"),
    on("WorkloadPriorityClassDefaulting"),
    off("WorkloadRequestUseMergePatch"),
    on("WorkloadValidateResourcesAreNonNegative"),
    on("WorkloadValidationForPodSetMetadata"),
];

/// The names of all gates.
#[cfg(test)]
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    GATES.iter().map(|gate| gate.name)
}

fn gate(name: &str) -> Option<&'static Gate> {
    GATES.binary_search_by(|gate| gate.name.cmp(name)).ok().map(|at| &GATES[at])
}

/// The state of all feature gates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    set: BTreeMap<String, bool>,
}

impl Gates {
    /// Gates as a configuration sets them. The error says, for every one of them, what is wrong: nobody knows it, it
    /// cannot be changed, or it is on without one it needs.
    pub fn from_map(map: &BTreeMap<String, bool>) -> Result<Self, Vec<String>> {
        let mut gates = Gates::default();
        let mut errors = Vec::new();
        for (name, enabled) in map {
            match gate(name) {
                None => errors.push(format!("unrecognized feature gate: {name}")),
                Some(gate) if gate.locked && *enabled != gate.default => errors.push(format!(
                    "cannot set feature gate {name} to {enabled}, feature is locked to {}",
                    gate.default
                )),
                Some(_) => gates.set(name, *enabled),
            }
        }
        for gate in GATES.iter().filter(|gate| gates.on(gate.name)) {
            let missing: Vec<&str> = gate.needs.iter().filter(|needed| !gates.on(needed)).copied().collect();
            if !missing.is_empty() {
                errors.push(format!(
                    "{} is enabled, but depends on features that are disabled: [{}]",
                    gate.name,
                    missing.join(" ")
                ));
            }
        }
        if errors.is_empty() { Ok(gates) } else { Err(errors) }
    }

    /// Is this gate on? Gates nobody set have their default; unknown ones are off.
    pub fn on(&self, name: &str) -> bool {
        self.set.get(name).copied().unwrap_or_else(|| gate(name).is_some_and(|gate| gate.default))
    }

    /// Sets a gate.
    pub fn set(&mut self, name: &str, on: bool) {
        self.set.insert(name.to_owned(), on);
    }

    /// The gates that were set, in name order.
    pub fn overrides(&self) -> impl Iterator<Item = (&str, bool)> {
        self.set.iter().map(|(name, on)| (name.as_str(), *on))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, bool)]) -> BTreeMap<String, bool> {
        entries.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect()
    }

    #[test]
    fn a_gate_has_its_default_until_it_is_set() {
        let mut gates = Gates::default();
        assert!(gates.on("PartialAdmission"));
        assert!(!gates.on("PriorityBoost"));
        gates.set("PriorityBoost", true);
        assert!(gates.on("PriorityBoost"));
    }

    #[test]
    fn gates_are_in_name_order_and_need_known_gates() {
        assert!(GATES.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(GATES.iter().flat_map(|gate| gate.needs).all(|needed| gate(needed).is_some()));
    }

    #[test]
    fn what_is_wrong_with_gates_is_said_by_name() {
        assert!(Gates::from_map(&map(&[("PriorityBoost", true)])).is_ok());
        let errors =
            Gates::from_map(&map(&[("FlavorFungibility", false), ("NoSuchGate", true), ("TLSOptions", false)]));
        assert_eq!(
            errors.unwrap_err(),
            [
                "unrecognized feature gate: NoSuchGate",
                "cannot set feature gate TLSOptions to false, feature is locked to true",
                "FlavorFungibilityPreserveScanProgress is enabled, but depends on features that are disabled: \
                 [FlavorFungibility]",
            ]
        );
    }
}
