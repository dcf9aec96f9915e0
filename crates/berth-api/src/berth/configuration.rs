//! The file kind `ClusterConfiguration`: the embedded cluster a person wants, for `berth up --config` and scenarios.
//!
//! Two forms are read: a file with `apiVersion`, `kind`, `metadata` and `spec`, and the bare spec (the `cluster`
//! section of a scenario). Unknown fields are problems, and all problems are reported at once with their paths.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use super::node_pool::{name_problem, quantity_problem};
use super::problem::join;
use super::{ConfigurationError, Duration, NodePoolSpec, Problem, machine_type};

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
    /// What nodes report as their kubelet's version.
    pub kubernetes_version: String,
    /// The pools the cluster starts with.
    pub node_pools: Vec<NamedNodePool>,
    /// How pools grow and shrink.
    pub autoscaling: AutoscalingConfiguration,
    /// Whether pools are made for pods no pool can serve.
    pub node_auto_provisioning: NodeAutoProvisioning,
    /// How the cloud answers ProvisioningRequests, per class.
    pub provisioning_classes: Vec<ProvisioningClass>,
    /// How simulated pods run.
    pub pods: SimulatedPods,
    /// The pod scheduler.
    pub scheduler: SchedulerConfiguration,
}

/// A pool of the configuration: its name and what would be a NodePool's spec.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NamedNodePool {
    /// Name.
    pub name: String,
    /// The rest.
    #[serde(flatten)]
    pub spec: NodePoolSpec,
}

/// Sets the timers that are not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AutoscalingProfile {
    /// The open-source autoscaler's timers: 10 minutes idle, 10 minutes after growing.
    #[default]
    Balanced,
    /// GKE's profile that gives machines back soon: 1 minute idle, 1 minute after growing.
    OptimizeUtilization,
}

/// How pools grow and shrink.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AutoscalingConfiguration {
    /// False leaves all pools as they are.
    pub enabled: bool,
    /// Sets the timers below that are not given.
    pub profile: AutoscalingProfile,
    /// Time between two looks.
    pub scan_interval: Duration,
    /// How long a node must be unneeded before it is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unneeded_time: Option<Duration>,
    /// No node is removed for this long after one was ordered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_after_add: Option<Duration>,
    /// A node whose requested share of CPU and memory (accelerators, where it has any) is below this is a candidate.
    pub utilization_threshold: f64,
    /// Most nodes ordered at once.
    pub max_nodes_per_scale_up: i32,
    /// Most nodes in the cluster; 0 for no limit.
    pub max_nodes_total: i32,
    /// How long machines may take to register before the order is given up.
    pub max_node_provision_time: Duration,
    /// From marking a node for removal to the machine being gone.
    pub node_removal_delay: Duration,
    /// Pods below this priority neither trigger growth nor hold nodes.
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

    /// No node is removed for this long after one was ordered.
    pub fn after_add(&self) -> std::time::Duration {
        self.delay_after_add.unwrap_or(self.profile_delay()).0
    }

    fn profile_delay(&self) -> Duration {
        match self.profile {
            AutoscalingProfile::Balanced => Duration::from_secs(600),
            AutoscalingProfile::OptimizeUtilization => Duration::from_secs(60),
        }
    }
}

/// Whether and within what limits pools are made for pods no pool can serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAutoProvisioning {
    /// Whether pools are made.
    pub enabled: bool,
    /// Limits over all nodes of the cluster: `cpu`, `memory`, and one per accelerator type; an accelerator without a
    /// limit is never provisioned.
    pub limits: BTreeMap<String, ResourceLimit>,
    /// Machine types to choose from; default all known.
    pub machine_types: Vec<String>,
    /// Zones new pools may use; default the region's first.
    pub zones: Vec<String>,
    /// Most nodes of one made pool.
    pub max_nodes_per_pool: i32,
    /// Most nodes of one compact-placement group.
    pub max_nodes_per_placement_group: i32,
    /// How long making a pool takes, before its first machine is ordered.
    pub pool_creation_delay: Duration,
    /// Start-up delay of the machines; default as for any pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_up_delay: Option<Duration>,
    /// From Ready to the accelerators showing up; default as for any pool.
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
    /// What the cluster keeps; informative, nodes are never removed below pools' own minima.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<Quantity>,
    /// What growth may not exceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Quantity>,
}

/// How the cloud answers ProvisioningRequests of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningClass {
    /// Class name: `queued-provisioning.gke.io`, `check-capacity.autoscaling.x-k8s.io` or
    /// `best-effort-atomic-scale-up.autoscaling.x-k8s.io`.
    pub name: String,
    /// From creation to Accepted.
    #[serde(default = "seconds::<5>")]
    pub accept_delay: Duration,
    /// From Accepted to the machines being ordered, when there is room.
    #[serde(default = "seconds::<30>")]
    pub provision_delay: Duration,
    /// How long provisioned capacity is kept for pods that have not come.
    #[serde(default = "seconds::<600>")]
    pub booking_time: Duration,
    /// How long machines live when the request does not say (`maxRunDurationSeconds`).
    #[serde(default = "seconds::<604800>")]
    pub max_run_duration: Duration,
    /// Fails requests on purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ProvisioningFailure>,
}

/// Fails ProvisioningRequests on purpose.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProvisioningFailure {
    /// Condition message; default a stock-out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Requests up to this attempt (the number their name ends in) fail; 0 fails all.
    pub attempts: u32,
}

