//! Faults that a scenario injects, through the Kubernetes API.

use berth_api::berth::{FAULTS_ANNOTATION, NodeFaults};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde::Deserialize;
use serde_json::json;

use crate::resource::{Reference, ResourceError, Resources};

/// A fault. Exactly one field is set.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fault {
    /// Nodes are lost, as when a machine fails or a spot VM is reclaimed: their Node objects are
    /// deleted.
    NodesLost(NodesLost),
    /// A pod fails with an exit code, as when its program crashes.
    PodFailed(PodFailed),
    /// Simulated nodes have these faults from now on, in place of those of an earlier action.
    NodeFaults(FaultyNodes),
    /// A condition is set on an object's status in place of its controller, such as
    /// `CapacityRevoked` on a ProvisioningRequest.
    Condition(ConditionFault),
}

/// The nodes to lose.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NodesLost {
    /// Label selector.
    pub selector: String,
    /// Number of nodes to lose, in name order. Default: 1.
    #[serde(default = "one")]
    pub count: usize,
}

fn one() -> usize {
    1
}

/// The nodes that get faults.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FaultyNodes {
    /// Label selector.
    #[serde(default)]
    pub selector: String,
    /// Number of nodes, in name order. Default: 1.
    #[serde(default = "one")]
    pub count: usize,
    /// The faults; empty if the nodes are healthy again.
    #[serde(default)]
    pub faults: NodeFaults,
}

/// The pod that fails, and its exit code.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PodFailed {
    /// Namespace of the pods.
    pub namespace: String,
    /// Label selector; the first running pod in name order fails.
    pub selector: String,
    /// Exit code of the pod's containers; not 0. Default: 1.
    #[serde(default = "exit_code_default")]
    pub exit_code: i32,
}

fn exit_code_default() -> i32 {
    1
}

/// A condition to set.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ConditionFault {
    /// The object.
    pub object: Reference,
    /// Condition type.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`. Default: `True`.
    #[serde(default = "status_default")]
    pub status: String,
    /// Reason, in CamelCase.
    pub reason: String,
    /// Message of the condition.
    #[serde(default)]
    pub message: String,
}

fn status_default() -> String {
    "True".into()
}

impl Fault {
    /// Injects the fault; returns a line for the report.
    pub async fn inject(&self, resources: &Resources, now: jiff::Timestamp) -> Result<String, ResourceError> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |source| ResourceError::api(what, source)
        };
        match self {
            Self::NodesLost(fault) => {
                let api = resources.by_name("nodes").await?.everywhere(resources.client());
                let params = ListParams::default().labels(&fault.selector);
                let mut names: Vec<String> = api
                    .list(&params)
                    .await
                    .map_err(failed("nodes"))?
                    .items
                    .into_iter()
                    .filter_map(|n| n.metadata.name)
                    .collect();
                names.sort();
                names.truncate(fault.count);
                for name in &names {
                    api.delete(name, &DeleteParams::default()).await.map_err(failed(name))?;
                }
                Ok(format!("lost {} node(s): {}", names.len(), names.join(", ")))
            }
            Self::PodFailed(fault) => {
                let api = resources.by_name("pods").await?.api(resources.client(), Some(&fault.namespace));
                let params = ListParams::default().labels(&fault.selector).fields("status.phase=Running");
                let mut pods = api.list(&params).await.map_err(failed("pods"))?.items;
                pods.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
                let Some(name) = pods.into_iter().find_map(|pod| pod.metadata.name) else {
                    return Ok(format!("no running pod matches {}", fault.selector));
                };
                // The simulated kubelet ends a running pod that has this annotation.
                let patch = json!({"metadata": {"annotations": {
                    "berth.dev/fail-now": "true", "berth.dev/exit-code": fault.exit_code.to_string()}}});
                api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(failed(&name))?;
                Ok(format!("failed pod {}/{name} with exit code {}", fault.namespace, fault.exit_code))
            }
            Self::NodeFaults(fault) => {
                let api = resources.by_name("nodes").await?.everywhere(resources.client());
                let params = ListParams::default().labels(&fault.selector);
                let nodes = api.list(&params).await.map_err(failed("nodes"))?.items;
                let mut names: Vec<String> = nodes.into_iter().filter_map(|node| node.metadata.name).collect();
                names.sort();
                names.truncate(fault.count);
                let is_healthy = fault.faults == NodeFaults::default();
                let text = serde_json::to_string(&fault.faults).unwrap_or_default();
                let value = (!is_healthy).then_some(&text);
                let patch = json!({"metadata": {"annotations": {FAULTS_ANNOTATION: value}}});
                for name in &names {
                    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(failed(name))?;
                }
                let shown = if is_healthy { "no faults" } else { &text };
                Ok(format!("{} node(s) have {shown}: {}", names.len(), names.join(", ")))
            }
            Self::Condition(fault) => {
                let found = resources.by_name(&fault.object.kind).await?;
                let api = found.api(resources.client(), fault.object.namespace.as_deref());
                let Some(object) = resources.get(&fault.object).await? else {
                    return Ok(format!("{} does not exist", fault.object));
                };
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let mut conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
                conditions.retain(|condition| condition["type"] != fault.type_.as_str());
                conditions.push(json!({
                    "type": fault.type_, "status": fault.status, "reason": fault.reason, "message": fault.message,
                    "lastTransitionTime": k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now),
                }));
                let patch = json!({"status": {"conditions": conditions}});
                api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(failed(name))?;
                Ok(format!("set {}={} ({}) on {}", fault.type_, fault.status, fault.reason, fault.object))
            }
        }
    }
}
