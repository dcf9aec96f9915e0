//! Pods of one node that are resized at the same time.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::berth::ClusterConfiguration;
use berth_apiserver::{InProcess, UserInfo};
use berth_cluster::kubelet;
use http::{Method, Request};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tower::Service;

use crate::world::{World, eventually};

/// A client on a connection that delays changes.
fn slow(connection: InProcess) -> Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let pause = if request.method() == Method::PATCH { Duration::from_millis(50) } else { Duration::ZERO };
        let mut connection = connection.clone();
        async move {
            tokio::time::sleep(pause).await;
            connection.call(request).await
        }
    });
    Client::new(service, "default")
}

/// A pod on the node that requests this number of CPUs.
async fn run(pods: &Api<Pod>, name: &str, cpu: &str) {
    let pod = json!({
        "metadata": {"name": name},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]},
    });
    let pod: Pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
}

/// The CPU amount that the container of a running pod has.
async fn given(pods: &Api<Pod>, name: &str) -> Option<String> {
    let status = pods.get(name).await.unwrap().status.filter(|it| it.phase.as_deref() == Some("Running"))?;
    let container = status.container_statuses?.into_iter().next()?;
    container.allocated_resources?.get("cpu").map(|amount| amount.0.clone())
}

/// True if the pod's resize is pending.
async fn waits(pods: &Api<Pod>, name: &str) -> bool {
    let conditions = pods.get(name).await.unwrap().status.and_then(|status| status.conditions);
    conditions.into_iter().flatten().any(|it| it.type_ == "PodResizePending")
}

#[tokio::test(start_paused = true)]
async fn freed_capacity_goes_to_one_pending_resize() {
    let world = World::new().await;
    let nodes: Api<Node> = Api::all(world.client());
    let node = json!({
        "metadata": {"name": "n"},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi"},
            "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let node: Node = serde_json::from_value(node).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let status = Patch::Merge(json!({"status": node.status}));
    nodes.patch_status("n", &PatchParams::default(), &status).await.unwrap();
    let wire = slow(world.server.in_process(UserInfo::master("kubelet")));
    let runtime = ClusterConfiguration::from_value(json!({"pods": {"defaultDuration": "100h"}})).unwrap().pods;
    let pods: Api<Pod> = Api::namespaced(world.client(), "default");
    let until = async {
        for (name, cpu) in [("a", "1"), ("b", "1"), ("big", "2")] {
            run(&pods, name, cpu).await;
            eventually("it runs", async || given(&pods, name).await.as_deref() == Some(cpu)).await;
        }
        let more = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]}});
        for name in ["a", "b"] {
            let patch = Patch::Strategic(&more);
            pods.patch_subresource("resize", name, &PatchParams::default(), &patch).await.unwrap();
            eventually("there is no room", async || waits(&pods, name).await).await;
        }
        pods.delete("big", &DeleteParams::default().grace_period(0)).await.unwrap();
        eventually("one has more", async || !waits(&pods, "a").await || !waits(&pods, "b").await).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let mut both = [given(&pods, "a").await.unwrap(), given(&pods, "b").await.unwrap()];
        both.sort();
        assert_eq!(both, ["1", "3"], "the node has four");
        assert!(waits(&pods, "a").await != waits(&pods, "b").await);
    };
    world.run_over(wire, |manager| kubelet::simulated::install(manager, runtime, 0, BTreeSet::new()), until).await;
}
