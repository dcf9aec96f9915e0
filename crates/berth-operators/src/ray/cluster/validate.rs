//! Rules for the name and the spec of a RayCluster, which KubeRay also checks before it acts. If a
//! cluster breaks a rule, an event names the rule, and the objects of the cluster are not changed.

use std::collections::BTreeMap;

use berth_apimachinery::names::{is_dns1035_label, is_label_value, is_qualified_name};
use k8s_openapi::api::core::v1::{Container, EnvVar, PodTemplateSpec};

use super::facts::{Creator, Facts};
use crate::ray::constants::{CLUSTER_NAME_MAX, FT_ENABLED, STORAGE_NAMESPACE};
use crate::ray::types::{GcsFaultToleranceOptions, RayClusterSpec, WorkerGroupSpec};
use crate::ray::version;

/// Variable of the head that selects the version of the autoscaler.
const AUTOSCALER_V2: &str = "RAY_enable_autoscaler_v2";
const REDIS_ADDRESS: &str = "RAY_REDIS_ADDRESS";
const REDIS_PASSWORD: &str = "REDIS_PASSWORD";
const REDIS_USERNAME: &str = "REDIS_USERNAME";
const AUTOSCALER_COMMAND: &str = "KUBERAY_GEN_AUTOSCALER_START_CMD";

/// Reason of an event about a bad name.
pub const INVALID_METADATA: &str = "InvalidRayClusterMetadata";
/// Reason of an event about a bad spec.
pub const INVALID_SPEC: &str = "InvalidRayClusterSpec";

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Reason of the event.
    pub reason: &'static str,
    /// Message of the event.
    pub message: String,
}

/// Checks name and spec of a cluster.
///
/// # Errors
/// The first rule that is broken.
pub fn validate(facts: &Facts<'_>) -> Result<(), Invalid> {
    let invalid = |reason, what: &str, why: String| Invalid {
        reason,
        message: format!("The RayCluster {what} is invalid {}: {why}", facts.key()),
    };
    name(facts.name).map_err(|why| invalid(INVALID_METADATA, "metadata", why))?;
    spec(facts.spec, facts.annotations).map_err(|why| invalid(INVALID_SPEC, "spec", why))?;
    upgrade(facts).map_err(|why| invalid(INVALID_SPEC, "UpgradeStrategy", why))
}

fn name(name: &str) -> Result<(), String> {
    if name.len() > CLUSTER_NAME_MAX {
        return Err(format!("RayCluster name should be no more than {CLUSTER_NAME_MAX} characters"));
    }
    let errors = is_dns1035_label(name);
    if errors.is_empty() {
        return Ok(());
    }
    Err(format!("RayCluster name should be a valid DNS1035 label: [{}]", errors.join(" ")))
}

fn upgrade(facts: &Facts<'_>) -> Result<(), String> {
    let given = facts.spec.upgrade_strategy.as_ref().and_then(|strategy| strategy.r#type.as_deref());
    match (given, facts.creator()) {
        (None, _) => Ok(()),
        (Some(other), _) if !matches!(other, "Recreate" | "None") => Err(format!(
            "The RayCluster spec is invalid: Spec.UpgradeStrategy.Type value {other} is invalid, valid options are \
             Recreate or None"
        )),
        (Some(_), Creator::RayCluster) => Ok(()),
        (Some(_), creator) => {
            Err(format!("upgradeStrategy cannot be set when RayCluster is created by {}", creator.as_str()))
        }
    }
}

fn containers(template: &PodTemplateSpec) -> &[Container] {
    template.spec.as_ref().map_or(&[], |spec| spec.containers.as_slice())
}

fn variable<'a>(container: &'a Container, name: &str) -> Option<&'a EnvVar> {
    container.env.iter().flatten().find(|variable| variable.name == name)
}

