//! Discovery documents: `/api`, `/apis`, group and version lists, their aggregated form, and
//! `/version`.
//!
//! Each document is generated from the [`Registry`] on request, so a new CustomResourceDefinition
//! appears immediately. Only served kinds are listed.

mod aggregated;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_apimachinery::meta::compare_versions;
use berth_apimachinery::status::Status;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, VARY};
use serde_json::{Map, Value, json};

use crate::aggregation::{Remote, Services};
use crate::registry::{Subresource, VersionInfo};
use crate::rest::{self, Encoding};
use crate::{Body, Extension, Registry, RequestInfo, ResourceInfo, extension, health};

/// Reported version: the Kubernetes version whose behaviour is implemented, and after `+` the
/// implementation.
pub const GIT_VERSION: &str = "v1.36.0+berth";

/// Groups in the order in which clients should look up kinds, as kube-apiserver ranks its own.
/// Other groups follow in alphabetical order.
const GROUP_ORDER: [&str; 20] = [
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
    "flowcontrol.apiserver.k8s.io",
];

/// All served APIs: the registry's, those of extensions in this process, and those of aggregated
/// API servers.
pub(crate) struct Served<'a> {
    pub(crate) registry: &'a Registry,
    extensions: &'a [Arc<dyn Extension>],
    remotes: Arc<Vec<Arc<Remote>>>,
    services: &'a Services,
}

impl<'a> Served<'a> {
    /// The APIs of this server and of the API servers to which it forwards requests.
    pub(crate) fn new(
        registry: &'a Registry,
        extensions: &'a [Arc<dyn Extension>],
        services: &'a Services,
    ) -> Served<'a> {
        Served { registry, extensions, remotes: services.remotes(), services }
    }

    /// All groups. Groups of the registry come before groups that only aggregated servers serve.
    fn groups(&self) -> Vec<Group<'_>> {
        let mut groups = groups(self.registry);
        for remote in self.remotes.iter().filter(|remote| !self.is_extension(&remote.group)) {
            let version = remote.version.as_str();
            match groups.iter_mut().find(|(group, _)| *group == remote.group) {
                Some((_, versions)) if versions.contains(&version) => {}
                Some((_, versions)) => versions.push(version),
                None => groups.push((&remote.group, vec![version])),
            }
        }
        groups
    }

    /// The aggregated API server that serves a version, if any.
    fn remote(&self, group: &str, version: &str) -> Option<&Remote> {
        self.remotes.iter().map(Arc::as_ref).find(|remote| remote.group == group && remote.version == version)
    }

    /// True if an extension in this process serves the group.
    fn is_extension(&self, group: &str) -> bool {
        self.extensions.iter().any(|extension| extension.group() == group)
    }
}

/// Responds to GET and HEAD of discovery documents and `/version`; `None` for all other requests.
pub(crate) fn handle(
    served: &Served<'_>,
    info: &RequestInfo,
    headers: &http::HeaderMap,
) -> Option<http::Response<Body>> {
    if info.verb != "get" && info.verb != "head" {
        return None;
    }
    let path = info.path.trim_end_matches('/');
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let document = match parts.as_slice() {
        [""] => return Some(json_response(200, &json!({"paths": paths(served)}))),
        ["version"] => return Some(json_response(200, &version())),
        ["api"] => api_versions(),
        ["apis"] => group_list(served),
        ["api", version] => resource_list(served.registry, "", version)?,
        ["apis", group] => group_document(&served.groups(), group)?,
        ["apis", group, version] if !group.is_empty() => resource_list(served.registry, group, version)?,
        _ => return None,
    };
    let is_root = parts.len() == 1;
    let accept = rest::accept_header(headers);
    if let Some((encoding, version)) = aggregated::accepted(&accept).filter(|_| is_root) {
        return Some(aggregated::response(served, parts[0] == "api", encoding, version));
    }
    let mut response = in_accepted(&accept, &document);
    if is_root {
        response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    }
    Some(response)
}

/// A document as a response in an encoding that `accept` allows: JSON, YAML or protobuf.
pub(crate) fn in_accepted(accept: &str, document: &Value) -> http::Response<Body> {
    let Some(encoding) = rest::plain(accept) else {
        return rest::status_response(&Status::not_acceptable(&rest::OFFERED));
    };
    encoded(encoding, document)
}

/// A document as a response in the given encoding.
pub(crate) fn encoded(encoding: Encoding, document: &Value) -> http::Response<Body> {
    match rest::to_encoding(encoding, document) {
        Ok(body) => rest::response(http::StatusCode::OK, encoding, body),
        Err(status) => rest::status_response(&status),
    }
}

