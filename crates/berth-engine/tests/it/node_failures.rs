//! Failed nodes of running workloads (§15.3, §15.5).

use std::time::Duration;

use berth_engine::model::PreemptionPolicy;
use berth_engine::{Event, Name, Verdict};

use crate::cluster::{Cluster, job, queue};

/// Marks hosts of a workload as failed. Returns the decisions once the second pass is due.
fn fail(cluster: &mut Cluster, name: &str, hosts: &[&str]) -> Vec<String> {
    cluster.update(name, |workload| workload.unhealthy_nodes = hosts.iter().map(|host| Name::from(*host)).collect());
    cluster.now = cluster.now.after(Duration::from_secs(30));
    cluster.cycle()
}

fn hosts(cluster: &Cluster, name: &str) -> Vec<String> {
    cluster.hosts(name).into_iter().map(|(host, _)| host).collect()
}

#[test]
fn a_broken_slice_is_completed_in_its_own_domain_or_not_at_all() {
    let mut cluster = Cluster::new();
    cluster.racks("gpu", &[("r1", &[1, 1]), ("r2", &[1, 1, 1])]).queue(queue("a").flavor("gpu", 8));
    cluster.submit(job("pairs", "a", 1).pods(4, None).slices("rack", 2)).settle();
    assert_eq!(hosts(&cluster, "pairs"), ["r1-0", "r1-1", "r2-0", "r2-1"]);
    // A node in another rack. A pod that may go to any rack would be placed there.
    cluster.node("r3-0", &[("rack", "r3")], 1);
    assert_eq!(fail(&mut cluster, "pairs", &["r2-0"]), ["admit pairs on gpu x4"]);
    assert_eq!(hosts(&cluster, "pairs"), ["r1-0", "r1-1", "r2-1", "r2-2"]);
    assert_eq!(fail(&mut cluster, "pairs", &["r1-0"]), ["evict pairs: NodeFailures"]);
}

#[test]
fn the_innermost_broken_layer_determines_where_the_pods_go() {
    let mut cluster = Cluster::new();
    cluster.topology("blocks", &["block", "rack", crate::cluster::HOSTNAME]);
    cluster
        .flavor_with("gpu", |flavor| flavor.topology = Some(Name::from("blocks")))
        .queue(queue("a").flavor("gpu", 9));
    for (host, block, rack) in [("b1-r1-0", "b1", "r1"), ("b1-r1-1", "b1", "r1"), ("b1-r2-0", "b1", "r2")] {
        cluster.node(host, &[("block", block), ("rack", rack)], 1);
    }
    cluster.node("b1-r2-1", &[("block", "b1"), ("rack", "r2")], 1);
    cluster.submit(job("layers", "a", 1).pods(4, None).required("block").slices("block", 4).slices("rack", 2)).settle();
    assert_eq!(hosts(&cluster, "layers").len(), 4);
    cluster.node("b1-r1-spare", &[("block", "b1"), ("rack", "r1")], 1);
    cluster.node("b1-r2-spare", &[("block", "b1"), ("rack", "r2")], 1);
    assert_eq!(fail(&mut cluster, "layers", &["b1-r2-0"]), ["admit layers on gpu x4"]);
    assert_eq!(hosts(&cluster, "layers"), ["b1-r1-0", "b1-r1-1", "b1-r2-1", "b1-r2-spare"]);
}

#[test]
fn no_workload_is_preempted_to_replace_a_node() {
    let mut cluster = Cluster::new();
    cluster.racks("gpu", &[("r1", &[1, 1])]).queue(queue("a").flavor("gpu", 8).with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
    }));
    cluster.submit(job("high", "a", 1).required("rack").priority(9)).settle();
    cluster.submit(job("low", "a", 1).required("rack")).settle();
    let lost = hosts(&cluster, "high");
    assert_eq!(fail(&mut cluster, "high", &[&lost[0]]), ["evict high: NodeFailures"]);
}

#[test]
fn without_fail_fast_a_replacement_is_searched_again_with_growing_delays() {
    let mut cluster = Cluster::with(|config| config.gates.tas_failed_node_replacement_fail_fast = false);
    cluster.racks("gpu", &[("r1", &[1, 1])]).queue(queue("a").flavor("gpu", 8));
    cluster.submit(job("pair", "a", 1).pods(2, None).required("rack")).settle();
    cluster.update("pair", |workload| workload.unhealthy_nodes = vec![Name::from("r1-0")]);
    let mut waited = Vec::new();
    for _ in 0..7 {
        let due = cluster.engine.next_wakeup().expect("another second pass is scheduled");
        waited.push(due.seconds() - cluster.now.seconds());
        cluster.now = due;
        cluster.engine.cycle(due);
    }
    assert_eq!(waited, [1, 2, 4, 8, 16, 30, 30]);
    assert_eq!(hosts(&cluster, "pair"), ["r1-0", "r1-1"]);
    cluster.node("spare", &[("rack", "r1")], 1);
    cluster.now = cluster.now.after(Duration::from_secs(30));
    assert_eq!(cluster.cycle(), ["admit pair on gpu x2"]);
    assert_eq!(hosts(&cluster, "pair"), ["r1-1", "spare"]);
}

#[test]
fn a_placement_that_lost_another_domain_cannot_be_repaired() {
    let mut cluster = Cluster::new();
    cluster.racks("gpu", &[("r1", &[1, 1, 1])]).queue(queue("a").flavor("gpu", 8));
    cluster.submit(job("pair", "a", 1).pods(2, None).required("rack")).settle();
    assert_eq!(hosts(&cluster, "pair"), ["r1-0", "r1-1"]);
    cluster.apply(Event::NodeRemoved(Name::from("r1-1")));
    cluster.update("pair", |workload| workload.unhealthy_nodes = vec![Name::from("r1-0")]);
    cluster.now = cluster.now.after(Duration::from_secs(30));
    let outcome = cluster.decide();
    let Verdict::Evict(eviction) = &outcome.decisions[0].verdict else { panic!("{outcome:?}") };
    let why = eviction.unplaced().unwrap_or_default();
    let stale =
        "Cannot replace the node, because the existing topologyAssignment is invalid, as it contains the stale domain";
    assert!(why.contains(stale) && why.contains("r1-1"), "{why}");
}

#[test]
fn a_workload_of_a_single_pod_keeps_its_node_unless_its_gate_is_off() {
    for (skips, host) in [(true, "r1-0"), (false, "r1-1")] {
        let mut cluster = Cluster::with(|config| config.gates.skip_reassignment_for_pod_owned_workloads = skips);
        cluster.racks("gpu", &[("r1", &[1, 1])]).queue(queue("a").flavor("gpu", 8));
        cluster.submit(job("pod", "a", 1).required("rack").with(|workload| workload.owned_by_pod = true)).settle();
        fail(&mut cluster, "pod", &["r1-0"]);
        assert_eq!(hosts(&cluster, "pod"), [host]);
    }
}
