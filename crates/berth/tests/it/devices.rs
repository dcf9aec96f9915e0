//! Devices that a file declares, assigned to pods that run as processes of this machine.

use std::path::Path;

use berth_testing::{has_kubectl, skip};
use serde_json::{Value, json};

use crate::cluster::Cluster;

/// A pod with this number of GPUs, whose program only sleeps.
fn pod(name: &str, gpus: u32) -> Value {
    let limits = if gpus > 0 { json!({"nvidia.com/gpu": gpus}) } else { json!({}) };
    let container = json!({"name": "main", "image": "host", "command": ["sleep", "10000"],
        "resources": {"limits": limits}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}})
}

/// The devices that a pod sees: the variables of CUDA and of the NVIDIA container toolkit, and the
/// device files.
fn seen(cluster: &Cluster, pod: &str, folder: &Path) -> String {
    let script = format!("echo $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES $(ls {} 2>/dev/null)", folder.display());
    cluster.run(&["exec", pod, "--", "sh", "-c", &script]).trim().to_owned()
}

fn phase(cluster: &Cluster, pod: &str) -> String {
    cluster.get(&["pod", pod])["status"]["phase"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn pods_see_their_own_devices_and_keep_them_when_the_cluster_is_killed() {
    if !rustix::process::geteuid().is_root() {
        return skip("full isolation needs root");
    }
    if !has_kubectl() {
        return;
    }
    let home = tempfile::tempdir().expect("a temporary folder");
    // Plain files in place of device files: this machine may have no GPU.
    let folder = home.path().join("devices");
    std::fs::create_dir(&folder).expect("a folder");
    let device = |name: &str| {
        let path = folder.join(name);
        std::fs::write(&path, "").expect("a file");
        json!({"resource": "nvidia.com/gpu", "id": format!("GPU-{name}"), "paths": [path]})
    };
    let devices = json!({"devices": [device("a"), device("b")]}).to_string();
    let (file, manifest, data) = (home.path().join("file"), home.path().join("pods.json"), home.path().join("data"));
    std::fs::write(&file, devices).expect("a file");
    let pods = json!({"apiVersion": "v1", "kind": "List",
        "items": [pod("one", 1), pod("two", 1), pod("none", 0)]});
    std::fs::write(&manifest, pods.to_string()).expect("a file");
    let file = file.display().to_string();
    let options = ["--runtime", "process", "--isolation", "full", "--stop-pods", "--devices", &file];
    let cluster = Cluster::durable(&data, &options);
    cluster.run(&["apply", "-f", &manifest.display().to_string()]);
    let running = |cluster: &Cluster| ["one", "two", "none"].iter().all(|pod| phase(cluster, pod) == "Running");
    cluster.wait_until("the pods to run", 60, running);
    let before = ["one", "two", "none"].map(|pod| seen(&cluster, pod, &folder));
    let mut sorted = before.clone();
    sorted.sort();
    assert_eq!(sorted, ["GPU-a GPU-a a", "GPU-b GPU-b b", "void"]);

    std::fs::write(&manifest, pod("three", 1).to_string()).expect("a file");
    cluster.run(&["apply", "-f", &manifest.display().to_string()]);
    cluster.wait_until("an event about the third pod", 30, |cluster| {
        let events = cluster.run(&["get", "events", "--field-selector", "involvedObject.name=three"]);
        events.contains("1 Insufficient nvidia.com/gpu")
    });
    assert_eq!(phase(&cluster, "three"), "Pending");

    cluster.kill();
    let cluster = Cluster::durable(&data, &options);
    cluster.wait_until("the pods to run", 60, running);
    assert_eq!(["one", "two", "none"].map(|pod| seen(&cluster, pod, &folder)), before, "the assignment has changed");
    assert_eq!(phase(&cluster, "three"), "Pending");

    cluster.run(&["delete", "pod", "one"]);
    cluster.wait_until("the third pod to run", 60, |cluster| phase(cluster, "three") == "Running");
    assert_eq!(seen(&cluster, "three", &folder), before[0], "it does not have the released device");
    cluster.run(&["delete", "pods", "--all"]);
    let table = std::fs::read_to_string(data.join("node/devices.json")).expect("the table of devices");
    let table: Value = serde_json::from_str(&table).expect("JSON");
    assert_eq!(table["assignments"], json!({}), "devices are still assigned");
    cluster.interrupt();
}
