//! The stays that have ended, as far as memory keeps them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use berth_api::berth::usage::{Stay, StayState};
use jiff::Timestamp;

/// Maximum number of stays in memory. A stay is usually below 1 KiB.
pub const STAYS_MAX: usize = 16_384;

/// Identifies the end of a stay: UID, state and second.
pub(super) type End = u64;

/// The identity of a stay's end.
pub(super) fn end_of(stay: &Stay) -> End {
    let mut hasher = DefaultHasher::new();
    let second = stay.ended.as_ref().map(|at| at.0.as_second());
    (&stay.uid, second, stay.state.name()).hash(&mut hasher);
    hasher.finish()
}

/// Ended stays in the order in which they were recorded.
#[derive(Debug, Default)]
pub(super) struct EndedStays {
    kept: VecDeque<Arc<Stay>>,
    /// Recorded ends by UID, of workloads that exist, and of those in the journal when it was opened.
    recorded: HashMap<String, HashSet<End>>,
    /// Last eviction of each workload that has not finished, by UID.
    evicted: HashMap<String, Timestamp>,
}

impl EndedStays {
    /// End of the last stay of a workload that has not finished.
    pub(super) fn last_end(&self, uid: &str) -> Option<Timestamp> {
        self.evicted.get(uid).copied()
    }

    /// Adds a stay; false if it is recorded already.
    pub(super) fn add(&mut self, stay: Arc<Stay>) -> bool {
        if !self.recorded.entry(stay.uid.clone()).or_default().insert(end_of(&stay)) {
            return false;
        }
        match (stay.state, &stay.ended) {
            (StayState::Preempted | StayState::Evicted, Some(at)) => {
                self.evicted.insert(stay.uid.clone(), at.0);
            }
            _ => drop(self.evicted.remove(&stay.uid)),
        }
        if self.kept.len() >= STAYS_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(stay);
        true
    }

    /// Forgets the ends of a workload that was deleted. Its stays are kept.
    pub(super) fn deleted(&mut self, uid: &str) {
        self.recorded.remove(uid);
        self.evicted.remove(uid);
    }

    /// Stays in memory, oldest first.
    pub(super) fn kept(&self) -> Vec<Arc<Stay>> {
        self.kept.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn stay(uid: &str, state: StayState, second: i64) -> Arc<Stay> {
        let ended = Some(Time(Timestamp::from_second(second).expect("in range")));
        Arc::new(Stay { uid: uid.to_owned(), state, ended, ..Stay::default() })
    }

    #[test]
    fn the_same_end_is_recorded_once_and_memory_is_bounded() {
        let mut stays = EndedStays::default();
        assert!(stays.add(stay("a", StayState::Preempted, 1)));
        assert!(!stays.add(stay("a", StayState::Preempted, 1)));
        assert_eq!(stays.last_end("a").map(Timestamp::as_second), Some(1));
        assert!(stays.add(stay("a", StayState::Succeeded, 2)));
        assert_eq!(stays.last_end("a"), None);
        stays.deleted("a");
        assert!(stays.recorded.is_empty());
        for number in 0..STAYS_MAX {
            stays.add(stay(&format!("b{number}"), StayState::Succeeded, 3));
        }
        assert_eq!(stays.kept().len(), STAYS_MAX);
    }
}
