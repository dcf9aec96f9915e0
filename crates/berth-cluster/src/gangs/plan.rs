//! Places a whole gang in a cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::constraints::Constraints;
use super::member::assign;
use super::solver::{Refusal, solve};
use super::topology::{Topology, Tree};
use crate::placement::{
    Capacity, Cluster, Placement, PodInfo, Ranking, Unfit, capacity, capacity_of_node, check_places, needs_check,
    place_by,
};

/// Maximum number of corrections of the capacity of a node for pods that exclude each other.
const CORRECTIONS_MAX: usize = 64;

/// A gang to place.
pub struct Request<'a> {
    /// Its pods without a node.
    pub pods: &'a [Arc<PodInfo>],
    /// Constraints by the name of the level.
    pub constraints: &'a Constraints,
    /// The topology.
    pub topology: &'a Topology,
    /// How nodes are ranked for pods with different requests.
    pub ranking: &'a Ranking,
}

/// The places of a gang.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The tree of all nodes.
    pub tree: Tree,
    /// Pods with their nodes, as indexes of the tree, in the order of ranks.
    pub places: Vec<(Arc<PodInfo>, usize)>,
    /// Soft constraints that were given up.
    pub given_up: Vec<String>,
}

impl Plan {
    /// The name of a node of the plan.
    pub fn node(&self, index: usize) -> &str {
        &self.tree.unit(index).name
    }
}

/// Why a gang cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Number of pods that fit; `None` if hard constraints are the reason.
    pub fits: Option<usize>,
    /// Hard constraints that cannot be met together.
    pub hard: Vec<String>,
    /// Number of nodes without room, by reason.
    pub reasons: BTreeMap<Unfit, usize>,
}

impl Request<'_> {
    /// True if all pods request the same amounts and have the same rules for nodes.
    pub fn is_uniform(&self) -> bool {
        self.pods.windows(2).all(|pair| pair[0].class() == pair[1].class() || pair[0].is_placed_like(&pair[1]))
    }

    /// The capacity of all nodes for the first pod.
    pub fn capacity(&self, cluster: &Cluster) -> Capacity {
        capacity(&self.pods[0], cluster, self.pods.len())
    }

    /// Computes the capacity of these nodes anew, after their pods have changed.
    pub fn update_capacity<'b>(
        &self,
        capacity: &mut Capacity,
        cluster: &Cluster,
        nodes: impl Iterator<Item = &'b str>,
    ) {
        for node in nodes {
            match capacity_of_node(&self.pods[0], cluster, node, self.pods.len()) {
                0 => capacity.pods.remove(node),
                count => capacity.pods.insert(node.to_owned(), count),
            };
        }
    }

    /// Places all pods, or none. `capacity` is that of the cluster.
    ///
    /// # Errors
    /// Not all pods can be placed.
    pub fn place(&self, cluster: &Cluster, capacity: &Capacity) -> Result<Plan, Misfit> {
        if !self.is_uniform() {
            return self.place_each(cluster);
        }
        let tree = self.topology.tree(cluster.nodes().map(|node| node.name()));
        let mut capacities: BTreeMap<&str, usize> =
            capacity.pods.iter().map(|(node, count)| (node.as_str(), *count)).collect();
        let misfit = |fits, hard| Misfit { fits, hard, reasons: capacity.reasons.clone() };
        let by_name: BTreeMap<&str, &Arc<PodInfo>> = self.pods.iter().map(|pod| (pod.key.name.as_str(), pod)).collect();
        let mut corrections = 0;
        loop {
            let solution =
                solve(&tree, &capacities, self.constraints, self.pods.len()).map_err(|refusal| match refusal {
                    Refusal::NoCapacity { fits } => misfit(Some(fits), Vec::new()),
                    Refusal::Hard(hard) => misfit(None, hard),
                })?;
            let members = assign(&tree, &solution, by_name.keys().map(|name| (*name).to_owned()).collect());
            let places: Vec<(Arc<PodInfo>, usize)> =
                members.iter().map(|member| (by_name[member.pod.as_str()].clone(), member.node)).collect();
            if needs_check(&self.pods[0], cluster) {
                let named: Vec<(Arc<PodInfo>, String)> =
                    places.iter().map(|(pod, node)| (pod.clone(), tree.unit(*node).name.clone())).collect();
                if let Err((node, count)) = check_places(cluster, &named) {
                    corrections += 1;
                    let known = capacity.pods.get_key_value(&node).map(|(node, _)| node.as_str());
                    let Some(node) = known.filter(|_| corrections <= CORRECTIONS_MAX) else {
                        return Err(misfit(Some(0), Vec::new()));
                    };
                    capacities.insert(node, count);
                    continue;
                }
            }
            return Ok(Plan { tree, places, given_up: solution.given_up });
        }
    }

    /// Places pods with different requests one after the other, each on its best node.
    fn place_each(&self, cluster: &Cluster) -> Result<Plan, Misfit> {
        let tree = self.topology.tree(cluster.nodes().map(|node| node.name()));
        let indexes: BTreeMap<&str, usize> = tree.nodes().map(|node| (tree.unit(node).name.as_str(), node)).collect();
        let mut with_places = cluster.clone();
        let mut places = Vec::new();
        for pod in self.pods {
            match place_by(pod, &with_places, self.ranking) {
                Placement::Node(node) => {
                    places.push((pod.clone(), indexes[node.as_str()]));
                    with_places.place(pod.clone(), &node);
                }
                Placement::Nowhere { reasons, .. } => {
                    return Err(Misfit { fits: Some(places.len()), hard: Vec::new(), reasons });
                }
            }
        }
        Ok(Plan { tree, places, given_up: Vec::new() })
    }
}
