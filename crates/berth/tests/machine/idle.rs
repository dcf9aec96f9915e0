//! CPU usage of a cluster whose pods do nothing.

use std::time::Duration;

use berth_testing::skip;

use crate::cluster::{Cluster, pause};

/// Time of the measurement.
const MEASURED: Duration = Duration::from_secs(15);
/// Maximum time until a new cluster is idle.
const SETTLED: u64 = 60;
/// Maximum CPU usage of an idle cluster, in percent of a CPU. A debug build uses about a fifth of
/// that.
const PERCENT_MAX: u64 = 1;

/// CPU time that a process has used, in hundredths of a second.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
}

#[test]
fn an_idle_cluster_with_processes_uses_less_than_a_hundredth_of_a_cpu() {
    if !rustix::process::geteuid().is_root() {
        return skip("full isolation needs root");
    }
    let cluster = Cluster::ephemeral(&["--runtime", "process", "--isolation", "full"]);
    // The cluster is not idle while its node, controllers and caches start.
    let used = |duration: Duration| {
        let before = ticks(cluster.id());
        pause(duration);
        ticks(cluster.id()) - before
    };
    let is_idle = (0..SETTLED / 2).any(|_| used(Duration::from_secs(2)) <= 2);
    assert!(is_idle, "the cluster does not become idle within {SETTLED} s");
    let used = used(MEASURED);
    let limit = MEASURED.as_secs() * PERCENT_MAX;
    assert!(used < limit, "{used} hundredths of a second of CPU time in {MEASURED:?}, expected less than {limit}");
    cluster.interrupt();
}
