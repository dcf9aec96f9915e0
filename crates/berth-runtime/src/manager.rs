//! The manager, which runs caches and controllers.

use berth_api::json::Json;
use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition as Definition;
use kube::api::ObjectMeta;
use kube::core::ApiResource;
use kube::runtime::watcher;
use kube::{Client, Resource};
use tokio::sync::{RwLock, watch};
use tokio::task::JoinSet;

use crate::inform::{AnyCache, Source};
use crate::kinds::{Kinds, Serving};
use crate::objects::{AnyObject, Objects, Subscriber};
use crate::work::Work;
use crate::{
    Action, Cache, Clock, Delta, Error, ObjectKey, Queue, Reconciler, Recorder, Selection, projection, takeover,
};

/// From this retry delay on, a 404 is logged as a warning.
const NOT_FOUND_WARN: Duration = Duration::from_millis(500);
/// Default number of concurrent reconciles of one controller.
const CONCURRENCY_DEFAULT: usize = 8;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// The key to reconcile for an object with this metadata.
type KeyFn = Box<dyn Fn(&ObjectMeta) -> Option<ObjectKey> + Send + Sync>;
type ReconcileFn = Arc<dyn Fn(ObjectKey) -> BoxFuture<Result<Action, Error>> + Send + Sync>;

/// The reason why a manager stopped before its shutdown.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// A task panicked. The process would be incomplete without it.
    #[error("the task of controller or watch {name} panicked")]
    TaskDied {
        /// Name of the controller or watch.
        name: String,
        /// The panic.
        #[source]
        source: tokio::task::JoinError,
    },
}

/// Owns the caches and controllers of one process.
///
/// Caches are filled and updated for the lifetime of the manager. Controllers run for a term: until
/// the process ends, or until another replica leads. After a term, only the caches remain, and
/// [`Manager::renew`] installs new controllers.
pub struct Manager {
    client: Client,
    watches: watcher::Config,
    clock: Clock,
    recorder: Recorder,
    events: Option<BoxFuture<()>>,
    /// The caches by the type of their objects.
    caches: BTreeMap<TypeId, AnyCache>,
    /// The objects of the caches, in the order in which they were requested.
    packers: Packers,
    kinds: Kinds,
    informers: Vec<Informer>,
    /// Held for reading by informers while they change a cache.
    gate: Arc<RwLock<()>>,
    /// The tasks of the informers and of the event recorder.
    informer_tasks: JoinSet<()>,
    /// Names of these tasks, for errors.
    names: BTreeMap<tokio::task::Id, String>,
    /// Reads of kinds that a newly elected replica makes before its controllers start.
    catching_up: BTreeMap<TypeId, Box<dyn Fn() -> BoxFuture<()> + Send>>,
    /// Limits on the concurrency of controllers, by name.
    concurrency_max: BTreeMap<String, usize>,
    /// Figures of the controllers' work.
    work: Work,
    /// Controllers that run, for all terms.
    selection: Selection,
    controllers: Vec<Controller>,
    tasks: Vec<(String, BoxFuture<()>)>,
}

struct Informer {
    group: String,
    plural: String,
    synced: watch::Receiver<bool>,
    /// `None` once started.
    run: Option<BoxFuture<()>>,
}

struct Controller {
    name: String,
    queue: Queue,
    concurrency: usize,
    reconcile: ReconcileFn,
    /// Subscriptions to caches, which end when they are dropped.
    subscriptions: Vec<Arc<Subscriber>>,
}

impl Manager {
    /// Creates a manager without caches and controllers.
    pub fn new(client: Client, clock: Clock) -> Self {
        let (recorder, events) = Recorder::new(client.clone(), clock.clone());
        Self {
            client,
            watches: watcher::Config::default(),
            clock,
            recorder,
            events: Some(Box::pin(events)),
            caches: BTreeMap::new(),
            packers: Packers::default(),
            kinds: Kinds::default(),
            informers: Vec::new(),
            gate: Arc::default(),
            informer_tasks: JoinSet::new(),
            names: BTreeMap::new(),
            catching_up: BTreeMap::new(),
            concurrency_max: BTreeMap::new(),
            work: Work::default(),
            selection: Selection::default(),
            controllers: Vec::new(),
            tasks: Vec::new(),
        }
    }

