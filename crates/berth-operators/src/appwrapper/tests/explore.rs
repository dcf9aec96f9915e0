//! All states that the model of an AppWrapper can reach, by every interleaving of faults, time,
//! users and API errors, and what must hold in each of them.

use std::collections::{HashSet, VecDeque};

use super::model::{Constants, PodPhase, World};
use crate::appwrapper::plan::Next;
use crate::appwrapper::types::Phase;

/// How a state was reached: the state before, and the move.
type Origin = Option<(usize, &'static str)>;

/// The reached states in the order of their depth.
struct Reached {
    worlds: Vec<World>,
    origins: Vec<Origin>,
}

impl Reached {
    /// The moves that lead to a state, for messages.
    fn path(&self, mut index: usize) -> Vec<&'static str> {
        let mut path = Vec::new();
        while let Some((before, label)) = self.origins[index] {
            path.push(label);
            index = before;
        }
        path.reverse();
        path
    }
}

/// Moves that lead through the life of an AppWrapper: it runs, is reset, runs again and succeeds.
const LIFE: [&str; 31] = [
    "step",
    "suspend changes",
    "step",
    "step",
    "creation",
    "creation",
    "step",
    "component makes a pod",
    "component makes a pod",
    "pod starts",
    "pod starts",
    "step",
    "pod fails",
    "component fails",
    "step",
    "step",
    "component is gone",
    "component is gone",
    "pod is collected",
    "pod is collected",
    "step",
    "a second passes",
    "step",
    "creation",
    "creation",
    "step",
    "component makes a pod",
    "component makes a pod",
    "pod starts",
    "pod succeeds",
    "step",
];

/// The states on the way of an undisturbed life. Moves that are not possible are skipped.
fn life(constants: &Constants) -> Vec<(World, &'static str)> {
    let mut states = vec![(World::new(), "")];
    for wanted in LIFE {
        let world = &states[states.len() - 1].0;
        let steps = world.steps(constants).into_iter().map(|(label, next, _)| (label, next));
        // The last creation is the successful one.
        if let Some((label, next)) = steps.chain(world.moves()).rfind(|(label, _)| *label == wanted) {
            states.push((next, label));
        }
    }
    states
}

/// Explores all states within this number of moves from any state of an undisturbed life, and
/// checks each. Returns the states, and true if no state was left out.
fn explore(constants: &Constants, depth_max: usize) -> (Reached, bool) {
    let mut known = HashSet::new();
    let mut reached = Reached { worlds: Vec::new(), origins: Vec::new() };
    let mut queue = VecDeque::new();
    for (index, (world, label)) in life(constants).into_iter().enumerate() {
        known.insert(world.key());
        reached.worlds.push(world);
        reached.origins.push(index.checked_sub(1).map(|before| (before, label)));
        queue.push_back((index, 0));
    }
    let mut is_complete = true;
    while let Some((index, depth)) = queue.pop_front() {
        let world = reached.worlds[index].clone();
        if world.is_gone() {
            continue;
        }
        let steps = world.steps(constants).into_iter().map(|(label, next, _)| (label, next));
        for (label, next) in steps.chain(world.moves()) {
            if !known.insert(next.key()) {
                continue;
            }
            if depth == depth_max {
                is_complete = false;
                continue;
            }
            let broken = broken_rule(constants, &world, &next);
            reached.worlds.push(next);
            reached.origins.push(Some((index, label)));
            let last = reached.worlds.len() - 1;
            if let Some(rule) = broken {
                let path = reached.path(last).join("\n  ");
                panic!("{rule}, after:\n  {path}\n{:#?}", reached.worlds[last]);
            }
            queue.push_back((last, depth + 1));
        }
    }
    (reached, is_complete)
}

