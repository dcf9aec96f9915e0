//! Explanations of workloads, as records and as text.

use berth_engine::model::{
    ClusterQueue, Eviction, FlavorQuotas, LocalQueue, PreemptionPolicy, Quota, ResourceGroup, StopPolicy, Time,
    Workload, WorkloadKey,
};
use berth_engine::{
    Amount, AssignmentMode, Event, Explanation, FairSharing, Finding, Name, NotQueued, Outlook, PendingReason,
    Preemptible, SearchOutcome, Standing, TopologyProblem, Verdict, VictimFate, text,
};

use crate::cluster::{Cluster, HOSTNAME, job, queue};

fn explain(cluster: &mut Cluster, name: &str) -> Explanation {
    let now = cluster.now;
    cluster.engine.explain(&WorkloadKey::new("default", name), now).expect("the test submitted the workload")
}

fn outlook(cluster: &mut Cluster, name: &str) -> Outlook {
    explain(cluster, name).verdict.expect("the workload waits")
}

fn preemptible(outlook: &Outlook) -> Vec<(&str, Preemptible)> {
    outlook.shortages[0].holders.iter().map(|it| (&*it.workload.name, it.preemptible)).collect()
}

#[test]
fn an_explanation_gives_the_position_and_the_workloads_ahead() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 4));
    cluster.submit(job("running", "a", 4)).settle();
    cluster.submit(job("old", "a", 1).created(1)).submit(job("young", "a", 2).created(3));
    cluster.submit(job("urgent", "a", 3).created(2).priority(9));
    let Standing::Waiting { position, ahead, backing_off, .. } = explain(&mut cluster, "young").standing else {
        panic!("the workload does not wait")
    };
    assert_eq!((position.in_cluster_queue, backing_off), (2, false));
    assert_eq!(ahead.iter().map(|key| &*key.name).collect::<Vec<_>>(), ["urgent", "old"]);
    let running = explain(&mut cluster, "running");
    assert!(matches!(running.standing, Standing::Holding { admitted: true, assumed: false, .. }));
    cluster.update("old", |workload| workload.active = false);
    assert_eq!(explain(&mut cluster, "old").standing, Standing::NotQueued(NotQueued::Inactive));
    cluster.update("old", |workload| workload.deleting = true);
    assert_eq!(explain(&mut cluster, "old").standing, Standing::NotQueued(NotQueued::Deleting));
}

#[test]
fn a_shortage_names_the_exhausted_level_and_the_holders() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").cohort("team", Some("company"));
    cluster.queue(queue("a").cohort("team").flavor("default", 2)).queue(queue("b").cohort("team").flavor("default", 2));
    cluster.queue(queue("pool").cohort("company").flavor("default", 3));
    cluster.submit(job("b1", "b", 4)).submit(job("p1", "pool", 1)).settle();
    cluster.submit(job("wants", "a", 3));
    let found = outlook(&mut cluster, "wants");
    assert_eq!((found.mode, found.reason()), (AssignmentMode::NoFit, Some(PendingReason::WaitingForQuota)));
    let shortage = &found.shortages[0];
    assert_eq!((shortage.asked, shortage.available, &*shortage.short_at), (3000, Amount::Bounded(2000), "company"));
    let levels: Vec<(&str, Amount, Amount)> =
        shortage.levels.iter().map(|level| (&*level.name, level.subtree, level.in_use)).collect();
    let cores = |cores: i64| Amount::Bounded(cores * 1000);
    assert_eq!(levels, [("a", cores(2), cores(0)), ("team", cores(4), cores(4)), ("company", cores(7), cores(5))]);
    let holders: Vec<(&str, i64)> = shortage.holders.iter().map(|it| (&*it.workload.name, it.amount)).collect();
    assert_eq!(holders, [("b1", 4000), ("p1", 1000)]);
}

#[test]
fn a_borrowing_limit_can_be_the_exhausted_level() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").cohort("all").limited("default", 2, Some(2), None));
    cluster.queue(queue("pool").cohort("all").flavor("default", 9));
    cluster.submit(job("first", "a", 3)).settle();
    cluster.submit(job("second", "a", 2));
    let found = outlook(&mut cluster, "second");
    assert_eq!(&*found.shortages[0].short_at, "a");
    assert_eq!(found.shortages[0].available, Amount::Bounded(1000));
}

