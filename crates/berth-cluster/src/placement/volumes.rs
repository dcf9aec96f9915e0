//! Requirements of a pod's claims on its node: volumes that the node can reach, or that can be
//! created for it.
//!
//! [`Storage`] has the claims, volumes and classes. [`VolumeNeeds`] has the requirements of one
//! pod, evaluated once and then checked for each node. Messages are those of kube-scheduler's
//! VolumeBinding, VolumeRestrictions and VolumeZone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_apimachinery::well_known;
use berth_runtime::ObjectKey;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use super::matching::Labels;
use super::{DeviceStore, PodInfo, Unfit};
use crate::storage::facts::{
    NO_PROVISIONER, SELECTED_NODE, Use, check_created_for, claim_annotation, claim_key, claim_phase, claim_ref,
    class_of_claim, class_of_volume, is_bound, is_for_one_pod, requested, uses, volume_name, waits_for_consumer,
};
use crate::storage::matching::{self, Place, Search};

/// Labels of volumes that can be reached in some zones or regions only.
const ZONE_LABELS: [&str; 4] = [well_known::ZONE, well_known::REGION, well_known::ZONE_BETA, well_known::REGION_BETA];

/// Claims, volumes, storage classes and devices.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    claims: BTreeMap<ObjectKey, Arc<PersistentVolumeClaim>>,
    volumes: BTreeMap<String, Arc<PersistentVolume>>,
    /// Volumes without a claim, by class.
    free: BTreeMap<String, BTreeSet<String>>,
    /// Volumes that refer to a claim, by the claim.
    reserved: BTreeMap<ObjectKey, BTreeSet<String>>,
    classes: BTreeMap<String, Arc<StorageClass>>,
    /// Volumes that decisions assigned to claims, until the API shows it.
    taken: BTreeMap<String, ObjectKey>,
    /// Claims of devices, and the devices.
    pub devices: DeviceStore,
}

impl Storage {
    /// Sets or removes a claim.
    pub fn set_claim(&mut self, key: &ObjectKey, claim: Option<Arc<PersistentVolumeClaim>>) {
        match claim {
            Some(claim) => self.claims.insert(key.clone(), claim),
            None => self.claims.remove(key),
        };
    }

    /// Sets or removes a volume.
    pub fn set_volume(&mut self, name: &str, volume: Option<Arc<PersistentVolume>>) {
        if let Some(old) = self.volumes.remove(name) {
            match claim_key(&old) {
                Some(key) => take_out(&mut self.reserved, &key, name),
                None => take_out(&mut self.free, &class_of_volume(&old).to_owned(), name),
            }
        }
        let Some(volume) = volume else { return };
        match claim_key(&volume) {
            Some(key) => {
                self.taken.remove(name);
                self.reserved.entry(key).or_default().insert(name.to_owned());
            }
            None => {
                self.free.entry(class_of_volume(&volume).to_owned()).or_default().insert(name.to_owned());
            }
        }
        self.volumes.insert(name.to_owned(), volume);
    }

    /// Sets or removes a storage class.
    pub fn set_class(&mut self, name: &str, class: Option<Arc<StorageClass>>) {
        match class {
            Some(class) => self.classes.insert(name.to_owned(), class),
            None => self.classes.remove(name),
        };
    }

    /// The claim with this key.
    pub fn claim(&self, key: &ObjectKey) -> Option<&Arc<PersistentVolumeClaim>> {
        self.claims.get(key)
    }

    /// The volume of this name.
    pub fn volume(&self, name: &str) -> Option<&Arc<PersistentVolume>> {
        self.volumes.get(name)
    }

    /// Assigns volumes to claims, so that no other pod chooses them.
    pub fn take(&mut self, choices: &[Choice]) {
        for choice in choices {
            if let Some(volume) = &choice.volume {
                self.taken.insert(volume.clone(), choice.claim.clone());
            }
        }
    }

    /// Reverts the assignment for this claim.
    pub fn give_back(&mut self, claim: &ObjectKey) {
        self.taken.retain(|_, of| of != claim);
    }

    /// Volumes that an unbound claim may get: those that refer to it, and the free ones of its
    /// class.
    fn candidates(&self, key: &ObjectKey, claim: &PersistentVolumeClaim) -> Vec<Arc<PersistentVolume>> {
        let reserved = self.reserved.get(key).into_iter().flatten();
        let free = self.free.get(class_of_claim(claim)).into_iter().flatten();
        let is_open = |name: &&String| self.taken.get(*name).is_none_or(|of| of == key);
        reserved.chain(free).filter(is_open).filter_map(|name| self.volumes.get(name).cloned()).collect()
    }

