//! Aggregated discovery: all groups, versions and resources in one document (`APIGroupDiscoveryList`).

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, VARY};
use serde_json::{Value, json};

use super::{Served, accept_clauses, json_response, rows};
use crate::aggregation::discovery;
use crate::registry::{Origin, Subresource, VersionInfo};
use crate::{Body, Extension, ResourceInfo};

/// The version of the aggregated form that a request prefers over the plain one, if it does.
pub(super) fn accepted(headers: &http::HeaderMap) -> Option<&'static str> {
    for (media, parameters) in accept_clauses(headers) {
        if media != "application/json" {
            if media == "*/*" || media == "application/*" {
                return None;
            }
            continue;
        }
        let parameter = |name: &str| parameters.get(name).map(String::as_str);
        match (parameter("as"), parameter("g"), parameter("v")) {
            (None, ..) => return None,
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) => return Some("v2"),
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2beta1")) => return Some("v2beta1"),
            _ => {}
        }
    }
    None
}

/// The document for `/api` or `/apis`.
pub(super) fn response(served: &Served<'_>, core: bool, version: &'static str) -> http::Response<Body> {
    let groups = served.groups();
    let mut items: Vec<Value> = groups
        .iter()
        .filter(|(group, _)| group.is_empty() == core)
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions.iter().map(|version| version_value(served, group, version)).collect();
            let metadata = if core {
                json!({"creationTimestamp": null})
            } else {
                json!({"name": group, "creationTimestamp": null})
            };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    if !core {
        // Last: names of kinds mean the stored ones.
        items.extend(served.extensions.iter().map(|it| extension_value(it.as_ref())));
    }
    let document = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    });
    let mut response = json_response(200, &document);
    let content_type = match version {
        "v2" => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        _ => "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
    };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    response
}

/// A group that is served by somebody else in the process.
fn extension_value(extension: &dyn Extension) -> Value {
    let group = extension.group();
    let all = extension.resources();
    let versions: Vec<Value> = extension
        .versions()
        .iter()
        .map(|version| {
            let resources = discovery::resources(group, version, &all);
            json!({"version": version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions})
}

fn version_value(served: &Served<'_>, group: &str, version: &str) -> Value {
    if let Some(remote) = served.remote(group, version) {
        return discovery::version(served.server, remote);
    }
    let resources: Vec<Value> =
        rows(served.registry, group, version).map(|(row, version)| resource_value(row, version)).collect();
    json!({"version": version, "resources": resources, "freshness": "Current"})
}

fn resource_value(row: &ResourceInfo, version: &VersionInfo) -> Value {
    let mut value = json!({
        "resource": row.plural,
        "responseKind": response_kind(row, version, (&row.group, &version.name, &row.kind)),
        "scope": if row.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": row.singular,
        "verbs": row.verbs,
    });
    if !row.short_names.is_empty() {
        value["shortNames"] = json!(row.short_names);
    }
    if !row.categories.is_empty() {
        value["categories"] = json!(row.categories);
    }
    if !version.subresources.is_empty() {
        value["subresources"] = version.subresources.iter().map(|sub| subresource_value(row, version, sub)).collect();
    }
    value
}

fn subresource_value(row: &ResourceInfo, version: &VersionInfo, sub: &Subresource) -> Value {
    json!({
        "subresource": sub.name,
        "responseKind": response_kind(row, version, (&sub.group, &sub.version, &sub.kind)),
        "verbs": sub.verbs,
    })
}

/// What is answered with. Of built-in kinds a real server says group and version where they are not those of the path;
/// of custom resources always.
fn response_kind(row: &ResourceInfo, version: &VersionInfo, (group, of_kind, kind): (&str, &str, &str)) -> Value {
    let is_implied = !matches!(row.origin, Origin::Custom(_)) && group == row.group && of_kind == version.name;
    let (group, of_kind) = if is_implied { ("", "") } else { (group, of_kind) };
    json!({"group": group, "version": of_kind, "kind": kind})
}
