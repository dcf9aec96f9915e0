//! The Deployment controller: one ReplicaSet per pod template, and rollouts from one to the next.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_apimachinery::well_known;
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, Writer, owned_by,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentCondition, DeploymentSpec, DeploymentStatus, ReplicaSet, ReplicaSetSpec,
};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use super::claims::{Orphans, claim, newly_orphaned};
use super::proportional::{self, Size};
use super::template_hash;
use crate::placement::matches_label_selector;

/// Label with the hash of the pod template, on a ReplicaSet and its pods.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// Annotation with the revision number of the template.
const REVISION: &str = "deployment.kubernetes.io/revision";

/// Annotation with the earlier revision numbers of a ReplicaSet that a rollback has reused.
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// Annotation with the Deployment's replicas at the time when the ReplicaSet was last scaled.
const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
/// Annotation with the Deployment's replicas plus its surge at that time.
const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
/// Annotations that are not copied from a Deployment to its ReplicaSets.
const OWN_ANNOTATIONS: [&str; 6] = [
    well_known::LAST_APPLIED,
    "deprecated.deployment.rollback.to",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
];

/// The next writes for a Deployment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// A ReplicaSet to create.
    pub create: Option<ReplicaSet>,
    /// ReplicaSets to update.
    pub change: Vec<ReplicaSet>,
    /// Old ReplicaSets beyond `revisionHistoryLimit`.
    pub delete: Vec<Arc<ReplicaSet>>,
    /// The Deployment's new status.
    pub status: DeploymentStatus,
    /// Revision number of the current template, for the Deployment's annotation.
    pub revision: i64,
}

fn replicas(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

fn revision(set: &ReplicaSet) -> i64 {
    set.annotations().get(REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn sum(sets: &[&Arc<ReplicaSet>], of: impl Fn(&ReplicaSet) -> i32) -> i32 {
    sets.iter().map(|set| of(set)).sum()
}

fn observed(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |status| status.replicas)
}

fn ready(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0)
}

fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

/// Resolves `maxSurge` or `maxUnavailable`: a number, or a percentage of `total`. Default: 25%.
fn resolve(value: Option<&IntOrString>, total: i32, round_up: bool) -> i32 {
    let quarter = IntOrString::String("25%".to_owned());
    match value.unwrap_or(&quarter) {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let share = percent.saturating_mul(i64::from(total));
            i32::try_from(if round_up { (share + 99) / 100 } else { share / 100 }).unwrap_or(i32::MAX)
        }
    }
}

