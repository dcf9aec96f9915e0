//! ValidatingAdmissionPolicies, MutatingAdmissionPolicies and their bindings: required fields,
//! compilation of expressions, and type checking of expressions for the kinds that a policy
//! matches.

use std::collections::HashSet;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta;
use berth_apimachinery::names;
use berth_apimachinery::validation::NameCheck;
use berth_cel::admission::{check, typecheck};
use berth_cel::{Decl, Env};
use serde_json::{Map, Value, json};

use super::{Context, Strategy, set_default, spec_mut};
use crate::registry::Registry;

/// Maximum number of kinds for which a policy is type-checked, as upstream: more would make writes
/// slow.
const KINDS_MAX: usize = 10;
/// Maximum number of match conditions of a policy.
pub(super) const CONDITIONS_MAX: usize = 64;

/// ValidatingAdmissionPolicies.
pub(crate) struct ValidatingPolicies;
/// MutatingAdmissionPolicies.
pub(crate) struct MutatingPolicies;
/// ValidatingAdmissionPolicyBindings.
pub(crate) struct ValidatingBindings;
/// MutatingAdmissionPolicyBindings.
pub(crate) struct MutatingBindings;

impl Strategy for ValidatingPolicies {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        default_policy(object);
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        set_type_checking(object, context.registry, 1);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, context: &Context<'_>) {
        if new["spec"] != old["spec"] {
            set_type_checking(new, context.registry, meta::generation(old) + 1);
        }
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        let mut errors = validate_policy(object);
        let spec = Path::new("spec");
        let is_empty = |field: &str| object["spec"][field].as_array().is_none_or(Vec::is_empty);
        if is_empty("validations") && is_empty("auditAnnotations") {
            let detail = "validations or auditAnnotations must contain at least one item";
            errors.push(Error::required(&spec.child("validations"), detail));
            errors.push(Error::required(&spec.child("auditAnnotations"), detail));
        }
        let path = spec.child("validations");
        for (index, validation) in list(&object["spec"]["validations"]) {
            let item = path.index(index);
            required(validation, "expression", "expression is not specified", &item, &mut errors);
            let message = validation["message"].as_str().unwrap_or_default();
            if message.contains('\n') {
                let detail = "message must not contain line breaks";
                errors.push(Error::invalid(&item.child("message"), message, detail));
            }
            let reasons = ["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"];
            one_of(validation, "reason", &reasons, &item, &mut errors);
        }
        let path = spec.child("auditAnnotations");
        for (index, annotation) in list(&object["spec"]["auditAnnotations"]) {
            let item = path.index(index);
            required(annotation, "key", "", &item, &mut errors);
            required(annotation, "valueExpression", "", &item, &mut errors);
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        if new["spec"] == old["spec"] { Vec::new() } else { self.validate(new) }
    }
}

impl Strategy for MutatingPolicies {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        default_policy(object);
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        let mut errors = validate_policy(object);
        let spec = Path::new("spec");
        if object["spec"]["mutations"].as_array().is_none_or(Vec::is_empty) {
            errors.push(Error::required(&spec.child("mutations"), "mutations must contain at least one item"));
        }
        let path = spec.child("mutations");
        for (index, mutation) in list(&object["spec"]["mutations"]) {
            let item = path.index(index);
            required(mutation, "patchType", "", &item, &mut errors);
            one_of(mutation, "patchType", &["ApplyConfiguration", "JSONPatch"], &item, &mut errors);
            let fields = [("ApplyConfiguration", "applyConfiguration"), ("JSONPatch", "jsonPatch")];
            for (patch_type, field) in fields {
                let is_of_type = mutation["patchType"] == patch_type;
                if is_of_type && mutation[field]["expression"].as_str().is_none_or(str::is_empty) {
                    let detail = format!("must be specified when patchType is {patch_type}");
                    errors.push(Error::required(&item.child(field), &detail));
                }
                if !is_of_type && mutation[field].is_object() {
                    let detail = format!("must not be specified when patchType is not {patch_type}");
                    errors.push(Error::invalid(&item.child(field), mutation[field].clone(), detail));
                }
            }
        }
        required(&object["spec"], "reinvocationPolicy", "", &spec, &mut errors);
        one_of(&object["spec"], "reinvocationPolicy", &["IfNeeded", "Never"], &spec, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        if new["spec"] == old["spec"] { Vec::new() } else { self.validate(new) }
    }
}

