//! Disruption budgets: how many of the pods they select are healthy, how many have to be, and so how many may be evicted.
//!
//! The API server refuses evictions by what stands in a budget's status, and counts each it allows off there; a pod that was
//! evicted and still is there counts as gone until it goes, or for [`DELETION_TIMEOUT`].
//!
//! Source of the behaviour: Kubernetes documentation, "Specifying a Disruption Budget for your Application", and the API
//! documentation of PodDisruptionBudgetStatus.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::int_or_string;
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, is_not_found,
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
use crate::scheduling::matches_label_selector;
use crate::time::stamp;

/// How long an evicted pod that is not being deleted counts as gone.
pub const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);
/// The one condition of a budget.
const DISRUPTION_ALLOWED: &str = "DisruptionAllowed";

/// What a budget demands of its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Pods there should be.
    pub expected: i64,
    /// Those that have to be healthy.
    pub healthy: i64,
}

/// What a budget demands. `pods`: how many it selects; `scale`: how many the controllers of these pods want together, which
/// only budgets that are not a number of available pods go by.
///
/// # Errors
/// When an amount of the budget is neither a number nor a percentage.
pub fn demand(budget: &PodDisruptionBudget, pods: i64, scale: i64) -> Result<Demand, String> {
    let spec = budget.spec.clone().unwrap_or_default();
    if let Some(most) = &spec.max_unavailable {
        let unavailable = int_or_string::scaled(&json!(most), scale, true)?;
        return Ok(Demand { expected: scale, healthy: (scale - unavailable).max(0) });
    }
    let Some(least) = &spec.min_available else { return Ok(Demand { expected: pods, healthy: 0 }) };
    let expected = if needs_scale(budget) { scale } else { pods };
    Ok(Demand { expected, healthy: int_or_string::scaled(&json!(least), expected, true)? })
}

/// Does what the budget demands depend on how many pods their controllers want?
fn needs_scale(budget: &PodDisruptionBudget) -> bool {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::String as Percentage;
    let spec = budget.spec.as_ref();
    let least = spec.and_then(|spec| spec.min_available.as_ref());
    spec.is_some_and(|spec| spec.max_unavailable.is_some()) || matches!(least, Some(Percentage(_)))
}

/// The status of a budget, and when evicted pods that stay count again.
///
/// `pods`: those it selects.
pub fn status(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    demand: Demand,
    now: Timestamp,
) -> (PodDisruptionBudgetStatus, Option<Duration>) {
    let known = budget.status.clone().unwrap_or_default();
    let (mut disrupted, mut again) = (BTreeMap::new(), None);
    let known_disrupted = known.disrupted_pods.iter().flatten();
    for (name, evicted) in known_disrupted {
        let is_there = pods.iter().any(|pod| pod.name_any() == *name && !is_deleted(pod));
        let until = evicted.0.checked_add(DELETION_TIMEOUT).unwrap_or(evicted.0);
        if let Ok(left) = Duration::try_from(until.duration_since(now))
            && is_there
            && !left.is_zero()
        {
            disrupted.insert(name.clone(), evicted.clone());
            again = Some(again.map_or(left, |again: Duration| again.min(left)));
        }
    }
    let healthy = |pod: &&Arc<Pod>| !is_deleted(pod) && is_ready(pod) && !disrupted.contains_key(&pod.name_any());
    let number = |count: i64| i32::try_from(count).unwrap_or(i32::MAX);
    let current = i64::try_from(pods.iter().filter(healthy).count()).unwrap_or(i64::MAX);
    let allowed = if demand.expected > 0 { (current - demand.healthy).max(0) } else { 0 };
    let reason = if allowed > 0 { "SufficientPods" } else { "InsufficientPods" };
    let status = PodDisruptionBudgetStatus {
        current_healthy: number(current),
        desired_healthy: number(demand.healthy),
        disruptions_allowed: number(allowed),
        expected_pods: number(demand.expected),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        observed_generation: budget.metadata.generation,
        conditions: Some(conditions(budget, allowed > 0, reason, "", now)),
    };
    (status, again)
}

