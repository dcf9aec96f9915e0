//! Suites of field ownership: paths, field sets, operations on typed values, and the updater that
//! server-side apply uses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_apimachinery::apply::{
    self, ApplyError, Comparison, Conflict, ConversionError, DEDUCED, Ignored, Managers, Owned, PathElement, Pattern,
    Set, TypeRef, Types, Typing, Updater, Versioned, Versions,
};
use serde_json::{Map, Value, json};

use super::{equal, input, input_text, same, want, wants_error};
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "ssa-merge" => script,
        "typed-merge" => merge,
        "typed-compare" => compare,
        "typed-validate" => validate,
        "typed-to-set" => to_set,
        "typed-remove-extract" => remove_extract,
        "typed-reconcile-schema" => reconcile,
        "comparison-exclude" => exclude,
        "path-element" => path_element,
        "path-element-order" => path_order,
        "path-string" => path_string,
        "fields-v1" => fields_v1,
        "field-set-ops" => set_ops,
        "field-set-filter" => set_filter,
        "field-set-from-value" => set_from_value,
        "managers-compare" => managers_compare,
        "value-order" => value_order,
        "schema-resolve" => schema_resolve,
        "conflict-message" => conflict_message,
        _ => return None,
    })
}

/// The recorded schema with an id.
pub fn schema(case: &Case, id: &str) -> Result<Types, String> {
    if id == "deduced" || id.is_empty() {
        return Ok(Types::deduced());
    }
    let mut folder = case.file.parent();
    while let Some(at) = folder {
        let file = at.join("schemas").join(format!("{id}.json"));
        if file.is_file() {
            let text = std::fs::read_to_string(&file).map_err(|e| e.to_string())?;
            return Ok(Types::from_definition(&serde_json::from_str(&text).map_err(|e| e.to_string())?));
        }
        folder = at.parent();
    }
    Err(format!("no schema {id}"))
}

fn typed(case: &Case) -> Result<(Types, TypeRef), String> {
    let types = schema(case, input_text(case, "schema"))?;
    Ok((types, root(input_text(case, "type"))))
}

fn root(name: &str) -> TypeRef {
    TypeRef::Named(if name.is_empty() || name == "deduced" { DEDUCED } else { name }.to_owned(), None)
}

pub fn read_set(value: &Value) -> Result<Set, String> {
    Set::from_fields_v1(value.get("fieldsV1").unwrap_or(&Value::Null)).map_err(|e| e.to_string())
}

