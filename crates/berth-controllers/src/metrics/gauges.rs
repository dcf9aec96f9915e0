//! Gauges that are read from the engine and the caches at each scrape: the current state of queues
//! and cohorts. Nothing here iterates over workloads, unless custom labels of workloads split the
//! gauges of waiting workloads.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::kueue::v1beta2::{ClusterQueue, Cohort, LocalQueue};
use berth_engine::{Amount, ClusterQueueFigures, CohortFigures, FlavorUsage, LocalQueueStatus, Name, WeightedShare};
use berth_runtime::{Cache, ObjectKey};
use parking_lot::Mutex;

use super::Settings;
use super::families::{Labels, Series, label, owned};
use super::workloads::{AdmittedCounts, StageCounts};
use crate::conditions;
use crate::configuration::LabelSource;
use crate::scheduler::SchedulerState;
use crate::stores::Stores;

/// Amounts by flavor and resource.
type Usage = [(Name, BTreeMap<Name, FlavorUsage>)];

/// Cohorts whose object was deleted while queues or other Cohorts named them, with their figures
/// after that. They have no series until the figures change.
#[derive(Default)]
pub(super) struct DeletedCohorts(BTreeMap<Name, Option<CohortFigures>>);

impl DeletedCohorts {
    pub fn add(&mut self, name: Name) {
        self.0.insert(name, None);
    }

    /// Removes the cohorts without series. `has_object`: true if the Cohort of this name exists.
    fn hide(&mut self, figures: &mut Vec<CohortFigures>, has_object: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| !has_object(name) && figures.iter().any(|it| it.name == *name));
        figures.retain(|now| match self.0.get_mut(&now.name) {
            None => true,
            Some(deleted) => {
                let is_changed = deleted.get_or_insert_with(|| now.clone()) != now;
                if is_changed {
                    self.0.remove(&now.name);
                }
                is_changed
            }
        });
    }
}

/// The sources of the gauges.
pub(super) struct Source {
    pub scheduler: SchedulerState,
    pub stores: Stores,
    pub cohorts: Cache<Cohort>,
}

impl Source {
    /// The gauges of every queue and cohort, and the names of the cohorts. `skips`: preemptions
    /// skipped in the last cycle, by queue.
    pub fn gauges(
        &self,
        settings: &Settings,
        skips: &BTreeMap<Name, u32>,
        deleted_cohorts: &Mutex<DeletedCohorts>,
    ) -> (Series, BTreeSet<Name>) {
        let mut series = Series::default();
        let (mut active, mut cohorts) = (BTreeSet::new(), BTreeSet::new());
        for queue in self.stores.cluster_queues.iter() {
            let name = queue.metadata.name.as_deref().unwrap_or_default();
            // The engine is locked for one queue at a time, so that decisions do not wait for all
            // of them.
            let figures = self.scheduler.engine().cluster_queue_figures(name).unwrap_or_default();
            cluster_queue(&mut series, &queue, &figures, settings);
            if settings.custom.has_workloads() {
                self.pending_by_labels(&mut series, name, figures.status.readiness.is_active(), settings);
            }
            if figures.status.readiness.is_active() {
                active.insert(name.to_owned());
            }
            let skipped = skips.get(name).copied().unwrap_or(0);
            series.set("kueue_admission_cycle_preemption_skips", &[("cluster_queue", name)], f64::from(skipped));
        }
        if settings.cohorts {
            let mut figures = self.scheduler.engine().cohort_figures();
            deleted_cohorts.lock().hide(&mut figures, |name| self.cohorts.get(&ObjectKey::cluster(name)).is_some());
            for figures in &figures {
                cohort(&mut series, figures, settings);
            }
            cohorts.extend(figures.into_iter().map(|figures| figures.name));
        }
        for queue in self.stores.local_queues.iter().filter(|queue| settings.shows(queue)) {
            let metadata = &queue.metadata;
            let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
            let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
            let figures = self.scheduler.engine().local_queue_status(namespace, name).unwrap_or_default();
            let cluster_queue = queue.spec.cluster_queue.as_str();
            local_queue(&mut series, &queue, &figures, active.contains(cluster_queue));
            // As in Kueue, only workloads of an existing cluster queue are counted as running.
            if self.stores.cluster_queue(cluster_queue).is_some() {
                running(&mut series, &[("name", name), ("namespace", namespace)], &figures, settings);
            }
        }
        (series, cohorts)
    }

