//! The submitter of a RayJob's program: the Kubernetes Job of K8sJobMode, and the container in the
//! head pod of SidecarMode.

use std::collections::BTreeMap;

use berth_api::berth::RUN_DURATION_ANNOTATION;
use berth_api::frameworks::{RayCluster, RayJob};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec};
use k8s_openapi::api::core::v1::{
    Container, ContainerStateTerminated, EnvVar, EnvVarSource, Pod, PodSpec, PodTemplateSpec, ResourceRequirements,
    SecretKeySelector,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::command::{CommandError, script};
use super::types::{RayJobSpec, RayJobStatus, SubmissionMode};
use crate::ray::constants::{COMPONENT, CREATED_BY, ORIGIN_KIND, ORIGIN_NAME};
use crate::ray::names;
use crate::ray::types::RayClusterSpec;
use berth_runtime::owned_by;

/// Name of the container that submits, in a head pod and by default in a submitter pod.
pub const CONTAINER: &str = "ray-job-submitter";
/// Retries of a submitter Job if the RayJob does not set their number.
const BACKOFF_LIMIT_DEFAULT: i32 = 2;
/// Key of the token in its Secret.
const TOKEN_KEY: &str = "auth_token";

/// The submitter Job of a RayJob on this cluster.
///
/// # Errors
/// The command cannot be built; see [`CommandError`].
pub fn job(job: &RayJob, spec: &RayJobSpec, status: &RayJobStatus, cluster: &RayCluster) -> Result<Job, CommandError> {
    let cluster_spec = RayClusterSpec::read(&cluster.spec).unwrap_or_default();
    let retries = spec.submitter_config.as_ref().and_then(|config| config.backoff_limit);
    let mut template = spec.submitter_pod_template.clone().unwrap_or_else(default_template);
    let pod = template.spec.get_or_insert_with(|| default_template().spec.unwrap_or_default());
    if pod.containers.is_empty() {
        pod.containers.push(default_container());
    }
    configure(&mut pod.containers[0], spec, status, &cluster.name_any(), &cluster_spec)?;
    let metadata = template.metadata.get_or_insert_default();
    metadata.labels.get_or_insert_default().extend(labels(job));
    // A simulated submitter runs for the run time of its program, because a real one follows the
    // program's log.
    if let Some(duration) = job.annotations().get(RUN_DURATION_ANNOTATION) {
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.entry(RUN_DURATION_ANNOTATION.to_owned()).or_insert_with(|| duration.clone());
    }
    Ok(Job {
        metadata: ObjectMeta {
            name: Some(job.name_any()),
            namespace: job.namespace(),
            labels: Some(labels(job)),
            owner_references: Some(vec![owned_by(job)]),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            backoff_limit: Some(retries.unwrap_or(BACKOFF_LIMIT_DEFAULT)),
            template,
            ..JobSpec::default()
        }),
        status: None,
    })
}

/// The container that submits the program from the head pod of `cluster`.
///
/// # Errors
/// The command cannot be built; see [`CommandError`].
pub fn sidecar(
    spec: &RayJobSpec,
    status: &RayJobStatus,
    name: &str,
    cluster: &RayClusterSpec,
) -> Result<Container, CommandError> {
    let mut container = default_container();
    configure(&mut container, spec, status, name, cluster)?;
    Ok(container)
}

fn labels(job: &RayJob) -> BTreeMap<String, String> {
    let label = |key: &str, value: String| (key.to_owned(), value);
    BTreeMap::from([
        label(ORIGIN_KIND, "RayJob".to_owned()),
        label(ORIGIN_NAME, job.name_any()),
        label(CREATED_BY, COMPONENT.to_owned()),
    ])
}

/// Adds image, command and environment to a submitter's container.
fn configure(
    container: &mut Container,
    spec: &RayJobSpec,
    status: &RayJobStatus,
    name: &str,
    cluster: &RayClusterSpec,
) -> Result<(), CommandError> {
    // The default is the image of the head, so that both have the same version of Ray.
    if container.image.as_ref().is_none_or(String::is_empty) {
        let head = cluster.head_group_spec.template.spec.as_ref().and_then(|pod| pod.containers.first());
        container.image = head.and_then(|head| head.image.clone());
    }
    let has_command = container.command.as_ref().is_some_and(|command| !command.is_empty());
    if !has_command || spec.submission_mode == SubmissionMode::SidecarMode {
        // With `e`, a command that fails ends the script.
        container.command = Some(["/bin/bash", "-ce", "--"].map(str::to_owned).to_vec());
        container.args = Some(vec![script(spec, status, cluster)?]);
    }
    let environment = container.env.get_or_insert_default();
    for (name, value) in [
        ("PYTHONUNBUFFERED", "1"),
        ("RAY_DASHBOARD_ADDRESS", &status.dashboard_url),
        ("RAY_JOB_SUBMISSION_ID", &status.job_id),
    ] {
        environment.push(EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None });
    }
    if let Some(secret) = token_secret(name, cluster) {
        add_token(environment, secret);
    }
    Ok(())
}

