//! Jobs in queues: suspended, admitted, preempted, finished.

use std::sync::{Arc, Mutex};

use berth_controllers::jobs::naming::{OwnerKind, workload_name};
use berth_controllers::{Config, Gate, Gates};
use futures::StreamExt;
use kube::api::{DynamicObject, Patch, PatchParams, WatchEvent, WatchParams};
use serde_json::{Value, json};

use crate::cluster::{Cluster, condition, message};

pub const KUEUE: &str = "kueue.x-k8s.io/v1beta2";

fn flavor(name: &str, labels: Value) -> Value {
    json!({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": {"nodeLabels": labels}})
}

pub fn cluster_queue(name: &str, cpu: &str, more: Value) -> Value {
    let mut queue = json!({
        "apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name},
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [{
                "coveredResources": ["cpu"],
                "flavors": [{"name": "spot", "resources": [{"name": "cpu", "nominalQuota": cpu}]}],
            }],
        },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        queue["spec"][key] = value.clone();
    }
    queue
}

pub fn local_queue(name: &str, queue: &str) -> Value {
    json!({
        "apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": name, "namespace": "team"},
        "spec": {"clusterQueue": queue},
    })
}

pub fn job(name: &str, queue: &str, cpu: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {
            "suspend": true, "parallelism": 1, "completions": 1,
            "template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}],
            }},
        },
    })
}

pub async fn team(cluster: &Cluster) {
    cluster.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})).await;
    cluster.create(flavor("spot", json!({"pool": "spot"}))).await;
}

async fn is_suspended(cluster: &Cluster, name: &str) -> bool {
    cluster.get("batch/v1", "Job", Some("team"), name).await["spec"]["suspend"] == true
}

#[tokio::test(start_paused = true)]
async fn without_the_scheduler_workloads_are_counted_and_not_admitted() {
    let selection = "*,-scheduler".parse().expect("a selection");
    let (cluster, manager) = Cluster::with_some_controllers(Config::default(), selection).await;
    tokio::spawn(manager.run(std::future::pending()));
    team(&cluster).await;
    cluster.create(cluster_queue("cq", "2", json!({}))).await;
    cluster.create(local_queue("lq", "cq")).await;
    cluster.create(job("first", "lq", "1")).await;
    cluster.create(job("second", "lq", "1")).await;
    cluster.pass(3).await;
    let queue = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    assert_eq!(queue["status"]["pendingWorkloads"], 2, "{queue:#}");
    assert!(is_suspended(&cluster, "first").await);
    // Another program decides.
    let workload = cluster.workload_of("team", "first").await;
    let now = "2026-01-01T00:00:03Z";
    let reserved = json!({"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "",
        "lastTransitionTime": now});
    let assigned = json!({"name": "main", "count": 1, "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": "1"}});
    let admission = json!({"clusterQueue": "cq", "podSetAssignments": [assigned]});
    cluster.patch_status(&workload, json!({"status": {"conditions": [reserved], "admission": admission}})).await;
    cluster.pass(3).await;
    let queue = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    assert_eq!((&queue["status"]["pendingWorkloads"], &queue["status"]["admittedWorkloads"]), (&json!(1), &json!(1)));
    assert!(!is_suspended(&cluster, "first").await);
    assert!(is_suspended(&cluster, "second").await);
}

