//! Reconciling one job: which Workload represents it, and the next writes to either (semantics §17,
//! §19, §20).
//!
//! The function is pure: it reads [`Stores`] and returns a plan. It checks conditions in a fixed
//! order and stops at the first one that requires a write on which the later checks depend.

use std::sync::Arc;
use std::time::Duration;

use berth_api::berth::SUBMITTED_BY_ANNOTATION;
use berth_api::kueue::reasons::{admission, eviction, finished};
use berth_api::kueue::v1beta2::{PodSet, Workload};
use berth_api::kueue::{annotations, constants, events, labels};
use berth_apimachinery::field::quote;
use berth_runtime::{ObjectKey, owned_by};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

use super::ancestors::{DEPTH_MAX, Lookup, managed_ancestor};
use super::equivalence::same_pod_sets;
use super::slices::{self, SliceState};
use super::unqueued::{self, Unqueued};
use super::{Job, is_elastic, kind_of, naming, prebuilt_workload, queue_name, readiness, sanitize, start};
use crate::conditions;
use crate::configuration::Config;
use crate::gates::{Gate, Gates};
use crate::plan::{Plan, PlanError, PlannedEvent, Step};
use crate::podset::{self, PodSetInfo};
use crate::priority;
use crate::stores::{Owner, Stores, controller_of};
use crate::webhooks::held;
use crate::workload::status;

/// The inputs of a reconcile other than the object itself.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Caches of the other objects.
    pub stores: &'a Stores,
    /// Configuration.
    pub config: &'a Config,
    /// Feature gates.
    pub gates: &'a Gates,
    /// Current time.
    pub now: Timestamp,
}

/// Maximum length of a label value.
pub(super) const LABEL_VALUE_MAX: usize = 63;

/// The plan for the job with this key; `job` is `None` when the object no longer exists.
pub fn reconcile<J: Job>(context: Context<'_>, key: &ObjectKey, job: Option<&J>) -> Plan<J> {
    let mut plan = Plan::default();
    let job = match job {
        Some(job) if job.meta().deletion_timestamp.is_none() => job,
        Some(job) if job.is_needed_until_gone(context.gates) => return plan,
        gone => {
            finish_workloads(context, key, gone, &mut plan);
            return plan;
        }
    };
    if held::is_unsettled(job) {
        match held::settle_job(context, job) {
            Ok((settled, event)) => {
                plan.steps.push(Step::Patch(Box::new(settled)));
                plan.steps.extend(event.map(Step::Event));
            }
            Err(error) => {
                plan.steps.extend(error.event().map(Step::Event));
                return plan.fail(error);
            }
        }
        return plan;
    }
    let config = context.config;
    let kind = kind_of::<J>();
    let owner_of = |reference: &OwnerReference| lookup(context.stores, &key.namespace, reference);
    let (part, reason) = match managed_ancestor((&kind.group, &kind.kind), job.meta(), config, owner_of) {
        Ok(None) => (None, unqueued::reason(context, key, job)),
        Ok(Some(ancestor)) => {
            let owner = format!("{} {}", ancestor.reference.kind, ancestor.reference.name);
            (Some(ancestor), unqueued::reason_of_part(context, &key.namespace, owner).map(Some))
        }
        Err(error) => {
            if error == PlanError::NestingTooDeep {
                let message = format!(
                    "Terminated search for Kueue-managed Job because ancestor depth exceeded limit of {DEPTH_MAX}"
                );
                plan.steps.push(Step::Event(PlannedEvent::warning(events::JOB_NESTING_TOO_DEEP, message)));
            }
            plan.steps.extend(error.event().map(Step::Event));
            return plan.fail(error);
        }
    };
    match reason {
        Err(error) => return plan.fail(error),
        Ok(Some(Unqueued::ByNamespace)) => return plan,
        // Workloads that already hold quota keep it until they end: releasing it now would let it
        // be used twice.
        Ok(Some(Unqueued::ByJob(why))) if !unqueued::delete_workloads(context, key, job, &why, &mut plan) => {
            if let Some(ancestor) = &part {
                unqueued::follow_ancestor(context, &key.namespace, job, ancestor, &mut plan);
            }
            return plan;
        }
        Ok(_) => {}
    }
    let mut job = job.clone();
    job.resolve(context.stores);
    Reconcile { context, key, job, plan }.run()
}

/// Looks up the metadata of an owner.
pub fn lookup(stores: &Stores, namespace: &str, reference: &OwnerReference) -> Lookup {
    match stores.named_owner(namespace, reference) {
        None => Lookup::Unwatched,
        Some(None) => Lookup::Missing,
        Some(Some(metadata)) if metadata.uid.as_deref().unwrap_or("") == reference.uid => {
            Lookup::Found(Box::new(metadata))
        }
        Some(Some(_)) => Lookup::Forged,
    }
}

