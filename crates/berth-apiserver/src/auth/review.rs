//! Access reviews: `kubectl auth can-i`, `kubectl auth whoami` and what controllers ask with them. Nothing is stored.

use berth_apimachinery::meta::{GroupKind, GroupResource};
use berth_apimachinery::status::Status;
use berth_apimachinery::{field, meta};
use serde_json::{Map, Value, json};

use super::{Attributes, MASTERS, StoredPolicies, decide, rbac};
use crate::{Objects, RequestInfo, ResourceInfo, UserInfo};

/// Answers a create of a review kind; the answer is the object with its `status`.
pub fn answer(
    objects: &Objects,
    row: &ResourceInfo,
    info: &RequestInfo,
    user: &UserInfo,
    mut body: Value,
) -> Result<Value, Status> {
    let kind = GroupKind::new(&row.group, &row.kind);
    let status = match row.plural.as_str() {
        "selfsubjectreviews" => json!({"userInfo": user_value(user)}),
        "selfsubjectaccessreviews" => access(objects, &kind, &body, user.clone())?,
        "subjectaccessreviews" => {
            let subject = subject(&kind, &body)?;
            access(objects, &kind, &body, subject)?
        }
        "localsubjectaccessreviews" => {
            let asked = body.pointer("/spec/resourceAttributes/namespace").and_then(Value::as_str).unwrap_or_default();
            if asked != info.namespace {
                let (spec, detail) =
                    (field::Path::new("spec"), format!("must match metadata.namespace: {}", info.namespace));
                let attributes = spec.child("resourceAttributes");
                return Err(invalid(&kind, field::Error::invalid(&attributes.child("namespace"), asked, detail)));
            }
            let subject = subject(&kind, &body)?;
            access(objects, &kind, &body, subject)?
        }
        "selfsubjectrulesreviews" => {
            let namespace = body.pointer("/spec/namespace").and_then(Value::as_str).unwrap_or_default();
            if namespace.is_empty() {
                return Err(Status::bad_request("no namespace on request"));
            }
            rules(objects, namespace, user)
        }
        "tokenreviews" => {
            json!({"user": {}, "error": "tokens are reviewed where they are issued; none was given to this door"})
        }
        _ => return Err(Status::method_not_supported(&GroupResource::new(&row.group, &row.plural), "create")),
    };
    let metadata = meta::metadata_mut(&mut body);
    metadata.entry("creationTimestamp").or_insert(Value::Null);
    body["status"] = status;
    Ok(body)
}

fn invalid(kind: &GroupKind, error: field::Error) -> Status {
    Status::invalid(kind, "", &[error])
}

fn user_value(user: &UserInfo) -> Value {
    let mut value = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        value["uid"] = json!(user.uid);
    }
    if !user.extra.is_empty() {
        value["extra"] = json!(user.extra);
    }
    value
}

/// The user a SubjectAccessReview asks about.
fn subject(kind: &GroupKind, body: &Value) -> Result<UserInfo, Status> {
    let spec = body.get("spec").cloned().unwrap_or_default();
    let strings = |value: Option<&Value>| -> Vec<String> {
        let items = value.and_then(Value::as_array).into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let text = |name: &str| spec.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let user = UserInfo {
        name: text("user"),
        uid: text("uid"),
        groups: strings(spec.get("groups")),
        extra: spec
            .get("extra")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(key, values)| (key.to_lowercase(), strings(Some(values))))
            .collect(),
    };
    if user.name.is_empty() && user.groups.is_empty() {
        let spec = field::Path::new("spec");
        let error = field::Error::invalid(&spec.child("user"), "", "at least one of user or group must be specified");
        return Err(invalid(kind, error));
    }
    Ok(user)
}

fn access(objects: &Objects, kind: &GroupKind, body: &Value, user: UserInfo) -> Result<Value, Status> {
    let resource = body.pointer("/spec/resourceAttributes").filter(|value| value.is_object());
    let path = body.pointer("/spec/nonResourceAttributes").filter(|value| value.is_object());
    let text = |value: &'_ Value, name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let decision = match (resource, path) {
        (Some(asked), None) => {
            let (verb, group, resource) = (text(asked, "verb"), text(asked, "group"), text(asked, "resource"));
            let (subresource, name, namespace) =
                (text(asked, "subresource"), text(asked, "name"), text(asked, "namespace"));
            let attributes = Attributes {
                verb: &verb,
                group: &group,
                resource: &resource,
                subresource: &subresource,
                name: &name,
                namespace: &namespace,
                path: "",
                is_resource_request: true,
            };
            decide(objects, &attributes, &user)
        }
        (None, Some(asked)) => {
            let (verb, path) = (text(asked, "verb"), text(asked, "path"));
            decide(objects, &Attributes { verb: &verb, path: &path, ..Attributes::default() }, &user)
        }
        (both, _) => {
            let spec = field::Path::new("spec");
            let detail = if both.is_some() {
                "cannot be specified in combination with resourceAttributes"
            } else {
                "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            };
            let error = field::Error::invalid(&spec.child("nonResourceAttributes"), Value::Null, detail);
            return Err(invalid(kind, error));
        }
    };
    let mut status = json!({"allowed": decision.allowed});
    if !decision.reason.is_empty() {
        status["reason"] = json!(decision.reason);
    }
    Ok(status)
}

/// What the user may do in a namespace: `kubectl auth can-i --list`.
fn rules(objects: &Objects, namespace: &str, user: &UserInfo) -> Value {
    let (mut rules, errors) = rbac::rules_for(&StoredPolicies(objects), user, namespace);
    if user.in_group(MASTERS) {
        let all = || vec!["*".to_owned()];
        let everything = rbac::Rule { verbs: all(), api_groups: all(), resources: all(), ..Default::default() };
        let paths = rbac::Rule { verbs: all(), non_resource_urls: all(), ..Default::default() };
        rules.splice(0..0, [everything, paths]);
    }
    let (paths, resources): (Vec<_>, Vec<_>) = rules.into_iter().partition(|rule| !rule.non_resource_urls.is_empty());
    let mut status = Map::new();
    status.insert("incomplete".to_owned(), json!(!errors.is_empty()));
    if !errors.is_empty() {
        status.insert("evaluationError".to_owned(), json!(errors.join(", ")));
    }
    let values = |rules: Vec<rbac::Rule>| Value::Array(rules.iter().map(rbac::Rule::to_value).collect());
    status.insert("nonResourceRules".to_owned(), values(paths));
    status.insert("resourceRules".to_owned(), values(resources));
    Value::Object(status)
}
