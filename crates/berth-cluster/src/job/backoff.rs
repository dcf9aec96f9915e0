//! How long a Job waits before it replaces failed pods: 10 s after the first failure, doubling with each further one
//! in a row up to six minutes, forgotten when a pod succeeds.
//!
//! Source: Kubernetes documentation, "Jobs", pod backoff failure policy.

use std::time::Duration;

use jiff::Timestamp;

/// Delay after the first failure.
pub const BACKOFF_BASE: Duration = Duration::from_secs(10);
/// Longest delay.
pub const BACKOFF_MAX: Duration = Duration::from_secs(360);

/// Failures since the last success, and when the last of them was. Not stored in the API: a restarted controller
/// starts counting afresh, as upstream's does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    /// Failures in a row.
    pub failures: u32,
    /// When the latest of them ended.
    pub last_failure: Option<Timestamp>,
}

impl Backoff {
    /// The record after these pods ended, given as end times.
    pub fn after(self, succeeded: &[Timestamp], failed: &[Timestamp]) -> Self {
        let last_success = succeeded.iter().max();
        let mut record = if last_success.is_some() { Self::default() } else { self };
        for at in failed.iter().filter(|at| last_success.is_none_or(|success| *at > success)) {
            record.failures = record.failures.saturating_add(1);
            record.last_failure = record.last_failure.max(Some(*at));
        }
        record
    }

    /// How long from `now` until failed pods may be replaced; zero when they may be now.
    pub fn remaining(&self, now: Timestamp) -> Duration {
        match self.last_failure {
            Some(at) => remaining(self.failures, at, now),
            None => Duration::ZERO,
        }
    }
}

/// How long from `now` until a pod may be replaced after `failures` failures in a row, the last one at `last`.
pub fn remaining(failures: u32, last: Timestamp, now: Timestamp) -> Duration {
    if failures == 0 {
        return Duration::ZERO;
    }
    let delay = BACKOFF_BASE.saturating_mul(1u32 << (failures - 1).min(16)).min(BACKOFF_MAX);
    let elapsed = Duration::try_from(now.duration_since(last)).unwrap_or_default();
    delay.saturating_sub(elapsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    #[test]
    fn delays_double_up_to_six_minutes_and_a_success_resets_them() {
        let mut record = Backoff::default();
        let mut delays = Vec::new();
        for _ in 0..7 {
            record = record.after(&[], &[at(0)]);
            delays.push(record.remaining(at(0)).as_secs());
        }
        assert_eq!(delays, [10, 20, 40, 80, 160, 320, 360]);
        assert_eq!(record.remaining(at(350)).as_secs(), 10);
        assert_eq!(record.after(&[at(5)], &[]).remaining(at(5)), Duration::ZERO);
        let record = record.after(&[at(5)], &[at(3), at(6)]);
        assert_eq!(record, Backoff { failures: 1, last_failure: Some(at(6)) });
    }
}
