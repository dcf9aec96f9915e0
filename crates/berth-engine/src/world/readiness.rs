//! Whether a cluster queue may admit workloads: condition Active, its reason and its message
//! (§5.3).

use crate::ids::{Name, QueueId};
use crate::model::StopPolicy;
use crate::status::QueueReadiness;

use super::World;

const PROVISIONING_REQUEST: &str = "kueue.x-k8s.io/provisioning-request";
const MULTIKUEUE: &str = "kueue.x-k8s.io/multikueue";

/// The readiness of a queue that does not exist.
pub(crate) fn not_found() -> QueueReadiness {
    QueueReadiness { active: false, reason: "NotFound", message: "ClusterQueue not found".to_owned() }
}

impl World {
    /// Computes the readiness of a queue from its object and the objects it refers to.
    pub fn readiness(&self, id: QueueId) -> QueueReadiness {
        let queue = self.queue(id);
        let Some(spec) = &queue.spec else { return not_found() };
        if spec.terminating {
            return QueueReadiness {
                active: false,
                reason: "Terminating",
                message: "Can't admit new workloads; clusterQueue is terminating".to_owned(),
            };
        }
        let mut problems: Vec<(&'static str, String)> = Vec::new();
        if spec.stop_policy != StopPolicy::None {
            problems.push(("Stopped", "is stopped".to_owned()));
        }
        let flavors = queue.config.flavors();
        let missing: Vec<&Name> =
            flavors.iter().filter(|id| self.flavor(**id).is_none()).map(|id| self.flavor_name(*id)).collect();
        if !missing.is_empty() {
            problems.push(("FlavorNotFound", format!("references missing ResourceFlavor(s): {}", list(&missing))));
        }
        let mut names: Vec<&Name> = spec.checks.iter().map(|rule| &rule.check).collect();
        names.sort();
        let missing: Vec<&Name> = names.iter().filter(|name| !self.checks.contains_key(**name)).copied().collect();
        if !missing.is_empty() {
            problems
                .push(("AdmissionCheckNotFound", format!("references missing AdmissionCheck(s): {}", list(&missing))));
        }
        let inactive: Vec<&Name> =
            names.iter().filter(|name| self.checks.get(**name).is_some_and(|check| !check.active)).copied().collect();
        if !inactive.is_empty() {
            problems.push((
                "AdmissionCheckInactive",
                format!("references inactive AdmissionCheck(s): {}", list(&inactive)),
            ));
        }
        let by_controller = |controller: &str| -> Vec<&Name> {
            let run_by = |name: &&Name| self.checks.get(*name).is_some_and(|check| &*check.controller == controller);
            names.iter().copied().filter(run_by).collect()
        };
        let multikueue = by_controller(MULTIKUEUE);
        if multikueue.len() > 1 {
            problems.push((
                "MultipleMultiKueueAdmissionChecks",
                format!(
                    "Cannot use multiple MultiKueue AdmissionChecks on the same ClusterQueue, found: {}",
                    list(&multikueue)
                ),
            ));
        }
        if multikueue
            .iter()
            .any(|name| spec.checks.iter().any(|rule| rule.check == **name && !rule.on_flavors.is_empty()))
        {
            problems.push((
                "MultiKueueAdmissionCheckAppliedPerFlavor",
                format!("Cannot specify MultiKueue AdmissionCheck per flavor, found: {}", list(&multikueue)),
            ));
        }
        if !multikueue.is_empty() && !by_controller(PROVISIONING_REQUEST).is_empty() {
            problems.push((
                "MultiKueueWithProvisioningRequest",
                format!(
                    "Cannot use MultiKueue AdmissionCheck with ProvisioningRequest AdmissionCheck, found: {}",
                    list(&names)
                ),
            ));
        }
        if self.config.gates.topology_aware_scheduling && multikueue.is_empty() {
            for flavor in flavors.iter().filter_map(|id| self.flavor(*id)) {
                if let Some(topology) = flavor.topology.as_ref().filter(|name| !self.topologies.has_topology(name)) {
                    problems.push((
                        "TopologyNotFound",
                        format!("there is no Topology {topology:?} for TAS flavor {:?}", flavor.name),
                    ));
                }
            }
        }
        match problems.first() {
            None => QueueReadiness::default(),
            Some((reason, _)) => {
                let texts: Vec<&str> = problems.iter().map(|(_, text)| text.as_str()).collect();
                QueueReadiness {
                    active: false,
                    reason,
                    message: format!("Can't admit new workloads: {}.", texts.join(", ")),
                }
            }
        }
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

    /// True if the nodes of this flavor are known only once a ProvisioningRequest was answered.
    pub fn provisions(&self, id: QueueId, flavor: &Name) -> bool {
        self.has_check_of(id, PROVISIONING_REQUEST, Some(flavor))
    }
}

fn list(names: &[&Name]) -> String {
    let mut names: Vec<&str> = names.iter().map(|name| &***name).collect();
    names.sort_unstable();
    names.join(",")
}
