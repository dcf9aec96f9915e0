//! Validation rules of a schema.

use std::sync::Arc;

use berth_apimachinery::field::Path;
use berth_apimachinery::schema::Schema;
use berth_cel::Env;
use berth_cel::rules::{ArrayNotation, Request, Rules, check_defaults, valid_field_path};
use serde_json::{Value, json};

fn schema(value: Value) -> Arc<Schema> {
    Schema::parse_crd(&value).expect("a schema")
}

fn check(schema: &Arc<Schema>, object: Value, old: Option<Value>) -> Vec<String> {
    let rules = Rules::of_schema(schema, true, Env::default()).expect("rules");
    let request = Request { old: old.as_ref(), ratcheting: true, ..Request::default() };
    rules.validate(&object, &Path::root(), request).errors.iter().map(ToString::to_string).collect()
}

fn replicas() -> Arc<Schema> {
    schema(json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"replicas": {"type": "integer"}, "max": {"type": "integer"}},
        "x-kubernetes-validations": [
            {"rule": "self.replicas <= self.max", "messageExpression": "'at most ' + string(self.max)",
             "fieldPath": ".replicas"},
            {"rule": "self.max >= oldSelf.max", "message": "max cannot shrink"}]}}}))
}

#[test]
fn a_violated_rule_reports_its_message_at_its_field_path() {
    let errors = check(&replicas(), json!({"spec": {"replicas": 5, "max": 3}}), None);
    assert_eq!(errors, ["spec.replicas: Invalid value: at most 3"]);
    assert!(check(&replicas(), json!({"spec": {"replicas": 3, "max": 3}}), None).is_empty());
}

#[test]
fn transition_rules_run_only_with_an_old_value() {
    let old = json!({"spec": {"replicas": 1, "max": 4}});
    let errors = check(&replicas(), json!({"spec": {"replicas": 1, "max": 3}}), Some(old));
    assert_eq!(errors, ["spec: Invalid value: max cannot shrink"]);
}

#[test]
fn unchanged_violations_are_tolerated() {
    let wrong = json!({"metadata": {"name": "a"}, "spec": {"replicas": 5, "max": 3}});
    assert!(check(&replicas(), wrong.clone(), Some(wrong.clone())).is_empty());
    let mut worse = wrong.clone();
    worse["spec"]["replicas"] = json!(6);
    assert_eq!(check(&replicas(), worse, Some(wrong)).len(), 1);
}

#[test]
fn all_rules_of_an_object_share_one_cost_budget() {
    let schema = schema(json!({"type": "object", "properties": {"list": {"type": "array", "items": {"type": "string",
        "x-kubernetes-validations": [{"rule": "self.size() > 0"}]}}}}));
    let rules = Rules::of_schema(&schema, true, Env::default()).expect("rules");
    let object = json!({"list": vec!["a"; 100]});
    let findings = rules.validate(&object, &Path::root(), Request { budget: Some(100), ..Request::default() });
    assert!(findings.exhausted);
    assert_eq!(findings.errors.len(), 1);
    assert!(findings.errors[0].detail.contains("running out of cost budget"));
}

#[test]
fn a_defaulted_field_is_charged_for_the_more_expensive_evaluation() {
    let left = |rule: &str, errors: usize| {
        let rules = json!([{"rule": rule, "optionalOldSelf": true}]);
        let field = json!({"type": "string", "default": "d", "x-kubernetes-validations": rules});
        let schema = schema(json!({"type": "object", "properties": {"a": field, "b": field}}));
        let mut budget = Some(20);
        let found = check_defaults(&schema, &Path::root(), &mut budget, &Env::default());
        assert_eq!(found.len(), errors, "{found:?}");
        budget
    };
    // The cost is 3 for each field with an old value and 4 for each field without one.
    assert_eq!(left("oldSelf.orValue(self) == self", 0), Some(12));
    assert_eq!(left("oldSelf.hasValue()", 2), Some(16));
    assert_eq!(left("!oldSelf.hasValue()", 2), Some(14), "a value that may not stay is not evaluated as a new value");
}

#[test]
fn array_notation_is_rejected_where_it_is_not_allowed() {
    let schema = schema(
        json!({"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}}}),
    );
    let at = |path: &str, notation| valid_field_path(path, &schema, notation).map(|(path, _)| path);
    assert_eq!(at(".a['b']", ArrayNotation::Allowed).as_deref(), Ok("a.b"));
    assert_eq!(at(".a.b", ArrayNotation::Refused).as_deref(), Ok("a.b"));
    assert_eq!(at(".a['b']", ArrayNotation::Refused), Err("array notation is not allowed".to_owned()));
}

#[test]
fn the_sum_of_sets_or_keyed_lists_compares_without_order() {
    let set = json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"});
    let keyed = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}});
    let atomic = json!({"type": "array", "items": {"type": "string"}});
    for (list, items, violations) in [
        (set, json!([["x", "y"], ["y", "z"]]), 0),
        (keyed, json!([[{"name": "x"}], [{"name": "y"}]]), 0),
        (atomic, json!([["x"], ["y"]]), 1),
    ] {
        let object = json!({"type": "object", "properties": {"list": list}});
        let schema = schema(json!({"type": "object", "properties": {"of": {"type": "array", "items": object}},
            "x-kubernetes-validations": [
                {"rule": "self.of[0].list + self.of[1].list == self.of[1].list + self.of[0].list"}]}));
        let errors = check(&schema, json!({"of": [{"list": items[0]}, {"list": items[1]}]}), None);
        assert_eq!(errors.len(), violations, "{items}: {errors:?}");
    }
}
