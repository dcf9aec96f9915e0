//! Kueue's configuration file (`config.kueue.x-k8s.io`, `kind: Configuration`): parsed, defaulted,
//! validated, and split into the [`Config`] of the controllers and the [`Process`] that runs them.
//!
//! Parsing is strict, like Kueue's: an unknown field, gate or value prevents the start. Valid
//! settings that Berth does not support are rejected by name ([`support`], [`process`]), so no
//! field is accepted without effect. `fields` lists every field; its test fails if one is missing.

mod defaults;
mod device_classes;
#[cfg(test)]
mod fields;
pub mod file;
pub mod frameworks;
mod metric_labels;
pub mod process;
mod settings;
mod support;
mod validate;
mod versions;

pub(crate) use defaults::outside_of_system;
pub use file::File;
pub use process::{BindAddress, Process};
pub use settings::{
    Accounts, AdmissionFairSharing, ClientLimit, Config, CustomLabel, FairSharing, FairSharingStrategy, FlavorCoolDown,
    Integrations, LabelSource, LocalQueueMetrics, MetricsConfig, ObjectRetentionPolicies, QuotaCheckStrategy,
    RequeuingStrategy, RequeuingTimestamp, ResourceTransformation, Resources, TransformationStrategy, WaitForPodsReady,
    WorkloadRetentionPolicy,
};
pub use validate::{validate, validate_gates};

use berth_apimachinery::field::{Error, Path};
use berth_runtime::Manager;
use serde_json::Value;

use crate::gates::{Gate, Gates};

/// The contents of a configuration file.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// Settings of the controllers.
    pub config: Config,
    /// Settings of the process that runs them.
    pub process: Process,
}

impl Loaded {
    /// The settings without a file, for controllers in this namespace.
    pub fn without_file(own_namespace: &str) -> Self {
        let managed_jobs_namespace_selector = outside_of_system(own_namespace);
        let config = Config { managed_jobs_namespace_selector, ..Config::default() };
        Loaded { config, process: Process::default() }
    }

    /// Names of the fields in the file that concern a separate controller process, and have no
    /// effect on controllers embedded in another one.
    pub fn of_own_process(&self) -> Vec<&'static str> {
        let Process { tls, election, .. } = &self.process;
        let process = &self.process;
        let table = [
            (
                "health",
                process.health_address.is_some() || process.readiness_path.is_some() || process.liveness_path.is_some(),
            ),
            ("metrics.bindAddress", process.metrics_address.is_some()),
            ("webhook", process.webhook_host.is_some() || process.webhook_port.is_some()),
            (
                "internalCertManagement",
                process.certificate_folder.is_some()
                    || process.webhook_service.is_some()
                    || process.webhook_secret.is_some(),
            ),
            ("leaderElection", *election != process::Election::default()),
            ("tls", *tls != process::Tls::default()),
            ("controller.cacheSyncTimeout", process.cache_sync_timeout.is_some()),
            ("clientConnection", self.config.client_limit.is_some()),
        ];
        table.into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect()
    }
}

/// Reads a configuration file of either version, already parsed from YAML. `own_namespace`: the
/// controllers' namespace unless the file names one. Errors give the path of each field; either the
/// whole file is accepted or none of it.
pub fn read(value: Value, own_namespace: &str) -> Result<Loaded, Vec<Error>> {
    let value = versions::newest(value)?;
    let written: File = versions::strict(&value, &Path::root()).map_err(|error| vec![error])?;
    let gates = match validate_gates(&written.feature_gates, "") {
        Ok(gates) => gates,
        Err(error) => return Err(vec![error]),
    };
    let file = defaults::fill(written.clone(), own_namespace);
    let mut errors = validate(&file, &gates);
    if errors.is_empty() {
        errors = support::refusals(&written, &gates);
    }
    let process = process::of_file(&written).unwrap_or_else(|wrong| {
        errors.extend(wrong);
        Process::default()
    });
    if errors.is_empty() { Ok(Loaded { config: Config::of_file(&file, &gates), process }) } else { Err(errors) }
}

/// Limits the controllers of this manager by `controller.groupKindConcurrency`.
pub(crate) fn limit_concurrency(config: &Config, manager: &mut Manager) {
    for (kind, at_once) in &config.concurrency_max {
        if let Some(Some(controller)) = support::controller_of(kind) {
            manager.limit_concurrency(&controller, *at_once);
        }
    }
}

