//! A worker's jobs: stops, hooks and probes in progress, and their results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_pod_runtime::{ContainerId, ContainerState, ContainerStatus, Image, PodUid};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::handlers::Target;
use super::hooks::{run_hook, run_probe};
use super::memory::{Hold, Hook, Stopping};
use super::probes::{ContainerProbes, Kind};
use super::runs::START_ERROR;
use super::shown_id;
use super::start::{StartOutcome, StartResult};
use super::stop::StopJob;
use super::worker::{Done, Worker};
use crate::kubelet::lifecycle::{
    BackOff, Decision, End, Ending, Health, Member, PodEvent, Run, RunState, Runs, Start, members,
};

/// Grace period of pods without one.
const GRACE_DEFAULT: i64 = 30;
/// Grace period of a pod that is evicted for exceeding its local storage, as in a kubelet.
const GRACE_EVICTED: i64 = 1;
/// A stop is repeated if its container still runs this long after it should have been killed.
const STOP_AGAIN: SignedDuration = SignedDuration::from_secs(10);

impl Worker {
    /// True while a postStart hook runs.
    pub(super) fn hook_is_running(&self) -> bool {
        self.memory.hooks.values().any(|(_, hook)| *hook == Hook::Running)
    }

    /// The health of a running container; `None` for a container that does not run.
    pub(super) fn health_of(&mut self, pod: &Pod, member: &Member<'_>, run: &Run, now: Timestamp) -> Option<Health> {
        let RunState::Running { since } = run.state else { return None };
        let name = &member.spec.name;
        if self.memory.hooks.contains_key(name) {
            return Some(Health { started: false, ready: false });
        }
        let probes = self.memory.probes.entry(name.clone());
        let probes = probes.or_insert_with(|| {
            let known = known_health(pod.status.as_ref(), name, &run.container_id);
            ContainerProbes::new(&member.spec, run.attempt, since, now, known)
        });
        Some(probes.health())
    }

    /// Starts the probes that are due. Returns when the next probe is due.
    pub(super) fn probe(
        &mut self,
        pod: &Arc<Pod>,
        runs: &BTreeMap<String, Runs>,
        status: &PodStatus,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let mut next = None;
        for member in pod.spec.iter().flat_map(members) {
            let name = member.spec.name.clone();
            let (Some(probes), Some(runs)) = (self.memory.probes.get_mut(&name), runs.get(&name)) else { continue };
            if self.memory.stopping.contains_key(&name) || self.memory.hooks.contains_key(&name) {
                continue;
            }
            let due = probes.take_due(now);
            next = next.into_iter().chain(probes.next()).min();
            let attempt = runs.latest.attempt;
            for probe in due {
                let (node, status, container) = (self.node.clone(), status.clone(), member.spec.clone().into_owned());
                let id = run_id(&self.uid, &name, attempt);
                let timeout = u64::try_from(probe.spec.timeout_seconds.unwrap_or(1).max(1)).unwrap_or(1);
                let name = name.clone();
                self.jobs.push(Box::pin(async move {
                    let target = Target {
                        runtime: node.runtime.as_ref(),
                        status: &status,
                        container: &container,
                        id: &id,
                        timeout: Duration::from_secs(timeout),
                    };
                    let result = run_probe(&target, &probe.spec).await;
                    Done::Probe(name, attempt, probe.kind, result)
                }));
            }
        }
        next
    }

    /// Stops the containers that the decision names and those whose probe or hook failed. Returns
    /// when to check again.
    pub(super) fn act_on_stops(
        &mut self,
        pod: &Arc<Pod>,
        runs: &BTreeMap<String, Runs>,
        decision: &Decision,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let mut due = None;
        for member in pod.spec.iter().flat_map(members) {
            let name = &member.spec.name;
            let Some(run) = runs.get(name).map(|runs| &runs.latest).filter(|run| run.is_running()) else { continue };
            let reason = if decision.stops.contains(name) {
                Some((pod_grace(pod, decision.ending.as_ref(), now), format!("Stopping container {name}")))
            } else if decision.ending.is_none() {
                self.failure(pod, name)
            } else {
                None
            };
            let Some((grace, message)) = reason else { continue };
            due = due.into_iter().chain(self.stop(pod, &member, run, grace, &message, decision, now)).min();
        }
        due
    }

