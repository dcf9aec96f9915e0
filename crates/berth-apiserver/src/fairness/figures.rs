//! Metrics of waiting and executing requests by priority level, under the names that Kubernetes'
//! API server uses.

use std::time::Duration;

use berth_apimachinery::exposition::{Exposition, Family, Histogram, Labels};
use parking_lot::{Mutex, MutexGuard};

use super::flow::Level;

/// Upper bounds of the histograms in seconds: from fractions of one commit to delays that users
/// notice.
const BUCKETS: &[f64] = &[0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Metrics of all levels.
#[derive(Default)]
pub(crate) struct Figures(Mutex<[OfLevel; Level::COUNT]>);

struct OfLevel {
    waiting: u64,
    executing: u64,
    dispatched: u64,
    rejected: u64,
    waits: Histogram,
    executions: Histogram,
}

impl Default for OfLevel {
    fn default() -> Self {
        let empty = || Histogram::new(BUCKETS);
        Self { waiting: 0, executing: 0, dispatched: 0, rejected: 0, waits: empty(), executions: empty() }
    }
}

impl Figures {
    fn of(&self, level: Level, change: impl FnOnce(&mut OfLevel)) {
        change(&mut self.lock()[level as usize]);
    }

    fn lock(&self) -> MutexGuard<'_, [OfLevel; Level::COUNT]> {
        self.0.lock()
    }

    /// Counts a rejected request.
    pub(super) fn rejected(&self, level: Level) {
        self.of(level, |it| it.rejected += 1);
    }

    /// Counts a request that begins to wait.
    pub(super) fn began_waiting(&self, level: Level) {
        self.of(level, |it| it.waiting += 1);
    }

    /// Counts the end of a wait: the request has its turn or was cancelled.
    pub(super) fn stopped_waiting(&self, level: Level) {
        self.of(level, |it| it.waiting -= 1);
    }

    /// Counts a request that has its turn after waiting for `wait`.
    pub(super) fn dispatched(&self, level: Level, wait: Duration) {
        self.of(level, |it| {
            it.dispatched += 1;
            it.executing += 1;
            it.waits.observe(wait.as_secs_f64());
        });
    }

    /// Counts a request whose response was complete `execution` after its turn began.
    pub(super) fn done(&self, level: Level, execution: Duration) {
        self.of(level, |it| {
            it.executing -= 1;
            it.executions.observe(execution.as_secs_f64());
        });
    }

    /// Writes all metrics, without levels that had no requests.
    pub(crate) fn write(&self, exposition: &mut Exposition) {
        let levels = self.lock();
        let used =
            || Level::ALL.iter().zip(levels.iter()).filter(|(_, it)| it.dispatched + it.rejected + it.waiting > 0);
        for (family, value) in COUNTS {
            let id = exposition.family(family);
            for (level, it) in used() {
                let mut labels = Labels::of(&[("priority_level", level.name())]);
                if family.name == REJECTED {
                    labels.push("reason", "queue-full");
                }
                exposition.sample(id, &labels, &[], value(it) as f64);
            }
        }
        for (family, histogram) in DURATIONS {
            let id = exposition.family(family);
            for (level, it) in used() {
                exposition.histogram(id, &Labels::of(&[("priority_level", level.name())]), &[], histogram(it));
            }
        }
    }
}

const REJECTED: &str = "apiserver_flowcontrol_rejected_requests_total";

/// Numbers of requests.
const COUNTS: &[(Family, fn(&OfLevel) -> u64)] = &[
    (
        Family::gauge(
            "apiserver_flowcontrol_current_inqueue_requests",
            "Requests that wait in a queue, by priority level.",
        ),
        |it| it.waiting,
    ),
    (
        Family::gauge(
            "apiserver_flowcontrol_current_executing_requests",
            "Requests that are being executed, by priority level.",
        ),
        |it| it.executing,
    ),
    (
        Family::counter(
            "apiserver_flowcontrol_dispatched_requests_total",
            "Requests whose execution has started, by priority level.",
        ),
        |it| it.dispatched,
    ),
    (Family::counter(REJECTED, "Requests rejected because too many requests of the same user were waiting."), |it| {
        it.rejected
    }),
];

/// Durations of requests.
const DURATIONS: &[(Family, fn(&OfLevel) -> &Histogram)] = &[
    (
        Family::histogram(
            "apiserver_flowcontrol_request_wait_duration_seconds",
            "Seconds from the arrival of the complete request to the start of its execution.",
        ),
        |it| &it.waits,
    ),
    (
        Family::histogram(
            "apiserver_flowcontrol_request_execution_seconds",
            "Seconds from the start of the execution to the response.",
        ),
        |it| &it.executions,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_reported_by_level() {
        let figures = Figures::default();
        figures.began_waiting(Level::WorkloadLow);
        figures.began_waiting(Level::WorkloadLow);
        figures.stopped_waiting(Level::WorkloadLow);
        figures.dispatched(Level::WorkloadLow, Duration::from_micros(1_500));
        figures.dispatched(Level::WorkloadLow, Duration::from_secs(60));
        figures.done(Level::WorkloadLow, Duration::from_millis(3));
        figures.rejected(Level::CatchAll);
        let text = Exposition::text(|exposition| figures.write(exposition));
        for line in [
            "current_inqueue_requests{priority_level=\"workload-low\"} 1",
            "current_executing_requests{priority_level=\"workload-low\"} 1",
            "dispatched_requests_total{priority_level=\"workload-low\"} 2",
            "rejected_requests_total{priority_level=\"catch-all\",reason=\"queue-full\"} 1",
            "request_wait_duration_seconds_bucket{priority_level=\"workload-low\",le=\"0.001\"} 0",
            "request_wait_duration_seconds_bucket{priority_level=\"workload-low\",le=\"0.002\"} 1",
            "request_wait_duration_seconds_bucket{priority_level=\"workload-low\",le=\"30\"} 1",
            "request_wait_duration_seconds_bucket{priority_level=\"workload-low\",le=\"+Inf\"} 2",
            "request_wait_duration_seconds_sum{priority_level=\"workload-low\"} 60.0015",
            "request_execution_seconds_count{priority_level=\"workload-low\"} 1",
        ] {
            assert!(text.contains(&format!("\napiserver_flowcontrol_{line}\n")), "{line} is not in\n{text}");
        }
        assert!(!text.contains("global-default"), "{text}");
    }
}
