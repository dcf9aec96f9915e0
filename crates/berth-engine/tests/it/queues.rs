//! Where workloads wait, and in which order they are popped.

use berth_engine::Event;
use berth_engine::model::{Eviction, PreemptionPolicy, QueueingStrategy, Time, WorkloadKey};

use crate::cluster::{Platform, job, queue};

fn one_queue(strategy: QueueingStrategy) -> Platform {
    let mut platform = Platform::new();
    platform.flavor("default").queue(queue("a").flavor("default", 4).with(|queue| queue.strategy = strategy));
    platform
}

#[test]
fn higher_priority_goes_first_then_the_older_one() {
    let mut platform = one_queue(QueueingStrategy::BestEffortFifo);
    platform.submit(job("young", "a", 1).created(20)).submit(job("old", "a", 1).created(10));
    platform.submit(job("urgent", "a", 1).created(30).priority(5));
    assert_eq!(
        platform.settle(),
        ["admit urgent on default x1", "admit old on default x1", "admit young on default x1"]
    );
}

#[test]
fn a_workload_that_is_deleted_is_passed_over_and_keeps_its_quota_until_it_is_gone() {
    let mut platform = one_queue(QueueingStrategy::StrictFifo);
    platform.submit(job("running", "a", 3)).settle();
    platform.submit(job("deleted", "a", 3).created(1)).submit(job("next", "a", 2).created(2));
    for name in ["running", "deleted"] {
        platform.update(name, |workload| workload.deleting = true);
    }
    // The strict queue gets past the deleted one, and what that asks for is not said to be
    // missing.
    let decided = platform.settle();
    assert!(decided.len() == 1 && decided[0].starts_with("next waits: WaitingForQuota"), "{decided:?}");
    assert_eq!(platform.running(), ["running"]);
    platform.finish("running");
    assert_eq!(platform.settle(), ["admit next on default x1"]);
}

#[test]
fn a_strict_queue_is_blocked_by_its_head() {
    let mut platform = one_queue(QueueingStrategy::StrictFifo);
    platform.submit(job("running", "a", 3)).settle();
    platform.submit(job("large", "a", 3).created(1)).submit(job("small", "a", 1).created(2));
    platform.settle();
    assert_eq!(platform.running(), ["running"]);
    platform.finish("running");
    platform.settle();
    assert_eq!(platform.running(), ["large", "small"]);
}

#[test]
fn a_preemptor_goes_first_only_in_a_best_effort_queue_and_is_listed_so() {
    for (strategy, order) in
        [(QueueingStrategy::BestEffortFifo, ["preempts", "late"]), (QueueingStrategy::StrictFifo, ["late", "preempts"])]
    {
        let mut platform = Platform::new();
        platform.flavor("default").queue(queue("a").flavor("default", 4).with(|queue| {
            queue.strategy = strategy;
            queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
        }));
        platform.submit(job("victim", "a", 4)).settle();
        platform.submit(job("preempts", "a", 4).priority(5));
        assert_eq!(platform.cycle().len(), 1, "the preemption is issued");
        platform.submit(job("late", "a", 4).priority(9));
        let listed: Vec<String> = platform.engine.pending("a").iter().map(|it| it.workload.name.to_string()).collect();
        assert_eq!(listed, order, "{strategy:?}");
        let decided = platform.decide().decisions;
        assert_eq!(&*decided[0].workload.name, order[0], "the first listed workload is decided first: {strategy:?}");
    }
}

#[test]
fn a_best_effort_queue_lets_others_pass_a_workload_that_does_not_fit() {
    let mut platform = one_queue(QueueingStrategy::BestEffortFifo);
    platform.submit(job("running", "a", 3)).settle();
    platform.submit(job("large", "a", 3).created(1)).submit(job("small", "a", 1).created(2));
    platform.settle();
    assert_eq!(platform.running(), ["running", "small"]);
    let positions = platform.engine.pending("a");
    assert_eq!(positions.len(), 1);
    assert!(positions[0].inadmissible);
}

#[test]
fn equivalent_workloads_become_inadmissible_together_until_something_changes() {
    let mut platform = one_queue(QueueingStrategy::BestEffortFifo);
    platform.submit(job("running", "a", 4)).settle();
    for at in 0..5 {
        platform.submit(job(&format!("twin-{at}"), "a", 2).created(at));
    }
    let outcome = platform.decide();
    assert_eq!(outcome.decisions.len(), 1);
    assert_eq!(outcome.bypassed.len(), 4);
    assert!(platform.engine.pending("a").iter().all(|position| position.inadmissible));
    platform.finish("running");
    assert_eq!(platform.settle().iter().filter(|line| line.starts_with("admit")).count(), 2);
}

