//! The provisioner `berth.dev/local`: creates volumes for claims and deletes them afterwards.
//!
//! On a node with [`VolumeFolders`] a volume is a folder of that machine, which only that node can
//! reach. Elsewhere a volume is simulated: it has no content, and every simulated node can reach
//! it, like a network disk. Sizes are recorded and not enforced.
//!
//! A folder is created before its volume, and the volume is deleted after its folder (a finalizer
//! holds it), so that an interrupted step is repeated. If a claim is deleted between the creation
//! of its folder and that of its volume, the empty folder remains.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_apimachinery::well_known::{self, HOSTNAME};
use berth_runtime::{
    Action, Cache, Error, EventType, Manager, ObjectKey, Reconciler, Recorder, brief, is_already_exists, is_conflict,
    is_not_found,
};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::claim::reference;
use super::facts::{
    PROVISIONED_BY, PROVISIONER, SELECTED_NODE, claim_annotation, class_of_claim, volume_annotation, volume_name,
    volume_phase, waits_for_consumer,
};
use super::{Folders, VolumeFolders};

/// Name of the provisioner.
pub const PROVISIONER_NAME: &str = "berth.dev/local";
/// Driver of simulated volumes; no node has it.
pub const SIMULATED_DRIVER: &str = "simulated.berth.dev";
/// Annotation on a volume that is a folder: name of the node that has the folder.
const NODE: &str = "berth.dev/volume-node";
/// Finalizer of a provisioned volume, which is removed once its folder is deleted.
const FINALIZER: &str = "berth.dev/volume-folder";

/// Adds the controllers.
pub fn install(manager: &mut Manager, folders: Folders) {
    let claims: Cache<PersistentVolumeClaim> = manager.cache();
    let volumes: Cache<PersistentVolume> = manager.cache();
    let classes: Cache<StorageClass> = manager.cache();
    let nodes = manager.nodes();
    let folders = Arc::new(folders);
    let (client, recorder) = (manager.client(), manager.recorder(PROVISIONER_NAME));
    manager.controller("volume-provisioner").watch_self(&claims).run(Provisioner {
        client: client.clone(),
        recorder: recorder.clone(),
        claims,
        volumes: volumes.clone(),
        classes,
        nodes,
        folders: folders.clone(),
    });
    manager.controller("volume-deleter").watch_self(&volumes).run(Deleter { client, recorder, volumes, folders });
}

/// True if this provisioner must create a volume for the claim now.
fn is_due(claim: &PersistentVolumeClaim, class: &StorageClass) -> bool {
    claim.metadata.deletion_timestamp.is_none()
        && volume_name(claim).is_none()
        && claim_annotation(claim, PROVISIONER) == Some(PROVISIONER_NAME)
        && class.provisioner == PROVISIONER_NAME
        && (!waits_for_consumer(class) || claim_annotation(claim, SELECTED_NODE).is_some())
}

/// Name of the volume of a claim.
fn name_for(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.uid().unwrap_or_default())
}

/// Why the claim cannot have a volume; `None` if it can.
fn unsupported(claim: &PersistentVolumeClaim, is_folder: bool) -> Option<&'static str> {
    let spec = claim.spec.as_ref()?;
    if spec.selector.is_some() {
        return Some("a claim with spec.selector gets no new volume; create a volume that the selector matches");
    }
    if !is_folder {
        return None;
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Some("the volumes of this machine are folders; spec.volumeMode must be Filesystem");
    }
    let has_source = spec.data_source.is_some() || spec.data_source_ref.is_some();
    has_source.then_some("the volumes of this machine start empty; spec.dataSource is not supported")
}

/// Storage of a new volume.
enum Backing<'a> {
    /// A folder on this node.
    Folder(&'a str),
    /// The volume has no storage. Nodes with these host names cannot use it.
    Simulated(Vec<String>),
}

/// The new volume of a claim, without the path of its folder.
fn volume_for(claim: &PersistentVolumeClaim, class: &StorageClass, backing: &Backing<'_>) -> Value {
    let spec = json!(claim.spec);
    let name = name_for(claim);
    let (own, hostnames, operator) = match backing {
        Backing::Folder(hostname) => (json!({"local": {"path": ""}}), json!([hostname]), "In"),
        Backing::Simulated(others) => {
            let own = json!({"csi": {"driver": SIMULATED_DRIVER, "volumeHandle": name}});
            (own, json!(others), "NotIn")
        }
    };
    let mut volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "annotations": {PROVISIONED_BY: PROVISIONER_NAME},
            "finalizers": [FINALIZER],
        },
        "spec": {
            "accessModes": spec["accessModes"],
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "claimRef": reference(claim),
            "mountOptions": class.mount_options,
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": class.name_any(),
            "volumeAttributesClassName": spec["volumeAttributesClassName"],
            "volumeMode": spec["volumeMode"],
        },
    });
    if let (Value::Object(target), Value::Object(own)) = (&mut volume["spec"], own) {
        target.extend(own);
    }
    if hostnames.as_array().is_some_and(|names| !names.is_empty()) {
        volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": HOSTNAME, "operator": operator, "values": hostnames},
        ]}]}});
    }
    volume
}

