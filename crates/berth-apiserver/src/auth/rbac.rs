//! Role-based access control without I/O: rules, the users that they apply to, the requests that
//! they allow, and which rules cover others.
//!
//! Behaviour after Kubernetes' RBAC authorizer (conformance suites `rbac-*`): rules only allow.
//! Bindings of the cluster are evaluated before those of the namespace. A binding to a role that
//! does not exist is reported and skipped.

use std::sync::Arc;

use berth_apimachinery::meta;
use berth_apimachinery::selector::LabelSelector;
use serde_json::{Map, Value, json};

use super::{Attributes, Decision};
use crate::UserInfo;

/// Maximum depth of aggregated roles that aggregate aggregated roles. Kubernetes' own have a depth
/// of two (view → edit → admin).
const AGGREGATION_DEPTH_MAX: usize = 5;

/// One rule of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Verbs, or `*`.
    pub verbs: Vec<String>,
    /// API groups, or `*`.
    pub api_groups: Vec<String>,
    /// `pods`, `pods/log`, `*/scale`, `*`.
    pub resources: Vec<String>,
    /// Names of objects; empty for all.
    pub resource_names: Vec<String>,
    /// Paths; one with `*` at the end includes all paths that begin with the part before `*`.
    pub non_resource_urls: Vec<String>,
}

impl Rule {
    /// Reads a rule of a stored role.
    pub fn from_value(rule: &Value) -> Rule {
        let list = |field: &str| {
            let items = rule.get(field).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Rule {
            verbs: list("verbs"),
            api_groups: list("apiGroups"),
            resources: list("resources"),
            resource_names: list("resourceNames"),
            non_resource_urls: list("nonResourceURLs"),
        }
    }

    /// The rule in the format of roles and reviews.
    pub fn to_value(&self) -> Value {
        let mut out = Map::new();
        for (field, list) in [
            ("apiGroups", &self.api_groups),
            ("nonResourceURLs", &self.non_resource_urls),
            ("resourceNames", &self.resource_names),
            ("resources", &self.resources),
        ] {
            if !list.is_empty() {
                out.insert(field.to_owned(), json!(list));
            }
        }
        out.insert("verbs".to_owned(), json!(self.verbs));
        Value::Object(out)
    }

    /// True if the rule allows the request.
    pub fn allows(&self, attributes: &Attributes<'_>) -> bool {
        if !has(&self.verbs, attributes.verb) {
            return false;
        }
        if !attributes.is_resource_request {
            return self.non_resource_urls.iter().any(|url| path_matches(url, attributes.path));
        }
        let named = self.resource_names.is_empty() || self.resource_names.iter().any(|name| name == attributes.name);
        named
            && has(&self.api_groups, attributes.group)
            && self.has_resource(attributes.resource, attributes.subresource)
    }

    fn has_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|own| match own.as_str() {
            "*" => true,
            own => match own.split_once('/') {
                None => subresource.is_empty() && own == resource,
                Some((own_resource, own_subresource)) => {
                    !subresource.is_empty()
                        && own_subresource == subresource
                        && (own_resource == "*" || own_resource == resource)
                }
            },
        })
    }

    /// The rule split into rules with one verb, group, resource, name or path each.
    fn break_down(&self) -> Vec<Rule> {
        let one = |text: &String| vec![text.clone()];
        let mut simple = Vec::new();
        for group in &self.api_groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let rule =
                        Rule { verbs: one(verb), api_groups: one(group), resources: one(resource), ..Rule::default() };
                    if self.resource_names.is_empty() {
                        simple.push(rule);
                    } else {
                        simple.extend(
                            self.resource_names.iter().map(|name| Rule { resource_names: one(name), ..rule.clone() }),
                        );
                    }
                }
            }
        }
        for url in &self.non_resource_urls {
            for verb in &self.verbs {
                simple.push(Rule { verbs: one(verb), non_resource_urls: one(url), ..Rule::default() });
            }
        }
        simple
    }

    /// True if this rule alone allows everything that `requested` (a split rule) allows.
    fn covers(&self, requested: &Rule) -> bool {
        let all = |own: &[String], wanted: &[String]| {
            own.iter().any(|item| item == "*") || wanted.iter().all(|item| own.contains(item))
        };
        let resources = requested.resources.iter().all(|resource| {
            self.resources.iter().any(|own| own == "*" || own == resource)
                || resource
                    .split_once('/')
                    .is_some_and(|(_, subresource)| self.resources.iter().any(|own| *own == format!("*/{subresource}")))
        });
        let names = self.resource_names.is_empty()
            || !requested.resource_names.is_empty()
                && requested.resource_names.iter().all(|name| self.resource_names.contains(name));
        let urls =
            requested.non_resource_urls.iter().all(|url| self.non_resource_urls.iter().any(|own| url_covers(own, url)));
        all(&self.verbs, &requested.verbs) && all(&self.api_groups, &requested.api_groups) && resources && names && urls
    }
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

