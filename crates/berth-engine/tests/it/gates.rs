//! What each feature gate and option changes: the same platform decided with it and without it.

use berth_engine::model::{
    BorrowWithinCohort, Eviction, FlavorQuotas, FungibilityPolicy, PreemptionPolicy, Quota, ResourceGroup, Time,
    WorkloadKey,
};
use berth_engine::{Amount, FairSharing, FeatureGates, Name, RequeuingTimestamp};

use crate::cluster::{Job, Platform, Queue, job, queue};

/// Platforms with a gate on and off.
fn both(change: impl Fn(&mut FeatureGates) -> &mut bool) -> [Platform; 2] {
    [true, false].map(|on| Platform::with(|config| *change(&mut config.gates) = on))
}

/// The same under fair sharing.
fn both_fair(change: impl Fn(&mut FeatureGates) -> &mut bool) -> [Platform; 2] {
    [true, false].map(|on| {
        Platform::with(|config| {
            config.fair_sharing = Some(FairSharing::default());
            *change(&mut config.gates) = on;
        })
    })
}

/// What each platform decides first.
fn first_lines(platforms: [Platform; 2], decide: impl Fn(&mut Platform) -> Vec<String>) -> [String; 2] {
    platforms.map(|mut platform| decide(&mut platform).into_iter().next().unwrap_or_default())
}

fn preempts_lower(queue: Queue) -> Queue {
    queue.with(|queue| queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority)
}

#[test]
fn heads_of_one_cohort_go_by_priority_or_by_age() {
    let lines = first_lines(both(|gates| &mut gates.priority_sorting_within_cohort), |platform| {
        platform.flavor("default").queue(queue("pool").cohort("all").flavor("default", 2));
        platform.queue(queue("a").cohort("all").flavor("default", 0));
        platform.queue(queue("b").cohort("all").flavor("default", 0));
        platform.submit(job("old", "a", 2).created(1)).submit(job("urgent", "b", 2).created(2).priority(5));
        platform.cycle()
    });
    assert_eq!(lines, ["admit urgent on default x1", "admit old on default x1"]);
}

#[test]
fn a_preemptor_that_waits_may_go_before_a_higher_priority() {
    let lines = first_lines(both(|gates| &mut gates.prioritize_preemptor_workloads), |platform| {
        platform.flavor("default").queue(queue("pool").cohort("all").flavor("default", 4));
        platform.queue(preempts_lower(queue("a").cohort("all").flavor("default", 0)).with(|queue| {
            queue.preemption.reclaim_within_cohort = PreemptionPolicy::LowerPriority;
            queue.preemption.borrow_within_cohort = BorrowWithinCohort::LowerPriority { max_priority_threshold: None };
        }));
        platform.queue(queue("b").cohort("all").flavor("default", 0));
        platform.submit(job("low", "a", 4)).settle();
        platform.submit(job("high", "a", 4).priority(1)).cycle();
        platform.submit(job("urgent", "b", 4).priority(9)).finish("low");
        platform.cycle()
    });
    assert_eq!(lines, ["admit high on default x1", "admit urgent on default x1"]);
}

#[test]
fn a_boost_counts_with_its_gate() {
    let lines = first_lines(both(|gates| &mut gates.priority_boost), |platform| {
        platform.flavor("default").queue(queue("a").flavor("default", 2));
        platform.submit(job("old", "a", 2).created(1));
        platform.submit(job("boosted", "a", 2).created(2).with(|workload| workload.priority_boost = 5));
        platform.cycle()
    });
    assert_eq!(lines, ["admit boosted on default x1", "admit old on default x1"]);
}

#[test]
fn fewer_pods_than_asked_for_are_a_gate() {
    let lines = first_lines(both(|gates| &mut gates.partial_admission), |platform| {
        platform.flavor("default").queue(queue("a").flavor("default", 7));
        platform.submit(job("wide", "a", 1).pods(10, Some(5)));
        platform.cycle()
    });
    assert_eq!(lines[0], "admit wide on default x7");
    assert!(lines[1].starts_with("wide waits: ExceedsMaxQuota"), "{lines:?}");
}

#[test]
fn pods_that_ended_give_back_with_their_gate() {
    let running = both(|gates| &mut gates.reclaimable_pods).map(|mut platform| {
        platform.flavor("default").queue(queue("a").flavor("default", 4));
        platform.submit(job("wide", "a", 1).pods(4, None)).submit(job("next", "a", 2).created(1)).settle();
        platform.update("wide", |workload| workload.pod_sets[0].reclaimable = 2).settle();
        platform.running().len()
    });
    assert_eq!(running, [2, 1]);
}

