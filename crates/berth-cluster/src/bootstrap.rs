//! Creates the initial objects of a cluster: the configured node pools and provisioning classes,
//! and the storage class `standard`.

use std::time::Duration;

use berth_api::berth::{
    ClusterConfiguration, NamedNodePool, NamedProvisioningClass, NodePool, ProvisioningClass, ProvisioningClassSpec,
};
use berth_runtime::{Clock, Manager, is_already_exists};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::storage::local::standard_class;

/// Delay before a retry, for example while the API server is not ready.
const RETRY: Duration = Duration::from_secs(1);

/// Adds the task that creates the objects.
pub fn install(manager: &mut Manager, configuration: &ClusterConfiguration) {
    let (client, clock) = (manager.client(), manager.clock());
    let (pools, classes) = (configuration.node_pools.clone(), configuration.provisioning_classes.clone());
    manager.task("bootstrap", async move {
        while let Err(error) = create_objects(&client, &pools, &classes).await {
            tracing::debug!(error = berth_runtime::brief(&error), "creating the initial objects failed, retrying");
            wait(&clock).await;
        }
    });
}

async fn wait(clock: &Clock) {
    clock.sleep(RETRY).await;
}

async fn create_objects(
    client: &Client,
    pools: &[NamedNodePool],
    classes: &[NamedProvisioningClass],
) -> Result<(), kube::Error> {
    create_storage_class(client).await?;
    create_provisioning_classes(client, classes).await?;
    create_pools(client, pools).await
}

/// Creates the provisioning classes. After a restart, the configuration of a class may have
/// changed. A class with the default configuration is not reset, because a user may have changed
/// it.
async fn create_provisioning_classes(client: &Client, classes: &[NamedProvisioningClass]) -> Result<(), kube::Error> {
    let api: Api<ProvisioningClass> = Api::all(client.clone());
    for class in classes {
        let object = ProvisioningClass::new(&class.name, class.spec.clone());
        match berth_runtime::write::create(&api, &PostParams::default(), &object).await {
            Ok(_) => {}
            Err(error) if is_already_exists(&error) => {
                if class.spec != ProvisioningClassSpec::default() {
                    let patch = Patch::Merge(json!({ "spec": class.spec }));
                    berth_runtime::write::patch(&api, &class.name, &PatchParams::default(), &patch).await?;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn create_pools(client: &Client, pools: &[NamedNodePool]) -> Result<(), kube::Error> {
    let api: Api<NodePool> = Api::all(client.clone());
    for pool in pools {
        let object = NodePool::new(&pool.name, pool.spec.clone());
        match berth_runtime::write::create(&api, &PostParams::default(), &object).await {
            Ok(_) => {}
            // After a restart, the configuration of the pool may have changed. The number of nodes
            // is not reset, because the autoscaler manages it.
            Err(error) if is_already_exists(&error) => {
                let mut spec = serde_json::to_value(&pool.spec).unwrap_or_default();
                if let Some(spec) = spec.as_object_mut() {
                    spec.remove("nodes");
                    spec.remove("resizeRequests");
                }
                berth_runtime::write::patch(
                    &api,
                    &pool.name,
                    &PatchParams::default(),
                    &Patch::Merge(&json!({ "spec": spec })),
                )
                .await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Creates the default storage class in a cluster without storage classes. A cluster with another
/// class does not get a second one. If a user deletes all classes, the next start creates the
/// default again.
async fn create_storage_class(client: &Client) -> Result<(), kube::Error> {
    let api: Api<StorageClass> = Api::all(client.clone());
    if !api.list_metadata(&ListParams::default().limit(1)).await?.items.is_empty() {
        return Ok(());
    }
    match berth_runtime::write::create(&api, &PostParams::default(), &standard_class()).await {
        Err(error) if !is_already_exists(&error) => Err(error),
        _ => Ok(()),
    }
}
