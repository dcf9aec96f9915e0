//! The next step in the life of a simulated pod, from its status and the time.

use std::collections::BTreeMap;

use berth_api::berth::{EXIT_CODE_ANNOTATION, SimulatedPods};
use berth_pod_runtime::ContainerKind;
use berth_runtime::stamp;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodIP, PodStatus};
use kube::ResourceExt;

use super::ids::{container_id, image_id};
use super::missing::Missing;
use super::run::{FAIL_NOW_ANNOTATION, RunPlan, plan, plan_of_command};
use crate::kubelet::lifecycle::{
    Blocked, Decision, End, Ending, Facts, Member, PodEvent, Run, RunState, Runs, Start, decide, members,
    restart_delay, runs_in_status,
};

/// Exit code of a stopped container (128 + SIGTERM).
const TERMINATED: i32 = 143;
/// Exit code of a killed container (128 + SIGKILL).
const KILLED: i32 = 137;

/// The next step for a bound pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Write this status, then compute the next step.
    Write {
        /// The whole status.
        status: Box<PodStatus>,
        /// The events to record.
        events: Vec<PodEvent>,
    },
    /// All containers have stopped: delete the pod without grace period.
    Remove,
    /// Wait until this time, or until the pod changes.
    Until(Option<Timestamp>),
    /// Record this event about a missing object, then wait until the object exists.
    Held(PodEvent),
}

/// Input of the simulation of a pod, in addition to the pod and the time.
pub struct Simulation<'a> {
    /// How simulated pods run.
    pub pods: &'a SimulatedPods,
    /// Seed of random run times.
    pub seed: u64,
    /// Address of the node.
    pub host_ip: &'a str,
    /// Address that the pod gets when it starts.
    pub ip: &'a str,
    /// Obstacles to starting the pod's containers.
    pub missing: &'a Missing,
}

/// The next step of a bound pod.
pub fn step(pod: &Pod, simulation: &Simulation<'_>, now: Timestamp) -> Step {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    let is_terminal = matches!(phase, "Succeeded" | "Failed");
    match &pod.metadata.deletion_timestamp {
        // If the grace period is 0, only finalizers keep the pod, and other controllers remove
        // them.
        Some(_) if is_terminal && pod.metadata.deletion_grace_period_seconds == Some(0) => Step::Until(None),
        Some(_) if is_terminal => Step::Remove,
        None if is_terminal => Step::Until(None),
        Some(deletion) => stop(pod, simulation, deletion.0, now),
        None if phase == "Running" => settle(pod, pod.status.clone().unwrap_or_default(), simulation, None, now),
        None => start(pod, simulation, now),
    }
}

/// The next step of a pending pod: the kubelet accepts it, then starts its containers after the
/// start delay.
fn start(pod: &Pod, simulation: &Simulation<'_>, now: Timestamp) -> Step {
    let mut status = pod.status.clone().unwrap_or_default();
    let delay = SignedDuration::try_from(simulation.pods.start_delay.0).unwrap_or_default();
    let accepted = status.start_time.as_ref().map(|time| time.0);
    let runs_at = accepted.unwrap_or(now).checked_add(delay).unwrap_or(now);
    if accepted.is_some() && runs_at > now {
        return Step::Until(Some(runs_at));
    }
    status.host_ip = Some(simulation.host_ip.to_owned());
    status.start_time = Some(status.start_time.unwrap_or_else(|| stamp(now)));
    if runs_at > now {
        let (pod_state, blocked) = (PodState::default(), BTreeMap::new());
        let decision = pod_state.decide(pod, &status, &blocked, None, true, now);
        return Step::Write { status: Box::new(decision.status), events: Vec::new() };
    }
    if let Some(event) = &simulation.missing.volume {
        return Step::Held(event.clone());
    }
    if status.pod_ip.is_none() {
        status.pod_ip = Some(simulation.ip.to_owned());
        status.pod_ips = Some(vec![PodIP { ip: simulation.ip.to_owned() }]);
    }
    // `resize` compares this with the generation to detect later changes to the spec.
    status.observed_generation = pod.metadata.generation.filter(|generation| *generation > 1);
    settle(pod, status, simulation, None, now)
}

/// The next step of a pod that is being deleted: its containers stop within the grace period, then
/// the pod is deleted.
fn stop(pod: &Pod, simulation: &Simulation<'_>, deletion: Timestamp, now: Timestamp) -> Step {
    let status = pod.status.clone().unwrap_or_default();
    // The deletion timestamp is the end of the grace period.
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(30));
    let deleted_at = deletion.checked_sub(grace).unwrap_or(now);
    let stop_delay = SignedDuration::try_from(simulation.pods.stop_delay.0).unwrap_or_default().min(grace);
    let ends = if status.start_time.is_some() { deleted_at.checked_add(stop_delay).unwrap_or(now) } else { now };
    if ends > now {
        return Step::Until(Some(ends));
    }
    // A pod gets a terminal phase before it is removed, even if none of its containers ran: a Job
    // that replaces only failed pods waits for that phase, and keeps the pod by a finalizer.
    settle(pod, status, simulation, Some(Ending::Deleted), now)
}

