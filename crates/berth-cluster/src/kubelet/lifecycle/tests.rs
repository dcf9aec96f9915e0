use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Value, json};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("in range")
}

fn run(attempt: i32, exit_code: Option<i32>) -> Run {
    let state = match exit_code {
        None => RunState::Running { since: at(0) },
        Some(exit_code) => RunState::Ended(End {
            started: Some(at(0)),
            finished: at(5),
            exit_code,
            reason: if exit_code == 0 { "Completed" } else { "Error" }.into(),
            message: None,
            signal: None,
        }),
    };
    Run { attempt, container_id: format!("id-{attempt}"), image_id: "image".into(), is_current: true, state }
}

/// A pod and the facts about it.
struct Case {
    pod: Pod,
    runs: BTreeMap<String, Runs>,
    health: BTreeMap<String, Health>,
    blocked: BTreeMap<String, Blocked>,
    restarting: BTreeMap<String, i32>,
    ending: Option<Ending>,
}

impl Case {
    fn new(spec: Value) -> Self {
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec});
        Self {
            pod: serde_json::from_value(pod).expect("a pod"),
            runs: BTreeMap::new(),
            health: BTreeMap::new(),
            blocked: BTreeMap::new(),
            restarting: BTreeMap::new(),
            ending: None,
        }
    }

    fn with(mut self, name: &str, exit_code: Option<i32>) -> Self {
        self.runs.insert(name.to_owned(), Runs { latest: run(0, exit_code), previous: None });
        self
    }

    fn decide(&self) -> Decision {
        decide(&Facts {
            pod: &self.pod,
            status: &PodStatus::default(),
            now: at(10),
            has_sandbox: true,
            is_held: false,
            runs: &self.runs,
            health: &self.health,
            blocked: &self.blocked,
            back_off: &|_, run| if run.attempt == 0 { SignedDuration::ZERO } else { SignedDuration::from_secs(20) },
            never_restart: false,
            restarting: &self.restarting,
            ending: self.ending.clone(),
        })
    }
}

/// `name#attempt` of the containers to start.
fn starts(decision: &Decision) -> Vec<String> {
    decision.starts.iter().map(|start| format!("{}#{}", start.name, start.attempt)).collect()
}

fn with_init() -> Value {
    json!({"restartPolicy": "OnFailure",
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}, {"name": "j"}],
        "containers": [{"name": "a"}, {"name": "b"}], "ephemeralContainers": [{"name": "debug"}]})
}

#[test]
fn containers_start_in_order() {
    let case = Case::new(with_init());
    assert_eq!(starts(&case.decide()), ["i#0"]);
    let case = case.with("i", None);
    assert_eq!(starts(&case.decide()), [""; 0]);
    let case = case.with("i", Some(0));
    assert_eq!(starts(&case.decide()), ["s#0"]);
    let mut case = case.with("s", None);
    case.health.insert("s".into(), Health { started: false, ready: false });
    assert_eq!(starts(&case.decide()), [""; 0], "the sidecar has not started");
    case.health.clear();
    assert_eq!(starts(&case.decide()), ["j#0"]);
    let case = case.with("j", Some(0));
    let decision = case.decide();
    assert_eq!(starts(&decision), ["a#0", "b#0", "debug#0"]);
    assert_eq!(decision.status.phase.as_deref(), Some("Pending"));
    let decision = case.with("a", None).with("b", None).with("debug", None).decide();
    assert_eq!((starts(&decision), decision.status.phase.as_deref()), (Vec::new(), Some("Running")));
}

#[test]
fn a_container_that_was_stopped_to_restart_restarts_whatever_its_exit_code() {
    let spec = json!({"restartPolicy": "OnFailure", "containers": [{"name": "a"}]});
    let mut case = Case::new(spec).with("a", Some(0));
    assert!(case.decide().is_finished);
    case.restarting.insert("a".into(), 0);
    let decision = case.decide();
    assert_eq!((starts(&decision), decision.is_finished), (vec!["a#1".to_owned()], false));
}

#[test]
fn a_failed_init_container_restarts_or_fails_the_pod() {
    let decision = Case::new(with_init()).with("i", Some(1)).decide();
    assert_eq!((starts(&decision), decision.is_finished), (vec!["i#1".to_owned()], false));
    let mut spec = with_init();
    spec["restartPolicy"] = "Never".into();
    let decision = Case::new(spec).with("i", Some(1)).decide();
    assert!(decision.is_finished && decision.starts.is_empty());
    assert_eq!(decision.status.phase.as_deref(), Some("Failed"));
}

#[test]
fn restart_policies_decide_the_phase() {
    for (policy, codes, phase, restarted) in [
        ("Never", [0, 0], "Succeeded", vec![]),
        ("Never", [0, 3], "Failed", vec![]),
        ("OnFailure", [0, 0], "Succeeded", vec![]),
        ("OnFailure", [0, 3], "Running", vec!["b#1"]),
        ("Always", [0, 3], "Running", vec!["a#1", "b#1"]),
    ] {
        let spec = json!({"restartPolicy": policy, "containers": [{"name": "a"}, {"name": "b"}]});
        let decision = Case::new(spec).with("a", Some(codes[0])).with("b", Some(codes[1])).decide();
        assert_eq!(decision.status.phase.as_deref(), Some(phase), "{policy} {codes:?}");
        assert_eq!(starts(&decision), restarted, "{policy} {codes:?}");
    }
}

