//! Unhealthy nodes on the whole embedded cluster: Autopilot's labels, the slack queue, and the pods
//! of queued jobs.

use std::time::Duration;

use berth_api::kueue::v1beta2::ClusterQueue;
use berth_embedded::Embedded;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::ray_clusters::start;

const GPU: &str = "nvidia.com/gpu";
const HEALTH: &str = "autopilot.ibm.com/gpuhealth";

/// A cluster of three nodes with eight GPUs, and these operators.
async fn cluster(operators: Value) -> Embedded {
    faulty_cluster(operators, Value::Null).await
}

/// A cluster whose nodes have random faults.
async fn faulty_cluster(operators: Value, faults: Value) -> Embedded {
    let pool = json!({"name": "gpu", "machine": {"cpu": "224", "memory": "2000Gi",
            "accelerator": {"type": "nvidia-h100-80gb", "count": 8}},
        "labels": {"nvidia.com/gpu.present": "true"},
        "initialNodes": 3, "minNodes": 3, "maxNodes": 3, "static": true, "faults": faults});
    let world = start(json!({"nodePools": [pool], "operators": operators}), None).await;
    eventually("three nodes have GPUs", async || {
        let nodes = Api::<Node>::all(world.admin_client()).list(&ListParams::default()).await.expect("nodes");
        let has_gpus = |node: &&Node| {
            node.status.as_ref().is_some_and(|it| it.capacity.as_ref().is_some_and(|it| it.contains_key(GPU)))
        };
        nodes.items.iter().filter(has_gpus).count() == 3
    })
    .await;
    world
}

async fn eventually(what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..7200 {
        if done().await {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("never: {what}");
}

async fn create(world: &Embedded, object: Value) {
    let gvk = object["apiVersion"].as_str().expect("an apiVersion");
    let (group, version) = gvk.split_once('/').unwrap_or(("", gvk));
    let kind = object["kind"].as_str().expect("a kind");
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let object: DynamicObject = serde_json::from_value(object).expect("an object");
    let client = world.admin_client();
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(client, &namespace, &resource),
        None => Api::all_with(client, &resource),
    };
    api.create(&PostParams::default(), &object).await.expect("the object is accepted");
}

/// A queue with this nominal quota of GPUs.
async fn queue(world: &Embedded, name: &str, gpus: &str) {
    let resources = json!([{"name": "cpu", "nominalQuota": "224"}, {"name": GPU, "nominalQuota": gpus}]);
    create(
        world,
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": name},
            "spec": {"cohortName": "default-cohort", "namespaceSelector": {}, "resourceGroups": [
                {"coveredResources": ["cpu", GPU], "flavors": [{"name": "default-flavor", "resources": resources}]}]}}),
    )
    .await;
}

async fn queues(world: &Embedded, slack: bool) {
    let flavor = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor",
        "metadata": {"name": "default-flavor"}});
    create(world, flavor).await;
    queue(world, "blue", "8").await;
    queue(world, "red", if slack { "8" } else { "16" }).await;
    if slack {
        queue(world, "slack-cluster-queue", "8").await;
    }
    create(
        world,
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
            "metadata": {"name": "default-queue", "namespace": "default"}, "spec": {"clusterQueue": "blue"}}),
    )
    .await;
}

async fn nodes(world: &Embedded) -> Vec<Node> {
    Api::<Node>::all(world.admin_client()).list(&ListParams::default()).await.expect("nodes").items
}

async fn patch_node(world: &Embedded, name: &str, patch: Value) {
    let api = Api::<Node>::all(world.admin_client());
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("the patch is accepted");
}

async fn label(world: &Embedded, node: &str, value: Option<&str>) {
    patch_node(world, node, json!({"metadata": {"labels": {HEALTH: value}}})).await;
}

async fn health(world: &Embedded, node: &str) -> Option<String> {
    let node = Api::<Node>::all(world.admin_client()).get(node).await.expect("the node exists");
    node.labels().get(HEALTH).cloned()
}

async fn cluster_queue(world: &Embedded, name: &str) -> ClusterQueue {
    Api::<ClusterQueue>::all(world.admin_client()).get(name).await.expect("the queue exists")
}

/// The lending limits of a queue, as `resource=limit`.
async fn limits(world: &Embedded, name: &str) -> Vec<String> {
    let queue = cluster_queue(world, name).await;
    let quotas =
        queue.spec.resource_groups.iter().flat_map(|group| &group.flavors).flat_map(|flavor| &flavor.resources);
    quotas.filter_map(|quota| Some(format!("{}={}", quota.name, quota.lending_limit.as_ref()?.0))).collect()
}

