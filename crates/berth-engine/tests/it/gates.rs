//! The effect of each feature gate and option: the same case is decided with it and without it.

use berth_engine::model::{
    BorrowWithinCohort, Eviction, FlavorQuotas, FungibilityPolicy, PreemptionPolicy, Quota, ResourceGroup, Time,
    WorkloadKey,
};
use berth_engine::{Amount, FairSharing, FeatureGates, Name, RequeuingTimestamp};

use crate::cluster::{Cluster, Job, Queue, job, queue};

/// Two engines, with a gate on and off.
fn both(change: impl Fn(&mut FeatureGates) -> &mut bool) -> [Cluster; 2] {
    [true, false].map(|on| Cluster::with(|config| *change(&mut config.gates) = on))
}

/// Two engines with fair sharing, with a gate on and off.
fn both_fair(change: impl Fn(&mut FeatureGates) -> &mut bool) -> [Cluster; 2] {
    [true, false].map(|on| {
        Cluster::with(|config| {
            config.fair_sharing = Some(FairSharing::default());
            *change(&mut config.gates) = on;
        })
    })
}

/// First decisions of each engine.
fn first_lines(clusters: [Cluster; 2], decide: impl Fn(&mut Cluster) -> Vec<String>) -> [String; 2] {
    clusters.map(|mut cluster| decide(&mut cluster).into_iter().next().unwrap_or_default())
}

fn preempts_lower(queue: Queue) -> Queue {
    queue.with(|queue| queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority)
}

#[test]
fn heads_of_one_cohort_are_ordered_by_priority_or_by_age() {
    let lines = first_lines(both(|gates| &mut gates.priority_sorting_within_cohort), |cluster| {
        cluster.flavor("default").queue(queue("pool").cohort("all").flavor("default", 2));
        cluster.queue(queue("a").cohort("all").flavor("default", 0));
        cluster.queue(queue("b").cohort("all").flavor("default", 0));
        cluster.submit(job("old", "a", 2).created(1)).submit(job("urgent", "b", 2).created(2).priority(5));
        cluster.cycle()
    });
    assert_eq!(lines, ["admit urgent on default x1", "admit old on default x1"]);
}

#[test]
fn a_waiting_preemptor_may_go_before_a_higher_priority() {
    let lines = first_lines(both(|gates| &mut gates.prioritize_preemptor_workloads), |cluster| {
        cluster.flavor("default").queue(queue("pool").cohort("all").flavor("default", 4));
        cluster.queue(preempts_lower(queue("a").cohort("all").flavor("default", 0)).with(|queue| {
            queue.preemption.reclaim_within_cohort = PreemptionPolicy::LowerPriority;
            queue.preemption.borrow_within_cohort = BorrowWithinCohort::LowerPriority { max_priority_threshold: None };
        }));
        cluster.queue(queue("b").cohort("all").flavor("default", 0));
        cluster.submit(job("low", "a", 4)).settle();
        cluster.submit(job("high", "a", 4).priority(1)).cycle();
        cluster.submit(job("urgent", "b", 4).priority(9)).finish("low");
        cluster.cycle()
    });
    assert_eq!(lines, ["admit high on default x1", "admit urgent on default x1"]);
}

#[test]
fn a_priority_boost_counts_only_with_its_gate() {
    let lines = first_lines(both(|gates| &mut gates.priority_boost), |cluster| {
        cluster.flavor("default").queue(queue("a").flavor("default", 2));
        cluster.submit(job("old", "a", 2).created(1));
        cluster.submit(job("boosted", "a", 2).created(2).with(|workload| workload.priority_boost = 5));
        cluster.cycle()
    });
    assert_eq!(lines, ["admit boosted on default x1", "admit old on default x1"]);
}

#[test]
fn partial_admission_depends_on_its_gate() {
    let lines = first_lines(both(|gates| &mut gates.partial_admission), |cluster| {
        cluster.flavor("default").queue(queue("a").flavor("default", 7));
        cluster.submit(job("wide", "a", 1).pods(10, Some(5)));
        cluster.cycle()
    });
    assert_eq!(lines[0], "admit wide on default x7");
    assert!(lines[1].starts_with("wide waits: ExceedsMaxQuota"), "{lines:?}");
}

