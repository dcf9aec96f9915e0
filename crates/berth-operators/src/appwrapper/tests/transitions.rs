//! The transitions of the state machine, one by one.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::appwrapper::config::FaultTolerance;
use crate::appwrapper::parameters::Parameters;
use crate::appwrapper::plan::{Act, Decision, Facts, Look, Next, Observed, Outcome, Presence, created, observes, plan};
use crate::appwrapper::pods::PodSummary;
use crate::appwrapper::types::{AppWrapperSpec, AppWrapperStatus, Phase, find};

const HEALTHY: Presence = Presence::Present { is_deleting: false, has_failed: false };
const DELETING: Presence = Presence::Present { is_deleting: true, has_failed: false };
const FAILED: Presence = Presence::Present { is_deleting: false, has_failed: true };

/// An AppWrapper in some state.
struct World {
    spec: AppWrapperSpec,
    status: AppWrapperStatus,
    parameters: Parameters,
    observed: Observed,
    is_deleting: bool,
    has_finalizer: bool,
    now: Timestamp,
}

/// An AppWrapper of two Jobs with 4 and 1 pods.
fn new() -> World {
    let job = |name: Value, parallelism: i32| {
        let template = json!({"spec": {"containers": [], "restartPolicy": "Never"}});
        json!({"template": {"apiVersion": "batch/v1", "kind": "Job", "metadata": name,
            "spec": {"parallelism": parallelism, "template": template}}})
    };
    let components = json!([job(json!({"generateName": "train-"}), 4), job(json!({"name": "eval"}), 1)]);
    World {
        spec: serde_json::from_value(json!({"components": components})).expect("a spec"),
        status: AppWrapperStatus::default(),
        parameters: Parameters::of(None, &FaultTolerance::default()).0,
        observed: Observed::default(),
        is_deleting: false,
        has_finalizer: false,
        now: "2026-01-05T09:00:00Z".parse().expect("a time"),
    }
}

/// An AppWrapper whose components exist and whose pods run.
fn running() -> World {
    let mut world = new();
    world.settle();
    assert_eq!(world.status.phase, Phase::Running);
    world.observe(&[HEALTHY, HEALTHY], |pods| pods.running = 5);
    world
}

impl World {
    fn facts(&self) -> Facts<'_> {
        Facts {
            uid: "u",
            spec: &self.spec,
            status: &self.status,
            is_deleting: self.is_deleting,
            has_finalizer: self.has_finalizer,
            parameters: &self.parameters,
            observed: &self.observed,
            now: self.now,
        }
    }

    fn observe(&mut self, components: &[Presence], change: impl FnOnce(&mut PodSummary)) {
        let mut pods = PodSummary::default();
        change(&mut pods);
        pods.total = usize::try_from(pods.running + pods.pending + pods.failed + pods.succeeded).unwrap();
        self.observed = Observed { components: components.to_vec(), pods };
    }

    fn pass(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    /// One step; creations succeed.
    fn step(&mut self) -> Decision {
        let mut decision = plan(&self.facts());
        self.status = decision.status.clone();
        for act in decision.acts.clone() {
            match act {
                Act::AddFinalizer => self.has_finalizer = true,
                Act::RemoveFinalizer => self.has_finalizer = false,
                Act::Create(index) => {
                    let after = self.outcome(index, &Outcome::Created);
                    decision.next = after.next;
                }
                Act::Delete { .. } | Act::DeletePods => {}
            }
        }
        decision
    }

    fn outcome(&mut self, index: usize, outcome: &Outcome) -> Decision {
        let decision = created(&self.facts(), index, outcome);
        self.status = decision.status.clone();
        decision
    }

    /// Steps until the AppWrapper runs or waits.
    fn settle(&mut self) -> Decision {
        for _ in 0..20 {
            if self.status.phase == Phase::Running && self.observed.components.is_empty() {
                return plan(&self.facts());
            }
            let decision = self.step();
            if decision.next != Next::Again {
                return decision;
            }
        }
        panic!("no end of steps: {:?}", self.status);
    }

    fn condition(&self, type_: &str) -> (&str, &str) {
        let condition = find(&self.status.conditions, type_);
        condition.map_or(("", ""), |it| (it.status.as_str(), it.reason.as_str()))
    }

    #[track_caller]
    fn assert_conditions(&self, quota_reserved: &str, resources_deployed: &str) {
        let found = (self.condition("QuotaReserved").0, self.condition("ResourcesDeployed").0);
        assert_eq!(found, (quota_reserved, resources_deployed), "in phase {}", self.status.phase.as_str());
    }
}

