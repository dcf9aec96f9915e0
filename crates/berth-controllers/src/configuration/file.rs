//! The configuration file as written: `config.kueue.x-k8s.io/v1beta2`, every field under its own
//! name.
//!
//! Values that need validation keep their written form (enumerations as text, durations with their
//! sign), so that an error gives the field's path instead of a parser's message. Unknown fields are
//! rejected.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Accounts;
use crate::duration;

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct File {
    /// `config.kueue.x-k8s.io/v1beta2`.
    pub api_version: String,
    /// `Configuration`.
    pub kind: String,
    /// The controllers' own namespace, which is never managed.
    pub namespace: Option<String>,
    /// The webhook server.
    pub webhook: Option<Webhook>,
    /// Leader election between replicas, as component-base describes it.
    pub leader_election: Option<LeaderElection>,
    /// Metrics.
    pub metrics: Metrics,
    /// The probe endpoints.
    pub health: Option<Health>,
    /// Address of the profiler.
    pub pprof_bind_address: Option<String>,
    /// Concurrency and cache settings.
    pub controller: Option<Controller>,
    /// TLS of the servers.
    pub tls: Option<Tls>,
    /// Client-side rate limits.
    pub client_connection: Option<ClientConnection>,
    /// Also manage jobs without a queue name.
    pub manage_jobs_without_queue_name: bool,
    /// Namespaces in which jobs are managed.
    pub managed_jobs_namespace_selector: Option<LabelSelector>,
    /// Certificates of the webhook server.
    pub internal_cert_management: Option<InternalCertManagement>,
    /// Eviction of workloads whose pods do not become ready.
    pub wait_for_pods_ready: Option<WaitForPodsReady>,
    /// Kinds of jobs.
    pub integrations: Option<Integrations>,
    /// Dispatching to other clusters.
    pub multi_kueue: Option<MultiKueue>,
    /// Fair sharing between cluster queues.
    pub fair_sharing: Option<FairSharing>,
    /// Fair sharing between local queues by past usage.
    pub admission_fair_sharing: Option<AdmissionFairSharing>,
    /// How requests are counted.
    pub resources: Option<Resources>,
    /// Feature gates that differ from their defaults.
    pub feature_gates: BTreeMap<String, bool>,
    /// When objects are deleted.
    pub object_retention_policies: Option<ObjectRetentionPolicies>,
    /// The server of pending workloads.
    pub visibility_server: Option<VisibilityServer>,
    /// Berth's own: serve the ProvisioningRequest admission check.
    pub provisioning_requests: Option<bool>,
    /// Berth's own: flavors without capacity get no workloads for a while.
    pub flavor_cool_down: Option<FlavorCoolDown>,
    /// Berth's own: when pods on unreachable nodes are ended.
    pub failure_recovery: Option<FailureRecovery>,
}

/// `failureRecovery`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct FailureRecovery {
    /// Time from the end of a pod's own grace period.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub grace_period: Option<SignedDuration>,
}

/// `flavorCoolDown`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct FlavorCoolDown {
    /// Cool-down after the first failure.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub initial: Option<SignedDuration>,
    /// Longest cool-down.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub maximum: Option<SignedDuration>,
}

/// `webhook`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Webhook {
    /// Port.
    pub port: Option<i32>,
    /// Host name or address to listen on.
    pub host: Option<String>,
    /// Folder of the certificate.
    pub cert_dir: Option<String>,
}

/// `leaderElection`: component-base's `LeaderElectionConfiguration`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LeaderElection {
    /// Act only while holding the Lease.
    pub leader_elect: Option<bool>,
    /// How long other replicas wait after the last renewal that they have seen.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub lease_duration: Option<SignedDuration>,
    /// How long the leader tries to renew.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub renew_deadline: Option<SignedDuration>,
    /// Interval between two attempts.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub retry_period: Option<SignedDuration>,
    /// Kind of the lock object: `leases`.
    pub resource_lock: Option<String>,
    /// Name of the lock object.
    pub resource_name: Option<String>,
    /// Namespace of the lock object.
    pub resource_namespace: Option<String>,
}

/// `metrics`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Metrics {
    /// Address to serve metrics on.
    pub bind_address: Option<String>,
    /// Report quotas and usage per flavor and resource too.
    pub enable_cluster_queue_resources: Option<bool>,
    /// Labels and annotations of objects that become labels of series.
    pub custom_labels: Vec<CustomLabel>,
    /// Series per local queue.
    pub local_queue_metrics: Option<LocalQueueMetrics>,
}

