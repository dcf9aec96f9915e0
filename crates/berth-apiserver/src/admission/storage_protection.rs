//! StorageObjectInUseProtection: claims and volumes get a finalizer at creation, so that they are
//! not deleted while they are in use. The cluster's controllers remove it.

use berth_apimachinery::meta;
use berth_apimachinery::status::Status;
use serde_json::json;

use super::{AdmissionPlugin, AdmissionRequest, Operation};

/// The kinds that are protected, with their finalizers.
const PROTECTED: [(&str, &str); 2] =
    [("persistentvolumeclaims", "kubernetes.io/pvc-protection"), ("persistentvolumes", "kubernetes.io/pv-protection")];

pub(crate) struct StorageProtection;

impl AdmissionPlugin for StorageProtection {
    fn name(&self) -> &str {
        "StorageObjectInUseProtection"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        let is_new =
            request.operation == Operation::Create && request.group.is_empty() && request.subresource.is_empty();
        let own = PROTECTED.iter().find(|(resource, _)| is_new && *resource == request.resource);
        let (Some((_, finalizer)), Some(object)) = (own, &mut request.object) else { return Ok(()) };
        let mut finalizers = meta::finalizers(object);
        if !finalizers.contains(finalizer) {
            finalizers.push(finalizer);
            let finalizers = json!(finalizers);
            meta::metadata_mut(object).insert("finalizers".to_owned(), finalizers);
        }
        Ok(())
    }
}
