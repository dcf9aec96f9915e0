//! StatefulSets: pods with a number and a name that lasts.
//!
//! Pods are made in order, each when all before it are ready, and taken away in reverse; with `Parallel` all at once. A new
//! template replaces pods from the highest number down to the partition, one at a time. Each pod has a claim of its own for
//! every claim template, which outlives the pod.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_runtime::{Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume};
use kube::ResourceExt;

use super::{Writer, is_controlled_by, owned_by, pod_of, ready_since, template_hash, until_available};
use crate::job::facts::{is_deleted, is_terminated};

/// How long until it is looked whether a claim has gone.
const CLAIM_GOES: Duration = Duration::from_secs(1);

/// Label: the template a pod was made of.
const REVISION: &str = "controller-revision-hash";
/// Label: the pod's own name.
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// Label: the pod's number.
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// What a StatefulSet needs next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Pods to make.
    pub create: Vec<Pod>,
    /// Pods to delete.
    pub delete: Vec<Arc<Pod>>,
    /// Its status.
    pub status: StatefulSetStatus,
    /// When a ready pod becomes an available one.
    pub again_after: Option<std::time::Duration>,
}

/// Plans the next step. `pods`: those it controls.
pub fn plan(set: &StatefulSet, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let spec = set.spec.clone().unwrap_or_default();
    let revision = format!("{}-{}", set.name_any(), template_hash(&spec.template));
    let first = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0);
    let end = first.saturating_add(spec.replicas.unwrap_or(1));
    let ordered = spec.pod_management_policy.as_deref() != Some("Parallel");
    let by_number: BTreeMap<i32, &Arc<Pod>> = pods.iter().filter_map(|pod| Some((number(set, pod)?, pod))).collect();
    let of_revision = |pod: &Pod| pod.labels().get(REVISION) == Some(&revision);
    let wait = |pod: &Pod| {
        let ready = ready_since(pod).filter(|_| !is_deleted(pod))?;
        Some(until_available(ready, spec.min_ready_seconds.unwrap_or(0), now))
    };
    let is_available = |pod: &Pod| wait(pod).is_some_and(|wait| wait.is_zero());
    let mut plan = Plan {
        again_after: pods.iter().filter_map(|pod| wait(pod)).filter(|wait| !wait.is_zero()).min(),
        status: status(set, pods, &revision, is_available),
        ..Plan::default()
    };
    if set.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    for ordinal in first..end {
        match by_number.get(&ordinal) {
            None => plan.create.push(pod(set, ordinal, &revision)),
            // One that ended is replaced: its name has to become free first.
            Some(pod) if is_terminated(pod) && !is_deleted(pod) => plan.delete.push((*pod).clone()),
            Some(_) => {}
        }
        let settled = by_number.get(&ordinal).is_some_and(|pod| is_available(pod));
        if ordered && !settled {
            return plan;
        }
    }
    let surplus = by_number.iter().rev().filter(|(ordinal, _)| !(first..end).contains(ordinal));
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
    let strategy = spec.update_strategy.unwrap_or_default();
    if strategy.type_.as_deref() == Some("OnDelete") {
        return plan;
    }
    let partition = strategy.rolling_update.and_then(|rolling| rolling.partition).unwrap_or(0);
    for (_, pod) in by_number.range(partition.max(first)..end).rev() {
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

/// The number at the end of a pod's name.
fn number(set: &StatefulSet, pod: &Pod) -> Option<i32> {
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
        // The claim goes before what the template calls by the same name.
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

/// The claims of the pod with this number.
fn claims(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let spec = set.spec.clone().unwrap_or_default();
    let retention = spec.persistent_volume_claim_retention_policy.unwrap_or_default();
    let goes_along = retention.when_deleted.as_deref() == Some("Delete");
    let of_template = |template: PersistentVolumeClaim| {
        let mut claim = PersistentVolumeClaim { status: None, ..template };
        claim.metadata.name = Some(claim_name(set, &claim, ordinal));
        claim.metadata.namespace = set.namespace();
        // So that they are found as the pods are.
        claim.labels_mut().extend(spec.selector.match_labels.clone().unwrap_or_default());
        if goes_along {
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
        let tell = |type_, reason: &str, message: &str| self.recorder.event(set.as_ref(), type_, reason, message);
        for pod in &plan.delete {
            self.pods.delete(pod).await?;
            let message = format!("delete Pod {} in StatefulSet {} successful", pod.name_any(), key.name);
            tell(EventType::Normal, "SuccessfulDelete", &message);
        }
        let (mut refused, mut again_after) = (None, plan.again_after);
        for pod in &plan.create {
            let name = pod.name_any();
            match self.claim(&set, pod, tell).await {
                Ok(true) => {}
                Ok(false) => {
                    again_after = Some(again_after.map_or(CLAIM_GOES, |after| after.min(CLAIM_GOES)));
                    continue;
                }
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
            match self.pods.create(&key.namespace, pod).await {
                Ok(_) => {
                    let message = format!("create Pod {name} in StatefulSet {} successful", key.name);
                    tell(EventType::Normal, "SuccessfulCreate", &message);
                }
                Err(error) => {
                    let why = berth_runtime::message(&error);
                    let message = format!("create Pod {name} in StatefulSet {} failed error: {why}", key.name);
                    tell(EventType::Warning, "FailedCreate", &message);
                    refused = Some(error);
                    break;
                }
            }
        }
        if set.status.as_ref() != Some(&plan.status) {
            self.writer.replace_status(&StatefulSet { status: Some(plan.status), ..(*set).clone() }).await?;
        }
        match refused {
            Some(error) => Err(error.into()),
            None => Ok(again_after.map_or(Action::Wait, Action::After)),
        }
    }
}

impl Controller {
    /// Makes the claims of a pod that are not there. False while one of an earlier pod's is on its way out: a pod that used it
    /// would keep it from going, and lose it with the next.
    async fn claim(
        &self,
        set: &StatefulSet,
        pod: &Pod,
        tell: impl Fn(EventType, &str, &str),
    ) -> Result<bool, kube::Error> {
        let (pod_name, set_name, namespace) = (pod.name_any(), set.name_any(), set.namespace().unwrap_or_default());
        for claim in number(set, pod).map(|ordinal| claims(set, ordinal)).unwrap_or_default() {
            let name = claim.name_any();
            if let Some(claim) = self.claims.cache.get(&ObjectKey::namespaced(&namespace, &name)) {
                if claim.metadata.deletion_timestamp.is_some() {
                    return Ok(false);
                }
                continue;
            }
            let what = format!("create Claim {name} Pod {pod_name} in StatefulSet {set_name}");
            match self.claims.create(&namespace, &claim).await {
                Ok(_) => tell(EventType::Normal, "SuccessfulCreate", &format!("{what} success")),
                // Whether it is to stay is seen when the cache knows it.
                Err(error) if berth_runtime::is_already_exists(&error) => return Ok(false),
                Err(error) => {
                    let why = berth_runtime::message(&error);
                    tell(EventType::Warning, "FailedCreate", &format!("{what} failed error: {why}"));
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
    fn pods_come_one_after_the_other_and_go_in_reverse() {
        let three = set(json!({"replicas": 3}));
        let make = |set: &StatefulSet, pods: &[Arc<Pod>]| plan(set, pods, Timestamp::UNIX_EPOCH).create.remove(0);
        let first = make(&three, &[]);
        assert_eq!(names([&first]), ["db-0"]);
        let mut pods = vec![Arc::new(first.clone())];
        assert_eq!(next(&three, &pods), (vec![], vec![]), "the first one is not ready");
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
        let made = plan(&set(spec.clone()), &[], Timestamp::UNIX_EPOCH).create.remove(0);
        let volumes = json!(made.spec.unwrap().volumes);
        assert_eq!(
            volumes,
            json!([{"name": "tmp"}, {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}])
        );
        let claim = claims(&set(spec.clone()), 0).remove(0);
        assert_eq!((claim.name_any().as_str(), claim.namespace().as_deref()), ("data-db-0", Some("ns")));
        assert_eq!(json!(claim.metadata.labels), json!({"tier": "db", "app": "db"}));
        assert_eq!(claim.metadata.owner_references, None, "they stay when the set goes");
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
