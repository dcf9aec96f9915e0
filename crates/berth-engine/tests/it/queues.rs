//! Waiting workloads: their places and the order in which they are popped.

use berth_engine::model::{
    Eviction, LocalQueue, PreemptionPolicy, QueueingStrategy, StopPolicy, Time, Workload, WorkloadKey,
};
use berth_engine::{CycleOutcome, EngineConfig, Event, Name};

use crate::cluster::{Cluster, Job, job, plan_lines, queue};

fn one_queue(strategy: QueueingStrategy) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 4).with(|queue| queue.strategy = strategy));
    cluster
}

#[test]
fn workloads_are_popped_by_priority_and_then_by_age() {
    let mut cluster = one_queue(QueueingStrategy::BestEffortFifo);
    cluster.submit(job("young", "a", 1).created(20)).submit(job("old", "a", 1).created(10));
    cluster.submit(job("urgent", "a", 1).created(30).priority(5));
    assert_eq!(
        cluster.settle(),
        ["admit urgent on default x1", "admit old on default x1", "admit young on default x1"]
    );
}

#[test]
fn a_workload_being_deleted_is_skipped_and_keeps_its_quota_until_its_object_is_deleted() {
    let mut cluster = one_queue(QueueingStrategy::StrictFifo);
    cluster.submit(job("running", "a", 3)).settle();
    cluster.submit(job("deleted", "a", 3).created(1)).submit(job("next", "a", 2).created(2));
    for name in ["running", "deleted"] {
        cluster.update(name, |workload| workload.deleting = true);
    }
    // The strict queue skips the workload that is being deleted. Its request does not count as
    // missing quota.
    let decided = cluster.settle();
    assert!(decided.len() == 1 && decided[0].starts_with("next waits: WaitingForQuota"), "{decided:?}");
    assert_eq!(cluster.running(), ["running"]);
    cluster.finish("running");
    assert_eq!(cluster.settle(), ["admit next on default x1"]);
}

#[test]
fn a_strict_queue_is_blocked_by_its_head() {
    let mut cluster = one_queue(QueueingStrategy::StrictFifo);
    cluster.submit(job("running", "a", 3)).settle();
    cluster.submit(job("large", "a", 3).created(1)).submit(job("small", "a", 1).created(2));
    cluster.settle();
    assert_eq!(cluster.running(), ["running"]);
    cluster.finish("running");
    cluster.settle();
    assert_eq!(cluster.running(), ["large", "small"]);
}

#[test]
fn a_preemptor_goes_first_only_in_a_best_effort_queue_and_is_listed_first() {
    for (strategy, order) in
        [(QueueingStrategy::BestEffortFifo, ["preempts", "late"]), (QueueingStrategy::StrictFifo, ["late", "preempts"])]
    {
        let mut cluster = Cluster::new();
        cluster.flavor("default").queue(queue("a").flavor("default", 4).with(|queue| {
            queue.strategy = strategy;
            queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
        }));
        cluster.submit(job("victim", "a", 4)).settle();
        cluster.submit(job("preempts", "a", 4).priority(5));
        assert_eq!(cluster.cycle().len(), 1, "expected one preemption");
        cluster.submit(job("late", "a", 4).priority(9));
        let listed: Vec<String> = cluster.engine.pending("a").iter().map(|it| it.workload.name.to_string()).collect();
        assert_eq!(listed, order, "{strategy:?}");
        let decided = cluster.decide().decisions;
        assert_eq!(&*decided[0].workload.name, order[0], "the first listed workload is decided first: {strategy:?}");
    }
}

#[test]
fn a_best_effort_queue_admits_later_workloads_if_one_does_not_fit() {
    let mut cluster = one_queue(QueueingStrategy::BestEffortFifo);
    cluster.submit(job("running", "a", 3)).settle();
    cluster.submit(job("large", "a", 3).created(1)).submit(job("small", "a", 1).created(2));
    cluster.settle();
    assert_eq!(cluster.running(), ["running", "small"]);
    let positions = cluster.engine.pending("a");
    assert_eq!(positions.len(), 1);
    assert!(positions[0].inadmissible);
}

