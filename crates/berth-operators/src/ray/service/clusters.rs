//! The clusters of a RayService: which are created, changed in place, replaced and deleted. Pure.
//!
//! A cluster keeps a hash of the spec that it was made from. Numbers of replicas are not part of
//! it, because the autoscaler changes them. A spec that only has more worker groups at its end is
//! applied in place; any other change makes a pending cluster, which replaces the active one once
//! its applications run.

use berth_api::frameworks::{RayCluster, RayService};
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::{Value, json};
use sha1::{Digest, Sha1};

use super::types::{RayServiceSpec, RayServiceStatus, condition};
use crate::ray::constants::{ORIGIN_KIND, ORIGIN_NAME};
use berth_runtime::owned_by;

/// Annotation of a cluster: hash of the spec that it was made from.
const HASH: &str = "ray.io/hash-without-replicas-and-workers-to-delete";
/// Annotation of a cluster: number of worker groups in that spec.
const GROUPS: &str = "ray.io/num-worker-groups";

/// The cluster with this name for the service's spec.
pub fn cluster(service: &RayService, spec: &RayServiceSpec, name: &str) -> RayCluster {
    let mut labels = service.labels().clone();
    labels.insert(ORIGIN_NAME.to_owned(), service.name_any());
    labels.insert(ORIGIN_KIND.to_owned(), "RayService".to_owned());
    let mut annotations = service.annotations().clone();
    annotations.remove(berth_api::well_known::LAST_APPLIED);
    annotations.insert(HASH.to_owned(), hash(&spec.cluster, usize::MAX));
    annotations.insert(GROUPS.to_owned(), group_count(&spec.cluster).to_string());
    let mut cluster = RayCluster::named(name);
    cluster.metadata = ObjectMeta {
        namespace: service.namespace(),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: Some(vec![owned_by(service)]),
        ..cluster.metadata
    };
    cluster.spec = spec.cluster.clone();
    cluster
}

fn group_count(cluster: &Value) -> usize {
    cluster["workerGroupSpecs"].as_array().map_or(0, Vec::len)
}

/// Hash of a cluster's spec with its first `groups` worker groups, without the fields whose change
/// does not require another cluster.
fn hash(cluster: &Value, groups: usize) -> String {
    let mut kept = cluster.clone();
    let forget = |value: &mut Value, fields: &[&str]| {
        if let Some(object) = value.as_object_mut() {
            fields.iter().for_each(|field| _ = object.remove(*field));
        }
    };
    // Admission to a queue changes these fields after the creation.
    let placement = ["tolerations", "schedulingGates"];
    forget(&mut kept, &["suspend", "upgradeStrategy"]);
    if let Some(pod) = kept.pointer_mut("/headGroupSpec/template/spec") {
        forget(pod, &placement);
    }
    if let Some(list) = kept.get_mut("workerGroupSpecs").and_then(Value::as_array_mut) {
        list.truncate(groups);
        for group in list {
            forget(group, &["replicas", "minReplicas", "maxReplicas", "scaleStrategy"]);
            if let Some(pod) = group.pointer_mut("/template/spec") {
                forget(pod, &placement);
            }
        }
    }
    hex::encode(Sha1::digest(kept.to_string()))
}

/// How the service's spec compares to the one that a cluster was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No relevant difference.
    Same,
    /// More worker groups at the end.
    Groups,
    /// A difference that requires another cluster.
    Other,
}

/// Compares a cluster to the service's spec.
pub fn change(spec: &RayServiceSpec, cluster: &RayCluster) -> Change {
    let made_from = cluster.annotations().get(HASH);
    if made_from == Some(&hash(&spec.cluster, usize::MAX)) {
        return Change::Same;
    }
    let known = cluster.annotations().get(GROUPS).and_then(|count| count.parse::<usize>().ok());
    let Some(known) = known else { return Change::Groups };
    let grew = group_count(&spec.cluster) >= known && made_from == Some(&hash(&spec.cluster, known));
    if grew { Change::Groups } else { Change::Other }
}

