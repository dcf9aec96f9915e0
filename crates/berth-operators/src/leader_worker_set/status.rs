//! The status of a LeaderWorkerSet: counts of its groups, and the conditions Available, Progressing
//! and UpdateInProgress.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::constants::GROUP_INDEX;
use super::facts;
use super::objects::leader_labels;
use super::types::{LeaderWorkerSetSpec, LeaderWorkerSetStatus};

/// A group that exists.
#[derive(Clone, Copy)]
pub struct Group<'a> {
    /// The leader.
    pub leader: &'a Pod,
    /// The StatefulSet of the workers, unless the group has only a leader.
    pub workers: Option<&'a StatefulSet>,
}

/// The facts that the status is derived from.
pub struct Observed<'a> {
    /// Name of the set.
    pub name: &'a str,
    /// Spec of the set.
    pub spec: &'a LeaderWorkerSetSpec,
    /// Partition of the spec.
    pub partition: i32,
    /// Generation of the set.
    pub generation: i64,
    /// `status.replicas` of the leaders' StatefulSet.
    pub leaders: i32,
    /// The groups that exist.
    pub groups: Vec<Group<'a>>,
    /// Key of the current revision.
    pub revision: &'a str,
    /// Cluster time.
    pub now: Time,
}

/// Counts of groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    ready: i32,
    updated: i32,
    /// Of the wanted groups: ready ones.
    wanted_ready: i32,
    /// Of the wanted groups at or above the partition: all, updated ones, and done ones.
    to_update: i32,
    to_update_updated: i32,
    to_update_done: i32,
}

fn count(observed: &Observed<'_>) -> Counts {
    let mut counts = Counts::default();
    for group in &observed.groups {
        let Ok(index) = facts::label(&group.leader.metadata, GROUP_INDEX).parse::<i32>() else { continue };
        let is_alone = observed.spec.size() == 1;
        if !is_alone && group.workers.is_none() {
            continue;
        }
        let workers = group.workers.filter(|_| !is_alone);
        let ready = facts::is_running_and_ready(group.leader) && workers.is_none_or(facts::is_ready);
        let updated = facts::revision_of(&group.leader.metadata) == observed.revision
            && workers.is_none_or(|workers| facts::revision_of(&workers.metadata) == observed.revision);
        let is_wanted = index < observed.spec.groups();
        let is_to_update = is_wanted && index >= observed.partition;
        counts.ready += i32::from(ready);
        counts.updated += i32::from(updated);
        counts.wanted_ready += i32::from(ready && is_wanted);
        counts.to_update += i32::from(is_to_update);
        counts.to_update_updated += i32::from(is_to_update && updated);
        counts.to_update_done += i32::from(is_to_update && updated && ready);
    }
    counts
}

/// A condition that becomes true.
struct Truth {
    kind: &'static str,
    reason: &'static str,
    message: &'static str,
}

const AVAILABLE: Truth = Truth { kind: "Available", reason: "AllGroupsReady", message: "All replicas are ready" };
const PROGRESSING: Truth =
    Truth { kind: "Progressing", reason: "GroupsProgressing", message: "Replicas are progressing" };
const UPDATING: Truth =
    Truth { kind: "UpdateInProgress", reason: "GroupsUpdating", message: "Rolling Upgrade is in progress" };