#[tokio::test(start_paused = true)]
async fn a_job_starts_when_its_queue_has_quota_and_the_next_one_waits() {
    let cluster = Cluster::start(Config::default()).await;
    team(&cluster).await;
    cluster.create(cluster_queue("cq", "2", json!({}))).await;
    cluster.create(local_queue("lq", "cq")).await;
    cluster.pass(1).await;
    let queue = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    assert_eq!(condition(&queue, "Active"), "True/Ready", "{queue:#}");
    let first = cluster.create(job("first", "lq", "2")).await;
    cluster.create(job("second", "lq", "1")).await;
    cluster.pass(2).await;

    assert!(!is_suspended(&cluster, "first").await);
    assert!(is_suspended(&cluster, "second").await);
    let started = cluster.get("batch/v1", "Job", Some("team"), "first").await;
    assert_eq!(started["spec"]["template"]["spec"]["nodeSelector"]["pool"], "spot");
    let waiting = cluster.workload_of("team", "second").await;
    assert_eq!(condition(&waiting, "QuotaReserved"), "False/WaitingForQuota");
    assert_eq!(
        message(&waiting, "QuotaReserved"),
        "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor spot, 1 more needed"
    );
    let queue = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    assert_eq!(queue["status"]["pendingWorkloads"], 1);
    assert_eq!(queue["status"]["admittedWorkloads"], 1);
    assert_eq!(queue["status"]["flavorsUsage"][0]["resources"][0]["total"], "2");
    let queue = cluster.get(KUEUE, "LocalQueue", Some("team"), "lq").await;
    assert_eq!(queue["status"]["pendingWorkloads"], 1);
    assert_eq!(condition(&queue, "Active"), "True/Ready");

    let done = json!([{"type": "Complete", "status": "True", "message": "done"}]);
    cluster.patch_status(&first, json!({"status": {"conditions": done, "succeeded": 1}})).await;
    cluster.pass(3).await;
    let finished = cluster.workload_of("team", "first").await;
    assert_eq!(condition(&finished, "Finished"), "True/Succeeded");
    assert!(!is_suspended(&cluster, "second").await);
    let events = cluster.events("team", "second").await;
    assert_eq!(
        events.iter().map(|event| event.split(':').next().unwrap()).collect::<Vec<_>>(),
        ["CreatedWorkload", "Started"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_preempted_job_is_stopped_restored_and_starts_again_later() {
    let cluster = Cluster::start(Config::default()).await;
    team(&cluster).await;
    let preemption = json!({"preemption": {"withinClusterQueue": "LowerPriority"}});
    cluster.create(cluster_queue("cq", "2", preemption)).await;
    cluster.create(local_queue("lq", "cq")).await;
    cluster
        .create(
            json!({"apiVersion": KUEUE, "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 100}),
        )
        .await;
    cluster.pass(1).await;
    let low = cluster.create(job("low", "lq", "2")).await;
    cluster.pass(1).await;
    assert!(!is_suspended(&cluster, "low").await);
    cluster.patch_status(&low, json!({"status": {"active": 1, "ready": 1, "startTime": "2026-01-01T00:00:01Z"}})).await;
    let mut high = job("high", "lq", "1");
    high["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = json!("high");
    let high = cluster.create(high).await;
    cluster.pass(2).await;
    // The victim keeps its quota until none of its pods runs any more.
    assert!(is_suspended(&cluster, "low").await);
    assert!(is_suspended(&cluster, "high").await);
    let victim = cluster.workload_of("team", "low").await;
    assert_eq!(condition(&victim, "Evicted"), "True/Preempted");
    assert_eq!(condition(&victim, "Preempted"), "True/InClusterQueue");
    // Kubernetes rejects template changes while the job has active pods, so none is sent.
    cluster.pass(30).await;
    let stopped = cluster.get("batch/v1", "Job", Some("team"), "low").await;
    assert_eq!(stopped["spec"]["template"]["spec"]["nodeSelector"]["pool"], "spot");

    cluster.patch_status(&low, json!({"status": {"active": 0, "ready": 0}})).await;
    cluster.pass(2).await;
    let stopped = cluster.get("batch/v1", "Job", Some("team"), "low").await;
    assert_eq!(stopped["spec"]["template"]["spec"]["nodeSelector"], Value::Null);
    assert_eq!(stopped["status"]["startTime"], Value::Null);
    assert_eq!(*cluster.refused.lock().unwrap(), [""; 0]);
    assert!(!is_suspended(&cluster, "high").await);
    let victim = cluster.workload_of("team", "low").await;
    assert_eq!(condition(&victim, "QuotaReserved"), "False/WaitingForQuota");
    assert_eq!(condition(&victim, "Requeued"), "True/Preempted");
    let done = json!([{"type": "Complete", "status": "True"}]);
    cluster.patch_status(&high, json!({"status": {"conditions": done}})).await;
    cluster.pass(3).await;
    assert!(!is_suspended(&cluster, "low").await);
}

#[tokio::test(start_paused = true)]
async fn a_changed_running_job_keeps_its_workload_until_its_template_is_restored() {
    let cluster = Cluster::start(Config::default()).await;
    team(&cluster).await;
    cluster.create(cluster_queue("cq", "4", json!({}))).await;
    cluster.create(local_queue("lq", "cq")).await;
    cluster.pass(1).await;
    let mut grown = job("grown", "lq", "1");
    grown["spec"]["completions"] = json!(4);
    let running = cluster.create(grown).await;
    cluster.pass(1).await;
    cluster.patch_status(&running, json!({"status": {"active": 1, "startTime": "2026-01-01T00:00:01Z"}})).await;
    cluster.patch(&running, json!({"spec": {"parallelism": 2}})).await;
    cluster.pass(30).await;
    assert!(is_suspended(&cluster, "grown").await, "it no longer matches its admission");
    let workload = cluster.workload_of("team", "grown").await;
    assert_eq!(workload["spec"]["podSets"][0]["count"], 1, "the Workload still records its template: {workload:#}");
    cluster.patch_status(&running, json!({"status": {"active": 0}})).await;
    cluster.pass(2).await;
    let workload = cluster.workload_of("team", "grown").await;
    assert_eq!(workload["spec"]["podSets"][0]["count"], 2);
    assert_eq!(workload["spec"]["podSets"][0]["template"]["spec"]["nodeSelector"], Value::Null, "{workload:#}");
    assert!(!is_suspended(&cluster, "grown").await);
    assert_eq!(*cluster.refused.lock().unwrap(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_queue_does_not_exist_reports_it_and_starts_once_the_queue_exists() {
    let cluster = Cluster::start(Config::default()).await;
    team(&cluster).await;
    cluster.create(cluster_queue("cq", "2", json!({}))).await;
    cluster.create(job("early", "lq", "1")).await;
    cluster.pass(1).await;
    let workload = cluster.workload_of("team", "early").await;
    assert_eq!(condition(&workload, "QuotaReserved"), "False/Misconfigured");
    assert_eq!(message(&workload, "QuotaReserved"), "LocalQueue lq doesn't exist");
    assert!(cluster.events("team", "early").await.iter().any(|event| event.starts_with("LocalQueueNotFound")));
    cluster.create(local_queue("lq", "cq")).await;
    cluster.pass(2).await;
    assert!(!is_suspended(&cluster, "early").await);
}

#[tokio::test(start_paused = true)]
async fn workloads_of_a_resumed_queue_get_one_status_update() {
    let cluster = Cluster::start(Config::default()).await;
    team(&cluster).await;
    let stopped = json!({"stopPolicy": "Hold", "queueingStrategy": "StrictFIFO"});
    let queue = cluster.create(cluster_queue("cq", "30", stopped)).await;
    cluster.create(local_queue("lq", "cq")).await;
    cluster.pass(1).await;
    for number in 0..30 {
        cluster.create(job(&format!("fits-{number:02}"), "lq", "1")).await;
    }
    cluster.pass(1).await;
    // Workloads behind a workload that does not fit are not evaluated.
    cluster.create(job("large", "lq", "2")).await;
    cluster.pass(1).await;
    cluster.create(job("behind", "lq", "1")).await;
    cluster.pass(1).await;
    let held = cluster.workload_of("team", "fits-00").await;
    assert_eq!(message(&held, "QuotaReserved"), "ClusterQueue cq is inactive");

    let states: Arc<Mutex<Vec<Value>>> = Arc::default();
    let (seen, api) = (states.clone(), cluster.api(&held));
    let last = cluster.list(KUEUE, "Workload", "team").await;
    let last = last.iter().filter_map(|it| it["metadata"]["resourceVersion"].as_str()?.parse::<u64>().ok()).max();
    let last = last.expect("there are workloads").to_string();
    let watch = tokio::spawn(async move {
        let mut changes = std::pin::pin!(api.watch(&WatchParams::default(), &last).await.unwrap());
        while let Some(change) = changes.next().await {
            if let Ok(WatchEvent::Modified(workload)) = change {
                seen.lock().unwrap().push(serde_json::to_value::<DynamicObject>(workload).unwrap());
            }
        }
    });
    let go = Patch::Merge(json!({"spec": {"stopPolicy": "None"}}));
    cluster.api(&queue).patch("cq", &PatchParams::default(), &go).await.unwrap();
    cluster.pass(5).await;
    watch.abort();

    let states = states.lock().unwrap().clone();
    let statuses = |name: &str| -> Vec<String> {
        let of = states.iter().filter(|it| it["metadata"]["ownerReferences"][0]["name"] == name);
        let mut seen: Vec<String> = of.map(|it| condition(it, "QuotaReserved")).collect();
        seen.dedup();
        seen
    };
    for number in 0..30 {
        let name = format!("fits-{number:02}");
        assert!(!is_suspended(&cluster, &name).await, "{name}");
        assert_eq!(statuses(&name), ["True/QuotaReserved"], "{name}");
    }
    assert_eq!(statuses("large"), ["False/WaitingForQuota"]);
    assert_eq!(statuses("behind"), ["False/PendingEvaluation"]);
}

#[tokio::test(start_paused = true)]
async fn succeeded_pods_do_not_count_as_failed() {
    let cluster = Cluster::start(Config::default()).await;
    team(&cluster).await;
    cluster.create(cluster_queue("cq", "2", json!({}))).await;
    cluster.create(local_queue("lq", "cq")).await;
    cluster.pass(1).await;
    let mut both = job("both", "lq", "1");
    both["spec"]["parallelism"] = json!(2);
    both["spec"]["completions"] = json!(2);
    let both = cluster.create(both).await;
    cluster.pass(2).await;
    let pods_ready = async |status: Value| {
        cluster.patch_status(&both, json!({ "status": status })).await;
        cluster.pass(1).await;
        condition(&cluster.workload_of("team", "both").await, "PodsReady")
    };
    assert_eq!(pods_ready(json!({"active": 2, "ready": 1})).await, "False/WaitForStart");
    assert_eq!(pods_ready(json!({"active": 2, "ready": 2})).await, "True/Started");
    assert_eq!(pods_ready(json!({"active": 2, "ready": 1})).await, "False/WaitForRecovery");
    assert_eq!(pods_ready(json!({"active": 2, "ready": 2})).await, "True/Recovered");
    // The Job controller lists pods that ended before it counts them.
    let uncounted = json!({"active": 1, "ready": 1, "uncountedTerminatedPods": {"succeeded": ["a"]}});
    assert_eq!(pods_ready(uncounted).await, "True/Recovered");
    let uncounted = json!({"active": 0, "ready": 0, "uncountedTerminatedPods": {"succeeded": ["a", "b"]}});
    assert_eq!(pods_ready(uncounted).await, "True/Recovered");
    // PodsReady of a finished workload is not updated.
    let done = json!([{"type": "Complete", "status": "True", "message": "done"}]);
    assert_eq!(
        pods_ready(json!({"conditions": done, "uncountedTerminatedPods": {"succeeded": null}})).await,
        "True/Recovered"
    );
    assert_eq!(condition(&cluster.workload_of("team", "both").await, "Finished"), "True/Succeeded");
    assert_eq!(pods_ready(json!({"ready": null})).await, "True/Recovered");
}

/// An admission that the API server rejects is retried with backoff. In the meantime other
/// workloads get its quota. It succeeds once the API server accepts it.
#[tokio::test(start_paused = true)]
async fn a_rejected_admission_waits_and_holds_no_quota() {
    let cluster = Cluster::start(Config::default()).await;
    team(&cluster).await;
    cluster.create(cluster_queue("cq", "2", json!({}))).await;
    cluster.create(local_queue("lq", "cq")).await;
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "no-unpaid"},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["kueue.x-k8s.io"], "apiVersions": ["*"], "operations": ["UPDATE"],
                "resources": ["workloads/status"],
            }]},
            "validations": [{
                "expression": "!has(object.status.admission) || !object.metadata.name.startsWith('job-unpaid')",
                "message": "the job has no cost center",
            }],
        },
    });
    let policy = cluster.create(policy).await;
    cluster
        .create(json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "no-unpaid"},
            "spec": {"policyName": "no-unpaid", "validationActions": ["Deny"]},
        }))
        .await;
    cluster.create(job("unpaid", "lq", "2")).await;
    cluster.pass(1).await;
    cluster.create(job("paid", "lq", "2")).await;
    cluster.pass(30).await;
    assert!(is_suspended(&cluster, "unpaid").await);
    assert!(!is_suspended(&cluster, "paid").await, "the rejected one holds no quota");
    let name = cluster.workload_of("team", "unpaid").await["metadata"]["name"].as_str().unwrap().to_owned();
    let events = cluster.events("team", &name).await;
    let refused: Vec<_> = events.iter().filter(|event| event.starts_with("AdmissionRefused: ")).collect();
    assert!(refused.iter().all(|event| event.contains("the job has no cost center")), "{events:#?}");
    assert!(!refused.is_empty() && refused.len() <= 5, "{events:#?}");

    cluster.delete(&policy).await;
    let paid = cluster.get("batch/v1", "Job", Some("team"), "paid").await;
    let done = json!([{"type": "Complete", "status": "True", "message": "done"}]);
    cluster.patch_status(&paid, json!({"status": {"conditions": done, "succeeded": 1}})).await;
    cluster.pass(61).await;
    assert!(!is_suspended(&cluster, "unpaid").await);
}

