//! The StatefulSet controller: pods with an ordinal and a stable name.
//!
//! Pods are created in order, each after all earlier pods are available, and deleted in reverse
//! order; with `Parallel`, all at once. A changed template replaces pods from the highest ordinal
//! down to the partition, at most `maxUnavailable` at a time. Each pod has its own claim for every
//! claim template; the claim outlives the pod. Templates are kept as ControllerRevisions: a pod
//! that is not yet to be replaced is recreated from the template that it had.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::int_or_string;
use berth_apimachinery::well_known::POD_INDEX;
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, Writer, owned_by,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use serde_json::json;

use super::claims::{Orphans, claim, newly_orphaned};
use super::retention;
use super::revisions::{History, Revisions, Wanted, history, revision_name, template_of};
use super::{pod_of, ready_since, template_hash, time_until_available};
use crate::job::facts::{is_deleted, is_terminated};
use crate::placement::matches_label_selector;

/// Delay before the controller checks again if a terminating claim has been deleted.
const CLAIM_RECHECK: Duration = Duration::from_secs(1);

/// Label with the revision of the template that a pod was created from.
const REVISION: &str = "controller-revision-hash";
/// Label of a ControllerRevision with the hash of its template.
const HASH: &str = "controller.kubernetes.io/hash";
/// Label with the pod's name.
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";

/// The next writes for a StatefulSet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Pods to create.
    pub create: Vec<Pod>,
    /// Pods to delete.
    pub delete: Vec<Arc<Pod>>,
    /// The StatefulSet's new status.
    pub status: StatefulSetStatus,
    /// Time until the next ready pod becomes available.
    pub requeue_after: Option<std::time::Duration>,
}

/// A template and the name of its revision.
#[derive(Clone, Debug, PartialEq)]
pub struct Revision {
    /// Name.
    pub name: String,
    /// Template.
    pub template: PodTemplateSpec,
}

/// Plans the next writes. `pods` are the pods that the StatefulSet controls. `before` is the
/// revision in its status, if that differs from the current template's.
pub fn plan(set: &StatefulSet, pods: &[Arc<Pod>], before: Option<&Revision>, now: Timestamp) -> Plan {
    let spec = set.spec.clone().unwrap_or_default();
    let revision = revision_name(set, &template_hash(&spec.template));
    let first = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0);
    let end = first.saturating_add(spec.replicas.unwrap_or(1));
    let ordered = spec.pod_management_policy.as_deref() != Some("Parallel");
    let by_ordinal: BTreeMap<i32, &Arc<Pod>> =
        pods.iter().filter_map(|pod| Some((ordinal_of(set, pod)?, pod))).collect();
    let wait = |pod: &Pod| {
        let ready = ready_since(pod).filter(|_| !is_deleted(pod))?;
        Some(time_until_available(ready, spec.min_ready_seconds.unwrap_or(0), now))
    };
    let is_available = |pod: &Pod| wait(pod).is_some_and(|wait| wait.is_zero());
    let mut plan = Plan {
        requeue_after: pods.iter().filter_map(|pod| wait(pod)).filter(|wait| !wait.is_zero()).min(),
        status: status(set, pods, &revision, is_available),
        ..Plan::default()
    };
    if set.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    // Create missing pods and replace terminated ones, in order.
    for ordinal in first..end {
        match by_ordinal.get(&ordinal) {
            None => {
                let keeps = before.filter(|_| keeps_revision(set, ordinal - first, ordinal));
                let before = keeps.map(|before| (before.name.as_str(), &before.template));
                let (revision, template) = before.unwrap_or((&revision, &spec.template));
                plan.create.push(pod(set, template, ordinal, revision));
            }
            // A terminated pod is deleted first: its replacement needs the same name.
            Some(pod) if is_terminated(pod) && !is_deleted(pod) => plan.delete.push((*pod).clone()),
            Some(_) => {}
        }
        let settled = by_ordinal.get(&ordinal).is_some_and(|pod| is_available(pod));
        if ordered && !settled {
            return plan;
        }
    }
    // Scale down, from the highest ordinal. In order, a pod that is not available stays unless it
    // is the lowest such pod: the others may need it to become available.
    let surplus = by_ordinal.iter().rev().filter(|(ordinal, _)| !(first..end).contains(ordinal));
    let lowest_broken = by_ordinal.iter().find(|(_, pod)| !is_available(pod)).map(|(ordinal, _)| *ordinal);
    for (ordinal, pod) in surplus {
        if !is_deleted(pod) {
            if ordered && !is_available(pod) && lowest_broken != Some(*ordinal) {
                return plan;
            }
            plan.delete.push((*pod).clone());
        }
        if ordered {
            return plan;
        }
    }
    if !plan.create.is_empty() || !plan.delete.is_empty() {
        return plan;
    }
    plan.delete = replacements(set, &by_ordinal, (first, end), &revision, is_available);
    plan
}

