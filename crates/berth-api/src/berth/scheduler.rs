//! The pod scheduler's section of a `ClusterConfiguration`: the default scheduler, and further
//! profiles with gangs and scoring. Profiles have the fields of kube-scheduler's configuration, so
//! that `pluginConfig` of an existing one can be copied.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Problem;
use super::problem::join;

/// The pod scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulerConfiguration {
    /// The default scheduler handles pods with this `spec.schedulerName`.
    pub name: String,
    /// True if pods may preempt pods of lower priority.
    pub preemption: bool,
    /// Further schedulers, which pods choose by `spec.schedulerName`.
    pub profiles: Vec<SchedulerProfile>,
}

impl Default for SchedulerConfiguration {
    /// The default scheduler, the coscheduling plugin's scheduler, and Sakkara's under both of its
    /// names, all with the plugins' own defaults.
    fn default() -> Self {
        let profile = |name: &str, plugin| SchedulerProfile {
            scheduler_name: name.to_owned(),
            preemption: true,
            plugin_config: vec![plugin],
        };
        let in_namespace = |namespace: &str| {
            PluginConfig::ClusterTopologyPlacementGroup(ClusterTopologyPlacementGroupArgs {
                topology_config_map_name_space: namespace.to_owned(),
            })
        };
        Self {
            name: "default-scheduler".into(),
            preemption: true,
            profiles: vec![
                profile("scheduler-plugins-scheduler", PluginConfig::Coscheduling(CoschedulingArgs::default())),
                profile("sakkara-scheduler", in_namespace("sakkara-scheduler")),
                profile("sakkara", in_namespace("sakkara-scheduler")),
            ],
        }
    }
}

/// A further scheduler. It runs the plugins that `pluginConfig` names, in addition to
/// kube-scheduler's filters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerProfile {
    /// The profile handles pods with this `spec.schedulerName`.
    pub scheduler_name: String,
    /// True if pods may preempt pods of lower priority.
    #[serde(default = "yes")]
    pub preemption: bool,
    /// Plugins and their arguments.
    #[serde(default)]
    pub plugin_config: Vec<PluginConfig>,
}

const fn yes() -> bool {
    true
}

/// A plugin and its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", content = "args", deny_unknown_fields)]
pub enum PluginConfig {
    /// How the nodes of a pod are ranked by their free amounts.
    NodeResourcesFit(NodeResourcesFitArgs),
    /// Gangs by PodGroups.
    Coscheduling(CoschedulingArgs),
    /// Gangs by Sakkara's groups, and by PodGroups.
    ClusterTopologyPlacementGroup(ClusterTopologyPlacementGroupArgs),
}

impl PluginConfig {
    /// The plugin's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NodeResourcesFit(_) => "NodeResourcesFit",
            Self::Coscheduling(_) => "Coscheduling",
            Self::ClusterTopologyPlacementGroup(_) => "ClusterTopologyPlacementGroup",
        }
    }
}

/// Arguments of NodeResourcesFit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct NodeResourcesFitArgs {
    /// How nodes are ranked.
    pub scoring_strategy: ScoringStrategy,
}

/// How nodes are ranked by their free amounts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ScoringStrategy {
    /// The strategy.
    pub r#type: ScoringStrategyType,
    /// Resources that count; default cpu and memory, equally.
    pub resources: Vec<ResourceWeight>,
    /// The function of `RequestedToCapacityRatio`; required for that type only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_to_capacity_ratio: Option<RequestedToCapacityRatio>,
}

impl Default for ScoringStrategy {
    fn default() -> Self {
        let resource = |name: &str| ResourceWeight { name: name.to_owned(), weight: 1 };
        Self {
            r#type: ScoringStrategyType::LeastAllocated,
            resources: vec![resource("cpu"), resource("memory")],
            requested_to_capacity_ratio: None,
        }
    }
}

/// Strategy of ranking nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScoringStrategyType {
    /// The emptiest node first.
    #[default]
    LeastAllocated,
    /// The fullest node first.
    MostAllocated,
    /// By a function of the used share.
    RequestedToCapacityRatio,
}

