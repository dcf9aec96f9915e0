//! What is deleted after the end of a RayJob, and when: by rules, by one policy per outcome, or by
//! `shutdownAfterJobFinishes`. Pure.

use berth_api::frameworks::RayCluster;
use jiff::{SignedDuration, Timestamp};

use super::plan::Write;
use super::types::{DeletionPolicy, DeletionRule, RayJobSpec, RayJobStatus, program};
use crate::ray::types::RayClusterSpec;

/// A deletion that is due, and the time of the next one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Due {
    /// The deletion.
    pub write: Option<Write>,
    /// When the next deletion is due.
    pub next: Option<Timestamp>,
}

/// What is due for a job that has ended. If the job selects an existing cluster, nothing is
/// deleted, not even the job.
pub fn after_end(spec: &RayJobSpec, status: &RayJobStatus, cluster: Option<&RayCluster>, now: Timestamp) -> Due {
    let Some(end) = status.end_time.as_ref().map(|time| time.0).filter(|_| !spec.selects_cluster()) else {
        return Due::default();
    };
    let at = |seconds: i32| end.checked_add(SignedDuration::from_secs(i64::from(seconds))).unwrap_or(Timestamp::MAX);
    let applicable: Vec<(DeletionPolicy, Timestamp)> = match &spec.deletion_strategy {
        Some(strategy) if !strategy.deletion_rules.is_empty() => {
            let rules = strategy.deletion_rules.iter().filter(|rule| applies(rule, status));
            rules.map(|rule| (rule.policy, at(rule.condition.ttl_seconds))).collect()
        }
        Some(strategy) => {
            let outcome = match status.job_status.as_str() {
                program::SUCCEEDED => strategy.on_success.as_ref(),
                program::FAILED => strategy.on_failure.as_ref(),
                _ => None,
            };
            let policy = outcome.and_then(|outcome| outcome.policy);
            policy.map(|policy| (policy, at(spec.ttl_seconds_after_finished))).into_iter().collect()
        }
        None if spec.shutdown_after_job_finishes => {
            vec![(DeletionPolicy::DeleteCluster, at(spec.ttl_seconds_after_finished))]
        }
        None => Vec::new(),
    };
    let open = applicable.into_iter().filter(|(policy, _)| !is_done(*policy, cluster));
    let (overdue, pending): (Vec<_>, Vec<_>) = open.partition(|(_, due)| *due <= now);
    // If several policies are due, the one that deletes most makes the others unnecessary.
    let write = overdue.into_iter().map(|(policy, _)| policy).max().and_then(write);
    Due { write, next: pending.into_iter().map(|(_, due)| due).min() }
}

fn applies(rule: &DeletionRule, status: &RayJobStatus) -> bool {
    match (&rule.condition.job_status, &rule.condition.job_deployment_status) {
        (Some(wanted), _) => *wanted == status.job_status,
        (None, wanted) => wanted.as_ref() == Some(&status.job_deployment_status),
    }
}

fn write(policy: DeletionPolicy) -> Option<Write> {
    match policy {
        DeletionPolicy::DeleteNone => None,
        DeletionPolicy::DeleteWorkers => Some(Write::SuspendWorkers),
        DeletionPolicy::DeleteCluster => Some(Write::DeleteCluster),
        DeletionPolicy::DeleteSelf => Some(Write::DeleteJob),
    }
}

