//! Admission checks as a contract: another program writes the state of its check to the Workload,
//! and the controllers follow it.

use berth_controllers::Config;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::cluster::{Cluster, condition, message};

const KUEUE: &str = "kueue.x-k8s.io/v1beta2";
const CONTROLLER: &str = "example.com/budget";

/// A queue of two flavors, `first` with 1 CPU and `second` with 10. Its check `budget` belongs to
/// another program, and applies to these flavors (all, if empty).
async fn start(on_flavors: &[&str]) -> Cluster {
    let cluster = Cluster::start(Config::default()).await;
    cluster.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})).await;
    for name in ["first", "second"] {
        cluster.create(json!({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": name}})).await;
    }
    check(&cluster, "budget").await;
    let quota = |name: &str, cpus: &str| json!({"name": name, "resources": [{"name": "cpu", "nominalQuota": cpus}]});
    cluster
        .create(json!({
            "apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "cq"},
            "spec": {
                "namespaceSelector": {},
                "admissionChecksStrategy": {"admissionChecks": [{"name": "budget", "onFlavors": on_flavors}]},
                "resourceGroups": [{
                    "coveredResources": ["cpu"], "flavors": [quota("first", "1"), quota("second", "10")],
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

/// A check of the other program, which marks it Active.
async fn check(cluster: &Cluster, name: &str) {
    let check = json!({"apiVersion": KUEUE, "kind": "AdmissionCheck", "metadata": {"name": name},
        "spec": {"controllerName": CONTROLLER}});
    let check = cluster.create(check).await;
    let active = json!({"type": "Active", "status": "True", "reason": "Active", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    cluster.patch_status(&check, json!({"status": {"conditions": [active]}})).await;
}

/// A Job of one pod that requests one CPU.
async fn submit(cluster: &Cluster, name: &str, selector: Value) {
    cluster
        .create(json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": name, "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "lq"}},
            "spec": {"suspend": true, "template": {"spec": {
                "restartPolicy": "Never", "nodeSelector": selector,
                "containers": [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}],
            }}},
        }))
        .await;
    cluster.pass(2).await;
}

/// The other program applies the state of a check, as the field manager of that list entry.
async fn decide(cluster: &Cluster, job: &str, check: &str, state: Value) {
    let workload = cluster.workload_of("team", job).await;
    let mut entry = json!({"name": check, "message": "", "lastTransitionTime": cluster.clock.now().to_string()});
    entry.as_object_mut().unwrap().extend(state.as_object().unwrap().clone());
    let applied = json!({"apiVersion": KUEUE, "kind": "Workload",
        "metadata": {"name": workload["metadata"]["name"], "namespace": "team"},
        "status": {"admissionChecks": [entry]}});
    // Each check is applied by a field manager of its own, as separate programs would.
    let params = PatchParams::apply(&format!("example.com-{check}")).force();
    let name = workload["metadata"]["name"].as_str().unwrap();
    cluster.api(&workload).patch_status(name, &params, &Patch::Apply(applied)).await.unwrap();
    cluster.pass(2).await;
}

/// `name state: message` of the checks of a job's Workload.
async fn checks(cluster: &Cluster, job: &str) -> Vec<String> {
    let workload = cluster.workload_of("team", job).await;
    let states = workload["status"]["admissionChecks"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    states.iter().map(|it| format!("{} {}: {}", text(&it["name"]), text(&it["state"]), text(&it["message"]))).collect()
}

async fn job(cluster: &Cluster, name: &str) -> Value {
    cluster.get("batch/v1", "Job", Some("team"), name).await
}

fn explained(cluster: &Cluster, name: &str) -> String {
    let explained = cluster.explain.whole("team", name).expect("it is known");
    explained["text"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_check_of_another_program_is_obeyed() {
    let cluster = start(&[]).await;
    submit(&cluster, "train", Value::Null).await;
    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(checks(&cluster, "train").await, ["budget Pending: "]);
    assert_eq!(condition(&workload, "QuotaReserved"), "True/QuotaReserved");
    assert_eq!(condition(&workload, "Admitted"), "False/UnsatisfiedAdmissionChecks");
    let text = explained(&cluster, "train");
    assert!(text.contains("Admission check budget has been Pending since 2026-01-01T00:00:0"), "{text}");
    assert!(text.contains(", decided by example.com/budget: no message yet"), "{text}");

    decide(&cluster, "train", "budget", json!({"state": "Pending", "message": "approved by 14:00"})).await;
    let text = explained(&cluster, "train");
    assert!(text.contains("decided by example.com/budget: approved by 14:00"), "{text}");
    assert_eq!(job(&cluster, "train").await["spec"]["suspend"], true);

    let update = json!({"name": "main", "labels": {"cost": "low"}, "annotations": {"account": "7"},
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "reserved", "operator": "Exists", "effect": "NoSchedule"}]});
    decide(&cluster, "train", "budget", json!({"state": "Ready", "podSetUpdates": [update]})).await;
    assert_eq!(condition(&cluster.workload_of("team", "train").await, "Admitted"), "True/Admitted");
    let job = job(&cluster, "train").await;
    let template = &job["spec"]["template"];
    assert_eq!(job["spec"]["suspend"], false);
    assert_eq!(template["metadata"]["labels"]["cost"], "low");
    assert_eq!(template["metadata"]["annotations"]["account"], "7");
    assert_eq!(template["spec"]["nodeSelector"]["zone"], "a");
    assert_eq!(template["spec"]["tolerations"][0]["key"], "reserved");
}

#[tokio::test(start_paused = true)]
async fn a_check_applies_only_to_workloads_on_its_flavors() {
    let cluster = start(&["second"]).await;
    submit(&cluster, "one", Value::Null).await;
    submit(&cluster, "two", Value::Null).await;
    assert_eq!(checks(&cluster, "one").await, [""; 0]);
    assert_eq!(condition(&cluster.workload_of("team", "one").await, "Admitted"), "True/Admitted");
    assert_eq!(checks(&cluster, "two").await, ["budget Pending: "]);

    // Without the check in the queue, the waiting workload is admitted.
    let queue = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    cluster.patch(&queue, json!({"spec": {"admissionChecksStrategy": null}})).await;
    cluster.pass(2).await;
    assert_eq!(checks(&cluster, "two").await, [""; 0]);
    assert_eq!(condition(&cluster.workload_of("team", "two").await, "Admitted"), "True/Admitted");
}

#[tokio::test(start_paused = true)]
async fn retry_returns_the_quota_until_the_delay_has_passed() {
    let cluster = start(&[]).await;
    submit(&cluster, "train", Value::Null).await;
    for count in [1, 2] {
        let retry = json!({"state": "Retry", "message": "no budget", "requeueAfterSeconds": 300});
        decide(&cluster, "train", "budget", retry).await;
        let workload = cluster.workload_of("team", "train").await;
        assert_eq!(condition(&workload, "Evicted"), "True/AdmissionCheck");
        let evicted = message(&workload, "Evicted");
        assert_eq!(evicted, "Evicted due to AdmissionCheck in Retry state: \"budget\" (no budget)");
        assert_eq!(condition(&workload, "QuotaReserved"), "False/PendingEvaluation");
        assert_eq!(condition(&workload, "Requeued"), "False/AdmissionCheck");
        assert_eq!(workload["status"]["admissionChecks"][0]["retryCount"], count);
        let reset = "budget Pending: Reset to Pending after eviction. Previously: Retry";
        assert_eq!(checks(&cluster, "train").await, [reset]);
        let queue = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
        assert_eq!(queue["status"]["reservingWorkloads"], 0);
        let text = explained(&cluster, "train");
        assert!(text.contains("Its back-off ends at 2026-01-01T00:"), "{text}");
        cluster.pass(280).await;
        let workload = cluster.workload_of("team", "train").await;
        assert_eq!(condition(&workload, "QuotaReserved"), "False/PendingEvaluation");
        cluster.pass(30).await;
        let workload = cluster.workload_of("team", "train").await;
        assert_eq!(condition(&workload, "QuotaReserved"), "True/QuotaReserved");
        assert_eq!(condition(&workload, "Requeued"), "True/BackoffFinished");
    }
    // Without a delay, the workload is queued again at once.
    decide(&cluster, "train", "budget", json!({"state": "Retry"})).await;
    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(condition(&workload, "QuotaReserved"), "True/QuotaReserved");
    assert_eq!(workload["status"]["admissionChecks"][0]["retryCount"], 3);
}

#[tokio::test(start_paused = true)]
async fn retry_of_a_running_workload_stops_its_job() {
    let cluster = start(&[]).await;
    submit(&cluster, "train", Value::Null).await;
    decide(&cluster, "train", "budget", json!({"state": "Ready"})).await;
    assert_eq!(job(&cluster, "train").await["spec"]["suspend"], false);
    decide(&cluster, "train", "budget", json!({"state": "Retry", "requeueAfterSeconds": 60})).await;
    assert_eq!(job(&cluster, "train").await["spec"]["suspend"], true);
    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(condition(&workload, "Admitted"), "False/NoReservation");
    cluster.pass(70).await;
    let reset = "budget Pending: Reset to Pending after eviction. Previously: Retry";
    assert_eq!(checks(&cluster, "train").await, [reset]);
    decide(&cluster, "train", "budget", json!({"state": "Ready"})).await;
    assert_eq!(job(&cluster, "train").await["spec"]["suspend"], false);
}

#[tokio::test(start_paused = true)]
async fn rejected_deactivates_the_workload_until_a_user_activates_it() {
    let cluster = start(&[]).await;
    submit(&cluster, "train", Value::Null).await;
    decide(&cluster, "train", "budget", json!({"state": "Rejected", "message": "too expensive"})).await;
    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(workload["spec"]["active"], false);
    assert_eq!(condition(&workload, "Evicted"), "True/DeactivatedDueToAdmissionCheck");
    let reason = "AdmissionCheck in Rejected state: \"budget\" (too expensive)";
    assert_eq!(message(&workload, "Evicted"), format!("The workload is deactivated due to {reason}"));
    let events = cluster.events("team", workload["metadata"]["name"].as_str().unwrap()).await;
    assert!(events.contains(&format!("AdmissionCheckRejected: Deactivated due to {reason}")), "{events:?}");
    let text = explained(&cluster, "train");
    assert!(text.contains("too expensive"), "{text}");

    cluster.patch(&workload, json!({"spec": {"active": true}})).await;
    cluster.pass(2).await;
    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(condition(&workload, "QuotaReserved"), "True/QuotaReserved");
    assert_eq!(condition(&workload, "DeactivationTarget"), "absent");
    let reset = "budget Pending: Reset to Pending after eviction. Previously: Rejected";
    assert_eq!(checks(&cluster, "train").await, [reset]);
    decide(&cluster, "train", "budget", json!({"state": "Ready"})).await;
    assert_eq!(job(&cluster, "train").await["spec"]["suspend"], false);
}

#[tokio::test(start_paused = true)]
async fn an_update_that_conflicts_with_the_job_ends_the_workload_with_the_reason() {
    let cluster = start(&[]).await;
    submit(&cluster, "train", json!({"zone": "a"})).await;
    let update = json!({"name": "main", "nodeSelector": {"zone": "b"}});
    decide(&cluster, "train", "budget", json!({"state": "Ready", "podSetUpdates": [update]})).await;
    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(condition(&workload, "Finished"), "True/FailedToStart");
    let reason = message(&workload, "Finished");
    assert!(reason.contains("conflict for key=zone, value1=a, value2=b"), "{reason}");
    assert_eq!(job(&cluster, "train").await["spec"]["suspend"], true);
    let events = cluster.events("team", "train").await;
    assert!(events.iter().any(|event| event.contains("conflict for key=zone")), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn updates_of_two_checks_that_conflict_end_the_workload_with_the_reason() {
    let cluster = start(&[]).await;
    check(&cluster, "place").await;
    let queue = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    let both = json!([{"name": "budget"}, {"name": "place"}]);
    cluster.patch(&queue, json!({"spec": {"admissionChecksStrategy": {"admissionChecks": both}}})).await;
    submit(&cluster, "train", Value::Null).await;
    let update = |zone: &str| json!({"state": "Ready", "podSetUpdates": [{"name": "main", "labels": {"zone": zone}}]});
    decide(&cluster, "train", "budget", update("a")).await;
    assert_eq!(checks(&cluster, "train").await, ["budget Ready: ", "place Pending: "]);
    decide(&cluster, "train", "place", update("b")).await;
    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(condition(&workload, "Finished"), "True/FailedToStart");
    let reason = message(&workload, "Finished");
    assert!(reason.contains("place") && reason.contains("conflict for key=zone, value1=a, value2=b"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn a_check_that_its_program_does_not_serve_holds_the_queue() {
    let cluster = start(&[]).await;
    let silent = json!({"apiVersion": KUEUE, "kind": "AdmissionCheck", "metadata": {"name": "silent"},
        "spec": {"controllerName": "example.com/silent"}});
    cluster.create(silent).await;
    let queue = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    let list = json!([{"name": "silent"}]);
    cluster.patch(&queue, json!({"spec": {"admissionChecksStrategy": {"admissionChecks": list}}})).await;
    submit(&cluster, "train", Value::Null).await;
    let queue = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    assert_eq!(condition(&queue, "Active"), "False/AdmissionCheckInactive");
    assert!(message(&queue, "Active").contains("silent"), "{queue:#}");
    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(condition(&workload, "QuotaReserved"), "False/Suspended");
    let text = explained(&cluster, "train");
    assert!(text.contains("silent"), "{text}");
}
