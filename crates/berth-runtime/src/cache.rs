//! The local copy of one kind: the objects of the watch, updated with the responses to this
//! process's own writes.
//!
//! A controller passes the response to a write to [`Cache::observe`]. The cache keeps the newer
//! state, so a reconcile always reads its own writes and needs no "expectations". The
//! resourceVersion decides which state is newer; Kubernetes allows clients to compare it as a
//! number within one resource (KEP-5504).
//!
//! A cache of many objects can keep only the recently used ones as typed values and pack the
//! others: see [`Cache::pack_idle`]. A cache can also keep only the parts of objects that are used:
//! see [`Cache::project`].

use berth_api::json::Json;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use berth_apimachinery::condensed::Condensed;
use kube::Resource;
use parking_lot::{ReentrantMutex, RwLock};

use crate::ObjectKey;
use crate::packing::Packing;
use crate::view::{Follower, Rows, View};

/// A change to one cached object. At least one side is set, and both sides have the same UID: an
/// object that replaced another one of the same name is shown as a deletion and then as new.
pub struct Delta<K> {
    /// The object before the change; `None` if it is new.
    pub old: Option<Arc<K>>,
    /// The object after the change; `None` if it was deleted.
    pub new: Option<Arc<K>>,
}

impl<K> Delta<K> {
    /// Returns the new object, or the last state of a deleted one.
    pub fn latest(&self) -> &Arc<K> {
        self.new.as_ref().or(self.old.as_ref()).expect("a delta has at least one side")
    }
}

/// A callback for every change, which is called while its owner holds it.
pub(crate) type Subscriber<K> = dyn Fn(&Delta<K>) + Send + Sync;
type IndexFn<K> = Arc<dyn Fn(&K) -> Vec<String> + Send + Sync>;

/// All objects of one kind, ordered by key; clones share the cache.
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
    /// Held over a change and its notification. The watch and the responses to writes change the
    /// cache from several threads, and subscribers must get the changes in the order in which the
    /// cache applied them. A subscriber may change the same cache again.
    changes: ReentrantMutex<()>,
    /// Owned by the controllers, so a stopped controller gets no changes.
    subscribers: RwLock<Vec<Weak<Subscriber<K>>>>,
    /// Removes unused parts of an object.
    projection: OnceLock<fn(&mut K)>,
    /// True once all objects of the kind have been listed.
    complete: AtomicBool,
}

struct State<K> {
    /// Objects by key. A hash map, because an ordered search among tens of thousands of keys has a
    /// cache miss at every step.
    objects: HashMap<Arc<ObjectKey>, Entry<K>>,
    /// The keys of `objects`.
    order: BTreeSet<Arc<ObjectKey>>,
    /// The indexes that are still in use.
    indexes: Vec<Weak<RwLock<IndexState<K>>>>,
    /// The views that are still in use.
    views: Vec<Weak<dyn Follower<K>>>,
    /// The highest resourceVersion of a deletion per key, kept while the watch may still replay
    /// older states.
    forgotten: HashMap<Arc<ObjectKey>, u64>,
    /// The entries of `forgotten`, oldest first.
    forgotten_order: VecDeque<(Arc<ObjectKey>, u64)>,
    /// Packs idle objects; `None` if packing is off.
    packing: Option<Packing<K>>,
    /// With packing: objects that may be unpacked, least recently used first, with their version at
    /// that time.
    touched: VecDeque<(Arc<ObjectKey>, Option<u64>)>,
    /// Number of the first entries of `touched` that the last [`Cache::pack_unused`] left there.
    unused: usize,
}

/// A cached object: the typed value, its packed form, or both if it was read after it was packed.
struct Entry<K> {
    version: Option<u64>,
    typed: Option<Arc<K>>,
    packed: Option<Condensed>,
}

struct IndexState<K> {
    values: IndexFn<K>,
    keys: HashMap<String, Keys>,
}

/// The keys of one index value; most values have one key.
enum Keys {
    One(Arc<ObjectKey>),
    Many(BTreeSet<Arc<ObjectKey>>),
}