/// The job is deleted or being deleted: finishes its workloads and removes their finalizers.
fn finish_workloads<J: Job>(context: Context<'_>, key: &ObjectKey, job: Option<&J>, plan: &mut Plan<J>) {
    let kind = kind_of::<J>();
    let owner =
        Owner { group: &kind.group, kind: &kind.kind, name: &key.name, uid: job.and_then(|j| j.meta().uid.as_deref()) };
    for workload in context.stores.workloads_of(&key.namespace, &owner) {
        let mut workload = (*workload).clone();
        // A workload that is itself being deleted needs no status write.
        if workload.metadata.deletion_timestamp.is_none() {
            finish_orphan(context, &mut workload, plan);
        }
        if remove_finalizer(&mut workload) {
            plan.steps.push(Step::PatchWorkload(Box::new(workload)));
        }
    }
}

/// Finishes a workload without an owner.
pub fn finish_orphan<J>(context: Context<'_>, workload: &mut Workload, plan: &mut Plan<J>) {
    let message = "The workload's owner no longer exists";
    if context.gates.on(Gate::FinishOrphanedWorkloads)
        && status::finish(workload, finished::OWNER_NOT_FOUND, message, context.now)
    {
        plan.steps.push(Step::PatchWorkloadStatus(Box::new(workload.clone())));
    }
}

/// True if the pod set's template has the label that admission adds.
fn is_marked(pod_set: &PodSet) -> bool {
    let labels = pod_set.template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
    labels.is_some_and(|labels| labels.contains_key(labels::POD_SET))
}

/// True if a Workload gets this annotation of its job.
pub(super) fn copies_annotation(context: Context<'_>, key: &str) -> bool {
    key.starts_with(annotations::PROVISIONING_REQUEST_PREFIX)
        || context.config.annotations_to_copy().contains(key)
        || key == SUBMITTED_BY_ANNOTATION
        || (key == annotations::ADMISSION_GATED_BY && context.gates.on(Gate::AdmissionGatedBy))
}

/// Removes our finalizer. Returns true if it was present.
pub(crate) fn remove_finalizer(object: &mut impl Resource) -> bool {
    let finalizers = object.meta_mut().finalizers.get_or_insert_default();
    let before = finalizers.len();
    finalizers.retain(|finalizer| finalizer != constants::RESOURCE_IN_USE_FINALIZER);
    let removed = finalizers.len() != before;
    if finalizers.is_empty() {
        object.meta_mut().finalizers = None;
    }
    removed
}

struct Reconcile<'a, J> {
    context: Context<'a>,
    key: &'a ObjectKey,
    job: J,
    plan: Plan<J>,
}

/// The continuation of a reconcile after a step.
enum Next<T> {
    Go(T),
    Stop,
}

