//! The ProvisioningRequest check: test vectors of the semantics that need no autoscaler.

use berth_controllers::Config;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use serde_json::{Value, json};

use crate::cluster::{Cluster, condition};

const KUEUE: &str = "kueue.x-k8s.io/v1beta2";

async fn start() -> Cluster {
    let cluster = Cluster::start(Config::default()).await;
    cluster.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})).await;
    cluster.create(json!({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "dws"}})).await;
    cluster
        .create(json!({
            "apiVersion": KUEUE, "kind": "ProvisioningRequestConfig", "metadata": {"name": "config"},
            "spec": {
                "provisioningClassName": "queued-provisioning.gke.io",
                "managedResources": ["nvidia.com/gpu"],
                "parameters": {"maxRunDurationSeconds": "600"},
                "retryStrategy": {"backoffLimitCount": 2, "backoffBaseSeconds": 60, "backoffMaxSeconds": 1800},
            },
        }))
        .await;
    cluster
        .create(json!({
            "apiVersion": KUEUE, "kind": "AdmissionCheck", "metadata": {"name": "prov"},
            "spec": {
                "controllerName": "kueue.x-k8s.io/provisioning-request",
                "parameters": {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "config"},
            },
        }))
        .await;
    cluster
        .create(json!({
            "apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "cq"},
            "spec": {
                "namespaceSelector": {},
                "admissionChecksStrategy": {"admissionChecks": [{"name": "prov"}]},
                "resourceGroups": [{
                    "coveredResources": ["cpu", "nvidia.com/gpu"],
                    "flavors": [{"name": "dws", "resources": [
                        {"name": "cpu", "nominalQuota": "10"}, {"name": "nvidia.com/gpu", "nominalQuota": "10"},
                    ]}],
                }],
            },
        }))
        .await;
    cluster
        .create(json!({
            "apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "lq", "namespace": "team"},
            "spec": {"clusterQueue": "cq"},
        }))
        .await;
    cluster.pass(1).await;
    cluster
}

async fn submit(cluster: &Cluster, resource: &str, annotations: Value) {
    cluster
        .create(json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {
                "name": "train", "namespace": "team", "annotations": annotations,
                "labels": {"kueue.x-k8s.io/queue-name": "lq"},
            },
            "spec": {
                "suspend": true, "parallelism": 2, "completions": 2,
                "template": {"spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "busybox", "resources": {"limits": {resource: "1"}}}],
                }},
            },
        }))
        .await;
    cluster.pass(2).await;
}

async fn requests(cluster: &Cluster) -> Vec<Value> {
    cluster.list("autoscaling.x-k8s.io/v1", "ProvisioningRequest", "team").await
}

