//! Facts about Jobs and Pods that the Job controller needs.

use berth_apimachinery::well_known::COMPLETION_INDEX;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

/// Finalizer that holds a pod until the Job has counted it.
pub const TRACKING_FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Annotation with the number of earlier failures of the pod's index that count towards
/// `backoffLimitPerIndex`.
pub const INDEX_FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-failure-count";
/// Annotation with the number of earlier failures of the pod's index that the pod failure policy
/// ignored.
pub const INDEX_IGNORED_FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
/// `spec.managedBy` of Jobs that this controller manages. It also manages Jobs without the field.
pub const MANAGED_BY_JOB_CONTROLLER: &str = "kubernetes.io/job-controller";

/// True if `spec.managedBy` names another controller.
pub fn is_managed_elsewhere(job: &Job) -> bool {
    job_spec(job).managed_by.as_deref().is_some_and(|manager| manager != MANAGED_BY_JOB_CONTROLLER)
}

/// The Job's spec; an empty one if it has none, which the API server rejects.
pub fn job_spec(job: &Job) -> &k8s_openapi::api::batch::v1::JobSpec {
    static EMPTY: std::sync::OnceLock<k8s_openapi::api::batch::v1::JobSpec> = std::sync::OnceLock::new();
    job.spec.as_ref().unwrap_or_else(|| EMPTY.get_or_init(Default::default))
}

/// The condition of this type, if its status is True.
pub fn true_condition<'a>(job: &'a Job, type_: &str) -> Option<&'a JobCondition> {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().find(|condition| condition.type_ == type_ && condition.status == "True")
}

/// The terminal condition of a finished Job: Complete or Failed.
pub fn finished_condition(job: &Job) -> Option<&JobCondition> {
    true_condition(job, "Complete").or_else(|| true_condition(job, "Failed"))
}

/// True if `spec.suspend` is true.
pub fn is_suspended(job: &Job) -> bool {
    job_spec(job).suspend == Some(true)
}

/// True if the completion mode is Indexed.
pub fn is_indexed(job: &Job) -> bool {
    job_spec(job).completion_mode.as_deref() == Some("Indexed")
}

/// True if a pod is replaced only after it has failed, not already when it is deleted.
pub fn replaces_only_failed_pods(job: &Job) -> bool {
    let spec = job_spec(job);
    spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some()
}

/// The pod's phase; empty if its status has none.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// True if the pod has succeeded or failed.
pub fn is_terminated(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// True if the pod has a deletion timestamp.
pub fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// True if the pod is neither terminated nor deleted.
pub fn is_active(pod: &Pod) -> bool {
    !is_terminated(pod) && !is_deleted(pod)
}

/// True if the pod is deleted but has not terminated.
pub fn is_terminating(pod: &Pod) -> bool {
    !is_terminated(pod) && is_deleted(pod)
}

/// True if the pod counts as failed for this Job. A deleted pod counts at once, because it may
/// never report a phase, unless the Job replaces only failed pods.
pub fn is_failed(pod: &Pod, job: &Job) -> bool {
    match phase(pod) {
        "Failed" => true,
        "Succeeded" => false,
        _ => is_deleted(pod) && !replaces_only_failed_pods(job),
    }
}

/// True if the pod's condition of this type is True.
pub fn has_condition(pod: &Pod, type_: &str) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// True if the pod has the tracking finalizer: its Job has not counted it yet.
pub fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == TRACKING_FINALIZER)
}

/// The pod's completion index; `None` without a valid annotation.
pub fn completion_index(pod: &Pod) -> Option<u32> {
    number_annotation(pod, COMPLETION_INDEX)
}

/// The pod's completion index, if it is below `completions`.
pub fn valid_index(pod: &Pod, completions: u32) -> Option<u32> {
    completion_index(pod).filter(|index| *index < completions)
}

/// An annotation's value as a non-negative number.
pub fn number_annotation(pod: &Pod, key: &str) -> Option<u32> {
    pod.metadata.annotations.as_ref()?.get(key)?.parse().ok()
}

/// The pod's UID; every stored pod has one.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The pod's name.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// Statuses of the pod's containers, then of its init containers.
pub fn container_statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let main = status.and_then(|s| s.container_statuses.as_ref()).into_iter().flatten();
    main.chain(status.and_then(|s| s.init_container_statuses.as_ref()).into_iter().flatten())
}

/// Time at which the pod terminated: when its last container terminated; or else, if its phase is
/// terminal, when it became not ready; or else when it was deleted; or else `now`.
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
        // The deletion timestamp is the end of the grace period.
        let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
        return deleted.0.checked_sub(grace).unwrap_or(deleted.0);
    }
    now
}
