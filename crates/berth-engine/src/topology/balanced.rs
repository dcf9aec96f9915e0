//! Balanced placement (§14.8): nearly the same number of pods on each domain, on as few domains as
//! possible.
//!
//! Two levels are considered: the preferred level, and the level below it if slices go deeper. The
//! domains of the preferred level are grouped by their parent. The threshold of a group is the
//! number of slices that each of its used domains can get. The search picks the group with the
//! highest threshold and drops the domains with less capacity than the threshold. It uses the
//! smallest set of the other domains; among sets of equal size, the one with the least spare
//! capacity.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::count::{Capacity, sum_children};
use super::placement::{Search, Share, Wanted};
use super::tree::FlavorTree;

/// The chosen shares, and the capacities of all domains. Dropped domains have no capacity.
pub(crate) struct Balanced {
    pub shares: Vec<Share>,
    pub capacities: Vec<Capacity>,
}

/// Result of taking the largest domains first.
struct Greedy {
    /// Number of domains used.
    used: usize,
    /// Domain of the leader.
    leader: Option<usize>,
    /// Last domain used without the leader.
    last: Option<usize>,
}

struct Balance<'a> {
    tree: &'a FlavorTree,
    wanted: &'a Wanted,
    capacities: Vec<Capacity>,
}

/// A set of domains of one preferred level that could serve the request.
struct Candidate {
    domains: Vec<usize>,
    threshold: i64,
    /// Number of domains of the preferred level that would be used.
    used: usize,
}

/// Finds a balanced placement. `None` if there is none; the ordinary search then decides.
pub(crate) fn choose(tree: &FlavorTree, wanted: &Wanted, capacities: &[Capacity]) -> Option<Balanced> {
    let groups: Vec<Vec<usize>> = match wanted.level {
        0 => vec![tree.level_domains(0).collect()],
        level => tree.level_domains(level - 1).map(|id| tree.domains[id].children.clone().collect()).collect(),
    };
    let mut best: Option<Candidate> = None;
    for domains in groups {
        let mut balance = Balance { tree, wanted, capacities: capacities.to_vec() };
        let least = best.as_ref().map_or(1, |best| best.threshold);
        let Some(candidate) = balance.evaluate(domains, least) else { continue };
        let better = best.as_ref().is_none_or(|best| {
            candidate.threshold > best.threshold
                || (candidate.threshold == best.threshold && candidate.used < best.used)
        });
        if better {
            best = Some(candidate);
        }
    }
    let best = best?;
    let mut balance = Balance { tree, wanted, capacities: capacities.to_vec() };
    balance.prune(&best.domains, best.threshold);
    let domains = if wanted.level < wanted.slice_level {
        let chosen = balance.smallest_set(&best.domains, true)?;
        balance.below(&chosen)
    } else {
        best.domains
    };
    let chosen = balance.smallest_set(&domains, false)?;
    let shares = balance.distribute(&chosen, best.threshold)?;
    Some(Balanced { shares, capacities: balance.capacities })
}

