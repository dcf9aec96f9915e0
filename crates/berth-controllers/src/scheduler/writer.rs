//! Writes decisions behind: one pending write per workload, many workloads at once, the most urgent first.
//!
//! A write applies to the version it was computed from. If the object changed meanwhile it is computed anew from the
//! newest state; only when the decision no longer makes sense for that state, or the server refuses it for good, is it
//! taken back from the engine.
//!
//! Where the API is slower than the decisions (a limited client, a busy disk), order is what counts: what frees quota goes
//! first, then admissions by priority, and what only tells why a workload waits goes last, if it is still true then. Telling is
//! left out while the reason stays the same. And no more is decided than is about to be written: a decision made ahead of its
//! write would hold quota that nobody uses yet, and could only be made better later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_api::kueue::events;
use berth_api::kueue::v1beta2::Workload;
use berth_engine::Event;
use berth_runtime::{Clock, EventType, Manager, ObjectKey, Recorder};
use kube::{Api, Client, ResourceExt};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::SchedulerState;
use super::carry_out::{Change, Notice, carry_out, replaced_slice};
use super::feed::{Environment, object_key, workload_key};
use super::refusals::What;
use crate::conditions::{self, truncate};
use crate::configuration::Config;
use crate::decisions::{self, Decisions};
use crate::execute::{Part, patch};
use crate::gates::Gates;
use crate::jobs::readiness;
use crate::metrics::Metrics;
use crate::stores::{Stores, controller_of};
use crate::workload::status;

/// Longest event message.
const EVENT_MESSAGE_MAX: usize = 1024;
/// Writes in flight at once: enough to fill a durable store's batches.
const IN_FLIGHT_MAX: usize = 64;
/// Of those, writes that only tell why a workload waits.
const TELLING_MAX: usize = 8;
/// Decisions that wait for their write beyond those in flight, in times of what may be in flight; from then on nothing more is
/// decided until less than half of that waits.
const AHEAD: usize = 2;
/// With a limited client no more writes are in flight than it lets through in this part of a second: what waits in the
/// client can no longer be overtaken.
const LIMITED_PART: f64 = 10.0;
/// With a limited client nothing is told before no decision was written for so long: each telling takes the place of a
/// decision.
const TELLING_PAUSE: Duration = Duration::from_secs(1);
/// First pause before a write is tried again; doubles up to [`RETRY_MAX`].
const RETRY_BASE: Duration = Duration::from_millis(5);
/// Longest pause.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Writes that wait to be tried again and have left their places to others, in times of what may be in flight: beyond, the server
/// is in trouble and not some objects.
const RETRYING: usize = 8;
/// From this pause on failures are shown to the operator.
const RETRY_WARN: Duration = Duration::from_millis(80);

/// The pending writes; clones share them.
#[derive(Clone)]
pub(crate) struct Writes {
    pending: Arc<Mutex<Pending>>,
    wake: Arc<Notify>,
}

/// What can wait for what; the first goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    /// Frees quota somebody waits for.
    Frees,
    /// Gives quota.
    Gives,
    /// Tells why a workload waits.
    Tells,
}

impl Urgency {
    fn decides(self) -> bool {
        self != Urgency::Tells
    }
}

/// Place of a write among the pending ones: urgency, descending priority, order of decisions.
type Rank = (Urgency, std::cmp::Reverse<i64>, u64);

#[derive(Default)]
struct Pending {
    changes: BTreeMap<ObjectKey, (Rank, Change)>,
    order: BTreeMap<Rank, ObjectKey>,
    /// Writes that failed and are tried again later: meanwhile others have their places.
    retrying: usize,
    /// Keys of writes that are in flight, and whether they only tell.
    in_flight: BTreeMap<ObjectKey, bool>,
    sequence: u64,
    /// Changes that do more than tell.
    decisions: usize,
    /// From so many decisions on nothing more is decided.
    decisions_max: usize,
    /// Somebody was told to decide nothing more for now.
    held_back: bool,
    /// The client is limited.
    limited: bool,
    /// When a write that does more than tell was started last.
    decided: Option<Instant>,
}