#[test]
fn a_workload_in_back_off_waits_until_it_is_over() {
    let mut platform = one_queue(QueueingStrategy::BestEffortFifo);
    platform.submit(job("evicted", "a", 1).with(|workload| {
        workload.evicted = Some(Eviction { reason: "PodsReadyTimeout".into(), at: Time::from_seconds(900) });
        workload.requeued = Some(false);
        workload.requeue_at = Some(Time::from_seconds(1060));
    }));
    assert_eq!(platform.settle(), Vec::<String>::new());
    platform.now = Time::from_seconds(1060);
    platform.update("evicted", |workload| workload.requeued = Some(true));
    assert_eq!(platform.settle(), ["admit evicted on default x1"]);
}

#[test]
fn a_failed_write_takes_the_admission_back() {
    let mut platform = one_queue(QueueingStrategy::BestEffortFifo);
    platform.submit(job("unlucky", "a", 3));
    let key = WorkloadKey::new("default", "unlucky");
    platform.engine.cycle(platform.now);
    assert_eq!(platform.running(), ["unlucky"]);
    platform.apply(Event::AdmissionFailed(key));
    assert_eq!(platform.running(), Vec::<String>::new());
    assert_eq!(platform.settle(), ["admit unlucky on default x1"]);
}

#[test]
fn a_failed_admission_write_requeues_the_workloads_it_made_inadmissible() {
    let mut platform = one_queue(QueueingStrategy::BestEffortFifo);
    platform.submit(job("unlucky", "a", 3).created(1)).submit(job("aside", "a", 3).created(2));
    let key = WorkloadKey::new("default", "unlucky");
    while platform.engine.cycle(platform.now).more {}
    // Switched off before it was written that it is in.
    platform.update("unlucky", |workload| workload.active = false);
    platform.apply(Event::AdmissionFailed(key));
    platform.now = platform.engine.next_wakeup().expect("a look at the others is due");
    assert_eq!(platform.settle(), ["admit aside on default x1"]);
}

#[test]
fn an_older_version_of_the_object_does_not_undo_an_assumed_admission() {
    let mut platform = one_queue(QueueingStrategy::BestEffortFifo);
    platform.submit(job("calm", "a", 3));
    platform.engine.cycle(platform.now);
    platform.update("calm", |workload| workload.generation += 1);
    assert_eq!(platform.running(), ["calm"]);
}

#[test]
fn a_workload_whose_local_queue_comes_later_is_queued_then() {
    let mut platform = Platform::new();
    platform.submit(job("early", "a", 1));
    assert_eq!(platform.settle(), Vec::<String>::new());
    platform.flavor("default").queue(queue("a").flavor("default", 4));
    assert_eq!(platform.settle(), ["admit early on default x1"]);
}

#[test]
fn a_running_workload_that_becomes_less_important_gives_others_another_chance() {
    let mut platform = Platform::new();
    platform.flavor("default").queue(queue("a").flavor("default", 2).with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
    }));
    platform.submit(job("running", "a", 2).priority(5)).settle();
    platform.submit(job("waiting", "a", 2).priority(5));
    platform.settle();
    assert!(platform.cycle().is_empty(), "nothing changes until something happens");
    platform.update("running", |workload| workload.priority = 4);
    assert_eq!(platform.cycle(), ["preempt running (InClusterQueue) for waiting"]);
}

#[test]
fn a_queue_without_its_flavor_is_skipped() {
    let mut platform = Platform::new();
    platform.queue(queue("a").flavor("missing", 4)).submit(job("stuck", "a", 1));
    assert_eq!(platform.settle(), Vec::<String>::new());
    let status = platform.engine.cluster_queue_status("a").expect("the queue exists");
    assert_eq!(status.readiness.reason(), "FlavorNotFound");
    assert_eq!(status.pending, 1);
    platform.flavor("missing");
    assert_eq!(platform.settle(), ["admit stuck on missing x1"]);
}

#[test]
fn what_frees_quota_wakes_its_own_tree_and_no_other() {
    let mut platform = Platform::new();
    platform.flavor("default");
    for (name, cohort) in [("a", "one"), ("b", "one"), ("c", "other")] {
        platform.queue(queue(name).cohort(cohort).flavor("default", 1));
    }
    platform.submit(job("runs-a", "a", 2)).submit(job("runs-c", "c", 1)).settle();
    platform.submit(job("waits-b", "b", 2)).submit(job("waits-c", "c", 1)).settle();
    platform.finish("runs-a");
    assert_eq!(platform.settle(), ["admit waits-b on default x1"]);
}

