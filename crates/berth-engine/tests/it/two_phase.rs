//! Admission in two phases (§17), stopped queues (§21), and what rejects a workload before flavors
//! are tried (§2.8, §5.4).

use std::collections::BTreeSet;

use berth_engine::model::{
    AdmissionCheck, AdmissionCheckRule, CheckState, CheckStatus, ClusterQueue, Eviction, LocalQueue, PreemptionPolicy,
    StopPolicy, Time,
};
use berth_engine::{Event, Name, Verdict};

use crate::cluster::{Platform, job, queue};

const PROVISIONING: &str = "kueue.x-k8s.io/provisioning-request";

fn check(platform: &mut Platform, name: &str, controller: &str, active: bool) {
    platform.apply(Event::AdmissionCheckUpserted(AdmissionCheck {
        name: Name::from(name),
        active,
        controller: Name::from(controller),
    }));
}

fn needs(check: &str, flavors: &[&str]) -> impl FnOnce(&mut ClusterQueue) {
    let on_flavors: BTreeSet<Name> = flavors.iter().map(|flavor| Name::from(*flavor)).collect();
    let rule = AdmissionCheckRule { check: Name::from(check), on_flavors };
    move |queue| queue.checks.push(rule)
}

fn state(check: &str, state: CheckState) -> CheckStatus {
    CheckStatus { name: Name::from(check), state, node_selectors: [].into(), tolerations: [].into() }
}

#[test]
fn an_admission_lists_the_checks_of_its_flavors() {
    let mut platform = Platform::new();
    platform.flavor("spot").flavor("owned");
    check(&mut platform, "budget", "example.com/budget", true);
    check(&mut platform, "capacity", PROVISIONING, true);
    let both = queue("a").flavor("owned", 1).flavor("spot", 1);
    platform.queue(both.with(needs("budget", &[])).with(needs("capacity", &["spot"])));
    platform.submit(job("first", "a", 1).created(1)).submit(job("second", "a", 1).created(2));
    let mut listed = Vec::new();
    for _ in 0..2 {
        for decision in platform.decide().decisions {
            let Verdict::Admit(admit) = decision.verdict else { panic!("both fit") };
            listed.push(admit.checks.iter().map(ToString::to_string).collect::<Vec<_>>());
        }
    }
    assert_eq!(listed, [vec!["budget"], vec!["budget", "capacity"]]);
}

#[test]
fn a_queue_whose_check_is_missing_or_inactive_admits_nothing() {
    let mut platform = Platform::new();
    platform.flavor("default").queue(queue("a").flavor("default", 1).with(needs("budget", &[])));
    platform.submit(job("job", "a", 1));
    assert!(platform.cycle().is_empty());
    let status = platform.engine.cluster_queue_status("a").expect("the queue exists");
    assert_eq!((status.readiness.is_active(), status.readiness.reason()), (false, "AdmissionCheckNotFound"));
    check(&mut platform, "budget", "example.com/budget", false);
    assert!(platform.cycle().is_empty());
    check(&mut platform, "budget", "example.com/budget", true);
    assert_eq!(platform.cycle(), ["admit job on default x1"]);
}

#[test]
fn a_workload_whose_check_asks_for_a_retry_is_not_nominated() {
    let mut platform = Platform::new();
    platform.flavor("default").queue(queue("a").flavor("default", 1));
    platform.submit(job("job", "a", 1).with(|it| it.checks = vec![state("budget", CheckState::Retry)]));
    assert_eq!(platform.cycle(), ["job waits: PendingEvaluation: The workload has failed admission checks"]);
}

#[test]
fn nodes_are_chosen_in_a_second_pass_once_they_were_provisioned() {
    let mut platform = Platform::new();
    platform.racks("gpu", &[("r1", &[4])]);
    check(&mut platform, "capacity", PROVISIONING, true);
    platform.queue(queue("a").flavor("gpu", 8).with(needs("capacity", &[])));
    platform.submit(job("gang", "a", 1).pods(3, None).required("rack"));
    let first = platform.engine.cycle(platform.now);
    let Verdict::Admit(admit) = &first.decisions[0].verdict else { panic!("{first:?}") };
    assert_eq!(admit.admission.pod_sets[0].delayed_topology_pending, Some(true));
    assert_eq!(admit.admission.pod_sets[0].topology, None);
    let (admission, now) = (admit.admission.clone(), platform.now);
    platform.update("gang", |workload| {
        workload.admission = Some(admission);
        workload.reserved_at = Some(now);
        workload.checks = vec![state("capacity", CheckState::Pending)];
    });
    assert_eq!(platform.engine.next_wakeup(), None, "nothing to look at before the check is Ready");
    platform.update("gang", |workload| workload.checks = vec![state("capacity", CheckState::Ready)]);
    platform.now = platform.engine.next_wakeup().expect("the second pass is due later");
    let second = platform.engine.cycle(platform.now);
    let Verdict::Admit(admit) = &second.decisions[0].verdict else { panic!("{second:?}") };
    assert!(admit.second_pass);
    assert_eq!(admit.admission.pod_sets[0].delayed_topology_pending, Some(false));
    assert_eq!(admit.admission.pod_sets[0].topology.as_ref().map(|it| it.domains[0].count), Some(3));
}

