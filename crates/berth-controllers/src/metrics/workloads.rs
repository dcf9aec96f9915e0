//! Counts of events and stages of workloads, derived from changes to the objects, regardless of the
//! controller that wrote them.

use std::collections::BTreeMap;

use berth_api::kueue::reasons::{admission, finished, pods_ready};
use berth_api::kueue::v1beta2::{Workload, WorkloadSchedulingStatsEviction};
use berth_apimachinery::exposition::Exemplar;
use jiff::Timestamp;

use super::custom::{Counters, CustomLabels};
use super::families::{LabelRefs, Labels};
use crate::conditions;
use crate::configuration::LabelSource;
use crate::workload::status;

/// Counts of workloads by local queue and stage.
#[derive(Default)]
pub(super) struct StageCounts(BTreeMap<String, BTreeMap<String, Counts>>);

/// Counts of admitted workloads that have not finished, by cluster queue, local queue and the
/// custom labels of the workloads.
#[derive(Default)]
pub(super) struct AdmittedCounts(BTreeMap<AdmittedTo, u32>);

/// Where a workload is admitted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AdmittedTo {
    pub cluster_queue: String,
    pub namespace: String,
    pub local_queue: String,
    pub custom: Labels,
}

impl AdmittedTo {
    fn of(workload: &Workload, labels: &CustomLabels) -> Option<AdmittedTo> {
        let admission = workload.status.as_ref()?.admission.as_ref()?;
        if status::is_finished(workload) || !status::is_admitted(workload) {
            return None;
        }
        let (namespace, local_queue) = local_queue(workload);
        Some(AdmittedTo {
            cluster_queue: admission.cluster_queue.clone(),
            namespace: namespace.to_owned(),
            local_queue: local_queue.to_owned(),
            custom: labels.of(LabelSource::Workload, Some(&workload.metadata)),
        })
    }
}

impl AdmittedCounts {
    /// Updates the counts for a workload that was created, updated or deleted.
    pub fn update(&mut self, old: Option<&Workload>, new: Option<&Workload>, labels: &CustomLabels) {
        let (before, after) = [old, new].map(|it| it.and_then(|it| AdmittedTo::of(it, labels))).into();
        if before == after {
            return;
        }
        if let Some(before) = before
            && let Some(count) = self.0.get_mut(&before)
        {
            step(count, false);
            if *count == 0 {
                self.0.remove(&before);
            }
        }
        if let Some(after) = after {
            step(self.0.entry(after).or_default(), true);
        }
    }

    /// The counts.
    pub fn iter(&self) -> impl Iterator<Item = (&AdmittedTo, u32)> {
        self.0.iter().map(|(at, count)| (at, *count))
    }
}

/// Counts of one local queue.
#[derive(Default)]
pub(super) struct Counts {
    /// Unadmitted workloads by reason and underlying cause.
    unadmitted: BTreeMap<String, BTreeMap<String, u32>>,
    pub finished: u32,
}

/// The stage of a workload.
#[derive(PartialEq, Eq)]
enum Stage<'a> {
    Finished,
    Admitted,
    Unadmitted(&'a str, &'a str),
}

impl<'a> Stage<'a> {
    /// The stage of a workload. A workload without a reason has not been evaluated yet (KEP-10852).
    fn of(workload: &'a Workload) -> Stage<'a> {
        if status::is_finished(workload) {
            return Stage::Finished;
        }
        if status::is_admitted(workload) {
            return Stage::Admitted;
        }
        let reason_of = |type_| status::condition(workload, type_).map(|condition| condition.reason.as_str());
        let known = reason_of(conditions::ADMITTED).filter(|reason| !reason.is_empty());
        if !status::has_quota_reservation(workload) {
            let cause = reason_of(conditions::QUOTA_RESERVED).filter(|reason| !reason.is_empty());
            return Stage::Unadmitted(admission::NO_RESERVATION, cause.unwrap_or(admission::PENDING_EVALUATION));
        }
        match known {
            Some(reason @ admission::PENDING_DELAYED_TOPOLOGY_REQUESTS) => Stage::Unadmitted(reason, "PendingTopology"),
            Some(reason) if reason != admission::NO_RESERVATION => Stage::Unadmitted(reason, "ChecksNotReady"),
            _ => Stage::Unadmitted(admission::UNSATISFIED_ADMISSION_CHECKS, "ChecksNotReady"),
        }
    }
}

impl StageCounts {
    /// Updates the counts for a workload that was created, updated or deleted.
    pub fn update(&mut self, old: Option<&Workload>, new: Option<&Workload>) {
        if let (Some(old), Some(new)) = (old, new)
            && old.spec.queue_name == new.spec.queue_name
            && Stage::of(old) == Stage::of(new)
        {
            return;
        }
        for (workload, more) in [(old, false), (new, true)] {
            if let Some(workload) = workload {
                self.count(workload, more);
            }
        }
    }

