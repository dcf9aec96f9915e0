//! Resizing containers that run: what the specification asks for becomes what they have, if the node has it.
//!
//! `status.observedGeneration` says up to which change of the specification the kubelet has looked; what the node gave
//! containers is written beside them (`allocatedResources`), with their limits from the first change on (`resources`). A
//! resize the node has no room for waits (`PodResizePending`, `Deferred`) until pods go or shrink; one that is more than
//! the node's size is `Infeasible`, until the node grows.
//!
//! Source: KEP-1287 (in-place update of pod resources) and KEP-5067 (pod generation).

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Node, Pod, PodCondition, PodSpec, PodStatus, ResourceRequirements,
};

use super::life::running;
use crate::scheduling::Resources;
use crate::time::stamp;

const PENDING: &str = "PodResizePending";
/// The resources that are resized, in the order the node is asked about them.
const RESIZED: [&str; 2] = ["cpu", "memory"];

/// Does a resize of this pod wait for room?
pub fn is_pending(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|it| it.type_ == PENDING)
}

/// What a pod has of its node: what it asks for, unless it waits for that; then what it was given before.
pub fn held(pod: &Pod) -> Resources {
    match (&pod.spec, &pod.status) {
        (Some(spec), Some(status)) if is_pending(pod) => given(spec, status),
        (Some(spec), _) => Resources::of_pod(spec),
        (None, _) => Resources::default(),
    }
}

/// Does this change of a pod make room on its node?
pub fn makes_room(old: &Pod, new: &Pod) -> bool {
    // Most changes are of neither, and need no sums.
    let may = old.metadata.generation != new.metadata.generation || is_pending(old) != is_pending(new);
    may && {
        let (before, after) = (held(old), held(new));
        RESIZED.iter().any(|name| after.get(name) < before.get(name))
    }
}

/// Does a node have more to give than before?
pub fn grew(old: &Node, new: &Node) -> bool {
    let (before, after) = (allocatable(old), allocatable(new));
    RESIZED.iter().any(|name| after.get(name) > before.get(name))
}

fn allocatable(node: &Node) -> Resources {
    let amounts = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    amounts.map(Resources::from_quantities).unwrap_or_default()
}

/// What the node has set aside for a pod, by what its containers' statuses say.
fn given(spec: &PodSpec, status: &PodStatus) -> Resources {
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

/// Does a pod run that changed since the kubelet looked, or that waits for room?
pub fn concerns(pod: &Pod) -> bool {
    let status = pod.status.as_ref().filter(|status| status.phase.as_deref() == Some("Running"));
    let seen = status.map(|status| status.observed_generation.unwrap_or(1));
    pod.metadata.deletion_timestamp.is_none()
        && seen.is_some_and(|seen| pod.metadata.generation.is_some_and(|it| seen < it) || is_pending(pod))
}

/// The status of a running pod whose specification changed since the kubelet looked; `None` when there is nothing to
/// write. `others` is what the other pods of the node use. Who asks for it must not be asked for another pod of the node
/// until that status can be seen.
pub fn resize(pod: &Pod, node: &Node, others: impl FnOnce() -> Resources, now: Timestamp) -> Option<PodStatus> {
    if !concerns(pod) {
        return None;
    }
    let before = pod.status.as_ref()?;
    let generation = pod.metadata.generation?;
    let spec = pod.spec.as_ref()?;
    let mut status = before.clone();
    status.observed_generation = Some(generation);
    let conditions = status.conditions.get_or_insert_default();
    // Other things change as well (images, tolerations), and who gives something back takes nobody's room.
    let (wanted, had) = (Resources::of_pod(spec), given(spec, before));
    let wants_more = RESIZED.iter().any(|name| wanted.get(name) > had.get(name));
    match wants_more.then(|| refusal(&wanted, node, others)).flatten() {
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
                        Some(container) if runs => give(container, known, uid, now),
                        // It will start with that.
                        Some(container) => set(container, known),
                        None => {}
                    }
                }
            }
        }
    }
    (status != *before).then_some(status)
}

/// Notes what a container has from the start: what it asked for, and its limits where a change of them means a restart.
pub fn note(container: &Container, status: &mut ContainerStatus) {
    if container.resize_policy.iter().flatten().any(|policy| policy.restart_policy == "RestartContainer") {
        set(container, status);
    } else {
        status.allocated_resources = container.resources.as_ref().and_then(|resources| resources.requests.clone());
    }
}