#[test]
fn equivalent_workloads_become_inadmissible_together_until_something_changes() {
    let mut cluster = one_queue(QueueingStrategy::BestEffortFifo);
    cluster.submit(job("running", "a", 4)).settle();
    for at in 0..5 {
        cluster.submit(job(&format!("twin-{at}"), "a", 2).created(at));
    }
    let outcome = cluster.decide();
    assert_eq!(outcome.decisions.len(), 1);
    assert_eq!(outcome.bypassed.len(), 4);
    assert!(cluster.engine.pending("a").iter().all(|position| position.inadmissible));
    cluster.finish("running");
    assert_eq!(cluster.settle().iter().filter(|line| line.starts_with("admit")).count(), 2);
}

#[test]
fn a_workload_is_not_considered_during_its_back_off() {
    let mut cluster = one_queue(QueueingStrategy::BestEffortFifo);
    cluster.submit(job("evicted", "a", 1).with(|workload| {
        workload.evicted = Some(Eviction { reason: "PodsReadyTimeout".into(), at: Time::from_seconds(900) });
        workload.requeued = Some(false);
        workload.requeue_at = Some(Time::from_seconds(1060));
    }));
    assert_eq!(cluster.settle(), Vec::<String>::new());
    cluster.now = Time::from_seconds(1060);
    cluster.update("evicted", |workload| workload.requeued = Some(true));
    assert_eq!(cluster.settle(), ["admit evicted on default x1"]);
}

#[test]
fn a_back_off_without_the_condition_requeued_ends_when_its_time_is_removed() {
    let mut cluster = one_queue(QueueingStrategy::BestEffortFifo);
    let back_off = |workload: &mut Workload| workload.requeue_at = Some(Time::from_seconds(1060));
    cluster.submit(job("evicted", "a", 1).with(back_off));
    assert_eq!(cluster.settle(), Vec::<String>::new());
    cluster.now = Time::from_seconds(1060);
    cluster.update("evicted", |workload| workload.requeue_at = None);
    assert_eq!(cluster.settle(), ["admit evicted on default x1"]);
}

#[test]
fn a_failed_write_reverts_the_admission() {
    let mut cluster = one_queue(QueueingStrategy::BestEffortFifo);
    cluster.submit(job("unlucky", "a", 3));
    let key = WorkloadKey::new("default", "unlucky");
    cluster.engine.cycle(cluster.now);
    assert_eq!(cluster.running(), ["unlucky"]);
    cluster.apply(Event::AdmissionFailed(key));
    assert_eq!(cluster.running(), Vec::<String>::new());
    assert_eq!(cluster.settle(), ["admit unlucky on default x1"]);
}

#[test]
fn a_failed_admission_write_requeues_the_workloads_it_made_inadmissible() {
    let mut cluster = one_queue(QueueingStrategy::BestEffortFifo);
    cluster.submit(job("unlucky", "a", 3).created(1)).submit(job("aside", "a", 3).created(2));
    let key = WorkloadKey::new("default", "unlucky");
    while cluster.engine.cycle(cluster.now).more {}
    // It is deactivated before its admission is written.
    cluster.update("unlucky", |workload| workload.active = false);
    cluster.apply(Event::AdmissionFailed(key));
    cluster.now = cluster.engine.next_wakeup().expect("a flush of the others is due");
    assert_eq!(cluster.settle(), ["admit aside on default x1"]);
}

#[test]
fn an_older_version_of_the_object_does_not_undo_an_assumed_admission() {
    let mut cluster = one_queue(QueueingStrategy::BestEffortFifo);
    cluster.submit(job("calm", "a", 3));
    cluster.engine.cycle(cluster.now);
    cluster.update("calm", |workload| workload.generation += 1);
    assert_eq!(cluster.running(), ["calm"]);
}

#[test]
fn a_workload_is_queued_when_its_local_queue_is_created_later() {
    let mut cluster = Cluster::new();
    cluster.submit(job("early", "a", 1));
    assert_eq!(cluster.settle(), Vec::<String>::new());
    cluster.flavor("default").queue(queue("a").flavor("default", 4));
    assert_eq!(cluster.settle(), ["admit early on default x1"]);
}

#[test]
fn inadmissible_workloads_are_tried_again_if_a_running_workload_loses_priority() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 2).with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
    }));
    cluster.submit(job("running", "a", 2).priority(5)).settle();
    cluster.submit(job("waiting", "a", 2).priority(5));
    cluster.settle();
    assert!(cluster.cycle().is_empty(), "a decision was made without an event");
    cluster.update("running", |workload| workload.priority = 4);
    assert_eq!(cluster.cycle(), ["preempt running (InClusterQueue) for waiting"]);
}

