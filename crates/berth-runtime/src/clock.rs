//! Cluster time. All code that reads the time or waits uses a [`Clock`]: the system's clock in a
//! real cluster, a clock that runs N times faster in `berth up --time-scale N`, or a clock on
//! tokio's paused time in virtual time. Nothing else in the libraries reads a clock.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::Instant;

/// A source of cluster time; clones show the same time.
#[derive(Clone, Debug)]
pub struct Clock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// The operating system's wall clock, including its corrections.
    System,
    /// `origin` plus `scale` times the elapsed tokio time since `started`.
    Scaled { origin: Timestamp, started: Instant, scale: f64 },
}

/// Maximum duration of one sleep; longer waits are split. Tokio's timer wheel covers about two
/// years.
const SLEEP_MAX: Duration = Duration::from_secs(86_400 * 180);

impl Clock {
    /// Returns the operating system's clock.
    pub fn system() -> Self {
        Self(Kind::System)
    }

    /// Returns a clock that shows `origin` now and runs `scale` times as fast as tokio's. With a
    /// paused tokio runtime and scale 1 this is virtual time. `scale` must be positive and finite;
    /// other values count as 1.
    pub fn scaled(origin: Timestamp, scale: f64) -> Self {
        let scale = if scale.is_finite() && scale > 0.0 { scale } else { 1.0 };
        Self(Kind::Scaled { origin, started: Instant::now(), scale })
    }

    /// Returns the current cluster time.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that may read the system clock")]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Kind::System => Timestamp::now(),
            Kind::Scaled { origin, started, scale } => {
                let elapsed = started.elapsed();
                let elapsed = if *scale == 1.0 { elapsed } else { elapsed.mul_f64(*scale) };
                later(*origin, elapsed)
            }
        }
    }

    /// Waits for this much cluster time.
    pub async fn sleep(&self, duration: Duration) {
        let mut left = duration;
        while !left.is_zero() {
            let step = left.min(SLEEP_MAX);
            tokio::time::sleep(self.to_tokio(step)).await;
            left -= step;
        }
    }

    /// Waits until the clock shows `at`; returns at once if that time has passed.
    pub async fn sleep_until(&self, at: Timestamp) {
        if let Ok(left) = Duration::try_from(at.duration_since(self.now())) {
            self.sleep(left).await;
        }
    }

    /// Returns the cluster time until `at`; zero if that time has passed.
    pub fn until(&self, at: Timestamp) -> Duration {
        Duration::try_from(at.duration_since(self.now())).unwrap_or_default()
    }

    /// Converts a duration of tokio time to cluster time.
    pub(crate) fn of_tokio(&self, duration: Duration) -> Duration {
        match &self.0 {
            Kind::Scaled { scale, .. } if *scale != 1.0 => duration.mul_f64(*scale),
            _ => duration,
        }
    }

    /// Converts a duration of cluster time to tokio time.
    pub(crate) fn to_tokio(&self, duration: Duration) -> Duration {
        match &self.0 {
            Kind::System => duration,
            Kind::Scaled { scale, .. } if *scale == 1.0 => duration,
            // Never round a wait to zero, because a loop with a scaled clock must still yield.
            Kind::Scaled { scale, .. } => duration.div_f64(*scale).max(Duration::from_nanos(1)),
        }
    }
}

/// A time in whole seconds, as the API stores it.
pub fn stamp(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// The time after this span; the last time that can be represented if it is later.
pub fn later(time: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_hour_of_virtual_time_takes_no_real_time() {
        let clock = Clock::scaled("2026-01-01T00:00:00Z".parse().unwrap(), 1.0);
        clock.sleep(Duration::from_secs(3600)).await;
        assert_eq!(clock.now(), "2026-01-01T01:00:00Z".parse::<Timestamp>().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_scaled_clock_runs_faster_than_tokio() {
        let clock = Clock::scaled("2026-01-01T00:00:00Z".parse().unwrap(), 60.0);
        let before = Instant::now();
        clock.sleep(Duration::from_secs(60)).await;
        assert_eq!(before.elapsed(), Duration::from_secs(1));
        assert_eq!(clock.now(), "2026-01-01T00:01:00Z".parse::<Timestamp>().unwrap());
    }
}
