//! Running sums of the quota held in a queue. They are updated when workloads are admitted or
//! leave, and statuses read them.

use crate::ids::{FrId, ResourceId};
use crate::world::record::{Holding, Shape};

/// Numbers of workloads and sums of amounts. The sums are wide enough never to saturate, so an
/// added amount can be subtracted again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Number of workloads that hold quota.
    pub reserving: u32,
    /// Number of workloads that are admitted.
    pub admitted: u32,
    reserved: Sums,
    used: Sums,
}

/// Amounts by flavor-resource, in order.
type Sums = Vec<(FrId, i128)>;

impl Tally {
    /// Adds the amounts that a workload holds.
    pub fn add(&mut self, holding: &Holding) {
        self.reserving += 1;
        add(&mut self.reserved, holding, 1);
        if holding.admitted {
            self.admitted += 1;
            add(&mut self.used, holding, 1);
        }
    }

    /// Subtracts the amounts that a workload holds.
    pub fn remove(&mut self, holding: &Holding) {
        self.reserving -= 1;
        add(&mut self.reserved, holding, -1);
        if holding.admitted {
            self.admitted -= 1;
            add(&mut self.used, holding, -1);
        }
    }

    /// True if no workload holds quota.
    pub fn is_empty(&self) -> bool {
        self.reserving == 0
    }

    /// Flavor-resources of which any amount was ever reserved, with the reserved amount.
    pub fn reserved_amounts(&self) -> impl Iterator<Item = (FrId, i128)> {
        self.reserved.iter().copied()
    }

    /// Reserved amount of a flavor-resource.
    pub fn reserved(&self, fr: FrId) -> i64 {
        amount(&self.reserved, fr)
    }

    /// Amount of a flavor-resource that admitted workloads hold.
    pub fn used(&self, fr: FrId) -> i64 {
        amount(&self.used, fr)
    }

    /// Amounts that admitted workloads hold.
    pub fn used_amounts(&self) -> impl Iterator<Item = (FrId, f64)> {
        self.used.iter().map(|(fr, sum)| (*fr, *sum as f64))
    }
}

/// Running sums of the requests of the workloads that wait in a queue, in the order of the
/// resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Requests(Vec<(ResourceId, i128)>);

impl Requests {
    /// Adds the requests of a workload, or subtracts them (`sign` -1).
    pub fn add(&mut self, shape: &Shape, sign: i128) {
        for set in &shape.pod_sets {
            for &(resource, per_pod) in &set.requests {
                let amount = sign * i128::from(crate::amount::times(per_pod, set.count));
                match self.0.binary_search_by_key(&resource, |&(id, _)| id) {
                    Ok(at) => self.0[at].1 += amount,
                    Err(at) => self.0.insert(at, (resource, amount)),
                }
            }
        }
    }

    /// The sums; zero for a resource that no waiting workload requests any more.
    pub fn amounts(&self) -> impl Iterator<Item = (ResourceId, i64)> {
        let narrow = |sum: i128| i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX });
        self.0.iter().map(move |&(resource, sum)| (resource, narrow(sum)))
    }
}

fn add(sums: &mut Sums, holding: &Holding, sign: i128) {
    for &(fr, amount) in &holding.usage {
        let amount = sign * i128::from(amount);
        match sums.binary_search_by_key(&fr, |&(id, _)| id) {
            Ok(at) => sums[at].1 += amount,
            Err(at) => sums.insert(at, (fr, amount)),
        }
    }
}

fn amount(sums: &Sums, fr: FrId) -> i64 {
    let sum = sums.binary_search_by_key(&fr, |&(id, _)| id).map_or(0, |at| sums[at].1);
    i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX })
}
