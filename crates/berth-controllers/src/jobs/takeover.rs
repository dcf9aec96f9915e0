//! What the controllers would write first if they were started with the objects of a cluster, for a
//! check before they replace others.
//!
//! The reconcilers of jobs, pods and Workloads are pure, so their first plans are computed without
//! a cluster. Of a plan, only steps that change a decision count: labels, owners and the order of
//! conditions may change without an effect on what runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::jobset::v1alpha2::JobSet;
use berth_api::kueue::v1beta2::Workload;
use berth_runtime::{Cache, ObjectKey};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::Job;
use super::described::for_each_foreign;
use super::pods::{self, Unit};
use super::preview::{self, observe};
use super::reconcile::{Context, reconcile};
use crate::conditions;
use crate::configuration::Config;
use crate::plan::{Plan, Step};
use crate::stores::{Stores, group_of};
use crate::webhooks::typed;
use crate::workload;
use crate::workload::status;

/// What would happen to a job or its Workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A running job would be suspended, or a pod deleted.
    Stop,
    /// A Workload with quota would be deleted, because it does not match its job.
    DeleteWorkload,
    /// A Workload would be evicted or lose its quota.
    Evict,
    /// A Workload would be finished.
    Finish,
    /// A suspended job would be started.
    Start,
    /// A waiting Workload would be replaced, and so lose its place in the queue.
    Requeue,
    /// The job cannot be reconciled.
    Fail,
}

/// A change of a decision.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Consequence {
    /// Kind of the object.
    pub kind: String,
    /// Its namespace and name.
    pub key: ObjectKey,
    /// The change.
    pub change: Change,
    /// Why.
    pub message: String,
}

/// The caches of the controllers, filled with these objects. Objects that do not have the form of
/// their kind, and those of other kinds, are left out.
pub fn stores<'a>(objects: impl IntoIterator<Item = &'a Value>, config: &Config) -> (Stores, Vec<Arc<Pod>>) {
    let objects: Vec<&Value> = objects.into_iter().collect();
    let mut stores = preview::surroundings(objects.iter().copied());
    let mut found = Vec::new();
    for object in &objects {
        let version = object["apiVersion"].as_str().unwrap_or_default();
        match (group_of(version), object["kind"].as_str().unwrap_or_default()) {
            ("kueue.x-k8s.io", "Workload") => observe(&stores.workloads, object),
            ("kueue.x-k8s.io", "LocalQueue") => observe(&stores.local_queues, object),
            ("kueue.x-k8s.io", "ClusterQueue") => observe(&stores.cluster_queues, object),
            ("kueue.x-k8s.io", "ResourceFlavor") => observe(&stores.flavors, object),
            ("kueue.x-k8s.io", "AdmissionCheck") => observe(&stores.admission_checks, object),
            ("", "LimitRange") => observe(&stores.limit_ranges, object),
            ("batch", "Job") => observe(&stores.jobs, object),
            ("jobset.x-k8s.io", "JobSet") => observe(&stores.job_sets, object),
            ("", "Pod") => found.extend(typed::<Pod>(object).ok().map(Arc::new)),
            ("ray.io", "RayCluster") => observe(&stores.ray_clusters, object),
            _ => {}
        }
    }
    // A set of files may lack its namespaces.
    for namespace in objects.iter().filter_map(|object| object["metadata"]["namespace"].as_str()) {
        if stores.namespace_labels(namespace).is_none() {
            let labels = json!({"kubernetes.io/metadata.name": namespace});
            observe(&stores.namespaces, &json!({"metadata": {"name": namespace, "labels": labels}}));
        }
    }
    for_each_foreign!(Kind => {
        if config.integrations.enabled(<Kind as Job>::FRAMEWORK) {
            let cache: Cache<Kind> = Cache::for_tests([]);
            for object in objects.iter().filter(|object| preview::is::<Kind>(object)) {
                observe(&cache, object);
            }
            stores.add_owners(cache);
        }
    });
    (stores, found)
}

