//! The combined state of a unit's pods: pod sets, completion, excess pods and missing pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::kueue::v1beta2::{PodSet, ReclaimablePod, Workload};
use berth_api::kueue::{annotations, constants, labels};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::{Unit, replica, shape};
use crate::gates::{Gate, Gates};
use crate::jobs::Finished;
use crate::jobs::topology::{self, Ranks};
use crate::podset;

/// Name of the pod set of a single pod.
const ALONE: &str = "main";
/// Maximum number of pod sets of a workload.
const ROLES_MAX: usize = 18;

/// The pods of a unit, in name order; at least one.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    unit: &'a Unit,
    pods: &'a [Arc<Pod>],
}

/// The pods of a group compared with the places that its Workload has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Surplus {
    /// Pods beyond the group's places.
    pub excess: Vec<Arc<Pod>>,
    /// Failed pods whose places other pods have taken.
    pub replaced: Vec<Arc<Pod>>,
    /// Number of places without a pod.
    pub absent: usize,
    /// The pods that fill places.
    pub kept: Vec<Arc<Pod>>,
}

impl<'a> Group<'a> {
    /// The group of these pods; `None` if there are none.
    pub fn new(unit: &'a Unit, pods: &'a [Arc<Pod>]) -> Option<Self> {
        (!pods.is_empty()).then_some(Group { unit, pods })
    }

