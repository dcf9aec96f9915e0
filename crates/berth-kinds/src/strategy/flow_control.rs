//! FlowSchemas and PriorityLevelConfigurations: stored for clients that use them. They do not
//! configure this server's fair sharing, which has its own rules (`fairness`).

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::{self, map_mut};
use berth_apimachinery::names;
use serde_json::{Map, Value, json};

use super::{Context, Strategy, set_default, spec_mut};

/// Name of the schema and of the level for requests that never wait.
const EXEMPT: &str = "exempt";
const PRECEDENCE_DEFAULT: i64 = 1000;
const PRECEDENCE_MAX: i64 = 10_000;
const SHARES_DEFAULT: i64 = 30;
const QUEUES_MAX: i64 = 10_000_000;
/// Maximum entropy in bits of the hash that selects the queues of a hand (shuffle sharding).
const HASH_BITS: i64 = 60;
const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

pub(crate) struct FlowSchemas;

impl Strategy for FlowSchemas {
    fn has_generation(&self) -> bool {
        true
    }

    fn prepare_create(&self, schema: &mut Value, _context: &Context<'_>) {
        map_mut(schema).insert("status".to_owned(), json!({}));
    }

    fn default(&self, schema: &mut Value) {
        default_number(spec_mut(schema), "matchingPrecedence", PRECEDENCE_DEFAULT);
    }

    fn validate(&self, schema: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let (spec, path) = (&schema["spec"], Path::new("spec"));
        let precedence = spec["matchingPrecedence"].as_i64().unwrap_or(0);
        let at = path.child("matchingPrecedence");
        if precedence <= 0 {
            errors.push(Error::invalid(&at, precedence, "must be a positive value"));
        }
        if precedence > PRECEDENCE_MAX {
            errors.push(Error::invalid(&at, precedence, format!("must not be greater than {PRECEDENCE_MAX}")));
        }
        if precedence == 1 && meta::name(schema) != EXEMPT {
            let detail = "only the schema named 'exempt' may have matchingPrecedence 1";
            errors.push(Error::invalid(&at, precedence, detail));
        }
        let method = path.child("distinguisherMethod");
        if let Some(kind) = spec["distinguisherMethod"].as_object().map(|_| text(&spec["distinguisherMethod"], "type"))
            && !matches!(kind, "ByNamespace" | "ByUser")
        {
            errors.push(Error::not_supported(&method.child("type"), kind, &["ByNamespace", "ByUser"]));
        }
        let level = path.child("priorityLevelConfiguration");
        let (name, at) = (text(&spec["priorityLevelConfiguration"], "name"), level.child("name"));
        if name.is_empty() {
            errors.push(Error::required(&at, "must reference a priority level"));
        } else {
            check_name(name, names::is_dns1123_subdomain, &at, &mut errors);
        }
        let rules = path.child("rules");
        for (index, rule) in list(spec, "rules").iter().enumerate() {
            check_rule(rule, &rules.index(index), &mut errors);
        }
        errors
    }
}

pub(crate) struct PriorityLevels;

impl Strategy for PriorityLevels {
    fn has_generation(&self) -> bool {
        true
    }

    fn prepare_create(&self, level: &mut Value, _context: &Context<'_>) {
        map_mut(level).insert("status".to_owned(), json!({}));
    }

    fn default(&self, level: &mut Value) {
        let spec = spec_mut(level);
        if let Some(exempt) = spec.get_mut("exempt").and_then(Value::as_object_mut) {
            set_default(exempt, "nominalConcurrencyShares", 0);
            set_default(exempt, "lendablePercent", 0);
        }
        let Some(limited) = spec.get_mut("limited").and_then(Value::as_object_mut) else { return };
        set_default(limited, "nominalConcurrencyShares", SHARES_DEFAULT);
        set_default(limited, "lendablePercent", 0);
        let queuing = limited.get_mut("limitResponse").and_then(|response| response.get_mut("queuing"));
        if let Some(queuing) = queuing.and_then(Value::as_object_mut) {
            for (field, value) in [("handSize", 8), ("queues", 64), ("queueLengthLimit", 50)] {
                default_number(queuing, field, value);
            }
        }
    }