fn after(seconds: u64) -> Next {
    Next::After(Duration::from_secs(seconds))
}

fn forced(acts: &[Act]) -> Vec<bool> {
    let forced = |act: &Act| if let Act::Delete { is_forced, .. } = act { Some(*is_forced) } else { None };
    acts.iter().filter_map(forced).collect()
}

#[test]
fn a_new_appwrapper_records_its_pod_sets_and_waits_while_suspended() {
    let mut world = new();
    world.spec.suspend = true;
    let decision = world.settle();
    assert_eq!((world.status.phase, decision.next), (Phase::Suspended, Next::Wait));
    assert_eq!(world.status.expected_pods(), 5);
    assert_eq!(world.status.component_status.len(), 2);
    world.assert_conditions("", "");
    assert!(!world.has_finalizer);
}

#[test]
fn components_are_recorded_before_they_are_created_in_order() {
    let mut world = new();
    while world.status.phase != Phase::Resuming {
        world.step();
    }
    assert!(world.has_finalizer);
    world.assert_conditions("True", "True");
    assert_eq!(world.condition("PodsReady"), ("False", "Resuming"));
    let decision = plan(&world.facts());
    assert_eq!(decision.acts, [Act::Create(0)]);
    let recorded = &decision.status.component_status[0];
    assert!(recorded.name.starts_with("train-") && recorded.name.len() == 11, "{}", recorded.name);
    assert_eq!((recorded.conditions[0].status.as_str(), recorded.kind.as_str()), ("Unknown", "Job"));
    world.settle();
    assert_eq!(world.status.phase, Phase::Running);
    assert_eq!(world.status.component_status[1].name, "eval");
    assert_eq!(world.status.component_status[1].conditions[0].reason, "ComponentCreatedSuccessfully");
}

#[test]
fn an_interrupted_creation_is_repeated_under_the_recorded_name() {
    let mut world = new();
    while world.status.component_status.first().is_none_or(|component| component.conditions.is_empty()) {
        // The process ends between the status and the creation.
        let decision = plan(&world.facts());
        world.status = decision.status;
        world.has_finalizer = true;
    }
    let name = world.status.component_status[0].name.clone();
    world.pass(3);
    let decision = plan(&world.facts());
    assert_eq!(decision.acts, [Act::Create(0)]);
    assert_eq!(decision.status.component_status[0].name, name);
}

#[test]
fn a_failed_creation_is_retried_within_the_admission_grace_period() {
    let mut world = new();
    while world.status.phase != Phase::Resuming {
        world.step();
    }
    let refused = Outcome::Rejected { message: "no quota".into(), is_fatal: false };
    world.status = plan(&world.facts()).status;
    assert_eq!(world.outcome(0, &refused).next, after(1));
    assert_eq!(world.status.component_status[0].conditions[0].reason, "ComponentCreationErrored");
    world.pass(60);
    let decision = world.outcome(0, &refused);
    assert_eq!((world.status.phase, world.status.resetting_count), (Phase::Resetting, 1));
    assert_eq!(world.condition("Unhealthy"), ("True", "CreateFailed"));
    assert_eq!(decision.events[0].message, "CreateFailed: error creating components: no quota");
}

