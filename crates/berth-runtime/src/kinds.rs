//! Optional kinds: which of them the cluster serves. Their CustomResourceDefinitions may be created
//! and deleted at any time.
//!
//! A watch of the metadata of all definitions shows changes; the definition of a requested kind is
//! then read. Metadata are a few hundred bytes each. Whole definitions are some hundred kilobytes,
//! and most of them are not needed.
//!
//! A kind of Kubernetes itself that older versions lack has no definition. Discovery shows whether
//! the API server serves it. While it does not, discovery is asked again from time to time, because
//! the API server may be upgraded.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::exposition::{Exposition, Family};
use futures::stream::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PartialObjectMeta;
use kube::core::{DynamicObject, Status};
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::sync::watch;

use crate::Clock;
use crate::inform::Backoff;

/// Time after which discovery is asked again for a kind of Kubernetes that is not served.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(300);

/// State of a kind: does the cluster serve it in the version that Berth reads?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// Not known yet.
    Unknown,
    /// The kind has no CustomResourceDefinition.
    Absent,
    /// The CustomResourceDefinition is not established, or does not serve the version.
    Dormant,
    /// The cluster serves the kind.
    Served,
}

/// The requested optional kinds, by the names of their definitions; clones share them.
#[derive(Clone, Default)]
pub struct Kinds(Arc<Mutex<BTreeMap<String, Kind>>>);

struct Kind {
    version: String,
    serving: watch::Sender<Serving>,
}

impl Kinds {
    /// Returns group, plural name and state of each requested kind.
    pub fn list(&self) -> Vec<(String, String, Serving)> {
        let kinds = self.lock();
        let split = kinds.iter().filter_map(|(name, kind)| Some((name.split_once('.')?, *kind.serving.borrow())));
        split.map(|((plural, group), serving)| (group.to_owned(), plural.to_owned(), serving)).collect()
    }

