//! Scores of nodes by their used amounts, as kube-scheduler's plugin NodeResourcesFit computes
//! them.
//!
//! Source: kube-scheduler's `noderesources` plugin. Scores are 0 to 100. The pod counts as placed.
//! Containers without a request count with 100 milli-CPU and 200 MB. A resource that a node does
//! not have, and an extended resource that the pod does not request, does not count.

use berth_api::berth::{ScoringStrategy, ScoringStrategyType};

use super::resources::is_extended;
use super::{NodeState, PodInfo};

/// Score of the best node.
const BEST: i64 = 100;
/// Score of the best point of a configured function.
const BEST_POINT: i64 = 10;

/// How the free amounts of a node are scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scoring {
    /// Resources and their weights.
    resources: Vec<(String, i64)>,
    function: Function,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Function {
    Least,
    Most,
    /// Points by ascending utilization in percent, with scores of 0 to 100.
    Ratio(Vec<(i64, i64)>),
}

impl From<&ScoringStrategy> for Scoring {
    fn from(strategy: &ScoringStrategy) -> Self {
        let points = strategy.requested_to_capacity_ratio.iter().flat_map(|ratio| &ratio.shape);
        let function = match strategy.r#type {
            ScoringStrategyType::LeastAllocated => Function::Least,
            ScoringStrategyType::MostAllocated => Function::Most,
            ScoringStrategyType::RequestedToCapacityRatio => {
                Function::Ratio(points.map(|point| (point.utilization, point.score * (BEST / BEST_POINT))).collect())
            }
        };
        Self { resources: strategy.resources.iter().map(|it| (it.name.clone(), it.weight)).collect(), function }
    }
}

impl Scoring {
    /// Score of a node for a pod that fits there, 0 to 100.
    pub fn score(&self, pod: &PodInfo, node: &NodeState) -> i64 {
        let (mut sum, mut weights) = (0_i128, 0_i128);
        for (resource, weight) in &self.resources {
            let capacity = node.allocatable.get(resource);
            if capacity <= 0 || is_extended(resource) && pod.requests.get(resource) == 0 {
                continue;
            }
            let others = match default_request(resource) {
                0 => node.used.get(resource),
                _ => node.pods.values().map(|other| scored_request(other, resource)).sum(),
            };
            let score = self.function.score(others.saturating_add(scored_request(pod, resource)), capacity);
            // The configured function leaves out resources with score 0; the others count them.
            if score > 0 || !matches!(self.function, Function::Ratio(_)) {
                sum += i128::from(score) * i128::from(*weight);
                weights += i128::from(*weight);
            }
        }
        if weights == 0 {
            return 0;
        }
        let average = match self.function {
            // Rounded to the nearest, half up.
            Function::Ratio(_) => (2 * sum + weights) / (2 * weights),
            Function::Least | Function::Most => sum / weights,
        };
        i64::try_from(average).unwrap_or(BEST)
    }
}

impl Function {
    fn score(&self, used: i64, capacity: i64) -> i64 {
        let percent = |amount: i64| (i128::from(amount) * i128::from(BEST) / i128::from(capacity)) as i64;
        match self {
            Self::Least if used > capacity => 0,
            Self::Least => percent(capacity - used),
            Self::Most => percent(used.min(capacity)),
            Self::Ratio(points) => at(points, percent(used.min(capacity))),
        }
    }
}

/// Value of a function that is linear between its points and constant outside of them.
fn at(points: &[(i64, i64)], utilization: i64) -> i64 {
    let Some(next) = points.iter().position(|(point, _)| utilization <= *point) else {
        return points.last().map_or(0, |(_, score)| *score);
    };
    let (right, high) = points[next];
    match next.checked_sub(1).map(|before| points[before]) {
        None => high,
        Some((left, low)) => low + (high - low) * (utilization - left) / (right - left),
    }
}

/// Request of a container without one, for scoring.
fn default_request(resource: &str) -> i64 {
    match resource {
        "cpu" => 100,
        "memory" => 200 * 1024 * 1024,
        _ => 0,
    }
}

/// Request of a pod for scoring.
fn scored_request(pod: &PodInfo, resource: &str) -> i64 {
    let default = default_request(resource);
    let containers = pod.pod.spec.iter().flat_map(|spec| &spec.containers);
    let without = containers.filter(|container| {
        let resources = container.resources.as_ref();
        let requests = resources.and_then(|resources| resources.requests.as_ref());
        let limits = resources.and_then(|resources| resources.limits.as_ref());
        !requests.is_some_and(|it| it.contains_key(resource)) && !limits.is_some_and(|it| it.contains_key(resource))
    });
    let count = if default == 0 { 0 } else { i64::try_from(without.count()).unwrap_or(i64::MAX) };
    pod.requests.get(resource).saturating_add(count.saturating_mul(default))
}