    /// Sets the gauges of a cluster queue's waiting workloads by their custom labels.
    fn pending_by_labels(&self, series: &mut Series, queue: &str, is_active: bool, settings: &Settings) {
        let waiting = self.scheduler.engine().waiting(queue);
        for (key, is_inadmissible) in waiting {
            let workload = self.stores.workloads.get(&ObjectKey::namespaced(&*key.namespace, &*key.name));
            let metadata = workload.as_ref().map(|workload| &workload.metadata);
            let status = if is_active && !is_inadmissible { "active" } else { "inadmissible" };
            let mut labels = owned(&[("cluster_queue", queue), ("status", status)]);
            labels.extend(settings.custom.of(LabelSource::Workload, metadata));
            series.add("kueue_pending_workloads", labels, 1.0);
        }
    }

    /// Sets the gauges of admitted workloads by their custom labels.
    pub fn admitted_by_labels(&self, series: &mut Series, settings: &Settings, admitted: &AdmittedCounts) {
        for (at, count) in admitted.iter() {
            if self.stores.cluster_queue(&at.cluster_queue).is_some() {
                let mut labels = owned(&[("cluster_queue", &at.cluster_queue)]);
                labels.extend(at.custom.clone());
                series.add("kueue_admitted_active_workloads", labels, f64::from(count));
            }
            let local = self.stores.local_queue(&at.namespace, &at.local_queue);
            let local = local.filter(|queue| self.stores.cluster_queue(&queue.spec.cluster_queue).is_some());
            if local.is_some_and(|queue| settings.shows(&queue)) {
                let mut labels = owned(&[("name", &at.local_queue), ("namespace", &at.namespace)]);
                labels.extend(at.custom.clone());
                series.add("kueue_local_queue_admitted_active_workloads", labels, f64::from(count));
            }
        }
    }

    /// True if the object of a counted series still exists and its series are exported.
    pub fn knows(&self, labels: &Labels, settings: &Settings, cohorts: &BTreeSet<Name>) -> bool {
        if let (Some(name), Some(namespace)) = (label(labels, "name"), label(labels, "namespace")) {
            return self.stores.local_queue(namespace, name).is_some_and(|queue| settings.shows(&queue));
        }
        label(labels, "cohort").is_none_or(|name| cohorts.contains(name))
    }

    /// Sets the gauges of unadmitted and finished workloads.
    pub fn stages(&self, series: &mut Series, settings: &Settings, stages: &StageCounts) {
        for ((namespace, name), counts) in stages.queues() {
            let local = self.stores.local_queue(namespace, name);
            let cluster = local.as_ref().map_or("", |queue| queue.spec.cluster_queue.as_str());
            // Workloads that name a queue that does not exist are reported too, unless a selector
            // chooses queues.
            let shown = local.as_ref().map_or(settings.shows_all(), |queue| settings.shows(queue));
            for ((reason, cause), count) in counts.unadmitted().filter(|_| settings.unadmitted) {
                let count = f64::from(count);
                let why = [("reason", reason), ("underlying_cause", cause)];
                let of = owned(&[("cluster_queue", cluster), why[0], why[1]]);
                series.add("kueue_unadmitted_workloads", of, count);
                if shown {
                    let of = [("name", name), ("namespace", namespace), ("cluster_queue", cluster), why[0], why[1]];
                    series.set("kueue_local_queue_unadmitted_workloads", &of, count);
                }
            }
            if local.is_some() && counts.finished > 0 {
                let count = f64::from(counts.finished);
                series.add("kueue_finished_workloads", owned(&[("cluster_queue", cluster)]), count);
                if shown {
                    let of = [("name", name), ("namespace", namespace)];
                    series.set("kueue_local_queue_finished_workloads", &of, count);
                }
            }
        }
    }
}

