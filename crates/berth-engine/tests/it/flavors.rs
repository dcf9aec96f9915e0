//! The flavors that workloads get, and the messages if they get none.

use berth_engine::model::{
    FlavorQuotas, FungibilityPolicy, FungibilityPreference, PreemptionPolicy, Quota, ResourceGroup, Taint, TaintEffect,
    Toleration,
};
use berth_engine::{Amount, Name};

use crate::cluster::{Cluster, Job, Queue, job, queue};

#[test]
fn flavors_are_tried_in_order() {
    let mut cluster = Cluster::new();
    cluster.flavor("spot").flavor("on-demand");
    cluster.queue(queue("a").flavor("spot", 2).flavor("on-demand", 4));
    cluster.submit(job("first", "a", 2).created(1)).submit(job("second", "a", 2).created(2));
    assert_eq!(cluster.settle(), ["admit first on spot x1", "admit second on on-demand x1"]);
}

#[test]
fn a_request_that_can_never_fit_reports_the_maximum() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 4)).submit(job("huge", "a", 9));
    assert_eq!(
        cluster.cycle(),
        ["huge waits: ExceedsMaxQuota: couldn't assign flavors to pod set main: insufficient quota for cpu in flavor \
             default, previously considered podsets requests (0) + current podset request (9) > maximum capacity (4)"]
    );
}

#[test]
fn a_request_for_a_resource_without_quota_names_it() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 4));
    cluster.submit(job("gpu", "a", 1).with(|workload| {
        workload.pod_sets[0].requests.insert("nvidia.com/gpu".into(), 1);
    }));
    assert_eq!(
        cluster.cycle(),
        [
            "gpu waits: NoMatchingFlavor: couldn't assign flavors to pod set main: resource nvidia.com/gpu unavailable in \
             ClusterQueue"
        ]
    );
}

#[test]
fn a_taint_must_be_tolerated_by_the_pods_or_by_the_flavor() {
    let taint = || Taint { key: "spot".into(), value: "true".into(), effect: TaintEffect::NoSchedule };
    let mut cluster = Cluster::new();
    cluster.flavor_with("spot", |flavor| flavor.node_taints = vec![taint()]);
    cluster.queue(queue("a").flavor("spot", 4)).submit(job("proud", "a", 1).created(1));
    cluster.submit(job("humble", "a", 1).created(2).template(|template| {
        template.tolerations = vec![Toleration { key: "spot".into(), exists: true, value: "".into(), effect: None }];
    }));
    assert_eq!(
        cluster.settle(),
        [
            "proud waits: NoMatchingFlavor: couldn't assign flavors to pod set main: untolerated taint {spot true \
             NoSchedule <nil>} in flavor spot",
            "admit humble on spot x1",
        ]
    );
}

#[test]
fn node_selectors_apply_only_to_labels_of_the_flavor() {
    let mut cluster = Cluster::new();
    cluster.flavor_with("zone-a", |flavor| {
        flavor.node_labels.insert("zone".into(), "a".into());
    });
    cluster.flavor_with("zone-b", |flavor| {
        flavor.node_labels.insert("zone".into(), "b".into());
    });
    cluster.queue(queue("q").flavor("zone-a", 4).flavor("zone-b", 4));
    cluster.submit(job("picky", "q", 1).template(|template| {
        template.node_selector = [("zone".into(), "b".into()), ("disk".into(), "ssd".into())].into();
    }));
    assert_eq!(cluster.settle(), ["admit picky on zone-b x1"]);
}

#[test]
fn borrowing_in_the_first_flavor_is_preferred_unless_configured_otherwise() {
    for (policy, expected) in [
        (FungibilityPolicy::MayStopSearch, "admit job on one x1"),
        (FungibilityPolicy::TryNextFlavor, "admit job on two x1"),
    ] {
        let mut cluster = Cluster::new();
        cluster.flavor("one").flavor("two");
        cluster.queue(queue("a").cohort("all").flavor("one", 1).flavor("two", 4).with(|queue| {
            queue.fungibility.when_can_borrow = policy;
        }));
        cluster.queue(queue("b").cohort("all").flavor("one", 9).flavor("two", 0));
        cluster.submit(job("job", "a", 2));
        assert_eq!(cluster.settle(), [expected]);
    }
}

