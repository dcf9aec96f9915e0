//! The file kind `ClusterConfiguration`: configuration of the embedded cluster, for `berth up
//! --config` and scenarios.
//!
//! Two forms are read: a file with `apiVersion`, `kind`, `metadata` and `spec`, and the bare spec
//! (the `cluster` section of a scenario). Unknown fields are problems, and all problems are
//! reported at once with their paths.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use crate::appwrapper::AppWrapperConfiguration;

use super::node_pool::{name_problem, quantity_problem};
use super::problem::join;
use super::{
    AutopilotConfiguration, ConfigurationError, Duration, DurationError, ImageConfiguration, NodeHealthConfiguration,
    NodePool, NodePoolSpec, Problem, SchedulerConfiguration, machine_type,
};

/// The `kind` of cluster configuration files.
const KIND: &str = "ClusterConfiguration";

/// An embedded cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfiguration {
    /// Cluster name; part of node names.
    pub name: String,
    /// Region; zones default to `<region>-a`.
    pub region: String,
    /// Kubelet version that nodes report.
    pub kubernetes_version: String,
    /// The pools of the new cluster.
    pub node_pools: Vec<NamedNodePool>,
    /// When node pools grow and shrink.
    pub autoscaling: AutoscalingConfiguration,
    /// Whether pools are created for pods that fit no existing pool.
    pub node_auto_provisioning: NodeAutoProvisioning,
    /// How the cloud handles ProvisioningRequests, per class.
    pub provisioning_classes: Vec<ProvisioningClass>,
    /// How simulated pods run.
    pub pods: SimulatedPods,
    /// The pod scheduler.
    pub scheduler: SchedulerConfiguration,
    /// Files that stand in for container images, if pods run as processes of this machine.
    pub images: ImageConfiguration,
    /// The operators of other projects that run in the cluster.
    pub operators: OperatorConfiguration,
}

/// The operators of other projects that run in the cluster. A user who installs such a project turns
/// ours off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OperatorConfiguration {
    /// RayCluster, RayJob, RayService and RayCronJob, in place of KubeRay.
    pub ray: bool,
    /// LeaderWorkerSet, in place of kubernetes-sigs/lws.
    pub leader_worker_sets: bool,
    /// TrainJob and its runtimes, in place of Kubeflow Trainer.
    pub trainer: bool,
    /// AppWrapper, in place of its own controller.
    pub app_wrappers: bool,
    /// The section `appwrapper` of AppWrapper's configuration file.
    pub app_wrapper_configuration: AppWrapperConfiguration,
    /// Name of the ClusterQueue whose lending limits follow the capacity that unhealthy nodes take
    /// away. Empty: `slackQueueName` of AppWrapper's configuration.
    pub slack_queue: String,
    /// Autopilot, the health agent of nodes with GPUs.
    pub autopilot: AutopilotConfiguration,
    /// PyTorchJob, TFJob, XGBoostJob, PaddleJob and JAXJob, in place of Kubeflow's training operator.
    pub training: bool,
    /// MPIJob, in place of Kubeflow's MPI operator.
    pub mpi: bool,
    /// Scheduler that starts all pods of a training or MPI job together, by a PodGroup
    /// (`scheduling.x-k8s.io/v1alpha1`). Empty: no PodGroups.
    pub gang_scheduler_name: String,
}

impl Default for OperatorConfiguration {
    fn default() -> Self {
        Self {
            ray: true,
            leader_worker_sets: true,
            trainer: true,
            training: true,
            mpi: true,
            gang_scheduler_name: String::new(),
            app_wrappers: true,
            app_wrapper_configuration: AppWrapperConfiguration::default(),
            slack_queue: String::new(),
            autopilot: AutopilotConfiguration::default(),
        }
    }
}

impl OperatorConfiguration {
    /// Reaction to unhealthy nodes, of AppWrappers and of other jobs.
    pub fn node_health(&self) -> &NodeHealthConfiguration {
        &self.app_wrapper_configuration.autopilot
    }

    /// Name of the slack queue; empty if there is none.
    pub fn slack_queue_name(&self) -> &str {
        match self.slack_queue.as_str() {
            "" => &self.app_wrapper_configuration.slack_queue_name,
            name => name,
        }
    }

    fn problems(&self, path: &str, scheduler: &SchedulerConfiguration) -> Vec<Problem> {
        let mut problems = self.autopilot.problems(&join(path, "autopilot"));
        problems.extend(self.app_wrapper_configuration.problems(&join(path, "appWrapperConfiguration")));
        let name = &self.gang_scheduler_name;
        let known: Vec<&str> = scheduler.of_pod_groups().collect();
        if !name.is_empty() && !known.contains(&name.as_str()) {
            let known = if known.is_empty() { "none has one".to_owned() } else { known.join(", ") };
            let message = format!(
                "{name:?} is not a scheduler of this cluster that starts PodGroups of scheduling.x-k8s.io: expected a \
                 name from scheduler.profiles with plugin Coscheduling or ClusterTopologyPlacementGroup ({known})"
            );
            problems.push(Problem::new(join(path, "gangSchedulerName"), message));
        }
        problems
    }
}

