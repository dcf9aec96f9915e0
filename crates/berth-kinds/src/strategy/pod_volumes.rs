//! Validation of volumes: each has exactly one source, with the required fields of that source.

use std::collections::HashSet;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::quantity::Quantity;
use berth_apimachinery::{names, validation};
use serde_json::Value;

use super::pod_validation::SpecOwner;
use super::rules::{items, local_path, named, no_backsteps, number, required, supported, text};
use super::storage;

/// Sources with required string fields, and these fields.
const NEEDS: [(&str, &[&str]); 17] = [
    ("awsElasticBlockStore", &["volumeID"]),
    ("gitRepo", &["repository"]),
    ("glusterfs", &["endpoints", "path"]),
    ("flexVolume", &["driver"]),
    ("cinder", &["volumeID"]),
    ("azureFile", &["secretName", "shareName"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("storageos", &["volumeName"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("rbd", &["image"]),
    ("persistentVolumeClaim", &["claimName"]),
    ("csi", &["driver"]),
    ("nfs", &["server", "path"]),
    ("hostPath", &["path"]),
];
/// Sources of pod volumes, in the order of validation.
const SOURCES: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "csi",
    "scaleIO",
    "projected",
    "ephemeral",
    "image",
];
/// Sources of PersistentVolumes, in the order of validation.
pub(super) const PERSISTENT: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];
/// References to secrets for a CSI driver.
const CSI_SECRETS: [&str; 4] =
    ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"];
/// Types of a host path.
const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
/// Pod fields available in downward API files.
pub(super) const POD_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
/// Container resources available through the downward API.
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// Validates the volumes of a pod.
pub(super) fn volumes(volumes: &Value, of: SpecOwner<'_>, path: &Path<'_>, errors: &mut Vec<Error>) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, volume) in items(volumes).iter().enumerate() {
        let at = path.index(index);
        source(volume, of, &at, errors);
        let (name, name_at) = (text(volume, "name"), at.child("name"));
        if name.is_empty() {
            errors.push(Error::required(&name_at, ""));
            continue;
        }
        if let SpecOwner::Pod(pod) = of
            && !volume["ephemeral"].is_null()
            && !pod.is_empty()
        {
            // The claim for an ephemeral volume is named after the pod and the volume.
            let claim = format!("{pod}-{name}");
            for message in names::is_dns1123_subdomain(&claim) {
                let detail = format!("PVC name {}: {message}", berth_apimachinery::field::quote(&claim));
                errors.push(Error::invalid(&name_at, name, detail));
            }
        }
        named(name, names::is_dns1123_label, &name_at, errors);
        if !seen.insert(name) {
            errors.push(Error::duplicate(&name_at, name));
        }
    }
}

/// Validates the source of a volume. It must be exactly one.
fn source(volume: &Value, of: SpecOwner<'_>, path: &Path<'_>, errors: &mut Vec<Error>) {
    let mut found = false;
    for kind in SOURCES {
        let source = &volume[kind];
        if source.is_null() {
            continue;
        }
        let at = path.child(kind);
        if found {
            errors.push(Error::forbidden(&at, "may not specify more than 1 volume type"));
            continue;
        }
        found = true;
        self::kind(kind, source, path, errors);
        // The reference to an image is optional in a template.
        if let ("image", SpecOwner::Pod(_)) = (kind, of) {
            required(source, "reference", &at, errors);
        }
    }
    if !found {
        errors.push(Error::required(path, "must specify a volume type"));
    }
}

/// Validates the source of a PersistentVolume.
pub(super) fn persistent(spec: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let mut found = false;
    for kind in PERSISTENT {
        let (source, at) = (&spec[kind], path.child(kind));
        if source.is_null() {
            continue;
        }
        if found {
            errors.push(Error::forbidden(&at, "may not specify more than 1 volume type"));
            continue;
        }
        found = true;
        match kind {
            "local" => {
                if required(source, "path", &at, errors) {
                    no_backsteps(text(source, "path"), &at.child("path"), errors);
                }
            }
            "csi" => {
                required(source, "driver", &at, errors);
                driver_name(text(source, "driver"), &at.child("driver"), errors);
                required(source, "volumeHandle", &at, errors);
                for field in CSI_SECRETS {
                    if !source[field].is_null() {
                        required(&source[field], "name", &at.child(field), errors);
                        required(&source[field], "namespace", &at.child(field), errors);
                    }
                }
            }
            _ => self::kind(kind, source, path, errors),
        }
    }
    if !found {
        errors.push(Error::required(path, "must specify a volume type"));
    }
}

