//! Ephemeral containers (`kubectl debug`): they start in a pod that runs, are never started again, and end with the pod.
//!
//! One whose command says how long it takes ends after that time, any other when the pod does. They are no part of the
//! pod's readiness or phase, and are never ready themselves.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, EphemeralContainer, PodSpec, PodStatus};

use super::life::{running, terminated};
use super::run::plan_of_command;

/// Exit code of a container that was killed (128 + SIGKILL).
const KILLED: i32 = 137;

/// What became of a running pod's ephemeral containers.
#[derive(Debug, Default, PartialEq)]
pub struct Followed {
    /// Is there something new in the status?
    pub is_changed: bool,
    /// What to tell as events: reason and message.
    pub events: Vec<(&'static str, String)>,
    /// When the next one ends by itself.
    pub due: Option<Timestamp>,
}

/// Starts those that were added, and ends those whose time is over.
pub fn follow(spec: &PodSpec, status: &mut PodStatus, uid: &str, now: Timestamp) -> Followed {
    let mut followed = Followed::default();
    for debug in spec.ephemeral_containers.iter().flatten() {
        let container = as_container(debug);
        let statuses = status.ephemeral_container_statuses.get_or_insert_default();
        let Some(known) = statuses.iter_mut().find(|known| known.name == debug.name) else {
            statuses.push(never_ready(running(&container, uid, 0, now)));
            let image = debug.image.as_deref().unwrap_or_default();
            followed.events.push(("Pulled", format!("Container image \"{image}\" already present on machine")));
            followed.events.push(("Created", format!("Created container: {}", debug.name)));
            followed.events.push(("Started", format!("Started container {}", debug.name)));
            followed.is_changed = true;
            continue;
        };
        let run = plan_of_command(&container);
        let since = known.state.as_ref().and_then(|state| state.running.as_ref()?.started_at.clone());
        let (Some(since), Some(takes)) = (since, run.duration) else { continue };
        let takes = SignedDuration::try_from(takes).unwrap_or(SignedDuration::MAX);
        let ends = since.0.checked_add(takes).unwrap_or(Timestamp::MAX);
        if ends <= now {
            let reason = if run.exit_code == 0 { "Completed" } else { "Error" };
            *known = never_ready(terminated(&container, known.clone(), run.exit_code, reason, now));
            followed.is_changed = true;
        } else {
            followed.due = Some(followed.due.map_or(ends, |due| due.min(ends)));
        }
    }
    followed
}

/// The pod ends, and they with it.
pub fn end(spec: &PodSpec, status: &mut PodStatus, now: Timestamp) {
    for known in status.ephemeral_container_statuses.iter_mut().flatten() {
        let runs = known.state.as_ref().is_some_and(|state| state.running.is_some());
        let debug = spec.ephemeral_containers.iter().flatten().find(|debug| debug.name == known.name);
        if let Some(debug) = debug.filter(|_| runs) {
            *known = never_ready(terminated(&as_container(debug), known.clone(), KILLED, "Error", now));
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

/// Nothing asks these whether they are ready.
fn never_ready(status: ContainerStatus) -> ContainerStatus {
    ContainerStatus { ready: false, started: None, ..status }
}
