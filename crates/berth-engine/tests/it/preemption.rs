//! Workloads that may be preempted, and those that are protected.

use berth_engine::Name;
use berth_engine::model::{BorrowWithinCohort, ClusterQueue, Eviction, PreemptionPolicy, Time};

use crate::cluster::{Cluster, job, queue};

fn reclaims(queue: &mut ClusterQueue) {
    queue.preemption.reclaim_within_cohort = PreemptionPolicy::Any;
    queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
}

#[test]
fn the_lowest_priority_is_preempted_and_no_more_than_needed() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 6).with(reclaims));
    for (name, priority) in [("low", 1), ("lower", 0), ("middle", 2)] {
        cluster.submit(job(name, "a", 2).priority(priority)).settle();
    }
    cluster.submit(job("high", "a", 2).priority(9));
    assert_eq!(cluster.cycle(), ["preempt lower (InClusterQueue) for high"]);
}

#[test]
fn lent_quota_is_reclaimed() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    cluster.queue(queue("lender").cohort("all").flavor("default", 4).with(reclaims));
    cluster.queue(queue("borrower").cohort("all").flavor("default", 4));
    for at in 0..4 {
        cluster.submit(job(&format!("b{at}"), "borrower", 2).created(at)).settle();
    }
    assert_eq!(cluster.running(), ["b0", "b1", "b2", "b3"]);
    cluster.submit(job("mine", "lender", 2));
    // The workload that got its quota last is preempted first.
    assert_eq!(cluster.cycle(), ["preempt b3 (InCohortReclamation) for mine"]);
    cluster.update("b3", |workload| {
        workload.admission = None;
        workload.admitted = false;
    });
    cluster.settle();
    assert_eq!(cluster.running(), ["b0", "b1", "b2", "mine"]);
}

#[test]
fn workloads_within_nominal_quota_are_not_preempted() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    cluster.queue(queue("a").cohort("all").flavor("default", 4).with(reclaims));
    cluster.queue(queue("b").cohort("all").flavor("default", 4));
    cluster.submit(job("theirs", "b", 4)).submit(job("ours", "a", 4)).settle();
    cluster.submit(job("more", "a", 2));
    let lines = cluster.cycle();
    assert!(lines[0].starts_with("more waits: WaitingForQuota"), "{lines:?}");
    assert_eq!(cluster.running(), ["ours", "theirs"]);
}

#[test]
fn borrowing_workloads_preempt_only_up_to_the_threshold() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    cluster.queue(queue("a").cohort("all").flavor("default", 2).with(|queue| {
        queue.preemption.reclaim_within_cohort = PreemptionPolicy::LowerPriority;
        queue.preemption.borrow_within_cohort = BorrowWithinCohort::LowerPriority { max_priority_threshold: Some(0) };
    }));
    cluster.queue(queue("b").cohort("all").flavor("default", 2));
    cluster.submit(job("cheap", "b", 2).priority(0)).submit(job("dear", "b", 2).priority(1)).settle();
    cluster.submit(job("rich", "a", 4).priority(5));
    // It needs all four cores, so it would borrow. `dear` is above the threshold and stays.
    let lines = cluster.cycle();
    assert!(lines[0].starts_with("rich waits"), "{lines:?}");
    cluster.finish("dear").submit(job("dear2", "b", 2).priority(0)).settle();
    assert_eq!(
        cluster.cycle(),
        Vec::<String>::new(),
        "a workload that waits for its victims was decided again before they left"
    );
}

#[test]
fn a_preemptor_stays_at_the_head_of_its_queue() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 4).with(reclaims));
    cluster.submit(job("low", "a", 4)).settle();
    cluster.submit(job("high", "a", 4).priority(1)).cycle();
    cluster.submit(job("higher", "a", 4).priority(2));
    cluster.update("low", |workload| {
        workload.admission = None;
        workload.admitted = false;
    });
    assert_eq!(cluster.cycle(), ["admit high on default x1"]);
}

#[test]
fn two_entries_do_not_claim_the_same_victim() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    for name in ["a", "b"] {
        cluster.queue(queue(name).cohort("all").flavor("default", 2).with(reclaims));
    }
    cluster.queue(queue("c").cohort("all").flavor("default", 0));
    cluster.submit(job("guest", "c", 4)).settle();
    cluster.submit(job("one", "a", 2).created(1)).submit(job("two", "b", 2).created(2));
    let lines = cluster.cycle();
    assert_eq!(lines[0], "preempt guest (InCohortReclamation) for one");
    assert_eq!(
        lines[1],
        "two waits: WaitingForPreemptedWorkloads: Workload has overlapping preemption targets with another workload, but \
         will fit after these preemptions complete"
    );
}

#[test]
fn a_workload_with_a_reduced_number_of_pods_may_preempt() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 4).with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
    }));
    cluster.submit(job("low", "a", 2)).settle();
    cluster.submit(job("high", "a", 1).priority(5).pods(6, Some(3)));
    assert_eq!(cluster.cycle(), ["preempt low (InClusterQueue) for high"]);
    cluster.finish("low");
    assert_eq!(cluster.settle(), ["admit high on default x4"]);
}

#[test]
fn quota_that_a_queue_does_not_lend_stays_available_to_it_at_any_depth() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").cohort("all", None).cohort("team", Some("all"));
    cluster.queue(queue("lender").cohort("team").limited("default", 3, None, Some(1)));
    cluster.queue(queue("borrower").cohort("all").flavor("default", 0));
    cluster.submit(job("first", "borrower", 1)).submit(job("second", "borrower", 1).created(1)).settle();
    assert_eq!(cluster.running().len(), 1);
    // The quota that it keeps is available to it at once, without a preemption.
    cluster.submit(job("own", "lender", 2));
    assert_eq!(cluster.cycle(), ["admit own on default x1"]);
}

/// With the gate PrioritySortingWithinCohort off, the order of a cycle ignores priorities, and a
/// preempted workload counts as queued at its preemption.
#[test]
fn without_sorting_by_priority_the_victim_is_behind_its_preemptor() {
    let mut cluster = Cluster::with(|config| config.gates.priority_sorting_within_cohort = false);
    cluster.flavor("default");
    cluster.queue(queue("a").cohort("all").limited("default", 0, Some(10), None).with(reclaims));
    cluster.queue(queue("b").cohort("all").limited("default", 5, Some(5), None).with(|queue| {
        reclaims(queue);
        queue.preemption.borrow_within_cohort = BorrowWithinCohort::LowerPriority { max_priority_threshold: Some(9) };
    }));
    cluster.queue(queue("c").cohort("all").flavor("default", 5));
    cluster.submit(job("victim", "a", 4).priority(1).created(1)).settle();
    cluster.submit(job("first", "b", 4).priority(2).created(2)).settle();
    cluster.submit(job("second", "b", 4).priority(2).created(2));
    assert_eq!(cluster.cycle(), ["preempt victim (InCohortReclaimWhileBorrowing) for second"]);
    let evicted = |reason: &str| Some(Eviction { reason: Name::from(reason), at: Time::from_seconds(2) });
    cluster.update("victim", |workload| {
        workload.evicted = evicted("Preempted");
        workload.preempted = evicted("InCohortReclaimWhileBorrowing");
    });
    cluster.settle();
    cluster.update("victim", |workload| {
        workload.admission = None;
        workload.admitted = false;
    });
    let lines = cluster.settle();
    assert_eq!(cluster.running(), ["first", "second"], "{lines:#?}");
}
