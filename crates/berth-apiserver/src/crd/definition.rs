//! What the server fills in on CustomResourceDefinition objects: defaults and status (accepted names, conditions, stored
//! versions).

use berth_apimachinery::{field, meta};
use serde_json::{Value, json};

use crate::registry::{Origin, Registry, ResourceInfo};

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
            && let Some(service) = conversion
                .get_mut("webhook")
                .and_then(|hook| hook.get_mut("clientConfig"))
                .and_then(|client| client.get_mut("service"))
            && service.is_object()
            && service.get("port").is_none_or(Value::is_null)
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

/// Computes the status: names that no other kind of the group has are accepted, accepted names make the definition
/// established, the storage version joins the stored versions. `served` is absent when the names were accepted before.
pub(crate) fn set_status(definition: &mut Value, served: Option<&Registry>, now: &str) {
    let group = definition["spec"]["group"].as_str().unwrap_or_default().to_owned();
    let own = Origin::Custom(meta::name(definition).to_owned());
    let names = definition["spec"]["names"].clone();
    let conflict = served
        .iter()
        .flat_map(|registry| registry.rows())
        .filter(|row| row.group == group && row.origin != own)
        .find_map(|row| name_conflict(&names, row));
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

fn name_conflict(names: &Value, taken: &ResourceInfo) -> Option<(&'static str, String)> {
    let is_taken = |name: &str| {
        taken.plural == name || taken.singular == name || taken.short_names.iter().any(|short| short == name)
    };
    let in_use = |name: &str| format!("{} is already in use", field::quote(name));
    for (field, reason) in [("plural", "PluralConflict"), ("singular", "SingularConflict")] {
        let name = names[field].as_str().unwrap_or_default();
        if !name.is_empty() && is_taken(name) {
            return Some((reason, in_use(name)));
        }
    }
    let mut short_names = names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(name) = short_names.find(|name| is_taken(name)) {
        return Some(("ShortNamesConflict", in_use(name)));
    }
    for (field, reason) in [("kind", "KindConflict"), ("listKind", "ListKindConflict")] {
        let name = names[field].as_str().unwrap_or_default();
        if name == taken.kind || name == taken.list_kind {
            return Some((reason, in_use(name)));
        }
    }
    None
}
