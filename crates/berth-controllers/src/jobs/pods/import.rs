//! Import of running pods: the Workload with which a pod holds quota as if it had been queued, for
//! `berth import`.
//!
//! Pods that run before queueing is introduced have no Workload, so quota would be given twice. An
//! imported pod keeps running. Its Workload is admitted whether quota is free or not, because the
//! pod uses the machine in any case.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::kueue::v1beta2::{Admission, ClusterQueue, PodSetAssignment, Workload};
use berth_api::kueue::{constants, labels};
use berth_engine::model::ResourceList;
use berth_runtime::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LimitRange, Pod, PodSchedulingGate};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};

use super::reconcile::reconcile;
use super::{Unit, group_name};
use crate::conditions;
use crate::configuration::Config;
use crate::jobs::reconcile::Context;
use crate::plan::Step;
use crate::stores::Stores;
use crate::translate::{self, amounts};
use crate::workload::status;

/// Reason of the conditions of imported workloads.
const IMPORTED: &str = "Imported";
/// The resource of which each pod uses one.
const PODS: &str = "pods";

/// Which pods go to which LocalQueue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// The pods.
    #[serde(default, rename = "match")]
    pub of: Match,
    /// Their LocalQueue.
    #[serde(default)]
    pub to_local_queue: String,
    /// They are not imported.
    #[serde(default)]
    pub skip: bool,
}

/// Properties of pods; all must match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Match {
    /// Name of the priority class; empty: any.
    pub priority_class_name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

impl Match {
    fn matches(&self, pod: &Pod) -> bool {
        let class = pod.spec.as_ref().and_then(|spec| spec.priority_class_name.as_deref()).unwrap_or_default();
        let labels = pod.labels();
        (self.priority_class_name.is_empty() || self.priority_class_name == class)
            && self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

/// What happens to a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    /// A rule leaves it out.
    Skipped,
    /// Its Workload holds quota already.
    Done,
    /// It is imported.
    Imported(Box<Imported>),
    /// It cannot be imported.
    Refused(String),
}

/// The objects of an imported pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The Workload, without status.
    pub workload: Workload,
    /// Its admission.
    pub admission: Admission,
    /// The pod with its new labels.
    pub pod: Pod,
}

/// What an import depends on, besides the pod.
pub struct View<'a> {
    /// Caches with queues, flavors, classes and Workloads.
    pub stores: &'a Stores,
    /// Runtime classes by name.
    pub runtime_classes: &'a BTreeMap<String, RuntimeClass>,
    /// Configuration.
    pub config: &'a Config,
    /// Rules; the first that matches counts.
    pub rules: &'a [Rule],
    /// Labels added to pods and Workloads.
    pub add_labels: &'a BTreeMap<String, String>,
    /// Current time.
    pub now: Timestamp,
}

/// True if the pod has not ended and is not being deleted.
pub fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed")) && pod.metadata.deletion_timestamp.is_none()
}

/// What happens to a running pod.
pub fn import(pod: &Pod, view: &View<'_>) -> Fate {
    let Some(rule) = view.rules.iter().find(|rule| rule.of.matches(pod)) else {
        return Fate::Refused("no rule of the mapping matches".to_owned());
    };
    if rule.skip {
        return Fate::Skipped;
    }
    match try_import(pod, &rule.to_local_queue, view) {
        Ok(fate) => fate,
        Err(problem) => Fate::Refused(problem),
    }
}

fn try_import(pod: &Pod, queue: &str, view: &View<'_>) -> Result<Fate, String> {
    let namespace = pod.namespace().unwrap_or_default();
    let local = view.stores.local_queue(&namespace, queue);
    let local = local.ok_or_else(|| format!("LocalQueue {queue} does not exist in namespace {namespace}"))?;
    let name = &local.spec.cluster_queue;
    let cluster_queue = view.stores.cluster_queue(name).ok_or_else(|| format!("ClusterQueue {name} does not exist"))?;
    if let Some(other) = pod.labels().get(labels::QUEUE_NAME).filter(|other| *other != queue) {
        return Err(format!("the pod's label names LocalQueue {other}, but the mapping names {queue}"));
    }
    if let Some(group) = group_name(pod, &view.config.gates()) {
        return Err(format!("the pod is part of pod group {group}; pods of groups cannot be imported"));
    }
    let mut workload = construct(pod, queue, view)?;
    workload.labels_mut().extend(view.add_labels.clone());
    let known = view.stores.workloads.get(&ObjectKey::of(&workload));
    if known.as_ref().is_some_and(|known| status::has_quota_reservation(known)) {
        return Ok(Fate::Done);
    }
    let admission = admission(&workload, &cluster_queue, view)?;
    Ok(Fate::Imported(Box::new(Imported { workload, admission, pod: labelled(pod, queue, view) })))
}