#[tokio::test(start_paused = true)]
async fn a_job_reports_a_taken_workload_name_and_too_many_owners() {
    let cluster = Cluster::start(Config::default()).await;
    team(&cluster).await;
    cluster.create(cluster_queue("cq", "4", json!({}))).await;
    cluster.create(local_queue("lq", "cq")).await;
    let label = json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "lq"}}});
    let unqueued = |name: &str| {
        let mut job = job(name, "lq", "1");
        job["metadata"]["labels"] = json!({});
        job
    };
    let made = cluster.create(unqueued("taken")).await;
    let kind = OwnerKind { group: "batch".to_owned(), kind: "Job".to_owned() };
    let name = workload_name("taken", made["metadata"]["uid"].as_str().unwrap(), &kind, &Gates::default());
    let pods = json!({"name": "main", "count": 1, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}});
    let others = json!({"apiVersion": KUEUE, "kind": "Workload", "metadata": {"name": name, "namespace": "team"},
        "spec": {"queueName": "nowhere", "podSets": [pods]}});
    let others = cluster.create(others).await;
    cluster.patch(&made, label.clone()).await;
    cluster.pass(2).await;
    let events = cluster.events("team", "taken").await;
    let conflict = format!(
        "WorkloadNameConflict: Workload {name} already exists and has no owner; delete it to let this Job be queued"
    );
    assert!(events.contains(&conflict), "{events:?}");
    let beyond = cluster.beyond_role.lock().unwrap().clone();
    assert!(beyond.is_empty(), "{beyond:?}");
    cluster.delete(&others).await;
    cluster.pass(600).await;
    assert_eq!(condition(&cluster.workload_of("team", "taken").await, "Admitted"), "True/Admitted");
    // At most ten owners above a job are looked up.
    let mut above = Vec::<Value>::new();
    for number in 0..12 {
        let mut next = unqueued(&format!("nested-{number}"));
        if let Some(owner) = above.last() {
            next["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "Job", "controller": true,
                "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}]);
        }
        above.push(cluster.create(next).await);
    }
    cluster.patch(&above[10], label.clone()).await;
    cluster.patch(&above[11], label).await;
    cluster.pass(2).await;
    let deep = "JobNestingTooDeep: Terminated search for Kueue-managed Job because ancestor depth exceeded limit of 10";
    assert!(cluster.events("team", "nested-11").await.contains(&deep.to_owned()));
    assert!(cluster.workload_of("team", "nested-11").await.is_null(), "its topmost owner is unknown");
    assert!(!cluster.events("team", "nested-10").await.contains(&deep.to_owned()));
    assert!(!cluster.workload_of("team", "nested-10").await.is_null());
}

