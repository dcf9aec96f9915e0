//! Deployments, StatefulSets and LeaderWorkerSets, which are queued through their pods: their
//! labels are copied to the pod templates, and fields that determine quota are immutable.

use berth_api::json::Json;
use berth_api::kueue::{annotations, labels};
use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::well_known;
use k8s_openapi::api::core::v1::PodSpec;
use kube::core::ObjectMeta;
use serde::Deserialize;
use serde_json::{Value, json};

use super::jobs::{ancestor_of_metadata, default_queue, is_selected};
use super::{Lookup, validate_immutable_pod_spec};
use crate::configuration::Config;
use crate::gates::{Gate, Gates};
use crate::jobs::pods::{replica, stateful_set};

/// A kind of object whose pods are queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodOwner {
    /// Each pod is queued alone.
    Deployment,
    /// All pods are one group.
    StatefulSet,
    /// The pods of each replica are one group.
    LeaderWorkerSet,
}

impl PodOwner {
    /// The kind of this resource, if it is one of these.
    pub(super) fn of(group: &str, resource: &str) -> Option<Self> {
        Some(match (group, resource) {
            ("apps", "deployments") => PodOwner::Deployment,
            ("apps", "statefulsets") => PodOwner::StatefulSet,
            ("leaderworkerset.x-k8s.io", "leaderworkersets") => PodOwner::LeaderWorkerSet,
            _ => return None,
        })
    }

    /// Group and kind of the objects.
    fn kind(self) -> (&'static str, &'static str) {
        match self {
            PodOwner::Deployment => ("apps", "Deployment"),
            PodOwner::StatefulSet => ("apps", "StatefulSet"),
            PodOwner::LeaderWorkerSet => ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
        }
    }

    /// Name of the integration.
    pub(super) fn framework(self) -> &'static str {
        match self {
            PodOwner::Deployment => "deployment",
            PodOwner::StatefulSet => stateful_set::PARENT,
            PodOwner::LeaderWorkerSet => replica::PARENT,
        }
    }

    /// JSON pointers to the kind's pod templates.
    fn templates(self) -> &'static [&'static str] {
        match self {
            PodOwner::Deployment | PodOwner::StatefulSet => &["/spec/template"],
            PodOwner::LeaderWorkerSet => {
                &["/spec/leaderWorkerTemplate/leaderTemplate", "/spec/leaderWorkerTemplate/workerTemplate"]
            }
        }
    }
}

fn queue(object: &Value) -> &str {
    object["metadata"]["labels"][labels::QUEUE_NAME].as_str().unwrap_or_default()
}

/// True if the StatefulSet is a part of a LeaderWorkerSet, whose pods are queued in groups of their
/// own. Such a StatefulSet has the set's labels, and that of the workers belongs to a pod.
fn is_part_of_set(owner: PodOwner, object: &Value) -> bool {
    let annotations = &object["spec"]["template"]["metadata"]["annotations"];
    owner == PodOwner::StatefulSet && annotations[annotations::POD_SUSPENDING_PARENT] == replica::PARENT
}

fn replicas(object: &Value) -> i64 {
    object["spec"]["replicas"].as_i64().unwrap_or(1)
}

/// Copies the queue and priority class to the pod templates, on updates too, because a client may
/// have replaced the templates. A new object without a queue gets its namespace's default queue.
/// Without one, its pods are still gated if all jobs are managed.
pub(super) fn default_pod_owner(
    owner: PodOwner,
    object: &mut Value,
    is_new: bool,
    namespace: &str,
    config: &Config,
    gates: &Gates,
    lookup: Lookup<'_>,
) {
    if is_part_of_set(owner, object) {
        return;
    }
    let mut queue = queue(object).to_owned();
    let default = if is_new && queue.is_empty() { default_queue(namespace, config, gates, lookup) } else { None };
    let managed = !queue.is_empty() || default.is_some() || config.manage_jobs_without_queue_name;
    if !managed || !is_selected(!queue.is_empty(), namespace, config, gates, lookup) {
        return;
    }
    let Ok(metadata) = ObjectMeta::deserialize(&object["metadata"]) else { return };
    if !matches!(ancestor_of_metadata(owner.kind(), &metadata, config, namespace, lookup), Ok(None)) {
        return;
    }
    if let Some(default) = default {
        object["metadata"]["labels"][labels::QUEUE_NAME] = json!(default);
        queue = default.to_owned();
    }
    let class = object["metadata"]["labels"][labels::PRIORITY_CLASS].clone();
    let pods = replicas(object);
    for pointer in owner.templates() {
        let Some(template) = object.pointer_mut(pointer).filter(|template| template.is_object()) else { continue };
        // Access by index adds the field, and a definition may reject labels that are null.
        let metadata = &mut template["metadata"];
        if !queue.is_empty() {
            metadata["labels"][labels::QUEUE_NAME] = json!(queue);
        }
        if !class.is_null() {
            metadata["labels"][labels::PRIORITY_CLASS] = class.clone();
        }
        let annotations = &mut template["metadata"]["annotations"];
        annotations[annotations::POD_SUSPENDING_PARENT] = json!(owner.framework());
        if owner == PodOwner::StatefulSet {
            annotations[annotations::POD_GROUP_FAST_ADMISSION] = json!("true");
            annotations[annotations::POD_GROUP_SERVING] = json!("true");
            if annotations[annotations::POD_GROUP_POD_INDEX_LABEL].is_null() {
                annotations[annotations::POD_GROUP_POD_INDEX_LABEL] = json!(well_known::POD_INDEX);
            }
            if pods > 0 {
                annotations[annotations::POD_GROUP_TOTAL_COUNT] = json!(pods.to_string());
            }
        }
    }
    if owner == PodOwner::LeaderWorkerSet && gates.on(Gate::TopologyAwareScheduling) {
        number_workers(object);
    }
}

