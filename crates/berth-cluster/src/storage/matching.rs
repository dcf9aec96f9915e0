//! Matches volumes with a claim: size, access modes, volume mode, class, labels and node.
//!
//! Source: Kubernetes documentation, "Persistent Volumes: Binding", and the behaviour of
//! kube-controller-manager's binder.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::facts::{capacity, class_of_claim, class_of_volume, refers_to, requested, volume_phase};
use crate::placement::{Labels, matches_label_selector, matches_node_selector};

/// Why a volume that a claim names does not match it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The volume is smaller than the claim requests.
    #[error("requested PV is too small")]
    Size,
    /// The volume has another storage class.
    #[error("storageClassName does not match")]
    Class,
    /// One of volume and claim is for a block device, the other for a file system.
    #[error("incompatible volumeMode")]
    VolumeMode,
    /// The volume lacks an access mode.
    #[error("incompatible accessMode")]
    AccessModes,
    /// The volume and the claim have different VolumeAttributesClasses.
    #[error("volumeAttributesClassName does not match")]
    AttributesClass,
}

/// Checks a volume that the claim names.
///
/// # Errors
/// The first property that does not match.
pub fn check(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Result<(), Mismatch> {
    if capacity(volume) < requested(claim) {
        return Err(Mismatch::Size);
    }
    if class_of_volume(volume) != class_of_claim(claim) {
        return Err(Mismatch::Class);
    }
    if attributes_class(volume) != attributes_class_of_claim(claim) {
        return Err(Mismatch::AttributesClass);
    }
    if !has_same_mode(volume, claim) {
        return Err(Mismatch::VolumeMode);
    }
    if !has_access_modes(volume, claim) {
        return Err(Mismatch::AccessModes);
    }
    Ok(())
}

/// The node that must reach a volume.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// Name of the node.
    pub name: &'a str,
    /// Labels of the node.
    pub labels: &'a Labels,
}

/// Which volumes a search considers.
#[derive(Clone, Copy)]
pub enum Search<'a> {
    /// Any available volume, and one that is reserved for the claim.
    Any,
    /// Only a volume that is reserved for the claim: the scheduler chooses among all other volumes.
    Reserved,
    /// Volumes that this node can reach.
    On(Place<'a>),
}

/// The best volume for a claim: a volume that is reserved for it, or else the volume with the
/// fewest access modes, of these the smallest, of these the first by name.
pub fn best<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a Arc<PersistentVolume>>,
    search: Search<'_>,
    excluded: &BTreeSet<String>,
) -> Option<&'a Arc<PersistentVolume>> {
    let suits = |volume: &&Arc<PersistentVolume>| {
        !excluded.contains(volume.metadata.name.as_deref().unwrap_or_default())
            && volume.metadata.deletion_timestamp.is_none()
            && has_size_and_modes(volume, claim)
    };
    let mut free = Vec::new();
    for volume in volumes.into_iter().filter(suits) {
        let is_reachable = match search {
            Search::On(place) => is_reachable(volume, place),
            Search::Any | Search::Reserved => true,
        };
        if refers_to(volume, claim) {
            return is_reachable.then_some(volume);
        }
        if is_reachable && !matches!(search, Search::Reserved) && is_free_for(volume, claim) {
            free.push(volume);
        }
    }
    free.into_iter().min_by(|a, b| {
        let modes = |volume: &PersistentVolume| access_modes(volume).len();
        modes(a)
            .cmp(&modes(b))
            .then_with(|| capacity(a).partial_cmp(&capacity(b)).unwrap_or(std::cmp::Ordering::Equal))
            .then_with(|| a.name_any().cmp(&b.name_any()))
    })
}

/// True if the node can reach the volume.
pub fn is_reachable(volume: &PersistentVolume, place: Place<'_>) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    affinity
        .and_then(|affinity| affinity.required.as_ref())
        .is_none_or(|required| matches_node_selector(required, place.name, place.labels))
}

fn has_size_and_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    capacity(volume) >= requested(claim)
        && has_same_mode(volume, claim)
        && has_access_modes(volume, claim)
        && attributes_class(volume) == attributes_class_of_claim(claim)
}

/// True if the volume is available, of the claim's class, and selected by the claim.
fn is_free_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none())
        && volume_phase(volume) == "Available"
        && class_of_volume(volume) == class_of_claim(claim)
        && selector.is_none_or(|selector| matches_label_selector(Some(selector), volume.labels()))
}

fn access_modes(volume: &PersistentVolume) -> &[String] {
    volume.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default()
}

fn has_access_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let wanted = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    wanted.iter().all(|mode| access_modes(volume).contains(mode))
}

fn has_same_mode(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume_mode(volume) == claim_mode(claim)
}

fn volume_mode(volume: &PersistentVolume) -> &str {
    volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()).unwrap_or("Filesystem")
}

fn claim_mode(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()).unwrap_or("Filesystem")
}

fn attributes_class(volume: &PersistentVolume) -> &str {
    volume.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref()).unwrap_or_default()
}

