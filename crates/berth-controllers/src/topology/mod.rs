//! Topology-aware scheduling after admission: pods are released to their workload's domains, and
//! failed nodes are recorded on workloads.
//!
//! [`release`] and [`health`] are pure functions of a workload and its pods; [`ungater`] and
//! [`nodes`] are the controllers that execute their results. The engine assigns the domains.

pub mod health;
pub mod nodes;
pub mod release;
#[cfg(test)]
mod tests;
pub mod ungater;

use std::sync::Arc;

use berth_api::kueue::v1beta2::Workload;
use berth_api::kueue::{annotations, constants, labels};
use berth_runtime::{Cache, Index, Manager, ObjectKey};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::configuration::Config;
use crate::gates::Gate;
use crate::metrics::Metrics;
use crate::podset;
use crate::stores::Stores;

/// Adds both controllers to the manager, if their gates are on.
pub fn install(manager: &mut Manager, config: &Arc<Config>, stores: &Stores, metrics: &Metrics) {
    let gates = config.gates();
    if !gates.on(Gate::TopologyAwareScheduling) {
        return;
    }
    let (pods, nodes): (Cache<Pod>, _) = (manager.cache(), manager.nodes());
    // Most running pods are not read again until they end.
    pods.pack_idle();
    let of_workload = WorkloadPods { by_workload: pods.index(workloads_of_pod) };
    ungater::install(manager, stores, &pods, &of_workload, metrics);
    if gates.on(Gate::TASFailedNodeReplacement) {
        nodes::install(manager, config, stores, &pods, &nodes, &of_workload);
    }
}

/// Index of pods by workload.
#[derive(Clone)]
pub(crate) struct WorkloadPods {
    by_workload: Index<Pod>,
}

impl WorkloadPods {
    /// The pods of a workload and of the slices before it, in name order.
    fn of(&self, workload: &Workload) -> Vec<Arc<Pod>> {
        let namespace = workload.namespace().unwrap_or_default();
        let own = workload.name_any();
        let first_slice = workload.annotations().get(annotations::WORKLOAD_SLICE_NAME).filter(|first| **first != own);
        let names = [Some(&own), first_slice].into_iter().flatten();
        let mut pods: Vec<Arc<Pod>> = names.flat_map(|it| self.by_workload.get(&format!("{namespace}/{it}"))).collect();
        pods.sort_by_key(|pod| pod.name_any());
        pods.dedup_by_key(|pod| pod.name_any());
        pods
    }
}

/// Keys (`namespace/name`) of the workloads that a pod names.
fn workloads_of_pod(pod: &Pod) -> Vec<String> {
    let namespace = pod.namespace().unwrap_or_default();
    let names = [annotations::WORKLOAD, annotations::WORKLOAD_SLICE_NAME];
    let mut found: Vec<String> =
        names.iter().filter_map(|key| pod.annotations().get(*key)).map(|name| format!("{namespace}/{name}")).collect();
    found.dedup();
    found
}

/// Key of the workload that a pod names.
fn workload_of_pod(pod: &Pod) -> Option<ObjectKey> {
    let name = pod.annotations().get(annotations::WORKLOAD)?;
    Some(ObjectKey::namespaced(pod.namespace().unwrap_or_default(), name.clone()))
}

/// The pod set a pod belongs to.
fn pod_set_of(pod: &Pod) -> Option<&str> {
    pod.labels().get(labels::POD_SET).map(String::as_str)
}

/// True if the pod succeeded or failed.
fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// True if the pod has the topology gate.
fn is_gated(pod: &Pod) -> bool {
    podset::is_gated(pod, constants::TOPOLOGY_GATE)
}

/// The pod's node selector values for these labels; `None` unless it has all of them.
fn pinned_to<'a>(pod: &'a Pod, levels: &[&str]) -> Option<Vec<&'a str>> {
    let selector = pod.spec.as_ref()?.node_selector.as_ref()?;
    levels.iter().map(|level| selector.get(*level).map(String::as_str)).collect()
}
