//! The resources of a cluster's pods.

use std::collections::BTreeMap;

use berth_apimachinery::quantity::{Format, Quantity};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;

use crate::ray::types::RayClusterSpec;

/// Resource name of TPU chips.
pub const TPU: &str = "google.com/tpu";

/// True if the resource is GPUs, or a part of a GPU.
pub fn is_gpu(name: &str) -> bool {
    if name.ends_with("gpu") {
        return true;
    }
    // `nvidia.com/mig-2g.32gb`
    let parts = name.rsplit_once("nvidia.com/mig-").and_then(|(_, part)| part.strip_suffix("gb")?.split_once("g."));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    parts.is_some_and(|(slices, memory)| is_number(slices) && is_number(memory))
}

/// Amounts by resource name.
type Amounts = BTreeMap<String, Quantity>;

/// The requests of a pod. Where a request is missing, the limit counts.
fn of_pod(template: &PodTemplateSpec) -> Amounts {
    let mut sum = Amounts::new();
    for container in template.spec.iter().flat_map(|spec| &spec.containers) {
        let Some(resources) = &container.resources else { continue };
        let mut amounts = resources.limits.clone().unwrap_or_default();
        amounts.extend(resources.requests.clone().unwrap_or_default());
        for (name, amount) in amounts {
            let amount = Quantity::parse(&amount.0).unwrap_or(Quantity::ZERO);
            add(&mut sum, &name, amount);
        }
    }
    sum
}

fn add(sum: &mut Amounts, name: &str, amount: Quantity) {
    match sum.get_mut(name) {
        Some(known) => known.add(amount),
        None => {
            sum.insert(name.to_owned(), amount);
        }
    }
}

/// The resources of all wanted pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// CPUs.
    pub cpu: Amount,
    /// Memory.
    pub memory: Amount,
    /// GPUs of all kinds.
    pub gpu: Amount,
    /// TPU chips.
    pub tpu: Amount,
}

/// The resources of the head and of the workers. The number of workers follows from `replicas` of
/// each group that is not suspended, without the bounds of the group.
pub fn desired(spec: &RayClusterSpec) -> Desired {
    let mut sum = of_pod(&spec.head_group_spec.template);
    for group in spec.worker_group_specs.iter().filter(|group| !group.is_suspended()) {
        let pods = i64::from(group.replicas.unwrap_or(0)).saturating_mul(i64::from(group.hosts()));
        for (name, mut amount) in of_pod(&group.template) {
            amount.mul(pods);
            add(&mut sum, &name, amount);
        }
    }
    let zero = Quantity::new(0, Format::DecimalSi);
    let of = |name: &str| Amount(sum.get(name).copied().unwrap_or(zero).to_string());
    let mut gpus = zero;
    sum.iter().filter(|(name, _)| is_gpu(name)).for_each(|(_, amount)| gpus.add(*amount));
    Desired { cpu: of("cpu"), memory: of("memory"), gpu: Amount(gpus.to_string()), tpu: of(TPU) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn gpus_are_known_by_the_end_of_their_name() {
        for (name, expected) in [
            ("nvidia.com/gpu", true),
            ("amd.com/gpu", true),
            ("nvidia.com/mig-2g.32gb", true),
            ("nvidia.com/mig-2g.gb", false),
            ("google.com/tpu", false),
            ("cpu", false),
        ] {
            assert_eq!(is_gpu(name), expected, "{name}");
        }
    }

    #[test]
    fn the_sum_takes_requests_before_limits_and_counts_hosts() {
        let template =
            |resources: serde_json::Value| json!({"spec": {"containers": [{"name": "ray", "resources": resources}]}});
        let spec = RayClusterSpec::read(&json!({
            "headGroupSpec": {"template": template(json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "2", "memory": "1Gi"}}))},
            "workerGroupSpecs": [
                {"groupName": "a", "replicas": 2, "numOfHosts": 4,
                 "template": template(json!({"limits": {"cpu": "1", "google.com/tpu": "4", "memory": "1Gi"}}))},
                {"groupName": "b", "replicas": 3, "suspend": true, "template": template(json!({"limits": {"cpu": "1"}}))},
                {"groupName": "c", "replicas": 1, "template": template(json!({"limits": {"nvidia.com/gpu": "2"}}))},
            ]}))
        .unwrap();
        let amount = |text: &str| Amount(text.to_owned());
        let expected = Desired { cpu: amount("8500m"), memory: amount("9Gi"), gpu: amount("2"), tpu: amount("32") };
        assert_eq!(desired(&spec), expected);
    }
}
