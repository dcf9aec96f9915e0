//! Processes, as listed in `/proc`.
//!
//! The kernel reuses process IDs. [`ProcessId`] therefore also contains the start time of the
//! process and the boot ID of the machine.

use std::collections::{BTreeMap, BTreeSet};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Identity of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProcessId {
    /// Boot ID of the machine.
    pub boot: String,
    /// Process ID.
    pub pid: u32,
    /// Start time in clock ticks since the boot.
    pub started: u64,
}

impl ProcessId {
    /// The identity of a running process; `None` if the process does not exist.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self { boot: boot_id(), pid, started: Stat::read(pid)?.started })
    }

    /// True if this process exists and is not a zombie.
    pub fn is_alive(&self) -> bool {
        self.boot == boot_id()
            && Stat::read(self.pid).is_some_and(|stat| stat.started == self.started && stat.state != 'Z')
    }

    /// Kills the process if it is still the same one. A process that reuses the ID is not
    /// signalled.
    pub fn kill(&self) {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        // The handle refers to the process that had the ID when the handle was opened. Check its
        // identity only after that.
        if self.is_alive() {
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }
}

/// ID of the machine's current boot.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// The used fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub state: char,
    pub parent: u32,
    pub session: u32,
    /// CPU time of the process in clock ticks, user and system.
    pub cpu_ticks: u64,
    /// Start time in clock ticks since the boot.
    pub started: u64,
    /// Resident memory in pages.
    pub resident_pages: u64,
}

impl Stat {
    pub fn read(pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses a line. The program's name in parentheses may contain spaces and parentheses.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: u32::try_from(number(1)?).ok()?,
            session: u32::try_from(number(3)?).unwrap_or(0),
            cpu_ticks: number(11)? + number(12)?,
            started: number(19)?,
            resident_pages: number(21)?,
        })
    }
}

/// All processes in `/proc`, by ID.
pub(crate) fn all() -> BTreeMap<u32, Stat> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return BTreeMap::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| Some((pid, Stat::read(pid)?)))
        .collect()
}

/// The descendants of `root` among `processes`, without `root`.
pub(crate) fn descendants(processes: &BTreeMap<u32, Stat>, root: u32) -> BTreeSet<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (pid, stat) in processes {
        children.entry(stat.parent).or_default().push(*pid);
    }
    let mut found = BTreeSet::new();
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            if found.insert(*child) {
                open.push(*child);
            }
        }
    }
    found
}

/// Sends a signal to a process. Does nothing if the process has ended.
pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_parentheses_does_not_shift_the_fields() {
        let line = "7 (a) b (c) S 3 7 9 0 -1 4194560 1 2 3 4 15 27 0 0 20 0 1 0 5551 1000 42 1844 1 1";
        let stat = Stat::parse(line).unwrap();
        let expected = Stat { state: 'S', parent: 3, session: 9, cpu_ticks: 42, started: 5551, resident_pages: 42 };
        assert_eq!(stat, expected);
    }

    #[test]
    fn a_process_is_identified_by_its_start_time() {
        let own = ProcessId::of(std::process::id()).unwrap();
        assert!(own.is_alive());
        assert!(!ProcessId { started: own.started + 1, ..own.clone() }.is_alive());
        assert!(!ProcessId { boot: "other".to_owned(), ..own }.is_alive());
    }

    #[test]
    fn descendants_are_found_through_several_generations() {
        let stat = |parent| Stat { state: 'S', parent, session: 0, cpu_ticks: 0, started: 0, resident_pages: 0 };
        let processes = BTreeMap::from([(1, stat(0)), (2, stat(1)), (3, stat(2)), (4, stat(1)), (5, stat(0))]);
        assert_eq!(descendants(&processes, 2), BTreeSet::from([3]));
        assert_eq!(descendants(&processes, 1), BTreeSet::from([2, 3, 4]));
    }
}
