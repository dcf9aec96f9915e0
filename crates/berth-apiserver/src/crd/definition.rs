//! What the server fills in on CustomResourceDefinition objects: defaults and status (accepted names, conditions, stored
//! versions).

use std::sync::Arc;

use berth_apimachinery::meta;
use serde_json::{Value, json};

/// Holds a definition until its objects are gone.
pub(crate) const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Whether the definition's names were accepted, so that it can be served.
pub(crate) fn is_accepted(definition: &Value) -> bool {
    condition(definition, "NamesAccepted") == Some("True") && condition(definition, "Established") == Some("True")
}

fn condition<'a>(definition: &'a Value, kind: &str) -> Option<&'a str> {
    definition["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == kind)
        .and_then(|condition| condition["status"].as_str())
}

/// Fills in what may be left out.
pub(crate) fn default(definition: &mut Value) {
    let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let conversion = spec.entry("conversion").or_insert_with(|| json!({}));
    if let Some(conversion) = conversion.as_object_mut() {
        conversion.entry("strategy").or_insert_with(|| "None".into());
        if conversion["strategy"] == "Webhook"
            && let Some(service) = conversion.get_mut("webhook").and_then(|hook| hook["clientConfig"].get_mut("service"))
            && service.is_object()
            && service["port"].is_null()
        {
            service["port"] = 443.into();
        }
    }
    default_names(spec);
}

fn default_names(spec: &mut serde_json::Map<String, Value>) {
    let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) else { return };
    let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    let is_empty = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().is_empty();
    if is_empty(names.get("singular")) {
        names.insert("singular".to_owned(), kind.to_lowercase().into());
    }
    if is_empty(names.get("listKind")) && !kind.is_empty() {
        names.insert("listKind".to_owned(), format!("{kind}List").into());
    }
}

/// Computes the status: names that no other definition of the group has are accepted, accepted names make the
/// definition established, the storage version joins the stored versions.
pub(crate) fn set_status(definition: &mut Value, others: &[Arc<Value>], now: &str) {
    let group = definition["spec"]["group"].clone();
    let name = meta::name(definition).to_owned();
    let names = definition["spec"]["names"].clone();
    let conflict = others
        .iter()
        .filter(|other| meta::name(other) != name && other["spec"]["group"] == group && is_accepted(other))
        .find_map(|other| name_conflict(&names, &other["status"]["acceptedNames"]));
    let old = definition["status"].clone();
    let mut stored: Vec<Value> = old["storedVersions"].as_array().cloned().unwrap_or_default();
    for version in definition["spec"]["versions"].as_array().into_iter().flatten() {
        if version["storage"] == true && !stored.contains(&version["name"]) {
            stored.push(version["name"].clone());
        }
    }
    let mut conditions: Vec<Value> = old["conditions"].as_array().cloned().unwrap_or_default();
    let mut set = |kind: &str, status: &str, reason: &str, message: &str| {
        let same = conditions.iter().position(|condition| condition["type"] == kind);
        let since = match same.map(|at| &conditions[at]) {
            Some(condition) if condition["status"] == status => condition["lastTransitionTime"].clone(),
            _ => now.into(),
        };
        let condition = json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since});
        match same {
            Some(at) => conditions[at] = condition,
            None => conditions.push(condition),
        }
    };
    let accepted = match &conflict {
        None => {
            set("NamesAccepted", "True", "NoConflicts", "no conflicts found");
            set("Established", "True", "InitialNamesAccepted", "the initial names have been accepted");
            names
        }
        Some((reason, message)) => {
            set("NamesAccepted", "False", reason, message);
            // Once established, a definition stays so under the names it has.
            if is_established(&old) {
                old["acceptedNames"].clone()
            } else {
                set("Established", "False", "NotAccepted", "not all names are accepted");
                json!({"plural": "", "kind": ""})
            }
        }
    };
    definition["status"] = json!({"acceptedNames": accepted, "conditions": conditions, "storedVersions": stored});
}

fn is_established(status: &Value) -> bool {
    condition(&json!({"status": status}), "Established") == Some("True")
}

fn name_conflict(names: &Value, taken: &Value) -> Option<(&'static str, String)> {
    let list = |names: &Value| -> Vec<String> {
        let mut all: Vec<String> = ["plural", "singular"]
            .iter()
            .filter_map(|field| names[*field].as_str())
            .map(str::to_owned)
            .collect();
        all.extend(names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned));
        all
    };
    let taken_names = list(taken);
    for (field, reason) in [("plural", "PluralConflict"), ("singular", "SingularConflict")] {
        let name = names[field].as_str().unwrap_or_default();
        if !name.is_empty() && taken_names.iter().any(|taken| taken == name) {
            return Some((reason, format!("{name:?} is already in use")));
        }
    }
    for name in names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if taken_names.iter().any(|taken| taken == name) {
            return Some(("ShortNamesConflict", format!("{name:?} is already in use")));
        }
    }
    let taken_kinds = [&taken["kind"], &taken["listKind"]];
    for (field, reason) in [("kind", "KindConflict"), ("listKind", "ListKindConflict")] {
        if taken_kinds.contains(&&names[field]) {
            return Some((reason, format!("{} is already in use", names[field])));
        }
    }
    None
}
