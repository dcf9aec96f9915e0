//! The objects of one cache, whatever their kind is.
//!
//! [`Cache`](crate::Cache) adds the type of the objects. The code here is compiled once. While it
//! was compiled for each kind, it was a quarter of the code of berth-operators.

use std::any::Any;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use berth_apimachinery::condensed::Condensed;
use kube::Resource;
use kube::api::ObjectMeta;
use parking_lot::{ReentrantMutex, RwLock};

use crate::index::IndexState;
use crate::packing::Packing;
use crate::view::Follower;
use crate::{Delta, ObjectKey};

/// An object of a kind that only its cache knows.
pub(crate) type AnyObject = dyn Any + Send + Sync;
/// A callback for every change. It is called until its owner drops it.
pub(crate) type Subscriber = dyn Fn(&Delta<AnyObject>) + Send + Sync;
/// Removes unused parts of an object.
pub(crate) type Projection = Box<dyn Fn(&mut AnyObject) + Send + Sync>;

/// Maximum number of remembered deletions, which prevent a replayed older state from restoring a
/// deleted object. Beyond it, the oldest ones are dropped.
pub(crate) const FORGOTTEN_MAX: usize = 4096;

/// Number of recently used objects that stay unpacked, at about eight kilobytes each. This covers
/// most objects of a busy second, which are used several times each.
pub(crate) const UNPACKED_MAX: usize = 4096;

/// Number of objects that are packed while the cache is locked, which takes about a millisecond.
const PACKED_AT_ONCE: usize = 32;

/// The object, with its type.
///
/// # Panics
/// The object is of another type. A cache has objects of one type only.
pub(crate) fn typed<K: Send + Sync + 'static>(object: Arc<AnyObject>) -> Arc<K> {
    object.downcast().expect(ONE_TYPE)
}

/// Like [`typed`], for a reference.
pub(crate) fn typed_ref<K: 'static>(object: &AnyObject) -> &K {
    object.downcast_ref().expect(ONE_TYPE)
}

/// All objects of a cache.
pub(crate) struct Objects {
    state: RwLock<State>,
    /// Held over a change and its notification. The watch and the responses to writes change the
    /// cache from several threads, and subscribers must get the changes in the order in which the
    /// cache applied them. A subscriber may change the same cache again.
    changes: ReentrantMutex<()>,
    /// Owned by the controllers, so a stopped controller gets no changes.
    pub(crate) subscribers: RwLock<Vec<Weak<Subscriber>>>,
    projection: OnceLock<Projection>,
    /// True once all objects of the kind have been listed.
    complete: AtomicBool,
    /// The metadata of an object.
    pub(crate) meta: fn(&AnyObject) -> &ObjectMeta,
}

/// The locked part of [`Objects`].
pub(crate) struct State {
    /// Objects by key. A hash map, because an ordered search among tens of thousands of keys has a
    /// cache miss at every step.
    pub(crate) objects: HashMap<Arc<ObjectKey>, Entry>,
    /// The keys of `objects`.
    order: BTreeSet<Arc<ObjectKey>>,
    /// The indexes that are still in use.
    pub(crate) indexes: Vec<Weak<RwLock<IndexState>>>,
    /// The views that are still in use.
    views: Vec<Weak<dyn Follower>>,
    /// The highest resourceVersion of a deletion per key, kept while the watch may still replay
    /// older states.
    forgotten: HashMap<Arc<ObjectKey>, u64>,
    /// The entries of `forgotten`, oldest first.
    forgotten_order: VecDeque<(Arc<ObjectKey>, u64)>,
    /// Packs idle objects; `None` if packing is off.
    packing: Option<Packing>,
    /// With packing: objects that may be unpacked, with their versions. An object is appended when
    /// it is changed or unpacked.
    touched: VecDeque<(Arc<ObjectKey>, Option<u64>)>,
    /// Number of entries at the start of `touched` that are older than the last call of
    /// [`Objects::pack_unused`].
    unused: usize,
}

/// A cached object: the typed value, its packed form, or both if it was read after it was packed.
pub(crate) struct Entry {
    version: Option<u64>,
    pub(crate) typed: Option<Arc<AnyObject>>,
    packed: Option<Condensed>,
}

