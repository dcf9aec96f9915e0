//! Conversion of HorizontalPodAutoscalers between `autoscaling/v2`, which is stored, and `v1`. v1
//! has a field for only one metric: the CPU usage of pods in percent of their requests. Annotations
//! of v1 objects contain everything else, so that a client can read an object and write it back
//! without loss.
//!
//! The names of the annotations and the encoding of metrics in them are those of Kubernetes'
//! `autoscaling/v1` API.

use berth_apimachinery::meta;
use serde_json::{Map, Value, json};

use crate::strategy::default_behavior;

const V1: &str = "autoscaling/v1";
const V2: &str = "autoscaling/v2";

/// Annotation with the metrics that have no field in v1.
const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
/// All annotations of the conversion. They are removed when a v1 object is converted to v2.
const ANNOTATIONS: [&str; 4] = [METRICS, BEHAVIOR, CURRENT_METRICS, CONDITIONS];

/// Target CPU utilization of an autoscaler without metrics, in percent.
pub const CPU_PERCENT_DEFAULT: i64 = 80;

/// Type of a metric, its field, and the paths of its values in v2 and v1. A star means `target` in
/// a specification and `current` in a status.
type Source = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const SOURCES: [Source; 5] = [
    (
        "Object",
        "object",
        &[
            ("describedObject", "target"),
            ("metric/name", "metricName"),
            ("metric/selector", "selector"),
            ("*/value", "*Value"),
            ("*/averageValue", "averageValue"),
        ],
    ),
    (
        "Pods",
        "pods",
        &[("metric/name", "metricName"), ("metric/selector", "selector"), ("*/averageValue", "*AverageValue")],
    ),
    (
        "Resource",
        "resource",
        &[("name", "name"), ("*/averageUtilization", "*AverageUtilization"), ("*/averageValue", "*AverageValue")],
    ),
    (
        "ContainerResource",
        "containerResource",
        &[
            ("name", "name"),
            ("container", "container"),
            ("*/averageUtilization", "*AverageUtilization"),
            ("*/averageValue", "*AverageValue"),
        ],
    ),
    (
        "External",
        "external",
        &[
            ("metric/name", "metricName"),
            ("metric/selector", "metricSelector"),
            ("*/value", "*Value"),
            ("*/averageValue", "*AverageValue"),
        ],
    ),
];

/// Whether metrics are targets (specification) or current values (status).
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Wanted,
    Current,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Side::Wanted => "target",
            Side::Current => "current",
        }
    }

    /// Field of v1 for the CPU usage of pods.
    fn percent(self) -> &'static str {
        match self {
            Side::Wanted => "targetCPUUtilizationPercentage",
            Side::Current => "currentCPUUtilizationPercentage",
        }
    }

    fn metrics(self) -> &'static str {
        match self {
            Side::Wanted => "metrics",
            Side::Current => "currentMetrics",
        }
    }
}

/// Converts an autoscaler to the version `to`. Objects of that version, or of an unknown version,
/// are returned unchanged.
pub fn convert(mut object: Value, to: &str) -> Value {
    match (meta::api_version(&object), to) {
        (V2, V1) => to_v1(&mut object),
        (V1, V2) => to_v2(&mut object),
        _ => {}
    }
    object
}

fn to_v1(object: &mut Value) {
    meta::map_mut(object).insert("apiVersion".to_owned(), V1.into());
    let mut annotations: Vec<(&str, Value)> = Vec::new();
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        let metrics = list(spec.remove(Side::Wanted.metrics()));
        let cpu = metrics.iter().find(|metric| is_cpu(metric)).and_then(|metric| percent(metric, Side::Wanted));
        if let Some(cpu) = cpu {
            spec.insert(Side::Wanted.percent().to_owned(), cpu.clone());
        }
        let others = metrics.iter().filter(|metric| !is_cpu(metric) || percent(metric, Side::Wanted).is_none());
        annotations.push((METRICS, others.map(|metric| metric_to_v1(metric, Side::Wanted)).collect()));
        annotations.push((BEHAVIOR, spec.remove("behavior").unwrap_or_default()));
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        let metrics = list(status.remove(Side::Current.metrics()));
        let cpu = metrics.iter().filter(|metric| is_cpu(metric)).find_map(|metric| percent(metric, Side::Current));
        if let Some(cpu) = cpu {
            status.insert(Side::Current.percent().to_owned(), cpu.clone());
        }
        // The annotation has all metrics, CPU too: v1's field for CPU has only the percentage, not
        // the amount.
        annotations.push((CURRENT_METRICS, metrics.iter().map(|it| metric_to_v1(it, Side::Current)).collect()));
        annotations.push((CONDITIONS, status.remove("conditions").unwrap_or_default()));
    }
    for (name, value) in annotations {
        let is_empty = value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
        if !is_empty && !value.is_null() {
            meta::set_annotation(object, name, &value.to_string());
        }
    }
}