/// Asserts that the first event of this reason on a job contains `what`.
async fn says(cluster: &Cluster, name: &str, reason: &str, what: &str) {
    let events = cluster.events("team", name).await;
    let said = events.iter().find(|event| event.starts_with(&format!("{reason}: ")));
    assert!(said.is_some_and(|said| said.contains(what)), "{name}: {events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pending_job_that_becomes_part_of_another_or_leaves_its_queue_loses_its_workload() {
    let cluster = Cluster::start(Config::default()).await;
    team(&cluster).await;
    cluster.create(cluster_queue("cq", "2", json!({}))).await;
    cluster.create(local_queue("lq", "cq")).await;
    let mut by_hand = job("by-hand", "lq", "1");
    by_hand["metadata"]["labels"] = json!({});
    let by_hand = cluster.create(by_hand).await;
    let owner = |of: &Value| {
        json!([{"apiVersion": "batch/v1", "kind": "Job", "controller": true, "name": of["metadata"]["name"],
            "uid": of["metadata"]["uid"]}])
    };
    cluster
        .create(json!({"apiVersion": KUEUE, "kind": "Workload", "spec": {"podSets": [{"name": "main", "count": 1,
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}]},
            "metadata": {"name": "of-others", "namespace": "team", "ownerReferences": owner(&by_hand)}}))
        .await;
    let running = cluster.create(job("running", "lq", "2")).await;
    cluster.pass(2).await;
    cluster.patch_status(&running, json!({"status": {"active": 1}})).await;
    let child = cluster.create(job("child", "lq", "2")).await;
    let leaver = cluster.create(job("leaver", "lq", "2")).await;
    cluster.pass(2).await;
    assert!(!cluster.workload_of("team", "child").await.is_null());
    assert!(!cluster.workload_of("team", "leaver").await.is_null());
    cluster.patch(&child, json!({"metadata": {"ownerReferences": owner(&running)}})).await;
    cluster.patch(&leaver, json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": null}}})).await;
    cluster.pass(2).await;
    assert_eq!(cluster.workload_of("team", "child").await, Value::Null);
    assert_eq!(cluster.workload_of("team", "leaver").await, Value::Null);
    says(&cluster, "child", "DeletedWorkload", "the job is part of Job running").await;
    says(&cluster, "leaver", "DeletedWorkload", "the job has no queue name").await;
    assert!(!cluster.workload_of("team", "by-hand").await.is_null(), "it was created by hand");
    // A job that runs on its own quota keeps it until it ends, even if it becomes part of another
    // job.
    let other = cluster.create(job("other", "lq", "2")).await;
    cluster.patch(&running, json!({"metadata": {"ownerReferences": owner(&other)}})).await;
    cluster.pass(2).await;
    assert_eq!(condition(&cluster.workload_of("team", "running").await, "Admitted"), "True/Admitted");
    assert!(is_suspended(&cluster, "other").await);
    let done = json!([{"type": "Complete", "status": "True"}]);
    cluster.patch_status(&running, json!({"status": {"active": 0, "conditions": done}})).await;
    cluster.pass(3).await;
    assert_eq!(condition(&cluster.workload_of("team", "running").await, "Finished"), "True/Succeeded");
    assert!(!is_suspended(&cluster, "other").await);
}

#[tokio::test(start_paused = true)]
async fn with_guarded_owners_an_owner_that_creates_no_jobs_is_ignored() {
    for guarded in [false, true] {
        let mut config = Config::default();
        config.integrations.owner_reference_writers = guarded.then(Default::default);
        let cluster = Cluster::start(config).await;
        team(&cluster).await;
        cluster.create(cluster_queue("cq", "2", json!({}))).await;
        cluster.create(local_queue("lq", "cq")).await;
        let running = cluster.create(job("running", "lq", "2")).await;
        cluster.pass(2).await;
        let mut child = job("child", "lq", "2");
        child["spec"]["suspend"] = json!(false);
        child["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "running",
            "uid": running["metadata"]["uid"], "controller": true}]);
        cluster.create(child).await;
        cluster.pass(3).await;
        assert_eq!(is_suspended(&cluster, "child").await, guarded, "beyond the quota");
        assert_eq!(cluster.workload_of("team", "child").await.is_null(), !guarded);
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_not_queued_or_not_started_reports_why() {
    let cluster = Cluster::start(Config::default()).await;
    team(&cluster).await;
    cluster.create(cluster_queue("cq", "9", json!({}))).await;
    cluster.create(local_queue("lq", "cq")).await;
    let mut prebuilt = job("prebuilt", "lq", "1");
    prebuilt["metadata"]["labels"]["kueue.x-k8s.io/prebuilt-workload-name"] = json!("nowhere");
    cluster.create(prebuilt).await;
    let mut unclear = job("unclear", "lq", "1");
    unclear["spec"]["template"]["metadata"] = json!({"annotations": {"kueue.x-k8s.io/podset-slice-size": "many", "kueue.x-k8s.io/podset-slice-required-topology": "rack"}});
    cluster.create(unclear).await;
    // The additions of admission conflict with the template.
    let mut clashing = job("clashing", "lq", "1");
    clashing["spec"]["template"]["spec"]["nodeSelector"] = json!({"pool": "other"});
    clashing["spec"]["template"]["spec"]["nodeSelector"]["pool"] = json!("spot");
    clashing["spec"]["template"]["metadata"] = json!({"labels": {"kueue.x-k8s.io/podset": "another"}});
    cluster.create(clashing).await;
    cluster.pass(10).await;
    says(&cluster, "prebuilt", "PrebuiltWorkloadNotFound", "Workload nowhere").await;
    says(&cluster, "unclear", "ErrWorkloadCompose", "").await;
    says(&cluster, "clashing", "WorkloadFinished", "FailedToStart").await;
}

#[tokio::test(start_paused = true)]
async fn a_job_reports_which_object_the_api_rejects() {
    let cluster = Cluster::start(Config::default()).await;
    team(&cluster).await;
    cluster
        .create(json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": "team"},
            "spec": {"hard": {"count/workloads.kueue.x-k8s.io": "0"}}}))
        .await;
    cluster.pass(1).await;
    cluster.create(job("held", "lq", "1")).await;
    cluster.pass(5).await;
    says(&cluster, "held", "WriteRefused", "exceeded quota: none").await;
}

