//! The parts of a RayCluster on which its pods, Services and other objects depend: its metadata and
//! its spec.

use std::collections::BTreeMap;

use berth_api::frameworks::RayCluster;
use berth_runtime::owned_by_named;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::ray::constants::{API_VERSION, FT_ENABLED, GCS_PORT, ORIGIN_KIND, OVERWRITE_COMMAND};
use crate::ray::names;
use crate::ray::types::{GcsFaultToleranceOptions, RayClusterSpec};

static NONE: BTreeMap<String, String> = BTreeMap::new();

/// Kind of the object for which a RayCluster was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creator {
    /// No other object: a user created the RayCluster directly.
    RayCluster,
    /// A RayJob.
    RayJob,
    /// A RayService.
    RayService,
}

impl Creator {
    /// The kind's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RayCluster => "RayCluster",
            Self::RayJob => "RayJob",
            Self::RayService => "RayService",
        }
    }
}

/// Metadata and spec of one RayCluster.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Name.
    pub name: &'a str,
    /// Namespace.
    pub namespace: &'a str,
    /// UID.
    pub uid: &'a str,
    /// Labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Annotations.
    pub annotations: &'a BTreeMap<String, String>,
    /// Desired state.
    pub spec: &'a RayClusterSpec,
}

impl<'a> Facts<'a> {
    /// The facts of a cluster. `spec` is its parsed spec.
    pub fn new(cluster: &'a RayCluster, spec: &'a RayClusterSpec) -> Self {
        let metadata = &cluster.metadata;
        Self {
            name: metadata.name.as_deref().unwrap_or_default(),
            namespace: metadata.namespace.as_deref().unwrap_or("default"),
            uid: metadata.uid.as_deref().unwrap_or_default(),
            labels: metadata.labels.as_ref().unwrap_or(&NONE),
            annotations: metadata.annotations.as_ref().unwrap_or(&NONE),
            spec,
        }
    }

    /// `namespace/name`, for messages.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The owner reference of the cluster's objects.
    pub fn owner(&self) -> OwnerReference {
        owned_by_named(API_VERSION, Creator::RayCluster.as_str(), self.name, self.uid)
    }

    /// Kind of the object for which the cluster was created.
    pub fn creator(&self) -> Creator {
        match self.labels.get(ORIGIN_KIND).map(String::as_str) {
            Some("RayJob") => Creator::RayJob,
            Some("RayService") => Creator::RayService,
            _ => Creator::RayCluster,
        }
    }

    /// Name of the head's Service.
    pub fn head_service(&self) -> String {
        names::head_service(self.name, self.spec)
    }

    /// DNS name of the head's Service.
    pub fn head_address(&self) -> String {
        names::dns_name(&self.head_service(), self.namespace)
    }

    /// Port of the head's GCS (Global Control Store).
    pub fn head_port(&self) -> String {
        let given = self.spec.head_group_spec.ray_start_params.get("port");
        given.cloned().unwrap_or_else(|| GCS_PORT.to_string())
    }

    /// True if the state of the GCS is kept in a persistent store, so that it survives the loss of
    /// the head.
    pub fn is_fault_tolerant(&self) -> bool {
        is_true(self.annotations, FT_ENABLED) || self.spec.gcs_fault_tolerance_options.is_some()
    }

    /// Options of the persistent store, if it is embedded in the head: a volume of the head pod.
    pub fn embedded_store(&self) -> Option<&'a GcsFaultToleranceOptions> {
        self.spec.gcs_fault_tolerance_options.as_ref().filter(|options| options.is_embedded())
    }

    /// Name of the PersistentVolumeClaim of the embedded store.
    pub fn store_claim(&self) -> String {
        let given = self.embedded_store().and_then(|options| options.storage.as_ref());
        match given {
            Some(storage) if !storage.claim_name.is_empty() => storage.claim_name.clone(),
            _ => format!("{}-gcs-pvc", self.name),
        }
    }

    /// True if the containers keep the commands of their templates.
    pub fn keeps_commands(&self) -> bool {
        is_true(self.annotations, OVERWRITE_COMMAND)
    }

    /// Name of the service account of the head pod, if the autoscaler runs in it.
    pub fn autoscaler_account(&self) -> String {
        let given =
            self.spec.head_group_spec.template.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
        names::checked(given.filter(|name| !name.is_empty()).unwrap_or(self.name))
    }

    /// Name of the Secret with the token by which Ray's clients authenticate.
    pub fn token_secret(&self) -> String {
        let given = self.spec.auth_options.as_ref().and_then(|options| options.secret_name.as_deref());
        given.filter(|name| !name.is_empty()).map_or_else(|| names::checked(self.name), str::to_owned)
    }
}

/// True if the value of this key is `true`, in upper or lower case.
fn is_true(map: &BTreeMap<String, String>, key: &str) -> bool {
    map.get(key).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}
