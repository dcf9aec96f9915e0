//! The controllers' settings, after validation and with defaults. [`crate::configuration`] reads
//! them from files.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_engine::{
    AdmissionFairSharing as EngineFairUsage, EngineConfig, FairSharing as EngineFairSharing, FeatureGates, Name,
    PreemptionStrategy,
};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{file, frameworks};
use crate::duration;
use crate::gates::{Gate, Gates};

/// How long events that free quota are collected before inadmissible workloads are evaluated again.
/// Kueue waits a second, because it evaluates all of these workloads again. Berth evaluates one per
/// scheduling-equivalence class, so the delay only has to combine simultaneous events.
const FLUSH_DELAY: Duration = Duration::from_millis(1);

/// Settings of the controllers. [`Config::default`] applies without a file: Kueue's defaults, with
/// every integration enabled.
///
/// Recorded cases deserialize it directly, without a file's defaults and validation; files go
/// through [`crate::configuration::read`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Config {
    /// Also manage jobs without a queue name. They stay suspended until a queue is set.
    pub manage_jobs_without_queue_name: bool,
    /// Namespaces in which jobs are managed; by default all but `kube-system` and the controllers'
    /// own namespace.
    pub managed_jobs_namespace_selector: LabelSelector,
    /// Evict workloads whose pods do not become ready; absent: never.
    pub wait_for_pods_ready: Option<WaitForPodsReady>,
    /// Kinds of jobs that are managed.
    pub integrations: Integrations,
    /// Fair sharing between cluster queues; absent: borrow in order of arrival.
    pub fair_sharing: Option<FairSharing>,
    /// Fairness between local queues by past usage; absent: off.
    pub admission_fair_sharing: Option<AdmissionFairSharing>,
    /// How requests are counted.
    pub resources: Resources,
    /// When finished or deactivated objects are deleted; absent: never.
    pub object_retention_policies: Option<ObjectRetentionPolicies>,
    /// Serve the ProvisioningRequest admission check. Not part of Kueue's file, as Kueue detects
    /// the API; set it to false in a cluster without the API.
    pub provisioning_requests: bool,
    /// Flavors whose capacity was not provisioned get no workloads for a while; absent: off. Not
    /// part of Kueue's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flavor_cool_down: Option<FlavorCoolDown>,
    /// Time from the end of a pod's own grace period until the pod is ended on an unreachable node;
    /// absent: one minute. Not part of Kueue's file.
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub failure_recovery_grace: Option<Duration>,
    /// Feature gates: those set, and the defaults of the others.
    pub feature_gates: Gates,
    /// Rate limit of the client; absent: none. The code that creates the client enforces it. Here
    /// it limits the number of concurrent writes, so that their order is decided as late as
    /// possible.
    pub client_limit: Option<ClientLimit>,
    /// Report quotas, reservations and usage per flavor and resource too.
    pub resource_metrics: bool,
    /// Maximum number of simultaneous reconciles by `Kind.group`; other kinds use the controllers'
    /// defaults.
    pub concurrency_max: BTreeMap<String, usize>,
    /// Which series are exported.
    pub metrics: MetricsConfig,
}

/// Which series are exported (`metrics` of the file).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricsConfig {
    /// Local queues with series; absent: all, if the gate LocalQueueMetrics is on.
    pub local_queues: Option<LocalQueueMetrics>,
    /// Labels and annotations of objects that become labels of series, if the gate
    /// CustomMetricLabels is on.
    pub custom_labels: Vec<CustomLabel>,
}

impl Config {
    /// Keys of labels that are copied from jobs to their Workloads: the configured ones, and those
    /// from which custom labels of Workloads are read.
    pub fn label_keys_to_copy(&self) -> BTreeSet<&str> {
        let custom = self.workload_labels().filter(|label| label.annotation.is_none());
        let custom = custom.map(|label| label.key.as_ref().unwrap_or(&label.name));
        self.integrations.label_keys_to_copy.iter().chain(custom).map(String::as_str).collect()
    }

    /// Keys of annotations that are copied from jobs to their Workloads, likewise.
    pub fn annotations_to_copy(&self) -> BTreeSet<&str> {
        let custom = self.workload_labels().filter_map(|label| label.annotation.as_ref());
        self.integrations.annotations_to_copy.iter().chain(custom).map(String::as_str).collect()
    }

