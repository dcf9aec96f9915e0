//! Tests of the Job controller's plans, against a small simulation that applies them and can crash
//! between any two writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::well_known::COMPLETION_INDEX;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::backoff::Backoff;
use super::facts::{TRACKING_FINALIZER, finished_condition, is_active, is_tracked};
use super::plan::plan;

/// A simulated API server and kubelet for one Job.
struct World {
    job: Job,
    pods: BTreeMap<String, Pod>,
    now: Timestamp,
    record: Backoff,
    pods_created: usize,
    /// Number of writes before the controller crashes; `None` for no crash.
    writes_before_crash: Option<usize>,
    events: Vec<String>,
    requeue_after: Option<Duration>,
}

impl World {
    fn new(spec: Value) -> Self {
        let mut spec = spec;
        spec["template"]["spec"]["containers"] = json!([{"name": "c", "image": "i"}]);
        if spec["template"]["spec"]["restartPolicy"].is_null() {
            spec["template"]["spec"]["restartPolicy"] = json!("Never");
        }
        let job = json!({"metadata": {"name": "j", "namespace": "ns", "uid": "job-1"}, "spec": spec});
        Self {
            job: serde_json::from_value(job).unwrap(),
            pods: BTreeMap::new(),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            record: Backoff::default(),
            pods_created: 0,
            writes_before_crash: None,
            events: Vec::new(),
            requeue_after: None,
        }
    }

