//! The next step of a pod: which containers start and stop.

use std::collections::BTreeMap;

use berth_pod_runtime::ContainerKind;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{PodSpec, PodStatus};
use kube::ResourceExt;

use super::backoff::shown;
use super::status::{self, Wait};
use super::{Decision, Ending, Facts, Member, PodEvent, Run, Start, members};

/// Reason of a container that waits for its restart.
pub(super) const CRASH_LOOP: &str = "CrashLoopBackOff";

/// The next step of a pod.
pub fn decide(facts: &Facts<'_>) -> Decision {
    let empty = PodSpec::default();
    let spec = facts.pod.spec.as_ref().unwrap_or(&empty);
    let mut plan = Plan::new(facts, spec);
    let ending = facts.ending.clone().or_else(|| plan.deadline().then_some(Ending::Deadline));
    let ends = ending.is_some() || plan.has_ended();
    if ends {
        plan.stop();
    } else {
        plan.start();
    }
    let is_finished = ends && !plan.any_running();
    let outlook = status::Outlook {
        facts,
        members: &plan.members,
        waits: &plan.waits,
        ending: ending.as_ref(),
        is_finished,
        is_initialized: plan.is_initialized,
        has_begun: plan.has_begun,
    };
    let status: PodStatus = status::compute(&outlook);
    Decision { status, starts: plan.starts, stops: plan.stops, events: plan.events, due: plan.due, ending, is_finished }
}

/// A decision that is being computed.
struct Plan<'a> {
    facts: &'a Facts<'a>,
    spec: &'a PodSpec,
    members: Vec<Member<'a>>,
    starts: Vec<Start>,
    stops: Vec<String>,
    events: Vec<PodEvent>,
    due: Option<Timestamp>,
    /// Reasons of the containers that wait, by name.
    waits: BTreeMap<String, Wait>,
    /// True if all init containers have succeeded and all sidecars have started.
    is_initialized: bool,
    /// True if a main container has run in the current sandbox.
    has_begun: bool,
}

impl<'a> Plan<'a> {
    fn new(facts: &'a Facts<'a>, spec: &'a PodSpec) -> Self {
        let members = members(spec);
        let main = members.iter().filter(|member| member.kind == ContainerKind::Main);
        let has_begun = main.filter_map(|member| facts.runs.get(&member.spec.name)).any(|runs| runs.latest.is_current);
        Self {
            facts,
            spec,
            members,
            starts: Vec::new(),
            stops: Vec::new(),
            events: Vec::new(),
            due: None,
            waits: BTreeMap::new(),
            is_initialized: has_begun,
            has_begun,
        }
    }

    fn run(&self, member: &Member<'_>) -> Option<&'a Run> {
        self.facts.runs.get(&member.spec.name).map(|runs| &runs.latest)
    }

    fn any_running(&self) -> bool {
        self.members.iter().any(|member| self.run(member).is_some_and(Run::is_running))
    }

    fn wait_until(&mut self, at: Timestamp) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// True if the pod's active deadline has passed. Otherwise schedules the next step for the
    /// deadline.
    fn deadline(&mut self) -> bool {
        let Some(seconds) = self.spec.active_deadline_seconds else { return false };
        let since = self.facts.status.start_time.as_ref().map_or(self.facts.now, |time| time.0);
        let ends = since.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
        if ends <= self.facts.now {
            return true;
        }
        self.wait_until(ends);
        false
    }

    /// True if this run of a container is its last one.
    fn is_last(&self, member: &Member<'_>, exit_code: i32) -> bool {
        let name = &member.spec.name;
        let is_restarting = self.run(member).is_some_and(|run| self.facts.restarting.get(name) == Some(&run.attempt));
        self.facts.never_restart || !is_restarting && !member.restarts(self.spec, exit_code)
    }

    /// True if the pod ends by itself: its last main container has ended, or an init container has
    /// failed for good.
    fn has_ended(&self) -> bool {
        let end = |member: &Member<'_>| self.run(member).and_then(Run::end).map(|end| end.exit_code);
        let mut main = self.members.iter().filter(|member| member.kind == ContainerKind::Main).peekable();
        let all_ended = main.peek().is_some()
            && main.all(|member| end(member).is_some_and(|exit_code| self.is_last(member, exit_code)));
        let has_failed = |member: &Member<'_>| {
            member.kind == ContainerKind::Init
                && end(member).is_some_and(|code| code != 0 && self.is_last(member, code))
        };
        all_ended || !self.has_begun && self.members.iter().any(has_failed)
    }

