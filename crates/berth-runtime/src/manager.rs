//! Puts caches and controllers together and runs them.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition as Definition;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{RwLock, watch};
use tokio::task::JoinSet;

use crate::cache::Subscriber;
use crate::inform::Source;
use crate::kinds::{Kinds, Serving};
use crate::wire::Seen;
use crate::{Action, Cache, Clock, Delta, Error, ObjectKey, Queue, Reconciler, Recorder, projection, takeover};

/// From this delay on an object that is not found is shown to the operator.
const NOT_FOUND_WARN: Duration = Duration::from_millis(500);
/// How many reconciles of one controller may be in flight unless it says otherwise.
const CONCURRENCY_DEFAULT: usize = 8;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type ReconcileFn = Arc<dyn Fn(ObjectKey) -> BoxFuture<Result<Action, Error>> + Send + Sync>;

/// Why a manager stopped before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// A controller's task ended by a panic; running on without it would be a half-dead process.
    #[error("the task of controller or watch {name} died")]
    TaskDied {
        /// Which one.
        name: String,
        /// How it died.
        #[source]
        source: tokio::task::JoinError,
    },
}

/// Owns the caches and controllers of one process.
///
/// Caches are filled and followed for as long as the manager is there. Controllers act for a term: until the process ends, or
/// until another replica leads. A term leaves nothing behind but the caches: [`Manager::renew`] puts new controllers over them.
pub struct Manager {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    events: Option<BoxFuture<()>>,
    caches: BTreeMap<TypeId, Box<dyn Any + Send>>,
    /// For each cache: shows its subscribers all there is.
    replays: Vec<Box<dyn Fn() + Send>>,
    kinds: Kinds,
    informers: Vec<Informer>,
    /// Held by informers while they change a cache.
    gate: Arc<RwLock<()>>,
    /// What keeps the caches, by the name it is known under.
    following: JoinSet<()>,
    names: BTreeMap<tokio::task::Id, String>,
    /// Fresh reads of kinds, for who has just been elected.
    catching_up: BTreeMap<TypeId, Box<dyn Fn() -> BoxFuture<()> + Send>>,
    /// Controllers, by name, that may reconcile fewer keys at once than they would.
    concurrency_max: BTreeMap<String, usize>,
    controllers: Vec<Controller>,
    tasks: Vec<(String, BoxFuture<()>)>,
}

struct Informer {
    group: String,
    plural: String,
    synced: watch::Receiver<bool>,
    /// Taken when it is started.
    run: Option<BoxFuture<()>>,
}

struct Controller {
    name: String,
    queue: Queue,
    concurrency: usize,
    reconcile: ReconcileFn,
    /// What hears of changes for it, for as long as it is there.
    subscriptions: Vec<Box<dyn Any + Send + Sync>>,
}

impl Manager {
    /// An empty manager that reaches Kubernetes through `client` and time through `clock`.
    pub fn new(client: Client, clock: Clock) -> Self {
        let (recorder, events) = Recorder::new(client.clone(), clock.clone());
        Self {
            client,
            clock,
            recorder,
            events: Some(Box::pin(events)),
            caches: BTreeMap::new(),
            replays: Vec::new(),
            kinds: Kinds::default(),
            informers: Vec::new(),
            gate: Arc::default(),
            following: JoinSet::new(),
            names: BTreeMap::new(),
            catching_up: BTreeMap::new(),
            concurrency_max: BTreeMap::new(),
            controllers: Vec::new(),
            tasks: Vec::new(),
        }
    }

    /// The client to write with.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The clock to go by.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// The recorder to tell people with.
    pub fn recorder(&self, component: &str) -> Recorder {
        self.recorder.for_component(component)
    }

    /// The cache of a kind over all namespaces: one watch per kind, shared by everyone who asks.
    pub fn cache<K>(&mut self) -> Cache<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
    {
        self.cache_of(true)
    }

    /// The cache of nodes, each without what no controller asks it for; see [`projection`].
    pub fn nodes(&mut self) -> Cache<Node> {
        let cache = self.cache();
        cache.project(projection::of_node);
        cache
    }

    /// The same for a kind the cluster need not have. While its definition is not there, the cache is empty and nobody waits for
    /// it; it fills when the kind appears, whenever that is, and is emptied when its definition goes. While the definition is
    /// there but does not serve the version that is read, what is known stays.
    pub fn cache_if_served<K>(&mut self) -> Cache<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
    {
        self.cache_of(false)
    }

    /// Whether the cluster serves a kind that [`Manager::cache_if_served`] was asked for, now and from now on.
    pub fn serving<K: Resource<DynamicType = ()>>(&self) -> watch::Receiver<Serving> {
        self.kinds.ask::<K>()
    }

    /// The kinds a cluster need not have that were asked for, and which of them it serves.
    pub fn kinds(&self) -> Kinds {
        self.kinds.clone()
    }

