//! The local copy of one kind: what the watch has shown, plus what this process has written since.
//!
//! A controller that has just written an object hands the answer to [`Cache::observe`]; the cache keeps whichever is
//! newer, so a reconcile always reads its own writes and needs no "expectations". Newer is decided by
//! resourceVersion, which Kubernetes lets clients compare as numbers for objects of one resource (KEP-5504).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, RwLock};

use kube::{Resource, ResourceExt};

use crate::ObjectKey;

/// A change of one cached object. At least one side is present.
pub struct Delta<K> {
    /// What was cached before; `None` when the object is new.
    pub old: Option<Arc<K>>,
    /// What is cached now; `None` when the object is gone.
    pub new: Option<Arc<K>>,
}

impl<K> Delta<K> {
    /// The latest known state: the new object, or the last one before it went.
    pub fn latest(&self) -> &Arc<K> {
        self.new.as_ref().or(self.old.as_ref()).expect("a delta has at least one side")
    }
}

type Subscriber<K> = Arc<dyn Fn(&Delta<K>) + Send + Sync>;
type IndexFn<K> = Arc<dyn Fn(&K) -> Vec<String> + Send + Sync>;

/// All objects of one kind, in key order; clones share it.
pub struct Cache<K> {
    inner: Arc<Inner<K>>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

struct Inner<K> {
    state: RwLock<State<K>>,
    subscribers: RwLock<Vec<Subscriber<K>>>,
}

struct State<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    indexes: Vec<IndexState<K>>,
    /// The highest resourceVersion a deletion was seen at, per key, while the watch may still replay older states.
    forgotten: BTreeMap<ObjectKey, u64>,
}

struct IndexState<K> {
    values: IndexFn<K>,
    keys: BTreeMap<String, BTreeSet<ObjectKey>>,
}

/// Objects by a computed value, such as pods by node; see [`Cache::index`].
pub struct Index<K> {
    cache: Cache<K>,
    position: usize,
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        Self { cache: self.cache.clone(), position: self.position }
    }
}

/// How many deletions are remembered against replayed older states; beyond it the oldest keys are dropped.
const FORGOTTEN_MAX: usize = 4096;

impl<K: Resource + 'static> Cache<K> {
    pub(crate) fn new() -> Self {
        let state = State { objects: BTreeMap::new(), indexes: Vec::new(), forgotten: BTreeMap::new() };
        Self { inner: Arc::new(Inner { state: RwLock::new(state), subscribers: RwLock::default() }) }
    }

    /// A cache filled by hand, for tests of code that reads caches.
    pub fn for_tests(objects: impl IntoIterator<Item = K>) -> Self {
        let cache = Self::new();
        for object in objects {
            cache.observe(object);
        }
        cache
    }

    /// The object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read(|state| state.objects.get(key).cloned())
    }

    /// Every object, in key order.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.read(|state| state.objects.values().cloned().collect())
    }

    /// Every object of a namespace, in name order.
    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.read(|state| {
            state
                .objects
                .range(ObjectKey::namespaced(namespace, "")..)
                .take_while(|(key, _)| key.namespace == namespace)
                .map(|(_, object)| object.clone())
                .collect()
        })
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.read(|state| state.objects.len())
    }

    /// True when there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes an index: objects can then be found by any value `values` returns for them, at O(log n).
    pub fn index(&self, values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) -> Index<K> {
        let mut state = self.inner.state.write().expect(LOCK);
        let mut index = IndexState { values: Arc::new(values), keys: BTreeMap::new() };
        for (key, object) in &state.objects {
            index.insert(key, object);
        }
        state.indexes.push(index);
        Index { cache: self.clone(), position: state.indexes.len() - 1 }
    }

    /// Takes in an object this process was handed by the API (the answer to a create, update or patch), unless the
    /// cache already knows a newer state. Watches fire as if the change had come from the server.
    pub fn observe(&self, mut object: K) {
        // As the watch shows it; see `wire`.
        object.meta_mut().managed_fields = None;
        self.apply(object);
    }

    /// Takes in that an object is gone (the answer to a delete that removed it at once).
    pub fn observe_deleted(&self, object: &K) {
        self.remove(object);
    }

    pub(crate) fn apply(&self, object: K) {
        let key = ObjectKey::of(&object);
        let delta = {
            let mut state = self.inner.state.write().expect(LOCK);
            let version = version_of(&object);
            let known = state.objects.get(&key).map(|o| version_of(o.as_ref()));
            let deleted = state.forgotten.get(&key).copied();
            // An equal version is the echo of what was observed already.
            let stale = |seen: Option<u64>| matches!((version, seen), (Some(new), Some(seen)) if new <= seen);
            if stale(known.flatten()) || stale(deleted) {
                return;
            }
            state.forgotten.remove(&key);
            let new = Arc::new(object);
            let old = state.objects.insert(key.clone(), new.clone());
            for index in &mut state.indexes {
                if let Some(old) = &old {
                    index.remove(&key, old);
                }
                index.insert(&key, &new);
            }
            Delta { old, new: Some(new) }
        };
        self.notify(&delta);
    }

    /// Whether the cache has this state of the object, or a later one.
    pub(crate) fn knows(&self, object: &impl Resource) -> bool {
        let key = ObjectKey::of(object);
        let Some(version) = version_of(object) else { return false };
        self.read(|state| {
            let known = state.objects.get(&key).and_then(|known| version_of(known.as_ref()));
            let deleted = state.forgotten.get(&key).copied();
            known.max(deleted).is_some_and(|seen| version <= seen)
        })
    }

    pub(crate) fn remove(&self, object: &impl Resource) {
        let key = ObjectKey::of(object);
        let delta = {
            let mut state = self.inner.state.write().expect(LOCK);
            let version = version_of(object);
            let Some(known) = state.objects.get(&key) else { return };
            // A deletion of an earlier object of the same name says nothing about the present one.
            if known.uid() != object.uid() && known.uid().is_some() && object.uid().is_some() {
                return;
            }
            let old = state.objects.remove(&key);
            if let Some(old) = &old {
                for index in &mut state.indexes {
                    index.remove(&key, old);
                }
            }
            let seen = old.as_ref().and_then(|o| version_of(o.as_ref())).max(version);
            if let Some(seen) = seen {
                state.forgotten.insert(key, seen);
                if state.forgotten.len() > FORGOTTEN_MAX {
                    state.forgotten.pop_first();
                }
            }
            Delta { old, new: None }
        };
        self.notify(&delta);
    }

    /// Makes the cache hold exactly what a fresh list showed: objects it did not name are gone.
    pub(crate) fn retain(&self, listed: &BTreeSet<ObjectKey>) {
        let gone: Vec<Arc<K>> = self.read(|state| {
            state.objects.iter().filter(|(key, _)| !listed.contains(key)).map(|(_, object)| object.clone()).collect()
        });
        for object in gone {
            self.remove(object.as_ref());
        }
    }

    pub(crate) fn subscribe(&self, subscriber: Subscriber<K>) {
        self.inner.subscribers.write().expect(LOCK).push(subscriber);
    }

    fn notify(&self, delta: &Delta<K>) {
        let subscribers = self.inner.subscribers.read().expect(LOCK).clone();
        for subscriber in subscribers {
            subscriber(delta);
        }
    }

    fn read<T>(&self, f: impl FnOnce(&State<K>) -> T) -> T {
        f(&self.inner.state.read().expect(LOCK))
    }
}

