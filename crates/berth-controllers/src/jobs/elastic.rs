//! Scheduling gates on the pods of elastic jobs, removed as their Workload gets quota (semantics
//! §13.3).
//!
//! A job that grows creates its new pods at once, while the slice for the new size may have to wait
//! for quota. So every pod of an elastic job is created with a gate, and gates are removed up to
//! the pod count of the newest slice that holds quota.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::kueue::v1beta2::Workload;
use berth_api::kueue::{annotations, constants, labels};
use berth_runtime::{Action, Cache, Clock, Error, Index, Manager, ObjectKey, Reconciler};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::{Job, is_elastic, slices};
use crate::execute::{Part, patch};
use crate::gates::Gates;
use crate::metrics::Metrics;
use crate::podset;
use crate::stores::Stores;
use crate::workload::status;

/// Adds the scheduling gate to the pod templates of an elastic job.
pub fn add_gates<J: Job>(object: &mut Value, job: &J, gates: &Gates) {
    if !J::CAN_BE_ELASTIC || !is_elastic(job, gates) {
        return;
    }
    for pointer in job.templates() {
        let Some(template) = object.pointer_mut(&pointer) else { continue };
        let held = &mut template["spec"]["schedulingGates"];
        match held.as_array_mut() {
            Some(held) if held.iter().any(|gate| gate["name"] == constants::ELASTIC_JOB_GATE) => {}
            Some(held) => held.push(json!({"name": constants::ELASTIC_JOB_GATE})),
            None => *held = json!([{"name": constants::ELASTIC_JOB_GATE}]),
        }
    }
}

/// The pods whose gate can be removed now, oldest first. `owned`: the slices of their job.
pub fn releases(owned: &[Arc<Workload>], pods: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    let Some(running) = slices::latest_active(owned).filter(|workload| status::is_admitted(workload)) else {
        return Vec::new();
    };
    let assignments = running.status.iter().filter_map(|status| status.admission.as_ref());
    let mut released = Vec::new();
    for assignment in assignments.flat_map(|admission| &admission.pod_set_assignments) {
        let recorded = running.spec.pod_sets.iter().find(|set| set.name == assignment.name).map(|set| set.count);
        let granted = usize::try_from(assignment.count.or(recorded).unwrap_or(0)).unwrap_or(0);
        let of_set = |pod: &&Arc<Pod>| pod.labels().get(labels::POD_SET) == Some(&assignment.name);
        let alive: Vec<&Arc<Pod>> = pods.iter().filter(of_set).filter(|pod| !has_ended(pod)).collect();
        let running = alive.iter().filter(|pod| !is_held(pod)).count();
        let mut held: Vec<Arc<Pod>> = alive.into_iter().filter(|pod| is_held(pod)).cloned().collect();
        held.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        held.sort_by_key(|pod| (pod.metadata.creation_timestamp.as_ref().map(|time| time.0), pod.name_any()));
        held.truncate(granted.saturating_sub(running));
        released.extend(held);
    }
    released
}

