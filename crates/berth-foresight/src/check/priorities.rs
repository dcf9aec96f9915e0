//! Priority classes that do not do what their author expects.

use std::collections::BTreeMap;

use berth_engine::model::{BorrowWithinCohort, ClusterQueue, PreemptionPolicy};

use super::facts::Facts;
use super::{Findings, text};
use crate::objects::{ObjectRef, Source};

/// A class, its value and where it was read.
struct Class<'a> {
    object: ObjectRef,
    value: i32,
    never: bool,
    source: Option<&'a Source>,
}

pub(super) fn check(facts: &Facts<'_>, findings: &mut Findings) {
    let classes = classes(facts);
    let mut values: BTreeMap<i32, usize> = BTreeMap::new();
    for class in &classes {
        *values.entry(class.value).or_default() += 1;
    }
    // Jobs without a class have priority 0, unless a class is the default.
    let has_default = facts.objects.priority_classes.values().any(|it| it.object.global_default == Some(true));
    if !has_default && !classes.is_empty() {
        *values.entry(0).or_default() += 1;
    }
    if facts.queues.is_empty() || values.len() < 2 {
        return;
    }
    let lowest = values.keys().next().copied().unwrap_or_default();
    let preempts = facts.queues.iter().any(regards_priority) || facts.objects.config.fair_sharing.is_some();
    for class in classes.into_iter().filter(|class| class.value > lowest) {
        if !preempts {
            let message = format!(
                "priority {} only orders the queues: no ClusterQueue lets a workload preempt one of lower priority",
                class.value
            );
            let help = "set spec.preemption.withinClusterQueue or reclaimWithinCohort to LowerPriority where this class is used";
            findings.add("class-never-preempts", class.object, class.source, text("value", message, help));
        } else if class.never {
            let message = format!(
                "preemptionPolicy Never applies to pods only: workloads of this class (priority {}) preempt workloads of \
                 lower priority where a ClusterQueue allows it",
                class.value
            );
            let help = "use a priority that is not higher, or a queue without preemption";
            findings.add("class-ignored-policy", class.object, class.source, text("preemptionPolicy", message, help));
        }
    }
}

fn classes<'a>(facts: &Facts<'a>) -> Vec<Class<'a>> {
    let of_workloads = facts.objects.workload_classes.iter().map(|(name, it)| Class {
        object: ObjectRef::cluster("WorkloadPriorityClass", name),
        value: it.object.value,
        never: false,
        source: it.source.as_ref(),
    });
    // Kubernetes' own classes are for the cluster's components.
    let of_pods = facts.objects.priority_classes.iter().filter(|(name, _)| !name.starts_with("system-"));
    let of_pods = of_pods.map(|(name, it)| Class {
        object: ObjectRef::cluster("PriorityClass", name),
        value: it.object.value,
        never: it.object.preemption_policy.as_deref() == Some("Never"),
        source: it.source.as_ref(),
    });
    of_workloads.chain(of_pods).collect()
}

/// True if a workload of the queue may preempt workloads because of its higher priority.
fn regards_priority(queue: &ClusterQueue) -> bool {
    let policies = &queue.preemption;
    policies.within_cluster_queue != PreemptionPolicy::Never
        || policies.reclaim_within_cohort == PreemptionPolicy::LowerPriority
        || policies.borrow_within_cohort != BorrowWithinCohort::Never
}
