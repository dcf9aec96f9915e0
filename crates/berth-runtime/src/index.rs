//! Indexes: the objects of a cache by a computed value.

use std::collections::{BTreeSet, HashMap};
use std::marker::PhantomData;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::ObjectKey;
use crate::objects::{AnyObject, Objects, State, typed};

type ValuesFn = Box<dyn Fn(&AnyObject) -> Vec<String> + Send + Sync>;

/// Objects by a computed value, such as pods by node; see [`Cache::index`](crate::Cache::index).
pub struct Index<K> {
    untyped: Untyped,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        Self { untyped: self.untyped.clone(), kind: PhantomData }
    }
}

impl<K> Index<K> {
    /// Adds an index to the objects.
    pub(crate) fn new(objects: &Arc<Objects>, values: ValuesFn) -> Self {
        let state = objects.index(IndexState { values, keys: HashMap::new() });
        Self { untyped: Untyped { objects: objects.clone(), state }, kind: PhantomData }
    }

    /// Returns the objects with this value, ordered by key.
    pub fn get(&self, value: &str) -> Vec<Arc<K>>
    where
        K: Send + Sync + 'static,
    {
        let mut found = Vec::new();
        self.untyped.each(value, &mut |object| found.push(typed(object)));
        found
    }

    /// Returns the keys of the objects with this value, in order.
    pub fn keys(&self, value: &str) -> Vec<ObjectKey> {
        self.untyped.read(value, |_, keys| keys.map(|key| key.as_ref().clone()).collect())
    }

    /// Returns the number of objects with this value.
    pub fn count(&self, value: &str) -> usize {
        self.untyped.read(value, |_, keys| keys.count())
    }
}

/// An index of objects of any kind.
#[derive(Clone)]
struct Untyped {
    objects: Arc<Objects>,
    /// Read and written only while the cache's state is locked, so that the index always matches
    /// the cache.
    state: Arc<RwLock<IndexState>>,
}

impl Untyped {
    fn each(&self, value: &str, visit: &mut dyn FnMut(Arc<AnyObject>)) {
        self.read(value, |state, keys| {
            keys.filter_map(|key| state.objects.get(key)).for_each(|entry| visit(state.typed(entry)));
        });
    }

    fn read<T>(&self, value: &str, f: impl FnOnce(&State, &mut dyn Iterator<Item = &Arc<ObjectKey>>) -> T) -> T {
        self.objects.read(|state| {
            let index = self.state.read();
            f(state, &mut index.keys.get(value).into_iter().flat_map(Keys::iter))
        })
    }
}

/// The keys of an index, by value.
pub(crate) struct IndexState {
    values: ValuesFn,
    keys: HashMap<String, Keys>,
}

/// The keys of one index value; most values have one key.
enum Keys {
    One(Arc<ObjectKey>),
    Many(BTreeSet<Arc<ObjectKey>>),
}

impl Keys {
    fn iter(&self) -> impl Iterator<Item = &Arc<ObjectKey>> {
        let (one, many) = match self {
            Keys::One(key) => (Some(key), None),
            Keys::Many(keys) => (None, Some(keys)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    fn insert(&mut self, key: &Arc<ObjectKey>) {
        match self {
            Keys::One(one) if one == key => {}
            Keys::One(one) => *self = Keys::Many(BTreeSet::from([one.clone(), key.clone()])),
            Keys::Many(keys) => {
                keys.insert(key.clone());
            }
        }
    }

    /// Removes a key. Returns true if no key is left.
    fn remove(&mut self, key: &Arc<ObjectKey>) -> bool {
        match self {
            Keys::One(one) => one == key,
            Keys::Many(keys) => {
                keys.remove(key);
                keys.is_empty()
            }
        }
    }
}

impl IndexState {
    /// Replaces the values of an object. Few changes of an object change its values.
    pub(crate) fn change(&mut self, key: &Arc<ObjectKey>, old: Option<&AnyObject>, new: &AnyObject) {
        let before = old.map(|old| (self.values)(old)).unwrap_or_default();
        let after = (self.values)(new);
        if before != after {
            self.remove_values(key, &before);
            self.insert_values(key, after);
        }
    }

    /// Adds an object.
    pub(crate) fn insert(&mut self, key: &Arc<ObjectKey>, object: &AnyObject) {
        self.insert_values(key, (self.values)(object));
    }

    fn insert_values(&mut self, key: &Arc<ObjectKey>, values: Vec<String>) {
        for value in values {
            match self.keys.get_mut(&value) {
                Some(keys) => keys.insert(key),
                None => {
                    self.keys.insert(value, Keys::One(key.clone()));
                }
            }
        }
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, key: &Arc<ObjectKey>, object: &AnyObject) {
        self.remove_values(key, &(self.values)(object));
    }

    fn remove_values(&mut self, key: &Arc<ObjectKey>, values: &[String]) {
        for value in values {
            if self.keys.get_mut(value).is_some_and(|keys| keys.remove(key)) {
                self.keys.remove(value);
            }
        }
    }
}
