//! The container of Ray's autoscaler in the head pod. The autoscaler reads the cluster's demand
//! from the head and patches the replicas of the RayCluster's groups.

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::{env, fixed, shell};
use crate::ray::cluster::facts::Facts;
use crate::ray::constants::CLUSTER;

/// Name of the container.
pub const NAME: &str = "autoscaler";
const COMMAND: &str =
    "ray kuberay-autoscaler --cluster-name $(RAY_CLUSTER_NAME) --cluster-namespace $(RAY_CLUSTER_NAMESPACE)";
/// Environment variable of the head that selects the version of the autoscaler.
const VERSION: &str = "RAY_enable_autoscaler_v2";

/// Adds the container, and the service account whose rights it uses.
pub fn add(facts: &Facts<'_>, spec: &mut PodSpec) {
    spec.service_account_name = Some(facts.autoscaler_account());
    let Some(ray) = spec.containers.first_mut() else { return };
    let container = container(facts, ray.image.clone());
    match facts.spec.autoscaler_version() {
        Some("v2") => {
            env::push(ray, env::value(VERSION, "true"));
            spec.restart_policy = Some("Never".to_owned());
        }
        Some("v1") => env::push(ray, env::value(VERSION, "false")),
        _ => {}
    }
    spec.containers.push(container);
}

fn container(facts: &Facts<'_>, image: Option<String>) -> Container {
    let mut container = Container {
        name: NAME.to_owned(),
        image,
        image_pull_policy: Some("IfNotPresent".to_owned()),
        env: Some(vec![
            env::label("RAY_CLUSTER_NAME", CLUSTER),
            env::field("RAY_CLUSTER_NAMESPACE", "metadata.namespace"),
            env::field("RAY_HEAD_POD_NAME", "metadata.name"),
            env::value("KUBERAY_CRD_VER", "v1"),
            env::value("KUBERAY_GEN_AUTOSCALER_START_CMD", COMMAND),
        ]),
        command: shell(),
        args: Some(vec![COMMAND.to_owned()]),
        resources: Some(fixed("500m", "512Mi")),
        ..Container::default()
    };
    let Some(options) = &facts.spec.autoscaler_options else { return container };
    fn replace<T: Clone>(field: &mut Option<T>, given: &Option<T>) {
        if given.is_some() {
            field.clone_from(given);
        }
    }
    replace(&mut container.resources, &options.resources);
    replace(&mut container.image, &options.image);
    replace(&mut container.image_pull_policy, &options.image_pull_policy);
    replace(&mut container.security_context, &options.security_context);
    replace(&mut container.command, &Some(options.command.clone()).filter(|words| !words.is_empty()));
    replace(&mut container.args, &Some(options.args.clone()).filter(|words| !words.is_empty()));
    container.env.get_or_insert_default().extend(options.env.clone());
    container.env_from = Some(options.env_from.clone()).filter(|sources| !sources.is_empty());
    container.volume_mounts = Some(options.volume_mounts.clone()).filter(|mounts| !mounts.is_empty());
    container
}
