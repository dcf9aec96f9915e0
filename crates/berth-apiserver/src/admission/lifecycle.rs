//! NamespaceLifecycle: nothing is created in a namespace that does not exist or is going, and the namespaces everything
//! rests on are not deleted.

use berth_apimachinery::meta::{self, GroupResource};
use berth_apimachinery::status::{Cause, Status};

use super::{AdmissionPlugin, AdmissionRequest, Operation, forbidden};

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-public", "kube-system"];

pub(crate) struct NamespaceLifecycle;

impl AdmissionPlugin for NamespaceLifecycle {
    fn name(&self) -> &str {
        "NamespaceLifecycle"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        let is_namespace = request.group.is_empty() && request.resource == "namespaces";
        if is_namespace {
            if request.operation == Operation::Delete && IMMORTAL.contains(&request.name) {
                return Err(forbidden(request, "this namespace may not be deleted"));
            }
            return Ok(());
        }
        if request.namespace.is_empty() || request.operation != Operation::Create {
            return Ok(());
        }
        let Some(namespace) = request.objects.get("", "namespaces", "", request.namespace) else {
            return Err(Status::not_found(&GroupResource::new("", "namespaces"), request.namespace));
        };
        if meta::deletion_timestamp(&namespace).is_some() {
            let name = request.namespace;
            let why = format!("unable to create new content in namespace {name} because it is being terminated");
            return Err(forbidden(request, &why).with_causes([Cause {
                reason: "NamespaceTerminating".to_owned(),
                message: format!("namespace {name} is being terminated"),
                field: "metadata.namespace".to_owned(),
            }]));
        }
        Ok(())
    }
}
