//! Validation of CustomResourceDefinition objects.
//!
//! Error paths follow Kubernetes' internal version of the kind, which users and tools see. Parts
//! that are the same in all versions are reported once, directly below `spec` (a schema as
//! `spec.validation.openAPIV3Schema`). Parts that differ are reported per version. An update does
//! not have to pass a check that the stored definition does not pass.

pub mod approval;
pub mod conversion;
mod names;
mod parts;

use std::collections::HashSet;
use std::sync::Arc;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::schema::structural::{self, StructuralOptions};
use berth_apimachinery::schema::{Root, Schema};
use berth_apimachinery::{meta, names::is_dns1035_label, names::is_dns1123_subdomain};
use berth_cel::Env;
use berth_cel::rules::{self, StoredExpressions};
use serde_json::Value;

pub use parts::deprecation_warning;
pub use parts::next_step;
use parts::part;

/// Checks of this definition in addition to those of every definition.
struct Checks<'a> {
    structural: StructuralOptions,
    /// True if every version has a schema.
    schema: bool,
    /// True if defaults have no unknown fields.
    pruned_defaults: bool,
    conversion: conversion::Checks,
    /// The stored definition, on update.
    old: Option<&'a Value>,
    /// The CEL features that expressions of the stored definition may use.
    stored: Env,
}

impl<'a> Checks<'a> {
    /// All checks, as for a new definition.
    fn all() -> Checks<'a> {
        Checks {
            structural: StructuralOptions::V1,
            schema: true,
            pruned_defaults: true,
            // A tool may replace the placeholder with a valid bundle later.
            conversion: conversion::Checks { recognized_review: true, ca_bundle: false },
            old: None,
            stored: Env::new(berth_cel::NEWEST),
        }
    }

    /// The checks that the stored definition passes, for an update.
    fn after(old: &'a Value) -> Checks<'a> {
        const NONE: StructuralOptions = StructuralOptions {
            structural: false,
            valid_types: false,
            valid_patterns: false,
            atomic_sets: false,
            map_keys: false,
            defaults: true,
            status_subresource: false,
        };
        let fits = |option: StructuralOptions| {
            let problems = |options| -> usize {
                schemas(old).map(|(_, schema)| structural::check(schema, options, &Path::root()).len()).sum()
            };
            problems(option) == problems(NONE)
        };
        let structural = StructuralOptions {
            structural: fits(StructuralOptions { structural: true, ..NONE }),
            valid_types: fits(StructuralOptions { valid_types: true, ..NONE }),
            valid_patterns: fits(StructuralOptions { valid_patterns: true, ..NONE }),
            atomic_sets: fits(StructuralOptions { atomic_sets: true, ..NONE }),
            map_keys: fits(StructuralOptions { map_keys: true, ..NONE }),
            ..NONE
        };
        let has_unpruned_default = |schema: &Value| {
            let schema = Schema::parse_crd(schema);
            let errors = |pruned| schema.as_ref().map(|it| it.validate_defaults(Root::Resource, pruned, &Path::root()));
            structural.structural && errors(true).map(|e| e.len()) != errors(false).map(|e| e.len())
        };
        Checks {
            schema: versions(old).all(|version| schema_of(version).is_some()),
            pruned_defaults: !schemas(old).any(|(_, schema)| has_unpruned_default(schema)),
            conversion: conversion::Checks::after(old),
            old: Some(old),
            structural,
            stored: Env::new(berth_cel::NEWEST),
        }
    }
}

fn versions(definition: &Value) -> impl Iterator<Item = &Value> {
    definition["spec"]["versions"].as_array().into_iter().flatten()
}

fn schema_of(version: &Value) -> Option<&Value> {
    part(version, "schema").and_then(|schema| part(schema, "openAPIV3Schema"))
}

/// The versions that have a schema, each with its schema.
fn schemas(definition: &Value) -> impl Iterator<Item = (&Value, &Value)> {
    versions(definition).filter_map(|version| Some((version, schema_of(version)?)))
}

/// Checks a new definition.
pub fn validate(definition: &Value) -> Vec<Error> {
    let mut errors = check_name(definition);
    errors.extend(check(definition, &Checks::all()));
    errors.extend(approval::validate(definition, None));
    errors.extend(check_preserve(definition, None));
    errors
}

/// Checks the update of a definition.
pub fn validate_update(new: &Value, old: &Value) -> Vec<Error> {
    validate_update_with(new, old, Env::new(berth_cel::NEWEST))
}