    /// Creates a manager whose client is connected to an API server in this process. Its watches
    /// are never restarted for being idle: such a connection cannot be lost unnoticed.
    pub fn in_process(client: Client, clock: Clock) -> Self {
        Self { watches: watcher::Config::default().timeout(0), ..Self::new(client, clock) }
    }

    /// Drops every event that is recorded. It must be called before recorders are requested.
    #[must_use]
    pub fn without_events(mut self) -> Self {
        self.recorder = Recorder::silent(self.clock.clone());
        self.events = None;
        self
    }

    /// Returns the options of this manager's watches.
    pub fn watches(&self) -> watcher::Config {
        self.watches.clone()
    }

    /// Returns the client for writes.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the cluster clock.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Returns the event recorder of a component.
    pub fn recorder(&self, component: &str) -> Recorder {
        self.recorder.for_component(component)
    }

    /// Returns the cache of a kind over all namespaces. All callers share one watch per kind.
    pub fn cache<K>(&mut self) -> Cache<K>
    where
        K: Resource<DynamicType = ()> + Json + Clone + Debug + Send + Sync + 'static,
    {
        self.cache_of(true)
    }

    /// Returns the cache of nodes, which keeps only the parts that controllers use; see
    /// [`projection`].
    pub fn nodes(&mut self) -> Cache<Node> {
        let cache = self.cache();
        cache.project(projection::of_node);
        cache
    }

    /// Returns the cache of an optional kind. Without its CustomResourceDefinition the cache is
    /// empty and counts as filled. It is filled when the kind is defined, and emptied when the
    /// definition is deleted. While the definition does not serve the version that Berth reads, the
    /// cache keeps its objects.
    pub fn cache_if_served<K>(&mut self) -> Cache<K>
    where
        K: Resource<DynamicType = ()> + Json + Clone + Debug + Send + Sync + 'static,
    {
        self.cache_of(false)
    }

    /// Returns a receiver of the state of a kind of [`Manager::cache_if_served`]: does the cluster
    /// serve it?
    pub fn serving<K: Resource<DynamicType = ()>>(&self) -> watch::Receiver<Serving> {
        self.kinds.request(&ApiResource::erase::<K>(&()))
    }

    /// Returns the requested optional kinds, and which of them the cluster serves.
    pub fn kinds(&self) -> Kinds {
        self.kinds.clone()
    }

    fn cache_of<K>(&mut self, required: bool) -> Cache<K>
    where
        K: Resource<DynamicType = ()> + Json + Clone + Debug + Send + Sync + 'static,
    {
        Cache::of(self.any_cache_of(TypeId::of::<K>(), AnyCache::of::<K>, required).objects)
    }

    /// Returns the cache of objects of this type. On the first call, it is made by `new`, and its
    /// informer is added.
    fn any_cache_of(&mut self, id: TypeId, new: fn() -> AnyCache, required: bool) -> AnyCache {
        if let Some(known) = self.caches.get(&id) {
            return known.clone();
        }
        let cache = new();
        let source = Source {
            api: cache.api(&self.client),
            watches: self.watches.clone(),
            cache: cache.clone(),
            clock: self.clock.clone(),
            required,
            gate: self.gate.clone(),
        };
        let run: Box<dyn FnOnce(watch::Sender<bool>) -> BoxFuture<()>> = if required {
            Box::new(move |synced| Box::pin(async move { source.inform(&synced).await }))
        } else {
            if self.kinds.is_empty() {
                let kinds = self.kinds.clone().follow(self.client.clone(), self.watches.clone(), self.clock.clone());
                let definitions = (Definition::group(&()).into_owned(), Definition::plural(&()).into_owned());
                self.add_informer(definitions, Box::new(|synced| Box::pin(kinds.run(synced))));
            }
            let serving = self.kinds.request(&cache.resource);
            Box::new(move |synced| Box::pin(source.inform_while_served(synced, serving)))
        };
        self.add_informer((cache.resource.group.clone(), cache.resource.plural.clone()), run);
        self.caches.insert(id, cache.clone());
        self.packers.0.push(cache.objects.clone());
        cache
    }

    fn add_informer(
        &mut self,
        (group, plural): (String, String),
        run: Box<dyn FnOnce(watch::Sender<bool>) -> BoxFuture<()>>,
    ) {
        let (sender, synced) = watch::channel(false);
        self.informers.push(Informer { group, plural, synced, run: Some(run(sender)) });
    }