struct Provisioner {
    client: Client,
    recorder: Recorder,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    classes: Cache<StorageClass>,
    nodes: Cache<Node>,
    folders: Arc<Folders>,
}

impl Reconciler for Provisioner {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(claim) = self.claims.get(&key) else { return Ok(Action::Wait) };
        let class_name = class_of_claim(&claim);
        let Some(class) = self.classes.get(&ObjectKey::cluster(class_name)).filter(|class| is_due(&claim, class))
        else {
            return Ok(Action::Wait);
        };
        if self.volumes.get(&ObjectKey::cluster(name_for(&claim))).is_some() {
            return Ok(Action::Wait);
        }
        let failed = |why: &str| {
            let message = format!("failed to provision volume with StorageClass \"{class_name}\": {why}");
            self.recorder.event(claim.as_ref(), EventType::Warning, "ProvisioningFailed", &message);
        };
        let node = claim_annotation(&claim, SELECTED_NODE);
        if let Some(name) = node.filter(|name| self.nodes.get(&ObjectKey::cluster(*name)).is_none()) {
            failed(&format!("failed to get target node: node \"{name}\" not found"));
            // The scheduler chooses a node again.
            return self.clear_node(&claim).await;
        }
        // Without a selected node, the volume is on this machine if it is a node of the cluster.
        let node = node.or_else(|| self.folders.keys().next().map(String::as_str));
        let folders = node.and_then(|node| Some((node, self.folders.get(node)?.clone())));
        if let Some(why) = unsupported(&claim, folders.is_some()) {
            failed(why);
            return Ok(Action::Wait);
        }
        let message = format!("External provisioner is provisioning volume for claim \"{key}\"");
        self.recorder.event(claim.as_ref(), EventType::Normal, "Provisioning", &message);
        match self.create(&claim, &class, folders).await {
            Ok(name) => {
                let message = format!("Successfully provisioned volume {name}");
                self.recorder.event(claim.as_ref(), EventType::Normal, "ProvisioningSucceeded", &message);
                Ok(Action::Wait)
            }
            Err(error) => {
                failed(&brief(error.as_ref()));
                Err(error)
            }
        }
    }
}

impl Provisioner {
    fn hostname(&self, node: &str) -> String {
        let label = self.nodes.get(&ObjectKey::cluster(node)).and_then(|node| node.labels().get(HOSTNAME).cloned());
        label.unwrap_or_else(|| node.to_owned())
    }

