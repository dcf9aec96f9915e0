//! The older version of the file, with its own defaults, rewritten to the newest before it is read.
//!
//! Source: `apis/config/v1beta1` of Kueue, defaults and conversion; the rates of `clientConnection` are those its
//! documentation names.

use berth_apimachinery::field::{Error, Path};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use serde_path_to_error::Segment;

use super::file::{FairSharing, WaitForPodsReady};
use crate::gates::Gate;

const NEWEST: &str = "config.kueue.x-k8s.io/v1beta2";
const OLDER: &str = "config.kueue.x-k8s.io/v1beta1";

/// The file in the newest version. A file that names no version is taken to be of the newest.
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

/// What is null is as if it were not there, as Go reads it.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(without_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// Carries over what the older version said in other words, and what it meant by saying nothing.
fn upgrade(file: &mut Map<String, Value>) -> Result<(), Vec<Error>> {
    file.insert("apiVersion".to_owned(), json!(NEWEST));
    wait_for_pods_ready(file)?;
    // Here the field's presence says what `enable` said.
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

/// Takes a flag out; absent is false.
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

/// What is switched off is read as strictly as what is on.
fn read_anyway<T: DeserializeOwned>(section: &Map<String, Value>, path: &Path<'_>) -> Result<(), Vec<Error>> {
    strict::<T>(&Value::Object(section.clone()), path).map(drop).map_err(|error| vec![error])
}

/// Reads a part of the file; the error names the field it is about.
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
        // The whole of it is called "." there.
        let text = if at.iter().next().is_none() { String::new() } else { at.to_string() };
        Error::invalid(&path.child(&text), wrong.clone(), error.inner().to_string())
    })
}

/// The older version waits only when told to, then for 5 minutes, and admits nothing meanwhile; the newer one waits unless
/// a gate says no, for half an hour.
fn wait_for_pods_ready(file: &mut Map<String, Value>) -> Result<(), Vec<Error>> {
    let path = Path::new("waitForPodsReady");
    let on = match file.get_mut("waitForPodsReady") {
        // Not what it should be: whoever reads the newer version says so.
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
            // The older version's word counts: there the gate could only switch off.
            gates.insert(Gate::DisableWaitForPodsReady.name().to_owned(), json!(true));
        }
    }
    Ok(())
}

/// Nobody writes who waits into the status of queues; a file that asks for none may stay.
fn queue_visibility(file: &mut Map<String, Value>) -> Result<(), Vec<Error>> {
    match file.remove("queueVisibility") {
        None => Ok(()),
        Some(wanted) if wanted["clusterQueues"]["maxCount"] == 0 => Ok(()),
        Some(_) => {
            let detail = "who waits is told on demand (visibility.kueue.x-k8s.io): leave it out, or set \
                          clusterQueues.maxCount to 0";
            Err(vec![Error::forbidden(&Path::new("queueVisibility"), detail)])
        }
    }
}

/// Pods are selected like all jobs, by namespace.
fn pod_options(file: &mut Map<String, Value>) -> Result<(), Vec<Error>> {
    let managed = file.get("managedJobsNamespaceSelector").cloned();
    let options = file.get_mut("integrations").and_then(Value::as_object_mut).and_then(|it| it.remove("podOptions"));
    let Some(Value::Object(mut options)) = options else { return Ok(()) };
    let path = Path::new("integrations");
    let path = path.child("podOptions");
    let mut errors = Vec::new();
    let detail = "pods are selected by namespace as all jobs are: use managedJobsNamespaceSelector";
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