/// Pods of older revisions to delete, from the highest ordinal down to the partition.
fn replacements(
    set: &StatefulSet,
    by_ordinal: &BTreeMap<i32, &Arc<Pod>>,
    (first, end): (i32, i32),
    revision: &str,
    is_available: impl Fn(&Pod) -> bool,
) -> Vec<Arc<Pod>> {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.clone()).unwrap_or_default();
    if strategy.type_.as_deref() == Some("OnDelete") {
        return Vec::new();
    }
    let rolling = strategy.rolling_update.unwrap_or_default();
    let most = rolling
        .max_unavailable
        .map_or(Ok(1), |most| int_or_string::scaled(&json!(most), i64::from(end) - i64::from(first), true));
    let most = usize::try_from(most.unwrap_or(1)).unwrap_or(1).max(1);
    let targets = by_ordinal.range(rolling.partition.unwrap_or(0).max(first).min(end)..end).rev();
    let is_old = |pod: &Pod| pod.labels().get(REVISION).is_none_or(|it| it != revision);
    if most == 1 {
        // In strict order: each pod is available before the next is replaced.
        let next = targets.map(|(_, pod)| *pod).find(|pod| is_old(pod) || !is_available(pod));
        return next.filter(|pod| is_old(pod) && !is_deleted(pod)).cloned().into_iter().collect();
    }
    let unavailable = by_ordinal.range(first..end).filter(|(_, pod)| !is_available(pod)).count();
    let mut budget = most.saturating_sub(unavailable);
    let old = targets.map(|(_, pod)| *pod).filter(|pod| is_old(pod) && !is_deleted(pod));
    // The replacement of a pod that is not available makes no other pod unavailable.
    old.filter(|pod| {
        let is_free = !is_available(pod);
        let counts = !is_free && budget > 0;
        budget -= usize::from(counts);
        is_free || counts
    })
    .cloned()
    .collect()
}

/// True if a missing pod is recreated from the previous template, because its turn in the rollout
/// has not come. `position` counts from the first ordinal.
fn keeps_revision(set: &StatefulSet, position: i32, ordinal: i32) -> bool {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.clone()).unwrap_or_default();
    if strategy.type_.as_deref() == Some("OnDelete") {
        return false;
    }
    match strategy.rolling_update.and_then(|rolling| rolling.partition) {
        Some(partition) => ordinal < partition,
        None => position < set.status.as_ref().and_then(|status| status.current_replicas).unwrap_or(0),
    }
}

fn status(
    set: &StatefulSet,
    pods: &[Arc<Pod>],
    revision: &str,
    is_available: impl Fn(&Pod) -> bool,
) -> StatefulSetStatus {
    let count = |counts: &dyn Fn(&Pod) -> bool| {
        i32::try_from(pods.iter().filter(|pod| counts(pod)).count()).unwrap_or(i32::MAX)
    };
    let known = set.status.clone().unwrap_or_default();
    let updated = count(&|pod| pod.labels().get(REVISION).is_some_and(|it| it == revision) && !is_deleted(pod));
    let replicas = count(&|pod| !is_terminated(pod));
    let wanted = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let ready = count(&|pod| ready_since(pod).is_some() && !is_deleted(pod));
    let rolled_out = updated == wanted && replicas == wanted && ready == wanted;
    let current = match known.current_revision {
        Some(current) if !rolled_out => current,
        _ => revision.to_owned(),
    };
    StatefulSetStatus {
        replicas,
        ready_replicas: Some(ready),
        available_replicas: Some(count(&|pod| is_available(pod))),
        current_replicas: Some(count(&|pod| pod.labels().get(REVISION) == Some(&current) && !is_deleted(pod))),
        updated_replicas: Some(updated),
        current_revision: Some(current),
        update_revision: Some(revision.to_owned()),
        observed_generation: set.metadata.generation,
        collision_count: Some(known.collision_count.unwrap_or(0)),
        conditions: known.conditions,
    }
}

