//! The server value: its configuration and shared state, and its two entry points
//! (`ApiServer::handle` for one request, `ApiServer::in_process` for a client without a socket).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use berth_apimachinery::apply::{self, ReadSets, Set, Types};
use berth_apimachinery::builtin;
use berth_apimachinery::meta::{self, GroupVersionKind};
use berth_cel::admission::mutating::MutatingPolicy;
use berth_cel::admission::policy::Policy;
use bytes::Bytes;
use http::header::USER_AGENT;
use http::{HeaderValue, Request, Response};
use parking_lot::{Mutex, RwLock};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use berth_store::{CommitFuture, Store, Write};

use crate::admission::{self, AdmissionPlugin};
use crate::auth::tokens::{TokenKey, Tokens};
use crate::completion::{self, Completing, Disconnection};
use crate::connect::PodStreams;
use crate::crd::{Converter, CustomKind};
use crate::fairness::{Figures, current_user};
use crate::registry::{Origin, Registry, ResourceInfo, SchemaSource};
use crate::{Body, Objects, UserInfo, aggregation, bootstrap, crd, flow_schemas, rest, service_addresses};

/// Returns the current time of the embedded cluster.
pub type Clock = Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;

/// Source of the text that `pods/log` returns (the node agent).
pub trait PodLogs: Send + Sync {
    /// Lines that `container` of a pod has written so far. An error becomes the message of a 400
    /// response.
    fn read(&self, namespace: &str, pod: &str, container: &str, part: &LogPart) -> Result<String, String>;
}

/// Selects the lines of a log and their form; fields of Kubernetes' `PodLogOptions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPart {
    /// Lines of the container's previous run instead of the present one.
    pub previous: bool,
    /// Only lines of the last so many seconds.
    pub since_seconds: Option<i64>,
    /// Only lines since this time.
    pub since_time: Option<jiff::Timestamp>,
    /// Prefix each line with its time.
    pub timestamps: bool,
}

/// Source of the metrics that `/metrics` serves (the controllers in the same process).
pub trait Metrics: Send + Sync {
    /// All metrics in the Prometheus text format.
    fn text(&self) -> String;
}

/// Everything a server is built from.
pub struct Config {
    /// The store that holds all objects.
    pub store: Arc<dyn Store>,
    /// The time for `creationTimestamp`, `deletionTimestamp`, ages and `managedFields`.
    pub clock: Clock,
    /// Seed of uids and generated names: the same seed and requests give the same objects.
    pub seed: u64,
    /// Admission plugins that run after the built-in ones.
    pub admission: Vec<Arc<dyn AdmissionPlugin>>,
    /// Source of pod logs; `None` answers every request for logs with an error.
    pub pod_logs: Option<Arc<dyn PodLogs>>,
    /// Streams of the programs in pods; `None` answers every request for them with an error.
    pub pod_streams: Option<Arc<dyn PodStreams>>,
    /// Audit log; `None` records nothing.
    pub audit: Option<crate::audit::Log>,
    /// Client certificate that authenticates this server to aggregated API servers; `None`
    /// presents none.
    pub front_proxy: Option<crate::pki::FrontProxy>,
    /// API groups that other code in this process serves.
    pub extensions: Vec<Arc<dyn crate::Extension>>,
    /// Users treated as cluster controllers in API fairness, in addition to those that Kubernetes
    /// names.
    pub controllers: Vec<String>,
    /// Metrics to serve under `/metrics` beside the server's own; `None` leaves the path unserved.
    pub metrics: Option<Arc<dyn Metrics>>,
    /// Key that signs service account tokens. With `None` the server issues and accepts no tokens,
    /// and mounts none into pods.
    pub token_key: Option<TokenKey>,
    /// Converters between versions of custom resources, by (group, kind). They replace the
    /// conversion webhooks of those kinds.
    pub converters: BTreeMap<(String, String), Arc<dyn Converter>>,
}

