//! Cohorts whose nominal quota exceeds what healthy nodes have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::kueue::v1beta2::{ClusterQueue, Cohort, ResourceGroup};
use berth_apimachinery::quantity::Quantity;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::Flavors;
use crate::health::{Amounts, NodeHealth, capacity};

/// Type of the condition on ClusterQueues: `True` while nominal quota exceeds what healthy nodes
/// have.
pub const CONDITION: &str = "NominalQuotaExceedsHealthyCapacity";
/// Number of nodes that a message names.
const NODES_NAMED: usize = 3;
/// Maximum depth of a tree of cohorts; cycles end there.
const DEPTH_MAX: usize = 64;
/// Maximum time between the creation of a node and the first state of its condition `Ready`.
const REGISTRATION_MAX: SignedDuration = SignedDuration::from_secs(10);

/// A flavor's resource of which a cohort has more nominal quota than healthy nodes have.
#[derive(Clone, Debug, PartialEq)]
pub struct Shortfall {
    /// Flavor.
    pub flavor: String,
    /// Resource.
    pub resource: String,
    /// What happened, in a sentence.
    pub message: String,
}

/// The cluster as shortfalls depend on it.
pub struct Snapshot<'a> {
    /// All ClusterQueues.
    pub queues: &'a [Arc<ClusterQueue>],
    /// All Cohorts that exist as objects.
    pub cohorts: &'a [Arc<Cohort>],
    /// The flavors.
    pub flavors: &'a Flavors,
    /// All nodes with their health.
    pub nodes: &'a [(Arc<Node>, NodeHealth)],
    /// Name of the slack queue; empty if there is none.
    pub slack_queue: &'a str,
}

/// The shortfalls of every ClusterQueue with nominal quota of the resource, by queue. Trees with
/// the slack queue have none. A shortfall needs an unhealthy node: quota beyond the size of a
/// cluster that can grow is no shortfall, nor is a node that starts.
pub fn shortfalls(cluster: &Snapshot<'_>) -> BTreeMap<String, Vec<Shortfall>> {
    let mut found = BTreeMap::new();
    if cluster.nodes.iter().all(|(node, health)| health.no_schedule.is_empty() || is_starting(node)) {
        return found;
    }
    let mut trees: BTreeMap<String, Vec<&ClusterQueue>> = BTreeMap::new();
    for queue in cluster.queues {
        trees.entry(root(queue, cluster.cohorts)).or_default().push(queue);
    }
    for (root, queues) in &trees {
        if queues.iter().any(|queue| queue.name_any() == cluster.slack_queue) {
            continue;
        }
        let of_tree = of_tree(root, queues, cluster);
        for queue in queues {
            let own = nominal(&queue.spec.resource_groups);
            let of_queue = of_tree.iter().filter(|short| {
                own.get(&(short.flavor.clone(), short.resource.clone())).is_some_and(|quota| !quota.is_zero())
            });
            let of_queue: Vec<Shortfall> = of_queue.cloned().collect();
            if !of_queue.is_empty() {
                found.insert(queue.name_any(), of_queue);
            }
        }
    }
    found
}

/// The shortfalls of a tree of cohorts.
fn of_tree(root: &str, queues: &[&ClusterQueue], cluster: &Snapshot<'_>) -> Vec<Shortfall> {
    let members =
        cluster.cohorts.iter().filter(|cohort| format!("cohort {}", top(&cohort.name_any(), cluster.cohorts)) == root);
    let groups = queues.iter().map(|queue| &queue.spec.resource_groups);
    let mut quotas: BTreeMap<(String, String), Quantity> = BTreeMap::new();
    for groups in groups.chain(members.map(|cohort| &cohort.spec.resource_groups)) {
        for (key, amount) in nominal(groups) {
            quotas.entry(key).and_modify(|known| known.add(amount)).or_insert(amount);
        }
    }
    let flavors: BTreeSet<&str> = quotas.keys().map(|(flavor, _)| flavor.as_str()).collect();
    let capacities: BTreeMap<&str, OfFlavor> =
        flavors.into_iter().map(|flavor| (flavor, OfFlavor::of(flavor, cluster))).collect();
    let short = quotas.iter().filter_map(|((flavor, resource), quota)| {
        let (healthy, lacking) = capacities.get(flavor.as_str())?.of_resource(resource)?;
        let message = format!(
            "{root} has a nominal quota of {quota} for {resource} in flavor {flavor}, but healthy nodes have {healthy}: {lacking}",
        );
        (*quota > healthy).then(|| Shortfall { flavor: flavor.clone(), resource: resource.clone(), message })
    });
    short.collect()
}

/// What the nodes of a flavor have, and lack.
struct OfFlavor<'a> {
    total: Amounts,
    unhealthy: Vec<&'a (Arc<Node>, NodeHealth)>,
}

