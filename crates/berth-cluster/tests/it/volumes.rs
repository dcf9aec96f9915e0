//! Claims and volumes remain while they are in use.

use berth_cluster::{garbage, replicas};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::world::{FATE, World, eventually};

fn claim(name: &str) -> PersistentVolumeClaim {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
}

async fn pod(pods: &Api<Pod>, name: &str, node: Value) {
    let pod = json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": node, "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}],
        },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_deleted_after_the_last_bound_pod_that_uses_it() {
    let world = World::new().await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(world.client(), "default");
    let pods: Api<Pod> = Api::namespaced(world.client(), "default");
    let until = async {
        for name in ["used", "waiting", "free"] {
            let made = claims.create(&PostParams::default(), &claim(name)).await.unwrap();
            assert_eq!(made.metadata.finalizers, Some(vec!["kubernetes.io/pvc-protection".to_owned()]));
        }
        pod(&pods, "used", json!("somewhere")).await;
        pod(&pods, "waiting", json!(null)).await;
        // Gives the controller time to see the pods.
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        for name in ["used", "waiting", "free"] {
            claims.delete(name, &DeleteParams::default()).await.unwrap();
        }
        let is_gone = async |name: &str| claims.get_opt(name).await.unwrap().is_none();
        eventually("an unused claim is deleted", async || is_gone("waiting").await && is_gone("free").await).await;
        assert!(claims.get("used").await.unwrap().metadata.deletion_timestamp.is_some());
        pods.delete("used", &DeleteParams::default().grace_period(0)).await.unwrap();
        eventually("the claim is deleted after its last pod", async || is_gone("used").await).await;
    };
    world.run(|manager| garbage::install(manager, None), until).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_deleted_when_no_claim_uses_it_and_a_missing_finalizer_is_added() {
    let world = World::new().await;
    let volumes: Api<PersistentVolume> = Api::all(world.client());
    let until = async {
        let volume = json!({
            "metadata": {"name": "v"},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}},
        });
        let made = volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
        assert_eq!(made.metadata.finalizers, Some(vec!["kubernetes.io/pv-protection".to_owned()]));
        let patch = async |patch: Value, status: bool| {
            let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
            match status {
                true => volumes.patch_status("v", &params, &patch).await.unwrap(),
                false => volumes.patch("v", &params, &patch).await.unwrap(),
            }
        };
        patch(json!({"metadata": {"finalizers": null}}), false).await;
        let is_protected = async || volumes.get("v").await.unwrap().metadata.finalizers.is_some();
        eventually("the volume is protected again", is_protected).await;
        patch(json!({"status": {"phase": "Bound"}}), true).await;
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        volumes.delete("v", &DeleteParams::default()).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        assert!(is_protected().await, "the volume is bound to a claim");
        patch(json!({"status": {"phase": "Released"}}), true).await;
        eventually("the volume is deleted", async || volumes.get_opt("v").await.unwrap().is_none()).await;
    };
    world.run(|manager| garbage::install(manager, None), until).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_a_set_waits_until_its_old_claim_is_deleted() {
    let world = World::new().await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(world.client(), "default");
    let pods: Api<Pod> = Api::namespaced(world.client(), "default");
    let sets: Api<StatefulSet> = Api::namespaced(world.client(), "default");
    let until = async {
        let template = json!({"metadata": {"labels": {"app": "db"}, "annotations": {FATE: "100000"}},
            "spec": {"nodeName": "somewhere", "containers": [{"name": "c", "image": "i"}]}});
        let set = json!({"metadata": {"name": "db"}, "spec": {"replicas": 1, "serviceName": "db", "template": template,
            "selector": {"matchLabels": {"app": "db"}}, "volumeClaimTemplates": [claim("data")]}});
        sets.create(&PostParams::default(), &serde_json::from_value(set).unwrap()).await.unwrap();
        eventually("there is a pod", async || pods.get_opt("db-0").await.unwrap().is_some()).await;
        let old = claims.get("data-db-0").await.unwrap();
        let finalizers = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        let params = PatchParams::default();
        claims.patch("data-db-0", &params, &finalizers(json!(["example.com/backup"]))).await.unwrap();
        claims.delete("data-db-0", &DeleteParams::default()).await.unwrap();
        // Gives the controller time to see the deletion.
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        pods.delete("db-0", &DeleteParams::default().grace_period(0)).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        assert!(pods.get_opt("db-0").await.unwrap().is_none(), "the old claim still exists");
        claims.patch("data-db-0", &params, &finalizers(json!(null))).await.unwrap();
        eventually("there is a pod again", async || pods.get_opt("db-0").await.unwrap().is_some()).await;
        let new = claims.get("data-db-0").await.unwrap();
        assert!(new.uid() != old.uid() && new.metadata.deletion_timestamp.is_none(), "with a new claim");
    };
    let install = |manager: &mut berth_runtime::Manager| {
        garbage::install(manager, None);
        replicas::install(manager);
    };
    world.run(install, until).await;
}
