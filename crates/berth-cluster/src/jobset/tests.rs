//! Plans of the JobSet controller, against a small simulation that applies them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::jobset::constants::RESTARTS;
use berth_api::jobset::v1alpha2::JobSet;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use serde_json::{Value, json};

use super::gates::Gates;
use super::plan::{Plan, plan};
use super::webhook::default_jobset;
use crate::job::facts::is_suspended;

struct World {
    set: JobSet,
    jobs: BTreeMap<String, Job>,
    now: Timestamp,
    events: Vec<String>,
    service: Option<String>,
    is_gone: bool,
    again_after: Option<Duration>,
    gates: Gates,
}

impl World {
    /// A set with these replicated jobs (name, replicas) and further fields of the spec.
    fn new(entries: &[(&str, i32)], more: Value) -> Self {
        let entries: Vec<Value> = entries
            .iter()
            .map(|(name, replicas)| {
                json!({"name": name, "replicas": replicas, "groupName": "default", "template": {"spec": {
                    "parallelism": 1, "completions": 1, "backoffLimit": 0,
                    "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}})
            })
            .collect();
        let mut set =
            json!({"metadata": {"name": "s", "namespace": "ns", "uid": "set-1"}, "spec": {"replicatedJobs": entries}});
        for (key, value) in more.as_object().unwrap() {
            set["spec"][key] = value.clone();
        }
        default_jobset(&mut set);
        Self {
            set: serde_json::from_value(set).unwrap(),
            jobs: BTreeMap::new(),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            events: Vec::new(),
            service: None,
            is_gone: false,
            again_after: None,
            gates: Gates::default(),
        }
    }

    fn step(&mut self) {
        let jobs: Vec<Arc<Job>> = self.jobs.values().cloned().map(Arc::new).collect();
        let plan = plan(&self.set, &jobs, &[], self.gates, self.now);
        self.apply(plan);
    }

    fn apply(&mut self, plan: Plan) {
        for job in &plan.delete {
            self.jobs.get_mut(job.metadata.name.as_deref().unwrap()).unwrap().metadata.deletion_timestamp =
                Some(self.now.into());
        }
        self.service = plan.service.and_then(|service| service.metadata.name).or(self.service.take());
        let resumed = plan.resume.into_iter().map(|resume| resume.changed);
        for job in plan.create.into_iter().chain(plan.update).chain(resumed) {
            self.jobs.insert(job.metadata.name.clone().unwrap(), job);
        }
        self.set.status = Some(plan.status);
        self.events.extend(plan.events.into_iter().map(|event| event.reason));
        self.again_after = plan.again_after;
        self.is_gone |= plan.delete_set;
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            let before = (self.set.clone(), self.jobs.clone());
            self.step();
            if before == (self.set.clone(), self.jobs.clone()) {
                return;
            }
        }
        panic!("the controller still writes after 20 steps");
    }

    /// Removes the jobs that are being deleted, as if their pods had ended.
    fn sweep(&mut self) {
        self.jobs.retain(|_, job| job.metadata.deletion_timestamp.is_none());
    }

    fn set_status(&mut self, job: &str, status: Value) {
        self.jobs.get_mut(job).unwrap_or_else(|| panic!("no job {job}")).status =
            Some(serde_json::from_value::<JobStatus>(status).unwrap());
    }

    fn finish(&mut self, job: &str, type_: &str, reason: &str) {
        let condition = json!({"type": type_, "status": "True", "reason": reason, "lastTransitionTime": self.now});
        self.set_status(job, json!({"conditions": [condition]}));
    }

    fn names(&self) -> Vec<&str> {
        self.jobs.keys().map(String::as_str).collect()
    }

    fn conditions(&self) -> Vec<String> {
        let conditions = self.set.status.iter().flat_map(|status| &status.conditions);
        conditions.map(|c| format!("{}={} {}", c.type_, c.status, c.reason)).collect()
    }
}

#[test]
fn a_set_makes_its_service_and_all_jobs_and_completes_with_them() {
    let mut world = World::new(&[("driver", 1), ("worker", 2)], json!({}));
    world.settle();
    assert_eq!(world.service.as_deref(), Some("s"));
    assert_eq!(world.names(), ["s-driver-0", "s-worker-0", "s-worker-1"]);
    let pod = world.jobs["s-worker-1"].spec.as_ref().unwrap().template.spec.clone().unwrap();
    assert_eq!(pod.subdomain.as_deref(), Some("s"));
    assert_eq!(pod.restart_policy.as_deref(), Some("OnFailure"));
    for name in ["s-driver-0", "s-worker-0", "s-worker-1"] {
        assert!(world.conditions().is_empty());
        world.finish(name, "Complete", "CompletionsReached");
        world.settle();
    }
    assert_eq!(world.conditions(), ["Completed=True AllJobsCompleted"]);
    assert_eq!(world.set.status.as_ref().unwrap().terminal_state, "Completed");
    assert_eq!(world.events, ["AllJobsCompleted"]);
}

#[test]
fn any_success_of_a_target_completes_the_set_and_stops_the_others() {
    let policy = json!({"operator": "Any", "targetReplicatedJobs": ["driver"]});
    let mut world = World::new(&[("driver", 1), ("worker", 1)], json!({"successPolicy": policy}));
    world.settle();
    world.finish("s-worker-0", "Complete", "CompletionsReached");
    world.settle();
    assert!(world.conditions().is_empty(), "the policy does not count workers");
    world.set_status("s-worker-0", json!({"active": 1}));
    world.finish("s-driver-0", "Complete", "CompletionsReached");
    world.settle();
    assert_eq!(world.conditions(), ["Completed=True AllJobsCompleted"]);
    world.sweep();
    assert_eq!(world.names(), ["s-driver-0"]);
}

#[test]
fn a_suspended_set_suspends_its_jobs_and_a_resumed_one_places_them_by_its_template() {
    let mut world = World::new(&[("worker", 2)], json!({"suspend": true}));
    world.settle();
    assert!(world.jobs.values().all(is_suspended));
    assert_eq!(world.conditions(), ["Suspended=True SuspendedJobs"]);
    for flavor in ["spot", "reserved"] {
        world.set.spec.suspend = Some(false);
        let spec = world.set.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
        let pod = spec.template.spec.as_mut().unwrap();
        pod.node_selector = Some(BTreeMap::from([(flavor.to_owned(), "yes".to_owned())]));
        world.settle();
        for job in world.jobs.values() {
            let template = &job.spec.as_ref().unwrap().template;
            let selector = template.spec.as_ref().unwrap().node_selector.as_ref().unwrap();
            assert_eq!(selector.keys().collect::<Vec<_>>(), [flavor], "only the current flavor's label");
            assert!(!is_suspended(job));
        }
        assert_eq!(world.conditions(), ["Suspended=False ResumeJobs"]);
        world.set_status("s-worker-0", json!({"startTime": world.now, "active": 1}));
        world.set.spec.suspend = Some(true);
        world.settle();
        assert!(world.jobs.values().all(is_suspended));
    }
    world.set.spec.suspend = Some(false);
    world.settle();
    assert_eq!(world.jobs["s-worker-0"].status.as_ref().unwrap().start_time, None, "so that the template may change");
}

#[test]
fn without_a_failure_policy_the_first_failed_job_fails_the_set() {
    let mut world = World::new(&[("worker", 2)], json!({}));
    world.settle();
    world.finish("s-worker-1", "Failed", "BackoffLimitExceeded");
    world.settle();
    assert_eq!(world.conditions(), ["Failed=True FailedJobs"]);
    let message = &world.set.status.as_ref().unwrap().conditions[0].message;
    assert_eq!(message, "jobset failed due to one or more job failures (first failed job: s-worker-1)");
    world.sweep();
    assert_eq!(world.names(), ["s-worker-1"], "running jobs are stopped, the failed one is kept");
}

#[test]
fn a_set_restarts_until_no_restart_is_left() {
    for strategy in ["Recreate", "BlockingRecreate"] {
        let policy = json!({"maxRestarts": 2, "restartStrategy": strategy});
        let mut world = World::new(&[("worker", 2)], json!({"failurePolicy": policy}));
        world.settle();
        for attempt in 1..=2 {
            world.finish("s-worker-0", "Failed", "BackoffLimitExceeded");
            world.settle();
            assert_eq!(world.set.status.as_ref().unwrap().restarts, attempt);
            assert!(world.jobs.values().all(|job| job.metadata.deletion_timestamp.is_some()));
            // One of the two jobs disappears before the other.
            world.jobs.remove("s-worker-0");
            world.settle();
            assert_eq!(world.jobs.contains_key("s-worker-0"), strategy == "Recreate", "{strategy}");
            world.sweep();
            world.settle();
            assert_eq!(world.names(), ["s-worker-0", "s-worker-1"]);
            for job in world.jobs.values() {
                assert_eq!(job.metadata.labels.as_ref().unwrap()[RESTARTS], attempt.to_string());
            }
            for name in ["s-worker-0", "s-worker-1"] {
                assert_eq!(world.conditions(), ["RestartingJobSet=True DefaultFailurePolicy"]);
                world.set_status(name, json!({"ready": 1, "active": 1}));
                world.settle();
            }
            assert_eq!(world.conditions(), ["RestartingJobSet=False JobsReady"]);
        }
        world.finish("s-worker-1", "Failed", "BackoffLimitExceeded");
        world.settle();
        assert_eq!(world.conditions().last().unwrap(), "Failed=True ReachedMaxRestarts");
        assert_eq!(world.set.status.as_ref().unwrap().restarts, 2);
    }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let rules = json!([
        {"name": "patience", "action": "RestartJobSetAndIgnoreMaxRestarts",
         "onJobFailureReasons": ["PodFailurePolicy"], "onJobFailureMessagePatterns": ["exit code 42$"]},
        {"name": "enough", "action": "FailJobSet", "targetReplicatedJobs": ["driver"]}]);
    let policy = json!({"maxRestarts": 0, "rules": rules});
    let mut world = World::new(&[("driver", 1), ("worker", 1)], json!({"failurePolicy": policy}));
    world.settle();
    world.finish("s-driver-0", "Failed", "PodFailurePolicy");
    let conditions = world.jobs.get_mut("s-driver-0").unwrap().status.as_mut().unwrap().conditions.as_mut().unwrap();
    conditions[0].message = Some("failed with exit code 42".into());
    world.settle();
    let status = world.set.status.as_ref().unwrap();
    assert_eq!((status.restarts, status.restarts_count_towards_max), (1, 0));
    assert_eq!(world.conditions(), ["RestartingJobSet=True FailurePolicy_patience"]);
    world.sweep();
    world.settle();
    world.finish("s-driver-0", "Failed", "BackoffLimitExceeded");
    world.settle();
    assert_eq!(world.conditions().last().unwrap(), "Failed=True FailJobSetFailurePolicyAction");
}

#[test]
fn replicated_jobs_start_in_order() {
    let more = json!({"startupPolicy": {"startupPolicyOrder": "InOrder"}});
    let mut world = World::new(&[("driver", 1), ("worker", 1)], more);
    world.settle();
    assert_eq!(world.names(), ["s-driver-0"]);
    assert_eq!(world.conditions(), ["StartupPolicyInProgress=True InOrderStartupPolicyInProgress"]);
    world.set_status("s-driver-0", json!({"ready": 1, "active": 1}));
    world.settle();
    assert_eq!(world.names(), ["s-driver-0", "s-worker-0"]);
    world.set_status("s-worker-0", json!({"ready": 1, "active": 1}));
    world.settle();
    assert_eq!(
        world.conditions(),
        [
            "StartupPolicyInProgress=False InOrderStartupPolicyInProgress",
            "StartupPolicyCompleted=True InOrderStartupPolicyCompleted"
        ]
    );
}

#[test]
fn a_replicated_job_waits_for_its_dependencies() {
    let mut world = World::new(&[("fetch", 1), ("train", 1)], json!({}));
    world.set.spec.replicated_jobs[1].depends_on =
        serde_json::from_value(json!([{"name": "fetch", "status": "Complete"}])).unwrap();
    world.settle();
    world.set_status("s-fetch-0", json!({"ready": 1, "active": 1}));
    world.settle();
    assert_eq!(world.names(), ["s-fetch-0"]);
    world.finish("s-fetch-0", "Complete", "CompletionsReached");
    world.settle();
    assert_eq!(world.names(), ["s-fetch-0", "s-train-0"]);
}

#[test]
fn a_finished_set_is_deleted_after_its_time_to_live() {
    let mut world = World::new(&[("worker", 1)], json!({"ttlSecondsAfterFinished": 30}));
    world.settle();
    world.finish("s-worker-0", "Complete", "CompletionsReached");
    world.settle();
    assert_eq!(world.again_after, Some(Duration::from_secs(30)));
    assert!(!world.is_gone);
    world.now = world.now.checked_add(SignedDuration::from_secs(30)).unwrap();
    world.step();
    assert!(world.is_gone);
}

#[test]
fn a_single_job_restarts_alone_when_the_feature_is_on() {
    let policy = json!({"maxRestarts": 1, "rules": [{"name": "one", "action": "RestartJob"}]});
    let mut world = World::new(&[("worker", 2)], json!({"failurePolicy": policy}));
    world.gates.restart_job = true;
    world.settle();
    world.finish("s-worker-1", "Failed", "BackoffLimitExceeded");
    world.settle();
    world.sweep();
    assert_eq!(world.names(), ["s-worker-0"]);
    world.settle();
    let label = "jobset.sigs.k8s.io/job-restart-attempt";
    assert_eq!(world.jobs["s-worker-1"].metadata.labels.as_ref().unwrap()[label], "1");
    assert_eq!(world.jobs["s-worker-0"].metadata.labels.as_ref().unwrap()[label], "0");
    world.finish("s-worker-0", "Failed", "BackoffLimitExceeded");
    world.settle();
    assert_eq!(world.conditions(), ["Failed=True ReachedMaxRestarts"]);
}

#[test]
fn all_errors_of_a_new_set_are_reported() {
    let more = json!({
        "managedBy": "nobody",
        "network": {"subdomain": "Not.A.Label"},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["nope"]},
        "failurePolicy": {"rules": [
            {"name": "same", "action": "FailJobSet", "targetReplicatedJobs": ["nope"]},
            {"name": "same", "action": "RestartJob"}]}});
    let world = World::new(&[("worker", 1)], more);
    let errors = super::webhook::validate_create(&world.set, Gates::default(), &|_, _| None);
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "spec.managedBy",
            "spec.network.subdomain",
            "spec.network.subdomain",
            "spec.successPolicy.targetReplicatedJobs",
            "spec.failurePolicy.rules[0].targetReplicatedJobs",
            "spec.failurePolicy.rules",
            "spec.failurePolicy.rules",
        ]
    );
}

