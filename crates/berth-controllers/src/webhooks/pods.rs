//! Defaulting and validation of queued pods: gates on new pods, and the consistency of pod groups.
//!
//! This code runs for every pod that is created. The object therefore stays JSON and is decoded
//! only where necessary.

use std::collections::BTreeMap;

use berth_api::kueue::{annotations, constants, labels};
use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use berth_runtime::ObjectKey;
use kube::core::ObjectMeta;
use serde::Deserialize;
use serde_json::{Value, json};

use super::jobs::{ancestor_of_metadata, default_queue, is_selected};
use super::{Lookup, held, topology};
use crate::configuration::Config;
use crate::gates::{Gate, Gates};
use crate::jobs::ancestors::POD;
use crate::jobs::pods::{owned, replica, shape, stateful_set};

/// Labels and annotations on pods of a LeaderWorkerSet.
const LWS_WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";
const LWS_SIZE: &str = "leaderworkerset.sigs.k8s.io/size";
const LWS_LEADER_NAME: &str = "leaderworkerset.sigs.k8s.io/leader-name";

/// Annotations that request a topology.
const TOPOLOGY: [&str; 5] = [
    annotations::PODSET_REQUIRED_TOPOLOGY,
    annotations::PODSET_PREFERRED_TOPOLOGY,
    annotations::PODSET_UNCONSTRAINED_TOPOLOGY,
    annotations::PODSET_SLICE_REQUIRED_TOPOLOGY,
    annotations::PODSET_SLICE_REQUIRED_TOPOLOGY_CONSTRAINTS,
];

fn label<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"]["labels"][key].as_str().unwrap_or_default()
}

fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"]["annotations"][key].as_str().unwrap_or_default()
}

/// Gates a new pod that is queued itself.
///
/// A pod created with a node (`kubectl debug node/...`) cannot have gates: the API server rejects
/// the combination. Such a pod is left unchanged unless it names a queue, while Kueue rejects it in
/// any case. If it names a queue, it is gated and therefore rejected, because it would use
/// resources without quota.
pub(super) fn default_new_pod(object: &mut Value, namespace: &str, config: &Config, gates: &Gates, lookup: Lookup<'_>) {
    let is_placed = object["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    if is_placed && label(object, labels::QUEUE_NAME).is_empty() {
        held::undo_pod(object);
        return;
    }
    default_pod(object, namespace, config, gates, lookup);
}

/// Gates a pod that is queued itself: a new one, or one that was stored while no webhook was
/// available.
pub(super) fn default_pod(object: &mut Value, namespace: &str, config: &Config, gates: &Gates, lookup: Lookup<'_>) {
    held::undo_pod(object);
    let mut queue = label(object, labels::QUEUE_NAME).to_owned();
    // The annotation marks pods of templates whose pods are queued for the owner, although the
    // owner names a queue too.
    let by_parent = !annotation(object, annotations::POD_SUSPENDING_PARENT).is_empty();
    let default = if queue.is_empty() { default_queue(namespace, config, gates, lookup) } else { None };
    if queue.is_empty() && default.is_none() && !config.manage_jobs_without_queue_name && !by_parent {
        return;
    }
    let Ok(metadata) = ObjectMeta::deserialize(&object["metadata"]) else { return };
    // Pods that belong to nodes run outside queues.
    let of_nodes = |kind: &str| kind == "DaemonSet" || kind == "Node";
    if metadata.owner_references.iter().flatten().any(|owner| of_nodes(&owner.kind)) {
        return;
    }
    let part = !by_parent && !matches!(ancestor_of_metadata(POD, &metadata, config, namespace, lookup), Ok(None));
    if part || !is_selected(!queue.is_empty(), namespace, config, gates, lookup) {
        return;
    }
    // For a pod that is queued for its owner, the owner's queue applies.
    if let Some(default) = default.filter(|_| !by_parent) {
        object["metadata"]["labels"][labels::QUEUE_NAME] = json!(default);
        queue = default.to_owned();
    }
    if queue.is_empty() && !config.manage_jobs_without_queue_name {
        hold_for_owner(object, gates);
        return;
    }
    object["metadata"]["labels"][labels::MANAGED] = json!("true");
    add(&mut object["metadata"]["finalizers"], json!(constants::POD_FINALIZER));
    add(&mut object["spec"]["schedulingGates"], json!({"name": constants::ADMISSION_GATE}));
    let asks = TOPOLOGY.iter().any(|key| !annotation(object, key).is_empty());
    if gates.on(Gate::TopologyAwareScheduling) && (asks || assigns_topology(namespace, &queue, lookup)) {
        // Gates cannot be added later, so the topology gate is added now. If admission assigns no
        // topology, it is removed with the other gate.
        add(&mut object["spec"]["schedulingGates"], json!({"name": constants::TOPOLOGY_GATE}));
    }
    if annotation(object, annotations::POD_SUSPENDING_PARENT) == replica::PARENT {
        join_replica(object, namespace, gates, lookup);
    }
    if annotation(object, annotations::POD_SUSPENDING_PARENT) == stateful_set::PARENT {
        join_set(object, namespace, gates, lookup);
    }
    describe(object, gates);
}

