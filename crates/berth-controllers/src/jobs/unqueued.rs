//! Jobs that are not queued: parts of other jobs, and jobs that have no queue name or lost it.

use berth_api::kueue::{events, labels};
use berth_runtime::ObjectKey;
use kube::ResourceExt;

use super::ancestors::Ancestor;
use super::reconcile::{Context, remove_finalizer};
use super::{Job, kind_of, queue_name};
use crate::gates::Gate;
use crate::plan::{Plan, PlanError, PlannedEvent, Step};
use crate::selector;
use crate::stores::{Owner, group_of};
use crate::workload::status;

/// Why a job is not queued.
pub(super) enum Unqueued {
    /// A property of the job itself, or of its owner; the string goes into events.
    ByJob(String),
    /// The namespace's labels, which may change back at any time.
    ByNamespace,
}

/// Why a job that is not part of another one is not queued; `None` if it is queued.
pub(super) fn reason<J: Job>(context: Context<'_>, key: &ObjectKey, job: &J) -> Result<Option<Unqueued>, PlanError> {
    let config = context.config;
    let is_named = !queue_name(job).is_empty();
    if !is_named && !config.manage_jobs_without_queue_name {
        return Ok(Some(Unqueued::ByJob("the job has no queue name".to_owned())));
    }
    if !job.is_queued() {
        return Ok(Some(Unqueued::ByJob("the job's spec excludes it from queueing".to_owned())));
    }
    if is_named && !context.gates.on(Gate::ManagedJobsNamespaceSelectorAlwaysRespected) {
        return Ok(None);
    }
    Ok((!is_selected(context, &key.namespace)?).then_some(Unqueued::ByNamespace))
}

/// Why a part of a managed job is not queued: `what` says of which job. In a namespace that is not
/// selected, its job is not managed.
pub(super) fn reason_of_part(context: Context<'_>, namespace: &str, what: String) -> Result<Unqueued, PlanError> {
    let by_job = Unqueued::ByJob(format!("the job is part of {what}"));
    Ok(if is_selected(context, namespace)? { by_job } else { Unqueued::ByNamespace })
}

fn is_selected(context: Context<'_>, namespace: &str) -> Result<bool, PlanError> {
    let Some(labels) = context.stores.namespace_labels(namespace) else {
        return Err(PlanError::Other(format!("namespaces {namespace:?} not found")));
    };
    Ok(selector::matches(&context.config.managed_jobs_namespace_selector, &labels))
}

/// Deletes the Workloads of a job that is not queued or no longer queued. They would wait forever,
/// or hold quota that is not used. If the job runs on the quota of a Workload or has just ended,
/// nothing is deleted and true is returned.
pub(super) fn delete_workloads<J: Job>(
    context: Context<'_>,
    key: &ObjectKey,
    job: &J,
    why: &str,
    plan: &mut Plan<J>,
) -> bool {
    let kind = kind_of::<J>();
    let name = job.name_any();
    let Some(uid) = job.meta().uid.as_deref() else { return false };
    let owner = Owner { group: &kind.group, kind: &kind.kind, name: &name, uid: Some(uid) };
    let mut own = context.stores.workloads_of(&key.namespace, &owner);
    // Prebuilt Workloads lack the label and are kept.
    own.retain(|it| it.labels().get(labels::JOB_UID).is_some_and(|of| of == uid) && !status::is_finished(it));
    let is_over = job.finished().is_some();
    if own.iter().any(|it| is_over || (!job.is_suspended() && status::has_quota_reservation(it))) {
        return true;
    }
    for workload in own {
        let mut gone = (*workload).clone();
        if remove_finalizer(&mut gone) {
            plan.steps.push(Step::PatchWorkload(Box::new(gone.clone())));
        }
        if gone.metadata.deletion_timestamp.is_none() {
            let message = format!("Deleted Workload {}: {why}", ObjectKey::of(&gone));
            plan.steps.push(Step::DeleteWorkload(Box::new(gone)));
            plan.steps.push(Step::Event(PlannedEvent::normal(events::DELETED_WORKLOAD, message)));
        }
    }
    false
}

/// Suspends a part of a managed job unless the managed job's workload is admitted or finished.
pub(super) fn follow_ancestor<J: Job>(
    context: Context<'_>,
    namespace: &str,
    job: &J,
    ancestor: &Ancestor,
    plan: &mut Plan<J>,
) {
    if job.is_suspended() || job.finished().is_some() {
        return;
    }
    let owner = Owner {
        group: group_of(&ancestor.reference.api_version),
        kind: &ancestor.reference.kind,
        name: &ancestor.reference.name,
        uid: Some(&ancestor.reference.uid),
    };
    let admitted =
        context.stores.workloads_of(namespace, &owner).iter().any(|w| status::is_admitted(w) || status::is_finished(w));
    if !admitted {
        let mut job = job.clone();
        job.suspend();
        plan.steps.push(Step::Patch(Box::new(job)));
        plan.steps.push(Step::Event(PlannedEvent::normal(events::SUSPENDED, "Kueue managed child job suspended")));
    }
}
