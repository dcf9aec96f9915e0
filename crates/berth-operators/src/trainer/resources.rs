//! Resources of training nodes.

use std::collections::BTreeMap;

use berth_apimachinery::quantity::Quantity;
use serde_json::{Map, Value, json};

/// Adds the TrainJob's resources to those of the runtime's container: each amount of the TrainJob
/// wins, and others stay.
pub fn merge(container: &mut Value, own: &Value) {
    let resources = &mut container["resources"];
    for kind in ["limits", "requests"] {
        for (name, amount) in own[kind].as_object().into_iter().flatten() {
            resources[kind][name] = amount.clone();
        }
    }
    for claim in own["claims"].as_array().into_iter().flatten() {
        super::json::upsert(resources, "claims", "name", claim.clone());
    }
    if resources.is_null() {
        *resources = json!({});
    }
}

fn whole(amounts: &Value, is_wanted: impl Fn(&str) -> bool) -> i64 {
    let mut amounts = amounts.as_object().into_iter().flatten();
    let found = amounts.find(|(name, _)| is_wanted(name)).map(|(_, amount)| amount);
    found.and_then(|amount| Quantity::from_json(amount).ok()).map_or(0, |amount| amount.value())
}

fn requested(resources: &Value, is_wanted: impl Fn(&str) -> bool) -> i64 {
    match whole(&resources["requests"], &is_wanted) {
        0 => whole(&resources["limits"], &is_wanted),
        requested => requested,
    }
}

/// GPUs of a container, of any vendor.
pub fn gpus(resources: &Value) -> i64 {
    requested(resources, |name| name.to_lowercase().contains("gpu"))
}

/// CPUs of a container, rounded up.
pub fn cpus(resources: &Value) -> i64 {
    requested(resources, |name| name == "cpu")
}

/// What the pods of one kind request together.
#[derive(Clone, Debug, Default)]
pub struct Total(BTreeMap<String, Quantity>);

impl Total {
    /// Adds `count` pods of a pod spec. A pod requests the sum of its containers, or the largest
    /// container that initializes it if that is more.
    pub fn add_pods(&mut self, pod: &Value, count: i32) {
        let mut one = BTreeMap::<String, Quantity>::new();
        let of = |list: &str| pod[list].as_array().cloned().unwrap_or_default();
        for container in of("containers") {
            for (name, amount) in requests(&container) {
                one.entry(name).or_insert_with(zero).add(amount);
            }
        }
        for container in of("initContainers") {
            for (name, amount) in requests(&container) {
                let known = one.entry(name).or_insert_with(zero);
                if amount > *known {
                    *known = amount;
                }
            }
        }
        for (name, amount) in pod["overhead"].as_object().into_iter().flatten() {
            if let Ok(amount) = Quantity::from_json(amount) {
                one.entry(name.clone()).or_insert_with(zero).add(amount);
            }
        }
        for (name, mut amount) in one {
            amount.mul(i64::from(count));
            self.0.entry(name).or_insert_with(zero).add(amount);
        }
    }

    /// The amounts as a resource list.
    pub fn to_json(&self) -> Value {
        let amounts = self.0.iter().map(|(name, amount)| (name.clone(), json!(amount.to_string())));
        Value::Object(amounts.collect::<Map<_, _>>())
    }
}

fn zero() -> Quantity {
    Quantity::parse("0").expect("zero is a quantity")
}

/// The requests of a container; its limits stand in for missing ones, as the API server defaults.
fn requests(container: &Value) -> BTreeMap<String, Quantity> {
    let mut amounts = Map::new();
    for kind in ["limits", "requests"] {
        amounts.extend(container["resources"][kind].as_object().cloned().unwrap_or_default());
    }
    amounts.iter().filter_map(|(name, amount)| Some((name.clone(), Quantity::from_json(amount).ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_of_the_job_win_and_others_stay() {
        let mut container = json!({"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}});
        merge(&mut container, &json!({"limits": {"cpu": "2"}, "requests": {"nvidia.com/gpu": 1}}));
        assert_eq!(
            container["resources"],
            json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"nvidia.com/gpu": 1}})
        );
    }

    #[test]
    fn requests_count_before_limits() {
        assert_eq!(gpus(&json!({"limits": {"nvidia.com/gpu": "8"}})), 8);
        assert_eq!(gpus(&json!({"requests": {"amd.com/gpu": "2"}, "limits": {"amd.com/gpu": "4"}})), 2);
        assert_eq!(cpus(&json!({"requests": {"cpu": "1500m"}})), 2);
        assert_eq!(cpus(&json!({})), 0);
    }

    #[test]
    fn a_total_counts_every_pod() {
        let mut total = Total::default();
        let pod = json!({"containers": [{"resources": {"requests": {"cpu": "500m"}}}, {"resources": {"limits": {"cpu": 1}}}],
            "initContainers": [{"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]});
        total.add_pods(&pod, 4);
        assert_eq!(total.to_json(), json!({"cpu": "6", "memory": "4Gi"}));
    }
}
