//! ServiceAccount: pods run as the service account `default` unless they name another, and only as
//! one that exists. They get its pull secrets. A volume holds its token, the cluster's CA
//! certificate and the namespace, unless the pod or the account opts out or this server issues no
//! tokens.
//!
//! Source of the behaviour: Kubernetes documentation, "Managing Service Accounts" and "Configure
//! Service Accounts for Pods".

use std::sync::Arc;

use berth_apimachinery::meta;
use berth_apimachinery::status::Status;
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Map, Value, json};

use super::{AdmissionPlugin, AdmissionRequest, forbidden, is_pod_create};
use crate::strategy::MIRROR;
use crate::{ids, strategy};

const DEFAULT: &str = "default";
/// Prefix of the names of token volumes.
const VOLUME: &str = "kube-api-access-";
/// Path at which containers expect the token volume.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// JSON pointers to the secret reference of each volume type.
const SECRET_OF_VOLUME: [&str; 10] = [
    "/secret",
    "/azureFile/secretName",
    "/cephfs/secretRef",
    "/cinder/secretRef",
    "/csi/nodePublishSecretRef",
    "/flexVolume/secretRef",
    "/iscsi/secretRef",
    "/rbd/secretRef",
    "/scaleIO/secretRef",
    "/storageos/secretRef",
];
/// Lifetime of a mounted token: an hour and seven seconds. The seconds distinguish it from a token
/// that a client requested.
const EXPIRATION_SECONDS: u32 = 3607;

pub(crate) struct ServiceAccounts {
    /// Generates the suffixes of volume names; `None` if no tokens are mounted. Separate from the
    /// generator of pod names, which must not depend on the number of token volumes.
    names: Option<Mutex<SmallRng>>,
}

impl ServiceAccounts {
    /// The plugin of a server with this seed, with or without tokens.
    pub(crate) fn new(seed: u64, has_tokens: bool) -> ServiceAccounts {
        ServiceAccounts { names: has_tokens.then(|| Mutex::new(SmallRng::seed_from_u64(seed.rotate_left(32)))) }
    }
}

impl AdmissionPlugin for ServiceAccounts {
    fn name(&self) -> &str {
        "ServiceAccount"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !is_pod_create(request) {
            return Ok(());
        }
        let Some(object) = &mut request.object else { return Ok(()) };
        let is_mirror = meta::annotation(object, MIRROR).is_some();
        let spec = strategy::spec_mut(object);
        strategy::pod_service_account(spec);
        if is_mirror {
            return self.validate(request);
        }
        let name = spec.get("serviceAccountName").and_then(Value::as_str).unwrap_or_default().to_owned();
        if name.is_empty() {
            spec.insert("serviceAccountName".to_owned(), DEFAULT.into());
            spec.insert("serviceAccount".to_owned(), DEFAULT.into());
        }
        let name = if name.is_empty() { DEFAULT } else { &name };
        let account: Option<Arc<Value>> = request.objects.get("", "serviceaccounts", request.namespace, name);
        if account.is_none() && name != DEFAULT {
            let why = format!(
                "error looking up service account {}/{name}: serviceaccount \"{name}\" not found",
                request.namespace
            );
            return Err(forbidden(request, &why));
        }
        // A controller creates the default account after its namespace, so it may not exist yet.
        let account = account.as_deref().unwrap_or(&Value::Null);
        let wants = |of: &Value| of["automountServiceAccountToken"].as_bool();
        if let Some(names) = &self.names
            && spec.get("automountServiceAccountToken").and_then(Value::as_bool).or(wants(account)).unwrap_or(true)
        {
            mount_token(spec, || format!("{VOLUME}{}", ids::suffix(&mut names.lock())));
        }
        let secrets = &account["imagePullSecrets"];
        let is_empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
        if spec.get("imagePullSecrets").is_none_or(is_empty) && !is_empty(secrets) {
            spec.insert("imagePullSecrets".to_owned(), secrets.clone());
        }
        Ok(())
    }

    fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        let Some(object) = &request.object else { return Ok(()) };
        if !is_pod_create(request) || meta::annotation(object, MIRROR).is_none() {
            return Ok(());
        }
        match forbidden_reference(&object["spec"]) {
            Some(what) => Err(forbidden(request, &format!("a mirror pod may not {what}"))),
            None => Ok(()),
        }
    }
}

