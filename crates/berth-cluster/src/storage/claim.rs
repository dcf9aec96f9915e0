//! The next write for a claim: its volume, and its status.
//!
//! A pure function of the claim and of its possible volumes. One write is planned at a time; the
//! next write is planned from its result. Messages and reasons are those of
//! kube-controller-manager's binder.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use super::facts::{
    BIND_COMPLETED, BOUND_BY_CONTROLLER, NO_PROVISIONER, PROVISIONER, SELECTED_NODE, claim_annotation, claim_phase,
    claim_ref, claim_uid, class_of_claim, refers_to, volume_name, waits_for_consumer, wants_default_class,
};
use super::matching::{self, Search};
use super::step::{Note, Plan};

/// The binder's information about one claim.
pub struct Situation<'a> {
    /// The claim.
    pub claim: &'a PersistentVolumeClaim,
    /// Volumes without a claim of the claim's class, and those that refer to the claim.
    pub volumes: &'a [Arc<PersistentVolume>],
    /// The volume that the claim names.
    pub named: Option<Arc<PersistentVolume>>,
    /// The claim's storage class.
    pub class: Option<&'a StorageClass>,
    /// Name of the cluster's default class.
    pub default_class: Option<String>,
    /// Names of the pods that use the claim and have no node.
    pub waiting_pods: Vec<String>,
}

/// One write, or none.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing to write.
    Wait,
    /// Set `storageClassName` to the default class.
    AssignClass(String),
    /// Request a volume from this provisioner.
    Provision(String),
    /// Write the reference to the claim into the volume.
    BindVolume(Arc<PersistentVolume>),
    /// Write the volume's name into the claim, and mark it as bound.
    BindClaim(Arc<PersistentVolume>),
    /// Replace the status.
    Status(Box<PersistentVolumeClaimStatus>),
}

/// Plans the next write for a claim.
pub fn plan(situation: &Situation<'_>) -> Plan<Step> {
    if claim_annotation(situation.claim, BIND_COMPLETED).is_some() {
        return plan_bound(situation);
    }
    match volume_name(situation.claim) {
        Some(name) => plan_named(situation, name),
        None => plan_unbound(situation),
    }
}

/// Plans a claim without `volumeName`: finds a volume, or has one provisioned.
fn plan_unbound(situation: &Situation<'_>) -> Plan<Step> {
    let claim = situation.claim;
    if claim.metadata.deletion_timestamp.is_some() {
        return Step::Wait.into();
    }
    if let (true, Some(class)) = (wants_default_class(claim), &situation.default_class) {
        return Step::AssignClass(class.clone()).into();
    }
    let is_delayed =
        situation.class.is_some_and(waits_for_consumer) && claim_annotation(claim, SELECTED_NODE).is_none();
    let search = if is_delayed { Search::Reserved } else { Search::Any };
    if let Some(volume) = matching::best(claim, situation.volumes, search, &BTreeSet::new()) {
        return bind(volume, claim).into();
    }
    if is_delayed {
        let (reason, message) = match situation.waiting_pods.as_slice() {
            [] => ("WaitForFirstConsumer", "waiting for first consumer to be created before binding".to_owned()),
            pods => ("WaitForPodScheduled", format!("waiting for pod {} to be scheduled", pods.join(","))),
        };
        return pending(claim, Note::normal(reason, message));
    }
    match class_of_claim(claim) {
        "" => {
            let message = "no persistent volumes available for this claim and no storage class is set";
            pending(claim, Note::normal("FailedBinding", message))
        }
        class => plan_provisioning(situation, class),
    }
}