    /// Its pods.
    pub fn pods(&self) -> &'a [Arc<Pod>] {
        self.pods
    }

    /// The pod whose labels and annotations apply to the whole group.
    pub fn first(&self) -> &'a Arc<Pod> {
        &self.pods[0]
    }

    /// Name for messages.
    pub fn name(&self) -> String {
        match self.unit {
            Unit::Pod { name } => format!("pod {name}"),
            Unit::Group { name } => format!("pod group {name}"),
        }
    }

    /// False for a single pod.
    pub fn is_group(&self) -> bool {
        matches!(self.unit, Unit::Group { .. })
    }

    /// True if the group runs until it is deleted, like the pods of a StatefulSet: it never
    /// finishes.
    pub fn is_serving(&self) -> bool {
        self.is_group() && self.pods.iter().any(|pod| annotation(pod, annotations::POD_GROUP_SERVING) == "true")
    }

    /// True if failed pods must not be replaced.
    pub fn is_unretriable(&self) -> bool {
        self.pods.iter().any(|pod| annotation(pod, annotations::RETRIABLE_IN_GROUP) == "false")
    }

    fn is_fast(&self) -> bool {
        self.pods.iter().any(|pod| annotation(pod, annotations::POD_GROUP_FAST_ADMISSION) == "true")
    }

    /// Number of pods that the group consists of.
    ///
    /// # Errors
    /// The annotation with the count is missing or malformed.
    pub fn total(&self) -> Result<usize, String> {
        if !self.is_group() {
            return Ok(1);
        }
        let text = annotation(self.first(), annotations::POD_GROUP_TOTAL_COUNT);
        text.parse().ok().filter(|total| *total > 0).ok_or_else(|| {
            let key = annotations::POD_GROUP_TOTAL_COUNT;
            format!("pod {}: annotation {key}: {text:?} is not a positive number", self.first().name_any())
        })
    }

    /// The queue that all pods name.
    ///
    /// # Errors
    /// Its pods name different queues.
    pub fn queue(&self) -> Result<&'a str, String> {
        let queue = |pod: &'a Arc<Pod>| pod.labels().get(labels::QUEUE_NAME).map_or("", String::as_str);
        let first = queue(self.first());
        match self.pods.iter().find(|pod| queue(pod) != first) {
            Some(other) => Err(format!(
                "pods of a group must name the same queue: {} names {first:?}, {} names {:?}",
                self.first().name_any(),
                other.name_any(),
                queue(other)
            )),
            None => Ok(first),
        }
    }

    /// True if any pod still has the admission gate.
    pub fn is_waiting(&self) -> bool {
        self.pods.iter().any(|pod| is_gated(pod))
    }

    /// Pods without the admission gate that have not ended.
    pub fn started(&self) -> impl Iterator<Item = &'a Arc<Pod>> {
        self.pods.iter().filter(|pod| !is_gated(pod) && !is_terminated(pod))
    }

    /// True if any pod runs. With the gate FastQuotaReleaseInPodIntegration, pods that are being
    /// deleted do not count (§19.2).
    pub fn is_active(&self, gates: &Gates) -> bool {
        let fast = gates.on(Gate::FastQuotaReleaseInPodIntegration);
        self.pods.iter().any(|pod| phase(pod) == "Running" && !(fast && is_deleting(pod)))
    }

    /// True once all pods are ready or have succeeded.
    pub fn is_ready(&self) -> bool {
        let ready = |pod: &&Arc<Pod>| {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let mut ready = conditions.filter(|it| it.type_ == "Ready" && it.status == "True");
            phase(pod) == "Succeeded" || ready.next().is_some()
        };
        self.total().is_ok_and(|total| self.pods.iter().filter(ready).count() >= total)
    }

    /// How the group ended; `None` if it has not. A group ends when as many pods have succeeded as
    /// it has places, or when all its pods have ended and failed pods must not be replaced.
    pub fn finished(&self) -> Option<Finished> {
        if !self.is_group() {
            let pod = self.first();
            let message = pod.status.as_ref().and_then(|status| status.message.clone()).unwrap_or_default();
            return is_terminated(pod).then(|| Finished { success: phase(pod) == "Succeeded", message });
        }
        if self.is_serving() {
            return None;
        }
        let total = self.total().ok()?;
        let succeeded = self.pods.iter().filter(|pod| phase(pod) == "Succeeded").count();
        let active = self.pods.iter().any(|pod| !is_terminated(pod));
        let over = succeeded >= total || (!active && self.is_unretriable());
        over.then(|| Finished { success: succeeded >= total, message: format!("Pods succeeded: {succeeded}/{total}.") })
    }

    /// Pods that have succeeded and will not be replaced, by pod set.
    pub fn reclaimable(&self) -> Option<Vec<ReclaimablePod>> {
        if !self.is_group() || self.is_serving() {
            return None;
        }
        let mut done: BTreeMap<&str, i32> = BTreeMap::new();
        for pod in self.pods.iter().filter(|pod| phase(pod) == "Succeeded") {
            *done.entry(role(pod)).or_default() += 1;
        }
        Some(done.into_iter().map(|(name, count)| ReclaimablePod { name: name.to_owned(), count }).collect())
    }

    /// The pod sets of a new Workload for the group.
    ///
    /// # Errors
    /// The group is incomplete, or its pods contradict each other.
    pub fn pod_sets(&self, gates: &Gates) -> Result<Vec<PodSet>, String> {
        if !self.is_group() {
            return Ok(vec![pod_set(ALONE, 1, self.first(), gates)?]);
        }
        let total = self.total()?;
        if let Some(other) = self.pods.iter().find(|pod| {
            let key = annotations::POD_GROUP_TOTAL_COUNT;
            annotation(pod, key) != annotation(self.first(), key)
        }) {
            return Err(format!(
                "pods of a group must have the same total count: {} and {} differ",
                self.first().name_any(),
                other.name_any()
            ));
        }
        let runnable: Vec<&Arc<Pod>> = self.pods.iter().filter(|pod| counts(pod)).collect();
        if runnable.len() < total && (!self.is_fast() || runnable.is_empty()) {
            return Err(format!("group has fewer runnable pods than expected: {} of {total}", runnable.len()));
        }
        let mut sets = self.sets_of(runnable.iter().copied(), gates)?;
        if let ([only], true) = (&mut sets[..], self.is_fast()) {
            only.count = i32::try_from(total).unwrap_or(i32::MAX);
        }
        if sets.len() > ROLES_MAX {
            return Err(format!("group has {} pod roles; at most {ROLES_MAX} are allowed", sets.len()));
        }
        Ok(sets)
    }

    fn sets_of(&self, pods: impl Iterator<Item = &'a Arc<Pod>>, gates: &Gates) -> Result<Vec<PodSet>, String> {
        let mut by_role: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
        for pod in pods {
            by_role.entry(role(pod)).or_default().push(pod);
        }
        let set = |(name, pods): (&str, Vec<&Arc<Pod>>)| {
            let count = i32::try_from(pods.len()).unwrap_or(i32::MAX);
            pod_set(name, count, pods[0], gates)
        };
        by_role.into_iter().map(set).collect()
    }

    /// Assigns pods to the places of the group's Workload. If more pods count than there are
    /// places, gated pods are excess first, and the newest first among equals. Failed and deleted
    /// pods keep the remaining places, the newest first; the others are replaced.
    pub fn surplus(&self, workload: &Workload) -> Surplus {
        let mut surplus = Surplus::default();
        if !self.is_group() {
            surplus.kept = self.pods.to_vec();
            return surplus;
        }
        for set in &workload.spec.pod_sets {
            let places = usize::try_from(set.count).unwrap_or(0);
            let of_set = self.pods.iter().filter(|pod| role(pod) == set.name).cloned();
            let (mut live, mut lost): (Vec<_>, Vec<_>) = of_set.partition(|pod| counts(pod));
            // A group that is admitted before all its pods exist only needs one to be admitted
            // again.
            let needed = if self.is_fast() { places.min(1) } else { places };
            surplus.absent += needed.saturating_sub(live.len());
            // Started pods come before gated ones, and older before newer.
            live.sort_by_key(|pod| (is_gated(pod), created(pod), pod.name_any()));
            lost.sort_by_key(|pod| (std::cmp::Reverse(created(pod)), pod.name_any()));
            let excess = live.split_off(places.min(live.len()));
            let free = places - live.len();
            surplus.replaced.extend(lost.split_off(free.min(lost.len())));
            surplus.excess.extend(excess);
            surplus.kept.extend(live);
            surplus.kept.extend(lost);
        }
        surplus.kept.sort_by_key(|pod| pod.name_any());
        surplus
    }

    /// Number of places without a pod once the pods that have started are deleted.
    pub fn absent_once_stopped(&self, workload: &Workload) -> usize {
        let left = self.pods.iter().filter(|pod| is_gated(pod) || is_terminated(pod));
        let left: Vec<_> = left.cloned().collect();
        Group { unit: self.unit, pods: &left }.surplus(workload).absent
    }

    /// Waiting pods whose role has another name in the Workload, and that name. Berth versions up
    /// to 0.1 named roles differently, so a replacement of a pod can have a new name for its role.
    /// All pods of a serving group with one role have that role.
    pub fn misnamed(&self, workload: &'a Workload) -> Vec<(&'a Arc<Pod>, &'a str)> {
        let sets = &workload.spec.pod_sets;
        let is_known = |pod: &Pod| sets.iter().any(|set| set.name == role(pod));
        let waits = |pod: &&Arc<Pod>| is_gated(pod) && !is_deleting(pod);
        let is_alike = self.is_fast() || replica::is_part(self.first());
        let only = sets.first().filter(|_| sets.len() == 1 && self.is_serving() && is_alike);
        let unknown = self.pods.iter().filter(waits).filter(|pod| !is_known(pod));
        unknown
            .filter_map(|pod| {
                if let Some(only) = only {
                    return Some((pod, only.name.as_str()));
                }
                if !shape::is_hash(role(pod)) {
                    return None;
                }
                let shape = shape_of(pod.spec.as_ref())?;
                let set = sets.iter().find(|set| shape_of(set.template.spec.as_ref()).as_ref() == Some(&shape))?;
                Some((pod, set.name.as_str()))
            })
            .collect()
    }

    /// True if the pods fit the group's Workload: some fill its places, and none has an unknown
    /// role.
    pub fn fits(&self, workload: &Workload, kept: &[Arc<Pod>]) -> bool {
        if !self.is_group() {
            return true;
        }
        let stays = self.pods.iter().filter(|pod| !is_deleting(pod));
        let unknown = stays.into_iter().any(|pod| !workload.spec.pod_sets.iter().any(|set| set.name == role(pod)));
        !kept.is_empty() && !unknown
    }
}

