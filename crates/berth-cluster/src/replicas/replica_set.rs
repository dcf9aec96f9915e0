//! ReplicaSets: so many pods of one template.

use std::cmp::Reverse;
use std::sync::Arc;

use berth_runtime::{Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::{Writer, is_alive, is_controlled_by, pod_of, ready_since, until_available};
use crate::job::facts::phase;

/// Pods made or deleted in one look.
const BURST: usize = 500;
/// Annotation on pods: those with a lower cost go first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// What a ReplicaSet needs next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Pods to make.
    pub create: usize,
    /// Pods to delete.
    pub delete: Vec<Arc<Pod>>,
    /// Its status.
    pub status: ReplicaSetStatus,
    /// When a ready pod becomes an available one.
    pub again_after: Option<std::time::Duration>,
}

/// Plans the next step. `pods`: those it controls.
pub fn plan(set: &ReplicaSet, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let spec = set.spec.clone().unwrap_or_default();
    let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
    let mut alive: Vec<Arc<Pod>> = pods.iter().filter(|pod| is_alive(pod)).cloned().collect();
    let mut plan = Plan { create: wanted.saturating_sub(alive.len()).min(BURST), ..Plan::default() };
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let waits: Vec<_> = alive
        .iter()
        .filter_map(|pod| Some(until_available(ready_since(pod)?, spec.min_ready_seconds.unwrap_or(0), now)))
        .collect();
    let available = waits.iter().filter(|wait| wait.is_zero()).count();
    plan.again_after = waits.iter().filter(|wait| !wait.is_zero()).min().copied();
    plan.status = ReplicaSetStatus {
        replicas: number(alive.len()),
        fully_labeled_replicas: Some(number(alive.len())),
        ready_replicas: Some(number(waits.len())),
        available_replicas: Some(number(available)),
        observed_generation: set.metadata.generation,
        conditions: set.status.as_ref().and_then(|status| status.conditions.clone()),
        ..ReplicaSetStatus::default()
    };
    let excess = alive.len().saturating_sub(wanted).min(BURST);
    if excess > 0 {
        alive.sort_by_key(|pod| rank(pod));
        alive.truncate(excess);
        plan.delete = alive;
    }
    plan
}

/// Which pods are missed least: without a node, not running, not ready, cheap, ready for a short time, young.
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
        let mut refused = None;
        for _ in 0..plan.create {
            let mut pod = pod_of(set.as_ref(), &template);
            pod.metadata.generate_name = Some(format!("{}-", key.name));
            match self.pods.create(&key.namespace, &pod).await {
                Ok(made) => {
                    let message = format!("Created pod: {}", made.name_any());
                    self.recorder.event(set.as_ref(), EventType::Normal, "SuccessfulCreate", &message);
                }
                Err(error) => {
                    let message = format!("Error creating: {}", berth_runtime::message(&error));
                    self.recorder.event(set.as_ref(), EventType::Warning, "FailedCreate", &message);
                    refused = Some(error);
                    break;
                }
            }
        }
        if set.status.as_ref() != Some(&plan.status) {
            self.writer.replace_status(&ReplicaSet { status: Some(plan.status), ..(*set).clone() }).await?;
        }
        match refused {
            Some(error) => Err(error.into()),
            None => Ok(plan.again_after.map_or(Action::Wait, Action::After)),
        }
    }
}
