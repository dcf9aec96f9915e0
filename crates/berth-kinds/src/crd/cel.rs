//! `x-kubernetes-validations`: CEL rules of custom resources, compiled on first use and evaluated
//! on every write.

use std::sync::Arc;

use berth_apimachinery::field::Path;
use berth_apimachinery::schema::Schema;
use berth_cel::Env;
use berth_cel::rules::{self, Findings, Request};
use serde_json::Value;

/// The rules of one version of a custom resource.
pub struct Rules(berth_cel::Rules);

impl Rules {
    /// The rules of a schema; `None` if it has none. They are stored already, so they may use every
    /// feature of this server.
    pub fn compile(schema: &Arc<Schema>) -> Option<Rules> {
        berth_cel::Rules::of_schema(schema, true, Env::default()).map(Rules)
    }

    /// Evaluates the rules on an object; `old` is the object that it replaces. An unchanged value
    /// that violated a rule before causes only a warning.
    pub fn check(&self, object: &Value, old: Option<&Value>) -> Findings {
        let request = Request {
            old,
            budget: Some(rules::OBJECT_COST_MAX),
            call_limit: Some(rules::CALL_COST_MAX),
            ratcheting: true,
            interrupt: None,
        };
        self.0.validate(object, &Path::root(), request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(schema: Value, object: Value, old: Option<Value>) -> Vec<String> {
        let schema = Schema::parse_crd(&schema).unwrap();
        let rules = Rules::compile(&schema).unwrap();
        rules.check(&object, old.as_ref()).errors.iter().map(|error| error.to_string()).collect()
    }

    fn with_rule(rule: Value) -> Value {
        json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": [rule],
            "properties": {"replicas": {"type": "integer"}, "name-of": {"type": "string"},
                "since": {"type": "string", "format": "date-time"}}}}})
    }

    #[test]
    fn a_false_rule_is_an_error_at_its_node_with_its_message() {
        let schema = with_rule(json!({"rule": "self.replicas >= 1", "message": "at least one"}));
        let errors = check(schema.clone(), json!({"spec": {"replicas": 0}}), None);
        assert_eq!(errors, ["spec: Invalid value: at least one"]);
        assert!(check(schema, json!({"spec": {"replicas": 1}}), None).is_empty());
    }

    #[test]
    fn transition_rules_run_only_when_there_is_an_old_value() {
        let schema = with_rule(json!({"rule": "self.replicas == oldSelf.replicas", "message": "immutable"}));
        assert!(check(schema.clone(), json!({"spec": {"replicas": 1}}), None).is_empty());
        let errors = check(schema, json!({"spec": {"replicas": 1}}), Some(json!({"spec": {"replicas": 2}})));
        assert_eq!(errors.len(), 1);
    }

    #[test]
    fn names_are_escaped_and_formats_typed() {
        let schema = with_rule(json!({
            "rule": "has(self.name__dash__of) && self.since > timestamp('2024-01-01T00:00:00Z')",
            "messageExpression": "'got ' + self.name__dash__of", "fieldPath": ".since", "reason": "FieldValueForbidden",
        }));
        let early = json!({"spec": {"name-of": "x", "since": "2020-01-01T00:00:00Z"}});
        assert_eq!(check(schema.clone(), early, None), ["spec.since: Forbidden: got x"]);
        assert!(check(schema, json!({"spec": {"name-of": "x", "since": "2025-01-01T00:00:00Z"}}), None).is_empty());
    }
}
