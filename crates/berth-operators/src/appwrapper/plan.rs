//! The next step of an AppWrapper, from its spec and status, its components and pods, and the time.
//!
//! [`plan`] returns the new status and the writes that follow it. The status is written first, so
//! an interrupted step is planned again: a component is recorded before it is created, and quota is
//! given back after everything is gone. [`created`] continues after an attempt to create a
//! component.
//!
//! Source: project-codeflare/appwrapper 1.2.1. It differs in two places. A generated name is
//! recorded before the component is created, so that an interruption cannot leave a component that
//! nothing refers to. The pause before a failed AppWrapper's components are deleted begins with the
//! failure, also after resets, and once.

use berth_runtime::PlannedEvent;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::names;
use super::parameters::{DELETION_ON_FAILURE, Parameters};
use super::pods::PodSummary;
use super::types::condition::{DELETING_RESOURCES, PODS_READY, QUOTA_RESERVED, RESOURCES_DEPLOYED, UNHEALTHY};
use super::types::{AppWrapperSpec, AppWrapperStatus, ComponentStatus, Phase, State, find, is_true, set};

/// Interval between attempts to create a component.
const RETRY_CREATE: Duration = Duration::from_secs(1);
/// Interval between checks of a deletion, and of pods that are not ready.
const CHECK: Duration = Duration::from_secs(5);
/// Interval between checks of healthy pods.
const CHECK_HEALTHY: Duration = Duration::from_secs(60);

/// Reason of a component that is recorded but perhaps not created.
const INITIATED: &str = "ComponentCreationInitiated";
/// Reason of a component whose creation failed. After a lost response it may exist.
const ERRORED: &str = "ComponentCreationErrored";
/// Reason of a component that was deleted, with upstream's spelling.
const DELETED: &str = "CompononetDeleted";
const PAUSED: &str = "DeletionPaused";

/// What is known about an AppWrapper.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// UID, from which names are generated.
    pub uid: &'a str,
    /// Spec.
    pub spec: &'a AppWrapperSpec,
    /// Status.
    pub status: &'a AppWrapperStatus,
    /// True if the AppWrapper is being deleted.
    pub is_deleting: bool,
    /// True if our finalizer keeps the AppWrapper.
    pub has_finalizer: bool,
    /// Grace periods and limits.
    pub parameters: &'a Parameters,
    /// Components and pods, as far as [`observes`] requests them.
    pub observed: &'a Observed,
    /// The time.
    pub now: Timestamp,
}

/// The components and pods of an AppWrapper.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The recorded components, in the order of `status.componentStatus`.
    pub components: Vec<Presence>,
    /// The pods.
    pub pods: PodSummary,
}

/// State of a component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Presence {
    /// It does not exist, or the object of its name does not belong to the AppWrapper.
    #[default]
    Absent,
    /// It exists.
    Present {
        /// True if it is being deleted.
        is_deleting: bool,
        /// True if its controller reports a failure that will not be corrected.
        has_failed: bool,
    },
}

/// What a step must observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing.
    Nothing,
    /// Components, and pods that may be some moments old.
    Cached,
    /// Components, and the current pods: quota may be given back because there are none.
    Current,
}

/// The next step: writes in the order of the fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The new status; written if it differs.
    pub status: AppWrapperStatus,
    /// Writes after the status.
    pub acts: Vec<Act>,
    /// Events.
    pub events: Vec<PlannedEvent>,
    /// When to plan again.
    pub next: Next,
}

/// A write of another object than the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Adds our finalizer to the AppWrapper.
    AddFinalizer,
    /// Removes our finalizer from the AppWrapper.
    RemoveFinalizer,
    /// Creates the component of this index. [`created`] continues.
    Create(usize),
    /// Deletes a component.
    Delete {
        /// Index of the component.
        index: usize,
        /// True if the object's own grace period is skipped.
        is_forced: bool,
    },
    /// Deletes all pods without their grace period.
    DeletePods,
}

/// When to plan again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// After the next change.
    Wait,
    /// After this time, or after the next change.
    After(Duration),
    /// At once.
    Again,
}

/// Result of an attempt to create a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The component exists and belongs to the AppWrapper.
    Created,
    /// The generated name belongs to another object.
    NameTaken,
    /// The attempt failed.
    Rejected {
        /// The reason.
        message: String,
        /// True if further attempts are useless.
        is_fatal: bool,
    },
}