#[test]
fn a_queue_without_its_flavor_is_skipped() {
    let mut cluster = Cluster::new();
    cluster.queue(queue("a").flavor("missing", 4)).submit(job("stuck", "a", 1));
    assert_eq!(cluster.settle(), Vec::<String>::new());
    let status = cluster.engine.cluster_queue_status("a").expect("the queue exists");
    assert_eq!(status.readiness.reason(), "FlavorNotFound");
    assert_eq!(status.pending, 1);
    cluster.flavor("missing");
    assert_eq!(cluster.settle(), ["admit stuck on missing x1"]);
}

#[test]
fn freed_quota_wakes_workloads_of_its_own_tree_only() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    for (name, cohort) in [("a", "one"), ("b", "one"), ("c", "other")] {
        cluster.queue(queue(name).cohort(cohort).flavor("default", 1));
    }
    cluster.submit(job("runs-a", "a", 2)).submit(job("runs-c", "c", 1)).settle();
    cluster.submit(job("waits-b", "b", 2)).submit(job("waits-c", "c", 1)).settle();
    cluster.finish("runs-a");
    assert_eq!(cluster.settle(), ["admit waits-b on default x1"]);
}

#[test]
fn an_unchanged_inadmissible_workload_is_not_evaluated_again() {
    let mut cluster = one_queue(QueueingStrategy::BestEffortFifo);
    cluster.submit(job("running", "a", 4)).settle();
    cluster.submit(job("waiting", "a", 2)).settle();
    // It is still in the class that did not fit.
    cluster.update("waiting", |workload| workload.generation += 1);
    assert_eq!(cluster.settle(), Vec::<String>::new());
    cluster.update("waiting", |workload| {
        workload.generation += 1;
        workload.pod_sets[0].requests.insert("cpu".into(), 3000);
    });
    assert_eq!(cluster.settle().len(), 1);
}

#[test]
fn holders_are_listed_in_parts_with_their_total_number() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 9)).queue(queue("b").flavor("default", 9));
    for (name, queue) in [("one", "a"), ("two", "a"), ("other", "b"), ("three", "a")] {
        cluster.submit(job(name, queue, 2)).settle();
    }
    let part = |cluster: &Cluster, from: usize, to: usize| {
        let (holders, total) = cluster.engine.holders_part("a", from..to).expect("the queue exists");
        (holders.iter().map(|it| it.workload.name.to_string()).collect::<Vec<_>>(), total)
    };
    let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(part(&cluster, 0, 2), (named(&["one", "two"]), 3));
    assert_eq!(part(&cluster, 2, 9), (named(&["three"]), 3));
    assert_eq!(part(&cluster, 3, 9), (named(&[]), 3));
    let (holders, _) = cluster.engine.holders_part("a", 0..1).expect("the queue exists");
    assert_eq!(holders[0].holds, [("default".into(), "cpu".into(), 2000)]);
    assert!(holders[0].admitted && holders[0].since.is_some());
    assert_eq!(cluster.engine.holders_part("none", 0..9), None);
    cluster.finish("two");
    assert_eq!(part(&cluster, 0, 9), (named(&["one", "three"]), 2));
}

#[test]
fn a_part_of_the_pending_list_equals_that_part_of_the_whole_list() {
    let mut cluster = one_queue(QueueingStrategy::BestEffortFifo);
    cluster.local("other", "a");
    cluster.submit(job("running", "a", 4)).settle();
    for at in 0..7 {
        let queue = if at % 3 == 0 { "other" } else { "a" };
        cluster.submit(job(&format!("early-{at}"), queue, 2).created(50 - at).priority(at % 2));
    }
    // The workloads `early-…` become inadmissible now. Those submitted after this line are not
    // evaluated.
    cluster.settle();
    for at in 0..5 {
        let queue = if at % 2 == 0 { "other" } else { "a" };
        cluster.submit(job(&format!("late-{at}"), queue, 1 + at % 3).created(90 - at));
    }
    let whole = cluster.engine.pending("a");
    assert_eq!(whole.len(), 12);
    assert!(whole.iter().any(|it| it.inadmissible) && whole.iter().any(|it| !it.inadmissible));
    for local in ["a", "other"] {
        let of_local: Vec<_> = whole.iter().filter(|it| &*it.local_queue == local).cloned().collect();
        for (from, to) in [(0, 1), (0, 4), (2, 5), (3, 3), (4, 99), (11, 12), (12, 20), (0, usize::MAX)] {
            let part = |list: &[_]| list[from.min(list.len())..to.min(list.len())].to_vec();
            assert_eq!(cluster.engine.pending_part("a", None, from..to), part(&whole));
            let local_queue = Some(("default", local));
            assert_eq!(cluster.engine.pending_part("a", local_queue, from..to), part(&of_local));
        }
    }
    assert_eq!(cluster.engine.pending_part("a", Some(("default", "none")), 0..9), []);
    for (at, position) in whole.iter().enumerate() {
        let found = cluster.engine.explain(&position.workload, cluster.now).expect("the workload waits");
        let berth_engine::Standing::Waiting { position: own, ahead, .. } = found.standing else {
            panic!("the workload does not wait")
        };
        assert_eq!(own, *position);
        assert_eq!(ahead, whole[..at].iter().map(|it| it.workload.clone()).collect::<Vec<_>>());
    }
}