/// An amount in the unit of Kueue's metrics: cpu in cores.
fn units(resource: &str, amount: i64) -> f64 {
    if resource == "cpu" { amount as f64 / 1000.0 } else { amount as f64 }
}

fn quota(resource: &str, amount: Amount) -> f64 {
    match amount {
        Amount::Bounded(amount) => units(resource, amount),
        Amount::Unlimited => f64::INFINITY,
    }
}

fn share(share: &WeightedShare) -> f64 {
    // The share of a queue that borrows with a weight of zero is infinite, and is exported as NaN.
    if share.precise.is_infinite() { f64::NAN } else { share.precise }
}

fn cluster_queue(series: &mut Series, queue: &ClusterQueue, figures: &ClusterQueueFigures, settings: &Settings) {
    let name = queue.metadata.name.as_deref().unwrap_or_default();
    let of = ("cluster_queue", name);
    let status = &figures.status;
    let is_active = status.readiness.is_active();
    // A queue that is not active admits nothing, so all its workloads are inadmissible.
    let inadmissible = if is_active { figures.inadmissible } else { status.pending };
    let kinds = match is_active {
        true => (figures.kinds_active, figures.kinds_inadmissible),
        false => (0, figures.kinds_active + figures.kinds_inadmissible),
    };
    for (which, pending, kinds) in
        [("active", status.pending.saturating_sub(inadmissible), kinds.0), ("inadmissible", inadmissible, kinds.1)]
    {
        if !settings.custom.has_workloads() {
            series.set("kueue_pending_workloads", &[of, ("status", which)], f64::from(pending));
        }
        series.set("kueue_pending_scheduling_hashes", &[of, ("status", which)], f64::from(kinds));
    }
    series.set("kueue_reserving_active_workloads", &[of], f64::from(status.reserving));
    if !settings.custom.has_workloads() {
        series.set("kueue_admitted_active_workloads", &[of], f64::from(status.admitted));
    }
    let terminating = queue.metadata.deletion_timestamp.is_some();
    for which in ["pending", "active", "terminating"] {
        let is = match which {
            "terminating" => terminating,
            "active" => !terminating && is_active,
            _ => !terminating && !is_active,
        };
        series.set("kueue_cluster_queue_status", &[of, ("status", which)], f64::from(u8::from(is)));
    }
    let cohort = ("cohort", figures.cohort.as_deref().unwrap_or_default());
    let root = figures.root.as_deref().unwrap_or_default();
    series.set("kueue_cluster_queue_info", &[of, ("parent_cohort", cohort.1), ("root_cohort", root)], 1.0);
    if settings.fair_sharing {
        series.set("kueue_cluster_queue_weighted_share", &[of, cohort], share(&status.weighted_share));
    }
    for (resource, amount) in &figures.pending_requests {
        let labels = [of, ("resource", resource.as_ref())];
        series.set("kueue_cluster_queue_resource_pending", &labels, units(resource, *amount));
    }
    if !settings.cluster_queue_resources {
        return;
    }
    for it in &figures.quotas {
        let labels = [cohort, of, ("flavor", it.flavor.as_ref()), ("resource", it.resource.as_ref())];
        series.set("kueue_cluster_queue_nominal_quota", &labels, quota(&it.resource, it.nominal));
        for (family, limit) in [
            ("kueue_cluster_queue_borrowing_limit", it.borrowing_limit),
            ("kueue_cluster_queue_lending_limit", it.lending_limit),
        ] {
            let limit = limit.map_or(f64::INFINITY, |limit| quota(&it.resource, limit));
            series.set(family, &labels, limit);
        }
    }
    usage(series, "kueue_cluster_queue_resource_reservation", &[cohort, of], &status.flavors_reservation);
    usage(series, "kueue_cluster_queue_resource_usage", &[cohort, of], &status.flavors_usage);
}

