//! The scheduling controller: watches feed the engine, cycles decide, and a writer writes the
//! decisions afterwards.
//!
//! ```text
//! caches ──deltas──▶ SchedulerState (engine behind a lock) ──wake──▶ cycles ──decisions──▶ writer, many at once
//!                        └──queues whose usage changed──▶ status controllers of queues
//! ```
//!
//! A delta is translated and applied when it arrives, so every reader of the [`SchedulerState`]
//! sees the same state. Cycles run until the engine has nothing more to decide. The engine counts a
//! decision at once; its write follows, and the decision is reverted if that write fails
//! permanently. State is rebuilt from the caches at every start: the manager fills them before any
//! controller runs.

pub mod carry_out;
mod cycle;
mod feed;
mod refusals;
mod writer;

pub(crate) use cycle::install;
pub(crate) use writer::Writes;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use berth_engine::model::{Time, Workload, WorkloadKey};
use berth_engine::{Effects, Engine, EngineConfig, Event, PendingReason};
use berth_runtime::{Clock, ObjectKey, Queue};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use refusals::{Refusals, What};

/// Delay between the first change in a queue's usage or counts and the write of its status, which
/// includes all changes until then. Kueue has the same delay.
const UPDATES_BATCH: Duration = Duration::from_secs(1);

/// The engine, and the work queues of the controllers that its changes wake; clones share both.
#[derive(Clone)]
pub struct SchedulerState {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Mutex<Engine>,
    /// Set when the scheduler is registered.
    listeners: OnceLock<Listeners>,
    exact: Mutex<ExactByWorkload>,
    /// Why each waiting workload waits, as its object states it: most decisions repeat it.
    shown: Mutex<HashMap<WorkloadKey, PendingReason>>,
    refusals: Mutex<Refusals>,
    clock: Clock,
}

/// Times of workloads in nanoseconds. Objects contain only whole seconds; by these, two workloads
/// that are admitted within one second would be ordered by their UIDs, and an eviction would count
/// as earlier than a creation of the same second. After a restart only whole seconds are known.
#[derive(Default)]
struct ExactByWorkload {
    workloads: HashMap<WorkloadKey, Exact>,
    /// The latest of the creation times.
    last_created: Option<Time>,
}

/// Exact times of one workload, see [`ExactByWorkload`].
#[derive(Clone, Copy, Default)]
struct Exact {
    created: Option<Time>,
    reserved: Option<Time>,
    evicted: Option<Time>,
    preempted: Option<Time>,
}

/// Work queues of the controllers that are woken by changes in the engine.
struct Listeners {
    cycles: Queue,
    statuses: StatusQueues,
}

/// Work queues of the controllers that write the statuses of cluster queues and local queues.
/// Registering the scheduler requires them. Therefore these two controllers are registered first,
/// and miss no change in usage or counts.
pub(crate) struct StatusQueues {
    pub cluster_queues: Queue,
    pub local_queues: Queue,
}

/// The scheduler, registered with a manager. Its watches feed the engine, and a cache reports a
/// change to its watches in the order of their registration. A controller that is registered with
/// this value therefore sees an engine that has applied the change that wakes the controller.
pub(crate) struct RegisteredScheduler {
    pub state: SchedulerState,
    /// Decisions that are not written yet.
    pub writes: Writes,
}

/// The scheduler's only key: there is one cycle at a time.
pub(crate) fn cycle_key() -> ObjectKey {
    ObjectKey::cluster("cycle")
}

impl SchedulerState {
    /// The state of an engine that does not contain objects yet.
    pub fn new(config: EngineConfig, clock: Clock) -> Self {
        let engine = Mutex::new(Engine::new(config));
        let (listeners, refusals) = (OnceLock::new(), Mutex::default());
        let (exact, shown) = (Mutex::default(), Mutex::default());
        SchedulerState { inner: Arc::new(Inner { engine, listeners, exact, shown, refusals, clock }) }
    }