/// The ordinal at the end of a pod's name; `None` if the name is not of this set.
fn ordinal_of(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    pod.name_any().strip_prefix(&set.name_any())?.strip_prefix('-')?.parse().ok()
}

fn pod(set: &StatefulSet, template: &PodTemplateSpec, ordinal: i32, revision: &str) -> Pod {
    let spec = set.spec.clone().unwrap_or_default();
    let mut pod = pod_of(set, template);
    let name = format!("{}-{ordinal}", set.name_any());
    for (key, value) in [(REVISION, revision), (POD_NAME, &name), (POD_INDEX, &ordinal.to_string())] {
        pod.labels_mut().insert(key.to_owned(), value.to_owned());
    }
    let spec_of_pod = pod.spec.get_or_insert_default();
    spec_of_pod.hostname = Some(name.clone());
    spec_of_pod.subdomain = spec.service_name.filter(|service| !service.is_empty());
    for template in spec.volume_claim_templates.iter().flatten() {
        let volumes = pod.spec.get_or_insert_default().volumes.get_or_insert_default();
        let (name, claim_name) = (template.name_any(), claim_name(set, template, ordinal));
        // The claim replaces a volume of the same name in the template.
        volumes.retain(|volume| volume.name != name);
        let claim = PersistentVolumeClaimVolumeSource { claim_name, read_only: None };
        volumes.push(Volume { name, persistent_volume_claim: Some(claim), ..Volume::default() });
    }
    pod.metadata.name = Some(name);
    pod
}

fn selector(set: &StatefulSet) -> LabelSelector {
    set.spec.as_ref().map(|spec| spec.selector.clone()).unwrap_or_default()
}

fn claim_name(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i32) -> String {
    format!("{}-{}-{ordinal}", template.name_any(), set.name_any())
}

/// The claims of the pod with this ordinal.
fn claims(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let spec = set.spec.clone().unwrap_or_default();
    let retention = spec.persistent_volume_claim_retention_policy.unwrap_or_default();
    let delete_with_set = retention.when_deleted.as_deref() == Some("Delete");
    let of_template = |template: PersistentVolumeClaim| {
        let mut claim = PersistentVolumeClaim { status: None, ..template };
        claim.metadata.name = Some(claim_name(set, &claim, ordinal));
        claim.metadata.namespace = set.namespace();
        // With the selector's labels, a query that finds the pods also finds the claims.
        claim.labels_mut().extend(spec.selector.match_labels.clone().unwrap_or_default());
        if delete_with_set {
            claim.metadata.owner_references = Some(vec![owned_by(set)]);
        }
        claim
    };
    spec.volume_claim_templates.into_iter().flatten().map(of_template).collect()
}

pub(super) fn install(manager: &mut Manager) {
    let sets = manager.cache::<StatefulSet>();
    let pods = manager.cache::<Pod>();
    let claims = manager.cache::<PersistentVolumeClaim>();
    let revisions = manager.cache::<ControllerRevision>();
    let controller = Controller {
        orphans: Orphans::new(&pods),
        revisions: Revisions::new::<StatefulSet>(manager, &revisions),
        claims: Writer::new(manager, &claims),
        clock: manager.clock(),
        recorder: manager.recorder("statefulset-controller"),
        of_set: pods.index(|pod: &Pod| {
            ObjectKey::of_controller_owner::<StatefulSet>(pod).map(|key| key.to_string()).into_iter().collect()
        }),
        pods: Writer::new(manager, &pods),
        writer: Writer::new(manager, &sets),
        sets: sets.clone(),
    };
    let adopting = sets.clone();
    manager
        .controller("statefulset")
        .concurrency(5)
        .watch_self(&sets)
        .watch_owned::<StatefulSet, _>(&pods)
        .watch(&pods, move |delta| {
            let Some(pod) = newly_orphaned(delta) else { return Vec::new() };
            let sets = adopting.iter_namespace(&pod.namespace().unwrap_or_default());
            let selecting = sets.filter(|set| {
                ordinal_of(set, pod).is_some() && matches_label_selector(Some(&selector(set)), pod.labels())
            });
            selecting.map(|set| ObjectKey::of(set.as_ref())).collect()
        })
        .run(controller);
}