#[test]
fn without_fungibility_the_first_flavor_that_fits_is_taken() {
    let lines = first_lines(both(|gates| &mut gates.flavor_fungibility), |platform| {
        platform.flavor("one").flavor("two");
        platform.queue(queue("a").cohort("all").flavor("one", 1).flavor("two", 4).with(|queue| {
            queue.fungibility.when_can_borrow = FungibilityPolicy::TryNextFlavor;
        }));
        platform.queue(queue("b").cohort("all").flavor("one", 9).flavor("two", 0));
        platform.submit(job("job", "a", 2));
        platform.cycle()
    });
    assert_eq!(lines, ["admit job on two x1", "admit job on one x1"]);
}

#[test]
fn a_workload_that_lost_its_flavor_tries_the_next_or_starts_over() {
    let lines = first_lines(both(|gates| &mut gates.flavor_fungibility_preserve_scan_progress), |platform| {
        platform.flavor("one").flavor("two");
        platform.queue(queue("pool").cohort("all").flavor("one", 2).flavor("two", 2));
        platform.queue(queue("a").cohort("all").flavor("one", 0).flavor("two", 0));
        platform.queue(preempts_lower(queue("b").cohort("all").flavor("one", 2).flavor("two", 0)).with(|queue| {
            queue.fungibility.when_can_preempt = FungibilityPolicy::MayStopSearch;
        }));
        platform.submit(job("low", "b", 2)).settle();
        platform.submit(job("rival", "a", 2).priority(9)).submit(job("high", "b", 2).priority(1));
        let lines = platform.cycle();
        assert_eq!(lines[0], "admit rival on one x1");
        assert!(lines[1].ends_with("Workload no longer fits after processing another workload"), "{lines:?}");
        platform.cycle()
    });
    assert_eq!(lines, ["admit high on two x1", "preempt low (InClusterQueue) for high"]);
}

#[test]
fn without_hashing_equivalent_workloads_are_evaluated_one_by_one() {
    let bypassed = both(|gates| &mut gates.scheduling_equivalence_hashing).map(|mut platform| {
        platform.flavor("default").queue(queue("a").flavor("default", 1));
        for name in ["one", "two", "three"] {
            platform.submit(job(name, "a", 2));
        }
        platform.settle().len()
    });
    assert_eq!(bypassed, [1, 3]);
}

#[test]
fn an_admission_gate_holds_back_with_its_gate() {
    let lines = first_lines(both(|gates| &mut gates.admission_gated_by), |platform| {
        platform.flavor("default").queue(queue("a").flavor("default", 2));
        platform.submit(job("gated", "a", 2).with(|workload| workload.admission_gated = true));
        platform.settle()
    });
    assert_eq!(lines, ["", "admit gated on default x1"]);
}

#[test]
fn an_entry_whose_victims_are_claimed_is_recomputed_or_skipped() {
    let second = both(|gates| &mut gates.recompute_assignment_upon_preemption_targets_overlap).map(|mut platform| {
        platform.flavor("default");
        for name in ["a", "b"] {
            platform.queue(queue(name).cohort("all").flavor("default", 2).with(|queue| {
                queue.preemption.reclaim_within_cohort = PreemptionPolicy::Any;
            }));
        }
        platform.queue(queue("c").cohort("all").flavor("default", 0));
        platform.submit(job("guest", "c", 4)).settle();
        platform.submit(job("one", "a", 2).created(1)).submit(job("two", "b", 2).created(2));
        let outcome = platform.decide();
        (crate::cluster::plan_lines(&outcome).swap_remove(1), outcome.skipped_preemptions.len())
    });
    let overlaps = "Workload has overlapping preemption targets with another workload";
    assert_eq!(
        second,
        [
            (
                format!(
                    "two waits: WaitingForPreemptedWorkloads: {overlaps}, but will fit after these preemptions complete"
                ),
                0
            ),
            (format!("two waits: WaitingForQuota: {overlaps}"), 1),
        ]
    );
}

#[test]
fn an_entry_whose_nodes_were_taken_finds_others_in_the_same_cycle() {
    let second = both(|gates| &mut gates.tas_recompute_assignment_within_scheduling_cycle).map(|mut platform| {
        platform.racks("gpu", &[("r1", &[2, 2]), ("r2", &[2, 2])]);
        platform.queue(queue("a").flavor("gpu", 9)).queue(queue("b").flavor("gpu", 9));
        platform.submit(job("one", "a", 2).pods(2, None).required("rack").created(1));
        platform.submit(job("two", "b", 2).pods(2, None).required("rack").created(2));
        platform.cycle().swap_remove(1)
    });
    assert_eq!(
        second,
        [
            "admit two on gpu x2",
            "two waits: WaitingForQuota: Workload no longer fits after processing another workload",
        ]
    );
}

