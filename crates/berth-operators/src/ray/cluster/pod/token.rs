//! The token by which Ray's clients and nodes authenticate.

use k8s_openapi::api::core::v1::{
    Container, EnvVar, EnvVarSource, PodSpec, ProjectedVolumeSource, SecretKeySelector, ServiceAccountTokenProjection,
    Volume, VolumeMount, VolumeProjection,
};

use super::{autoscaler, env};
use crate::ray::cluster::facts::Facts;

/// Key of the token in its Secret.
pub const SECRET_KEY: &str = "auth_token";
/// Volume and mount path of the pod's service account token, which is used if the API server
/// authenticates Ray's clients.
const VOLUME: (&str, &str) = ("ray-token", "/var/run/secrets/ray.io/serviceaccount");

/// Gives the token to the containers of Ray.
pub fn add(facts: &Facts<'_>, spec: &mut PodSpec) {
    let options = facts.spec.auth_options.as_ref();
    let is_api_server = options.is_some_and(|options| options.enable_k8s_token_auth == Some(true));
    let ray = spec.containers.iter_mut().enumerate();
    let ray = ray.filter(|(index, container)| *index == 0 || container.name == autoscaler::NAME);
    let waiting = spec.init_containers.iter_mut().flatten().filter(|container| container.name == "wait-gcs-ready");
    for container in ray.map(|(_, container)| container).chain(waiting) {
        env::push_default(container, env::value("RAY_AUTH_MODE", "token"));
        if is_api_server {
            env::push_default(container, env::value("RAY_ENABLE_K8S_TOKEN_AUTH", "true"));
            mount(container);
        } else {
            env::push_default(container, from_secret(facts));
        }
    }
    if is_api_server && !spec.volumes.iter().flatten().any(|volume| volume.name == VOLUME.0) {
        spec.volumes.get_or_insert_default().push(own_token());
    }
}

fn from_secret(facts: &Facts<'_>) -> EnvVar {
    let selector =
        SecretKeySelector { name: facts.token_secret(), key: SECRET_KEY.to_owned(), ..SecretKeySelector::default() };
    let source = EnvVarSource { secret_key_ref: Some(selector), ..EnvVarSource::default() };
    EnvVar { name: "RAY_AUTH_TOKEN".to_owned(), value: None, value_from: Some(source) }
}

fn mount(container: &mut Container) {
    let mounts = container.volume_mounts.get_or_insert_default();
    if !mounts.iter().any(|mount| mount.name == VOLUME.0) {
        mounts.push(VolumeMount {
            name: VOLUME.0.to_owned(),
            mount_path: VOLUME.1.to_owned(),
            read_only: Some(true),
            ..VolumeMount::default()
        });
    }
}

fn own_token() -> Volume {
    let token = ServiceAccountTokenProjection { path: "token".to_owned(), ..ServiceAccountTokenProjection::default() };
    let source = VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() };
    let projected = ProjectedVolumeSource { sources: Some(vec![source]), ..ProjectedVolumeSource::default() };
    Volume { name: VOLUME.0.to_owned(), projected: Some(projected), ..Volume::default() }
}
