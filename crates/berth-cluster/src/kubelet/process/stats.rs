//! Evicts pods that use more local storage than their limits.

use berth_apimachinery::quantity::Quantity;
use berth_pod_runtime::PodStats;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod};

use super::worker::Worker;
use crate::kubelet::lifecycle::{Ending, Notice};
use crate::kubelet::resolve::{container_limits, pod_limits};

/// Time between two reads of a pod's use of disk.
const PERIOD: SignedDuration = SignedDuration::from_secs(20);

impl Worker {
    /// Reads the use of disk of a pod with limits, and ends the pod if it exceeds one. Returns when
    /// to read again.
    pub(super) async fn watch_disk(&mut self, pod: &Pod, now: Timestamp) -> Option<Timestamp> {
        if !has_limits(pod) {
            return None;
        }
        if let Some(at) = self.memory.stats_at.filter(|at| *at > now) {
            return Some(at);
        }
        let next = now.checked_add(PERIOD).ok();
        self.memory.stats_at = next;
        let stats = self.node.runtime.stats(&self.uid).await?;
        let Some(message) = excess(pod, &stats) else { return next };
        self.node.record(pod, &Notice::warning("Evicted", message.clone()));
        self.memory.ending = Some(Ending::Failed { reason: "Evicted".to_owned(), message });
        Some(now)
    }
}

/// Volumes on disk. Those in memory count against the memory limit.
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

/// The limit that a pod exceeds, as a message.
///
/// Source: Kubernetes' kubelet, eviction for local storage.
fn excess(pod: &Pod, stats: &PodStats) -> Option<String> {
    // The runtime reports the volumes of a pod together, so several volumes share their limits.
    let limits: Option<u64> = empty_dirs(pod).map(|(_, dir)| size_limit(dir)).sum();
    let names: Vec<&str> = empty_dirs(pod).map(|(name, _)| name).collect();
    if let Some(limit) = limits.filter(|limit| *limit > 0 && stats.volume_bytes > *limit) {
        let names = names.join(" ");
        return Some(format!("Usage of EmptyDir volume \"{names}\" exceeds the limit \"{limit}\"."));
    }
    let spec = pod.spec.as_ref()?;
    for container in &spec.containers {
        let used = stats.containers.iter().find(|it| it.name == container.name).map_or(0, |it| it.disk_bytes);
        if let Some(limit) = container_limits(container).ephemeral_storage_bytes.filter(|limit| used > *limit) {
            return Some(format!(
                "Container {} exceeded its local ephemeral storage limit \"{limit}\". ",
                container.name
            ));
        }
    }
    let used = stats.containers.iter().map(|it| it.disk_bytes).sum::<u64>().saturating_add(stats.volume_bytes);
    let limit = pod_limits(spec).ephemeral_storage_bytes.filter(|limit| *limit > 0 && used > *limit)?;
    Some(format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "))
}
