//! Authorization checks, built step by step and performed by `check`.

use std::sync::Arc;

use berth_apimachinery::names;

use super::{Implementation, no_overload};
use crate::authorization::{Attributes, Check, Kind, User, Verdict};
use crate::error::EvalError;
use crate::value::{Outcome, Value};

pub(super) fn implementation(name: &str) -> Option<Implementation> {
    Some(match name {
        "path" => |_, args| match args {
            [Value::Check(check), Value::String(path)] if check.kind == Kind::Authorizer => {
                with(check, Kind::Path, |attributes| attributes.path = Some(path.to_string()))
            }
            _ => no_overload(),
        },
        "group" => |_, args| match args {
            [Value::Check(check), Value::String(group)] if check.kind == Kind::Authorizer => {
                with(check, Kind::Group, |attributes| attributes.group = group.to_string())
            }
            _ => no_overload(),
        },
        "serviceAccount" => |_, args| match args {
            [Value::Check(check), Value::String(namespace), Value::String(name)] if check.kind == Kind::Authorizer => {
                let problems = |text: &str, problems: Vec<String>| {
                    (!problems.is_empty()).then(|| EvalError::message(format!("Invalid service account {text}")))
                };
                let wrong = problems("namespace", names::is_dns1123_label(namespace))
                    .or_else(|| problems("name", names::is_dns1123_subdomain(name)));
                if let Some(error) = wrong {
                    return Err(error);
                }
                let account = User {
                    name: names::service_account_user_name(namespace, name),
                    uid: String::new(),
                    groups: vec![
                        "system:serviceaccounts".to_owned(),
                        format!("system:serviceaccounts:{}", &**namespace),
                    ],
                };
                with(check, Kind::Authorizer, |attributes| attributes.user = Some(account))
            }
            _ => no_overload(),
        },
        "resource" => |_, args| match args {
            [Value::Check(check), Value::String(resource)] if check.kind == Kind::Group => {
                with(check, Kind::Resource, |attributes| attributes.resource = resource.to_string())
            }
            _ => no_overload(),
        },
        "subresource" => |_, args| narrow(args, |attributes, text| attributes.subresource = text),
        "namespace" => |_, args| narrow(args, |attributes, text| attributes.namespace = text),
        "name" => |_, args| narrow(args, |attributes, text| attributes.name = text),
        "fieldSelector" => |_, args| narrow(args, |attributes, text| attributes.field_selector = Some(text)),
        "labelSelector" => |_, args| narrow(args, |attributes, text| attributes.label_selector = Some(text)),
        "check" => |authorizer, args| match args {
            [Value::Check(check), Value::String(verb)] if matches!(check.kind, Kind::Path | Kind::Resource) => {
                let Some(authorizer) = authorizer else {
                    return Err(EvalError::message("no authorizer is available"));
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

/// A check of this kind with changed attributes.
fn with<'a>(check: &Check, kind: Kind, change: impl FnOnce(&mut Attributes)) -> Outcome<'a> {
    let mut attributes = check.attributes.clone();
    change(&mut attributes);
    Ok(Value::from(Check { kind, attributes }))
}

fn narrow<'a>(args: &[Value<'a>], set: fn(&mut Attributes, String)) -> Outcome<'a> {
    match args {
        [Value::Check(check), Value::String(text)] if check.kind == Kind::Resource => {
            with(check, Kind::Resource, |attributes| set(attributes, text.to_string()))
        }
        _ => no_overload(),
    }
}

fn decided<'a>(args: &[Value<'a>], take: fn(&Verdict) -> Value<'static>) -> Outcome<'a> {
    match args {
        [Value::Decision(decision)] => Ok(take(decision)),
        _ => no_overload(),
    }
}
