//! The next step in a pod's lifecycle, from its status and the time.

use berth_api::berth::{EXIT_CODE_ANNOTATION, SimulatedPods};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    Pod, PodCondition, PodIP, PodSpec, PodStatus,
};
use kube::ResourceExt;

use super::run::{FAIL_NOW_ANNOTATION, RunPlan, plan};
use super::{ephemeral, resize};
use crate::time::stamp;

/// Delay before the second restart of a container; doubles with each restart up to [`RESTART_MAX`].
const RESTART_BASE: SignedDuration = SignedDuration::from_secs(10);
const RESTART_MAX: SignedDuration = SignedDuration::from_secs(300);
/// Exit code of a stopped container (128 + SIGTERM).
const TERMINATED: i32 = 143;
/// Exit code that a kubelet reports for a container that did not exist when its pod was terminated.
const NOT_FOUND: i32 = 137;

/// The next step for a bound pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Write this status, then compute the next step.
    Write {
        /// The whole status.
        status: Box<PodStatus>,
        /// Reason and message of the events to record.
        events: Vec<(&'static str, String)>,
    },
    /// All containers have stopped: delete the pod without grace period.
    Remove,
    /// Wait until this time, or until the pod changes.
    Until(Option<Timestamp>),
}

/// The next step of a bound pod. `ip` is the address that the pod gets when it starts.
pub fn step(pod: &Pod, runtime: &SimulatedPods, seed: u64, host_ip: &str, ip: &str, now: Timestamp) -> Step {
    let status = pod.status.clone().unwrap_or_default();
    let phase = status.phase.as_deref().unwrap_or("Pending");
    let is_terminal = matches!(phase, "Succeeded" | "Failed");
    if let Some(deletion) = &pod.metadata.deletion_timestamp {
        return stop(pod, status, is_terminal, runtime, deletion.0, now);
    }
    if is_terminal {
        return Step::Until(None);
    }
    match phase {
        "Running" => advance(pod, status, runtime, seed, now),
        _ => start(pod, status, runtime, host_ip, ip, now),
    }
}

/// The next step of a pending pod: the kubelet accepts it, then starts its containers after the
/// start delay.
fn start(pod: &Pod, mut status: PodStatus, runtime: &SimulatedPods, host_ip: &str, ip: &str, now: Timestamp) -> Step {
    let delay = SignedDuration::try_from(runtime.start_delay.0).unwrap_or_default();
    let accepted = status.start_time.as_ref().map(|time| time.0);
    let runs_at = accepted.unwrap_or(now).checked_add(delay).unwrap_or(now);
    if accepted.is_some() && runs_at > now {
        return Step::Until(Some(runs_at));
    }
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let init = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    status.qos_class = status.qos_class.or_else(|| Some(qos_class(pod).into()));
    status.host_ip = Some(host_ip.to_owned());
    status.start_time = Some(status.start_time.unwrap_or_else(|| stamp(now)));
    if runs_at > now {
        set_conditions(
            &mut status,
            &[
                ("PodReadyToStartContainers", false),
                ("Initialized", init.is_empty()),
                ("Ready", false),
                ("ContainersReady", false),
            ],
            "ContainersNotReady",
            containers,
            now,
        );
        status.phase = Some("Pending".into());
        status.container_statuses = Some(containers.iter().map(|c| waiting(c, "ContainerCreating")).collect());
        status.init_container_statuses =
            Some(init.iter().map(|c| waiting(c, "PodInitializing")).collect()).filter(|list: &Vec<_>| !list.is_empty());
        return Step::Write { status: Box::new(status), events: Vec::new() };
    }
    let mut events = Vec::new();
    for container in init.iter().chain(containers) {
        let image = container.image.as_deref().unwrap_or_default();
        events.push(("Pulled", format!("Container image \"{image}\" already present on machine")));
        events.push(("Created", format!("Created container: {}", container.name)));
        events.push(("Started", format!("Started container {}", container.name)));
    }
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    status.phase = Some("Running".into());
    status.pod_ip = Some(ip.to_owned());
    status.pod_ips = Some(vec![PodIP { ip: ip.to_owned() }]);
    // `resize` compares this with the generation to detect later changes of the spec.
    status.observed_generation = pod.metadata.generation.filter(|generation| *generation > 1);
    let started = |container: &Container| {
        let mut status = running(container, uid, 0, now);
        resize::set_initial_resources(container, &mut status);
        status
    };
    status.container_statuses = Some(containers.iter().map(started).collect());
    status.init_container_statuses = Some(
        init.iter()
            .map(|c| match c.restart_policy.as_deref() {
                Some("Always") => started(c),
                _ => terminated(c, running(c, uid, 0, now), 0, "Completed", now),
            })
            .collect(),
    )
    .filter(|list: &Vec<_>| !list.is_empty());
    set_conditions(
        &mut status,
        &[("PodReadyToStartContainers", true), ("Initialized", true), ("Ready", true), ("ContainersReady", true)],
        "",
        containers,
        now,
    );
    Step::Write { status: Box::new(status), events }
}

