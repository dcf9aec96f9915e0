//! Executes plans. The difference between the known and the desired state of an object is sent as a
//! merge patch, which applies to the known version only. Responses update the caches at once, so
//! the next reconcile reads them.

use berth_api::json::Json;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::Arc;

use berth_api::kueue::events;
use berth_api::kueue::v1beta2::Workload;
use berth_apimachinery::patch::merge_diff;
use berth_runtime::{Action, Cache, Clock, Error, EventType, Manager, ObjectKey, Recorder, Written};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::concurrent_admission::is_variant;
use crate::conditions::truncate;
use crate::members::members;
use crate::metrics::Metrics;
use crate::plan::{Plan, Step};
use crate::stores::controller_of;
use crate::webhooks::held;

/// Which part of an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Metadata and spec.
    Main,
    /// The status subresource.
    Status,
}

/// Field manager of all writes.
pub const FIELD_MANAGER: &str = "berth-controllers";

/// Longest message of an event, in bytes.
const EVENT_MESSAGE_MAX: usize = 1024;

/// Sends the difference between two states of an object. Returns the object in the response, or
/// `None` if there was no difference. `version` is the resourceVersion that must still be current.
pub async fn patch<K>(
    api: &Api<K>,
    before: &K,
    after: &K,
    part: Part,
    version: Option<&str>,
) -> Result<Option<K>, kube::Error>
where
    K: Resource<DynamicType = ()> + Json + Clone + Debug + PartialEq,
{
    // Most plans change nothing; comparing is cheaper than serializing.
    if before == after {
        return Ok(None);
    }
    let Some(mut difference) = difference(before, after, part)? else { return Ok(None) };
    if let (Some(version), Some(object)) = (version, difference.as_object_mut()) {
        let metadata = object.entry("metadata").or_insert_with(|| json!({}));
        metadata["resourceVersion"] = Value::String(version.to_owned());
    }
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let name = after.name_any();
    let answer = match part {
        Part::Main => berth_runtime::write::patch(api, &name, &params, &Patch::Merge(&difference)).await?,
        Part::Status => berth_runtime::write::patch_status(api, &name, &params, &Patch::Merge(&difference)).await?,
    };
    Ok(Some(answer))
}

fn difference<K: Resource + Serialize>(before: &K, after: &K, part: Part) -> Result<Option<Value>, kube::Error> {
    let mut patch = Map::new();
    let wanted = |name: &str| match part {
        Part::Main => !matches!(name, "metadata" | "status"),
        Part::Status => name == "status",
    };
    if part == Part::Main {
        let written = |name: &str| matches!(name, "labels" | "annotations" | "finalizers" | "ownerReferences");
        let mut changed = Map::new();
        put_differences(before.meta(), after.meta(), &written, &mut changed)?;
        if !changed.is_empty() {
            patch.insert("metadata".to_owned(), Value::Object(changed));
        }
    }
    put_differences(before, after, &wanted, &mut patch)?;
    Ok((!patch.is_empty()).then_some(Value::Object(patch)))
}

/// Adds the differences between the `wanted` members of two states of an object to a merge patch.
fn put_differences<T: Serialize>(
    before: &T,
    after: &T,
    wanted: &dyn Fn(&str) -> bool,
    patch: &mut Map<String, Value>,
) -> Result<(), kube::Error> {
    let of = |object: &T| members(object, wanted).map_err(kube::Error::SerdeError);
    let (before, after) = (of(before)?, of(after)?);
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for key in keys {
        let texts = [before.get(key), after.get(key)].map(|text| text.map_or("null", String::as_str));
        if texts[0] == texts[1] {
            continue;
        }
        let [old, new] = texts.map(|text| serde_json::from_str::<Value>(text).map_err(kube::Error::SerdeError));
        let (old, new) = (old?, new?);
        if old != new {
            patch.insert(key.clone(), merge_diff(&old, &new));
        }
    }
    Ok(())
}

/// Executes plans about objects of kind `J`.
pub struct Executor<J> {
    client: Client,
    recorder: Recorder,
    objects: Cache<J>,
    workloads: Cache<Workload>,
    metrics: Metrics,
    clock: Clock,
}

/// A state of an object, and its resourceVersion.
struct Known<K> {
    state: K,
    version: Option<String>,
}

/// The states of objects after the earlier steps of a plan. They are looked up only, so their order
/// does not matter, and a hash map is less code for each kind of job.
type States<K> = HashMap<ObjectKey, Known<K>>;

