//! The disruption controller: computes the status of PodDisruptionBudgets. The status has the
//! number of healthy pods, the number that must be healthy, and therefore the number that may be
//! evicted.
//!
//! The API server rejects evictions according to this status, and updates it with each eviction
//! that it allows. An evicted pod counts as disrupted until it is deleted, or for
//! [`DELETION_TIMEOUT`].
//!
//! Source: Kubernetes documentation, "Specifying a Disruption Budget for your Application", and the
//! API documentation of PodDisruptionBudgetStatus.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::int_or_string;
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, is_not_found, stamp,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time};
use kube::api::PostParams;
use kube::core::{DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::job::facts::is_deleted;
use crate::placement::matches_label_selector;

/// How long an evicted pod without a deletion timestamp counts as disrupted.
pub const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);
/// Type of a budget's only condition.
const DISRUPTION_ALLOWED: &str = "DisruptionAllowed";

/// The numbers of pods that a budget requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Expected number of pods.
    pub expected: i64,
    /// Number of pods that must be healthy.
    pub healthy: i64,
}

/// The requirement of a budget. `pods` is the number of pods that it selects. `scale` is the sum of
/// the replicas of their controllers; it matters for `maxUnavailable` and for percentages.
///
/// # Errors
/// If an amount of the budget is neither a number nor a percentage.
pub fn requirement(budget: &PodDisruptionBudget, pods: i64, scale: i64) -> Result<Requirement, String> {
    let spec = budget.spec.clone().unwrap_or_default();
    if let Some(most) = &spec.max_unavailable {
        let unavailable = int_or_string::scaled(&json!(most), scale, true)?;
        return Ok(Requirement { expected: scale, healthy: (scale - unavailable).max(0) });
    }
    let Some(least) = &spec.min_available else { return Ok(Requirement { expected: pods, healthy: 0 }) };
    let expected = if needs_scale(budget) { scale } else { pods };
    Ok(Requirement { expected, healthy: int_or_string::scaled(&json!(least), expected, true)? })
}

/// True if the budget's requirement depends on the replicas of the pods' controllers.
fn needs_scale(budget: &PodDisruptionBudget) -> bool {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::String as Percentage;
    let spec = budget.spec.as_ref();
    let least = spec.and_then(|spec| spec.min_available.as_ref());
    spec.is_some_and(|spec| spec.max_unavailable.is_some()) || matches!(least, Some(Percentage(_)))
}

/// The status of a budget, and the time until the next evicted pod that was not deleted no longer
/// counts as disrupted. `pods` are those that the budget selects.
pub fn status(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    requirement: Requirement,
    now: Timestamp,
) -> (PodDisruptionBudgetStatus, Option<Duration>) {
    let known = budget.status.clone().unwrap_or_default();
    let (mut disrupted, mut requeue_after) = (BTreeMap::new(), None);
    let known_disrupted = known.disrupted_pods.iter().flatten();
    for (name, evicted) in known_disrupted {
        let is_undeleted = pods.iter().any(|pod| pod.name_any() == *name && !is_deleted(pod));
        let until = evicted.0.checked_add(DELETION_TIMEOUT).unwrap_or(evicted.0);
        if let Ok(left) = Duration::try_from(until.duration_since(now))
            && is_undeleted
            && !left.is_zero()
        {
            disrupted.insert(name.clone(), evicted.clone());
            requeue_after = Some(requeue_after.map_or(left, |requeue_after: Duration| requeue_after.min(left)));
        }
    }
    let healthy = |pod: &&Arc<Pod>| !is_deleted(pod) && is_ready(pod) && !disrupted.contains_key(&pod.name_any());
    let number = |count: i64| i32::try_from(count).unwrap_or(i32::MAX);
    let current = i64::try_from(pods.iter().filter(healthy).count()).unwrap_or(i64::MAX);
    let allowed = if requirement.expected > 0 { (current - requirement.healthy).max(0) } else { 0 };
    let reason = if allowed > 0 { "SufficientPods" } else { "InsufficientPods" };
    let status = PodDisruptionBudgetStatus {
        current_healthy: number(current),
        desired_healthy: number(requirement.healthy),
        disruptions_allowed: number(allowed),
        expected_pods: number(requirement.expected),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        observed_generation: budget.metadata.generation,
        conditions: Some(conditions(budget, allowed > 0, reason, "", now)),
    };
    (status, requeue_after)
}