fn shape_of(spec: Option<&PodSpec>) -> Option<String> {
    shape::role(&berth_api::json::to_value(spec?).ok()?)
}

/// The pod set that a group's pod belongs to.
pub fn role(pod: &Pod) -> &str {
    annotation(pod, annotations::ROLE_HASH)
}

/// Name of a pod's pod set in the Workload.
pub fn set_name<'a>(group: &Group<'_>, pod: &'a Pod) -> &'a str {
    if group.is_group() { role(pod) } else { ALONE }
}

/// True if the pod has the admission gate.
pub fn is_gated(pod: &Pod) -> bool {
    podset::is_gated(pod, constants::ADMISSION_GATE)
}

/// True if the pod succeeded or failed.
pub fn is_terminated(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// True if the pod is being deleted.
pub fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// True if the pod will not run, or will not run again: it failed, or it is being deleted and has
/// no node or has ended.
pub fn is_lost(pod: &Pod) -> bool {
    let is_placed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_ref().is_some_and(|node| !node.is_empty()));
    phase(pod) == "Failed" || (is_deleting(pod) && (is_terminated(pod) || !is_placed))
}

/// True if the pod fills a place of its group: it succeeded, runs, or may still run.
fn counts(pod: &Pod) -> bool {
    phase(pod) == "Succeeded" || (phase(pod) != "Failed" && !is_deleting(pod))
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> &'a str {
    pod.annotations().get(key).map_or("", String::as_str)
}

fn created(pod: &Pod) -> Option<jiff::Timestamp> {
    pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

fn pod_set(name: &str, count: i32, pod: &Pod, gates: &Gates) -> Result<PodSet, String> {
    let mut spec: PodSpec = pod.spec.clone().unwrap_or_default();
    // Gates and node belong to this pod, not to its requirements.
    spec.scheduling_gates = None;
    spec.node_name = None;
    let metadata = ObjectMeta { annotations: pod.metadata.annotations.clone(), ..ObjectMeta::default() };
    let mut template = PodTemplateSpec { metadata: Some(metadata), spec: Some(spec) };
    // The webhook copies the index of a pod to this label.
    let ranks = Ranks { pod_index_label: Some(labels::POD_GROUP_POD_INDEX), ..Ranks::default() };
    let topology_request = topology::of_template(&template, ranks, gates)?;
    template.metadata = None;
    Ok(PodSet { name: name.to_owned(), count, min_count: None, template, topology_request })
}