#[test]
fn an_unchanged_inadmissible_workload_is_not_evaluated_again() {
    let mut platform = one_queue(QueueingStrategy::BestEffortFifo);
    platform.submit(job("running", "a", 4)).settle();
    platform.submit(job("waiting", "a", 2)).settle();
    // It is still of the class that was found not to fit.
    platform.update("waiting", |workload| workload.generation += 1);
    assert_eq!(platform.settle(), Vec::<String>::new());
    platform.update("waiting", |workload| {
        workload.generation += 1;
        workload.pod_sets[0].requests.insert("cpu".into(), 3000);
    });
    assert_eq!(platform.settle().len(), 1);
}

#[test]
fn holders_are_listed_part_by_part_with_their_number() {
    let mut platform = Platform::new();
    platform.flavor("default").queue(queue("a").flavor("default", 9)).queue(queue("b").flavor("default", 9));
    for (name, queue) in [("one", "a"), ("two", "a"), ("other", "b"), ("three", "a")] {
        platform.submit(job(name, queue, 2)).settle();
    }
    let part = |platform: &Platform, from: usize, to: usize| {
        let (holders, total) = platform.engine.holders_part("a", from..to).expect("there is such a queue");
        (holders.iter().map(|it| it.workload.name.to_string()).collect::<Vec<_>>(), total)
    };
    let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(part(&platform, 0, 2), (named(&["one", "two"]), 3));
    assert_eq!(part(&platform, 2, 9), (named(&["three"]), 3));
    assert_eq!(part(&platform, 3, 9), (named(&[]), 3));
    let (holders, _) = platform.engine.holders_part("a", 0..1).expect("there is such a queue");
    assert_eq!(holders[0].holds, [("default".into(), "cpu".into(), 2000)]);
    assert!(holders[0].admitted && holders[0].since.is_some());
    assert_eq!(platform.engine.holders_part("none", 0..9), None);
    platform.finish("two");
    assert_eq!(part(&platform, 0, 9), (named(&["one", "three"]), 2));
}

#[test]
fn a_part_of_the_pending_list_equals_that_part_of_the_whole() {
    let mut platform = one_queue(QueueingStrategy::BestEffortFifo);
    platform.local("other", "a");
    platform.submit(job("running", "a", 4)).settle();
    for at in 0..7 {
        let queue = if at % 3 == 0 { "other" } else { "a" };
        platform.submit(job(&format!("early-{at}"), queue, 2).created(50 - at).priority(at % 2));
    }
    // The former are inadmissible; the latter have not been evaluated.
    platform.settle();
    for at in 0..5 {
        let queue = if at % 2 == 0 { "other" } else { "a" };
        platform.submit(job(&format!("late-{at}"), queue, 1 + at % 3).created(90 - at));
    }
    let whole = platform.engine.pending("a");
    assert_eq!(whole.len(), 12);
    assert!(whole.iter().any(|it| it.inadmissible) && whole.iter().any(|it| !it.inadmissible));
    for local in ["a", "other"] {
        let of_local: Vec<_> = whole.iter().filter(|it| &*it.local_queue == local).cloned().collect();
        for (from, to) in [(0, 1), (0, 4), (2, 5), (3, 3), (4, 99), (11, 12), (12, 20), (0, usize::MAX)] {
            let part = |list: &[_]| list[from.min(list.len())..to.min(list.len())].to_vec();
            assert_eq!(platform.engine.pending_part("a", None, from..to), part(&whole));
            let local_queue = Some(("default", local));
            assert_eq!(platform.engine.pending_part("a", local_queue, from..to), part(&of_local));
        }
    }
    assert_eq!(platform.engine.pending_part("a", Some(("default", "none")), 0..9), []);
    for (at, position) in whole.iter().enumerate() {
        let found = platform.engine.explain(&position.workload, platform.now).expect("it waits");
        let berth_engine::Standing::Waiting { position: own, ahead, .. } = found.standing else { panic!("it waits") };
        assert_eq!(own, *position);
        assert_eq!(ahead, whole[..at].iter().map(|it| it.workload.clone()).collect::<Vec<_>>());
    }
}

