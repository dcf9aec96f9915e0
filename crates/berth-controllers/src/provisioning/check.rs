//! Validates AdmissionChecks of this controller and finds their configuration.

use std::sync::Arc;

use berth_api::kueue::v1beta2::{AdmissionCheck, AdmissionCheckState, ProvisioningRequestConfig};

/// Required API group of the parameters.
const GROUP: &str = "kueue.x-k8s.io";
/// Required kind of the parameters.
const KIND: &str = "ProvisioningRequestConfig";

/// Name of the configuration that a check of this controller refers to; `None` if the reference is
/// invalid.
pub fn config_name(check: &AdmissionCheck, controller: &str) -> Option<String> {
    let parameters = check.spec.parameters.as_ref().filter(|_| check.spec.controller_name == controller)?;
    let usable = parameters.api_group == GROUP && parameters.kind == KIND && !parameters.name.is_empty();
    usable.then(|| parameters.name.clone())
}

/// The checks in a workload's status that this controller serves, in the status's order.
pub fn served_by(
    states: &[AdmissionCheckState],
    controller: &str,
    find: impl Fn(&str) -> Option<Arc<AdmissionCheck>>,
) -> Vec<Arc<AdmissionCheck>> {
    let found = states.iter().filter_map(|state| find(&state.name));
    found.filter(|check| check.spec.controller_name == controller).collect()
}

/// The configuration that a check refers to, or why it cannot be used.
pub fn config(
    check: &AdmissionCheck,
    find: impl Fn(&str) -> Option<Arc<ProvisioningRequestConfig>>,
) -> Result<Arc<ProvisioningRequestConfig>, String> {
    let Some(parameters) = &check.spec.parameters else {
        return Err("missing parameters reference".to_owned());
    };
    if parameters.api_group != GROUP {
        return Err(format!("wrong group {:?}, expecting {GROUP:?}: bad parameters reference", parameters.api_group));
    }
    if parameters.kind != KIND {
        return Err(format!("wrong kind {:?}, expecting {KIND:?}: bad parameters reference", parameters.kind));
    }
    if parameters.name.is_empty() {
        return Err("missing name: bad parameters reference".to_owned());
    }
    find(&parameters.name).ok_or_else(|| format!("provisioningrequestconfigs.{GROUP} {:?} not found", parameters.name))
}
