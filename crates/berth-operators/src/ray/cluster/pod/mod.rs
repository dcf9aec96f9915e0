//! The pods of a cluster: the head, and the workers of each group.
//!
//! A pod is the template of its group plus what a Ray node needs: labels, the `ray start` command,
//! environment variables, shared memory, probes, and further containers.

mod autoscaler;
mod env;
mod probes;
mod start;
mod store;
mod token;
mod tpu;

use std::collections::BTreeMap;

use berth_api::berth::RUN_DURATION_ANNOTATION;
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EmptyDirVolumeSource, Pod, PodSpec, PodTemplateSpec, ResourceRequirements, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::facts::{Creator, Facts};
use crate::ray::constants::{
    APP_NAME, APPLICATION, CLUSTER, COMPONENT, CREATED_BY, GROUP, HEAD_GROUP, HOST_INDEX, IDENTIFIER, IS_RAY_NODE,
    METRICS_PORT, NODE_TYPE, OVERWRITE_COMMAND, REPLICA_INDEX, REPLICA_NAME, SERVE,
};
use crate::ray::names;
use crate::ray::types::WorkerGroupSpec;

use start::Params;
pub use token::SECRET_KEY as TOKEN_KEY;

/// Name of the port of a node's metrics.
const METRICS: &str = "metrics";
/// Mount path and volume of the object store.
const SHARED_MEMORY: (&str, &str) = ("/dev/shm", "shared-mem");
/// Mount path and volume of the logs that head and autoscaler share.
const LOGS: (&str, &str) = ("/tmp/ray", "ray-logs");

/// Role of a Ray node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeType {
    /// The head, one per cluster.
    Head,
    /// A worker.
    Worker,
}

impl NodeType {
    /// Value of the label `ray.io/node-type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Worker => "worker",
        }
    }
}

/// Place of a worker in its group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Name of the replica, if the group has several hosts per replica.
    pub replica_name: Option<String>,
    /// Index of the replica in its group.
    pub replica: usize,
    /// Index of the host in its replica.
    pub host: usize,
}

/// The command of a container that runs a script in a shell.
pub fn shell() -> Option<Vec<String>> {
    Some(["/bin/bash", "-c", "--"].map(str::to_owned).into())
}

/// The head pod, to be created.
pub fn head(facts: &Facts<'_>) -> Pod {
    let group = &facts.spec.head_group_spec;
    let mut template = group.template.clone();
    let metadata = template.metadata.get_or_insert_default();
    metadata.generate_name = Some(names::pod_prefix(facts.name, NodeType::Head.as_str()));
    set_labels(facts, NodeType::Head, HEAD_GROUP, metadata, &group.labels);
    let params = start::params(facts, NodeType::Head, &group.ray_start_params, &group.resources, &group.labels);
    let spec = template.spec.get_or_insert_default();
    if facts.spec.is_autoscaled() {
        autoscaler::add(facts, spec);
    }
    store::add(facts, NodeType::Head, metadata, spec);
    finish(facts, NodeType::Head, template, &params)
}

/// A worker pod, to be created.
pub fn worker(facts: &Facts<'_>, group: &WorkerGroupSpec, place: &Place) -> Pod {
    let mut template = group.template.clone();
    let metadata = template.metadata.get_or_insert_default();
    metadata.name = None;
    let prefix = format!("{}-{}", facts.name, group.group_name);
    metadata.generate_name = Some(names::pod_prefix(&prefix, NodeType::Worker.as_str()));
    set_labels(facts, NodeType::Worker, &group.group_name, metadata, &group.labels);
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(REPLICA_INDEX.to_owned(), place.replica.to_string());
    if let Some(name) = &place.replica_name {
        labels.insert(REPLICA_NAME.to_owned(), name.clone());
        labels.insert(HOST_INDEX.to_owned(), place.host.to_string());
    }
    let params = start::params(facts, NodeType::Worker, &group.ray_start_params, &group.resources, &group.labels);
    let spec = template.spec.get_or_insert_default();
    add_wait_for_head(facts, spec);
    if facts.spec.is_autoscaled() && facts.spec.autoscaler_version() == Some("v2") {
        spec.restart_policy = Some("Never".to_owned());
    }
    store::add(facts, NodeType::Worker, metadata, spec);
    tpu::add(facts, group, place, spec);
    finish(facts, NodeType::Worker, template, &params)
}