/// True if the file enables the eviction of workloads whose pods do not become ready.
pub fn waits_for_pods_ready(file: &File, gates: &Gates) -> bool {
    file.wait_for_pods_ready.is_some() && !gates.on(Gate::DisableWaitForPodsReady)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<Loaded, Vec<Error>> {
        super::read(value, "berth-system")
    }

    fn fields(result: Result<Loaded, Vec<Error>>) -> Vec<String> {
        result.unwrap_err().into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn a_file_is_read_with_its_defaults() {
        let loaded = read(json!({
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "waitForPodsReady": {"timeout": "5m", "requeuingStrategy": {"backoffLimitCount": 3}},
            "integrations": {"frameworks": ["batch/job"]},
            "fairSharing": {},
            "featureGates": {"PriorityBoost": true},
            "controller": {"groupKindConcurrency": {"Job.batch": 5}},
        }))
        .unwrap();
        let config = &loaded.config;
        let wait = config.pods_ready().unwrap();
        assert_eq!(wait.timeout(), Duration::from_secs(300));
        assert_eq!(wait.recovery_timeout(), Some(Duration::from_secs(300)));
        assert_eq!(wait.requeuing_strategy.backoff_base_seconds, 60);
        assert_eq!(config.integrations.frameworks, ["batch/job"]);
        let engine = config.engine();
        assert!(engine.gates.priority_boost);
        assert_eq!(engine.fair_sharing.unwrap().preemption_strategies.len(), 2);
        assert_eq!(config.concurrency_max["Job.batch"], 5);
    }

    #[test]
    fn an_empty_file_is_the_default_with_batch_jobs_alone() {
        let mut expected = Loaded::without_file("berth-system");
        expected.config.integrations.frameworks = vec!["batch/job".to_owned()];
        assert_eq!(read(json!({})).unwrap(), expected);
        let empty = json!({"integrations": {"frameworks": []}});
        assert_eq!(read(empty).unwrap(), expected);
        assert_eq!(expected.config.integrations.frameworks, ["batch/job"]);
    }

    #[test]
    fn system_and_own_namespaces_are_never_managed() {
        let excluded = |file: Value| {
            let loaded = super::read(file, "queues").unwrap();
            loaded.config.managed_jobs_namespace_selector.match_expressions.unwrap()[0].values.clone().unwrap()
        };
        assert_eq!(excluded(json!({})), ["kube-system", "queues"]);
        assert_eq!(excluded(json!({"namespace": "kueue-system"})), ["kube-system", "kueue-system"]);
        let selector = |values: &[&str]| {
            json!({"managedJobsNamespaceSelector": {"matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": values}]}})
        };
        assert!(super::read(selector(&["kube-system", "queues"]), "queues").is_ok());
        let refused = super::read(selector(&["kube-system", "kueue-system"]), "queues").unwrap_err();
        assert!(refused[0].to_string().contains("queues"), "{refused:?}");
    }

    fn old(extra: Value) -> Result<Loaded, Vec<Error>> {
        let mut file = json!({"apiVersion": "config.kueue.x-k8s.io/v1beta1", "kind": "Configuration"});
        file.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        read(file)
    }

    #[test]
    fn the_older_version_waits_for_pods_only_if_enabled() {
        for off in [
            json!({}),
            json!({"waitForPodsReady": null}),
            json!({"waitForPodsReady": {}}),
            json!({"waitForPodsReady": {"enable": false, "timeout": "1m"}}),
            json!({"featureGates": null}),
        ] {
            assert!(old(off.clone()).unwrap().config.pods_ready().is_none(), "{off}");
        }
        let config = old(json!({"waitForPodsReady": {"enable": true}})).unwrap().config;
        let wait = config.pods_ready().unwrap();
        assert_eq!((wait.timeout(), wait.block_admission), (Duration::from_secs(300), true));
        assert_eq!(wait.recovery_timeout(), Some(Duration::from_secs(300)));
        let said = json!({"waitForPodsReady": {"enable": true, "timeout": "1m", "blockAdmission": false}});
        let config = old(said).unwrap().config;
        let wait = config.pods_ready().unwrap();
        assert_eq!((wait.timeout(), wait.block_admission), (Duration::from_secs(60), false));
        // The newer version waits unless a gate disables it.
        let config = read(json!({})).unwrap().config;
        let wait = config.pods_ready().unwrap();
        assert_eq!((wait.timeout(), wait.block_admission), (Duration::from_secs(1800), false));
    }

    #[test]
    fn the_older_version_has_its_own_default_rates() {
        let limit = |loaded: Result<Loaded, Vec<Error>>| {
            let limit = loaded.unwrap().config.client_limit.unwrap();
            (limit.qps, limit.burst)
        };
        assert_eq!(limit(old(json!({"clientConnection": {}}))), (20.0, 30));
        assert_eq!(limit(read(json!({"clientConnection": {}}))), (300.0, 500));
        assert_eq!(limit(old(json!({"clientConnection": {"qps": 50, "burst": 100}}))), (50.0, 100));
        assert!(read(json!({"clientConnection": {"qps": -1}})).unwrap().config.client_limit.is_none());
    }

    #[test]
    fn fields_of_the_older_version_are_converted_or_rejected() {
        assert!(old(json!({"fairSharing": {"enable": false}})).unwrap().config.fair_sharing.is_none());
        assert!(old(json!({"fairSharing": {}})).unwrap().config.fair_sharing.is_none());
        let fair = old(json!({"fairSharing": {"enable": true}})).unwrap().config.fair_sharing.unwrap();
        assert_eq!(fair.preemption_strategies.len(), 2);
        assert_eq!(fields(old(json!({"queueVisibility": {"updateIntervalSeconds": 5}}))), ["queueVisibility"]);
        assert!(old(json!({"queueVisibility": {"clusterQueues": {"maxCount": 0}}})).is_ok());
        let selector = json!({"matchLabels": {"team": "a"}});
        let options = json!({"frameworks": ["batch/job"], "podOptions": {"namespaceSelector": selector}});
        assert_eq!(fields(old(json!({"integrations": options}))), ["integrations.podOptions.namespaceSelector"]);
        let same = old(json!({"integrations": options, "managedJobsNamespaceSelector": selector})).unwrap();
        assert_eq!(json!(same.config.managed_jobs_namespace_selector), selector);
        let pods = json!({"integrations": {"podOptions": {"podSelector": selector}}});
        assert_eq!(fields(old(pods)), ["integrations.podOptions.podSelector"]);
        // Disabled sections are parsed as strictly as enabled ones.
        assert_eq!(
            fields(old(json!({"waitForPodsReady": {"enable": false, "timout": "1m"}}))),
            ["waitForPodsReady.timout"]
        );
        assert_eq!(fields(old(json!({"fairSharing": {"enable": "yes"}}))), ["fairSharing.enable"]);
        assert_eq!(old(json!({"waitForPodsReady": "5m"})).unwrap_err().len(), 1);
    }

    #[test]
    fn malformed_values_are_rejected_with_their_path() {
        let messages = |result: Result<Loaded, Vec<Error>>| -> Vec<String> {
            result.unwrap_err().iter().map(ToString::to_string).collect()
        };
        let duration = "expected a duration such as 90s, 5m or 1h30m";
        assert_eq!(
            messages(read(json!({"waitForPodsReady": {"timeout": 90}}))),
            [format!("waitForPodsReady.timeout: Invalid value: 90: invalid type: integer `90`, {duration}")]
        );
        assert_eq!(
            messages(read(json!({"waitForPodsReady": {"timeout": "5 minutes"}}))),
            [format!(
                "waitForPodsReady.timeout: Invalid value: \"5 minutes\": time: invalid duration \"5 minutes\", {duration}"
            )]
        );
        for (file, field) in [
            (
                json!({"waitForPodsReady": {"requeuingStrategy": {"timestmp": "Eviction"}}}),
                "waitForPodsReady.requeuingStrategy.timestmp",
            ),
            (json!({"featureGates": {"TopologyAwareScheduling": "on"}}), "featureGates.TopologyAwareScheduling"),
            (json!({"integrations": {"frameworks": ["batch/job", 1]}}), "integrations.frameworks[1]"),
            (json!({"integration": {}}), "integration"),
        ] {
            assert_eq!(fields(read(file.clone())), [field], "{file}");
            assert_eq!(fields(old(file.clone())), [field], "{file}");
        }
        for section in ["waitForPodsReady", "fairSharing"] {
            let refused = messages(old(json!({section: {"enabled": true}})));
            assert!(refused[0].starts_with(&format!("{section}.enabled: ")), "{refused:?}");
            assert!(refused[0].ends_with("in this version it is `enable`"), "{refused:?}");
        }
    }

    /// The file Kueue ships in `config/components/manager` and in its chart, and one of a release
    /// that had the older version.
    #[test]
    fn configuration_files_from_kueue_are_accepted() {
        let groups = json!({"Job.batch": 5, "Pod": 5, "Workload.kueue.x-k8s.io": 10, "LocalQueue.kueue.x-k8s.io": 5,
            "Cohort.kueue.x-k8s.io": 1, "ClusterQueue.kueue.x-k8s.io": 5, "ResourceFlavor.kueue.x-k8s.io": 1});
        let frameworks = [
            "batch/job",
            "kubeflow.org/mpijob",
            "ray.io/rayjob",
            "ray.io/raycluster",
            "ray.io/rayservice",
            "jobset.x-k8s.io/jobset",
            "workload.codeflare.dev/appwrapper",
            "trainer.kubeflow.org/trainjob",
            "pod",
            "deployment",
            "statefulset",
            "leaderworkerset.x-k8s.io/leaderworkerset",
        ];
        // If any of them is not integrated, exactly that one is rejected.
        let missing: Vec<String> = frameworks
            .iter()
            .enumerate()
            .filter(|(_, name)| !crate::jobs::is_integrated(name))
            .map(|(index, _)| format!("integrations.frameworks[{index}]"))
            .collect();
        for version in ["v1beta1", "v1beta2"] {
            let file = json!({
                "apiVersion": format!("config.kueue.x-k8s.io/{version}"), "kind": "Configuration",
                "health": {"healthProbeBindAddress": ":8081"},
                "metrics": {"bindAddress": ":8443"},
                "webhook": {"port": 9443},
                "leaderElection": {"leaderElect": true, "resourceName": "c1f6bfd2.kueue.x-k8s.io"},
                "controller": {"groupKindConcurrency": groups},
                "clientConnection": {"qps": 300, "burst": 500},
                "internalCertManagement": {"enable": true},
                "integrations": {"frameworks": frameworks},
            });
            match read(file) {
                Ok(loaded) => {
                    assert!(missing.is_empty());
                    assert_eq!(loaded.process.health_address, Some(BindAddress::Any(8081)));
                    assert_eq!(loaded.process.metrics_address, Some(BindAddress::Any(8443)));
                    assert_eq!(loaded.process.webhook_port, Some(9443));
                    assert_eq!(loaded.process.election.name.as_deref(), Some("c1f6bfd2.kueue.x-k8s.io"));
                }
                refused => assert_eq!(fields(refused), missing),
            }
        }
    }

    /// The settings of MLBatch's file for Kueue 0.10, which still had an integration of MXJob.
    #[test]
    fn a_file_with_an_integration_of_mxjob_and_both_fair_sharing_strategies_is_accepted() {
        let strategies = ["LessThanOrEqualToFinalShare", "LessThanInitialShare"];
        let file = json!({
            "apiVersion": "config.kueue.x-k8s.io/v1beta1", "kind": "Configuration",
            "waitForPodsReady": {"enable": false},
            "manageJobsWithoutQueueName": true,
            "managedJobsNamespaceSelector": {"matchLabels": {"mlbatch-team-namespace": "true"}},
            "integrations": {
                "frameworks": ["kubeflow.org/mxjob", "kubeflow.org/pytorchjob"],
                "externalFrameworks": ["AppWrapper.v1beta2.workload.codeflare.dev"],
            },
            "fairSharing": {"enable": true, "preemptionStrategies": strategies},
        });
        let config = read(file).expect("the file is accepted").config;
        assert!(config.manage_jobs_without_queue_name);
        assert!(config.integrations.enabled("kubeflow.org/mxjob") && !config.integrations.enabled("batch/job"));
        let labels = |value: &str| [("mlbatch-team-namespace".to_owned(), value.to_owned())].into();
        assert!(crate::selector::matches(&config.managed_jobs_namespace_selector, &labels("true")));
        assert!(!crate::selector::matches(&config.managed_jobs_namespace_selector, &labels("false")));
        let kept = config.fair_sharing.expect("fair sharing is on").preemption_strategies;
        assert_eq!(kept.iter().map(|strategy| format!("{strategy:?}")).collect::<Vec<_>>(), strategies);
    }

    #[test]
    fn unknown_fields_versions_and_gates_are_rejected() {
        let unknown = read(json!({"fairSharin": {}})).unwrap_err();
        assert!(unknown[0].detail.contains("unknown field `fairSharin`"), "{unknown:?}");
        assert_eq!(fields(read(json!({"apiVersion": "config.kueue.x-k8s.io/v9"}))), ["apiVersion"]);
        assert_eq!(fields(read(json!({"featureGates": {"NoSuchGate": true}}))), ["featureGates"]);
    }

    #[test]
    fn an_integration_with_a_feature_gate_needs_the_gate() {
        let file = |on: bool| {
            json!({
                "integrations": {"frameworks": ["batch/job", frameworks::SPARK]},
                "featureGates": {"SparkApplicationIntegration": on},
            })
        };
        assert_eq!(fields(read(file(false))), ["integrations.frameworks[1]"]);
        assert!(read(file(true)).unwrap().config.integrations.enabled(frameworks::SPARK));
        assert!(!Config::default().integrations.enabled(frameworks::SPARK));
    }

    #[test]
    fn unsupported_settings_are_rejected_by_name() {
        let file = json!({
            "multiKueue": {"origin": "here"},
            "featureGates": {"SchedulerLibraryIntegration": true},
        });
        let expected = ["multiKueue", "featureGates[SchedulerLibraryIntegration]"];
        assert_eq!(fields(read(file)), expected);
    }
}
