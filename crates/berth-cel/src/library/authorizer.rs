//! Authorization checks, built step by step and performed by `check`.

use std::sync::Arc;

use super::{Implementation, no_overload};
use crate::eval::EvalError;
use crate::value::Value;

/// The attributes of an authorization check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The user to check instead of the user of the request.
    pub user: Option<User>,
    /// The verb.
    pub verb: String,
    /// The path, for checks of non-resource URLs.
    pub path: Option<String>,
    /// Group of the resource; the version is always `*`.
    pub group: String,
    /// Plural name of the resource.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The namespace, or empty.
    pub namespace: String,
    /// The name, or empty.
    pub name: String,
    /// The field selector as written.
    pub field_selector: Option<String>,
    /// The label selector as written.
    pub label_selector: Option<String>,
}

/// A user, with UID and groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// The identifier, or empty.
    pub uid: String,
    /// The groups.
    pub groups: Vec<String>,
}

/// An authorizer's verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// True if the attributes are allowed.
    pub allowed: bool,
    /// The reason of the verdict.
    pub reason: String,
    /// The error that occurred during the check, if any.
    pub error: Option<String>,
}

/// Performs authorization checks.
pub trait Authorizer {
    /// Returns whether the attributes are allowed.
    fn authorize(&self, attributes: &Attributes) -> Verdict;
}

/// A verdict as a CEL value.
pub type Decision = Verdict;

/// An incomplete authorization check.
#[derive(Clone, Debug)]
pub struct Check {
    kind: Kind,
    attributes: Attributes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Authorizer,
    Path,
    Group,
    Resource,
}

impl Check {
    /// The value of `authorizer`.
    pub fn authorizer() -> Value<'static> {
        Value::Check(Arc::new(Check { kind: Kind::Authorizer, attributes: Attributes::default() }))
    }

    /// The value of `authorizer.requestResource`.
    pub fn request_resource(attributes: Attributes) -> Value<'static> {
        Value::Check(Arc::new(Check { kind: Kind::Resource, attributes }))
    }

    pub(crate) fn type_name(&self) -> &'static str {
        match self.kind {
            Kind::Authorizer => "kubernetes.authorization.Authorizer",
            Kind::Path => "kubernetes.authorization.PathCheck",
            Kind::Group => "kubernetes.authorization.GroupCheck",
            Kind::Resource => "kubernetes.authorization.ResourceCheck",
        }
    }

    fn with<'a>(&self, kind: Kind, change: impl FnOnce(&mut Attributes)) -> Result<Value<'a>, EvalError> {
        let mut attributes = self.attributes.clone();
        change(&mut attributes);
        Ok(Value::Check(Arc::new(Check { kind, attributes })))
    }
}

pub(super) fn implementation(name: &str) -> Option<Implementation> {
    Some(match name {
        "path" => |_, args| match args {
            [Value::Check(check), Value::String(path)] if check.kind == Kind::Authorizer => {
                check.with(Kind::Path, |attributes| attributes.path = Some(path.to_string()))
            }
            _ => no_overload(),
        },
        "group" => |_, args| match args {
            [Value::Check(check), Value::String(group)] if check.kind == Kind::Authorizer => {
                check.with(Kind::Group, |attributes| attributes.group = group.to_string())
            }
            _ => no_overload(),
        },
        "serviceAccount" => |_, args| match args {
            [Value::Check(check), Value::String(namespace), Value::String(name)] if check.kind == Kind::Authorizer => {
                let problems = |text: &str, problems: Vec<String>| {
                    (!problems.is_empty()).then(|| EvalError::message(format!("Invalid service account {text}")))
                };
                let wrong = problems("namespace", berth_apimachinery::names::is_dns1123_label(namespace))
                    .or_else(|| problems("name", berth_apimachinery::names::is_dns1123_subdomain(name)));
                if let Some(error) = wrong {
                    return Err(error);
                }
                let account = User {
                    name: berth_apimachinery::names::service_account_user_name(namespace, name),
                    uid: String::new(),
                    groups: vec![
                        "system:serviceaccounts".to_owned(),
                        format!("system:serviceaccounts:{}", &**namespace),
                    ],
                };
                check.with(Kind::Authorizer, |attributes| attributes.user = Some(account))
            }
            _ => no_overload(),
        },
        "resource" => |_, args| match args {
            [Value::Check(check), Value::String(resource)] if check.kind == Kind::Group => {
                check.with(Kind::Resource, |attributes| attributes.resource = resource.to_string())
            }
            _ => no_overload(),
        },
        "subresource" => |_, args| narrow(args, |attributes, text| attributes.subresource = text),
        "namespace" => |_, args| narrow(args, |attributes, text| attributes.namespace = text),
        "name" => |_, args| narrow(args, |attributes, text| attributes.name = text),
        "fieldSelector" => |_, args| narrow(args, |attributes, text| attributes.field_selector = Some(text)),
        "labelSelector" => |_, args| narrow(args, |attributes, text| attributes.label_selector = Some(text)),
        "check" => |machine, args| match args {
            [Value::Check(check), Value::String(verb)] if matches!(check.kind, Kind::Path | Kind::Resource) => {
                let Some(authorizer) = machine.authorizer else {
                    return Err(EvalError::message("there is no authorizer to ask"));
                };
                let attributes = Attributes { verb: verb.to_string(), ..check.attributes.clone() };
                Ok(Value::Decision(Arc::new(authorizer.authorize(&attributes))))
            }
            _ => no_overload(),
        },
        "allowed" => |_, args| decided(args, |decision| Value::Bool(decision.allowed)),
        "reason" => |_, args| decided(args, |decision| Value::from(decision.reason.clone())),
        "errored" => |_, args| decided(args, |decision| Value::Bool(decision.error.is_some())),
        "error" => |_, args| decided(args, |decision| Value::from(decision.error.clone().unwrap_or_default())),
        _ => return None,
    })
}

fn narrow<'a>(args: &[Value<'a>], set: fn(&mut Attributes, String)) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Check(check), Value::String(text)] if check.kind == Kind::Resource => {
            check.with(Kind::Resource, |attributes| set(attributes, text.to_string()))
        }
        _ => no_overload(),
    }
}

fn decided<'a>(args: &[Value<'a>], take: fn(&Decision) -> Value<'static>) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Decision(decision)] => Ok(take(decision)),
        _ => no_overload(),
    }
}