/// Gates a pod that its owner's controller puts into a queue later, with its group. The topology
/// gate cannot be added then, so the pod has it from the start.
fn hold_for_owner(object: &mut Value, gates: &Gates) {
    add(&mut object["spec"]["schedulingGates"], json!({"name": constants::ADMISSION_GATE}));
    if gates.on(Gate::TopologyAwareScheduling) {
        add(&mut object["spec"]["schedulingGates"], json!({"name": constants::TOPOLOGY_GATE}));
    }
    describe(object, gates);
}

/// Adds the index of the pod in its group, and its role.
fn describe(object: &mut Value, gates: &Gates) {
    let index = label(object, annotation(object, annotations::POD_GROUP_POD_INDEX_LABEL)).to_owned();
    if gates.on(Gate::TopologyAwareScheduling) && !index.is_empty() {
        object["metadata"]["labels"][labels::POD_GROUP_POD_INDEX] = json!(index);
    }
    // A pod of another owner may get its group later, and its spec changes until then.
    if annotation(object, annotations::ROLE_HASH).is_empty()
        && let Some(role) = shape::role(&object["spec"])
    {
        object["metadata"]["annotations"][annotations::ROLE_HASH] = json!(role);
    }
}

fn add(list: &mut Value, entry: Value) {
    match list.as_array_mut() {
        Some(list) if list.contains(&entry) => {}
        Some(list) => list.push(entry),
        None => *list = json!([entry]),
    }
}

/// True if the queue's cluster queue assigns a topology to pods that request none.
fn assigns_topology(namespace: &str, queue: &str, lookup: Lookup<'_>) -> bool {
    const GROUP: &str = "kueue.x-k8s.io";
    let Some(local) = lookup(GROUP, "localqueues", namespace, queue) else { return false };
    let cluster = local["spec"]["clusterQueue"].as_str().unwrap_or_default();
    let Some(cluster) = lookup(GROUP, "clusterqueues", "", cluster) else { return false };
    let groups = cluster["spec"]["resourceGroups"].as_array().into_iter().flatten();
    let mut flavors = groups.flat_map(|group| group["flavors"].as_array().into_iter().flatten());
    flavors.any(|flavor| {
        let found = lookup(GROUP, "resourceflavors", "", flavor["name"].as_str().unwrap_or_default());
        found.is_some_and(|flavor| flavor["spec"]["topologyName"].as_str().is_some_and(|name| !name.is_empty()))
    })
}

