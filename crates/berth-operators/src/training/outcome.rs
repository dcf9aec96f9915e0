//! Which conditions follow from the counts of a job's pods, per library.
//!
//! Source: `UpdateJobStatus` of the controllers of Kubeflow's training operator 1.9.

use berth_runtime::{PlannedEvent, stamp};
use jiff::Timestamp;

use super::conditions::types::{FAILED, RESTARTING, RUNNING, SUCCEEDED};
use super::conditions::{JobStatus, Operator};
use super::framework::Library;
use super::types::{Job, Replica, RestartPolicy};

/// What the pods say, beside the counts of the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// True if the first worker has succeeded.
    pub first_worker_succeeded: bool,
}

/// Sets conditions and times of `status` from its counts. Returns the events.
pub fn conclude(job: &Job<'_>, seen: Seen, status: &mut JobStatus, now: Timestamp) -> Vec<PlannedEvent> {
    if status.start_time.is_none() {
        status.start_time = Some(stamp(now));
    }
    let mut turn = Turn { job, seen, now, status, events: Vec::new() };
    match job.framework.library {
        Library::TensorFlow => turn.tensorflow(),
        Library::XGBoost => turn.xgboost(),
        Library::PyTorch | Library::Paddle | Library::Jax => turn.master_or_workers(),
    }
    turn.events
}

struct Turn<'a> {
    job: &'a Job<'a>,
    seen: Seen,
    now: Timestamp,
    status: &'a mut JobStatus,
    events: Vec<PlannedEvent>,
}

/// Counts of one replica type.
struct Counts {
    active: i32,
    failed: i32,
    succeeded: i32,
    wanted: i32,
}

impl Counts {
    const fn have_all_succeeded(&self) -> bool {
        self.wanted == self.succeeded
    }

    /// True if a pod has failed and is missing.
    const fn lack_failed(&self) -> bool {
        self.failed > 0 && self.wanted > self.succeeded.saturating_add(self.active)
    }
}

impl Turn<'_> {
    fn counts(&self, replica: &Replica) -> Counts {
        let status = self.status.replica_statuses.get(replica.type_).cloned().unwrap_or_default();
        let (active, failed, succeeded) = (status.active, status.failed, status.succeeded);
        Counts { active, failed, succeeded, wanted: replica.count }
    }

    /// Sets a condition to true. Returns true if that is a change.
    fn set(&mut self, type_: &str, message: &str) -> bool {
        let reason = self.job.framework.reason(type_);
        self.status.set(Operator::Training, self.now, type_, true, &reason, message)
    }

    /// Sets a condition to true, with an event if that is a change.
    fn report(&mut self, type_: &str, is_warning: bool, message: &str) {
        if self.set(type_, message) {
            let reason = self.job.framework.reason(type_);
            self.events.push(PlannedEvent::with_warning(is_warning, reason, message));
        }
    }

    fn end(&mut self) {
        if self.status.completion_time.is_none() {
            self.status.completion_time = Some(stamp(self.now));
        }
    }

    fn succeed(&mut self, message: &str) {
        self.end();
        self.report(SUCCEEDED, false, message);
    }

    fn fail(&mut self, message: &str) {
        self.end();
        self.report(FAILED, false, message);
    }

    /// The master decides, or all workers if there is no master.
    fn master_or_workers(&mut self) {
        let (job, kind, name) = (self.job, self.job.framework.kind, self.job.name());
        let key = format!("{}/{name}", job.namespace());
        let has_master = job.spec.replica("Master").is_some();
        for replica in &job.spec.replicas {
            let counts = self.counts(replica);
            if has_master && replica.type_ == "Master" {
                if counts.active > 0 {
                    self.set(RUNNING, &format!("{kind} {name} is running."));
                }
                if counts.have_all_succeeded() {
                    return self.succeed(&format!("{kind} {name} is successfully completed."));
                }
            } else if !has_master {
                let is_elastic = job.framework.library == Library::PyTorch && job.spec.elastic.is_some();
                if counts.have_all_succeeded() || is_elastic && counts.succeeded > 0 {
                    self.succeed(&format!("{kind} {key} successfully completed."));
                } else if counts.active > 0 {
                    self.set(RUNNING, &format!("{kind} {key} is running."));
                }
            }
            if counts.lack_failed() {
                let (failed, type_) = (counts.failed, replica.type_);
                if replica.restart_policy == RestartPolicy::Never {
                    self.fail(&format!("{kind} {name} is failed because {failed} {type_} replica(s) failed."));
                } else {
                    let message = format!("{kind} {name} is restarting because {failed} {type_} replica(s) failed.");
                    self.report(RESTARTING, true, &message);
                }
            }
        }
    }

    /// The chief or master decides, or the first worker, or all workers.
    fn tensorflow(&mut self) {
        let job = self.job;
        let key = format!("{}/{}", job.namespace(), job.name());
        // Running removes the condition Restarting, which must then be restored.
        let restarting = self.status.condition(RESTARTING).cloned();
        let has_chief = job.spec.replica("Chief").is_some() || job.spec.replica("Master").is_some();
        for replica in &job.spec.replicas {
            let counts = self.counts(replica);
            let is_chief = matches!(replica.type_, "Chief" | "Master");
            let decides = if has_chief { is_chief } else { replica.type_ == "Worker" };
            let first = !has_chief && self.seen.first_worker_succeeded && !job.spec.needs_all_workers;
            if decides && (counts.have_all_succeeded() || first) {
                self.succeed(&format!("TFJob {key} successfully completed."));
            } else if decides && counts.active > 0 {
                self.set(RUNNING, &format!("TFJob {key} is running."));
            }
            if counts.failed == 0 {
                continue;
            }
            if let Some(known) = &restarting {
                self.status.set(Operator::Training, self.now, RESTARTING, true, &known.reason, &known.message);
            } else if !(job.spec.has_dynamic_workers && replica.type_ == "Worker") {
                let (failed, type_) = (counts.failed, replica.type_);
                self.fail(&format!("TFJob {key} has failed because {failed} {type_} replica(s) failed."));
            }
        }
    }

    /// The master decides.
    fn xgboost(&mut self) {
        let (job, name) = (self.job, self.job.name());
        let running = format!("XGBoostJob {name} is running.");
        for replica in &job.spec.replicas {
            let counts = self.counts(replica);
            if replica.type_ == "Master" {
                if counts.active > 0 || counts.have_all_succeeded() {
                    self.set(RUNNING, &running);
                }
                if counts.have_all_succeeded() {
                    return self.succeed(&format!("XGBoostJob {name} is successfully completed."));
                }
            }
            if counts.failed == 0 {
                continue;
            }
            self.set(RUNNING, &running);
            let (failed, type_) = (counts.failed, replica.type_);
            if replica.restart_policy == RestartPolicy::Never {
                self.fail(&format!("XGBoostJob {name} is failed because {failed} {type_} replica(s) failed."));
            } else {
                let message = format!("XGBoostJob {name} is restarting because {failed} {type_} replica(s) failed.");
                self.report(RESTARTING, true, &message);
            }
        }
    }
}
