//! Feature gates on the command line of Kueue's Deployment.

use serde_json::{Map, Value, json};

use super::{Note, Verdict};
use crate::objects::{Document, ObjectRef};

/// The gates of a Deployment.
pub struct Gates {
    /// The ConfigMap with the configuration file of the same Deployment.
    pub configuration: ObjectRef,
    deployment: ObjectRef,
    gates: Map<String, Value>,
}

impl Gates {
    /// Adds the gates to a configuration, in which Kueue accepts none beside those of the command
    /// line. `None` if there are none to add.
    pub fn add_to(&self, configuration: &mut Value) -> Option<Note> {
        let file = configuration.as_object_mut()?.entry("featureGates").or_insert_with(|| json!({})).as_object_mut()?;
        let mut missing: Vec<String> = Vec::new();
        for (gate, value) in &self.gates {
            if file.get(gate) != Some(value) {
                missing.push(format!("{gate}: {value}"));
                file.insert(gate.clone(), value.clone());
            }
        }
        let message = || {
            format!(
                "set by --feature-gates of {}: add `featureGates: {{{}}}` to the file for `berth install --config`",
                self.deployment,
                missing.join(", ")
            )
        };
        (!missing.is_empty()).then(|| Note::new(Verdict::Different, "featureGates", message()))
    }
}

/// The gates of each Deployment that mounts a ConfigMap with a configuration.
pub fn gates(documents: &[Document]) -> Vec<Gates> {
    let values = documents.iter().map(|document| &document.value);
    let deployments = values.filter(|value| value["kind"] == "Deployment");
    deployments.flat_map(of_deployment).collect()
}

fn of_deployment(deployment: &Value) -> Vec<Gates> {
    let pod = &deployment["spec"]["template"]["spec"];
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let of_container = |container: &Value| [list(&container["command"]), list(&container["args"])].concat();
    let words: Vec<Value> = list(&pod["containers"]).iter().flat_map(of_container).collect();
    let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
    let mut gates = Map::new();
    for (index, word) in words.iter().enumerate() {
        // Go's flags start with one or two dashes. Their value follows after a sign or as a word.
        let Some(flag) = word.trim_start_matches('-').strip_prefix("feature-gates") else { continue };
        let value = flag.strip_prefix('=').or_else(|| words.get(index + 1).copied().filter(|_| flag.is_empty()));
        for (gate, value) in value.unwrap_or_default().split(',').filter_map(|pair| pair.split_once('=')) {
            let value = matches!(value.trim(), "1" | "t" | "T" | "true" | "TRUE" | "True");
            gates.insert(gate.trim().to_owned(), Value::from(value));
        }
    }
    if gates.is_empty() {
        return Vec::new();
    }
    let namespace = deployment["metadata"]["namespace"].as_str().unwrap_or_default();
    let volumes = list(&pod["volumes"]);
    let maps = volumes.iter().filter_map(|volume| volume["configMap"]["name"].as_str());
    maps.map(|name| Gates {
        configuration: ObjectRef::namespaced("ConfigMap", namespace, name),
        deployment: ObjectRef::of(deployment),
        gates: gates.clone(),
    })
    .collect()
}