/// The reference of a mirror pod to an API object that it may not use; `None` if it has none.
fn forbidden_reference(spec: &Value) -> Option<&'static str> {
    let list = |of: &Value, field: &str| of[field].as_array().cloned().unwrap_or_default();
    if ["serviceAccountName", "serviceAccount"]
        .iter()
        .any(|field| spec[field].as_str().is_some_and(|it| !it.is_empty()))
    {
        return Some("reference service accounts");
    }
    let mut containers =
        ["initContainers", "containers", "ephemeralContainers"].iter().flat_map(|field| list(spec, field));
    let by_containers = containers.any(|container| {
        list(&container, "env").iter().any(|variable| !variable["valueFrom"]["secretKeyRef"].is_null())
            || list(&container, "envFrom").iter().any(|source| !source["secretRef"].is_null())
    });
    let volumes = list(spec, "volumes");
    let sources: Vec<Value> = volumes.iter().flat_map(|volume| list(&volume["projected"], "sources")).collect();
    if by_containers
        || !list(spec, "imagePullSecrets").is_empty()
        || volumes.iter().any(|volume| SECRET_OF_VOLUME.iter().any(|path| volume.pointer(path).is_some_and(is_there)))
        || sources.iter().any(|source| is_there(&source["secret"]))
    {
        return Some("reference secrets");
    }
    sources
        .iter()
        .any(|source| is_there(&source["serviceAccountToken"]))
        .then_some("use ServiceAccountToken volume projections")
}

fn is_there(value: &Value) -> bool {
    !value.is_null()
}

/// Mounts the token volume in every container that has no other mount at its path.
fn mount_token(spec: &mut Map<String, Value>, new_name: impl FnOnce() -> String) {
    let volumes = spec.get("volumes").and_then(Value::as_array).into_iter().flatten();
    let known = volumes.filter_map(|volume| volume["name"].as_str()).find(|name| name.starts_with(VOLUME));
    let (name, is_there) = match known {
        Some(name) => (name.to_owned(), true),
        None => (new_name(), false),
    };
    let mut is_needed = false;
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(container) = container.as_object_mut() else { continue };
            let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
            if mounts.is_null() {
                *mounts = json!([]);
            }
            let Value::Array(mounts) = mounts else { continue };
            if mounts.iter().all(|mount| mount["mountPath"] != MOUNT_PATH) {
                mounts.push(json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH}));
                is_needed = true;
            }
        }
    }
    if is_needed && !is_there {
        let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
        if volumes.is_null() {
            *volumes = json!([]);
        }
        if let Value::Array(volumes) = volumes {
            volumes.push(json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
                {"serviceAccountToken": {"expirationSeconds": EXPIRATION_SECONDS, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [
                    {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
            ]}}));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_mounted_once_in_containers_without_another_mount() {
        let mut spec = json!({"containers": [{"name": "a"}, {"name": "b", "volumeMounts": [
            {"name": "own", "mountPath": MOUNT_PATH}]}], "initContainers": [{"name": "i", "volumeMounts": null}]});
        let map = spec.as_object_mut().expect("an object");
        mount_token(map, || "kube-api-access-abcde".to_owned());
        mount_token(map, || panic!("the volume exists"));
        let mount = json!([{"name": "kube-api-access-abcde", "readOnly": true, "mountPath": MOUNT_PATH}]);
        assert_eq!(spec["containers"][0]["volumeMounts"], mount);
        assert_eq!(spec["containers"][1]["volumeMounts"][0]["name"], "own");
        assert_eq!(spec["initContainers"][0]["volumeMounts"], mount);
        assert_eq!(spec["volumes"].as_array().map(Vec::len), Some(1));

        let mut own =
            json!({"containers": [{"name": "a", "volumeMounts": [{"name": "own", "mountPath": MOUNT_PATH}]}]});
        let before = own.clone();
        mount_token(own.as_object_mut().expect("an object"), || "kube-api-access-x".to_owned());
        assert_eq!(own, before, "a container with its own mount there gets no volume");
    }
}