impl Objects {
    /// A store of objects of type `K`.
    pub(crate) fn of<K: Resource + 'static>() -> Self {
        Self::new(|object| typed_ref::<K>(object).meta())
    }

    fn new(meta: fn(&AnyObject) -> &ObjectMeta) -> Self {
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
        Self { state, changes, subscribers, projection, complete, meta }
    }

    /// See [`Cache::is_complete`](crate::Cache::is_complete).
    pub(crate) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    pub(crate) fn set_complete(&self, complete: bool) {
        self.complete.store(complete, Ordering::Release);
    }

    /// The metadata of an object of this store.
    pub(crate) fn meta<'a>(&self, object: &'a AnyObject) -> &'a ObjectMeta {
        (self.meta)(object)
    }

    /// See [`Cache::pack_idle`](crate::Cache::pack_idle).
    pub(crate) fn pack_idle(&self, packing: Packing) {
        let mut state = self.state.write();
        if state.packing.is_none() {
            state.packing = Some(packing);
            state.touched = state.entries().map(|(key, entry)| (key.clone(), entry.version)).collect();
            while state.touched.len() > UNPACKED_MAX {
                state.pack_oldest();
            }
        }
    }

    /// Packs the objects that were neither changed nor unpacked since the last call, if
    /// [`Objects::pack_idle`] was called. With a call every few seconds, only objects that are in
    /// use stay unpacked.
    pub(crate) fn pack_unused(&self) {
        loop {
            let mut state = self.state.write();
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
    /// effect.
    pub(crate) fn project(&self, leave_out: Projection) {
        self.projection.get_or_init(|| leave_out);
    }

    /// Returns the object with this key.
    pub(crate) fn get(&self, key: &ObjectKey) -> Option<Arc<AnyObject>> {
        let object = self.read(|state| {
            let entry = state.objects.get(key)?;
            Some(entry.typed.clone().ok_or_else(|| state.unpacked(entry)))
        })?;
        match object {
            Ok(object) => Some(object),
            Err(unpacked) => {
                let version = version_of(self.meta(&*unpacked));
                Some(self.state.write().keep_unpacked(key, version, unpacked))
            }
        }
    }

    /// Returns the object with this key. A packed object stays packed.
    fn peek(&self, key: &ObjectKey) -> Option<Arc<AnyObject>> {
        self.read(|state| state.objects.get(key).map(|entry| state.typed(entry)))
    }

    /// Passes the objects of a namespace, or of all, to `visit`, ordered by key. The store stays
    /// locked.
    pub(crate) fn each(&self, namespace: Option<&str>, visit: &mut dyn FnMut(Arc<AnyObject>)) {
        self.read(|state| match namespace {
            Some(namespace) => state.in_namespace(namespace).for_each(|(_, entry)| visit(state.typed(entry))),
            None => state.entries().for_each(|(_, entry)| visit(state.typed(entry))),
        });
    }

    /// Returns the keys of the objects of a namespace, or of all, in order.
    fn keys(&self, namespace: Option<&str>) -> Vec<Arc<ObjectKey>> {
        self.read(|state| match namespace {
            Some(namespace) => state.in_namespace(namespace).map(|(key, _)| key.clone()).collect(),
            None => state.order.iter().cloned().collect(),
        })
    }

    /// Iterates over the objects of a namespace, or over all, ordered by key. Objects that are
    /// deleted during the iteration are skipped.
    pub(crate) fn iter(self: &Arc<Self>, namespace: Option<&str>) -> Iter {
        Iter { keys: self.keys(namespace).into_iter(), objects: self.clone() }
    }

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        self.read(|state| state.objects.len())
    }

    /// Returns how often a packed object was unpacked for a read; zero without packing.
    pub(crate) fn unpacked(&self) -> u64 {
        self.read(|state| state.packing.as_ref().map_or(0, Packing::unpacked))
    }

    /// Adds an index, which is updated until it is dropped.
    pub(crate) fn index(&self, mut index: IndexState) -> Arc<RwLock<IndexState>> {
        let mut state = self.state.write();
        for (key, entry) in state.entries() {
            index.insert(key, &*state.typed(entry));
        }
        let index = Arc::new(RwLock::new(index));
        state.indexes.retain(|known| known.strong_count() > 0);
        state.indexes.push(Arc::downgrade(&index));
        index
    }

    /// Adds a view, which is updated until it is dropped.
    pub(crate) fn view(&self, view: &Arc<dyn Follower>) {
        let keys: Vec<_> = {
            let mut state = self.state.write();
            state.views.retain(|known| known.strong_count() > 0);
            state.views.push(Arc::downgrade(view));
            state.order.iter().cloned().collect()
        };
        // Unpacking a hundred thousand objects takes long, so the cache is locked for one object at
        // a time. A change of an object also needs the lock. The view gets it before or after the
        // object, and ends with the newest state.
        for key in keys {
            self.read(|state| {
                if let Some(entry) = state.objects.get(&key) {
                    view.change(&key, Some(&*state.typed(entry)));
                }
            });
        }
    }

    /// Adds an object or a newer state of it, and notifies the subscribers. An older state has no
    /// effect.
    pub(crate) fn apply(&self, mut object: Arc<AnyObject>) {
        if let (Some(leave_out), Some(object)) = (self.projection.get(), Arc::get_mut(&mut object)) {
            leave_out(object);
        }
        let meta = self.meta(&*object);
        let (key, version) = (ObjectKey::of_meta(meta), version_of(meta));
        let _ordered = self.changes.lock();
        let Some(old) = self.state.write().put(key, version, &object) else { return };
        match old {
            // The response to a create can arrive before the watch shows that the earlier object of
            // this name was deleted.
            Some(old) if are_different(self.meta(&*old), self.meta(&*object)) => {
                self.notify(&Delta { old: Some(old), new: None });
                self.notify(&Delta { old: None, new: Some(object) });
            }
            old => self.notify(&Delta { old, new: Some(object) }),
        }
    }

    /// True if the cache has this state of the object or a later one.
    pub(crate) fn knows(&self, object: &ObjectMeta) -> bool {
        let key = ObjectKey::of_meta(object);
        let Some(version) = version_of(object) else { return false };
        self.read(|state| {
            let known = state.objects.get(&key).and_then(|known| known.version);
            let deleted = state.forgotten.get(&key).copied();
            known.max(deleted).is_some_and(|seen| version <= seen)
        })
    }

    /// Removes an object, of which the last known state has this metadata.
    pub(crate) fn remove(&self, object: &ObjectMeta) {
        self.remove_at(object, version_of(object));
    }

    fn remove_at(&self, object: &ObjectMeta, version: Option<u64>) {
        let key = ObjectKey::of_meta(object);
        let _ordered = self.changes.lock();
        let old = {
            let mut state = self.state.write();
            let Some((key, entry)) = state.objects.get_key_value(&key) else { return };
            let (key, known, old) = (key.clone(), entry.version, state.typed(entry));
            // Ignore the deletion of an earlier object with the same name.
            if are_different(self.meta(&*old), object) {
                return;
            }
            state.take(key, known.max(version), &*old);
            old
        };
        self.notify(&Delta { old: Some(old), new: None });
    }

    /// Removes all objects that are not in `listed`, the keys of a new complete list.
    pub(crate) fn retain(&self, listed: &BTreeSet<ObjectKey>) {
        for object in self.unlisted(listed) {
            self.remove(self.meta(&*object));
        }
    }

    /// Removes the objects that are not in `listed`, the keys of a complete list at `revision`,
    /// unless they are newer.
    pub(crate) fn forget_before(&self, revision: u64, listed: &BTreeSet<ObjectKey>) {
        for object in self.unlisted(listed) {
            let meta = self.meta(&*object);
            if version_of(meta).is_some_and(|version| version <= revision) {
                // A lagging watch may still show states from before the list.
                self.remove_at(meta, Some(revision));
            }
        }
    }

    fn unlisted(&self, listed: &BTreeSet<ObjectKey>) -> Vec<Arc<AnyObject>> {
        self.read(|state| {
            let unlisted = state.entries().filter(|(key, _)| !listed.contains(key.as_ref()));
            unlisted.map(|(_, entry)| state.typed(entry)).collect()
        })
    }

    /// True if the cache has an object that is not in `listed`.
    pub(crate) fn has_others(&self, listed: &BTreeSet<ObjectKey>) -> bool {
        self.read(|state| state.objects.keys().any(|key| !listed.contains(key.as_ref())))
    }

    /// Calls the subscriber for every change until it is dropped.
    pub(crate) fn subscribe(&self, subscriber: &Arc<Subscriber>) {
        let mut subscribers = self.subscribers.write();
        subscribers.retain(|known| known.strong_count() > 0);
        subscribers.push(Arc::downgrade(subscriber));
    }

    /// Sends every object to the subscribers as new.
    pub(crate) fn replay(self: &Arc<Self>) {
        let _ordered = self.changes.lock();
        for object in self.iter(None) {
            self.notify(&Delta { old: None, new: Some(object) });
        }
    }

    fn notify(&self, delta: &Delta<AnyObject>) {
        let subscribers = self.subscribers.read();
        let subscribers: Vec<_> = subscribers.iter().filter_map(Weak::upgrade).collect();
        for subscriber in subscribers {
            subscriber(delta);
        }
    }

    /// Passes the state to `f`, which must not use the store.
    pub(crate) fn read<T>(&self, f: impl FnOnce(&State) -> T) -> T {
        f(&self.state.read())
    }
}

