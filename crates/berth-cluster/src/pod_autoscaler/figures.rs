//! Reads the response of the resource metrics API, and extracts the samples of one metric. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_apimachinery::quantity::Quantity;
use berth_apimachinery::times;
use jiff::Timestamp;
use serde_json::Value;

use super::replicas::{Sample, Samples};

/// PodMetrics of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodFigures {
    name: String,
    at: Timestamp,
    window: Duration,
    /// Usage in thousandths, by container and resource.
    containers: BTreeMap<String, BTreeMap<String, i64>>,
}

/// Reads a PodMetricsList. Malformed entries are omitted: their pods have no metrics.
pub fn read(list: &Value) -> Vec<PodFigures> {
    list["items"].as_array().into_iter().flatten().filter_map(read_one).collect()
}

fn read_one(metrics: &Value) -> Option<PodFigures> {
    let window = times::parse_duration(metrics["window"].as_str()?).ok()?;
    let container = |container: &Value| {
        let usage = container["usage"].as_object()?.iter();
        let usage = usage.filter_map(|(name, text)| Some((name.clone(), Quantity::parse(text.as_str()?).ok()?)));
        let usage = usage.map(|(name, quantity)| (name, quantity.milli_value()));
        Some((container["name"].as_str()?.to_owned(), usage.collect()))
    };
    Some(PodFigures {
        name: metrics["metadata"]["name"].as_str()?.to_owned(),
        at: times::parse_time(metrics["timestamp"].as_str()?).ok()?,
        window: Duration::try_from(window).ok()?,
        containers: metrics["containers"].as_array()?.iter().filter_map(container).collect(),
    })
}

/// Samples of a resource, of all containers or of one. A pod has no sample if one of its containers
/// has no value for the resource.
pub fn samples(pods: &[PodFigures], resource: &str, container: Option<&str>) -> Samples {
    let sample = |pod: &PodFigures| {
        let measured = pod.containers.iter().filter(|(name, _)| container.is_none_or(|wanted| wanted == *name));
        let amounts: Vec<Option<i64>> = measured.map(|(_, usage)| usage.get(resource).copied()).collect();
        let milli = amounts.iter().try_fold(0_i64, |sum, amount| Some(sum.saturating_add((*amount)?)))?;
        (!amounts.is_empty()).then(|| (pod.name.clone(), Sample { milli, at: pod.at, window: pod.window }))
    };
    pods.iter().filter_map(sample).collect()
}
