//! The metric families, and their series as values and as text.

use std::collections::BTreeMap;

use Kind::{Counter, Gauge, Histogram};
use berth_apimachinery::exposition::{self, Exemplar, Exposition, Family};

/// Type of a family.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Counter,
    Gauge,
    /// A histogram whose buckets have these upper bounds.
    Histogram(&'static [f64]),
}

impl Kind {
    fn exposed(self) -> exposition::Kind {
        match self {
            Counter => exposition::Kind::Counter,
            Gauge => exposition::Kind::Gauge,
            Histogram(_) => exposition::Kind::Histogram,
        }
    }
}

/// Upper bounds of most wait times, in seconds.
const WAIT: &[f64] = &[1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2560.0, 5120.0, 10240.0];
/// Upper bounds of the times that Kueue measures for longer: execution, and waits for admission by
/// cluster queue.
const LONG: &[f64] =
    &[1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2560.0, 5120.0, 10240.0, 20480.0, 40960.0];
/// Upper bounds of the time from a job to its Workload, in seconds.
const CREATION: &[f64] = &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24];
/// Upper bounds of other short durations, in seconds; Prometheus' defaults.
const DECISION: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// All families in the order of output: name, type, help.
const FAMILIES: &[(&str, Kind, &str)] = &[
    ("kueue_build_info", Gauge, "Always 1; the labels identify the program's version"),
    ("kueue_admission_attempts_total", Counter, "Scheduling cycles that tried to admit workloads, by result"),
    (
        "kueue_admission_attempt_duration_seconds",
        Histogram(DECISION),
        "Duration of scheduling cycles that tried to admit workloads, by result",
    ),
    (
        "kueue_workload_creation_latency_seconds",
        Histogram(CREATION),
        "Time from the creation of a job to the creation of its Workload",
    ),
    (
        "kueue_pod_scheduling_gate_removal_seconds",
        Histogram(DECISION),
        "Time from the admission of a workload to the removal of a scheduling gate from one of its pods",
    ),
    ("kueue_pending_workloads", Gauge, "Pending workloads, by cluster queue and status"),
    ("kueue_pending_scheduling_hashes", Gauge, "Distinct scheduling-equivalence classes among pending workloads"),
    ("kueue_unadmitted_workloads", Gauge, "Unadmitted workloads, by cluster queue, reason and underlying cause"),
    ("kueue_reserving_active_workloads", Gauge, "Workloads that hold quota, by cluster queue"),
    ("kueue_admitted_active_workloads", Gauge, "Admitted workloads that have not finished, by cluster queue"),
    ("kueue_finished_workloads", Gauge, "Finished workloads that are not deleted yet, by cluster queue"),
    (
        "kueue_cluster_queue_status",
        Gauge,
        "1 for the current status of a cluster queue (pending, active or terminating), 0 otherwise",
    ),
    ("kueue_cluster_queue_info", Gauge, "Always 1; the labels give a cluster queue's parent and root cohort"),
    ("kueue_cluster_queue_resource_pending", Gauge, "Requests of pending workloads, by cluster queue and resource"),
    ("kueue_cluster_queue_nominal_quota", Gauge, "Nominal quota, by cluster queue, flavor and resource"),
    (
        "kueue_cluster_queue_borrowing_limit",
        Gauge,
        "Borrowing limit, by cluster queue, flavor and resource; +Inf without a limit",
    ),
    (
        "kueue_cluster_queue_lending_limit",
        Gauge,
        "Lending limit, by cluster queue, flavor and resource; +Inf without a limit",
    ),
    ("kueue_cluster_queue_resource_reservation", Gauge, "Reserved quota, by cluster queue, flavor and resource"),
    (
        "kueue_cluster_queue_resource_usage",
        Gauge,
        "Quota used by admitted workloads, by cluster queue, flavor and resource",
    ),
    (
        "kueue_cluster_queue_weighted_share",
        Gauge,
        "Borrowed share of the cohort's lendable quota, in thousandths, divided by the queue's weight; NaN if the queue borrows with weight 0",
    ),
    (
        "kueue_admission_cycle_preemption_skips",
        Gauge,
        "Workloads that could preempt but were skipped in the last scheduling cycle, by cluster queue",
    ),
    (
        "kueue_preemption_target_recomputations_total",
        Counter,
        "Recomputations of preemption targets, by cluster queue and result",
    ),
    ("kueue_cohort_info", Gauge, "Always 1; the labels give a cohort's parent and root"),
    (
        "kueue_cohort_weighted_share",
        Gauge,
        "Borrowed share of the parent's lendable quota, in thousandths, divided by the cohort's weight; NaN if the cohort borrows with weight 0",
    ),
    (
        "kueue_cohort_subtree_quota",
        Gauge,
        "Quota of a cohort, including the quota that its members lend, by flavor and resource",
    ),
    (
        "kueue_cohort_subtree_resource_reservations",
        Gauge,
        "Reserved quota of all cluster queues below a cohort, by flavor and resource",
    ),
    (
        "kueue_cohort_subtree_admitted_active_workloads",
        Gauge,
        "Admitted workloads of all cluster queues below a cohort",
    ),
    ("kueue_cohort_subtree_admitted_workloads_total", Counter, "Admissions by all cluster queues below a cohort"),
    ("kueue_quota_reserved_workloads_total", Counter, "Quota reservations, by cluster queue"),
    ("kueue_admitted_workloads_total", Counter, "Admissions, by cluster queue"),
    ("kueue_evicted_workloads_total", Counter, "Evictions, by cluster queue, reason and underlying cause"),
    (
        "kueue_evicted_workloads_once_total",
        Counter,
        "Workloads evicted at least once, by cluster queue, reason and underlying cause",
    ),
    ("kueue_finished_workloads_total", Counter, "Workloads that finished, by cluster queue"),
    (
        "kueue_replaced_workload_slices_total",
        Counter,
        "Slices of elastic workloads replaced by a later slice, by cluster queue",
    ),
    ("kueue_preempted_workloads_total", Counter, "Preemptions, by preempting cluster queue and reason"),
    (
        "kueue_quota_reserved_wait_time_seconds",
        Histogram(WAIT),
        "Time from queueing to quota reservation, by cluster queue",
    ),
    ("kueue_admission_wait_time_seconds", Histogram(LONG), "Time from queueing to admission, by cluster queue"),
    (
        "kueue_admission_checks_wait_time_seconds",
        Histogram(WAIT),
        "Time from quota reservation to admission, by cluster queue",
    ),
    ("kueue_ready_wait_time_seconds", Histogram(WAIT), "Time from queueing until all pods are ready, by cluster queue"),
    (
        "kueue_admitted_until_ready_wait_time_seconds",
        Histogram(WAIT),
        "Time from admission until all pods are ready, by cluster queue",
    ),
    (
        "kueue_pods_ready_to_evicted_time_seconds",
        Histogram(WAIT),
        "Time from the readiness of all pods to the eviction of the workload, by cluster queue and reason",
    ),
    (
        "kueue_workload_eviction_latency_seconds",
        Histogram(WAIT),
        "Time from the eviction of a workload to the release of its quota, by cluster queue and reason",
    ),
    (
        "kueue_execution_time_seconds",
        Histogram(LONG),
        "Execution time of finished workloads, over all admissions, by cluster queue",
    ),
    ("kueue_local_queue_pending_workloads", Gauge, "Pending workloads, by local queue and status"),
    (
        "kueue_local_queue_unadmitted_workloads",
        Gauge,
        "Unadmitted workloads, by local queue, reason and underlying cause",
    ),
    ("kueue_local_queue_reserving_active_workloads", Gauge, "Workloads that hold quota, by local queue"),
    ("kueue_local_queue_admitted_active_workloads", Gauge, "Admitted workloads that have not finished, by local queue"),
    ("kueue_local_queue_finished_workloads", Gauge, "Finished workloads that are not deleted yet, by local queue"),
    ("kueue_local_queue_status", Gauge, "1 for the current status of condition Active of a local queue, 0 otherwise"),
    ("kueue_local_queue_resource_reservation", Gauge, "Reserved quota, by local queue, flavor and resource"),
    (
        "kueue_local_queue_resource_usage",
        Gauge,
        "Quota used by admitted workloads, by local queue, flavor and resource",
    ),
    (
        "kueue_local_queue_admission_fair_sharing_usage",
        Gauge,
        "Decayed usage by which admission fair sharing orders local queues",
    ),
    ("kueue_local_queue_quota_reserved_workloads_total", Counter, "Quota reservations, by local queue"),
    ("kueue_local_queue_admitted_workloads_total", Counter, "Admissions, by local queue"),
    ("kueue_local_queue_evicted_workloads_total", Counter, "Evictions, by local queue, reason and underlying cause"),
    ("kueue_local_queue_finished_workloads_total", Counter, "Workloads that finished, by local queue"),
    (
        "kueue_local_queue_quota_reserved_wait_time_seconds",
        Histogram(WAIT),
        "Time from queueing to quota reservation, by local queue",
    ),
    (
        "kueue_local_queue_admission_wait_time_seconds",
        Histogram(WAIT),
        "Time from queueing to admission, by local queue",
    ),
    (
        "kueue_local_queue_admission_checks_wait_time_seconds",
        Histogram(WAIT),
        "Time from quota reservation to admission, by local queue",
    ),
    (
        "kueue_local_queue_ready_wait_time_seconds",
        Histogram(WAIT),
        "Time from queueing until all pods are ready, by local queue",
    ),
    (
        "kueue_local_queue_admitted_until_ready_wait_time_seconds",
        Histogram(WAIT),
        "Time from admission until all pods are ready, by local queue",
    ),
    (
        "kueue_local_queue_execution_time_seconds",
        Histogram(LONG),
        "Execution time of finished workloads, over all admissions, by local queue",
    ),
];