/// Weight of a resource in the average over resources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceWeight {
    /// Name of the resource.
    pub name: String,
    /// Weight, 1 to 100.
    #[serde(default = "one")]
    pub weight: i64,
}

const fn one() -> i64 {
    1
}

/// The function of `RequestedToCapacityRatio`: linear between its points.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RequestedToCapacityRatio {
    /// Points, by ascending utilization.
    pub shape: Vec<UtilizationShapePoint>,
}

/// A point of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UtilizationShapePoint {
    /// Used share in percent, 0 to 100.
    pub utilization: i64,
    /// Score, 0 to 10.
    pub score: i64,
}

/// Arguments of Coscheduling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CoschedulingArgs {
    /// Seconds for which a pod with a reserved node waits for the rest of its group.
    pub permit_waiting_time_seconds: i64,
    /// Seconds for which a group is not tried after it was rejected.
    pub pod_group_backoff_seconds: i64,
    /// Waiting pods of a group are rejected if a larger share of `minMember` than this has no node,
    /// in percent.
    pub pod_group_reject_percentage: i64,
}

impl Default for CoschedulingArgs {
    fn default() -> Self {
        Self { permit_waiting_time_seconds: 60, pod_group_backoff_seconds: 0, pod_group_reject_percentage: 10 }
    }
}

/// Arguments of ClusterTopologyPlacementGroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ClusterTopologyPlacementGroupArgs {
    /// Namespace of the ConfigMap with the topology.
    pub topology_config_map_name_space: String,
}

impl Default for ClusterTopologyPlacementGroupArgs {
    fn default() -> Self {
        Self { topology_config_map_name_space: "default".into() }
    }
}

impl SchedulerProfile {
    /// Arguments of Coscheduling, if the profile runs that plugin.
    pub fn coscheduling(&self) -> Option<&CoschedulingArgs> {
        self.plugin_config.iter().find_map(|plugin| match plugin {
            PluginConfig::Coscheduling(args) => Some(args),
            _ => None,
        })
    }

    /// Arguments of ClusterTopologyPlacementGroup, if the profile runs that plugin.
    pub fn placement_group(&self) -> Option<&ClusterTopologyPlacementGroupArgs> {
        self.plugin_config.iter().find_map(|plugin| match plugin {
            PluginConfig::ClusterTopologyPlacementGroup(args) => Some(args),
            _ => None,
        })
    }

    /// The configured ranking of nodes, if any.
    pub fn scoring(&self) -> Option<&ScoringStrategy> {
        self.plugin_config.iter().find_map(|plugin| match plugin {
            PluginConfig::NodeResourcesFit(args) => Some(&args.scoring_strategy),
            _ => None,
        })
    }
}

impl SchedulerConfiguration {
    /// Names of the schedulers that start the pods of a PodGroup together.
    pub fn of_pod_groups(&self) -> impl Iterator<Item = &str> {
        let gangs = |it: &&SchedulerProfile| it.coscheduling().is_some() || it.placement_group().is_some();
        self.profiles.iter().filter(gangs).map(|profile| profile.scheduler_name.as_str())
    }

    /// Errors of the section at `path`.
    pub(super) fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut names = BTreeSet::from([self.name.as_str()]);
        if self.name.is_empty() {
            problems.push(Problem::new(join(path, "name"), "must not be empty"));
        }
        for (i, profile) in self.profiles.iter().enumerate() {
            let here = join(path, &format!("profiles[{i}]"));
            let at = join(&here, "schedulerName");
            if profile.scheduler_name.is_empty() {
                problems.push(Problem::new(at, "must not be empty"));
            } else if !names.insert(&profile.scheduler_name) {
                let message = format!("{:?} is the name of an earlier scheduler", profile.scheduler_name);
                problems.push(Problem::new(at, message));
            }
            problems.extend(profile.problems(&here));
        }
        problems
    }
}

