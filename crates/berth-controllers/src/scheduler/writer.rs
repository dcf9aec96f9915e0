//! Writes decisions to the API after they were taken: one pending write per workload, many
//! workloads at once, the most urgent write first.
//!
//! A write applies to the version of the object from which it was computed. If the object has
//! changed, the write is computed again from the newest state. A decision is reverted in the engine
//! only if it no longer applies to that state, or if the API server rejects its write permanently.
//!
//! The order of writes matters if the API is slower than the decisions (a limited client, a busy
//! disk). Writes that free quota go first, then admissions by priority. Writes that only report why
//! a workload waits go last, if the reason still applies, and are omitted while it stays the same.
//! While decisions are written, each namespace has only a few reports. In a busy cluster, most
//! workloads are admitted before their turn, so one write per admission is all that they cost. The
//! remaining reports are written once no decision is: after ten seconds at the latest, or after a
//! minute about a workload that an equivalent one represents. While decisions are written, a
//! limited client writes only reports that are a minute old, one every two seconds.
//!
//! Cycles pause while enough decisions wait for their write: an earlier decision would hold quota
//! that no workload uses yet, and a later decision may be better.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use berth_api::kueue::events;
use berth_api::kueue::v1beta2::Workload;
use berth_engine::{Event, PendingReason};
use berth_runtime::{Clock, Manager, ObjectKey, Recorder};
use jiff::Timestamp;
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::SchedulerState;
use super::carry_out::{Change, Report, carry_out, replaced_slice};
use super::feed::{Environment, object_key, workload_key};
use super::refusals::What;
use crate::conditions::{self, truncate};
use crate::configuration::Config;
use crate::decisions::{self, Decisions};
use crate::execute::{Part, patch};
use crate::gates::{Gate, Gates};
use crate::jobs::readiness;
use crate::metrics::Metrics;
use crate::plan::PlannedEvent;
use crate::stores::{Stores, controller_of};
use crate::workload::status;

/// Maximum length of an event message, in bytes.
const EVENT_MESSAGE_MAX: usize = 1024;
/// Maximum number of writes in flight: enough to fill the batches of a durable store.
const IN_FLIGHT_MAX: usize = 64;
/// Maximum number of writes in flight that only report why a workload waits.
const REPORTS_MAX: usize = 8;
/// Maximum number of decisions that wait for their write, as a multiple of the writes in flight. At
/// this number, cycles pause until less than half of these decisions are left.
const AHEAD: usize = 2;
/// With a limited client, writes in flight are at most its rate divided by this: a more urgent
/// write cannot overtake one that already waits in the client.
const LIMITED_PART: f64 = 10.0;
/// All reports are written once no decision was written for this long.
const REPORT_PAUSE: Duration = Duration::from_secs(3);
/// The same with a limited client, whose reports delay decisions.
const REPORT_PAUSE_LIMITED: Duration = Duration::from_secs(1);
/// Number of reports about workloads of one namespace that are written at once while decisions are
/// written. A user who submits a few jobs to a busy cluster sees at once why they wait.
const REPORT_BURST: u32 = 4;
/// Time between two reports about workloads of one namespace after that; with a limited client,
/// between any two reports that are late.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);
/// Delay after which a report is written although decisions are written.
const REPORT_DELAY_MAX: Duration = Duration::from_secs(10);
/// The same for a workload that was not evaluated, because an equivalent one waits. Its report has
/// no more than the reason of that workload, and Kueue often writes none.
const REPRESENTED_DELAY_MAX: Duration = Duration::from_secs(60);
/// The same with a limited client, for both.
const REPORT_DELAY_LIMITED_MAX: Duration = Duration::from_secs(60);
/// Number of namespaces from which on those are forgotten that may use [`REPORT_BURST`] again.
const NAMESPACES_MAX: usize = 1024;
/// Delay before the first retry of a write; doubles up to [`RETRY_MAX`].
const RETRY_BASE: Duration = Duration::from_millis(5);
/// Longest delay before a retry.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Maximum number of writes that wait for a retry and do not count as in flight, as a multiple of
/// the writes in flight. More of them mean a problem of the API server, not of single objects.
const RETRYING: usize = 8;
/// Failures are logged from this delay on.
const RETRY_WARN: Duration = Duration::from_millis(80);

/// The pending writes; clones share them.
#[derive(Clone)]
pub(crate) struct Writes {
    pending: Arc<Mutex<Pending>>,
    wake: Arc<Notify>,
}