/// What the next step must observe.
pub fn observes(facts: &Facts<'_>) -> Look {
    let is_deployed = facts.status.is_true(RESOURCES_DEPLOYED);
    if facts.is_deleting {
        return if facts.has_finalizer && is_deployed { Look::Current } else { Look::Nothing };
    }
    match facts.status.phase {
        Phase::Running if !facts.spec.suspend => Look::Cached,
        Phase::Suspending | Phase::Failed if is_deployed => Look::Current,
        Phase::Resetting if is_deployed && !facts.spec.suspend => Look::Current,
        Phase::Succeeded if is_deployed && until_expiry(facts).is_none() => Look::Current,
        _ => Look::Nothing,
    }
}

/// The next step.
pub fn plan(facts: &Facts<'_>) -> Decision {
    if facts.is_deleting {
        return terminate(facts);
    }
    match facts.status.phase {
        Phase::Empty => initialise(facts),
        Phase::Suspended => start(facts),
        Phase::Resuming => resume(facts),
        Phase::Running => check(facts),
        Phase::Suspending => suspend(facts),
        Phase::Resetting => reset(facts),
        Phase::Failed => end_failed(facts),
        Phase::Succeeded => end_succeeded(facts),
        Phase::Terminating => Step::of(facts).then(Next::Wait),
    }
}

/// A decision while it is made.
struct Step<'a> {
    facts: &'a Facts<'a>,
    status: AppWrapperStatus,
    acts: Vec<Act>,
    events: Vec<PlannedEvent>,
}

impl<'a> Step<'a> {
    fn of(facts: &'a Facts<'a>) -> Self {
        Self { facts, status: facts.status.clone(), acts: Vec::new(), events: Vec::new() }
    }

    fn then(self, next: Next) -> Decision {
        let Self { status, acts, events, .. } = self;
        Decision { status, acts, events, next }
    }

    /// Enters a phase and plans again.
    fn enter(mut self, phase: Phase) -> Decision {
        self.status.phase = phase;
        self.then(Next::Again)
    }

    fn set(&mut self, type_: &str, state: State<'_>) {
        set(&mut self.status.conditions, type_, state, self.facts.now);
    }

    /// Sets a condition to False if it is True.
    fn clear(&mut self, type_: &str, reason: &str, message: &str) {
        if self.status.is_true(type_) {
            self.set(type_, State::no(reason, message));
        }
    }

    fn component(&mut self, index: usize, state: State<'_>) {
        if let Some(component) = self.status.component_status.get_mut(index) {
            set(&mut component.conditions, RESOURCES_DEPLOYED, state, self.facts.now);
        }
    }

    fn event(&mut self, is_warning: bool, reason: &'static str, message: String) {
        self.events.push(PlannedEvent::with_warning(is_warning, reason, message));
    }

    /// Records a problem, with an event.
    fn unhealthy(&mut self, reason: &str, message: &str) {
        self.set(UNHEALTHY, State::yes(reason, message));
        self.event(true, UNHEALTHY, format!("{reason}: {message}"));
    }

    /// Enters Suspending because of `spec.suspend`.
    fn suspend(mut self, during: Phase) -> Decision {
        let message = format!("Externally suspended while in the {} phase", during.as_str());
        self.event(false, Phase::Suspending.as_str(), message);
        self.enter(Phase::Suspending)
    }

    /// Resets the AppWrapper, or fails it if a reset is useless or none is left.
    fn reset_or_fail(mut self, is_terminal: bool, increment: i32) -> Decision {
        let may_reset = !is_terminal && self.status.resetting_count < self.facts.parameters.retry_limit;
        if may_reset {
            self.status.resetting_count = self.status.resetting_count.saturating_add(increment);
        }
        self.enter(if may_reset { Phase::Resetting } else { Phase::Failed })
    }

    /// Plans the deletion of all components. Returns true if neither components nor pods are left.
    fn delete_components(&mut self) -> bool {
        let facts = self.facts;
        self.set(DELETING_RESOURCES, State::yes("DeletionInitiated", ""));
        let mut remaining = Vec::new();
        for (index, component) in facts.status.component_status.iter().enumerate() {
            if !may_exist(component) {
                continue;
            }
            match facts.observed.components.get(index).copied().unwrap_or_default() {
                Presence::Absent => self.component(index, State::no(DELETED, "")),
                Presence::Present { is_deleting, .. } => remaining.push((index, is_deleting)),
            }
        }
        let has_pods = facts.observed.pods.total > 0;
        if remaining.is_empty() && !has_pods {
            self.clear(DELETING_RESOURCES, "DeletionComplete", "");
            return true;
        }
        let grace = facts.parameters.forceful_deletion_grace;
        let is_late = until(self.status.since(DELETING_RESOURCES), grace, facts.now).is_none();
        let is_forced = is_late && !has_pods;
        let unfinished = remaining.into_iter().filter(|(_, is_deleting)| is_forced || !is_deleting);
        self.acts.extend(unfinished.map(|(index, _)| Act::Delete { index, is_forced }));
        if is_late && has_pods {
            self.acts.push(Act::DeletePods);
        }
        false
    }
}

