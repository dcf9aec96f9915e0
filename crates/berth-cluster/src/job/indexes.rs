//! Sets of completion indexes, as intervals. Kubernetes writes them to `status.completedIndexes`
//! and `status.failedIndexes` in the form `0,2-4,7`.

use std::collections::BTreeSet;
use std::fmt;

/// A set of completion indexes, stored as disjoint, ascending, inclusive intervals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexSet {
    intervals: Vec<(u32, u32)>,
}

impl IndexSet {
    /// Parses the text form, and keeps only indexes below `completions`. Invalid parts are skipped:
    /// this controller writes the text, and a damaged text must not stop the Job.
    pub fn parse(text: &str, completions: u32) -> Self {
        let mut set = Self::default();
        if completions == 0 {
            return set;
        }
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let bounds = match part.split_once('-') {
                Some((first, last)) => (first.parse::<u32>(), last.parse::<u32>()),
                None => (part.parse(), part.parse()),
            };
            let (Ok(first), Ok(last)) = bounds else { continue };
            if first > last || first >= completions {
                continue;
            }
            set.push(first, last.min(completions - 1));
        }
        set
    }

    /// Number of indexes in the set.
    pub fn len(&self) -> usize {
        self.intervals.iter().map(|(first, last)| (last - first) as usize + 1).sum()
    }

    /// True if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.intervals.is_empty()
    }

    /// True if `index` is in the set; O(log intervals).
    pub fn contains(&self, index: u32) -> bool {
        let after = self.intervals.partition_point(|(first, _)| *first <= index);
        after > 0 && self.intervals[after - 1].1 >= index
    }

    /// The union with single indexes; linear in the sizes.
    pub fn union(&self, more: &BTreeSet<u32>) -> Self {
        self.merge(more.iter().map(|index| (*index, *index)))
    }

    /// The union of both sets; linear in their intervals.
    pub fn union_set(&self, more: &Self) -> Self {
        self.merge(more.intervals.iter().copied())
    }

    fn merge(&self, ascending: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut added = ascending.peekable();
        let mut set = Self::default();
        for interval in &self.intervals {
            while let Some((first, last)) = added.next_if(|(first, _)| first < &interval.0) {
                set.push(first, last);
            }
            set.push(interval.0, interval.1);
        }
        for (first, last) in added {
            set.push(first, last);
        }
        set
    }

    /// The first `count` indexes below `completions` that are not in the set, ascending.
    pub fn first_missing(&self, count: usize, completions: u32) -> Vec<u32> {
        let mut missing = Vec::new();
        let mut next = 0u32;
        for (first, last) in self.intervals.iter().copied().chain([(completions, completions)]) {
            while next < first.min(completions) && missing.len() < count {
                missing.push(next);
                next += 1;
            }
            next = next.max(last.saturating_add(1));
        }
        missing
    }

    /// Number of indexes in both sets; linear in the intervals.
    pub fn overlap(&self, other: &Self) -> usize {
        let (mut left, mut right, mut both) = (0, 0, 0);
        while let (Some(a), Some(b)) = (self.intervals.get(left), other.intervals.get(right)) {
            let (first, last) = (a.0.max(b.0), a.1.min(b.1));
            if first <= last {
                both += (last - first) as usize + 1;
            }
            if a.1 <= b.1 { left += 1 } else { right += 1 }
        }
        both
    }

    /// Appends an interval that starts at or after the start of the last one. Adjacent intervals
    /// are merged.
    fn push(&mut self, first: u32, last: u32) {
        match self.intervals.last_mut() {
            Some(previous) if first <= previous.1.saturating_add(1) => previous.1 = previous.1.max(last),
            _ => self.intervals.push((first, last)),
        }
    }
}

impl fmt::Display for IndexSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (first, last)) in self.intervals.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            match last - first {
                0 => write!(f, "{first}")?,
                // Kubernetes writes two adjacent indexes as `3,4`, not `3-4`.
                1 => write!(f, "{first},{last}")?,
                _ => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_parsed_and_formatted_like_in_kubernetes() {
        for text in ["", "0", "0,1", "0-2", "1,3-5,7", "0,2,4-6,8,9"] {
            assert_eq!(IndexSet::parse(text, 100).to_string(), text);
        }
        assert_eq!(IndexSet::parse("1,3-9,12", 5).to_string(), "1,3,4");
        assert_eq!(IndexSet::parse("1,x,3-2,4", 9).to_string(), "1,4");
    }

    #[test]
    fn a_union_joins_touching_intervals() {
        let set = IndexSet::parse("1,3-5", 100).union(&BTreeSet::from([0, 2, 9]));
        assert_eq!(set.to_string(), "0-5,9");
        assert_eq!(set.len(), 7);
        assert!(set.contains(4) && !set.contains(6));
    }

    #[test]
    fn an_overlap_counts_shared_indexes() {
        let overlap = |a, b| IndexSet::parse(a, 100).overlap(&IndexSet::parse(b, 100));
        assert_eq!(overlap("0-4,8", "3-9"), 3);
        assert_eq!(overlap("1,3,5", "0,2,4"), 0);
        assert_eq!(overlap("", "0-9"), 0);
    }

    #[test]
    fn missing_indexes_are_ascending_and_below_completions() {
        let set = IndexSet::parse("0,2-3", 100);
        assert_eq!(set.first_missing(3, 6), [1, 4, 5]);
        assert_eq!(set.first_missing(1, 6), [1]);
        assert_eq!(set.first_missing(9, 3), [1]);
        assert_eq!(IndexSet::default().first_missing(2, 5), [0, 1]);
    }
}
