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
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::wire::Seen;
use crate::{Action, Cache, Clock, Delta, Error, ObjectKey, Queue, Reconciler, Recorder, projection, takeover};

/// First delay before a failed watch is tried again; doubles up to [`WATCH_BACKOFF_MAX`].
const WATCH_BACKOFF_BASE: Duration = Duration::from_millis(100);
const WATCH_BACKOFF_MAX: Duration = Duration::from_secs(30);
/// From this delay on failures are shown to the operator.
const WATCH_BACKOFF_WARN: Duration = Duration::from_millis(1600);
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
pub struct Manager {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    events: BoxFuture<()>,
    caches: BTreeMap<TypeId, Box<dyn Any + Send>>,
    /// Fresh reads of kinds, for who has just been elected.
    catching_up: Vec<BoxFuture<()>>,
    /// Controllers, by name, that may reconcile fewer keys at once than they would.
    concurrency_max: BTreeMap<String, usize>,
    informers: Vec<Informer>,
    controllers: Vec<Controller>,
    tasks: Vec<(String, BoxFuture<()>)>,
}

struct Informer {
    group: String,
    plural: String,
    synced: watch::Receiver<bool>,
    run: BoxFuture<()>,
}

struct Controller {
    name: String,
    queue: Queue,
    concurrency: usize,
    reconcile: ReconcileFn,
}

impl Manager {
    /// An empty manager that reaches Kubernetes through `client` and time through `clock`.
    pub fn new(client: Client, clock: Clock) -> Self {
        let (recorder, events) = Recorder::new(client.clone(), clock.clone());
        Self {
            client,
            clock,
            recorder,
            events: Box::pin(events),
            caches: BTreeMap::new(),
            catching_up: Vec::new(),
            concurrency_max: BTreeMap::new(),
            informers: Vec::new(),
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

    /// The same for a kind the cluster need not have: while it has not, the cache is empty and nobody waits for it. It fills
    /// when the kind appears.
    pub fn cache_if_served<K>(&mut self) -> Cache<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
    {
        self.cache_of(false)
    }

    fn cache_of<K>(&mut self, required: bool) -> Cache<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
    {
        if let Some(known) = self.caches.get(&TypeId::of::<K>()).and_then(|any| any.downcast_ref::<Cache<K>>()) {
            return known.clone();
        }
        let cache: Cache<K> = Cache::new();
        let (sender, synced) = watch::channel(false);
        let (group, plural) = (K::group(&()).into_owned(), K::plural(&()).into_owned());
        let run = inform(Api::<Seen<K>>::all(self.client.clone()), cache.clone(), self.clock.clone(), sender, required);
        self.informers.push(Informer { group, plural, synced, run: Box::pin(run) });
        self.caches.insert(TypeId::of::<K>(), Box::new(cache.clone()));
        cache
    }

    /// The cache of a kind that decisions rest on: a replica that takes over reads its most recent state before its controllers
    /// start, because what the leader before has written may not have come through the watch yet.
    pub fn cache_to_decide_by<K>(&mut self) -> Cache<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
    {
        let cache = self.cache::<K>();
        let api = Api::<Seen<K>>::all(self.client.clone());
        self.catching_up.push(Box::pin(takeover::catch_up(api, cache.clone(), self.clock.clone())));
        cache
    }

    /// Lets the controller of this name reconcile at most so many keys at once, however many it could. Said before the
    /// controller is added; a name nobody uses is fine.
    pub fn limit_concurrency(&mut self, name: &str, concurrency_max: usize) {
        self.concurrency_max.insert(name.to_owned(), concurrency_max.max(1));
    }

    /// Starts describing a controller; it is added when [`ControllerBuilder::run`] is called.
    pub fn controller(&mut self, name: &str) -> ControllerBuilder<'_> {
        let queue = Queue::new(self.clock.clone());
        ControllerBuilder { manager: self, name: name.to_owned(), queue, concurrency: CONCURRENCY_DEFAULT }
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
        self,
        elected: impl Future<Output = ()>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ManagerError> {
        let mut shutdown = pin!(shutdown);
        let mut elected = pin!(elected);
        let mut set: JoinSet<()> = JoinSet::new();
        let mut names = BTreeMap::new();
        names.insert(set.spawn(self.events).id(), "events".to_owned());
        let mut synced = Vec::new();
        for informer in self.informers {
            let name = informer.name();
            synced.push(informer.synced);
            names.insert(set.spawn(informer.run).id(), name);
        }
        let ready = async {
            for mut receiver in synced {
                // An error means the informer died, which the join below reports.
                if receiver.wait_for(|done| *done).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            biased;
            () = &mut shutdown => return Ok(()),
            () = ready => {}
        }
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => return Ok(()),
                () = &mut elected => break,
                ended = set.join_next_with_id() => died(ended, &mut names)?,
            }
        }
        let mut caught_up = pin!(futures::future::join_all(self.catching_up));
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => return Ok(()),
                _ = &mut caught_up => break,
                ended = set.join_next_with_id() => died(ended, &mut names)?,
            }
        }
        for controller in self.controllers {
            let name = controller.name.clone();
            names.insert(set.spawn(controller.run()).id(), name);
        }
        for (name, task) in self.tasks {
            names.insert(set.spawn(task).id(), name);
        }
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => return Ok(()),
                ended = set.join_next_with_id() => match ended {
                    None => return Ok(()),
                    ended => died(ended, &mut names)?,
                },
            }
        }
    }
}

