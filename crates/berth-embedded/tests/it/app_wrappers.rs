//! AppWrappers in a complete embedded cluster: queued, deployed, reset, suspended and deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::frameworks::AppWrapper;
use berth_api::kueue::v1beta2::Workload;
use berth_apiserver::UserInfo;
use berth_embedded::Embedded;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::ray_clusters::{create, start};

async fn eventually(what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..3600 {
        if done().await {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("did not happen within an hour of cluster time: {what}");
}

/// An AppWrapper `train` with a Job of two pods, each with two GPUs, that run for this time.
fn train(run_duration: &str, change: impl FnOnce(&mut Value)) -> AppWrapper {
    let container = json!({"name": "main", "image": "program",
        "resources": {"limits": {"nvidia.com/gpu": 2}, "requests": {"cpu": "1"}}});
    let pod = json!({"metadata": {"annotations": {"berth.dev/run-duration": run_duration}},
        "spec": {"restartPolicy": "Never", "containers": [container]}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": "train-"},
        "spec": {"parallelism": 2, "completions": 2, "backoffLimit": 0, "template": pod}});
    let mut wrapper = json!({"metadata": {"name": "train",
        "annotations": {"workload.codeflare.dev.appwrapper/retryPausePeriodDuration": "5s"}},
        "spec": {"components": [{"template": job}]}});
    change(&mut wrapper);
    serde_json::from_value(wrapper).expect("an AppWrapper")
}

/// A cluster of three nodes with two GPUs each, and a queue with four GPUs that is the default.
struct World {
    cluster: Embedded,
    client: Client,
    wrappers: Api<AppWrapper>,
    pods: Api<Pod>,
    workloads: Api<Workload>,
}

impl World {
    async fn new() -> Self {
        let pool = json!({"name": "gpu", "machineType": "g2-standard-24", "initialNodes": 3, "minNodes": 3,
            "maxNodes": 3, "static": true});
        let operators = json!({"appWrapperConfiguration": {"defaultQueueName": "lq"}});
        let configuration = json!({"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
            "integrations": {"frameworks": ["batch/job", "workload.codeflare.dev/appwrapper"]}});
        let cluster = start(json!({"nodePools": [pool], "operators": operators}), Some(configuration)).await;
        let client = cluster.admin_client();
        let kueue = "kueue.x-k8s.io/v1beta2";
        let quota = |name: &str, amount: &str| json!({"name": name, "nominalQuota": amount});
        for object in [
            json!({"apiVersion": kueue, "kind": "ResourceFlavor", "metadata": {"name": "any"}}),
            json!({"apiVersion": kueue, "kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": {
                "namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu", "nvidia.com/gpu"],
                    "flavors": [{"name": "any", "resources": [quota("cpu", "100"), quota("nvidia.com/gpu", "4")]}]}]}}),
            json!({"apiVersion": kueue, "kind": "LocalQueue", "metadata": {"name": "lq"},
                "spec": {"clusterQueue": "cq"}}),
        ] {
            create(&client, object, "default").await.expect("the object is accepted");
        }
        Self {
            wrappers: Api::default_namespaced(client.clone()),
            pods: Api::default_namespaced(client.clone()),
            workloads: Api::default_namespaced(client.clone()),
            client,
            cluster,
        }
    }

    async fn create(&self, wrapper: &AppWrapper) {
        self.wrappers.create(&PostParams::default(), wrapper).await.expect("the AppWrapper is accepted");
    }

    async fn status(&self) -> Value {
        self.wrappers.get("train").await.expect("the AppWrapper exists").status.unwrap_or_default()
    }

    async fn until_phase(&self, phase: &str) {
        eventually(&format!("phase {phase}"), async || self.status().await["phase"] == phase).await;
    }

    /// Nodes of the running pods by UID.
    async fn running(&self) -> BTreeMap<String, String> {
        let labels = ListParams::default().labels("workload.codeflare.dev/appwrapper=train");
        let pods = self.pods.list(&labels).await.expect("pods");
        let running = pods.items.into_iter().filter(|pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"))
        });
        let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        running.map(|pod| (pod.uid().unwrap_or_default(), node(&pod))).collect()
    }

    async fn until_running(&self) -> BTreeMap<String, String> {
        eventually("two pods run", async || self.running().await.len() == 2).await;
        self.running().await
    }

    async fn gpus_in_use(&self) -> String {
        let queue = ApiResource::from_gvk(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", "ClusterQueue"));
        let queues: Api<DynamicObject> = Api::all_with(self.client.clone(), &queue);
        let queue = queues.get("cq").await.expect("the queue");
        let resources = queue.data["status"]["flavorsUsage"][0]["resources"].as_array().cloned().unwrap_or_default();
        let gpus = resources.iter().find(|resource| resource["name"] == "nvidia.com/gpu");
        gpus.and_then(|gpus| gpus["total"].as_str()).unwrap_or("0").to_owned()
    }

    async fn until_gpus_in_use(&self, count: &str) {
        eventually(&format!("{count} GPUs are in use"), async || self.gpus_in_use().await == count).await;
    }
}

