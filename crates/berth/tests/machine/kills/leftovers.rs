//! Remains that pods may leave on the machine: processes, mounts, control groups, namespaces,
//! network interfaces, devices and folders.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

/// A search for the traces of pods.
pub struct Scan {
    /// Folder of the node.
    node: PathBuf,
    uids: BTreeSet<String>,
    /// Process ID of `berth up`.
    berth: u32,
    /// Variable in the environment of the pods' programs.
    mark: String,
    bridge: Option<String>,
}

impl Scan {
    /// A search for the traces of pods with these UIDs.
    pub fn new(home: &Path, uids: BTreeSet<String>, berth: u32, mark: &str) -> Self {
        let node = home.join("data/node");
        let bridge = bridge(&node);
        Self { node, uids, berth, mark: mark.to_owned(), bridge }
    }

    /// True if the bridge of the pod network exists.
    pub fn has_bridge(&self) -> bool {
        self.bridge.as_ref().is_some_and(|name| Path::new("/sys/class/net").join(name).exists())
    }

    /// Checks that a pod that runs is found, so that an empty result of the search is meaningful.
    pub fn expect_a_running_pod(&self) {
        assert!(self.has_bridge(), "the pod network has no bridge");
        let found = self.find();
        for kind in ["process", "mount", "control group", "network interface", "folder"] {
            assert!(found.iter().any(|trace| trace.starts_with(kind)), "no {kind} of a running pod: {found:#?}");
        }
    }

    /// Waits until nothing is left.
    pub async fn expect_nothing(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        loop {
            let found = self.find();
            if found.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left behind after {limit:?}:\n{}", found.join("\n"));
            sleep(Duration::from_millis(500)).await;
        }
    }

    fn find(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut namespaces = BTreeSet::new();
        for pid in pids() {
            self.process(pid, &mut found);
            self.mounts(pid, &mut namespaces, &mut found);
        }
        self.open_namespaces(&mut found);
        self.groups(Path::new("/sys/fs/cgroup"), &mut found);
        if let Some(bridge) = &self.bridge {
            let ports = entries(&Path::new("/sys/class/net").join(bridge).join("brif"));
            found.extend(ports.iter().map(|path| format!("network interface {}", path.display())));
        }
        for folder in ["pods", "trash"] {
            found.extend(entries(&self.node.join(folder)).iter().map(|path| format!("folder {}", path.display())));
        }
        let text = std::fs::read_to_string(self.node.join("devices.json")).unwrap_or_else(|_| "{}".to_owned());
        let devices: Value = serde_json::from_str(&text).expect("JSON");
        if devices["assignments"].as_object().is_some_and(|assignments| !assignments.is_empty()) {
            found.push(format!("devices {}", devices["assignments"]));
        }
        found
    }

    /// Finds supervisors, programs of pods, and zombies: child processes of `berth up` that have
    /// ended and that it has not waited for.
    fn process(&self, pid: u32, found: &mut Vec<String>) {
        if pid == self.berth {
            return;
        }
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let (command, environment, stat) = (read("cmdline"), read("environ"), read("stat"));
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let is_program = environment.split(|byte| *byte == 0).any(|entry| entry == self.mark.as_bytes());
        if is_program || command.contains(&self.node.display().to_string()) {
            found.push(format!("process {pid}: {command}"));
        }
        let stat = String::from_utf8_lossy(&stat).into_owned();
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        if fields.next() == Some("Z") && fields.next() == Some(&self.berth.to_string()) {
            found.push(format!("zombie {pid}"));
        }
    }

    /// Finds mounts of pods in the mount namespace of a process: mounts at the folders of pods, and
    /// bind mounts of namespaces.
    fn mounts(&self, pid: u32, known: &mut BTreeSet<PathBuf>, found: &mut Vec<String>) {
        let Ok(namespace) = std::fs::read_link(format!("/proc/{pid}/ns/mnt")) else { return };
        if !known.insert(namespace) {
            return;
        }
        let text = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        let node = self.node.display().to_string();
        found.extend(text.lines().filter(|line| line.contains(&node)).map(|line| format!("mount of {pid}: {line}")));
    }

    /// Finds namespaces that `berth up` has open. Such a namespace exists even without processes
    /// and mounts.
    fn open_namespaces(&self, found: &mut Vec<String>) {
        for file in entries(Path::new(&format!("/proc/{}/fd", self.berth))) {
            let Ok(target) = std::fs::read_link(&file) else { continue };
            let target = target.display().to_string();
            if ["mnt:[", "net:[", "pid:[", "ipc:[", "uts:[", "user:["].iter().any(|kind| target.starts_with(kind)) {
                found.push(format!("open namespace {target}"));
            }
        }
    }

    fn groups(&self, folder: &Path, found: &mut Vec<String>) {
        for path in entries(folder) {
            let is_folder = std::fs::symlink_metadata(&path).is_ok_and(|it| it.is_dir());
            if !is_folder {
                continue;
            }
            if path.file_name().and_then(|name| name.to_str()).is_some_and(|name| self.uids.contains(name)) {
                found.push(format!("control group {}", path.display()));
            }
            self.groups(&path, found);
        }
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn pids() -> Vec<u32> {
    let names = entries(Path::new("/proc")).into_iter();
    names.filter_map(|path| path.file_name()?.to_str()?.parse().ok()).collect()
}

/// The interface by which the machine reaches the pods of a node: the bridge of its pod network.
fn bridge(node: &Path) -> Option<String> {
    let launched = entries(&node.join("pods")).into_iter();
    let address = launched.filter_map(|folder| {
        let launch: Value = serde_json::from_slice(&std::fs::read(folder.join("pod.json")).ok()?).ok()?;
        launch["ips"][0].as_str()?.parse::<Ipv4Addr>().ok()
    });
    let address = u32::from_le_bytes(address.into_iter().next()?.octets());
    let routes = std::fs::read_to_string("/proc/net/route").ok()?;
    routes.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |index: usize| u32::from_str_radix(fields.get(index)?, 16).ok();
        let (destination, mask) = (number(1)?, number(7)?);
        (mask != 0 && address & mask == destination).then(|| fields[0].to_owned())
    })
}