async fn has_event(world: &Embedded, reason: &str, part: &str) -> bool {
    let events = Api::<Event>::all(world.admin_client()).list(&ListParams::default()).await.expect("events").items;
    events.iter().any(|event| {
        event.reason.as_deref() == Some(reason) && event.message.as_deref().unwrap_or_default().contains(part)
    })
}

/// Without agents, so that labels are only those of the test.
fn quiet(slack: &str) -> Value {
    json!({"autopilot": {"enabled": false}, "slackQueue": slack})
}

#[tokio::test(start_paused = true)]
async fn the_slack_queue_lends_what_healthy_nodes_have() {
    let world = cluster(quiet("slack-cluster-queue")).await;
    queues(&world, true).await;
    let node = nodes(&world).await[0].name_any();
    assert_eq!(limits(&world, "slack-cluster-queue").await, Vec::<String>::new());
    label(&world, &node, Some("EVICT")).await;
    eventually("the limit is set", async || limits(&world, "slack-cluster-queue").await == ["nvidia.com/gpu=0"]).await;
    patch_node(&world, &node, json!({"spec": {"unschedulable": true}})).await;
    eventually("the whole node is lost", async || {
        limits(&world, "slack-cluster-queue").await == ["cpu=0", "nvidia.com/gpu=0"]
    })
    .await;
    patch_node(&world, &node, json!({"spec": {"unschedulable": null}})).await;
    label(&world, &node, Some("PASS")).await;
    eventually("the limit is removed", async || limits(&world, "slack-cluster-queue").await.is_empty()).await;
    // A limit of the administrator does not last.
    let mut queue = cluster_queue(&world, "slack-cluster-queue").await;
    queue.spec.resource_groups[0].flavors[0].resources[1].lending_limit =
        Some(k8s_openapi::apimachinery::pkg::api::resource::Quantity("4".into()));
    let api = Api::<ClusterQueue>::all(world.admin_client());
    api.replace("slack-cluster-queue", &PostParams::default(), &queue).await.expect("the limit is accepted");
    eventually("the limit is removed", async || limits(&world, "slack-cluster-queue").await.is_empty()).await;
    let blue = cluster_queue(&world, "blue").await.status.expect("a status");
    assert!(blue.conditions.iter().all(|condition| condition.type_ == "Active"), "the slack queue covers the loss");
}

#[tokio::test(start_paused = true)]
async fn queues_without_a_slack_queue_report_that_quota_exceeds_healthy_capacity() {
    let world = cluster(quiet("")).await;
    queues(&world, false).await;
    let condition = async || {
        let queue = cluster_queue(&world, "red").await.status.unwrap_or_default();
        let found = queue.conditions.into_iter().find(|it| it.type_ == "NominalQuotaExceedsHealthyCapacity");
        found.map(|it| (it.status, it.message))
    };
    let node = nodes(&world).await[1].name_any();
    label(&world, &node, Some("ERR")).await;
    eventually("the condition is true", async || condition().await.is_some_and(|(status, _)| status == "True")).await;
    let (_, message) = condition().await.expect("a condition");
    let expected = format!(
        "cohort default-cohort has a nominal quota of 24 for nvidia.com/gpu in flavor default-flavor, but healthy nodes \
         have 16: node {node} (label autopilot.ibm.com/gpuhealth=ERR) lacks 8."
    );
    assert_eq!(message, expected);
    label(&world, &node, None).await;
    eventually("the condition is false", async || condition().await.is_some_and(|(status, _)| status == "False")).await;
    let queue = cluster_queue(&world, "red").await.status.expect("a status");
    assert!(queue.conditions.iter().any(|it| it.type_ == "Active" && it.status == "True"), "the other conditions stay");
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_queued_job_leave_a_node_that_evicts_and_avoid_it() {
    let world = cluster(quiet("")).await;
    queues(&world, true).await;
    let job: Job = serde_json::from_value(json!({
        "metadata": {"name": "train", "labels": {"kueue.x-k8s.io/queue-name": "default-queue"}},
        "spec": {"template": {"metadata": {"annotations": {"berth.dev/run-duration": "5h"}}, "spec": {
            "restartPolicy": "Never",
            "tolerations": [{"key": GPU, "operator": "Exists"}],
            "containers": [{"name": "c", "image": "i", "resources": {"limits": {GPU: "8"}}}]}}},
    }))
    .expect("a Job");
    Api::<Job>::default_namespaced(world.admin_client()).create(&PostParams::default(), &job).await.expect("accepted");
    let running = async || -> Vec<(String, String)> {
        let pods =
            Api::<Pod>::default_namespaced(world.admin_client()).list(&ListParams::default()).await.expect("pods");
        let runs = |pod: &Pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"))
        };
        let running = pods.items.into_iter().filter(runs);
        running.map(|pod| (pod.name_any(), pod.spec.and_then(|spec| spec.node_name).unwrap_or_default())).collect()
    };
    eventually("the pod runs", async || running().await.len() == 1).await;
    let (first, node) = running().await.remove(0);
    label(&world, &node, Some("EVICT")).await;
    eventually("another pod runs elsewhere", async || {
        running().await.iter().any(|(name, other)| *name != first && *other != node)
    })
    .await;
    assert_eq!(running().await.len(), 1);
    assert!(has_event(&world, "NodeUnhealthy", &format!("node {node} is unhealthy: nvidia.com/gpu: label")).await);
}

