//! The audit policy (`audit.k8s.io/v1` Policy): which requests are recorded, and in how much
//! detail. The first rule that matches applies. Without a match, nothing is recorded.
//!
//! Behaviour after Kubernetes' audit policy checker (conformance suites `audit-policy`,
//! `audit-stages`).

use berth_apimachinery::field::{Error, Path};
use serde_json::Value;

use crate::UserInfo;
use crate::auth::Attributes;

/// How much of a request is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    #[default]
    None,
    /// The user, the request and its outcome.
    Metadata,
    /// Also the request body.
    Request,
    /// Also the response body.
    RequestResponse,
}

impl Level {
    const ALL: [Level; 4] = [Level::None, Level::Metadata, Level::Request, Level::RequestResponse];

    /// The level's name in policies and events.
    pub const fn name(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }

    fn parse(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name() == name)
    }
}

/// A moment in the life of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The request has arrived.
    RequestReceived,
    /// The headers of the response are sent, its body is not (watches).
    ResponseStarted,
    /// The response is complete.
    ResponseComplete,
    /// The request panicked.
    Panic,
}

impl Stage {
    /// All stages, in order of time.
    pub const ALL: [Stage; 4] = [Stage::RequestReceived, Stage::ResponseStarted, Stage::ResponseComplete, Stage::Panic];

    /// The stage's name in policies and events.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }

    /// Parses the name of a stage.
    pub fn parse(name: &str) -> Option<Stage> {
        Stage::ALL.into_iter().find(|stage| stage.name() == name)
    }
}

/// The stages of both lists, without duplicates.
pub fn union(a: &[Stage], b: &[Stage]) -> Vec<Stage> {
    Stage::ALL.into_iter().filter(|stage| a.contains(stage) || b.contains(stage)).collect()
}

/// The stages that are not in the list.
pub fn inverse(stages: &[Stage]) -> Vec<Stage> {
    Stage::ALL.into_iter().filter(|stage| !stages.contains(stage)).collect()
}

/// The audit level and options of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Level of detail.
    pub level: Level,
    /// Stages that are not recorded.
    pub omit_stages: Vec<Stage>,
    /// True if `managedFields` are omitted from recorded objects.
    pub omit_managed_fields: bool,
}

/// A decoded policy.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    rules: Vec<Rule>,
    omit_stages: Vec<Stage>,
    omit_managed_fields: bool,
}

/// Fields of a policy.
const POLICY_FIELDS: [&str; 6] = ["apiVersion", "kind", "metadata", "omitManagedFields", "omitStages", "rules"];
/// Fields of a rule.
const RULE_FIELDS: [&str; 9] = [
    "level",
    "namespaces",
    "nonResourceURLs",
    "omitManagedFields",
    "omitStages",
    "resources",
    "userGroups",
    "users",
    "verbs",
];
/// Fields of an item of a rule's `resources`.
const RESOURCES_FIELDS: [&str; 3] = ["group", "resourceNames", "resources"];

#[derive(Clone, Debug, Default)]
struct Rule {
    level: Level,
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<Resources>,
    namespaces: Vec<String>,
    non_resource_urls: Vec<String>,
    omit_stages: Vec<Stage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Clone, Debug, Default)]
struct Resources {
    group: String,
    resources: Vec<String>,
    names: Vec<String>,
}

/// Adds an error for every unknown field. With a misspelled field, a rule would match other
/// requests than intended.
fn known(object: &Value, fields: &[&str], path: &Path<'_>, errors: &mut Vec<Error>) {
    let Some(map) = object.as_object() else {
        errors.push(Error::type_invalid(path, object.clone(), "must be an object"));
        return;
    };
    for (name, value) in map.iter().filter(|(name, _)| !fields.contains(&name.as_str())) {
        let detail = format!("unknown field, expected one of {}", fields.join(", "));
        errors.push(Error::invalid(&path.child(name), value.clone(), detail));
    }
}

/// The items of a list; empty if it is absent or null.
fn list<'a>(value: &'a Value, path: &Path<'_>, errors: &mut Vec<Error>) -> &'a [Value] {
    match value {
        Value::Null => &[],
        Value::Array(items) => items,
        other => {
            errors.push(Error::type_invalid(path, other.clone(), "must be a list"));
            &[]
        }
    }
}

fn texts(value: &Value, path: &Path<'_>, errors: &mut Vec<Error>) -> Vec<String> {
    let mut texts = Vec::new();
    for (index, item) in list(value, path, errors).iter().enumerate() {
        match item.as_str() {
            Some(text) => texts.push(text.to_owned()),
            None => errors.push(Error::type_invalid(&path.index(index), item.clone(), "must be a string")),
        }
    }
    texts
}

