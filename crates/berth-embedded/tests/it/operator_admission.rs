//! The admission of other projects' kinds is that of their operators: with an operator, its
//! defaults and rules; without it, none.

use serde_json::{Value, json};

use crate::ray_clusters::{create, start};

/// A LeaderWorkerSet whose network configuration has a default.
fn set() -> Value {
    let template = json!({"spec": {"containers": [{"name": "main", "image": "i"}]}});
    json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "set"},
        "spec": {"replicas": 1, "leaderWorkerTemplate": {"size": 1, "workerTemplate": template}}})
}

/// A TrainJob whose runtime does not exist.
fn train_job() -> Value {
    json!({"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "train"},
        "spec": {"runtimeRef": {"name": "missing"}}})
}

/// A PyTorchJob without the container that trains.
fn torch_job() -> Value {
    let template = json!({"spec": {"containers": [{"name": "other", "image": "i"}]}});
    json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "torch"},
        "spec": {"pytorchReplicaSpecs": {"Master": {"template": template}}}})
}

#[tokio::test(start_paused = true)]
async fn operators_that_run_default_and_validate_their_kinds() {
    let cluster = start(json!({"nodePools": []}), None).await;
    let client = cluster.admin_client();
    let set = create(&client, set(), "default").await.expect("the set is accepted");
    assert_eq!(set.data["spec"]["networkConfig"]["subdomainPolicy"], "Shared");
    for (object, webhook) in [(train_job(), "trainer.kubeflow.org"), (torch_job(), "training-operator.kubeflow.org")] {
        let error = create(&client, object, "default").await.expect_err("an invalid object").to_string();
        assert!(error.contains(webhook), "{error}");
    }
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_an_operator_its_kinds_are_stored_as_written() {
    let off = json!({"leaderWorkerSets": false, "trainer": false, "training": false});
    let cluster = start(json!({"nodePools": [], "operators": off}), None).await;
    let client = cluster.admin_client();
    let set = create(&client, set(), "default").await.expect("the set is accepted");
    assert!(set.data["spec"].get("networkConfig").is_none(), "{}", set.data["spec"]);
    for object in [train_job(), torch_job()] {
        create(&client, object, "default").await.expect("only its operator has rules");
    }
    cluster.stop().await;
}
