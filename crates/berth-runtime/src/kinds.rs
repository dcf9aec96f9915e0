//! Which of the kinds that a cluster need not have it serves: operators bring them, and take them away, at any time.
//!
//! A watch of the metadata of all CustomResourceDefinitions says when to look; a definition that is asked about is then read.
//! Metadata are a few hundred bytes each, where definitions are some hundred kilobytes and most are of no interest here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PartialObjectMeta;
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::sync::watch;

use crate::Clock;
use crate::inform::{WATCH_BACKOFF_BASE, WATCH_BACKOFF_MAX, WATCH_BACKOFF_WARN};

/// Whether a cluster serves a kind in the version that is read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// Not known yet.
    Unknown,
    /// There is no definition of it.
    Absent,
    /// There is a definition, which is not established or does not serve the version.
    Dormant,
    /// It is served.
    Served,
}

/// The kinds that were asked about, by the names of their definitions; clones share them.
#[derive(Clone, Default)]
pub struct Kinds(Arc<Mutex<BTreeMap<String, Kind>>>);

struct Kind {
    version: String,
    serving: watch::Sender<Serving>,
}

impl Kinds {
    /// Group and plural name of each kind that was asked about, and whether it is served.
    pub fn list(&self) -> Vec<(String, String, Serving)> {
        let kinds = self.lock();
        let split = kinds.iter().filter_map(|(name, kind)| Some((name.split_once('.')?, *kind.serving.borrow())));
        split.map(|((plural, group), serving)| (group.to_owned(), plural.to_owned(), serving)).collect()
    }

