//! The machine's current usage, and the resulting shortages.
//!
//! Thresholds are the defaults of a kubelet's hard eviction: 100 MiB of memory, 10 % of the disk
//! and 5 % of its inodes. Of process identifiers, 10 % must be free. Unlike a kubelet's, the
//! threshold of the disk is at most 4 GiB, because the disk of this machine is not the node's own:
//! a tenth of some terabytes is no shortage, however full the user keeps the rest.
//!
//! Source: Kubernetes 1.35, "Node-pressure Eviction".

use std::io;
use std::path::{Path, PathBuf};

use berth_pod_runtime::Pressure;

use crate::text::{line, number, read};

/// Available bytes of memory below which memory is short.
pub(crate) const MEMORY_FREE_MIN: u64 = 100 << 20;
/// Free percentage of the disk below which space is short, unless [`DISK_FREE_ENOUGH`] bytes are
/// free.
const DISK_FREE_PERCENT: u64 = 10;
/// Free bytes of the disk above which space is not short.
const DISK_FREE_ENOUGH: u64 = 4 << 30;
/// Free percentage of the disk's inodes below which inodes are short.
const INODES_FREE_PERCENT: u64 = 5;
/// Free percentage of process identifiers below which they are short.
const PIDS_FREE_PERCENT: u64 = 10;

/// Size and usage of memory, disk and process identifiers at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Usable memory in bytes.
    pub memory_bytes: u64,
    /// Bytes of memory that are available to programs without swapping.
    pub memory_available_bytes: u64,
    /// Size of the disk in bytes.
    pub disk_bytes: u64,
    /// Bytes of the disk that are free for users.
    pub disk_free_bytes: u64,
    /// Inodes of the disk; 0 if its file system does not count them.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
    /// Processes and threads that may exist.
    pub pids: u64,
    /// Processes and threads that exist.
    pub pids_used: u64,
}

/// A percentage of an amount, rounded down.
fn share(amount: u64, percent: u64) -> u64 {
    // Divided first, because the product could overflow.
    amount / 100 * percent + amount % 100 * percent / 100
}

/// Free bytes below which a disk of this size is short of space.
pub(crate) fn disk_free_min(size: u64) -> u64 {
    share(size, DISK_FREE_PERCENT).min(DISK_FREE_ENOUGH)
}

impl Figures {
    /// Reads the current values of a system and of the disk with `folder`.
    ///
    /// # Errors
    /// The values of the memory or of the disk cannot be read.
    pub fn read(root: &Path, folder: &Path) -> io::Result<Self> {
        let memory = MemInfo::read(root)?;
        let limit = cgroup_memory(root).filter(|limit| limit.bytes < memory.total);
        let disk = rustix::fs::statvfs(folder)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", folder.display())))?;
        let (pids, pids_used) = pids(root);
        Ok(Self {
            memory_bytes: limit.as_ref().map_or(memory.total, |limit| limit.bytes),
            memory_available_bytes: limit
                .map_or(memory.available, |limit| memory.available.min(limit.bytes.saturating_sub(limit.used))),
            disk_bytes: disk.f_blocks.saturating_mul(disk.f_frsize),
            disk_free_bytes: disk.f_bavail.saturating_mul(disk.f_frsize),
            inodes: disk.f_files,
            inodes_free: disk.f_favail,
            pids,
            pids_used,
        })
    }

    /// The shortages at these values.
    pub fn pressure(&self) -> Pressure {
        let mebibytes = |bytes: u64| bytes >> 20;
        let memory = (self.memory_available_bytes < MEMORY_FREE_MIN).then(|| {
            let (free, min) = (mebibytes(self.memory_available_bytes), mebibytes(MEMORY_FREE_MIN));
            format!("{free}Mi of memory is available, at least {min}Mi is required")
        });
        let space_min = disk_free_min(self.disk_bytes);
        let inodes_min = share(self.inodes, INODES_FREE_PERCENT);
        let disk = if self.disk_free_bytes < space_min {
            let (free, min) = (mebibytes(self.disk_free_bytes), mebibytes(space_min));
            Some(format!("{free}Mi of the disk is free, at least {min}Mi is required"))
        } else if self.inodes_free < inodes_min {
            let free = self.inodes_free;
            Some(format!(
                "{free} inodes of the disk are free, at least {inodes_min} ({INODES_FREE_PERCENT} %) are required"
            ))
        } else {
            None
        };
        let pids_free = self.pids.saturating_sub(self.pids_used);
        let pids_min = share(self.pids, PIDS_FREE_PERCENT);
        let pids = (pids_free < pids_min).then(|| {
            format!("{pids_free} process IDs are free, at least {pids_min} ({PIDS_FREE_PERCENT} %) are required")
        });
        Pressure { memory, disk, pids }
    }
}

/// Usable memory in bytes: that of the machine, or the limit of this process's control group if it
/// is lower.
pub(crate) fn memory_bytes(root: &Path) -> io::Result<u64> {
    let total = MemInfo::read(root)?.total;
    Ok(cgroup_memory(root).map_or(total, |limit| limit.bytes.min(total)))
}

