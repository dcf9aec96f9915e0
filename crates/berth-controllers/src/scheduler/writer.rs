//! Writes decisions behind: one pending write per workload, many workloads at once.
//!
//! A write applies to the version it was computed from. If the object changed meanwhile it is computed anew from the
//! newest state; only when the decision no longer makes sense for that state, or the server refuses it for good, is it
//! taken back from the engine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use berth_api::kueue::v1beta2::{PodSetRequest, Workload};
use berth_engine::model::WorkloadKey;
use berth_engine::{Admit, Event, Name, PendingReason, Victim, Wait};
use berth_runtime::{Action, Cache, Clock, Error, EventType, Manager, ObjectKey, Queue, Reconciler, Recorder};
use kube::{Api, Client, ResourceExt};

use super::Brain;
use super::feed::workload_key;
use crate::conditions::truncate;
use crate::config::Config;
use crate::execute::{Part, patch};
use crate::gates::Gates;
use crate::keys;
use crate::metrics::Metrics;
use crate::stores::Stores;
use crate::translate::{admission, amounts, decision};
use crate::workload::checks;
use crate::workload::status::{self, Eviction};

/// Longest event message.
const EVENT_MESSAGE_MAX: usize = 1024;

/// A write that waits to be made.
#[derive(Clone)]
pub(super) enum Pending {
    /// Give quota.
    Admit(Box<Admit>),
    /// Say why it waits.
    Wait(Box<Wait>),
    /// Evict it for another workload.
    Preempt {
        /// What the engine says about it.
        victim: Box<Victim>,
        /// For whom.
        preemptor: ObjectKey,
        /// The preemptor's cluster queue.
        queue: String,
    },
    /// Evict it for its own sake.
    Evict {
        /// Reason of condition Evicted.
        reason: &'static str,
        /// Its message.
        message: String,
        /// Why its pods found no other nodes, if that is why.
        unplaced: Option<String>,
    },
    /// It was set aside because an equivalent workload just failed.
    Bypassed(PendingReason),
}

/// The pending writes; clones share them.
#[derive(Clone)]
pub(super) struct Writes {
    pending: Arc<Mutex<BTreeMap<ObjectKey, Pending>>>,
    queue: Queue,
    workloads: Cache<Workload>,
}

impl Writes {
    /// Adds a write. Of two about one workload the later one counts: the engine decided it knowing the earlier one.
    pub(super) fn add(&self, key: ObjectKey, pending: Pending) {
        self.lock().insert(key.clone(), pending);
        self.queue.add(key);
    }

