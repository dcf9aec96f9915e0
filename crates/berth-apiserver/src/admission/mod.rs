//! The admission chain, which runs between decoding and storing. Plugins run in order: first all
//! [`AdmissionPlugin::mutate`], then, after defaulting and schema validation, all
//! [`AdmissionPlugin::validate`].
//!
//! Plugins are plain functions on JSON. They read other stored objects through [`Objects`] and
//! never write. The [`webhooks`] come after the plugins in both phases.

mod certificates;
mod claim_resize;
mod default_classes;
mod lifecycle;
mod limit_ranger;
pub mod pod_security;
pub mod policies;
mod priority;
pub(crate) mod quota;
pub(crate) mod quota_hook;
mod runtime_class;
mod service_account;
mod storage_protection;
mod tolerations;
pub mod webhooks;

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

use berth_apimachinery::meta::{self, GroupResource};
use berth_apimachinery::packed;
use berth_apimachinery::status::Status;
use berth_cel::admission::mutating::MutatingPolicy;
use berth_cel::admission::policy::Policy;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;

use crate::kind_hooks::{Commit, KindHook};
use crate::own_requests::OwnRequests;
use crate::registry::ResourceInfo;
use crate::rest::Options;
use crate::state::State;
use crate::strategy::Strategy;
use crate::{Objects, UserInfo};

/// The operation of a request, as admission sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The object is new.
    Create,
    /// The object (or one of its subresources) changes.
    Update,
    /// The object is deleted.
    Delete,
    /// A connection through a subresource such as `exec`, which stores nothing.
    Connect,
}

/// One object on its way through admission.
pub struct AdmissionRequest<'a> {
    /// The operation.
    pub operation: Operation,
    /// Group of the requested resource, empty for core.
    pub group: &'a str,
    /// Version of the request; `object` and `old_object` are of this version.
    pub version: &'a str,
    /// Plural name of the resource.
    pub resource: &'a str,
    /// Subresource, empty for the object itself.
    pub subresource: &'a str,
    /// Kind of `object`.
    pub kind: &'a str,
    /// Namespace, empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// Name; empty on create with `generateName` until a name was generated.
    pub name: &'a str,
    /// The object to store, its `managedFields` [packed]; `None` on delete.
    pub object: Option<Value>,
    /// The stored object, on update and delete.
    pub old_object: Option<Arc<Value>>,
    /// The user that sent the request.
    pub user: &'a UserInfo,
    /// True if this is a dry run, which stores nothing.
    pub dry_run: bool,
    /// Options of the request, which admission reviews repeat.
    pub(crate) options: &'a Options,
    /// Other stored objects.
    pub objects: &'a Objects,
    /// Messages for `Warning` headers of the response.
    pub warnings: Vec<String>,
    /// Facts for the audit log, if it is written.
    pub(crate) annotations: &'a Annotations,
    /// Strategy that adds defaults introduced after the object was stored; `None` once they are
    /// added.
    pub(crate) completes: Option<&'static dyn Strategy>,
}

/// Facts about one request for the audit log, by key. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Annotations(Arc<Mutex<BTreeMap<String, String>>>);

impl Annotations {
    fn add(&self, key: String, value: String) {
        // The first value of a key wins, as upstream.
        self.0.lock().entry(key).or_insert(value);
    }

    /// Removes and returns all facts.
    pub(crate) fn take(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl AdmissionRequest<'_> {
    /// Converts the objects into the form that policies and webhooks expect: `managedFields` as a
    /// list, and the stored object with all its defaults.
    pub(crate) fn expand(&mut self) {
        self.object.as_mut().map(packed::expand);
        self.old_object = self.old_object.take().map(packed::expanded_shared);
        if let (Some(strategy), Some(old)) = (self.completes.take(), &mut self.old_object) {
            strategy.default(Arc::make_mut(old));
        }
    }

    /// Records an annotation for the audit log.
    pub(crate) fn annotate(&self, key: String, value: String) {
        self.annotations.add(key, value);
    }
}

/// A step of admission, which may change or reject requests that write objects.
pub trait AdmissionPlugin: Send + Sync {
    /// Name for messages.
    fn name(&self) -> &str;

    /// Changes `request.object` before it is defaulted and validated. An error rejects the
    /// request.
    fn mutate(&self, _request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        Ok(())
    }

    /// Validates the final object. An error rejects the request.
    fn validate(&self, _request: &AdmissionRequest<'_>) -> Result<(), Status> {
        Ok(())
    }

