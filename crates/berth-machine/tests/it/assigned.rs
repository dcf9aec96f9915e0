//! Assignment of devices to containers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use berth_machine::{AssignedDevices, FoundDevice, declared};
use berth_pod_runtime::{Device, Devices, PodUid, RuntimeError};

fn devices(folder: &Path, text: &str) -> Vec<FoundDevice> {
    let path = folder.join("file.yaml");
    fs::write(&path, text).expect("written");
    declared(&path, Vec::new()).expect("devices")
}

fn eight(folder: &Path) -> Vec<FoundDevice> {
    devices(folder, "devices: [{resource: nvidia.com/gpu, count: 8}]")
}

fn pod(name: &str) -> PodUid {
    PodUid(name.into())
}

fn ids(devices: &[Device]) -> Vec<&str> {
    devices.iter().map(|device| device.id.as_str()).collect()
}

#[test]
fn devices_are_assigned_once_and_survive_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || AssignedDevices::open(folder.path(), eight(folder.path())).expect("opened");
    let first = open();
    let a = first.assign(&pod("a"), "main", "nvidia.com/gpu", 3).expect("assigned");
    assert_eq!(ids(&a), ["0", "1", "2"]);
    let b = first.assign(&pod("b"), "main", "nvidia.com/gpu", 4).expect("assigned");
    assert_eq!(ids(&b), ["3", "4", "5", "6"]);
    drop(first);
    let second = open();
    assert_eq!(second.assign(&pod("a"), "main", "nvidia.com/gpu", 3).expect("assigned"), a);
    let error = second.assign(&pod("c"), "main", "nvidia.com/gpu", 2).expect_err("too few").to_string();
    assert_eq!(error, "container \"main\" of pod c needs 2 devices of nvidia.com/gpu, 1 are free");
    second.release(&pod("a"));
    assert_eq!(ids(&second.assign(&pod("c"), "main", "nvidia.com/gpu", 2).expect("assigned")), ["0", "1"]);
    second.retain(&BTreeSet::from([pod("c")]));
    drop(second);
    let third = open();
    assert_eq!(third.assign(&pod("d"), "x", "nvidia.com/gpu", 6).expect("assigned").len(), 6);
    assert_eq!(third.capacity().get("nvidia.com/gpu"), Some(&8));
}

#[test]
fn a_device_without_its_file_is_neither_counted_nor_assigned() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("device");
    fs::write(&file, "").expect("written");
    let text = format!(
        "devices: [{{resource: example.com/a, id: left, paths: [{}]}}, {{resource: example.com/a, id: right}}]",
        file.display()
    );
    let found = devices(folder.path(), &text);
    let assigned = AssignedDevices::open(folder.path(), found).expect("opened");
    assert_eq!(ids(&assigned.assign(&pod("a"), "x", "example.com/a", 1).expect("assigned")), ["left"]);
    fs::remove_file(&file).expect("removed");
    assert_eq!(assigned.capacity().get("example.com/a"), Some(&1));
    assert!(matches!(assigned.assign(&pod("a"), "x", "example.com/a", 1), Err(RuntimeError::Config(_))));
    assert_eq!(ids(&assigned.assign(&pod("b"), "x", "example.com/a", 1).expect("assigned")), ["right"]);
}

#[test]
fn an_assignment_that_cannot_be_recorded_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let node = folder.path().join("node");
    fs::create_dir(&node).expect("created");
    let assigned = AssignedDevices::open(&node, eight(folder.path())).expect("opened");
    fs::remove_dir(&node).expect("removed");
    assert!(matches!(assigned.assign(&pod("a"), "x", "nvidia.com/gpu", 1), Err(RuntimeError::Internal(_))));
    fs::create_dir(&node).expect("created");
    assert_eq!(ids(&assigned.assign(&pod("b"), "x", "nvidia.com/gpu", 8).expect("assigned")).len(), 8);
    fs::write(node.join("devices.json"), "{").expect("written");
    let error = AssignedDevices::open(&node, Vec::new()).expect_err("damaged").to_string();
    assert!(error.contains("stop all pods of this node and remove the file"), "{error}");
}

#[test]
fn containers_at_the_same_time_never_share_a_device() {
    let folder = tempfile::tempdir().expect("a folder");
    let found = devices(folder.path(), "devices: [{resource: nvidia.com/gpu, count: 32}]");
    let assigned = AssignedDevices::open(folder.path(), found).expect("opened");
    let all: Vec<String> = std::thread::scope(|scope| {
        let assigned = &assigned;
        let threads: Vec<_> = (0..8)
            .map(|i| {
                scope.spawn(move || {
                    let devices = assigned.assign(&pod(&format!("p{i}")), "x", "nvidia.com/gpu", 4).expect("assigned");
                    devices.into_iter().map(|device| device.id).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(all.len(), 32);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 32);
}

#[test]
fn a_file_of_devices_is_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file.yaml");
    for (text, expected) in [
        ("devices: [{resource: gpu}]", "devices[0].resource: \"gpu\" is not an extended resource"),
        ("devices: [{resource: a/b, count: 0}]", "devices[0].count: 0 is outside 1 to 1024"),
        ("devices: [{resource: a/b, id: x, count: 1}]", "devices[0].count: cannot be set together with id"),
        ("devices: [{resource: a/b, id: x}, {resource: a/b, id: x}]", "devices[1].id: \"x\" is the ID of an earlier"),
        ("devices: [{resource: a/b, paths: [dev]}]", "devices[0].paths: dev is not an absolute path"),
        ("devices: [{resource: a/b, compute: x}]", "devices[0].compute: \"x\" is not a compute capability"),
        ("devices: [{resource: a/b, colour: red}]", "colour"),
    ] {
        fs::write(&path, text).expect("written");
        let error = declared(&path, Vec::new()).expect_err("refused").to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    // Declared devices replace the detected ones of their resource.
    let detected = devices(folder.path(), "devices: [{resource: a/b, id: old}, {resource: a/c, id: kept}]");
    fs::write(&path, "devices: [{resource: a/b, id: new}]").expect("written");
    let all = declared(&path, detected).expect("devices");
    assert_eq!(all.iter().map(|device| device.device.id.as_str()).collect::<Vec<_>>(), ["kept", "new"]);
}
