//! Claims that request more than they have: the volume is expanded, then the claim's status.
//!
//! The size of a volume of `berth.dev/local` is a number, so it is expanded at once. Another
//! provisioner expands its own volumes. Admission rejects expansion if the class does not allow it.

use berth_runtime::{
    Action, Cache, Error, EventType, Manager, ObjectKey, Reconciler, Recorder, is_conflict, is_not_found,
};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::facts::{
    PROVISIONED_BY, capacity, claim_phase, claim_uid, is_bound, parse, requested, volume_annotation, volume_name,
};
use super::local::PROVISIONER_NAME;

/// Adds the controller.
pub fn install(manager: &mut Manager) {
    let claims: Cache<PersistentVolumeClaim> = manager.cache();
    let volumes: Cache<PersistentVolume> = manager.cache();
    let (client, recorder) = (manager.client(), manager.recorder("volume_expand"));
    manager.controller("volume-expansion").watch_self(&claims).run(Expansion { client, recorder, claims, volumes });
}

/// The next step of an expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The claim has the requested size.
    Done,
    /// Another program expands the volume.
    Elsewhere,
    /// Set the volume's capacity.
    Volume,
    /// Set the capacity in the claim's status.
    Claim,
}

fn step(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Step {
    let is_settled = is_bound(claim) && claim_phase(claim) == "Bound";
    if !is_settled || claim_uid(volume) != claim.metadata.uid.as_deref() {
        return Step::Done;
    }
    let has = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage"));
    let Some(has) = has.map(|size| parse(&size.0)) else { return Step::Done };
    let wants = requested(claim);
    if wants <= has {
        return Step::Done;
    }
    if volume_annotation(volume, PROVISIONED_BY) != Some(PROVISIONER_NAME) {
        return Step::Elsewhere;
    }
    if capacity(volume) < wants { Step::Volume } else { Step::Claim }
}

struct Expansion {
    client: Client,
    recorder: Recorder,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
}

impl Reconciler for Expansion {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        // Two writes may be needed: first to the volume, then to the claim.
        for _ in 0..2 {
            let Some(claim) = self.claims.get(&key) else { return Ok(Action::Wait) };
            let volume = volume_name(&claim).and_then(|name| self.volumes.get(&ObjectKey::cluster(name)));
            let Some(volume) = volume else { return Ok(Action::Wait) };
            let event = |reason: &str, message: &str| {
                self.recorder.event(claim.as_ref(), EventType::Normal, reason, message);
            };
            let is_written = match step(&claim, &volume) {
                Step::Done => false,
                Step::Elsewhere => {
                    event("ExternalExpanding", "waiting for an external controller to expand this PVC");
                    false
                }
                Step::Volume => {
                    event("Resizing", &format!("External resizer is resizing volume {}", volume.name_any()));
                    self.grow_volume(&claim, &volume).await?
                }
                Step::Claim => {
                    let is_written = self.grow_claim(&claim, &volume).await?;
                    if is_written {
                        event("VolumeResizeSuccessful", "Resize volume succeeded");
                    }
                    is_written
                }
            };
            if !is_written {
                break;
            }
        }
        Ok(Action::Wait)
    }
}

/// A merge patch that applies only to this state of the object.
fn guarded(object: &impl ResourceExt, mut patch: Value) -> Value {
    patch["metadata"] = json!({"uid": object.meta().uid, "resourceVersion": object.meta().resource_version});
    patch
}

impl Expansion {
    async fn grow_volume(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<bool, Error> {
        let size = json!(claim.spec)["resources"]["requests"]["storage"].clone();
        let patch = guarded(volume, json!({"spec": {"capacity": {"storage": size}}}));
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        match berth_runtime::write::patch(&api, &volume.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
            .await
        {
            Ok(volume) => self.volumes.observe(volume),
            Err(error) if is_not_found(&error) || is_conflict(&error) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    async fn grow_claim(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<bool, Error> {
        let status = claim.status.clone().unwrap_or_default();
        let is_resize = |kind: &str| matches!(kind, "Resizing" | "FileSystemResizePending");
        let mut conditions = status.conditions.unwrap_or_default();
        conditions.retain(|condition| !is_resize(&condition.type_));
        let patch = guarded(
            claim,
            json!({"status": {
                "capacity": json!(volume.spec)["capacity"],
                "conditions": conditions,
                "allocatedResources": null,
                "allocatedResourceStatuses": null,
            }}),
        );
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
        match berth_runtime::write::patch_status(
            &api,
            &claim.name_any(),
            &PatchParams::default(),
            &Patch::Merge(&patch),
        )
        .await
        {
            Ok(claim) => self.claims.observe(claim),
            Err(error) if is_not_found(&error) || is_conflict(&error) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::BIND_COMPLETED;
    use super::super::samples;
    use super::*;

    #[test]
    fn the_volume_is_expanded_before_the_claims_status() {
        let claim = |wants: &str, has: &str| {
            let mark = json!({"annotations": {BIND_COMPLETED: "yes"}});
            samples::claim(
                "c",
                wants,
                json!({"metadata": mark, "spec": {"volumeName": "v"},
                "status": {"phase": "Bound", "capacity": {"storage": has}}}),
            )
        };
        let volume = |size: &str, by: &str| {
            samples::volume(
                "v",
                size,
                json!({"metadata": {"annotations": {PROVISIONED_BY: by}},
                "spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": "uid-of-c"}}}),
            )
        };
        for (wants, has, size, by, wanted) in [
            ("5Gi", "5Gi", "5Gi", PROVISIONER_NAME, Step::Done),
            ("4Gi", "5Gi", "5Gi", PROVISIONER_NAME, Step::Done),
            ("6Gi", "5Gi", "5Gi", PROVISIONER_NAME, Step::Volume),
            ("6Gi", "5Gi", "6Gi", PROVISIONER_NAME, Step::Claim),
            ("6Gi", "5Gi", "5Gi", "example.com/other", Step::Elsewhere),
        ] {
            assert_eq!(step(&claim(wants, has), &volume(size, by)), wanted, "{wants} {has} {size} {by}");
        }
        let of_other = samples::volume("v", "5Gi", json!({}));
        assert_eq!(step(&claim("6Gi", "5Gi"), &of_other), Step::Done);
    }
}
