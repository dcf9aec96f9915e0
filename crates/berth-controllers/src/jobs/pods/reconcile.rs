//! Reconciling a single pod or a pod group: its Workload, and the next writes to either.
//!
//! As for other kinds of job ([`crate::jobs::reconcile`]), conditions are checked in a fixed order,
//! and the reconcile stops at the first one that requires a write on which the later checks depend.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::kueue::reasons::{eviction, finished};
use berth_api::kueue::v1beta2::{PodSet, Workload};
use berth_api::kueue::{annotations, constants, events, labels};
use berth_apimachinery::field::quote;
use berth_runtime::{ObjectKey, owned_by, shared_by};
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::ResourceExt;

use super::group::{self, Group, Surplus};
use super::{Unit, kind, prebuilt, replica, stateful_set};
use crate::conditions;
use crate::gates::Gate;
use crate::jobs::reconcile::{Context, copies_annotation, finish_orphan, remove_finalizer};
use crate::jobs::{naming, readiness, sanitize, start};
use crate::plan::{Plan, PlanError, PlannedEvent, Step};
use crate::podset::{self, PodSetInfo};
use crate::priority;
use crate::stores::{Owner, Stores, controller_of};
use crate::webhooks::held;
use crate::workload::status;

/// The plan for a unit and its pods, which are in name order.
pub fn reconcile(context: Context<'_>, namespace: &str, unit: &Unit, pods: &[Arc<Pod>]) -> Plan<Pod> {
    let mut plan = Plan::default();
    let mut unsettled = pods.iter().filter(|pod| held::is_unsettled(pod.as_ref())).peekable();
    if unsettled.peek().is_some() {
        // `settle_pod` can move a pod to another unit, or exclude it from queueing, so nothing else
        // is planned in this step.
        for pod in unsettled {
            match held::settle_pod(context, pod) {
                Ok(settled) => plan.steps.push(Step::Patch(Box::new(settled))),
                Err(error) => return plan.fail(error),
            }
        }
        return plan;
    }
    let workloads = workloads_of(context.stores, namespace, unit, pods.first());
    match Group::new(unit, pods) {
        Some(group) => {
            let mut reconcile = Reconcile { context, namespace, group, plan };
            if let Err(error) = reconcile.run(workloads) {
                reconcile.report_error(&error);
                return reconcile.plan.fail(error);
            }
            if let Some(error) = reconcile.plan.error.clone() {
                reconcile.report_error(&error);
            }
            reconcile.plan
        }
        None => {
            if let Unit::Group { name } = unit
                && let Some(set) = stateful_set::of_group(context.stores, namespace, name, context.gates)
                && set.metadata.deletion_timestamp.is_none()
            {
                let workload = workloads.first().map(Arc::as_ref);
                return match stateful_set::without_pods(context, &set, name, workload, &mut plan) {
                    Ok(()) => plan,
                    Err(error) => plan.fail(error),
                };
            }
            for workload in workloads {
                without_pods(context, namespace, &workload, &mut plan);
            }
            plan
        }
    }
}

/// The Workloads of a unit: a group's Workload has the group's name, a single pod's Workload is
/// owned by the pod.
fn workloads_of(stores: &Stores, namespace: &str, unit: &Unit, pod: Option<&Arc<Pod>>) -> Vec<Arc<Workload>> {
    match unit {
        Unit::Group { name } => {
            let found = stores.workloads.get(&ObjectKey::namespaced(namespace, name));
            found.into_iter().filter(|workload| status::is_pod_group(workload)).collect()
        }
        Unit::Pod { name } => {
            let uid = pod.map(|pod| pod.uid().unwrap_or_default());
            stores.workloads_of(namespace, &Owner { group: "", kind: "Pod", name, uid: uid.as_deref() })
        }
    }
}

/// Handles a Workload whose pods are gone: it is put on hold if its StatefulSet still exists
/// (scaled to zero), and finished otherwise.
fn without_pods(context: Context<'_>, namespace: &str, workload: &Workload, plan: &mut Plan<Pod>) {
    let mut workload = workload.clone();
    if workload.owner_references().is_empty() && workload.metadata.deletion_timestamp.is_none() {
        // A client created it in advance, for pods that are still to come.
        return;
    }
    let parent = workload.owner_references().iter().find(|owner| owner.kind != "Pod");
    let lives = parent.is_some_and(|owner| {
        let found = context.stores.named_owner(namespace, owner).flatten();
        found.is_some_and(|metadata| metadata.uid.as_deref() == Some(&owner.uid))
    });
    let continues = workload.metadata.deletion_timestamp.is_none() && !status::is_finished(&workload);
    if let Some(set) = parent.filter(|_| continues)
        && replica::without_pods(context, namespace, set, &workload, plan)
    {
        return;
    }
    if lives && continues {
        return stateful_set::put_on_hold(context, workload, plan);
    }
    finish_orphan(context, &mut workload, plan);
    if remove_finalizer(&mut workload) {
        plan.steps.push(Step::PatchWorkload(Box::new(workload)));
    }
}