    fn workload_labels(&self) -> impl Iterator<Item = &CustomLabel> {
        let labels: &[CustomLabel] =
            if self.feature_gates.on(Gate::CustomMetricLabels) { &self.metrics.custom_labels } else { &[] };
        labels.iter().filter(|label| label.source == LabelSource::Workload)
    }
}

/// A label or annotation that becomes label `custom_<name>`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CustomLabel {
    /// Name after the prefix `custom_`; also the label to read if neither key is given.
    pub name: String,
    /// Kind of the object to read.
    pub source: LabelSource,
    /// Key of the label to read.
    pub key: Option<String>,
    /// Key of the annotation to read instead.
    pub annotation: Option<String>,
    /// Values that are exported; others share one placeholder. Empty: all.
    pub tracked_values: Vec<String>,
}

/// The kind of object that a custom label is read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LabelSource {
    /// The series' cluster queue.
    #[default]
    ClusterQueue,
    /// The series' local queue.
    LocalQueue,
    /// The series' cohort.
    Cohort,
    /// The workload that an event is counted for.
    Workload,
}

impl CustomLabel {
    fn of_file(file: &file::CustomLabel) -> Self {
        let given = |text: &String| (!text.is_empty()).then(|| text.clone());
        CustomLabel {
            name: file.name.clone(),
            source: match file.source_kind.as_deref() {
                Some("LocalQueue") => LabelSource::LocalQueue,
                Some("Cohort") => LabelSource::Cohort,
                Some("Workload") => LabelSource::Workload,
                _ => LabelSource::ClusterQueue,
            },
            key: given(&file.source_label_key),
            annotation: given(&file.source_annotation_key),
            tracked_values: file.tracked_values.clone(),
        }
    }
}

/// Local queues with series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalQueueMetrics {
    /// False: no local queue has series.
    pub enable: bool,
    /// Only local queues with these labels.
    pub selector: Option<LabelSelector>,
}

/// A rate limit of the client (`clientConnection` of the file).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientLimit {
    /// Requests per second.
    pub qps: f64,
    /// Maximum number of requests at once after a pause.
    pub burst: u32,
}

impl ClientLimit {
    /// As in Kueue, a negative rate means no limit, once the version's defaults are filled in.
    fn of_file(file: &file::ClientConnection) -> Option<Self> {
        let qps = f64::from(file.qps.unwrap_or(-1.0));
        let burst = u32::try_from(file.burst.unwrap_or(0)).unwrap_or(0).max(1);
        (qps > 0.0 && qps.is_finite()).then_some(ClientLimit { qps, burst })
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            manage_jobs_without_queue_name: false,
            managed_jobs_namespace_selector: super::outside_of_system(crate::rights::NAMESPACE),
            wait_for_pods_ready: Some(WaitForPodsReady::default()),
            integrations: Integrations::default(),
            fair_sharing: None,
            admission_fair_sharing: None,
            resources: Resources::default(),
            object_retention_policies: None,
            provisioning_requests: true,
            flavor_cool_down: None,
            failure_recovery_grace: None,
            feature_gates: Gates::default(),
            client_limit: None,
            resource_metrics: false,
            concurrency_max: BTreeMap::new(),
            metrics: MetricsConfig::default(),
        }
    }
}