#[test]
fn ended_pods_return_their_quota_only_with_their_gate() {
    let running = both(|gates| &mut gates.reclaimable_pods).map(|mut cluster| {
        cluster.flavor("default").queue(queue("a").flavor("default", 4));
        cluster.submit(job("wide", "a", 1).pods(4, None)).submit(job("next", "a", 2).created(1)).settle();
        cluster.update("wide", |workload| workload.pod_sets[0].reclaimable = 2).settle();
        cluster.running().len()
    });
    assert_eq!(running, [2, 1]);
}

#[test]
fn without_fungibility_the_first_flavor_that_fits_is_taken() {
    let lines = first_lines(both(|gates| &mut gates.flavor_fungibility), |cluster| {
        cluster.flavor("one").flavor("two");
        cluster.queue(queue("a").cohort("all").flavor("one", 1).flavor("two", 4).with(|queue| {
            queue.fungibility.when_can_borrow = FungibilityPolicy::TryNextFlavor;
        }));
        cluster.queue(queue("b").cohort("all").flavor("one", 9).flavor("two", 0));
        cluster.submit(job("job", "a", 2));
        cluster.cycle()
    });
    assert_eq!(lines, ["admit job on two x1", "admit job on one x1"]);
}

#[test]
fn a_workload_that_lost_its_flavor_tries_the_next_or_starts_over() {
    let lines = first_lines(both(|gates| &mut gates.flavor_fungibility_preserve_scan_progress), |cluster| {
        cluster.flavor("one").flavor("two");
        cluster.queue(queue("pool").cohort("all").flavor("one", 2).flavor("two", 2));
        cluster.queue(queue("a").cohort("all").flavor("one", 0).flavor("two", 0));
        cluster.queue(preempts_lower(queue("b").cohort("all").flavor("one", 2).flavor("two", 0)).with(|queue| {
            queue.fungibility.when_can_preempt = FungibilityPolicy::MayStopSearch;
        }));
        cluster.submit(job("low", "b", 2)).settle();
        cluster.submit(job("rival", "a", 2).priority(9)).submit(job("high", "b", 2).priority(1));
        let lines = cluster.cycle();
        assert_eq!(lines[0], "admit rival on one x1");
        assert!(lines[1].ends_with("Workload no longer fits after processing another workload"), "{lines:?}");
        cluster.cycle()
    });
    assert_eq!(lines, ["admit high on two x1", "preempt low (InClusterQueue) for high"]);
}

#[test]
fn without_hashing_equivalent_workloads_are_evaluated_one_by_one() {
    let bypassed = both(|gates| &mut gates.scheduling_equivalence_hashing).map(|mut cluster| {
        cluster.flavor("default").queue(queue("a").flavor("default", 1));
        for name in ["one", "two", "three"] {
            cluster.submit(job(name, "a", 2));
        }
        cluster.settle().len()
    });
    assert_eq!(bypassed, [1, 3]);
}

#[test]
fn an_admission_gate_holds_a_workload_back_only_with_its_feature_gate() {
    let lines = first_lines(both(|gates| &mut gates.admission_gated_by), |cluster| {
        cluster.flavor("default").queue(queue("a").flavor("default", 2));
        cluster.submit(job("gated", "a", 2).with(|workload| workload.admission_gated = true));
        cluster.settle()
    });
    assert_eq!(lines, ["", "admit gated on default x1"]);
}

