//! API groups that are served by somebody else in the process: what an aggregated API server is in a real cluster. They are
//! authorized as everything else, and read only.

use berth_apimachinery::status::Status;
use http::{HeaderMap, Response};
use serde_json::{Value, json};

use crate::discovery::{encoded, group_version, in_accepted};
use crate::rest::{Encoding, OFFERED, accept_header};
use crate::{Body, RequestInfo, negotiation};

/// A group of such an API.
pub trait Extension: Send + Sync {
    /// The group.
    fn group(&self) -> &str;
    /// Its versions, the preferred one first.
    fn versions(&self) -> &[&str];
    /// Its resources, as discovery lists them.
    fn resources(&self) -> Vec<Value>;
    /// Answers `get` of an object's subresource. The error is the answer's Status.
    fn get(&self, info: &RequestInfo, query: &str) -> Result<Value, Status>;
}

/// The group as discovery lists it.
pub(crate) fn group_value(extension: &dyn Extension) -> Value {
    let (group, versions) = (extension.group(), extension.versions());
    let all: Vec<Value> =
        versions.iter().map(|it| json!({"groupVersion": group_version(group, it), "version": it})).collect();
    json!({"name": group, "versions": all, "preferredVersion": all[0]})
}

/// The answer to a request for the group; `None` when it is about another one.
/// What it is about comes in JSON or YAML, as its kinds have no other form.
pub fn answer(
    extension: &dyn Extension,
    info: &RequestInfo,
    query: &str,
    headers: &HeaderMap,
) -> Option<Result<Response<Body>, Status>> {
    let accept = &accept_header(headers);
    let group = extension.group();
    let path = info.path.trim_matches('/');
    let rest = path.strip_prefix("apis/")?.strip_prefix(group)?;
    let parts: Vec<&str> = rest.split('/').skip(1).collect();
    if !rest.is_empty() && !rest.starts_with('/') {
        return None;
    }
    let versions = extension.versions();
    let document = match parts.as_slice() {
        [] => {
            let mut document = group_value(extension);
            document["kind"] = json!("APIGroup");
            document["apiVersion"] = json!("v1");
            document
        }
        [version, ..] if !versions.contains(version) => return Some(Err(Status::no_such_path())),
        [version] => json!({"kind": "APIResourceList", "apiVersion": "v1",
            "groupVersion": group_version(group, version), "resources": extension.resources()}),
        _ if info.verb != "get" => {
            let resource = berth_apimachinery::meta::GroupResource::new(group, &info.resource);
            return Some(Err(Status::method_not_supported(&resource, &info.verb)));
        }
        _ => {
            let offered = &OFFERED[..2];
            return Some(match negotiation::choose(accept, offered, |_, _| true) {
                Some((media, _)) => extension.get(info, query).map(|document| encoded(Encoding::of(media), &document)),
                None => Err(Status::not_acceptable(offered)),
            });
        }
    };
    Some(Ok(in_accepted(accept, &document)))
}
