//! Suites of names, metadata, request options, selectors and error texts.

use berth_apimachinery::deletion::{self, Deletion};
use berth_apimachinery::field::{Error, ErrorKind, Path};
use berth_apimachinery::selector::{self, FieldSelector, LabelSelector, Operator, Requirement};
use berth_apimachinery::status::Status;
use berth_apimachinery::validation::{self, ListOptions};
use berth_apimachinery::{meta, names, revision, rules};
use serde_json::{Map, Value, json};

use super::{equal, input, input_text, outcome, same, want};
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "validate-string" => string,
        "validate-meta" => metadata,
        "validate-list-options" => list_options,
        "field-error-text" => error_text,
        "status-invalid" => status_invalid,
        "status-conditions" => status_conditions,
        "request-namespace" => request_namespace,
        "dedup-owner-references" => dedup_owners,
        "label-selector-parse" => label_parse,
        "label-selector-to-map" => label_to_map,
        "label-requirement" => label_requirement,
        "label-selector-match" => label_match,
        "label-selector-object" => label_object,
        "field-selector" => field_selector,
        "selection-predicate" => predicate,
        "continue-token" => continue_token,
        "storage-list-options" => storage_list,
        "graceful-delete" => graceful,
        "service-account-name" => service_account,
        "webhook-rules" | "webhook-rule-match" | "webhook-rule-parts" => webhook_rule,
        _ => return None,
    })
}

