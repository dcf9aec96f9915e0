//! The garbage collector: deletes dependents whose owners no longer exist, and completes the
//! deletion of owners that wait for their dependents.
//!
//! It watches the metadata of every kind, and keeps a graph of owners from which it derives the
//! objects to reconcile. The watches of two kinds are not synchronized. Before it deletes an object
//! because the graph lacks the owner, it reads the owner from the API server. The deletion names the
//! `resourceVersion` that the graph has seen, because the object may have got another owner since.
//!
//! Source: Kubernetes' "Garbage collection" (background, foreground, orphan) and "Owners and
//! dependents".

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use berth_runtime::{Action, Clock, Error, Manager, ObjectKey, Queue, Reconciler, is_conflict, is_not_found};
use futures::StreamExt;
use futures::stream::{FuturesUnordered, SelectAll, Stream};
use parking_lot::{Mutex, MutexGuard};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, PartialObjectMeta, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::core::DynamicObject;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tokio::sync::mpsc;

use super::definition::Definition;
use super::graph::{FOREGROUND, Graph, ORPHAN, Owner, Record};
use super::kinds::{Kind, Kinds};
use super::watched::Watched;

/// Maximum number of concurrent reconciles.
const CONCURRENCY: usize = 32;
/// Delay before discovery or a failed watch is retried.
const RETRY: Duration = Duration::from_secs(1);

type Meta = PartialObjectMeta<DynamicObject>;
type WatchResult = watcher::Result<watcher::Event<Watched>>;
type Events = Pin<Box<dyn Stream<Item = (usize, Option<WatchResult>)> + Send>>;

/// Adds the collector.
pub fn install(manager: &mut Manager, kinds: Kinds) {
    let graph: Arc<Mutex<Graph>> = Arc::default();
    let client = manager.client();
    let clock = manager.clock();
    let definitions = manager.cache::<Definition>();
    // Definitions change rarely; changes beyond this limit are lost.
    let (changes, changed) = mpsc::channel(1024);
    let on_change = {
        let kinds = kinds.clone();
        move |delta: &berth_runtime::Delta<Definition>| -> Option<ObjectKey> {
            let change = match &delta.new {
                Some(definition) => kinds.define(definition).map(Change::Served),
                None => kinds.undefine(delta.latest()).map(Change::Gone),
            };
            if let Some(change) = change
                && changes.try_send(change).is_err()
            {
                tracing::warn!(
                    definition = delta.latest().name_any(),
                    "garbage collection ignores a change to this definition: too many definitions changed at once"
                );
            }
            None
        }
    };
    let collector = Collector { graph: graph.clone(), kinds: kinds.clone(), client: client.clone() };
    let builder = manager.controller("garbage-collector").watch(&definitions, on_change).concurrency(CONCURRENCY);
    let queue = builder.queue();
    builder.run(collector);
    let watching = Watching { graph, kinds, client, watches: manager.watches(), clock, queue };
    manager.task("garbage-collector-watches", watching.run(changed));
}

/// A kind, by position, that became served or is no longer served.
enum Change {
    Served(usize),
    Gone(usize),
}

/// Updates the graph from the watches of all kinds.
struct Watching {
    graph: Arc<Mutex<Graph>>,
    kinds: Kinds,
    client: Client,
    watches: watcher::Config,
    clock: Clock,
    queue: Queue,
}

