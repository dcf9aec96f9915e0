//! Topology placement as the semantics state it (§14.5 to §14.9). Every count is computed from the
//! leaves each time.
//!
//! Left out: affinity scores, balanced placement, replacement of failed nodes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Amounts that a node has left or a pod uses: pods, cores, GPUs.
pub type Triple = [i64; 3];

/// A node: one value per level down to its own name, and its free amounts.
#[derive(Debug, Clone)]
pub struct Leaf {
    pub values: Vec<String>,
    pub free: Triple,
}

/// The gang to place.
#[derive(Debug, Clone)]
pub struct Gang {
    pub count: i64,
    pub per_pod: Triple,
    /// Demand of the leader, if there is one.
    pub leader: Option<Triple>,
    /// Whether the level is required, and the level; `None` if unconstrained.
    pub mode: Option<(bool, usize)>,
    /// Levels and sizes of slices, coarse to fine.
    pub slices: Vec<(usize, i64)>,
}

/// Pods per leaf, and the leader's leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    pub pods: BTreeMap<String, i64>,
    pub leader: Option<String>,
}

/// Values down to some level.
type Domain = Vec<String>;

/// Capacity of a domain.
#[derive(Clone, Copy, Default)]
struct Capacity {
    pods: i64,
    slices: i64,
    pods_beside_leader: i64,
    slices_beside_leader: i64,
    takes_leader: bool,
}

/// A domain, the pods that it gets, and whether it gets the leader.
struct Share {
    domain: Domain,
    pods: i64,
    leader: bool,
}

struct Book<'a> {
    leaves: &'a [Leaf],
    gang: &'a Gang,
    lowest: usize,
    slice_level: usize,
    slice_size: i64,
}

/// Placement of a gang; `None` if it does not fit.
pub fn place(leaves: &[Leaf], levels: usize, gang: &Gang) -> Option<Placed> {
    let lowest = levels - 1;
    let (slice_level, slice_size) = gang.slices.first().copied().unwrap_or((lowest, 1));
    let book = Book { leaves, gang, lowest, slice_level, slice_size };
    let level = match gang.mode {
        Some((_, level)) => level,
        None if gang.slices.is_empty() => lowest,
        None => 0,
    };
    let mut shares = book.choose(level)?;
    for level in shares.first().map_or(lowest, |share| share.domain.len() - 1)..lowest {
        shares = book.descend(level, &shares);
    }
    let host = |domain: &Domain| domain[lowest].clone();
    Some(Placed {
        pods: shares.iter().filter(|it| it.pods > 0).map(|it| (host(&it.domain), it.pods)).collect(),
        leader: shares.iter().find(|it| it.leader).map(|it| host(&it.domain)),
    })
}

fn times_in(per_pod: Triple, free: Triple) -> i64 {
    let limits = per_pod.iter().zip(free).filter(|(asked, _)| **asked > 0);
    limits.map(|(asked, free)| (free / asked).max(0)).min().unwrap_or(0)
}

