//! Authentication of wire requests, RBAC authorization, impersonation and access reviews.
//!
//! [`authn`] authenticates requests over the wire; in-process clients get an identity when they
//! are created. [`impersonate`] switches to another user if RBAC permits it. [`authorize`] then
//! evaluates [`rbac`] over the stored roles and bindings; members of `system:masters` may do
//! everything. Roles and bindings come from the store's memory, and are compiled once for all
//! requests until one of them changes.

pub mod authn;
pub mod bootstrap;
mod compiled;
pub mod escalation;
pub mod impersonation;
pub(crate) mod issuer;
pub mod paths;
pub mod rbac;
pub mod reconcile;
pub mod request_header;
pub mod review;
pub mod tokens;

use std::sync::Arc;

use berth_apimachinery::field::quote;
use berth_apimachinery::meta::GroupResource;
use berth_apimachinery::status::Status;
use serde_json::Value;

use crate::{Objects, RequestInfo, ResourceInfo, UserInfo};

pub(crate) use compiled::Compiled;

/// The group whose members may do everything.
pub const MASTERS: &str = "system:masters";
pub(crate) const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

/// The attributes of a request that authorization evaluates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// `get`, `list`, …, `impersonate`; the lower-cased HTTP method for paths.
    pub verb: &'a str,
    /// Group of the resource.
    pub group: &'a str,
    /// Plural name of the resource.
    pub resource: &'a str,
    /// Subresource, empty for the object itself.
    pub subresource: &'a str,
    /// Name of the object; empty for requests without one.
    pub name: &'a str,
    /// Namespace, empty for cluster scope.
    pub namespace: &'a str,
    /// Path of a request that is not for a resource.
    pub path: &'a str,
    /// True if the request is for a resource; otherwise it is for `path`.
    pub is_resource_request: bool,
}

impl<'a> Attributes<'a> {
    /// The attributes of a request.
    pub fn of(info: &'a RequestInfo) -> Attributes<'a> {
        Attributes {
            verb: &info.verb,
            group: &info.api_group,
            resource: &info.resource,
            subresource: &info.subresource,
            name: &info.name,
            namespace: &info.namespace,
            path: &info.path,
            is_resource_request: info.is_resource_request,
        }
    }

    /// `User "x" cannot list resource "pods" in API group "" in the namespace "y"`.
    pub fn refusal(&self, user: &UserInfo) -> String {
        let user = quote(&user.name);
        if !self.is_resource_request {
            return format!("User {user} cannot {} path {}", self.verb, quote(&escape_html(self.path)));
        }
        let resource = match self.subresource {
            "" => self.resource.to_owned(),
            subresource => format!("{}/{subresource}", self.resource),
        };
        let scope = match self.namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {}", quote(namespace)),
        };
        let (verb, resource, group) = (self.verb, quote(&resource), quote(self.group));
        format!("User {user} cannot {verb} resource {resource} in API group {group} {scope}")
    }

    /// The 403 Status for these attributes; `reason` is the authorizer's addition, which may be
    /// empty.
    pub fn forbidden(&self, user: &UserInfo, reason: &str) -> Status {
        let mut why = self.refusal(user);
        if !reason.is_empty() {
            why = format!("{why}: {reason}");
        }
        if self.is_resource_request {
            return Status::forbidden(&GroupResource::new(self.group, self.resource), self.name, &why);
        }
        Status::forbidden(&GroupResource::new("", ""), "", &why)
    }
}

/// Escapes HTML: paths and names come from clients, and browsers may display them.
fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&#34;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// An authorizer's decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// True if the request is allowed.
    pub allowed: bool,
    /// The binding that allows the request, or errors during evaluation; may be empty.
    pub reason: String,
}

/// Decides, with the stored roles and bindings, whether `user` may do what `attributes` describe.
pub fn decide(objects: &Objects, attributes: &Attributes<'_>, user: &UserInfo) -> Decision {
    if user.in_group(MASTERS) {
        return Decision { allowed: true, reason: String::new() };
    }
    rbac::decide(&StoredPolicies(objects), attributes, user)
}

/// Checks that `user` may send the request `info`; the error is the 403 Status.
pub fn authorize(objects: &Objects, info: &RequestInfo, user: &UserInfo) -> Result<(), Status> {
    let attributes = Attributes::of(info);
    if !attributes.is_resource_request && paths::AllowedPaths::health().allows(attributes.path) {
        return Ok(());
    }
    let decision = decide(objects, &attributes, user);
    if decision.allowed { Ok(()) } else { Err(attributes.forbidden(user, &decision.reason)) }
}

/// Applies `Impersonate-*` headers: checks that `user` may impersonate, removes the headers, and
/// returns the user that the request runs as.
pub fn impersonate(objects: &Objects, user: UserInfo, headers: &mut http::HeaderMap) -> Result<UserInfo, Status> {
    impersonation::apply(user, headers, |user, attributes| decide(objects, attributes, user))
}

/// Responds to a create on a row of origin [`crate::registry::Origin::Virtual`]
/// (SubjectAccessReview and related kinds).
pub fn review(
    objects: &Objects,
    tokens: Option<&tokens::Tokens>,
    row: &ResourceInfo,
    info: &RequestInfo,
    user: &UserInfo,
    body: Value,
) -> Result<Value, Status> {
    review::answer(objects, tokens, row, info, user, body)
}

/// The stored roles and bindings, compiled once per change.
pub struct StoredPolicies<'a>(pub &'a Objects);

impl rbac::Policies for StoredPolicies<'_> {
    fn role(&self, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.0.get(RBAC_GROUP, "roles", namespace, name)
    }

    fn cluster_role(&self, name: &str) -> Option<Arc<Value>> {
        self.0.get(RBAC_GROUP, "clusterroles", "", name)
    }

    fn cluster_roles(&self) -> Vec<Arc<Value>> {
        self.0.list(RBAC_GROUP, "clusterroles", None)
    }

    fn role_bindings(&self, namespace: &str) -> Vec<Arc<Value>> {
        self.0.list(RBAC_GROUP, "rolebindings", Some(namespace))
    }

    fn cluster_role_bindings(&self) -> Vec<Arc<Value>> {
        self.0.list(RBAC_GROUP, "clusterrolebindings", None)
    }

    fn bindings(&self, namespace: &str) -> Arc<Vec<rbac::Binding>> {
        self.0.compiled().bindings(namespace, || rbac::bindings_of(self, namespace))
    }

    fn rules(&self, kind: &str, name: &str, namespace: &str) -> Result<Arc<Vec<rbac::Rule>>, String> {
        self.0.compiled().rules(kind, name, namespace, || rbac::rules_of(self, kind, name, namespace))
    }
}
