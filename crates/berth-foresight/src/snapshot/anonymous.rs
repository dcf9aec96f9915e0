//! Replaces names and labels.
//!
//! Equal strings get equal replacements everywhere, and the order of the replacements is that of
//! the originals: names break ties between equal alternatives, and label values are compared.
//! Numbers, booleans, resource names, and the labels of Kubernetes and of the large clouds keep
//! their spelling.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::memory::Memory;

/// Maps whose keys are label keys and whose values are label values.
const LABELS: [&str; 4] = ["labels", "nodeLabels", "nodeSelector", "matchLabels"];
/// Fields whose values are never names: times, and values from a fixed list.
const PLAIN: [&str; 30] = [
    "apiVersion",
    "kind",
    "type",
    "status",
    "reason",
    "operator",
    "effect",
    "state",
    "phase",
    "uid",
    "creationTimestamp",
    "lastTransitionTime",
    "controllerName",
    "apiGroup",
    "provisioning",
    "runtime",
    "locationPolicy",
    "machineType",
    "queueingStrategy",
    "stopPolicy",
    "withinClusterQueue",
    "reclaimWithinCohort",
    "policy",
    "whenCanBorrow",
    "whenCanPreempt",
    "preference",
    "mode",
    "admissionMode",
    "preemptionPolicy",
    "restartPolicy",
];
/// Domains whose label keys say nothing about an organisation.
const WELL_KNOWN: [&str; 9] = [
    "kubernetes.io",
    "k8s.io",
    "google.com",
    "gke.io",
    "nvidia.com",
    "amazonaws.com",
    "azure.com",
    "berth.dev",
    "kubeflow.org",
];

/// Replaces names and labels in all objects. Returns the memory about them, with the new names.
pub(super) fn rename(objects: &mut [Value], memory: Option<&Memory>) -> Option<Memory> {
    let mut found = Found::default();
    for object in objects.iter() {
        found.object(object);
    }
    found.names.extend(found.of_objects.iter().cloned());
    found.names.retain(|name| !is_plain(name) && !found.resources.contains(name));
    found.keys.retain(|key| !is_well_known(key));
    let new = New {
        names: numbered("name", &found.names),
        keys: numbered("label", &found.keys),
        of_objects: found.of_objects,
    };
    for object in objects {
        new.replace(object);
    }
    memory.map(|memory| memory.renamed(&|name| new.of_object(name)))
}

/// The replacements.
struct New {
    names: BTreeMap<String, String>,
    keys: BTreeMap<String, String>,
    /// Names of objects, among the names.
    of_objects: BTreeSet<String>,
}

/// Replacements in the order of the originals.
fn numbered(prefix: &str, originals: &BTreeSet<String>) -> BTreeMap<String, String> {
    let width = originals.len().to_string().len();
    originals.iter().enumerate().map(|(number, it)| (it.clone(), format!("{prefix}-{number:0width$}"))).collect()
}

/// Numbers and booleans say nothing, and selectors compare them.
fn is_plain(text: &str) -> bool {
    text.is_empty() || text.parse::<f64>().is_ok() || matches!(text, "true" | "false" | "True" | "False" | "*")
}

fn is_well_known(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    WELL_KNOWN.iter().any(|known| domain == *known || domain.ends_with(&format!(".{known}")))
}

/// The strings of all objects that are names.
#[derive(Default)]
struct Found {
    /// Names of objects.
    of_objects: BTreeSet<String>,
    /// Values of labels, and names in references.
    names: BTreeSet<String>,
    /// Label keys.
    keys: BTreeSet<String>,
    resources: BTreeSet<String>,
}

impl Found {
    fn object(&mut self, object: &Value) {
        let metadata = &object["metadata"];
        // The configuration of the controllers names device classes.
        let fields: &[&str] = if object["kind"] == "DeviceClass" { &[] } else { &["name", "namespace"] };
        for field in fields {
            self.of_objects.extend(metadata[*field].as_str().map(str::to_owned));
        }
        for owner in metadata["ownerReferences"].as_array().into_iter().flatten() {
            self.of_objects.extend(owner["name"].as_str().map(str::to_owned));
        }
        self.walk(object);
    }

