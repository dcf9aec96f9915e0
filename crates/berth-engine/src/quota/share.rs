//! Dominant resource share: the usage of a node of the cohort tree above its own quota, relative to
//! what could be lent (§10.1), and the comparison of two shares (§10.2).
//!
//! A share is stored as integers and compared by cross-multiplying, so that equal ratios are equal
//! regardless of the amounts. Kueue divides in floating point. The orders differ only if two ratios
//! agree to 53 bits.

use std::cmp::Ordering;

use super::tree::QuotaTree;
use super::{FrAmounts, amount_of};
use crate::amount::Amount;
use crate::ids::{FrId, NodeId, ResourceId};

/// The dominant resource share of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Share {
    /// Borrowed and lendable amount of the dominant resource; (0, 1) if no resource gives a ratio.
    borrowed: i64,
    lendable: i64,
    /// The resource that gives the ratio.
    pub dominant: Option<ResourceId>,
    /// Fair sharing weight in thousandths.
    weight_milli: i64,
    /// Flavor-resources used above the node's own quota, in id order.
    pub borrowed_frs: Vec<FrId>,
}

impl Share {
    /// A share made from its parts, for comparisons without a tree.
    #[cfg(feature = "lab")]
    pub fn of(borrowed: i64, lendable: i64, weight_milli: i64, borrowed_frs: Vec<FrId>) -> Share {
        Share { borrowed, lendable, dominant: None, weight_milli, borrowed_frs }
    }

    /// The current share of a node (§10.1).
    ///
    /// `resource_of` returns the resource of a flavor-resource, and `earlier` whether a resource's
    /// name sorts before another's. Of equal ratios, the one that sorts first is reported.
    pub fn of_node(
        tree: &QuotaTree,
        node: NodeId,
        resource_of: impl Fn(FrId) -> ResourceId,
        earlier: impl Fn(ResourceId, ResourceId) -> bool,
    ) -> Share {
        let this = tree.node(node);
        let mut share = Share {
            borrowed: 0,
            lendable: 1,
            dominant: None,
            weight_milli: this.fair_weight_milli,
            borrowed_frs: vec![],
        };
        let Some(parent) = this.parent else {
            return share;
        };
        let mut borrowed: Vec<(ResourceId, Amount)> = Vec::new();
        for (fr, cell) in this.cells() {
            let above = (cell.usage - cell.subtree).or_zero();
            if !cell.declared || above.is_zero() {
                continue;
            }
            share.borrowed_frs.push(*fr);
            let resource = resource_of(*fr);
            match borrowed.iter_mut().find(|(id, _)| *id == resource) {
                Some((_, sum)) => *sum += above,
                None => borrowed.push((resource, above)),
            }
        }
        if borrowed.is_empty() {
            return share;
        }
        for (resource, amount) in borrowed {
            let lendable: Amount = tree
                .node(this.root)
                .cells()
                .iter()
                .filter(|(fr, cell)| cell.declared && resource_of(*fr) == resource)
                .map(|(fr, _)| tree.potential(parent, *fr))
                .sum();
            let (amount, lendable) = (amount.saturated(), lendable.saturated());
            if lendable <= 0 || amount <= 0 {
                continue;
            }
            let order = (i128::from(amount) * i128::from(share.lendable))
                .cmp(&(i128::from(share.borrowed) * i128::from(lendable)));
            let better = match order {
                Ordering::Greater => true,
                Ordering::Equal => share.dominant.is_none_or(|dominant| earlier(resource, dominant)),
                Ordering::Less => false,
            };
            if better {
                share.borrowed = amount;
                share.lendable = lendable;
                share.dominant = Some(resource);
            }
        }
        share
    }

    /// True if any flavor-resource is above the node's own quota.
    pub fn is_borrowing(&self) -> bool {
        !self.borrowed_frs.is_empty()
    }

    /// True if one of the requested flavor-resources is above the node's own quota.
    pub fn is_borrowing_on(&self, requested: &FrAmounts) -> bool {
        self.borrowed_frs.iter().any(|fr| requested.iter().any(|(id, _)| id == fr) || amount_of(requested, *fr) > 0)
    }

