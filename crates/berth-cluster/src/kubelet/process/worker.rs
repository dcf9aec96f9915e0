//! The worker of one pod: compares the pod with the runtime's report and takes the next step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_pod_runtime::{ContainerKind, ContainerState, PodState, PodUid};
use berth_runtime::{Error, EventType, ObjectKey, brief, stamp};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{HostIP, Pod, PodStatus};
use tokio::sync::Notify;

use super::admission::Refusal;
use super::memory::{Memory, Obstacle, Stopping};
use super::node::Node;
use super::probes::Kind;
use super::resize::Resized;
use super::runs::runs;
use super::start::{StartJob, StartResult, set_addresses};
use crate::kubelet::lifecycle::{
    Blocked, Decision, Ending, Facts, Health, Member, Run, Runs, blocked_events, decide, members, restart_delay,
};
use crate::kubelet::resize;
use crate::kubelet::resolve::{config, image_volumes, volumes};

/// Delay before the first retry after an error; doubles up to [`RETRY_MAX`].
const RETRY_BASE: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// Delay after a write to a pod that no longer exists.
const GONE_RETRY: SignedDuration = SignedDuration::from_millis(100);
/// Grace period of a container whose pod no longer exists.
const ORPHAN_GRACE: Duration = Duration::from_secs(1);
/// An orphan is removed without further waiting this long after its grace period has ended.
const ORPHAN_MAX: SignedDuration = SignedDuration::from_secs(10);
/// After a run of this length, the next restart is immediate.
const LONG_RUN: SignedDuration = SignedDuration::from_secs(600);

/// A finished job of a worker.
pub enum Done {
    /// A container's start.
    Start(Box<StartResult>),
    /// A container's stop: container, result.
    Stop(String, Result<(), String>),
    /// A postStart hook: container, run, result.
    Hook(String, i32, Result<(), String>),
    /// A probe: container, run, kind, result.
    Probe(String, i32, Kind, Result<String, String>),
}

/// The action of a worker after a step.
enum Next {
    /// Take the next step at this time, or at the next change.
    At(Option<Timestamp>),
    /// End, because nothing of the pod is left.
    End,
}

/// The worker of one pod.
pub struct Worker {
    pub(super) node: Arc<Node>,
    key: ObjectKey,
    pub(super) uid: PodUid,
    wake: Arc<Notify>,
    pub(super) memory: Memory,
    /// Starts, stops, hooks and probes in progress.
    pub(super) jobs: FuturesUnordered<BoxFuture<'static, Done>>,
    /// When the pod was found to be deleted.
    orphan_since: Option<Timestamp>,
    /// Number of failed steps in a row.
    failures: u32,
}

impl Worker {
    /// The worker of the pod with this UID. `wake` signals changes.
    pub fn new(node: Arc<Node>, key: ObjectKey, uid: PodUid, wake: Arc<Notify>) -> Self {
        Self {
            node,
            key,
            uid,
            wake,
            memory: Memory::default(),
            jobs: FuturesUnordered::new(),
            orphan_since: None,
            failures: 0,
        }
    }

