//! What is recorded about which requests (`audit.k8s.io/v1` Policy). The first rule that matches decides; where none
//! does, nothing is recorded.
//!
//! Behaviour after Kubernetes' audit policy checker (conformance suites `audit-policy`, `audit-stages`).

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
    /// Who asked for what and with which outcome.
    Metadata,
    /// Also what was sent.
    Request,
    /// Also what was answered.
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
    /// It has arrived.
    RequestReceived,
    /// The answer's headers are sent, its body is not (watches).
    ResponseStarted,
    /// The answer is complete.
    ResponseComplete,
    /// The server failed in the middle of it.
    Panic,
}

impl Stage {
    /// All of them, in order of time.
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

    /// The stage of that name.
    pub fn parse(name: &str) -> Option<Stage> {
        Stage::ALL.into_iter().find(|stage| stage.name() == name)
    }
}

/// Every stage in either list, once.
pub fn union(a: &[Stage], b: &[Stage]) -> Vec<Stage> {
    Stage::ALL.into_iter().filter(|stage| a.contains(stage) || b.contains(stage)).collect()
}

/// Every stage that is not in the list.
pub fn inverse(stages: &[Stage]) -> Vec<Stage> {
    Stage::ALL.into_iter().filter(|stage| !stages.contains(stage)).collect()
}

/// What is to be recorded of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// How much.
    pub level: Level,
    /// When not.
    pub omit_stages: Vec<Stage>,
    /// Whether `managedFields` are left out of recorded objects.
    pub omit_managed_fields: bool,
}

/// A policy, ready to be asked.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    rules: Vec<Rule>,
    omit_stages: Vec<Stage>,
    omit_managed_fields: bool,
}

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

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn stages(value: &Value, path: &Path<'_>, errors: &mut Vec<Error>) -> Vec<Stage> {
    let mut stages = Vec::new();
    for (index, name) in texts(value).iter().enumerate() {
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
    /// Reads a policy.
    ///
    /// # Errors
    /// Every field that has no meaning.
    pub fn from_value(policy: &Value) -> Result<Policy, Vec<Error>> {
        let mut errors = Vec::new();
        let path = Path::new("rules");
        let rules = policy["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
        let rules: Vec<Rule> =
            rules.iter().enumerate().map(|(index, rule)| Rule::new(rule, &path.index(index), &mut errors)).collect();
        let policy = Policy {
            omit_stages: stages(&policy["omitStages"], &Path::new("omitStages"), &mut errors),
            omit_managed_fields: policy["omitManagedFields"] == true,
            rules,
        };
        if errors.is_empty() { Ok(policy) } else { Err(errors) }
    }

    /// What is to be recorded of a request by `user`.
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
        let urls = texts(&rule["nonResourceURLs"]);
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
        let resources = rule["resources"].as_array().into_iter().flatten();
        Rule {
            level: parsed.unwrap_or_default(),
            users: texts(&rule["users"]),
            user_groups: texts(&rule["userGroups"]),
            verbs: texts(&rule["verbs"]),
            resources: resources
                .map(|resources| Resources {
                    group: resources["group"].as_str().unwrap_or_default().to_owned(),
                    resources: texts(&resources["resources"]),
                    names: texts(&resources["resourceNames"]),
                })
                .collect(),
            namespaces: texts(&rule["namespaces"]),
            non_resource_urls: urls,
            omit_stages: stages(&rule["omitStages"], &path.child("omitStages"), errors),
            omit_managed_fields: rule["omitManagedFields"].as_bool(),
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