fn condition(status: &Value, type_: &str) -> (String, String) {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == type_).cloned().unwrap_or_default();
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

#[tokio::test(start_paused = true)]
async fn an_appwrapper_is_queued_runs_and_succeeds() {
    let world = World::new().await;
    world.create(&train("30s", |_| {})).await;
    let wrapper = world.wrappers.get("train").await.expect("the AppWrapper");
    assert_eq!(wrapper.labels()["kueue.x-k8s.io/queue-name"], "lq");
    assert_eq!(wrapper.labels()["workload.codeflare.dev/user"], "berth_admin");
    assert_eq!(wrapper.spec["suspend"], true, "the queue decides when it starts");
    world.until_running().await;
    let status = world.status().await;
    assert_eq!(status["phase"], "Running");
    assert_eq!(condition(&status, "QuotaReserved").0, "True");
    world.until_gpus_in_use("4").await;
    let [workload] = world.workloads.list(&ListParams::default()).await.expect("workloads").items.try_into().unwrap();
    assert_eq!(workload.spec.pod_sets.len(), 1);
    assert_eq!((workload.spec.pod_sets[0].name.as_str(), workload.spec.pod_sets[0].count), ("train-0", 2));
    let name = status["componentStatus"][0]["name"].as_str().expect("the name is recorded");
    let job = Api::<Job>::default_namespaced(world.client.clone()).get(name).await.expect("the Job");
    assert!(name.starts_with("train-") && job.labels()["workload.codeflare.dev/appwrapper"] == "train");
    eventually("the pods are ready", async || condition(&world.status().await, "PodsReady").0 == "True").await;

    world.until_phase("Succeeded").await;
    let status = world.status().await;
    assert_eq!(condition(&status, "QuotaReserved").0, "False");
    assert_eq!(condition(&status, "ResourcesDeployed").0, "True", "components are kept for their time to live");
    world.until_gpus_in_use("0").await;
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_node_resets_an_appwrapper_that_keeps_its_quota() {
    let world = World::new().await;
    world.create(&train("forever", |_| {})).await;
    let before = world.until_running().await;
    world.until_gpus_in_use("4").await;
    let bad = before.values().next().expect("a node").clone();
    let nodes: Api<Node> = Api::all(world.client.clone());
    let label = json!({"metadata": {"labels": {"autopilot.ibm.com/gpuhealth": "EVICT"}}});
    nodes.patch(&bad, &PatchParams::default(), &Patch::Merge(&label)).await.expect("the label is accepted");
    let at = world.cluster.clock().now();
    let mut phases = Vec::new();
    eventually("new pods run", async || {
        let status = world.status().await;
        let phase = status["phase"].as_str().unwrap_or_default().to_owned();
        if phases.last() != Some(&phase) {
            phases.push(phase);
        }
        assert_eq!(condition(&status, "QuotaReserved").0, "True");
        assert_eq!(world.gpus_in_use().await, "4", "the quota is kept");
        let running = world.running().await;
        let old = running.keys().filter(|uid| before.contains_key(*uid)).count();
        assert!(old == 0 || running.len() == old, "old and new pods run at once: {running:?}");
        old == 0 && running.len() == 2
    })
    .await;
    let took = world.cluster.clock().now().duration_since(at).as_secs();
    assert!(took <= 60, "a pause of 5 s, and the time to stop and start pods: {took} s");
    assert!(world.running().await.values().all(|node| *node != bad), "the new pods avoid the node");
    assert!(phases.contains(&"Resetting".to_owned()), "{phases:?}");
    let status = world.status().await;
    assert!(status.get("resettingCount").is_none(), "resets for node health do not count");
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn failing_pods_are_retried_to_the_limit_and_quota_is_returned() {
    let world = World::new().await;
    let failing = train("10s", |wrapper| {
        wrapper["metadata"]["annotations"]["workload.codeflare.dev.appwrapper/retryLimit"] = json!("1");
        let pod = &mut wrapper["spec"]["components"][0]["template"]["spec"]["template"];
        pod["metadata"]["annotations"]["berth.dev/exit-code"] = json!("3");
    });
    world.create(&failing).await;
    world.until_phase("Failed").await;
    let status = world.status().await;
    assert_eq!(status["resettingCount"], 1);
    assert_eq!(condition(&status, "Unhealthy").0, "True");
    world.until_gpus_in_use("0").await;
    let pods = world.pods.list(&ListParams::default()).await.expect("pods");
    assert!(pods.items.is_empty(), "quota is returned after the pods are gone");
    assert_eq!(condition(&world.status().await, "ResourcesDeployed").0, "False");
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deactivated_workload_suspends_its_appwrapper_and_a_deleted_one_leaves_nothing() {
    let world = World::new().await;
    world.create(&train("forever", |_| {})).await;
    world.until_running().await;
    let [workload] = world.workloads.list(&ListParams::default()).await.expect("workloads").items.try_into().unwrap();
    let active = |active: bool| Patch::Merge(json!({"spec": {"active": active}}));
    let (name, params) = (workload.name_any(), PatchParams::default());
    world.workloads.patch(&name, &params, &active(false)).await.expect("the Workload is deactivated");
    world.until_phase("Suspended").await;
    assert!(world.running().await.is_empty());
    let wrapper = world.wrappers.get("train").await.expect("the AppWrapper");
    assert!(wrapper.spec["components"][0].get("podSetInfos").is_none(), "{}", wrapper.spec);
    world.until_gpus_in_use("0").await;
    world.workloads.patch(&name, &params, &active(true)).await.expect("the Workload is activated");
    world.until_running().await;

    world.wrappers.delete("train", &DeleteParams::default()).await.expect("the deletion is accepted");
    eventually("the AppWrapper is gone", async || world.wrappers.get_opt("train").await.expect("a read").is_none())
        .await;
    assert!(world.pods.list(&ListParams::default()).await.expect("pods").items.is_empty());
    let jobs: Api<Job> = Api::default_namespaced(world.client.clone());
    assert!(jobs.list(&ListParams::default()).await.expect("jobs").items.is_empty());
    world.until_gpus_in_use("0").await;
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_component_of_an_unknown_kind_fails_the_appwrapper_with_the_reason() {
    let world = World::new().await;
    let unknown = train("30s", |wrapper| {
        let component =
            json!({"template": {"apiVersion": "example.com/v1", "kind": "Gizmo", "metadata": {"name": "g"}}});
        wrapper["spec"]["components"].as_array_mut().expect("a list").push(component);
    });
    world.create(&unknown).await;
    world.until_phase("Failed").await;
    eventually("nothing is left", async || condition(&world.status().await, "ResourcesDeployed").0 == "False").await;
    let status = world.status().await;
    let conditions = status["conditions"].as_array().expect("conditions");
    let unhealthy = conditions.iter().find(|it| it["type"] == "Unhealthy").expect("a condition");
    let message = "error creating components: the cluster does not serve kind \"Gizmo\" of \"example.com/v1\"";
    assert_eq!((&unhealthy["reason"], &unhealthy["message"]), (&json!("CreateFailed"), &json!(message)));
    world.cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_user_may_wrap_only_what_the_user_may_create() {
    let world = World::new().await;
    let rule =
        |group: &str, resource: &str| json!({"apiGroups": [group], "resources": [resource], "verbs": ["create"]});
    let rbac = "rbac.authorization.k8s.io";
    let roles = [
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "wrap"},
            "rules": [rule("workload.codeflare.dev", "appwrappers"), rule("", "pods")]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "wrap"},
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "wrap"},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": "alice"}]}),
    ];
    for object in roles {
        create(&world.client, object, "default").await.expect("the object is accepted");
    }
    let alice = Client::new(world.cluster.server().in_process(UserInfo::new("alice", &[])), "default");
    let wrappers: Api<AppWrapper> = Api::default_namespaced(alice);
    let error = wrappers.create(&PostParams::default(), &train("30s", |_| {})).await.expect_err("Jobs are refused");
    let expected = "admission webhook \"vappwrapper.kb.io\" denied the request: spec.components[0].template: \
                    Forbidden: User alice is not authorized to create jobs in default";
    assert_eq!(berth_runtime::message(&error), expected);
    let pod = train("30s", |wrapper| {
        let template = &mut wrapper["spec"]["components"][0]["template"];
        let spec = template["spec"]["template"]["spec"].take();
        *template = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
    });
    let created = wrappers.create(&PostParams::default(), &pod).await.expect("pods are allowed");
    assert_eq!(created.labels()["workload.codeflare.dev/user"], "alice");
    world.cluster.stop().await;
}