    /// Warnings about an object that every plugin accepted.
    fn warn(&self, _request: &AdmissionRequest<'_>) -> Vec<String> {
        Vec::new()
    }
}

/// The built-in plugins, in their order. `seed` determines the names they generate.
pub(crate) fn builtin(
    seed: u64,
    has_tokens: bool,
    pod_security: pod_security::PodSecurity,
) -> Vec<Arc<dyn AdmissionPlugin>> {
    vec![
        Arc::<lifecycle::NamespaceLifecycle>::default(),
        Arc::new(limit_ranger::LimitRanger),
        Arc::new(service_account::ServiceAccounts::new(seed, has_tokens)),
        Arc::new(priority::Priority),
        Arc::new(tolerations::DefaultTolerationSeconds),
        Arc::new(tolerations::ExtendedResourceToleration),
        Arc::new(pod_security::Plugin::new(pod_security)),
        Arc::new(default_classes::DefaultStorageClass),
        Arc::new(storage_protection::StorageProtection),
        Arc::new(claim_resize::ClaimResize),
        Arc::new(runtime_class::RuntimeClass),
        Arc::new(certificates::Certificates),
        Arc::new(default_classes::DefaultIngressClass),
        Arc::new(crate::auth::escalation::EscalationCheck),
    ]
}

/// The admission chain, with the caches of configurations that clients write.
pub(crate) struct Admission {
    state: Arc<State>,
    plugins: Vec<Arc<dyn AdmissionPlugin>>,
    webhooks: webhooks::Cache,
    policies: policies::Cache<Policy>,
    mutating_policies: policies::Cache<MutatingPolicy>,
}

impl Admission {
    /// A chain of plugins, in their order.
    pub(crate) fn new(state: Arc<State>, plugins: Vec<Arc<dyn AdmissionPlugin>>) -> Admission {
        let (policies, mutating_policies) = (Default::default(), Default::default());
        Admission { state, plugins, webhooks: webhooks::Cache::default(), policies, mutating_policies }
    }

    /// Runs the mutating phase: all plugins, then policies (and the plugins again when a policy
    /// changed the object), then webhooks.
    pub(crate) async fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        let plugins = |request: &mut AdmissionRequest<'_>| {
            // Plugins do not see the packed `managedFields`, so that a plugin that parses and
            // re-serialises the object cannot damage them.
            let managed = request.object.as_mut().and_then(packed::take);
            self.plugins.iter().try_for_each(|plugin| plugin.mutate(request))?;
            if let Some(object) = &mut request.object {
                packed::put_back(object, managed);
            }
            Ok(())
        };
        plugins(request)?;
        if policies::mutating::mutate(&self.state, &self.mutating_policies, request)? {
            plugins(request)?;
        }
        webhooks::mutate(&self.state, &self.webhooks, request, plugins).await
    }

    /// Runs the validating phase: all plugins, then policies, then webhooks. Quotas are
    /// [charged](quota::Quotas::charge) after that, because a charge would have to be released when
    /// a webhook rejects the request.
    pub(crate) async fn validate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        self.plugins.iter().try_for_each(|plugin| plugin.validate(request))?;
        for plugin in &self.plugins {
            let warnings = plugin.warn(request);
            request.warnings.extend(warnings);
        }
        policies::validate(&self.state, &self.policies, request)?;
        webhooks::validate(&self.state, &self.webhooks, request).await
    }
}

/// The hook of policies, their bindings and webhook configurations: a write clears the caches.
impl KindHook for Admission {
    fn is_about(&self, row: &ResourceInfo) -> bool {
        row.group == webhooks::GROUP
    }

    fn after_commit<'a>(&'a self, _requests: &'a dyn OwnRequests, _commit: Commit<'a>) -> BoxFuture<'a, ()> {
        self.webhooks.forget();
        self.policies.forget();
        self.mutating_policies.forget();
        ready(()).boxed()
    }
}

/// A 403 Status about the request's object, with a plugin's reason.
pub(crate) fn forbidden(request: &AdmissionRequest<'_>, why: &str) -> Status {
    let resource = GroupResource::new(request.group, request.resource);
    let name = match (&request.object, request.name) {
        (Some(object), "") => meta::generate_name(object).to_owned(),
        (_, name) => name.to_owned(),
    };
    Status::forbidden(&resource, &name, why)
}

/// True if the request creates a pod.
pub(crate) fn is_pod_create(request: &AdmissionRequest<'_>) -> bool {
    request.operation == Operation::Create && is_of_pod(request)
}

/// Whether the request creates or updates a pod.
pub(crate) fn is_pod_write(request: &AdmissionRequest<'_>) -> bool {
    matches!(request.operation, Operation::Create | Operation::Update) && is_of_pod(request)
}

fn is_of_pod(request: &AdmissionRequest<'_>) -> bool {
    request.group.is_empty() && request.resource == "pods" && request.subresource.is_empty()
}
