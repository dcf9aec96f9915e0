//! Prices of flavors: those of options, or else those of the NodePools that supply the flavors.

use std::collections::BTreeMap;

use berth_api::berth::NodePool;
use berth_api::kueue::v1beta2::ResourceFlavor;
use berth_apimachinery::quantity::Quantity;
use berth_embedded::objects;
use berth_foresight::policy::Prices;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

/// The prices of a cluster's flavors. Empty if the cluster has no NodePools, or the user may not
/// list them.
pub async fn of_cluster(client: &Client) -> Prices {
    let pools = Api::<NodePool>::all(client.clone()).list(&ListParams::default()).await;
    let flavors = Api::<ResourceFlavor>::all(client.clone()).list(&ListParams::default()).await;
    match (pools, flavors) {
        (Ok(pools), Ok(flavors)) => of(&pools.items, &flavors.items),
        _ => Prices::default(),
    }
}

/// The prices of the usage page: those that the reader entered, or else those of the NodePools.
pub fn of_page(
    entered: &str,
    pools: &[NodePool],
    flavors: &[ResourceFlavor],
) -> Result<berth_dashboard::Prices, String> {
    let mut prices = Prices::default();
    for text in entered.split([',', ' ']).filter(|text| !text.is_empty()) {
        prices.add(text)?;
    }
    if prices.is_empty() {
        prices = of(pools, flavors);
    }
    let price = |(resource, flavor, price): (&str, Option<&str>, f64)| {
        ((resource.to_owned(), flavor.map(str::to_owned)), price)
    };
    Ok(prices.iter().map(price).collect())
}

/// The price of a machine is that of its accelerators, or else of its CPUs. If several pools supply
/// a flavor, the mean of their prices is used.
fn of(pools: &[NodePool], flavors: &[ResourceFlavor]) -> Prices {
    let machines: Vec<(Node, f64)> = pools
        .iter()
        .filter_map(|pool| Some((objects::template(pool).into_iter().next()?, pool.spec.price())))
        .filter(|(_, price)| *price > 0.0)
        .collect();
    let mut prices = Prices::default();
    for flavor in flavors {
        let mut found: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (node, price) in &machines {
            let labels = node.labels();
            let is_of_flavor = flavor.spec.node_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
            if let Some((resource, count)) = priced_resource(node).filter(|_| is_of_flavor) {
                found.entry(resource).or_default().push(price / count);
            }
        }
        for (resource, all) in found {
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            prices.set(resource.as_str().into(), Some(flavor.name_any().as_str().into()), mean);
        }
    }
    prices
}

/// The resource of a machine that bears its price, and its amount.
fn priced_resource(node: &Node) -> Option<(String, f64)> {
    let capacity = node.status.as_ref()?.capacity.as_ref()?;
    let amount = |name: &str| Quantity::parse(&capacity.get(name)?.0).ok().map(|amount| amount.as_f64());
    let accelerator = capacity.keys().find(|name| name.contains('/') && amount(name).is_some_and(|it| it > 0.0));
    let name = accelerator.cloned().unwrap_or_else(|| "cpu".to_owned());
    let count = amount(&name).filter(|count| *count > 0.0)?;
    Some((name, count))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_machine_costs_what_its_accelerators_or_its_cpus_cost() {
        let pool = |name: &str, spec: serde_json::Value| -> NodePool {
            serde_json::from_value(json!({"apiVersion": "berth.dev/v1alpha1", "kind": "NodePool",
                "metadata": {"name": name}, "spec": spec}))
            .expect("a pool")
        };
        let flavor = |name: &str, pool: &str| -> ResourceFlavor {
            serde_json::from_value(json!({"metadata": {"name": name},
                "spec": {"nodeLabels": {"cloud.google.com/gke-nodepool": pool}}}))
            .expect("a flavor")
        };
        let pools = [
            pool("gpu", json!({"machineType": "g2-standard-24", "pricePerHour": 2.0})),
            pool("cpu", json!({"machineType": "n2-standard-16", "pricePerHour": 0.8})),
        ];
        let prices = of(&pools, &[flavor("l4", "gpu"), flavor("plain", "cpu")]);
        let price = |flavor: &str, resource: &str| prices.of(&flavor.into(), &resource.into());
        assert_eq!((price("l4", "nvidia.com/gpu"), price("l4", "cpu")), (1.0, 0.0));
        assert_eq!(price("plain", "cpu"), 0.05);
        let of_page = |entered: &str| of_page(entered, &pools, &[flavor("l4", "gpu")]);
        assert_eq!(of_page("").map(|prices| prices.of("l4", "nvidia.com/gpu")), Ok(1.0));
        let entered = of_page("l4/nvidia.com/gpu=3, cpu=0.1").expect("prices");
        assert_eq!((entered.of("l4", "nvidia.com/gpu"), entered.of("any", "cpu")), (3.0, 0.1));
        let error = of_page("cpu").expect_err("no price");
        assert_eq!(error, "cpu: expected [FLAVOR/]RESOURCE=PRICE, such as spot/cpu=0.01");
    }
}