impl<'a> OfFlavor<'a> {
    fn of(flavor: &str, cluster: &Snapshot<'a>) -> Self {
        let mut found = Self { total: Amounts::new(), unhealthy: Vec::new() };
        let started = cluster.nodes.iter().filter(|(node, _)| !is_starting(node));
        for entry in started.filter(|(node, _)| cluster.flavors.has(flavor, node)) {
            for (resource, amount) in capacity(&entry.0) {
                found.total.entry(resource).and_modify(|known| known.add(amount)).or_insert(amount);
            }
            if !entry.1.no_schedule.is_empty() {
                found.unhealthy.push(entry);
            }
        }
        found
    }

    /// What healthy nodes have of a resource, and a description of the nodes that lack some. `None`
    /// if no node lacks any.
    fn of_resource(&self, resource: &str) -> Option<(Quantity, String)> {
        let mut healthy = self.total.get(resource).copied().unwrap_or(Quantity::ZERO);
        let mut nodes = Vec::new();
        for (node, health) in &self.unhealthy {
            let Some(amount) = health.no_schedule.get(resource) else { continue };
            healthy.sub(*amount);
            nodes.push(format!("node {} ({}) lacks {amount}", node.name_any(), health.reasons.join(", ")));
        }
        if nodes.is_empty() {
            return None;
        }
        let more = nodes.len().saturating_sub(NODES_NAMED);
        nodes.truncate(NODES_NAMED);
        if more > 0 {
            nodes.push(format!("{more} more nodes lack capacity"));
        }
        Some((healthy, nodes.join("; ")))
    }
}

/// True for a node that has not been ready since it was created: a kubelet registers its node
/// before the node can run pods. Such a node is new capacity, not lost capacity.
fn is_starting(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    let Some(ready) = ready.filter(|ready| ready.status != "True") else { return false };
    match (&ready.last_transition_time, &node.metadata.creation_timestamp) {
        (Some(changed), Some(created)) => changed.0.duration_since(created.0) <= REGISTRATION_MAX,
        _ => false,
    }
}

/// The root of the tree to which a queue belongs, as a message names it.
fn root(queue: &ClusterQueue, cohorts: &[Arc<Cohort>]) -> String {
    match queue.spec.cohort_name.as_str() {
        "" => format!("ClusterQueue {}", queue.name_any()),
        cohort => format!("cohort {}", top(cohort, cohorts)),
    }
}

/// The root of a cohort's tree.
fn top(cohort: &str, cohorts: &[Arc<Cohort>]) -> String {
    let mut name = cohort.to_owned();
    for _ in 0..DEPTH_MAX {
        let parent = cohorts.iter().find(|it| it.name_any() == name).map(|it| it.spec.parent_name.clone());
        match parent {
            Some(parent) if !parent.is_empty() => name = parent,
            _ => break,
        }
    }
    name
}

