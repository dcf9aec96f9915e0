//! Devices of dynamic resource allocation: those that pods claim, and those of machines.

use std::collections::BTreeMap;

use berth_api::berth::PoolDevices;
use berth_api::devices::{pool_classes, published};
use berth_controllers::devices::Devices;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceSlice, ResourceSliceSpec};

use super::Objects;

impl Objects {
    /// Counts the devices of workloads and machines as the configuration maps them. Classes that a
    /// pool would create exist.
    pub fn devices(&self) -> Devices {
        let mut classes: BTreeMap<String, DeviceClass> = BTreeMap::new();
        for pool in self.node_pools.values() {
            let made = pool_classes(&pool.object.spec.devices);
            classes.extend(made.into_iter().map(|class| (class.metadata.name.clone().unwrap_or_default(), class)));
        }
        classes.extend(self.device_classes.clone());
        let mut slices: Vec<ResourceSlice> = self.device_slices.values().cloned().collect();
        // A pool of files has published nothing yet: its machines have what it declares.
        let has_node = |pool: &str| self.nodes.values().any(|node| super::machines::is_of_pool(&node.object, pool));
        let silent = self.node_pools.iter().filter(|(name, _)| !has_node(name));
        for (number, (_, pool)) in (0..).zip(silent) {
            let machines = pool.object.spec.nodes_max();
            for machine in 0..machines.min(MACHINES_MAX) {
                slices.extend(of_machine(&pool.object.spec.devices, &format!("pool-{number}-{machine}")));
            }
        }
        let templates = self.claim_templates.values().cloned();
        let mappings = &self.config.resources.device_class_mappings;
        Devices::of_objects(mappings, &self.config.gates(), templates, classes.into_values(), slices)
    }
}

/// Most machines of a pool whose devices selectors are compared with.
const MACHINES_MAX: i32 = 64;

/// What a machine with these groups would publish.
pub fn of_machine(groups: &[PoolDevices], name: &str) -> Vec<ResourceSlice> {
    let slice = |(driver, devices): (&str, _)| {
        let mut slice = ResourceSlice {
            spec: ResourceSliceSpec {
                driver: driver.to_owned(),
                node_name: Some(name.to_owned()),
                devices: Some(devices),
                ..ResourceSliceSpec::default()
            },
            ..ResourceSlice::default()
        };
        slice.metadata.name = Some(format!("{name}-{driver}"));
        slice
    };
    published(groups).into_iter().map(slice).collect()
}
