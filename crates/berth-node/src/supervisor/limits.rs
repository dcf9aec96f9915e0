//! Changes to the resource limits of a running pod.

use std::rc::Rc;

use berth_pod_runtime::{Limits, PodLimits};

use super::pod::{Live, Pod};
use crate::protocol::WireError;

/// Changes the limits of the pod and of running containers. Containers that have ended are skipped.
///
/// If a container uses more memory than its new limit, nothing is changed, because the kernel would
/// kill the container.
pub(super) fn update(pod: &Rc<Pod>, limits: &PodLimits) -> Result<(), WireError> {
    let live: Vec<(Rc<Live>, Limits)> =
        limits.containers.iter().filter_map(|(id, limits)| Some((pod.find(id)?.live()?, *limits))).collect();
    for (live, limits) in &live {
        check_memory(live, *limits)?;
    }
    let group = pod.launch.group.as_ref();
    // The CPU limit of a container may not exceed that of its pod.
    let pod_first = group.is_some_and(|group| group.cpu_milli().is_some_and(|now| limits.pod.cpu_milli > Some(now)));
    let pod_first = pod_first || limits.pod.cpu_milli.is_none();
    if let Some(group) = group.filter(|_| pod_first) {
        group.change_limits(&limits.pod)?;
    }
    for (live, limits) in &live {
        if let Some(group) = &live.group {
            group.change_limits(limits)?;
        }
        live.limits.set(*limits);
    }
    if let Some(group) = group.filter(|_| !pod_first) {
        group.change_limits(&limits.pod)?;
    }
    Ok(())
}

fn check_memory(live: &Live, limits: Limits) -> Result<(), WireError> {
    let used = live.group.as_ref().and_then(|group| group.usage().memory_bytes);
    match (used, limits.memory_bytes) {
        (Some(used), Some(limit)) if used > limit => Err(WireError::Config(format!(
            "container {} uses {used} bytes of memory, more than its new limit of {limit} bytes",
            live.config.id.name
        ))),
        _ => Ok(()),
    }
}
