//! How far a rolling update has come, and its next step: the partition and the size of the leaders'
//! StatefulSet.
//!
//! The StatefulSet replaces leaders from the highest index down to the partition, and the workers
//! of a group follow their leader. At rest the partition is that of the spec, and there are as many
//! leaders as groups are wanted. During an update there may be more (`maxSurge`).
//!
//! Source: kubernetes-sigs/lws, `leaderworkerset_controller.go` at 060ab4d.

use berth_apimachinery::int_or_string;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::constants::REPLICAS;
use super::facts;
use super::types::LeaderWorkerSetSpec;

/// The bounds of an update, in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Groups with a lower index keep their revision.
    pub partition: i32,
    /// Groups that may be unavailable.
    pub max_unavailable: i32,
    /// Groups that may exist beyond the wanted ones.
    pub max_surge: i32,
}

impl Bounds {
    /// The bounds of a set.
    ///
    /// # Errors
    /// A bound is neither a number nor a percentage.
    pub fn of(spec: &LeaderWorkerSetSpec) -> Result<Self, String> {
        let rolling = spec.rollout_strategy.rolling_update_configuration.clone().unwrap_or_default();
        let groups = i64::from(spec.groups());
        let resolve = |field: &str, value: Option<Value>, default: i32, round_up: bool| {
            let value = value.unwrap_or_else(|| json!(default));
            int_or_string::scaled(&value, groups, round_up)
                .map(|amount| i32::try_from(amount).unwrap_or(i32::MAX))
                .map_err(|why| format!("spec.rolloutStrategy.rollingUpdateConfiguration.{field}: {why}"))
        };
        Ok(Self {
            partition: rolling.partition.unwrap_or(0),
            max_unavailable: resolve("maxUnavailable", rolling.max_unavailable, 1, false)?,
            // There is no need for more additional groups than there are groups.
            max_surge: resolve("maxSurge", rolling.max_surge, 0, true)?.min(spec.groups()),
        })
    }

    /// Leaders that the StatefulSet may replace at once. A group that is to be replaced may be
    /// covered by an additional one.
    pub fn of_leaders(self) -> i32 {
        self.max_unavailable.saturating_add(self.max_surge).max(1)
    }
}

/// The state of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupState {
    /// The leader and all workers are ready.
    pub ready: bool,
    /// The leader and the workers are of the current revision.
    pub updated: bool,
}

impl GroupState {
    fn is_done(self) -> bool {
        self.ready && self.updated
    }
}

/// The states of the first `count` groups. A group whose leader or workers do not exist is not
/// ready.
pub fn states<'a>(
    set: &str,
    spec: &LeaderWorkerSetSpec,
    count: i32,
    revision: &str,
    leaders: impl Fn(&str) -> Option<&'a Pod>,
    workers: impl Fn(&str) -> Option<&'a StatefulSet>,
) -> Vec<GroupState> {
    let state = |index: i32| {
        let name = format!("{set}-{index}");
        let leader = leaders(&name)?;
        let mut state = GroupState {
            ready: facts::is_running_and_ready(leader),
            updated: facts::revision_of(&leader.metadata) == revision,
        };
        if spec.size() != 1 {
            let workers = workers(&name)?;
            state.ready &= facts::is_ready(workers);
            state.updated &= facts::revision_of(&workers.metadata) == revision;
        }
        Some(state)
    };
    (0..count).map(|index| state(index).unwrap_or_default()).collect()
}

/// The next size and partition of the leaders' StatefulSet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// `spec.updateStrategy.rollingUpdate.partition`.
    pub partition: i32,
    /// `spec.replicas`.
    pub replicas: i32,
}

/// The leaders' StatefulSet as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaders {
    /// `spec.replicas`.
    pub replicas: i32,
    /// The partition.
    pub partition: i32,
    /// Wanted groups at the last write; `None` if the annotation is missing.
    pub wanted: Option<i32>,
}

impl Leaders {
    /// The facts of a StatefulSet.
    pub fn of(set: &StatefulSet) -> Self {
        let spec = set.spec.clone().unwrap_or_default();
        let rolling = spec.update_strategy.and_then(|strategy| strategy.rolling_update);
        let wanted = set.metadata.annotations.as_ref().and_then(|annotations| annotations.get(REPLICAS));
        Self {
            replicas: spec.replicas.unwrap_or(1),
            partition: rolling.and_then(|rolling| rolling.partition).unwrap_or(0),
            wanted: wanted.and_then(|wanted| wanted.parse().ok()),
        }
    }
}

