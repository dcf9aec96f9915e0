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
    /// ID of the image.
    pub image_id: String,
    /// The run belongs to the present sandbox. The runs of a lost sandbox are known from the status.
    pub is_current: bool,
    /// State.
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
    /// The program ended, or is lost.
    Ended(End),
}

/// End of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// When the program started, if it did.
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
    /// The postStart hook and the startup probe have succeeded.
    pub started: bool,
    /// The readiness probe has succeeded.
    pub ready: bool,
}

/// Why a container cannot start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Reason of the waiting state, such as `ErrImagePull`.
    pub reason: String,
    /// Message of the waiting state.
    pub message: String,
    /// The start is not tried before this time; `None` until another fact changes.
    pub until: Option<Timestamp>,
}

/// Why all containers of a pod stop, although they would run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The pod is being deleted.
    Deleted,
    /// The pod was active longer than `activeDeadlineSeconds`.
    Deadline,
    /// The pod uses more of a local resource than its limit, or was refused by the node.
    Failed {
        /// `status.reason`, such as `Evicted`.
        reason: String,
        /// `status.message`.
        message: String,
    },
}

/// What a decision depends on.
pub struct Facts<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its last status, with the addresses and fields that the caller sets.
    pub status: &'a PodStatus,
    /// The time.
    pub now: Timestamp,
    /// The sandbox exists and has its network.
    pub has_sandbox: bool,
    /// No container can start yet, for example because a volume is missing.
    pub is_held: bool,
    /// Runs of the containers, by name. Containers without an entry have not run.
    pub runs: &'a BTreeMap<String, Runs>,
    /// Results of probes by container. A running container without an entry is started and ready.
    pub health: &'a BTreeMap<String, Health>,
    /// Containers that cannot start, by name.
    pub blocked: &'a BTreeMap<String, Blocked>,
    /// Delay of the next restart of a container after the end of its latest run.
    pub back_off: &'a dyn Fn(&str, &Run) -> SignedDuration,
    /// No container restarts, whatever the restart policy says.
    pub never_restart: bool,
    /// Runs that were stopped so that their containers restart, by container.
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
pub struct Notice {
    /// Type of the event.
    pub kind: EventType,
    /// Reason.
    pub reason: &'static str,
    /// Message.
    pub message: String,
    /// Name of the container that the event is about; `None` for the pod.
    pub container: Option<String>,
}

impl Notice {
    /// An expected event.
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind: EventType::Normal, reason, message: message.into(), container: None }
    }

    /// An event that may need attention.
    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind: EventType::Warning, reason, message: message.into(), container: None }
    }

    /// The event as one about a container of the pod.
    pub fn about(self, container: &str) -> Self {
        Self { container: Some(container.to_owned()), ..self }
    }

    /// What the event is about: the pod, or a container of it by its field path.
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

/// The next step of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The new status.
    pub status: PodStatus,
    /// Containers to start now, in order.
    pub starts: Vec<Start>,
    /// Names of running containers to stop now. The list has them until they have ended.
    pub stops: Vec<String>,
    /// Events to record once the status was written.
    pub events: Vec<Notice>,
    /// When to decide again, if no fact changes before.
    pub due: Option<Timestamp>,
    /// Why all containers stop; `None` if they do not, or if the pod ends by itself.
    pub ending: Option<Ending>,
    /// All containers have ended and none starts again. The phase is terminal.
    pub is_finished: bool,
}
