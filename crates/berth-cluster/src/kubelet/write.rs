//! Writes of a kubelet: status updates and removals of pods.

use std::sync::Arc;

use berth_apimachinery::patch::merge_diff;
use berth_runtime::{Cache, Error, is_conflict, is_not_found};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde_json::Value;

/// A merge patch of a pod's status. It is not a JSON value, which would copy the status once more:
/// a cluster spends a tenth of its time on the statuses of pods.
#[derive(Debug, Serialize)]
struct StatusPatch<'a> {
    metadata: Read<'a>,
    status: Value,
}

/// The state of the pod to which the patch applies.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Read<'a> {
    uid: Option<&'a str>,
    resource_version: Option<&'a str>,
}

/// Writes pods and shows the results in a cache.
#[derive(Clone)]
pub struct Writer {
    /// Client with the permissions of a kubelet.
    pub client: Client,
    /// The cache on which the kubelet bases its decisions.
    pub pods: Cache<Pod>,
}

impl Writer {
    fn api(&self, pod: &Pod) -> Api<Pod> {
        Api::namespaced(self.client.clone(), pod.metadata.namespace.as_deref().unwrap_or_default())
    }

    /// Writes a pod's status if the pod has not changed since it was read. Returns false if the pod
    /// no longer exists.
    pub async fn status(&self, pod: &Pod, status: &PodStatus) -> Result<bool, Error> {
        let meta = &pod.metadata;
        let before = serde_json::to_value(pod.status.as_ref().unwrap_or(&PodStatus::default()))?;
        // A merge patch replaces lists. The resource version protects the list entries of other
        // writers.
        let patch = StatusPatch {
            metadata: Read { uid: meta.uid.as_deref(), resource_version: meta.resource_version.as_deref() },
            status: merge_diff(&before, &serde_json::to_value(status)?),
        };
        let (api, parameters) = (self.api(pod), PatchParams::default());
        let patch = Patch::Merge(&patch);
        match berth_runtime::write::patch_status(&api, &pod.name_any(), &parameters, &patch).await {
            Ok(written) => {
                self.pods.observe(written);
                Ok(true)
            }
            Err(error) if is_not_found(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes a pod without grace period.
    pub async fn remove(&self, pod: &Arc<Pod>) -> Result<(), Error> {
        let preconditions = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        match berth_runtime::write::delete(&self.api(pod), &pod.name_any(), &parameters).await {
            // The API server returns the pod if a finalizer keeps it.
            Ok(going) => {
                match going {
                    Some(left) if left.finalizers().is_empty() => self.pods.observe_deleted(&left),
                    Some(left) => self.pods.observe(left),
                    None => self.pods.observe_deleted(pod),
                }
                Ok(())
            }
            Err(error) if is_not_found(&error) => {
                self.pods.observe_deleted(pod);
                Ok(())
            }
            // Another pod has the same name now.
            Err(error) if is_conflict(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
