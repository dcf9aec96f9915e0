//! Suites of the folder `apiserver` that need no server: custom resources and their schemas,
//! metadata, list options and tables.

use std::sync::Arc;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::schema::structural::{self, Exceptions};
use berth_apimachinery::schema::{CoerceOptions, Root, Schema, coerce_metadata, decode_metadata};
use berth_apimachinery::table::{Column, CustomColumn, IncludeObject, custom_cells, row, table};
use berth_apimachinery::{meta, names, selector, validation};
use serde_json::{Map, Value, json};

use super::{equal, input, input_text, same, want};
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "cr-validate" | "cr-validate-update" => validate,
        "list-type" => list_type,
        "embedded-resource-validate" | "objectmeta-validate" => embedded,
        "schema-defaulting" => defaulting,
        "schema-prune-nulls" => prune_nulls,
        "schema-pruning" => pruning,
        "objectmeta-coerce" => coerce,
        "objectmeta-decode" => decode,
        "printer-columns" => columns,
        "equal-ignoring-managed-fields" => equal_ignoring,
        "namespace-matches-request" => namespace,
        "meta-v1-options" => options,
        "object-meta" => object_meta,
        "list-options" => list_options,
        "structural-schema" | "structural-completeness" => structural_schema,
        _ => return None,
    })
}

fn schema(case: &Case) -> Result<Arc<Schema>, String> {
    match input(case, "schema") {
        Value::Null => Schema::parse_crd(&json!({})),
        schema => Schema::parse_crd(schema),
    }
    .map_err(|e| e.to_string())
}

fn is_root(case: &Case) -> bool {
    input(case, "isResourceRoot").as_bool().unwrap_or_default()
}

/// Compares errors in any order, by type, field and detail. A detail that quotes a Go library's
/// error is not compared.
pub fn errors(case: &Case, got: &[Error]) -> Verdict {
    let wanted = want(case, "errors").as_array().cloned().unwrap_or_default();
    let mut left: Vec<&Error> = got.iter().collect();
    for wanted in &wanted {
        let text = |key: &str| wanted[key].as_str().unwrap_or_default();
        let foreign = ["parsing regexp", "json: cannot unmarshal", "compilation failed"]
            .iter()
            .any(|part| text("detail").contains(part));
        let found = left.iter().position(|error| {
            error.kind.reason() == text("type")
                && error.field == text("field")
                && (foreign || error.detail == text("detail"))
        });
        match found {
            Some(at) => {
                left.remove(at);
            }
            None => {
                let got: Vec<String> = got.iter().map(ToString::to_string).collect();
                return Err(format!("missing {}\ngot {got:?}", wanted["error"]));
            }
        }
    }
    match left.first() {
        None => Ok(()),
        Some(error) => Err(format!("unexpected error: {error}")),
    }
}

/// Compares validation by the schema. CEL rules have suites of their own.
fn validate(case: &Case) -> Verdict {
    let schema = schema(case)?;
    let prefix = input_text(case, "path");
    let path = if prefix.is_empty() { Path::root() } else { Path::new(prefix) };
    let object = input(case, "object");
    let got = match case.input.get("oldObject") {
        Some(old) => schema.validate_update(object, old, &path),
        None => schema.validate(object, &path),
    };
    errors(case, &got)
}

fn list_type(case: &Case) -> Verdict {
    let prefix = input_text(case, "path");
    let path = if prefix.is_empty() { Path::root() } else { Path::new(prefix) };
    errors(case, &schema(case)?.validate_lists(input(case, "object"), &path))
}

fn embedded(case: &Case) -> Verdict {
    let prefix = input_text(case, "path");
    let path = if prefix.is_empty() { Path::root() } else { Path::new(prefix) };
    let root = if is_root(case) { Root::Resource } else { Root::Value };
    errors(case, &schema(case)?.validate_embedded(input(case, "object"), root, &path))
}

fn defaulting(case: &Case) -> Verdict {
    let mut object = input(case, "object").clone();
    schema(case)?.apply_defaults(&mut object);
    equal("object", &object, want(case, "object"))
}

fn prune_nulls(case: &Case) -> Verdict {
    let mut object = input(case, "object").clone();
    schema(case)?.drop_nulls(&mut object);
    equal("object", &object, want(case, "object"))
}

