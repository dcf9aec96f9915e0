//! The server value itself: what it is made of, and the two doors to it (`handle`, `in_process`).

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};

use berth_store::Store;

use crate::admission::AdmissionPlugin;
use crate::{Body, Objects, UserInfo};

/// What time it is, as the embedded cluster counts it.
pub type Clock = Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;

/// Where `pods/log` gets its text from (the node agent).
pub trait PodLogs: Send + Sync {
    /// Lines written so far by `container` of a pod; an error is the text of a 400 answer.
    fn read(&self, namespace: &str, pod: &str, container: &str) -> Result<String, String>;
}

/// What a server is made of.
pub struct Config {
    /// Where objects are kept.
    pub store: Arc<dyn Store>,
    /// The time for `creationTimestamp`, `deletionTimestamp`, ages and `managedFields`.
    pub clock: Clock,
    /// Seed of uids and generated names: the same seed and requests give the same objects.
    pub seed: u64,
    /// Admission plugins that run after the built-in ones.
    pub admission: Vec<Arc<dyn AdmissionPlugin>>,
    /// Source of pod logs; `None` answers every request for logs with an error.
    pub pod_logs: Option<Arc<dyn PodLogs>>,
}

/// The server. Cheap to clone; all clones are the same server.
#[derive(Clone)]
pub struct ApiServer {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
}

impl ApiServer {
    /// Starts serving what `config.store` holds.
    pub fn new(config: Config) -> ApiServer {
        ApiServer { inner: Arc::new(Inner { config }) }
    }

    /// Read access to stored objects.
    pub fn objects(&self) -> Objects {
        Objects::new(self.inner.config.store.clone())
    }

    /// Answers one request on behalf of `user`. Never fails: errors are Status responses.
    pub async fn handle<B>(&self, request: Request<B>, user: UserInfo) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: std::fmt::Display,
    {
        let _ = (request, user);
        Response::new(Body::empty())
    }

    /// A client's connection without a socket, for `kube::Client::new`: every request runs as `user`.
    pub fn in_process(&self, user: UserInfo) -> InProcess {
        InProcess { server: self.clone(), user }
    }
}

/// A tower service that answers as the server does, for one user.
#[derive(Clone)]
pub struct InProcess {
    server: ApiServer,
    user: UserInfo,
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

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (server, user) = (self.server.clone(), self.user.clone());
        Box::pin(async move { Ok(server.handle(request, user).await) })
    }
}