impl Config {
    /// The settings in a file that is valid and has its defaults filled in.
    pub(crate) fn of_file(file: &file::File, gates: &Gates) -> Self {
        let defaults = Config::default();
        let integrations = file.integrations.clone().unwrap_or_default();
        let resources = file.resources.clone().unwrap_or_default();
        Config {
            manage_jobs_without_queue_name: file.manage_jobs_without_queue_name,
            managed_jobs_namespace_selector: file
                .managed_jobs_namespace_selector
                .clone()
                .unwrap_or(defaults.managed_jobs_namespace_selector),
            wait_for_pods_ready: file.wait_for_pods_ready.as_ref().map(WaitForPodsReady::of_file),
            integrations: Integrations {
                frameworks: integrations.frameworks,
                external_frameworks: integrations.external_frameworks,
                label_keys_to_copy: integrations.label_keys_to_copy,
                annotations_to_copy: integrations.annotations_to_copy,
                owner_reference_writers: integrations.owner_reference_writers,
            },
            fair_sharing: file.fair_sharing.as_ref().map(|fair| FairSharing {
                preemption_strategies: fair
                    .preemption_strategies
                    .iter()
                    .map(|strategy| match strategy.as_str() {
                        "LessThanInitialShare" => FairSharingStrategy::LessThanInitialShare,
                        _ => FairSharingStrategy::LessThanOrEqualToFinalShare,
                    })
                    .collect(),
            }),
            admission_fair_sharing: file.admission_fair_sharing.as_ref().map(|fair| AdmissionFairSharing {
                usage_half_life_time: fair.usage_half_life_time.map(positive),
                usage_sampling_interval: fair.usage_sampling_interval.map(positive),
                resource_weights: fair.resource_weights.clone(),
            }),
            resources: Resources {
                exclude_resource_prefixes: resources.exclude_resource_prefixes,
                transformations: resources.transformations.into_iter().map(ResourceTransformation::of_file).collect(),
                device_class_mappings: resources.device_class_mappings,
                quota_check_strategy: match resources.quota_check_strategy.as_deref() {
                    Some("IgnoreUndeclared") => QuotaCheckStrategy::IgnoreUndeclared,
                    _ => QuotaCheckStrategy::BlockUndeclared,
                },
            },
            object_retention_policies: file.object_retention_policies.as_ref().map(|policies| {
                ObjectRetentionPolicies {
                    workloads: policies.workloads.as_ref().map(|policy| WorkloadRetentionPolicy {
                        after_finished: policy.after_finished.map(positive),
                        after_deactivated_by_kueue: policy.after_deactivated_by_kueue.map(positive),
                    }),
                }
            }),
            provisioning_requests: file.provisioning_requests.unwrap_or(defaults.provisioning_requests),
            flavor_cool_down: file.flavor_cool_down.as_ref().map(|option| FlavorCoolDown {
                initial: option.initial.map(positive),
                maximum: option.maximum.map(positive),
            }),
            failure_recovery_grace: file.failure_recovery.as_ref().and_then(|option| option.grace_period.map(positive)),
            feature_gates: gates.clone(),
            client_limit: file.client_connection.as_ref().and_then(ClientLimit::of_file),
            resource_metrics: file.metrics.enable_cluster_queue_resources.unwrap_or(false),
            concurrency_max: file.controller.as_ref().map(concurrency_max).unwrap_or_default(),
            metrics: MetricsConfig {
                local_queues: file.metrics.local_queue_metrics.as_ref().map(|wanted| LocalQueueMetrics {
                    enable: wanted.enable,
                    selector: wanted.local_queue_selector.clone(),
                }),
                custom_labels: file.metrics.custom_labels.iter().map(CustomLabel::of_file).collect(),
            },
        }
    }

    /// The state of all feature gates.
    pub fn gates(&self) -> Gates {
        self.feature_gates.clone()
    }

    /// `waitForPodsReady`; `None` if it is absent or its gate is off.
    pub fn pods_ready(&self) -> Option<&WaitForPodsReady> {
        if self.gates().on(Gate::DisableWaitForPodsReady) {
            return None;
        }
        self.wait_for_pods_ready.as_ref()
    }

    /// The settings that decisions depend on.
    pub fn engine(&self) -> EngineConfig {
        let gates = engine_gates(&self.feature_gates);
        let mut engine =
            EngineConfig { flush_delay: FLUSH_DELAY, report_represented: true, gates, ..EngineConfig::default() };
        engine.fair_sharing = self.fair_sharing.as_ref().map(|fair| EngineFairSharing {
            preemption_strategies: fair
                .preemption_strategies
                .iter()
                .map(|strategy| match strategy {
                    FairSharingStrategy::LessThanOrEqualToFinalShare => PreemptionStrategy::LessThanOrEqualToFinalShare,
                    FairSharingStrategy::LessThanInitialShare => PreemptionStrategy::LessThanInitialShare,
                })
                .collect(),
        });
        engine.admission_fair_sharing = self.admission_fair_sharing.as_ref().map(|fair| EngineFairUsage {
            usage_half_life: fair.usage_half_life_time.unwrap_or_default(),
            usage_sampling_interval: fair.usage_sampling_interval.unwrap_or(Duration::from_secs(300)),
            resource_weights_milli: fair
                .resource_weights
                .iter()
                .map(|(name, weight)| (Name::from(name.as_str()), (weight * 1000.0).round() as i64))
                .collect(),
        });
        engine.quota_check_strategy = match self.resources.quota_check_strategy {
            QuotaCheckStrategy::BlockUndeclared => berth_engine::QuotaCheckStrategy::BlockUndeclared,
            QuotaCheckStrategy::IgnoreUndeclared => berth_engine::QuotaCheckStrategy::IgnoreUndeclared,
        };
        if let Some(wait) = self.pods_ready() {
            engine.block_admission_on_pods_ready = wait.block_admission;
            engine.requeuing_timestamp = match wait.requeuing_strategy.timestamp {
                RequeuingTimestamp::Eviction => berth_engine::RequeuingTimestamp::Eviction,
                RequeuingTimestamp::Creation => berth_engine::RequeuingTimestamp::Creation,
            };
        }
        engine
    }
}

