//! Aggregated discovery: all groups, versions and resources in one document
//! (`APIGroupDiscoveryList`).

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, VARY};
use serde_json::{Value, json};

use super::{Served, encoded, rows};
use crate::aggregation::discovery;
use crate::negotiation::{self, Parameters, parameter};
use crate::registry::{Origin, Subresource, VersionInfo};
use crate::rest::{Encoding, OFFERED};
use crate::{Body, Extension, ResourceInfo};

/// The encoding and version of the aggregated form, if the request prefers it over the plain form.
pub(super) fn accepted(accept: &str) -> Option<(Encoding, &'static str)> {
    let version = |parameters: &Parameters<'_>| {
        let value = |name: &str| parameter(parameters, name);
        match (value("as"), value("g"), value("v")) {
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) => Some("v2"),
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2beta1")) => Some("v2beta1"),
            _ => None,
        }
    };
    let allows = |_: &str, parameters: &Parameters<'_>| {
        parameter(parameters, "as").is_none_or(str::is_empty) || version(parameters).is_some()
    };
    let (media, parameters) = negotiation::choose(accept, &OFFERED, allows)?;
    Some((Encoding::of(media), version(&parameters)?))
}

/// The document for `/api` or `/apis`.
pub(super) fn response(
    served: &Served<'_>,
    core: bool,
    encoding: Encoding,
    version: &'static str,
) -> http::Response<Body> {
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
        // Extensions come last, so that clients resolve the name of a kind to a stored kind first.
        items.extend(served.extensions.iter().map(|it| extension_value(it.as_ref())));
    }
    let document = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    });
    let mut response = encoded(encoding, &document);
    let media = encoding.media_type();
    let media =
        format!("{};g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList", media.to_str().unwrap_or_default());
    if let Ok(media) = HeaderValue::from_str(&media) {
        response.headers_mut().insert(CONTENT_TYPE, media);
    }
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    response
}

/// The entry of a group that an extension serves.
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
        return discovery::version(served.services, remote);
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

/// The kind of a response. As in kube-apiserver, group and version are empty for a built-in kind
/// if they are those of the path. For custom resources they are always set.
fn response_kind(row: &ResourceInfo, version: &VersionInfo, (group, of_kind, kind): (&str, &str, &str)) -> Value {
    let is_implied = !matches!(row.origin, Origin::Custom(_)) && group == row.group && of_kind == version.name;
    let (group, of_kind) = if is_implied { ("", "") } else { (group, of_kind) };
    json!({"group": group, "version": of_kind, "kind": kind})
}
