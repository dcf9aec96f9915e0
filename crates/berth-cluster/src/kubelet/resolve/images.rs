//! Images: pull policies and pull secrets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_pod_runtime::{ImagePullPolicy, ImageRequest, RegistryCredential};
use berth_runtime::ObjectKey;
use k8s_openapi::api::core::v1::{Container, Pod, Secret};
use serde_json::Value;

use super::Context;

/// The request to the runtime for a container's image.
pub fn image_request(container: &Container, credentials: Vec<RegistryCredential>) -> ImageRequest {
    let policy = pull_policy(container.image_pull_policy.as_deref());
    ImageRequest { reference: container.image.clone().unwrap_or_default(), policy, credentials }
}

/// The images that are volumes of a pod, by the volume's name.
pub fn image_volumes(pod: &Pod, credentials: &[RegistryCredential]) -> Vec<(String, ImageRequest)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let images = volumes.filter_map(|volume| {
        let image = volume.image.as_ref()?;
        let policy = pull_policy(image.pull_policy.as_deref());
        let reference = image.reference.clone().unwrap_or_default();
        Some((volume.name.clone(), ImageRequest { reference, policy, credentials: credentials.to_vec() }))
    });
    images.collect()
}

fn pull_policy(policy: Option<&str>) -> ImagePullPolicy {
    match policy {
        Some("Always") => ImagePullPolicy::Always,
        Some("Never") => ImagePullPolicy::Never,
        _ => ImagePullPolicy::IfNotPresent,
    }
}

/// The credentials in a pod's pull secrets, and the names of the secrets that have none.
pub fn pull_secrets(context: &Context<'_>) -> (Vec<RegistryCredential>, Vec<String>) {
    let (mut credentials, mut missing) = (Vec::new(), Vec::new());
    let references = context.pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten());
    for reference in references {
        let found = context.objects.secrets.get(&ObjectKey::namespaced(context.namespace(), &reference.name));
        match found.as_deref().and_then(of_secret) {
            Some(mut list) => credentials.append(&mut list),
            None => missing.push(reference.name.clone()),
        }
    }
    (credentials, missing)
}

/// The credentials in a secret of type `kubernetes.io/dockerconfigjson` or
/// `kubernetes.io/dockercfg`.
fn of_secret(secret: &Secret) -> Option<Vec<RegistryCredential>> {
    let data = secret.data.as_ref()?;
    let parse = |key: &str| data.get(key).and_then(|bytes| serde_json::from_slice::<Value>(&bytes.0).ok());
    let registries = match parse(".dockerconfigjson") {
        Some(config) => config.get("auths")?.clone(),
        None => parse(".dockercfg")?,
    };
    let credentials = registries.as_object()?.iter().filter_map(|(registry, entry)| {
        let (username, password) = user_and_password(entry)?;
        Some(RegistryCredential { registry: normal(registry), username, password })
    });
    Some(credentials.collect())
}

fn user_and_password(entry: &Value) -> Option<(String, String)> {
    let text = |key: &str| entry[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    if let (Some(username), Some(password)) = (text("username"), text("password")) {
        return Some((username, password));
    }
    let decoded = STANDARD.decode(text("auth")?.trim()).ok()?;
    let decoded = String::from_utf8(decoded).ok()?;
    let (username, password) = decoded.split_once(':')?;
    Some((username.to_owned(), password.trim_matches('\0').to_owned()))
}

/// A registry without scheme and API version: `https://index.docker.io/v1/` becomes
/// `index.docker.io`.
fn normal(registry: &str) -> String {
    let bare = registry.strip_prefix("https://").or_else(|| registry.strip_prefix("http://")).unwrap_or(registry);
    let bare = bare.trim_end_matches('/');
    bare.strip_suffix("/v1").or_else(|| bare.strip_suffix("/v2")).unwrap_or(bare).to_owned()
}
