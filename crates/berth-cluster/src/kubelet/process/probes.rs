//! The times at which probes run, and the evaluation of their results.
//!
//! Source: Kubernetes documentation, "Configure Liveness, Readiness and Startup Probes".

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Probe};

use crate::kubelet::lifecycle::Health;

/// Kind of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Checks whether the program has started. Other probes wait for it.
    Startup,
    /// Checks whether the container must be restarted.
    Liveness,
    /// Checks whether the container can serve requests.
    Readiness,
}

impl Kind {
    /// The name, capitalized for the start of a sentence.
    pub fn shown(self) -> &'static str {
        match self {
            Kind::Startup => "Startup",
            Kind::Liveness => "Liveness",
            Kind::Readiness => "Readiness",
        }
    }
}

/// One probe of a running container.
#[derive(Clone, Debug)]
struct State {
    kind: Kind,
    spec: Probe,
    next: Timestamp,
    /// True if a probe is in progress.
    is_running: bool,
    /// Number of equal results in a row.
    successes: i32,
    failures: i32,
    /// The result according to the thresholds; `None` until one is reached.
    outcome: Option<bool>,
}

impl State {
    fn new(kind: Kind, spec: &Probe, started: Timestamp, now: Timestamp, known: Option<bool>) -> Self {
        let delay = SignedDuration::from_secs(i64::from(spec.initial_delay_seconds.unwrap_or(0).max(0)));
        let first = started.checked_add(delay).unwrap_or(Timestamp::MAX).max(now);
        Self { kind, spec: spec.clone(), next: first, is_running: false, successes: 0, failures: 0, outcome: known }
    }

    fn record(&mut self, success: bool, now: Timestamp) {
        self.is_running = false;
        let period = SignedDuration::from_secs(i64::from(self.spec.period_seconds.unwrap_or(10).max(1)));
        let due = self.next.checked_add(period).unwrap_or(Timestamp::MAX);
        self.next = if due > now { due } else { now.checked_add(period).unwrap_or(Timestamp::MAX) };
        if success {
            self.successes = self.successes.saturating_add(1);
            self.failures = 0;
            if self.successes >= self.spec.success_threshold.unwrap_or(1) {
                self.outcome = Some(true);
            }
        } else {
            self.failures = self.failures.saturating_add(1);
            self.successes = 0;
            if self.failures >= self.spec.failure_threshold.unwrap_or(3) {
                self.outcome = Some(false);
            }
        }
    }
}

/// The probes of one run of a container.
#[derive(Clone, Debug)]
pub struct ContainerProbes {
    /// The run.
    pub attempt: i32,
    states: Vec<State>,
}

/// A probe that must run now.
#[derive(Clone, Debug)]
pub struct DueProbe {
    /// Its kind.
    pub kind: Kind,
    /// Its spec.
    pub spec: Probe,
}

impl ContainerProbes {
    /// The probes of a run that started at `started`. `known` is the health in the pod's status, if
    /// a former process of Berth probed this run.
    pub fn new(container: &Container, attempt: i32, started: Timestamp, now: Timestamp, known: Option<Health>) -> Self {
        let startup = container.startup_probe.as_ref();
        let startup =
            startup.map(|it| State::new(Kind::Startup, it, started, now, known.filter(|it| it.started).map(|_| true)));
        let liveness = container.liveness_probe.as_ref();
        let liveness = liveness.map(|it| State::new(Kind::Liveness, it, started, now, Some(true)));
        let readiness = container.readiness_probe.as_ref();
        let readiness =
            readiness.map(|it| State::new(Kind::Readiness, it, started, now, Some(known.is_some_and(|it| it.ready))));
        Self { attempt, states: [startup, liveness, readiness].into_iter().flatten().collect() }
    }

    fn of(&self, kind: Kind) -> Option<&State> {
        self.states.iter().find(|state| state.kind == kind)
    }

    /// True once the startup probe has succeeded, or if there is none.
    pub fn has_started(&self) -> bool {
        self.of(Kind::Startup).is_none_or(|state| state.outcome == Some(true))
    }

    /// The health that the results show.
    pub fn health(&self) -> Health {
        let started = self.has_started();
        let is_ready = self.of(Kind::Readiness).is_none_or(|state| state.outcome == Some(true));
        Health { started, ready: started && is_ready }
    }

    /// The failed probe that requires a restart of the container, with its spec.
    pub fn failed(&self) -> Option<(Kind, &Probe)> {
        let fatal = |state: &&State| state.kind != Kind::Readiness && state.outcome == Some(false);
        self.states.iter().find(fatal).map(|state| (state.kind, &state.spec))
    }

    fn is_active(&self, state: &State) -> bool {
        let has_started = self.has_started();
        match state.kind {
            Kind::Startup => !has_started && state.outcome.is_none(),
            Kind::Liveness => has_started && state.outcome != Some(false),
            Kind::Readiness => has_started,
        }
    }

