//! Events about pods with problems: containers that have failed or cannot start, and pods that no
//! node fits.

use berth_runtime::PlannedEvent;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;

use super::plan::{is_terminating, phase};

/// The events about a pod that has not ended.
pub fn events(pod: &Pod) -> Vec<PlannedEvent> {
    let Some(status) = pod.status.as_ref().filter(|_| !is_terminating(pod)) else { return Vec::new() };
    if matches!(phase(pod), "Succeeded" | "Failed") {
        return Vec::new();
    }
    let name = pod.name_any();
    let containers = [&status.container_statuses, &status.init_container_statuses];
    let known = containers.into_iter().flatten().find(|statuses| !statuses.is_empty());
    if let Some(containers) = known {
        return containers.iter().flat_map(|container| of_container(&name, container)).collect();
    }
    let conditions = status.conditions.iter().flatten();
    let since = |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
        time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
    };
    let latest = conditions.max_by_key(|condition| since(&condition.last_transition_time));
    let Some(condition) = latest.filter(|condition| condition.status != "True") else { return Vec::new() };
    let message = format!("Error pod {name} condition message: {}", condition.message.as_deref().unwrap_or_default());
    vec![PlannedEvent::warning(condition.reason.clone().unwrap_or_default(), message)]
}

fn of_container(pod: &str, container: &ContainerStatus) -> Vec<PlannedEvent> {
    let mut events = Vec::new();
    let Some(state) = &container.state else { return events };
    if let Some(ended) = state.terminated.as_ref().filter(|ended| ended.exit_code != 0) {
        let message = format!(
            "Error pod {pod} container {} exitCode: {} terminated message: {}",
            container.name,
            ended.exit_code,
            ended.message.as_deref().unwrap_or_default()
        );
        events.push(PlannedEvent::warning(ended.reason.clone().unwrap_or_default(), message));
    }
    if let Some(waiting) = &state.waiting
        && let Some(why) = waiting.message.as_deref().filter(|message| !message.is_empty())
    {
        let message = format!("Error pod {pod} container {} waiting message: {why}", container.name);
        events.push(PlannedEvent::warning(waiting.reason.clone().unwrap_or_default(), message));
    }
    events
}