/// The status of a budget whose requirement cannot be computed: it allows no disruptions.
fn failed(budget: &PodDisruptionBudget, why: &str, now: Timestamp) -> PodDisruptionBudgetStatus {
    PodDisruptionBudgetStatus {
        disruptions_allowed: 0,
        observed_generation: budget.metadata.generation,
        conditions: Some(conditions(budget, false, "SyncFailed", why, now)),
        ..budget.status.clone().unwrap_or_default()
    }
}

fn conditions(
    budget: &PodDisruptionBudget,
    allowed: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Vec<Condition> {
    let mut all = budget.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let status = if allowed { "True" } else { "False" };
    let known = all.iter().find(|it| it.type_ == DISRUPTION_ALLOWED);
    let since = known.filter(|it| it.status == status).map(|it| it.last_transition_time.clone());
    let condition = Condition {
        type_: DISRUPTION_ALLOWED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: since.unwrap_or_else(|| stamp(now)),
        observed_generation: budget.metadata.generation,
    };
    match all.iter_mut().find(|it| it.type_ == DISRUPTION_ALLOWED) {
        Some(known) => *known = condition,
        None => all.push(condition),
    }
    all
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True")
}

fn selects(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    matches_label_selector(budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()), pod.labels())
}

fn controller(object: &impl kube::Resource) -> Option<&OwnerReference> {
    object.owner_references().iter().find(|owner| owner.controller == Some(true))
}

/// Adds the controller.
pub fn install(manager: &mut Manager) {
    let budgets = manager.cache::<PodDisruptionBudget>();
    let pods = manager.cache::<Pod>();
    let by_namespace = budgets.index(|budget| budget.namespace().into_iter().collect());
    let controller = Controller {
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("controllermanager"),
        budgets: budgets.clone(),
        pods: pods.clone(),
        deployments: manager.cache(),
        replica_sets: manager.cache(),
        stateful_sets: manager.cache(),
    };
    let (deployments, replica_sets, stateful_sets) =
        (controller.deployments.clone(), controller.replica_sets.clone(), controller.stateful_sets.clone());
    let of_namespace = |by_namespace: &Index<PodDisruptionBudget>| {
        let by_namespace = by_namespace.clone();
        move |namespace: Option<String>| by_namespace.keys(&namespace.unwrap_or_default())
    };
    let of_pods = by_namespace.clone();
    let [of_deployments, of_replica_sets, of_stateful_sets] = [(); 3].map(|()| of_namespace(&by_namespace));
    manager
        .controller("disruption")
        .watch_self(&budgets)
        .watch(&pods, move |delta| {
            let sides: Vec<_> = [&delta.old, &delta.new].into_iter().flatten().collect();
            let in_namespace = of_pods.get(&delta.latest().namespace().unwrap_or_default());
            let selecting = in_namespace.into_iter().filter(|budget| sides.iter().any(|pod| selects(budget, pod)));
            selecting.map(|budget| ObjectKey::of(budget.as_ref())).collect::<BTreeSet<_>>()
        })
        .watch(&deployments, move |delta| {
            let wanted = |set: &Deployment| set.spec.as_ref().and_then(|spec| spec.replicas);
            let changed = delta.old.as_deref().map(wanted) != delta.new.as_deref().map(wanted);
            if changed { of_deployments(delta.latest().namespace()) } else { Vec::new() }
        })
        .watch(&replica_sets, move |delta| {
            let wanted = |set: &ReplicaSet| set.spec.as_ref().and_then(|spec| spec.replicas);
            let changed = delta.old.as_deref().map(wanted) != delta.new.as_deref().map(wanted);
            if changed { of_replica_sets(delta.latest().namespace()) } else { Vec::new() }
        })
        .watch(&stateful_sets, move |delta| {
            let wanted = |set: &StatefulSet| set.spec.as_ref().and_then(|spec| spec.replicas);
            let changed = delta.old.as_deref().map(wanted) != delta.new.as_deref().map(wanted);
            if changed { of_stateful_sets(delta.latest().namespace()) } else { Vec::new() }
        })
        .run(controller);
}

