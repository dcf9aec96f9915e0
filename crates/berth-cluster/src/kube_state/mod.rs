//! The state of nodes, pods and Jobs as metrics under kube-state-metrics' names, and GPUs under
//! dcgm-exporter's ([`crate::gpus`]).
//!
//! Nothing is stored between requests except the GPUs of simulated pods: each request reads the
//! caches once, and pure functions write the samples of one object. A finished pod has series until
//! it is deleted, as in kube-state-metrics, unless there are more than [`OBJECTS_MAX`] pods.
//!
//! Source: kube-state-metrics 2.x, `docs/metrics`. docs/metrics.md lists the families, and the
//! differences: series of zero are left out where a state has many possible reasons.

mod job;
mod node;
mod pod;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use berth_apimachinery::exposition::{Exposition, Family, FamilyId, Labels, label_name};
use berth_apimachinery::quantity::Quantity as Amount;
use berth_runtime::{Cache, Clock, Manager, ObjectKey};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;

use crate::gpus::Gpus;

/// Writes the metrics of a cluster's objects. Clones share their state. There are none before
/// [`crate::install`] connects it.
#[derive(Clone, Default)]
pub struct KubeState {
    caches: Arc<OnceLock<Caches>>,
    gpus: Gpus,
}

struct Caches {
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    jobs: Cache<Job>,
    clock: Clock,
}

impl std::fmt::Debug for KubeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeState").field("connected", &self.caches.get().is_some()).finish_non_exhaustive()
    }
}

/// Maximum number of pods with series, and of Jobs: a pod has some 7 KB of text. Objects that have
/// not ended come first, then those that ended last.
pub const OBJECTS_MAX: usize = 10_000;

impl KubeState {
    /// The metrics of caches that are filled by hand.
    pub fn of(nodes: Cache<Node>, pods: Cache<Pod>, jobs: Cache<Job>, clock: Clock) -> Self {
        let state = Self::default();
        let _ = state.caches.set(Caches { nodes, pods, jobs, clock });
        state
    }

    /// Connects the metrics to the objects of this manager's API server.
    pub(crate) fn connect(&self, manager: &mut Manager) {
        let (nodes, pods, jobs) = (manager.nodes(), manager.cache(), manager.cache());
        // The caches of a later term of leadership are the same.
        let _ = self.caches.set(Caches { nodes, pods, jobs, clock: manager.clock() });
    }

    /// The GPUs of the nodes.
    pub fn gpus(&self) -> &Gpus {
        &self.gpus
    }

    /// Writes all metrics.
    pub fn write(&self, exposition: &mut Exposition) {
        let Some(caches) = self.caches.get() else { return };
        let nodes = caches.nodes.list();
        let families = node::Families::new(exposition);
        for node in &nodes {
            families.write(exposition, node);
        }
        let families = pod::Families::new(exposition);
        let mut with_gpus = Vec::new();
        let pods_left_out = bounded(&caches.pods, OBJECTS_MAX, &pod::ended, &mut |pod| {
            families.write(exposition, pod);
            if Gpus::uses(pod) {
                with_gpus.push(pod.clone());
            }
        });
        let families = job::Families::new(exposition);
        let jobs_left_out = bounded(&caches.jobs, OBJECTS_MAX, &job::ended, &mut |job| families.write(exposition, job));
        for (kind, count) in [("pods", pods_left_out), ("jobs", jobs_left_out)] {
            exposition.add(&LEFT_OUT, &[("kind", kind)], count as f64);
        }
        self.gpus.write(exposition, &nodes, &with_gpus, caches.clock.now());
    }
}

const LEFT_OUT: Family = Family::gauge(
    "berth_kube_state_objects_left_out",
    "Pods and Jobs without series, because there are too many, by kind",
);