/// Plans the next writes. `sets` are the ReplicaSets that the Deployment controls.
pub fn plan(deployment: &Deployment, sets: &[Arc<ReplicaSet>], now: Timestamp) -> Plan {
    let spec = deployment.spec.clone().unwrap_or_default();
    let wanted = spec.replicas.unwrap_or(1);
    let hash = template_hash(&spec.template);
    let is_new = |set: &&Arc<ReplicaSet>| has_template(set, &spec.template, &hash);
    let new = sets.iter().find(is_new);
    let mut old: Vec<&Arc<ReplicaSet>> = sets.iter().filter(|set| !is_new(set)).collect();
    old.sort_by_key(|set| (revision(set), set.name_any()));
    let newest_old = old.iter().map(|set| revision(set)).max().unwrap_or(0);
    let mut plan = Plan { revision: new.map_or(0, |set| revision(set)), ..Plan::default() };
    let paused = spec.paused == Some(true);
    // A rollback gives the older template the highest revision number.
    if plan.revision <= newest_old {
        plan.revision = newest_old + 1;
    }
    let Bounds { recreate, surge, unavailable } = bounds(&spec, wanted);
    let total = sum(&old, replicas) + new.map_or(0, |set| replicas(set));
    let old_replicas = sum(&old, observed).max(sum(&old, replicas));
    let scale = [(DESIRED_REPLICAS, wanted), (MAX_REPLICAS, wanted.saturating_add(surge))];
    let scale_annotations = scale.map(|(key, count)| (key.to_owned(), count.to_string()));
    let scaled = if recreate { None } else { scaled(sets, new, wanted, surge) };
    let mut size = |set: &ReplicaSet, size: i32, revision: Option<i64>| {
        let mut changed = set.clone();
        if new.is_some_and(|new| new.metadata.name == set.metadata.name) {
            // The new ReplicaSet gets the Deployment's annotations, such as
            // `kubernetes.io/change-cause`.
            changed.annotations_mut().extend(inherited_annotations(deployment));
        }
        if replicas(set) != size || scaled.is_some() && size > 0 {
            changed.annotations_mut().extend(scale_annotations.clone());
        }
        changed.spec.get_or_insert_default().replicas = Some(size);
        if let Some(revision) = revision {
            set_revision(&mut changed, revision);
        }
        if changed != *set {
            plan.change.push(changed);
        }
    };
    let current_replicas = new.map_or(0, |set| replicas(set));
    let target_replicas = match (recreate, old.is_empty()) {
        (true, _) if old_replicas > 0 => current_replicas,
        (true, _) => wanted,
        (false, _) if current_replicas >= wanted => wanted,
        (false, _) => (current_replicas + (wanted + surge - total).max(0)).min(wanted),
    };
    let number = plan.revision;
    // Scale the new ReplicaSet. A paused Deployment only follows a changed replica count.
    match new {
        _ if scaled.is_some() => {}
        Some(set) if paused && !old.iter().any(|set| replicas(set) > 0) => size(set, wanted, None),
        Some(set) if paused => size(set, replicas(set), None),
        _ if paused => {}
        Some(set) => size(set, target_replicas, Some(number)),
        None => {}
    }
    // Scale the old ReplicaSets down.
    if let Some(scaled) = &scaled {
        let sets = sets.iter().filter_map(|set| Some((set, *scaled.get(&set.name_any())?)));
        sets.for_each(|(set, replicas)| size(set, replicas, None));
    } else if !paused && recreate {
        old.iter().for_each(|set| size(set, 0, None));
    } else if !paused {
        let sizes = sizes_of_old(&old, new, total, wanted - unavailable);
        old.iter().zip(sizes).for_each(|(set, wanted)| size(set, wanted, None));
    }
    if new.is_none() && !paused && scaled.is_none() {
        let first = if recreate && old_replicas > 0 { 0 } else { (wanted + surge - total).clamp(0, wanted) };
        let mut created = replica_set(deployment, &hash, first, plan.revision);
        created.annotations_mut().extend(scale_annotations);
        plan.create = Some(created);
    }
    let limit = usize::try_from(spec.revision_history_limit.unwrap_or(10)).unwrap_or(0);
    let idle: Vec<_> = old.iter().filter(|set| replicas(set) == 0 && observed(set) == 0).collect();
    plan.delete = idle[..idle.len().saturating_sub(limit)].iter().map(|set| (**set).clone()).collect();
    plan.status = status(deployment, new, &old, wanted - unavailable, now);
    plan
}

/// True if the ReplicaSet has this template.
fn has_template(set: &ReplicaSet, template: &PodTemplateSpec, hash: &str) -> bool {
    match set.labels().get(TEMPLATE_HASH) {
        Some(other) => other == hash,
        // An adopted ReplicaSet has no hash.
        None => set.spec.as_ref().and_then(|spec| spec.template.as_ref()) == Some(template),
    }
}

/// What a rollout may do.
struct Bounds {
    /// True to stop all old pods before the first new one starts.
    recreate: bool,
    /// Number of pods above the wanted ones.
    surge: i32,
    /// Number of wanted pods that may be unavailable.
    unavailable: i32,
}

fn bounds(spec: &DeploymentSpec, wanted: i32) -> Bounds {
    let strategy = spec.strategy.clone().unwrap_or_default();
    if strategy.type_.as_deref() == Some("Recreate") {
        return Bounds { recreate: true, surge: 0, unavailable: wanted };
    }
    let rolling = strategy.rolling_update.unwrap_or_default();
    let surge = resolve(rolling.max_surge.as_ref(), wanted, true);
    let unavailable = match resolve(rolling.max_unavailable.as_ref(), wanted, false) {
        // With both zero, no pod could ever be replaced.
        0 if surge == 0 => 1,
        unavailable => unavailable,
    };
    Bounds { recreate: false, surge, unavailable: unavailable.min(wanted) }
}

