//! HorizontalPodAutoscalers: defaults and validation of both versions. The contents of v1's
//! annotations are validated as the fields of v2.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::{self, map_mut};
use berth_apimachinery::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::{Context, Strategy, set_default, set_default_text, spec_mut};
use crate::registry::autoscalers;

const V2: &str = "autoscaling/v2";
/// Types of metrics.
const KINDS: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];
/// Maximum stabilization window of scaling rules, and maximum period of a scaling policy, in
/// seconds.
const WINDOW_SECONDS_MAX: i64 = 3600;
const PERIOD_SECONDS_MAX: i64 = 1800;

pub(crate) struct Autoscalers;

impl Strategy for Autoscalers {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn prepare_create(&self, autoscaler: &mut Value, _context: &Context<'_>) {
        let status = match meta::api_version(autoscaler) {
            "autoscaling/v1" => json!({"currentReplicas": 0, "desiredReplicas": 0}),
            _ => json!({"desiredReplicas": 0, "currentMetrics": null}),
        };
        meta::map_mut(autoscaler).insert("status".to_owned(), status);
    }

    fn default(&self, autoscaler: &mut Value) {
        let is_v2 = meta::api_version(autoscaler) == V2;
        let spec = spec_mut(autoscaler);
        set_default(spec, "minReplicas", 1);
        if !is_v2 {
            // The default metric of v1 depends on annotations, so the conversion sets it.
            return;
        }
        if spec.get("metrics").and_then(Value::as_array).is_none_or(Vec::is_empty) {
            let target = json!({"type": "Utilization", "averageUtilization": autoscalers::CPU_PERCENT_DEFAULT});
            let metric = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
            spec.insert("metrics".to_owned(), json!([metric]));
        }
        default_behavior(spec);
    }

    fn validate(&self, autoscaler: &Value) -> Vec<Error> {
        let stored = autoscalers::convert(autoscaler.clone(), V2);
        let mut errors = Vec::new();
        check_spec(&stored["spec"], &Path::new("spec"), &mut errors);
        errors
    }
}

/// Sets the defaults of scaling rules.
pub fn default_behavior(spec: &mut Map<String, Value>) {
    let Some(behavior) = spec.get_mut("behavior").and_then(Value::as_object_mut) else { return };
    let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    for (field, window, policies) in
        [("scaleUp", Some(0), json!([pods, percent])), ("scaleDown", None, json!([percent]))]
    {
        let rules = map_mut(behavior.entry(field).or_insert_with(|| json!({})));
        if let Some(window) = window {
            set_default(rules, "stabilizationWindowSeconds", window);
        }
        set_default_text(rules, "selectPolicy", "Max");
        set_default(rules, "policies", policies);
    }
}

/// Validates the group of the scale target. Of the core group, only ReplicationControllers can be
/// scaled.
fn check_target_group(target: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let version = target["apiVersion"].as_str().unwrap_or_default();
    let at = path.child("apiVersion");
    match version.matches('/').count() {
        0 if target["kind"] != "ReplicationController" => {
            errors.push(Error::invalid(&at, version, "apiVersion must specify API group"));
        }
        0 | 1 => {}
        _ => errors.push(Error::invalid(&at, version, format!("unexpected GroupVersion string: {version}"))),
    }
}

fn check_spec(spec: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let (least, most) = (spec["minReplicas"].as_i64().unwrap_or(1), spec["maxReplicas"].as_i64().unwrap_or(0));
    if least < 1 {
        errors.push(Error::invalid(&path.child("minReplicas"), least, "must be greater than or equal to 1"));
    }
    if most < 1 {
        errors.push(Error::invalid(&path.child("maxReplicas"), most, "must be greater than 0"));
    }
    if most < least {
        let detail = "must be greater than or equal to `minReplicas`";
        errors.push(Error::invalid(&path.child("maxReplicas"), most, detail));
    }
    check_reference(&spec["scaleTargetRef"], &path.child("scaleTargetRef"), errors);
    check_target_group(&spec["scaleTargetRef"], &path.child("scaleTargetRef"), errors);
    let metrics = path.child("metrics");
    for (index, metric) in spec["metrics"].as_array().into_iter().flatten().enumerate() {
        check_metric(metric, &metrics.index(index), errors);
    }
    let behavior = path.child("behavior");
    for field in ["scaleUp", "scaleDown"] {
        if spec["behavior"][field].is_object() {
            check_rules(&spec["behavior"][field], &behavior.child(field), errors);
        }
    }
}

/// Validates a reference to the scale target, or to the object that a metric describes.
fn check_reference(reference: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    for field in ["kind", "name"] {
        let text = reference[field].as_str().unwrap_or_default();
        if text.is_empty() {
            errors.push(Error::required(&path.child(field), ""));
            continue;
        }
        for message in berth_apimachinery::names::is_path_segment_name(text) {
            errors.push(Error::invalid(&path.child(field), text, message));
        }
    }
}