/// Labels that identify a series of a family.
pub(super) type Labels = Vec<(&'static str, String)>;

/// Borrowed labels.
pub(super) type LabelRefs<'a> = [(&'static str, &'a str)];

/// A copy of borrowed labels.
pub(super) fn owned(labels: &LabelRefs<'_>) -> Labels {
    labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}

/// The value of a label.
pub(super) fn label<'a>(labels: &'a Labels, name: &str) -> Option<&'a str> {
    labels.iter().find(|(label, _)| *label == name).map(|(_, value)| value.as_str())
}

/// Series of any number of families.
#[derive(Default)]
pub(super) struct Series {
    values: BTreeMap<&'static str, BTreeMap<Labels, Value>>,
    distributions: BTreeMap<&'static str, BTreeMap<Labels, exposition::Histogram>>,
}

/// Value of a gauge or counter.
#[derive(Default)]
struct Value {
    value: f64,
    /// The last counted event.
    exemplar: Option<Exemplar>,
}

fn bounds(family: &str) -> &'static [f64] {
    match FAMILIES.iter().find(|(name, ..)| *name == family) {
        Some((_, Histogram(bounds), _)) => bounds,
        _ => &[],
    }
}

impl Series {
    /// Sets a gauge.
    pub fn set(&mut self, family: &'static str, labels: &LabelRefs<'_>, value: f64) {
        self.values.entry(family).or_default().insert(owned(labels), Value { value, exemplar: None });
    }