    /// Returns the cache of a kind on which decisions depend. A newly elected replica reads the
    /// current state of the kind before its controllers start, because the watch may not have shown
    /// the last writes of the previous leader yet.
    pub fn cache_to_decide_by<K>(&mut self) -> Cache<K>
    where
        K: Resource<DynamicType = ()> + Json + Clone + Debug + Send + Sync + 'static,
    {
        let cache = self.any_cache_of(TypeId::of::<K>(), AnyCache::of::<K>, true);
        self.decide_by(TypeId::of::<K>(), cache.clone());
        Cache::of(cache.objects)
    }

    fn decide_by(&mut self, id: TypeId, cache: AnyCache) {
        let (api, clock, gate) = (cache.api(&self.client), self.clock.clone(), self.gate.clone());
        let read = move || -> BoxFuture<()> {
            Box::pin(takeover::catch_up(api.clone(), cache.clone(), clock.clone(), gate.clone()))
        };
        self.catching_up.insert(id, Box::new(read));
    }

    /// Limits the concurrency of the controller of this name, for all terms. It may be called
    /// before or after the controller is added. Unknown names are ignored.
    pub fn limit_concurrency(&mut self, name: &str, concurrency_max: usize) {
        self.concurrency_max.insert(name.to_owned(), concurrency_max.max(1));
    }

    /// Selects the controllers that run, for all terms. It must be called before controllers are
    /// added. The other controllers keep their watches, and reconcile nothing.
    pub fn select(&mut self, selection: Selection) {
        self.selection = selection;
    }

    /// Returns the figures of the controllers' work, of all terms.
    pub fn work(&self) -> Work {
        self.work.clone()
    }

    /// Returns the names of the added controllers that do not run, in the order in which they were
    /// added.
    pub fn idle(&self) -> Vec<&str> {
        let names = self.controllers.iter().map(|controller| controller.name.as_str());
        names.filter(|name| !self.selection.runs(name)).collect()
    }

    /// Returns the names of the added controllers, in the order in which they were added.
    pub fn controllers(&self) -> Vec<&str> {
        self.controllers.iter().map(|controller| controller.name.as_str()).collect()
    }

