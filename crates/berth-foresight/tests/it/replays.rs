//! Invariants of replays, and their figures.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_engine::Name;
use berth_engine::model::Time;
use berth_foresight::figures::{Figures, figures, jain};
use berth_foresight::policy::Policy;
use berth_foresight::policy::built_in::BuiltIn;
use berth_foresight::replay::Replay;
use berth_foresight::trace::Trace;
use berth_load::{History, Untimed};
use clap::ValueEnum;
use proptest::prelude::*;

use super::{SMALL, trace};

fn run(trace: &Trace, policy: &Policy) -> (History, Figures) {
    let history = Replay::new(trace, policy).expect("every job has a queue").run(&mut Untimed);
    let figures = figures(trace, policy, &history);
    (history, figures)
}

/// Checks what must hold in every replay under a policy made from the trace.
pub fn check(trace: &Trace, policy: &Policy, history: &History) {
    assert_eq!(history.jobs.len(), trace.jobs.len(), "no job is lost");
    quota_is_never_exceeded(policy, history);
    let mut done: BTreeMap<u32, Duration> = BTreeMap::new();
    for run in &history.runs {
        let to = run.to.expect("nothing runs forever");
        if !run.evicted {
            assert!(done.insert(run.job, run.from.until(to)).is_none(), "job {} ended twice", run.job);
        }
        let demand = trace.jobs[run.job as usize].demand("cpu");
        assert_eq!(history.holdings[run.holding as usize].amount("cpu"), demand, "a job holds what it requests");
    }
    for (number, (job, record)) in trace.jobs.iter().zip(&history.jobs).enumerate() {
        let start = history.start.expect("a start");
        assert_eq!(record.created, start.after(job.submitted));
        assert!(record.started.is_none_or(|at| at >= record.created), "no job starts before its submission");
        let run_time = done.get(&(number as u32)).copied();
        assert_eq!(record.ended.is_some(), run_time.is_some());
        assert!(run_time.is_none_or(|time| time == job.run_time), "work is conserved: job {number}");
    }
}

/// At no instant a queue uses more than its nominal quota and borrowing limit, or the cohort more
/// than it has.
fn quota_is_never_exceeded(policy: &Policy, history: &History) {
    let mut limits: BTreeMap<&Name, i64> = BTreeMap::new();
    for queue in policy.cluster_queues() {
        let (_, quota) = &queue.resource_groups[0].flavors[0].quotas[0];
        if let Some(borrowing) = quota.borrowing_limit {
            limits.insert(&queue.name, quota.nominal.saturated() + borrowing.saturated());
        }
    }
    let whole = policy.quota()["cpu"];
    let mut changes: Vec<(Time, i64, &Name)> = Vec::new();
    for run in &history.runs {
        let holding = &history.holdings[run.holding as usize];
        let amount = holding.amount("cpu");
        changes.push((run.from, amount, &holding.cluster_queue));
        changes.push((run.to.expect("an end"), -amount, &holding.cluster_queue));
    }
    // At one instant, runs that end come first.
    changes.sort_unstable();
    let mut used: BTreeMap<&Name, i64> = BTreeMap::new();
    let mut sum = 0;
    for (at, change, queue) in changes {
        *used.entry(queue).or_default() += change;
        sum += change;
        assert!(sum <= whole, "{sum} of {whole} at {at:?}");
        assert!(limits.get(queue).is_none_or(|limit| used[queue] <= *limit), "{queue} at {at:?}");
    }
    assert_eq!(sum, 0);
}

#[test]
fn every_built_in_policy_keeps_the_invariants() {
    let trace = trace(SMALL);
    for built_in in BuiltIn::value_variants() {
        let policy = built_in.policy(&trace);
        let (history, figures) = run(&trace, &policy);
        check(&trace, &policy, &history);
        assert_eq!((figures.finished, figures.never_started), (5, 0), "{built_in:?}");
    }
}

#[test]
fn a_blocked_head_delays_later_jobs_under_strict_fifo_only() {
    // The machine has 4 CPUs. The second job needs all of them, the third only one.
    let text = "job,submit,run,request:cpu\nx,0,100,3\ny,1,100,4\nz,2,10,1\n";
    let mut trace = trace(text);
    trace.machine = Some([(Name::from("cpu"), 4000)].into());
    let start = |built_in: BuiltIn, number: usize| {
        let (history, _) = run(&trace, &built_in.policy(&trace));
        history.start.expect("a start").until(history.jobs[number].started.expect("it ran")).as_secs()
    };
    assert_eq!((start(BuiltIn::BestEffort, 1), start(BuiltIn::BestEffort, 2)), (100, 2));
    assert_eq!((start(BuiltIn::Fifo, 1), start(BuiltIn::Fifo, 2)), (100, 200));
}

