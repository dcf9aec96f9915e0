//! Figures of the controllers' work, under the names of controller-runtime and client-go.
//!
//! Work queues count ([`Figures`]); the figures are read at each request. Durations are those of
//! the process, also if cluster time runs faster. The histogram of reconciles has some of
//! controller-runtime's buckets.
//!
//! Source: `pkg/internal/controller/metrics` and `pkg/metrics/workqueue.go` of controller-runtime
//! 0.22.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::exposition::{Exposition, Family, Histogram, Labels};
use parking_lot::Mutex;

use crate::Queue;
use crate::queue::Load;

/// Upper bounds of waits and work in a queue, in seconds.
const QUEUE: &[f64] = &[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0];
/// Upper bounds of reconciles, in seconds.
const RECONCILE: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Figures of one work queue since it was created.
#[derive(Clone)]
pub(crate) struct Figures {
    adds: u64,
    retries: u64,
    /// Successful reconciles that do not run again by themselves.
    done: u64,
    /// Successful reconciles that run again after some time.
    again: u64,
    waits: Histogram,
    work: Histogram,
    reconciles: Histogram,
}

impl Default for Figures {
    fn default() -> Self {
        let [waits, work] = [Histogram::new(QUEUE), Histogram::new(QUEUE)];
        Self { adds: 0, retries: 0, done: 0, again: 0, waits, work, reconciles: Histogram::new(RECONCILE) }
    }
}

impl Figures {
    /// Counts a key that became due.
    pub fn added(&mut self) {
        self.adds += 1;
    }

    /// Counts the start of a reconcile of a key that was due for this time.
    pub fn waited(&mut self, wait: Duration) {
        self.waits.observe(wait.as_secs_f64());
    }

    /// Counts the end of a reconcile that took this time.
    pub fn worked(&mut self, took: Duration) {
        self.work.observe(took.as_secs_f64());
        self.reconciles.observe(took.as_secs_f64());
    }

    /// Counts a successful reconcile.
    pub fn succeeded(&mut self, runs_again: bool) {
        let count = if runs_again { &mut self.again } else { &mut self.done };
        *count += 1;
    }

    /// Counts a failed reconcile, which is retried.
    pub fn failed(&mut self) {
        self.retries += 1;
    }
}

/// The work of a manager's controllers. Clones share it.
#[derive(Clone, Default)]
pub struct Work(Arc<Mutex<BTreeMap<String, (Queue, usize)>>>);

impl Work {
    /// Adds a running controller. The queue of an earlier term is replaced, and its counters begin
    /// anew.
    pub(crate) fn add(&self, controller: &str, queue: Queue, concurrency: usize) {
        self.0.lock().insert(controller.to_owned(), (queue, concurrency));
    }

    /// Writes the figures.
    pub fn write(&self, exposition: &mut Exposition) {
        let controllers = self.0.lock().clone();
        for (name, (queue, concurrency)) in &controllers {
            let (figures, load) = queue.figures();
            work_queue(exposition, name, &figures, &load);
            reconciles(exposition, name, &figures, &load, *concurrency);
        }
    }
}

fn work_queue(exposition: &mut Exposition, name: &str, figures: &Figures, load: &Load) {
    const DEPTH: Family = Family::gauge("workqueue_depth", "Keys of a work queue that are due");
    const ADDS: Family = Family::counter("workqueue_adds_total", "Keys that became due in a work queue");
    const RETRIES: Family =
        Family::counter("workqueue_retries_total", "Retries of keys of a work queue after an error");
    const UNFINISHED: Family =
        Family::gauge("workqueue_unfinished_work_seconds", "Sum of the ages of the running reconciles, in seconds");
    const LONGEST: Family =
        Family::gauge("workqueue_longest_running_processor_seconds", "Age of the oldest running reconcile, in seconds");
    const WAITS: Family =
        Family::histogram("workqueue_queue_duration_seconds", "Time from a key's due time to its reconcile");
    const WORK: Family = Family::histogram("workqueue_work_duration_seconds", "Duration of the reconcile of a key");
    let labels = [("name", name), ("controller", name)];
    let sum: Duration = load.running.iter().sum();
    let longest = load.running.iter().max().copied().unwrap_or_default();
    for (family, value) in [
        (DEPTH, load.due as f64),
        (ADDS, figures.adds as f64),
        (RETRIES, figures.retries as f64),
        (UNFINISHED, sum.as_secs_f64()),
        (LONGEST, longest.as_secs_f64()),
    ] {
        exposition.add(&family, &labels, value);
    }
    for (family, histogram) in [(WAITS, &figures.waits), (WORK, &figures.work)] {
        let id = exposition.family(&family);
        exposition.histogram(id, &Labels::default(), &labels, histogram);
    }
}

