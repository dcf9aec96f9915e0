//! Figures about queues and decisions, under Kueue's names.
//!
//! They are kept as plain values behind a lock; whoever serves `/metrics` asks for the text. Families and labels are those
//! Kueue documents, so that its dashboards work.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};

use berth_api::kueue::v1beta2::{Workload, WorkloadSchedulingStatsEviction};
use berth_engine::{ClusterQueueStatus, CycleOutcome};
use jiff::Timestamp;

use crate::concurrent_admission::is_variant;
use crate::keys;
use crate::workload::status;

/// Upper bounds of the wait-time histograms, in seconds.
const WAIT_BUCKETS: &[f64] =
    &[1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2560.0, 5120.0, 10240.0];

/// The figures; clones share them.
#[derive(Clone, Default)]
pub struct Metrics {
    inner: Arc<Mutex<Families>>,
}

#[derive(Default)]
struct Families {
    /// Gauges per flavor and resource, too.
    of_resources: bool,
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
    ("kueue_evicted_workloads_total", "counter", "Total number of evictions, per cluster queue, reason and cause"),
    (
        "kueue_evicted_workloads_once_total",
        "counter",
        "Total number of workloads evicted at least once, per cluster queue, reason and cause",
    ),
    ("kueue_finished_workloads_total", "counter", "Total number of finished workloads, per cluster queue"),
    (
        "kueue_preempted_workloads_total",
        "counter",
        "Total number of preemptions, per preempting cluster queue and reason",
    ),
];

const HISTOGRAMS: &[(&str, &str)] = &[
    ("kueue_quota_reserved_wait_time_seconds", "Time from queueing to quota reservation, per cluster queue"),
    ("kueue_admission_wait_time_seconds", "Time from queueing to admission, per cluster queue"),
    ("kueue_admission_checks_wait_time_seconds", "Time from quota reservation to admission, per cluster queue"),
    ("kueue_ready_wait_time_seconds", "Time from queueing until all pods are ready, per cluster queue"),
    ("kueue_admitted_until_ready_wait_time_seconds", "Time from admission until all pods are ready, per cluster queue"),
    (
        "kueue_pods_ready_to_evicted_time_seconds",
        "Time from readiness to eviction, per cluster queue, reason and cause",
    ),
    (
        "kueue_workload_eviction_latency_seconds",
        "Time from an eviction to the return of the quota, per cluster queue and reason",
    ),
    ("kueue_execution_time_seconds", "Time finished workloads ran, over all their admissions, per cluster queue"),
];

impl Metrics {
    /// No figures yet. `of_resources`: those of queues per flavor and resource, too (`metrics.enableClusterQueueResources`).
    pub fn new(of_resources: bool) -> Self {
        Self { inner: Arc::new(Mutex::new(Families { of_resources, ..Families::default() })) }
    }

