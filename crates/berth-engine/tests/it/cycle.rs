//! Entries of one cycle against each other, and the statuses that come of it.

use berth_engine::model::{Admission, PodSetAssignment, WorkloadKey};
use berth_engine::{Event, Name, Verdict};

use crate::cluster::{Platform, job, queue};

#[test]
fn own_quota_goes_before_borrowing_and_borrowing_before_nothing_left() {
    let mut platform = Platform::new();
    platform.flavor("default");
    platform.queue(queue("a").cohort("all").flavor("default", 2)).queue(queue("b").cohort("all").flavor("default", 2));
    platform.submit(job("borrows", "a", 3).created(1).priority(9)).submit(job("owns", "b", 2).created(2));
    assert_eq!(
        platform.cycle(),
        [
            "admit owns on default x1",
            "borrows waits: WaitingForQuota: Workload no longer fits after processing another workload",
        ]
    );
}

#[test]
fn lending_limits_keep_what_is_not_lent() {
    let mut platform = Platform::new();
    platform.flavor("default");
    platform.queue(queue("keeper").cohort("all").limited("default", 4, None, Some(1)));
    platform.queue(queue("guest").cohort("all").flavor("default", 1));
    platform.submit(job("two", "guest", 2)).settle();
    platform.submit(job("three", "guest", 3));
    let lines = platform.cycle();
    assert_eq!(platform.running(), ["two"]);
    assert!(lines[0].contains("maximum capacity (2)"), "{lines:?}");
}

#[test]
fn quota_of_a_nested_cohort_is_borrowed_through_its_parent() {
    let mut platform = Platform::new();
    platform.flavor("default").cohort("root", None).cohort("left", Some("root")).cohort("right", Some("root"));
    platform.queue(queue("a").cohort("left").flavor("default", 0));
    platform.queue(queue("b").cohort("right").flavor("default", 4));
    platform.submit(job("far", "a", 4));
    assert_eq!(platform.settle(), ["admit far on default x1"]);
    let status = platform.engine.cluster_queue_status("a").expect("the queue exists");
    assert_eq!(status.flavors_reservation[0].1["cpu"].borrowed, 4000);
}

#[test]
fn a_cycle_of_cohorts_admits_nothing_and_affects_no_other_tree() {
    let mut platform = Platform::new();
    platform.flavor("default").cohort("x", Some("y")).cohort("y", Some("x"));
    platform.queue(queue("a").cohort("x").flavor("default", 4)).queue(queue("b").flavor("default", 4));
    platform.submit(job("lost", "a", 1)).submit(job("fine", "b", 1));
    platform.settle();
    assert_eq!(platform.running(), ["fine"]);
    platform.cohort("x", None);
    platform.settle();
    assert_eq!(platform.running(), ["fine", "lost"]);
}

#[test]
fn reclaimable_pods_give_their_quota_back() {
    let mut platform = Platform::new();
    platform.flavor("default").queue(queue("a").flavor("default", 4));
    platform.submit(job("wide", "a", 1).pods(4, None)).settle();
    platform.submit(job("next", "a", 2)).settle();
    assert_eq!(platform.running(), ["wide"]);
    platform.update("wide", |workload| workload.pod_sets[0].reclaimable = 2);
    platform.settle();
    assert_eq!(platform.running(), ["next", "wide"]);
}

#[test]
fn of_two_heads_of_one_cycle_the_second_waits_for_the_pods_of_the_first() {
    let mut platform = Platform::with(|config| config.block_admission_on_pods_ready = true);
    platform.flavor("default").queue(queue("a").flavor("default", 1)).queue(queue("b").flavor("default", 1));
    platform.submit(job("first", "a", 1).created(1)).submit(job("second", "b", 1).created(2));
    assert_eq!(
        platform.cycle(),
        [
            "admit first on default x1",
            "second waits: WaitingForPodsReady: waiting for all admitted workloads to be in PodsReady condition"
        ]
    );
    platform.update("first", |workload| workload.pods_ready = true);
    assert_eq!(platform.cycle(), ["admit second on default x1"]);
}

#[test]
fn while_pods_are_not_ready_nothing_is_admitted_if_that_is_wanted() {
    let mut platform = Platform::with(|config| config.block_admission_on_pods_ready = true);
    platform.flavor("default").queue(queue("a").flavor("default", 4));
    platform.submit(job("one", "a", 1).created(1)).submit(job("two", "a", 1).created(2));
    platform.settle();
    assert_eq!(platform.running(), ["one"]);
    platform.update("one", |workload| workload.pods_ready = true);
    platform.settle();
    assert_eq!(platform.running(), ["one", "two"]);
}

