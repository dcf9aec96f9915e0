//! Which pods of a cluster are created and deleted: a pure function of the cluster and its pods.

use berth_runtime::PlannedEvent;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::frameworks::RayCluster;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use serde_json::Value;
use sha1::{Digest, Sha1};

use super::facts::Facts;
use super::groups;
use super::pod::{self, NodeType};
use crate::ray::constants::{GROUP, NO_HEAD_RESTART, NODE_TYPE, RECREATE_HASH};
use crate::ray::types::{RayClusterStatus, condition};

/// A write of a pod that failed. It determines the reason of the condition ReplicaFailure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Deletion of all pods.
    DeleteAllPods,
    /// Deletion of the head.
    DeleteHeadPod,
    /// Creation of the head.
    CreateHeadPod,
    /// Deletion of a worker.
    DeleteWorkerPod,
    /// Creation of a worker.
    CreateWorkerPod,
}

impl Failure {
    /// Reason of the condition.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::DeleteAllPods => "FailedDeleteAllPods",
            Self::DeleteHeadPod => "FailedDeleteHeadPod",
            Self::CreateHeadPod => "FailedCreateHeadPod",
            Self::DeleteWorkerPod => "FailedDeleteWorkerPod",
            Self::CreateWorkerPod => "FailedCreateWorkerPod",
        }
    }

    /// Reason of the event.
    pub const fn event(self) -> &'static str {
        match self {
            Self::DeleteAllPods => "FailedToDeletePodCollection",
            Self::DeleteHeadPod => "FailedToDeleteHeadPod",
            Self::CreateHeadPod => "FailedToCreateHeadPod",
            Self::DeleteWorkerPod => "FailedToDeleteWorkerPod",
            Self::CreateWorkerPod => "FailedToCreateWorkerPod",
        }
    }
}

/// A pod to delete.
#[derive(Clone, Debug, PartialEq)]
pub struct Removal {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Its event, recorded after the deletion.
    pub event: Option<PlannedEvent>,
    /// The failure to report if the deletion fails.
    pub failure: Failure,
}

/// A pod to create.
#[derive(Clone, Debug, PartialEq)]
pub struct Creation {
    /// The pod.
    pub pod: Pod,
    /// Its role.
    pub node_type: NodeType,
}

/// What must be done for the pods of a cluster, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Pods to delete.
    pub delete: Vec<Removal>,
    /// Pods to create.
    pub create: Vec<Creation>,
    /// Events to record after all writes have succeeded.
    pub events: Vec<PlannedEvent>,
    /// True if the pods need a further plan, for example once deleted pods no longer exist. Until
    /// then, the cluster is not ready.
    pub is_interim: bool,
}

impl Plan {
    /// Plans the deletion of these pods, except those that are already being deleted. Returns true
    /// if it adds any deletion.
    pub fn delete_all(&mut self, pods: &[Arc<Pod>], failure: Failure) -> bool {
        let left = pods.iter().filter(|pod| !is_terminating(pod));
        let count = self.delete.len();
        self.delete.extend(left.map(|pod| Removal { pod: pod.clone(), event: None, failure }));
        self.delete.len() > count
    }
}

/// True if the pod is being deleted.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Value of a label of the pod; empty if the pod does not have the label.
pub fn label<'a>(pod: &'a Pod, key: &str) -> &'a str {
    pod.metadata.labels.as_ref().and_then(|labels| labels.get(key)).map_or("", String::as_str)
}

/// Name of the pod.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// Phase of the pod.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The terminated state of the Ray container, which is the first one of the pod; `None` if it has
/// not terminated.
fn ray_end(pod: &Pod) -> Option<&ContainerStateTerminated> {
    let ray = &pod.spec.as_ref()?.containers.first()?.name;
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == *ray)?.state.as_ref()?.terminated.as_ref()
}

fn restart_policy(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always")
}

/// True if the pod has ended, or if its Ray container has terminated and is not restarted.
pub fn is_dead(pod: &Pod) -> bool {
    match phase(pod) {
        "Failed" | "Succeeded" => true,
        "Running" => ray_end(pod).is_some() && restart_policy(pod) == "Never",
        _ => false,
    }
}

/// State of a dead pod, for messages.
pub fn state(pod: &Pod) -> String {
    let end = ray_end(pod).map_or_else(
        || "none".to_owned(),
        |end| format!("exit code {}, {}", end.exit_code, end.reason.as_deref().unwrap_or("no reason")),
    );
    format!(
        "Pod status: {}; Pod restart policy: {}; Ray container terminated status: {end}",
        phase(pod),
        restart_policy(pod)
    )
}

