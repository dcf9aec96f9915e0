//! The state of a live cluster, or of a snapshot of one: its jobs, and their future.
//!
//! ```text
//! Objects ──State::of──▶ State: jobs that run and wait ──┐
//! Objects ──RunTimes::of──▶ what is known of run times ──┼─ future::run (engine and nodes) ──▶ Future
//! nodes and pools ──Pools::of──▶ capacity behind quota ──┘        │
//!                                           forecast: many draws  │  what_if: with and without changes
//! ```
//!
//! Jobs about whose run time nothing is known never end in a computed future, so a job that waits
//! for one of them has no forecast.

pub mod capacity;
pub mod forecast;
pub mod future;
pub mod record;
pub mod run_times;
pub mod what_if;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::kueue::v1beta2 as api;
use berth_controllers::devices::Charges;
use berth_engine::Name;
use berth_engine::model::{Time, Workload, WorkloadKey};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::memory::Memory;
use crate::objects::{ObjectRef, Objects, Translator};

/// A job that has not ended.
#[derive(Debug, Clone)]
pub struct LiveJob {
    /// Its Workload.
    pub key: WorkloadKey,
    /// The job that owns the Workload.
    pub owner: Option<ObjectRef>,
    /// The Workload in the engine's form.
    pub workload: Workload,
    /// The cluster queue for which it waits, or whose quota it holds.
    pub cluster_queue: Option<Name>,
    /// Since when all its pods run.
    pub running_since: Option<Time>,
    /// Its pods that are on nodes.
    pub pods: Vec<BoundPod>,
    /// What its devices change in the requests of its pods.
    pub devices: Charges,
    /// Run time that its pods declare.
    pub declared: Option<Duration>,
    /// Maximum run time that it declares.
    pub limit: Option<Duration>,
    /// True if it is not part of the state, but submitted by a change.
    pub is_new: bool,
}

/// A pod of a job on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundPod {
    /// The node.
    pub node: String,
    /// Since when it runs; `None` if it does not run yet.
    pub since: Option<Time>,
    /// True once it has ended.
    pub ended: bool,
}

impl LiveJob {
    /// True if it holds quota.
    pub fn holds(&self) -> bool {
        self.workload.admission.is_some()
    }

    /// The name of its owner, or of its Workload.
    pub fn title(&self) -> String {
        let name = self.owner.as_ref().map_or(&*self.key.name, |owner| owner.name.as_str());
        format!("{}/{name}", self.key.namespace)
    }
}

/// The jobs of a set of objects at one instant.
#[derive(Debug, Clone)]
pub struct State {
    /// The instant.
    pub at: Time,
    /// The jobs that have not ended, in order of creation.
    pub jobs: Vec<LiveJob>,
}

impl State {
    /// The state that the objects show. Jobs of the set that have no Workload are submitted at
    /// `at`.
    pub fn of(objects: &Objects, at: Timestamp) -> State {
        let now = berth_controllers::translate::time(at);
        let (pods, translator) = (pods_by_owner(objects), Translator::new(objects));
        let exact = objects.memory.as_ref().map(Memory::exact).unwrap_or_default();
        let of = |object: &api::Workload, pods| {
            let (mut workload, devices) = translator.translate(object);
            if let Some(times) = exact.get(&(&*workload.key.namespace, &*workload.key.name)).copied() {
                times.refine(&mut workload);
            }
            live_job(objects, object, workload, devices, pods, now)
        };
        let mut jobs: Vec<LiveJob> =
            objects.workloads.values().filter_map(|workload| of(&workload.object, &pods)).collect();
        let no_pods = BTreeMap::new();
        let mut known: BTreeSet<Option<ObjectRef>> = jobs.iter().map(|job| job.owner.clone()).collect();
        for made in objects.workloads_of_jobs(at) {
            let Ok(workload) = made.workload else { continue };
            if let Some(mut job) = of(&workload, &no_pods) {
                if !known.insert(job.owner.clone()) {
                    continue;
                }
                job.workload.created = now;
                job.is_new = true;
                jobs.push(job);
            }
        }
        jobs.sort_by(|a, b| (a.workload.created, &a.key).cmp(&(b.workload.created, &b.key)));
        State { at: now, jobs }
    }
}