/// The LeaderWorkerSet whose UID and templates the review of a new pod needs. A cache may lack it,
/// or have an earlier set of the name, and then two pods of a group would get different groups.
pub fn set_of_new_pod(review: &Value) -> Option<ObjectKey> {
    let request = &review["request"];
    let resource = &request["resource"];
    let is_new_pod = request["operation"] == "CREATE" && resource["group"] == "" && resource["resource"] == "pods";
    let pod = &request["object"];
    let is_part = is_new_pod && annotation(pod, annotations::POD_SUSPENDING_PARENT) == replica::PARENT;
    let set = label(pod, replica::SET_NAME);
    (is_part && !set.is_empty()).then(|| ObjectKey::namespaced(request["namespace"].as_str().unwrap_or_default(), set))
}

/// Puts the pods of one replica of a LeaderWorkerSet, leader and workers, into one group.
fn join_replica(object: &mut Value, namespace: &str, gates: &Gates, lookup: Lookup<'_>) {
    let set = label(object, replica::SET_NAME).to_owned();
    let size = annotation(object, LWS_SIZE).to_owned();
    let index = match label(object, replica::GROUP_INDEX) {
        // The leader is created by a StatefulSet, so its name ends in the replica's index.
        "" => object["metadata"]["name"].as_str().and_then(|name| Some(name.rsplit_once('-')?.1.to_owned())),
        index => Some(index.to_owned()),
    };
    let Some(index) = index.filter(|_| !set.is_empty() && !size.is_empty()) else { return };
    let found = lookup(replica::GROUP, "leaderworkersets", namespace, &set);
    let uid = found.as_ref().and_then(|set| set["metadata"]["uid"].as_str()).unwrap_or_default();
    let name = format!("{set}-{index}");
    let group = owned::group_name(&replica::kind(), &name, uid, gates, workloads(namespace, lookup));
    let own_index = index_in_replica(object);
    let leads = own_index == "0";
    let template = found.as_ref().map(|set| &set["spec"]["leaderWorkerTemplate"]).filter(|it| it.is_object());
    set_group(object, &group, gates);
    if gates.on(Gate::TopologyAwareScheduling) {
        object["metadata"]["labels"][labels::POD_GROUP_POD_INDEX] = json!(own_index);
    }
    let annotations = &mut object["metadata"]["annotations"];
    annotations[annotations::POD_GROUP_TOTAL_COUNT] = json!(size);
    annotations[annotations::POD_GROUP_SERVING] = json!("true");
    annotations[annotations::POD_GROUP_POD_INDEX_LABEL] = json!(LWS_WORKER_INDEX);
    match template {
        Some(template) if template["leaderTemplate"].is_object() => {
            annotations[annotations::ROLE_HASH] = json!(if leads { replica::LEADER } else { replica::WORKER });
        }
        // All pods are equal, and the workers may wait for a leader that is ready.
        Some(_) => {
            annotations[annotations::ROLE_HASH] = json!(owned::ROLE);
            annotations[annotations::POD_GROUP_FAST_ADMISSION] = json!("true");
        }
        None => {}
    }
}

/// Index of a pod in its replica. LeaderWorkerSet's webhook sets the label, maybe after this one.
/// Until then the names of workers, which have an annotation from their template, end in it.
fn index_in_replica(object: &Value) -> String {
    let ordinal = object["metadata"]["name"].as_str().and_then(|name| Some(name.rsplit_once('-')?.1));
    match label(object, LWS_WORKER_INDEX) {
        "" if annotation(object, LWS_LEADER_NAME).is_empty() => "0".to_owned(),
        "" => ordinal.unwrap_or_default().to_owned(),
        known => known.to_owned(),
    }
}

/// Finds the metadata of a namespace's Workloads by name.
fn workloads<'a>(namespace: &'a str, lookup: Lookup<'a>) -> impl Fn(&str) -> Option<ObjectMeta> + 'a {
    move |name| {
        let workload = lookup("kueue.x-k8s.io", "workloads", namespace, name)?;
        ObjectMeta::deserialize(&workload["metadata"]).ok()
    }
}