/// A node pool of the configuration: its name and the spec of a NodePool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NamedNodePool {
    /// Name.
    pub name: String,
    /// The other fields.
    #[serde(flatten)]
    pub spec: NodePoolSpec,
}

/// Preset of the timers that are not set explicitly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AutoscalingProfile {
    /// Timers of the open-source cluster autoscaler: nodes are removed 10 minutes after they became
    /// idle and 10 minutes after a scale-up.
    #[default]
    Balanced,
    /// Timers of GKE's profile of this name: 1 minute idle, 1 minute after a scale-up.
    OptimizeUtilization,
}

/// When node pools grow and shrink.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AutoscalingConfiguration {
    /// False disables autoscaling of all pools.
    pub enabled: bool,
    /// Preset of the timers below that are not set.
    pub profile: AutoscalingProfile,
    /// Interval between two evaluations.
    pub scan_interval: Duration,
    /// How long a node must be unneeded before it is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unneeded_time: Option<Duration>,
    /// Time after a scale-up during which no node is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_after_add: Option<Duration>,
    /// A node is a candidate for removal while the requested share of its CPU and memory (of its
    /// accelerators, if it has any) is below this.
    pub utilization_threshold: f64,
    /// Maximum number of nodes ordered at once.
    pub max_nodes_per_scale_up: i32,
    /// Maximum number of nodes in the cluster; 0 for no limit.
    pub max_nodes_total: i32,
    /// Time after a scale-up that the cloud could not fulfil (a stock-out), during which its pool
    /// does not grow. Doubles with each further failure.
    pub initial_backoff: Duration,
    /// Maximum of this time.
    pub max_backoff: Duration,
    /// Time after which an order is cancelled if its machine has not registered.
    pub max_node_provision_time: Duration,
    /// Time from marking a node for removal until its machine is deleted.
    pub node_removal_delay: Duration,
    /// Pods below this priority neither trigger scale-up nor prevent the removal of nodes.
    pub expendable_pods_priority_cutoff: i32,
}

impl Default for AutoscalingConfiguration {
    fn default() -> Self {
        Self {
            enabled: true,
            profile: AutoscalingProfile::Balanced,
            scan_interval: Duration::from_secs(10),
            unneeded_time: None,
            delay_after_add: None,
            utilization_threshold: 0.5,
            max_nodes_per_scale_up: 1000,
            max_nodes_total: 0,
            initial_backoff: Duration::from_secs(300),
            max_backoff: Duration::from_secs(1800),
            max_node_provision_time: Duration::from_secs(900),
            node_removal_delay: Duration::from_secs(10),
            expendable_pods_priority_cutoff: -10,
        }
    }
}

impl AutoscalingConfiguration {
    /// How long a node must be unneeded before it is removed.
    pub fn unneeded(&self) -> std::time::Duration {
        self.unneeded_time.unwrap_or(self.profile_delay()).0
    }

    /// Time after a scale-up during which no node is removed.
    pub fn after_add(&self) -> std::time::Duration {
        self.delay_after_add.unwrap_or(self.profile_delay()).0
    }

    /// End of the back-off after an order of this pool that the cloud could not fulfil.
    pub fn retry_at(&self, pool: &NodePool) -> Option<Timestamp> {
        let shortage = pool.status.as_ref()?.shortage.as_ref()?;
        let doublings = u32::try_from(shortage.failures.clamp(1, 32) - 1).unwrap_or(0);
        let wait = self.initial_backoff.0.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX));
        let wait = SignedDuration::try_from(wait.min(self.max_backoff.0)).unwrap_or(SignedDuration::MAX);
        Some(shortage.since.0.checked_add(wait).unwrap_or(Timestamp::MAX))
    }

    fn profile_delay(&self) -> Duration {
        match self.profile {
            AutoscalingProfile::Balanced => Duration::from_secs(600),
            AutoscalingProfile::OptimizeUtilization => Duration::from_secs(60),
        }
    }
}

