//! Which pod holds which simulated GPU of a node.
//!
//! A real device plugin chooses GPUs when a pod starts, and the pod keeps them. Here they are
//! chosen when a pod is first seen by a request of the metrics: the free GPUs with the lowest
//! numbers, for pods in the order of their start. After a restart, pods may hold other GPUs of
//! their node.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::GPU;

/// A container that holds a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holder {
    /// UID of the pod.
    pub uid: String,
    pub container: String,
}

/// The containers of a pod that hold GPUs, with their number. None if the pod is not bound to a
/// node or has ended.
pub(super) fn holders(pod: &Pod) -> impl Iterator<Item = (Holder, usize)> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let holds = is_bound && !matches!(phase, Some("Succeeded" | "Failed"));
    let containers = pod.spec.iter().filter(move |_| holds).flat_map(|spec| &spec.containers);
    containers.filter_map(|container| {
        let resources = container.resources.as_ref()?;
        let of = |amounts: Option<&std::collections::BTreeMap<String, _>>| -> Option<usize> {
            let amount: &k8s_openapi::apimachinery::pkg::api::resource::Quantity = amounts?.get(GPU)?;
            amount.0.parse().ok().filter(|count| *count > 0)
        };
        let count = of(resources.limits.as_ref()).or_else(|| of(resources.requests.as_ref()))?;
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        Some((Holder { uid, container: container.name.clone() }, count))
    })
}

/// Frees the GPUs of pods that are gone, and assigns free GPUs to pods that lack some.
pub(super) fn assign(slots: &mut [Option<Holder>], pods: &[&Pod]) {
    let mut pods = pods.to_vec();
    let started = |pod: &Pod| pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|at| at.0);
    pods.sort_by_cached_key(|pod| (started(pod).is_none(), started(pod), pod.namespace(), pod.name_any()));
    let wanted: Vec<(Holder, usize)> = pods.into_iter().flat_map(holders).collect();
    for slot in slots.iter_mut() {
        slot.take_if(|holder| !wanted.iter().any(|(known, _)| known == holder));
    }
    for (holder, count) in wanted {
        let held = slots.iter().filter(|slot| slot.as_ref() == Some(&holder)).count();
        let free = slots.iter_mut().filter(|slot| slot.is_none());
        for slot in free.take(count.saturating_sub(held)) {
            *slot = Some(holder.clone());
        }
    }
}
