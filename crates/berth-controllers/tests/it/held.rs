//! Objects that the admission policy held while the controllers were unavailable.

use berth_controllers::Config;
use serde_json::json;

use crate::cluster::Cluster;

#[tokio::test(start_paused = true)]
async fn a_held_job_whose_release_is_rejected_reports_why() {
    let (cluster, controllers) = Cluster::without_controllers(Config::default()).await;
    cluster.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})).await;
    let job = cluster
        .create(json!({"apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "train", "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "lq"},
                "annotations": {"berth.dev/held": "false"}},
            "spec": {"suspend": true, "template": {"spec": {"restartPolicy": "Never", "containers": [
                {"name": "main", "image": "busybox"}]}}}}))
        .await;
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "frozen"},
    "spec": {
        "matchConstraints": {"resourceRules": [
            {"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"], "operations": ["UPDATE"]}]},
        "validations": [{"expression": "false", "message": "jobs are frozen this week"}],
    }});
    let policy = cluster.create(policy).await;
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "frozen"}, "spec": {"policyName": "frozen", "validationActions": ["Deny"]}});
    let binding = cluster.create(binding).await;
    tokio::spawn(controllers.run(std::future::pending()));
    cluster.pass(5).await;
    let events = cluster.events("team", "train").await;
    let event = events.iter().find(|event| event.contains("StaysHeld")).unwrap_or_else(|| panic!("{events:#?}"));
    assert!(event.contains("jobs are frozen this week"), "{event}");
    let held = cluster.get("batch/v1", "Job", Some("team"), "train").await;
    assert_eq!(held["metadata"]["annotations"]["berth.dev/held"], "false");
    // The release is retried until it is accepted.
    cluster.delete(&binding).await;
    cluster.delete(&policy).await;
    cluster.pass(120).await;
    let settled = cluster.get("batch/v1", "Job", Some("team"), "train").await;
    assert!(settled["metadata"]["annotations"]["berth.dev/held"].is_null(), "{settled}");
    assert_eq!(settled["metadata"]["uid"], job["metadata"]["uid"]);
    assert!(cluster.workload_of("team", "train").await.is_object(), "it is queued");
}