/// Decides and carries out the decision until nothing is left to do at this time.
fn settle(pod: &Pod, base: PodStatus, simulation: &Simulation<'_>, ending: Option<Ending>, now: Timestamp) -> Step {
    let mut state = PodState::read(pod, &base, simulation, now);
    let blocked = simulation.missing.blocked(&base, simulation.pods.start_delay, now);
    let mut events = Vec::new();
    let decision = loop {
        let mut decision = state.decide(pod, &base, &blocked, ending.clone(), false, now);
        events.append(&mut decision.events);
        if decision.starts.is_empty() && decision.stops.is_empty() {
            break decision;
        }
        for name in &decision.stops {
            state.stop(pod, name, decision.ending.as_ref(), now);
            if decision.ending == Some(Ending::Deleted) {
                events.push(PodEvent::normal("Killing", format!("Stopping container {name}")).about(name));
            }
        }
        for start in &decision.starts {
            events.extend(state.start(pod, start, now));
        }
    };
    if pod.status.as_ref() != Some(&decision.status) {
        events.extend(Missing::events(pod, &base, &decision.status, &blocked));
        return Step::Write { status: Box::new(decision.status), events };
    }
    Step::Until(decision.due.into_iter().chain(state.next_end).min())
}

/// The runs of a simulated pod's containers.
#[derive(Default)]
struct PodState {
    runs: BTreeMap<String, Runs>,
    /// Exit code of the containers if fault injection makes the pod fail.
    fault: Option<i32>,
    /// When the next running container ends.
    next_end: Option<Timestamp>,
}

impl PodState {
    /// The runs in the status. Containers whose duration has elapsed have ended.
    fn read(pod: &Pod, status: &PodStatus, simulation: &Simulation<'_>, now: Timestamp) -> Self {
        let forced_code = pod.annotations().get(EXIT_CODE_ANNOTATION).and_then(|text| text.parse().ok());
        let must_fail = pod.annotations().get(FAIL_NOW_ANNOTATION).is_some_and(|value| value == "true");
        let fault = must_fail.then(|| forced_code.filter(|code| *code != 0).unwrap_or(1));
        let mut state = Self { fault, ..Self::default() };
        let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
        let known: BTreeMap<&str, _> = lists.into_iter().flatten().flatten().map(|it| (it.name.as_str(), it)).collect();
        for member in pod.spec.iter().flat_map(members) {
            let name = member.spec.name.as_str();
            let Some(mut runs) = known.get(name).copied().and_then(runs_in_status) else { continue };
            if let RunState::Running { since } = runs.latest.state
                && let Some(run) = state.plan(pod, &member, simulation)
                && let Some(duration) = run.duration
            {
                let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
                let ends = since.checked_add(duration).unwrap_or(Timestamp::MAX);
                if ends <= now {
                    end(&mut runs.latest, run.exit_code, now);
                } else {
                    state.next_end = Some(state.next_end.map_or(ends, |next| next.min(ends)));
                }
            }
            state.runs.insert(name.to_owned(), runs);
        }
        state
    }

    /// The run of a container; `None` if it runs until it is stopped.
    fn plan(&self, pod: &Pod, member: &Member<'_>, simulation: &Simulation<'_>) -> Option<RunPlan> {
        match (member.kind, self.fault) {
            (ContainerKind::Main, Some(exit_code)) => {
                Some(RunPlan { duration: Some(std::time::Duration::ZERO), exit_code })
            }
            (ContainerKind::Main, None) => Some(plan(pod, &member.spec, simulation.pods, simulation.seed)),
            (ContainerKind::Ephemeral, _) => Some(plan_of_command(&member.spec)),
            // A sidecar stops with its pod. An init container ends as soon as it starts.
            (ContainerKind::Sidecar | ContainerKind::Init, _) => None,
        }
    }

    fn decide(
        &self,
        pod: &Pod,
        status: &PodStatus,
        blocked: &BTreeMap<String, Blocked>,
        ending: Option<Ending>,
        is_held: bool,
        now: Timestamp,
    ) -> Decision {
        decide(&Facts {
            pod,
            status,
            now,
            has_sandbox: status.pod_ip.is_some(),
            is_held,
            runs: &self.runs,
            health: &BTreeMap::new(),
            blocked,
            back_off: &|_, run| restart_delay(run.attempt),
            never_restart: self.fault.is_some(),
            restarting: &BTreeMap::new(),
            ending,
        })
    }

    fn start(&mut self, pod: &Pod, start: &Start, now: Timestamp) -> Vec<PodEvent> {
        let spec = pod.spec.iter().flat_map(members).find(|member| member.spec.name == start.name);
        let image = spec.and_then(|member| member.spec.image.clone()).unwrap_or_default();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut latest = Run {
            attempt: start.attempt,
            container_id: container_id(uid, &start.name, start.attempt),
            image_id: image_id(&image),
            is_current: true,
            state: RunState::Running { since: now },
        };
        if start.kind == ContainerKind::Init {
            end(&mut latest, 0, now);
        }
        let previous = self.runs.remove(&start.name).map(|runs| runs.latest);
        self.runs.insert(start.name.clone(), Runs { latest, previous });
        let started = PodEvent::normal("Started", "Container started").about(&start.name);
        if start.attempt > 0 {
            return vec![started];
        }
        let message = format!("Container image {image:?} already present on machine and can be accessed by the pod");
        let pulled = PodEvent::normal("Pulled", message).about(&start.name);
        vec![pulled, PodEvent::normal("Created", "Container created").about(&start.name), started]
    }

