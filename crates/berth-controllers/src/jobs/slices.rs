//! Workload slices of elastic jobs: the Workloads that represent one job while its size changes
//! (semantics §13.1).
//!
//! A job that grows while its Workload holds quota gets a second Workload, which replaces the first
//! one when it is admitted. Every other change of size updates the existing Workload. Each of these
//! Workloads is a slice.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::kueue::annotations;
use berth_api::kueue::v1beta2::{PodSet, Workload};
use kube::ResourceExt;

use crate::workload::counts::PodSetCounts;
use crate::workload::status;

/// Key of the slice that this one replaces, as `namespace/name`.
pub fn replaced_key(workload: &Workload) -> Option<&str> {
    workload.annotations().get(annotations::WORKLOAD_SLICE_REPLACEMENT_FOR).map(String::as_str)
}

/// A workload's key in the form that [`replaced_key`] returns.
fn key_of(workload: &Workload) -> String {
    format!("{}/{}", workload.namespace().unwrap_or_default(), workload.name_any())
}

/// Slices that are not finished, oldest first. Creation times have a resolution of one second.
/// Among slices created in the same second, a slice follows the one it replaces.
pub fn not_finished(owned: &[Arc<Workload>]) -> Vec<Arc<Workload>> {
    let mut open: Vec<Arc<Workload>> = owned.iter().filter(|w| !status::is_finished(w)).cloned().collect();
    sort(&mut open);
    open
}

fn sort(slices: &mut [Arc<Workload>]) {
    let created = |w: &Workload| w.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let by_key: BTreeMap<String, Arc<Workload>> = slices.iter().map(|w| (key_of(w), w.clone())).collect();
    // Number of slices that a slice replaces, directly or through others. The list's length limits
    // it, because the annotations may form a cycle.
    let depth = |workload: &Arc<Workload>| {
        let mut at = workload.clone();
        (0..by_key.len())
            .take_while(|_| match replaced_key(&at).and_then(|key| by_key.get(key)) {
                Some(replaced) => {
                    at = replaced.clone();
                    true
                }
                None => false,
            })
            .count()
    };
    slices.sort_by_cached_key(|w| (created(w), depth(w), w.name_any()));
}

/// The roles of a job's unfinished slices.
#[derive(Clone, Debug, Default)]
pub struct Active {
    /// The slice that represents the job's desired size.
    pub survivor: Option<Arc<Workload>>,
    /// The slice under which the pods run until the survivor is admitted.
    pub kept: Option<Arc<Workload>>,
    /// Slices that another slice replaces, which are to be finished.
    pub replaced: Vec<Arc<Workload>>,
    /// All other slices, which are to be finished.
    pub extra: Vec<Arc<Workload>>,
    /// Evicted slices next to another one. They are to be finished once the pods have ended,
    /// because nothing else releases their quota.
    pub evicted: Vec<Arc<Workload>>,
}

impl Active {
    /// True if another slice of the job replaces this one.
    pub fn is_replaced(&self, slice: &Workload) -> bool {
        let key = key_of(slice);
        let all = [&self.replaced, &self.extra, &self.evicted].into_iter().flatten();
        all.chain(&self.survivor).chain(&self.kept).any(|other| replaced_key(other) == Some(key.as_str()))
    }
}

/// Assigns the roles among unfinished slices. The newest slice that has no quota reservation and
/// replaces the newest one with a reservation is the survivor, and the replaced one is kept.
/// Without such a replacement, the newest slice with a reservation is the survivor; without any
/// reservation, the newest slice is. The others are replaced or extra. Evicted slices have only the
/// role `evicted`. If all slices are evicted, the newest one has no role, and stays.
pub fn normalize(open: &[Arc<Workload>]) -> Active {
    let mut open = open.to_vec();
    sort(&mut open);
    let mut evicted: Vec<Arc<Workload>> = open.extract_if(.., |workload| status::is_evicted(workload)).collect();
    if open.is_empty() {
        evicted.pop();
    }
    let is = |a: &Arc<Workload>, b: &Option<Arc<Workload>>| b.as_ref().is_some_and(|b| Arc::ptr_eq(a, b));
    let running = open.iter().rev().find(|w| status::has_quota_reservation(w)).cloned();
    let mut waiting = open.iter().rev().filter(|w| !status::has_quota_reservation(w));
    let waiting = match &running {
        Some(running) => {
            let key = key_of(running);
            waiting.find(|w| replaced_key(w) == Some(key.as_str()))
        }
        None => waiting.next(),
    };
    let survivor = waiting.cloned().or_else(|| running.clone());
    let kept = running.filter(|running| !is(running, &survivor));
    let others = open.iter().filter(|w| !is(w, &survivor) && !is(w, &kept)).cloned();
    let is_replaced =
        |slice: &Arc<Workload>| open.iter().any(|other| replaced_key(other) == Some(key_of(slice).as_str()));
    let (replaced, extra) = others.partition(is_replaced);
    Active { survivor, kept, replaced, extra, evicted }
}