#[test]
fn the_policy_that_protects_a_holder_is_reported() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    cluster.queue(queue("a").cohort("all").flavor("default", 4).with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
    }));
    cluster.queue(queue("b").cohort("all").flavor("default", 2));
    cluster.submit(job("low", "a", 1)).submit(job("peer", "a", 1).priority(5)).submit(job("other", "b", 4)).settle();
    cluster.submit(job("wants", "a", 4).priority(5));
    let found = outlook(&mut cluster, "wants");
    assert_eq!(
        preemptible(&found),
        [
            ("other", Preemptible::PolicyNever),
            ("low", Preemptible::Yes),
            ("peer", Preemptible::PolicyExcludes(PreemptionPolicy::LowerPriority)),
        ]
    );
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    cluster.queue(queue("a").cohort("all").flavor("default", 2).with(|queue| {
        queue.preemption.reclaim_within_cohort = PreemptionPolicy::Any;
    }));
    cluster.queue(queue("b").cohort("all").flavor("default", 3)).queue(queue("c").cohort("all").flavor("default", 1));
    cluster.submit(job("owner", "b", 3)).submit(job("guest", "c", 2)).settle();
    cluster.submit(job("wants", "a", 2));
    let found = outlook(&mut cluster, "wants");
    assert_eq!(preemptible(&found), [("owner", Preemptible::WithinNominal), ("guest", Preemptible::Yes)]);
    let victims: Vec<&str> = found.victims.iter().map(|(key, _)| &*key.name).collect();
    assert_eq!((victims, found.reason()), (vec!["guest"], Some(PendingReason::WaitingForPreemptedWorkloads)));
}

#[test]
fn a_holder_that_borrows_the_short_resource_is_not_protected_by_its_quota_of_another() {
    let with_gpus = |cores: i64, gpus: i64| {
        let mut queue = FlavorQuotas { flavor: Name::from("default"), quotas: Vec::new() };
        for (resource, amount) in [("cpu", cores * 1000), ("gpu", gpus)] {
            let nominal = Amount::Bounded(amount);
            let quota = Quota { nominal, borrowing_limit: None, lending_limit: None };
            queue.quotas.push((Name::from(resource), quota));
        }
        move |it: &mut ClusterQueue| {
            it.preemption.reclaim_within_cohort = PreemptionPolicy::Any;
            it.resource_groups =
                vec![ResourceGroup { resources: vec![Name::from("cpu"), Name::from("gpu")], flavors: vec![queue] }];
        }
    };
    let gpus = |amount: i64| {
        move |workload: &mut Workload| {
            workload.pod_sets[0].requests.insert(Name::from("gpu"), amount);
        }
    };
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    cluster.queue(queue("a").cohort("all").with(with_gpus(2, 2)));
    cluster.queue(queue("b").cohort("all").with(with_gpus(3, 0)));
    cluster.queue(queue("c").cohort("all").with(with_gpus(0, 0)));
    cluster.submit(job("owner", "b", 3).with(gpus(1))).submit(job("guest", "c", 1)).settle();
    cluster.submit(job("wants", "a", 2).with(gpus(2)));
    let found = outlook(&mut cluster, "wants");
    let short: Vec<&str> = found.shortages.iter().map(|it| &*it.resource).collect();
    assert_eq!(short, ["cpu", "gpu"]);
    assert_eq!(preemptible(&found), [("owner", Preemptible::Yes), ("guest", Preemptible::Yes)]);
    let victims: Vec<&str> = found.victims.iter().map(|(key, _)| &*key.name).collect();
    assert_eq!(victims, ["owner"]);
}

#[test]
fn the_largest_holders_are_listed_and_the_others_counted() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 100));
    for at in 0..60 {
        cluster.submit(job(&format!("job-{at:02}"), "a", if at % 20 == 0 { 2 } else { 1 }));
    }
    cluster.settle();
    cluster.submit(job("wants", "a", 50));
    let found = outlook(&mut cluster, "wants");
    let [shortage] = found.shortages.as_slice() else { panic!("{found:?}") };
    let listed: Vec<&str> = shortage.holders.iter().map(|it| &*it.workload.name).collect();
    assert_eq!(listed[..5], ["job-00", "job-20", "job-40", "job-01", "job-02"]);
    assert_eq!((listed.len(), listed[49], shortage.holders_unlisted), (50, "job-49", 10));
    let page = text::explanation(&explain(&mut cluster, "wants"));
    assert!(page.contains("\n    and 50 more\n"), "{page}");
}

