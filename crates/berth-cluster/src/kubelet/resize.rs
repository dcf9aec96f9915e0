//! In-place resize of running containers: applies the changed resources of the spec if the node has
//! enough.
//!
//! `status.observedGeneration` is the last generation of the spec that the kubelet has handled.
//! Each container status contains the requests that the node granted (`allocatedResources`), and
//! the requests and limits in force (`resources`). A resize that does not fit next to the node's
//! other pods is pending (`PodResizePending`, reason `Deferred`) until pods terminate or shrink. A
//! resize beyond the node's allocatable resources is `Infeasible` until the node grows.
//!
//! Source: KEP-1287 (in-place update of pod resources) and KEP-5067 (pod generation).

use std::collections::BTreeMap;

use berth_runtime::stamp;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStatus, Node, Pod, PodCondition, PodSpec, PodStatus,
    ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::simulated::ids::{container_id, image_id};
use crate::placement::{Resources, amount};

/// Condition of a pod whose resize the node cannot grant now.
pub const PENDING: &str = "PodResizePending";
/// Condition of a pod whose granted resize is being carried out.
pub const IN_PROGRESS: &str = "PodResizeInProgress";
/// The resources that can be resized, in the order in which they are checked.
const RESIZED: [&str; 2] = ["cpu", "memory"];

/// True if the pod has a pending resize.
pub fn is_pending(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|it| it.type_ == PENDING)
}

/// The resources in force of a container, as the pod's status shows them.
pub fn in_force<'a>(pod: &'a Pod, container: &str) -> Option<&'a ResourceRequirements> {
    let status = pod.status.as_ref()?;
    let lists = [&status.container_statuses, &status.init_container_statuses];
    lists.into_iter().flatten().flatten().find(|known| known.name == container)?.resources.as_ref()
}

/// The resources that a pod holds on its node: its requests, or the previous allocation while a
/// resize is pending.
pub fn reserved(pod: &Pod) -> Resources {
    match (&pod.spec, &pod.status) {
        (Some(spec), Some(status)) if is_pending(pod) => allocated(spec, status),
        (Some(spec), _) => Resources::of_pod(spec),
        (None, _) => Resources::default(),
    }
}

/// True if this change to a pod frees resources on its node.
pub fn frees_resources(old: &Pod, new: &Pod) -> bool {
    // Most changes affect neither, so the sums need not be computed.
    let may_differ = old.metadata.generation != new.metadata.generation || is_pending(old) != is_pending(new);
    may_differ && {
        let (before, after) = (reserved(old), reserved(new));
        RESIZED.iter().any(|name| after.get(name) < before.get(name))
    }
}

/// True if the node's allocatable resources increased.
pub fn has_grown(old: &Node, new: &Node) -> bool {
    let (before, after) = (allocatable(old), allocatable(new));
    RESIZED.iter().any(|name| after.get(name) > before.get(name))
}

fn allocatable(node: &Node) -> Resources {
    let amounts = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    amounts.map(Resources::from_quantities).unwrap_or_default()
}

/// The resources allocated to a pod according to its container statuses.
pub fn allocated(spec: &PodSpec, status: &PodStatus) -> Resources {
    let mut spec = spec.clone();
    let lists = [
        (Some(&mut spec.containers), &status.container_statuses),
        (spec.init_containers.as_mut(), &status.init_container_statuses),
    ];
    for (containers, statuses) in lists {
        for container in containers.into_iter().flatten() {
            let known = statuses.iter().flatten().find(|known| known.name == container.name);
            container.resources.get_or_insert_default().requests = known.and_then(|it| it.allocated_resources.clone());
        }
    }
    Resources::of_pod(&spec)
}

/// True if the pod runs and has a changed spec or a pending resize.
pub fn needs_resize(pod: &Pod) -> bool {
    let status = pod.status.as_ref().filter(|status| status.phase.as_deref() == Some("Running"));
    let observed = status.map(|status| status.observed_generation.unwrap_or(1));
    pod.metadata.deletion_timestamp.is_none()
        && observed.is_some_and(|observed| pod.metadata.generation.is_some_and(|it| observed < it) || is_pending(pod))
}