/// Sets conditions as the autoscaler would.
async fn answer(cluster: &Cluster, conditions: &[(&str, &str, &str)]) {
    let request = requests(cluster).await.pop().expect("there is a request");
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(type_, status, message)| {
            json!({
                "type": type_, "status": status, "reason": "ByTest", "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        })
        .collect();
    cluster.patch_status(&request, json!({"status": {"conditions": conditions}})).await;
    cluster.pass(2).await;
}

fn check(workload: &Value) -> String {
    let check = &workload["status"]["admissionChecks"][0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{}: {}", text(&check["state"]), text(&check["message"]))
}

async fn is_suspended(cluster: &Cluster) -> bool {
    cluster.get("batch/v1", "Job", Some("team"), "train").await["spec"]["suspend"] == true
}

#[tokio::test(start_paused = true)]
async fn a_workload_without_managed_resources_needs_no_request() {
    let cluster = start().await;
    submit(&cluster, "cpu", json!({})).await;
    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(check(&workload), "Ready: the provisioning request is not needed");
    assert_eq!(condition(&workload, "Admitted"), "True/Admitted");
    assert!(requests(&cluster).await.is_empty());
    assert!(!is_suspended(&cluster).await);
}

#[tokio::test(start_paused = true)]
async fn a_workload_holds_quota_while_its_nodes_are_provisioned_and_then_runs_on_them() {
    let cluster = start().await;
    submit(&cluster, "nvidia.com/gpu", json!({"provreq.kueue.x-k8s.io/maxRunDurationSeconds": "3600"})).await;
    let made = requests(&cluster).await;
    assert_eq!(made.len(), 1);
    let name = made[0]["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name.ends_with("-prov-1"), "{name}");
    assert_eq!(made[0]["spec"]["parameters"]["maxRunDurationSeconds"], "3600");
    assert_eq!(made[0]["spec"]["podSets"][0]["count"], 2);
    let template = made[0]["spec"]["podSets"][0]["podTemplateRef"]["name"].as_str().unwrap();
    let template = cluster.get("v1", "PodTemplate", Some("team"), template).await;
    assert_eq!(template["metadata"]["ownerReferences"][0]["name"], name.as_str());

    answer(&cluster, &[("Accepted", "True", ""), ("Provisioned", "False", "Waiting for resources.")]).await;
    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(check(&workload), "Pending: Waiting for resources.");
    assert_eq!(condition(&workload, "QuotaReserved"), "True/QuotaReserved");
    assert_eq!(condition(&workload, "Admitted"), "False/UnsatisfiedAdmissionChecks");
    let queue = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    let counts = ["pendingWorkloads", "reservingWorkloads", "admittedWorkloads"].map(|count| &queue["status"][count]);
    assert_eq!(counts, [0, 1, 0]);

    answer(&cluster, &[("Accepted", "True", ""), ("Provisioned", "True", "There you are.")]).await;
    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(check(&workload), "Ready: There you are.");
    assert_eq!(condition(&workload, "Admitted"), "True/Admitted");
    assert!(!is_suspended(&cluster).await);
    let job = cluster.get("batch/v1", "Job", Some("team"), "train").await;
    let annotations = &job["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(annotations["autoscaling.x-k8s.io/consume-provisioning-request"], name.as_str());
    assert_eq!(annotations["autoscaling.x-k8s.io/provisioning-class-name"], "queued-provisioning.gke.io");

    // An expired booking is ignored after admission; a revocation of capacity is not.
    answer(&cluster, &[("Provisioned", "True", "There you are."), ("BookingExpired", "True", "")]).await;
    assert_eq!(condition(&cluster.workload_of("team", "train").await, "Admitted"), "True/Admitted");
    answer(&cluster, &[("Provisioned", "True", ""), ("CapacityRevoked", "True", "Nodes are gone.")]).await;
    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(workload["spec"]["active"], false);
    assert_eq!(condition(&workload, "Evicted"), "True/DeactivatedDueToAdmissionCheck");
    assert!(is_suspended(&cluster).await);
}

#[tokio::test(start_paused = true)]
async fn a_failed_request_is_retried_with_backoff_and_rejected_after_the_limit() {
    let cluster = start().await;
    submit(&cluster, "nvidia.com/gpu", json!({})).await;
    for (attempt, seconds) in [(1, 60), (2, 120)] {
        let name = requests(&cluster).await[0]["metadata"]["name"].as_str().unwrap().to_owned();
        assert!(name.ends_with(&format!("-prov-{attempt}")), "{name}");
        answer(&cluster, &[("Failed", "True", "no capacity")]).await;
        let workload = cluster.workload_of("team", "train").await;
        assert_eq!(condition(&workload, "QuotaReserved"), "False/PendingEvaluation");
        assert_eq!(condition(&workload, "Requeued"), "False/AdmissionCheck");
        assert_eq!(workload["status"]["admissionChecks"][0]["retryCount"], attempt);
        assert!(requests(&cluster).await.is_empty());
        cluster.pass(seconds - 10).await;
        assert!(requests(&cluster).await.is_empty());
        cluster.pass(20).await;
        assert_eq!(condition(&cluster.workload_of("team", "train").await, "QuotaReserved"), "True/QuotaReserved");
    }
    answer(&cluster, &[("Failed", "True", "no capacity")]).await;
    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(workload["spec"]["active"], false);
    assert_eq!(condition(&workload, "Evicted"), "True/DeactivatedDueToAdmissionCheck");
}

#[tokio::test(start_paused = true)]
async fn a_check_without_its_configuration_makes_the_queue_inactive() {
    let cluster = start().await;
    submit(&cluster, "nvidia.com/gpu", json!({})).await;
    let config = cluster.get(KUEUE, "ProvisioningRequestConfig", None, "config").await;
    cluster.delete(&config).await;
    cluster.pass(2).await;
    let check_object = cluster.get(KUEUE, "AdmissionCheck", None, "prov").await;
    assert_eq!(condition(&check_object, "Active"), "False/BadParametersRef");
    let queue = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    assert_eq!(condition(&queue, "Active"), "False/AdmissionCheckInactive", "{queue:#}");
    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(condition(&workload, "QuotaReserved"), "True/QuotaReserved");
    assert_eq!(check(&workload), "Pending: the check is not active");
}

/// Stops or resumes the queue; while it is stopped, workloads exist without a request.
async fn hold(cluster: &Cluster, hold: bool) {
    let queue = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    let policy = if hold { "Hold" } else { "None" };
    cluster.patch(&queue, json!({"spec": {"stopPolicy": policy}})).await;
    cluster.pass(2).await;
}

#[tokio::test(start_paused = true)]
async fn templates_left_by_a_killed_controller_are_reused() {
    let cluster = start().await;
    hold(&cluster, true).await;
    submit(&cluster, "nvidia.com/gpu", json!({})).await;
    let workload = cluster.list(KUEUE, "Workload", "team").await.remove(0);
    let (name, uid) = (workload["metadata"]["name"].as_str().unwrap(), &workload["metadata"]["uid"]);
    // The controller was killed between creating the template and the request.
    let template = format!("ppt-{name}-prov-1-main");
    cluster
        .create(json!({
            "apiVersion": "v1", "kind": "PodTemplate",
            "metadata": {"name": template, "namespace": "team", "ownerReferences": [{
                "apiVersion": KUEUE, "kind": "Workload", "name": name, "uid": uid, "controller": true}]},
            "template": workload["spec"]["podSets"][0]["template"],
        }))
        .await;
    hold(&cluster, false).await;
    let request = requests(&cluster).await.pop().expect("a request");
    assert_eq!(request["spec"]["podSets"][0]["podTemplateRef"]["name"], json!(template));
    let kept = cluster.get("v1", "PodTemplate", Some("team"), &template).await;
    let owners = kept["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!((owners.len(), &owners[0]["uid"]), (1, &request["metadata"]["uid"]), "the request owns it now");
    answer(&cluster, &[("Provisioned", "True", "ok")]).await;
    assert!(!is_suspended(&cluster).await);
}

#[tokio::test(start_paused = true)]
async fn a_request_of_another_owner_with_the_same_name_is_reported_and_the_workload_waits() {
    let cluster = start().await;
    hold(&cluster, true).await;
    submit(&cluster, "nvidia.com/gpu", json!({})).await;
    let workload = cluster.list(KUEUE, "Workload", "team").await.remove(0);
    let name = format!("{}-prov-1", workload["metadata"]["name"].as_str().unwrap());
    let other = json!({
        "apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"provisioningClassName": "other", "podSets": [{"count": 1, "podTemplateRef": {"name": "other"}}]},
    });
    let other = cluster.create(other).await;
    hold(&cluster, false).await;
    let message = check(&cluster.list(KUEUE, "Workload", "team").await[0]);
    assert!(message.contains(&format!("Error creating ProvisioningRequest {name:?}")), "{message}");
    assert!(message.contains("already exists"), "{message}");
    cluster.delete(&other).await;
    cluster.pass(30).await;
    let request = requests(&cluster).await.pop().expect("a request of its own");
    assert_eq!(request["spec"]["provisioningClassName"], "queued-provisioning.gke.io");
}

#[tokio::test(start_paused = true)]
async fn a_template_of_another_owner_with_the_same_name_is_reported_and_kept() {
    let cluster = start().await;
    hold(&cluster, true).await;
    submit(&cluster, "nvidia.com/gpu", json!({})).await;
    let workload = cluster.list(KUEUE, "Workload", "team").await.remove(0);
    let name = format!("ppt-{}-prov-1-main", workload["metadata"]["name"].as_str().unwrap());
    let other = json!({
        "apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name, "namespace": "team"},
        "template": {"metadata": {"labels": {"of": "other"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    });
    let other = cluster.create(other).await;
    hold(&cluster, false).await;
    let message = check(&cluster.list(KUEUE, "Workload", "team").await[0]);
    assert!(message.contains(&format!("podtemplates {name:?} already exists")), "{message}");
    assert!(requests(&cluster).await.is_empty());
    assert_eq!(cluster.get("v1", "PodTemplate", Some("team"), &name).await, other, "it is unchanged");
    cluster.delete(&other).await;
    cluster.pass(30).await;
    let request = requests(&cluster).await.pop().expect("a request");
    let own = cluster.get("v1", "PodTemplate", Some("team"), &name).await;
    assert_eq!(own["metadata"]["ownerReferences"][0]["uid"], request["metadata"]["uid"]);
}

#[tokio::test(start_paused = true)]
async fn a_check_is_active_while_the_cluster_serves_provisioning_requests() {
    const KIND: &str = "provisioningrequests.autoscaling.x-k8s.io";
    let cluster = start().await;
    let check = || async {
        let check = cluster.get(KUEUE, "AdmissionCheck", None, "prov").await;
        condition(&check, "Active")
    };
    assert_eq!(check().await, "True/Active");
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    definitions.delete(KIND, &Default::default()).await.unwrap();
    cluster.pass(2).await;
    assert_eq!(check().await, "False/ProvisioningRequestsNotServed");
    submit(&cluster, "nvidia.com/gpu", json!({})).await;
    let events = cluster.events("team", "train").await;
    assert!(!events.iter().any(|event| event.starts_with("FailedCreate")), "{events:?}");

    // Once the kind is served, requests of pending workloads are created.
    let definition = berth_api::crds().iter().find(|it| it["metadata"]["name"] == KIND).unwrap().clone();
    let definition: CustomResourceDefinition = serde_json::from_value(definition).unwrap();
    definitions.create(&Default::default(), &definition).await.unwrap();
    cluster.pass(5).await;
    assert_eq!(check().await, "True/Active");
    assert_eq!(requests(&cluster).await.len(), 1);
}
