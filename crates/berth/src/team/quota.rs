//! The quota of a team: amounts as the command line gives them, the share of the cluster that
//! belongs to a number of GPUs, and the resource groups of the ClusterQueue.

use std::collections::BTreeMap;
use std::str::FromStr;

use berth_api::kueue::v1beta2::{FlavorQuotas, ResourceGroup, ResourceQuota};
use berth_apimachinery::names::{is_dns1123_subdomain, is_qualified_name};
use berth_apimachinery::quantity::{Format, Quantity};
use clap::Args;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;

/// The resource of `--gpus`.
pub const GPU: &str = "nvidia.com/gpu";
const CPU: &str = "cpu";
const MEMORY: &str = "memory";
const PODS: &str = "pods";

/// Quota of a team on the command line.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Quota")]
pub struct QuotaOptions {
    /// GPUs (nvidia.com/gpu) that the team owns. Without --cpus or --memory, the team gets the same
    /// share of the CPUs or memory of all nodes with GPUs.
    #[arg(long, value_name = "N", value_parser = quantity)]
    gpus: Option<Quantity>,
    /// CPUs that the team owns.
    #[arg(long, value_name = "QUANTITY", value_parser = quantity)]
    cpus: Option<Quantity>,
    /// Memory that the team owns.
    #[arg(long, value_name = "QUANTITY", value_parser = quantity)]
    memory: Option<Quantity>,
    /// Number of pods that the team owns. Without it, pods are not counted.
    #[arg(long, value_name = "N", value_parser = quantity)]
    pods: Option<Quantity>,
    /// Quota of another resource or flavor; may be repeated. A workload that requests a resource
    /// without quota is never admitted.
    #[arg(long, value_name = "[FLAVOR:]RESOURCE=QUANTITY")]
    quota: Vec<Amount>,
    /// Maximum amount above the quota that the team borrows from its cohort; may be repeated.
    /// Default: no limit.
    #[arg(long, value_name = "[FLAVOR:]RESOURCE=QUANTITY")]
    borrowing_limit: Vec<Amount>,
    /// Maximum amount of unused quota that the team lends to its cohort; may be repeated. Default:
    /// all of it.
    #[arg(long, value_name = "[FLAVOR:]RESOURCE=QUANTITY")]
    lending_limit: Vec<Amount>,
    /// ResourceFlavor of the quota that names none. A flavor default-flavor is created if it does
    /// not exist.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_FLAVOR)]
    flavor: String,
}

/// The flavor of quota that names none.
pub const DEFAULT_FLAVOR: &str = "default-flavor";

/// An amount of a resource, of a flavor or of the default one.
#[derive(Clone, Debug, PartialEq)]
pub struct Amount {
    flavor: Option<String>,
    resource: String,
    quantity: Quantity,
}

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (of, amount) = text
            .split_once('=')
            .ok_or("expected [FLAVOR:]RESOURCE=QUANTITY, such as cpu=100 or a100:nvidia.com/gpu=8")?;
        let (flavor, resource) = match of.split_once(':') {
            Some((flavor, resource)) => (Some(flavor), resource),
            None => (None, of),
        };
        let wrong_flavor = flavor.and_then(|flavor| is_dns1123_subdomain(flavor).into_iter().next());
        if let Some(wrong) = wrong_flavor {
            return Err(format!("flavor: {wrong}"));
        }
        if let Some(wrong) = is_qualified_name(resource).into_iter().next() {
            return Err(format!("resource: {wrong}"));
        }
        Ok(Self { flavor: flavor.map(str::to_owned), resource: resource.to_owned(), quantity: quantity(amount)? })
    }
}

fn quantity(text: &str) -> Result<Quantity, String> {
    let quantity = Quantity::parse(text).map_err(|error| format!("{text:?}: {error}"))?;
    if quantity.sign() < 0 {
        return Err(format!("{text}: must not be negative"));
    }
    Ok(quantity)
}

/// Quota of one resource in one flavor.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    flavor: String,
    resource: String,
    nominal: Quantity,
    borrowing: Option<Quantity>,
    lending: Option<Quantity>,
}

/// What the nodes of a cluster can give to pods, by resource, one map per node.
pub type Nodes = [BTreeMap<String, Quantity>];

impl QuotaOptions {
    /// True if no quota is given, so that an existing ClusterQueue stays unchanged.
    pub fn is_empty(&self) -> bool {
        let single = [&self.gpus, &self.cpus, &self.memory, &self.pods];
        single.iter().all(|it| it.is_none())
            && [&self.quota, &self.borrowing_limit, &self.lending_limit].iter().all(|it| it.is_empty())
    }

    /// True if the quota depends on the size of the nodes.
    pub fn needs_nodes(&self) -> bool {
        self.gpus.is_some() && !self.shared().is_empty()
    }