/// Whether, and within which limits, pools are created for pods that fit no existing pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAutoProvisioning {
    /// True to create pools.
    pub enabled: bool,
    /// Limits over all nodes of the cluster: `cpu`, `memory`, and one per accelerator type; an
    /// accelerator without a limit is never provisioned.
    pub limits: BTreeMap<String, ResourceLimit>,
    /// Machine types to choose from; default all known types.
    pub machine_types: Vec<String>,
    /// Zones of new pools; default the region's first zone.
    pub zones: Vec<String>,
    /// Maximum number of nodes of a created pool.
    pub max_nodes_per_pool: i32,
    /// Maximum number of nodes of a compact-placement group.
    pub max_nodes_per_placement_group: i32,
    /// Time to create a pool, before its first machine is ordered.
    pub pool_creation_delay: Duration,
    /// Start-up delay of machines; default as for other pools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_up_delay: Option<Duration>,
    /// Time from Ready until the accelerators are registered; default as for other pools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator_ready_delay: Option<Duration>,
}

impl Default for NodeAutoProvisioning {
    fn default() -> Self {
        Self {
            enabled: false,
            limits: BTreeMap::new(),
            machine_types: Vec::new(),
            zones: Vec::new(),
            max_nodes_per_pool: 1000,
            max_nodes_per_placement_group: 150,
            pool_creation_delay: Duration::from_secs(30),
            start_up_delay: None,
            accelerator_ready_delay: None,
        }
    }
}

/// Bounds of one resource over all nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceLimit {
    /// Minimum amount; informative only: a pool's own minimum limits the removal of nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<Quantity>,
    /// Maximum amount, which a scale-up may not exceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Quantity>,
}

/// How the cloud handles ProvisioningRequests of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningClass {
    /// Class name: `queued-provisioning.gke.io`, `check-capacity.autoscaling.x-k8s.io` or
    /// `best-effort-atomic-scale-up.autoscaling.x-k8s.io`.
    pub name: String,
    /// Time from creation to `Accepted`.
    #[serde(default = "seconds::<5>")]
    pub accept_delay: Duration,
    /// Time from `Accepted` until the machines are ordered, if there is capacity.
    #[serde(default = "seconds::<30>")]
    pub provision_delay: Duration,
    /// Time for which provisioned capacity is reserved for pods that do not exist yet.
    #[serde(default = "seconds::<600>")]
    pub booking_time: Duration,
    /// Lifetime of machines if the request does not set `maxRunDurationSeconds`.
    #[serde(default = "seconds::<604800>")]
    pub max_run_duration: Duration,
    /// Time from creation after which a request that was not provisioned fails, at most 7 days.
    #[serde(default = "seconds::<604800>")]
    pub max_wait: Duration,
    /// True if pods that consume a provisioned request get the toleration of queued pools
    /// (`cloud.google.com/gke-queued`). False if the pods' manifests must have the toleration. For
    /// `queued-provisioning.gke.io` only.
    #[serde(default = "yes")]
    pub adds_toleration: bool,
    /// Injected failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ProvisioningFailure>,
}

/// Injected failures of ProvisioningRequests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProvisioningFailure {
    /// Message of the condition; default that of a stock-out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Attempts (the number at the end of the request's name) up to this one fail; 0 fails all.
    pub attempts: u32,
}

const fn seconds<const N: u64>() -> Duration {
    Duration::from_secs(N)
}

const fn yes() -> bool {
    true
}

impl ProvisioningClass {
    /// A class with the default timing.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            accept_delay: seconds::<5>(),
            provision_delay: seconds::<30>(),
            booking_time: seconds::<600>(),
            max_run_duration: seconds::<604_800>(),
            max_wait: seconds::<604_800>(),
            adds_toleration: true,
            failure: None,
        }
    }
}

/// How simulated pods run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SimulatedPods {
    /// Time from binding to running: image pull and container start.
    pub start_delay: Duration,
    /// Time that deleted pods take to stop, at most their grace period.
    pub stop_delay: Duration,
    /// Run time of pods that have no run-time annotation and match no rule (pods that always
    /// restart run until deleted).
    pub default_duration: RunDuration,
    /// Rules in order; the first that matches applies.
    pub rules: Vec<RunRule>,
    /// Images that cannot be pulled. `*` matches any characters: `registry.example.com/*`.
    pub unreachable_images: Vec<String>,
}

impl Default for SimulatedPods {
    fn default() -> Self {
        Self {
            start_delay: Duration::from_secs(2),
            stop_delay: Duration::from_secs(1),
            default_duration: RunDuration::Fixed(Duration::from_secs(60)),
            rules: Vec::new(),
            unreachable_images: Vec::new(),
        }
    }
}

/// Run time and exit code of matching pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunRule {
    /// Namespaces of matching pods; empty for all.
    pub namespaces: Vec<String>,
    /// Labels of matching pods; absent or empty for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Run time; default `defaultDuration`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<RunDuration>,
    /// Exit code; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<ExitCode>,
}