    /// Adds to a counter, or to a gauge that is a sum.
    pub fn add(&mut self, family: &'static str, labels: Labels, value: f64) {
        self.values.entry(family).or_default().entry(labels).or_default().value += value;
    }

    /// Counts one event.
    pub fn count(&mut self, family: &'static str, labels: Labels, exemplar: Option<Exemplar>) {
        let counter = self.values.entry(family).or_default().entry(labels).or_default();
        counter.value += 1.0;
        counter.exemplar = exemplar.or(counter.exemplar.take());
    }

    /// Adds a duration to a histogram.
    pub fn observe(&mut self, family: &'static str, labels: Labels, seconds: f64, exemplar: Option<Exemplar>) {
        let series = self.distributions.entry(family).or_default().entry(labels);
        series.or_insert_with(|| exposition::Histogram::new(bounds(family))).observe_with(seconds, exemplar);
    }

    /// Drops series of objects that no longer exist.
    pub fn forget(&mut self, gone: impl Fn(&Labels) -> bool) {
        for series in self.values.values_mut() {
            series.retain(|labels, _| !gone(labels));
        }
        for series in self.distributions.values_mut() {
            series.retain(|labels, _| !gone(labels));
        }
    }
}

/// Writes the series. `further` returns additional labels of a gauge; `more` are common to all.
pub(super) fn write(
    exposition: &mut Exposition,
    gauges: &Series,
    counted: &Series,
    further: impl Fn(&Labels) -> Labels,
    more: &LabelRefs<'_>,
) {
    let text = |labels: &Labels, further: &Labels| {
        let own = labels.iter().chain(further).map(|(name, value)| (*name, value.as_str()));
        exposition::Labels::of(&own.collect::<Vec<_>>())
    };
    let none = Labels::new();
    for (name, kind, help) in FAMILIES {
        let id = exposition.family(&Family { name, kind: kind.exposed(), help });
        for (labels, it) in gauges.values.get(name).into_iter().flatten() {
            exposition.sample_with(id, &text(labels, &further(labels)), more, it.value, it.exemplar.as_ref());
        }
        for (labels, it) in counted.values.get(name).into_iter().flatten() {
            exposition.sample_with(id, &text(labels, &none), more, it.value, it.exemplar.as_ref());
        }
        for (labels, histogram) in counted.distributions.get(name).into_iter().flatten() {
            exposition.histogram(id, &text(labels, &none), more, histogram);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_counters_end_in_total() {
        let mut names: Vec<&str> = FAMILIES.iter().map(|(name, ..)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FAMILIES.len());
        for (name, kind, _) in FAMILIES {
            assert_eq!(*kind == Counter, name.ends_with("_total"), "{name}");
        }
    }
}
