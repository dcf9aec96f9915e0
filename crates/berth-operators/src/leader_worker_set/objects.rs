//! The objects of a LeaderWorkerSet: the StatefulSet of its leaders, a StatefulSet of workers per
//! group, and headless Services.

use std::collections::BTreeMap;

use berth_api::frameworks::LeaderWorkerSet;
use berth_apimachinery::well_known::LAST_APPLIED;
use berth_runtime::owned_by;
use k8s_openapi::api::core::v1::{Pod, Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::constants::{
    EXCLUSIVE_TOPOLOGY, GROUP_INDEX, GROUP_KEY, LEADER_NAME, LEADER_REQUESTS_TPUS, NAME, REPLICAS, REVISION, SIZE,
    SUBDOMAIN_POLICY, SUBGROUP_EXCLUSIVE_TOPOLOGY, SUBGROUP_POLICY_TYPE, SUBGROUP_SIZE, WORKER_INDEX,
};
use super::facts::{annotation, label, revision_of};
use super::rollout::{Bounds, Step};
use super::types::{LeaderWorkerSetSpec, LeaderWorkerTemplate};
use super::webhook::tpu;

/// The labels of a set's leaders.
pub fn leader_labels(set: &str) -> [(&'static str, String); 2] {
    [(NAME, set.to_owned()), (WORKER_INDEX, "0".to_owned())]
}

/// Adds entries to a map of labels or annotations.
fn extend(map: &mut Value, entries: impl IntoIterator<Item = (&'static str, String)>) {
    for (key, value) in entries {
        map[key] = json!(value);
    }
}

/// A map with these entries in addition to its own; entries win.
fn merged(
    own: Option<&BTreeMap<String, String>>,
    entries: impl IntoIterator<Item = (&'static str, String)>,
) -> BTreeMap<String, String> {
    let mut all = own.cloned().unwrap_or_default();
    // What kubectl remembers of the set would be wrong for its StatefulSets.
    all.remove(LAST_APPLIED);
    all.extend(entries.into_iter().map(|(key, value)| (key.to_owned(), value)));
    all
}

/// Annotations about the subgroups, if the group has any.
fn subgroup_annotations(template: &LeaderWorkerTemplate, set: &LeaderWorkerSet) -> Vec<(&'static str, String)> {
    let Some(policy) = &template.sub_group_policy else { return Vec::new() };
    let mut annotations = Vec::new();
    annotations.extend(policy.sub_group_policy_type.clone().map(|value| (SUBGROUP_POLICY_TYPE, value)));
    annotations.extend(policy.sub_group_size.map(|size| (SUBGROUP_SIZE, size.to_string())));
    annotations.extend(kept(set, SUBGROUP_EXCLUSIVE_TOPOLOGY));
    annotations
}

/// An annotation of the set that its pods get too.
fn kept(set: &LeaderWorkerSet, key: &'static str) -> Option<(&'static str, String)> {
    let value = annotation(&set.metadata, key);
    (!value.is_empty()).then(|| (key, value.to_owned()))
}

/// The parts of both StatefulSets that come from the template unchanged.
fn add_claims(spec: &mut Map<String, Value>, template: &LeaderWorkerTemplate, namespace: &str) {
    if !template.volume_claim_templates.is_empty() {
        let claim = |claim: &Value| {
            let fields = ["accessModes", "storageClassName", "volumeMode", "resources"];
            let named = fields.into_iter().map(|field| (field, &claim["spec"][field]));
            let kept = named.filter(|(_, value)| !value.is_null());
            let spec: Map<String, Value> = kept.map(|(field, value)| (field.to_owned(), value.clone())).collect();
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec,
                "metadata": {"name": claim["metadata"]["name"], "namespace": namespace}})
        };
        spec.insert("volumeClaimTemplates".to_owned(), template.volume_claim_templates.iter().map(claim).collect());
    }
    if let Some(policy) = &template.persistent_volume_claim_retention_policy {
        spec.insert("persistentVolumeClaimRetentionPolicy".to_owned(), policy.clone());
    }
}

fn stateful_set(name: &str, namespace: &str, owner: &OwnerReference, spec: Value) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [owner]},
        "spec": spec,
    })
}

