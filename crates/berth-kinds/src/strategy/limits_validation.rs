//! Validation of ResourceQuotas and LimitRanges. The rules and messages are those of kube-apiserver
//! 1.36.3.

use std::collections::{BTreeSet, HashSet};

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use berth_apimachinery::quantity::{Format, Quantity};
use serde_json::{Value, json};

use super::rules::ERRORS_MAX;

/// Resources that quotas limit, besides those with a domain or a prefix.
const QUOTA_RESOURCES: [&str; 19] = [
    "configmaps",
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];
/// Resources of [`QUOTA_RESOURCES`] whose amounts must be whole numbers.
const WHOLE_RESOURCES: [&str; 9] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];
/// Resources that a quota with a scope of pods can limit. A quota with the scope `BestEffort` can
/// limit only `pods`.
const POD_RESOURCES: [&str; 7] =
    ["cpu", "limits.cpu", "limits.memory", "memory", "pods", "requests.cpu", "requests.memory"];
const CONTAINER_RESOURCES: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];
/// Maximum length in bytes of a list that error messages repeat.
const SHOWN_MAX: usize = 4096;
const CONFLICTING: [[&str; 2]; 2] = [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];

fn entries(amounts: &Value) -> impl Iterator<Item = (&String, &Value)> {
    amounts.as_object().into_iter().flatten()
}

fn quantity(amount: &Value) -> Option<Quantity> {
    Quantity::from_json(amount).ok()
}

/// Validates the name of a resource: it is qualified, and without a domain it is one of `known`.
fn check_name(name: &str, known: &[&str], of: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    let problems = names::is_qualified_name(name);
    let is_qualified = problems.is_empty();
    errors.extend(problems.into_iter().map(|problem| Error::invalid(path, name, problem)));
    let is_huge_page = name.starts_with("hugepages-");
    let is_request = of == "quota" && name.starts_with("requests.hugepages-");
    if name.contains('/') || known.contains(&name) || is_huge_page || is_request {
        return;
    }
    let is_standard = QUOTA_RESOURCES.contains(&name) || name == "storage" || name.starts_with("requests.hugepages-");
    if is_qualified && !is_standard {
        errors.push(Error::invalid(path, name, "must be a standard resource type or fully qualified"));
    }
    errors.push(Error::invalid(path, name, format!("must be a standard resource for {of}")));
}