impl<K: Resource + 'static> Index<K> {
    /// The objects with this value, in key order.
    pub fn get(&self, value: &str) -> Vec<Arc<K>> {
        self.cache.read(|state| {
            let keys = state.indexes[self.position].keys.get(value);
            keys.into_iter().flatten().filter_map(|key| state.objects.get(key).cloned()).collect()
        })
    }

    /// How many objects have this value.
    pub fn count(&self, value: &str) -> usize {
        self.cache.read(|state| state.indexes[self.position].keys.get(value).map_or(0, BTreeSet::len))
    }
}

impl<K> IndexState<K> {
    fn insert(&mut self, key: &ObjectKey, object: &K) {
        for value in (self.values)(object) {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &ObjectKey, object: &K) {
        for value in (self.values)(object) {
            if let Some(keys) = self.keys.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&value);
                }
            }
        }
    }
}

fn version_of<K: Resource>(object: &K) -> Option<u64> {
    object.meta().resource_version.as_deref().and_then(|version| version.parse().ok())
}

const LOCK: &str = "no code panics while holding a cache's lock";

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::ObjectMeta;

    use super::*;

    fn config_map(name: &str, version: u64) -> ConfigMap {
        let metadata = ObjectMeta {
            name: Some(name.into()),
            namespace: Some("ns".into()),
            uid: Some("u".into()),
            resource_version: Some(version.to_string()),
            ..Default::default()
        };
        ConfigMap { metadata, ..Default::default() }
    }

    #[test]
    fn an_older_state_never_replaces_a_newer_one() {
        let cache = Cache::for_tests([config_map("a", 7)]);
        cache.apply(config_map("a", 5));
        assert_eq!(cache.list()[0].metadata.resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn a_replayed_state_does_not_bring_a_deleted_object_back() {
        let cache = Cache::for_tests([config_map("a", 7)]);
        cache.observe_deleted(&config_map("a", 9));
        cache.apply(config_map("a", 8));
        assert!(cache.is_empty());
        cache.apply(config_map("a", 12));
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn an_index_follows_changes() {
        let cache = Cache::for_tests([config_map("a", 1), config_map("b", 2)]);
        let by_name = cache.index(|c: &ConfigMap| vec![c.name_any()]);
        assert_eq!(by_name.count("b"), 1);
        cache.remove(&config_map("b", 3));
        assert_eq!(by_name.count("b"), 0);
        assert_eq!(by_name.get("a").len(), 1);
    }
}
