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
use kube::core::{ApiResource, NamespaceResourceScope};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::Cache;
use crate::inform::{AnyCache, Backoff, Filling, Step, rejection};
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
        Self::start(client, &[None], following)
    }

    fn start(client: &Client, extents: &[Option<&str>], following: Following<K>) -> Self {
        let any = AnyCache::of::<K>();
        let cache: Cache<K> = Cache::of(any.objects.clone());
        cache.project(following.projection);
        let (shown, sight) = watch::channel(Sight::Listing);
        let extents = extents.iter().map(|namespace| extent(client, &any.resource, *namespace)).collect();
        let task = tokio::spawn(follow(extents, any, shown, following.changed));
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
        Self::start(client, &[None, Some(namespace)], following)
    }

    /// Follows the objects of one namespace.
    pub fn namespaced(client: &Client, namespace: &str, following: Following<K>) -> Self {
        Self::start(client, &[Some(namespace)], following)
    }
}

/// A namespace, or `None` for all, and the API of its objects.
fn extent(client: &Client, resource: &ApiResource, namespace: Option<&str>) -> (Option<String>, Api<Undecoded>) {
    let api = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    };
    (namespace.map(str::to_owned), api)
}

/// Follows the first extent that the user may list.
async fn follow(
    extents: Vec<(Option<String>, Api<Undecoded>)>,
    cache: AnyCache,
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
        cache.objects.retain(&BTreeSet::new());
        show(rejected);
        tokio::time::sleep(REJECTED_RETRY).await;
    }
}

/// Lists and watches until the API server rejects that. Returns the rejection.
async fn inform(
    api: &Api<Undecoded>,
    namespace: Option<&str>,
    cache: &AnyCache,
    show: &(impl Fn(Sight) + Sync),
) -> Sight {
    let live = || show(Sight::Live(namespace.map(str::to_owned)));
    let mut stream = pin!(watcher(api.clone(), watcher::Config::default()));
    let mut filling = Filling::new(cache.clone());
    let mut backoff = Backoff::new();
    // A watcher has no end: after an error, it lists or watches again.
    while let Some(event) = stream.next().await {
        match event.map(|event| filling.take(event)) {
            Ok(Step::Listing) => {}
            Ok(Step::Listed) => {
                filling.end();
                backoff.reset();
                live();
            }
            Ok(Step::Changed) => {
                backoff.reset();
                live();
            }
            Err(error) => {
                let delay = backoff.after(&error);
                match rejection(&error) {
                    Some(status) if matches!(status.code, 401 | 403) => {
                        return Sight::Forbidden(status.message.clone());
                    }
                    Some(status) if status.code == 404 => return Sight::NotServed,
                    // A single lost watch is normal.
                    _ if Backoff::is_repeated(delay) => show(Sight::Lost(crate::brief(&error))),
                    _ => {}
                }
                tokio::time::sleep(delay).await;
            }
        }
    }
    Sight::NotServed
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
    async fn after_an_outage_objects_are_listed_again_within_seconds() {
        const DOWN: Duration = Duration::from_secs(60);
        let started = tokio::time::Instant::now();
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let (name, revision) = if started.elapsed() < DOWN { ("before", "5") } else { ("after", "9") };
            let (code, value) = match query.contains("watch=true") {
                true if revision == "5" => return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)),
                // A server that was started again does not know what happened before.
                true if query.contains("resourceVersion=5") => {
                    (200, json!({"type": "ERROR", "object": rejected(410).1}))
                }
                true => std::future::pending().await,
                false => {
                    let items = json!([{"metadata": {"name": name, "namespace": "team", "resourceVersion": revision}}]);
                    let metadata = json!({"resourceVersion": revision});
                    (200, json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": metadata, "items": items}))
                }
            };
            let body = Body::from(value.to_string().into_bytes());
            Ok(Response::builder().status(code).body(body).expect("a response"))
        });
        let followed = Followed::all(&Client::new(service, "default"), following());
        let names = || followed.cache().list().iter().filter_map(|map| map.metadata.name.clone()).collect::<Vec<_>>();
        assert_eq!((settled(&followed).await, names()), (Sight::Live(None), vec!["before".to_owned()]));
        while names() != ["after"] {
            assert!(
                started.elapsed() < DOWN + Duration::from_secs(6),
                "{:?} after the outage",
                started.elapsed() - DOWN
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(started.elapsed() >= DOWN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_respond_is_reported() {
        let client = server(|_| rejected(500));
        let followed: Followed<Node> =
            Followed::all(&client, Following { projection: |_| {}, changed: Arc::default() });
        assert!(matches!(settled(&followed).await, Sight::Lost(_)));
    }
}