    /// True if the share is above every finite one: the weight is zero and something is borrowed.
    pub fn is_infinite(&self) -> bool {
        self.weight_milli <= 0 && self.borrowed > 0
    }

    /// Compares two shares (§10.2).
    pub fn compare(&self, other: &Share) -> Ordering {
        match (self.is_infinite(), other.is_infinite()) {
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (true, true) => compare_ratios((self.borrowed, self.lendable, 1), (other.borrowed, other.lendable, 1)),
            (false, false) => compare_ratios(
                (self.borrowed, self.lendable, self.weight_milli),
                (other.borrowed, other.lendable, other.weight_milli),
            ),
        }
    }

    /// The share as a number: the ratio in thousandths, divided by the weight; infinite for a
    /// borrower of weight zero.
    pub fn precise(&self) -> f64 {
        if self.borrowed == 0 {
            return 0.0;
        }
        if self.is_infinite() {
            return f64::INFINITY;
        }
        let ratio = self.borrowed as f64 * 1000.0 / self.lendable as f64;
        ratio / (self.weight_milli as f64 / 1000.0)
    }

    /// The value that statuses show: rounded up, `i64::MAX` if infinite (§10.3).
    pub fn rounded(&self) -> i64 {
        if self.borrowed == 0 {
            return 0;
        }
        if self.is_infinite() {
            return i64::MAX;
        }
        // ratio x 1000 / (weight / 1000), rounded up.
        let numerator = i128::from(self.borrowed) * 1_000_000;
        let denominator = i128::from(self.lendable) * i128::from(self.weight_milli);
        i64::try_from((numerator + denominator - 1) / denominator).unwrap_or(i64::MAX)
    }
}

/// Compares a/(b*c) with d/(e*f), all positive denominators; exact unless the products exceed 128
/// bits.
fn compare_ratios(left: (i64, i64, i64), right: (i64, i64, i64)) -> Ordering {
    // A weight of zero with nothing borrowed is a share of zero.
    let weight = |weight: i64| i128::from(weight.max(1));
    let (a, b, c) = (i128::from(left.0), i128::from(left.1), weight(left.2));
    let (d, e, f) = (i128::from(right.0), i128::from(right.1), weight(right.2));
    let exact = a.checked_mul(e).and_then(|x| x.checked_mul(f)).zip(d.checked_mul(b).and_then(|x| x.checked_mul(c)));
    match exact {
        Some((left, right)) => left.cmp(&right),
        None => {
            let left = a as f64 / b as f64 / c as f64;
            let right = d as f64 / e as f64 / f as f64;
            left.total_cmp(&right)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(borrowed: i64, lendable: i64, weight_milli: i64) -> Share {
        Share::of(borrowed, lendable, weight_milli, Vec::new())
    }

    #[test]
    fn equal_ratios_are_equal_regardless_of_the_amounts() {
        assert_eq!(share(1, 3, 1000).compare(&share(10, 30, 1000)), Ordering::Equal);
        assert_eq!(share(1, 3, 1000).compare(&share(2, 3, 2000)), Ordering::Equal);
        assert_eq!(share(1, 3, 2000).compare(&share(1, 3, 1000)), Ordering::Less);
    }

    #[test]
    fn a_borrower_of_weight_zero_has_the_largest_share() {
        assert_eq!(share(1, 1000, 0).compare(&share(999, 1, 1)), Ordering::Greater);
        assert_eq!(share(1, 1000, 0).compare(&share(2, 1000, 0)), Ordering::Less);
        assert_eq!(share(0, 1, 0).compare(&share(1, 1000, 1000)), Ordering::Less);
        assert_eq!(share(1, 1000, 0).rounded(), i64::MAX);
    }

    #[test]
    fn the_reported_share_is_rounded_up() {
        assert_eq!(share(1, 1_000_000, 1000).rounded(), 1);
        assert_eq!(share(1, 10, 500).rounded(), 200);
    }
}