impl Watching {
    async fn run(self, mut changed: mpsc::Receiver<Change>) {
        let mut streams: SelectAll<Events> = SelectAll::new();
        let mut restarts: FuturesUnordered<Pin<Box<dyn Future<Output = usize> + Send>>> = FuturesUnordered::new();
        let mut gone: BTreeSet<usize> = BTreeSet::new();
        let mut listed: std::collections::BTreeMap<usize, BTreeSet<String>> = std::collections::BTreeMap::new();
        let first = loop {
            match self.kinds.discover(&self.client).await {
                Ok(positions) => break positions,
                Err(error) => {
                    tracing::debug!(error = berth_runtime::brief(&error), "discovery failed, retrying");
                    self.clock.sleep(RETRY).await;
                }
            }
        };
        for position in first {
            streams.extend(self.watch(position));
        }
        // Handle changed definitions, watches to restart, and watch events.
        loop {
            tokio::select! {
                biased;
                Some(change) = changed.recv() => match change {
                    Change::Served(position) => {
                        gone.remove(&position);
                        streams.extend(self.watch(position));
                    }
                    Change::Gone(position) => {
                        gone.insert(position);
                        let missing_uids = lock(&self.graph).missing(position, &BTreeSet::new());
                        for uid in missing_uids {
                            self.observe_deleted(&uid);
                        }
                    }
                },
                Some(position) = restarts.next() => {
                    if !gone.contains(&position) {
                        streams.extend(self.watch(position));
                    }
                }
                Some((position, event)) = streams.next() => match event {
                    // The watch ended: the kind is no longer served, or the API server is down.
                    None => {
                        let clock = self.clock.clone();
                        restarts.push(Box::pin(async move {
                            clock.sleep(RETRY).await;
                            position
                        }));
                    }
                    Some(event) => self.handle_event(position, event, &mut listed),
                },
                else => return,
            }
        }
    }

    fn watch(&self, position: usize) -> Option<Events> {
        let kind = self.kinds.get(position)?;
        let api: Api<Watched> = Api::all_with(self.client.clone(), &kind.resource);
        let events = watcher(api, self.watches.clone()).scan(false, |failed, event| {
            // The stream ends after an error; `run` opens a new one after `RETRY`.
            let item = (!*failed).then_some(event);
            *failed |= matches!(item, Some(Err(_)));
            futures::future::ready(item)
        });
        let ended = futures::stream::once(futures::future::ready(None));
        Some(Box::pin(events.map(Some).chain(ended).map(move |event| (position, event))))
    }

    fn handle_event(
        &self,
        position: usize,
        event: WatchResult,
        listed: &mut std::collections::BTreeMap<usize, BTreeSet<String>>,
    ) {
        match event {
            Ok(watcher::Event::Init) => {
                listed.insert(position, BTreeSet::new());
            }
            Ok(watcher::Event::InitApply(object)) => {
                if let (Some(uid), Some(listed)) = (&object.meta().uid, listed.get_mut(&position)) {
                    listed.insert(uid.clone());
                }
                self.observe(position, &object);
            }
            Ok(watcher::Event::InitDone) => {
                let kept = listed.remove(&position).unwrap_or_default();
                let missing_uids = lock(&self.graph).missing(position, &kept);
                for uid in missing_uids {
                    self.observe_deleted(&uid);
                }
            }
            Ok(watcher::Event::Apply(object)) => self.observe(position, &object),
            Ok(watcher::Event::Delete(object)) => {
                if let Some(uid) = &object.meta().uid {
                    self.observe_deleted(uid);
                }
            }
            Err(error) => {
                tracing::debug!(error = berth_runtime::brief(&error), "garbage collector watch failed, retrying")
            }
        }
    }

    fn observe(&self, position: usize, object: &Watched) {
        let Some(uid) = &object.meta().uid else { return };
        let mut graph = lock(&self.graph);
        let affected = graph.set(uid, Record::new(position, object.meta()));
        self.enqueue(&graph, affected);
    }

    fn observe_deleted(&self, uid: &str) {
        let mut graph = lock(&self.graph);
        let affected = graph.remove(uid);
        self.enqueue(&graph, affected);
    }

    /// Enqueues the objects that exist. A key is the object's namespace and UID: the queue serves
    /// namespaces in turn.
    fn enqueue(&self, graph: &Graph, uids: BTreeSet<String>) {
        for uid in uids {
            if let Some(record) = graph.get(&uid) {
                self.queue.add(ObjectKey::namespaced(record.namespace.as_str(), uid));
            }
        }
    }
}

