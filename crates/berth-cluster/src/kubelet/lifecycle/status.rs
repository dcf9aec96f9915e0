//! A pod's status: container states, phase and conditions.

use std::collections::BTreeMap;

use berth_pod_runtime::ContainerKind;
use berth_runtime::stamp;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    PodCondition, PodSpec, PodStatus,
};

use super::{End, Ending, Facts, Member, Run, RunState};
use crate::kubelet::resize;

/// Exit code that a kubelet reports for a container whose exit status it could not observe.
pub const UNKNOWN_EXIT_CODE: i32 = 137;
/// Termination reason of such a container.
pub const UNKNOWN_REASON: &str = "ContainerStatusUnknown";

/// Reason and message of a waiting container.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    pub reason: String,
    pub message: String,
}

/// The input for a pod's new status: the facts and the parts of the decision that it shows.
pub(super) struct Outlook<'a> {
    pub facts: &'a Facts<'a>,
    pub members: &'a [Member<'a>],
    /// Reasons of the containers that wait, by name.
    pub waits: &'a BTreeMap<String, Wait>,
    /// Why all containers must stop.
    pub ending: Option<&'a Ending>,
    /// True if no container runs, and none will start again.
    pub is_finished: bool,
    /// True if all init containers have succeeded and all sidecars have started.
    pub is_initialized: bool,
    /// True if a main container has run.
    pub has_begun: bool,
}

/// Reason of a container's waiting state in a status.
pub(super) fn waiting_reason<'a>(status: &'a PodStatus, name: &str) -> Option<&'a str> {
    known(status, name)?.state.as_ref()?.waiting.as_ref()?.reason.as_deref()
}

/// A container's entry in a status.
fn known<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|it| it.name == name)
}

/// The pod's new status.
pub(super) fn compute(outlook: &Outlook<'_>) -> PodStatus {
    let mut status = outlook.facts.status.clone();
    let list = |kinds: &[ContainerKind]| -> Vec<ContainerStatus> {
        let chosen = outlook.members.iter().filter(|member| kinds.contains(&member.kind));
        chosen.map(|member| outlook.container(member)).collect()
    };
    let main = list(&[ContainerKind::Main]);
    let init = list(&[ContainerKind::Init, ContainerKind::Sidecar]);
    let ephemeral = list(&[ContainerKind::Ephemeral]);
    let phase = outlook.phase(&main);
    status.phase = Some(phase.into());
    match outlook.ending {
        Some(Ending::Deadline) if outlook.is_finished => {
            status.reason = Some("DeadlineExceeded".into());
            status.message = Some("Pod was active on the node longer than the specified deadline".into());
        }
        Some(Ending::Failed { reason, message }) if outlook.is_finished => {
            status.reason = Some(reason.clone());
            status.message = Some(message.clone());
        }
        _ => {}
    }
    outlook.conditions(&mut status, phase, &init, &main);
    status.container_statuses = Some(main);
    status.init_container_statuses = Some(init).filter(|list| !list.is_empty());
    status.ephemeral_container_statuses = Some(ephemeral).filter(|list| !list.is_empty());
    status
}