/// The new status of a running pod with a changed spec or a pending resize; `None` if the status
/// does not change. `others` returns the resources that the node's other pods use. The caller must
/// not call this for another pod of the node before the cache shows the returned status.
pub fn resize(pod: &Pod, node: &Node, others: impl FnOnce() -> Resources, now: Timestamp) -> Option<PodStatus> {
    if !needs_resize(pod) {
        return None;
    }
    let before = pod.status.as_ref()?;
    let generation = pod.metadata.generation?;
    let spec = pod.spec.as_ref()?;
    let mut status = before.clone();
    status.observed_generation = Some(generation);
    match rejection(pod, before, node, others) {
        Some((reason, message)) => set_pending(&mut status, generation, reason, message, now),
        None => {
            remove_condition(&mut status, PENDING);
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            let lists = [
                (Some(&spec.containers), &mut status.container_statuses),
                (spec.init_containers.as_ref(), &mut status.init_container_statuses),
            ];
            for (containers, statuses) in lists {
                for known in statuses.iter_mut().flatten() {
                    let runs = known.state.as_ref().is_some_and(|state| state.running.is_some());
                    match containers.into_iter().flatten().find(|it| it.name == known.name) {
                        Some(container) if runs => apply_resources(container, known, uid, now),
                        // The container is not running; its next start uses these resources.
                        Some(container) => set_resources(container, known),
                        None => {}
                    }
                }
            }
        }
    }
    (status != *before).then_some(status)
}

/// Removes a condition.
pub fn remove_condition(status: &mut PodStatus, type_: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|it| it.type_ != type_);
    }
}

/// Sets the condition of a resize that the node cannot grant now.
pub fn set_pending(status: &mut PodStatus, generation: i64, reason: &str, message: String, now: Timestamp) {
    set_condition(status, PENDING, generation, Some((reason, message)), now);
}

/// Sets the condition of a resize that is being carried out, with an error if it failed.
pub fn set_in_progress(status: &mut PodStatus, generation: i64, error: Option<String>, now: Timestamp) {
    set_condition(status, IN_PROGRESS, generation, error.map(|message| ("Error", message)), now);
}

/// Sets a condition to true. A condition that is already true keeps its transition time.
fn set_condition(status: &mut PodStatus, type_: &str, generation: i64, reason: Option<(&str, String)>, now: Timestamp) {
    let conditions = status.conditions.get_or_insert_default();
    let known = conditions.iter().find(|it| it.type_ == type_);
    let since = known.and_then(|known| known.last_transition_time.clone());
    let (reason, message) = reason.map_or((None, None), |(reason, message)| (Some(reason.to_owned()), Some(message)));
    let condition = PodCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason,
        message,
        observed_generation: Some(generation),
        last_transition_time: Some(since.unwrap_or_else(|| stamp(now))),
        ..PodCondition::default()
    };
    conditions.retain(|it| it.type_ != type_);
    conditions.push(condition);
}

/// Sets the resources in the status of a container that starts.
pub fn set_initial_resources(container: &Container, status: &mut ContainerStatus) {
    let is_empty = |it: &ResourceRequirements| it.requests.is_none() && it.limits.is_none();
    if container.resources.as_ref().is_some_and(|resources| !is_empty(resources)) {
        set_resources(container, status);
    }
}

/// Sets the resources of a container in its status to those of its spec.
pub fn set_resources(container: &Container, status: &mut ContainerStatus) {
    let resources = container.resources.clone().unwrap_or_default();
    status.allocated_resources = resources.requests.clone();
    status.resources = Some(ResourceRequirements { claims: None, ..resources });
}

/// True if two sets of resources differ in a resource that can be resized.
pub fn differ(had: &ResourceRequirements, wanted: &ResourceRequirements) -> bool {
    RESIZED.iter().any(|name| differ_in(name, had, wanted))
}