fn equal_sets(what: &str, got: &Set, wanted: &Value) -> Verdict {
    let wanted = read_set(wanted)?;
    if *got == wanted {
        Ok(())
    } else {
        Err(format!("{what}: got {}, want {}", got.to_fields_v1_text(), wanted.to_fields_v1_text()))
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn merge(case: &Case) -> Verdict {
    let (types, root) = typed(case)?;
    let rhs = input(case, "rhs");
    let result =
        apply::validate(&types, &root, rhs, false).and_then(|()| apply::merge(&types, &root, input(case, "lhs"), rhs));
    match super::outcome(case, result)? {
        Some(merged) => equal("object", &merged, want(case, "object")),
        None => Ok(()),
    }
}

fn compare(case: &Case) -> Verdict {
    let (types, root) = typed(case)?;
    let result = apply::compare(&types, &root, input(case, "lhs"), input(case, "rhs")).map_err(text)?;
    equal_sets("added", &result.added, want(case, "added"))?;
    equal_sets("modified", &result.modified, want(case, "modified"))?;
    equal_sets("removed", &result.removed, want(case, "removed"))
}

fn validate(case: &Case) -> Verdict {
    let (types, root) = typed(case)?;
    if let Some(yaml) = input(case, "yaml").as_str() {
        return match berth_apimachinery::decode::yaml_strict(yaml) {
            Err(_) => equal("valid", &json!(false), want(case, "valid")),
            Ok(value) => {
                let valid = apply::validate(&types, &root, &value, false).is_ok();
                equal("valid", &json!(valid), want(case, "valid"))
            }
        };
    }
    let object = input(case, "object");
    let valid = apply::validate(&types, &root, object, false);
    equal(&format!("valid ({valid:?})"), &json!(valid.is_ok()), want(case, "valid"))?;
    match want(case, "validAllowingDuplicates") {
        Value::Null => Ok(()),
        wanted => {
            let valid = apply::validate(&types, &root, object, true);
            equal(&format!("validAllowingDuplicates ({valid:?})"), &json!(valid.is_ok()), wanted)
        }
    }
}

fn to_set(case: &Case) -> Verdict {
    let (types, root) = typed(case)?;
    let set = apply::to_set(&types, &root, input(case, "object")).map_err(text)?;
    equal_sets("set", &set, want(case, "set"))
}

fn remove_extract(case: &Case) -> Verdict {
    let (types, root) = typed(case)?;
    let set = read_set(input(case, "set"))?;
    let object = input(case, "object");
    let has = |field: &str| case.want.get(field).is_some();
    if has("removed") {
        let got = apply::remove(&types, &root, object, &set).map_err(text)?;
        equal("removed", &got, want(case, "removed"))?;
    }
    if has("extracted") {
        let got = apply::extract(&types, &root, object, &set, false).map_err(text)?;
        equal("extracted", &got, want(case, "extracted"))?;
    }
    if has("extractedWithKeys") {
        let got = apply::extract(&types, &root, object, &set, true).map_err(text)?;
        equal("extractedWithKeys", &got, want(case, "extractedWithKeys"))?;
    }
    Ok(())
}

fn reconcile(case: &Case) -> Verdict {
    let types = schema(case, input_text(case, "newSchema"))?;
    let root = root(input_text(case, "type"));
    let set = read_set(input(case, "set"))?;
    let got = apply::reconcile(&types, &root, input(case, "object"), &set).map_err(text)?;
    match (got, want(case, "set")) {
        (None, Value::Null) => Ok(()),
        (Some(got), Value::Null) => Err(format!("want no change, got {}", got.to_fields_v1_text())),
        (got, wanted) => equal_sets("set", &got.unwrap_or(set), wanted),
    }
}

fn exclude(case: &Case) -> Verdict {
    let comparison = input(case, "comparison");
    let part = |name: &str| read_set(comparison.get(name).unwrap_or(&Value::Null));
    let comparison = Comparison { added: part("added")?, modified: part("modified")?, removed: part("removed")? };
    let excluded = comparison.excluding(&read_set(input(case, "exclude"))?);
    equal_sets("added", &excluded.added, want(case, "added"))?;
    equal_sets("modified", &excluded.modified, want(case, "modified"))?;
    equal_sets("removed", &excluded.removed, want(case, "removed"))
}

fn path_element(case: &Case) -> Verdict {
    let parsed = PathElement::parse(input_text(case, "text"))
        .and_then(|element| element.ok_or(apply::PathError("unknown kind".to_owned())));
    match super::outcome(case, parsed)? {
        Some(element) => equal("canonical", &json!(element.to_text()), want(case, "canonical")),
        None => Ok(()),
    }
}

fn element(text: &str) -> Result<PathElement, String> {
    PathElement::parse(text).map_err(|e| e.to_string())?.ok_or(format!("{text}: unknown kind of path element"))
}

fn path_order(case: &Case) -> Verdict {
    let order = element(input_text(case, "a"))?.cmp(&element(input_text(case, "b"))?);
    equal("cmp", &json!(order as i8), want(case, "cmp"))
}

fn value_order(case: &Case) -> Verdict {
    let order = apply::compare_values(input(case, "a"), input(case, "b"));
    equal("cmp", &json!(order as i8), want(case, "cmp"))
}

fn path_string(case: &Case) -> Verdict {
    let steps = input(case, "path").as_array().into_iter().flatten().filter_map(Value::as_str);
    let path: Vec<PathElement> = steps.map(element).collect::<Result<_, _>>()?;
    equal("string", &json!(apply::path_text(&path)), want(case, "string"))
}

fn fields_v1(case: &Case) -> Verdict {
    let parsed = serde_json::from_str::<Value>(input_text(case, "json"))
        .map_err(text)
        .and_then(|value| Set::from_fields_v1(&value).map_err(text));
    let Some(set) = super::outcome(case, parsed)? else { return Ok(()) };
    match want(case, "canonical") {
        Value::Null => match case.data["observed"].get("out") {
            Some(out) => equal("out", &json!(set.to_fields_v1_text()), out),
            None => Ok(()),
        },
        wanted => equal("canonical", &json!(set.to_fields_v1_text()), wanted),
    }
}

fn set_ops(case: &Case) -> Verdict {
    let (a, b) = (read_set(input(case, "a"))?, read_set(input(case, "b"))?);
    match input_text(case, "op") {
        "difference" => {
            equal_sets("difference", &a.difference(&b), want(case, "difference"))?;
            equal_sets("recursiveDifference", &a.recursive_difference(&b), want(case, "recursiveDifference"))
        }
        "equals" => equal("equal", &json!(a == b), want(case, "equal")),
        "leaves" => equal_sets("leaves", &read_set(input(case, "set"))?.leaves(), want(case, "leaves")),
        "has" => {
            let set = read_set(input(case, "set"))?;
            let steps = input(case, "path").as_array().into_iter().flatten().filter_map(Value::as_str);
            let path: Vec<PathElement> = steps.map(element).collect::<Result<_, _>>()?;
            let wanted = case.want.get("has").or(case.want.get("found")).unwrap_or(&Value::Null);
            equal("has", &json!(set.has(&path)), wanted)
        }
        other => Err(format!("unknown op {other}")),
    }
}

fn pattern(value: &Value) -> Result<Pattern, String> {
    let mut pattern = Pattern {
        everything: value.get("everything").and_then(Value::as_bool).unwrap_or_default(),
        members: Vec::new(),
    };
    for member in value.get("members").and_then(Value::as_array).into_iter().flatten() {
        let step = match member.get("element").and_then(Value::as_str) {
            Some("*") | None => None,
            Some(text) => Some(element(text)?),
        };
        pattern.members.push((step, self::pattern(member.get("child").unwrap_or(&Value::Null))?));
    }
    Ok(pattern)
}

fn filter(value: &Value) -> Result<Ignored, String> {
    match value.get("kind").and_then(Value::as_str) {
        Some("exclude") => Ok(Ignored::Fields(read_set(value.get("set").unwrap_or(&Value::Null))?)),
        _ => Ok(Ignored::AllBut(pattern(value.get("matcher").unwrap_or(&Value::Null))?)),
    }
}

fn set_filter(case: &Case) -> Verdict {
    let set = read_set(input(case, "set"))?;
    let got = match filter(input(case, "filter"))? {
        Ignored::Fields(fields) => set.recursive_difference(&fields),
        Ignored::AllBut(pattern) => set.filtered(&pattern),
    };
    equal_sets("set", &got, want(case, "set"))
}

fn set_from_value(case: &Case) -> Verdict {
    let value = berth_apimachinery::decode::yaml(input_text(case, "yaml")).map_err(text)?;
    equal_sets("set", &Set::of_schemaless(&value), want(case, "set"))
}

fn read_managers(value: &Value) -> Result<Managers, String> {
    let mut managers = Managers::new();
    let mut add = |name: &str, entry: &Value| -> Result<(), String> {
        let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
        let owned = Owned {
            set: read_set(entry)?,
            version: text("apiVersion").to_owned(),
            applied: text("operation") == "Apply",
        };
        managers.insert(name.to_owned(), owned);
        Ok(())
    };
    match value {
        Value::Object(map) => map.iter().try_for_each(|(name, entry)| add(name, entry))?,
        Value::Array(list) => list
            .iter()
            .try_for_each(|entry| add(entry.get("manager").and_then(Value::as_str).unwrap_or_default(), entry))?,
        _ => {}
    }
    Ok(managers)
}

fn managers_compare(case: &Case) -> Verdict {
    let (lhs, rhs) = (read_managers(input(case, "lhs"))?, read_managers(input(case, "rhs"))?);
    if let Some(wanted) = case.want.get("difference") {
        let wanted = read_managers(wanted)?;
        let got = berth_apimachinery::apply::managers_difference(&lhs, &rhs);
        return if got == wanted { Ok(()) } else { Err(format!("difference: got {got:?}\nwant {wanted:?}")) };
    }
    equal("equal", &json!(lhs == rhs), want(case, "equal"))
}

fn schema_resolve(case: &Case) -> Verdict {
    let types = Types::from_definition(&json!({"types": input(case, "types")}));
    let type_ref = apply::read_ref(input(case, "typeRef"));
    let resolved = types.resolve(&type_ref);
    equal("exists", &json!(resolved.is_some()), want(case, "exists"))?;
    let Some(resolved) = resolved else { return Ok(()) };
    let wanted = match apply::read_ref(want(case, "atom")) {
        TypeRef::Inline(atom) => atom,
        TypeRef::Named(..) => return Err("want.atom: expected a type, got a name".to_owned()),
    };
    if *resolved == wanted { Ok(()) } else { Err(format!("got {resolved:?}, want {wanted:?}")) }
}

/// Compares the message of conflicts. The paths are recorded as text, and the message groups them.
fn conflict_message(case: &Case) -> Verdict {
    let mut conflicts = Vec::new();
    for manager in input(case, "managers").as_array().into_iter().flatten() {
        for path in manager["paths"].as_array().into_iter().flatten() {
            // A field element prints as a dot and its name: use the text after the dot as name.
            let text = path.as_str().unwrap_or_default().trim_start_matches('.');
            conflicts.push(Conflict {
                manager: manager["manager"].as_str().unwrap_or_default().to_owned(),
                path: vec![PathElement::Field(text.to_owned())],
            });
        }
    }
    equal("message", &json!(apply::conflict_text(&conflicts)), want(case, "message"))
}

/// The converters between versions that the cases name.
struct Converter {
    kind: String,
    types: Arc<Types>,
    type_for_version: bool,
    type_name: String,
    accepted: Option<BTreeSet<String>>,
}

impl Versions for Converter {
    fn typing(&self, version: &str) -> Result<Typing, ConversionError> {
        if self.accepted.as_ref().is_some_and(|accepted| !accepted.contains(version)) {
            return Err(ConversionError::NoSuchVersion);
        }
        let name = if self.type_for_version { version } else { &self.type_name };
        Ok(Typing { types: self.types.clone(), root: root(name) })
    }

    fn convert(&self, object: &Value, from: &str, to: &str) -> Result<Value, ConversionError> {
        if self.accepted.as_ref().is_some_and(|accepted| !accepted.contains(to)) {
            return Err(ConversionError::NoSuchVersion);
        }
        match self.kind.as_str() {
            "repeat-letters" => {
                let times: usize = to.trim_start_matches('v').parse().map_err(|_| ConversionError::NoSuchVersion)?;
                Ok(repeat(object, times, true))
            }
            "rename-versioned-fields" => Ok(rename(object, from, to)),
            "reliant-fields" => reliant(object, from, to),
            _ => Ok(object.clone()),
        }
    }
}

fn repeat(value: &Value, times: usize, top: bool) -> Value {
    match value {
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| {
                let key = if top {
                    key.clone()
                } else {
                    key.chars().next().map(|c| c.to_string().repeat(times)).unwrap_or_default()
                };
                (key, repeat(value, times, false))
            };
            Value::Object(map.iter().map(entry).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(|item| repeat(item, times, false)).collect()),
        _ => Value::Null,
    }
}

fn rename(value: &Value, from: &str, to: &str) -> Value {
    match value {
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| {
                let key = match key.strip_suffix(from) {
                    Some(stem) => format!("{stem}{to}"),
                    None => key.clone(),
                };
                (key, rename(value, from, to))
            };
            Value::Object(map.iter().map(entry).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(|item| rename(item, from, to)).collect()),
        other => other.clone(),
    }
}

fn reliant(object: &Value, from: &str, to: &str) -> Result<Value, ConversionError> {
    let empty = Map::new();
    let map = object.as_object().unwrap_or(&empty);
    let mut result = Map::new();
    if let Some(common) = map.get("common_field") {
        result.insert("common_field".to_owned(), common.clone());
    }
    match (from, to) {
        (from, to) if from == to => return Ok(object.clone()),
        ("v2", "v1") => match map.get("required_field_bar") {
            Some(value) => {
                result.insert("field_foo_rely_on_bar".to_owned(), value.clone());
            }
            None => return Err(ConversionError::Failed("required_field_bar is missing".to_owned())),
        },
        ("v1", "v2") => {
            if let Some(value) = map.get("field_foo_rely_on_bar") {
                result.insert("required_field_bar".to_owned(), value.clone());
            }
        }
        _ => return Err(ConversionError::NoSuchVersion),
    }
    Ok(Value::Object(result))
}

/// The converter with the schemas of the case, and the ignored fields by version.
fn schemas(case: &Case) -> Result<(Converter, BTreeMap<String, Ignored>), String> {
    let parser = input(case, "parser");
    let parser_text =
        |parser: &Value, key: &str| parser.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let converter_kind = match input(case, "converter") {
        Value::String(kind) => kind.clone(),
        other => parser_text(other, "kind"),
    };
    let converter = Converter {
        kind: converter_kind,
        types: Arc::new(match parser {
            Value::String(id) => schema(case, id)?,
            parser => schema(case, &parser_text(parser, "schema"))?,
        }),
        type_for_version: !parser.get("typeForVersion").unwrap_or(&Value::Null).is_null()
            && parser.get("typeForVersion") != Some(&json!(false)),
        type_name: parser_text(parser, "type"),
        accepted: accepted_versions(input(case, "acceptedVersions"))
            .or_else(|| accepted_versions(input(case, "converter").get("versions").unwrap_or(&Value::Null))),
    };
    let mut ignored = BTreeMap::new();
    for (version, entry) in input(case, "ignoredFields").as_object().into_iter().flatten() {
        ignored.insert(version.clone(), Ignored::Fields(read_set(entry)?));
    }
    for (version, entry) in input(case, "ignoreFilter").as_object().into_iter().flatten() {
        ignored.insert(version.clone(), filter(entry)?);
    }
    Ok((converter, ignored))
}

/// A list of accepted versions; `None` if all are.
fn accepted_versions(value: &Value) -> Option<BTreeSet<String>> {
    let list = value.as_array()?;
    Some(list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

/// A step that changes the live object.
struct Request<'a> {
    op: &'a str,
    manager: &'a str,
    new: Versioned<'a>,
}

impl Request<'_> {
    /// The new live object, if it changes, and its managers. `exists` is false for the first step.
    fn run(
        &self,
        updater: &Updater<'_>,
        live: Versioned<'_>,
        exists: bool,
        managers: &Managers,
    ) -> Result<(Option<Value>, Managers), ApplyError> {
        let typing = || {
            let typing = updater.versions.typing(self.new.version);
            typing.map_err(|_| ApplyError::Conversion("no such version".to_owned()))
        };
        match self.op {
            "Update" => {
                let typing = typing()?;
                apply::validate(&typing.types, &typing.root, self.new.object, true)?;
                let managers = updater.update(live, self.new, managers, self.manager)?;
                Ok((Some(self.new.object.clone()), managers))
            }
            "ExtractApply" => {
                let applied = match managers.get(self.manager).filter(|_| exists) {
                    Some(owned) => {
                        let extracted = updater.extracted(live, owned, true)?;
                        let typing = typing()?;
                        apply::merge(&typing.types, &typing.root, &extracted, self.new.object)?
                    }
                    None => self.new.object.clone(),
                };
                let applied = Versioned { object: &applied, version: self.new.version };
                updater.apply(live, applied, managers, self.manager, true)
            }
            op => updater.apply(live, self.new, managers, self.manager, op == "ForceApply"),
        }
    }
}

/// The conflicts that a step expects: manager and path.
fn wanted_conflicts(step: &Value) -> BTreeSet<(String, String)> {
    let text = |conflict: &Value, key: &str| conflict.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let wanted = step.get("wantConflicts").and_then(Value::as_array).into_iter().flatten();
    wanted.map(|conflict| (text(conflict, "manager"), text(conflict, "path"))).collect()
}

fn script(case: &Case) -> Verdict {
    let (mut converter, ignored) = schemas(case)?;
    let return_unchanged = input(case, "returnInputOnNoop").as_bool().unwrap_or_default();
    // Run the steps on the live object and its managers.
    let mut live: Option<(Value, String)> = None;
    let mut managers = Managers::new();
    let mut failure: Option<String> = None;
    for (number, step) in input(case, "steps").as_array().into_iter().flatten().enumerate() {
        let field = |key: &str| step.get(key).and_then(Value::as_str).unwrap_or_default();
        let op = field("op");
        match op {
            "ChangeSchema" => {
                let parser = step.get("parser").unwrap_or(step);
                let id = match parser.get("schema").and_then(Value::as_str) {
                    Some(id) => id.to_owned(),
                    None => return Err(format!("step {number}: {step} has no schema")),
                };
                converter.types = Arc::new(schema(case, &id)?);
                continue;
            }
            "AcceptVersions" => {
                converter.accepted =
                    accepted_versions(step.get("versions").or(step.get("acceptedVersions")).unwrap_or(&Value::Null));
                continue;
            }
            _ => {}
        }
        let version = field("apiVersion").to_owned();
        let manager = field("manager");
        let null = Value::Null;
        let object = step.get("object").unwrap_or(&null);
        // Convert the live object to the version of the request.
        if let Some((object, live_version)) = &live
            && *live_version != version
        {
            match converter.convert(object, live_version, &version) {
                Ok(object) => live = Some((object, version.clone())),
                Err(error) => {
                    failure = Some(format!("step {number}: {error:?}"));
                    break;
                }
            }
        }
        let (live_object, live_version) = live.clone().unwrap_or((Value::Null, version.clone()));
        let live_here = Versioned { object: &live_object, version: &live_version };
        let updater = Updater { versions: &converter, ignored: &ignored, return_unchanged };
        let request = Request { op, manager, new: Versioned { object, version: &version } };
        match request.run(&updater, live_here, live.is_some(), &managers) {
            Ok((object, new_managers)) => {
                let wanted = wanted_conflicts(step);
                if !wanted.is_empty() {
                    return Err(format!("step {number}: want conflicts {wanted:?}, got none"));
                }
                if let Some(object) = object {
                    live = Some((object, version));
                }
                managers = new_managers;
            }
            Err(ApplyError::Conflicts(conflicts)) if !wanted_conflicts(step).is_empty() => {
                let got: BTreeSet<(String, String)> =
                    conflicts.iter().map(|c| (c.manager.clone(), apply::path_text(&c.path))).collect();
                let wanted = wanted_conflicts(step);
                if got != wanted {
                    return Err(format!("step {number}: conflicts: got {got:?}, want {wanted:?}"));
                }
            }
            Err(error) => {
                failure = Some(format!("step {number}: {error}"));
                break;
            }
        }
        // Report the first step that differs.
        let observed = case.data["observed"].pointer(&format!("/afterStep/{number}/live"));
        if let (Some((got, _)), Some(wanted)) = (&live, observed)
            && !same(got, wanted)
        {
            return Err(format!("live object after step {number}: got {got}, want {wanted}"));
        }
    }
    // Compare the error, the live object and its managers.
    match (failure, wants_error(case)) {
        (Some(_), true) => return Ok(()),
        (None, true) => return Err("want an error, got none".to_owned()),
        (Some(failure), false) => return Err(failure),
        (None, false) => {}
    }
    if !want(case, "object").is_null() {
        let (object, version) = live.ok_or("object: got none")?;
        let wanted_version = want(case, "apiVersion").as_str().unwrap_or(&version);
        let object = if wanted_version == version {
            object
        } else {
            converter.convert(&object, &version, wanted_version).map_err(|e| format!("{e:?}"))?
        };
        equal("object", &object, want(case, "object"))?;
    }
    compare_managers(case, &managers)
}

/// Compares the managers at the end with the expected ones. None may have an empty entry.
fn compare_managers(case: &Case, managers: &Managers) -> Verdict {
    if !want(case, "managed").is_null() {
        let wanted = read_managers(want(case, "managed"))?;
        let show = |managers: &Managers| {
            let entry = |(name, owned): (&String, &Owned)| {
                format!("{name}@{}: {}", owned.version, owned.set.to_fields_v1_text())
            };
            managers.iter().map(entry).collect::<Vec<_>>().join("; ")
        };
        let equal = wanted.len() == managers.len()
            && wanted.iter().all(|(name, wanted)| {
                managers.get(name).is_some_and(|got| got.set == wanted.set && got.version == wanted.version)
            });
        if !equal {
            return Err(format!("managed: got {}\nwant {}", show(managers), show(&wanted)));
        }
    }
    match managers.iter().find(|(_, owned)| owned.set.is_empty()) {
        Some((name, _)) => Err(format!("manager {name} owns no fields, but has an entry")),
        None => Ok(()),
    }
}