impl Outlook<'_> {
    fn container(&self, member: &Member<'_>) -> ContainerStatus {
        let container = member.spec.as_ref();
        let name = &container.name;
        let had = known(self.facts.status, name);
        let mut status = ContainerStatus {
            allocated_resources: had.and_then(|had| had.allocated_resources.clone()),
            resources: had.and_then(|had| had.resources.clone()),
            ..blank(container)
        };
        let Some(runs) = self.facts.runs.get(name) else {
            if self.is_finished && self.ending.is_some() && member.kind == ContainerKind::Main {
                status.state = Some(never_started(self.facts.now));
            } else {
                let (reason, message) = self.waiting(member);
                status.state = Some(waiting(reason, message));
            }
            status.started = (member.kind != ContainerKind::Ephemeral).then_some(false);
            return status;
        };
        let run = &runs.latest;
        status.restart_count = run.attempt;
        let previous = runs.previous.as_ref().and_then(terminated);
        match &run.state {
            RunState::Running { since } => {
                let health = self.facts.health.get(name);
                // An init container is ready once it has succeeded.
                let can_be_ready = matches!(member.kind, ContainerKind::Main | ContainerKind::Sidecar);
                status.ready = can_be_ready && health.is_none_or(|health| health.ready);
                status.started = Some(health.is_none_or(|health| health.started));
                status.state = Some(ContainerState {
                    running: Some(ContainerStateRunning { started_at: Some(stamp(*since)) }),
                    ..ContainerState::default()
                });
                status.last_state = previous;
            }
            RunState::Ended(_) if self.waits.contains_key(name) || !self.is_finished && !run.is_current => {
                let (reason, message) = self.waiting(member);
                status.state = Some(waiting(reason, message));
                status.last_state = terminated(run);
                status.started = Some(false);
            }
            RunState::Ended(end) => {
                status.ready = member.kind == ContainerKind::Init && end.exit_code == 0;
                status.state = terminated(run);
                status.last_state = previous;
                status.started = Some(false);
            }
        }
        if member.kind == ContainerKind::Ephemeral {
            status.started = None;
        }
        if status.state.as_ref().is_none_or(|state| state.waiting.is_none()) {
            status.container_id = Some(run.container_id.clone());
            status.image_id.clone_from(&run.image_id);
        }
        if had.is_none_or(|had| had.container_id.is_none() && had.last_state.is_none())
            && member.kind != ContainerKind::Ephemeral
        {
            resize::set_initial_resources(container, &mut status);
        }
        status
    }

    /// Reason and message of a container that waits.
    fn waiting(&self, member: &Member<'_>) -> (&str, Option<&str>) {
        if let Some(wait) = self.waits.get(&member.spec.name) {
            return (&wait.reason, Some(wait.message.as_str()).filter(|message| !message.is_empty()));
        }
        let has_init = self.members.first().is_some_and(|first| first.kind != ContainerKind::Main);
        let initializes = has_init && !self.is_initialized;
        (if initializes { "PodInitializing" } else { "ContainerCreating" }, None)
    }

    /// The pod's phase.
    ///
    /// Source: Kubernetes' kubelet (`getPhase`); documentation, "Pod Lifecycle".
    fn phase(&self, main: &[ContainerStatus]) -> &'static str {
        if self.is_finished {
            let succeeded = main.iter().all(|status| {
                let ended = status.state.as_ref().and_then(|state| state.terminated.as_ref());
                ended.is_some_and(|ended| ended.exit_code == 0)
            });
            let is_failure = matches!(self.ending, Some(Ending::Deadline | Ending::Failed { .. }));
            return if succeeded && !is_failure { "Succeeded" } else { "Failed" };
        }
        let has_not_run = |status: &ContainerStatus| {
            let is_waiting = status.state.as_ref().is_some_and(|state| state.waiting.is_some());
            is_waiting && status.last_state.is_none()
        };
        let was_running = self.facts.status.phase.as_deref() == Some("Running");
        if was_running || self.has_begun && !main.iter().any(has_not_run) { "Running" } else { "Pending" }
    }

    fn conditions(&self, status: &mut PodStatus, phase: &str, init: &[ContainerStatus], main: &[ContainerStatus]) {
        let now = self.facts.now;
        let ended = match phase {
            "Succeeded" => Some("PodCompleted"),
            "Failed" => Some("PodFailed"),
            _ => None,
        };
        set_condition(status, "PodReadyToStartContainers", self.facts.has_sandbox && ended.is_none(), None, now);
        let is_initialized = self.is_initialized || phase == "Succeeded";
        let incomplete = names(init.iter().zip(self.members).filter(|(status, member)| {
            let is_started = member.kind == ContainerKind::Sidecar && status.started == Some(true);
            !is_started && !status.ready
        }));
        let reason = match (is_initialized, ended) {
            (true, Some("PodCompleted")) => Some(("PodCompleted", None)),
            (true, _) => None,
            (false, _) => {
                let message = format!("containers with incomplete status: [{incomplete}]");
                Some(("ContainersNotInitialized", Some(message)))
            }
        };
        // A pod that ended before it was initialized keeps its last Initialized condition, unless
        // an init container failed.
        let failed_before = !incomplete.is_empty() && main.iter().all(|status| status.container_id.is_none());
        if ended.is_none() || is_initialized || failed_before {
            set_condition(status, "Initialized", is_initialized, reason, now);
        }
        let sidecars = init.iter().zip(self.members).filter(|(_, member)| member.kind == ContainerKind::Sidecar);
        let main_members = self.members.iter().filter(|member| member.kind == ContainerKind::Main);
        let probed = sidecars.chain(main.iter().zip(main_members));
        let unready = names(probed.filter(|(status, _)| !status.ready));
        let containers_reason = match ended {
            Some(reason) => Some((reason, None)),
            None if unready.is_empty() => None,
            None => Some(("ContainersNotReady", Some(format!("containers with unready status: [{unready}]")))),
        };
        let are_ready = containers_reason.is_none();
        let spec = self.facts.pod.spec.as_ref();
        let (is_ready, ready_reason) = match (&containers_reason, spec.and_then(|spec| open_gates(spec, status))) {
            (Some(reason), _) => (false, Some(reason.clone())),
            (None, Some(message)) => (false, Some(("ReadinessGatesNotReady", Some(message)))),
            (None, None) => (true, None),
        };
        set_condition(status, "Ready", is_ready, ready_reason, now);
        set_condition(status, "ContainersReady", are_ready, containers_reason, now);
    }
}