    /// Why a running container must be stopped to restart: its grace period, and the message of the
    /// event.
    fn failure(&self, pod: &Pod, name: &str) -> Option<(SignedDuration, String)> {
        let grace = spec_grace(pod);
        if self.memory.restarting.contains_key(name) {
            return Some((grace, format!("Container {name} resize requires restart")));
        }
        if self.memory.hooks.get(name).is_some_and(|(_, hook)| *hook == Hook::Failed) {
            return Some((grace, "FailedPostStartHook".to_owned()));
        }
        let (kind, probe) = self.memory.probes.get(name)?.failed()?;
        let grace = probe.termination_grace_period_seconds.map_or(grace, SignedDuration::from_secs);
        let kind = kind.shown().to_lowercase();
        Some((grace, format!("Container {name} failed {kind} probe, will be restarted")))
    }

    fn stop(
        &mut self,
        pod: &Arc<Pod>,
        member: &Member<'_>,
        run: &Run,
        grace: SignedDuration,
        message: &str,
        decision: &Decision,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let name = member.spec.name.clone();
        let killed_at = now.checked_add(grace).unwrap_or(Timestamp::MAX);
        let known = self.memory.stopping.get(&name).copied();
        if let Some(known) = known {
            let again = known.killed_at.checked_add(STOP_AGAIN).unwrap_or(Timestamp::MAX);
            // A later deletion may shorten the grace period.
            let is_shorter = killed_at.as_second() < known.killed_at.as_second();
            if !is_shorter && now < again {
                return Some(again);
            }
        } else {
            self.node.record(pod, &PodEvent::normal("Killing", message).about(&name));
        }
        self.memory.stopping.insert(name.clone(), Stopping { attempt: run.attempt, killed_at });
        let job = StopJob {
            node: self.node.clone(),
            pod: pod.clone(),
            status: decision.status.clone(),
            container: member.spec.clone().into_owned(),
            id: run_id(&self.uid, &name, run.attempt),
            grace: Duration::try_from(grace).unwrap_or_default(),
            skip_hook: known.is_some(),
        };
        self.jobs.push(Box::pin(async move { Done::Stop(name, job.run().await.map_err(|error| error.to_string())) }));
        killed_at.checked_add(STOP_AGAIN).ok()
    }

    /// Records the result of a job.
    pub(super) fn apply(&mut self, pod: Option<Arc<Pod>>, done: Done) -> Result<(), String> {
        let now = self.node.clock.now();
        match done {
            Done::Start(result) => self.started(pod, *result, now),
            Done::Stop(name, result) => {
                if result.is_err() {
                    self.memory.stopping.remove(&name);
                }
                return result;
            }
            Done::Hook(name, attempt, result) => match result {
                Ok(()) => {
                    self.memory.hooks.remove(&name);
                }
                Err(error) => {
                    let message = format!("PostStartHook failed: {error}");
                    self.record(pod, &PodEvent::warning("FailedPostStartHook", message).about(&name));
                    self.memory.hooks.insert(name, (attempt, Hook::Failed));
                }
            },
            Done::Probe(name, attempt, kind, result) => self.probed(pod, &name, attempt, kind, &result, now),
        }
        Ok(())
    }

    fn record(&self, pod: Option<Arc<Pod>>, event: &PodEvent) {
        if let Some(pod) = pod {
            self.node.record(&pod, event);
        }
    }

