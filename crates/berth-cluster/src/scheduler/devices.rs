//! The writes by which a pod's claims get devices, before the pod is bound.

use berth_runtime::{ObjectKey, is_conflict, is_not_found, owned_by};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{Scheduler, lock};
use crate::devices::FINALIZER;
use crate::placement::{EXTENDED_CLAIM, ExtendedClaim, PodInfo, allocation, device_claims_of};

impl Scheduler {
    /// Writes the devices that were chosen for a pod's claims and extended resources, and the pod
    /// as their user. Returns false if a claim has no devices on the node, has changed, or was
    /// deleted.
    pub(super) async fn allocate(&self, pod: &PodInfo, node: &str) -> Result<bool, kube::Error> {
        let Ok(claims) = device_claims_of(&pod.pod) else { return Ok(false) };
        for key in claims {
            let (claim, chosen) = {
                let state = lock(&self.state);
                (state.device_claim(&key), state.chosen_devices(&key))
            };
            let Some(claim) = claim else { return Ok(false) };
            let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &key.namespace);
            match self.allocate_claim(&api, pod, &claim, chosen.as_deref()).await {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) if is_not_found(&error) || is_conflict(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.allocate_extended(pod, node).await
    }

    /// Makes a claim with the devices that were chosen for a pod's extended resources, and writes
    /// its name to the pod's status. An attempt that fails leaves a claim, which is deleted before
    /// the next attempt ([`super::Decision::Discard`]).
    async fn allocate_extended(&self, pod: &PodInfo, node: &str) -> Result<bool, kube::Error> {
        let (chosen, is_needed) = {
            let state = lock(&self.state);
            (state.claim_to_make(&pod.key), state.needs_extended_claim(pod, node))
        };
        let known = pod.pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
        let Some(chosen) = chosen else {
            // A claim of an earlier attempt, on another node.
            if known.is_some() && !is_needed {
                self.patch_status(
                    &pod.key,
                    pod.pod.metadata.uid.as_deref(),
                    json!({"extendedResourceClaimStatus": null}),
                )
                .await?;
            }
            return Ok(!is_needed);
        };
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &pod.key.namespace);
        let claim = extended_claim(pod, &chosen);
        let created = berth_runtime::write::create(&api, &PostParams::default(), &claim).await?;
        self.device_claims.observe(created.clone());
        match self.allocate_claim(&api, pod, &created, Some(&chosen.allocation)).await {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) if is_not_found(&error) || is_conflict(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        let status = json!({"extendedResourceClaimStatus": {
            "resourceClaimName": created.name_any(), "requestMappings": chosen.mappings,
        }});
        self.patch_status(&pod.key, pod.pod.metadata.uid.as_deref(), status).await?;
        Ok(true)
    }

    /// Reports why a pod's devices could not be written.
    pub(super) async fn report_unallocated(&self, pod: &PodInfo, node: &str, error: &kube::Error) {
        let brief = berth_runtime::brief(error);
        tracing::warn!(pod = %pod.key, node, error = %brief, "devices cannot be allocated");
        let message = format!("running PreBind plugin \"DynamicResources\": {}", berth_runtime::message(error));
        if let Err(error) = self.explain(pod, &message, None).await {
            let error = berth_runtime::brief(&error);
            tracing::debug!(pod = %pod.key, error, "cannot write the condition of a pod");
        }
    }

    /// Releases the devices of a claim that only this pod uses. Returns false if that must be tried
    /// again.
    pub(super) async fn release(&self, pod: &PodInfo, key: &ObjectKey) -> bool {
        let Some(claim) = lock(&self.state).device_claim(key) else { return true };
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        match crate::devices::release(&api, &claim).await {
            Ok(written) => self.device_claims.observe(written),
            // The watch shows the newer state, and the pod is tried again.
            Err(error) if is_not_found(&error) || is_conflict(&error) => {}
            Err(error) => {
                let error = berth_runtime::brief(&error);
                tracing::warn!(pod = %pod.key, claim = %key, %error, "the devices of a claim cannot be released");
                return false;
            }
        }
        true
    }

    /// Deletes a claim that an earlier attempt made for a pod's extended resources. Returns false
    /// if that must be tried again.
    pub(super) async fn discard(&self, pod: &PodInfo, key: &ObjectKey) -> bool {
        let Some(claim) = lock(&self.state).device_claim(key) else { return true };
        let discarded = self.delete_unused(pod, key, &claim).await;
        if let Err(error) = &discarded {
            let error = berth_runtime::brief(error);
            tracing::warn!(pod = %pod.key, claim = %key, %error, "the claim of an earlier attempt cannot be deleted");
            lock(&self.state).discard_failed(&pod.key);
        }
        discarded.is_ok()
    }

    async fn delete_unused(&self, pod: &PodInfo, key: &ObjectKey, claim: &ResourceClaim) -> Result<(), kube::Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.key.namespace);
        // A binding whose response was lost may have succeeded.
        let now = berth_runtime::write::get_opt(&pods, &pod.key.name).await?;
        let is_bound =
            |now: Pod| now.metadata.uid == pod.pod.metadata.uid && PodInfo::new(now.into()).node_name().is_some();
        if now.is_some_and(is_bound) { Ok(()) } else { self.delete_claim(key, claim).await }
    }

    async fn delete_claim(&self, key: &ObjectKey, claim: &ResourceClaim) -> Result<(), kube::Error> {
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        let mut claim = claim.clone();
        if claim.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
            claim.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
            match berth_runtime::write::replace(&api, &key.name, &PostParams::default(), &claim).await {
                // If it is being deleted, it is gone now.
                Ok(written) if written.metadata.deletion_timestamp.is_some() => {
                    self.device_claims.observe_deleted(&written);
                    return Ok(());
                }
                Ok(written) => claim = written,
                Err(error) if is_not_found(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        let preconditions = Preconditions { uid: claim.uid(), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match berth_runtime::write::delete(&api, &key.name, &parameters).await {
            Ok(_) => self.device_claims.observe_deleted(&claim),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn allocate_claim(
        &self,
        api: &Api<ResourceClaim>,
        pod: &PodInfo,
        claim: &ResourceClaim,
        chosen: Option<&AllocationResult>,
    ) -> Result<bool, kube::Error> {
        let mut claim = claim.clone();
        let is_open = allocation(&claim).is_none();
        if is_open && chosen.is_none() {
            return Ok(false);
        }
        let name = claim.name_any();
        if is_open && !claim.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
            claim.finalizers_mut().push(FINALIZER.to_owned());
            claim = berth_runtime::write::replace(api, &name, &PostParams::default(), &claim).await?;
        }
        let user = ResourceClaimConsumerReference {
            api_group: None,
            resource: "pods".to_owned(),
            name: pod.key.name.clone(),
            uid: pod.pod.metadata.uid.clone().unwrap_or_default(),
        };
        let status = claim.status.get_or_insert_default();
        let users = status.reserved_for.get_or_insert_default();
        let is_new_user = !users.iter().any(|known| known.uid == user.uid);
        if is_new_user {
            users.push(user);
        }
        if let Some(chosen) = chosen.filter(|_| is_open) {
            let allocation_timestamp = Some(Time(self.clock.now()));
            status.allocation = Some(AllocationResult { allocation_timestamp, ..chosen.clone() });
        } else if !is_new_user {
            return Ok(true);
        }
        let written = berth_runtime::write::replace_status(api, &name, &PostParams::default(), &claim).await?;
        self.device_claims.observe(written);
        Ok(true)
    }
}

/// The claim for the extended resources of a pod, without devices yet.
fn extended_claim(pod: &PodInfo, chosen: &ExtendedClaim) -> ResourceClaim {
    ResourceClaim {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-extended-resources-", pod.key.name)),
            namespace: Some(pod.key.namespace.clone()),
            annotations: Some([(EXTENDED_CLAIM.to_owned(), "true".to_owned())].into()),
            owner_references: Some(vec![owned_by(pod.pod.as_ref())]),
            ..ObjectMeta::default()
        },
        spec: chosen.spec.clone(),
        status: None,
    }
}