/// One entry of `metrics.customLabels`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CustomLabel {
    /// Name after the prefix `custom_`.
    pub name: String,
    /// Key of the label to read.
    pub source_label_key: String,
    /// Key of the annotation to read.
    pub source_annotation_key: String,
    /// Kind of the object to read it from.
    pub source_kind: Option<String>,
    /// Values that are exported.
    pub tracked_values: Vec<String>,
}

/// `metrics.localQueueMetrics`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LocalQueueMetrics {
    /// Export series of local queues.
    pub enable: bool,
    /// Only of local queues that match.
    pub local_queue_selector: Option<LabelSelector>,
}

/// `health`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Health {
    /// Address of the probes.
    pub health_probe_bind_address: Option<String>,
    /// Name of the readiness endpoint.
    pub readiness_endpoint_name: Option<String>,
    /// Name of the liveness endpoint.
    pub liveness_endpoint_name: Option<String>,
}

/// `controller`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Controller {
    /// Maximum number of simultaneous reconciles, by `Kind.group`.
    pub group_kind_concurrency: BTreeMap<String, i32>,
    /// Maximum time for filling caches: nanoseconds, or a duration.
    pub cache_sync_timeout: Option<Value>,
}

/// `tls`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Tls {
    /// Minimum version, such as `VersionTLS12`.
    pub min_version: String,
    /// Names of cipher suites.
    pub cipher_suites: Vec<String>,
    /// IANA numbers of key-exchange groups.
    pub curve_preferences: Vec<i32>,
}

/// `clientConnection`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ClientConnection {
    /// Requests per second; negative: no limit.
    pub qps: Option<f32>,
    /// Maximum number of requests at once.
    pub burst: Option<i32>,
}

/// `internalCertManagement`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct InternalCertManagement {
    /// Generate certificates.
    pub enable: Option<bool>,
    /// Service of the webhooks.
    pub webhook_service_name: Option<String>,
    /// Secret of the certificate.
    pub webhook_secret_name: Option<String>,
}

/// `waitForPodsReady`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct WaitForPodsReady {
    /// Maximum time from admission to readiness.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<SignedDuration>,
    /// Admit no workload while pods of an admitted workload are not ready.
    pub block_admission: Option<bool>,
    /// Maximum time from a failed pod to readiness; zero: unlimited.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub recovery_timeout: Option<SignedDuration>,
    /// How evicted workloads are requeued.
    pub requeuing_strategy: Option<RequeuingStrategy>,
}

/// `waitForPodsReady.requeuingStrategy`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RequeuingStrategy {
    /// `Eviction` or `Creation`.
    pub timestamp: Option<String>,
    /// Maximum number of requeues.
    pub backoff_limit_count: Option<i32>,
    /// First delay.
    pub backoff_base_seconds: Option<i32>,
    /// Maximum delay.
    pub backoff_max_seconds: Option<i32>,
}

/// `integrations`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Integrations {
    /// Names such as `batch/job`.
    pub frameworks: Vec<String>,
    /// Kinds that other controllers integrate: `Kind.version.group`.
    pub external_frameworks: Vec<String>,
    /// Label keys copied to workloads.
    pub label_keys_to_copy: Vec<String>,
    /// Berth's own: annotation keys copied to workloads.
    pub annotations_to_copy: Vec<String>,
    /// Berth's own: accounts that may make an object part of a queued owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_reference_writers: Option<Accounts>,
}

/// `multiKueue`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct MultiKueue {
    /// Interval between garbage collections; zero: never.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub gc_interval: Option<SignedDuration>,
    /// Label value of objects that this cluster creates in worker clusters.
    pub origin: Option<String>,
    /// How long workloads stay on a worker that is unreachable.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub worker_lost_timeout: Option<SignedDuration>,
    /// Name of the dispatcher that chooses workers.
    pub dispatcher_name: Option<String>,
    /// Kinds without a built-in adapter.
    pub external_frameworks: Vec<ExternalFramework>,
    /// How credentials of workers are obtained.
    pub cluster_profile: Option<ClusterProfile>,
    /// Settings of the incremental dispatcher.
    pub incremental_dispatcher_config: Option<IncrementalDispatcher>,
}

