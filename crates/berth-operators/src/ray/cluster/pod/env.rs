//! Environment variables of the containers of a Ray pod.

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, PodSpec};

use super::NodeType;
use crate::ray::cluster::facts::{Creator, Facts};
use crate::ray::constants::{CLUSTER, GROUP};

/// A variable with this value.
pub fn value(name: &str, value: impl Into<String>) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.into()), value_from: None }
}

/// A variable with the value of a field of the pod.
pub fn field(name: &str, path: impl Into<String>) -> EnvVar {
    let selector = ObjectFieldSelector { api_version: None, field_path: path.into() };
    let source = EnvVarSource { field_ref: Some(selector), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value: None, value_from: Some(source) }
}

/// A variable with the value of a label of the pod.
pub fn label(name: &str, label: &str) -> EnvVar {
    field(name, format!("metadata.labels['{label}']"))
}

/// True if the container has a variable of this name.
pub fn has(container: &Container, name: &str) -> bool {
    container.env.iter().flatten().any(|variable| variable.name == name)
}

/// Adds the variable.
pub fn push(container: &mut Container, variable: EnvVar) {
    container.env.get_or_insert_default().push(variable);
}

/// Adds the variable unless the container has one of this name.
pub fn push_default(container: &mut Container, variable: EnvVar) {
    if !has(container, &variable.name) {
        push(container, variable);
    }
}

/// Adds the variables of a Ray node to its container, and the head's address to init containers.
pub fn add(facts: &Facts<'_>, node_type: NodeType, command: &str, spec: &mut PodSpec) {
    let address = facts.head_address();
    let head = [value("FQ_RAY_IP", address.clone()), value("RAY_IP", facts.head_service())];
    for container in spec.init_containers.iter_mut().flatten() {
        head.iter().for_each(|variable| push(container, variable.clone()));
    }
    let Some(ray) = spec.containers.first_mut() else { return };
    let (ip, port) = match node_type {
        NodeType::Head => ("127.0.0.1", facts.head_port()),
        NodeType::Worker => {
            head.into_iter().for_each(|variable| push(ray, variable));
            (address.as_str(), facts.head_port())
        }
    };
    push(ray, label("RAY_CLUSTER_NAME", CLUSTER));
    push(ray, field("RAY_CLUSTER_NAMESPACE", "metadata.namespace"));
    push(ray, field("RAY_CLOUD_INSTANCE_ID", "metadata.name"));
    push(ray, label("RAY_NODE_TYPE_NAME", GROUP));
    push(ray, value("KUBERAY_GEN_RAY_START_CMD", command));
    push_default(ray, value("RAY_PORT", port.clone()));
    if facts.creator() == Creator::RayService {
        push_default(ray, value("RAY_timeout_ms_task_wait_for_death_info", "0"));
        push_default(ray, value("RAY_gcs_server_request_timeout_seconds", "5"));
        push_default(ray, value("RAY_SERVE_KV_TIMEOUT_S", "5"));
    }
    push_default(ray, value("RAY_ADDRESS", format!("{ip}:{port}")));
    push_default(ray, value("RAY_USAGE_STATS_KUBERAY_IN_USE", "1"));
    if node_type == NodeType::Head {
        let tags =
            format!("kuberay_version=berth-{};kuberay_crd={}", env!("CARGO_PKG_VERSION"), facts.creator().as_str());
        push(ray, value("RAY_USAGE_STATS_EXTRA_TAGS", tags));
    }
    push_default(ray, value("RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE", "1"));
}
