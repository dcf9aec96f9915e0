//! Adopts objects that Kueue left behind: admitted workloads keep running, pending workloads are
//! admitted in order, and nothing is granted, revoked, renamed or created twice.

use berth_controllers::Config;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::cluster::{Cluster, condition};

const NEW: &str = "kueue.x-k8s.io/v1beta2";
const OLD: &str = "kueue.x-k8s.io/v1beta1";
const IN_USE: &str = "kueue.x-k8s.io/resource-in-use";
const SINCE: &str = "2025-12-31T23:00:00Z";

/// Creates an object under Kueue's field manager.
async fn make(cluster: &Cluster, object: Value) -> Value {
    let typed: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let params = PostParams { field_manager: Some("kueue".to_owned()), ..PostParams::default() };
    let made = cluster.api(&object).create(&params, &typed).await;
    serde_json::to_value(made.unwrap_or_else(|error| panic!("{object}: {error}"))).unwrap()
}

/// Applies a status by server-side apply under this manager, as Kueue does.
async fn apply_status(cluster: &Cluster, object: &Value, manager: &str, status: Value) {
    let (metadata, name) = (&object["metadata"], object["metadata"]["name"].as_str().unwrap());
    let patch = json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "status": status,
        "metadata": {"name": name, "namespace": metadata["namespace"]}});
    let params = PatchParams::apply(manager).force();
    cluster.api(object).patch_status(name, &params, &Patch::Apply(patch)).await.unwrap();
}

fn is(type_: &str, reason: &str) -> Value {
    json!({"type": type_, "status": "True", "reason": reason, "message": reason, "lastTransitionTime": SINCE,
        "observedGeneration": 1})
}

fn template(cpu: &str) -> Value {
    json!({"spec": {"restartPolicy": "Never", "containers": [
        {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}]}})
}

/// A Job that Kueue has started or suspended.
async fn job(cluster: &Cluster, name: &str, suspended: bool) -> Value {
    let mut template = template("1");
    if !suspended {
        template["spec"]["nodeSelector"] = json!({"pool": "spot"});
    }
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "main"}},
        "spec": {"suspend": suspended, "parallelism": 1, "completions": 1, "template": template},
    });
    let job = make(cluster, job).await;
    if !suspended {
        cluster.patch_status(&job, json!({"status": {"active": 1, "ready": 1, "startTime": SINCE}})).await;
    }
    job
}

/// The Workload that Kueue creates for a Job, in API version `version`.
async fn workload_of(cluster: &Cluster, version: &str, name: &str, job: &Value) -> Value {
    let uid = &job["metadata"]["uid"];
    let old = version == OLD;
    // Kueue records the template with the API server's defaults, from before the job was started,
    // and without the labels that the API server adds to select the job's pods.
    let mut queued = job["spec"]["template"].clone();
    queued["spec"].as_object_mut().unwrap().remove("nodeSelector");
    for label in ["batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "controller-uid", "job-name"] {
        queued["metadata"]["labels"].as_object_mut().map(|labels| labels.remove(label));
    }
    // With the older version, the template has no defaults, as another client may have written it.
    if old {
        let container = queued["spec"]["containers"][0].as_object_mut().unwrap();
        for field in ["imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"] {
            assert!(container.remove(field).is_some(), "{field}");
        }
        container["resources"]["requests"]["cpu"] = json!("1000m");
    }
    let mut spec = json!({"queueName": "main", "active": true, "priority": 0,
        "podSets": [{"name": "main", "count": 1, "template": queued}]});
    if old {
        spec["priorityClassSource"] = json!("");
    }
    make(cluster, json!({
        "apiVersion": version, "kind": "Workload",
        "metadata": {
            "name": name, "namespace": "team", "finalizers": [IN_USE],
            "labels": {"kueue.x-k8s.io/job-uid": uid},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": uid,
                "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": spec,
    })).await
}

/// Admits a Workload as Kueue does.
async fn admit(cluster: &Cluster, workload: &Value) {
    let admission = json!({"clusterQueue": "cq", "podSetAssignments": [
        {"name": "main", "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": "1"}, "count": 1}]});
    let conditions = json!([is("QuotaReserved", "QuotaReserved"), is("Admitted", "Admitted")]);
    apply_status(cluster, workload, "kueue-admission", json!({"admission": admission, "conditions": conditions})).await;
    apply_status(
        cluster,
        workload,
        "kueue-job-controller-PodsReady",
        json!({"conditions": [is("PodsReady", "Started")]}),
    )
    .await;
}