/// Objects by a computed value, such as pods by node; see [`Cache::index`].
pub struct Index<K> {
    cache: Cache<K>,
    /// Read and written only while the cache's state is locked, so that the index always matches
    /// the cache.
    state: Arc<RwLock<IndexState<K>>>,
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        Self { cache: self.cache.clone(), state: self.state.clone() }
    }
}

/// Maximum number of remembered deletions, which prevent a replayed older state from restoring a
/// deleted object. Beyond it, the oldest ones are dropped.
const FORGOTTEN_MAX: usize = 4096;

/// Number of recently used objects that stay unpacked, at about eight kilobytes each. This covers
/// most objects of a busy second, which are used several times each.
const UNPACKED_MAX: usize = 4096;

/// Number of objects that are packed while the cache is locked, which takes about a millisecond.
const PACKED_AT_ONCE: usize = 32;

impl<K: Resource + 'static> Cache<K> {
    pub(crate) fn new() -> Self {
        let state = State {
            objects: HashMap::new(),
            order: BTreeSet::new(),
            indexes: Vec::new(),
            views: Vec::new(),
            forgotten: HashMap::new(),
            forgotten_order: VecDeque::new(),
            packing: None,
            touched: VecDeque::new(),
            unused: 0,
        };
        let (subscribers, projection) = (RwLock::default(), OnceLock::new());
        let (state, changes, complete) = (RwLock::new(state), ReentrantMutex::new(()), AtomicBool::new(false));
        let inner = Inner { state, changes, subscribers, projection, complete };
        Self { inner: Arc::new(inner) }
    }

    /// True if an object that is not in the cache does not exist. It is false until the objects of
    /// the kind have been listed. Listing may fail, or the cluster may not serve the version that
    /// Berth reads.
    pub fn is_complete(&self) -> bool {
        self.inner.complete.load(Ordering::Acquire)
    }

    pub(crate) fn set_complete(&self, complete: bool) {
        self.inner.complete.store(complete, Ordering::Release);
    }

    /// Creates a complete cache of these objects, for tests.
    pub fn for_tests(objects: impl IntoIterator<Item = K>) -> Self {
        let cache = Self::new();
        for object in objects {
            cache.observe(object);
        }
        cache.set_complete(true);
        cache
    }

    /// Packs all but a few thousand recently used objects. A packed object takes a tenth of the
    /// memory, and each read costs about as much as decoding it. This is for kinds with very many
    /// objects, most of which are idle for a long time.
    pub fn pack_idle(&self)
    where
        K: Json,
    {
        let mut state = self.inner.state.write();
        if state.packing.is_none() {
            state.packing = Some(Packing::new());
            state.touched = state.entries().map(|(key, entry)| (key.clone(), entry.version)).collect();
            while state.touched.len() > UNPACKED_MAX {
                state.pack_oldest();
            }
        }
    }

    /// Packs the objects that were neither changed nor unpacked since the last call, if
    /// [`Cache::pack_idle`] was called. Called every some seconds, it leaves only the objects unpacked
    /// that are in use.
    pub(crate) fn pack_unused(&self) {
        loop {
            let mut state = self.inner.state.write();
            if state.unused == 0 {
                state.unused = state.touched.len();
                return;
            }
            // Readers need not wait until all of them are packed.
            for _ in 0..state.unused.min(PACKED_AT_ONCE) {
                state.pack_oldest();
            }
        }
    }

    /// Sets the function that removes unused parts of every object. Only the first call has an
    /// effect. Objects of such a cache must not be written back as a whole.
    pub(crate) fn project(&self, leave_out: fn(&mut K)) {
        self.inner.projection.get_or_init(|| leave_out);
    }

    /// Returns the object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        let object = self.read(|state| {
            let entry = state.objects.get(key)?;
            Some(entry.typed.clone().ok_or_else(|| state.unpacked(entry)))
        })?;
        match object {
            Ok(object) => Some(object),
            Err(unpacked) => Some(self.inner.state.write().keep_unpacked(key, unpacked)),
        }
    }

    /// Returns all objects, ordered by key.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.read(|state| state.entries().map(|(_, entry)| state.typed(entry)).collect())
    }

    /// Returns all objects of a namespace, ordered by name.
    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.read(|state| state.in_namespace(namespace).map(|(_, entry)| state.typed(entry)).collect())
    }

    /// Iterates over all objects, ordered by key, without unpacking all of them at once. Objects
    /// that are deleted during the iteration are skipped; the others are returned in their current
    /// state.
    pub fn iter(&self) -> impl Iterator<Item = Arc<K>> + use<K> {
        let keys: Vec<_> = self.read(|state| state.order.iter().cloned().collect());
        let cache = self.clone();
        keys.into_iter().filter_map(move |key| cache.peek(&key))
    }

    /// Iterates over the objects of a namespace, ordered by name.
    pub fn iter_namespace(&self, namespace: &str) -> impl Iterator<Item = Arc<K>> + use<K> {
        let keys: Vec<_> = self.read(|state| state.in_namespace(namespace).map(|(key, _)| key.clone()).collect());
        let cache = self.clone();
        keys.into_iter().filter_map(move |key| cache.peek(&key))
    }

    /// Returns the object with this key. A packed object stays packed.
    fn peek(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read(|state| state.objects.get(key).map(|entry| state.typed(entry)))
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.read(|state| state.objects.len())
    }

    /// Returns how often a packed object was unpacked for a read; zero without packing.
    pub fn unpacked(&self) -> u64 {
        self.read(|state| state.packing.as_ref().map_or(0, Packing::unpacked))
    }

    /// True if the cache has no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Creates an index, which finds objects by any of the values that `values` returns for them,
    /// at O(log n). It is updated until it is dropped.
    pub fn index(&self, values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) -> Index<K> {
        let mut state = self.inner.state.write();
        let mut index = IndexState { values: Arc::new(values), keys: HashMap::new() };
        for (key, entry) in state.entries() {
            index.insert(key, &state.typed(entry));
        }
        let index = Arc::new(RwLock::new(index));
        state.indexes.retain(|known| known.strong_count() > 0);
        state.indexes.push(Arc::downgrade(&index));
        Index { cache: self.clone(), state: index }
    }

    /// Creates a view: a value per object, without the objects for which `of` returns none.
    pub fn view<R>(&self, of: impl Fn(&K) -> Option<R> + Send + Sync + 'static) -> View<K, R>
    where
        K: Send + Sync,
        R: Send + Sync + 'static,
    {
        self.view_in(of)
    }

    /// Creates a view that keeps its values in `T`.
    pub fn view_in<R, T>(&self, of: impl Fn(&K) -> Option<R> + Send + Sync + 'static) -> View<K, R, T>
    where
        K: Send + Sync,
        R: Send + Sync + 'static,
        T: Rows<R> + 'static,
    {
        let view = View::new(of);
        let follower: Weak<dyn Follower<K>> = Arc::downgrade(&(view.inner().clone() as Arc<dyn Follower<K>>));
        let keys: Vec<_> = {
            let mut state = self.inner.state.write();
            state.views.retain(|known| known.strong_count() > 0);
            state.views.push(follower);
            state.order.iter().cloned().collect()
        };
        // One object at a time, because the cache is in use while a hundred thousand are unpacked. A
        // change needs the lock too, so it comes before or after.
        for key in keys {
            self.read(|state| {
                if let Some(entry) = state.objects.get(&key) {
                    view.inner().change(&key, Some(&state.typed(entry)));
                }
            });
        }
        view
    }

    /// Adds the object in the response to a create, update or patch, unless the cache has a newer
    /// state. Subscribers get the change as if the watch had shown it.
    pub fn observe(&self, mut object: K) {
        // The watch also drops this field; see `wire`.
        object.meta_mut().managed_fields = None;
        self.apply(object);
    }

    /// Removes an object after a delete that took effect at once.
    pub fn observe_deleted(&self, object: &K) {
        self.remove(object);
    }

    pub(crate) fn apply(&self, mut object: K) {
        if let Some(leave_out) = self.inner.projection.get() {
            leave_out(&mut object);
        }
        let key = ObjectKey::of(&object);
        let _ordered = self.inner.changes.lock();
        let delta = {
            let mut state = self.inner.state.write();
            let version = version_of(&object);
            let known = state.objects.get_key_value(&key).map(|(key, entry)| (key.clone(), entry.version));
            let deleted = state.forgotten.get(&key).copied();
            // An equal version was already observed in a response.
            let stale = |seen: Option<u64>| matches!((version, seen), (Some(new), Some(seen)) if new <= seen);
            if stale(known.as_ref().and_then(|(_, version)| *version)) || stale(deleted) {
                return;
            }
            state.forgotten.remove(&key);
            let key = known.map_or_else(
                || {
                    let key = Arc::new(key);
                    state.order.insert(key.clone());
                    key
                },
                |(key, _)| key,
            );
            let new = Arc::new(object);
            let entry = Entry { version, typed: Some(new.clone()), packed: None };
            let old = state.objects.insert(key.clone(), entry).map(|old| state.typed(&old));
            for index in state.indexes.iter().filter_map(Weak::upgrade) {
                index.write().change(&key, old.as_deref(), &new);
            }
            state.show(&key, Some(&new));
            state.touch(&key, version);
            Delta { old, new: Some(new) }
        };
        match delta {
            // The response to a create can arrive before the watch shows that the earlier object of
            // this name was deleted.
            Delta { old: Some(old), new: Some(new) } if are_different(old.as_ref(), new.as_ref()) => {
                self.notify(&Delta { old: Some(old), new: None });
                self.notify(&Delta { old: None, new: Some(new) });
            }
            delta => self.notify(&delta),
        }
    }

    /// True if the cache has this state of the object or a later one.
    pub(crate) fn knows(&self, object: &impl Resource) -> bool {
        let key = ObjectKey::of(object);
        let Some(version) = version_of(object) else { return false };
        self.read(|state| {
            let known = state.objects.get(&key).and_then(|known| known.version);
            let deleted = state.forgotten.get(&key).copied();
            known.max(deleted).is_some_and(|seen| version <= seen)
        })
    }

    pub(crate) fn remove(&self, object: &impl Resource) {
        let key = ObjectKey::of(object);
        let _ordered = self.inner.changes.lock();
        let delta = {
            let mut state = self.inner.state.write();
            let version = version_of(object);
            let Some((key, entry)) = state.objects.get_key_value(&key) else { return };
            let (key, known, old) = (key.clone(), entry.version, state.typed(entry));
            // Ignore the deletion of an earlier object with the same name.
            if are_different(old.as_ref(), object) {
                return;
            }
            state.objects.remove(&key);
            state.order.remove(&key);
            for index in state.indexes.iter().filter_map(Weak::upgrade) {
                index.write().remove(&key, &old);
            }
            state.show(&key, None);
            if let Some(seen) = known.max(version) {
                state.forget(key, seen);
            }
            Delta { old: Some(old), new: None }
        };
        self.notify(&delta);
    }

    /// Removes all objects that are not in `listed`, the keys of a new complete list.
    pub(crate) fn retain(&self, listed: &BTreeSet<ObjectKey>) {
        let gone: Vec<Arc<K>> = self.read(|state| {
            let unlisted = state.entries().filter(|(key, _)| !listed.contains(key.as_ref()));
            unlisted.map(|(_, entry)| state.typed(entry)).collect()
        });
        for object in gone {
            self.remove(object.as_ref());
        }
    }

    /// Removes the objects that are not in `listed`, the keys of a complete list at `revision`,
    /// unless they are newer.
    pub(crate) fn forget_before(&self, revision: u64, listed: &BTreeSet<ObjectKey>)
    where
        K: Clone,
    {
        let older = |object: &K| version_of(object).is_some_and(|version| version <= revision);
        let gone: Vec<Arc<K>> = self.read(|state| {
            let unlisted = state.entries().filter(|(key, _)| !listed.contains(key.as_ref()));
            unlisted.map(|(_, entry)| state.typed(entry)).filter(|object| older(object.as_ref())).collect()
        });
        for object in gone {
            // A lagging watch may still show states from before the list.
            let mut last = (*object).clone();
            last.meta_mut().resource_version = Some(revision.to_string());
            self.remove(&last);
        }
    }

    /// True if the cache has an object that is not in `listed`.
    pub(crate) fn has_others(&self, listed: &BTreeSet<ObjectKey>) -> bool {
        self.read(|state| state.objects.keys().any(|key| !listed.contains(key.as_ref())))
    }

    /// Calls the subscriber for every change until it is dropped.
    pub(crate) fn subscribe(&self, subscriber: &Arc<Subscriber<K>>) {
        let mut subscribers = self.inner.subscribers.write();
        subscribers.retain(|known| known.strong_count() > 0);
        subscribers.push(Arc::downgrade(subscriber));
    }

    /// Sends every object to the subscribers as new.
    pub(crate) fn replay(&self) {
        let _ordered = self.inner.changes.lock();
        for object in self.iter() {
            self.notify(&Delta { old: None, new: Some(object) });
        }
    }

    fn notify(&self, delta: &Delta<K>) {
        let subscribers = self.inner.subscribers.read();
        let subscribers: Vec<_> = subscribers.iter().filter_map(Weak::upgrade).collect();
        for subscriber in subscribers {
            subscriber(delta);
        }
    }

    fn read<T>(&self, f: impl FnOnce(&State<K>) -> T) -> T {
        f(&self.inner.state.read())
    }
}

impl<K> State<K> {
    /// Returns the typed object, unpacked if necessary.
    fn typed(&self, entry: &Entry<K>) -> Arc<K> {
        entry.typed.clone().unwrap_or_else(|| self.unpacked(entry))
    }

    fn unpacked(&self, entry: &Entry<K>) -> Arc<K> {
        let (packing, packed) = (self.packing.as_ref().expect(PACKED), entry.packed.as_ref().expect(PACKED));
        Arc::new(packing.unpack(packed))
    }

    /// Passes a change to the views.
    fn show(&self, key: &Arc<ObjectKey>, new: Option<&K>) {
        for view in self.views.iter().filter_map(Weak::upgrade) {
            view.change(key, new);
        }
    }

    fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = (&Arc<ObjectKey>, &Entry<K>)> {
        let start = ObjectKey::namespaced(namespace, "");
        let keys = self.order.range::<ObjectKey, _>(&start..).take_while(move |key| key.namespace == start.namespace);
        keys.filter_map(|key| Some((key, self.objects.get(key)?)))
    }

    /// Returns all entries, ordered by key.
    fn entries(&self) -> impl Iterator<Item = (&Arc<ObjectKey>, &Entry<K>)> {
        self.order.iter().filter_map(|key| Some((key, self.objects.get(key)?)))
    }

    /// Keeps an unpacked object, because an object that was read once is likely to be read again
    /// soon.
    fn keep_unpacked(&mut self, key: &ObjectKey, unpacked: Arc<K>) -> Arc<K>
    where
        K: Resource,
    {
        let Some((key, entry)) = self.objects.get_key_value(key) else { return unpacked };
        let (key, version) = (key.clone(), entry.version);
        if let Some(typed) = &entry.typed {
            return typed.clone();
        }
        if version != version_of(unpacked.as_ref()) {
            // The object has changed and was packed again in the meantime.
            return self.unpacked(entry);
        }
        if let Some(entry) = self.objects.get_mut(&key) {
            entry.typed = Some(unpacked.clone());
        }
        self.touch(&key, version);
        unpacked
    }

    /// Records the version at which an object was deleted, and drops the oldest record if there are
    /// too many.
    fn forget(&mut self, key: Arc<ObjectKey>, seen: u64) {
        self.forgotten.insert(key.clone(), seen);
        self.forgotten_order.push_back((key, seen));
        if self.forgotten_order.len() > FORGOTTEN_MAX
            && let Some((oldest, seen)) = self.forgotten_order.pop_front()
            // The object may have been created and deleted again since then.
            && self.forgotten.get(&oldest) == Some(&seen)
        {
            self.forgotten.remove(&oldest);
        }
    }

    fn touch(&mut self, key: &Arc<ObjectKey>, version: Option<u64>) {
        if self.packing.is_none() {
            return;
        }
        self.touched.push_back((key.clone(), version));
        if self.touched.len() > UNPACKED_MAX {
            self.pack_oldest();
        }
    }

    fn pack_oldest(&mut self) {
        let Some((key, version)) = self.touched.pop_front() else { return };
        self.unused = self.unused.saturating_sub(1);
        // A changed object has a later entry in `touched`.
        let Some(entry) = self.objects.get_mut(&key).filter(|entry| entry.version == version) else { return };
        let (Some(packing), Some(typed)) = (&mut self.packing, &entry.typed) else { return };
        if entry.packed.is_none() {
            entry.packed = packing.pack(typed);
        }
        // An object that cannot be packed stays unpacked.
        if entry.packed.is_some() {
            entry.typed = None;
        }
    }
}

impl<K: Resource + 'static> Index<K> {
    /// Returns the objects with this value, ordered by key.
    pub fn get(&self, value: &str) -> Vec<Arc<K>> {
        self.read(value, |state, keys| {
            keys.filter_map(|key| state.objects.get(key)).map(|entry| state.typed(entry)).collect()
        })
    }

    /// Returns the keys of the objects with this value, in order.
    pub fn keys(&self, value: &str) -> Vec<ObjectKey> {
        self.read(value, |_, keys| keys.map(|key| key.as_ref().clone()).collect())
    }

    /// Returns the number of objects with this value.
    pub fn count(&self, value: &str) -> usize {
        self.read(value, |_, keys| keys.count())
    }

    fn read<T>(&self, value: &str, f: impl FnOnce(&State<K>, &mut dyn Iterator<Item = &Arc<ObjectKey>>) -> T) -> T {
        self.cache.read(|state| {
            let index = self.state.read();
            f(state, &mut index.keys.get(value).into_iter().flat_map(Keys::iter))
        })
    }
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

impl<K> IndexState<K> {
    /// Replaces the values of an object. Few changes of an object change its values.
    fn change(&mut self, key: &Arc<ObjectKey>, old: Option<&K>, new: &K) {
        let before = old.map(|old| (self.values)(old)).unwrap_or_default();
        let after = (self.values)(new);
        if before != after {
            self.remove_values(key, &before);
            self.insert_values(key, after);
        }
    }

    fn insert(&mut self, key: &Arc<ObjectKey>, object: &K) {
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

    fn remove(&mut self, key: &Arc<ObjectKey>, object: &K) {
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

/// True if both objects have a UID, and not the same.
fn are_different(a: &impl Resource, b: &impl Resource) -> bool {
    matches!((&a.meta().uid, &b.meta().uid), (Some(a), Some(b)) if a != b)
}

/// The version of an object as a number.
pub(crate) fn version_of<K: Resource>(object: &K) -> Option<u64> {
    object.meta().resource_version.as_deref().and_then(|version| version.parse().ok())
}

const PACKED: &str = "an entry without a typed object has a packed one";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt;
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
    fn a_replayed_state_does_not_restore_a_deleted_object() {
        let cache = Cache::for_tests([config_map("a", 7)]);
        cache.observe_deleted(&config_map("a", 9));
        cache.apply(config_map("a", 8));
        assert!(cache.is_empty());
        cache.apply(config_map("a", 12));
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn only_the_latest_deletions_are_remembered() {
        let cache = Cache::for_tests([]);
        // The last deleted object is the first by name.
        for number in (0..=FORGOTTEN_MAX).rev() {
            cache.apply(config_map(&format!("{number:05}"), 7));
            cache.remove(&config_map(&format!("{number:05}"), 9));
        }
        cache.apply(config_map("00000", 8));
        assert!(cache.is_empty());
        cache.apply(config_map(&format!("{FORGOTTEN_MAX:05}"), 8));
        assert_eq!(cache.len(), 1, "the oldest deletion is no longer remembered");
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

    #[test]
    fn an_index_follows_the_values_of_a_changed_object() {
        let labelled = |version: u64, value: &str| {
            let mut object = config_map("a", version);
            object.metadata.labels = Some([("of".to_owned(), value.to_owned())].into());
            object
        };
        let cache = Cache::for_tests([labelled(1, "x")]);
        let index = cache.index(|c: &ConfigMap| c.labels().values().cloned().collect());
        cache.apply(labelled(2, "x"));
        assert_eq!(index.get("x")[0].metadata.resource_version.as_deref(), Some("2"), "the same value, a new state");
        cache.apply(labelled(3, "y"));
        assert_eq!((index.count("x"), index.count("y")), (0, 1));
        cache.apply(config_map("a", 4));
        assert_eq!(index.count("y"), 0);
    }

    #[test]
    fn dropped_subscribers_get_no_changes_and_dropped_indexes_are_removed() {
        let cache = Cache::for_tests([config_map("a", 1)]);
        let received = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let log = received.clone();
        let subscriber: Arc<Subscriber<ConfigMap>> = Arc::new(move |delta: &Delta<ConfigMap>| {
            log.lock().push((delta.latest().name_any(), delta.old.is_some()));
        });
        cache.subscribe(&subscriber);
        let index = cache.index(|c: &ConfigMap| vec![c.name_any()]);
        cache.apply(config_map("b", 2));
        cache.replay();
        let all = [("b", false), ("a", false), ("b", false)].map(|(name, changed)| (name.to_owned(), changed));
        assert_eq!(*received.lock(), all, "a change, and then all objects as new");

        drop((subscriber, index));
        cache.apply(config_map("a", 3));
        assert_eq!(received.lock().len(), 3);
        let _other = cache.index(|c: &ConfigMap| vec![c.name_any()]);
        assert_eq!(cache.read(|state| state.indexes.len()), 1);
    }

    /// A subscriber that records both sides of each change as `UID@resourceVersion`.
    #[expect(clippy::type_complexity, reason = "the two sides of each change, and the subscriber")]
    fn recorded(
        cache: &Cache<ConfigMap>,
    ) -> (Arc<parking_lot::Mutex<Vec<[Option<String>; 2]>>>, Arc<Subscriber<ConfigMap>>) {
        let received = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let log = received.clone();
        let state = |side: &Option<Arc<ConfigMap>>| {
            let meta = &side.as_ref()?.metadata;
            Some(format!("{}@{}", meta.uid.as_ref()?, meta.resource_version.as_ref()?))
        };
        let subscriber: Arc<Subscriber<ConfigMap>> = Arc::new(move |delta: &Delta<ConfigMap>| {
            log.lock().push([state(&delta.old), state(&delta.new)]);
        });
        cache.subscribe(&subscriber);
        (received, subscriber)
    }

    #[test]
    fn a_replaced_object_is_shown_as_deleted_and_then_as_new() {
        let cache = Cache::for_tests([config_map("a", 7)]);
        let (received, _subscriber) = recorded(&cache);
        let mut replacement = config_map("a", 9);
        replacement.metadata.uid = Some("second".into());
        cache.observe(replacement);
        // The watch is late: it shows the deletion after the response to the create.
        cache.remove(&config_map("a", 8));
        let side = |state: &str| Some(state.to_owned());
        assert_eq!(*received.lock(), [[side("u@7"), None], [None, side("second@9")]]);
    }

    #[test]
    fn subscribers_get_the_changes_of_several_threads_in_the_order_of_the_cache() {
        let cache = Cache::for_tests([]);
        let (received, _subscriber) = recorded(&cache);
        // The notification of the first change takes long, so that the second thread can change the
        // cache in the meantime.
        let (notifying, notified) = std::sync::mpsc::channel();
        let (late, is_late) = std::sync::mpsc::channel();
        let (notifying, is_late) = (parking_lot::Mutex::new(notifying), parking_lot::Mutex::new(is_late));
        let slow: Arc<Subscriber<ConfigMap>> = Arc::new(move |delta: &Delta<ConfigMap>| {
            if delta.new.is_some() {
                notifying.lock().send(()).unwrap();
                let _ = is_late.lock().recv_timeout(Duration::from_millis(50));
            }
        });
        cache.inner.subscribers.write().insert(0, Arc::downgrade(&slow));
        std::thread::scope(|scope| {
            scope.spawn(|| cache.observe(config_map("a", 7)));
            notified.recv().unwrap();
            cache.remove(&config_map("a", 8));
            let _ = late.send(());
        });
        let side = || Some("u@7".to_owned());
        assert_eq!(*received.lock(), [[None, side()], [side(), None]]);
    }

    #[test]
    fn idle_objects_are_packed_and_unpacked_unchanged() {
        let all = || (0..UNPACKED_MAX + 100).map(|number| config_map(&format!("{number:05}"), 7));
        let typed = |cache: &Cache<ConfigMap>| {
            cache.read(|state| state.objects.values().filter(|entry| entry.typed.is_some()).count())
        };
        let cache = Cache::for_tests([]);
        let by_last = cache.index(|c: &ConfigMap| vec![c.name_any().split_off(4)]);
        cache.pack_idle();
        all().for_each(|object| cache.observe(object));
        assert_eq!(typed(&cache), UNPACKED_MAX);
        assert!(cache.iter().map(|object| (*object).clone()).eq(all()));
        assert_eq!(cache.list().len(), UNPACKED_MAX + 100);
        assert_eq!(typed(&cache), UNPACKED_MAX, "iterating and listing keep no object unpacked");
        assert_eq!(by_last.get("0").len(), by_last.count("0"));

        // An object that is read or changed stays unpacked.
        let first = ObjectKey::namespaced("ns", "00000");
        assert_eq!(*cache.get(&first).unwrap(), config_map("00000", 7));
        assert!(Arc::ptr_eq(&cache.get(&first).unwrap(), &cache.get(&first).unwrap()));
        assert_eq!(typed(&cache), UNPACKED_MAX);
        assert!(cache.knows(&config_map("00001", 7)) && !cache.knows(&config_map("00001", 8)));
        let before = by_last.count("1");
        cache.apply(config_map("00001", 8));
        assert_eq!(cache.get(&ObjectKey::namespaced("ns", "00001")).unwrap().resource_version().unwrap(), "8");
        assert_eq!(by_last.count("1"), before);
        cache.remove(&config_map("00002", 9));
        assert_eq!(cache.get(&ObjectKey::namespaced("ns", "00002")), None);
        assert_eq!(cache.len(), UNPACKED_MAX + 99);
    }

    #[test]
    fn objects_that_are_not_used_between_two_calls_are_packed() {
        let names = |cache: &Cache<ConfigMap>| {
            cache.read(|state| {
                let typed = state.entries().filter(|(_, entry)| entry.typed.is_some());
                typed.map(|(key, _)| key.name.clone()).collect::<Vec<_>>()
            })
        };
        let cache = Cache::for_tests((0..100).map(|number| config_map(&format!("{number:05}"), 7)));
        cache.pack_unused();
        cache.pack_unused();
        assert_eq!(names(&cache).len(), 100, "packing is off");
        cache.pack_idle();
        cache.pack_unused();
        assert_eq!(names(&cache).len(), 100, "all are new");
        cache.observe(config_map("00007", 8));
        cache.pack_unused();
        assert_eq!(names(&cache), ["00007"]);
        // Of an object that is read again, the typed value is kept for one more period.
        cache.get(&ObjectKey::namespaced("ns", "00003"));
        cache.pack_unused();
        assert_eq!(names(&cache), ["00003"]);
        cache.pack_unused();
        assert_eq!(names(&cache), [""; 0]);
        assert_eq!(*cache.get(&ObjectKey::namespaced("ns", "00007")).unwrap(), config_map("00007", 8));
    }

    #[test]
    fn packing_can_be_enabled_on_a_full_cache() {
        let all = || (0..UNPACKED_MAX + 3).map(|number| config_map(&format!("{number:05}"), 7));
        let cache = Cache::for_tests(all());
        cache.pack_idle();
        assert_eq!(cache.read(|state| state.objects.values().filter(|entry| entry.typed.is_none()).count()), 3);
        assert!(cache.iter().map(|object| (*object).clone()).eq(all()));
    }
}
