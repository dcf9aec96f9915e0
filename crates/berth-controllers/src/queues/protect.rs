//! The controllers of flavors, topologies and admission checks: a finalizer keeps them while queues
//! use them.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use berth_api::json::Json;
use berth_api::kueue::constants;
use berth_api::kueue::v1beta2::{AdmissionCheck, ClusterQueue, ResourceFlavor, Topology};
use berth_runtime::{Action, Cache, Error, Manager, ObjectKey, Reconciler};
use kube::core::ClusterResourceScope;
use kube::{Api, Client, Resource, ResourceExt};

use crate::execute::{self, Part, patch};
use crate::jobs::reconcile::remove_finalizer;
use crate::stores::Stores;

/// A kind of objects that a finalizer keeps.
trait Protected:
    Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Debug + Json + PartialEq + Send + Sync + 'static
{
}

impl Protected for AdmissionCheck {}
impl Protected for ResourceFlavor {}
impl Protected for Topology {}

/// Returns true if the object of this name is in use.
type InUse = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// The object with its finalizer added or removed; `None` if it needs no change.
pub fn guarded<K: Resource<DynamicType = ()> + Clone>(object: &K, in_use: bool) -> Option<K> {
    let mut wanted = object.clone();
    let has = object.finalizers().iter().any(|finalizer| finalizer == constants::RESOURCE_IN_USE_FINALIZER);
    if object.meta().deletion_timestamp.is_some() {
        return (has && !in_use && remove_finalizer(&mut wanted)).then_some(wanted);
    }
    (!has).then(|| {
        wanted.finalizers_mut().push(constants::RESOURCE_IN_USE_FINALIZER.to_owned());
        wanted
    })
}

/// True if the cluster queue uses this flavor.
pub fn uses_flavor(queue: &ClusterQueue, flavor: &str) -> bool {
    queue.spec.resource_groups.iter().any(|group| group.flavors.iter().any(|quotas| quotas.name == flavor))
}

fn uses_check(queue: &ClusterQueue, check: &str) -> bool {
    let strategy = queue.spec.admission_checks_strategy.as_ref();
    strategy.is_some_and(|strategy| strategy.admission_checks.iter().any(|rule| rule.name == check))
}

/// True if this change to an object can affect its finalizer: its creation, or changes after its
/// deletion started.
pub fn concerns<K: Resource>(old: Option<&K>, new: Option<&K>) -> bool {
    new.is_some_and(|new| old.is_none() || new.meta().deletion_timestamp.is_some())
}

/// True if this change to a cluster queue can affect which flavors are in use.
pub fn changes_flavors(old: Option<&ClusterQueue>, new: Option<&ClusterQueue>) -> bool {
    let flavors = |queue: &ClusterQueue| -> BTreeSet<String> {
        let groups = queue.spec.resource_groups.iter();
        groups.flat_map(|group| &group.flavors).map(|quotas| quotas.name.clone()).collect()
    };
    old.is_some_and(|old| new.is_none_or(|new| flavors(old) != flavors(new)))
}

/// Adds the controllers of flavors, topologies and checks to the manager.
pub fn install(manager: &mut Manager, stores: &Stores) {
    let queues = stores.cluster_queues.clone();
    let in_use: InUse = Arc::new(move |name| queues.list().iter().any(|queue| uses_flavor(queue, name)));
    install_one::<ResourceFlavor, ClusterQueue>(
        manager,
        "resource-flavor",
        stores.flavors.clone(),
        &stores.cluster_queues,
        changes_flavors,
        in_use,
    );
    let queues = stores.cluster_queues.clone();
    let in_use: InUse = Arc::new(move |name| queues.list().iter().any(|queue| uses_check(queue, name)));
    let checks = stores.admission_checks.clone();
    let queues = &stores.cluster_queues;
    install_one::<AdmissionCheck, ClusterQueue>(manager, "admission-check", checks, queues, |_, _| true, in_use);
    let flavors = stores.flavors.clone();
    let in_use: InUse =
        Arc::new(move |name| flavors.list().iter().any(|flavor| flavor.spec.topology_name.as_deref() == Some(name)));
    let topologies: Cache<Topology> = manager.cache();
    install_one::<Topology, ResourceFlavor>(manager, "topology", topologies, &stores.flavors, |_, _| true, in_use);
}

fn install_one<K: Protected, U: Resource<DynamicType = ()> + Send + Sync + 'static>(
    manager: &mut Manager,
    name: &str,
    objects: Cache<K>,
    users: &Cache<U>,
    changes_use: fn(Option<&U>, Option<&U>) -> bool,
    in_use: InUse,
) {
    let client = manager.client();
    let all = objects.clone();
    manager
        .controller(name)
        .watch(&objects, |delta| {
            concerns(delta.old.as_deref(), delta.new.as_deref()).then(|| ObjectKey::of(delta.latest().as_ref()))
        })
        // A change to a user of the object matters only if the object is being deleted.
        .watch(users, move |delta| {
            if !changes_use(delta.old.as_deref(), delta.new.as_deref()) {
                return Vec::new();
            }
            let going = all.list().into_iter().filter(|object| object.meta().deletion_timestamp.is_some());
            going.map(|object| ObjectKey::of(object.as_ref())).collect::<Vec<_>>()
        })
        .run(Controller { client, objects, in_use });
}

struct Controller<K> {
    client: Client,
    objects: Cache<K>,
    in_use: InUse,
}

impl<K: Protected> Reconciler for Controller<K> {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(object) = self.objects.get(&key) else { return Ok(Action::Wait) };
        let Some(wanted) = guarded(object.as_ref(), (self.in_use)(&key.name)) else { return Ok(Action::Wait) };
        let api: Api<K> = Api::all(self.client.clone());
        let version = object.resource_version();
        if let Some(answer) = patch(&api, object.as_ref(), &wanted, Part::Main, version.as_deref()).await? {
            execute::observe(&self.objects, answer);
        }
        Ok(Action::Wait)
    }
}