    fn stop(&mut self, pod: &Pod, name: &str, ending: Option<&Ending>, now: Timestamp) {
        let kind = pod.spec.iter().flat_map(members).find(|member| member.spec.name == name).map(|it| it.kind);
        let exit_code = match (ending, kind) {
            (_, Some(ContainerKind::Ephemeral)) | (Some(Ending::Deadline | Ending::Failed { .. }), _) => KILLED,
            (Some(Ending::Deleted), _) => TERMINATED,
            // A sidecar stops with exit code 0 after the main containers.
            (None, _) => 0,
        };
        if let Some(runs) = self.runs.get_mut(name) {
            end(&mut runs.latest, exit_code, now);
        }
    }
}

fn end(run: &mut Run, exit_code: i32, now: Timestamp) {
    let started = match run.state {
        RunState::Running { since } => Some(since),
        RunState::Ended(_) => return,
    };
    run.state = RunState::Ended(End {
        started,
        finished: now,
        exit_code,
        reason: if exit_code == 0 { "Completed" } else { "Error" }.into(),
        message: None,
        signal: None,
    });
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::EphemeralContainer;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use k8s_openapi::api::core::v1::{Container, ContainerState, PodSpec};

    use super::*;

    fn step(pod: &Pod, now: Timestamp) -> Step {
        let (pods, missing) = (SimulatedPods::default(), Missing::default());
        let simulation = Simulation { pods: &pods, seed: 1, host_ip: "10.0.0.1", ip: "10.1.1.1", missing: &missing };
        super::step(pod, &simulation, now)
    }

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
            match step(&pod, now) {
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
        assert_eq!(step(&pod, at(20)), Step::Until(Some(at(21))));
        let Step::Write { status, .. } = step(&pod, at(21)) else { panic!("must be written") };
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        pod.status = Some(*status);
        assert_eq!(step(&pod, at(21)), Step::Remove);
    }

    #[test]
    fn a_pod_that_is_deleted_before_it_starts_fails_before_it_is_removed() {
        for (grace, then) in [(30, Step::Remove), (0, Step::Until(None))] {
            let mut pod = pod("Never", &[]);
            pod.metadata.deletion_timestamp = Some(Time(at(50)));
            pod.metadata.deletion_grace_period_seconds = Some(grace);
            let Step::Write { status, events } = step(&pod, at(20)) else { panic!("must be written") };
            assert_eq!((status.phase.as_deref(), events), (Some("Failed"), Vec::new()));
            let ended = status.container_statuses.as_ref().unwrap()[0].state.clone().unwrap().terminated.unwrap();
            assert_eq!((ended.exit_code, ended.started_at), (137, None));
            pod.status = Some(*status);
            assert_eq!(step(&pod, at(20)), then);
        }
    }

    #[test]
    fn a_pod_with_the_fault_annotation_fails_at_once() {
        let (mut pod, _) = live(pod("OnFailure", &[("berth.dev/run-duration", "forever")]), 10);
        pod.annotations_mut().insert(FAIL_NOW_ANNOTATION.into(), "true".into());
        pod.annotations_mut().insert(EXIT_CODE_ANNOTATION.into(), "42".into());
        let Step::Write { status, .. } = step(&pod, at(20)) else { panic!("must fail") };
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
        let Step::Write { status, events } = step(&pod, at(20)) else { panic!("must start") };
        assert_eq!(events.iter().filter(|event| event.reason == "Started").count(), 2);
        let states = |status: &PodStatus| -> Vec<ContainerState> {
            let list = status.ephemeral_container_statuses.as_ref().unwrap();
            assert!(list.iter().all(|known| !known.ready && known.restart_count == 0));
            list.iter().map(|known| known.state.clone().unwrap()).collect()
        };
        assert!(states(&status).iter().all(|state| state.running.is_some()));
        assert_eq!(status.conditions, pod.status.as_ref().unwrap().conditions, "the pod's readiness is unchanged");
        pod.status = Some(*status);
        assert_eq!(step(&pod, at(20)), Step::Until(Some(at(25))));
        let (pod, _) = live(pod, 1000);
        let status = pod.status.unwrap();
        assert_eq!(status.phase.as_deref(), Some("Succeeded"));
        let ends: Vec<_> = states(&status).into_iter().map(|state| state.terminated.unwrap()).collect();
        assert_eq!((ends[0].exit_code, ends[0].reason.as_deref()), (137, Some("Error")));
        assert_eq!(ends[0].finished_at, Some(Time(at(182))));
        assert_eq!((ends[1].exit_code, ends[1].reason.as_deref()), (0, Some("Completed")));
    }
}
