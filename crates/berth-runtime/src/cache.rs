//! The local copy of one kind: what the watch has shown, plus what this process has written since.
//!
//! A controller that has just written an object hands the answer to [`Cache::observe`]; the cache keeps whichever is
//! newer, so a reconcile always reads its own writes and needs no "expectations". Newer is decided by
//! resourceVersion, which Kubernetes lets clients compare as numbers for objects of one resource (KEP-5504).
//!
//! A cache of a kind that there are many of keeps those whole that were touched last, and packs the others: see
//! [`Cache::pack_idle`]. A cache of a kind of which only a part is ever asked for keeps that part: see [`Cache::project`].

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use berth_apimachinery::condensed::Condensed;
use kube::{Resource, ResourceExt};
use parking_lot::RwLock;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ObjectKey;
use crate::packing::Packing;

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

/// Hears of every change for as long as it is held.
pub(crate) type Subscriber<K> = dyn Fn(&Delta<K>) + Send + Sync;
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
    /// Their controllers hold them: what has stopped acting hears of nothing.
    subscribers: RwLock<Vec<Weak<Subscriber<K>>>>,
    /// Takes out of an object what nobody asks the cache for.
    projection: OnceLock<fn(&mut K)>,
    /// Whether all objects of the kind are here, as far as has been shown.
    complete: AtomicBool,
}

struct State<K> {
    /// Found by hash: an ordered search among tens of thousands of keys waits for memory at every step.
    objects: HashMap<Arc<ObjectKey>, Entry<K>>,
    /// The keys of `objects`.
    order: BTreeSet<Arc<ObjectKey>>,
    /// Those that are still asked.
    indexes: Vec<Weak<RwLock<IndexState<K>>>>,
    /// The highest resourceVersion a deletion was seen at, per key, while the watch may still replay older states.
    forgotten: HashMap<Arc<ObjectKey>, u64>,
    /// What was put into `forgotten`, the oldest first.
    forgotten_order: VecDeque<(Arc<ObjectKey>, u64)>,
    /// How objects are packed that nobody touches; without it they are not.
    packing: Option<Packing<K>>,
    /// With packing: objects that may be whole, the one touched longest ago first, with the version they had then.
    touched: VecDeque<(Arc<ObjectKey>, Option<u64>)>,
}

/// An object; at least one form of it is there, both while it was read since it was packed.
struct Entry<K> {
    version: Option<u64>,
    whole: Option<Arc<K>>,
    packed: Option<Condensed>,
}

struct IndexState<K> {
    values: IndexFn<K>,
    keys: HashMap<String, Keys>,
}

/// Keys with one value; most values of most indexes have one.
enum Keys {
    One(Arc<ObjectKey>),
    Many(BTreeSet<Arc<ObjectKey>>),
}

/// Objects by a computed value, such as pods by node; see [`Cache::index`].
pub struct Index<K> {
    cache: Cache<K>,
    /// Written with the cache's state locked, and read so: the two are never seen apart.
    state: Arc<RwLock<IndexState<K>>>,
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        Self { cache: self.cache.clone(), state: self.state.clone() }
    }
}

/// How many deletions are remembered against replayed older states; beyond it the oldest keys are dropped.
const FORGOTTEN_MAX: usize = 4096;

/// After how many touches of other objects an object is packed. Of the objects of a busy second, which are touched several
/// times each, most are whole, at about eight kilobytes each.
const WHOLE_MAX: usize = 4096;