/// The next step of a running pod: containers terminate after their duration, and restart according
/// to the restart policy.
fn advance(pod: &Pod, mut status: PodStatus, runtime: &SimulatedPods, seed: u64, now: Timestamp) -> Step {
    let spec = pod.spec.clone().unwrap_or_default();
    let policy = spec.restart_policy.as_deref().unwrap_or("Always");
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let must_fail = pod.annotations().get(FAIL_NOW_ANNOTATION).is_some_and(|value| value == "true");
    let forced_code = pod.annotations().get(EXIT_CODE_ANNOTATION).and_then(|text| text.parse().ok());
    let mut events = Vec::new();
    let mut due: Vec<Timestamp> = Vec::new();
    let mut is_changed = false;
    // The pod's active deadline.
    if let Some(deadline) = spec.active_deadline_seconds {
        let ends =
            status.start_time.as_ref().map_or(now, |time| time.0).checked_add(SignedDuration::from_secs(deadline));
        let ends = ends.unwrap_or(Timestamp::MAX);
        if ends <= now {
            terminate_all(&spec, &mut status, 137, "Error", now);
            status.phase = Some("Failed".into());
            status.reason = Some("DeadlineExceeded".into());
            status.message = Some("Pod was active on the node longer than the specified deadline".into());
            not_ready(&mut status, "PodFailed", &spec.containers, now);
            return Step::Write { status: Box::new(status), events };
        }
        due.push(ends);
    }
    let ephemeral_update = ephemeral::update(&spec, &mut status, uid, now);
    events.extend(ephemeral_update.events);
    due.extend(ephemeral_update.due);
    // Terminate and restart the main containers.
    let mut statuses = status.container_statuses.take().unwrap_or_default();
    for container in &spec.containers {
        let Some(known) = statuses.iter_mut().find(|known| known.name == container.name) else { continue };
        let state = known.state.clone().unwrap_or_default();
        if let Some(since) = state.running.as_ref().and_then(|running| running.started_at.as_ref()) {
            let run = if must_fail {
                RunPlan {
                    duration: Some(std::time::Duration::ZERO),
                    exit_code: forced_code.filter(|code| *code != 0).unwrap_or(1),
                }
            } else {
                plan(pod, container, runtime, seed)
            };
            let ends = run.duration.map(|duration| {
                let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
                since.0.checked_add(duration).unwrap_or(Timestamp::MAX)
            });
            match ends {
                Some(ends) if ends <= now => {
                    let reason = if run.exit_code == 0 { "Completed" } else { "Error" };
                    *known = terminated(container, known.clone(), run.exit_code, reason, now);
                    is_changed = true;
                }
                ends => due.extend(ends),
            }
        }
        let state = known.state.clone().unwrap_or_default();
        if let Some(ended) = &state.terminated
            && restarts(policy, ended.exit_code)
            && !must_fail
        {
            // The first restart is immediate; before each later one the container waits in
            // CrashLoopBackOff.
            let wait = backoff(known.restart_count);
            let restart_at =
                ended.finished_at.as_ref().map_or(now, |time| time.0).checked_add(wait).unwrap_or(Timestamp::MAX);
            let last = Some(ContainerState { terminated: Some(ended.clone()), ..Default::default() });
            if restart_at <= now {
                *known = with_resources_of(known, running(container, uid, known.restart_count + 1, now));
                events.push(("Started", format!("Started container {}", container.name)));
            } else {
                events.push((
                    "BackOff",
                    format!("Back-off restarting failed container {} in pod {}", container.name, pod.name_any()),
                ));
                let waits = waiting(container, "CrashLoopBackOff");
                *known = with_resources_of(known, ContainerStatus { restart_count: known.restart_count, ..waits });
                due.push(restart_at);
            }
            known.last_state = last;
            is_changed = true;
        } else if state.waiting.is_some() {
            let ended = known.last_state.as_ref().and_then(|state| state.terminated.as_ref());
            let ended_at = ended.and_then(|ended| ended.finished_at.as_ref()).map_or(now, |time| time.0);
            let restart_at = ended_at.checked_add(backoff(known.restart_count)).unwrap_or(Timestamp::MAX);
            if restart_at <= now {
                let last = known.last_state.clone();
                *known = with_resources_of(known, running(container, uid, known.restart_count + 1, now));
                known.last_state = last;
                events.push(("Started", format!("Started container {}", container.name)));
                is_changed = true;
            } else {
                due.push(restart_at);
            }
        }
    }
    // The pod ends with its last main container.
    let ended: Vec<i32> = statuses
        .iter()
        .filter_map(|known| known.state.as_ref()?.terminated.as_ref().map(|ended| ended.exit_code))
        .collect();
    let all_ended = !statuses.is_empty() && ended.len() == statuses.len();
    let all_run = statuses.iter().all(|known| known.state.as_ref().is_some_and(|state| state.running.is_some()));
    status.container_statuses = Some(statuses);
    if all_ended {
        let failed = ended.iter().any(|code| *code != 0);
        // Sidecars stop after the main containers.
        for sidecar in status.init_container_statuses.iter_mut().flatten() {
            if sidecar.state.as_ref().is_some_and(|state| state.running.is_some())
                && let Some(container) = spec.init_containers.iter().flatten().find(|c| c.name == sidecar.name)
            {
                *sidecar = terminated(container, sidecar.clone(), 0, "Completed", now);
            }
        }
        ephemeral::terminate_all(&spec, &mut status, now);
        status.phase = Some(if failed { "Failed" } else { "Succeeded" }.into());
        not_ready(&mut status, if failed { "PodFailed" } else { "PodCompleted" }, &spec.containers, now);
        return Step::Write { status: Box::new(status), events };
    }
    if is_changed {
        if all_run {
            set_conditions(&mut status, &[("Ready", true), ("ContainersReady", true)], "", &spec.containers, now);
        } else {
            not_ready(&mut status, "ContainersNotReady", &spec.containers, now);
        }
    }
    if is_changed || ephemeral_update.is_changed {
        return Step::Write { status: Box::new(status), events };
    }
    Step::Until(due.into_iter().min())
}

