//! Moves the pods of managed jobs off unhealthy nodes.
//!
//! A pod of a queued job that runs on a node whose health evicts it is evicted through the API, so
//! that disruption budgets apply. Its job replaces it. Pods of an AppWrapper are left to the
//! AppWrapper, which resets all of its pods, and pods of jobs without a queue are not managed.

use std::sync::Arc;
use std::time::Duration;

use berth_api::kueue::labels::{MANAGED, POD_SET};
use berth_api::pod::node_of;
use berth_runtime::{
    Action, Cache, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, is_not_found, message,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, EvictParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::{NodeHealth, NodeHealthConfiguration};
use crate::appwrapper::types::LABEL as APP_WRAPPER;

/// Reason of the events.
const REASON: &str = "NodeUnhealthy";
/// Time after which an eviction that a disruption budget prevented is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// HTTP status of an eviction that a disruption budget prevents.
const TOO_MANY_REQUESTS: u16 = 429;

/// The rules of a role for this controller.
pub fn rules() -> Value {
    json!([
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    ])
}

/// Adds the controller.
pub fn install(manager: &mut Manager, configuration: Arc<NodeHealthConfiguration>) {
    if !configuration.monitor_nodes {
        return;
    }
    let nodes = manager.nodes();
    let pods = manager.cache::<Pod>();
    let on_node = pods.index(|pod| node_of(pod).filter(|_| is_running(pod)).map(str::to_owned).into_iter().collect());
    let monitor = Monitor {
        client: manager.client(),
        recorder: manager.recorder("node-health"),
        configuration: configuration.clone(),
        nodes: nodes.clone(),
        on_node,
    };
    let (of_node, of_pod, all) = (configuration.clone(), configuration, nodes.clone());
    manager
        .controller("node-health-monitor")
        .watch(&nodes, move |delta| {
            let node = delta.new.as_ref()?;
            evicts(&NodeHealth::of(node, &of_node)).then(|| ObjectKey::of(node.as_ref()))
        })
        .watch(&pods, move |delta| {
            // Pods that were bound before the node became unhealthy.
            let name = node_of(delta.new.as_ref().filter(|pod| is_managed(pod) && is_running(pod))?)?.to_owned();
            let key = ObjectKey::cluster(name);
            let node = all.get(&key)?;
            evicts(&NodeHealth::of(&node, &of_pod)).then_some(key)
        })
        .run(monitor);
}

/// True if the node's health evicts some pods.
fn evicts(health: &NodeHealth) -> bool {
    health.no_execute_any.is_some() || !health.no_execute.is_empty()
}

/// True if the pod has not ended and is not being deleted.
fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// True if the pod belongs to a queued job other than an AppWrapper.
pub fn is_managed(pod: &Pod) -> bool {
    let labels = pod.labels();
    (labels.contains_key(POD_SET) || labels.get(MANAGED).is_some_and(|value| value == "true"))
        && !labels.contains_key(APP_WRAPPER)
}

struct Monitor {
    client: Client,
    recorder: Recorder,
    configuration: Arc<NodeHealthConfiguration>,
    nodes: Cache<Node>,
    /// Pods that run, by node.
    on_node: Index<Pod>,
}

impl Reconciler for Monitor {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(node) = self.nodes.get(&key) else { return Ok(Action::Wait) };
        let health = NodeHealth::of(&node, &self.configuration);
        let mut action = Action::Wait;
        for pod in self.on_node.get(&key.name).iter().filter(|pod| is_managed(pod)) {
            let Some(reason) = pod.spec.as_ref().and_then(|spec| health.evicts(spec)) else { continue };
            if !self.evict(pod, &key.name, &reason).await? {
                action = Action::After(RETRY);
            }
        }
        Ok(action)
    }
}

impl Monitor {
    /// Evicts a pod. False if a disruption budget prevents it.
    async fn evict(&self, pod: &Pod, node: &str, reason: &str) -> Result<bool, Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
        let delete = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let params = EvictParams { delete_options: Some(delete), ..EvictParams::default() };
        match api.evict(&pod.name_any(), &params).await {
            Ok(_) => {
                let message = format!("The pod is evicted, because node {node} is unhealthy: {reason}");
                self.recorder.event(pod, EventType::Warning, REASON, &message);
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == TOO_MANY_REQUESTS => {
                let why =
                    format!("Node {node} is unhealthy ({reason}), but the pod cannot be evicted: {}", status.message);
                self.recorder.event(pod, EventType::Warning, REASON, &why);
                Ok(false)
            }
            Err(error) if is_not_found(&error) => Ok(true),
            Err(error) => {
                let why =
                    format!("Node {node} is unhealthy ({reason}), but the pod cannot be evicted: {}", message(&error));
                self.recorder.event(pod, EventType::Warning, REASON, &why);
                Err(error.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_queued_jobs_are_managed_except_those_of_appwrappers() {
        let managed = |labels: Value| {
            is_managed(&serde_json::from_value(json!({"metadata": {"labels": labels}})).expect("a pod"))
        };
        assert!(managed(json!({"kueue.x-k8s.io/podset": "main"})));
        assert!(managed(json!({"kueue.x-k8s.io/managed": "true"})));
        assert!(!managed(json!({"app": "web"})));
        assert!(!managed(json!({"kueue.x-k8s.io/podset": "a", "workload.codeflare.dev/appwrapper": "w"})));
    }
}