#[tokio::test(start_paused = true)]
async fn agents_label_nodes_by_their_simulated_faults() {
    let world = cluster(json!({"autopilot": {"repeat": "10m", "invasive": "0s"}})).await;
    let node = nodes(&world).await[0].name_any();
    eventually("the first check passes", async || health(&world, &node).await.as_deref() == Some("PASS")).await;
    let faults = |text: &str| json!({"metadata": {"annotations": {"berth.dev/faults": text}}});
    patch_node(&world, &node, faults(r#"{"pciebw": {"3": 2.1}}"#)).await;
    eventually("the node is warned of", async || health(&world, &node).await.as_deref() == Some("WARN")).await;
    assert!(has_event(&world, "GPUHealthChanged", "pciebw: GPU 3 has 2.1 GB/s, expected at least 4").await);
    let metrics = world.autopilot().respond("/metrics", "").await.text;
    let value = format!(
        "health=\"pciebw\",node=\"{node}\",cpumodel=\"amd64\",gpumodel=\"nvidia-h100-80gb\",deviceid=\"3\"}} 2.1\n"
    );
    assert!(metrics.contains(&value), "{metrics}");

    // A request leaves EVICT; the next periodic check does not.
    label(&world, &node, Some("EVICT")).await;
    let answer = world.autopilot().respond("/status", &format!("check=pciebw&host={node}")).await;
    assert!(
        answer.text.contains("[[ PCIEBW ]] FAIL") && answer.text.contains("Node Status: PCIE Failed"),
        "{}",
        answer.text
    );
    assert!(answer.text.contains(&format!("{{'{node}': ['PCIE Failed']}}")), "{}", answer.text);
    assert_eq!(health(&world, &node).await.as_deref(), Some("EVICT"));
    patch_node(&world, &node, faults("")).await;
    eventually("the node passes", async || health(&world, &node).await.as_deref() == Some("PASS")).await;
    let unknown = world.autopilot().respond("/status", "check=fan").await;
    assert_eq!(unknown.text, "check not supported: fan\n");
    let volumes = world.autopilot().respond("/pvc", &format!("host={node}")).await;
    assert!(volumes.text.contains("[[ PVC ]]"), "{}", volumes.text);
}

#[tokio::test(start_paused = true)]
async fn an_invasive_check_evicts_a_node_with_a_fatal_fault() {
    let world = cluster(json!({"autopilot": {"repeat": "24h", "invasive": "30m"}})).await;
    let names: Vec<String> = nodes(&world).await.iter().map(ResourceExt::name_any).collect();
    patch_node(
        &world,
        &names[0],
        json!({"metadata": {"annotations": {"berth.dev/faults": r#"{"dcgm": {"PCIe": [2]}}"#}}}),
    )
    .await;
    // A pod uses a GPU of the last node.
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "user", "annotations": {"berth.dev/run-duration": "forever"}},
        "spec": {"nodeName": names[2], "containers": [{"name": "c", "image": "i", "resources": {"limits": {GPU: "1"}}}]}}))
    .expect("a pod");
    Api::<Pod>::default_namespaced(world.admin_client()).create(&PostParams::default(), &pod).await.expect("accepted");
    eventually("the check starts", async || health(&world, &names[0]).await.as_deref() == Some("TESTING")).await;
    eventually("the node is evicted", async || health(&world, &names[0]).await.as_deref() == Some("EVICT")).await;
    eventually("the other node passes", async || {
        let node = Api::<Node>::all(world.admin_client()).get(&names[1]).await.expect("the node exists");
        node.labels().get("autopilot.ibm.com/dcgm.level.3").is_some_and(|value| value.starts_with("PASS_"))
    })
    .await;
    let node = Api::<Node>::all(world.admin_client()).get(&names[0]).await.expect("the node exists");
    assert!(node.labels()["autopilot.ibm.com/dcgm.level.3"].starts_with("ERR_"), "{:?}", node.labels());
    assert_eq!(node.annotations()["autopilot.ibm.com/dcgm.level.3.output"], "pcie.2");
    let busy = Api::<Node>::all(world.admin_client()).get(&names[2]).await.expect("the node exists");
    assert!(!busy.labels().contains_key("autopilot.ibm.com/dcgm.level.3"), "a node in use is not tested");
    assert_eq!(busy.labels()[HEALTH], "PASS");
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_becomes_unreachable_and_stuck_pods_wait() {
    let world = cluster(quiet("")).await;
    let name = nodes(&world).await[0].name_any();
    let faults = |text: &str| json!({"metadata": {"annotations": {"berth.dev/faults": text}}});
    let ready = async || {
        let node = Api::<Node>::all(world.admin_client()).get(&name).await.expect("the node exists");
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready").map(|it| it.status);
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        (ready.unwrap_or_default(), taints.iter().filter(|taint| taint.key == "node.kubernetes.io/unreachable").count())
    };
    patch_node(&world, &name, faults(r#"{"notReady": true}"#)).await;
    eventually("the node is silent", async || ready().await == ("Unknown".to_owned(), 2)).await;
    patch_node(&world, &name, faults(r#"{"stuckPods": true}"#)).await;
    eventually("the node is back", async || ready().await == ("True".to_owned(), 0)).await;
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"nodeName": name,
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}))
    .expect("a pod");
    let pods = Api::<Pod>::default_namespaced(world.admin_client());
    pods.create(&PostParams::default(), &pod).await.expect("accepted");
    tokio::time::sleep(Duration::from_secs(600)).await;
    let phase = async || pods.get("p").await.expect("the pod exists").status.and_then(|status| status.phase);
    assert_eq!(phase().await.as_deref(), Some("Pending"));
    patch_node(&world, &name, faults("")).await;
    eventually("the pod ends", async || phase().await.as_deref() == Some("Succeeded")).await;
    patch_node(&world, &name, faults("broken")).await;
    eventually("the annotation is reported", async || has_event(&world, "InvalidFaults", "berth.dev/faults").await)
        .await;
}

#[tokio::test(start_paused = true)]
async fn random_faults_come_and_go() {
    let faults = json!({"seed": 1, "evict": {"every": "2h", "duration": "30m"},
        "notReady": {"every": "90m", "duration": "10m"}, "stuckPods": {"every": "3h", "duration": "15m"},
        "gpu": {"every": "150m", "duration": "1h"}});
    let world = faulty_cluster(quiet(""), faults).await;
    // Samples of the label, of whether the node reports, and of its random faults.
    let mut samples = Vec::new();
    for _ in 0..36 {
        tokio::time::sleep(Duration::from_secs(600)).await;
        for node in nodes(&world).await {
            let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let reports = conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True");
            let random = node.annotations().get("berth.dev/random-faults").cloned().unwrap_or_default();
            assert_eq!(reports, !random.contains("notReady"), "{random:?}");
            assert_eq!(node.labels().get(HEALTH).map(String::as_str) == Some("EVICT"), random.contains("EVICT"));
            samples.push(random);
        }
    }
    for fault in ["EVICT", "notReady", "stuckPods"] {
        let active = samples.iter().filter(|random| random.contains(fault)).count();
        assert!(0 < active && active * 2 < samples.len(), "{fault} in {active} of {} samples", samples.len());
    }
    let of_gpu = ["pciebw", "remapped", "dcgm", "gpupower", "gpumem"];
    assert!(samples.iter().any(|random| of_gpu.iter().any(|kind| random.contains(kind))), "{samples:?}");
    assert!(samples.iter().any(String::is_empty), "{samples:?}");
}