    fn validate(&self, level: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let (spec, path) = (&level["spec"], Path::new("spec"));
        let kind = text(spec, "type");
        if (meta::name(level) == EXEMPT) != (kind == "Exempt") {
            let detail = "type must be 'Exempt' if and only if name is 'exempt'";
            errors.push(Error::invalid(&path.child("type"), kind, detail));
        }
        let (limited, exempt) = (path.child("limited"), path.child("exempt"));
        match kind {
            "Exempt" => {
                if spec["limited"].is_object() {
                    errors.push(Error::forbidden(&limited, "must be nil if the type is not Limited"));
                }
                check_shares(&spec["exempt"], &exempt, &mut errors);
            }
            "Limited" => {
                if spec["exempt"].is_object() {
                    errors.push(Error::forbidden(&exempt, "must be nil if the type is Limited"));
                }
                if spec["limited"].is_object() {
                    check_shares(&spec["limited"], &limited, &mut errors);
                    check_response(&spec["limited"]["limitResponse"], &limited.child("limitResponse"), &mut errors);
                } else {
                    errors.push(Error::required(&limited, "must not be empty when type is Limited"));
                }
            }
            other => errors.push(Error::not_supported(&path.child("type"), other, &["Exempt", "Limited"])),
        }
        errors
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Sets a number that is absent or zero.
fn default_number(map: &mut Map<String, Value>, field: &str, value: i64) {
    if map.get(field).and_then(Value::as_i64).unwrap_or(0) == 0 {
        map.insert(field.to_owned(), value.into());
    }
}

fn check_name(name: &str, check: fn(&str) -> Vec<String>, path: &Path<'_>, errors: &mut Vec<Error>) {
    errors.extend(check(name).into_iter().map(|message| Error::invalid(path, name, message)));
}

fn check_rule(rule: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let subjects = path.child("subjects");
    if list(rule, "subjects").is_empty() {
        errors.push(Error::required(&subjects, "subjects must contain at least one value"));
    }
    for (index, subject) in list(rule, "subjects").iter().enumerate() {
        check_subject(subject, &subjects.index(index), errors);
    }
    if list(rule, "resourceRules").is_empty() && list(rule, "nonResourceRules").is_empty() {
        errors.push(Error::required(path, "at least one of resourceRules and nonResourceRules has to be non-empty"));
    }
    let rules = path.child("resourceRules");
    for (index, rule) in list(rule, "resourceRules").iter().enumerate() {
        check_resource_rule(rule, &rules.index(index), errors);
    }
    let rules = path.child("nonResourceRules");
    for (index, rule) in list(rule, "nonResourceRules").iter().enumerate() {
        let at = rules.index(index);
        check_verbs(rule, &at, errors);
        let urls = at.child("nonResourceURLs");
        let required = "nonResourceURLs must contain at least one value";
        if !check_alone(rule, &urls, "nonResourceURLs", required, "non-resource URLs", errors) {
            continue;
        }
        for (index, url) in list(rule, "nonResourceURLs").iter().enumerate() {
            check_url(url.as_str().unwrap_or_default(), &urls.index(index), errors);
        }
    }
}

fn check_subject(subject: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    const KINDS: [(&str, &str); 3] = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
    let kind = text(subject, "kind");
    if !KINDS.iter().any(|(known, _)| *known == kind) {
        errors.push(Error::not_supported(&path.child("kind"), kind, &["Group", "ServiceAccount", "User"]));
        return;
    }
    for (other, field) in KINDS {
        let at = path.child(field);
        match (other == kind, subject[field].is_object()) {
            (true, false) => {
                errors.push(Error::required(&at, format!("{field} is required when subject kind is '{kind}'")));
            }
            (false, true) => {
                errors.push(Error::forbidden(&at, format!("{field} is forbidden when subject kind is not '{other}'")));
            }
            (true, true) => {
                let name = text(&subject[field], "name");
                if name.is_empty() {
                    errors.push(Error::required(&at.child("name"), ""));
                } else if kind == "ServiceAccount" && name != "*" {
                    check_name(name, names::is_dns1123_subdomain, &at.child("name"), errors);
                }
                if kind == "ServiceAccount" {
                    let namespace = text(&subject[field], "namespace");
                    if namespace.is_empty() {
                        let detail = "must specify namespace for service account";
                        errors.push(Error::required(&at.child("namespace"), detail));
                    } else {
                        check_name(namespace, names::is_dns1123_label, &at.child("namespace"), errors);
                    }
                }
            }
            (false, false) => {}
        }
    }
}

fn check_resource_rule(rule: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    check_verbs(rule, path, errors);
    for (field, what) in [("apiGroups", "api group"), ("resources", "resource")] {
        let required = format!("resource rules must supply at least one {what}");
        check_alone(rule, &path.child(field), field, &required, &format!("{what}s"), errors);
    }
    let (namespaces, at) = (list(rule, "namespaces"), path.child("namespaces"));
    if namespaces.is_empty() && rule["clusterScope"] == true {
        return;
    }
    let required = "resource rules that are not cluster scoped must supply at least one namespace";
    if check_alone(rule, &at, "namespaces", required, "namespaces", errors) {
        for (index, namespace) in namespaces.iter().enumerate() {
            let namespace = namespace.as_str().unwrap_or_default();
            for message in names::is_dns1123_label(namespace) {
                let detail = format!("each member of this list must be '*' or a DNS-1123 label; {message}");
                errors.push(Error::invalid(&at.index(index), namespace, detail));
            }
        }
    }
}

fn check_verbs(rule: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let at = path.child("verbs");
    if !check_alone(rule, &at, "verbs", "verbs must contain at least one value", "verbs", errors) {
        return;
    }
    if list(rule, "verbs").iter().any(|verb| !VERBS.contains(&verb.as_str().unwrap_or_default())) {
        errors.push(Error::not_supported(&at, rule["verbs"].clone(), &VERBS));
    }
}

/// Validates that a list has items, and that a star is the only item. Returns true if the caller
/// must validate each item.
fn check_alone(
    rule: &Value,
    path: &Path<'_>,
    field: &str,
    required: &str,
    what: &str,
    errors: &mut Vec<Error>,
) -> bool {
    let items = list(rule, field);
    if items.is_empty() {
        errors.push(Error::required(path, required));
        return false;
    }
    let has_star = items.iter().any(|item| item == "*");
    if has_star && items.len() > 1 {
        let detail = format!("if '*' is present, must not specify other {what}");
        errors.push(Error::invalid(path, rule[field].clone(), detail));
    }
    !has_star
}

fn check_url(url: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    let stars = url.matches('*').count();
    let detail = match url {
        "/" => return,
        "" => "must not be empty",
        _ if !url.starts_with('/') => "must start with slash",
        _ if url.contains(' ') => "must not contain white-space",
        _ if url.contains("//") => "must not contain double slash",
        _ if stars > 1 || stars == 1 && !url.ends_with("/*") => "wildcard can only do suffix matching",
        _ => return,
    };
    errors.push(Error::invalid(path, url, detail));
}

/// Validates the share of concurrency that a level has, lends and borrows.
fn check_shares(level: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let number = |field: &str| level[field].as_i64();
    if let Some(shares) = number("nominalConcurrencyShares").filter(|shares| *shares < 0) {
        let at = path.child("nominalConcurrencyShares");
        errors.push(Error::invalid(&at, shares, "must be a non-negative integer"));
    }
    if let Some(percent) = number("lendablePercent").filter(|percent| !(0..=100).contains(percent)) {
        let at = path.child("lendablePercent");
        errors.push(Error::invalid(&at, percent, "must be between 0 and 100, inclusive"));
    }
    if let Some(percent) = number("borrowingLimitPercent").filter(|percent| *percent < 0) {
        let at = path.child("borrowingLimitPercent");
        errors.push(Error::invalid(&at, percent, "if specified, must be a non-negative integer"));
    }
}

fn check_response(response: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let queuing = path.child("queuing");
    match (text(response, "type"), response["queuing"].is_object()) {
        ("Reject", true) => {
            let detail = "must be nil if limited.limitResponse.type is not Limited";
            errors.push(Error::forbidden(&queuing, detail));
        }
        ("Queue", false) => {
            let detail = "must not be empty if limited.limitResponse.type is Limited";
            errors.push(Error::required(&queuing, detail));
        }
        ("Queue", true) => check_queuing(&response["queuing"], &queuing, errors),
        ("Reject", false) => {}
        (other, _) => errors.push(Error::not_supported(&path.child("type"), other, &["Queue", "Reject"])),
    }
}

fn check_queuing(queuing: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let number = |field: &str| queuing[field].as_i64().unwrap_or(0);
    let (queues, hand) = (number("queues"), number("handSize"));
    for field in ["queueLengthLimit", "queues", "handSize"] {
        if number(field) <= 0 {
            errors.push(Error::invalid(&path.child(field), number(field), "must be positive"));
        }
    }
    if queues > QUEUES_MAX {
        let detail = format!("must not be greater than {QUEUES_MAX}");
        errors.push(Error::invalid(&path.child("queues"), queues, detail));
    }
    if queues <= 0 || hand <= 0 {
        return;
    }
    let at = path.child("handSize");
    if hand > queues {
        errors.push(Error::invalid(&at, hand, format!("should not be greater than queues ({queues})")));
    } else {
        // Each queue of a hand is chosen among all queues.
        let bits = ((queues as f64).log2() * hand as f64).ceil() as i64;
        if bits > HASH_BITS {
            let detail = format!(
                "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
            );
            errors.push(Error::invalid(&at, hand, detail));
        }
    }
}