/// The decisions that the controllers would change at once, in order of the objects. `objects` are
/// those of a cluster, jobs and pods included.
pub fn consequences<'a>(
    objects: impl IntoIterator<Item = &'a Value>,
    config: &Config,
    now: Timestamp,
) -> Vec<Consequence> {
    let objects: Vec<&Value> = objects.into_iter().collect();
    let (stores, pods) = stores(objects.iter().copied(), config);
    let gates = config.gates();
    let context = Context { stores: &stores, config, gates: &gates, now };
    let mut found = Vec::new();
    for object in &objects {
        of_job::<BatchJob>(object, context, &mut found);
        of_job::<JobSet>(object, context, &mut found);
        for_each_foreign!(Kind => {
            of_job::<Kind>(object, context, &mut found);
        });
    }
    if config.integrations.enabled("pod") {
        of_pods(&pods, context, &mut found);
    }
    for workload in stores.workloads.list() {
        let plan = workload::reconcile::reconcile(context, &workload);
        let as_workload = |step: Step<Workload>| match step {
            Step::Patch(after) => Step::PatchWorkload(after),
            Step::PatchStatus(after) => Step::PatchWorkloadStatus(after),
            Step::Delete(gone) => Step::DeleteWorkload(gone),
            other => other,
        };
        for step in plan.steps.into_iter().map(as_workload) {
            found.extend(of_workload(&step, &stores));
        }
    }
    found.sort();
    found.dedup();
    found
}

fn of_job<J: Job>(object: &Value, context: Context<'_>, found: &mut Vec<Consequence>) {
    if !preview::is::<J>(object) || !context.config.integrations.enabled(J::FRAMEWORK) {
        return;
    }
    let Ok(job) = J::from_json_value(object) else { return };
    let key = ObjectKey::of(&job);
    let plan = reconcile(context, &key, Some(&job));
    let why = reason(&plan);
    let mut about = |change: Change, message: &str| {
        let kind = J::kind(&()).into_owned();
        found.push(Consequence { kind, key: key.clone(), change, message: message.to_owned() });
    };
    for step in &plan.steps {
        match step {
            Step::Patch(after) if after.is_suspended() && !job.is_suspended() => about(Change::Stop, &why),
            Step::Patch(after) if !after.is_suspended() && job.is_suspended() => about(Change::Start, &why),
            Step::Delete(_) => about(Change::Stop, &why),
            _ => {}
        }
    }
    let is_ours = !super::queue_name(&job).is_empty();
    if let Some(error) = plan.error.as_ref().filter(|_| is_ours && plan.steps.is_empty()) {
        about(Change::Fail, &error.to_string());
    }
    found.extend(plan.steps.iter().filter_map(|step| of_workload(step, context.stores)));
}

fn of_pods(pods: &[Arc<Pod>], context: Context<'_>, found: &mut Vec<Consequence>) {
    let mut units: BTreeMap<String, (String, Unit, Vec<Arc<Pod>>)> = BTreeMap::new();
    for pod in pods {
        let namespace = pod.namespace().unwrap_or_default();
        if let Some(unit) = Unit::of(pod, context.gates) {
            let key = unit.key(&namespace).to_string();
            units.entry(key).or_insert_with(|| (namespace, unit, Vec::new())).2.push(pod.clone());
        }
    }
    for (namespace, unit, mut members) in units.into_values() {
        members.sort_by_key(|pod| pod.name_any());
        let plan = pods::reconcile::reconcile(context, &namespace, &unit, &members);
        let why = reason(&plan);
        for step in &plan.steps {
            if let Step::Delete(pod) = step {
                let (kind, key) = ("Pod".to_owned(), ObjectKey::of(pod.as_ref()));
                found.push(Consequence { kind, key, change: Change::Stop, message: why.clone() });
            }
        }
        found.extend(plan.steps.iter().filter_map(|step| of_workload(step, context.stores)));
    }
}

/// Why a plan does what it does: its events, or its error.
fn reason<J>(plan: &Plan<J>) -> String {
    let events = plan.steps.iter().filter_map(|step| match step {
        Step::Event(event) | Step::EventAbout(_, event) | Step::WorkloadEvent(_, event) => Some(event.message.clone()),
        _ => None,
    });
    let texts: Vec<String> = events.chain(plan.error.as_ref().map(ToString::to_string)).collect();
    texts.join("; ")
}