    /// Requirements of the pod's claims.
    pub fn needs(&self, pod: &Pod) -> VolumeNeeds {
        let namespace = pod.namespace().unwrap_or_default();
        let mut needs = VolumeNeeds::default();
        let mut has_unbound_immediate = false;
        for used in uses(pod) {
            let key = ObjectKey::namespaced(&namespace, &used.claim);
            let claim = match self.usable(pod, &key, &used) {
                Ok(claim) => claim,
                Err(why) => return VolumeNeeds { blocked: Some(why), ..VolumeNeeds::default() },
            };
            if is_for_one_pod(claim) {
                needs.exclusive.insert(key.clone());
            }
            if is_bound(claim) {
                match volume_name(claim).and_then(|name| self.volumes.get(name)) {
                    Some(volume) => needs.bound.push(volume.clone()),
                    None => needs.is_volume_missing = true,
                }
                continue;
            }
            let class_name = class_of_claim(claim);
            let class = self.classes.get(class_name);
            if class.is_none() && !class_name.is_empty() {
                let why = format!("storageclass.storage.k8s.io \"{class_name}\" not found");
                return VolumeNeeds { blocked: Some(why), ..VolumeNeeds::default() };
            }
            let Some(class) = class.filter(|class| waits_for_consumer(class) && volume_name(claim).is_none()) else {
                has_unbound_immediate = true;
                continue;
            };
            let candidates = self.candidates(&key, claim);
            needs.unbound.push(Unbound { key, claim: claim.clone(), class: class.clone(), candidates });
        }
        if has_unbound_immediate {
            let why = "pod has unbound immediate PersistentVolumeClaims".to_owned();
            return VolumeNeeds { blocked: Some(why), ..VolumeNeeds::default() };
        }
        // As in kube-scheduler, the smallest claims choose first.
        needs.unbound.sort_by(|a, b| {
            let sizes = requested(&a.claim).partial_cmp(&requested(&b.claim));
            sizes.unwrap_or(std::cmp::Ordering::Equal).then_with(|| a.key.cmp(&b.key))
        });
        needs
    }

    /// The claim, if the pod may use it now.
    fn usable(&self, pod: &Pod, key: &ObjectKey, used: &Use) -> Result<&Arc<PersistentVolumeClaim>, String> {
        let name = &key.name;
        let Some(claim) = self.claims.get(key) else {
            return Err(if used.is_ephemeral {
                format!("waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\"")
            } else {
                format!("persistentvolumeclaim \"{name}\" not found")
            });
        };
        if claim_phase(claim) == "Lost" {
            let volume = volume_name(claim).unwrap_or_default();
            return Err(format!(
                "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
            ));
        }
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("persistentvolumeclaim \"{name}\" is being deleted"));
        }
        if used.is_ephemeral {
            check_created_for(pod, claim)?;
        }
        Ok(claim)
    }
}

fn take_out<K: Ord>(sets: &mut BTreeMap<K, BTreeSet<String>>, key: &K, name: &str) {
    if let Some(names) = sets.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            sets.remove(key);
        }
    }
}

/// True if a change to the volume can help claims other than the one it refers to.
pub fn is_free(volume: &PersistentVolume) -> bool {
    claim_ref(volume).is_none()
}

/// A claim that waits for its pod's node.
#[derive(Clone, Debug)]
struct Unbound {
    key: ObjectKey,
    claim: Arc<PersistentVolumeClaim>,
    class: Arc<StorageClass>,
    candidates: Vec<Arc<PersistentVolume>>,
}

/// The choice for an unbound claim on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The claim.
    pub claim: ObjectKey,
    /// The existing volume; `None` if a volume is provisioned on the node.
    pub volume: Option<String>,
}

/// Requirements of the claims of one pod on its node.
#[derive(Clone, Debug, Default)]
pub struct VolumeNeeds {
    /// Why no node is suitable now.
    pub blocked: Option<String>,
    /// Claims that no other pod may use.
    pub exclusive: BTreeSet<ObjectKey>,
    bound: Vec<Arc<PersistentVolume>>,
    is_volume_missing: bool,
    unbound: Vec<Unbound>,
}

impl VolumeNeeds {
    /// True if all claims are bound, so that the pod can be bound to a node that fits.
    pub fn are_bound(&self) -> bool {
        self.blocked.is_none() && self.unbound.is_empty()
    }

    /// True if each claim is bound or waits for a volume on this node.
    pub fn are_for(&self, node: &str) -> bool {
        self.blocked.is_none()
            && self.unbound.iter().all(|unbound| {
                let is_reserved = unbound.candidates.iter().any(|volume| claim_ref(volume).is_some());
                is_reserved || claim_annotation(&unbound.claim, SELECTED_NODE) == Some(node)
            })
    }

