//! Corrects 90th percentiles by the forecasts that have come true.
//!
//! The draws of a forecast know no outage, no campaign of a user and no change of quota, so their
//! 90th percentile is too early. The correction is that of conformal prediction: the ratio of true
//! waits to drawn percentiles was below some factor in nine of ten forecasts so far, and the next
//! percentile is multiplied by that factor. The forecasts are the last of the same cluster queue,
//! or of all queues as long as fewer than [`ENOUGH`] of its own have come true.
//!
//! Waits change with the load, so nine of ten past forecasts are not nine of ten future ones. The
//! share is therefore moved by each outcome, as adaptive conformal inference does (Gibbs and
//! Candès, 2021): up by nine steps after a start that came later than the corrected percentile, and
//! down by one after any other. A job that waits longer than its percentile counts at once, not
//! when it starts.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use berth_engine::Name;
use berth_engine::model::{Time, WorkloadKey};

/// Number of forecasts that must have come true before percentiles are corrected.
pub const ENOUGH: usize = 10;
/// Number of forecasts by which a percentile is corrected.
const USED: usize = 200;
/// Number of forecasts that are kept, of all cluster queues.
pub const KEPT: usize = 2_000;
/// Share of starts that should be at or before the percentile.
const SHARE: f64 = 0.9;
/// By how much the share moves after a start that came later than nine of ten should. Backtests
/// give about the same results with a quarter of it and with five times as much.
const STEP: f64 = 0.02;
/// Added to both sides of a ratio, so that waits of seconds do not give ratios of hundreds.
const OFFSET_SECONDS: f64 = 60.0;

/// A forecast that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The workload.
    pub workload: WorkloadKey,
    /// The cluster queue for which it waits.
    pub cluster_queue: Name,
    /// When the forecast was made.
    pub at: Time,
    /// 90th percentile of the draws, as time from then.
    pub drawn: Duration,
    /// The corrected percentile that was stated, as time from then.
    pub stated: Duration,
    /// When the workload started. A start after the instant of a question is not used.
    pub started: Option<Time>,
}

impl Made {
    fn ratio(&self, now: Time) -> Option<f64> {
        let wait = self.at.until(self.started.filter(|started| *started <= now)?);
        Some((wait.as_secs_f64() + OFFSET_SECONDS) / (self.drawn.as_secs_f64() + OFFSET_SECONDS))
    }

    /// True if the start came, or must come, later than stated; `None` if that is still open.
    fn is_late(&self, now: Time) -> Option<bool> {
        let late = |at: Time| self.at.until(at) > self.stated;
        match self.started.filter(|started| *started <= now) {
            Some(started) => Some(late(started)),
            None => late(now).then_some(true),
        }
    }
}

/// The last forecasts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calibration {
    made: VecDeque<Made>,
}

impl Calibration {
    /// Adds a forecast, which was not made before any other.
    pub fn add(&mut self, made: Made) {
        self.made.push_back(made);
        if self.made.len() > KEPT {
            self.made.pop_front();
        }
    }

    /// The forecasts, in the order in which they were made.
    pub fn made(&self) -> impl Iterator<Item = &Made> {
        self.made.iter()
    }

    /// Keeps some of the forecasts, which may be changed.
    pub fn retain(&mut self, keep: impl FnMut(&mut Made) -> bool) {
        self.made.retain_mut(keep);
    }

    /// What is known at `now`.
    pub fn at(&self, now: Time) -> Factors {
        let mut of_queues: BTreeMap<&Name, Vec<&Made>> = BTreeMap::new();
        for made in self.made.iter().rev() {
            let of_queue = of_queues.entry(&made.cluster_queue).or_default();
            if of_queue.len() < USED {
                of_queue.push(made);
            }
        }
        let own = |(queue, made): (&&Name, &Vec<&Made>)| Some(((*queue).clone(), factor(made, now)?));
        let all: Vec<&Made> = self.made.iter().rev().take(USED).collect();
        Factors { of_queues: of_queues.iter().filter_map(own).collect(), of_all: factor(&all, now) }
    }
}

/// The factor that the next percentile needs; `None` if too few forecasts have come true.
fn factor(made: &[&Made], now: Time) -> Option<f64> {
    let mut ratios: Vec<f64> = made.iter().filter_map(|made| made.ratio(now)).collect();
    if ratios.len() < ENOUGH {
        return None;
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let moved = |late: bool| STEP * (f64::from(u8::from(late)) - (1.0 - SHARE));
    let share = SHARE + made.iter().filter_map(|made| made.is_late(now)).map(moved).sum::<f64>();
    // Of n values, the next one is below the k-th with a chance of k / (n + 1). Sums of decimals
    // are rounded: the rank of 0.9 of 20 is 18.
    let rank = ((ratios.len() + 1) as f64 * share - 1e-9).ceil().clamp(1.0, ratios.len() as f64);
    ratios.get(rank as usize - 1).copied()
}

/// The factors by which percentiles are multiplied at one instant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Factors {
    of_queues: BTreeMap<Name, f64>,
    of_all: Option<f64>,
}

impl Factors {
    /// A drawn percentile, corrected. It is not before the median.
    pub fn correct(&self, cluster_queue: Option<&Name>, drawn: Duration, median: Duration) -> Duration {
        let own = cluster_queue.and_then(|queue| self.of_queues.get(queue)).copied();
        let Some(factor) = own.or(self.of_all) else { return drawn.max(median) };
        let seconds = (drawn.as_secs_f64() + OFFSET_SECONDS) * factor - OFFSET_SECONDS;
        Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX).max(median)
    }
}
