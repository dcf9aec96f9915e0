//! Corrects 90th percentiles by the forecasts that have come true.
//!
//! The draws of a forecast take the run times of different jobs as independent, and know no outage
//! and no campaign of a user. Their 90th percentile is therefore too early. The correction is that
//! of conformal prediction: the ratio of true waits to forecast percentiles was below some factor
//! in nine of ten forecasts so far, and the next percentile is multiplied by that factor.

use std::collections::VecDeque;
use std::time::Duration;

use berth_engine::model::Time;

/// Number of forecasts that must have come true before percentiles are corrected.
const ENOUGH: usize = 10;
/// Number of forecasts that are kept.
const KEPT: usize = 200;
/// Added to both sides of a ratio, so that waits of seconds do not give ratios of hundreds.
const OFFSET_SECONDS: f64 = 60.0;

/// Ratios of true waits to forecast percentiles.
#[derive(Debug, Clone, Default)]
pub struct Calibration {
    /// Time of the start that made the forecast true, and the ratio.
    ratios: VecDeque<(Time, f64)>,
}

impl Calibration {
    /// Records a forecast percentile, and the start that follows: it is used from then on.
    pub fn record(&mut self, started: Time, percentile: Duration, wait: Duration) {
        let ratio = (wait.as_secs_f64() + OFFSET_SECONDS) / (percentile.as_secs_f64() + OFFSET_SECONDS);
        self.ratios.push_back((started, ratio));
        if self.ratios.len() > KEPT {
            self.ratios.pop_front();
        }
    }

    /// The percentile corrected by what is known at `now`.
    pub fn correct(&self, now: Time, percentile: Duration) -> Duration {
        let mut known: Vec<f64> =
            self.ratios.iter().filter(|(started, _)| *started <= now).map(|(_, ratio)| *ratio).collect();
        if known.len() < ENOUGH {
            return percentile;
        }
        known.sort_unstable_by(f64::total_cmp);
        // Of n values, the next one is below the k-th with a chance of k / (n + 1).
        let rank = ((known.len() + 1) * 9).div_ceil(10).min(known.len());
        let seconds = (percentile.as_secs_f64() + OFFSET_SECONDS) * known[rank - 1] - OFFSET_SECONDS;
        Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
    }
}