/// True if the object of a component may exist by what is recorded.
fn may_exist(component: &ComponentStatus) -> bool {
    match find(&component.conditions, RESOURCES_DEPLOYED) {
        None => false,
        Some(condition) if condition.status == "True" => true,
        Some(condition) => !component.name.is_empty() && (condition.status == "Unknown" || condition.reason == ERRORED),
    }
}

/// Time until `period` after `since`; `None` if it has passed.
fn until(since: Option<Timestamp>, period: Duration, now: Timestamp) -> Option<Duration> {
    let at = since?.checked_add(period).unwrap_or(Timestamp::MAX);
    let left = Duration::try_from(at.duration_since(now)).ok()?;
    (!left.is_zero()).then_some(left)
}

/// Time until the components of a succeeded AppWrapper are deleted.
fn until_expiry(facts: &Facts<'_>) -> Option<Duration> {
    until(facts.status.since(RESOURCES_DEPLOYED), facts.parameters.success_ttl, facts.now)
}

/// The first step: records the pod sets.
fn initialise(facts: &Facts<'_>) -> Decision {
    let mut step = Step::of(facts);
    match names::component_status(facts.spec) {
        Ok(components) => {
            step.status.component_status = components;
            step.enter(Phase::Suspended)
        }
        Err(message) => {
            // Admission rejects such an AppWrapper; it was off when this one was created.
            step.unhealthy("CreateFailed", &message);
            step.enter(Phase::Failed)
        }
    }
}

/// From Suspended to Resuming, once the finalizer is there.
fn start(facts: &Facts<'_>) -> Decision {
    let mut step = Step::of(facts);
    if facts.spec.suspend {
        return step.then(Next::Wait);
    }
    if !facts.has_finalizer {
        step.acts.push(Act::AddFinalizer);
        return step.then(Next::Again);
    }
    if facts.status.component_status.len() != facts.spec.components.len() {
        // The spec changed while admission was off. Nothing is deployed, so the record can change.
        return initialise(facts);
    }
    let reason = Phase::Resuming.as_str();
    for (type_, state) in [
        (QUOTA_RESERVED, State::yes(reason, "Suspend is false")),
        (RESOURCES_DEPLOYED, State::yes(reason, "Suspend is false")),
        (PODS_READY, State::no(reason, "Suspend is false")),
        (UNHEALTHY, State::no(reason, "Suspend is false")),
    ] {
        step.set(type_, state);
    }
    step.enter(Phase::Resuming)
}

/// Creates the next component.
fn resume(facts: &Facts<'_>) -> Decision {
    let mut step = Step::of(facts);
    if facts.spec.suspend {
        return step.suspend(Phase::Resuming);
    }
    let components = &facts.status.component_status;
    let Some(index) = components.iter().position(|it| !is_true(&it.conditions, RESOURCES_DEPLOYED)) else {
        return step.enter(Phase::Running);
    };
    let Some(component) = facts.spec.components.get(index) else {
        let message = format!("spec.components[{index}] was removed");
        step.unhealthy("CreateFailed", &message);
        return step.enter(Phase::Failed);
    };
    // A recorded attempt is repeated under its name, because the object may exist.
    if !may_exist(&components[index]) {
        let recorded = &mut step.status.component_status[index];
        recorded.name = names::name(&component.template, facts.uid, index, facts.now);
        recorded.kind = component.template["kind"].as_str().unwrap_or_default().to_owned();
        recorded.api_version = component.template["apiVersion"].as_str().unwrap_or_default().to_owned();
        step.component(index, State { status: "Unknown", reason: INITIATED, message: "" });
    }
    step.acts.push(Act::Create(index));
    step.then(Next::Again)
}

/// The step after an attempt to create a component; `facts.status` is the one that was planned.
pub fn created(facts: &Facts<'_>, index: usize, outcome: &Outcome) -> Decision {
    let mut step = Step::of(facts);
    let (message, is_fatal) = match outcome {
        Outcome::Created => {
            step.component(index, State::yes("ComponentCreatedSuccessfully", ""));
            return step.then(Next::Again);
        }
        Outcome::NameTaken => {
            if let Some(component) = step.status.component_status.get_mut(index) {
                component.name.clear();
            }
            ("the generated name belongs to another object", false)
        }
        Outcome::Rejected { message, is_fatal } => (message.as_str(), *is_fatal),
    };
    step.component(index, State::no(ERRORED, ""));
    let grace = facts.parameters.admission_grace;
    if !is_fatal && until(facts.status.since(RESOURCES_DEPLOYED), grace, facts.now).is_some() {
        return step.then(Next::After(RETRY_CREATE));
    }
    step.unhealthy("CreateFailed", &format!("error creating components: {message}"));
    if is_fatal { step.enter(Phase::Failed) } else { step.reset_or_fail(false, 1) }
}