struct Controller {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    budgets: Cache<PodDisruptionBudget>,
    pods: Cache<Pod>,
    deployments: Cache<Deployment>,
    replica_sets: Cache<ReplicaSet>,
    stateful_sets: Cache<StatefulSet>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(budget) = self.budgets.get(&key) else { return Ok(Action::Wait) };
        let mut pods = self.pods.list_namespace(&key.namespace);
        pods.retain(|pod| selects(&budget, pod));
        let record_event =
            |type_, reason: &str, message: &str| self.recorder.event(budget.as_ref(), type_, reason, message);
        let wanted = match self.expected_replicas(&budget, &pods).await {
            Ok(scale) => requirement(&budget, i64::try_from(pods.len()).unwrap_or(i64::MAX), scale),
            Err(why) => Err(why),
        };
        let now = self.clock.now();
        let (status, requeue_after) = match wanted {
            Ok(wanted) => {
                let (status, requeue_after) = status(&budget, &pods, wanted, now);
                self.report_undeleted_pods(&budget, &pods, &status);
                (status, requeue_after)
            }
            Err(why) => (failed(&budget, &why, now), None),
        };
        let failure =
            status.conditions.iter().flatten().find(|it| it.reason == "SyncFailed").map(|it| it.message.clone());
        if budget.status.as_ref() != Some(&status) {
            if pods.is_empty() {
                record_event(EventType::Normal, "NoPods", "No matching pods found");
            }
            if let Some(why) = &failure {
                let message = format!("Failed to calculate the number of expected pods: {why}");
                record_event(EventType::Warning, "CalculateExpectedPodCountFailed", &message);
            }
            let api: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &key.namespace);
            let changed = PodDisruptionBudget { status: Some(status), ..(*budget).clone() };
            // A concurrent eviction changes the resourceVersion, and so makes this write fail.
            match berth_runtime::write::replace_status(&api, &key.name, &PostParams::default(), &changed).await {
                Ok(written) => self.budgets.observe(written),
                Err(error) if is_not_found(&error) => return Ok(Action::Wait),
                Err(error) => return Err(error.into()),
            }
        }
        match failure {
            Some(why) => Err(why.into()),
            None => Ok(requeue_after.map_or(Action::Wait, Action::After)),
        }
    }
}

impl Controller {
    /// The sum of the replicas of these pods' controllers; 0 if the budget does not need it. Pods
    /// without a controller do not count.
    async fn expected_replicas(&self, budget: &PodDisruptionBudget, pods: &[Arc<Pod>]) -> Result<i64, String> {
        if !needs_scale(budget) {
            return Ok(0);
        }
        let (mut seen, mut total, mut unmanaged) = (BTreeSet::new(), 0_i64, 0);
        for pod in pods {
            let Some(owner) = controller(pod.as_ref()) else {
                unmanaged += 1;
                continue;
            };
            if seen.contains(&owner.uid) {
                continue;
            }
            seen.insert(owner.uid.clone());
            let namespace = pod.namespace().unwrap_or_default();
            let (scaled_uid, scale) = self
                .scale(&namespace, owner)
                .await?
                .ok_or_else(|| format!("found no controllers for pod {:?}", pod.name_any()))?;
            // The ReplicaSets of one Deployment count once.
            if scaled_uid == owner.uid || seen.insert(scaled_uid) {
                total = total.saturating_add(scale);
            }
        }
        if unmanaged > 0 {
            let message = "Pods selected by this PodDisruptionBudget were found to be unmanaged. As a result, the status of \
                the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods \
                please set \".spec.minAvailable\" field of the PDB to an integer value.";
            self.recorder.event(budget, EventType::Warning, "UnmanagedPods", message);
        }
        Ok(total)
    }

