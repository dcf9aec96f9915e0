//! Concurrent admission (semantics §23): a workload waits for several flavors at once.
//!
//! In a cluster queue with a concurrent admission policy, a Workload is not queued itself. It
//! becomes a *parent*, and one of its [`variants`] is created per flavor; these are queued and
//! admitted like any workload. The parent takes over the admission of an admitted variant, and its
//! job depends on the parent alone. [`reconcile`] maintains a parent and its variants; [`turns`]
//! decides which variant may preempt next.

pub(crate) mod controller;
pub mod reconcile;
#[cfg(test)]
mod tests;
pub mod turns;
pub mod variants;

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::kueue::constants::GROUP;
use berth_api::kueue::v1beta2::{ClusterQueue, Workload};
use berth_api::kueue::{annotations, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

use crate::stores::{Owner, Stores, group_of};
use crate::workload::status;

/// True if the workload is a parent of variants.
pub fn is_parent(workload: &Workload) -> bool {
    workload.labels().get(labels::CONCURRENT_ADMISSION_PARENT).is_some_and(|value| value == "true")
}

/// The parent that a variant belongs to.
pub fn parent_of(workload: &Workload) -> Option<&OwnerReference> {
    let owners = workload.metadata.owner_references.iter().flatten();
    owners.into_iter().find(|owner| owner.kind == "Workload" && group_of(&owner.api_version) == GROUP)
}

/// True if the workload is a variant.
pub fn is_variant(workload: &Workload) -> bool {
    parent_of(workload).is_some()
}

/// The only flavor that a variant may use.
pub fn flavor_of(variant: &Workload) -> &str {
    let flavors = variant.annotations().get(annotations::WORKLOAD_ALLOWED_RESOURCE_FLAVORS);
    flavors.and_then(|text| text.split(',').next()).map(str::trim).unwrap_or_default()
}

/// The flavors of a queue, the most preferred first.
fn flavors_of(queue: &ClusterQueue) -> Vec<String> {
    let groups = queue.spec.resource_groups.iter();
    groups.flat_map(|group| &group.flavors).map(|flavor| flavor.name.clone()).collect()
}

/// The variants of a parent, in name order.
pub fn variants_of(stores: &Stores, parent: &Workload) -> Vec<Arc<Workload>> {
    let (name, uid) = (parent.name_any(), parent.metadata.uid.as_deref());
    let owner = Owner { group: GROUP, kind: "Workload", name: &name, uid };
    stores.workloads_of(parent.metadata.namespace.as_deref().unwrap_or_default(), &owner)
}

/// The variant whose admission the parent has: the one on the parent's assigned flavor.
pub fn running_variant(stores: &Stores, parent: &Workload) -> Option<Arc<Workload>> {
    if !is_parent(parent) {
        return None;
    }
    let admission = parent.status.as_ref()?.admission.as_ref()?;
    let assigned: BTreeSet<&str> =
        admission.pod_set_assignments.iter().flat_map(|it| it.flavors.values().map(String::as_str)).collect();
    let holds =
        |variant: &Arc<Workload>| status::has_quota_reservation(variant) && assigned.contains(flavor_of(variant));
    variants_of(stores, parent).into_iter().find(holds)
}

/// The cluster queue of a workload, by its local queue.
pub fn queue_of(stores: &Stores, workload: &Workload) -> Option<Arc<ClusterQueue>> {
    let namespace = workload.meta().namespace.as_deref().unwrap_or_default();
    let local = stores.local_queue(namespace, &workload.spec.queue_name)?;
    stores.cluster_queue(&local.spec.cluster_queue)
}