/// Order in which writes start; the first variant goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    /// Frees quota for which other workloads wait.
    Frees,
    /// Reserves quota.
    Reserves,
    /// Replaces a reason to wait that no longer applies.
    Corrects,
    /// Reports why a workload waits.
    Reports,
}

impl Urgency {
    fn is_decision(self) -> bool {
        matches!(self, Urgency::Frees | Urgency::Reserves)
    }
}

/// Sort key of a pending write: urgency, when it may be written while decisions are written
/// (reports only), descending priority, order of decisions.
type Rank = (Urgency, Option<Instant>, std::cmp::Reverse<i64>, u64);

/// A pending write.
#[derive(Debug, PartialEq)]
struct Entry {
    rank: Rank,
    /// The turn of its namespace that a report took. The report may be written before this time, by
    /// its delay or in a pause of the decisions; then the turn is returned.
    turn: Option<Instant>,
    change: Change,
}

#[derive(Default)]
struct Pending {
    changes: BTreeMap<ObjectKey, Entry>,
    order: BTreeMap<Rank, ObjectKey>,
    /// Number of writes that failed and wait for their retry: other writes may start in their
    /// place.
    retrying: usize,
    /// Keys of writes in flight; true for those that only report.
    in_flight: BTreeMap<ObjectKey, bool>,
    sequence: u64,
    /// Number of pending changes that are decisions.
    decisions: usize,
    /// Cycles pause at this number of pending decisions.
    decisions_max: usize,
    /// True if cycles are paused.
    is_paused: bool,
    /// True if the client is limited.
    limited: bool,
    /// When the last write of a decision started.
    decided: Option<Instant>,
    /// When the last report was started.
    reported: Option<Instant>,
    /// When all turns to report that namespaces took are over, by namespace.
    reports_due: HashMap<String, Instant>,
}

impl Pending {
    fn insert(&mut self, key: ObjectKey, urgency: Urgency, priority: i64, change: Change) {
        let now = Instant::now();
        let known = self.take(&key);
        self.sequence += 1;
        let latest = now
            + match change {
                _ if self.limited => REPORT_DELAY_LIMITED_MAX,
                Change::Bypassed(_) => REPRESENTED_DELAY_MAX,
                _ => REPORT_DELAY_MAX,
            };
        let (due, turn) = match (urgency, known) {
            // A report that replaces another one keeps its turn.
            (Urgency::Reports, Some(Entry { rank: (Urgency::Reports, due, ..), turn, .. })) => {
                (due.map(|due| due.min(latest)), turn)
            }
            (Urgency::Reports, _) if self.limited => (Some(latest), None),
            (Urgency::Reports, _) => {
                let turn = self.take_turn(&key.namespace, now);
                (Some(turn.min(latest)), Some(turn))
            }
            (_, known) => {
                self.return_turn(&key.namespace, known.and_then(|known| known.turn), now);
                (None, None)
            }
        };
        let rank = (urgency, due, std::cmp::Reverse(priority), self.sequence);
        self.decisions += usize::from(rank.0.is_decision());
        self.order.insert(rank, key.clone());
        self.changes.insert(key, Entry { rank, turn, change });
    }

    /// Takes the next turn of a namespace to report, and returns its time.
    fn take_turn(&mut self, namespace: &str, now: Instant) -> Instant {
        if self.reports_due.len() >= NAMESPACES_MAX {
            self.reports_due.retain(|_, next| *next > now);
        }
        let next = self.reports_due.entry(namespace.to_owned()).or_insert(now);
        *next = (*next).max(now) + REPORT_INTERVAL;
        next.checked_sub(REPORT_INTERVAL * REPORT_BURST).unwrap_or(now).max(now)
    }

    /// Returns the turn of a report that is not written, or is written before its turn.
    fn return_turn(&mut self, namespace: &str, turn: Option<Instant>, now: Instant) {
        let is_unused = turn.is_some_and(|turn| turn > now);
        if let Some(next) = self.reports_due.get_mut(namespace).filter(|_| is_unused) {
            *next = next.checked_sub(REPORT_INTERVAL).unwrap_or(*next);
        }
    }