/// Iterates over objects in their current state.
pub(crate) struct Iter {
    keys: std::vec::IntoIter<Arc<ObjectKey>>,
    objects: Arc<Objects>,
}

impl Iterator for Iter {
    type Item = Arc<AnyObject>;

    fn next(&mut self) -> Option<Arc<AnyObject>> {
        self.keys.find_map(|key| self.objects.peek(&key))
    }
}

impl State {
    /// Returns the typed object, unpacked if necessary.
    pub(crate) fn typed(&self, entry: &Entry) -> Arc<AnyObject> {
        entry.typed.clone().unwrap_or_else(|| self.unpacked(entry))
    }

    fn unpacked(&self, entry: &Entry) -> Arc<AnyObject> {
        let (packing, packed) = (self.packing.as_ref().expect(PACKED), entry.packed.as_ref().expect(PACKED));
        packing.unpack(packed)
    }

    /// Adds an object or a state of it, unless the cache has a newer one. Returns the state before,
    /// if there was one.
    fn put(&mut self, key: ObjectKey, version: Option<u64>, new: &Arc<AnyObject>) -> Option<Option<Arc<AnyObject>>> {
        let known = self.objects.get_key_value(&key).map(|(key, entry)| (key.clone(), entry.version));
        let deleted = self.forgotten.get(&key).copied();
        // An equal version was already observed in a response.
        let stale = |seen: Option<u64>| matches!((version, seen), (Some(new), Some(seen)) if new <= seen);
        if stale(known.as_ref().and_then(|(_, version)| *version)) || stale(deleted) {
            return None;
        }
        self.forgotten.remove(&key);
        let key = known.map_or_else(
            || {
                let key = Arc::new(key);
                self.order.insert(key.clone());
                key
            },
            |(key, _)| key,
        );
        let entry = Entry { version, typed: Some(new.clone()), packed: None };
        let old = self.objects.insert(key.clone(), entry).map(|old| self.typed(&old));
        for index in self.indexes.iter().filter_map(Weak::upgrade) {
            index.write().change(&key, old.as_deref(), &**new);
        }
        self.show(&key, Some(&**new));
        self.touch(&key, version);
        Some(old)
    }

