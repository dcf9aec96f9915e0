//! Fills one cache by list and watch, and keeps it up to date.

use berth_api::json::Json;
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::StreamExt;
use kube::core::{ApiResource, Status};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use tokio::sync::{RwLock, watch};

use crate::kinds::Serving;
use crate::objects::{AnyObject, Objects, version_of};
use crate::takeover;
use crate::wire::Undecoded;
use crate::{Clock, ObjectKey};

/// First delay before a failed watch is retried; doubles up to the maximum.
const BACKOFF_BASE: Duration = Duration::from_millis(100);
/// Maximum if the API server responds with an error.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Maximum while the API server does not respond. An attempt then costs only a connection, and the
/// controllers decide nothing until a list or watch succeeds again.
const BACKOFF_UNREACHABLE_MAX: Duration = Duration::from_secs(5);
/// From this delay on, failures are logged as warnings.
const BACKOFF_WARN: Duration = Duration::from_millis(1600);
/// The status code of a watch from a revision that the API server no longer knows.
const EXPIRED: u16 = 410;

/// The delays between failed lists and watches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Self {
        Backoff(BACKOFF_BASE)
    }

    /// Starts again, after a success.
    pub(crate) fn reset(&mut self) {
        *self = Backoff::new();
    }

    /// The delay after a failed list or watch.
    pub(crate) fn after(&mut self, error: &watcher::Error) -> Duration {
        match error {
            // The usual end of an interruption: the API server was started again. The watcher lists
            // next.
            watcher::Error::WatchError(status) if status.code == EXPIRED => {
                self.reset();
                self.0
            }
            _ => self.next(rejection(error)),
        }
    }

    /// The delay after a failed request. `response` is `None` if the API server did not respond.
    pub(crate) fn next(&mut self, response: Option<&Status>) -> Duration {
        if response.is_none() {
            self.0 = self.0.min(BACKOFF_UNREACHABLE_MAX);
        }
        let delay = self.0;
        self.0 = (delay * 2).min(BACKOFF_MAX);
        delay
    }

    /// True if several requests in a row failed before this delay. A single failure is normal.
    pub(crate) fn is_repeated(delay: Duration) -> bool {
        delay >= BACKOFF_WARN
    }
}

/// The response with which the API server rejected a list or watch; `None` without a response.
pub(crate) fn rejection(error: &watcher::Error) -> Option<&Status> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status),
        _ => None,
    }
}

/// The cache of any kind, as lists and watches see it.
#[derive(Clone)]
pub(crate) struct AnyCache {
    pub(crate) resource: ApiResource,
    pub(crate) objects: Arc<Objects>,
    decode: fn(&Undecoded) -> serde_json::Result<Arc<AnyObject>>,
}

impl AnyCache {
    /// An empty cache of objects of type `K`.
    pub(crate) fn of<K>() -> Self
    where
        K: Resource<DynamicType = ()> + Json + Send + Sync + 'static,
    {
        Self {
            resource: ApiResource::erase::<K>(&()),
            objects: Arc::new(Objects::of::<K>()),
            decode: |object| Ok(Arc::new(object.decode::<K>()?)),
        }
    }

    /// The API of the objects of all namespaces.
    pub(crate) fn api(&self, client: &Client) -> Api<Undecoded> {
        Api::all_with(client.clone(), &self.resource)
    }

    /// Applies an object from a list or watch. It is decoded only if the cache does not have its
    /// version.
    pub(crate) fn apply_if_new(&self, object: &Undecoded) {
        if self.objects.knows(object.meta()) {
            return;
        }
        match (self.decode)(object) {
            Ok(object) => self.objects.apply(object),
            // An invalid object is skipped, so that the controllers still get all other objects.
            Err(error) => {
                let (kind, key) = (&self.resource.kind, ObjectKey::of(object));
                tracing::warn!(kind, %key, %error, "cannot decode an object");
            }
        }
    }
}

/// A cache, and the keys and revision of the list that fills it.
pub(crate) struct Filling {
    cache: AnyCache,
    listed: BTreeSet<ObjectKey>,
    /// The highest version of the listed objects. The list has this revision or a later one.
    revision: u64,
}

/// The step of a watcher to which an event belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A list, which is not complete yet.
    Listing,
    /// The end of a list. The cache may still have objects that were deleted before: see
    /// [`Filling::end`] and [`Filling::end_beside_writes`].
    Listed,
    /// A change of an object.
    Changed,
}

impl Filling {
    pub(crate) fn new(cache: AnyCache) -> Self {
        Self { cache, listed: BTreeSet::new(), revision: 0 }
    }

