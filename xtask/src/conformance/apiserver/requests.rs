//! Suites of requests: content negotiation, request info, updates of custom resources and printer
//! columns.

use berth_apimachinery::selector::FieldSelector;
use berth_apiserver::RequestInfo;
use berth_apiserver::negotiation::{self, Parameters, parameter};
use berth_kinds::registry::{Origin, PrinterColumn, SchemaSource, VersionInfo};
use berth_kinds::{ResourceInfo, crd, printers};
use serde_json::{Value, json};

use super::{input, same, text, texts, want};
use crate::conformance::{Case, Runner, Verdict};

pub(super) fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "accept-negotiation" => accept,
        "authz-attributes" => authorizer_attributes,
        "cr-prepare-for-update" => prepare_for_update,
        "cr-status-prepare-for-update" => prepare_status_for_update,
        "negotiate-output" => negotiate_output,
        "negotiate-pretty" => negotiate_pretty,
        "printer-columns" => printer_columns,
        "request-info" => request_info,
        _ => return None,
    })
}

/// The media type among `offered` that an `Accept` header selects, and its parameters. Clauses for
/// other forms of the object (`as=Table`) are skipped.
fn chosen<'a, 'o>(accept: &'a str, offered: &[&'o str]) -> Option<(&'o str, Parameters<'a>)> {
    negotiation::choose(accept, offered, |_, parameters| parameter(parameters, "as").is_none())
}

fn accept(case: &Case) -> Verdict {
    let text = |field: &str| input(case, field).as_str().unwrap_or_default();
    let offered = texts(input(case, "serverTypes"));
    let offered: Vec<&str> = offered.iter().map(String::as_str).collect();
    let wanted = want(case, "mediaType").as_str();
    let Some((media, parameters)) = chosen(text("accept"), &offered) else { return same("media type", None, wanted) };
    same("media type", Some(media), wanted)?;
    let query = text("query").strip_prefix("pretty=");
    let pretty = parameter(&parameters, "pretty") == Some("1") || negotiation::is_pretty(query, text("userAgent"));
    same("pretty", pretty, want(case, "params").get("pretty").is_some_and(|pretty| pretty == "1"))
}

fn negotiate_output(case: &Case) -> Verdict {
    let request = input(case, "request");
    let accept = texts(request.get("accept").unwrap_or(&Value::Null)).join(",");
    let supported = input(case, "supported").as_array().cloned().unwrap_or_default();
    let offered: Vec<&str> = supported.iter().map(|offer| text(offer, "mediaType")).collect();
    let (media, parameters) = match chosen(&accept, &offered) {
        Some((media, parameters)) => (Some(media), parameters),
        None => (None, Parameters::default()),
    };
    let error = format!("only the following media types are accepted: {}", offered.join(", "));
    same("error", media.is_none().then_some(error.as_str()), want(case, "err").as_str())?;
    same("accepted", media.unwrap_or_default(), text(&case.want, "accepted"))?;
    for name in ["profile", "stream"] {
        same(name, parameter(&parameters, name).unwrap_or_default(), text(&case.want, name))?;
    }
    let pretty = want(case, "usesPretty").as_bool().unwrap_or_default();
    same("pretty", parameter(&parameters, "pretty") == Some("1"), pretty)
}

fn negotiate_pretty(case: &Case) -> Verdict {
    let request = input(case, "request");
    let query = text(request, "url").split_once('?').map_or("", |(_, query)| query);
    let value = query.split('&').find_map(|pair| pair.strip_prefix("pretty="));
    let got = negotiation::is_pretty(value, text(request, "userAgent"));
    same("pretty", got, want(case, "pretty").as_bool().unwrap_or_default())
}

fn prepare_for_update(case: &Case) -> Verdict {
    let mut got = input(case, "obj").clone();
    let status = input(case, "statusEnabled").as_bool().unwrap_or_default();
    crd::update::prepare(&mut got, input(case, "old"), status);
    same("object", &got, want(case, "expected"))
}

fn prepare_status_for_update(case: &Case) -> Verdict {
    let mut got = input(case, "obj").clone();
    crd::update::prepare_status(&mut got, input(case, "old"));
    same("object", &got, want(case, "expected"))
}

fn parse(method: &str, url: &str) -> Result<RequestInfo, String> {
    let method: http::Method = method.parse().map_err(|error| format!("{method}: {error}"))?;
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    Ok(RequestInfo::parse(&method, path, query))
}

