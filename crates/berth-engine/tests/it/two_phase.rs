//! Admission in two phases (§17), stopped queues (§21), and checks before flavors are tried (§2.8,
//! §5.4).

use std::collections::BTreeSet;

use berth_engine::model::{
    AdmissionCheck, AdmissionCheckRule, CheckState, CheckStatus, ClusterQueue, Eviction, LocalQueue, PreemptionPolicy,
    StopPolicy, Time,
};
use berth_engine::{Event, Name, Verdict};

use crate::cluster::{Cluster, job, queue};

const PROVISIONING: &str = "kueue.x-k8s.io/provisioning-request";

fn check(cluster: &mut Cluster, name: &str, controller: &str, active: bool) {
    cluster.apply(Event::AdmissionCheckUpserted(AdmissionCheck {
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
    let mut cluster = Cluster::new();
    cluster.flavor("spot").flavor("owned");
    check(&mut cluster, "budget", "example.com/budget", true);
    check(&mut cluster, "capacity", PROVISIONING, true);
    let both = queue("a").flavor("owned", 1).flavor("spot", 1);
    cluster.queue(both.with(needs("budget", &[])).with(needs("capacity", &["spot"])));
    cluster.submit(job("first", "a", 1).created(1)).submit(job("second", "a", 1).created(2));
    let mut listed = Vec::new();
    for _ in 0..2 {
        for decision in cluster.decide().decisions {
            let Verdict::Admit(admit) = decision.verdict else { panic!("a workload was not admitted") };
            listed.push(admit.checks.iter().map(ToString::to_string).collect::<Vec<_>>());
        }
    }
    assert_eq!(listed, [vec!["budget"], vec!["budget", "capacity"]]);
}

#[test]
fn a_queue_whose_check_is_missing_or_inactive_admits_nothing() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 1).with(needs("budget", &[])));
    cluster.submit(job("job", "a", 1));
    assert!(cluster.cycle().is_empty());
    let status = cluster.engine.cluster_queue_status("a").expect("the queue exists");
    assert_eq!((status.readiness.is_active(), status.readiness.reason()), (false, "AdmissionCheckNotFound"));
    check(&mut cluster, "budget", "example.com/budget", false);
    assert!(cluster.cycle().is_empty());
    check(&mut cluster, "budget", "example.com/budget", true);
    assert_eq!(cluster.cycle(), ["admit job on default x1"]);
}

#[test]
fn a_workload_whose_check_is_retry_is_not_nominated() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 1));
    cluster.submit(job("job", "a", 1).with(|it| it.checks = vec![state("budget", CheckState::Retry)]));
    assert_eq!(cluster.cycle(), ["job waits: PendingEvaluation: The workload has failed admission checks"]);
}

#[test]
fn nodes_are_chosen_in_a_second_pass_after_they_were_provisioned() {
    let mut cluster = Cluster::new();
    cluster.racks("gpu", &[("r1", &[4])]);
    check(&mut cluster, "capacity", PROVISIONING, true);
    cluster.queue(queue("a").flavor("gpu", 8).with(needs("capacity", &[])));
    cluster.submit(job("gang", "a", 1).pods(3, None).required("rack"));
    let first = cluster.engine.cycle(cluster.now);
    let Verdict::Admit(admit) = &first.decisions[0].verdict else { panic!("{first:?}") };
    assert_eq!(admit.admission.pod_sets[0].delayed_topology_pending, Some(true));
    assert_eq!(admit.admission.pod_sets[0].topology, None);
    let (admission, now) = (admit.admission.clone(), cluster.now);
    cluster.update("gang", |workload| {
        workload.admission = Some(admission);
        workload.reserved_at = Some(now);
        workload.checks = vec![state("capacity", CheckState::Pending)];
    });
    assert_eq!(cluster.engine.next_wakeup(), None, "no second pass is due before the check is Ready");
    cluster.update("gang", |workload| workload.checks = vec![state("capacity", CheckState::Ready)]);
    cluster.now = cluster.engine.next_wakeup().expect("the second pass is due later");
    let second = cluster.engine.cycle(cluster.now);
    let Verdict::Admit(admit) = &second.decisions[0].verdict else { panic!("{second:?}") };
    assert!(admit.second_pass);
    assert_eq!(admit.admission.pod_sets[0].delayed_topology_pending, Some(false));
    assert_eq!(admit.admission.pod_sets[0].topology.as_ref().map(|it| it.domains[0].count), Some(3));
}

#[test]
fn nodes_are_not_chosen_for_workloads_of_another_cluster() {
    let mut cluster = Cluster::new();
    cluster.racks("gpu", &[("r1", &[4])]);
    check(&mut cluster, "elsewhere", "kueue.x-k8s.io/multikueue", true);
    cluster.queue(queue("a").flavor("gpu", 8).with(needs("elsewhere", &[])));
    cluster.submit(job("gang", "a", 1).pods(3, None).required("rack"));
    let first = cluster.decide();
    let Verdict::Admit(admit) = &first.decisions[0].verdict else { panic!("{first:?}") };
    assert_eq!(admit.admission.pod_sets[0].delayed_topology_pending, Some(true));
    cluster.update("gang", |workload| {
        workload.admitted = false;
        workload.checks = vec![state("elsewhere", CheckState::Ready)];
    });
    cluster.now = cluster.now.after(std::time::Duration::from_secs(60));
    cluster.settle();
    assert!(cluster.hosts("gang").is_empty());
}

