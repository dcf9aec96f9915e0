//! Control groups of pods and containers, version 1 and 2.
//!
//! A [`Group`] is one folder in each hierarchy. A pod's group contains one group per container. The
//! supervisor is in none of them, so that limits and kills never affect it.

mod hierarchy;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_pod_runtime::Limits;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::processes;

pub(crate) use hierarchy::Hierarchies;

/// Length of a period of the CPU quota in microseconds, as in kubelets.
const CPU_PERIOD_MICROS: u64 = 100_000;

/// Maximum number of passes over the processes of a group in a kill. A pass kills every process
/// that it finds. No process can be created during a pass, so one or two usually suffice.
const KILL_PASSES_MAX: u32 = 200;

/// Pause between passes.
const KILL_PAUSE: Duration = Duration::from_millis(5);

/// Devices that every container may use: `(type, major, minor)`.
const DEVICES: [(char, &str, &str); 9] = [
    ('c', "1", "3"),   // null
    ('c', "1", "5"),   // zero
    ('c', "1", "7"),   // full
    ('c', "1", "8"),   // random
    ('c', "1", "9"),   // urandom
    ('c', "5", "0"),   // tty
    ('c', "5", "1"),   // console
    ('c', "5", "2"),   // ptmx
    ('c', "136", "*"), // pts
];

/// A control group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Group {
    /// Folder in each hierarchy of version 1, by controller.
    pub v1: BTreeMap<String, PathBuf>,
    /// Folder in the hierarchy of version 2, if it has the controllers.
    pub v2: Option<PathBuf>,
}

/// Resource usage of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub cpu_nanos: Option<u64>,
    /// Memory without reclaimable page cache.
    pub memory_bytes: Option<u64>,
}

/// A device of the host that a group may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceNumber {
    pub is_block: bool,
    pub major: u32,
    pub minor: u32,
}

/// The CPU shares of version 1 for a request in thousandths of a CPU, as in kubelets.
fn cpu_shares(milli: u64) -> u64 {
    (milli * 1024 / 1000).clamp(2, 262_144)
}

/// The CPU weight of version 2 for shares of version 1, as in kubelets.
fn cpu_weight(shares: u64) -> u64 {
    1 + (shares - 2) * 9999 / 262_142
}

/// The files through which a process joins a group, opened before the process changes its root.
pub(crate) struct Entrance(Vec<std::fs::File>);

impl Entrance {
    /// Moves this process, which has one thread, into the group.
    ///
    /// A process that moves its own thread takes no lock of the kernel that every start and end of
    /// a process takes as well. To move another process, the kernel waits until all CPUs have
    /// noticed that lock, and nothing can create or remove a group in the meantime. Version 2 moves
    /// whole processes only.
    pub fn enter(self) -> io::Result<()> {
        const THIS: &[u8] = b"0";
        self.0.into_iter().try_for_each(|mut file| io::Write::write_all(&mut file, THIS))
    }
}

impl Group {
    /// The group with this name within this one.
    pub fn child(&self, name: &str) -> Self {
        Self {
            v1: self.v1.iter().map(|(controller, path)| (controller.clone(), path.join(name))).collect(),
            v2: self.v2.as_ref().map(|path| path.join(name)),
        }
    }

    /// The folders of the group, each listed once.
    pub fn folders(&self) -> BTreeSet<&Path> {
        self.v1.values().chain(&self.v2).map(PathBuf::as_path).collect()
    }

    /// Creates the folders. This is repeated if it fails, because another process may remove groups
    /// of other pods at the same time, and an empty parent with them.
    pub fn create(&self) -> io::Result<()> {
        for folder in self.folders() {
            let mut attempt = 0;
            while let Err(error) = std::fs::create_dir_all(folder) {
                attempt += 1;
                if attempt == 5 || error.kind() != io::ErrorKind::NotFound {
                    return Err(context(&error, folder));
                }
            }
        }
        if let Some(folder) = &self.v2
            && let Some(parent) = folder.parent()
        {
            hierarchy::enable(parent)?;
        }
        self.weigh_parent();
        Ok(())
    }