impl Strategy for ValidatingBindings {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        default_binding(object);
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        let mut errors = validate_binding(object);
        let path = Path::new("spec.validationActions");
        let actions: Vec<&str> = list(&object["spec"]["validationActions"]).filter_map(|(_, it)| it.as_str()).collect();
        if actions.is_empty() {
            errors.push(Error::required(&path, "at least one validation action is required"));
        }
        let mut seen: HashSet<&str> = HashSet::new();
        for (index, action) in actions.iter().enumerate() {
            if !["Audit", "Deny", "Warn"].contains(action) {
                errors.push(Error::not_supported(&path.index(index), *action, &["Audit", "Deny", "Warn"]));
            }
            if !seen.insert(*action) {
                errors.push(Error::duplicate(&path.index(index), *action));
            }
        }
        if actions.contains(&"Deny") && actions.contains(&"Warn") {
            let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the \
                          API response and headers serves no purpose)";
            errors.push(Error::invalid(&path, json!(actions), detail));
        }
        errors
    }
}

impl Strategy for MutatingBindings {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        default_binding(object);
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        validate_binding(object)
    }
}

fn list(value: &Value) -> impl Iterator<Item = (usize, &Value)> {
    value.as_array().into_iter().flatten().enumerate()
}

fn required(object: &Value, field: &str, detail: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    if object[field].as_str().is_none_or(|text| text.trim().is_empty()) {
        errors.push(Error::required(&path.child(field), detail));
    }
}

fn one_of(object: &Value, field: &str, known: &[&str], path: &Path<'_>, errors: &mut Vec<Error>) {
    if let Some(text) = object[field].as_str().filter(|text| !text.is_empty() && !known.contains(text)) {
        errors.push(Error::not_supported(&path.child(field), text, known));
    }
}

fn default_policy(object: &mut Value) {
    let spec = spec_mut(object);
    set_default(spec, "failurePolicy", "Fail");
    if let Some(Value::Object(criteria)) = spec.get_mut("matchConstraints") {
        default_criteria(criteria);
    }
}

fn default_binding(object: &mut Value) {
    if let Some(Value::Object(criteria)) = spec_mut(object).get_mut("matchResources") {
        default_criteria(criteria);
    }
}

fn default_criteria(criteria: &mut Map<String, Value>) {
    set_default(criteria, "matchPolicy", "Equivalent");
    set_default(criteria, "namespaceSelector", json!({}));
    set_default(criteria, "objectSelector", json!({}));
    for field in ["resourceRules", "excludeResourceRules"] {
        for rule in criteria.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            set_default(meta::map_mut(rule), "scope", "*");
        }
    }
}

/// Validates the fields that both kinds of policies have.
fn validate_policy(object: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let (spec, path) = (&object["spec"], Path::new("spec"));
    one_of(spec, "failurePolicy", &["Fail", "Ignore"], &path, &mut errors);
    if spec["paramKind"].is_object() {
        required(&spec["paramKind"], "apiVersion", "", &path.child("paramKind"), &mut errors);
        required(&spec["paramKind"], "kind", "", &path.child("paramKind"), &mut errors);
    }
    let constraints = path.child("matchConstraints");
    if !spec["matchConstraints"].is_object() {
        errors.push(Error::required(&constraints, ""));
    } else {
        if spec["matchConstraints"]["resourceRules"].as_array().is_none_or(Vec::is_empty) {
            errors.push(Error::required(&constraints.child("resourceRules"), ""));
        }
        validate_criteria(&spec["matchConstraints"], &constraints, &mut errors);
    }
    let conditions = path.child("matchConditions");
    let given = spec["matchConditions"].as_array().map_or(0, Vec::len);
    if given > CONDITIONS_MAX {
        errors.push(Error::too_many(&conditions, given as i64, CONDITIONS_MAX as i64));
    }
    unique_names(&spec["matchConditions"], &conditions, names::is_qualified_name, &mut errors);
    unique_names(&spec["variables"], &path.child("variables"), is_identifier, &mut errors);
    for problem in check::problems(spec, &Env::new(berth_cel::NEWEST)) {
        errors.push(Error::invalid(&Path::new(&problem.field), problem.expression, problem.error));
    }
    errors
}

/// Validates a list of named expressions: name and expression are required, names are unique.
pub(super) fn unique_names(value: &Value, path: &Path<'_>, check: NameCheck, errors: &mut Vec<Error>) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, entry) in list(value) {
        let item = path.index(index);
        required(entry, "name", "", &item, errors);
        required(entry, "expression", "", &item, errors);
        let name = entry["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            continue;
        }
        let problems = check(name);
        errors.extend(problems.into_iter().map(|problem| Error::invalid(&item.child("name"), name, problem)));
        if !seen.insert(name) {
            errors.push(Error::duplicate(&item.child("name"), name));
        }
    }
}