/// Pods by the UID of the object that owns them.
fn pods_by_owner(objects: &Objects) -> BTreeMap<&str, Vec<&Pod>> {
    let mut found: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in objects.pods.values() {
        let owners = pod.metadata.owner_references.iter().flatten().map(|owner| owner.uid.as_str());
        // The pods of a JobSet are owned by Jobs, and carry the UID of the JobSet.
        let job_set = pod.metadata.labels.as_ref().and_then(|labels| labels.get("jobset.sigs.k8s.io/jobset-uid"));
        for owner in owners.chain(job_set.map(String::as_str)) {
            found.entry(owner).or_default().push(pod);
        }
    }
    found
}

fn live_job(
    objects: &Objects,
    object: &api::Workload,
    mut workload: Workload,
    devices: Charges,
    pods: &BTreeMap<&str, Vec<&Pod>>,
    now: Time,
) -> Option<LiveJob> {
    if workload.finished || workload.deleting {
        return None;
    }
    // A workload that is being evicted loses its quota now.
    if workload.evicted.is_some() && workload.admission.is_some() {
        workload.admission = None;
        workload.admitted = false;
        workload.reserved_at = None;
    }
    if workload.admission.is_none() && workload.requeued == Some(false) && workload.inadmissible.is_none() {
        workload.requeued = Some(true);
    }
    if workload.created == Time::UNSET {
        workload.created = now;
    }
    let route = (workload.key.namespace.to_string(), workload.queue.to_string());
    let local = objects.local_queues.get(&route).map(|local| Name::from(local.object.spec.cluster_queue.as_str()));
    let cluster_queue = workload.admission.as_ref().map(|it| it.cluster_queue.clone()).or(local);
    let owners = object.metadata.owner_references.iter().flatten();
    let owner = owners.clone().find(|owner| owner.controller == Some(true));
    let owner_ref = owner.map(|owner| ObjectRef::namespaced(&owner.kind, &workload.key.namespace, &owner.name));
    let bound = owner.and_then(|owner| pods.get(owner.uid.as_str())).map(|pods| bound(pods)).unwrap_or_default();
    let running_since = running_since(object, workload.reserved_at);
    Some(LiveJob {
        key: workload.key.clone(),
        owner: owner_ref,
        cluster_queue,
        running_since,
        pods: bound,
        devices,
        declared: run_times::declared(object),
        limit: object.spec.maximum_execution_time_seconds.map(|it| Duration::from_secs(u64::try_from(it).unwrap_or(0))),
        is_new: false,
        workload,
    })
}

fn bound(pods: &[&Pod]) -> Vec<BoundPod> {
    let pod = |pod: &&Pod| {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let containers = status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten();
        let started = containers.filter_map(|it| it.state.as_ref()?.running.as_ref()?.started_at.as_ref());
        Some(BoundPod {
            node: pod.spec.as_ref()?.node_name.clone().filter(|node| !node.is_empty())?,
            since: started.map(|at| berth_controllers::translate::time(at.0)).max(),
            ended: matches!(phase, "Succeeded" | "Failed"),
        })
    };
    pods.iter().filter_map(pod).collect()
}

/// When all pods of a workload that holds quota were ready.
fn running_since(object: &api::Workload, reserved: Option<Time>) -> Option<Time> {
    let conditions = object.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let ready = conditions.iter().find(|it| it.type_ == "PodsReady" && it.status == "True")?;
    reserved.map(|reserved| berth_controllers::translate::time(ready.last_transition_time.0).max(reserved))
}