/// The StatefulSet for which the pod is queued, if any.
pub(super) fn set_of(pod: &Pod) -> Option<&OwnerReference> {
    let parent = pod.annotations().get(annotations::POD_SUSPENDING_PARENT);
    controller_of(&pod.metadata).filter(|_| parent.is_some_and(|parent| parent == stateful_set::PARENT))
}

/// The first of these names, and the number of further ones.
fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Copies labels or annotations of a pod of a group.
///
/// # Errors
/// Another pod of the group has another value.
fn copy_common<'a>(
    copied: &mut BTreeMap<String, String>,
    of_pod: impl Iterator<Item = (&'a String, &'a String)>,
    what: &str,
) -> Result<(), PlanError> {
    for (key, value) in of_pod {
        let known = copied.entry(key.clone()).or_insert_with(|| value.clone());
        if known != value {
            let message = format!("pods of a group must have the same value of {what} {key}: {known:?} and {value:?}");
            return Err(PlanError::Unclear(message));
        }
    }
    Ok(())
}

pub(super) struct Reconcile<'a> {
    pub(super) context: Context<'a>,
    pub(super) namespace: &'a str,
    pub(super) group: Group<'a>,
    pub(super) plan: Plan<Pod>,
}

impl Reconcile<'_> {
    fn run(&mut self, workloads: Vec<Arc<Workload>>) -> Result<(), PlanError> {
        if !self.group.is_group() && group::is_deleting(self.group.first()) {
            // Garbage collection deletes the Workload with the pod.
            self.finalize(self.group.first());
            return Ok(());
        }
        if self.group.is_serving() {
            // The set's controller recreates a pod under the same name after the old pod is
            // deleted.
            let gone = |pod: &&Arc<Pod>| group::is_deleting(pod) || group::is_terminated(pod);
            for pod in self.group.pods().iter().filter(gone) {
                self.finalize(pod);
            }
        }
        if self.follow_queue_of_set() {
            return Ok(());
        }
        if let Some(name) = prebuilt::name(self.group.first(), self.context.gates) {
            return self.with_prebuilt(name);
        }
        let mut workloads = workloads.into_iter();
        let Some(workload) = workloads.next() else { return self.without_workload() };
        for extra in workloads {
            self.delete_workload(&extra);
        }
        self.with_workload((*workload).clone())
    }

    /// Gives waiting pods of a StatefulSet the set's queue. Its controller does not replace pods
    /// that never became ready. Returns true if the plan writes any pod.
    fn follow_queue_of_set(&mut self) -> bool {
        let Some(set) = set_of(self.group.first()) else { return false };
        let found = self.context.stores.named_owner(self.namespace, set).flatten();
        let found = found.filter(|metadata| metadata.uid.as_deref() == Some(&set.uid));
        let Some(queue) = found.and_then(|metadata| metadata.labels?.remove(labels::QUEUE_NAME)) else { return false };
        let waits = |pod: &&Arc<Pod>| group::is_gated(pod) && !group::is_deleting(pod);
        let is_behind = |pod: &&Arc<Pod>| pod.labels().get(labels::QUEUE_NAME) != Some(&queue);
        let behind = self.group.pods().iter().filter(waits).filter(is_behind);
        let moved: Vec<Step<Pod>> = behind
            .map(|pod| {
                let mut pod = (**pod).clone();
                pod.labels_mut().insert(labels::QUEUE_NAME.to_owned(), queue.clone());
                Step::Patch(Box::new(pod))
            })
            .collect();
        let any = !moved.is_empty();
        self.plan.steps.extend(moved);
        any
    }

    fn report(&mut self, event: PlannedEvent) {
        self.plan.steps.push(Step::Event(event));
    }

    /// Reports an error as an event on a waiting pod, unless the plan already contains a warning.
    fn report_error(&mut self, error: &PlanError) {
        if let Some(event) = error.event().filter(|_| !self.plan.warns()) {
            self.report_waiting(event);
        }
    }

    /// Reports an event on the first pod that has not started.
    pub(super) fn report_waiting(&mut self, event: PlannedEvent) {
        let waiting = self.group.pods().iter().find(|pod| !group::is_lost(pod) && !group::is_terminated(pod));
        let about = waiting.unwrap_or(self.group.first());
        self.plan.steps.push(Step::EventAbout(Box::new((**about).clone()), event));
    }

    pub(super) fn write_status(&mut self, workload: &Workload) {
        self.plan.steps.push(Step::PatchWorkloadStatus(Box::new(workload.clone())));
    }

    // -- creating a workload ----------------------------------------------------------------------

    pub(super) fn without_workload(&mut self) -> Result<(), PlanError> {
        if let Some(finished) = self.group.finished() {
            let ended = |pod: &Pod| group::is_terminated(pod) || group::is_lost(pod);
            self.release_run(ended, &finished.message);
            return Ok(());
        }
        // Without a Workload, these pods are not part of a group and need not be counted.
        self.finalize_lost(|_| true);
        if self.group.pods().iter().all(|pod| group::is_lost(pod)) {
            return Ok(());
        }
        if self.group.started().next().is_some() {
            self.stop("NoMatchingWorkload", "missing workload", false);
            return Ok(());
        }
        if let Some(message) = self.name_conflict() {
            // The end of the other Workload triggers the next reconcile.
            self.report_waiting(PlannedEvent::warning(events::WORKLOAD_NAME_CONFLICT, message));
            return Ok(());
        }
        let workload = match self.of_set()? {
            Some(workload) => workload,
            None => match self.pod_sets() {
                Ok(pod_sets) => self.construct(pod_sets)?,
                Err(message) => {
                    // A new pod, or a change to one, triggers the next reconcile.
                    self.report_waiting(PlannedEvent::warning(events::ERR_WORKLOAD_COMPOSE, message));
                    return Ok(());
                }
            },
        };
        let message = format!("Created Workload: {}", ObjectKey::of(&workload));
        self.plan.steps.push(Step::CreateWorkload(Box::new(workload)));
        self.report(PlannedEvent::normal(events::CREATED_WORKLOAD, message));
        Ok(())
    }

    /// The pod sets of a new Workload: those of the pods, or of the templates of a replica whose
    /// workers wait for its leader.
    fn pod_sets(&self) -> Result<Vec<PodSet>, String> {
        let (stores, gates) = (self.context.stores, self.context.gates);
        let ahead = |why| replica::pod_sets_ahead(stores, self.group.first(), gates).unwrap_or(Err(why));
        self.group.pod_sets(gates).or_else(ahead)
    }

    /// A new Workload of a StatefulSet's pods.
    fn of_set(&self) -> Result<Option<Workload>, PlanError> {
        let Some(name) = super::group_name(self.group.first(), self.context.gates) else { return Ok(None) };
        let set = stateful_set::of_group(self.context.stores, self.namespace, name, self.context.gates);
        let Some(set) = set.filter(|set| stateful_set::is_queued(self.context, set)) else { return Ok(None) };
        let mut workload = stateful_set::construct(self.context, &set, name)?;
        self.own(&mut workload);
        Ok(Some(workload))
    }

    /// Why the group cannot have a Workload, if a Workload of its name exists that no pod group
    /// made.
    fn name_conflict(&self) -> Option<String> {
        let name = super::group_name(self.group.first(), self.context.gates)?;
        self.context.stores.workloads.get(&ObjectKey::namespaced(self.namespace, name))?;
        Some(format!(
            "A Workload named {} already exists but is not a pod group workload; this pod group cannot be admitted",
            quote(name)
        ))
    }

    fn construct(&mut self, mut pod_sets: Vec<PodSet>) -> Result<Workload, PlanError> {
        sanitize(&mut pod_sets);
        let first = self.group.first();
        let uid = first.uid().unwrap_or_default();
        let name = match super::group_name(first, self.context.gates) {
            Some(name) => name.to_owned(),
            None => naming::workload_name(&first.name_any(), &uid, &kind(), self.context.gates),
        };
        let mut workload = Workload::named(&name);
        workload.metadata.namespace = Some(self.namespace.to_owned());
        workload.metadata.finalizers = Some(vec![constants::RESOURCE_IN_USE_FINALIZER.to_owned()]);
        let config = self.context.config;
        let (copied_labels, copied_annotations) = (config.label_keys_to_copy(), config.annotations_to_copy());
        for pod in self.group.pods() {
            let of_pod = pod.labels().iter().filter(|(key, _)| copied_labels.contains(key.as_str()));
            copy_common(workload.labels_mut(), of_pod, "label")?;
            let of_pod = pod.annotations().iter().filter(|(key, _)| copied_annotations.contains(key.as_str()));
            copy_common(workload.annotations_mut(), of_pod, "annotation")?;
            for (key, value) in pod.annotations() {
                if copies_annotation(self.context, key) {
                    workload.annotations_mut().entry(key.clone()).or_insert_with(|| value.clone());
                }
            }
        }
        if self.group.is_group() {
            workload.annotations_mut().insert(annotations::IS_GROUP_WORKLOAD.to_owned(), "true".to_owned());
            let set = set_of(first).map(|set| set.uid.clone());
            if let Some(uid) = set.or_else(|| Some(replica::set_of(self.context.stores, first)?.uid)) {
                workload.labels_mut().insert(labels::JOB_UID.to_owned(), uid);
            }
        } else {
            workload.labels_mut().insert(labels::JOB_UID.to_owned(), uid);
        }
        self.own(&mut workload);
        workload.spec.queue_name = self.group.queue().map_err(PlanError::Other)?.to_owned();
        let label = |key: &str| first.labels().get(key).map(String::as_str);
        workload.spec.maximum_execution_time_seconds =
            label(labels::MAX_EXEC_TIME_SECONDS).and_then(|text| text.parse().ok());
        match priority::extract(self.context.stores, label(labels::PRIORITY_CLASS), None, &pod_sets) {
            Ok(priority) => {
                workload.spec.priority = Some(priority.value);
                workload.spec.priority_class_ref = priority.class;
            }
            Err(error) => {
                if let priority::PriorityError::WorkloadPriorityClassNotFound(_) = &error {
                    self.report(PlannedEvent::warning(events::WORKLOAD_PRIORITY_CLASS_NOT_FOUND, error.to_string()));
                }
                return Err(PlanError::Other(error.to_string()));
            }
        }
        workload.spec.pod_sets = pod_sets;
        Ok(workload)
    }

    /// Adds the pods, and the StatefulSet that owns them, as owners of the Workload, so that it is
    /// deleted after the last of them. Returns true if any were added.
    pub(super) fn own(&self, workload: &mut Workload) -> bool {
        let alone = !self.group.is_group();
        let owners = workload.metadata.owner_references.get_or_insert_default();
        let before = owners.len();
        for pod in self.group.pods() {
            let set =
                set_of(pod).map(|set| OwnerReference { controller: None, block_owner_deletion: None, ..set.clone() });
            if let Some(set) = set.or_else(|| replica::set_of(self.context.stores, pod))
                && owners.iter().all(|owner| owner.uid != set.uid)
            {
                owners.push(set);
            }
            let uid = pod.uid().unwrap_or_default();
            if owners.iter().any(|owner| owner.uid == uid) || group::is_deleting(pod) {
                continue;
            }
            owners.push(if alone { owned_by(pod.as_ref()) } else { shared_by(pod.as_ref()) });
        }
        owners.len() != before
    }

    fn delete_workload(&mut self, workload: &Workload) {
        let mut gone = workload.clone();
        if remove_finalizer(&mut gone) {
            self.plan.steps.push(Step::PatchWorkload(Box::new(gone.clone())));
        }
        let message = format!("Deleted not matching Workload: {}", ObjectKey::of(&gone));
        self.plan.steps.push(Step::DeleteWorkload(Box::new(gone)));
        self.report(PlannedEvent::normal(events::DELETED_WORKLOAD, message));
    }

    // -- reconciling pods with their workload -----------------------------------------------------

    pub(super) fn with_workload(&mut self, mut workload: Workload) -> Result<(), PlanError> {
        // The run has ended, or ends now.
        if status::is_finished(&workload) {
            self.with_finished(workload);
            return Ok(());
        }
        if workload.metadata.deletion_timestamp.is_some() {
            self.stop("WorkloadDeleted", "Workload is deleted", true);
            self.finalize_all();
            if remove_finalizer(&mut workload) {
                self.plan.steps.push(Step::PatchWorkload(Box::new(workload)));
            }
            return Ok(());
        }
        if let Some(finished) = self.group.finished() {
            let reason = if finished.success { finished::SUCCEEDED } else { finished::FAILED };
            self.finish(workload, reason, &finished.message);
            return Ok(());
        }
        // The pods must be those that the workload counts.
        if status::is_on_hold(&workload) {
            self.requeue_scaled_up(workload);
            return Ok(());
        }
        if self.rename_roles(&workload) {
            return Ok(());
        }
        let surplus = self.group.surplus(&workload);
        if !self.group.fits(&workload, &surplus.kept) {
            self.stop("NoMatchingWorkload", "No matching Workload", false);
            self.delete_workload(&workload);
            return Err(PlanError::NoMatchingWorkloads);
        }
        // The workload follows its pods: owners, labels, conditions. New pods become owners before
        // others are released: the garbage collector deletes a Workload without owners.
        if self.group.is_group() && self.own(&mut workload) {
            let message = format!("Updated owner references of Workload: {}", ObjectKey::of(&workload));
            self.plan.steps.push(Step::PatchWorkload(Box::new(workload.clone())));
            self.report(PlannedEvent::normal(events::OWNER_REFERENCES_ADDED, message));
        }
        self.remove_surplus(&surplus);
        if self.follow_labels(&mut workload)? {
            return Ok(());
        }
        if self.sync_status(&mut workload, surplus.absent) {
            self.report_waiting_for_replacement(&surplus.kept);
            self.write_status(&workload);
            return Ok(());
        }
        // The pods follow the workload: stopped by an eviction, started by an admission.
        if status::is_evicted(&workload) {
            self.handle_eviction(workload);
            return Ok(());
        }
        if status::is_admitted(&workload) {
            if self.group.is_waiting() {
                self.start(workload);
            }
            return Ok(());
        }
        if self.group.started().next().is_some() {
            self.stop("NotAdmitted", "Not admitted by cluster queue", false);
            return Ok(());
        }
        // Neither admitted nor started: the workload waits in the queue that the pods name.
        let queue = self.group.queue().map_err(PlanError::Other)?;
        if workload.spec.queue_name != queue && !status::has_quota_reservation(&workload) {
            workload.spec.queue_name = queue.to_owned();
            self.plan.steps.push(Step::PatchWorkload(Box::new(workload)));
            return Ok(());
        }
        if let Some(messages) = start::check_messages(&workload) {
            self.report(PlannedEvent::normal(events::UPDATED_ADMISSION_CHECK, messages));
        }
        Ok(())
    }

    /// Writes that the run has ended, and releases its pods.
    fn finish(&mut self, mut workload: Workload, reason: &str, message: &str) {
        if status::finish(&mut workload, reason, message, self.context.now) {
            self.write_status(&workload);
            let message = format!("Workload '{}' is declared finished", ObjectKey::of(&workload));
            self.report(PlannedEvent::normal(events::FINISHED_WORKLOAD, message));
        }
        self.finalize_all();
    }

    /// Deletes excess pods, and releases those that others have replaced.
    fn remove_surplus(&mut self, surplus: &Surplus) {
        for pod in &surplus.excess {
            self.finalize(pod);
            if !group::is_deleting(pod) {
                self.plan.steps.push(Step::Delete(Box::new((**pod).clone())));
                let event = PlannedEvent::normal(events::EXCESS_POD_DELETED, "Excess pod deleted");
                self.plan.steps.push(Step::EventAbout(Box::new((**pod).clone()), event));
            }
        }
        for pod in &surplus.replaced {
            self.finalize(pod);
        }
    }

    /// Gives waiting pods the names that the Workload has for their roles. Returns true if the plan
    /// writes any pod.
    fn rename_roles(&mut self, workload: &Workload) -> bool {
        let misnamed = if self.group.is_group() { self.group.misnamed(workload) } else { Vec::new() };
        for (pod, role) in &misnamed {
            let mut pod = (***pod).clone();
            pod.annotations_mut().insert(annotations::ROLE_HASH.to_owned(), (*role).to_owned());
            self.plan.steps.push(Step::Patch(Box::new(pod)));
        }
        !misnamed.is_empty()
    }

    /// Handles a finished Workload, whose run has ended. Other pods may have been created under the
    /// group's name; they form the next run once all pods of this run are deleted.
    fn with_finished(&mut self, mut workload: Workload) {
        let owners: BTreeSet<String> = workload.owner_references().iter().map(|owner| owner.uid.clone()).collect();
        let is_of_run = |pod: &Pod| pod.uid().is_some_and(|uid| owners.contains(&uid));
        let pods = self.group.pods();
        let waits = |pod: &Pod| group::is_gated(pod) && !group::is_deleting(pod);
        if workload.metadata.deletion_timestamp.is_some() {
            for pod in pods.iter().filter(|pod| is_of_run(pod)) {
                self.finalize(pod);
            }
            if remove_finalizer(&mut workload) {
                self.plan.steps.push(Step::PatchWorkload(Box::new(workload)));
            }
        } else if self.group.is_group() && !pods.iter().any(|pod| is_of_run(pod)) && pods.iter().any(|pod| waits(pod)) {
            self.delete_workload(&workload);
        } else {
            let how = status::condition(&workload, conditions::FINISHED);
            let how = how.map(|how| format!("{}: {}", how.reason, how.message)).unwrap_or_default();
            self.release_run(is_of_run, &how);
        }
    }

    /// Releases the pods of a run that has ended. Reports on pods that are still gated why they
    /// will not start.
    fn release_run(&mut self, is_of_run: impl Fn(&Pod) -> bool, how: &str) {
        let pods = self.group.pods();
        let of_run: Vec<String> = pods.iter().filter(|pod| is_of_run(pod)).map(|pod| pod.name_any()).collect();
        for pod in pods.iter().filter(|pod| is_of_run(pod)) {
            self.finalize(pod);
        }
        self.finalize_lost(|pod| !is_of_run(pod));
        let name = self.group.name();
        for pod in pods.iter().filter(|pod| group::is_gated(pod) && !group::is_deleting(pod)) {
            let event = if is_of_run(pod) {
                let message = format!("The workload of {name} has finished ({how}): the pod will not be started");
                PlannedEvent::warning(events::WORKLOAD_FINISHED, message)
            } else {
                let message = format!(
                    "{name} has finished ({how}), and this pod was not part of that run. Delete the pods of that run ({}), \
                     or create this pod in a group with another name",
                    some_of(&of_run)
                );
                PlannedEvent::warning(events::POD_GROUP_FINISHED, message)
            };
            self.plan.steps.push(Step::EventAbout(Box::new((**pod).clone()), event));
        }
    }

    /// Reports on pods that are being deleted why their finalizer stays until a replacement is
    /// created.
    fn report_waiting_for_replacement(&mut self, kept: &[Arc<Pod>]) {
        let name = self.group.name();
        for pod in kept.iter().filter(|pod| group::is_deleting(pod) && group::is_lost(pod)) {
            let message = format!(
                "The pod is kept until a replacement is created in {name}; to end the group, delete its Workload"
            );
            let event = PlannedEvent::normal(events::WAITING_FOR_REPLACEMENT, message);
            self.plan.steps.push(Step::EventAbout(Box::new((**pod).clone()), event));
        }
    }

    /// Requeues a group whose set was scaled up from zero, perhaps to another size.
    fn requeue_scaled_up(&mut self, workload: Workload) {
        let mut pod_sets = match self.group.pod_sets(self.context.gates) {
            Ok(pod_sets) => pod_sets,
            Err(message) => return self.report_waiting(PlannedEvent::warning(events::ERR_WORKLOAD_COMPOSE, message)),
        };
        sanitize(&mut pod_sets);
        stateful_set::end_hold(self.context, workload, pod_sets, &mut self.plan);
    }

    /// Copies the priority class label and the `admission-gated-by` annotation to the Workload.
    /// They may change at any time. Returns true if the Workload changed.
    fn follow_labels(&mut self, workload: &mut Workload) -> Result<bool, PlanError> {
        let first = self.group.first();
        let before = workload.clone();
        if let Some(label) = first.labels().get(labels::PRIORITY_CLASS) {
            let follows = match &workload.spec.priority_class_ref {
                Some(class) => class.kind == constants::WORKLOAD_PRIORITY_CLASS_KIND && class.name != *label,
                None => !status::has_quota_reservation(workload),
            };
            if follows {
                let priority = priority::of_workload_class(self.context.stores, label);
                let priority = priority.map_err(|error| PlanError::Other(error.to_string()))?;
                workload.spec.priority = Some(priority.value);
                workload.spec.priority_class_ref = priority.class;
            }
        }
        const GATED: &str = annotations::ADMISSION_GATED_BY;
        let gated = first.annotations().get(GATED).cloned();
        if self.context.gates.on(Gate::AdmissionGatedBy) && workload.annotations().get(GATED) != gated.as_ref() {
            match gated {
                Some(value) => workload.annotations_mut().insert(GATED.to_owned(), value),
                None => workload.annotations_mut().remove(GATED),
            };
        }
        if *workload == before {
            return Ok(false);
        }
        self.plan.steps.push(Step::PatchWorkload(Box::new(workload.clone())));
        self.report(PlannedEvent::normal(
            events::UPDATED_WORKLOAD,
            format!("Updated workload: {}", ObjectKey::of(workload)),
        ));
        Ok(true)
    }

    /// Updates the Workload's status from the pods. Returns true if anything changed.
    fn sync_status(&self, workload: &mut Workload, absent: usize) -> bool {
        let now = self.context.now;
        let mut changed = false;
        if self.context.gates.on(Gate::ReclaimablePods)
            && let Some(reclaimable) = self.group.reclaimable()
        {
            changed |= status::set_reclaimable_pods(workload, reclaimable);
        }
        // A group with lost pods cannot run; it is not queued until they are replaced.
        if self.waits_for_replacements() {
            const TYPE: &str = conditions::WAITING_FOR_REPLACEMENT_PODS;
            let known = status::condition(workload, TYPE).map(|condition| condition.status == "True");
            let evicted = status::true_condition(workload, conditions::EVICTED).cloned();
            match (absent > 0, evicted) {
                (true, Some(evicted)) => {
                    changed |= status::set(workload, TYPE, true, &evicted.reason, &evicted.message, now);
                }
                (true, None) if known != Some(true) => {
                    changed |=
                        status::set(workload, TYPE, true, "PodsFailed", "Some Failed pods need replacement", now);
                }
                (false, _) if known == Some(true) => {
                    let message = "No pods need replacement";
                    changed |= status::set(workload, TYPE, false, conditions::PODS_READY, message, now);
                }
                _ => {}
            }
        }
        if self.context.config.pods_ready().is_some() {
            changed |= readiness::sync(workload, || self.group.is_ready(), now);
        }
        changed
    }

    /// True if the group's owner does not replace lost pods by itself.
    fn waits_for_replacements(&self) -> bool {
        self.group.is_group() && !self.group.is_serving()
    }

    fn start(&mut self, mut workload: Workload) {
        let infos = match start::infos(self.context, &workload, false) {
            Ok(infos) => infos,
            Err(error) if error.is_permanent() => {
                // The next reconcile reports on the pods that the workload finished.
                if status::finish(&mut workload, finished::FAILED_TO_START, &error.to_string(), self.context.now) {
                    self.write_status(&workload);
                }
                return;
            }
            Err(error) => {
                self.plan.error = Some(PlanError::Other(error.to_string()));
                return;
            }
        };
        let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
        let queue = admission.map(|admission| admission.cluster_queue.clone()).unwrap_or_default();
        let placed = |set: &str| {
            let sets = admission.iter().flat_map(|admission| &admission.pod_set_assignments);
            sets.filter(|it| it.name == set).any(|it| it.topology_assignment.is_some())
        };
        let mut started = Vec::new();
        for pod in self.group.pods().iter().filter(|pod| group::is_gated(pod) && !group::is_deleting(pod)) {
            let set = group::set_name(&self.group, pod);
            let Some(info) = infos.iter().find(|info| info.name == set) else { continue };
            match ungated(pod, info, placed(set), self.context) {
                Ok(pod) => started.push(pod),
                Err(error) => {
                    if status::finish(&mut workload, finished::FAILED_TO_START, &error, self.context.now) {
                        self.write_status(&workload);
                    }
                    return;
                }
            }
        }
        for pod in started {
            self.plan.steps.push(Step::Patch(Box::new(pod.clone())));
            let event = PlannedEvent::normal(events::STARTED, format!("Admitted by clusterQueue {queue}"));
            self.plan.steps.push(Step::EventAbout(Box::new(pod), event));
        }
    }

    /// Handles an eviction: deletes the pods and releases the quota once none of them runs (§19.2).
    fn handle_eviction(&mut self, mut workload: Workload) {
        let Some(evicted) = status::true_condition(&workload, conditions::EVICTED).cloned() else { return };
        self.stop(&format!("WorkloadEvictedDueTo{}", evicted.reason), &evicted.message, false);
        if !self.group.is_active(self.context.gates)
            && status::has_quota_reservation(&workload)
            && status::release_after_eviction(&mut workload, self.context.gates, self.context.now)
        {
            // The back-off may end before the pods are gone.
            if self.waits_for_replacements() && self.group.absent_once_stopped(&workload) > 0 {
                const TYPE: &str = conditions::WAITING_FOR_REPLACEMENT_PODS;
                status::set(&mut workload, TYPE, true, &evicted.reason, &evicted.message, self.context.now);
            }
            self.write_status(&workload);
        }
        let retention = self.context.config.object_retention_policies.as_ref();
        let after = retention.and_then(|r| r.workloads.as_ref()).and_then(|w| w.after_deactivated_by_kueue);
        let by_kueue = evicted.reason.starts_with(eviction::DEACTIVATED_DUE_TO);
        if let Some(after) = after.filter(|_| by_kueue && !status::is_active(&workload)) {
            let elapsed = self.context.now.duration_since(evicted.last_transition_time.0);
            let elapsed = Duration::try_from(elapsed).unwrap_or_default();
            if elapsed < after {
                return self.plan.requeue_within(after - elapsed);
            }
            for pod in self.group.pods().iter().filter(|pod| !group::is_deleting(pod)) {
                self.plan.steps.push(Step::Delete(Box::new((**pod).clone())));
            }
            self.report(PlannedEvent::normal(events::DELETED, "Deleted pods: deactivation retention period expired"));
        }
    }

    /// Deletes the pods that have started and not ended; with `waiting`, deletes all pods. Each pod
    /// first gets a condition with the reason, so that its end does not count as a failure of the
    /// pod.
    pub(super) fn stop(&mut self, reason: &str, message: &str, waiting: bool) {
        for pod in self.group.pods() {
            if group::is_deleting(pod) || (!waiting && (group::is_gated(pod) || group::is_terminated(pod))) {
                continue;
            }
            if let Some(marked) = self.marked(pod, reason, message) {
                self.plan.steps.push(Step::PatchStatus(Box::new(marked)));
            }
            self.plan.steps.push(Step::Delete(Box::new((**pod).clone())));
            let event = PlannedEvent::normal(events::STOPPED, message);
            self.plan.steps.push(Step::EventAbout(Box::new((**pod).clone()), event));
        }
    }

    fn marked(&self, pod: &Pod, reason: &str, message: &str) -> Option<Pod> {
        const TYPE: &str = "TerminationTarget";
        let mut pod = pod.clone();
        let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
        if conditions.iter().any(|it| it.type_ == TYPE && it.status == "True") {
            return None;
        }
        conditions.retain(|it| it.type_ != TYPE);
        conditions.push(PodCondition {
            type_: TYPE.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_transition_time: Some(Time(self.context.now)),
            ..PodCondition::default()
        });
        Some(pod)
    }

    fn finalize_all(&mut self) {
        for pod in self.group.pods() {
            self.finalize(pod);
        }
    }

    /// Removes the finalizer from those of these pods that will not run any more.
    fn finalize_lost(&mut self, among: impl Fn(&Pod) -> bool) {
        for pod in self.group.pods().iter().filter(|pod| group::is_lost(pod) && among(pod)) {
            self.finalize(pod);
        }
    }

    /// Removes our finalizer from a pod that has been counted.
    fn finalize(&mut self, pod: &Pod) {
        if !pod.finalizers().iter().any(|finalizer| finalizer == constants::POD_FINALIZER) {
            return;
        }
        let mut pod = pod.clone();
        pod.finalizers_mut().retain(|finalizer| finalizer != constants::POD_FINALIZER);
        if pod.finalizers().is_empty() {
            pod.metadata.finalizers = None;
        }
        self.plan.steps.push(Step::Patch(Box::new(pod)));
    }
}

/// The pod without the admission gate and with the additions of admission. Gates cannot be added to
/// an existing pod, so each has a topology gate from creation; it is kept only if a topology
/// assignment exists.
fn ungated(pod: &Pod, info: &PodSetInfo, placed: bool, context: Context<'_>) -> Result<Pod, String> {
    let mut pod = pod.clone();
    podset::remove_gate(&mut pod, constants::ADMISSION_GATE);
    if !placed {
        podset::remove_gate(&mut pod, constants::TOPOLOGY_GATE);
    }
    let info = PodSetInfo { scheduling_gates: Vec::new(), ..info.clone() };
    let mut template = PodTemplateSpec { metadata: Some(pod.metadata.clone()), spec: pod.spec.take() };
    podset::merge(&mut template, &info, context.gates).map_err(|error| error.to_string())?;
    if let Some(metadata) = template.metadata {
        pod.metadata = metadata;
    }
    pod.spec = template.spec;
    Ok(pod)
}