fn workload(name: &str, cpu: &str, priority: i32, more: Value) -> Value {
    let mut workload = json!({
        "apiVersion": KUEUE, "kind": "Workload", "metadata": {"name": name, "namespace": "team"},
        "spec": {
            "queueName": "lq", "priority": priority,
            "podSets": [{"name": "main", "count": 1, "template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}],
            }}}],
        },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        workload["spec"][key] = value.clone();
    }
    workload
}

async fn holds_quota(cluster: &Cluster, name: &str) -> bool {
    let workload = cluster.get(KUEUE, "Workload", Some("team"), name).await;
    condition(&workload, "QuotaReserved").starts_with("True")
}

#[tokio::test(start_paused = true)]
async fn a_workload_with_a_closed_preemption_gate_preempts_none_and_blocks_none() {
    let feature_gates = Gates::default().with(Gate::MultiKueueOrchestratedPreemption, true);
    let cluster = Cluster::start(Config { feature_gates, ..Config::default() }).await;
    team(&cluster).await;
    let preemption = json!({"preemption": {"withinClusterQueue": "LowerPriority"}});
    cluster.create(cluster_queue("cq", "2", preemption)).await;
    cluster.create(local_queue("lq", "cq")).await;
    cluster.create(workload("low", "1500m", 0, json!({}))).await;
    cluster.pass(2).await;
    cluster.create(workload("high", "1", 9, json!({"preemptionGates": [{"name": "dispatcher"}]}))).await;
    cluster.pass(5).await;
    cluster.create(workload("small", "500m", 0, json!({}))).await;
    cluster.pass(2).await;
    assert!(holds_quota(&cluster, "low").await && holds_quota(&cluster, "small").await);
    let gated = cluster.get(KUEUE, "Workload", Some("team"), "high").await;
    assert_eq!(condition(&gated, "BlockedOnPreemptionGates"), "True/PreemptionGated", "{gated:#}");
    assert_eq!(gated["status"]["preemptionGates"][0]["position"], "Closed", "{gated:#}");
    // Another program opens the gate.
    let open = json!([{"name": "dispatcher", "position": "Open", "lastTransitionTime": "2026-01-01T01:00:00Z"}]);
    cluster
        .api(&gated)
        .patch_status("high", &PatchParams::default(), &Patch::Merge(json!({"status": {"preemptionGates": open}})))
        .await
        .expect("the status is valid");
    cluster.pass(5).await;
    let low = cluster.get(KUEUE, "Workload", Some("team"), "low").await;
    assert_eq!(condition(&low, "Evicted"), "True/Preempted", "{low:#}");
}