/// Ranks the workers of a replica with a leader template of its own from 0: their index starts with
/// 1, and they are a pod set of their own, unless leader and workers are grouped.
fn number_workers(object: &mut Value) {
    let template = &mut object["spec"]["leaderWorkerTemplate"];
    if !template["leaderTemplate"].is_object() {
        return;
    }
    let annotations = &mut template["workerTemplate"]["metadata"]["annotations"];
    if annotations[annotations::PODSET_GROUP_NAME].is_null() {
        annotations[annotations::POD_INDEX_OFFSET] = json!("1");
    }
}

/// Validates a changed object. New objects are not validated, because their pods are.
pub(super) fn validate_pod_owner_update(owner: PodOwner, new: &Value, old: &Value, gates: &Gates) -> Vec<Error> {
    const IMMUTABLE: &str = "field is immutable";
    if is_part_of_set(owner, new) {
        return Vec::new();
    }
    let (metadata, spec) = (Path::new("metadata"), Path::new("spec"));
    let labels = metadata.child("labels");
    let mut errors = Vec::new();
    let (after, before) = (queue(new), queue(old));
    let ready = old["status"]["readyReplicas"].as_i64().unwrap_or(0) > 0;
    if after != before && (ready || after.is_empty()) {
        errors.push(Error::invalid(&labels.key(labels::QUEUE_NAME), after, IMMUTABLE));
    }
    let class = |object: &Value| object["metadata"]["labels"][labels::PRIORITY_CLASS].as_str().unwrap_or("").to_owned();
    let at_class = labels.key(labels::PRIORITY_CLASS);
    match (class(old).is_empty(), class(new).is_empty()) {
        (true, false) if ready => {
            let detail = "WorkloadPriorityClass cannot be added to a non-suspended workload";
            errors.push(Error::invalid(&at_class, class(new), detail));
        }
        (false, true) => {
            errors.push(Error::invalid(&at_class, "", "WorkloadPriorityClass cannot be removed from a workload"));
        }
        _ => {}
    }
    if owner == PodOwner::Deployment || before.is_empty() || after.is_empty() {
        return errors;
    }
    let mut path = String::new();
    for pointer in owner.templates() {
        let at = format!("{pointer}/spec");
        let pod_spec = |object: &Value| object.pointer(&at).and_then(|spec| PodSpec::from_json_value(spec).ok());
        if let (Some(new), Some(old)) = (pod_spec(new), pod_spec(old)) {
            path.clear();
            path.push_str(&at[1..].replace('/', "."));
            errors.extend(validate_immutable_pod_spec(&new, &old, &Path::new(&path)));
        }
    }
    let (wanted, had) = (replicas(new), replicas(old));
    if owner == PodOwner::StatefulSet && wanted != had {
        let at = spec.child("replicas");
        let left = old["status"]["replicas"].as_i64().unwrap_or(0);
        if wanted > 0 && had > 0 {
            let detail = "a queued StatefulSet can be scaled only to or from zero";
            errors.push(Error::invalid(&at, wanted, detail));
        } else if had == 0 && left > 0 {
            let detail = format!("scaling down is still in progress: {left} pods are left");
            errors.push(Error::forbidden(&at, detail));
        }
    }
    if owner == PodOwner::LeaderWorkerSet && gates.on(Gate::LWSImmutableGroupSize) {
        let size = |object: &Value| object["spec"]["leaderWorkerTemplate"]["size"].as_i64().unwrap_or(1);
        if size(new) != size(old) {
            let at = spec.child("leaderWorkerTemplate");
            errors.push(Error::invalid(&at.child("size"), size(new), IMMUTABLE));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &str, _: &str, _: &str, _: &str) -> Option<std::sync::Arc<Value>> {
        None
    }

    fn set(replicas: i64, cpu: &str, status: Value) -> Value {
        json!({"metadata": {"name": "db", "labels": {labels::QUEUE_NAME: "q", labels::PRIORITY_CLASS: "high"}},
            "spec": {"replicas": replicas, "template": {"metadata": {"labels": {"app": "db"}}, "spec": {
                "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}}, "status": status})
    }

    #[test]
    fn queue_and_priority_class_are_copied_to_the_pods() {
        let (config, gates) = (Config::default(), Gates::default());
        let mut object = set(3, "1", Value::Null);
        default_pod_owner(PodOwner::StatefulSet, &mut object, true, "team", &config, &gates, &nothing);
        let template = &object["spec"]["template"]["metadata"];
        assert_eq!(template["labels"][labels::QUEUE_NAME], "q");
        assert_eq!(template["labels"][labels::PRIORITY_CLASS], "high");
        assert!(template["labels"][labels::POD_GROUP_NAME].is_null(), "the set's UID is not known yet");
        assert_eq!(template["annotations"][annotations::POD_GROUP_TOTAL_COUNT], "3");
        let mut object = set(3, "1", Value::Null);
        default_pod_owner(PodOwner::Deployment, &mut object, true, "team", &config, &gates, &nothing);
        assert!(object["spec"]["template"]["metadata"]["labels"][labels::POD_GROUP_NAME].is_null());
    }

    #[test]
    fn the_stateful_sets_of_a_leader_worker_set_are_left_to_it() {
        let (config, gates) = (Config::default(), Gates::default());
        let part = |replicas: i64| {
            let mut part = set(replicas, "1", Value::Null);
            part["spec"]["template"]["metadata"]["annotations"] =
                json!({annotations::POD_SUSPENDING_PARENT: replica::PARENT});
            part
        };
        let mut object = part(2);
        default_pod_owner(PodOwner::StatefulSet, &mut object, true, "team", &config, &gates, &nothing);
        assert_eq!(object, part(2));
        assert_eq!(validate_pod_owner_update(PodOwner::StatefulSet, &part(3), &part(2), &Gates::default()), Vec::new());
    }

    #[test]
    fn a_new_object_without_a_queue_gets_the_default_queue() {
        let default = |_: &str, resource: &str, _: &str, name: &str| {
            ((resource, name) == ("localqueues", "default")).then(|| std::sync::Arc::new(json!({})))
        };
        let (config, gates) = (Config::default(), Gates::default());
        let plain = json!({"metadata": {"name": "web"}, "spec": {"template": {"spec": {"containers": []}}}});
        let mut object = plain.clone();
        default_pod_owner(PodOwner::Deployment, &mut object, true, "team", &config, &gates, &default);
        assert_eq!(queue(&object), "default");
        assert_eq!(object["spec"]["template"]["metadata"]["labels"][labels::QUEUE_NAME], "default");
        // An update does not put a running object into a queue.
        let mut object = plain.clone();
        default_pod_owner(PodOwner::Deployment, &mut object, false, "team", &config, &gates, &default);
        assert_eq!(object, plain);
        // If all jobs are managed, pods of an object without a queue are gated.
        let config = Config { manage_jobs_without_queue_name: true, ..Config::default() };
        let mut object = plain;
        default_pod_owner(PodOwner::Deployment, &mut object, true, "team", &config, &gates, &nothing);
        let template = &object["spec"]["template"]["metadata"];
        assert_eq!(template["annotations"][annotations::POD_SUSPENDING_PARENT], "deployment");
        assert!(template["labels"][labels::QUEUE_NAME].is_null());
    }

    #[test]
    fn a_queue_name_and_a_priority_class_cannot_be_removed() {
        let ready = json!({"replicas": 3, "readyReplicas": 1});
        let mut plain = set(3, "1", Value::Null);
        plain["metadata"]["labels"] = json!({});
        let only_queue = |queue: &str, status: &Value| {
            let mut object = set(3, "1", status.clone());
            object["metadata"]["labels"] = json!({labels::QUEUE_NAME: queue});
            object
        };
        let (queue, class) = (
            format!("metadata.labels[{}]", labels::QUEUE_NAME),
            format!("metadata.labels[{}]", labels::PRIORITY_CLASS),
        );
        for owner in [PodOwner::Deployment, PodOwner::StatefulSet] {
            let wrong = |new: &Value, old: &Value| -> Vec<String> {
                let errors = validate_pod_owner_update(owner, new, old, &Gates::default());
                errors.iter().map(|error| error.field.clone()).collect()
            };
            assert_eq!(wrong(&plain, &set(3, "1", Value::Null)), [queue.clone(), class.clone()]);
            assert_eq!(wrong(&only_queue("other", &Value::Null), &only_queue("q", &Value::Null)), [""; 0]);
            assert_eq!(wrong(&only_queue("other", &ready), &only_queue("q", &ready)), [queue.as_str()]);
            assert_eq!(wrong(&set(3, "1", Value::Null), &only_queue("q", &Value::Null)), [""; 0]);
            assert_eq!(wrong(&set(3, "1", ready.clone()), &only_queue("q", &ready)), [class.as_str()]);
            // An object without a queue may stay without one.
            assert_eq!(wrong(&plain, &plain), [""; 0]);
        }
    }

    #[test]
    fn a_stateful_set_scales_only_to_and_from_zero_and_keeps_its_requests() {
        let wrong = |new: &Value, old: &Value| -> Vec<String> {
            let errors = validate_pod_owner_update(PodOwner::StatefulSet, new, old, &Gates::default());
            errors.iter().map(|error| error.field.clone()).collect()
        };
        let three = set(3, "1", json!({"replicas": 3}));
        assert_eq!(wrong(&set(0, "1", Value::Null), &three), Vec::<String>::new());
        assert_eq!(wrong(&set(4, "1", Value::Null), &three), ["spec.replicas"]);
        let left = set(0, "1", json!({"replicas": 2}));
        assert_eq!(wrong(&set(3, "1", Value::Null), &left), ["spec.replicas"], "old pods still exist");
        assert_eq!(wrong(&set(3, "2", Value::Null), &three).len(), 1);
    }

    #[test]
    fn a_template_of_an_owner_without_a_queue_gets_no_labels() {
        let mut set = json!({"metadata": {"name": "web"}, "spec": {"leaderWorkerTemplate": {"workerTemplate": {}}}});
        let config = Config { manage_jobs_without_queue_name: true, ..Config::default() };
        let gates = Gates::default();
        default_pod_owner(PodOwner::LeaderWorkerSet, &mut set, true, "team", &config, &gates, &nothing);
        let metadata = &set["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"];
        let marked = json!({"annotations": {annotations::POD_SUSPENDING_PARENT: replica::PARENT}});
        assert_eq!(*metadata, marked, "labels that are null are no valid object");
    }

    #[test]
    fn workers_beside_a_leader_of_their_own_kind_are_ranked_from_zero() {
        let offset = |template: Value| {
            let metadata = json!({"name": "web", "labels": {labels::QUEUE_NAME: "q"}});
            let mut set = json!({"metadata": metadata, "spec": {"leaderWorkerTemplate": template}});
            let (config, gates) = (Config::default(), Gates::default());
            default_pod_owner(PodOwner::LeaderWorkerSet, &mut set, true, "team", &config, &gates, &nothing);
            let worker = &set["spec"]["leaderWorkerTemplate"]["workerTemplate"];
            worker["metadata"]["annotations"][annotations::POD_INDEX_OFFSET].clone()
        };
        assert_eq!(offset(json!({"leaderTemplate": {}, "workerTemplate": {}})), "1");
        assert_eq!(offset(json!({"workerTemplate": {}})), Value::Null);
        let grouped = json!({"metadata": {"annotations": {annotations::PODSET_GROUP_NAME: "g"}}});
        assert_eq!(offset(json!({"leaderTemplate": grouped, "workerTemplate": grouped})), Value::Null);
    }

    #[test]
    fn the_group_size_of_a_leader_worker_set_changes_only_with_its_gate_off() {
        let set = |size: Value| {
            json!({"metadata": {"name": "lws", "labels": {labels::QUEUE_NAME: "q"}},
                "spec": {"leaderWorkerTemplate": {"size": size}}})
        };
        let fields = |old: Value, new: Value, gates: &Gates| {
            let errors = validate_pod_owner_update(PodOwner::LeaderWorkerSet, &set(new), &set(old), gates);
            errors.iter().map(|error| error.field.clone()).collect::<Vec<_>>()
        };
        let on = Gates::default();
        assert_eq!(fields(json!(2), json!(10), &on), ["spec.leaderWorkerTemplate.size"]);
        assert!(fields(Value::Null, json!(1), &on).is_empty(), "1 is the default");
        let off = on.with(Gate::LWSImmutableGroupSize, false);
        assert!(fields(json!(2), json!(10), &off).is_empty());
    }
}