/// The next step of a pod that is being deleted: its containers stop within the grace period, then
/// the pod is deleted.
fn stop(
    pod: &Pod,
    mut status: PodStatus,
    is_terminal: bool,
    runtime: &SimulatedPods,
    deletion: Timestamp,
    now: Timestamp,
) -> Step {
    let spec = pod.spec.clone().unwrap_or_default();
    // The deletion timestamp is the end of the grace period.
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(30));
    let deleted_at = deletion.checked_sub(grace).unwrap_or(now);
    let stop_delay = SignedDuration::try_from(runtime.stop_delay.0).unwrap_or_default().min(grace);
    let has_run = status.start_time.is_some();
    let ends = if has_run && !is_terminal { deleted_at.checked_add(stop_delay).unwrap_or(now) } else { now };
    if ends > now {
        return Step::Until(Some(ends));
    }
    if is_terminal {
        // With a grace period of 0 only finalizers hold the pod, and other controllers remove those.
        let grace_is_zero = pod.metadata.deletion_grace_period_seconds == Some(0);
        return if grace_is_zero { Step::Until(None) } else { Step::Remove };
    }
    // A pod gets a terminal phase before it is removed, also if none of its containers ran: a Job
    // that replaces only failed pods waits for that phase, and holds the pod by a finalizer.
    let events = if has_run {
        terminate_all(&spec, &mut status, TERMINATED, "Error", now);
        spec.containers.iter().map(|c| ("Killing", format!("Stopping container {}", c.name))).collect()
    } else {
        let ended = |c: &Container| terminated(c, blank(c), NOT_FOUND, "ContainerStatusUnknown", now);
        status.container_statuses = Some(spec.containers.iter().map(ended).collect());
        Vec::new()
    };
    status.phase = Some("Failed".into());
    not_ready(&mut status, "PodFailed", &spec.containers, now);
    Step::Write { status: Box::new(status), events }
}