/// Checks the spec of a RayCluster, also within a RayJob or RayService.
///
/// # Errors
/// The first rule that is broken.
pub fn spec(spec: &RayClusterSpec, annotations: &BTreeMap<String, String>) -> Result<(), String> {
    let head = &spec.head_group_spec;
    let Some(ray) = containers(&head.template).first() else {
        return Err("headGroupSpec should have at least one container".to_owned());
    };
    group_options("Head", &head.ray_start_params, &head.resources, &head.labels)?;
    for group in &spec.worker_group_specs {
        worker_group(spec, ray, group)?;
    }
    fault_tolerance(spec, annotations, ray)?;
    autoscaling(spec, ray)?;
    authentication(spec)?;
    unsupported(spec)
}

fn group_options(
    group: &str,
    params: &BTreeMap<String, String>,
    resources: &BTreeMap<String, String>,
    labels: &BTreeMap<String, String>,
) -> Result<(), String> {
    let names_resources = ["num-cpus", "num-gpus", "memory", "resources"]
        .iter()
        .any(|option| params.get(*option).is_some_and(|value| !value.is_empty()));
    if names_resources && !resources.is_empty() {
        return Err(format!(
            "resource fields should not be set in both rayStartParams and Resources for {group} group; please use \
             only one"
        ));
    }
    if params.contains_key("labels") {
        return Err(format!(
            "rayStartParams['labels'] is not supported for {group} group; please use the top-level Labels field instead"
        ));
    }
    let mut errors = Vec::new();
    for (key, value) in labels {
        let of_key = is_qualified_name(key).into_iter();
        errors.extend(of_key.map(|error| format!("invalid label key for {group} group: '{key}', error: {error}")));
        let of_value = is_label_value(value).into_iter();
        errors.extend(
            of_value.map(|error| {
                format!("invalid label value for key '{key}' in {group} group: '{value}', error: {error}")
            }),
        );
    }
    if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
}

fn worker_group(spec: &RayClusterSpec, head: &Container, group: &WorkerGroupSpec) -> Result<(), String> {
    let name = &group.group_name;
    if containers(&group.template).is_empty() {
        return Err("workerGroupSpec should have at least one container".to_owned());
    }
    let (min, max) = (group.replicas_min(), group.replicas_max());
    if min < 0 {
        return Err(format!("worker group {name} has negative minReplicas {min}"));
    }
    if max < 0 {
        return Err(format!("worker group {name} has negative maxReplicas {max}"));
    }
    if min > max {
        return Err(format!("worker group {name} has minReplicas {min} greater than maxReplicas {max}"));
    }
    group_options(name, &group.ray_start_params, &group.resources, &group.labels)?;
    let Some(timeout) = group.idle_timeout_seconds else { return Ok(()) };
    if timeout < 0 {
        return Err(format!("worker group {name}: idleTimeoutSeconds must be non-negative, got {timeout}"));
    }
    let of_head = variable(head, AUTOSCALER_V2).and_then(|variable| variable.value.as_deref());
    if spec.autoscaler_version() == Some("v2") || matches!(of_head, Some("1" | "true")) {
        return Ok(());
    }
    Err(format!(
        "worker group {name}: idleTimeoutSeconds is set, but autoscaler v2 is not enabled. Please set \
         .spec.autoscalerOptions.version to 'v2' (or set {AUTOSCALER_V2} environment variable to 'true' in the head \
         pod if using KubeRay < 1.4.0)"
    ))
}

