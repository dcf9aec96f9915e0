//! The volumes of a pod.

use std::collections::BTreeMap;
use std::path::PathBuf;

use berth_apimachinery::quantity::Quantity;
use berth_pod_runtime::{HostPathType, Volume};
use berth_runtime::ObjectKey;
use k8s_openapi::api::core::v1::{HostPathVolumeSource, Pod, Volume as VolumeSpec};
use kube::ResourceExt;

use super::Context;
use super::files;

/// A service account token that a volume needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenSource {
    /// Name of the volume.
    pub volume: String,
    /// Path of the file in the volume.
    pub path: String,
    /// Audience; if empty, the API server's.
    pub audience: String,
    /// Lifetime in seconds.
    pub expiration_seconds: i64,
}

/// The tokens that a pod's volumes need.
pub fn token_sources(pod: &Pod) -> Vec<TokenSource> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let sources = volumes.flat_map(|volume| {
        let sources = volume.projected.iter().flat_map(|it| it.sources.iter().flatten());
        sources.filter_map(|source| source.service_account_token.as_ref()).map(|token| TokenSource {
            volume: volume.name.clone(),
            path: token.path.clone(),
            audience: token.audience.clone().unwrap_or_default(),
            expiration_seconds: token.expiration_seconds.unwrap_or(3600),
        })
    });
    sources.collect()
}

/// True if the files of the volume follow changes to the objects from which they come.
pub fn is_refreshed(volume: &VolumeSpec) -> bool {
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.projected.is_some()
        || volume.downward_api.is_some()
}

/// All volumes of a pod but those of images, by name.
pub fn volumes(
    context: &Context<'_>,
    tokens: &BTreeMap<TokenSource, String>,
) -> Result<BTreeMap<String, Volume>, String> {
    let specs = context.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    specs
        .filter(|spec| spec.image.is_none())
        .map(|spec| {
            let resolved = volume(context, spec, tokens)
                .map_err(|error| format!("MountVolume.SetUp failed for volume {:?} : {error}", spec.name))?;
            Ok((spec.name.clone(), resolved))
        })
        .collect()
}

/// A volume with its content.
pub fn volume(
    context: &Context<'_>,
    spec: &VolumeSpec,
    tokens: &BTreeMap<TokenSource, String>,
) -> Result<Volume, String> {
    let as_files = |files| Volume::Files { files };
    if let Some(it) = &spec.config_map {
        let is_optional = it.optional.unwrap_or(false);
        return files::of_config_map(context, &it.name, it.items.as_deref(), it.default_mode, is_optional)
            .map(as_files);
    }
    if let Some(it) = &spec.secret {
        let (name, is_optional) = (it.secret_name.as_deref().unwrap_or_default(), it.optional.unwrap_or(false));
        return files::of_secret(context, name, it.items.as_deref(), it.default_mode, is_optional).map(as_files);
    }
    if let Some(it) = &spec.downward_api {
        return files::of_fields(context, it.items.as_deref(), it.default_mode).map(as_files);
    }
    if let Some(it) = &spec.projected {
        let token = |path: &str| {
            let known = tokens.iter().find(|(source, _)| source.volume == spec.name && source.path == path);
            known.map(|(_, token)| token.clone()).ok_or_else(|| format!("no service account token for {path}"))
        };
        return files::of_projection(context, it, token).map(as_files);
    }
    if let Some(it) = &spec.empty_dir {
        let size_limit_bytes = it.size_limit.as_ref().and_then(|limit| Quantity::parse(&limit.0).ok());
        let size_limit_bytes = size_limit_bytes.and_then(|limit| u64::try_from(limit.value()).ok());
        let memory = it.medium.as_deref().is_some_and(|medium| medium.starts_with("Memory"));
        return Ok(Volume::EmptyDir { memory, size_limit_bytes: size_limit_bytes.filter(|bytes| *bytes > 0) });
    }
    if let Some(it) = &spec.host_path {
        return host_path(it);
    }
    if let Some(it) = &spec.persistent_volume_claim {
        return claim(context, &it.claim_name, false);
    }
    if spec.ephemeral.is_some() {
        return claim(context, &format!("{}-{}", context.pod.name_any(), spec.name), true);
    }
    Err(match source_name(spec) {
        Some(name) => format!(
            "volumes of type {name} are not supported on this node; use emptyDir, configMap, secret, projected, \
             downwardAPI, hostPath, image or persistentVolumeClaim"
        ),
        // Kubernetes treats a volume without a source as an emptyDir.
        None => return Ok(Volume::EmptyDir { memory: false, size_limit_bytes: None }),
    })
}

/// The name of a volume's source: the field next to `name`.
fn source_name(spec: &VolumeSpec) -> Option<String> {
    let value = serde_json::to_value(spec).ok()?;
    value.as_object()?.keys().find(|key| *key != "name").cloned()
}

fn host_path(source: &HostPathVolumeSource) -> Result<Volume, String> {
    let kind = match source.type_.as_deref().unwrap_or_default() {
        "" => HostPathType::Unchecked,
        "DirectoryOrCreate" => HostPathType::DirectoryOrCreate,
        "Directory" => HostPathType::Directory,
        "FileOrCreate" => HostPathType::FileOrCreate,
        "File" => HostPathType::File,
        "Socket" => HostPathType::Socket,
        "CharDevice" => HostPathType::CharDevice,
        "BlockDevice" => HostPathType::BlockDevice,
        other => return Err(format!("hostPath type {other:?} is unknown")),
    };
    Ok(Volume::HostPath { path: PathBuf::from(&source.path), kind })
}

/// The folder of a bound claim. The claim of a generic ephemeral volume must belong to the pod.
fn claim(context: &Context<'_>, name: &str, is_ephemeral: bool) -> Result<Volume, String> {
    let claim = context.objects.claims.get(&ObjectKey::namespaced(context.namespace(), name));
    let Some(claim) = claim else { return Err(format!("persistentvolumeclaim {name:?} not found")) };
    let uid = context.pod.metadata.uid.as_deref();
    if is_ephemeral && !claim.owner_references().iter().any(|owner| Some(owner.uid.as_str()) == uid) {
        return Err(format!("PVC {}/{name} was not created for pod {}", context.namespace(), context.pod.name_any()));
    }
    let spec = claim.spec.as_ref();
    if spec.and_then(|spec| spec.volume_mode.as_deref()) == Some("Block") {
        return Err(format!("persistentvolumeclaim {name:?} has volumeMode Block, which this node does not support"));
    }
    let is_bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let volume = spec.and_then(|spec| spec.volume_name.as_deref()).filter(|name| is_bound && !name.is_empty());
    let Some(volume) = volume else { return Err(format!("persistentvolumeclaim {name:?} is not bound")) };
    let Some(found) = context.objects.volumes.get(&ObjectKey::cluster(volume)) else {
        return Err(format!("persistentvolume {volume:?} not found"));
    };
    match found.spec.as_ref().map(|spec| (&spec.host_path, &spec.local)) {
        Some((Some(source), _)) => host_path(source),
        Some((None, Some(source))) => Ok(Volume::Folder { path: PathBuf::from(&source.path) }),
        _ => Err(format!(
            "persistentvolume {volume:?} is neither hostPath nor local, and this node supports only these types"
        )),
    }
}
