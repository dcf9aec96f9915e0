//! The format of generator files.

use berth_apimachinery::quantity::Quantity;
use serde::{Deserialize, Deserializer};

/// Why a generator file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not a generator file. The message names line and field.
    #[error("not a generator configuration: {0}")]
    Form(String),
    /// A value is invalid. The error names its path.
    #[error("{path}: {problem}")]
    Value {
        /// Path of the field.
        path: String,
        /// The problem, and the accepted values.
        problem: String,
    },
}

/// A generator file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The topology and its nodes, if placement matters.
    pub topology: Option<TopologyConfig>,
    /// The only flavor.
    pub resource_flavor: Option<FlavorConfig>,
    /// Cohorts, by class.
    pub cohorts: Vec<CohortSet>,
}

/// A topology and its nodes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TopologyConfig {
    /// Name of the Topology.
    pub name: String,
    /// Levels from coarse to fine; the last are the nodes.
    pub levels: Vec<LevelConfig>,
}

/// One level of a topology.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LevelConfig {
    /// Prefix of the domains' names.
    pub name: String,
    /// Number of domains in each domain of the level above.
    pub count: u32,
    /// Node label of the level.
    pub node_label: String,
    /// Capacity of a node of the last level.
    pub capacity: Option<CapacityConfig>,
}

/// Capacity of a node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapacityConfig {
    /// CPU.
    pub cpu: Amount,
    /// Memory.
    pub memory: Amount,
}

/// The flavor of every queue's quota.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FlavorConfig {
    /// Name of the ResourceFlavor.
    pub name: String,
    /// Label of its nodes, whose value is `tas`.
    pub node_label: Option<String>,
    /// Topology of its nodes.
    pub topology_name: Option<String>,
}

/// A set of equal cohorts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CohortSet {
    /// Prefix of their names.
    pub class_name: String,
    /// Number of cohorts.
    pub count: u32,
    /// Queues of each cohort.
    pub queues_sets: Vec<QueueSet>,
}

/// A set of equal queues.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueueSet {
    /// Prefix of their names.
    pub class_name: String,
    /// Number of queues in each cohort.
    pub count: u32,
    /// Nominal quota of CPU.
    pub nominal_quota: Amount,
    /// Borrowing limit of CPU; unlimited if absent or empty.
    pub borrowing_limit: Option<Amount>,
    /// `spec.preemption.reclaimWithinCohort`.
    #[serde(default)]
    pub reclaim_within_cohort: Policy,
    /// `spec.preemption.withinClusterQueue`.
    #[serde(default)]
    pub within_cluster_queue: Policy,
    /// Workloads of each queue.
    pub workloads_sets: Vec<WorkloadSet>,
}

/// A preemption policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum Policy {
    /// No workloads.
    #[default]
    Never,
    /// Workloads of lower priority.
    LowerPriority,
    /// Workloads of lower priority, or newer ones of equal priority.
    LowerOrNewerEqualPriority,
    /// All workloads.
    Any,
}

/// Workloads that are created one after another.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkloadSet {
    /// Number of times that one workload is created from each template.
    pub count: u32,
    /// Delay before each creation.
    pub creation_interval_ms: u64,
    /// Templates of the workloads.
    pub workloads: Vec<WorkloadTemplate>,
}

/// A workload template.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkloadTemplate {
    /// Class name in reports.
    pub class_name: String,
    /// Run time after admission.
    pub runtime_ms: u64,
    /// `spec.priority`.
    pub priority: i32,
    /// CPU of one pod.
    pub request: Amount,
    /// Number of pods. Default: 1.
    pub pod_count: Option<i32>,
    /// Topology constraint of the pods.
    pub tas_constraint: Option<Constraint>,
    /// Node label of a topology level.
    pub tas_level: Option<String>,
    /// Pods per slice, with `balanced`.
    pub slice_size: Option<i32>,
}

/// A topology constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Constraint {
    /// All pods in one domain.
    Required,
    /// All pods in one domain if possible.
    Preferred,
    /// Each slice in one domain.
    Balanced,
}

/// A quantity, written as a number or a string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Amount(Quantity);

impl Amount {
    /// In thousandths.
    pub fn milli(&self) -> i64 {
        self.0.milli_value()
    }

    /// In whole units.
    pub fn units(&self) -> i64 {
        self.0.value()
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        Quantity::from_json(&value).map(Amount).map_err(|error| {
            serde::de::Error::custom(format!("{value} is not a quantity such as 20 or \"500m\": {error}"))
        })
    }
}

impl Config {
    /// Parses a generator file.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let config: Config = serde_saphyr::from_str(text).map_err(|error| ConfigError::Form(error.to_string()))?;
        config.check()?;
        Ok(config)
    }

    /// Validates the values of a generator file.
    fn check(&self) -> Result<(), ConfigError> {
        let problem = |path: String, problem: &str| Err(ConfigError::Value { path, problem: problem.to_owned() });
        if self.cohorts.is_empty() {
            return problem("cohorts".to_owned(), "at least one cohort class is needed");
        }
        if let Some(topology) = &self.topology
            && topology.levels.is_empty()
        {
            return problem("topology.levels".to_owned(), "at least one level is needed, whose domains are the nodes");
        }
        let levels: Vec<&str> =
            self.topology.iter().flat_map(|it| &it.levels).map(|level| level.node_label.as_str()).collect();
        for (c, cohort) in self.cohorts.iter().enumerate() {
            for (q, queues) in cohort.queues_sets.iter().enumerate() {
                for (s, set) in queues.workloads_sets.iter().enumerate() {
                    for (t, template) in set.workloads.iter().enumerate() {
                        let path = |field: &str| {
                            format!("cohorts[{c}].queuesSets[{q}].workloadsSets[{s}].workloads[{t}].{field}")
                        };
                        if template.pod_count.is_some_and(|count| count < 1) {
                            return problem(path("podCount"), "must be at least 1");
                        }
                        if template.slice_size.is_some_and(|size| size < 1) {
                            return problem(path("sliceSize"), "must be at least 1");
                        }
                        if template.request.milli() < 0 {
                            return problem(path("request"), "must not be negative");
                        }
                        match (&template.tas_constraint, &template.tas_level) {
                            (Some(_), None) => return problem(path("tasLevel"), "is needed with tasConstraint"),
                            (None, Some(_)) => return problem(path("tasConstraint"), "is needed with tasLevel"),
                            (_, Some(level)) if !levels.contains(&level.as_str()) => {
                                return problem(path("tasLevel"), "must be the nodeLabel of one of topology.levels");
                            }
                            _ => {}
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