    fn cache_of<K>(&mut self, required: bool) -> Cache<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
    {
        if let Some(known) = self.caches.get(&TypeId::of::<K>()).and_then(|any| any.downcast_ref::<Cache<K>>()) {
            return known.clone();
        }
        let cache: Cache<K> = Cache::new();
        let source = Source {
            api: Api::<Seen<K>>::all(self.client.clone()),
            cache: cache.clone(),
            clock: self.clock.clone(),
            required,
            gate: self.gate.clone(),
        };
        let run: Box<dyn FnOnce(watch::Sender<bool>) -> BoxFuture<()>> = if required {
            Box::new(move |synced| Box::pin(async move { source.inform(&synced).await }))
        } else {
            if self.kinds.is_empty() {
                let kinds = self.kinds.clone().follow(self.client.clone(), self.clock.clone());
                let definitions = (Definition::group(&()).into_owned(), Definition::plural(&()).into_owned());
                self.add_informer(definitions, |synced| Box::pin(kinds.run(synced)));
            }
            let serving = self.kinds.ask::<K>();
            Box::new(move |synced| Box::pin(source.inform_while_served(synced, serving)))
        };
        self.add_informer((K::group(&()).into_owned(), K::plural(&()).into_owned()), run);
        self.caches.insert(TypeId::of::<K>(), Box::new(cache.clone()));
        let shown = cache.clone();
        self.replays.push(Box::new(move || shown.replay()));
        cache
    }

    fn add_informer(
        &mut self,
        (group, plural): (String, String),
        run: impl FnOnce(watch::Sender<bool>) -> BoxFuture<()>,
    ) {
        let (sender, synced) = watch::channel(false);
        self.informers.push(Informer { group, plural, synced, run: Some(run(sender)) });
    }

    /// The cache of a kind that decisions rest on: a replica that takes over reads its most recent state before its controllers
    /// start, because what the leader before has written may not have come through the watch yet.
    pub fn cache_to_decide_by<K>(&mut self) -> Cache<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
    {
        let cache = self.cache::<K>();
        let (api, kept, clock) = (Api::<Seen<K>>::all(self.client.clone()), cache.clone(), self.clock.clone());
        let read = move || -> BoxFuture<()> { Box::pin(takeover::catch_up(api.clone(), kept.clone(), clock.clone())) };
        self.catching_up.insert(TypeId::of::<K>(), Box::new(read));
        cache
    }

    /// Limits how many keys the controller of this name reconciles at once, for all its terms. It may be added before or
    /// after; a name that no controller has is ignored.
    pub fn limit_concurrency(&mut self, name: &str, concurrency_max: usize) {
        self.concurrency_max.insert(name.to_owned(), concurrency_max.max(1));
    }

