//! The reconciler of one kind of job.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_api::kueue::events;
use berth_api::kueue::v1beta2::{LocalQueue, Workload};
use berth_runtime::{Action, Cache, Clock, Error, EventType, Manager, ObjectKey, Reconciler, Recorder};
use kube::Resource;

use super::reconcile::{Context, reconcile};
use super::{Job, kind_of, prebuilt_workload, queue_name};
use crate::configuration::Config;
use crate::execute::Executor;
use crate::gates::Gates;
use crate::metrics::Metrics;
use crate::plan::Step;
use crate::stores::{Stores, controller_of, group_of};

/// Requeue interval for a job that is missing from an incomplete cache, because its kind cannot be
/// listed now.
const UNTIL_KNOWN: Duration = Duration::from_secs(10);

/// Adds the controller of one kind of job to the manager.
pub fn install<J: Job>(
    manager: &mut Manager,
    config: &Arc<Config>,
    stores: &Stores,
    objects: Cache<J>,
    metrics: &Metrics,
) {
    let recorder = manager.recorder("berth-job-controller");
    let executor = Executor::new(manager, recorder.clone(), objects.clone(), stores.workloads.clone(), metrics);
    let reconciler = JobReconciler {
        config: config.clone(),
        gates: config.gates(),
        stores: stores.clone(),
        objects: objects.clone(),
        executor,
        recorder,
        clock: manager.clock(),
    };
    let kind = kind_of::<J>();
    let gates = config.gates();
    let by_queue = objects.index(|job: &J| vec![queue_key(job)]);
    let by_prebuilt = objects.index(move |job: &J| prebuilt_key(job, &gates));
    let builder = manager.controller(&format!("job-{}", J::FRAMEWORK)).concurrency(16).watch_self(&objects);
    J::watch(builder, stores, &objects)
        .watch(&stores.workloads, move |delta| {
            let mut keys = BTreeSet::new();
            for workload in [delta.old.as_ref(), delta.new.as_ref()].into_iter().flatten() {
                let namespace = workload.metadata.namespace.clone().unwrap_or_default();
                if let Some(owner) = controller_of(workload.meta())
                    && owner.kind == kind.kind
                    && group_of(&owner.api_version) == kind.group
                {
                    keys.insert(ObjectKey::namespaced(namespace.clone(), owner.name.clone()));
                }
                let name = workload.metadata.name.as_deref().unwrap_or_default();
                keys.extend(by_prebuilt.keys(&format!("{namespace}/{name}")));
            }
            keys
        })
        // Jobs that name a queue are reconciled when that queue is created.
        .watch(&stores.local_queues, move |delta: &berth_runtime::Delta<LocalQueue>| match (&delta.old, &delta.new) {
            (None, Some(queue)) => by_queue.keys(&ObjectKey::of(queue.as_ref()).to_string()),
            _ => Vec::new(),
        })
        .run(reconciler);
}

fn queue_key<J: Job>(job: &J) -> String {
    format!("{}/{}", job.meta().namespace.as_deref().unwrap_or_default(), queue_name(job))
}

fn prebuilt_key<J: Job>(job: &J, gates: &Gates) -> Vec<String> {
    let namespace = job.meta().namespace.as_deref().unwrap_or_default();
    prebuilt_workload(job, gates).map(|name| format!("{namespace}/{name}")).into_iter().collect()
}

struct JobReconciler<J> {
    config: Arc<Config>,
    gates: Gates,
    stores: Stores,
    objects: Cache<J>,
    executor: Executor<J>,
    recorder: Recorder,
    clock: Clock,
}

impl<J: Job> Reconciler for JobReconciler<J> {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let object = self.objects.get(&key);
        if object.is_none() && !self.objects.is_complete() {
            // The cache is incomplete, so the job may still exist and run pods: its workload keeps
            // its quota.
            return Ok(Action::After(UNTIL_KNOWN));
        }
        let context = Context { stores: &self.stores, config: &self.config, gates: &self.gates, now: self.clock.now() };
        let plan = reconcile(context, &key, object.as_deref());
        if let Some(job) = &object {
            for step in &plan.steps {
                if let Step::CreateWorkload(workload) = step {
                    self.warn_about_queue(job, workload);
                }
            }
        }
        self.executor.carry_out(object.as_ref(), plan).await
    }
}

impl<J: Job> JobReconciler<J> {
    /// Reports a missing LocalQueue on the job, where its author will see it.
    fn warn_about_queue(&self, job: &Arc<J>, workload: &Workload) {
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        let queue = &workload.spec.queue_name;
        if !queue.is_empty() && self.stores.local_queue(namespace, queue).is_none() {
            let message = format!("LocalQueue {queue} doesn't exist in namespace {namespace}; the job stays suspended");
            self.recorder.event(job.as_ref(), EventType::Warning, events::LOCAL_QUEUE_NOT_FOUND, &message);
        }
    }
}
