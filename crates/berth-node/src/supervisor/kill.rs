//! Kills the processes that a container or a pod left behind. Watches the memory of containers
//! where control groups cannot be written.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use rustix::process::Signal;

use super::pod::{Live, Pod};
use crate::options::Level;
use crate::processes::{self, descendants};

/// Interval of checks of the memory usage.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of passes over the processes of a pod without control groups.
const PASSES_MAX: u32 = 100;

/// Pause between passes.
const PASS_PAUSE: Duration = Duration::from_millis(10);

/// Kills every process of a container.
pub(super) async fn kill_all(live: Rc<Live>) {
    match live.group.clone() {
        Some(group) => {
            let _ = tokio::task::spawn_blocking(move || group.kill()).await;
        }
        None => {
            for pid in members(&live) {
                processes::signal(pid, Signal::KILL);
            }
        }
    }
}

/// Processes of a container without a control group: its first process with its descendants, and
/// the members of its session. A process that leaves both groups lives until the pod ends.
fn members(live: &Live) -> BTreeSet<u32> {
    let all = processes::all();
    let mut found = descendants(&all, live.pid);
    found.extend(all.iter().filter(|(_, stat)| stat.session == live.pid).map(|(pid, _)| *pid));
    if all.contains_key(&live.pid) {
        found.insert(live.pid);
    }
    found
}

/// Kills the remaining processes when all containers have ended: all in the pod's group, or else
/// all descendants of the supervisor, which adopts orphans.
pub(super) async fn kill_rest(pod: &Pod) {
    if let Some(group) = pod.launch.group.clone() {
        let _ = tokio::task::spawn_blocking(move || group.kill()).await;
        return;
    }
    let own = std::process::id();
    for _ in 0..PASSES_MAX {
        let all = processes::all();
        let found: Vec<u32> = descendants(&all, own)
            .into_iter()
            .filter(|pid| all.get(pid).is_some_and(|stat| stat.state != 'Z'))
            .collect();
        if found.is_empty() {
            return;
        }
        // Processes are stopped first, so that none creates a new process while others are killed.
        for signal in [Signal::STOP, Signal::KILL] {
            for pid in &found {
                processes::signal(*pid, signal);
            }
        }
        tokio::time::sleep(PASS_PAUSE).await;
    }
}

/// Kills containers that exceed their memory limit if the kernel does not do that.
pub(super) async fn watch_memory(pod: Rc<Pod>) {
    if pod.launch.group.is_some() {
        return;
    }
    let page_bytes = rustix::param::page_size() as u64;
    loop {
        tokio::time::sleep(WATCH_INTERVAL).await;
        for live in pod.all_live() {
            let Some(limit) = live.limits.get().memory_bytes else { continue };
            let resident: u64 = members(&live)
                .into_iter()
                .filter_map(processes::Stat::read)
                .map(|stat| stat.resident_pages * page_bytes)
                .sum();
            if resident > limit {
                live.is_over_limit.set(true);
                live.signal(Signal::KILL);
                kill_all(live).await;
            }
        }
    }
}

/// Kills the processes that the program of a container left behind.
pub(super) async fn kill_leftovers(pod: &Pod, live: &Rc<Live>) {
    match &live.group {
        Some(group) if group.processes().is_empty() => {}
        Some(_) => kill_all(live.clone()).await,
        None if pod.launch.level == Level::Plain || pod.launch.config.host_pid => kill_all(live.clone()).await,
        None if pod.launch.config.share_process_namespace => kill_all(live.clone()).await,
        // The kernel has killed the container's PID namespace.
        None => {}
    }
}