    /// Gives the parent of all pods' groups the weight of the machine's CPUs, as kubelets do. By
    /// default all pods together would weigh as much as one process of the host.
    fn weigh_parent(&self) {
        let parent =
            |folder: &PathBuf| folder.parent().filter(|parent| parent.ends_with(hierarchy::PARENT)).map(Path::to_owned);
        let (v1, v2) = (self.v1.get("cpu").and_then(parent), self.v2.as_ref().and_then(parent));
        if v1.is_none() && v2.is_none() {
            return;
        }
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
        let shares = cpu_shares(cpus * 1000);
        // Without the right to write the file, the default remains.
        if let Some(folder) = v1 {
            let _ = write(&folder, "cpu.shares", &shares.to_string());
        }
        if let Some(folder) = v2 {
            let _ = write(&folder, "cpu.weight", &cpu_weight(shares).to_string());
        }
    }

    /// Sets limits. Skips controllers that the machine does not have.
    pub fn limit(&self, limits: &Limits, pids_max: Option<u64>) -> io::Result<()> {
        let shares = cpu_shares(limits.cpu_request_milli);
        let quota = limits.cpu_milli.map(|milli| (milli * CPU_PERIOD_MICROS / 1000).max(1000));
        if let Some(folder) = self.v1.get("cpu") {
            write(folder, "cpu.shares", &shares.to_string())?;
            if let Some(quota) = quota {
                write(folder, "cpu.cfs_period_us", &CPU_PERIOD_MICROS.to_string())?;
                write(folder, "cpu.cfs_quota_us", &quota.to_string())?;
            }
        }
        if let (Some(folder), Some(bytes)) = (self.v1.get("memory"), limits.memory_bytes) {
            write(folder, "memory.limit_in_bytes", &bytes.to_string())?;
            // Without swap accounting the file does not exist.
            let _ = write(folder, "memory.memsw.limit_in_bytes", &bytes.to_string());
        }
        if let (Some(folder), Some(pids)) = (self.v1.get("pids"), pids_max) {
            write(folder, "pids.max", &pids.to_string())?;
        }
        let Some(folder) = &self.v2 else { return Ok(()) };
        write(folder, "cpu.weight", &cpu_weight(shares).to_string())?;
        if let Some(quota) = quota {
            write(folder, "cpu.max", &format!("{quota} {CPU_PERIOD_MICROS}"))?;
        }
        if let Some(bytes) = limits.memory_bytes {
            write(folder, "memory.max", &bytes.to_string())?;
            // Without swap accounting the file does not exist.
            let _ = write(folder, "memory.swap.max", "0");
            // If a container exceeds its limit, all its processes are killed, as in kubelets.
            let _ = write(folder, "memory.oom.group", "1");
        }
        if let Some(pids) = pids_max {
            write(folder, "pids.max", &pids.to_string())?;
        }
        Ok(())
    }

    /// Replaces the limits of a group. Removes limits that `limits` does not contain.
    pub fn change_limits(&self, limits: &Limits) -> io::Result<()> {
        if let (Some(folder), None) = (self.v1.get("cpu"), limits.cpu_milli) {
            write(folder, "cpu.cfs_quota_us", "-1")?;
        }
        if let (Some(folder), None) = (&self.v2, limits.cpu_milli) {
            write(folder, "cpu.max", &format!("max {CPU_PERIOD_MICROS}"))?;
        }
        if let Some(folder) = self.v1.get("memory") {
            let bytes = limits.memory_bytes.map_or_else(|| "-1".to_owned(), |bytes| bytes.to_string());
            // The limit with swap may never be below the limit without. Set first whichever can be
            // set.
            let with_swap = |bytes: &str| write(folder, "memory.memsw.limit_in_bytes", bytes);
            let is_growing = with_swap(&bytes).is_ok();
            write(folder, "memory.limit_in_bytes", &bytes)?;
            if !is_growing {
                // Without swap accounting the file does not exist.
                let _ = with_swap(&bytes);
            }
        }
        if let (Some(folder), None) = (&self.v2, limits.memory_bytes) {
            write(folder, "memory.max", "max")?;
        }
        self.limit(limits, None)
    }

