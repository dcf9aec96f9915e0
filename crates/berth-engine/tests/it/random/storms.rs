//! Histories in which the configuration changes as well. Quota is edited, queues are stopped and
//! moved, nodes join, shrink and leave, checks change their state, pods end early, and writes fail.
//! Earlier decisions may then exceed the capacity; new decisions must not.

use std::collections::{BTreeMap, BTreeSet};

use berth_engine::Verdict;
use berth_engine::model::CheckState;
use proptest::collection::vec;
use proptest::prelude::*;

use super::config;
use super::host::{Host, node_name};
use super::invariants::{every_workload_is_in_one_place, in_use, nodes, usage_matches_the_objects};
use super::plan::{Cohort, Plan, Queue, Quota, RESOURCES, Step, quota, wide_plan};
use crate::reference::quota as tree;

/// A change to the configuration or to a workload.
#[derive(Debug, Clone)]
enum Change {
    /// Sets the quotas of the n-th flavor of the n-th queue (modulo their numbers).
    Quota(usize, usize, [Quota; RESOURCES]),
    /// Sets the quotas of a cohort in the same way.
    CohortQuota(usize, usize, [Quota; RESOURCES]),
    /// Stops a queue, or starts it again.
    Stop(usize),
    /// Moves a queue into a cohort, or out of its cohort.
    Move(usize, Option<usize>),
    /// Sets the capacity of a node, or deletes it.
    Node(usize, Option<[i64; RESOURCES]>),
    /// Sets the state of a check of a workload.
    Check(usize, CheckState),
    /// Marks this number of a workload's pods as ended.
    Reclaim(usize, i32),
    /// Changes a workload's priority.
    Priority(usize, i64),
    /// Runs a part of a cycle.
    Part(usize),
    /// Runs a part of a cycle. All writes of its decisions fail.
    Refused(usize),
}

fn change() -> impl Strategy<Value = Change> {
    let quotas = || [quota(true), quota(true)];
    let state = prop_oneof![
        Just(CheckState::Pending),
        Just(CheckState::Ready),
        Just(CheckState::Retry),
        Just(CheckState::Rejected)
    ];
    prop_oneof![
        3 => (0_usize..5, 0_usize..3, quotas()).prop_map(|(at, flavor, quotas)| Change::Quota(at, flavor, quotas)),
        1 => (0_usize..3, 0_usize..3, quotas()).prop_map(|(at, flavor, quotas)| Change::CohortQuota(at, flavor, quotas)),
        1 => (0_usize..5).prop_map(Change::Stop),
        1 => (0_usize..5, proptest::option::of(0_usize..3)).prop_map(|(at, to)| Change::Move(at, to)),
        2 => (0_usize..4, proptest::option::weighted(0.7, [0_i64..6, 0_i64..7])).prop_map(|(at, it)| Change::Node(at, it)),
        1 => (0_usize..30, state).prop_map(|(at, state)| Change::Check(at, state)),
        1 => (0_usize..30, 0_i32..4).prop_map(|(at, pods)| Change::Reclaim(at, pods)),
        1 => (0_usize..30, 0_i64..11).prop_map(|(at, priority)| Change::Priority(at, priority)),
        4 => (1_usize..4).prop_map(Change::Part),
        2 => (1_usize..4).prop_map(Change::Refused),
    ]
}

/// Usage minus capacity, per node of the quota tree and per machine. Workloads that are being
/// evicted do not count: as in Kueue, their capacity is free as soon as their eviction is decided.
fn excess(host: &mut Host, plan: &Plan) -> BTreeMap<String, i64> {
    let leaving = host.leaving();
    let used = in_use(host, plan, &leaving);
    let mut excess = BTreeMap::new();
    for node in nodes(plan) {
        for fr in tree::all_frs().filter(|fr| tree::usage(plan, &used, node, *fr) > 0) {
            excess.insert(format!("{node:?} {fr:?}"), -tree::balance(plan, &used, node, fr));
        }
    }
    for (machine, resource, used) in on_machines(host, &leaving) {
        let room = plan.nodes.get(machine).map_or(0, |room| room[resource]);
        excess.insert(format!("machine {machine} {resource}"), used - room);
    }
    excess
}

/// Usage by pods, per machine and resource.
fn on_machines(host: &Host, without: &BTreeSet<String>) -> Vec<(usize, usize, i64)> {
    let mut used: BTreeMap<(usize, usize), i64> = BTreeMap::new();
    for (_, workload) in host.workloads.iter().filter(|(name, _)| !without.contains(*name)) {
        for set in workload.admission.iter().flat_map(|it| &it.pod_sets) {
            let asked =
                workload.pod_sets.iter().find(|it| it.name == set.name).expect("the pod set belongs to the workload");
            for domain in set.topology.iter().flat_map(|it| &it.domains) {
                let machine = (0..super::plan::MACHINES).find(|at| node_name(*at) == domain.values[0]);
                for (at, (_, amount)) in asked.requests.iter().enumerate() {
                    *used.entry((machine.expect("a machine of the plan"), at)).or_default() +=
                        amount * i64::from(domain.count);
                }
            }
        }
    }
    used.into_iter().map(|((machine, resource), used)| (machine, resource, used)).collect()
}