fn string(case: &Case) -> Verdict {
    let value = input(case, "value");
    let text = value.as_str().unwrap_or_default();
    let number = value.as_i64().unwrap_or_default();
    let messages = match input_text(case, "validator") {
        "c-identifier" => names::is_c_identifier(text),
        "cidr" => names::is_cidr(text),
        "config-map-key" => names::is_config_map_key(text),
        "decimal-integer" => names::is_decimal_integer(text),
        "dns1035-label" => names::is_dns1035_label(text),
        "dns1123-label" => names::is_dns1123_label(text),
        "dns1123-subdomain" => names::is_dns1123_subdomain(text),
        "dns1123-subdomain-caseless" => names::is_dns1123_subdomain_caseless(text),
        "dns1123-subdomain-underscore" => names::is_dns1123_subdomain_with_underscore(text),
        "domain-prefixed-key" => names::is_domain_prefixed_key(text),
        "domain-prefixed-path" => names::is_domain_prefixed_path(text),
        "fully-qualified-domain-name" => names::is_fully_qualified_domain_name(text),
        "fully-qualified-name" => names::is_fully_qualified_name(text),
        "group-id" => names::is_group_id(number),
        "http-header-name" => names::is_http_header_name(text),
        "ip" => names::is_ip(text),
        "label-value" => names::is_label_value(text),
        "path-segment-name" => names::is_path_segment_name(text),
        "path-segment-prefix" => names::is_path_segment_prefix(text),
        "percent" => names::is_percent(text),
        "port-name" => names::is_port_name(text),
        "port-number" => names::is_port_number(number),
        "qualified-name" => names::is_qualified_name(text),
        "relaxed-env-var-name" => names::is_env_var_name(text),
        "user-id" => names::is_user_id(number),
        "wildcard-dns1123-subdomain" => names::is_wildcard_dns1123_subdomain(text),
        other => return Err(format!("unknown validator {other}")),
    };
    // An empty message means that the value is required. Callers of the validator report it so.
    let messages: Vec<String> =
        messages.into_iter().map(|text| if text.is_empty() { "Required value".to_owned() } else { text }).collect();
    if let Some(part) = want(case, "messageContains").as_str()
        && !messages.iter().any(|message| message.contains(part))
    {
        return Err(format!("want a message with {part:?}, got {messages:?}"));
    }
    equal(&format!("valid ({messages:?})"), &json!(messages.is_empty()), want(case, "valid"))
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn check_errors(case: &Case, errors: &[Error]) -> Verdict {
    let shown: Vec<String> = errors.iter().map(ToString::to_string).collect();
    if let Some(valid) = want(case, "valid").as_bool()
        && valid != errors.is_empty()
    {
        return Err(format!("valid: want {valid}, got {shown:?}"));
    }
    if let Some(part) = want(case, "messageContains").as_str().or(want(case, "errorContains").as_str()) {
        let fits = if part.is_empty() { shown.is_empty() } else { shown.iter().any(|text| text.contains(part)) };
        if !fits {
            return Err(format!("want {part}, got {shown:?}"));
        }
    }
    if let Some(wanted) = want(case, "errors").as_array() {
        let fits = wanted.len() == errors.len()
            && wanted.iter().all(|wanted| match wanted {
                Value::String(text) => shown.contains(text),
                wanted => errors.iter().any(|error| {
                    let detail = wanted["detail"].as_str().unwrap_or_default();
                    wanted["type"] == error.kind.reason()
                        && wanted["field"] == error.field
                        && (detail.is_empty() || detail == error.detail)
                }),
            });
        if !fits {
            return Err(format!("want {wanted:?}, got {shown:?}"));
        }
    }
    Ok(())
}

fn metadata(case: &Case) -> Verdict {
    let value = input(case, "value");
    let options = input(case, "options");
    let path = Path::new("field");
    let errors = match input_text(case, "kind") {
        "labels" => validation::validate_labels(value, &path),
        "annotations" => validation::validate_annotations(value, &path),
        "managedFields" => validation::validate_managed_fields(value, &path),
        "ownerReferences" => validation::validate_owner_references(value, &path),
        "fieldManager" => {
            validation::validate_field_manager(value.as_str().unwrap_or_default(), &Path::new("fieldManager"))
        }
        "dryRun" => validation::validate_dry_run(&texts(value), &Path::new("dryRun")),
        "deleteOptions" => validation::validate_delete_options(options),
        "patchOptions" => validation::validate_patch_options(
            input_text(case, "patchType").starts_with("application/apply-patch"),
            options.get("force").and_then(Value::as_bool),
            options.get("fieldManager").and_then(Value::as_str).unwrap_or_default(),
            &texts(options.get("dryRun").unwrap_or(&Value::Null)),
        ),
        "objectMetaUpdate" => validation::validate_object_meta_update(input(case, "new"), input(case, "old"), &path),
        "conditions" => {
            let errors = validation::validate_conditions(value, &Path::new("status.conditions"));
            let got: Vec<String> = errors.iter().map(|error| error.field.clone()).collect();
            let observed = case.data["observed"].as_array().cloned().unwrap_or_default();
            let wanted: Vec<String> =
                observed.iter().filter_map(|error| error["field"].as_str().map(str::to_owned)).collect();
            let (mut a, mut b) = (got, wanted);
            a.sort();
            b.sort();
            return if a == b { Ok(()) } else { Err(format!("fields: got {a:?}, want {b:?}")) };
        }
        other => return Err(format!("unknown kind {other}")),
    };
    check_errors(case, &errors)
}

fn list_options(case: &Case) -> Verdict {
    let options = input(case, "options");
    let text = |key: &str| options.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let options = ListOptions {
        watch: options.get("watch").and_then(Value::as_bool).unwrap_or_default(),
        resource_version: text("resourceVersion"),
        resource_version_match: text("resourceVersionMatch"),
        continue_token: text("continue"),
        send_initial_events: options.get("sendInitialEvents").and_then(Value::as_bool),
    };
    let errors =
        validation::validate_list_options(&options, input(case, "watchListEnabled").as_bool().unwrap_or_default());
    check_errors(case, &errors)
}

/// The error that a case describes. Its bad value must be JSON: Go values are not recorded.
fn described(error: &Value) -> Result<Error, String> {
    let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
    let kind = ErrorKind::from_reason(text("type")).ok_or(format!("{}: unknown type of error", text("type")))?;
    let bad_value = match error.get("badValue") {
        Some(Value::String(text)) if text == "<value omitted>" => None,
        // An omitted bad value is recorded as an empty object.
        Some(Value::Object(map)) if map.is_empty() && kind == ErrorKind::TooMany => None,
        other => other.cloned(),
    };
    Ok(Error { kind, field: text("field").to_owned(), bad_value, detail: text("detail").to_owned() })
}

fn error_text(case: &Case) -> Verdict {
    equal("text", &json!(described(case.input.whole())?.to_string()), want(case, "text"))
}

fn status_invalid(case: &Case) -> Verdict {
    let errors: Vec<Error> = match input(case, "error") {
        Value::Null => Vec::new(),
        error => vec![described(error)?],
    };
    let status =
        Status::invalid(&meta::GroupKind::new("", input_text(case, "kind")), input_text(case, "name"), &errors);
    equal("message", &json!(status.message), want(case, "message"))?;
    equal("code", &json!(status.code), want(case, "code"))?;
    equal("reason", &json!(status.reason), want(case, "reason"))?;
    let mut details = status.to_value()["details"].clone();
    for cause in details["causes"].as_array_mut().into_iter().flatten() {
        // The recorded causes have no message.
        cause.as_object_mut().map(|cause| cause.remove("message"));
    }
    if details["causes"].is_null() {
        details.as_object_mut().map(|details| details.remove("causes"));
    }
    equal("details", &details, want(case, "details"))
}

fn status_conditions(case: &Case) -> Verdict {
    let mut conditions = input(case, "conditions").as_array().cloned().unwrap_or_default();
    let removed = validation::remove_condition(&mut conditions, input_text(case, "conditionType"));
    equal("removed", &json!(removed), input(case, "expectRemoval"))?;
    equal("conditions", &Value::from(conditions), want(case, "conditions"))
}

fn request_namespace(case: &Case) -> Verdict {
    let mut object = json!({"metadata": {}});
    meta::set(&mut object, "namespace", input_text(case, "objectNamespace"));
    let result = validation::match_namespace(&mut object, input_text(case, "requestNamespace"));
    match outcome(case, result)? {
        Some(()) => equal("objectNamespace", &json!(meta::namespace(&object)), want(case, "objectNamespace")),
        None => Ok(()),
    }
}

fn dedup_owners(case: &Case) -> Verdict {
    let mut object = json!({"metadata": {"ownerReferences": input(case, "ownerReferences")}});
    meta::dedup_owner_references(&mut object);
    let wanted = case.want.get("ownerReferences").or(case.want.get("expected")).unwrap_or(&Value::Null);
    equal("ownerReferences", &object["metadata"]["ownerReferences"], wanted)
}

fn label_parse(case: &Case) -> Verdict {
    let parsed = LabelSelector::parse(input_text(case, "text"));
    equal(&format!("valid ({parsed:?})"), &json!(parsed.is_ok()), want(case, "valid"))?;
    let Ok(parsed) = parsed else { return Ok(()) };
    if !want(case, "string").is_null() {
        equal("string", &json!(parsed.to_string()), want(case, "string"))?;
    }
    let wanted = case.data["observed"].get("requirements").and_then(Value::as_array);
    if let Some(wanted) = wanted {
        let got: Vec<Value> = parsed
            .requirements()
            .iter()
            .map(|r| json!({"key": r.key(), "operator": r.operator().name(), "values": r.values()}))
            .collect();
        if !same(&Value::from(got.clone()), &Value::from(wanted.clone())) {
            return Err(format!("requirements: got {got:?}, want {wanted:?}"));
        }
    }
    if let Some(other) = want(case, "equalsSelector").as_str() {
        // Selectors print sorted by key, so that equal selectors have equal texts. A single empty
        // value prints as `x in ()`.
        let equal_texts = parsed.to_string() == other;
        equal("equal", &json!(equal_texts), want(case, "equal"))?;
    }
    Ok(())
}

fn label_to_map(case: &Case) -> Verdict {
    match outcome(case, selector::parse_equalities(input_text(case, "text")))? {
        Some(got) => equal("labels", &json!(got), want(case, "labels")),
        None => Ok(()),
    }
}

fn label_requirement(case: &Case) -> Verdict {
    let Some(operator) = Operator::from_name(input_text(case, "operator")) else {
        let wanted = want(case, "errors").as_array().map_or(0, Vec::len);
        return if wanted > 0 { Ok(()) } else { Err("unknown operator".to_owned()) };
    };
    let result = Requirement::new(input_text(case, "key"), operator, texts(input(case, "values")), &Path::root());
    check_errors(case, &result.err().unwrap_or_default())
}

fn label_match(case: &Case) -> Verdict {
    let empty = Map::new();
    let labels = input(case, "labels").as_object().unwrap_or(&empty);
    if let Some(set) = input(case, "set").as_object() {
        let matches = set.iter().all(|(key, value)| labels.get(key) == Some(value));
        return equal("matches", &json!(matches), want(case, "matches"));
    }
    if input(case, "selector").is_null() {
        let mut pairs: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
        pairs.sort();
        return equal("string", &json!(pairs.join(",")), want(case, "string"));
    }
    let parsed = LabelSelector::parse(input_text(case, "selector")).map_err(|e| e.to_string())?;
    if let Some(label) = input(case, "label").as_str() {
        let exact = parsed.exact(label);
        equal("exactMatch", &json!(exact.is_some()), want(case, "exactMatch"))?;
        return equal("value", &json!(exact.unwrap_or_default()), want(case, "value"));
    }
    if !want(case, "string").is_null() {
        return equal("string", &json!(parsed.to_string()), want(case, "string"));
    }
    equal("matches", &json!(parsed.matches(labels)), want(case, "matches"))
}

fn label_object(case: &Case) -> Verdict {
    let object = input(case, "labelSelector");
    match input_text(case, "op") {
        "asMap" => {
            let result = selector::object_as_map(object);
            match (result, want(case, "error").as_str()) {
                (Ok(got), None) => equal("labels", &json!(got), want(case, "labels")),
                (Err(error), Some(part)) if error.to_string().contains(part) => Ok(()),
                (result, wanted) => Err(format!("got {result:?}, want {wanted:?}")),
            }
        }
        "validate" => {
            let errors = selector::validate_object(object, &Path::new("labelSelector"));
            equal("errorCount", &json!(errors.len()), want(case, "errorCount"))
        }
        _ => {
            let Some(got) = outcome(case, LabelSelector::from_object(object))? else { return Ok(()) };
            equal("selector", &json!(got.to_string()), want(case, "selector"))?;
            equal("nothing", &json!(got.is_nothing()), &json!(want(case, "nothing").as_bool().unwrap_or_default()))
        }
    }
}

fn lookup<'a>(fields: &'a Value) -> impl Fn(&str) -> Option<&'a str> {
    move |name| fields.get(name)?.as_str()
}