const fn seconds<const N: u64>() -> Duration {
    Duration::from_secs(N)
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
            failure: None,
        }
    }
}

/// How simulated pods run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SimulatedPods {
    /// From being bound to running: image pull and container start.
    pub start_delay: Duration,
    /// How long pods take to stop when deleted; never longer than their grace period.
    pub stop_delay: Duration,
    /// How long pods run that say nothing themselves and match no rule (pods that restart always run for ever).
    pub default_duration: RunDuration,
    /// Tried in order; the first that matches decides.
    pub rules: Vec<RunRule>,
    /// Images that cannot be pulled. `*` stands for any text: `registry.example.com/*`.
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

/// How long matching pods run and how they end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunRule {
    /// Namespaces it is for; empty for all.
    pub namespaces: Vec<String>,
    /// Pods it is for; absent or empty for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// How long they run; default the default duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<RunDuration>,
    /// How they end; default with exit code 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<ExitCode>,
}

/// A run time: `180s`, or `{min: 1m, max: 5m}` for a draw from the seed, or `forever`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunDuration {
    /// Always this long.
    Fixed(Duration),
    /// Evenly drawn, both ends included.
    Between {
        /// Shortest.
        min: Duration,
        /// Longest.
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

impl<'de> Deserialize<'de> for RunDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        match Value::deserialize(deserializer)? {
            Value::String(text) if text == "forever" => Ok(Self::Forever),
            Value::String(text) => text.parse().map(Self::Fixed).map_err(D::Error::custom),
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

/// The exit code containers end with, 0 to 255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExitCode(pub u8);

/// The pod scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulerConfiguration {
    /// Pods with this `spec.schedulerName` are scheduled.
    pub name: String,
    /// Whether pods may preempt pods of lower priority.
    pub preemption: bool,
}

impl Default for SchedulerConfiguration {
    fn default() -> Self {
        Self { name: "default-scheduler".into(), preemption: true }
    }
}

/// Everything but the pools, which are read one by one for their paths.
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
        }
    }
}

impl Default for ClusterConfiguration {
    /// What `berth up` runs without `--config`: two CPU nodes that are always there, a pool of 0 to 20 CPU nodes and
    /// one of 0 to 8 nodes with 2 L4 GPUs each, growing quickly.
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
    /// Reads a whole file (`apiVersion`, `kind`, `metadata`, `spec`) or a bare spec, and checks it.
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
        };
        // Checking half-read values would only repeat what is known to be wrong.
        if problems.is_empty() {
            problems = configuration.problems(path);
        }
        if problems.is_empty() { Ok(configuration) } else { Err(ConfigurationError { problems }) }
    }

    /// The class with this name, if the cluster answers it.
    pub fn provisioning_class(&self, name: &str) -> Option<&ProvisioningClass> {
        self.provisioning_classes.iter().find(|class| class.name == name)
    }

    fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let at = |field: &str| join(path, field);
        if let Some(why) = name_problem(&self.name) {
            problems.push(Problem::new(at("name"), why.replace("a pool name", "a cluster name")));
        }
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
                problems.push(Problem::new(at(&field), format!("{name:?} is not a machine type known here")));
            }
        }
        let mut classes = BTreeSet::new();
        for (i, class) in self.provisioning_classes.iter().enumerate() {
            let field = at(&format!("provisioningClasses[{i}].name"));
            if !CLASSES.contains(&class.name.as_str()) {
                let message = format!("{:?} is not a class known here: {}", class.name, CLASSES.join(", "));
                problems.push(Problem::new(field, message));
            } else if !classes.insert(&class.name) {
                problems.push(Problem::new(field, format!("{:?} stands here twice", class.name)));
            }
        }
        problems
    }
}

/// The provisioning classes the embedded cloud can answer.
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
            problems.push(Problem::new(join(path, "name"), "expected a text"));
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

/// Reads a value, reporting a wrong type with its path and every unknown field with its.
fn strict<T: DeserializeOwned>(value: Value, path: &str, problems: &mut Vec<Problem>) -> Option<T> {
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

/// `rules.0.selector` as `rules[0].selector`; an option on the way shows as `?`, which nobody wrote.
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
    use super::*;

    fn problems(spec: Value) -> Vec<String> {
        let error = ClusterConfiguration::from_value(spec).expect_err("must be refused");
        error.problems.iter().map(ToString::to_string).collect()
    }

    fn pool(fields: Value) -> Value {
        let mut pool = json!({ "name": "a", "machineType": "e2-standard-4" });
        pool.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        pool
    }

    #[test]
    fn the_default_cluster_is_valid_and_survives_being_written() {
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
    fn wrong_numbers_name_the_pool_and_the_bound() {
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
    fn unknown_fields_and_wrong_types_name_their_path() {
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
            "nodePools[0].machineType: \"z9-huge\" is not a machine type known here",
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
    fn run_times_are_fixed_drawn_or_without_end() {
        let read = |value: Value| serde_json::from_value::<RunDuration>(value).map_err(|e| e.to_string());
        assert_eq!(read(json!("3m")), Ok(RunDuration::Fixed(Duration::from_secs(180))));
        assert_eq!(read(json!("forever")), Ok(RunDuration::Forever));
        assert!(read(json!({ "min": "5s", "max": "1s" })).unwrap_err().contains("more than"));
        assert!(read(json!({ "min": "5s", "maximum": "1s" })).unwrap_err().contains("unknown field `maximum`"));
    }
}
