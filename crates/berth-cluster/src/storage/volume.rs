//! The next write for a volume: its phase, and its reclamation after its claim is deleted.
//!
//! A pure function of the volume and its claim, with the messages and reasons of
//! kube-controller-manager's binder.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::facts::{
    BOUND_BY_CONTROLLER, PROVISIONED_BY, claim_ref, claim_uid, volume_annotation, volume_name, volume_phase,
};
use super::step::{Note, Plan};

/// One write, or none.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing to write.
    Wait,
    /// Reconcile the claim, which completes its binding.
    WakeClaim,
    /// Set the phase, with a message about a failure.
    Phase(&'static str, String),
    /// Remove the reference to the claim, which the controller wrote.
    RemoveReference,
    /// Keep the reservation for a claim, and remove the claim's UID.
    KeepReservation,
}

/// Plans the next write. `claim` is the existing claim of the name that the volume refers to.
pub fn plan(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> Plan<Step> {
    if claim_ref(volume).is_none() {
        return phase(volume, "Available").into();
    }
    let Some(uid) = claim_uid(volume) else {
        // The volume is reserved for a claim by the claim's name.
        return match phase(volume, "Available") {
            Step::Wait => Step::WakeClaim.into(),
            step => step.into(),
        };
    };
    let Some(claim) = claim.filter(|claim| claim.metadata.uid.as_deref() == Some(uid)) else {
        return release(volume);
    };
    match volume_name(claim) {
        None => plan_unfinished(volume, claim),
        Some(name) if Some(name) == volume.metadata.name.as_deref() => phase(volume, "Bound").into(),
        Some(_) => plan_forsaken(volume),
    }
}

/// Plans a volume that its claim does not name yet.
fn plan_unfinished(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Plan<Step> {
    let mode = |mode: Option<&String>| mode.map_or("Filesystem", String::as_str).to_owned();
    let of_volume = mode(volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref()));
    let of_claim = mode(claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref()));
    if of_volume == of_claim {
        return Step::WakeClaim.into();
    }
    let message = format!(
        "Cannot bind PersistentVolume to requested PersistentVolumeClaim \"{}\" due to incompatible volumeMode.",
        claim.name_any()
    );
    Plan { step: Step::Wait, note: Some(Note::warning("VolumeMismatch", message)) }
}

/// Plans a volume whose claim has another volume.
fn plan_forsaken(volume: &PersistentVolume) -> Plan<Step> {
    let is_provisioned = volume_annotation(volume, PROVISIONED_BY).is_some();
    if is_provisioned && policy(volume) == "Delete" {
        // The volume was provisioned for this claim, which was bound to another volume in the
        // meantime.
        return release(volume);
    }
    match volume_annotation(volume, BOUND_BY_CONTROLLER) {
        Some(_) => Step::RemoveReference.into(),
        None => Step::KeepReservation.into(),
    }
}

/// Plans a volume whose claim was deleted: releases the volume, then reclaims it.
fn release(volume: &PersistentVolume) -> Plan<Step> {
    match volume_phase(volume) {
        "Released" | "Failed" => reclaim(volume),
        _ => Step::Phase("Released", String::new()).into(),
    }
}

/// Executes the reclaim policy of a volume whose claim was deleted.
fn reclaim(volume: &PersistentVolume) -> Plan<Step> {
    let (reason, message) = match policy(volume) {
        "Retain" => return Step::Wait.into(),
        // The provisioner deletes its own volumes.
        "Delete" if volume_annotation(volume, PROVISIONED_BY).is_some() => return Step::Wait.into(),
        "Delete" => {
            let name = volume.name_any();
            let cause = "no deletable volume plugin matched";
            ("VolumeFailedDelete", format!("error getting deleter volume plugin for volume \"{name}\": {cause}"))
        }
        "Recycle" => ("VolumeFailedRecycle", "No recycler plugin found for the volume!".to_owned()),
        _ => ("VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy".to_owned()),
    };
    if volume_phase(volume) == "Failed" {
        return Step::Wait.into();
    }
    let note = Some(Note::warning(reason, message.clone()));
    Plan { step: Step::Phase("Failed", message), note }
}

fn policy(volume: &PersistentVolume) -> &str {
    volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()).unwrap_or("Retain")
}

fn phase(volume: &PersistentVolume, phase: &'static str) -> Step {
    if volume_phase(volume) == phase { Step::Wait } else { Step::Phase(phase, String::new()) }
}

