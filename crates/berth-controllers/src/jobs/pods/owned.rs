//! Groups of pods that belong to a StatefulSet or to a replica of a LeaderWorkerSet: their names,
//! and the role of their pods.

use berth_api::kueue::annotations;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::gates::Gates;
use crate::jobs::naming::{self, OwnerKind};

/// Name of the pod set of a group whose pods have one template, and role of these pods.
pub(crate) const ROLE: &str = "main";

/// The names that a group can have: the usual one, and that of earlier versions of Kueue and Berth.
/// `name` names the set, or the replica of the set. `uid` is the set's.
pub(super) fn group_names(kind: &OwnerKind, name: &str, uid: &str, gates: &Gates) -> [String; 2] {
    [uid, ""].map(|uid| naming::workload_name(name, uid, kind, gates))
}

/// The name of a group: the usual one, which contains the set's UID, so that a new set of the same
/// name gets groups of its own. A Workload of the earlier name that can belong to the set is
/// continued. `workload` finds the metadata of a Workload by name.
pub(crate) fn group_name(
    kind: &OwnerKind,
    name: &str,
    uid: &str,
    gates: &Gates,
    workload: impl Fn(&str) -> Option<ObjectMeta>,
) -> String {
    let [usual, earlier] = group_names(kind, name, uid, gates);
    let exists = |name: &str| workload(name).is_some_and(|metadata| is_of_set(&metadata, kind, uid));
    if !exists(&usual) && exists(&earlier) { earlier } else { usual }
}

/// True if a Workload can belong to the set with this UID: a pod group made it, and no other set
/// owns it.
fn is_of_set(workload: &ObjectMeta, kind: &OwnerKind, uid: &str) -> bool {
    let annotations = workload.annotations.as_ref();
    let of_group = annotations.and_then(|annotations| annotations.get(annotations::IS_GROUP_WORKLOAD));
    let mut sets = workload.owner_references.iter().flatten().filter(|owner| owner.kind == kind.kind);
    of_group.is_some_and(|value| value == "true")
        && workload.deletion_timestamp.is_none()
        && sets.all(|owner| owner.uid == uid)
}
