//! Kubernetes objects of a plan.

use berth_engine::model::{PreemptionPolicy, TopologyMode};
use berth_load::Plan;
use berth_load::plan::{Class, RESOURCE};
use futures::stream::{self, StreamExt, TryStreamExt};
use kube::Client;
use serde_json::{Value, json};

/// API path of the workloads of all namespaces.
pub const WORKLOADS: &str = "/apis/kueue.x-k8s.io/v1beta2/workloads";
const KUEUE: &str = "kueue.x-k8s.io/v1beta2";

/// All objects of the plan except workloads, each with the path of its collection. An object comes
/// after those that it refers to. With `stopped`, the cluster queues admit no workload yet.
pub fn environment(plan: &Plan, stopped: bool) -> Vec<(String, Value)> {
    let mut objects = Vec::new();
    let kueue = |plural: &str| format!("/apis/{KUEUE}/{plural}");
    if let Some(topology) = &plan.topology {
        let levels: Vec<Value> = topology.levels.iter().map(|label| json!({"nodeLabel": label.as_ref()})).collect();
        objects.push((
            kueue("topologies"),
            json!({"apiVersion": KUEUE, "kind": "Topology", "metadata": {"name": topology.name.as_ref()},
                   "spec": {"levels": levels}}),
        ));
    }
    for node in &plan.nodes {
        let labels: serde_json::Map<String, Value> =
            node.labels.iter().map(|(key, value)| (key.to_string(), json!(value.as_ref()))).collect();
        let amount = |name: &str, value: i64| match name {
            RESOURCE => json!(format!("{value}m")),
            _ => json!(value.to_string()),
        };
        let allocatable: serde_json::Map<String, Value> =
            node.allocatable.iter().map(|(name, value)| (name.to_string(), amount(name, *value))).collect();
        objects.push((
            "/api/v1/nodes".to_owned(),
            json!({"apiVersion": "v1", "kind": "Node",
                   "metadata": {"name": node.name.as_ref(), "labels": labels},
                   "status": {"allocatable": allocatable, "capacity": allocatable,
                              "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady",
                                              "message": "kubelet is posting ready status"}]}}),
        ));
    }
    let labels: serde_json::Map<String, Value> =
        plan.flavor.node_labels.iter().map(|(key, value)| (key.to_string(), json!(value.as_ref()))).collect();
    let mut spec = json!({"nodeLabels": labels});
    if let Some(topology) = &plan.flavor.topology {
        spec["topologyName"] = json!(topology.as_ref());
    }
    objects.push((
        kueue("resourceflavors"),
        json!({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": plan.flavor.name.as_ref()},
               "spec": spec}),
    ));
    for queue in &plan.queues {
        let name = queue.name.as_ref();
        objects.push((
            "/api/v1/namespaces".to_owned(),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
        ));
        let mut quota = json!({"name": RESOURCE, "nominalQuota": format!("{}m", queue.nominal)});
        if let Some(limit) = queue.borrowing_limit {
            quota["borrowingLimit"] = json!(format!("{limit}m"));
        }
        objects.push((
            kueue("clusterqueues"),
            json!({"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name},
            "spec": {
                "cohortName": queue.cohort.as_ref(),
                "namespaceSelector": {},
                "queueingStrategy": "BestEffortFIFO",
                "stopPolicy": if stopped { "Hold" } else { "None" },
                "preemption": {
                    "withinClusterQueue": policy(queue.preemption.within_cluster_queue),
                    "reclaimWithinCohort": policy(queue.preemption.reclaim_within_cohort),
                },
                "resourceGroups": [{
                    "coveredResources": [RESOURCE],
                    "flavors": [{"name": plan.flavor.name.as_ref(), "resources": [quota]}],
                }],
            }}),
        ));
        objects.push((
            format!("/apis/{KUEUE}/namespaces/{name}/localqueues"),
            json!({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": name, "namespace": name},
                   "spec": {"clusterQueue": name}}),
        ));
    }
    objects
}

/// Creates running pods, on the plan's nodes if it has any.
pub async fn pods(client: &Client, plan: &Plan, count: usize) -> Result<(), kube::Error> {
    const NAMESPACE: &str = "bench-pods";
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    create(client, "/api/v1/namespaces", namespace.to_string().into_bytes()).await?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let made = stream::iter(0..count)
        .map(|number| {
            let node = plan.nodes.get(number % plan.nodes.len().max(1)).map_or("node", |node| node.name.as_ref());
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("pod-{number}")},
                "spec": {"nodeName": node, "containers": [{"name": "main", "image": "load",
                         "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]},
            });
            let path = path.clone();
            async move { create(client, &path, pod.to_string().into_bytes()).await }
        })
        .buffer_unordered(32);
    made.try_collect::<Vec<()>>().await.map(drop)
}

fn policy(policy: PreemptionPolicy) -> &'static str {
    match policy {
        PreemptionPolicy::Never => "Never",
        PreemptionPolicy::LowerPriority => "LowerPriority",
        PreemptionPolicy::LowerOrNewerEqualPriority => "LowerOrNewerEqualPriority",
        PreemptionPolicy::Any => "Any",
    }
}

/// The path of a workload's collection, and the workload as JSON.
pub fn workload(plan: &Plan, number: usize) -> (String, Vec<u8>) {
    let arrival = &plan.arrivals[number];
    let queue = plan.queues[arrival.queue].name.as_ref();
    let class = &plan.classes[arrival.class];
    let mut set = json!({
        "name": "main",
        "count": class.pods,
        "template": {"spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "load",
                            "resources": {"requests": {RESOURCE: format!("{}m", class.request)}}}],
        }},
    });
    if let Some(request) = topology_request(class) {
        set["topologyRequest"] = request;
    }
    let object = json!({
        "apiVersion": KUEUE, "kind": "Workload",
        "metadata": {"name": arrival.name.as_ref(), "namespace": queue},
        "spec": {"queueName": queue, "priority": class.priority, "podSets": [set]},
    });
    (format!("/apis/{KUEUE}/namespaces/{queue}/workloads"), object.to_string().into_bytes())
}

fn topology_request(class: &Class) -> Option<Value> {
    let topology = class.topology.as_ref()?;
    let mut request = match &topology.mode {
        Some(TopologyMode::Required(level)) => json!({"required": level.as_ref()}),
        Some(TopologyMode::Preferred(level)) => json!({"preferred": level.as_ref()}),
        Some(TopologyMode::Unconstrained) => json!({"unconstrained": true}),
        None => json!({}),
    };
    if let Some(slice) = topology.slices.first() {
        request["podSetSliceRequiredTopology"] = json!(slice.level.as_ref());
        request["podSetSliceSize"] = json!(slice.size);
    }
    Some(request)
}

/// Creates an object. An existing one stays unchanged.
pub async fn create(client: &Client, path: &str, body: Vec<u8>) -> Result<(), kube::Error> {
    let request = http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body)
        .map_err(kube::Error::HttpError)?;
    match client.request_text(request).await {
        Ok(_) => Ok(()),
        Err(error) if berth_runtime::is_already_exists(&error) => Ok(()),
        Err(error) => Err(error),
    }
}