    /// Writes the list as a metric, with the value 1 for kinds that are served.
    pub fn write(&self, exposition: &mut Exposition) {
        const SERVED: Family =
            Family::gauge("berth_kind_served", "1 if the cluster serves the optional kind, 0 otherwise");
        for (group, plural, serving) in self.list() {
            let served = f64::from(u8::from(serving == Serving::Served));
            exposition.add(&SERVED, &[("group", &group), ("resource", &plural)], served);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Requests a kind, and returns its current and later state.
    pub(crate) fn request(&self, kind: &ApiResource) -> watch::Receiver<Serving> {
        let name = format!("{}.{}", kind.plural, kind.group);
        let new = || Kind { version: kind.version.clone(), serving: watch::Sender::new(Serving::Unknown) };
        self.lock().entry(name).or_insert_with(new).serving.subscribe()
    }

    /// Returns the task that follows the definitions of the requested kinds.
    pub(crate) fn follow(self, client: Client, watches: watcher::Config, clock: Clock) -> Follower {
        let definitions = ApiResource::erase::<CustomResourceDefinition>(&());
        let read = Api::all_with(client.clone(), &definitions);
        Follower { kinds: self, read, watch: Api::all(client.clone()), discovery: client, watches, clock }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Kind>> {
        self.0.lock()
    }

    /// Returns the requested version of the kind with this definition, or `None` if the kind is not
    /// requested.
    fn version(&self, definition: &str) -> Option<String> {
        self.lock().get(definition).map(|kind| kind.version.clone())
    }

    /// Sets the state of a kind, and logs a change.
    fn set(&self, definition: &str, serving: Serving) {
        let kinds = self.lock();
        let Some(kind) = kinds.get(definition) else { return };
        let before = kind.serving.send_replace(serving);
        let version = &kind.version;
        match (before, serving) {
            (before, after) if before == after => {}
            // The first states are logged together by `log_all`.
            (Serving::Unknown, _) => {}
            (_, Serving::Served) => {
                tracing::info!("the cluster serves {definition} ({version}) now: its objects are watched");
            }
            (Serving::Served, Serving::Dormant) => tracing::warn!(
                "the cluster no longer serves {definition} in version {version}: its objects stay in the cache unchanged"
            ),
            (_, Serving::Absent) => tracing::warn!("{definition} was deleted: its objects are removed from the cache"),
            // The definition exists, but is not established yet.
            (_, Serving::Dormant | Serving::Unknown) => {}
        }
    }

    /// Names and versions of the requested kinds without a definition in `shown`, a complete list.
    fn undefined(&self, shown: &BTreeSet<String>) -> Vec<(String, String)> {
        let kinds = self.lock();
        let undefined = kinds.iter().filter(|(name, _)| !shown.contains(*name));
        undefined.map(|(name, kind)| (name.clone(), kind.version.clone())).collect()
    }

    /// Names and versions of the kinds of Kubernetes that are not served.
    fn absent_of_kubernetes(&self) -> Vec<(String, String)> {
        let kinds = self.lock();
        let absent =
            kinds.iter().filter(|(name, kind)| is_of_kubernetes(name) && *kind.serving.borrow() == Serving::Absent);
        absent.map(|(name, kind)| (name.clone(), kind.version.clone())).collect()
    }

    /// Logs which kinds are served.
    fn log_all(&self) {
        let names = |wanted: fn(Serving) -> bool| -> Vec<String> {
            let kinds = self.lock();
            kinds.iter().filter(|(_, kind)| wanted(*kind.serving.borrow())).map(|(name, _)| name.clone()).collect()
        };
        let (served, others) = (names(|it| it == Serving::Served), names(|it| it != Serving::Served));
        if !served.is_empty() {
            tracing::info!("optional kinds that are watched: {}", served.join(", "));
        }
        if !others.is_empty() {
            tracing::info!("optional kinds that are watched once the cluster serves them: {}", others.join(", "));
        }
    }
}

/// Follows the CustomResourceDefinitions of the requested kinds.
pub(crate) struct Follower {
    kinds: Kinds,
    watch: Api<PartialObjectMeta<CustomResourceDefinition>>,
    watches: watcher::Config,
    read: Api<DynamicObject>,
    discovery: Client,
    clock: Clock,
}

impl Follower {
    /// Runs until dropped. `synced` becomes true when the state of every kind is known.
    pub(crate) async fn run(self, synced: watch::Sender<bool>) {
        let mut stream = pin!(watcher(self.watch.clone(), self.watches.clone()));
        let mut shown = BTreeSet::new();
        let mut backoff = Backoff::new();
        loop {
            let discover_again = !self.kinds.absent_of_kubernetes().is_empty();
            let event = tokio::select! {
                event = stream.next() => event,
                () = self.clock.sleep(DISCOVERY_INTERVAL), if discover_again => {
                    for (name, version) in self.kinds.absent_of_kubernetes() {
                        self.discover(&name, &version).await;
                    }
                    continue;
                }
            };
            let Some(event) = event else { return };
            match event {
                Ok(watcher::Event::Init) => shown.clear(),
                Ok(watcher::Event::InitApply(definition)) => {
                    self.read_definition(&definition.name_any()).await;
                    shown.insert(definition.name_any());
                }
                Ok(watcher::Event::InitDone) => {
                    for (name, version) in self.kinds.undefined(&shown) {
                        self.discover(&name, &version).await;
                    }
                    shown.clear();
                    if !*synced.borrow() {
                        self.kinds.log_all();
                    }
                    // An error means that no receiver is left, because the manager is stopping.
                    let _ = synced.send(true);
                    backoff.reset();
                }
                Ok(watcher::Event::Apply(definition)) => {
                    backoff.reset();
                    self.read_definition(&definition.name_any()).await;
                }
                Ok(watcher::Event::Delete(definition)) => {
                    backoff.reset();
                    self.kinds.set(&definition.name_any(), Serving::Absent);
                }
                Err(error) => {
                    let delay = backoff.after(&error);
                    self.wait("CustomResourceDefinitions cannot be watched", &error, delay).await;
                }
            }
        }
    }

    /// Reads the definition of a requested kind and sets its state. Retries until the read
    /// succeeds.
    async fn read_definition(&self, name: &str) {
        let Some(version) = self.kinds.version(name) else { return };
        let mut backoff = Backoff::new();
        loop {
            match self.read.get_opt(name).await {
                Ok(found) => {
                    let serving = found.map_or(Serving::Absent, |definition| serving_of(&definition.data, &version));
                    return self.kinds.set(name, serving);
                }
                Err(error) => {
                    let failure = format!("CustomResourceDefinition {name} cannot be read");
                    self.wait(&failure, &error, backoff.next(response(&error))).await;
                }
            }
        }
    }

    /// Sets the state of a kind without a definition: kinds of Kubernetes may be served all the
    /// same. Retries until the API server answers.
    async fn discover(&self, name: &str, version: &str) {
        let Some((plural, group)) = name.split_once('.').filter(|_| is_of_kubernetes(name)) else {
            return self.kinds.set(name, Serving::Absent);
        };
        let mut backoff = Backoff::new();
        loop {
            let serving = match self.discovery.list_api_group_resources(&format!("{group}/{version}")).await {
                Ok(list) if list.resources.iter().any(|it| it.name == plural) => Serving::Served,
                Ok(_) => Serving::Absent,
                Err(kube::Error::Api(status)) if status.code == 404 => Serving::Absent,
                Err(error) => {
                    let failure = format!("resources of {group}/{version} cannot be listed");
                    self.wait(&failure, &error, backoff.next(response(&error))).await;
                    continue;
                }
            };
            return self.kinds.set(name, serving);
        }
    }

    /// Logs a failure and waits.
    async fn wait(&self, failure: &str, error: &(dyn std::error::Error + Sync), delay: Duration) {
        if Backoff::is_repeated(delay) {
            tracing::warn!(%error, ?delay, "{failure}, retrying");
        } else {
            tracing::debug!(%error, ?delay, "{failure}, retrying");
        }
        self.clock.sleep(delay).await;
    }
}

/// The response with which the API server rejected a request; `None` without a response.
fn response(error: &kube::Error) -> Option<&Status> {
    match error {
        kube::Error::Api(status) => Some(status),
        _ => None,
    }
}

/// True if a kind with this `plural.group` may be one of Kubernetes itself, which has no
/// definition.
fn is_of_kubernetes(name: &str) -> bool {
    name.ends_with(".k8s.io") && !name.ends_with(".x-k8s.io")
}

/// Returns the state of a kind from its definition. A definition that is being deleted serves its
/// objects until the last of them is deleted.
fn serving_of(definition: &Value, version: &str) -> Serving {
    let is_established = |condition: &&Value| condition["type"] == "Established" && condition["status"] == "True";
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let established = list(&definition["status"]["conditions"]).iter().any(|condition| is_established(&condition));
    let mut versions = list(&definition["spec"]["versions"]).into_iter();
    let served = versions.any(|it| it["name"] == version && it["served"] == true);
    if established && served { Serving::Served } else { Serving::Dormant }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_of_kubernetes_are_known_by_their_group() {
        assert!(is_of_kubernetes("resourceslices.resource.k8s.io"));
        assert!(!is_of_kubernetes("jobsets.jobset.x-k8s.io"));
        assert!(!is_of_kubernetes("rayjobs.ray.io"));
    }

    #[test]
    fn a_kind_is_served_if_its_definition_is_established_and_serves_the_version() {
        let definition = |established: &str, served: bool| {
            json!({"spec": {"versions": [{"name": "v1", "served": true}, {"name": "v2", "served": served}]},
                   "status": {"conditions": [{"type": "NamesAccepted", "status": "True"},
                                             {"type": "Established", "status": established}]}})
        };
        assert_eq!(serving_of(&definition("True", true), "v2"), Serving::Served);
        assert_eq!(serving_of(&definition("True", false), "v2"), Serving::Dormant);
        assert_eq!(serving_of(&definition("True", true), "v3"), Serving::Dormant);
        assert_eq!(serving_of(&definition("False", true), "v2"), Serving::Dormant);
        assert_eq!(serving_of(&json!({}), "v2"), Serving::Dormant);
    }
}
