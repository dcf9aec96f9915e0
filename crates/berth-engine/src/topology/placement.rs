//! Finds domains for pods: first the level and its domains (§14.6), then the leaves below them
//! (§14.7).

use super::Topologies;
use super::amounts::Demand;
use super::count::{Capacity, Count, Overlay};
use super::tree::FlavorTree;
use crate::decision::{Finding, LayerShortage, LevelCapacity, TopologyProblem, TopologyShortage};
use crate::ids::{FlavorId, Name};
use crate::model::{Labels, NodeAffinity, Toleration, TopologyAssignment, TopologyDomain};

/// Pods of one kind.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Pods {
    pub demand: Demand,
    pub node_selector: Labels,
    pub affinity: NodeAffinity,
    /// Tolerations of the pods and of the flavor they run on.
    pub tolerations: Vec<Toleration>,
}

/// A request to one flavor's topology: workers, perhaps with a leader.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub flavor: FlavorId,
    pub workers: Pods,
    pub count: i64,
    pub leader: Option<Pods>,
    /// Level at which all pods should share one domain.
    pub level: usize,
    pub required: bool,
    /// True if no level is requested: the smallest gaps are filled first.
    pub unconstrained: bool,
    pub slice_level: usize,
    pub slice_size: i64,
    /// Inner layers of a multi-layer request: level and size.
    pub layers: Vec<(usize, i64)>,
    /// Domain that all pods must stay in, if any.
    pub within: Option<usize>,
    /// Hosts that must not be used.
    pub excluded_hosts: Vec<Name>,
    /// Take the smallest domains first when unconstrained (`TASProfileMixed`).
    pub mixed_profile: bool,
    /// Spread preferred requests evenly (`TASBalancedPlacement`).
    pub balanced: bool,
    /// Count preferred node affinities (`TASRespectNodeAffinityPreferred`).
    pub respect_preferred: bool,
}

impl Wanted {
    /// True if domains hold as many pods of this request as of the other: both have the same pods,
    /// the same nodes and the same slice sizes.
    pub fn counts_alike(&self, other: &Wanted) -> bool {
        self.flavor == other.flavor
            && self.workers == other.workers
            && self.leader == other.leader
            && (self.slice_level, self.slice_size) == (other.slice_level, other.slice_size)
            && self.layers == other.layers
            && self.within == other.within
            && self.excluded_hosts == other.excluded_hosts
            && self.respect_preferred == other.respect_preferred
    }

    /// Number of pods per inner slice at a level below the slice level.
    pub fn layer_size(&self, level: usize) -> Option<i64> {
        self.layers.iter().find(|(at, _)| *at == level).map(|(_, size)| *size)
    }

    /// The unit in which pods are distributed among domains of a level at or below the slice level:
    /// the size of the outermost of the `layers` whose level is at or below `level`, or 1 if there
    /// is none.
    fn unit_at(&self, level: usize) -> i64 {
        self.layers.iter().filter(|(at, _)| *at >= level).map(|(_, size)| *size).max().unwrap_or(1)
    }

    /// Number of whole slices requested.
    pub fn slices(&self) -> i64 {
        self.count / self.slice_size
    }

    fn least_free_capacity(&self) -> bool {
        self.unconstrained && self.mixed_profile
    }
}

/// Placement of the pods: leaves in the order of their values, with the number of pods in each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Placement {
    pub workers: Vec<(usize, i64)>,
    pub leader: Option<usize>,
}

/// A domain, the pods that it gets, and whether the leader is among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub domain: usize,
    pub pods: i64,
    pub leader: bool,
}

/// Finds a placement in counted domains. If there is none, returns how many slices would fit.
pub(crate) fn find(tree: &FlavorTree, wanted: &Wanted, capacities: &[Capacity]) -> Result<Placement, Misfit> {
    if wanted.balanced
        && !wanted.required
        && !wanted.unconstrained
        && let Some(balanced) = super::balanced::choose(tree, wanted, capacities)
    {
        let search = Search { tree, capacities: &balanced.capacities, wanted };
        return Ok(search.go_down(balanced.shares, true));
    }
    let search = Search { tree, capacities, wanted };
    Ok(search.go_down(search.choose(wanted.level)?, false))
}

/// True if there is a placement; like [`find`], without computing it.
pub(crate) fn exists(tree: &FlavorTree, wanted: &Wanted, capacities: &[Capacity]) -> bool {
    Search { tree, capacities, wanted }.choose(wanted.level).is_ok()
}

/// Why there is no placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Misfit {
    /// No domain of the level exists.
    NoDomains(Name),
    /// Only this number of slices fits.
    Fits(i64),
}