fn request_info(case: &Case) -> Verdict {
    // A case without a method does not compare the verb.
    let method = text(&case.input, "method");
    let got = parse(if method.is_empty() { "OPTIONS" } else { method }, text(&case.input, "url"))?;
    let got = json!({
        "apiGroup": got.api_group, "apiPrefix": got.api_prefix, "apiVersion": got.api_version,
        "fieldSelector": got.field_selector, "isResourceRequest": got.is_resource_request,
        "labelSelector": got.label_selector, "name": got.name, "namespace": got.namespace, "parts": got.parts,
        "path": got.path, "resource": got.resource, "subresource": got.subresource, "verb": got.verb,
    });
    // The suite is recorded twice: once with the whole request info, once with some fields.
    let all = want(case, "info");
    let wanted = if all.is_object() { all } else { case.want.whole() };
    if let Some(error) = wanted.get("error").and_then(Value::as_str) {
        let selector = FieldSelector::parse(got["fieldSelector"].as_str().unwrap_or_default());
        same("error of the selector", selector.is_err(), !error.is_empty())?;
    }
    let unknown = wanted.as_object().into_iter().flatten();
    let unknown = unknown.filter(|(field, _)| *field != "error").find(|(field, _)| got.get(field).is_none());
    if let Some((field, _)) = unknown {
        return Err(format!("{field}: the runner does not read this field"));
    }
    for (field, value) in got.as_object().into_iter().flatten() {
        if !all.is_object() && wanted.get(field).is_none() || method.is_empty() && field == "verb" {
            continue;
        }
        let wanted = wanted.get(field).cloned().unwrap_or_default();
        let empty = |value: &Value| value.is_null() || *value == json!([]) || *value == json!("");
        if *value != wanted && !(empty(value) && empty(&wanted)) {
            return Err(format!("{field}: got {value}, want {wanted}"));
        }
    }
    Ok(())
}

fn authorizer_attributes(case: &Case) -> Verdict {
    let info = parse(text(&case.input, "verb"), text(&case.input, "path"))?;
    let got = berth_apiserver::auth::Attributes::of(&info);
    let wanted = want(case, "expectedAttributes");
    for (field, got) in [
        ("verb", got.verb),
        ("apiGroup", got.group),
        ("resource", got.resource),
        ("subresource", got.subresource),
        ("name", got.name),
        ("namespace", got.namespace),
        ("path", got.path),
    ] {
        same(field, got, text(wanted, field))?;
    }
    let wanted = wanted.get("resourceRequest").and_then(Value::as_bool).unwrap_or_default();
    same("resourceRequest", got.is_resource_request, wanted)
}

fn printer_columns(case: &Case) -> Verdict {
    let paths = texts(input(case, "additionalColumnJSONPaths"));
    let headers = input(case, "headers").as_array().cloned().unwrap_or_default();
    let columns = headers.iter().skip(1).zip(&paths).map(|(header, path)| PrinterColumn {
        name: text(header, "name").to_owned(),
        type_: text(header, "type").to_owned(),
        format: String::new(),
        description: String::new(),
        priority: 0,
        json_path: path.clone(),
    });
    let version = VersionInfo {
        name: "v1".to_owned(),
        served: true,
        deprecation_warning: None,
        subresources: Vec::new(),
        schema: SchemaSource::None,
        columns: columns.collect(),
        selectable_fields: Vec::new(),
    };
    let row = ResourceInfo {
        group: "example.com".to_owned(),
        kind: "Thing".to_owned(),
        list_kind: "ThingList".to_owned(),
        plural: "things".to_owned(),
        singular: "thing".to_owned(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced: true,
        verbs: Vec::new(),
        storage_version: "v1".to_owned(),
        versions: vec![version],
        origin: Origin::Custom("things.example.com".to_owned()),
    };
    let object = input(case, "object");
    let objects = match object.get("items").and_then(Value::as_array) {
        Some(items) => items.clone(),
        None => vec![object.clone()],
    };
    let rows = want(case, "table").get("rows").and_then(Value::as_array).cloned().unwrap_or_default();
    same("rows", objects.len(), rows.len())?;
    for (object, wanted) in objects.iter().zip(&rows) {
        let mut cells = printers::cells(&row, &row.versions[0], object, jiff::Timestamp::UNIX_EPOCH);
        // Berth adds the age to a kind without columns. The recorded function does not.
        cells.truncate(headers.len());
        same("cells", &Value::Array(cells), &wanted["cells"])?;
    }
    Ok(())
}