    /// Takes steps until nothing of the pod is left. Returns its UID.
    pub async fn run(mut self) -> PodUid {
        loop {
            let due = match self.step().await {
                Ok(Next::End) => return self.uid,
                Ok(Next::At(due)) => {
                    self.failures = 0;
                    due
                }
                Err(error) => Some(self.failed(&error)),
            };
            let clock = self.node.clock.clone();
            let until_due = async {
                match due {
                    Some(due) => clock.sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(done) = self.jobs.next(), if !self.jobs.is_empty() => {
                    let pod = self.pod();
                    if let Err(error) = self.apply(pod, done) {
                        let retry = self.failed(&error.into());
                        self.node.clock.sleep_until(retry).await;
                    }
                }
                () = self.wake.notified() => {}
                () = until_due => {}
            }
        }
    }

    /// Logs an error. Returns when to retry.
    fn failed(&mut self, error: &Error) -> Timestamp {
        let delay = RETRY_BASE.saturating_mul(1 << self.failures.min(10)).min(RETRY_MAX);
        self.failures = self.failures.saturating_add(1);
        let is_conflict = error.downcast_ref::<kube::Error>().is_some_and(berth_runtime::is_conflict);
        let error = brief(error.as_ref());
        if is_conflict {
            tracing::debug!(pod = %self.key, retry = ?delay, %error, "the pod has changed, retrying");
        } else {
            tracing::warn!(pod = %self.key, retry = ?delay, %error, "a step of the kubelet failed, retrying");
        }
        let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
        self.node.clock.now().checked_add(delay).unwrap_or(Timestamp::MAX)
    }

    /// The pod; `None` if it no longer exists or another pod has its name.
    fn pod(&self) -> Option<Arc<Pod>> {
        self.node.writer.pods.get(&self.key).filter(|pod| pod.metadata.uid.as_ref() == Some(&self.uid.0))
    }

    async fn step(&mut self) -> Result<Next, Error> {
        let state = self.node.runtime.pod(&self.uid);
        let pod = self.pod();
        let phase = pod.as_ref().and_then(|pod| pod.status.as_ref()?.phase.as_deref());
        let has_ended = pod.is_none() || matches!(phase, Some("Succeeded" | "Failed"));
        // The end of a start wakes the worker.
        if has_ended && self.is_in_runtime() {
            return Ok(Next::At(None));
        }
        match &pod {
            None => self.clear(state).await,
            Some(pod) if has_ended => self.finish(pod, state).await,
            Some(pod) => self.advance(pod, state).await,
        }
    }

    /// True while the runtime creates the sandbox or starts a container.
    fn is_in_runtime(&self) -> bool {
        self.memory.starting.as_ref().is_some_and(|starting| starting.load(Ordering::Relaxed))
    }

    /// Removes the containers and files of a pod that no longer exists.
    async fn clear(&mut self, state: Option<Arc<PodState>>) -> Result<Next, Error> {
        let now = self.node.clock.now();
        // Jobs of the pod have no purpose now. Processes that they started are stopped with the
        // sandbox.
        self.jobs.clear();
        let since = *self.orphan_since.get_or_insert(now);
        let limit = since.checked_add(ORPHAN_MAX).unwrap_or(Timestamp::MAX);
        if let Some(state) = state.filter(|state| state.is_ready && now < limit) {
            let running = state.containers.iter().filter(|it| matches!(it.state, ContainerState::Running { .. }));
            let running: Vec<_> = running.map(|it| it.id.clone()).collect();
            for id in &running {
                let attempt = i32::try_from(id.attempt).unwrap_or(i32::MAX);
                let stopping = Stopping { attempt, killed_at: since };
                if self.memory.stopping.insert(id.name.clone(), stopping) != Some(stopping) {
                    self.node.runtime.stop_container(id, ORPHAN_GRACE).await?;
                }
            }
            if !running.is_empty() {
                return Ok(Next::At(Some(limit)));
            }
        }
        self.node.runtime.stop_sandbox(&self.uid).await?;
        self.node.runtime.remove_sandbox(&self.uid).await?;
        self.node.devices.release(&self.uid);
        Ok(Next::End)
    }

    /// Releases the resources of a pod that has ended, and removes its folder after the pod is
    /// deleted. The folder contains the logs.
    async fn finish(&mut self, pod: &Arc<Pod>, state: Option<Arc<PodState>>) -> Result<Next, Error> {
        self.jobs.clear();
        if !self.memory.is_stopped {
            // This includes a state that is not ready: a former process may have ended during this
            // step.
            if state.is_some() {
                self.node.runtime.stop_sandbox(&self.uid).await?;
            }
            self.node.devices.release(&self.uid);
            self.memory.is_stopped = true;
        }
        if pod.metadata.deletion_timestamp.is_some() {
            // The removal is reported as a change, which runs this step again.
            if !self.memory.is_removed {
                self.node.runtime.remove_sandbox(&self.uid).await?;
                self.memory.is_removed = true;
            }
            // If the grace period is 0, only finalizers keep the pod.
            if pod.metadata.deletion_grace_period_seconds != Some(0) {
                self.node.writer.remove(pod).await?;
            }
        }
        Ok(Next::At(None))
    }

    /// Takes the next step of a pod that has not ended.
    async fn advance(&mut self, pod: &Arc<Pod>, state: Option<Arc<PodState>>) -> Result<Next, Error> {
        let now = self.node.clock.now();
        if pod.status.as_ref().is_none_or(|status| status.start_time.is_none())
            && let Some(refusal) = self.refusal(pod)
        {
            return self.reject(pod, refusal, now).await;
        }
        let runs = runs(pod, state.as_deref(), &self.memory.failed, now);
        let state = state.filter(|state| state.is_ready);
        let mut base = self.base(pod, state.as_deref(), now);
        self.forget(&runs);
        let resized = match self.resize(pod, &mut base, &runs, now).await? {
            Resized::Written => return Ok(Next::At(Some(now))),
            Resized::At(due) => due,
        };
        let ending = pod.metadata.deletion_timestamp.is_some().then_some(Ending::Deleted);
        let ending = ending.or_else(|| self.memory.ending.clone());
        self.lift(pod, &base, now);
        let (blocked, mut due) = self.blocked(now);
        due.extend(resized);
        let health = self.health(pod, &runs, now);
        let hold = self.memory.hold.as_ref().filter(|hold| hold.until > now).map(|hold| hold.until);
        due.extend(hold);
        let decision = decide(&Facts {
            pod,
            status: &base,
            now,
            has_sandbox: state.is_some(),
            is_held: hold.is_some(),
            runs: &runs,
            health: &health,
            blocked: &blocked,
            back_off: &|name, run| self.back_off(name, run),
            never_restart: false,
            restarting: &self.memory.restarting,
            ending,
        });
        if decision.is_finished && self.is_in_runtime() {
            return Ok(Next::At(None));
        }
        if pod.status.as_ref() != Some(&decision.status) {
            if !self.node.writer.status(pod, &decision.status).await? {
                // The pod no longer exists. The cache will show that soon.
                return Ok(Next::At(now.checked_add(GONE_RETRY).ok()));
            }
            let events = blocked_events(pod, &base, &decision.status, |name| blocked.get(name));
            for event in decision.events.iter().chain(&events) {
                self.node.record(pod, event);
            }
        }
        if decision.is_finished {
            return Ok(Next::At(Some(now)));
        }
        due.extend(decision.due);
        due.extend(self.act(pod, &runs, &decision, now));
        if state.is_some() && decision.ending.is_none() {
            due.extend(self.refresh(pod, &decision.status, now).await);
            due.extend(self.watch_disk(pod, now).await);
        }
        Ok(Next::At(due.into_iter().min()))
    }

    /// Why the node rejects a pod that was bound to it; `None` if it does not reject it.
    fn refusal(&self, pod: &Pod) -> Option<Refusal> {
        let node = &self.node;
        let is_here = |other: &Arc<Pod>| other.spec.as_ref().and_then(|it| it.node_name.as_ref()) == Some(&node.name);
        Refusal::of(pod, node.writer.pods.iter().filter(is_here))
    }

    /// Ends a pod that the node rejects. It has no containers.
    async fn reject(&mut self, pod: &Arc<Pod>, refusal: Refusal, now: Timestamp) -> Result<Next, Error> {
        let status = PodStatus {
            phase: Some("Failed".to_owned()),
            reason: Some(refusal.reason.to_owned()),
            message: Some(refusal.message.clone()),
            ..self.base(pod, None, now)
        };
        if self.node.writer.status(pod, &status).await? {
            self.node.recorder.event(pod.as_ref(), EventType::Warning, refusal.reason, &refusal.message);
        }
        Ok(Next::At(now.checked_add(GONE_RETRY).ok()))
    }

    /// The status with the fields that the node sets.
    fn base(&self, pod: &Pod, state: Option<&PodState>, now: Timestamp) -> PodStatus {
        let mut base = pod.status.clone().unwrap_or_default();
        let host_ip = self.node.options.host_ip.clone();
        base.host_ips = Some(vec![HostIP { ip: host_ip.clone() }]);
        base.host_ip = Some(host_ip);
        base.start_time = Some(base.start_time.unwrap_or_else(|| stamp(now)));
        base.observed_generation = pod.metadata.generation;
        if let Some(state) = state {
            set_addresses(pod, &mut base, &state.ips);
        }
        base
    }

    /// Removes the state of runs that have ended.
    fn forget(&mut self, runs: &BTreeMap<String, Runs>) {
        let runs_now = |name: &str, attempt: i32| {
            runs.get(name).is_some_and(|runs| runs.latest.attempt == attempt && runs.latest.is_running())
        };
        self.memory.stopping.retain(|name, stopping| runs_now(name, stopping.attempt));
        self.memory.hooks.retain(|name, (attempt, _)| runs_now(name, *attempt));
        self.memory.probes.retain(|name, probes| runs_now(name, probes.attempt));
        self.memory.resources.retain(|name, (attempt, _)| runs_now(name, *attempt));
        // Kept until the next run, which starts without delay.
        self.memory
            .restarting
            .retain(|name, attempt| runs.get(name).is_some_and(|runs| runs.latest.attempt == *attempt));
    }

    /// Removes obstacles that no longer apply because an object was created or changed.
    fn lift(&mut self, pod: &Arc<Pod>, status: &PodStatus, now: Timestamp) {
        let node = self.node.clone();
        let allocatable = node.allocatable();
        let context = node.context(pod, status, &allocatable);
        for member in pod.spec.iter().flat_map(members) {
            let name = &member.spec.name;
            if matches!(self.memory.obstacles.get(name), Some(Obstacle::Configuration(_)))
                && config(&context, &member, 0, Default::default(), Vec::new()).is_ok()
            {
                self.memory.obstacles.remove(name);
            }
        }
        // The volumes of images do not depend on objects, and may be what failed.
        if !image_volumes(pod, &[]).is_empty() {
            return;
        }
        let tokens = super::start::texts(&self.memory.tokens);
        if let Some(hold) = self.memory.hold.as_mut().filter(|hold| hold.is_mount && hold.until > now)
            && volumes(&context, &tokens).is_ok()
        {
            hold.until = now;
        }
    }

    fn blocked(&self, now: Timestamp) -> (BTreeMap<String, Blocked>, Vec<Timestamp>) {
        let (mut blocked, mut due) = (BTreeMap::new(), Vec::new());
        for (name, obstacle) in &self.memory.obstacles {
            let (block, changes) = obstacle.at(now);
            blocked.insert(name.clone(), block);
            due.extend(changes);
        }
        (blocked, due)
    }

    /// Delay of the next restart of a container.
    fn back_off(&self, name: &str, run: &Run) -> SignedDuration {
        let Some(end) = run.end() else { return SignedDuration::ZERO };
        if self.memory.restarting.get(name) == Some(&run.attempt) {
            return SignedDuration::ZERO;
        }
        if let Some(known) = self.memory.back_off.get(name) {
            return known.delay(end.finished);
        }
        // A former process of Berth counted the restarts.
        let is_long = end.started.is_some_and(|started| end.finished.duration_since(started) > LONG_RUN);
        if is_long { SignedDuration::ZERO } else { restart_delay(run.attempt) }
    }

    /// Carries out a decision. Returns when to act again.
    fn act(
        &mut self,
        pod: &Arc<Pod>,
        runs: &BTreeMap<String, Runs>,
        decision: &Decision,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let mut due = self.act_on_stops(pod, runs, decision, now);
        if decision.ending.is_none() && decision.stops.is_empty() {
            let probes = self.probe(pod, runs, &decision.status, now);
            due = due.into_iter().chain(probes).min();
            self.act_on_starts(pod, decision);
        }
        due
    }

    /// Starts the next container. Only one start is in progress at a time, to keep the order of the
    /// spec. A postStart hook delays the containers that follow its container.
    fn act_on_starts(&mut self, pod: &Arc<Pod>, decision: &Decision) {
        if self.memory.starting.is_some() || self.hook_is_running() {
            return;
        }
        let Some(start) = decision.starts.first() else { return };
        let member = pod.spec.iter().flat_map(members).find(|member| member.spec.name == start.name);
        let Some(mut member) = member.map(Member::into_owned) else { return };
        if resize::is_pending(pod)
            && let Some(granted) = resize::in_force(pod, &start.name)
        {
            member.spec.to_mut().resources = Some(granted.clone());
        }
        let pull_failures = match self.memory.obstacles.get(&start.name) {
            Some(Obstacle::Image { failures, .. }) => *failures,
            _ => 0,
        };
        let is_in_runtime = Arc::new(AtomicBool::new(false));
        let job = StartJob {
            node: self.node.clone(),
            pod: pod.clone(),
            status: decision.status.clone(),
            member,
            start: start.clone(),
            tokens: self.memory.tokens.clone(),
            pull_failures,
            is_in_runtime: is_in_runtime.clone(),
        };
        self.memory.starting = Some(is_in_runtime);
        self.jobs.push(Box::pin(async move { Done::Start(Box::new(job.run().await)) }));
    }

    /// The health of running containers. Creates the probes of new runs.
    fn health(&mut self, pod: &Pod, runs: &BTreeMap<String, Runs>, now: Timestamp) -> BTreeMap<String, Health> {
        let mut health = BTreeMap::new();
        for member in pod.spec.iter().flat_map(members) {
            let is_probed = matches!(member.kind, ContainerKind::Main | ContainerKind::Sidecar);
            if is_probed && let Some(runs) = runs.get(&member.spec.name) {
                let name = member.spec.name.clone();
                health.extend(self.health_of(pod, &member, &runs.latest, now).map(|health| (name, health)));
            }
        }
        health
    }
}
