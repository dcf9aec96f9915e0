//! Claims of pods: a pod's `resourceClaimTemplateName` becomes a ResourceClaim that the pod owns,
//! and the pod's status has its name.

use std::sync::Arc;

use berth_runtime::{
    Action, Cache, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, message, owned_by,
};
use k8s_openapi::api::core::v1::{Pod, PodResourceClaimStatus};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::job::facts::{is_deleted, is_terminated};
use crate::placement::claim_owner;

/// Annotation of a created claim with its name in the pod.
const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";

/// Adds the controller.
pub(super) fn install(manager: &mut Manager) {
    let pods: Cache<Pod> = manager.cache();
    let claims: Cache<ResourceClaim> = manager.cache();
    let templates: Cache<ResourceClaimTemplate> = manager.cache();
    let (client, recorder) = (manager.client(), manager.recorder("resource_claim"));
    // Pods by the templates that they use.
    let users = pods.index(|pod| {
        let namespace = pod.namespace().unwrap_or_default();
        template_names(pod).map(|(_, name)| ObjectKey::namespaced(&namespace, name).to_string()).collect()
    });
    let by_owner = claims.index(|claim| claim_owner(claim).map(str::to_owned).into_iter().collect());
    manager
        .controller("resource-claims")
        .watch(&pods, |delta| {
            let new = delta.new.as_ref().filter(|pod| template_names(pod).next().is_some());
            new.map(|pod| ObjectKey::of(pod.as_ref()))
        })
        .watch(&templates, move |delta| users.keys(&ObjectKey::of(delta.latest().as_ref()).to_string()))
        .watch(&claims, |delta| {
            // A deleted claim is created again while its pod needs it.
            let gone = delta.old.as_ref().filter(|_| delta.new.is_none())?;
            let owner = gone.owner_references().iter().find(|owner| owner.kind == "Pod")?;
            Some(ObjectKey::namespaced(gone.namespace().unwrap_or_default(), &owner.name))
        })
        .run(Claims { client, recorder, pods, claims, by_owner, templates });
}

/// Names of a pod's claims that are created from templates, with their templates.
fn template_names(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
    let claims = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    claims.filter_map(|claim| Some((claim.name.as_str(), claim.resource_claim_template_name.as_deref()?)))
}

/// The claim of a pod that a template describes.
fn claim_of(pod: &Pod, name: &str, template: &ResourceClaimTemplate) -> ResourceClaim {
    let metadata = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations = metadata.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM_NAME.to_owned(), name.to_owned());
    ResourceClaim {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-{name}-", pod.name_any())),
            namespace: pod.namespace(),
            labels: metadata.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owned_by(pod)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    }
}

struct Claims {
    client: Client,
    recorder: Recorder,
    pods: Cache<Pod>,
    claims: Cache<ResourceClaim>,
    by_owner: Index<ResourceClaim>,
    templates: Cache<ResourceClaimTemplate>,
}

impl Reconciler for Claims {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(pod) = self.pods.get(&key).filter(|pod| !is_deleted(pod) && !is_terminated(pod)) else {
            return Ok(Action::Wait);
        };
        let known = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
        let mut statuses: Vec<PodResourceClaimStatus> = known.cloned().collect();
        let before = statuses.clone();
        for (name, template) in template_names(&pod) {
            if let Some(claim) = self.ensure(&pod, name, template).await? {
                statuses.retain(|status| status.name != name);
                statuses.push(PodResourceClaimStatus { name: name.to_owned(), resource_claim_name: Some(claim) });
            }
        }
        statuses.sort_by(|a, b| a.name.cmp(&b.name));
        if statuses != before {
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
            let patch = json!({"metadata": {"uid": pod.uid()}, "status": {"resourceClaimStatuses": statuses}});
            let patched =
                berth_runtime::write::patch_status(&api, &key.name, &PatchParams::default(), &Patch::Merge(&patch))
                    .await?;
            self.pods.observe(patched);
        }
        Ok(Action::Wait)
    }
}

impl Claims {
    /// Name of the pod's claim, which is created if it does not exist; `None` without the template.
    async fn ensure(&self, pod: &Arc<Pod>, name: &str, template: &str) -> Result<Option<String>, Error> {
        let of_name = |claim: &Arc<ResourceClaim>| {
            claim.annotations().get(POD_CLAIM_NAME).is_some_and(|it| it == name) && !is_being_deleted(claim)
        };
        if let Some(existing) = self.by_owner.get(&pod.uid().unwrap_or_default()).into_iter().find(of_name) {
            return Ok(Some(existing.name_any()));
        }
        let failed = |why: &str| {
            let message = format!("PodResourceClaim {name}: {why}");
            self.recorder.event(pod.as_ref(), EventType::Warning, "FailedResourceClaimCreation", &message);
        };
        let namespace = pod.namespace().unwrap_or_default();
        let Some(template) = self.templates.get(&ObjectKey::namespaced(&namespace, template)) else {
            failed(&format!("resource claim template \"{template}\" not found"));
            return Ok(None);
        };
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &namespace);
        let claim = claim_of(pod, name, &template);
        match berth_runtime::write::create(&api, &PostParams::default(), &claim).await {
            Ok(created) => {
                let name = created.name_any();
                self.claims.observe(created);
                Ok(Some(name))
            }
            Err(error) => {
                failed(&message(&error));
                Err(error.into())
            }
        }
    }
}

fn is_being_deleted(claim: &ResourceClaim) -> bool {
    claim.metadata.deletion_timestamp.is_some()
}
