//! What the workloads that hold quota in a queue hold together, kept as they come and go: statuses read it off.

use crate::ids::FrId;
use crate::world::record::Holding;

/// Workloads and amounts. Sums are wide enough never to saturate, so that what was added can be taken away again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Workloads that hold quota.
    pub reserving: u32,
    /// Those of them that are admitted.
    pub admitted: u32,
    reserved: Sums,
    used: Sums,
}

/// Amounts by flavor-resource, in order.
type Sums = Vec<(FrId, i128)>;

impl Tally {
    /// Counts what a workload holds.
    pub fn add(&mut self, holding: &Holding) {
        self.reserving += 1;
        add(&mut self.reserved, holding, 1);
        if holding.admitted {
            self.admitted += 1;
            add(&mut self.used, holding, 1);
        }
    }

    /// Takes away what was counted.
    pub fn remove(&mut self, holding: &Holding) {
        self.reserving -= 1;
        add(&mut self.reserved, holding, -1);
        if holding.admitted {
            self.admitted -= 1;
            add(&mut self.used, holding, -1);
        }
    }

    /// True if nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.reserving == 0
    }

    /// How much of a flavor-resource is reserved.
    pub fn reserved(&self, fr: FrId) -> i64 {
        amount(&self.reserved, fr)
    }

    /// How much of a flavor-resource admitted workloads hold.
    pub fn used(&self, fr: FrId) -> i64 {
        amount(&self.used, fr)
    }

    /// What admitted workloads hold.
    pub fn used_amounts(&self) -> impl Iterator<Item = (FrId, f64)> {
        self.used.iter().map(|(fr, sum)| (*fr, *sum as f64))
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
