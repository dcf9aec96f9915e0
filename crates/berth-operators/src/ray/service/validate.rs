//! Validation of RayServices.
//!
//! Source: the documentation and tests of KubeRay 1.7.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::frameworks::RayService;
use berth_apimachinery::names::is_dns1035_label;
use kube::ResourceExt;

use super::types::RayServiceSpec;
use crate::ray::cluster::validate as cluster_rules;
use crate::ray::constants::CLUSTER_NAME_MAX;
use crate::ray::job::validate::Invalid;
use crate::ray::types::RayClusterSpec;
use crate::ray::yaml;

/// Annotation with the time within which a service must become ready: a Go duration or a number of
/// seconds.
pub const INITIALIZING_TIMEOUT: &str = "ray.io/initializing-timeout";
/// Maximum length of a RayService's name. The names of its RayClusters are six characters longer.
const NAME_MAX: usize = CLUSTER_NAME_MAX - 6;

/// Checks name, annotations and spec of a RayService.
///
/// # Errors
/// Returns the first rule that is broken.
pub fn service(service: &RayService, spec: &RayServiceSpec) -> Result<(), Invalid> {
    let because = |reason: &'static str| move |message: String| Invalid { reason, message };
    metadata(&service.name_any(), service.annotations())
        .map_err(|problem| format!("The RayService metadata is invalid: {problem}"))
        .map_err(because("InvalidRayServiceMetadata"))?;
    self::spec(spec, service.annotations())
        .map_err(|problem| format!("The RayService spec is invalid: {problem}"))
        .map_err(because("InvalidRayServiceSpec"))
}

fn metadata(name: &str, annotations: &BTreeMap<String, String>) -> Result<(), String> {
    if name.len() > NAME_MAX {
        return Err(format!("RayService name should be no more than {NAME_MAX} characters"));
    }
    let problems = is_dns1035_label(name);
    if !problems.is_empty() {
        return Err(format!("RayService name should be a valid DNS1035 label: [{}]", problems.join(" ")));
    }
    initializing_timeout(annotations).map(drop)
}

/// The time within which a service must become ready; `None` without a limit.
///
/// # Errors
/// The annotation is neither a positive Go duration nor a positive number of seconds.
pub fn initializing_timeout(annotations: &BTreeMap<String, String>) -> Result<Option<Duration>, String> {
    let Some(text) = annotations.get(INITIALIZING_TIMEOUT).filter(|text| !text.is_empty()) else { return Ok(None) };
    let invalid = |problem: &str| {
        format!("RayService annotations is invalid: annotation {INITIALIZING_TIMEOUT} {problem}: {text}")
    };
    let seconds = text.parse::<u64>().ok().map(Duration::from_secs);
    let duration = text.parse::<berth_api::berth::Duration>().ok().map(|duration| duration.0);
    match seconds.or(duration) {
        Some(Duration::ZERO) => Err(invalid("must be a positive duration, got")),
        Some(duration) => Ok(Some(duration)),
        None => Err(invalid(
            "has an invalid format: a Go duration such as 5m, or a positive number of seconds, is expected",
        )),
    }
}

fn spec(spec: &RayServiceSpec, annotations: &BTreeMap<String, String>) -> Result<(), String> {
    let read = RayClusterSpec::read(&spec.cluster).map_err(|error| format!("rayClusterConfig: {error}"))?;
    if read.auth_options.as_ref().is_some_and(|options| options.enable_k8s_token_auth == Some(true)) {
        return Err("K8s token auth mode is currently not supported for RayService".to_owned());
    }
    cluster_rules::spec(&read, annotations)?;
    let head_service = read.head_group_spec.head_service.as_ref();
    if head_service.and_then(|service| service.metadata.name.as_ref()).is_some_and(|name| !name.is_empty()) {
        return Err("spec.rayClusterConfig.headGroupSpec.headService.metadata.name should not be set".to_owned());
    }
    match spec.upgrade() {
        None | Some("NewCluster" | "None") => {}
        Some(other @ "NewClusterWithIncrementalUpgrade") => {
            return Err(format!(
                "Spec.UpgradeStrategy.Type {other} moves requests with the Gateway API, which this operator does not \
                 use; valid options are NewCluster or None"
            ));
        }
        Some(other) => {
            return Err(format!(
                "Spec.UpgradeStrategy.Type value {other} is invalid, valid options are NewCluster or None"
            ));
        }
    }
    if let Some(seconds) = spec.ray_cluster_deletion_delay_seconds.filter(|seconds| *seconds < 0) {
        return Err(format!("Spec.RayClusterDeletionDelaySeconds should be a non-negative integer, got {seconds}"));
    }
    if !spec.serve_config.is_empty() {
        let configuration = yaml::parse(&spec.serve_config).map_err(|error| format!("serveConfigV2: {error}"))?;
        if !configuration.is_object() {
            return Err("serveConfigV2: a mapping is expected".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(fields: Value, annotations: &[(&str, &str)], expected: &str) {
        let template = json!({"spec": {"containers": [{"name": "ray-head", "image": "ray"}]}});
        let mut spec = json!({"rayClusterConfig": {"headGroupSpec": {"template": template}}});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let mut fruit = RayService::named("fruit");
        fruit.metadata.annotations = Some(annotations.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect());
        let found = service(&fruit, &RayServiceSpec::read(&spec).unwrap()).err();
        assert_eq!(found.map(|invalid| invalid.message).unwrap_or_default(), expected, "{fields}");
    }

    #[test]
    fn strategies_and_delays_have_bounds() {
        check(json!({}), &[], "");
        check(json!({"upgradeStrategy": {"type": "None"}}), &[], "");
        check(
            json!({"upgradeStrategy": {"type": "Blue"}}),
            &[],
            "The RayService spec is invalid: Spec.UpgradeStrategy.Type value Blue is invalid, valid options are \
             NewCluster or None",
        );
        check(
            json!({"rayClusterDeletionDelaySeconds": -1}),
            &[],
            "The RayService spec is invalid: Spec.RayClusterDeletionDelaySeconds should be a non-negative integer, \
             got -1",
        );
        check(
            json!({"serveConfigV2": "- a\n"}),
            &[],
            "The RayService spec is invalid: serveConfigV2: a mapping is expected",
        );
    }

    #[test]
    fn the_time_to_become_ready_is_a_duration() {
        check(json!({}), &[(INITIALIZING_TIMEOUT, "5m")], "");
        check(json!({}), &[(INITIALIZING_TIMEOUT, "90")], "");
        check(
            json!({}),
            &[(INITIALIZING_TIMEOUT, "soon")],
            "The RayService metadata is invalid: RayService annotations is invalid: annotation \
             ray.io/initializing-timeout has an invalid format: a Go duration such as 5m, or a positive number of \
             seconds, is expected: soon",
        );
    }
}
