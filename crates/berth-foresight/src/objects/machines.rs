//! Nodes and node pools as groups of equal machines.

use std::collections::BTreeMap;

use berth_controllers::devices::{Devices, is_extended};
use berth_controllers::translate::{self, amounts, placement};
use berth_engine::Name;
use berth_engine::model::{Labels, PodTemplate, ResourceFlavor, ResourceList, Taint, TaintEffect, Toleration};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;

use super::devices::of_machine;
use super::{Objects, Template};

/// Label of a node with the name of its pool.
pub const POOL_LABEL: &str = "cloud.google.com/gke-nodepool";

/// Equal machines: a node, or a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct Machines {
    /// `Node NAME` or `NodePool NAME`.
    pub title: String,
    /// Labels of a machine; a pool in several zones has one set per zone.
    pub labels: Vec<Labels>,
    /// Taints that repel pods.
    pub taints: Vec<Taint>,
    /// Amounts that pods can request on one machine.
    pub allocatable: ResourceList,
    /// Largest number of machines.
    pub max: i64,
}

impl Machines {
    /// True if machines with all these labels are among them.
    pub fn have(&self, wanted: &Labels) -> bool {
        self.labels.iter().any(|labels| wanted.iter().all(|(key, value)| labels.get(key) == Some(value)))
    }

    /// The largest amount of a resource that they supply.
    pub fn supply(&self, resource: &str) -> i64 {
        self.allocatable.get(resource).copied().unwrap_or(0).saturating_mul(self.max)
    }
}

/// True for taints that keep pods away.
pub fn repels(taint: &Taint) -> bool {
    taint.effect != TaintEffect::PreferNoSchedule
}

/// True if the API server adds tolerations for the extended resources that pods request (admission
/// plugin ExtendedResourceToleration): embedded clusters do, and GKE does.
pub fn adds_tolerations(objects: &Objects) -> bool {
    let is_of_gke = |node: &Node| node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(POOL_LABEL));
    !objects.node_pools.is_empty() || objects.nodes.values().any(|node| is_of_gke(&node.object))
}

/// The tolerations of pods on nodes of these flavors. `adds` is the result of [`adds_tolerations`].
pub fn tolerations(template: &PodTemplate, flavors: &[&ResourceFlavor], adds: bool) -> Vec<Toleration> {
    let of_flavors = flavors.iter().flat_map(|flavor| &flavor.tolerations);
    let mut all: Vec<Toleration> = template.tolerations.iter().chain(of_flavors).cloned().collect();
    let extended = template.requests.iter().filter(|(name, amount)| adds && **amount > 0 && is_extended(name));
    all.extend(extended.map(|(name, _)| Toleration {
        key: name.clone(),
        exists: true,
        value: Name::from(""),
        effect: Some(TaintEffect::NoSchedule),
    }));
    all
}

/// The pools, and the nodes that are not of a known pool.
pub(super) fn all(objects: &Objects, template: Template<'_>) -> Vec<Machines> {
    let mut machines = Vec::new();
    let devices = objects.devices();
    for (name, pool) in &objects.node_pools {
        let spec = &pool.object.spec;
        // A pool that is a machine of processes has the size of that machine: its node shows it.
        if spec.is_process() {
            continue;
        }
        let nodes = template(&pool.object);
        let Some(first) = nodes.first() else { continue };
        let max = if spec.is_fixed() { spec.nodes_wanted() } else { spec.nodes_max() };
        let mut of_pool = one(&format!("NodePool {name}"), first, i64::from(max));
        add_devices(&mut of_pool.allocatable, pool_devices(objects, &devices, name));
        of_pool.labels = nodes.iter().map(|node| placement::labels(node.metadata.labels.as_ref())).collect();
        machines.push(of_pool);
    }
    for (name, node) in &objects.nodes {
        let node = &node.object;
        let pool = node.metadata.labels.as_ref().and_then(|labels| labels.get(POOL_LABEL));
        let of_pool = pool.and_then(|pool| objects.node_pools.get(pool));
        if of_pool.is_none_or(|pool| pool.object.spec.is_process()) {
            let mut of_node = one(&format!("Node {name}"), node, 1);
            add_devices(&mut of_node.allocatable, devices.supply(slices_of(objects, name)));
            machines.push(of_node);
        }
    }
    machines
}

/// The devices of one machine of a pool: those that it declares, or the most that one of its nodes
/// has published.
pub fn pool_devices(objects: &Objects, devices: &Devices, name: &str) -> BTreeMap<String, i64> {
    let declared = objects.node_pools.get(name).map(|pool| of_machine(&pool.object.spec.devices, name));
    let mut most = devices.supply(declared.iter().flatten());
    for (node, _) in objects.nodes.iter().filter(|(_, node)| is_of_pool(&node.object, name)) {
        for (resource, count) in devices.supply(slices_of(objects, node)) {
            let known = most.entry(resource).or_default();
            *known = count.max(*known);
        }
    }
    most
}

/// True if a node is of this pool.
pub fn is_of_pool(node: &Node, pool: &str) -> bool {
    node.metadata.labels.as_ref().and_then(|labels| labels.get(POOL_LABEL)).is_some_and(|it| it == pool)
}

/// The devices that a node has published.
fn slices_of<'a>(objects: &'a Objects, node: &'a str) -> impl Iterator<Item = &'a ResourceSlice> + Clone {
    objects.device_slices.values().filter(move |slice| slice.spec.node_name.as_deref() == Some(node))
}

/// Adds devices to the amounts of a machine. Their resources replace extended resources of the same
/// name.
pub fn add_devices(allocatable: &mut ResourceList, devices: BTreeMap<String, i64>) {
    allocatable.extend(devices.into_iter().map(|(resource, count)| (Name::from(resource.as_str()), count)));
}

fn one(title: &str, node: &Node, max: i64) -> Machines {
    let status = node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.as_ref().or(status.capacity.as_ref()));
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    // Taints of a state that passes say nothing about the configuration.
    let passing = |taint: &Taint| taint.key.starts_with("node.kubernetes.io/");
    Machines {
        title: title.to_owned(),
        labels: vec![translate::labels(node.metadata.labels.as_ref())],
        taints: placement::taints(taints).into_iter().filter(|taint| repels(taint) && !passing(taint)).collect(),
        allocatable: allocatable.map(amounts::from_resource_list).unwrap_or_default(),
        max,
    }
}