/// A run time: `180s`, `{min: 1m, max: 5m}` for a random time that depends on the seed, or
/// `forever`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunDuration {
    /// Always this long.
    Fixed(Duration),
    /// Uniformly random, both ends included.
    Between {
        /// Minimum.
        min: Duration,
        /// Maximum.
        max: Duration,
    },
    /// Until deleted.
    Forever,
}

impl Serialize for RunDuration {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(duration) => duration.serialize(serializer),
            Self::Between { min, max } => json!({ "min": min, "max": max }).serialize(serializer),
            Self::Forever => "forever".serialize(serializer),
        }
    }
}

impl FromStr for RunDuration {
    type Err = DurationError;

    /// Parses a duration, or `forever`.
    fn from_str(text: &str) -> Result<Self, DurationError> {
        if text == "forever" { Ok(Self::Forever) } else { text.parse().map(Self::Fixed) }
    }
}

impl<'de> Deserialize<'de> for RunDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        match Value::deserialize(deserializer)? {
            Value::String(text) => text.parse().map_err(D::Error::custom),
            Value::Object(map) => {
                if let Some(unknown) = map.keys().find(|key| !matches!(key.as_str(), "min" | "max")) {
                    return Err(D::Error::custom(format!("unknown field `{unknown}`, expected `min` and `max`")));
                }
                let part = |name: &str| {
                    let text = map.get(name).and_then(Value::as_str);
                    text.ok_or_else(|| D::Error::custom(format!("`{name}` is missing: expected a duration")))?
                        .parse::<Duration>()
                        .map_err(D::Error::custom)
                };
                let (min, max) = (part("min")?, part("max")?);
                if min > max {
                    return Err(D::Error::custom(format!("min {min} is more than max {max}")));
                }
                Ok(Self::Between { min, max })
            }
            _ => Err(D::Error::custom("expected a duration such as \"180s\", {min, max}, or \"forever\"")),
        }
    }
}

/// Exit code of containers, 0 to 255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExitCode(pub u8);

/// All fields except the pools, which are read one by one so that errors have their paths.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rest {
    name: Option<String>,
    region: String,
    kubernetes_version: String,
    autoscaling: AutoscalingConfiguration,
    node_auto_provisioning: NodeAutoProvisioning,
    provisioning_classes: Option<Vec<ProvisioningClass>>,
    pods: SimulatedPods,
    scheduler: SchedulerConfiguration,
    images: ImageConfiguration,
    operators: OperatorConfiguration,
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            name: None,
            region: "us-central1".into(),
            kubernetes_version: "v1.35.2".into(),
            autoscaling: AutoscalingConfiguration::default(),
            node_auto_provisioning: NodeAutoProvisioning::default(),
            provisioning_classes: None,
            pods: SimulatedPods::default(),
            scheduler: SchedulerConfiguration::default(),
            images: ImageConfiguration::default(),
            operators: OperatorConfiguration::default(),
        }
    }
}

impl Default for ClusterConfiguration {
    /// The configuration of `berth up` without `--config`: two permanent CPU nodes, a pool of 0 to
    /// 20 CPU nodes, and one of 0 to 8 nodes with 2 L4 GPUs each, with short delays.
    fn default() -> Self {
        let spec = json!({
            "name": "berth",
            "nodePools": [
                { "name": "default-pool", "machineType": "e2-standard-4", "initialNodes": 2, "minNodes": 2, "maxNodes": 2, "static": true },
                { "name": "cpu", "machineType": "n2-standard-16", "maxNodes": 20, "startUpDelay": "10s", "readyDelay": "2s" },
                { "name": "gpu-l4", "machineType": "g2-standard-24", "maxNodes": 8, "startUpDelay": "10s", "readyDelay": "2s", "acceleratorReadyDelay": "5s" },
            ],
            "autoscaling": { "profile": "optimizeUtilization" },
        });
        Self::from_value(spec).expect("the default configuration is valid, a test reads it")
    }
}

