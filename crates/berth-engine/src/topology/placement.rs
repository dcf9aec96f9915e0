//! Finding domains for pods: which level and domains (§14.6), then down to the leaves (§14.7).

use super::Topologies;
use super::count::{Exclusions, Room, rooms};
use super::tree::FlavorTree;
use crate::ids::{FlavorId, Name};
use crate::model::{Labels, NodeAffinity, ResourceList, Toleration, TopologyAssignment, TopologyDomain};

/// Pods of one kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pods {
    pub per_pod: ResourceList,
    pub node_selector: Labels,
    pub affinity: NodeAffinity,
    pub tolerations: Vec<Toleration>,
}

/// What is wanted of one flavor's topology: workers, perhaps with a leader.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub flavor: FlavorId,
    pub workers: Pods,
    pub count: i64,
    pub leader: Option<Pods>,
    /// Level all pods should share a domain of.
    pub level: usize,
    pub required: bool,
    /// No level is asked for: fill small gaps first.
    pub unconstrained: bool,
    pub slice_level: usize,
    pub slice_size: i64,
    /// Inner layers of a multi-layer request: level and size.
    pub layers: Vec<(usize, i64)>,
    /// Only domains within this one.
    pub within: Option<usize>,
    /// Hosts that are out of the question.
    pub excluded_hosts: Vec<Name>,
    /// Usage to count besides what is known: earlier placements of the same workload.
    pub assumed: Vec<(Vec<Name>, ResourceList)>,
    /// As if no workload were placed.
    pub empty: bool,
    /// Take the smallest domains first when unconstrained (`TASProfileMixed`).
    pub mixed_profile: bool,
    /// Count preferred node affinities (`TASRespectNodeAffinityPreferred`).
    pub respect_preferred: bool,
}

impl Wanted {
    /// The size pods come in at a level below the slice level.
    pub fn layer_size(&self, level: usize) -> Option<i64> {
        self.layers.iter().find(|(at, _)| *at == level).map(|(_, size)| *size)
    }

    /// The unit pods are handed out in among domains of a level at or below the slice level: the size of the innermost
    /// layer whose level is at or below it.
    fn unit_at(&self, level: usize) -> i64 {
        self.layers.iter().filter(|(at, _)| *at >= level).map(|(_, size)| *size).max().unwrap_or(1)
    }

    fn least_free_capacity(&self) -> bool {
        self.unconstrained && self.mixed_profile
    }
}

/// Where the pods go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Placement {
    pub workers: TopologyAssignment,
    pub leader: Option<TopologyAssignment>,
}

/// A domain, the pods it gets, and whether the leader is among what it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    domain: usize,
    pods: i64,
    leader: bool,
}

/// Finds a placement, or says why there is none.
pub(crate) fn find(topologies: &Topologies, tree: &FlavorTree, wanted: &Wanted) -> Result<Placement, String> {
    let mut exclusions = Exclusions::default();
    let rooms = rooms(topologies, tree, wanted, &mut exclusions);
    let search = Search { tree, rooms: &rooms, wanted, exclusions: &exclusions };
    let mut shares = search.choose(wanted.level)?;
    for level in search.level_of(&shares)..tree.levels.len() {
        if level + 1 >= tree.levels.len() {
            break;
        }
        shares = search.descend(level, &shares);
    }
    Ok(search.placement(&shares))
}

struct Search<'a> {
    tree: &'a FlavorTree,
    rooms: &'a [Room],
    wanted: &'a Wanted,
    exclusions: &'a Exclusions,
}

/// What a domain's capacity is counted in.
#[derive(Clone, Copy)]
enum Unit {
    Slices,
    /// Pods, in multiples of this.
    Pods(i64),
}

