//! The sections `autoscaling` and `nodeAutoProvisioning`: when node pools grow and shrink, and when
//! new ones are created.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};

use super::super::node_pool::quantity_problem;
use super::super::problem::join;
use super::super::{Duration, NodePool, Problem, machine_type};

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
    /// Maximum of the time that `initialBackoff` and its doublings give.
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

    pub(super) fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.scan_interval.0.is_zero() {
            problems.push(Problem::new(join(path, "scanInterval"), "must be more than 0s"));
        }
        if !(0.0..=1.0).contains(&self.utilization_threshold) {
            let message = format!("{} is not a share between 0 and 1", self.utilization_threshold);
            problems.push(Problem::new(join(path, "utilizationThreshold"), message));
        }
        problems.extend(at_least(&join(path, "maxNodesPerScaleUp"), self.max_nodes_per_scale_up, 1));
        problems.extend(at_least(&join(path, "maxNodesTotal"), self.max_nodes_total, 0));
        problems
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

impl NodeAutoProvisioning {
    pub(super) fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        problems.extend(at_least(&join(path, "maxNodesPerPool"), self.max_nodes_per_pool, 1));
        problems.extend(at_least(&join(path, "maxNodesPerPlacementGroup"), self.max_nodes_per_placement_group, 1));
        if self.enabled {
            for resource in ["cpu", "memory"] {
                if self.limits.get(resource).is_none_or(|limit| limit.max.is_none()) {
                    let field = join(path, &format!("limits.{resource}.max"));
                    problems.push(Problem::new(field, "required when node auto-provisioning is enabled"));
                }
            }
        }
        for (resource, limit) in &self.limits {
            for (bound, quantity) in [("min", &limit.min), ("max", &limit.max)] {
                if let Some(why) = quantity.as_ref().and_then(quantity_problem) {
                    problems.push(Problem::new(join(path, &format!("limits.{resource}.{bound}")), why));
                }
            }
        }
        for (i, name) in self.machine_types.iter().enumerate() {
            if machine_type(name).is_none() {
                let message = format!("{name:?} is not a known machine type");
                problems.push(Problem::new(join(path, &format!("machineTypes[{i}]")), message));
            }
        }
        problems
    }
}

/// The problem of a number below its minimum.
fn at_least(field: &str, value: i32, least: i32) -> Option<Problem> {
    (value < least).then(|| Problem::new(field, format!("{value} is less than {least}")))
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
