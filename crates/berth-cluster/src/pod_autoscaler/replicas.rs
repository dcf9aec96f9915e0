//! The number of replicas that one metric recommends. Pure.
//!
//! For pods without a metric, and pods that are not ready, the assumed usage makes the change
//! smaller: none if the usage of other pods is too high, all of the target if it is too low.
//!
//! Source: Kubernetes documentation, "Horizontal Pod Autoscaling: Algorithm details".

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::job::facts::{is_deleted, phase};
use crate::placement::amount;

/// Time after a pod's start in which its CPU usage counts only while it is ready.
const INITIALIZATION: SignedDuration = SignedDuration::from_mins(5);
/// Time after a pod's start until which it counts as not ready if it has never been ready.
const INITIAL_READINESS: SignedDuration = SignedDuration::from_secs(30);

/// Usage of one pod, in thousandths of the resource's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Amount.
    pub milli: i64,
    /// End of the window in which it was measured.
    pub at: Timestamp,
    /// Length of the window.
    pub window: Duration,
}

/// Usage by name of the pod.
pub type Samples = BTreeMap<String, Sample>;

/// Target of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Percent of the requests, over all pods.
    Utilization(i64),
    /// Average of the pods, in thousandths.
    AverageMilli(i64),
}

/// A metric of a resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric<'a> {
    /// Name of the resource.
    pub resource: &'a str,
    /// The measured container; all containers if `None`.
    pub container: Option<&'a str>,
    /// Target.
    pub target: Target,
    /// Ratios of usage to target that cause no change: this far below 1 and this far above.
    pub tolerance: Tolerance,
}

/// Tolerated difference between usage and target, as a fraction of the target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Below the target.
    pub down: f64,
    /// Above the target.
    pub up: f64,
}

impl Tolerance {
    fn contains(self, ratio: f64) -> bool {
        1.0 - self.down <= ratio && ratio <= 1.0 + self.up
    }
}

/// Recommendation of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposal {
    /// Number of replicas.
    pub replicas: i32,
    /// Average usage of a pod in thousandths.
    pub average_milli: i64,
    /// Usage in percent of the requests, if the target is [`Target::Utilization`].
    pub utilization: Option<i64>,
}

/// Proposes a number of replicas. `pods` are the pods of the scale target, `current` is its number
/// of replicas.
///
/// # Errors
/// No pod has a metric, or a container has no request to compare the usage with.
pub fn propose(
    metric: &Metric<'_>,
    current: i32,
    pods: &[Arc<Pod>],
    samples: &Samples,
    now: Timestamp,
) -> Result<Proposal, String> {
    if pods.is_empty() {
        return Err("no pods returned by selector while calculating replica count".to_owned());
    }
    let groups = group(pods, samples, metric.resource, now);
    let mut known: BTreeMap<&str, i64> = samples
        .iter()
        .filter(|(name, _)| groups.ready.contains(name.as_str()))
        .map(|(name, it)| (name.as_str(), it.milli))
        .collect();
    if known.is_empty() {
        return Err("did not receive metrics for targeted pods (pods might be unready)".to_owned());
    }
    let requests = match metric.target {
        Target::Utilization(_) => requests(pods, metric)?,
        Target::AverageMilli(_) => BTreeMap::new(),
    };
    let (ratio, proposal) = compare(metric, &known, &requests)?;
    let keep = Proposal { replicas: current, ..proposal };
    let scales_up_unready = !groups.unready.is_empty() && ratio > 1.0;
    if !scales_up_unready && groups.missing.is_empty() {
        let replicas = ceil(ratio * groups.ready.len() as f64);
        return Ok(if metric.tolerance.contains(ratio) { keep } else { Proposal { replicas, ..proposal } });
    }
    for name in &groups.missing {
        let assumed = match metric.target {
            _ if ratio > 1.0 => 0,
            Target::Utilization(percent) => requests.get(name).copied().unwrap_or(0) * percent.max(100) / 100,
            Target::AverageMilli(average) => average,
        };
        known.insert(name, assumed);
    }
    if scales_up_unready {
        known.extend(groups.unready.iter().map(|name| (*name, 0)));
    }
    let (assumed, _) = compare(metric, &known, &requests)?;
    let turns = (ratio < 1.0 && assumed > 1.0) || (ratio > 1.0 && assumed < 1.0);
    let replicas = ceil(assumed * known.len() as f64);
    let is_opposite = (assumed < 1.0 && replicas > current) || (assumed > 1.0 && replicas < current);
    let keeps = metric.tolerance.contains(assumed) || turns || is_opposite;
    Ok(if keeps { keep } else { Proposal { replicas, ..proposal } })
}