fn check_metric(metric: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let kind = metric["type"].as_str().unwrap_or_default();
    if kind.is_empty() {
        errors.push(Error::required(&path.child("type"), "must specify a metric source type"));
    }
    if !KINDS.contains(&kind) {
        errors.push(Error::not_supported(&path.child("type"), kind, &KINDS));
        return;
    }
    for other in KINDS {
        let field = format!("{}{}", other[..1].to_lowercase(), &other[1..]);
        let at = path.child(&field);
        match (other == kind, metric[&field].is_object()) {
            (true, true) => check_source(kind, &metric[&field], &at, errors),
            (true, false) => {
                errors.push(Error::required(&at, "must populate information for the given metric source"));
            }
            (false, true) => errors.push(Error::forbidden(&at, "must populate the given metric source only")),
            (false, false) => {}
        }
    }
}

fn check_source(kind: &str, source: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let is_empty = |value: &Value| value.as_str().unwrap_or_default().is_empty();
    let target = path.child("target");
    let amount = &source["target"];
    let has = |field: &str| !amount[field].is_null();
    match kind {
        "Resource" | "ContainerResource" => {
            if is_empty(&source["name"]) {
                errors.push(Error::required(&path.child("name"), "must specify a resource name"));
            }
            if kind == "ContainerResource" && is_empty(&source["container"]) {
                errors.push(Error::required(&path.child("container"), "must specify a container"));
            }
        }
        _ => {
            if kind == "Object" {
                check_reference(&source["describedObject"], &path.child("describedObject"), errors);
            }
            if is_empty(&source["metric"]["name"]) {
                let metric = path.child("metric");
                errors.push(Error::required(&metric.child("name"), "must specify a metric name"));
            }
        }
    }
    check_amount(amount, &target, errors);
    match kind {
        "Resource" | "ContainerResource" => match (has("averageUtilization"), has("averageValue")) {
            (false, false) => {
                let detail = "must set either a target raw value or a target utilization";
                errors.push(Error::required(&target.child("averageUtilization"), detail));
            }
            (true, true) => {
                let detail = "may not set both a target raw value and a target utilization";
                errors.push(Error::forbidden(&target.child("averageValue"), detail));
            }
            _ => {}
        },
        "Pods" if !has("averageValue") => {
            errors.push(Error::required(&target.child("averageValue"), "must specify a positive target averageValue"));
        }
        "Object" | "External" if !has("value") && !has("averageValue") => {
            let detail = "must set either a target value for metric or a per-pod target";
            errors.push(Error::required(&target.child("averageValue"), detail));
        }
        "External" if has("value") && has("averageValue") => {
            let detail = "may not set both a target value for metric and a per-pod target";
            errors.push(Error::forbidden(&target.child("value"), detail));
        }
        _ => {}
    }
}

fn check_amount(amount: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    match amount["type"].as_str().unwrap_or_default() {
        "Utilization" | "Value" | "AverageValue" => {}
        other => {
            if other.is_empty() {
                errors.push(Error::required(&path.child("type"), "must specify a metric target type"));
            }
            let detail = "must be either Utilization, Value, or AverageValue";
            errors.push(Error::invalid(&path.child("type"), other, detail));
        }
    }
    for field in ["value", "averageValue"] {
        let given = &amount[field];
        if !given.is_null() && Quantity::from_json(given).is_ok_and(|quantity| quantity.sign() <= 0) {
            errors.push(Error::invalid(&path.child(field), given.clone(), "must be positive"));
        }
    }
    if let Some(percent) = amount["averageUtilization"].as_i64().filter(|percent| *percent < 1) {
        errors.push(Error::invalid(&path.child("averageUtilization"), percent, "must be greater than 0"));
    }
}

fn check_rules(rules: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    if let Some(seconds) = rules["stabilizationWindowSeconds"].as_i64() {
        let at = path.child("stabilizationWindowSeconds");
        if seconds < 0 {
            errors.push(Error::invalid(&at, seconds, "must be greater than or equal to zero"));
        } else if seconds > WINDOW_SECONDS_MAX {
            let detail = format!("must be less than or equal to {WINDOW_SECONDS_MAX}");
            errors.push(Error::invalid(&at, seconds, detail));
        }
    }
    let select = rules["selectPolicy"].as_str().unwrap_or_default();
    let known = ["Disabled", "Max", "Min"];
    if !select.is_empty() && !known.contains(&select) {
        errors.push(Error::not_supported(&path.child("selectPolicy"), select, &known));
    }
    let list = path.child("policies");
    let policies = rules["policies"].as_array().map(Vec::as_slice).unwrap_or_default();
    if policies.is_empty() {
        errors.push(Error::required(&list, "must specify at least one Policy"));
    }
    for (index, policy) in policies.iter().enumerate() {
        let at = list.index(index);
        let kind = policy["type"].as_str().unwrap_or_default();
        if !matches!(kind, "Pods" | "Percent") {
            errors.push(Error::not_supported(&at.child("type"), kind, &["Percent", "Pods"]));
        }
        for field in ["value", "periodSeconds"] {
            let number = policy[field].as_i64().unwrap_or(0);
            if number <= 0 {
                errors.push(Error::invalid(&at.child(field), number, "must be greater than zero"));
            }
        }
        if let Some(seconds) = policy["periodSeconds"].as_i64().filter(|seconds| *seconds > PERIOD_SECONDS_MAX) {
            let detail = format!("must be less than or equal to {PERIOD_SECONDS_MAX}");
            errors.push(Error::invalid(&at.child("periodSeconds"), seconds, detail));
        }
    }
}