fn to_v2(object: &mut Value) {
    meta::map_mut(object).insert("apiVersion".to_owned(), V2.into());
    let mut kept = Map::new();
    if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        for name in ANNOTATIONS {
            if let Some(text) = annotations.remove(name) {
                // An annotation that cannot be parsed is ignored.
                kept.insert(
                    name.to_owned(),
                    serde_json::from_str(text.as_str().unwrap_or_default()).unwrap_or_default(),
                );
            }
        }
        if annotations.is_empty() && !kept.is_empty() {
            meta::metadata_mut(object).remove("annotations");
        }
    }
    let mut taken = |name: &str| kept.remove(name).unwrap_or_default();
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        let mut metrics: Vec<Value> =
            list(Some(taken(METRICS))).iter().filter_map(|metric| metric_to_v2(metric, Side::Wanted)).collect();
        let cpu = spec.remove(Side::Wanted.percent()).filter(|cpu| !cpu.is_null());
        if let Some(cpu) = cpu.or_else(|| metrics.is_empty().then(|| CPU_PERCENT_DEFAULT.into())) {
            metrics.push(cpu_metric(cpu, Side::Wanted));
        }
        spec.insert(Side::Wanted.metrics().to_owned(), metrics.into());
        if let behavior @ Value::Object(_) = taken(BEHAVIOR) {
            spec.insert("behavior".to_owned(), behavior);
        }
        default_behavior(spec);
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        let mut metrics: Vec<Value> = list(Some(taken(CURRENT_METRICS)))
            .iter()
            .filter_map(|metric| metric_to_v2(metric, Side::Current))
            .collect();
        let cpu = status.remove(Side::Current.percent()).filter(|cpu| !cpu.is_null());
        if let Some(cpu) = cpu.filter(|_| !metrics.iter().any(is_cpu)) {
            metrics.push(cpu_metric(cpu, Side::Current));
        }
        if !metrics.is_empty() {
            status.insert(Side::Current.metrics().to_owned(), metrics.into());
        }
        if let conditions @ Value::Array(_) = taken(CONDITIONS) {
            status.insert("conditions".to_owned(), conditions);
        }
    }
}

fn list(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

fn is_cpu(metric: &Value) -> bool {
    metric["type"] == "Resource" && metric["resource"]["name"] == "cpu"
}

fn percent(metric: &Value, side: Side) -> Option<&Value> {
    Some(&metric["resource"][side.name()]["averageUtilization"]).filter(|percent| !percent.is_null())
}

fn cpu_metric(percent: Value, side: Side) -> Value {
    let mut amount = json!({"averageUtilization": percent});
    if side == Side::Wanted {
        amount["type"] = "Utilization".into();
    }
    json!({"type": "Resource", "resource": {"name": "cpu", side.name(): amount}})
}

fn source(metric: &Value) -> Option<&'static Source> {
    SOURCES.iter().find(|(kind, ..)| metric["type"] == *kind)
}

/// Converts a metric of v2 to the form in v1's annotations.
fn metric_to_v1(metric: &Value, side: Side) -> Value {
    let Some((kind, field, places)) = source(metric) else { return metric.clone() };
    let mut fields = Map::new();
    for (new, old) in *places {
        let found = metric[*field].pointer(&format!("/{}", new.replace('*', side.name())));
        if let Some(value) = found.filter(|value| !value.is_null()) {
            fields.insert(old.replace('*', side.name()), value.clone());
        }
    }
    json!({"type": kind, *field: fields})
}

