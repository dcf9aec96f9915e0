//! APIServices: validation. The server forwards requests to the servers that they name.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::{meta, names};
use serde_json::{Value, json};

use super::{Context, Strategy, set_default};
use crate::client_config;
use crate::crd::conditions::{self, Condition};

/// Port of an APIService's Service, unless it names another.
pub const PORT: i64 = 443;
/// Type of the condition that reports whether the server behind an APIService responds.
pub const AVAILABLE: &str = "Available";

/// Sets `Available` on an APIService without a Service. This server serves the group of such an
/// APIService.
pub fn set_local(object: &mut Value, now: &str) {
    let message = "Local APIServices are always available";
    conditions::set(object, &Condition { kind: AVAILABLE, status: "True", reason: "Local", message }, now);
}

pub(crate) struct ApiServices;

impl Strategy for ApiServices {
    fn default(&self, object: &mut Value) {
        let service = object.get_mut("spec").and_then(|spec| spec.get_mut("service"));
        if let Some(service) = service.and_then(Value::as_object_mut) {
            set_default(service, "port", PORT);
        }
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        if !object["spec"]["service"].is_object() {
            object["status"] = json!({});
            set_local(object, &context.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        }
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        validate(object)
    }
}

fn validate(object: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let spec = &object["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, version, name) = (text(&spec["group"]), text(&spec["version"]), meta::name(object));
    if name != format!("{version}.{group}") {
        let metadata = Path::new("metadata");
        let detail = format!("must be `spec.version+\".\"+spec.group`: {:?}", format!("{version}.{group}"));
        errors.push(Error::invalid(&metadata.child("name"), name, detail));
    }
    let path = Path::new("spec");
    if group.is_empty() && version != "v1" {
        errors.push(Error::required(
            &path.child("group"),
            "only v1 may have an empty group and it better be legacy kube",
        ));
    }
    if !group.is_empty() {
        for problem in names::is_dns1123_subdomain(&group) {
            errors.push(Error::invalid(&path.child("group"), group.as_str(), problem));
        }
    }
    for problem in names::is_dns1035_label(&version) {
        errors.push(Error::invalid(&path.child("version"), version.as_str(), problem));
    }
    for (field, most) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1_000)] {
        let priority = spec[field].as_i64().unwrap_or_default();
        if !(1..=most).contains(&priority) {
            let detail = format!("must be positive and less than {most}");
            errors.push(Error::invalid(&path.child(field), priority, detail));
        }
    }
    let bundle = spec["caBundle"].as_str().filter(|bundle| !bundle.is_empty());
    let insecure = spec["insecureSkipTLSVerify"] == true;
    if spec["service"].is_object() {
        let service = path.child("service");
        for field in ["namespace", "name"] {
            if text(&spec["service"][field]).is_empty() {
                errors.push(Error::required(&service.child(field), ""));
            }
        }
        let port = spec["service"]["port"].as_i64().unwrap_or(PORT);
        if !(1..=65_535).contains(&port) {
            let detail = "port is not valid: must be between 1 and 65535, inclusive";
            errors.push(Error::invalid(&service.child("port"), port, detail));
        }
        if insecure && bundle.is_some() {
            let detail = "may not be true if caBundle is present";
            errors.push(Error::invalid(&path.child("insecureSkipTLSVerify"), true, detail));
        }
        errors.extend(client_config::validate_ca_bundle(spec.get("caBundle"), &path.child("caBundle")));
    } else {
        if let Some(bundle) = bundle {
            errors.push(Error::invalid(
                &path.child("caBundle"),
                format!("{} bytes", bundle.len()),
                "local APIServices may not have a caBundle",
            ));
        }
        if insecure {
            let detail = "local APIServices may not have insecureSkipTLSVerify";
            errors.push(Error::invalid(&path.child("insecureSkipTLSVerify"), true, detail));
        }
    }
    errors
}
