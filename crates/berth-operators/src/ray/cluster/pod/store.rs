//! The persistent store of the head's state: Redis, or a volume of the head pod. With it, a new
//! head continues the work of a lost one.

use k8s_openapi::api::core::v1::{Container, EnvVar, PersistentVolumeClaimVolumeSource, PodSpec, Volume, VolumeMount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{NodeType, env};
use crate::ray::cluster::facts::Facts;
use crate::ray::constants::{FT_ENABLED, STORAGE_NAMESPACE};
use crate::ray::types::{GcsFaultToleranceOptions, RedisCredential};

/// Volume and mount path of the embedded store.
const VOLUME: (&str, &str) = ("gcs-storage", "/data/gcs");

/// Configures the pod of a node for the store.
pub fn add(facts: &Facts<'_>, node_type: NodeType, metadata: &mut ObjectMeta, spec: &mut PodSpec) {
    let is_fault_tolerant = facts.is_fault_tolerant();
    if node_type == NodeType::Head {
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(FT_ENABLED.to_owned(), is_fault_tolerant.to_string());
    }
    let Some(ray) = spec.containers.first_mut().filter(|_| is_fault_tolerant) else { return };
    if node_type == NodeType::Worker {
        // A worker must survive a restart of the head, which may take minutes.
        env::push_default(ray, env::value("RAY_gcs_rpc_server_reconnect_timeout_s", "600"));
    } else if let Some(options) = facts.embedded_store() {
        env::push_default(ray, env::value("RAY_gcs_storage", "rocksdb"));
        env::push_default(ray, env::value("RAY_gcs_storage_path", VOLUME.1));
        mount(facts, options, spec);
    } else {
        add_redis(facts, metadata, ray);
    }
}

fn mount(facts: &Facts<'_>, options: &GcsFaultToleranceOptions, spec: &mut PodSpec) {
    let Some(ray) = spec.containers.first_mut() else { return };
    let sub_path = options.storage.as_ref().map(|storage| storage.sub_path.clone()).filter(|path| !path.is_empty());
    ray.volume_mounts.get_or_insert_default().push(VolumeMount {
        name: VOLUME.0.to_owned(),
        mount_path: VOLUME.1.to_owned(),
        sub_path,
        ..VolumeMount::default()
    });
    let claim = PersistentVolumeClaimVolumeSource { claim_name: facts.store_claim(), read_only: None };
    spec.volumes.get_or_insert_default().push(Volume {
        name: VOLUME.0.to_owned(),
        persistent_volume_claim: Some(claim),
        ..Volume::default()
    });
}

fn add_redis(facts: &Facts<'_>, metadata: &mut ObjectMeta, ray: &mut Container) {
    let options = facts.spec.gcs_fault_tolerance_options.as_ref();
    let of_options = options.map(|options| options.external_storage_namespace.as_str()).filter(|name| !name.is_empty());
    let of_cluster = facts.annotations.get(STORAGE_NAMESPACE).map(String::as_str);
    let namespace = of_options.or(of_cluster).unwrap_or(facts.uid).to_owned();
    metadata.annotations.get_or_insert_default().insert(STORAGE_NAMESPACE.to_owned(), namespace.clone());
    env::push_default(ray, env::value("RAY_external_storage_namespace", namespace));
    if let Some(options) = options {
        env::push(ray, env::value("RAY_REDIS_ADDRESS", options.redis_address.clone()));
        for (name, given) in [("REDIS_USERNAME", &options.redis_username), ("REDIS_PASSWORD", &options.redis_password)]
        {
            if let Some(given) = given {
                env::push(ray, credential(name, given));
            }
        }
    } else if let Some(password) = facts.spec.head_group_spec.ray_start_params.get("redis-password") {
        env::push_default(ray, env::value("REDIS_PASSWORD", password.clone()));
    }
}

fn credential(name: &str, given: &RedisCredential) -> EnvVar {
    match &given.value_from {
        Some(source) => EnvVar { name: name.to_owned(), value: None, value_from: Some(source.clone()) },
        None => env::value(name, given.value.clone()),
    }
}
