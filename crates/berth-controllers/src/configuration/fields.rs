//! Every field of the file and how it is treated. A test fails for a field without a row, and for a
//! row that is wrong.

use berth_apimachinery::field::Error;
use serde_json::{Value, json};

use super::Accounts;
use super::file::*;

/// How a field is treated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It affects the controllers or the process that runs them.
    Honoured,
    /// It is rejected, with its own path or that of a parent.
    Refused,
}
use Fate::{Honoured, Refused};

/// The path of each field, a file that sets it, and how it is treated. A row also covers every
/// field below its path; `[]` is any element.
fn rows() -> Vec<(&'static str, Value, Fate)> {
    let selector = json!({"matchLabels": {"team": "a"}});
    let wait = |field: Value| json!({ "waitForPodsReady": field });
    let requeuing = |field: Value| json!({"waitForPodsReady": {"requeuingStrategy": field}});
    let election = |field: Value| json!({ "leaderElection": field });
    let rule = json!({"resources": {"transformations": [
        {"input": "nvidia.com/gpu", "strategy": "Replace", "multiplyBy": "cpu", "outputs": {"example.com/part": 2}}]}});
    let usage = |field: Value| {
        let mut fair = json!({"usageHalfLifeTime": "1h"});
        fair.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
        json!({ "admissionFairSharing": fair })
    };
    let writers = |accounts: Value| json!({"integrations": {"ownerReferenceWriters": accounts}});
    let certificates = json!({"webhook": {"certDir": "/certs"}, "internalCertManagement": {"enable": false}});
    vec![
        ("apiVersion", json!({"apiVersion": "config.kueue.x-k8s.io/v1beta1"}), Honoured),
        ("kind", json!({"kind": "Job"}), Refused),
        ("namespace", json!({"namespace": "queues"}), Honoured),
        ("webhook.port", json!({"webhook": {"port": 9444}}), Honoured),
        ("webhook.host", json!({"webhook": {"host": "127.0.0.1"}}), Honoured),
        ("webhook.certDir", certificates.clone(), Honoured),
        ("leaderElection.leaderElect", election(json!({"leaderElect": false})), Honoured),
        ("leaderElection.leaseDuration", election(json!({"leaseDuration": "15s"})), Honoured),
        ("leaderElection.renewDeadline", election(json!({"renewDeadline": "5s"})), Honoured),
        ("leaderElection.retryPeriod", election(json!({"retryPeriod": "2s"})), Honoured),
        ("leaderElection.resourceLock", election(json!({"resourceLock": "endpoints"})), Refused),
        ("leaderElection.resourceName", election(json!({"resourceName": "c1f6bfd2.kueue.x-k8s.io"})), Honoured),
        ("leaderElection.resourceNamespace", election(json!({"resourceNamespace": "kueue-system"})), Honoured),
        ("metrics.bindAddress", json!({"metrics": {"bindAddress": ":8443"}}), Honoured),
        ("metrics.enableClusterQueueResources", json!({"metrics": {"enableClusterQueueResources": true}}), Honoured),
        (
            "metrics.customLabels",
            json!({"metrics": {"customLabels": [{"name": "team"}]}, "featureGates": {"CustomMetricLabels": true}}),
            Honoured,
        ),
        ("metrics.localQueueMetrics.enable", json!({"metrics": {"localQueueMetrics": {"enable": true}}}), Honoured),
        (
            "metrics.localQueueMetrics.localQueueSelector",
            json!({"metrics": {"localQueueMetrics": {"enable": true, "localQueueSelector": selector}}}),
            Honoured,
        ),
        ("health.healthProbeBindAddress", json!({"health": {"healthProbeBindAddress": ":8082"}}), Honoured),
        ("health.readinessEndpointName", json!({"health": {"readinessEndpointName": "/ready"}}), Honoured),
        ("health.livenessEndpointName", json!({"health": {"livenessEndpointName": "/alive"}}), Honoured),
        ("pprofBindAddress", json!({"pprofBindAddress": ":8083"}), Refused),
        (
            "controller.groupKindConcurrency",
            json!({"controller": {"groupKindConcurrency": {"Job.batch": 5}}}),
            Honoured,
        ),
        ("controller.cacheSyncTimeout", json!({"controller": {"cacheSyncTimeout": 120_000_000_000_u64}}), Honoured),
        ("tls.minVersion", json!({"tls": {"minVersion": "VersionTLS13"}}), Honoured),
        ("tls.cipherSuites", json!({"tls": {"cipherSuites": ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]}}), Honoured),
        ("tls.curvePreferences", json!({"tls": {"curvePreferences": [29]}}), Honoured),
        ("clientConnection.qps", json!({"clientConnection": {"qps": 50}}), Honoured),
        ("clientConnection.burst", json!({"clientConnection": {"burst": 50}}), Honoured),
        ("manageJobsWithoutQueueName", json!({"manageJobsWithoutQueueName": true}), Honoured),
        ("managedJobsNamespaceSelector", json!({"managedJobsNamespaceSelector": selector}), Honoured),
        ("internalCertManagement.enable", certificates, Honoured),
        (
            "internalCertManagement.webhookServiceName",
            json!({"internalCertManagement": {"webhookServiceName": "s"}}),
            Honoured,
        ),
        (
            "internalCertManagement.webhookSecretName",
            json!({"internalCertManagement": {"webhookSecretName": "s"}}),
            Honoured,
        ),
        ("waitForPodsReady.timeout", wait(json!({"timeout": "5m"})), Honoured),
        ("waitForPodsReady.blockAdmission", wait(json!({"blockAdmission": true})), Honoured),
        ("waitForPodsReady.recoveryTimeout", wait(json!({"recoveryTimeout": "3m"})), Honoured),
        ("waitForPodsReady.requeuingStrategy.timestamp", requeuing(json!({"timestamp": "Creation"})), Honoured),
        ("waitForPodsReady.requeuingStrategy.backoffLimitCount", requeuing(json!({"backoffLimitCount": 3})), Honoured),
        (
            "waitForPodsReady.requeuingStrategy.backoffBaseSeconds",
            requeuing(json!({"backoffBaseSeconds": 3})),
            Honoured,
        ),
        ("waitForPodsReady.requeuingStrategy.backoffMaxSeconds", requeuing(json!({"backoffMaxSeconds": 3})), Honoured),
        ("integrations.frameworks", json!({"integrations": {"frameworks": ["pod"]}}), Honoured),
        (
            "integrations.externalFrameworks",
            json!({"integrations": {"externalFrameworks": ["Foo.v1.example.com"]}}),
            Honoured,
        ),
        ("integrations.labelKeysToCopy", json!({"integrations": {"labelKeysToCopy": ["team"]}}), Honoured),
        ("integrations.annotationsToCopy", json!({"integrations": {"annotationsToCopy": ["team"]}}), Honoured),
        ("integrations.ownerReferenceWriters.users", writers(json!({"users": ["operator"]})), Honoured),
        ("integrations.ownerReferenceWriters.groups", writers(json!({"groups": ["operators"]})), Honoured),
        ("multiKueue", json!({"multiKueue": {"origin": "here"}}), Refused),
        (
            "fairSharing.preemptionStrategies",
            json!({"fairSharing": {"preemptionStrategies": ["LessThanInitialShare"]}}),
            Honoured,
        ),
        ("admissionFairSharing.usageHalfLifeTime", usage(json!({})), Honoured),
        ("admissionFairSharing.usageSamplingInterval", usage(json!({"usageSamplingInterval": "1m"})), Honoured),
        ("admissionFairSharing.resourceWeights", usage(json!({"resourceWeights": {"cpu": 0}})), Honoured),
        ("resources.quotaCheckStrategy", json!({"resources": {"quotaCheckStrategy": "IgnoreUndeclared"}}), Honoured),
        (
            "resources.excludeResourcePrefixes",
            json!({"resources": {"excludeResourcePrefixes": ["example.com"]}}),
            Honoured,
        ),
        ("resources.transformations[].input", rule.clone(), Honoured),
        ("resources.transformations[].strategy", rule.clone(), Honoured),
        ("resources.transformations[].multiplyBy", rule.clone(), Honoured),
        ("resources.transformations[].outputs", rule, Honoured),
        (
            "resources.deviceClassMappings",
            json!({"resources": {"deviceClassMappings": [{"name": "gpu", "deviceClassNames": ["gpu.example.com"]}]}}),
            Honoured,
        ),
        ("featureGates", json!({"featureGates": {"PriorityBoost": true}}), Honoured),
        (
            "objectRetentionPolicies.workloads.afterFinished",
            json!({"objectRetentionPolicies": {"workloads": {"afterFinished": "1h"}}}),
            Honoured,
        ),
        (
            "objectRetentionPolicies.workloads.afterDeactivatedByKueue",
            json!({"objectRetentionPolicies": {"workloads": {"afterDeactivatedByKueue": "1h"}}}),
            Honoured,
        ),
        ("visibilityServer.bindAddress", json!({"visibilityServer": {"bindAddress": "127.0.0.1"}}), Refused),
        ("visibilityServer.bindPort", json!({"visibilityServer": {"bindPort": 8084}}), Refused),
        ("provisioningRequests", json!({"provisioningRequests": false}), Honoured),
        ("flavorCoolDown.initial", json!({"flavorCoolDown": {"initial": "10m"}}), Honoured),
        ("flavorCoolDown.maximum", json!({"flavorCoolDown": {"maximum": "2h"}}), Honoured),
        ("failureRecovery.gracePeriod", json!({"failureRecovery": {"gracePeriod": "5m"}}), Honoured),
    ]
}