impl Book<'_> {
    fn domains(&self, level: usize) -> BTreeSet<Domain> {
        self.leaves.iter().map(|leaf| leaf.values[..=level].to_vec()).collect()
    }

    fn children(&self, of: &Domain) -> Vec<Domain> {
        self.domains(of.len()).into_iter().filter(|domain| domain.starts_with(of)).collect()
    }

    /// Pods are distributed in multiples of this number at a level where an inner layer of slices
    /// ends.
    fn layer(&self, level: usize) -> i64 {
        self.gang.slices.iter().skip(1).find(|(at, _)| *at == level).map_or(1, |(_, size)| *size)
    }

    fn capacity(&self, domain: &Domain) -> Capacity {
        let level = domain.len() - 1;
        let mut capacity =
            if level == self.lowest { self.leaf_capacity(domain) } else { self.capacity_of_children(domain) };
        if level == self.slice_level {
            capacity.slices = capacity.pods / self.slice_size;
            capacity.slices_beside_leader = capacity.pods_beside_leader / self.slice_size;
        }
        capacity
    }

    fn leaf_capacity(&self, domain: &Domain) -> Capacity {
        let free = self.leaves.iter().find(|leaf| leaf.values == *domain).expect("the domain is a leaf").free;
        let pods = times_in(self.gang.per_pod, free);
        let beside = self.gang.leader.filter(|leader| times_in(*leader, free) > 0).map(|leader| {
            let left = [free[0] - leader[0], free[1] - leader[1], free[2] - leader[2]];
            times_in(self.gang.per_pod, left)
        });
        Capacity {
            pods,
            pods_beside_leader: beside.unwrap_or(pods),
            takes_leader: beside.is_some(),
            ..Capacity::default()
        }
    }

    fn capacity_of_children(&self, domain: &Domain) -> Capacity {
        let unit = self.layer(domain.len());
        let capacities: Vec<Capacity> = self.children(domain).iter().map(|child| self.capacity(child)).collect();
        let whole = |pods: i64| pods / unit * unit;
        let pods: i64 = capacities.iter().map(|capacity| whole(capacity.pods)).sum();
        let slices: i64 = capacities.iter().map(|capacity| capacity.slices).sum();
        let hosts = || capacities.iter().filter(|capacity| capacity.takes_leader);
        let pods_lost =
            hosts().map(|capacity| whole(capacity.pods) - whole(capacity.pods_beside_leader)).min().unwrap_or(0);
        let slices_lost = hosts().map(|capacity| capacity.slices - capacity.slices_beside_leader).min().unwrap_or(0);
        Capacity {
            pods,
            slices,
            pods_beside_leader: pods - pods_lost,
            slices_beside_leader: slices - slices_lost,
            takes_leader: hosts().next().is_some(),
        }
    }

    /// True if the request has no level. Small gaps are then filled first.
    fn fills_gaps(&self) -> bool {
        self.gang.mode.is_none()
    }

    fn preference(&self, slices: i64) -> i64 {
        if self.fills_gaps() { slices } else { -slices }
    }

    fn in_order(&self, mut domains: Vec<Domain>) -> Vec<Domain> {
        domains.sort_by_cached_key(|it| {
            let capacity = self.capacity(it);
            (self.preference(capacity.slices), capacity.pods, it.clone())
        });
        domains
    }

    fn in_order_for_leader(&self, mut domains: Vec<Domain>) -> Vec<Domain> {
        domains.sort_by_cached_key(|it| {
            let capacity = self.capacity(it);
            let slices = self.preference(capacity.slices_beside_leader);
            (Reverse(capacity.takes_leader), slices, capacity.pods_beside_leader, it.clone())
        });
        domains
    }

    /// The domains of one level that the gang is placed in, with their shares (semantics §14.6).
    fn choose(&self, level: usize) -> Option<Vec<Share>> {
        let needed = self.gang.count / self.slice_size;
        let with_leader = self.gang.leader.is_some();
        let sorted = self.in_order_for_leader(self.domains(level).into_iter().collect());
        let holds = |it: &&Domain| {
            let capacity = self.capacity(it);
            capacity.slices_beside_leader >= needed && (capacity.takes_leader || !with_leader)
        };
        let enough: Vec<&Domain> = sorted.iter().filter(holds).collect();
        let one = if self.fills_gaps() {
            enough.first().copied()
        } else {
            enough.into_iter().min_by_key(|it| self.capacity(it).slices_beside_leader)
        };
        if let Some(domain) = one {
            return Some(vec![Share { domain: domain.clone(), pods: self.gang.count, leader: with_leader }]);
        }
        match self.gang.mode {
            Some((true, _)) => None,
            Some((false, _)) if level > 0 => self.choose(level - 1),
            _ => {
                let shares = self.spread(
                    sorted,
                    needed,
                    with_leader,
                    |capacity| (capacity.slices, capacity.slices_beside_leader),
                    self.slice_size,
                    true,
                );
                let placed: i64 = shares.iter().map(|it| it.pods).sum();
                let led = !with_leader || shares.iter().any(|it| it.leader);
                (placed == needed * self.slice_size && led).then_some(shares)
            }
        }
    }

    /// Distributes the shares of one level over the levels below it (semantics §14.7).
    fn descend(&self, level: usize, shares: &[Share]) -> Vec<Share> {
        if level < self.slice_level {
            let below = shares.iter().flat_map(|it| self.children(&it.domain)).collect();
            let slices = shares.iter().map(|it| it.pods).sum::<i64>() / self.slice_size;
            let leader = shares.iter().any(|it| it.leader);
            let sizes = |capacity: Capacity| (capacity.slices, capacity.slices_beside_leader);
            return self.spread(self.in_order(below), slices, leader, sizes, self.slice_size, false);
        }
        // The outermost inner layer at or below the next level determines the multiples in which
        // pods are distributed.
        let inner = self.gang.slices.iter().skip(1).filter(|(at, _)| *at > level).map(|(_, size)| *size);
        let unit = inner.max().unwrap_or(1);
        let sizes = |capacity: Capacity| (capacity.pods / unit, capacity.pods_beside_leader / unit);
        let each = shares.iter().flat_map(|it| {
            let below = self.in_order(self.children(&it.domain));
            self.spread(below, it.pods / unit, it.leader, sizes, unit, false)
        });
        each.collect()
    }

    /// Distributes an amount over few domains. `sizes` has the capacity of each domain, without and
    /// with the leader.
    fn spread(
        &self,
        sorted: Vec<Domain>,
        amount: i64,
        leader: bool,
        sizes: impl Fn(Capacity) -> (i64, i64),
        unit: i64,
        leader_must_cost_little: bool,
    ) -> Vec<Share> {
        let size = |it: &Domain| sizes(self.capacity(it)).0;
        let beside = |it: &Domain| sizes(self.capacity(it)).1;
        let mut rest = sorted;
        let mut left = amount;
        let mut shares = Vec::new();
        if leader {
            let hosts: Vec<Domain> = rest.iter().filter(|it| self.capacity(it).takes_leader).cloned().collect();
            let whole = || hosts.iter().filter(|it| beside(it) >= amount && !leader_must_cost_little);
            let one = if self.fills_gaps() { whole().next() } else { whole().min_by_key(|it| beside(it)) };
            let slack = rest.iter().map(size).sum::<i64>() - amount;
            let cheap = hosts.iter().find(|it| size(it) - beside(it) <= slack);
            let Some(host) = one.or(cheap).or(hosts.first()).cloned() else { return shares };
            let taken = beside(&host).min(left);
            left -= taken;
            rest.retain(|it| *it != host);
            shares.push(Share { domain: host, pods: taken * unit, leader: true });
        }
        let mut rest = self.in_order(rest);
        while left > 0 && !rest.is_empty() {
            // A domain that can take everything left is replaced by the tightest such domain.
            let enough = rest.iter().filter(|it| size(it) >= left && size(&rest[0]) >= left).min_by_key(|it| size(it));
            let next = enough.filter(|_| !self.fills_gaps()).unwrap_or(&rest[0]).clone();
            let taken = size(&next).min(left);
            left -= taken;
            rest.retain(|it| *it != next);
            if taken > 0 {
                shares.push(Share { domain: next, pods: taken * unit, leader: false });
            }
        }
        shares
    }
}
