//! Figures about queues and decisions, under Kueue's names.
//!
//! They are kept as plain values behind a lock; whoever serves `/metrics` asks for the text. Families and labels are those
//! Kueue documents, so that its dashboards work.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};

use berth_api::kueue::v1beta2::Workload;
use berth_engine::{ClusterQueueStatus, CycleOutcome};
use jiff::Timestamp;

use crate::concurrent_admission::is_variant;
use crate::workload::status;

/// Upper bounds of the wait-time histograms, in seconds.
const WAIT_BUCKETS: &[f64] =
    &[1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2560.0, 5120.0, 10240.0];

/// What was written for a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// Quota, and perhaps admission.
    Admitted,
    /// Eviction for another workload.
    Preempted {
        /// The preemptor's cluster queue.
        queue: String,
        /// Reason of condition Preempted.
        reason: &'static str,
    },
    /// Another eviction.
    Evicted {
        /// Reason of condition Evicted.
        reason: &'static str,
    },
    /// Anything that is not counted.
    Other,
}

/// The figures; clones share them.
#[derive(Clone, Default)]
pub struct Metrics {
    inner: Arc<Mutex<Families>>,
}

#[derive(Default)]
struct Families {
    /// What a queue's gauges are made of when somebody asks; queues change far more often than that.
    queues: BTreeMap<String, (ClusterQueueStatus, bool)>,
    /// Family, then labels as they are written, then value.
    values: BTreeMap<&'static str, BTreeMap<String, f64>>,
    histograms: BTreeMap<&'static str, BTreeMap<String, Histogram>>,
}

#[derive(Default, Clone)]
struct Histogram {
    counts: Vec<u64>,
    sum: f64,
    count: u64,
}

/// Families with their help and type, in the order they are printed.
const FAMILIES: &[(&str, &str, &str)] = &[
    ("kueue_admission_attempts_total", "counter", "Total number of attempts to admit workloads, per result"),
    ("kueue_pending_workloads", "gauge", "Number of pending workloads, per cluster queue and status"),
    ("kueue_reserving_active_workloads", "gauge", "Number of workloads that hold quota, per cluster queue"),
    ("kueue_admitted_active_workloads", "gauge", "Number of admitted workloads that are active, per cluster queue"),
    ("kueue_cluster_queue_status", "gauge", "Whether a cluster queue is pending, active or terminating"),
    ("kueue_cluster_queue_resource_reservation", "gauge", "Reserved quota, per cluster queue, flavor and resource"),
    (
        "kueue_cluster_queue_resource_usage",
        "gauge",
        "Quota used by admitted workloads, per cluster queue, flavor and resource",
    ),
    ("kueue_cluster_queue_weighted_share", "gauge", "Weighted share of a cluster queue in its cohort"),
    ("kueue_quota_reserved_workloads_total", "counter", "Total number of quota reservations, per cluster queue"),
    ("kueue_admitted_workloads_total", "counter", "Total number of admissions, per cluster queue"),
    ("kueue_evicted_workloads_total", "counter", "Total number of evictions, per cluster queue and reason"),
    (
        "kueue_preempted_workloads_total",
        "counter",
        "Total number of preemptions, per preempting cluster queue and reason",
    ),
];

const HISTOGRAMS: &[(&str, &str)] = &[
    ("kueue_quota_reserved_wait_time_seconds", "Time from queueing to quota reservation, per cluster queue"),
    ("kueue_admission_wait_time_seconds", "Time from queueing to admission, per cluster queue"),
    (
        "kueue_workload_eviction_latency_seconds",
        "Time from an eviction to the return of the quota, per cluster queue and reason",
    ),
    ("kueue_execution_time_seconds", "Time finished workloads ran, over all their admissions, per cluster queue"),
];