#[test]
fn a_workload_is_evicted_if_its_failed_node_has_no_replacement() {
    let mut cluster = Cluster::new();
    cluster.racks("gpu", &[("r1", &[1, 1]), ("r2", &[1, 1])]).queue(queue("a").flavor("gpu", 8));
    cluster.submit(job("gang", "a", 1).pods(2, None).required("rack")).settle();
    let host = cluster.hosts("gang")[0].0.clone();
    cluster.update("gang", |workload| workload.unhealthy_nodes = vec![Name::from(host.as_str())]);
    cluster.now = cluster.engine.next_wakeup().expect("the second pass is due later");
    assert_eq!(cluster.cycle(), ["evict gang: NodeFailures"]);
}

#[test]
fn a_stopped_queue_is_skipped_until_it_runs_again() {
    let mut cluster = Cluster::new();
    let stopped = |policy| queue("a").flavor("default", 1).with(move |queue| queue.stop_policy = policy);
    cluster.flavor("default").queue(stopped(StopPolicy::Hold));
    cluster.submit(job("job", "a", 1));
    assert!(cluster.cycle().is_empty());
    cluster.queue(stopped(StopPolicy::None));
    assert_eq!(cluster.cycle(), ["admit job on default x1"]);
}

#[test]
fn workloads_of_a_stopped_local_queue_are_not_queued() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 1));
    let local = |stop_policy| LocalQueue {
        namespace: Name::from("default"),
        name: Name::from("a"),
        cluster_queue: Name::from("a"),
        stop_policy,
        fair_weight_milli: 1000,
    };
    cluster.apply(Event::LocalQueueUpserted(local(StopPolicy::HoldAndDrain)));
    cluster.submit(job("job", "a", 1));
    assert!(cluster.cycle().is_empty());
    assert_eq!(cluster.engine.local_queue_status("default", "a").map(|status| status.pending), Some(0));
    cluster.apply(Event::LocalQueueUpserted(local(StopPolicy::None)));
    assert_eq!(cluster.engine.local_queue_status("default", "a").map(|status| status.pending), Some(1));
    assert_eq!(cluster.cycle(), ["admit job on default x1"]);
}

#[test]
fn a_workload_of_an_unselected_namespace_shows_that_reason() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 1).with(|queue| queue.namespace_selector = None));
    cluster.submit(job("job", "a", 1));
    assert_eq!(cluster.cycle(), ["job waits: Misconfigured: workload namespace doesn't match ClusterQueue selector"]);
}

#[test]
fn statuses_follow_admissions_and_releases() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").cohort("all").flavor("default", 2));
    cluster.queue(queue("b").cohort("all").flavor("default", 2));
    cluster.submit(job("one", "a", 1)).submit(job("three", "a", 2)).submit(job("wide", "a", 9)).settle();
    let figures = |cluster: &Cluster| {
        let status = cluster.engine.cluster_queue_status("a").expect("the queue exists");
        let local = cluster.engine.local_queue_status("default", "a").expect("the queue exists");
        assert_eq!(
            (status.pending, status.reserving, status.admitted),
            (local.pending, local.reserving, local.admitted)
        );
        let usage = status.flavors_usage[0].1["cpu"];
        (status.pending, status.admitted, usage.total, usage.borrowed)
    };
    assert_eq!(figures(&cluster), (1, 2, 3000, 1000));
    cluster.update("one", |workload| {
        workload.evicted = Some(Eviction { reason: Name::from("Preempted"), at: Time::from_seconds(2000) });
    });
    assert_eq!(figures(&cluster), (1, 2, 3000, 1000), "quota is held until the pods have stopped");
    cluster.finish("three");
    assert_eq!(figures(&cluster), (1, 1, 1000, 0));
    cluster.update("wide", |workload| workload.active = false);
    assert_eq!(figures(&cluster), (0, 1, 1000, 0));
}

#[test]
fn quota_is_reserved_for_a_preemptor_without_victims() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    // It owns four cores. Other queues borrow three of them, and their workloads may not be
    // preempted.
    cluster.queue(queue("owner").cohort("all").flavor("default", 4).with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
    }));
    cluster.queue(queue("guest").cohort("all").flavor("default", 0));
    cluster.submit(job("borrower", "guest", 3)).settle();
    cluster.submit(job("owns", "owner", 2).priority(9)).submit(job("small", "guest", 1));
    let lines = cluster.cycle();
    assert_eq!(cluster.running(), ["borrower"], "{lines:?}");
}
