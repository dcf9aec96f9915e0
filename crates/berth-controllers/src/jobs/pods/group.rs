//! What the pods of a unit say together: how many there are of each sort, which are too many, which are lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::kueue::v1beta2::{PodSet, ReclaimablePod, Workload};
use berth_api::kueue::{annotations, constants, labels};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::Unit;
use crate::gates::{Gate, Gates};
use crate::jobs::Finished;
use crate::jobs::topology::{self, Ranks};
use crate::podset;

/// Name of the pod set of a pod that stands alone.
const ALONE: &str = "main";
/// Pod sets a workload can have.
const ROLES_MAX: usize = 18;

/// The pods of a unit, in name order; at least one.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    unit: &'a Unit,
    pods: &'a [Arc<Pod>],
}

/// Pods of a group that no longer belong to it or were replaced.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Surplus {
    /// More than the group has places for.
    pub excess: Vec<Arc<Pod>>,
    /// Ended without success, with another pod in their place.
    pub replaced: Vec<Arc<Pod>>,
    /// Places that no pod fills.
    pub absent: usize,
    /// The pods that count.
    pub kept: Vec<Arc<Pod>>,
}

impl<'a> Group<'a> {
    /// The group of these pods; nothing when there are none.
    pub fn new(unit: &'a Unit, pods: &'a [Arc<Pod>]) -> Option<Self> {
        (!pods.is_empty()).then_some(Group { unit, pods })
    }

    /// Its pods.
    pub fn pods(&self) -> &'a [Arc<Pod>] {
        self.pods
    }

    /// The pod that speaks for all.
    pub fn first(&self) -> &'a Arc<Pod> {
        &self.pods[0]
    }

    /// What it is called in texts.
    pub fn name(&self) -> String {
        match self.unit {
            Unit::Pod { name } => format!("pod {name}"),
            Unit::Group { name } => format!("pod group {name}"),
        }
    }

    /// Is it more than a pod that stands alone?
    pub fn is_group(&self) -> bool {
        matches!(self.unit, Unit::Group { .. })
    }

    /// Does it serve until it is taken away?
    pub fn is_serving(&self) -> bool {
        self.is_group() && self.pods.iter().any(|pod| annotation(pod, annotations::POD_GROUP_SERVING) == "true")
    }

    /// May pods that failed not be replaced?
    pub fn is_unretriable(&self) -> bool {
        self.pods.iter().any(|pod| annotation(pod, annotations::RETRIABLE_IN_GROUP) == "false")
    }

    fn is_fast(&self) -> bool {
        self.pods.iter().any(|pod| annotation(pod, annotations::POD_GROUP_FAST_ADMISSION) == "true")
    }

    /// Pods the group is made of.
    ///
    /// # Errors
    /// What is wrong with the annotation that says so.
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

    /// The queue all its pods name.
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

    /// Do some of its pods wait for admission?
    pub fn is_waiting(&self) -> bool {
        self.pods.iter().any(|pod| is_gated(pod))
    }

    /// Its pods that were let go of and have not ended.
    pub fn started(&self) -> impl Iterator<Item = &'a Arc<Pod>> {
        self.pods.iter().filter(|pod| !is_gated(pod) && !is_terminated(pod))
    }

    /// Has it pods that run? Those that are on their way out need no quota any more where that is to be released fast
    /// (§19.2).
    pub fn is_active(&self, gates: &Gates) -> bool {
        let fast = gates.on(Gate::FastQuotaReleaseInPodIntegration);
        self.pods.iter().any(|pod| phase(pod) == "Running" && !(fast && is_deleting(pod)))
    }

    /// Are all its pods ready or done?
    pub fn is_ready(&self) -> bool {
        let ready = |pod: &&Arc<Pod>| {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let mut ready = conditions.filter(|it| it.type_ == "Ready" && it.status == "True");
            phase(pod) == "Succeeded" || ready.next().is_some()
        };
        self.total().is_ok_and(|total| self.pods.iter().filter(ready).count() >= total)
    }

    /// How it ended, if it did. A group ends when as many pods succeeded as it has places, or when nothing of it runs and
    /// nothing is to be replaced.
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

    /// Pods that are done and will not come back, by pod set.
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

    /// The pod sets a new Workload of it has.
    ///
    /// # Errors
    /// It is not complete, or what its pods say does not go together.
    pub fn pod_sets(&self, gates: &Gates) -> Result<Vec<PodSet>, String> {
        if !self.is_group() {
            return Ok(vec![pod_set(ALONE, 1, self.first(), None, gates)?]);
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
            return Err(format!("group has {} sorts of pods; at most {ROLES_MAX} are possible", sets.len()));
        }
        Ok(sets)
    }

    fn sets_of(&self, pods: impl Iterator<Item = &'a Arc<Pod>>, gates: &Gates) -> Result<Vec<PodSet>, String> {
        let mut by_role: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
        for pod in pods {
            by_role.entry(role(pod)).or_default().push(pod);
        }
        let index_label = |pod: &Arc<Pod>| {
            let own = pod.annotations().get(annotations::POD_GROUP_POD_INDEX_LABEL).cloned();
            let common = || labels::POD_GROUP_POD_INDEX.to_owned();
            own.or_else(|| pod.labels().contains_key(labels::POD_GROUP_POD_INDEX).then(common))
        };
        let set = |(name, pods): (&str, Vec<&Arc<Pod>>)| {
            let count = i32::try_from(pods.len()).unwrap_or(i32::MAX);
            pod_set(name, count, pods[0], index_label(pods[0]).as_deref(), gates)
        };
        by_role.into_iter().map(set).collect()
    }

    /// Sorts out which pods fill the places of a group's Workload. Of pods that are too many the newest go; of pods that
    /// ended, those that ended first.
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
            surplus.absent += places.saturating_sub(live.len());
            // What was let go of, and what is older, has the place.
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

    /// Do the pods that count fit the group's Workload: no sort it does not have, nor more of one?
    pub fn fits(&self, workload: &Workload, kept: &[Arc<Pod>]) -> bool {
        if !self.is_group() {
            return true;
        }
        let unknown = self.pods.iter().any(|pod| !workload.spec.pod_sets.iter().any(|set| set.name == role(pod)));
        !kept.is_empty() && !unknown
    }
}

