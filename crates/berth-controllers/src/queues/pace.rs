//! Limits how often the usage and counts in queues' statuses are written: the more queues there
//! are, the less often each is written.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_runtime::ObjectKey;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// Number of queues of one kind whose usage and counts may be written every second. Twice as many
/// may be written every two seconds, and so on. Otherwise, a thousand busy queues would cause as
/// many writes as the admissions they count.
const QUEUES_PER_SECOND: usize = 100;
/// Maximum age of the usage and counts in a status.
const PERIOD_MAX: Duration = Duration::from_secs(10);

/// Time of the last write of each queue.
#[derive(Default)]
pub(super) struct Pace(Mutex<BTreeMap<ObjectKey, Instant>>);

impl Pace {
    /// Remaining time until the status of this queue may be written again if only usage and counts
    /// changed; `queues`: number of queues of its kind.
    pub(super) fn remaining(&self, key: &ObjectKey, queues: usize) -> Option<Duration> {
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
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn with_more_queues_each_is_written_less_often() {
        let (pace, key) = (Pace::default(), ObjectKey::cluster("a"));
        assert_eq!(pace.remaining(&key, 1000), None, "the first write is immediate");
        pace.written(&key);
        assert_eq!(pace.remaining(&key, 30), None, "few queues are not limited");
        assert_eq!(pace.remaining(&key, 300), Some(Duration::from_secs(3)));
        assert_eq!(pace.remaining(&key, 100_000), Some(PERIOD_MAX));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(pace.remaining(&key, 300), None);
    }
}
