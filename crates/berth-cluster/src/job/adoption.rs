//! Which pods a Job controls: it adopts pods without a controller that its selector matches, and
//! releases pods whose labels were changed. Adoption adds the tracking finalizer to a pod, and
//! release removes it.

use std::sync::Arc;

use berth_runtime::{Cache, Delta, Error, Index, ObjectKey, owned_by};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::facts::{TRACKING_FINALIZER, finished_condition, job_spec, name};
use crate::replicas::claims::{Orphans, claim, newly_orphaned};

/// Label of a Job's pods with the name of the Job.
const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// Label of a Job's pods with the UID of the Job.
const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";

/// Adopts and releases pods.
pub(super) struct Adoption {
    client: Client,
    pods: Cache<Pod>,
    orphans: Orphans<Pod>,
}

impl Adoption {
    pub fn new(client: Client, pods: &Cache<Pod>) -> Self {
        Self { client, pods: pods.clone(), orphans: Orphans::new(pods) }
    }

    /// Adopts and releases pods of a Job that controls `owned` so far. Returns the pods that the
    /// Job controls afterwards.
    pub async fn settle(&self, key: &ObjectKey, job: &Job, owned: Vec<Arc<Pod>>) -> Result<Vec<Arc<Pod>>, Error> {
        let Some(selector) = &job_spec(job).selector else { return Ok(owned) };
        let claims = claim(job, selector, owned, self.orphans.candidates(&key.namespace, selector));
        let mut own = claims.own;
        for pod in &claims.adopt {
            let metadata = json!({"ownerReferences": [owned_by(job)], "finalizers": [TRACKING_FINALIZER]});
            own.extend(self.patch(key, pod, metadata).await?.map(Arc::new));
        }
        for pod in &claims.release {
            let metadata = json!({
                "ownerReferences": [{"$patch": "delete", "uid": job.metadata.uid}],
                "$deleteFromPrimitiveList/finalizers": [TRACKING_FINALIZER],
            });
            self.patch(key, pod, metadata).await?;
        }
        Ok(own)
    }

    /// Patches a pod's metadata; `None` if the pod is gone.
    async fn patch(&self, key: &ObjectKey, pod: &Pod, mut metadata: Value) -> Result<Option<Pod>, Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        // The UID makes the patch fail on another pod of the same name.
        metadata["uid"] = json!(pod.metadata.uid);
        let patch = Patch::Strategic(json!({"metadata": metadata}));
        match berth_runtime::write::patch(&api, name(pod), &PatchParams::default(), &patch).await {
            Ok(stored) => {
                self.pods.observe(stored.clone());
                Ok(Some(stored))
            }
            Err(error) if berth_runtime::is_not_found(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The Job that may have to adopt a changed pod.
pub(super) fn adopter(delta: &Delta<Pod>) -> Option<ObjectKey> {
    let pod = newly_orphaned(delta)?;
    let job = pod.labels().get(JOB_NAME)?;
    Some(ObjectKey::namespaced(pod.namespace().unwrap_or_default(), job))
}

/// Tracked pods that no Job controls, by the Job that their labels name.
pub(super) fn left_pods(pods: &Cache<Pod>) -> Index<Pod> {
    pods.index(|pod: &Pod| {
        let job = pod.labels().get(JOB_NAME).filter(|_| super::is_left(pod));
        let key = job.map(|job| ObjectKey::namespaced(pod.namespace().unwrap_or_default(), job).to_string());
        key.into_iter().collect()
    })
}

/// Whether a Job will adopt a pod that has no controller. Finished Jobs and Jobs that are being
/// deleted adopt none.
pub(super) fn will_be_adopted(jobs: &Cache<Job>, pod: &Pod) -> bool {
    let Some(name) = pod.labels().get(JOB_NAME) else { return false };
    let job = jobs.get(&ObjectKey::namespaced(pod.namespace().unwrap_or_default(), name));
    job.is_some_and(|job| {
        pod.labels().get(CONTROLLER_UID) == job.metadata.uid.as_ref()
            && job.metadata.deletion_timestamp.is_none()
            && finished_condition(&job).is_none()
    })
}