/// Name of the Secret with the token for clients of this cluster; `None` if the clients need no
/// token.
pub fn token_secret(name: &str, cluster: &RayClusterSpec) -> Option<String> {
    let options = cluster.auth_options.as_ref().filter(|options| options.mode == "token")?;
    let given = options.secret_name.clone().filter(|secret| !secret.is_empty());
    Some(given.unwrap_or_else(|| names::checked(name)))
}

fn add_token(environment: &mut Vec<EnvVar>, secret: String) {
    let has = |environment: &[EnvVar], name: &str| environment.iter().any(|variable| variable.name == name);
    if !has(environment, "RAY_AUTH_MODE") {
        let value = Some("token".to_owned());
        environment.push(EnvVar { name: "RAY_AUTH_MODE".to_owned(), value, value_from: None });
    }
    if !has(environment, "RAY_AUTH_TOKEN") {
        let key = SecretKeySelector { name: secret, key: TOKEN_KEY.to_owned(), optional: None };
        let source = EnvVarSource { secret_key_ref: Some(key), ..EnvVarSource::default() };
        environment.push(EnvVar { name: "RAY_AUTH_TOKEN".to_owned(), value: None, value_from: Some(source) });
    }
}

fn default_template() -> PodTemplateSpec {
    let spec = PodSpec {
        containers: vec![default_container()],
        restart_policy: Some("Never".to_owned()),
        ..PodSpec::default()
    };
    PodTemplateSpec { metadata: None, spec: Some(spec) }
}

fn default_container() -> Container {
    let amounts = |cpu: &str, memory: &str| {
        let amount = |name: &str, value: &str| (name.to_owned(), Quantity(value.to_owned()));
        Some(BTreeMap::from([amount("cpu", cpu), amount("memory", memory)]))
    };
    Container {
        name: CONTAINER.to_owned(),
        resources: Some(ResourceRequirements {
            requests: amounts("500m", "200Mi"),
            limits: amounts("1", "1Gi"),
            ..ResourceRequirements::default()
        }),
        ..Container::default()
    }
}

/// The condition `Complete` or `Failed` of a finished Job.
pub fn finished(job: &Job) -> Option<&JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|it| matches!(it.type_.as_str(), "Complete" | "Failed") && it.status == "True")
}

/// How the submitter in the head pod ended; `None` while it runs.
pub fn sidecar_end(head: &Pod) -> Option<&ContainerStateTerminated> {
    let statuses = head.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|it| it.name == CONTAINER)?.state.as_ref()?.terminated.as_ref()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn made(spec: serde_json::Value) -> Job {
        let mut ray_job = RayJob::named("demo");
        ray_job.metadata.namespace = Some("default".into());
        ray_job.metadata.uid = Some("u1".into());
        ray_job.annotations_mut().insert(RUN_DURATION_ANNOTATION.into(), "90s".into());
        let mut cluster = RayCluster::named("demo-abcde");
        cluster.spec = json!({
            "authOptions": {"mode": "token"},
            "headGroupSpec": {"template": {"spec": {"containers": [{"name": "ray-head", "image": "ray:2"}]}}},
        });
        let status =
            RayJobStatus { dashboard_url: "svc:8265".into(), job_id: "demo-11111".into(), ..Default::default() };
        job(&ray_job, &RayJobSpec::read(&spec).unwrap(), &status, &cluster).unwrap()
    }

    #[test]
    fn the_default_submitter_has_the_image_of_the_head() {
        let made = made(json!({"entrypoint": "true"}));
        let spec = made.spec.unwrap();
        assert_eq!((made.metadata.name.as_deref(), spec.backoff_limit), (Some("demo"), Some(2)));
        let owner = &made.metadata.owner_references.unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str(), owner.controller), ("RayJob", "u1", Some(true)));
        let annotations = spec.template.metadata.unwrap().annotations.unwrap();
        assert_eq!(annotations[RUN_DURATION_ANNOTATION], "90s");
        let pod = spec.template.spec.unwrap();
        assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
        let container = &pod.containers[0];
        assert_eq!((container.name.as_str(), container.image.as_deref()), (CONTAINER, Some("ray:2")));
        assert_eq!(container.command.as_ref().unwrap(), &["/bin/bash", "-ce", "--"]);
        let names: Vec<_> = container.env.iter().flatten().map(|it| it.name.as_str()).collect();
        let expected =
            ["PYTHONUNBUFFERED", "RAY_DASHBOARD_ADDRESS", "RAY_JOB_SUBMISSION_ID", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_submitter_template_keeps_its_own_command() {
        let container = json!({"name": "mine", "image": "mine:1", "command": ["sh", "-c", "true"]});
        let template = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
        let made = made(json!({
            "entrypoint": "true", "submitterConfig": {"backoffLimit": 0}, "submitterPodTemplate": template,
        }));
        let spec = made.spec.unwrap();
        assert_eq!(spec.backoff_limit, Some(0));
        let container = &spec.template.spec.unwrap().containers[0];
        assert_eq!(container.command.as_ref().unwrap(), &["sh", "-c", "true"]);
        assert_eq!((container.image.as_deref(), container.args.is_none()), (Some("mine:1"), true));
        assert!(container.env.iter().flatten().any(|variable| variable.name == "RAY_JOB_SUBMISSION_ID"));
    }
}