/// The error when a task ended by a panic.
fn died(
    ended: Option<Result<(tokio::task::Id, ()), tokio::task::JoinError>>,
    names: &mut BTreeMap<tokio::task::Id, String>,
) -> Result<(), ManagerError> {
    match ended {
        Some(Err(source)) => {
            let name = names.remove(&source.id()).unwrap_or_default();
            Err(ManagerError::TaskDied { name, source })
        }
        _ => Ok(()),
    }
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
}

impl ControllerBuilder<'_> {
    /// Reconciles the keys `map` returns whenever an object of this cache changes.
    pub fn watch<K, I>(self, cache: &Cache<K>, map: impl Fn(&Delta<K>) -> I + Send + Sync + 'static) -> Self
    where
        K: Resource + 'static,
        I: IntoIterator<Item = ObjectKey>,
    {
        let queue = self.queue.clone();
        cache.subscribe(Arc::new(move |delta: &Delta<K>| {
            for key in map(delta) {
                queue.add(key);
            }
        }));
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
        let concurrency_max = self.manager.concurrency_max.get(&self.name).copied().unwrap_or(usize::MAX);
        self.manager.controllers.push(Controller {
            name: self.name,
            queue: self.queue,
            concurrency: self.concurrency.min(concurrency_max),
            reconcile,
        });
    }
}

impl Controller {
    async fn run(self) {
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
                let conflict = error.downcast_ref::<kube::Error>().is_some_and(crate::is_conflict);
                let retry = self.queue.failed(key.clone());
                if conflict {
                    tracing::debug!(controller = self.name, %key, ?retry, "conflict, retrying");
                } else {
                    let error = crate::brief(error.as_ref());
                    tracing::warn!(controller = self.name, %key, ?retry, %error, "reconcile failed, retrying");
                }
            }
        }
    }
}

/// Keeps a cache equal to the server's state: list, watch, and list again when the watch was lost too long.
async fn inform<K>(api: Api<Seen<K>>, cache: Cache<K>, clock: Clock, synced: watch::Sender<bool>, required: bool)
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
{
    let mut stream = pin!(watcher(api, watcher::Config::default()));
    let mut listed: BTreeSet<ObjectKey> = BTreeSet::new();
    let mut backoff = WATCH_BACKOFF_BASE;
    while let Some(event) = stream.next().await {
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                listed.insert(ObjectKey::of(&object));
                take(&cache, &object);
            }
            Ok(watcher::Event::InitDone) => {
                cache.retain(&listed);
                listed.clear();
                // Nobody listening any more only means that the manager is stopping.
                let _ = synced.send(true);
                backoff = WATCH_BACKOFF_BASE;
            }
            Ok(watcher::Event::Apply(object)) => {
                backoff = WATCH_BACKOFF_BASE;
                take(&cache, &object);
            }
            Ok(watcher::Event::Delete(object)) => {
                backoff = WATCH_BACKOFF_BASE;
                cache.remove(&object);
            }
            Err(error) => {
                let optional = !required && is_not_served(&error);
                if optional {
                    let _ = synced.send(true);
                }
                let error = crate::brief(&error);
                // One lost watch is an everyday matter; one that does not come back is not.
                if backoff >= WATCH_BACKOFF_WARN && !optional {
                    tracing::warn!(kind = %K::kind(&()), %error, ?backoff, "watch failed, retrying");
                } else {
                    tracing::debug!(kind = %K::kind(&()), %error, ?backoff, "watch failed, retrying");
                }
                clock.sleep(backoff).await;
                backoff = (backoff * 2).min(WATCH_BACKOFF_MAX);
            }
        }
    }
}

/// Takes in what a watch has shown, decoding it only if it is news.
pub(crate) fn take<K>(cache: &Cache<K>, object: &Seen<K>)
where
    K: Resource<DynamicType = ()> + DeserializeOwned + 'static,
{
    if cache.knows(object) {
        return;
    }
    match object.decode() {
        Ok(object) => cache.apply(object),
        // One object that is not what its schema promises must not blind the controllers to all others.
        Err(error) => {
            tracing::warn!(kind = %K::kind(&()), key = %ObjectKey::of(object), %error, "cannot read an object");
        }
    }
}

/// Does this answer mean that the cluster has no such kind (yet)?
fn is_not_served(error: &watcher::Error) -> bool {
    let source = match error {
        watcher::Error::InitialListFailed(source)
        | watcher::Error::WatchStartFailed(source)
        | watcher::Error::WatchFailed(source) => source,
        _ => return false,
    };
    matches!(source, kube::Error::Api(status) if status.code == 404)
}