/// True if a rule's path allows a request for `path`.
fn path_matches(rule: &str, path: &str) -> bool {
    match rule.strip_suffix('*') {
        Some(_) if rule == "*" => true,
        Some(prefix) => path.starts_with(prefix),
        None => rule == path,
    }
}

/// True if the path (pattern) `owner` allows everything that `requested` does.
pub fn url_covers(owner: &str, requested: &str) -> bool {
    owner == "*"
        || owner == requested
        || owner.strip_suffix('*').is_some_and(|prefix| {
            requested.strip_suffix('*').unwrap_or(requested).starts_with(prefix) && !prefix.is_empty()
        })
}

/// The split rules of `requested` that no single rule of `owned` covers; empty if all are covered.
pub fn uncovered(owned: &[Rule], requested: &[Rule]) -> Vec<Rule> {
    requested.iter().flat_map(Rule::break_down).filter(|simple| !owned.iter().any(|rule| rule.covers(simple))).collect()
}

/// Source of roles and bindings.
pub trait Policies {
    /// A Role.
    fn role(&self, namespace: &str, name: &str) -> Option<Arc<Value>>;
    /// A ClusterRole.
    fn cluster_role(&self, name: &str) -> Option<Arc<Value>>;
    /// All ClusterRoles.
    fn cluster_roles(&self) -> Vec<Arc<Value>>;
    /// RoleBindings of a namespace.
    fn role_bindings(&self, namespace: &str) -> Vec<Arc<Value>>;
    /// All ClusterRoleBindings.
    fn cluster_role_bindings(&self) -> Vec<Arc<Value>>;

    /// The result of [`bindings_of`], which may be cached while nothing changes.
    fn bindings(&self, namespace: &str) -> Arc<Vec<Binding>> {
        Arc::new(bindings_of(self, namespace))
    }

    /// The result of [`rules_of`], which may be cached while nothing changes.
    fn rules(&self, kind: &str, name: &str, namespace: &str) -> Result<Arc<Vec<Rule>>, String> {
        rules_of(self, kind, name, namespace).map(Arc::new)
    }
}

/// A RoleBinding or ClusterRoleBinding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    name: String,
    role_kind: String,
    role: String,
    subjects: Vec<Subject>,
}

/// A subject of a binding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Subject {
    kind: String,
    name: String,
    namespace: String,
}

impl Binding {
    fn from_value(binding: &Value) -> Binding {
        let subjects = binding.get("subjects").and_then(Value::as_array).into_iter().flatten();
        Binding {
            name: meta::name(binding).to_owned(),
            role_kind: text(&binding["roleRef"], "kind").to_owned(),
            role: text(&binding["roleRef"], "name").to_owned(),
            subjects: subjects.map(Subject::from_value).collect(),
        }
    }
}

impl Subject {
    fn from_value(subject: &Value) -> Subject {
        let field = |name: &str| text(subject, name).to_owned();
        Subject { kind: field("kind"), name: field("name"), namespace: field("namespace") }
    }