#[test]
fn nodes_of_another_cluster_are_not_chosen_here() {
    let mut platform = Platform::new();
    platform.racks("gpu", &[("r1", &[4])]);
    check(&mut platform, "elsewhere", "kueue.x-k8s.io/multikueue", true);
    platform.queue(queue("a").flavor("gpu", 8).with(needs("elsewhere", &[])));
    platform.submit(job("gang", "a", 1).pods(3, None).required("rack"));
    let first = platform.decide();
    let Verdict::Admit(admit) = &first.decisions[0].verdict else { panic!("{first:?}") };
    assert_eq!(admit.admission.pod_sets[0].delayed_topology_pending, Some(true));
    platform.update("gang", |workload| {
        workload.admitted = false;
        workload.checks = vec![state("elsewhere", CheckState::Ready)];
    });
    platform.now = platform.now.after(std::time::Duration::from_secs(60));
    platform.settle();
    assert!(platform.hosts("gang").is_empty());
}

#[test]
fn a_failed_node_without_replacement_costs_the_workload_its_place() {
    let mut platform = Platform::new();
    platform.racks("gpu", &[("r1", &[1, 1]), ("r2", &[1, 1])]).queue(queue("a").flavor("gpu", 8));
    platform.submit(job("gang", "a", 1).pods(2, None).required("rack")).settle();
    let host = platform.hosts("gang")[0].0.clone();
    platform.update("gang", |workload| workload.unhealthy_nodes = vec![Name::from(host.as_str())]);
    platform.now = platform.engine.next_wakeup().expect("the second pass is due later");
    assert_eq!(platform.cycle(), ["evict gang: NodeFailures"]);
}

#[test]
fn a_stopped_queue_is_skipped_until_it_runs_again() {
    let mut platform = Platform::new();
    let stopped = |policy| queue("a").flavor("default", 1).with(move |queue| queue.stop_policy = policy);
    platform.flavor("default").queue(stopped(StopPolicy::Hold));
    platform.submit(job("job", "a", 1));
    assert!(platform.cycle().is_empty());
    platform.queue(stopped(StopPolicy::None));
    assert_eq!(platform.cycle(), ["admit job on default x1"]);
}

#[test]
fn workloads_of_a_stopped_local_queue_wait_nowhere() {
    let mut platform = Platform::new();
    platform.flavor("default").queue(queue("a").flavor("default", 1));
    let local = |stop_policy| LocalQueue {
        namespace: Name::from("default"),
        name: Name::from("a"),
        cluster_queue: Name::from("a"),
        stop_policy,
        fair_weight_milli: 1000,
    };
    platform.apply(Event::LocalQueueUpserted(local(StopPolicy::HoldAndDrain)));
    platform.submit(job("job", "a", 1));
    assert!(platform.cycle().is_empty());
    assert_eq!(platform.engine.local_queue_status("default", "a").map(|status| status.pending), Some(0));
    platform.apply(Event::LocalQueueUpserted(local(StopPolicy::None)));
    assert_eq!(platform.engine.local_queue_status("default", "a").map(|status| status.pending), Some(1));
    assert_eq!(platform.cycle(), ["admit job on default x1"]);
}

#[test]
fn a_workload_of_an_unselected_namespace_gets_that_reason() {
    let mut platform = Platform::new();
    platform.flavor("default").queue(queue("a").flavor("default", 1).with(|queue| queue.namespace_selector = None));
    platform.submit(job("job", "a", 1));
    assert_eq!(platform.cycle(), ["job waits: Misconfigured: workload namespace doesn't match ClusterQueue selector"]);
}

#[test]
fn statuses_follow_what_comes_and_goes() {
    let mut platform = Platform::new();
    platform.flavor("default").queue(queue("a").cohort("all").flavor("default", 2));
    platform.queue(queue("b").cohort("all").flavor("default", 2));
    platform.submit(job("one", "a", 1)).submit(job("three", "a", 2)).submit(job("wide", "a", 9)).settle();
    let figures = |platform: &Platform| {
        let status = platform.engine.cluster_queue_status("a").expect("the queue exists");
        let local = platform.engine.local_queue_status("default", "a").expect("the queue exists");
        assert_eq!(
            (status.pending, status.reserving, status.admitted),
            (local.pending, local.reserving, local.admitted)
        );
        let usage = status.flavors_usage[0].1["cpu"];
        (status.pending, status.admitted, usage.total, usage.borrowed)
    };
    assert_eq!(figures(&platform), (1, 2, 3000, 1000));
    platform.update("one", |workload| {
        workload.evicted = Some(Eviction { reason: Name::from("Preempted"), at: Time::from_seconds(2000) });
    });
    assert_eq!(figures(&platform), (1, 2, 3000, 1000), "quota is held until the pods have stopped");
    platform.finish("three");
    assert_eq!(figures(&platform), (1, 1, 1000, 0));
    platform.update("wide", |workload| workload.active = false);
    assert_eq!(figures(&platform), (0, 1, 1000, 0));
}

#[test]
fn what_a_preemptor_without_victims_needs_is_kept_from_lower_entries() {
    let mut platform = Platform::new();
    platform.flavor("default");
    // It owns four, three of which others borrowed and may not be asked for.
    platform.queue(queue("owner").cohort("all").flavor("default", 4).with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
    }));
    platform.queue(queue("guest").cohort("all").flavor("default", 0));
    platform.submit(job("borrower", "guest", 3)).settle();
    platform.submit(job("owns", "owner", 2).priority(9)).submit(job("small", "guest", 1));
    let lines = platform.cycle();
    assert_eq!(platform.running(), ["borrower"], "{lines:?}");
}