    pub(super) fn local_queue_of(&self, key: &WorkloadKey) -> Option<(Name, Name)> {
        let workload = self.workloads.get(&super::feed::object_key(key))?;
        Some((key.namespace.clone(), workload.spec.queue_name.as_str().into()))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectKey, Pending>> {
        self.pending.lock().expect("no code panics while holding the writes' lock")
    }

    fn take(&self, key: &ObjectKey) -> Option<Pending> {
        self.lock().remove(key)
    }

    /// Puts a write back unless a later one came.
    fn put_back(&self, key: &ObjectKey, pending: Pending) {
        self.lock().entry(key.clone()).or_insert(pending);
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

/// An event to record once the write worked: about the workload itself, or about another object.
struct Notice {
    about: Arc<Workload>,
    event_type: EventType,
    reason: String,
    message: String,
}

impl Reconciler for Writer {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(pending) = self.writes.take(&key) else { return Ok(Action::Wait) };
        let Some(before) = self.stores.workloads.get(&key) else {
            // Gone: the watch has told the engine.
            return Ok(Action::Wait);
        };
        let Some((after, notices)) = self.compute(&before, &pending) else {
            self.take_back(&key, &pending);
            return Ok(Action::Wait);
        };
        if matches!(&pending, Pending::Admit(admit) if !admit.second_pass) {
            self.brain.reserved(workload_key(&key), self.brain.now());
        }
        let api: Api<Workload> = Api::namespaced(self.client.clone(), &key.namespace);
        match patch(&api, &before, &after, Part::Status, before.resource_version().as_deref()).await {
            Ok(answer) => {
                if let Some(answer) = answer {
                    self.stores.workloads.observe(answer);
                }
                for notice in notices {
                    let message = truncate(&notice.message, EVENT_MESSAGE_MAX);
                    self.recorder.event(notice.about.as_ref(), notice.event_type, &notice.reason, &message);
                }
                if let Pending::Admit(admit) = &pending
                    && let Some(replaced) = &admit.replaces
                {
                    self.finish_replaced(replaced, &key).await?;
                }
                self.metrics.written(&pending_kind(&pending), &after, self.clock.now());
                Ok(Action::Wait)
            }
            Err(error) if berth_runtime::is_not_found(&error) => Ok(Action::Wait),
            Err(error) if is_permanent(&error) => {
                tracing::warn!(%key, %error, "a decision could not be written");
                if let Pending::Evict { unplaced: Some(message), .. } = &pending {
                    let message = truncate(message, EVENT_MESSAGE_MAX);
                    self.recorder.event(before.as_ref(), EventType::Warning, "SecondPassFailed", &message);
                }
                self.take_back(&key, &pending);
                Ok(Action::Wait)
            }
            Err(error) => {
                self.writes.put_back(&key, pending);
                Err(error.into())
            }
        }
    }
}

/// What a pending write counts as in metrics.
fn pending_kind(pending: &Pending) -> crate::metrics::Written {
    use crate::metrics::Written;
    match pending {
        Pending::Admit(_) => Written::Admitted,
        Pending::Preempt { victim, queue, .. } => {
            Written::Preempted { queue: queue.clone(), reason: victim.reason.as_str() }
        }
        Pending::Evict { reason, .. } => Written::Evicted { reason },
        Pending::Wait(_) | Pending::Bypassed(_) => Written::Other,
    }
}

/// Refused for what was asked, not for when.
fn is_permanent(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && ![404, 409, 429].contains(&status.code))
}

impl Writer {
    /// The workload as it should be; nothing when the decision makes no sense for it any more.
    fn compute(&self, before: &Arc<Workload>, pending: &Pending) -> Option<(Workload, Vec<Notice>)> {
        let mut after = (**before).clone();
        let mut notices = Vec::new();
        let mut tell = |event_type, reason: &str, message: String| {
            notices.push(Notice { about: before.clone(), event_type, reason: reason.to_owned(), message });
        };
        match pending {
            Pending::Admit(admit) => self.admit(&mut after, admit, &mut tell)?,
            Pending::Wait(wait) => self.wait(&mut after, wait, &mut tell)?,
            Pending::Preempt { victim, preemptor, .. } => {
                if !status::has_quota_reservation(&after) || status::is_evicted(&after) || status::is_finished(&after) {
                    return None;
                }
                let now = self.clock.now();
                status::preempt(&mut after, victim.reason.as_str(), &victim.message, &self.gates, now);
                tell(EventType::Normal, "EvictedDueToPreempted", victim.message.clone());
                tell(EventType::Normal, "Preempted", decision::preempted_event(victim));
                if let Some(preemptor) = self.stores.workloads.get(preemptor) {
                    let message = decision::preempted_workload_event(victim);
                    notices.push(Notice {
                        about: preemptor,
                        event_type: EventType::Normal,
                        reason: "PreemptedWorkload".to_owned(),
                        message,
                    });
                }
            }
            Pending::Evict { reason, message, .. } => {
                if !status::has_quota_reservation(&after) || status::is_evicted(&after) || status::is_finished(&after) {
                    return None;
                }
                let eviction = Eviction { reason, cause: "", message };
                status::evict(&mut after, &eviction, &self.gates, self.clock.now());
                tell(EventType::Normal, &format!("EvictedDueTo{reason}"), message.clone());
            }
            Pending::Bypassed(reason) => {
                if !is_waiting(&after) {
                    return None;
                }
                let message = "Bypassed scheduling evaluation because an equivalent workload recently failed";
                let reason = decision::pending_reason(*reason, &self.gates);
                status::unset_quota_reservation(&mut after, reason, message, &self.gates, self.clock.now());
            }
        }
        Some((after, notices))
    }