/// A file with every field set. It is spelled out, so that the compiler reports a new field here.
fn full() -> File {
    let text = || Some("x".to_owned());
    let second = Some(jiff::SignedDuration::from_secs(1));
    let selector: k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector =
        serde_json::from_value(json!({"matchLabels": {"a": "b"}})).unwrap();
    let provider = AccessProvider {
        name: "x".to_owned(),
        exec_config: ExecConfig {
            api_version: "x".to_owned(),
            command: "x".to_owned(),
            args: vec!["x".to_owned()],
            env: vec![ExecVariable { name: "x".to_owned(), value: "x".to_owned() }],
            install_hint: "x".to_owned(),
            provide_cluster_info: true,
            interactive_mode: "x".to_owned(),
        },
    };
    let source = || {
        Some(DeviceSource {
            name: "x".to_owned(),
            driver: "x".to_owned(),
            device_selector: DeviceSelector { cel: Some(CelSelector { expression: "x".to_owned() }) },
        })
    };
    File {
        api_version: "x".to_owned(),
        kind: "x".to_owned(),
        namespace: text(),
        webhook: Some(Webhook { port: Some(1), host: text(), cert_dir: text() }),
        leader_election: Some(LeaderElection {
            leader_elect: Some(true),
            lease_duration: second,
            renew_deadline: second,
            retry_period: second,
            resource_lock: text(),
            resource_name: text(),
            resource_namespace: text(),
        }),
        metrics: Metrics {
            bind_address: text(),
            enable_cluster_queue_resources: Some(true),
            custom_labels: vec![CustomLabel {
                name: "x".to_owned(),
                source_label_key: "x".to_owned(),
                source_annotation_key: "x".to_owned(),
                source_kind: text(),
                tracked_values: vec!["x".to_owned()],
            }],
            local_queue_metrics: Some(LocalQueueMetrics { enable: true, local_queue_selector: Some(selector.clone()) }),
        },
        health: Some(Health {
            health_probe_bind_address: text(),
            readiness_endpoint_name: text(),
            liveness_endpoint_name: text(),
        }),
        pprof_bind_address: text(),
        controller: Some(Controller {
            group_kind_concurrency: [("Job.batch".to_owned(), 1)].into(),
            cache_sync_timeout: Some(json!(1)),
        }),
        tls: Some(Tls { min_version: "x".to_owned(), cipher_suites: vec!["x".to_owned()], curve_preferences: vec![1] }),
        client_connection: Some(ClientConnection { qps: Some(1.0), burst: Some(1) }),
        manage_jobs_without_queue_name: true,
        managed_jobs_namespace_selector: Some(selector),
        internal_cert_management: Some(InternalCertManagement {
            enable: Some(true),
            webhook_service_name: text(),
            webhook_secret_name: text(),
        }),
        wait_for_pods_ready: Some(WaitForPodsReady {
            timeout: second,
            block_admission: Some(true),
            recovery_timeout: second,
            requeuing_strategy: Some(RequeuingStrategy {
                timestamp: text(),
                backoff_limit_count: Some(1),
                backoff_base_seconds: Some(1),
                backoff_max_seconds: Some(1),
            }),
        }),
        integrations: Some(Integrations {
            frameworks: vec!["x".to_owned()],
            external_frameworks: vec!["x".to_owned()],
            label_keys_to_copy: vec!["x".to_owned()],
            annotations_to_copy: vec!["x".to_owned()],
            owner_reference_writers: Some(Accounts { users: vec!["x".to_owned()], groups: vec!["x".to_owned()] }),
        }),
        multi_kueue: Some(MultiKueue {
            gc_interval: second,
            origin: text(),
            worker_lost_timeout: second,
            dispatcher_name: text(),
            external_frameworks: vec![ExternalFramework { name: "x".to_owned() }],
            cluster_profile: Some(ClusterProfile {
                access_providers: vec![provider.clone()],
                credentials_providers: vec![provider],
            }),
            incremental_dispatcher_config: Some(IncrementalDispatcher { step_size: Some(1) }),
        }),
        fair_sharing: Some(FairSharing { preemption_strategies: vec!["x".to_owned()] }),
        admission_fair_sharing: Some(AdmissionFairSharing {
            usage_half_life_time: second,
            usage_sampling_interval: second,
            resource_weights: [("cpu".to_owned(), 1.0)].into(),
        }),
        resources: Some(Resources {
            quota_check_strategy: text(),
            exclude_resource_prefixes: vec!["x".to_owned()],
            transformations: vec![Transformation {
                input: "x".to_owned(),
                strategy: text(),
                multiply_by: text(),
                outputs: [("x".to_owned(), json!(1))].into(),
            }],
            device_class_mappings: vec![DeviceClassMapping {
                name: "x".to_owned(),
                device_class_names: vec!["x".to_owned()],
                sources: vec![DeviceClassSource { counter: source(), capacity: source() }],
            }],
        }),
        feature_gates: [("PriorityBoost".to_owned(), true)].into(),
        object_retention_policies: Some(ObjectRetentionPolicies {
            workloads: Some(WorkloadRetention { after_finished: second, after_deactivated_by_kueue: second }),
        }),
        visibility_server: Some(VisibilityServer { bind_address: text(), bind_port: Some(1) }),
        provisioning_requests: Some(true),
        flavor_cool_down: Some(FlavorCoolDown { initial: second, maximum: second }),
        failure_recovery: Some(FailureRecovery { grace_period: second }),
    }
}

