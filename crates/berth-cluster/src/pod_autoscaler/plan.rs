//! Plans one step of a HorizontalPodAutoscaler: from the autoscaler, the scale of its target, the
//! target's pods and their usage, the new number of replicas, the status and the events. Pure.

use std::sync::Arc;

use berth_apimachinery::quantity::{Format, Quantity};
use berth_runtime::{PlannedEvent, stamp};
use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition,
    HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus, MetricSpec, MetricStatus, MetricTarget,
    MetricValueStatus, ResourceMetricStatus,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::figures::{PodFigures, samples};
use super::limits::{Bounds, History, bound};
use super::replicas::{Metric, Proposal, Target, Tolerance, propose};

/// Default of the fraction by which usage may differ from its target.
const TOLERANCE: f64 = 0.1;

/// The current state of the scale target.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Desired replicas of the target.
    pub replicas: i32,
    /// Selector of the target's pods; empty if its scale has none.
    pub selector: String,
    /// Pods that the selector matches.
    pub pods: Vec<Arc<Pod>>,
    /// Autoscalers that scale some of these pods, including this one, if there are others.
    pub rivals: Vec<String>,
    /// Usage of the pods, or why it is unknown.
    pub figures: Result<Vec<PodFigures>, String>,
}

/// The next writes for an autoscaler.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The new number of replicas, with the reason.
    pub rescale: Option<(i32, String)>,
    /// The new status.
    pub status: HorizontalPodAutoscalerStatus,
    /// Events to record.
    pub events: Vec<PlannedEvent>,
    /// The recommendation to add to the history.
    pub recommended: Option<i32>,
}

impl Plan {
    /// Sets a condition. The time of its last transition only changes with the status.
    pub(super) fn condition(&mut self, type_: &str, status: bool, reason: &str, message: &str, now: Timestamp) {
        let conditions = self.status.conditions.get_or_insert_default();
        let status = if status { "True" } else { "False" };
        let at = conditions.iter().position(|it| it.type_ == type_).unwrap_or(conditions.len());
        if at == conditions.len() {
            conditions.push(HorizontalPodAutoscalerCondition { type_: type_.to_owned(), ..Default::default() });
        }
        let condition = &mut conditions[at];
        if condition.status != status {
            condition.last_transition_time = Some(stamp(now));
        }
        condition.status = status.to_owned();
        condition.reason = Some(reason.to_owned());
        condition.message = Some(message.to_owned());
    }

    pub(super) fn warn(&mut self, reason: &str, message: &str) {
        self.events.push(PlannedEvent::warning(reason, message));
    }
}

/// The plan of a step that only records the autoscaler's generation as observed.
pub(super) fn blank(autoscaler: &HorizontalPodAutoscaler) -> Plan {
    let mut plan = Plan { status: autoscaler.status.clone().unwrap_or_default(), ..Plan::default() };
    plan.status.observed_generation = autoscaler.metadata.generation;
    plan
}

/// Plans the next writes.
pub fn plan(autoscaler: &HorizontalPodAutoscaler, observed: &Observed, history: &History, now: Timestamp) -> Plan {
    let mut plan = blank(autoscaler);
    let spec = autoscaler.spec.clone().unwrap_or_default();
    let (min, current) = (spec.min_replicas.unwrap_or(1), observed.replicas);
    let message = "the HPA controller was able to get the target's current scale";
    plan.condition("AbleToScale", true, "SucceededGetScale", message, now);
    plan.status.current_replicas = Some(current);
    let (wanted, reason) = if current == 0 && min != 0 {
        let message = "scaling is disabled since the replica count of the target is zero";
        plan.condition("ScalingActive", false, "ScalingDisabled", message, now);
        plan.status.current_metrics = None;
        (0, String::new())
    } else if current > spec.max_replicas {
        (spec.max_replicas, "Current number of replicas above Spec.MaxReplicas".to_owned())
    } else if current < min {
        (min, "Current number of replicas below Spec.MinReplicas".to_owned())
    } else {
        match by_metrics(&mut plan, &spec, observed, now) {
            Some((recommended, metric)) => {
                plan.recommended = Some(recommended);
                let bounds = Bounds { min, max: spec.max_replicas, behavior: spec.behavior.clone() };
                let bounded = bound(&bounds, history, current, recommended, now);
                plan.condition("AbleToScale", true, bounded.able.0, bounded.able.1, now);
                plan.condition("ScalingLimited", bounded.is_limited, bounded.limited.0, bounded.limited.1, now);
                let above = bounded.replicas > current;
                let reason = if above { format!("{metric} above target") } else { "All metrics below target".into() };
                (bounded.replicas, reason)
            }
            None => {
                // The metrics are invalid: the replicas do not change, and the condition has the
                // reason.
                plan.status.desired_replicas = current;
                return plan;
            }
        }
    };
    plan.status.desired_replicas = wanted;
    if wanted != current {
        plan.rescale = Some((wanted, reason));
    }
    plan
}