/// The gates that decisions depend on.
fn engine_gates(gates: &Gates) -> FeatureGates {
    FeatureGates {
        partial_admission: gates.on(Gate::PartialAdmission),
        flavor_fungibility: gates.on(Gate::FlavorFungibility),
        flavor_fungibility_preserve_scan_progress: gates.on(Gate::FlavorFungibilityPreserveScanProgress),
        priority_sorting_within_cohort: gates.on(Gate::PrioritySortingWithinCohort),
        fair_sharing_preempt_within_nominal: gates.on(Gate::FairSharingPreemptWithinNominal),
        fair_sharing_prioritize_non_borrowing: gates.on(Gate::FairSharingPrioritizeNonBorrowing),
        recompute_assignment_upon_preemption_targets_overlap: gates
            .on(Gate::RecomputeAssignmentUponPreemptionTargetsOverlap),
        prioritize_preemptor_workloads: gates.on(Gate::PrioritizePreemptorWorkloads),
        priority_boost: gates.on(Gate::PriorityBoost),
        topology_aware_scheduling: gates.on(Gate::TopologyAwareScheduling),
        tas_profile_mixed: gates.on(Gate::TASProfileMixed),
        tas_balanced_placement: gates.on(Gate::TASBalancedPlacement),
        tas_respect_node_affinity_preferred: gates.on(Gate::TASRespectNodeAffinityPreferred),
        tas_multi_layer_topology: gates.on(Gate::TASMultiLayerTopology),
        tas_handle_overlapping_flavors: gates.on(Gate::TASHandleOverlappingFlavors),
        tas_recompute_assignment_within_scheduling_cycle: gates.on(Gate::TASRecomputeAssignmentWithinSchedulingCycle),
        tas_failed_node_replacement: gates.on(Gate::TASFailedNodeReplacement),
        tas_failed_node_replacement_fail_fast: gates.on(Gate::TASFailedNodeReplacementFailFast),
        skip_reassignment_for_pod_owned_workloads: gates.on(Gate::SkipReassignmentForPodOwnedWorkloads),
        elastic_jobs_via_workload_slices: gates.on(Gate::ElasticJobsViaWorkloadSlices),
        elastic_jobs_via_workload_slices_with_tas: gates.on(Gate::ElasticJobsViaWorkloadSlicesWithTAS),
        admission_fair_sharing: gates.on(Gate::AdmissionFairSharing),
        reclaimable_pods: gates.on(Gate::ReclaimablePods),
        scheduling_equivalence_hashing: gates.on(Gate::SchedulingEquivalenceHashing),
        quota_check_strategy: gates.on(Gate::QuotaCheckStrategy),
        admission_gated_by: gates.on(Gate::AdmissionGatedBy),
        unadmitted_workloads_observability: gates.on(Gate::UnadmittedWorkloadsObservability),
        unadmitted_workloads_explicit_status: gates.on(Gate::UnadmittedWorkloadsExplicitStatus),
        concurrent_admission: gates.on(Gate::ConcurrentAdmission),
        multikueue_orchestrated_preemption: gates.on(Gate::MultiKueueOrchestratedPreemption),
    }
}

fn concurrency_max(controller: &file::Controller) -> BTreeMap<String, usize> {
    let entries = controller.group_kind_concurrency.iter();
    entries.map(|(kind, at_once)| (kind.clone(), usize::try_from(*at_once).unwrap_or(1).max(1))).collect()
}

/// `waitForPodsReady`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WaitForPodsReady {
    /// Maximum time from admission until all pods are ready.
    #[serde(with = "duration::option")]
    pub timeout: Option<Duration>,
    /// Admit no workload while pods of an admitted one are not ready.
    pub block_admission: bool,
    /// Maximum time to replace a failed pod; absent: `timeout`; zero: unlimited.
    #[serde(with = "duration::option")]
    pub recovery_timeout: Option<Duration>,
    /// How evicted workloads are requeued.
    pub requeuing_strategy: RequeuingStrategy,
}

