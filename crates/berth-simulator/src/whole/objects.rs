//! The objects of a whole replay: the policy's, a node per flavor, and the jobs.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::berth::RUN_DURATION_ANNOTATION;
use berth_api::kueue::{labels, v1beta2::ResourceFlavor};
use berth_controllers::translate::amounts::to_resource_list;
use berth_engine::Name;
use berth_foresight::policy::Policy;
use berth_foresight::replay::Replay;
use berth_load::Load;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, ResourceRequirements};
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use super::names::Names;
use super::priorities;

/// Amount of each resource of a node: more than any quota admits, so that only quota decides.
const PLENTY: &str = "1G";
/// Address of the nodes, to which nothing connects.
const ADDRESS: &str = "10.128.0.2";
/// Since when the nodes are ready.
const SINCE: &str = "2000-01-01T00:00:00Z";
/// Time after which a Job that has ended is deleted, in seconds: its Workload has ended by then.
const KEPT_SECONDS: i32 = 60;
/// Start of the Jobs' names; the number of the job follows.
const JOB_PREFIX: &str = "job-";

/// The cluster: pods start and stop without delay, and there are no kinds of jobs but Job.
pub fn cluster() -> Value {
    json!({"name": "replay", "nodePools": [], "pods": {"startDelay": "0s", "stopDelay": "0s"},
           "operators": {"ray": false, "leaderWorkerSets": false, "trainer": false, "appWrappers": false,
                         "training": false, "mpi": false}})
}

/// The controllers' configuration: the policy's, with Jobs as the only integration.
pub fn configuration(policy: &Policy) -> Value {
    let mut configuration = policy
        .configuration
        .clone()
        .unwrap_or_else(|| json!({"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"}));
    configuration["integrations"]["frameworks"] = json!(["batch/job"]);
    configuration
}

/// Why a policy cannot be replayed through a cluster, if it cannot.
pub fn unsupported(policy: &Policy) -> Option<String> {
    let check = policy.manifests.iter().find(|object| object["kind"] == "AdmissionCheck")?;
    let name = check["metadata"]["name"].as_str().unwrap_or_default();
    Some(format!(
        "AdmissionCheck {name}: a replay with --whole has no controller for admission checks, so its jobs would wait \
         forever; remove the check from the policy, or replay without --whole, where checks pass at once"
    ))
}

/// The objects to create before the first job, in order.
pub fn platform(replay: &Replay<'_>, names: &mut Names) -> Vec<Value> {
    let manifests = &replay.policy().manifests;
    let mut rest = Vec::new();
    let mut namespaces: BTreeMap<String, Value> = BTreeMap::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for manifest in manifests {
        let (mut object, metadata) = (manifest.clone(), &manifest["metadata"]);
        let name = text(&metadata["name"]);
        if ["ClusterQueue", "Namespace"].iter().any(|kind| manifest["kind"] == *kind) {
            names.add(&name);
            object["metadata"]["name"] = json!(names.of(&name));
        }
        if manifest["kind"] == "LocalQueue" {
            let (namespace, queue) = (text(&metadata["namespace"]), text(&manifest["spec"]["clusterQueue"]));
            names.add(&namespace);
            names.add(&queue);
            object["metadata"]["namespace"] = json!(names.of(&namespace));
            object["spec"]["clusterQueue"] = json!(names.of(&queue));
            let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.of(&namespace)}});
            namespaces.entry(namespace).or_insert(made);
        }
        if manifest["kind"] == "Namespace" {
            namespaces.insert(name, object);
        } else {
            rest.push(object);
        }
    }
    let mut all: Vec<Value> = namespaces.into_values().collect();
    all.extend(rest);
    all.extend(nodes(replay));
    all.extend(priorities(replay).into_iter().map(|priority| {
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass",
               "metadata": {"name": class(priority)}, "value": priority})
    }));
    all
}

/// The class of the jobs of a priority.
fn class(priority: i64) -> String {
    format!("trace-priority-{}", priority.to_string().replace('-', "minus-"))
}

/// The policy's own nodes are ready. Each flavor without a topology has a node that holds whatever
/// is admitted.
fn nodes(replay: &Replay<'_>) -> Vec<Value> {
    let resources: BTreeSet<&Name> = replay.trace().jobs.iter().flat_map(|job| job.requests.keys()).collect();
    let mut amounts: BTreeMap<&str, String> = resources.iter().map(|name| (&***name, PLENTY.to_owned())).collect();
    amounts.insert("memory", "1Pi".to_owned());
    amounts.insert("ephemeral-storage", "1Pi".to_owned());
    amounts.insert("pods", PLENTY.to_owned());
    let flavors = replay.policy().manifests.iter().filter(|object| object["kind"] == "ResourceFlavor");
    let typed = flavors.filter_map(|flavor| serde_json::from_value::<ResourceFlavor>(flavor.clone()).ok());
    let node = |flavor: ResourceFlavor| {
        let name = flavor.metadata.name.unwrap_or_default();
        let status = json!({"capacity": amounts, "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": ADDRESS}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                            "lastTransitionTime": SINCE}]});
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{name}"), "labels": flavor.spec.node_labels},
               "spec": {"taints": flavor.spec.node_taints}, "status": status})
    };
    typed.filter(|flavor| flavor.spec.topology_name.is_none()).map(node).collect()
}

/// The Job of a job of the trace.
pub fn job(replay: &Replay<'_>, number: usize, names: &Names) -> Job {
    let (job, queue) = (&replay.trace().jobs[number], replay.queue(number));
    let mut labels: BTreeMap<String, String> = [(labels::QUEUE_NAME.to_owned(), queue.name.to_string())].into();
    if replay.priority(number) != 0 {
        labels.insert(labels::PRIORITY_CLASS.to_owned(), class(replay.priority(number)));
    }
    let requests = to_resource_list(&job.requests);
    // Extended resources are requested by their limits.
    let limits: BTreeMap<_, _> = requests.iter().filter(|(name, _)| name.contains('/')).map(cloned).collect();
    let run_time = berth_api::berth::Duration(replay.run_time(number)).to_string();
    let container = Container {
        name: "main".to_owned(),
        image: Some("replay".to_owned()),
        resources: Some(ResourceRequirements {
            requests: Some(requests),
            limits: (!limits.is_empty()).then_some(limits),
            claims: None,
        }),
        ..Container::default()
    };
    let spec = PodSpec { containers: vec![container], restart_policy: Some("Never".to_owned()), ..PodSpec::default() };
    let annotations = [(RUN_DURATION_ANNOTATION.to_owned(), run_time)].into();
    Job {
        metadata: ObjectMeta {
            name: Some(format!("{JOB_PREFIX}{number}")),
            namespace: Some(names.of(&queue.namespace).to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            parallelism: Some(job.pods),
            completions: Some(job.pods),
            suspend: Some(true),
            ttl_seconds_after_finished: Some(KEPT_SECONDS),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() }),
                spec: Some(spec),
            },
            ..JobSpec::default()
        }),
        status: None,
    }
}

fn cloned<K: Clone, V: Clone>((key, value): (&K, &V)) -> (K, V) {
    (key.clone(), value.clone())
}

/// The number of the job that a Job of this name is.
pub fn number(name: &str) -> Option<usize> {
    name.strip_prefix(JOB_PREFIX)?.parse().ok()
}
