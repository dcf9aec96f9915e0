//! Runtimes: older versions of Trainer set a finalizer on those in use, which is removed, because a
//! TrainJob keeps a snapshot of its runtime.

use berth_api::json::Json;
use std::fmt::Debug;

use berth_api::frameworks::{ClusterTrainingRuntime, TrainingRuntime};
use berth_runtime::{Action, Cache, Error, Manager, ObjectKey, Reconciler};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;

use super::constants::IN_USE_FINALIZER;

/// Adds the controllers of both kinds of runtimes to the manager.
pub fn install(manager: &mut Manager) {
    let of_namespace = |client: &Client, key: &ObjectKey| Api::namespaced(client.clone(), &key.namespace);
    watch::<TrainingRuntime>(manager, "trainingruntimes", of_namespace);
    watch::<ClusterTrainingRuntime>(manager, "clustertrainingruntimes", |client, _| Api::all(client.clone()));
}

fn watch<K>(manager: &mut Manager, name: &str, api: fn(&Client, &ObjectKey) -> Api<K>)
where
    K: Resource<DynamicType = ()> + Json + Clone + Debug + Send + Sync + 'static,
{
    let runtimes = manager.cache_if_served::<K>();
    let controller = RuntimeController { client: manager.client(), runtimes: runtimes.clone(), api };
    manager.controller(name).watch_self(&runtimes).run(controller);
}

struct RuntimeController<K> {
    client: Client,
    runtimes: Cache<K>,
    api: fn(&Client, &ObjectKey) -> Api<K>,
}

impl<K> Reconciler for RuntimeController<K>
where
    K: Resource<DynamicType = ()> + Json + Clone + Debug + Send + Sync + 'static,
{
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(runtime) = self.runtimes.get(&key) else { return Ok(Action::Wait) };
        let mut kept = runtime.finalizers().to_vec();
        kept.retain(|finalizer| finalizer != IN_USE_FINALIZER);
        if kept.len() != runtime.finalizers().len() {
            let metadata = json!({"finalizers": kept, "resourceVersion": runtime.resource_version()});
            let patch = Patch::Merge(json!({"metadata": metadata}));
            (self.api)(&self.client, &key).patch(&key.name, &PatchParams::default(), &patch).await?;
        }
        Ok(Action::Wait)
    }
}
