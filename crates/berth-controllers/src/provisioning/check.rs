//! Is an AdmissionCheck of this controller usable, and with which configuration?

use std::sync::Arc;

use berth_api::kueue::v1beta2::{AdmissionCheck, ProvisioningRequestConfig};

/// Group its parameters must be of.
const GROUP: &str = "kueue.x-k8s.io";
/// Kind its parameters must be of.
const KIND: &str = "ProvisioningRequestConfig";

/// The configuration a check refers to, or why it cannot be used.
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