/// True if nothing is left to delete by this policy.
fn is_done(policy: DeletionPolicy, cluster: Option<&RayCluster>) -> bool {
    let cluster = cluster.filter(|cluster| cluster.metadata.deletion_timestamp.is_none());
    match policy {
        DeletionPolicy::DeleteNone => true,
        DeletionPolicy::DeleteSelf => false,
        DeletionPolicy::DeleteCluster => cluster.is_none(),
        DeletionPolicy::DeleteWorkers => cluster.is_none_or(|cluster| {
            let spec = RayClusterSpec::read(&cluster.spec).unwrap_or_default();
            spec.worker_group_specs.iter().all(|group| group.is_suspended())
        }),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::{Value, json};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn check(spec: &Value, job_status: &str, cluster: Option<Value>, now: i64, expected: (Option<Write>, Option<i64>)) {
        let spec = RayJobSpec::read(spec).unwrap();
        let status = RayJobStatus {
            end_time: Some(Time(at(0))),
            job_status: job_status.into(),
            job_deployment_status: if job_status == "SUCCEEDED" { "Complete" } else { "Failed" }.into(),
            ..Default::default()
        };
        let cluster = cluster.map(|spec| RayCluster { spec, ..RayCluster::named("c") });
        let due = after_end(&spec, &status, cluster.as_ref(), at(now));
        assert_eq!((due.write, due.next), (expected.0, expected.1.map(at)), "{spec:?} at {now}");
    }

    fn workers(suspend: bool) -> Option<Value> {
        Some(json!({"workerGroupSpecs": [{"groupName": "g", "suspend": suspend}]}))
    }

    #[test]
    fn shutdown_deletes_the_cluster_after_the_time_to_live() {
        let spec = json!({"shutdownAfterJobFinishes": true, "ttlSecondsAfterFinished": 10});
        check(&spec, "SUCCEEDED", workers(false), 9, (None, Some(10)));
        check(&spec, "FAILED", workers(false), 10, (Some(Write::DeleteCluster), None));
        check(&spec, "SUCCEEDED", None, 11, (None, None));
        check(&json!({}), "SUCCEEDED", workers(false), 1000, (None, None));
    }

    #[test]
    fn rules_apply_in_stages() {
        let rule = |status: &str, seconds: i32, policy: &str| json!({"condition": {"jobStatus": status, "ttlSeconds": seconds}, "policy": policy});
        let rules = [
            rule("FAILED", 1, "DeleteSelf"),
            rule("SUCCEEDED", 30, "DeleteWorkers"),
            rule("SUCCEEDED", 60, "DeleteCluster"),
            rule("SUCCEEDED", 90, "DeleteSelf"),
        ];
        let spec = json!({"deletionStrategy": {"deletionRules": rules}});
        check(&spec, "SUCCEEDED", workers(false), 0, (None, Some(30)));
        check(&spec, "SUCCEEDED", workers(false), 30, (Some(Write::SuspendWorkers), Some(60)));
        check(&spec, "SUCCEEDED", workers(true), 31, (None, Some(60)));
        check(&spec, "SUCCEEDED", workers(true), 60, (Some(Write::DeleteCluster), Some(90)));
        check(&spec, "SUCCEEDED", None, 61, (None, Some(90)));
        check(&spec, "SUCCEEDED", None, 90, (Some(Write::DeleteJob), None));
        check(&spec, "FAILED", workers(false), 1, (Some(Write::DeleteJob), None));
        // After a long outage, only the rule that deletes most is applied.
        check(&spec, "SUCCEEDED", workers(false), 1000, (Some(Write::DeleteJob), None));
    }

    #[test]
    fn a_rule_can_wait_for_the_failure_of_the_job_itself() {
        let rule = json!({"condition": {"jobDeploymentStatus": "Failed"}, "policy": "DeleteCluster"});
        let spec = json!({"deletionStrategy": {"deletionRules": [rule]}});
        check(&spec, "", workers(false), 0, (Some(Write::DeleteCluster), None));
        check(&spec, "SUCCEEDED", workers(false), 0, (None, None));
    }

    #[test]
    fn success_and_failure_have_policies_of_their_own() {
        let strategy = json!({"onSuccess": {"policy": "DeleteNone"}, "onFailure": {"policy": "DeleteSelf"}});
        let spec = json!({"deletionStrategy": strategy});
        check(&spec, "SUCCEEDED", workers(false), 5, (None, None));
        check(&spec, "FAILED", workers(false), 5, (Some(Write::DeleteJob), None));
    }

    #[test]
    fn a_selected_cluster_stays() {
        let spec = json!({"shutdownAfterJobFinishes": true, "clusterSelector": {"ray.io/cluster": "shared"}});
        check(&spec, "SUCCEEDED", workers(false), 100, (None, None));
    }
}