fn differ_in(name: &str, had: &ResourceRequirements, wanted: &ResourceRequirements) -> bool {
    let of = |resources: &ResourceRequirements| {
        let value = |list: &Option<BTreeMap<String, Quantity>>| Some(amount(name, list.as_ref()?.get(name)?));
        (value(&resources.requests), value(&resources.limits))
    };
    of(had) != of(wanted)
}

/// True if a container's resize policies require a restart for this change.
pub fn must_restart(container: &Container, had: &ResourceRequirements, wanted: &ResourceRequirements) -> bool {
    let policies = container.resize_policy.iter().flatten();
    let mut restarting = policies.filter(|policy| policy.restart_policy == "RestartContainer");
    restarting.any(|policy| differ_in(&policy.resource_name, had, wanted))
}

/// Applies the resources of the spec to a running container. Restarts the container if its resize
/// policy requires it.
fn apply_resources(container: &Container, status: &mut ContainerStatus, uid: &str, now: Timestamp) {
    let wanted = container.resources.clone().unwrap_or_default();
    let restarts = status.resources.as_ref().is_some_and(|had| must_restart(container, had, &wanted));
    if restarts {
        restart(container, status, uid, now);
    }
    set_resources(container, status);
}

/// Replaces a simulated container's run by its next one.
fn restart(container: &Container, status: &mut ContainerStatus, uid: &str, now: Timestamp) {
    status.restart_count += 1;
    status.container_id = Some(container_id(uid, &container.name, status.restart_count));
    status.image = container.image.clone().unwrap_or_default();
    status.image_id = image_id(&status.image);
    let running = ContainerStateRunning { started_at: Some(stamp(now)) };
    status.state = Some(ContainerState { running: Some(running), ..ContainerState::default() });
}

