//! Cycles in parts decide the same as whole cycles.

use std::collections::{BTreeMap, BTreeSet};

use berth_engine::model::WorkloadKey;
use berth_engine::{CycleOutcome, Name, PendingReason};
use proptest::prelude::*;

use super::config;
use super::host::Host;
use super::invariants::fingerprint;
use super::plan::{Step, wide_plan};

/// Results of a cycle, regardless of their order.
#[derive(Debug, PartialEq, Default)]
struct Said {
    decisions: BTreeMap<WorkloadKey, String>,
    bypassed: BTreeMap<WorkloadKey, PendingReason>,
    skipped_preemptions: BTreeMap<Name, u32>,
    recomputations: BTreeMap<Name, String>,
    end: String,
}

fn said(parts: &[CycleOutcome]) -> Said {
    let mut said = Said::default();
    for part in parts {
        said.decisions.extend(part.decisions.iter().map(|it| (it.workload.clone(), format!("{it:?}"))));
        said.bypassed.extend(part.bypassed.iter().cloned());
        said.skipped_preemptions.extend(part.skipped_preemptions.clone());
        said.recomputations
            .extend(part.target_recomputations.iter().map(|(queue, it)| (queue.clone(), format!("{it:?}"))));
        said.end = format!("{} {:?} {}", part.cycle, part.result, part.more);
    }
    said
}

proptest! {
    #![proptest_config(config(1000, "tests/it/random/parts.regressions"))]

    /// The decisions of each part are written before the next part, evictions included. The other
    /// parts must not be affected.
    #[test]
    fn cycles_in_parts_decide_what_whole_cycles_decide(plan in wide_plan(10..60), heads in 1_usize..4) {
        let (mut whole, mut parted) = (Host::new(&plan), Host::new(&plan));
        for (at, step) in plan.steps.iter().enumerate() {
            match step {
                Step::Arrive(job) => {
                    whole.arrive(job);
                    parted.arrive(job);
                }
                Step::Finish(which) => prop_assert_eq!(whole.finish(*which), parted.finish(*which)),
                Step::Stop => prop_assert_eq!(whole.stop(), parted.stop()),
                Step::Cycle => {
                    let (one, parts) = (whole.cycle(), parted.cycle_in_parts(heads));
                    let cycles: BTreeSet<u64> = parts.iter().map(|part| part.cycle).collect();
                    prop_assert_eq!(cycles, BTreeSet::from([one.cycle]));
                    prop_assert!(parts.iter().rev().skip(1).all(|part| part.more && part.result.is_none()));
                    prop_assert_eq!(said(&[one]), said(&parts), "step {}", at);
                    prop_assert_eq!(fingerprint(&mut whole, &plan), fingerprint(&mut parted, &plan), "step {}", at);
                }
            }
        }
    }
}

/// Checks that the random histories cover enough. If cycles had no parts, or no decisions on nodes,
/// agreement would prove little.
#[test]
fn random_cycles_have_parts_decide_in_several_of_them_and_place_pods() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for _ in 0..200 {
        let plan = wide_plan(10..60).new_tree(&mut runner).expect("the strategy always returns a plan").current();
        let mut host = Host::new(&plan);
        for step in &plan.steps {
            match step {
                Step::Arrive(job) => host.arrive(job),
                Step::Finish(which) => drop(host.finish(*which)),
                Step::Stop => drop(host.stop()),
                Step::Cycle => {
                    let parts = host.cycle_in_parts(1);
                    let acting = |part: &&CycleOutcome| {
                        part.decisions.iter().any(|it| !matches!(it.verdict, berth_engine::Verdict::Wait(_)))
                    };
                    *seen.entry("parts").or_default() += u32::from(parts.len() > 1);
                    *seen.entry("act twice").or_default() += u32::from(parts.iter().filter(acting).count() > 1);
                }
            }
        }
        let on_nodes = host.workloads.values().filter_map(|it| it.admission.as_ref());
        let on_nodes = on_nodes.filter(|it| it.pod_sets.iter().any(|set| set.topology.is_some())).count();
        *seen.entry("on nodes").or_default() += u32::try_from(on_nodes).unwrap_or(0);
    }
    for (what, least) in [("parts", 200), ("act twice", 15), ("on nodes", 30)] {
        assert!(seen.get(what).is_some_and(|count| *count >= least), "{what}: {seen:?}");
    }
}
