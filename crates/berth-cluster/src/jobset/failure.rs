//! The effect of a failed job on its set: the rules of the failure policy and their actions.

use berth_api::jobset::constants::{
    DEFAULT_FAILURE_POLICY, FAIL_JOBSET_ACTION, FAILED, FAILED_JOBS, FAILURE_POLICY_PREFIX, JOB_INDEX,
    REACHED_MAX_RESTARTS, REPLICATED_JOB_NAME, RESTARTING,
};
use berth_api::jobset::v1alpha2::{FailurePolicyAction, FailurePolicyRule, JobSet, JobSetStatus};
use berth_apimachinery::regexp;
use berth_runtime::condition;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::children::{label, number_label};
use super::conditions::set_condition;
use super::names::replicas;
use crate::job::facts::true_condition;

/// The job that failed first. Jobs without a Failed condition are skipped; of equal times, the
/// first in the list is used.
pub fn first_failed<'a, J: AsRef<Job> + 'a>(jobs: impl IntoIterator<Item = &'a J>) -> Option<&'a Job> {
    let mut first: Option<(&Job, Option<Timestamp>)> = None;
    for job in jobs {
        let job = job.as_ref();
        let Some(failed) = true_condition(job, "Failed") else { continue };
        let at = failed.last_transition_time.as_ref().map(|at| at.0);
        if first.is_none_or(|(_, earliest)| at < earliest) {
            first = Some((job, at));
        }
    }
    first.map(|(job, _)| job)
}

/// The first rule that matches a failed job, and of the jobs that it matches, the one that failed
/// first.
pub fn first_matching_rule<'r, 'j, J: AsRef<Job> + 'j>(
    rules: &'r [FailurePolicyRule],
    failed: &'j [J],
) -> Option<(&'r FailurePolicyRule, &'j Job)> {
    rules.iter().find_map(|rule| {
        let matching = failed.iter().filter(|job| {
            let condition = true_condition(job.as_ref(), "Failed");
            condition.is_some_and(|condition| rule_applies(rule, job.as_ref(), condition))
        });
        first_failed(matching).map(|job| (rule, job))
    })
}

/// True if the rule matches a job with this failure condition. An invalid regular expression
/// matches nothing.
pub fn rule_applies(rule: &FailurePolicyRule, job: &Job, failed: &JobCondition) -> bool {
    let reason = failed.reason.as_deref().unwrap_or_default();
    let message = failed.message.as_deref().unwrap_or_default();
    let entry = label(job, REPLICATED_JOB_NAME).unwrap_or_default();
    let any = |list: &[String], matches: &dyn Fn(&str) -> bool| list.is_empty() || list.iter().any(|one| matches(one));
    any(&rule.on_job_failure_reasons, &|wanted| wanted == reason)
        && any(&rule.on_job_failure_message_patterns, &|pattern| {
            regexp::compile(pattern).is_ok_and(|pattern| pattern.is_match(message))
        })
        && any(&rule.target_replicated_jobs, &|target| target == entry)
}

/// A change to the status, with the condition that reports it, if one does.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The condition that was set; its event is a warning.
    pub condition: Option<Condition>,
    /// Reason and message of an event for outcomes without a condition.
    pub event: Option<(String, String)>,
}

/// Applies the failure policy to the failed jobs of a set, of which there is at least one.
pub fn apply_failure_policy<J: AsRef<Job>>(
    set: &JobSet,
    status: &mut JobSetStatus,
    failed: &[J],
    now: Timestamp,
) -> Outcome {
    let Some(policy) = &set.spec.failure_policy else {
        let (reason, message) = FAILED_JOBS;
        return fail(status, reason, &about(message, first_failed(failed)), now);
    };
    match first_matching_rule(&policy.rules, failed) {
        Some((rule, job)) => apply_action(set, status, rule.action, Some(rule), Some(job), now),
        None => apply_action(set, status, FailurePolicyAction::RestartJobSet, None, first_failed(failed), now),
    }
}