/// The largest number of replicas that a metric recommends, and the metric's name. `None` if the
/// scale has no selector, if other autoscalers control the same pods, if all metrics are invalid,
/// or if some are invalid and the others recommend a decrease.
fn by_metrics(
    plan: &mut Plan,
    spec: &HorizontalPodAutoscalerSpec,
    observed: &Observed,
    now: Timestamp,
) -> Option<(i32, String)> {
    if observed.selector.is_empty() {
        plan.warn("SelectorRequired", "selector is required");
        let message = "the HPA target's scale is missing a selector";
        plan.condition("ScalingActive", false, "InvalidSelector", message, now);
        return None;
    }
    if !observed.rivals.is_empty() {
        let (selector, rivals) = (&observed.selector, observed.rivals.join(" "));
        let message = format!("pods by selector {selector} are controlled by multiple HPAs: [{rivals}]");
        plan.warn("AmbiguousSelector", &message);
        plan.condition("ScalingActive", false, "AmbiguousSelector", &message, now);
        return None;
    }
    let metrics = spec.metrics.clone().unwrap_or_default();
    let (mut best, mut failures, mut current) = (None::<(i32, String)>, Vec::new(), Vec::new());
    for metric in &metrics {
        match evaluate(metric, spec, observed, now) {
            Ok(Evaluated { replicas, name, status }) => {
                current.push(status);
                if best.as_ref().is_none_or(|(most, _)| replicas > *most) {
                    best = Some((replicas, name));
                }
            }
            Err(failure) => failures.push(failure),
        }
    }
    plan.status.current_metrics = Some(current).filter(|current| !current.is_empty());
    let decreases = best.as_ref().is_none_or(|(replicas, _)| *replicas < observed.replicas);
    if let Some((reason, message)) = failures.first().filter(|_| failures.len() >= metrics.len() || decreases) {
        failures.iter().for_each(|(reason, message)| plan.warn(reason, message));
        let why = format!("the HPA was unable to compute the replica count: {message}");
        plan.condition("ScalingActive", false, reason, &why, now);
        let (invalid, all) = (failures.len(), metrics.len());
        let message = format!("invalid metrics ({invalid} invalid out of {all}), first error is: {message}");
        plan.warn("FailedComputeMetricsReplicas", &message);
        return None;
    }
    let (replicas, name) = best?;
    let message = format!("the HPA was able to successfully calculate a replica count from {name}");
    plan.condition("ScalingActive", true, "ValidMetricFound", &message, now);
    Some((replicas, name))
}

/// A metric with its current value.
struct Evaluated {
    replicas: i32,
    name: String,
    status: MetricStatus,
}

