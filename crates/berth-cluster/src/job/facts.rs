//! What the Job controller reads off Jobs and Pods: small questions with one answer each.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Finalizer that keeps a pod until the Job has counted it.
pub const TRACKING_FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Annotation and label with a pod's completion index.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Annotation with how often pods of this index failed before, counted against `backoffLimitPerIndex`.
pub const INDEX_FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-failure-count";
/// Annotation with how often failures of this index were ignored by the pod failure policy.
pub const INDEX_IGNORED_FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
/// `spec.managedBy` of Jobs this controller runs (as does an absent one).
pub const MANAGED_BY_JOB_CONTROLLER: &str = "kubernetes.io/job-controller";

/// A time as the API can store it: whole seconds.
pub fn stamp(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// True when another controller runs this Job.
pub fn is_managed_elsewhere(job: &Job) -> bool {
    job_spec(job).managed_by.as_deref().is_some_and(|manager| manager != MANAGED_BY_JOB_CONTROLLER)
}

/// The spec; a Job without one (which the API refuses) reads as the empty spec.
pub fn job_spec(job: &Job) -> &k8s_openapi::api::batch::v1::JobSpec {
    static EMPTY: std::sync::OnceLock<k8s_openapi::api::batch::v1::JobSpec> = std::sync::OnceLock::new();
    job.spec.as_ref().unwrap_or_else(|| EMPTY.get_or_init(Default::default))
}

/// The condition of this type, when its status is True.
pub fn true_condition<'a>(job: &'a Job, type_: &str) -> Option<&'a JobCondition> {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().find(|condition| condition.type_ == type_ && condition.status == "True")
}

/// The terminal condition of a finished Job: Complete or Failed.
pub fn finished_condition(job: &Job) -> Option<&JobCondition> {
    true_condition(job, "Complete").or_else(|| true_condition(job, "Failed"))
}

/// True when `spec.suspend` is set.
pub fn is_suspended(job: &Job) -> bool {
    job_spec(job).suspend == Some(true)
}

/// True when each pod has a completion index.
pub fn is_indexed(job: &Job) -> bool {
    job_spec(job).completion_mode.as_deref() == Some("Indexed")
}

/// True when a pod is replaced only once it has failed for good, not already when it starts terminating.
pub fn replaces_only_failed_pods(job: &Job) -> bool {
    let spec = job_spec(job);
    spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some()
}

/// The pod's phase; empty before the kubelet said anything.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// True when the pod ended, one way or the other.
pub fn is_terminated(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// True when the pod was asked to go.
pub fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// True for a pod that runs or will: neither ended nor going.
pub fn is_active(pod: &Pod) -> bool {
    !is_terminated(pod) && !is_deleted(pod)
}

/// True for a pod that is going but has not ended.
pub fn is_terminating(pod: &Pod) -> bool {
    !is_terminated(pod) && is_deleted(pod)
}

/// True when the pod counts as failed for this Job. A deleted pod counts at once unless the Job waits for pods to
/// end; it may never get to report a phase.
pub fn is_failed(pod: &Pod, job: &Job) -> bool {
    match phase(pod) {
        "Failed" => true,
        "Succeeded" => false,
        _ => is_deleted(pod) && !replaces_only_failed_pods(job),
    }
}

/// True when the pod's condition of this type is True.
pub fn has_condition(pod: &Pod, type_: &str) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// True while the Job has not counted the pod yet.
pub fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == TRACKING_FINALIZER)
}

/// The pod's completion index, when it has a readable one.
pub fn completion_index(pod: &Pod) -> Option<u32> {
    number_annotation(pod, COMPLETION_INDEX)
}

/// The completion index when it is within the Job's completions.
pub fn valid_index(pod: &Pod, completions: u32) -> Option<u32> {
    completion_index(pod).filter(|index| *index < completions)
}

/// A non-negative number from an annotation.
pub fn number_annotation(pod: &Pod, key: &str) -> Option<u32> {
    pod.metadata.annotations.as_ref()?.get(key)?.parse().ok()
}

/// The pod's UID; the API gives every stored pod one.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The pod's name.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// Statuses of all containers that count towards a Job, init containers last.
pub fn container_statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let main = status.and_then(|s| s.container_statuses.as_ref()).into_iter().flatten();
    main.chain(status.and_then(|s| s.init_container_statuses.as_ref()).into_iter().flatten())
}

/// When the pod ended: the last container's end; else when it stopped being ready; else when its deletion was asked
/// for; else `now`.
pub fn finish_time(pod: &Pod, now: Timestamp) -> Timestamp {
    let ends = container_statuses(pod)
        .filter_map(|status| Some(status.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0))
        .max();
    if let Some(end) = ends {
        return end;
    }
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let unready = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "Ready" && condition.status == "False")
        .and_then(|condition| condition.last_transition_time.as_ref());
    if let (Some(at), true) = (unready, is_terminated(pod)) {
        return at.0;
    }
    if let Some(deleted) = &pod.metadata.deletion_timestamp {
        // The deletion timestamp is when the grace period ends.
        let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
        return deleted.0.checked_sub(grace).unwrap_or(deleted.0);
    }
    now
}