fn set_labels(
    facts: &Facts<'_>,
    node_type: NodeType,
    group: &str,
    metadata: &mut ObjectMeta,
    of_group: &BTreeMap<String, String>,
) {
    let node_type = node_type.as_str();
    let identifier = names::checked_label(&format!("{}-{node_type}", facts.name));
    let mut labels: BTreeMap<String, String> =
        [(IS_RAY_NODE, "yes"), (IDENTIFIER, identifier.as_str()), (APP_NAME, APPLICATION), (CREATED_BY, COMPONENT)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
    labels.extend(metadata.labels.take().unwrap_or_default());
    labels.extend(of_group.clone());
    for (key, value) in [(CLUSTER, facts.name), (NODE_TYPE, node_type), (GROUP, group)] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    metadata.labels = Some(labels);
}

/// Adds the init container that waits until the head answers.
fn add_wait_for_head(facts: &Facts<'_>, spec: &mut PodSpec) {
    let Some(ray) = spec.containers.first() else { return };
    let address = format!("{}:{}", facts.head_address(), facts.head_port());
    let script = format!(
        "until ray health-check --address {address}; do echo \"The head at {address} does not answer yet.\"; sleep 2; done"
    );
    let wait = Container {
        name: "wait-gcs-ready".to_owned(),
        image: ray.image.clone(),
        image_pull_policy: ray.image_pull_policy.clone(),
        command: shell(),
        args: Some(vec![script]),
        // Certificates and tokens for the connection are in environment variables and volumes of
        // the Ray container.
        env: ray.env.clone(),
        volume_mounts: ray.volume_mounts.clone(),
        security_context: ray.security_context.clone(),
        resources: Some(fixed("200m", "256Mi")),
        ..Container::default()
    };
    spec.init_containers.get_or_insert_default().push(wait);
}

/// Resources of a container whose requests equal its limits.
pub fn fixed(cpu: &str, memory: &str) -> ResourceRequirements {
    let amounts: BTreeMap<_, _> =
        [("cpu", cpu), ("memory", memory)].map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned()))).into();
    ResourceRequirements { limits: Some(amounts.clone()), requests: Some(amounts), ..ResourceRequirements::default() }
}

/// Adds what head and workers have in common.
fn finish(facts: &Facts<'_>, node_type: NodeType, template: PodTemplateSpec, params: &Params) -> Pod {
    let mut metadata = template.metadata.unwrap_or_default();
    let mut spec = template.spec.unwrap_or_default();
    metadata.namespace = Some(facts.namespace.to_owned());
    metadata.owner_references = Some(vec![facts.owner()]);
    if facts.keeps_commands() {
        metadata.annotations.get_or_insert_default().insert(OVERWRITE_COMMAND.to_owned(), "true".to_owned());
    }
    if facts.creator() == Creator::RayService {
        // The RayService controller sets the head's label once the head serves requests.
        let serves = (node_type == NodeType::Worker).to_string();
        metadata.labels.get_or_insert_default().insert(SERVE.to_owned(), serves);
    }
    if spec.restart_policy.as_deref().is_some_and(|policy| policy != "Always") {
        // A Ray node runs until its pod is deleted. Without the annotation, a simulated pod with
        // such a restart policy would end by itself.
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.entry(RUN_DURATION_ANNOTATION.to_owned()).or_insert_with(|| "forever".to_owned());
    }
    add_metrics_port(&mut spec);
    if facts.spec.needs_token() {
        token::add(facts, &mut spec);
    }
    if !params.contains_key("plasma-directory") {
        add_shared_memory(&mut spec);
    }
    if node_type == NodeType::Head && facts.spec.is_autoscaled() {
        add_logs(&mut spec);
    }
    let keeps_command = metadata
        .annotations
        .iter()
        .flatten()
        .any(|(key, value)| key == OVERWRITE_COMMAND && value.eq_ignore_ascii_case("true"));
    let command = set_command(node_type, params, keeps_command, &mut spec);
    env::add(facts, node_type, &command, &mut spec);
    if let Some(ray) = spec.containers.first_mut() {
        probes::add(facts, node_type, params, ray);
    }
    Pod { metadata, spec: Some(spec), status: None }
}

