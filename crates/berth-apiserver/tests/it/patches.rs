use serde_json::json;

use crate::harness::server;

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

fn job() -> serde_json::Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": {"suspend": true,
        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox:1",
            "resources": {"limits": {"cpu": "2000m", "nvidia.com/gpu": 1}}}]}}}})
}

#[tokio::test(start_paused = true)]
async fn a_job_gets_its_defaults_selector_and_labels() {
    let server = server();
    let created = server.post(JOBS, job()).await.expect(201);
    let spec = &created["spec"];
    assert_eq!((&spec["parallelism"], &spec["completions"], &spec["backoffLimit"]), (&json!(1), &json!(1), &json!(6)));
    assert_eq!(spec["completionMode"], "NonIndexed");
    assert_eq!(spec["podReplacementPolicy"], "TerminatingOrFailed");
    let uid = &created["metadata"]["uid"];
    assert_eq!(&spec["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"], uid);
    assert_eq!(&spec["template"]["metadata"]["labels"]["controller-uid"], uid);
    assert_eq!(spec["template"]["metadata"]["labels"]["job-name"], "a");
    let pod = &spec["template"]["spec"];
    assert_eq!(pod["terminationGracePeriodSeconds"], 30);
    assert_eq!(pod["containers"][0]["imagePullPolicy"], "IfNotPresent");
    assert_eq!(pod["containers"][0]["resources"]["requests"], json!({"cpu": "2", "nvidia.com/gpu": "1"}));
    assert_eq!(created["metadata"]["generation"], 1);
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_patch_is_applied() {
    let server = server();
    server.post(JOBS, job()).await.expect(201);
    let uri = format!("{JOBS}/a");
    let merged = server.patch(&uri, "merge-patch", json!({"spec": {"suspend": false}})).await.expect(200);
    assert_eq!((&merged["spec"]["suspend"], &merged["metadata"]["generation"]), (&json!(false), &json!(2)));
    let patched = server
        .patch(&uri, "json-patch", json!([{"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}]))
        .await
        .expect(200);
    assert_eq!((&patched["metadata"]["labels"]["x"], &patched["metadata"]["generation"]), (&json!("y"), &json!(2)));
    let strategic = json!({"metadata": {"labels": {"z": "1"}}, "spec": {"ttlSecondsAfterFinished": 5}});
    let patched = server.patch(&uri, "strategic-merge-patch", strategic).await.expect(200);
    assert_eq!(patched["spec"]["ttlSecondsAfterFinished"], 5);
    let failed = json!([{"op": "test", "path": "/spec/suspend", "value": true}]);
    assert_eq!(server.patch(&uri, "json-patch", failed).await.code, 422);
    let immutable = json!({"spec": {"completions": 7}});
    let rejected = server.patch(&uri, "merge-patch", immutable).await.expect(422);
    assert_eq!(
        rejected["message"],
        "Job.batch \"a\" is invalid: spec.completions: Invalid value: 7: field is immutable"
    );
}

#[tokio::test(start_paused = true)]
async fn status_and_specification_are_written_separately() {
    let server = server();
    server.post(JOBS, job()).await.expect(201);
    let both = json!({"spec": {"parallelism": 9}, "status": {"active": 3}});
    let status = server.patch(&format!("{JOBS}/a/status"), "merge-patch", both.clone()).await.expect(200);
    assert_eq!((&status["status"]["active"], &status["spec"]["parallelism"]), (&json!(3), &json!(1)));
    assert_eq!(status["metadata"]["generation"], 1);
    let main = server
        .patch(&format!("{JOBS}/a"), "merge-patch", json!({"spec": {"parallelism": 9}, "status": {"active": 5}}))
        .await
        .expect(200);
    assert_eq!((&main["status"]["active"], &main["spec"]["parallelism"]), (&json!(3), &json!(9)));
}

#[tokio::test(start_paused = true)]
async fn a_suspended_job_accepts_a_node_selector() {
    let server = server();
    server.post(JOBS, job()).await.expect(201);
    let started = json!({"spec": {"suspend": false, "template": {"spec": {"nodeSelector": {"pool": "gpu"}}}}});
    let started = server.patch(&format!("{JOBS}/a"), "merge-patch", started).await.expect(200);
    assert_eq!(started["spec"]["template"]["spec"]["nodeSelector"]["pool"], "gpu");
    let moved = json!({"spec": {"template": {"spec": {"nodeSelector": {"pool": "cpu"}}}}});
    let rejected = server.patch(&format!("{JOBS}/a"), "merge-patch", moved).await.expect(422);
    assert!(rejected["message"].as_str().unwrap().contains("spec.template: Invalid value"), "{rejected}");
}

#[tokio::test(start_paused = true)]
async fn apply_creates_and_changes() {
    let server = server();
    let uri = "/api/v1/namespaces/default/configmaps/a?fieldManager=tester";
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "1"}});
    server.patch(uri, "apply", map.clone()).await.expect(201);
    let mut changed = map;
    changed["data"] = json!({"k": "2", "l": "3"});
    let changed = server.patch(uri, "apply", changed).await.expect(200);
    assert_eq!(changed["data"], json!({"k": "2", "l": "3"}));
    let without_manager = "/api/v1/namespaces/default/configmaps/a";
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap"});
    assert_eq!(server.patch(without_manager, "apply", map).await.code, 422);
}

#[tokio::test(start_paused = true)]
async fn apply_conflicts_with_fields_of_other_managers() {
    let server = server();
    let uri = "/api/v1/namespaces/default/configmaps/a";
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "1", "old": "x"}});
    let created = server.patch(&format!("{uri}?fieldManager=one"), "apply", map).await.expect(201);
    let entry = &created["metadata"]["managedFields"][0];
    assert_eq!((&entry["manager"], &entry["operation"]), (&json!("one"), &json!("Apply")));
    assert_eq!(entry["fieldsV1"]["f:data"]["f:k"], json!({}));
    let conflicting = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "2"}});
    let conflict = server.patch(&format!("{uri}?fieldManager=two"), "apply", conflicting.clone()).await.expect(409);
    assert_eq!(conflict["details"]["causes"][0]["field"], ".data.k");
    let forced = server.patch(&format!("{uri}?fieldManager=two&force=true"), "apply", conflicting).await.expect(200);
    assert_eq!(forced["data"], json!({"k": "2", "old": "x"}));
    // A field that its manager no longer applies is removed, unless another manager owns it.
    let less = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let less = server.patch(&format!("{uri}?fieldManager=one"), "apply", less).await.expect(200);
    assert_eq!(less["data"], json!({"k": "2"}));
    let updated = server
        .patch(&format!("{uri}?fieldManager=three"), "merge-patch", json!({"data": {"k": "3"}}))
        .await
        .expect(200);
    let managers: Vec<&str> = updated["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["manager"].as_str().unwrap())
        .collect();
    assert_eq!(managers, ["three"]);
}

