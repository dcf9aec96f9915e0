//! The work queue of one controller: which keys to reconcile, when, and in which order.
//!
//! Keys are deduplicated, and the earliest due time counts. A key that is added during its
//! reconcile waits until that ends, so a key is never reconciled twice at once. Namespaces take
//! turns: if forty thousand objects of one tenant change at once, an object of another tenant waits
//! for one reconcile, and not for forty thousand. Keys of one namespace leave in the order in which
//! they became due, and keys with the same due time in the order in which they were added.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::turns::Turns;
use crate::work::Figures;
use crate::{Clock, ObjectKey};

/// First retry delay after a failed reconcile, in cluster time; doubles with each failure.
const BACKOFF_BASE: Duration = Duration::from_millis(5);
/// Maximum retry delay.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// Handle to a controller's work queue; clones share it.
#[derive(Clone)]
pub struct Queue {
    inner: Arc<Inner>,
    clock: Clock,
}

struct Inner {
    state: Mutex<State>,
    wake: Notify,
    /// True if keys are dropped, because no controller takes them.
    closed: bool,
}

#[derive(Default)]
struct State {
    sequence: u64,
    /// Keys that were not due at the last check, by due time.
    later: BTreeMap<(Instant, u64), ObjectKey>,
    /// Keys that are due.
    due: Turns<ObjectKey>,
    // These maps are never iterated, so their random order has no effect.
    place: HashMap<ObjectKey, Place>,
    /// Keys whose reconcile runs, with its start.
    running: HashMap<ObjectKey, Instant>,
    /// Keys added during their reconcile, with the earliest requested due time.
    again: HashMap<ObjectKey, Instant>,
    failures: HashMap<ObjectKey, u32>,
    figures: Figures,
}

/// The place of a waiting key.
#[derive(Clone, Copy)]
enum Place {
    /// In `due` since this time.
    Due(Instant),
    /// In `later`, with this entry.
    Later(Instant, u64),
}

impl Queue {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { inner: Arc::new(Inner { state: Mutex::default(), wake: Notify::new(), closed: false }), clock }
    }

    /// Creates a queue that stays empty: the queue of a controller that does not run.
    pub(crate) fn closed(clock: Clock) -> Self {
        Self { inner: Arc::new(Inner { state: Mutex::default(), wake: Notify::new(), closed: true }), clock }
    }

    /// Adds a key that is due now.
    pub fn add(&self, key: ObjectKey) {
        self.add_at(key, Instant::now());
    }

    /// Adds a key that is due after this much cluster time. An earlier due time of the key takes
    /// precedence.
    pub fn add_after(&self, key: ObjectKey, delay: Duration) {
        self.add_at(key, Instant::now() + self.clock.to_tokio(delay));
    }

    fn add_at(&self, key: ObjectKey, at: Instant) {
        if self.inner.closed {
            return;
        }
        let mut state = self.lock();
        if state.running.contains_key(&key) {
            let slot = state.again.entry(key).or_insert(at);
            *slot = (*slot).min(at);
            return;
        }
        state.schedule(key, at);
        drop(state);
        self.inner.wake.notify_one();
    }

    /// Waits for the next due key and marks it as running.
    pub(crate) async fn next(&self) -> ObjectKey {
        loop {
            let wait = {
                let mut state = self.lock();
                let now = Instant::now();
                state.move_due_keys(now);
                if let Some(key) = state.take_turn(now) {
                    return key;
                }
                state.later.first_key_value().map(|((at, _), _)| *at)
            };
            let woken = self.inner.wake.notified();
            match wait {
                Some(at) => {
                    tokio::select! { biased; () = woken => {}, () = tokio::time::sleep_until(at) => {} }
                }
                None => woken.await,
            }
        }
    }

    /// Ends a successful reconcile; with `again_after` the key is reconciled again after that time.
    pub(crate) fn done(&self, key: ObjectKey, again_after: Option<Duration>) {
        let mut state = self.lock();
        state.failures.remove(&key);
        state.figures.succeeded(again_after.is_some());
        let requested = again_after.map(|delay| Instant::now() + self.clock.to_tokio(delay));
        state.finish(key, requested);
        drop(state);
        self.inner.wake.notify_one();
    }

    /// Ends a failed reconcile, schedules a retry with exponential back-off and returns the delay.
    pub(crate) fn failed(&self, key: ObjectKey) -> Duration {
        let mut state = self.lock();
        let failures = state.failures.entry(key.clone()).or_insert(0);
        let delay = BACKOFF_BASE.saturating_mul(1 << (*failures).min(20)).min(BACKOFF_MAX);
        *failures = failures.saturating_add(1);
        state.figures.failed();
        let at = Instant::now() + self.clock.to_tokio(delay);
        state.finish(key, Some(at));
        drop(state);
        self.inner.wake.notify_one();
        delay
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock()
    }

    /// The figures of this queue since it was created, and its state now.
    pub(crate) fn figures(&self) -> (Figures, Load) {
        let (state, now) = (self.lock(), Instant::now());
        let late = state.later.range(..(now, u64::MAX)).count();
        let running = state.running.values().map(|start| now.saturating_duration_since(*start));
        let load = Load { due: state.due.len() + late, running: running.collect() };
        (state.figures.clone(), load)
    }
}