#[test]
fn reclaiming_quota_evicts_borrowers_and_loses_their_work() {
    // Tenant a borrows b's quota until b's job arrives.
    let text = "job,submit,run,tenant,request:cpu\n\
                a1,0,3600,a,2\na2,0,3600,a,2\nb1,1800,3600,b,2\n";
    let mut trace = trace(text);
    trace.machine = Some([(Name::from("cpu"), 4000)].into());
    let mut policy = BuiltIn::Reclaim.policy(&trace);
    policy.prices.set(Name::from("cpu"), None, 3.0);
    let (history, figures) = run(&trace, &policy);
    check(&trace, &policy, &history);
    assert_eq!((figures.evictions, figures.finished), (1, 3));
    // Two CPUs for half an hour.
    assert_eq!(figures.lost_hours["cpu"], 1.0);
    assert_eq!((figures.cost, figures.lost_cost), (Some(21.0), Some(3.0)));
    let (_, patient) = run(&trace, &BuiltIn::BestEffort.policy(&trace));
    assert_eq!((patient.evictions, patient.cost), (0, None));
    assert_eq!(patient.tenants["b"].wait_seconds.max, 1800.0);
}

#[test]
fn jobs_that_preempt_each_other_endlessly_do_not_stop_a_replay() {
    let trace = trace(include_str!("restless.csv"));
    let policy = BuiltIn::FairSharing.policy(&trace);
    let (history, figures) = run(&trace, &policy);
    check(&trace, &policy, &history);
    assert!(figures.restless_instants > 0, "the trace was made for this");
    assert!(figures.cycles < 20_000, "{} cycles", figures.cycles);
    assert_eq!(figures.finished, trace.jobs.len());
}

#[test]
fn figures_are_those_computed_by_hand() {
    // One CPU; both jobs arrive at once.
    let mut trace = trace("job,submit,run,tenant,request:cpu\nx,0,100,a,1\ny,0,1,b,1\nz,200,1,b,1\n");
    trace.machine = Some([(Name::from("cpu"), 1000)].into());
    let (_, figures) = run(&trace, &BuiltIn::BestEffort.policy(&trace));
    assert_eq!(figures.makespan_seconds, 201.0);
    assert_eq!((figures.wait_seconds.max, figures.wait_seconds.median), (100.0, 0.0));
    // (100 + 1) / 10, because run times count at least ten seconds.
    assert_eq!(figures.slowdown.max, 10.1);
    assert_eq!(figures.utilization_until_last_submission["cpu"], 101.0 / 200.0);
    assert_eq!(figures.tenants["a"].slowdown.mean, 1.0);
    assert_eq!(figures.slowdown_fairness, jain(&[1.0, (10.1 + 1.0) / 2.0]));
    assert_eq!(figures.fairness, 1.0, "both tenants were served in full before the last submission");
    let waiting: f64 = figures.over_time.waiting.iter().sum::<f64>() * figures.over_time.interval_seconds;
    assert!((waiting - 100.0).abs() < 0.01, "{waiting} job seconds of waiting");
    let used: f64 = figures.over_time.utilization["cpu"].iter().sum::<f64>() * figures.over_time.interval_seconds;
    assert!((used - 102.0).abs() < 0.01, "{used} CPU seconds");
}

#[test]
fn a_job_larger_than_the_capacity_never_starts() {
    let mut trace = trace("job,submit,run,request:cpu\nx,0,100,8\ny,1,100,1\n");
    trace.machine = Some([(Name::from("cpu"), 4000)].into());
    let (history, figures) = run(&trace, &BuiltIn::BestEffort.policy(&trace));
    assert_eq!((figures.finished, figures.never_started), (1, 1));
    assert!(history.jobs[0].ended.is_none());
}

#[test]
fn fairness_is_one_for_equal_shares_and_one_nth_for_a_single_one() {
    assert_eq!(jain(&[0.5, 0.5, 0.5]), 1.0);
    assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
    assert_eq!(jain(&[]), 1.0);
}

/// Lines of random jobs.
fn jobs() -> impl Strategy<Value = String> {
    let job = (0..200u32, 0..60u32, 0..3u8, 1..4u32, 1..4u32, 0..3i32);
    prop::collection::vec(job, 1..40).prop_map(|jobs| {
        let mut text = String::from("submit,run,tenant,pods,request:cpu,priority\n");
        for (submit, run, tenant, pods, cpu, priority) in jobs {
            text += &format!("{submit},{run},t{tenant},{pods},{cpu},{priority}\n");
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_traces_keep_the_invariants_and_repeat_exactly(text in jobs(), built_in in 0..5usize) {
        let trace = trace(&text);
        let policy = BuiltIn::value_variants()[built_in].policy(&trace);
        let (history, figures) = run(&trace, &policy);
        check(&trace, &policy, &history);
        prop_assert_eq!(figures.finished, trace.jobs.len(), "every quota fits the largest job of its tenant");
        let (again, repeated) = run(&trace, &policy);
        prop_assert_eq!(again, history);
        prop_assert_eq!(
            serde_json::to_string(&repeated).expect("plain data"),
            serde_json::to_string(&figures).expect("plain data")
        );
    }
}
