//! PersistentVolumeClaimResize: a bound claim may request more only if its storage class allows
//! expansion.

use berth_apimachinery::meta;
use berth_apimachinery::quantity::Quantity;
use berth_apimachinery::status::Status;
use serde_json::Value;

use super::{AdmissionPlugin, AdmissionRequest, Operation, forbidden};

pub(crate) struct ClaimResize;

impl AdmissionPlugin for ClaimResize {
    fn name(&self) -> &str {
        "PersistentVolumeClaimResize"
    }

    fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        let is_update = request.operation == Operation::Update
            && (request.group, request.resource, request.subresource) == ("", "persistentvolumeclaims", "");
        let (Some(new), Some(old)) = (&request.object, &request.old_object) else { return Ok(()) };
        if !is_update || requested(new) <= requested(old) {
            return Ok(());
        }
        if old["status"]["phase"] != "Bound" {
            return Err(forbidden(request, "Only bound persistent volume claims can be expanded"));
        }
        let class = class_of(new);
        let is_kept = !class.is_empty() && class == class_of(old);
        let class = is_kept.then(|| request.objects.get("storage.k8s.io", "storageclasses", "", class)).flatten();
        if class.is_some_and(|class| class["allowVolumeExpansion"] == true) {
            return Ok(());
        }
        let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
                   support resize";
        Err(forbidden(request, why))
    }
}

/// Name of the claim's storage class; empty if it has none.
fn class_of(claim: &Value) -> &str {
    meta::annotation(claim, "volume.beta.kubernetes.io/storage-class")
        .or_else(|| claim["spec"]["storageClassName"].as_str())
        .unwrap_or_default()
}

fn requested(claim: &Value) -> Quantity {
    Quantity::from_json(&claim["spec"]["resources"]["requests"]["storage"]).unwrap_or(Quantity::ZERO)
}
