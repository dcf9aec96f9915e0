//! Claims of generic ephemeral volumes: a pod's `ephemeral.volumeClaimTemplate` becomes a claim
//! that the pod owns, so that it is deleted with the pod.
//!
//! Source: Kubernetes documentation, "Ephemeral Volumes: Generic ephemeral volumes".

use std::sync::Arc;

use berth_runtime::{
    Action, Cache, Error, EventType, Manager, ObjectKey, Reconciler, Recorder, is_already_exists, message, owned_by,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimTemplate, Pod};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};

use super::facts::{check_created_for, ephemeral_name};
use crate::job::facts::{is_deleted, is_terminated};

/// Adds the controller.
pub fn install(manager: &mut Manager) {
    let pods: Cache<Pod> = manager.cache();
    let claims: Cache<PersistentVolumeClaim> = manager.cache();
    let (client, recorder) = (manager.client(), manager.recorder("ephemeral_volume"));
    // Pods with ephemeral volumes, by the claims of these volumes.
    let users = pods.index(|pod| {
        let namespace = pod.namespace().unwrap_or_default();
        templates(pod).map(|(name, _)| ObjectKey::namespaced(&namespace, name).to_string()).collect()
    });
    manager
        .controller("ephemeral-volume")
        .watch(&pods, |delta| {
            let new = delta.new.as_ref().filter(|pod| delta.old.is_none() && templates(pod).next().is_some());
            new.map(|pod| ObjectKey::of(pod.as_ref()))
        })
        .watch(&claims, move |delta| {
            // A deleted claim is created again, or no longer blocks another claim.
            let gone = delta.old.as_ref().filter(|_| delta.new.is_none());
            gone.map(|claim| users.keys(&ObjectKey::of(claim.as_ref()).to_string())).unwrap_or_default()
        })
        .run(Ephemeral { client, recorder, pods, claims });
}

/// Names and templates of the claims of a pod's ephemeral volumes.
fn templates(pod: &Pod) -> impl Iterator<Item = (String, &PersistentVolumeClaimTemplate)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| {
        let template = volume.ephemeral.as_ref()?.volume_claim_template.as_ref()?;
        Some((ephemeral_name(pod, &volume.name), template))
    })
}

fn claim_of(pod: &Pod, name: &str, template: &PersistentVolumeClaimTemplate) -> PersistentVolumeClaim {
    let metadata = template.metadata.clone().unwrap_or_default();
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: pod.namespace(),
            labels: metadata.labels,
            annotations: metadata.annotations,
            owner_references: Some(vec![owned_by(pod)]),
            ..ObjectMeta::default()
        },
        spec: Some(template.spec.clone()),
        status: None,
    }
}

struct Ephemeral {
    client: Client,
    recorder: Recorder,
    pods: Cache<Pod>,
    claims: Cache<PersistentVolumeClaim>,
}

impl Reconciler for Ephemeral {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(pod) = self.pods.get(&key).filter(|pod| !is_deleted(pod) && !is_terminated(pod)) else {
            return Ok(Action::Wait);
        };
        for (name, template) in templates(&pod) {
            self.ensure(&key, &pod, &name, template).await?;
        }
        Ok(Action::Wait)
    }
}

impl Ephemeral {
    /// Creates the claim. Records an event if the creation fails, or if a claim of this name exists
    /// that was not created for the pod.
    async fn ensure(
        &self,
        key: &ObjectKey,
        pod: &Arc<Pod>,
        name: &str,
        template: &PersistentVolumeClaimTemplate,
    ) -> Result<(), Error> {
        let failed = |why: &str| {
            let volume = name.strip_prefix(&format!("{}-", pod.name_any())).unwrap_or(name);
            let message = format!("ephemeral volume {volume}: {why}");
            self.recorder.event(pod.as_ref(), EventType::Warning, "FailedBinding", &message);
        };
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        let existing = match self.claims.get(&ObjectKey::namespaced(&key.namespace, name)) {
            Some(claim) => claim,
            None => {
                match berth_runtime::write::create(&api, &PostParams::default(), &claim_of(pod, name, template)).await {
                    Ok(created) => {
                        self.claims.observe(created);
                        return Ok(());
                    }
                    Err(error) if is_already_exists(&error) => Arc::new(berth_runtime::write::get(&api, name).await?),
                    Err(error) => {
                        failed(&format!("create PVC {name}: {}", message(&error)));
                        return Err(error.into());
                    }
                }
            }
        };
        if let Err(why) = check_created_for(pod, &existing) {
            failed(&why);
        }
        Ok(())
    }
}
