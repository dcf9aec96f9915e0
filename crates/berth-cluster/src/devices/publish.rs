//! Publishes the devices of simulated nodes: one ResourceSlice per node and driver, as the driver's
//! plugin on the node does, and the device classes that pools name.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::berth::{NodePool, PoolDevices};
use berth_api::devices::{pool_classes, published};
use berth_runtime::{
    Action, Cache, Error, Index, Manager, ObjectKey, Reconciler, is_already_exists, is_conflict, is_not_found, owned_by,
};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{Device, DeviceClass, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};

use crate::pools::{POOL_LABEL, is_ready};

/// Adds the controller.
pub(super) fn install(manager: &mut Manager) {
    let pools: Cache<NodePool> = manager.cache();
    let nodes = manager.nodes();
    let slices: Cache<ResourceSlice> = manager.cache();
    let classes: Cache<DeviceClass> = manager.cache();
    let by_pool = nodes.index(|node| node.labels().get(POOL_LABEL).cloned().into_iter().collect());
    let by_node = slices.index(|slice| node_owner(slice).map(str::to_owned).into_iter().collect());
    let (has_devices, client) = (pools.clone(), manager.client());
    manager
        .controller("device-slices")
        .watch(&nodes, move |delta| {
            // Most pools declare no devices.
            let node = delta.new.as_ref()?;
            let pool = has_devices.get(&ObjectKey::cluster(node.labels().get(POOL_LABEL)?.as_str()))?;
            let became_ready = delta.old.as_ref().is_none_or(|old| is_ready(old) != is_ready(node));
            (became_ready && !pool.spec.devices.is_empty()).then(|| ObjectKey::cluster(node.name_any()))
        })
        .watch(&pools, move |delta| {
            let devices = |pool: &Arc<NodePool>| pool.spec.devices.clone();
            let changed = delta.old.as_ref().map(devices).unwrap_or_default()
                != delta.new.as_ref().map(devices).unwrap_or_default();
            if changed { by_pool.keys(&delta.latest().name_any()) } else { Vec::new() }
        })
        .watch(&slices, |delta| node_owner(delta.latest()).map(ObjectKey::cluster))
        .run(Publisher { client: client.clone(), pools: pools.clone(), nodes, by_node, slices });
    let by_class = pools.index(|pool| pool.spec.devices.iter().filter_map(|it| it.device_class.clone()).collect());
    manager
        .controller("device-classes")
        .watch_self(&pools)
        .watch(
            &classes,
            move |delta| {
                if delta.new.is_none() { by_class.keys(&delta.latest().name_any()) } else { Vec::new() }
            },
        )
        .run(ClassMaker { client, pools, classes });
}

/// The node for which this controller made the slice.
fn node_owner(slice: &ResourceSlice) -> Option<&str> {
    slice.labels().get(POOL_LABEL)?;
    slice.spec.node_name.as_deref()
}

/// The slices that a node of a pool publishes once it is ready, by name. The pool of an invalid
/// specification publishes none.
pub fn slices_of(node: &Node, pool: &NodePool) -> BTreeMap<String, ResourceSlice> {
    let devices = &pool.spec.devices;
    if devices.is_empty() || !pool.spec.problems("spec").is_empty() {
        return BTreeMap::new();
    }
    wanted(node, &pool.name_any(), devices)
}

