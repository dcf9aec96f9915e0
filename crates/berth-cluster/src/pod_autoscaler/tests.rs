//! Plans of HorizontalPodAutoscalers.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::figures;
use super::limits::{Bounds, History, bound};
use super::plan::{Observed, Plan, plan};
use super::replicas::{Metric, Sample, Samples, Target, Tolerance, propose};

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// A pod that requests one CPU; it started an hour ago, and has been ready or unready since then.
fn pod(index: usize, phase: &str, is_ready: bool) -> Arc<Pod> {
    let ready = json!([{"type": "Ready", "status": if is_ready { "True" } else { "False" },
        "lastTransitionTime": "2026-01-01T11:00:10Z"}]);
    let resources = json!({"requests": {"cpu": "1", "memory": "1Gi"}});
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": format!("p{index}"), "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "resources": resources}]},
            "status": {"phase": phase, "startTime": "2026-01-01T11:00:00Z", "conditions": ready},
        }))
        .unwrap(),
    )
}

/// The number of replicas proposed for ready pods with this usage in milli-CPU; `None` is a pod
/// without a metric. `unready` is the number of first pods that have never been ready.
fn proposed(usage: &[Option<i64>], unready: usize, target: Target) -> Result<i32, String> {
    let pods: Vec<_> = (0..usage.len()).map(|index| pod(index, "Running", index >= unready)).collect();
    let sample = |milli: i64| Sample { milli, at: now(), window: Duration::from_secs(15) };
    let samples: Samples =
        usage.iter().enumerate().filter_map(|(index, milli)| Some((format!("p{index}"), sample((*milli)?)))).collect();
    let tolerance = Tolerance { down: 0.1, up: 0.1 };
    let metric = Metric { resource: "cpu", container: None, target, tolerance };
    let current = i32::try_from(usage.len()).unwrap();
    propose(&metric, current, &pods, &samples, now()).map(|proposal| proposal.replicas)
}

#[test]
fn replicas_follow_the_ratio_of_usage_to_target_outside_of_the_tolerance() {
    let all = |usage: &[i64]| usage.iter().map(|milli| Some(*milli)).collect::<Vec<_>>();
    let percent = Target::Utilization;
    assert_eq!(proposed(&all(&[300, 500, 700]), 0, percent(30)), Ok(5));
    assert_eq!(proposed(&all(&[100, 300, 500, 250, 250]), 0, percent(50)), Ok(3));
    assert_eq!(proposed(&all(&[1010, 1030, 1020]), 0, percent(100)), Ok(3), "2 % too much is within the tolerance");
    assert_eq!(proposed(&all(&[400, 500, 600]), 0, Target::AverageMilli(250)), Ok(6));
}

#[test]
fn pods_without_a_metric_make_a_change_smaller() {
    let percent = Target::Utilization;
    assert_eq!(proposed(&[Some(1000), None], 0, percent(50)), Ok(2), "the other pod may use nothing");
    assert_eq!(proposed(&[Some(400), None, None, None], 0, percent(100)), Ok(4), "the others may use all of it");
    assert_eq!(proposed(&[Some(100), Some(100), Some(100), None], 0, percent(50)), Ok(3));
    assert_eq!(
        proposed(&[None, None], 0, percent(50)).unwrap_err(),
        "did not receive metrics for targeted pods (pods might be unready)"
    );
}

#[test]
fn pods_that_were_never_ready_count_as_using_nothing_when_replicas_are_added() {
    let usage = [Some(300), Some(500), Some(700)];
    // The pods became unready within 30 s of their start.
    assert_eq!(proposed(&usage, 1, Target::Utilization(30)), Ok(4));
    assert_eq!(proposed(&[Some(100), Some(100), Some(100)], 1, Target::Utilization(50)), Ok(1));
}