fn plan_provisioning(situation: &Situation<'_>, class_name: &str) -> Plan<Step> {
    let claim = situation.claim;
    let failed = |message: String| pending(claim, Note::warning("ProvisioningFailed", message));
    let Some(class) = situation.class else {
        return failed(format!("storageclass.storage.k8s.io \"{class_name}\" not found"));
    };
    let provisioner = class.provisioner.as_str();
    if provisioner == NO_PROVISIONER {
        return failed(format!("no volume plugin matched name: {provisioner}"));
    }
    if claim_annotation(claim, PROVISIONER) != Some(provisioner) {
        return Step::Provision(provisioner.to_owned()).into();
    }
    let message = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
         system administrator. If volume creation is delayed, please verify that the provisioner is running and \
         correctly registered."
    );
    let is_ours = provisioner == super::local::PROVISIONER_NAME;
    pending(claim, (!is_ours).then(|| Note::normal("ExternalProvisioning", message)))
}

/// Plans a claim that names a volume, but is not bound to it yet.
fn plan_named(situation: &Situation<'_>, name: &str) -> Plan<Step> {
    let claim = situation.claim;
    let Some(volume) = &situation.named else { return pending(claim, None) };
    if refers_to(volume, claim) {
        return bind(volume, claim).into();
    }
    if claim_ref(volume).is_some() {
        let is_own_choice = claim_annotation(claim, BOUND_BY_CONTROLLER).is_none();
        let message = format!("volume \"{name}\" already bound to a different claim.");
        return pending(claim, is_own_choice.then(|| Note::warning("FailedBinding", message)));
    }
    match matching::check(volume, claim) {
        Ok(()) => bind(volume, claim).into(),
        Err(why) => {
            let message = format!("Cannot bind to requested volume \"{name}\": {why}");
            pending(claim, Note::warning("VolumeMismatch", message))
        }
    }
}