/// The change of a decision about a Workload, if the step is one.
fn of_workload<J>(step: &Step<J>, stores: &Stores) -> Option<Consequence> {
    let about = |workload: &Workload, change: Change, message: String| {
        let (kind, key) = ("Workload".to_owned(), ObjectKey::of(workload));
        Some(Consequence { kind, key, change, message })
    };
    match step {
        Step::DeleteWorkload(gone) if status::is_finished(gone) => None,
        Step::DeleteWorkload(gone) if status::has_quota_reservation(gone) => {
            about(gone, Change::DeleteWorkload, "the Workload does not match its job".to_owned())
        }
        Step::DeleteWorkload(gone) => about(gone, Change::Requeue, "the Workload does not match its job".to_owned()),
        Step::PatchWorkloadStatus(after) => {
            let before = stores.workloads.get(&ObjectKey::of(after.as_ref()))?;
            let message = |type_: &str| {
                let condition = status::condition(after, type_);
                condition.map(|it| format!("{}: {}", it.reason, it.message)).unwrap_or_default()
            };
            if status::is_finished(after) && !status::is_finished(&before) {
                about(after, Change::Finish, message(conditions::FINISHED))
            } else if status::is_evicted(after) && !status::is_evicted(&before) {
                about(after, Change::Evict, message(conditions::EVICTED))
            } else if status::has_quota_reservation(&before) && !status::has_quota_reservation(after) {
                about(after, Change::Evict, message(conditions::QUOTA_RESERVED))
            } else {
                None
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn job(suspended: bool, cpu: &str) -> Value {
        json!({"apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "j", "namespace": "ns", "uid": "u", "labels": {"kueue.x-k8s.io/queue-name": "q"}},
            "spec": {"suspend": suspended, "parallelism": 2, "completions": 2, "template": template(cpu)}})
    }

    fn template(cpu: &str) -> Value {
        json!({"spec": {"restartPolicy": "Never",
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}})
    }

    fn workload(admitted: bool) -> Value {
        let condition = |type_: &str| {
            json!({"type": type_, "status": "True", "reason": "x", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let mut workload = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"name": "w", "namespace": "ns", "finalizers": ["kueue.x-k8s.io/resource-in-use"],
                "labels": {"kueue.x-k8s.io/job-uid": "u"}, "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true}]},
            "spec": {"queueName": "q", "active": true, "priority": 0, "podSets": [
                {"name": "main", "count": 2, "template": template("1")}]}});
        if admitted {
            workload["status"] = json!({"conditions": [condition("QuotaReserved"), condition("Admitted"), condition("PodsReady")],
                "admission": {"clusterQueue": "cq", "podSetAssignments": [
                    {"name": "main", "flavors": {"cpu": "f"}, "resourceUsage": {"cpu": "2"}, "count": 2}]}});
        }
        workload
    }

    fn changes(objects: &[Value]) -> Vec<(String, Change)> {
        let queues = [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}}),
            json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "f"}, "spec": {}}),
            json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": {}}),
            json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
                "metadata": {"name": "q", "namespace": "ns"}, "spec": {"clusterQueue": "cq"}}),
        ];
        let all = queues.iter().chain(objects);
        let found = consequences(all, &Config::default(), NOW.parse().unwrap());
        found.into_iter().map(|it| (it.kind, it.change)).collect()
    }

    #[test]
    fn a_running_job_that_matches_its_workload_and_a_waiting_one_keep_their_state() {
        assert_eq!(changes(&[job(false, "1000m"), workload(true)]), []);
        assert_eq!(changes(&[job(true, "1"), workload(false)]), []);
    }

    #[test]
    fn a_job_that_does_not_match_its_workload_is_stopped() {
        let found = changes(&[job(false, "2"), workload(true)]);
        assert!(found.contains(&("Job".to_owned(), Change::Stop)), "{found:?}");
    }

    #[test]
    fn an_admitted_workload_that_is_inactive_is_evicted() {
        let mut inactive = workload(true);
        inactive["spec"]["active"] = json!(false);
        let found = changes(&[job(false, "1"), inactive]);
        assert_eq!(found, [("Workload".to_owned(), Change::Evict)]);
    }
}
