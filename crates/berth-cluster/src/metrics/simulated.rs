//! Usage of simulated pods and nodes.
//!
//! A running container uses half of its CPU request and six tenths of its memory request, or
//! [`WITHOUT_REQUEST`] if it requests nothing. Annotations of the pod change this:
//!
//! | annotation | value |
//! |---|---|
//! | `berth.dev/cpu-usage` | `90%` of each container's request, or an amount for the pod such as `250m` |
//! | `berth.dev/memory-usage` | the same for memory, such as `120%` or `1Gi` |
//!
//! An amount for the pod is divided among its containers by their requests, or evenly if they
//! request nothing. The usage of a simulated node is that of its pods and [`SYSTEM`].

use std::collections::BTreeMap;
use std::time::Duration;

use berth_apimachinery::quantity::Quantity;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use kube::ResourceExt;

use super::{Measured, PodUsage, Usage};
use crate::pools::is_ready;

/// Annotation with the CPU usage of a simulated pod.
pub const CPU_USAGE: &str = "berth.dev/cpu-usage";
/// Annotation with the memory usage of a simulated pod.
pub const MEMORY_USAGE: &str = "berth.dev/memory-usage";
/// Usage of a container that requests nothing.
pub const WITHOUT_REQUEST: Usage = Usage { cpu_nano: 10_000_000, memory_bytes: 32 << 20 };
/// Usage of a node by its system.
pub const SYSTEM: Usage = Usage { cpu_nano: 50_000_000, memory_bytes: 400 << 20 };
/// CPU usage in percent of the request.
const CPU_PERCENT: u64 = 50;
/// Memory usage in percent of the request.
const MEMORY_PERCENT: u64 = 60;
/// Length of the window that simulated measurements report.
const WINDOW: Duration = Duration::from_secs(15);

/// An annotation's value.
enum Stated {
    /// Percent of the request.
    Percent(u64),
    /// An amount for the pod.
    Amount(u64),
}

/// CPU or memory.
struct Resource {
    name: &'static str,
    annotation: &'static str,
    percent: u64,
    without_request: u64,
    /// Power of ten of the unit: nanocores or bytes.
    scale: i32,
}

const CPU: Resource = Resource {
    name: "cpu",
    annotation: CPU_USAGE,
    percent: CPU_PERCENT,
    without_request: WITHOUT_REQUEST.cpu_nano,
    scale: -9,
};
const MEMORY: Resource = Resource {
    name: "memory",
    annotation: MEMORY_USAGE,
    percent: MEMORY_PERCENT,
    without_request: WITHOUT_REQUEST.memory_bytes,
    scale: 0,
};

impl Resource {
    fn amount(&self, text: &str) -> Option<u64> {
        u64::try_from(Quantity::parse(text).ok()?.scaled_value(self.scale)).ok()
    }

    fn stated(&self, pod: &Pod) -> Option<Stated> {
        let text = pod.annotations().get(self.annotation)?.trim();
        match text.strip_suffix('%') {
            Some(percent) => percent.parse().ok().map(Stated::Percent),
            None => self.amount(text).map(Stated::Amount),
        }
    }

    fn request(&self, container: &Container) -> u64 {
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let amount = requests.and_then(|requests| requests.get(self.name));
        amount.and_then(|amount| self.amount(&amount.0)).unwrap_or(0)
    }

    /// Usage of each container.
    fn usage(&self, pod: &Pod, containers: &[&Container]) -> Vec<u64> {
        let requests: Vec<u64> = containers.iter().map(|container| self.request(container)).collect();
        let of_request = |request: u64, percent: u64| {
            let of = if request > 0 { request } else { self.without_request };
            u64::try_from(u128::from(of) * u128::from(percent) / 100).unwrap_or(u64::MAX)
        };
        let total: u128 = requests.iter().map(|request| u128::from(*request)).sum();
        let count = containers.len().max(1) as u64;
        let share = |request: u64, amount: u64| match total {
            0 => amount / count,
            total => u64::try_from(u128::from(amount) * u128::from(request) / total).unwrap_or(u64::MAX),
        };
        let stated = self.stated(pod);
        let usage = requests.iter().map(|request| match stated {
            Some(Stated::Amount(amount)) => share(*request, amount),
            Some(Stated::Percent(percent)) => of_request(*request, percent),
            None if *request == 0 => self.without_request,
            None => of_request(*request, self.percent),
        });
        usage.collect()
    }
}

