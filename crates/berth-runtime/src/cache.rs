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
//! see [`Cache::project`]. The module `objects` has the objects of all caches without their types.

use std::marker::PhantomData;
use std::sync::Arc;

use berth_api::json::Json;
use kube::Resource;

use crate::objects::{AnyObject, Objects, typed, typed_ref};
use crate::packing::Packing;
use crate::view::{Follower, Rows, View};
use crate::{Index, ObjectKey};

/// A change to one cached object. At least one side is set, and both sides have the same UID: an
/// object that replaced another one of the same name is shown as a deletion and then as new.
pub struct Delta<K: ?Sized> {
    /// The object before the change; `None` if it is new.
    pub old: Option<Arc<K>>,
    /// The object after the change; `None` if it was deleted.
    pub new: Option<Arc<K>>,
}

impl<K: ?Sized> Delta<K> {
    /// Returns the new object, or the last state of a deleted one.
    pub fn latest(&self) -> &Arc<K> {
        self.new.as_ref().or(self.old.as_ref()).expect("a delta has at least one side")
    }
}

impl<K: Send + Sync + 'static> Delta<K> {
    /// The change of an object of this type.
    pub(crate) fn typed(delta: &Delta<AnyObject>) -> Self {
        Self { old: delta.old.clone().map(typed), new: delta.new.clone().map(typed) }
    }
}

/// All objects of one kind, ordered by key; clones share the cache.
pub struct Cache<K> {
    objects: Arc<Objects>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self::of(self.objects.clone())
    }
}

impl<K> Cache<K> {
    /// The cache of these objects, which are of type `K`.
    pub(crate) fn of(objects: Arc<Objects>) -> Self {
        Self { objects, kind: PhantomData }
    }

    pub(crate) fn objects(&self) -> &Arc<Objects> {
        &self.objects
    }

    /// True if an object that is not in the cache does not exist. It is false until the objects of
    /// the kind have been listed. Listing may fail, or the cluster may not serve the version that
    /// Berth reads.
    pub fn is_complete(&self) -> bool {
        self.objects.is_complete()
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// True if the cache has no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how often a packed object was unpacked for a read; zero without packing.
    pub fn unpacked(&self) -> u64 {
        self.objects.unpacked()
    }
}

impl<K: Resource + Send + Sync + 'static> Cache<K> {
    pub(crate) fn new() -> Self {
        Self::of(Arc::new(Objects::of::<K>()))
    }

    /// Creates a complete cache of these objects, for tests.
    pub fn for_tests(objects: impl IntoIterator<Item = K>) -> Self {
        let cache = Self::new();
        for object in objects {
            cache.observe(object);
        }
        cache.objects.set_complete(true);
        cache
    }

    /// Packs all but a few thousand recently used objects. A packed object takes a tenth of the
    /// memory, and each read costs about as much as decoding it. This is for kinds with very many
    /// objects, most of which are idle for a long time.
    pub fn pack_idle(&self)
    where
        K: Json,
    {
        self.objects.pack_idle(Packing::of::<K>());
    }

    /// Sets the function that removes unused parts of every object. Only the first call has an
    /// effect. Objects of such a cache must not be written back as a whole.
    pub(crate) fn project(&self, leave_out: fn(&mut K)) {
        self.objects.project(Box::new(move |object| {
            if let Some(object) = object.downcast_mut() {
                leave_out(object);
            }
        }));
    }