/// The fields that must not change: name, UID, admission, and the conditions' times.
fn standing(workload: &Value) -> Value {
    let since = |type_: &str| {
        let conditions = workload["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|it| it["type"] == type_).map(|it| it["lastTransitionTime"].clone())
    };
    json!([
        workload["metadata"]["name"],
        workload["metadata"]["uid"],
        workload["status"]["admission"],
        since("QuotaReserved"),
        since("Admitted"),
        condition(workload, "Evicted")
    ])
}

#[tokio::test(start_paused = true)]
async fn workloads_left_by_kueue_continue_unchanged() {
    let (cluster, manager) = Cluster::without_controllers(Config::default()).await;
    make(&cluster, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})).await;
    make(
        &cluster,
        json!({"apiVersion": NEW, "kind": "ResourceFlavor",
        "metadata": {"name": "spot", "finalizers": [IN_USE]}, "spec": {"nodeLabels": {"pool": "spot"}}}),
    )
    .await;
    // One queue is written in the older version, another one in the newer.
    let quota = json!([{"coveredResources": ["cpu"], "flavors": [
        {"name": "spot", "resources": [{"name": "cpu", "nominalQuota": "3"}]}]}]);
    make(&cluster, json!({"apiVersion": OLD, "kind": "ClusterQueue", "metadata": {"name": "cq", "finalizers": [IN_USE]},
        "spec": {"namespaceSelector": {}, "cohort": "all", "queueingStrategy": "BestEffortFIFO", "resourceGroups": quota,
            "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}}})).await;
    make(&cluster, json!({"apiVersion": NEW, "kind": "ClusterQueue", "metadata": {"name": "lender", "finalizers": [IN_USE]},
        "spec": {"namespaceSelector": {}, "cohortName": "all", "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
            {"name": "spot", "resources": [{"name": "cpu", "nominalQuota": "0"}]}]}]}})).await;
    make(
        &cluster,
        json!({"apiVersion": OLD, "kind": "LocalQueue", "metadata": {"name": "main", "namespace": "team"},
        "spec": {"clusterQueue": "cq"}}),
    )
    .await;

    // Two workloads are admitted, one in each version. Two are pending, and one of these fits.
    let mut running = Vec::new();
    for (version, name) in [(OLD, "first"), (NEW, "second")] {
        let job = job(&cluster, name, false).await;
        let workload = workload_of(&cluster, version, &format!("job-{name}-0a1b2"), &job).await;
        admit(&cluster, &workload).await;
        running.push(format!("job-{name}-0a1b2"));
    }
    for (version, name) in [(OLD, "third"), (NEW, "fourth")] {
        let job = job(&cluster, name, true).await;
        let workload = workload_of(&cluster, version, &format!("job-{name}-0a1b2"), &job).await;
        let waits = json!({"type": "QuotaReserved", "status": "False", "reason": "Pending", "lastTransitionTime": SINCE,
            "message": "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor spot, 1 more needed"});
        apply_status(&cluster, &workload, "kueue-admission", json!({"conditions": [waits]})).await;
        cluster.pass(1).await;
    }
    // One job and its Workload have finished.
    let over = job(&cluster, "over", false).await;
    let done = json!([{"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": SINCE},
        {"type": "Complete", "status": "True", "lastTransitionTime": SINCE}]);
    cluster
        .patch_status(
            &over,
            json!({"status": {"active": 0, "ready": 0, "succeeded": 1, "conditions": done,
        "completionTime": SINCE}}),
        )
        .await;
    let finished = workload_of(&cluster, NEW, "job-over-0a1b2", &over).await;
    admit(&cluster, &finished).await;
    apply_status(
        &cluster,
        &finished,
        "kueue-job-controller-Finished",
        json!({"conditions": [is("Finished", "Succeeded")]}),
    )
    .await;

    let mut before = Vec::new();
    for name in &running {
        before.push(standing(&cluster.get(NEW, "Workload", Some("team"), name).await));
    }
    tokio::spawn(manager.run(std::future::pending()));
    cluster.pass(10).await;

    // Admitted workloads are unchanged, and no others were created.
    let mut after = Vec::new();
    for name in &running {
        after.push(standing(&cluster.get(NEW, "Workload", Some("team"), name).await));
        let job = name.trim_start_matches("job-").trim_end_matches("-0a1b2");
        assert_eq!(cluster.get("batch/v1", "Job", Some("team"), job).await["spec"]["suspend"], false, "{job}");
        let events = cluster.events("team", name).await;
        assert!(events.is_empty(), "{name}: {events:?}");
    }
    assert_eq!(before, after);
    let mut names: Vec<String> = cluster
        .list(NEW, "Workload", "team")
        .await
        .iter()
        .map(|it| it["metadata"]["name"].as_str().unwrap_or_default().to_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["job-first-0a1b2", "job-fourth-0a1b2", "job-over-0a1b2", "job-second-0a1b2", "job-third-0a1b2"]);

    // The older pending workload got the remaining quota. Usage counts all three, without the
    // finished workload.
    let suspended =
        async |name: &str| cluster.get("batch/v1", "Job", Some("team"), name).await["spec"]["suspend"] == true;
    assert!(!suspended("third").await);
    assert!(suspended("fourth").await);
    let used = async || {
        let queue = cluster.get(NEW, "ClusterQueue", None, "cq").await;
        let status = &queue["status"];
        (
            status["flavorsUsage"][0]["resources"][0]["total"].clone(),
            status["admittedWorkloads"].clone(),
            status["pendingWorkloads"].clone(),
        )
    };
    assert_eq!(used().await, (json!("3"), json!(3), json!(1)));
    for (kind, name) in [("ClusterQueue", "cq"), ("ResourceFlavor", "spot")] {
        assert_eq!(cluster.get(NEW, kind, None, name).await["metadata"]["finalizers"], json!([IN_USE]), "{name}");
    }

    // A job that Kueue started ends, and the pending job gets its quota.
    let first = cluster.get("batch/v1", "Job", Some("team"), "first").await;
    cluster
        .patch_status(
            &first,
            json!({"status": {"active": 0, "ready": 0, "succeeded": 1, "conditions": done,
        "completionTime": "2026-01-01T00:00:10Z"}}),
        )
        .await;
    cluster.pass(5).await;
    let workload = cluster.get(NEW, "Workload", Some("team"), "job-first-0a1b2").await;
    assert_eq!(condition(&workload, "Finished"), "True/Succeeded", "{workload:#}");
    assert!(!suspended("fourth").await);
    assert_eq!(used().await, (json!("3"), json!(3), json!(0)));

    // A job that Kueue started is stopped: its template is restored, including the labels that
    // select its pods.
    let second = cluster.get(NEW, "Workload", Some("team"), "job-second-0a1b2").await;
    let patch = json!({"spec": {"active": false}});
    cluster.api(&second).patch("job-second-0a1b2", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    cluster.pass(5).await;
    let stopped = cluster.get("batch/v1", "Job", Some("team"), "second").await;
    assert_eq!(stopped["spec"]["suspend"], true);
    cluster.patch_status(&stopped, json!({"status": {"active": 0, "ready": 0}})).await;
    cluster.pass(5).await;
    let stopped = cluster.get("batch/v1", "Job", Some("team"), "second").await;
    let template = &stopped["spec"]["template"];
    assert!(template["spec"]["nodeSelector"].is_null(), "{template:#}");
    let uid = &stopped["metadata"]["uid"];
    assert_eq!(
        template["metadata"]["labels"],
        json!({"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": "second",
            "controller-uid": uid, "job-name": "second"})
    );
}