    /// Creates the folder and then the volume of a claim. Returns the volume's name.
    async fn create(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        folders: Option<(&str, Arc<dyn VolumeFolders>)>,
    ) -> Result<String, Error> {
        let volume: PersistentVolume = match folders {
            None => {
                let others = self.folders.keys().map(|node| self.hostname(node)).collect();
                berth_api::json::from_value(volume_for(claim, class, &Backing::Simulated(others)))?
            }
            Some((node, folders)) => {
                let hostname = self.hostname(node);
                let mut volume: PersistentVolume =
                    berth_api::json::from_value(volume_for(claim, class, &Backing::Folder(&hostname)))?;
                volume.annotations_mut().insert(NODE.to_owned(), node.to_owned());
                let planned = volume.clone();
                let path = tokio::task::spawn_blocking(move || folders.create(&planned)).await??;
                if let Some(local) = volume.spec.as_mut().and_then(|spec| spec.local.as_mut()) {
                    local.path = path.display().to_string();
                }
                volume
            }
        };
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        match berth_runtime::write::create(&api, &PostParams::default(), &volume).await {
            Ok(created) => self.volumes.observe(created),
            Err(error) if is_already_exists(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(volume.name_any())
    }

    async fn clear_node(&self, claim: &PersistentVolumeClaim) -> Result<Action, Error> {
        let patch = json!({"metadata": {
            "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
            "annotations": {SELECTED_NODE: null},
        }});
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
        match berth_runtime::write::patch(&api, &claim.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await
        {
            Ok(claim) => self.claims.observe(claim),
            Err(error) if is_not_found(&error) || is_conflict(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Action::Wait)
    }
}

/// The next step for a provisioned volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disposal {
    /// No step.
    Keep,
    /// Delete the object, which its finalizers hold.
    DeleteVolume,
    /// Delete the folder, then remove the finalizer.
    DeleteFolder,
    /// Remove the finalizer: the folder is retained.
    RemoveFinalizer,
}

fn disposal(volume: &PersistentVolume) -> Disposal {
    if volume_annotation(volume, PROVISIONED_BY) != Some(PROVISIONER_NAME) {
        return Disposal::Keep;
    }
    let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let is_deletable = policy == Some("Delete");
    let phase = volume_phase(volume);
    if volume.metadata.deletion_timestamp.is_none() {
        let is_over = matches!(phase, "Released" | "Failed");
        return if is_over && is_deletable { Disposal::DeleteVolume } else { Disposal::Keep };
    }
    let has_finalizer = volume.finalizers().iter().any(|name| name == FINALIZER);
    if phase == "Bound" || !has_finalizer {
        return Disposal::Keep;
    }
    if is_deletable { Disposal::DeleteFolder } else { Disposal::RemoveFinalizer }
}

struct Deleter {
    client: Client,
    recorder: Recorder,
    volumes: Cache<PersistentVolume>,
    folders: Arc<Folders>,
}

impl Reconciler for Deleter {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(volume) = self.volumes.get(&key) else { return Ok(Action::Wait) };
        match disposal(&volume) {
            Disposal::Keep => {}
            Disposal::DeleteVolume => self.delete_volume(&volume).await?,
            Disposal::DeleteFolder => {
                if let Err(error) = self.delete_folder(&volume).await {
                    let message = brief(error.as_ref());
                    self.recorder.event(volume.as_ref(), EventType::Warning, "VolumeFailedDelete", &message);
                    return Err(error);
                }
                self.remove_finalizer(&volume).await?;
            }
            Disposal::RemoveFinalizer => self.remove_finalizer(&volume).await?,
        }
        Ok(Action::Wait)
    }
}

impl Deleter {
    async fn delete_volume(&self, volume: &PersistentVolume) -> Result<(), Error> {
        let preconditions = Preconditions {
            uid: volume.metadata.uid.clone(),
            resource_version: volume.metadata.resource_version.clone(),
        };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        match berth_runtime::write::delete(&api, &volume.name_any(), &params).await {
            Ok(answer) => {
                if let Some(volume) = answer {
                    self.volumes.observe(volume);
                }
                Ok(())
            }
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn delete_folder(&self, volume: &PersistentVolume) -> Result<(), Error> {
        let Some(node) = volume_annotation(volume, NODE) else { return Ok(()) };
        let Some(folders) = self.folders.get(node).cloned() else {
            return Err(format!("the volume is a folder of node \"{node}\", which this process does not run").into());
        };
        let volume = volume.clone();
        tokio::task::spawn_blocking(move || folders.delete(&volume)).await??;
        Ok(())
    }

    async fn remove_finalizer(&self, volume: &PersistentVolume) -> Result<(), Error> {
        let finalizers: Vec<_> = volume.finalizers().iter().filter(|name| *name != FINALIZER).collect();
        let patch = json!({"metadata": {
            "uid": volume.metadata.uid, "resourceVersion": volume.metadata.resource_version, "finalizers": finalizers,
        }});
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        match berth_runtime::write::patch(&api, &volume.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
            .await
        {
            // The API server deletes the object when its last finalizer is removed.
            Ok(written) if finalizers.is_empty() => self.volumes.observe_deleted(&written),
            Ok(written) => self.volumes.observe(written),
            Err(error) if is_not_found(&error) || is_conflict(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// The storage class that an embedded cluster has from the start: the default one.
pub fn standard_class() -> StorageClass {
    StorageClass {
        metadata: kube::api::ObjectMeta {
            name: Some("standard".to_owned()),
            annotations: Some(BTreeMap::from([(well_known::DEFAULT_STORAGE_CLASS.to_owned(), "true".to_owned())])),
            ..Default::default()
        },
        provisioner: PROVISIONER_NAME.to_owned(),
        reclaim_policy: Some("Delete".to_owned()),
        volume_binding_mode: Some("WaitForFirstConsumer".to_owned()),
        allow_volume_expansion: Some(true),
        ..StorageClass::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn claim(more: Value) -> PersistentVolumeClaim {
        let mut all = json!({"metadata": {"annotations": {PROVISIONER: PROVISIONER_NAME}},
            "spec": {"storageClassName": "standard"}});
        samples::merge(&mut all, more);
        samples::claim("c", "5Gi", all)
    }

    #[test]
    fn a_claim_is_due_once_the_scheduler_has_selected_a_node() {
        let class = standard_class();
        assert!(!is_due(&claim(json!({})), &class));
        let selected = json!({"metadata": {"annotations": {SELECTED_NODE: "n"}}});
        assert!(is_due(&claim(selected.clone()), &class));
        let immediate = StorageClass { volume_binding_mode: Some("Immediate".into()), ..standard_class() };
        assert!(is_due(&claim(json!({})), &immediate));
        for more in [
            json!({"spec": {"volumeName": "v"}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"metadata": {"annotations": {PROVISIONER: "example.com/other"}}}),
        ] {
            let mut all = selected.clone();
            samples::merge(&mut all, more.clone());
            assert!(!is_due(&claim(all), &class), "{more}");
        }
    }

    #[test]
    fn a_folder_belongs_to_its_node_and_a_simulated_volume_to_all_others() {
        let requirement = |backing: &Backing<'_>| {
            let volume = volume_for(&claim(json!({})), &standard_class(), backing);
            serde_json::from_value::<PersistentVolume>(volume.clone()).expect("a volume");
            volume.pointer("/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0").cloned()
        };
        let expression = |operator: &str| json!({"key": HOSTNAME, "operator": operator, "values": ["laptop"]});
        assert_eq!(requirement(&Backing::Folder("laptop")), Some(expression("In")));
        assert_eq!(requirement(&Backing::Simulated(vec!["laptop".into()])), Some(expression("NotIn")));
        assert_eq!(requirement(&Backing::Simulated(Vec::new())), None);
        let volume = volume_for(&claim(json!({})), &standard_class(), &Backing::Folder("laptop"));
        assert_eq!(volume["metadata"]["name"], "pvc-uid-of-c");
        assert_eq!(volume["spec"]["capacity"], json!({"storage": "5Gi"}));
        assert_eq!(volume["spec"]["claimRef"]["uid"], "uid-of-c");
        assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Delete");
    }

    #[test]
    fn a_volume_is_deleted_or_retained_after_its_claim_is_deleted() {
        let volume = |phase: &str, policy: &str, is_deleted: bool, by: &str| {
            let deletion = is_deleted.then_some("2026-01-01T00:00:00Z");
            samples::volume(
                "v",
                "5Gi",
                json!({
                "metadata": {"annotations": {PROVISIONED_BY: by}, "finalizers": [FINALIZER], "deletionTimestamp": deletion},
                "spec": {"persistentVolumeReclaimPolicy": policy}, "status": {"phase": phase}}),
            )
        };
        for (phase, policy, is_deleted, by, wanted) in [
            ("Released", "Delete", false, PROVISIONER_NAME, Disposal::DeleteVolume),
            ("Released", "Delete", false, "example.com/other", Disposal::Keep),
            ("Released", "Retain", false, PROVISIONER_NAME, Disposal::Keep),
            ("Bound", "Delete", false, PROVISIONER_NAME, Disposal::Keep),
            ("Bound", "Delete", true, PROVISIONER_NAME, Disposal::Keep),
            ("Released", "Delete", true, PROVISIONER_NAME, Disposal::DeleteFolder),
            ("Available", "Delete", true, PROVISIONER_NAME, Disposal::DeleteFolder),
            ("Released", "Retain", true, PROVISIONER_NAME, Disposal::RemoveFinalizer),
            ("Released", "Retain", true, "example.com/other", Disposal::Keep),
        ] {
            assert_eq!(disposal(&volume(phase, policy, is_deleted, by)), wanted, "{phase} {policy} {is_deleted} {by}");
        }
    }

    #[test]
    fn a_folder_cannot_be_a_block_device_or_a_copy() {
        for (more, of_folder, simulated) in [
            (json!({}), true, true),
            (json!({"spec": {"volumeMode": "Block"}}), false, true),
            (json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "x"}}}), false, true),
            (json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}), false, false),
        ] {
            let claim = claim(more.clone());
            assert_eq!(unsupported(&claim, true).is_none(), of_folder, "{more}");
            assert_eq!(unsupported(&claim, false).is_none(), simulated, "{more}");
        }
    }
}
