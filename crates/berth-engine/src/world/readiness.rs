//! Whether a cluster queue may admit workloads, and all problems that keep it from doing so (§5.3).

use crate::ids::{Name, QueueId};
use crate::model::{AdmissionCheck, StopPolicy};
use crate::status::{QueueProblem, QueueReadiness};

use super::World;

const PROVISIONING_REQUEST: &str = "kueue.x-k8s.io/provisioning-request";
const MULTIKUEUE: &str = "kueue.x-k8s.io/multikueue";

/// The readiness of a queue that does not exist.
pub(crate) fn not_found() -> QueueReadiness {
    QueueReadiness { problems: vec![QueueProblem::NotFound] }
}

impl World {
    /// Computes the readiness of a queue from its object and the objects it refers to.
    pub fn readiness(&self, id: QueueId) -> QueueReadiness {
        let queue = self.queue(id);
        let Some(spec) = &queue.spec else { return not_found() };
        if spec.terminating {
            return QueueReadiness { problems: vec![QueueProblem::Terminating] };
        }
        let mut problems = Vec::new();
        let mut add = |names: Vec<Name>, problem: fn(Vec<Name>) -> QueueProblem| {
            if !names.is_empty() {
                problems.push(problem(names));
            }
        };
        let flavors = queue.config.flavors();
        let missing = flavors.iter().filter(|id| self.flavor(**id).is_none());
        let mut checks: Vec<&Name> = spec.checks.iter().map(|rule| &rule.check).collect();
        checks.sort();
        let checks_where = |wanted: &dyn Fn(Option<&AdmissionCheck>) -> bool| -> Vec<Name> {
            checks.iter().filter(|name| wanted(self.checks.get(**name))).map(|name| (*name).clone()).collect()
        };
        let by_controller =
            |controller: &str| checks_where(&|check| check.is_some_and(|check| &*check.controller == controller));
        let multikueue = by_controller(MULTIKUEUE);
        let per_flavor =
            |name: &Name| spec.checks.iter().any(|rule| rule.check == *name && !rule.on_flavors.is_empty());
        add(missing.map(|id| self.flavor_name(*id).clone()).collect(), QueueProblem::FlavorsNotFound);
        add(checks_where(&|check| check.is_none()), QueueProblem::ChecksNotFound);
        add(checks_where(&|check| check.is_some_and(|check| !check.active)), QueueProblem::ChecksInactive);
        if multikueue.len() > 1 {
            add(multikueue.clone(), QueueProblem::SeveralMultiKueueChecks);
        }
        if multikueue.iter().any(per_flavor) {
            add(multikueue.clone(), QueueProblem::MultiKueueCheckPerFlavor);
        }
        if !multikueue.is_empty() && !by_controller(PROVISIONING_REQUEST).is_empty() {
            add(checks.iter().copied().cloned().collect(), QueueProblem::MultiKueueWithProvisioning);
        }
        if spec.stop_policy != StopPolicy::None {
            problems.insert(0, QueueProblem::Stopped);
        }
        if self.config.gates.topology_aware_scheduling && multikueue.is_empty() {
            for flavor in flavors.iter().filter_map(|id| self.flavor(*id)) {
                if let Some(topology) = flavor.topology.as_ref().filter(|name| !self.topologies.has_topology(name)) {
                    let (topology, flavor) = (topology.clone(), flavor.name.clone());
                    problems.push(QueueProblem::TopologyNotFound { topology, flavor });
                }
            }
        }
        QueueReadiness { problems }
    }

    /// True if cycles consider a queue: it is ready, and its cohorts form no cycle.
    pub fn is_schedulable(&self, id: QueueId) -> bool {
        let queue = self.queue(id);
        queue.is_active() && !self.tree.node(queue.node).cyclic
    }

    /// True if one of the checks in a queue's rules belongs to the controller.
    pub fn has_check_of(&self, id: QueueId, controller: &str, flavor: Option<&Name>) -> bool {
        let Some(spec) = &self.queue(id).spec else { return false };
        spec.checks.iter().any(|rule| {
            self.checks.get(&rule.check).is_some_and(|check| &*check.controller == controller)
                && flavor.is_none_or(|flavor| rule.on_flavors.is_empty() || rule.on_flavors.contains(flavor))
        })
    }

    /// True if the queue's workloads are dispatched to other clusters.
    pub fn uses_multikueue(&self, id: QueueId) -> bool {
        self.has_check_of(id, MULTIKUEUE, None)
    }

    /// True if the nodes of this flavor are known only after a ProvisioningRequest was provisioned.
    pub fn provisions(&self, id: QueueId, flavor: &Name) -> bool {
        self.has_check_of(id, PROVISIONING_REQUEST, Some(flavor))
    }
}
