//! Feature gates: Kueue's names, defaults and dependencies (main as of August 2026), and what Berth
//! does with each.
//!
//! Product code names a gate by its variant of [`Gate`], so a misspelt gate does not compile. Names
//! are strings at the edges only: in configuration files, messages and recorded cases. The engine
//! holds the gates its decisions depend on as fields of its own configuration;
//! [`Config::engine`](crate::Config::engine) fills them from here.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// How mature Kueue declares a gate to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Off by default.
    Alpha,
    /// On by default, with exceptions.
    Beta,
    /// Generally available: Kueue locks the gate at its default.
    Stable,
    /// Kept to restore earlier behaviour for a while.
    Deprecated,
}

/// What Berth does with a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Either setting has the effect it has in Kueue.
    Full,
    /// Berth lacks the feature, regardless of the gate's default: switching it on is rejected.
    /// MultiKueue's gates still affect some defaults and conditions that recorded cases cover, but
    /// Berth dispatches no workloads.
    Missing,
    /// Berth always behaves as with the gate on: switching it off is rejected.
    Always,
    /// The gate concerns Kueue's internals (a cache, an index, the kind of patch): the outcome is
    /// the same with and without it.
    Inside,
}

/// Properties of a gate.
struct Row {
    name: &'static str,
    stage: Stage,
    since: &'static str,
    default: bool,
    support: Support,
    needs: &'static [Gate],
}

macro_rules! gates {
    (@default on) => { true };
    (@default off) => { false };
    ($($name:ident: $stage:ident $since:literal, $default:ident, $support:ident $(, needs $($needs:ident)+)?;)+) => {
        /// A feature gate of Kueue. Variants are in name order.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Gate {
            $(
                #[doc = concat!("Gate `", stringify!($name), "`.")]
                $name,
            )+
        }

        /// The rows of all gates, each at its gate's position.
        const ROWS: &[Row] = &[$(Row {
            name: stringify!($name),
            stage: Stage::$stage,
            since: $since,
            default: gates!(@default $default),
            support: Support::$support,
            needs: &[$($(Gate::$needs),+)?],
        },)+];

        impl Gate {
            /// Every gate, in name order.
            pub const ALL: &'static [Gate] = &[$(Gate::$name,)+];
        }
    };
}