/// The checks of a running AppWrapper, in their order.
fn check(facts: &Facts<'_>) -> Decision {
    let mut step = Step::of(facts);
    if facts.spec.suspend {
        return step.suspend(Phase::Running);
    }
    let Observed { components, pods } = facts.observed;
    let expected = facts.status.component_status.len();
    let existing = |it: &&Presence| matches!(it, Presence::Present { is_deleting: false, .. });
    let found = components.iter().filter(existing).count();
    if found != expected {
        step.unhealthy("MissingComponent", &format!("Found {found} deployed components, but expected {expected}"));
        return step.enter(Phase::Failed);
    }
    let failed = components.iter().filter(|it| matches!(it, Presence::Present { has_failed: true, .. })).count();
    if failed > 0 {
        step.unhealthy("FailedComponent", &format!("Found {failed} failed components"));
        return step.reset_or_fail(pods.has_terminal_failure, 1);
    }
    let expected = facts.status.expected_pods();
    if pods.succeeded >= expected && pods.pending + pods.running + pods.failed == 0 {
        let message = format!("{} pods succeeded and no running, pending, or failed pods", pods.succeeded);
        step.set(QUOTA_RESERVED, State::no(Phase::Succeeded.as_str(), &message));
        step.set(RESOURCES_DEPLOYED, State::yes(Phase::Succeeded.as_str(), &message));
        return step.enter(Phase::Succeeded);
    }
    if pods.failed > 0 {
        // The number of pods is not in the condition, because it changes while the problem lasts.
        step.set(UNHEALTHY, State::yes("FoundFailedPods", ""));
        let grace = facts.parameters.failure_grace;
        if let Some(left) = until(step.status.since(UNHEALTHY), grace, facts.now) {
            return step.then(Next::After(left));
        }
        step.event(true, UNHEALTHY, format!("FoundFailedPods: {} failed pods", pods.failed));
        return step.reset_or_fail(pods.has_terminal_failure, 1);
    }
    if !pods.leaving.is_empty() {
        let nodes: Vec<&str> = pods.leaving.iter().map(String::as_str).collect();
        let message = format!("Running pods use resources that they must leave on nodes: {}", nodes.join(", "));
        step.unhealthy("AutopilotNoExecute", &message);
        return step.reset_or_fail(false, 0);
    }
    step.clear(UNHEALTHY, "FoundNoFailedPods", "");
    check_ready(step, expected)
}

/// The last checks of a running AppWrapper: are its pods ready, or late?
fn check_ready(mut step: Step<'_>, expected: i32) -> Decision {
    let (facts, pods) = (step.facts, &step.facts.observed.pods);
    if pods.running + pods.succeeded >= expected {
        let message = format!("{} pods running; {} pods succeeded", pods.running, pods.succeeded);
        step.set(PODS_READY, State::yes("SufficientPodsReady", &message));
        return step.then(Next::After(CHECK_HEALTHY));
    }
    let message =
        format!("{} pods pending; {} pods running; {} pods succeeded", pods.pending, pods.running, pods.succeeded);
    step.clear(PODS_READY, "InsufficientPodsReady", &message);
    let have_pods = pods.pending + pods.running + pods.succeeded >= expected;
    let grace = if have_pods { facts.parameters.warmup_grace } else { facts.parameters.admission_grace };
    match until(facts.status.since(RESOURCES_DEPLOYED), grace, facts.now) {
        Some(left) => step.then(Next::After(CHECK.min(left))),
        None => {
            step.unhealthy("InsufficientPodsReady", &message);
            step.reset_or_fail(pods.has_terminal_failure, 1)
        }
    }
}

/// Deletes the components of a suspended AppWrapper, also if it is resumed meanwhile.
fn suspend(facts: &Facts<'_>) -> Decision {
    let mut step = Step::of(facts);
    let reason = Phase::Suspended.as_str();
    if facts.status.is_true(RESOURCES_DEPLOYED) {
        if !step.delete_components() {
            return step.then(Next::After(CHECK));
        }
        step.set(RESOURCES_DEPLOYED, State::no(reason, "Suspend is true"));
    }
    step.set(QUOTA_RESERVED, State::no(reason, "Suspend is true"));
    step.clear(PODS_READY, reason, "");
    step.clear(UNHEALTHY, reason, "");
    step.enter(Phase::Suspended)
}

