//! Matching of requests to policies: as for webhooks, plus names of objects and rules that exclude.
//!
//! Behaviour after Kubernetes' policy matching (conformance suite `vap-matching`).

use serde_json::{Value, json};

use crate::admission::webhooks::matching::{self, Lookup, MatchError, RequestAttributes, Target};

/// The resource in whose form a policy gets the objects of a request. `None` if the match criteria
/// (`matchConstraints` of a policy, `matchResources` of a binding) do not match the request.
pub fn matches(
    criteria: &Value,
    request: &RequestAttributes<'_>,
    name: &str,
    lookup: &dyn Lookup,
) -> Result<Option<Target>, MatchError> {
    let rules = |field: &str| as_webhook(criteria, field, name);
    if matching::matched_rule(&rules("excludeResourceRules"), request, lookup)?.is_some() {
        return Ok(None);
    }
    // Criteria without rules match every resource.
    if criteria["resourceRules"].as_array().is_none_or(Vec::is_empty) {
        let everything =
            matching::namespace_matches(criteria, request, lookup)? && matching::object_matches(criteria, request)?;
        return Ok(everything.then(|| request.target.clone()));
    }
    matching::should_call(&rules("resourceRules"), request, lookup)
}

/// The criteria in the form of a webhook, without rules for objects of other names.
fn as_webhook(criteria: &Value, field: &str, name: &str) -> Value {
    let names = |rule: &&Value| {
        let names = rule["resourceNames"].as_array();
        names.is_none_or(|names| names.is_empty() || names.iter().any(|own| own == name))
    };
    let rules: Vec<Value> = criteria[field].as_array().into_iter().flatten().filter(names).cloned().collect();
    json!({
        "rules": rules, "matchPolicy": criteria["matchPolicy"], "namespaceSelector": criteria["namespaceSelector"],
        "objectSelector": criteria["objectSelector"],
    })
}
