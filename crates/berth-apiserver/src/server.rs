//! The server value: its configuration and shared state, and its two entry points
//! (`ApiServer::handle` for one request, `ApiServer::in_process` for a client without a socket).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use berth_apimachinery::apply::{ReadSets, Set, Types};
use berth_apimachinery::exposition::Exposition;
use berth_store::{CommitFuture, Store, Write};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::USER_AGENT;
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use parking_lot::Mutex;
use serde_json::Value;

use crate::admission::pod_security::PodSecurity;
use crate::admission::quota::Quotas;
use crate::admission::quota_hook::QuotaHook;
use crate::admission::{self, Admission, AdmissionPlugin};
use crate::aggregation::Services;
use crate::auth::tokens::{TokenKey, Tokens};
use crate::clock::Clock;
use crate::completion::{Completing, Disconnection};
use crate::connect::{Dial, PodStreams};
use crate::crd::{Converter, Definitions};
use crate::fairness::Figures;
use crate::flow_schemas::FlowSchemas;
use crate::kind_hooks::{Commit, KindHook, KindHooks};
use crate::logs::PodLogs;
use crate::own_requests::OwnRequests;
use crate::registry::{Registry, ResourceInfo};
use crate::services::ServiceHook;
use crate::state::{Kinds, State};
use crate::{Body, Objects, UserInfo, bootstrap, rest};

/// Source of the metrics that `/metrics` serves (such as the controllers in the same process).
pub trait Metrics: Send + Sync {
    /// Writes all metrics.
    fn write(&self, exposition: &mut Exposition);
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
    /// Pod Security policy of namespaces without labels, and exemptions. By default nothing is
    /// enforced.
    pub pod_security: PodSecurity,
    /// False if only server-side applies record field owners in `metadata.managedFields`, and other
    /// writes do not change them.
    pub field_owners: bool,
    /// Source of the pod logs that `pod_streams` does not provide. With `None`, a request for such
    /// a log gets an error.
    pub pod_logs: Option<Arc<dyn PodLogs>>,
    /// Streams of the programs in pods; `None` responds to every request for them with an error.
    pub pod_streams: Option<Arc<dyn PodStreams>>,
    /// Connects to webhooks and aggregated API servers. With `None`, their addresses must be
    /// reachable from this process.
    pub dial: Option<Dial>,
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
    /// Metrics to serve under `/metrics` in addition to the server's own; `None` leaves the path
    /// unserved.
    pub metrics: Option<Arc<dyn Metrics>>,
    /// Key that signs service account tokens. With `None` the server issues and accepts no tokens,
    /// and mounts none into pods.
    pub token_key: Option<TokenKey>,
    /// Converters between versions of custom resources, by (group, kind). They replace the
    /// conversion webhooks of those kinds.
    pub converters: BTreeMap<(String, String), Arc<dyn Converter>>,
}

