//! One request for a resource, with all inputs of its response.

use std::sync::Arc;

use berth_apimachinery::meta::{GroupKind, GroupResource};
use berth_apimachinery::names::is_path_segment_name;
use berth_apimachinery::status::Status;
use berth_store::Record;
use bytes::Bytes;
use http::{HeaderMap, Method, header};
use serde_json::Value;

use super::decode::Complaints;
use super::negotiate::{self, About, Negotiated};
use super::options::Options;
use super::view::View;
use crate::admission::{AdmissionRequest, Annotations, Operation};
use crate::auth::{self, Attributes};
use crate::completion::Disconnection;
use crate::crd::CustomKind;
use crate::registry::{Origin, ResourceInfo, VersionInfo};
use crate::request::RequestInfo;
use crate::strategy::{self, Strategy};
use crate::{ApiServer, UserInfo, negotiation, objects};

pub(crate) struct Call {
    pub(crate) server: ApiServer,
    pub(crate) info: RequestInfo,
    pub(crate) row: Arc<ResourceInfo>,
    version: usize,
    pub(crate) custom: Option<Arc<CustomKind>>,
    pub(crate) user: UserInfo,
    pub(crate) client: Disconnection,
    pub(crate) options: Options,
    pub(crate) negotiated: Negotiated,
    /// See [`super::Choices`].
    pub(crate) long_watches: bool,
    pub(crate) content_type: String,
    pub(crate) user_agent: String,
    pub(crate) body: Bytes,
    /// Messages for `Warning` headers.
    pub(crate) warnings: Vec<String>,
    /// Facts for the audit log.
    pub(crate) annotations: Annotations,
    /// Warnings about the patch document, besides those about the patched object.
    pub(crate) of_patch: Complaints,
}

impl Call {
    pub(crate) fn new(
        server: &ApiServer,
        info: RequestInfo,
        row: Arc<ResourceInfo>,
        version: usize,
        custom: Option<Arc<CustomKind>>,
        headers: &HeaderMap,
        query: &str,
        body: Bytes,
        user: UserInfo,
    ) -> Result<Call, Status> {
        let text = |name: header::HeaderName| {
            headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
        };
        // The kind of a scale is built in, also for custom resources.
        let is_scale = row.versions[version].subresource(&info.subresource).is_some_and(|it| it.scale.is_some());
        // Reviews, and subresources that are actions, have no table columns.
        let is_review = row.origin == Origin::Virtual && info.verb == "create";
        let is_done = matches!(
            info.subresource.as_str(),
            "binding" | "eviction" | "token" | "finalize" | "approval" | "resize" | "ephemeralcontainers"
        );
        let about = About {
            custom: matches!(row.origin, Origin::Custom(_)) && !is_scale,
            watch: info.verb == "watch",
            table: !is_review && !is_done,
        };
        let negotiated = negotiate::accept(&negotiate::accept_header(headers), about)?;
        let mut options = Options::parse(query)?;
        let user_agent = text(header::USER_AGENT);
        if options.pretty.is_none() && (negotiated.pretty || negotiation::is_pretty(None, &user_agent)) {
            options.pretty = Some(true);
        }
        let warnings = row.versions[version].deprecation_warning.iter().cloned().collect();
        Ok(Call {
            server: server.clone(),
            options,
            negotiated,
            long_watches: false,
            content_type: text(header::CONTENT_TYPE),
            user_agent,
            info,
            row,
            version,
            custom,
            user,
            client: Disconnection::default(),
            body,
            warnings,
            annotations: Annotations::default(),
            of_patch: Complaints::default(),
        })
    }

    /// A copy of the call, without the body, for a stream that outlives the request.
    pub(crate) fn for_stream(&self) -> Call {
        Call {
            server: self.server.clone(),
            info: self.info.clone(),
            row: self.row.clone(),
            version: self.version,
            custom: self.custom.clone(),
            user: self.user.clone(),
            client: self.client.clone(),
            options: self.options.clone(),
            negotiated: self.negotiated.clone(),
            long_watches: self.long_watches,
            content_type: String::new(),
            user_agent: String::new(),
            body: Bytes::new(),
            warnings: Vec::new(),
            annotations: Annotations::default(),
            of_patch: Complaints::default(),
        }
    }

    pub(crate) fn version(&self) -> &VersionInfo {
        &self.row.versions[self.version]
    }

    pub(crate) fn view(&self) -> View {
        View { row: self.row.clone(), version: self.version().name.clone(), custom: self.custom.clone() }
    }