#[test]
fn a_search_for_victims_records_the_fate_of_every_candidate() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    cluster.queue(queue("a").cohort("all").flavor("default", 4).with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
        queue.preemption.reclaim_within_cohort = PreemptionPolicy::Any;
    }));
    cluster.queue(queue("b").cohort("all").flavor("default", 2));
    cluster.submit(job("small", "b", 1).priority(1)).submit(job("guest", "b", 2)).settle();
    cluster.submit(job("low", "a", 3).created(1)).settle();
    cluster.submit(job("wants", "a", 4).priority(5).created(2));
    let found = outlook(&mut cluster, "wants");
    let fates: Vec<(&str, VictimFate)> =
        found.considered.victim_searches[0].candidates.iter().map(|it| (&*it.workload.name, it.fate)).collect();
    let victims: Vec<&str> = found.victims.iter().map(|(key, _)| &*key.name).collect();
    assert_eq!(
        victims.len(),
        fates.iter().filter(|(_, fate)| matches!(fate, VictimFate::Victim(_))).count(),
        "{fates:?}"
    );
    // The decision itself carries the same search.
    let decided = cluster.decide();
    let Verdict::Preempt { wait, .. } = &decided.decisions[0].verdict else { panic!("{decided:?}") };
    assert_eq!(wait.considered.victim_searches, found.considered.victim_searches);
}

#[test]
fn a_decision_names_the_policy_that_forbids_preemption() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").cohort("all").flavor("default", 1));
    cluster.queue(queue("b").cohort("all").flavor("default", 2));
    cluster.submit(job("b1", "b", 2)).settle();
    cluster.submit(job("own", "a", 1)).settle();
    cluster.submit(job("second", "a", 1));
    let decided = cluster.decide();
    let Verdict::Wait(wait) = &decided.decisions[0].verdict else { panic!("{decided:?}") };
    let Finding::InsufficientQuota { short_at, forbidden, .. } = &wait.considered.pod_sets[0].attempts[0].findings[0]
    else {
        panic!("{wait:?}")
    };
    assert_eq!((&**short_at, *forbidden), ("all", None));
    assert_eq!(wait.considered.victim_searches[0].outcome, SearchOutcome::Forbidden);
    cluster.submit(job("large", "a", 2));
    let found = explain(&mut cluster, "large");
    assert!(
        text::explanation(&found)
            .contains("preemption is not tried: the workload would borrow, and borrowWithinCohort is Never")
    );
}

#[test]
fn an_explanation_is_rendered_as_a_page() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").cohort("team", Some("company"));
    cluster.queue(queue("a").cohort("team").flavor("default", 2).with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
    }));
    cluster.queue(queue("b").cohort("team").limited("default", 2, Some(4), None));
    cluster.queue(queue("pool").cohort("company").flavor("default", 3));
    cluster.submit(job("low", "a", 1)).submit(job("b1", "b", 3)).submit(job("p1", "pool", 1)).settle();
    cluster.submit(job("first", "a", 4).created(1)).submit(job("wants", "a", 3).created(2));
    let page = "\
default/wants waits in ClusterQueue a.
  Place: 2nd in the ClusterQueue, 2nd in LocalQueue a. Priority 0.
  Ahead of it: default/first.

If it were tried now, it would keep waiting: WaitingForQuota
  couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default, 1 more needed

Pod set main
  flavor default: does not fit
    cpu: 3 requested, 2 available, 1 more needed; quota is short in company
    preemption is not tried: the workload would borrow, and borrowWithinCohort is Never