fn kind(kind: &str, source: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let at = path.child(kind);
    if kind == "rbd" || kind == "cephfs" {
        listed(source, "monitors", &at, errors);
    }
    let needs = NEEDS.iter().find(|(known, _)| *known == kind).map_or(&[][..], |(_, needs)| needs);
    for field in needs {
        required(source, field, &at, errors);
    }
    match kind {
        "emptyDir" => {
            let limit = source["sizeLimit"].as_str().and_then(|limit| Quantity::parse(limit).ok());
            if limit.is_some_and(|limit| limit.as_approximate_f64() < 0.0) {
                let detail = "SizeLimit field must be a valid resource quantity";
                errors.push(Error::forbidden(&at.child("sizeLimit"), detail));
            }
        }
        "hostPath" => host_path(source, &at, errors),
        // As upstream, the error path has `persistentDisk` here.
        "gcePersistentDisk" => {
            required(source, "pdName", &path.child("persistentDisk"), errors);
        }
        "secret" => {
            required(source, "secretName", &at, errors);
            files(source, &at, errors);
        }
        "configMap" => {
            required(source, "name", &at, errors);
            files(source, &at, errors);
        }
        "nfs" => nfs(source, &at, errors),
        "flocker" if text(source, "datasetName").is_empty() == text(source, "datasetUUID").is_empty() => {
            let detail = "one of datasetName and datasetUUID is required";
            errors.push(Error::required(&at, detail));
        }
        "quobyte" => {
            if text(source, "registry").is_empty() {
                let detail = "must be a host:port pair or multiple pairs separated by commas";
                errors.push(Error::required(&at.child("registry"), detail));
            }
            required(source, "volume", &at, errors);
        }
        "downwardAPI" => {
            mode(&source["defaultMode"], &at.child("defaultMode"), errors);
            for item in items(&source["items"]) {
                downward(item, &at, errors);
            }
        }
        "fc" if items(&source["targetWWNs"]).is_empty() == items(&source["wwids"]).is_empty() => {
            let detail = "must specify either targetWWNs or wwids, but not both";
            errors.push(Error::required(&at.child("targetWWNs"), detail));
        }
        "azureDisk" => azure_disk(source, &at, errors),
        "csi" => csi(source, &at, errors),
        "projected" => projected(source, &at, errors),
        "ephemeral" => ephemeral(source, &at, errors),
        _ => {}
    }
}

fn listed(source: &Value, field: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    if items(&source[field]).is_empty() {
        errors.push(Error::required(&path.child(field), ""));
    }
}

/// Validates a host path. The caller has checked that the path is set.
pub(super) fn host_path(source: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    no_backsteps(text(source, "path"), &path.child("path"), errors);
    supported(source, "type", &HOST_PATH_TYPES, path, errors);
}

/// Validates an NFS volume.
pub(super) fn nfs(source: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    if !text(source, "path").starts_with('/') {
        errors.push(Error::invalid(&path.child("path"), text(source, "path"), "must be an absolute path"));
    }
}

fn azure_disk(source: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    required(source, "diskName", path, errors);
    required(source, "diskURI", path, errors);
    let uri = text(source, "diskURI");
    let (start, form) = match text(source, "kind") {
        "Managed" => (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        ),
        _ => ("https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"),
    };
    if !uri.starts_with(start) {
        errors.push(Error::not_supported(&path.child("diskURI"), uri, &[form]));
    }
}

fn csi(source: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    driver_name(text(source, "driver"), &path.child("driver"), errors);
    if !source["nodePublishSecretRef"].is_null() {
        required(&source["nodePublishSecretRef"], "name", &path.child("nodePublishSecretRef"), errors);
    }
}

