//! How often figures of queues are written: the more queues there are, the less often each.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use berth_runtime::ObjectKey;
use tokio::time::Instant;

/// Queues of one kind whose figures may be written every second; twice as many every two, and so on. A thousand busy queues
/// would otherwise cost as much as the admissions they count.
const QUEUES_PER_SECOND: usize = 100;
/// Figures are never older than this.
const PERIOD_MAX: Duration = Duration::from_secs(10);

/// When each queue was written last.
#[derive(Default)]
pub(super) struct Pace(Mutex<BTreeMap<ObjectKey, Instant>>);

impl Pace {
    /// How long a queue that is one of so many has to wait before only its figures are written again.
    pub(super) fn left(&self, key: &ObjectKey, queues: usize) -> Option<Duration> {
        let period = Duration::from_secs((queues / QUEUES_PER_SECOND) as u64).min(PERIOD_MAX);
        let due = *self.lock().get(key)? + period;
        let left = due.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    pub(super) fn written(&self, key: &ObjectKey) {
        self.lock().insert(key.clone(), Instant::now());
    }

    pub(super) fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Instant>> {
        self.0.lock().expect("no code panics while holding the times' lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_queues_are_written_less_often_each() {
        let (pace, key) = (Pace::default(), ObjectKey::cluster("a"));
        assert_eq!(pace.left(&key, 1000), None, "the first time at once");
        pace.written(&key);
        assert_eq!(pace.left(&key, 30), None, "few queues wait for nothing");
        assert_eq!(pace.left(&key, 300), Some(Duration::from_secs(3)));
        assert_eq!(pace.left(&key, 100_000), Some(PERIOD_MAX));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(pace.left(&key, 300), None);
    }
}