fn add_metrics_port(spec: &mut PodSpec) {
    let Some(ray) = spec.containers.first_mut() else { return };
    let ports = ray.ports.get_or_insert_default();
    if !ports.iter().any(|port| port.name.as_deref() == Some(METRICS)) {
        ports.push(ContainerPort {
            name: Some(METRICS.to_owned()),
            container_port: METRICS_PORT,
            ..ContainerPort::default()
        });
    }
}

/// Mounts a volume in memory for the object store. Its maximum size is the memory limit of the Ray
/// container, or its memory request if there is no limit.
fn add_shared_memory(spec: &mut PodSpec) {
    let Some(resources) = spec.containers.first().map(|ray| ray.resources.clone().unwrap_or_default()) else { return };
    let of = |list: &Option<BTreeMap<String, Quantity>>| list.as_ref().and_then(|list| list.get("memory").cloned());
    let source = EmptyDirVolumeSource {
        medium: Some("Memory".to_owned()),
        size_limit: of(&resources.limits).or_else(|| of(&resources.requests)),
    };
    mount(spec, 0, SHARED_MEMORY, source);
}

/// Mounts a folder for the logs that the autoscaler writes and the head reads.
fn add_logs(spec: &mut PodSpec) {
    let autoscaler = spec.containers.iter().position(|container| container.name == autoscaler::NAME);
    for container in [Some(0), autoscaler].into_iter().flatten() {
        mount(spec, container, LOGS, EmptyDirVolumeSource::default());
    }
}

/// Mounts an empty volume in a container, unless the container has a mount at that path.
fn mount(spec: &mut PodSpec, container: usize, (path, volume): (&str, &str), source: EmptyDirVolumeSource) {
    let Some(container) = spec.containers.get_mut(container) else { return };
    let mounts = container.volume_mounts.get_or_insert_default();
    if mounts.iter().any(|mount| mount.mount_path == path) {
        return;
    }
    mounts.push(VolumeMount { name: volume.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() });
    let volumes = spec.volumes.get_or_insert_default();
    if !volumes.iter().any(|known| known.name == volume) {
        volumes.push(Volume { name: volume.to_owned(), empty_dir: Some(source), ..Volume::default() });
    }
}

/// Sets the command of the Ray container and returns the `ray start` command. A command of the
/// template runs before `ray start`. It runs in place of `ray start` if it calls `ray start` itself
/// or if `keeps_command` is set.
fn set_command(node_type: NodeType, params: &Params, keeps_command: bool, spec: &mut PodSpec) -> String {
    let Some(ray) = spec.containers.first_mut() else { return String::new() };
    let start = start::command(node_type, params.clone(), ray.resources.as_ref());
    let words: Vec<_> = ray.command.iter().flatten().chain(ray.args.iter().flatten()).map(String::as_str).collect();
    let given = words.join(" ");
    if keeps_command || given.contains("ray start") {
        return start;
    }
    let script = format!("ulimit -n ${{RAY_START_ULIMIT_OPEN_FILES:-65536}}; {start}");
    ray.command = shell();
    ray.args = Some(vec![if given.is_empty() { script } else { format!("{given} && {script}") }]);
    start
}