// Each row has a gate, its stage, the Kueue version since which it has this stage and default, its
// default, what Berth does with it, and the gates that must be on for it to be on.
gates! {
    AdmissionFairSharing: Beta "0.15", on, Full;
    AdmissionGatedBy: Beta "0.19", on, Full;
    AssignQueueLabelsForPods: Beta "0.17", on, Full;
    CleanupProvisioningRequestsOnEviction: Beta "0.19", on, Full;
    ConcurrentAdmission: Alpha "0.18", off, Full;
    CustomMetricLabels: Alpha "0.17", off, Full;
    DeferRayServiceFinalizationForRedisCleanup: Beta "0.19", on, Full;
    DisableWaitForPodsReady: Alpha "0.19", off, Full;
    ElasticJobsViaWorkloadSlices: Beta "0.18", on, Full;
    ElasticJobsViaWorkloadSlicesWithTAS: Alpha "0.17", off, Full, needs ElasticJobsViaWorkloadSlices TopologyAwareScheduling;
    FailureRecoveryPolicy: Alpha "0.15", off, Full;
    FairSharingPreemptWithinNominal: Beta "0.17", on, Full;
    FairSharingPrioritizeNonBorrowing: Beta "0.17", on, Full;
    FastQuotaReleaseInPodIntegration: Alpha "0.17", off, Full;
    FinishOrphanedWorkloads: Beta "0.18", on, Full;
    FlavorFungibility: Beta "0.5", on, Full;
    FlavorFungibilityPreserveScanProgress: Beta "0.20", on, Full, needs FlavorFungibility;
    KueueDRAIntegration: Beta "0.18", on, Full;
    KueueDRAIntegrationConsumableCapacity: Alpha "0.19", off, Full, needs KueueDRAIntegration;
    KueueDRAIntegrationExtendedResource: Beta "0.19", on, Full, needs KueueDRAIntegration;
    KueueDRAIntegrationPartitionableDevices: Beta "0.19", on, Full, needs KueueDRAIntegration;
    KueueDRARejectWorkloadsWhenDRADisabled: Beta "0.18", on, Full;
    LWSImmutableGroupSize: Beta "0.20", on, Full;
    LocalQueueMetrics: Beta "0.17", on, Full;
    ManagedJobsNamespaceSelectorAlwaysRespected: Stable "0.19", on, Always;
    MetricForWorkloadCreationLatency: Beta "0.18", on, Full;
    MetricsForCohorts: Beta "0.18", on, Full;
    MultiKueue: Beta "0.9", on, Missing;
    MultiKueueAdaptersForCustomJobs: Beta "0.15", on, Missing;
    MultiKueueClusterProfile: Alpha "0.15", off, Missing;
    MultiKueueIncrementalDispatcherConfig: Beta "0.19", on, Missing;
    MultiKueueIncrementalDispatcherRespectConfigOrder: Beta "0.19", on, Missing;
    MultiKueueKubeConfigPathValidation: Beta "0.20", on, Missing;
    MultiKueueManagerQuotaAutomation: Alpha "0.18", off, Missing;
    MultiKueueOrchestratedPreemption: Alpha "0.17", off, Full;
    MultiKueueRemoteSpecSync: Beta "0.20", on, Missing;
    PartialAdmission: Beta "0.5", on, Full;
    PodIntegrationValidateGroupOwner: Beta "0.18", on, Always;
    PrioritizePreemptorWorkloads: Alpha "0.20", off, Full;
    PriorityBoost: Alpha "0.17", off, Full;
    PrioritySortingWithinCohort: Beta "0.6", on, Full;
    QuotaCheckStrategy: Beta "0.19", on, Full;
    ReclaimablePods: Beta "0.15", on, Full;
    RecomputeAssignmentUponPreemptionTargetsOverlap: Beta "0.20", on, Full;
    RejectUpdatesToCQWithInvalidOnFlavors: Alpha "0.18", off, Full;
    RemoveFinalizersWithStrictPatch: Beta "0.17", on, Always;
    SchedulerLibraryIntegration: Alpha "0.19", off, Missing;
    SchedulingEquivalenceHashing: Beta "0.18", on, Full;
    ShortWorkloadNames: Alpha "0.17", off, Full;
    SkipAncestorCheckForDeletedWorkloads: Beta "0.20", on, Full;
    SkipReassignmentForPodOwnedWorkloads: Beta "0.19", on, Full;
    SparkApplicationIntegration: Alpha "0.17", off, Full;
    TASAssignmentsEncodingByHostnamePrefix: Beta "0.19", on, Full;
    TASBalancedPlacement: Alpha "0.15", off, Full, needs TopologyAwareScheduling;
    TASCacheNodeMatchResults: Beta "0.19", on, Inside;
    TASCacheTopologyTree: Beta "0.20", on, Inside;
    TASCachingRemainingResources: Beta "0.19", on, Inside;
    TASFailedNodeReplacement: Beta "0.14", on, Full, needs TopologyAwareScheduling;
    TASFailedNodeReplacementFailFast: Beta "0.14", on, Full, needs TopologyAwareScheduling TASFailedNodeReplacement;
    TASHandleOverlappingFlavors: Beta "0.18", on, Full, needs TopologyAwareScheduling;
    TASMultiLayerTopology: Beta "0.19", on, Full, needs TopologyAwareScheduling;
    TASProfileMixed: Beta "0.15", on, Full, needs TopologyAwareScheduling;
    TASRecomputeAssignmentWithinSchedulingCycle: Beta "0.19", on, Full, needs TopologyAwareScheduling;
    TASReplaceNodeDueToNotReadyOverFixedTime: Deprecated "0.19", off, Full, needs TASFailedNodeReplacement;
    TASReplaceNodeOnNodeTaints: Beta "0.17", on, Full, needs TopologyAwareScheduling;
    TASReplaceNodeOnPodTermination: Beta "0.14", on, Full, needs TopologyAwareScheduling TASFailedNodeReplacement;
    TASRespectNodeAffinityPreferred: Alpha "0.18", off, Full, needs TopologyAwareScheduling;
    TASValidateWorkloadSliceSize: Beta "0.20", on, Full;
    TLSOptions: Stable "0.20", on, Always;
    TopologyAwareScheduling: Beta "0.14", on, Full;
    UnadmittedWorkloadsExplicitStatus: Beta "0.19", off, Full, needs UnadmittedWorkloadsObservability;
    UnadmittedWorkloadsObservability: Beta "0.19", on, Full;
    ValidateRayAndSparkJobUpdates: Beta "0.18", on, Full;
    VectorizedResourceRequests: Beta "0.19", on, Inside;
    VisibilityOnDemand: Beta "0.9", on, Always;
    WorkloadIdentifierAnnotations: Beta "0.18", on, Full;
    WorkloadPriorityClassDefaulting: Beta "0.20", on, Full;
    WorkloadRequestUseMergePatch: Alpha "0.14", off, Inside;
    WorkloadValidateResourcesAreNonNegative: Beta "0.20", on, Full;
    WorkloadValidationForPodSetMetadata: Beta "0.20", on, Full;
}

