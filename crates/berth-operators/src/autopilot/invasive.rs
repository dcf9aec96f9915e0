//! The invasive check: DCGM's diagnostics of level 3 in a Job that uses the GPUs of a node.

use std::collections::BTreeMap;

use berth_api::berth::RUN_DURATION_ANNOTATION;
use berth_apimachinery::quantity::Quantity;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use serde_json::json;
use sha1::{Digest, Sha1};

use super::{AutopilotConfiguration, GPU, GPU_PRESENT};
use crate::health::requested;

/// Start of the names of invasive Jobs.
const PREFIX: &str = "dcgm-";
/// Label of invasive Jobs: name of the node.
pub const NODE_LABEL: &str = "berth.dev/autopilot-node";
/// Annotation of a node: UID of the last invasive Job whose result its labels show.
pub const RECORDED: &str = "berth.dev/autopilot-job";
/// Image of the Job. On the process runtime, the machine's own `dcgmi` runs.
const IMAGE: &str = "nvcr.io/nvidia/cloud-native/dcgm:4.2.3-1-ubuntu22.04";

/// Why no invasive check can run on a node now; `None` if it can. `pods` are the pods of the node.
pub fn obstacle<'a>(node: &Node, pods: impl IntoIterator<Item = &'a Pod>) -> Option<String> {
    if !node.labels().contains_key(GPU_PRESENT) {
        return Some(format!("the node has no label {GPU_PRESENT}"));
    }
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
    let uses = |pod: &&Pod| pod.spec.as_ref().is_some_and(|spec| requested(spec).contains(GPU));
    let mut users = pods.into_iter().filter(|pod| phase(pod) != "Succeeded").filter(uses);
    users.next().map(|pod| format!("pod {}/{} uses GPUs", pod.namespace().unwrap_or_default(), pod.name_any()))
}

/// Number of GPUs of a node.
pub fn gpus(node: &Node) -> u32 {
    let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
    let amount = capacity.and_then(|capacity| Quantity::parse(&capacity.get(GPU)?.0).ok());
    amount.and_then(|amount| u32::try_from(amount.value()).ok()).unwrap_or(0)
}

/// The Job of an invasive check. `attempt` differs between the attempts on a node.
pub fn job(node: &Node, attempt: &str, command: &[String], configuration: &AutopilotConfiguration) -> Job {
    let gpus = configuration.invasive_gpus.unwrap_or_else(|| gpus(node)).to_string();
    let mut digest = Sha1::new();
    digest.update(node.uid().unwrap_or_else(|| node.name_any()));
    digest.update(attempt);
    let name = format!("{PREFIX}{}", &hex::encode(digest.finalize())[..12]);
    let labels = BTreeMap::from([("app", "autopilot-dcgm".to_owned()), (NODE_LABEL, label_value(&node.name_any()))]);
    let amounts = json!({ GPU: gpus });
    let job = json!({
        "metadata": { "name": name, "namespace": configuration.namespace, "labels": labels },
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": configuration.invasive_job_ttl(),
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": { RUN_DURATION_ANNOTATION: configuration.invasive_duration.to_string() },
                },
                "spec": {
                    "restartPolicy": "Never",
                    "nodeName": node.name_any(),
                    "tolerations": [{ "operator": "Exists" }],
                    "containers": [{
                        "name": "main", "image": IMAGE, "command": command,
                        "resources": { "requests": amounts, "limits": amounts },
                    }],
                },
            },
        },
    });
    berth_api::json::from_value(job).expect("the literal has the form of a Job")
}

/// Label values have at most 63 characters; the names of nodes may be longer.
fn label_value(name: &str) -> String {
    name.chars().take(63).collect::<String>().trim_end_matches(['-', '.', '_']).to_owned()
}

/// Name of the node of an invasive Job; `None` for other Jobs.
pub fn node_of(job: &Job) -> Option<&str> {
    job.metadata.labels.as_ref()?.get(NODE_LABEL)?;
    job.spec.as_ref()?.template.spec.as_ref()?.node_name.as_deref()
}

/// True if the Job has finished; `Some(true)` if it succeeded.
pub fn outcome(job: &Job) -> Option<bool> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let is_true = |type_: &str| conditions.iter().any(|it| it.type_ == type_ && it.status == "True");
    if is_true("Complete") { Some(true) } else { is_true("Failed").then_some(false) }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn node(gpus: &str) -> Node {
        let node = json!({"metadata": {"name": "n1", "uid": "u1", "labels": {GPU_PRESENT: "true"}},
            "status": {"capacity": {GPU: gpus}}});
        serde_json::from_value(node).expect("a node")
    }

    fn pod(phase: &str, limits: Value) -> Pod {
        let pod = json!({"metadata": {"namespace": "blue", "name": "p"}, "status": {"phase": phase},
            "spec": {"containers": [{"name": "a", "resources": {"limits": limits}}]}});
        serde_json::from_value(pod).expect("a pod")
    }

    #[test]
    fn a_node_with_free_gpus_can_be_tested() {
        let one = || json!({GPU: "1"});
        let cases = [
            (vec![], None),
            (vec![pod("Running", one())], Some("pod blue/p uses GPUs".to_owned())),
            (vec![pod("Pending", one())], Some("pod blue/p uses GPUs".to_owned())),
            (vec![pod("Failed", one())], Some("pod blue/p uses GPUs".to_owned())),
            (vec![pod("Succeeded", one()), pod("Running", json!({"cpu": "1"}))], None),
        ];
        for (pods, expected) in cases {
            assert_eq!(obstacle(&node("8"), &pods), expected);
        }
        let mut other = node("8");
        other.metadata.labels = None;
        assert!(obstacle(&other, &[]).is_some());
    }

    #[test]
    fn the_job_runs_on_its_node_with_all_gpus() {
        let configuration = AutopilotConfiguration::default();
        let command = ["dcgmi".to_owned()];
        let job = job(&node("4"), "1", &command, &configuration);
        let name = job.metadata.name.clone().expect("a name");
        assert!(name.len() == 17 && name[5..].chars().all(|c| c.is_ascii_hexdigit()), "{name}");
        assert_eq!(node_of(&job), Some("n1"));
        let spec = job.spec.as_ref().expect("a spec");
        assert_eq!((spec.backoff_limit, spec.ttl_seconds_after_finished), (Some(0), Some(30)));
        let pod = spec.template.spec.as_ref().expect("a pod");
        assert_eq!((pod.restart_policy.as_deref(), pod.node_name.as_deref()), (Some("Never"), Some("n1")));
        let limits = pod.containers[0].resources.as_ref().and_then(|it| it.limits.clone()).expect("limits");
        assert_eq!(limits[GPU].0, "4");
        assert_ne!(super::job(&node("4"), "2", &command, &configuration).metadata.name, job.metadata.name);
        let fixed = AutopilotConfiguration { invasive_gpus: Some(8), ..configuration };
        let fixed = json!(super::job(&node("4"), "1", &command, &fixed));
        let pointer = "/spec/template/spec/containers/0/resources/limits";
        assert_eq!(fixed.pointer(pointer), Some(&json!({GPU: "8"})));
    }
}