fn pruning(case: &Case) -> Verdict {
    let mut object = input(case, "object").clone();
    let root = if is_root(case) { Root::Resource } else { Root::Value };
    let mut unknown = schema(case)?.prune(&mut object, root);
    unknown.sort();
    equal("object", &object, want(case, "object"))?;
    equal("unknownFields", &json!(unknown), want(case, "unknownFields"))
}

fn coerce(case: &Case) -> Verdict {
    let mut object = input(case, "object").clone();
    let options = CoerceOptions {
        is_resource_root: is_root(case),
        drop_invalid_fields: input(case, "dropInvalidFields").as_bool().unwrap_or_default(),
    };
    let schema = schema(case)?;
    let wanted_error = !want(case, "error").is_null();
    match coerce_metadata(Some(&schema), &mut object, options) {
        Ok(_) if wanted_error => Err(format!("want error {}, got none", want(case, "error"))),
        Ok(unknown) => {
            equal("object", &object, want(case, "object"))?;
            let mut wanted: Vec<String> = want(case, "unknownFields")
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect();
            wanted.sort();
            equal("unknownFields", &json!(unknown), &json!(wanted))
        }
        Err(_) if wanted_error => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn decode(case: &Case) -> Verdict {
    let options = input(case, "opts");
    let drop = options.get("dropMalformedFields").and_then(Value::as_bool).unwrap_or_default();
    let report = options.get("returnUnknownFieldPaths").and_then(Value::as_bool).unwrap_or_default();
    let metadata = input(case, "object").get("metadata");
    equal("found", &json!(metadata.is_some()), want(case, "found"))?;
    let fields = metadata.and_then(Value::as_object).cloned().unwrap_or_else(Map::new);
    match decode_metadata(fields, drop) {
        Err(error) => match want(case, "err").as_str() {
            Some(wanted) => equal("err", &json!(error), &json!(wanted)),
            None => Err(error),
        },
        Ok(_) if !want(case, "err").is_null() => Err(format!("want error {}, got none", want(case, "err"))),
        Ok((decoded, unknown)) => {
            let wanted = want(case, "metadata");
            let wanted = if wanted.is_null() { json!({}) } else { wanted.clone() };
            equal("metadata", &Value::Object(decoded), &wanted)?;
            let unknown: Vec<String> =
                unknown.into_iter().filter(|_| report).map(|field| format!("metadata.{field}")).collect();
            equal("unknownFields", &json!(unknown), wanted_or_empty(want(case, "unknownFields")))
        }
    }
}

fn wanted_or_empty(value: &Value) -> &Value {
    static EMPTY: Value = Value::Array(Vec::new());
    if value.is_null() { &EMPTY } else { value }
}

fn columns(case: &Case) -> Verdict {
    let headers = input(case, "headers").as_array().cloned().unwrap_or_default();
    let text = |header: &Value, key: &str| header[key].as_str().unwrap_or_default().to_owned();
    let column = |header: &Value| Column {
        name: text(header, "name"),
        column_type: text(header, "type"),
        format: text(header, "format"),
        description: text(header, "description"),
        priority: header["priority"].as_i64().unwrap_or_default(),
    };
    let definitions: Vec<Column> = headers.iter().map(column).collect();
    let paths = input(case, "additionalColumnJSONPaths").as_array().cloned().unwrap_or_default();
    let columns: Vec<CustomColumn> = definitions
        .iter()
        .skip(1)
        .zip(&paths)
        .map(|(column, path)| {
            CustomColumn::new(column.clone(), path.as_str().unwrap_or_default()).map_err(|e| e.to_string())
        })
        .collect::<Result<_, _>>()?;
    let object = input(case, "object");
    let now = "2026-01-01T00:00:00Z".parse().map_err(|e| format!("{e}"))?;
    let objects: Vec<&Value> = match object.get("items").and_then(Value::as_array) {
        Some(items) => items.iter().collect(),
        None => vec![object],
    };
    let rows = objects
        .into_iter()
        .map(|object| row(custom_cells(&columns, object, now), object, IncludeObject::Object))
        .collect();
    let wanted = want(case, "table");
    let with_headers = !wanted["columnDefinitions"].is_null();
    let mut got = table(&definitions, rows, wanted["metadata"].clone(), with_headers);
    if !with_headers {
        got["columnDefinitions"] = Value::Null;
    }
    for key in ["kind", "apiVersion"] {
        got.as_object_mut().map(|got| got.remove(key));
    }
    let mut wanted = wanted.clone();
    for key in ["kind", "apiVersion"] {
        wanted.as_object_mut().map(|wanted| wanted.remove(key));
    }
    if same(&got, &wanted) { Ok(()) } else { Err(format!("got {got}\nwant {wanted}")) }
}

fn equal_ignoring(case: &Case) -> Verdict {
    let got = meta::equal_ignoring_managed_fields(input(case, "a"), input(case, "b"));
    equal("want", &json!(got), want(case, "want")).or_else(|error| {
        // Some cases record the boolean without a field name.
        if *case.want.whole() == json!(got) { Ok(()) } else { Err(error) }
    })
}

fn namespace(case: &Case) -> Verdict {
    let mut object = json!({"metadata": {}});
    meta::set(&mut object, "namespace", input_text(case, "objNS"));
    let fails = match want(case, "expectErr") {
        Value::Null => false,
        Value::Bool(fails) => *fails,
        _ => true,
    };
    match validation::match_namespace(&mut object, input_text(case, "reqNS")) {
        Ok(()) if !fails => equal(
            "expectObjNS",
            &json!(meta::namespace(&object)),
            &json!(want(case, "expectObjNS").as_str().unwrap_or_default()),
        ),
        Err(_) if fails => Ok(()),
        result => Err(format!("got {result:?}")),
    }
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn options(case: &Case) -> Verdict {
    let map = case.input.whole().as_object().cloned().unwrap_or_default();
    let has = |key: &str| map.contains_key(key);
    let got = if has("labelSelector") {
        selector::validate_object(input(case, "labelSelector"), &Path::new("labelSelector"))
    } else if has("patchType") {
        let options = input(case, "opts");
        validation::validate_patch_options(
            input_text(case, "patchType").starts_with("application/apply-patch"),
            options.get("force").and_then(Value::as_bool),
            options.get("fieldManager").and_then(Value::as_str).unwrap_or_default(),
            &texts(options.get("dryRun").unwrap_or(&Value::Null)),
        )
    } else if has("dryRun") {
        validation::validate_dry_run(&texts(input(case, "dryRun")), &Path::new("dryRun"))
    } else if has("fieldManager") {
        validation::validate_field_manager(input_text(case, "fieldManager"), &Path::new("fieldManager"))
    } else if has("managedFields") {
        validation::validate_managed_fields(input(case, "managedFields"), &Path::new("managedFields"))
    } else if has("conditions") {
        let mut errors = validation::validate_conditions(input(case, "conditions"), &Path::new("status.conditions"));
        // Cases about the reason omit other required fields of the condition.
        if case.name.contains("reason") {
            errors.retain(|error| error.field.ends_with(".reason"));
        }
        errors
    } else if has("labels") {
        validation::validate_labels(input(case, "labels"), &Path::new("field"))
    } else if has("opts") {
        validation::validate_delete_options(input(case, "opts"))
    } else {
        return Err(format!("unknown input {:?}", map.keys()));
    };
    check(case, &got)
}

/// Compares validation errors with the expectation, which suites record in different fields.
fn check(case: &Case, got: &[Error]) -> Verdict {
    let shown: Vec<String> = got.iter().map(ToString::to_string).collect();
    let fits = if let Some(valid) = want(case, "valid").as_bool() {
        valid == got.is_empty()
    } else if let Some(count) = want(case, "wantErrorNumber").as_u64() {
        count as usize == got.len()
    } else if let Some(wanted) = want(case, "expectedErrs").as_array().or(want(case, "expectErrors").as_array()) {
        wanted.len() == shown.len() && wanted.iter().all(|wanted| shown.iter().any(|shown| wanted == shown))
    } else if let Some(part) = want(case, "expectedErr").as_str() {
        if part.is_empty() { got.is_empty() } else { shown.iter().any(|shown| shown.contains(part)) }
    } else if let Some(part) = want(case, "expect").as_str() {
        shown.iter().any(|shown| shown.contains(part))
    } else if let Some(wanted) = want(case, "expectedErrors").as_array() {
        wanted.len() == shown.len()
            && wanted.iter().all(|wanted| shown.iter().any(|shown| wanted["error"] == json!(shown)))
    } else if case.data["upstreamTest"] == "TestValidateAnnotations" {
        // Recorded without an expectation. The annotations of these cases are one byte too large.
        !got.is_empty()
    } else if let Some(fails) = want(case, "expectError").as_bool() {
        // Compare the message too, if one is expected.
        let part = want(case, "expectedErrorMessage").as_str().unwrap_or_default();
        fails != got.is_empty() && (part.is_empty() || shown.iter().any(|shown| shown.contains(part)))
    } else if case.want.whole().as_object().is_some_and(Map::is_empty) {
        got.is_empty()
    } else {
        return Err(format!("unknown form of expectation {}, got {shown:?}", case.want.whole()));
    };
    if fits { Ok(()) } else { Err(format!("got {shown:?}, want {}", case.want.whole())) }
}

fn object_meta(case: &Case) -> Verdict {
    let map = case.input.whole().as_object().cloned().unwrap_or_default();
    let path = Path::new("field");
    let got = if map.contains_key("new") {
        // Go's zero time was recorded as null. An object that is not being deleted has no such
        // field.
        let timed = |metadata: &Value| {
            let mut metadata = metadata.clone();
            if metadata.get("deletionTimestamp").is_some_and(Value::is_null) {
                metadata["deletionTimestamp"] = json!("0001-01-01T00:00:00Z");
            }
            metadata
        };
        // Validation does not change the new object.
        let new = input(case, "new");
        if let Some(wanted) = case.want.get("expectedNew") {
            equal("new", new, wanted)?;
        }
        validation::validate_object_meta_update(&timed(new), &timed(input(case, "old")), &path)
    } else if map.contains_key("objectMeta") {
        validation::validate_object_meta(input(case, "objectMeta"), false, names::is_dns1123_subdomain, &path)
    } else if map.contains_key("ownerReferences") {
        validation::validate_owner_references(input(case, "ownerReferences"), &path)
    } else if map.contains_key("annotations") {
        validation::validate_annotations(input(case, "annotations"), &path)
    } else {
        // Otherwise the input is a map of annotations.
        validation::validate_annotations(case.input.whole(), &path)
    };
    check(case, &got)
}

fn list_options(case: &Case) -> Verdict {
    let options = input(case, "opts");
    let text = |key: &str| options.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let options = validation::ListOptions {
        watch: options.get("watch").and_then(Value::as_bool).unwrap_or_default(),
        resource_version: text("resourceVersion"),
        resource_version_match: text("resourceVersionMatch"),
        continue_token: text("continue"),
        send_initial_events: options.get("sendInitialEvents").and_then(Value::as_bool),
    };
    let watch_list = input(case, "watchListFeatureEnabled").as_bool().unwrap_or_default();
    check(case, &validation::validate_list_options(&options, watch_list))
}

fn structural_schema(case: &Case) -> Verdict {
    let opts = input(case, "opts");
    let option = |key: &str| opts.get(key).and_then(Value::as_bool).unwrap_or_default();
    let exceptions = Exceptions {
        properties_by_additional: option("allowValidationPropertiesWithAdditionalProperties"),
        nested_additional_properties: option("allowNestedAdditionalProperties"),
        nested_rules: option("allowNestedXValidations"),
    };
    // Some cases validate a whole definition. The path of its schema is not among the inputs.
    let wanted = want(case, "errors").as_array().cloned().unwrap_or_default();
    let prefixed =
        wanted.iter().any(|error| error["field"].as_str().unwrap_or_default().starts_with("spec.validation"));
    let path = if prefixed { Path::new("spec.validation.openAPIV3Schema") } else { Path::root() };
    let mut got = structural::check_structural(input(case, "schema"), exceptions, &path);
    if case.suite == "structural-completeness" {
        // This suite has parts of schemas: compare the errors about fields that must be specified.
        got.retain(|error| error.detail.starts_with("because"));
    }
    errors(case, &got)
}