impl Default for WaitForPodsReady {
    fn default() -> Self {
        WaitForPodsReady {
            timeout: Some(WaitForPodsReady::TIMEOUT_DEFAULT),
            block_admission: false,
            recovery_timeout: None,
            requeuing_strategy: RequeuingStrategy::default(),
        }
    }
}

/// Converts a duration that validation found not to be negative.
fn positive(duration: SignedDuration) -> Duration {
    Duration::try_from(duration).unwrap_or_default()
}

impl WaitForPodsReady {
    fn of_file(wait: &file::WaitForPodsReady) -> Self {
        let strategy = wait.requeuing_strategy.clone().unwrap_or_default();
        let defaults = RequeuingStrategy::default();
        WaitForPodsReady {
            timeout: wait.timeout.map(positive),
            block_admission: wait.block_admission.unwrap_or(false),
            recovery_timeout: wait.recovery_timeout.map(positive),
            requeuing_strategy: RequeuingStrategy {
                timestamp: match strategy.timestamp.as_deref() {
                    Some("Creation") => RequeuingTimestamp::Creation,
                    _ => RequeuingTimestamp::Eviction,
                },
                backoff_limit_count: strategy.backoff_limit_count,
                backoff_base_seconds: strategy.backoff_base_seconds.unwrap_or(defaults.backoff_base_seconds),
                backoff_max_seconds: strategy.backoff_max_seconds.unwrap_or(defaults.backoff_max_seconds),
            },
        }
    }

    /// Default timeout: 30 minutes.
    pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30 * 60);

    /// Maximum time from admission to readiness.
    pub fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(Self::TIMEOUT_DEFAULT)
    }

    /// Maximum time to recover from a failed pod; `None` without limit.
    pub fn recovery_timeout(&self) -> Option<Duration> {
        match self.recovery_timeout {
            Some(limit) if limit.is_zero() => None,
            Some(limit) => Some(limit),
            None => Some(self.timeout()),
        }
    }
}

/// How workloads that were evicted for readiness are requeued.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequeuingStrategy {
    /// The timestamp that determines their position in the queue.
    pub timestamp: RequeuingTimestamp,
    /// Maximum number of requeues; absent: unlimited.
    pub backoff_limit_count: Option<i32>,
    /// First delay, in seconds; doubles each time.
    pub backoff_base_seconds: i32,
    /// Maximum delay, in seconds.
    pub backoff_max_seconds: i32,
}

impl Default for RequeuingStrategy {
    fn default() -> Self {
        RequeuingStrategy {
            timestamp: RequeuingTimestamp::Eviction,
            backoff_limit_count: None,
            backoff_base_seconds: 60,
            backoff_max_seconds: 3600,
        }
    }
}

/// The timestamp that determines the queue position of a workload evicted for readiness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequeuingTimestamp {
    /// Time of the eviction.
    #[default]
    Eviction,
    /// Time of creation.
    Creation,
}

/// Kinds of jobs that are managed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Integrations {
    /// Names of integrations, for example `batch/job`.
    pub frameworks: Vec<String>,
    /// Kinds that other controllers integrate, as `Kind.version.group`; jobs that they own are not
    /// queued themselves.
    pub external_frameworks: Vec<String>,
    /// Label keys copied from jobs to their workloads.
    pub label_keys_to_copy: Vec<String>,
    /// Annotation keys copied from jobs to their workloads.
    pub annotations_to_copy: Vec<String>,
    /// Accounts that may make an object part of a queued owner; absent: all.
    pub owner_reference_writers: Option<Accounts>,
}

/// Accounts, by user name and by group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Accounts {
    /// Names, for example `system:serviceaccount:jobset-system:jobset-controller-manager`.
    pub users: Vec<String>,
    /// Groups, for example `system:serviceaccounts:kube-system`.
    pub groups: Vec<String>,
}

impl Default for Integrations {
    fn default() -> Self {
        Integrations {
            frameworks: frameworks::on_by_default().map(str::to_owned).collect(),
            external_frameworks: Vec::new(),
            label_keys_to_copy: Vec::new(),
            annotations_to_copy: Vec::new(),
            owner_reference_writers: None,
        }
    }
}

impl Integrations {
    /// True if this integration is enabled, directly or by another one.
    pub fn enabled(&self, name: &str) -> bool {
        let brought = |framework: &String| frameworks::brought_by(framework).contains(&name);
        self.frameworks.iter().any(|framework| framework == name || brought(framework))
    }
}

