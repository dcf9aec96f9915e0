//! A cache of [`Count`]s between placements.
//!
//! Heads that were not admitted are placed again in every cycle, and most of them have pods of a
//! kind that other heads have as well. The count for such pods is cached, and the next placement
//! refreshes it.
//!
//! **Invariant:** a cached count, once refreshed, equals a new count; builds with debug assertions
//! compare the two each time. A change in a node's usage or capacity marks the node's row in the
//! ledger, and refreshing reads the marked rows. The counts of a flavor are dropped if its nodes
//! change, or their position in the topology, or the pods that they accept.

use super::count::Count;
use super::placement::Wanted;
use crate::ids::FlavorId;

/// Maximum number of cached counts. Past it, the least recently used ones are dropped.
const COUNTS_MAX: usize = 64;
/// Maximum number of domains in all cached counts together. Past it, the least recently used
/// counts are dropped.
const DOMAINS_MAX: usize = 1 << 18;

/// Cached counts, in no particular order.
#[derive(Debug, Default)]
pub(super) struct CountCache {
    /// Each count with the number of the request that used it last.
    list: Vec<(u64, Count)>,
    /// Domains in all counts together.
    domains: usize,
    /// Number of requests so far.
    requests: u64,
}

impl CountCache {
    /// Takes the count for the wanted pods out of the cache, if there is one. The caller must
    /// refresh it and [put](Self::put) it back.
    pub fn take(&mut self, wanted: &Wanted, empty: bool) -> Option<Count> {
        let is_asked = |(_, count): &(u64, Count)| count.empty == empty && count.of.counts_alike(wanted);
        let at = self.list.iter().position(is_asked)?;
        Some(self.remove(at))
    }

    /// Caches a count, and drops the least recently used ones past the limits.
    pub fn put(&mut self, count: Count) {
        self.requests += 1;
        self.domains += count.capacities.len();
        self.list.push((self.requests, count));
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

    /// Drops the counts of a flavor.
    pub fn clear_flavor(&mut self, flavor: FlavorId) {
        self.list.retain(|(_, count)| count.of.flavor != flavor);
        self.domains = self.list.iter().map(|(_, count)| count.capacities.len()).sum();
    }

    /// Drops all counts.
    pub fn clear(&mut self) {
        self.list.clear();
        self.domains = 0;
    }
}