/// Paths of all values that contain no further fields.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (name, value) in map {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves(value, &path, found);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            list.iter().for_each(|value| leaves(value, &format!("{path}[]"), found));
        }
        _ => found.push(path.to_owned()),
    }
}

fn is_or_is_below(leaf: &str, path: &str) -> bool {
    leaf.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.') || rest.starts_with("[]"))
}

/// The file without a field.
fn without(mut file: Value, path: &str) -> Value {
    fn remove(value: &mut Value, path: &str) {
        let (name, rest) = path.split_once('.').unwrap_or((path, ""));
        let (name, of_elements) = name.strip_suffix("[]").map_or((name, false), |name| (name, true));
        if rest.is_empty() {
            value.as_object_mut().expect("an object").remove(name);
        } else if of_elements {
            value[name].as_array_mut().expect("a list").iter_mut().for_each(|value| remove(value, rest));
        } else {
            remove(&mut value[name], rest);
        }
    }
    remove(&mut file, path);
    file
}

#[test]
fn every_field_has_a_row() {
    let mut found = Vec::new();
    leaves(&json!(full()), "", &mut found);
    for leaf in &found {
        let rows = rows().into_iter().filter(|(path, _, _)| is_or_is_below(leaf, path)).count();
        assert_eq!(rows, 1, "{leaf} is in {rows} rows: add exactly one");
    }
    for (path, _, _) in rows() {
        assert!(found.iter().any(|leaf| is_or_is_below(leaf, path)), "{path}: there is no such field");
    }
}

#[test]
fn every_field_takes_effect_or_is_rejected_by_name() {
    for (path, file, fate) in rows() {
        let read = super::read(file.clone(), "berth-system");
        match fate {
            Honoured => {
                let loaded = read.unwrap_or_else(|errors| panic!("{path}: {errors:?}"));
                let otherwise = super::read(without(file, path), "berth-system");
                assert_ne!(Ok(loaded), otherwise, "{path} has no effect");
            }
            Refused => {
                let errors = read.expect_err(path);
                let named = |error: &Error| is_or_is_below(&error.field, path);
                assert!(errors.iter().any(named), "{path}: {errors:?}");
            }
        }
    }
}

#[test]
fn every_field_is_in_the_documentation() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let text = std::fs::read_to_string(file).expect("the page");
    for (path, _, _) in rows() {
        let name = path.replace("[]", "");
        assert!(text.contains(&format!("`{name}`")), "docs/configuration.md does not describe {name}");
    }
}
