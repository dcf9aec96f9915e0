//! The ReplicaSet and ReplicationController controllers: keep a number of pods of one template.
//!
//! Both kinds have the same rules. [`Replicated`] is the interface of a kind for the controller.

use berth_api::json::Json;
use berth_api::pod::node_of;
use std::cmp::Reverse;
use std::fmt::Debug;
use std::sync::Arc;

use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, Writer, stamp,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{
    Pod, PodTemplateSpec, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};

use super::claims::{Orphans, claim, newly_orphaned};
use super::{is_active, pod_of, ready_since, time_until_available};
use crate::job::facts::phase;
use crate::placement::matches_label_selector;

/// Maximum number of pods created or deleted in one reconcile.
const BURST: usize = 500;
/// Annotation on pods: pods with a lower cost are deleted first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Type of the condition of a set whose pods the API server rejects.
const REPLICA_FAILURE: &str = "ReplicaFailure";

/// Desired state of a ReplicaSet or ReplicationController.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// Number of pods.
    pub replicas: i32,
    /// Seconds from a pod's readiness to its availability.
    pub min_ready_seconds: i32,
    /// Selector of the pods.
    pub selector: LabelSelector,
    /// Template of the pods.
    pub template: PodTemplateSpec,
}

/// Numbers of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Active pods.
    pub replicas: i32,
    /// Active pods with all labels of the template.
    pub fully_labeled: i32,
    /// Ready pods.
    pub ready: i32,
    /// Available pods.
    pub available: i32,
}

/// A kind that keeps a number of pods.
pub trait Replicated:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Json + Send + Sync + 'static
{
    /// Name of the controller of this kind.
    const CONTROLLER: &'static str;
    /// Component of the controller's events.
    const COMPONENT: &'static str;
    /// The object's desired state.
    fn wanted(&self) -> Wanted;
    /// The object with these counts in its status. `failure` is the API server's error for the last
    /// creation of a pod, if it was rejected.
    fn with_status(&self, counts: Counts, failure: Option<&str>, now: Timestamp) -> Self;
    /// True if both objects have the same status.
    fn has_status_of(&self, other: &Self) -> bool;
}

/// The conditions of a status, with [`REPLICA_FAILURE`] set or removed.
macro_rules! conditions {
    ($kind:ident, $known:expr, $failure:expr, $now:expr) => {{
        let known: Vec<$kind> = $known.unwrap_or_default();
        let before = known.iter().find(|it| it.type_ == REPLICA_FAILURE).cloned();
        let mut conditions: Vec<$kind> = known.into_iter().filter(|it| it.type_ != REPLICA_FAILURE).collect();
        if let Some(message) = $failure {
            let since = before.and_then(|it| it.last_transition_time).unwrap_or_else(|| stamp($now));
            conditions.push($kind {
                type_: REPLICA_FAILURE.to_owned(),
                status: "True".to_owned(),
                reason: Some("FailedCreate".to_owned()),
                message: Some(message.to_owned()),
                last_transition_time: Some(since),
            });
        }
        Some(conditions).filter(|conditions| !conditions.is_empty())
    }};
}

impl Replicated for ReplicaSet {
    const CONTROLLER: &'static str = "replicaset";
    const COMPONENT: &'static str = "replicaset-controller";

    fn wanted(&self) -> Wanted {
        let spec = self.spec.clone().unwrap_or_default();
        Wanted {
            replicas: spec.replicas.unwrap_or(1),
            min_ready_seconds: spec.min_ready_seconds.unwrap_or(0),
            selector: spec.selector,
            template: spec.template.unwrap_or_default(),
        }
    }

    fn with_status(&self, counts: Counts, failure: Option<&str>, now: Timestamp) -> Self {
        let known = self.status.as_ref().and_then(|status| status.conditions.clone());
        let status = ReplicaSetStatus {
            replicas: counts.replicas,
            fully_labeled_replicas: Some(counts.fully_labeled),
            ready_replicas: Some(counts.ready),
            available_replicas: Some(counts.available),
            observed_generation: self.metadata.generation,
            conditions: conditions!(ReplicaSetCondition, known, failure, now),
            ..ReplicaSetStatus::default()
        };
        Self { status: Some(status), ..self.clone() }
    }

    fn has_status_of(&self, other: &Self) -> bool {
        self.status == other.status
    }
}

impl Replicated for ReplicationController {
    const CONTROLLER: &'static str = "replicationcontroller";
    const COMPONENT: &'static str = "replication-controller";