#[test]
fn a_fatal_error_of_a_creation_fails_the_appwrapper_at_once() {
    let mut world = new();
    while world.status.phase != Phase::Resuming {
        world.step();
    }
    world.status = plan(&world.facts()).status;
    world.outcome(0, &Outcome::Rejected { message: "no such kind".into(), is_fatal: true });
    assert_eq!((world.status.phase, world.status.resetting_count), (Phase::Failed, 0));
    world.observe(&[Presence::Absent, Presence::Absent], |_| {});
    world.step();
    world.assert_conditions("False", "False");
}

#[test]
fn a_taken_name_is_drawn_anew() {
    let mut world = new();
    while world.status.phase != Phase::Resuming {
        world.step();
    }
    world.status = plan(&world.facts()).status;
    let name = world.status.component_status[0].name.clone();
    assert_eq!(world.outcome(0, &Outcome::NameTaken).next, after(1));
    world.pass(1);
    let next = plan(&world.facts()).status.component_status[0].name.clone();
    assert!(next.starts_with("train-") && next != name, "{next}");
}

#[test]
fn ready_pods_are_checked_every_minute() {
    let mut world = running();
    assert_eq!(world.step().next, after(60));
    assert_eq!(world.condition("PodsReady"), ("True", "SufficientPodsReady"));
    assert_eq!(world.condition("Unhealthy"), ("False", "Resuming"));
}

#[test]
fn all_pods_succeeded_gives_quota_back_and_keeps_the_components_for_the_ttl() {
    let mut world = running();
    world.observe(&[HEALTHY, HEALTHY], |pods| pods.succeeded = 4);
    world.step();
    assert_eq!(world.status.phase, Phase::Running);
    world.observe(&[HEALTHY, HEALTHY], |pods| pods.succeeded = 5);
    world.step();
    assert_eq!(world.status.phase, Phase::Succeeded);
    world.assert_conditions("False", "True");
    assert_eq!(observes(&world.facts()), Look::Nothing);
    // The time counts from the deployment, whose condition stays True.
    assert_eq!(world.step().next, after(7 * 24 * 3600));
    world.pass(7 * 24 * 3600);
    assert_eq!(observes(&world.facts()), Look::Current);
    assert_eq!(world.step().acts.len(), 2);
    world.observe(&[Presence::Absent, Presence::Absent], |_| {});
    assert_eq!(world.step().next, Next::Wait);
    world.assert_conditions("False", "False");
    assert_eq!(world.status.phase, Phase::Succeeded);
}

#[test]
fn a_missing_component_fails_the_appwrapper_without_a_retry() {
    for missing in [Presence::Absent, DELETING] {
        let mut world = running();
        world.observe(&[HEALTHY, missing], |pods| pods.running = 5);
        world.step();
        assert_eq!((world.status.phase, world.condition("Unhealthy").1), (Phase::Failed, "MissingComponent"));
    }
}

#[test]
fn a_failed_component_resets_without_a_grace_period() {
    let mut world = running();
    world.observe(&[FAILED, HEALTHY], |pods| pods.failed = 1);
    world.step();
    assert_eq!((world.status.phase, world.condition("Unhealthy").1), (Phase::Resetting, "FailedComponent"));
    assert_eq!(world.status.resetting_count, 1);
    world.assert_conditions("True", "True");
}

#[test]
fn failed_pods_have_a_grace_period_in_which_they_may_be_replaced() {
    let mut world = running();
    world.observe(&[HEALTHY, HEALTHY], |pods| (pods.running, pods.failed) = (4, 1));
    assert_eq!(world.step().next, after(60));
    assert_eq!(world.condition("Unhealthy"), ("True", "FoundFailedPods"));
    world.pass(59);
    assert_eq!(world.step().next, after(1));
    let mut replaced = running();
    replaced.status = world.status.clone();
    replaced.step();
    assert_eq!(replaced.condition("Unhealthy"), ("False", "FoundNoFailedPods"));
    world.pass(1);
    world.step();
    assert_eq!((world.status.phase, world.status.resetting_count), (Phase::Resetting, 1));
}

#[test]
fn a_terminal_exit_code_fails_instead_of_resetting() {
    let mut world = running();
    world.observe(&[FAILED, HEALTHY], |pods| (pods.failed, pods.has_terminal_failure) = (1, true));
    world.step();
    assert_eq!((world.status.phase, world.status.resetting_count), (Phase::Failed, 0));
}