impl SchedulerProfile {
    fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut seen = BTreeSet::new();
        for (i, plugin) in self.plugin_config.iter().enumerate() {
            let here = join(path, &format!("pluginConfig[{i}]"));
            if !seen.insert(plugin.name()) {
                problems.push(Problem::new(join(&here, "name"), format!("{} is listed twice", plugin.name())));
            }
            let args = join(&here, "args");
            match plugin {
                PluginConfig::NodeResourcesFit(fit) => {
                    problems.extend(fit.scoring_strategy.problems(&join(&args, "scoringStrategy")));
                }
                PluginConfig::Coscheduling(gangs) => problems.extend(gangs.problems(&args)),
                PluginConfig::ClusterTopologyPlacementGroup(_) => {}
            }
        }
        if seen.contains("Coscheduling") && seen.contains("ClusterTopologyPlacementGroup") {
            let message = "Coscheduling and ClusterTopologyPlacementGroup both form gangs: a profile may have one";
            problems.push(Problem::new(join(path, "pluginConfig"), message));
        }
        problems
    }
}

impl CoschedulingArgs {
    fn problems(&self, path: &str) -> Vec<Problem> {
        let bounds = [
            ("permitWaitingTimeSeconds", self.permit_waiting_time_seconds, 1, 604_800),
            ("podGroupBackoffSeconds", self.pod_group_backoff_seconds, 0, 604_800),
            ("podGroupRejectPercentage", self.pod_group_reject_percentage, 0, 100),
        ];
        let outside = bounds.into_iter().filter(|(_, value, least, most)| !(*least..=*most).contains(value));
        outside
            .map(|(field, value, least, most)| {
                Problem::new(join(path, field), format!("{value} is outside {least} to {most}"))
            })
            .collect()
    }
}

impl ScoringStrategy {
    fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.resources.is_empty() {
            problems.push(Problem::new(join(path, "resources"), "expected at least one resource"));
        }
        for (i, resource) in self.resources.iter().enumerate() {
            if !(1..=100).contains(&resource.weight) {
                let at = join(path, &format!("resources[{i}].weight"));
                problems.push(Problem::new(at, format!("{} is outside 1 to 100", resource.weight)));
            }
        }
        let at = join(path, "requestedToCapacityRatio");
        let is_ratio = self.r#type == ScoringStrategyType::RequestedToCapacityRatio;
        match &self.requested_to_capacity_ratio {
            Some(_) if !is_ratio => {
                problems.push(Problem::new(at, "allowed only with type RequestedToCapacityRatio"));
            }
            Some(ratio) => problems.extend(ratio.problems(&join(&at, "shape"))),
            None if is_ratio => problems.push(Problem::new(at, "required with type RequestedToCapacityRatio")),
            None => {}
        }
        problems
    }
}

