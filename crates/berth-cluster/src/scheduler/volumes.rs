//! The writes by which a pod's claims get volumes on its node.

use berth_runtime::{is_conflict, is_not_found};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use super::{Scheduler, lock};
use crate::placement::{Choice, PodInfo};
use crate::storage::facts::{SELECTED_NODE, claim_annotation, refers_to};
use crate::storage::with_reference;

impl Scheduler {
    /// Writes the choices for a pod's claims. Returns false if the pod must be tried again soon.
    pub(super) async fn prepare(&self, pod: &PodInfo, node: &str, choices: &[Choice]) -> bool {
        for choice in choices {
            match self.choose(choice, node).await {
                Ok(true) => {}
                Ok(false) => {
                    lock(&self.state).binding_failed(&pod.key);
                    return false;
                }
                Err(error) => {
                    let error = berth_runtime::brief(&error);
                    tracing::warn!(pod = %pod.key, claim = %choice.claim, %error, "cannot write the selected node to a claim");
                    lock(&self.state).binding_failed(&pod.key);
                    return false;
                }
            }
        }
        lock(&self.state).prepared(&pod.key);
        true
    }

    /// Writes one choice. Returns false if the claim or the volume has changed or was deleted.
    async fn choose(&self, choice: &Choice, node: &str) -> Result<bool, kube::Error> {
        let Some(claim) = lock(&self.state).claim(&choice.claim) else { return Ok(false) };
        match &choice.volume {
            Some(name) => {
                let volume = lock(&self.state).volume(name);
                match volume {
                    // The binder completes the binding.
                    Some(volume) if refers_to(&volume, &claim) => Ok(true),
                    Some(volume) => self.reserve(&with_reference(&volume, &claim)).await,
                    None => Ok(false),
                }
            }
            None if claim_annotation(&claim, SELECTED_NODE) == Some(node) => Ok(true),
            None => self.select_node(&claim, node).await,
        }
    }

    async fn reserve(&self, volume: &PersistentVolume) -> Result<bool, kube::Error> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        match berth_runtime::write::replace(&api, name, &PostParams::default(), volume).await {
            Ok(written) => self.volumes.observe(written),
            Err(error) if is_not_found(&error) || is_conflict(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    async fn select_node(&self, claim: &PersistentVolumeClaim, node: &str) -> Result<bool, kube::Error> {
        let meta = &claim.metadata;
        let patch = json!({"metadata": {
            "uid": meta.uid, "resourceVersion": meta.resource_version, "annotations": {SELECTED_NODE: node},
        }});
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), meta.namespace.as_deref().unwrap_or_default());
        let name = meta.name.as_deref().unwrap_or_default();
        match berth_runtime::write::patch(&api, name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(written) => self.claims.observe(written),
            Err(error) if is_not_found(&error) || is_conflict(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }
}