impl Pending {
    fn insert(&mut self, key: ObjectKey, urgency: Urgency, priority: i64, change: Change) {
        self.remove(&key);
        self.sequence += 1;
        let rank = (urgency, std::cmp::Reverse(priority), self.sequence);
        self.decisions += usize::from(rank.0.decides());
        self.order.insert(rank, key.clone());
        self.changes.insert(key, (rank, change));
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<Change> {
        let (rank, change) = self.changes.remove(key)?;
        self.order.remove(&rank);
        self.decisions -= usize::from(rank.0.decides());
        Some(change)
    }

    /// May more be decided? After a no [`Pending::goes_on`] says when.
    fn has_room(&mut self) -> bool {
        self.held_back |= self.decisions >= self.decisions_max;
        !self.held_back
    }

    /// True once after [`Pending::has_room`] said no, when enough has been written.
    fn goes_on(&mut self) -> bool {
        let goes_on = self.held_back && self.decisions * 2 < self.decisions_max;
        self.held_back &= !goes_on;
        goes_on
    }

    /// Is the client limited, and was there a decision to write just now?
    fn is_deciding(&self) -> bool {
        self.limited && self.decided.is_some_and(|at| at.elapsed() < TELLING_PAUSE)
    }

    /// The most urgent write that may start.
    fn next(&mut self) -> Option<(ObjectKey, Change)> {
        let telling = self.in_flight.values().filter(|tells| **tells).count();
        // One object is written once at a time.
        let (rank, key) = self.order.iter().find(|(_, key)| !self.in_flight.contains_key(*key))?;
        let tells = !rank.0.decides();
        if tells && (telling >= TELLING_MAX || self.is_deciding()) {
            return None;
        }
        if !tells {
            self.decided = Some(Instant::now());
        }
        let key = key.clone();
        let change = self.remove(&key)?;
        self.in_flight.insert(key.clone(), tells);
        Some((key, change))
    }
}

impl Writes {
    /// Adds a write. Of two about one workload the later one counts: the engine decided it knowing the earlier one. False
    /// when the two cancel each other out: quota that was given but not written yet is not given, and nothing is written.
    /// Changes of one urgency are written by descending priority.
    #[must_use]
    pub(super) fn add(&self, key: ObjectKey, priority: i64, change: Change) -> bool {
        let urgency = match &change {
            Change::Preempt(_) | Change::Evict(_) | Change::ReplaceSlice { .. } => Urgency::Frees,
            Change::Admit(_) => Urgency::Gives,
            Change::Wait(_) | Change::Bypassed(_) => Urgency::Tells,
        };
        let mut pending = self.lock();
        let given = matches!(pending.changes.get(&key), Some((_, Change::Admit(admit))) if !admit.second_pass);
        if throws_out(&change) && given {
            pending.remove(&key);
            return false;
        }
        pending.insert(key, urgency, priority, change);
        drop(pending);
        self.wake.notify_one();
        true
    }

    /// False when enough is decided for now: the cycle is woken when more may be.
    pub(super) fn has_room(&self) -> bool {
        self.lock().has_room()
    }

