//! Which policies a request concerns: as webhooks, plus names of objects and rules that exclude.
//!
//! Behaviour after Kubernetes' policy matching (conformance suite `vap-matching`).

use serde_json::{Value, json};

use crate::admission::webhooks::matching::{self, Asked, Lookup, MatchError, Target};

/// Whether match criteria (`matchConstraints` of a policy, `matchResources` of a binding) concern a request, and the
/// resource they want the objects as.
pub fn matches(
    criteria: &Value,
    asked: &Asked<'_>,
    name: &str,
    lookup: &dyn Lookup,
) -> Result<Option<Target>, MatchError> {
    let rules = |field: &str| as_webhook(criteria, field, name);
    if matching::matched_rule(&rules("excludeResourceRules"), asked, lookup)?.is_some() {
        return Ok(None);
    }
    // Criteria without rules are about everything.
    if criteria["resourceRules"].as_array().is_none_or(Vec::is_empty) {
        let everything =
            matching::namespace_matches(criteria, asked, lookup)? && matching::object_matches(criteria, asked)?;
        return Ok(everything.then(|| asked.target.clone()));
    }
    matching::should_call(&rules("resourceRules"), asked, lookup)
}

/// The criteria as a webhook would write them: rules about objects of other names are no rules.
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
