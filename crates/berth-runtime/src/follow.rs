//! Follows one kind for a program that shows its objects to a user.
//!
//! A [`crate::Manager`] needs every object of its kinds and waits until it may read them. A
//! [`Followed`] reads what its user may read: all namespaces, or else one. Its [`Sight`] says
//! whether the cache is current, and why it is not.

use berth_api::json::Json;
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::StreamExt;
use kube::core::{ApiResource, NamespaceResourceScope, Status};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::Cache;
use crate::inform::{AnyCache, Filling, Step, WATCH_BACKOFF_BASE, WATCH_BACKOFF_MAX, WATCH_BACKOFF_WARN};
use crate::wire::Undecoded;

/// Time after which a list is tried again that the API server rejected.
const REJECTED_RETRY: Duration = Duration::from_secs(10);

/// How current a followed cache is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    /// The objects are being listed for the first time.
    Listing,
    /// The cache has every object, and a watch updates it. With a namespace, it has the objects of
    /// that namespace only, because the user may not list those of all namespaces.
    Live(Option<String>),
    /// The user may not list the objects. The cache is empty.
    Forbidden(String),
    /// The cluster does not serve the kind. The cache is empty.
    NotServed,
    /// The API server does not respond. The cache has the last known objects.
    Lost(String),
}

/// A cache that follows one kind until it is dropped.
pub struct Followed<K> {
    cache: Cache<K>,
    sight: watch::Receiver<Sight>,
    task: JoinHandle<()>,
}

impl<K> Drop for Followed<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The parts of objects to drop, and the signal after each change.
pub struct Following<K> {
    /// Removes the parts of an object that are not shown.
    pub projection: fn(&mut K),
    /// Notified after each change of the cache or its [`Sight`].
    pub changed: Arc<Notify>,
}

impl<K> Followed<K>
where
    K: Resource<DynamicType = ()> + Json + Clone + Send + Sync + 'static,
{
    /// Follows a kind without namespaces, or the objects of all namespaces.
    pub fn all(client: &Client, following: Following<K>) -> Self {
        Self::start(vec![(None, all::<K>(client))], following)
    }

    fn start(extents: Vec<(Option<String>, Api<Undecoded>)>, following: Following<K>) -> Self {
        let cache: Cache<K> = Cache::new();
        cache.project(following.projection);
        let (shown, sight) = watch::channel(Sight::Listing);
        let task = tokio::spawn(follow(extents, Arc::new(cache.clone()), shown, following.changed));
        Self { cache, sight, task }
    }

    /// The objects.
    pub fn cache(&self) -> &Cache<K> {
        &self.cache
    }

    /// How current the objects are.
    pub fn sight(&self) -> Sight {
        self.sight.borrow().clone()
    }
}

impl<K> Followed<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Json + Clone + Send + Sync + 'static,
{
    /// Follows the objects of all namespaces, or those of `namespace` if the user may not list all.
    pub fn within_rights(client: &Client, namespace: &str, following: Following<K>) -> Self {
        Self::start(vec![(None, all::<K>(client)), within::<K>(client, namespace)], following)
    }

    /// Follows the objects of one namespace.
    pub fn namespaced(client: &Client, namespace: &str, following: Following<K>) -> Self {
        Self::start(vec![within::<K>(client, namespace)], following)
    }
}

/// The API of the objects of all namespaces.
fn all<K: Resource<DynamicType = ()>>(client: &Client) -> Api<Undecoded> {
    Api::all_with(client.clone(), &ApiResource::erase::<K>(&()))
}

/// A namespace and the API of its objects.
fn within<K: Resource<DynamicType = ()>>(client: &Client, namespace: &str) -> (Option<String>, Api<Undecoded>) {
    let api = Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<K>(&()));
    (Some(namespace.to_owned()), api)
}

/// Follows the first extent that the user may list.
async fn follow(
    extents: Vec<(Option<String>, Api<Undecoded>)>,
    cache: Arc<dyn AnyCache>,
    shown: watch::Sender<Sight>,
    changed: Arc<Notify>,
) {
    let show = |sight: Sight| {
        shown.send_replace(sight);
        changed.notify_one();
    };
    loop {
        let mut rejected = Sight::NotServed;
        for (namespace, api) in &extents {
            rejected = inform(api, namespace.as_deref(), &cache, &show).await;
            if !matches!(rejected, Sight::Forbidden(_)) {
                break;
            }
        }
        cache.retain(&BTreeSet::new());
        show(rejected);
        tokio::time::sleep(REJECTED_RETRY).await;
    }
}

