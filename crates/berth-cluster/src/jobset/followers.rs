//! The controller of exclusive placement: once a job's leader is bound, it removes all followers of
//! the job if the node selector of one of them does not select the leader's domain. The Job
//! controller then creates them again in the leader's domain.

use std::sync::Arc;

use berth_api::jobset::constants::JOB_KEY;
use berth_runtime::{Action, Cache, Clock, Error, Index, Manager, ObjectKey, Reconciler};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::placement::{
    PlacementError, exclusive_topology, follower_removals, is_leader, is_set_pod, placements_match,
};
use super::{exactly, pod_set, pods_of, set_of};
use crate::job::facts::{is_deleted, is_terminated, name};

pub(super) fn install(manager: &mut Manager) {
    let pods = manager.cache::<Pod>();
    let followers = Followers {
        client: manager.client(),
        clock: manager.clock(),
        pods: pods.clone(),
        nodes: manager.nodes(),
        pods_of_set: pods.index(pod_set),
    };
    manager
        .controller("jobset-placement")
        .watch(&pods, |delta| {
            let pod = delta.latest();
            let has_landed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
            let matters = is_set_pod(pod) && exclusive_topology(pod).is_some() && is_leader(pod) && has_landed;
            matters.then(|| ObjectKey::of(pod.as_ref()))
        })
        .run(followers);
}

struct Followers {
    client: Client,
    clock: Clock,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    pods_of_set: Index<Pod>,
}

impl Reconciler for Followers {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(leader) = self.pods.get(&key) else { return Ok(Action::Wait) };
        if is_deleted(&leader) || is_terminated(&leader) {
            return Ok(Action::Wait);
        }
        let of_job = |pod: &Pod| pod.metadata.labels.as_ref().and_then(|labels| labels.get(JOB_KEY)).cloned();
        let mut pods = pods_of(&self.pods_of_set, &key.namespace, set_of(&leader).unwrap_or_default());
        pods.retain(|pod| of_job(pod) == of_job(&leader) && !is_deleted(pod) && !is_terminated(pod));
        let node = leader.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let node = node.and_then(|node| self.nodes.get(&ObjectKey::cluster(node)));
        match placements_match(&leader, pods.iter().map(Arc::as_ref), node.as_deref()) {
            Ok(true) => return Ok(Action::Wait),
            Ok(false) => {}
            // The node is being deleted. Its pods are checked after they are created again.
            Err(PlacementError::TopologyUnknown) => return Ok(Action::Wait),
            Err(error) => return Err(error.into()),
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        for removal in follower_removals(pods.iter().map(Arc::as_ref), self.clock.now()) {
            let pod = &pods[removal.position];
            if let Some(conditions) = removal.conditions {
                let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": conditions}});
                let patched = berth_runtime::write::patch_status(
                    &api,
                    name(pod),
                    &PatchParams::default(),
                    &Patch::Strategic(&patch),
                )
                .await?;
                self.pods.observe(patched);
            }
            let params = exactly(DeleteParams::background(), pod.metadata.uid.clone());
            match berth_runtime::write::delete(&api, name(pod), &params).await {
                Ok(answer) => {
                    if let Some(going) = answer {
                        self.pods.observe(going);
                    }
                }
                Err(error) if berth_runtime::is_not_found(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Action::Wait)
    }
}