impl<'de> Deserialize<'de> for ClusterConfiguration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_value(Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl ClusterConfiguration {
    /// Reads and validates a whole file (`apiVersion`, `kind`, `metadata`, `spec`) or a bare spec.
    pub fn from_value(value: Value) -> Result<Self, ConfigurationError> {
        let one = |path: &str, message: String| ConfigurationError { problems: vec![Problem::new(path, message)] };
        let Value::Object(mut document) = value else {
            return Err(one("", format!("expected a {KIND}, a mapping of fields")));
        };
        let is_file = ["apiVersion", "kind", "metadata", "spec"].iter().any(|field| document.contains_key(*field));
        if !is_file {
            return Self::from_spec(document, None, "");
        }
        for (field, expected) in [("apiVersion", super::API_VERSION), ("kind", KIND)] {
            match document.remove(field) {
                Some(Value::String(seen)) if seen == expected => {}
                Some(seen) => return Err(one(field, format!("{seen} is not {expected:?}"))),
                None => return Err(one(field, format!("required: {expected:?}"))),
            }
        }
        let metadata = document.remove("metadata").unwrap_or(Value::Null);
        let name = metadata.get("name").and_then(Value::as_str).map(str::to_owned);
        let spec = match document.remove("spec") {
            Some(Value::Object(spec)) => spec,
            None | Some(Value::Null) => Map::new(),
            Some(_) => return Err(one("spec", "expected a mapping of fields".into())),
        };
        if let Some(unknown) = document.keys().next() {
            return Err(one(unknown, "unknown field: expected apiVersion, kind, metadata and spec".into()));
        }
        Self::from_spec(spec, name, "spec")
    }

    fn from_spec(mut spec: Map<String, Value>, name: Option<String>, path: &str) -> Result<Self, ConfigurationError> {
        let mut problems = Vec::new();
        let pools_path = join(path, "nodePools");
        let mut node_pools = Vec::new();
        match spec.remove("nodePools") {
            None | Some(Value::Null) => {}
            Some(Value::Array(pools)) => {
                for (i, pool) in pools.into_iter().enumerate() {
                    node_pools.extend(read_pool(pool, &format!("{pools_path}[{i}]"), &mut problems));
                }
            }
            Some(_) => problems.push(Problem::new(&pools_path, "expected a list of node pools")),
        }
        let rest: Rest = strict(Value::Object(spec), path, &mut problems).unwrap_or_default();
        let configuration = Self {
            name: rest.name.or(name).unwrap_or_else(|| "berth".into()),
            region: rest.region,
            kubernetes_version: rest.kubernetes_version,
            node_pools,
            autoscaling: rest.autoscaling,
            node_auto_provisioning: rest.node_auto_provisioning,
            provisioning_classes: rest.provisioning_classes.unwrap_or_else(default_classes),
            pods: rest.pods,
            scheduler: rest.scheduler,
            images: rest.images,
            operators: rest.operators,
        };
        // Validation of incomplete values would only repeat the errors above.
        if problems.is_empty() {
            problems = configuration.problems(path);
        }
        if problems.is_empty() { Ok(configuration) } else { Err(ConfigurationError { problems }) }
    }

    /// The provisioning class with this name, if the cluster handles it.
    pub fn provisioning_class(&self, name: &str) -> Option<&ProvisioningClass> {
        self.provisioning_classes.iter().find(|class| class.name == name)
    }

    fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let at = |field: &str| join(path, field);
        if let Some(why) = name_problem(&self.name) {
            problems.push(Problem::new(at("name"), why.replace("a pool name", "a cluster name")));
        }
        // Node pools: valid, with distinct names, and at most one for this machine.
        let mut names = BTreeSet::new();
        for (i, pool) in self.node_pools.iter().enumerate() {
            let here = at(&format!("nodePools[{i}]"));
            problems.extend(pool.spec.problems(&here));
            if let Some(why) = name_problem(&pool.name) {
                problems.push(Problem::new(join(&here, "name"), why));
            }
            if !names.insert(&pool.name) {
                problems
                    .push(Problem::new(join(&here, "name"), format!("{:?} is the name of an earlier pool", pool.name)));
            }
        }
        for (i, pool) in self.node_pools.iter().enumerate().filter(|(_, pool)| pool.spec.is_process()).skip(1) {
            let message = format!("{:?}: only one pool can be this machine, which is one node", pool.name);
            problems.push(Problem::new(at(&format!("nodePools[{i}].runtime")), message));
        }
        // The node autoscaler, and the bounds of both autoscalers.
        let scaling = &self.autoscaling;
        if scaling.scan_interval.0.is_zero() {
            problems.push(Problem::new(at("autoscaling.scanInterval"), "must be more than 0s"));
        }
        if !(0.0..=1.0).contains(&scaling.utilization_threshold) {
            let message = format!("{} is not a share between 0 and 1", scaling.utilization_threshold);
            problems.push(Problem::new(at("autoscaling.utilizationThreshold"), message));
        }
        for (field, value, least) in [
            ("autoscaling.maxNodesPerScaleUp", scaling.max_nodes_per_scale_up, 1),
            ("autoscaling.maxNodesTotal", scaling.max_nodes_total, 0),
            ("nodeAutoProvisioning.maxNodesPerPool", self.node_auto_provisioning.max_nodes_per_pool, 1),
            (
                "nodeAutoProvisioning.maxNodesPerPlacementGroup",
                self.node_auto_provisioning.max_nodes_per_placement_group,
                1,
            ),
        ] {
            if value < least {
                problems.push(Problem::new(at(field), format!("{value} is less than {least}")));
            }
        }
        // Node auto-provisioning: limits and machine types.
        let provisioning = &self.node_auto_provisioning;
        if provisioning.enabled {
            for resource in ["cpu", "memory"] {
                if provisioning.limits.get(resource).is_none_or(|limit| limit.max.is_none()) {
                    let field = format!("nodeAutoProvisioning.limits.{resource}.max");
                    problems.push(Problem::new(at(&field), "required when node auto-provisioning is enabled"));
                }
            }
        }
        for (resource, limit) in &provisioning.limits {
            for (bound, quantity) in [("min", &limit.min), ("max", &limit.max)] {
                if let Some(why) = quantity.as_ref().and_then(quantity_problem) {
                    let field = format!("nodeAutoProvisioning.limits.{resource}.{bound}");
                    problems.push(Problem::new(at(&field), why));
                }
            }
        }
        for (i, name) in provisioning.machine_types.iter().enumerate() {
            if machine_type(name).is_none() {
                let field = format!("nodeAutoProvisioning.machineTypes[{i}]");
                problems.push(Problem::new(at(&field), format!("{name:?} is not a known machine type")));
            }
        }
        problems.extend(self.scheduler.problems(&at("scheduler")));
        problems.extend(self.images.problems(&at("images")));
        problems.extend(self.operators.problems(&at("operators"), &self.scheduler));
        // Provisioning classes: known, and each listed once.
        let mut classes = BTreeSet::new();
        for (i, class) in self.provisioning_classes.iter().enumerate() {
            let field = at(&format!("provisioningClasses[{i}].name"));
            if !CLASSES.contains(&class.name.as_str()) {
                let message = format!("{:?} is not a known class: expected {}", class.name, CLASSES.join(", "));
                problems.push(Problem::new(field, message));
            } else if !classes.insert(&class.name) {
                problems.push(Problem::new(field, format!("{:?} is listed twice", class.name)));
            }
            if class.max_wait > seconds::<604_800>() {
                let field = at(&format!("provisioningClasses[{i}].maxWait"));
                problems.push(Problem::new(field, format!("{} is more than 7 days (168h)", class.max_wait)));
            }
        }
        problems
    }
}

