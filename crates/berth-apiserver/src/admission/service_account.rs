//! ServiceAccount: pods run as `default` unless they say otherwise, and only as an account that exists. Tokens are not
//! mounted: nothing in a simulated node could read them.

use std::sync::Arc;

use berth_apimachinery::status::Status;
use serde_json::Value;

use super::{AdmissionPlugin, AdmissionRequest, forbidden, is_pod_create};
use crate::strategy;

const DEFAULT: &str = "default";

pub(crate) struct ServiceAccounts;

impl AdmissionPlugin for ServiceAccounts {
    fn name(&self) -> &str {
        "ServiceAccount"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !is_pod_create(request) {
            return Ok(());
        }
        let Some(object) = &mut request.object else { return Ok(()) };
        let spec = strategy::spec_mut(object);
        strategy::pod_service_account(spec);
        let name = spec.get("serviceAccountName").and_then(Value::as_str).unwrap_or_default().to_owned();
        if name.is_empty() {
            // The account itself is made with its namespace by a controller, which may be a moment behind.
            spec.insert("serviceAccountName".to_owned(), DEFAULT.into());
            spec.insert("serviceAccount".to_owned(), DEFAULT.into());
        }
        if name.is_empty() || name == DEFAULT {
            return Ok(());
        }
        let account: Option<Arc<Value>> = request.objects.get("", "serviceaccounts", request.namespace, &name);
        if account.is_none() {
            let why = format!(
                "error looking up service account {}/{name}: serviceaccount \"{name}\" not found",
                request.namespace
            );
            return Err(forbidden(request, &why));
        }
        Ok(())
    }
}
