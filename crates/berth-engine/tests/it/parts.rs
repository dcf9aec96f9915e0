//! Cycles in parts: which trees may be decided separately, and the effect of events between parts.

use std::time::Duration;

use berth_engine::model::{CheckState, CheckStatus, StopPolicy};
use berth_engine::{CycleOutcome, CycleResult, Event, Name, Verdict};

use crate::cluster::{Cluster, job, plan_lines, queue};

/// Adds three queues without a cohort, with one job each.
fn three(cluster: &mut Cluster, flavor: &str) {
    for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
        cluster.queue(queue(name).flavor(flavor, 4));
        cluster.submit(job(&format!("of-{name}"), name, 1).created(at as i64));
    }
}

fn part(cluster: &mut Cluster) -> CycleOutcome {
    cluster.engine.cycle_part(1, cluster.now)
}

#[test]
fn every_tree_is_decided_before_any_tree_is_decided_again() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    three(&mut cluster, "default");
    let first = part(&mut cluster);
    assert_eq!(plan_lines(&first), ["admit of-a on default x1"]);
    assert_eq!((first.cycle, first.is_incomplete, first.more, first.result), (1, true, true, None));
    // The workload `late` is submitted after the cycle has begun, to a tree that was already
    // decided.
    cluster.submit(job("late", "a", 1).priority(9));
    let second = part(&mut cluster);
    assert_eq!((plan_lines(&second), second.cycle), (vec!["admit of-b on default x1".to_owned()], 1));
    let third = part(&mut cluster);
    assert_eq!(plan_lines(&third), ["admit of-c on default x1"]);
    assert_eq!(
        (third.cycle, third.is_incomplete, third.more, third.result),
        (1, false, true, Some(CycleResult::Success))
    );
    let next = part(&mut cluster);
    assert_eq!((plan_lines(&next), next.cycle), (vec!["admit late on default x1".to_owned()], 2));
    assert_eq!((next.is_incomplete, next.more), (false, false));
}

#[test]
fn the_result_of_a_cycle_is_reported_once_for_all_its_parts() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    three(&mut cluster, "default");
    cluster.submit(job("huge", "c", 5).priority(9));
    let results: Vec<_> = (0..5).map(|_| part(&mut cluster).result).collect();
    // The first cycle has three parts: two workloads are admitted, and the third is too large. The
    // second cycle admits the other workload of the last queue. The third cycle has no head.
    assert_eq!(results, [None, None, Some(CycleResult::Success), Some(CycleResult::Success), None]);
    cluster.submit(job("huge-too", "a", 5));
    assert_eq!(part(&mut cluster).result, Some(CycleResult::Inadmissible));
}

#[test]
fn a_whole_cycle_finishes_one_that_was_begun_in_parts() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    three(&mut cluster, "default");
    part(&mut cluster);
    let rest = cluster.engine.cycle(cluster.now);
    assert_eq!((plan_lines(&rest).len(), rest.cycle, rest.is_incomplete), (2, 1, false));
}

#[test]
fn queues_of_one_tree_are_in_one_part() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    for name in ["a", "b"] {
        cluster.queue(queue(name).cohort("all").flavor("default", 1)).submit(job(&format!("of-{name}"), name, 1));
    }
    cluster.queue(queue("c").flavor("default", 1)).submit(job("of-c", "c", 1));
    let sizes: Vec<usize> = (0..2).map(|_| part(&mut cluster).decisions.len()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 3);
    assert!(sizes.contains(&2), "{sizes:?}");
}

#[test]
fn trees_that_share_nodes_are_in_one_part_and_come_first() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").racks("gpu", &[("r1", &[2])]);
    for (name, flavor) in [("a", "default"), ("b", "gpu"), ("c", "default"), ("d", "gpu")] {
        cluster.queue(queue(name).flavor(flavor, 4));
        cluster.submit(job(&format!("of-{name}"), name, 2).created(if name == "b" { 2 } else { 1 }));
    }
    // Only one fits. It is the older one, because both were ordered together.
    let first = plan_lines(&part(&mut cluster));
    assert_eq!(first.len(), 2, "{first:?}");
    assert_eq!(first[0], "admit of-d on gpu x1");
    assert!(first[1].starts_with("of-b waits"), "{first:?}");
    assert_eq!(plan_lines(&part(&mut cluster)), ["admit of-a on default x1"]);
    assert_eq!(plan_lines(&part(&mut cluster)), ["admit of-c on default x1"]);
}

#[test]
fn a_cycle_has_one_part_if_one_admission_blocks_others_or_variants_depend_on_each_other() {
    let mut waits = Cluster::with(|config| config.block_admission_on_pods_ready = true);
    let mut variants = Cluster::with(|config| config.gates.concurrent_admission = true);
    for cluster in [&mut waits, &mut variants] {
        cluster.flavor("default");
        three(cluster, "default");
        let first = part(cluster);
        assert_eq!((first.decisions.len(), first.is_incomplete), (3, false));
    }
    assert_eq!(waits.running(), ["of-a"]);
    assert_eq!(variants.running(), ["of-a", "of-b", "of-c"]);
}

#[test]
fn a_cycle_with_a_second_pass_has_one_part() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").racks("gpu", &[("r1", &[4])]);
    cluster.queue(queue("nodes").flavor("gpu", 8)).submit(job("gang", "nodes", 1).required("rack")).settle();
    cluster.update("gang", |workload| workload.unhealthy_nodes = vec![Name::from("r1-0")]);
    three(&mut cluster, "default");
    let ready =
        CheckStatus { name: "x".into(), state: CheckState::Ready, node_selectors: [].into(), tolerations: [].into() };
    cluster.update("of-a", |workload| workload.checks = vec![ready]);
    cluster.now = cluster.now.after(Duration::from_secs(1));
    let outcome = part(&mut cluster);
    let second = outcome.decisions.iter().filter(|it| matches!(it.verdict, Verdict::Evict { .. })).count();
    assert_eq!((second, outcome.decisions.len(), outcome.is_incomplete), (1, 4, false));
}

#[test]
fn events_between_two_parts_affect_the_later_parts() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    three(&mut cluster, "default");
    part(&mut cluster);
    // One queue is stopped. The other one moves to a tree whose quota its own workloads use.
    cluster.queue(queue("b").flavor("default", 4).with(|queue| queue.stop_policy = StopPolicy::Hold));
    cluster.queue(queue("lender").cohort("all").flavor("default", 0));
    cluster.queue(queue("c").cohort("all").flavor("default", 0));
    let last = part(&mut cluster);
    assert_eq!(last.decisions.len(), 1);
    assert!(plan_lines(&last)[0].starts_with("of-c waits"), "{last:?}");
    assert!(!last.is_incomplete);
    // A removed queue is skipped, and so is one whose workloads are removed.
    three(&mut cluster, "default");
    cluster.queue(queue("d").flavor("default", 4)).submit(job("of-d", "d", 1));
    cluster.submit(job("another", "a", 1));
    part(&mut cluster);
    cluster.apply(Event::ClusterQueueRemoved("b".into()));
    cluster.apply(Event::WorkloadRemoved(berth_engine::model::WorkloadKey::new("default", "of-c")));
    let rest: Vec<String> = std::iter::from_fn(|| {
        let outcome = part(&mut cluster);
        outcome.more.then(|| plan_lines(&outcome))
    })
    .flatten()
    .collect();
    assert_eq!(cluster.running(), ["another", "of-a", "of-d"], "{rest:?}");
}
