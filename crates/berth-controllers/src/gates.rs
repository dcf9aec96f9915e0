//! Feature gates by name, with Kueue's names and defaults (main as of August 2026).
//!
//! The engine holds the gates its decisions depend on as typed fields; here every gate is known by its name, because
//! configuration files, admission logic and recorded cases speak of them that way.

use std::collections::BTreeMap;

/// Gates that are on unless the configuration says otherwise, in name order.
const ON_BY_DEFAULT: &[&str] = &[
    "AdmissionFairSharing",
    "AdmissionGatedBy",
    "AssignQueueLabelsForPods",
    "CleanupProvisioningRequestsOnEviction",
    "ElasticJobsViaWorkloadSlices",
    "FairSharingPreemptWithinNominal",
    "FairSharingPrioritizeNonBorrowing",
    "FinishOrphanedWorkloads",
    "FlavorFungibility",
    "FlavorFungibilityPreserveScanProgress",
    "KueueDRAIntegration",
    "KueueDRAIntegrationExtendedResource",
    "KueueDRAIntegrationPartitionableDevices",
    "KueueDRARejectWorkloadsWhenDRADisabled",
    "LocalQueueMetrics",
    "ManagedJobsNamespaceSelectorAlwaysRespected",
    "MetricsForCohorts",
    "MultiKueue",
    "PartialAdmission",
    "PodIntegrationValidateGroupOwner",
    "PrioritySortingWithinCohort",
    "QuotaCheckStrategy",
    "ReclaimablePods",
    "RecomputeAssignmentUponPreemptionTargetsOverlap",
    "RemoveFinalizersWithStrictPatch",
    "SchedulingEquivalenceHashing",
    "SkipAncestorCheckForDeletedWorkloads",
    "SkipReassignmentForPodOwnedWorkloads",
    "TASAssignmentsEncodingByHostnamePrefix",
    "TASFailedNodeReplacement",
    "TASFailedNodeReplacementFailFast",
    "TASHandleOverlappingFlavors",
    "TASMultiLayerTopology",
    "TASProfileMixed",
    "TASRecomputeAssignmentWithinSchedulingCycle",
    "TASReplaceNodeOnNodeTaints",
    "TASReplaceNodeOnPodTermination",
    "TASValidateWorkloadSliceSize",
    "TopologyAwareScheduling",
    "UnadmittedWorkloadsObservability",
    "VisibilityOnDemand",
    "WorkloadIdentifierAnnotations",
    "WorkloadPriorityClassDefaulting",
    "WorkloadValidateResourcesAreNonNegative",
    "WorkloadValidationForPodSetMetadata",
];

/// The state of all feature gates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    set: BTreeMap<String, bool>,
}

impl Gates {
    /// Is this gate on? Gates nobody set have their default; unknown ones are off.
    pub fn on(&self, name: &str) -> bool {
        self.set.get(name).copied().unwrap_or_else(|| ON_BY_DEFAULT.contains(&name))
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

    #[test]
    fn a_gate_has_its_default_until_it_is_set() {
        let mut gates = Gates::default();
        assert!(gates.on("PartialAdmission"));
        assert!(!gates.on("PriorityBoost"));
        gates.set("PriorityBoost", true);
        assert!(gates.on("PriorityBoost"));
    }
}