impl RequestedToCapacityRatio {
    fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.shape.is_empty() {
            problems.push(Problem::new(path, "expected at least one point"));
        }
        for (i, point) in self.shape.iter().enumerate() {
            for (field, value, most) in [("utilization", point.utilization, 100), ("score", point.score, 10)] {
                if !(0..=most).contains(&value) {
                    let at = join(path, &format!("[{i}].{field}"));
                    problems.push(Problem::new(at, format!("{value} is outside 0 to {most}")));
                }
            }
            if i > 0 && self.shape[i - 1].utilization >= point.utilization {
                let before = self.shape[i - 1].utilization;
                let message = format!("{} is not more than {before} of the point before", point.utilization);
                problems.push(Problem::new(join(path, &format!("[{i}].utilization")), message));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::ClusterConfiguration;
    use super::*;

    fn read(scheduler: Value) -> Result<SchedulerConfiguration, Vec<String>> {
        ClusterConfiguration::from_value(json!({ "scheduler": scheduler }))
            .map(|configuration| configuration.scheduler)
            .map_err(|error| error.problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn mlbatchs_plugin_configuration_is_read_as_written() {
        let scheduler = read(json!({ "profiles": [{ "schedulerName": "scheduler-plugins-scheduler", "pluginConfig": [
            { "name": "NodeResourcesFit", "args": { "scoringStrategy": {
                "type": "RequestedToCapacityRatio",
                "resources": [{ "name": "nvidia.com/gpu", "weight": 1 }],
                "requestedToCapacityRatio": { "shape": [
                    { "utilization": 0, "score": 0 }, { "utilization": 100, "score": 10 },
                ] },
            } } },
            { "name": "Coscheduling", "args": { "permitWaitingTimeSeconds": 300 } },
        ] }] }))
        .expect("valid");
        let profile = &scheduler.profiles[0];
        let expected = CoschedulingArgs { permit_waiting_time_seconds: 300, ..CoschedulingArgs::default() };
        assert_eq!(profile.coscheduling(), Some(&expected));
        assert_eq!(profile.scoring().expect("scoring").resources[0].name, "nvidia.com/gpu");
        assert!(profile.preemption, "the default");
        let written = serde_json::to_value(&scheduler).expect("written");
        assert_eq!(read(written), Ok(scheduler));
    }

    #[test]
    fn gang_schedulers_exist_without_configuration() {
        let scheduler = read(json!({})).expect("valid");
        let names: Vec<&str> = scheduler.profiles.iter().map(|it| it.scheduler_name.as_str()).collect();
        assert_eq!(names, ["scheduler-plugins-scheduler", "sakkara-scheduler", "sakkara"]);
        assert_eq!(read(json!({ "profiles": [] })).expect("valid").profiles, []);
    }

    #[test]
    fn errors_of_profiles_are_reported_with_their_paths() {
        let ratio = |shape: Value| {
            json!({ "name": "NodeResourcesFit", "args": { "scoringStrategy": {
            "type": "RequestedToCapacityRatio", "resources": [{ "name": "cpu", "weight": 0 }],
            "requestedToCapacityRatio": { "shape": shape } } } })
        };
        let scheduler = json!({ "profiles": [
            { "schedulerName": "default-scheduler" },
            { "schedulerName": "a", "pluginConfig": [
                ratio(json!([{ "utilization": 50, "score": 11 }, { "utilization": 50, "score": 1 }])),
                { "name": "Coscheduling", "args": { "podGroupRejectPercentage": 101 } },
                { "name": "Coscheduling", "args": {} },
                { "name": "ClusterTopologyPlacementGroup", "args": {} },
            ] },
        ] });
        let fit = "scheduler.profiles[1].pluginConfig[0].args.scoringStrategy";
        assert_eq!(
            read(scheduler).expect_err("must be rejected"),
            [
                "scheduler.profiles[0].schedulerName: \"default-scheduler\" is the name of an earlier scheduler".into(),
                format!("{fit}.resources[0].weight: 0 is outside 1 to 100"),
                format!("{fit}.requestedToCapacityRatio.shape[0].score: 11 is outside 0 to 10"),
                format!(
                    "{fit}.requestedToCapacityRatio.shape[1].utilization: 50 is not more than 50 of the point before"
                ),
                "scheduler.profiles[1].pluginConfig[1].args.podGroupRejectPercentage: 101 is outside 0 to 100".into(),
                "scheduler.profiles[1].pluginConfig[2].name: Coscheduling is listed twice".into(),
                "scheduler.profiles[1].pluginConfig: Coscheduling and ClusterTopologyPlacementGroup both form gangs: \
                 a profile may have one"
                    .into(),
            ]
        );
        let misspelt = json!({ "profiles": [{ "schedulerName": "a", "pluginConfig": [
            { "name": "Coscheduling", "args": { "permitWaitingTime": 3 } } ] }] });
        let problems = read(misspelt).expect_err("must be rejected");
        assert!(problems[0].contains("unknown field `permitWaitingTime`"), "{problems:?}");
        let unknown = json!({ "profiles": [{ "schedulerName": "a", "pluginConfig": [{ "name": "Volcano" }] }] });
        let problems = read(unknown).expect_err("must be rejected");
        assert!(problems[0].contains("unknown variant `Volcano`, expected one of"), "{problems:?}");
    }
}
