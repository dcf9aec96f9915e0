//! Pod counts by pod set, for elastic jobs. Only counts change when such a job changes its size
//! (semantics §13.1).

use std::collections::BTreeMap;

use berth_api::kueue::v1beta2::{PodSet, Workload};

/// Number of pods by pod set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSetCounts(pub BTreeMap<String, i32>);

impl PodSetCounts {
    /// The counts of a list of pod sets.
    pub fn of(pod_sets: &[PodSet]) -> Self {
        PodSetCounts(pod_sets.iter().map(|set| (set.name.clone(), set.count)).collect())
    }

    /// Sets these counts in a workload; pod sets that are not listed keep theirs.
    pub fn apply_to(&self, workload: &mut Workload) {
        for set in &mut workload.spec.pod_sets {
            if let Some(count) = self.0.get(&set.name) {
                set.count = *count;
            }
        }
    }

    /// True if any pod set has fewer pods here than in `other`. A pod set that only one of them has
    /// is ignored.
    pub fn has_fewer_than(&self, other: &PodSetCounts) -> bool {
        self.0.iter().any(|(name, count)| other.0.get(name).is_some_and(|other| count < other))
    }

    /// True if any pod set has fewer pods than in `before`, and none has more.
    pub fn is_scaled_down_from(&self, before: &PodSetCounts) -> bool {
        self.has_fewer_than(before) && !before.has_fewer_than(self)
    }

    /// True if both list the same pod sets, regardless of their counts.
    pub fn same_pod_sets(&self, other: &PodSetCounts) -> bool {
        self.0.keys().eq(other.0.keys())
    }
}