/// The StatefulSet of the leaders, to be applied.
pub fn leaders(set: &LeaderWorkerSet, spec: &LeaderWorkerSetSpec, bounds: Bounds, step: Step, revision: &str) -> Value {
    let (name, namespace) = (set.name_any(), set.namespace().unwrap_or_default());
    let parts = &spec.leader_worker_template;
    let mut template = parts.leader_template.clone().unwrap_or_else(|| parts.worker_template.clone());
    let revision_label = (REVISION, revision.to_owned());
    extend(&mut template["metadata"]["labels"], leader_labels(&name).into_iter().chain([revision_label.clone()]));
    let mut annotations = vec![(SIZE, spec.size().to_string())];
    annotations.extend(kept(set, EXCLUSIVE_TOPOLOGY));
    annotations.extend(subgroup_annotations(parts, set));
    if spec.has_service_per_group() {
        annotations.push((SUBDOMAIN_POLICY, "UniquePerReplica".to_owned()));
    }
    extend(&mut template["metadata"]["annotations"], annotations);
    let mut wanted = json!({
        "serviceName": name,
        "replicas": step.replicas,
        "podManagementPolicy": "Parallel",
        "template": template,
        "updateStrategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"partition": step.partition, "maxUnavailable": bounds.of_leaders()},
        },
        "selector": {"matchLabels": leader_labels(&name).into_iter().collect::<BTreeMap<_, _>>()},
    });
    if let Some(wanted) = wanted.as_object_mut() {
        add_claims(wanted, parts, &namespace);
    }
    let mut object = stateful_set(&name, &namespace, &owned_by(set), wanted);
    object["metadata"]["labels"] = json!(merged(set.metadata.labels.as_ref(), [(NAME, name), revision_label]));
    let groups = (REPLICAS, spec.groups().to_string());
    object["metadata"]["annotations"] = json!(merged(set.metadata.annotations.as_ref(), [groups]));
    object
}

/// The StatefulSet of the workers of a leader. `spec` is that of the leader's revision.
/// `node_selector` keeps the workers in the leader's topology domain.
pub fn workers(
    set: &LeaderWorkerSet,
    spec: &LeaderWorkerSetSpec,
    leader: &Pod,
    node_selector: Option<(&str, &str)>,
) -> Value {
    let (set_name, name) = (set.name_any(), leader.name_any());
    let parts = &spec.leader_worker_template;
    let of_leader = |key: &'static str| (key, label(&leader.metadata, key).to_owned());
    let selector = [of_leader(GROUP_INDEX), (NAME, set_name.clone()), of_leader(GROUP_KEY)];
    let labels: Vec<_> =
        selector.iter().cloned().chain([(REVISION, revision_of(&leader.metadata).to_owned())]).collect();
    let mut template = parts.worker_template.clone();
    extend(&mut template["metadata"]["labels"], labels.iter().cloned());
    let mut annotations = vec![(SIZE, spec.size().to_string()), (LEADER_NAME, name.clone())];
    annotations.extend(kept(set, EXCLUSIVE_TOPOLOGY));
    annotations.extend(subgroup_annotations(parts, set));
    if tpu::requests_tpus(&json!(leader.spec)) {
        annotations.push((LEADER_REQUESTS_TPUS, "true".to_owned()));
    }
    extend(&mut template["metadata"]["annotations"], annotations);
    if let Some((key, value)) = node_selector {
        template["spec"]["nodeSelector"][key] = json!(value);
    }
    let mut wanted = json!({
        "serviceName": if spec.has_service_per_group() { &name } else { &set_name },
        "replicas": spec.size() - 1,
        "podManagementPolicy": "Parallel",
        "template": template,
        // The leader is pod 0 of the group.
        "ordinals": {"start": 1},
        "selector": {"matchLabels": selector.into_iter().collect::<BTreeMap<_, _>>()},
    });
    let namespace = leader.namespace().unwrap_or_default();
    if let Some(wanted) = wanted.as_object_mut() {
        add_claims(wanted, parts, &namespace);
    }
    let mut object = stateful_set(&name, &namespace, &owned_by(leader), wanted);
    object["metadata"]["labels"] = json!(merged(set.metadata.labels.as_ref(), labels));
    let annotations = merged(set.metadata.annotations.as_ref(), []);
    if !annotations.is_empty() {
        object["metadata"]["annotations"] = json!(annotations);
    }
    object
}

