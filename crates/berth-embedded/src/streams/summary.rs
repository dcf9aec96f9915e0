//! `/stats/summary` of a node, from the measurements of its runtime.

use berth_pod_runtime::{PodDisk, PodRuntime, PodState, PodStats};
use serde_json::{Value, json};

/// The summary of a node.
pub(super) async fn of(node: &str, runtime: &dyn PodRuntime) -> Value {
    let mut pods = Vec::new();
    for state in runtime.pods() {
        if let Some(stats) = runtime.stats(&state.uid).await {
            let disk = runtime.disk(&state.uid).await.unwrap_or_default();
            pods.push(pod(&state, &stats, &disk));
        }
    }
    json!({"node": {"nodeName": node}, "pods": pods})
}

fn pod(state: &PodState, stats: &PodStats, disk: &PodDisk) -> Value {
    let time = stats.at.to_string();
    let containers = stats.containers.iter().map(|container| {
        json!({
            "name": container.name,
            "cpu": {"time": time, "usageCoreNanoSeconds": container.cpu_nanos},
            "memory": {"time": time, "workingSetBytes": container.memory_bytes},
            "rootfs": {"time": time, "usedBytes": disk.containers.get(&container.name)},
        })
    });
    let cpu: u64 = stats.containers.iter().map(|container| container.cpu_nanos).sum();
    let memory: u64 = stats.containers.iter().map(|container| container.memory_bytes).sum();
    json!({
        "podRef": {"name": state.name, "namespace": state.namespace, "uid": state.uid.0},
        "startTime": state.created_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "containers": containers.collect::<Vec<_>>(),
        "cpu": {"time": time, "usageCoreNanoSeconds": cpu},
        "memory": {"time": time, "workingSetBytes": memory},
        "ephemeral-storage": {"time": time, "usedBytes": disk.total_bytes()},
    })
}

#[cfg(test)]
mod tests {
    use berth_pod_runtime::{ContainerStats, PodUid};

    use super::*;

    #[test]
    fn a_pods_usage_is_the_sum_of_its_containers() {
        let at: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let uid = PodUid("u".to_owned());
        let state = PodState {
            uid: uid.clone(),
            namespace: "a".to_owned(),
            name: "p".to_owned(),
            ips: Vec::new(),
            is_ready: true,
            created_at: at,
            containers: Vec::new(),
        };
        let container = |name: &str, cpu_nanos, memory_bytes| ContainerStats {
            name: name.to_owned(),
            cpu_nanos,
            memory_bytes,
            started_at: at,
        };
        let containers = vec![container("x", 1, 10), container("y", 2, 20)];
        let disk = PodDisk {
            containers: [("x".to_owned(), 5), ("y".to_owned(), 5)].into(),
            volumes: [("v".to_owned(), 7)].into(),
        };
        let summary = pod(&state, &PodStats { uid, at, containers }, &disk);
        assert_eq!(summary["podRef"], json!({"name": "p", "namespace": "a", "uid": "u"}));
        assert_eq!(
            (&summary["cpu"]["usageCoreNanoSeconds"], &summary["memory"]["workingSetBytes"]),
            (&json!(3), &json!(30))
        );
        assert_eq!(summary["ephemeral-storage"]["usedBytes"], 17);
        assert_eq!(summary["containers"][1]["rootfs"]["usedBytes"], 5);
        assert_eq!(summary["containers"][1]["cpu"]["usageCoreNanoSeconds"], 2);
    }
}
