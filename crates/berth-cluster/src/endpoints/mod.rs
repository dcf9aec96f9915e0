//! The endpoint controllers: for each Service with a selector, EndpointSlices and the legacy
//! Endpoints object with the addresses of the pods that it selects, simulated pods included.
//!
//! [`plan`] and [`legacy`] decide. As upstream, a Service without endpoints has one empty slice, a
//! change is written to as few slices as possible, and slices that other programs manage are not
//! changed. This controller makes no slices for Services of type ExternalName and Services without
//! a selector. For the latter, [`mirror`] copies the Endpoints objects that users maintain. Not
//! implemented: hints for topology-aware routing.
//!
//! Source: Kubernetes documentation, "EndpointSlices", and KEP-0752, KEP-1672 (terminating
//! endpoints).

pub mod arrange;
pub mod legacy;
pub mod mirror;
pub mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::well_known::{ENDPOINT_SLICE_MANAGED_BY, SERVICE_NAME, ZONE};
use berth_runtime::{Action, Cache, Delta, Error, Index, Manager, ObjectKey, Reconciler, Writer};
use k8s_openapi::api::core::v1::{Endpoints, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use parking_lot::Mutex;

use plan::{MANAGER, is_selected, selector};

/// Period in which changes to a Service's pods are collected into one write.
const BATCH: Duration = Duration::from_millis(100);

/// Adds the controllers.
pub fn install(manager: &mut Manager) {
    mirror::install(manager);
    let (services, pods, slices) =
        (manager.cache::<Service>(), manager.cache::<Pod>(), manager.cache::<EndpointSlice>());
    let endpoints = manager.cache::<Endpoints>();
    let controller = Controller {
        services: services.clone(),
        pods: pods.clone(),
        nodes: manager.nodes(),
        of_service: slices.index(|slice| service_of(slice).map(|key| key.to_string()).into_iter().collect()),
        slices: Writer::new(manager, &slices),
        endpoints: Writer::new(manager, &endpoints),
        of_endpoints: endpoints.clone(),
        members: Members::default(),
        deleted: Arc::default(),
    };
    let by_namespace = services.index(|service| match selector(service) {
        Some(_) => service.namespace().into_iter().collect(),
        None => Vec::new(),
    });
    let (members, deleted) = (controller.members.clone(), controller.deleted.clone());
    let builder = manager.controller("endpointslice");
    let queue = builder.queue();
    builder
        .watch(&services, move |delta| {
            if delta.new.is_none() {
                deleted.lock().insert(ObjectKey::of(delta.latest().as_ref()));
            }
            []
        })
        .watch_self(&services)
        .watch_self(&endpoints)
        .watch(&slices, |delta| sides(delta).filter_map(|slice| service_of(slice)).collect::<BTreeSet<_>>())
        .watch(&pods, move |delta| {
            for service in affected(delta, &by_namespace) {
                members.add(&service, ObjectKey::of(delta.latest().as_ref()));
                queue.add_after(service, BATCH);
            }
            []
        })
        .run(controller);
}

fn sides<K>(delta: &Delta<K>) -> impl Iterator<Item = &Arc<K>> {
    [&delta.old, &delta.new].into_iter().flatten()
}

/// The Services whose slices a change to a pod may affect.
fn affected(delta: &Delta<Pod>, by_namespace: &Index<Service>) -> Vec<ObjectKey> {
    let services = by_namespace.get(&delta.latest().namespace().unwrap_or_default());
    if services.is_empty() {
        return Vec::new();
    }
    if delta.old.as_deref().map(plan::facts) == delta.new.as_deref().map(plan::facts) {
        return Vec::new();
    }
    let selecting = services.iter().filter(|service| sides(delta).any(|pod| is_selected(service, pod)));
    selecting.map(|service| ObjectKey::of(service.as_ref())).collect()
}

/// The Service of a slice that this controller manages.
fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    let labels = slice.labels();
    let is_managed = labels.get(ENDPOINT_SLICE_MANAGED_BY).is_some_and(|manager| manager == MANAGER);
    let name = labels.get(SERVICE_NAME).filter(|_| is_managed)?;
    Some(ObjectKey::namespaced(slice.namespace().unwrap_or_default(), name))
}

/// The pods that each Service may select, so that no reconcile searches a whole namespace. Pods
/// that are no longer selected are removed at the next reconcile.
#[derive(Clone, Default)]
struct Members(Arc<Mutex<BTreeMap<ObjectKey, Candidates>>>);