#[test]
fn figures_count_classes_local_queues_and_inadmissible_workloads() {
    let mut cluster = one_queue(QueueingStrategy::BestEffortFifo);
    cluster.local("other", "a");
    cluster.submit(job("running", "a", 4)).settle();
    for at in 0..3 {
        cluster.submit(job(&format!("a-{at}"), "a", 2).created(10 + at));
        cluster.submit(job(&format!("other-{at}"), "other", 3).created(20 + at));
    }
    cluster.submit(job("other-small", "other", 2).created(30));
    let figures = |cluster: &Cluster| {
        let queue = cluster.engine.cluster_queue_figures("a").expect("the object exists");
        let local = |name| cluster.engine.local_queue_status("default", name).expect("the object exists").inadmissible;
        let kinds = (queue.kinds_active, queue.kinds_inadmissible);
        let asked = queue.pending_requests.values().copied().collect::<Vec<_>>();
        (queue.status.pending, queue.inadmissible, kinds, asked, [local("a"), local("other")])
    };
    assert_eq!(figures(&cluster), (7, 0, (2, 0), vec![17_000], [0, 0]));
    cluster.settle();
    assert_eq!(figures(&cluster), (7, 7, (0, 2), vec![17_000], [3, 4]));
    // Another workload of an inadmissible class becomes inadmissible with it. A workload with a
    // running back-off is listed by itself.
    cluster.submit(job("more", "other", 3).created(40));
    cluster.submit(job("later", "a", 2).created(41).with(|workload| workload.requeued = Some(false)));
    assert_eq!(figures(&cluster), (9, 9, (0, 2), vec![22_000], [4, 5]));
    // Now it requests something else, and through another queue.
    cluster.update("later", |workload| {
        workload.queue = "other".into();
        workload.pod_sets[0].count = 2;
        workload.generation += 1;
    });
    assert_eq!(figures(&cluster), (9, 9, (0, 3), vec![24_000], [3, 6]));
    cluster.finish("running");
    cluster.settle();
    assert_eq!(cluster.running(), ["a-0", "a-1"]);
    assert_eq!(figures(&cluster), (7, 7, (0, 3), vec![20_000], [1, 6]));
    cluster.apply(Event::WorkloadRemoved(WorkloadKey::new("default", "later")));
    assert_eq!(figures(&cluster), (6, 6, (0, 2), vec![16_000], [1, 5]));
}

