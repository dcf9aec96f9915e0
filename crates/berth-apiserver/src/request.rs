//! Parses path, method and query into group, version, resource, namespace, name, subresource and
//! verb. Behaviour after Kubernetes' `RequestInfo` (conformance suite `request-info`).

use berth_apimachinery::percent::decode_component;
use http::Method;

/// The parsed request line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// True if this is a request for objects (as opposed to discovery, health, OpenAPI).
    pub is_resource_request: bool,
    /// Path of the URL as sent.
    pub path: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`. The
    /// lower-case HTTP method for non-resource requests.
    pub verb: String,
    /// `api` or `apis`.
    pub api_prefix: String,
    /// Group, empty for core.
    pub api_group: String,
    /// Version.
    pub api_version: String,
    /// Namespace, empty for cluster-scoped requests and lists over all namespaces.
    pub namespace: String,
    /// Plural name of the resource.
    pub resource: String,
    /// Subresource, empty for the resource itself.
    pub subresource: String,
    /// Name of the object. For a collection: the name that its field selector requires, or empty.
    pub name: String,
    /// Path segments from the resource on.
    pub parts: Vec<String>,
    /// The label selector as sent, for verbs on collections.
    pub label_selector: String,
    /// The field selector as sent, for verbs on collections.
    pub field_selector: String,
}

/// Values of `<segment>` in `/api/v1/namespaces/<name>/<segment>` that are subresources of the
/// namespace.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl RequestInfo {
    /// Parses a request line. `query` is the raw query string without `?`. Never fails: an unknown
    /// path becomes a non-resource request, or a request for a resource that is not served.
    pub fn parse(method: &Method, path: &str, query: &str) -> RequestInfo {
        let mut info =
            RequestInfo { path: path.to_owned(), verb: method.as_str().to_lowercase(), ..RequestInfo::default() };
        let trimmed = path.trim_matches('/');
        let parts: Vec<&str> = if trimmed.is_empty() { Vec::new() } else { trimmed.split('/').collect() };
        if parts.len() < 3 || !(parts[0] == "api" || parts[0] == "apis") {
            return info;
        }
        info.api_prefix = parts[0].to_owned();
        let mut rest = &parts[1..];
        if parts[0] == "apis" {
            // /apis/<group>/<version> without a resource is discovery.
            if rest.len() < 3 {
                return info;
            }
            info.api_group = rest[0].to_owned();
            rest = &rest[1..];
        }
        info.is_resource_request = true;
        info.api_version = rest[0].to_owned();
        rest = &rest[1..];
        let mut special = false;
        if matches!(rest[0], "proxy" | "watch") {
            // The old prefixes `/watch/` and `/proxy/` are verbs.
            if rest.len() < 2 {
                info.is_resource_request = false;
                return info;
            }
            info.verb = rest[0].to_owned();
            special = true;
            rest = &rest[1..];
        } else {
            info.verb = match *method {
                Method::POST => "create",
                Method::GET | Method::HEAD => "get",
                Method::PUT => "update",
                Method::PATCH => "patch",
                Method::DELETE => "delete",
                _ => "",
            }
            .to_owned();
        }
        if rest[0] == "namespaces"
            && let Some(namespace) = rest.get(1)
        {
            info.namespace = (*namespace).to_owned();
            // /namespaces/<ns>/<resource>: skip the scope, unless the third segment is a
            // subresource of the namespace.
            if rest.len() > 2 && !NAMESPACE_SUBRESOURCES.contains(&rest[2]) {
                rest = &rest[2..];
            }
        }
        info.parts = rest.iter().map(|part| (*part).to_owned()).collect();
        let is_proxy = special && info.verb == "proxy";
        if let Some(subresource) = rest.get(2).filter(|_| !is_proxy) {
            info.subresource = (*subresource).to_owned();
        }
        if let Some(name) = rest.get(1) {
            info.name = (*name).to_owned();
        }
        info.resource = rest[0].to_owned();
        if special {
            return info;
        }
        if info.name.is_empty() && info.verb == "get" {
            let watch = query_values(query, "watch").next();
            let is_watch =
                watch.is_some_and(|value| !matches!(value.as_str(), "0" | "false" | "False" | "FALSE" | "f" | "F"));
            info.verb = if is_watch { "watch" } else { "list" }.to_owned();
        }
        if info.name.is_empty() && info.verb == "delete" {
            info.verb = "deletecollection".to_owned();
        }
        if matches!(info.verb.as_str(), "list" | "watch" | "deletecollection") {
            info.label_selector = query_values(query, "labelSelector").next().unwrap_or_default();
            info.field_selector = query_values(query, "fieldSelector").next().unwrap_or_default();
            if let Ok(selector) = berth_apimachinery::selector::FieldSelector::parse(&info.field_selector)
                && let Some(name) = selector.exact("metadata.name")
                && !name.contains('/')
                && !matches!(name, "" | "." | "..")
            {
                info.name = name.to_owned();
            }
        }
        info
    }
}

/// The decoded values of the parameter `name` in a raw query string, in order.
pub fn query_values<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = String> + 'a {
    query.split('&').filter(|pair| !pair.is_empty()).filter_map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode_component(key) == name).then(|| decode_component(value))
    })
}

/// The health paths. Paths of single checks are below them.
pub(crate) const HEALTH_PATHS: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// True if a path is a health path or one of its checks.
pub(crate) fn is_probe(path: &str) -> bool {
    let below = |probe: &&str| path.strip_prefix(*probe).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    HEALTH_PATHS.iter().any(below)
}
