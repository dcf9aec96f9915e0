//! In-place resize of running containers: applies changed resources of the spec if the node has
//! enough.
//!
//! `status.observedGeneration` is the last generation of the spec that the kubelet has handled. Each
//! container status has the requests that the node granted (`allocatedResources`), and after the
//! first resize also the limits (`resources`). A resize that does not fit beside the other pods is
//! pending (`PodResizePending`, reason `Deferred`) until pods terminate or shrink. A resize beyond
//! the node's allocatable resources is `Infeasible` until the node grows.
//!
//! Source: KEP-1287 (in-place update of pod resources) and KEP-5067 (pod generation).

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStatus, Node, Pod, PodCondition, PodSpec, PodStatus,
    ResourceRequirements,
};

use super::simulated::{container_id, image_id};
use crate::scheduling::Resources;
use crate::time::stamp;

const PENDING: &str = "PodResizePending";
/// The resources that can be resized, in the order in which they are checked.
const RESIZED: [&str; 2] = ["cpu", "memory"];

/// True if the pod has a pending resize.
pub fn is_pending(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|it| it.type_ == PENDING)
}

/// The resources that a pod holds on its node: its requests, or with a pending resize the
/// allocation before it.
pub fn reserved(pod: &Pod) -> Resources {
    match (&pod.spec, &pod.status) {
        (Some(spec), Some(status)) if is_pending(pod) => allocated(spec, status),
        (Some(spec), _) => Resources::of_pod(spec),
        (None, _) => Resources::default(),
    }
}

/// True if this change of a pod frees resources on its node.
pub fn frees_resources(old: &Pod, new: &Pod) -> bool {
    // Most changes affect neither, and then the sums are not needed.
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
fn allocated(spec: &PodSpec, status: &PodStatus) -> Resources {
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
    let conditions = status.conditions.get_or_insert_default();
    // Only an increase can be rejected. A decrease, or a change of another field such as an image,
    // needs no free resources.
    let (wanted, had) = (Resources::of_pod(spec), allocated(spec, before));
    let wants_more = RESIZED.iter().any(|name| wanted.get(name) > had.get(name));
    match wants_more.then(|| rejection(&wanted, node, others)).flatten() {
        Some((reason, message)) => {
            let known = conditions.iter().find(|it| it.type_ == PENDING);
            let since = known.and_then(|known| known.last_transition_time.clone());
            let condition = PodCondition {
                type_: PENDING.into(),
                status: "True".into(),
                reason: Some(reason.into()),
                message: Some(message),
                observed_generation: Some(generation),
                last_transition_time: Some(since.unwrap_or_else(|| stamp(now))),
                ..PodCondition::default()
            };
            conditions.retain(|it| it.type_ != PENDING);
            conditions.push(condition);
        }
        None => {
            conditions.retain(|it| it.type_ != PENDING);
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

/// Reports that the runtime of a node cannot resize a running pod: sets the pending condition while
/// the spec and the allocation differ.
pub fn refuse(pod: &Pod, status: &mut PodStatus, now: Timestamp) {
    let Some(spec) = &pod.spec else { return };
    let is_running = status.phase.as_deref() == Some("Running");
    let (wanted, had) = (Resources::of_pod(spec), allocated(spec, status));
    let differs = is_running && RESIZED.iter().any(|name| wanted.get(name) != had.get(name));
    let known = status.conditions.iter().flatten().find(|it| it.type_ == PENDING).cloned();
    if !differs && known.is_none() {
        return;
    }
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|it| it.type_ != PENDING);
    if differs {
        conditions.push(PodCondition {
            type_: PENDING.into(),
            status: "True".into(),
            reason: Some("Infeasible".into()),
            message: Some("the node cannot resize running containers; recreate the pod to change its resources".into()),
            observed_generation: pod.metadata.generation,
            last_transition_time: known.and_then(|it| it.last_transition_time).or_else(|| Some(stamp(now))),
            ..PodCondition::default()
        });
    }
}

/// Sets the resources in the status of a container that starts: its requests; with a resize policy
/// RestartContainer also its limits.
pub fn set_initial_resources(container: &Container, status: &mut ContainerStatus) {
    if container.resize_policy.iter().flatten().any(|policy| policy.restart_policy == "RestartContainer") {
        set_resources(container, status);
    } else {
        status.allocated_resources = container.resources.as_ref().and_then(|resources| resources.requests.clone());
    }
}

fn set_resources(container: &Container, status: &mut ContainerStatus) {
    let resources = container.resources.clone().unwrap_or_default();
    status.allocated_resources = resources.requests.clone();
    status.resources = Some(ResourceRequirements { claims: None, ..resources });
}

/// Applies the resources of the spec to a running container. Restarts the container if its resize
/// policy requires it.
fn apply_resources(container: &Container, status: &mut ContainerStatus, uid: &str, now: Timestamp) {
    let wanted = container.resources.clone().unwrap_or_default();
    let policies = container.resize_policy.iter().flatten();
    let restarts = status.resources.as_ref().is_some_and(|had| {
        let differs = |name: &String| {
            let of = |resources: &ResourceRequirements| {
                let amount = |list: &Option<std::collections::BTreeMap<String, _>>| list.as_ref()?.get(name).cloned();
                (amount(&resources.requests), amount(&resources.limits))
            };
            of(had) != of(&wanted)
        };
        policies.filter(|it| it.restart_policy == "RestartContainer").any(|it| differs(&it.resource_name))
    });
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

/// Reason and message, in the kubelet's words, if the node cannot grant the requests.
fn rejection(wanted: &Resources, node: &Node, others: impl FnOnce() -> Resources) -> Option<(&'static str, String)> {
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
        // The node is overcommitted. A change of the image or a decrease is possible nevertheless.
        let status = resized(&pod(2, 1, "1000m"), "6");
        assert_eq!((&status["conditions"], &status["observedGeneration"]), (&json!([]), &json!(2)));
        let status = resized(&pod(2, 1, "500m"), "6");
        assert_eq!(status["containerStatuses"][0]["allocatedResources"], json!({"cpu": "500m"}));
        assert_eq!(status["conditions"], json!([]));
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