    fn wanted(&self) -> Wanted {
        let spec = self.spec.clone().unwrap_or_default();
        Wanted {
            replicas: spec.replicas.unwrap_or(1),
            min_ready_seconds: spec.min_ready_seconds.unwrap_or(0),
            selector: LabelSelector { match_labels: spec.selector, match_expressions: None },
            template: spec.template.unwrap_or_default(),
        }
    }

    fn with_status(&self, counts: Counts, failure: Option<&str>, now: Timestamp) -> Self {
        let known = self.status.as_ref().and_then(|status| status.conditions.clone());
        let status = ReplicationControllerStatus {
            replicas: counts.replicas,
            fully_labeled_replicas: Some(counts.fully_labeled),
            ready_replicas: Some(counts.ready),
            available_replicas: Some(counts.available),
            observed_generation: self.metadata.generation,
            conditions: conditions!(ReplicationControllerCondition, known, failure, now),
        };
        Self { status: Some(status), ..self.clone() }
    }

    fn has_status_of(&self, other: &Self) -> bool {
        self.status == other.status
    }
}

/// The next writes for a ReplicaSet or ReplicationController.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Number of pods to create.
    pub create: usize,
    /// Pods to delete.
    pub delete: Vec<Arc<Pod>>,
    /// Counts for the new status.
    pub counts: Counts,
    /// Time until the next ready pod becomes available.
    pub requeue_after: Option<std::time::Duration>,
}

/// Plans the next writes. `pods` are the pods that the set controls.
pub fn plan(wanted: &Wanted, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let replicas = usize::try_from(wanted.replicas).unwrap_or(0);
    let mut active: Vec<Arc<Pod>> = pods.iter().filter(|pod| is_active(pod)).cloned().collect();
    let mut plan = Plan { create: replicas.saturating_sub(active.len()).min(BURST), ..Plan::default() };
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let waits: Vec<_> = active
        .iter()
        .filter_map(|pod| Some(time_until_available(ready_since(pod)?, wanted.min_ready_seconds, now)))
        .collect();
    plan.requeue_after = waits.iter().filter(|wait| !wait.is_zero()).min().copied();
    let labels = wanted.template.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
    let full = LabelSelector { match_labels: labels, match_expressions: None };
    plan.counts = Counts {
        replicas: number(active.len()),
        fully_labeled: number(active.iter().filter(|pod| matches_label_selector(Some(&full), pod.labels())).count()),
        ready: number(waits.len()),
        available: number(waits.iter().filter(|wait| wait.is_zero()).count()),
    };
    let excess = active.len().saturating_sub(replicas).min(BURST);
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
    let node = node_of(pod).is_some();
    let cost = pod.annotations().get(DELETION_COST).and_then(|text| text.parse().ok()).unwrap_or(0);
    let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let ready = ready_since(pod);
    (node, phase(pod) == "Running", ready.is_some(), cost, Reverse(ready), Reverse(created), pod.name_any())
}

/// Adds the controller of one kind.
pub(super) fn install<K: Replicated>(manager: &mut Manager) {
    let sets = manager.cache::<K>();
    let pods = manager.cache::<Pod>();
    let controller = Controller {
        clock: manager.clock(),
        recorder: manager.recorder(K::COMPONENT),
        of_set: pods.index(|pod: &Pod| {
            ObjectKey::of_controller_owner::<K>(pod).map(|key| key.to_string()).into_iter().collect()
        }),
        orphans: Orphans::new(&pods),
        pods: Writer::new(manager, &pods),
        writer: Writer::new(manager, &sets),
        sets: sets.clone(),
    };
    let adopting = sets.clone();
    manager
        .controller(K::CONTROLLER)
        .concurrency(5)
        .watch_self(&sets)
        .watch_owned::<K, _>(&pods)
        .watch(&pods, move |delta| {
            let Some(pod) = newly_orphaned(delta) else { return Vec::new() };
            let sets = adopting.iter_namespace(&pod.namespace().unwrap_or_default());
            let selecting = sets.filter(|set| matches_label_selector(Some(&set.wanted().selector), pod.labels()));
            selecting.map(|set| ObjectKey::of(set.as_ref())).collect()
        })
        .run(controller);
}

struct Controller<K> {
    clock: Clock,
    recorder: Recorder,
    sets: Cache<K>,
    of_set: Index<Pod>,
    orphans: Orphans<Pod>,
    pods: Writer<Pod>,
    writer: Writer<K>,
}

