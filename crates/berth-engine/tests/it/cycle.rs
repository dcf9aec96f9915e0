//! Entries of one cycle that compete, and the statuses that result.

use berth_engine::model::{Admission, PodSetAssignment, WorkloadKey};
use berth_engine::{Event, Name, Verdict};

use crate::cluster::{Cluster, job, queue};

#[test]
fn an_entry_within_its_quota_is_decided_before_one_that_borrows() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    cluster.queue(queue("a").cohort("all").flavor("default", 2)).queue(queue("b").cohort("all").flavor("default", 2));
    cluster.submit(job("borrows", "a", 3).created(1).priority(9)).submit(job("owns", "b", 2).created(2));
    assert_eq!(
        cluster.cycle(),
        [
            "admit owns on default x1",
            "borrows waits: WaitingForQuota: Workload no longer fits after processing another workload",
        ]
    );
}

#[test]
fn quota_above_the_lending_limit_is_not_lent() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    cluster.queue(queue("keeper").cohort("all").limited("default", 4, None, Some(1)));
    cluster.queue(queue("guest").cohort("all").flavor("default", 1));
    cluster.submit(job("two", "guest", 2)).settle();
    cluster.submit(job("three", "guest", 3));
    let lines = cluster.cycle();
    assert_eq!(cluster.running(), ["two"]);
    assert!(lines[0].contains("maximum capacity (2)"), "{lines:?}");
}

#[test]
fn quota_of_a_nested_cohort_is_borrowed_through_its_parent() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").cohort("root", None).cohort("left", Some("root")).cohort("right", Some("root"));
    cluster.queue(queue("a").cohort("left").flavor("default", 0));
    cluster.queue(queue("b").cohort("right").flavor("default", 4));
    cluster.submit(job("far", "a", 4));
    assert_eq!(cluster.settle(), ["admit far on default x1"]);
    let status = cluster.engine.cluster_queue_status("a").expect("the queue exists");
    assert_eq!(status.flavors_reservation[0].1["cpu"].borrowed, 4000);
}

#[test]
fn cohorts_in_a_cycle_admit_nothing_and_affect_no_other_tree() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").cohort("x", Some("y")).cohort("y", Some("x"));
    cluster.queue(queue("a").cohort("x").flavor("default", 4)).queue(queue("b").flavor("default", 4));
    cluster.submit(job("lost", "a", 1)).submit(job("fine", "b", 1));
    cluster.settle();
    assert_eq!(cluster.running(), ["fine"]);
    cluster.cohort("x", None);
    cluster.settle();
    assert_eq!(cluster.running(), ["fine", "lost"]);
}

#[test]
fn reclaimable_pods_return_their_quota() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 4));
    cluster.submit(job("wide", "a", 1).pods(4, None)).settle();
    cluster.submit(job("next", "a", 2)).settle();
    assert_eq!(cluster.running(), ["wide"]);
    cluster.update("wide", |workload| workload.pod_sets[0].reclaimable = 2);
    cluster.settle();
    assert_eq!(cluster.running(), ["next", "wide"]);
}

#[test]
fn the_second_head_of_a_cycle_waits_for_the_pods_of_the_first() {
    let mut cluster = Cluster::with(|config| config.block_admission_on_pods_ready = true);
    cluster.flavor("default").queue(queue("a").flavor("default", 1)).queue(queue("b").flavor("default", 1));
    cluster.submit(job("first", "a", 1).created(1)).submit(job("second", "b", 1).created(2));
    assert_eq!(
        cluster.cycle(),
        [
            "admit first on default x1",
            "second waits: WaitingForPodsReady: waiting for all admitted workloads to be in PodsReady condition"
        ]
    );
    cluster.update("first", |workload| workload.pods_ready = true);
    assert_eq!(cluster.cycle(), ["admit second on default x1"]);
}

#[test]
fn with_block_admission_nothing_is_admitted_while_pods_are_not_ready() {
    let mut cluster = Cluster::with(|config| config.block_admission_on_pods_ready = true);
    cluster.flavor("default").queue(queue("a").flavor("default", 4));
    cluster.submit(job("one", "a", 1).created(1)).submit(job("two", "a", 1).created(2));
    cluster.settle();
    assert_eq!(cluster.running(), ["one"]);
    cluster.update("one", |workload| workload.pods_ready = true);
    cluster.settle();
    assert_eq!(cluster.running(), ["one", "two"]);
}

