//! The configuration file as it is written: `config.kueue.x-k8s.io/v1beta2`, every field by its own name.
//!
//! Values that validation has something to say about stay as written (enumerations as text, durations with their sign),
//! so that a mistake is reported with its path and not as a parser's complaint. A field nobody knows is refused.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::Accounts;
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
    /// Manage jobs that name no queue too.
    pub manage_jobs_without_queue_name: bool,
    /// Namespaces in which jobs are managed.
    pub managed_jobs_namespace_selector: Option<LabelSelector>,
    /// Certificates of the webhook server.
    pub internal_cert_management: Option<InternalCertManagement>,
    /// Eviction of workloads whose pods do not become ready.
    pub wait_for_pods_ready: Option<WaitForPodsReady>,
    /// Kinds of job.
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
    /// Where pending workloads can be asked for.
    pub visibility_server: Option<VisibilityServer>,
    /// Berth's own: serve the ProvisioningRequest admission check.
    pub provisioning_requests: Option<bool>,
}

/// `webhook`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Webhook {
    /// Port.
    pub port: Option<i32>,
    /// Host name.
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
    /// How long others wait after the last renewal they have seen.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub lease_duration: Option<SignedDuration>,
    /// How long the holder tries to renew.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub renew_deadline: Option<SignedDuration>,
    /// Between two attempts.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub retry_period: Option<SignedDuration>,
    /// Kind of object that is held: `leases`.
    pub resource_lock: Option<String>,
    /// Its name.
    pub resource_name: Option<String>,
    /// Its namespace.
    pub resource_namespace: Option<String>,
}

/// `metrics`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Metrics {
    /// Address they are served at.
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
    /// What follows `custom_` in the series' label.
    pub name: String,
    /// Key of the label to read.
    pub source_label_key: String,
    /// Key of the annotation to read.
    pub source_annotation_key: String,
    /// Kind of the object to read it from.
    pub source_kind: Option<String>,
    /// Values that are told apart.
    pub tracked_values: Vec<String>,
}

/// `metrics.localQueueMetrics`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LocalQueueMetrics {
    /// Report them.
    pub enable: bool,
    /// Only of these queues.
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
    /// Reconciles at once, by `Kind.group`.
    pub group_kind_concurrency: BTreeMap<String, i32>,
    /// How long caches may take to fill: nanoseconds, or a duration.
    pub cache_sync_timeout: Option<Value>,
}

/// `tls`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Tls {
    /// Lowest version, such as `VersionTLS12`.
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
    /// Requests a second; negative: no limit.
    pub qps: Option<f32>,
    /// Requests at once.
    pub burst: Option<i32>,
}

/// `internalCertManagement`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct InternalCertManagement {
    /// Make certificates.
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
    /// From admission to readiness.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<SignedDuration>,
    /// Admit nothing meanwhile.
    pub block_admission: Option<bool>,
    /// From a failed pod to readiness; zero: for ever.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub recovery_timeout: Option<SignedDuration>,
    /// How evicted workloads come back.
    pub requeuing_strategy: Option<RequeuingStrategy>,
}

/// `waitForPodsReady.requeuingStrategy`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RequeuingStrategy {
    /// `Eviction` or `Creation`.
    pub timestamp: Option<String>,
    /// How often.
    pub backoff_limit_count: Option<i32>,
    /// First delay.
    pub backoff_base_seconds: Option<i32>,
    /// Longest delay.
    pub backoff_max_seconds: Option<i32>,
}

/// `integrations`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Integrations {
    /// Names such as `batch/job`.
    pub frameworks: Vec<String>,
    /// Kinds other controllers integrate: `Kind.version.group`.
    pub external_frameworks: Vec<String>,
    /// Label keys copied to workloads.
    pub label_keys_to_copy: Vec<String>,
    /// Berth's own: annotation keys copied to workloads.
    pub annotations_to_copy: Vec<String>,
    /// Berth's own: accounts that may make an object part of another that is queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_reference_writers: Option<Accounts>,
}

/// `multiKueue`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct MultiKueue {
    /// Time between collections of orphans; zero: never.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub gc_interval: Option<SignedDuration>,
    /// Label value that marks what this cluster made elsewhere.
    pub origin: Option<String>,
    /// How long a lost worker keeps its workloads.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub worker_lost_timeout: Option<SignedDuration>,
    /// Who chooses workers.
    pub dispatcher_name: Option<String>,
    /// Kinds without an adapter of their own.
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
    /// Their older name.
    pub credentials_providers: Vec<AccessProvider>,
}

/// One provider of credentials.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AccessProvider {
    /// Name.
    pub name: String,
    /// What to run.
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
    /// Shown when the command is missing.
    pub install_hint: String,
    /// Give the plugin the cluster's description.
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
    /// Workers asked at once.
    pub step_size: Option<i32>,
}

/// `fairSharing`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct FairSharing {
    /// Rules a preemption must satisfy, in order.
    pub preemption_strategies: Vec<String>,
}

/// `admissionFairSharing`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AdmissionFairSharing {
    /// After this time half of the usage is forgotten.
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
    /// Resources that do not count.
    pub exclude_resource_prefixes: Vec<String>,
    /// Resources that count as others.
    pub transformations: Vec<Transformation>,
    /// Device classes that count as resources.
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
    /// Multiply by this resource.
    pub multiply_by: Option<String>,
    /// Amounts per unit of the input.
    pub outputs: BTreeMap<String, Value>,
}

/// One entry of `resources.deviceClassMappings`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct DeviceClassMapping {
    /// The resource it counts as.
    pub name: String,
    /// Device classes.
    pub device_class_names: Vec<String>,
    /// What of the devices is counted; nothing: whole devices.
    pub sources: Vec<DeviceClassSource>,
}

/// What of a device is counted: exactly one of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct DeviceClassSource {
    /// A counter of partitionable devices.
    pub counter: Option<DeviceSource>,
    /// A capacity of devices that can be shared.
    pub capacity: Option<DeviceSource>,
}

/// Where a driver publishes a figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct DeviceSource {
    /// Name of the figure.
    pub name: String,
    /// The driver.
    pub driver: String,
    /// Which devices.
    pub device_selector: DeviceSelector,
}

/// A selector over devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct DeviceSelector {
    /// As an expression.
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
    /// Time a finished Workload is kept.
    #[serde(with = "duration::signed", skip_serializing_if = "Option::is_none")]
    pub after_finished: Option<SignedDuration>,
    /// Time the job of a deactivated workload is kept.
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
