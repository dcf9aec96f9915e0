//! An ordered set that stores its first member inline. Most queues have one waiting class, and most
//! events concern one queue, so neither needs a tree.

use std::cmp::Ordering;
use std::collections::BTreeSet;

/// An ordered set that allocates nothing while it has at most one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderedSet<T> {
    first: Option<T>,
    /// All other members; empty if there is no first.
    rest: BTreeSet<T>,
}

impl<T> Default for OrderedSet<T> {
    fn default() -> Self {
        OrderedSet { first: None, rest: BTreeSet::new() }
    }
}

impl<T: Ord> OrderedSet<T> {
    /// The first member in order.
    pub fn first(&self) -> Option<&T> {
        self.first.as_ref()
    }

    /// The members in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }

    /// The first member at or after `from`.
    pub fn first_from(&self, from: &T) -> Option<&T> {
        self.first().filter(|first| *first >= from).or_else(|| self.rest.range(from..).next())
    }

    /// Adds a member, unless it is already in the set.
    pub fn insert(&mut self, item: T) {
        let Some(first) = &mut self.first else {
            self.first = Some(item);
            return;
        };
        match item.cmp(first) {
            Ordering::Less => {
                let later = std::mem::replace(first, item);
                self.rest.insert(later);
            }
            Ordering::Equal => {}
            Ordering::Greater => {
                self.rest.insert(item);
            }
        }
    }

    /// Removes a member.
    pub fn remove(&mut self, item: &T) {
        if self.first.as_ref() == Some(item) {
            self.first = self.rest.pop_first();
        } else {
            self.rest.remove(item);
        }
    }
}

impl<T: Ord> Extend<T> for OrderedSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        for item in items {
            self.insert(item);
        }
    }
}

impl<'a, T> IntoIterator for &'a OrderedSet<T> {
    type Item = &'a T;
    type IntoIter = std::iter::Chain<std::option::Iter<'a, T>, std::collections::btree_set::Iter<'a, T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.iter().chain(&self.rest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_behaves_like_a_set(steps in proptest::collection::vec((any::<bool>(), 0..8), 0..60), from in 0..9) {
            let (mut ordered, mut set) = (OrderedSet::default(), BTreeSet::new());
            for (inserts, item) in steps {
                if inserts {
                    ordered.insert(item);
                    set.insert(item);
                } else {
                    ordered.remove(&item);
                    set.remove(&item);
                }
                prop_assert!(ordered.iter().eq(&set));
                prop_assert_eq!(ordered.first(), set.first());
                prop_assert_eq!(ordered.first_from(&from), set.range(from..).next());
            }
        }
    }
}