struct Controller {
    clock: Clock,
    recorder: Recorder,
    sets: Cache<StatefulSet>,
    of_set: Index<Pod>,
    orphans: Orphans<Pod>,
    revisions: Revisions,
    claims: Writer<PersistentVolumeClaim>,
    pods: Writer<Pod>,
    writer: Writer<StatefulSet>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(set) = self.sets.get(&key) else { return Ok(Action::Wait) };
        let (pods, history, before) = self.observe(&set).await?;
        let plan = plan(&set, &pods, before.as_ref(), self.clock.now());
        self.retain_claims(&set, &pods).await?;
        let record_event =
            |type_, reason: &str, message: &str| self.recorder.event(set.as_ref(), type_, reason, message);
        for pod in &plan.delete {
            self.pods.delete(pod).await?;
            let message = format!("delete Pod {} in StatefulSet {} successful", pod.name_any(), key.name);
            record_event(EventType::Normal, "SuccessfulDelete", &message);
        }
        let (mut failed_create, mut requeue_after) = (None, plan.requeue_after);
        for pod in &plan.create {
            let name = pod.name_any();
            match self.ensure_claims(&set, pod, record_event).await {
                Ok(true) => {}
                Ok(false) => {
                    requeue_after = Some(requeue_after.map_or(CLAIM_RECHECK, |after| after.min(CLAIM_RECHECK)));
                    continue;
                }
                Err(error) => {
                    failed_create = Some(error);
                    break;
                }
            }
            match self.pods.create(pod).await {
                Ok(_) => {
                    let message = format!("create Pod {name} in StatefulSet {} successful", key.name);
                    record_event(EventType::Normal, "SuccessfulCreate", &message);
                }
                Err(error) => {
                    let cause = berth_runtime::message(&error);
                    let message = format!("create Pod {name} in StatefulSet {} failed error: {cause}", key.name);
                    record_event(EventType::Warning, "FailedCreate", &message);
                    failed_create = Some(error);
                    break;
                }
            }
        }
        self.revisions.prune(&history).await?;
        if set.status.as_ref() != Some(&plan.status) {
            self.writer.replace_status(&StatefulSet { status: Some(plan.status), ..(*set).clone() }).await?;
        }
        match failed_create {
            Some(error) => Err(error.into()),
            None => Ok(requeue_after.map_or(Action::Wait, Action::After)),
        }
    }
}

impl Controller {
    /// Claims the set's pods and records its template. Returns the pods, the planned history and
    /// the revision that pods had before the current one.
    async fn observe(&self, set: &StatefulSet) -> Result<(Vec<Arc<Pod>>, History, Option<Revision>), Error> {
        let (key, selector) = (ObjectKey::of(set), selector(set));
        let mut orphans = self.orphans.candidates(&key.namespace, &selector);
        orphans.retain(|pod| ordinal_of(set, pod).is_some());
        let claims = claim(set, &selector, self.of_set.get(&key.to_string()), orphans);
        let pods = claims.apply(set, &self.pods).await?;
        if set.metadata.deletion_timestamp.is_some() {
            return Ok((pods, History::default(), None));
        }
        let spec = set.spec.clone().unwrap_or_default();
        let hash = template_hash(&spec.template);
        let wanted =
            Wanted { template: &spec.template, hash: &hash, hash_label: HASH, limit: spec.revision_history_limit };
        let current = set.status.as_ref().and_then(|status| status.current_revision.clone());
        let live = pods.iter().filter_map(|pod| pod.labels().get(REVISION).cloned()).chain(current.clone()).collect();
        let known = self.revisions.of(set, &selector).await?;
        let history = history(set, &wanted, &known, &live);
        self.revisions.record(set, &history).await?;
        let current = current.filter(|current| *current != revision_name(set, &hash));
        let before = current.and_then(|name| {
            let revision = known.iter().find(|revision| revision.name_any() == name)?;
            Some(Revision { name, template: template_of(revision)? })
        });
        Ok((pods, history, before))
    }