impl Misfit {
    /// The shortage, level by level (§14.6).
    pub fn finding(
        &self,
        topologies: &Topologies,
        tree: &FlavorTree,
        wanted: &Wanted,
        count: &Count,
        overlay: &Overlay,
    ) -> Finding {
        let fits = match self {
            Misfit::NoDomains(level) => {
                return Finding::TopologyRequest(TopologyProblem::NoDomains { level: level.clone() });
            }
            Misfit::Fits(fits) => *fits,
        };
        let layers =
            if wanted.layers.is_empty() { Vec::new() } else { layer_shortages(tree, wanted, &count.capacities) };
        let levels = (0..=wanted.level).rev().map(|level| {
            let held = tree.level_domains(level).map(|id| match level {
                _ if level > wanted.slice_level => count.capacities[id].pods / wanted.slice_size,
                _ => count.capacities[id].slices,
            });
            let capacity = LevelCapacity { level: tree.levels[level].clone(), domains: 0, best: 0, total: 0 };
            held.fold(capacity, |capacity, held| LevelCapacity {
                domains: capacity.domains + 1,
                best: capacity.best.max(held),
                total: capacity.total.saturating_add(held),
                ..capacity
            })
        });
        Finding::Topology(TopologyShortage {
            topology: tree.topology.clone(),
            slice_size: wanted.slice_size,
            needed: wanted.slices(),
            fits: fits.max(0),
            layers,
            levels: levels.collect(),
            nodes: tree.leaves().len(),
            excluded: count.exclusions(topologies, tree, wanted, overlay),
        })
    }
}

/// Number of slices of each layer that the best domain could hold. The best domain is the one that
/// takes the most slices among the domains of the level at which the search ended; the first one on
/// ties.
fn layer_shortages(tree: &FlavorTree, wanted: &Wanted, capacities: &[Capacity]) -> Vec<LayerShortage> {
    let ended_at = if wanted.required || wanted.unconstrained { wanted.level } else { 0 };
    let Some(best) = tree.level_domains(ended_at).min_by_key(|id| -capacities[*id].slices) else { return Vec::new() };
    let mut within = best..best + 1;
    let mut at = ended_at;
    let layers = std::iter::once((wanted.slice_level, wanted.slice_size)).chain(wanted.layers.iter().copied());
    let shortages = layers.map(|(level, size)| {
        while at < level {
            within = tree.domains[within.start].children.start..tree.domains[within.end - 1].children.end;
            at += 1;
        }
        let fits = within.clone().map(|id| capacities[id].pods / size).sum();
        LayerShortage { level: tree.levels[level].clone(), fits, needed: wanted.count / size }
    });
    shortages.collect()
}

/// The search for domains in a counted tree.
pub(crate) struct Search<'a> {
    pub tree: &'a FlavorTree,
    pub capacities: &'a [Capacity],
    pub wanted: &'a Wanted,
}

/// Unit in which a domain's capacity is counted.
#[derive(Clone, Copy)]
enum Unit {
    Slices,
    /// Pods, in multiples of this number.
    Pods(i64),
}