/// Lists and watches until the API server rejects that. Returns the rejection.
async fn inform(
    api: &Api<Undecoded>,
    namespace: Option<&str>,
    cache: &Arc<dyn AnyCache>,
    show: &(impl Fn(Sight) + Sync),
) -> Sight {
    let live = || show(Sight::Live(namespace.map(str::to_owned)));
    let mut stream = pin!(watcher(api.clone(), watcher::Config::default()));
    let mut filling = Filling::new(cache.clone());
    let mut backoff = WATCH_BACKOFF_BASE;
    // A watcher has no end: after an error, it lists or watches again.
    while let Some(event) = stream.next().await {
        match event.map(|event| filling.take(event)) {
            Ok(Step::Listing) => {}
            Ok(Step::Listed | Step::Changed) => {
                backoff = WATCH_BACKOFF_BASE;
                live();
            }
            Err(error) => {
                match rejection(&error) {
                    Some(status) if matches!(status.code, 401 | 403) => {
                        return Sight::Forbidden(status.message.clone());
                    }
                    Some(status) if status.code == 404 => return Sight::NotServed,
                    // A single lost watch is normal.
                    _ if backoff >= WATCH_BACKOFF_WARN => show(Sight::Lost(crate::brief(&error))),
                    _ => {}
                }
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(WATCH_BACKOFF_MAX);
            }
        }
    }
    Sight::NotServed
}

/// The status with which the API server rejected a list or watch.
fn rejection(error: &watcher::Error) -> Option<&Status> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::{ConfigMap, Node};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// A server whose response to a list is that of `answer` for its path. Its watches have no
    /// events.
    fn server(answer: impl Fn(&str) -> (u16, Value) + Clone + Send + Sync + 'static) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
            let answer = answer.clone();
            async move {
                if query.contains("watch=true") {
                    std::future::pending::<()>().await;
                }
                let (code, value) = answer(&path);
                let body = Body::from(value.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(body).expect("a response"))
            }
        });
        Client::new(service, "default")
    }

    fn list(namespace: &str) -> (u16, Value) {
        let item = json!({"metadata": {"name": "a", "namespace": namespace, "resourceVersion": "1"},
            "data": {"shown": "1", "dropped": "2"}});
        (
            200,
            json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": [item]}),
        )
    }

    fn rejected(code: u16) -> (u16, Value) {
        let message = format!("rejected with {code}");
        (code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}))
    }

    fn following() -> Following<ConfigMap> {
        let projection = |map: &mut ConfigMap| map.data.iter_mut().for_each(|data| drop(data.remove("dropped")));
        Following { projection, changed: Arc::default() }
    }

    async fn settled<K>(followed: &Followed<K>) -> Sight {
        let mut sight = followed.sight.clone();
        let found = sight.wait_for(|sight| *sight != Sight::Listing).await;
        found.expect("the task runs").clone()
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_is_followed_in_one_namespace_if_all_are_forbidden() {
        let client = server(|path| match path {
            "/api/v1/namespaces/team/configmaps" => list("team"),
            _ => rejected(403),
        });
        let followed = Followed::within_rights(&client, "team", following());
        assert_eq!(settled(&followed).await, Sight::Live(Some("team".to_owned())));
        let objects = followed.cache().list();
        assert_eq!(objects.len(), 1);
        assert_eq!(objects[0].data.as_ref().map(|data| data.len()), Some(1), "the projection applies");
        let other = Followed::within_rights(&client, "other", following());
        assert_eq!(settled(&other).await, Sight::Forbidden("rejected with 403".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_not_served_is_listed_once_it_is() {
        let served = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let asked = served.clone();
        let client = server(move |_| match asked.load(std::sync::atomic::Ordering::SeqCst) {
            true => list("team"),
            false => rejected(404),
        });
        let followed = Followed::within_rights(&client, "team", following());
        assert_eq!(settled(&followed).await, Sight::NotServed);
        served.store(true, std::sync::atomic::Ordering::SeqCst);
        let mut sight = followed.sight.clone();
        sight.wait_for(|sight| *sight == Sight::Live(None)).await.expect("the task runs");
        assert_eq!(followed.cache().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_respond_is_reported() {
        let client = server(|_| rejected(500));
        let followed: Followed<Node> =
            Followed::all(&client, Following { projection: |_| {}, changed: Arc::default() });
        assert!(matches!(settled(&followed).await, Sight::Lost(_)));
    }
}