fn lock(graph: &Mutex<Graph>) -> MutexGuard<'_, Graph> {
    graph.lock()
}

struct Collector {
    graph: Arc<Mutex<Graph>>,
    kinds: Kinds,
    client: Client,
}

impl Reconciler for Collector {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let uid = key.name;
        let Some(record) = lock(&self.graph).get(&uid).cloned() else { return Ok(Action::Wait) };
        if record.is_deleting && record.orphans_dependents {
            self.orphan_dependents(&uid, &record).await?;
        } else if record.is_deleting && record.waits_for_dependents {
            self.delete_dependents(&uid, &record).await?;
        } else if !record.is_deleting && !record.owners.is_empty() {
            self.check_owners(&uid, &record).await?;
        }
        Ok(Action::Wait)
    }
}

impl Collector {
    /// Foreground deletion: deletes the dependents that block the owner, then removes the owner's
    /// finalizer.
    async fn delete_dependents(&self, uid: &str, record: &Record) -> Result<(), Error> {
        let dependents: Vec<(String, Record)> = {
            let graph = lock(&self.graph);
            graph.dependents(uid).filter(|(_, r)| r.blocks(uid)).map(|(u, r)| (u.clone(), r.clone())).collect()
        };
        if dependents.is_empty() {
            return self.remove_finalizer(uid, record, FOREGROUND).await;
        }
        for (dependent, record) in dependents.iter().filter(|(_, record)| !record.is_deleting) {
            self.check_owners(dependent, record).await?;
        }
        let in_cycle = lock(&self.graph).blocking_dependent_in_cycle(uid).map(str::to_owned);
        match dependents.iter().find(|(dependent, _)| Some(dependent) == in_cycle.as_ref()) {
            Some((dependent, record)) => self.unblock_owner(uid, dependent, record).await,
            None => Ok(()),
        }
    }

    /// Sets `blockOwnerDeletion` of a dependent's owner reference to false.
    async fn unblock_owner(&self, owner: &str, uid: &str, record: &Record) -> Result<(), Error> {
        tracing::debug!(
            owner,
            dependent = uid,
            "owners in foreground deletion form a cycle: this owner reference no longer blocks the deletion"
        );
        self.change_owners(uid, record, |mut reference| {
            if reference.uid == owner {
                reference.block_owner_deletion = Some(false);
            }
            Some(reference)
        })
        .await
    }

    /// Orphan deletion: removes the owner from its dependents, then the owner's finalizer.
    async fn orphan_dependents(&self, uid: &str, record: &Record) -> Result<(), Error> {
        let dependents: Vec<(String, Record)> =
            lock(&self.graph).dependents(uid).map(|(u, r)| (u.clone(), r.clone())).collect();
        for (dependent, known) in &dependents {
            self.remove_owners(dependent, known, &[uid.to_owned()]).await?;
        }
        self.remove_finalizer(uid, record, ORPHAN).await
    }

    /// Deletes an object if none of its owners remains. An owner that waits for its dependents
    /// does not count as remaining. If some owners remain, removes the references to the others.
    async fn check_owners(&self, uid: &str, record: &Record) -> Result<(), Error> {
        let Some(policy) = self.check_remaining(uid, record).await? else { return Ok(()) };
        match self.delete(uid, record, policy).await {
            Err(error) if is_conflict(&error) => {}
            result => return Ok(result?),
        }
        // The object is newer than the graph, which may not have its new owners yet.
        let Some((_, live)) = self.live(uid, record).await? else { return Ok(()) };
        let live = Record::new(record.kind, live.meta());
        match self.check_remaining(uid, &live).await? {
            Some(policy) => Ok(self.delete(uid, &live, policy).await?),
            None => Ok(()),
        }
    }