/// Validates the name of a storage driver. An empty name is not reported.
pub(super) fn driver_name(name: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    if name.is_empty() {
        return;
    }
    if name.len() > 63 {
        errors.push(Error::too_long(path, 63));
    }
    let lower = name.to_lowercase();
    errors.extend(names::is_dns1123_subdomain(&lower).into_iter().map(|message| Error::invalid(path, name, message)));
}

/// Validates the projection of keys to files.
fn files(source: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    mode(&source["defaultMode"], &path.child("defaultMode"), errors);
    let list = path.child("items");
    for (index, item) in items(&source["items"]).iter().enumerate() {
        file(item, &list.index(index), errors);
    }
}

fn file(item: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    required(item, "key", path, errors);
    if required(item, "path", path, errors) {
        local_path(text(item, "path"), &path.child("path"), errors);
    }
    mode(&item["mode"], &path.child("mode"), errors);
}

fn mode(mode: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    if let Some(bits) = mode.as_i64().filter(|bits| !(0..=0o777).contains(bits)) {
        errors.push(Error::invalid(path, bits, "must be a number between 0 and 0777 (octal), both inclusive"));
    }
}

/// Validates a downward API file. Upstream's error paths omit its index in the list.
fn downward(item: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    if required(item, "path", path, errors) {
        local_path(text(item, "path"), &path.child("path"), errors);
    }
    let (field, resource) = (&item["fieldRef"], &item["resourceFieldRef"]);
    if !field.is_null() {
        field_ref(field, &POD_FIELDS, &path.child("fieldRef"), errors);
        if !resource.is_null() {
            let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.push(Error::invalid(path, "resource", detail));
        }
    } else if !resource.is_null() {
        resource_ref(resource, true, &path.child("resourceFieldRef"), errors);
    } else {
        errors.push(Error::required(path, "one of fieldRef and resourceFieldRef is required"));
    }
    mode(&item["mode"], &path.child("mode"), errors);
}

/// Validates a reference to a field of the pod, which must be one of `known`.
pub(super) fn field_ref(field: &Value, known: &[&str], path: &Path<'_>, errors: &mut Vec<Error>) {
    if !required(field, "apiVersion", path, errors) || !required(field, "fieldPath", path, errors) {
        return;
    }
    let (name, at) = (text(field, "fieldPath"), path.child("fieldPath"));
    let unknown = |detail: String, errors: &mut Vec<Error>| {
        errors.push(Error::invalid(&at, name, format!("error converting fieldPath: {detail}")));
    };
    if text(field, "apiVersion") != "v1" {
        unknown(format!("unsupported pod version: {}", text(field, "apiVersion")), errors);
        return;
    }
    if let Some((map, key)) = name.strip_suffix("']").and_then(|start| start.split_once("['")) {
        match map {
            "metadata.labels" => named(key, names::is_qualified_name, path, errors),
            "metadata.annotations" => {
                let lower = key.to_lowercase();
                let messages = names::is_qualified_name(&lower).into_iter();
                errors.extend(messages.map(|message| Error::invalid(path, key, message)));
            }
            _ => unknown(format!("field label does not support subscript: {name}"), errors),
        }
        return;
    }
    if known.contains(&name) {
        return;
    }
    let exists = POD_FIELDS.contains(&name) || ENVIRONMENT_FIELDS.contains(&name) || SELECTABLE.contains(&name);
    if exists {
        errors.push(Error::not_supported(&at, name, known));
    } else {
        unknown(format!("field label not supported: {name}"), errors);
    }
}

/// Pod fields available in environment variables.
pub(super) const ENVIRONMENT_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Known pod fields that the downward API does not provide.
const SELECTABLE: [&str; 5] =
    ["spec.restartPolicy", "spec.schedulerName", "spec.hostNetwork", "status.phase", "status.nominatedNodeName"];