/// The volume after [`Step::RemoveReference`] or [`Step::KeepReservation`].
pub fn unbound(volume: &PersistentVolume, keep_reservation: bool) -> PersistentVolume {
    let mut unbound = volume.clone();
    let spec = unbound.spec.get_or_insert_default();
    if keep_reservation {
        if let Some(reference) = &mut spec.claim_ref {
            reference.uid = None;
        }
    } else {
        spec.claim_ref = None;
        unbound.annotations_mut().remove(BOUND_BY_CONTROLLER);
    }
    unbound
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;
    use serde_json::{Value, json};

    fn volume(more: Value) -> PersistentVolume {
        samples::volume("v", "5Gi", more)
    }

    fn bound_to(uid: &str, phase: &str, more: Value) -> PersistentVolume {
        let mut all = json!({"spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": uid}},
            "status": {"phase": phase}});
        samples::merge(&mut all, more);
        volume(all)
    }

    fn claim(more: Value) -> PersistentVolumeClaim {
        samples::claim("c", "5Gi", more)
    }

    fn step(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> Step {
        plan(volume, claim).step
    }

    #[test]
    fn a_volume_is_available_until_a_claim_names_it() {
        assert_eq!(
            step(&volume(json!({"status": {"phase": "Pending"}})), None),
            Step::Phase("Available", String::new())
        );
        assert_eq!(step(&volume(json!({})), None), Step::Wait);
        let reserved = volume(json!({"spec": {"claimRef": {"namespace": "ns", "name": "c"}}}));
        assert_eq!(step(&reserved, None), Step::WakeClaim);
        let half = bound_to("uid-of-c", "Available", json!({}));
        assert_eq!(step(&half, Some(&claim(json!({})))), Step::WakeClaim);
        let named = claim(json!({"spec": {"volumeName": "v"}}));
        assert_eq!(step(&half, Some(&named)), Step::Phase("Bound", String::new()));
        assert_eq!(step(&bound_to("uid-of-c", "Bound", json!({})), Some(&named)), Step::Wait);
    }

    #[test]
    fn a_volume_is_released_when_its_claim_is_deleted_or_recreated() {
        let bound = bound_to("uid-of-c", "Bound", json!({}));
        assert_eq!(step(&bound, None), Step::Phase("Released", String::new()));
        let again = claim(json!({"metadata": {"uid": "another"}}));
        assert_eq!(step(&bound, Some(&again)), Step::Phase("Released", String::new()));
        assert_eq!(step(&bound_to("uid-of-c", "Released", json!({})), None), Step::Wait, "it is retained");
    }

    #[test]
    fn a_volume_that_cannot_be_reclaimed_fails_once() {
        for (policy, reason) in [("Delete", "VolumeFailedDelete"), ("Recycle", "VolumeFailedRecycle")] {
            let policy = json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
            let plan_failed = plan(&bound_to("uid-of-c", "Released", policy.clone()), None);
            assert!(matches!(plan_failed.step, Step::Phase("Failed", _)), "{plan_failed:?}");
            assert_eq!(plan_failed.note.map(|note| note.reason), Some(reason));
            assert_eq!(plan(&bound_to("uid-of-c", "Failed", policy), None), Plan::from(Step::Wait));
        }
        let provisioned = json!({"metadata": {"annotations": {PROVISIONED_BY: "x"}},
            "spec": {"persistentVolumeReclaimPolicy": "Delete"}});
        assert_eq!(
            step(&bound_to("uid-of-c", "Released", provisioned), None),
            Step::Wait,
            "its provisioner deletes it"
        );
    }

    #[test]
    fn a_volume_whose_claim_has_another_volume_is_available_again() {
        let elsewhere = claim(json!({"spec": {"volumeName": "other"}}));
        let by_user = bound_to("uid-of-c", "Available", json!({}));
        assert_eq!(step(&by_user, Some(&elsewhere)), Step::KeepReservation);
        assert_eq!(claim_uid(&unbound(&by_user, true)), None);
        let mark = json!({"metadata": {"annotations": {BOUND_BY_CONTROLLER: "yes"}}});
        let by_us = bound_to("uid-of-c", "Available", mark);
        assert_eq!(step(&by_us, Some(&elsewhere)), Step::RemoveReference);
        let free = unbound(&by_us, false);
        assert!(claim_ref(&free).is_none() && volume_annotation(&free, BOUND_BY_CONTROLLER).is_none());
        let provisioned = json!({"metadata": {"annotations": {PROVISIONED_BY: "x"}},
            "spec": {"persistentVolumeReclaimPolicy": "Delete"}});
        let left = bound_to("uid-of-c", "Available", provisioned);
        assert_eq!(step(&left, Some(&elsewhere)), Step::Phase("Released", String::new()));
    }

    #[test]
    fn a_block_volume_is_not_bound_to_a_claim_for_files() {
        let block = bound_to("uid-of-c", "Available", json!({"spec": {"volumeMode": "Block"}}));
        let refused = plan(&block, Some(&claim(json!({}))));
        assert_eq!((refused.step, refused.note.map(|note| note.reason)), (Step::Wait, Some("VolumeMismatch")));
    }
}