/// Validates a ResourceQuota.
pub(super) fn quota(quota: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let (spec, path) = (&quota["spec"], Path::new("spec"));
    let hard = path.child("hard");
    for (name, amount) in entries(&spec["hard"]) {
        let at = hard.key(name);
        check_name(name, &QUOTA_RESOURCES, "quota", &at, &mut errors);
        let Some(found) = quantity(amount) else { continue };
        if found.sign() < 0 {
            errors.push(Error::invalid(&at, amount.clone(), "must be greater than or equal to 0"));
        }
        if WHOLE_RESOURCES.contains(&name.as_str()) && !found.is_whole() {
            errors.push(Error::invalid(&at, amount.clone(), "must be an integer"));
        }
    }
    let scopes: Vec<&str> = spec["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let at = path.child("scopes");
    let shown = unless_long(spec["scopes"].clone());
    // A repeated scope without errors is not checked again.
    let mut valid: HashSet<&str> = HashSet::new();
    for scope in &scopes {
        let before = errors.len();
        if before < ERRORS_MAX && !valid.contains(scope) {
            check_scope(scope, spec, (&at, &shown), (&at, &shown), &mut errors);
        }
        if errors.len() == before {
            valid.insert(scope);
        }
    }
    if conflict(&scopes) {
        errors.push(Error::invalid(&at, spec["scopes"].clone(), "conflicting scopes"));
    }
    let selector = path.child("scopeSelector");
    check_selector(spec, &selector.child("matchExpressions"), &mut errors);
    errors
}

/// Validates an update of a ResourceQuota.
pub(super) fn quota_update(new: &Value, old: &Value) -> Vec<Error> {
    let mut errors = quota(new);
    let scopes = |quota: &Value| -> BTreeSet<String> {
        let scopes = quota["spec"]["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str);
        scopes.map(str::to_owned).collect()
    };
    if scopes(new) != scopes(old) {
        let path = Path::new("spec");
        errors.push(Error::invalid(&path.child("scopes"), new["spec"]["scopes"].clone(), "field is immutable"));
    }
    errors
}

/// Validates that a scope exists, and that it applies to every resource of the quota that has no
/// domain. `name_path` and `fit_path` are the paths of these two errors; each comes with the value
/// to show.
fn check_scope(
    scope: &str,
    spec: &Value,
    (name_path, name): (&Path<'_>, &Value),
    (fit_path, fit): (&Path<'_>, &Value),
    errors: &mut Vec<Error>,
) {
    let fits = |name: &str| {
        name.contains('/')
            || match scope {
                "BestEffort" => name == "pods",
                "VolumeAttributesClass" => matches!(name, "persistentvolumeclaims" | "requests.storage"),
                _ => POD_RESOURCES.contains(&name),
            }
    };
    if !is_known(scope) && !matches!(scope, "PriorityClass" | "VolumeAttributesClass") {
        errors.push(Error::invalid(name_path, name.clone(), "unsupported scope"));
        return;
    }
    let remaining = ERRORS_MAX.saturating_sub(errors.len());
    for _ in entries(&spec["hard"]).filter(|(name, _)| !fits(name)).take(remaining) {
        errors.push(Error::invalid(fit_path, fit.clone(), "unsupported scope applied to resource"));
    }
}

fn conflict(scopes: &[&str]) -> bool {
    CONFLICTING.iter().any(|pair| pair.iter().all(|scope| scopes.contains(scope)))
}

fn check_selector(spec: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let expressions = spec["scopeSelector"]["matchExpressions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut seen = Vec::new();
    let mut valid: HashSet<&str> = HashSet::new();
    // With the names of Go's struct fields, as kube-apiserver shows them.
    let shown = expressions
        .iter()
        .map(|it| json!({"ScopeName": it["scopeName"], "Operator": it["operator"], "Values": it["values"]}));
    let shown = unless_long(json!({"MatchExpressions": shown.collect::<Vec<_>>()}));
    for expression in expressions {
        let scope = expression["scopeName"].as_str().unwrap_or_default();
        let operator = expression["operator"].as_str().unwrap_or_default();
        seen.push(scope);
        let name_path = path.child("scopeName");
        let before = errors.len();
        if before < ERRORS_MAX && !valid.contains(scope) {
            check_scope(scope, spec, (&name_path, &expression["scopeName"]), (path, &shown), errors);
        }
        if errors.len() == before {
            valid.insert(scope);
        }
        if !matches!(scope, "PriorityClass" | "VolumeAttributesClass") && is_known(scope) && operator != "Exists" {
            let detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
                          ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, \
                          ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.push(Error::invalid(&path.child("operator"), operator, detail));
        }
        let values = expression["values"].as_array().map_or(0, Vec::len);
        match operator {
            "In" | "NotIn" if values == 0 => {
                let detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.push(Error::required(&path.child("values"), detail));
            }
            "Exists" | "DoesNotExist" if values > 0 => {
                let detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.push(Error::invalid(&path.child("values"), expression["values"].clone(), detail));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => errors.push(Error::invalid(&path.child("operator"), operator, "not a valid selector operator")),
        }
    }
    if conflict(&seen) {
        errors.push(Error::invalid(path, Value::Null, "conflicting scopes"));
    }
}

/// The value to show in error messages for a list: null if the list is long, because every error
/// repeats it.
fn unless_long(list: Value) -> Value {
    if list.to_string().len() > SHOWN_MAX { Value::Null } else { list }
}

fn is_known(scope: &str) -> bool {
    CONFLICTING.iter().flatten().any(|known| *known == scope) || scope == "CrossNamespacePodAffinity"
}

/// Validates a LimitRange, after its defaults are set.
pub(super) fn limit_range(range: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    let path = path.child("limits");
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, limit) in range["spec"]["limits"].as_array().into_iter().flatten().enumerate() {
        let at = path.index(index);
        let kind = limit["type"].as_str().unwrap_or_default();
        let problems = names::is_qualified_name(kind);
        if problems.is_empty() && !kind.contains('/') && !matches!(kind, "Container" | "PersistentVolumeClaim" | "Pod")
        {
            let detail = "must be a standard limit type or fully qualified";
            errors.push(Error::invalid(&at.child("type"), kind, detail));
        }
        errors.extend(problems.into_iter().map(|problem| Error::invalid(&at.child("type"), kind, problem)));
        if !seen.insert(kind) {
            errors.push(Error::duplicate(&at.child("type"), kind));
        }
        check_limit(kind, limit, &at, &mut errors);
    }
    errors
}

fn check_limit(kind: &str, limit: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let fields: &[&str] = match kind {
        "Pod" => &["max", "min"],
        _ => &["max", "min", "default", "defaultRequest"],
    };
    for field in fields.iter().chain(&["maxLimitRequestRatio"]) {
        let at = path.child(field);
        for (name, _) in entries(&limit[*field]) {
            if kind == "Container" || kind == "Pod" {
                check_name(name, &CONTAINER_RESOURCES, "containers", &at.key(name), errors);
            }
        }
    }
    if kind == "Pod" {
        for field in ["default", "defaultRequest"] {
            if entries(&limit[field]).next().is_some() {
                errors.push(Error::forbidden(&path.child(field), "may not be specified when `type` is 'Pod'"));
            }
        }
    }
    if kind == "PersistentVolumeClaim" && ["min", "max"].iter().all(|bound| limit[*bound]["storage"].is_null()) {
        let detail = "either minimum or maximum storage value is required, but neither was provided";
        errors.push(Error::required(&path.child("limits"), detail));
    }
    let all: BTreeSet<&String> = fields
        .iter()
        .chain(&["maxLimitRequestRatio"])
        .flat_map(|field| entries(&limit[*field]))
        .map(|it| it.0)
        .collect();
    for name in all {
        check_bounds(kind, name, limit, path, errors);
    }
}

/// Validates that the bounds and defaults of one resource are consistent.
fn check_bounds(kind: &str, name: &str, limit: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let get = |field: &str| {
        let amount = limit[field].get(name)?;
        Some((amount.as_str().unwrap_or_default().to_owned(), quantity(amount)?))
    };
    let with_defaults = |field: &str| get(field).filter(|_| kind != "Pod");
    let (max, min) = (get("max"), get("min"));
    let (default, request) = (with_defaults("default"), with_defaults("defaultRequest"));
    let exceeds = |low: &Option<(String, Quantity)>, high: &Option<(String, Quantity)>| match (low, high) {
        (Some(low), Some(high)) => low.1 > high.1,
        _ => false,
    };
    let text = |it: &Option<(String, Quantity)>| it.as_ref().map(|it| it.0.clone()).unwrap_or_default();
    // Pairs of a lower and an upper bound, the field of the error, and the value that it shows.
    let pairs = [
        (("min", &min), ("max", &max), "min", &min),
        (("min", &min), ("default request", &request), "defaultRequest", &request),
        (("default request", &request), ("max", &max), "defaultRequest", &request),
        (("default request", &request), ("default limit", &default), "defaultRequest", &request),
        (("min", &min), ("default", &default), "default", &min),
        (("default", &default), ("max", &max), "default", &max),
    ];
    for ((low_name, low), (high_name, high), field, shown) in pairs {
        if exceeds(low, high) {
            let why = format!("{low_name} value {} is greater than {high_name} value {}", text(low), text(high));
            errors.push(Error::invalid(&path.child(field).key(name), text(shown), why));
        }
    }
    if let Some((ratio_text, ratio)) = get("maxLimitRequestRatio") {
        let at = path.child("maxLimitRequestRatio");
        if ratio < Quantity::new(1, Format::DecimalSi) {
            let why = format!("ratio {ratio_text} is less than 1");
            errors.push(Error::invalid(&at.key(name), ratio_text.clone(), why));
        }
        if let (Some(min), Some(max)) = (&min, &max)
            && min.1.sign() > 0
        {
            let most = max.1.as_f64() / min.1.as_f64();
            if ratio.as_f64() > most {
                let why = format!("ratio {ratio_text} is greater than max/min = {most:.6}");
                errors.push(Error::invalid(&at.key(name), ratio_text, why));
            }
        }
    }
    // Extended resources (with a domain) cannot be overcommitted.
    let extended = name.contains('/') && !name.contains("kubernetes.io/");
    if extended
        && let (Some(default), Some(request)) = (&default, &request)
        && default.1 != request.1
    {
        let why = format!("default value {} must equal to defaultRequest value {} in {name}", default.0, request.0);
        errors.push(Error::invalid(&path.child("defaultRequest").key(name), request.0.clone(), why));
    }
}
