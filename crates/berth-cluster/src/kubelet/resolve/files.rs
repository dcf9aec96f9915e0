//! Files of volumes whose content comes from the API.

use std::collections::BTreeMap;

use berth_pod_runtime::FileContent;
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, ProjectedVolumeSource, Secret, VolumeProjection,
};

use super::Context;
use super::env::{config_map, secret};
use super::fields::{field, resource};

/// Mode of files for which none is set.
const MODE_DEFAULT: i32 = 0o644;

/// Files by relative path.
pub type Files = BTreeMap<String, FileContent>;

/// The files of a ConfigMap.
pub fn of_config_map(
    context: &Context<'_>,
    name: &str,
    items: Option<&[KeyToPath]>,
    mode: Option<i32>,
    is_optional: bool,
) -> Result<Files, String> {
    let Some(map) = config_map(context, name, is_optional)? else { return Ok(Files::new()) };
    let map: &ConfigMap = &map;
    let texts = map.data.iter().flatten().map(|(key, value)| (key.as_str(), value.as_bytes()));
    let binary = map.binary_data.iter().flatten().map(|(key, value)| (key.as_str(), value.0.as_slice()));
    select(texts.chain(binary).collect(), items, mode, is_optional)
}

/// The files of a Secret.
pub fn of_secret(
    context: &Context<'_>,
    name: &str,
    items: Option<&[KeyToPath]>,
    mode: Option<i32>,
    is_optional: bool,
) -> Result<Files, String> {
    let Some(secret) = secret(context, name, is_optional)? else { return Ok(Files::new()) };
    let secret: &Secret = &secret;
    let data = secret.data.iter().flatten().map(|(key, value)| (key.as_str(), value.0.as_slice()));
    select(data.collect(), items, mode, is_optional)
}

/// The keys in `items` as files; all keys if there are no items.
fn select(
    data: BTreeMap<&str, &[u8]>,
    items: Option<&[KeyToPath]>,
    mode: Option<i32>,
    is_optional: bool,
) -> Result<Files, String> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        return Ok(data.into_iter().map(|(key, value)| (key.to_owned(), file(value, None, mode))).collect());
    };
    let mut files = Files::new();
    for item in items {
        match data.get(item.key.as_str()) {
            Some(value) => {
                files.insert(item.path.clone(), file(value, item.mode, mode));
            }
            None if is_optional => {}
            None => return Err(format!("references non-existent config key: {}", item.key)),
        }
    }
    Ok(files)
}

/// The files of a downward API volume.
pub fn of_fields(
    context: &Context<'_>,
    items: Option<&[DownwardAPIVolumeFile]>,
    mode: Option<i32>,
) -> Result<Files, String> {
    let mut files = Files::new();
    for item in items.unwrap_or_default() {
        let value = match (&item.field_ref, &item.resource_field_ref) {
            (Some(reference), _) => field(context, &reference.field_path)?,
            (None, Some(selector)) => resource(context, None, selector)?,
            (None, None) => continue,
        };
        files.insert(item.path.clone(), file(value.as_bytes(), item.mode, mode));
    }
    Ok(files)
}

/// The files of a projected volume. `token` returns the service account token for a path.
pub fn of_projection(
    context: &Context<'_>,
    source: &ProjectedVolumeSource,
    token: impl Fn(&str) -> Result<String, String>,
) -> Result<Files, String> {
    let mode = source.default_mode;
    let mut files = Files::new();
    for projection in source.sources.iter().flatten() {
        let VolumeProjection { config_map, secret, downward_api, service_account_token, .. } = projection;
        if let Some(it) = config_map {
            files.extend(of_config_map(context, &it.name, it.items.as_deref(), mode, it.optional.unwrap_or(false))?);
        }
        if let Some(it) = secret {
            files.extend(of_secret(context, &it.name, it.items.as_deref(), mode, it.optional.unwrap_or(false))?);
        }
        if let Some(it) = downward_api {
            files.extend(of_fields(context, it.items.as_deref(), mode)?);
        }
        if let Some(it) = service_account_token {
            files.insert(it.path.clone(), file(token(&it.path)?.as_bytes(), None, mode));
        }
        if let Some(it) = &projection.cluster_trust_bundle {
            if !it.optional.unwrap_or(false) {
                return Err("projected source clusterTrustBundle is not supported on this node".to_owned());
            }
        } else if projection.pod_certificate.is_some() {
            return Err("projected source podCertificate is not supported on this node".to_owned());
        }
    }
    Ok(files)
}

fn file(data: &[u8], mode: Option<i32>, default: Option<i32>) -> FileContent {
    let mode = mode.or(default).unwrap_or(MODE_DEFAULT);
    FileContent { data: data.to_vec(), mode: u32::try_from(mode).unwrap_or(0o644) & 0o7777 }
}
