//! The runs of a pod's containers, from the runtime's report and the pod's status.

use std::collections::BTreeMap;

use berth_pod_runtime::{ContainerState, ContainerStatus, PodState};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus as KnownStatus, Pod, PodStatus};

use super::shown_id;
use crate::kubelet::lifecycle::{End, Run, RunState, Runs, UNKNOWN_EXIT_CODE, UNKNOWN_REASON, members, runs_in_status};

/// Reason of a start that the runtime rejected.
pub const START_ERROR: &str = "StartError";
/// Message of a run whose end was not recorded.
const LOST: &str = "The container could not be located: its supervisor or sandbox ended before the container's exit \
                    code was recorded";

/// The latest two runs of each container. `failed` contains the starts that the runtime rejected.
///
/// The runtime's report takes precedence. The runs of sandboxes that no longer exist are known from
/// the status.
pub fn runs(
    pod: &Pod,
    state: Option<&PodState>,
    failed: &BTreeMap<String, Run>,
    now: Timestamp,
) -> BTreeMap<String, Runs> {
    let no_status = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&no_status);
    let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let known: BTreeMap<&str, &KnownStatus> =
        lists.into_iter().flatten().flatten().map(|it| (it.name.as_str(), it)).collect();
    let mut all = BTreeMap::new();
    for member in pod.spec.iter().flat_map(members) {
        let name = member.spec.name.as_str();
        let known = known.get(name).copied();
        let mut list: Vec<Run> = known.map(|known| of_status(known, state, now)).unwrap_or_default();
        let reported = state.into_iter().flat_map(|state| state.containers.iter().map(move |it| (state, it)));
        for (state, container) in reported.filter(|(_, it)| it.id.name == name) {
            let run = of_runtime(state, container, &list, now);
            list.retain(|other| other.attempt != run.attempt);
            list.push(run);
        }
        if let Some(run) = failed.get(name) {
            // The runtime may list a rejected start as a run.
            list.retain(|other| other.attempt != run.attempt);
            list.push(run.clone());
        }
        list.sort_by_key(|run| run.attempt);
        if let Some(latest) = list.pop() {
            all.insert(name.to_owned(), Runs { latest, previous: list.pop().filter(|run| !run.is_running()) });
        }
    }
    all
}

/// The runs that a status shows. A run that the status shows as running but the runtime does not
/// know is lost.
fn of_status(known: &KnownStatus, state: Option<&PodState>, now: Timestamp) -> Vec<Run> {
    let Some(runs) = runs_in_status(known) else { return Vec::new() };
    let is_current = |run: &Run| {
        let started = match &run.state {
            RunState::Running { since } => *since,
            RunState::Ended(end) => end.started.unwrap_or(end.finished),
        };
        // Times in a status are whole seconds.
        state.is_some_and(|state| state.is_ready && started.as_second() >= state.created_at.as_second())
    };
    let mut latest = runs.latest;
    latest.is_current = is_current(&latest);
    if let RunState::Running { since } = latest.state {
        latest.state = RunState::Ended(lost(Some(since), now));
    }
    let previous = runs.previous.map(|mut run| {
        run.is_current = is_current(&run);
        run
    });
    previous.into_iter().chain([latest]).collect()
}

fn of_runtime(state: &PodState, container: &ContainerStatus, known: &[Run], now: Timestamp) -> Run {
    let attempt = i32::try_from(container.id.attempt).unwrap_or(i32::MAX);
    let known = known.iter().find(|run| run.attempt == attempt);
    // The time of a loss is the time at which it was first noticed.
    let noticed = || {
        let end = known.and_then(Run::end).filter(|end| end.reason == UNKNOWN_REASON);
        end.map_or(now, |end| end.finished)
    };
    let run_state = match (&container.state, known.and_then(Run::end)) {
        (ContainerState::Running { started_at }, _) if state.is_ready => RunState::Running { since: *started_at },
        (ContainerState::Running { started_at }, _) => RunState::Ended(lost(Some(*started_at), noticed())),
        (ContainerState::Unknown { started_at }, _) => RunState::Ended(lost(*started_at, noticed())),
        // A rejected start was reported with this reason before.
        (ContainerState::Exited(_), Some(end)) if end.reason == START_ERROR => RunState::Ended(end.clone()),
        (ContainerState::Exited(exit), _) => RunState::Ended(End {
            started: Some(exit.started_at),
            finished: exit.finished_at,
            exit_code: exit.exit_code,
            reason: match exit.exit_code {
                _ if exit.oom_killed => "OOMKilled",
                0 => "Completed",
                _ => "Error",
            }
            .to_owned(),
            message: Some(exit.message.clone()).filter(|message| !message.is_empty()),
            // The exit code includes the signal. Kubernetes' runtimes leave this field empty.
            signal: None,
        }),
    };
    Run {
        attempt,
        container_id: shown_id(&container.id),
        image_id: container.image_id.clone(),
        is_current: state.is_ready,
        state: run_state,
    }
}

fn lost(started: Option<Timestamp>, now: Timestamp) -> End {
    End {
        started,
        finished: now,
        exit_code: UNKNOWN_EXIT_CODE,
        reason: UNKNOWN_REASON.to_owned(),
        message: Some(LOST.to_owned()),
        signal: None,
    }
}