/// Validates a reference to a resource of a container, and its divisor.
pub(super) fn resource_ref(field: &Value, in_volume: bool, path: &Path<'_>, errors: &mut Vec<Error>) {
    if in_volume && text(field, "containerName").is_empty() {
        errors.push(Error::required(&path.child("containerName"), ""));
    }
    let name = text(field, "resource");
    if name.is_empty() {
        errors.push(Error::required(&path.child("resource"), ""));
        return;
    }
    let pages = name.split_once('.').is_some_and(|(_, resource)| resource.starts_with("hugepages-"));
    if !RESOURCES.contains(&name) && !pages {
        errors.push(Error::not_supported(&path.child("resource"), name, &RESOURCES));
    }
    let divisor = match &field["divisor"] {
        Value::Null => return,
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let known = |units: &[&str]| units.contains(&divisor.as_str()) || divisor == "0";
    let sizes = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
    let resource = name.split_once('.').map_or("", |(_, resource)| resource);
    let detail = match resource {
        "cpu" if !known(&["1m", "1"]) => {
            "only divisor's values 1m and 1 are supported with the cpu resource".to_owned()
        }
        "memory" | "ephemeral-storage" if !known(&sizes) => {
            let what = if resource == "memory" { "memory" } else { "local ephemeral storage" };
            format!("only divisor's values {} are supported with the {what} resource", sizes.join(", "))
        }
        _ => return,
    };
    errors.push(Error::invalid(&path.child("divisor"), name, detail));
}

/// Validates a projected volume: several sources in one directory. Within a source, paths are
/// unique. Between sources, the later one wins.
fn projected(volume: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    mode(&volume["defaultMode"], &path.child("defaultMode"), errors);
    let list = path.child("sources");
    for (index, source) in items(&volume["sources"]).iter().enumerate() {
        let at = list.index(index);
        let mut found = 0;
        for kind in ["secret", "configMap", "downwardAPI", "serviceAccountToken"] {
            let given = &source[kind];
            if given.is_null() {
                continue;
            }
            found += 1;
            if found > 1 {
                errors.push(Error::forbidden(&at, "may not specify more than 1 volume type per source"));
                continue;
            }
            let kind_at = at.child(kind);
            match kind {
                "secret" | "configMap" => {
                    required(given, "name", &kind_at, errors);
                    let items_at = kind_at.child("items");
                    for (index, item) in items(&given["items"]).iter().enumerate() {
                        file(item, &items_at.index(index), errors);
                    }
                }
                "downwardAPI" => {
                    for item in items(&given["items"]) {
                        downward(item, &kind_at, errors);
                    }
                }
                _ => {
                    let seconds_at = kind_at.child("expirationSeconds");
                    let seconds = number(given, "expirationSeconds");
                    if seconds < 600 {
                        let detail = "may not specify a duration less than 10 minutes";
                        errors.push(Error::invalid(&seconds_at, seconds, detail));
                    }
                    if seconds > 1 << 32 {
                        let detail = "may not specify a duration larger than 2^32 seconds";
                        errors.push(Error::invalid(&seconds_at, seconds, detail));
                    }
                    if required(given, "path", path, errors) {
                        local_path(text(given, "path"), &path.child("path"), errors);
                    }
                }
            }
            let mut paths: HashSet<&str> = HashSet::new();
            let targets = items(&given["items"]).iter().map(|item| text(item, "path"));
            for target in targets.filter(|target| !target.is_empty()) {
                if !paths.insert(target) {
                    errors.push(Error::invalid(path, target, "conflicting duplicate paths"));
                }
            }
        }
    }
}

/// Validates an ephemeral volume, which has its own claim.
fn ephemeral(source: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let (template, at) = (&source["volumeClaimTemplate"], path.child("volumeClaimTemplate"));
    if template.is_null() {
        errors.push(Error::required(&at, ""));
        return;
    }
    let (metadata, metadata_at) = (&template["metadata"], at.child("metadata"));
    errors.extend(validation::validate_annotations(&metadata["annotations"], &metadata_at.child("annotations")));
    errors.extend(validation::validate_labels(&metadata["labels"], &metadata_at.child("labels")));
    for field in metadata.as_object().into_iter().flat_map(|map| map.keys()) {
        if !matches!(field.as_str(), "annotations" | "labels" | "creationTimestamp") {
            errors.push(Error::forbidden(&metadata_at.child(field), "cannot be set"));
        }
    }
    storage::check_claim(&template["spec"], &at.child("spec"), errors);
}
