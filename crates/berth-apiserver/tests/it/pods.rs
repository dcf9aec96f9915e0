use serde_json::{Value, json};

use crate::harness::server;

const PODS: &str = "/api/v1/namespaces/default/pods";

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "containers": [{"name": "main", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}})
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_stored_as_a_real_server_stores_it() {
    let server = server();
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000});
    server.post("/apis/scheduling.k8s.io/v1/priorityclasses", class).await.expect(201);
    let mut wanted = pod("a");
    wanted["spec"]["priorityClassName"] = json!("high");
    let created = server.post(PODS, wanted).await.expect(201);
    let spec = &created["spec"];
    assert_eq!((&spec["priority"], &spec["preemptionPolicy"]), (&json!(1000), &json!("PreemptLowerPriority")));
    assert_eq!((&spec["restartPolicy"], &spec["dnsPolicy"]), (&json!("Always"), &json!("ClusterFirst")));
    assert_eq!((&spec["schedulerName"], &spec["serviceAccountName"]), (&json!("default-scheduler"), &json!("default")));
    assert_eq!(spec["containers"][0]["imagePullPolicy"], "Always");
    let keys: Vec<&str> =
        spec["tolerations"].as_array().unwrap().iter().map(|toleration| toleration["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "nvidia.com/gpu"]);
    assert_eq!(
        (&created["status"]["phase"], &created["status"]["qosClass"]),
        (&json!("Pending"), &json!("BestEffort"))
    );
    let mut unknown = pod("b");
    unknown["spec"]["priorityClassName"] = json!("nope");
    let refused = server.post(PODS, unknown).await.expect(403);
    assert_eq!(refused["message"], "pods \"b\" is forbidden: no PriorityClass with name nope was found");
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_once_and_leaves_in_two_steps() {
    let server = server();
    server.post(PODS, pod("a")).await.expect(201);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}});
    server.post(&format!("{PODS}/a/binding"), binding.clone()).await.expect(201);
    let bound = server.get(&format!("{PODS}/a")).await.expect(200);
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    let again = server.post(&format!("{PODS}/a/binding"), binding).await.expect(409);
    assert!(again["message"].as_str().unwrap().contains("is already assigned to node"), "{again}");
    let selected =
        server.get(&format!("{PODS}?fieldSelector=spec.nodeName%3Dn1,status.phase!%3DFailed")).await.expect(200);
    assert_eq!(selected["items"].as_array().unwrap().len(), 1);

    let going = server.delete(&format!("{PODS}/a"), json!(null)).await.expect(200);
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(going["metadata"]["deletionTimestamp"], "2026-01-01T00:00:30Z");
    server.get(&format!("{PODS}/a")).await.expect(200);
    server.delete(&format!("{PODS}/a"), json!({"gracePeriodSeconds": 0})).await.expect(200);
    server.get(&format!("{PODS}/a")).await.expect(404);
    // Nobody has to end a pod that never started.
    server.post(PODS, pod("b")).await.expect(201);
    server.delete(&format!("{PODS}/b"), json!(null)).await.expect(200);
    server.get(&format!("{PODS}/b")).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn a_pods_specification_hardly_changes() {
    let server = server();
    server.post(PODS, pod("a")).await.expect(201);
    let refused = server
        .patch(&format!("{PODS}/a"), "merge-patch", json!({"spec": {"nodeSelector": {"a": "b"}}}))
        .await
        .expect(422);
    assert!(refused["message"].as_str().unwrap().contains("pod updates may not change fields other than"), "{refused}");
    let image = json!({"spec": {"containers": [{"name": "main", "image": "alpine:3"}]}});
    let changed = server.patch(&format!("{PODS}/a"), "strategic-merge-patch", image).await.expect(200);
    assert_eq!(changed["spec"]["containers"][0]["image"], "alpine:3");
    let status = json!({"status": {"phase": "Running"}});
    let running = server.patch(&format!("{PODS}/a/status"), "merge-patch", status).await.expect(200);
    assert_eq!(running["status"]["phase"], "Running");
}

#[tokio::test(start_paused = true)]
async fn services_get_an_address_and_secrets_their_data() {
    let server = server();
    let service =
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    let created = server.post("/api/v1/namespaces/default/services", service).await.expect(201);
    assert_eq!(created["spec"]["clusterIP"], "10.96.0.11");
    assert_eq!(created["spec"]["ports"][0]["targetPort"], 80);
    assert_eq!(created["spec"]["ports"][0]["protocol"], "TCP");
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": "hello"}});
    let created = server.post("/api/v1/namespaces/default/secrets", secret).await.expect(201);
    assert_eq!((&created["data"]["a"], &created["type"]), (&json!("aGVsbG8="), &json!("Opaque")));
    assert!(created.get("stringData").is_none());
}

#[tokio::test(start_paused = true)]
async fn nobody_is_connected_to_a_simulated_container() {
    let server = server();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    server.post(pods, pod).await.expect(201);
    for what in ["exec?command=sh", "attach", "portforward", "proxy"] {
        let refused = server.post(&format!("{pods}/p/{what}"), serde_json::Value::Null).await.expect(400);
        assert!(refused["message"].as_str().unwrap().contains("is not possible for pod p"), "{refused}");
    }
    let container = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "busybox"}]}});
    let refused = server.patch(&format!("{pods}/p/ephemeralcontainers"), "strategic-merge-patch", container).await;
    assert!(refused.expect(400)["message"].as_str().unwrap().contains("its containers are simulated"));
    server.post(&format!("{pods}/missing/exec"), serde_json::Value::Null).await.expect(404);
}
