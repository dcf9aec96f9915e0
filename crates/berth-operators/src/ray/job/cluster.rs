//! The RayCluster of a RayJob, and the Service of its head that has the RayJob's name.

use berth_api::berth::RUN_DURATION_ANNOTATION;
use berth_api::frameworks::{RayCluster, RayJob};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use super::command::CommandError;
use super::submitter;
use super::types::{RayJobSpec, RayJobStatus, SubmissionMode};
use crate::ray::constants::{NO_HEAD_RESTART, ORIGIN_KIND, ORIGIN_NAME, SUBMISSION_MODE};
use crate::ray::simulation;
use crate::ray::types::RayClusterSpec;
use berth_runtime::owned_by;

/// Run time of a simulated sidecar of a RayJob without the annotation.
const SIDECAR_DURATION_DEFAULT: &str = "60s";

/// The cluster of a RayJob, named by its status.
///
/// # Errors
/// The command of the sidecar cannot be built; see [`CommandError`].
pub fn cluster(job: &RayJob, spec: &RayJobSpec, status: &RayJobStatus) -> Result<RayCluster, CommandError> {
    let mut labels = job.labels().clone();
    labels.insert(ORIGIN_KIND.to_owned(), "RayJob".to_owned());
    labels.insert(ORIGIN_NAME.to_owned(), job.name_any());
    labels.insert(SUBMISSION_MODE.to_owned(), spec.submission_mode.as_str().to_owned());
    let mut annotations = job.annotations().clone();
    // The applied manifest of the RayJob is not that of the cluster.
    annotations.remove(berth_api::well_known::LAST_APPLIED);
    let mut cluster_spec = spec.ray_cluster_spec.clone().unwrap_or_else(|| json!({}));
    if spec.submission_mode == SubmissionMode::SidecarMode {
        annotations.insert(NO_HEAD_RESTART.to_owned(), "true".to_owned());
        add_sidecar(job, &mut cluster_spec, spec, status)?;
    }
    let mut cluster = RayCluster::named(&status.ray_cluster_name);
    cluster.metadata = ObjectMeta {
        namespace: job.namespace(),
        labels: Some(labels),
        annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
        owner_references: Some(vec![owned_by(job)]),
        ..cluster.metadata
    };
    cluster.spec = cluster_spec;
    Ok(cluster)
}

/// Adds the submitter's container to the head pod, and sets the pod's restart policy to `Never`.
fn add_sidecar(
    job: &RayJob,
    cluster: &mut Value,
    spec: &RayJobSpec,
    status: &RayJobStatus,
) -> Result<(), CommandError> {
    let read = RayClusterSpec::read(cluster).unwrap_or_default();
    let container = submitter::sidecar(spec, status, &status.ray_cluster_name, &read)?;
    let template = &mut cluster["headGroupSpec"]["template"];
    let pod = &mut template["spec"];
    pod["restartPolicy"] = "Never".into();
    if let Some(containers) = pod["containers"].as_array_mut() {
        containers.push(json!(container));
    }
    // A simulated head pod that does not restart runs until it is deleted. Only a container with an
    // annotation of its own ends earlier.
    let duration = job.annotations().get(RUN_DURATION_ANNOTATION).map_or(SIDECAR_DURATION_DEFAULT, String::as_str);
    let annotations = &mut template["metadata"]["annotations"];
    annotations[simulation::duration_annotation(submitter::CONTAINER)] = duration.into();
    Ok(())
}

/// The Service of the head that is named after the RayJob. `of_cluster` is the cluster's own head
/// Service.
pub fn service(job: &RayJob, of_cluster: &Service) -> Service {
    crate::ray::services::head_of_owner(job, "RayJob", of_cluster)
}