    /// The same in the Prometheus text format: 1 for those that are served.
    pub fn text(&self) -> String {
        const NAME: &str = "berth_kind_served";
        let mut text = format!("# HELP {NAME} Whether the cluster serves a kind that it need not have\n");
        let _ = writeln!(text, "# TYPE {NAME} gauge");
        for (group, plural, serving) in self.list() {
            let served = u8::from(serving == Serving::Served);
            let _ = writeln!(text, "{NAME}{{group=\"{group}\",resource=\"{plural}\"}} {served}");
        }
        text
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Asks about a kind, from now on.
    pub(crate) fn ask<K: Resource<DynamicType = ()>>(&self) -> watch::Receiver<Serving> {
        let name = format!("{}.{}", K::plural(&()), K::group(&()));
        let version = K::version(&()).into_owned();
        let new = || Kind { version, serving: watch::Sender::new(Serving::Unknown) };
        self.lock().entry(name).or_insert_with(new).serving.subscribe()
    }

    pub(crate) fn follow(self, client: Client, clock: Clock) -> Follower {
        let definitions = ApiResource::erase::<CustomResourceDefinition>(&());
        Follower { kinds: self, read: Api::all_with(client.clone(), &definitions), watch: Api::all(client), clock }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Kind>> {
        self.0.lock()
    }

    /// The version of the kind with this definition, if it was asked about.
    fn version(&self, definition: &str) -> Option<String> {
        self.lock().get(definition).map(|kind| kind.version.clone())
    }

    /// Notes what became of a kind, and says so in the log.
    fn set(&self, definition: &str, serving: Serving) {
        let kinds = self.lock();
        let Some(kind) = kinds.get(definition) else { return };
        let before = kind.serving.send_replace(serving);
        let version = &kind.version;
        match (before, serving) {
            (before, after) if before == after => {}
            // What is there at the start is said at once: `say`.
            (Serving::Unknown, _) => {}
            (_, Serving::Served) => {
                tracing::info!("the cluster serves {definition} ({version}): it is watched from now on");
            }
            (Serving::Served, Serving::Dormant) => tracing::warn!(
                "the cluster does not serve {definition} in version {version} any more: what is known of it stays as it is"
            ),
            (_, Serving::Absent) => tracing::warn!("{definition} is gone from the cluster, and what was of that kind"),
            // On its way to be served.
            (_, Serving::Dormant | Serving::Unknown) => {}
        }
    }

    /// All definitions there are have been shown, these among them: the others are not there.
    fn only(&self, shown: &BTreeSet<String>) {
        let names: Vec<String> = self.lock().keys().filter(|name| !shown.contains(*name)).cloned().collect();
        for name in &names {
            self.set(name, Serving::Absent);
        }
    }

    /// Says in the log which are served.
    fn say(&self) {
        let named = |wanted: fn(Serving) -> bool| -> Vec<String> {
            let kinds = self.lock();
            kinds.iter().filter(|(_, kind)| wanted(*kind.serving.borrow())).map(|(name, _)| name.clone()).collect()
        };
        let (served, others) = (named(|it| it == Serving::Served), named(|it| it != Serving::Served));
        if !served.is_empty() {
            tracing::info!("kinds that operators bring, watched: {}", served.join(", "));
        }
        if !others.is_empty() {
            tracing::info!("kinds that operators bring, watched when the cluster serves them: {}", others.join(", "));
        }
    }
}

/// Keeps knowing which kinds are served.
pub(crate) struct Follower {
    kinds: Kinds,
    watch: Api<PartialObjectMeta<CustomResourceDefinition>>,
    read: Api<DynamicObject>,
    clock: Clock,
}

impl Follower {
    /// Runs until dropped; `synced` becomes true when it is known of every kind for the first time.
    pub(crate) async fn run(self, synced: watch::Sender<bool>) {
        let mut stream = pin!(watcher(self.watch.clone(), watcher::Config::default()));
        let mut shown = BTreeSet::new();
        let mut backoff = WATCH_BACKOFF_BASE;
        while let Some(event) = stream.next().await {
            match event {
                Ok(watcher::Event::Init) => shown.clear(),
                Ok(watcher::Event::InitApply(definition)) => {
                    self.look(&definition.name_any()).await;
                    shown.insert(definition.name_any());
                }
                Ok(watcher::Event::InitDone) => {
                    self.kinds.only(&shown);
                    shown.clear();
                    if !*synced.borrow() {
                        self.kinds.say();
                    }
                    // No receiver is left only when the manager is stopping.
                    let _ = synced.send(true);
                    backoff = WATCH_BACKOFF_BASE;
                }
                Ok(watcher::Event::Apply(definition)) => {
                    backoff = WATCH_BACKOFF_BASE;
                    self.look(&definition.name_any()).await;
                }
                Ok(watcher::Event::Delete(definition)) => {
                    backoff = WATCH_BACKOFF_BASE;
                    self.kinds.set(&definition.name_any(), Serving::Absent);
                }
                Err(error) => {
                    self.retry("CustomResourceDefinitions cannot be watched", &error, &mut backoff).await;
                }
            }
        }
    }

    /// Reads a definition that is asked about, until it is known what it serves.
    async fn look(&self, name: &str) {
        let Some(version) = self.kinds.version(name) else { return };
        let mut backoff = WATCH_BACKOFF_BASE;
        loop {
            match self.read.get_opt(name).await {
                Ok(found) => {
                    let serving = found.map_or(Serving::Absent, |definition| of(&definition.data, &version));
                    return self.kinds.set(name, serving);
                }
                Err(error) => {
                    let what = format!("CustomResourceDefinition {name} cannot be read");
                    self.retry(&what, &error, &mut backoff).await;
                }
            }
        }
    }

    async fn retry(&self, what: &str, error: &(dyn std::error::Error + Sync), backoff: &mut Duration) {
        if *backoff >= WATCH_BACKOFF_WARN {
            tracing::warn!(%error, ?backoff, "{what}, retrying");
        } else {
            tracing::debug!(%error, ?backoff, "{what}, retrying");
        }
        self.clock.sleep(*backoff).await;
        *backoff = (*backoff * 2).min(WATCH_BACKOFF_MAX);
    }
}

/// What a definition serves of this version. One that is being deleted serves its objects until the last of them is gone.
fn of(definition: &Value, version: &str) -> Serving {
    let is_true = |condition: &&Value| condition["type"] == "Established" && condition["status"] == "True";
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let established = list(&definition["status"]["conditions"]).iter().any(|condition| is_true(&condition));
    let mut versions = list(&definition["spec"]["versions"]).into_iter();
    let served = versions.any(|it| it["name"] == version && it["served"] == true);
    if established && served { Serving::Served } else { Serving::Dormant }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_definition_serves_what_is_established_and_served() {
        let definition = |established: &str, served: bool| {
            json!({"spec": {"versions": [{"name": "v1", "served": true}, {"name": "v2", "served": served}]},
                   "status": {"conditions": [{"type": "NamesAccepted", "status": "True"},
                                             {"type": "Established", "status": established}]}})
        };
        assert_eq!(of(&definition("True", true), "v2"), Serving::Served);
        assert_eq!(of(&definition("True", false), "v2"), Serving::Dormant);
        assert_eq!(of(&definition("True", true), "v3"), Serving::Dormant);
        assert_eq!(of(&definition("False", true), "v2"), Serving::Dormant);
        assert_eq!(of(&json!({}), "v2"), Serving::Dormant);
    }
}
