//! Usage of CPU, memory and disk by a pod.

use std::collections::BTreeSet;

use berth_pod_runtime::{ContainerId, ContainerState, ContainerStats, PodDisk, PodState, PodStats, Volume};
use jiff::Timestamp;

use crate::cgroup::Usage;
use crate::folder::PodFolder;
use crate::journal;
use crate::processes::{self, ProcessId, Stat, descendants};
use crate::protocol::Launch;
use crate::time::now;
use crate::tree;

/// Measures the CPU and memory usage of a running pod.
pub(super) fn read(folder: &PodFolder, launch: &Launch, state: &PodState) -> PodStats {
    let records =
        if launch.group.is_none() { journal::read(&folder.journal()).unwrap_or_default() } else { Vec::new() };
    let runs = journal::runs(&records);
    let containers = running(state)
        .map(|(id, started_at)| {
            let usage = match &launch.group {
                Some(group) => group.child(&format!("{}-{}", id.name, id.attempt)).usage(),
                None => runs
                    .iter()
                    .find(|run| run.status.id == *id)
                    .map(|run| of_processes(&run.process))
                    .unwrap_or_default(),
            };
            ContainerStats {
                name: id.name.clone(),
                started_at,
                cpu_nanos: usage.cpu_nanos.unwrap_or(0),
                memory_bytes: usage.memory_bytes.unwrap_or(0),
            }
        })
        .collect();
    PodStats { uid: state.uid.clone(), at: now(), containers }
}

/// Measures the disk usage of a running pod. Visits all files that the pod wrote.
pub(super) fn disk(folder: &PodFolder, launch: &Launch, state: &PodState) -> PodDisk {
    let volumes = launch.config.volumes.iter();
    let volumes = volumes.filter(|(_, volume)| matches!(volume, Volume::EmptyDir { memory: false, .. }));
    PodDisk {
        containers: running(state).map(|(id, _)| (id.name.clone(), disk_bytes(folder, id))).collect(),
        volumes: volumes.map(|(name, _)| (name.clone(), tree::disk_bytes(&folder.volume(name)))).collect(),
    }
}

/// The runs that have not ended, with their start times.
fn running(state: &PodState) -> impl Iterator<Item = (&ContainerId, Timestamp)> {
    state.containers.iter().filter_map(|container| match container.state {
        ContainerState::Running { started_at } => Some((&container.id, started_at)),
        ContainerState::Exited(_) | ContainerState::Unknown { .. } => None,
    })
}

/// Size of the files that a container wrote outside of volumes, and of its log.
fn disk_bytes(folder: &PodFolder, id: &ContainerId) -> u64 {
    tree::disk_bytes(&folder.container(id).join("upper")) + crate::log::disk_bytes(&folder.log(id))
}

/// Usage of a process and its descendants. Usage of descendants that have ended is not included.
fn of_processes(process: &ProcessId) -> Usage {
    if !process.is_alive() {
        return Usage::default();
    }
    let all = processes::all();
    let mut pids: BTreeSet<u32> = descendants(&all, process.pid);
    pids.insert(process.pid);
    pids.extend(all.iter().filter(|(_, stat)| stat.session == process.pid).map(|(pid, _)| *pid));
    let stats: Vec<&Stat> = pids.iter().filter_map(|pid| all.get(pid)).collect();
    let ticks: u64 = stats.iter().map(|stat| stat.cpu_ticks).sum();
    let pages: u64 = stats.iter().map(|stat| stat.resident_pages).sum();
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Usage {
        cpu_nanos: Some(ticks * 1_000_000_000 / per_second),
        memory_bytes: Some(pages * rustix::param::page_size() as u64),
    }
}