fn set(container: &Container, status: &mut ContainerStatus) {
    let resources = container.resources.clone().unwrap_or_default();
    status.allocated_resources = resources.requests.clone();
    status.resources = Some(ResourceRequirements { claims: None, ..resources });
}

/// A container gets what its specification asks for; its policy may say that it has to start again for that.
fn give(container: &Container, status: &mut ContainerStatus, uid: &str, now: Timestamp) {
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
        *status = running(container, uid, status.restart_count + 1, now);
    }
    set(container, status);
}

/// Why the node cannot give what is asked for, in the kubelet's words.
fn refusal(wanted: &Resources, node: &Node, others: impl FnOnce() -> Resources) -> Option<(&'static str, String)> {
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
        serde_json::to_value(resize(pod, &node(), || used(others), now).expect("something to write")).expect("JSON")
    }

    #[test]
    fn a_container_gets_what_the_node_has() {
        assert_eq!(resize(&pod(2, 2, "3"), &node(), || used("0"), Timestamp::UNIX_EPOCH), None, "it was seen");
        let status = resized(&pod(2, 1, "3"), "1");
        let container = &status["containerStatuses"][0];
        assert_eq!(container["allocatedResources"], json!({"cpu": "3"}));
        assert_eq!(container["resources"], json!({"requests": {"cpu": "3"}}));
        assert_eq!((&container["restartCount"], &status["observedGeneration"]), (&json!(0), &json!(2)));
    }

    #[test]
    fn a_policy_asks_for_a_restart() {
        let mut grown = pod(2, 1, "1");
        let container = &mut grown.spec.as_mut().expect("spec").containers[0];
        container.resources = serde_json::from_value(json!({"requests": {"cpu": "1", "memory": "2Gi"}})).expect("some");
        let status = resized(&grown, "0");
        assert_eq!(status["containerStatuses"][0]["restartCount"], 1);
        assert_eq!(status["containerStatuses"][0]["allocatedResources"]["memory"], "2Gi");
    }

    #[test]
    fn what_the_node_has_not_waits_or_never_comes() {
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
            "it has what it had"
        );
        waiting.status = serde_json::from_value(status).expect("a status");
        assert!(is_pending(&waiting));
        assert_eq!(held(&waiting).get("cpu"), 1000, "it does not hold what it waits for");
        assert_eq!(resize(&waiting, &node(), || used("2"), Timestamp::MAX), None, "there is no more room than before");
        let status = resized(&waiting, "1");
        assert_eq!(status["containerStatuses"][0]["resources"], json!({"requests": {"cpu": "3"}}));
        assert_eq!(status["conditions"], json!([]));
    }

    #[test]
    fn who_asks_for_no_more_is_not_refused() {
        // Its node has less than its pods have: another image, or less, is possible all the same.
        let status = resized(&pod(2, 1, "1000m"), "6");
        assert_eq!((&status["conditions"], &status["observedGeneration"]), (&json!([]), &json!(2)));
        let status = resized(&pod(2, 1, "500m"), "6");
        assert_eq!(status["containerStatuses"][0]["allocatedResources"], json!({"cpu": "500m"}));
        assert_eq!(status["conditions"], json!([]));
    }

    #[test]
    fn room_is_made_by_who_shrinks_and_by_nodes_that_grow() {
        assert!(makes_room(&pod(1, 1, "3"), &pod(2, 1, "1")));
        assert!(!makes_room(&pod(1, 1, "3"), &pod(2, 1, "4")));
        assert!(!makes_room(&pod(1, 1, "3"), &pod(1, 1, "3")));
        let mut refused = pod(2, 1, "6");
        refused.status = serde_json::from_value(resized(&refused, "0")).expect("a status");
        assert!(is_pending(&refused));
        let mut larger = node();
        let allocatable = larger.status.as_mut().and_then(|status| status.allocatable.as_mut()).expect("resources");
        allocatable.insert("cpu".into(), serde_json::from_value(json!("8")).expect("text"));
        assert!(grew(&node(), &larger) && !grew(&larger, &node()));
        let status = resize(&refused, &larger, || used("1"), Timestamp::UNIX_EPOCH).expect("it fits now");
        assert_eq!(status.conditions, Some(Vec::new()));
    }
}
