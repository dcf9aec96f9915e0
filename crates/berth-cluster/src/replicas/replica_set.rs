//! The ReplicaSet controller: keeps a number of pods of one template.

use std::cmp::Reverse;
use std::sync::Arc;

use berth_runtime::{Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::{Writer, is_active, is_controlled_by, pod_of, ready_since, time_until_available};
use crate::job::facts::phase;

/// Maximum number of pods created or deleted in one reconcile.
const BURST: usize = 500;
/// Annotation on pods: pods with a lower cost are deleted first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The next writes for a ReplicaSet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Number of pods to create.
    pub create: usize,
    /// Pods to delete.
    pub delete: Vec<Arc<Pod>>,
    /// The ReplicaSet's new status.
    pub status: ReplicaSetStatus,
    /// Time until the next ready pod becomes available.
    pub requeue_after: Option<std::time::Duration>,
}

/// Plans the next writes. `pods` are those that the ReplicaSet controls.
pub fn plan(set: &ReplicaSet, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let spec = set.spec.clone().unwrap_or_default();
    let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
    let mut active: Vec<Arc<Pod>> = pods.iter().filter(|pod| is_active(pod)).cloned().collect();
    let mut plan = Plan { create: wanted.saturating_sub(active.len()).min(BURST), ..Plan::default() };
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let waits: Vec<_> = active
        .iter()
        .filter_map(|pod| Some(time_until_available(ready_since(pod)?, spec.min_ready_seconds.unwrap_or(0), now)))
        .collect();
    let available = waits.iter().filter(|wait| wait.is_zero()).count();
    plan.requeue_after = waits.iter().filter(|wait| !wait.is_zero()).min().copied();
    plan.status = ReplicaSetStatus {
        replicas: number(active.len()),
        fully_labeled_replicas: Some(number(active.len())),
        ready_replicas: Some(number(waits.len())),
        available_replicas: Some(number(available)),
        observed_generation: set.metadata.generation,
        conditions: set.status.as_ref().and_then(|status| status.conditions.clone()),
        ..ReplicaSetStatus::default()
    };
    let excess = active.len().saturating_sub(wanted).min(BURST);
    if excess > 0 {
        active.sort_by_key(|pod| rank(pod));
        active.truncate(excess);
        plan.delete = active;
    }
    plan
}

/// Sort key for deletion, first to be deleted first: pods without a node, not running, not ready,
/// with a low deletion cost, ready for a shorter time, younger.
fn rank(pod: &Pod) -> (bool, bool, bool, i64, Reverse<Option<Timestamp>>, Reverse<Option<Timestamp>>, String) {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).is_some_and(|name| !name.is_empty());
    let cost = pod.annotations().get(DELETION_COST).and_then(|text| text.parse().ok()).unwrap_or(0);
    let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let ready = ready_since(pod);
    (node, phase(pod) == "Running", ready.is_some(), cost, Reverse(ready), Reverse(created), pod.name_any())
}

pub(super) fn install(manager: &mut Manager) {
    let sets = manager.cache::<ReplicaSet>();
    let pods = manager.cache::<Pod>();
    let controller = Controller {
        clock: manager.clock(),
        recorder: manager.recorder("replicaset-controller"),
        of_set: pods.index(|pod: &Pod| {
            ObjectKey::of_controller_owner::<ReplicaSet>(pod).map(|key| key.to_string()).into_iter().collect()
        }),
        pods: Writer::new(manager, &pods),
        writer: Writer::new(manager, &sets),
        sets: sets.clone(),
    };
    manager
        .controller("replicaset")
        .concurrency(5)
        .watch_self(&sets)
        .watch_owned::<ReplicaSet, _>(&pods)
        .run(controller);
}

struct Controller {
    clock: Clock,
    recorder: Recorder,
    sets: Cache<ReplicaSet>,
    of_set: Index<Pod>,
    pods: Writer<Pod>,
    writer: Writer<ReplicaSet>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(set) = self.sets.get(&key) else { return Ok(Action::Wait) };
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Wait);
        }
        let uid = set.uid().unwrap_or_default();
        let mut pods = self.of_set.get(&key.to_string());
        pods.retain(|pod| is_controlled_by(pod.as_ref(), &uid));
        let plan = plan(&set, &pods, self.clock.now());
        for pod in &plan.delete {
            self.pods.delete(pod).await?;
            let message = format!("Deleted pod: {}", pod.name_any());
            self.recorder.event(set.as_ref(), EventType::Normal, "SuccessfulDelete", &message);
        }
        let template = set.spec.as_ref().and_then(|spec| spec.template.clone()).unwrap_or_default();
        let mut failed_create = None;
        for _ in 0..plan.create {
            let mut pod = pod_of(set.as_ref(), &template);
            pod.metadata.generate_name = Some(format!("{}-", key.name));
            match self.pods.create(&key.namespace, &pod).await {
                Ok(created) => {
                    let message = format!("Created pod: {}", created.name_any());
                    self.recorder.event(set.as_ref(), EventType::Normal, "SuccessfulCreate", &message);
                }
                Err(error) => {
                    let message = format!("Error creating: {}", berth_runtime::message(&error));
                    self.recorder.event(set.as_ref(), EventType::Warning, "FailedCreate", &message);
                    failed_create = Some(error);
                    break;
                }
            }
        }
        if set.status.as_ref() != Some(&plan.status) {
            self.writer.replace_status(&ReplicaSet { status: Some(plan.status), ..(*set).clone() }).await?;
        }
        match failed_create {
            Some(error) => Err(error.into()),
            None => Ok(plan.requeue_after.map_or(Action::Wait, Action::After)),
        }
    }
}