/// One entry of `multiKueue.externalFrameworks`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ExternalFramework {
    /// `Kind.version.group`.
    pub name: String,
}

/// `multiKueue.clusterProfile`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ClusterProfile {
    /// Providers.
    pub access_providers: Vec<AccessProvider>,
    /// Older name of the same list.
    pub credentials_providers: Vec<AccessProvider>,
}

/// One provider of credentials.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AccessProvider {
    /// Name.
    pub name: String,
    /// The credential plugin.
    pub exec_config: ExecConfig,
}

/// A credential plugin, as kubeconfig files describe it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ExecConfig {
    /// Version of the plugin's protocol.
    pub api_version: String,
    /// Command.
    pub command: String,
    /// Arguments.
    pub args: Vec<String>,
    /// Environment.
    pub env: Vec<ExecVariable>,
    /// Shown if the command is missing.
    pub install_hint: String,
    /// Pass the cluster's description to the plugin.
    pub provide_cluster_info: bool,
    /// `Never`, `IfAvailable` or `Always`.
    pub interactive_mode: String,
}

/// A variable of a credential plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ExecVariable {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

/// `multiKueue.incrementalDispatcherConfig`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct IncrementalDispatcher {
    /// Number of workers nominated at once.
    pub step_size: Option<i32>,
}

/// `fairSharing`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct FairSharing {
    /// Rules that allow a preemption, tried in order.
    pub preemption_strategies: Vec<String>,
}

/// `admissionFairSharing`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AdmissionFairSharing {
    /// Time after which past usage counts half.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub usage_half_life_time: Option<SignedDuration>,
    /// How often usage is recorded.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub usage_sampling_interval: Option<SignedDuration>,
    /// Weights of resources.
    pub resource_weights: BTreeMap<String, f64>,
}

/// `resources`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Resources {
    /// `BlockUndeclared` or `IgnoreUndeclared`.
    pub quota_check_strategy: Option<String>,
    /// Prefixes of resources that are ignored.
    pub exclude_resource_prefixes: Vec<String>,
    /// Resources that are counted as others.
    pub transformations: Vec<Transformation>,
    /// Device classes that are counted as resources.
    pub device_class_mappings: Vec<DeviceClassMapping>,
}

/// One entry of `resources.transformations`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Transformation {
    /// The requested resource.
    pub input: String,
    /// `Retain` or `Replace`.
    pub strategy: Option<String>,
    /// Multiply by the amount of this resource.
    pub multiply_by: Option<String>,
    /// Amounts per unit of the input.
    pub outputs: BTreeMap<String, Value>,
}

/// One entry of `resources.deviceClassMappings`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct DeviceClassMapping {
    /// The resource that devices are counted as.
    pub name: String,
    /// Device classes.
    pub device_class_names: Vec<String>,
    /// Counters or capacities of the devices to count; empty: whole devices.
    pub sources: Vec<DeviceClassSource>,
}

/// A counter or a capacity to count: exactly one of the two is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct DeviceClassSource {
    /// A counter of partitionable devices.
    pub counter: Option<DeviceSource>,
    /// A capacity of devices that can be shared.
    pub capacity: Option<DeviceSource>,
}

/// A counter or capacity that a driver publishes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct DeviceSource {
    /// Name of the counter or capacity.
    pub name: String,
    /// The driver.
    pub driver: String,
    /// Selects devices.
    pub device_selector: DeviceSelector,
}

/// A selector over devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct DeviceSelector {
    /// Selects by a CEL expression.
    pub cel: Option<CelSelector>,
}

/// An expression over a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CelSelector {
    /// The expression.
    pub expression: String,
}

/// `objectRetentionPolicies`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ObjectRetentionPolicies {
    /// Policies for workloads.
    pub workloads: Option<WorkloadRetention>,
}

/// `objectRetentionPolicies.workloads`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct WorkloadRetention {
    /// How long a finished Workload is kept.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub after_finished: Option<SignedDuration>,
    /// How long the job of a deactivated workload is kept.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub after_deactivated_by_kueue: Option<SignedDuration>,
}

/// `visibilityServer`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct VisibilityServer {
    /// IP address.
    pub bind_address: Option<String>,
    /// Port.
    pub bind_port: Option<i32>,
}
