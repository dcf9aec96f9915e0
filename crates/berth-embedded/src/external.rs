//! AppWrappers that the configuration leaves to the integration of their own operator.
//!
//! AppWrapper 0.30 queued its objects by itself, so configuration files of its time name the kind
//! in `integrations.externalFrameworks`. In an embedded cluster, Berth's operator runs in place of
//! that one and leaves queueing to the controllers.

use berth_api::berth::OperatorConfiguration;
use berth_controllers::Config;
use berth_controllers::configuration::frameworks;

/// Name of the integration.
const FRAMEWORK: &str = "workload.codeflare.dev/appwrapper";

/// Enables the integration of AppWrapper if the configuration names the kind as external, unless
/// Berth's operator or its queueing is off.
pub(crate) fn take_over(config: &mut Config, operators: &OperatorConfiguration) {
    let wrappers = &operators.app_wrapper_configuration;
    let Some(kind) = frameworks::find(FRAMEWORK).map(frameworks::Framework::kind_argument) else { return };
    let integrations = &mut config.integrations;
    let is_external = integrations.external_frameworks.contains(&kind);
    if !is_external || !operators.app_wrappers || wrappers.enable_kueue_integrations == Some(false) {
        return;
    }
    integrations.external_frameworks.retain(|external| *external != kind);
    integrations.frameworks.push(FRAMEWORK.to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True if the integration is enabled for a file that names AppWrapper as external.
    fn is_taken_over(operators: &OperatorConfiguration) -> bool {
        let mut config = Config::default();
        config.integrations.frameworks = vec!["batch/job".to_owned()];
        config.integrations.external_frameworks = vec!["AppWrapper.v1beta2.workload.codeflare.dev".to_owned()];
        take_over(&mut config, operators);
        let enabled = config.integrations.enabled(FRAMEWORK);
        assert_eq!(config.integrations.external_frameworks.is_empty(), enabled);
        enabled
    }

    #[test]
    fn external_app_wrappers_are_queued_if_berths_operator_runs() {
        assert!(is_taken_over(&OperatorConfiguration::default()));
        assert!(!is_taken_over(&OperatorConfiguration { app_wrappers: false, ..OperatorConfiguration::default() }));
        let mut off = OperatorConfiguration::default();
        off.app_wrapper_configuration.enable_kueue_integrations = Some(false);
        assert!(!is_taken_over(&off));
    }

    #[test]
    fn other_configurations_stay_unchanged() {
        let mut config = Config::default();
        config.integrations.frameworks = vec!["batch/job".to_owned()];
        let before = config.clone();
        take_over(&mut config, &OperatorConfiguration::default());
        assert_eq!(config, before);
    }
}