/// Runs a part of a cycle and checks that no usage rises above its capacity, or further above it.
fn decide(host: &mut Host, plan: &Plan, heads: usize) -> Result<(), TestCaseError> {
    let before = excess(host, plan);
    host.part(heads);
    for (what, after) in excess(host, plan) {
        let before = before.get(&what).copied().unwrap_or(0);
        prop_assert!(after <= before.max(0), "{} was {} beyond its limit and is {}", what, before, after);
    }
    Ok(())
}

fn happen(host: &mut Host, plan: &mut Plan, change: Change) -> Result<(), TestCaseError> {
    match change {
        Change::Quota(at, flavor, mut quotas) => {
            let at = at % plan.queues.len();
            let Queue { flavors, cohort, .. } = &mut plan.queues[at];
            if cohort.is_none() {
                quotas = quotas.map(without_limits);
            }
            let flavor = flavor % flavors.len();
            flavors[flavor].1 = quotas;
            host.queue_changed(plan, at);
        }
        Change::CohortQuota(at, flavor, mut quotas) if !plan.cohorts.is_empty() => {
            let at = at % plan.cohorts.len();
            let Cohort { quotas: own, parent, .. } = &mut plan.cohorts[at];
            if parent.is_none() {
                quotas = quotas.map(without_limits);
            }
            match own.iter_mut().find(|(it, _)| *it == flavor) {
                Some((_, known)) => *known = quotas,
                None => own.push((flavor, quotas)),
            }
            host.cohort_changed(plan, at);
        }
        Change::CohortQuota(..) => {}
        Change::Stop(at) => {
            let at = at % plan.queues.len();
            plan.queues[at].stopped = !plan.queues[at].stopped;
            host.queue_changed(plan, at);
        }
        Change::Move(at, to) => {
            let at = at % plan.queues.len();
            let to = to.filter(|_| !plan.cohorts.is_empty()).map(|to| to % plan.cohorts.len());
            plan.queues[at].cohort = to;
            if to.is_none() {
                for (_, quotas) in &mut plan.queues[at].flavors {
                    *quotas = quotas.map(without_limits);
                }
            }
            host.queue_changed(plan, at);
        }
        Change::Node(at, room) if !plan.nodes.is_empty() => {
            let at = at % plan.nodes.len();
            plan.nodes[at] = room.unwrap_or_default();
            host.node_changed(plan, at, room.is_some());
        }
        Change::Node(..) => {}
        Change::Check(which, state) => host.check(which, state),
        Change::Reclaim(which, pods) => host.reclaim(which, pods),
        Change::Priority(which, priority) => host.reprioritize(which, priority),
        Change::Part(heads) => decide(host, plan, heads)?,
        Change::Refused(heads) => host.refused_part(heads),
    }
    Ok(())
}

fn without_limits(quota: Quota) -> Quota {
    Quota { borrowing: None, lending: None, ..quota }
}

proptest! {
    #![proptest_config(config(1000, "tests/it/random/storms.regressions"))]

    #[test]
    fn changes_never_make_decisions_exceed_capacity(
        plan in wide_plan(10..60),
        changes in vec(proptest::option::weighted(0.4, change()), 60),
    ) {
        let (mut plan, steps) = (plan.clone(), plan.steps);
        let mut host = Host::new(&plan);
        for (step, change) in steps.iter().zip(changes) {
            match step {
                Step::Arrive(job) => host.arrive(job),
                Step::Finish(which) => drop(host.finish(*which)),
                Step::Stop => drop(host.stop()),
                Step::Cycle => decide(&mut host, &plan, usize::MAX)?,
            }
            if let Some(change) = change {
                happen(&mut host, &mut plan, change)?;
            }
            usage_matches_the_objects(&mut host, &plan)?;
            every_workload_is_in_one_place(&mut host, &plan)?;
        }
    }
}

/// Checks that the random histories cover enough: without decisions while usage exceeds capacity
/// they would prove little.
#[test]
fn random_storms_exceed_capacity_and_still_decide() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = (wide_plan(10..60), vec(proptest::option::weighted(0.4, change()), 60));
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for _ in 0..200 {
        let (plan, changes) = strategy.new_tree(&mut runner).expect("the strategy always returns a plan").current();
        let (mut plan, steps) = (plan.clone(), plan.steps);
        let mut host = Host::new(&plan);
        for (step, change) in steps.iter().zip(changes) {
            match step {
                Step::Arrive(job) => host.arrive(job),
                Step::Finish(which) => drop(host.finish(*which)),
                Step::Stop => drop(host.stop()),
                Step::Cycle => {
                    let beyond = excess(&mut host, &plan);
                    let has = |part: &str| beyond.iter().any(|(what, by)| *by > 0 && what.starts_with(part));
                    let (quota, machines) = (has("Q") || has("C"), has("machine"));
                    let outcome = host.cycle();
                    let admits = outcome.decisions.iter().any(|it| matches!(it.verdict, Verdict::Admit(_)));
                    *seen.entry("beyond quota").or_default() += u32::from(quota && admits);
                    *seen.entry("beyond machines").or_default() += u32::from(machines && admits);
                }
            }
            if let Some(change) = change {
                happen(&mut host, &mut plan, change).expect("the property covers this");
            }
        }
    }
    for (what, least) in [("beyond quota", 3), ("beyond machines", 1)] {
        assert!(seen.get(what).is_some_and(|count| *count >= least), "{what}: {seen:?}");
    }
}
