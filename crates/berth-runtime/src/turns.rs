//! A queue in which namespaces take turns, so that a flood of items from one tenant delays an item
//! of another tenant by one turn.

use std::collections::{HashMap, VecDeque};

/// Items by namespace. Items of one namespace leave in the order in which they were added.
pub(crate) struct Turns<T> {
    /// Items by namespace; no list is empty. Only the search for the longest list iterates this
    /// map, so its order does not matter.
    waiting: HashMap<String, VecDeque<T>>,
    /// The namespaces of `waiting`, in the order of their turns.
    order: VecDeque<String>,
    len: usize,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { waiting: HashMap::new(), order: VecDeque::new(), len: 0 }
    }
}

impl<T> Turns<T> {
    /// Returns the number of items.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds an item after the others of its namespace.
    pub(crate) fn push(&mut self, namespace: &str, item: T) {
        self.len += 1;
        match self.waiting.get_mut(namespace) {
            Some(others) => others.push_back(item),
            None => {
                self.order.push_back(namespace.to_owned());
                self.waiting.insert(namespace.to_owned(), VecDeque::from([item]));
            }
        }
    }

    /// Removes and returns the first item of the namespace whose turn it is.
    pub(crate) fn next(&mut self) -> Option<T> {
        let namespace = self.order.pop_front()?;
        let items = self.waiting.get_mut(&namespace)?;
        let item = items.pop_front();
        if items.is_empty() {
            self.waiting.remove(&namespace);
        } else {
            self.order.push_back(namespace);
        }
        self.len -= usize::from(item.is_some());
        item
    }

    /// Removes and returns the newest item of the namespace with the most items, if that has more
    /// items than `namespace` would have with one more.
    pub(crate) fn take_from_longest(&mut self, namespace: &str) -> Option<T> {
        let own = self.waiting.get(namespace).map_or(0, VecDeque::len);
        // Among equals, the first by name, because the order of the map is random.
        let longest = self.waiting.iter().max_by_key(|(name, items)| (items.len(), std::cmp::Reverse(*name)));
        let (name, length) = longest.map(|(name, items)| (name.clone(), items.len()))?;
        if length <= own + 1 {
            return None;
        }
        let item = self.waiting.get_mut(&name)?.pop_back();
        self.len -= usize::from(item.is_some());
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_take_turns_and_the_longest_loses_an_item() {
        let mut turns = Turns::default();
        (0..5).for_each(|number| turns.push("blue", number));
        turns.push("green", 10);
        assert_eq!(turns.next(), Some(0));
        assert_eq!(turns.next(), Some(10));
        turns.push("green", 11);
        assert_eq!(turns.take_from_longest("green"), Some(4), "the newest item of the longest queue");
        assert_eq!(turns.take_from_longest("blue"), None);
        assert_eq!(turns.take_from_longest("red"), Some(3));
        assert_eq!(turns.len(), 3);
        assert_eq!(std::iter::from_fn(|| turns.next()).collect::<Vec<_>>(), [1, 11, 2]);
        assert_eq!((turns.len(), turns.waiting.len(), turns.order.len()), (0, 0, 0));
    }
}