    fn take(&mut self, key: &ObjectKey) -> Option<Entry> {
        let entry = self.changes.remove(key)?;
        self.order.remove(&entry.rank);
        self.decisions -= usize::from(entry.rank.0.is_decision());
        Some(entry)
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<Change> {
        let entry = self.take(key)?;
        self.return_turn(&key.namespace, entry.turn, Instant::now());
        Some(entry.change)
    }

    /// True if cycles may take more decisions. Otherwise [`Pending::resumes`] ends the pause.
    fn accepts_decisions(&mut self) -> bool {
        self.is_paused |= self.decisions >= self.decisions_max;
        !self.is_paused
    }

    /// True once after [`Pending::accepts_decisions`] returned false, when enough has been written.
    fn resumes(&mut self) -> bool {
        let resumes = self.is_paused && self.decisions * 2 < self.decisions_max;
        self.is_paused &= !resumes;
        resumes
    }

    /// When the report with this rank may be written, if no further decision is written until then.
    fn may_report_at(&self, rank: &Rank) -> Option<Instant> {
        let decided = self.decided?;
        if self.limited {
            let pause = decided + REPORT_PAUSE_LIMITED;
            let late = rank.1.map(|due| self.reported.map_or(due, |last| due.max(last + REPORT_INTERVAL)));
            return Some(late.map_or(pause, |late| late.min(pause)));
        }
        rank.1.map(|due| due.min(decided + REPORT_PAUSE))
    }

    /// When the next report may be written, if the next write is a report that must wait after
    /// `now`.
    fn waits_until(&self, now: Instant) -> Option<Instant> {
        let (rank, _) = self.order.iter().find(|(_, key)| !self.in_flight.contains_key(*key))?;
        self.may_report_at(rank).filter(|at| !rank.0.is_decision() && *at > now)
    }

    /// The most urgent write that may start at this time.
    fn next(&mut self, now: Instant) -> Option<(ObjectKey, Change)> {
        let reports = self.in_flight.values().filter(|is_report| **is_report).count();
        // At most one write per object is in flight.
        let (rank, key) = self.order.iter().find(|(_, key)| !self.in_flight.contains_key(*key))?;
        let is_report = !rank.0.is_decision();
        let is_early = || self.may_report_at(rank).is_some_and(|at| at > now);
        if is_report && (reports >= REPORTS_MAX || is_early()) {
            return None;
        }
        let last = if is_report { &mut self.reported } else { &mut self.decided };
        *last = Some(now);
        let key = key.clone();
        let change = self.remove(&key)?;
        self.in_flight.insert(key.clone(), is_report);
        Some((key, change))
    }
}

impl Writes {
    /// Adds a write. It replaces an earlier pending one about the same workload, because the engine
    /// knew the earlier decision when it took this one. Returns false if the two cancel each other
    /// out: an admission that was not written yet is withdrawn, and nothing is written.
    ///
    /// `shown`: why the workload waits according to its object.
    #[must_use]
    pub(super) fn add(&self, key: ObjectKey, priority: i64, change: Change, shown: Option<PendingReason>) -> bool {
        let urgency = match &change {
            Change::Preempt(_) | Change::Evict(_) | Change::ReplaceSlice { .. } => Urgency::Frees,
            Change::Admit(_) => Urgency::Reserves,
            Change::Wait(_) | Change::Bypassed(_) if shown.is_some_and(PendingReason::is_block) => Urgency::Corrects,
            Change::Wait(_) | Change::Bypassed(_) => Urgency::Reports,
        };
        let mut pending = self.lock();
        let known = pending.changes.get(&key).map(|entry| &entry.change);
        let admits = matches!(known, Some(Change::Admit(admit)) if !admit.second_pass);
        if evicts(&change) && admits {
            pending.remove(&key);
            return false;
        }
        pending.insert(key, urgency, priority, change);
        drop(pending);
        self.wake.notify_one();
        true
    }

    /// Withdraws a pending report: the object already states the reason. Returns false if a write
    /// about the workload is in flight, which may state another reason.
    #[must_use]
    pub(super) fn withdraw_report(&self, key: &ObjectKey) -> bool {
        let mut pending = self.lock();
        if pending.changes.get(key).is_some_and(|entry| !entry.rank.0.is_decision()) {
            pending.remove(key);
        }
        !pending.in_flight.contains_key(key)
    }

    /// False if cycles must pause; the scheduler is woken when they may continue.
    pub(super) fn accept_decisions(&self) -> bool {
        self.lock().accepts_decisions()
    }

