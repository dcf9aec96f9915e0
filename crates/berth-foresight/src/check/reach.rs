//! Queues that no job can reach.

use std::collections::BTreeSet;

use berth_engine::Name;
use berth_engine::model::{ClusterQueue, LabelSelector};

use super::facts::Facts;
use super::{Findings, text};
use crate::objects::ObjectRef;

/// Label that every namespace has.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

pub(super) fn check(facts: &Facts<'_>, findings: &mut Findings) {
    cluster_queues(facts, findings);
    local_queues(facts, findings);
}

fn cluster_queues(facts: &Facts<'_>, findings: &mut Findings) {
    let targets: BTreeSet<&str> =
        facts.objects.local_queues.values().map(|it| it.object.spec.cluster_queue.as_str()).collect();
    for queue in &facts.queues {
        let object = ObjectRef::cluster("ClusterQueue", &queue.name);
        let source = facts.queue_source(&queue.name);
        let selects_none = if queue.namespace_selector.is_none() {
            Some(("is not set, which selects no namespace", "set it to {} to select all namespaces"))
        } else if selects_none(facts, queue) {
            Some(("matches no namespace of the set", "correct the selector, or label the namespaces"))
        } else {
            None
        };
        if let Some((problem, help)) = selects_none {
            let field = "spec.namespaceSelector";
            let finding = text(field, format!("{field} {problem}"), help);
            findings.add("queue-selects-no-namespace", object.clone(), source, finding);
        }
        // Without any LocalQueue, the set has only the administrator's part.
        if !targets.contains(&*queue.name) && !targets.is_empty() && !lends(queue) {
            let message = "no LocalQueue leads to this queue, so no job can use it";
            let help = format!("create a LocalQueue with spec.clusterQueue: {}", queue.name);
            findings.add("queue-unreachable", object, source, text("", message, help));
        }
    }
    if targets.is_empty() && !facts.queues.is_empty() {
        findings.unchecked.push("whether jobs reach the ClusterQueues: the set has no LocalQueue".to_owned());
    }
}

/// True for a queue that lends its quota to a cohort: it has a purpose without jobs of its own.
fn lends(queue: &ClusterQueue) -> bool {
    let flavors = queue.resource_groups.iter().flat_map(|group| &group.flavors);
    let mut quotas = flavors.flat_map(|flavor| &flavor.quotas);
    queue.cohort.is_some() && quotas.any(|(_, quota)| !super::facts::lendable(quota).is_zero())
}

/// True if every namespace is known and none matches.
fn selects_none(facts: &Facts<'_>, queue: &ClusterQueue) -> bool {
    let Some(selector) = &queue.namespace_selector else { return true };
    let known = facts.known_namespaces();
    if known.is_empty() {
        return false;
    }
    let all = facts.objects.namespace_labels();
    !all.iter().any(|(name, labels)| selector.matches(labels) || !is_decided(selector, known.contains(name.as_str())))
}

/// True if the labels that the set knows of a namespace suffice to evaluate the selector.
fn is_decided(selector: &LabelSelector, is_known: bool) -> bool {
    is_known || selector.requirements.iter().all(|requirement| &*requirement.key == NAME_LABEL)
}

fn local_queues(facts: &Facts<'_>, findings: &mut Findings) {
    let labels = facts.objects.namespace_labels();
    let known = facts.known_namespaces();
    for ((namespace, name), queue) in &facts.objects.local_queues {
        let object = ObjectRef::namespaced("LocalQueue", namespace, name);
        let target = Name::from(queue.object.spec.cluster_queue.as_str());
        let Some(cluster_queue) = facts.queues.iter().find(|it| it.name == target) else {
            let message = format!("ClusterQueue {target} does not exist; the jobs of the queue wait until it does");
            let help = "create the ClusterQueue, or correct spec.clusterQueue";
            findings.add("queue-missing", object, queue.source.as_ref(), text("spec.clusterQueue", message, help));
            continue;
        };
        let Some(selector) = &cluster_queue.namespace_selector else { continue };
        let Some(of_namespace) = labels.get(namespace) else { continue };
        if selector.matches(of_namespace) || !is_decided(selector, known.contains(namespace.as_str())) {
            continue;
        }
        let message = format!(
            "spec.namespaceSelector of ClusterQueue {target} does not match namespace {namespace}; the jobs of the queue \
             wait forever"
        );
        let help = "label the namespace, widen the selector, or use another ClusterQueue";
        let found = text("spec.clusterQueue", message, help);
        findings.add("queue-namespace-excluded", object, queue.source.as_ref(), found);
    }
}
