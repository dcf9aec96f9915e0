//! The lending limits of a slack queue.

use std::collections::BTreeSet;

use berth_api::kueue::v1beta2::{ResourceGroup, ResourceQuota};
use berth_apimachinery::quantity::{Format, Quantity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;

use super::Lost;

/// The resource groups of a slack queue with the lending limits that follow from `lost`, which
/// returns the amounts that a group's flavors lack. `None` if no limit changes.
///
/// The limit of a resource that lost nothing is absent, also if an administrator set one. A
/// resource that several groups cover is only adjusted in the first.
pub fn adjusted(groups: &[ResourceGroup], lost: impl Fn(&ResourceGroup) -> Lost) -> Option<Vec<ResourceGroup>> {
    let mut new = groups.to_vec();
    let (mut covered, mut changed) = (BTreeSet::new(), false);
    for group in &mut new {
        let lost = lost(group);
        let own: BTreeSet<String> = group.covered_resources.iter().cloned().collect();
        for flavor in &mut group.flavors {
            let of_flavor = lost.get(&flavor.name);
            for quota in flavor.resources.iter_mut().filter(|quota| !covered.contains(&quota.name)) {
                let lost = of_flavor.and_then(|amounts| amounts.get(&quota.name)).copied();
                changed |= adjust(quota, lost);
            }
        }
        covered.extend(own);
    }
    changed.then_some(new)
}

/// Sets or removes the limit of one resource. Returns true if it changed by value.
fn adjust(quota: &mut ResourceQuota, lost: Option<Quantity>) -> bool {
    let wanted = lost.filter(|lost| !lost.is_zero()).and_then(|lost| {
        // The API has validated the amount.
        let mut left = Quantity::parse(&quota.nominal_quota.0).ok()?;
        left.sub(lost);
        Some(if left.sign() > 0 { left } else { Quantity::new(0, Format::DecimalSi) })
    });
    let known = quota.lending_limit.as_ref().map(|limit| Quantity::parse(&limit.0));
    let same = match (&wanted, &known) {
        (None, None) => true,
        (Some(wanted), Some(Ok(known))) => wanted == known,
        _ => false,
    };
    if !same {
        quota.lending_limit = wanted.map(|limit| Amount(limit.to_string()));
    }
    !same
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Node;
    use serde_json::{Value, json};

    use super::*;
    use crate::health::{Amounts, NodeHealth, NodeHealthConfiguration};
    use crate::slack_queue::Flavors;

    /// The slack queue of the MLBatch tutorial with these lending limits.
    fn slack(limits: &[(&str, &str)]) -> Vec<ResourceGroup> {
        let quotas = [("cpu", "224"), ("memory", "2000G"), ("nvidia.com/gpu", "8"), ("pods", "100")];
        let quota = |(name, nominal): (&str, &str)| {
            let limit = limits.iter().find(|(resource, _)| *resource == name).map(|(_, limit)| *limit);
            let mut quota = json!({"name": name, "nominalQuota": nominal});
            if let Some(limit) = limit {
                quota["lendingLimit"] = json!(limit);
            }
            quota
        };
        groups(json!([{
            "coveredResources": ["cpu", "memory", "nvidia.com/gpu", "pods"],
            "flavors": [{"name": "default-flavor", "resources": quotas.map(quota)}],
        }]))
    }

    fn groups(groups: Value) -> Vec<ResourceGroup> {
        serde_json::from_value(groups).expect("resource groups")
    }

    fn amounts(amounts: &[(&str, &str)]) -> Amounts {
        let amount = |(name, amount): &(&str, &str)| ((*name).to_owned(), Quantity::parse(amount).expect("a quantity"));
        amounts.iter().map(amount).collect()
    }

    fn limits(groups: &[ResourceGroup]) -> Vec<(String, String)> {
        let quotas = groups.iter().flat_map(|group| &group.flavors).flat_map(|flavor| &flavor.resources);
        quotas.filter_map(|quota| Some((quota.name.clone(), quota.lending_limit.clone()?.0))).collect()
    }

    /// Checks the limits after a pass in which the nodes lack `lost`, and that a second pass writes
    /// nothing.
    #[track_caller]
    fn check(before: &[ResourceGroup], lost: &[(&str, &str)], after: &[(&str, &str)], writes: bool) {
        let lost: Lost = BTreeMap::from([("default-flavor".to_owned(), amounts(lost))]);
        let new = adjusted(before, |_| lost.clone());
        assert_eq!(new.is_some(), writes, "a write");
        let new = new.unwrap_or_else(|| before.to_vec());
        let found = limits(&new);
        let found: Vec<(&str, &str)> = found.iter().map(|(name, limit)| (name.as_str(), limit.as_str())).collect();
        assert_eq!(found, after);
        assert_eq!(adjusted(&new, |_| lost.clone()), None, "a second pass");
    }

    const GPU: &str = "nvidia.com/gpu";

    #[test]
    fn limits_follow_what_nodes_lack() {
        check(&slack(&[]), &[], &[], false);
        check(&slack(&[]), &[(GPU, "8")], &[(GPU, "0")], true);
        check(&slack(&[(GPU, "0")]), &[(GPU, "8")], &[(GPU, "0")], false);
        check(&slack(&[(GPU, "0")]), &[(GPU, "3")], &[(GPU, "5")], true);
        check(&slack(&[]), &[(GPU, "24")], &[(GPU, "0")], true);
        check(&slack(&[(GPU, "5")]), &[], &[], true);
        let several = [("cpu", "100"), ("memory", "500G"), (GPU, "8")];
        check(&slack(&[]), &several, &[("cpu", "124"), ("memory", "1500G"), (GPU, "0")], true);
        check(&slack(&[]), &[("nvidia.com/roce_gdr", "2")], &[], false);
        check(&slack(&[(GPU, "4")]), &[], &[], true);
        check(&slack(&[]), &[("cpu", "500m")], &[("cpu", "223500m")], true);
    }

    #[test]
    fn limits_are_compared_by_value() {
        check(&slack(&[(GPU, "0m")]), &[(GPU, "8")], &[(GPU, "0m")], false);
        check(&slack(&[("cpu", "124000m")]), &[("cpu", "100")], &[("cpu", "124000m")], false);
        check(&slack(&[]), &[(GPU, "0")], &[], false);
    }

    #[test]
    fn a_cordoned_node_takes_its_whole_capacity() {
        let lost = [("cpu", "224"), ("ephemeral-storage", "1873933640Ki"), ("memory", "2113411288Ki"), (GPU, "8")];
        check(&slack(&[]), &lost, &[("cpu", "0"), ("memory", "0"), (GPU, "0")], true);
    }

    #[test]
    fn a_resource_in_two_groups_is_adjusted_in_the_first_only() {
        let quota = json!([{"name": GPU, "nominalQuota": "8"}]);
        let group = |flavor: &str| {
            json!({"coveredResources": [GPU], "flavors": [
                {"name": flavor, "resources": quota}, {"name": "other-flavor", "resources": quota}]})
        };
        let groups = groups(json!([group("default-flavor"), group("default-flavor")]));
        check(&groups, &[(GPU, "8")], &[(GPU, "0")], true);
        check(&[], &[(GPU, "8")], &[], false);
    }

    #[test]
    fn a_node_counts_for_the_first_flavor_whose_labels_it_has() {
        let quota = |amount: &str| json!([{"name": GPU, "nominalQuota": amount}]);
        let groups = groups(json!([
            {"coveredResources": ["cpu"], "flavors": [
                {"name": "any", "resources": [{"name": "cpu", "nominalQuota": "100"}]}]},
            {"coveredResources": [GPU], "flavors": [
                {"name": "a100", "resources": quota("16")}, {"name": "h100", "resources": quota("32")}]},
        ]));
        let flavor = |name: &str, labels: Value| {
            Arc::new(
                serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"nodeLabels": labels}}))
                    .expect("a ResourceFlavor"),
            )
        };
        let flavors = Flavors::of(&[
            flavor("any", json!({})),
            flavor("a100", json!({"gpu": "a100"})),
            flavor("h100", json!({"gpu": "h100"})),
        ]);
        let node = |gpu: &str, cordoned: bool| -> (Arc<Node>, NodeHealth) {
            let node: Node = serde_json::from_value(json!({
                "metadata": {"name": gpu, "labels": {"gpu": gpu, "autopilot.ibm.com/gpuhealth": "EVICT"}},
                "spec": {"unschedulable": cordoned}, "status": {"capacity": {"cpu": "10", GPU: "8"}}}))
            .expect("a node");
            let health = NodeHealth::of(&node, &NodeHealthConfiguration::default());
            (Arc::new(node), health)
        };
        let nodes = [node("h100", false), node("h100", true), node("other", false)];
        let new = adjusted(&groups, |group| flavors.lost(group, &nodes)).expect("limits change");
        assert_eq!(limits(&new), [("cpu".to_owned(), "90".to_owned()), (GPU.to_owned(), "16".to_owned())]);
        assert_eq!(new[1].flavors[0].resources[0].lending_limit, None, "a100 has lost nothing");
    }
}
