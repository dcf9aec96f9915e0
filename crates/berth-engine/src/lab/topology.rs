//! Functions on topology for a given assignment: the pod sets that need domains, and the amounts
//! that they use in each domain.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Lab;
use crate::assignment::{Assignment, AssignmentRequest, FlavorChoice, PodSetOutcome};
use crate::decision::AssignmentMode;
use crate::ids::Name;
use crate::model::{ResourceList, TopologyAssignment, WorkloadKey};
use crate::topology::Places;
use crate::topology::request::build;

/// A pod set with the flavors assigned to it.
#[derive(Debug, Clone, PartialEq)]
pub struct GivenPodSet {
    /// Name.
    pub name: Name,
    /// Pods.
    pub count: i32,
    /// Flavor per resource.
    pub flavors: BTreeMap<Name, Name>,
    /// Domains.
    pub topology: Option<TopologyAssignment>,
}

/// The pods of an assignment that need domains.
#[derive(Debug, Clone, PartialEq)]
pub struct ToPlace {
    /// Pod sets that need domains.
    pub pod_sets: Vec<Name>,
    /// Problem of the topology request, for the first pod set that has one.
    pub error: Option<String>,
    /// The assignment mode of the workload with that problem.
    pub mode: AssignmentMode,
}

/// Pods in one domain: flavor, values of the domain, what one pod uses, pods.
pub type PodsInDomain = (Name, Vec<Name>, ResourceList, i64);

impl Lab<'_> {
    /// Usage of each domain of a flavor's topology, by the values with which assignments name the
    /// domain. Pods count as resource `pods`; unused domains are left out.
    pub fn used_domains(&mut self, flavor: &Name) -> BTreeMap<Vec<Name>, ResourceList> {
        let flavor = self.engine.world.flavor_id(flavor);
        self.engine.world.topologies.used_domains(flavor)
    }

    /// Computes which pods of an assignment need domains (§14.2).
    pub fn to_place(&mut self, workload: &WorkloadKey, queue: &str, sets: &[GivenPodSet]) -> Option<ToPlace> {
        let (ask, mut assignment) = self.given(workload, queue, sets)?;
        let request = build(&mut self.engine.world, &ask, &mut assignment, None);
        let groups = request.iter().flat_map(|request| &request.groups);
        let mut members: Vec<usize> = groups.flat_map(|group| [Some(group.workers), group.leader]).flatten().collect();
        members.sort_unstable();
        Some(ToPlace {
            pod_sets: members.into_iter().map(|at| assignment.pod_sets[at].name.clone()).collect(),
            error: assignment.pod_sets.iter().find_map(|set| set.error.as_ref().map(ToString::to_string)),
            mode: assignment.mode(),
        })
    }

    /// Usage of nodes by an assignment, without the usage that an earlier assignment of the same
    /// workload already holds (§5.8).
    pub fn net_places(
        &mut self,
        workload: &WorkloadKey,
        queue: &str,
        sets: &[GivenPodSet],
        held: &[GivenPodSet],
    ) -> Option<Vec<PodsInDomain>> {
        let mut places_of = |sets: &[GivenPodSet]| -> Option<Places> {
            let (ask, assignment) = self.given(workload, queue, sets)?;
            Some(assignment.places(&mut self.engine.world, &ask.pod_sets))
        };
        let net = places_of(sets)?.without(&places_of(held)?);
        let world = &self.engine.world;
        let list = net.list.iter().map(|place| {
            let topologies = &world.topologies;
            let flavor = world.flavor_name(place.flavor).clone();
            (flavor, topologies.row_values(place.row), topologies.requests(&place.demand), place.count)
        });
        Some(list.collect())
    }

    fn given(
        &mut self,
        workload: &WorkloadKey,
        queue: &str,
        sets: &[GivenPodSet],
    ) -> Option<(AssignmentRequest, Assignment)> {
        let queue = self.queue(queue)?;
        let world = &mut self.engine.world;
        let id = world.workloads.id(workload)?;
        let pod_sets = world.record(id).shape.requested().clone();
        let ask = AssignmentRequest {
            queue,
            workload: id,
            pod_sets,
            pinned: None,
            replaced: None,
            second_pass: false,
            resume: false,
        };
        let mut assignment = Assignment::default();
        for set in sets {
            let mut flavors = Vec::new();
            for (resource, flavor) in &set.flavors {
                let (flavor, resource) = (world.flavor_id(flavor), world.resources.intern(resource));
                let fr = world.frs.intern(flavor, resource);
                flavors.push(FlavorChoice { resource, flavor, fr, mode: AssignmentMode::Fit, tried: -1 });
            }
            assignment.pod_sets.push(PodSetOutcome {
                name: set.name.clone(),
                count: set.count,
                requests: Arc::default(),
                flavors,
                findings: Vec::new(),
                error: None,
                attempts: Vec::new(),
                topology: set.topology.clone(),
                delayed: None,
            });
        }
        Some((ask, assignment))
    }
}