/// Passes at most `max` objects to `write`: those that have not ended, then the last ones that
/// ended. Returns the number of the other ones.
fn bounded<K>(
    cache: &Cache<K>,
    max: usize,
    ended: &dyn Fn(&K) -> Option<Timestamp>,
    write: &mut dyn FnMut(&Arc<K>),
) -> usize
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
{
    let (mut written, mut all_ended) = (0, Vec::new());
    let (mut left_out, is_small) = (0, cache.len() <= max);
    for object in cache.iter() {
        match ended(&object).filter(|_| !is_small) {
            // Objects may be packed: only their keys are kept.
            Some(at) => all_ended.push((at, ObjectKey::of(&*object))),
            None if written < max => {
                write(&object);
                written += 1;
            }
            None => left_out += 1,
        }
    }
    all_ended.sort_unstable_by(|a, b| b.cmp(a));
    let room = all_ended.len().min(max - written);
    for (_, key) in &all_ended[..room] {
        if let Some(object) = cache.get(key) {
            write(&object);
        }
    }
    left_out + all_ended.len() - room
}

/// 1 for true.
fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

/// Seconds since 1970.
fn seconds(time: Timestamp) -> f64 {
    time.as_second() as f64
}

/// The time's sample, if the object has the time.
fn time(exposition: &mut Exposition, family: FamilyId, labels: &Labels, time: Option<Timestamp>) {
    if let Some(time) = time {
        exposition.sample(family, labels, &[], seconds(time));
    }
}

/// One sample per possible status of a condition; 1 for the current one.
fn condition(
    exposition: &mut Exposition,
    family: FamilyId,
    labels: &Labels,
    further: &[(&str, &str)],
    status: &str,
    label: &str,
) {
    for possible in ["true", "false", "unknown"] {
        let mut all = further.to_vec();
        all.push((label, possible));
        exposition.sample(family, labels, &all, flag(possible.eq_ignore_ascii_case(status)));
    }
}

/// Labels `resource` and `unit`, and the amount: CPU in cores, memory in bytes.
fn amounts(quantities: &BTreeMap<String, Quantity>) -> impl Iterator<Item = (String, &'static str, f64)> {
    quantities.iter().filter_map(|(name, quantity)| {
        let amount = Amount::parse(&quantity.0).ok()?.as_f64();
        let unit = match name.as_str() {
            "cpu" => "core",
            "memory" | "ephemeral-storage" | "storage" => "byte",
            name if name.starts_with("hugepages-") || name.starts_with("attachable-volumes-") => "byte",
            _ => "integer",
        };
        Some((label_name("", name), unit, amount))
    })
}

/// The labels of an object as labels of a series. Keys that become equal get a number, as in
/// kube-state-metrics.
fn object_labels<'a>(labels: impl Iterator<Item = (&'a String, &'a String)>) -> Labels {
    let mut by_name: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (key, value) in labels {
        by_name.entry(label_name("label_", key)).or_default().push(value);
    }
    let mut text = Labels::default();
    for (name, values) in by_name {
        match values.as_slice() {
            [value] => text.push(&name, value),
            several => {
                for (at, value) in several.iter().enumerate() {
                    text.push(&format!("{name}_conflict{}", at + 1), value);
                }
            }
        }
    }
    text
}

/// True for labels that `kube_pod_labels` and `kube_job_labels` show: those that lead from a pod or
/// Job to its queue, or to the object that it belongs to.
fn is_shown(key: &str) -> bool {
    const NAMES: [&str; 4] = [
        "batch.kubernetes.io/job-name",
        "jobset.sigs.k8s.io/jobset-name",
        "workload.codeflare.dev/appwrapper",
        "ray.io/cluster",
    ];
    key.starts_with("kueue.x-k8s.io/") || NAMES.contains(&key)
}

/// Labels `owner_kind`, `owner_name` and `owner_is_controller` of each owner; one series without
/// owners.
fn owners(exposition: &mut Exposition, family: FamilyId, labels: &Labels, owners: Option<&Vec<OwnerReference>>) {
    let owners = owners.map_or(&[][..], Vec::as_slice);
    for owner in owners {
        let is_controller = if owner.controller == Some(true) { "true" } else { "false" };
        let of =
            [("owner_kind", owner.kind.as_str()), ("owner_name", &owner.name), ("owner_is_controller", is_controller)];
        exposition.sample(family, labels, &of, 1.0);
    }
    if owners.is_empty() {
        let none = [("owner_kind", ""), ("owner_name", ""), ("owner_is_controller", "")];
        exposition.sample(family, labels, &none, 1.0);
    }
}
