//! Concurrent admission (§23): one workload waits as several variants, one per flavor, and moves to
//! a better flavor when that has free quota.

use berth_engine::model::{ConcurrentAdmissionPolicy, Variant, WorkloadKey};
use berth_engine::{Name, NotQueued, Standing};

use crate::cluster::{Cluster, Job, Queue, job, queue};

/// An engine with concurrent admission and two flavors, the better one first.
fn cluster(last_acceptable: Option<&str>, better: i64) -> Cluster {
    let mut cluster = Cluster::with(|config| config.gates.concurrent_admission = true);
    cluster.flavor("owned").flavor("spot").queue(flavors(last_acceptable, better));
    cluster
}

fn flavors(last_acceptable: Option<&str>, better: i64) -> Queue {
    let last_acceptable_flavor = last_acceptable.map(Name::from);
    queue("a").flavor("owned", better).flavor("spot", 4).with(|queue| {
        queue.concurrent_admission =
            Some(ConcurrentAdmissionPolicy { retain_first_admission: false, last_acceptable_flavor });
    })
}

fn variant(name: &str, flavor: &str) -> Job {
    job(name, "a", 2).with(|workload| {
        let allowed_flavors = vec![Name::from(flavor)];
        workload.variant = Some(Variant { parent: Some(Name::from("train")), allowed_flavors });
    })
}

#[test]
fn the_parent_is_not_queued_and_a_variant_gets_only_its_flavor() {
    let mut cluster = cluster(None, 0);
    cluster.submit(job("train", "a", 2).with(|workload| workload.has_variants = true));
    cluster.submit(variant("on-owned", "owned")).submit(variant("on-spot", "spot"));
    cluster.settle();
    assert_eq!(cluster.running(), ["on-spot"]);
    let now = cluster.now;
    let parent = cluster.engine.explain(&WorkloadKey::new("default", "train"), now).expect("the object exists");
    assert_eq!(parent.standing, Standing::NotQueued(NotQueued::VariantsWait));
}

#[test]
fn a_better_variant_waits_until_the_worse_one_has_left() {
    let mut cluster = cluster(None, 0);
    cluster.submit(variant("on-owned", "owned")).submit(variant("on-spot", "spot")).settle();
    cluster.queue(flavors(None, 2));
    let lines = cluster.cycle();
    assert!(lines.contains(&"evict on-spot: FlavorMigration".to_owned()), "{lines:?}");
    assert!(!cluster.running().contains(&"on-owned".to_owned()));
    cluster.finish("on-spot");
    let lines = cluster.settle();
    assert_eq!(cluster.running(), ["on-owned"], "{lines:?}");
}

#[test]
fn no_variant_moves_to_a_flavor_beyond_the_last_acceptable_one() {
    let mut cluster = Cluster::with(|config| config.gates.concurrent_admission = true);
    let three = |middle: i64| {
        queue("a").flavor("owned", 0).flavor("middle", middle).flavor("spot", 4).with(|queue| {
            let last_acceptable_flavor = Some(Name::from("owned"));
            queue.concurrent_admission =
                Some(ConcurrentAdmissionPolicy { retain_first_admission: false, last_acceptable_flavor });
        })
    };
    cluster.flavor("owned").flavor("middle").flavor("spot").queue(three(0));
    cluster.submit(variant("on-middle", "middle")).submit(variant("on-spot", "spot")).settle();
    cluster.queue(three(2));
    let lines = cluster.cycle();
    assert!(lines[0].contains("Target flavor is below LastAcceptableFlavorName"), "{lines:?}");
    assert_eq!(cluster.running(), ["on-spot"]);
}

#[test]
fn a_variant_is_not_admitted_while_a_better_one_runs() {
    let mut cluster = cluster(None, 2);
    cluster.submit(variant("on-owned", "owned")).settle();
    cluster.submit(variant("on-spot", "spot"));
    let lines = cluster.cycle();
    assert_eq!(lines, ["on-spot waits: PendingEvaluation: A more favorable variant is already admitted"]);
}

#[test]
fn a_parent_is_not_queued_and_holds_no_quota_while_a_variant_does() {
    let mut cluster = cluster(None, 0);
    // Its variants are not created yet.
    cluster.submit(job("train", "a", 2)).settle();
    assert_eq!(cluster.running(), Vec::<String>::new());
    cluster.submit(variant("on-spot", "spot")).settle();
    let held = cluster.engine.admission(&WorkloadKey::new("default", "on-spot")).cloned();
    cluster.submit(job("train", "a", 2).with(|workload| {
        (workload.admission, workload.admitted, workload.has_variants) = (held, true, true);
    }));
    // Of the four cores, the variant uses two and its parent none.
    cluster.submit(job("other", "a", 2).with(|workload| {
        let allowed_flavors = vec![Name::from("spot")];
        workload.variant = Some(Variant { parent: Some(Name::from("more")), allowed_flavors });
    }));
    cluster.settle();
    assert_eq!(cluster.running(), ["on-spot", "other"]);
}

#[test]
fn among_variants_of_equal_age_the_most_preferred_goes_first() {
    let mut cluster = cluster(None, 2);
    cluster.submit(variant("a-on-spot", "spot")).submit(variant("b-on-owned", "owned"));
    cluster.cycle();
    assert_eq!(cluster.running(), ["b-on-owned"]);
}