fn autoscaler(spec: Value) -> HorizontalPodAutoscaler {
    let target = json!({"type": "Utilization", "averageUtilization": 50});
    let metric = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
    let mut full = json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "minReplicas": 1, "maxReplicas": 10, "metrics": [metric]});
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({"metadata": {"name": "web", "generation": 2}, "spec": full})).unwrap()
}

/// Two replicas with this usage of their one container.
fn observed(cpu: &str) -> Observed {
    let item = |index: usize| {
        json!({"metadata": {"name": format!("p{index}")}, "timestamp": "2026-01-01T12:00:00Z", "window": "15s",
            "containers": [{"name": "c", "usage": {"cpu": cpu, "memory": "512Mi"}}]})
    };
    let list = json!({"items": [item(0), item(1)]});
    Observed {
        replicas: 2,
        selector: "app=web".to_owned(),
        pods: vec![pod(0, "Running", true), pod(1, "Running", true)],
        rivals: Vec::new(),
        figures: Ok(figures::read(&list)),
    }
}

/// Type, status and reason of each condition.
fn conditions(plan: &Plan) -> Vec<String> {
    let all = plan.status.conditions.iter().flatten();
    all.map(|it| format!("{} {} {}", it.type_, it.status, it.reason.clone().unwrap_or_default())).collect()
}

#[test]
fn usage_above_the_target_adds_replicas() {
    let step = plan(&autoscaler(json!({})), &observed("900m"), &History::default(), now());
    let (replicas, reason) = step.rescale.clone().unwrap();
    assert_eq!((replicas, reason.as_str()), (4, "cpu resource utilization (percentage of request) above target"));
    assert_eq!(
        conditions(&step),
        [
            "AbleToScale True ReadyForNewScale",
            "ScalingActive True ValidMetricFound",
            "ScalingLimited False DesiredWithinRange"
        ]
    );
    let status = step.status;
    assert_eq!((status.current_replicas, status.desired_replicas, status.observed_generation), (Some(2), 4, Some(2)));
    let current = status.current_metrics.unwrap()[0].resource.clone().unwrap().current;
    assert_eq!((current.average_utilization, current.average_value.unwrap().0.as_str()), (Some(90), "900m"));
}

#[test]
fn replicas_stay_within_minimum_and_maximum() {
    let limited = plan(&autoscaler(json!({"maxReplicas": 3})), &observed("1"), &History::default(), now());
    assert_eq!(limited.rescale.as_ref().unwrap().0, 3);
    assert!(conditions(&limited).contains(&"ScalingLimited True TooManyReplicas".to_owned()));
    let raised = plan(&autoscaler(json!({"minReplicas": 5})), &observed("500m"), &History::default(), now());
    assert_eq!(raised.rescale, Some((5, "Current number of replicas below Spec.MinReplicas".to_owned())));
    let off = plan(&autoscaler(json!({})), &Observed { replicas: 0, ..observed("1") }, &History::default(), now());
    assert_eq!(off.rescale, None);
    assert!(conditions(&off).contains(&"ScalingActive False ScalingDisabled".to_owned()));
}

#[test]
fn invalid_metrics_change_nothing_and_are_reported() {
    let external = json!({"type": "External", "external": {"metric": {"name": "queue"}, "target": {"type": "Value",
        "value": "3"}}});
    let target = json!({"type": "Utilization", "averageUtilization": 50});
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
    let alone = plan(&autoscaler(json!({"metrics": [external]})), &observed("1"), &History::default(), now());
    assert_eq!((alone.rescale.clone(), alone.events.len()), (None, 2));
    assert_eq!(
        alone.events[0].message,
        "metrics of type External need the API external.metrics.k8s.io, which Berth does not read; use Resource metrics"
    );
    assert!(conditions(&alone).contains(&"ScalingActive False FailedGetExternalMetric".to_owned()));
    // With a second metric, replicas are added but never removed.
    let both = json!({"metrics": [external, cpu]});
    assert!(plan(&autoscaler(both.clone()), &observed("1"), &History::default(), now()).rescale.is_some());
    assert!(plan(&autoscaler(both), &observed("100m"), &History::default(), now()).rescale.is_none());
    let failed = Observed { figures: Err("the server could not find the requested resource".into()), ..observed("1") };
    let step = plan(&autoscaler(json!({})), &failed, &History::default(), now());
    assert!(conditions(&step).contains(&"ScalingActive False FailedGetResourceMetric".to_owned()));
}