fn field_selector(case: &Case) -> Verdict {
    let text = input_text(case, "text");
    match input_text(case, "op") {
        "match" => {
            let parsed = FieldSelector::parse(input_text(case, "selector")).map_err(|e| e.to_string())?;
            equal("matches", &json!(parsed.matches(lookup(input(case, "fields")))), want(case, "matches"))
        }
        "matchSet" => {
            let labels = input(case, "labels");
            let set = input(case, "set").as_object().into_iter().flatten();
            let matches = set.into_iter().all(|(key, value)| labels.get(key) == Some(value));
            equal("matches", &json!(matches), want(case, "matches"))
        }
        "parse" => {
            let parsed = FieldSelector::parse(text);
            equal(&format!("valid ({parsed:?})"), &json!(parsed.is_ok()), want(case, "valid"))?;
            match parsed {
                Ok(parsed) if !want(case, "string").is_null() => {
                    equal("string", &json!(parsed.to_string()), want(case, "string"))
                }
                _ => Ok(()),
            }
        }
        "escape" => equal("escaped", &json!(selector::escape_value(text)), want(case, "escaped")),
        "unescape" => match outcome(case, selector::unescape_value(text))? {
            Some(got) => {
                let wanted = case.want.get("unescaped").or(case.want.get("text"));
                wanted.map_or(Ok(()), |wanted| equal("unescaped", &json!(got), wanted))
            }
            None => Ok(()),
        },
        "splitTerms" => equal("terms", &json!(selector::split_terms(text)), want(case, "terms")),
        "splitTerm" => match selector::split_term(text) {
            Some((lhs, op, rhs)) => {
                equal("term", &json!({"lhs": lhs, "op": op, "rhs": rhs, "ok": true}), case.want.whole())
            }
            None => equal("ok", &json!(false), want(case, "ok")),
        },
        "exactMatch" => {
            let parsed = FieldSelector::parse(input_text(case, "selector")).map_err(|e| e.to_string())?;
            let exact = parsed.exact(input_text(case, "field"));
            equal("found", &json!(exact.is_some()), want(case, "found"))?;
            equal("value", &json!(exact.unwrap_or_default()), want(case, "value"))
        }
        other => Err(format!("unknown op {other}")),
    }
}