impl<J: Job> Reconcile<'_, J> {
    fn run(mut self) -> Plan<J> {
        let workload = match self.ensure_one_workload() {
            Ok(Next::Go(workload)) => workload,
            Ok(Next::Stop) => return self.plan,
            Err(error) => return self.fail_with_event(error),
        };
        let done = match workload {
            Some(workload) => self.with_workload(workload),
            None => self.without_workload(),
        };
        match done {
            Ok(()) => match self.plan.error.take() {
                Some(error) => self.fail_with_event(error),
                None => self.plan,
            },
            Err(error) => self.fail_with_event(error),
        }
    }

    /// Fails the plan, and reports the error as an event on the job unless the job has finished.
    fn fail_with_event(mut self, error: PlanError) -> Plan<J> {
        if let Some(event) = error.event().filter(|_| self.job.finished().is_none() && !self.plan.warns()) {
            self.report(event);
        }
        self.plan.fail(error)
    }

    fn report(&mut self, event: PlannedEvent) {
        self.plan.steps.push(Step::Event(event));
    }

    fn write_status(&mut self, workload: &Workload) {
        self.plan.steps.push(Step::PatchWorkloadStatus(Box::new(workload.clone())));
    }

    /// True if the condition PodsReady is maintained.
    fn tracks_readiness(&self) -> bool {
        self.context.config.pods_ready().is_some()
    }

    // -- which workload ---------------------------------------------------------------------------

    fn ensure_one_workload(&mut self) -> Result<Next<Option<Workload>>, PlanError> {
        if let Some(name) = prebuilt_workload(&self.job, self.context.gates).map(str::to_owned) {
            return self.ensure_prebuilt(&name);
        }
        let kind = kind_of::<J>();
        let name = self.job.name_any();
        let uid = self.job.meta().uid.clone();
        let owner =
            Owner { group: &kind.group, kind: &kind.kind, name: &name, uid: Some(uid.as_deref().unwrap_or("")) };
        let owned = self.context.stores.workloads_of(&self.key.namespace, &owner);
        if is_elastic(&self.job, self.context.gates)
            && let Some(next) = self.ensure_slice(&owned)?
        {
            return Ok(next);
        }
        let pod_sets = match self.pod_sets() {
            Ok(pod_sets) => pod_sets,
            // The pod sets cannot be computed now. A workload that is ending does not need them.
            Err(error) => {
                let ending = owned.into_iter().filter(|workload| self.is_ending(workload));
                let ending = ending.min_by_key(|workload| status::is_finished(workload)).ok_or(error)?;
                return Ok(Next::Go(Some((*ending).clone())));
            }
        };
        let mut matching: Option<Arc<Workload>> = None;
        let mut others: Vec<Arc<Workload>> = Vec::new();
        for workload in owned {
            if matching.is_none() && self.is_equivalent(&workload, &pod_sets) {
                matching = Some(workload);
            } else {
                others.push(workload);
            }
        }
        let only = (others.len() == 1 && matching.is_none()).then(|| others[0].clone());
        let mut update = None;
        if matching.is_none() && self.job.is_suspended() && self.job.finished().is_none() {
            let position = others.iter().position(|w| !status::has_quota_reservation(w) && !status::is_finished(w));
            update = position.map(|position| others.remove(position));
        }
        if matching.is_none() && self.needs_stop(only.as_deref(), Some(&pod_sets)) {
            let message = match &only {
                Some(_) => "No matching Workload; restoring pod templates according to existent Workload",
                None => "Missing Workload; unable to restore pod templates",
            };
            let was_suspended = self.job.is_suspended();
            // The Workload records the original templates, so it is kept until they are restored.
            if !self.stop(only.as_deref(), message) || (was_suspended && !self.plan.steps.is_empty()) {
                return Ok(Next::Stop);
            }
        }
        let deleted = others.len();
        for other in others {
            let mut gone = (*other).clone();
            if remove_finalizer(&mut gone) {
                self.plan.steps.push(Step::PatchWorkload(Box::new(gone.clone())));
            }
            let message = format!("Deleted not matching Workload: {}", ObjectKey::of(&gone));
            self.plan.steps.push(Step::DeleteWorkload(Box::new(gone)));
            self.report(PlannedEvent::normal(events::DELETED_WORKLOAD, message));
        }
        if deleted > 0 {
            return Err(match (&matching, &update) {
                (None, None) => PlanError::NoMatchingWorkloads,
                _ => PlanError::ExtraWorkloads,
            });
        }
        if let Some(workload) = update {
            let workload = self.update_to_match(&workload, pod_sets)?;
            return Ok(Next::Go(Some(workload)));
        }
        Ok(Next::Go(matching.map(|workload| (*workload).clone())))
    }

    /// Adopts the prebuilt Workload that the job names. It is never created here, and never updated
    /// to match the job.
    fn ensure_prebuilt(&mut self, name: &str) -> Result<Next<Option<Workload>>, PlanError> {
        let found = self.context.stores.workloads.get(&ObjectKey::namespaced(&self.key.namespace, name));
        let Some(workload) = found else {
            if !self.job.is_suspended() && self.job.finished().is_none() {
                self.stop(None, "missing workload");
            }
            let message = format!(
                "Workload {name}, named in {}, does not exist; the job stays suspended until it is created",
                labels::PREBUILT_WORKLOAD
            );
            self.report(PlannedEvent::warning(events::PREBUILT_WORKLOAD_NOT_FOUND, message));
            return Err(PlanError::PrebuiltWorkloadNotFound);
        };
        let mut workload = (*workload).clone();
        match controller_of(workload.meta()) {
            Some(owner) if Some(owner.uid.as_str()) != self.job.meta().uid.as_deref() => {
                return Err(PlanError::Other(format!(
                    "workload {name} is already owned by {} {}",
                    owner.kind, owner.name
                )));
            }
            Some(_) => {}
            None => {
                self.own(&mut workload);
                self.plan.steps.push(Step::PatchWorkload(Box::new(workload.clone())));
            }
        }
        let pod_sets = match self.pod_sets() {
            Err(_) if self.is_ending(&workload) => return Ok(Next::Go(Some(workload))),
            pod_sets => pod_sets?,
        };
        if !status::is_finished(&workload) && !self.is_equivalent(&workload, &pod_sets) {
            if self.needs_stop(Some(&workload), Some(&pod_sets)) && !self.stop(Some(&workload), "missing workload") {
                return Ok(Next::Stop);
            }
            const OUT_OF_SYNC: &str = "The prebuilt workload is out of sync with its user job";
            if status::finish(&mut workload, finished::OUT_OF_SYNC, OUT_OF_SYNC, self.context.now) {
                self.write_status(&workload);
            }
            // The next reconcile reports that the Workload has finished, and therefore why the job
            // stays suspended.
            return Ok(Next::Stop);
        }
        Ok(Next::Go(Some(workload)))
    }

    /// Finds the slice that represents an elastic job. Growth creates a new slice in addition to
    /// the admitted one. Any other change of size updates the workload in place (§13.1). Returns
    /// `None` when the job changed in more than its size; it is then matched like any other job.
    fn ensure_slice(&mut self, owned: &[Arc<Workload>]) -> Result<Option<Next<Option<Workload>>>, PlanError> {
        let pod_sets = self.pod_sets()?;
        let open = slices::not_finished(owned);
        let active = slices::normalize(&open);
        let replaced = (finished::WORKLOAD_SLICE_REPLACED, "Replaced to accommodate a new workload slice");
        let out_of_sync = (finished::OUT_OF_SYNC, "The workload slice is out of sync with its parent job");
        let why = |slice: &Workload| if active.is_replaced(slice) { replaced } else { out_of_sync };
        // The pods of an evicted slice use its quota until they end.
        let evicted = active.evicted.iter().filter(|_| !self.job.is_active()).map(|slice| (slice, why(slice)));
        let ended = active.replaced.iter().map(|slice| (slice, replaced));
        let ended = ended.chain(active.extra.iter().map(|slice| (slice, out_of_sync))).chain(evicted);
        let ended: Vec<_> = ended.collect();
        for (slice, (reason, message)) in ended {
            let mut slice = (**slice).clone();
            status::finish(&mut slice, reason, message, self.context.now);
            self.write_status(&slice);
        }
        match slices::ensure(&open, &active, &pod_sets) {
            SliceState::Missing => {
                let like = owned.iter().find(|w| self.is_equivalent(w, &pod_sets)).map(|w| (**w).clone());
                Ok(Some(Next::Go(like)))
            }
            SliceState::Incompatible => Ok(None),
            SliceState::Current(newest) => {
                let mut newest = (*newest).clone();
                self.follow_priority_label(&mut newest)?;
                if let Some(kept) = &active.kept {
                    self.follow_priority_label(&mut (**kept).clone())?;
                }
                Ok(Some(Next::Go(Some(newest))))
            }
            SliceState::Resized(newest) => {
                self.plan.steps.push(Step::PatchWorkload(newest.clone()));
                Ok(Some(Next::Go(Some(*newest))))
            }
            SliceState::Replace(replaced) => {
                let mut replaced = (*replaced).clone();
                self.follow_priority_label(&mut replaced)?;
                let mut slice = self.construct(pod_sets)?;
                let annotations = slice.metadata.annotations.get_or_insert_default();
                let first = replaced.annotations().get(annotations::WORKLOAD_SLICE_NAME).cloned();
                annotations
                    .insert(annotations::WORKLOAD_SLICE_NAME.to_owned(), first.unwrap_or_else(|| replaced.name_any()));
                annotations.insert(
                    annotations::WORKLOAD_SLICE_REPLACEMENT_FOR.to_owned(),
                    ObjectKey::of(&replaced).to_string(),
                );
                self.create(slice);
                Ok(Some(Next::Stop))
            }
        }
    }

    fn pod_sets(&self) -> Result<Vec<PodSet>, PlanError> {
        let mut pod_sets = self.job.pod_sets(self.context.gates).map_err(PlanError::Unclear)?;
        if is_elastic(&self.job, self.context.gates) {
            self.job.resize(&mut pod_sets, self.context.stores);
        }
        if pod_sets.is_empty() {
            let kind = J::kind(&());
            let message = format!("{kind} {} has no pod templates, so it cannot be queued", self.job.name_any());
            return Err(PlanError::Unclear(message));
        }
        sanitize(&mut pod_sets);
        if !self.context.gates.on(Gate::PartialAdmission) {
            for pod_set in &mut pod_sets {
                pod_set.min_count = None;
            }
        }
        Ok(pod_sets)
    }

    /// True if the job or the Workload is ending, so that only quota and finalizers remain to be
    /// released.
    fn is_ending(&self, workload: &Workload) -> bool {
        self.job.finished().is_some()
            || status::is_finished(workload)
            || status::is_evicted(workload)
            || workload.metadata.deletion_timestamp.is_some()
    }

    /// True if this Workload matches the job's current state.
    fn is_equivalent(&self, workload: &Workload, pod_sets: &[PodSet]) -> bool {
        if !self.job.is_in_step(&workload.spec.pod_sets) {
            return false;
        }
        let has_started = !self.job.is_suspended() || self.job.is_active() || self.job.finished().is_some();
        if J::PODS_ARE_SET_WHILE_RUNNING && status::has_quota_reservation(workload) && has_started {
            return true;
        }
        let admitted = status::is_admitted(workload);
        if status::has_quota_reservation(workload)
            && let Some(running) = self.expected_while_running(workload)
        {
            return same_pod_sets(pod_sets, &running, admitted)
                || (self.job.is_suspended() && same_pod_sets(pod_sets, &workload.spec.pod_sets, admitted));
        }
        // Compares with the recorded pod sets also while the job runs, if the additions of
        // admission can no longer be computed (for example because a flavor was deleted): that is
        // no reason to stop the job. A running job whose reservation was withdrawn still has the
        // additions of its admission. It is stopped because it is not admitted.
        same_pod_sets(pod_sets, &workload.spec.pod_sets, admitted || !self.job.is_suspended())
    }

    /// The recorded pod sets with the additions of admission.
    fn expected_while_running(&self, workload: &Workload) -> Option<Vec<PodSet>> {
        let infos = start::infos(self.context, workload, is_elastic(&self.job, self.context.gates)).ok()?;
        let mut pod_sets = workload.spec.pod_sets.clone();
        for (pod_set, info) in pod_sets.iter_mut().zip(&infos) {
            podset::merge(&mut pod_set.template, info, self.context.gates).ok()?;
            if self.context.gates.on(Gate::PartialAdmission) && pod_set.min_count.is_some() {
                pod_set.count = info.count;
            }
        }
        Some(pod_sets)
    }

    fn update_to_match(&mut self, workload: &Workload, pod_sets: Vec<PodSet>) -> Result<Workload, PlanError> {
        let fresh = self.construct(pod_sets)?;
        let mut updated = workload.clone();
        let active = updated.spec.active;
        updated.spec = fresh.spec;
        updated.spec.active = active;
        let message = format!("Updated not matching Workload for suspended job: {}", ObjectKey::of(&updated));
        self.plan.steps.push(Step::PatchWorkload(Box::new(updated.clone())));
        self.report(PlannedEvent::normal(events::UPDATED_WORKLOAD, message));
        Ok(updated)
    }

    // -- creating a workload ----------------------------------------------------------------------

    fn without_workload(&mut self) -> Result<(), PlanError> {
        // A job whose pods still run is not queued until they have ended.
        if self.job.finished().is_some() || self.job.is_active() {
            return Ok(());
        }
        let pod_sets = self.pod_sets()?;
        let workload = self.construct(pod_sets)?;
        self.create(workload);
        Ok(())
    }

    fn create(&mut self, workload: Workload) {
        let message = format!("Created Workload: {}", ObjectKey::of(&workload));
        self.plan.steps.push(Step::CreateWorkload(Box::new(workload)));
        self.report(PlannedEvent::normal(events::CREATED_WORKLOAD, message));
    }

    fn construct(&mut self, pod_sets: Vec<PodSet>) -> Result<Workload, PlanError> {
        let job = &self.job;
        let gates = self.context.gates;
        let kind = kind_of::<J>();
        let uid = job.meta().uid.clone().unwrap_or_default();
        let elastic = is_elastic(job, gates);
        // Ray's autoscaler changes the size of a RayJob's cluster, and not the RayJob. Both
        // generations together identify a slice, as in Kueue.
        let generation = elastic.then(|| {
            let own = job.meta().generation.unwrap_or(0);
            job.resized_generation(self.context.stores)
                .map_or_else(|| own.to_string(), |of_cluster| format!("{own}_{of_cluster}"))
        });
        let name = naming::workload_name_with(&job.name_any(), &uid, &kind, generation.as_deref(), gates);
        let mut workload = Workload::named(&name);
        workload.metadata.namespace = job.namespace();
        workload.metadata.finalizers = Some(vec![constants::RESOURCE_IN_USE_FINALIZER.to_owned()]);
        let copied_labels = self.context.config.label_keys_to_copy();
        for (key, value) in job.labels().iter().filter(|(key, _)| copied_labels.contains(key.as_str())) {
            workload.labels_mut().insert(key.clone(), value.clone());
        }
        for (key, value) in job.annotations() {
            if copies_annotation(self.context, key) || (elastic && key == annotations::ELASTIC_JOB) {
                workload.annotations_mut().insert(key.clone(), value.clone());
            }
        }
        if elastic {
            // All slices of a job carry the name of the first one.
            workload.annotations_mut().insert(annotations::WORKLOAD_SLICE_NAME.to_owned(), name.clone());
        }
        self.own(&mut workload);
        workload.spec.queue_name = queue_name(&self.job).to_owned();
        workload.spec.maximum_execution_time_seconds =
            self.job.labels().get(labels::MAX_EXEC_TIME_SECONDS).and_then(|text| text.parse().ok());
        let label = self.job.labels().get(labels::PRIORITY_CLASS).map(String::as_str);
        match priority::extract(self.context.stores, label, self.job.priority_class(), &pod_sets) {
            Ok(priority) => {
                workload.spec.priority = Some(priority.value);
                workload.spec.priority_class_ref = priority.class;
            }
            Err(error) => return Err(self.priority_error(error)),
        }
        workload.spec.pod_sets = pod_sets;
        Ok(workload)
    }

    fn priority_error(&mut self, error: priority::PriorityError) -> PlanError {
        if let priority::PriorityError::WorkloadPriorityClassNotFound(_) = &error {
            self.report(PlannedEvent::warning(events::WORKLOAD_PRIORITY_CLASS_NOT_FOUND, error.to_string()));
        }
        PlanError::Other(error.to_string())
    }

    /// Makes the job the workload's controlling owner.
    fn own(&self, workload: &mut Workload) {
        let uid = self.job.meta().uid.clone().unwrap_or_default();
        if uid.len() <= LABEL_VALUE_MAX {
            workload.labels_mut().insert(labels::JOB_UID.to_owned(), uid);
        }
        workload.metadata.owner_references.get_or_insert_default().push(owned_by(&self.job));
    }

    // -- reconciling the job with its workload ----------------------------------------------------

    fn with_workload(&mut self, mut workload: Workload) -> Result<(), PlanError> {
        let (gates, now) = (self.context.gates, self.context.now);
        if workload.metadata.deletion_timestamp.is_some() {
            if self.needs_stop(Some(&workload), None) && !self.stop(Some(&workload), "Workload is deleted") {
                return Ok(());
            }
            if (!self.job.is_active() || self.job.finished().is_some()) && remove_finalizer(&mut workload) {
                self.plan.steps.push(Step::PatchWorkload(Box::new(workload)));
            }
            return Ok(());
        }
        if let Some(finished) = self.job.finished() {
            let reason = if finished.success { finished::SUCCEEDED } else { finished::FAILED };
            if status::finish(&mut workload, reason, &finished.message, now) {
                self.write_status(&workload);
                let message = format!("Workload '{}' is declared finished", ObjectKey::of(&workload));
                self.report(PlannedEvent::normal(events::FINISHED_WORKLOAD, message));
                return Ok(());
            }
        }
        if status::is_finished(&workload) {
            self.with_finished(workload);
            return Ok(());
        }
        if self.job.is_on_hold().is_some_and(|on_hold| self.follow_hold(&mut workload, on_hold)) {
            return Ok(());
        }
        if self.follow_priority_label(&mut workload)? || self.follow_admission_gates(&mut workload) {
            return Ok(());
        }
        if gates.on(Gate::ReclaimablePods)
            && let Some(reclaimable) = self.job.reclaimable_pods()
            && status::set_reclaimable_pods(&mut workload, reclaimable)
        {
            self.write_status(&workload);
            return Ok(());
        }
        // The end of an eviction is written together with the readiness of its pods.
        let is_leaving = status::is_evicted(&workload) && status::has_quota_reservation(&workload);
        if self.tracks_readiness() && !is_leaving && readiness::sync(&mut workload, || self.job.pods_ready(), now) {
            self.write_status(&workload);
            return Ok(());
        }
        if status::is_evicted(&workload) {
            self.handle_eviction(workload);
            return Ok(());
        }
        if self.job.is_suspended() {
            if status::is_admitted(&workload) {
                self.start(workload);
                return Ok(());
            }
            let queue = queue_name(&self.job);
            if workload.spec.queue_name != queue && !status::has_quota_reservation(&workload) {
                workload.spec.queue_name = queue.to_owned();
                self.plan.steps.push(Step::PatchWorkload(Box::new(workload)));
                return Ok(());
            }
            if let Some(messages) = start::check_messages(&workload) {
                self.report(PlannedEvent::normal(events::UPDATED_ADMISSION_CHECK, messages));
            }
            return Ok(());
        }
        if !status::is_admitted(&workload) && !self.runs_under_another_slice(&workload) {
            self.stop(Some(&workload), "Not admitted by cluster queue");
        }
        Ok(())
    }

    /// Handles a finished workload: reports on a job that it keeps from starting.
    fn with_finished(&mut self, mut workload: Workload) {
        if let Some(how) = status::true_condition(&workload, conditions::FINISHED)
            && self.job.is_suspended()
            && self.job.finished().is_none()
        {
            let message = format!(
                "Workload {} of this job has finished ({}: {}), so the job will not be started; delete that \
                 Workload to queue the job again",
                workload.name_any(),
                how.reason,
                how.message
            );
            self.report(PlannedEvent::warning(events::WORKLOAD_FINISHED, message));
        }
        // Workloads that Berth made lose their finalizer when their job is deleted. The maker of a
        // prebuilt Workload may delete it before.
        if prebuilt_workload(&self.job, self.context.gates).is_some() && remove_finalizer(&mut workload) {
            self.plan.steps.push(Step::PatchWorkload(Box::new(workload)));
        }
    }

    /// True while the job runs under the slice that this workload is to replace.
    fn runs_under_another_slice(&self, workload: &Workload) -> bool {
        let Some(replaced) = slices::replaced_key(workload).and_then(|key| key.split_once('/')) else { return false };
        is_elastic(&self.job, self.context.gates)
            && self
                .context
                .stores
                .workloads
                .get(&ObjectKey::namespaced(replaced.0, replaced.1))
                .is_some_and(|replaced| slices::latest_active(&[replaced]).is_some())
    }

    /// Puts the workload of a job that cannot run on hold, so that it holds no quota, and queues it
    /// again afterwards. Returns true if nothing else is to be done now.
    fn follow_hold(&mut self, workload: &mut Workload, on_hold: bool) -> bool {
        let (gates, now) = (self.context.gates, self.context.now);
        if on_hold == status::is_on_hold(workload) {
            return on_hold;
        }
        if on_hold {
            if status::is_evicted(workload) {
                status::release_after_eviction(workload, gates, now);
            }
            status::unset_quota_reservation(workload, admission::ON_HOLD, "Job is on hold", gates, now);
        } else {
            let reason = status::unreserved_reason(admission::PENDING_EVALUATION, admission::LEGACY_PENDING, gates);
            status::unset_quota_reservation(workload, reason, "Job is no longer on hold", gates, now);
        }
        self.write_status(workload);
        true
    }

    /// Updates the workload's priority if the job's priority class label changed, which is allowed
    /// at any time. Returns true if the priority changed.
    fn follow_priority_label(&mut self, workload: &mut Workload) -> Result<bool, PlanError> {
        let Some(label) = self.job.labels().get(labels::PRIORITY_CLASS).cloned() else { return Ok(false) };
        let follows = match &workload.spec.priority_class_ref {
            Some(class) => class.kind == constants::WORKLOAD_PRIORITY_CLASS_KIND && class.name != label,
            // Quota was reserved at the current priority, so a class cannot be added afterwards.
            None => !status::has_quota_reservation(workload),
        };
        if !follows {
            return Ok(false);
        }
        let priority = match priority::of_workload_class(self.context.stores, &label) {
            Ok(priority) => priority,
            Err(error) => return Err(self.priority_error(error)),
        };
        workload.spec.priority = Some(priority.value);
        workload.spec.priority_class_ref = priority.class;
        let message = format!("Updated workload priority class: {}", ObjectKey::of(workload));
        self.plan.steps.push(Step::PatchWorkload(Box::new(workload.clone())));
        self.report(PlannedEvent::normal(events::UPDATED_WORKLOAD, message));
        Ok(true)
    }

    /// Copies the job's `admission-gated-by` annotation to the workload. Returns true if the
    /// annotation changed.
    fn follow_admission_gates(&mut self, workload: &mut Workload) -> bool {
        const KEY: &str = annotations::ADMISSION_GATED_BY;
        let wanted = self.job.annotations().get(KEY).cloned();
        if !self.context.gates.on(Gate::AdmissionGatedBy) || workload.annotations().get(KEY) == wanted.as_ref() {
            return false;
        }
        let message = format!("Updated workload AdmissionGatedBy to {}", quote(wanted.as_deref().unwrap_or_default()));
        match wanted {
            Some(value) => workload.annotations_mut().insert(KEY.to_owned(), value),
            None => workload.annotations_mut().remove(KEY),
        };
        self.plan.steps.push(Step::PatchWorkload(Box::new(workload.clone())));
        self.report(PlannedEvent::normal(events::UPDATED_WORKLOAD, message));
        true
    }

    /// Handles an eviction: stops the job and releases the quota once none of its pods run (§19.2).
    fn handle_eviction(&mut self, mut workload: Workload) {
        let Some(evicted) = status::true_condition(&workload, conditions::EVICTED).cloned() else { return };
        self.stop(Some(&workload), &evicted.message);
        if !self.job.is_active() && status::has_quota_reservation(&workload) {
            let (gates, now) = (self.context.gates, self.context.now);
            let tracks_readiness = self.tracks_readiness();
            // A workload can be evicted before PodsReady was set. Only an admitted workload gets
            // the condition, so it is set before the release, and has the state of a waiting one
            // after it.
            if tracks_readiness {
                readiness::sync(&mut workload, || false, now);
            }
            if status::release_after_eviction(&mut workload, gates, now) {
                if tracks_readiness {
                    readiness::sync(&mut workload, || false, now);
                }
                self.write_status(&workload);
            }
        }
        let retention = self.context.config.object_retention_policies.as_ref();
        let after = retention.and_then(|r| r.workloads.as_ref()).and_then(|w| w.after_deactivated_by_kueue);
        let by_kueue = evicted.reason.starts_with(eviction::DEACTIVATED_DUE_TO);
        if let Some(after) = after.filter(|_| by_kueue && !status::is_active(&workload)) {
            let elapsed = self.context.now.duration_since(evicted.last_transition_time.0);
            let elapsed = Duration::try_from(elapsed).unwrap_or_default();
            if elapsed >= after {
                self.plan.steps.push(Step::Delete(Box::new(self.job.clone())));
                self.report(PlannedEvent::normal(
                    events::DELETED,
                    "Deleted job: deactivation retention period expired",
                ));
            } else {
                self.plan.requeue_within(after - elapsed);
            }
        }
    }

    fn start(&mut self, mut workload: Workload) {
        let gates = self.context.gates;
        let result = start::infos(self.context, &workload, is_elastic(&self.job, gates)).and_then(|infos| {
            let mut job = self.job.clone();
            job.run_with(&infos, gates)?;
            Ok(job)
        });
        match result {
            Ok(job) => {
                self.job = job.clone();
                if J::STARTS_IN_TWO_STEPS {
                    let mut held = job.clone();
                    held.suspend();
                    self.plan.steps.push(Step::Patch(Box::new(held)));
                }
                self.plan.steps.push(Step::Patch(Box::new(job)));
                let queue =
                    workload.status.as_ref().and_then(|s| s.admission.as_ref()).map(|a| a.cluster_queue.clone());
                let message = format!("Admitted by clusterQueue {}", queue.unwrap_or_default());
                self.report(PlannedEvent::normal(events::STARTED, message));
            }
            Err(error) if error.is_permanent() => {
                if status::finish(&mut workload, finished::FAILED_TO_START, &error.to_string(), self.context.now) {
                    self.write_status(&workload);
                }
            }
            Err(error) => self.plan.error = Some(PlanError::Other(error.to_string())),
        }
    }

    /// True if an unfinished job is unsuspended, or suspended with templates that still have the
    /// additions of admission: those templates have a label that the templates in the Workload
    /// lack. `pod_sets`: the job's, if already computed.
    fn needs_stop(&self, workload: Option<&Workload>, pod_sets: Option<&[PodSet]>) -> bool {
        if self.job.finished().is_some() {
            return false;
        }
        if !self.job.is_suspended() {
            return true;
        }
        let recorded = workload.map(|workload| workload.spec.pod_sets.as_slice()).unwrap_or_default();
        let added =
            |pod_sets: &[PodSet]| recorded.iter().zip(pod_sets).any(|(old, new)| is_marked(new) && !is_marked(old));
        match pod_sets {
            Some(pod_sets) => added(pod_sets),
            None => self.pod_sets().is_ok_and(|pod_sets| added(&pod_sets)),
        }
    }

    /// Suspends the job, removes the results of the run from its status, and restores its pod
    /// templates, in one write if the kind permits. The order matters: Kubernetes accepts template
    /// changes only while a Job is suspended and has no active pods. Returns false if templates
    /// cannot be restored yet; the status change at the last pod's end triggers the next reconcile.
    fn stop(&mut self, workload: Option<&Workload>, message: &str) -> bool {
        let recorded = workload.map(|workload| workload.spec.pod_sets.iter().map(PodSetInfo::from_pod_set));
        let recorded: Option<Vec<PodSetInfo>> = recorded.map(Iterator::collect);
        if !self.job.is_suspended() {
            self.job.suspend();
            if let Some(recorded) = recorded.as_ref().filter(|_| !J::STOPS_IN_TWO_STEPS) {
                self.job.restore(recorded);
            }
            self.plan.steps.push(Step::Patch(Box::new(self.job.clone())));
            self.report(PlannedEvent::normal(events::STOPPED, message));
        }
        if !self.job.can_be_restored() {
            return false;
        }
        if self.job.reset_status() {
            self.plan.steps.push(Step::PatchStatus(Box::new(self.job.clone())));
        }
        if recorded.is_some_and(|recorded| self.job.restore(&recorded)) {
            self.plan.steps.push(Step::Patch(Box::new(self.job.clone())));
        }
        true
    }
}