    /// Flavors that the quota names, in the order of their first use.
    pub fn flavors(&self) -> Vec<String> {
        let named = self.quota.iter().map(|amount| amount.flavor.as_ref().unwrap_or(&self.flavor));
        let default = [&self.gpus, &self.cpus, &self.memory, &self.pods].iter().any(|it| it.is_some());
        let mut flavors: Vec<String> = Vec::new();
        for flavor in default.then_some(&self.flavor).into_iter().chain(named) {
            if !flavors.contains(flavor) {
                flavors.push(flavor.clone());
            }
        }
        flavors
    }

    /// The resources of which the team gets the share of its GPUs.
    fn shared(&self) -> Vec<&'static str> {
        let is_set = |resource: &str, own: &Option<Quantity>| {
            own.is_some() || self.quota.iter().any(|amount| amount.resource == resource)
        };
        let mut shared = Vec::new();
        for (resource, own) in [(CPU, &self.cpus), (MEMORY, &self.memory)] {
            if !is_set(resource, own) {
                shared.push(resource);
            }
        }
        shared
    }

    /// The resource groups of the ClusterQueue. `nodes` is used only if the quota needs it.
    ///
    /// # Errors
    /// The amounts contradict each other, or no node has a GPU to compute shares from. The message
    /// names the option.
    pub fn groups(&self, nodes: &Nodes) -> Result<Vec<ResourceGroup>, String> {
        let mut entries = self.entries(nodes)?;
        let limits = [("--borrowing-limit", &self.borrowing_limit), ("--lending-limit", &self.lending_limit)];
        for (option, amounts) in limits {
            for amount in amounts {
                let flavor = amount.flavor.as_ref().unwrap_or(&self.flavor);
                let entry = entries.iter_mut().find(|it| it.flavor == *flavor && it.resource == amount.resource);
                let Some(entry) = entry else {
                    return Err(format!(
                        "{option} {flavor}:{}: there is no quota of {} in flavor {flavor}; add it with --quota",
                        amount.resource, amount.resource
                    ));
                };
                if option == "--lending-limit" {
                    if amount.quantity > entry.nominal {
                        return Err(format!(
                            "{option} {flavor}:{}: {} is more than the quota, {}",
                            amount.resource, amount.quantity, entry.nominal
                        ));
                    }
                    entry.lending = Some(amount.quantity);
                } else {
                    entry.borrowing = Some(amount.quantity);
                }
            }
        }
        Ok(groups(&entries))
    }

    fn entries(&self, nodes: &Nodes) -> Result<Vec<Entry>, String> {
        let mut single: BTreeMap<&str, Quantity> = BTreeMap::new();
        let given = [(CPU, self.cpus), (MEMORY, self.memory), (GPU, self.gpus), (PODS, self.pods)];
        single.extend(given.into_iter().filter_map(|(resource, amount)| Some((resource, amount?))));
        if let Some(gpus) = self.gpus {
            for resource in self.shared() {
                single.insert(resource, share(gpus, resource, nodes)?);
            }
        }
        let entry = |flavor: &String, resource: &str, nominal: Quantity| Entry {
            flavor: flavor.clone(),
            resource: resource.to_owned(),
            nominal,
            borrowing: None,
            lending: None,
        };
        let mut entries: Vec<Entry> =
            single.into_iter().map(|(resource, amount)| entry(&self.flavor, resource, amount)).collect();
        for amount in &self.quota {
            let flavor = amount.flavor.as_ref().unwrap_or(&self.flavor);
            if entries.iter().any(|it| it.flavor == *flavor && it.resource == amount.resource) {
                return Err(format!("--quota {flavor}:{}: is given twice", amount.resource));
            }
            entries.push(entry(flavor, &amount.resource, amount.quantity));
        }
        Ok(entries)
    }
}

/// The part of a resource of all nodes with GPUs that corresponds to `gpus` of their GPUs, rounded
/// down to whole CPUs or GiB.
fn share(gpus: Quantity, resource: &str, nodes: &Nodes) -> Result<Quantity, String> {
    let of = |node: &BTreeMap<String, Quantity>, resource: &str| {
        node.get(resource).map_or(0, |amount| i128::from(amount.milli_value()))
    };
    let with_gpus: Vec<_> = nodes.iter().filter(|node| of(node, GPU) > 0).collect();
    let total: i128 = with_gpus.iter().map(|node| of(node, GPU)).sum();
    if total == 0 {
        let option = if resource == CPU { "--cpus" } else { "--memory" };
        return Err(format!(
            "no node has {GPU}, so the share of {resource} of {gpus} GPUs is unknown; add {option} QUANTITY"
        ));
    }
    let available: i128 = with_gpus.iter().map(|node| of(node, resource)).sum();
    let milli = available.saturating_mul(i128::from(gpus.milli_value())) / total;
    let units = milli / 1000;
    let amount = match resource {
        MEMORY => Quantity::from_scaled((units >> 30) << 30, 0, Format::BinarySi),
        _ => Quantity::from_scaled(units, 0, Format::DecimalSi),
    };
    amount.ok_or_else(|| format!("the share of {resource} of {gpus} GPUs is too large"))
}