/// The next step. `is_new_revision`: the templates have just changed. `states` has the states of
/// the existing groups, and is read only during an update.
pub fn step(
    groups: i32,
    bounds: Bounds,
    leaders: Option<Leaders>,
    is_new_revision: bool,
    states: impl FnOnce(i32) -> Vec<GroupState>,
) -> Step {
    let step = unbounded_step(groups, bounds, leaders, is_new_revision, states);
    Step { partition: step.partition.max(bounds.partition), ..step }
}

fn unbounded_step(
    groups: i32,
    bounds: Bounds,
    leaders: Option<Leaders>,
    is_new_revision: bool,
    states: impl FnOnce(i32) -> Vec<GroupState>,
) -> Step {
    // New groups get the current templates.
    let Some(leaders) = leaders else { return Step { partition: 0, replicas: groups } };
    let burst = groups.saturating_add(bounds.max_surge);
    if is_new_revision {
        let partition = groups.min(leaders.replicas);
        // The set grows before it is updated.
        let grows = leaders.replicas < groups;
        return Step { partition, replicas: if grows { groups } else { size(groups, bounds, groups) } };
    }
    if leaders.partition == 0 && leaders.replicas == groups {
        return Step { partition: 0, replicas: groups };
    }
    if leaders.replicas < groups {
        return Step { partition: leaders.partition, replicas: groups };
    }
    let states = states(leaders.replicas);
    let unready = unready(&states, groups);
    if leaders.wanted != Some(groups) {
        return Step { partition: leaders.partition.min(burst), replicas: size(groups, bounds, unready) };
    }
    // Additional groups that are gone no longer cover groups that are replaced.
    let at_once = bounds.max_unavailable + bounds.max_surge - (burst - leaders.replicas);
    let partition = partition(&states, leaders.replicas, at_once, leaders.partition);
    Step { partition, replicas: size(groups, bounds, unready) }
}

/// Wanted groups that are not yet ready and updated.
fn unready(states: &[GroupState], groups: i32) -> i32 {
    let state = |index: i32| usize::try_from(index).ok().and_then(|index| states.get(index));
    let unready = (0..groups).filter(|index| !state(*index).is_some_and(|state| state.is_done()));
    i32::try_from(unready.count()).unwrap_or(i32::MAX)
}

/// Size of the StatefulSet while `unready` wanted groups are not done: additional groups go as soon
/// as the rest may be unavailable.
fn size(groups: i32, bounds: Bounds, unready: i32) -> i32 {
    if unready > bounds.max_surge {
        return groups.saturating_add(bounds.max_surge);
    }
    groups + (unready - bounds.max_unavailable).max(0)
}