#[test]
fn an_entry_whose_victims_are_claimed_is_recomputed_or_skipped() {
    let second = both(|gates| &mut gates.recompute_assignment_upon_preemption_targets_overlap).map(|mut cluster| {
        cluster.flavor("default");
        for name in ["a", "b"] {
            cluster.queue(queue(name).cohort("all").flavor("default", 2).with(|queue| {
                queue.preemption.reclaim_within_cohort = PreemptionPolicy::Any;
            }));
        }
        cluster.queue(queue("c").cohort("all").flavor("default", 0));
        cluster.submit(job("guest", "c", 4)).settle();
        cluster.submit(job("one", "a", 2).created(1)).submit(job("two", "b", 2).created(2));
        let outcome = cluster.decide();
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
fn an_entry_whose_nodes_were_taken_gets_others_in_the_same_cycle() {
    let second = both(|gates| &mut gates.tas_recompute_assignment_within_scheduling_cycle).map(|mut cluster| {
        cluster.racks("gpu", &[("r1", &[2, 2]), ("r2", &[2, 2])]);
        cluster.queue(queue("a").flavor("gpu", 9)).queue(queue("b").flavor("gpu", 9));
        cluster.submit(job("one", "a", 2).pods(2, None).required("rack").created(1));
        cluster.submit(job("two", "b", 2).pods(2, None).required("rack").created(2));
        cluster.cycle().swap_remove(1)
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
fn an_owner_reclaims_its_own_quota_without_comparing_shares() {
    let lines = first_lines(both_fair(|gates| &mut gates.fair_sharing_preempt_within_nominal), |cluster| {
        cluster.flavor("default").queue(queue("guest").cohort("all").flavor("default", 0));
        cluster.queue(queue("owner").cohort("all").flavor("default", 4).with(|queue| {
            queue.preemption.reclaim_within_cohort = PreemptionPolicy::Any;
        }));
        cluster.submit(job("borrowed", "guest", 4)).settle();
        cluster.submit(job("own", "owner", 4));
        cluster.cycle()
    });
    assert_eq!(
        lines,
        ["preempt borrowed (InCohortReclamation) for own", "preempt borrowed (InCohortFairSharing) for own"]
    );
}

#[test]
fn an_entry_within_its_quota_is_decided_before_one_with_a_smaller_share() {
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
    let lines = first_lines(both_fair(|gates| &mut gates.fair_sharing_prioritize_non_borrowing), |cluster| {
        cluster.flavor("default").queue(accelerated("pool", 6, 8));
        cluster.queue(accelerated("owner", 2, 0)).queue(accelerated("guest", 0, 0));
        cluster.submit(job("base", "pool", 6)).submit(with_gpus(job("trains", "owner", 0), 8)).settle();
        // The owner borrows all GPUs. The last two cores are its own.
        cluster.submit(job("own", "owner", 2)).submit(job("borrows", "guest", 2));
        cluster.cycle()
    });
    assert_eq!(lines, ["admit own on default x1", "admit borrows on default x1"]);
}

#[test]
fn an_elastic_slice_replaces_another_only_with_its_gate() {
    let lines = first_lines(both(|gates| &mut gates.elastic_jobs_via_workload_slices), |cluster| {
        cluster.flavor("default").queue(queue("a").flavor("default", 6));
        cluster.submit(job("old", "a", 4)).settle();
        cluster.submit(job("new", "a", 6).with(|it| it.replaces = Some(WorkloadKey::new("default", "old"))));
        cluster.cycle()
    });
    assert_eq!(lines[0], "admit new on default x1");
    assert!(lines[1].starts_with("new waits: WaitingForQuota"), "{lines:?}");
}

#[test]
fn a_workload_evicted_for_pods_ready_timeout_is_ordered_by_eviction_or_creation_time() {
    let lines = [RequeuingTimestamp::Eviction, RequeuingTimestamp::Creation].map(|timestamp| {
        let mut cluster = Cluster::with(|config| config.requeuing_timestamp = timestamp);
        cluster.flavor("default").queue(queue("a").flavor("default", 2));
        cluster.submit(job("late", "a", 2).created(1).with(|workload| {
            workload.evicted = Some(Eviction { reason: Name::from("PodsReadyTimeout"), at: Time::from_seconds(9) });
        }));
        cluster.submit(job("young", "a", 2).created(5));
        cluster.cycle().swap_remove(0)
    });
    assert_eq!(lines, ["admit young on default x1", "admit late on default x1"]);
}

#[test]
fn a_victim_of_a_borrower_is_ordered_behind_it_without_priority_sorting() {
    let lines = first_lines(both(|gates| &mut gates.priority_sorting_within_cohort), |cluster| {
        cluster.flavor("default").queue(queue("a").flavor("default", 2));
        cluster.submit(job("victim", "a", 2).created(1).with(|workload| {
            let reason = Name::from("InCohortReclaimWhileBorrowing");
            workload.preempted = Some(Eviction { reason, at: Time::from_seconds(9) });
        }));
        cluster.submit(job("young", "a", 2).created(5));
        cluster.cycle()
    });
    assert_eq!(lines, ["admit victim on default x1", "admit young on default x1"]);
}