impl<K: Resource + 'static> Cache<K> {
    pub(crate) fn new() -> Self {
        let state = State {
            objects: HashMap::new(),
            order: BTreeSet::new(),
            indexes: Vec::new(),
            forgotten: HashMap::new(),
            forgotten_order: VecDeque::new(),
            packing: None,
            touched: VecDeque::new(),
        };
        let (subscribers, projection) = (RwLock::default(), OnceLock::new());
        let inner = Inner { state: RwLock::new(state), subscribers, projection, complete: AtomicBool::new(false) };
        Self { inner: Arc::new(inner) }
    }

    /// Whether an object that is not here is not there. While the objects of a kind have not been listed (they cannot be, or the
    /// cluster does not serve the version that is read), nothing is known of those that are missing.
    pub fn is_complete(&self) -> bool {
        self.inner.complete.load(Ordering::Acquire)
    }

    pub(crate) fn set_complete(&self, complete: bool) {
        self.inner.complete.store(complete, Ordering::Release);
    }

    /// A cache filled by hand, for tests of code that reads caches.
    pub fn for_tests(objects: impl IntoIterator<Item = K>) -> Self {
        let cache = Self::new();
        for object in objects {
            cache.observe(object);
        }
        cache.set_complete(true);
        cache
    }

    /// Keeps but the objects that were touched last (a few thousand) as they are, and the others packed: nothing is lost,
    /// a packed object takes a tenth of the memory, and reading it costs about what decoding it did. For kinds there are
    /// very many of, of which most are not looked at for long.
    pub fn pack_idle(&self)
    where
        K: Serialize + DeserializeOwned,
    {
        let mut state = self.inner.state.write();
        if state.packing.is_none() {
            state.packing = Some(Packing::new());
            state.touched = state.entries().map(|(key, entry)| (key.clone(), entry.version)).collect();
            while state.touched.len() > WHOLE_MAX {
                state.pack_oldest();
            }
        }
    }

    /// Keeps of every object what `leave_out` leaves of it, from now on; said twice, the first counts. What such a cache holds
    /// must not be written back whole.
    pub(crate) fn project(&self, leave_out: fn(&mut K)) {
        self.inner.projection.get_or_init(|| leave_out);
    }

    /// The object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        let object = self.read(|state| {
            let entry = state.objects.get(key)?;
            Some(entry.whole.clone().ok_or_else(|| state.unpacked(entry)))
        })?;
        match object {
            Ok(object) => Some(object),
            Err(unpacked) => Some(self.inner.state.write().read_again(key, unpacked)),
        }
    }

    /// Every object, in key order.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.read(|state| state.entries().map(|(_, entry)| state.whole(entry)).collect())
    }

    /// Every object of a namespace, in name order.
    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.read(|state| state.in_namespace(namespace).map(|(_, entry)| state.whole(entry)).collect())
    }

    /// Every object, in key order, one at a time: what is packed is not all whole at once. Objects that go meanwhile are left
    /// out, others come in the state they are in when it is their turn.
    pub fn iter(&self) -> impl Iterator<Item = Arc<K>> + use<K> {
        let keys: Vec<_> = self.read(|state| state.order.iter().cloned().collect());
        let cache = self.clone();
        keys.into_iter().filter_map(move |key| cache.peek(&key))
    }

    /// The same of a namespace, in name order.
    pub fn iter_namespace(&self, namespace: &str) -> impl Iterator<Item = Arc<K>> + use<K> {
        let keys: Vec<_> = self.read(|state| state.in_namespace(namespace).map(|(key, _)| key.clone()).collect());
        let cache = self.clone();
        keys.into_iter().filter_map(move |key| cache.peek(&key))
    }

    /// The object with this key, which stays packed if it is.
    fn peek(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read(|state| state.objects.get(key).map(|entry| state.whole(entry)))
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.read(|state| state.objects.len())
    }

    /// How often an object was read that was packed, each time at the cost of decoding it; zero of a cache that packs nothing.
    pub fn unpacked(&self) -> u64 {
        self.read(|state| state.packing.as_ref().map_or(0, Packing::unpacked))
    }

    /// True when there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes an index: objects can then be found by any value `values` returns for them, at O(log n). It is kept up for as long
    /// as it is held.
    pub fn index(&self, values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) -> Index<K> {
        let mut state = self.inner.state.write();
        let mut index = IndexState { values: Arc::new(values), keys: HashMap::new() };
        for (key, entry) in state.entries() {
            index.insert(key, &state.whole(entry));
        }
        let index = Arc::new(RwLock::new(index));
        state.indexes.retain(|known| known.strong_count() > 0);
        state.indexes.push(Arc::downgrade(&index));
        Index { cache: self.clone(), state: index }
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

    pub(crate) fn apply(&self, mut object: K) {
        if let Some(leave_out) = self.inner.projection.get() {
            leave_out(&mut object);
        }
        let key = ObjectKey::of(&object);
        let delta = {
            let mut state = self.inner.state.write();
            let version = version_of(&object);
            let known = state.objects.get_key_value(&key).map(|(key, entry)| (key.clone(), entry.version));
            let deleted = state.forgotten.get(&key).copied();
            // An equal version is the echo of what was observed already.
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
            let entry = Entry { version, whole: Some(new.clone()), packed: None };
            let old = state.objects.insert(key.clone(), entry).map(|old| state.whole(&old));
            for index in state.indexes.iter().filter_map(Weak::upgrade) {
                let mut index = index.write();
                if let Some(old) = &old {
                    index.remove(&key, old);
                }
                index.insert(&key, &new);
            }
            state.touch(&key, version);
            Delta { old, new: Some(new) }
        };
        self.notify(&delta);
    }

    /// Whether the cache has this state of the object, or a later one.
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
        let delta = {
            let mut state = self.inner.state.write();
            let version = version_of(object);
            let Some((key, entry)) = state.objects.get_key_value(&key) else { return };
            let (key, known, old) = (key.clone(), entry.version, state.whole(entry));
            // A deletion of an earlier object of the same name says nothing about the present one.
            if old.uid() != object.uid() && old.uid().is_some() && object.uid().is_some() {
                return;
            }
            state.objects.remove(&key);
            state.order.remove(&key);
            for index in state.indexes.iter().filter_map(Weak::upgrade) {
                index.write().remove(&key, &old);
            }
            if let Some(seen) = known.max(version) {
                state.forget(key, seen);
            }
            Delta { old: Some(old), new: None }
        };
        self.notify(&delta);
    }

    /// Makes the cache hold exactly what a fresh list showed: objects it did not name are gone.
    pub(crate) fn retain(&self, listed: &BTreeSet<ObjectKey>) {
        let gone: Vec<Arc<K>> = self.read(|state| {
            let unlisted = state.entries().filter(|(key, _)| !listed.contains(key.as_ref()));
            unlisted.map(|(_, entry)| state.whole(entry)).collect()
        });
        for object in gone {
            self.remove(object.as_ref());
        }
    }

    /// Takes in that a list at `revision` did not name objects the cache holds: those that are not newer are gone.
    pub(crate) fn forget_before(&self, revision: u64, listed: &BTreeSet<ObjectKey>)
    where
        K: Clone,
    {
        let older = |object: &K| version_of(object).is_some_and(|version| version <= revision);
        let gone: Vec<Arc<K>> = self.read(|state| {
            let unlisted = state.entries().filter(|(key, _)| !listed.contains(key.as_ref()));
            unlisted.map(|(_, entry)| state.whole(entry)).filter(|object| older(object.as_ref())).collect()
        });
        for object in gone {
            // A watch that lags may still show states from before the list.
            let mut last = (*object).clone();
            last.meta_mut().resource_version = Some(revision.to_string());
            self.remove(&last);
        }
    }

    /// Lets the subscriber hear of every change until its last owner lets go of it.
    pub(crate) fn subscribe(&self, subscriber: &Arc<Subscriber<K>>) {
        let mut subscribers = self.inner.subscribers.write();
        subscribers.retain(|known| known.strong_count() > 0);
        subscribers.push(Arc::downgrade(subscriber));
    }

    /// Shows the subscribers every object as if it had just come. Nothing else may change the cache meanwhile, or they could be
    /// shown an older state after a newer one.
    pub(crate) fn replay(&self) {
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
    /// The object, whole.
    fn whole(&self, entry: &Entry<K>) -> Arc<K> {
        entry.whole.clone().unwrap_or_else(|| self.unpacked(entry))
    }

    fn unpacked(&self, entry: &Entry<K>) -> Arc<K> {
        let (packing, packed) = (self.packing.as_ref().expect(PACKED), entry.packed.as_ref().expect(PACKED));
        Arc::new(packing.unpack(packed))
    }

    fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = (&Arc<ObjectKey>, &Entry<K>)> {
        let start = ObjectKey::namespaced(namespace, "");
        let keys = self.order.range::<ObjectKey, _>(&start..).take_while(move |key| key.namespace == start.namespace);
        keys.filter_map(|key| Some((key, self.objects.get(key)?)))
    }

    /// Every object, in key order.
    fn entries(&self) -> impl Iterator<Item = (&Arc<ObjectKey>, &Entry<K>)> {
        self.order.iter().filter_map(|key| Some((key, self.objects.get(key)?)))
    }

    /// A packed object was read: whoever looks once looks again soon.
    fn read_again(&mut self, key: &ObjectKey, unpacked: Arc<K>) -> Arc<K>
    where
        K: Resource,
    {
        let Some((key, entry)) = self.objects.get_key_value(key) else { return unpacked };
        let (key, version) = (key.clone(), entry.version);
        if let Some(whole) = &entry.whole {
            return whole.clone();
        }
        if version != version_of(unpacked.as_ref()) {
            // Changed and packed again meanwhile.
            return self.unpacked(entry);
        }
        if let Some(entry) = self.objects.get_mut(&key) {
            entry.whole = Some(unpacked.clone());
        }
        self.touch(&key, version);
        unpacked
    }

    /// Remembers at which version an object was seen to go, in the place of what was remembered longest ago.
    fn forget(&mut self, key: Arc<ObjectKey>, seen: u64) {
        self.forgotten.insert(key.clone(), seen);
        self.forgotten_order.push_back((key, seen));
        if self.forgotten_order.len() > FORGOTTEN_MAX
            && let Some((oldest, seen)) = self.forgotten_order.pop_front()
            // It may have come and gone again since.
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
        if self.touched.len() > WHOLE_MAX {
            self.pack_oldest();
        }
    }

    fn pack_oldest(&mut self) {
        let Some((key, version)) = self.touched.pop_front() else { return };
        // What changed since has been touched since.
        let Some(entry) = self.objects.get_mut(&key).filter(|entry| entry.version == version) else { return };
        let (Some(packing), Some(whole)) = (&mut self.packing, &entry.whole) else { return };
        if entry.packed.is_none() {
            entry.packed = packing.pack(whole);
        }
        // What cannot be packed stays.
        if entry.packed.is_some() {
            entry.whole = None;
        }
    }
}