impl Config {
    /// A server on `store` with a clock; seed 0, no plugins, no logs, no converters.
    pub fn new(store: Arc<dyn Store>, clock: Clock) -> Config {
        Config {
            store,
            clock,
            seed: 0,
            admission: Vec::new(),
            pod_logs: None,
            pod_streams: None,
            audit: None,
            front_proxy: None,
            extensions: Vec::new(),
            controllers: Vec::new(),
            metrics: None,
            token_key: None,
            converters: BTreeMap::new(),
        }
    }
}

/// The server. Cheap to clone; all clones are the same server.
#[derive(Clone)]
pub struct ApiServer {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) objects: Objects,
    pub(crate) plugins: Vec<Arc<dyn AdmissionPlugin>>,
    /// Admission webhook configurations, cached.
    pub(crate) hooks: admission::webhooks::Cache,
    /// Validating admission policies, cached.
    pub(crate) policies: admission::policies::Cache<Policy>,
    /// Mutating admission policies, cached.
    pub(crate) mutating_policies: admission::policies::Cache<MutatingPolicy>,
    /// API groups that aggregated API servers serve.
    pub(crate) services: aggregation::Services,
    /// Namespaces that have ResourceQuotas.
    pub(crate) quotas: admission::quota::Namespaces,
    /// Held while Service addresses are assigned or released.
    pub(crate) addresses: Arc<tokio::sync::Mutex<()>>,
    /// Fairness metrics of requests over the listener: queue lengths and waiting times.
    pub(crate) figures: Arc<Figures>,
    tokens: Option<Arc<Tokens>>,
    kinds: RwLock<Arc<Kinds>>,
    /// Field-ownership types by (group, kind, version), built on first use.
    types: Mutex<BTreeMap<(String, String, String), Arc<Types>>>,
    /// Fields of built-in kinds that updates never own, built on first use.
    never_owned: Mutex<BTreeMap<(String, String, String), Arc<Set>>>,
    /// Cache of parsed `managedFields` field sets.
    pub(crate) owned: Arc<ReadSets>,
    random: Mutex<SmallRng>,
    /// Generator of request ids. Separate from `random`, so that reads do not change the uid of
    /// the next created object.
    request_ids: Mutex<SmallRng>,
    /// Bootstrap writes that may not be durable yet.
    starting: Mutex<Vec<CommitFuture>>,
    /// Whether all bootstrap writes are durable.
    started: AtomicBool,
    /// Number of gradual history compactions so far.
    pub(crate) forgotten: Arc<AtomicU64>,
}

/// The registry and the definitions of its custom resources. Both are replaced together.
#[derive(Clone)]
pub(crate) struct Kinds {
    pub(crate) registry: Arc<Registry>,
    pub(crate) custom: BTreeMap<(String, String), Arc<CustomKind>>,
}

impl Kinds {
    /// Whether `row` is a custom resource whose definition is being deleted.
    pub(crate) fn is_terminating(&self, row: &ResourceInfo) -> bool {
        self.custom.get(&(row.group.clone(), row.plural.clone())).is_some_and(|custom| custom.terminating)
    }
}

/// A version 4 UUID.
fn uuid(random: &Mutex<SmallRng>) -> String {
    let bits: u128 = random.lock().random();
    let bits = (bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Five random characters for generated names: no vowels and no look-alikes, as upstream.
pub(crate) fn suffix(random: &Mutex<SmallRng>) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut random = random.lock();
    (0..5).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())])).collect()
}

