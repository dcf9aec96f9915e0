//! Nodes of a simulated cloud whose pods run as processes of this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_pod_runtime::{Device, Devices, PodUid, Result};

use super::node::Node;

impl Node {
    /// The kubelet of a hosted node, whose pods run on this machine.
    pub fn hosting(&self, name: &str) -> Self {
        Self { name: name.to_owned(), devices: Arc::new(SimulatedDevices(self.devices.clone())), ..self.clone() }
    }
}

/// The devices of hosted nodes. A container gets as many as it requests, because the scheduler
/// already counts them. They have no device files. The devices of the machine belong to its own
/// node.
struct SimulatedDevices(Arc<dyn Devices>);

impl Devices for SimulatedDevices {
    /// Resources of which the machine has devices. Containers that request them must get their
    /// environment variables.
    fn capacity(&self) -> BTreeMap<String, usize> {
        self.0.capacity()
    }

    fn assign(&self, _: &PodUid, _: &str, resource: &str, count: usize) -> Result<Vec<Device>> {
        let device =
            |number: usize| Device { resource: resource.to_owned(), id: number.to_string(), paths: Vec::new() };
        Ok((0..count).map(device).collect())
    }

    fn environment(&self, devices: &[Device]) -> Vec<(String, String)> {
        self.0.environment(devices)
    }

    fn release(&self, _: &PodUid) {}

    fn retain(&self, _: &BTreeSet<PodUid>) {}
}