    /// The choices for the unbound claims on a node.
    ///
    /// # Errors
    /// The first reason why the node does not fit.
    pub fn on(&self, name: &str, labels: &Labels) -> Result<Vec<Choice>, Unfit> {
        if let Some(why) = &self.blocked {
            return Err(Unfit::Claims(why.clone()));
        }
        if self.is_volume_missing {
            return Err(Unfit::VolumeMissing);
        }
        let place = Place { name, labels };
        if self.bound.iter().any(|volume| !matching::is_reachable(volume, place)) {
            return Err(Unfit::VolumeAffinity);
        }
        if self.bound.iter().any(|volume| !is_in_zone(volume, labels)) {
            return Err(Unfit::VolumeZone);
        }
        let mut chosen = BTreeSet::new();
        let mut choices = Vec::new();
        for unbound in &self.unbound {
            let claim = unbound.key.clone();
            let selected = claim_annotation(&unbound.claim, SELECTED_NODE);
            if selected.is_some_and(|selected| selected != name) {
                return Err(Unfit::NoVolume);
            }
            match matching::best(&unbound.claim, &unbound.candidates, Search::On(place), &chosen) {
                Some(volume) if selected.is_none() || claim_ref(volume).is_some() => {
                    chosen.insert(volume.name_any());
                    choices.push(Choice { claim, volume: Some(volume.name_any()) });
                }
                _ if can_provision(&unbound.class, labels) => choices.push(Choice { claim, volume: None }),
                _ => return Err(Unfit::NoVolume),
            }
        }
        Ok(choices)
    }
}

/// True if the class creates volumes, and does so for nodes with these labels.
fn can_provision(class: &StorageClass, labels: &Labels) -> bool {
    if class.provisioner == NO_PROVISIONER {
        return false;
    }
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    terms.is_empty()
        || terms.iter().any(|term| {
            term.match_label_expressions
                .iter()
                .flatten()
                .all(|requirement| labels.get(&requirement.key).is_some_and(|value| requirement.values.contains(value)))
        })
}

/// True unless the volume's labels name another zone or region than the node's.
fn is_in_zone(volume: &PersistentVolume, labels: &Labels) -> bool {
    ZONE_LABELS.iter().all(|label| match (volume.labels().get(*label), labels.get(*label)) {
        // Several values are separated by two underscores.
        (Some(zones), Some(zone)) => zones.split("__").any(|one| one == zone),
        // A node without zone labels is in every zone.
        (Some(_), None) => ZONE_LABELS.iter().all(|label| !labels.contains_key(*label)),
        (None, _) => true,
    })
}