fn ceil(number: f64) -> i32 {
    // The cast saturates.
    number.ceil() as i32
}

/// Names of pods by the state of their metrics. Deleted and failed pods are in no group.
struct Groups<'a> {
    ready: BTreeSet<&'a str>,
    unready: BTreeSet<&'a str>,
    missing: BTreeSet<&'a str>,
}

fn group<'a>(pods: &'a [Arc<Pod>], samples: &Samples, resource: &str, now: Timestamp) -> Groups<'a> {
    let mut groups = Groups { ready: BTreeSet::new(), unready: BTreeSet::new(), missing: BTreeSet::new() };
    for pod in pods.iter().filter(|pod| !is_deleted(pod) && phase(pod) != "Failed") {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let sample = samples.get(name);
        let group = match sample {
            _ if matches!(phase(pod), "Pending" | "") => &mut groups.unready,
            None => &mut groups.missing,
            Some(sample) if resource == "cpu" && is_starting(pod, sample, now) => &mut groups.unready,
            Some(_) => &mut groups.ready,
        };
        group.insert(name);
    }
    groups
}

/// True if the CPU usage of a pod may still be that of its start.
fn is_starting(pod: &Pod, sample: &Sample, now: Timestamp) -> bool {
    let status = pod.status.clone().unwrap_or_default();
    let ready = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready");
    let (Some(ready), Some(start)) = (ready, status.start_time) else { return true };
    let since = ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let after = |time: Timestamp, by: SignedDuration| time.checked_add(by).unwrap_or(Timestamp::MAX);
    if after(start.0, INITIALIZATION) > now {
        let window = SignedDuration::try_from(sample.window).unwrap_or(SignedDuration::MAX);
        return ready.status != "True" || sample.at < after(since, window);
    }
    ready.status != "True" && after(start.0, INITIAL_READINESS) > since
}

/// Requests of each pod, in thousandths.
fn requests<'a>(pods: &'a [Arc<Pod>], metric: &Metric<'_>) -> Result<BTreeMap<&'a str, i64>, String> {
    let milli = |quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| match metric.resource {
        // Amounts of CPU are already in thousandths.
        "cpu" => amount("cpu", quantity),
        resource => amount(resource, quantity).saturating_mul(1000),
    };
    let mut all = BTreeMap::new();
    for pod in pods {
        let spec = pod.spec.clone().unwrap_or_default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let of_pod = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get(metric.resource));
        if let (Some(quantity), None) = (of_pod, metric.container) {
            all.insert(name, milli(quantity));
            continue;
        }
        let sidecars = spec.init_containers.iter().flatten();
        let sidecars = sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
        let mut total = 0_i64;
        for container in spec.containers.iter().chain(sidecars) {
            if metric.container.is_some_and(|wanted| wanted != container.name) {
                continue;
            }
            let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
            let Some(quantity) = requests.and_then(|requests| requests.get(metric.resource)) else {
                let (resource, container) = (metric.resource, &container.name);
                return Err(format!(
                    "failed to get {resource} utilization: missing request for {resource} in container {container} \
                     of Pod {}",
                    pod.name_any()
                ));
            };
            total = total.saturating_add(milli(quantity));
        }
        all.insert(name, total);
    }
    Ok(all)
}

/// The ratio of usage to the target, and the usage as a proposal without a number of replicas.
fn compare(
    metric: &Metric<'_>,
    known: &BTreeMap<&str, i64>,
    requests: &BTreeMap<&str, i64>,
) -> Result<(f64, Proposal), String> {
    let count = i64::try_from(known.len()).unwrap_or(i64::MAX).max(1);
    let total: i64 = known.values().fold(0, |sum, milli| sum.saturating_add(*milli));
    let mut proposal = Proposal { replicas: 0, average_milli: total / count, utilization: None };
    match metric.target {
        Target::AverageMilli(average) => Ok((proposal.average_milli as f64 / average.max(1) as f64, proposal)),
        Target::Utilization(percent) => {
            let requested = known.keys().filter_map(|name| requests.get(name)).sum::<i64>();
            if requested == 0 {
                return Err("no metrics returned matched known pods".to_owned());
            }
            let utilization = total.saturating_mul(100) / requested;
            proposal.utilization = Some(utilization);
            Ok((utilization as f64 / percent.max(1) as f64, proposal))
        }
    }
}
