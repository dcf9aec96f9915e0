//! The status of a PodGroup, computed from its pods.

use std::sync::Arc;

use berth_api::scheduling::{PodGroup, PodGroupStatus};
use berth_runtime::stamp;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// A group that starts to be scheduled this long after its creation is no longer reconciled while
/// no pod of it runs.
const START_MAX: SignedDuration = SignedDuration::from_hours(48);

const PENDING: &str = "Pending";
const SCHEDULING: &str = "Scheduling";
const RUNNING: &str = "Running";
const FINISHED: &str = "Finished";
const FAILED: &str = "Failed";

/// What to do with a PodGroup.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// Its status is right, or final.
    Keep,
    /// It waited too long for its pods.
    TimedOut,
    /// Its new status.
    Write(PodGroupStatus),
}

/// Computes the status of a group. `pods` are the pods with its label.
pub fn plan(group: &PodGroup, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let known = group.status.clone().unwrap_or_default();
    if matches!(known.phase.as_str(), FINISHED | FAILED) {
        return Plan::Keep;
    }
    let created = group.creation_timestamp().map_or(now, |time| time.0);
    let started = known.schedule_start_time.as_ref().map(|time| time.0);
    if matches!(known.phase.as_str(), PENDING | SCHEDULING)
        && known.running == 0
        && started.is_some_and(|started| started.duration_since(created) > START_MAX)
    {
        return Plan::TimedOut;
    }
    let mut status = known.clone();
    // Each phase leads to the next at once.
    loop {
        let before = status.phase.clone();
        step(&mut status, group.spec.min_member, pods, now);
        if status.phase == before {
            break;
        }
    }
    if status == known { Plan::Keep } else { Plan::Write(status) }
}

fn step(status: &mut PodGroupStatus, min_member: i32, pods: &[Arc<Pod>], now: Timestamp) {
    let count = |phase: &str| {
        let of_phase = pods.iter().filter(|pod| {
            let status = pod.status.as_ref();
            status.and_then(|status| status.phase.as_deref()) == Some(phase)
        });
        i32::try_from(of_phase.count()).unwrap_or(i32::MAX)
    };
    let has_enough = i32::try_from(pods.len()).unwrap_or(i32::MAX) >= min_member;
    match status.phase.as_str() {
        "" => status.phase = PENDING.into(),
        PENDING if has_enough => {
            status.phase = SCHEDULING.into();
            status.schedule_start_time = Some(stamp(now));
            status.occupied_by = occupant(pods);
        }
        PENDING => {}
        _ => {
            (status.running, status.succeeded, status.failed) = (count("Running"), count("Succeeded"), count("Failed"));
            status.phase = phase(status, min_member, has_enough).into();
        }
    }
}

fn phase(status: &PodGroupStatus, min_member: i32, has_enough: bool) -> &'static str {
    let alive = status.running.saturating_add(status.succeeded);
    if !has_enough {
        PENDING
    } else if status.succeeded >= min_member {
        FINISHED
    } else if status.failed > 0 && status.failed.saturating_add(alive) >= min_member {
        FAILED
    } else if alive >= min_member {
        RUNNING
    } else {
        SCHEDULING
    }
}

/// The owners of the first pod by name, as `namespace/name`.
fn occupant(pods: &[Arc<Pod>]) -> String {
    let Some(first) = pods.iter().min_by_key(|pod| pod.name_any()) else { return String::new() };
    let namespace = first.namespace().unwrap_or_default();
    let owners = first.owner_references().iter().map(|owner| format!("{namespace}/{}", owner.name));
    let mut owners: Vec<String> = owners.collect();
    owners.sort();
    owners.join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn group(status: serde_json::Value) -> PodGroup {
        serde_json::from_value(json!({
            "metadata": { "name": "g", "namespace": "ns", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "minMember": 2 }, "status": status,
        }))
        .unwrap()
    }

    fn pods(phases: &[&str]) -> Vec<Arc<Pod>> {
        let pod = |(number, phase): (usize, &&str)| {
            Arc::new(
                serde_json::from_value(json!({
                    "metadata": { "name": format!("p{number}"), "namespace": "ns",
                        "ownerReferences": [{ "apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u" }] },
                    "status": { "phase": phase },
                }))
                .unwrap(),
            )
        };
        phases.iter().enumerate().map(pod).collect()
    }

    /// The phase of a group after its pods have these phases.
    fn next(phase: &str, phases: &[&str]) -> String {
        let group = group(json!({ "phase": phase }));
        match plan(&group, &pods(phases), "2026-01-01T01:00:00Z".parse().unwrap()) {
            Plan::Write(status) => status.phase,
            Plan::Keep => phase.to_owned(),
            Plan::TimedOut => "timed out".to_owned(),
        }
    }

    #[test]
    fn the_phase_follows_the_pods() {
        assert_eq!(next("", &[]), "Pending");
        assert_eq!(next("Pending", &["Pending"]), "Pending");
        assert_eq!(next("", &["Pending", "Pending"]), "Scheduling");
        assert_eq!(next("Scheduling", &["Running", "Pending"]), "Scheduling");
        assert_eq!(next("Scheduling", &["Running", "Running"]), "Running");
        assert_eq!(next("Running", &["Running", "Succeeded"]), "Running");
        assert_eq!(next("Running", &["Succeeded", "Succeeded"]), "Finished");
        assert_eq!(next("Running", &["Running", "Failed"]), "Failed");
        assert_eq!(next("Running", &["Failed", "Pending"]), "Scheduling", "too few pods have a result");
        assert_eq!(next("Running", &["Running"]), "Pending", "a pod is missing");
        assert_eq!(next("Finished", &["Running", "Failed"]), "Finished", "final");
        assert_eq!(next("Failed", &["Running", "Running"]), "Failed", "final");
        assert_eq!(next("Running", &["Succeeded", "Succeeded", "Failed"]), "Finished", "enough succeeded");
    }

    #[test]
    fn the_status_counts_pods_and_names_their_owner() {
        let now: Timestamp = "2026-01-01T00:00:05Z".parse().unwrap();
        let Plan::Write(status) = plan(&group(json!({})), &pods(&["Running", "Pending", "Failed"]), now) else {
            panic!("the status is new")
        };
        assert_eq!((status.running, status.succeeded, status.failed), (1, 0, 1));
        assert_eq!(status.occupied_by, "ns/train");
        assert_eq!(status.schedule_start_time, Some(stamp(now)));
        let again = PodGroup { status: Some(status), ..group(json!({})) };
        assert_eq!(plan(&again, &pods(&["Running", "Pending", "Failed"]), now), Plan::Keep);
    }

    #[test]
    fn a_group_that_got_its_pods_after_two_days_is_given_up() {
        let late = json!({ "phase": "Scheduling", "scheduleStartTime": "2026-01-03T00:00:01Z" });
        let now = "2026-01-03T00:00:02Z".parse().unwrap();
        assert_eq!(plan(&group(late.clone()), &pods(&["Pending", "Pending"]), now), Plan::TimedOut);
        let mut running = late;
        running["running"] = json!(1);
        assert_ne!(plan(&group(running), &pods(&["Running", "Pending"]), now), Plan::TimedOut);
    }
}
