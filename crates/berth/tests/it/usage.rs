//! The usage of pods that run as processes: `kubectl top`, and an autoscaler that reads the usage.

use berth_testing::{has_kubectl, skip};
use serde_json::json;

use crate::cluster::Cluster;

/// CPU of a line of `kubectl top`, in thousandths of a core.
fn cpu(line: &str) -> Option<u64> {
    line.split_whitespace().nth(1)?.strip_suffix('m')?.parse().ok()
}

#[test]
fn figures_of_processes_reach_kubectl_top_and_an_autoscaler() {
    if !rustix::process::geteuid().is_root() {
        return skip("full isolation needs root");
    }
    if !has_kubectl() {
        return;
    }
    let cluster = Cluster::ephemeral(&["--runtime", "process", "--isolation", "full"]);
    let container = json!({"name": "main", "image": "host", "command": ["sh", "-c", "while :; do :; done"],
        "resources": {"requests": {"cpu": "50m"}, "limits": {"cpu": "100m"}}});
    let labels = json!({"app": "busy"});
    let template = json!({"metadata": {"labels": labels},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}});
    let metric = json!({"type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}});
    let manifest = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "busy"},
         "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}},
        {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "busy"},
         "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "busy"},
                  "minReplicas": 1, "maxReplicas": 2, "metrics": [metric]}},
    ]});
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), manifest.to_string()).expect("a file");
    cluster.run(&["apply", "-f", &file.path().display().to_string()]);
    cluster.wait_until("figures of the pod", 60, |cluster| {
        let output = cluster.kubectl(&["top", "pods", "--no-headers"]);
        let line = String::from_utf8_lossy(&output.stdout).into_owned();
        // A busy machine may give the loop less than its limit.
        cpu(&line).is_some_and(|milli| (10..=150).contains(&milli))
    });
    let name = cluster.get(&["nodes", "-l", "berth.dev/runtime=process"])["items"][0]["metadata"]["name"].clone();
    let name = name.as_str().expect("the machine is a node").to_owned();
    cluster.wait_until("figures of the machine", 60, |cluster| {
        let output = cluster.kubectl(&["top", "node", &name, "--no-headers"]);
        cpu(&String::from_utf8_lossy(&output.stdout)).is_some_and(|milli| milli > 0)
    });
    cluster.wait_until("a second replica", 90, |cluster| cluster.get(&["deployment", "busy"])["spec"]["replicas"] == 2);
    cluster.interrupt();
}