/// Plans a claim that was bound: it remains bound, or is lost.
fn plan_bound(situation: &Situation<'_>) -> Plan<Step> {
    let claim = situation.claim;
    if volume_name(claim).is_none() {
        let message = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
        return lost(claim, "ClaimLost", message);
    }
    let Some(volume) = &situation.named else {
        return lost(claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!");
    };
    if claim_ref(volume).is_none() || claim_uid(volume) == claim.metadata.uid.as_deref() {
        return bind(volume, claim).into();
    }
    let message = "Two claims are bound to the same volume, this one is bound incorrectly";
    lost(claim, "ClaimMisbound", message)
}

/// The next write that binds a claim and a volume to each other: first the volume, then the claim,
/// then the claim's status. The volume's status is part of the volume's plan.
fn bind(volume: &Arc<PersistentVolume>, claim: &PersistentVolumeClaim) -> Step {
    if claim_uid(volume) != claim.metadata.uid.as_deref() {
        return Step::BindVolume(volume.clone());
    }
    let is_named = volume_name(claim) == volume.metadata.name.as_deref();
    if !is_named || claim_annotation(claim, BIND_COMPLETED).is_none() {
        return Step::BindClaim(volume.clone());
    }
    if claim_phase(claim) == "Bound" {
        return Step::Wait;
    }
    let spec = volume.spec.clone().unwrap_or_default();
    Step::Status(Box::new(PersistentVolumeClaimStatus {
        phase: Some("Bound".to_owned()),
        access_modes: spec.access_modes,
        capacity: spec.capacity,
        current_volume_attributes_class_name: spec.volume_attributes_class_name.filter(|name| !name.is_empty()),
        ..claim.status.clone().unwrap_or_default()
    }))
}

fn pending(claim: &PersistentVolumeClaim, note: impl Into<Option<Note>>) -> Plan<Step> {
    Plan { step: set_phase(claim, "Pending"), note: note.into() }
}

/// The claim is lost. The event is recorded once.
fn lost(claim: &PersistentVolumeClaim, reason: &'static str, message: &str) -> Plan<Step> {
    let step = set_phase(claim, "Lost");
    let is_new = step != Step::Wait;
    Plan { step, note: is_new.then(|| Note::warning(reason, message)) }
}

fn set_phase(claim: &PersistentVolumeClaim, phase: &str) -> Step {
    if claim_phase(claim) == phase {
        return Step::Wait;
    }
    // Only a bound claim has access modes and a capacity.
    let status = claim.status.clone().unwrap_or_default();
    Step::Status(Box::new(PersistentVolumeClaimStatus {
        phase: Some(phase.to_owned()),
        access_modes: None,
        capacity: None,
        ..status
    }))
}

/// The volume with a reference to the claim.
pub fn with_reference(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> PersistentVolume {
    let mut bound = volume.clone();
    if !refers_to(volume, claim) {
        bound.annotations_mut().insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
    }
    bound.spec.get_or_insert_default().claim_ref = Some(reference(claim));
    bound
}

/// A reference to a claim, as in volumes.
pub fn reference(claim: &PersistentVolumeClaim) -> k8s_openapi::api::core::v1::ObjectReference {
    k8s_openapi::api::core::v1::ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: claim.metadata.namespace.clone(),
        name: claim.metadata.name.clone(),
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        ..Default::default()
    }
}

/// The claim with the name of its volume.
pub fn with_volume(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> PersistentVolumeClaim {
    let mut bound = claim.clone();
    if volume_name(claim) != volume.metadata.name.as_deref() {
        bound.spec.get_or_insert_default().volume_name = volume.metadata.name.clone();
        bound.annotations_mut().insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
    }
    bound.annotations_mut().insert(BIND_COMPLETED.to_owned(), "yes".to_owned());
    bound
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;
    use serde_json::{Value, json};

    fn class(mode: &str, provisioner: &str) -> StorageClass {
        serde_json::from_value(
            json!({"metadata": {"name": "std"}, "provisioner": provisioner, "volumeBindingMode": mode}),
        )
        .unwrap()
    }

    fn claim(more: Value) -> PersistentVolumeClaim {
        let mut all = json!({"spec": {"storageClassName": ""}});
        samples::merge(&mut all, more);
        samples::claim("c", "5Gi", all)
    }

    fn volume(more: Value) -> Arc<PersistentVolume> {
        Arc::new(samples::volume("v", "5Gi", more))
    }

    /// The plan for a claim with these volumes, one of which it may name.
    fn next(
        claim: &PersistentVolumeClaim,
        class: Option<&StorageClass>,
        volumes: &[Arc<PersistentVolume>],
    ) -> Plan<Step> {
        let named = volumes.iter().find(|volume| volume.metadata.name.as_deref() == volume_name(claim)).cloned();
        plan(&Situation { claim, volumes, named, class, default_class: Some("std".into()), waiting_pods: Vec::new() })
    }

    fn reason(plan: &Plan<Step>) -> Option<&'static str> {
        plan.note.as_ref().map(|note| note.reason)
    }

    #[test]
    fn binding_writes_the_volume_then_the_claim_then_its_status() {
        let free = volume(json!({}));
        let claim = claim(json!({}));
        assert_eq!(next(&claim, None, std::slice::from_ref(&free)).step, Step::BindVolume(free.clone()));
        let volume = Arc::new(with_reference(&free, &claim));
        assert_eq!(volume.annotations()[BOUND_BY_CONTROLLER], "yes");
        assert_eq!(next(&claim, None, std::slice::from_ref(&volume)).step, Step::BindClaim(volume.clone()));
        let mut claim = with_volume(&claim, &volume);
        assert_eq!(claim.annotations()[BIND_COMPLETED], "yes");
        let Step::Status(status) = next(&claim, None, std::slice::from_ref(&volume)).step else { panic!("no status") };
        assert_eq!(
            json!(status),
            json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "5Gi"}})
        );
        claim.status = Some(*status);
        assert_eq!(next(&claim, None, &[volume]), Plan::from(Step::Wait));
    }

    #[test]
    fn a_claim_without_a_class_gets_the_default_class_or_waits() {
        let open = samples::claim("c", "5Gi", json!({}));
        assert_eq!(next(&open, None, &[]).step, Step::AssignClass("std".into()));
        let none = next(&claim(json!({})), None, &[]);
        assert_eq!((reason(&none), none.step), (Some("FailedBinding"), Step::Wait));
    }

    #[test]
    fn a_class_that_waits_for_a_consumer_provisions_for_the_selected_node() {
        let waiting = class("WaitForFirstConsumer", "x.io/y");
        let of_class = claim(json!({"spec": {"storageClassName": "std"}}));
        let free = volume(json!({"spec": {"storageClassName": "std"}}));
        assert_eq!(reason(&next(&of_class, Some(&waiting), &[free])), Some("WaitForFirstConsumer"));
        let pods = Situation {
            claim: &of_class,
            volumes: &[],
            named: None,
            class: Some(&waiting),
            default_class: None,
            waiting_pods: vec!["p".into()],
        };
        assert_eq!(plan(&pods).note.unwrap().message, "waiting for pod p to be scheduled");
        let mut selected = of_class.clone();
        selected.annotations_mut().insert(SELECTED_NODE.into(), "n".into());
        assert_eq!(next(&selected, Some(&waiting), &[]).step, Step::Provision("x.io/y".into()));
        selected.annotations_mut().insert(PROVISIONER.into(), "x.io/y".into());
        let asked = next(&selected, Some(&waiting), &[]);
        assert_eq!((reason(&asked), asked.step), (Some("ExternalProvisioning"), Step::Wait));
    }

    #[test]
    fn an_immediate_class_provisions_at_once_or_reports_why_not() {
        let of_class = claim(json!({"spec": {"storageClassName": "std"}}));
        let immediate = class("Immediate", "x.io/y");
        assert_eq!(next(&of_class, Some(&immediate), &[]).step, Step::Provision("x.io/y".into()));
        let missing = next(&of_class, None, &[]);
        assert_eq!(missing.note.unwrap().message, "storageclass.storage.k8s.io \"std\" not found");
        let manual = next(&of_class, Some(&class("Immediate", NO_PROVISIONER)), &[]);
        assert_eq!(manual.note.unwrap().message, "no volume plugin matched name: kubernetes.io/no-provisioner");
    }

    #[test]
    fn a_claim_that_names_a_volume_gets_only_that_volume() {
        let named = claim(json!({"spec": {"volumeName": "v"}}));
        let free = volume(json!({}));
        assert_eq!(next(&named, None, std::slice::from_ref(&free)).step, Step::BindVolume(free));
        assert_eq!(next(&named, None, &[]), Plan::from(Step::Wait), "the volume may come later");
        let small = Arc::new(samples::volume("v", "1Gi", json!({})));
        let refused = next(&named, None, &[small]);
        assert_eq!(refused.note.unwrap().message, "Cannot bind to requested volume \"v\": requested PV is too small");
        let taken = volume(json!({"spec": {"claimRef": {"namespace": "ns", "name": "other", "uid": "u"}}}));
        assert_eq!(
            next(&named, None, &[taken]).note.unwrap().message,
            "volume \"v\" already bound to a different claim."
        );
    }

    #[test]
    fn a_bound_claim_is_lost_with_its_volume() {
        let mark = json!({"metadata": {"annotations": {BIND_COMPLETED: "yes"}}});
        let mut bound = claim(json!({"spec": {"volumeName": "v"}, "status": {"phase": "Bound",
            "capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteOnce"]}}));
        bound.annotations_mut().insert(BIND_COMPLETED.into(), "yes".into());
        let plan_lost = next(&bound, None, &[]);
        assert_eq!(reason(&plan_lost), Some("ClaimLost"));
        assert_eq!(plan_lost.step, Step::Status(Box::new(serde_json::from_value(json!({"phase": "Lost"})).unwrap())));
        let of_other = volume(json!({"spec": {"claimRef": {"namespace": "ns", "name": "other", "uid": "u"}}}));
        assert_eq!(reason(&next(&bound, None, &[of_other])), Some("ClaimMisbound"));
        let mut nameless = mark;
        samples::merge(&mut nameless, json!({"status": {"phase": "Lost"}}));
        assert_eq!(next(&claim(nameless), None, &[]), Plan::from(Step::Wait), "the event is recorded once");
        let forgotten = volume(json!({}));
        assert_eq!(next(&bound, None, std::slice::from_ref(&forgotten)).step, Step::BindVolume(forgotten));
    }
}