#[test]
fn unhealthy_nodes_reset_without_counting_until_the_limit_is_reached() {
    let mut world = running();
    let leaving = BTreeSet::from(["n1 (nvidia.com/gpu)".to_owned()]);
    world.observed.pods.leaving = leaving.clone();
    let decision = world.step();
    assert_eq!((world.status.phase, world.status.resetting_count), (Phase::Resetting, 0));
    assert_eq!(world.condition("Unhealthy"), ("True", "AutopilotNoExecute"));
    assert!(decision.events[0].message.ends_with("nodes: n1 (nvidia.com/gpu)"), "{:?}", decision.events);
    let mut world = running();
    world.status.resetting_count = 3;
    world.observed.pods.leaving = leaving;
    world.step();
    assert_eq!(world.status.phase, Phase::Failed);
}

#[test]
fn pods_that_are_not_ready_have_the_grace_period_of_their_state() {
    for (pending, grace) in [(2, 60), (3, 300)] {
        let mut world = running();
        world.observe(&[HEALTHY, HEALTHY], |pods| (pods.running, pods.pending) = (2, pending));
        assert_eq!(world.step().next, after(5));
        world.pass(grace - 1);
        assert_eq!(world.step().next, after(1));
        world.pass(1);
        world.step();
        assert_eq!((world.status.phase, world.condition("Unhealthy").1), (Phase::Resetting, "InsufficientPodsReady"));
    }
}

#[test]
fn a_reset_keeps_quota_and_pauses_from_the_failure() {
    let mut world = running();
    world.observe(&[FAILED, HEALTHY], |pods| pods.failed = 1);
    world.step();
    world.observe(&[HEALTHY, HEALTHY], |pods| pods.running = 4);
    let decision = world.step();
    let delete = |index| Act::Delete { index, is_forced: false };
    assert_eq!((decision.acts, decision.next), (vec![delete(0), delete(1)], after(5)));
    assert_eq!(world.condition("DeletingResources"), ("True", "DeletionInitiated"));
    world.pass(10);
    world.observe(&[DELETING, Presence::Absent], |_| {});
    assert_eq!(world.step().acts, []);
    assert_eq!(world.status.component_status[1].conditions[0].reason, "CompononetDeleted");
    world.assert_conditions("True", "True");
    world.pass(10);
    world.observe(&[Presence::Absent, Presence::Absent], |_| {});
    assert_eq!(world.step().next, after(70), "90 s from the failure");
    world.assert_conditions("True", "False");
    assert_eq!(world.condition("DeletingResources"), ("False", "DeletionComplete"));
    let before = world.status.component_status[0].name.clone();
    world.pass(70);
    assert_eq!(observes(&world.facts()), Look::Nothing);
    world.observed = Observed::default();
    world.settle();
    assert_eq!(world.status.phase, Phase::Running);
    world.assert_conditions("True", "True");
    assert_ne!(world.status.component_status[0].name, before);
    assert_eq!(world.status.resetting_count, 1);
}

#[test]
fn the_last_reset_is_followed_by_a_failure() {
    let mut world = running();
    world.status.resetting_count = 2;
    world.observe(&[FAILED, HEALTHY], |_| {});
    world.step();
    assert_eq!((world.status.phase, world.status.resetting_count), (Phase::Resetting, 3));
    let mut world = running();
    world.status.resetting_count = 3;
    world.observe(&[FAILED, HEALTHY], |_| {});
    world.step();
    assert_eq!((world.status.phase, world.status.resetting_count), (Phase::Failed, 3));
}

#[test]
fn what_remains_is_deleted_by_force_after_the_grace_period_pods_first() {
    let mut world = running();
    world.spec.suspend = true;
    world.step();
    world.step();
    world.observe(&[DELETING, DELETING], |pods| pods.running = 2);
    world.pass(599);
    assert_eq!(world.step().acts, []);
    world.pass(1);
    assert_eq!(world.step().acts, [Act::DeletePods]);
    world.observe(&[DELETING, HEALTHY], |_| {});
    assert_eq!(forced(&world.step().acts), [true, true]);
}

