//! Deletion of the claims of a StatefulSet's pods: `persistentVolumeClaimRetentionPolicy`.
//!
//! The policy is carried out by owner references. A claim is owned by the set if it must be deleted
//! with the set, and by its pod if it must be deleted with the pod at a scale-down. The garbage
//! collector then deletes the claim.
//!
//! Source: Kubernetes documentation, "StatefulSets: PersistentVolumeClaim retention".

use berth_runtime::owned_by;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;

const DELETE: &str = "Delete";

/// The claim with the owners that the policy requires; `None` if it already has them. `is_surplus`
/// is true if the set no longer has the pod's ordinal. A claim with another controller is not
/// changed.
pub fn updated(
    set: &StatefulSet,
    pod: &Pod,
    is_surplus: bool,
    claim: &PersistentVolumeClaim,
) -> Option<PersistentVolumeClaim> {
    let policy = set.spec.as_ref().and_then(|spec| spec.persistent_volume_claim_retention_policy.clone());
    let policy = policy.unwrap_or_default();
    let is_delete = |when: &Option<String>| when.as_deref() == Some(DELETE);
    let goes_with_pod = is_delete(&policy.when_scaled) && is_surplus;
    let goes_with_set = is_delete(&policy.when_deleted) && !goes_with_pod;
    // Pods are compared by name, because earlier pods with this ordinal had other UIDs.
    let is_of_pod = |owner: &OwnerReference| owner.kind == "Pod" && owner.name == pod.name_any();
    let is_of_set = |owner: &OwnerReference| owner.kind == "StatefulSet" && owner.uid == set.uid().unwrap_or_default();
    let (ours, mut owners): (Vec<_>, Vec<_>) =
        claim.owner_references().iter().cloned().partition(|owner| is_of_pod(owner) || is_of_set(owner));
    if owners.iter().any(|owner| owner.controller == Some(true)) {
        return None;
    }
    let wanted = if goes_with_pod {
        Some(owned_by(pod))
    } else if goes_with_set {
        Some(owned_by(set))
    } else {
        None
    };
    let is_same = match (&wanted, ours.as_slice()) {
        (None, []) => true,
        (Some(wanted), [known]) => wanted.uid == known.uid,
        _ => false,
    };
    if is_same {
        return None;
    }
    owners.extend(wanted);
    let mut claim = claim.clone();
    claim.metadata.owner_references = (!owners.is_empty()).then_some(owners);
    Some(claim)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn set(when_deleted: &str, when_scaled: &str) -> StatefulSet {
        let policy = json!({"whenDeleted": when_deleted, "whenScaled": when_scaled});
        let spec = json!({"selector": {}, "template": {}, "persistentVolumeClaimRetentionPolicy": policy});
        serde_json::from_value(json!({"metadata": {"name": "db", "uid": "set"}, "spec": spec})).unwrap()
    }

    fn claim(owners: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "data-db-1", "ownerReferences": owners}})).unwrap()
    }

    fn owner(kind: &str, name: &str, uid: &str, controller: bool) -> Value {
        json!({"apiVersion": "x", "kind": kind, "name": name, "uid": uid, "controller": controller})
    }

    /// UIDs of the claim's owners after an update; `None` if there is none.
    fn owners(set: &StatefulSet, is_surplus: bool, known: Value) -> Option<Vec<String>> {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "db-1", "uid": "pod"}})).unwrap();
        let updated = updated(set, &pod, is_surplus, &claim(known))?;
        Some(updated.owner_references().iter().map(|owner| owner.uid.clone()).collect())
    }

    fn some(uids: &[&str]) -> Option<Vec<String>> {
        Some(uids.iter().map(|uid| (*uid).to_owned()).collect())
    }

    #[test]
    fn the_policy_decides_whether_set_or_pod_owns_the_claim() {
        let of_set = json!([owner("StatefulSet", "db", "set", true)]);
        let of_pod = json!([owner("Pod", "db-1", "pod", true)]);
        let keeps = set("Retain", "Retain");
        assert_eq!(owners(&keeps, false, json!([])), None);
        assert_eq!(owners(&keeps, true, of_set.clone()), some(&[]));
        let deletes = set("Delete", "Retain");
        assert_eq!(owners(&deletes, false, json!([])), some(&["set"]));
        assert_eq!(owners(&deletes, true, of_set.clone()), None);
        let shrinks = set("Retain", "Delete");
        assert_eq!(owners(&shrinks, false, json!([])), None);
        assert_eq!(owners(&shrinks, true, json!([])), some(&["pod"]));
        assert_eq!(owners(&shrinks, false, of_pod.clone()), some(&[]), "the set grew again");
        let both = set("Delete", "Delete");
        assert_eq!(owners(&both, true, of_set), some(&["pod"]));
        assert_eq!(owners(&both, false, of_pod), some(&["set"]));
        assert_eq!(owners(&both, true, json!([owner("Pod", "db-1", "former", true)])), some(&["pod"]));
    }

    #[test]
    fn owner_references_of_others_stay_and_a_claim_with_another_controller_is_not_changed() {
        let both = set("Delete", "Delete");
        assert_eq!(owners(&both, false, json!([owner("Backup", "b", "b", false)])), some(&["b", "set"]));
        assert_eq!(owners(&both, false, json!([owner("Backup", "b", "b", true)])), None);
    }
}