impl Balance<'_> {
    fn search(&self) -> Search<'_> {
        Search { tree: self.tree, capacities: &self.capacities, wanted: self.wanted }
    }

    fn has_leader(&self) -> bool {
        self.wanted.leader.is_some()
    }

    fn below(&self, domains: &[usize]) -> Vec<usize> {
        domains.iter().flat_map(|id| self.tree.domains[*id].children.clone()).collect()
    }

    /// The domains over which pods are balanced: those of the preferred level, or of the next level
    /// if slices go deeper.
    fn balanced_over(&self, domains: &[usize]) -> Vec<usize> {
        if self.wanted.level < self.wanted.slice_level { self.below(domains) } else { domains.to_vec() }
    }

    /// Evaluates a group of siblings of the preferred level. `None` if its threshold would be below
    /// `least`, or if not everything can be placed.
    fn evaluate(&mut self, domains: Vec<usize>, least: i64) -> Option<Candidate> {
        let greedy = self.greedy(&self.balanced_over(&domains))?;
        let threshold = self.threshold(&greedy);
        if threshold < least {
            return None;
        }
        // The leader may go to different domains at the two levels. A lower threshold, with fewer
        // slices per domain, then leaves capacity for the leader.
        let beside_leader = greedy.leader.and(greedy.last).map(|last| self.capacities[last].slices_with_leader);
        let beside_leader = beside_leader.filter(|lower| (least..threshold).contains(lower));
        let untried = beside_leader.map(|lower| (lower, self.capacities.clone()));
        self.prune(&domains, threshold);
        if let Some(Greedy { used, .. }) = self.greedy(&domains) {
            return Some(Candidate { domains, threshold, used });
        }
        let (threshold, capacities) = untried?;
        self.capacities = capacities;
        self.prune(&domains, threshold);
        let used = self.greedy(&domains)?.used;
        Some(Candidate { domains, threshold, used })
    }

    /// Takes the largest domains until everything is placed. `None` if that is impossible.
    fn greedy(&self, domains: &[usize]) -> Option<Greedy> {
        let mut remaining = self.wanted.slices();
        let mut greedy = Greedy { used: 0, leader: None, last: None };
        let mut rest = self.search().sorted_with_leader(domains.to_vec());
        if self.has_leader() {
            let first = rest.first().copied().filter(|id| self.capacities[*id].leader > 0)?;
            remaining -= self.capacities[first].slices_with_leader;
            greedy.leader = Some(first);
            greedy.used = 1;
            rest.remove(0);
        }
        for id in self.search().sorted(rest) {
            if remaining <= 0 || self.capacities[id].slices <= 0 {
                break;
            }
            remaining -= self.capacities[id].slices;
            greedy.last = Some(id);
            greedy.used += 1;
        }
        (remaining <= 0).then_some(greedy)
    }

    /// Number of slices that each used domain can get.
    fn threshold(&self, greedy: &Greedy) -> i64 {
        let mut threshold = self.wanted.slices() / i64::try_from(greedy.used.max(1)).unwrap_or(i64::MAX);
        if let Some(leader) = greedy.leader {
            threshold = threshold.min(self.capacities[leader].slices_with_leader);
        }
        if let Some(last) = greedy.last {
            threshold = threshold.min(self.capacities[last].slices);
        }
        threshold
    }

    /// Drops domains with capacity for fewer slices than the threshold: first the children of the
    /// given domains, if slices go deeper, then the domains themselves.
    fn prune(&mut self, domains: &[usize], threshold: i64) {
        for &id in domains {
            if self.wanted.level < self.wanted.slice_level {
                for child in self.tree.domains[id].children.clone() {
                    self.leave_out(child, threshold);
                }
                self.capacities[id] = sum_children(self.tree, self.wanted, &self.capacities, id);
            }
            self.leave_out(id, threshold);
        }
    }

    fn leave_out(&mut self, id: usize, threshold: i64) {
        let capacity = &mut self.capacities[id];
        if capacity.slices < threshold {
            *capacity = Capacity { score: capacity.score, ..Capacity::default() };
        } else if capacity.slices_with_leader < threshold {
            (capacity.leader, capacity.slices_with_leader, capacity.pods_with_leader) =
                (0, capacity.slices, capacity.pods);
        }
    }

    /// The smallest set of domains that can take all pods. Among sets of equal size, the one with
    /// the least spare capacity. With `by_entropy`, domains with evenly spread capacity come first
    /// among otherwise equal sets.
    fn smallest_set(&self, domains: &[usize], by_entropy: bool) -> Option<Vec<usize>> {
        let size = self.greedy(domains)?.used;
        let needed = self.wanted.slices();
        let mut order: Vec<usize> = domains.iter().copied().filter(|id| self.capacities[*id].slices > 0).collect();
        if by_entropy {
            order.sort_by(|a, b| self.entropy(*b).total_cmp(&self.entropy(*a)).then(a.cmp(b)));
        }
        // Indexed by number of domains. The key is whether the leader is placed, and the number of
        // slices held. The value is the first set of domains found for this key.
        type Found = BTreeMap<(bool, i64), Rc<Chain>>;
        let mut found: Vec<Found> = vec![Found::new(); size + 1];
        found[0].insert((false, 0), Rc::new(Chain { domain: usize::MAX, before: None }));
        for &id in &order {
            let capacity = self.capacities[id];
            for count in (0..size).rev() {
                let (from, to) = found.split_at_mut(count + 1);
                for (&(leader, held), chain) in &from[count] {
                    let mut add = |leader: bool, held: i64| {
                        let chain = || Rc::new(Chain { domain: id, before: Some(chain.clone()) });
                        to[0].entry((leader, held)).or_insert_with(chain);
                    };
                    add(leader, held + capacity.slices);
                    if self.has_leader() && !leader && capacity.leader > 0 {
                        add(true, held + capacity.slices_with_leader);
                    }
                }
            }
        }
        let best = found[size].range((self.has_leader(), needed)..).next()?;
        let mut chosen = Vec::new();
        let mut chain = Some(best.1);
        while let Some(link) = chain {
            if link.domain != usize::MAX {
                chosen.push(link.domain);
            }
            chain = link.before.as_ref();
        }
        chosen.reverse();
        Some(chosen)
    }

    /// Entropy of a domain's capacity over its children, in bits: higher if spread more evenly.
    fn entropy(&self, id: usize) -> f64 {
        let slices = self.tree.domains[id].children.clone().map(|child| self.capacities[child].slices);
        #[expect(clippy::cast_precision_loss, reason = "slices in one domain are far below 2^52")]
        let parts: Vec<f64> = slices.filter(|slices| *slices > 0).map(|slices| slices as f64).collect();
        let total: f64 = parts.iter().sum();
        parts.iter().map(|part| part / total).map(|share| -share * share.log2()).sum()
    }

    /// Gives every domain `threshold` slices, and the remaining slices to the domains in order.
    /// `None` if slices or the leader are left over.
    fn distribute(&self, domains: &[usize], threshold: i64) -> Option<Vec<Share>> {
        let count = i64::try_from(domains.len()).ok()?;
        let mut extra = self.wanted.slices() - count * threshold;
        if extra < 0 {
            return None;
        }
        let mut leader = self.has_leader();
        let mut shares = Vec::new();
        for domain in self.search().sorted_with_leader(domains.to_vec()) {
            let capacity = &self.capacities[domain];
            let takes_leader = leader && capacity.leader > 0;
            leader &= !takes_leader;
            let most = if takes_leader { capacity.slices_with_leader } else { capacity.slices };
            let more = extra.min(most - threshold).max(0);
            extra -= more;
            shares.push(Share { domain, pods: (threshold + more) * self.wanted.slice_size, leader: takes_leader });
        }
        (extra == 0 && !leader).then_some(shares)
    }
}

/// A set of domains as a linked list that begins with the last one. `usize::MAX` marks its end.
struct Chain {
    domain: usize,
    before: Option<Rc<Chain>>,
}