/// The existing cluster with the service's spec, to be updated in place; `None` if it must not be
/// changed. The active cluster keeps its spec during an upgrade.
pub fn updated(
    service: &RayService,
    spec: &RayServiceSpec,
    status: &RayServiceStatus,
    existing: &RayCluster,
) -> Option<RayCluster> {
    let is_active = existing.name_any() == status.active_service_status.ray_cluster_name;
    if (is_active && status.is_true(condition::UPGRADE_IN_PROGRESS)) || change(spec, existing) != Change::Groups {
        return None;
    }
    let wanted = cluster(service, spec, &existing.name_any());
    let mut changed = existing.clone();
    changed.metadata.labels = wanted.metadata.labels;
    changed.metadata.annotations = wanted.metadata.annotations;
    let suspend = existing.spec.get("suspend").cloned();
    changed.spec = wanted.spec;
    // The service sets `suspend` of a cluster only at the creation. Afterwards, the controllers of
    // the queues set it.
    match suspend {
        Some(suspend) => changed.spec["suspend"] = suspend,
        None => _ = changed.spec.as_object_mut().map(|spec| spec.remove("suspend")),
    }
    Some(changed)
}

/// True if the service needs a new pending cluster.
pub fn needs_new(spec: &RayServiceSpec, active: Option<&RayCluster>, pending: Option<&RayCluster>) -> bool {
    match pending.or(active) {
        None => true,
        Some(cluster) => change(spec, cluster) == Change::Other && matches!(spec.upgrade(), None | Some("NewCluster")),
    }
}

/// The status of a cluster without the time of its last write.
pub fn observed(cluster: Option<&RayCluster>) -> Value {
    let mut status = cluster.and_then(|cluster| cluster.status.clone()).unwrap_or(Value::Null);
    if let Some(fields) = status.as_object_mut() {
        fields.remove("lastUpdateTime");
    }
    if status == json!({}) { Value::Null } else { status }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, replicas: i32) -> Value {
        json!({"groupName": name, "replicas": replicas, "template": {"spec": {"containers": [{"name": "w"}]}}})
    }

    fn spec(groups: &[Value], image: &str, upgrade: &str) -> RayServiceSpec {
        let template = json!({"spec": {"containers": [{"name": "ray-head", "image": image}]}});
        let cluster = json!({"headGroupSpec": {"template": template}, "workerGroupSpecs": groups});
        let strategy = json!({"type": upgrade});
        RayServiceSpec::read(&json!({"rayClusterConfig": cluster, "upgradeStrategy": strategy})).unwrap()
    }

    fn made() -> RayCluster {
        cluster(&RayService::named("fruit"), &spec(&[group("a", 1)], "ray:1", ""), "fruit-aaaaa")
    }

    fn check(groups: &[Value], image: &str, expected: Change) {
        assert_eq!(change(&spec(groups, image, ""), &made()), expected, "{groups:?} {image}");
    }

    #[test]
    fn a_changed_number_of_replicas_keeps_the_cluster() {
        check(&[group("a", 1)], "ray:1", Change::Same);
        check(&[group("a", 5)], "ray:1", Change::Same);
        let mut tolerating = group("a", 1);
        tolerating["template"]["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
        check(&[tolerating], "ray:1", Change::Same);
        check(&[group("a", 1), group("b", 1)], "ray:1", Change::Groups);
        check(&[group("b", 1), group("a", 1)], "ray:1", Change::Other);
        check(&[], "ray:1", Change::Other);
        check(&[group("a", 1)], "ray:2", Change::Other);
    }

    #[test]
    fn a_changed_image_makes_a_new_cluster_unless_the_strategy_forbids_it() {
        let active = made();
        let new_image = |upgrade: &str| spec(&[group("a", 1)], "ray:2", upgrade);
        assert!(needs_new(&new_image(""), Some(&active), None));
        assert!(needs_new(&new_image("NewCluster"), Some(&active), None));
        assert!(!needs_new(&new_image("None"), Some(&active), None));
        assert!(needs_new(&new_image("None"), None, None));
        assert!(!needs_new(&spec(&[group("a", 2)], "ray:1", ""), Some(&active), None));
    }

    #[test]
    fn an_added_group_is_applied_in_place_and_keeps_the_suspension() {
        let mut existing = made();
        existing.spec["suspend"] = true.into();
        let grown = spec(&[group("a", 1), group("b", 1)], "ray:1", "");
        let status = RayServiceStatus::default();
        let changed = updated(&RayService::named("fruit"), &grown, &status, &existing).unwrap();
        assert_eq!(changed.spec["workerGroupSpecs"].as_array().unwrap().len(), 2);
        assert_eq!(changed.spec["suspend"], true);
        assert_eq!(change(&grown, &changed), Change::Same);
    }
}
