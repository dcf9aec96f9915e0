//! Amounts of resources as integers: CPU in thousandths, all other resources in their unit (bytes,
//! devices, pods).

use std::collections::BTreeMap;

use berth_apimachinery::quantity;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Amounts by resource name. A missing resource counts as zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources(BTreeMap<String, i64>);

/// A quantity as an integer: milli-CPU for `cpu`, the value rounded up for all other resources. An
/// invalid quantity, which the API server rejects, counts as zero.
pub fn amount(resource: &str, quantity: &Quantity) -> i64 {
    match quantity::Quantity::parse(&quantity.0) {
        Ok(parsed) if resource == "cpu" => parsed.milli_value(),
        Ok(parsed) => parsed.value(),
        Err(_) => 0,
    }
}

impl Resources {
    /// Reads a map of quantities as in Kubernetes objects.
    pub fn from_quantities(quantities: &BTreeMap<String, Quantity>) -> Self {
        Self(quantities.iter().map(|(name, quantity)| (name.clone(), amount(name, quantity))).collect())
    }

    /// Requests of a pod: the sum of its containers, or its largest init container if that is more,
    /// plus overhead. Sidecars (init containers that restart always) run together with everything
    /// after them. A limit without a request counts as a request, as with the API server's
    /// defaults. Every pod uses one unit of `pods`.
    ///
    /// Source: Kubernetes' "Resource sharing within containers" and KEP-753.
    pub fn of_pod(spec: &PodSpec) -> Self {
        let mut sum = Self::default();
        for container in &spec.containers {
            sum.add(&of_container(container));
        }
        let mut sidecars = Self::default();
        let mut peak = Self::default();
        for container in spec.init_containers.iter().flatten() {
            let requests = of_container(container);
            if container.restart_policy.as_deref() == Some("Always") {
                sidecars.add(&requests);
                peak.raise_to(&sidecars);
            } else {
                let mut at_once = sidecars.clone();
                at_once.add(&requests);
                peak.raise_to(&at_once);
            }
        }
        sum.add(&sidecars);
        sum.raise_to(&peak);
        if let Some(overhead) = &spec.overhead {
            sum.add(&Self::from_quantities(overhead));
        }
        sum.set("pods", 1);
        sum
    }

    /// The amount of one resource.
    pub fn get(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Sets the amount of one resource.
    pub fn set(&mut self, name: &str, amount: i64) {
        self.0.insert(name.to_owned(), amount);
    }

    /// Adds amounts; sums saturate.
    pub fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            match self.0.get_mut(name) {
                Some(mine) => *mine = mine.saturating_add(*amount),
                None => {
                    self.0.insert(name.clone(), *amount);
                }
            }
        }
    }

    /// Subtracts amounts.
    pub fn subtract(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            match self.0.get_mut(name) {
                Some(mine) => *mine = mine.saturating_sub(*amount),
                None => {
                    self.0.insert(name.clone(), amount.saturating_neg());
                }
            }
        }
    }

    /// Raises negative amounts to zero.
    pub fn forget_negative(&mut self) {
        for amount in self.0.values_mut() {
            *amount = (*amount).max(0);
        }
    }

    fn raise_to(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let mine = self.0.entry(name.clone()).or_insert(0);
            *mine = (*mine).max(*amount);
        }
    }

    /// Names and amounts, in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(name, amount)| (name.as_str(), *amount))
    }

    /// Names of extended resources (with a domain, such as `nvidia.com/gpu`) and their amounts.
    pub fn extended(&self) -> impl Iterator<Item = (&str, i64)> {
        self.iter().filter(|(name, amount)| *amount > 0 && is_extended(name))
    }
}

/// True for extended resources: they have a domain that is not Kubernetes' own.
pub(crate) fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.starts_with("kubernetes.io/") && !name.starts_with("requests.")
}

fn of_container(container: &Container) -> Resources {
    let Some(resources) = &container.resources else { return Resources::default() };
    let mut amounts = Resources::from_quantities(resources.limits.as_ref().unwrap_or(&BTreeMap::new()));
    for (name, quantity) in resources.requests.iter().flatten() {
        amounts.set(name, amount(name, quantity));
    }
    amounts
}
