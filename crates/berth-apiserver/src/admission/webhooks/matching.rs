//! Which webhooks a request concerns, and in which form: rules, selectors, equivalent resources.
//!
//! Behaviour after Kubernetes' admission webhooks (conformance suites `webhook-should-call`, `webhook-object-selector`,
//! `webhook-namespace-labels`; rules themselves are [`berth_apimachinery::rules`]).

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
pub struct Asked<'a> {
    /// The request as it was made.
    pub target: &'a Target,
    /// `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
    pub operation: &'a str,
    /// Namespace, empty for cluster scope. That of a request about a namespace is its own name.
    pub namespace: &'a str,
    /// The new object.
    pub object: Option<&'a Value>,
    /// The object before.
    pub old_object: Option<&'a Value>,
}

/// What matching looks up.
pub trait Lookup {
    /// Resources that serve the same objects as `target`, in order; without the kind where it is
    /// unknown.
    fn equivalents(&self, target: &Target) -> Vec<(GroupVersionResource, Option<GroupVersionKind>)>;

    /// Labels of a stored namespace; `None` when there is none of that name.
    fn namespace_labels(&self, name: &str) -> Option<Map<String, Value>>;
}

/// Why a webhook cannot be matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatchError {
    /// The namespace does not exist.
    NoNamespace(String),
    /// Something the webhook or the server says makes no sense; a text.
    Broken(String),
}

fn is_namespaces(asked: &Asked<'_>) -> bool {
    asked.target.resource.group.is_empty() && asked.target.resource.resource == "namespaces"
}

/// The labels that a namespace selector matches: those in a request that writes the namespace,
/// else the stored ones.
pub fn namespace_labels(asked: &Asked<'_>, lookup: &dyn Lookup) -> Result<Map<String, Value>, MatchError> {
    let writes = matches!(asked.operation, "CREATE" | "UPDATE");
    if is_namespaces(asked) && asked.target.subresource.is_empty() && writes {
        return Ok(asked.object.and_then(meta::labels).cloned().unwrap_or_default());
    }
    lookup.namespace_labels(asked.namespace).ok_or_else(|| MatchError::NoNamespace(asked.namespace.to_owned()))
}

fn selector(webhook: &Value, field: &str) -> Result<LabelSelector, MatchError> {
    // Absent selects nothing; stored webhooks have both selectors by default.
    LabelSelector::from_object(&webhook[field]).map_err(|error| MatchError::Broken(error.to_string()))
}

pub(crate) fn namespace_matches(webhook: &Value, asked: &Asked<'_>, lookup: &dyn Lookup) -> Result<bool, MatchError> {
    // What belongs to no namespace cannot be exempted by one.
    if asked.namespace.is_empty() && !is_namespaces(asked) {
        return Ok(true);
    }
    let selector = selector(webhook, "namespaceSelector")?;
    if selector.is_empty() && !selector.is_nothing() {
        return Ok(true);
    }
    Ok(selector.matches(&namespace_labels(asked, lookup)?))
}

/// Whether the new or the old object has the labels a webhook selects. Things without metadata have none.
pub fn object_matches(webhook: &Value, asked: &Asked<'_>) -> Result<bool, MatchError> {
    let selector = selector(webhook, "objectSelector")?;
    if selector.is_empty() && !selector.is_nothing() {
        return Ok(true);
    }
    let empty = Map::new();
    let has = |object: Option<&Value>| {
        let object = object.filter(|object| object["metadata"].is_object());
        object.is_some_and(|object| selector.matches(meta::labels(object).unwrap_or(&empty)))
    };
    Ok(has(asked.object) || has(asked.old_object))
}

/// Whether a webhook is to be called, and the resource it wants the objects as.
pub fn should_call(webhook: &Value, asked: &Asked<'_>, lookup: &dyn Lookup) -> Result<Option<Target>, MatchError> {
    let Some(target) = matched_rule(webhook, asked, lookup)? else { return Ok(None) };
    let matches = namespace_matches(webhook, asked, lookup)? && object_matches(webhook, asked)?;
    Ok(matches.then_some(target))
}

pub(crate) fn matched_rule(
    webhook: &Value,
    asked: &Asked<'_>,
    lookup: &dyn Lookup,
) -> Result<Option<Target>, MatchError> {
    let rules: &[Value] = webhook["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    let resource = &asked.target.resource;
    let subject = Subject {
        operation: asked.operation,
        group: &resource.group,
        version: &resource.version,
        resource: &resource.resource,
        subresource: &asked.target.subresource,
        namespace: asked.namespace,
    };
    if rules.iter().any(|rule| rules::matches(rule, &subject)) {
        return Ok(Some(asked.target.clone()));
    }
    if webhook["matchPolicy"] != "Equivalent" || rules.is_empty() {
        return Ok(None);
    }
    let equivalents = lookup.equivalents(asked.target);
    // Earlier rules are honoured first.
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
            let subresource = asked.target.subresource.clone();
            return Ok(Some(Target { resource: other.clone(), subresource, kind }));
        }
    }
    Ok(None)
}