impl Config {
    /// The configuration of a server on `store` with a clock: seed 0, no plugins, no logs and no
    /// converters.
    pub fn new(store: Arc<dyn Store>, clock: Clock) -> Config {
        Config {
            store,
            clock,
            seed: 0,
            admission: Vec::new(),
            pod_security: PodSecurity::default(),
            field_owners: true,
            pod_logs: None,
            pod_streams: None,
            dial: None,
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
    state: Arc<State>,
    pub(crate) objects: Objects,
    pub(crate) admission: Arc<Admission>,
    /// API groups that aggregated API servers serve.
    pub(crate) services: Arc<Services>,
    pub(crate) quotas: Arc<Quotas>,
    /// Behaviour of single kinds around a commit.
    pub(crate) hooks: KindHooks,
    /// Fairness metrics of requests over the listener: queue lengths, waiting times and execution
    /// times.
    pub(crate) figures: Arc<Figures>,
    tokens: Option<Arc<Tokens>>,
    /// Cache of parsed `managedFields` field sets.
    pub(crate) owned: Arc<ReadSets>,
    /// Bootstrap writes that may not be durable yet.
    starting: Mutex<Vec<CommitFuture>>,
    /// Whether all bootstrap writes are durable.
    started: AtomicBool,
    /// Number of gradual history compactions so far.
    pub(crate) forgotten: Arc<AtomicU64>,
}

impl ApiServer {
    /// A server for the objects in `config.store`. Custom resources whose definitions are stored
    /// are served at once.
    pub fn new(config: Config) -> ApiServer {
        let mut state = State::new(config.store.clone(), config.clock.clone(), config.seed);
        state.objects = state.objects.with_dial(config.dial.clone());
        let state = Arc::new(state);
        let objects = state.objects.clone();
        let mut plugins = admission::builtin(config.seed, config.token_key.is_some(), config.pod_security.clone());
        plugins.extend(config.admission.iter().cloned());
        let admission = Arc::new(Admission::new(state.clone(), plugins));
        let tokens = config.token_key.clone();
        let tokens = tokens.map(|key| Arc::new(Tokens::new(key, config.clock.clone(), Some(objects.clone()))));
        let services = Arc::new(Services::new(state.clone(), config.front_proxy.clone()));
        let definitions = Definitions::load(state.clone(), config.converters.clone());
        let quotas = Arc::new(Quotas::new(state.clone()));
        let hooks: Vec<Arc<dyn KindHook>> = vec![
            admission.clone(),
            services.clone(),
            Arc::new(definitions),
            Arc::new(QuotaHook(quotas.clone())),
            Arc::new(ServiceHook::new(state.clone())),
            Arc::new(FlowSchemas::new(state.clone())),
        ];
        let starting = bootstrap::queue(&state, config.front_proxy.as_ref());
        ApiServer {
            inner: Arc::new(Inner {
                state,
                objects,
                admission,
                services,
                hooks: KindHooks::new(hooks, quotas.clone()),
                quotas,
                figures: Arc::default(),
                tokens,
                owned: Arc::default(),
                starting: Mutex::new(starting),
                started: AtomicBool::new(false),
                forgotten: Arc::default(),
                config,
            }),
        }
    }

    /// Waits until the objects that every cluster has (system namespaces, roles, priority classes)
    /// are stored. An in-memory store holds them as soon as [`ApiServer::new`] returns. Then
    /// repairs objects whose follow-up writes were lost in a crash.
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
        self.inner.hooks.repair(self).await;
        self.inner.started.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// True if bootstrap is complete: all objects that every cluster has are stored.
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

    /// The current table of kinds.
    pub fn registry(&self) -> Arc<Registry> {
        self.inner.state.registry()
    }

    /// The time on the server's clock.
    pub fn now(&self) -> jiff::Timestamp {
        self.inner.state.now()
    }

    /// The store, for maintenance such as compaction and backup.
    pub fn store_handle(&self) -> Arc<dyn Store> {
        self.inner.config.store.clone()
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        self.inner.state.store()
    }

    /// Queues a write in the store's queue `queue`, or in that of the user whose request is being
    /// executed.
    pub(crate) fn commit(&self, queue: Option<&str>, write: Write) -> CommitFuture {
        match queue {
            Some(queue) => self.inner.state.commit_in(queue, write),
            None => self.inner.state.commit(write),
        }
    }

    pub(crate) fn kinds(&self) -> Arc<Kinds> {
        self.inner.state.kinds()
    }

    /// Field-ownership types of a kind in `version`.
    pub(crate) fn types(&self, row: &ResourceInfo, version: &str) -> Arc<Types> {
        self.inner.state.types(row, version)
    }

    /// Fields of a kind in `version` that updates never own.
    pub(crate) fn never_owned(&self, row: &ResourceInfo, version: &str) -> Arc<Set> {
        self.inner.state.never_owned(row, version)
    }

    /// See [`State::new_uid`].
    pub(crate) fn new_uid(&self) -> String {
        self.inner.state.new_uid()
    }

    /// See [`State::new_request_id`].
    pub(crate) fn new_request_id(&self) -> String {
        self.inner.state.new_request_id()
    }

    /// Five characters for a generated name.
    pub(crate) fn name_suffix(&self) -> String {
        self.inner.state.name_suffix()
    }

    /// The current time as objects store it: RFC 3339 in whole seconds.
    pub(crate) fn timestamp(&self) -> Value {
        self.inner.state.timestamp()
    }

    /// Follows up a committed write with the hook of its kind. `queue` is that of the write.
    pub(crate) async fn after_commit(
        &self,
        row: &ResourceInfo,
        object: &Arc<Value>,
        gone: bool,
        queue: Option<&'static str>,
    ) {
        self.inner.hooks.after_commit(self, Commit { row, object, gone }, queue).await;
    }

    /// Checks the APIServices with a Service: periodically, and at once when an APIService, its
    /// Service or its endpoints change. Runs until dropped. It is started with the listener, and
    /// not in virtual time.
    pub async fn follow_services(self) {
        self.inner.services.follow().await;
    }

    /// Responds to one request on behalf of `user`. Never fails: errors are Status responses. A
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

    /// An in-process connection, for `kube::Client::new`. Every request runs as `user`.
    pub fn in_process(&self, user: UserInfo) -> InProcess {
        InProcess { server: self.clone(), user, choices: rest::Choices::default(), agent: None }
    }
}

impl OwnRequests for ApiServer {
    fn send(&self, request: Request<Full<Bytes>>) -> BoxFuture<'_, Response<Body>> {
        self.handle(request, UserInfo::master("system:apiserver")).boxed()
    }
}

/// A tower service that passes requests of one user to the server.
#[derive(Clone)]
pub struct InProcess {
    server: ApiServer,
    user: UserInfo,
    choices: rest::Choices,
    agent: Option<HeaderValue>,
}

impl InProcess {
    /// Omits `metadata.managedFields` from responses if that needs no extra work. For clients that
    /// ignore the field, which is half of a typical object.
    #[must_use]
    pub fn lean(mut self) -> InProcess {
        self.choices.lean = true;
        self
    }

    /// Lets watches last for a day, regardless of `timeoutSeconds`, with one bookmark at the end.
    /// Short watches and frequent bookmarks help a client to notice a lost connection and to resume
    /// after it. An in-process connection is never lost, and in virtual time they would be most of
    /// the work of idle hours.
    #[must_use]
    pub fn long_watches(mut self) -> InProcess {
        self.choices.long_watches = true;
        self
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
        request.extensions_mut().insert(self.choices);
        if let Some(agent) = &self.agent {
            request.headers_mut().entry(USER_AGENT).or_insert_with(|| agent.clone());
        }
        let (server, user) = (self.server.clone(), self.user.clone());
        Box::pin(async move { Ok(server.handle(request, user).await) })
    }
}
