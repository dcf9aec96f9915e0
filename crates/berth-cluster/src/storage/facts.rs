//! Fields of claims, volumes and storage classes, under Kubernetes' names.

use berth_apimachinery::quantity::Quantity;
use berth_apimachinery::well_known::{self, STORAGE_CLASS_BETA};
use berth_runtime::ObjectKey;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

/// Annotation of a claim whose binding was completed.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Annotation of a claim or volume whose partner the controller chose.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Annotation of a volume: the provisioner that created it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Annotation of a claim: the node that the scheduler chose for its first consumer.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Annotation of a claim: the provisioner that must create its volume.
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// Older name of [`PROVISIONER`], which is still written.
pub const PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// Annotations that make a storage class the default.
const DEFAULT_CLASS: [&str; 2] = [well_known::DEFAULT_STORAGE_CLASS, well_known::DEFAULT_STORAGE_CLASS_BETA];
/// Provisioner of classes whose volumes an administrator creates.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(name).map(String::as_str)
}

/// Value of a claim's annotation.
pub fn claim_annotation<'a>(claim: &'a PersistentVolumeClaim, name: &str) -> Option<&'a str> {
    annotation(&claim.metadata, name)
}

/// Value of a volume's annotation.
pub fn volume_annotation<'a>(volume: &'a PersistentVolume, name: &str) -> Option<&'a str> {
    annotation(&volume.metadata, name)
}

/// Name of the claim's storage class; empty if it has none.
pub fn class_of_claim(claim: &PersistentVolumeClaim) -> &str {
    annotation(&claim.metadata, STORAGE_CLASS_BETA)
        .or_else(|| claim.spec.as_ref()?.storage_class_name.as_deref())
        .unwrap_or_default()
}

/// True if the claim leaves its storage class to the cluster's default.
pub fn wants_default_class(claim: &PersistentVolumeClaim) -> bool {
    annotation(&claim.metadata, STORAGE_CLASS_BETA).is_none()
        && claim.spec.as_ref().is_none_or(|spec| spec.storage_class_name.is_none())
}

/// Name of the volume's storage class; empty if it has none.
pub fn class_of_volume(volume: &PersistentVolume) -> &str {
    annotation(&volume.metadata, STORAGE_CLASS_BETA)
        .or_else(|| volume.spec.as_ref()?.storage_class_name.as_deref())
        .unwrap_or_default()
}

/// The default of these storage classes: the newest of those marked as default, and of several
/// created at the same time the first by name, as upstream.
pub fn default_class<'a>(classes: impl Iterator<Item = &'a StorageClass>) -> Option<&'a StorageClass> {
    let is_default =
        |class: &&StorageClass| DEFAULT_CLASS.iter().any(|name| annotation(&class.metadata, name) == Some("true"));
    classes.filter(is_default).min_by_key(|class| {
        (std::cmp::Reverse(class.metadata.creation_timestamp.as_ref().map(|time| time.0)), class.name_any())
    })
}

/// True if volumes of the class are bound when the first pod that uses the claim is scheduled.
pub fn waits_for_consumer(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

/// The size that a claim requests.
pub fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let requests =
        claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()).and_then(|resources| resources.requests.as_ref());
    requests.and_then(|requests| requests.get("storage")).map_or(Quantity::ZERO, |size| parse(&size.0))
}

/// The size of a volume.
pub fn capacity(volume: &PersistentVolume) -> Quantity {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    capacity.and_then(|capacity| capacity.get("storage")).map_or(Quantity::ZERO, |size| parse(&size.0))
}

/// A quantity; zero if it cannot be parsed, which the API server rejects.
pub fn parse(text: &str) -> Quantity {
    Quantity::parse(text).unwrap_or(Quantity::ZERO)
}

/// Name of the claim's volume, if the claim names one.
pub fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

/// True if the claim's binding is complete: pods may use it.
pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    volume_name(claim).is_some() && claim_annotation(claim, BIND_COMPLETED).is_some()
}

/// The claim's phase; empty without a status.
pub fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The volume's phase; empty without a status.
pub fn volume_phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The claim that the volume refers to.
pub fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// Key of the claim that the volume refers to.
pub fn claim_key(volume: &PersistentVolume) -> Option<ObjectKey> {
    let reference = claim_ref(volume)?;
    Some(ObjectKey::namespaced(
        reference.namespace.clone().unwrap_or_default(),
        reference.name.clone().unwrap_or_default(),
    ))
}

/// True if the volume refers to this claim: by name and, unless the reference has no UID yet, by
/// UID.
pub fn refers_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_ref(volume).is_some_and(|reference| {
        reference.name == claim.metadata.name
            && reference.namespace == claim.metadata.namespace
            && reference.uid.as_deref().is_none_or(|uid| uid.is_empty() || Some(uid) == claim.metadata.uid.as_deref())
    })
}

/// UID of the claim that the volume refers to, once the two are bound.
pub fn claim_uid(volume: &PersistentVolume) -> Option<&str> {
    claim_ref(volume)?.uid.as_deref().filter(|uid| !uid.is_empty())
}

/// A claim that a pod uses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// Name of the claim, in the pod's namespace.
    pub claim: String,
    /// True if the claim is created for this pod (`ephemeral`).
    pub is_ephemeral: bool,
}

/// The claims that a pod uses, in the order of its volumes.
pub fn uses(pod: &Pod) -> impl Iterator<Item = Use> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(Use { claim: claim.claim_name.clone(), is_ephemeral: false }),
        (None, Some(_)) => Some(Use { claim: ephemeral_name(pod, &volume.name), is_ephemeral: true }),
        (None, None) => None,
    })
}

/// Name of the claim of a pod's ephemeral volume.
pub fn ephemeral_name(pod: &Pod, volume: &str) -> String {
    format!("{}-{volume}", pod.name_any())
}

/// Reports an error unless the claim was created for this pod. The text is upstream's.
///
/// # Errors
/// The pod does not control the claim.
pub fn check_created_for(pod: &Pod, claim: &PersistentVolumeClaim) -> Result<(), String> {
    let owners = claim.metadata.owner_references.iter().flatten();
    let is_owner = owners
        .filter(|owner| owner.controller == Some(true))
        .any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref());
    if is_owner {
        return Ok(());
    }
    Err(format!("PVC {} was not created for pod {} (pod is not owner)", ObjectKey::of(claim), ObjectKey::of(pod)))
}

/// True if only one pod of the cluster may use the claim.
pub fn is_for_one_pod(claim: &PersistentVolumeClaim) -> bool {
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    modes.iter().any(|mode| mode == "ReadWriteOncePod")
}