    /// Starts describing a controller; it is added when [`ControllerBuilder::run`] is called.
    pub fn controller(&mut self, name: &str) -> ControllerBuilder<'_> {
        let queue = Queue::new(self.clock.clone());
        ControllerBuilder {
            manager: self,
            name: name.to_owned(),
            queue,
            concurrency: CONCURRENCY_DEFAULT,
            subscriptions: Vec::new(),
        }
    }

    /// Adds a background task that runs beside the controllers until shutdown, once all caches are filled.
    pub fn task(&mut self, name: &str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push((name.to_owned(), Box::pin(task)));
    }

    /// Group and plural name of every kind that is watched, in order.
    pub fn watched(&self) -> Vec<(String, String)> {
        let mut kinds: Vec<_> =
            self.informers.iter().map(|informer| (informer.group.clone(), informer.plural.clone())).collect();
        kinds.sort();
        kinds
    }

    /// Which caches are filled; for readiness checks, to be asked for once all controllers are installed.
    pub fn cache_state(&self) -> CacheState {
        CacheState(self.informers.iter().map(|informer| (informer.name(), informer.synced.clone())).collect())
    }

    /// Fills all caches, then runs every controller until `shutdown` resolves. Reconciles in flight are dropped at
    /// their next await point, which level-triggered, idempotent controllers survive by design.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<(), ManagerError> {
        // Nobody acted before that this one could have missed: the caches were filled a moment ago.
        self.catching_up.clear();
        self.run_when(std::future::ready(()), shutdown).await
    }

    /// As [`Manager::run`], but controllers start only once `elected` resolves. Caches are filled and followed
    /// meanwhile: a replica that stands by takes over with what it knows, and what it reads of
    /// [`Manager::cache_to_decide_by`].
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

    /// Starts filling the caches; returns once all are.
    pub async fn fill(&mut self) -> Result<(), ManagerError> {
        self.start_following();
        let synced: Vec<_> = self.informers.iter().map(|informer| informer.synced.clone()).collect();
        let filled = async {
            for mut receiver in synced {
                // An error means the informer died, which is reported below.
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

    /// Keeps the caches; ends only when that is not possible any more.
    pub async fn follow(&mut self) -> ManagerError {
        loop {
            if let Some(Err(source)) = self.following.join_next_with_id().await {
                return died(source, &mut self.names);
            }
            if self.following.is_empty() {
                // What follows caches never ends by itself; without caches there is nothing to follow.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Reads once more what decisions rest on and runs every controller until `until` resolves. All have stopped when this
    /// returns. For the next term they are made anew: [`Manager::renew`].
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
        // Another replica may act next: nothing of this one may be at it still.
        acting.shutdown().await;
        ended
    }

    /// Forgets the controllers there were, and has `install` put new ones over the caches, which stay as they are. They are
    /// shown all there is as if it had just come. Informers wait meanwhile.
    pub async fn renew(&mut self, install: impl FnOnce(&mut Self)) {
        self.controllers.clear();
        self.tasks.clear();
        let gate = self.gate.clone();
        let _closed = gate.write().await;
        install(self);
        for replay in &self.replays {
            replay();
        }
    }

    fn start_following(&mut self) {
        if let Some(events) = self.events.take() {
            self.names.insert(self.following.spawn(events).id(), "events".to_owned());
        }
        for informer in &mut self.informers {
            if let Some(run) = informer.run.take() {
                let name = informer.name();
                self.names.insert(self.following.spawn(run).id(), name);
            }
        }
    }
}

/// The error when a task ended by a panic.
fn died(source: tokio::task::JoinError, names: &mut BTreeMap<tokio::task::Id, String>) -> ManagerError {
    ManagerError::TaskDied { name: names.remove(&source.id()).unwrap_or_default(), source }
}

impl Informer {
    /// `plural.group`, as CustomResourceDefinitions are named.
    fn name(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }
}

/// Which caches of a manager are filled; clones share it.
#[derive(Clone)]
pub struct CacheState(Vec<(String, watch::Receiver<bool>)>);

impl CacheState {
    /// The kinds whose cache has not been filled yet, as `plural.group`; none when the manager is ready to work.
    pub fn pending(&self) -> Vec<&str> {
        self.0.iter().filter(|(_, synced)| !*synced.borrow()).map(|(name, _)| name.as_str()).collect()
    }
}

/// Describes one controller; see [`Manager::controller`].
pub struct ControllerBuilder<'a> {
    manager: &'a mut Manager,
    name: String,
    queue: Queue,
    concurrency: usize,
    subscriptions: Vec<Box<dyn Any + Send + Sync>>,
}

impl ControllerBuilder<'_> {
    /// Reconciles the keys `map` returns whenever an object of this cache changes.
    pub fn watch<K, I>(mut self, cache: &Cache<K>, map: impl Fn(&Delta<K>) -> I + Send + Sync + 'static) -> Self
    where
        K: Resource + 'static,
        I: IntoIterator<Item = ObjectKey>,
    {
        let queue = self.queue.clone();
        let subscriber: Arc<Subscriber<K>> = Arc::new(move |delta: &Delta<K>| {
            for key in map(delta) {
                queue.add(key);
            }
        });
        cache.subscribe(&subscriber);
        self.subscriptions.push(Box::new(subscriber));
        self
    }

    /// Reconciles the changed object itself.
    pub fn watch_self<K: Resource + 'static>(self, cache: &Cache<K>) -> Self {
        self.watch(cache, |delta| [ObjectKey::of(delta.latest().as_ref())])
    }

    /// Reconciles the controlling owner of kind `O` of the changed object, before and after the change.
    pub fn watch_owned<O, K>(self, cache: &Cache<K>) -> Self
    where
        O: Resource<DynamicType = ()> + 'static,
        K: Resource + 'static,
    {
        self.watch(cache, |delta| {
            [delta.old.as_ref(), delta.new.as_ref()]
                .into_iter()
                .flatten()
                .filter_map(|object| ObjectKey::of_controller_owner::<O>(object.as_ref()))
                .collect::<BTreeSet<_>>()
        })
    }

    /// How many reconciles (of different keys) may be in flight at once.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// The due-queue, for timers and triggers from elsewhere.
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
        let _heard_of_until_dropped = &self.subscriptions;
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
                let of_api = error.downcast_ref::<kube::Error>();
                let conflict = of_api.is_some_and(crate::is_conflict);
                let not_found = of_api.is_some_and(crate::is_not_found);
                let retry = self.queue.failed(key.clone());
                let error = crate::brief(error.as_ref());
                // An object that went meanwhile is gone from the cache a moment later.
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

    /// Notes the most reconciles in flight at once.
    #[derive(Clone, Default)]
    struct Slow {
        now: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    }

    impl Reconciler for Slow {
        async fn reconcile(&self, _key: ObjectKey) -> Result<Action, Error> {
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.now.fetch_sub(1, Ordering::SeqCst);
            Ok(Action::Wait)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_on_concurrency_holds_whether_set_before_or_after_the_controller_is_added() {
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
        manager.run(tokio::time::sleep(Duration::from_secs(20))).await.expect("no task dies");
        assert_eq!([early, late, free].map(|it| it.most.load(Ordering::SeqCst)), [2, 3, 4]);
    }
}
