//! The older version of the file, rewritten to the newest before it is read.

use berth_apimachinery::field::{Error, Path};
use serde_json::{Map, Value, json};

const NEWEST: &str = "config.kueue.x-k8s.io/v1beta2";
const OLDER: &str = "config.kueue.x-k8s.io/v1beta1";

/// The file in the newest version. A file that names no version is taken to be of the newest.
pub(super) fn newest(mut value: Value, notices: &mut Vec<String>) -> Result<Value, Vec<Error>> {
    if value.is_null() {
        value = json!({});
    }
    let Some(file) = value.as_object_mut() else {
        return Err(vec![Error::type_invalid(&Path::root(), value, "must be an object of kind Configuration")]);
    };
    let kind = file.get("kind").and_then(Value::as_str).unwrap_or("Configuration").to_owned();
    if kind != "Configuration" {
        return Err(vec![Error::not_supported(&Path::new("kind"), kind, &["Configuration"])]);
    }
    let version = file.get("apiVersion").and_then(Value::as_str).unwrap_or(NEWEST).to_owned();
    match version.as_str() {
        NEWEST => {}
        OLDER => upgrade(file, notices)?,
        _ => return Err(vec![Error::not_supported(&Path::new("apiVersion"), version, &[NEWEST, OLDER])]),
    }
    Ok(value)
}

/// Carries over what the older version said in other words.
fn upgrade(file: &mut Map<String, Value>, notices: &mut Vec<String>) -> Result<(), Vec<Error>> {
    file.insert("apiVersion".to_owned(), json!(NEWEST));
    if let Some(wait) = file.get_mut("waitForPodsReady").and_then(Value::as_object_mut)
        && wait.remove("enable") == Some(json!(false))
    {
        file.remove("waitForPodsReady");
        // The newer version always waits; a gate says no.
        let gates = file.entry("featureGates").or_insert_with(|| json!({}));
        if let Some(gates) = gates.as_object_mut() {
            gates.entry("DisableWaitForPodsReady").or_insert(json!(true));
        }
    }
    // Here the field's presence says what `enable` said.
    if let Some(fair) = file.get_mut("fairSharing").and_then(Value::as_object_mut)
        && fair.remove("enable") != Some(json!(true))
    {
        file.remove("fairSharing");
    }
    if file.remove("queueVisibility").is_some() {
        notices.push("queueVisibility: has no effect; pending workloads are shown on demand".to_owned());
    }
    let options = file.get_mut("integrations").and_then(Value::as_object_mut).and_then(|it| it.remove("podOptions"));
    if let Some(options) = options {
        if options.get("podSelector").is_some_and(|selector| selector.as_object().is_some_and(|map| !map.is_empty())) {
            let path = Path::new("integrations");
            let path = path.child("podOptions");
            let detail = "pods are selected by namespace: use managedJobsNamespaceSelector";
            return Err(vec![Error::forbidden(&path.child("podSelector"), detail)]);
        }
        if let Some(selector) = options.get("namespaceSelector").filter(|selector| !selector.is_null()) {
            file.entry("managedJobsNamespaceSelector").or_insert_with(|| selector.clone());
        }
    }
    Ok(())
}
