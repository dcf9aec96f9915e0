//! Converts a file of the older version to the newest one, with the older version's defaults,
//! before it is parsed.
//!
//! Source: `apis/config/v1beta1` of Kueue, defaults and conversion; the rates of `clientConnection`
//! are those in its documentation.

use berth_apimachinery::decode::without_nulls;
use berth_apimachinery::field::{Error, Path};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use serde_path_to_error::Segment;

use super::file::{FairSharing, WaitForPodsReady};
use crate::gates::Gate;

const NEWEST: &str = "config.kueue.x-k8s.io/v1beta2";
const OLDER: &str = "config.kueue.x-k8s.io/v1beta1";

/// The file in the newest version, which is also assumed for a file without version.
pub(super) fn newest(mut value: Value) -> Result<Value, Vec<Error>> {
    if value.is_null() {
        value = json!({});
    }
    without_nulls(&mut value);
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
        OLDER => upgrade(file)?,
        _ => return Err(vec![Error::not_supported(&Path::new("apiVersion"), version, &[NEWEST, OLDER])]),
    }
    Ok(value)
}

/// Converts fields of the older version, and writes out defaults that differ.
fn upgrade(file: &mut Map<String, Value>) -> Result<(), Vec<Error>> {
    file.insert("apiVersion".to_owned(), json!(NEWEST));
    wait_for_pods_ready(file)?;
    // In the newest version, the field's presence replaces `enable`.
    let path = Path::new("fairSharing");
    if let Some(fair) = file.get_mut("fairSharing").and_then(Value::as_object_mut)
        && !flag(fair, "enable", &path)?
    {
        read_anyway::<FairSharing>(fair, &path)?;
        file.remove("fairSharing");
    }
    if let Some(connection) = file.get_mut("clientConnection").and_then(Value::as_object_mut) {
        connection.entry("qps").or_insert(json!(20));
        connection.entry("burst").or_insert(json!(30));
    }
    queue_visibility(file)?;
    pod_options(file)
}

/// Removes and returns a flag; false if missing.
fn flag(map: &mut Map<String, Value>, name: &str, path: &Path<'_>) -> Result<bool, Vec<Error>> {
    let misspelt = format!("{name}d");
    if let Some(value) = map.get(&misspelt) {
        let detail = format!("unknown field `{misspelt}`, in this version it is `{name}`");
        return Err(vec![Error::invalid(&path.child(&misspelt), value.clone(), detail)]);
    }
    match map.remove(name) {
        None => Ok(false),
        Some(Value::Bool(on)) => Ok(on),
        Some(other) => Err(vec![Error::type_invalid(&path.child(name), other, "must be true or false")]),
    }
}

/// Validates a disabled section, which is parsed as strictly as an enabled one.
fn read_anyway<T: DeserializeOwned>(section: &Map<String, Value>, path: &Path<'_>) -> Result<(), Vec<Error>> {
    strict::<T>(&Value::Object(section.clone()), path).map(drop).map_err(|error| vec![error])
}

/// Parses a section; an error gives the path of the field.
pub(super) fn strict<T: DeserializeOwned>(value: &Value, path: &Path<'_>) -> Result<T, Error> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let at = error.path();
        let mut wrong = value;
        for step in at.iter() {
            wrong = match step {
                Segment::Map { key } => &wrong[key.as_str()],
                Segment::Seq { index } => &wrong[*index],
                Segment::Enum { .. } | Segment::Unknown => wrong,
            };
        }
        // serde_path_to_error writes the root as ".".
        let text = if at.iter().next().is_none() { String::new() } else { at.to_string() };
        Error::invalid(&path.child(&text), wrong.clone(), error.inner().to_string())
    })
}

/// Converts `waitForPodsReady`. The older version waits only if enabled, for 5 minutes by default,
/// and admits no other workload during that time. The newest version waits unless a gate disables
/// it, for half an hour by default.
fn wait_for_pods_ready(file: &mut Map<String, Value>) -> Result<(), Vec<Error>> {
    let path = Path::new("waitForPodsReady");
    let on = match file.get_mut("waitForPodsReady") {
        // The value is not an object. Parsing the newest version reports that.
        Some(other) if !other.is_object() => return Ok(()),
        Some(Value::Object(wait)) => {
            let on = flag(wait, "enable", &path)?;
            if on {
                for (name, value) in [("timeout", json!("5m")), ("blockAdmission", json!(true))] {
                    wait.entry(name).or_insert(value);
                }
            }
            read_anyway::<WaitForPodsReady>(wait, &path)?;
            on
        }
        _ => false,
    };
    if !on {
        file.remove("waitForPodsReady");
        let gates = file.entry("featureGates").or_insert_with(|| json!({}));
        if let Some(gates) = gates.as_object_mut() {
            // Overrides the file's gate, which could only disable waiting in the older version.
            gates.insert(Gate::DisableWaitForPodsReady.name().to_owned(), json!(true));
        }
    }
    Ok(())
}

/// Rejects a list of pending workloads in the status of queues, which Berth does not write; a
/// maximum of zero is accepted.
fn queue_visibility(file: &mut Map<String, Value>) -> Result<(), Vec<Error>> {
    match file.remove("queueVisibility") {
        None => Ok(()),
        Some(wanted) if wanted["clusterQueues"]["maxCount"] == 0 => Ok(()),
        Some(_) => {
            let detail = "Berth lists pending workloads on request only (visibility.kueue.x-k8s.io): remove the field, or set \
                          clusterQueues.maxCount to 0";
            Err(vec![Error::forbidden(&Path::new("queueVisibility"), detail)])
        }
    }
}

/// Rejects selectors for pods that differ from those for all jobs.
fn pod_options(file: &mut Map<String, Value>) -> Result<(), Vec<Error>> {
    let managed = file.get("managedJobsNamespaceSelector").cloned();
    let options = file.get_mut("integrations").and_then(Value::as_object_mut).and_then(|it| it.remove("podOptions"));
    let Some(Value::Object(mut options)) = options else { return Ok(()) };
    let path = Path::new("integrations");
    let path = path.child("podOptions");
    let mut errors = Vec::new();
    let detail = "pods are selected by namespace, like all jobs: use managedJobsNamespaceSelector";
    for name in ["namespaceSelector", "podSelector"] {
        let selector = options.remove(name).unwrap_or_default();
        let selects_all = selector.as_object().is_none_or(Map::is_empty);
        if !selects_all && (name == "podSelector" || managed.as_ref() != Some(&selector)) {
            errors.push(Error::forbidden(&path.child(name), detail));
        }
    }
    for name in options.keys() {
        errors.push(Error::invalid(&path.child(name), Value::Null, format!("unknown field `{name}`")));
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