/// Puts the pods of a StatefulSet into one group. Templates written by earlier versions carry the
/// group's name.
fn join_set(object: &mut Value, namespace: &str, gates: &Gates, lookup: Lookup<'_>) {
    object["metadata"]["annotations"][annotations::ROLE_HASH] = json!(owned::ROLE);
    if !label(object, labels::POD_GROUP_NAME).is_empty() {
        return;
    }
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let set = owners.into_iter().find(|owner| owner["controller"] == true && owner["kind"] == "StatefulSet");
    let Some((set, uid)) = set.and_then(|set| Some((set["name"].as_str()?, set["uid"].as_str()?))) else { return };
    let group = owned::group_name(&stateful_set::kind(), set, uid, gates, workloads(namespace, lookup));
    set_group(object, &group, gates);
}

/// Names the group of a pod: in the label, by which clients select pods, or in the annotation, if
/// the name is too long for a label.
fn set_group(object: &mut Value, group: &str, gates: &Gates) {
    let fits = names::is_label_value(group).is_empty();
    let field = if fits || !gates.on(Gate::WorkloadIdentifierAnnotations) { "labels" } else { "annotations" };
    let key = if field == "labels" { labels::POD_GROUP_NAME } else { annotations::POD_GROUP_NAME };
    object["metadata"][field][key] = json!(group);
}

const BOTH: &str = "both the 'kueue.x-k8s.io/pod-group-total-count' annotation and the 'kueue.x-k8s.io/pod-group-name' \
                    label should be set";

