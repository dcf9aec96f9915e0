//! Expressions about requests: validating and mutating policies, and match conditions of webhooks.
//!
//! | purpose | module |
//! |---|---|
//! | inputs of expressions | this module |
//! | policies: variables, validations, messages, audit annotations, decisions | [`policy`] |
//! | whether a webhook or policy applies to a request | [`conditions`] |
//! | warnings about expressions that fail for a matched kind | [`typecheck`] |
//! | common parts of validating and mutating policies | `common` |
//! | expressions of a policy that do not compile | [`check`] |
//! | mutating policies: matching and mutations | [`mutating`] |
//! | result of a mutation | [`mutation`] |
//!
//! Source: Kubernetes documentation, "Validating Admission Policy", "Mutating Admission Policy",
//! "Dynamic Admission Control: matchConditions".

mod caching;
pub mod check;
mod common;
pub mod conditions;
pub mod mutating;
pub mod mutation;
pub mod policy;
pub mod typecheck;

pub use caching::CachingAuthorizer;

use std::sync::{Arc, LazyLock};

use berth_apimachinery::schema::Schema;
use serde_json::{Value as Json, json};

use crate::authorization::{Attributes, Authorizer, Check};
use crate::decl::Decl;
use crate::env::Env;
use crate::types::Type;
use crate::value::{Value, untyped, view};

/// The declarations that an expression may refer to.
#[derive(Clone, Debug, Default)]
pub struct Declared {
    /// True if `params` is declared.
    pub params: bool,
    /// True if `authorizer` is declared.
    pub authorizer: bool,
    /// The type of `object` and `oldObject`, if known.
    pub object: Option<Type>,
    /// The type of `variables`, if there are any.
    pub variables: Option<Type>,
}

/// Slots of the variables. An undeclared variable keeps its slot under a name that no expression
/// can contain.
pub(crate) const PLACES: [&str; 8] = [
    "object",
    "oldObject",
    "request",
    "params",
    "namespaceObject",
    "authorizer",
    "authorizer.requestResource",
    "variables",
];

fn schema_of(value: Json, name: &str) -> Arc<Decl> {
    let schema = Schema::parse_crd(&value).expect("a schema of this crate's own");
    Decl::of_schema(&schema, false, name).expect("it has a type")
}

/// The type of `request`.
static REQUEST: LazyLock<Arc<Decl>> = LazyLock::new(|| {
    let text = json!({"type": "string"});
    let object = |names: &[&str]| {
        let fields: serde_json::Map<String, Json> =
            names.iter().map(|name| ((*name).to_owned(), text.clone())).collect();
        json!({"type": "object", "properties": fields})
    };
    let (kind, resource) = (object(&["group", "version", "kind"]), object(&["group", "version", "resource"]));
    let texts = json!({"type": "array", "items": text});
    schema_of(
        json!({"type": "object", "properties": {
            "kind": kind, "resource": resource, "subResource": text, "requestKind": kind, "requestResource": resource,
            "requestSubResource": text, "name": text, "namespace": text, "operation": text,
            "userInfo": {"type": "object", "properties": {"username": text, "uid": text, "groups": texts,
                "extra": {"type": "object", "additionalProperties": texts}}},
            "dryRun": {"type": "boolean"},
        }}),
        "kubernetes.AdmissionRequest",
    )
});

/// The type of `namespaceObject`.
static NAMESPACE: LazyLock<Arc<Decl>> = LazyLock::new(|| {
    let text = json!({"type": "string"});
    let texts = json!({"type": "array", "items": text});
    let map = json!({"type": "object", "additionalProperties": text});
    let time = json!({"type": "string", "format": "date-time"});
    let whole = json!({"type": "integer"});
    schema_of(
        json!({"type": "object", "nullable": true, "properties": {
            "metadata": {"type": "object", "properties": {"name": text, "generateName": text, "namespace": text,
                "labels": map, "annotations": map, "UID": text, "creationTimestamp": time, "deletionTimestamp": time,
                "deletionGracePeriodSeconds": whole, "generation": whole, "resourceVersion": text, "finalizers": texts}},
            "spec": {"type": "object", "properties": {"finalizers": texts}},
            "status": {"type": "object", "properties": {"phase": text, "conditions": {"type": "array", "items": {
                "type": "object", "properties": {"status": text, "type": text, "lastTransitionTime": time,
                    "message": text, "reason": text}}}}},
        }}),
        "kubernetes.Namespace",
    )
});

/// The environment of expressions about requests.
pub fn environment(base: Env, declared: &Declared) -> Env {
    let object = declared.object.clone().unwrap_or(Type::Dyn);
    let check = |name| Type::Opaque(name);
    // `options` may have any type.
    let request = match REQUEST.type_() {
        Type::Object(request) => {
            let mut fields = request.fields.clone().unwrap_or_default();
            fields.insert("options".to_owned(), Type::Dyn);
            Type::Object(Arc::new(crate::types::ObjectType { name: request.name.clone(), fields: Some(fields) }))
        }
        other => other.clone(),
    };
    let types = [
        Some(object.clone()),
        Some(object),
        Some(request),
        declared.params.then_some(Type::Dyn),
        Some(NAMESPACE.type_().clone()),
        declared.authorizer.then(|| check("kubernetes.authorization.Authorizer")),
        declared.authorizer.then(|| check("kubernetes.authorization.ResourceCheck")),
        declared.variables.clone(),
    ];
    PLACES.iter().zip(types).fold(base, |env, (name, type_)| match type_ {
        Some(type_) => env.variable(name, type_),
        None => env.variable("#undeclared", Type::Error),
    })
}

/// The inputs of expressions about a request. [`Json::Null`] marks an absent input.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The new object; null on delete.
    pub object: &'a Json,
    /// The old object; null on create.
    pub old_object: &'a Json,
    /// The request, in the form of an AdmissionReview request.
    pub request: &'a Json,
    /// The parameter object, or null.
    pub params: &'a Json,
    /// The request's namespace, or null.
    pub namespace: &'a Json,
    /// The authorizer behind `authorizer`.
    pub authorizer: Option<&'a dyn Authorizer>,
}

impl<'a> Inputs<'a> {
    /// The values of the variables, in the order of [`PLACES`].
    pub(crate) fn values(&self) -> Vec<Value<'a>> {
        let text = |pointer: &str| self.request.pointer(pointer).and_then(Json::as_str).unwrap_or_default().to_owned();
        let request_resource = Attributes {
            group: text("/resource/group"),
            resource: text("/resource/resource"),
            subresource: text("/subResource"),
            namespace: text("/namespace"),
            name: text("/name"),
            ..Attributes::default()
        };
        vec![
            untyped(self.object),
            untyped(self.old_object),
            untyped(self.request),
            untyped(self.params),
            view(self.namespace, Some(&NAMESPACE)).unwrap_or(Value::Null),
            Check::authorizer().into(),
            Check::request_resource(request_resource).into(),
            Value::Variables,
        ]
    }
}
