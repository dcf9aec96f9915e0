//! Publishes the certificate authorities of the webhook certificate: writes them to the webhook
//! configurations, kinds and APIServices that name this server. Their other fields belong to the
//! installation (`berth install`, the chart). Objects that are not installed are skipped.

use base64::Engine;
use berth_controllers::{aggregated, rights};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

const MANAGER: &str = "berth-webhook";

/// Writes these certificate authorities to every installed object that calls this Service. Returns
/// true if all kinds that this server converts contain them. Kinds that another program converts
/// are not changed.
pub async fn publish(
    client: &Client,
    authorities_pem: &str,
    namespace: &str,
    service: &str,
) -> Result<bool, kube::Error> {
    let bundle = base64::engine::general_purpose::STANDARD.encode(authorities_pem);
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    if let Some(installed) = mutating.get_opt(rights::WEBHOOK_CONFIGURATION).await?
        && let Some(patch) = hooks(&json!(installed), &bundle)
    {
        mutating.patch(rights::WEBHOOK_CONFIGURATION, &params, &Patch::Strategic(&patch)).await?;
    }
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    if let Some(installed) = validating.get_opt(rights::WEBHOOK_CONFIGURATION).await?
        && let Some(patch) = hooks(&json!(installed), &bundle)
    {
        validating.patch(rights::WEBHOOK_CONFIGURATION, &params, &Patch::Strategic(&patch)).await?;
    }
    let kinds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut all = true;
    for name in rights::converted_kinds() {
        let Some(installed) = kinds.get_opt(&name).await? else {
            all = false;
            continue;
        };
        let config = &json!(installed)["spec"]["conversion"]["webhook"]["clientConfig"];
        if config["service"]["namespace"] != namespace || config["service"]["name"] != service {
            all = false;
        } else if config["caBundle"] != bundle {
            let patch = json!({"spec": {"conversion": {"webhook": {"clientConfig": {"caBundle": bundle}}}}});
            kinds.patch(&name, &params, &Patch::Merge(&patch)).await?;
        }
    }
    let services: Api<APIService> = Api::all(client.clone());
    for name in aggregated::names() {
        let Some(installed) = services.get_opt(&name).await? else { continue };
        let installed = json!(installed);
        let spec = &installed["spec"];
        // An APIService that skips verification is configured to do so.
        let ours = spec["service"]["name"] == aggregated::SERVICE && spec["insecureSkipTLSVerify"] != true;
        if ours && spec["caBundle"] != bundle {
            services.patch(&name, &params, &Patch::Merge(&json!({"spec": {"caBundle": bundle}}))).await?;
        }
    }
    Ok(all)
}

/// The patch that writes the bundle to all webhooks of a configuration; `None` if they contain it
/// already.
fn hooks(installed: &Value, bundle: &str) -> Option<Value> {
    let hooks = installed["webhooks"].as_array()?;
    let differing = hooks.iter().filter(|hook| hook["clientConfig"]["caBundle"] != bundle);
    let wanted: Vec<Value> =
        differing.map(|hook| json!({"name": hook["name"], "clientConfig": {"caBundle": bundle}})).collect();
    (!wanted.is_empty()).then(|| json!({ "webhooks": wanted }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_webhooks_without_the_bundle_are_patched() {
        let installed = json!({"webhooks": [
            {"name": "a", "clientConfig": {"caBundle": "new"}}, {"name": "b", "clientConfig": {"service": {}}}]});
        let wanted = json!({"webhooks": [{"name": "b", "clientConfig": {"caBundle": "new"}}]});
        assert_eq!(hooks(&installed, "new"), Some(wanted));
        assert_eq!(hooks(&json!({"webhooks": [{"name": "a", "clientConfig": {"caBundle": "new"}}]}), "new"), None);
    }
}