/// A JSON response.
pub(crate) fn json_response(code: u16, body: &Value) -> http::Response<Body> {
    let mut response = http::Response::new(Body::from(body.to_string()));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// One group: its name and served versions, the preferred one first.
pub(crate) type Group<'a> = (&'a str, Vec<&'a str>);

/// The groups of the registry: core first, then in [`GROUP_ORDER`].
pub(crate) fn groups(registry: &Registry) -> Vec<Group<'_>> {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in registry.rows() {
        let versions = groups.entry(&row.group).or_default();
        for version in row.versions.iter().filter(|version| version.served) {
            if !versions.contains(&version.name.as_str()) {
                versions.push(&version.name);
            }
        }
    }
    let mut groups: Vec<Group<'_>> = groups.into_iter().filter(|(_, versions)| !versions.is_empty()).collect();
    for (_, versions) in &mut groups {
        versions.sort_by(|a, b| compare_versions(a, b));
    }
    let rank = |group: &str| GROUP_ORDER.iter().position(|known| *known == group).unwrap_or(GROUP_ORDER.len());
    groups.sort_by_key(|(group, _)| (!group.is_empty(), rank(group)));
    groups
}

/// The rows of a group that serve `version`.
pub(crate) fn rows<'a>(
    registry: &'a Registry,
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = (&'a ResourceInfo, &'a VersionInfo)> {
    registry.rows().filter(move |row| row.group == group).filter_map(move |row| {
        let version = row.version(version).filter(|version| version.served)?;
        Some((&**row, version))
    })
}

/// `group/version`, or the version alone for core.
pub(crate) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn api_versions() -> Value {
    // Server address for clients of any network. It is empty, so clients keep using the address to
    // which they connected.
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
    })
}

fn group_value((group, versions): &Group<'_>) -> Value {
    let versions: Vec<Value> =
        versions.iter().map(|it| json!({"groupVersion": group_version(group, it), "version": it})).collect();
    json!({"name": group, "preferredVersion": versions[0], "versions": versions})
}

fn group_list(served: &Served<'_>) -> Value {
    let groups = served.groups();
    let own = groups.iter().filter(|(group, _)| !group.is_empty()).map(group_value);
    let groups: Vec<Value> =
        own.chain(served.extensions.iter().map(|it| extension::group_value(it.as_ref()))).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn group_document(groups: &[Group<'_>], group: &str) -> Option<Value> {
    let found = groups.iter().find(|(name, _)| !name.is_empty() && *name == group)?;
    let mut document = group_value(found);
    document["kind"] = json!("APIGroup");
    document["apiVersion"] = json!("v1");
    Some(document)
}

fn resource_list(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for (row, version) in rows(registry, group, version) {
        resources.push(resource_value(row));
        resources.extend(version.subresources.iter().map(|sub| subresource_value(row, &version.name, sub)));
    }
    if resources.is_empty() {
        return None;
    }
    let mut document = json!({
        "kind": "APIResourceList",
        "groupVersion": group_version(group, version),
        "resources": resources,
    });
    if !group.is_empty() {
        document["apiVersion"] = json!("v1");
    }
    Some(document)
}

fn resource_value(row: &ResourceInfo) -> Value {
    let mut value = Map::new();
    value.insert("name".to_owned(), json!(row.plural));
    value.insert("singularName".to_owned(), json!(row.singular));
    value.insert("namespaced".to_owned(), json!(row.namespaced));
    value.insert("kind".to_owned(), json!(row.kind));
    value.insert("verbs".to_owned(), json!(row.verbs));
    if !row.short_names.is_empty() {
        value.insert("shortNames".to_owned(), json!(row.short_names));
    }
    if !row.categories.is_empty() {
        value.insert("categories".to_owned(), json!(row.categories));
    }
    Value::Object(value)
}

fn subresource_value(row: &ResourceInfo, version: &str, sub: &Subresource) -> Value {
    let mut value = json!({
        "name": format!("{}/{}", row.plural, sub.name),
        "singularName": "",
        "namespaced": row.namespaced,
        "kind": sub.kind,
        "verbs": sub.verbs,
    });
    if sub.group != row.group || sub.version != version {
        if !sub.group.is_empty() {
            value["group"] = json!(sub.group);
        }
        value["version"] = json!(sub.version);
    }
    value
}

fn version() -> Value {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let (major_minor, _) = GIT_VERSION[1..].rsplit_once('.').unwrap_or((&GIT_VERSION[1..], ""));
    let (major, minor) = major_minor.split_once('.').unwrap_or((major_minor, ""));
    json!({
        "major": major,
        "minor": minor,
        "gitVersion": GIT_VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{architecture}", std::env::consts::OS),
    })
}

fn paths(served: &Served<'_>) -> Vec<String> {
    let mut paths = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned()];
    for (group, versions) in served.groups().iter().filter(|(group, _)| !group.is_empty()) {
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.iter().map(|version| format!("/apis/{group}/{version}")));
    }
    for extension in served.extensions {
        let group = extension.group();
        paths.push(format!("/apis/{group}"));
        paths.extend(extension.versions().iter().map(|version| format!("/apis/{group}/{version}")));
    }
    paths.extend(health::paths());
    paths.extend(["/openapi/v2", "/openapi/v3", "/version"].map(str::to_owned));
    paths.sort();
    paths
}