#[test]
fn a_workload_that_waits_for_pods_ready_keeps_its_flavor() {
    let mut platform = Platform::with(|config| config.block_admission_on_pods_ready = true);
    platform.flavor("first").flavor("second");
    platform.queue(queue("a").flavor("first", 9).flavor("second", 9));
    platform.submit(job("one", "a", 1).created(1)).submit(job("two", "a", 1).created(2));
    assert_eq!(platform.cycle(), ["admit one on first x1"]);
    let wait = "two waits: WaitingForPodsReady: waiting for all admitted workloads to be in PodsReady condition";
    assert_eq!(platform.cycle(), [wait]);
    assert_eq!(platform.cycle(), [wait]);
    platform.update("one", |workload| workload.pods_ready = true);
    assert_eq!(platform.cycle(), ["admit two on first x1"]);
}

#[test]
fn a_reservation_found_on_an_object_counts_from_the_start() {
    let mut platform = Platform::new();
    platform.flavor("default").queue(queue("a").flavor("default", 4));
    platform.submit(job("known", "a", 3).with(|workload| {
        workload.admission = Some(Admission {
            cluster_queue: "a".into(),
            pod_sets: vec![PodSetAssignment {
                name: "main".into(),
                flavors: [("cpu".into(), "default".into())].into(),
                usage: [("cpu".into(), 3000)].into(),
                count: Some(1),
                topology: None,
                delayed_topology_pending: None,
            }],
        });
        workload.admitted = true;
    }));
    platform.submit(job("new", "a", 2)).settle();
    assert_eq!(platform.running(), ["known"]);
    let status = platform.engine.cluster_queue_status("a").expect("the queue exists");
    assert_eq!((status.pending, status.reserving, status.admitted), (1, 1, 1));
    assert_eq!(platform.engine.reservation(&WorkloadKey::new("default", "known")).as_deref(), Some("a"));
}

#[test]
fn decisions_do_not_depend_on_the_order_of_events() {
    let build = |backwards: bool| {
        let mut platform = Platform::new();
        platform.flavor("default");
        let mut names: Vec<String> = (0..6).map(|at| format!("q{at}")).collect();
        if backwards {
            names.reverse();
        }
        for name in &names {
            platform.queue(queue(name).cohort("all").flavor("default", 2));
        }
        for name in &names {
            for at in 0..3 {
                platform.submit(job(&format!("{name}-{at}"), name, 1 + at).created(at));
            }
        }
        let mut lines = platform.settle();
        lines.sort();
        (platform.running(), lines)
    };
    assert_eq!(build(false), build(true));
}

#[test]
fn a_larger_slice_takes_what_it_needs_beyond_the_one_it_replaces() {
    let mut platform = Platform::new();
    platform.flavor("default");
    platform.queue(queue("a").cohort("all").flavor("default", 6)).queue(queue("b").cohort("all").flavor("default", 6));
    platform.submit(job("old", "a", 5)).settle();
    let slice = |cores| job("new", "a", cores).with(|it| it.replaces = Some(WorkloadKey::new("default", "old")));
    // Seven cores fit while the old slice's five count as free; but only one is left when the
    // rival has its own.
    platform.submit(slice(7)).submit(job("rival", "b", 6));
    assert_eq!(
        platform.cycle(),
        [
            "admit rival on default x1",
            "new waits: WaitingForQuota: Workload no longer fits after processing another workload",
        ]
    );
    platform.finish("rival");
    let outcome = platform.decide();
    let Some(Verdict::Admit(admit)) = outcome.decisions.first().map(|decision| &decision.verdict) else {
        panic!("{outcome:?}")
    };
    assert_eq!(admit.replaces, Some(WorkloadKey::new("default", "old")));
    platform.finish("old");
    assert_eq!(platform.running(), ["new"]);
}

#[test]
fn a_cohort_whose_object_is_gone_keeps_its_queues_but_not_its_parent() {
    let mut platform = Platform::new();
    platform.flavor("default").cohort("team", Some("company"));
    platform
        .queue(queue("a").cohort("team").flavor("default", 1))
        .queue(queue("b").cohort("team").flavor("default", 1));
    platform.queue(queue("pool").cohort("company").flavor("default", 4));
    platform.submit(job("two", "a", 2)).settle();
    platform.apply(Event::CohortRemoved(Name::from("team")));
    platform.submit(job("three", "b", 3));
    let lines = platform.cycle();
    assert!(lines[0].contains("maximum capacity (2)"), "{lines:?}");
    platform.cohort("team", Some("company"));
    assert_eq!(platform.cycle(), ["admit three on default x1"]);
}
