//! How many pods each pod set has, for what changes only that: elastic jobs (semantics §13.1).

use std::collections::BTreeMap;

use berth_api::kueue::v1beta2::{PodSet, Workload};

/// Pods by pod set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSetCounts(pub BTreeMap<String, i32>);

impl PodSetCounts {
    /// The counts of a list of pod sets.
    pub fn of(pod_sets: &[PodSet]) -> Self {
        PodSetCounts(pod_sets.iter().map(|set| (set.name.clone(), set.count)).collect())
    }

    /// Gives a workload's pod sets these counts; pod sets without one keep theirs.
    pub fn apply_to(&self, workload: &mut Workload) {
        for set in &mut workload.spec.pod_sets {
            if let Some(count) = self.0.get(&set.name) {
                set.count = *count;
            }
        }
    }

    /// Has some pod set fewer pods here than there? Pod sets only one side knows do not count.
    pub fn has_fewer_than(&self, other: &PodSetCounts) -> bool {
        self.0.iter().any(|(name, count)| other.0.get(name).is_some_and(|other| count < other))
    }

    /// Has some pod set fewer pods than before, and none more?
    pub fn is_scaled_down_from(&self, before: &PodSetCounts) -> bool {
        self.has_fewer_than(before) && !before.has_fewer_than(self)
    }

    /// Are these the same pod sets, whatever their counts?
    pub fn same_pod_sets(&self, other: &PodSetCounts) -> bool {
        self.0.keys().eq(other.0.keys())
    }
}