#[derive(Default)]
struct Candidates {
    /// Selector for which the whole namespace was searched.
    searched: Option<BTreeMap<String, String>>,
    pods: BTreeSet<ObjectKey>,
}

impl Members {
    fn add(&self, service: &ObjectKey, pod: ObjectKey) {
        self.0.lock().entry(service.clone()).or_default().pods.insert(pod);
    }

    fn forget(&self, service: &ObjectKey) {
        self.0.lock().remove(service);
    }

    /// The pods that a Service selects, ordered by name.
    fn of(&self, service: &Service, pods: &Cache<Pod>) -> Vec<Arc<Pod>> {
        let key = ObjectKey::of(service);
        let (mut candidates, search) = {
            let mut members = self.0.lock();
            let known = members.entry(key.clone()).or_default();
            let search = known.searched.as_ref() != selector(service);
            known.searched = selector(service).cloned();
            (known.pods.clone(), search)
        };
        if search {
            let selected = pods.iter_namespace(&key.namespace).filter(|pod| is_selected(service, pod));
            candidates.extend(selected.map(|pod| ObjectKey::of(pod.as_ref())));
        }
        let mut selected = Vec::new();
        let mut others = Vec::new();
        for candidate in &candidates {
            match pods.get(candidate).filter(|pod| is_selected(service, pod)) {
                Some(pod) => selected.push(pod),
                None => others.push(candidate),
            }
        }
        let mut members = self.0.lock();
        let known = members.entry(key).or_default();
        known.pods.extend(selected.iter().map(|pod| ObjectKey::of(pod.as_ref())));
        for other in others {
            // The pod may have been created again in the meantime.
            if pods.get(other).is_none_or(|pod| !is_selected(service, &pod)) {
                known.pods.remove(other);
            }
        }
        selected
    }
}

struct Controller {
    services: Cache<Service>,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    of_service: Index<EndpointSlice>,
    slices: Writer<EndpointSlice>,
    endpoints: Writer<Endpoints>,
    of_endpoints: Cache<Endpoints>,
    members: Members,
    /// Deleted Services. Their Endpoints objects are deleted as well, even if a user made them.
    deleted: Arc<Mutex<BTreeSet<ObjectKey>>>,
}

impl Controller {
    fn zone(&self, node: &str) -> Option<String> {
        let node = self.nodes.get(&ObjectKey::cluster(node))?;
        node.labels().get(ZONE).cloned()
    }
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let service = self.services.get(&key);
        let was_deleted = self.deleted.lock().contains(&key);
        if service.is_none() {
            self.remove_endpoints(&key, was_deleted).await?;
        }
        self.deleted.lock().remove(&key);
        let Some(service) = service.filter(|service| selector(service).is_some()) else {
            // The garbage collector deletes the slices of a deleted Service. If a Service lost its
            // selector, its slices are kept, because from then on the user maintains its endpoints.
            self.members.forget(&key);
            return Ok(Action::Wait);
        };
        if service.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Wait);
        }
        let pods = self.members.of(&service, &self.pods);
        let slices = self.of_service.get(&key.to_string());
        apply(&self.slices, plan::plan(&service, &pods, &slices, |node| self.zone(node))).await?;
        let known = self.of_endpoints.get(&key);
        match (legacy::plan(&service, &pods, known.as_deref()), known) {
            (Some(wanted), None) => drop(self.endpoints.create(&wanted).await?),
            (Some(wanted), Some(_)) => drop(self.endpoints.replace(&wanted).await?),
            (None, _) => {}
        }
        Ok(Action::Wait)
    }
}

impl Controller {
    /// Deletes the Endpoints object of a Service that does not exist. Unless `all` is set, only an
    /// object that this controller made is deleted.
    async fn remove_endpoints(&self, key: &ObjectKey, all: bool) -> Result<(), Error> {
        let is_ours = |it: &Endpoints| it.labels().get(legacy::MANAGED_BY).is_some_and(|by| by == legacy::MANAGER);
        if let Some(known) = self.of_endpoints.get(key).filter(|known| all || is_ours(known)) {
            self.endpoints.delete(&known).await?;
        }
        Ok(())
    }
}

/// Carries out the writes of a plan.
async fn apply(slices: &Writer<EndpointSlice>, plan: arrange::Plan) -> Result<(), Error> {
    for slice in &plan.create {
        slices.create(slice).await?;
    }
    for slice in &plan.update {
        slices.replace(slice).await?;
    }
    for slice in &plan.delete {
        slices.delete(slice).await?;
    }
    Ok(())
}
