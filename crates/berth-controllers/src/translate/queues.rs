//! Translates queues, cohorts, flavors, checks, topologies and nodes.

use berth_api::kueue::annotations;
use berth_api::kueue::v1beta2 as api;
use berth_engine::Event;
use berth_engine::model::{
    AdmissionCheck, AdmissionCheckRule, AdmissionScope, BorrowWithinCohort, ClusterQueue, Cohort,
    ConcurrentAdmissionPolicy, FlavorFungibility, FlavorQuotas, FungibilityPolicy, FungibilityPreference, LocalQueue,
    Node, NodePod, PreemptionPolicies, PreemptionPolicy, QueueingStrategy, Quota, ResourceFlavor, ResourceGroup,
    StopPolicy, Topology,
};
use k8s_openapi::api::core::v1::{Node as ApiNode, Pod};
use kube::ResourceExt;

use super::amounts::{from_resource_list, quota, request, weight_milli};
use super::placement::{labels, name, selector, taints, tolerations};
use super::requests::of_pod;
use super::workload::time;
use crate::conditions;

/// A ClusterQueue.
pub fn cluster_queue(queue: &api::ClusterQueue) -> ClusterQueue {
    let spec = &queue.spec;
    let fungibility = spec.flavor_fungibility.clone().unwrap_or_default();
    ClusterQueue {
        name: name(&queue.name_any()),
        cohort: (!spec.cohort_name.is_empty()).then(|| name(&spec.cohort_name)),
        namespace_selector: spec.namespace_selector.as_ref().map(selector),
        strategy: match spec.queueing_strategy {
            Some(api::QueueingStrategy::StrictFIFO) => QueueingStrategy::StrictFifo,
            _ => QueueingStrategy::BestEffortFifo,
        },
        resource_groups: resource_groups(&spec.resource_groups),
        fungibility: FlavorFungibility {
            when_can_borrow: match fungibility.when_can_borrow {
                Some(api::FlavorFungibilityPolicy::TryNextFlavor) => FungibilityPolicy::TryNextFlavor,
                _ => FungibilityPolicy::MayStopSearch,
            },
            when_can_preempt: match fungibility.when_can_preempt {
                Some(api::FlavorFungibilityPolicy::MayStopSearch) => FungibilityPolicy::MayStopSearch,
                _ => FungibilityPolicy::TryNextFlavor,
            },
            preference: match fungibility.preference {
                Some(api::FlavorFungibilityPreference::PreemptionOverBorrowing) => {
                    FungibilityPreference::PreemptionOverBorrowing
                }
                _ => FungibilityPreference::BorrowingOverPreemption,
            },
        },
        preemption: preemption(spec.preemption.as_ref()),
        stop_policy: stop_policy(spec.stop_policy.as_ref()),
        fair_weight_milli: weight_milli(spec.fair_sharing.as_ref().and_then(|fair| fair.weight.as_ref())),
        checks: spec
            .admission_checks_strategy
            .iter()
            .flat_map(|strategy| &strategy.admission_checks)
            .map(check_rule)
            .collect(),
        admission_scope: spec.admission_scope.as_ref().map(|scope| match scope.admission_mode {
            api::AdmissionMode::UsageBasedAdmissionFairSharing => AdmissionScope::UsageBased,
            _ => AdmissionScope::NoFairSharing,
        }),
        concurrent_admission: spec.concurrent_admission_policy.as_ref().map(|policy| {
            let last = policy.migration.constraints.as_ref().map(|it| it.last_acceptable_flavor_name.as_str());
            ConcurrentAdmissionPolicy {
                retain_first_admission: policy.migration.mode == api::ConcurrentAdmissionMode::RetainFirstAdmission,
                last_acceptable_flavor: last.filter(|text| !text.is_empty()).map(name),
            }
        }),
        terminating: queue.metadata.deletion_timestamp.is_some(),
    }
}

fn check_rule(rule: &api::AdmissionCheckStrategyRule) -> AdmissionCheckRule {
    AdmissionCheckRule {
        check: name(&rule.name),
        on_flavors: rule.on_flavors.iter().map(|flavor| name(flavor)).collect(),
    }
}

