//! Cluster time on the command line: real, or so many times faster.

use berth_runtime::Clock;
use clap::Args;
use jiff::{SignedDuration, Timestamp};

/// How fast an embedded cluster's clock runs.
#[derive(Args)]
#[command(next_help_heading = "Embedded cluster's clock")]
pub struct TimeOptions {
    /// Run the embedded cluster's clock this many times faster than real time.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = scale)]
    time_scale: f64,
    /// When cluster time and real time were the same (RFC 3339). Processes of one cluster whose clock is scaled need the
    /// same; `berth apiserver` prints it. Default: now.
    #[arg(long, value_name = "TIME", requires = "time_scale")]
    time_origin: Option<Timestamp>,
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if scale > 0.0 && scale <= 100_000.0 => Ok(scale),
        _ => Err("expected a number above 0, at most 100000".into()),
    }
}

impl TimeOptions {
    /// The clock, and the options other processes need for the same one; none when it is the system's.
    pub fn clock(&self) -> (Clock, Option<String>) {
        let system = Clock::system();
        if self.time_scale == 1.0 {
            return (system, None);
        }
        let now = system.now();
        let origin = self.time_origin.unwrap_or(now);
        let passed = now.duration_since(origin).as_secs_f64() * self.time_scale;
        let passed = SignedDuration::try_from_secs_f64(passed).unwrap_or(SignedDuration::MAX);
        let shown = origin.checked_add(passed).unwrap_or(Timestamp::MAX);
        let options = format!("--time-scale {} --time-origin {origin}", self.time_scale);
        (Clock::scaled(shown, self.time_scale), Some(options))
    }

    /// The clock of a process that joins a cluster, which has to be told when its time began.
    ///
    /// # Errors
    /// When the clock is scaled from an unknown origin.
    pub fn joining_clock(&self) -> anyhow::Result<Clock> {
        if self.time_scale != 1.0 && self.time_origin.is_none() {
            anyhow::bail!("--time-scale needs --time-origin: the one that `berth apiserver` printed at its start");
        }
        Ok(self.clock().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn two_processes_given_the_same_origin_agree() {
        let origin = Clock::system().now().checked_sub(SignedDuration::from_secs(100)).unwrap();
        let options = TimeOptions { time_scale: 60.0, time_origin: Some(origin) };
        let (clock, printed) = options.clock();
        let shown = clock.now().duration_since(origin).as_secs_f64();
        assert!((6000.0..6100.0).contains(&shown), "{shown}");
        assert_eq!(printed, Some(format!("--time-scale 60 --time-origin {origin}")));
        assert!(TimeOptions { time_scale: 60.0, time_origin: None }.joining_clock().is_err());
    }
}