/// Reason and message, as in a kubelet, if the node cannot grant the requests of a pod's spec in
/// place of those in its status. `others` returns the resources that the node's other pods use.
///
/// Only an increase can be rejected. A decrease, or a change to another field such as an image,
/// needs no free resources.
pub fn rejection(
    pod: &Pod,
    status: &PodStatus,
    node: &Node,
    others: impl FnOnce() -> Resources,
) -> Option<(&'static str, String)> {
    let spec = pod.spec.as_ref()?;
    let (wanted, had) = (Resources::of_pod(spec), allocated(spec, status));
    if RESIZED.iter().all(|name| wanted.get(name) <= had.get(name)) {
        return None;
    }
    let capacity = allocatable(node);
    for name in RESIZED {
        let (wanted, capacity) = (wanted.get(name), capacity.get(name));
        if wanted > capacity {
            let message =
                format!("Node didn't have enough capacity: {name}, requested: {wanted}, capacity: {capacity}");
            return Some(("Infeasible", message));
        }
    }
    let others = others();
    for name in RESIZED {
        let (wanted, used, capacity) = (wanted.get(name), others.get(name), capacity.get(name));
        if wanted + used > capacity {
            let message = format!(
                "Node didn't have enough resource: {name}, requested: {wanted}, used: {used}, capacity: {capacity}"
            );
            return Some(("Deferred", message));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(generation: i64, observed: i64, cpu: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u", "generation": generation},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}},
                "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]}]},
            "status": {"phase": "Running", "observedGeneration": observed, "containerStatuses": [
                {"name": "c", "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
                 "state": {"running": {}}, "allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "1"}}}]},
        }))
        .expect("a pod")
    }

    fn node() -> Node {
        let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4", "memory": "8Gi"}}});
        serde_json::from_value(node).expect("a node")
    }

    fn used(cpu: &str) -> Resources {
        Resources::from_quantities(&[("cpu".to_owned(), serde_json::from_value(json!(cpu)).expect("text"))].into())
    }

    fn resized(pod: &Pod, others: &str) -> Value {
        let now = Timestamp::UNIX_EPOCH;
        serde_json::to_value(resize(pod, &node(), || used(others), now).expect("a changed status")).expect("JSON")
    }

    #[test]
    fn a_container_is_resized_if_the_node_has_the_resources() {
        assert_eq!(resize(&pod(2, 2, "3"), &node(), || used("0"), Timestamp::UNIX_EPOCH), None, "observed already");
        let status = resized(&pod(2, 1, "3"), "1");
        let container = &status["containerStatuses"][0];
        assert_eq!(container["allocatedResources"], json!({"cpu": "3"}));
        assert_eq!(container["resources"], json!({"requests": {"cpu": "3"}}));
        assert_eq!((&container["restartCount"], &status["observedGeneration"]), (&json!(0), &json!(2)));
    }

    #[test]
    fn a_restart_container_policy_restarts_the_container() {
        let mut grown = pod(2, 1, "1");
        let container = &mut grown.spec.as_mut().expect("spec").containers[0];
        container.resources = serde_json::from_value(json!({"requests": {"cpu": "1", "memory": "2Gi"}})).expect("some");
        let status = resized(&grown, "0");
        assert_eq!(status["containerStatuses"][0]["restartCount"], 1);
        assert_eq!(status["containerStatuses"][0]["allocatedResources"]["memory"], "2Gi");
    }

    #[test]
    fn a_resize_that_does_not_fit_is_deferred_or_infeasible() {
        let status = resized(&pod(2, 1, "5"), "0");
        let condition = &status["conditions"][0];
        assert_eq!((&condition["type"], &condition["reason"]), (&json!("PodResizePending"), &json!("Infeasible")));
        assert_eq!(condition["message"], "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000");
        let mut waiting = pod(2, 1, "3");
        let status = resized(&waiting, "2");
        assert_eq!(status["conditions"][0]["reason"], "Deferred");
        assert_eq!(
            status["containerStatuses"][0]["resources"],
            json!({"requests": {"cpu": "1"}}),
            "the resources are unchanged"
        );
        waiting.status = serde_json::from_value(status).expect("a status");
        assert!(is_pending(&waiting));
        assert_eq!(reserved(&waiting).get("cpu"), 1000, "a pending resize reserves nothing");
        assert_eq!(
            resize(&waiting, &node(), || used("2"), Timestamp::MAX),
            None,
            "the node has no more free resources than before"
        );
        let status = resized(&waiting, "1");
        assert_eq!(status["containerStatuses"][0]["resources"], json!({"requests": {"cpu": "3"}}));
        assert_eq!(status["conditions"], json!([]));
    }

    #[test]
    fn a_change_without_an_increase_is_never_rejected() {
        // The node is overcommitted. A change to the image or a decrease is still possible.
        let status = resized(&pod(2, 1, "1000m"), "6");
        assert_eq!((&status["conditions"], &status["observedGeneration"]), (&Value::Null, &json!(2)));
        let status = resized(&pod(2, 1, "500m"), "6");
        assert_eq!(status["containerStatuses"][0]["allocatedResources"], json!({"cpu": "500m"}));
        assert_eq!(status["conditions"], Value::Null);
    }

    #[test]
    fn a_pod_that_shrinks_and_a_node_that_grows_free_resources() {
        assert!(frees_resources(&pod(1, 1, "3"), &pod(2, 1, "1")));
        assert!(!frees_resources(&pod(1, 1, "3"), &pod(2, 1, "4")));
        assert!(!frees_resources(&pod(1, 1, "3"), &pod(1, 1, "3")));
        let mut rejected = pod(2, 1, "6");
        rejected.status = serde_json::from_value(resized(&rejected, "0")).expect("a status");
        assert!(is_pending(&rejected));
        let mut larger = node();
        let allocatable = larger.status.as_mut().and_then(|status| status.allocatable.as_mut()).expect("resources");
        allocatable.insert("cpu".into(), serde_json::from_value(json!("8")).expect("text"));
        assert!(has_grown(&node(), &larger) && !has_grown(&larger, &node()));
        let status = resize(&rejected, &larger, || used("1"), Timestamp::UNIX_EPOCH).expect("it fits now");
        assert_eq!(status.conditions, Some(Vec::new()));
    }
}
