//! Conditions and counts of a job's status, shared by the training kinds and MPIJob.
//!
//! Source: `pkg/util/status.go` of Kubeflow's training operator 1.9, and
//! `mpi_job_controller_status.go` of the MPI operator 0.8.

use std::collections::BTreeMap;

use berth_runtime::stamp;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Types of conditions.
pub mod types {
    /// The operator has seen the job.
    pub const CREATED: &str = "Created";
    /// Pods run.
    pub const RUNNING: &str = "Running";
    /// Pods have failed and are replaced.
    pub const RESTARTING: &str = "Restarting";
    /// The job has succeeded.
    pub const SUCCEEDED: &str = "Succeeded";
    /// The job has failed.
    pub const FAILED: &str = "Failed";
    /// The job is suspended.
    pub const SUSPENDED: &str = "Suspended";
}

use types::{FAILED, RESTARTING, RUNNING, SUCCEEDED};

/// A condition of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type.
    pub r#type: String,
    /// `True` or `False`.
    pub status: String,
    /// Reason of the last transition.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Text for users.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Time of the last write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// Time of the last change of the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

/// Pods of one replica type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaStatus {
    /// Running pods.
    #[serde(skip_serializing_if = "is_zero")]
    pub active: i32,
    /// Succeeded pods.
    #[serde(skip_serializing_if = "is_zero")]
    pub succeeded: i32,
    /// Failed pods.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: i32,
    /// Selector of these pods.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selector: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// The status of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    /// Conditions, in the order of their last change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Pods by replica type.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub replica_statuses: BTreeMap<String, ReplicaStatus>,
    /// Time of the start, or of the last resumption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time of the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Unused; kept as stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_reconcile_time: Option<Time>,
}

/// The operators, whose rules for conditions differ in two points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// The training operator: no condition changes after `Failed`.
    Training,
    /// The MPI operator: an end sets an earlier `Failed` to false.
    Mpi,
}

impl JobStatus {
    /// Reads the stored status. One that cannot be read counts as empty.
    pub fn read(status: Option<&Value>) -> Self {
        status.and_then(|status| Self::deserialize(status).ok()).unwrap_or_default()
    }

    /// The condition of this type.
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.r#type == type_)
    }

    /// True if the condition of this type is true.
    pub fn is_true(&self, type_: &str) -> bool {
        self.condition(type_).is_some_and(|condition| condition.status == "True")
    }

    /// True if the job has ended.
    pub fn is_finished(&self) -> bool {
        self.is_true(SUCCEEDED) || self.is_true(FAILED)
    }

    /// Sets a condition. Returns true if its status or reason has changed.
    pub fn set(
        &mut self,
        operator: Operator,
        now: Timestamp,
        type_: &str,
        is_true: bool,
        reason: &str,
        message: &str,
    ) -> bool {
        if operator == Operator::Training && self.is_true(FAILED) {
            return false;
        }
        let status = if is_true { "True" } else { "False" };
        let known = self.condition(type_);
        if known.is_some_and(|known| known.status == status && known.reason == reason) {
            return false;
        }
        let same_status = known.filter(|known| known.status == status);
        let since = same_status.map_or_else(|| Some(stamp(now)), |known| known.last_transition_time.clone());
        self.give_way_to(operator, type_);
        self.conditions.push(Condition {
            r#type: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_update_time: Some(stamp(now)),
            last_transition_time: since,
        });
        true
    }

    /// Removes the conditions that one of this type replaces: running and restarting replace each
    /// other, and a job that has ended does not run.
    fn give_way_to(&mut self, operator: Operator, type_: &str) {
        let replaced = match type_ {
            RESTARTING => RUNNING,
            RUNNING => RESTARTING,
            _ => type_,
        };
        self.conditions.retain(|condition| condition.r#type != type_ && condition.r#type != replaced);
        if type_ == FAILED || type_ == SUCCEEDED {
            for condition in &mut self.conditions {
                if condition.r#type == RUNNING || operator == Operator::Mpi && condition.r#type == FAILED {
                    "False".clone_into(&mut condition.status);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::types::{CREATED, SUSPENDED};
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn set(status: &mut JobStatus, type_: &str) -> bool {
        status.set(Operator::Training, NOW, type_, true, &format!("Job{type_}"), "")
    }

    fn seen(status: &JobStatus) -> Vec<String> {
        status.conditions.iter().map(|it| format!("{}={}", it.r#type, it.status)).collect()
    }

    #[test]
    fn running_and_restarting_replace_each_other() {
        let mut status = JobStatus::default();
        set(&mut status, CREATED);
        set(&mut status, RUNNING);
        set(&mut status, RESTARTING);
        assert_eq!(seen(&status), ["Created=True", "Restarting=True"]);
        set(&mut status, RUNNING);
        assert_eq!(seen(&status), ["Created=True", "Running=True"]);
    }

    #[test]
    fn a_job_that_has_ended_does_not_run() {
        let mut status = JobStatus::default();
        set(&mut status, RUNNING);
        set(&mut status, SUCCEEDED);
        assert_eq!(seen(&status), ["Running=False", "Succeeded=True"]);
    }

    #[test]
    fn after_a_failure_no_condition_of_a_training_job_changes() {
        let mut status = JobStatus::default();
        set(&mut status, FAILED);
        assert!(!set(&mut status, SUCCEEDED) && !set(&mut status, SUSPENDED));
        assert_eq!(seen(&status), ["Failed=True"]);
        assert!(status.set(Operator::Mpi, NOW, SUCCEEDED, true, "MPIJobSucceeded", ""));
        assert_eq!(seen(&status), ["Failed=False", "Succeeded=True"]);
    }

    #[test]
    fn a_condition_with_the_same_status_keeps_the_time_of_its_transition() {
        let mut status = JobStatus::default();
        set(&mut status, SUSPENDED);
        assert!(!set(&mut status, SUSPENDED), "nothing has changed");
        let later = NOW.checked_add(jiff::Span::new().seconds(9)).expect("a time");
        assert!(status.set(Operator::Training, later, SUSPENDED, true, "Other", ""));
        let condition = status.condition(SUSPENDED).expect("the condition");
        assert_eq!(condition.last_transition_time, Some(stamp(NOW)));
        assert_eq!(condition.last_update_time, Some(stamp(later)));
    }
}