    /// Is a decision about this workload about to be written?
    pub(crate) fn concern(&self, key: &ObjectKey) -> bool {
        let pending = self.lock();
        pending.changes.contains_key(key) || pending.in_flight.contains_key(key)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().expect("no code panics while holding the writes' lock")
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
        tells_readiness: config.pods_ready().is_some(),
        writes: writes.clone(),
        metrics: metrics.clone(),
        decisions: decisions.clone(),
    });
    let in_flight = config.client_limit.map_or(IN_FLIGHT_MAX, |limit| {
        // Truncated on purpose: a rate of requests is a small number.
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

/// Starts writes as they come and as there is room.
async fn run(writer: Arc<Writer>, in_flight: usize) {
    let mut running = JoinSet::new();
    loop {
        loop {
            let next = {
                let mut pending = writer.writes.lock();
                let lent = pending.retrying.min(in_flight * RETRYING);
                if running.len() < in_flight + lent { pending.next() } else { None }
            };
            let Some((key, change)) = next else { break };
            let writer = writer.clone();
            running.spawn(async move {
                writer.write(&key, change).await;
                key
            });
        }
        let (goes_on, holds_back) = {
            let mut pending = writer.writes.lock();
            (pending.goes_on(), pending.limited && !pending.changes.is_empty())
        };
        if goes_on {
            writer.scheduler.wake_after(Duration::ZERO);
        }
        tokio::select! {
            biased;
            Some(ended) = running.join_next(), if !running.is_empty() => match ended {
                Ok(key) => writer.writes.done(&key),
                // As if it had happened here: the manager reports it.
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
            () = writer.writes.wake.notified() => {}
            // What only tells has to wait for a pause, which nobody else tells of.
            () = tokio::time::sleep(TELLING_PAUSE), if holds_back => {}
        }
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
    /// Condition PodsReady is kept.
    tells_readiness: bool,
    writes: Writes,
    metrics: Metrics,
    decisions: Decisions,
}

impl Writer {
    /// Carries a change out, however often it takes.
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
            // A later decision about it takes the place of this one.
            let later = self.writes.lock().remove(key);
            if let Some(later) = later {
                if matches!(&change, Change::Admit(admit) if !admit.second_pass) && throws_out(&later) {
                    // What was given has not been written: it is not given.
                    self.take_back(key, &later);
                    self.take_back(key, &change);
                    return;
                }
                change = later;
            }
        }
    }

    /// An error means: try again.
    async fn attempt(&self, key: &ObjectKey, change: &Change) -> Result<(), kube::Error> {
        // Gone: the watch has told the engine.
        let Some(before) = self.stores.workloads.get(key) else { return Ok(()) };
        let now = self.clock.now();
        let Some((mut after, notices)) = carry_out(change, &before, &self.gates, now) else {
            self.take_back(key, change);
            return Ok(());
        };
        if self.tells_readiness && self.is_start_of_a_job(change, &before, &after) {
            // What the job's integration would write next, before it lets the job go.
            readiness::sync(&mut after, || false, self.clock.now());
        }
        if tells_nothing_new(change, &before, &after) {
            return Ok(());
        }
        if matches!(change, Change::Admit(admit) if !admit.second_pass) {
            self.scheduler.reserved(workload_key(key), self.scheduler.now());
        }
        // The cache may show the object before the write is answered. The record of an eviction made
        // from the object says less.
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
                notices.into_iter().for_each(|notice| self.tell(notice));
                if matches!(change, Change::Admit(_)) {
                    self.scheduler.accepted(&workload_key(key));
                }
                if let Change::Admit(admit) = change
                    && let Some((replaced, change)) = replaced_slice(&after, admit)
                {
                    // A slice that runs has been written; nothing pending can cancel this.
                    let _ = self.writes.add(object_key(&replaced), i64::from(after.spec.priority.unwrap_or(0)), change);
                }
                if let Change::Preempt(victim) = change {
                    self.metrics.preempted(&victim.preemption.cluster_queue, victim.reason.as_str());
                }
                Ok(())
            }
            Err(error) if berth_runtime::is_not_found(&error) => Ok(()),
            Err(error) if is_permanent(&error) => {
                tracing::warn!(%key, error = berth_runtime::brief(&error), "a decision could not be written");
                if matches!(change, Change::Admit(admit) if !admit.second_pass) {
                    self.put_off(key, &before, &error);
                }
                self.take_back(key, change);
                if let Change::Evict(eviction) = change
                    && let Some(message) = eviction.unplaced()
                {
                    let (about, reason) = (workload_key(key), events::SECOND_PASS_FAILED.to_owned());
                    self.tell(Notice { about, event_type: EventType::Warning, reason, message, unnamed: None });
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

impl Writer {
    /// Is this the admission of a job that an integration will start, none of whose pods runs yet?
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

fn throws_out(change: &Change) -> bool {
    matches!(change, Change::Preempt(_) | Change::Evict(_))
}

/// Would a write only word anew why a workload waits? What differs within one reason is how much is missing at the
/// moment; writing that each time would be most of all writes.
fn tells_nothing_new(change: &Change, before: &Workload, after: &Workload) -> bool {
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

/// The same conditions but for messages and times?
fn same_conditions(before: &Workload, after: &Workload) -> bool {
    fn said(workload: &Workload) -> impl Iterator<Item = (&str, &str, &str)> {
        // A condition keeps its place.
        status::conditions(workload).iter().map(|it| (it.type_.as_str(), it.status.as_str(), it.reason.as_str()))
    }
    said(before).eq(said(after))
}

/// Refused for what was asked, not for when.
fn is_permanent(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && ![404, 409, 429].contains(&status.code))
}

impl Writer {
    /// Records an event, unless what it is about is gone.
    fn tell(&self, notice: Notice) {
        if let Some(about) = self.stores.workloads.get(&object_key(&notice.about)) {
            let message = truncate(notice.said(), EVENT_MESSAGE_MAX);
            self.recorder.event(about.as_ref(), notice.event_type, &notice.reason, &message);
        }
    }

    /// The server refused an admission for good: the workload is looked at again later, and told why.
    fn put_off(&self, key: &ObjectKey, refused: &Workload, error: &kube::Error) {
        self.scheduler.refused(workload_key(key), What::of(refused));
        if self.scheduler.feed_again(&self.environment, &self.stores.workloads, key) {
            let (about, reason) = (workload_key(key), "AdmissionRefused".to_owned());
            let message = format!("The API server refused the admission: {}", berth_runtime::message(error));
            self.tell(Notice { about, event_type: EventType::Warning, reason, message, unnamed: None });
        }
    }

    /// The decision was not carried out: the engine forgets it.
    fn take_back(&self, key: &ObjectKey, change: &Change) {
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

    fn tell() -> Change {
        Change::Bypassed(berth_engine::PendingReason::PendingEvaluation)
    }

    fn evict() -> Change {
        Change::Evict(Box::new(berth_engine::Eviction::FlavorMigration { sibling_uid: "uid".into() }))
    }

    #[test]
    fn the_most_urgent_write_goes_first_and_one_object_is_written_once_at_a_time() {
        let mut pending = Pending::default();
        pending.insert(key("waits"), Urgency::Tells, 1000, tell());
        pending.insert(key("low"), Urgency::Gives, 1, tell());
        pending.insert(key("high"), Urgency::Gives, 9, tell());
        pending.insert(key("out"), Urgency::Frees, 0, evict());
        let order: Vec<String> = std::iter::from_fn(|| pending.next()).map(|(key, _)| key.name).collect();
        assert_eq!(order, ["out", "high", "low", "waits"]);
        pending.insert(key("low"), Urgency::Frees, 1, evict());
        assert_eq!(pending.next(), None, "it is in flight");
        pending.in_flight.remove(&key("low"));
        assert_eq!(pending.next().map(|(key, _)| key.name).as_deref(), Some("low"));
    }

    #[test]
    fn a_later_change_takes_the_place_of_an_earlier_one() {
        let mut pending = Pending::default();
        pending.insert(key("a"), Urgency::Tells, 0, tell());
        pending.insert(key("a"), Urgency::Frees, 0, evict());
        assert_eq!(pending.order.keys().collect::<Vec<_>>(), [&(Urgency::Frees, Reverse(0), 2)]);
        assert_eq!(pending.next(), Some((key("a"), evict())));
        assert_eq!(pending.next(), None);
    }

    #[test]
    fn quota_that_is_taken_before_it_was_written_as_given_costs_no_write() {
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
        // That it waits is on its way when quota is given and taken again.
        assert!(writes.add(key("a"), 0, tell()));
        assert!(writes.lock().next().is_some());
        assert!(writes.add(key("a"), 0, admit()));
        assert!(!writes.add(key("a"), 0, evict()), "both are withdrawn");
        writes.done(&key("a"));
        assert_eq!(writes.lock().next(), None);
        // What is on its way cannot be withdrawn.
        assert!(writes.add(key("a"), 0, admit()));
        assert!(writes.lock().next().is_some());
        assert!(writes.add(key("a"), 0, evict()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limited_client_tells_only_when_nothing_is_decided() {
        let mut pending = Pending { limited: true, ..Pending::default() };
        pending.insert(key("a"), Urgency::Gives, 0, evict());
        pending.insert(key("b"), Urgency::Tells, 0, tell());
        assert!(pending.next().is_some());
        assert_eq!(pending.next(), None);
        tokio::time::advance(TELLING_PAUSE).await;
        assert_eq!(pending.next().map(|(key, _)| key.name).as_deref(), Some("b"));
    }

    #[test]
    fn no_more_is_decided_than_is_about_to_be_written() {
        let mut pending = Pending { decisions_max: 4, ..Pending::default() };
        for number in 0..9 {
            pending.insert(key(&format!("told-{number}")), Urgency::Tells, 0, tell());
        }
        for number in 0..4 {
            assert!(pending.has_room());
            pending.insert(key(&number.to_string()), Urgency::Gives, 0, evict());
        }
        // A change in the place of another counts once.
        pending.insert(key("3"), Urgency::Frees, 0, evict());
        assert!(!pending.has_room());
        let mut start = || {
            pending.next();
            (pending.goes_on(), pending.decisions)
        };
        assert_eq!([start(), start(), start(), start()], [(false, 3), (false, 2), (true, 1), (false, 0)]);
        assert!(pending.has_room());
    }

    #[test]
    fn telling_leaves_room_for_deciding() {
        let mut pending = Pending::default();
        for number in 0..2 * TELLING_MAX {
            pending.insert(key(&number.to_string()), Urgency::Tells, 0, tell());
        }
        assert_eq!(std::iter::from_fn(|| pending.next()).count(), TELLING_MAX);
        pending.insert(key("urgent"), Urgency::Gives, 0, evict());
        assert!(pending.next().is_some());
    }
}
