//! The writes by which a pod's claims get devices, before the pod is bound.

use berth_runtime::{is_conflict, is_not_found};
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::{Api, ResourceExt};

use super::{Scheduler, lock};
use crate::devices::FINALIZER;
use crate::scheduling::{PodInfo, allocation, device_claims_of};

impl Scheduler {
    /// Writes the devices that were chosen for a pod's claims, and the pod as their user. Returns
    /// false if a claim has no devices on the node, has changed, or was deleted.
    pub(super) async fn allocate(&self, pod: &PodInfo) -> Result<bool, kube::Error> {
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
        Ok(true)
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