fn is_identifier(name: &str) -> Vec<String> {
    let mut characters = name.chars();
    let is_start = characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_');
    let is_rest = characters.all(|character| character.is_ascii_alphanumeric() || character == '_');
    if is_start && is_rest { Vec::new() } else { vec!["name is not a valid CEL identifier".to_owned()] }
}

fn validate_criteria(criteria: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    one_of(criteria, "matchPolicy", &["Equivalent", "Exact"], path, errors);
    for field in ["resourceRules", "excludeResourceRules"] {
        let rules = path.child(field);
        for (index, rule) in list(&criteria[field]) {
            let item = rules.index(index);
            for field in ["apiGroups", "apiVersions", "operations", "resources"] {
                if rule[field].as_array().is_none_or(Vec::is_empty) {
                    errors.push(Error::required(&item.child(field), ""));
                }
            }
            let operations = item.child("operations");
            for (index, operation) in list(&rule["operations"]) {
                let known = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
                let text = operation.as_str().unwrap_or_default();
                if !known.contains(&text) {
                    errors.push(Error::not_supported(&operations.index(index), text, &known));
                }
            }
            one_of(rule, "scope", &["*", "Cluster", "Namespaced"], &item, errors);
        }
    }
}

/// Validates the fields that both kinds of bindings have.
fn validate_binding(object: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let (spec, path) = (&object["spec"], Path::new("spec"));
    required(spec, "policyName", "", &path, &mut errors);
    if spec["paramRef"].is_object() {
        let (reference, at) = (&spec["paramRef"], path.child("paramRef"));
        let has_name = reference["name"].as_str().is_some_and(|name| !name.is_empty());
        match (has_name, reference["selector"].is_object()) {
            (true, true) => {
                let detail = "name and selector are mutually exclusive";
                errors.push(Error::forbidden(&at.child("name"), detail));
            }
            (false, false) => errors.push(Error::required(&at, "one of name or selector must be specified")),
            _ => {}
        }
        required(reference, "parameterNotFoundAction", "", &at, &mut errors);
        one_of(reference, "parameterNotFoundAction", &["Allow", "Deny"], &at, &mut errors);
    }
    if spec["matchResources"].is_object() {
        validate_criteria(&spec["matchResources"], &path.child("matchResources"), &mut errors);
    }
    errors
}

/// Sets `status.typeChecking`: expressions that have type errors for the matched kinds.
fn set_type_checking(object: &mut Value, registry: &Registry, generation: i64) {
    let kinds = kinds_of(&object["spec"]["matchConstraints"], registry);
    let warnings: Vec<Value> = typecheck::check(&object["spec"], &kinds, &Env::new(berth_cel::NEWEST))
        .into_iter()
        .map(|warning| json!({"fieldRef": warning.field_ref, "warning": warning.warning}))
        .collect();
    let mut checking = json!({});
    if !warnings.is_empty() {
        checking["expressionWarnings"] = warnings.into();
    }
    let status = meta::map_mut(meta::map_mut(object).entry("status").or_insert_with(|| json!({})));
    status.insert("observedGeneration".to_owned(), generation.into());
    status.insert("typeChecking".to_owned(), checking);
}

/// The kinds that rules list explicitly. Rules with wildcards match too many kinds to check.
fn kinds_of(constraints: &Value, registry: &Registry) -> Vec<typecheck::Kind> {
    let mut kinds: Vec<typecheck::Kind> = Vec::new();
    for (_, rule) in list(&constraints["resourceRules"]) {
        let words = |field: &str| -> Vec<&str> {
            let words: Vec<&str> = list(&rule[field]).filter_map(|(_, word)| word.as_str()).collect();
            if words.contains(&"*") { Vec::new() } else { words }
        };
        for group in words("apiGroups") {
            for version in words("apiVersions") {
                for resource in words("resources").into_iter().filter(|resource| !resource.contains(['/', '*'])) {
                    let Some(row) = registry.get(group, resource) else { continue };
                    let served = row.version(version).is_some_and(|version| version.served);
                    let name = match group {
                        "" => format!("{version}, Kind={}", row.kind),
                        group => format!("{group}/{version}, Kind={}", row.kind),
                    };
                    if !served || kinds.len() == KINDS_MAX || kinds.iter().any(|kind| kind.name == name) {
                        continue;
                    }
                    // The schema of CustomResourceDefinitions is recursive and has no finite type.
                    let schema = row.schema(version).filter(|_| group != crate::crd::GROUP);
                    let decl = schema.and_then(|schema| Decl::of_schema(&schema, true, "Object"));
                    kinds.push(typecheck::Kind { name, decl });
                }
            }
        }
    }
    kinds
}
