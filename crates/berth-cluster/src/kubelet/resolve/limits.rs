//! Limits of containers and pods for control groups.

use berth_apimachinery::quantity::Quantity;
use berth_pod_runtime::{ContainerKind, Limits};
use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};

use super::Amounts;
use crate::kubelet::lifecycle::members;

/// The limits of a container. Requests that are not set default to limits.
pub fn container_limits(container: &Container) -> Limits {
    container.resources.as_ref().map(of_resources).unwrap_or_default()
}

fn of_resources(resources: &ResourceRequirements) -> Limits {
    let (limits, requests) = (resources.limits.as_ref(), resources.requests.as_ref());
    let cpu_milli = amount(limits, "cpu", true);
    let memory_bytes = amount(limits, "memory", false);
    Limits {
        cpu_milli: cpu_milli.filter(|amount| *amount > 0),
        cpu_request_milli: amount(requests, "cpu", true).or(cpu_milli).unwrap_or(0),
        memory_bytes: memory_bytes.filter(|amount| *amount > 0),
        memory_request_bytes: amount(requests, "memory", false).or(memory_bytes).unwrap_or(0),
        ephemeral_storage_bytes: amount(limits, "ephemeral-storage", false).filter(|amount| *amount > 0),
    }
}

fn amount(amounts: Option<&Amounts>, name: &str, is_milli: bool) -> Option<u64> {
    let quantity = Quantity::parse(&amounts?.get(name)?.0).ok()?;
    u64::try_from(if is_milli { quantity.milli_value() } else { quantity.value() }).ok()
}

/// The limits of a pod: the sum over main containers and sidecars, but at least the largest init
/// container. A pod with an unlimited container is unlimited.
///
/// Source: Kubernetes documentation, "Sidecar containers", section on resource sharing; KEP-2837
/// for resources of the pod.
pub fn pod_limits(spec: &PodSpec) -> Limits {
    let mut sum =
        Limits { cpu_milli: Some(0), memory_bytes: Some(0), ephemeral_storage_bytes: Some(0), ..Limits::default() };
    let mut largest = Limits { cpu_milli: Some(0), memory_bytes: Some(0), ..Limits::default() };
    let mut sidecars = sum;
    for member in members(spec) {
        let limits = container_limits(&member.spec);
        match member.kind {
            ContainerKind::Main => sum = add(sum, limits),
            ContainerKind::Sidecar => {
                sidecars = add(sidecars, limits);
                largest = max(largest, sidecars);
            }
            ContainerKind::Init => largest = max(largest, add(sidecars, limits)),
            ContainerKind::Ephemeral => {}
        }
    }
    let mut total = max(add(sum, sidecars), largest);
    if let Some(overhead) = &spec.overhead {
        let (cpu, memory) = (amount(Some(overhead), "cpu", true), amount(Some(overhead), "memory", false));
        let (cpu, memory) = (cpu.unwrap_or(0), memory.unwrap_or(0));
        let overhead = Limits {
            cpu_milli: Some(cpu),
            cpu_request_milli: cpu,
            memory_bytes: Some(memory),
            memory_request_bytes: memory,
            ephemeral_storage_bytes: Some(0),
        };
        total = add(total, overhead);
    }
    if let Some(resources) = &spec.resources {
        let pod = of_resources(resources);
        total.cpu_milli = pod.cpu_milli.or(total.cpu_milli);
        total.memory_bytes = pod.memory_bytes.or(total.memory_bytes);
        total.cpu_request_milli = pod.cpu_request_milli.max(total.cpu_request_milli);
        total.memory_request_bytes = pod.memory_request_bytes.max(total.memory_request_bytes);
    }
    total
}

fn add(a: Limits, b: Limits) -> Limits {
    let sum = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
    Limits {
        cpu_milli: sum(a.cpu_milli, b.cpu_milli),
        cpu_request_milli: a.cpu_request_milli.saturating_add(b.cpu_request_milli),
        memory_bytes: sum(a.memory_bytes, b.memory_bytes),
        memory_request_bytes: a.memory_request_bytes.saturating_add(b.memory_request_bytes),
        ephemeral_storage_bytes: sum(a.ephemeral_storage_bytes, b.ephemeral_storage_bytes),
    }
}

/// The larger of two limits, for each resource. A missing limit is larger than any other.
fn max(a: Limits, b: Limits) -> Limits {
    let max = |a: Option<u64>, b: Option<u64>| Some(a?.max(b?));
    Limits {
        cpu_milli: max(a.cpu_milli, b.cpu_milli),
        cpu_request_milli: a.cpu_request_milli.max(b.cpu_request_milli),
        memory_bytes: max(a.memory_bytes, b.memory_bytes),
        memory_request_bytes: a.memory_request_bytes.max(b.memory_request_bytes),
        ephemeral_storage_bytes: a.ephemeral_storage_bytes,
    }
}