/// The newest slice with a quota reservation that is neither evicted nor finished: the job's pods
/// run under it.
pub fn latest_active(slices: &[Arc<Workload>]) -> Option<Arc<Workload>> {
    let mut slices = slices.to_vec();
    sort(&mut slices);
    let active =
        |w: &&Arc<Workload>| status::has_quota_reservation(w) && !status::is_evicted(w) && !status::is_finished(w);
    slices.iter().rev().find(active).cloned()
}

/// The action that makes the slices match the job.
#[derive(Clone, Debug, PartialEq)]
pub enum SliceState {
    /// There is no slice.
    Missing,
    /// The job's pod sets have other names than the slice's.
    Incompatible,
    /// This slice matches the job.
    Current(Arc<Workload>),
    /// This slice matches the job after it is written with its new counts.
    Resized(Box<Workload>),
    /// A new slice must be created to replace this one.
    Replace(Arc<Workload>),
}

/// Compares the newest slice with the job's pod sets.
pub fn ensure(open: &[Arc<Workload>], active: &Active, pod_sets: &[PodSet]) -> SliceState {
    let Some(newest) = active.survivor.clone().or_else(|| open.last().cloned()) else { return SliceState::Missing };
    let (counts, wanted) = (PodSetCounts::of(&newest.spec.pod_sets), PodSetCounts::of(pod_sets));
    if !counts.same_pod_sets(&wanted) {
        return SliceState::Incompatible;
    }
    if counts == wanted {
        return SliceState::Current(newest);
    }
    if counts.has_fewer_than(&wanted) && status::has_quota_reservation(&newest) {
        return SliceState::Replace(newest);
    }
    let mut newest = (*newest).clone();
    wanted.apply_to(&mut newest);
    SliceState::Resized(Box::new(newest))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(name: &str, replaces: &str, reserved: bool) -> Arc<Workload> {
        let key = annotations::WORKLOAD_SLICE_REPLACEMENT_FOR;
        let annotations = if replaces.is_empty() { json!({}) } else { json!({key: format!("ns/{replaces}")}) };
        let status = json!({"conditions": [{"type": "QuotaReserved", "status": if reserved { "True" } else { "False" },
            "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        let metadata = json!({"name": name, "namespace": "ns", "annotations": annotations,
            "creationTimestamp": "2026-01-01T00:00:00Z"});
        let workload = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata,
            "spec": {"podSets": []}, "status": status});
        Arc::new(serde_json::from_value(workload).expect("a workload"))
    }

    fn roles(open: &[Arc<Workload>]) -> [Vec<String>; 4] {
        let active = normalize(open);
        [active.survivor.into_iter().collect(), active.kept.into_iter().collect(), active.replaced, active.extra]
            .map(|slices: Vec<Arc<Workload>>| slices.iter().map(|slice| slice.name_any()).collect())
    }

    #[test]
    fn an_admitted_slice_replaces_the_one_before_it() {
        let (first, second) = (slice("first", "", true), slice("second", "first", true));
        let none: [&str; 0] = [];
        assert_eq!(roles(&[first.clone(), second.clone()]), [&["second"][..], &none, &["first"], &none]);
        let waiting = slice("third", "second", false);
        assert_eq!(roles(&[first, second.clone(), waiting.clone()]), [&["third"][..], &["second"], &["first"], &none]);
        // Of two slices that would replace the same one, one is extra.
        let fork = slice("fork", "second", false);
        let [survivor, kept, replaced, extra] = roles(&[second, waiting, fork]);
        assert_eq!((kept, replaced.len(), survivor.len(), extra.len()), (vec!["second".to_owned()], 0, 1, 1));
    }

    #[test]
    fn an_evicted_slice_next_to_another_one_is_to_be_finished() {
        let mut first = (*slice("first", "", true)).clone();
        let now = "2026-01-01T00:00:00Z".parse().expect("a time");
        status::set(&mut first, "Evicted", true, "Preempted", "", now);
        let (first, second) = (Arc::new(first), slice("second", "first", false));
        let active = normalize(&[first.clone(), second]);
        assert_eq!(active.survivor.as_ref().map(|slice| slice.name_any()).as_deref(), Some("second"));
        assert_eq!(active.evicted.iter().map(|slice| slice.name_any()).collect::<Vec<_>>(), ["first"]);
        assert!(active.is_replaced(&first));
        assert_eq!(normalize(&[first]).evicted, [], "its job's eviction releases its quota");
    }
}
