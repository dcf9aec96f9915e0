//! Sets of numbers of pods: how many pods of a group a unit can get.

use super::constraints::Constraint;

/// A set of numbers from 0 to the size of the group. 0 is always in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counts {
    /// All numbers up to this one.
    UpTo(usize),
    /// These numbers.
    Some(Bits),
}

/// A set of small numbers; bit n of the words is set if n is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// The empty set of numbers up to `size`.
    pub fn none(size: usize) -> Self {
        Self(vec![0; size / 64 + 1])
    }

    /// The set of 0 alone.
    pub fn zero(size: usize) -> Self {
        let mut bits = Self::none(size);
        bits.insert(0);
        bits
    }

    /// Adds a number.
    pub fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    /// True if the number is in the set.
    pub fn contains(&self, number: usize) -> bool {
        self.0.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// Adds the numbers of `other`, each increased by `by`. Sums beyond the largest number of the
    /// set are lost.
    pub fn add_shifted(&mut self, other: &Self, by: usize) {
        let (words, bits) = (by / 64, by % 64);
        for at in (words..self.0.len()).rev() {
            let from = at - words;
            let mut word = other.0[from] << bits;
            if bits > 0 && from > 0 {
                word |= other.0[from - 1] >> (64 - bits);
            }
            self.0[at] |= word;
        }
    }

    /// Number of words, a measure of the cost of one step.
    pub fn words(&self) -> usize {
        self.0.len()
    }
}

impl Counts {
    /// True if the number is in the set.
    pub fn contains(&self, number: usize) -> bool {
        match self {
            Self::UpTo(most) => number <= *most,
            Self::Some(bits) => bits.contains(number),
        }
    }

    /// The numbers of the set that are not 0, ascending, none above `size`.
    pub fn positive(&self, size: usize) -> impl DoubleEndedIterator<Item = usize> {
        (1..=size).filter(|number| self.contains(*number))
    }

    /// The largest number, at most `size`.
    pub fn most(&self, size: usize) -> usize {
        self.positive(size).next_back().unwrap_or(0)
    }

    /// The numbers that the constraint allows.
    pub fn restricted(self, constraint: &Constraint, size: usize) -> Self {
        if let (Self::UpTo(most), None | Some(0 | 1), None | Some(1)) = (&self, constraint.min, constraint.factor) {
            return Self::UpTo(constraint.max.map_or(*most, |max| max.min(*most)));
        }
        let mut bits = Bits::zero(size);
        for number in self.positive(size).filter(|number| constraint.allows(*number)) {
            bits.insert(number);
        }
        Self::Some(bits)
    }

    /// The sums of one number of each set. With `partitions`, exactly so many of them are not 0,
    /// unless the sum is 0.
    pub fn sum(sets: &[&Self], partitions: Option<usize>, size: usize) -> Self {
        let Some(partitions) = partitions else { return Self::plain_sum(sets, size) };
        let rows = rows(sets, partitions, size);
        let mut bits = rows.into_iter().next_back().unwrap_or_else(|| Bits::none(size));
        bits.insert(0);
        Self::Some(bits)
    }

    fn plain_sum(sets: &[&Self], size: usize) -> Self {
        let mut up_to = 0_usize;
        let mut others = Vec::new();
        for set in sets {
            match set {
                Self::UpTo(most) => up_to = up_to.saturating_add(*most).min(size),
                Self::Some(_) => others.push(*set),
            }
        }
        if others.is_empty() {
            return Self::UpTo(up_to);
        }
        let mut sums = Bits::zero(size);
        for set in others.into_iter().chain([&Self::UpTo(up_to)]) {
            let before = sums.clone();
            for number in set.positive(size) {
                sums.add_shifted(&before, number);
            }
        }
        Self::Some(sums)
    }
}

/// For each number of sets from 0 to `used`, the sums of positive numbers of exactly so many sets.
pub fn rows(sets: &[&Counts], used: usize, size: usize) -> Vec<Bits> {
    let mut rows = vec![Bits::none(size); used + 1];
    rows[0].insert(0);
    for set in sets {
        add_row(&mut rows, set, size);
    }
    rows
}

/// Extends the sums of [`rows`] by another set.
pub fn add_row(rows: &mut [Bits], set: &Counts, size: usize) {
    let numbers: Vec<usize> = set.positive(size).collect();
    for at in (1..rows.len()).rev() {
        let (below, from) = rows.split_at_mut(at);
        for number in &numbers {
            from[0].add_shifted(&below[at - 1], *number);
        }
    }
}