impl<K: Resource + 'static> Index<K> {
    /// The objects with this value, in key order.
    pub fn get(&self, value: &str) -> Vec<Arc<K>> {
        self.read(value, |state, keys| {
            keys.filter_map(|key| state.objects.get(key)).map(|entry| state.whole(entry)).collect()
        })
    }

    /// The keys of the objects with this value, in order.
    pub fn keys(&self, value: &str) -> Vec<ObjectKey> {
        self.read(value, |_, keys| keys.map(|key| key.as_ref().clone()).collect())
    }

    /// How many objects have this value.
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

    /// Whether nothing is left.
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
    fn insert(&mut self, key: &Arc<ObjectKey>, object: &K) {
        for value in (self.values)(object) {
            match self.keys.get_mut(&value) {
                Some(keys) => keys.insert(key),
                None => {
                    self.keys.insert(value, Keys::One(key.clone()));
                }
            }
        }
    }

    fn remove(&mut self, key: &Arc<ObjectKey>, object: &K) {
        for value in (self.values)(object) {
            if self.keys.get_mut(&value).is_some_and(|keys| keys.remove(key)) {
                self.keys.remove(&value);
            }
        }
    }
}

fn version_of<K: Resource>(object: &K) -> Option<u64> {
    object.meta().resource_version.as_deref().and_then(|version| version.parse().ok())
}