    fn write(&mut self) -> Result<(), ()> {
        match &mut self.writes_before_crash {
            None => Ok(()),
            Some(0) => Err(()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    /// One reconcile of the controller. `Err` if it crashed.
    fn step(&mut self) -> Result<(), ()> {
        if finished_condition(&self.job).is_some() {
            let tracked: Vec<String> =
                self.pods.iter().filter(|(_, pod)| is_tracked(pod)).map(|it| it.0.clone()).collect();
            return tracked.iter().try_for_each(|name| self.release(name));
        }
        let pods: Vec<Arc<Pod>> = self.pods.values().cloned().map(Arc::new).collect();
        let mut plan = plan(&self.job, &pods, self.record, self.now);
        self.requeue_after = plan.requeue_after;
        for removal in &plan.remove {
            let name = removal.pod.metadata.name.clone().unwrap();
            if removal.forget {
                self.release(&name)?;
            }
            self.delete(&name)?;
        }
        for pod in &plan.create {
            self.write()?;
            self.pods_created += 1;
            let mut pod = pod.clone();
            let name = format!("{}{}", pod.metadata.generate_name.take().unwrap(), self.pods_created);
            pod.metadata.uid = Some(format!("uid-{}", self.pods_created));
            pod.metadata.name = Some(name.clone());
            pod.metadata.creation_timestamp = Some(Time(self.now));
            self.pods.insert(name, pod);
        }
        if let Some(status) = plan.final_status(self.now) {
            self.write_status(status)?;
            self.events.extend(plan.events.iter().map(|event| event.reason.clone()));
            return plan.release.iter().try_for_each(|pod| self.release(pod.metadata.name.as_deref().unwrap()));
        }
        let mut written = plan.status.clone();
        if !plan.release.is_empty() {
            written = self.write_status(written)?;
        }
        self.record = plan.backoff;
        for pod in plan.release.clone() {
            self.release(pod.metadata.name.as_deref().unwrap())?;
        }
        let mut tracked = plan.tracked().clone();
        for pod in plan.release.iter().chain(plan.remove.iter().filter(|r| r.forget).map(|r| &r.pod)) {
            tracked.remove(pod.metadata.uid.as_deref().unwrap());
        }
        let counted = plan.counted_status(written, &tracked, self.now);
        self.write_status(counted)?;
        self.events.extend(plan.events.iter().map(|event| event.reason.clone()));
        Ok(())
    }

    fn write_status(&mut self, status: JobStatus) -> Result<JobStatus, ()> {
        if self.job.status.as_ref() != Some(&status) {
            self.write()?;
            self.job.status = Some(status.clone());
        }
        Ok(status)
    }

    fn release(&mut self, name: &str) -> Result<(), ()> {
        self.write()?;
        if let Some(pod) = self.pods.get_mut(name) {
            pod.metadata.finalizers = None;
            if pod.metadata.deletion_timestamp.is_some() {
                self.pods.remove(name);
            }
        }
        Ok(())
    }

    fn delete(&mut self, name: &str) -> Result<(), ()> {
        self.write()?;
        if let Some(pod) = self.pods.get_mut(name) {
            pod.metadata.deletion_timestamp = Some(Time(self.now));
            if pod.metadata.finalizers.is_none() {
                self.pods.remove(name);
            }
        }
        Ok(())
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            let before = (self.job.clone(), self.pods.clone());
            self.step().unwrap();
            if before == (self.job.clone(), self.pods.clone()) {
                return;
            }
        }
        panic!("the controller still writes after 20 steps");
    }

    fn wait(&mut self, seconds: i64) {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
    }

    fn active(&self) -> Vec<String> {
        self.pods.values().filter(|pod| is_active(pod)).map(|pod| pod.metadata.name.clone().unwrap()).collect()
    }

    fn of_index(&self, index: u32) -> String {
        let found = self.pods.values().find(|pod| {
            is_active(pod) && pod.metadata.annotations.as_ref().unwrap()[COMPLETION_INDEX] == index.to_string()
        });
        found.unwrap_or_else(|| panic!("no active pod of index {index}")).metadata.name.clone().unwrap()
    }

    fn end(&mut self, name: &str, phase: &str, exit_code: i32) {
        let terminated = json!({"exitCode": exit_code, "finishedAt": self.now});
        let status = json!({"phase": phase, "containerStatuses": [
            {"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": terminated}}]});
        self.pods.get_mut(name).unwrap().status = Some(serde_json::from_value(status).unwrap());
    }

    fn succeed_all(&mut self) {
        for name in self.active() {
            self.end(&name, "Succeeded", 0);
        }
    }

    /// The status as JSON, without times and conditions.
    fn status(&self) -> Value {
        let mut status = serde_json::to_value(self.job.status.clone().unwrap_or_default()).unwrap();
        for field in ["startTime", "completionTime", "conditions"] {
            status.as_object_mut().unwrap().remove(field);
        }
        status
    }

    fn conditions(&self) -> Vec<String> {
        let conditions = self.job.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.map(|c| format!("{}={} {}", c.type_, c.status, c.reason.as_deref().unwrap_or(""))).collect()
    }
}

#[test]
fn a_job_creates_its_pods_counts_them_and_completes() {
    let mut world = World::new(json!({"parallelism": 2, "completions": 3}));
    world.settle();
    assert_eq!(world.active().len(), 2);
    assert_eq!(world.status()["active"], 2);
    world.succeed_all();
    world.settle();
    assert_eq!(world.active().len(), 1);
    assert_eq!(world.status()["succeeded"], 2);
    world.succeed_all();
    world.settle();
    assert_eq!(world.status(), json!({"succeeded": 3, "ready": 0, "terminating": 0, "uncountedTerminatedPods": {}}));
    assert_eq!(world.conditions(), ["SuccessCriteriaMet=True CompletionsReached", "Complete=True CompletionsReached"]);
    assert!(world.job.status.as_ref().unwrap().completion_time.is_some());
    assert_eq!(world.events, ["Completed"]);
    assert!(world.pods.values().all(|pod| pod.metadata.finalizers.is_none()));
}

#[test]
fn an_indexed_job_runs_each_index_and_lists_the_completed_ones() {
    let mut world = World::new(json!({"parallelism": 3, "completions": 5, "completionMode": "Indexed"}));
    world.settle();
    for index in 0..3 {
        let name = world.of_index(index);
        world.end(&name, "Succeeded", 0);
    }
    world.settle();
    assert_eq!(world.status()["completedIndexes"], "0-2");
    assert_eq!(world.active().len(), 2);
    world.of_index(3);
    world.succeed_all();
    world.settle();
    assert_eq!(world.status()["completedIndexes"], "0-4");
    assert!(finished_condition(&world.job).is_some());
}

#[test]
fn a_failed_pod_is_replaced_after_ten_seconds_then_twenty() {
    let mut world = World::new(json!({"completions": 1}));
    for delay in [10, 20] {
        world.settle();
        let name = world.active()[0].clone();
        world.end(&name, "Failed", 1);
        world.settle();
        assert!(world.active().is_empty());
        assert_eq!(world.requeue_after, Some(Duration::from_secs(delay)));
        world.wait(delay as i64);
    }
    world.settle();
    assert_eq!(world.active().len(), 1);
    assert_eq!(world.status()["failed"], 2);
}

#[test]
fn a_job_beyond_its_backoff_limit_fails_and_deletes_its_active_pods() {
    let mut world = World::new(json!({"parallelism": 2, "completions": 2, "backoffLimit": 0}));
    world.settle();
    let name = world.active()[0].clone();
    world.end(&name, "Failed", 1);
    world.settle();
    assert!(world.active().is_empty());
    assert_eq!(world.conditions(), ["FailureTarget=True BackoffLimitExceeded", "Failed=True BackoffLimitExceeded"]);
    assert_eq!(world.status()["failed"], 2);
    assert_eq!(world.events, ["BackoffLimitExceeded"]);
}

#[test]
fn suspending_deletes_pods_without_counting_them_and_resuming_resets_the_start_time() {
    let mut world = World::new(json!({"parallelism": 2, "completions": 2, "suspend": true}));
    world.settle();
    assert!(world.pods.is_empty());
    assert_eq!(world.conditions(), ["Suspended=True JobSuspended"]);
    assert!(world.job.status.as_ref().unwrap().start_time.is_none());
    world.job.spec.as_mut().unwrap().suspend = Some(false);
    world.wait(60);
    world.settle();
    assert_eq!(world.active().len(), 2);
    assert_eq!(world.job.status.as_ref().unwrap().start_time, Some(Time(world.now)));
    assert_eq!(world.conditions(), ["Suspended=False JobResumed"]);
    world.job.spec.as_mut().unwrap().suspend = Some(true);
    world.settle();
    assert!(world.pods.is_empty());
    assert_eq!(world.status().get("failed"), None);
    assert_eq!(world.events, ["Suspended", "Resumed", "Suspended"]);
}

#[test]
fn an_ignored_disruption_does_not_count_and_a_fatal_exit_code_ends_the_job() {
    let rules = json!({"rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]});
    let mut world = World::new(json!({"completions": 1, "backoffLimit": 0, "podFailurePolicy": rules}));
    world.settle();
    let name = world.active()[0].clone();
    world.end(&name, "Failed", 137);
    let condition = json!([{"type": "DisruptionTarget", "status": "True"}]);
    world.pods.get_mut(&name).unwrap().status.as_mut().unwrap().conditions =
        Some(serde_json::from_value(condition).unwrap());
    world.settle();
    assert_eq!(world.status().get("failed"), None);
    world.wait(10);
    world.settle();
    let name = world.active()[0].clone();
    world.end(&name, "Failed", 42);
    world.settle();
    let failed = finished_condition(&world.job).unwrap();
    assert_eq!(failed.reason.as_deref(), Some("PodFailurePolicy"));
    assert_eq!(
        failed.message.as_deref(),
        Some(
            format!("Container c for pod ns/{name} failed with exit code 42 matching FailJob rule at index 1").as_str()
        )
    );
    assert_eq!(world.status()["failed"], 1);
}

#[test]
fn a_deleted_pod_counts_at_once_unless_only_failed_pods_are_replaced() {
    for (policy, failed, active) in [("TerminatingOrFailed", json!(1), 0), ("Failed", Value::Null, 0)] {
        let mut world = World::new(json!({"completions": 1, "podReplacementPolicy": policy}));
        world.settle();
        let name = world.active()[0].clone();
        world.delete(&name).unwrap();
        world.step().unwrap();
        assert_eq!(world.status()["failed"], failed, "{policy}");
        assert_eq!(world.active().len(), active, "{policy}");
    }
}

#[test]
fn the_active_deadline_counts_from_the_start_time() {
    let mut world = World::new(json!({"completions": 1, "activeDeadlineSeconds": 30}));
    world.settle();
    assert_eq!(world.requeue_after, Some(Duration::from_secs(30)));
    world.wait(30);
    world.settle();
    assert_eq!(finished_condition(&world.job).unwrap().reason.as_deref(), Some("DeadlineExceeded"));
    assert!(world.active().is_empty());
}

#[test]
fn an_index_fails_alone_and_its_replacement_pod_gets_the_failure_count() {
    let mut world = World::new(json!({
        "parallelism": 2, "completions": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1}));
    world.settle();
    let name = world.of_index(0);
    world.end(&name, "Failed", 1);
    world.settle();
    assert!(world.pods[&name].metadata.finalizers.is_some(), "its annotations hold the failure count");
    world.wait(10);
    world.settle();
    assert_eq!(world.pods[&name].metadata.finalizers, None);
    let name = world.of_index(0);
    world.end(&name, "Failed", 1);
    world.settle();
    assert_eq!(world.status()["failedIndexes"], "0");
    assert_eq!(world.active().len(), 1);
    world.succeed_all();
    world.settle();
    assert_eq!(finished_condition(&world.job).unwrap().reason.as_deref(), Some("FailedIndexes"));
    assert_eq!(world.status()["failed"], 2);
    assert_eq!(world.status()["succeeded"], 1);
}

#[test]
fn a_success_policy_ends_the_job_early() {
    let mut world = World::new(json!({
        "parallelism": 3, "completions": 3, "completionMode": "Indexed",
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]}}));
    world.settle();
    let name = world.of_index(0);
    world.end(&name, "Succeeded", 0);
    world.settle();
    assert_eq!(world.conditions(), ["SuccessCriteriaMet=True SuccessPolicy", "Complete=True SuccessPolicy"]);
    assert!(world.active().is_empty());
    assert_eq!(world.status()["succeeded"], 1);
    assert_eq!(world.status().get("failed"), None);
}

#[test]
fn a_work_queue_completes_with_its_last_worker_after_the_first_success() {
    let mut world = World::new(json!({"parallelism": 2}));
    world.settle();
    let names = world.active();
    world.end(&names[0], "Succeeded", 0);
    world.settle();
    assert_eq!(world.active().len(), 1);
    assert!(finished_condition(&world.job).is_none());
    world.end(&names[1], "Succeeded", 0);
    world.settle();
    assert!(finished_condition(&world.job).is_some());
}

#[test]
fn an_elastic_indexed_job_grows_and_shrinks() {
    let mut world = World::new(json!({"parallelism": 2, "completions": 2, "completionMode": "Indexed"}));
    world.settle();
    let spec = world.job.spec.as_mut().unwrap();
    (spec.parallelism, spec.completions) = (Some(4), Some(4));
    world.settle();
    assert_eq!(world.active().len(), 4);
    let spec = world.job.spec.as_mut().unwrap();
    (spec.parallelism, spec.completions) = (Some(1), Some(1));
    world.settle();
    assert_eq!(world.active(), [world.of_index(0)]);
    assert_eq!(world.status().get("failed"), None);
}

#[test]
fn restarts_in_place_count_towards_the_backoff_limit() {
    let mut world = World::new(json!({
        "completions": 1, "backoffLimit": 2, "template": {"spec": {"restartPolicy": "OnFailure"}}}));
    world.settle();
    let name = world.active()[0].clone();
    let status = json!({"phase": "Running", "containerStatuses": [
        {"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 2, "state": {}}]});
    world.pods.get_mut(&name).unwrap().status = Some(serde_json::from_value(status).unwrap());
    world.settle();
    assert_eq!(finished_condition(&world.job).unwrap().reason.as_deref(), Some("BackoffLimitExceeded"));
}

#[test]
fn a_thousand_pods_are_created_in_two_steps_and_counted_in_two() {
    let mut world = World::new(json!({"parallelism": 1000, "completions": 1000, "completionMode": "Indexed"}));
    world.step().unwrap();
    assert_eq!(world.active().len(), 500);
    world.settle();
    assert_eq!(world.active().len(), 1000);
    world.succeed_all();
    world.step().unwrap();
    assert_eq!(world.status()["completedIndexes"], "0-499");
    world.settle();
    assert_eq!(world.status()["completedIndexes"], "0-999");
    assert!(finished_condition(&world.job).is_some());
}

/// Runs a Job with failures and successes. The controller crashes after every possible number of
/// writes in every step, and loses its back-off record.
#[test]
fn a_crash_between_any_two_writes_neither_reruns_nor_recounts_a_pod() {
    for mode in ["Indexed", "NonIndexed"] {
        for writes_before_crash in 0..40 {
            let mut world = World::new(json!({
                "parallelism": 3, "completions": 6, "completionMode": mode, "backoffLimit": 9}));
            let (mut failures, mut successes) = (0, 0);
            for round in 0..30 {
                world.writes_before_crash = Some(writes_before_crash);
                let crashed = world.step().is_err();
                world.writes_before_crash = None;
                if crashed {
                    world.record = Backoff::default();
                }
                assert!(world.active().len() <= 3, "{mode} {writes_before_crash} {round}: too many pods at once");
                world.settle();
                if finished_condition(&world.job).is_some() {
                    break;
                }
                for (position, name) in world.active().into_iter().enumerate() {
                    if round < 2 && position == 0 {
                        world.end(&name, "Failed", 1);
                        failures += 1;
                    } else {
                        world.end(&name, "Succeeded", 0);
                        successes += 1;
                    }
                }
                world.wait(400);
            }
            assert!(finished_condition(&world.job).is_some(), "{mode} {writes_before_crash}: never finished");
            assert_eq!((failures, successes), (2, 6), "{mode} {writes_before_crash}: a completion ran twice");
            assert_eq!(world.status()["failed"], 2, "{mode} {writes_before_crash}");
            assert_eq!(world.status()["succeeded"], 6, "{mode} {writes_before_crash}");
            assert!(world.pods.values().all(|pod| {
                pod.metadata.finalizers.iter().flatten().all(|finalizer| finalizer != TRACKING_FINALIZER)
            }));
        }
    }
}
