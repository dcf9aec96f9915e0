//! Flavor assignment: the flavor of each resource of each pod set, and how well the flavors fit
//! (§8).
//!
//! [`search`] walks the flavors of a resource group, [`filter`] decides which of them a pod set
//! can use at all, and [`reduce`] looks for a smaller number of pods. An assignment changes
//! nothing; the cycle acts on it.

pub(crate) mod filter;
pub(crate) mod reduce;
mod requested;
mod scan;
pub(crate) mod search;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::decision::{
    AssignmentMode, Considered, Finding, FlavorAttempt, PendingReason, PodSetConsidered, PreemptionMode,
    TopologyProblem,
};
use crate::ids::{FlavorId, FrId, Name, QueueId, ResourceId, WorkloadId};
use crate::model::{Admission, PodSetAssignment, TopologyAssignment};
use crate::preemption::Searched;
use crate::quota::{FrAmounts, add_amount};
use crate::topology::Places;
use crate::world::World;
use crate::world::record::PodSetInfo;

pub(crate) use requested::{RequestedPodSet, requested_pod_set};
pub(crate) use scan::ScanState;

/// The request for an assignment.
#[derive(Debug, Clone)]
pub(crate) struct AssignmentRequest {
    pub queue: QueueId,
    pub workload: WorkloadId,
    pub pod_sets: Arc<[RequestedPodSet]>,
    /// Flavors the search may use, per pod set and resource (§5.6 step 1).
    pub pinned: Option<Pins>,
    /// The elastic slice that the workload replaces. Its quota counts as free (§13.2).
    pub replaced: Option<WorkloadId>,
    /// True to use the flavors of the admission that the workload holds, without a search (§8.2).
    pub second_pass: bool,
    /// True to start at the flavor at which the last search ended (§8.12).
    pub resume: bool,
}

/// Nominated flavors, per pod set name and resource.
pub(crate) type Pins = BTreeMap<Name, BTreeMap<ResourceId, FlavorId>>;

/// The assignment: flavors, usage, and how well the workload is served.
#[derive(Debug, Clone, Default)]
pub(crate) struct Assignment {
    pub pod_sets: Vec<PodSetOutcome>,
    /// Highest level borrowed from (§8.8).
    pub borrowing: u32,
    /// Quota that the assignment uses, minus that of a replaced elastic slice.
    pub usage: FrAmounts,
    pub no_fit: Option<PendingReason>,
    pub scan: ScanState,
    /// True if the workload fits once the victims of another entry have left (§5.6 step 1).
    pub deferred: bool,
    /// Searches for victims that were made for this assignment.
    pub searches: Vec<Searched>,
}

/// The assignment of one pod set.
#[derive(Debug, Clone)]
pub(crate) struct PodSetOutcome {
    pub name: Name,
    pub count: i32,
    pub requests: Arc<[(ResourceId, i64)]>,
    pub flavors: Vec<FlavorChoice>,
    pub findings: Vec<Finding>,
    /// Set if the flavors that were chosen cannot serve the pods' topology request.
    pub error: Option<TopologyProblem>,
    pub attempts: Vec<FlavorAttempt>,
    pub topology: Option<TopologyAssignment>,
    /// Set if the pod set's topology is chosen in a second pass (§14.3): `Some(true)` while that is
    /// pending, `Some(false)` in the second pass itself.
    pub delayed: Option<bool>,
}

/// The flavor of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlavorChoice {
    pub resource: ResourceId,
    pub flavor: FlavorId,
    pub fr: FrId,
    pub mode: AssignmentMode,
    /// Index of the last flavor tried; −1 if it was the last flavor of the group (§8.12).
    pub tried: i32,
}

impl PodSetOutcome {
    /// The assignment mode of this pod set: the worst mode of its resources.
    pub fn mode(&self) -> AssignmentMode {
        if self.error.is_some() {
            return AssignmentMode::NoFit;
        }
        if self.flavors.is_empty() {
            return if self.findings.is_empty() { AssignmentMode::Fit } else { AssignmentMode::NoFit };
        }
        self.flavors.iter().map(|choice| choice.mode).min().unwrap_or(AssignmentMode::Fit)
    }

    /// Moves the attempts and findings out, for an explanation.
    fn take_considered(&mut self) -> PodSetConsidered {
        PodSetConsidered {
            pod_set: self.name.clone(),
            attempts: std::mem::take(&mut self.attempts),
            findings: std::mem::take(&mut self.findings),
            error: self.error.take(),
        }
    }

    /// The flavor of a resource.
    pub fn flavor_of(&self, resource: ResourceId) -> Option<&FlavorChoice> {
        self.flavors.iter().find(|choice| choice.resource == resource)
    }
}

impl Assignment {
    /// The assignment mode of the workload: the worst mode of its pod sets (§8.7).
    pub fn mode(&self) -> AssignmentMode {
        let worst = self.pod_sets.iter().map(PodSetOutcome::mode).min().unwrap_or(AssignmentMode::NoFit);
        if self.deferred && worst == AssignmentMode::Fit { AssignmentMode::DeferredFit } else { worst }
    }

