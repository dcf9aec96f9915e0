//! Checks a manifest of Kueue's kinds as an API server with the webhooks would.

use berth_apimachinery::field::Path;
use berth_apimachinery::schema::{Root, Schema};
use berth_controllers::configuration::Config;
use berth_controllers::webhooks::{Request, Webhooks};
use serde_json::Value;

/// Defaults an object of Kueue, and checks it by its definition and by the webhooks' rules. The CEL
/// rules of the definition are not evaluated. An error has a text per problem, which starts with
/// the field.
pub fn kueue(document: &mut Value, config: &Config) -> Result<(), Vec<String>> {
    let version = document["apiVersion"].as_str().unwrap_or_default().to_owned();
    let kind = document["kind"].as_str().unwrap_or_default().to_owned();
    let one = |problem: String| vec![problem];
    let definition = berth_api::crds()
        .iter()
        .find(|crd| crd["spec"]["group"] == "kueue.x-k8s.io" && crd["spec"]["names"]["kind"] == kind.as_str());
    let definition = definition.ok_or_else(|| one("is not a kind of Kueue".to_owned()))?;
    let wanted = version.split_once('/').map_or("", |(_, version)| version);
    let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
    let served = versions.into_iter().find(|it| it["name"].as_str() == Some(wanted));
    let served = served.ok_or_else(|| one(format!("apiVersion {version} is not served")))?;
    let schema = Schema::parse_crd(&served["schema"]["openAPIV3Schema"]).map_err(|error| one(error.to_string()))?;
    let unknown = schema.unknown_fields(document, Root::Resource);
    if !unknown.is_empty() {
        return Err(unknown.iter().map(|field| format!("{field}: unknown field")).collect());
    }
    schema.apply_defaults(document);
    let mut errors = schema.validate(document, &Path::root());
    if errors.is_empty() {
        let plural = definition["spec"]["names"]["plural"].as_str().unwrap_or_default();
        let namespace = document["metadata"]["namespace"].as_str().unwrap_or_default();
        let request = Request { group: "kueue.x-k8s.io", resource: plural, namespace, old_object: None };
        errors = Webhooks::new(config.clone()).validate(request, document, &|_, _, _, _| None);
    }
    if errors.is_empty() { Ok(()) } else { Err(errors.iter().map(ToString::to_string).collect()) }
}

/// True for Kueue's configuration file.
pub fn is_configuration(document: &Value) -> bool {
    document["kind"] == "Configuration"
        && document["apiVersion"].as_str().is_some_and(|version| version.starts_with("config.kueue.x-k8s.io/"))
}