fn usage(series: &mut Series, family: &'static str, of: &[(&'static str, &str); 2], usage: &Usage) {
    for (flavor, resources) in usage {
        for (resource, amount) in resources {
            let labels = [of[0], of[1], ("flavor", flavor.as_ref()), ("resource", resource.as_ref())];
            series.set(family, &labels, units(resource, amount.total));
        }
    }
}

fn cohort(series: &mut Series, figures: &CohortFigures, settings: &Settings) {
    let of = ("cohort", figures.name.as_ref());
    let parent = figures.parent.as_deref().unwrap_or_default();
    let info = [of, ("parent_cohort", parent), ("root_cohort", figures.root.as_ref())];
    series.set("kueue_cohort_info", &info, 1.0);
    if settings.fair_sharing {
        series.set("kueue_cohort_weighted_share", &[of], share(&figures.weighted_share));
    }
    series.set("kueue_cohort_subtree_admitted_active_workloads", &[of], f64::from(figures.admitted));
    for (flavor, resource, amount, reserved) in &figures.quotas {
        let labels = [of, ("flavor", flavor.as_ref()), ("resource", resource.as_ref())];
        // As in Kueue, a cohort without quota or reservations has no series of them.
        let quota = quota(resource, *amount);
        if quota > 0.0 {
            series.set("kueue_cohort_subtree_quota", &labels, quota);
        }
        if *reserved > 0 {
            series.set("kueue_cohort_subtree_resource_reservations", &labels, units(resource, *reserved));
        }
    }
}

/// Sets the gauges of a local queue's workloads that hold quota.
fn running(series: &mut Series, of: &[(&'static str, &str); 2], figures: &LocalQueueStatus, settings: &Settings) {
    series.set("kueue_local_queue_reserving_active_workloads", of, f64::from(figures.reserving));
    if !settings.custom.has_workloads() {
        series.set("kueue_local_queue_admitted_active_workloads", of, f64::from(figures.admitted));
    }
}

fn local_queue(series: &mut Series, queue: &LocalQueue, figures: &LocalQueueStatus, active: bool) {
    let name = ("name", queue.metadata.name.as_deref().unwrap_or_default());
    let namespace = ("namespace", queue.metadata.namespace.as_deref().unwrap_or_default());
    let of = [name, namespace];
    let inadmissible = if active { figures.inadmissible } else { figures.pending };
    for (which, pending) in [("active", figures.pending.saturating_sub(inadmissible)), ("inadmissible", inadmissible)] {
        let labels = [name, namespace, ("status", which)];
        series.set("kueue_local_queue_pending_workloads", &labels, f64::from(pending));
    }
    let known = queue.status.as_ref().and_then(|status| conditions::find(&status.conditions, conditions::ACTIVE));
    let known = known.map_or("Unknown", |condition| condition.status.as_str());
    for which in ["True", "False", "Unknown"] {
        let labels = [name, namespace, ("active", which)];
        series.set("kueue_local_queue_status", &labels, f64::from(u8::from(which == known)));
    }
    usage(series, "kueue_local_queue_resource_reservation", &of, &figures.flavors_reservation);
    usage(series, "kueue_local_queue_resource_usage", &of, &figures.flavors_usage);
    if let Some(usage) = figures.usage {
        let labels = [name, namespace, ("cluster_queue", queue.spec.cluster_queue.as_str())];
        series.set("kueue_local_queue_admission_fair_sharing_usage", &labels, usage);
    }
}
