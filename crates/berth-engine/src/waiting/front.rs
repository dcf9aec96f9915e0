//! An ordered set that keeps its first member at hand: most queues have one class waiting, and need no tree for it.

use std::collections::BTreeSet;

#[derive(Debug)]
pub(super) struct Front<T> {
    first: Option<T>,
    /// All others; empty without a first.
    rest: BTreeSet<T>,
}

impl<T> Default for Front<T> {
    fn default() -> Self {
        Front { first: None, rest: BTreeSet::new() }
    }
}

impl<T: Ord> Front<T> {
    pub fn first(&self) -> Option<&T> {
        self.first.as_ref()
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }

    /// The first one that is not before this.
    pub fn first_from(&self, from: &T) -> Option<&T> {
        self.first().filter(|first| *first >= from).or_else(|| self.rest.range(from..).next())
    }

    pub fn insert(&mut self, item: T) {
        match &mut self.first {
            None => self.first = Some(item),
            Some(first) if item < *first => {
                let later = std::mem::replace(first, item);
                self.rest.insert(later);
            }
            Some(first) if item == *first => {}
            Some(_) => {
                self.rest.insert(item);
            }
        }
    }

    pub fn remove(&mut self, item: &T) {
        if self.first.as_ref() == Some(item) {
            self.first = self.rest.pop_first();
        } else {
            self.rest.remove(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(steps in proptest::collection::vec((any::<bool>(), 0..8), 0..60), from in 0..9) {
            let (mut front, mut set) = (Front::default(), BTreeSet::new());
            for (inserts, item) in steps {
                if inserts {
                    front.insert(item);
                    set.insert(item);
                } else {
                    front.remove(&item);
                    set.remove(&item);
                }
                prop_assert!(front.iter().eq(&set));
                prop_assert_eq!(front.first(), set.first());
                prop_assert_eq!(front.first_from(&from), set.range(from..).next());
            }
        }
    }
}