impl Metrics {
    fn lock(&self) -> MutexGuard<'_, Families> {
        self.inner.lock().expect("no code panics while holding the metrics' lock")
    }

    /// A scheduling cycle ended.
    pub fn cycle(&self, outcome: &CycleOutcome) {
        if outcome.decisions.is_empty() {
            return;
        }
        let result = if outcome.is_success() { "success" } else { "inadmissible" };
        self.lock().add("kueue_admission_attempts_total", &[("result", result)], 1.0);
    }

    /// The figures of a cluster queue.
    pub fn cluster_queue(&self, name: &str, figures: &ClusterQueueStatus, terminating: bool) {
        self.lock().queues.insert(name.to_owned(), (figures.clone(), terminating));
    }

    /// A cluster queue is gone.
    pub fn cluster_queue_gone(&self, name: &str) {
        self.lock().queues.remove(name);
    }

    /// A decision was written.
    pub fn written(&self, what: &Written, workload: &Workload, now: Timestamp) {
        let queue = workload.status.as_ref().and_then(|status| status.admission.as_ref());
        let queue = queue.map(|admission| admission.cluster_queue.clone()).unwrap_or_default();
        let mut families = self.lock();
        match what {
            Written::Admitted => {
                let labels = [("cluster_queue", queue.as_str())];
                let waited = status::seconds_queued(workload, now) as f64;
                families.add("kueue_quota_reserved_workloads_total", &labels, 1.0);
                families.observe("kueue_quota_reserved_wait_time_seconds", &labels, waited);
                if status::is_admitted(workload) {
                    families.add("kueue_admitted_workloads_total", &labels, 1.0);
                    families.observe("kueue_admission_wait_time_seconds", &labels, waited);
                }
            }
            Written::Preempted { queue: preempting, reason } => {
                let labels = [("preempting_cluster_queue", preempting.as_str()), ("reason", reason)];
                families.add("kueue_preempted_workloads_total", &labels, 1.0);
                let labels = [("cluster_queue", queue.as_str()), ("reason", "Preempted")];
                families.add("kueue_evicted_workloads_total", &labels, 1.0);
            }
            Written::Evicted { reason } => {
                let labels = [("cluster_queue", queue.as_str()), ("reason", reason)];
                families.add("kueue_evicted_workloads_total", &labels, 1.0);
            }
            Written::Other => {}
        }
    }

    /// A workload changed in the API.
    pub fn changed(&self, old: Option<&Workload>, new: &Workload, now: Timestamp) {
        if is_variant(new) {
            // Counted as its parent, once.
            return;
        }
        if let Some((queue, reason, took)) = status::eviction_completed(old, new, now) {
            let labels = [("cluster_queue", queue.as_str()), ("reason", reason.as_str())];
            self.lock().observe("kueue_workload_eviction_latency_seconds", &labels, took.as_secs_f64());
        }
        let queue = new.status.as_ref().and_then(|status| status.admission.as_ref());
        if old.is_some_and(|old| !status::is_finished(old))
            && let (Some(ran), Some(admission)) = (status::total_execution_time(new), queue)
        {
            let labels = [("cluster_queue", admission.cluster_queue.as_str())];
            self.lock().observe("kueue_execution_time_seconds", &labels, ran.as_secs_f64());
        }
    }

    /// All figures in the Prometheus text format.
    pub fn text(&self) -> String {
        let families = self.lock();
        let mut gauges = Families::default();
        for (name, (figures, terminating)) in &families.queues {
            gauges.set_queue(name, figures, *terminating);
        }
        let mut text = String::new();
        for (name, type_, help) in FAMILIES {
            let Some(values) = gauges.values.get(name).or_else(|| families.values.get(name)) else { continue };
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {type_}");
            for (labels, value) in values {
                let _ = writeln!(text, "{name}{{{labels}}} {value}");
            }
        }
        for (name, help) in HISTOGRAMS {
            let Some(values) = families.histograms.get(name) else { continue };
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
            for (labels, histogram) in values {
                let mut total = 0;
                for (bound, count) in WAIT_BUCKETS.iter().zip(&histogram.counts) {
                    total += count;
                    let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}");
                }
                let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", histogram.count);
                let _ = writeln!(text, "{name}_sum{{{labels}}} {}", histogram.sum);
                let _ = writeln!(text, "{name}_count{{{labels}}} {}", histogram.count);
            }
        }
        text
    }
}

impl Families {
    fn set(&mut self, family: &'static str, labels: &[(&str, &str)], value: f64) {
        self.values.entry(family).or_default().insert(render(labels), value);
    }

    fn add(&mut self, family: &'static str, labels: &[(&str, &str)], value: f64) {
        *self.values.entry(family).or_default().entry(render(labels)).or_default() += value;
    }

    fn observe(&mut self, family: &'static str, labels: &[(&str, &str)], value: f64) {
        let histogram = self.histograms.entry(family).or_default().entry(render(labels)).or_default();
        histogram.counts.resize(WAIT_BUCKETS.len(), 0);
        if let Some(bucket) = WAIT_BUCKETS.iter().position(|bound| value <= *bound) {
            histogram.counts[bucket] += 1;
        }
        histogram.sum += value;
        histogram.count += 1;
    }

    /// The gauges of one queue.
    fn set_queue(&mut self, name: &str, figures: &ClusterQueueStatus, terminating: bool) {
        let queue = [("cluster_queue", name)];
        let active = figures.readiness.active;
        let (pending, inadmissible) = if active { (figures.pending, 0) } else { (0, figures.pending) };
        self.set("kueue_pending_workloads", &[("cluster_queue", name), ("status", "active")], f64::from(pending));
        let labels = [("cluster_queue", name), ("status", "inadmissible")];
        self.set("kueue_pending_workloads", &labels, f64::from(inadmissible));
        self.set("kueue_reserving_active_workloads", &queue, f64::from(figures.reserving));
        self.set("kueue_admitted_active_workloads", &queue, f64::from(figures.admitted));
        self.set("kueue_cluster_queue_weighted_share", &queue, figures.weighted_share.value as f64);
        for status in ["pending", "active", "terminating"] {
            let is = match status {
                "terminating" => terminating,
                "active" => !terminating && active,
                _ => !terminating && !active,
            };
            let labels = [("cluster_queue", name), ("status", status)];
            self.set("kueue_cluster_queue_status", &labels, f64::from(u8::from(is)));
        }
        for (family, usage) in [
            ("kueue_cluster_queue_resource_reservation", &figures.flavors_reservation),
            ("kueue_cluster_queue_resource_usage", &figures.flavors_usage),
        ] {
            for (flavor, resources) in usage {
                for (resource, amount) in resources {
                    let labels =
                        [("cluster_queue", name), ("flavor", flavor.as_ref()), ("resource", resource.as_ref())];
                    // Kueue reports cpu in cores.
                    let value =
                        if resource.as_ref() == "cpu" { amount.total as f64 / 1000.0 } else { amount.total as f64 };
                    self.set(family, &labels, value);
                }
            }
        }
    }
}

fn render(labels: &[(&str, &str)]) -> String {
    let escape = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escape(value))).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_queues_and_counts() {
        let metrics = Metrics::default();
        let figures = ClusterQueueStatus { pending: 2, admitted: 1, ..ClusterQueueStatus::default() };
        metrics.cluster_queue("cq-a", &figures, false);
        metrics.cluster_queue("cq-ab", &figures, false);
        metrics.cluster_queue_gone("cq-a");
        let text = metrics.text();
        assert!(text.contains("kueue_pending_workloads{cluster_queue=\"cq-ab\",status=\"active\"} 2"), "{text}");
        assert!(!text.contains("\"cq-a\""), "{text}");
    }
}
