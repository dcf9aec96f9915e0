//! Counts that are kept from one question to the next.
//!
//! Heads that do not get in ask again in every cycle, and most of them for pods that others have asked for. What was counted
//! for such pods is kept, and whoever asks next has it brought up to date.
//!
//! **Invariant:** a count that is kept and then refreshed is what counting anew would find; builds with debug assertions
//! compare the two each time. A change of usage, or of what a node offers, touches its row in the ledger, which refreshing
//! looks at; a change of which nodes a flavor has, where they are, or whom they take drops the counts of that flavor.

use super::count::Count;
use super::placement::Wanted;
use crate::ids::FlavorId;

/// Kinds of pods whose counts are kept at most, and domains counted for all of them together: past these, those that were
/// not asked for longest are dropped.
const COUNTS_MAX: usize = 64;
const DOMAINS_MAX: usize = 1 << 18;

/// Counts, in no particular order.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// With the number of the question each was last taken for.
    list: Vec<(u64, Count)>,
    domains: usize,
    questions: u64,
}

impl Counts {
    /// Takes out the count for the pods wanted, to be refreshed and [kept](Self::keep) again.
    pub fn take(&mut self, wanted: &Wanted, empty: bool) -> Option<Count> {
        let is_asked = |(_, count): &(u64, Count)| count.empty == empty && count.of.counts_alike(wanted);
        let at = self.list.iter().position(is_asked)?;
        Some(self.remove(at))
    }

    /// Keeps a count for whoever asks next.
    pub fn keep(&mut self, count: Count) {
        self.questions += 1;
        self.domains += count.capacities.len();
        self.list.push((self.questions, count));
        while self.list.len() > COUNTS_MAX || (self.domains > DOMAINS_MAX && self.list.len() > 1) {
            let oldest = (0..self.list.len()).min_by_key(|at| self.list[*at].0);
            self.remove(oldest.unwrap_or_default());
        }
    }

    fn remove(&mut self, at: usize) -> Count {
        let (_, count) = self.list.swap_remove(at);
        self.domains -= count.capacities.len();
        count
    }

    /// Drops the counts of a flavor's domains.
    pub fn clear_flavor(&mut self, flavor: FlavorId) {
        self.list.retain(|(_, count)| count.of.flavor != flavor);
        self.domains = self.list.iter().map(|(_, count)| count.capacities.len()).sum();
    }

    /// Drops all.
    pub fn clear(&mut self) {
        self.list.clear();
        self.domains = 0;
    }
}
