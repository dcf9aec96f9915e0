//! Access reviews, as `kubectl auth can-i`, `kubectl auth whoami` and controllers send them.
//! Nothing is stored.

use berth_apimachinery::meta::{GroupKind, GroupResource};
use berth_apimachinery::status::Status;
use berth_apimachinery::{field, meta};
use serde_json::{Map, Value, json};

use super::authn::with_authenticated_group;
use super::tokens::{BoundKind, BoundObject, ISSUER, TokenSubject, Tokens};
use super::{Attributes, MASTERS, StoredPolicies, decide, rbac};
use crate::{Objects, RequestInfo, ResourceInfo, UserInfo};

/// Default lifetime of tokens, and the bounds of a requested lifetime, in seconds.
const DEFAULT_SECONDS: i64 = 3600;
const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;

/// Responds to a create of a review kind with the object and its `status`.
pub fn answer(
    objects: &Objects,
    tokens: Option<&Tokens>,
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
        "tokenreviews" => token_review(tokens, &body)?,
        _ => return Err(Status::method_not_supported(&GroupResource::new(&row.group, &row.plural), "create")),
    };
    let metadata = meta::metadata_mut(&mut body);
    metadata.entry("creationTimestamp").or_insert(Value::Null);
    body["status"] = status;
    Ok(body)
}

/// TokenReview: the user of a token, for servers that received it from a client.
fn token_review(tokens: Option<&Tokens>, body: &Value) -> Result<Value, Status> {
    let token = body.pointer("/spec/token").and_then(Value::as_str).unwrap_or_default();
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let audiences = strings(body.pointer("/spec/audiences"));
    let verified = match tokens {
        Some(tokens) => tokens.verify(token, Some(&audiences)),
        None => Err("invalid bearer token".to_owned()),
    };
    Ok(match verified {
        Ok(verified) => {
            let user = with_authenticated_group(verified.user);
            json!({"authenticated": true, "user": user_value(&user), "audiences": verified.audiences})
        }
        Err(error) => json!({"user": {}, "error": error}),
    })
}

/// Checks that a TokenRequest is for the stored service account, and fills in missing fields.
pub(crate) fn complete_token_request(account: &Value, body: &mut Value) -> Result<(), Status> {
    let kind = GroupKind::new("authentication.k8s.io", "TokenRequest");
    let path = field::Path::new("metadata");
    for name in ["name", "namespace"] {
        let own = account["metadata"][name].as_str().unwrap_or_default();
        let given = body["metadata"][name].as_str().unwrap_or_default();
        if !given.is_empty() && given != own {
            let detail = format!("must match the service account {name} if specified");
            return Err(invalid(&kind, field::Error::invalid(&path.child(name), given, detail)));
        }
        meta::metadata_mut(body).insert(name.to_owned(), json!(own));
    }
    let map = meta::map_mut(body);
    map.remove("status");
    let spec = meta::map_mut(map.entry("spec").or_insert_with(|| json!({})));
    if strings(spec.get("audiences")).is_empty() {
        spec.insert("audiences".to_owned(), json!([ISSUER]));
    }
    if spec.get("expirationSeconds").is_none_or(Value::is_null) {
        spec.insert("expirationSeconds".to_owned(), json!(DEFAULT_SECONDS));
    }
    Ok(())
}

/// Issues a token in response to a TokenRequest for a stored service account.
pub fn issue_token(
    objects: &Objects,
    tokens: Option<&Tokens>,
    account: &Value,
    mut body: Value,
) -> Result<Value, Status> {
    let kind = GroupKind::new("authentication.k8s.io", "TokenRequest");
    let Some(tokens) = tokens else {
        return Err(Status::service_unavailable("this server has no key to sign tokens with"));
    };
    let spec = field::Path::new("spec");
    let seconds = body.pointer("/spec/expirationSeconds").and_then(Value::as_i64).unwrap_or(DEFAULT_SECONDS);
    if !(MIN_SECONDS..=MAX_SECONDS).contains(&seconds) {
        let detail = if seconds < MIN_SECONDS {
            "may not specify a duration less than 10 minutes"
        } else {
            "may not specify a duration larger than 2^32 seconds"
        };
        return Err(invalid(&kind, field::Error::invalid(&spec.child("expirationSeconds"), seconds, detail)));
    }
    let mut audiences = strings(body.pointer("/spec/audiences"));
    if audiences.is_empty() {
        audiences.push(ISSUER.to_owned());
    }
    let text = |path: &str| body.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (mut bound, mut node) = (None, None);
    if body.pointer("/spec/boundObjectRef").is_some_and(Value::is_object) {
        let reference = |field: &str| text(&format!("/spec/boundObjectRef/{field}"));
        let (api_version, kind, name) = (reference("apiVersion"), reference("kind"), reference("name"));
        let Some(bound_kind) = BoundKind::parse(&api_version, &kind) else {
            let group_version = if api_version.contains('/') { api_version } else { format!("/{api_version}") };
            let why = format!("cannot bind token to object of type {group_version}, Kind={kind}");
            return Err(Status::bad_request(why));
        };
        let object = objects
            .get("", bound_kind.resource(), bound_kind.namespace(meta::namespace(account)), &name)
            .ok_or_else(|| Status::not_found(&GroupResource::new("", bound_kind.resource()), &name))?;
        let runs_as = object["spec"]["serviceAccountName"].as_str().unwrap_or_default();
        if bound_kind == BoundKind::Pod && runs_as != meta::name(account) {
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount {} to pod running with different serviceaccount name.",
                field::quote(meta::name(account))
            )));
        }
        let wanted = reference("uid");
        if !wanted.is_empty() && wanted != meta::uid(&object) {
            let why = format!(
                "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have been \
                 deleted and then recreated"
            );
            return Err(Status::conflict(&GroupResource::new("", &kind), &name, &why));
        }
        let runs_on = object["spec"]["nodeName"].as_str().filter(|_| bound_kind == BoundKind::Pod);
        node = runs_on.and_then(|name| {
            let node = objects.get("", "nodes", "", name)?;
            Some((name.to_owned(), meta::uid(&node).to_owned()))
        });
        bound = Some(BoundObject { kind: bound_kind, name, uid: meta::uid(&object).to_owned() });
    }
    let subject = TokenSubject {
        namespace: meta::namespace(account),
        name: meta::name(account),
        uid: meta::uid(account),
        bound,
        node,
    };
    let (token, end) = tokens.issue(&subject, &audiences, seconds);
    let metadata = meta::metadata_mut(&mut body);
    metadata.insert("name".to_owned(), json!(meta::name(account)));
    metadata.insert("namespace".to_owned(), json!(meta::namespace(account)));
    metadata.entry("creationTimestamp").or_insert(Value::Null);
    body["apiVersion"] = json!("authentication.k8s.io/v1");
    body["kind"] = json!("TokenRequest");
    body["spec"]["audiences"] = json!(audiences);
    body["spec"]["expirationSeconds"] = json!(seconds);
    body["status"] = json!({"token": token, "expirationTimestamp": end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()});
    Ok(body)
}

fn strings(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
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

/// The user of a SubjectAccessReview.
fn subject(kind: &GroupKind, body: &Value) -> Result<UserInfo, Status> {
    let spec = body.get("spec").cloned().unwrap_or_default();
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

/// The rules that apply to a user in a namespace: `kubectl auth can-i --list`.
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
