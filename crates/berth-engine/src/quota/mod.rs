//! Quota over the tree of cohorts (§7): what each node owns, lends, borrows and uses.
//!
//! [`tree`] holds the nodes and updates usage in time proportional to the depth of the tree;
//! [`share`] derives the dominant resource share from it (§10.1); [`assumed`] computes the usage
//! without certain workloads.

mod assumed;
pub(crate) mod share;
pub(crate) mod tree;

#[cfg(test)]
mod properties;

pub(crate) use assumed::AssumedUsage;
pub(crate) use share::Share;
pub(crate) use tree::{NodeQuota, QuotaTree};

use crate::ids::FrId;

/// Amounts of flavor-resources, in the order of their ids. Each flavor-resource occurs once.
pub(crate) type FrAmounts = Vec<(FrId, i64)>;

/// Adds an amount to a list that is ordered by flavor-resource.
pub(crate) fn add_amount(amounts: &mut FrAmounts, fr: FrId, amount: i64) {
    match amounts.binary_search_by_key(&fr, |&(id, _)| id) {
        Ok(at) => amounts[at].1 = amounts[at].1.saturating_add(amount),
        Err(at) => amounts.insert(at, (fr, amount)),
    }
}

/// The amount listed for a flavor-resource; zero if it is not listed.
pub(crate) fn amount_of(amounts: &FrAmounts, fr: FrId) -> i64 {
    amounts.binary_search_by_key(&fr, |&(id, _)| id).map_or(0, |at| amounts[at].1)
}