impl<J> Executor<J>
where
    J: Written + PartialEq,
{
    /// An executor that writes through the manager's client and keeps the caches up to date.
    pub fn new(
        manager: &Manager,
        recorder: Recorder,
        objects: Cache<J>,
        workloads: Cache<Workload>,
        metrics: &Metrics,
    ) -> Self {
        let (client, clock, metrics) = (manager.client(), manager.clock(), metrics.clone());
        Executor { client, recorder, objects, workloads, metrics, clock }
    }

    /// Executes a plan about `object`.
    pub async fn carry_out(&self, object: Option<&Arc<J>>, plan: Plan<J>) -> Result<Action, Error> {
        let (mut objects, mut workloads) = (States::new(), States::new());
        let main = object.map(|object| ObjectKey::of(object.as_ref()));
        if let (Some(key), Some(object)) = (&main, object) {
            let known = Known { state: J::clone(object), version: object.resource_version() };
            objects.insert(key.clone(), known);
        }
        for step in plan.steps {
            match step {
                Step::Event(event) => {
                    if let Some(known) = main.as_ref().and_then(|key| objects.get(key)) {
                        event.record(&self.recorder, &known.state);
                    }
                }
                Step::EventAbout(about, event) => {
                    event.record(&self.recorder, &*about);
                }
                Step::WorkloadEvent(workload, event) => {
                    event.record(&self.recorder, &*workload);
                }
                Step::Patch(after) => self.write_object(&mut objects, *after, Part::Main).await?,
                Step::PatchStatus(after) => self.write_object(&mut objects, *after, Part::Status).await?,
                Step::Delete(gone) => delete(&self.api_of::<J>(&gone), &*gone).await?,
                Step::CreateWorkload(workload) => self.create_workload(object, &workload).await?,
                Step::PatchWorkload(after) => {
                    write(&self.api_of(&*after), &self.workloads, &mut workloads, *after, Part::Main).await?;
                }
                Step::PatchWorkloadStatus(after) => {
                    write(&self.api_of(&*after), &self.workloads, &mut workloads, *after, Part::Status).await?;
                }
                Step::DeleteWorkload(gone) => delete(&self.api_of::<Workload>(&gone), &*gone).await?,
            }
        }
        match (plan.error, plan.requeue_after) {
            (Some(error), _) => Err(Box::new(error)),
            (None, Some(after)) => Ok(Action::After(after)),
            (None, None) => Ok(Action::Wait),
        }
    }

    /// Creates the Workload of a job, and reports on the job why the API server rejects it.
    async fn create_workload(&self, object: Option<&Arc<J>>, workload: &Workload) -> Result<(), Error> {
        let api = self.api_of(workload);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match berth_runtime::write::create(&api, &params, workload).await {
            Ok(made) => self.workloads.observe(made),
            Err(error) => {
                if let Some(object) = object {
                    if berth_runtime::is_already_exists(&error) {
                        self.report_conflict(object, &api, &workload.name_any()).await;
                    }
                    self.report_refused(object, &format!("Workload {}", workload.name_any()), &error);
                }
                return Err(error.into());
            }
        }
        let job = object.and_then(|object| object.meta().creation_timestamp.as_ref());
        if let Some(created) = job.filter(|_| !is_variant(workload)) {
            // The duration may be negative, because objects contain whole seconds and the clocks of
            // two machines differ.
            let after = self.clock.now().duration_since(created.0).unsigned_abs();
            self.metrics.workload_created(&J::kind(&()), after);
        }
        Ok(())
    }

    /// Reports on a job that a Workload of another owner has the name of the job's Workload. If
    /// that Workload belongs to the job, only the cache is stale, and nothing is reported.
    async fn report_conflict(&self, object: &J, api: &Api<Workload>, name: &str) {
        // The role of the controllers allows lists, and no reads of single Workloads.
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        let Ok(found) = berth_runtime::write::list(api, &named).await else { return };
        let Some(taken) = found.items.into_iter().next() else { return };
        let owner = controller_of(&taken.metadata);
        if owner.is_some_and(|owner| Some(owner.uid.as_str()) == object.meta().uid.as_deref()) {
            return;
        }
        let owner =
            owner.map_or("has no owner".to_owned(), |owner| format!("is owned by {} {}", owner.kind, owner.name));
        let message =
            format!("Workload {name} already exists and {owner}; delete it to let this {} be queued", J::kind(&()));
        self.recorder.event(object, EventType::Warning, events::WORKLOAD_NAME_CONFLICT, &message);
    }

    /// Reports on an object why it is still held after the controllers became available, if the API
    /// server rejected the write that releases it.
    fn report_unsettled(&self, object: &J, error: &kube::Error) {
        if is_refusal(error) {
            let message = format!(
                "Held because it was created while the controllers were unavailable. The API server rejected the write that \
                 releases it: {}. Delete it and create it again",
                berth_runtime::message(error)
            );
            self.recorder.event(object, EventType::Warning, events::STAYS_HELD, &truncate(&message, EVENT_MESSAGE_MAX));
        }
    }

    /// Records an event on an object if the API server rejected a write that the object needs. A
    /// policy, a quota or a webhook may be the cause.
    fn report_refused(&self, object: &J, what: &str, error: &kube::Error) {
        if is_refusal(error) {
            let message = format!("The API server rejected {what}: {}", berth_runtime::brief(error));
            self.recorder.event(
                object,
                EventType::Warning,
                events::WRITE_REFUSED,
                &truncate(&message, EVENT_MESSAGE_MAX),
            );
        }
    }

    fn api_of<K>(&self, object: &K) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), object.meta().namespace.as_deref().unwrap_or_default())
    }

    /// Writes an object, and reports on it when the API server rejects the change.
    async fn write_object(&self, known: &mut States<J>, after: J, part: Part) -> Result<(), Error> {
        let key = ObjectKey::of(&after);
        let result = write(&self.api_of(&after), &self.objects, known, after, part).await;
        if let (Err(error), Some(before)) = (&result, known.get(&key)) {
            if held::is_unsettled(&before.state) {
                self.report_unsettled(&before.state, error);
            } else {
                self.report_refused(&before.state, &format!("a change to this {}", J::kind(&())), error);
            }
        }
        Ok(result?)
    }
}