    /// The current limit of CPU time in thousandths of a CPU; `None` if there is no limit.
    pub fn cpu_milli(&self) -> Option<u64> {
        let v1 = self.v1.get("cpu").and_then(|folder| number(&folder.join("cpu.cfs_quota_us")));
        let v2 = || {
            let text = std::fs::read_to_string(self.v2.as_ref()?.join("cpu.max")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        };
        v1.or_else(v2).map(|quota| quota * 1000 / CPU_PERIOD_MICROS)
    }

    /// Restricts the group to the devices that every container has, and `devices`. Version 2 has no
    /// file for this. There, containers lack the capability to create device files.
    pub fn restrict_devices(&self, devices: &[DeviceNumber]) -> io::Result<()> {
        let Some(folder) = self.v1.get("devices") else { return Ok(()) };
        write(folder, "devices.deny", "a")?;
        for (kind, major, minor) in DEVICES {
            write(folder, "devices.allow", &format!("{kind} {major}:{minor} rwm"))?;
        }
        for device in devices {
            let kind = if device.is_block { 'b' } else { 'c' };
            write(folder, "devices.allow", &format!("{kind} {}:{} rwm", device.major, device.minor))?;
        }
        Ok(())
    }

    /// Opens the files through which this process joins the group.
    pub fn entrance(&self) -> io::Result<Entrance> {
        let open = |folder: &Path, file: &str| {
            let path = folder.join(file);
            std::fs::File::options().write(true).open(&path).map_err(|error| context(&error, &path))
        };
        let v1: BTreeSet<&Path> = self.v1.values().map(PathBuf::as_path).collect();
        let v1 = v1.into_iter().map(|folder| open(folder, "tasks"));
        let v2 = self.v2.iter().map(|folder| open(folder, "cgroup.procs"));
        v1.chain(v2).collect::<io::Result<_>>().map(Entrance)
    }

    /// Moves this process, which has one thread, into the group.
    pub fn join(&self) -> io::Result<()> {
        self.entrance()?.enter()
    }

    /// IDs of the processes in the group and in its child groups.
    pub fn processes(&self) -> BTreeSet<u32> {
        // A process is in the group in every hierarchy, so it suffices to read one hierarchy.
        let folder = ["pids", "freezer", "memory", "cpu"].iter().find_map(|name| self.v1.get(*name));
        let mut found = BTreeSet::new();
        for folder in self.v2.iter().chain(folder) {
            collect_processes(folder, &mut found);
        }
        found
    }

    /// Kills every process in the group and waits until none is left. Returns false if some remain,
    /// such as processes that wait for a broken disk.
    pub fn kill(&self) -> bool {
        for pass in 0..KILL_PASSES_MAX {
            let processes = self.processes();
            if processes.is_empty() {
                return true;
            }
            if let Some(folder) = &self.v2
                && write(folder, "cgroup.kill", "1").is_ok()
                && self.v1.is_empty()
            {
                pause(pass);
                continue;
            }
            // No process can be created while its siblings are killed.
            if let Some(folder) = self.v1.get("pids") {
                let _ = write(folder, "pids.max", "0");
            }
            let freezer = self.v1.get("freezer");
            if let Some(folder) = freezer {
                let _ = write(folder, "freezer.state", "FROZEN");
            }
            for pid in self.processes() {
                processes::signal(pid, Signal::KILL);
            }
            if let Some(folder) = freezer {
                let _ = write(folder, "freezer.state", "THAWED");
            }
            pause(pass);
        }
        self.processes().is_empty()
    }

    /// Removes the group's folders and their child folders. Removes the parent of all pods' groups
    /// as well if it is empty. The processes must have been killed before. Removing a group that
    /// does not exist succeeds.
    pub fn remove(&self) -> io::Result<()> {
        for folder in self.folders() {
            for child in folders_within(folder) {
                remove_folder(&child)?;
            }
            release_cache(folder);
            remove_folder(folder)?;
            if let Some(parent) = folder.parent()
                && parent.file_name().is_some_and(|name| name == hierarchy::PARENT)
            {
                // Fails while other pods have groups in the parent.
                let _ = std::fs::remove_dir(parent);
            }
        }
        Ok(())
    }

    /// Number of processes of the group that the kernel killed because memory ran out.
    pub fn oom_kills(&self) -> u64 {
        let v1 = self.v1.get("memory").map(|folder| folder.join("memory.oom_control"));
        let v2 = self.v2.as_ref().map(|folder| folder.join("memory.events"));
        v1.into_iter().chain(v2).filter_map(|path| keyed(&path, "oom_kill")).sum()
    }

    /// Usage of CPU and memory.
    pub fn usage(&self) -> Usage {
        if let Some(folder) = &self.v2 {
            let cpu = keyed(&folder.join("cpu.stat"), "usage_usec").map(|micros| micros * 1000);
            let cache = keyed(&folder.join("memory.stat"), "inactive_file").unwrap_or(0);
            let memory = number(&folder.join("memory.current")).map(|bytes| bytes.saturating_sub(cache));
            return Usage { cpu_nanos: cpu, memory_bytes: memory };
        }
        let cpu = self.v1.get("cpuacct").and_then(|folder| number(&folder.join("cpuacct.usage")));
        let memory = self.v1.get("memory").and_then(|folder| {
            let cache = keyed(&folder.join("memory.stat"), "total_inactive_file").unwrap_or(0);
            number(&folder.join("memory.usage_in_bytes")).map(|bytes| bytes.saturating_sub(cache))
        });
        Usage { cpu_nanos: cpu, memory_bytes: memory }
    }
}

#[expect(clippy::disallowed_methods, reason = "kills block threads of their own and wait in real time")]
fn pause(pass: u32) {
    if pass > 0 {
        std::thread::sleep(KILL_PAUSE);
    } else {
        std::thread::sleep(KILL_PAUSE / 10);
    }
}

fn write(folder: &Path, file: &str, value: &str) -> io::Result<()> {
    let path = folder.join(file);
    std::fs::write(&path, value).map_err(|error| context(&error, &path))
}

fn context(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number after `key` in a file with lines of the form `key number`.
fn keyed(path: &Path, key: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
}

fn collect_processes(folder: &Path, found: &mut BTreeSet<u32>) {
    if let Ok(text) = std::fs::read_to_string(folder.join("cgroup.procs")) {
        found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()).filter(|pid| *pid != 0));
    }
    for child in folders_within(folder) {
        collect_processes(&child, found);
    }
}

