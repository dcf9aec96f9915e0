//! The pods of a job, and the headless Service of each pod, by which the others find it.

use std::collections::BTreeMap;

use berth_api::berth::RUN_DURATION_ANNOTATION;
use berth_api::well_known;
use berth_runtime::owned_by_named;
use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec,
};
use k8s_openapi::api::core::v1::{Pod, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;

use super::environment;
use super::framework::{API_VERSION, Library};
use super::gang;
use super::types::{Job, Replica, Spec};

/// Labels of the objects of training jobs.
pub mod labels {
    /// Name of the job.
    pub const JOB: &str = "training.kubeflow.org/job-name";
    /// Name of the operator.
    pub const OPERATOR: &str = "training.kubeflow.org/operator-name";
    /// Replica type in lower case.
    pub const TYPE: &str = "training.kubeflow.org/replica-type";
    /// Index of the pod in its type.
    pub const INDEX: &str = "training.kubeflow.org/replica-index";
    /// `master` for the pod whose success is that of the job.
    pub const ROLE: &str = "training.kubeflow.org/job-role";
}

/// The owner reference of a job's objects.
pub fn owner(job: &Job<'_>) -> OwnerReference {
    owned_by_named(API_VERSION, job.framework.kind, job.name(), job.metadata.uid.as_deref().unwrap_or_default())
}

/// Labels of the pods of this type, and the selector of the status.
pub fn type_labels(job: &Job<'_>, replica: &Replica) -> BTreeMap<String, String> {
    let labels = [
        (labels::JOB, job.name().to_owned()),
        (labels::OPERATOR, job.framework.controller.to_owned()),
        (labels::TYPE, replica.lower()),
    ];
    labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn index_labels(job: &Job<'_>, replica: &Replica, index: i32) -> BTreeMap<String, String> {
    let mut labels = type_labels(job, replica);
    labels.insert(labels::INDEX.to_owned(), index.to_string());
    labels
}

/// True if the success of this pod is that of the job.
fn is_master(job: &Job<'_>, replica: &Replica, index: i32) -> bool {
    let has = |type_| job.spec.replica(type_).is_some();
    match job.framework.library {
        Library::PyTorch if has("Master") => replica.type_ == "Master",
        Library::TensorFlow if has("Chief") || has("Master") => matches!(replica.type_, "Chief" | "Master"),
        Library::PyTorch | Library::TensorFlow => replica.type_ == "Worker" && index == 0,
        Library::XGBoost | Library::Paddle => replica.type_ == "Master",
        Library::Jax => index == 0,
    }
}

/// The pod of this type and index. `scheduler` starts all pods of the job together.
///
/// # Errors
/// The templates lack a container or port that the others need.
pub fn pod(job: &Job<'_>, replica: &Replica, index: i32, scheduler: Option<&str>) -> Result<Pod, String> {
    let template = replica.template.clone();
    let metadata = template.metadata.unwrap_or_default();
    let mut labels = metadata.labels.unwrap_or_default();
    labels.extend(index_labels(job, replica, index));
    if is_master(job, replica, index) {
        labels.insert(labels::ROLE.to_owned(), "master".to_owned());
    }
    let mut spec = template.spec.unwrap_or_default();
    environment::complete(job, replica, index, &mut spec)?;
    spec.restart_policy = Some(replica.restart_policy.of_pods().to_owned());
    if let Some(scheduler) = scheduler {
        gang::join(job.name(), scheduler, &mut labels, &mut spec);
    }
    let mut annotations = metadata.annotations;
    if job.framework.library == Library::TensorFlow && replica.type_ == "PS" {
        run_until_deleted(&mut annotations);
    }
    let metadata = ObjectMeta {
        name: Some(job.replica_name(replica.type_, index)),
        namespace: Some(job.namespace().to_owned()),
        labels: Some(labels),
        annotations,
        finalizers: metadata.finalizers,
        owner_references: Some(vec![owner(job)]),
        ..ObjectMeta::default()
    };
    Ok(Pod { metadata, spec: Some(spec), status: None })
}

/// Marks a pod whose program is a server: it would end if it is simulated.
pub(crate) fn run_until_deleted(annotations: &mut Option<BTreeMap<String, String>>) {
    let annotations = annotations.get_or_insert_default();
    annotations.entry(RUN_DURATION_ANNOTATION.to_owned()).or_insert_with(|| "forever".to_owned());
}

/// The headless Service of the pod of this type and index, with the ports of the container that
/// trains.
pub fn service(job: &Job<'_>, replica: &Replica, index: i32) -> Service {
    let labels = index_labels(job, replica, index);
    let containers = replica.template.spec.iter().flat_map(|spec| &spec.containers);
    let trains = containers.into_iter().filter(|container| container.name == job.framework.container);
    let ports = trains.flat_map(|container| container.ports.iter().flatten());
    // A Service has each port once; the last of a name wins.
    let ports: BTreeMap<Option<&str>, i32> = ports.map(|port| (port.name.as_deref(), port.container_port)).collect();
    let ports = ports.into_iter().map(|(name, port)| ServicePort {
        name: name.map(str::to_owned),
        port,
        ..ServicePort::default()
    });
    Service {
        metadata: ObjectMeta {
            name: Some(job.replica_name(replica.type_, index)),
            namespace: Some(job.namespace().to_owned()),
            labels: Some(labels.clone()),
            owner_references: Some(vec![owner(job)]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: Some(labels),
            ports: Some(ports.collect()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// The autoscaler of the workers, if the job has metrics for one.
pub fn autoscaler(job: &Job<'_>) -> Option<HorizontalPodAutoscaler> {
    let elastic = job.spec.elastic.as_ref().filter(|_| job.framework.library == Library::PyTorch)?;
    let metrics = elastic.metrics.clone()?;
    Some(HorizontalPodAutoscaler {
        metadata: ObjectMeta {
            name: Some(job.name().to_owned()),
            namespace: Some(job.namespace().to_owned()),
            owner_references: Some(vec![owner(job)]),
            ..ObjectMeta::default()
        },
        spec: Some(HorizontalPodAutoscalerSpec {
            scale_target_ref: CrossVersionObjectReference {
                api_version: Some(API_VERSION.to_owned()),
                kind: job.framework.kind.to_owned(),
                name: job.name().to_owned(),
            },
            min_replicas: elastic.min_replicas,
            max_replicas: elastic.max_replicas.unwrap_or(1),
            metrics: Some(metrics),
            behavior: None,
        }),
        status: None,
    })
}

/// The annotations that a job's PodGroup takes over.
pub fn group_annotations(job: &Job<'_>) -> Option<BTreeMap<String, String>> {
    let mut annotations = job.metadata.annotations.clone()?;
    annotations.remove(well_known::LAST_APPLIED);
    Some(annotations).filter(|annotations| !annotations.is_empty())
}

/// Warnings about templates whose fields the operator replaces or keeps against the gang scheduler.
pub fn template_warnings(spec: &Spec, scheduler: Option<&str>) -> Vec<(&'static str, &'static str)> {
    let pods = || spec.replicas.iter().filter_map(|replica| replica.template.spec.as_ref());
    let mut warnings = Vec::new();
    if pods().any(|pod| pod.restart_policy.as_deref().is_some_and(|policy| !policy.is_empty())) {
        warnings.push((
            "SetPodTemplateRestartPolicy",
            "Restart policy in pod template will be overwritten by restart policy in replica spec",
        ));
    }
    let others = |pod: &k8s_openapi::api::core::v1::PodSpec| {
        let name = pod.scheduler_name.as_deref().filter(|name| !name.is_empty());
        name.is_some_and(|name| scheduler.is_some_and(|scheduler| scheduler != name))
    };
    if pods().any(others) {
        warnings.push((
            "SetPodTemplateSchedulerName",
            "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten",
        ));
    }
    warnings
}