    fn walk(&mut self, value: &Value) {
        match value {
            Value::Object(fields) => self.fields(fields),
            Value::Array(items) => items.iter().for_each(|item| self.walk(item)),
            _ => {}
        }
    }

    fn fields(&mut self, fields: &Map<String, Value>) {
        for (field, value) in fields {
            match (field.as_str(), value) {
                (labels, Value::Object(map)) if LABELS.contains(&labels) => {
                    self.keys.extend(map.keys().cloned());
                    let own = map.iter().filter(|(key, _)| !is_well_known(key));
                    self.names.extend(own.filter_map(|(_, value)| value.as_str()).map(str::to_owned));
                }
                ("requests" | "limits" | "allocatable" | "capacity", Value::Object(map)) => {
                    self.resources.extend(map.keys().cloned());
                }
                ("coveredResources", Value::Array(items)) => {
                    self.resources.extend(items.iter().filter_map(Value::as_str).map(str::to_owned));
                }
                ("key" | "nodeLabel", Value::String(key)) => {
                    self.keys.insert(key.clone());
                }
                // Of taints, tolerations and selectors.
                ("value", Value::String(text)) if has_own_key(fields) => {
                    self.names.insert(text.clone());
                }
                ("values", Value::Array(items)) if has_own_key(fields) => {
                    self.names.extend(items.iter().filter_map(Value::as_str).map(str::to_owned));
                }
                (
                    "cohort" | "cohortName" | "parentName" | "queueName" | "clusterQueue" | "nodeName",
                    Value::String(text),
                ) => {
                    self.names.insert(text.clone());
                }
                _ => {}
            }
            self.walk(value);
        }
    }
}

/// True for a taint, toleration or requirement on a label that is not a well-known one.
fn has_own_key(fields: &Map<String, Value>) -> bool {
    fields.get("key").and_then(Value::as_str).is_some_and(|key| !is_well_known(key))
}

impl New {
    /// The name of an object from now on; `None` if no object has the name.
    fn of_object(&self, name: &str) -> Option<String> {
        let new = || self.names.get(name).cloned().unwrap_or_else(|| name.to_owned());
        self.of_objects.contains(name).then(new)
    }

    fn replace(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Some(new) = self.names.get(text.as_str()).or_else(|| self.keys.get(text.as_str())) {
                    *text = new.clone();
                } else if let Some((namespace, name)) = text.split_once('/')
                    && let (Some(namespace), Some(name)) = (self.names.get(namespace), self.names.get(name))
                {
                    // References as namespace/name.
                    *text = format!("{namespace}/{name}");
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace(item)),
            Value::Object(fields) => self.fields(fields),
            _ => {}
        }
    }

    fn fields(&self, fields: &mut Map<String, Value>) {
        let is_of_well_known = fields.get("key").and_then(Value::as_str).is_some_and(is_well_known);
        let old = std::mem::take(fields);
        for (field, mut value) in old {
            let is_plain = PLAIN.contains(&field.as_str()) && value.is_string();
            if LABELS.contains(&field.as_str()) && value.is_object() {
                self.labels(&mut value);
            } else if is_of_well_known && matches!(field.as_str(), "key" | "value" | "values") {
                self.objects_only(&mut value);
            } else if !is_plain {
                self.replace(&mut value);
            }
            fields.insert(self.keys.get(&field).cloned().unwrap_or(field), value);
        }
    }

    /// Replaces keys and values of labels. The values of well-known labels are kept, unless they
    /// are names of objects.
    fn labels(&self, labels: &mut Value) {
        let Some(map) = labels.as_object_mut() else { return };
        let old = std::mem::take(map);
        for (key, mut value) in old {
            if is_well_known(&key) {
                self.objects_only(&mut value)
            } else {
                self.replace(&mut value)
            }
            map.insert(self.keys.get(&key).cloned().unwrap_or(key), value);
        }
    }

    fn objects_only(&self, value: &mut Value) {
        match value {
            Value::String(text) if self.of_objects.contains(text.as_str()) => self.replace(value),
            Value::Array(items) => items.iter_mut().for_each(|item| self.objects_only(item)),
            _ => {}
        }
    }
}