    /// True if a write about this workload is pending or in flight.
    pub(crate) fn concern(&self, key: &ObjectKey) -> bool {
        let pending = self.lock();
        pending.changes.contains_key(key) || pending.in_flight.contains_key(key)
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Pending> {
        self.pending.lock()
    }

    fn done(&self, key: &ObjectKey) {
        self.lock().in_flight.remove(key);
    }
}

/// Adds the writer to the manager.
pub(super) fn install(
    manager: &mut Manager,
    config: &Arc<Config>,
    stores: &Stores,
    environment: &Environment,
    scheduler: &SchedulerState,
    metrics: &Metrics,
    decisions: &Decisions,
) -> Writes {
    let (client, clock, recorder) = (manager.client(), manager.clock(), manager.recorder("berth-admission"));
    let writes = Writes { pending: Arc::default(), wake: Arc::default() };
    let writer = Arc::new(Writer {
        client,
        clock,
        recorder,
        scheduler: scheduler.clone(),
        stores: stores.clone(),
        environment: environment.clone(),
        gates: config.gates(),
        tracks_readiness: config.pods_ready().is_some(),
        writes: writes.clone(),
        metrics: metrics.clone(),
        decisions: decisions.clone(),
    });
    let in_flight = config.client_limit.map_or(IN_FLIGHT_MAX, |limit| {
        // The cast truncates the quotient, which is a small number.
        ((limit.qps / LIMITED_PART) as usize).clamp(2, IN_FLIGHT_MAX)
    });
    {
        let mut pending = writes.lock();
        pending.limited = config.client_limit.is_some();
        pending.decisions_max = in_flight * AHEAD;
    }
    manager.task("scheduler-writes", run(writer, in_flight));
    writes
}

/// Starts writes as they arrive, within the limits of writes in flight.
async fn run(writer: Arc<Writer>, in_flight: usize) {
    let mut running = JoinSet::new();
    loop {
        // One time for both questions: a report that is due between them would not be started.
        let mut now;
        loop {
            now = Instant::now();
            let next = {
                let mut pending = writer.writes.lock();
                let lent = pending.retrying.min(in_flight * RETRYING);
                if running.len() < in_flight + lent { pending.next(now) } else { None }
            };
            let Some((key, change)) = next else { break };
            let writer = writer.clone();
            running.spawn(async move {
                writer.write(&key, change).await;
                key
            });
        }
        let (resumes, waits_until) = {
            let mut pending = writer.writes.lock();
            (pending.resumes(), pending.waits_until(now))
        };
        if resumes {
            writer.scheduler.wake_after(Duration::ZERO);
        }
        tokio::select! {
            biased;
            Some(ended) = running.join_next(), if !running.is_empty() => match ended {
                Ok(key) => writer.writes.done(&key),
                // The panic continues in this task, and the manager reports it.
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
            () = writer.writes.wake.notified() => {}
            // Nothing else wakes this loop when a report may be written.
            () = sleep_until(waits_until), if waits_until.is_some() => {}
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    if let Some(at) = at {
        tokio::time::sleep_until(at).await;
    }
}

struct Writer {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    scheduler: SchedulerState,
    stores: Stores,
    environment: Environment,
    gates: Gates,
    /// True if the condition PodsReady is maintained.
    tracks_readiness: bool,
    writes: Writes,
    metrics: Metrics,
    decisions: Decisions,
}

impl Writer {
    /// Writes a change; retries until it is written, rejected permanently or replaced.
    async fn write(&self, key: &ObjectKey, mut change: Change) {
        let mut pause = RETRY_BASE;
        while let Err(error) = self.attempt(key, &change).await {
            if pause >= RETRY_WARN {
                let error = berth_runtime::brief(&error);
                tracing::warn!(%key, %error, ?pause, "a decision could not be written yet, retrying");
            }
            self.writes.lock().retrying += 1;
            self.writes.wake.notify_one();
            self.clock.sleep(pause).await;
            self.writes.lock().retrying -= 1;
            pause = (pause * 2).min(RETRY_MAX);
            // A later decision about the workload replaces this one.
            let later = self.writes.lock().remove(key);
            if let Some(later) = later {
                if matches!(&change, Change::Admit(admit) if !admit.second_pass) && evicts(&later) {
                    // The admission was never written, so both are reverted.
                    self.revert(key, &later);
                    self.revert(key, &change);
                    return;
                }
                change = later;
            }
        }
    }

    /// Writes a change once. An error means that the write must be retried.
    async fn attempt(&self, key: &ObjectKey, change: &Change) -> Result<(), kube::Error> {
        // The workload was deleted, and the watch has reported that to the engine.
        let Some(before) = self.stores.workloads.get(key) else { return Ok(()) };
        let now = self.clock.now();
        let Some((mut after, reports)) = carry_out(change, &before, &self.gates, now) else {
            self.revert(key, change);
            return Ok(());
        };
        self.stores.devices.restate_status(&mut after);
        if self.tracks_readiness && self.is_start_of_a_job(change, &before, &after) {
            // The job's integration would write this condition next, before it starts the job.
            readiness::sync(&mut after, || false, self.clock.now());
        }
        if reports_nothing_new(change, &before, &after) {
            return Ok(());
        }
        if matches!(change, Change::Admit(admit) if !admit.second_pass) {
            self.scheduler.reserved(workload_key(key), self.scheduler.now());
        }
        // The cache may show the object before the response to the write arrives, and an eviction
        // would be recorded from the object, with less information.
        let record = decisions::of_change(change, &before, &after, now);
        if let Some(record) = &record {
            self.decisions.begin(record);
        }
        let api: Api<Workload> = Api::namespaced(self.client.clone(), &key.namespace);
        let written = patch(&api, &before, &after, Part::Status, before.resource_version().as_deref()).await;
        match (&written, record) {
            (Ok(_), Some(record)) => self.decisions.add(record),
            (Err(_), Some(_)) => self.decisions.abandon(key, self.stores.workloads.get(key).as_deref()),
            (_, None) => {}
        }
        match written {
            Ok(answer) => {
                if let Some(answer) = answer {
                    self.stores.workloads.observe(answer);
                }
                reports.into_iter().for_each(|report| self.record(report));
                if matches!(change, Change::Admit(_)) {
                    self.scheduler.accepted(&workload_key(key));
                }
                if let Change::Admit(admit) = change
                    && let Some((replaced, change)) = replaced_slice(&after, admit)
                {
                    // The admission of the replaced slice was written long ago, so nothing pending
                    // can cancel this.
                    let _ = self.writes.add(
                        object_key(&replaced),
                        i64::from(after.spec.priority.unwrap_or(0)),
                        change,
                        None,
                    );
                }
                if let Change::Preempt(victim) = change {
                    self.metrics.preempted(&victim.preemption.cluster_queue, victim.reason.as_str());
                }
                Ok(())
            }
            Err(error) if berth_runtime::is_not_found(&error) => Ok(()),
            Err(error) if berth_runtime::is_rejected(&error) => {
                tracing::warn!(%key, error = berth_runtime::brief(&error), "a decision could not be written");
                if matches!(change, Change::Admit(admit) if !admit.second_pass) {
                    self.postpone(key, &before, &error);
                }
                self.revert(key, change);
                if let Change::Evict(eviction) = change
                    && let Some(message) = eviction.unplaced()
                {
                    let event = PlannedEvent::warning(events::SECOND_PASS_FAILED, message);
                    self.record(Report { about: workload_key(key), event, unnamed: None });
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

impl Writer {
    /// True if the change admits a job that an integration will start and that has no running pods.
    fn is_start_of_a_job(&self, change: &Change, before: &Workload, after: &Workload) -> bool {
        let is_first = matches!(change, Change::Admit(admit) if !admit.second_pass && admit.replaces.is_none());
        if !is_first || status::is_admitted(before) || !status::is_admitted(after) {
            return false;
        }
        let Some(owner) = controller_of(&after.metadata) else { return false };
        let namespace = after.metadata.namespace.as_deref().unwrap_or_default();
        let known = self.stores.named_owner(namespace, owner).flatten();
        known.is_some_and(|known| known.uid.as_deref() == Some(owner.uid.as_str()))
    }
}

/// True if the change evicts the workload.
fn evicts(change: &Change) -> bool {
    matches!(change, Change::Preempt(_) | Change::Evict(_))
}

/// True if the object of a waiting workload already states what this change reports. `shown`: why
/// the workload waits according to its object.
pub(super) fn is_reported(
    stores: &Stores,
    gates: &Gates,
    shown: Option<PendingReason>,
    key: &ObjectKey,
    change: &Change,
    now: Timestamp,
) -> bool {
    // Without granular reasons, objects do not state the reason of the engine.
    if !gates.on(Gate::UnadmittedWorkloadsObservability) {
        return false;
    }
    match change {
        // There may be thousands of them, and their objects are not read.
        Change::Bypassed(reason) => shown == Some(*reason),
        Change::Wait(wait) if shown == Some(wait.reason()) => {
            let Some(before) = stores.workloads.get(key) else { return true };
            carry_out(change, &before, gates, now).is_some_and(|(mut after, _)| {
                stores.devices.restate_status(&mut after);
                reports_nothing_new(change, &before, &after)
            })
        }
        _ => false,
    }
}

/// True if a write would only change the message about the reason why a workload waits. The
/// messages of one reason differ in the missing amounts; most writes would only update these.
fn reports_nothing_new(change: &Change, before: &Workload, after: &Workload) -> bool {
    match change {
        Change::Bypassed(_) => {}
        Change::Wait(wait) if !wait.second_pass_failed => {}
        _ => return false,
    }
    let waits =
        status::condition(before, conditions::QUOTA_RESERVED).is_some_and(|condition| condition.status == "False");
    let [old, new] = [before, after].map(|workload| workload.status.as_ref().map(|status| &status.resource_requests));
    waits && same_conditions(before, after) && old == new
}

/// True if the conditions differ only in messages and times.
fn same_conditions(before: &Workload, after: &Workload) -> bool {
    fn states(workload: &Workload) -> impl Iterator<Item = (&str, &str, &str)> {
        // Conditions keep their order.
        status::conditions(workload).iter().map(|it| (it.type_.as_str(), it.status.as_str(), it.reason.as_str()))
    }
    states(before).eq(states(after))
}

impl Writer {
    /// Records an event, unless the workload was deleted.
    fn record(&self, report: Report) {
        if let Some(about) = self.stores.workloads.get(&object_key(&report.about)) {
            let message = truncate(report.message(), EVENT_MESSAGE_MAX);
            let PlannedEvent { event_type, reason, .. } = &report.event;
            // A workload with many victims has one event with a count, as in Kueue. Each victim has
            // events of its own.
            if reason == events::PREEMPTED_WORKLOAD {
                self.recorder.event_in_series(about.as_ref(), *event_type, reason, &message);
            } else {
                self.recorder.event(about.as_ref(), *event_type, reason, &message);
            }
        }
    }

    /// Delays the next evaluation of a workload, because the API server rejected its admission
    /// permanently, and reports that in an event.
    fn postpone(&self, key: &ObjectKey, refused: &Workload, error: &kube::Error) {
        self.scheduler.refused(workload_key(key), What::of(refused));
        if self.scheduler.feed_again(&self.environment, &self.stores.workloads, key) {
            let message = format!("The API server rejected the admission: {}", berth_runtime::message(error));
            let event = PlannedEvent::warning("AdmissionRefused", message);
            self.record(Report { about: workload_key(key), event, unnamed: None });
        }
    }

    /// Reverts a decision in the engine that was not written.
    fn revert(&self, key: &ObjectKey, change: &Change) {
        let event = match change {
            Change::Admit(_) => Event::AdmissionFailed(workload_key(key)),
            Change::Preempt(_) | Change::Evict(_) => Event::PreemptionFailed(workload_key(key)),
            Change::Wait(_) | Change::Bypassed(_) | Change::ReplaceSlice { .. } => return,
        };
        self.scheduler.apply(event);
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::namespaced("team", name)
    }

    fn report() -> Change {
        Change::Bypassed(berth_engine::PendingReason::PendingEvaluation)
    }

    fn evict() -> Change {
        Change::Evict(Box::new(berth_engine::Eviction::FlavorMigration { sibling_uid: "uid".into() }))
    }

    #[test]
    fn the_most_urgent_write_goes_first_and_an_object_has_one_write_in_flight() {
        let mut pending = Pending::default();
        pending.insert(key("waits"), Urgency::Reports, 1000, report());
        pending.insert(key("low"), Urgency::Reserves, 1, report());
        pending.insert(key("high"), Urgency::Reserves, 9, report());
        pending.insert(key("resumed"), Urgency::Corrects, 0, report());
        pending.insert(key("victim"), Urgency::Frees, 0, evict());
        let order: Vec<String> = std::iter::from_fn(|| pending.next(Instant::now())).map(|(key, _)| key.name).collect();
        assert_eq!(order, ["victim", "high", "low", "resumed", "waits"]);
        pending.insert(key("low"), Urgency::Frees, 1, evict());
        assert_eq!(pending.next(Instant::now()), None, "a write about this workload is in flight");
        pending.in_flight.remove(&key("low"));
        assert_eq!(pending.next(Instant::now()).map(|(key, _)| key.name).as_deref(), Some("low"));
    }

    #[test]
    fn a_later_change_replaces_a_pending_one() {
        let mut pending = Pending::default();
        pending.insert(key("a"), Urgency::Reports, 0, report());
        pending.insert(key("a"), Urgency::Frees, 0, evict());
        assert_eq!(pending.order.keys().collect::<Vec<_>>(), [&(Urgency::Frees, None, Reverse(0), 2)]);
        assert_eq!(pending.next(Instant::now()), Some((key("a"), evict())));
        assert_eq!(pending.next(Instant::now()), None);
    }

    #[test]
    fn an_eviction_withdraws_an_admission_that_is_not_written_yet() {
        let writes = Writes { pending: Arc::default(), wake: Arc::default() };
        let admit = || {
            Change::Admit(Box::new(berth_engine::Admit {
                admission: berth_engine::model::Admission { cluster_queue: "cq".into(), pod_sets: Vec::new() },
                checks: Vec::new(),
                second_pass: false,
                replaces: None,
                considered: Default::default(),
            }))
        };
        // A report is in flight when the workload is admitted and evicted again.
        assert!(writes.add(key("a"), 0, report(), None));
        assert!(writes.lock().next(Instant::now()).is_some());
        assert!(writes.add(key("a"), 0, admit(), None));
        assert!(!writes.add(key("a"), 0, evict(), None), "admission and eviction cancel each other out");
        writes.done(&key("a"));
        assert_eq!(writes.lock().next(Instant::now()), None);
        // An admission in flight cannot be withdrawn.
        assert!(writes.add(key("a"), 0, admit(), None));
        assert!(writes.lock().next(Instant::now()).is_some());
        assert!(writes.add(key("a"), 0, evict(), None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limited_client_writes_reports_only_while_there_are_no_decisions() {
        let mut pending = Pending { limited: true, ..Pending::default() };
        pending.insert(key("a"), Urgency::Reserves, 0, evict());
        pending.insert(key("b"), Urgency::Reports, 0, report());
        assert!(pending.next(Instant::now()).is_some());
        assert_eq!(pending.next(Instant::now()), None);
        tokio::time::advance(REPORT_PAUSE_LIMITED).await;
        assert_eq!(pending.next(Instant::now()).map(|(key, _)| key.name).as_deref(), Some("b"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limited_client_writes_late_reports_one_by_one_while_decisions_are_written() {
        let mut pending = Pending { limited: true, ..Pending::default() };
        (0..9).for_each(|number| pending.insert(key(&number.to_string()), Urgency::Reports, 0, report()));
        let mut reports = Vec::new();
        for tenths in 0..=660_u64 {
            pending.insert(key("admitted"), Urgency::Reserves, 0, report());
            while let Some((key, _)) = pending.next(Instant::now()) {
                pending.in_flight.remove(&key);
                reports.extend((key.name != "admitted").then_some(tenths));
            }
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert_eq!(reports, [600, 620, 640, 660]);
    }

    #[tokio::test(start_paused = true)]
    async fn many_reports_of_a_namespace_do_not_delay_its_reports_of_a_later_minute() {
        let mut pending = Pending::default();
        let decide = |pending: &mut Pending| {
            pending.insert(key("admitted"), Urgency::Reserves, 0, report());
            let mut reports = 0;
            while let Some((key, _)) = pending.next(Instant::now()) {
                pending.in_flight.remove(&key);
                reports += usize::from(key.name != "admitted");
            }
            reports
        };
        (0..500).for_each(|number| pending.insert(key(&number.to_string()), Urgency::Reports, 0, report()));
        assert_eq!(decide(&mut pending), 4);
        let mut reports = 0;
        for _ in 0..90 {
            tokio::time::advance(Duration::from_secs(1)).await;
            reports += decide(&mut pending);
        }
        assert_eq!(reports, 496, "after a minute");
        pending.insert(key("next"), Urgency::Reports, 0, report());
        assert_eq!(decide(&mut pending), 1, "at once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_has_few_reports_while_decisions_are_written_and_all_afterwards() {
        let mut pending = Pending::default();
        let report_on = |pending: &mut Pending, namespace: &str, number: usize| {
            let key = ObjectKey::namespaced(namespace, format!("{number}"));
            pending.insert(key, Urgency::Reports, 0, report());
        };
        let written = |pending: &mut Pending| {
            let count = |name: &str, keys: &[ObjectKey]| keys.iter().filter(|key| key.namespace == name).count();
            let mut keys = Vec::new();
            while let Some((key, _)) = pending.next(Instant::now()) {
                pending.in_flight.remove(&key);
                keys.push(key);
            }
            (count("busy", &keys), count("quiet", &keys))
        };
        let decide = |pending: &mut Pending| pending.insert(key("admitted"), Urgency::Reserves, 0, report());
        let pass = |millis: u64| tokio::time::advance(Duration::from_millis(millis));
        (0..100).for_each(|number| report_on(&mut pending, "busy", number));
        decide(&mut pending);
        assert_eq!(written(&mut pending), (4, 0), "a burst");
        pending.insert(ObjectKey::namespaced("busy", "resumed"), Urgency::Corrects, 0, report());
        assert_eq!(written(&mut pending), (1, 0), "a wrong reason is corrected at once");
        assert_eq!(pending.waits_until(Instant::now()), Some(Instant::now() + REPORT_INTERVAL));
        pass(900).await;
        decide(&mut pending);
        // Another namespace has a burst of its own, and need not wait for the first one.
        (0..5).for_each(|number| report_on(&mut pending, "quiet", number));
        assert_eq!(written(&mut pending), (0, 4));
        pass(900).await;
        decide(&mut pending);
        assert_eq!(written(&mut pending), (0, 0));
        assert_eq!(pending.waits_until(Instant::now()), Some(Instant::now() + Duration::from_millis(200)));
        pass(300).await;
        assert_eq!(written(&mut pending), (1, 0), "the first of one every two seconds");
        // A report about the same workload keeps its turn; a workload that is admitted needs none.
        report_on(&mut pending, "busy", 5);
        pending.insert(ObjectKey::namespaced("busy", "6"), Urgency::Reserves, 0, report());
        assert_eq!(written(&mut pending), (1, 0), "the admission");
        pass(900).await;
        decide(&mut pending);
        assert_eq!(written(&mut pending), (0, 1));
        pass(950).await;
        assert_eq!(written(&mut pending), (0, 0));
        pass(100).await;
        assert_eq!(written(&mut pending), (1, 0), "the second");
        pass(1950).await;
        assert_eq!(written(&mut pending), (93, 0), "no decision was written for three seconds");
        // Reports that were written before their turn do not delay later ones.
        pass(6000).await;
        decide(&mut pending);
        (100..110).for_each(|number| report_on(&mut pending, "busy", number));
        assert_eq!(written(&mut pending), (4, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reason_is_reported_within_ten_seconds_or_a_minute_if_an_equivalent_workload_states_it() {
        let mut pending = Pending::default();
        let evaluated = || {
            Change::Wait(Box::new(berth_engine::Wait {
                cause: Default::default(),
                second_pass_failed: false,
                requests: Default::default(),
                considered: Default::default(),
            }))
        };
        let mut written = Vec::new();
        for number in 0..200 {
            pending.insert(key(&format!("turn-{number}")), Urgency::Reports, 0, report());
        }
        pending.insert(key("represented"), Urgency::Reports, 0, report());
        pending.insert(key("evaluated"), Urgency::Reports, 0, evaluated());
        pending.insert(key("evaluated-later"), Urgency::Reports, 0, report());
        for second in 0..=61 {
            pending.insert(key("admitted"), Urgency::Reserves, 0, evict());
            if second == 20 {
                pending.insert(key("evaluated-later"), Urgency::Reports, 0, evaluated());
            }
            while let Some((key, _)) = pending.next(Instant::now()) {
                pending.in_flight.remove(&key);
                written.push((key.name, second));
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let at = |name: &str| written.iter().find(|(written, _)| written == name).map(|(_, second)| *second);
        assert_eq!(["evaluated", "evaluated-later", "represented"].map(at), [Some(10), Some(30), Some(60)]);
        let turns = written.iter().filter(|(name, second)| name.starts_with("turn-") && *second < 60).count();
        assert_eq!(turns, 4 + 59 / 2, "a burst, and one every two seconds");
    }

    #[test]
    fn cycles_pause_while_many_decisions_wait_for_their_write() {
        let mut pending = Pending { decisions_max: 4, ..Pending::default() };
        for number in 0..9 {
            pending.insert(key(&format!("report-{number}")), Urgency::Reports, 0, report());
        }
        for number in 0..4 {
            assert!(pending.accepts_decisions());
            pending.insert(key(&number.to_string()), Urgency::Reserves, 0, evict());
        }
        // A change that replaces another change counts once.
        pending.insert(key("3"), Urgency::Frees, 0, evict());
        assert!(!pending.accepts_decisions());
        let mut start = || {
            pending.next(Instant::now());
            (pending.resumes(), pending.decisions)
        };
        assert_eq!([start(), start(), start(), start()], [(false, 3), (false, 2), (true, 1), (false, 0)]);
        assert!(pending.accepts_decisions());
    }

    #[test]
    fn reports_leave_capacity_for_decisions() {
        let mut pending = Pending::default();
        for number in 0..2 * REPORTS_MAX {
            pending.insert(key(&number.to_string()), Urgency::Reports, 0, report());
        }
        assert_eq!(std::iter::from_fn(|| pending.next(Instant::now())).count(), REPORTS_MAX);
        pending.insert(key("urgent"), Urgency::Reserves, 0, evict());
        assert!(pending.next(Instant::now()).is_some());
    }
}