#[test]
fn placement_may_change_only_while_a_set_is_suspended() {
    for (suspended, allowed) in [(true, true), (false, false)] {
        let old = World::new(&[("worker", 1)], json!({"suspend": suspended})).set;
        let mut new = old.clone();
        let pod = new.spec.replicated_jobs[0].template.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
        pod.node_selector = Some(BTreeMap::from([("pool".to_owned(), "spot".to_owned())]));
        let errors = super::webhook::validate_update(&old, &new, Gates::default());
        assert_eq!(errors.is_empty(), allowed, "suspended: {suspended}");
        new.spec.replicated_jobs[0].replicas = Some(2);
        let errors = super::webhook::validate_update(&old, &new, Gates::default());
        assert!(errors[0].to_string().contains("field is immutable"));
    }
}

#[test]
fn a_set_that_a_typed_client_writes_back_is_unchanged() {
    let set = |template: serde_json::Value, env: serde_json::Value, cpu: &str| -> JobSet {
        let containers = json!([{"name": "c", "env": [env], "resources": {"requests": {"cpu": cpu}}}]);
        let mut template = json!({"spec": {"template": template}});
        template["spec"]["template"]["spec"]["containers"] = containers;
        let entry = json!({"name": "worker", "replicas": 1, "template": template});
        serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {"replicatedJobs": [entry]}}))
            .expect("a JobSet")
    };
    let stored = set(json!({}), json!({"name": "A", "value": ""}), "1000m");
    let metadata = json!({"creationTimestamp": null, "labels": {}});
    let read =
        set(json!({"metadata": metadata, "spec": {"volumes": [], "hostNetwork": false}}), json!({"name": "A"}), "1");
    assert_eq!(super::webhook::validate_update(&stored, &read, Gates::default()), []);
    assert_eq!(super::webhook::validate_update(&read, &stored, Gates::default()), []);
    let other = set(json!({}), json!({"name": "A"}), "2");
    assert_eq!(super::webhook::validate_update(&stored, &other, Gates::default()).len(), 1);
}
