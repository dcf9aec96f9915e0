//! Cycles answered in parts: which trees may be apart, and what happens between two parts.

use std::time::Duration;

use berth_engine::model::{CheckState, CheckStatus, StopPolicy};
use berth_engine::{CycleOutcome, CycleResult, Event, Name, Verdict};

use crate::cluster::{Platform, job, plan_lines, queue};

/// Three queues without a cohort, with a job each; `change` is made to each queue.
fn three(platform: &mut Platform, flavor: &str) {
    for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
        platform.queue(queue(name).flavor(flavor, 4));
        platform.submit(job(&format!("of-{name}"), name, 1).created(at as i64));
    }
}

fn part(platform: &mut Platform) -> CycleOutcome {
    platform.engine.cycle_part(1, platform.now)
}

#[test]
fn every_tree_has_a_turn_before_one_has_a_second() {
    let mut platform = Platform::new();
    platform.flavor("default");
    three(&mut platform, "default");
    let first = part(&mut platform);
    assert_eq!(plan_lines(&first), ["admit of-a on default x1"]);
    assert_eq!((first.cycle, first.goes_on, first.more, first.result), (1, true, true, None));
    // It came after the cycle had begun, to a tree that has had its turn.
    platform.submit(job("late", "a", 1).priority(9));
    let second = part(&mut platform);
    assert_eq!((plan_lines(&second), second.cycle), (vec!["admit of-b on default x1".to_owned()], 1));
    let third = part(&mut platform);
    assert_eq!(plan_lines(&third), ["admit of-c on default x1"]);
    assert_eq!((third.cycle, third.goes_on, third.more, third.result), (1, false, true, Some(CycleResult::Success)));
    let next = part(&mut platform);
    assert_eq!((plan_lines(&next), next.cycle), (vec!["admit late on default x1".to_owned()], 2));
    assert_eq!((next.goes_on, next.more), (false, false));
}

#[test]
fn the_result_of_a_cycle_is_reported_once_for_all_its_parts() {
    let mut platform = Platform::new();
    platform.flavor("default");
    three(&mut platform, "default");
    platform.submit(job("huge", "c", 5).priority(9));
    let results: Vec<_> = (0..5).map(|_| part(&mut platform).result).collect();
    // Admitted, admitted, too large; then the other one of the last queue; then no head is left.
    assert_eq!(results, [None, None, Some(CycleResult::Success), Some(CycleResult::Success), None]);
    platform.submit(job("huge-too", "a", 5));
    assert_eq!(part(&mut platform).result, Some(CycleResult::Inadmissible));
}

#[test]
fn a_whole_cycle_finishes_one_that_was_begun_in_parts() {
    let mut platform = Platform::new();
    platform.flavor("default");
    three(&mut platform, "default");
    part(&mut platform);
    let rest = platform.engine.cycle(platform.now);
    assert_eq!((plan_lines(&rest).len(), rest.cycle, rest.goes_on), (2, 1, false));
}

#[test]
fn queues_of_one_tree_are_in_one_part() {
    let mut platform = Platform::new();
    platform.flavor("default");
    for name in ["a", "b"] {
        platform.queue(queue(name).cohort("all").flavor("default", 1)).submit(job(&format!("of-{name}"), name, 1));
    }
    platform.queue(queue("c").flavor("default", 1)).submit(job("of-c", "c", 1));
    let sizes: Vec<usize> = (0..2).map(|_| part(&mut platform).decisions.len()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 3);
    assert!(sizes.contains(&2), "{sizes:?}");
}

#[test]
fn trees_that_share_nodes_are_in_one_part_and_first() {
    let mut platform = Platform::new();
    platform.flavor("default").racks("gpu", &[("r1", &[2])]);
    for (name, flavor) in [("a", "default"), ("b", "gpu"), ("c", "default"), ("d", "gpu")] {
        platform.queue(queue(name).flavor(flavor, 4));
        platform.submit(job(&format!("of-{name}"), name, 2).created(if name == "b" { 2 } else { 1 }));
    }
    // Only one fits, and it is the older one: they were ordered together.
    let first = plan_lines(&part(&mut platform));
    assert_eq!(first.len(), 2, "{first:?}");
    assert_eq!(first[0], "admit of-d on gpu x1");
    assert!(first[1].starts_with("of-b waits"), "{first:?}");
    assert_eq!(plan_lines(&part(&mut platform)), ["admit of-a on default x1"]);
    assert_eq!(plan_lines(&part(&mut platform)), ["admit of-c on default x1"]);
}

#[test]
fn cycles_are_whole_where_one_admission_blocks_others_or_variants_depend_on_each_other() {
    let mut waits = Platform::with(|config| config.block_admission_on_pods_ready = true);
    let mut variants = Platform::with(|config| config.gates.concurrent_admission = true);
    for platform in [&mut waits, &mut variants] {
        platform.flavor("default");
        three(platform, "default");
        let first = part(platform);
        assert_eq!((first.decisions.len(), first.goes_on), (3, false));
    }
    assert_eq!(waits.running(), ["of-a"]);
    assert_eq!(variants.running(), ["of-a", "of-b", "of-c"]);
}

#[test]
fn a_cycle_with_a_second_pass_is_whole() {
    let mut platform = Platform::new();
    platform.flavor("default").racks("gpu", &[("r1", &[4])]);
    platform.queue(queue("nodes").flavor("gpu", 8)).submit(job("gang", "nodes", 1).required("rack")).settle();
    platform.update("gang", |workload| workload.unhealthy_nodes = vec![Name::from("r1-0")]);
    three(&mut platform, "default");
    let ready =
        CheckStatus { name: "x".into(), state: CheckState::Ready, node_selectors: [].into(), tolerations: [].into() };
    platform.update("of-a", |workload| workload.checks = vec![ready]);
    platform.now = platform.now.after(Duration::from_secs(1));
    let outcome = part(&mut platform);
    let second = outcome.decisions.iter().filter(|it| matches!(it.verdict, Verdict::Evict { .. })).count();
    assert_eq!((second, outcome.decisions.len(), outcome.goes_on), (1, 4, false));
}

#[test]
fn what_happens_between_two_parts_counts_for_those_still_to_come() {
    let mut platform = Platform::new();
    platform.flavor("default");
    three(&mut platform, "default");
    part(&mut platform);
    // One queue is stopped, the other one moves to a tree whose quota its own workloads use.
    platform.queue(queue("b").flavor("default", 4).with(|queue| queue.stop_policy = StopPolicy::Hold));
    platform.queue(queue("lender").cohort("all").flavor("default", 0));
    platform.queue(queue("c").cohort("all").flavor("default", 0));
    let last = part(&mut platform);
    assert_eq!(last.decisions.len(), 1);
    assert!(plan_lines(&last)[0].starts_with("of-c waits"), "{last:?}");
    assert!(!last.goes_on);
    // A removed queue is skipped, and so is one whose workloads are removed.
    three(&mut platform, "default");
    platform.queue(queue("d").flavor("default", 4)).submit(job("of-d", "d", 1));
    platform.submit(job("another", "a", 1));
    part(&mut platform);
    platform.apply(Event::ClusterQueueRemoved("b".into()));
    platform.apply(Event::WorkloadRemoved(berth_engine::model::WorkloadKey::new("default", "of-c")));
    let rest: Vec<String> = std::iter::from_fn(|| {
        let outcome = part(&mut platform);
        outcome.more.then(|| plan_lines(&outcome))
    })
    .flatten()
    .collect();
    assert_eq!(platform.running(), ["another", "of-a", "of-d"], "{rest:?}");
}