/// The rule that a transition breaks.
fn broken_rule(constants: &Constants, before: &World, after: &World) -> Option<&'static str> {
    let status = &after.status;
    let (phase, was) = (status.phase, before.status.phase);
    let is_terminal = |phase| matches!(phase, Phase::Succeeded | Phase::Failed);
    let exists = !after.objects.is_empty() || !after.pods.is_empty();
    let epochs: Vec<u32> =
        after.objects.values().map(|it| it.epoch).chain(after.pods.iter().map(|it| it.epoch)).collect();
    let is_active = after.pods.iter().any(|pod| matches!(pod.phase, PodPhase::Pending | PodPhase::Running));
    let (held_quota, holds_quota) = (before.status.is_true("QuotaReserved"), status.is_true("QuotaReserved"));
    // A success gives quota back although its components remain; they have no active pods.
    let may_remain = matches!(phase, Phase::Succeeded) || (phase == Phase::Terminating && !held_quota);
    let rules = [
        (epochs.iter().any(|epoch| *epoch != epochs[0]), "two deployments exist at once"),
        (!holds_quota && exists && !may_remain, "components or pods exist without quota"),
        (!holds_quota && is_active, "pods are active without quota"),
        (after.is_gone() && exists, "the AppWrapper is gone and components or pods exist"),
        (!after.has_finalizer && exists, "components or pods exist without the finalizer"),
        (!status.is_true("ResourcesDeployed") && exists, "components or pods exist without ResourcesDeployed"),
        (status.resetting_count > constants.parameters.retry_limit, "the retry limit was exceeded"),
        (status.resetting_count < before.status.resetting_count, "resets were forgotten"),
        (is_terminal(was) && phase != was && phase != Phase::Terminating, "a terminal phase was left"),
        (was == Phase::Terminating && phase != was, "phase Terminating was left"),
        (phase == Phase::Terminating && !after.is_deleting, "phase Terminating without a deletion"),
    ];
    rules.into_iter().find(|(is_broken, _)| *is_broken).map(|(_, rule)| rule)
}

/// From any state the AppWrapper comes to rest, if from now on nothing fails and time passes only
/// as the operator requests it: no timer is missing.
fn comes_to_rest(constants: &Constants, start: &World) -> Result<(), String> {
    const MOVES_MAX: usize = 200;
    let mut world = start.clone();
    world.is_node_bad = false;
    for _ in 0..MOVES_MAX {
        let (_, after, next) = world.steps(constants).into_iter().next().expect("a step has a result");
        world = after;
        if world.is_gone() {
            return Ok(());
        }
        if next == Next::Again {
            continue;
        }
        // Everything outside of the operator proceeds, and pods end well.
        let good = ["component is gone", "pod is collected", "component makes a pod", "pod starts", "pod succeeds"];
        let proceeding = world.moves().into_iter().find(|(label, _)| good.contains(label));
        match (proceeding, next) {
            (Some((_, after)), _) => world = after,
            (None, Next::After(delay)) => world.now += delay,
            (None, _) => {
                let phase = world.status.phase;
                let is_at_rest = match phase {
                    Phase::Suspended => world.suspend,
                    Phase::Succeeded | Phase::Failed => world.objects.is_empty() && world.pods.is_empty(),
                    _ => false,
                };
                return if is_at_rest { Ok(()) } else { Err(format!("waits for nothing in phase {phase:?}")) };
            }
        }
    }
    Err(format!("no end after {MOVES_MAX} moves, in phase {:?}", world.status.phase))
}

fn check(constants: &Constants, depth_max: usize) -> (Reached, bool) {
    let (reached, is_complete) = explore(constants, depth_max);
    println!("{} states to depth {depth_max}, complete: {is_complete}", reached.worlds.len());
    for (index, world) in reached.worlds.iter().enumerate() {
        if let Err(why) = comes_to_rest(constants, world) {
            panic!("{why}, after:\n  {}\n{world:#?}", reached.path(index).join("\n  "));
        }
    }
    (reached, is_complete)
}

#[track_caller]
fn assert_phases(reached: &Reached) {
    use Phase::*;
    for phase in [Suspended, Resuming, Running, Resetting, Suspending, Succeeded, Failed, Terminating] {
        assert!(reached.worlds.iter().any(|world| world.status.phase == phase), "phase {phase:?} is not reached");
    }
    assert!(reached.worlds.iter().any(|world| world.status.resetting_count == 1), "no reset counts");
}

/// The depth of a test: `BERTH_EXPLORE_DEPTH`, or this one. With 100, one component is explored
/// completely: 368,560 states, in two minutes.
fn depth(usual: usize) -> usize {
    std::env::var("BERTH_EXPLORE_DEPTH").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn states_of_one_component_keep_the_rules() {
    let (reached, is_complete) = check(&Constants::new(1, true, 0), depth(5));
    assert_phases(&reached);
    assert!(is_complete || depth(5) < 100);
}

#[test]
fn states_of_one_component_that_is_kept_after_a_failure_keep_the_rules() {
    assert_phases(&check(&Constants::new(1, true, 1), depth(4)).0);
}

#[test]
fn states_of_two_components_with_generated_names_keep_the_rules() {
    assert_phases(&check(&Constants::new(2, false, 0), depth(3)).0);
}
