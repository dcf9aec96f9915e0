//! A pod without a memory limit that uses all memory which the cluster may use.

use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_testing::{has_kubectl, skip};
use serde_json::{Value, json};

use crate::cluster::{Cluster, pause};

/// Memory of the cluster and its pods, in bytes.
const LIMIT: u64 = 1 << 30;

/// A control group with limited memory, removed when dropped.
struct Group(PathBuf);

impl Group {
    /// Creates a group of version 1. In version 2, pods are not in groups below that of `berth up`.
    fn create() -> Option<Self> {
        let path = Path::new("/sys/fs/cgroup/memory").join(format!("berth-test-{}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        let group = Self(path);
        std::fs::write(group.0.join("memory.limit_in_bytes"), LIMIT.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel needs a moment after the end of the last process.
        for _ in 0..100 {
            let _ = std::fs::remove_dir(self.0.join("berth"));
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            pause(Duration::from_millis(50));
        }
    }
}

fn pod(name: &str, script: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "host", "command": ["sh", "-c", script],
            "resources": {"requests": {"cpu": "400m"}}}]}})
}

#[test]
fn a_pod_that_uses_all_memory_ends_neither_berth_nor_another_pod() {
    if !rustix::process::geteuid().is_root() {
        return skip("full isolation needs root");
    }
    if !has_kubectl() {
        return;
    }
    let Some(group) = Group::create() else { return skip("control groups of version 1 cannot limit memory here") };
    let cluster = Cluster::in_group(&group.0, &["--runtime", "process", "--isolation", "full"]);
    let apply = |name: &str, script: &str| {
        let file = cluster.kubeconfig.with_file_name(format!("{name}.json"));
        std::fs::write(&file, pod(name, script).to_string()).expect("written");
        cluster.run(&["apply", "-f", &file.display().to_string()]);
    };
    let status = |cluster: &Cluster, name: &str| cluster.get(&["pod", name])["status"].clone();
    let is_in =
        |name: &'static str, phase: &'static str| move |cluster: &Cluster| status(cluster, name)["phase"] == phase;
    apply("neighbour", "sleep 10000");
    cluster.wait_until("the neighbour to run", 60, is_in("neighbour", "Running"));
    // A buffer of twice the size of the memory.
    apply("hog", "exec dd if=/dev/zero of=/dev/null bs=2G count=1");
    cluster.wait_until("the hog to end", 120, is_in("hog", "Failed"));
    let hog = status(&cluster, "hog");
    let ended = &hog["containerStatuses"][0]["state"]["terminated"];
    assert!(ended["reason"] == "OOMKilled" || hog["reason"] == "Evicted", "{hog}");
    // Pods still start.
    apply("next", "exit 0");
    cluster.wait_until("the next pod to succeed", 60, is_in("next", "Succeeded"));
    let neighbour = status(&cluster, "neighbour");
    assert_eq!(neighbour["phase"], "Running", "{neighbour}");
    assert_eq!(neighbour["containerStatuses"][0]["restartCount"], 0, "{neighbour}");
    cluster.interrupt();
}