/// The provisioning classes that the embedded cloud implements.
const CLASSES: [&str; 3] = [
    "best-effort-atomic-scale-up.autoscaling.x-k8s.io",
    "check-capacity.autoscaling.x-k8s.io",
    "queued-provisioning.gke.io",
];

fn default_classes() -> Vec<ProvisioningClass> {
    CLASSES.iter().map(|name| ProvisioningClass::named(name)).collect()
}

fn read_pool(value: Value, path: &str, problems: &mut Vec<Problem>) -> Option<NamedNodePool> {
    let Value::Object(mut fields) = value else {
        problems.push(Problem::new(path, "expected a node pool, a mapping of fields"));
        return None;
    };
    let name = match fields.remove("name") {
        Some(Value::String(name)) => name,
        Some(_) => {
            problems.push(Problem::new(join(path, "name"), "expected a string"));
            return None;
        }
        None => {
            problems.push(Problem::new(join(path, "name"), "required"));
            return None;
        }
    };
    let spec = strict(Value::Object(fields), path, problems)?;
    Some(NamedNodePool { name, spec })
}

/// Reads a value. Reports a wrong type, and every unknown field, with its path.
pub(crate) fn strict<T: DeserializeOwned>(value: Value, path: &str, problems: &mut Vec<Problem>) -> Option<T> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let read = {
        let deserializer = serde_path_to_error::Deserializer::new(value, &mut track);
        serde_ignored::deserialize(deserializer, |at| unknown.push(at.to_string()))
    };
    for at in unknown {
        problems.push(Problem::new(join(path, &brackets(&at)), "unknown field"));
    }
    match read {
        Ok(read) => Some(read),
        Err(error) => {
            let at = track.path().to_string();
            let at = if at == "." { String::new() } else { at };
            problems.push(Problem::new(join(path, &at), error.to_string()));
            None
        }
    }
}

