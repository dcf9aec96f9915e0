//! Resolves a pod's spec: replaces references to ConfigMaps, Secrets, fields, claims and variables
//! with values.
//!
//! All results depend on cached objects only. An error is the message that a kubelet shows in a
//! container's waiting state or in an event.

mod container;
mod devices;
mod env;
mod expand;
mod fields;
mod files;
mod images;
mod limits;
mod sandbox;
mod security;
mod services;
mod volumes;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use berth_runtime::{Cache, Manager};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, PodStatus, Secret, Service};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::kubelet::options::ServiceAddresses;

pub use container::config;
pub use devices::wanted_devices;
pub use env::environment;
pub use images::{image_request, image_volumes, pull_secrets};
pub use limits::{container_limits, pod_limits};
pub use sandbox::sandbox;
pub use volumes::{TokenSource, is_refreshed, token_sources, volume, volumes};

/// The objects that pods refer to.
#[derive(Clone)]
pub struct Objects {
    /// ConfigMaps.
    pub config_maps: Cache<ConfigMap>,
    /// Secrets.
    pub secrets: Cache<Secret>,
    /// Services.
    pub services: Cache<Service>,
    /// PersistentVolumeClaims.
    pub claims: Cache<PersistentVolumeClaim>,
    /// PersistentVolumes.
    pub volumes: Cache<PersistentVolume>,
}

impl Objects {
    /// The objects of the manager's API server.
    pub fn new(manager: &mut Manager) -> Self {
        Self {
            config_maps: manager.cache(),
            secrets: manager.cache(),
            services: manager.cache(),
            claims: manager.cache(),
            volumes: manager.cache(),
        }
    }
}

/// Quantities by resource.
pub type Amounts = BTreeMap<String, Quantity>;

/// Input for resolving a pod's values.
pub struct Context<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its status, with its addresses.
    pub status: &'a PodStatus,
    /// The objects that it refers to.
    pub objects: &'a Objects,
    /// Allocatable resources of its node. They are the limits of containers without limits.
    pub allocatable: &'a Amounts,
    /// Addresses at which it reaches Services.
    pub services: &'a dyn ServiceAddresses,
}

impl Context<'_> {
    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }
}