#[test]
fn the_preference_decides_between_preempting_and_borrowing() {
    for (preference, expected) in [
        (FungibilityPreference::BorrowingOverPreemption, "admit high on two x1"),
        (FungibilityPreference::PreemptionOverBorrowing, "preempt low (InClusterQueue) for high"),
    ] {
        let mut cluster = Cluster::new();
        cluster.flavor("one").flavor("two");
        cluster.queue(queue("a").cohort("all").flavor("one", 4).flavor("two", 0).with(|queue| {
            queue.preemption.within_cluster_queue = berth_engine::model::PreemptionPolicy::LowerPriority;
            queue.fungibility.when_can_borrow = FungibilityPolicy::TryNextFlavor;
            queue.fungibility.when_can_preempt = FungibilityPolicy::TryNextFlavor;
            queue.fungibility.preference = preference;
        }));
        cluster.queue(queue("b").cohort("all").flavor("one", 0).flavor("two", 4));
        cluster.submit(job("low", "a", 4)).settle();
        cluster.submit(job("high", "a", 4).priority(1));
        assert_eq!(cluster.cycle(), [expected]);
    }
}

#[test]
fn a_workload_may_start_with_fewer_pods() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(queue("a").flavor("default", 7));
    cluster.submit(job("elastic", "a", 1).pods(10, Some(5)));
    assert_eq!(cluster.settle(), ["admit elastic on default x7"]);
}

/// A queue with cores and GPUs on a single flavor.
fn accelerated(name: &str, cores: i64, gpus: i64) -> Queue {
    let quota = |amount: i64| Quota { nominal: Amount::Bounded(amount), borrowing_limit: None, lending_limit: None };
    queue(name).with(|queue| {
        queue.resource_groups = vec![ResourceGroup {
            resources: vec![Name::from("cpu"), Name::from("gpu")],
            flavors: vec![FlavorQuotas {
                flavor: Name::from("default"),
                quotas: vec![(Name::from("cpu"), quota(cores * 1000)), (Name::from("gpu"), quota(gpus))],
            }],
        }];
    })
}

fn with_gpus(job: Job, gpus: i64) -> Job {
    job.with(|workload| {
        workload.pod_sets[0].requests.insert("gpu".into(), gpus);
    })
}

#[test]
fn every_short_resource_is_named_and_one_that_never_fits_gives_the_reason() {
    let mut cluster = Cluster::new();
    cluster.flavor("default").queue(accelerated("a", 4, 4));
    cluster.submit(job("running", "a", 3)).settle();
    cluster.submit(with_gpus(job("big", "a", 2), 8));
    assert_eq!(
        cluster.cycle(),
        [
            "big waits: ExceedsMaxQuota: couldn't assign flavors to pod set main: insufficient quota for gpu in flavor default, \
             previously considered podsets requests (0) + current podset request (8) > maximum capacity (4), insufficient \
             unused quota for cpu in flavor default, 1 more needed"
        ]
    );
}

#[test]
fn a_workload_that_borrows_and_preempts_is_decided_after_the_owner() {
    let mut cluster = Cluster::new();
    cluster.flavor("default");
    cluster.queue(accelerated("borrower", 0, 4).cohort("all").with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
    }));
    cluster.queue(accelerated("owner", 2, 0).cohort("all"));
    cluster.submit(with_gpus(job("low", "borrower", 0), 4)).settle();
    cluster.submit(with_gpus(job("high", "borrower", 2), 4).priority(10)).submit(job("own", "owner", 2));
    let lines = cluster.cycle();
    assert_eq!(lines[0], "admit own on default x1", "{lines:?}");
}
