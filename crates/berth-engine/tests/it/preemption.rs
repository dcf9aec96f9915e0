//! Which workloads may be preempted.

use berth_engine::model::{BorrowWithinCohort, ClusterQueue, PreemptionPolicy};

use crate::cluster::{Platform, job, queue};

fn reclaims(queue: &mut ClusterQueue) {
    queue.preemption.reclaim_within_cohort = PreemptionPolicy::Any;
    queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
}

#[test]
fn the_lowest_priority_is_preempted_and_no_more_than_needed() {
    let mut platform = Platform::new();
    platform.flavor("default").queue(queue("a").flavor("default", 6).with(reclaims));
    for (name, priority) in [("low", 1), ("lower", 0), ("middle", 2)] {
        platform.submit(job(name, "a", 2).priority(priority)).settle();
    }
    platform.submit(job("high", "a", 2).priority(9));
    assert_eq!(platform.cycle(), ["preempt lower (InClusterQueue) for high"]);
}

#[test]
fn what_was_lent_is_taken_back() {
    let mut platform = Platform::new();
    platform.flavor("default");
    platform.queue(queue("lender").cohort("all").flavor("default", 4).with(reclaims));
    platform.queue(queue("borrower").cohort("all").flavor("default", 4));
    for at in 0..4 {
        platform.submit(job(&format!("b{at}"), "borrower", 2).created(at)).settle();
    }
    assert_eq!(platform.running(), ["b0", "b1", "b2", "b3"]);
    platform.submit(job("mine", "lender", 2));
    // The one that got its quota last goes first.
    assert_eq!(platform.cycle(), ["preempt b3 (InCohortReclamation) for mine"]);
    platform.update("b3", |workload| {
        workload.admission = None;
        workload.admitted = false;
    });
    platform.settle();
    assert_eq!(platform.running(), ["b0", "b1", "b2", "mine"]);
}

#[test]
fn workloads_within_nominal_quota_are_not_preempted() {
    let mut platform = Platform::new();
    platform.flavor("default");
    platform.queue(queue("a").cohort("all").flavor("default", 4).with(reclaims));
    platform.queue(queue("b").cohort("all").flavor("default", 4));
    platform.submit(job("theirs", "b", 4)).submit(job("ours", "a", 4)).settle();
    platform.submit(job("more", "a", 2));
    let lines = platform.cycle();
    assert!(lines[0].starts_with("more waits: WaitingForQuota"), "{lines:?}");
    assert_eq!(platform.running(), ["ours", "theirs"]);
}

#[test]
fn borrowing_workloads_preempt_only_up_to_the_threshold() {
    let mut platform = Platform::new();
    platform.flavor("default");
    platform.queue(queue("a").cohort("all").flavor("default", 2).with(|queue| {
        queue.preemption.reclaim_within_cohort = PreemptionPolicy::LowerPriority;
        queue.preemption.borrow_within_cohort = BorrowWithinCohort::LowerPriority { max_priority_threshold: Some(0) };
    }));
    platform.queue(queue("b").cohort("all").flavor("default", 2));
    platform.submit(job("cheap", "b", 2).priority(0)).submit(job("dear", "b", 2).priority(1)).settle();
    platform.submit(job("rich", "a", 4).priority(5));
    // It needs all four cores, so it would borrow: `dear` is above the threshold and stays.
    let lines = platform.cycle();
    assert!(lines[0].starts_with("rich waits"), "{lines:?}");
    platform.finish("dear").submit(job("dear2", "b", 2).priority(0)).settle();
    assert_eq!(
        platform.cycle(),
        Vec::<String>::new(),
        "a workload that waits for its victims is not decided about again before they left"
    );
}

#[test]
fn a_preemptor_sticks_to_the_head_of_its_queue() {
    let mut platform = Platform::new();
    platform.flavor("default").queue(queue("a").flavor("default", 4).with(reclaims));
    platform.submit(job("low", "a", 4)).settle();
    platform.submit(job("high", "a", 4).priority(1)).cycle();
    platform.submit(job("higher", "a", 4).priority(2));
    platform.update("low", |workload| {
        workload.admission = None;
        workload.admitted = false;
    });
    assert_eq!(platform.cycle(), ["admit high on default x1"]);
}

#[test]
fn two_entries_do_not_claim_the_same_victim() {
    let mut platform = Platform::new();
    platform.flavor("default");
    for name in ["a", "b"] {
        platform.queue(queue(name).cohort("all").flavor("default", 2).with(reclaims));
    }
    platform.queue(queue("c").cohort("all").flavor("default", 0));
    platform.submit(job("guest", "c", 4)).settle();
    platform.submit(job("one", "a", 2).created(1)).submit(job("two", "b", 2).created(2));
    let lines = platform.cycle();
    assert_eq!(lines[0], "preempt guest (InCohortReclamation) for one");
    assert_eq!(
        lines[1],
        "two waits: WaitingForPreemptedWorkloads: Workload has overlapping preemption targets with another workload, but \
         will fit after these preemptions complete"
    );
}

#[test]
fn a_reduced_number_of_pods_may_preempt_too() {
    let mut platform = Platform::new();
    platform.flavor("default").queue(queue("a").flavor("default", 4).with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
    }));
    platform.submit(job("low", "a", 2)).settle();
    platform.submit(job("high", "a", 1).priority(5).pods(6, Some(3)));
    assert_eq!(platform.cycle(), ["preempt low (InClusterQueue) for high"]);
    platform.finish("low");
    assert_eq!(platform.settle(), ["admit high on default x4"]);
}

#[test]
fn what_a_queue_does_not_lend_stays_with_it_however_deep_it_is() {
    let mut platform = Platform::new();
    platform.flavor("default").cohort("all", None).cohort("team", Some("all"));
    platform.queue(queue("lender").cohort("team").limited("default", 3, None, Some(1)));
    platform.queue(queue("borrower").cohort("all").flavor("default", 0));
    platform.submit(job("first", "borrower", 1)).submit(job("second", "borrower", 1).created(1)).settle();
    assert_eq!(platform.running().len(), 1);
    // The quota it keeps is available to it at once, without a preemption.
    platform.submit(job("own", "lender", 2));
    assert_eq!(platform.cycle(), ["admit own on default x1"]);
}
