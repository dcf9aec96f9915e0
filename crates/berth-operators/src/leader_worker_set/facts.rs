//! What the controllers read from pods and StatefulSets.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::constants::{REVISION, WORKER_INDEX};

/// A label, or the empty string.
pub fn label<'a>(metadata: &'a ObjectMeta, key: &str) -> &'a str {
    metadata.labels.as_ref().and_then(|labels| labels.get(key)).map_or("", String::as_str)
}

/// An annotation, or the empty string.
pub fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> &'a str {
    metadata.annotations.as_ref().and_then(|annotations| annotations.get(key)).map_or("", String::as_str)
}

/// Key of the object's revision.
pub fn revision_of(metadata: &ObjectMeta) -> &str {
    label(metadata, REVISION)
}

/// True if the pod leads its group.
pub fn is_leader(pod: &Pod) -> bool {
    label(&pod.metadata, WORKER_INDEX) == "0"
}

/// True if the pod's condition Ready is true.
pub fn is_pod_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// True if the pod runs and is ready.
pub fn is_running_and_ready(pod: &Pod) -> bool {
    phase(pod) == "Running" && is_pod_ready(pod)
}

/// The pod's phase.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// True if a container of a pod that has not ended was restarted.
pub fn has_restarted(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    matches!(phase(pod), "Running" | "Pending") && restarts(status) > 0
}

fn restarts(status: &PodStatus) -> i64 {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    lists.into_iter().flatten().flatten().map(|container| i64::from(container.restart_count)).sum()
}

/// True if all pods of the StatefulSet are available and of its current template.
pub fn is_ready(set: &StatefulSet) -> bool {
    let wanted = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = set.status.clone().unwrap_or_default();
    status.available_replicas.unwrap_or(0) == wanted && status.current_revision == status.update_revision
}

/// The name of a StatefulSet and the ordinal of its pod, from the pod's name.
pub fn parent_and_ordinal(name: &str) -> Option<(&str, i32)> {
    let (parent, ordinal) = name.rsplit_once('-')?;
    let digits = !ordinal.is_empty() && ordinal.bytes().all(|byte| byte.is_ascii_digit());
    Some((parent, digits.then(|| ordinal.parse().ok()).flatten()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ordinal_is_the_last_number_of_the_name() {
        assert_eq!(parent_and_ordinal("web-1-12"), Some(("web-1", 12)));
        assert_eq!(parent_and_ordinal("web"), None);
        assert_eq!(parent_and_ordinal("web-x"), None);
        assert_eq!(parent_and_ordinal("web-99999999999"), None);
    }
}
