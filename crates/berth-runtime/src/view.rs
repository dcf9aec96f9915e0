//! A small value per object of a cache, which is kept up to date: for questions about all objects
//! of a kind whose cache is packed ([`Cache::pack_idle`](crate::Cache::pack_idle)).

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::ObjectKey;
use crate::objects::{AnyObject, typed_ref};

type ViewFn<K, R> = dyn Fn(&K) -> Option<R> + Send + Sync;

/// Gets every change of a cache's objects, while the cache is locked.
pub(crate) trait Follower: Send + Sync {
    /// An object after its change; `None` if it was deleted.
    fn change(&self, key: &Arc<ObjectKey>, new: Option<&AnyObject>);
}

/// Where a view keeps its values, in the form that its questions need.
pub trait Rows<R>: Default + Send + Sync {
    /// Adds or replaces the value of an object.
    fn put(&mut self, key: &Arc<ObjectKey>, row: R);
    /// Removes the value of an object, if there is one.
    fn take(&mut self, key: &Arc<ObjectKey>);
}

impl<R: Send + Sync> Rows<R> for BTreeMap<Arc<ObjectKey>, R> {
    fn put(&mut self, key: &Arc<ObjectKey>, row: R) {
        self.insert(key.clone(), row);
    }

    fn take(&mut self, key: &Arc<ObjectKey>) {
        self.remove(key);
    }
}

/// A value per object; see [`Cache::view`](crate::Cache::view). It is updated until it is dropped.
/// Clones share it. The values are ordered by key, unless the view has [`Rows`] of its own.
pub struct View<K, R, T = BTreeMap<Arc<ObjectKey>, R>> {
    inner: Arc<Inner<K, R, T>>,
}

impl<K, R, T> Clone for View<K, R, T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

pub(crate) struct Inner<K, R, T> {
    of: Box<ViewFn<K, R>>,
    rows: RwLock<T>,
}

impl<K, R, T> Follower for Inner<K, R, T>
where
    K: 'static,
    R: Send + Sync,
    T: Rows<R>,
{
    fn change(&self, key: &Arc<ObjectKey>, new: Option<&AnyObject>) {
        let row = new.and_then(|new| (self.of)(typed_ref(new)));
        let mut rows = self.rows.write();
        match row {
            Some(row) => rows.put(key, row),
            None => rows.take(key),
        }
    }
}

impl<K, R, T: Rows<R>> View<K, R, T> {
    pub(crate) fn new(of: impl Fn(&K) -> Option<R> + Send + Sync + 'static) -> Self {
        Self { inner: Arc::new(Inner { of: Box::new(of), rows: RwLock::default() }) }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner<K, R, T>> {
        &self.inner
    }

    /// Passes all values to `read`. The cache waits for it, so it must not use the cache.
    pub fn read<A>(&self, read: impl FnOnce(&T) -> A) -> A {
        read(&self.inner.rows.read())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::ObjectMeta;

    use crate::Cache;

    fn map(name: &str, version: u64, value: &str) -> ConfigMap {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("ns".to_owned()),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        };
        let data = [("key".to_owned(), value.to_owned())].into();
        ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }
    }

    #[test]
    fn a_view_follows_the_objects_of_its_cache() {
        let cache = Cache::for_tests([map("a", 1, "one"), map("b", 2, "two")]);
        let view = cache.view(|map: &ConfigMap| map.data.as_ref()?.get("key").filter(|it| *it != "hidden").cloned());
        let shown = || view.read(|rows| rows.values().cloned().collect::<Vec<_>>().join(" "));
        assert_eq!(shown(), "one two");
        cache.observe(map("a", 3, "three"));
        cache.observe(map("c", 4, "four"));
        assert_eq!(shown(), "three two four");
        cache.observe(map("b", 5, "hidden"));
        cache.observe_deleted(&map("c", 6, "four"));
        assert_eq!(shown(), "three");
        cache.observe(map("a", 2, "old"));
        assert_eq!(shown(), "three", "an older state changes nothing");
    }
}