/// Validates a new or changed pod. Of a pod that is not queued, only the managed label is
/// validated.
pub(super) fn validate_pod(object: &Value, old: Option<&Value>, gates: &Gates) -> Vec<Error> {
    let names_group = |object: &Value| {
        let of = [label(object, labels::POD_GROUP_NAME), annotation(object, annotations::POD_GROUP_NAME)];
        of.into_iter().find(|name| !name.is_empty()).map(str::to_owned)
    };
    let metadata = Path::new("metadata");
    let (labels, annotations) = (metadata.child("labels"), metadata.child("annotations"));
    let mut errors = Vec::new();
    let managed = &object["metadata"]["labels"][labels::MANAGED];
    if !managed.is_null() && managed != "true" {
        let detail = "managed label value can only be 'true'";
        errors.push(Error::forbidden(&labels.key(labels::MANAGED), detail));
    }
    if managed != "true" && old.is_none_or(|old| label(old, labels::MANAGED) != "true") {
        return errors;
    }
    let queue = label(object, labels::QUEUE_NAME);
    if !queue.is_empty() {
        let wrong = names::is_dns1123_subdomain(queue).into_iter();
        errors.extend(wrong.map(|m| Error::invalid(&labels.key(labels::QUEUE_NAME), queue, m)));
    }
    let group = names_group(object);
    let total = annotation(object, annotations::POD_GROUP_TOTAL_COUNT);
    let at_group = labels.key(labels::POD_GROUP_NAME);
    let at_total = annotations.key(annotations::POD_GROUP_TOTAL_COUNT);
    match &group {
        Some(name) => {
            let wrong = names::is_dns1123_subdomain(name).into_iter();
            errors.extend(wrong.map(|m| Error::invalid(&at_group, name.as_str(), m)));
            if total.is_empty() {
                let detail = BOTH;
                errors.push(Error::required(&at_total, detail));
            } else if total.parse::<i32>().map_or(true, |total| total < 1) {
                errors.push(Error::invalid(&at_total, total, "should be a number greater than or equal to 1"));
            }
            let annotated = annotation(object, annotations::PREBUILT_WORKLOAD);
            let by_annotation = gates.on(Gate::WorkloadIdentifierAnnotations) && !annotated.is_empty();
            let prebuilt = if by_annotation { annotated } else { label(object, labels::PREBUILT_WORKLOAD) };
            if !prebuilt.is_empty() && prebuilt != name {
                let at = if by_annotation { &annotations } else { &labels };
                let at = at.key(labels::PREBUILT_WORKLOAD);
                errors.push(Error::invalid(
                    &at,
                    prebuilt,
                    "prebuilt workload name must be equal to the pod group name",
                ));
            }
        }
        None if !total.is_empty() => {
            let detail = BOTH;
            errors.push(Error::required(&at_group, detail));
        }
        None => {}
    }
    let requests = BTreeMap::<String, String>::deserialize(&object["metadata"]["annotations"]).ok();
    errors.extend(topology::annotations(requests.as_ref(), &annotations, gates));
    let Some(old) = old else { return errors };
    const IMMUTABLE: &str = "field is immutable";
    let before = names_group(old);
    // A pod that was stored without webhooks gets its group later from the controllers, in
    // [`held::settle_pod`]. A pod that is not queued yet gets it from its owner's controller.
    let is_settled = held::is_held(old) && !held::is_held(object);
    let was_queued = label(old, labels::MANAGED) == "true";
    if before != group && (before.is_some() || was_queued && !is_settled) {
        errors.push(Error::invalid(&at_group, group.unwrap_or_default(), IMMUTABLE));
    }
    let retriable = |object| annotation(object, annotations::RETRIABLE_IN_GROUP) != "false";
    if !retriable(old) && retriable(object) {
        let detail = "unretriable pod group can't be converted to retriable";
        errors.push(Error::forbidden(&annotations.key(annotations::RETRIABLE_IN_GROUP), detail));
    }
    let is_held = |object: &Value| {
        let gates = object["spec"]["schedulingGates"].as_array().into_iter().flatten();
        gates.into_iter().any(|gate| gate["name"] == constants::ADMISSION_GATE)
    };
    if !is_held(object) && queue != label(old, labels::QUEUE_NAME) {
        errors.push(Error::invalid(&labels.key(labels::QUEUE_NAME), queue, IMMUTABLE));
    }
    errors
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::webhooks::{Request, Webhooks};

    fn nothing(_: &str, _: &str, _: &str, _: &str) -> Option<Arc<Value>> {
        None
    }

    fn made(mut pod: Value) -> Value {
        let request = Request { group: "", resource: "pods", namespace: "team", old_object: None };
        Webhooks::new(Config::default()).mutate(request, &mut pod, &nothing).expect("it is fine");
        pod
    }

    fn wrong(new: &Value, old: Option<&Value>) -> Vec<String> {
        validate_pod(new, old, &Gates::default()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_pod_that_names_a_queue_is_gated() {
        let plain = json!({"metadata": {"name": "p"}, "spec": {"containers": []}});
        assert_eq!(made(plain.clone()), plain, "a pod without a queue is unchanged");
        let labels = json!({labels::QUEUE_NAME: "q", labels::POD_GROUP_NAME: "g"});
        let pod = made(json!({"metadata": {"name": "p", "labels": labels}, "spec": {"containers": []}}));
        assert_eq!(pod["metadata"]["labels"][labels::MANAGED], "true");
        assert_eq!(pod["metadata"]["finalizers"], json!([constants::POD_FINALIZER]));
        assert_eq!(pod["spec"]["schedulingGates"], json!([{"name": constants::ADMISSION_GATE}]));
        assert_eq!(annotation(&pod, annotations::ROLE_HASH).len(), 8);
    }

    #[test]
    fn the_index_of_a_pod_is_copied_to_the_label_of_kueue() {
        let index = "example.com/index";
        let labels = json!({labels::QUEUE_NAME: "q", index: "3"});
        let annotations = json!({annotations::POD_GROUP_POD_INDEX_LABEL: index});
        let metadata = json!({"name": "p", "labels": labels, "annotations": annotations});
        let pod = made(json!({"metadata": metadata, "spec": {"containers": [{"name": "c"}]}}));
        assert_eq!(pod["metadata"]["labels"][labels::POD_GROUP_POD_INDEX], "3");
    }

    #[test]
    fn a_pod_without_a_queue_gets_its_namespaces_default_queue() {
        let default = |_: &str, resource: &str, namespace: &str, name: &str| {
            let found = (resource, namespace, name) == ("localqueues", "team", "default");
            found.then(|| Arc::new(json!({"metadata": {"name": "default"}})))
        };
        let of = |namespace: &str, config: Config, owners: Value| {
            let metadata = json!({"name": "p", "ownerReferences": owners});
            let mut pod = json!({"metadata": metadata, "spec": {"containers": []}});
            let request = Request { group: "", resource: "pods", namespace, old_object: None };
            Webhooks::new(config).mutate(request, &mut pod, &default).expect("it is fine");
            (pod["metadata"]["labels"][labels::QUEUE_NAME].clone(), !pod["spec"]["schedulingGates"].is_null())
        };
        let (none, managing) =
            (Config::default(), Config { manage_jobs_without_queue_name: true, ..Config::default() });
        assert_eq!(of("team", none.clone(), json!([])), (json!("default"), true));
        assert_eq!(of("other", none.clone(), json!([])), (Value::Null, false));
        assert_eq!(of("other", managing, json!([])), (Value::Null, true));
        let daemon =
            json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": true}]);
        assert_eq!(of("team", none, daemon), (Value::Null, false));
    }

    #[test]
    fn a_pod_with_a_node_is_gated_only_if_it_names_a_queue() {
        let default = |_: &str, resource: &str, _: &str, name: &str| {
            (resource == "localqueues" && name == "default").then(|| Arc::new(json!({"metadata": {"name": "default"}})))
        };
        let config = || Config { manage_jobs_without_queue_name: true, ..Config::default() };
        let of = |labels: Value, node: &str| {
            let written =
                json!({"metadata": {"name": "p", "labels": labels}, "spec": {"nodeName": node, "containers": []}});
            let mut pod = written.clone();
            let request = Request { group: "", resource: "pods", namespace: "team", old_object: None };
            Webhooks::new(config()).mutate(request, &mut pod, &default).expect("it is fine");
            (pod == written, pod["spec"]["schedulingGates"][0]["name"] == constants::ADMISSION_GATE)
        };
        assert_eq!(of(json!({}), "n1"), (true, false), "unchanged");
        assert_eq!(of(json!({}), ""), (false, true), "an empty node name counts as none");
        assert_eq!(of(json!({labels::QUEUE_NAME: "q"}), "n1"), (false, true), "the API server rejects it");
    }

    /// A pod of the second replica of a LeaderWorkerSet with the UID `u`, as admission makes it.
    fn of_replica(worker: &str, own_leader: bool, workload: Option<Value>) -> Value {
        let leader = if own_leader { json!({"spec": {}}) } else { Value::Null };
        let set = json!({"metadata": {"name": "web", "uid": "u"},
            "spec": {"leaderWorkerTemplate": {"leaderTemplate": leader}}});
        let stored = |_: &str, resource: &str, _: &str, name: &str| match resource {
            "leaderworkersets" => Some(Arc::new(set.clone())),
            "workloads" => workload.clone().filter(|found| found["metadata"]["name"] == name).map(Arc::new),
            _ => None,
        };
        let mut pod = json!({"metadata": {"name": format!("web-1-{worker}"),
            "labels": {labels::QUEUE_NAME: "q", replica::SET_NAME: "web", replica::GROUP_INDEX: "1", LWS_WORKER_INDEX: worker},
            "annotations": {annotations::POD_SUSPENDING_PARENT: replica::PARENT, LWS_SIZE: "4"}}, "spec": {}});
        let request = Request { group: "", resource: "pods", namespace: "team", old_object: None };
        Webhooks::new(Config::default()).mutate(request, &mut pod, &stored).expect("it is fine");
        pod
    }

    #[test]
    fn the_review_of_a_new_pod_of_a_replica_needs_its_set() {
        let of = |operation: &str, resource: &str, parent: &str| {
            set_of_new_pod(&json!({"request": {"operation": operation, "namespace": "team",
                "resource": {"group": "", "version": "v1", "resource": resource},
                "object": {"metadata": {"labels": {replica::SET_NAME: "web"},
                    "annotations": {annotations::POD_SUSPENDING_PARENT: parent}}}}}))
        };
        assert_eq!(of("CREATE", "pods", replica::PARENT), Some(ObjectKey::namespaced("team", "web")));
        assert_eq!(of("UPDATE", "pods", replica::PARENT), None);
        assert_eq!(of("CREATE", "services", replica::PARENT), None);
        assert_eq!(of("CREATE", "pods", "statefulset"), None);
    }

    #[test]
    fn pods_of_a_replica_form_a_group() {
        let pod = of_replica("2", false, None);
        assert_eq!(annotation(&pod, annotations::POD_GROUP_TOTAL_COUNT), "4");
        assert_eq!(annotation(&pod, annotations::POD_GROUP_SERVING), "true");
        assert_eq!(annotation(&pod, annotations::ROLE_HASH), "main");
        let role = |worker| annotation(&of_replica(worker, true, None), annotations::ROLE_HASH).to_owned();
        assert_eq!([role("0"), role("2")], ["leader", "worker"]);
    }

    #[test]
    fn the_group_of_a_replica_has_the_name_that_kueue_gives_it() {
        let group = |workload| label(&of_replica("2", false, workload), labels::POD_GROUP_NAME).to_owned();
        // The first hexadecimal digits of the SHA-1 of kind, group, replica and UID, one a line.
        assert_eq!(group(None), "leaderworkerset-web-1-979a5");
        let earlier = "leaderworkerset-web-1-f1476";
        let made = |owner: &str| {
            let owners = json!([{"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
                "name": "web", "uid": owner}]);
            json!({"metadata": {"name": earlier, "ownerReferences": owners,
                "annotations": {annotations::IS_GROUP_WORKLOAD: "true"}}})
        };
        assert_eq!(group(Some(made("u"))), earlier, "a group from before an upgrade continues");
        assert_ne!(group(Some(made("other"))), earlier, "a set of the same name had this group");
    }

    #[test]
    fn equal_pods_of_a_replica_are_admitted_with_its_first_pod() {
        let is_fast = |own_leader| {
            let pod = of_replica("2", own_leader, None);
            annotation(&pod, annotations::POD_GROUP_FAST_ADMISSION) == "true"
        };
        assert!(is_fast(false), "its workers may wait for a leader that is ready");
        assert!(!is_fast(true), "the pods that are still to come have other requests");
    }

    #[test]
    fn a_group_whose_name_is_too_long_for_a_label_has_it_in_the_annotation() {
        let name = "a".repeat(50);
        let labels = json!({labels::QUEUE_NAME: "q", replica::SET_NAME: name});
        let annotations = json!({annotations::POD_SUSPENDING_PARENT: replica::PARENT, LWS_SIZE: "3"});
        let metadata = json!({"name": format!("{name}-0"), "labels": labels, "annotations": annotations});
        let pod = made(json!({"metadata": metadata, "spec": {}}));
        assert_eq!(label(&pod, labels::POD_GROUP_NAME), "");
        assert!(annotation(&pod, annotations::POD_GROUP_NAME).starts_with("leaderworkerset-aaa"), "{pod}");
        assert_eq!(wrong(&pod, None), Vec::<String>::new());
    }

    #[test]
    fn a_worker_is_known_before_it_has_its_index() {
        let of = |name: &str, annotations: Value| {
            let set = |_: &str, resource: &str, _: &str, _: &str| {
                let template = json!({"leaderTemplate": {}, "workerTemplate": {}});
                let set = json!({"metadata": {"uid": "u"}, "spec": {"leaderWorkerTemplate": template}});
                (resource == "leaderworkersets").then(|| Arc::new(set))
            };
            let labels = json!({labels::QUEUE_NAME: "q", replica::SET_NAME: "web", replica::GROUP_INDEX: "0"});
            let mut pod = json!({"metadata": {"name": name, "labels": labels, "annotations": annotations}, "spec": {}});
            let request = Request { group: "", resource: "pods", namespace: "team", old_object: None };
            Webhooks::new(Config::default()).mutate(request, &mut pod, &set).expect("it is fine");
            let index = label(&pod, labels::POD_GROUP_POD_INDEX).to_owned();
            (annotation(&pod, annotations::ROLE_HASH).to_owned(), index)
        };
        let parent = (annotations::POD_SUSPENDING_PARENT, replica::PARENT);
        let leader = of("web-0", json!({parent.0: parent.1, LWS_SIZE: "4"}));
        assert_eq!(leader, ("leader".to_owned(), "0".to_owned()));
        let worker = of("web-0-3", json!({parent.0: parent.1, LWS_SIZE: "4", LWS_LEADER_NAME: "web-0"}));
        assert_eq!(worker, ("worker".to_owned(), "3".to_owned()));
    }

    #[test]
    fn a_pod_that_an_owner_suspends_waits_for_the_queue_and_group_of_that_owner() {
        let annotations = json!({annotations::POD_SUSPENDING_PARENT: "example.com/set"});
        let pod = made(json!({"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": []}}));
        let held = [constants::ADMISSION_GATE, constants::TOPOLOGY_GATE].map(|name| json!({"name": name}));
        assert_eq!(pod["spec"]["schedulingGates"], json!(held));
        assert_eq!(annotation(&pod, annotations::ROLE_HASH).len(), 8);
        assert!(pod["metadata"]["labels"].is_null(), "it is not queued yet");
        let mut queued = pod.clone();
        queued["metadata"]["labels"] =
            json!({labels::MANAGED: "true", labels::QUEUE_NAME: "q", labels::POD_GROUP_NAME: "g"});
        queued["metadata"]["annotations"][annotations::POD_GROUP_TOTAL_COUNT] = json!("1");
        assert_eq!(wrong(&queued, Some(&pod)), Vec::<String>::new());
        let mut alone = queued.clone();
        alone["metadata"]["labels"].as_object_mut().expect("labels").remove(labels::POD_GROUP_NAME);
        assert!(wrong(&queued, Some(&alone))[0].contains("immutable"), "a queued pod keeps its group");
    }

    #[test]
    fn a_group_needs_a_name_and_a_count_and_its_name_is_immutable() {
        let mut pod = json!({"metadata": {"name": "p",
            "labels": {labels::MANAGED: "true", labels::QUEUE_NAME: "q", labels::POD_GROUP_NAME: "g"}}});
        assert_eq!(
            wrong(&pod, None),
            [format!("metadata.annotations[{}]: Required value: {BOTH}", annotations::POD_GROUP_TOTAL_COUNT)]
        );
        pod["metadata"]["annotations"] = json!({annotations::POD_GROUP_TOTAL_COUNT: "2"});
        assert_eq!(wrong(&pod, None), Vec::<String>::new());
        let mut prebuilt = pod.clone();
        prebuilt["metadata"]["annotations"][annotations::PREBUILT_WORKLOAD] = json!("g");
        assert_eq!(wrong(&prebuilt, None), Vec::<String>::new());
        prebuilt["metadata"]["annotations"][annotations::PREBUILT_WORKLOAD] = json!("h");
        let at = format!("metadata.annotations[{}]", annotations::PREBUILT_WORKLOAD);
        assert!(wrong(&prebuilt, None)[0].starts_with(&at), "{:?}", wrong(&prebuilt, None));
        let mut other = pod.clone();
        other["metadata"]["labels"][labels::POD_GROUP_NAME] = json!("h");
        assert_eq!(wrong(&other, Some(&pod)).len(), 1);
        let mut foreign = pod.clone();
        foreign["metadata"]["labels"][labels::MANAGED] = json!("yes");
        assert!(wrong(&foreign, None)[0].contains("can only be 'true'"));
    }
}