/// What waits and runs.
pub(crate) struct Load {
    /// Number of keys that are due.
    pub due: usize,
    /// Ages of the running reconciles.
    pub running: Vec<Duration>,
}

impl State {
    fn schedule(&mut self, key: ObjectKey, at: Instant) {
        match self.place.get(&key).copied() {
            Some(Place::Due(_)) => return,
            Some(Place::Later(known, _)) if known <= at => return,
            Some(Place::Later(known, sequence)) => {
                self.later.remove(&(known, sequence));
            }
            None => {}
        }
        self.sequence += 1;
        self.place.insert(key.clone(), Place::Later(at, self.sequence));
        self.later.insert((at, self.sequence), key);
    }

    /// Moves the keys that have become due to `due`.
    fn move_due_keys(&mut self, now: Instant) {
        while let Some(first) = self.later.first_entry()
            && first.key().0 <= now
        {
            let at = first.key().0;
            let key = first.remove();
            self.figures.added();
            self.place.insert(key.clone(), Place::Due(at));
            self.due.push(&key.namespace.clone(), key);
        }
    }

    /// Returns the first key of the namespace whose turn it is, and marks it as running.
    fn take_turn(&mut self, now: Instant) -> Option<ObjectKey> {
        let key = self.due.next()?;
        if let Some(Place::Due(since)) = self.place.remove(&key) {
            self.figures.waited(now.saturating_duration_since(since));
        }
        self.running.insert(key.clone(), now);
        Some(key)
    }

    fn finish(&mut self, key: ObjectKey, requested: Option<Instant>) {
        if let Some(start) = self.running.remove(&key) {
            self.figures.worked(Instant::now().saturating_duration_since(start));
        }
        let again = self.again.remove(&key);
        if let Some(at) = [requested, again].into_iter().flatten().min() {
            self.schedule(key, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::cluster(name)
    }

    fn queue() -> Queue {
        Queue::new(Clock::scaled("2026-01-01T00:00:00Z".parse().unwrap(), 1.0))
    }

    #[tokio::test(start_paused = true)]
    async fn keys_leave_once_in_order_of_due_time() {
        let queue = queue();
        queue.add_after(key("late"), Duration::from_secs(5));
        queue.add(key("b"));
        queue.add(key("a"));
        queue.add(key("b"));
        assert_eq!(queue.next().await, key("b"));
        assert_eq!(queue.next().await, key("a"));
        assert_eq!(queue.next().await, key("late"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_one_namespace_delays_the_key_of_another_by_one_turn() {
        let queue = queue();
        let of = |namespace: &str, name: &str| ObjectKey::namespaced(namespace, name);
        let flood: Vec<ObjectKey> = (0..1000).map(|number| of("blue", &format!("job-{number:04}"))).collect();
        flood.iter().for_each(|key| queue.add(key.clone()));
        assert_eq!(queue.next().await, flood[0]);
        queue.add(of("green", "train"));
        queue.add(of("green", "test"));
        assert_eq!(queue.next().await, flood[1], "the turn of namespace blue comes first");
        assert_eq!(queue.next().await, of("green", "train"));
        assert_eq!(queue.next().await, flood[2]);
        assert_eq!(queue.next().await, of("green", "test"));
        for key in &flood[3..] {
            assert_eq!(queue.next().await, *key);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_due_time_of_a_key_counts() {
        let queue = queue();
        queue.add_after(key("a"), Duration::from_secs(5));
        queue.add_after(key("b"), Duration::from_secs(3));
        queue.add_after(key("a"), Duration::from_secs(1));
        queue.add_after(key("a"), Duration::from_secs(9));
        let start = Instant::now();
        assert_eq!(queue.next().await, key("a"));
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        assert_eq!(queue.next().await, key("b"));
        assert_eq!(start.elapsed(), Duration::from_secs(3));
        assert!(queue.lock().place.is_empty() && queue.lock().later.is_empty() && queue.lock().due.len() == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_during_its_reconcile_is_reconciled_again() {
        let queue = queue();
        queue.add(key("a"));
        let running = queue.next().await;
        queue.add(key("a"));
        queue.add(key("b"));
        assert_eq!(queue.next().await, key("b"));
        queue.done(running, None);
        assert_eq!(queue.next().await, key("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_exponentially() {
        let queue = queue();
        queue.add(key("a"));
        let mut delays = Vec::new();
        for _ in 0..3 {
            let running = queue.next().await;
            delays.push(queue.failed(running).as_millis());
        }
        assert_eq!(delays, [5, 10, 20]);
    }
}
