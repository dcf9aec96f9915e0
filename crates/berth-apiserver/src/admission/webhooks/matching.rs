//! Matching of requests to webhooks: rules, selectors, equivalent resources.
//!
//! Behaviour after Kubernetes' admission webhooks (conformance suites `webhook-should-call`,
//! `webhook-object-selector`, `webhook-namespace-labels`; rules themselves are
//! [`berth_apimachinery::rules`]).

use berth_apimachinery::meta::{self, GroupVersionKind, GroupVersionResource};
use berth_apimachinery::rules::{self, Subject};
use berth_apimachinery::selector::LabelSelector;
use serde_json::{Map, Value};

/// A resource, or a subresource, and the kind of its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Group, version and plural name.
    pub resource: GroupVersionResource,
    /// Subresource, empty for the object itself.
    pub subresource: String,
    /// Kind of the object.
    pub kind: GroupVersionKind,
}

/// The attributes of a request that webhook rules match.
pub struct RequestAttributes<'a> {
    /// Resource, subresource and kind of the request.
    pub target: &'a Target,
    /// `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
    pub operation: &'a str,
    /// Namespace, empty for cluster scope. For a Namespace object, its own name.
    pub namespace: &'a str,
    /// The new object.
    pub object: Option<&'a Value>,
    /// The stored object.
    pub old_object: Option<&'a Value>,
}

/// Data that matching needs from the server.
pub trait Lookup {
    /// Resources that serve the same objects as `target`, in order; without the kind if it is
    /// unknown.
    fn equivalents(&self, target: &Target) -> Vec<(GroupVersionResource, Option<GroupVersionKind>)>;

    /// Labels of a stored namespace; `None` if it does not exist.
    fn namespace_labels(&self, name: &str) -> Option<Map<String, Value>>;
}

/// Why a webhook cannot be matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatchError {
    /// The namespace does not exist.
    NoNamespace(String),
    /// The webhook or the server has invalid data; with a message.
    Broken(String),
}

fn is_namespaces(request: &RequestAttributes<'_>) -> bool {
    request.target.resource.group.is_empty() && request.target.resource.resource == "namespaces"
}

/// The labels that a namespace selector matches: those in a request that writes the namespace,
/// else the stored ones.
pub fn namespace_labels(
    request: &RequestAttributes<'_>,
    lookup: &dyn Lookup,
) -> Result<Map<String, Value>, MatchError> {
    let writes = matches!(request.operation, "CREATE" | "UPDATE");
    if is_namespaces(request) && request.target.subresource.is_empty() && writes {
        return Ok(request.object.and_then(meta::labels).cloned().unwrap_or_default());
    }
    lookup.namespace_labels(request.namespace).ok_or_else(|| MatchError::NoNamespace(request.namespace.to_owned()))
}

fn selector(webhook: &Value, field: &str) -> Result<LabelSelector, MatchError> {
    // An absent selector selects nothing; stored webhooks have both selectors by default.
    LabelSelector::from_object(&webhook[field]).map_err(|error| MatchError::Broken(error.to_string()))
}

pub(crate) fn namespace_matches(
    webhook: &Value,
    request: &RequestAttributes<'_>,
    lookup: &dyn Lookup,
) -> Result<bool, MatchError> {
    // A namespace selector cannot exempt cluster-scoped objects.
    if request.namespace.is_empty() && !is_namespaces(request) {
        return Ok(true);
    }
    let selector = selector(webhook, "namespaceSelector")?;
    if selector.is_empty() && !selector.is_nothing() {
        return Ok(true);
    }
    Ok(selector.matches(&namespace_labels(request, lookup)?))
}

/// Whether the new or the old object has labels that the webhook selects. An object without
/// metadata has no labels.
pub fn object_matches(webhook: &Value, request: &RequestAttributes<'_>) -> Result<bool, MatchError> {
    let selector = selector(webhook, "objectSelector")?;
    if selector.is_empty() && !selector.is_nothing() {
        return Ok(true);
    }
    let empty = Map::new();
    let has = |object: Option<&Value>| {
        let object = object.filter(|object| object["metadata"].is_object());
        object.is_some_and(|object| selector.matches(meta::labels(object).unwrap_or(&empty)))
    };
    Ok(has(request.object) || has(request.old_object))
}

/// The resource in whose form the webhook gets the objects; `None` if it must not be called.
pub fn should_call(
    webhook: &Value,
    request: &RequestAttributes<'_>,
    lookup: &dyn Lookup,
) -> Result<Option<Target>, MatchError> {
    let Some(target) = matched_rule(webhook, request, lookup)? else { return Ok(None) };
    let matches = namespace_matches(webhook, request, lookup)? && object_matches(webhook, request)?;
    Ok(matches.then_some(target))
}

pub(crate) fn matched_rule(
    webhook: &Value,
    request: &RequestAttributes<'_>,
    lookup: &dyn Lookup,
) -> Result<Option<Target>, MatchError> {
    let rules: &[Value] = webhook["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    let resource = &request.target.resource;
    let subject = Subject {
        operation: request.operation,
        group: &resource.group,
        version: &resource.version,
        resource: &resource.resource,
        subresource: &request.target.subresource,
        namespace: request.namespace,
    };
    if rules.iter().any(|rule| rules::matches(rule, &subject)) {
        return Ok(Some(request.target.clone()));
    }
    if webhook["matchPolicy"] != "Equivalent" || rules.is_empty() {
        return Ok(None);
    }
    let equivalents = lookup.equivalents(request.target);
    // The first rule that matches an equivalent resource applies.
    for rule in rules {
        for (other, kind) in equivalents.iter().filter(|(other, _)| other != resource) {
            let subject =
                Subject { group: &other.group, version: &other.version, resource: &other.resource, ..subject };
            if !rules::matches(rule, &subject) {
                continue;
            }
            let Some(kind) = kind.clone() else {
                let GroupVersionResource { group, version, resource } = other;
                return Err(MatchError::Broken(format!(
                    "unable to convert to {group}/{version} {resource}: unknown kind"
                )));
            };
            let subresource = request.target.subresource.clone();
            return Ok(Some(Target { resource: other.clone(), subresource, kind }));
        }
    }
    Ok(None)
}
