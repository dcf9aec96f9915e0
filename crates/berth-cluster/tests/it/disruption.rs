//! Disruption budgets count the running pods.

use berth_cluster::{disruption, replicas};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::world::{FATE, World, eventually};

fn deployment(replicas: i32) -> Deployment {
    let metadata = json!({"labels": {"app": "web"}, "annotations": {FATE: "100000"}});
    let template = json!({"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template});
    serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap()
}

fn budget(name: &str, amount: Value, app: &str) -> PodDisruptionBudget {
    let mut spec = json!({"selector": {"matchLabels": {"app": app}}});
    spec.as_object_mut().unwrap().extend(amount.as_object().unwrap().clone());
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_budget_allows_as_many_evictions_as_leave_enough_healthy_pods() {
    let world = World::new().await;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(world.client(), "default");
    let pods: Api<Pod> = Api::namespaced(world.client(), "default");
    let deployments: Api<Deployment> = Api::namespaced(world.client(), "default");
    let seen = async |name: &str| {
        let status = budgets.get(name).await.unwrap().status.unwrap_or_default();
        [status.expected_pods, status.desired_healthy, status.current_healthy, status.disruptions_allowed]
    };
    let until = async {
        for (name, amount) in [("number", json!({"minAvailable": 2})), ("share", json!({"maxUnavailable": "34%"}))] {
            budgets.create(&PostParams::default(), &budget(name, amount, "web")).await.unwrap();
        }
        eventually("none", async || seen("number").await == [0, 2, 0, 0]).await;
        deployments.create(&PostParams::default(), &deployment(3)).await.unwrap();
        eventually("three pods, two of which must stay", async || seen("number").await == [3, 2, 3, 1]).await;
        eventually("a third, rounded up, may go", async || seen("share").await == [3, 1, 3, 2]).await;
        let status = budgets.get("number").await.unwrap().status.unwrap();
        let conditions = status.conditions.unwrap();
        assert_eq!((conditions[0].type_.as_str(), conditions[0].status.as_str()), ("DisruptionAllowed", "True"));
        // Evicts a pod, as `kubectl drain` does. The Deployment creates another pod.
        let name = pods.list(&ListParams::default()).await.unwrap().items[0].name_any();
        budgets.delete("share", &Default::default()).await.unwrap();
        pods.evict(&name, &EvictParams::default()).await.expect("allowed");
        eventually("another in its place", async || {
            seen("number").await == [3, 2, 3, 1] && pods.get_opt(&name).await.unwrap().is_none()
        })
        .await;
        // The scale of the Deployment decides, and not the number of pods.
        budgets.create(&PostParams::default(), &budget("half", json!({"minAvailable": "50%"}), "web")).await.unwrap();
        deployments
            .patch("web", &PatchParams::default(), &Patch::Merge(&json!({"spec": {"replicas": 8}})))
            .await
            .unwrap();
        eventually("four of eight", async || seen("half").await == [8, 4, 8, 4]).await;
        let refused = async || {
            let status = budgets.get("half").await.unwrap().status.unwrap_or_default();
            status.conditions.unwrap_or_default().into_iter().find(|it| it.reason == "SyncFailed").map(|it| it.message)
        };
        // The kind of this pod's controller has no scale, so no pod may be evicted.
        let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true}]);
        let stray = json!({"metadata": {"name": "stray", "labels": {"app": "web"}, "ownerReferences": owner},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        pods.create(&PostParams::default(), &serde_json::from_value(stray).unwrap()).await.unwrap();
        eventually("the condition reports the failure", async || {
            refused().await.as_deref() == Some("jobs.batch does not implement the scale subresource")
        })
        .await;
        assert_eq!(seen("half").await[3], 0);
    };
    let install = |manager: &mut _| {
        replicas::install(manager);
        disruption::install(manager);
    };
    world.run(install, until).await;
}
