//! Validation of CustomResourceDefinition objects.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::schema::structural::{self, StructuralOptions};
use berth_apimachinery::schema::{Root, Schema};
use berth_apimachinery::{meta, names};
use serde_json::Value;

/// Checks a definition.
pub(crate) fn validate(definition: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let root = Path::new("spec");
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    let expected = format!("{plural}.{group}");
    if meta::name(definition) != expected {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(Error::invalid(&Path::new("metadata.name"), meta::name(definition), detail));
    }
    if group.is_empty() {
        errors.push(Error::required(&root.child("group"), ""));
    } else {
        for message in names::is_dns1123_subdomain(&group) {
            errors.push(Error::invalid(&root.child("group"), group.as_str(), message));
        }
        if !group.contains('.') {
            let detail = "should be a domain with at least one dot";
            errors.push(Error::invalid(&root.child("group"), group.as_str(), detail));
        }
    }
    match spec["scope"].as_str() {
        Some("Namespaced" | "Cluster") => {}
        scope => {
            let scope = scope.unwrap_or_default();
            errors.push(Error::not_supported(&root.child("scope"), scope, &["Cluster", "Namespaced"]));
        }
    }
    validate_names(&spec["names"], &root.child("names"), &mut errors);
    validate_versions(&spec["versions"], &root.child("versions"), &mut errors);
    match spec["conversion"]["strategy"].as_str() {
        Some("None" | "Webhook") | None => {}
        Some(other) => {
            let conversion = root.child("conversion");
            errors.push(Error::not_supported(&conversion.child("strategy"), other, &["None", "Webhook"]));
        }
    }
    errors
}

/// Checks a definition that replaces another.
pub(crate) fn validate_update(new: &Value, old: &Value) -> Vec<Error> {
    let mut errors = validate(new);
    let immutable = "field is immutable";
    for path in [&["group"][..], &["scope"], &["names", "kind"], &["names", "plural"]] {
        let at = |object: &Value| path.iter().fold(object["spec"].clone(), |value, step| value[*step].clone());
        if at(new) != at(old) {
            let field = format!("spec.{}", path.join("."));
            errors.push(Error::invalid(&Path::new(&field), at(new), immutable));
        }
    }
    let served: Vec<&Value> = new["spec"]["versions"].as_array().into_iter().flatten().map(|v| &v["name"]).collect();
    for (index, stored) in old["status"]["storedVersions"].as_array().into_iter().flatten().enumerate() {
        if !served.contains(&stored) {
            let path = Path::new("status.storedVersions");
            let detail = "must appear in spec.versions";
            errors.push(Error::invalid(&path.index(index), stored.clone(), detail));
        }
    }
    errors
}

fn validate_names(given: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let mut check = |field: &str, is_kind: bool| {
        let name = given[field].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.push(Error::required(&path.child(field), ""));
            return;
        }
        let label = if is_kind { name.to_lowercase() } else { name.to_owned() };
        for message in names::is_dns1035_label(&label) {
            let detail =
                if is_kind { format!("may have mixed case, but should otherwise match: {message}") } else { message };
            errors.push(Error::invalid(&path.child(field), name, detail));
        }
    };
    check("plural", false);
    check("singular", false);
    check("kind", true);
    check("listKind", true);
    if given["kind"].is_string() && given["kind"] == given["listKind"] {
        let detail = "kind and listKind may not be the same";
        errors.push(Error::invalid(&path.child("listKind"), given["listKind"].clone(), detail));
    }
    for (field, list) in ["shortNames", "categories"].map(|field| (field, given[field].as_array())) {
        for (index, name) in list.into_iter().flatten().enumerate() {
            for message in names::is_dns1035_label(name.as_str().unwrap_or_default()) {
                errors.push(Error::invalid(&path.child(field).index(index), name.clone(), message));
            }
        }
    }
}

fn validate_versions(versions: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let empty = Vec::new();
    let versions = versions.as_array().unwrap_or(&empty);
    if versions.is_empty() {
        errors.push(Error::required(path, "must have at least one version"));
        return;
    }
    let mut seen: Vec<&str> = Vec::new();
    for (index, version) in versions.iter().enumerate() {
        let at = path.index(index);
        let name = version["name"].as_str().unwrap_or_default();
        for message in names::is_dns1035_label(name) {
            errors.push(Error::invalid(&at.child("name"), name, message));
        }
        if seen.contains(&name) {
            errors.push(Error::invalid(&at.child("name"), name, "must be unique"));
        }
        seen.push(name);
        let schema = &version["schema"]["openAPIV3Schema"];
        let holder = at.child("schema");
        let place = holder.child("openAPIV3Schema");
        if !schema.is_object() {
            errors.push(Error::required(&place, "schemas are required"));
            continue;
        }
        let status_subresource = version["subresources"]["status"].is_object();
        let options = StructuralOptions { status_subresource, ..StructuralOptions::V1 };
        let structure = structural::check(schema, options, &place);
        let is_structural = structure.is_empty();
        errors.extend(structure);
        match Schema::parse_crd(schema) {
            // The defaults of a schema that is not structural cannot be judged.
            Ok(schema) if is_structural => errors.extend(schema.validate_defaults(Root::Resource, true, &place)),
            Ok(_) => {}
            Err(error) => errors.push(Error::invalid(&place, "object", error.to_string())),
        }
    }
    let storage = versions.iter().filter(|version| version["storage"] == true).count();
    if storage != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.push(Error::invalid(path, Value::Array(Vec::new()), detail));
    }
}