    fn admit(&self, after: &mut Workload, admit: &Admit, tell: &mut impl FnMut(EventType, &str, String)) -> Option<()> {
        let now = self.clock.now();
        if !status::is_active(after) || status::is_finished(after) || status::is_on_hold(after) {
            return None;
        }
        let admission = admission::to_api(&admit.admission);
        if admit.second_pass {
            if !status::has_quota_reservation(after) || status::is_evicted(after) {
                return None;
            }
            let status = status::status_mut(after);
            status.admission = Some(admission);
            status.unhealthy_nodes.clear();
            if status::sync_admitted(after, &self.gates, now) && status::is_admitted(after) {
                tell(EventType::Normal, "Admitted", admitted_message(after, now));
            }
            return Some(());
        }
        if !is_waiting(after) {
            return None;
        }
        let queue = admission.cluster_queue.clone();
        let queued = status::seconds_queued(after, now);
        status::set_quota_reservation(after, admission, now);
        let required = admit.checks.iter().map(ToString::to_string).collect();
        checks::sync(&mut status::status_mut(after).admission_checks, &required, now);
        status::sync_admitted(after, &self.gates, now);
        let mut message = format!("Quota reserved in ClusterQueue {queue}, wait time since queued was {queued}s");
        message.push_str(&decision::flavors_considered(&admit.explanation));
        tell(EventType::Normal, "QuotaReserved", message);
        if status::is_admitted(after) {
            tell(EventType::Normal, "Admitted", admitted_message(after, now));
        }
        Some(())
    }

    fn wait(&self, after: &mut Workload, wait: &Wait, tell: &mut impl FnMut(EventType, &str, String)) -> Option<()> {
        let now = self.clock.now();
        if wait.second_pass_failed {
            tell(EventType::Warning, "SecondPassFailed", wait.message.clone());
            return Some(());
        }
        if !is_waiting(after) {
            return None;
        }
        if wait.blocked_on_preemption_gates {
            let type_ = keys::BLOCKED_ON_PREEMPTION_GATES;
            status::set(after, type_, true, "PreemptionGated", &wait.message, now);
        }
        if wait.write_status {
            let reason = decision::pending_reason(wait.reason, &self.gates);
            let changed = status::unset_quota_reservation(after, reason, &wait.message, &self.gates, now);
            let requests = wait.requests.iter().map(|(name, resources)| PodSetRequest {
                name: name.to_string(),
                resources: amounts::to_resource_list(resources),
            });
            status::set_resource_requests(after, requests.collect());
            if changed {
                tell(EventType::Warning, reason, wait.message.clone());
            }
        }
        Some(())
    }

    /// The slice an elastic job's new one stands for is done (§13.3).
    async fn finish_replaced(&self, replaced: &WorkloadKey, by: &ObjectKey) -> Result<(), Error> {
        let key = super::feed::object_key(replaced);
        let Some(before) = self.stores.workloads.get(&key) else { return Ok(()) };
        let mut after = (*before).clone();
        let message = format!("Replaced to accommodate a workload slice {by}");
        if !status::finish(&mut after, "WorkloadSliceReplaced", &message, self.clock.now()) {
            return Ok(());
        }
        let api: Api<Workload> = Api::namespaced(self.client.clone(), &key.namespace);
        if let Some(answer) = patch(&api, &before, &after, Part::Status, before.resource_version().as_deref()).await? {
            self.stores.workloads.observe(answer);
        }
        Ok(())
    }

    /// The decision was not carried out: the engine forgets it.
    fn take_back(&self, key: &ObjectKey, pending: &Pending) {
        let event = match pending {
            Pending::Admit(_) => Event::AdmissionFailed(workload_key(key)),
            Pending::Preempt { .. } | Pending::Evict { .. } => Event::PreemptionFailed(workload_key(key)),
            Pending::Wait(_) | Pending::Bypassed(_) => return,
        };
        self.brain.apply(event);
    }
}

/// Does it still wait for quota?
fn is_waiting(workload: &Workload) -> bool {
    !status::has_quota_reservation(workload)
        && !status::is_finished(workload)
        && status::is_active(workload)
        && !status::is_on_hold(workload)
        && workload.metadata.deletion_timestamp.is_none()
}

fn admitted_message(workload: &Workload, now: jiff::Timestamp) -> String {
    let queue = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let queue = queue.map(|admission| admission.cluster_queue.as_str()).unwrap_or_default();
    let seconds = status::seconds_since_reservation(workload, now);
    format!("Admitted by ClusterQueue {queue}, wait time since reservation was {seconds}s")
}