/// The status of a budget that could not be looked at: it allows nothing, whatever it allowed.
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
            let there = of_pods.get(&delta.latest().namespace().unwrap_or_default());
            let concerned = there.into_iter().filter(|budget| sides.iter().any(|pod| selects(budget, pod)));
            concerned.map(|budget| ObjectKey::of(budget.as_ref())).collect::<BTreeSet<_>>()
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
        let tell = |type_, reason: &str, message: &str| self.recorder.event(budget.as_ref(), type_, reason, message);
        let wanted = match self.wanted(&budget, &pods).await {
            Ok(scale) => demand(&budget, i64::try_from(pods.len()).unwrap_or(i64::MAX), scale),
            Err(why) => Err(why),
        };
        let now = self.clock.now();
        let (status, again) = match wanted {
            Ok(wanted) => {
                let (status, again) = status(&budget, &pods, wanted, now);
                self.tell_of_survivors(&budget, &pods, &status);
                (status, again)
            }
            Err(why) => (failed(&budget, &why, now), None),
        };
        let failure =
            status.conditions.iter().flatten().find(|it| it.reason == "SyncFailed").map(|it| it.message.clone());
        if budget.status.as_ref() != Some(&status) {
            if pods.is_empty() {
                tell(EventType::Normal, "NoPods", "No matching pods found");
            }
            if let Some(why) = &failure {
                let message = format!("Failed to calculate the number of expected pods: {why}");
                tell(EventType::Warning, "CalculateExpectedPodCountFailed", &message);
            }
            let api: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &key.namespace);
            let changed = PodDisruptionBudget { status: Some(status), ..(*budget).clone() };
            // An eviction in between is counted by the version it made.
            match berth_runtime::write::replace_status(&api, &key.name, &PostParams::default(), &changed).await {
                Ok(written) => self.budgets.observe(written),
                Err(error) if is_not_found(&error) => return Ok(Action::Wait),
                Err(error) => return Err(error.into()),
            }
        }
        match failure {
            Some(why) => Err(why.into()),
            None => Ok(again.map_or(Action::Wait, Action::After)),
        }
    }
}

impl Controller {
    /// How many pods the controllers of these pods want, when that matters. Pods without one count for nothing.
    async fn wanted(&self, budget: &PodDisruptionBudget, pods: &[Arc<Pod>]) -> Result<i64, String> {
        if !needs_scale(budget) {
            return Ok(0);
        }
        let (mut asked, mut total, mut alone) = (BTreeSet::new(), 0_i64, 0);
        for pod in pods {
            let Some(owner) = controller(pod.as_ref()) else {
                alone += 1;
                continue;
            };
            if asked.contains(&owner.uid) {
                continue;
            }
            asked.insert(owner.uid.clone());
            let namespace = pod.namespace().unwrap_or_default();
            let (scaled, scale) = self
                .scale(&namespace, owner)
                .await?
                .ok_or_else(|| format!("found no controllers for pod {:?}", pod.name_any()))?;
            // ReplicaSets of one Deployment are scaled as one.
            if scaled == owner.uid || asked.insert(scaled) {
                total = total.saturating_add(scale);
            }
        }
        if alone > 0 {
            let message = "Pods selected by this PodDisruptionBudget were found to be unmanaged. As a result, the status of \
                the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods \
                please set \".spec.minAvailable\" field of the PDB to an integer value.";
            self.recorder.event(budget, EventType::Warning, "UnmanagedPods", message);
        }
        Ok(total)
    }

    /// Whose scale decides how many pods this controller wants, and how many; nothing when it is gone.
    async fn scale(&self, namespace: &str, owner: &OwnerReference) -> Result<Option<(String, i64)>, String> {
        let key = ObjectKey::namespaced(namespace, &owner.name);
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let count = |replicas: Option<i32>| i64::from(replicas.unwrap_or(1));
        Ok(match (group, owner.kind.as_str()) {
            ("apps", "ReplicaSet") => {
                let set = self.replica_sets.get(&key).filter(|set| set.metadata.uid.as_ref() == Some(&owner.uid));
                let Some(set) = set else { return Ok(None) };
                let above = controller(set.as_ref()).filter(|above| above.kind == "Deployment");
                match above {
                    Some(above) => {
                        let deployment = self.deployments.get(&ObjectKey::namespaced(namespace, &above.name));
                        let deployment = deployment.filter(|it| it.metadata.uid.as_ref() == Some(&above.uid));
                        deployment.map(|it| (above.uid.clone(), count(it.spec.as_ref().and_then(|spec| spec.replicas))))
                    }
                    None => Some((owner.uid.clone(), count(set.spec.as_ref().and_then(|spec| spec.replicas)))),
                }
            }
            ("apps", "StatefulSet") => {
                let set = self.stateful_sets.get(&key).filter(|set| set.metadata.uid.as_ref() == Some(&owner.uid));
                set.map(|set| (owner.uid.clone(), count(set.spec.as_ref().and_then(|spec| spec.replicas))))
            }
            _ => self.scale_of_another(namespace, owner).await?.map(|scale| (owner.uid.clone(), scale)),
        })
    }