    /// The engine. Do not await or write to a cache while the lock is held.
    pub fn engine(&self) -> MutexGuard<'_, Engine> {
        self.inner.engine.lock()
    }

    /// The current time as the engine counts it.
    pub fn now(&self) -> Time {
        time(self.inner.clock.now())
    }

    /// The current time.
    pub(crate) fn clock_now(&self) -> jiff::Timestamp {
        self.inner.clock.now()
    }

    /// Records the exact time of a quota reservation; the object will have only whole seconds.
    pub(crate) fn reserved(&self, key: WorkloadKey, at: Time) {
        self.exact().workloads.entry(key).or_default().reserved = Some(at);
    }

    /// Replaces the times of a workload from the API by more exact times, if they are known.
    pub(crate) fn refine(&self, workload: &mut Workload) {
        let now = self.now();
        let ExactByWorkload { workloads, last_created } = &mut *self.exact();
        let is_new = !workloads.contains_key(&workload.key);
        let known = workloads.entry(workload.key.clone()).or_default();
        workload.created = exact_creation(&mut known.created, last_created, workload.created, now);
        if let (Some(reserved), Some(at)) = (known.reserved, workload.reserved_at)
            && reserved.seconds() == at.seconds()
        {
            workload.reserved_at = Some(reserved);
        }
        let evictions = [(&mut workload.evicted, &mut known.evicted), (&mut workload.preempted, &mut known.preempted)];
        for (eviction, known) in evictions {
            if let Some(eviction) = eviction {
                eviction.at = exact_eviction(known, eviction.at, now, is_new);
            }
        }
    }

    /// Notes the reason for which a workload waits according to its object.
    pub(crate) fn note_reason(&self, key: &WorkloadKey, reason: Option<PendingReason>) {
        let mut shown = self.inner.shown.lock();
        match reason {
            Some(reason) => drop(shown.insert(key.clone(), reason)),
            None => drop(shown.remove(key)),
        }
    }

    /// The reason for which a workload waits according to its object.
    pub(crate) fn shown_reason(&self, key: &WorkloadKey) -> Option<PendingReason> {
        self.inner.shown.lock().get(key).copied()
    }

    pub(crate) fn forget(&self, key: &WorkloadKey) {
        self.exact().workloads.remove(key);
        self.inner.shown.lock().remove(key);
        self.refusals().forget(key);
    }

    /// The API server rejected the admission of a workload, which is then not considered for a
    /// while. Must be called before the decision is reverted in the engine.
    fn refused(&self, key: WorkloadKey, what: What) {
        let pause = self.refusals().note(key, what, self.now());
        self.wake_after(pause);
    }

    /// The API server accepted the admission of a workload.
    fn accepted(&self, key: &WorkloadKey) {
        self.refusals().forget(key);
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.inner.refusals.lock()
    }

    fn exact(&self) -> MutexGuard<'_, ExactByWorkload> {
        self.inner.exact.lock()
    }

    /// Applies an event to the engine, and wakes the controllers of queues whose usage or counts
    /// changed.
    pub fn apply(&self, event: Event) {
        let now = self.now();
        let (effects, next) = {
            let mut engine = self.engine();
            (engine.apply(event, now), engine.next_wakeup())
        };
        self.announce(&effects);
        // Some events only set a timer, such as the end of the delay in which flushes are
        // collected.
        if let (false, Some(at)) = (effects.wake, next) {
            self.wake_after(now.until(at));
        }
    }

    pub(crate) fn announce(&self, effects: &Effects) {
        if let Some(Listeners { statuses, .. }) = self.inner.listeners.get() {
            for name in &effects.cluster_queues {
                statuses.cluster_queues.add_after(ObjectKey::cluster(name.as_ref()), UPDATES_BATCH);
            }
            for (namespace, name) in &effects.local_queues {
                let key = ObjectKey::namespaced(namespace.as_ref(), name.as_ref());
                statuses.local_queues.add_after(key, UPDATES_BATCH);
            }
        }
        if effects.wake {
            self.wake_after(Duration::ZERO);
        }
    }

    /// Runs a cycle after `pause` at the latest.
    pub(crate) fn wake_after(&self, pause: Duration) {
        if let Some(Listeners { cycles, .. }) = self.inner.listeners.get() {
            cycles.add_after(cycle_key(), pause);
        }
    }

    /// Sets the controllers to wake: the cycles, and the controllers of queues' statuses.
    fn listen(&self, cycles: Queue, statuses: StatusQueues) {
        let first = self.inner.listeners.set(Listeners { cycles, statuses }).is_ok();
        assert!(first, "an engine has one scheduler: register another one with a new SchedulerState");
    }
}