    /// True if some chosen flavor-resource is borrowed.
    pub fn is_borrowing(&self) -> bool {
        self.borrowing > 0
    }

    /// Flavor-resources that need preemption (§9.1).
    pub fn frs_needing_preemption(&self) -> Vec<FrId> {
        let mut frs: Vec<FrId> = self
            .pod_sets
            .iter()
            .flat_map(|set| &set.flavors)
            .filter(|choice| choice.mode == AssignmentMode::Preempt)
            .map(|choice| choice.fr)
            .collect();
        frs.sort_unstable();
        frs.dedup();
        frs
    }

    /// The flavors chosen, to be pinned when the assignment is computed again (§5.6 step 1).
    pub fn pins(&self) -> Pins {
        self.pod_sets
            .iter()
            .map(|set| (set.name.clone(), set.flavors.iter().map(|it| (it.resource, it.flavor)).collect()))
            .collect()
    }

    /// The admission to write (§8.15).
    pub fn admission(&self, world: &World, queue: QueueId) -> Admission {
        let pod_sets = self.pod_sets.iter().map(|set| {
            let name = |resource: ResourceId| world.resource_name(resource).clone();
            PodSetAssignment {
                name: set.name.clone(),
                flavors: set
                    .flavors
                    .iter()
                    .map(|choice| (name(choice.resource), world.flavor_name(choice.flavor).clone()))
                    .collect(),
                usage: set
                    .requests
                    .iter()
                    .filter(|(resource, _)| set.flavor_of(*resource).is_some())
                    .map(|(resource, amount)| (name(*resource), *amount))
                    .collect(),
                count: Some(set.count),
                topology: set.topology.clone(),
                delayed_topology_pending: set.delayed,
            }
        });
        Admission { cluster_queue: world.queue(queue).name.clone(), pod_sets: pod_sets.collect() }
    }

    /// Moves the record of what was tried out, for explanations.
    pub fn take_considered(&mut self, world: &World) -> Considered {
        Considered {
            pod_sets: self.pod_sets.iter_mut().map(PodSetOutcome::take_considered).collect(),
            borrowing_level: self.borrowing,
            victim_searches: self.searches.iter().map(|search| search.named(world)).collect(),
        }
    }

    /// Topology domains that the assignment uses, with the amounts that one pod uses there.
    pub fn places(&self, world: &mut World, shape: &[RequestedPodSet]) -> Places {
        let mut places = Places::default();
        for set in &self.pod_sets {
            let Some(topology) = &set.topology else { continue };
            let Some(flavor) = set
                .flavors
                .iter()
                .map(|choice| choice.flavor)
                .find(|flavor| world.flavor(*flavor).is_some_and(|flavor| flavor.topology.is_some()))
            else {
                continue;
            };
            let Some(requested) = shape.iter().find(|requested| requested.info.name == set.name) else { continue };
            let demand = requested.info.demand(&mut world.topologies).clone();
            world.topologies.add_places(&mut places, flavor, topology, &demand);
        }
        places
    }
}

/// Quota that a workload holds, per flavor-resource.
pub(crate) fn holding_usage(world: &mut World, admission: &Admission, record_sets: &[Arc<PodSetInfo>]) -> FrAmounts {
    let mut usage = FrAmounts::new();
    for set in &admission.pod_sets {
        let held = Held::of(set, record_sets.iter().find(|info| info.name == set.name).map(|info| &**info));
        for (resource, flavor) in &set.flavors {
            let Some(&total) = set.usage.get(resource) else { continue };
            let flavor = world.flavor_id(flavor);
            let resource = world.resources.intern(resource);
            let fr = world.frs.intern(flavor, resource);
            add_amount(&mut usage, fr, held.amount(total));
        }
    }
    usage
}

/// The part of an admitted pod set's quota that it still holds. Pods that no longer need their
/// quota have returned it (§2.5).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    assigned: i32,
    /// Pods that need quota.
    pub count: i32,
}

impl Held {
    pub fn of(set: &PodSetAssignment, info: Option<&PodSetInfo>) -> Self {
        let assigned = set.count.or(info.map(|info| info.spec_count)).unwrap_or(1);
        Held { assigned, count: info.map_or(assigned, |info| info.count.min(assigned)) }
    }

    /// The part of `total`, the amount for all assigned pods, that is still held.
    pub fn amount(self, total: i64) -> i64 {
        if self.count < self.assigned { total / i64::from(self.assigned) * i64::from(self.count) } else { total }
    }
}

/// Result of a simulated preemption for one flavor-resource (§8.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Simulated {
    pub mode: PreemptionMode,
    pub level: u32,
}

/// Decides whether preemption could free an amount of one flavor-resource.
pub(crate) trait Oracle {
    fn simulate(&mut self, world: &mut World, ask: &AssignmentRequest, fr: FrId, amount: i64) -> Simulated;
}