fn folders_within(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|e| e.path())
        .collect()
}

/// Releases the file cache that is charged to a group of the memory controller and to its former
/// children. The kernel keeps a removed group for as long as such a page exists, and each group
/// that it keeps makes new groups and mounts slower. Best effort: dirty pages stay.
///
/// The kernel waits for a task on each CPU first, which takes 10 to 30 ms on a busy machine. Most
/// groups have no such page: the files of a container are removed before its group, and it joins
/// its groups after its root was built.
fn release_cache(folder: &Path) {
    let statistics = folder.join("memory.stat");
    // The names in version 1 and 2 of control groups.
    if ["total_cache", "file"].iter().all(|key| keyed(&statistics, key).unwrap_or(0) == 0) {
        return;
    }
    let open = |file: &str| std::fs::File::options().write(true).open(folder.join(file));
    // Version 1 has this file, version 2 the other one (since Linux 5.19).
    if let Ok(mut file) = open("memory.force_empty") {
        let _ = io::Write::write_all(&mut file, b"0");
    } else if let (Ok(mut file), Some(bytes)) = (open("memory.reclaim"), number(&folder.join("memory.current"))) {
        let _ = io::Write::write_all(&mut file, bytes.to_string().as_bytes());
    }
}

fn remove_folder(folder: &Path) -> io::Result<()> {
    for child in folders_within(folder) {
        remove_folder(&child)?;
    }
    for pass in 0..KILL_PASSES_MAX {
        match std::fs::remove_dir(folder) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // A killed process occupies its group until its parent has waited for it.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => pause(pass),
            Err(error) => return Err(context(&error, folder)),
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, format!("{}: processes remain", folder.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(folder: &Path, file: &str) -> String {
        std::fs::read_to_string(folder.join(file)).unwrap()
    }

    #[test]
    fn a_process_moves_its_thread_in_version_1_and_itself_in_version_2() {
        let folder = tempfile::tempdir().unwrap();
        let both = folder.path().join("cpu,cpuacct");
        std::fs::create_dir(&both).unwrap();
        for file in [both.join("tasks"), folder.path().join("cgroup.procs")] {
            std::fs::write(file, "").unwrap();
        }
        let v1 = ["cpu", "cpuacct"].map(|name| (name.to_owned(), both.clone())).into();
        Group { v1, v2: Some(folder.path().to_owned()) }.join().unwrap();
        assert_eq!(read(&both, "tasks"), "0", "writing cgroup.procs would make the kernel wait for all CPUs");
        assert_eq!(read(folder.path(), "cgroup.procs"), "0");
    }

    #[test]
    fn a_group_that_was_removed_cannot_be_joined() {
        let group = Group { v1: BTreeMap::new(), v2: Some(PathBuf::from("/none")) };
        let error = group.join().unwrap_err().to_string();
        assert!(error.starts_with("/none/cgroup.procs: "), "{error}");
    }

    #[test]
    fn the_file_cache_of_a_group_is_released_before_its_folder_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| std::fs::write(folder.path().join(file), text).unwrap();
        let files = || std::fs::read_dir(folder.path()).unwrap().count();
        release_cache(folder.path());
        assert_eq!(files(), 0, "other controllers have no such file");
        for (statistics, file, released) in [
            ("anon 8192\nfile 0\nfile_mapped 0\n", "memory.reclaim", ""),
            ("anon 8192\nfile 4096\n", "memory.reclaim", "12288"),
            ("cache 0\ntotal_cache 0\n", "memory.force_empty", ""),
            ("cache 0\ntotal_cache 4096\n", "memory.force_empty", "0"),
        ] {
            write("memory.stat", statistics);
            write("memory.current", "12288\n");
            write(file, "");
            release_cache(folder.path());
            assert_eq!(read(folder.path(), file), released, "{statistics}");
        }
    }

    #[test]
    fn limits_are_written_to_the_files_of_version_2() {
        let folder = tempfile::tempdir().unwrap();
        let group = Group { v1: BTreeMap::new(), v2: Some(folder.path().to_owned()) };
        let limits = Limits {
            cpu_milli: Some(1500),
            cpu_request_milli: 1000,
            memory_bytes: Some(64 << 20),
            ..Limits::default()
        };
        group.limit(&limits, Some(100)).unwrap();
        assert_eq!(read(folder.path(), "cpu.max"), "150000 100000");
        assert_eq!(read(folder.path(), "cpu.weight"), "39");
        assert_eq!(read(folder.path(), "memory.max"), "67108864");
        assert_eq!(read(folder.path(), "pids.max"), "100");
    }

    #[test]
    fn the_parent_of_all_pods_weighs_as_much_as_the_cpus_of_the_machine() {
        let folder = tempfile::tempdir().unwrap();
        let parent =
            Group { v1: BTreeMap::from([("cpu".to_owned(), folder.path().join(hierarchy::PARENT))]), v2: None };
        parent.child("pod").create().unwrap();
        let shares: u64 = read(&folder.path().join(hierarchy::PARENT), "cpu.shares").parse().unwrap();
        assert_eq!(shares, std::thread::available_parallelism().unwrap().get() as u64 * 1024);
        assert!(!folder.path().join("cpu.shares").exists(), "the group of this process keeps its weight");
    }

    #[test]
    fn usage_of_version_2_leaves_out_reclaimable_cache() {
        let folder = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("cpu.stat", "usage_usec 1500\nuser_usec 1000\n"),
            ("memory.current", "5000\n"),
            ("memory.stat", "anon 3000\ninactive_file 1200\n"),
            ("memory.events", "low 0\noom 2\noom_kill 1\n"),
        ] {
            std::fs::write(folder.path().join(file), text).unwrap();
        }
        let group = Group { v1: BTreeMap::new(), v2: Some(folder.path().to_owned()) };
        assert_eq!(group.usage(), Usage { cpu_nanos: Some(1_500_000), memory_bytes: Some(3800) });
        assert_eq!(group.oom_kills(), 1);
    }
}
