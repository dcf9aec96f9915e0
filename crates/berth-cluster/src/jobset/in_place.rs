//! The restart strategy `InPlaceRestart`: pods remain, and their containers restart together. Each
//! pod's agent writes its attempt to an annotation. The set's status has the previous attempt,
//! whose containers must restart, and the current attempt, which every pod has reached.

use berth_api::jobset::constants::{IN_PLACE_RESTART_ATTEMPT, REACHED_MAX_RESTARTS};
use berth_api::jobset::v1alpha2::{JobSet, JobSetStatus, RestartStrategy};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::failure::{Outcome, fail};
use super::names::replicas;
use crate::job::facts;

/// Why an in-place restart cannot be decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InPlaceError {
    /// A pod's annotation is not a number.
    #[error("pod {pod}: annotation {IN_PLACE_RESTART_ATTEMPT} is {value:?}, expected a non-negative integer")]
    Attempt {
        /// The pod.
        pod: String,
        /// Value of the annotation.
        value: String,
    },
    /// The number of pods of a replicated job is not fixed.
    #[error("replicated job {replicated_job}: completions and parallelism must be set and equal to each other")]
    PodCount {
        /// The replicated job.
        replicated_job: String,
    },
}

/// True if the set restarts in place.
pub fn is_in_place(set: &JobSet) -> bool {
    let strategy = set.spec.failure_policy.as_ref().and_then(|policy| policy.restart_strategy);
    strategy == Some(RestartStrategy::InPlaceRestart)
}

/// The attempts that pods announce; failed pods and pods without the annotation are skipped.
pub fn attempts<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Result<Vec<i32>, InPlaceError> {
    let mut attempts = Vec::new();
    for pod in pods.into_iter().filter(|pod| facts::phase(pod) != "Failed") {
        let annotations = pod.metadata.annotations.as_ref();
        let Some(value) = annotations.and_then(|annotations| annotations.get(IN_PLACE_RESTART_ATTEMPT)) else {
            continue;
        };
        match value.parse::<i32>() {
            Ok(attempt) if attempt >= 0 => attempts.push(attempt),
            _ => {
                let pod = facts::name(pod).to_owned();
                return Err(InPlaceError::Attempt { pod, value: value.clone() });
            }
        }
    }
    Ok(attempts)
}

/// Total number of pods of the set.
pub fn pods_expected(set: &JobSet) -> Result<i32, InPlaceError> {
    let mut total = 0i32;
    for entry in &set.spec.replicated_jobs {
        let spec = entry.template.spec.as_ref();
        let counts = spec.map(|spec| (spec.completions, spec.parallelism));
        let Some((Some(completions), Some(parallelism))) = counts.filter(|(c, p)| c == p) else {
            return Err(InPlaceError::PodCount { replicated_job: entry.name.clone() });
        };
        debug_assert_eq!(completions, parallelism, "just filtered");
        total = total.saturating_add(replicas(entry).saturating_mul(parallelism));
    }
    Ok(total)
}

/// The largest restart count of a container of these pods.
pub fn container_restarts_max<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> i32 {
    let counts = pods.into_iter().flat_map(facts::container_statuses).map(|status| status.restart_count);
    counts.max().unwrap_or(0)
}

/// True if there is at least one attempt and all are equal.
pub fn all_equal(attempts: &[i32]) -> bool {
    attempts.first().is_some_and(|first| attempts.iter().all(|attempt| attempt == first))
}

/// True if one of these attempts exceeds `maxRestarts`, after the restarts that do not count are
/// subtracted.
pub fn exceeds_max_restarts(set: &JobSet, attempts: &[i32]) -> bool {
    let status = set.status.clone().unwrap_or_default();
    let uncounted = status.restarts.saturating_sub(status.restarts_count_towards_max);
    let allowed = set.spec.failure_policy.as_ref().map_or(0, |policy| policy.max_restarts);
    attempts.iter().any(|attempt| attempt.saturating_sub(uncounted) > allowed)
}

/// Records the attempt before the highest one as the previous attempt, unless the recorded one is
/// as high. Returns true if that changes the status.
pub fn update_previous(status: &mut JobSetStatus, attempts: &[i32]) -> bool {
    let Some(over) = attempts.iter().max().map(|furthest| furthest - 1) else { return false };
    let is_news = over > status.previous_in_place_restart_attempt.unwrap_or(-1);
    if is_news {
        status.previous_in_place_restart_attempt = Some(over);
    }
    is_news
}

/// Records the attempt that all `expected` pods have reached as the current one. Returns true if
/// that changes the status.
pub fn update_current(status: &mut JobSetStatus, attempts: &[i32], expected: usize) -> bool {
    let (true, Some(attempt)) = (attempts.len() == expected && all_equal(attempts), attempts.first()) else {
        return false;
    };
    let is_news = status.current_in_place_restart_attempt != Some(*attempt);
    status.current_in_place_restart_attempt = Some(*attempt);
    is_news
}

/// Result of evaluating the set's pods.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The status did not change.
    Unchanged,
    /// The attempts in the status changed.
    Updated,
    /// Too many restarts: the set failed.
    Failed(Outcome),
}

/// Evaluates the pods of a set that restarts in place, and updates the status.
pub fn reconcile(
    set: &JobSet,
    status: &mut JobSetStatus,
    pods: &[&Pod],
    now: Timestamp,
) -> Result<Verdict, InPlaceError> {
    let attempts = attempts(pods.iter().copied())?;
    let restarted = container_restarts_max(pods.iter().copied());
    if exceeds_max_restarts(set, &attempts) || exceeds_max_restarts(set, &[restarted]) {
        let (reason, message) = REACHED_MAX_RESTARTS;
        return Ok(Verdict::Failed(fail(status, reason, message, now)));
    }
    let expected = usize::try_from(pods_expected(set)?).unwrap_or(0);
    let previous = update_previous(status, &attempts);
    let current = update_current(status, &attempts, expected);
    Ok(if previous || current { Verdict::Updated } else { Verdict::Unchanged })
}