    /// How to delete an object without remaining owners. `None` if some remain: then the references
    /// to the others are removed.
    async fn check_remaining(&self, uid: &str, record: &Record) -> Result<Option<PropagationPolicy>, Error> {
        let mut remaining = 0;
        let mut waiting = Vec::new();
        let mut absent = Vec::new();
        for owner in &record.owners {
            let known = lock(&self.graph).get(&owner.uid).cloned();
            match known {
                Some(known) if known.is_deleting && known.waits_for_dependents => waiting.push(owner.uid.clone()),
                Some(_) => remaining += 1,
                None if self.exists(owner, &record.namespace).await? => remaining += 1,
                None => absent.push(owner.uid.clone()),
            }
        }
        if remaining > 0 {
            if !absent.is_empty() || !waiting.is_empty() {
                absent.extend(waiting);
                self.remove_owners(uid, record, &absent).await?;
            }
            return Ok(None);
        }
        let has_dependents = lock(&self.graph).dependents(uid).next().is_some();
        Ok(Some(if record.orphans_dependents {
            PropagationPolicy::Orphan
        } else if record.waits_for_dependents || (!waiting.is_empty() && has_dependents) {
            PropagationPolicy::Foreground
        } else {
            PropagationPolicy::Background
        }))
    }

    /// Deletes an object in the state of its record. An object that is gone needs no deletion.
    ///
    /// # Errors
    /// A conflict if the object has changed or was replaced, and errors of the API.
    async fn delete(&self, uid: &str, record: &Record, policy: PropagationPolicy) -> kube::Result<()> {
        let Some(api) = self.api(record) else { return Ok(()) };
        let version = (!record.version.is_empty()).then(|| record.version.to_string());
        let parameters = DeleteParams {
            propagation_policy: Some(policy),
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: version }),
            ..DeleteParams::default()
        };
        match berth_runtime::write::delete(&api, &record.name, &parameters).await {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Asks the API server whether an owner exists. An owner of an unknown kind counts as existing,
    /// because a wrong deletion cannot be undone.
    async fn exists(&self, owner: &Owner, namespace: &str) -> Result<bool, Error> {
        let Some(kind) = self.kinds.of_owner(&owner.api_version, &owner.kind) else { return Ok(true) };
        let api = self.api_of(&kind, namespace);
        match berth_runtime::write::get_opt(&api, &owner.name).await? {
            Some(found) => Ok(found.meta().uid.as_deref() == Some(owner.uid.as_str())),
            None => Ok(false),
        }
    }

    /// Removes the references to these owners (UIDs) from an object.
    async fn remove_owners(&self, uid: &str, record: &Record, owners: &[String]) -> Result<(), Error> {
        self.change_owners(uid, record, |owner| (!owners.contains(&owner.uid)).then_some(owner)).await
    }

    /// Maps each owner reference of an object with `change`; `None` removes the reference. Writes
    /// nothing if an object with another UID has replaced the object.
    async fn change_owners(
        &self,
        uid: &str,
        record: &Record,
        change: impl Fn(OwnerReference) -> Option<OwnerReference>,
    ) -> Result<(), Error> {
        let Some((api, live)) = self.live(uid, record).await? else { return Ok(()) };
        let kept: Vec<_> = live.meta().owner_references.iter().flatten().cloned().filter_map(change).collect();
        let patch = json!({ "metadata": { "resourceVersion": live.meta().resource_version, "ownerReferences": kept } });
        self.patch(&api, &record.name, &patch).await
    }

    async fn remove_finalizer(&self, uid: &str, record: &Record, finalizer: &str) -> Result<(), Error> {
        let Some((api, live)) = self.live(uid, record).await? else { return Ok(()) };
        let known = live.meta().finalizers.clone().unwrap_or_default();
        if !known.iter().any(|known| known == finalizer) {
            return Ok(());
        }
        let kept: Vec<_> = known.into_iter().filter(|known| known != finalizer).collect();
        let patch = json!({ "metadata": { "resourceVersion": live.meta().resource_version, "finalizers": kept } });
        self.patch(&api, &record.name, &patch).await
    }

    /// Reads the object of a record, and returns it with its API. `None` if it is gone, or an object
    /// with another UID has replaced it.
    async fn live(&self, uid: &str, record: &Record) -> Result<Option<(Api<Meta>, Meta)>, Error> {
        let Some(api) = self.api(record) else { return Ok(None) };
        let live = berth_runtime::write::get_opt(&api, &record.name).await?;
        Ok(live.filter(|live| live.meta().uid.as_deref() == Some(uid)).map(|live| (api, live)))
    }

    async fn patch(&self, api: &Api<Meta>, name: &str, patch: &serde_json::Value) -> Result<(), Error> {
        match berth_runtime::write::patch(api, name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn api(&self, record: &Record) -> Option<Api<Meta>> {
        Some(self.api_of(&self.kinds.get(record.kind)?, &record.namespace))
    }

    /// The API of a kind; for namespaced kinds in this namespace.
    fn api_of(&self, kind: &Kind, namespace: &str) -> Api<Meta> {
        if kind.is_namespaced {
            Api::namespaced_with(self.client.clone(), namespace, &kind.resource)
        } else {
            Api::all_with(self.client.clone(), &kind.resource)
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_apiserver::{ApiServer, Config, UserInfo};
    use berth_store::MemoryStore;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::PostParams;

    use super::*;

    fn owned_by(owners: &[&ConfigMap]) -> serde_json::Value {
        let reference = |owner: &&ConfigMap| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner.name_any(), "uid": owner.uid()});
        owners.iter().map(reference).collect()
    }

    #[tokio::test]
    async fn an_object_with_an_owner_that_the_graph_does_not_know_yet_is_kept() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let server = ApiServer::new(Config::new(Arc::new(MemoryStore::new()), Arc::new(move || now)));
        server.ready().await.unwrap();
        let client = Client::new(server.in_process(UserInfo::master("test")), "default");
        let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
        let create = async |name: &str, owners: &[&ConfigMap]| {
            let map = json!({"metadata": {"name": name, "ownerReferences": owned_by(owners)}});
            maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap()
        };
        let kinds = Kinds::default();
        kinds.discover(&client).await.unwrap();
        let position = kinds
            .of_owner("v1", "ConfigMap")
            .and_then(|kind| (0..).map_while(|at| kinds.get(at)).position(|known| known == kind));
        let collector = Collector { graph: Arc::default(), kinds, client };
        let former = create("former", &[]).await;
        let dependent = create("dependent", &[&former]).await;
        let uid = dependent.uid().unwrap();
        let seen = Record::new(position.unwrap(), &dependent.metadata);
        // The graph has not seen the new owner when the former one is deleted.
        let new = create("new", &[]).await;
        let owners = json!({"metadata": {"ownerReferences": owned_by(&[&former, &new])}});
        maps.patch("dependent", &PatchParams::default(), &Patch::Merge(owners)).await.unwrap();
        maps.delete("former", &DeleteParams::default()).await.unwrap();
        collector.check_owners(&uid, &seen).await.unwrap();
        let kept = maps.get("dependent").await.unwrap();
        let owners: Vec<_> = kept.owner_references().iter().map(|owner| owner.name.as_str()).collect();
        assert_eq!(owners, ["new"], "it stays, without the reference to the former owner");
        // Without any owner it is deleted, also if another field has changed since it was seen.
        maps.delete("new", &DeleteParams::default()).await.unwrap();
        let data = json!({"data": {"changed": "yes"}});
        maps.patch("dependent", &PatchParams::default(), &Patch::Merge(data)).await.unwrap();
        collector.check_owners(&uid, &Record::new(position.unwrap(), &kept.metadata)).await.unwrap();
        assert!(maps.get_opt("dependent").await.unwrap().is_none());
    }
}