    fn probed(
        &mut self,
        pod: Option<Arc<Pod>>,
        name: &str,
        attempt: i32,
        kind: Kind,
        result: &Result<String, String>,
        now: Timestamp,
    ) {
        let is_stopping = self.memory.stopping.contains_key(name);
        let Some(probes) = self.memory.probes.get_mut(name).filter(|it| it.attempt == attempt) else { return };
        // Probes of a container that is being stopped may fail.
        if is_stopping {
            return;
        }
        probes.record(kind, result.is_ok(), now);
        if let Err(output) = result {
            let message = format!("{} probe failed: {output}", kind.shown());
            self.record(pod, &PodEvent::warning("Unhealthy", message).about(name));
        }
    }

    fn started(&mut self, pod: Option<Arc<Pod>>, result: StartResult, now: Timestamp) {
        self.memory.starting = None;
        self.memory.tokens.extend(result.tokens);
        if let Some(volumes) = result.volumes {
            self.memory.volumes = volumes;
        }
        let Some(pod) = pod else { return };
        let start = result.start;
        let name = start.name.clone();
        if let Some(image) = &result.image
            && let Some(event) = image.notice.as_ref().filter(|_| self.memory.noticed.insert(image.reference.clone()))
        {
            self.node.record(&pod, &PodEvent::normal("ImageNotice", event.clone()).about(&name));
        }
        let pulled = result.image.map(|image| pulled(&image, result.pull_time).about(&name));
        match result.outcome {
            StartOutcome::Started(status) => {
                self.memory.obstacles.remove(&start.name);
                self.memory.hold = None;
                let created = PodEvent::normal("Created", "Container created").about(&name);
                let started = PodEvent::normal("Started", "Container started").about(&name);
                pulled.into_iter().chain([created, started]).for_each(|event| self.node.record(&pod, &event));
                self.count_restart(&start, now);
                self.memory.resources.insert(start.name.clone(), (start.attempt, result.resources));
                self.post_start(&pod, &start, &status);
            }
            StartOutcome::Rejected { exit_code, message } => {
                self.memory.obstacles.remove(&start.name);
                self.memory.hold = None;
                pulled.into_iter().for_each(|event| self.node.record(&pod, &event));
                self.node.record(&pod, &PodEvent::warning("Failed", format!("Error: {message}")).about(&name));
                self.count_restart(&start, now);
                let run = rejected(&self.uid, &start, exit_code, message, now);
                self.memory.failed.insert(start.name, run);
            }
            StartOutcome::Blocked(obstacle) => {
                self.memory.obstacles.insert(start.name, obstacle);
            }
            StartOutcome::Held(event) => {
                self.node.record(&pod, &event);
                self.memory.hold = Some(Hold::next(self.memory.hold.as_ref(), &event, now));
            }
        }
    }

    fn count_restart(&mut self, start: &Start, now: Timestamp) {
        if start.attempt > 0 {
            let known = self.memory.back_off.entry(start.name.clone());
            known.and_modify(|known| known.restarted(now)).or_insert_with(|| BackOff::new(start.attempt, now));
        }
    }

    /// Starts the postStart hook of a container that runs.
    fn post_start(&mut self, pod: &Arc<Pod>, start: &Start, status: &ContainerStatus) {
        if !matches!(status.state, ContainerState::Running { .. }) {
            return;
        }
        let member = pod.spec.iter().flat_map(members).find(|member| member.spec.name == start.name);
        let Some(container) = member.map(|member| member.spec.into_owned()) else { return };
        let Some(hook) = container.lifecycle.as_ref().and_then(|it| it.post_start.clone()) else { return };
        let node = self.node.clone();
        let (name, attempt) = (start.name.clone(), start.attempt);
        let id = run_id(&self.uid, &name, attempt);
        let mut pod_status = pod.status.clone().unwrap_or_default();
        if let Some(state) = node.runtime.pod(&self.uid) {
            super::start::set_addresses(pod, &mut pod_status, &state.ips);
        }
        self.memory.hooks.insert(name.clone(), (attempt, Hook::Running));
        self.jobs.push(Box::pin(async move {
            let result = run_hook(&node, &pod_status, &container, &id, &hook).await;
            Done::Hook(name, attempt, result)
        }));
    }
}