/// Writes the revision, and adds an earlier one to the history.
fn set_revision(set: &mut ReplicaSet, revision: i64) {
    let before = set.annotations_mut().insert(REVISION.to_owned(), revision.to_string());
    if let Some(before) = before.filter(|before| *before != revision.to_string()) {
        let history = set.annotations_mut().entry(REVISION_HISTORY.to_owned()).or_default();
        let comma = if history.is_empty() { "" } else { "," };
        *history = format!("{history}{comma}{before}");
    }
}

/// New sizes of the old ReplicaSets in a rolling update, in their order. `total` is the number of
/// all replicas, and `minimum` the number that must stay available.
fn sizes_of_old(old: &[&Arc<ReplicaSet>], new: Option<&Arc<ReplicaSet>>, total: i32, minimum: i32) -> Vec<i32> {
    // Unavailable pods are removed first. Available pods are removed only as long as the minimum
    // stays available.
    let unready = new.map_or(0, |set| (replicas(set) - available(set)).max(0));
    let mut spare = total - minimum - unready;
    let mut sizes: Vec<i32> = old.iter().map(|set| replicas(set)).collect();
    for (set, size) in old.iter().zip(&mut sizes) {
        let idle = (*size - available(set)).clamp(0, spare.max(0));
        *size -= idle;
        spare -= idle;
    }
    let serving = sum(old, available) + new.map_or(0, |set| available(set));
    let mut spare = spare.min(serving - minimum);
    for size in &mut sizes {
        let removed = (*size).min(spare.max(0));
        *size -= removed;
        spare -= removed;
    }
    sizes
}

/// New sizes of the ReplicaSets if the Deployment was scaled in the middle of a rollout.
fn scaled(
    sets: &[Arc<ReplicaSet>],
    new: Option<&Arc<ReplicaSet>>,
    wanted: i32,
    surge: i32,
) -> Option<BTreeMap<String, i32>> {
    let number = |set: &ReplicaSet, key: &str| set.annotations().get(key).and_then(|text| text.parse::<i32>().ok());
    let active: Vec<&Arc<ReplicaSet>> = sets.iter().filter(|set| replicas(set) > 0).collect();
    let is_scaled = active.iter().any(|set| number(set, DESIRED_REPLICAS).is_some_and(|desired| desired != wanted));
    let is_rolled_out = new.is_some_and(|set| replicas(set) == wanted && available(set) == wanted);
    if !is_scaled || is_rolled_out || active.len() < 2 {
        return None;
    }
    let total = sum(&active, replicas);
    let sizes = active.iter().map(|set| Size {
        set,
        replicas: replicas(set),
        of_max: number(set, MAX_REPLICAS).unwrap_or(total),
    });
    let replicas_max = if wanted > 0 { wanted.saturating_add(surge) } else { 0 };
    Some(proportional::sizes(sizes.collect(), replicas_max))
}

/// Annotations that the new ReplicaSet copies from its Deployment.
fn inherited_annotations(deployment: &Deployment) -> impl Iterator<Item = (String, String)> + '_ {
    let all = deployment.annotations().iter().filter(|(key, _)| !OWN_ANNOTATIONS.contains(&key.as_str()));
    all.map(|(key, value)| (key.clone(), value.clone()))
}