impl<K: Replicated> Reconciler for Controller<K> {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(set) = self.sets.get(&key) else { return Ok(Action::Wait) };
        if set.meta().deletion_timestamp.is_some() {
            return Ok(Action::Wait);
        }
        let wanted = set.wanted();
        let owned = self.of_set.get(&key.to_string());
        let orphans = self.orphans.candidates(&key.namespace, &wanted.selector);
        let claims = claim(set.as_ref(), &wanted.selector, owned, orphans);
        let pods = claims.apply(set.as_ref(), &self.pods).await?;
        let now = self.clock.now();
        let plan = plan(&wanted, &pods, now);
        for pod in &plan.delete {
            self.pods.delete(pod).await?;
            let message = format!("Deleted pod: {}", pod.name_any());
            self.recorder.event(set.as_ref(), EventType::Normal, "SuccessfulDelete", &message);
        }
        let failed_create = self.create(&set, &wanted, plan.create).await;
        let failure = failed_create.as_ref().map(berth_runtime::message);
        let changed = set.with_status(plan.counts, failure.as_deref(), now);
        if !changed.has_status_of(&set) {
            self.writer.replace_status(&changed).await?;
        }
        match failed_create {
            Some(error) => Err(error.into()),
            None => Ok(plan.requeue_after.map_or(Action::Wait, Action::After)),
        }
    }
}

impl<K: Replicated> Controller<K> {
    /// Creates pods. Returns the error of the first one that is rejected; the others would be
    /// rejected for the same reason, and the retry creates them.
    async fn create(&self, set: &K, wanted: &Wanted, count: usize) -> Option<kube::Error> {
        for _ in 0..count {
            let mut pod = pod_of(set, &wanted.template);
            pod.metadata.generate_name = Some(format!("{}-", set.name_any()));
            match self.pods.create(&pod).await {
                Ok(created) => {
                    let message = format!("Created pod: {}", created.name_any());
                    self.recorder.event(set, EventType::Normal, "SuccessfulCreate", &message);
                }
                Err(error) => {
                    let message = format!("Error creating: {}", berth_runtime::message(&error));
                    self.recorder.event(set, EventType::Warning, "FailedCreate", &message);
                    return Some(error);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn controller(status: Value) -> ReplicationController {
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}});
        let spec = json!({"replicas": 2, "selector": {"app": "web"}, "template": template});
        let metadata = json!({"name": "web", "namespace": "ns", "generation": 3});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    fn pod(name: &str, phase: &str, labels: Value) -> Arc<Pod> {
        let ready = json!([{"type": "Ready", "status": if phase == "Running" { "True" } else { "False" },
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let metadata = json!({"name": name, "labels": labels});
        Arc::new(
            serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase, "conditions": ready}}))
                .unwrap(),
        )
    }

    #[test]
    fn pods_that_do_not_run_are_deleted_before_running_pods() {
        let wanted = controller(Value::Null).wanted();
        let label = json!({"app": "web"});
        let [a, b] = ["a", "b"].map(|name| pod(name, "Running", label.clone()));
        let now = "2026-01-02T00:00:00Z".parse().unwrap();
        let step = plan(&wanted, &[a.clone(), pod("f", "Failed", label.clone())], now);
        assert_eq!((step.create, step.counts.replicas, step.counts.ready), (1, 1, 1));
        let pending = pod("c", "Pending", json!({"app": "other"}));
        let step = plan(&wanted, &[a, b, pending.clone()], now);
        assert_eq!((step.create, step.delete), (0, vec![pending]));
        assert_eq!((step.counts.replicas, step.counts.fully_labeled, step.counts.available), (3, 2, 2));
    }

    #[test]
    fn a_rejected_pod_is_a_condition_until_one_is_created() {
        let (first, later) = (Timestamp::UNIX_EPOCH, "2026-01-02T00:00:00Z".parse().unwrap());
        let failed = controller(json!({"replicas": 0})).with_status(Counts::default(), Some("exceeded quota"), first);
        let still = failed.with_status(Counts::default(), Some("exceeded quota: b"), later);
        let status = still.status.as_ref().unwrap();
        assert_eq!(status.observed_generation, Some(3));
        let condition = &status.conditions.as_ref().unwrap()[0];
        assert_eq!((condition.type_.as_str(), condition.reason.as_deref()), ("ReplicaFailure", Some("FailedCreate")));
        assert_eq!(condition.last_transition_time.as_ref().unwrap().0, first);
        assert_eq!(still.with_status(Counts::default(), None, later).status.unwrap().conditions, None);
    }
}