impl Search<'_> {
    fn slices(&self) -> i64 {
        self.wanted.count / self.wanted.slice_size
    }

    fn has_leader(&self) -> bool {
        self.wanted.leader.is_some()
    }

    fn level_of(&self, shares: &[Share]) -> usize {
        shares.first().map_or(0, |share| self.tree.domains[share.domain].level)
    }

    /// Domains in the order they are considered when the leader has still to be placed.
    fn sorted_with_leader(&self, mut domains: Vec<usize>) -> Vec<usize> {
        let least_free = self.wanted.least_free_capacity();
        domains.sort_by(|a, b| {
            let rank = |id: usize| self.rooms[id].rank_with_leader(least_free);
            rank(*a).cmp(&rank(*b)).then_with(|| self.tree.domains[*a].values.cmp(&self.tree.domains[*b].values))
        });
        domains
    }

    /// Domains in the order they are considered.
    fn sorted(&self, mut domains: Vec<usize>) -> Vec<usize> {
        let least_free = self.wanted.least_free_capacity();
        domains.sort_by(|a, b| {
            let rank = |id: usize| self.rooms[id].rank(least_free);
            rank(*a).cmp(&rank(*b)).then_with(|| self.tree.domains[*a].values.cmp(&self.tree.domains[*b].values))
        });
        domains
    }

    fn capacity(&self, id: usize, unit: Unit, with_leader: bool) -> i64 {
        let room = &self.rooms[id];
        match (unit, with_leader) {
            (Unit::Slices, false) => room.slices,
            (Unit::Slices, true) => room.slices_with_leader,
            (Unit::Pods(size), false) => room.pods / size,
            (Unit::Pods(size), true) => room.pods_with_leader / size,
        }
    }

    /// Picks the domains of a level, or of a coarser one (§14.6).
    fn choose(&self, level: usize) -> Result<Vec<Share>, String> {
        let needed = self.slices();
        let domains = self.tree.by_level.get(level).cloned().unwrap_or_default();
        if domains.is_empty() {
            return Err(format!("no topology domains at level: {}", self.tree.levels[level]));
        }
        let sorted = self.sorted_with_leader(domains);
        let leader = i64::from(self.has_leader());
        let holds_all = |id: &usize| {
            self.rooms[*id].leader >= leader && self.capacity(*id, Unit::Slices, self.has_leader()) >= needed
        };
        let one =
            if self.wanted.least_free_capacity() {
                sorted.iter().copied().find(holds_all)
            } else {
                // The tightest of the best affinity tier; only a required level looks at lesser tiers rather than going up.
                let tiers = if self.wanted.required { sorted.len() } else { 1 };
                sorted.iter().take(tiers).find(|id| holds_all(id)).and_then(|id| {
                    self.tightest(&sorted, needed, Unit::Slices, self.has_leader(), self.rooms[*id].score)
                })
            };
        if let Some(domain) = one {
            return Ok(vec![Share { domain, pods: self.wanted.count, leader: self.has_leader() }]);
        }
        if self.wanted.required {
            let most = sorted.iter().map(|id| self.rooms[*id].slices).max().unwrap_or(0);
            return Err(self.failure(most));
        }
        if level > 0 && !self.wanted.unconstrained {
            return self.choose(level - 1);
        }
        self.choose_several(sorted, needed)
    }

    /// Takes several domains of the top level, or of the lowest when unconstrained.
    fn choose_several(&self, mut rest: Vec<usize>, needed: i64) -> Result<Vec<Share>, String> {
        let size = self.wanted.slice_size;
        let mut shares = Vec::new();
        let mut remaining = needed;
        if self.has_leader() {
            let total: i64 = rest.iter().map(|id| self.rooms[*id].slices).sum();
            let chosen = self.leader_domain(&rest, needed, Unit::Slices);
            let Some(chosen) = chosen else { return Err(self.failure(total.min(needed))) };
            rest.retain(|id| *id != chosen);
            let taken = self.rooms[chosen].slices_with_leader.min(remaining);
            shares.push(Share { domain: chosen, pods: taken * size, leader: true });
            remaining -= taken;
        }
        let rest = self.sorted(rest);
        let mut at = 0;
        while remaining > 0 && at < rest.len() {
            let mut domain = rest[at];
            if !self.wanted.least_free_capacity() && self.rooms[domain].slices >= remaining {
                let score = self.rooms[domain].score;
                domain = self.tightest(&rest[at..], remaining, Unit::Slices, false, score).unwrap_or(domain);
            }
            let taken = self.rooms[domain].slices.min(remaining);
            if taken > 0 {
                shares.push(Share { domain, pods: taken * size, leader: false });
            }
            remaining -= taken;
            at += 1;
        }
        if remaining > 0 {
            return Err(self.failure(needed - remaining));
        }
        Ok(shares)
    }

    /// The domain for the leader when no single one holds everything: the first that can take it without costing more
    /// workers than there is slack for, else the first that can take it.
    fn leader_domain(&self, sorted: &[usize], needed: i64, unit: Unit) -> Option<usize> {
        let total: i64 = sorted.iter().map(|id| self.capacity(*id, unit, false)).sum();
        let capable = |id: &&usize| self.rooms[**id].leader > 0;
        let cheap = |id: &&usize| self.capacity(**id, unit, false) - self.capacity(**id, unit, true) <= total - needed;
        sorted.iter().filter(capable).find(cheap).or_else(|| sorted.iter().find(capable)).copied()
    }

    /// The domain with the smallest sufficient capacity, the first on ties, among those of one affinity score.
    fn tightest(&self, domains: &[usize], needed: i64, unit: Unit, with_leader: bool, score: i64) -> Option<usize> {
        let mut best: Option<(i64, usize)> = None;
        for &id in domains {
            let capacity = self.capacity(id, unit, with_leader);
            if capacity >= needed
                && self.rooms[id].score == score
                && (!with_leader || self.rooms[id].leader > 0)
                && best.is_none_or(|(least, _)| capacity < least)
            {
                best = Some((capacity, id));
            }
        }
        best.map(|(_, id)| id)
    }

    /// Goes one level down (§14.7).
    fn descend(&self, level: usize, shares: &[Share]) -> Vec<Share> {
        if level < self.wanted.slice_level {
            let children = shares.iter().flat_map(|share| self.tree.domains[share.domain].children.clone()).collect();
            let pods: i64 = shares.iter().map(|share| share.pods).sum();
            let leader = shares.iter().any(|share| share.leader);
            return self.take(children, pods / self.wanted.slice_size, leader, Unit::Slices, self.wanted.slice_size);
        }
        let size = self.wanted.unit_at(level + 1);
        let below = shares.iter().flat_map(|share| {
            let children = self.tree.domains[share.domain].children.clone();
            self.take(children, share.pods / size, share.leader, Unit::Pods(size), size)
        });
        below.collect()
    }

    /// Spreads an amount over as few domains as possible.
    fn take(&self, domains: Vec<usize>, amount: i64, leader: bool, unit: Unit, size: i64) -> Vec<Share> {
        let least_free = self.wanted.least_free_capacity();
        let mut shares = Vec::new();
        let mut remaining = amount;
        let mut rest = domains;
        if leader {
            let sorted = self.sorted_with_leader(rest.clone());
            let Some(&first) = sorted.first() else { return shares };
            let whole = |id: &&usize| self.rooms[**id].leader > 0 && self.capacity(**id, unit, true) >= remaining;
            let chosen = if least_free {
                sorted.iter().find(whole).copied()
            } else {
                self.tightest(&sorted, remaining, unit, true, self.rooms[first].score)
            };
            let chosen = chosen.or_else(|| self.leader_domain(&sorted, remaining, unit)).unwrap_or(first);
            let taken = self.capacity(chosen, unit, true).min(remaining);
            shares.push(Share { domain: chosen, pods: taken * size, leader: true });
            remaining -= taken;
            rest.retain(|id| *id != chosen);
        }
        let sorted = self.sorted(rest);
        let mut used: Vec<usize> = Vec::new();
        for (at, &domain) in sorted.iter().enumerate() {
            if remaining <= 0 {
                break;
            }
            if used.contains(&domain) {
                continue;
            }
            let mut domain = domain;
            if !least_free && self.capacity(domain, unit, false) >= remaining {
                let score = self.rooms[domain].score;
                domain = self.tightest(&sorted[at..], remaining, unit, false, score).unwrap_or(domain);
            }
            let taken = self.capacity(domain, unit, false).min(remaining);
            if taken > 0 {
                shares.push(Share { domain, pods: taken * size, leader: false });
                used.push(domain);
            }
            remaining -= taken;
        }
        shares
    }

    fn placement(&self, shares: &[Share]) -> Placement {
        let levels = self.tree.assigned_levels();
        let assignment = |mut list: Vec<(usize, i64)>| {
            // In the order of all levels' values, also where only the host is written.
            list.sort_by(|a, b| self.tree.domains[a.0].values.cmp(&self.tree.domains[b.0].values));
            let domains = list.into_iter().filter(|(_, count)| *count > 0).map(|(id, count)| TopologyDomain {
                values: self.tree.leaf_values(&self.tree.domains[id].values).to_vec(),
                count: i32::try_from(count).unwrap_or(i32::MAX),
            });
            TopologyAssignment { levels: levels.clone(), domains: domains.collect() }
        };
        let leaders: Vec<(usize, i64)> = shares.iter().filter(|share| share.leader).map(|it| (it.domain, 1)).collect();
        Placement {
            workers: assignment(shares.iter().map(|share| (share.domain, share.pods)).collect()),
            leader: self.has_leader().then(|| assignment(leaders)),
        }
    }

    /// Why it does not fit (§14.6).
    fn failure(&self, fits: i64) -> String {
        let topology = self.tree.topology.as_deref().unwrap_or_default();
        let needed = self.slices();
        let excluded = self.exclusions.text();
        if !self.wanted.layers.is_empty() {
            let mut parts = Vec::new();
            let layers =
                [(self.wanted.slice_level, self.wanted.slice_size)].into_iter().chain(self.wanted.layers.clone());
            for (level, size) in layers {
                let fit: i64 = self.tree.by_level[level].iter().map(|id| self.rooms[*id].pods / size).sum();
                let need = self.wanted.count / size;
                parts.push(format!("{}/{need} slice(s) fit on level {}", fit.min(need), self.tree.levels[level]));
            }
            return format!("topology {topology:?} doesn't allow to fit; {}{excluded}", parts.join("; "));
        }
        let what = if self.wanted.slice_size > 1 { "slice(s)" } else { "pod(s)" };
        if fits <= 0 {
            format!("topology {topology:?} doesn't allow to fit any of {needed} {what}{excluded}")
        } else {
            format!("topology {topology:?} allows to fit only {} out of {needed} {what}{excluded}", fits.min(needed))
        }
    }
}