#[test]
fn a_workload_that_waits_for_pods_ready_keeps_its_flavor() {
    let mut cluster = Cluster::with(|config| config.block_admission_on_pods_ready = true);
    cluster.flavor("first").flavor("second");
    cluster.queue(queue("a").flavor("first", 9).flavor("second", 9));
    cluster.submit(job("one", "a", 1).created(1)).submit(job("two", "a", 1).created(2));
    assert_eq!(cluster.cycle(), ["admit one on first x1"]);
    let wait = "two waits: WaitingForPodsReady: waiting for all admitted workloads to be in PodsReady condition";
    assert_eq!(cluster.cycle(), [wait]);
    assert_eq!(cluster.cycle(), [wait]);
    cluster.update("one", |workload| workload.pods_ready = true);
    assert_eq!(cluster.cycle(), ["admit two on first x1"]);
}

#[test]
fn a_reservation_on_an_object_counts_from_the_start() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 4));
    cluster.submit(job("known", "a", 3).with(|workload| {
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
    cluster.submit(job("new", "a", 2)).settle();
    assert_eq!(cluster.running(), ["known"]);
    let status = cluster.engine.cluster_queue_status("a").expect("the queue exists");
    assert_eq!((status.pending, status.reserving, status.admitted), (1, 1, 1));
    assert_eq!(cluster.engine.reservation(&WorkloadKey::new("default", "known")).as_deref(), Some("a"));
}

#[test]
fn decisions_do_not_depend_on_the_order_of_events() {
    let build = |backwards: bool| {
        let mut cluster = Cluster::new();
        cluster.flavor("default");
        let mut names: Vec<String> = (0..6).map(|at| format!("q{at}")).collect();
        if backwards {
            names.reverse();
        }
        for name in &names {
            cluster.queue(queue(name).cohort("all").flavor("default", 2));
        }
        for name in &names {
            for at in 0..3 {
                cluster.submit(job(&format!("{name}-{at}"), name, 1 + at).created(at));
            }
        }
        let mut lines = cluster.settle();
        lines.sort();
        (cluster.running(), lines)
    };
    assert_eq!(build(false), build(true));
}

#[test]
fn a_larger_slice_takes_only_the_quota_beyond_the_slice_it_replaces() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    cluster.queue(queue("a").cohort("all").flavor("default", 6)).queue(queue("b").cohort("all").flavor("default", 6));
    cluster.submit(job("old", "a", 5)).settle();
    let slice = |cores| job("new", "a", cores).with(|it| it.replaces = Some(WorkloadKey::new("default", "old")));
    // Seven cores fit while the five of the old slice count as free. After the rival's admission
    // only one core is left for the new slice.
    cluster.submit(slice(7)).submit(job("rival", "b", 6));
    assert_eq!(
        cluster.cycle(),
        [
            "admit rival on default x1",
            "new waits: WaitingForQuota: Workload no longer fits after processing another workload",
        ]
    );
    cluster.finish("rival");
    let outcome = cluster.decide();
    let Some(Verdict::Admit(admit)) = outcome.decisions.first().map(|decision| &decision.verdict) else {
        panic!("{outcome:?}")
    };
    assert_eq!(admit.replaces, Some(WorkloadKey::new("default", "old")));
    cluster.finish("old");
    assert_eq!(cluster.running(), ["new"]);
}

#[test]
fn a_cohort_without_object_keeps_its_queues_but_not_its_parent() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").cohort("team", Some("company"));
    cluster.queue(queue("a").cohort("team").flavor("default", 1)).queue(queue("b").cohort("team").flavor("default", 1));
    cluster.queue(queue("pool").cohort("company").flavor("default", 4));
    cluster.submit(job("two", "a", 2)).settle();
    cluster.apply(Event::CohortRemoved(Name::from("team")));
    cluster.submit(job("three", "b", 3));
    let lines = cluster.cycle();
    assert!(lines[0].contains("maximum capacity (2)"), "{lines:?}");
    cluster.cohort("team", Some("company"));
    assert_eq!(cluster.cycle(), ["admit three on default x1"]);
}
