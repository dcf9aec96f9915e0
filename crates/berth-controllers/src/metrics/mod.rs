//! Metrics of queues, workloads and decisions, under Kueue's names.
//!
//! Events are counted when they happen ([`workloads`]). State is read from the engine's counts at
//! each scrape ([`gauges`]), so it has no cost between scrapes, and the series of a queue disappear
//! with the queue. The HTTP server of `/metrics` calls [`Metrics::write`]. Families and labels are
//! those of Kueue's documentation, so that its dashboards work.

mod custom;
mod families;
mod gauges;
#[cfg(test)]
mod tests;
mod workloads;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::kueue::v1beta2::{Cohort, LocalQueue, Workload};
use berth_apimachinery::exposition::Exposition;
use berth_engine::{CycleOutcome, Name};
use berth_runtime::Cache;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use parking_lot::{Mutex, MutexGuard};

use crate::concurrent_admission::is_variant;
use crate::conditions;
use crate::configuration::{Config, LabelSource};
use crate::gates::Gate;
use crate::scheduler::SchedulerState;
use crate::selector;
use crate::stores::Stores;
use crate::workload::status;
use custom::{Counters, CustomLabels};
use families::{Series, label};
use gauges::{DeletedCohorts, Source};
use workloads::{AdmittedCounts, Owners, StageCounts};

/// The metrics; clones share them.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    /// `None` in tests that only count.
    source: Option<Source>,
    counted: Mutex<Counted>,
    deleted_cohorts: Mutex<DeletedCohorts>,
}

#[derive(Default)]
struct Counted {
    series: Series,
    stages: StageCounts,
    /// Counted if gauges are split by custom labels of workloads.
    admitted: AdmittedCounts,
    /// Preemptions skipped in the last cycle, by queue.
    skips: BTreeMap<Name, u32>,
    cycle: Cycle,
}

/// Totals of the completed parts of a cycle that is not complete.
#[derive(Default)]
struct Cycle {
    took: Duration,
    skips: BTreeMap<Name, u32>,
}

/// The role of this process among its replicas: label `replica_role` of every series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The replica that holds the Lease.
    Leader,
    /// A replica that does not hold the Lease.
    Follower,
    /// There is only one replica.
    Standalone,
}

impl Role {
    fn as_str(self) -> &'static str {
        match self {
            Role::Leader => "leader",
            Role::Follower => "follower",
            Role::Standalone => "standalone",
        }
    }
}

/// Which series are exported.
#[derive(Default)]
struct Settings {
    /// True if cluster queues have series per flavor and resource.
    cluster_queue_resources: bool,
    cohorts: bool,
    creation_latency: bool,
    fair_sharing: bool,
    unadmitted: bool,
    local_queues: LocalQueues,
    custom: CustomLabels,
}

/// Which local queues have series.
#[derive(Default)]
enum LocalQueues {
    #[default]
    None,
    All,
    Selected(LabelSelector),
}

impl Settings {
    fn of(config: &Config) -> Settings {
        let gates = config.gates();
        let local_queues = config.metrics.local_queues.as_ref();
        Settings {
            cluster_queue_resources: config.resource_metrics,
            cohorts: gates.on(Gate::MetricsForCohorts),
            creation_latency: gates.on(Gate::MetricForWorkloadCreationLatency),
            fair_sharing: config.fair_sharing.is_some(),
            unadmitted: gates.on(Gate::UnadmittedWorkloadsObservability),
            custom: CustomLabels::new(if gates.on(Gate::CustomMetricLabels) {
                &config.metrics.custom_labels
            } else {
                &[]
            }),
            local_queues: match local_queues {
                _ if !gates.on(Gate::LocalQueueMetrics) => LocalQueues::None,
                None => LocalQueues::All,
                Some(wanted) if !wanted.enable => LocalQueues::None,
                Some(wanted) => wanted.selector.clone().map_or(LocalQueues::All, LocalQueues::Selected),
            },
        }
    }

    fn shows_all(&self) -> bool {
        matches!(self.local_queues, LocalQueues::All)
    }

    fn shows(&self, queue: &LocalQueue) -> bool {
        match &self.local_queues {
            LocalQueues::None => false,
            LocalQueues::All => true,
            LocalQueues::Selected(selector) => queue.metadata.labels.as_ref().map_or_else(
                || selector::matches(selector, &BTreeMap::new()),
                |labels| selector::matches(selector, labels),
            ),
        }
    }
}