    /// Applies an event to the cache.
    pub(crate) fn take(&mut self, event: watcher::Event<Undecoded>) -> Step {
        match event {
            watcher::Event::Init => {
                self.listed.clear();
                self.revision = 0;
                Step::Listing
            }
            watcher::Event::InitApply(object) => {
                self.listed.insert(ObjectKey::of(&object));
                self.revision = self.revision.max(version_of(object.meta()).unwrap_or_default());
                self.cache.apply_if_new(&object);
                Step::Listing
            }
            watcher::Event::InitDone => Step::Listed,
            watcher::Event::Apply(object) => {
                self.cache.apply_if_new(&object);
                Step::Changed
            }
            watcher::Event::Delete(object) => {
                self.cache.objects.remove(object.meta());
                Step::Changed
            }
        }
    }

    /// Ends the list that fills the cache: removes the objects that were not listed. Only for a
    /// cache that nothing but lists and watches change.
    pub(crate) fn end(&mut self) {
        self.cache.objects.retain(&self.listed);
        self.cache.objects.set_complete(true);
        self.listed.clear();
    }

    /// First step of ending a list whose cache also has the program's own writes: removes the
    /// objects that were deleted before the list. True if the cache has other objects that were not
    /// listed.
    ///
    /// Such an object is newer than all listed ones. It was either deleted before the list or
    /// written after it. This list cannot show which, because the watcher does not report the
    /// list's revision. A second list, whose revision is known, decides ([`takeover::catch_up`]).
    /// If the cache removed an object that still exists, it would lack the object until the object
    /// changes again.
    fn needs_second_list(&self) -> bool {
        self.cache.objects.forget_before(self.revision, &self.listed);
        self.cache.objects.has_others(&self.listed)
    }

    /// Completes what [`Filling::needs_second_list`] began.
    fn end_beside_writes(&mut self) {
        self.cache.objects.set_complete(true);
        self.listed.clear();
    }
}

/// The source of a cache.
pub(crate) struct Source {
    pub(crate) api: Api<Undecoded>,
    pub(crate) watches: watcher::Config,
    pub(crate) cache: AnyCache,
    pub(crate) clock: Clock,
    /// True if the manager waits until this cache is filled, regardless of the time that takes. It
    /// is false for optional kinds: if objects of such a kind cannot be listed, for example without
    /// its conversion webhook, other controllers still start.
    pub(crate) required: bool,
    /// Read lock that is held while the cache is changed, and never during a request. A holder of
    /// the write lock excludes all changes.
    pub(crate) gate: Arc<RwLock<()>>,
}

impl Source {
    /// Lists and watches. Lists again if the watch was interrupted for too long.
    pub(crate) async fn inform(&self, synced: &watch::Sender<bool>) {
        let Self { api, watches, cache, clock, required, gate } = self;
        let kind = &cache.resource.kind;
        let mut stream = pin!(watcher(api.clone(), watches.clone()));
        let mut filling = Filling::new(cache.clone());
        let mut backoff = Backoff::new();
        while let Some(event) = stream.next().await {
            let gate_guard = gate.read().await;
            match event.map(|event| filling.take(event)) {
                Ok(Step::Listing) => {}
                Ok(Step::Listed) => {
                    let needs_second_list = filling.needs_second_list();
                    // The second list is retried until the API server responds. The gate is
                    // released, so that others can get the write lock meanwhile.
                    drop(gate_guard);
                    if needs_second_list {
                        takeover::catch_up(api.clone(), cache.clone(), clock.clone(), gate.clone()).await;
                    }
                    filling.end_beside_writes();
                    // An error means that no receiver is left, because the manager is stopping.
                    let _ = synced.send(true);
                    backoff.reset();
                }
                Ok(Step::Changed) => backoff.reset(),
                Err(error) => {
                    drop(gate_guard);
                    let delay = backoff.after(&error);
                    let error = crate::brief(&error);
                    // A single lost watch is normal. Repeated failures are logged as warnings.
                    if Backoff::is_repeated(delay) {
                        if !required {
                            let _ = synced.send(true);
                        }
                        tracing::warn!(kind, %error, ?delay, "watch failed, retrying");
                    } else {
                        tracing::debug!(kind, %error, ?delay, "watch failed, retrying");
                    }
                    clock.sleep(delay).await;
                }
            }
        }
    }