#[test]
fn a_suspension_ends_although_the_appwrapper_is_resumed_meanwhile() {
    let mut world = running();
    world.spec.suspend = true;
    let decision = world.step();
    assert_eq!(world.status.phase, Phase::Suspending);
    assert_eq!(decision.events[0].message, "Externally suspended while in the Running phase");
    world.spec.suspend = false;
    world.step();
    assert_eq!(world.status.phase, Phase::Suspending);
    world.assert_conditions("True", "True");
    world.observe(&[Presence::Absent, Presence::Absent], |_| {});
    world.step();
    assert_eq!(world.status.phase, Phase::Suspended);
    world.assert_conditions("False", "False");
    assert_eq!(world.condition("PodsReady").0, "False");
}

#[test]
fn pods_without_components_still_hold_quota() {
    let mut world = running();
    world.spec.suspend = true;
    world.step();
    world.observe(&[Presence::Absent, Presence::Absent], |pods| pods.running = 1);
    assert_eq!(world.step().next, after(5));
    world.assert_conditions("True", "True");
}

#[test]
fn a_failed_appwrapper_holds_everything_for_the_requested_time_once() {
    let mut world = running();
    world.parameters.deletion_on_failure_grace = Duration::from_secs(120);
    // A reset long before left a condition with its own time.
    world.observe(&[FAILED, HEALTHY], |_| {});
    world.step();
    world.observe(&[Presence::Absent, Presence::Absent], |_| {});
    world.step();
    world.pass(1000);
    world.observed = Observed::default();
    world.settle();
    world.status.resetting_count = 3;
    world.observe(&[FAILED, HEALTHY], |_| {});
    world.step();
    assert_eq!(world.status.phase, Phase::Failed);
    assert_eq!(world.step().next, after(120));
    assert_eq!(world.condition("DeletingResources"), ("False", "DeletionPaused"));
    world.assert_conditions("True", "True");
    world.pass(120);
    assert_eq!(world.step().acts.len(), 2);
    world.pass(5);
    world.observe(&[DELETING, DELETING], |_| {});
    assert_eq!(world.step().next, after(5), "the pause does not begin again");
    world.observe(&[Presence::Absent, Presence::Absent], |_| {});
    assert_eq!(world.step().next, Next::Wait);
    world.assert_conditions("False", "False");
    assert_eq!(world.step().status, world.status, "a failed AppWrapper stays as it is");
}

#[test]
fn a_suspension_ends_the_pause_of_a_failed_appwrapper() {
    let mut world = running();
    world.parameters.deletion_on_failure_grace = Duration::from_secs(120);
    world.observe(&[Presence::Absent, HEALTHY], |_| {});
    world.step();
    world.step();
    world.spec.suspend = true;
    world.observe(&[Presence::Absent, HEALTHY], |_| {});
    assert_eq!(world.step().acts, [Act::Delete { index: 1, is_forced: false }]);
}

#[test]
fn a_deleted_appwrapper_stays_until_nothing_is_left() {
    let mut world = running();
    world.is_deleting = true;
    assert_eq!(world.step().next, after(5));
    assert_eq!(world.status.phase, Phase::Terminating);
    world.assert_conditions("True", "True");
    assert!(world.has_finalizer);
    world.observe(&[Presence::Absent, Presence::Absent], |_| {});
    world.step();
    world.assert_conditions("False", "False");
    assert!(!world.has_finalizer);
}

#[test]
fn an_appwrapper_that_was_never_deployed_is_deleted_at_once() {
    let mut world = new();
    world.spec.suspend = true;
    world.settle();
    world.is_deleting = true;
    assert_eq!(observes(&world.facts()), Look::Nothing);
    let decision = world.step();
    assert_eq!((decision.acts, decision.next), (vec![], Next::Wait));
}
