//! Ephemeral containers (`kubectl debug`): they start in a running pod and never restart.
//!
//! An ephemeral container ends after the duration of its command, or else with its pod. Ephemeral
//! containers do not affect the pod's readiness or phase, and are never ready themselves.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, EphemeralContainer, PodSpec, PodStatus};

use super::life::{running, terminated};
use super::run::plan_of_command;

/// Exit code of a container that was killed (128 + SIGKILL).
const KILLED: i32 = 137;

/// Result of [`update`].
#[derive(Debug, Default, PartialEq)]
pub struct Update {
    /// True if the status changed.
    pub is_changed: bool,
    /// Reason and message of the events to record.
    pub events: Vec<(&'static str, String)>,
    /// When the next ephemeral container ends.
    pub due: Option<Timestamp>,
}

/// Starts new ephemeral containers of a running pod, and terminates those whose duration is over.
pub fn update(spec: &PodSpec, status: &mut PodStatus, uid: &str, now: Timestamp) -> Update {
    let mut update = Update::default();
    for debug in spec.ephemeral_containers.iter().flatten() {
        let container = as_container(debug);
        let statuses = status.ephemeral_container_statuses.get_or_insert_default();
        let Some(known) = statuses.iter_mut().find(|known| known.name == debug.name) else {
            statuses.push(without_readiness(running(&container, uid, 0, now)));
            let image = debug.image.as_deref().unwrap_or_default();
            update.events.push(("Pulled", format!("Container image \"{image}\" already present on machine")));
            update.events.push(("Created", format!("Created container: {}", debug.name)));
            update.events.push(("Started", format!("Started container {}", debug.name)));
            update.is_changed = true;
            continue;
        };
        let run = plan_of_command(&container);
        let since = known.state.as_ref().and_then(|state| state.running.as_ref()?.started_at.clone());
        let (Some(since), Some(duration)) = (since, run.duration) else { continue };
        let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        let end = since.0.checked_add(duration).unwrap_or(Timestamp::MAX);
        if end <= now {
            let reason = if run.exit_code == 0 { "Completed" } else { "Error" };
            *known = without_readiness(terminated(&container, known.clone(), run.exit_code, reason, now));
            update.is_changed = true;
        } else {
            update.due = Some(update.due.map_or(end, |due| due.min(end)));
        }
    }
    update
}

/// Kills the ephemeral containers of a pod that terminates.
pub fn terminate_all(spec: &PodSpec, status: &mut PodStatus, now: Timestamp) {
    for known in status.ephemeral_container_statuses.iter_mut().flatten() {
        let runs = known.state.as_ref().is_some_and(|state| state.running.is_some());
        let debug = spec.ephemeral_containers.iter().flatten().find(|debug| debug.name == known.name);
        if let Some(debug) = debug.filter(|_| runs) {
            *known = without_readiness(terminated(&as_container(debug), known.clone(), KILLED, "Error", now));
        }
    }
}

fn as_container(debug: &EphemeralContainer) -> Container {
    Container {
        name: debug.name.clone(),
        image: debug.image.clone(),
        command: debug.command.clone(),
        args: debug.args.clone(),
        ..Container::default()
    }
}

/// A status for an ephemeral container: the kubelet does not probe its readiness.
fn without_readiness(status: ContainerStatus) -> ContainerStatus {
    ContainerStatus { ready: false, started: None, ..status }
}