const PACKED: &str = "an object that is not whole is packed";

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
    fn of_many_deletions_the_latest_are_remembered() {
        let cache = Cache::for_tests([]);
        // The last to go is the first by name.
        for number in (0..=FORGOTTEN_MAX).rev() {
            cache.apply(config_map(&format!("{number:05}"), 7));
            cache.remove(&config_map(&format!("{number:05}"), 9));
        }
        cache.apply(config_map("00000", 8));
        assert!(cache.is_empty());
        cache.apply(config_map(&format!("{FORGOTTEN_MAX:05}"), 8));
        assert_eq!(cache.len(), 1, "the first of all is remembered no more");
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
    fn what_is_not_held_any_more_hears_of_nothing_and_is_not_kept_up() {
        let cache = Cache::for_tests([config_map("a", 1)]);
        let heard = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let log = heard.clone();
        let subscriber: Arc<Subscriber<ConfigMap>> = Arc::new(move |delta: &Delta<ConfigMap>| {
            log.lock().push((delta.latest().name_any(), delta.old.is_some()));
        });
        cache.subscribe(&subscriber);
        let index = cache.index(|c: &ConfigMap| vec![c.name_any()]);
        cache.apply(config_map("b", 2));
        cache.replay();
        let all = [("b", false), ("a", false), ("b", false)].map(|(name, changed)| (name.to_owned(), changed));
        assert_eq!(*heard.lock(), all, "a change, and then all there is as if it were new");

        drop((subscriber, index));
        cache.apply(config_map("a", 3));
        assert_eq!(heard.lock().len(), 3);
        let _other = cache.index(|c: &ConfigMap| vec![c.name_any()]);
        assert_eq!(cache.read(|state| state.indexes.len()), 1);
    }

    #[test]
    fn what_nobody_touches_is_packed_and_comes_back_as_it_was() {
        let all = || (0..WHOLE_MAX + 100).map(|number| config_map(&format!("{number:05}"), 7));
        let whole = |cache: &Cache<ConfigMap>| {
            cache.read(|state| state.objects.values().filter(|entry| entry.whole.is_some()).count())
        };
        let cache = Cache::for_tests([]);
        let by_last = cache.index(|c: &ConfigMap| vec![c.name_any().split_off(4)]);
        cache.pack_idle();
        all().for_each(|object| cache.observe(object));
        assert_eq!(whole(&cache), WHOLE_MAX);
        assert!(cache.iter().map(|object| (*object).clone()).eq(all()));
        assert_eq!(cache.list().len(), WHOLE_MAX + 100);
        assert_eq!(whole(&cache), WHOLE_MAX, "looking through all of them makes none of them whole");
        assert_eq!(by_last.get("0").len(), by_last.count("0"));

        // What is looked at is whole, changed or not.
        let first = ObjectKey::namespaced("ns", "00000");
        assert_eq!(*cache.get(&first).unwrap(), config_map("00000", 7));
        assert!(Arc::ptr_eq(&cache.get(&first).unwrap(), &cache.get(&first).unwrap()));
        assert_eq!(whole(&cache), WHOLE_MAX);
        assert!(cache.knows(&config_map("00001", 7)) && !cache.knows(&config_map("00001", 8)));
        let before = by_last.count("1");
        cache.apply(config_map("00001", 8));
        assert_eq!(cache.get(&ObjectKey::namespaced("ns", "00001")).unwrap().resource_version().unwrap(), "8");
        assert_eq!(by_last.count("1"), before);
        cache.remove(&config_map("00002", 9));
        assert_eq!(cache.get(&ObjectKey::namespaced("ns", "00002")), None);
        assert_eq!(cache.len(), WHOLE_MAX + 99);
    }

    #[test]
    fn a_cache_that_is_full_already_can_be_packed() {
        let all = || (0..WHOLE_MAX + 3).map(|number| config_map(&format!("{number:05}"), 7));
        let cache = Cache::for_tests(all());
        cache.pack_idle();
        assert_eq!(cache.read(|state| state.objects.values().filter(|entry| entry.whole.is_none()).count()), 3);
        assert!(cache.iter().map(|object| (*object).clone()).eq(all()));
    }
}