#[test]
fn cohort_figures_give_quota_and_reservations_below() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").cohort("root", None).cohort("team", Some("root"));
    cluster.queue(queue("a").cohort("team").limited("default", 4, Some(2), Some(1)));
    cluster.queue(queue("b").cohort("root").flavor("default", 3)).queue(queue("alone").flavor("default", 9));
    cluster.submit(job("one", "a", 3)).submit(job("two", "b", 2)).settle();
    let lines = cluster.engine.cohort_figures().into_iter().map(|cohort| {
        let quotas = cohort.quotas.iter().map(|(_, _, quota, reserved)| (quota.saturated() / 1000, reserved / 1000));
        let quotas: Vec<_> = quotas.collect();
        let parent = cohort.parent.as_deref().unwrap_or("-").to_owned();
        format!("{} below {parent} of {}: {} admitted, {quotas:?}", cohort.name, cohort.root, cohort.admitted)
    });
    assert_eq!(
        lines.collect::<Vec<_>>(),
        ["root below - of root: 2 admitted, [(4, 5)]", "team below root of root: 1 admitted, [(1, 3)]"]
    );
    let figures = cluster.engine.cluster_queue_figures("a").expect("the object exists");
    assert_eq!((figures.cohort.as_deref(), figures.root.as_deref()), (Some("team"), Some("root")));
    let quota = &figures.quotas[0];
    assert_eq!(
        (quota.nominal.saturated(), quota.borrowing_limit.map(berth_engine::Amount::saturated)),
        (4000, Some(2000))
    );
    let alone = cluster.engine.cluster_queue_figures("alone").expect("the object exists");
    assert_eq!((alone.cohort, alone.root, alone.quotas[0].lending_limit), (None, None, None));
    assert_eq!(cluster.engine.cohorts_above("a"), ["team".into(), "root".into()]);
}

#[test]
fn an_evicted_workload_that_joins_an_inadmissible_class_shows_its_reason() {
    let mut cluster = one_queue(QueueingStrategy::BestEffortFifo);
    cluster.submit(job("running", "a", 4)).submit(job("late", "a", 3).created(5)).settle();
    // Its back-off kept it from being tried when another workload of its class did not fit.
    let evicted = |workload: &mut berth_engine::model::Workload| {
        workload.evicted = Some(Eviction { reason: "PodsReadyTimeout".into(), at: Time::from_seconds(0) });
        workload.requeued = Some(false);
    };
    cluster.submit(job("evicted", "a", 3).created(1).with(evicted)).submit(job("new", "a", 3).created(9));
    cluster.settle();
    cluster.update("evicted", |workload| workload.requeued = Some(true));
    assert!(cluster.engine.pending("a").iter().all(|position| position.inadmissible));
    let reasons = |cluster: &mut Cluster| {
        let outcome = cluster.decide();
        outcome
            .bypassed
            .into_iter()
            .map(|(key, reason)| format!("{}: {}", key.name, reason.as_str()))
            .collect::<Vec<_>>()
    };
    assert_eq!(reasons(&mut cluster), ["evicted: WaitingForQuota"]);
    assert_eq!(reasons(&mut cluster), [""; 0], "once");
}

/// Decides after a job was submitted whose class is inadmissible.
fn after_an_equivalent_one_failed(change: impl FnOnce(&mut EngineConfig), late: Job) -> CycleOutcome {
    let mut cluster = Cluster::with(change);
    cluster.flavor("default").queue(queue("a").flavor("default", 4));
    let elsewhere = LocalQueue {
        namespace: Name::from("elsewhere"),
        name: Name::from("a"),
        cluster_queue: Name::from("a"),
        stop_policy: StopPolicy::None,
        fair_weight_milli: 1000,
    };
    cluster.apply(Event::LocalQueueUpserted(elsewhere));
    cluster.submit(job("running", "a", 4)).submit(job("failed", "a", 3).created(1)).settle();
    cluster.submit(late).decide()
}

#[test]
fn a_workload_that_arrives_after_an_equivalent_one_failed_reports_its_reason_where_that_is_configured() {
    let late = || job("late", "a", 3).created(2);
    let reports = |outcome: CycleOutcome| -> Vec<String> {
        assert!(outcome.decisions.is_empty(), "{outcome:?}");
        outcome.bypassed.into_iter().map(|(key, reason)| format!("{}: {}", key.name, reason.as_str())).collect()
    };
    assert_eq!(reports(after_an_equivalent_one_failed(|_| {}, late())), [""; 0], "as in Kueue");
    let config = |config: &mut EngineConfig| config.report_represented = true;
    assert_eq!(reports(after_an_equivalent_one_failed(config, late())), ["late: WaitingForQuota"]);
}

#[test]
fn a_workload_whose_namespace_is_not_selected_reports_that_and_not_the_reason_of_its_class() {
    let late = job("late", "a", 3).created(2).with(|workload| workload.key.namespace = Name::from("elsewhere"));
    let outcome = after_an_equivalent_one_failed(|config| config.report_represented = true, late);
    let lines = plan_lines(&outcome);
    assert!(lines.len() == 1 && lines[0].starts_with("late waits: Misconfigured: "), "{lines:?}");
    assert!(outcome.bypassed.is_empty());
}
