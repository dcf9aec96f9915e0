//! Failed nodes of workloads that run (§15.3, §15.5).

use std::time::Duration;

use berth_engine::model::PreemptionPolicy;
use berth_engine::{Event, Name, Verdict};

use crate::cluster::{Platform, job, queue};

/// Writes down that hosts have failed, and what is decided once the second pass is due.
fn fail(platform: &mut Platform, name: &str, hosts: &[&str]) -> Vec<String> {
    platform.update(name, |workload| workload.unhealthy_nodes = hosts.iter().map(|host| Name::from(*host)).collect());
    platform.now = platform.now.after(Duration::from_secs(30));
    platform.cycle()
}

fn hosts(platform: &Platform, name: &str) -> Vec<String> {
    platform.hosts(name).into_iter().map(|(host, _)| host).collect()
}

#[test]
fn a_broken_slice_is_mended_in_its_own_domain_or_not_at_all() {
    let mut platform = Platform::new();
    platform.racks("gpu", &[("r1", &[1, 1]), ("r2", &[1, 1, 1])]).queue(queue("a").flavor("gpu", 8));
    platform.submit(job("pairs", "a", 1).pods(4, None).slices("rack", 2)).settle();
    assert_eq!(hosts(&platform, "pairs"), ["r1-0", "r1-1", "r2-0", "r2-1"]);
    // A node on which nothing else fits, which any other pod would be sent to.
    platform.node("r3-0", &[("rack", "r3")], 1);
    assert_eq!(fail(&mut platform, "pairs", &["r2-0"]), ["admit pairs on gpu x4"]);
    assert_eq!(hosts(&platform, "pairs"), ["r1-0", "r1-1", "r2-1", "r2-2"]);
    assert_eq!(fail(&mut platform, "pairs", &["r1-0"]), ["evict pairs: NodeFailures"]);
}

#[test]
fn of_layers_the_innermost_that_is_broken_decides_where_the_pods_go() {
    let mut platform = Platform::new();
    platform.topology("blocks", &["block", "rack", crate::cluster::HOSTNAME]);
    platform
        .flavor_with("gpu", |flavor| flavor.topology = Some(Name::from("blocks")))
        .queue(queue("a").flavor("gpu", 9));
    for (host, block, rack) in [("b1-r1-0", "b1", "r1"), ("b1-r1-1", "b1", "r1"), ("b1-r2-0", "b1", "r2")] {
        platform.node(host, &[("block", block), ("rack", rack)], 1);
    }
    platform.node("b1-r2-1", &[("block", "b1"), ("rack", "r2")], 1);
    platform
        .submit(job("layers", "a", 1).pods(4, None).required("block").slices("block", 4).slices("rack", 2))
        .settle();
    assert_eq!(hosts(&platform, "layers").len(), 4);
    platform.node("b1-r1-spare", &[("block", "b1"), ("rack", "r1")], 1);
    platform.node("b1-r2-spare", &[("block", "b1"), ("rack", "r2")], 1);
    assert_eq!(fail(&mut platform, "layers", &["b1-r2-0"]), ["admit layers on gpu x4"]);
    assert_eq!(hosts(&platform, "layers"), ["b1-r1-0", "b1-r1-1", "b1-r2-1", "b1-r2-spare"]);
}

#[test]
fn no_workload_is_preempted_to_replace_a_node() {
    let mut platform = Platform::new();
    platform.racks("gpu", &[("r1", &[1, 1])]).queue(queue("a").flavor("gpu", 8).with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
    }));
    platform.submit(job("high", "a", 1).required("rack").priority(9)).settle();
    platform.submit(job("low", "a", 1).required("rack")).settle();
    let lost = hosts(&platform, "high");
    assert_eq!(fail(&mut platform, "high", &[&lost[0]]), ["evict high: NodeFailures"]);
}

#[test]
fn where_failing_fast_is_off_a_replacement_is_looked_for_again_later_and_later() {
    let mut platform = Platform::with(|config| config.gates.tas_failed_node_replacement_fail_fast = false);
    platform.racks("gpu", &[("r1", &[1, 1])]).queue(queue("a").flavor("gpu", 8));
    platform.submit(job("pair", "a", 1).pods(2, None).required("rack")).settle();
    platform.update("pair", |workload| workload.unhealthy_nodes = vec![Name::from("r1-0")]);
    let mut waited = Vec::new();
    for _ in 0..7 {
        let due = platform.engine.next_wakeup().expect("it is looked at again");
        waited.push(due.seconds() - platform.now.seconds());
        platform.now = due;
        platform.engine.cycle(due);
    }
    assert_eq!(waited, [1, 2, 4, 8, 16, 30, 30]);
    assert_eq!(hosts(&platform, "pair"), ["r1-0", "r1-1"]);
    platform.node("spare", &[("rack", "r1")], 1);
    platform.now = platform.now.after(Duration::from_secs(30));
    assert_eq!(platform.cycle(), ["admit pair on gpu x2"]);
    assert_eq!(hosts(&platform, "pair"), ["r1-1", "spare"]);
}

#[test]
fn a_placement_that_lost_another_domain_meanwhile_cannot_be_mended() {
    let mut platform = Platform::new();
    platform.racks("gpu", &[("r1", &[1, 1, 1])]).queue(queue("a").flavor("gpu", 8));
    platform.submit(job("pair", "a", 1).pods(2, None).required("rack")).settle();
    assert_eq!(hosts(&platform, "pair"), ["r1-0", "r1-1"]);
    platform.apply(Event::NodeRemoved(Name::from("r1-1")));
    platform.update("pair", |workload| workload.unhealthy_nodes = vec![Name::from("r1-0")]);
    platform.now = platform.now.after(Duration::from_secs(30));
    let outcome = platform.decide();
    let Verdict::Evict(eviction) = &outcome.decisions[0].verdict else { panic!("{outcome:?}") };
    let why = eviction.unplaced().unwrap_or_default();
    let stale =
        "Cannot replace the node, because the existing topologyAssignment is invalid, as it contains the stale domain";
    assert!(why.contains(stale) && why.contains("r1-1"), "{why}");
}

#[test]
fn a_workload_of_one_pod_keeps_its_place_unless_its_gate_is_off() {
    for (skips, host) in [(true, "r1-0"), (false, "r1-1")] {
        let mut platform = Platform::with(|config| config.gates.skip_reassignment_for_pod_owned_workloads = skips);
        platform.racks("gpu", &[("r1", &[1, 1])]).queue(queue("a").flavor("gpu", 8));
        platform.submit(job("pod", "a", 1).required("rack").with(|workload| workload.owned_by_pod = true)).settle();
        fail(&mut platform, "pod", &["r1-0"]);
        assert_eq!(hosts(&platform, "pod"), [host]);
    }
}
