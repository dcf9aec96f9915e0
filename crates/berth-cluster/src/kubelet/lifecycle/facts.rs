//! Input and output of [`super::decide()`].

use std::collections::BTreeMap;

use berth_pod_runtime::ContainerKind;
use berth_runtime::EventType;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ObjectReference, Pod, PodStatus};
use kube::Resource;

use super::members;

/// One run of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of the run; the container's restart count.
    pub attempt: i32,
    /// Container ID as the status shows it, such as `berth://…`.
    pub container_id: String,
    /// ID of the image that it runs.
    pub image_id: String,
    /// True if the run belongs to the current sandbox. Runs of an earlier sandbox are known only
    /// from the status.
    pub is_current: bool,
    /// State of the run.
    pub state: RunState,
}

/// State of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunState {
    /// The program runs.
    Running {
        /// When it started.
        since: Timestamp,
    },
    /// The program ended, or its end was not observed.
    Ended(End),
}

/// End of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// When the program started; `None` if it did not.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub finished: Timestamp,
    /// Exit code.
    pub exit_code: i32,
    /// Reason, such as `Completed`, `Error` or `OOMKilled`.
    pub reason: String,
    /// Termination message.
    pub message: Option<String>,
    /// Signal that ended it.
    pub signal: Option<i32>,
}

impl Run {
    /// The end of the run; `None` while it runs.
    pub fn end(&self) -> Option<&End> {
        match &self.state {
            RunState::Running { .. } => None,
            RunState::Ended(end) => Some(end),
        }
    }

    /// True while the program runs.
    pub fn is_running(&self) -> bool {
        self.end().is_none()
    }
}

/// The runs of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    /// The latest run.
    pub latest: Run,
    /// The run before it, which has ended.
    pub previous: Option<Run>,
}

/// Results of the probes and hooks of a running container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// True if the postStart hook and the startup probe have succeeded.
    pub started: bool,
    /// True if the readiness probe has succeeded.
    pub ready: bool,
}

/// Why a container cannot start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Reason of the waiting state, such as `ErrImagePull`.
    pub reason: String,
    /// Message of the waiting state.
    pub message: String,
    /// Time before which no start is attempted; `None` to wait until another fact changes.
    pub until: Option<Timestamp>,
}

/// Why all containers of a pod must stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The pod is being deleted.
    Deleted,
    /// The pod was active longer than `activeDeadlineSeconds`.
    Deadline,
    /// The pod uses more of a local resource than its limit, or the node rejected the pod.
    Failed {
        /// `status.reason`, such as `Evicted`.
        reason: String,
        /// `status.message`.
        message: String,
    },
}

/// Input of a decision.
pub struct Facts<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its last status, with the addresses and fields that the caller has set.
    pub status: &'a PodStatus,
    /// The current time.
    pub now: Timestamp,
    /// True if the sandbox exists and is connected to its network.
    pub has_sandbox: bool,
    /// True if no container can start yet, for example because a volume is missing.
    pub is_held: bool,
    /// Runs of the containers, by name. Containers without an entry have not run.
    pub runs: &'a BTreeMap<String, Runs>,
    /// Results of probes by container. A running container without an entry is started and ready.
    pub health: &'a BTreeMap<String, Health>,
    /// Containers that cannot start, by name.
    pub blocked: &'a BTreeMap<String, Blocked>,
    /// Delay of the next restart of a container after the end of its latest run.
    pub back_off: &'a dyn Fn(&str, &Run) -> SignedDuration,
    /// True if no container restarts, regardless of the restart policy.
    pub never_restart: bool,
    /// Runs that were stopped in order to restart their containers, by container.
    pub restarting: &'a BTreeMap<String, i32>,
    /// Why all containers must stop.
    pub ending: Option<Ending>,
}

/// A container to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Name of the container.
    pub name: String,
    /// Kind of the container.
    pub kind: ContainerKind,
    /// Number of the run.
    pub attempt: i32,
}

/// An event to record about the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    /// Type of the event.
    pub kind: EventType,
    /// Reason.
    pub reason: &'static str,
    /// Message.
    pub message: String,
    /// Name of the container that the event is about; `None` for the pod.
    pub container: Option<String>,
}

impl PodEvent {
    /// An expected event.
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind: EventType::Normal, reason, message: message.into(), container: None }
    }

    /// An event that may need attention.
    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind: EventType::Warning, reason, message: message.into(), container: None }
    }

    /// The event, about this container of the pod instead of the pod.
    pub fn about(self, container: &str) -> Self {
        Self { container: Some(container.to_owned()), ..self }
    }

    /// The object of the event: the pod, or one of its containers by field path.
    pub fn regarding(&self, pod: &Pod) -> ObjectReference {
        let field = |name: &String| {
            let member = pod.spec.iter().flat_map(members).find(|member| member.spec.name == *name)?;
            let list = match member.kind {
                ContainerKind::Main => "containers",
                ContainerKind::Init | ContainerKind::Sidecar => "initContainers",
                ContainerKind::Ephemeral => "ephemeralContainers",
            };
            Some(format!("spec.{list}{{{name}}}"))
        };
        ObjectReference { field_path: self.container.as_ref().and_then(field), ..pod.object_ref(&()) }
    }
}

/// The decision about the next step of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The new status.
    pub status: PodStatus,
    /// Containers to start now, in order.
    pub starts: Vec<Start>,
    /// Names of running containers to stop. A container remains in this list until it has ended.
    pub stops: Vec<String>,
    /// Events to record after the status is written.
    pub events: Vec<PodEvent>,
    /// When to decide again if no fact changes earlier.
    pub due: Option<Timestamp>,
    /// Why all containers stop; `None` if they need not stop, or if the pod ends by itself.
    pub ending: Option<Ending>,
    /// True if all containers have ended and none will start again. The phase is terminal.
    pub is_finished: bool,
}
