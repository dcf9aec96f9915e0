//! The schedulers of the cluster, by the `spec.schedulerName` that pods name.

use berth_api::berth::{AutoscalingProfile, ClusterConfiguration, SchedulerProfile};
use jiff::SignedDuration;

use crate::placement::{Packing, Ranking, Scoring};

/// A scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// It places pods with this `spec.schedulerName`.
    pub name: String,
    /// How the nodes of a pod are ranked.
    pub ranking: Ranking,
    /// True if pods may preempt pods of lower priority.
    pub preemption: bool,
    /// The plugin that forms gangs.
    pub gangs: GangPlugin,
}

/// The plugin that forms gangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GangPlugin {
    /// Pods are placed one by one.
    None,
    /// Coscheduling.
    Coscheduling {
        /// Time for which a placed pod waits for its group.
        permit_wait: SignedDuration,
        /// Time for which a rejected group is not tried.
        back_off: SignedDuration,
        /// Share of a group, in percent, that may lack a node without rejecting the placed pods.
        reject_percentage: i64,
    },
    /// Sakkara's ClusterTopologyPlacementGroup.
    PlacementGroup {
        /// Namespace of the topology's ConfigMap.
        topology_namespace: String,
    },
}

impl Profile {
    /// The profiles of a configuration, the default scheduler first.
    pub fn all(configuration: &ClusterConfiguration) -> Vec<Self> {
        let packing = match configuration.autoscaling.profile {
            AutoscalingProfile::Balanced => Packing::Spread,
            AutoscalingProfile::OptimizeUtilization => Packing::Pack,
        };
        let default = Self {
            name: configuration.scheduler.name.clone(),
            ranking: Ranking::Packing(packing),
            preemption: configuration.scheduler.preemption,
            gangs: GangPlugin::None,
        };
        let further = configuration.scheduler.profiles.iter().map(|profile| Self::of(profile, packing));
        std::iter::once(default).chain(further).collect()
    }

    fn of(profile: &SchedulerProfile, packing: Packing) -> Self {
        let coscheduling = profile.coscheduling().map(|args| GangPlugin::Coscheduling {
            permit_wait: SignedDuration::from_secs(args.permit_waiting_time_seconds),
            back_off: SignedDuration::from_secs(args.pod_group_backoff_seconds),
            reject_percentage: args.pod_group_reject_percentage,
        });
        let placement = profile
            .placement_group()
            .map(|args| GangPlugin::PlacementGroup { topology_namespace: args.topology_config_map_name_space.clone() });
        Self {
            name: profile.scheduler_name.clone(),
            ranking: profile
                .scoring()
                .map_or(Ranking::Packing(packing), |strategy| Ranking::Scoring(Scoring::from(strategy))),
            preemption: profile.preemption,
            gangs: coscheduling.or(placement).unwrap_or(GangPlugin::None),
        }
    }
}