    /// Removes the object with this key, whose last state is `old`. Ignores states up to version
    /// `seen` from then on.
    fn take(&mut self, key: Arc<ObjectKey>, seen: Option<u64>, old: &AnyObject) {
        self.objects.remove(&key);
        self.order.remove(&key);
        for index in self.indexes.iter().filter_map(Weak::upgrade) {
            index.write().remove(&key, old);
        }
        self.show(&key, None);
        if let Some(seen) = seen {
            self.forget(key, seen);
        }
    }

    /// Passes a change to the views.
    fn show(&self, key: &Arc<ObjectKey>, new: Option<&AnyObject>) {
        for view in self.views.iter().filter_map(Weak::upgrade) {
            view.change(key, new);
        }
    }

    fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = (&Arc<ObjectKey>, &Entry)> {
        let start = ObjectKey::namespaced(namespace, "");
        let keys = self.order.range::<ObjectKey, _>(&start..).take_while(move |key| key.namespace == start.namespace);
        keys.filter_map(|key| Some((key, self.objects.get(key)?)))
    }

    /// Returns all entries, ordered by key.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Arc<ObjectKey>, &Entry)> {
        self.order.iter().filter_map(|key| Some((key, self.objects.get(key)?)))
    }

    /// Keeps an unpacked object of this version, because an object that was read once is likely to
    /// be read again soon.
    fn keep_unpacked(&mut self, key: &ObjectKey, of: Option<u64>, unpacked: Arc<AnyObject>) -> Arc<AnyObject> {
        let Some((key, entry)) = self.objects.get_key_value(key) else { return unpacked };
        let (key, version) = (key.clone(), entry.version);
        if let Some(typed) = &entry.typed {
            return typed.clone();
        }
        if version != of {
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
            entry.packed = packing.pack(&**typed);
        }
        // An object that cannot be packed stays unpacked.
        if entry.packed.is_some() {
            entry.typed = None;
        }
    }
}

/// True if both objects have a UID, and not the same.
fn are_different(a: &ObjectMeta, b: &ObjectMeta) -> bool {
    matches!((&a.uid, &b.uid), (Some(a), Some(b)) if a != b)
}

pub(crate) fn version_of(object: &ObjectMeta) -> Option<u64> {
    object.resource_version.as_deref().and_then(|version| version.parse().ok())
}

const ONE_TYPE: &str = "a cache has objects of one type";
const PACKED: &str = "an entry without a typed object has a packed one";