impl Metrics {
    /// Metrics of these caches and this engine.
    pub(crate) fn new(config: &Config, stores: &Stores, cohorts: Cache<Cohort>, scheduler: &SchedulerState) -> Metrics {
        let source = Source { scheduler: scheduler.clone(), stores: stores.clone(), cohorts };
        Metrics::with(Settings::of(config), Some(source))
    }

    fn with(settings: Settings, source: Option<Source>) -> Metrics {
        let (counted, deleted_cohorts) = Default::default();
        Metrics { inner: Arc::new(Inner { settings, source, counted, deleted_cohorts }) }
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.inner.counted.lock()
    }

    /// Counters in these series.
    fn counters<'a>(&'a self, series: &'a mut Series) -> Counters<'a> {
        Counters { series, custom: &self.inner.settings.custom, source: self.inner.source.as_ref() }
    }

    /// A Cohort was deleted. Call it once the engine has applied that. While queues still name the
    /// cohort, its series start anew with its next change, as in Kueue.
    pub fn cohort_deleted(&self, name: &str) {
        self.inner.deleted_cohorts.lock().add(name.into());
    }

    /// Counts a cycle, or a part of one, which took `took`. A cycle in several parts is counted
    /// once, with their total duration.
    pub fn cycle(&self, outcome: &CycleOutcome, took: Duration) {
        let mut counted = self.counted();
        counted.cycle.took += took;
        for (queue, skips) in &outcome.skipped_preemptions {
            *counted.cycle.skips.entry(queue.clone()).or_default() += skips;
        }
        if !outcome.is_incomplete {
            let cycle = std::mem::take(&mut counted.cycle);
            if let Some(result) = outcome.result {
                let labels = [("result", result.as_str())];
                let mut counters = self.counters(&mut counted.series);
                counters.add("kueue_admission_attempts_total", &labels, 1.0);
                let seconds = cycle.took.as_secs_f64();
                counters.observe("kueue_admission_attempt_duration_seconds", &labels, seconds, None);
                counted.skips = cycle.skips;
            }
        }
        for (queue, results) in &outcome.target_recomputations {
            for (result, count) in results {
                let labels = [("cluster_queue", queue.as_ref()), ("result", *result)];
                let mut counters = self.counters(&mut counted.series);
                counters.add("kueue_preemption_target_recomputations_total", &labels, f64::from(*count));
            }
        }
    }

    /// Drops the counts of a deleted cluster queue.
    pub fn cluster_queue_deleted(&self, name: &str) {
        let of = |labels: &_, key| label(labels, key) == Some(name);
        self.counted().series.forget(|labels| of(labels, "cluster_queue") || of(labels, "preempting_cluster_queue"));
    }

    /// Drops the counts of a deleted local queue.
    pub fn local_queue_deleted(&self, namespace: &str, name: &str) {
        self.counted()
            .series
            .forget(|labels| label(labels, "name") == Some(name) && label(labels, "namespace") == Some(namespace));
    }

    /// Counts a preemption that was written, by the preemptor's queue and the reason.
    pub fn preempted(&self, preempting_queue: &str, reason: &str) {
        let labels = [("preempting_cluster_queue", preempting_queue), ("reason", reason)];
        self.counters(&mut self.counted().series).add("kueue_preempted_workloads_total", &labels, 1.0);
    }

    /// Counts a Workload created for a job of this kind, and the time `after` the job's creation.
    pub fn workload_created(&self, kind: &str, after: Duration) {
        if !self.inner.settings.creation_latency {
            return;
        }
        let seconds = after.as_secs_f64();
        let labels = [("job_kind", kind)];
        let mut counted = self.counted();
        let mut counters = self.counters(&mut counted.series);
        counters.observe("kueue_workload_creation_latency_seconds", &labels, seconds, None);
    }