    /// Returns the object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.objects.get(key).map(typed)
    }

    /// Returns all objects, ordered by key.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.list_of(None)
    }

    /// Returns all objects of a namespace, ordered by name.
    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.list_of(Some(namespace))
    }

    fn list_of(&self, namespace: Option<&str>) -> Vec<Arc<K>> {
        let mut listed = Vec::new();
        self.objects.each(namespace, &mut |object| listed.push(typed(object)));
        listed
    }

    /// Iterates over all objects, ordered by key, without unpacking all of them at once. Objects
    /// that are deleted during the iteration are skipped; the others are returned in their current
    /// state.
    pub fn iter(&self) -> impl Iterator<Item = Arc<K>> + use<K> {
        self.iter_of(None)
    }

    /// Iterates over the objects of a namespace, ordered by name.
    pub fn iter_namespace(&self, namespace: &str) -> impl Iterator<Item = Arc<K>> + use<K> {
        self.iter_of(Some(namespace))
    }

    fn iter_of(&self, namespace: Option<&str>) -> impl Iterator<Item = Arc<K>> + use<K> {
        self.objects.iter(namespace).map(typed)
    }

    /// Creates an index, which finds objects by any of the values that `values` returns for them,
    /// at O(log n). It is updated until it is dropped.
    pub fn index(&self, values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) -> Index<K> {
        Index::new(&self.objects, Box::new(move |object| values(typed_ref(object))))
    }

    /// Creates a view: a value per object, without the objects for which `of` returns none.
    pub fn view<R>(&self, of: impl Fn(&K) -> Option<R> + Send + Sync + 'static) -> View<K, R>
    where
        R: Send + Sync + 'static,
    {
        self.view_in(of)
    }

    /// Creates a view that keeps its values in `T`.
    pub fn view_in<R, T>(&self, of: impl Fn(&K) -> Option<R> + Send + Sync + 'static) -> View<K, R, T>
    where
        R: Send + Sync + 'static,
        T: Rows<R> + 'static,
    {
        let view = View::new(of);
        self.objects.view(&(view.inner().clone() as Arc<dyn Follower>));
        view
    }

    /// Adds the object in the response to a create, update or patch, unless the cache has a newer
    /// state. Subscribers get the change as if the watch had shown it.
    pub fn observe(&self, mut object: K) {
        // The watch also drops this field; see `wire`.
        object.meta_mut().managed_fields = None;
        self.objects.apply(Arc::new(object));
    }

    /// Removes an object after a delete that took effect at once.
    pub fn observe_deleted(&self, object: &K) {
        self.objects.remove(object.meta());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt;
    use kube::api::ObjectMeta;

    use super::*;
    use crate::objects::{FORGOTTEN_MAX, Subscriber, UNPACKED_MAX};

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
        cache.observe(config_map("a", 5));
        assert_eq!(cache.list()[0].metadata.resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn a_replayed_state_does_not_restore_a_deleted_object() {
        let cache = Cache::for_tests([config_map("a", 7)]);
        cache.observe_deleted(&config_map("a", 9));
        cache.observe(config_map("a", 8));
        assert!(cache.is_empty());
        cache.observe(config_map("a", 12));
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn only_the_latest_deletions_are_remembered() {
        let cache = Cache::for_tests([]);
        // The last deleted object is the first by name.
        for number in (0..=FORGOTTEN_MAX).rev() {
            cache.observe(config_map(&format!("{number:05}"), 7));
            cache.observe_deleted(&config_map(&format!("{number:05}"), 9));
        }
        cache.observe(config_map("00000", 8));
        assert!(cache.is_empty());
        cache.observe(config_map(&format!("{FORGOTTEN_MAX:05}"), 8));
        assert_eq!(cache.len(), 1, "the oldest deletion is no longer remembered");
    }

    #[test]
    fn an_index_follows_changes() {
        let cache = Cache::for_tests([config_map("a", 1), config_map("b", 2)]);
        let by_name = cache.index(|c: &ConfigMap| vec![c.name_any()]);
        assert_eq!(by_name.count("b"), 1);
        cache.observe_deleted(&config_map("b", 3));
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
        cache.observe(labelled(2, "x"));
        assert_eq!(index.get("x")[0].metadata.resource_version.as_deref(), Some("2"), "the same value, a new state");
        cache.observe(labelled(3, "y"));
        assert_eq!((index.count("x"), index.count("y")), (0, 1));
        cache.observe(config_map("a", 4));
        assert_eq!(index.count("y"), 0);
    }

    #[test]
    fn dropped_subscribers_get_no_changes_and_dropped_indexes_are_removed() {
        let cache = Cache::for_tests([config_map("a", 1)]);
        let received = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let log = received.clone();
        let subscriber = subscriber(move |delta| log.lock().push((delta.latest().name_any(), delta.old.is_some())));
        cache.objects.subscribe(&subscriber);
        let index = cache.index(|c: &ConfigMap| vec![c.name_any()]);
        cache.observe(config_map("b", 2));
        cache.objects.replay();
        let all = [("b", false), ("a", false), ("b", false)].map(|(name, changed)| (name.to_owned(), changed));
        assert_eq!(*received.lock(), all, "a change, and then all objects as new");

        drop((subscriber, index));
        cache.observe(config_map("a", 3));
        assert_eq!(received.lock().len(), 3);
        let _other = cache.index(|c: &ConfigMap| vec![c.name_any()]);
        assert_eq!(cache.objects.read(|state| state.indexes.len()), 1);
    }

    fn subscriber(changed: impl Fn(&Delta<ConfigMap>) + Send + Sync + 'static) -> Arc<Subscriber> {
        Arc::new(move |delta| changed(&Delta::typed(delta)))
    }

    /// A subscriber that records both sides of each change as `UID@resourceVersion`.
    #[expect(clippy::type_complexity, reason = "the two sides of each change, and the subscriber")]
    fn recorded(cache: &Cache<ConfigMap>) -> (Arc<parking_lot::Mutex<Vec<[Option<String>; 2]>>>, Arc<Subscriber>) {
        let received = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let log = received.clone();
        let state = |side: &Option<Arc<ConfigMap>>| {
            let meta = &side.as_ref()?.metadata;
            Some(format!("{}@{}", meta.uid.as_ref()?, meta.resource_version.as_ref()?))
        };
        let subscriber = subscriber(move |delta| log.lock().push([state(&delta.old), state(&delta.new)]));
        cache.objects.subscribe(&subscriber);
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
        cache.observe_deleted(&config_map("a", 8));
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
        let slow = subscriber(move |delta| {
            if delta.new.is_some() {
                notifying.lock().send(()).unwrap();
                let _ = is_late.lock().recv_timeout(Duration::from_millis(50));
            }
        });
        cache.objects.subscribers.write().insert(0, Arc::downgrade(&slow));
        std::thread::scope(|scope| {
            scope.spawn(|| cache.observe(config_map("a", 7)));
            notified.recv().unwrap();
            cache.observe_deleted(&config_map("a", 8));
            let _ = late.send(());
        });
        let side = || Some("u@7".to_owned());
        assert_eq!(*received.lock(), [[None, side()], [side(), None]]);
    }

    #[test]
    fn idle_objects_are_packed_and_unpacked_unchanged() {
        let all = || (0..UNPACKED_MAX + 100).map(|number| config_map(&format!("{number:05}"), 7));
        let typed = |cache: &Cache<ConfigMap>| {
            cache.objects.read(|state| state.objects.values().filter(|entry| entry.typed.is_some()).count())
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
        assert!(
            cache.objects.knows(&config_map("00001", 7).metadata)
                && !cache.objects.knows(&config_map("00001", 8).metadata)
        );
        let before = by_last.count("1");
        cache.observe(config_map("00001", 8));
        assert_eq!(cache.get(&ObjectKey::namespaced("ns", "00001")).unwrap().resource_version().unwrap(), "8");
        assert_eq!(by_last.count("1"), before);
        cache.observe_deleted(&config_map("00002", 9));
        assert_eq!(cache.get(&ObjectKey::namespaced("ns", "00002")), None);
        assert_eq!(cache.len(), UNPACKED_MAX + 99);
    }

    #[test]
    fn objects_that_are_not_used_between_two_calls_are_packed() {
        let names = |cache: &Cache<ConfigMap>| {
            cache.objects.read(|state| {
                let typed = state.entries().filter(|(_, entry)| entry.typed.is_some());
                typed.map(|(key, _)| key.name.clone()).collect::<Vec<_>>()
            })
        };
        let cache = Cache::for_tests((0..100).map(|number| config_map(&format!("{number:05}"), 7)));
        cache.objects.pack_unused();
        cache.objects.pack_unused();
        assert_eq!(names(&cache).len(), 100, "packing is off");
        cache.pack_idle();
        cache.objects.pack_unused();
        assert_eq!(names(&cache).len(), 100, "all are new");
        cache.observe(config_map("00007", 8));
        cache.objects.pack_unused();
        assert_eq!(names(&cache), ["00007"]);
        // Of an object that is read again, the typed value is kept for one more period.
        cache.get(&ObjectKey::namespaced("ns", "00003"));
        cache.objects.pack_unused();
        assert_eq!(names(&cache), ["00003"]);
        cache.objects.pack_unused();
        assert_eq!(names(&cache), [""; 0]);
        assert_eq!(*cache.get(&ObjectKey::namespaced("ns", "00007")).unwrap(), config_map("00007", 8));
    }

    #[test]
    fn packing_can_be_enabled_on_a_full_cache() {
        let all = || (0..UNPACKED_MAX + 3).map(|number| config_map(&format!("{number:05}"), 7));
        let cache = Cache::for_tests(all());
        cache.pack_idle();
        assert_eq!(cache.objects.read(|state| state.objects.values().filter(|entry| entry.typed.is_none()).count()), 3);
        assert!(cache.iter().map(|object| (*object).clone()).eq(all()));
    }
}