#[test]
fn rules_of_a_container_come_before_its_policy() {
    let rules = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]);
    let spec = json!({"restartPolicy": "Always",
        "containers": [{"name": "a", "restartPolicy": "Never", "restartPolicyRules": rules}]});
    assert_eq!(starts(&Case::new(spec.clone()).with("a", Some(42)).decide()), ["a#1"]);
    let decision = Case::new(spec).with("a", Some(1)).decide();
    assert_eq!(decision.status.phase.as_deref(), Some("Failed"));
}

#[test]
fn a_container_waits_for_its_restart() {
    let mut case = Case::new(json!({"containers": [{"name": "a"}]}));
    case.runs.insert("a".into(), Runs { latest: run(3, Some(1)), previous: Some(run(2, Some(9))) });
    let decision = case.decide();
    assert_eq!((starts(&decision), decision.due), (Vec::new(), Some(at(25))));
    let status = serde_json::to_value(&decision.status.container_statuses).expect("JSON");
    let message = "back-off 20s restarting failed container=a pod=p_ns(u)";
    assert_eq!(status[0]["state"], json!({"waiting": {"reason": "CrashLoopBackOff", "message": message}}));
    assert_eq!(status[0]["lastState"]["terminated"]["exitCode"], 1);
    assert_eq!(status[0]["restartCount"], 3);
    assert_eq!(decision.events.len(), 1);
}

#[test]
fn sidecars_stop_last_in_reverse_order() {
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "a"}],
        "initContainers": [{"name": "s", "restartPolicy": "Always"}, {"name": "t", "restartPolicy": "Always"}]});
    let case = Case::new(spec).with("s", None).with("t", None).with("a", Some(0));
    let decision = case.decide();
    assert_eq!((decision.stops.as_slice(), decision.is_finished), (["t".to_owned()].as_slice(), false));
    assert_eq!(decision.status.phase.as_deref(), Some("Running"));
    let case = case.with("t", Some(143));
    assert_eq!(case.decide().stops, ["s"]);
    let decision = case.with("s", Some(143)).decide();
    assert!(decision.is_finished);
    assert_eq!(decision.status.phase.as_deref(), Some("Succeeded"), "the exit codes of sidecars do not count");
}

#[test]
fn a_deleted_pod_stops_all_containers_and_starts_none() {
    let mut case = Case::new(with_init()).with("i", Some(0)).with("s", None).with("j", Some(0)).with("a", None);
    case.ending = Some(Ending::Deleted);
    let decision = case.decide();
    assert_eq!((decision.stops.as_slice(), starts(&decision)), (["a".to_owned()].as_slice(), Vec::new()));
    let case = case.with("a", Some(0)).with("s", Some(0));
    let decision = case.decide();
    assert!(decision.is_finished);
    let statuses = decision.status.container_statuses.expect("statuses");
    let never_ran = statuses[1].state.as_ref().and_then(|state| state.terminated.as_ref()).expect("an end");
    assert_eq!((never_ran.exit_code, never_ran.reason.as_deref()), (137, Some(UNKNOWN_REASON)));
    assert_eq!(decision.status.phase.as_deref(), Some("Failed"));
}

#[test]
fn a_blocked_container_shows_why_and_starts_when_its_time_has_come() {
    let mut case = Case::new(json!({"containers": [{"name": "a"}, {"name": "b"}]}));
    let block = |until| Blocked { reason: "ErrImagePull".into(), message: "no".into(), until };
    case.blocked.insert("a".into(), block(Some(at(12))));
    let decision = case.decide();
    assert_eq!((starts(&decision), decision.due), (vec!["b#0".to_owned()], Some(at(12))));
    let status = serde_json::to_value(&decision.status.container_statuses).expect("JSON");
    assert_eq!(status[0]["state"]["waiting"], json!({"reason": "ErrImagePull", "message": "no"}));
    case.blocked.insert("a".into(), block(Some(at(10))));
    assert_eq!(starts(&case.decide()), ["a#0", "b#0"]);
    case.blocked.insert("a".into(), block(None));
    assert_eq!(starts(&case.decide()), ["b#0"]);
}

#[test]
fn a_pod_with_a_running_and_a_starting_container_is_pending() {
    let decision = Case::new(json!({"containers": [{"name": "a"}, {"name": "b"}]})).with("a", None).decide();
    assert_eq!(decision.status.phase.as_deref(), Some("Pending"));
    let conditions = decision.status.conditions.expect("conditions");
    let ready = conditions.iter().find(|it| it.type_ == "ContainersReady").expect("the condition");
    assert_eq!(ready.message.as_deref(), Some("containers with unready status: [b]"));
}

#[test]
fn a_decision_does_not_change_without_new_facts() {
    let case = Case::new(with_init()).with("i", Some(0)).with("s", None).with("j", Some(0)).with("a", None);
    let first = case.decide().status;
    let again = decide(&Facts {
        pod: &case.pod,
        status: &first,
        now: at(100),
        has_sandbox: true,
        is_held: false,
        runs: &case.runs,
        health: &case.health,
        blocked: &case.blocked,
        back_off: &|_, _| SignedDuration::ZERO,
        never_restart: false,
        restarting: &BTreeMap::new(),
        ending: None,
    });
    assert_eq!(again.status, first);
}