impl ApiServer {
    /// A server for the objects in `config.store`. Custom resources whose definitions are stored
    /// are served at once.
    pub fn new(config: Config) -> ApiServer {
        let objects = Objects::new(config.store.clone());
        let mut plugins = admission::builtin(config.seed, config.token_key.is_some());
        plugins.extend(config.admission.iter().cloned());
        let tokens = config.token_key.clone();
        let tokens = tokens.map(|key| Arc::new(Tokens::new(key, config.clock.clone(), Some(objects.clone()))));
        let server = ApiServer {
            inner: Arc::new(Inner {
                objects,
                plugins,
                hooks: admission::webhooks::Cache::default(),
                policies: Default::default(),
                mutating_policies: Default::default(),
                services: Default::default(),
                quotas: admission::quota::Namespaces::default(),
                addresses: Arc::default(),
                figures: Arc::default(),
                tokens,
                types: Mutex::new(BTreeMap::new()),
                never_owned: Mutex::new(BTreeMap::new()),
                owned: Arc::default(),
                kinds: RwLock::new(Arc::new(Kinds {
                    registry: Arc::new(Registry::builtin()),
                    custom: BTreeMap::new(),
                })),
                random: Mutex::new(SmallRng::seed_from_u64(config.seed)),
                request_ids: Mutex::new(SmallRng::seed_from_u64(!config.seed)),
                starting: Mutex::new(Vec::new()),
                started: AtomicBool::new(false),
                forgotten: Arc::default(),
                config,
            }),
        };
        crd::load(&server);
        server.inner.quotas.refresh(&server.inner.objects);
        let starting = bootstrap::queue(&server);
        *server.inner.starting.lock() = starting;
        server
    }

