//! The resources that a pod uses.

use std::collections::BTreeSet;

use berth_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::PodSpec;

/// Names of the resources that a container or init container requests or limits with an amount that
/// is not zero.
pub fn requested(spec: &PodSpec) -> BTreeSet<&str> {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let lists = containers.filter_map(|container| container.resources.as_ref()).flat_map(|resources| {
        let requests = resources.requests.iter().flatten();
        requests.chain(resources.limits.iter().flatten())
    });
    // The API has validated the amounts. An amount that cannot be read counts as requested.
    let is_zero = |text: &str| Quantity::parse(text).is_ok_and(|amount| amount.is_zero());
    lists.filter(|(_, amount)| !is_zero(&amount.0)).map(|(name, _)| name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(spec: Value, expected: &[&str]) {
        let spec: PodSpec = serde_json::from_value(spec).expect("a pod spec");
        assert_eq!(requested(&spec).into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn limits_and_init_containers_count_and_zero_does_not() {
        let gpu = |field: &str, amount: &str| json!({"name": "a", "resources": {field: {"nvidia.com/gpu": amount}}});
        check(json!({"containers": [gpu("limits", "1")]}), &["nvidia.com/gpu"]);
        check(json!({"containers": [gpu("requests", "1")]}), &["nvidia.com/gpu"]);
        check(json!({"containers": [{"name": "b"}], "initContainers": [gpu("limits", "2")]}), &["nvidia.com/gpu"]);
        check(json!({"containers": [gpu("limits", "0"), {"name": "b"}]}), &[]);
        check(json!({"containers": [gpu("limits", "0"), gpu("requests", "1")]}), &["nvidia.com/gpu"]);
    }
}