fn names<'a>(entries: impl Iterator<Item = (&'a ContainerStatus, &'a Member<'a>)>) -> String {
    let names: Vec<&str> = entries.map(|(status, _)| status.name.as_str()).collect();
    names.join(" ")
}

/// Message about the readiness gates whose condition is not true; `None` if all are true.
fn open_gates(spec: &PodSpec, status: &PodStatus) -> Option<String> {
    let mut open = Vec::new();
    for gate in spec.readiness_gates.iter().flatten() {
        let condition = status.conditions.iter().flatten().find(|it| it.type_ == gate.condition_type);
        match condition {
            None => open.push(format!(
                "corresponding condition of pod readiness gate {:?} does not exist.",
                gate.condition_type
            )),
            Some(condition) if condition.status != "True" => open.push(format!(
                "the status of pod readiness gate {:?} is not \"True\", but {}",
                gate.condition_type, condition.status
            )),
            Some(_) => {}
        }
    }
    (!open.is_empty()).then(|| open.join(", "))
}

/// Sets a condition of a status. The transition time changes only if the condition's status
/// changes.
fn set_condition(
    status: &mut PodStatus,
    type_: &str,
    is_true: bool,
    reason: Option<(&str, Option<String>)>,
    now: Timestamp,
) {
    let value = if is_true { "True" } else { "False" };
    let conditions = status.conditions.get_or_insert_default();
    let (reason, message) = reason.map_or((None, None), |(reason, message)| (Some(reason.to_owned()), message));
    match conditions.iter_mut().find(|known| known.type_ == type_) {
        Some(known) if known.status == value => {
            known.reason = reason;
            known.message = message;
        }
        known => {
            let new = PodCondition {
                type_: type_.into(),
                status: value.into(),
                reason,
                message,
                last_transition_time: Some(stamp(now)),
                observed_generation: known.as_ref().and_then(|known| known.observed_generation),
                ..PodCondition::default()
            };
            match known {
                Some(known) => *known = new,
                None => conditions.push(new),
            }
        }
    }
}

fn blank(container: &Container) -> ContainerStatus {
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        ..ContainerStatus::default()
    }
}

fn waiting(reason: &str, message: Option<&str>) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: Some(reason.into()), message: message.map(str::to_owned) };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

/// The state of a run that has ended.
fn terminated(run: &Run) -> Option<ContainerState> {
    let end = run.end()?;
    let terminated = ContainerStateTerminated {
        container_id: Some(run.container_id.clone()).filter(|id| !id.is_empty()),
        exit_code: end.exit_code,
        signal: end.signal,
        reason: Some(end.reason.clone()),
        message: end.message.clone().filter(|message| !message.is_empty()),
        started_at: end.started.map(stamp),
        finished_at: Some(stamp(end.finished)),
    };
    Some(ContainerState { terminated: Some(terminated), ..ContainerState::default() })
}

/// The state of a container that had not started when its pod ended.
fn never_started(now: Timestamp) -> ContainerState {
    let terminated = ContainerStateTerminated {
        exit_code: UNKNOWN_EXIT_CODE,
        reason: Some(UNKNOWN_REASON.into()),
        message: Some("The container could not be located when the pod was terminated".into()),
        finished_at: Some(stamp(now)),
        ..ContainerStateTerminated::default()
    };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

/// The runs of a container as its status shows them; `None` if it has not run.
pub fn runs_in_status(known: &ContainerStatus) -> Option<super::Runs> {
    let state = known.state.as_ref()?;
    let last = known.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let ended = |ended: &ContainerStateTerminated, attempt: i32| Run {
        attempt,
        container_id: ended.container_id.clone().unwrap_or_default(),
        image_id: known.image_id.clone(),
        is_current: true,
        state: RunState::Ended(End {
            started: ended.started_at.as_ref().map(|time| time.0),
            finished: ended.finished_at.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            exit_code: ended.exit_code,
            reason: ended.reason.clone().unwrap_or_default(),
            message: ended.message.clone(),
            signal: ended.signal,
        }),
    };
    let previous = last.map(|last| ended(last, known.restart_count.saturating_sub(1)));
    if let Some(running) = &state.running {
        let latest = Run {
            attempt: known.restart_count,
            container_id: known.container_id.clone().unwrap_or_default(),
            image_id: known.image_id.clone(),
            is_current: true,
            state: RunState::Running { since: running.started_at.as_ref().map_or(Timestamp::UNIX_EPOCH, |it| it.0) },
        };
        return Some(super::Runs { latest, previous });
    }
    if let Some(now_ended) = &state.terminated {
        return Some(super::Runs { latest: ended(now_ended, known.restart_count), previous });
    }
    last.map(|last| super::Runs { latest: ended(last, known.restart_count), previous: None })
}
