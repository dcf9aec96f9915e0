//! LocalQueues for namespaces that a ClusterQueue selects, for `berth populate`.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::kueue::v1beta2::{ClusterQueue, LocalQueue, LocalQueueSpec};
use berth_runtime::ObjectKey;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;

use crate::selector;

/// Label of LocalQueues that a program created.
pub const AUTO_GENERATED: &str = "kueue.x-k8s.io/auto-generated";

/// How LocalQueues are named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Naming {
    /// All have this name, so a namespace gets at most one.
    Static(String),
    /// Each has the name of its ClusterQueue.
    AsClusterQueue,
}

/// The LocalQueues to create, and those that cannot be created.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Population {
    /// LocalQueues that are missing.
    pub missing: Vec<LocalQueue>,
    /// Reasons why other LocalQueues cannot be created.
    pub conflicts: Vec<String>,
}

/// The LocalQueues that are missing: one for each namespace that `selector` and a ClusterQueue
/// select. An existing LocalQueue is never changed.
pub fn population(
    cluster_queues: &[ClusterQueue],
    namespaces: &[Namespace],
    existing: &[LocalQueue],
    naming: &Naming,
    selector: &LabelSelector,
) -> Population {
    let mut known: BTreeMap<ObjectKey, String> =
        existing.iter().map(|queue| (ObjectKey::of(queue), queue.spec.cluster_queue.clone())).collect();
    let existed: BTreeSet<ObjectKey> = known.keys().cloned().collect();
    let mut population = Population::default();
    let living = namespaces.iter().filter(|namespace| namespace.metadata.deletion_timestamp.is_none());
    for namespace in living.filter(|namespace| selector::matches(selector, namespace.labels())) {
        for queue in cluster_queues.iter().filter(|queue| queue.metadata.deletion_timestamp.is_none()) {
            let selects = queue.spec.namespace_selector.as_ref();
            if !selects.is_some_and(|selects| selector::matches(selects, namespace.labels())) {
                continue;
            }
            let name = match naming {
                Naming::Static(name) => name.clone(),
                Naming::AsClusterQueue => queue.name_any(),
            };
            let key = ObjectKey::namespaced(namespace.name_any(), name.clone());
            match known.get(&key) {
                Some(other) if *other == queue.name_any() => {}
                Some(other) => {
                    let which = if existed.contains(&key) { "exists" } else { "is created" };
                    population.conflicts.push(format!(
                        "namespace {} gets no LocalQueue for ClusterQueue {}: LocalQueue {name} {which} for ClusterQueue {other}",
                        namespace.name_any(),
                        queue.name_any()
                    ));
                }
                None => {
                    population.missing.push(local_queue(&key, &queue.name_any()));
                    known.insert(key, queue.name_any());
                }
            }
        }
    }
    population
}

fn local_queue(key: &ObjectKey, cluster_queue: &str) -> LocalQueue {
    let mut queue = LocalQueue::named(&key.name);
    queue.metadata.namespace = Some(key.namespace.clone());
    queue.labels_mut().insert(AUTO_GENERATED.to_owned(), "true".to_owned());
    queue.spec = LocalQueueSpec { cluster_queue: cluster_queue.to_owned(), ..LocalQueueSpec::default() };
    queue
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
        serde_json::from_value(object).unwrap()
    }

    fn planned(naming: &Naming, existing: &[LocalQueue]) -> (Vec<String>, Vec<String>) {
        let queue = |name: &str, selector: Value| {
            read::<ClusterQueue>(json!({"metadata": {"name": name}, "spec": {"namespaceSelector": selector}}))
        };
        let queues = [
            queue("all", json!({})),
            queue("blue", json!({"matchLabels": {"team": "blue"}})),
            queue("none", Value::Null),
        ];
        let namespaces = [
            read::<Namespace>(json!({"metadata": {"name": "a", "labels": {"team": "blue"}}})),
            read::<Namespace>(json!({"metadata": {"name": "b"}})),
            read::<Namespace>(json!({"metadata": {"name": "kube-system", "labels": {"system": "true"}}})),
        ];
        let selector = read(json!({"matchExpressions": [{"key": "system", "operator": "DoesNotExist"}]}));
        let found = population(&queues, &namespaces, existing, naming, &selector);
        let text = |queue: &LocalQueue| format!("{} for {}", ObjectKey::of(queue), queue.spec.cluster_queue);
        (found.missing.iter().map(text).collect(), found.conflicts)
    }

    #[test]
    fn each_selected_namespace_gets_the_queues_that_it_lacks() {
        let (missing, conflicts) = planned(&Naming::AsClusterQueue, &[]);
        assert_eq!(missing, ["a/all for all", "a/blue for blue", "b/all for all"]);
        assert!(conflicts.is_empty());
        let there =
            read::<LocalQueue>(json!({"metadata": {"name": "all", "namespace": "a"}, "spec": {"clusterQueue": "all"}}));
        assert_eq!(planned(&Naming::AsClusterQueue, &[there]).0, ["a/blue for blue", "b/all for all"]);
    }

    #[test]
    fn a_name_that_is_taken_is_a_conflict() {
        let naming = Naming::Static("default".to_owned());
        let (missing, conflicts) = planned(&naming, &[]);
        assert_eq!(missing, ["a/default for all", "b/default for all"]);
        assert_eq!(conflicts.len(), 1, "{conflicts:?}");
        let other = read::<LocalQueue>(
            json!({"metadata": {"name": "default", "namespace": "b"}, "spec": {"clusterQueue": "mine"}}),
        );
        let (missing, conflicts) = planned(&naming, &[other]);
        assert_eq!((missing.len(), conflicts.len()), (1, 2));
        assert!(conflicts[1].ends_with("LocalQueue default exists for ClusterQueue mine"), "{conflicts:?}");
    }
}