/// The next status, and an event if a condition changed.
pub struct Next {
    /// The status.
    pub status: LeaderWorkerSetStatus,
    /// Reason and message of the event.
    pub event: Option<(&'static str, String)>,
    /// True if all groups are ready and of the current revision: older revisions are of no use.
    pub is_done: bool,
}

/// Derives the next status.
pub fn next(observed: &Observed<'_>, old: &LeaderWorkerSetStatus) -> Next {
    let counts = count(observed);
    let groups = observed.spec.groups();
    let truths: &[Truth] = if counts.to_update_updated < counts.to_update {
        &[UPDATING, PROGRESSING]
    } else if counts.wanted_ready == groups && counts.to_update_done == counts.to_update {
        &[AVAILABLE]
    } else {
        &[PROGRESSING]
    };
    let mut status = old.clone();
    let mut changed = false;
    for truth in truths {
        changed |= set_true(&mut status.conditions, truth, observed);
    }
    for condition in &mut status.conditions {
        if condition.observed_generation != Some(observed.generation) {
            condition.observed_generation = Some(observed.generation);
            changed = true;
        }
    }
    let event = changed.then(|| {
        let message = format!("{}, with {} groups ready of total {groups} groups", truths[0].message, counts.ready);
        (truths[0].reason, message)
    });
    status.ready_replicas = counts.ready;
    status.updated_replicas = counts.updated;
    status.replicas = observed.leaders;
    status.observed_generation = Some(observed.generation);
    if status.hpa_pod_selector.is_empty() {
        let selector = leader_labels(observed.name).map(|(key, value)| format!("{key}={value}"));
        status.hpa_pod_selector = selector.join(",");
    }
    Next { status, event, is_done: observed.partition == 0 && counts.to_update_done == groups }
}

/// Sets a condition to true, and those that exclude it to false. True if anything changed.
fn set_true(conditions: &mut Vec<Condition>, truth: &Truth, observed: &Observed<'_>) -> bool {
    let now = &observed.now;
    let mut changed = false;
    for condition in conditions.iter_mut() {
        let excludes = (condition.type_ == "Available") != (truth.kind == "Available");
        if condition.type_ != truth.kind && excludes && condition.status == "True" {
            condition.status = "False".to_owned();
            condition.last_transition_time = now.clone();
            changed = true;
        }
    }
    let known = conditions.iter_mut().find(|condition| condition.type_ == truth.kind);
    if known.as_ref().is_some_and(|condition| condition.status == "True") {
        return changed;
    }
    let condition = Condition {
        type_: truth.kind.to_owned(),
        status: "True".to_owned(),
        reason: truth.reason.to_owned(),
        message: truth.message.to_owned(),
        observed_generation: Some(observed.generation),
        last_transition_time: now.clone(),
    };
    match known {
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::leader_worker_set::constants::REVISION;

    fn leader(index: usize, ready: bool, revision: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": format!("web-{index}"), "labels": {GROUP_INDEX: index.to_string(), REVISION: revision}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}}))
        .expect("a pod")
    }

    fn observe(groups: i32, partition: i32, leaders: &[Pod], old: &LeaderWorkerSetStatus) -> Next {
        let spec = LeaderWorkerSetSpec::read(&json!({"replicas": groups, "leaderWorkerTemplate": {"size": 1}}))
            .expect("a spec");
        let observed = Observed {
            name: "web",
            spec: &spec,
            partition,
            generation: 1,
            leaders: i32::try_from(leaders.len()).expect("few"),
            groups: leaders.iter().map(|leader| Group { leader, workers: None }).collect(),
            revision: "r2",
            now: Time("2026-01-05T09:00:00Z".parse().expect("a time")),
        };
        next(&observed, old)
    }

    fn truths(next: &Next) -> Vec<&str> {
        let all = next.status.conditions.iter().filter(|condition| condition.status == "True");
        all.map(|condition| condition.type_.as_str()).collect()
    }

    #[test]
    fn a_set_progresses_becomes_available_and_is_updated() {
        let none = LeaderWorkerSetStatus::default();
        let started = observe(2, 0, &[leader(0, false, "r2"), leader(1, true, "r2")], &none);
        assert_eq!(truths(&started), ["Progressing"]);
        assert_eq!((started.status.ready_replicas, started.status.replicas, started.is_done), (1, 2, false));
        assert_eq!(
            started.status.hpa_pod_selector,
            "leaderworkerset.sigs.k8s.io/name=web,leaderworkerset.sigs.k8s.io/worker-index=0"
        );
        let event = started.event.clone().expect("an event");
        assert_eq!(event.1, "Replicas are progressing, with 1 groups ready of total 2 groups");
        let ready = [leader(0, true, "r2"), leader(1, true, "r2")];
        let available = observe(2, 0, &ready, &started.status);
        assert_eq!((truths(&available), available.is_done), (vec!["Available"], true));
        assert!(observe(2, 0, &ready, &available.status).event.is_none());
        let updating = observe(2, 0, &[leader(0, true, "r1"), leader(1, true, "r2")], &available.status);
        assert_eq!(truths(&updating), ["Progressing", "UpdateInProgress"]);
        assert_eq!(truths(&observe(2, 0, &ready, &updating.status)), ["Available"]);
    }

    #[test]
    fn a_group_below_the_partition_may_keep_its_revision() {
        let kept = [leader(0, true, "r1"), leader(1, true, "r2")];
        let next = observe(2, 1, &kept, &LeaderWorkerSetStatus::default());
        assert_eq!((truths(&next), next.is_done), (vec!["Available"], false), "the old revision is still in use");
        assert_eq!(next.status.updated_replicas, 1);
    }

    #[test]
    fn an_additional_group_does_not_count_as_wanted() {
        let surge = [leader(0, false, "r2"), leader(1, true, "r2")];
        let next = observe(1, 0, &surge, &LeaderWorkerSetStatus::default());
        assert_eq!((truths(&next), next.status.ready_replicas), (vec!["Progressing"], 1));
    }

    #[test]
    fn a_set_without_groups_is_available() {
        let next = observe(0, 0, &[], &LeaderWorkerSetStatus::default());
        assert_eq!(truths(&next), ["Available"]);
    }
}
