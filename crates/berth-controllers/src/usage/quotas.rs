//! The nominal quota of teams, queues and flavors, for comparisons with their usage.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::kueue::v1beta2::{ClusterQueue, LocalQueue};
use berth_engine::Amount;
use jiff::Timestamp;
use kube::ResourceExt;

use super::{By, Period};
use crate::translate::amounts;

/// Nominal quotas of cluster queues, as they are now: earlier quotas are not recorded.
#[derive(Clone, Debug, Default)]
pub struct Quotas {
    queues: BTreeMap<String, QueueQuota>,
    /// Cluster queues that each namespace may use.
    of_namespace: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Clone, Debug)]
struct QueueQuota {
    created: Option<Timestamp>,
    /// Base units by flavor and resource.
    nominal: BTreeMap<(String, String), Amount>,
    namespaces: BTreeSet<String>,
}

impl Quotas {
    /// The quotas of these queues.
    pub fn of<'a>(
        cluster_queues: impl IntoIterator<Item = &'a ClusterQueue>,
        local_queues: impl IntoIterator<Item = &'a LocalQueue>,
    ) -> Self {
        let mut quotas = Quotas::default();
        for queue in cluster_queues {
            let flavors = queue.spec.resource_groups.iter().flat_map(|group| &group.flavors);
            let nominal = flavors.flat_map(|flavor| {
                flavor.resources.iter().map(|resource| {
                    let amount = amounts::quota(&resource.name, &resource.nominal_quota);
                    ((flavor.name.clone(), resource.name.clone()), amount)
                })
            });
            let quota = QueueQuota {
                created: queue.metadata.creation_timestamp.as_ref().map(|at| at.0),
                nominal: nominal.collect(),
                namespaces: BTreeSet::new(),
            };
            quotas.queues.insert(queue.name_any(), quota);
        }
        for queue in local_queues {
            let (namespace, cluster_queue) = (queue.namespace().unwrap_or_default(), &queue.spec.cluster_queue);
            if let Some(quota) = quotas.queues.get_mut(cluster_queue) {
                quota.namespaces.insert(namespace.clone());
            }
            quotas.of_namespace.entry(namespace).or_default().insert(cluster_queue.clone());
        }
        quotas
    }

    /// Nominal quota times seconds of the period, in base units; `None` if the group has no quota
    /// of its own, or if it is unlimited. `name` is `None` for all groups together. Queues count
    /// from their creation.
    pub(super) fn seconds(
        &self,
        by: By,
        name: Option<&str>,
        flavor: &str,
        resource: &str,
        period: Period,
    ) -> Option<i128> {
        let key = (flavor.to_owned(), resource.to_owned());
        let mut sum: Option<i128> = None;
        for queue in self.selected(by, name) {
            let Some(amount) = queue.nominal.get(&key) else { continue };
            let Amount::Bounded(amount) = amount else { return None };
            let from = queue.created.map_or(period.since, |created| created.max(period.since));
            let seconds = i128::from(*amount) * i128::from(period.seconds(from.as_second(), period.until.as_second()));
            sum = Some(sum.unwrap_or(0) + seconds);
        }
        sum.filter(|sum| *sum > 0)
    }

    /// The cluster queues whose quota belongs to a group.
    fn selected(&self, by: By, name: Option<&str>) -> Vec<&QueueQuota> {
        let Some(name) = name else { return self.queues.values().collect() };
        match by {
            By::Flavor => self.queues.values().collect(),
            By::Queue => self.queues.get(name).into_iter().collect(),
            // Quota that several namespaces may use does not belong to one of them.
            By::Team => {
                let names = self.of_namespace.get(name).into_iter().flatten();
                names.filter_map(|queue| self.queues.get(queue)).filter(|queue| queue.namespaces.len() == 1).collect()
            }
            By::User | By::LocalQueue => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quota_belongs_to_queues_flavors_and_teams_that_own_their_queue() {
        let queue = |name: &str, quota: &str| -> ClusterQueue {
            let resources = json!([{"name": "cpu", "nominalQuota": quota}]);
            serde_json::from_value(json!({
                "metadata": {"name": name, "creationTimestamp": "2026-01-01T12:00:00Z"},
                "spec": {"resourceGroups": [{"coveredResources": ["cpu"],
                    "flavors": [{"name": "default", "resources": resources}]}]}}))
            .expect("a queue")
        };
        let local = |namespace: &str, of: &str| -> LocalQueue {
            serde_json::from_value(json!({"metadata": {"name": "main", "namespace": namespace},
                "spec": {"clusterQueue": of}}))
            .expect("a queue")
        };
        let queues = [queue("blue", "4"), queue("shared", "2")];
        let locals = [local("blue", "blue"), local("red", "shared"), local("green", "shared")];
        let quotas = Quotas::of(&queues, &locals);
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let period = Period { since: at("2026-01-01T00:00:00Z"), until: at("2026-01-02T00:00:00Z") };
        let hours = |by: By, name: &str| {
            let seconds = quotas.seconds(by, Some(name), "default", "cpu", period)?;
            Some(seconds / 3_600_000)
        };
        assert_eq!(hours(By::Queue, "blue"), Some(48), "from its creation");
        assert_eq!(hours(By::Flavor, "default"), Some(72));
        assert_eq!((hours(By::Team, "blue"), hours(By::Team, "red")), (Some(48), None));
        assert_eq!(hours(By::User, "alice"), None);
        assert_eq!(quotas.seconds(By::User, None, "default", "cpu", period), Some(72 * 3_600_000));
    }
}
