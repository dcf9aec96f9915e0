//! Every cycle of every random history, compared with the slow model.

use std::collections::BTreeMap;

use berth_engine::{CycleOutcome, Verdict};
use proptest::prelude::*;

use super::config;
use super::host::{Host, flavor_name, job_name, queue_name};
use super::plan::{FLAVORS, Plan, Step, plan};
use crate::reference::cycle::Answer;
use crate::reference::{Model, Place};

/// The engine's decisions, in the types of the model.
fn answers(outcome: &CycleOutcome) -> BTreeMap<String, Answer> {
    let flavor = |name: &str| (0..FLAVORS).find(|at| *flavor_name(*at) == *name).expect("the flavor is in the plan");
    let answer = |verdict: &Verdict| match verdict {
        Verdict::Admit(admit) => Answer::Admit(
            admit
                .admission
                .pod_sets
                .iter()
                .map(|set| {
                    (set.count.unwrap_or(0), flavor(set.flavors.values().next().expect("every pod set has requests")))
                })
                .collect(),
        ),
        Verdict::Preempt { victims, .. } => {
            Answer::Preempt(victims.iter().map(|it| (it.workload.name.to_string(), it.reason)).collect())
        }
        Verdict::Wait(wait) => Answer::Wait(wait.reason(), wait.cause.requeue()),
        Verdict::Evict { .. } => unreachable!("no nodes fail here"),
    };
    outcome.decisions.iter().map(|it| (it.workload.name.to_string(), answer(&it.verdict))).collect()
}

/// Names of workloads in the heaps, and of inadmissible ones.
fn waiting(host: &Host, plan: &Plan) -> [Vec<String>; 2] {
    let mut places = [Vec::new(), Vec::new()];
    for queue in 0..plan.queues.len() {
        for position in host.engine.pending(&queue_name(queue)) {
            places[usize::from(position.inadmissible)].push(position.workload.name.to_string());
        }
    }
    places.iter_mut().for_each(|names| names.sort());
    places
}

fn check(plan: &Plan) -> Result<(), TestCaseError> {
    let (mut host, mut model) = (Host::new(plan), Model::new(plan));
    let mut arrived = 0;
    for (at, step) in plan.steps.iter().enumerate() {
        match step {
            Step::Arrive(job) => {
                host.arrive(job);
                model.arrive(job_name(arrived), job);
                arrived += 1;
            }
            Step::Finish(which) => {
                if let Some(name) = host.finish(*which) {
                    model.finish(&name);
                }
            }
            Step::Stop => host.stop().iter().for_each(|name| model.stop(name)),
            Step::Cycle => {
                let got = answers(&host.cycle());
                prop_assert_eq!(model.run_cycle(), got, "step {}", at);
                let place = |of: &Place| {
                    let names = model.jobs.iter().filter(|(_, it)| it.place == *of).map(|(name, _)| name.clone());
                    names.collect::<Vec<String>>()
                };
                prop_assert_eq!(
                    [place(&Place::Active), place(&Place::Inadmissible)],
                    waiting(&host, plan),
                    "step {}",
                    at
                );
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(1000, "tests/it/random/agreement.regressions"))]

    #[test]
    fn every_cycle_decides_what_the_slow_model_decides(plan in plan(10..50)) {
        check(&plan)?;
    }
}

/// Checks that the random histories cover enough. If they did not preempt, agreement would prove
/// little.
#[test]
fn random_histories_admit_preempt_defer_skip_and_wait_for_every_reason() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..300 {
        let plan = plan(10..50).new_tree(&mut runner).expect("the strategy always returns a plan").current();
        let mut host = Host::new(&plan);
        for step in &plan.steps {
            match step {
                Step::Arrive(job) => host.arrive(job),
                Step::Finish(which) => drop(host.finish(*which)),
                Step::Stop => drop(host.stop()),
                Step::Cycle => {
                    for answer in answers(&host.cycle()).into_values() {
                        let kinds = match answer {
                            Answer::Admit(_) => vec!["admit".to_owned()],
                            Answer::Preempt(victims) => victims.values().map(|it| format!("preempt {it:?}")).collect(),
                            Answer::Wait(reason, requeue) => vec![format!("wait {reason:?} {requeue:?}")],
                        };
                        kinds.into_iter().for_each(|kind| *seen.entry(kind).or_default() += 1);
                    }
                }
            }
        }
    }
    for kind in [
        "admit",
        "preempt InClusterQueue",
        "preempt InCohortReclamation",
        "preempt InCohortReclaimWhileBorrowing",
        "preempt InCohortFairSharing",
        "wait NoMatchingFlavor NoFit",
        "wait ExceedsMaxQuota NoFit",
        "wait WaitingForQuota NoFit",
        "wait WaitingForQuota PreemptionNoCandidates",
        "wait WaitingForQuota FailedAfterNomination",
    ] {
        assert!(seen.get(kind).is_some_and(|count| *count >= 3), "{kind}: {seen:?}");
    }
}