Quota of cpu in flavor default: 3 requested for pod set main, 2 available
  ClusterQueue a: nominal 2, 1 in use, 2 available
  Cohort team: nominal 0, 4 with the quota that its members lend, 4 in use, 2 available
  Cohort company: nominal 0, 7 with the quota that its members lend, 5 in use, 2 available  <- short here
  Held by:
    default/b1: 3 in ClusterQueue b, priority 0; protected: reclaimWithinCohort is Never
    default/low: 1 in ClusterQueue a, priority 0; protected: withinClusterQueue is LowerPriority
    default/p1: 1 in ClusterQueue pool, priority 0; protected: reclaimWithinCohort is Never
";
    assert_eq!(text::explanation(&explain(&mut cluster, "wants")), page);
    let page = "\
default/b1 is admitted by ClusterQueue b.
  Pod set main (1 pod): 3 cpu of flavor default
";
    assert_eq!(text::explanation(&explain(&mut cluster, "b1")), page);
}

#[test]
fn a_topology_shortage_is_explained_level_by_level() {
    let mut cluster = Cluster::new();
    cluster.racks("gpu", &[("r1", &[2, 2]), ("r2", &[4, 0])]).queue(queue("a").flavor("gpu", 100));
    cluster.submit(job("gang", "a", 1).pods(5, None).required("rack"));
    let page = "\
default/gang waits in ClusterQueue a.
  Place: 1st in the ClusterQueue, 1st in LocalQueue a. Priority 0.

If it were tried now, it would keep waiting: TopologyPlacementFailed
  couldn't assign flavors to pod set main: topology \"racks\" allows to fit only 4 out of 5 pod(s). Total nodes: 4; \
excluded: resource \"cpu\": 1

Pod set main
  flavor gpu: does not fit
    topology racks: 4 of 5 pods fit together
      rack: 2 domains; the largest fits 4, all together fit 8
      nodes excluded: 1 of 4
        1: not enough free cpu
";
    assert_eq!(text::explanation(&explain(&mut cluster, "gang")), page);
}

#[test]
fn the_reason_of_an_inactive_queue_is_explained() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    cluster.queue(queue("a").flavor("default", 4).with(|queue| queue.stop_policy = StopPolicy::Hold));
    cluster.submit(job("one", "a", 1));
    let found = explain(&mut cluster, "one");
    let problem = found.queue_inactive.as_ref().map(|readiness| readiness.message());
    assert_eq!(problem.as_deref(), Some("Can't admit new workloads: is stopped."));
    let outlook = found.verdict.as_ref().expect("the workload waits");
    assert_eq!(outlook.reason(), Some(PendingReason::Suspended));
    assert_eq!(outlook.message(), "ClusterQueue a is inactive");
    assert!(
        text::explanation(&found).contains("  ClusterQueue a is inactive. Can't admit new workloads: is stopped.\n")
    );
    cluster.queue(queue("a").flavor("default", 4));
    assert_eq!(explain(&mut cluster, "one").queue_inactive, None);
}

#[test]
fn a_workload_in_no_queue_names_the_queue_that_is_missing_or_stopped() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 4));
    let standing = |cluster: &mut Cluster, name: &str| explain(cluster, name).standing;
    cluster.submit(job("lost", "nowhere", 1));
    assert_eq!(standing(&mut cluster, "lost"), Standing::NotQueued(NotQueued::NoLocalQueue));
    cluster.local("leads-nowhere", "none");
    cluster.submit(job("stray", "leads-nowhere", 1));
    assert_eq!(standing(&mut cluster, "stray"), Standing::NotQueued(NotQueued::NoClusterQueue));
    cluster.apply(Event::LocalQueueUpserted(LocalQueue {
        namespace: Name::from("default"),
        name: Name::from("shut"),
        cluster_queue: Name::from("a"),
        stop_policy: StopPolicy::Hold,
        fair_weight_milli: 1000,
    }));
    cluster.submit(job("held", "shut", 1));
    assert_eq!(standing(&mut cluster, "held"), Standing::NotQueued(NotQueued::LocalQueueStopped));
    let page = text::explanation(&explain(&mut cluster, "held"));
    assert_eq!(page, "default/held is not in a queue: its LocalQueue shut is stopped (spec.stopPolicy).\n");
    let page = text::explanation(&explain(&mut cluster, "stray"));
    assert!(page.contains("ClusterQueue none, named by its LocalQueue leads-nowhere, does not exist"), "{page}");
    let page = text::explanation(&explain(&mut cluster, "lost"));
    assert!(page.contains("its LocalQueue nowhere does not exist in namespace default"), "{page}");
}