#[tokio::test(start_paused = true)]
async fn with_explicit_statuses_a_new_workload_reports_what_its_class_waits_for() {
    let feature_gates = Gates::default().with(Gate::UnadmittedWorkloadsExplicitStatus, true);
    reports_what_its_class_waits_for(Config { feature_gates, ..Config::default() }).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_workload_reports_what_its_class_waits_for() {
    reports_what_its_class_waits_for(Config::default()).await;
}

async fn reports_what_its_class_waits_for(config: Config) {
    let cluster = Cluster::start(config).await;
    team(&cluster).await;
    cluster.create(cluster_queue("cq", "1", json!({}))).await;
    cluster.create(local_queue("lq", "cq")).await;
    for name in ["running", "evaluated", "equivalent"] {
        cluster.create(workload(name, "1", 0, json!({}))).await;
        cluster.pass(2).await;
    }
    let equivalent = cluster.get(KUEUE, "Workload", Some("team"), "equivalent").await;
    assert_eq!(condition(&equivalent, "QuotaReserved"), "False/WaitingForQuota", "{equivalent:#}");
    let expected = "Bypassed scheduling evaluation because an equivalent workload recently failed";
    assert_eq!(message(&equivalent, "QuotaReserved"), expected);
    let evaluated = cluster.get(KUEUE, "Workload", Some("team"), "evaluated").await;
    assert!(message(&evaluated, "QuotaReserved").starts_with("couldn't assign flavors"), "{evaluated:#}");
}