/// Applies one action for one failed job.
pub fn apply_action(
    set: &JobSet,
    status: &mut JobSetStatus,
    action: FailurePolicyAction,
    rule: Option<&FailurePolicyRule>,
    job: Option<&Job>,
    now: Timestamp,
) -> Outcome {
    use FailurePolicyAction::{FailJobSet, RestartJob, RestartJobAndIgnoreMaxRestarts, RestartJobSet};
    if action == FailJobSet {
        let message = "jobset failed due to FailJobSet failure policy action";
        return fail(status, FAIL_JOBSET_ACTION, &about(message, job), now);
    }
    let is_counted = matches!(action, RestartJobSet | RestartJob);
    let allowed = set.spec.failure_policy.as_ref().map_or(0, |policy| policy.max_restarts);
    if is_counted && restarts_counted(status) >= i64::from(allowed) {
        let (reason, message) = REACHED_MAX_RESTARTS;
        return fail(status, reason, &about(message, job), now);
    }
    if matches!(action, RestartJob | RestartJobAndIgnoreMaxRestarts) {
        if let Some(job) = job {
            restart_job(set, status, job, is_counted);
        }
        let message = about(&format!("applying {action} failure policy action"), job);
        return Outcome { condition: None, event: Some((format!("{action}FailurePolicyAction"), message)) };
    }
    status.restarts = status.restarts.saturating_add(1);
    if is_counted {
        status.restarts_count_towards_max = status.restarts_count_towards_max.saturating_add(1);
    }
    let reason = match rule {
        Some(rule) => format!("{FAILURE_POLICY_PREFIX}{}", rule.name),
        None => DEFAULT_FAILURE_POLICY.to_owned(),
    };
    let message = about(&format!("applying {action} failure policy action"), job);
    let restarting = condition(RESTARTING, true, &reason, &message, now);
    set_condition(status, restarting.clone());
    Outcome { condition: Some(restarting), event: None }
}

/// Restarts of the set and of its single jobs that count towards `maxRestarts`.
fn restarts_counted(status: &JobSetStatus) -> i64 {
    let of_jobs = status.replicated_jobs_status.iter().flat_map(|known| &known.job_restarts_count_towards_max);
    i64::from(status.restarts_count_towards_max) + of_jobs.map(|restarts| i64::from(*restarts)).sum::<i64>()
}

fn restart_job(set: &JobSet, status: &mut JobSetStatus, job: &Job, is_counted: bool) {
    let entry = label(job, REPLICATED_JOB_NAME).unwrap_or_default();
    let length = set.spec.replicated_jobs.iter().find(|known| known.name == entry).map_or(0, replicas);
    let index = number_label(job, JOB_INDEX).and_then(|index| usize::try_from(index).ok());
    let known = status.replicated_jobs_status.iter_mut().find(|known| known.name == entry);
    let (Some(known), Some(index)) = (known, index) else { return };
    let mut lists = vec![&mut known.job_restarts];
    if is_counted {
        lists.push(&mut known.job_restarts_count_towards_max);
    }
    for list in lists {
        list.resize(list.len().max(usize::try_from(length).unwrap_or(0)), 0);
        if let Some(restarts) = list.get_mut(index) {
            *restarts = restarts.saturating_add(1);
        }
    }
}

/// Fails the set permanently.
pub fn fail(status: &mut JobSetStatus, reason: &str, message: &str, now: Timestamp) -> Outcome {
    let failed = condition(FAILED, true, reason, message, now);
    set_condition(status, failed.clone());
    status.terminal_state = FAILED.to_owned();
    Outcome { condition: Some(failed), event: None }
}

fn about(message: &str, job: Option<&Job>) -> String {
    let name = job.and_then(|job| job.metadata.name.as_deref()).unwrap_or_default();
    format!("{message} (first failed job: {name})")
}
