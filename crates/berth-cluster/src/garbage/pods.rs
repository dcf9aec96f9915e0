//! The pod garbage collector: sets the phase Failed on pods that no kubelet can terminate, and
//! deletes them. Such a pod was bound to a node that no longer exists, or was deleted before it was
//! bound.

use std::time::Duration;

use berth_api::pod::node_of;
use berth_runtime::{
    Action, Cache, Clock, Error, Index, Manager, ObjectKey, Reconciler, is_conflict, is_not_found, stamp,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// How long a pod bound to an unknown node is ignored: the node may not be in the cache yet.
const QUARANTINE: Duration = Duration::from_secs(40);

/// Adds the pod garbage collector.
pub fn install(manager: &mut Manager) {
    let pods: Cache<Pod> = manager.cache();
    let nodes = manager.nodes();
    // The index includes terminated pods, which are deleted with their node if they have a deletion
    // timestamp.
    let on_node: Index<Pod> = pods.index(|pod| node_of(pod).map(str::to_owned).into_iter().collect());
    let collector =
        PodCollector { pods: pods.clone(), nodes: nodes.clone(), client: manager.client(), clock: manager.clock() };
    let builder = manager.controller("pod-garbage-collector");
    let queue = builder.queue();
    let known_nodes = nodes.clone();
    builder
        .watch(&nodes, move |delta| {
            let gone = delta.old.as_ref().filter(|_| delta.new.is_none());
            let pods = gone.map(|node| on_node.get(&node.name_any())).unwrap_or_default();
            pods.iter().map(|pod| ObjectKey::of(pod.as_ref())).collect::<Vec<_>>()
        })
        .watch(&pods, move |delta| {
            if let Some(pod) = delta.new.as_ref().filter(|pod| is_terminating_unbound(pod)) {
                return Some(ObjectKey::of(pod.as_ref()));
            }
            if let Some(pod) = &delta.new
                && let Some(node) = node_of(pod)
                && delta.old.as_ref().is_none_or(|old| node_of(old) != Some(node))
                && known_nodes.get(&ObjectKey::cluster(node)).is_none()
            {
                queue.add_after(ObjectKey::of(pod.as_ref()), QUARANTINE);
            }
            None
        })
        .run(collector);
}

/// True for a pod that was deleted before it was bound. The API server removes such a pod at once
/// unless a finalizer holds it; the owner of the finalizer may wait for a terminal phase.
fn is_terminating_unbound(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() && node_of(pod).is_none()
}

struct PodCollector {
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    client: Client,
    clock: Clock,
}

impl Reconciler for PodCollector {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(pod) = self.pods.get(&key) else { return Ok(Action::Wait) };
        let unbound = is_terminating_unbound(&pod);
        let node_is_gone = |node| self.nodes.get(&ObjectKey::cluster(node)).is_none();
        if !unbound && !node_of(&pod).is_some_and(node_is_gone) {
            return Ok(Action::Wait);
        }
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
        let has_terminated = matches!(phase, "Succeeded" | "Failed");
        if has_terminated && pod.metadata.deletion_timestamp.is_none() {
            // The pod terminated before its node was deleted. Its owner may still need the object.
            return Ok(Action::Wait);
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        if !has_terminated {
            let reason = pod.status.as_ref().and_then(|status| status.reason.clone());
            let mut patch = json!({
                "metadata": { "uid": pod.metadata.uid },
                "status": { "phase": "Failed", "reason": reason },
            });
            if !unbound {
                patch["status"]["conditions"] = json!([{
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "DeletionByPodGC",
                    "message": "PodGC: node no longer exists",
                    "lastTransitionTime": stamp(self.clock.now()),
                }]);
            }
            match berth_runtime::write::patch_status(
                &api,
                &key.name,
                &PatchParams::default(),
                &Patch::Strategic(&patch),
            )
            .await
            {
                Ok(written) => self.pods.observe(written),
                Err(error) if is_not_found(&error) => return Ok(Action::Wait),
                Err(error) => return Err(error.into()),
            }
        }
        let is_force_deleted =
            pod.metadata.deletion_timestamp.is_some() && pod.metadata.deletion_grace_period_seconds == Some(0);
        if is_force_deleted {
            return Ok(Action::Wait);
        }
        let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        match berth_runtime::write::delete(&api, &key.name, &parameters).await {
            Ok(going) => match going {
                // Without finalizers, this is the last state of the deleted object.
                Some(left) if left.finalizers().is_empty() => self.pods.observe_deleted(&left),
                Some(left) => self.pods.observe(left),
                None => self.pods.observe_deleted(&pod),
            },
            Err(error) if is_not_found(&error) || is_conflict(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Action::Wait)
    }
}