    /// Returns a builder for a controller. [`ControllerBuilder::run`] adds the controller to the
    /// manager.
    pub fn controller(&mut self, name: &str) -> ControllerBuilder<'_> {
        let clock = self.clock.clone();
        let queue = if self.selection.runs(name) { Queue::new(clock) } else { Queue::closed(clock) };
        ControllerBuilder {
            manager: self,
            name: name.to_owned(),
            queue,
            concurrency: CONCURRENCY_DEFAULT,
            subscriptions: Vec::new(),
        }
    }

    /// Adds a task that runs next to the controllers until shutdown. It starts when all caches are
    /// filled.
    pub fn task(&mut self, name: &str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push((name.to_owned(), Box::pin(task)));
    }

    /// Returns what packs the unused objects of the caches so far, for processes that run in real
    /// time.
    pub fn packers(&self) -> Packers {
        self.packers.clone()
    }

    /// Returns group and plural name of every watched kind, sorted.
    pub fn watched(&self) -> Vec<(String, String)> {
        let mut kinds: Vec<_> =
            self.informers.iter().map(|informer| (informer.group.clone(), informer.plural.clone())).collect();
        kinds.sort();
        kinds
    }

    /// Returns the state of the caches, for readiness checks. Call it after all controllers were
    /// added.
    pub fn cache_state(&self) -> CacheState {
        CacheState(self.informers.iter().map(|informer| (informer.name(), informer.synced.clone())).collect())
    }

    /// Fills all caches, then runs every controller until `shutdown` resolves. Reconciles in
    /// progress are dropped at their next await point, which is safe because they are
    /// level-triggered and idempotent.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<(), ManagerError> {
        // No previous leader wrote anything, and the caches were filled a moment ago.
        self.catching_up.clear();
        self.run_when(std::future::ready(()), shutdown).await
    }

    /// Like [`Manager::run`], but controllers start once `elected` resolves. Until then, the caches
    /// are filled and updated. A standby replica thus takes over with full caches and only reads
    /// the kinds of [`Manager::cache_to_decide_by`] again.
    pub async fn run_when(
        mut self,
        elected: impl Future<Output = ()>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ManagerError> {
        let mut shutdown = pin!(shutdown);
        tokio::select! {
            biased;
            () = &mut shutdown => return Ok(()),
            filled = self.fill() => filled?,
        }
        tokio::select! {
            biased;
            () = &mut shutdown => return Ok(()),
            () = elected => {}
            died = self.follow() => return Err(died),
        }
        self.act(shutdown).await
    }

    /// Starts the informers and waits until all caches are filled.
    pub async fn fill(&mut self) -> Result<(), ManagerError> {
        self.start_informers();
        let synced: Vec<_> = self.informers.iter().map(|informer| informer.synced.clone()).collect();
        let filled = async {
            for mut receiver in synced {
                // An error means that the informer has panicked, which `follow` reports.
                if receiver.wait_for(|done| *done).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            biased;
            died = self.follow() => Err(died),
            () = filled => Ok(()),
        }
    }

    /// Keeps the caches up to date. Returns only when an informer or the event recorder has
    /// panicked.
    pub async fn follow(&mut self) -> ManagerError {
        loop {
            if let Some(Err(source)) = self.informer_tasks.join_next_with_id().await {
                return died(source, &mut self.names);
            }
            if self.informer_tasks.is_empty() {
                // Informers never end by themselves. Without any, there is nothing to wait for.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Reads the kinds of [`Manager::cache_to_decide_by`] again, then runs every controller until
    /// `until` resolves. All controllers have stopped when this returns. Call [`Manager::renew`]
    /// before the next term.
    pub async fn act(&mut self, until: impl Future<Output = ()>) -> Result<(), ManagerError> {
        let mut until = pin!(until);
        let caught_up = futures::future::join_all(self.catching_up.values().map(|read| read()));
        tokio::select! {
            biased;
            () = &mut until => return Ok(()),
            _ = caught_up => {}
            died = self.follow() => return Err(died),
        }
        let (mut acting, mut names) = (JoinSet::new(), BTreeMap::new());
        for mut controller in std::mem::take(&mut self.controllers) {
            let name = controller.name.clone();
            let concurrency_max = self.concurrency_max.get(&name).copied().unwrap_or(usize::MAX);
            controller.concurrency = controller.concurrency.min(concurrency_max);
            if self.selection.runs(&name) {
                self.work.add(&name, controller.queue.clone(), controller.concurrency);
            }
            names.insert(acting.spawn(controller.run()).id(), name);
        }
        for (name, task) in std::mem::take(&mut self.tasks) {
            names.insert(acting.spawn(task).id(), name);
        }
        let ended = loop {
            tokio::select! {
                biased;
                () = &mut until => break Ok(()),
                ended = acting.join_next_with_id(), if !acting.is_empty() => if let Some(Err(source)) = ended {
                    break Err(died(source, &mut names));
                },
                died = self.follow() => break Err(died),
            }
        };
        // Another replica may lead next, so wait until all tasks of this one have stopped.
        acting.shutdown().await;
        ended
    }

    /// Removes all controllers and calls `install` to add new ones. The caches remain, and send all
    /// their objects to the new controllers as new. Informers wait during this call.
    pub async fn renew(&mut self, install: impl FnOnce(&mut Self)) {
        self.controllers.clear();
        self.tasks.clear();
        let gate = self.gate.clone();
        let _exclusive = gate.write().await;
        install(self);
        for objects in &self.packers.0 {
            objects.replay();
        }
    }

    fn start_informers(&mut self) {
        if let Some(events) = self.events.take() {
            self.names.insert(self.informer_tasks.spawn(events).id(), "events".to_owned());
        }
        for informer in &mut self.informers {
            if let Some(run) = informer.run.take() {
                let name = informer.name();
                self.names.insert(self.informer_tasks.spawn(run).id(), name);
            }
        }
    }
}

/// Returns the error for a panicked task.
fn died(source: tokio::task::JoinError, names: &mut BTreeMap<tokio::task::Id, String>) -> ManagerError {
    ManagerError::TaskDied { name: names.remove(&source.id()).unwrap_or_default(), source }
}

impl Informer {
    /// Returns `plural.group`, which is the name of a CustomResourceDefinition.
    fn name(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }
}

/// Packs objects that are not in use, in the caches that permit it. A busy process needs the
/// objects of the last seconds unpacked; an idle one would keep thousands of them in memory for
/// nothing.
#[derive(Clone, Default)]
pub struct Packers(Vec<Arc<Objects>>);

impl Packers {
    /// Packs, once every `period`, what was not used for that long. Never returns.
    pub async fn run(self, period: Duration) {
        loop {
            tokio::time::sleep(period).await;
            for objects in &self.0 {
                objects.pack_unused();
                tokio::task::yield_now().await;
            }
        }
    }
}

/// State of the caches of a manager: filled or not; clones share it.
#[derive(Clone)]
pub struct CacheState(Vec<(String, watch::Receiver<bool>)>);

impl CacheState {
    /// Returns the kinds whose cache is not filled yet, as `plural.group`. Empty when the manager
    /// is ready.
    pub fn pending(&self) -> Vec<&str> {
        self.0.iter().filter(|(_, synced)| !*synced.borrow()).map(|(name, _)| name.as_str()).collect()
    }
}

/// A builder for one controller; see [`Manager::controller`].
pub struct ControllerBuilder<'a> {
    manager: &'a mut Manager,
    name: String,
    queue: Queue,
    concurrency: usize,
    subscriptions: Vec<Arc<Subscriber>>,
}

impl ControllerBuilder<'_> {
    /// Reconciles the keys that `map` returns for each change to an object in this cache.
    pub fn watch<K, I>(self, cache: &Cache<K>, map: impl Fn(&Delta<K>) -> I + Send + Sync + 'static) -> Self
    where
        K: Resource + Send + Sync + 'static,
        I: IntoIterator<Item = ObjectKey>,
    {
        let queue = self.queue.clone();
        self.subscribe(
            cache.objects(),
            Arc::new(move |delta| map(&Delta::typed(delta)).into_iter().for_each(|key| queue.add(key))),
        )
    }

    /// Reconciles each changed object.
    pub fn watch_self<K: Resource + 'static>(self, cache: &Cache<K>) -> Self {
        self.watch_each(cache.objects(), Box::new(|meta| Some(ObjectKey::of_meta(meta))))
    }

    /// Reconciles the controlling owners of kind `O` of each changed object, before and after the
    /// change.
    pub fn watch_owned<O, K>(self, cache: &Cache<K>) -> Self
    where
        O: Resource<DynamicType = ()> + 'static,
        K: Resource + 'static,
    {
        let (group, kind) = (O::group(&()), O::kind(&()));
        self.watch_each(cache.objects(), Box::new(move |meta| ObjectKey::of_owner(meta, &group, &kind)))
    }

    /// Reconciles the keys that `key` returns for the metadata of each changed object, before and
    /// after the change.
    fn watch_each(self, objects: &Arc<Objects>, key: KeyFn) -> Self {
        let (queue, meta) = (self.queue.clone(), objects.meta);
        let changed = move |delta: &Delta<AnyObject>| {
            let states = [&delta.old, &delta.new].into_iter().flatten();
            let keys: BTreeSet<_> = states.filter_map(|object| key(meta(&**object))).collect();
            keys.into_iter().for_each(|key| queue.add(key));
        };
        self.subscribe(objects, Arc::new(changed))
    }

    fn subscribe(mut self, objects: &Objects, subscriber: Arc<Subscriber>) -> Self {
        objects.subscribe(&subscriber);
        self.subscriptions.push(subscriber);
        self
    }

    /// Sets the number of concurrent reconciles, each of another key.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// Returns the work queue, for timers and other triggers.
    pub fn queue(&self) -> Queue {
        self.queue.clone()
    }

    /// Adds the controller to the manager.
    pub fn run(self, reconciler: impl Reconciler) {
        let reconciler = Arc::new(reconciler);
        let reconcile: ReconcileFn = Arc::new(move |key| {
            let reconciler = reconciler.clone();
            Box::pin(async move { reconciler.reconcile(key).await })
        });
        self.manager.controllers.push(Controller {
            name: self.name,
            queue: self.queue,
            concurrency: self.concurrency,
            reconcile,
            subscriptions: self.subscriptions,
        });
    }
}

impl Controller {
    async fn run(self) {
        // Nothing reads this field; it only keeps the subscriptions alive.
        let _subscriptions = &self.subscriptions;
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                Some((key, result)) = running.next(), if !running.is_empty() => self.finish(key, result),
                key = self.queue.next(), if running.len() < self.concurrency => {
                    let future = (self.reconcile)(key.clone());
                    running.push(async move { (key, future.await) });
                }
            }
        }
    }

    fn finish(&self, key: ObjectKey, result: Result<Action, Error>) {
        match result {
            Ok(Action::Wait) => self.queue.done(key, None),
            Ok(Action::After(delay)) => self.queue.done(key, Some(delay)),
            Err(error) => {
                let api_error = error.downcast_ref::<kube::Error>();
                let conflict = api_error.is_some_and(crate::is_conflict);
                let not_found = api_error.is_some_and(crate::is_not_found);
                let retry = self.queue.failed(key.clone());
                let error = crate::brief(error.as_ref());
                // A deleted object leaves the cache shortly afterwards.
                if conflict || (not_found && retry < NOT_FOUND_WARN) {
                    tracing::debug!(controller = self.name, %key, ?retry, %error, "reconcile failed, retrying");
                } else {
                    tracing::warn!(controller = self.name, %key, ?retry, %error, "reconcile failed, retrying");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// A reconciler that records the maximum number of concurrent reconciles.
    #[derive(Clone, Default)]
    struct Slow {
        running: Arc<AtomicUsize>,
        max: Arc<AtomicUsize>,
    }

    impl Reconciler for Slow {
        async fn reconcile(&self, _key: ObjectKey) -> Result<Action, Error> {
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.max.fetch_max(running, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.running.fetch_sub(1, Ordering::SeqCst);
            Ok(Action::Wait)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_concurrency_limit_applies_if_set_before_or_after_the_controller_is_added() {
        let clock = Clock::scaled("2026-01-05T09:00:00Z".parse().expect("a timestamp"), 1.0);
        let service = tower::service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
        let mut manager = Manager::new(Client::new(service, "default"), clock);
        let (early, late, free) = (Slow::default(), Slow::default(), Slow::default());
        manager.limit_concurrency("early", 2);
        for (name, reconciler) in [("early", &early), ("late", &late), ("free", &free)] {
            let builder = manager.controller(name).concurrency(4);
            for key in 0..6 {
                builder.queue().add(ObjectKey::cluster(format!("{key}")));
            }
            builder.run(reconciler.clone());
        }
        manager.limit_concurrency("late", 3);
        manager.run(tokio::time::sleep(Duration::from_secs(20))).await.expect("no task panics");
        assert_eq!([early, late, free].map(|it| it.max.load(Ordering::SeqCst)), [2, 3, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_selected_controllers_reconcile_and_the_others_keep_their_watches() {
        let clock = Clock::scaled("2026-01-05T09:00:00Z".parse().expect("a timestamp"), 1.0);
        let service = tower::service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
        let mut manager = Manager::new(Client::new(service, "default"), clock);
        manager.select("*,-idle".parse().expect("a selection"));
        // Filled by this test alone, so that the manager does not wait for its informer.
        let nodes: Cache<Node> = Cache::new();
        let (busy, idle) = (Slow::default(), Slow::default());
        let seen = Arc::new(AtomicUsize::new(0));
        for (name, reconciler) in [("busy", &busy), ("idle", &idle)] {
            let seen = seen.clone();
            let watched = manager.controller(name).watch(&nodes, move |delta| {
                seen.fetch_add(1, Ordering::SeqCst);
                [ObjectKey::of(delta.latest().as_ref())]
            });
            watched.run(reconciler.clone());
        }
        assert_eq!((manager.controllers(), manager.idle()), (vec!["busy", "idle"], vec!["idle"]));
        let change = async {
            let mut node = Node::default();
            node.metadata.name = Some("a".to_owned());
            node.metadata.resource_version = Some("1".to_owned());
            nodes.observe(node);
            tokio::time::sleep(Duration::from_secs(5)).await;
        };
        manager.run(change).await.expect("no task panics");
        assert_eq!(seen.load(Ordering::SeqCst), 2);
        assert_eq!([busy, idle].map(|it| it.max.load(Ordering::SeqCst)), [1, 0]);
    }
}