/// The pod set a pod belongs to.
pub fn role(pod: &Pod) -> &str {
    annotation(pod, annotations::ROLE_HASH)
}

/// The pod set of a pod in its Workload.
pub fn set_name<'a>(group: &Group<'_>, pod: &'a Pod) -> &'a str {
    if group.is_group() { role(pod) } else { ALONE }
}

/// It waits for admission.
pub fn is_gated(pod: &Pod) -> bool {
    podset::is_gated(pod, constants::ADMISSION_GATE)
}

/// It has ended, well or not.
pub fn is_terminated(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// It is being deleted.
pub fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// It will not run any more, or never will: it failed, or is being deleted and runs nowhere.
pub fn is_lost(pod: &Pod) -> bool {
    let is_placed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_ref().is_some_and(|node| !node.is_empty()));
    phase(pod) == "Failed" || (is_deleting(pod) && (is_terminated(pod) || !is_placed))
}

/// It fills a place of its group: it succeeded, runs, or may still run.
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

fn pod_set(name: &str, count: i32, pod: &Pod, pod_index_label: Option<&str>, gates: &Gates) -> Result<PodSet, String> {
    let mut spec: PodSpec = pod.spec.clone().unwrap_or_default();
    // The gates and the node are of this pod, not of what it asks for.
    spec.scheduling_gates = None;
    spec.node_name = None;
    let metadata = ObjectMeta { annotations: pod.metadata.annotations.clone(), ..ObjectMeta::default() };
    let mut template = PodTemplateSpec { metadata: Some(metadata), spec: Some(spec) };
    let topology_request = topology::of_template(&template, Ranks { pod_index_label, ..Ranks::default() }, gates)?;
    template.metadata = None;
    Ok(PodSet { name: name.to_owned(), count, min_count: None, template, topology_request })
}