/// The Service of a set, or of one of its groups. It has addresses of pods that are not ready,
/// because a group finds its members before it is ready.
pub fn service(
    set: &LeaderWorkerSet,
    name: &str,
    owner: OwnerReference,
    selector: impl IntoIterator<Item = (&'static str, String)>,
) -> Service {
    Service {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: set.namespace(),
            labels: Some(merged(None, [(NAME, set.name_any())])),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: Some(merged(None, selector)),
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(change: impl FnOnce(&mut Value)) -> LeaderWorkerSet {
        let mut object = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u", "labels": {"team": "a"}},
            "spec": {"replicas": 3, "leaderWorkerTemplate": {"size": 4,
                "workerTemplate": {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"name": "c"}]}}}}});
        change(&mut object);
        serde_json::from_value(object).expect("a LeaderWorkerSet")
    }

    fn leader() -> Pod {
        let labels = json!({NAME: "web", WORKER_INDEX: "0", GROUP_INDEX: "1", GROUP_KEY: "key", REVISION: "r"});
        serde_json::from_value(json!({"metadata": {"name": "web-1", "namespace": "ns", "uid": "p", "labels": labels},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"google.com/tpu": "4"}}}]}}))
        .expect("a pod")
    }

    fn made(set: &LeaderWorkerSet) -> Value {
        let spec = LeaderWorkerSetSpec::read(&set.spec).expect("a spec");
        let bounds = Bounds::of(&spec).expect("bounds");
        leaders(set, &spec, bounds, Step { partition: 0, replicas: 3 }, "r")
    }

    #[test]
    fn leaders_are_made_from_the_workers_template_unless_they_have_their_own() {
        let object = made(&set(|_| {}));
        assert_eq!(
            object["spec"]["template"]["metadata"]["labels"],
            json!({"app": "w", NAME: "web", WORKER_INDEX: "0", REVISION: "r"})
        );
        assert_eq!(object["spec"]["template"]["metadata"]["annotations"], json!({SIZE: "4"}));
        assert_eq!(object["spec"]["selector"]["matchLabels"], json!({NAME: "web", WORKER_INDEX: "0"}));
        assert_eq!(object["spec"]["updateStrategy"]["rollingUpdate"], json!({"partition": 0, "maxUnavailable": 1}));
        assert_eq!(object["metadata"]["labels"], json!({"team": "a", NAME: "web", REVISION: "r"}));
        assert_eq!(object["metadata"]["annotations"], json!({REPLICAS: "3"}));
        assert_eq!(object["metadata"]["ownerReferences"][0]["kind"], "LeaderWorkerSet");
        let own = made(&set(|set| {
            set["spec"]["leaderWorkerTemplate"]["leaderTemplate"] =
                json!({"spec": {"containers": [{"name": "leader"}]}});
        }));
        assert_eq!(own["spec"]["template"]["spec"]["containers"][0]["name"], "leader");
    }

    #[test]
    fn leaders_carry_the_topology_and_the_subgroups_of_the_set() {
        let object = made(&set(|set| {
            set["metadata"]["annotations"] = json!({EXCLUSIVE_TOPOLOGY: "rack", SUBGROUP_EXCLUSIVE_TOPOLOGY: "host"});
            set["spec"]["leaderWorkerTemplate"]["subGroupPolicy"] =
                json!({"subGroupPolicyType": "LeaderWorker", "subGroupSize": 2});
            set["spec"]["networkConfig"] = json!({"subdomainPolicy": "UniquePerReplica"});
        }));
        let annotations = &object["spec"]["template"]["metadata"]["annotations"];
        assert_eq!(annotations[EXCLUSIVE_TOPOLOGY], "rack");
        assert_eq!(annotations[SUBGROUP_EXCLUSIVE_TOPOLOGY], "host");
        assert_eq!(annotations[SUBGROUP_SIZE], "2");
        assert_eq!(annotations[SUBGROUP_POLICY_TYPE], "LeaderWorker");
        assert_eq!(annotations[SUBDOMAIN_POLICY], "UniquePerReplica");
    }

    #[test]
    fn workers_follow_their_leader() {
        let set = set(|set| {
            set["spec"]["leaderWorkerTemplate"]["volumeClaimTemplates"] =
                json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}, "status": {}}]);
        });
        let spec = LeaderWorkerSetSpec::read(&set.spec).expect("a spec");
        let object = workers(&set, &spec, &leader(), Some(("rack", "r1")));
        assert_eq!((&object["metadata"]["name"], &object["spec"]["replicas"]), (&json!("web-1"), &json!(3)));
        assert_eq!(object["metadata"]["ownerReferences"][0]["kind"], "Pod");
        assert_eq!(object["spec"]["ordinals"]["start"], 1);
        assert_eq!(object["spec"]["serviceName"], "web");
        let template = &object["spec"]["template"];
        assert_eq!(
            template["metadata"]["labels"],
            json!({"app": "w", NAME: "web", GROUP_INDEX: "1", GROUP_KEY: "key", REVISION: "r"})
        );
        assert_eq!(
            template["metadata"]["annotations"],
            json!({SIZE: "4", LEADER_NAME: "web-1", LEADER_REQUESTS_TPUS: "true"})
        );
        assert_eq!(template["spec"]["nodeSelector"], json!({"rack": "r1"}));
        assert_eq!(object["spec"]["selector"]["matchLabels"], json!({NAME: "web", GROUP_INDEX: "1", GROUP_KEY: "key"}));
        assert_eq!(object["spec"]["volumeClaimTemplates"][0]["metadata"]["name"], "data");
        assert!(object["spec"]["volumeClaimTemplates"][0].get("status").is_none());
    }

    #[test]
    fn a_service_has_no_cluster_ip_and_publishes_pods_that_are_not_ready() {
        let set = set(|_| {});
        let service = service(&set, "web", owned_by(&set), [(NAME, "web".to_owned())]);
        let spec = service.spec.expect("a spec");
        assert_eq!(spec.cluster_ip.as_deref(), Some("None"));
        assert_eq!((spec.publish_not_ready_addresses, spec.ports), (Some(true), None));
        assert_eq!(spec.selector, Some(BTreeMap::from([(NAME.to_owned(), "web".to_owned())])));
    }
}
