//! Policies: the queues, quotas and rules under which a trace is replayed.
//!
//! A policy is read from Kueue's manifests ([`file`](mod@file)), or made from the trace
//! ([`built_in`]). Its [`Mapping`] decides the LocalQueue of each job.

pub mod built_in;
pub mod file;
mod mapping;

use std::collections::BTreeMap;

use berth_controllers::configuration::Resources;
use berth_controllers::translate::amounts;
use berth_engine::model::{ClusterQueue, Cohort};
use berth_engine::{Amount, EngineConfig, Event, Name};
use serde_json::Value;
use thiserror::Error;

pub use mapping::{Mapping, QueueRef, Rule};

/// Queues, quotas and rules.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Name in reports.
    pub name: String,
    /// Configuration of the engine. Its flush delay is zero: virtual time need not wait for further
    /// events.
    pub config: EngineConfig,
    /// Resources that are counted as others, or not at all.
    pub resources: Resources,
    /// The configuration objects, ordered so that every referenced object exists.
    pub objects: Vec<Event>,
    /// The LocalQueue of each job.
    pub mapping: Mapping,
    /// Values of the WorkloadPriorityClasses.
    pub priority_classes: BTreeMap<Name, i32>,
    /// Prices of capacity.
    pub prices: Prices,
    /// Kueue's objects, Namespaces and Nodes of the policy, as a cluster would store them.
    pub manifests: Vec<Value>,
    /// Kueue's `Configuration`, if the policy has one.
    pub configuration: Option<Value>,
}

impl Policy {
    /// The cluster queues.
    pub fn cluster_queues(&self) -> impl Iterator<Item = &ClusterQueue> {
        self.objects.iter().filter_map(|event| match event {
            Event::ClusterQueueUpserted(queue) => Some(queue),
            _ => None,
        })
    }

    /// The cohorts that have an object.
    pub fn cohorts(&self) -> impl Iterator<Item = &Cohort> {
        self.objects.iter().filter_map(|event| match event {
            Event::CohortUpserted(cohort) => Some(cohort),
            _ => None,
        })
    }

    /// The nominal quota of its objects, see [`nominal_quota`].
    pub fn quota(&self) -> BTreeMap<Name, i64> {
        nominal_quota(&self.objects)
    }
}

/// The nominal quota of all queues and cohorts per resource; resources with an unlimited quota are
/// missing.
pub fn nominal_quota(objects: &[Event]) -> BTreeMap<Name, i64> {
    let groups = objects.iter().flat_map(|event| match event {
        Event::ClusterQueueUpserted(queue) => queue.resource_groups.as_slice(),
        Event::CohortUpserted(cohort) => cohort.resource_groups.as_slice(),
        _ => &[],
    });
    let quotas = groups.flat_map(|group| &group.flavors).flat_map(|flavor| &flavor.quotas);
    let mut sums: BTreeMap<Name, Amount> = BTreeMap::new();
    for (resource, quota) in quotas {
        *sums.entry(resource.clone()).or_default() += quota.nominal;
    }
    let bounded = sums.into_iter().filter(|(_, amount)| !amount.is_unlimited());
    bounded.map(|(resource, amount)| (resource, amount.saturated())).collect()
}

/// Why a policy cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// An object of a policy file is invalid.
    #[error("{file}: {object}: {problem}")]
    Object {
        /// The file.
        file: String,
        /// Kind and name of the object, or its position in the file.
        object: String,
        /// Field and problem.
        problem: String,
    },
    /// A job has no LocalQueue under the policy.
    #[error("policy {policy}: job {job}: {problem}")]
    Mapping {
        /// The policy.
        policy: String,
        /// The job.
        job: Name,
        /// What is missing, and what is there.
        problem: String,
    },
}

/// Prices of capacity per hour.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Prices {
    /// Price of one CPU, one GiB of memory or one piece of another resource for one hour, by
    /// resource and flavor. Without a flavor, the price holds for flavors without their own.
    prices: BTreeMap<(Name, Option<Name>), f64>,
}

impl Prices {
    /// Sets a price; a later price replaces an earlier one.
    pub fn set(&mut self, resource: Name, flavor: Option<Name>, per_hour: f64) {
        self.prices.insert((resource, flavor), per_hour);
    }

    /// Adds prices, which replace those of the same resource and flavor.
    pub fn extend(&mut self, other: &Prices) {
        self.prices.extend(other.prices.iter().map(|(key, price)| (key.clone(), *price)));
    }

    /// Adds a price given as `[FLAVOR/]RESOURCE=PRICE`.
    ///
    /// # Errors
    /// The text has another form; the message names the accepted one.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        let wrong = || format!("{text}: expected [FLAVOR/]RESOURCE=PRICE, such as spot/cpu=0.01");
        let (key, price) = text.split_once('=').ok_or_else(wrong)?;
        let price = price.trim().parse::<f64>().ok().filter(|it| it.is_finite() && *it >= 0.0).ok_or_else(wrong)?;
        let key = key.trim();
        // Names of extended resources contain a slash, too: `nvidia.com/gpu`. Flavors have no dot
        // before their slash unless a resource with its own slash follows.
        let (flavor, resource) = match key.split_once('/') {
            Some((flavor, resource)) if resource.contains('/') || !flavor.contains('.') => (Some(flavor), resource),
            _ => (None, key),
        };
        if resource.is_empty() || flavor == Some("") {
            return Err(wrong());
        }
        self.set(Name::from(resource), flavor.map(Name::from), price);
        Ok(())
    }

    /// True if there is no price.
    pub fn is_empty(&self) -> bool {
        self.prices.is_empty()
    }

    /// The prices by resource and flavor.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>, f64)> {
        self.prices.iter().map(|((resource, flavor), price)| (&**resource, flavor.as_deref(), *price))
    }

    /// Price of one unit of a flavor's resource for one hour; zero if there is none.
    pub fn of(&self, flavor: &Name, resource: &Name) -> f64 {
        let own = self.prices.get(&(resource.clone(), Some(flavor.clone())));
        own.or_else(|| self.prices.get(&(resource.clone(), None))).copied().unwrap_or(0.0)
    }
}

/// Number of the engine's base units in the unit in which a resource is reported and priced.
pub fn unit(resource: &str) -> f64 {
    match resource {
        crate::trace::openb::GPU_MILLI => 1000.0,
        other => amounts::reported_unit(other) as f64,
    }
}

/// Name of the unit in which a resource is reported.
pub fn unit_name(resource: &str) -> &str {
    match resource {
        "cpu" => "CPU",
        "memory" => "GiB of memory",
        "ephemeral-storage" => "GiB of storage",
        "nvidia.com/gpu" | crate::trace::openb::GPU_MILLI => "GPU",
        other => other,
    }
}