    /// Waits until the objects that every cluster has (system namespaces, roles, priority classes)
    /// are stored. An in-memory store holds them as soon as [`ApiServer::new`] returns.
    ///
    /// Returns the store's error when it cannot write.
    pub async fn ready(&self) -> Result<(), berth_store::CommitError> {
        let starting = std::mem::take(&mut *self.inner.starting.lock());
        for write in starting {
            match write.await {
                // Another starting server created the object first.
                Ok(_) | Err(berth_store::CommitError::Exists { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        // Objects deleted while the server was down have not released their quota.
        for quota in self.inner.objects.list("", admission::quota::PLURAL, None) {
            admission::quota::recount(self, meta::namespace(&quota), meta::name(&quota)).await;
        }
        service_addresses::repair(self).await;
        flow_schemas::repair(self).await;
        self.inner.started.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether bootstrap is complete: all objects that every cluster has are stored.
    pub(crate) fn is_started(&self) -> bool {
        self.inner.started.load(Ordering::Relaxed)
    }

    /// Read access to stored objects.
    pub fn objects(&self) -> Objects {
        self.inner.objects.clone()
    }

    /// Issuer and verifier of service account tokens; `None` without a token key. The listener's
    /// authenticator should accept these tokens.
    pub fn tokens(&self) -> Option<Arc<Tokens>> {
        self.inner.tokens.clone()
    }

    /// The table of kinds as it is now.
    pub fn registry(&self) -> Arc<Registry> {
        self.inner.kinds.read().registry.clone()
    }

    /// The time on the server's clock.
    pub fn now(&self) -> jiff::Timestamp {
        (self.inner.config.clock)()
    }

    /// The store, for maintenance such as compaction and backup.
    pub fn store_handle(&self) -> Arc<dyn Store> {
        self.inner.config.store.clone()
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.inner.config.store
    }

    /// Queues a write in the store's queue of the user whose request is being executed.
    pub(crate) fn commit(&self, write: Write) -> CommitFuture {
        self.commit_in(&current_user(), write)
    }

    /// Queues a write in the store's queue named `row`, which need not be that of a user.
    pub(crate) fn commit_in(&self, row: &str, write: Write) -> CommitFuture {
        completion::note_write();
        self.store().commit_for(row, write)
    }

    pub(crate) fn kinds(&self) -> Arc<Kinds> {
        self.inner.kinds.read().clone()
    }

    /// Changes the table of kinds. Readers see either the old or the new table as a whole.
    pub(crate) fn change_kinds(&self, change: impl FnOnce(&mut Kinds)) {
        let mut kinds = self.inner.kinds.write();
        change(Arc::make_mut(&mut kinds));
    }

    /// Field-ownership types of a kind in `version`.
    pub(crate) fn types(&self, row: &ResourceInfo, version: &str) -> Arc<Types> {
        let key = (row.group.clone(), row.kind.clone(), version.to_owned());
        let mut types = self.inner.types.lock();
        let make = || {
            let schema = match row.version(version).map(|version| &version.schema) {
                Some(SchemaSource::Custom(custom)) => crd::schema_with_metadata(custom.written()),
                _ => row.schema(version),
            };
            Arc::new(schema.map_or_else(Types::deduced, |schema| Types::from_schema(&schema)))
        };
        types.entry(key).or_insert_with(make).clone()
    }

    /// Fields of a kind in `version` that updates never own.
    pub(crate) fn never_owned(&self, row: &ResourceInfo, version: &str) -> Arc<Set> {
        if matches!(row.origin, Origin::Custom(_)) {
            return apply::never_owned(&[]);
        }
        let key = (row.group.clone(), row.kind.clone(), version.to_owned());
        let mut known = self.inner.never_owned.lock();
        let make = || {
            let kind = GroupVersionKind::new(&row.group, version, &row.kind);
            apply::never_owned(&builtin::always_there(&kind))
        };
        known.entry(key).or_insert_with(make).clone()
    }

    /// Drops the cached field-ownership types of a kind whose schema changed.
    pub(crate) fn forget_types(&self, group: &str, kind: &str) {
        let mut types = self.inner.types.lock();
        types.retain(|(own_group, own_kind, _), _| own_group != group || own_kind != kind);
    }

    /// A new uid (version 4 UUID), from the seeded generator.
    pub(crate) fn new_uid(&self) -> String {
        uuid(&self.inner.random)
    }

    /// A new id, in the form of a uid, for a request or a webhook call. Drawn from a separate
    /// generator: the uids of objects must not depend on the number of reads.
    pub(crate) fn new_request_id(&self) -> String {
        uuid(&self.inner.request_ids)
    }

    /// Five characters for a generated name.
    pub(crate) fn name_suffix(&self) -> String {
        suffix(&self.inner.random)
    }

    /// The current time as objects store it: RFC 3339 in whole seconds.
    pub(crate) fn timestamp(&self) -> Value {
        Value::String(self.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }

    /// Answers one request on behalf of `user`. Never fails: errors are Status responses. A
    /// request that has begun to write is completed even if the returned future is dropped.
    pub async fn handle<B>(&self, request: Request<B>, user: UserInfo) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: std::fmt::Display,
    {
        let (parts, body) = request.into_parts();
        let body = match rest::read_body(body, rest::BODY_TIMEOUT).await {
            Ok(body) => body,
            Err(status) => return rest::status_response_for(&status, &rest::accept_header(&parts.headers)),
        };
        let (server, client) = (self.clone(), Disconnection::default());
        let disconnection = client.clone();
        Completing::new(client, async move { rest::handle(&server, parts, body, user, disconnection).await }).await
    }

    /// A connection without a socket, for `kube::Client::new`. Every request runs as `user`.
    pub fn in_process(&self, user: UserInfo) -> InProcess {
        InProcess { server: self.clone(), user, lean: false, agent: None }
    }
}

/// A tower service that passes requests of one user to the server.
#[derive(Clone)]
pub struct InProcess {
    server: ApiServer,
    user: UserInfo,
    lean: bool,
    agent: Option<HeaderValue>,
}

impl InProcess {
    /// Omits `metadata.managedFields` from responses where that costs nothing. For clients that
    /// ignore the field, which is half of a typical object.
    #[must_use]
    pub fn lean(self) -> InProcess {
        InProcess { lean: true, ..self }
    }

    /// Sets `User-Agent` on requests without one. The field manager of their writes is named after
    /// it.
    #[must_use]
    pub fn agent(self, agent: &'static str) -> InProcess {
        InProcess { agent: Some(HeaderValue::from_static(agent)), ..self }
    }
}

impl<B> tower::Service<Request<B>> for InProcess
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if self.lean {
            request.extensions_mut().insert(rest::Lean);
        }
        if let Some(agent) = &self.agent {
            request.headers_mut().entry(USER_AGENT).or_insert_with(|| agent.clone());
        }
        let (server, user) = (self.server.clone(), self.user.clone());
        Box::pin(async move { Ok(server.handle(request, user).await) })
    }
}
