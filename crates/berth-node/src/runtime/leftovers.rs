//! Cleanup after a supervisor that was killed.

use std::collections::BTreeSet;

use crate::folder::PodFolder;
use crate::journal::{self, Record};
use crate::processes::{self, ProcessId, descendants};
use crate::protocol::Launch;

/// Maximum number of passes over the processes of a pod without control groups.
const PASSES_MAX: u32 = 50;

/// Kills the processes of a pod whose supervisor has ended, and removes its control group.
pub(super) fn kill(folder: &PodFolder, launch: &Launch) {
    if let Some(group) = &launch.group {
        if !group.kill() {
            tracing::error!(pod = %launch.config.uid, "processes of a pod do not end after SIGKILL");
        }
        if let Err(error) = group.remove() {
            tracing::error!(pod = %launch.config.uid, %error, "cannot remove the control group of a pod");
        }
        return;
    }
    let records = journal::read(&folder.journal()).unwrap_or_default();
    for _ in 0..PASSES_MAX {
        let found = find(&records, &launch.config.uid.0);
        if found.is_empty() {
            return;
        }
        for pid in found {
            processes::signal(pid, rustix::process::Signal::KILL);
        }
    }
}

/// Kills a supervisor that does not respond.
pub(super) fn kill_supervisor(folder: &PodFolder) {
    let records = journal::read(&folder.journal()).unwrap_or_default();
    if let Some(process) = journal::supervisor(&records) {
        process.kill();
    }
}

/// Living processes of a pod: the recorded ones with their descendants and sessions, and those
/// whose environment names the pod. A process that has changed its session, parent and environment
/// is not found.
fn find(records: &[Record], uid: &str) -> BTreeSet<u32> {
    let recorded: Vec<&ProcessId> = records
        .iter()
        .filter_map(|record| match record {
            Record::Started { process, .. } => Some(process),
            _ => None,
        })
        .collect();
    let all = processes::all();
    let boot = processes::boot_id();
    let mut found = BTreeSet::new();
    for process in recorded.into_iter().filter(|process| process.boot == boot) {
        if process.is_alive() {
            found.insert(process.pid);
            found.extend(descendants(&all, process.pid));
        }
        // The kernel does not reuse the ID of a session that still has members.
        let members = all.iter().filter(|(_, stat)| stat.session == process.pid && stat.started >= process.started);
        found.extend(members.map(|(pid, _)| *pid));
    }
    let mark = format!("BERTH_POD={uid}");
    found.extend(all.keys().filter(|pid| has_variable(**pid, &mark)));
    found.retain(|pid| all.get(pid).is_some_and(|stat| stat.state != 'Z'));
    found
}

fn has_variable(pid: u32, variable: &str) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
}
