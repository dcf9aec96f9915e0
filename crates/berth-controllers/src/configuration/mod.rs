//! Kueue's configuration file (`config.kueue.x-k8s.io`, `kind: Configuration`): read, defaulted, checked, and turned into
//! the [`Config`] the controllers run by.
//!
//! Reading is strict, as Kueue's is: an unknown field, gate or value stops the start. Beyond that a file may ask for
//! something Berth does not have. What would change decisions is refused by name ([`support`]); what only concerns the
//! process Kueue runs in (ports, certificates, leader election) is accepted and named in [`Loaded::notices`], so that an
//! installation's file can be used as it is.

mod defaults;
mod device_classes;
pub mod file;
pub mod frameworks;
mod metric_labels;
mod support;
mod validate;
mod versions;

pub(crate) use defaults::outside_of_system;
pub use file::File;
pub use validate::{validate, validate_gates};

use berth_apimachinery::field::{Error, Path};
use serde_json::Value;

use crate::config::Config;
use crate::gates::Gates;

/// The configuration and what a person should know about the file it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// What the controllers run by.
    pub config: Config,
    /// Fields that have no effect here, each with the reason.
    pub notices: Vec<String>,
}

/// Reads a configuration file of either version, already parsed from YAML. The errors name fields by their paths; nothing
/// is half-applied.
pub fn read(value: Value) -> Result<Loaded, Vec<Error>> {
    let mut notices = Vec::new();
    let value = versions::newest(value, &mut notices)?;
    let written: File = serde_json::from_value(value)
        .map_err(|error| vec![Error::invalid(&Path::root(), Value::Null, error.to_string())])?;
    let gates = match validate_gates(&written.feature_gates, "") {
        Ok(gates) => gates,
        Err(error) => return Err(vec![error]),
    };
    let file = defaults::fill(written.clone());
    let mut errors = validate(&file, &gates);
    if errors.is_empty() {
        errors = support::refusals(&written);
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    notices.extend(support::notices(&written));
    Ok(Loaded { config: Config::of_file(&file), notices })
}

/// Does the file, as it is, ask for eviction of workloads whose pods do not become ready?
pub fn waits_for_pods_ready(file: &File, gates: &Gates) -> bool {
    file.wait_for_pods_ready.is_some() && !gates.on("DisableWaitForPodsReady")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

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
        assert!(loaded.notices[0].starts_with("controller.groupKindConcurrency: "), "{:?}", loaded.notices);
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(read(json!({})).unwrap().config, Config::default());
    }

    #[test]
    fn the_older_version_is_read_too() {
        let old = |extra: Value| {
            let mut file = json!({"apiVersion": "config.kueue.x-k8s.io/v1beta1", "kind": "Configuration"});
            file.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            read(file).unwrap()
        };
        assert!(old(json!({"waitForPodsReady": {"enable": false}})).config.pods_ready().is_none());
        assert!(old(json!({"fairSharing": {"enable": false}})).config.fair_sharing.is_none());
        assert!(old(json!({"fairSharing": {"enable": true}})).config.fair_sharing.is_some());
        assert_eq!(old(json!({"queueVisibility": {"updateIntervalSeconds": 5}})).notices.len(), 1);
        let selector = json!({"matchLabels": {"team": "a"}});
        let config = old(json!({"integrations": {"frameworks": ["batch/job"], "podOptions": {
            "namespaceSelector": selector}}}))
        .config;
        assert_eq!(json!(config.managed_jobs_namespace_selector), selector);
    }

    #[test]
    fn what_is_unknown_is_refused() {
        let unknown = read(json!({"fairSharin": {}})).unwrap_err();
        assert!(unknown[0].detail.contains("unknown field `fairSharin`"), "{unknown:?}");
        assert_eq!(fields(read(json!({"apiVersion": "config.kueue.x-k8s.io/v9"}))), ["apiVersion"]);
        assert_eq!(fields(read(json!({"featureGates": {"NoSuchGate": true}}))), ["featureGates"]);
    }

    #[test]
    fn what_berth_does_not_have_is_refused_by_name() {
        let file = json!({
            "integrations": {"frameworks": ["batch/job", "sparkoperator.k8s.io/sparkapplication"]},
            "multiKueue": {"origin": "here"},
            "resources": {"deviceClassMappings": [{"name": "gpu", "deviceClassNames": ["gpu.example.com"]}]},
            "featureGates": {"SchedulerLibraryIntegration": true},
        });
        let expected = [
            "integrations.frameworks[1]",
            "multiKueue",
            "resources.deviceClassMappings",
            "featureGates[SchedulerLibraryIntegration]",
        ];
        assert_eq!(fields(read(file)), expected);
    }
}