/// As [`validate_update`]; expressions that are stored already may use the features in `stored`.
pub fn validate_update_with(new: &Value, old: &Value, stored: Env) -> Vec<Error> {
    let mut errors = check(new, &Checks { stored, ..Checks::after(old) });
    let immutable = |path: &[&str], errors: &mut Vec<Error>| {
        let at = |object: &Value| path.iter().fold(object["spec"].clone(), |value, step| value[*step].clone());
        if at(new) != at(old) {
            let field = format!("spec.{}", path.join("."));
            errors.push(Error::invalid(&Path::new(&field), at(new), "field is immutable"));
        }
    };
    // Objects are stored under the names of an established kind.
    if super::conditions::is_true(old, "Established") {
        immutable(&["scope"], &mut errors);
        immutable(&["names", "kind"], &mut errors);
    }
    // The name of the definition consists of the group and the plural name.
    immutable(&["group"], &mut errors);
    immutable(&["names", "plural"], &mut errors);
    errors.extend(approval::validate(new, Some(old)));
    errors.extend(check_preserve(new, Some(old)));
    errors
}

/// Validates a client's write to a definition's status.
pub fn validate_status_update(new: &Value) -> Vec<Error> {
    let mut errors = names::validate(&new["status"]["acceptedNames"], &Path::new("status.acceptedNames"));
    errors.extend(stored_versions(new));
    errors
}

fn check_name(definition: &Value) -> Vec<Error> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let spec = &definition["spec"];
    let expected = format!("{}.{}", text(&spec["names"]["plural"]), text(&spec["group"]));
    if meta::name(definition) == expected {
        return Vec::new();
    }
    let detail = "must be spec.names.plural+\".\"+spec.group";
    vec![Error::invalid(&Path::new("metadata.name"), meta::name(definition), detail)]
}

fn check_preserve(definition: &Value, old: Option<&Value>) -> Vec<Error> {
    let preserves = |definition: &Value| definition["spec"]["preserveUnknownFields"] == true;
    if !preserves(definition) || old.is_some_and(preserves) {
        return Vec::new();
    }
    let detail =
        "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
    vec![Error::invalid(&Path::new("spec.preserveUnknownFields"), true, detail)]
}

/// A part that is the same in all versions, with the path below `spec` at which it is reported.
fn shared<'a>(definition: &'a Value, name: &str) -> Option<&'a Value> {
    let mut all = versions(definition).map(|version| part(version, name));
    let first = all.next().flatten();
    if all.all(|other| other == first) { first } else { None }
}

fn check(definition: &Value, checks: &Checks<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    let spec = &definition["spec"];
    check_group(spec, &path, &mut errors);
    match spec["scope"].as_str().unwrap_or_default() {
        "" => errors.push(Error::required(&path.child("scope"), "")),
        "Namespaced" | "Cluster" => {}
        scope => errors.push(Error::not_supported(&path.child("scope"), scope, &["Cluster", "Namespaced"])),
    }
    check_versions(definition, checks, &path, &mut errors);
    let names_path = path.child("names");
    errors.extend(names::require(&spec["names"], &names_path));
    errors.extend(names::validate(&spec["names"], &names_path));
    check_shared(definition, checks, &path, &mut errors);
    let conversion_path = path.child("conversion");
    let converts = !matches!(spec["conversion"]["strategy"].as_str(), None | Some("None"));
    if converts && spec["preserveUnknownFields"] == true {
        let detail = "must be None if spec.preserveUnknownFields is true";
        let strategy = spec["conversion"]["strategy"].clone();
        errors.push(Error::invalid(&conversion_path.child("strategy"), strategy, detail));
    }
    errors.extend(conversion::validate(&spec["conversion"], &checks.conversion, &conversion_path));
    errors.extend(validate_status_update(definition));
    errors
}

fn check_group(spec: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let group = spec["group"].as_str().unwrap_or_default();
    let at = path.child("group");
    if group.is_empty() {
        errors.push(Error::required(&at, ""));
        return;
    }
    let problems = is_dns1123_subdomain(group);
    if !problems.is_empty() {
        errors.push(Error::invalid(&at, group, problems.join(",")));
    } else if !group.contains('.') {
        errors.push(Error::invalid(&at, group, "should be a domain with at least one dot"));
    }
}

/// Requirements on the schemas of a definition: schemas with defaults or extensions must be
/// structural, regardless of the old definition.
fn schema_options(definition: &Value, checks: &Checks<'_>) -> StructuralOptions {
    let preserves = definition["spec"]["preserveUnknownFields"] == true;
    let structural =
        checks.structural.structural || !preserves || schemas(definition).any(|(_, schema)| needs_structure(schema));
    StructuralOptions { structural, ..checks.structural }
}