/// The clauses of an `Accept` header, best quality first, each with its parameters.
pub(crate) fn accept_clauses(headers: &http::HeaderMap) -> Vec<(String, BTreeMap<String, String>)> {
    let mut clauses = Vec::new();
    for value in headers.get_all(ACCEPT) {
        for clause in value.to_str().unwrap_or_default().split(',') {
            let mut parts = clause.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default().to_lowercase();
            let parameters: BTreeMap<String, String> = parts
                .filter_map(|parameter| parameter.split_once('='))
                .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
                .collect();
            let quality = parameters.get("q").and_then(|q| q.parse::<f32>().ok()).unwrap_or(1.0);
            clauses.push(((quality * 1000.0) as u32, media, parameters));
        }
    }
    clauses.sort_by_key(|(quality, ..)| std::cmp::Reverse(*quality));
    clauses.into_iter().map(|(_, media, parameters)| (media, parameters)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str, accept: &str) -> Option<(http::HeaderMap, Value)> {
        let mut headers = http::HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().expect("a header"));
        let info = RequestInfo::parse(&http::Method::GET, path, "");
        let now = "2026-01-01T00:00:00Z".parse().expect("a timestamp");
        let store = Arc::new(berth_store::MemoryStore::new());
        let server = crate::ApiServer::new(crate::Config::new(store, Arc::new(move || now)));
        let response = handle(&Served::new(&server.registry(), &[], &server.inner.services), &info, &headers)?;
        let (parts, body) = response.into_parts();
        let body = futures::FutureExt::now_or_never(http_body_util::BodyExt::collect(body))
            .expect("the body is complete")
            .expect("never fails")
            .to_bytes();
        let value = serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into());
        Some((parts.headers, value))
    }

    #[test]
    fn a_version_lists_its_kinds_with_subresources() {
        let (_, list) = get("/apis/batch/v1", "application/json").expect("served");
        assert_eq!(list["groupVersion"], "batch/v1");
        let jobs = list["resources"].as_array().expect("a list").iter().find(|it| it["name"] == "jobs").expect("jobs");
        assert_eq!(jobs["categories"], json!(["all"]));
        let (_, core) = get("/api/v1", "").expect("served");
        let find =
            |name: &str| core["resources"].as_array().expect("a list").iter().find(|it| it["name"] == name).cloned();
        assert_eq!(find("pods/eviction").expect("listed")["group"], "policy");
        assert_eq!(find("pods/log").expect("listed")["kind"], "Pod");
        assert!(get("/apis/batch/v2", "").is_none());
        assert!(get("/apis/nothing", "").is_none());
    }

    #[test]
    fn aggregated_discovery_lists_all_groups_in_one_document() {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;q=0.9";
        let (headers, document) = get("/apis", accept).expect("served");
        assert_eq!(document["kind"], "APIGroupDiscoveryList");
        assert_eq!(headers[CONTENT_TYPE], "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
        let first = &document["items"][0];
        assert_eq!(first["metadata"]["name"], "apiregistration.k8s.io");
        let (_, plain) = get("/apis", "application/json").expect("served");
        assert_eq!(plain["kind"], "APIGroupList");
        let (_, core) = get("/api", accept).expect("served");
        let resources = core["items"][0]["versions"][0]["resources"].as_array().expect("a list").clone();
        let pods = resources.iter().find(|it| it["resource"] == "pods").expect("pods");
        assert_eq!(pods["scope"], "Namespaced");
        assert!(pods["subresources"].as_array().is_some_and(|list| list.len() == 10));
    }
}
