//! Progress of a search through the flavors, over several attempts (§8.12).

use crate::ids::{ClassId, ResourceId};

/// Maximum number of searches in one round. Pod sets with many flavors may have more combinations
/// than this, and the workloads behind them in the queue must not wait for all of them.
const SEARCHES_MAX: usize = 1024;

/// Progress of a search through the flavors (§8.12).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ScanState {
    /// Per pod set and resource, the last flavor tried, if more flavors follow it.
    tried: Vec<(usize, ResourceId, usize)>,
    generation: u64,
    cycle: u64,
    class: Option<ClassId>,
    /// Number of searches since the last one that began at the first flavors, including this one.
    searches: usize,
    /// Where an earlier search ended: the latest whose number is a power of two.
    mark: Vec<(usize, ResourceId, usize)>,
    /// True if this search ended where the marked one did. Pod sets may reach their last flavor in
    /// different searches, so that one starts over while the other ends. By then all their
    /// combinations were tried, and would repeat for ever.
    is_over: bool,
}

impl ScanState {
    /// A search that has tried nothing yet.
    pub fn new(class: Option<ClassId>, cycle: u64, generation: u64) -> ScanState {
        ScanState { generation, cycle, class, ..ScanState::default() }
    }

    /// Records the search that this one continued, if any. Call it after all flavors of this search
    /// were recorded.
    pub fn continue_from(&mut self, earlier: Option<&ScanState>) {
        self.searches = earlier.map_or(0, |earlier| earlier.searches) + 1;
        self.mark = earlier.map(|earlier| earlier.mark.clone()).unwrap_or_default();
        // This detects a cycle however long it takes to enter it (Brent, 1980).
        self.is_over = self.searches > 1 && self.tried == self.mark || self.searches >= SEARCHES_MAX;
        if self.searches.is_power_of_two() {
            self.mark = self.tried.clone();
        }
    }

    /// Records the last flavor tried for a pod set and resource; −1 if it was the last flavor of
    /// the group.
    pub fn note(&mut self, pod_set: usize, resource: ResourceId, tried: i32) {
        // After the last flavor, the next search starts over, as it does without a record.
        if let Ok(tried) = usize::try_from(tried) {
            self.tried.push((pod_set, resource, tried));
        }
    }

    /// True if some resource has flavors that were not tried.
    pub fn has_more_flavors(&self) -> bool {
        !self.tried.is_empty() && !self.is_over
    }

    /// The flavor to start at for a pod set and resource.
    pub fn next_flavor(&self, pod_set: usize, resource: ResourceId) -> usize {
        let tried = self.tried.iter().find(|(set, id, _)| (*set, *id) == (pod_set, resource));
        tried.map_or(0, |(_, _, index)| index + 1)
    }

    /// True if quota or the workload changed in a way that makes the search start over (§8.12).
    pub fn is_outdated(&self, preserve: bool, class: Option<ClassId>, cycle: u64, generation: u64) -> bool {
        if preserve {
            if let (Some(then), Some(now)) = (self.class, class)
                && then != now
            {
                return true;
            }
            if self.cycle == cycle || self.cycle + 1 == cycle {
                return false;
            }
        }
        generation > self.generation
    }
}