/// Resource groups with these entries. A flavor and a resource belong to one group each, so entries
/// that share either are in the same group. A flavor of a group without quota of one of its
/// resources has 0 of it.
fn groups(entries: &[Entry]) -> Vec<ResourceGroup> {
    let mut parts: Vec<(Vec<&str>, Vec<&str>)> = Vec::new();
    for entry in entries {
        let (flavor, resource) = (entry.flavor.as_str(), entry.resource.as_str());
        let (related, others): (Vec<_>, Vec<_>) = std::mem::take(&mut parts)
            .into_iter()
            .partition(|(flavors, resources)| flavors.contains(&flavor) || resources.contains(&resource));
        let (mut flavors, mut resources) = (Vec::new(), Vec::new());
        for (more_flavors, more_resources) in related {
            flavors.extend(more_flavors);
            resources.extend(more_resources);
        }
        if !flavors.contains(&flavor) {
            flavors.push(flavor);
        }
        if !resources.contains(&resource) {
            resources.push(resource);
        }
        parts = others;
        parts.push((flavors, resources));
    }
    let quota = |flavor: &str, resource: &str| {
        let entry = entries.iter().find(|it| it.flavor == flavor && it.resource == resource);
        ResourceQuota {
            name: resource.to_owned(),
            nominal_quota: written(entry.map_or(Quantity::ZERO, |entry| entry.nominal)),
            borrowing_limit: entry.and_then(|entry| entry.borrowing).map(written),
            lending_limit: entry.and_then(|entry| entry.lending).map(written),
        }
    };
    let group = |(flavors, resources): (Vec<&str>, Vec<&str>)| ResourceGroup {
        covered_resources: resources.iter().map(|it| (*it).to_owned()).collect(),
        flavors: flavors
            .iter()
            .map(|flavor| FlavorQuotas {
                name: (*flavor).to_owned(),
                resources: resources.iter().map(|resource| quota(flavor, resource)).collect(),
            })
            .collect(),
    };
    parts.into_iter().map(group).collect()
}

fn written(amount: Quantity) -> Written {
    Written(amount.to_string())
}