fn predicate(case: &Case) -> Verdict {
    let labels = LabelSelector::parse(input_text(case, "labelSelector")).map_err(|e| e.to_string())?;
    let fields = FieldSelector::parse(input_text(case, "fieldSelector")).map_err(|e| e.to_string())?;
    let either = |a: &str, b: &str| {
        let wanted = want(case, a);
        if wanted.is_null() { want(case, b).clone() } else { wanted.clone() }
    };
    if !either("matches", "shouldMatch").is_null() {
        // An object without attributes does not match: upstream failed to read them.
        let matches = input(case, "labels").as_object().is_some_and(|have| labels.matches(have))
            && fields.matches(lookup(input(case, "fields")));
        equal("matches", &json!(matches), &either("matches", "shouldMatch"))?;
        let name = fields.exact("metadata.name").unwrap_or_default();
        return equal("singleName", &json!(name), &either("singleName", "matchSingleKey"));
    }
    if let Some(expected) = want(case, "expected").as_array() {
        let namespace = input(case, "requestInfo").get("namespace").and_then(Value::as_str).filter(|ns| !ns.is_empty());
        let mut index = Vec::new();
        for field in texts(input(case, "indexFields")) {
            let value = fields.exact(&field).or(namespace.filter(|_| field == "metadata.namespace"));
            index.extend(value.map(|value| json!({"indexName": format!("f:{field}"), "value": value})));
        }
        for label in texts(input(case, "indexLabels")) {
            index.extend(labels.exact(&label).map(|value| json!({"indexName": format!("l:{label}"), "value": value})));
        }
        return equal("expected", &Value::from(index), &Value::from(expected.clone()));
    }
    if case.want.whole().as_object().is_some_and(Map::is_empty) {
        let indexed = texts(input(case, "indexFields")).iter().any(|field| fields.exact(field).is_some())
            || texts(input(case, "indexLabels")).iter().any(|label| labels.exact(label).is_some());
        return if indexed { Err("want no index, got one".to_owned()) } else { Ok(()) };
    }
    let mut index = Vec::new();
    for field in texts(input(case, "indexFields")) {
        // The namespace of the request applies if the selector has none.
        let value = fields.exact(&field).or((field == "metadata.namespace").then_some("default"));
        index.extend(value.map(|value| json!({"index": format!("f:{field}"), "value": value})));
    }
    for label in texts(input(case, "indexLabels")) {
        let exact = labels.exact(&label);
        index.extend(exact.map(|value| json!({"index": format!("l:{label}"), "value": value})));
    }
    equal("index", &Value::from(index), want(case, "index"))
}

