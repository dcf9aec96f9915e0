//! Expressions about requests: validating and mutating policies, match conditions of webhooks.
//!
//! | what | where |
//! |---|---|
//! | what expressions see | here |
//! | policies: variables, validations, messages, audit annotations, decisions | [`policy`] |
//! | whether a webhook or policy concerns a request | [`conditions`] |
//! | warnings about expressions that cannot work for a kind | [`typecheck`] |
//! | what policies of both kinds have in common | `common` |
//! | which expressions of a policy do not compile | [`check`] |
//! | mutating policies: whom they concern, their mutations | [`mutating`] |
//! | what one mutation answers | [`mutation`] |
//!
//! Source: Kubernetes documentation, "Validating Admission Policy", "Mutating Admission Policy", "Dynamic Admission
//! Control: matchConditions".

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

use crate::decl::Decl;
use crate::env::Env;
use crate::library::{Attributes, Authorizer, Check};
use crate::types::Type;
use crate::value::{Value, untyped, view};

/// What expressions of one kind may refer to.
#[derive(Clone, Debug, Default)]
pub struct Declared {
    /// `params`.
    pub params: bool,
    /// `authorizer`.
    pub authorizer: bool,
    /// The type of `object` and `oldObject`, where it is known.
    pub object: Option<Type>,
    /// The type of `variables`, where there are some.
    pub variables: Option<Type>,
}

/// Places of the variables; undeclared ones keep their place under a name nobody can write.
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

/// An AdmissionRequest as expressions see it.
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

/// A namespace as expressions see it.
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
    // `options` may be of any kind.
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

/// What a request brings for expressions to look at. JSON null (or [`Json::Null`]) stands for what is not there.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The object; null on delete.
    pub object: &'a Json,
    /// The object as it was; null on create.
    pub old_object: &'a Json,
    /// The request, in the form of an AdmissionReview's.
    pub request: &'a Json,
    /// The parameter object, or null.
    pub params: &'a Json,
    /// The request's namespace, or null.
    pub namespace: &'a Json,
    /// Who answers authorization questions.
    pub authorizer: Option<&'a dyn Authorizer>,
}

impl<'a> Inputs<'a> {
    /// Values in the order of declaration.
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
            Check::authorizer(),
            Check::request_resource(request_resource),
            Value::Variables,
        ]
    }
}
