//! The stays that have ended, as far as memory keeps them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use berth_api::berth::usage::{Stay, StayState};
use jiff::Timestamp;

use super::stay::is_eviction;

/// Maximum number of stays in memory that ended by an eviction, and of others. A stay is usually
/// below 1 KiB.
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

/// The newest stays of some states.
#[derive(Debug, Default)]
struct Newest {
    /// With their numbers in the order in which stays were recorded.
    kept: VecDeque<(u64, Arc<Stay>)>,
    /// Last end of those that were dropped.
    dropped: Option<Timestamp>,
}

impl Newest {
    fn add(&mut self, number: u64, stay: Arc<Stay>) {
        if self.kept.len() >= STAYS_MAX
            && let Some((_, oldest)) = self.kept.pop_front()
        {
            self.dropped = self.dropped.max(oldest.ended.as_ref().map(|at| at.0));
        }
        self.kept.push_back((number, stay));
    }

    fn has_all_since(&self, since: Timestamp) -> bool {
        self.dropped.is_none_or(|dropped| dropped < since)
    }
}

/// Ended stays in the order in which they were recorded. Evictions have a limit of their own, so
/// that many jobs that succeed do not displace them.
#[derive(Debug, Default)]
pub(super) struct EndedStays {
    last: u64,
    evictions: Newest,
    others: Newest,
    /// Recorded ends by UID, of workloads that exist, and of those in the journal when it was
    /// opened.
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
        self.last += 1;
        let newest = match &stay.ended {
            Some(at) if is_eviction(stay.state) => {
                self.evicted.insert(stay.uid.clone(), at.0);
                &mut self.evictions
            }
            _ => {
                self.evicted.remove(&stay.uid);
                &mut self.others
            }
        };
        newest.add(self.last, stay);
        true
    }

    /// Forgets the ends of a workload that was deleted. Its stays are kept.
    pub(super) fn deleted(&mut self, uid: &str) {
        self.recorded.remove(uid);
        self.evicted.remove(uid);
    }

    /// Stays in memory, oldest first.
    pub(super) fn kept(&self) -> Vec<Arc<Stay>> {
        let mut all: Vec<_> = self.evictions.kept.iter().chain(&self.others.kept).collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, stay)| stay.clone()).collect()
    }

    /// True if memory has all stays that ended at `since` or later in one of these states; none
    /// stands for all states.
    pub(super) fn has_all_since(&self, since: Timestamp, states: &[StayState]) -> bool {
        let needs = |evictions: bool| states.is_empty() || states.iter().any(|it| is_eviction(*it) == evictions);
        (!needs(true) || self.evictions.has_all_since(since)) && (!needs(false) || self.others.has_all_since(since))
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
        assert_eq!(stays.kept().len(), STAYS_MAX + 1, "the eviction is not displaced");
    }

    #[test]
    fn memory_knows_since_when_it_has_all_stays_of_a_state() {
        let mut stays = EndedStays::default();
        let at = |second| Timestamp::from_second(second).expect("in range");
        stays.add(stay("evicted", StayState::Evicted, 5));
        for second in (0..).take(STAYS_MAX + 10) {
            stays.add(stay(&format!("b{second}"), StayState::Succeeded, second));
        }
        // The stays of the seconds 0 to 9 were dropped.
        assert!(stays.has_all_since(at(10), &[]) && !stays.has_all_since(at(9), &[]));
        assert!(!stays.has_all_since(at(9), &[StayState::Succeeded, StayState::Preempted]));
        assert!(stays.has_all_since(at(0), &[StayState::Preempted, StayState::Evicted]));
        let order: Vec<_> = stays.kept().iter().map(|stay| stay.uid.clone()).take(2).collect();
        assert_eq!(order, ["evicted", "b10"], "in the order in which they were recorded");
    }
}