    /// The UID of the object that scales this controller, and its replicas. For a ReplicaSet of a
    /// Deployment, this is the Deployment. `None` if the object does not exist.
    async fn scale(&self, namespace: &str, owner: &OwnerReference) -> Result<Option<(String, i64)>, String> {
        let key = ObjectKey::namespaced(namespace, &owner.name);
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let count = |replicas: Option<i32>| i64::from(replicas.unwrap_or(1));
        Ok(match (group, owner.kind.as_str()) {
            ("apps", "ReplicaSet") => {
                let set = self.replica_sets.get(&key).filter(|set| set.metadata.uid.as_ref() == Some(&owner.uid));
                let Some(set) = set else { return Ok(None) };
                let deployment_ref =
                    controller(set.as_ref()).filter(|deployment_ref| deployment_ref.kind == "Deployment");
                match deployment_ref {
                    Some(deployment_ref) => {
                        let deployment = self.deployments.get(&ObjectKey::namespaced(namespace, &deployment_ref.name));
                        let deployment = deployment.filter(|it| it.metadata.uid.as_ref() == Some(&deployment_ref.uid));
                        deployment.map(|it| {
                            (deployment_ref.uid.clone(), count(it.spec.as_ref().and_then(|spec| spec.replicas)))
                        })
                    }
                    None => Some((owner.uid.clone(), count(set.spec.as_ref().and_then(|spec| spec.replicas)))),
                }
            }
            ("apps", "StatefulSet") => {
                let set = self.stateful_sets.get(&key).filter(|set| set.metadata.uid.as_ref() == Some(&owner.uid));
                set.map(|set| (owner.uid.clone(), count(set.spec.as_ref().and_then(|spec| spec.replicas))))
            }
            _ => self.scale_subresource(namespace, owner).await?.map(|scale| (owner.uid.clone(), scale)),
        })
    }

    /// The replicas of an object of any other kind, from its subresource `scale`.
    async fn scale_subresource(&self, namespace: &str, owner: &OwnerReference) -> Result<Option<i64>, String> {
        let message_of = |error: &kube::Error| berth_runtime::message(error);
        let (group, version) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
        let kind = GroupVersionKind::gvk(group, version, &owner.kind);
        let (resource, capabilities) =
            kube::discovery::pinned_kind(&self.client, &kind).await.map_err(|error| message_of(&error))?;
        if !capabilities.subresources.iter().any(|(sub, _)| sub.plural == "scale") {
            let dot = if group.is_empty() { "" } else { "." };
            return Err(format!("{}{dot}{group} does not implement the scale subresource", resource.plural));
        }
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        match api.get_scale(&owner.name).await {
            Ok(scale) if scale.metadata.uid.as_ref().is_none_or(|uid| *uid == owner.uid) => {
                Ok(Some(i64::from(scale.spec.and_then(|spec| spec.replicas).unwrap_or(0))))
            }
            Ok(_) => Ok(None),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(message_of(&error)),
        }
    }