    fn count(&mut self, workload: &Workload, more: bool) {
        let (namespace, queue) = local_queue(workload);
        let queues = entry(&mut self.0, namespace);
        let counts = entry(queues, queue);
        match Stage::of(workload) {
            Stage::Finished => step(&mut counts.finished, more),
            Stage::Admitted => {}
            Stage::Unadmitted(reason, cause) => {
                let causes = entry(&mut counts.unadmitted, reason);
                step(entry(causes, cause), more);
                causes.retain(|_, count| *count > 0);
            }
        }
        counts.unadmitted.retain(|_, causes| !causes.is_empty());
        if counts.finished == 0 && counts.unadmitted.is_empty() {
            queues.remove(queue);
            if queues.is_empty() {
                self.0.remove(namespace);
            }
        }
    }

    /// Namespace, name and counts of every local queue that workloads name.
    pub fn queues(&self) -> impl Iterator<Item = ((&str, &str), &Counts)> {
        self.0.iter().flat_map(|(namespace, queues)| {
            queues.iter().map(move |(name, counts)| ((namespace.as_str(), name.as_str()), counts))
        })
    }
}

impl Counts {
    /// Reason, underlying cause and count.
    pub fn unadmitted(&self) -> impl Iterator<Item = ((&str, &str), u32)> {
        self.unadmitted.iter().flat_map(|(reason, causes)| {
            causes.iter().map(move |(cause, count)| ((reason.as_str(), cause.as_str()), *count))
        })
    }
}

fn step(count: &mut u32, more: bool) {
    *count = if more { count.saturating_add(1) } else { count.saturating_sub(1) };
}

/// The entry of a name; the name is copied only for a new entry.
fn entry<'a, V: Default>(map: &'a mut BTreeMap<String, V>, name: &str) -> &'a mut V {
    if !map.contains_key(name) {
        map.insert(name.to_owned(), V::default());
    }
    map.get_mut(name).expect("a missing entry was inserted above")
}

/// Namespace and name of a workload's local queue.
pub(super) fn local_queue(workload: &Workload) -> (&str, &str) {
    (workload.metadata.namespace.as_deref().unwrap_or_default(), workload.spec.queue_name.as_str())
}

/// Names of a family for cluster queues and for local queues; empty if there is none.
struct Pair(&'static str, &'static str);

/// The objects whose series a change counts for.
pub(super) struct Owners<'a> {
    pub cluster_queue: &'a str,
    /// Name and namespace, if this local queue has series.
    pub local_queue: Option<(&'a str, &'a str)>,
    /// The cohorts above the cluster queue, if cohorts have series.
    pub cohorts: &'a [berth_engine::Name],
    /// Custom labels from the workload.
    pub custom: &'a Labels,
}

impl Owners<'_> {
    fn each(&self, pair: &Pair, more: &LabelRefs<'_>, mut count: impl FnMut(&'static str, &LabelRefs<'_>)) {
        let custom = || self.custom.iter().map(|(name, value)| (*name, value.as_str()));
        let mut labels = vec![("cluster_queue", self.cluster_queue)];
        labels.extend_from_slice(more);
        labels.extend(custom());
        count(pair.0, &labels);
        if let Some((name, namespace)) = self.local_queue.filter(|_| !pair.1.is_empty()) {
            let mut labels = vec![("name", name), ("namespace", namespace)];
            labels.extend_from_slice(more);
            labels.extend(custom());
            count(pair.1, &labels);
        }
    }
}

