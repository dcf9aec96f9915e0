//! Back-off before a Job replaces failed pods: 10 s after the first failure, doubled by each
//! further consecutive failure up to 6 minutes, and reset when a pod succeeds.
//!
//! Source: Kubernetes documentation, "Jobs", pod backoff failure policy.

use std::time::Duration;

use jiff::Timestamp;

/// Delay after the first failure.
pub const BACKOFF_BASE: Duration = Duration::from_secs(10);
/// Maximum delay.
pub const BACKOFF_MAX: Duration = Duration::from_secs(360);

/// Number of failures since the last success, and the time of the last one. Not stored in the API:
/// as in Kubernetes, a restarted controller starts from zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    /// Number of consecutive failures.
    pub failures: u32,
    /// Finish time of the last one.
    pub last_failure: Option<Timestamp>,
}

impl Backoff {
    /// The record after pods with these finish times succeeded and failed.
    pub fn after(self, succeeded: &[Timestamp], failed: &[Timestamp]) -> Self {
        let last_success = succeeded.iter().max();
        let mut record = if last_success.is_some() { Self::default() } else { self };
        for at in failed.iter().filter(|at| last_success.is_none_or(|success| *at > success)) {
            record.failures = record.failures.saturating_add(1);
            record.last_failure = record.last_failure.max(Some(*at));
        }
        record
    }

    /// Time from `now` until failed pods may be replaced; zero if they may be replaced now.
    pub fn remaining(&self, now: Timestamp) -> Duration {
        match self.last_failure {
            Some(at) => remaining(self.failures, at, now),
            None => Duration::ZERO,
        }
    }
}

/// Time from `now` until a pod may be replaced, after `failures` consecutive failures, the last one
/// at `last`.
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
