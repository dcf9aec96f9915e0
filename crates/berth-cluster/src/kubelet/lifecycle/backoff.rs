//! Delays between the restarts of a container, and between attempts to pull an image.

use jiff::{SignedDuration, Timestamp};

/// The delay before the first restart. Each further delay is twice as long, up to [`DELAY_MAX`].
const DELAY_BASE: SignedDuration = SignedDuration::from_secs(10);
/// The longest delay.
const DELAY_MAX: SignedDuration = SignedDuration::from_secs(300);
/// After this time without a failure, the delays start again at [`DELAY_BASE`].
const RESET_AFTER: SignedDuration = SignedDuration::from_secs(600);

/// Delay before the next restart of a container that has been restarted `restarts` times: zero,
/// then 10 s, 20 s, 40 s, … up to 5 minutes.
pub fn restart_delay(restarts: i32) -> SignedDuration {
    if restarts <= 0 {
        return SignedDuration::ZERO;
    }
    let factor = 1_i32 << (restarts - 1).clamp(0, 10);
    DELAY_BASE.checked_mul(factor).unwrap_or(DELAY_MAX).min(DELAY_MAX)
}

/// The delays of one container.
///
/// Source: Kubernetes' kubelet. The delay doubles with each restart. It starts again at the first
/// one if the previous restart was more than 10 minutes ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    /// Number of restarts since the delays last started again.
    count: i32,
    /// When the last restart was.
    last: Timestamp,
}

impl BackOff {
    /// The delays after `count` restarts, the last one at `last`.
    pub fn new(count: i32, last: Timestamp) -> Self {
        Self { count, last }
    }

    /// Delay of the next restart after a run that ended at `ended`.
    pub fn delay(&self, ended: Timestamp) -> SignedDuration {
        if self.is_over(ended) { SignedDuration::ZERO } else { restart_delay(self.count) }
    }

    /// Counts a restart.
    pub fn restarted(&mut self, now: Timestamp) {
        self.count = if self.is_over(now) { 1 } else { self.count.saturating_add(1) };
        self.last = now;
    }

    fn is_over(&self, now: Timestamp) -> bool {
        now.duration_since(self.last) > RESET_AFTER
    }
}

/// A delay as Kubernetes' messages show it: `10s`, `1m20s`, `5m0s`.
pub fn shown(delay: SignedDuration) -> String {
    let seconds = delay.as_secs();
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        _ => format!("{}h{}m{}s", seconds / 3600, seconds / 60 % 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn delays_double_up_to_five_minutes() {
        let delays: Vec<i64> = (0..8).map(|restarts| restart_delay(restarts).as_secs()).collect();
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300]);
        let texts: Vec<String> = [0, 10, 80, 300, 3661].map(|it| shown(SignedDuration::from_secs(it))).into();
        assert_eq!(texts, ["0s", "10s", "1m20s", "5m0s", "1h1m1s"]);
    }

    #[test]
    fn ten_minutes_without_a_restart_reset_the_delay() {
        let mut known = BackOff::new(5, at(0));
        assert_eq!(known.delay(at(600)).as_secs(), 160);
        assert_eq!(known.delay(at(601)).as_secs(), 0);
        known.restarted(at(601));
        assert_eq!(known.delay(at(602)).as_secs(), 10);
    }
}