/// Text that the error must contain. Suites record it under different keys.
fn wanted_error(case: &Case) -> Option<&str> {
    ["error", "err", "expectedError", "expectErr"]
        .into_iter()
        .find_map(|key| want(case, key).as_str())
        .filter(|e| !e.is_empty())
}

fn continue_token(case: &Case) -> Verdict {
    let token = input(case, "continueValue").as_str().or(input(case, "token").as_str()).unwrap_or_default();
    if input_text(case, "operation") == "encode" {
        return Err("cases of encoding were recorded without inputs".to_owned());
    }
    match (revision::Continue::decode(token, input_text(case, "keyPrefix")), wanted_error(case)) {
        (Ok(got), None) => {
            let key = case.want.get("key").or(case.want.get("fromKey")).unwrap_or(&Value::Null);
            equal("key", &json!(got.key), key)?;
            equal("resourceVersion", &json!(got.revision), want(case, "resourceVersion"))
        }
        (Err(error), Some(part)) if error.contains(part.split(": ").next().unwrap_or_default()) => Ok(()),
        (result, wanted) => Err(format!("got {result:?}, want {wanted:?}")),
    }
}

fn storage_list(case: &Case) -> Verdict {
    let opts = input(case, "opts");
    let source = if opts.is_null() { case.input.whole() } else { opts };
    let page = source.get("predicate").unwrap_or(source);
    let text = |key: &str| source.get(key).or(page.get(key)).and_then(Value::as_str).unwrap_or_default();
    let recursive = source.get("recursive").and_then(Value::as_bool).unwrap_or_default();
    let limit = page.get("limit").and_then(Value::as_u64).unwrap_or_default();
    let got = revision::read_at(
        text("keyPrefix"),
        recursive,
        text("resourceVersion"),
        text("resourceVersionMatch"),
        text("continue"),
        limit,
    );
    match (got, wanted_error(case)) {
        (Ok(got), None) => {
            let number =
                |keys: [&str; 2]| keys.into_iter().find_map(|key| want(case, key).as_u64()).unwrap_or_default();
            equal("revision", &json!(got.revision), &json!(number(["withRevision", "expectedRev"])))?;
            let key = ["continueKey", "expectedContinueKey"].into_iter().find_map(|key| want(case, key).as_str());
            equal("continueKey", &json!(got.start.unwrap_or_default()), &json!(key.unwrap_or_default()))
        }
        (Err(error), Some(part)) if error.contains(part) => Ok(()),
        (result, wanted) => Err(format!("got {result:?}, want {wanted:?}")),
    }
}

