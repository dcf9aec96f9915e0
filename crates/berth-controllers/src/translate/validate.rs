//! Finds pods that can never be admitted: requests above limits, violations of LimitRanges
//! (semantics §2.8).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{LimitRange, LimitRangeItem, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::amounts::{Quantities, exact};
use super::requests::{of_pod, summarize};

/// Start of the message about requests above limits.
pub const INVALID: &str = "resources validation failed";
/// Start of the message about violations of LimitRanges.
pub const BEYOND_LIMIT_RANGES: &str = "resources didn't satisfy LimitRange constraints";

/// The message to report if the adjusted pods of a workload break a rule.
pub fn problem(pod_specs: &[PodSpec], limit_ranges: &[LimitRange]) -> Option<String> {
    let above_limits: Vec<String> =
        pod_specs.iter().enumerate().flat_map(|(at, spec)| requests_above_limits(at, spec)).collect();
    if !above_limits.is_empty() {
        return Some(format!("{INVALID}: {}", aggregate(&above_limits)));
    }
    let out_of_range: Vec<String> =
        pod_specs.iter().enumerate().flat_map(|(at, spec)| outside_limit_ranges(at, spec, limit_ranges)).collect();
    if !out_of_range.is_empty() {
        return Some(format!("{BEYOND_LIMIT_RANGES}: {}", aggregate(&out_of_range)));
    }
    None
}

/// Several errors in one string, without duplicates.
fn aggregate(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        many => {
            let mut said: Vec<&String> = Vec::new();
            for error in many {
                if !said.contains(&error) {
                    said.push(error);
                }
            }
            let texts: Vec<&str> = said.iter().map(|text| text.as_str()).collect();
            format!("[{}]", texts.join(", "))
        }
    }
}

/// Path and resources of each part of a pod set.
fn parts(at: usize, spec: &PodSpec) -> Vec<(String, ResourceRequirements)> {
    let base = format!("spec.podSets[{at}].template.spec");
    let resources = |list: Option<&ResourceRequirements>| list.cloned().unwrap_or_default();
    let init = spec.init_containers.iter().flatten().enumerate();
    let init = init.map(|(index, it)| (format!("{base}.initContainers[{index}]"), resources(it.resources.as_ref())));
    let main = spec.containers.iter().enumerate();
    let main = main.map(|(index, it)| (format!("{base}.containers[{index}]"), resources(it.resources.as_ref())));
    init.chain(main).collect()
}

fn requests_above_limits(at: usize, spec: &PodSpec) -> Vec<String> {
    let mut parts = parts(at, spec);
    if let Some(resources) = &spec.resources {
        parts.push((format!("spec.podSets[{at}].template.spec.resources"), resources.clone()));
    }
    let complaint = |(path, resources): (String, ResourceRequirements)| {
        let (requests, limits) = (exact(resources.requests.as_ref()), exact(resources.limits.as_ref()));
        let above = requests.iter().filter(|(name, request)| limits.get(*name).is_some_and(|limit| *request > limit));
        let above: Vec<&String> = above.map(|(name, _)| name).collect();
        (!above.is_empty())
            .then(|| format!("{path}: Invalid value: {}: requests must not exceed its limits", list(&above)))
    };
    parts.into_iter().filter_map(complaint).collect()
}

fn outside_limit_ranges(at: usize, spec: &PodSpec, limit_ranges: &[LimitRange]) -> Vec<String> {
    let mut complaints = Vec::new();
    if let Some(summary) = summarize(limit_ranges, "Container") {
        for (path, resources) in parts(at, spec) {
            let (requests, limits) = (exact(resources.requests.as_ref()), exact(resources.limits.as_ref()));
            let extreme = |larger: bool| {
                let mut all = requests.clone();
                for (name, limit) in &limits {
                    let replace = all.get(name).is_none_or(|known| if larger { limit > known } else { limit < known });
                    if replace {
                        all.insert(name.clone(), *limit);
                    }
                }
                all
            };
            complaints.extend(range_complaints(&path, &extreme(false), &extreme(true), &summary));
        }
    }
    if let Some(summary) = summarize(limit_ranges, "Pod") {
        let total = of_pod(spec);
        let path = format!("spec.podSets[{at}].template.spec");
        complaints.extend(range_complaints(&path, &total, &total, &summary));
    }
    complaints
}

fn range_complaints(path: &str, least: &Quantities, most: &Quantities, range: &LimitRangeItem) -> Vec<String> {
    let mut complaints = Vec::new();
    let names = |values: &Quantities, bound: Option<&BTreeMap<String, ApiQuantity>>, above: bool| -> Vec<String> {
        let bound = exact(bound);
        let outside = values.iter().filter(|(name, value)| {
            bound.get(*name).is_some_and(|bound| if above { *value > bound } else { *value < bound })
        });
        outside.map(|(name, _)| name.clone()).collect()
    };
    let above = names(most, range.max.as_ref(), true);
    if !above.is_empty() {
        let above: Vec<&String> = above.iter().collect();
        complaints
            .push(format!("{path}: Invalid value: {}: requests must not be above the limitRange max", list(&above)));
    }
    let below = names(least, range.min.as_ref(), false);
    if !below.is_empty() {
        let below: Vec<&String> = below.iter().collect();
        complaints
            .push(format!("{path}: Invalid value: {}: requests must not be below the limitRange min", list(&below)));
    }
    complaints
}

fn list(names: &[&String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    format!("[{}]", quoted.join(","))
}