/// The event about an image that a container starts with.
fn pulled(image: &Image, time: Option<SignedDuration>) -> PodEvent {
    let reference = &image.reference;
    let message = match time.map(shown_time) {
        None => format!("Container image {reference:?} already present on machine and can be accessed by the pod"),
        Some(time) => format!(
            "Successfully pulled image {reference:?} in {time} ({time} including waiting). Image size: {} bytes.",
            image.size_bytes
        ),
    };
    PodEvent::normal("Pulled", message)
}

/// A time in milliseconds, as Kubernetes' messages show it: `850ms`, `2.31s`, `1m5.2s`.
fn shown_time(time: SignedDuration) -> String {
    let millis = time.as_millis().max(0);
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    let fraction = format!("{}.{:03}", rest / 1000, rest % 1000);
    let seconds = fraction.trim_end_matches('0').trim_end_matches('.');
    if minutes > 0 { format!("{minutes}m{seconds}s") } else { format!("{seconds}s") }
}

/// The health of a run that a former process of Berth probed, from the pod's status.
fn known_health(status: Option<&PodStatus>, name: &str, container_id: &str) -> Option<Health> {
    let status = status?;
    let lists = [&status.container_statuses, &status.init_container_statuses];
    let known = lists.into_iter().flatten().flatten().find(|known| known.name == name)?;
    let is_this_run = known.container_id.as_deref() == Some(container_id);
    is_this_run.then(|| Health { started: known.started == Some(true), ready: known.ready })
}

/// The run of a start that the runtime rejected. It ended at once.
fn rejected(uid: &PodUid, start: &Start, exit_code: i32, message: String, now: Timestamp) -> Run {
    Run {
        attempt: start.attempt,
        container_id: shown_id(&run_id(uid, &start.name, start.attempt)),
        image_id: String::new(),
        is_current: true,
        state: RunState::Ended(End {
            started: None,
            finished: now,
            exit_code,
            reason: START_ERROR.to_owned(),
            message: Some(message),
            signal: None,
        }),
    }
}

/// The ID of a run.
pub(super) fn run_id(uid: &PodUid, name: &str, attempt: i32) -> ContainerId {
    ContainerId { pod: uid.clone(), name: name.to_owned(), attempt: u32::try_from(attempt).unwrap_or_default() }
}

fn spec_grace(pod: &Pod) -> SignedDuration {
    let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    SignedDuration::from_secs(grace.unwrap_or(GRACE_DEFAULT).max(0))
}

/// Time that the containers of a pod have to stop.
fn pod_grace(pod: &Pod, ending: Option<&Ending>, now: Timestamp) -> SignedDuration {
    match ending {
        Some(Ending::Failed { .. }) => SignedDuration::from_secs(GRACE_EVICTED),
        Some(Ending::Deleted) => {
            // The deletion timestamp is the end of the grace period.
            let left = pod.metadata.deletion_timestamp.as_ref().map(|ends| ends.0.duration_since(now));
            left.unwrap_or_default().max(SignedDuration::ZERO)
        }
        Some(Ending::Deadline) | None => spec_grace(pod),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_is_reported_with_its_time_and_size() {
        let image = Image { reference: "a/b:1".to_owned(), size_bytes: 7, ..Image::default() };
        let message = |time: Option<i64>| pulled(&image, time.map(SignedDuration::from_millis)).message;
        let present = "Container image \"a/b:1\" already present on machine and can be accessed by the pod";
        assert_eq!(message(None), present);
        for (millis, shown) in [(850, "850ms"), (2310, "2.31s"), (3000, "3s"), (65_200, "1m5.2s")] {
            let expected = format!(
                "Successfully pulled image \"a/b:1\" in {shown} ({shown} including waiting). Image size: 7 bytes."
            );
            assert_eq!(message(Some(millis)), expected);
        }
    }
}
