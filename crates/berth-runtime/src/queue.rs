//! The due-queue of one controller: which keys to reconcile, when, in which order.
//!
//! Keys are deduplicated; an earlier due time wins. A key that is added while it is being reconciled is kept until
//! that run ends, so one key never runs twice at once. Keys due at the same instant leave in the order they came.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::{Clock, ObjectKey};

/// First retry delay after a failed reconcile, in cluster time; doubles per failure.
const BACKOFF_BASE: Duration = Duration::from_millis(5);
/// Longest retry delay.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// Handle to a controller's due-queue; clones share it.
#[derive(Clone)]
pub struct Queue {
    inner: Arc<Inner>,
    clock: Clock,
}

struct Inner {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    sequence: u64,
    due: BTreeMap<(Instant, u64), ObjectKey>,
    // By key things are only looked up, never gone through: their order is nobody's.
    place: HashMap<ObjectKey, (Instant, u64)>,
    running: HashSet<ObjectKey>,
    /// Keys added while running, with the earliest due time asked for.
    again: HashMap<ObjectKey, Instant>,
    failures: HashMap<ObjectKey, u32>,
}

impl Queue {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { inner: Arc::new(Inner { state: Mutex::default(), wake: Notify::new() }), clock }
    }

    /// Reconcile this key as soon as possible.
    pub fn add(&self, key: ObjectKey) {
        self.add_at(key, Instant::now());
    }

    /// Reconcile this key after this much cluster time, unless it is due earlier anyway.
    pub fn add_after(&self, key: ObjectKey, delay: Duration) {
        self.add_at(key, Instant::now() + self.clock.to_tokio(delay));
    }

    fn add_at(&self, key: ObjectKey, at: Instant) {
        let mut state = self.lock();
        if state.running.contains(&key) {
            let slot = state.again.entry(key).or_insert(at);
            *slot = (*slot).min(at);
            return;
        }
        state.schedule(key, at);
        drop(state);
        self.inner.wake.notify_one();
    }

    /// Waits for the next due key and marks it running.
    pub(crate) async fn next(&self) -> ObjectKey {
        loop {
            let wait = {
                let mut state = self.lock();
                let first = state.due.first_key_value().map(|(place, _)| *place);
                match first {
                    Some(place) if place.0 <= Instant::now() => {
                        let key = state.due.remove(&place).expect("the first entry was just seen under the same lock");
                        state.place.remove(&key);
                        state.running.insert(key.clone());
                        return key;
                    }
                    Some(place) => Some(place.0),
                    None => None,
                }
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

    /// Ends a run that succeeded; `again_after` asks for another look.
    pub(crate) fn done(&self, key: ObjectKey, again_after: Option<Duration>) {
        let mut state = self.lock();
        state.failures.remove(&key);
        let asked = again_after.map(|delay| Instant::now() + self.clock.to_tokio(delay));
        state.finish(key, asked);
        drop(state);
        self.inner.wake.notify_one();
    }

    /// Ends a run that failed; the key is retried with exponential backoff, whatever happens meanwhile.
    pub(crate) fn failed(&self, key: ObjectKey) -> Duration {
        let mut state = self.lock();
        let failures = state.failures.entry(key.clone()).or_insert(0);
        let delay = BACKOFF_BASE.saturating_mul(1 << (*failures).min(20)).min(BACKOFF_MAX);
        *failures = failures.saturating_add(1);
        let at = Instant::now() + self.clock.to_tokio(delay);
        state.finish(key, Some(at));
        drop(state);
        self.inner.wake.notify_one();
        delay
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().expect("no code panics while holding the queue's lock")
    }
}

impl State {
    fn schedule(&mut self, key: ObjectKey, at: Instant) {
        if let Some(place) = self.place.get(&key).copied() {
            if place.0 <= at {
                return;
            }
            self.due.remove(&place);
        }
        self.sequence += 1;
        let place = (at, self.sequence);
        self.place.insert(key.clone(), place);
        self.due.insert(place, key);
    }

    fn finish(&mut self, key: ObjectKey, asked: Option<Instant>) {
        self.running.remove(&key);
        let again = self.again.remove(&key);
        if let Some(at) = [asked, again].into_iter().flatten().min() {
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
    async fn keys_leave_in_due_order_and_once() {
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
    async fn a_key_added_while_running_runs_again_afterwards() {
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