/// Converts `rules.0.selector` to `rules[0].selector`; `?`, which marks an option, is removed.
fn brackets(path: &str) -> String {
    let mut text = String::new();
    for part in path.split('.').filter(|part| *part != "?") {
        if part.bytes().all(|b| b.is_ascii_digit()) {
            text.push_str(&format!("[{part}]"));
        } else {
            text = join(&text, part);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::ImageFiles;
    use super::*;

    fn problems(spec: Value) -> Vec<String> {
        let error = ClusterConfiguration::from_value(spec).expect_err("must be rejected");
        error.problems.iter().map(ToString::to_string).collect()
    }

    fn pool(fields: Value) -> Value {
        let mut pool = json!({ "name": "a", "machineType": "e2-standard-4" });
        pool.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        pool
    }

    #[test]
    fn the_gang_scheduler_is_one_that_starts_pod_groups() {
        let spec = |name: &str, profiles: Value| json!({ "operators": { "gangSchedulerName": name }, "scheduler": { "profiles": profiles } });
        let gangs = json!([{ "schedulerName": "gangs", "pluginConfig": [{ "name": "Coscheduling", "args": {} }] }]);
        let packs = json!([{ "schedulerName": "packs" }]);
        let accepted = |spec: Value| ClusterConfiguration::from_value(spec).is_ok();
        assert!(accepted(spec("gangs", gangs.clone())) && accepted(spec("", packs.clone())));
        assert!(accepted(json!({ "operators": { "gangSchedulerName": "sakkara-scheduler" } })), "a default profile");
        let expected = |name: &str, known: &str| {
            format!(
                "operators.gangSchedulerName: {name:?} is not a scheduler of this cluster that starts PodGroups of \
                 scheduling.x-k8s.io: expected a name from scheduler.profiles with plugin Coscheduling or \
                 ClusterTopologyPlacementGroup ({known})"
            )
        };
        assert_eq!(problems(spec("volcano", gangs)), [expected("volcano", "gangs")]);
        assert_eq!(problems(spec("packs", packs)), [expected("packs", "none has one")]);
    }

    #[test]
    fn the_default_cluster_is_valid_and_survives_a_round_trip() {
        let configuration = ClusterConfiguration::default();
        let written = serde_json::to_value(&configuration).unwrap();
        assert_eq!(ClusterConfiguration::from_value(written).unwrap(), configuration);
    }

    #[test]
    fn a_file_has_a_kind_and_takes_its_name_from_the_metadata() {
        let file = json!({ "apiVersion": "berth.dev/v1alpha1", "kind": "ClusterConfiguration",
            "metadata": { "name": "batch-dev" }, "spec": { "region": "europe-west4" } });
        let configuration = ClusterConfiguration::from_value(file).unwrap();
        assert_eq!((configuration.name.as_str(), configuration.region.as_str()), ("batch-dev", "europe-west4"));
        let wrong = json!({ "apiVersion": "v1", "kind": "ClusterConfiguration" });
        assert_eq!(problems(wrong), [r#"apiVersion: "v1" is not "berth.dev/v1alpha1""#]);
    }

    #[test]
    fn invalid_numbers_are_reported_with_pool_and_bound() {
        let spec = json!({ "nodePools": [
            pool(json!({ "minNodes": 5, "maxNodes": 3, "initialNodes": 5 })),
            pool(json!({ "initialNodes": -1 })),
        ] });
        assert_eq!(
            problems(spec),
            [
                "nodePools[0].minNodes: 5 is more than maxNodes (3)",
                "nodePools[0].initialNodes: 5 is more than maxNodes (3)",
                "nodePools[1].initialNodes: -1 is outside 0 to 15000",
                "nodePools[1].initialNodes: -1 is less than minNodes (0)",
                "nodePools[1].name: \"a\" is the name of an earlier pool",
            ]
        );
    }

    #[test]
    fn a_process_pool_rejects_machine_fields() {
        let process = json!({ "name": "machine", "runtime": "process", "reserve": { "cpu": "1" } });
        ClusterConfiguration::from_value(json!({ "nodePools": [process, pool(json!({}))] })).expect("valid");
        let spec = json!({ "nodePools": [
            { "name": "one", "runtime": "process", "machineType": "e2-standard-4", "maxNodes": 3,
              "reserve": { "gpu": "1", "memory": "much" } },
            { "name": "two", "runtime": "process" },
            pool(json!({ "name": "three", "reserve": { "cpu": "1" } })),
        ] });
        let not_taken = "a pool with runtime: process is this machine and does not have this field";
        assert_eq!(
            problems(spec),
            [
                format!("nodePools[0].machineType: {not_taken}"),
                format!("nodePools[0].maxNodes: {not_taken}"),
                "nodePools[0].reserve[gpu]: \"gpu\" cannot be reserved: expected cpu, ephemeral-storage, memory".into(),
                "nodePools[0].reserve[memory]: \"much\" is not an amount: expected a quantity of 0 or more, such as \
                 \"4\", \"500m\" or \"16Gi\""
                    .into(),
                "nodePools[2].reserve: only a pool with runtime: process can reserve amounts of its machine".into(),
                "nodePools[1].runtime: \"two\": only one pool can be this machine, which is one node".into(),
            ]
        );
    }

    #[test]
    fn image_mappings_name_files_of_the_host_or_the_registry() {
        let spec = json!({ "images": { "otherwise": "strict", "mappings": [
            { "image": "pytorch/*", "files": "/srv/images/torch", "entrypoint": ["python3"], "env": ["A=1"] },
            { "image": "registry.lan/*", "files": "pull" },
        ] } });
        let images = ClusterConfiguration::from_value(spec).expect("valid").images;
        assert_eq!(images.otherwise, ImageFiles::Strict);
        assert_eq!(images.mappings[0].files, ImageFiles::Folder("/srv/images/torch".into()));
        let written = serde_json::to_value(&images).expect("written");
        assert_eq!(serde_json::from_value::<ImageConfiguration>(written).expect("read"), images);
        let spec = json!({ "images": { "mappings": [
            { "files": "pull", "user": "1000" },
            { "image": "a", "env": ["A"], "workingDir": "srv" },
        ] } });
        assert_eq!(
            problems(spec),
            [
                "images.mappings[0].image: required: a pattern of image names, such as \"pytorch/*\"",
                "images.mappings[0].user: may be set only if files is host or a folder, because a stored image declares its own value",
                "images.mappings[1].env[0]: \"A\" is not NAME=value",
                "images.mappings[1].workingDir: \"srv\" is not an absolute path",
            ]
        );
        let spec = json!({ "images": { "otherwise": "never" } });
        assert!(problems(spec)[0].starts_with("images.otherwise: \"never\" is not host, pull, strict or"));
    }

    #[test]
    fn unknown_fields_and_wrong_types_are_reported_with_their_paths() {
        let spec = json!({ "nodePool": [], "nodePools": [
            pool(json!({ "taints": [{ "key": "a" }] })),
            pool(json!({ "machine": { "gpus": 1 }, "provisioning": "preemptible" })),
        ], "pods": { "rules": [{ "duration": "5" }] } });
        let problems = problems(spec);
        for expected in [
            "nodePool: unknown field",
            "nodePools[0].taints[0]: missing field `effect`",
            "nodePools[1].machine.gpus: unknown field",
            "nodePools[1].provisioning: unknown variant `preemptible`",
            "pods.rules[0].duration: \"5\" is not a duration",
        ] {
            assert!(problems.iter().any(|problem| problem.starts_with(expected)), "{expected} not in {problems:#?}");
        }
    }

    #[test]
    fn label_keys_taints_and_machine_types_are_checked() {
        let spec = json!({ "nodePools": [pool(json!({
            "machineType": "z9-huge", "labels": { "-bad": "x", "ok": "not ok!" },
            "taints": [{ "key": "", "effect": "NoSchedule" }],
        }))] });
        let problems = problems(spec);
        for expected in [
            "nodePools[0].machineType: \"z9-huge\" is not a known machine type",
            "nodePools[0].labels[-bad]: \"-bad\" is not a label key",
            "nodePools[0].labels[ok]: \"not ok!\" is not a label value",
            "nodePools[0].taints[0].key: \"\" is not a label key",
        ] {
            assert!(problems.iter().any(|problem| problem.starts_with(expected)), "{expected} not in {problems:#?}");
        }
    }

    #[test]
    fn amounts_are_checked() {
        let spec = json!({
            "nodePools": [{ "name": "a", "machine": { "cpu": "four", "memory": "-1Gi" }, "allocatable": { "cpu": "3.5x" } }],
            "nodeAutoProvisioning": { "enabled": true, "limits": { "cpu": { "max": "many" }, "memory": { "max": "1Ti" } } },
        });
        let expected = "is not an amount: expected a quantity of 0 or more, such as \"4\", \"500m\" or \"16Gi\"";
        assert_eq!(
            problems(spec),
            [
                format!("nodePools[0].machine.cpu: \"four\" {expected}"),
                format!("nodePools[0].machine.memory: \"-1Gi\" {expected}"),
                format!("nodePools[0].allocatable[cpu]: \"3.5x\" {expected}"),
                format!("nodeAutoProvisioning.limits.cpu.max: \"many\" {expected}"),
            ]
        );
    }

    #[test]
    fn run_times_are_fixed_random_or_endless() {
        let read = |value: Value| serde_json::from_value::<RunDuration>(value).map_err(|e| e.to_string());
        assert_eq!(read(json!("3m")), Ok(RunDuration::Fixed(Duration::from_secs(180))));
        assert_eq!(read(json!("forever")), Ok(RunDuration::Forever));
        assert!(read(json!({ "min": "5s", "max": "1s" })).unwrap_err().contains("more than"));
        assert!(read(json!({ "min": "5s", "maximum": "1s" })).unwrap_err().contains("unknown field `maximum`"));
    }
}