fn reconciles(exposition: &mut Exposition, name: &str, figures: &Figures, load: &Load, concurrency: usize) {
    const TOTAL: Family = Family::counter("controller_runtime_reconcile_total", "Reconciles, by result");
    const ERRORS: Family = Family::counter("controller_runtime_reconcile_errors_total", "Failed reconciles");
    const ACTIVE: Family = Family::gauge("controller_runtime_active_workers", "Reconciles that run now");
    const MAX: Family =
        Family::gauge("controller_runtime_max_concurrent_reconciles", "Maximum number of reconciles at once");
    const TIME: Family = Family::histogram("controller_runtime_reconcile_time_seconds", "Duration of reconciles");
    let controller = ("controller", name);
    let results =
        [("success", figures.done), ("requeue_after", figures.again), ("requeue", 0), ("error", figures.retries)];
    for (result, count) in results {
        exposition.add(&TOTAL, &[controller, ("result", result)], count as f64);
    }
    exposition.add(&ERRORS, &[controller], figures.retries as f64);
    exposition.add(&ACTIVE, &[controller], load.running.len() as f64);
    exposition.add(&MAX, &[controller], concurrency as f64);
    let id = exposition.family(&TIME);
    exposition.histogram(id, &Labels::default(), &[controller], &figures.reconciles);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, ObjectKey};

    #[tokio::test(start_paused = true)]
    async fn work_is_reported_under_the_names_of_controller_runtime() {
        let queue = Queue::new(Clock::scaled("2026-01-01T00:00:00Z".parse().unwrap(), 1.0));
        let work = Work::default();
        work.add("job", queue.clone(), 4);
        for name in ["a", "b", "c"] {
            queue.add(ObjectKey::cluster(name));
        }
        let (first, second) = (queue.next().await, queue.next().await);
        tokio::time::sleep(Duration::from_millis(20)).await;
        queue.done(first, Some(Duration::from_secs(60)));
        queue.failed(second);
        let _running = queue.next().await;
        tokio::time::sleep(Duration::from_millis(2)).await;
        let text = Exposition::text(|exposition| work.write(exposition));
        for line in [
            r#"workqueue_depth{name="job",controller="job"} 0"#,
            r#"workqueue_adds_total{name="job",controller="job"} 3"#,
            r#"workqueue_retries_total{name="job",controller="job"} 1"#,
            r#"workqueue_longest_running_processor_seconds{name="job",controller="job"} 0.002"#,
            r#"workqueue_queue_duration_seconds_count{name="job",controller="job"} 3"#,
            r#"workqueue_queue_duration_seconds_sum{name="job",controller="job"} 0.02"#,
            r#"controller_runtime_reconcile_total{controller="job",result="requeue_after"} 1"#,
            r#"controller_runtime_reconcile_total{controller="job",result="error"} 1"#,
            r#"controller_runtime_active_workers{controller="job"} 1"#,
            r#"controller_runtime_max_concurrent_reconciles{controller="job"} 4"#,
            r#"controller_runtime_reconcile_time_seconds_bucket{controller="job",le="0.025"} 2"#,
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }
}