#[test]
fn an_owner_takes_back_its_own_without_comparing_shares() {
    let lines = first_lines(both_fair(|gates| &mut gates.fair_sharing_preempt_within_nominal), |platform| {
        platform.flavor("default").queue(queue("guest").cohort("all").flavor("default", 0));
        platform.queue(queue("owner").cohort("all").flavor("default", 4).with(|queue| {
            queue.preemption.reclaim_within_cohort = PreemptionPolicy::Any;
        }));
        platform.submit(job("borrowed", "guest", 4)).settle();
        platform.submit(job("own", "owner", 4));
        platform.cycle()
    });
    assert_eq!(
        lines,
        ["preempt borrowed (InCohortReclamation) for own", "preempt borrowed (InCohortFairSharing) for own"]
    );
}

#[test]
fn an_entry_within_its_quota_goes_before_one_with_a_smaller_share() {
    let quota = |amount: i64| Quota { nominal: Amount::Bounded(amount), borrowing_limit: None, lending_limit: None };
    let accelerated = |name: &str, cores: i64, gpus: i64| {
        queue(name).cohort("all").with(|queue| {
            let quotas = vec![(Name::from("cpu"), quota(cores * 1000)), (Name::from("gpu"), quota(gpus))];
            let flavors = vec![FlavorQuotas { flavor: Name::from("default"), quotas }];
            queue.resource_groups =
                vec![ResourceGroup { resources: vec![Name::from("cpu"), Name::from("gpu")], flavors }];
        })
    };
    let with_gpus = |job: Job, gpus: i64| {
        job.with(|workload| {
            workload.pod_sets[0].requests.insert("gpu".into(), gpus);
        })
    };
    let lines = first_lines(both_fair(|gates| &mut gates.fair_sharing_prioritize_non_borrowing), |platform| {
        platform.flavor("default").queue(accelerated("pool", 6, 8));
        platform.queue(accelerated("owner", 2, 0)).queue(accelerated("guest", 0, 0));
        platform.submit(job("base", "pool", 6)).submit(with_gpus(job("trains", "owner", 0), 8)).settle();
        // All GPUs are borrowed by the owner; the last two cores are its own.
        platform.submit(job("own", "owner", 2)).submit(job("borrows", "guest", 2));
        platform.cycle()
    });
    assert_eq!(lines, ["admit own on default x1", "admit borrows on default x1"]);
}

#[test]
fn a_slice_replaces_nothing_without_its_gate() {
    let lines = first_lines(both(|gates| &mut gates.elastic_jobs_via_workload_slices), |platform| {
        platform.flavor("default").queue(queue("a").flavor("default", 6));
        platform.submit(job("old", "a", 4)).settle();
        platform.submit(job("new", "a", 6).with(|it| it.replaces = Some(WorkloadKey::new("default", "old"))));
        platform.cycle()
    });
    assert_eq!(lines[0], "admit new on default x1");
    assert!(lines[1].starts_with("new waits: WaitingForQuota"), "{lines:?}");
}

#[test]
fn a_workload_evicted_for_pods_not_ready_queues_by_eviction_or_creation_time() {
    let lines = [RequeuingTimestamp::Eviction, RequeuingTimestamp::Creation].map(|timestamp| {
        let mut platform = Platform::with(|config| config.requeuing_timestamp = timestamp);
        platform.flavor("default").queue(queue("a").flavor("default", 2));
        platform.submit(job("late", "a", 2).created(1).with(|workload| {
            workload.evicted = Some(Eviction { reason: Name::from("PodsReadyTimeout"), at: Time::from_seconds(9) });
        }));
        platform.submit(job("young", "a", 2).created(5));
        platform.cycle().swap_remove(0)
    });
    assert_eq!(lines, ["admit young on default x1", "admit late on default x1"]);
}

#[test]
fn a_victim_of_a_borrower_queues_behind_it_where_priority_does_not_decide() {
    let lines = first_lines(both(|gates| &mut gates.priority_sorting_within_cohort), |platform| {
        platform.flavor("default").queue(queue("a").flavor("default", 2));
        platform.submit(job("victim", "a", 2).created(1).with(|workload| {
            let reason = Name::from("InCohortReclaimWhileBorrowing");
            workload.preempted = Some(Eviction { reason, at: Time::from_seconds(9) });
        }));
        platform.submit(job("young", "a", 2).created(5));
        platform.cycle()
    });
    assert_eq!(lines, ["admit victim on default x1", "admit young on default x1"]);
}