/// Nominal quota by flavor and resource.
fn nominal(groups: &[ResourceGroup]) -> BTreeMap<(String, String), Quantity> {
    let mut quotas: BTreeMap<(String, String), Quantity> = BTreeMap::new();
    for flavor in groups.iter().flat_map(|group| &group.flavors) {
        for quota in &flavor.resources {
            let Ok(amount) = Quantity::parse(&quota.nominal_quota.0) else { continue };
            let key = (flavor.name.clone(), quota.name.clone());
            quotas.entry(key).and_modify(|known| known.add(amount)).or_insert(amount);
        }
    }
    quotas
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::health::NodeHealthConfiguration;

    #[test]
    fn a_node_that_starts_is_not_lost_capacity() {
        let node = |changed: &str| {
            let node: Value = json!({
                "metadata": {"name": "n1", "creationTimestamp": "2026-01-05T08:00:00Z"},
                "spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]},
                "status": {"capacity": {"nvidia.com/gpu": "8"}, "conditions": [
                    {"type": "Ready", "status": "False", "lastTransitionTime": changed}]},
            });
            let node: Node = serde_json::from_value(node).expect("a node");
            let health = NodeHealth::of(&node, &NodeHealthConfiguration::default());
            assert!(!health.no_schedule.is_empty(), "a node that is not ready lacks its capacity");
            vec![(Arc::new(node), health)]
        };
        let short = |nodes: &[(Arc<Node>, NodeHealth)]| {
            let queues = [queue("blue", "", "8")];
            let flavors = Flavors::default();
            let cluster = Snapshot { queues: &queues, cohorts: &[], flavors: &flavors, nodes, slack_queue: "" };
            shortfalls(&cluster).len()
        };
        assert_eq!(short(&node("2026-01-05T08:00:01Z")), 0);
        assert_eq!(short(&node("2026-01-05T09:00:00Z")), 1);
    }

    fn queue(name: &str, cohort: &str, gpus: &str) -> Arc<ClusterQueue> {
        let quota = json!([{"name": "nvidia.com/gpu", "nominalQuota": gpus}]);
        let spec = json!({"cohortName": cohort, "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"],
            "flavors": [{"name": "default-flavor", "resources": quota}]}]});
        let queue = json!({"metadata": {"name": name}, "spec": spec});
        Arc::new(serde_json::from_value(queue).expect("a ClusterQueue"))
    }

    fn cohort(name: &str, parent: &str) -> Arc<Cohort> {
        let cohort = json!({"metadata": {"name": name}, "spec": {"parentName": parent}});
        Arc::new(serde_json::from_value(cohort).expect("a Cohort"))
    }

    fn node(name: &str, health: &str) -> (Arc<Node>, NodeHealth) {
        let node: Value = json!({"metadata": {"name": name, "labels": {"autopilot.ibm.com/gpuhealth": health}},
            "status": {"capacity": {"nvidia.com/gpu": "8"}}});
        let node: Node = serde_json::from_value(node).expect("a node");
        let health = NodeHealth::of(&node, &NodeHealthConfiguration::default());
        (Arc::new(node), health)
    }

    /// Messages by queue, in a cluster of three nodes with this health.
    fn found(
        queues: &[Arc<ClusterQueue>],
        cohorts: &[Arc<Cohort>],
        health: [&str; 3],
        slack_queue: &str,
    ) -> Vec<(String, String)> {
        let nodes = [node("n1", health[0]), node("n2", health[1]), node("n3", health[2])];
        let cluster = Snapshot { queues, cohorts, flavors: &Flavors::default(), nodes: &nodes, slack_queue };
        let found = shortfalls(&cluster);
        found.into_iter().flat_map(|(queue, all)| all.into_iter().map(move |it| (queue.clone(), it.message))).collect()
    }

    #[test]
    fn a_cohort_with_more_quota_than_healthy_nodes_is_short() {
        let queues = [queue("blue", "team", "8"), queue("red", "team", "16"), queue("none", "team", "0")];
        assert_eq!(found(&queues, &[], ["PASS"; 3], ""), []);
        let message = "cohort team has a nominal quota of 24 for nvidia.com/gpu in flavor default-flavor, but healthy \
                       nodes have 16: node n2 (label autopilot.ibm.com/gpuhealth=EVICT) lacks 8";
        let expected = [("blue".to_owned(), message.to_owned()), ("red".to_owned(), message.to_owned())];
        assert_eq!(found(&queues, &[], ["PASS", "EVICT", ""], ""), expected);
        assert_eq!(found(&queues, &[], ["PASS", "WARN", ""], ""), []);
    }

    #[test]
    fn a_slack_queue_and_spare_capacity_cover_the_loss() {
        let queues = [queue("blue", "team", "8"), queue("slack", "team", "16")];
        assert_eq!(found(&queues, &[], ["EVICT", "", ""], "slack"), []);
        assert_eq!(found(&queues, &[], ["EVICT", "", ""], "other").len(), 2);
        assert_eq!(found(&[queue("blue", "", "16")], &[], ["EVICT", "", ""], ""), []);
        let alone = found(&[queue("blue", "", "17")], &[], ["EVICT", "", ""], "");
        assert!(alone[0].1.starts_with("ClusterQueue blue has a nominal quota of 17 "), "{alone:?}");
    }

    #[test]
    fn quota_is_summed_over_the_tree_of_cohorts() {
        let queues = [queue("a", "left", "9"), queue("b", "right", "9")];
        assert_eq!(found(&queues, &[], ["EVICT", "", ""], "").len(), 0);
        let cohorts = [cohort("left", "root"), cohort("right", "root")];
        let short = found(&queues, &cohorts, ["EVICT", "", ""], "");
        assert!(short.len() == 2 && short[0].1.starts_with("cohort root has a nominal quota of 18 "), "{short:?}");
        let cycle = [cohort("left", "right"), cohort("right", "left")];
        found(&queues, &cycle, ["EVICT", "", ""], "");
    }

    #[test]
    fn a_long_list_of_nodes_is_cut() {
        let nodes: Vec<_> = (0..5).map(|i| node(&format!("n{i}"), "EVICT")).collect();
        let queues = [queue("blue", "", "40")];
        let flavors = Flavors::default();
        let cluster = Snapshot { queues: &queues, cohorts: &[], flavors: &flavors, nodes: &nodes, slack_queue: "" };
        let message = &shortfalls(&cluster)["blue"][0].message;
        assert!(
            message.ends_with("node n2 (label autopilot.ibm.com/gpuhealth=EVICT) lacks 8; 2 more nodes lack capacity")
        );
    }
}