/// From the start of a second to its end.
const LAST_NANOSECOND: Duration = Duration::from_nanos(999_999_999);

/// Time of the creation of a workload whose object has this second. The time at which it was first
/// seen is used. If that is in a later second, the creation follows the last one that was seen of
/// its second, because a watch reports creations in their order: otherwise a workload that is seen
/// late would be older than those before it, and could preempt them. After a restart the times of
/// the others are whole seconds, and so is this one.
fn exact_creation(known: &mut Option<Time>, last: &mut Option<Time>, at: Time, now: Time) -> Time {
    if let Some(known) = known.filter(|known| known.seconds() == at.seconds()) {
        return known;
    }
    let start = Time::from_seconds(at.seconds());
    let before = last.filter(|last| last.seconds() == at.seconds() && *last != start);
    let exact = match before {
        _ if now.seconds() == at.seconds() => now,
        Some(before) => before.after(Duration::from_nanos(1)).min(start.after(LAST_NANOSECOND)),
        None => at,
    };
    *last = (*last).max(Some(exact));
    *known = Some(exact);
    exact
}

/// Time of an eviction whose condition has this second. The time at which it was first seen is
/// used. If that is in a later second, the end of the condition's second is: the eviction is later
/// than everything that the scheduler saw before it. `is_new`: the workload was first seen with it,
/// so its order among other events of that second is unknown.
fn exact_eviction(known: &mut Option<Time>, at: Time, now: Time, is_new: bool) -> Time {
    if let Some(known) = known.filter(|known| known.seconds() == at.seconds()) {
        return known;
    }
    let exact = match now.seconds().cmp(&at.seconds()) {
        Ordering::Equal => now,
        Ordering::Greater if !is_new => at.after(LAST_NANOSECOND),
        _ => at,
    };
    *known = Some(exact);
    exact
}

/// A timestamp as the engine counts time.
pub fn time(at: Timestamp) -> Time {
    // Nanoseconds since 1970 fit 64 bits from the year 1677 until the year 2262; other times are
    // clamped to this range.
    Time(i64::try_from(at.as_nanosecond()).unwrap_or(if at.as_second() < 0 { i64::MIN } else { i64::MAX }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_that_is_seen_late_is_younger_than_those_seen_before_it() {
        let at = Time::from_seconds(4);
        let (during, later) = (at.after(Duration::from_millis(800)), at.after(Duration::from_millis(1100)));
        let mut last = None;
        let (mut first, mut second, mut third) = (None, None, None);
        assert_eq!(exact_creation(&mut first, &mut last, at, during), during);
        let late = exact_creation(&mut second, &mut last, at, later);
        assert!(during < late && late < Time::from_seconds(5), "{late:?}");
        assert!(late < exact_creation(&mut third, &mut last, at, later), "they are seen in their order");
        assert_eq!(exact_creation(&mut second, &mut last, at, later), late, "a time stays as it was first seen");
        assert_eq!(exact_creation(&mut first, &mut last, at, later), during);

        let mut last = None;
        assert_eq!(exact_creation(&mut None, &mut last, at, later), at, "a restart knows whole seconds only");
        assert_eq!(exact_creation(&mut None, &mut last, at, later), at, "of all workloads");
    }

    #[test]
    fn an_eviction_is_later_than_what_was_seen_before_it_in_its_second() {
        let at = Time::from_seconds(4);
        let (during, later) = (at.after(Duration::from_millis(800)), at.after(Duration::from_millis(1100)));
        let mut known = None;
        assert_eq!(exact_eviction(&mut known, at, during, false), during);
        assert_eq!(exact_eviction(&mut known, at, later, false), during, "a time stays as it was first seen");
        let next = Time::from_seconds(5);
        assert_eq!(exact_eviction(&mut known, next, next, false), next, "a new eviction has a new time");

        let end = exact_eviction(&mut None, at, later, false);
        assert!(during < end && end < next, "an eviction that is seen late: {end:?}");
        assert_eq!(exact_eviction(&mut None, at, later, true), at, "a restart knows whole seconds only");
    }
}