    /// Returns the probes that must run now. They are in progress until
    /// [`ContainerProbes::record`].
    pub fn take_due(&mut self, now: Timestamp) -> Vec<DueProbe> {
        let due: Vec<usize> = (0..self.states.len())
            .filter(|at| {
                let state = &self.states[*at];
                self.is_active(state) && !state.is_running && state.next <= now
            })
            .collect();
        due.into_iter()
            .map(|at| {
                let state = &mut self.states[at];
                state.is_running = true;
                DueProbe { kind: state.kind, spec: state.spec.clone() }
            })
            .collect()
    }

    /// When the next probe is due.
    pub fn next(&self) -> Option<Timestamp> {
        let waiting = self.states.iter().filter(|state| self.is_active(state) && !state.is_running);
        waiting.map(|state| state.next).min()
    }

    /// Records the result of a probe.
    pub fn record(&mut self, kind: Kind, success: bool, now: Timestamp) {
        if let Some(state) = self.states.iter_mut().find(|state| state.kind == kind) {
            state.record(success, now);
        }
        if kind == Kind::Startup && self.has_started() {
            // The other probes run from now on.
            for state in self.states.iter_mut().filter(|state| state.kind != Kind::Startup) {
                state.next = state.next.max(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn probes(spec: Value) -> ContainerProbes {
        let container: Container = serde_json::from_value(spec).expect("a container");
        ContainerProbes::new(&container, 0, at(0), at(0), None)
    }

    /// Simulates the probes until `until`, with these results by kind and second. Returns when they
    /// ran.
    fn live(probes: &mut ContainerProbes, until: i64, result: impl Fn(Kind, i64) -> bool) -> Vec<(Kind, i64)> {
        let mut ran = Vec::new();
        while let Some(next) = probes.next().filter(|next| *next <= at(until)) {
            for due in probes.take_due(next) {
                ran.push((due.kind, next.as_second()));
                probes.record(due.kind, result(due.kind, next.as_second()), next);
            }
        }
        ran
    }

    #[test]
    fn a_container_without_probes_is_ready_at_once() {
        assert_eq!(probes(json!({"name": "c"})).health(), Health { started: true, ready: true });
    }

    #[test]
    fn readiness_follows_the_thresholds() {
        let spec = json!({"name": "c", "readinessProbe": {"initialDelaySeconds": 5, "periodSeconds": 2,
            "successThreshold": 2, "failureThreshold": 2}});
        let mut probes = probes(spec);
        assert!(!probes.health().ready);
        let ran = live(&mut probes, 7, |_, _| true);
        assert_eq!(ran, [(Kind::Readiness, 5), (Kind::Readiness, 7)]);
        assert!(probes.health().ready);
        live(&mut probes, 9, |_, _| false);
        assert!(probes.health().ready, "one failure is below the threshold");
        live(&mut probes, 11, |_, _| false);
        assert!(!probes.health().ready && probes.failed().is_none());
    }

    #[test]
    fn liveness_waits_for_the_startup_probe() {
        let spec = json!({"name": "c", "startupProbe": {"periodSeconds": 1, "failureThreshold": 30},
            "livenessProbe": {"periodSeconds": 5, "failureThreshold": 1}});
        let mut probes = probes(spec);
        let ran = live(&mut probes, 9, |kind, second| kind == Kind::Startup && second >= 4);
        assert_eq!(ran.iter().filter(|it| it.0 == Kind::Startup).count(), 5);
        assert_eq!(ran.iter().find(|it| it.0 == Kind::Liveness), Some(&(Kind::Liveness, 4)));
        assert_eq!(probes.failed().map(|it| it.0), Some(Kind::Liveness));
        assert_eq!(probes.next(), None, "a failed container is not probed again");
    }

    #[test]
    fn a_failed_startup_probe_restarts_the_container() {
        let spec = json!({"name": "c", "startupProbe": {"periodSeconds": 1, "failureThreshold": 3}});
        let mut probes = probes(spec);
        assert_eq!(live(&mut probes, 60, |_, _| false).len(), 3);
        assert_eq!(probes.failed().map(|it| it.0), Some(Kind::Startup));
        assert_eq!(probes.health(), Health { started: false, ready: false });
    }

    #[test]
    fn a_running_container_keeps_its_readiness_over_a_restart_of_the_kubelet() {
        let spec = json!({"name": "c", "readinessProbe": {"periodSeconds": 10}, "startupProbe": {}});
        let container: Container = serde_json::from_value(spec).expect("a container");
        let known = Health { started: true, ready: true };
        assert_eq!(ContainerProbes::new(&container, 0, at(0), at(50), Some(known)).health(), known);
    }
}