fn replica_set(deployment: &Deployment, hash: &str, replicas: i32, revision: i64) -> ReplicaSet {
    let spec = deployment.spec.clone().unwrap_or_default();
    let mut template = spec.template.clone();
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(TEMPLATE_HASH.to_owned(), hash.to_owned());
    let labels = labels.clone();
    let mut selector = spec.selector.clone();
    selector.match_labels.get_or_insert_default().insert(TEMPLATE_HASH.to_owned(), hash.to_owned());
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", deployment.name_any())),
            namespace: deployment.namespace(),
            labels: Some(labels),
            annotations: Some(
                inherited_annotations(deployment).chain([(REVISION.to_owned(), revision.to_string())]).collect(),
            ),
            owner_references: Some(vec![owned_by(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    }
}

fn status(
    deployment: &Deployment,
    new: Option<&Arc<ReplicaSet>>,
    old: &[&Arc<ReplicaSet>],
    min_available: i32,
    now: Timestamp,
) -> DeploymentStatus {
    let all: Vec<&Arc<ReplicaSet>> = old.iter().copied().chain(new).collect();
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let (total, available_replicas) = (sum(&all, observed), sum(&all, available));
    let updated = new.map_or(0, |set| observed(set));
    let known = deployment.status.clone().unwrap_or_default();
    let mut conditions = known.conditions.unwrap_or_default();
    if available_replicas >= min_available {
        let message = "Deployment has minimum availability.";
        set_condition(&mut conditions, "Available", true, "MinimumReplicasAvailable", message, now);
    } else {
        let message = "Deployment does not have minimum availability.";
        set_condition(&mut conditions, "Available", false, "MinimumReplicasUnavailable", message, now);
    }
    let name = new.map_or_else(|| deployment.name_any(), |set| set.name_any());
    if updated == wanted && total == wanted && available_replicas == wanted {
        let message = format!("ReplicaSet \"{name}\" has successfully progressed.");
        set_condition(&mut conditions, "Progressing", true, "NewReplicaSetAvailable", &message, now);
    } else {
        let message = format!("ReplicaSet \"{name}\" is progressing.");
        set_condition(&mut conditions, "Progressing", true, "ReplicaSetUpdated", &message, now);
    }
    let count = |count: i32| (count > 0).then_some(count);
    DeploymentStatus {
        replicas: count(total),
        updated_replicas: count(updated),
        ready_replicas: count(sum(&all, ready)),
        available_replicas: count(available_replicas),
        unavailable_replicas: count((total.max(wanted)) - available_replicas),
        observed_generation: deployment.metadata.generation,
        conditions: Some(conditions),
        ..DeploymentStatus::default()
    }
}

fn set_condition(
    conditions: &mut Vec<DeploymentCondition>,
    type_: &str,
    status: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let status = if status { "True" } else { "False" };
    let known = conditions.iter().find(|it| it.type_ == type_);
    if known.is_some_and(|it| it.status == status && it.reason.as_deref() == Some(reason)) {
        return;
    }
    let transition_time = known.filter(|it| it.status == status).and_then(|it| it.last_transition_time.clone());
    conditions.retain(|it| it.type_ != type_);
    conditions.push(DeploymentCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(transition_time.unwrap_or(Time(now))),
    });
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
}

pub(super) fn install(manager: &mut Manager) {
    let deployments = manager.cache::<Deployment>();
    let sets = manager.cache::<ReplicaSet>();
    let controller = Controller {
        clock: manager.clock(),
        recorder: manager.recorder("deployment-controller"),
        of_deployment: sets.index(|set: &ReplicaSet| {
            ObjectKey::of_controller_owner::<Deployment>(set).map(|key| key.to_string()).into_iter().collect()
        }),
        orphans: Orphans::new(&sets),
        sets: Writer::new(manager, &sets),
        writer: Writer::new(manager, &deployments),
        deployments: deployments.clone(),
    };
    let adopting = deployments.clone();
    manager
        .controller("deployment")
        .concurrency(5)
        .watch_self(&deployments)
        .watch_owned::<Deployment, _>(&sets)
        .watch(&sets, move |delta| {
            let Some(set) = newly_orphaned(delta) else { return Vec::new() };
            let deployments = adopting.iter_namespace(&set.namespace().unwrap_or_default());
            let selecting = deployments.filter(|it| {
                it.spec.as_ref().is_some_and(|spec| matches_label_selector(Some(&spec.selector), set.labels()))
            });
            selecting.map(|it| ObjectKey::of(it.as_ref())).collect()
        })
        .run(controller);
}

struct Controller {
    clock: Clock,
    recorder: Recorder,
    deployments: Cache<Deployment>,
    of_deployment: Index<ReplicaSet>,
    orphans: Orphans<ReplicaSet>,
    sets: Writer<ReplicaSet>,
    writer: Writer<Deployment>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(deployment) = self.deployments.get(&key) else { return Ok(Action::Wait) };
        if deployment.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Wait);
        }
        let selector = deployment.spec.as_ref().map(|spec| spec.selector.clone()).unwrap_or_default();
        let owned = self.of_deployment.get(&key.to_string());
        let orphans = self.orphans.candidates(&key.namespace, &selector);
        let claims = claim(deployment.as_ref(), &selector, owned, orphans);
        let sets = claims.apply(deployment.as_ref(), &self.sets).await?;
        let plan = plan(&deployment, &sets, self.clock.now());
        let record_scaling = |message: &str| {
            self.recorder.event(deployment.as_ref(), EventType::Normal, "ScalingReplicaSet", message);
        };
        for set in &plan.change {
            let before =
                sets.iter().find(|known| known.name_any() == set.name_any()).map_or(0, |known| replicas(known));
            self.sets.replace(set).await?;
            let (after, name) = (replicas(set), set.name_any());
            if after != before {
                let direction = if after > before { "up" } else { "down" };
                record_scaling(&format!("Scaled {direction} replica set {name} from {before} to {after}"));
            }
        }
        if let Some(set) = &plan.create {
            let created = self.sets.create(set).await?;
            if replicas(&created) > 0 {
                record_scaling(&format!(
                    "Scaled up replica set {} from 0 to {}",
                    created.name_any(),
                    replicas(&created)
                ));
            }
        }
        for set in &plan.delete {
            self.sets.delete(set).await?;
        }
        let mut current = (*deployment).clone();
        let number = plan.revision.to_string();
        let is_unpaused = deployment.spec.as_ref().is_some_and(|spec| spec.paused != Some(true));
        if is_unpaused && current.annotations().get(REVISION) != Some(&number) {
            current.annotations_mut().insert(REVISION.to_owned(), number);
            // The watch event of this write triggers the next reconcile, with the new
            // `resourceVersion`.
            self.writer.replace(&current).await?;
            return Ok(Action::Wait);
        }
        if current.status.as_ref() != Some(&plan.status) {
            current.status = Some(plan.status);
            self.writer.replace_status(&current).await?;
        }
        Ok(Action::Wait)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn deployment(replicas: i32, version: &str, strategy: Value) -> Deployment {
        let template = json!({"metadata": {"labels": {"app": "web", "v": version}}, "spec": {"containers": []}});
        let spec = json!({"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template,
            "strategy": strategy});
        let metadata = json!({"name": "web", "namespace": "ns", "uid": "u"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    /// The ReplicaSets after one planned step, with all their pods available.
    fn settled(deployment: &Deployment, mut sets: Vec<Arc<ReplicaSet>>) -> Vec<Arc<ReplicaSet>> {
        let step = plan(deployment, &sets, Timestamp::UNIX_EPOCH);
        sets.extend(step.create.map(Arc::new));
        for set in &mut sets {
            let changed = step.change.iter().find(|it| it.name_any() == set.name_any());
            let mut after = changed.cloned().unwrap_or_else(|| (**set).clone());
            let count = replicas(&after);
            let status = json!({"replicas": count, "readyReplicas": count, "availableReplicas": count});
            after.status = serde_json::from_value(status).unwrap();
            *set = Arc::new(after);
        }
        sets
    }

    fn sizes(sets: &[Arc<ReplicaSet>]) -> Vec<i32> {
        sets.iter().map(|set| replicas(set)).collect()
    }

    #[test]
    fn a_rollout_respects_max_surge_and_max_unavailable() {
        let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
        let mut sets = settled(&deployment(3, "1", rolling.clone()), Vec::new());
        assert_eq!(sizes(&sets), [3]);
        let new = deployment(3, "2", rolling);
        let mut seen = Vec::new();
        for _ in 0..12 {
            sets = settled(&new, sets);
            assert!(sizes(&sets).iter().sum::<i32>() <= 4, "{:?}", sizes(&sets));
            assert!(sizes(&sets).iter().sum::<i32>() >= 3, "{:?}", sizes(&sets));
            seen.push(sizes(&sets));
        }
        assert_eq!(seen.last().unwrap(), &[0, 3], "{seen:?}");
        let status = plan(&new, &sets, Timestamp::UNIX_EPOCH).status;
        assert_eq!((status.updated_replicas, status.available_replicas), (Some(3), Some(3)));
        assert_eq!(revision(&sets[1]), 2);
    }

    #[test]
    fn an_adopted_replica_set_is_rolled_out_or_is_that_of_the_template() {
        let adopted = |version: &str| {
            let template = deployment(1, version, Value::Null).spec.unwrap().template;
            let spec = json!({"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template});
            let status = json!({"replicas": 1, "readyReplicas": 1, "availableReplicas": 1});
            let set = json!({"metadata": {"name": "alone"}, "spec": spec, "status": status});
            vec![Arc::new(serde_json::from_value::<ReplicaSet>(set).unwrap())]
        };
        let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
        let first = plan(&deployment(1, "1", rolling.clone()), &adopted("0"), Timestamp::UNIX_EPOCH);
        let created = first.create.expect("a ReplicaSet of the template");
        assert_eq!((replicas(&created), first.change.iter().all(|set| replicas(set) == 1)), (1, true));
        let same = plan(&deployment(1, "1", rolling), &adopted("1"), Timestamp::UNIX_EPOCH);
        assert_eq!((same.create, same.revision), (None, 1));
    }

    #[test]
    fn a_deployment_that_is_scaled_in_a_rollout_keeps_its_proportions() {
        let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 3, "maxUnavailable": 2}});
        let sets = settled(&deployment(10, "1", rolling.clone()), Vec::new());
        // The new template's pods never become available.
        let stuck = |wanted: i32, sets: Vec<Arc<ReplicaSet>>| {
            let mut sets = settled(&deployment(wanted, "2", rolling.clone()), sets);
            if let Some(new) = sets.get_mut(1) {
                Arc::make_mut(new).status.as_mut().unwrap().available_replicas = Some(0);
            }
            sets
        };
        let sets = (0..3).fold(sets, |sets, _| stuck(10, sets));
        assert_eq!(sizes(&sets), [8, 5]);
        let sets = stuck(30, sets);
        assert_eq!(sizes(&sets), [20, 13]);
        assert_eq!(sets[0].annotations()[DESIRED_REPLICAS], "30");
        assert_eq!(sizes(&stuck(30, sets)), [20, 13], "once");
    }

    #[test]
    fn recreate_waits_until_the_old_pods_are_deleted() {
        let recreate = json!({"type": "Recreate"});
        let sets = settled(&deployment(2, "1", recreate.clone()), Vec::new());
        let new = deployment(2, "2", recreate);
        let sets = settled(&new, sets);
        assert_eq!(sizes(&sets), [0, 0]);
        let sets = settled(&new, sets);
        assert_eq!(sizes(&sets), [0, 2]);
    }

    #[test]
    fn a_rollback_reuses_the_replica_set_of_the_old_template() {
        let mut sets = settled(&deployment(1, "1", Value::Null), Vec::new());
        for version in ["2", "1"] {
            for _ in 0..4 {
                sets = settled(&deployment(1, version, Value::Null), sets);
            }
        }
        assert_eq!(sizes(&sets), [1, 0]);
        assert_eq!(revision(&sets[0]), 3);
        assert_eq!(sets[0].annotations()[REVISION_HISTORY], "1");
    }

    #[test]
    fn replica_sets_have_the_change_cause_and_the_desired_replicas() {
        const CAUSE: &str = "kubernetes.io/change-cause";
        let with_cause = |version: &str, replicas: i32, cause: &str| {
            let mut deployment = deployment(replicas, version, Value::Null);
            let annotations = [(CAUSE, cause), (OWN_ANNOTATIONS[0], "{}"), (REVISION, "7")];
            deployment.annotations_mut().extend(annotations.map(|(key, value)| (key.to_owned(), value.to_owned())));
            deployment
        };
        let annotations_of = |set: &ReplicaSet| {
            let of = |key: &str| set.annotations().get(key).cloned().unwrap_or_default();
            assert!(!set.annotations().contains_key(OWN_ANNOTATIONS[0]), "{:?}", set.annotations());
            (of(CAUSE), of(DESIRED_REPLICAS), of(MAX_REPLICAS), revision(set))
        };
        let mut sets = settled(&with_cause("1", 4, "first"), Vec::new());
        assert_eq!(annotations_of(&sets[0]), ("first".into(), "4".into(), "5".into(), 1));
        // A changed cause reaches the current template's ReplicaSet, but no older one.
        sets = settled(&with_cause("1", 8, "first, grown"), sets);
        assert_eq!(annotations_of(&sets[0]), ("first, grown".into(), "8".into(), "10".into(), 1));
        for _ in 0..12 {
            sets = settled(&with_cause("2", 8, "second"), sets);
        }
        assert_eq!(sizes(&sets), [0, 8]);
        assert_eq!(annotations_of(&sets[0]).0, "first, grown");
        assert_eq!(annotations_of(&sets[1]), ("second".into(), "8".into(), "10".into(), 2));
    }
}