/// The next partition, which is never above the `current` one.
fn partition(states: &[GroupState], replicas: i32, at_once: i32, current: i32) -> i32 {
    let at = |index: i32| usize::try_from(index).ok().and_then(|i| states.get(i)).copied().unwrap_or_default();
    let done = (0..replicas).rev().take_while(|index| at(*index).is_done()).count();
    let lowest = (replicas - i32::try_from(done).unwrap_or(i32::MAX) - at_once).max(0);
    // Groups below that are unavailable already take a part of the bound.
    let unavailable = (0..lowest).filter(|index| !at(*index).ready).count();
    let mut partition = lowest.saturating_add(i32::try_from(unavailable).unwrap_or(i32::MAX));
    // Groups that are not ready may be replaced at once: nothing becomes unavailable by it. Without
    // this an update of broken groups would never proceed.
    for index in (lowest..=partition.min(replicas - 1)).rev() {
        if at(index).ready && !at(index).updated {
            break;
        }
        partition = index;
    }
    partition.min(current)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: GroupState = GroupState { ready: true, updated: true };
    const OLD: GroupState = GroupState { ready: true, updated: false };
    const STARTS: GroupState = GroupState { ready: false, updated: true };
    const BROKEN: GroupState = GroupState { ready: false, updated: false };

    fn bounds(max_unavailable: i32, max_surge: i32) -> Bounds {
        Bounds { partition: 0, max_unavailable, max_surge }
    }

    fn next(groups: i32, bounds: Bounds, leaders: Leaders, states: &[GroupState]) -> (i32, i32) {
        let step = step(groups, bounds, Some(leaders), false, |_| states.to_vec());
        (step.partition, step.replicas)
    }

    fn leaders(replicas: i32, partition: i32, wanted: i32) -> Leaders {
        Leaders { replicas, partition, wanted: Some(wanted) }
    }

    #[test]
    fn a_new_set_starts_with_all_groups_of_the_current_revision() {
        let first = step(3, bounds(1, 1), None, false, |_| Vec::new());
        assert_eq!(first, Step { partition: 0, replicas: 3 });
        let kept = step(3, Bounds { partition: 2, ..bounds(1, 0) }, None, false, |_| Vec::new());
        assert_eq!(kept.partition, 2, "the partition of the spec is the lowest");
    }

    #[test]
    fn a_new_revision_first_closes_the_partition_and_adds_surge_groups() {
        let changed = |groups, bounds, replicas| {
            let step = step(groups, bounds, Some(leaders(replicas, 0, replicas)), true, |_| Vec::new());
            (step.partition, step.replicas)
        };
        assert_eq!(changed(4, bounds(1, 0), 4), (4, 4));
        assert_eq!(changed(4, bounds(1, 2), 4), (4, 6));
        assert_eq!(changed(6, bounds(1, 2), 4), (4, 6), "growth comes first, without surge");
        assert_eq!(changed(2, bounds(1, 0), 4), (2, 2), "shrinking goes with the update");
    }

    #[test]
    fn an_update_replaces_max_unavailable_groups_at_a_time_from_the_end() {
        let at = |partition, states: &[GroupState]| next(4, bounds(2, 0), leaders(4, partition, 4), states).0;
        assert_eq!(at(4, &[OLD; 4]), 2);
        assert_eq!(at(2, &[OLD, OLD, STARTS, BROKEN]), 2, "it waits for them");
        assert_eq!(at(2, &[OLD, OLD, STARTS, DONE]), 1);
        assert_eq!(at(2, &[OLD, OLD, DONE, DONE]), 0);
        assert_eq!(at(0, &[DONE; 4]), 0);
    }

    #[test]
    fn an_unavailable_group_below_the_partition_counts_against_the_bound() {
        assert_eq!(next(4, bounds(1, 0), leaders(4, 4, 4), &[BROKEN, OLD, OLD, OLD]).0, 4);
        assert_eq!(next(4, bounds(1, 0), leaders(4, 4, 4), &[BROKEN; 4]).0, 3, "broken groups do not block");
    }

    #[test]
    fn surge_groups_are_removed_once_the_rest_may_be_unavailable() {
        let all = |states: &[GroupState]| next(2, bounds(1, 1), leaders(3, 1, 2), states).1;
        assert_eq!(all(&[OLD, STARTS, DONE]), 3);
        assert_eq!(all(&[OLD, DONE, DONE]), 2, "one group is left, and one may be unavailable");
    }

    #[test]
    fn a_set_that_is_scaled_during_an_update_keeps_its_partition() {
        assert_eq!(next(6, bounds(1, 0), leaders(4, 2, 4), &[OLD; 4]), (2, 6));
        assert_eq!(next(2, bounds(1, 0), leaders(4, 3, 4), &[OLD; 4]), (2, 2));
    }

    #[test]
    fn percentages_of_bounds_round_away_from_a_standstill() {
        let spec = |unavailable: Value, surge: Value| {
            let rolling = json!({"maxUnavailable": unavailable, "maxSurge": surge});
            LeaderWorkerSetSpec::read(
                &json!({"replicas": 5, "rolloutStrategy": {"rollingUpdateConfiguration": rolling}}),
            )
            .expect("a spec")
        };
        let read = Bounds::of(&spec(json!("30%"), json!("30%"))).expect("bounds");
        assert_eq!((read.max_unavailable, read.max_surge, read.of_leaders()), (1, 2, 3));
        assert_eq!(Bounds::of(&spec(json!(1), json!(9))).expect("bounds").max_surge, 5);
        assert!(Bounds::of(&spec(json!("a"), json!(0))).is_err_and(|why| why.contains("maxUnavailable")));
    }
}
