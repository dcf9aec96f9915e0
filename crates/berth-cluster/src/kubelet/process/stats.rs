//! Evicts pods that use more local storage than their limits.

use berth_apimachinery::quantity::{Format, Quantity};
use berth_pod_runtime::PodDisk;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, EmptyDirVolumeSource, Pod};

use super::worker::Worker;
use crate::kubelet::lifecycle::{Ending, PodEvent};
use crate::kubelet::resolve::{container_limits, pod_limits};

/// Time between two measurements of a pod's disk usage.
const PERIOD: SignedDuration = SignedDuration::from_secs(20);

impl Worker {
    /// Measures the disk usage of a pod with limits, and ends the pod if it exceeds one. Returns
    /// when to measure again.
    pub(super) async fn watch_disk(&mut self, pod: &Pod, now: Timestamp) -> Option<Timestamp> {
        if !has_limits(pod) {
            return None;
        }
        if let Some(at) = self.memory.stats_at.filter(|at| *at > now) {
            return Some(at);
        }
        let next = now.checked_add(PERIOD).ok();
        self.memory.stats_at = next;
        let disk = self.node.runtime.disk(&self.uid).await?;
        let Some(message) = excess(pod, &disk) else { return next };
        self.node.record(pod, &PodEvent::warning("Evicted", message.clone()));
        self.memory.ending = Some(Ending::Failed { reason: "Evicted".to_owned(), message });
        Some(now)
    }
}

/// emptyDir volumes on disk. Those in memory count against the memory limit.
fn empty_dirs(pod: &Pod) -> impl Iterator<Item = (&str, &EmptyDirVolumeSource)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let dirs = volumes.filter_map(|volume| Some((volume.name.as_str(), volume.empty_dir.as_ref()?)));
    dirs.filter(|(_, dir)| dir.medium.as_deref().is_none_or(str::is_empty))
}

fn size_limit(dir: &EmptyDirVolumeSource) -> Option<u64> {
    let limit = Quantity::parse(&dir.size_limit.as_ref()?.0).ok()?;
    u64::try_from(limit.value()).ok().filter(|bytes| *bytes > 0)
}

fn has_limits(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    empty_dirs(pod).any(|(_, dir)| size_limit(dir).is_some())
        || containers.into_iter().any(|container| container_limits(container).ephemeral_storage_bytes.is_some())
}

/// Message about the limit that a pod exceeds; `None` if it exceeds none.
///
/// Source: Kubernetes' kubelet, eviction for local storage.
fn excess(pod: &Pod, disk: &PodDisk) -> Option<String> {
    for (name, dir) in empty_dirs(pod) {
        let used = disk.volumes.get(name).copied().unwrap_or(0);
        if let (Some(limit), Some(text)) = (size_limit(dir), &dir.size_limit)
            && used > limit
        {
            return Some(format!("Usage of EmptyDir volume {name:?} exceeds the limit {:?}. ", text.0));
        }
    }
    let spec = pod.spec.as_ref()?;
    for container in &spec.containers {
        let used = disk.containers.get(&container.name).copied().unwrap_or(0);
        if container_limits(container).ephemeral_storage_bytes.is_some_and(|limit| used > limit) {
            let limit = amount_of(container);
            return Some(format!(
                "Container {} exceeded its local ephemeral storage limit {limit:?}. ",
                container.name
            ));
        }
    }
    let limit = pod_limits(spec).ephemeral_storage_bytes.filter(|limit| *limit > 0 && disk.total_bytes() > *limit)?;
    let limit = Quantity::from_scaled(limit.into(), 0, Format::BinarySi)?;
    Some(format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "))
}

/// The limit of a container as written in its spec.
fn amount_of(container: &Container) -> &str {
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    limits.and_then(|limits| limits.get("ephemeral-storage")).map_or("", |amount| amount.0.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_volume_has_a_limit_of_its_own() {
        let volume = |name: &str, limit: &str| json!({"name": name, "emptyDir": {"sizeLimit": limit}});
        let limits = json!({"limits": {"ephemeral-storage": "6Mi"}});
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "containers": [{"name": "c", "resources": limits}, {"name": "d", "resources": limits}],
            "volumes": [volume("a", "1Mi"), volume("b", "8Mi"), {"name": "e", "emptyDir": {}}]}}))
        .expect("a pod");
        let found = |containers: &[(&str, u64)], volumes: &[(&str, u64)]| {
            let map = |list: &[(&str, u64)]| list.iter().map(|(name, it)| ((*name).to_owned(), it << 20)).collect();
            excess(&pod, &PodDisk { containers: map(containers), volumes: map(volumes) })
        };
        assert_eq!(found(&[], &[("a", 1), ("b", 8)]), None, "the limits are kept");
        let message = "Usage of EmptyDir volume \"a\" exceeds the limit \"1Mi\". ";
        assert_eq!(found(&[], &[("a", 2), ("b", 0)]).as_deref(), Some(message), "less than the sum of the limits");
        let message = "Container d exceeded its local ephemeral storage limit \"6Mi\". ";
        assert_eq!(found(&[("c", 6), ("d", 7)], &[]).as_deref(), Some(message));
        let message = "Pod ephemeral local storage usage exceeds the total limit of containers 12Mi. ";
        assert_eq!(found(&[("c", 2), ("d", 2)], &[("e", 9)]).as_deref(), Some(message));
    }
}