fn attributes_class_of_claim(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::samples::{claim, volume};
    use super::*;
    use serde_json::{Value, json};

    fn found(claim: &PersistentVolumeClaim, volumes: &[Arc<PersistentVolume>], search: Search<'_>) -> Option<String> {
        best(claim, volumes, search, &BTreeSet::new()).map(|volume| volume.name_any())
    }

    fn of(name: &str, size: &str, more: Value) -> Arc<PersistentVolume> {
        Arc::new(volume(name, size, more))
    }

    #[test]
    fn the_smallest_volume_that_is_large_enough_is_chosen() {
        let volumes = [of("large", "20Gi", json!({})), of("small", "1Gi", json!({})), of("right", "6Gi", json!({}))];
        assert_eq!(found(&claim("c", "5Gi", json!({})), &volumes, Search::Any).as_deref(), Some("right"));
        assert_eq!(found(&claim("c", "21Gi", json!({})), &volumes, Search::Any), None);
    }

    #[test]
    fn a_volume_with_fewer_access_modes_comes_before_a_smaller_one() {
        let both = json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadWriteMany"]}});
        let volumes = [of("shared", "5Gi", both), of("own", "8Gi", json!({}))];
        assert_eq!(found(&claim("c", "5Gi", json!({})), &volumes, Search::Any).as_deref(), Some("own"));
        let shared = claim("c", "5Gi", json!({"spec": {"accessModes": ["ReadWriteMany"]}}));
        assert_eq!(found(&shared, &volumes, Search::Any).as_deref(), Some("shared"));
    }

    #[test]
    fn class_mode_labels_and_phase_must_match() {
        let fast = json!({"spec": {"storageClassName": "fast"}, "metadata": {"labels": {"tier": "gold"}}});
        for (of_claim, of_volume, is_found) in [
            (json!({"spec": {"storageClassName": "fast"}}), fast.clone(), true),
            (json!({}), fast.clone(), false),
            (json!({"spec": {"storageClassName": "fast", "volumeMode": "Block"}}), fast.clone(), false),
            (
                json!({"spec": {"storageClassName": "fast", "selector": {"matchLabels": {"tier": "gold"}}}}),
                fast.clone(),
                true,
            ),
            (json!({"spec": {"storageClassName": "fast", "selector": {"matchLabels": {"tier": "x"}}}}), fast, false),
            (json!({}), json!({"status": {"phase": "Released"}}), false),
            (json!({}), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), false),
            (json!({}), json!({"spec": {"claimRef": {"namespace": "ns", "name": "other"}}}), false),
        ] {
            let text = format!("{of_claim} {of_volume}");
            let volumes = [of("v", "5Gi", of_volume)];
            assert_eq!(found(&claim("c", "5Gi", of_claim), &volumes, Search::Any).is_some(), is_found, "{text}");
        }
    }

    #[test]
    fn a_volume_reserved_for_the_claim_wins_and_is_the_only_one_before_scheduling() {
        let reserved = json!({"spec": {"claimRef": {"namespace": "ns", "name": "c"}, "storageClassName": "other"}});
        let volumes = [of("free", "5Gi", json!({})), of("reserved", "50Gi", reserved)];
        let claim = claim("c", "5Gi", json!({}));
        assert_eq!(found(&claim, &volumes, Search::Any).as_deref(), Some("reserved"));
        assert_eq!(found(&claim, &volumes, Search::Reserved).as_deref(), Some("reserved"));
        assert_eq!(found(&claim, &volumes[..1], Search::Reserved), None);
    }

    #[test]
    fn a_volume_of_another_node_is_not_chosen_for_a_node() {
        let on = |node: &str| {
            json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}}}})
        };
        let volumes = [of("a", "5Gi", on("n1")), of("b", "6Gi", on("n2"))];
        let labels = Labels::from([("kubernetes.io/hostname".to_owned(), "n2".to_owned())]);
        let place = Place { name: "n2", labels: &labels };
        assert_eq!(found(&claim("c", "5Gi", json!({})), &volumes, Search::On(place)).as_deref(), Some("b"));
        let excluded = BTreeSet::from(["b".to_owned()]);
        assert!(best(&claim("c", "5Gi", json!({})), &volumes, Search::On(place), &excluded).is_none());
    }

    #[test]
    fn a_named_volume_that_does_not_match_is_reported() {
        let claim = claim("c", "5Gi", json!({}));
        for (size, more, why) in [
            ("5Gi", json!({}), None),
            ("4Gi", json!({}), Some(Mismatch::Size)),
            ("5Gi", json!({"spec": {"storageClassName": "x"}}), Some(Mismatch::Class)),
            ("5Gi", json!({"spec": {"volumeMode": "Block"}}), Some(Mismatch::VolumeMode)),
            ("5Gi", json!({"spec": {"accessModes": ["ReadOnlyMany"]}}), Some(Mismatch::AccessModes)),
        ] {
            assert_eq!(check(&volume("v", size, more), &claim).err(), why);
        }
    }
}
