//! Matching of webhook and admission policy rules with requests.
//!
//! A rule lists operations, groups, versions and resources (`*` matches all), and a scope. A
//! subresource follows a slash: `pods` is only the pod itself, `pods/*` the pod and all its
//! subresources, `*/scale` the scale of every resource.

use serde_json::Value;

/// The request to match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subject<'a> {
    /// `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
    pub operation: &'a str,
    /// Group of the resource.
    pub group: &'a str,
    /// Version of the resource.
    pub version: &'a str,
    /// The resource, plural.
    pub resource: &'a str,
    /// The subresource, or empty.
    pub subresource: &'a str,
    /// The namespace of the object, or empty.
    pub namespace: &'a str,
}

/// True if every part of a rule matches. An empty or absent list matches nothing.
pub fn matches(rule: &Value, subject: &Subject<'_>) -> bool {
    scope(rule, subject)
        && operation(rule, subject)
        && group(rule, subject)
        && version(rule, subject)
        && resource(rule, subject)
}

fn listed<'a>(rule: &'a Value, key: &str) -> impl Iterator<Item = &'a str> {
    rule.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn names(rule: &Value, key: &str, value: &str) -> bool {
    listed(rule, key).any(|name| name == "*" || name == value)
}

/// True if the operation is among `operations`.
pub fn operation(rule: &Value, subject: &Subject<'_>) -> bool {
    names(rule, "operations", subject.operation)
}

/// True if the group is among `apiGroups`.
pub fn group(rule: &Value, subject: &Subject<'_>) -> bool {
    names(rule, "apiGroups", subject.group)
}

/// True if the version is among `apiVersions`.
pub fn version(rule: &Value, subject: &Subject<'_>) -> bool {
    names(rule, "apiVersions", subject.version)
}

/// True if the resource and subresource are among `resources`.
pub fn resource(rule: &Value, subject: &Subject<'_>) -> bool {
    listed(rule, "resources").any(|entry| {
        let (resource, subresource) = entry.split_once('/').unwrap_or((entry, ""));
        (resource == "*" || resource == subject.resource) && (subresource == "*" || subresource == subject.subresource)
    })
}

/// True if the scope matches. A Namespace object is cluster-scoped.
pub fn scope(rule: &Value, subject: &Subject<'_>) -> bool {
    let is_namespace = subject.group.is_empty() && subject.resource == "namespaces";
    let namespaced = !subject.namespace.is_empty() && !is_namespace;
    match rule.get("scope").and_then(Value::as_str) {
        None | Some("" | "*") => true,
        Some("Namespaced") => namespaced,
        Some("Cluster") => !namespaced,
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_resource_does_not_include_its_subresources() {
        let pods = Subject { resource: "pods", ..Subject::default() };
        let binding = Subject { subresource: "binding", ..pods };
        assert!(resource(&json!({"resources": ["pods"]}), &pods));
        assert!(!resource(&json!({"resources": ["*"]}), &binding));
        assert!(resource(&json!({"resources": ["pods/*"]}), &binding));
        assert!(resource(&json!({"resources": ["*/binding"]}), &binding));
    }
}
