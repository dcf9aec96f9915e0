//! Policies made from a trace: one ClusterQueue per tenant, all in one cohort.
//!
//! The nominal quota of a tenant is half of its peak, the most that it would use at once if every
//! job started at its submission, and at least its largest job. If the size of the cluster is
//! known, the quotas are scaled so that they add up to it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_controllers::translate::amounts::to_quantity;
use berth_engine::Name;
use clap::ValueEnum;
use serde_json::{Value, json};

use super::{Policy, file};
use crate::trace::{Job, Trace};

/// The cohort of all queues.
const COHORT: &str = "cluster";
/// The only flavor.
const FLAVOR: &str = "default";
/// Name of the LocalQueue in each tenant's namespace.
const LOCAL_QUEUE: &str = "jobs";
/// Version of the manifests.
const VERSION: &str = "kueue.x-k8s.io/v1beta2";

/// A policy made from the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum BuiltIn {
    /// BestEffortFIFO: a job that does not fit lets later ones pass. Borrowing without limit, no
    /// preemption: Kueue's defaults.
    BestEffort,
    /// StrictFIFO: a job that does not fit blocks the queue.
    Fifo,
    /// Like best-effort, but a tenant within its quota preempts jobs that borrow this quota.
    Reclaim,
    /// Fair sharing between tenants, with preemption.
    FairSharing,
    /// Like best-effort, without borrowing.
    NoBorrowing,
}

impl BuiltIn {
    /// Name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The policy for a trace.
    pub fn policy(self, trace: &Trace) -> Policy {
        file::unchecked(&self.name(), self.manifests(trace)).expect("a test reads the manifests of each policy")
    }

    /// The manifests of the policy. Tenants are names of objects, also where Kubernetes would
    /// reject such a name.
    fn manifests(self, trace: &Trace) -> Vec<Value> {
        let mut manifests =
            vec![json!({"apiVersion": VERSION, "kind": "ResourceFlavor", "metadata": {"name": FLAVOR}})];
        for (tenant, quota) in quotas(trace) {
            manifests.push(self.cluster_queue(&tenant, &quota));
            manifests.push(json!({"apiVersion": VERSION, "kind": "LocalQueue",
                "metadata": {"name": LOCAL_QUEUE, "namespace": &*tenant}, "spec": {"clusterQueue": &*tenant}}));
        }
        if self == BuiltIn::FairSharing {
            manifests.push(json!({"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
                "fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]}}));
        }
        manifests
    }

    fn cluster_queue(self, tenant: &Name, quota: &BTreeMap<Name, i64>) -> Value {
        let resources = quota.iter().map(|(resource, nominal)| {
            let mut of_resource = json!({"name": &**resource, "nominalQuota": to_quantity(resource, *nominal)});
            if self == BuiltIn::NoBorrowing {
                of_resource["borrowingLimit"] = json!("0");
            }
            of_resource
        });
        let flavor = json!({"name": FLAVOR, "resources": resources.collect::<Vec<_>>()});
        let covered: Vec<&str> = quota.keys().map(|resource| &**resource).collect();
        let mut spec = json!({"cohortName": COHORT, "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": covered, "flavors": [flavor]}]});
        if self == BuiltIn::Fifo {
            spec["queueingStrategy"] = json!("StrictFIFO");
        }
        if matches!(self, BuiltIn::Reclaim | BuiltIn::FairSharing) {
            spec["preemption"] = json!({"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"});
        }
        json!({"apiVersion": VERSION, "kind": "ClusterQueue", "metadata": {"name": &**tenant}, "spec": spec})
    }
}

/// The nominal quota of each tenant per resource.
pub fn quotas(trace: &Trace) -> BTreeMap<Name, BTreeMap<Name, i64>> {
    let resources: BTreeSet<Name> = trace.jobs.iter().flat_map(|job| job.requests.keys()).cloned().collect();
    let mut quotas: BTreeMap<Name, BTreeMap<Name, i64>> = BTreeMap::new();
    for resource in resources {
        let unit = trace.jobs.iter().fold(0, |unit, job| gcd(unit, job.demand(&resource))).max(1);
        let mut amounts: BTreeMap<Name, i64> = BTreeMap::new();
        for (tenant, jobs) in by_tenant(&trace.jobs) {
            let largest = jobs.iter().map(|job| job.demand(&resource)).max().unwrap_or(0);
            let half = (peak(&jobs, &resource) + 1) / 2;
            amounts.insert(tenant, ((half + unit - 1) / unit * unit).max(largest));
        }
        if let Some(size) = trace.machine.as_ref().and_then(|machine| machine.get(&resource)) {
            share(*size, unit, &mut amounts);
        }
        for (tenant, amount) in amounts {
            quotas.entry(tenant).or_default().insert(resource.clone(), amount);
        }
    }
    quotas
}

fn by_tenant(jobs: &[Job]) -> BTreeMap<Name, Vec<&Job>> {
    let mut tenants: BTreeMap<Name, Vec<&Job>> = BTreeMap::new();
    for job in jobs {
        tenants.entry(job.owner.tenant.clone()).or_default().push(job);
    }
    tenants
}

/// The most of a resource that jobs would use at once if each started at its submission.
fn peak(jobs: &[&Job], resource: &str) -> i64 {
    let mut changes: Vec<(Duration, i64)> = Vec::with_capacity(jobs.len() * 2);
    for job in jobs {
        let demand = job.demand(resource);
        changes.push((job.submitted, demand));
        changes.push((job.submitted.saturating_add(job.run_time), -demand));
    }
    // At one instant, jobs that end come first.
    changes.sort_unstable();
    let mut used: i64 = 0;
    changes.into_iter().fold(0, |most, (_, change)| {
        used = used.saturating_add(change);
        most.max(used)
    })
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Scales amounts, which are shares, so that they add up to `size`, in multiples of `unit` as far
/// as possible. What remains after rounding down goes to the largest remainders.
fn share(size: i64, unit: i64, amounts: &mut BTreeMap<Name, i64>) {
    let whole: i128 = amounts.values().map(|amount| i128::from(*amount)).sum();
    if whole == 0 {
        return;
    }
    let units = i128::from(size / unit);
    let mut remainders = Vec::new();
    let mut given: i128 = 0;
    for (tenant, amount) in amounts.iter_mut() {
        let scaled = i128::from(*amount) * units;
        remainders.push((std::cmp::Reverse(scaled % whole), tenant.clone()));
        given += scaled / whole;
        *amount = i64::try_from(scaled / whole).unwrap_or(i64::MAX).saturating_mul(unit);
    }
    remainders.sort_unstable();
    let left = usize::try_from(units - given).unwrap_or(0);
    for (_, tenant) in remainders.into_iter().take(left) {
        *amounts.entry(tenant).or_default() += unit;
    }
}