/// Usage of a simulated pod; `None` if none of its containers runs.
pub fn pod(pod: &Pod, now: Timestamp) -> Option<PodUsage> {
    let status = pod.status.as_ref().filter(|status| status.phase.as_deref() == Some("Running"))?;
    let statuses: Vec<_> = status.container_statuses.iter().chain(&status.init_container_statuses).flatten().collect();
    let spec = pod.spec.as_ref()?;
    let runs = |container: &&Container| {
        statuses.iter().any(|it| it.name == container.name && it.state.as_ref().is_some_and(|it| it.running.is_some()))
    };
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let containers: Vec<&Container> = all.filter(runs).collect();
    if containers.is_empty() {
        return None;
    }
    let (cpu, memory) = (CPU.usage(pod, &containers), MEMORY.usage(pod, &containers));
    let usage = cpu.into_iter().zip(memory).map(|(cpu_nano, memory_bytes)| Usage { cpu_nano, memory_bytes });
    let figures: BTreeMap<String, Usage> = containers.iter().map(|it| it.name.clone()).zip(usage).collect();
    Some(Measured { at: now, window: WINDOW, figures })
}

/// Usage of a simulated node; `None` if it is not ready.
pub fn node<'a>(node: &Node, pods: impl Iterator<Item = &'a Pod>, now: Timestamp) -> Option<Measured<Usage>> {
    if !is_ready(node) {
        return None;
    }
    let containers = pods.filter_map(|it| pod(it, now)).flat_map(|usage| usage.figures.into_values());
    Some(Measured { at: now, window: WINDOW, figures: containers.fold(SYSTEM, Usage::plus) })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn usage(annotations: Value) -> Vec<(u64, u64)> {
        let container = |name: &str, requests: Value| json!({"name": name, "resources": {"requests": requests}});
        let containers = [
            container("a", json!({"cpu": "1", "memory": "1000Mi"})),
            container("b", json!({"cpu": "3", "memory": "1000Mi"})),
            container("c", json!({})),
            container("ended", json!({"cpu": "4"})),
        ];
        let status = |name: &str| {
            let state = if name == "ended" { json!({"terminated": {"exitCode": 0}}) } else { json!({"running": {}}) };
            json!({"name": name, "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": state})
        };
        let statuses = ["a", "b", "c", "ended"].map(status);
        let status = json!({"phase": "Running", "containerStatuses": statuses});
        let object = json!({"metadata": {"annotations": annotations}, "spec": {"containers": containers},
            "status": status});
        let pod: Pod = serde_json::from_value(object).unwrap();
        let figures = super::pod(&pod, Timestamp::UNIX_EPOCH).unwrap().figures;
        figures.values().map(|it| (it.cpu_nano / 1_000_000, it.memory_bytes >> 20)).collect()
    }

    #[test]
    fn containers_use_a_fraction_of_their_requests() {
        assert_eq!(usage(json!({})), [(500, 600), (1500, 600), (10, 32)]);
    }

    #[test]
    fn annotations_state_a_percentage_of_the_requests_or_an_amount_for_the_pod() {
        assert_eq!(usage(json!({CPU_USAGE: "90%", MEMORY_USAGE: "120%"})), [(900, 1200), (2700, 1200), (9, 38)]);
        assert_eq!(usage(json!({CPU_USAGE: "2", MEMORY_USAGE: "1Gi"})), [(500, 512), (1500, 512), (0, 0)]);
        assert_eq!(usage(json!({CPU_USAGE: "a lot"})), [(500, 600), (1500, 600), (10, 32)]);
    }

    #[test]
    fn a_pod_that_does_not_run_has_no_usage() {
        let pending: Pod = serde_json::from_value(json!({"status": {"phase": "Pending"}})).unwrap();
        assert_eq!(super::pod(&pending, Timestamp::UNIX_EPOCH), None);
    }
}
