//! Metrics of waiting and executing requests by priority level, under the names that Kubernetes'
//! API server uses.

use std::fmt::Write as _;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::flow::Level;

/// Upper bounds of the histograms in seconds: from fractions of one commit to delays that users
/// notice.
const BUCKETS: [f64; 12] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Metrics of all levels.
#[derive(Default)]
pub(crate) struct Figures(Mutex<[OfLevel; Level::COUNT]>);

#[derive(Clone, Copy, Default)]
struct OfLevel {
    waiting: u64,
    executing: u64,
    dispatched: u64,
    rejected: u64,
    waits: Histogram,
    executions: Histogram,
}

#[derive(Clone, Copy, Default)]
struct Histogram {
    /// Number of values up to each bound and above the previous one.
    counts: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    fn observe(&mut self, value: Duration) {
        let value = value.as_secs_f64();
        self.count += 1;
        self.sum += value;
        if let Some(bucket) = BUCKETS.iter().position(|bound| value <= *bound) {
            self.counts[bucket] += 1;
        }
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
            it.waits.observe(wait);
        });
    }

    /// Counts a request whose response was complete `execution` after its turn began.
    pub(super) fn done(&self, level: Level, execution: Duration) {
        self.of(level, |it| {
            it.executing -= 1;
            it.executions.observe(execution);
        });
    }

    /// All metrics in the Prometheus text format, without levels that had no requests.
    pub(crate) fn text(&self) -> String {
        let levels = *self.lock();
        let used = || Level::ALL.iter().zip(&levels).filter(|(_, it)| it.dispatched + it.rejected + it.waiting > 0);
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, value: fn(&OfLevel) -> u64, labels: &str| {
            let _ = writeln!(
                text,
                "# HELP apiserver_flowcontrol_{name} {help}\n# TYPE apiserver_flowcontrol_{name} {kind}"
            );
            for (level, it) in used() {
                let level = level.name();
                let _ =
                    writeln!(text, "apiserver_flowcontrol_{name}{{priority_level=\"{level}\"{labels}}} {}", value(it));
            }
        };
        let inqueue = "Requests that wait in a queue, by priority level.";
        family("current_inqueue_requests", "gauge", inqueue, |it| it.waiting, "");
        let executing = "Requests that are being executed, by priority level.";
        family("current_executing_requests", "gauge", executing, |it| it.executing, "");
        let dispatched = "Requests whose execution has started, by priority level.";
        family("dispatched_requests_total", "counter", dispatched, |it| it.dispatched, "");
        let rejected = "Requests rejected because too many requests of the same user were waiting.";
        family("rejected_requests_total", "counter", rejected, |it| it.rejected, ",reason=\"queue-full\"");
        let mut histogram = |name: &str, help: &str, of: fn(&OfLevel) -> &Histogram| {
            let name = format!("apiserver_flowcontrol_{name}");
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
            for (level, it) in used() {
                let (label, it, mut total) = (format!("priority_level=\"{}\"", level.name()), of(it), 0);
                for (bound, count) in BUCKETS.iter().zip(it.counts) {
                    total += count;
                    let _ = writeln!(text, "{name}_bucket{{{label},le=\"{bound}\"}} {total}");
                }
                let _ = writeln!(text, "{name}_bucket{{{label},le=\"+Inf\"}} {}", it.count);
                let _ = writeln!(text, "{name}_sum{{{label}}} {}\n{name}_count{{{label}}} {}", it.sum, it.count);
            }
        };
        histogram(
            "request_wait_duration_seconds",
            "Seconds from the arrival of the complete request to the start of its execution.",
            |it| &it.waits,
        );
        histogram("request_execution_seconds", "Seconds from the start of the execution to the response.", |it| {
            &it.executions
        });
        text
    }
}

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
        let text = figures.text();
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