    /// The same of a kind that is not known here: by its subresource `scale`.
    async fn scale_of_another(&self, namespace: &str, owner: &OwnerReference) -> Result<Option<i64>, String> {
        let said = |error: &kube::Error| berth_runtime::message(error);
        let (group, version) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
        let kind = GroupVersionKind::gvk(group, version, &owner.kind);
        let (resource, capabilities) =
            kube::discovery::pinned_kind(&self.client, &kind).await.map_err(|error| said(&error))?;
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
            Err(error) => Err(said(&error)),
        }
    }

    /// Says of pods that were evicted, and neither went nor are going, that they count again.
    fn tell_of_survivors(&self, budget: &PodDisruptionBudget, pods: &[Arc<Pod>], status: &PodDisruptionBudgetStatus) {
        let before: BTreeMap<String, Time> =
            budget.status.as_ref().and_then(|status| status.disrupted_pods.clone()).unwrap_or_default();
        let waits = |pod: &Pod| status.disrupted_pods.iter().flatten().any(|(name, _)| *name == pod.name_any());
        for pod in pods.iter().filter(|pod| before.contains_key(&pod.name_any()) && !is_deleted(pod) && !waits(pod)) {
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

    fn demanded(spec: Value, pods: i64, scale: i64) -> (i64, i64) {
        let demand = demand(&budget(spec, Value::Null), pods, scale).unwrap();
        (demand.expected, demand.healthy)
    }

    #[test]
    fn amounts_are_of_pods_or_of_what_their_controllers_want_and_round_up() {
        assert_eq!(demanded(json!({"minAvailable": 2}), 5, 0), (5, 2));
        assert_eq!(demanded(json!({"minAvailable": "50%"}), 4, 7), (7, 4));
        assert_eq!(demanded(json!({"maxUnavailable": 1}), 4, 7), (7, 6));
        assert_eq!(demanded(json!({"maxUnavailable": "30%"}), 4, 7), (7, 4));
        assert_eq!(demanded(json!({"maxUnavailable": 9}), 4, 7), (7, 0));
        assert!(demand(&budget(json!({"minAvailable": "many"}), Value::Null), 1, 1).is_err());
    }

    fn pod(name: &str, ready: &str, deleted: bool) -> Arc<Pod> {
        let deletion = deleted.then_some("2026-01-01T00:00:00Z");
        let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
        let metadata = json!({"name": name, "namespace": "ns", "deletionTimestamp": deletion});
        Arc::new(serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap())
    }

    #[test]
    fn an_evicted_pod_counts_as_gone_for_two_minutes_and_one_that_goes_for_good() {
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
        let (status, again) = status(&budget, &pods, Demand { expected: 5, healthy: 1 }, at);
        let disrupted: Vec<_> = status.disrupted_pods.iter().flatten().map(|(name, _)| name.as_str()).collect();
        assert_eq!(disrupted, ["a"]);
        assert_eq!(again, Some(Duration::from_secs(60)));
        // "old" and "b".
        assert_eq!((status.current_healthy, status.disruptions_allowed), (2, 1));
        let condition = &status.conditions.unwrap()[0];
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("True", "SufficientPods"));
        assert_eq!((status.observed_generation, condition.observed_generation), (Some(3), Some(3)));
    }

    #[test]
    fn a_budget_without_pods_or_that_cannot_be_computed_allows_nothing() {
        let at = Timestamp::UNIX_EPOCH;
        let none = budget(json!({"minAvailable": 0}), Value::Null);
        assert_eq!(status(&none, &[], Demand { expected: 0, healthy: 0 }, at).0.disruptions_allowed, 0);
        let before = json!({"currentHealthy": 5, "desiredHealthy": 1, "disruptionsAllowed": 4, "expectedPods": 5});
        let failed = failed(&budget(json!({"maxUnavailable": 1}), before), "why", at);
        assert_eq!((failed.disruptions_allowed, failed.current_healthy), (0, 5));
        let condition = &failed.conditions.unwrap()[0];
        assert_eq!((condition.reason.as_str(), condition.message.as_str()), ("SyncFailed", "why"));
    }
}