impl Search<'_> {
    fn has_leader(&self) -> bool {
        self.wanted.leader.is_some()
    }

    /// Domains in the order in which they are considered while the leader was not placed yet.
    pub fn sorted_with_leader(&self, mut domains: Vec<usize>) -> Vec<usize> {
        let least_free = self.wanted.least_free_capacity();
        domains.sort_unstable_by_key(|id| (self.capacities[*id].rank_with_leader(least_free), *id));
        domains
    }

    /// Domains in the order in which they are considered.
    pub fn sorted(&self, mut domains: Vec<usize>) -> Vec<usize> {
        let least_free = self.wanted.least_free_capacity();
        domains.sort_unstable_by_key(|id| (self.capacities[*id].rank(least_free), *id));
        domains
    }

    fn capacity(&self, id: usize, unit: Unit, with_leader: bool) -> i64 {
        let capacity = &self.capacities[id];
        match (unit, with_leader) {
            (Unit::Slices, false) => capacity.slices,
            (Unit::Slices, true) => capacity.slices_with_leader,
            (Unit::Pods(size), false) => capacity.pods / size,
            (Unit::Pods(size), true) => capacity.pods_with_leader / size,
        }
    }

    /// Picks the domains of a level, or of a coarser one (§14.6).
    fn choose(&self, level: usize) -> Result<Vec<Share>, Misfit> {
        let needed = self.wanted.slices();
        let domains: Vec<usize> = self.tree.level_domains(level).collect();
        if domains.is_empty() {
            return Err(Misfit::NoDomains(self.tree.levels[level].clone()));
        }
        let sorted = self.sorted_with_leader(domains);
        let leader = i64::from(self.has_leader());
        let holds_all = |id: &usize| {
            self.capacities[*id].leader >= leader && self.capacity(*id, Unit::Slices, self.has_leader()) >= needed
        };
        let one = if self.wanted.least_free_capacity() {
            sorted.iter().copied().find(holds_all)
        } else {
            // The tightest domain of the best affinity tier. Only a required level considers lower
            // tiers instead of a coarser level.
            let tiers = if self.wanted.required { sorted.len() } else { 1 };
            sorted.iter().take(tiers).find(|id| holds_all(id)).and_then(|id| {
                self.tightest(&sorted, needed, Unit::Slices, self.has_leader(), self.capacities[*id].score)
            })
        };
        if let Some(domain) = one {
            return Ok(vec![Share { domain, pods: self.wanted.count, leader: self.has_leader() }]);
        }
        if self.wanted.required {
            return Err(Misfit::Fits(sorted.first().map_or(0, |id| self.capacities[*id].slices)));
        }
        if level > 0 && !self.wanted.unconstrained {
            return self.choose(level - 1);
        }
        self.choose_several(sorted, needed)
    }

    /// Takes several domains of the top level, or of the lowest level if unconstrained.
    fn choose_several(&self, mut rest: Vec<usize>, needed: i64) -> Result<Vec<Share>, Misfit> {
        let size = self.wanted.slice_size;
        let mut shares = Vec::new();
        let mut remaining = needed;
        if self.has_leader() {
            let total: i64 = rest.iter().map(|id| self.capacities[*id].slices).sum();
            let chosen = self.leader_domain(&rest, needed, Unit::Slices);
            let Some(chosen) = chosen else { return Err(Misfit::Fits(total.min(needed))) };
            rest.retain(|id| *id != chosen);
            let taken = self.capacities[chosen].slices_with_leader.min(remaining);
            shares.push(Share { domain: chosen, pods: taken * size, leader: true });
            remaining -= taken;
        }
        let rest = self.sorted(rest);
        let mut at = 0;
        while remaining > 0 && at < rest.len() {
            let mut domain = rest[at];
            if !self.wanted.least_free_capacity() && self.capacities[domain].slices >= remaining {
                let score = self.capacities[domain].score;
                domain = self.tightest(&rest[at..], remaining, Unit::Slices, false, score).unwrap_or(domain);
            }
            let taken = self.capacities[domain].slices.min(remaining);
            if taken > 0 {
                shares.push(Share { domain, pods: taken * size, leader: false });
            }
            remaining -= taken;
            at += 1;
        }
        if remaining > 0 {
            return Err(Misfit::Fits(needed - remaining));
        }
        Ok(shares)
    }

    /// The domain for the leader if no single domain holds everything. It is the first one in which
    /// the leader takes the place of no more workers than there is spare capacity for. If there is
    /// none, it is the first one that can take the leader.
    fn leader_domain(&self, sorted: &[usize], needed: i64, unit: Unit) -> Option<usize> {
        let total: i64 = sorted.iter().map(|id| self.capacity(*id, unit, false)).sum();
        let capable = |id: &&usize| self.capacities[**id].leader > 0;
        let cheap = |id: &&usize| self.capacity(**id, unit, false) - self.capacity(**id, unit, true) <= total - needed;
        sorted.iter().filter(capable).find(cheap).or_else(|| sorted.iter().find(capable)).copied()
    }

    /// Among domains of one affinity score, the domain with the smallest sufficient capacity; the
    /// first one on ties.
    fn tightest(&self, domains: &[usize], needed: i64, unit: Unit, with_leader: bool, score: i64) -> Option<usize> {
        let mut best: Option<(i64, usize)> = None;
        for &id in domains {
            let capacity = self.capacity(id, unit, with_leader);
            if capacity >= needed
                && self.capacities[id].score == score
                && (!with_leader || self.capacities[id].leader > 0)
                && best.is_none_or(|(least, _)| capacity < least)
            {
                best = Some((capacity, id));
            }
        }
        best.map(|(_, id)| id)
    }

    /// The [`tightest`](Self::tightest) domain for the whole amount, if the first domain in order
    /// could take the whole amount.
    fn takes_all(&self, domains: &[usize], amount: i64, unit: Unit) -> Option<usize> {
        let order = |id: &usize| (self.capacities[*id].rank(false), *id);
        let first = domains.iter().copied().min_by_key(order)?;
        let takes_all = |id: &usize| {
            self.capacity(*id, unit, false) >= amount && self.capacities[*id].score == self.capacities[first].score
        };
        if !takes_all(&first) {
            return None;
        }
        let capable = domains.iter().copied().filter(takes_all);
        capable.min_by_key(|id| (self.capacity(*id, unit, false), order(id)))
    }

    /// Goes down from the chosen domains to the leaves (§14.7).
    fn go_down(&self, mut shares: Vec<Share>, balanced: bool) -> Placement {
        let first = shares.first().map_or(0, |share| self.tree.domains[share.domain].level);
        for level in first..self.tree.levels.len().saturating_sub(1) {
            shares = self.descend(level, &shares, balanced);
        }
        let mut workers: Vec<(usize, i64)> =
            shares.iter().filter(|share| share.pods > 0).map(|share| (share.domain, share.pods)).collect();
        workers.sort_unstable();
        Placement { workers, leader: shares.iter().find(|share| share.leader).map(|share| share.domain) }
    }

    /// Goes one level down. A balanced placement keeps each domain's share. Otherwise domains above
    /// the slice level are chosen again among all children.
    fn descend(&self, level: usize, shares: &[Share], balanced: bool) -> Vec<Share> {
        let children = |share: &Share| self.tree.domains[share.domain].children.clone();
        if level < self.wanted.slice_level && !balanced {
            let domains = shares.iter().flat_map(children).collect();
            let pods: i64 = shares.iter().map(|share| share.pods).sum();
            let leader = shares.iter().any(|share| share.leader);
            return self.take(domains, pods / self.wanted.slice_size, leader, Unit::Slices, self.wanted.slice_size);
        }
        let (unit, size) = if level < self.wanted.slice_level {
            (Unit::Slices, self.wanted.slice_size)
        } else {
            let size = self.wanted.unit_at(level + 1);
            (Unit::Pods(size), size)
        };
        let below = shares
            .iter()
            .flat_map(|share| self.take(children(share).collect(), share.pods / size, share.leader, unit, size));
        below.collect()
    }

    /// Distributes an amount over as few domains as possible.
    fn take(&self, domains: Vec<usize>, amount: i64, leader: bool, unit: Unit, size: i64) -> Vec<Share> {
        let least_free = self.wanted.least_free_capacity();
        // Usually one domain takes everything. Then the others need not be sorted.
        if !leader
            && !least_free
            && amount > 0
            && let Some(domain) = self.takes_all(&domains, amount, unit)
        {
            return vec![Share { domain, pods: amount * size, leader: false }];
        }
        let mut shares = Vec::new();
        let mut remaining = amount;
        // The order does not depend on `unit`: domains are ordered by the number of outer slices,
        // and then of pods, that they can take.
        let mut sorted = self.sorted(domains);
        if leader {
            let Some(&first) = sorted.first() else { return shares };
            let whole = |id: &&usize| self.capacities[**id].leader > 0 && self.capacity(**id, unit, true) >= remaining;
            let chosen = if least_free {
                sorted.iter().find(whole).copied()
            } else {
                self.tightest(&sorted, remaining, unit, true, self.capacities[first].score)
            };
            let chosen = chosen.or_else(|| self.leader_domain(&sorted, remaining, unit)).unwrap_or(first);
            let taken = self.capacity(chosen, unit, true).min(remaining);
            shares.push(Share { domain: chosen, pods: taken * size, leader: true });
            remaining -= taken;
            sorted.retain(|id| *id != chosen);
        }
        for (at, &domain) in sorted.iter().enumerate() {
            if remaining <= 0 {
                break;
            }
            let mut domain = domain;
            if !least_free && self.capacity(domain, unit, false) >= remaining {
                let score = self.capacities[domain].score;
                domain = self.tightest(&sorted[at..], remaining, unit, false, score).unwrap_or(domain);
            }
            let taken = self.capacity(domain, unit, false).min(remaining);
            if taken > 0 {
                shares.push(Share { domain, pods: taken * size, leader: false });
            }
            remaining -= taken;
        }
        shares
    }
}

impl Placement {
    /// The pods as an assignment.
    pub fn workers(&self, tree: &FlavorTree) -> TopologyAssignment {
        assignment(tree, &self.workers)
    }

    /// The leader as an assignment, if there is one.
    pub fn leader(&self, tree: &FlavorTree) -> Option<TopologyAssignment> {
        self.leader.map(|leaf| assignment(tree, &[(leaf, 1)]))
    }
}

fn assignment(tree: &FlavorTree, pods: &[(usize, i64)]) -> TopologyAssignment {
    let domains = pods.iter().map(|&(leaf, count)| TopologyDomain {
        values: tree.leaf_values(&tree.domains[leaf].values).to_vec(),
        count: i32::try_from(count).unwrap_or(i32::MAX),
    });
    TopologyAssignment { levels: tree.assigned_levels(), domains: domains.collect() }
}