#[test]
fn a_workload_that_fits_but_must_wait_shows_the_reason_of_the_cycle() {
    let mut cluster = Cluster::with(|config| config.block_admission_on_pods_ready = true);
    cluster.flavor("default").queue(queue("a").flavor("default", 4));
    cluster.submit(job("first", "a", 1)).settle();
    cluster.submit(job("second", "a", 1));
    let found = outlook(&mut cluster, "second");
    assert_eq!((found.mode, found.reason()), (AssignmentMode::Fit, Some(PendingReason::WaitingForPodsReady)));
    let page = text::explanation(&explain(&mut cluster, "second"));
    assert!(
        page.contains(
            "If it were tried now, it would keep waiting: WaitingForPodsReady\n  \
             waiting for all admitted workloads to be in PodsReady condition\n\n\
             Admission waits until the pods of these workloads are ready:\n  default/first\n"
        ),
        "{page}"
    );

    let mut cluster = Cluster::with(|config| config.gates.multikueue_orchestrated_preemption = true);
    cluster.flavor("default").queue(queue("a").flavor("default", 4).with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
    }));
    cluster.submit(job("low", "a", 4)).settle();
    cluster.submit(job("gated", "a", 4).priority(1).with(|workload| workload.preemption_gated = true));
    let found = outlook(&mut cluster, "gated");
    assert_eq!((found.reason(), found.victims.len()), (Some(PendingReason::AdmissionGated), 0));
    assert_eq!(found.message(), "Workload requires preemption, but it's gated");
    cluster.update("gated", |workload| workload.preemption_gated = false);
    let found = outlook(&mut cluster, "gated");
    assert_eq!((found.reason(), found.victims.len()), (Some(PendingReason::WaitingForPreemptedWorkloads), 1));
    assert!(found.message().ends_with(". Pending the preemption of 1 workload(s)"), "{}", found.message());
}

#[test]
fn a_workload_above_its_share_shows_the_compared_shares() {
    let mut cluster = Cluster::with(|config| config.fair_sharing = Some(FairSharing::default()));
    cluster.flavor("default");
    for name in ["a", "b"] {
        cluster.queue(queue(name).cohort("all").flavor("default", 1).with(|queue| {
            queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
            queue.preemption.reclaim_within_cohort = PreemptionPolicy::Any;
        }));
    }
    cluster.queue(queue("pool").cohort("all").flavor("default", 6));
    for at in 0..4 {
        cluster.submit(job(&format!("a{at}"), "a", 1)).submit(job(&format!("b{at}"), "b", 1)).settle();
    }
    cluster.submit(job("wants", "a", 1));
    let found = outlook(&mut cluster, "wants");
    let search = &found.considered.victim_searches[0];
    assert_eq!(search.outcome, SearchOutcome::Protected);
    assert!(!search.candidates.is_empty());
    assert!(search.candidates.iter().all(|it| it.fate == VictimFate::ShareTooSmall), "{search:?}");
    let of_b: Vec<_> = preemptible(&found).into_iter().filter(|(name, _)| name.starts_with('b')).collect();
    assert_eq!(of_b.len(), 4);
    assert!(of_b.into_iter().all(|(_, preemptible)| preemptible == Preemptible::IfSharesAllow));
    // The queue would use four of eight cores beyond its own one. The other queue uses three.
    let page = text::explanation(&explain(&mut cluster, "wants"));
    assert!(page.contains("\n  a: 500 (cpu); b: 375 (cpu)\n"), "{page}");
    // A queue that reclaims its own quota need not compare shares.
    cluster.submit(job("owner", "pool", 1));
    let found = outlook(&mut cluster, "owner");
    assert_eq!(preemptible(&found).len(), 8);
    assert!(preemptible(&found).iter().all(|(_, it)| *it == Preemptible::PolicyNever), "{:?}", preemptible(&found));
    assert_eq!(found.shares, [], "a policy decides, not shares");
    cluster.queue(queue("pool").cohort("all").flavor("default", 6).with(|queue| {
        queue.preemption.reclaim_within_cohort = PreemptionPolicy::Any;
    }));
    let found = outlook(&mut cluster, "owner");
    assert!(preemptible(&found).iter().all(|(_, it)| *it == Preemptible::Yes), "{:?}", preemptible(&found));
    assert_eq!(found.shares, [], "a queue that reclaims its own quota compares no shares");
}

