//! What an AppWrapper's pods do, in numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::parameters::Parameters;
use crate::health::NodeHealth;

/// The pods of an AppWrapper.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSummary {
    /// Number of pods that have not started.
    pub pending: i32,
    /// Number of running pods that are not being deleted.
    pub running: i32,
    /// Number of succeeded pods.
    pub succeeded: i32,
    /// Number of failed pods.
    pub failed: i32,
    /// Number of all pods, also of those that are being deleted.
    pub total: usize,
    /// True if a pod failed in a way after which a reset is useless.
    pub has_terminal_failure: bool,
    /// Nodes that running pods must leave, each with the reason.
    pub leaving: BTreeSet<String>,
}

impl PodSummary {
    /// Counts pods. `health` has the nodes that health takes anything away from.
    pub fn of(pods: &[Arc<Pod>], health: &BTreeMap<String, NodeHealth>, parameters: &Parameters) -> Self {
        let mut summary = Self { total: pods.len(), ..Self::default() };
        for pod in pods {
            let status = pod.status.as_ref();
            match status.and_then(|status| status.phase.as_deref()).unwrap_or("Pending") {
                "Running" if pod.metadata.deletion_timestamp.is_none() => {
                    summary.running += 1;
                    summary.leaving.extend(leaves(pod, health));
                }
                "Pending" => summary.pending += 1,
                "Succeeded" => summary.succeeded += 1,
                "Failed" => {
                    summary.failed += 1;
                    summary.has_terminal_failure |= exit_codes(pod).any(|code| parameters.is_terminal(code));
                }
                _ => {}
            }
        }
        summary
    }
}

/// The node that a running pod must leave, with the reason.
fn leaves(pod: &Pod, health: &BTreeMap<String, NodeHealth>) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let node = spec.node_name.as_ref()?;
    let reason = health.get(node)?.evicts(spec)?;
    Some(format!("{node} ({reason})"))
}

fn exit_codes(pod: &Pod) -> impl Iterator<Item = i32> {
    let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    containers.filter_map(|container| Some(container.state.as_ref()?.terminated.as_ref()?.exit_code))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::appwrapper::config::FaultTolerance;
    use crate::health::NodeHealthConfiguration;

    fn pod(phase: &str, change: impl FnOnce(&mut Value)) -> Arc<Pod> {
        let mut pod = json!({
            "metadata": {"name": "p"},
            "spec": {"nodeName": "n", "containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]},
            "status": {"phase": phase},
        });
        change(&mut pod);
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn summary(pods: &[Arc<Pod>], health: &str) -> PodSummary {
        let node = json!({"metadata": {"name": "n", "labels": {"autopilot.ibm.com/gpuhealth": health}},
            "status": {"capacity": {"nvidia.com/gpu": "8"}}});
        let node = serde_json::from_value(node).expect("a node");
        let health = NodeHealth::of(&node, &NodeHealthConfiguration::default());
        let (mut parameters, _) = Parameters::of(None, &FaultTolerance::default());
        parameters.terminal_exit_codes = vec![7];
        PodSummary::of(pods, &BTreeMap::from([("n".to_owned(), health)]), &parameters)
    }

    #[test]
    fn pods_are_counted_by_phase_and_running_ones_that_are_deleted_are_not() {
        let deleted = |pod: &mut Value| pod["metadata"]["deletionTimestamp"] = json!("2026-01-05T09:00:00Z");
        let phases = ["Running", "Pending", "Succeeded", "Failed", "Failed", "Unknown"];
        let mut pods: Vec<_> = phases.iter().map(|phase| pod(phase, |_| {})).collect();
        pods.push(pod("Running", deleted));
        let found = summary(&pods, "PASS");
        assert_eq!((found.running, found.pending, found.succeeded, found.failed, found.total), (1, 1, 1, 2, 7));
        assert!(found.leaving.is_empty() && !found.has_terminal_failure);
    }

    #[test]
    fn running_pods_leave_a_node_whose_resource_is_evicted() {
        let without = |pod: &mut Value| pod["spec"]["containers"][0]["resources"] = json!({});
        assert!(summary(&[pod("Running", |_| {})], "TESTING").leaving.is_empty());
        assert!(summary(&[pod("Running", without), pod("Pending", |_| {})], "EVICT").leaving.is_empty());
        let leaving = summary(&[pod("Running", |_| {}), pod("Running", |_| {})], "EVICT").leaving;
        assert_eq!(leaving.len(), 1);
        assert!(leaving.iter().all(|node| node.starts_with("n (nvidia.com/gpu")), "{leaving:?}");
    }

    #[test]
    fn a_terminal_exit_code_counts_in_failed_pods_only() {
        let exited = |code: i32| {
            move |pod: &mut Value| {
                pod["status"]["containerStatuses"] = json!([{"name": "a", "image": "", "imageID": "", "ready": false,
                    "restartCount": 0, "state": {"terminated": {"exitCode": code}}}]);
            }
        };
        assert!(summary(&[pod("Failed", exited(7))], "").has_terminal_failure);
        assert!(!summary(&[pod("Failed", exited(8))], "").has_terminal_failure);
        assert!(!summary(&[pod("Running", exited(7))], "").has_terminal_failure);
    }
}