    fn lock(&self) -> MutexGuard<'_, Families> {
        self.inner.lock().expect("no code panics while holding the metrics' lock")
    }

    /// A scheduling cycle ended, or a part of it: it is counted once.
    pub fn cycle(&self, outcome: &CycleOutcome) {
        if let Some(result) = outcome.result {
            self.lock().add("kueue_admission_attempts_total", &[("result", result.as_str())], 1.0);
        }
    }

    /// The figures of a cluster queue.
    pub fn cluster_queue(&self, name: &str, figures: &ClusterQueueStatus, terminating: bool) {
        self.lock().queues.insert(name.to_owned(), (figures.clone(), terminating));
    }

    /// A cluster queue is gone.
    pub fn cluster_queue_gone(&self, name: &str) {
        self.lock().queues.remove(name);
    }

    /// A preemption was written: for a workload of this queue, for this reason.
    pub fn preempted(&self, preempting_queue: &str, reason: &str) {
        let labels = [("preempting_cluster_queue", preempting_queue), ("reason", reason)];
        self.lock().add("kueue_preempted_workloads_total", &labels, 1.0);
    }

    /// A workload changed in the API: what it went through is counted, whoever decided it. Not what it went through before
    /// this process saw it.
    pub fn changed(&self, old: Option<&Workload>, new: &Workload) {
        // A variant is counted as its parent, once.
        let Some(old) = old.filter(|_| !is_variant(new)) else { return };
        let mut families = self.lock();
        let at = |type_: &str| became_true(old, new, type_);
        let class = new.spec.priority_class_ref.as_ref().map_or("", |class| class.name.as_str());
        let admission = |workload: &Workload| workload.status.as_ref().and_then(|status| status.admission.clone());
        let queue = admission(new).or_else(|| admission(old)).map(|it| it.cluster_queue).unwrap_or_default();
        let labels = [("cluster_queue", queue.as_str()), ("priority_class", class)];
        let queued = |until: Timestamp| status::seconds_queued(new, until) as f64;
        if let Some(reserved) = at(keys::QUOTA_RESERVED) {
            families.add("kueue_quota_reserved_workloads_total", &labels, 1.0);
            families.observe("kueue_quota_reserved_wait_time_seconds", &labels, queued(reserved));
        }
        if let Some(admitted) = at(keys::ADMITTED) {
            families.add("kueue_admitted_workloads_total", &labels, 1.0);
            families.observe("kueue_admission_wait_time_seconds", &labels, queued(admitted));
            let reserved = status::seconds_since_reservation(new, admitted) as f64;
            families.observe("kueue_admission_checks_wait_time_seconds", &labels, reserved);
        }
        if let Some(ready) = at(keys::PODS_READY) {
            families.observe("kueue_ready_wait_time_seconds", &labels, queued(ready));
            if let Some(admitted) = status::true_condition(new, keys::ADMITTED) {
                let waited = ready.duration_since(admitted.last_transition_time.0).as_secs_f64().max(0.0);
                families.observe("kueue_admitted_until_ready_wait_time_seconds", &labels, waited);
            }
        }
        for (eviction, first) in evictions(old, new) {
            let labels = [
                ("cluster_queue", queue.as_str()),
                ("reason", eviction.reason.as_str()),
                ("underlying_cause", eviction.underlying_cause.as_str()),
                ("priority_class", class),
            ];
            families.add("kueue_evicted_workloads_total", &labels, 1.0);
            if first {
                families.add("kueue_evicted_workloads_once_total", &labels, 1.0);
            }
            let ready = status::true_condition(old, keys::PODS_READY);
            if let (Some(ready), Some(evicted)) = (ready, status::true_condition(new, keys::EVICTED)) {
                let ran = evicted.last_transition_time.0.duration_since(ready.last_transition_time.0);
                families.observe("kueue_pods_ready_to_evicted_time_seconds", &labels[..3], ran.as_secs_f64().max(0.0));
            }
        }
        let released = status::condition(new, keys::QUOTA_RESERVED).map(|condition| condition.last_transition_time.0);
        if let Some((queue, reason, took)) = released.and_then(|at| status::eviction_completed(Some(old), new, at)) {
            let labels = [("cluster_queue", queue.as_str()), ("reason", reason.as_str())];
            families.observe("kueue_workload_eviction_latency_seconds", &labels, took.as_secs_f64());
        }
        if at(keys::FINISHED).is_some() {
            families.add("kueue_finished_workloads_total", &labels, 1.0);
            if let Some(ran) = status::total_execution_time(new) {
                families.observe("kueue_execution_time_seconds", &labels, ran.as_secs_f64());
            }
        }
    }

    /// All figures in the Prometheus text format.
    pub fn text(&self) -> String {
        let families = self.lock();
        let mut gauges = Families { of_resources: families.of_resources, ..Families::default() };
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

/// When a condition became True between two states of a workload, if it did.
fn became_true(old: &Workload, new: &Workload, type_: &str) -> Option<Timestamp> {
    let condition = status::true_condition(new, type_)?;
    status::true_condition(old, type_).is_none().then_some(condition.last_transition_time.0)
}

/// What a workload was evicted for between two states of it, and whether it was for the first time.
fn evictions(old: &Workload, new: &Workload) -> Vec<(WorkloadSchedulingStatsEviction, bool)> {
    let of = |workload: &Workload| {
        let stats = workload.status.as_ref().and_then(|status| status.scheduling_stats.as_ref());
        stats.map(|stats| stats.evictions.clone()).unwrap_or_default()
    };
    let before = of(old);
    let known = |eviction: &WorkloadSchedulingStatsEviction| {
        let same = |it: &&WorkloadSchedulingStatsEviction| {
            it.reason == eviction.reason && it.underlying_cause == eviction.underlying_cause
        };
        before.iter().find(same).map_or(0, |it| it.count)
    };
    let more = of(new).into_iter().filter(|eviction| eviction.count > known(eviction));
    more.map(|eviction| (eviction.clone(), known(&eviction) == 0)).collect()
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
        if !self.of_resources {
            return;
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
    use berth_api::kueue::v1beta2::Admission;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::gates::Gates;
    use crate::workload::status::Eviction;

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
    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).expect("a time")
    }

    #[test]
    fn what_a_workload_goes_through_is_counted_whoever_decided_it() {
        let metrics = Metrics::default();
        let gates = Gates::default();
        let mut states = vec![Workload::named("w")];
        let mut go = |change: &dyn Fn(&mut Workload)| {
            let mut next = states.last().expect("there is one").clone();
            change(&mut next);
            states.push(next);
        };
        go(&|it| it.metadata.creation_timestamp = Some(Time(at(0))));
        let admission = Admission { cluster_queue: "cq".to_owned(), ..Admission::default() };
        go(&|it| status::set_quota_reservation(it, admission.clone(), at(10)));
        go(&|it| {
            status::set(it, keys::ADMITTED, true, "Admitted", "", at(40));
        });
        go(&|it| {
            status::set(it, keys::PODS_READY, true, "Started", "", at(45));
        });
        let late = Eviction { reason: "PodsReadyTimeout", cause: "WaitForRecovery", message: "" };
        go(&|it| status::evict(it, &late, &gates, at(100)));
        go(&|it| {
            status::release_after_eviction(it, &gates, at(130));
        });
        for pair in states.windows(2) {
            metrics.changed(Some(&pair[0]), &pair[1]);
        }
        // What was there when the process started was counted by the one before.
        metrics.changed(None, &states[3]);
        let text = metrics.text();
        for line in [
            "kueue_quota_reserved_workloads_total{cluster_queue=\"cq\",priority_class=\"\"} 1",
            "kueue_admitted_workloads_total{cluster_queue=\"cq\",priority_class=\"\"} 1",
            "kueue_admission_wait_time_seconds_sum{cluster_queue=\"cq\",priority_class=\"\"} 40",
            "kueue_admission_checks_wait_time_seconds_sum{cluster_queue=\"cq\",priority_class=\"\"} 30",
            "kueue_admitted_until_ready_wait_time_seconds_sum{cluster_queue=\"cq\",priority_class=\"\"} 5",
            "kueue_evicted_workloads_once_total{cluster_queue=\"cq\",reason=\"PodsReadyTimeout\",\
             underlying_cause=\"WaitForRecovery\",priority_class=\"\"} 1",
            "kueue_workload_eviction_latency_seconds_sum{cluster_queue=\"cq\",reason=\"PodsReadyTimeout\"} 30",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }
}