fn flag(value: &Value, path: &Path<'_>, errors: &mut Vec<Error>) -> Option<bool> {
    if !value.is_null() && !value.is_boolean() {
        errors.push(Error::type_invalid(path, value.clone(), "must be true or false"));
    }
    value.as_bool()
}

fn stages(value: &Value, path: &Path<'_>, errors: &mut Vec<Error>) -> Vec<Stage> {
    let mut stages = Vec::new();
    for (index, name) in texts(value, path, errors).iter().enumerate() {
        match Stage::parse(name) {
            Some(stage) => stages.push(stage),
            None => {
                let known = Stage::ALL.map(Stage::name);
                errors.push(Error::not_supported(&path.index(index), name.as_str(), &known));
            }
        }
    }
    stages
}

impl Policy {
    /// Decodes a policy strictly. A misspelled field could otherwise leave requests unrecorded.
    ///
    /// # Errors
    /// All unknown fields and invalid values, or a policy without rules.
    pub fn from_value(policy: &Value) -> Result<Policy, Vec<Error>> {
        let mut errors = Vec::new();
        let root = Path::root();
        known(policy, &POLICY_FIELDS, &root, &mut errors);
        let path = root.child("rules");
        let rules: Vec<Rule> = list(&policy["rules"], &path, &mut errors)
            .iter()
            .enumerate()
            .map(|(index, rule)| Rule::new(rule, &path.index(index), &mut errors))
            .collect();
        if rules.is_empty() && errors.is_empty() {
            errors.push(Error::required(&path, "a policy without rules records nothing"));
        }
        let policy = Policy {
            omit_stages: stages(&policy["omitStages"], &root.child("omitStages"), &mut errors),
            omit_managed_fields: flag(&policy["omitManagedFields"], &root.child("omitManagedFields"), &mut errors)
                .unwrap_or_default(),
            rules,
        };
        if errors.is_empty() { Ok(policy) } else { Err(errors) }
    }

    /// The audit level and options of a request by `user`.
    pub fn decide(&self, attributes: &Attributes<'_>, user: &UserInfo) -> Decision {
        match self.rules.iter().find(|rule| rule.matches(attributes, user)) {
            Some(rule) => Decision {
                level: rule.level,
                omit_stages: union(&self.omit_stages, &rule.omit_stages),
                omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
            },
            None => Decision {
                level: Level::None,
                omit_stages: self.omit_stages.clone(),
                omit_managed_fields: self.omit_managed_fields,
            },
        }
    }
}

impl Rule {
    fn new(rule: &Value, path: &Path<'_>, errors: &mut Vec<Error>) -> Rule {
        known(rule, &RULE_FIELDS, path, errors);
        let level = rule["level"].as_str().unwrap_or_default();
        let parsed = Level::parse(level);
        if parsed.is_none() {
            let known = Level::ALL.map(Level::name);
            let at = path.child("level");
            errors.push(if level.is_empty() {
                Error::required(&at, "")
            } else {
                Error::not_supported(&at, level, &known)
            });
        }
        let mut of = |field: &str| texts(&rule[field], &path.child(field), errors);
        let (users, user_groups, verbs) = (of("users"), of("userGroups"), of("verbs"));
        let (namespaces, urls) = (of("namespaces"), of("nonResourceURLs"));
        let is_about_resources = ["resources", "namespaces"]
            .iter()
            .any(|field| rule[*field].as_array().is_some_and(|list| !list.is_empty()));
        if !urls.is_empty() && is_about_resources {
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            errors.push(Error::invalid(&path.child("nonResourceURLs"), urls.clone(), detail));
        }
        for (index, url) in urls.iter().enumerate() {
            let at = path.child("nonResourceURLs");
            let star = url.find('*').is_some_and(|at| at + 1 != url.len());
            if star || !(url == "*" || url.starts_with('/')) {
                let detail = "non-resource URL rules must begin with a '/' and may have a '*' only at the end";
                errors.push(Error::invalid(&at.index(index), url.as_str(), detail));
            }
        }
        let at = path.child("resources");
        let resources = list(&rule["resources"], &at, errors)
            .iter()
            .enumerate()
            .map(|(index, resources)| Resources::new(resources, &at.index(index), errors))
            .collect();
        Rule {
            level: parsed.unwrap_or_default(),
            users,
            user_groups,
            verbs,
            resources,
            namespaces,
            non_resource_urls: urls,
            omit_stages: stages(&rule["omitStages"], &path.child("omitStages"), errors),
            omit_managed_fields: flag(&rule["omitManagedFields"], &path.child("omitManagedFields"), errors),
        }
    }