struct MemInfo {
    total: u64,
    available: u64,
}

impl MemInfo {
    fn read(root: &Path) -> io::Result<Self> {
        let text = read(root, "proc/meminfo")?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            kibibytes.map(|kibibytes| kibibytes << 10)
        };
        let missing = || io::Error::new(io::ErrorKind::InvalidData, "/proc/meminfo has no MemTotal");
        Ok(Self {
            total: field("MemTotal").ok_or_else(missing)?,
            available: field("MemAvailable").or_else(|| field("MemFree")).unwrap_or(0),
        })
    }
}

/// The lowest memory limit of this process's control groups.
struct Limit {
    bytes: u64,
    /// Bytes in use, without page cache that can be reclaimed.
    used: u64,
}

/// Reads the limits of control groups of version 2 and 1. `None` if there is no limit.
fn cgroup_memory(root: &Path) -> Option<Limit> {
    let groups = line(root, "proc/self/cgroup")?;
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let version2 = controllers.is_empty();
        if !version2 && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let mount = if version2 { "sys/fs/cgroup" } else { "sys/fs/cgroup/memory" };
        let files = if version2 {
            ("memory.max", "memory.current", "inactive_file")
        } else {
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        };
        // The limits of parent groups apply as well.
        for above in Path::new(path.trim_start_matches('/')).ancestors() {
            limits.extend(limit(root, &Path::new(mount).join(above), files));
        }
    }
    limits.into_iter().min_by_key(|limit| limit.bytes)
}

fn limit(root: &Path, group: &Path, (max, current, inactive): (&str, &str, &str)) -> Option<Limit> {
    let file = |name: &str| -> PathBuf { group.join(name) };
    let bytes = number(root, file(max).to_str()?)?;
    let used = number(root, file(current).to_str()?)?;
    let statistics = read(root, file("memory.stat").to_str()?).unwrap_or_default();
    let cache = statistics.lines().find_map(|line| line.strip_prefix(inactive)?.trim().parse::<u64>().ok());
    Some(Limit { bytes, used: used.saturating_sub(cache.unwrap_or(0)) })
}

/// Maximum and current number of process identifiers. The maximum is unlimited if it is unknown.
fn pids(root: &Path) -> (u64, u64) {
    let limits = ["proc/sys/kernel/pid_max", "proc/sys/kernel/threads-max"];
    let max = limits.iter().filter_map(|path| number(root, path)).min().unwrap_or(u64::MAX);
    let load = line(root, "proc/loadavg").unwrap_or_default();
    let used = load.split_whitespace().nth(3).and_then(|tasks| tasks.split_once('/')?.1.parse().ok());
    (max, used.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enough() -> Figures {
        Figures {
            memory_bytes: 8 << 30,
            memory_available_bytes: 4 << 30,
            disk_bytes: 100 << 30,
            disk_free_bytes: 50 << 30,
            inodes: 1000,
            inodes_free: 500,
            pids: 1000,
            pids_used: 100,
        }
    }

    #[test]
    fn shortages_follow_the_thresholds_of_a_kubelet() {
        assert_eq!(enough().pressure(), Pressure::default());
        let memory = Figures { memory_available_bytes: 99 << 20, ..enough() }.pressure();
        assert_eq!(memory.memory.as_deref(), Some("99Mi of memory is available, at least 100Mi is required"));
        let disk = Figures { disk_bytes: 20 << 30, disk_free_bytes: 1 << 30, ..enough() }.pressure();
        assert_eq!(disk.disk.as_deref(), Some("1024Mi of the disk is free, at least 2048Mi is required"));
        let large = Figures { disk_bytes: 2 << 40, disk_free_bytes: 4 << 30, ..enough() };
        assert_eq!(large.pressure(), Pressure::default());
        let disk = Figures { disk_free_bytes: 3 << 30, ..large }.pressure();
        assert_eq!(disk.disk.as_deref(), Some("3072Mi of the disk is free, at least 4096Mi is required"));
        let inodes = Figures { inodes_free: 49, ..enough() }.pressure();
        assert_eq!(inodes.disk.as_deref(), Some("49 inodes of the disk are free, at least 50 (5 %) are required"));
        let pids = Figures { pids_used: 901, ..enough() }.pressure();
        assert_eq!(pids.pids.as_deref(), Some("99 process IDs are free, at least 100 (10 %) are required"));
        // A file system that does not count inodes has no shortage of them.
        assert_eq!(Figures { inodes: 0, inodes_free: 0, ..enough() }.pressure(), Pressure::default());
        // Unknown limits do not cause a shortage or an overflow.
        assert_eq!(Figures { pids: u64::MAX, ..enough() }.pressure(), Pressure::default());
    }

    #[test]
    fn shares_are_exact_and_do_not_overflow() {
        assert_eq!((share(1000, 5), share(99, 10), share(u64::MAX, 100)), (50, 9, u64::MAX));
    }
}
