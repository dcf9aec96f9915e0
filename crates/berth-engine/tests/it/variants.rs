//! Concurrent admission (§23): one workload waits as several variants, one per flavor, and moves
//! to a better flavor when that has free quota.

use berth_engine::model::{ConcurrentAdmissionPolicy, Variant, WorkloadKey};
use berth_engine::{Name, NotQueued, Standing};

use crate::cluster::{Job, Platform, Queue, job, queue};

/// A platform with concurrent admission and two flavors, the better one first.
fn platform(last_acceptable: Option<&str>, better: i64) -> Platform {
    let mut platform = Platform::with(|config| config.gates.concurrent_admission = true);
    platform.flavor("owned").flavor("spot").queue(flavors(last_acceptable, better));
    platform
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
fn the_parent_waits_nowhere_and_a_variant_gets_only_its_flavor() {
    let mut platform = platform(None, 0);
    platform.submit(job("train", "a", 2).with(|workload| workload.has_variants = true));
    platform.submit(variant("on-owned", "owned")).submit(variant("on-spot", "spot"));
    platform.settle();
    assert_eq!(platform.running(), ["on-spot"]);
    let now = platform.now;
    let parent = platform.engine.explain(&WorkloadKey::new("default", "train"), now).expect("it exists");
    assert_eq!(parent.standing, Standing::NotQueued(NotQueued::VariantsWait));
}

#[test]
fn a_better_variant_lets_the_worse_one_leave_first() {
    let mut platform = platform(None, 0);
    platform.submit(variant("on-owned", "owned")).submit(variant("on-spot", "spot")).settle();
    platform.queue(flavors(None, 2));
    let lines = platform.cycle();
    assert!(lines.contains(&"evict on-spot: FlavorMigration".to_owned()), "{lines:?}");
    assert!(!platform.running().contains(&"on-owned".to_owned()));
    platform.finish("on-spot");
    let lines = platform.settle();
    assert_eq!(platform.running(), ["on-owned"], "{lines:?}");
}

#[test]
fn no_variant_moves_to_a_flavor_beyond_the_last_acceptable_one() {
    let mut platform = Platform::with(|config| config.gates.concurrent_admission = true);
    let three = |middle: i64| {
        queue("a").flavor("owned", 0).flavor("middle", middle).flavor("spot", 4).with(|queue| {
            let last_acceptable_flavor = Some(Name::from("owned"));
            queue.concurrent_admission =
                Some(ConcurrentAdmissionPolicy { retain_first_admission: false, last_acceptable_flavor });
        })
    };
    platform.flavor("owned").flavor("middle").flavor("spot").queue(three(0));
    platform.submit(variant("on-middle", "middle")).submit(variant("on-spot", "spot")).settle();
    platform.queue(three(2));
    let lines = platform.cycle();
    assert!(lines[0].contains("Target flavor is below LastAcceptableFlavorName"), "{lines:?}");
    assert_eq!(platform.running(), ["on-spot"]);
}

#[test]
fn a_variant_stays_out_while_a_better_one_runs() {
    let mut platform = platform(None, 2);
    platform.submit(variant("on-owned", "owned")).settle();
    platform.submit(variant("on-spot", "spot"));
    let lines = platform.cycle();
    assert_eq!(lines, ["on-spot waits: PendingEvaluation: A more favorable variant is already admitted"]);
}

#[test]
fn what_a_queue_wants_variants_of_never_waits_itself_and_counts_nothing_while_a_variant_holds_the_quota() {
    let mut platform = platform(None, 0);
    // Its variants are not created yet.
    platform.submit(job("train", "a", 2)).settle();
    assert_eq!(platform.running(), Vec::<String>::new());
    platform.submit(variant("on-spot", "spot")).settle();
    let held = platform.engine.admission(&WorkloadKey::new("default", "on-spot")).cloned();
    platform.submit(job("train", "a", 2).with(|workload| {
        (workload.admission, workload.admitted, workload.has_variants) = (held, true, true);
    }));
    // Four cores, two of them taken: by the variant alone.
    platform.submit(job("other", "a", 2).with(|workload| {
        let allowed_flavors = vec![Name::from("spot")];
        workload.variant = Some(Variant { parent: Some(Name::from("more")), allowed_flavors });
    }));
    platform.settle();
    assert_eq!(platform.running(), ["on-spot", "other"]);
}

#[test]
fn of_variants_made_in_one_second_the_most_preferred_goes_first() {
    let mut platform = platform(None, 2);
    platform.submit(variant("a-on-spot", "spot")).submit(variant("b-on-owned", "owned"));
    platform.cycle();
    assert_eq!(platform.running(), ["b-on-owned"]);
}
