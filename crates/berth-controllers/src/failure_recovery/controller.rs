//! The controller that ends pods on unreachable nodes.

use std::sync::Arc;
use std::time::Duration;

use berth_api::kueue::events;
use berth_api::pod::node_of;
use berth_runtime::{Action, Cache, Clock, Error, EventType, Manager, ObjectKey, Reconciler, Recorder, is_not_found};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Client, ResourceExt};

use super::{GRACE, Next, is_unreachable, may_be_ended, next};
use crate::configuration::Config;
use crate::execute::{Part, patch};

/// Adds the controller to the manager.
pub fn install(manager: &mut Manager, config: &Config) {
    let (pods, nodes): (Cache<Pod>, _) = (manager.cache(), manager.nodes());
    let by_node =
        pods.index(|pod: &Pod| node_of(pod).filter(|_| may_be_ended(pod)).map(str::to_owned).into_iter().collect());
    let controller = TerminatingPods {
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("berth-terminating-pods"),
        pods: pods.clone(),
        nodes: nodes.clone(),
        grace: config.failure_recovery_grace.unwrap_or(GRACE),
    };
    manager
        .controller("terminating-pod")
        .watch(&pods, |delta| delta.new.as_ref().filter(|pod| may_be_ended(pod)).map(|pod| ObjectKey::of(pod.as_ref())))
        .watch(&nodes, move |delta| {
            let was = delta.old.as_ref().is_some_and(|node| is_unreachable(node));
            let lost = delta.new.as_ref().filter(|node| !was && is_unreachable(node));
            let pods = lost.map(|node| by_node.get(&node.name_any())).unwrap_or_default();
            pods.iter().map(|pod| ObjectKey::of(pod.as_ref())).collect::<Vec<_>>()
        })
        .run(controller);
}

struct TerminatingPods {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    grace: Duration,
}

impl TerminatingPods {
    /// Writes the pod's last status and deletes the pod without grace period.
    async fn end(&self, before: &Arc<Pod>, after: &Pod, message: &str) -> Result<(), Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &before.namespace().unwrap_or_default());
        match patch(&api, before.as_ref(), after, Part::Status, before.resource_version().as_deref()).await {
            Ok(_) => {}
            Err(error) if is_not_found(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        self.recorder.event(before.as_ref(), EventType::Warning, events::KUEUE_FORCEFULLY_DELETED, message);
        let preconditions = Preconditions { uid: before.uid(), resource_version: None };
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteParams::background()
        };
        match berth_runtime::write::delete(&api, &before.name_any(), &params).await {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Reconciler for TerminatingPods {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(pod) = self.pods.get(&key) else { return Ok(Action::Wait) };
        let node = node_of(&pod).and_then(|node| self.nodes.get(&ObjectKey::cluster(node)));
        match next(&pod, node.as_deref(), self.grace, self.clock.now()) {
            Next::Leave => Ok(Action::Wait),
            Next::After(time) => Ok(Action::After(time)),
            Next::End { after, message } => {
                self.end(&pod, &after, &message).await?;
                Ok(Action::Wait)
            }
        }
    }
}