#[tokio::test(start_paused = true)]
async fn a_port_without_a_protocol_is_owned_and_removed_by_its_manager() {
    let server = server();
    let uri = "/api/v1/namespaces/default/podtemplates/t?fieldManager=me";
    let template = |ports: serde_json::Value| {
        json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "t"}, "template": {"spec": {
            "containers": [{"name": "c", "image": "i", "ports": ports}]}}})
    };
    let ports = json!([{"containerPort": 80}, {"containerPort": 443}]);
    let made = server.patch(uri, "apply", template(ports)).await.expect(201);
    let owned = &made["metadata"]["managedFields"][0]["fieldsV1"]["f:template"]["f:spec"]["f:containers"];
    let port = &owned["k:{\"name\":\"c\"}"]["f:ports"]["k:{\"containerPort\":80,\"protocol\":\"TCP\"}"];
    assert!(port.is_object(), "{made}");
    let left = server.patch(uri, "apply", template(json!([{"containerPort": 80}]))).await.expect(200);
    let left = &left["template"]["spec"]["containers"][0]["ports"];
    assert_eq!(*left, json!([{"containerPort": 80, "protocol": "TCP"}]));
}

/// As upstream: an apply without changes does not update the timestamps of managers.
#[tokio::test(start_paused = true)]
async fn applying_an_equal_object_again_writes_nothing() {
    let server = server();
    let mut applied = job();
    applied["spec"]["template"]["spec"]["hostNetwork"] = json!(false);
    applied["spec"]["template"]["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": ""}]);
    let uri = format!("{JOBS}/a?fieldManager=tester");
    let first = server.patch(&uri, "apply", applied.clone()).await.expect(201);
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
    let second = server.patch(&uri, "apply", applied).await.expect(200);
    assert_eq!(first["metadata"]["resourceVersion"], second["metadata"]["resourceVersion"], "{second:#}");
}