fn fault_tolerance(
    spec: &RayClusterSpec,
    annotations: &BTreeMap<String, String>,
    head: &Container,
) -> Result<(), String> {
    let annotation = annotations.get(FT_ENABLED).map(String::as_str).unwrap_or_default();
    let params = &spec.head_group_spec.ray_start_params;
    let param = |name: &str| params.get(name).is_some_and(|value| !value.is_empty());
    if let Some(options) = &spec.gcs_fault_tolerance_options {
        if !annotation.is_empty() {
            return Err(format!(
                "{FT_ENABLED} annotation and GcsFaultToleranceOptions are both set. Please use only \
                 GcsFaultToleranceOptions to configure GCS fault tolerance"
            ));
        }
        let managed = |what: &str, field: &str| {
            Err(format!(
                "cannot set {what} when GcsFaultToleranceOptions is enabled - use GcsFaultToleranceOptions.{field} \
                 instead"
            ))
        };
        if param("redis-password") {
            return managed("`redis-password` in rayStartParams", "RedisPassword");
        }
        if variable(head, REDIS_PASSWORD).is_some() {
            return managed("`REDIS_PASSWORD` env var in head Pod", "RedisPassword");
        }
        if variable(head, REDIS_ADDRESS).is_some() {
            return managed("`RAY_REDIS_ADDRESS` env var in head Pod", "RedisAddress");
        }
        if annotations.get(STORAGE_NAMESPACE).is_some_and(|name| !name.is_empty()) {
            return managed(&format!("`{STORAGE_NAMESPACE}` annotation"), "ExternalStorageNamespace");
        }
        backend(options)?;
    } else if !annotation.eq_ignore_ascii_case("true") && variable(head, REDIS_ADDRESS).is_some() {
        return Err(format!(
            "{REDIS_ADDRESS} is set which implicitly enables GCS fault tolerance, but GcsFaultToleranceOptions is not \
             set. Please set GcsFaultToleranceOptions to enable GCS fault tolerance"
        ));
    }
    if param("redis-username") || variable(head, REDIS_USERNAME).is_some() {
        return Err("cannot set redis username in rayStartParams or environment variables - use \
                    GcsFaultToleranceOptions.RedisUsername instead"
            .to_owned());
    }
    Ok(())
}

fn backend(options: &GcsFaultToleranceOptions) -> Result<(), String> {
    if !options.is_embedded() {
        return match &options.storage {
            Some(_) => Err("cannot set GcsFaultToleranceOptions.Storage when backend is 'redis' - it only applies to \
                            the 'rocksdb' backend"
                .to_owned()),
            None => Ok(()),
        };
    }
    let of_redis = [
        ("RedisAddress", !options.redis_address.is_empty()),
        ("RedisUsername", options.redis_username.is_some()),
        ("RedisPassword", options.redis_password.is_some()),
        ("ExternalStorageNamespace", !options.external_storage_namespace.is_empty()),
    ];
    if let Some((field, _)) = of_redis.into_iter().find(|(_, is_set)| *is_set) {
        return Err(format!("cannot set GcsFaultToleranceOptions.{field} when backend is 'rocksdb'"));
    }
    let is_ambiguous = options.storage.as_ref().is_some_and(|storage| {
        !storage.claim_name.is_empty()
            && (storage.size.is_some() || storage.storage_class_name.is_some() || !storage.access_modes.is_empty())
    });
    if is_ambiguous {
        return Err(
            "GcsFaultToleranceOptions.Storage.ClaimName is mutually exclusive with size, storageClassName, and \
                    accessModes"
                .to_owned(),
        );
    }
    Ok(())
}

fn autoscaling(spec: &RayClusterSpec, head: &Container) -> Result<(), String> {
    let of_head = variable(head, AUTOSCALER_V2);
    if !spec.is_autoscaled() {
        let given = of_head.and_then(|variable| variable.value.as_deref()).unwrap_or_default();
        if matches!(given, "1" | "true") {
            return Err(format!(
                "environment variable {AUTOSCALER_V2} cannot be set to '{given}' when enableInTreeAutoscaling is \
                 false. Please set enableInTreeAutoscaling: true to use autoscaler v2"
            ));
        }
    } else {
        if let Some(group) = spec.worker_group_specs.iter().find(|group| group.is_suspended()) {
            return Err(format!("worker group {} cannot be suspended with Autoscaler enabled", group.group_name));
        }
        if spec.autoscaler_version().is_some() && of_head.is_some() {
            return Err(format!(
                "both .spec.autoscalerOptions.version and head Pod env var {AUTOSCALER_V2} are set, please only use \
                 the former"
            ));
        }
        if spec.autoscaler_version() == Some("v2") {
            restart_policies(spec)?;
        }
    }
    let Some(options) = &spec.autoscaler_options else { return Ok(()) };
    if let Some(timeout) = options.idle_timeout_seconds.filter(|timeout| *timeout < 0) {
        return Err(format!("autoscalerOptions.idleTimeoutSeconds must be non-negative, got {timeout}"));
    }
    if options.env.iter().any(|variable| variable.name == AUTOSCALER_COMMAND) {
        return Err(format!(
            "autoscalerOptions.env must not contain {AUTOSCALER_COMMAND}: it is managed by KubeRay and injected \
             automatically into the autoscaler container"
        ));
    }
    Ok(())
}