    /// Counts the removal of a scheduling gate from a pod of an admitted workload.
    pub fn gate_removed(&self, gate: &str, workload: &Workload, now: Timestamp) {
        let Some(admitted) = status::true_condition(workload, conditions::ADMITTED) else { return };
        let queue = workload.status.as_ref().and_then(|status| status.admission.as_ref());
        let queue = queue.map_or("", |admission| admission.cluster_queue.as_str());
        let group = if status::is_pod_group(workload) { "true" } else { "false" };
        let labels = [("name", gate), ("cluster_queue", queue), ("is_group", group)];
        // Clocks of different machines may differ, so a negative duration counts as zero.
        let waited = now.duration_since(admitted.last_transition_time.0).as_secs_f64().max(0.0);
        let mut counted = self.counted();
        let mut counters = self.counters(&mut counted.series);
        counters.observe("kueue_pod_scheduling_gate_removal_seconds", &labels, waited, None);
    }

    /// Counts the events of a workload that was created, updated or deleted. Events before this
    /// process started are not counted.
    pub fn changed(&self, old: Option<&Workload>, new: Option<&Workload>) {
        let custom = &self.inner.settings.custom;
        if custom.has_workloads() {
            self.counted().admitted.update(old, new, custom);
        }
        // A variant's events are counted on its parent.
        if old.or(new).is_none_or(is_variant) {
            return;
        }
        let change = old.zip(new).filter(|(old, new)| workloads::counts(old, new));
        let (mut queue, mut local, mut cohorts) = (String::new(), None, Vec::new());
        if let Some((old, new)) = change {
            let (namespace, name) = workloads::local_queue(new);
            let source = self.inner.source.as_ref();
            let object = source.and_then(|source| source.stores.local_queue(namespace, name));
            let shown = match source {
                Some(_) => object.as_ref().is_some_and(|queue| self.inner.settings.shows(queue)),
                None => self.inner.settings.shows_all(),
            };
            local = shown.then_some((name, namespace));
            let of =
                |workload: &Workload| workload.status.as_ref()?.admission.as_ref().map(|it| it.cluster_queue.clone());
            let behind = || object.map(|queue| queue.spec.cluster_queue.clone());
            queue = of(new).or_else(|| of(old)).or_else(behind).unwrap_or_default();
            if let Some(source) = source
                && self.inner.settings.cohorts
                && workloads::was_admitted(old, new)
            {
                cohorts = source.scheduler.engine().cohorts_above(&queue);
            }
        }
        let mut counted = self.counted();
        counted.stages.update(old, new);
        if let Some((old, new)) = change {
            let custom = custom.of(LabelSource::Workload, Some(&new.metadata));
            let owners = Owners { cluster_queue: &queue, local_queue: local, cohorts: &cohorts, custom: &custom };
            workloads::count(self.counters(&mut counted.series), old, new, &owners);
        }
    }

    /// Writes all metrics.
    pub fn write(&self, role: Role, exposition: &mut Exposition) {
        let mut now = match &self.inner.source {
            Some(source) => {
                let skips = self.counted().skips.clone();
                // The engine's lock and this one are never held together.
                let (mut gauges, cohorts) = source.gauges(&self.inner.settings, &skips, &self.inner.deleted_cohorts);
                let mut counted = self.counted();
                source.stages(&mut gauges, &self.inner.settings, &counted.stages);
                source.admitted_by_labels(&mut gauges, &self.inner.settings, &counted.admitted);
                counted.series.forget(|labels| !source.knows(labels, &self.inner.settings, &cohorts));
                gauges
            }
            None => Series::default(),
        };
        now.set("kueue_build_info", &build_info(), 1.0);
        let counted = self.counted();
        let further = |labels: &_| self.inner.settings.custom.of_series(labels, self.inner.source.as_ref());
        families::write(exposition, &now, &counted.series, further, &[("replica_role", role.as_str())]);
    }
}

/// Labels of `kueue_build_info`. They have Kueue's names; the labels about Go describe the Rust
/// build.
fn build_info() -> [(&'static str, &'static str); 6] {
    [
        ("git_version", concat!("v", env!("CARGO_PKG_VERSION"))),
        ("git_commit", option_env!("BERTH_COMMIT").unwrap_or("unknown")),
        ("build_date", option_env!("BERTH_BUILD_DATE").unwrap_or("unknown")),
        ("go_version", "none"),
        ("compiler", "rustc"),
        ("platform", PLATFORM),
    ]
}

#[cfg(target_arch = "x86_64")]
const PLATFORM: &str = "linux/amd64";
#[cfg(target_arch = "aarch64")]
const PLATFORM: &str = "linux/arm64";
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const PLATFORM: &str = std::env::consts::ARCH;