/// The plan for the pods of a cluster whose spec is valid. `nonce` is part of the names of new
/// replicas, so that replicas of different plans have different names.
pub fn plan(
    facts: &Facts<'_>,
    cluster: &RayCluster,
    status: &RayClusterStatus,
    pods: &[Arc<Pod>],
    nonce: &str,
) -> Plan {
    let mut plan = Plan::default();
    if status.is_true(condition::SUSPENDING) {
        if plan.delete_all(pods, Failure::DeleteAllPods) {
            let message = format!("Deleted Pods for RayCluster {} due to suspension", facts.key());
            plan.events.push(PlannedEvent::normal("DeletedPod", message));
        }
        return plan;
    }
    if status.is_true(condition::SUSPENDED) || facts.spec.suspend == Some(true) {
        return plan;
    }
    let hash = spec_hash(&cluster.spec);
    let (heads, workers): (Vec<_>, Vec<_>) =
        pods.iter().cloned().partition(|pod| label(pod, NODE_TYPE) == NodeType::Head.as_str());
    if must_recreate(facts, &heads, &hash) {
        if plan.delete_all(pods, Failure::DeleteAllPods) {
            let message = format!(
                "Deleted all Pods for RayCluster {} due to spec change with Recreate upgradeStrategy",
                facts.key()
            );
            plan.events.push(PlannedEvent::normal("DeletedPod", message));
        }
        plan.is_interim = true;
        return plan;
    }
    if !plan_head(facts, status, &heads, &hash, &mut plan) {
        return plan;
    }
    let mut by_group: BTreeMap<&str, Vec<Arc<Pod>>> = BTreeMap::new();
    for pod in &workers {
        by_group.entry(label(pod, GROUP)).or_default().push(pod.clone());
    }
    for group in &facts.spec.worker_group_specs {
        let pods = by_group.remove(group.group_name.as_str()).unwrap_or_default();
        groups::plan(facts, group, &pods, nonce, &mut plan);
    }
    plan
}

/// Plans the head. Returns false if nothing must be planned for the workers.
fn plan_head(facts: &Facts<'_>, status: &RayClusterStatus, heads: &[Arc<Pod>], hash: &str, plan: &mut Plan) -> bool {
    match heads {
        [] => {
            let keeps_dead = facts.annotations.get(NO_HEAD_RESTART).is_some_and(|value| value == "true");
            if keeps_dead && status.is_true(condition::PROVISIONED) {
                return false;
            }
            let mut pod = pod::head(facts);
            pod.metadata.annotations.get_or_insert_default().insert(RECREATE_HASH.to_owned(), hash.to_owned());
            plan.create.push(Creation { pod, node_type: NodeType::Head });
            true
        }
        [head] if is_dead(head) => {
            if !is_terminating(head) {
                let message = format!("Deleted head Pod {}/{}; {}", facts.namespace, name(head), state(head));
                let event = Some(PlannedEvent::normal("DeletedHeadPod", message));
                plan.delete.push(Removal { pod: head.clone(), event, failure: Failure::DeleteHeadPod });
            }
            plan.is_interim = true;
            false
        }
        [_] => true,
        several => {
            let names: Vec<_> = several.iter().map(|pod| name(pod)).collect();
            let message =
                format!("{} head pods found [{}]. Please delete extra head pods", names.len(), names.join(" "));
            plan.events.push(PlannedEvent::warning("PodReconciliationError", message));
            plan.is_interim = true;
            false
        }
    }
}

/// True if the spec has changed since the head was created and the upgrade strategy is `Recreate`.
fn must_recreate(facts: &Facts<'_>, heads: &[Arc<Pod>], hash: &str) -> bool {
    let strategy = facts.spec.upgrade_strategy.as_ref().and_then(|strategy| strategy.r#type.as_deref());
    let known = heads.first().and_then(|head| head.metadata.annotations.as_ref()?.get(RECREATE_HASH));
    strategy == Some("Recreate") && known.is_some_and(|known| !known.is_empty() && known != hash)
}

/// A hash of the spec without the fields that may change while the pods are kept: the upgrade
/// strategy, `suspend`, the numbers of replicas, the scale strategy, and the tolerations and
/// scheduling gates of the templates.
pub fn spec_hash(spec: &Value) -> String {
    let mut spec = spec.clone();
    let clean = |group: &mut Value| {
        if let Some(pod) = group.pointer_mut("/template/spec").and_then(Value::as_object_mut) {
            pod.remove("tolerations");
            pod.remove("schedulingGates");
        }
    };
    if let Some(fields) = spec.as_object_mut() {
        for field in ["upgradeStrategy", "suspend"] {
            fields.remove(field);
        }
    }
    if let Some(head) = spec.get_mut("headGroupSpec") {
        clean(head);
    }
    for group in spec.get_mut("workerGroupSpecs").and_then(Value::as_array_mut).into_iter().flatten() {
        clean(group);
        if let Some(fields) = group.as_object_mut() {
            for field in ["replicas", "minReplicas", "maxReplicas", "scaleStrategy"] {
                fields.remove(field);
            }
        }
    }
    hex::encode(Sha1::digest(spec.to_string()))
}

/// The names of a list as a set.
pub fn names(list: &[String]) -> BTreeSet<&str> {
    list.iter().map(String::as_str).collect()
}