/// True if the template sets a restart policy other than `Never`.
pub fn restarts(template: &PodTemplateSpec) -> bool {
    let policy = template.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or_default();
    !matches!(policy, "" | "Never")
}

fn restart_policies(spec: &RayClusterSpec) -> Result<(), String> {
    let what = if restarts(&spec.head_group_spec.template) {
        "head Pod".to_owned()
    } else if let Some(group) = spec.worker_group_specs.iter().find(|group| restarts(&group.template)) {
        format!("worker group {}", group.group_name)
    } else {
        return Ok(());
    };
    Err(format!("restartPolicy for {what} should be Never or unset when using autoscaler V2"))
}

fn authentication(spec: &RayClusterSpec) -> Result<(), String> {
    let options = spec.auth_options.as_ref();
    let is_api_server = options.is_some_and(|options| options.enable_k8s_token_auth == Some(true));
    if !spec.needs_token() {
        return match is_api_server {
            true => Err("authOptions.enableK8sTokenAuth is enabled but authOptions.mode not set to 'token'".to_owned()),
            false => Ok(()),
        };
    }
    let given = &spec.ray_version;
    if given.is_empty() {
        return Err("authOptions.mode is 'token' but RayVersion was not specified. Ray version 2.52.0 or later is \
                    required"
            .to_owned());
    }
    let Some(version) = version::parse(given) else {
        return Err(format!("authOptions.mode is 'token' but RayVersion format is invalid: {given}"));
    };
    if version < (2, 52, 0) {
        return Err(format!("authOptions.mode is 'token' but minimum Ray version is 2.52.0, got {given}"));
    }
    if is_api_server && version < (2, 55, 0) {
        return Err(format!(
            "authOptions.enableK8sTokenAuth is enabled but minimum Ray version is 2.55.0, got {given}"
        ));
    }
    let names_secret = options.and_then(|options| options.secret_name.as_deref()).is_some_and(|name| !name.is_empty());
    if is_api_server && names_secret {
        return Err("authOptions.enableK8sTokenAuth is enabled and authOptions.secretName is also set".to_owned());
    }
    Ok(())
}