    /// Records an event for each evicted pod that was not deleted within [`DELETION_TIMEOUT`].
    fn report_undeleted_pods(
        &self,
        budget: &PodDisruptionBudget,
        pods: &[Arc<Pod>],
        status: &PodDisruptionBudgetStatus,
    ) {
        let before: BTreeMap<String, Time> =
            budget.status.as_ref().and_then(|status| status.disrupted_pods.clone()).unwrap_or_default();
        let is_disrupted = |pod: &Pod| status.disrupted_pods.iter().flatten().any(|(name, _)| *name == pod.name_any());
        for pod in
            pods.iter().filter(|pod| before.contains_key(&pod.name_any()) && !is_deleted(pod) && !is_disrupted(pod))
        {
            let (namespace, name) = (budget.namespace().unwrap_or_default(), budget.name_any());
            let message = format!("Pod was expected by PDB {namespace}/{name} to be deleted but it wasn't");
            self.recorder.event(pod.as_ref(), EventType::Warning, "NotDeleted", &message);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn budget(spec: Value, status: Value) -> PodDisruptionBudget {
        let metadata = json!({"name": "b", "namespace": "ns", "generation": 3});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    fn required(spec: Value, pods: i64, scale: i64) -> (i64, i64) {
        let requirement = requirement(&budget(spec, Value::Null), pods, scale).unwrap();
        (requirement.expected, requirement.healthy)
    }

    #[test]
    fn percentages_and_max_unavailable_count_controller_replicas_and_round_up() {
        assert_eq!(required(json!({"minAvailable": 2}), 5, 0), (5, 2));
        assert_eq!(required(json!({"minAvailable": "50%"}), 4, 7), (7, 4));
        assert_eq!(required(json!({"maxUnavailable": 1}), 4, 7), (7, 6));
        assert_eq!(required(json!({"maxUnavailable": "30%"}), 4, 7), (7, 4));
        assert_eq!(required(json!({"maxUnavailable": 9}), 4, 7), (7, 0));
        assert!(requirement(&budget(json!({"minAvailable": "many"}), Value::Null), 1, 1).is_err());
    }

    fn pod(name: &str, ready: &str, deleted: bool) -> Arc<Pod> {
        let deletion = deleted.then_some("2026-01-01T00:00:00Z");
        let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
        let metadata = json!({"name": name, "namespace": "ns", "deletionTimestamp": deletion});
        Arc::new(serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap())
    }

    #[test]
    fn an_evicted_pod_counts_as_disrupted_for_two_minutes_or_until_it_is_deleted() {
        let at: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let evicted = json!({"a": "2026-01-01T00:00:00Z", "gone": "2026-01-01T00:00:00Z",
            "old": "2025-12-31T23:59:00Z", "going": "2026-01-01T00:00:00Z"});
        let numbers = json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0});
        let mut before = numbers;
        before["disruptedPods"] = evicted;
        let budget = budget(json!({"minAvailable": 1}), before);
        let pods = [
            pod("a", "True", false),
            pod("old", "True", false),
            pod("going", "True", true),
            pod("b", "True", false),
            pod("sick", "False", false),
        ];
        let (status, requeue_after) = status(&budget, &pods, Requirement { expected: 5, healthy: 1 }, at);
        let disrupted: Vec<_> = status.disrupted_pods.iter().flatten().map(|(name, _)| name.as_str()).collect();
        assert_eq!(disrupted, ["a"]);
        assert_eq!(requeue_after, Some(Duration::from_secs(60)));
        // The healthy pods are "old" and "b".
        assert_eq!((status.current_healthy, status.disruptions_allowed), (2, 1));
        let condition = &status.conditions.unwrap()[0];
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("True", "SufficientPods"));
        assert_eq!((status.observed_generation, condition.observed_generation), (Some(3), Some(3)));
    }

    #[test]
    fn a_budget_without_pods_or_with_an_error_allows_no_disruptions() {
        let at = Timestamp::UNIX_EPOCH;
        let none = budget(json!({"minAvailable": 0}), Value::Null);
        assert_eq!(status(&none, &[], Requirement { expected: 0, healthy: 0 }, at).0.disruptions_allowed, 0);
        let before = json!({"currentHealthy": 5, "desiredHealthy": 1, "disruptionsAllowed": 4, "expectedPods": 5});
        let failed = failed(&budget(json!({"maxUnavailable": 1}), before), "why", at);
        assert_eq!((failed.disruptions_allowed, failed.current_healthy), (0, 5));
        let condition = &failed.conditions.unwrap()[0];
        assert_eq!((condition.reason.as_str(), condition.message.as_str()), ("SyncFailed", "why"));
    }
}