fn is_held(pod: &Pod) -> bool {
    podset::is_gated(pod, constants::ELASTIC_JOB_GATE)
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Key shared by all slices of one job, and by its pods: the name of the first slice.
fn chain(annotations: &std::collections::BTreeMap<String, String>, namespace: Option<String>) -> Option<ObjectKey> {
    let first = annotations.get(annotations::WORKLOAD_SLICE_NAME)?;
    Some(ObjectKey::namespaced(namespace.unwrap_or_default(), first.clone()))
}

/// Adds the controller to the manager.
pub fn install(manager: &mut Manager, stores: &Stores, metrics: &Metrics) {
    let pods: Cache<Pod> = manager.cache();
    let of_workload = |workload: &Workload| chain(workload.annotations(), workload.namespace());
    let of_pod = |pod: &Pod| chain(pod.annotations(), pod.namespace());
    let names = |key: Option<ObjectKey>| key.map(|key| key.to_string()).into_iter().collect::<Vec<String>>();
    let reconciler = Release {
        client: manager.client(),
        slices: stores.workloads.index(move |workload: &Workload| names(of_workload(workload))),
        by_chain: pods.index(move |pod: &Pod| names(of_pod(pod))),
        pods: pods.clone(),
        metrics: metrics.clone(),
        clock: manager.clock(),
    };
    manager
        .controller("elastic-job-pods")
        .concurrency(16)
        .watch(&stores.workloads, move |delta| {
            let seen = [delta.old.as_ref(), delta.new.as_ref()].into_iter().flatten();
            seen.filter_map(|workload| of_workload(workload)).collect::<BTreeSet<_>>()
        })
        .watch(&pods, move |delta| {
            // A new gated pod, or one that ended and so frees a place.
            let matters = |pod: &&Arc<Pod>| is_held(pod) || has_ended(pod) || delta.new.is_none();
            delta.new.as_ref().or(delta.old.as_ref()).filter(matters).and_then(|pod| of_pod(pod))
        })
        .run(reconciler);
}

struct Release {
    client: Client,
    slices: Index<Workload>,
    pods: Cache<Pod>,
    by_chain: Index<Pod>,
    metrics: Metrics,
    clock: Clock,
}

impl Reconciler for Release {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let chain = key.to_string();
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let slices = self.slices.get(&chain);
        for pod in releases(&slices, &self.by_chain.get(&chain)) {
            let mut after = (*pod).clone();
            podset::remove_gate(&mut after, constants::ELASTIC_JOB_GATE);
            // The write applies to this resourceVersion only; a concurrent change to the pod
            // triggers another reconcile.
            match patch(&api, pod.as_ref(), &after, Part::Main, pod.resource_version().as_deref()).await {
                Ok(Some(answer)) => {
                    self.pods.observe(answer);
                    let mut admitted =
                        slices.iter().filter(|slice| status::is_admitted(slice) && !status::is_finished(slice));
                    if let Some(slice) = admitted.next_back() {
                        self.metrics.gate_removed(constants::ELASTIC_JOB_GATE, slice, self.clock.now());
                    }
                }
                Ok(None) => {}
                Err(error) if berth_runtime::is_not_found(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Action::Wait)
    }
}

#[cfg(test)]
mod tests {
    use berth_api::kueue::conditions;

    use super::*;

    fn read<K: serde::de::DeserializeOwned>(value: Value) -> Arc<K> {
        Arc::new(serde_json::from_value(value).expect("an object"))
    }

    fn slice(name: &str, count: i32, replaces: Option<&str>) -> Arc<Workload> {
        let mut annotations = json!({annotations::WORKLOAD_SLICE_NAME: "first"});
        if let Some(replaced) = replaces {
            annotations[annotations::WORKLOAD_SLICE_REPLACEMENT_FOR] = json!(format!("ns/{replaced}"));
        }
        let mut value = json!({"metadata": {"namespace": "ns", "name": name, "annotations": annotations},
            "spec": {"queueName": "q", "podSets": [
                {"name": "main", "count": count, "template": {"spec": {"containers": []}}}]}});
        if replaces.is_none() {
            let at = "2026-01-01T00:00:00Z";
            let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": "r", "message": "", "lastTransitionTime": at});
            value["status"] = json!({"conditions": [condition(conditions::QUOTA_RESERVED), condition("Admitted")],
                "admission": {"clusterQueue": "cq", "podSetAssignments": [{"name": "main", "count": count}]}});
        }
        read(value)
    }

    fn pod(index: i32, held: bool, phase: &str) -> Arc<Pod> {
        let gates = if held { json!([{"name": constants::ELASTIC_JOB_GATE}]) } else { json!([]) };
        read(json!({"metadata": {"name": format!("pod-{index}"), "labels": {labels::POD_SET: "main"}},
            "spec": {"containers": [], "schedulingGates": gates}, "status": {"phase": phase}}))
    }

    #[test]
    fn gates_are_removed_up_to_the_admitted_slices_count() {
        let pods =
            [pod(0, false, "Running"), pod(1, true, "Pending"), pod(2, true, "Pending"), pod(3, true, "Pending")];
        let names = |slices: &[Arc<Workload>], pods: &[Arc<Pod>]| -> Vec<String> {
            releases(slices, pods).iter().map(|pod| pod.name_any()).collect()
        };
        let waiting = slice("second", 4, Some("first"));
        assert_eq!(names(&[slice("first", 2, None), waiting.clone()], &pods), ["pod-1"]);
        assert_eq!(names(&[slice("first", 1, None), waiting.clone()], &pods), Vec::<String>::new());
        assert_eq!(names(&[waiting], &pods), Vec::<String>::new(), "nothing is admitted");
        let ended = [pod(0, false, "Succeeded"), pod(1, true, "Pending")];
        assert_eq!(names(&[slice("first", 1, None)], &ended), ["pod-1"], "a pod that ended makes room");
    }
}
