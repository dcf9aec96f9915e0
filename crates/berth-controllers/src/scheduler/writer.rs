//! Writes decisions behind: one pending write per workload, many workloads at once.
//!
//! A write applies to the version it was computed from. If the object changed meanwhile it is computed anew from the
//! newest state; only when the decision no longer makes sense for that state, or the server refuses it for good, is it
//! taken back from the engine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use berth_api::kueue::v1beta2::Workload;
use berth_engine::model::WorkloadKey;
use berth_engine::{Event, Name};
use berth_runtime::{Action, Cache, Clock, Error, EventType, Manager, ObjectKey, Queue, Reconciler, Recorder};
use kube::{Api, Client, ResourceExt};

use super::Brain;
use super::carry_out::{Change, Notice, carry_out, replaced_slice};
use super::feed::{object_key, workload_key};
use crate::conditions::truncate;
use crate::config::Config;
use crate::execute::{Part, patch};
use crate::gates::Gates;
use crate::metrics::Metrics;
use crate::stores::Stores;

/// Longest event message.
const EVENT_MESSAGE_MAX: usize = 1024;

/// The pending writes; clones share them.
#[derive(Clone)]
pub(super) struct Writes {
    pending: Arc<Mutex<BTreeMap<ObjectKey, Change>>>,
    queue: Queue,
    workloads: Cache<Workload>,
}

impl Writes {
    /// Adds a write. Of two about one workload the later one counts: the engine decided it knowing the earlier one.
    pub(super) fn add(&self, key: ObjectKey, change: Change) {
        self.lock().insert(key.clone(), change);
        self.queue.add(key);
    }

    pub(super) fn local_queue_of(&self, key: &WorkloadKey) -> Option<(Name, Name)> {
        let workload = self.workloads.get(&object_key(key))?;
        Some((key.namespace.clone(), workload.spec.queue_name.as_str().into()))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectKey, Change>> {
        self.pending.lock().expect("no code panics while holding the writes' lock")
    }

    fn take(&self, key: &ObjectKey) -> Option<Change> {
        self.lock().remove(key)
    }

    /// Puts a write back unless a later one came.
    fn put_back(&self, key: &ObjectKey, change: Change) {
        self.lock().entry(key.clone()).or_insert(change);
    }
}

/// Adds the writer to the manager.
pub(super) fn install(
    manager: &mut Manager,
    config: &Arc<Config>,
    stores: &Stores,
    brain: &Brain,
    metrics: &Metrics,
) -> Writes {
    let (client, clock, recorder) = (manager.client(), manager.clock(), manager.recorder("berth-admission"));
    let builder = manager.controller("scheduler-writes").concurrency(64);
    let writes = Writes { pending: Arc::default(), queue: builder.queue(), workloads: stores.workloads.clone() };
    builder.run(Writer {
        client,
        clock,
        recorder,
        brain: brain.clone(),
        stores: stores.clone(),
        gates: config.gates(),
        writes: writes.clone(),
        metrics: metrics.clone(),
    });
    writes
}

struct Writer {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    brain: Brain,
    stores: Stores,
    gates: Gates,
    writes: Writes,
    metrics: Metrics,
}

impl Reconciler for Writer {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(change) = self.writes.take(&key) else { return Ok(Action::Wait) };
        let Some(before) = self.stores.workloads.get(&key) else {
            // Gone: the watch has told the engine.
            return Ok(Action::Wait);
        };
        let Some((after, notices)) = carry_out(&change, &before, &self.gates, self.clock.now()) else {
            self.take_back(&key, &change);
            return Ok(Action::Wait);
        };
        if matches!(&change, Change::Admit(admit) if !admit.second_pass) {
            self.brain.reserved(workload_key(&key), self.brain.now());
        }
        let api: Api<Workload> = Api::namespaced(self.client.clone(), &key.namespace);
        match patch(&api, &before, &after, Part::Status, before.resource_version().as_deref()).await {
            Ok(answer) => {
                if let Some(answer) = answer {
                    self.stores.workloads.observe(answer);
                }
                notices.into_iter().for_each(|notice| self.tell(notice));
                if let Change::Admit(admit) = &change
                    && let Some((replaced, change)) = replaced_slice(&after, admit)
                {
                    self.writes.add(object_key(&replaced), change);
                }
                self.metrics.written(&written(&change), &after, self.clock.now());
                Ok(Action::Wait)
            }
            Err(error) if berth_runtime::is_not_found(&error) => Ok(Action::Wait),
            Err(error) if is_permanent(&error) => {
                tracing::warn!(%key, %error, "a decision could not be written");
                self.take_back(&key, &change);
                if let Change::Evict { unplaced: Some(message), .. } = change {
                    let (about, reason) = (workload_key(&key), "SecondPassFailed".to_owned());
                    self.tell(Notice { about, event_type: EventType::Warning, reason, message });
                }
                Ok(Action::Wait)
            }
            Err(error) => {
                self.writes.put_back(&key, change);
                Err(error.into())
            }
        }
    }
}

/// What a written change counts as in metrics.
fn written(change: &Change) -> crate::metrics::Written {
    use crate::metrics::Written;
    match change {
        Change::Admit(_) => Written::Admitted,
        Change::Preempt { victim, queue, .. } => {
            Written::Preempted { queue: queue.to_string(), reason: victim.reason.as_str() }
        }
        Change::Evict { reason, .. } => Written::Evicted { reason },
        Change::Wait(_) | Change::Bypassed(_) | Change::ReplaceSlice { .. } => Written::Other,
    }
}

/// Refused for what was asked, not for when.
fn is_permanent(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && ![404, 409, 429].contains(&status.code))
}

impl Writer {
    /// Records an event, unless what it is about is gone.
    fn tell(&self, notice: Notice) {
        if let Some(about) = self.stores.workloads.get(&object_key(&notice.about)) {
            let message = truncate(&notice.message, EVENT_MESSAGE_MAX);
            self.recorder.event(about.as_ref(), notice.event_type, &notice.reason, &message);
        }
    }

    /// The decision was not carried out: the engine forgets it.
    fn take_back(&self, key: &ObjectKey, change: &Change) {
        let event = match change {
            Change::Admit(_) => Event::AdmissionFailed(workload_key(key)),
            Change::Preempt { .. } | Change::Evict { .. } => Event::PreemptionFailed(workload_key(key)),
            Change::Wait(_) | Change::Bypassed(_) | Change::ReplaceSlice { .. } => return,
        };
        self.brain.apply(event);
    }
}