/// Converts a metric in v1's annotations to v2; `None` if it is not a valid metric.
fn metric_to_v2(metric: &Value, side: Side) -> Option<Value> {
    let (kind, field, places) = source(metric)?;
    let given = metric[*field].as_object()?;
    let mut source = json!({});
    for (new, old) in *places {
        let Some(value) = given.get(&old.replace('*', side.name())).filter(|value| !value.is_null()) else { continue };
        let new = new.replace('*', side.name());
        match new.split_once('/') {
            Some((outer, inner)) => source[outer][inner] = value.clone(),
            None => source[new] = value.clone(),
        }
    }
    let amount = &mut source[side.name()];
    meta::map_mut(amount);
    // v1 requires the amount: zero beside an average means that no amount is set.
    if amount["value"] == "0" && !amount["averageValue"].is_null() {
        meta::map_mut(amount).remove("value");
    }
    if side == Side::Wanted {
        let kind = ["averageUtilization", "averageValue"].into_iter().find(|field| !amount[*field].is_null());
        amount["type"] = match kind {
            Some("averageUtilization") => "Utilization",
            Some(_) => "AverageValue",
            None => "Value",
        }
        .into();
    }
    Some(json!({"type": kind, *field: source}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(spec: Value, status: Value) -> Value {
        json!({"apiVersion": V2, "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"}, "spec": spec,
            "status": status})
    }

    #[test]
    fn v1_has_the_cpu_of_pods_in_a_field() {
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": 60}}});
        let new = v2(json!({"maxReplicas": 3, "metrics": [cpu]}), json!({"currentReplicas": 1}));
        let old = convert(new.clone(), V1);
        assert_eq!(old["spec"], json!({"maxReplicas": 3, "targetCPUUtilizationPercentage": 60}));
        assert_eq!(old["metadata"], json!({"name": "a"}));
        assert_eq!(convert(old, V2), new);
    }

    #[test]
    fn metrics_behavior_and_conditions_round_trip_through_v1_annotations() {
        let named = json!({"name": "queue_depth", "selector": {"matchLabels": {"q": "a"}}});
        let metrics = json!([
            {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
            {"type": "Pods", "pods": {"metric": named, "target": {"type": "AverageValue", "averageValue": "5"}}},
            {"type": "Object", "object": {"metric": named, "target": {"type": "Value", "value": "7"},
                "describedObject": {"kind": "Service", "name": "s", "apiVersion": "v1"}}},
            {"type": "External", "external": {"metric": named, "target": {"type": "AverageValue", "averageValue": "9"}}},
            {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "main",
                "target": {"type": "Utilization", "averageUtilization": 50}}},
            {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}},
        ]);
        let mut spec = json!({"minReplicas": 1, "maxReplicas": 3, "metrics": metrics,
            "behavior": {"scaleDown": {"selectPolicy": "Disabled"}}});
        default_behavior(meta::map_mut(&mut spec));
        let status = json!({"currentReplicas": 2,
            "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu",
                "current": {"averageUtilization": 12, "averageValue": "120m"}}}],
            "conditions": [{"type": "AbleToScale", "status": "True"}]});
        let new = v2(spec, status);
        let old = convert(new.clone(), V1);
        assert_eq!(old["spec"], json!({"minReplicas": 1, "maxReplicas": 3, "targetCPUUtilizationPercentage": 60}));
        assert_eq!(old["status"], json!({"currentReplicas": 2, "currentCPUUtilizationPercentage": 12}));
        let metrics: Value = serde_json::from_str(meta::annotation(&old, METRICS).unwrap()).unwrap();
        assert_eq!(
            metrics[0],
            json!({"type": "Resource", "resource": {"name": "memory", "targetAverageValue": "1Gi"}})
        );
        assert_eq!(
            metrics[2]["object"],
            json!({"target": {"kind": "Service", "name": "s", "apiVersion": "v1"}, "metricName": "queue_depth",
                "selector": {"matchLabels": {"q": "a"}}, "targetValue": "7"})
        );
        assert_eq!(convert(old, V2), new);
    }

    #[test]
    fn without_metrics_cpu_is_the_default_and_invalid_annotations_are_ignored() {
        let old = json!({"apiVersion": V1, "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a",
            "annotations": {METRICS: "{not json", BEHAVIOR: "[]", "mine": "stays"}}, "spec": {"maxReplicas": 3}});
        let new = convert(old, V2);
        assert_eq!(new["spec"]["metrics"], json!([cpu_metric(80.into(), Side::Wanted)]));
        assert_eq!(new["spec"].get("behavior"), None);
        assert_eq!(new["metadata"]["annotations"], json!({"mine": "stays"}));
    }
}
