//! The metric families, and their series as values and as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use Kind::{Counter, Gauge, Histogram};

/// Type of a family.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Counter,
    Gauge,
    /// A histogram whose buckets have these upper bounds.
    Histogram(&'static [f64]),
}

/// Upper bounds of wait times, in seconds. All bounds are Kueue's, so that its dashboards hold.
const WAIT: &[f64] = &[1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2560.0, 5120.0, 10240.0];
/// Upper bounds of the wait of cluster queues for admission, and of execution times, in seconds.
const LONG: &[f64] =
    &[1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2560.0, 5120.0, 10240.0, 20480.0, 40960.0];
/// Upper bounds of the time until a job has a Workload, in seconds.
const CREATION: &[f64] = &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24];
/// Upper bounds of a cycle's duration, in seconds; Prometheus' defaults.
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
        Histogram(WAIT),
        "Time from the admission of a workload to the removal of a scheduling gate from one of its pods",
    ),
    ("kueue_pending_workloads", Gauge, "Pending workloads, by cluster queue and status"),
    ("kueue_pending_scheduling_hashes", Gauge, "Distinct scheduling-equivalence classes among pending workloads"),
    ("kueue_unadmitted_workloads", Gauge, "Unadmitted workloads, by reason and underlying cause"),
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
    ("kueue_preemption_target_recomputations_total", Counter, "Recomputations of preemption targets, by result"),
    ("kueue_cohort_info", Gauge, "Always 1; the labels give a cohort's parent and root"),
    (
        "kueue_cohort_weighted_share",
        Gauge,
        "Borrowed share of the parent's lendable quota, in thousandths, divided by the cohort's weight; NaN if the cohort borrows with weight 0",
    ),
    ("kueue_cohort_subtree_quota", Gauge, "Quota of a cohort including what its members lend, by flavor and resource"),
    ("kueue_cohort_subtree_resource_reservations", Gauge, "Reserved quota of all cluster queues below a cohort"),
    (
        "kueue_cohort_subtree_admitted_active_workloads",
        Gauge,
        "Admitted workloads of all cluster queues below a cohort",
    ),
    ("kueue_cohort_subtree_admitted_workloads_total", Counter, "Admissions by all cluster queues below a cohort"),
    ("kueue_quota_reserved_workloads_total", Counter, "Quota reservations, by cluster queue"),
    ("kueue_admitted_workloads_total", Counter, "Admissions, by cluster queue"),
    ("kueue_evicted_workloads_total", Counter, "Evictions, by cluster queue, reason and underlying cause"),
    ("kueue_evicted_workloads_once_total", Counter, "Workloads evicted at least once, by reason and underlying cause"),
    ("kueue_finished_workloads_total", Counter, "Workloads that finished, by cluster queue"),
    ("kueue_replaced_workload_slices_total", Counter, "Slices of elastic workloads replaced by a later slice"),
    ("kueue_preempted_workloads_total", Counter, "Preemptions, by preempting cluster queue and reason"),
    ("kueue_quota_reserved_wait_time_seconds", Histogram(WAIT), "Time from queueing to quota reservation"),
    ("kueue_admission_wait_time_seconds", Histogram(LONG), "Time from queueing to admission"),
    ("kueue_admission_checks_wait_time_seconds", Histogram(WAIT), "Time from quota reservation to admission"),
    ("kueue_ready_wait_time_seconds", Histogram(WAIT), "Time from queueing until all pods are ready"),
    ("kueue_admitted_until_ready_wait_time_seconds", Histogram(WAIT), "Time from admission until all pods are ready"),
    (
        "kueue_pods_ready_to_evicted_time_seconds",
        Histogram(WAIT),
        "Time from the readiness of all pods to the eviction of the workload",
    ),
    (
        "kueue_workload_eviction_latency_seconds",
        Histogram(WAIT),
        "Time from the eviction of a workload to the release of its quota",
    ),
    ("kueue_execution_time_seconds", Histogram(LONG), "Execution time of finished workloads, over all admissions"),
    ("kueue_local_queue_pending_workloads", Gauge, "Pending workloads, by local queue and status"),
    ("kueue_local_queue_unadmitted_workloads", Gauge, "Unadmitted workloads, by reason and underlying cause"),
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
    ("kueue_local_queue_quota_reserved_wait_time_seconds", Histogram(WAIT), "Time from queueing to quota reservation"),
    ("kueue_local_queue_admission_wait_time_seconds", Histogram(WAIT), "Time from queueing to admission"),
    (
        "kueue_local_queue_admission_checks_wait_time_seconds",
        Histogram(WAIT),
        "Time from quota reservation to admission",
    ),
    ("kueue_local_queue_ready_wait_time_seconds", Histogram(WAIT), "Time from queueing until all pods are ready"),
    (
        "kueue_local_queue_admitted_until_ready_wait_time_seconds",
        Histogram(WAIT),
        "Time from admission until all pods are ready",
    ),
    (
        "kueue_local_queue_execution_time_seconds",
        Histogram(LONG),
        "Execution time of finished workloads, over all admissions",
    ),
];