macro_rules! pair {
    ($rest:literal) => {
        Pair(concat!("kueue_", $rest), concat!("kueue_local_queue_", $rest))
    };
}

/// The events of a workload between two states, to be counted.
struct Change<'a> {
    series: Counters<'a>,
    old: &'a Workload,
    new: &'a Workload,
    owners: &'a Owners<'a>,
    /// Label `priority_class`.
    class: (&'static str, &'a str),
}

/// Counts the events of a workload between two states.
pub(super) fn count(series: Counters<'_>, old: &Workload, new: &Workload, owners: &Owners<'_>) {
    let class = new.spec.priority_class_ref.as_ref().map_or("", |class| class.name.as_str());
    let mut change = Change { series, old, new, owners, class: ("priority_class", class) };
    change.admission();
    change.readiness();
    change.eviction();
    change.end();
}

impl Change<'_> {
    fn at(&self, type_: &str) -> Option<Timestamp> {
        became_true(self.old, self.new, type_)
    }

    fn queued(&self, until: Timestamp) -> f64 {
        status::seconds_queued(self.new, until) as f64
    }

    /// The workload as an example of a value.
    fn exemplar(&self, value: f64, at: Timestamp) -> Option<Exemplar> {
        let (namespace, name) = (self.new.metadata.namespace.as_deref(), self.new.metadata.name.as_deref());
        let labels = [("namespace", namespace.unwrap_or_default()), ("workload", name.unwrap_or_default())];
        Exemplar::new(&labels, value, at)
    }

    fn once(&mut self, pair: &Pair) {
        self.owners.each(pair, &[self.class], |family, labels| self.series.add(family, labels, 1.0));
    }

    fn took(&mut self, pair: &Pair, seconds: f64, at: Timestamp) {
        let exemplar = self.exemplar(seconds, at);
        self.owners.each(pair, &[self.class], |family, labels| {
            self.series.observe(family, labels, seconds, exemplar.clone());
        });
    }

    fn admission(&mut self) {
        if let Some(reserved) = self.at(conditions::QUOTA_RESERVED) {
            self.once(&pair!("quota_reserved_workloads_total"));
            self.took(&pair!("quota_reserved_wait_time_seconds"), self.queued(reserved), reserved);
        }
        if let Some(admitted) = self.at(conditions::ADMITTED) {
            self.once(&pair!("admitted_workloads_total"));
            self.took(&pair!("admission_wait_time_seconds"), self.queued(admitted), admitted);
            let reserved = status::seconds_since_reservation(self.new, admitted) as f64;
            self.took(&pair!("admission_checks_wait_time_seconds"), reserved, admitted);
            for cohort in self.owners.cohorts {
                let labels = [("cohort", cohort.as_ref()), self.class];
                self.series.add("kueue_cohort_subtree_admitted_workloads_total", &labels, 1.0);
            }
        }
    }

    fn readiness(&mut self) {
        let Some(ready) = self.at(conditions::PODS_READY) else { return };
        // The time to the first readiness counts. A job that recovers was ready before.
        let condition = status::true_condition(self.new, conditions::PODS_READY);
        if condition.is_some_and(|condition| condition.reason == pods_ready::RECOVERED) {
            return;
        }
        self.took(&pair!("ready_wait_time_seconds"), self.queued(ready), ready);
        if let Some(admitted) = status::true_condition(self.new, conditions::ADMITTED) {
            let waited = seconds(admitted.last_transition_time.0, ready);
            self.took(&pair!("admitted_until_ready_wait_time_seconds"), waited, ready);
        }
    }

    fn eviction(&mut self) {
        let (old, new) = (self.old, self.new);
        let evicted = status::true_condition(new, conditions::EVICTED).map(|it| it.last_transition_time.0);
        for (eviction, first) in evictions(old, new) {
            let (reason, cause) = (eviction.reason.as_str(), eviction.underlying_cause.as_str());
            let why = [("reason", reason), ("underlying_cause", cause), self.class];
            let exemplar = evicted.and_then(|at| self.exemplar(1.0, at));
            self.owners.each(&pair!("evicted_workloads_total"), &why, |family, labels| {
                self.series.count(family, labels, exemplar.clone());
            });
            if first {
                let of = Pair("kueue_evicted_workloads_once_total", "");
                self.owners.each(&of, &why, |family, labels| self.series.add(family, labels, 1.0));
            }
            let ready = status::true_condition(old, conditions::PODS_READY);
            if let (Some(ready), Some(evicted)) = (ready, evicted) {
                let ran = seconds(ready.last_transition_time.0, evicted);
                let of = Pair("kueue_pods_ready_to_evicted_time_seconds", "");
                let exemplar = self.exemplar(ran, evicted);
                self.owners.each(&of, &why[..2], |family, labels| {
                    self.series.observe(family, labels, ran, exemplar.clone());
                });
            }
        }
        let released = status::condition(new, conditions::QUOTA_RESERVED).map(|it| it.last_transition_time.0);
        let completed = released.and_then(|at| Some((at, status::eviction_completed(Some(old), new, at)?)));
        if let Some((at, (queue, reason, took))) = completed {
            let labels = [("cluster_queue", queue.as_str()), ("reason", reason.as_str())];
            let exemplar = self.exemplar(took.as_secs_f64(), at);
            self.series.observe("kueue_workload_eviction_latency_seconds", &labels, took.as_secs_f64(), exemplar);
        }
    }

    fn end(&mut self) {
        let Some(finished) = self.at(conditions::FINISHED) else { return };
        self.once(&pair!("finished_workloads_total"));
        if let Some(ran) = status::total_execution_time(self.new) {
            self.took(&pair!("execution_time_seconds"), ran.as_secs_f64(), finished);
        }
        let replaced = |condition: &_| condition_reason(condition) == finished::WORKLOAD_SLICE_REPLACED;
        if status::condition(self.new, conditions::FINISHED).is_some_and(replaced) {
            let labels = [("cluster_queue", self.owners.cluster_queue)];
            self.series.add("kueue_replaced_workload_slices_total", &labels, 1.0);
        }
    }
}