/// True if a schema has defaults or `x-kubernetes-…` extensions at any depth.
fn needs_structure(schema: &Value) -> bool {
    has_default(schema) || has_extension(schema)
}

fn any_below(schema: &Value, test: fn(&Value) -> bool) -> bool {
    let map = |key: &str| schema.get(key).and_then(Value::as_object).into_iter().flatten().map(|(_, child)| child);
    let list = |key: &str| schema.get(key).and_then(Value::as_array).into_iter().flatten();
    map("properties").any(test)
        || ["allOf", "anyOf", "oneOf"].into_iter().flat_map(list).any(test)
        || ["additionalProperties", "items", "not"]
            .into_iter()
            .filter_map(|key| schema.get(key))
            .any(|child| child.is_object() && test(child))
}

fn has_default(schema: &Value) -> bool {
    part(schema, "default").is_some() || any_below(schema, has_default)
}

fn has_extension(schema: &Value) -> bool {
    let own = schema.as_object().into_iter().flatten();
    own.into_iter().any(|(key, value)| key.starts_with("x-kubernetes-") && *value != false && !value.is_null())
        || any_below(schema, has_extension)
}

fn check_versions(definition: &Value, checks: &Checks<'_>, path: &Path<'_>, errors: &mut Vec<Error>) {
    let (spec, at) = (&definition["spec"], path.child("versions"));
    let list = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let preserves = spec["preserveUnknownFields"] == true;
    let options = schema_options(definition, checks);
    if preserves && list.iter().filter_map(schema_of).any(has_default) {
        let detail = "must be false in order to use defaults in the schema";
        errors.push(Error::invalid(&path.child("preserveUnknownFields"), true, detail));
    }
    let has_own = |name: &str| shared(definition, name).is_none();
    let (own_schema, own_subresources) = (has_own("schema"), has_own("subresources"));
    let (own_columns, own_selectable) = (has_own("additionalPrinterColumns"), has_own("selectableFields"));
    for (index, version) in list.iter().enumerate() {
        let at = at.index(index);
        let name = version["name"].as_str().unwrap_or_default();
        let problems = is_dns1035_label(name);
        if !problems.is_empty() {
            errors.push(Error::invalid(&at.child("name"), name, problems.join(",")));
        }
        if schema_of(version).is_none() && (checks.schema || !preserves) {
            let place = at.child("schema");
            errors.push(Error::required(&place.child("openAPIV3Schema"), ""));
        }
        let warning = version["deprecationWarning"].as_str();
        for problem in deprecation_warning(version["deprecated"] == true, warning) {
            let warning = warning.unwrap_or_default();
            errors.push(Error::invalid(&at.child("deprecationWarning"), warning, problem));
        }
        let null = Value::Null;
        let given = |name: &str| part(version, name).unwrap_or(&null);
        if own_schema && let Some(schema) = schema_of(version) {
            let status = part(given("subresources"), "status").is_some();
            check_schema(schema, status, options, checks, &at.child("schema"), errors);
        }
        if own_subresources {
            errors.extend(parts::subresources(given("subresources"), &at.child("subresources")));
        }
        if own_columns {
            let columns = given("additionalPrinterColumns");
            errors.extend(parts::columns(columns, &at.child("additionalPrinterColumns")));
        }
        if own_selectable {
            let schema = schema_of(version).filter(|_| own_schema);
            let fields = given("selectableFields");
            let mut old = checks.old.into_iter().flat_map(versions);
            let unchanged = old.any(|old| old["name"] == name && old["selectableFields"] == *fields);
            errors.extend(parts::selectable_fields(fields, schema, unchanged, &at.child("selectableFields")));
        }
    }
    let mut names = HashSet::new();
    if !list.iter().all(|version| names.insert(version["name"].as_str())) {
        errors.push(Error::invalid(&at, list.to_vec(), "must contain unique version names"));
    }
    if list.iter().filter(|version| version["storage"] == true).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.push(Error::invalid(&at, list.to_vec(), detail));
    }
    if let Some(name) = list.first().and_then(|version| version["name"].as_str()).filter(|name| !name.is_empty()) {
        let problems = is_dns1035_label(name);
        if !problems.is_empty() {
            errors.push(Error::invalid(&path.child("version"), name, problems.join(",")));
        }
    }
}

