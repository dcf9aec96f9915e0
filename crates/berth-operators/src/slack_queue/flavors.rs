//! The flavor of a node, by the node labels of ResourceFlavors.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::kueue::v1beta2::{ResourceFlavor, ResourceGroup};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::health::{Amounts, NodeHealth};

/// Node labels of ResourceFlavors, by flavor.
#[derive(Clone, Debug, Default)]
pub struct Flavors(BTreeMap<String, BTreeMap<String, String>>);

/// Amounts that unhealthy nodes take away, by flavor.
pub type Lost = BTreeMap<String, Amounts>;

impl Flavors {
    /// The node labels of these ResourceFlavors.
    pub fn of(flavors: &[Arc<ResourceFlavor>]) -> Self {
        Self(flavors.iter().map(|flavor| (flavor.name_any(), flavor.spec.node_labels.clone())).collect())
    }

    /// True if the node belongs to the flavor. Every node belongs to a flavor without node labels,
    /// and to a flavor that does not exist.
    pub fn has(&self, flavor: &str, node: &Node) -> bool {
        let Some(labels) = self.0.get(flavor) else { return true };
        labels.iter().all(|(key, value)| node.labels().get(key) == Some(value))
    }

    /// The amounts that these nodes take away from the flavors of a resource group. A node counts
    /// for the first flavor that it belongs to.
    pub fn lost(&self, group: &ResourceGroup, nodes: &[(Arc<Node>, NodeHealth)]) -> Lost {
        let mut lost = Lost::new();
        for (node, health) in nodes {
            let Some(flavor) = group.flavors.iter().find(|flavor| self.has(&flavor.name, node)) else { continue };
            let of_flavor = lost.entry(flavor.name.clone()).or_default();
            for (resource, amount) in &health.no_schedule {
                of_flavor.entry(resource.clone()).and_modify(|known| known.add(*amount)).or_insert(*amount);
            }
        }
        lost
    }
}