impl Gate {
    /// The gate of this name, if Kueue has one.
    pub fn named(name: &str) -> Option<Gate> {
        ROWS.binary_search_by(|row| row.name.cmp(name)).ok().map(|at| Gate::ALL[at])
    }

    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Name in configuration files.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Maturity in Kueue.
    pub fn stage(self) -> Stage {
        self.row().stage
    }

    /// Kueue version since which it has its stage and default.
    pub fn since(self) -> &'static str {
        self.row().since
    }

    /// State of a gate that is not set.
    pub fn default_state(self) -> bool {
        self.row().default
    }

    /// True if Kueue locks it at its default.
    pub fn is_locked(self) -> bool {
        self.stage() == Stage::Stable
    }

    /// The gates for which this name stands, if it is the name of a stage: `AllAlpha` or `AllBeta`.
    pub fn of_stage(name: &str) -> Option<impl Iterator<Item = Gate>> {
        let stage = match name {
            "AllAlpha" => Stage::Alpha,
            "AllBeta" => Stage::Beta,
            _ => return None,
        };
        Some(Gate::ALL.iter().copied().filter(move |gate| gate.stage() == stage))
    }

    /// Gates that this gate requires to be on.
    pub fn needs(self) -> &'static [Gate] {
        self.row().needs
    }

    /// Support in Berth.
    pub fn support(self) -> Support {
        self.row().support
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The state of all feature gates: those that were set, the others at their defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, bool>", into = "BTreeMap<String, bool>")]
pub struct Gates {
    set: BTreeMap<Gate, bool>,
}

impl Gates {
    /// Gates that a configuration sets, by name. `AllAlpha` and `AllBeta` set the gates of a stage
    /// that the configuration does not name. The error lists every problem: unknown names, locked
    /// gates that are changed, and gates that are on without one they need.
    pub fn from_map(map: &BTreeMap<String, bool>) -> Result<Self, Vec<String>> {
        let mut gates = Gates::default();
        let mut errors = Vec::new();
        for (stage, enabled) in map {
            Gate::of_stage(stage).into_iter().flatten().for_each(|gate| gates.set(gate, *enabled));
        }
        for (name, enabled) in map.iter().filter(|(name, _)| Gate::of_stage(name).is_none()) {
            match Gate::named(name) {
                None => errors.push(unrecognized(name)),
                Some(gate) if gate.is_locked() && *enabled != gate.default_state() => errors.push(format!(
                    "cannot set feature gate {gate} to {enabled}, feature is locked to {}",
                    gate.default_state()
                )),
                Some(gate) => gates.set(gate, *enabled),
            }
        }
        for gate in Gate::ALL.iter().filter(|gate| gates.on(**gate)) {
            let missing = gate.needs().iter().filter(|needed| !gates.on(**needed));
            let missing: Vec<&str> = missing.map(|needed| needed.name()).collect();
            if !missing.is_empty() {
                errors.push(format!(
                    "{gate} is enabled, but depends on features that are disabled: [{}]",
                    missing.join(" ")
                ));
            }
        }
        if errors.is_empty() { Ok(gates) } else { Err(errors) }
    }

    /// True if a gate is on, by its setting or by default.
    pub fn on(&self, gate: Gate) -> bool {
        self.set.get(&gate).copied().unwrap_or_else(|| gate.default_state())
    }

    /// The gates that were set, by name or by stage, and their states.
    pub fn all_set(&self) -> impl Iterator<Item = (Gate, bool)> {
        self.set.iter().map(|(gate, on)| (*gate, *on))
    }

    /// Sets a gate.
    pub fn set(&mut self, gate: Gate, on: bool) {
        self.set.insert(gate, on);
    }

    /// These gates with `gate` set.
    #[must_use]
    pub fn with(mut self, gate: Gate, on: bool) -> Self {
        self.set(gate, on);
        self
    }
}

fn unrecognized(name: &str) -> String {
    format!("unrecognized feature gate: {name}")
}

/// Parses names only; [`Gates::from_map`] also validates dependencies.
impl TryFrom<BTreeMap<String, bool>> for Gates {
    type Error = String;

    fn try_from(map: BTreeMap<String, bool>) -> Result<Self, String> {
        let named =
            |(name, on): (String, bool)| Gate::named(&name).map(|gate| (gate, on)).ok_or_else(|| unrecognized(&name));
        Ok(Gates { set: map.into_iter().map(named).collect::<Result<_, _>>()? })
    }
}

impl From<Gates> for BTreeMap<String, bool> {
    fn from(gates: Gates) -> Self {
        gates.set.into_iter().map(|(gate, on)| (gate.name().to_owned(), on)).collect()
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
        assert!(gates.on(Gate::PartialAdmission));
        assert!(!gates.on(Gate::PriorityBoost));
        gates.set(Gate::PriorityBoost, true);
        assert!(gates.on(Gate::PriorityBoost));
    }

    #[test]
    fn gates_are_in_name_order() {
        assert!(ROWS.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(Gate::ALL.iter().all(|gate| Gate::named(gate.name()) == Some(*gate)));
    }

    #[test]
    fn the_documentation_lists_every_gate() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let text = std::fs::read_to_string(path).expect("docs/configuration.md");
        let (_, table) =
            text.split_once("| gate | default | in Kueue | needs | Berth |\n|---|---|---|---|---|\n").expect("a table");
        let listed: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
        let row = |gate: &Gate| {
            let needs: Vec<String> = gate.needs().iter().map(|needed| format!("`{needed}`")).collect();
            let default = if gate.default_state() { "on" } else { "off" };
            let stage = format!("{:?}", gate.stage()).to_lowercase();
            let support = match gate.support() {
                Support::Full => "as in Kueue",
                Support::Missing => "missing",
                Support::Always => "always on",
                Support::Inside => "no effect",
            };
            let (since, needs) = (gate.since(), needs.join(", "));
            format!("| `{gate}` | {default} | {stage} {since} | {needs} | {support} |")
        };
        assert_eq!(listed, Gate::ALL.iter().map(row).collect::<Vec<_>>());
    }

    #[test]
    fn a_stage_sets_the_gates_that_are_not_named() {
        let gates = Gates::from_map(&map(&[("AllAlpha", true), ("PriorityBoost", false)])).expect("consistent gates");
        assert!(gates.on(Gate::ShortWorkloadNames) && !gates.on(Gate::PriorityBoost));
        // Deprecated gates, and beta gates that are off by default, keep their state.
        assert!(!gates.on(Gate::TASReplaceNodeDueToNotReadyOverFixedTime));
        assert!(!gates.on(Gate::UnadmittedWorkloadsExplicitStatus));
        let gates = Gates::from_map(&map(&[("AllBeta", false)])).expect("consistent gates");
        assert!(!gates.on(Gate::PartialAdmission) && gates.on(Gate::TLSOptions));
        let errors = Gates::from_map(&map(&[("AllBeta", false), ("TASMultiLayerTopology", true)])).unwrap_err();
        assert!(errors[0].contains("[TopologyAwareScheduling]"), "{errors:?}");
    }

    #[test]
    fn errors_contain_the_names_of_the_gates() {
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
