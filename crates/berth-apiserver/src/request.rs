//! Parses path, method and query into group, version, resource, namespace, name, subresource and
//! verb. Behaviour after Kubernetes' `RequestInfo` (conformance suite `request-info`).

use std::borrow::Cow;

use berth_apimachinery::percent::{decode_component, decode_path, malformed};
use berth_apimachinery::status::Status;
use http::Method;

/// The parsed request line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// True if this is a request for objects (as opposed to discovery, health, OpenAPI).
    pub is_resource_request: bool,
    /// Path of the URL, decoded. An escaped slash separates segments, as in Kubernetes' server.
    pub path: String,
    /// Path of the URL as sent.
    pub raw_path: String,
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
    /// Parses a request line. `path` and `query` (without `?`) are those that were sent. Never
    /// fails: an unknown path becomes a non-resource request, or a request for a resource that is
    /// not served, and malformed escapes stay ([`check_path`] rejects them).
    pub fn parse(method: &Method, path: &str, query: &str) -> RequestInfo {
        let raw_path = path.to_owned();
        let path = decoded(path).into_owned();
        let mut info = RequestInfo { raw_path, verb: method.as_str().to_lowercase(), ..RequestInfo::default() };
        info.fill(&path, method, query);
        RequestInfo { path, ..info }
    }

    /// Fills in what the decoded path, the method and the query say.
    fn fill(&mut self, path: &str, method: &Method, query: &str) {
        let trimmed = path.trim_matches('/');
        let parts: Vec<&str> = if trimmed.is_empty() { Vec::new() } else { trimmed.split('/').collect() };
        if parts.len() < 3 || !(parts[0] == "api" || parts[0] == "apis") {
            return;
        }
        self.api_prefix = parts[0].to_owned();
        let mut rest = &parts[1..];
        if parts[0] == "apis" {
            // /apis/<group>/<version> without a resource is discovery.
            if rest.len() < 3 {
                return;
            }
            self.api_group = rest[0].to_owned();
            rest = &rest[1..];
        }
        self.is_resource_request = true;
        self.api_version = rest[0].to_owned();
        rest = &rest[1..];
        let mut special = false;
        if matches!(rest[0], "proxy" | "watch") {
            // The old prefixes `/watch/` and `/proxy/` are verbs.
            if rest.len() < 2 {
                self.is_resource_request = false;
                return;
            }
            self.verb = rest[0].to_owned();
            special = true;
            rest = &rest[1..];
        } else {
            self.verb = match *method {
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
            self.namespace = (*namespace).to_owned();
            // /namespaces/<ns>/<resource>: skip the scope, unless the third segment is a
            // subresource of the namespace.
            if rest.len() > 2 && !NAMESPACE_SUBRESOURCES.contains(&rest[2]) {
                rest = &rest[2..];
            }
        }
        self.parts = rest.iter().map(|part| (*part).to_owned()).collect();
        let is_proxy = special && self.verb == "proxy";
        if let Some(subresource) = rest.get(2).filter(|_| !is_proxy) {
            self.subresource = (*subresource).to_owned();
        }
        if let Some(name) = rest.get(1) {
            self.name = (*name).to_owned();
        }
        self.resource = rest[0].to_owned();
        if special {
            return;
        }
        self.refine_collection(query);
    }

    /// Requests for a collection: their verb by the query, and their selectors.
    fn refine_collection(&mut self, query: &str) {
        if self.name.is_empty() && self.verb == "get" {
            let watch = query_values(query, "watch").next();
            let is_watch =
                watch.is_some_and(|value| !matches!(value.as_str(), "0" | "false" | "False" | "FALSE" | "f" | "F"));
            self.verb = if is_watch { "watch" } else { "list" }.to_owned();
        }
        if self.name.is_empty() && self.verb == "delete" {
            self.verb = "deletecollection".to_owned();
        }
        if matches!(self.verb.as_str(), "list" | "watch" | "deletecollection") {
            self.label_selector = query_values(query, "labelSelector").next().unwrap_or_default();
            self.field_selector = query_values(query, "fieldSelector").next().unwrap_or_default();
            if let Ok(selector) = berth_apimachinery::selector::FieldSelector::parse(&self.field_selector)
                && let Some(name) = selector.exact("metadata.name")
                && !name.contains('/')
                && !matches!(name, "" | "." | "..")
            {
                self.name = name.to_owned();
            }
        }
    }
}

/// The decoded path; unchanged if it has a malformed escape. Most paths have no escape.
fn decoded(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return Cow::Borrowed(path);
    }
    match decode_path(path) {
        Ok(octets) => Cow::Owned(String::from_utf8_lossy(&octets).into_owned()),
        Err(_) => Cow::Borrowed(path),
    }
}

/// Rejects a path with a malformed escape, as Go's server does before Kubernetes' server sees the
/// request.
///
/// # Errors
/// 400, with the escape.
pub(crate) fn check_path(path: &str) -> Result<(), Status> {
    match malformed(path) {
        Some(escape) => Err(Status::bad_request(format!("path of the URL: invalid URL escape {escape:?}"))),
        None => Ok(()),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> RequestInfo {
        RequestInfo::parse(&Method::GET, path, "")
    }

    #[test]
    fn escapes_in_a_path_are_decoded_before_it_is_split() {
        let info = get("/api/v1/namespaces/a/configmaps/kube%2Droot%2dca.crt");
        assert_eq!((info.name.as_str(), info.verb.as_str()), ("kube-root-ca.crt", "get"));
        let info = get("/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode");
        assert_eq!(info.name, "system:node");
        let info = get("/api/v1/namespaces/a%2Fpods/p%2Flog");
        assert_eq!((&*info.namespace, &*info.resource, &*info.name, &*info.subresource), ("a", "pods", "p", "log"));
        let info = get("/health%7a");
        assert_eq!((&*info.path, &*info.raw_path), ("/healthz", "/health%7a"));
        assert_eq!(get("/api/v1/nodes/a%252F").name, "a%2F", "a path is decoded once");
    }

    #[test]
    fn a_malformed_escape_is_named_and_a_plus_is_no_space() {
        let refused = check_path("/api/v1/nodes/a%2").expect_err("malformed");
        assert_eq!((refused.code, refused.message.as_str()), (400, "path of the URL: invalid URL escape \"%2\""));
        assert!(check_path("/api/v1/nodes/a%2F").is_ok());
        assert_eq!(get("/api/v1/nodes/a+b").name, "a+b");
    }
}