#[test]
fn two_autoscalers_of_the_same_pods_change_nothing() {
    let rivals = vec!["ns/a".to_owned(), "ns/web".to_owned()];
    let step = plan(&autoscaler(json!({})), &Observed { rivals, ..observed("1") }, &History::default(), now());
    assert_eq!(step.rescale, None);
    assert_eq!(step.events[0].message, "pods by selector app=web are controlled by multiple HPAs: [ns/a ns/web]");
}

/// The time of an event some seconds ago.
fn ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

fn bounds(behavior: Value) -> Bounds {
    Bounds { min: 1, max: 100, behavior: serde_json::from_value(behavior).unwrap() }
}

#[test]
fn a_decrease_waits_for_the_highest_recommendation_of_five_minutes() {
    let mut history = History::default();
    history.recommend(ago(299), 8);
    let step = bound(&bounds(Value::Null), &history, 10, 4, now());
    assert_eq!((step.replicas, step.able.0), (8, "ScaleDownStabilized"));
    let mut history = History::default();
    history.recommend(ago(300), 8);
    assert_eq!(bound(&bounds(Value::Null), &history, 10, 4, now()).replicas, 4);
}

#[test]
fn without_rules_an_increase_at_most_doubles() {
    let step = bound(&bounds(Value::Null), &History::default(), 3, 50, now());
    assert_eq!((step.replicas, step.is_limited, step.limited.0), (6, true, "ScaleUpLimit"));
    assert_eq!(bound(&bounds(Value::Null), &History::default(), 1, 50, now()).replicas, 4);
}

#[test]
fn policies_limit_the_change_in_their_period() {
    let policy = |type_: &str, value: i32| json!({"type": type_, "value": value, "periodSeconds": 60});
    let rules = |direction: &str, select: &str| {
        let policies = [policy("Pods", 4), policy("Percent", 10)];
        bounds(json!({direction: {"selectPolicy": select, "policies": policies, "stabilizationWindowSeconds": 0}}))
    };
    let none = History::default();
    assert_eq!(bound(&rules("scaleUp", "Max"), &none, 20, 90, now()).replicas, 24);
    assert_eq!(bound(&rules("scaleUp", "Min"), &none, 20, 90, now()).replicas, 22);
    assert_eq!(bound(&rules("scaleUp", "Disabled"), &none, 20, 90, now()).replicas, 20);
    assert_eq!(bound(&rules("scaleDown", "Max"), &none, 20, 1, now()).replicas, 16);
    assert_eq!(bound(&rules("scaleDown", "Min"), &none, 20, 1, now()).replicas, 18);
    let mut grown = History::default();
    grown.changed(ago(30), 3);
    assert_eq!(bound(&rules("scaleUp", "Max"), &grown, 20, 90, now()).replicas, 21, "3 of 4 were added already");
    grown.changed(ago(61), 90);
    assert_eq!(bound(&rules("scaleUp", "Max"), &grown, 20, 90, now()).replicas, 21, "before the period");
}

#[test]
fn an_increase_waits_for_the_lowest_recommendation_of_its_window() {
    let behavior = json!({"scaleUp": {"stabilizationWindowSeconds": 60, "policies":
        [{"type": "Percent", "value": 900, "periodSeconds": 15}]}});
    let mut history = History::default();
    history.recommend(ago(30), 6);
    let step = bound(&bounds(behavior), &history, 5, 9, now());
    assert_eq!((step.replicas, step.able.0), (6, "ScaleUpStabilized"));
}