/// Writes the difference between the known state of an object and `after`, and updates the cache
/// with the response. A deleted object needs no write, so its absence is no error. `known` holds
/// the states of earlier steps of the plan.
async fn write<K>(
    api: &Api<K>,
    cache: &Cache<K>,
    known: &mut States<K>,
    after: K,
    part: Part,
) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = ()> + Json + Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let key = ObjectKey::of(&after);
    if !known.contains_key(&key) {
        let Some(cached) = cache.get(&key) else { return Ok(()) };
        let version = after.resource_version().or_else(|| cached.resource_version());
        known.insert(key.clone(), Known { state: (*cached).clone(), version });
    }
    let before = known.get_mut(&key).expect("inserted just above");
    let answer = match patch(api, &before.state, &after, part, before.version.as_deref()).await {
        Ok(answer) => answer,
        Err(error) if berth_runtime::is_not_found(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    before.state = after;
    if let Some(answer) = answer {
        before.version = answer.resource_version();
        observe(cache, answer);
    }
    Ok(())
}

/// Updates the cache with the response to a write.
pub(crate) fn observe<K>(cache: &Cache<K>, answer: K)
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    match is_gone(&answer) {
        true => cache.observe_deleted(&answer),
        false => cache.observe(answer),
    }
}

/// True if the response to a write shows the object's last state: it is being deleted, has no
/// finalizer and no grace period (as pods have).
fn is_gone<K: Resource>(answer: &K) -> bool {
    let meta = answer.meta();
    let has_grace = meta.deletion_grace_period_seconds.is_some_and(|seconds| seconds > 0);
    meta.deletion_timestamp.is_some() && !has_grace && answer.finalizers().is_empty()
}

/// True if the API server rejected the content of a write. Overload and conflicts do not count.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 403 | 422))
}

/// Deletes an object unless another object of the same name replaced it; dependents are deleted in
/// the background.
pub async fn delete<K>(api: &Api<K>, object: &K) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Json + Clone + Debug,
{
    let preconditions = Preconditions { uid: object.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    match berth_runtime::write::delete(api, &object.name_any(), &params).await {
        Ok(_) => Ok(()),
        Err(error) if berth_runtime::is_not_found(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    #[test]
    fn a_response_is_final_without_finalizers_and_grace_period() {
        let gone = |metadata: Value| {
            let mut pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}})).expect("a pod");
            pod.metadata = serde_json::from_value(metadata).expect("metadata");
            is_gone(&pod)
        };
        let at = "2026-01-01T00:00:00Z";
        assert!(!gone(json!({})));
        assert!(gone(json!({"deletionTimestamp": at})));
        assert!(gone(json!({"deletionTimestamp": at, "deletionGracePeriodSeconds": 0})));
        assert!(!gone(json!({"deletionTimestamp": at, "deletionGracePeriodSeconds": 30})));
        assert!(!gone(json!({"deletionTimestamp": at, "deletionGracePeriodSeconds": 0, "finalizers": ["a/b"]})));
    }
}