fn graceful(case: &Case) -> Verdict {
    if want(case, "error") == true {
        return Err("want an error, but shortening the grace period cannot fail".to_owned());
    }
    let now = input_text(case, "now").parse().map_err(|e| format!("{e}"))?;
    let mut object = json!({"metadata": input(case, "metadata")});
    let grace_period = input(case, "options").get("gracePeriodSeconds").and_then(Value::as_i64);
    let (deletion, grace_period) = deletion::shorten(&mut object, grace_period, now);
    equal("graceful", &json!(deletion == Deletion::Graceful), want(case, "graceful"))?;
    equal("gracefulPending", &json!(deletion == Deletion::Pending), want(case, "gracefulPending"))?;
    equal("optionsGracePeriodSeconds", &json!(grace_period), want(case, "optionsGracePeriodSeconds"))?;
    let got = &object["metadata"];
    equal("deletionGracePeriodSeconds", &got["deletionGracePeriodSeconds"], want(case, "deletionGracePeriodSeconds"))?;
    match want(case, "deletionTimestamp") {
        Value::Null => Ok(()),
        wanted => equal("deletionTimestamp", &got["deletionTimestamp"], wanted),
    }
}

fn service_account(case: &Case) -> Verdict {
    let (namespace, name) = (input_text(case, "namespace"), input_text(case, "name"));
    match input(case, "username").as_str() {
        Some(user) => {
            let matches = names::service_account_user_name(namespace, name) == user
                && names::split_service_account_user_name(user) == Some((namespace, name));
            equal("matches", &json!(matches), want(case, "matches"))
        }
        None => {
            let user = names::service_account_user_name(namespace, name);
            let round = names::split_service_account_user_name(&user) == Some((namespace, name));
            equal("splitRoundTrips", &json!(round), want(case, "splitRoundTrips"))
        }
    }
}

fn webhook_rule(case: &Case) -> Verdict {
    let rule = input(case, "rule");
    let (request, attributes) = (input(case, "request"), input(case, "attributes"));
    let text = |key: &str| request.get(key).or(attributes.get(key)).and_then(Value::as_str).unwrap_or_default();
    let resource =
        |key: &str| request.pointer(&format!("/resource/{key}")).or(attributes.get(key)).and_then(Value::as_str);
    let subject = rules::Subject {
        operation: text("operation"),
        group: resource("group").unwrap_or_default(),
        version: resource("version").unwrap_or_default(),
        resource: resource("resource").unwrap_or_default(),
        subresource: text("subresource"),
        namespace: text("namespace"),
    };
    let parts = [
        ("apiGroups", "group", rules::group as fn(&Value, &rules::Subject<'_>) -> bool),
        ("apiVersions", "version", rules::version),
        ("operations", "operation", rules::operation),
        ("resources", "resource", rules::resource),
        ("scope", "scope", rules::scope),
    ];
    let got = match input(case, "part").as_str() {
        Some(part) => {
            parts.iter().find(|(_, name, _)| *name == part).is_some_and(|(_, _, check)| check(rule, &subject))
        }
        // This suite records some parts of a rule only. Check those.
        None if case.suite == "webhook-rules" => {
            parts.iter().filter(|(key, _, _)| rule.get(*key).is_some()).all(|(_, _, check)| check(rule, &subject))
        }
        None => rules::matches(rule, &subject),
    };
    let wanted = case.want.get("matches").or(case.want.get("match")).unwrap_or(&Value::Null);
    equal("matches", &json!(got), wanted)
}