fn terminate_all(spec: &PodSpec, status: &mut PodStatus, code: i32, reason: &str, now: Timestamp) {
    ephemeral::terminate_all(spec, status, now);
    for known in status.container_statuses.iter_mut().flatten() {
        let has_ended = known.state.as_ref().is_some_and(|state| state.terminated.is_some());
        if let Some(container) = spec.containers.iter().find(|c| c.name == known.name).filter(|_| !has_ended) {
            *known = terminated(container, known.clone(), code, reason, now);
        }
    }
}

fn restarts(policy: &str, exit_code: i32) -> bool {
    policy == "Always" || policy == "OnFailure" && exit_code != 0
}

/// Delay before the next restart of a container that was restarted this often: zero, then 10 s,
/// 20 s, 40 s, …
fn backoff(restarts: i32) -> SignedDuration {
    if restarts == 0 {
        return SignedDuration::ZERO;
    }
    let factor = 1_i32 << (restarts - 1).clamp(0, 10);
    RESTART_BASE.checked_mul(factor).unwrap_or(RESTART_MAX).min(RESTART_MAX)
}

fn blank(container: &Container) -> ContainerStatus {
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        ..ContainerStatus::default()
    }
}

fn waiting(container: &Container, reason: &str) -> ContainerStatus {
    ContainerStatus {
        started: Some(false),
        state: Some(ContainerState {
            waiting: Some(ContainerStateWaiting { reason: Some(reason.into()), message: None }),
            ..ContainerState::default()
        }),
        ..blank(container)
    }
}

/// A container's next status, with the resources of its last one.
fn with_resources_of(had: &ContainerStatus, next: ContainerStatus) -> ContainerStatus {
    let (allocated_resources, resources) = (had.allocated_resources.clone(), had.resources.clone());
    ContainerStatus { allocated_resources, resources, ..next }
}

pub(super) fn running(container: &Container, uid: &str, restarts: i32, now: Timestamp) -> ContainerStatus {
    ContainerStatus {
        ready: true,
        started: Some(true),
        restart_count: restarts,
        image_id: format!("sim://{}", container.image.as_deref().unwrap_or_default()),
        container_id: Some(container_id(uid, &container.name, restarts)),
        state: Some(ContainerState {
            running: Some(ContainerStateRunning { started_at: Some(stamp(now)) }),
            ..ContainerState::default()
        }),
        ..blank(container)
    }
}