/// Reason and message of a metric that cannot be evaluated.
type Failure = (&'static str, String);

fn evaluate(
    metric: &MetricSpec,
    spec: &HorizontalPodAutoscalerSpec,
    observed: &Observed,
    now: Timestamp,
) -> Result<Evaluated, Failure> {
    let missing = |source: &str| format!("invalid metric source: spec.metrics has no field {source:?}");
    match metric.type_.as_str() {
        "Resource" => {
            let reason = "FailedGetResourceMetric";
            let source = metric.resource.as_ref().ok_or_else(|| (reason, missing("resource")))?;
            let proposal = of_resource(&source.name, None, &source.target, spec, observed, now);
            let (proposal, current) = proposal.map_err(|why| (reason, why))?;
            let name = named(&format!("{} resource", source.name), &proposal);
            let status = MetricStatus {
                type_: metric.type_.clone(),
                resource: Some(ResourceMetricStatus { name: source.name.clone(), current }),
                ..MetricStatus::default()
            };
            Ok(Evaluated { replicas: proposal.replicas, name, status })
        }
        "ContainerResource" => {
            let reason = "FailedGetContainerResourceMetric";
            let source = metric.container_resource.as_ref().ok_or_else(|| (reason, missing("containerResource")))?;
            let container = Some(source.container.as_str());
            let proposal = of_resource(&source.name, container, &source.target, spec, observed, now);
            let (proposal, current) = proposal.map_err(|why| (reason, why))?;
            let name = named(&format!("{} container resource", source.name), &proposal);
            let (name_of, container) = (source.name.clone(), source.container.clone());
            let status = MetricStatus {
                type_: metric.type_.clone(),
                container_resource: Some(ContainerResourceMetricStatus { name: name_of, container, current }),
                ..MetricStatus::default()
            };
            Ok(Evaluated { replicas: proposal.replicas, name, status })
        }
        kind => Err(not_served(kind)),
    }
}

/// Metrics of the APIs for custom and external metrics, which an embedded cluster does not have.
fn not_served(kind: &str) -> Failure {
    let (reason, api) = match kind {
        "Object" => ("FailedGetObjectMetric", "custom.metrics.k8s.io"),
        "Pods" => ("FailedGetPodsMetric", "custom.metrics.k8s.io"),
        "External" => ("FailedGetExternalMetric", "external.metrics.k8s.io"),
        other => return ("InvalidMetricSourceType", format!("unknown metric source type {other:?}")),
    };
    (reason, format!("metrics of type {kind} need the API {api}, which Berth does not read; use Resource metrics"))
}

fn named(metric: &str, proposal: &Proposal) -> String {
    match proposal.utilization {
        Some(_) => format!("{metric} utilization (percentage of request)"),
        None => metric.to_owned(),
    }
}

fn of_resource(
    resource: &str,
    container: Option<&str>,
    target: &MetricTarget,
    spec: &HorizontalPodAutoscalerSpec,
    observed: &Observed,
    now: Timestamp,
) -> Result<(Proposal, MetricValueStatus), String> {
    let average = target.average_value.as_ref().and_then(|amount| Quantity::parse(&amount.0).ok());
    let target = match (average, target.average_utilization) {
        (Some(average), _) => Target::AverageMilli(average.milli_value()),
        (None, Some(percent)) => Target::Utilization(i64::from(percent)),
        (None, None) => {
            let message = "invalid resource metric source: neither an average utilization target nor an average value \
                           (usage) target was set";
            return Err(message.to_owned());
        }
    };
    let figures = observed.figures.as_ref().map_err(|why| {
        format!(
            "unable to get metrics for resource {resource}: unable to fetch metrics from resource metrics API: {why}"
        )
    })?;
    if figures.is_empty() {
        let why = "no metrics returned from resource metrics API";
        return Err(format!("unable to get metrics for resource {resource}: {why}"));
    }
    let metric = Metric { resource, container, target, tolerance: tolerance(spec) };
    let samples = samples(figures, resource, container);
    let proposal = propose(&metric, observed.replicas, &observed.pods, &samples, now)?;
    let current = MetricValueStatus {
        average_utilization: proposal.utilization.and_then(|percent| i32::try_from(percent).ok()),
        average_value: Some(shown(resource, proposal.average_milli)),
        value: None,
    };
    Ok((proposal, current))
}

fn tolerance(spec: &HorizontalPodAutoscalerSpec) -> Tolerance {
    let behavior = spec.behavior.as_ref();
    let of = |tolerance: Option<&ApiQuantity>| {
        tolerance.and_then(|it| Quantity::parse(&it.0).ok()).map_or(TOLERANCE, |it| it.as_f64())
    };
    Tolerance {
        down: of(behavior.and_then(|it| it.scale_down.as_ref()?.tolerance.as_ref())),
        up: of(behavior.and_then(|it| it.scale_up.as_ref()?.tolerance.as_ref())),
    }
}

/// An amount in thousandths as a quantity; bytes have no fraction.
fn shown(resource: &str, milli: i64) -> ApiQuantity {
    let (value, scale) = if resource == "memory" { (milli / 1000, 0) } else { (milli, -3) };
    let quantity = Quantity::from_scaled(i128::from(value), scale, Format::DecimalSi);
    ApiQuantity(quantity.map(|quantity| quantity.to_string()).unwrap_or_default())
}