    /// Sets the owners of the pods' claims, before a pod is deleted.
    async fn retain_claims(&self, set: &StatefulSet, pods: &[Arc<Pod>]) -> Result<(), Error> {
        let spec = set.spec.clone().unwrap_or_default();
        let templates = spec.volume_claim_templates.unwrap_or_default();
        if templates.is_empty() || set.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let first = spec.ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0);
        let ordinals = first..first.saturating_add(spec.replicas.unwrap_or(1));
        let namespace = set.namespace().unwrap_or_default();
        for (pod, ordinal) in pods.iter().filter_map(|pod| Some((pod, ordinal_of(set, pod)?))) {
            for name in templates.iter().map(|template| claim_name(set, template, ordinal)) {
                let known = self.claims.cache().get(&ObjectKey::namespaced(&namespace, &name));
                let known = known.filter(|claim| claim.metadata.deletion_timestamp.is_none());
                let is_surplus = !ordinals.contains(&ordinal);
                if let Some(claim) = known.and_then(|claim| retention::updated(set, pod, is_surplus, &claim)) {
                    self.claims.replace(&claim).await?;
                }
            }
        }
        Ok(())
    }

    /// Creates the missing claims of a pod. Returns false while a claim of the same name is being
    /// deleted: a pod that used it would delay the deletion, and then lose its volume.
    async fn ensure_claims(
        &self,
        set: &StatefulSet,
        pod: &Pod,
        record_event: impl Fn(EventType, &str, &str),
    ) -> Result<bool, kube::Error> {
        let (pod_name, set_name, namespace) = (pod.name_any(), set.name_any(), set.namespace().unwrap_or_default());
        for claim in ordinal_of(set, pod).map(|ordinal| claims(set, ordinal)).unwrap_or_default() {
            let name = claim.name_any();
            if let Some(claim) = self.claims.cache().get(&ObjectKey::namespaced(&namespace, &name)) {
                if claim.metadata.deletion_timestamp.is_some() {
                    return Ok(false);
                }
                continue;
            }
            let subject = format!("create Claim {name} Pod {pod_name} in StatefulSet {set_name}");
            match self.claims.create(&claim).await {
                Ok(_) => record_event(EventType::Normal, "SuccessfulCreate", &format!("{subject} success")),
                // The cache is stale. It will show if this claim is being deleted.
                Err(error) if berth_runtime::is_already_exists(&error) => return Ok(false),
                Err(error) => {
                    let cause = berth_runtime::message(&error);
                    record_event(EventType::Warning, "FailedCreate", &format!("{subject} failed error: {cause}"));
                    return Err(error);
                }
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn set(spec: Value) -> StatefulSet {
        let mut full = json!({"serviceName": "", "selector": {}, "template": {"spec": {"containers": []}}});
        full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": {"name": "db", "namespace": "ns", "uid": "u"}, "spec": full}))
            .unwrap()
    }

    fn ready(mut pod: Pod) -> Arc<Pod> {
        pod.status = serde_json::from_value(json!({"phase": "Running", "conditions": [{"type": "Ready",
            "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}))
        .unwrap();
        Arc::new(pod)
    }

    fn names<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Vec<String> {
        pods.into_iter().map(|pod| pod.name_any()).collect()
    }

    fn next(set: &StatefulSet, pods: &[Arc<Pod>]) -> (Vec<String>, Vec<String>) {
        let plan = plan(set, pods, None, "2026-01-02T00:00:00Z".parse().unwrap());
        (names(&plan.create), names(plan.delete.iter().map(|pod| pod.as_ref())))
    }

    #[test]
    fn pods_are_created_in_order_and_deleted_in_reverse() {
        let three = set(json!({"replicas": 3}));
        let make = |set: &StatefulSet, pods: &[Arc<Pod>]| plan(set, pods, None, Timestamp::UNIX_EPOCH).create.remove(0);
        let first = make(&three, &[]);
        assert_eq!(names([&first]), ["db-0"]);
        let mut pods = vec![Arc::new(first.clone())];
        assert_eq!(next(&three, &pods), (vec![], vec![]), "the first pod is not ready");
        pods = vec![ready(first)];
        let plan_of = |pods: &[Arc<Pod>]| plan(&three, pods, None, "2026-01-02T00:00:00Z".parse().unwrap());
        for _ in 0..2 {
            let created = plan_of(&pods).create;
            assert_eq!(created.len(), 1);
            pods.extend(created.into_iter().map(ready));
        }
        assert_eq!(plan_of(&pods).status.ready_replicas, Some(3));
        assert_eq!(next(&set(json!({"replicas": 1})), &pods), (vec![], vec!["db-2".to_owned()]));
        let parallel = set(json!({"replicas": 1, "podManagementPolicy": "Parallel"}));
        assert_eq!(next(&parallel, &pods).1, ["db-2", "db-1"]);
    }

    #[test]
    fn a_broken_pod_stops_scaling_down_in_order_unless_it_is_the_first_broken_one() {
        let three = set(json!({"replicas": 3}));
        let pods: Vec<Pod> = (0..3).map(|ordinal| pod(&three, &PodTemplateSpec::default(), ordinal, "1")).collect();
        let with_ready = |are_ready: [bool; 3]| -> Vec<Arc<Pod>> {
            let pods = pods.iter().cloned().zip(are_ready);
            pods.map(|(pod, is_ready)| if is_ready { ready(pod) } else { Arc::new(pod) }).collect()
        };
        let none = set(json!({"replicas": 0}));
        assert_eq!(next(&none, &with_ready([false; 3])).1, [""; 0]);
        assert_eq!(next(&none, &with_ready([false, true, true])).1, ["db-2"]);
        assert_eq!(next(&none, &with_ready([true, true, false])).1, ["db-2"]);
        let parallel = set(json!({"replicas": 0, "podManagementPolicy": "Parallel"}));
        assert_eq!(next(&parallel, &with_ready([false; 3])).1, ["db-2", "db-1", "db-0"]);
    }

    #[test]
    fn each_pod_has_separate_claims() {
        let data =
            json!({"metadata": {"name": "data", "labels": {"tier": "db"}}, "spec": {"accessModes": ["ReadWriteOnce"]}});
        let template =
            json!({"spec": {"containers": [], "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp"}]}});
        let mut spec = json!({"replicas": 1, "volumeClaimTemplates": [data], "template": template,
            "selector": {"matchLabels": {"app": "db"}}});
        let created_pod = plan(&set(spec.clone()), &[], None, Timestamp::UNIX_EPOCH).create.remove(0);
        let volumes = json!(created_pod.spec.unwrap().volumes);
        assert_eq!(
            volumes,
            json!([{"name": "tmp"}, {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}])
        );
        let claim = claims(&set(spec.clone()), 0).remove(0);
        assert_eq!((claim.name_any().as_str(), claim.namespace().as_deref()), ("data-db-0", Some("ns")));
        assert_eq!(json!(claim.metadata.labels), json!({"tier": "db", "app": "db"}));
        assert_eq!(claim.metadata.owner_references, None, "claims outlive the StatefulSet by default");
        spec["persistentVolumeClaimRetentionPolicy"] = json!({"whenDeleted": "Delete"});
        assert_eq!(claims(&set(spec), 0)[0].metadata.owner_references.as_ref().unwrap()[0].name, "db");
    }

    #[test]
    fn a_new_template_replaces_pods_from_the_end_down_to_the_partition() {
        let old = set(json!({"replicas": 2, "podManagementPolicy": "Parallel"}));
        let pods: Vec<_> = plan(&old, &[], None, Timestamp::UNIX_EPOCH).create.into_iter().map(ready).collect();
        let template = json!({"metadata": {"labels": {"v": "2"}}, "spec": {"containers": []}});
        let new = set(json!({"replicas": 2, "template": template}));
        assert_eq!(next(&new, &pods).1, ["db-1"]);
        let halted = set(json!({"replicas": 2, "template": template,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}}));
        assert_eq!(next(&halted, &pods), (vec![], vec![]));
    }
    fn with_template(version: &str, more: Value) -> StatefulSet {
        let template = json!({"metadata": {"labels": {"v": version}}, "spec": {"containers": []}});
        let mut spec = json!({"replicas": 4, "template": template, "podManagementPolicy": "Parallel"});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        set(spec)
    }

    #[test]
    fn max_unavailable_pods_are_replaced_together_and_broken_ones_first() {
        let old: Vec<_> =
            plan(&with_template("1", json!({})), &[], None, Timestamp::UNIX_EPOCH).create.into_iter().collect();
        let rolling = json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}});
        let new = with_template("2", rolling);
        let all_ready: Vec<_> = old.iter().cloned().map(ready).collect();
        assert_eq!(next(&new, &all_ready).1, ["db-3", "db-2"]);
        let mut one_broken = all_ready.clone();
        one_broken[0] = Arc::new(old[0].clone());
        assert_eq!(next(&new, &one_broken).1, ["db-3", "db-0"]);
    }

    #[test]
    fn a_pod_below_the_partition_is_recreated_from_its_template() {
        let rolling = json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}});
        let template: PodTemplateSpec =
            serde_json::from_value(json!({"metadata": {"labels": {"v": "1"}}, "spec": {"containers": []}})).unwrap();
        let before = Revision { name: "db-old".to_owned(), template };
        let created = plan(&with_template("2", rolling), &[], Some(&before), Timestamp::UNIX_EPOCH).create;
        let versions: Vec<_> = created.iter().map(|pod| pod.labels()["v"].as_str()).collect();
        assert_eq!(versions, ["1", "1", "2", "2"]);
        assert_eq!(created[0].labels()[REVISION], "db-old");
    }
}
