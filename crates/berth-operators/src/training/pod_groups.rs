//! Writes PodGroups for the operators.

use std::collections::BTreeMap;

use berth_api::scheduling::{PodGroup, PodGroupSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// A PodGroup that must exist.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The spec.
    pub spec: &'a PodGroupSpec,
    /// Annotations, set at creation.
    pub annotations: Option<&'a BTreeMap<String, String>>,
    /// The job.
    pub owner: &'a OwnerReference,
}

/// The PodGroups of a namespace.
pub struct PodGroups(Api<PodGroup>);

impl PodGroups {
    /// The PodGroups of this namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self(Api::namespaced(client, namespace))
    }

    /// Creates the PodGroup or updates its spec.
    ///
    /// # Errors
    /// The API rejects a write, or does not serve the kind.
    pub async fn ensure(&self, name: &str, wanted: Wanted<'_>) -> kube::Result<()> {
        let Some(known) = berth_runtime::write::get_opt(&self.0, name).await? else {
            let metadata = ObjectMeta {
                name: Some(name.to_owned()),
                annotations: wanted.annotations.cloned(),
                owner_references: Some(vec![wanted.owner.clone()]),
                ..ObjectMeta::default()
            };
            let group = PodGroup { metadata, spec: wanted.spec.clone(), status: None };
            return berth_runtime::write::create(&self.0, &PostParams::default(), &group).await.map(drop);
        };
        if known.spec == *wanted.spec {
            return Ok(());
        }
        let spec = json!(wanted.spec);
        let absent = |key: &str| spec.get(key).is_none().then(|| (key.to_owned(), Value::Null));
        let mut patch = spec.clone();
        if let Some(fields) = patch.as_object_mut() {
            fields.extend(["minResources", "scheduleTimeoutSeconds"].into_iter().filter_map(absent));
        }
        let patch = Patch::Merge(json!({"metadata": {"uid": known.metadata.uid}, "spec": patch}));
        berth_runtime::write::patch(&self.0, name, &PatchParams::default(), &patch).await.map(drop)
    }

    /// Deletes the PodGroup if the object with this UID controls it. True if there was one.
    ///
    /// # Errors
    /// The API rejects the deletion.
    pub async fn delete(&self, name: &str, owner: &str) -> kube::Result<bool> {
        let known = match berth_runtime::write::get_opt(&self.0, name).await? {
            Some(known) if berth_runtime::is_controlled_by(&known, owner) => known,
            _ => return Ok(false),
        };
        if known.metadata.deletion_timestamp.is_some() {
            return Ok(false);
        }
        match berth_runtime::write::delete(&self.0, name, &DeleteParams::background()).await {
            Err(error) if !berth_runtime::is_not_found(&error) => Err(error),
            _ => Ok(true),
        }
    }
}