/// Deletes the components, and resumes after the pause.
fn reset(facts: &Facts<'_>) -> Decision {
    let mut step = Step::of(facts);
    if facts.spec.suspend {
        return step.suspend(Phase::Resetting);
    }
    let reason = Phase::Resetting.as_str();
    step.clear(PODS_READY, reason, "");
    if facts.status.is_true(RESOURCES_DEPLOYED) {
        if !step.delete_components() {
            return step.then(Next::After(CHECK));
        }
        step.set(RESOURCES_DEPLOYED, State::no(reason, "Resources deleted for resetting AppWrapper"));
    }
    // Counted from the failure, so that a slow deletion does not add to the pause.
    if let Some(left) = until(facts.status.since(UNHEALTHY), facts.parameters.retry_pause, facts.now) {
        return step.then(Next::After(left));
    }
    step.set(RESOURCES_DEPLOYED, State::yes(Phase::Resuming.as_str(), "Reset complete; resuming"));
    step.enter(Phase::Resuming)
}

/// Deletes the components of a failed AppWrapper, after a pause if its annotation requests one.
fn end_failed(facts: &Facts<'_>) -> Decision {
    let mut step = Step::of(facts);
    let pause = facts.parameters.deletion_on_failure_grace;
    let is_deployed = facts.status.is_true(RESOURCES_DEPLOYED);
    let is_paused = is_deployed && !pause.is_zero() && !facts.spec.suspend;
    if is_paused && !facts.status.is_true(DELETING_RESOURCES) {
        let message = format!("{DELETION_ON_FAILURE} has value {}", berth_api::berth::Duration(pause));
        let begun = |it: &Condition| it.type_ == DELETING_RESOURCES && it.reason == PAUSED;
        if !step.status.conditions.iter().any(begun) {
            // A condition of an earlier reset has the time of that reset.
            step.status.conditions.retain(|it| it.type_ != DELETING_RESOURCES);
            step.set(DELETING_RESOURCES, State::no(PAUSED, &message));
        }
        if let Some(left) = until(step.status.since(DELETING_RESOURCES), pause, facts.now) {
            return step.then(Next::After(left));
        }
    }
    let reason = Phase::Failed.as_str();
    if is_deployed {
        if !step.delete_components() {
            return step.then(Next::After(CHECK));
        }
        let message = if !pause.is_zero() && facts.spec.suspend {
            "Resources deleted because the AppWrapper was suspended"
        } else {
            "Resources deleted for failed AppWrapper"
        };
        step.set(RESOURCES_DEPLOYED, State::no(reason, message));
    }
    step.set(QUOTA_RESERVED, State::no(reason, "No resources deployed"));
    step.then(Next::Wait)
}

/// Deletes the components of a succeeded AppWrapper once their time is over.
fn end_succeeded(facts: &Facts<'_>) -> Decision {
    let mut step = Step::of(facts);
    if !facts.status.is_true(RESOURCES_DEPLOYED) {
        return step.then(Next::Wait);
    }
    if let Some(left) = until_expiry(facts) {
        return step.then(Next::After(left));
    }
    if !step.delete_components() {
        return step.then(Next::After(CHECK));
    }
    let ttl = berth_api::berth::Duration(facts.parameters.success_ttl);
    let message = format!("Time to live after success of {ttl} expired");
    step.set(RESOURCES_DEPLOYED, State::no(Phase::Succeeded.as_str(), &message));
    step.then(Next::Wait)
}

/// Deletes the components of an AppWrapper that is being deleted, then lets the API delete it.
fn terminate(facts: &Facts<'_>) -> Decision {
    let mut step = Step::of(facts);
    if !facts.has_finalizer {
        return step.then(Next::Wait);
    }
    let reason = Phase::Terminating.as_str();
    if facts.status.is_true(RESOURCES_DEPLOYED) {
        if !step.delete_components() {
            step.status.phase = Phase::Terminating;
            return step.then(Next::After(CHECK));
        }
        step.set(RESOURCES_DEPLOYED, State::no(reason, "Resources successfully deleted"));
    }
    if facts.status.is_true(QUOTA_RESERVED) {
        step.set(QUOTA_RESERVED, State::no(reason, "No resources deployed"));
    }
    step.acts.push(Act::RemoveFinalizer);
    step.then(Next::Wait)
}
