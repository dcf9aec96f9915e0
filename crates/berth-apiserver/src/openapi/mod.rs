//! OpenAPI v2 and v3 documents, and the schemas of built-in kinds.
//!
//! A document is generated on its first request, from the table of kinds, the published definitions
//! of built-in kinds and the schemas of CustomResourceDefinitions. It is cached with the
//! [`Registry`] that it describes. A changed registry has a new cache. The v3 document of a group
//! and version holds only the definitions that this version needs.
//!
//! v3 is served as JSON, v2 as JSON and as protobuf, which Go clients require.

mod cache;
mod connections;
mod definitions;
mod paths;
mod protobuf;
mod roots;

use berth_apimachinery::status::Status;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use serde_json::{Map, Value, json};

use crate::discovery::{GIT_VERSION, accept_clauses, group_version, groups, json_response, rows};
use crate::registry::SchemaSource;
use crate::{Body, Registry, RequestInfo};
pub use cache::Cache;
use cache::{Document, hash};

/// Version of OpenAPI. The two spell references and parameters differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    V2,
    V3,
}

/// Responds to `/openapi/v2` and `/openapi/v3…`; `None` for other paths. With `issues_tokens`, the
/// documents describe the paths of the token issuer.
pub fn handle(
    registry: &Registry,
    documents: &Cache,
    issues_tokens: bool,
    info: &RequestInfo,
    headers: &http::HeaderMap,
) -> Option<http::Response<Body>> {
    let rest = info.path.trim_end_matches('/').strip_prefix("/openapi/")?;
    if info.verb != "get" && info.verb != "head" {
        return None;
    }
    let clauses = accept_clauses(headers);
    let is_json = |media: &str| matches!(media, "application/json" | "application/*" | "*/*");
    let wanted = clauses.iter().map(|(media, _)| media.as_str());
    let wanted = wanted.clone().find(|media| is_json(media) || rest == "v2" && protobuf::MEDIA_TYPES.contains(media));
    let content_type = match wanted {
        Some(media) if !is_json(media) => protobuf::CONTENT_TYPE,
        Some(_) => "application/json",
        None if clauses.is_empty() => "application/json",
        None => {
            let status = Status::not_acceptable(&["application/json"]);
            return Some(json_response(status.code, &status.to_value()));
        }
    };
    let document = match rest.split('/').collect::<Vec<_>>().as_slice() {
        ["v2"] if content_type == "application/json" => {
            documents.get("v2", || text(&document_v2(registry, issues_tokens)))
        }
        ["v2"] => documents.get("v2 protobuf", || protobuf::encode(&document_v2(registry, issues_tokens))),
        ["v3"] => documents.get("v3", || text(&index(registry, issues_tokens))),
        ["v3", "api", version] => document_v3(registry, documents, "", version)?,
        ["v3", "apis", group, version] if !group.is_empty() => document_v3(registry, documents, group, version)?,
        ["v3", ..] => {
            let root = roots::of(registry, issues_tokens).into_iter().find(|root| rest[3..] == root.name)?;
            documents.get(&root.path(), || root.document())
        }
        _ => return None,
    };
    let tag = format!("\"{}\"", document.hash);
    let known = headers.get_all(IF_NONE_MATCH).iter().any(|value| value.as_bytes() == tag.as_bytes());
    let mut response = http::Response::new(if known { Body::empty() } else { Body::from(document.content) });
    if known {
        *response.status_mut() = http::StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    headers.insert(ETAG, tag.parse().expect("hexadecimal digits in quotes"));
    Some(response)
}

/// `/openapi/v3`: the URLs of the documents of each group and version and of each other path. Each
/// URL has a hash that changes with the content of the document.
fn index(registry: &Registry, issues_tokens: bool) -> Value {
    let mut paths = Map::new();
    for root in roots::of(registry, issues_tokens) {
        let url = format!("/openapi/v3/{}?hash={}", root.name, hash(&[&root.document()]));
        paths.insert(root.name, json!({"serverRelativeURL": url}));
    }
    for (group, versions) in groups(registry) {
        for version in versions {
            let name = root(group, version);
            let mut content = vec![GIT_VERSION.to_owned(), env!("CARGO_PKG_VERSION").to_owned(), name.clone()];
            for (row, version) in rows(registry, group, version) {
                content.push(format!("{row:?}"));
                if let SchemaSource::Custom(custom) = &version.schema {
                    content.push(custom.text().to_owned());
                }
            }
            let parts: Vec<&[u8]> = content.iter().map(String::as_bytes).collect();
            let url = format!("/openapi/v3/{name}?hash={}", hash(&parts));
            paths.insert(name, json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

/// Path of a group and version: `api/v1` or `apis/batch/v1`.
fn root(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": GIT_VERSION})
}

/// The security scheme of clients without certificates: bearer tokens.
fn security() -> Value {
    json!({"BearerToken": {
        "type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header",
    }})
}

fn text(document: &Value) -> Vec<u8> {
    document.to_string().into_bytes()
}

fn document_v3(registry: &Registry, documents: &Cache, group: &str, version: &str) -> Option<Document> {
    rows(registry, group, version).next()?;
    let make = || {
        let mut schemas = definitions::Definitions::new(Style::V3);
        for (row, version) in rows(registry, group, version) {
            schemas.add(row, version);
        }
        text(&json!({
            "openapi": "3.0.0",
            "info": info(),
            "paths": paths::of(registry, group, version, Style::V3),
            "components": {"schemas": schemas.finish(), "securitySchemes": security()},
        }))
    };
    Some(documents.get(&group_version(group, version), make))
}

fn document_v2(registry: &Registry, issues_tokens: bool) -> Value {
    let mut schemas = definitions::Definitions::new(Style::V2);
    let mut all = Map::new();
    for (group, versions) in groups(registry) {
        for version in versions {
            for (row, version) in rows(registry, group, version) {
                schemas.add(row, version);
            }
            all.extend(paths::of(registry, group, version, Style::V2));
        }
    }
    for root in roots::of(registry, issues_tokens) {
        root.definition.iter().for_each(|name| schemas.add_published(name));
        all.insert(root.path(), root.item(Style::V2));
    }
    json!({
        "swagger": "2.0", "info": info(), "paths": all, "definitions": schemas.finish(),
        "securityDefinitions": security(), "security": [{"BearerToken": []}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(registry: &Registry, path: &str) -> Option<Value> {
        let info = RequestInfo::parse(&http::Method::GET, path, "");
        let response = handle(registry, &Cache::default(), true, &info, &http::HeaderMap::new())?;
        let body = http_body_util::BodyExt::collect(response.into_body());
        let body =
            futures::FutureExt::now_or_never(body).expect("the body is complete").expect("never fails").to_bytes();
        Some(serde_json::from_slice(&body).expect("JSON"))
    }

    #[test]
    fn the_index_does_not_depend_on_the_schemas_used_so_far() {
        let registry = Registry::builtin();
        let before = index(&registry, true);
        // The schema of this kind refers to itself indirectly.
        let definitions = registry.get("apiextensions.k8s.io", "customresourcedefinitions").expect("built in");
        assert!(definitions.schema("v1").is_some());
        assert_eq!(index(&registry, true), before);
    }

    /// Checks that every `$ref` in a document refers to a definition in the same document.
    fn check_references(document: &Value) {
        fn walk<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
            match value {
                Value::Object(map) => {
                    found.extend(map.get("$ref").and_then(Value::as_str));
                    map.values().for_each(|value| walk(value, found));
                }
                Value::Array(list) => list.iter().for_each(|value| walk(value, found)),
                _ => {}
            }
        }
        let mut references = Vec::new();
        walk(document, &mut references);
        assert!(!references.is_empty());
        for reference in references {
            let (parents, name) = reference[1..].rsplit_once('/').expect("local");
            assert!(document.pointer(parents).and_then(|it| it.get(name)).is_some(), "{reference}");
        }
    }

    fn with_custom() -> Registry {
        use std::sync::Arc;

        use crate::registry::{CustomSchema, Origin, ResourceInfo, VersionInfo};
        let raw = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "size": {"type": "integer", "nullable": true},
            "port": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true}}}}});
        let schema = CustomSchema::new(&raw).expect("a schema");
        let mut registry = Registry::builtin();
        registry.insert(ResourceInfo {
            group: "shop.example.com".to_owned(),
            kind: "Widget".to_owned(),
            list_kind: "WidgetList".to_owned(),
            plural: "widgets".to_owned(),
            singular: "widget".to_owned(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            verbs: ["get", "list", "create", "patch", "update", "delete", "deletecollection", "watch"]
                .map(str::to_owned)
                .to_vec(),
            storage_version: "v1".to_owned(),
            versions: vec![VersionInfo {
                name: "v1".to_owned(),
                served: true,
                deprecation_warning: None,
                subresources: Vec::new(),
                schema: SchemaSource::Custom(Arc::new(schema)),
                columns: Vec::new(),
                selectable_fields: Vec::new(),
            }],
            origin: Origin::Custom("widgets.shop.example.com".to_owned()),
        });
        registry
    }

    #[test]
    fn documents_of_built_in_and_custom_versions_contain_all_referenced_definitions() {
        let registry = with_custom();
        let index = get(&registry, "/openapi/v3").expect("served");
        let paths = index["paths"].as_object().expect("an object");
        assert!(paths.contains_key("api/v1") && paths.contains_key("apis/shop.example.com/v1"));
        for (name, entry) in paths {
            let url = entry["serverRelativeURL"].as_str().expect("a text");
            let path = url.split('?').next().expect("a path");
            assert_eq!(path, format!("/openapi/v3/{name}"));
            let document = get(&registry, path).expect("served");
            if document.to_string().contains("$ref") {
                check_references(&document);
            }
        }
        check_references(&get(&registry, "/openapi/v2").expect("served"));
        assert!(get(&registry, "/openapi/v3/apis/nothing/v1").is_none());
    }

    #[test]
    fn discovery_version_and_token_paths_are_documented() {
        let registry = with_custom();
        let index = get(&registry, "/openapi/v3").expect("served");
        let whole = get(&registry, "/openapi/v2").expect("served");
        for (name, operation) in [
            ("api", "getCoreAPIVersions"),
            ("apis", "getAPIVersions"),
            ("apis/batch", "getBatchAPIGroup"),
            ("apis/rbac.authorization.k8s.io", "getRbacAuthorizationAPIGroup"),
            ("version", "getCodeVersion"),
            (".well-known/openid-configuration", "getServiceAccountIssuerOpenIDConfiguration"),
            ("openid/v1/jwks", "getServiceAccountIssuerOpenIDKeyset"),
        ] {
            let url = index["paths"][name]["serverRelativeURL"].as_str().expect(name);
            let (path, hash) = url.split_once("?hash=").expect("a hash");
            assert_eq!((path, hash.len()), (format!("/openapi/v3/{name}").as_str(), 64));
            let document = get(&registry, path).expect(name);
            let item = &document["paths"][format!("/{name}/")]["get"];
            assert_eq!(item["operationId"], operation);
            assert_eq!(whole["paths"][format!("/{name}/")]["get"]["operationId"], operation);
        }
        assert!(index["paths"].get("apis/shop.example.com").is_none());
        for path in ["/openapi/v3/apis/shop.example.com", "/openapi/v3/logs"] {
            assert!(get(&registry, path).is_none(), "{path}");
        }
        let version = get(&registry, "/openapi/v3/version").expect("served");
        let schemas = version["components"]["schemas"].as_object().expect("an object");
        assert_eq!(schemas.keys().collect::<Vec<_>>(), ["io.k8s.apimachinery.pkg.version.Info"]);
        let info = RequestInfo::parse(&http::Method::GET, "/openapi/v3/openid/v1/jwks", "");
        assert!(
            handle(&registry, &Cache::default(), false, &info, &http::HeaderMap::new()).is_none(),
            "a server without tokens has no key set"
        );
    }

    #[test]
    fn the_path_of_a_kind_documents_the_parameters_of_a_patch() {
        let document = get(&with_custom(), "/openapi/v3/apis/shop.example.com/v1").expect("served");
        let item = &document["paths"]["/apis/shop.example.com/v1/namespaces/{namespace}/widgets/{name}"];
        let names: Vec<&str> = item["patch"]["parameters"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|it| it["name"].as_str())
            .collect();
        assert!(names.contains(&"fieldValidation") && names.contains(&"dryRun"));
        assert_eq!(item["get"]["x-kubernetes-group-version-kind"]["kind"], "Widget");
        let content = item["patch"]["requestBody"]["content"].as_object().expect("an object");
        assert!(!content.contains_key("application/strategic-merge-patch+json"), "not for custom resources");
        let schema = &document["components"]["schemas"]["com.example.shop.v1.Widget"];
        assert_eq!(schema["properties"]["spec"]["properties"]["size"]["nullable"], true);
        assert_eq!(schema["x-kubernetes-group-version-kind"][0]["group"], "shop.example.com");
    }

    #[test]
    fn merge_keys_of_lists_are_published_beside_their_references() {
        let document = get(&Registry::builtin(), "/openapi/v3/api/v1").expect("served");
        let containers = &document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
        assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
        assert_eq!(containers["items"]["$ref"], "#/components/schemas/io.k8s.api.core.v1.Container");
        let spec = &document["components"]["schemas"]["io.k8s.api.core.v1.Pod"]["properties"]["spec"];
        assert_eq!(spec["allOf"][0]["$ref"], "#/components/schemas/io.k8s.api.core.v1.PodSpec");
        assert_eq!(spec["default"], json!({}), "v3 documents have default values");
    }

    #[test]
    fn a_changed_registry_has_another_hash() {
        let before = get(&Registry::builtin(), "/openapi/v3").expect("served");
        let mut registry = with_custom();
        let with = get(&registry, "/openapi/v3").expect("served");
        assert_ne!(before, with);
        assert_eq!(before["paths"]["api/v1"], with["paths"]["api/v1"]);
        registry.remove("shop.example.com", "widgets");
        assert_eq!(get(&registry, "/openapi/v3").expect("served"), before);
    }
}