    /// Lists and watches while the cluster serves the kind. The cache counts as filled while the
    /// kind is not served. When the CustomResourceDefinition is deleted, its objects are removed
    /// from the cache, even if no watch has shown their deletion.
    pub(crate) async fn inform_while_served(self, synced: watch::Sender<bool>, mut serving: watch::Receiver<Serving>) {
        let mut was_served = false;
        loop {
            let now = *serving.borrow_and_update();
            match now {
                Serving::Unknown => {}
                Serving::Served => {
                    if !was_served {
                        self.cache.objects.set_complete(false);
                    }
                    was_served = true;
                    // An update of the definition after which the kind is still served needs no new
                    // list.
                    let ends = serving.wait_for(|now| *now != Serving::Served);
                    tokio::select! {
                        biased;
                        _ = ends => {}
                        () = self.inform(&synced) => {}
                    }
                    continue;
                }
                Serving::Dormant => {
                    let _ = synced.send(true);
                }
                Serving::Absent => {
                    let _open = self.gate.read().await;
                    self.cache.objects.retain(&BTreeSet::new());
                    self.cache.objects.set_complete(true);
                    was_served = false;
                    let _ = synced.send(true);
                }
            }
            if serving.changed().await.is_err() {
                // The task that follows the definitions has ended, and its own error is reported.
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Client;
    use kube::client::Body;
    use kube::core::ObjectMeta;
    use serde_json::json;

    use super::*;
    use crate::Cache;

    fn config_map(name: &str, version: u64) -> ConfigMap {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("ns".to_owned()),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        };
        ConfigMap { metadata, ..ConfigMap::default() }
    }

    /// A server whose first list has revision 6. Before its response arrives, the program writes an
    /// object at revision 7. The watches have no events.
    fn server(cache: &Cache<ConfigMap>, lists: &Arc<AtomicUsize>) -> Client {
        let (cache, lists) = (cache.clone(), lists.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (cache, lists) = (cache.clone(), lists.clone());
            async move {
                if request.uri().query().unwrap_or_default().contains("watch=true") {
                    std::future::pending::<()>().await;
                }
                let (revision, names) = match lists.fetch_add(1, Ordering::SeqCst) {
                    0 => ("6", vec![("unchanged", "5")]),
                    _ => ("9", vec![("unchanged", "5"), ("written", "7")]),
                };
                if revision == "6" {
                    cache.observe(config_map("written", 7));
                }
                let item = |(name, version)| json!({"metadata": {"name": name, "namespace": "ns", "resourceVersion": version}});
                let items: Vec<_> = names.into_iter().map(item).collect();
                let list = json!({"kind": "ConfigMapList", "apiVersion": "v1",
                    "metadata": {"resourceVersion": revision}, "items": items});
                Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
            }
        });
        Client::new(service, "ns")
    }

    /// Runs an informer for a cache that already has these objects, until the cache is filled.
    /// Returns the names of the cached objects, and the number of lists.
    async fn listed(known: impl IntoIterator<Item = ConfigMap>) -> (Vec<String>, usize) {
        let any = AnyCache::of::<ConfigMap>();
        let cache: Cache<ConfigMap> = Cache::of(any.objects.clone());
        known.into_iter().for_each(|object| cache.observe(object));
        let lists = Arc::new(AtomicUsize::new(0));
        let source = Source {
            api: any.api(&server(&cache, &lists)),
            watches: watcher::Config::default(),
            cache: any,
            clock: Clock::system(),
            required: true,
            gate: Arc::default(),
        };
        let (synced, mut filled) = watch::channel(false);
        tokio::select! {
            () = source.inform(&synced) => unreachable!("an informer does not end"),
            filled = filled.wait_for(|filled| *filled) => drop(filled.expect("the informer runs")),
        }
        let mut names: Vec<String> = cache.list().iter().filter_map(|map| map.metadata.name.clone()).collect();
        names.sort_unstable();
        (names, lists.load(Ordering::SeqCst))
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_is_written_during_a_list_stays_in_the_cache() {
        let (names, lists) = listed([config_map("unchanged", 5)]).await;
        assert_eq!((names, lists), (vec!["unchanged".to_owned(), "written".to_owned()], 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_term_does_not_wait_for_a_list_that_cannot_end() {
        let any = AnyCache::of::<ConfigMap>();
        let cache: Cache<ConfigMap> = Cache::of(any.objects.clone());
        cache.observe(config_map("unchanged", 5));
        let lists = Arc::new(AtomicUsize::new(0));
        let begun = lists.clone();
        // The API server responds only to the first list.
        let server = server(&cache, &lists);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, is_first) = (server.clone(), begun.load(Ordering::SeqCst) == 0);
            begun.fetch_add(usize::from(!is_first), Ordering::SeqCst);
            async move {
                if !is_first {
                    std::future::pending::<()>().await;
                }
                server.send(request).await
            }
        });
        let gate: Arc<RwLock<()>> = Arc::default();
        let source = Source {
            api: any.api(&Client::new(service, "ns")),
            watches: watcher::Config::default(),
            cache: any,
            clock: Clock::system(),
            required: true,
            gate: gate.clone(),
        };
        let informer = tokio::spawn(async move { source.inform(&watch::channel(false).0).await });
        while lists.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        let renewal = tokio::time::timeout(Duration::from_secs(60), gate.write()).await;
        assert!(renewal.is_ok(), "the second list holds the gate");
        informer.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn objects_that_were_deleted_before_a_list_are_removed_from_the_cache() {
        // `deleted-early` has an older version than the listed object, and `deleted-late` a newer
        // one.
        let (names, _) = listed([config_map("deleted-early", 4), config_map("deleted-late", 6)]).await;
        assert_eq!(names, ["unchanged", "written"]);
    }
}