/// Checks the parts that all versions share.
fn check_shared(definition: &Value, checks: &Checks<'_>, path: &Path<'_>, errors: &mut Vec<Error>) {
    let schema = shared(definition, "schema").and_then(|schema| part(schema, "openAPIV3Schema"));
    if let Some(schema) = schema {
        let has_status = |version: &Value| part(&version["subresources"], "status").is_some();
        let status = versions(definition).any(has_status);
        let options = schema_options(definition, checks);
        check_schema(schema, status, options, checks, &path.child("validation"), errors);
    }
    if let Some(subresources) = shared(definition, "subresources") {
        errors.extend(parts::subresources(subresources, &path.child("subresources")));
    }
    if let Some(columns) = shared(definition, "additionalPrinterColumns") {
        errors.extend(parts::columns(columns, &path.child("additionalPrinterColumns")));
    }
    if let Some(fields) = shared(definition, "selectableFields") {
        let unchanged = checks.old.is_some_and(|old| shared(old, "selectableFields") == Some(fields));
        errors.extend(parts::selectable_fields(fields, schema, unchanged, &path.child("selectableFields")));
    }
}

fn check_schema(
    schema: &Value,
    status_subresource: bool,
    options: StructuralOptions,
    checks: &Checks<'_>,
    path: &Path<'_>,
    errors: &mut Vec<Error>,
) {
    let place = path.child("openAPIV3Schema");
    let options = StructuralOptions { status_subresource, ..options };
    let structure = structural::check(schema, options, &place);
    let is_structural = structure.is_empty();
    errors.extend(structure);
    let parsed = Schema::parse_crd(schema);
    match &parsed {
        // The defaults of a schema that is not structural cannot be validated.
        Ok(parsed) if is_structural && options.structural => {
            errors.extend(parsed.validate_defaults(Root::Resource, checks.pruned_defaults, &place));
            let mut budget = Some(rules::OBJECT_COST_MAX);
            errors.extend(rules::check_defaults(parsed, &place, &mut budget, &Env::new(berth_cel::NEWEST)));
        }
        Ok(_) => {}
        Err(error) if is_structural && options.structural && options.valid_types => {
            errors.push(Error::invalid(&place, "object", error.to_string()))
        }
        Err(_) => {}
    }
    errors.extend(check_rules(schema, parsed.ok().as_ref(), checks, &place));
}

/// Checks that the rules of a schema compile and stay within the cost limits. Stored rules may use
/// every feature of this server and have any cost.
fn check_rules(schema: &Value, parsed: Option<&Arc<Schema>>, checks: &Checks<'_>, place: &Path<'_>) -> Vec<Error> {
    let mut stored = StoredExpressions::default();
    checks.old.into_iter().flat_map(schemas).for_each(|(_, schema)| stored.add(schema));
    let options = rules::Options {
        // The functions of the Kubernetes version before this server's, so that every stored
        // expression is still valid after a downgrade.
        env: Env::new(berth_cel::NEWEST),
        env_stored: checks.stored.clone(),
        stored: &stored,
        suppress_expression_cost: checks.old.is_some_and(|old| schemas(old).any(|(_, before)| before == schema)),
    };
    rules::check_definition(schema, parsed, &options, place)
}

fn stored_versions(definition: &Value) -> Vec<Error> {
    let stored = definition["status"]["storedVersions"].as_array().map(Vec::as_slice).unwrap_or_default();
    check_stored_versions(stored, &definition["spec"]["versions"], &Path::new("status.storedVersions"))
}

/// Checks that the stored versions include the storage version, and that all of them are still
/// defined.
pub fn check_stored_versions(stored: &[Value], versions: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    if stored.is_empty() {
        return vec![Error::invalid(path, Value::Array(Vec::new()), "must have at least one stored version")];
    }
    let versions = versions.as_array().map(Vec::as_slice).unwrap_or_default();
    for version in versions.iter().filter(|version| version["storage"] == true) {
        if !stored.contains(&version["name"]) {
            let name = version["name"].as_str().unwrap_or_default();
            errors.push(Error::invalid(path, stored.to_vec(), format!("must have the storage version {name}")));
        }
    }
    for (index, name) in stored.iter().enumerate() {
        if !versions.iter().any(|version| version["name"] == *name) {
            let shown = name.as_str().unwrap_or_default();
            let detail = format!(
                "missing from spec.versions; {shown} was previously a storage version, and must remain in \
                 spec.versions until a storage migration ensures no data remains persisted in {shown} and removes \
                 {shown} from status.storedVersions"
            );
            errors.push(Error::invalid(&path.index(index), name.clone(), detail));
        }
    }
    errors
}
