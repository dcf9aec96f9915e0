//! Amounts of resources, as integers. All decisions compute with them.
//!
//! Requests and usage are whole numbers in a resource's base unit (`cpu` in thousandths, everything
//! else in pieces or bytes; semantics §1.1). Quotas may also be *unlimited*. This is a value of its
//! own, not a large number: it absorbs additions, survives subtractions and is greater than every
//! bounded value. Bounded arithmetic saturates instead of wrapping, so no sum of huge quantities
//! can turn into free quota.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// An amount of one resource in its base unit, or [`Amount::Unlimited`].
///
/// In the derived order, every bounded amount is smaller than `Unlimited`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Amount {
    /// A number of base units. Negative if more is in use than the quota allows.
    Bounded(i64),
    /// No limit.
    Unlimited,
}

impl Amount {
    /// Zero base units.
    pub const ZERO: Amount = Amount::Bounded(0);

    /// The number of base units, `i64::MAX` when unlimited.
    pub fn saturated(self) -> i64 {
        match self {
            Amount::Bounded(value) => value,
            Amount::Unlimited => i64::MAX,
        }
    }

    /// True for [`Amount::Unlimited`].
    pub fn is_unlimited(self) -> bool {
        self == Amount::Unlimited
    }

    /// The larger of this amount and zero.
    pub fn or_zero(self) -> Amount {
        self.max(Amount::ZERO)
    }

    /// True for a bounded amount of zero.
    pub fn is_zero(self) -> bool {
        self == Amount::ZERO
    }
}

impl Default for Amount {
    fn default() -> Self {
        Amount::ZERO
    }
}

impl From<i64> for Amount {
    fn from(value: i64) -> Self {
        Amount::Bounded(value)
    }
}

impl Add for Amount {
    type Output = Amount;

    fn add(self, other: Amount) -> Amount {
        match (self, other) {
            (Amount::Bounded(a), Amount::Bounded(b)) => Amount::Bounded(a.saturating_add(b)),
            _ => Amount::Unlimited,
        }
    }
}

impl Sub for Amount {
    type Output = Amount;

    fn sub(self, other: Amount) -> Amount {
        match (self, other) {
            (Amount::Bounded(a), Amount::Bounded(b)) => Amount::Bounded(a.saturating_sub(b)),
            (Amount::Unlimited, Amount::Bounded(_)) => Amount::Unlimited,
            (Amount::Bounded(_), Amount::Unlimited) => Amount::Bounded(i64::MIN),
            (Amount::Unlimited, Amount::Unlimited) => Amount::ZERO,
        }
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Amount) {
        *self = *self + other;
    }
}

impl SubAssign for Amount {
    fn sub_assign(&mut self, other: Amount) {
        *self = *self - other;
    }
}

impl std::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Amount>>(amounts: I) -> Amount {
        amounts.fold(Amount::ZERO, Add::add)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Bounded(value) => value.fmt(f),
            Amount::Unlimited => f.write_str("unlimited"),
        }
    }
}

/// Multiplies a per-pod request by a number of pods. Negative requests count as zero, and the
/// product saturates (§1.2, §1.3).
pub fn times(per_pod: i64, count: i32) -> i64 {
    per_pod.max(0).saturating_mul(i64::from(count.max(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlimited_absorbs_additions_and_survives_subtractions() {
        assert_eq!(Amount::Unlimited + Amount::Bounded(-5), Amount::Unlimited);
        assert_eq!(Amount::Unlimited - Amount::Bounded(7), Amount::Unlimited);
        assert_eq!(Amount::Bounded(7) - Amount::Unlimited, Amount::Bounded(i64::MIN));
        assert_eq!(Amount::Unlimited - Amount::Unlimited, Amount::ZERO);
    }

    #[test]
    fn bounded_arithmetic_saturates() {
        assert_eq!(Amount::Bounded(i64::MAX) + Amount::Bounded(1), Amount::Bounded(i64::MAX));
        assert_eq!(Amount::Bounded(i64::MIN) - Amount::Bounded(1), Amount::Bounded(i64::MIN));
        assert!(Amount::Bounded(i64::MAX) < Amount::Unlimited);
    }

    #[test]
    fn negative_requests_count_as_zero() {
        assert_eq!(times(-3, 4), 0);
        assert_eq!(times(i64::MAX, 2), i64::MAX);
        assert_eq!(times(3, -1), 0);
    }
}
