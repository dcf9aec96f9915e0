//! What a request asks for and how its answer looks.

use berth_apiserver::registry::{Origin, PrinterColumn, SchemaSource, VersionInfo};
use berth_apiserver::{RequestInfo, ResourceInfo, printers};
use serde_json::{Value, json};

use super::{input, same, text, texts, want};
use crate::conformance::{Case, Runner, Verdict};

pub(super) fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "authz-attributes" => authorizer_attributes,
        "printer-columns" => printer_columns,
        "request-info" => request_info,
        _ => return None,
    })
}

fn parse(method: &str, url: &str) -> Result<RequestInfo, String> {
    let method: http::Method = method.parse().map_err(|error| format!("{method}: {error}"))?;
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    Ok(RequestInfo::parse(&method, path, query))
}

fn request_info(case: &Case) -> Verdict {
    // The prefixes a server knows are fixed here; cases with others are about a setting Berth does not have.
    let got = parse(text(&case.data["input"], "method"), text(&case.data["input"], "url"))?;
    let got = json!({
        "apiGroup": got.api_group, "apiPrefix": got.api_prefix, "apiVersion": got.api_version,
        "fieldSelector": got.field_selector, "isResourceRequest": got.is_resource_request,
        "labelSelector": got.label_selector, "name": got.name, "namespace": got.namespace, "parts": got.parts,
        "path": got.path, "resource": got.resource, "subresource": got.subresource, "verb": got.verb,
    });
    let wanted = want(case, "info");
    for (field, value) in got.as_object().into_iter().flatten() {
        let wanted = wanted.get(field).cloned().unwrap_or_default();
        let empty = |value: &Value| value.is_null() || *value == json!([]) || *value == json!("");
        if *value != wanted && !(empty(value) && empty(&wanted)) {
            return Err(format!("{field}: {value}, wanted {wanted}"));
        }
    }
    Ok(())
}

fn authorizer_attributes(case: &Case) -> Verdict {
    let info = parse(text(&case.data["input"], "verb"), text(&case.data["input"], "path"))?;
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
        // A kind without columns gets an age; the recorded function was called with none at all.
        cells.truncate(headers.len());
        same("cells", &Value::Array(cells), &wanted["cells"])?;
    }
    Ok(())
}