    fn is(&self, user: &UserInfo, namespace: &str) -> bool {
        match self.kind.as_str() {
            "User" => user.name == self.name,
            "Group" => user.in_group(&self.name),
            "ServiceAccount" => {
                let namespace = if self.namespace.is_empty() { namespace } else { &self.namespace };
                let account = user.name.strip_prefix("system:serviceaccount:");
                let account = account.and_then(|account| account.strip_prefix(namespace)?.strip_prefix(':'));
                !namespace.is_empty() && account == Some(&self.name)
            }
            _ => false,
        }
    }
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// True if `subject`, of a binding in `namespace` (empty: of the cluster), is the user or a group
/// of the user.
pub fn applies_to(user: &UserInfo, subject: &Value, namespace: &str) -> bool {
    Subject::from_value(subject).is(user, namespace)
}

/// The bindings of a namespace (empty: of the cluster).
pub fn bindings_of(policies: &(impl Policies + ?Sized), namespace: &str) -> Vec<Binding> {
    let stored =
        if namespace.is_empty() { policies.cluster_role_bindings() } else { policies.role_bindings(namespace) };
    stored.iter().map(|binding| Binding::from_value(binding)).collect()
}

/// Calls `visit` with every rule that applies to `user` in `namespace` (empty: for the cluster) and
/// with a description of its binding, until `visit` returns `false`. Returns the errors, such as
/// missing roles.
fn visit_rules(
    policies: &dyn Policies,
    user: &UserInfo,
    namespace: &str,
    visit: &mut dyn FnMut(&Rule, &dyn Fn() -> String) -> bool,
) -> Vec<String> {
    let mut errors = Vec::new();
    let scopes = ["", namespace];
    let scopes = if namespace.is_empty() { &scopes[..1] } else { &scopes[..] };
    for namespace in scopes {
        for binding in policies.bindings(namespace).iter() {
            let Some(subject) = binding.subjects.iter().find(|subject| subject.is(user, namespace)) else { continue };
            match policies.rules(&binding.role_kind, &binding.role, namespace) {
                Ok(rules) => {
                    let source = || source(binding, subject, namespace);
                    for rule in rules.iter() {
                        if !visit(rule, &source) {
                            return errors;
                        }
                    }
                }
                Err(error) => errors.push(error),
            }
        }
    }
    errors
}

fn source(binding: &Binding, subject: &Subject, namespace: &str) -> String {
    let subject = match subject.kind.as_str() {
        "ServiceAccount" => {
            let own = if subject.namespace.is_empty() { namespace } else { &subject.namespace };
            format!("ServiceAccount \"{}/{own}\"", subject.name)
        }
        kind => format!("{kind} \"{}\"", subject.name),
    };
    let Binding { name, role_kind, role, .. } = binding;
    let role = format!("{role_kind} \"{role}\"");
    if namespace.is_empty() {
        format!("RBAC: allowed by ClusterRoleBinding \"{name}\" of {role} to {subject}")
    } else {
        format!("RBAC: allowed by RoleBinding \"{name}/{namespace}\" of {role} to {subject}")
    }
}

/// The rules of a role to which a binding of `namespace` refers. An aggregated ClusterRole has the
/// rules of the roles that it selects, and its own stored rules.
pub fn rules_of(
    policies: &(impl Policies + ?Sized),
    kind: &str,
    name: &str,
    namespace: &str,
) -> Result<Vec<Rule>, String> {
    let not_found = |resource: &str| format!("{resource}.rbac.authorization.k8s.io \"{name}\" not found");
    match kind {
        "Role" => Ok(own_rules(&*policies.role(namespace, name).ok_or_else(|| not_found("role"))?)),
        "ClusterRole" => {
            let role = policies.cluster_role(name).ok_or_else(|| not_found("clusterrole"))?;
            let mut rules = own_rules(&role);
            aggregate(policies, &role, &mut rules, 0);
            Ok(rules)
        }
        other => Err(format!("unsupported role reference kind: \"{other}\"")),
    }
}

fn own_rules(role: &Value) -> Vec<Rule> {
    role.get("rules").and_then(Value::as_array).into_iter().flatten().map(Rule::from_value).collect()
}

fn aggregate(policies: &(impl Policies + ?Sized), role: &Value, rules: &mut Vec<Rule>, depth: usize) {
    let selectors = role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array);
    let selectors: Vec<LabelSelector> =
        selectors.into_iter().flatten().filter_map(|it| LabelSelector::from_object(it).ok()).collect();
    if selectors.is_empty() || depth >= AGGREGATION_DEPTH_MAX {
        return;
    }
    let no_labels = Map::new();
    for other in policies.cluster_roles() {
        let labels = meta::labels(&other).unwrap_or(&no_labels);
        if meta::name(&other) == meta::name(role) || !selectors.iter().any(|selector| selector.matches(labels)) {
            continue;
        }
        for rule in own_rules(&other) {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        aggregate(policies, &other, rules, depth + 1);
    }
}

/// All rules that apply to `user` in `namespace` (empty: for the cluster), and the errors, such as
/// missing roles.
pub fn rules_for(policies: &dyn Policies, user: &UserInfo, namespace: &str) -> (Vec<Rule>, Vec<String>) {
    let mut rules = Vec::new();
    let errors = visit_rules(policies, user, namespace, &mut |rule, _| {
        rules.push(rule.clone());
        true
    });
    (rules, errors)
}

/// Whether a rule that applies to `user` allows the request.
pub fn decide(policies: &dyn Policies, attributes: &Attributes<'_>, user: &UserInfo) -> Decision {
    let mut reason = None;
    let errors = visit_rules(policies, user, attributes.namespace, &mut |rule, source| {
        if rule.allows(attributes) {
            reason = Some(source());
        }
        reason.is_none()
    });
    match reason {
        Some(reason) => Decision { allowed: true, reason },
        None => {
            let reason = match errors.as_slice() {
                [] => String::new(),
                [one] => format!("RBAC: {one}"),
                many => format!("RBAC: [{}]", many.join(", ")),
            };
            Decision { allowed: false, reason }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_rule_does_not_reach_subresources() {
        let rule = Rule::from_value(&json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "*/scale"]}));
        let ask = |resource, subresource| Attributes {
            verb: "get",
            resource,
            subresource,
            is_resource_request: true,
            ..Attributes::default()
        };
        assert!(rule.allows(&ask("pods", "")));
        assert!(!rule.allows(&ask("pods", "log")));
        assert!(rule.allows(&ask("anything", "scale")));
    }
}