    fn matches(&self, attributes: &Attributes<'_>, user: &UserInfo) -> bool {
        let has = |list: &[String], text: &str| list.iter().any(|item| item == text);
        if !self.users.is_empty() && !has(&self.users, &user.name) {
            return false;
        }
        if !self.user_groups.is_empty() && !user.groups.iter().any(|group| has(&self.user_groups, group)) {
            return false;
        }
        if !self.verbs.is_empty() && !has(&self.verbs, attributes.verb) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return self.matches_resource(attributes);
        }
        if !self.non_resource_urls.is_empty() {
            let path = attributes.path;
            let fits = |url: &String| match url.strip_suffix('*') {
                Some(prefix) => path.starts_with(prefix.trim_end_matches('*')),
                None => path == url,
            };
            return !attributes.is_resource_request && self.non_resource_urls.iter().any(fits);
        }
        true
    }

    fn matches_resource(&self, attributes: &Attributes<'_>) -> bool {
        if !attributes.is_resource_request {
            return false;
        }
        if !self.namespaces.is_empty() && !self.namespaces.iter().any(|namespace| namespace == attributes.namespace) {
            return false;
        }
        self.resources.is_empty() || self.resources.iter().any(|resources| resources.matches(attributes))
    }
}

impl Resources {
    fn new(resources: &Value, path: &Path<'_>, errors: &mut Vec<Error>) -> Resources {
        known(resources, &RESOURCES_FIELDS, path, errors);
        let group = &resources["group"];
        if !group.is_null() && !group.is_string() {
            errors.push(Error::type_invalid(&path.child("group"), group.clone(), "must be a string"));
        }
        let mut of = |field: &str| texts(&resources[field], &path.child(field), errors);
        let (kinds, names) = (of("resources"), of("resourceNames"));
        if kinds.is_empty() && !names.is_empty() {
            let detail = "using resourceNames requires at least one resource";
            errors.push(Error::invalid(&path.child("resourceNames"), names.clone(), detail));
        }
        Resources { group: group.as_str().unwrap_or_default().to_owned(), resources: kinds, names }
    }

    fn matches(&self, attributes: &Attributes<'_>) -> bool {
        if self.group != "*" && self.group != attributes.group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        if !self.names.is_empty() && !self.names.iter().any(|name| name == attributes.name) {
            return false;
        }
        self.resources.iter().any(|entry| match (entry.split_once('/'), attributes.subresource) {
            (None, "") => entry == "*" || entry == attributes.resource,
            (None, _) => entry == "*",
            (Some((resource, "*")), _) => resource == attributes.resource,
            (Some((resource, subresource)), asked) => {
                !asked.is_empty() && subresource == asked && (resource == "*" || resource == attributes.resource)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(policy: Value) -> Vec<String> {
        Policy::from_value(&policy).expect_err("rejected").into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn misspelled_fields_are_reported() {
        let rule = |extra: Value| {
            let mut rule = json!({"level": "Metadata"});
            rule.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
            json!({"rules": [{"level": "Metadata", "verbs": ["get"]}, rule]})
        };
        for (extra, wanted) in [
            (json!({"resource": []}), "rules[1].resource"),
            (json!({"users": "jane"}), "rules[1].users"),
            (json!({"verbs": ["get", 1]}), "rules[1].verbs[1]"),
            (json!({"omitStages": "RequestReceived"}), "rules[1].omitStages"),
            (json!({"omitStages": ["requestReceived"]}), "rules[1].omitStages[0]"),
            (json!({"omitManagedFields": "true"}), "rules[1].omitManagedFields"),
            (json!({"resources": {"group": ""}}), "rules[1].resources"),
            (json!({"resources": ["pods"]}), "rules[1].resources[0]"),
            (json!({"resources": [{"groups": ["apps"]}]}), "rules[1].resources[0].groups"),
            (json!({"resources": [{"group": ["apps"]}]}), "rules[1].resources[0].group"),
            (json!({"resources": [{"resourceNames": ["a"]}]}), "rules[1].resources[0].resourceNames"),
        ] {
            assert_eq!(fields(rule(extra.clone())), [wanted], "{extra}");
        }
        assert_eq!(fields(json!({"rules": [{"level": "Metadata"}], "omitStage": []})), ["omitStage"]);
        assert_eq!(fields(json!({"rules": [{"lvl": "Metadata"}]})), ["rules[0].lvl", "rules[0].level"]);
        assert_eq!(fields(json!({"rules": {"level": "Metadata"}})), ["rules"]);
    }

    #[test]
    fn a_policy_without_rules_is_rejected() {
        for policy in [json!({}), json!({"rules": []}), json!({"rules": null})] {
            assert_eq!(fields(policy), ["rules"]);
        }
        assert_eq!(fields(json!({"rule": []})), ["rule"]);
        let whole = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "metadata": {"name": "a"}, "rules": [
            {"level": "Request", "users": null, "resources": [{"group": "apps", "resources": ["deployments"]}]}]});
        assert!(Policy::from_value(&whole).is_ok());
    }
}