/// The stored Workload of an imported pod, admitted. `None` if it holds quota already.
pub fn admitted(stored: &Workload, admission: &Admission, now: Timestamp) -> Option<Workload> {
    if status::has_quota_reservation(stored) {
        return None;
    }
    let mut admitted = stored.clone();
    let message = format!("Imported into ClusterQueue {}", admission.cluster_queue);
    status::status_mut(&mut admitted).admission = Some(admission.clone());
    for type_ in [conditions::QUOTA_RESERVED, conditions::ADMITTED] {
        status::set(&mut admitted, type_, true, IMPORTED, &message, now);
    }
    Some(admitted)
}

fn labelled(pod: &Pod, queue: &str, view: &View<'_>) -> Pod {
    let mut pod = pod.clone();
    let all = pod.labels_mut();
    all.extend(view.add_labels.clone());
    all.insert(labels::QUEUE_NAME.to_owned(), queue.to_owned());
    all.insert(labels::MANAGED.to_owned(), "true".to_owned());
    pod
}

/// The Workload that the controllers would have created for the pod while it waited.
fn construct(pod: &Pod, queue: &str, view: &View<'_>) -> Result<Workload, String> {
    let mut waiting = labelled(pod, queue, view);
    waiting.status = None;
    let spec = waiting.spec.get_or_insert_default();
    spec.node_name = None;
    spec.scheduling_gates = Some(vec![PodSchedulingGate { name: constants::ADMISSION_GATE.to_owned() }]);
    let unit = Unit::Pod { name: waiting.name_any() };
    // The pod's Workload may exist, so the plan is made without Workloads.
    let mut stores = Stores::by_hand();
    stores.priority_classes = view.stores.priority_classes.clone();
    stores.workload_priority_classes = view.stores.workload_priority_classes.clone();
    stores.namespaces = view.stores.namespaces.clone();
    stores.local_queues = view.stores.local_queues.clone();
    let gates = view.config.gates();
    let context = Context { stores: &stores, config: view.config, gates: &gates, now: view.now };
    let plan = reconcile(context, &waiting.namespace().unwrap_or_default(), &unit, &[Arc::new(waiting)]);
    let error = plan.error.as_ref().map(ToString::to_string);
    let created = plan.steps.into_iter().find_map(|step| match step {
        Step::CreateWorkload(workload) => Some(*workload),
        _ => None,
    });
    created.ok_or_else(|| error.unwrap_or_else(|| "the pod gets no Workload".to_owned()))
}