#[test]
fn shares_also_protect_holders_of_a_flavor_that_was_not_chosen() {
    let mut cluster = Cluster::with(|config| config.fair_sharing = Some(FairSharing::default()));
    cluster.flavor("one").flavor("two");
    let both = |name: &str, one, two| {
        queue(name).cohort("all").flavor("one", one).flavor("two", two).with(|queue| {
            queue.preemption.reclaim_within_cohort = PreemptionPolicy::Any;
        })
    };
    cluster.queue(both("pool", 4, 4)).queue(both("b", 0, 0)).queue(both("a", 0, 0));
    cluster.submit(job("p1", "pool", 2)).submit(job("b1", "b", 2)).settle();
    cluster.submit(job("wants", "a", 2));
    let found = outlook(&mut cluster, "wants");
    for search in &found.considered.victim_searches {
        for candidate in search.candidates.iter().filter(|it| it.fate == VictimFate::ShareTooSmall) {
            let held = found.shortages.iter().filter(|it| &*it.flavor == "one").flat_map(|it| &it.holders);
            let held: Vec<_> = held.filter(|it| it.workload == candidate.workload).map(|it| it.preemptible).collect();
            assert_eq!(held, [Preemptible::IfSharesAllow], "{found:?}");
        }
    }
    let searched = found.considered.victim_searches.iter().flat_map(|it| &it.candidates);
    assert_eq!(searched.filter(|it| it.fate == VictimFate::ShareTooSmall).count(), 1, "{found:?}");
}

#[test]
fn an_evicted_workload_with_new_quota_is_not_reported_as_leaving() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 4).with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
    }));
    cluster.submit(job("lesser", "a", 2)).settle();
    cluster.submit(job("again", "a", 2).priority(5).with(|workload| {
        workload.evicted = Some(Eviction { reason: "PodsReadyTimeout".into(), at: Time::from_seconds(900) });
        workload.requeued = Some(true);
    }));
    cluster.engine.cycle(cluster.now);
    assert!(matches!(explain(&mut cluster, "again").standing, Standing::Holding { assumed: true, evicted: None, .. }));
    cluster.submit(job("urgent", "a", 2).priority(9));
    assert_eq!(cluster.cycle(), ["preempt lesser (InClusterQueue) for urgent"]);
}

#[test]
fn findings_that_concern_no_flavor_are_explained() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 4));
    cluster.submit(job("odd", "a", 1).with(|workload| {
        workload.pod_sets[0].requests.insert(Name::from("licences"), 1);
    }));
    let found = outlook(&mut cluster, "odd");
    assert_eq!(
        found.considered.pod_sets[0].findings,
        [Finding::ResourceUnavailable { resource: Name::from("licences") }]
    );
    let page = text::explanation(&explain(&mut cluster, "odd"));
    assert!(page.contains("Pod set main\n  resource licences unavailable in ClusterQueue\n"), "{page}");
}

#[test]
fn the_problem_of_an_impossible_topology_request_is_explained() {
    let mut cluster = Cluster::new();
    cluster.racks("gpu", &[("r1", &[2, 2])]).queue(queue("a").flavor("gpu", 100));
    cluster.submit(job("row", "a", 1).required("row"));
    let found = outlook(&mut cluster, "row");
    let levels = ["rack", HOSTNAME].map(Name::from).to_vec();
    let problem = TopologyProblem::FlavorWithoutLevel { flavor: "gpu".into(), level: "row".into(), levels };
    let attempt = &found.considered.pod_sets[0].attempts[0];
    assert_eq!(attempt.findings, [Finding::TopologyRequest(problem)]);
    assert_eq!(attempt.no_fit, Some(PendingReason::NoMatchingFlavor));
    assert!(found.message().ends_with("Flavor \"gpu\" does not contain the requested level"), "{}", found.message());
    let page = text::explanation(&explain(&mut cluster, "row"));
    assert!(
        page.contains("the pod set requests level row; the flavor's topology has rack, kubernetes.io/hostname"),
        "{page}"
    );
}