pub(super) fn terminated(
    container: &Container,
    known: ContainerStatus,
    code: i32,
    reason: &str,
    now: Timestamp,
) -> ContainerStatus {
    let started = known.state.as_ref().and_then(|state| state.running.as_ref()).and_then(|r| r.started_at.clone());
    ContainerStatus {
        ready: false,
        started: Some(false),
        restart_count: known.restart_count,
        image_id: known.image_id,
        allocated_resources: known.allocated_resources,
        resources: known.resources,
        last_state: known.last_state,
        container_id: known.container_id.clone(),
        state: Some(ContainerState {
            terminated: Some(ContainerStateTerminated {
                container_id: known.container_id,
                exit_code: code,
                reason: Some(reason.into()),
                started_at: started,
                finished_at: Some(stamp(now)),
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        }),
        ..blank(container)
    }
}

fn container_id(uid: &str, name: &str, restarts: i32) -> String {
    let hash = crate::random::hash(&["container", uid, name, &restarts.to_string()]);
    format!("sim://{hash:016x}")
}

fn not_ready(status: &mut PodStatus, reason: &str, containers: &[Container], now: Timestamp) {
    set_conditions(status, &[("Ready", false), ("ContainersReady", false)], reason, containers, now);
    if matches!(reason, "PodFailed" | "PodCompleted") {
        set_conditions(status, &[("PodReadyToStartContainers", false)], "", containers, now);
    }
}

fn set_conditions(
    status: &mut PodStatus,
    wanted: &[(&str, bool)],
    reason: &str,
    containers: &[Container],
    now: Timestamp,
) {
    let conditions = status.conditions.get_or_insert_with(Vec::new);
    for (type_, is_true) in wanted {
        let value = if *is_true { "True" } else { "False" };
        let has_reason = !is_true && !reason.is_empty() && matches!(*type_, "Ready" | "ContainersReady");
        let message = (has_reason && reason == "ContainersNotReady").then(|| {
            let names: Vec<&str> = containers.iter().map(|c| c.name.as_str()).collect();
            format!("containers with unready status: [{}]", names.join(" "))
        });
        let new = PodCondition {
            type_: (*type_).into(),
            status: value.into(),
            reason: has_reason.then(|| reason.into()),
            message,
            last_transition_time: Some(stamp(now)),
            ..PodCondition::default()
        };
        match conditions.iter_mut().find(|known| known.type_ == *type_) {
            Some(known) if known.status == value => {
                known.reason = new.reason;
                known.message = new.message;
            }
            Some(known) => *known = new,
            None => conditions.push(new),
        }
    }
}

/// The pod's quality-of-service class.
pub fn qos_class(pod: &Pod) -> &'static str {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let mut any = false;
    let mut all_equal = true;
    for container in containers {
        let resources = container.resources.clone().unwrap_or_default();
        let limits = resources.limits.unwrap_or_default();
        let requests = resources.requests.unwrap_or_default();
        for name in ["cpu", "memory"] {
            any |= limits.contains_key(name) || requests.contains_key(name);
            let is_equal = limits.get(name).is_some_and(|limit| requests.get(name).unwrap_or(limit) == limit);
            all_equal &= is_equal;
        }
    }
    match (any, all_equal) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::EphemeralContainer;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn pod(policy: &str, annotations: &[(&str, &str)]) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".into());
        pod.metadata.uid = Some("u".into());
        pod.metadata.annotations = Some(annotations.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect());
        let container = Container { name: "main".into(), ..Default::default() };
        pod.spec =
            Some(PodSpec { restart_policy: Some(policy.into()), containers: vec![container], ..Default::default() });
        pod
    }

    /// Applies steps until none is due before `until`. Returns the pod, and for each write the time
    /// in seconds, the phase and the restart count.
    fn live(mut pod: Pod, until: i64) -> (Pod, Vec<(i64, String, i32)>) {
        let mut now = at(0);
        let mut history = Vec::new();
        loop {
            match step(&pod, &SimulatedPods::default(), 1, "10.0.0.1", "10.1.1.1", now) {
                Step::Write { status, .. } => {
                    let restarts = status.container_statuses.as_ref().map_or(0, |list| list[0].restart_count);
                    history.push((now.duration_since(at(0)).as_secs(), status.phase.clone().unwrap(), restarts));
                    pod.status = Some(*status);
                }
                Step::Until(Some(then)) if then <= at(until) => now = then,
                _ => return (pod, history),
            }
        }
    }

    #[test]
    fn a_pod_starts_runs_for_its_duration_and_succeeds() {
        let (pod, history) = live(pod("Never", &[("berth.dev/run-duration", "180s")]), 1000);
        let phases: Vec<_> = history.iter().map(|(when, phase, _)| (*when, phase.as_str())).collect();
        assert_eq!(phases, [(0, "Pending"), (2, "Running"), (182, "Succeeded")]);
        let ready = pod.status.unwrap().conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("False", Some("PodCompleted")));
    }

    #[test]
    fn a_failing_container_restarts_at_once_then_backs_off() {
        let annotations = [("berth.dev/run-duration", "1s"), ("berth.dev/exit-code", "3")];
        let (_, history) = live(pod("OnFailure", &annotations), 60);
        let starts: Vec<_> = history.windows(2).filter(|w| w[0].2 < w[1].2).map(|w| w[1].0).collect();
        assert_eq!(starts, [3, 14, 35]);
    }

    #[test]
    fn a_deleted_pod_stops_within_its_grace_period_and_is_then_removed() {
        let (mut pod, _) = live(pod("Never", &[("berth.dev/run-duration", "forever")]), 10);
        pod.metadata.deletion_timestamp = Some(Time(at(50)));
        pod.metadata.deletion_grace_period_seconds = Some(30);
        let runtime = SimulatedPods::default();
        assert_eq!(step(&pod, &runtime, 1, "", "", at(20)), Step::Until(Some(at(21))));
        let Step::Write { status, .. } = step(&pod, &runtime, 1, "", "", at(21)) else { panic!("must be written") };
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        pod.status = Some(*status);
        assert_eq!(step(&pod, &runtime, 1, "", "", at(21)), Step::Remove);
    }

    #[test]
    fn a_pod_that_is_deleted_before_it_starts_fails_before_it_is_removed() {
        for (grace, then) in [(30, Step::Remove), (0, Step::Until(None))] {
            let mut pod = pod("Never", &[]);
            pod.metadata.deletion_timestamp = Some(Time(at(50)));
            pod.metadata.deletion_grace_period_seconds = Some(grace);
            let runtime = SimulatedPods::default();
            let Step::Write { status, events } = step(&pod, &runtime, 1, "", "", at(20)) else {
                panic!("must be written")
            };
            assert_eq!((status.phase.as_deref(), events), (Some("Failed"), Vec::new()));
            let ended = status.container_statuses.as_ref().unwrap()[0].state.clone().unwrap().terminated.unwrap();
            assert_eq!((ended.exit_code, ended.started_at), (137, None));
            pod.status = Some(*status);
            assert_eq!(step(&pod, &runtime, 1, "", "", at(20)), then);
        }
    }

    #[test]
    fn a_pod_with_the_fault_annotation_fails_at_once() {
        let (mut pod, _) = live(pod("OnFailure", &[("berth.dev/run-duration", "forever")]), 10);
        pod.annotations_mut().insert(FAIL_NOW_ANNOTATION.into(), "true".into());
        pod.annotations_mut().insert(EXIT_CODE_ANNOTATION.into(), "42".into());
        let Step::Write { status, .. } = step(&pod, &SimulatedPods::default(), 1, "", "", at(20)) else {
            panic!("must fail")
        };
        assert_eq!(status.phase.as_deref(), Some("Failed"));
    }

    #[test]
    fn allocated_resources_persist_over_restarts() {
        let mut pod = pod("OnFailure", &[("berth.dev/run-duration", "1s"), ("berth.dev/exit-code", "3")]);
        let container = &mut pod.spec.as_mut().unwrap().containers[0];
        container.resources = serde_json::from_value(serde_json::json!({"requests": {"cpu": "2"}})).unwrap();
        container.resize_policy =
            serde_json::from_value(serde_json::json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]))
                .unwrap();
        let wanted = container.resources.clone();
        // At these times the container is restarted, in back-off, restarted, in back-off.
        for seconds in [3, 5, 14, 20] {
            let status = live(pod.clone(), seconds).0.status.unwrap().container_statuses.unwrap().remove(0);
            assert_eq!(status.resources, wanted, "{seconds}");
            assert_eq!(status.allocated_resources, wanted.clone().unwrap().requests, "{seconds}");
        }
    }

    #[test]
    fn ephemeral_containers_run_once_and_end_with_the_pod() {
        let (mut pod, _) = live(pod("Never", &[("berth.dev/run-duration", "180s")]), 10);
        let debug = |name: &str, command: &[&str]| EphemeralContainer {
            name: name.into(),
            image: Some("busybox".into()),
            command: Some(command.iter().map(|word| word.to_string()).collect()),
            ..Default::default()
        };
        let added = vec![debug("shell", &[]), debug("look", &["sleep", "5"])];
        pod.spec.as_mut().unwrap().ephemeral_containers = Some(added);
        let runtime = SimulatedPods::default();
        let Step::Write { status, events } = step(&pod, &runtime, 1, "", "", at(20)) else { panic!("must start") };
        assert_eq!(events.iter().filter(|(reason, _)| *reason == "Started").count(), 2);
        let states = |status: &PodStatus| -> Vec<ContainerState> {
            let list = status.ephemeral_container_statuses.as_ref().unwrap();
            assert!(list.iter().all(|known| !known.ready && known.restart_count == 0));
            list.iter().map(|known| known.state.clone().unwrap()).collect()
        };
        assert!(states(&status).iter().all(|state| state.running.is_some()));
        assert_eq!(status.conditions, pod.status.as_ref().unwrap().conditions, "the pod's readiness is unchanged");
        pod.status = Some(*status);
        assert_eq!(step(&pod, &runtime, 1, "", "", at(20)), Step::Until(Some(at(25))));
        let (pod, _) = live(pod, 1000);
        let status = pod.status.unwrap();
        assert_eq!(status.phase.as_deref(), Some("Succeeded"));
        let ends: Vec<_> = states(&status).into_iter().map(|state| state.terminated.unwrap()).collect();
        assert_eq!((ends[0].exit_code, ends[0].reason.as_deref()), (137, Some("Error")));
        assert_eq!(ends[0].finished_at, Some(Time(at(182))));
        assert_eq!((ends[1].exit_code, ends[1].reason.as_deref()), (0, Some("Completed")));
    }
}