/// Fair sharing between cluster queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FairSharing {
    /// Rules that allow a preemption, tried in order.
    pub preemption_strategies: Vec<FairSharingStrategy>,
}

impl Default for FairSharing {
    fn default() -> Self {
        FairSharing {
            preemption_strategies: vec![
                FairSharingStrategy::LessThanOrEqualToFinalShare,
                FairSharingStrategy::LessThanInitialShare,
            ],
        }
    }
}

/// Rule by which fair sharing allows a preemption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FairSharingStrategy {
    /// The preemptor's share is at most the share that the victim's queue is left with.
    LessThanOrEqualToFinalShare,
    /// The preemptor's share is below the current share of the victim's queue.
    LessThanInitialShare,
}

/// Fairness between local queues by past usage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AdmissionFairSharing {
    /// Time after which past usage counts half.
    #[serde(with = "duration::option")]
    pub usage_half_life_time: Option<Duration>,
    /// How often usage is recorded; 5 minutes by default.
    #[serde(with = "duration::option")]
    pub usage_sampling_interval: Option<Duration>,
    /// Weights of resources; 1 if not listed.
    pub resource_weights: BTreeMap<String, f64>,
}

/// How requests are counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    /// Resources with these prefixes are ignored.
    pub exclude_resource_prefixes: Vec<String>,
    /// Resources that are counted as others.
    pub transformations: Vec<ResourceTransformation>,
    /// Device classes that are counted as resources.
    pub device_class_mappings: Vec<file::DeviceClassMapping>,
    /// How resources without quota are treated.
    pub quota_check_strategy: QuotaCheckStrategy,
}

/// A resource that is counted as others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceTransformation {
    /// The requested resource.
    pub input: String,
    /// How the input is counted.
    pub strategy: TransformationStrategy,
    /// Multiply by the amount of this resource.
    pub multiply_by: Option<String>,
    /// Amounts per unit of the input, as quantities.
    pub outputs: BTreeMap<String, String>,
}

impl ResourceTransformation {
    fn of_file(rule: file::Transformation) -> Self {
        let amount = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        ResourceTransformation {
            input: rule.input,
            strategy: match rule.strategy.as_deref() {
                Some("Replace") => TransformationStrategy::Replace,
                _ => TransformationStrategy::Retain,
            },
            multiply_by: rule.multiply_by.filter(|name| !name.is_empty()),
            outputs: rule.outputs.into_iter().map(|(name, value)| (name, amount(value))).collect(),
        }
    }
}

/// How the input of a transformation is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransformationStrategy {
    /// Count the input and the outputs.
    #[default]
    Retain,
    /// Count only the outputs.
    Replace,
}

/// How to treat requested resources that no quota covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum QuotaCheckStrategy {
    /// The workload does not fit.
    #[default]
    BlockUndeclared,
    /// They are ignored.
    IgnoreUndeclared,
}

/// How long a flavor gets no workloads after its capacity was not provisioned, or after pods on it
/// did not start in time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FlavorCoolDown {
    /// After the first failure; default 5 minutes. Doubles with each further failure.
    #[serde(with = "duration::option")]
    pub initial: Option<Duration>,
    /// The longest cool-down; default 1 hour.
    #[serde(with = "duration::option")]
    pub maximum: Option<Duration>,
}

impl FlavorCoolDown {
    /// Cool-down after the first failure.
    pub fn first(&self) -> Duration {
        self.initial.unwrap_or(Duration::from_secs(300))
    }

    /// The longest cool-down.
    pub fn maximum(&self) -> Duration {
        self.maximum.unwrap_or(Duration::from_secs(3600)).max(self.first())
    }
}

/// When objects are deleted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRetentionPolicies {
    /// Policies for workloads.
    pub workloads: Option<WorkloadRetentionPolicy>,
}

/// When workloads or their jobs are deleted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadRetentionPolicy {
    /// A finished Workload is deleted this long after it finished.
    #[serde(with = "duration::option")]
    pub after_finished: Option<Duration>,
    /// The job of a workload that a controller deactivated is deleted this long after the
    /// deactivation.
    #[serde(with = "duration::option")]
    pub after_deactivated_by_kueue: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_have_the_same_defaults_in_the_engine() {
        assert_eq!(Config::default().engine().gates, FeatureGates::default());
    }
}
