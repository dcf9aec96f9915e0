//! The controller that releases pods to the topology domains of their workload.

use std::sync::Arc;

use berth_api::kueue::constants;
use berth_runtime::{Action, Cache, Clock, Error, Manager, ObjectKey, Reconciler};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};

use super::release::{may_release, releases};
use super::{WorkloadPods, is_gated, workload_of_pod};
use crate::execute::{Part, patch};
use crate::metrics::Metrics;
use crate::stores::Stores;

/// Adds the controller to the manager.
pub(super) fn install(
    manager: &mut Manager,
    stores: &Stores,
    pods: &Cache<Pod>,
    of_workload: &WorkloadPods,
    metrics: &Metrics,
) {
    let ungater = Ungater {
        client: manager.client(),
        stores: stores.clone(),
        pods: pods.clone(),
        of_workload: of_workload.clone(),
        metrics: metrics.clone(),
        clock: manager.clock(),
    };
    manager
        .controller("topology-ungater")
        .concurrency(16)
        .watch_self(&stores.workloads)
        .watch(pods, |delta| {
            // A new gated pod, or a pod that ended and so frees its slot.
            let matters = |pod: &Arc<Pod>| is_gated(pod) || super::has_ended(pod) || delta.new.is_none();
            delta.new.as_ref().or(delta.old.as_ref()).filter(|pod| matters(pod)).and_then(|pod| workload_of_pod(pod))
        })
        .run(ungater);
}

struct Ungater {
    client: Client,
    stores: Stores,
    pods: Cache<Pod>,
    of_workload: WorkloadPods,
    metrics: Metrics,
    clock: Clock,
}

impl Reconciler for Ungater {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(workload) = self.stores.workloads.get(&key) else { return Ok(Action::Wait) };
        if !may_release(&workload) {
            return Ok(Action::Wait);
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        for release in releases(&workload, &self.of_workload.of(&workload)) {
            let (before, after) = (release.pod.as_ref(), release.released());
            // The write applies to this resourceVersion only; a concurrent change to the pod
            // triggers another reconcile.
            match patch(&api, before, &after, Part::Main, before.resource_version().as_deref()).await {
                Ok(Some(answer)) => {
                    self.pods.observe(answer);
                    self.metrics.gate_removed(constants::TOPOLOGY_GATE, &workload, self.clock.now());
                }
                Ok(None) => {}
                Err(error) if berth_runtime::is_not_found(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Action::Wait)
    }
}
