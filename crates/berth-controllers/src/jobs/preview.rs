//! The Workload that a job would get, without a cluster.
//!
//! The job need not exist. The same functions that reconcile jobs construct the Workload, so a
//! check of manifests and a forecast before submission see what the controllers would create.

use berth_api::jobset::v1alpha2::JobSet;
use berth_api::json::Json;
use berth_api::kueue::v1beta2::Workload;
use berth_runtime::{Cache, ObjectKey};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Namespace;
use kube::Resource;
use serde_json::{Value, json};

use super::described::for_each_foreign;
use super::reconcile::{Context, reconcile};
use super::train_job::TrainJob;
use super::{Job, kind_of};
use crate::configuration::Config;
use crate::plan::Step;
use crate::stores::{Stores, group_of};
use crate::webhooks;

/// The objects on which the Workloads of jobs depend: namespaces, priority classes and training
/// runtimes. Other objects are ignored.
pub fn surroundings<'a>(objects: impl IntoIterator<Item = &'a Value>) -> Stores {
    let stores = Stores::by_hand();
    for object in objects {
        let version = object["apiVersion"].as_str().unwrap_or_default();
        match (group_of(version), object["kind"].as_str().unwrap_or_default()) {
            ("", "Namespace") => observe(&stores.namespaces, object),
            ("scheduling.k8s.io", "PriorityClass") => observe(&stores.priority_classes, object),
            ("kueue.x-k8s.io", "WorkloadPriorityClass") => observe(&stores.workload_priority_classes, object),
            ("trainer.kubeflow.org", "TrainingRuntime") => observe(&stores.training_runtimes, object),
            ("trainer.kubeflow.org", "ClusterTrainingRuntime") => observe(&stores.cluster_training_runtimes, object),
            _ => {}
        }
    }
    stores
}

/// Objects that do not have the form of their kind are ignored: other checks report them.
pub(super) fn observe<K: Resource + Json + Send + Sync + 'static>(cache: &Cache<K>, object: &Value) {
    if let Ok(object) = webhooks::typed::<K>(object) {
        cache.observe(object);
    }
}

/// True if the object is a job of an integrated kind, other than a pod.
pub fn is_job(object: &Value) -> bool {
    let group = group_of(object["apiVersion"].as_str().unwrap_or_default());
    let kind = object["kind"].as_str().unwrap_or_default();
    super::suspendable().iter().any(|known| known.group == group && known.kind == kind)
}

/// The Workload that the controllers would create for the job if it were created now. `None` if the
/// object is not a job that is queued.
///
/// # Errors
/// The job has no Workload because of an error, such as a priority class that does not exist.
pub fn workload(job: &Value, stores: &Stores, config: &Config, now: Timestamp) -> Option<Result<Workload, String>> {
    if is::<BatchJob>(job) {
        return of::<BatchJob>(job, stores, config, now);
    }
    if is::<JobSet>(job) {
        return of::<JobSet>(job, stores, config, now);
    }
    if is::<TrainJob>(job) {
        return of::<TrainJob>(job, stores, config, now);
    }
    for_each_foreign!(Kind => {
        if is::<Kind>(job) {
            return of::<Kind>(job, stores, config, now);
        }
    });
    None
}

pub(super) fn is<J: Job>(object: &Value) -> bool {
    let kind = kind_of::<J>();
    object["kind"] == kind.kind.as_str() && group_of(object["apiVersion"].as_str().unwrap_or_default()) == kind.group
}

fn of<J: Job>(object: &Value, stores: &Stores, config: &Config, now: Timestamp) -> Option<Result<Workload, String>> {
    let mut job: J = match berth_api::json::from_value(as_new(object)) {
        Ok(job) => job,
        Err(error) => return Some(Err(error.to_string())),
    };
    job.suspend();
    let key = ObjectKey::of(&job);
    if stores.namespace_labels(&key.namespace).is_none() {
        observe::<Namespace>(&stores.namespaces, &json!({"metadata": {"name": key.namespace}}));
    }
    let gates = config.gates();
    let plan = reconcile(Context { stores, config, gates: &gates, now }, &key, Some(&job));
    let created = plan.steps.into_iter().find_map(|step| match step {
        Step::CreateWorkload(workload) => Some(*workload),
        _ => None,
    });
    match (created, plan.error) {
        (Some(workload), _) => Some(Ok(workload)),
        (None, Some(error)) => Some(Err(error.to_string())),
        (None, None) => None,
    }
}

/// The job as it would be created: without status and owners, with a namespace and a UID.
fn as_new(object: &Value) -> Value {
    let mut new = object.clone();
    if let Some(fields) = new.as_object_mut() {
        fields.remove("status");
    }
    let metadata = &mut new["metadata"];
    if let Some(fields) = metadata.as_object_mut() {
        fields.remove("ownerReferences");
        fields.remove("deletionTimestamp");
    }
    for (field, default) in [("namespace", "default".to_owned()), ("name", "new".to_owned())] {
        if metadata[field].as_str().is_none_or(str::is_empty) {
            metadata[field] = json!(default);
        }
    }
    if metadata["uid"].as_str().is_none_or(str::is_empty) {
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        let uid = format!("new-{}-{}", text("namespace"), text("name"));
        metadata["uid"] = json!(uid);
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(labels: Value) -> Value {
        json!({"apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "train", "namespace": "blue", "labels": labels},
            "spec": {"parallelism": 3, "template": {"spec": {"restartPolicy": "Never",
                "priorityClassName": "urgent",
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}}},
            "status": {"succeeded": 3, "conditions": [{"type": "Complete", "status": "True"}]}})
    }

    fn preview(job: &Value, objects: &[Value]) -> Option<Result<Workload, String>> {
        workload(job, &surroundings(objects), &Config::default(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_job_without_a_cluster_gets_the_workload_that_the_controllers_would_create() {
        let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": "urgent"}, "value": 7});
        let found = preview(&job(json!({"kueue.x-k8s.io/queue-name": "main"})), &[class]);
        let workload = found.expect("the job is queued").expect("the class exists");
        assert_eq!(workload.metadata.namespace.as_deref(), Some("blue"));
        assert_eq!((workload.spec.queue_name.as_str(), workload.spec.priority), ("main", Some(7)));
        assert_eq!(workload.spec.pod_sets.iter().map(|set| set.count).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_job_of_an_unknown_class_is_an_error_and_a_job_without_queue_is_not_queued() {
        let queued = preview(&job(json!({"kueue.x-k8s.io/queue-name": "main"})), &[]);
        assert_eq!(
            queued.map(|it| it.map(|_| ())),
            Some(Err("priorityclasses.scheduling.k8s.io \"urgent\" not found".to_owned()))
        );
        assert!(preview(&job(json!({})), &[]).is_none());
        assert!(preview(&json!({"apiVersion": "v1", "kind": "ConfigMap"}), &[]).is_none());
    }
}
