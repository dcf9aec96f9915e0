//! ServiceAccount: pods run as `default` unless they say otherwise, and only as an account that exists. They have its pull
//! secrets and find its token, the cluster's authority and their namespace in a volume, unless pod or account do not want that,
//! or this server issues no tokens.
//!
//! Source of the behaviour: Kubernetes documentation, "Managing Service Accounts" and "Configure Service Accounts for Pods".

use std::sync::{Arc, Mutex};

use berth_apimachinery::meta;
use berth_apimachinery::status::Status;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Map, Value, json};

use super::{AdmissionPlugin, AdmissionRequest, forbidden, is_pod_create};
use crate::{server, strategy};

const DEFAULT: &str = "default";
/// What the names of volumes with tokens begin with.
const VOLUME: &str = "kube-api-access-";
/// Where containers look for a token.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Set on a pod that stands for one of its node's own; it has nothing from the API.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// How long such a token is good: an hour, and some seconds that tell it from one somebody asked for.
const EXPIRATION_SECONDS: u32 = 3607;

pub(crate) struct ServiceAccounts {
    /// Draws the ends of volumes' names; `None` when there are no tokens to mount. A source of its own: what pods are called does
    /// not depend on how many of them mount a token.
    names: Option<Mutex<SmallRng>>,
}

impl ServiceAccounts {
    /// The plugin of a server with that seed, and with or without tokens.
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
        let name = spec.get("serviceAccountName").and_then(Value::as_str).unwrap_or_default().to_owned();
        if is_mirror {
            let why = "a mirror pod may not reference service accounts";
            return if name.is_empty() { Ok(()) } else { Err(forbidden(request, why)) };
        }
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
        // The default account is made with its namespace by a controller, which may be a moment behind.
        let account = account.as_deref().unwrap_or(&Value::Null);
        let wants = |of: &Value| of["automountServiceAccountToken"].as_bool();
        if let Some(names) = &self.names
            && spec.get("automountServiceAccountToken").and_then(Value::as_bool).or(wants(account)).unwrap_or(true)
        {
            mount_token(spec, || format!("{VOLUME}{}", server::suffix(names)));
        }
        let secrets = &account["imagePullSecrets"];
        let is_empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
        if spec.get("imagePullSecrets").is_none_or(is_empty) && !is_empty(secrets) {
            spec.insert("imagePullSecrets".to_owned(), secrets.clone());
        }
        Ok(())
    }
}

/// Gives every container that mounts nothing where tokens are a volume with one.
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
    fn a_token_is_mounted_once_where_nothing_else_is() {
        let mut spec = json!({"containers": [{"name": "a"}, {"name": "b", "volumeMounts": [
            {"name": "own", "mountPath": MOUNT_PATH}]}], "initContainers": [{"name": "i", "volumeMounts": null}]});
        let map = spec.as_object_mut().expect("an object");
        mount_token(map, || "kube-api-access-abcde".to_owned());
        mount_token(map, || panic!("there is one"));
        let mount = json!([{"name": "kube-api-access-abcde", "readOnly": true, "mountPath": MOUNT_PATH}]);
        assert_eq!(spec["containers"][0]["volumeMounts"], mount);
        assert_eq!(spec["containers"][1]["volumeMounts"][0]["name"], "own");
        assert_eq!(spec["initContainers"][0]["volumeMounts"], mount);
        assert_eq!(spec["volumes"].as_array().map(Vec::len), Some(1));

        let mut own =
            json!({"containers": [{"name": "a", "volumeMounts": [{"name": "own", "mountPath": MOUNT_PATH}]}]});
        let before = own.clone();
        mount_token(own.as_object_mut().expect("an object"), || "kube-api-access-x".to_owned());
        assert_eq!(own, before, "who mounts something else there gets no volume");
    }
}