#[test]
fn figures_count_classes_local_queues_and_inadmissible_workloads() {
    let mut platform = one_queue(QueueingStrategy::BestEffortFifo);
    platform.local("other", "a");
    platform.submit(job("running", "a", 4)).settle();
    for at in 0..3 {
        platform.submit(job(&format!("a-{at}"), "a", 2).created(10 + at));
        platform.submit(job(&format!("other-{at}"), "other", 3).created(20 + at));
    }
    platform.submit(job("other-small", "other", 2).created(30));
    let figures = |platform: &Platform| {
        let queue = platform.engine.cluster_queue_figures("a").expect("it exists");
        let local = |name| platform.engine.local_queue_status("default", name).expect("it exists").inadmissible;
        let kinds = (queue.kinds_active, queue.kinds_inadmissible);
        let asked = queue.pending_requests.values().copied().collect::<Vec<_>>();
        (queue.status.pending, queue.inadmissible, kinds, asked, [local("a"), local("other")])
    };
    assert_eq!(figures(&platform), (7, 0, (2, 0), vec![17_000], [0, 0]));
    platform.settle();
    assert_eq!(figures(&platform), (7, 7, (0, 2), vec![17_000], [3, 4]));
    // Another workload of an inadmissible class becomes inadmissible with it; one with a running
    // back-off is listed by itself.
    platform.submit(job("more", "other", 3).created(40));
    platform.submit(job("later", "a", 2).created(41).with(|workload| workload.requeued = Some(false)));
    assert_eq!(figures(&platform), (9, 9, (0, 2), vec![22_000], [4, 5]));
    // It asks for something else now, and through another queue.
    platform.update("later", |workload| {
        workload.queue = "other".into();
        workload.pod_sets[0].count = 2;
        workload.generation += 1;
    });
    assert_eq!(figures(&platform), (9, 9, (0, 3), vec![24_000], [3, 6]));
    platform.finish("running");
    platform.settle();
    assert_eq!(platform.running(), ["a-0", "a-1"]);
    assert_eq!(figures(&platform), (7, 7, (0, 3), vec![20_000], [1, 6]));
    platform.apply(Event::WorkloadRemoved(WorkloadKey::new("default", "later")));
    assert_eq!(figures(&platform), (6, 6, (0, 2), vec![16_000], [1, 5]));
}

#[test]
fn cohort_figures_give_quota_and_reservations_below() {
    let mut platform = Platform::new();
    platform.flavor("default").cohort("root", None).cohort("team", Some("root"));
    platform.queue(queue("a").cohort("team").limited("default", 4, Some(2), Some(1)));
    platform.queue(queue("b").cohort("root").flavor("default", 3)).queue(queue("alone").flavor("default", 9));
    platform.submit(job("one", "a", 3)).submit(job("two", "b", 2)).settle();
    let lines = platform.engine.cohort_figures().into_iter().map(|cohort| {
        let quotas = cohort.quotas.iter().map(|(_, _, quota, reserved)| (quota.saturated() / 1000, reserved / 1000));
        let quotas: Vec<_> = quotas.collect();
        let parent = cohort.parent.as_deref().unwrap_or("-").to_owned();
        format!("{} below {parent} of {}: {} admitted, {quotas:?}", cohort.name, cohort.root, cohort.admitted)
    });
    assert_eq!(
        lines.collect::<Vec<_>>(),
        ["root below - of root: 2 admitted, [(4, 5)]", "team below root of root: 1 admitted, [(1, 3)]"]
    );
    let figures = platform.engine.cluster_queue_figures("a").expect("it exists");
    assert_eq!((figures.cohort.as_deref(), figures.root.as_deref()), (Some("team"), Some("root")));
    let quota = &figures.quotas[0];
    assert_eq!(
        (quota.nominal.saturated(), quota.borrowing_limit.map(berth_engine::Amount::saturated)),
        (4000, Some(2000))
    );
    let alone = platform.engine.cluster_queue_figures("alone").expect("it exists");
    assert_eq!((alone.cohort, alone.root, alone.quotas[0].lending_limit), (None, None, None));
    assert_eq!(platform.engine.cohorts_above("a"), ["team".into(), "root".into()]);
}

#[test]
fn an_evicted_workload_that_joins_an_inadmissible_class_gets_its_reason() {
    let mut platform = one_queue(QueueingStrategy::BestEffortFifo);
    platform.submit(job("running", "a", 4)).submit(job("late", "a", 3).created(5)).settle();
    // Its back-off kept it from being tried while another workload of its class did not fit.
    let evicted = |workload: &mut berth_engine::model::Workload| {
        workload.evicted = Some(Eviction { reason: "PodsReadyTimeout".into(), at: Time::from_seconds(0) });
        workload.requeued = Some(false);
    };
    platform.submit(job("evicted", "a", 3).created(1).with(evicted)).submit(job("new", "a", 3).created(9));
    platform.settle();
    platform.update("evicted", |workload| workload.requeued = Some(true));
    assert!(platform.engine.pending("a").iter().all(|position| position.inadmissible));
    let reasons = |platform: &mut Platform| {
        let outcome = platform.decide();
        outcome
            .bypassed
            .into_iter()
            .map(|(key, reason)| format!("{}: {}", key.name, reason.as_str()))
            .collect::<Vec<_>>()
    };
    assert_eq!(reasons(&mut platform), ["evicted: WaitingForQuota"]);
    assert_eq!(reasons(&mut platform), [""; 0], "once");
}