fn wanted(node: &Node, pool: &str, devices: &[PoolDevices]) -> BTreeMap<String, ResourceSlice> {
    let slice = |(driver, devices): (&str, Vec<Device>)| {
        let name = format!("{}-{driver}", node.name_any());
        let owner = OwnerReference { block_owner_deletion: None, ..owned_by(node) };
        let slice = ResourceSlice {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some([(POOL_LABEL.to_owned(), pool.to_owned())].into()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            spec: ResourceSliceSpec {
                driver: driver.to_owned(),
                node_name: Some(node.name_any()),
                pool: ResourcePool { name: node.name_any(), generation: 1, resource_slice_count: 1 },
                devices: Some(devices),
                ..ResourceSliceSpec::default()
            },
        };
        (name, slice)
    };
    published(devices).into_iter().map(slice).collect()
}

struct Publisher {
    client: Client,
    pools: Cache<NodePool>,
    nodes: Cache<Node>,
    by_node: Index<ResourceSlice>,
    slices: Cache<ResourceSlice>,
}

impl Reconciler for Publisher {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        // The garbage collector deletes the slices of a node that does not exist.
        let Some(node) = self.nodes.get(&key) else { return Ok(Action::Wait) };
        let pool = node.labels().get(POOL_LABEL).and_then(|pool| self.pools.get(&ObjectKey::cluster(pool.as_str())));
        let wanted = pool.map(|pool| slices_of(&node, &pool)).unwrap_or_default();
        let api: Api<ResourceSlice> = Api::all(self.client.clone());
        for slice in self.by_node.get(&key.name).iter().filter(|slice| !wanted.contains_key(&slice.name_any())) {
            match berth_runtime::write::delete(&api, &slice.name_any(), &DeleteParams::default()).await {
                Ok(_) => self.slices.observe_deleted(slice),
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Like a driver's plugin, the node publishes its devices once it runs.
        if !is_ready(&node) {
            return Ok(Action::Wait);
        }
        for (name, slice) in wanted {
            self.publish(&api, &name, slice).await?;
        }
        Ok(Action::Wait)
    }
}

/// Creates the device classes that pools name and that do not exist, also for pools without nodes:
/// pods that request devices make such a pool grow. Classes of users stay as they are.
struct ClassMaker {
    client: Client,
    pools: Cache<NodePool>,
    classes: Cache<DeviceClass>,
}

impl Reconciler for ClassMaker {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(pool) = self.pools.get(&key).filter(|pool| pool.spec.problems("spec").is_empty()) else {
            return Ok(Action::Wait);
        };
        for class in pool_classes(&pool.spec.devices) {
            if self.classes.get(&ObjectKey::of(&class)).is_some() {
                continue;
            }
            let api: Api<DeviceClass> = Api::all(self.client.clone());
            match berth_runtime::write::create(&api, &PostParams::default(), &class).await {
                Ok(created) => self.classes.observe(created),
                Err(error) if is_already_exists(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Action::Wait)
    }
}

impl Publisher {
    /// Creates the slice, or publishes its changed devices as a new generation of the pool.
    async fn publish(&self, api: &Api<ResourceSlice>, name: &str, mut slice: ResourceSlice) -> Result<(), Error> {
        let written = match self.slices.get(&ObjectKey::cluster(name)) {
            Some(known) if known.spec.devices == slice.spec.devices => return Ok(()),
            Some(known) => {
                let mut changed = known.as_ref().clone();
                slice.spec.pool.generation = known.spec.pool.generation.saturating_add(1);
                changed.spec = slice.spec;
                berth_runtime::write::replace(api, name, &PostParams::default(), &changed).await
            }
            None => berth_runtime::write::create(api, &PostParams::default(), &slice).await,
        };
        match written {
            Ok(written) => self.slices.observe(written),
            // The watch shows the newer state, and triggers another reconcile.
            Err(error) if is_already_exists(&error) || is_conflict(&error) || is_not_found(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_node_has_one_slice_per_driver_with_numbered_devices() {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n1", "uid": "u"}})).expect("a node");
        let group = |driver: &str, count: i32, numa: i64| -> PoolDevices {
            serde_json::from_value(json!({"driver": driver, "name": "gpu", "count": count,
                "attributes": {"numa": {"int": numa}}, "capacity": {"memory": "80Gi"}}))
            .expect("devices")
        };
        let groups = [group("gpu.example.com", 2, 0), group("gpu.example.com", 1, 1), group("nic.example.com", 1, 0)];
        let slices = wanted(&node, "pool", &groups);
        assert_eq!(slices.keys().collect::<Vec<_>>(), ["n1-gpu.example.com", "n1-nic.example.com"]);
        let slice: Value = serde_json::to_value(&slices["n1-gpu.example.com"]).expect("JSON");
        assert_eq!(slice["spec"]["nodeName"], "n1");
        let devices = slice["spec"]["devices"].as_array().expect("devices");
        let numa = |device: &Value| {
            format!("{}@{}", device["name"].as_str().unwrap_or_default(), device["attributes"]["numa"]["int"])
        };
        assert_eq!(devices.iter().map(numa).collect::<Vec<_>>(), ["gpu-0@0", "gpu-1@0", "gpu-2@1"]);
        assert_eq!(devices[0]["capacity"]["memory"]["value"], "80Gi");
        assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "u");
    }
}