fn stop_policy(policy: Option<&api::StopPolicy>) -> StopPolicy {
    match policy {
        Some(api::StopPolicy::Hold) => StopPolicy::Hold,
        Some(api::StopPolicy::HoldAndDrain) => StopPolicy::HoldAndDrain,
        _ => StopPolicy::None,
    }
}

fn preemption(policies: Option<&api::ClusterQueuePreemption>) -> PreemptionPolicies {
    let Some(policies) = policies else { return PreemptionPolicies::default() };
    PreemptionPolicies {
        within_cluster_queue: match policies.within_cluster_queue {
            Some(api::WithinClusterQueue::LowerPriority) => PreemptionPolicy::LowerPriority,
            Some(api::WithinClusterQueue::LowerOrNewerEqualPriority) => PreemptionPolicy::LowerOrNewerEqualPriority,
            _ => PreemptionPolicy::Never,
        },
        reclaim_within_cohort: match policies.reclaim_within_cohort {
            Some(api::ReclaimWithinCohort::LowerPriority) => PreemptionPolicy::LowerPriority,
            Some(api::ReclaimWithinCohort::Any) => PreemptionPolicy::Any,
            _ => PreemptionPolicy::Never,
        },
        borrow_within_cohort: match &policies.borrow_within_cohort {
            Some(borrow) if borrow.policy == Some(api::BorrowWithinCohortPolicy::LowerPriority) => {
                BorrowWithinCohort::LowerPriority {
                    max_priority_threshold: borrow.max_priority_threshold.map(i64::from),
                }
            }
            _ => BorrowWithinCohort::Never,
        },
    }
}

fn resource_groups(groups: &[api::ResourceGroup]) -> Vec<ResourceGroup> {
    groups
        .iter()
        .map(|group| ResourceGroup {
            resources: group.covered_resources.iter().map(|resource| name(resource)).collect(),
            flavors: group
                .flavors
                .iter()
                .map(|flavor| FlavorQuotas {
                    flavor: name(&flavor.name),
                    quotas: flavor.resources.iter().map(|it| (name(&it.name), resource_quota(it))).collect(),
                })
                .collect(),
        })
        .collect()
}

fn resource_quota(resource: &api::ResourceQuota) -> Quota {
    let amount = |quantity| quota(&resource.name, quantity);
    Quota {
        nominal: amount(&resource.nominal_quota),
        borrowing_limit: resource.borrowing_limit.as_ref().map(amount),
        lending_limit: resource.lending_limit.as_ref().map(amount),
    }
}

/// A Cohort.
pub fn cohort(cohort: &api::Cohort) -> Cohort {
    Cohort {
        name: name(&cohort.name_any()),
        parent: (!cohort.spec.parent_name.is_empty()).then(|| name(&cohort.spec.parent_name)),
        resource_groups: resource_groups(&cohort.spec.resource_groups),
        fair_weight_milli: weight_milli(cohort.spec.fair_sharing.as_ref().and_then(|fair| fair.weight.as_ref())),
    }
}

/// A LocalQueue.
pub fn local_queue(queue: &api::LocalQueue) -> LocalQueue {
    LocalQueue {
        namespace: name(queue.metadata.namespace.as_deref().unwrap_or_default()),
        name: name(&queue.name_any()),
        cluster_queue: name(&queue.spec.cluster_queue),
        stop_policy: stop_policy(queue.spec.stop_policy.as_ref()),
        fair_weight_milli: weight_milli(queue.spec.fair_sharing.as_ref().and_then(|fair| fair.weight.as_ref())),
    }
}

/// The consumed resources in a local queue's status, which an earlier process recorded.
pub fn recorded_usage(queue: &api::LocalQueue) -> Option<Event> {
    let recorded = queue.status.as_ref()?.fair_sharing.as_ref()?.admission_fair_sharing_status.as_ref()?;
    Some(Event::LocalQueueUsageRestored {
        namespace: name(queue.metadata.namespace.as_deref().unwrap_or_default()),
        name: name(&queue.name_any()),
        consumed: from_resource_list(&recorded.consumed_resources),
        at: time(recorded.last_update.0),
    })
}