    pub(crate) fn strategy(&self) -> &'static dyn Strategy {
        strategy::of(&self.row)
    }

    pub(crate) fn group_resource(&self) -> GroupResource {
        GroupResource::new(&self.row.group, &self.row.plural)
    }

    pub(crate) fn group_kind(&self) -> GroupKind {
        GroupKind::new(&self.row.group, &self.row.kind)
    }

    /// The `apiVersion` of objects in this request.
    pub(crate) fn api_version(&self) -> String {
        self.row.api_version(&self.version().name)
    }

    /// True if the object's `status` is written through its subresource only.
    pub(crate) fn has_status_subresource(&self) -> bool {
        self.version().subresource("status").is_some()
    }

    /// Namespaced kinds need a namespace, except for reads of all namespaces; cluster-scoped kinds
    /// have none.
    pub(crate) fn check_scope(&self) -> Result<(), Status> {
        let is_namespace = self.row.group.is_empty() && self.row.plural == "namespaces";
        if !self.row.namespaced {
            return if self.info.namespace.is_empty() || is_namespace { Ok(()) } else { Err(Status::no_such_path()) };
        }
        if self.info.namespace.is_empty() {
            let reads_all = matches!(self.info.verb.as_str(), "list" | "watch");
            // All other requests need a namespace in the path, even if the body names one, as
            // upstream.
            return if reads_all { Ok(()) } else { Err(Status::no_such_path()) };
        }
        Ok(())
    }

    /// The namespace of the requested objects.
    pub(crate) fn namespace(&self) -> &str {
        if self.row.namespaced { &self.info.namespace } else { "" }
    }

    /// The request's verb, if the resource or subresource supports it.
    pub(crate) fn check_verb(&self, method: &Method) -> Result<String, Status> {
        let verb = self.info.verb.clone();
        let resource = self.group_resource();
        if !self.info.subresource.is_empty() {
            let subresource = self.version().subresource(&self.info.subresource).ok_or_else(Status::no_such_path)?;
            let supported = subresource.verbs.contains(&verb);
            return if supported {
                Ok(verb)
            } else {
                Err(Status::method_not_supported(&resource, method_verb(method)))
            };
        }
        if self.info.parts.len() > 2 {
            return Err(Status::no_such_path());
        }
        let named = self.info.parts.len() > 1;
        let fits = match verb.as_str() {
            "create" | "list" | "deletecollection" => !named,
            "get" | "update" | "patch" | "delete" => named,
            // The path may request a watch (`/watch/`) with any method.
            "watch" => *method == Method::GET,
            _ => false,
        };
        if fits && self.row.verbs.contains(&verb) {
            Ok(verb)
        } else {
            Err(Status::method_not_supported(&resource, method_verb(method)))
        }
    }

    /// No object has a name that cannot be a segment of a path.
    pub(crate) fn check_name(&self) -> Result<(), Status> {
        let name = &self.info.name;
        let problems = if self.info.parts.len() > 1 { is_path_segment_name(name) } else { Vec::new() };
        match problems.is_empty() {
            true => Ok(()),
            false => Err(Status::bad_request(format!("Name parameter invalid: {name:?}: {}", problems.join(";")))),
        }
    }

    /// Storage key of the requested object.
    pub(crate) fn key(&self) -> String {
        self.key_of(&self.info.name)
    }

    pub(crate) fn key_of(&self, name: &str) -> String {
        let (group, plural) = self.row.storage();
        objects::key(group, plural, self.namespace(), name)
    }

    /// Common prefix of the storage keys of the requested objects.
    pub(crate) fn prefix(&self) -> String {
        let (group, plural) = self.row.storage();
        let namespace = self.namespace();
        objects::prefix(group, plural, (!namespace.is_empty()).then_some(namespace))
    }

    pub(crate) fn not_found(&self) -> Status {
        Status::not_found(&self.group_resource(), &self.info.name)
    }

    /// Returns 403 unless the user may create the requested object. Permission to change objects is
    /// not enough for a change that creates a missing object.
    pub(crate) fn authorize_create(&self) -> Result<(), Status> {
        let attributes = Attributes { verb: "create", ..Attributes::of(&self.info) };
        let decision = auth::decide(&self.server.inner.objects, &attributes, &self.user);
        if decision.allowed { Ok(()) } else { Err(attributes.forbidden(&self.user, &decision.reason)) }
    }

    /// The stored object with the requested name.
    pub(crate) fn stored(&self) -> Result<Arc<Record>, Status> {
        self.server.store().get(&self.key()).ok_or_else(|| self.not_found())
    }

    /// The request in the form of the admission chain.
    pub(crate) fn admission<'a>(
        &'a self,
        operation: Operation,
        name: &'a str,
        object: Option<Value>,
        old_object: Option<Arc<Value>>,
    ) -> AdmissionRequest<'a> {
        let kind = match self.version().subresource(&self.info.subresource) {
            Some(subresource) => &subresource.kind,
            None => &self.row.kind,
        };
        AdmissionRequest {
            operation,
            group: &self.row.group,
            version: &self.version().name,
            resource: &self.row.plural,
            subresource: &self.info.subresource,
            kind,
            namespace: self.namespace(),
            name,
            object,
            old_object,
            user: &self.user,
            dry_run: self.options.dry_run,
            options: &self.options,
            objects: &self.server.inner.objects,
            warnings: Vec::new(),
            annotations: &self.annotations,
            // A scale or a binding is not stored, so it has no older defaults to add.
            completes: (self.custom.is_none() && *kind == self.row.kind).then(|| self.strategy()),
        }
    }
}

fn method_verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}