impl PodInfo {
    /// Keys of the claims that the pod uses.
    pub fn claims(&self) -> impl Iterator<Item = ObjectKey> {
        uses(&self.pod).map(|used| ObjectKey::namespaced(&self.key.namespace, used.claim))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::samples;
    use serde_json::{Value, json};

    fn pod(volumes: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "uid-of-p"},
            "spec": {"containers": [], "volumes": volumes}}))
        .unwrap()
    }

    fn with_claim(name: &str) -> Pod {
        pod(json!([{"name": "v", "persistentVolumeClaim": {"claimName": name}}]))
    }

    fn storage(claims: &[PersistentVolumeClaim], volumes: &[PersistentVolume]) -> Storage {
        let mut storage = Storage::default();
        for claim in claims {
            storage.set_claim(&ObjectKey::of(claim), Some(Arc::new(claim.clone())));
        }
        for volume in volumes {
            storage.set_volume(&volume.name_any(), Some(Arc::new(volume.clone())));
        }
        let class = |name: &str, provisioner: &str| {
            let class = json!({"metadata": {"name": name}, "provisioner": provisioner,
                "volumeBindingMode": "WaitForFirstConsumer"});
            Some(Arc::new(serde_json::from_value(class).unwrap()))
        };
        storage.set_class("local", class("local", "example.com/local"));
        storage.set_class("manual", class("manual", NO_PROVISIONER));
        storage
    }

    fn of_class(class: &str) -> Value {
        json!({"spec": {"storageClassName": class}})
    }

    fn on_node(node: &str) -> Value {
        json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}}}})
    }

    fn labels(node: &str) -> Labels {
        Labels::from([("kubernetes.io/hostname".to_owned(), node.to_owned())])
    }

    fn both(mut a: Value, b: Value) -> Value {
        samples::merge(&mut a, b);
        a
    }

    #[test]
    fn claims_that_cannot_be_used_block_the_pod_on_every_node() {
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let lost = json!({"spec": {"volumeName": "v"}, "status": {"phase": "Lost"}});
        let storage = storage(
            &[
                samples::claim("open", "1Gi", of_class("")),
                samples::claim("deleted", "1Gi", deleted),
                samples::claim("lost", "1Gi", lost),
                samples::claim("classless", "1Gi", of_class("gone")),
                samples::claim("p-scratch", "1Gi", json!({})),
            ],
            &[],
        );
        let ephemeral = |name: &str| pod(json!([{"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]));
        for (pod, why) in [
            (with_claim("open"), "pod has unbound immediate PersistentVolumeClaims"),
            (with_claim("none"), "persistentvolumeclaim \"none\" not found"),
            (with_claim("deleted"), "persistentvolumeclaim \"deleted\" is being deleted"),
            (with_claim("lost"), "persistentvolumeclaim \"lost\" bound to non-existent persistentvolume \"v\""),
            (with_claim("classless"), "storageclass.storage.k8s.io \"gone\" not found"),
            (ephemeral("tmp"), "waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-tmp\""),
            (ephemeral("scratch"), "PVC ns/p-scratch was not created for pod ns/p (pod is not owner)"),
        ] {
            assert_eq!(storage.needs(&pod).blocked.as_deref(), Some(why));
        }
        assert!(storage.needs(&pod(json!([{"name": "v", "emptyDir": {}}]))).are_bound());
    }

    #[test]
    fn a_bound_volume_keeps_the_pod_to_its_nodes_and_zones() {
        let bound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
        let claims = [samples::claim("c", "1Gi", bound)];
        let needs = storage(&claims, &[samples::volume("v", "1Gi", on_node("n1"))]).needs(&with_claim("c"));
        assert_eq!(needs.on("n1", &labels("n1")), Ok(Vec::new()));
        assert_eq!(needs.on("n2", &labels("n2")), Err(Unfit::VolumeAffinity));
        let zonal = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "a__b"}}});
        let needs = storage(&claims, &[samples::volume("v", "1Gi", zonal)]).needs(&with_claim("c"));
        for (zone, fits) in [(Some("b"), true), (Some("c"), false), (None, true)] {
            let labels = zone.map(|zone| ("topology.kubernetes.io/zone".to_owned(), zone.to_owned()));
            assert_eq!(needs.on("n", &labels.into_iter().collect()).is_ok(), fits, "{zone:?}");
        }
        let needs = storage(&claims, &[]).needs(&with_claim("c"));
        assert_eq!(needs.on("n1", &labels("n1")), Err(Unfit::VolumeMissing));
    }

    #[test]
    fn a_waiting_claim_gets_a_volume_of_the_node_or_a_new_one() {
        let claims = [samples::claim("c", "1Gi", of_class("local")), samples::claim("m", "1Gi", of_class("manual"))];
        let volumes = [
            samples::volume("v1", "1Gi", both(of_class("local"), on_node("n1"))),
            samples::volume("m1", "1Gi", both(of_class("manual"), on_node("n1"))),
        ];
        let mut storage = storage(&claims, &volumes);
        let choice = |claim: &str, volume: Option<&str>| {
            Ok(vec![Choice { claim: ObjectKey::namespaced("ns", claim), volume: volume.map(str::to_owned) }])
        };
        let needs = storage.needs(&with_claim("c"));
        assert!(!needs.are_bound() && !needs.are_for("n1"));
        assert_eq!(needs.on("n1", &labels("n1")), choice("c", Some("v1")));
        assert_eq!(needs.on("n2", &labels("n2")), choice("c", None));
        let manual = storage.needs(&with_claim("m"));
        assert_eq!(manual.on("n1", &labels("n1")), choice("m", Some("m1")));
        assert_eq!(manual.on("n2", &labels("n2")), Err(Unfit::NoVolume));
        let other = Choice { claim: ObjectKey::namespaced("ns", "other"), volume: Some("m1".into()) };
        storage.take(std::slice::from_ref(&other));
        assert_eq!(storage.needs(&with_claim("m")).on("n1", &labels("n1")), Err(Unfit::NoVolume), "m1 is assigned");
        storage.give_back(&other.claim);
        assert!(storage.needs(&with_claim("m")).on("n1", &labels("n1")).is_ok());
    }

    #[test]
    fn a_claim_with_a_selected_node_waits_on_that_node() {
        let selected = json!({"metadata": {"annotations": {SELECTED_NODE: "n1"}}});
        let claims = [samples::claim("c", "1Gi", both(of_class("local"), selected))];
        let needs = storage(&claims, &[]).needs(&with_claim("c"));
        assert!(needs.are_for("n1") && !needs.are_for("n2"));
        assert!(needs.on("n1", &labels("n1")).is_ok());
        assert_eq!(needs.on("n2", &labels("n2")), Err(Unfit::NoVolume));
    }

    #[test]
    fn a_class_limits_the_nodes_for_which_it_creates_volumes() {
        let class = json!({"provisioner": "example.com/x", "allowedTopologies": [
            {"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}]});
        let class: StorageClass = serde_json::from_value(class).unwrap();
        let zone = |zone: &str| Labels::from([("zone".to_owned(), zone.to_owned())]);
        assert!(can_provision(&class, &zone("b")));
        assert!(!can_provision(&class, &zone("c")) && !can_provision(&class, &Labels::new()));
    }
}