/// A ResourceFlavor.
pub fn flavor(flavor: &api::ResourceFlavor) -> ResourceFlavor {
    ResourceFlavor {
        name: name(&flavor.name_any()),
        node_labels: labels(Some(&flavor.spec.node_labels)),
        node_taints: taints(&flavor.spec.node_taints),
        tolerations: tolerations(&flavor.spec.tolerations),
        topology: flavor.spec.topology_name.as_deref().filter(|text| !text.is_empty()).map(name),
        cool_down: crate::cool_down::text(flavor).as_deref().map(name),
    }
}

/// An AdmissionCheck.
pub fn admission_check(check: &api::AdmissionCheck) -> AdmissionCheck {
    AdmissionCheck {
        name: name(&check.name_any()),
        active: check.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, conditions::ACTIVE)),
        controller: name(&check.spec.controller_name),
    }
}

/// A Topology.
pub fn topology(topology: &api::Topology) -> Topology {
    Topology {
        name: name(&topology.name_any()),
        levels: topology.spec.levels.iter().map(|level| name(&level.node_label)).collect(),
    }
}

/// A Node.
pub fn node(node: &ApiNode) -> Node {
    let spec = node.spec.as_ref();
    let status = node.status.as_ref();
    let ready = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    Node {
        name: name(&node.name_any()),
        labels: labels(node.metadata.labels.as_ref()),
        taints: taints(spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default()),
        allocatable: status.and_then(|status| status.allocatable.as_ref()).map(from_resource_list).unwrap_or_default(),
        ready: ready.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or_default(),
    }
}

/// A pod that uses resources of a node outside topology-aware scheduling. `None` for other pods:
/// unbound, ended, or placed by topology-aware scheduling (semantics §14.1).
pub fn node_pod(pod: &Pod) -> Option<NodePod> {
    const TAS_ANNOTATIONS: [&str; 5] = [
        annotations::PODSET_REQUIRED_TOPOLOGY,
        annotations::PODSET_PREFERRED_TOPOLOGY,
        annotations::PODSET_UNCONSTRAINED_TOPOLOGY,
        annotations::PODSET_SLICE_REQUIRED_TOPOLOGY,
        annotations::PODSET_SLICE_REQUIRED_TOPOLOGY_CONSTRAINTS,
    ];
    let spec = pod.spec.as_ref()?;
    let node = spec.node_name.as_deref().filter(|node| !node.is_empty())?;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let ended = matches!(phase, Some("Succeeded" | "Failed"));
    let placed = TAS_ANNOTATIONS.iter().any(|key| pod.annotations().contains_key(*key));
    if ended || placed {
        return None;
    }
    let requests = of_pod(spec);
    Some(NodePod {
        namespace: name(pod.metadata.namespace.as_deref().unwrap_or_default()),
        name: name(&pod.name_any()),
        node: name(node),
        requests: requests.iter().map(|(key, quantity)| (name(key), request(key, quantity))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bound_pods_count_until_they_end_unless_topology_placed_them() {
        let pod = |node: &str, phase: &str, annotation: Option<&str>| -> Pod {
            let annotations: std::collections::BTreeMap<&str, &str> =
                annotation.map(|key| (key, "rack")).into_iter().collect();
            serde_json::from_value(json!({
                "metadata": {"name": "p", "namespace": "ns", "annotations": annotations},
                "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]},
                "status": {"phase": phase},
            }))
            .expect("a pod")
        };
        let found = node_pod(&pod("n", "Running", None)).expect("it takes room");
        assert_eq!((&*found.node, found.requests), ("n", [(name("cpu"), 500)].into()));
        assert_eq!(node_pod(&pod("n", "Pending", None)).map(|it| it.node), Some(name("n")));
        for (node, phase) in [("", "Pending"), ("n", "Succeeded"), ("n", "Failed")] {
            assert_eq!(node_pod(&pod(node, phase, None)), None, "{node:?} {phase}");
        }
        for annotation in [
            "podset-required-topology",
            "podset-preferred-topology",
            "podset-unconstrained-topology",
            "podset-slice-required-topology",
            "podset-slice-required-topology-constraints",
        ] {
            let placed = pod("n", "Running", Some(&format!("kueue.x-k8s.io/{annotation}")));
            assert_eq!(node_pod(&placed), None, "{annotation}");
        }
    }
}
