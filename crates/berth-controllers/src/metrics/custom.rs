//! Labels and annotations of objects as labels of their series (KEP-7066): `custom_<name>`.
//!
//! Gauges have the labels that the objects have at the scrape. Counters and histograms keep those
//! that the objects had when an event was counted, as in Kueue: a counter whose labels change would
//! start at its old total.

use kube::core::ObjectMeta;

use berth_apimachinery::exposition::Exemplar;

use super::families::{LabelRefs, Labels, Series, label, owned};
use super::gauges::Source;
use crate::configuration::{CustomLabel, LabelSource};

/// Placeholder for values that are not tracked.
const UNTRACKED: &str = "kueue.x-k8s.io/_UNTRACKED_VALUE_";

/// The custom labels of a configuration.
#[derive(Default)]
pub(super) struct CustomLabels(Vec<Wanted>);

struct Wanted {
    /// `custom_<name>`.
    name: &'static str,
    label: CustomLabel,
}

impl CustomLabels {
    pub fn new(labels: &[CustomLabel]) -> Self {
        // Label names live as long as the process; there are at most twenty of these.
        let wanted = |label: &CustomLabel| {
            let name: &'static str = Box::leak(format!("custom_{}", label.name).into_boxed_str());
            Wanted { name, label: label.clone() }
        };
        CustomLabels(labels.iter().map(wanted).collect())
    }

    /// True if gauges of workloads are split by labels of the workloads.
    pub fn has_workloads(&self) -> bool {
        self.0.iter().any(|wanted| wanted.label.source == LabelSource::Workload)
    }

    /// The custom labels from an object of this kind.
    pub fn of(&self, source: LabelSource, metadata: Option<&ObjectMeta>) -> Labels {
        let of_kind = self.0.iter().filter(|wanted| wanted.label.source == source);
        of_kind.map(|wanted| (wanted.name, wanted.label.value(metadata))).collect()
    }

    /// The custom labels from the object of a series.
    pub fn of_series(&self, labels: &Labels, caches: Option<&Source>) -> Labels {
        let Some(caches) = caches.filter(|_| !self.0.is_empty()) else { return Labels::new() };
        if let (Some(name), Some(namespace)) = (label(labels, "name"), label(labels, "namespace")) {
            let queue = caches.stores.local_queue(namespace, name);
            return self.of(LabelSource::LocalQueue, queue.as_ref().map(|queue| &queue.metadata));
        }
        if let Some(name) = label(labels, "cluster_queue").or_else(|| label(labels, "preempting_cluster_queue")) {
            let queue = caches.stores.cluster_queue(name);
            return self.of(LabelSource::ClusterQueue, queue.as_ref().map(|queue| &queue.metadata));
        }
        match label(labels, "cohort") {
            Some(name) => {
                let cohort = caches.cohorts.get(&berth_runtime::ObjectKey::cluster(name));
                self.of(LabelSource::Cohort, cohort.as_ref().map(|cohort| &cohort.metadata))
            }
            None => Labels::new(),
        }
    }
}

/// Counted series. Each event is counted with the custom labels that its queue or cohort has now.
pub(super) struct Counters<'a> {
    pub series: &'a mut Series,
    pub custom: &'a CustomLabels,
    pub source: Option<&'a Source>,
}

impl Counters<'_> {
    fn labels(&self, labels: &LabelRefs<'_>) -> Labels {
        let mut labels = owned(labels);
        let further = self.custom.of_series(&labels, self.source);
        labels.extend(further);
        labels
    }

    /// Adds to a counter.
    pub fn add(&mut self, family: &'static str, labels: &LabelRefs<'_>, value: f64) {
        let labels = self.labels(labels);
        self.series.add(family, labels, value);
    }

    /// Counts one event.
    pub fn count(&mut self, family: &'static str, labels: &LabelRefs<'_>, exemplar: Option<Exemplar>) {
        let labels = self.labels(labels);
        self.series.count(family, labels, exemplar);
    }

    /// Adds a duration to a histogram.
    pub fn observe(&mut self, family: &'static str, labels: &LabelRefs<'_>, seconds: f64, exemplar: Option<Exemplar>) {
        let labels = self.labels(labels);
        self.series.observe(family, labels, seconds, exemplar);
    }
}

impl CustomLabel {
    /// The label's value from an object; empty if the object lacks it.
    fn value(&self, metadata: Option<&ObjectMeta>) -> String {
        let of = |map: Option<&std::collections::BTreeMap<String, String>>, key: &str| map?.get(key).cloned();
        let value = match &self.annotation {
            Some(key) => of(metadata.and_then(|it| it.annotations.as_ref()), key),
            None => of(metadata.and_then(|it| it.labels.as_ref()), self.key.as_deref().unwrap_or(&self.name)),
        };
        match value {
            Some(value) if self.tracked_values.is_empty() || self.tracked_values.contains(&value) => value,
            Some(_) => UNTRACKED.to_owned(),
            None => String::new(),
        }
    }
}