    /// Stops all containers: the sidecars last, in the reverse order of their starts.
    fn stop(&mut self) {
        let running = |kinds: &[ContainerKind]| -> Vec<String> {
            let chosen = self.members.iter().filter(|member| kinds.contains(&member.kind));
            let running = chosen.filter(|member| self.run(member).is_some_and(Run::is_running));
            running.map(|member| member.spec.name.clone()).collect()
        };
        let main = running(&[ContainerKind::Init, ContainerKind::Main]);
        let ephemeral = running(&[ContainerKind::Ephemeral]);
        let sidecar = running(&[ContainerKind::Sidecar]).pop().filter(|_| main.is_empty());
        self.stops = main.into_iter().chain(sidecar).chain(ephemeral).collect();
    }

    fn start(&mut self) {
        self.is_initialized = self.start_init();
        if !self.is_initialized {
            return;
        }
        let members = std::mem::take(&mut self.members);
        for member in &members {
            match (member.kind, self.run(member)) {
                (ContainerKind::Main | ContainerKind::Ephemeral, None) => self.start_one(member, 0),
                (ContainerKind::Main, Some(run)) => self.restart(member, run),
                // Already handled above, or never restarted.
                _ => {}
            }
        }
        self.members = members;
    }

    /// Starts the next init container or sidecar. Returns true if the main containers may start.
    fn start_init(&mut self) -> bool {
        let members = std::mem::take(&mut self.members);
        let mut is_done = true;
        for member in &members {
            if !matches!(member.kind, ContainerKind::Init | ContainerKind::Sidecar) {
                continue;
            }
            let is_sidecar = member.kind == ContainerKind::Sidecar;
            let run = self.run(member);
            if self.has_begun {
                if let Some(run) = run.filter(|_| is_sidecar) {
                    self.restart(member, run);
                }
                continue;
            }
            match run.filter(|run| run.is_current) {
                // Runs of a lost sandbox are repeated, because their results were lost with it.
                None => self.start_one(member, run.map_or(0, |run| run.attempt + 1)),
                Some(run) => match run.end() {
                    None if is_sidecar && self.has_started(member) => continue,
                    None => {}
                    Some(end) if !is_sidecar && end.exit_code == 0 => continue,
                    Some(_) => self.restart(member, run),
                },
            }
            is_done = false;
            break;
        }
        self.members = members;
        is_done
    }

    fn has_started(&self, member: &Member<'_>) -> bool {
        self.facts.health.get(&member.spec.name).is_none_or(|health| health.started)
    }

    /// Restarts a container that has ended, after its back-off, if the restart policy requires it.
    fn restart(&mut self, member: &Member<'_>, run: &Run) {
        let Some(end) = run.end().filter(|end| !self.is_last(member, end.exit_code)) else { return };
        let delay = if run.is_current { (self.facts.back_off)(&member.spec.name, run) } else { SignedDuration::ZERO };
        let at = end.finished.checked_add(delay).unwrap_or(Timestamp::MAX);
        if at <= self.facts.now {
            self.start_one(member, run.attempt + 1);
            return;
        }
        self.wait_until(at);
        let pod = shown_pod(self.facts);
        let name = &member.spec.name;
        let message = format!("back-off {} restarting failed container={name} pod={pod}", shown(delay));
        self.waits.insert(name.clone(), Wait { reason: CRASH_LOOP.into(), message });
        if status::waiting_reason(self.facts.status, name) != Some(CRASH_LOOP) {
            let message = format!("Back-off restarting failed container {name} in pod {pod}");
            self.events.push(PodEvent::warning("BackOff", message).about(name));
        }
    }

    fn start_one(&mut self, member: &Member<'_>, attempt: i32) {
        let name = &member.spec.name;
        if let Some(blocked) = self.facts.blocked.get(name) {
            self.waits.insert(name.clone(), Wait { reason: blocked.reason.clone(), message: blocked.message.clone() });
            match blocked.until {
                Some(until) if until <= self.facts.now => {}
                Some(until) => return self.wait_until(until),
                None => return,
            }
        }
        if !self.facts.is_held {
            self.starts.push(Start { name: name.clone(), kind: member.kind, attempt });
        }
    }
}

/// A pod as Kubernetes' messages show it: `name_namespace(uid)`.
fn shown_pod(facts: &Facts<'_>) -> String {
    let meta = &facts.pod.metadata;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    format!("{}_{namespace}({})", facts.pod.name_any(), meta.uid.as_deref().unwrap_or_default())
}
