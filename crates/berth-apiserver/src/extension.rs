//! API groups that other code in this process serves. In other clusters, an aggregated API server
//! would serve such a group. The groups store nothing: what a client creates is a question, and the
//! response is the answer. Requests for them are authorized like all requests.

use std::pin::Pin;
use std::sync::Arc;

use berth_apimachinery::meta::GroupResource;
use berth_apimachinery::status::Status;
use berth_apimachinery::table::{self, Column};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

use crate::discovery::{encoded, group_version, in_accepted};
use crate::rest::{About, Form, Options, accept_form, accept_header, partial};
use crate::{Body, RequestInfo, UserInfo};

/// An API group that other code in this process serves.
pub trait Extension: Send + Sync {
    /// The group.
    fn group(&self) -> &str;
    /// Its versions, the preferred one first.
    fn versions(&self) -> &[&str];
    /// Its resources, as discovery lists them.
    fn resources(&self) -> Vec<Value>;
    /// Responds to `get` of an object or of its subresource, and to `list` of resources that have
    /// the verb, for an authorized user. The error is the response's Status. The implementation may
    /// call the API server, because the waiting request holds no lane.
    fn get<'a>(&'a self, asked: Asked<'a>) -> Answer<'a>;
    /// Responds to `create` of resources that have the verb, for an authorized user: answers the
    /// question in the request's body, and stores nothing.
    fn create<'a>(&'a self, asked: Asked<'a>, _body: &'a [u8]) -> Answer<'a> {
        let resource = GroupResource::new(self.group(), &asked.info.resource);
        Box::pin(std::future::ready(Err(Status::method_not_supported(&resource, &asked.info.verb))))
    }
    /// Columns of the resource's Table. Resources without columns are sent as objects only.
    fn columns(&self, _resource: &str) -> Vec<Column> {
        Vec::new()
    }
    /// Cells of an object's row, one for each of its resource's columns.
    fn cells(&self, _resource: &str, _object: &Value) -> Vec<Value> {
        Vec::new()
    }
}

/// A request to an [`Extension`], with its user.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// The request.
    pub info: &'a RequestInfo,
    /// Its query string.
    pub query: &'a str,
    /// The user that sent it.
    pub user: &'a UserInfo,
}

/// Future of an extension's response.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Value, Status>> + Send + 'a>>;

/// The group as discovery lists it.
pub(crate) fn group_value(extension: &dyn Extension) -> Value {
    let (group, versions) = (extension.group(), extension.versions());
    let all: Vec<Value> =
        versions.iter().map(|it| json!({"groupVersion": group_version(group, it), "version": it})).collect();
    json!({"name": group, "versions": all, "preferredVersion": all[0]})
}

/// The extension that serves the request's group, if any.
pub fn find<'a>(extensions: &'a [Arc<dyn Extension>], info: &RequestInfo) -> Option<&'a dyn Extension> {
    let mut extensions = extensions.iter().map(AsRef::as_ref);
    extensions.find(|extension| below(*extension, info).is_some())
}

/// The request's path below the group; `None` for requests for other groups.
fn below<'a>(extension: &dyn Extension, info: &'a RequestInfo) -> Option<&'a str> {
    let rest = info.path.trim_matches('/').strip_prefix("apis/")?.strip_prefix(extension.group())?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

/// The response to a request for the group of an extension that [`find`] returned. Objects are
/// sent in JSON or YAML only: their kinds have no other encoding.
pub async fn answer(
    extension: &dyn Extension,
    asked: Asked<'_>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response<Body>, Status> {
    let Asked { info, .. } = asked;
    let accept = &accept_header(headers);
    let group = extension.group();
    let parts: Vec<&str> = below(extension, info).unwrap_or_default().split('/').skip(1).collect();
    let versions = extension.versions();
    let document = match parts.as_slice() {
        [] => {
            let mut document = group_value(extension);
            document["kind"] = json!("APIGroup");
            document["apiVersion"] = json!("v1");
            document
        }
        [version, ..] if !versions.contains(version) => return Err(Status::no_such_path()),
        [version] => json!({"kind": "APIResourceList", "apiVersion": "v1",
            "groupVersion": group_version(group, version), "resources": extension.resources()}),
        _ if info.verb != "get" && !has_verb(extension, info) => {
            let resource = GroupResource::new(group, &info.resource);
            return Err(Status::method_not_supported(&resource, &info.verb));
        }
        _ => return objects(extension, asked, accept, body).await,
    };
    Ok(in_accepted(accept, &document))
}

/// True if discovery lists the verb for the request's resource.
fn has_verb(extension: &dyn Extension, info: &RequestInfo) -> bool {
    let name = match info.subresource.as_str() {
        "" => info.resource.clone(),
        subresource => format!("{}/{subresource}", info.resource),
    };
    let resources = extension.resources();
    let row = resources.iter().find(|row| row["name"] == name.as_str());
    let verbs = row.and_then(|row| row["verbs"].as_array());
    verbs.into_iter().flatten().any(|verb| verb == info.verb.as_str())
}

/// The response with objects: unchanged, as a Table, or only their metadata.
async fn objects(
    extension: &dyn Extension,
    asked: Asked<'_>,
    accept: &str,
    body: &[u8],
) -> Result<Response<Body>, Status> {
    let resource = asked.info.resource.as_str();
    let columns = extension.columns(resource);
    let about = About { custom: true, watch: false, table: !columns.is_empty() };
    let negotiated = accept_form(accept, about)?;
    if asked.info.verb == "create" {
        let mut created = encoded(negotiated.encoding, &extension.create(asked, body).await?);
        *created.status_mut() = StatusCode::CREATED;
        return Ok(created);
    }
    let document = extension.get(asked).await?;
    let items: &[Value] = match document["items"].as_array() {
        Some(items) => items,
        None => std::slice::from_ref(&document),
    };
    let shown = match &negotiated.form {
        Form::Table(version) => {
            let include = Options::parse(asked.query)?.include_object;
            let rows = items.iter().map(|item| table::row(extension.cells(resource, item), item, include)).collect();
            let mut shown = table::table(&columns, rows, json!({}), true);
            shown["apiVersion"] = format!("meta.k8s.io/{version}").into();
            shown
        }
        Form::Metadata(version) if document["items"].is_array() => {
            let items: Vec<Value> = items.iter().map(|item| partial(item, version)).collect();
            json!({"kind": "PartialObjectMetadataList", "apiVersion": format!("meta.k8s.io/{version}"),
                "metadata": document["metadata"], "items": items})
        }
        Form::Metadata(version) => partial(&document, version),
        Form::Object => document,
    };
    Ok(encoded(negotiated.encoding, &shown))
}