/// The admission on the first flavor of each resource.
fn admission(workload: &Workload, queue: &ClusterQueue, view: &View<'_>) -> Result<Admission, String> {
    let name = queue.name_any();
    let mut flavors: BTreeMap<&str, &str> = BTreeMap::new();
    for group in &queue.spec.resource_groups {
        for flavor in &group.flavors {
            if view.stores.flavor(&flavor.name).is_none() {
                return Err(format!("ResourceFlavor {} of ClusterQueue {name} does not exist", flavor.name));
            }
        }
        let Some(first) = group.flavors.first() else { continue };
        for resource in &group.covered_resources {
            flavors.entry(resource).or_insert(&first.name);
        }
    }
    if flavors.is_empty() {
        return Err(format!("ClusterQueue {name} has no quota"));
    }
    let namespace = workload.namespace().unwrap_or_default();
    let limit_ranges: Vec<LimitRange> =
        view.stores.limit_ranges.list_namespace(&namespace).iter().map(|range| (**range).clone()).collect();
    let context = translate::Context {
        resources: &view.config.resources,
        limit_ranges: &limit_ranges,
        runtime_classes: view.runtime_classes,
    };
    let translated = translate::workload(workload, &context);
    let set = translated.pod_sets.first().ok_or("the Workload has no pod set")?;
    let mut usage: ResourceList =
        set.requests.iter().filter(|(_, amount)| **amount != 0).map(|(r, a)| (r.clone(), *a)).collect();
    if flavors.contains_key(PODS) {
        usage.insert(PODS.into(), 1);
    }
    let mut assigned = BTreeMap::new();
    for resource in usage.keys() {
        let flavor = flavors.get(&**resource);
        let flavor = flavor.ok_or_else(|| format!("ClusterQueue {name} has no quota of {resource}"))?;
        assigned.insert(resource.to_string(), (*flavor).to_owned());
    }
    let assignment = PodSetAssignment {
        name: set.name.to_string(),
        flavors: assigned,
        resource_usage: amounts::to_resource_list(&usage),
        count: Some(1),
        ..PodSetAssignment::default()
    };
    Ok(Admission { cluster_queue: name, pod_set_assignments: vec![assignment] })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::jobs::takeover;

    const KUEUE: &str = "kueue.x-k8s.io/v1beta2";

    fn pod(labels: Value, cpu: &str) -> Pod {
        let object = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": labels},
            "spec": {"nodeName": "n", "containers": [
                {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu, "example.com/part": "0"}}}]},
            "status": {"phase": "Running"}});
        serde_json::from_value(object).unwrap()
    }

    fn fate(pod: &Pod, more: &[Value]) -> Fate {
        let mut objects = vec![
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}}),
            json!({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "q", "namespace": "ns"},
                "spec": {"clusterQueue": "cq"}}),
            json!({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "f"}, "spec": {}}),
            json!({"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": {
                "resourceGroups": [{"coveredResources": ["cpu", "pods"], "flavors": [{"name": "f", "resources": [
                    {"name": "cpu", "nominalQuota": "1"}, {"name": "pods", "nominalQuota": "1"}]}]}]}}),
        ];
        objects.extend(more.iter().cloned());
        let config = Config::default();
        let (stores, _) = takeover::stores(&objects, &config);
        let rules: Vec<Rule> = serde_json::from_value(json!([
            {"match": {"labels": {"src": "left-out"}}, "skip": true},
            {"match": {"labels": {"src": "a"}}, "toLocalQueue": "q"},
            {"match": {"labels": {"src": "b"}}, "toLocalQueue": "missing"},
        ]))
        .unwrap();
        let (add_labels, runtime_classes) = ([("team".to_owned(), "x".to_owned())].into(), BTreeMap::new());
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let view = View {
            stores: &stores,
            runtime_classes: &runtime_classes,
            config: &config,
            rules: &rules,
            add_labels: &add_labels,
            now,
        };
        import(pod, &view)
    }

    fn stored(imported: &Imported) -> Workload {
        admitted(&imported.workload, &imported.admission, Timestamp::UNIX_EPOCH).expect("it has no quota yet")
    }

    #[test]
    fn a_running_pod_gets_an_admitted_workload_and_labels() {
        let Fate::Imported(imported) = fate(&pod(json!({"src": "a"}), "2"), &[]) else { panic!("it is imported") };
        let stored = stored(&imported);
        assert!(status::is_admitted(&stored) && status::has_quota_reservation(&stored));
        assert_eq!(admitted(&stored, &imported.admission, Timestamp::UNIX_EPOCH), None);
        let admission = imported.admission;
        let assignment = &admission.pod_set_assignments[0];
        assert_eq!((admission.cluster_queue.as_str(), assignment.name.as_str()), ("cq", "main"));
        assert_eq!(json!(assignment.resource_usage), json!({"cpu": "2", "pods": "1"}));
        assert_eq!(json!(assignment.flavors), json!({"cpu": "f", "pods": "f"}));
        let owner = &imported.workload.owner_references()[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str(), owner.controller), ("Pod", "u", Some(true)));
        assert_eq!(imported.workload.spec.queue_name, "q");
        assert_eq!(imported.workload.labels().get("team").map(String::as_str), Some("x"));
        let labels = json!(imported.pod.labels());
        assert_eq!(labels["kueue.x-k8s.io/queue-name"], "q");
        assert_eq!(labels["kueue.x-k8s.io/managed"], "true");
        assert_eq!(imported.pod.spec.unwrap().node_name.as_deref(), Some("n"), "the pod keeps running");
    }

    #[test]
    fn a_pod_whose_workload_holds_quota_is_done_and_one_with_a_rule_to_skip_is_left_out() {
        let pod_a = pod(json!({"src": "a"}), "2");
        let Fate::Imported(imported) = fate(&pod_a, &[]) else { panic!("it is imported") };
        let mut stored = json!(stored(&imported));
        stored["apiVersion"] = json!(KUEUE);
        stored["kind"] = json!("Workload");
        assert_eq!(fate(&pod_a, &[stored]), Fate::Done);
        assert_eq!(fate(&pod(json!({"src": "left-out"}), "2"), &[]), Fate::Skipped);
    }

    #[test]
    fn a_pod_that_cannot_be_imported_is_refused_with_the_reason() {
        let refused = |labels: Value| match fate(&pod(labels, "2"), &[]) {
            Fate::Refused(problem) => problem,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(json!({})), "no rule of the mapping matches");
        assert_eq!(refused(json!({"src": "b"})), "LocalQueue missing does not exist in namespace ns");
        let elsewhere = json!({"src": "a", "kueue.x-k8s.io/queue-name": "other"});
        assert_eq!(refused(elsewhere), "the pod's label names LocalQueue other, but the mapping names q");
        let mut gpu = pod(json!({"src": "a"}), "2");
        let requests = json!({"requests": {"nvidia.com/gpu": "1"}});
        gpu.spec.as_mut().unwrap().containers[0].resources = serde_json::from_value(requests).unwrap();
        assert_eq!(fate(&gpu, &[]), Fate::Refused("ClusterQueue cq has no quota of nvidia.com/gpu".to_owned()));
    }
}