/// Labels that identify a series of a family.
pub(super) type Labels = Vec<(&'static str, String)>;

/// Borrowed labels.
pub(super) type LabelRefs<'a> = [(&'static str, &'a str)];

fn owned(labels: &LabelRefs<'_>) -> Labels {
    labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}

/// The value of a label.
pub(super) fn label<'a>(labels: &'a Labels, name: &str) -> Option<&'a str> {
    labels.iter().find(|(label, _)| *label == name).map(|(_, value)| value.as_str())
}

/// Series of any number of families.
#[derive(Default)]
pub(super) struct Series {
    values: BTreeMap<&'static str, BTreeMap<Labels, f64>>,
    distributions: BTreeMap<&'static str, BTreeMap<Labels, Distribution>>,
}

/// Contents of a histogram.
#[derive(Default, Clone)]
struct Distribution {
    /// Per bucket, the number of values above the previous bound and up to its own.
    counts: Vec<u64>,
    sum: f64,
    count: u64,
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
        self.values.entry(family).or_default().insert(owned(labels), value);
    }

    /// Adds to a counter, or to a gauge that is a sum.
    pub fn add(&mut self, family: &'static str, labels: &LabelRefs<'_>, value: f64) {
        *self.values.entry(family).or_default().entry(owned(labels)).or_default() += value;
    }

    /// Adds a duration to a histogram.
    pub fn observe(&mut self, family: &'static str, labels: &LabelRefs<'_>, seconds: f64) {
        let bounds = bounds(family);
        let seen = self.distributions.entry(family).or_default().entry(owned(labels)).or_default();
        seen.counts.resize(bounds.len(), 0);
        if let Some(bucket) = bounds.iter().position(|bound| seconds <= *bound) {
            seen.counts[bucket] += 1;
        }
        seen.sum += seconds;
        seen.count += 1;
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

/// The series in the Prometheus text format. `further` returns additional labels per series; `more`
/// are common to all.
pub(super) fn text(all: &[&Series], further: impl Fn(&Labels) -> Labels, more: &LabelRefs<'_>) -> String {
    let mut text = String::new();
    for (name, kind, help) in FAMILIES {
        let type_ = match kind {
            Counter => "counter",
            Gauge => "gauge",
            Histogram(_) => "histogram",
        };
        let mut begun = false;
        let mut begin = |text: &mut String| {
            if !std::mem::replace(&mut begun, true) {
                let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {type_}");
            }
        };
        for (labels, value) in all.iter().filter_map(|series| series.values.get(name)).flatten() {
            begin(&mut text);
            let _ = writeln!(text, "{name}{{{}}} {}", LabelText(labels, &further(labels), more), Number(*value));
        }
        for (labels, seen) in all.iter().filter_map(|series| series.distributions.get(name)).flatten() {
            begin(&mut text);
            let labels = LabelText(labels, &further(labels), more).to_string();
            let mut total = 0;
            for (bound, count) in bounds(name).iter().zip(&seen.counts) {
                total += count;
                let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}");
            }
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", seen.count);
            let _ = writeln!(text, "{name}_sum{{{labels}}} {}", seen.sum);
            let _ = writeln!(text, "{name}_count{{{labels}}} {}", seen.count);
        }
    }
    text
}

/// Labels in the text format.
struct LabelText<'a>(&'a Labels, &'a Labels, &'a LabelRefs<'a>);

impl std::fmt::Display for LabelText<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let own = self.0.iter().chain(self.1).map(|(name, value)| (*name, value.as_str()));
        for (at, (name, value)) in own.chain(self.2.iter().copied()).enumerate() {
            f.write_str(if at == 0 { "" } else { "," })?;
            write!(f, "{name}=\"")?;
            for char in value.chars() {
                match char {
                    '\\' => f.write_str("\\\\")?,
                    '"' => f.write_str("\\\"")?,
                    '\n' => f.write_str("\\n")?,
                    char => f.write_char(char)?,
                }
            }
            f.write_char('"')?;
        }
        Ok(())
    }
}

/// A number in the text format.
struct Number(f64);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_infinite() {
            return f.write_str(if self.0 > 0.0 { "+Inf" } else { "-Inf" });
        }
        write!(f, "{}", self.0)
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

    #[test]
    fn text_escapes_label_values_and_formats_numbers_for_prometheus() {
        let mut series = Series::default();
        series.set("kueue_pending_workloads", &[("cluster_queue", "a\"\\\n")], f64::INFINITY);
        series.set("kueue_cohort_weighted_share", &[("cohort", "c")], f64::NAN);
        let text = text(&[&series], |_| Labels::new(), &[("replica_role", "leader")]);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "kueue_pending_workloads{cluster_queue=\"a\\\"\\\\\\n\",replica_role=\"leader\"} +Inf",
                "kueue_cohort_weighted_share{cohort=\"c\",replica_role=\"leader\"} NaN"
            ]
        );
    }
}