/// Rejects the fields that need a feature gate of KubeRay that is off by default. This operator
/// does not support them.
fn unsupported(spec: &RayClusterSpec) -> Result<(), String> {
    if spec.history_server_options.is_some() {
        return Err("RayClusterHistoryServer feature gate is not enabled".to_owned());
    }
    if spec.network_policy.is_some() {
        return Err("spec.networkPolicy requires the RayClusterNetworkPolicy feature gate to be enabled".to_owned());
    }
    if spec.tls_options.is_some() {
        return Err("spec.tlsOptions requires the RayClusterMTLS feature gate to be enabled".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn with(change: impl FnOnce(&mut Value)) -> Value {
        let template = json!({"spec": {"containers": [{"name": "ray"}]}});
        let mut spec = json!({
            "headGroupSpec": {"template": template},
            "workerGroupSpecs": [{"groupName": "small", "minReplicas": 0, "maxReplicas": 4, "template": template}]});
        change(&mut spec);
        spec
    }

    fn check(annotations: Value, value: Value, expected: &str) {
        let parsed = RayClusterSpec::read(&value).unwrap();
        let annotations = serde_json::from_value(annotations).unwrap();
        let found = spec(&parsed, &annotations).err().unwrap_or_default();
        assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{value}\n{found}");
    }

    #[test]
    fn a_plain_spec_is_valid() {
        check(json!({}), with(|_| {}), "");
    }

    #[test]
    fn every_group_needs_a_container() {
        let none = json!({"spec": {"containers": []}});
        check(json!({}), with(|spec| spec["headGroupSpec"]["template"] = none.clone()), "headGroupSpec should have");
        let workers = with(|spec| spec["workerGroupSpecs"][0]["template"] = none.clone());
        check(json!({}), workers, "workerGroupSpec should have at least one container");
    }

    #[test]
    fn bounds_of_replicas_must_not_be_negative_or_crossed() {
        let group = |min: i32, max: i32| {
            with(|spec| {
                spec["workerGroupSpecs"][0]["minReplicas"] = json!(min);
                spec["workerGroupSpecs"][0]["maxReplicas"] = json!(max);
            })
        };
        check(json!({}), group(-1, 4), "worker group small has negative minReplicas -1");
        check(json!({}), group(0, -4), "worker group small has negative maxReplicas -4");
        check(json!({}), group(5, 4), "worker group small has minReplicas 5 greater than maxReplicas 4");
    }

    #[test]
    fn resources_and_labels_have_one_place() {
        let both = with(|spec| {
            spec["headGroupSpec"]["rayStartParams"] = json!({"num-cpus": "1"});
            spec["headGroupSpec"]["resources"] = json!({"CPU": "1"});
        });
        check(json!({}), both, "in both rayStartParams and Resources for Head group");
        let labels = with(|spec| spec["workerGroupSpecs"][0]["rayStartParams"] = json!({"labels": "a=b"}));
        check(json!({}), labels, "rayStartParams['labels'] is not supported for small group");
        let bad = with(|spec| spec["headGroupSpec"]["labels"] = json!({"a b": "c"}));
        check(json!({}), bad, "invalid label key for Head group: 'a b'");
    }

    #[test]
    fn an_autoscaled_cluster_has_no_suspended_group() {
        let suspended = with(|spec| {
            spec["enableInTreeAutoscaling"] = json!(true);
            spec["workerGroupSpecs"][0]["suspend"] = json!(true);
        });
        check(json!({}), suspended, "worker group small cannot be suspended with Autoscaler enabled");
    }

    #[test]
    fn version_2_of_the_autoscaler_needs_pods_that_do_not_restart() {
        let restarting = with(|spec| {
            spec["enableInTreeAutoscaling"] = json!(true);
            spec["autoscalerOptions"] = json!({"version": "v2"});
            spec["workerGroupSpecs"][0]["template"]["spec"]["restartPolicy"] = json!("Always");
        });
        check(json!({}), restarting, "restartPolicy for worker group small should be Never or unset");
    }

    #[test]
    fn an_external_store_is_configured_in_one_place() {
        let options = || with(|spec| spec["gcsFaultToleranceOptions"] = json!({"redisAddress": "redis:6379"}));
        check(json!({}), options(), "");
        check(json!({FT_ENABLED: "true"}), options(), "are both set");
        let address = with(|spec| {
            spec["headGroupSpec"]["template"]["spec"]["containers"][0]["env"] =
                json!([{"name": "RAY_REDIS_ADDRESS", "value": "redis:6379"}]);
        });
        check(json!({}), address.clone(), "RAY_REDIS_ADDRESS is set which implicitly enables");
        check(json!({FT_ENABLED: "true"}), address, "");
        let embedded = with(|spec| {
            spec["gcsFaultToleranceOptions"] = json!({"backend": "rocksdb", "redisAddress": "redis:6379"});
        });
        check(json!({}), embedded, "cannot set GcsFaultToleranceOptions.RedisAddress when backend is 'rocksdb'");
    }

    #[test]
    fn tokens_need_a_version_of_ray_that_knows_them() {
        let token = |version: &str| {
            with(|spec| {
                spec["authOptions"] = json!({"mode": "token"});
                spec["rayVersion"] = json!(version);
            })
        };
        check(json!({}), token(""), "RayVersion was not specified");
        check(json!({}), token("2.46.0"), "minimum Ray version is 2.52.0, got 2.46.0");
        check(json!({}), token("2.52.0"), "");
    }

    #[test]
    fn a_name_leaves_room_for_the_names_of_services() {
        assert!(name(&"a".repeat(54)).unwrap_err().contains("no more than 53 characters"));
        assert!(name("1a").unwrap_err().contains("valid DNS1035 label"));
        assert!(name("raycluster-sample").is_ok());
    }
}