/// A note for each resource of which the cohort's queues own more than the nodes have. `quotas` are
/// the nominal quotas of all queues of the cohort, this team's included. A resource that no node
/// has is not a resource of nodes, or comes with nodes that are added later.
pub fn beyond_capacity(cohort: &str, quotas: &[ResourceGroup], nodes: &Nodes) -> Vec<String> {
    let mut owned: BTreeMap<&str, Quantity> = BTreeMap::new();
    for quota in quotas.iter().flat_map(|group| &group.flavors).flat_map(|flavor| &flavor.resources) {
        if let Ok(amount) = Quantity::parse(&quota.nominal_quota.0) {
            owned.entry(quota.name.as_str()).or_insert(Quantity::ZERO).add(amount);
        }
    }
    let mut notes = Vec::new();
    for (resource, owned) in owned {
        let mut available = Quantity::ZERO;
        nodes.iter().filter_map(|node| node.get(resource)).for_each(|amount| available.add(*amount));
        if !available.is_zero() && owned > available {
            notes.push(format!(
                "the ClusterQueues of cohort {cohort} own {owned} of {resource}, and the nodes have {available}; \
                 reduce the quota of a team, or add nodes"
            ));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        quota: QuotaOptions,
    }

    fn options(arguments: &[&str]) -> QuotaOptions {
        Command::try_parse_from([&["team"], arguments].concat()).expect("valid options").quota
    }

    fn node(amounts: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
        amounts.iter().map(|(name, text)| ((*name).to_owned(), Quantity::parse(text).expect("a quantity"))).collect()
    }

    fn groups_of(arguments: &[&str], nodes: &Nodes) -> Value {
        json!(options(arguments).groups(nodes).expect("groups"))
    }

    #[test]
    fn the_quota_of_one_flavor_is_one_group() {
        let groups = groups_of(&["--gpus", "8", "--cpus", "224", "--memory", "2000G", "--pods", "100"], &[]);
        assert_eq!(groups[0]["coveredResources"], json!(["cpu", "memory", "nvidia.com/gpu", "pods"]));
        assert_eq!(groups[0]["flavors"][0]["name"], "default-flavor");
        assert_eq!(groups[0]["flavors"][0]["resources"][1], json!({"name": "memory", "nominalQuota": "2T"}));
        assert_eq!(groups.as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn gpus_come_with_their_share_of_the_nodes_that_have_gpus() {
        let gpu_node = node(&[("cpu", "223500m"), ("memory", "2000Gi"), (GPU, "8")]);
        let nodes = [gpu_node.clone(), gpu_node.clone(), gpu_node, node(&[("cpu", "64"), ("memory", "256Gi")])];
        let groups = groups_of(&["--gpus", "12"], &nodes);
        let resources = &groups[0]["flavors"][0]["resources"];
        assert_eq!(resources[0], json!({"name": "cpu", "nominalQuota": "335"}));
        assert_eq!(resources[1], json!({"name": "memory", "nominalQuota": "3000Gi"}));
        assert!(!options(&["--gpus", "8", "--cpus", "1", "--quota", "memory=1Gi"]).needs_nodes());
    }

    #[test]
    fn without_a_gpu_in_the_cluster_the_error_names_the_option_to_add() {
        let error = options(&["--gpus", "8", "--cpus", "4"]).groups(&[node(&[("cpu", "4")])]).unwrap_err();
        assert!(error.ends_with("the share of memory of 8 GPUs is unknown; add --memory QUANTITY"), "{error}");
    }

    #[test]
    fn flavors_that_share_a_resource_are_in_one_group() {
        let groups = groups_of(
            &[
                "--cpus",
                "100",
                "--memory",
                "1Ti",
                "--quota",
                "a100:nvidia.com/gpu=8",
                "--quota",
                "h100:nvidia.com/gpu=4",
            ],
            &[],
        );
        assert_eq!(groups[0]["coveredResources"], json!(["cpu", "memory"]));
        assert_eq!(groups[1]["coveredResources"], json!(["nvidia.com/gpu"]));
        assert_eq!(groups[1]["flavors"][1]["name"], "h100");
        assert_eq!(options(&["--cpus", "1", "--quota", "a100:cpu=2"]).flavors(), ["default-flavor", "a100"]);
        let joined = groups_of(&["--cpus", "1", "--quota", "a100:cpu=2", "--quota", "a100:nvidia.com/gpu=8"], &[]);
        assert_eq!(joined[0]["coveredResources"], json!(["cpu", "nvidia.com/gpu"]));
        assert_eq!(joined[0]["flavors"][0]["resources"][1], json!({"name": "nvidia.com/gpu", "nominalQuota": "0"}));
    }

    #[test]
    fn limits_belong_to_a_quota() {
        let arguments = ["--quota", "cpu=8", "--borrowing-limit", "cpu=0", "--lending-limit", "cpu=4"];
        let resource = groups_of(&arguments, &[])[0]["flavors"][0]["resources"][0].clone();
        let expected = json!({"name": "cpu", "nominalQuota": "8", "borrowingLimit": "0", "lendingLimit": "4"});
        assert_eq!(resource, expected);
        let error = options(&["--quota", "cpu=8", "--lending-limit", "memory=1Gi"]).groups(&[]).unwrap_err();
        assert_eq!(
            error,
            "--lending-limit default-flavor:memory: there is no quota of memory in flavor default-flavor; \
             add it with --quota"
        );
        let error = options(&["--quota", "cpu=8", "--lending-limit", "cpu=9"]).groups(&[]).unwrap_err();
        assert_eq!(error, "--lending-limit default-flavor:cpu: 9 is more than the quota, 8");
    }

    #[test]
    fn a_wrong_amount_is_explained() {
        let error = |text: &str| text.parse::<Amount>().unwrap_err();
        assert!(error("cpu").starts_with("expected [FLAVOR:]RESOURCE=QUANTITY"));
        assert!(error("A:cpu=1").starts_with("flavor: "));
        assert!(error(":=1").starts_with("flavor: "));
        assert!(error("=1").starts_with("resource: "));
        assert_eq!(error("cpu=-1"), "-1: must not be negative");
        assert!(error("cpu=much").contains("quantities must match"));
        let twice = options(&["--cpus", "1", "--quota", "cpu=2"]).groups(&[]).unwrap_err();
        assert_eq!(twice, "--quota default-flavor:cpu: is given twice");
    }

    #[test]
    fn quota_beyond_the_nodes_is_noted() {
        let quotas: Vec<ResourceGroup> = ["16", "16"]
            .iter()
            .flat_map(|gpus| options(&["--quota", &format!("{GPU}={gpus}"), "--pods", "9"]).groups(&[]))
            .flatten()
            .collect();
        let nodes = [node(&[(GPU, "8")]), node(&[(GPU, "16")])];
        let notes = beyond_capacity("all", &quotas, &nodes);
        assert_eq!(
            notes,
            ["the ClusterQueues of cohort all own 32 of nvidia.com/gpu, and the nodes have 24; reduce the quota of a \
              team, or add nodes"]
        );
    }
}
