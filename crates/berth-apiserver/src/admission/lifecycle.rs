//! NamespaceLifecycle: rejects objects in a namespace that does not exist or is being deleted, and
//! deletions of the namespaces that every cluster needs.

use std::collections::HashMap;

use berth_apimachinery::meta::{self, GroupResource};
use berth_apimachinery::status::{Cause, Status};
use parking_lot::RwLock;

use super::{AdmissionPlugin, AdmissionRequest, Operation, forbidden};
use crate::objects::Objects;

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-public", "kube-system"];

/// Maximum number of cached namespaces; a full cache is emptied.
const KNOWN_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct NamespaceLifecycle {
    /// Cached state of namespaces: the revision, and whether the namespace was being deleted at
    /// it. Every create needs this, and the cache saves reading the namespace each time.
    known: RwLock<HashMap<String, (u64, bool)>>,
}

impl NamespaceLifecycle {
    /// Whether the namespace is being deleted; `None` if it does not exist.
    fn is_terminating(&self, objects: &Objects, namespace: &str) -> Option<bool> {
        let record = objects.record("", "namespaces", "", namespace)?;
        let known = self.known.read().get(namespace).copied();
        if let Some((revision, is_terminating)) = known
            && revision == record.revision
        {
            return Some(is_terminating);
        }
        let is_terminating = meta::deletion_timestamp(&record.value()).is_some();
        let mut known = self.known.write();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(namespace.to_owned(), (record.revision, is_terminating));
        Some(is_terminating)
    }
}

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
        let Some(is_terminating) = self.is_terminating(request.objects, request.namespace) else {
            return Err(Status::not_found(&GroupResource::new("", "namespaces"), request.namespace));
        };
        if is_terminating {
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