fn condition_reason(condition: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition) -> &str {
    &condition.reason
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

/// True if there may be an event between two states. Most changes are no events.
pub(super) fn counts(old: &Workload, new: &Workload) -> bool {
    let types = [
        conditions::QUOTA_RESERVED,
        conditions::ADMITTED,
        conditions::PODS_READY,
        conditions::FINISHED,
        conditions::EVICTED,
    ];
    let state = |workload, type_| {
        status::condition(workload, type_).map(|it| (it.status.as_str(), it.last_transition_time.clone()))
    };
    types.iter().any(|type_| state(old, type_) != state(new, type_)) || !evictions(old, new).is_empty()
}

/// True if the workload was admitted between two states.
pub(super) fn was_admitted(old: &Workload, new: &Workload) -> bool {
    became_true(old, new, conditions::ADMITTED).is_some()
}

/// When a condition became True between two states; `None` if it did not.
fn became_true(old: &Workload, new: &Workload, type_: &str) -> Option<Timestamp> {
    let condition = status::true_condition(new, type_)?;
    status::true_condition(old, type_).is_none().then_some(condition.last_transition_time.0)
}

/// The evictions of a workload between two states, each with a flag: true if it is the first of its
/// kind.
fn evictions(old: &Workload, new: &Workload) -> Vec<(WorkloadSchedulingStatsEviction, bool)> {
    fn of(workload: &Workload) -> &[WorkloadSchedulingStatsEviction] {
        let stats = workload.status.as_ref().and_then(|status| status.scheduling_stats.as_ref());
        stats.map_or(&[], |stats| stats.evictions.as_slice())
    }
    let before = of(old);
    let known = |eviction: &WorkloadSchedulingStatsEviction| {
        let same = |it: &&WorkloadSchedulingStatsEviction| {
            it.reason == eviction.reason && it.underlying_cause == eviction.underlying_cause
        };
        before.iter().find(same).map_or(0, |it| it.count)
    };
    let more = of(new).iter().filter(|eviction| eviction.count > known(eviction));
    more.map(|eviction| (eviction.clone(), known(eviction) == 0)).collect()
}
