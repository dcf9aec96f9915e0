//! The StatefulSet controller: pods with an ordinal and a stable name.
//!
//! Pods are created in order, each after all earlier pods are available, and deleted in reverse
//! order; with `Parallel`, all at once. A changed template replaces pods one at a time, from the
//! highest ordinal down to the partition. Each pod has its own claim for every claim template; the
//! claim outlives the pod.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_runtime::{Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume};
use kube::ResourceExt;

use super::{Writer, is_controlled_by, owned_by, pod_of, ready_since, template_hash, time_until_available};
use crate::job::facts::{is_deleted, is_terminated};

/// Delay before the controller checks again whether a terminating claim is gone.
const CLAIM_RECHECK: Duration = Duration::from_secs(1);

/// Label with the revision of the template that a pod was created from.
const REVISION: &str = "controller-revision-hash";
/// Label with the pod's name.
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// Label with the pod's ordinal.
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

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

/// Plans the next writes. `pods` are those that the StatefulSet controls.
pub fn plan(set: &StatefulSet, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let spec = set.spec.clone().unwrap_or_default();
    let revision = format!("{}-{}", set.name_any(), template_hash(&spec.template));
    let first = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0);
    let end = first.saturating_add(spec.replicas.unwrap_or(1));
    let ordered = spec.pod_management_policy.as_deref() != Some("Parallel");
    let by_ordinal: BTreeMap<i32, &Arc<Pod>> =
        pods.iter().filter_map(|pod| Some((ordinal_of(set, pod)?, pod))).collect();
    let of_revision = |pod: &Pod| pod.labels().get(REVISION) == Some(&revision);
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
            None => plan.create.push(pod(set, ordinal, &revision)),
            // A terminated pod is deleted first: its replacement needs the same name.
            Some(pod) if is_terminated(pod) && !is_deleted(pod) => plan.delete.push((*pod).clone()),
            Some(_) => {}
        }
        let settled = by_ordinal.get(&ordinal).is_some_and(|pod| is_available(pod));
        if ordered && !settled {
            return plan;
        }
    }
    // Scale down, from the highest ordinal.
    let surplus = by_ordinal.iter().rev().filter(|(ordinal, _)| !(first..end).contains(ordinal));
    for (_, pod) in surplus {
        if !is_deleted(pod) {
            plan.delete.push((*pod).clone());
        }
        if ordered {
            return plan;
        }
    }
    if !plan.create.is_empty() || !plan.delete.is_empty() {
        return plan;
    }
    // Replace pods of older revisions, from the highest ordinal.
    let strategy = spec.update_strategy.unwrap_or_default();
    if strategy.type_.as_deref() == Some("OnDelete") {
        return plan;
    }
    let partition = strategy.rolling_update.and_then(|rolling| rolling.partition).unwrap_or(0);
    for (_, pod) in by_ordinal.range(partition.max(first)..end).rev() {
        if !of_revision(pod) {
            if !is_deleted(pod) {
                plan.delete.push((*pod).clone());
            }
            return plan;
        }
        if !is_available(pod) {
            return plan;
        }
    }
    plan
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

fn pod(set: &StatefulSet, ordinal: i32, revision: &str) -> Pod {
    let spec = set.spec.clone().unwrap_or_default();
    let mut pod = pod_of(set, &spec.template);
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
    let controller = Controller {
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
    manager
        .controller("statefulset")
        .concurrency(5)
        .watch_self(&sets)
        .watch_owned::<StatefulSet, _>(&pods)
        .run(controller);
}

struct Controller {
    clock: Clock,
    recorder: Recorder,
    sets: Cache<StatefulSet>,
    of_set: Index<Pod>,
    claims: Writer<PersistentVolumeClaim>,
    pods: Writer<Pod>,
    writer: Writer<StatefulSet>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(set) = self.sets.get(&key) else { return Ok(Action::Wait) };
        let uid = set.uid().unwrap_or_default();
        let mut pods = self.of_set.get(&key.to_string());
        pods.retain(|pod| is_controlled_by(pod.as_ref(), &uid));
        let plan = plan(&set, &pods, self.clock.now());
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
            match self.pods.create(&key.namespace, pod).await {
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
            if let Some(claim) = self.claims.cache.get(&ObjectKey::namespaced(&namespace, &name)) {
                if claim.metadata.deletion_timestamp.is_some() {
                    return Ok(false);
                }
                continue;
            }
            let subject = format!("create Claim {name} Pod {pod_name} in StatefulSet {set_name}");
            match self.claims.create(&namespace, &claim).await {
                Ok(_) => record_event(EventType::Normal, "SuccessfulCreate", &format!("{subject} success")),
                // The cache is behind. It will show whether this claim is being deleted.
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
    use serde_json::{Value, json};

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
        let plan = plan(set, pods, "2026-01-02T00:00:00Z".parse().unwrap());
        (names(&plan.create), names(plan.delete.iter().map(|pod| pod.as_ref())))
    }

    #[test]
    fn pods_are_created_in_order_and_deleted_in_reverse() {
        let three = set(json!({"replicas": 3}));
        let make = |set: &StatefulSet, pods: &[Arc<Pod>]| plan(set, pods, Timestamp::UNIX_EPOCH).create.remove(0);
        let first = make(&three, &[]);
        assert_eq!(names([&first]), ["db-0"]);
        let mut pods = vec![Arc::new(first.clone())];
        assert_eq!(next(&three, &pods), (vec![], vec![]), "the first pod is not ready");
        pods = vec![ready(first)];
        let plan_of = |pods: &[Arc<Pod>]| plan(&three, pods, "2026-01-02T00:00:00Z".parse().unwrap());
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
    fn each_pod_has_claims_of_its_own() {
        let data =
            json!({"metadata": {"name": "data", "labels": {"tier": "db"}}, "spec": {"accessModes": ["ReadWriteOnce"]}});
        let template =
            json!({"spec": {"containers": [], "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp"}]}});
        let mut spec = json!({"replicas": 1, "volumeClaimTemplates": [data], "template": template,
            "selector": {"matchLabels": {"app": "db"}}});
        let created_pod = plan(&set(spec.clone()), &[], Timestamp::UNIX_EPOCH).create.remove(0);
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
        let pods: Vec<_> = plan(&old, &[], Timestamp::UNIX_EPOCH).create.into_iter().map(ready).collect();
        let template = json!({"metadata": {"labels": {"v": "2"}}, "spec": {"containers": []}});
        let new = set(json!({"replicas": 2, "template": template}));
        assert_eq!(next(&new, &pods).1, ["db-1"]);
        let halted = set(json!({"replicas": 2, "template": template,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}}));
        assert_eq!(next(&halted, &pods), (vec![], vec![]));
    }
}
