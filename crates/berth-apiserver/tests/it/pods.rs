use serde_json::{Value, json};

use crate::harness::server;

const PODS: &str = "/api/v1/namespaces/default/pods";

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "containers": [{"name": "main", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}})
}

#[tokio::test(start_paused = true)]
async fn a_pod_gets_the_defaults_of_kube_apiserver() {
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
    // An update that leaves them out gets them again.
    let mut updated = created.clone();
    updated["spec"]["tolerations"] = json!([{"key": "mine", "operator": "Exists"}]);
    let updated = server.put(&format!("{PODS}/a"), updated).await.expect(200);
    let keys: Vec<&Value> = updated["spec"]["tolerations"].as_array().unwrap().iter().map(|it| &it["key"]).collect();
    assert_eq!(keys, ["mine", "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "nvidia.com/gpu"]);
    assert_eq!(
        (&created["status"]["phase"], &created["status"]["qosClass"]),
        (&json!("Pending"), &json!("BestEffort"))
    );
    let mut unknown = pod("b");
    unknown["spec"]["priorityClassName"] = json!("nope");
    let rejected = server.post(PODS, unknown).await.expect(403);
    assert_eq!(rejected["message"], "pods \"b\" is forbidden: no PriorityClass with name nope was found");
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_once_and_deleted_gracefully() {
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
    // A pod without a node is deleted at once.
    server.post(PODS, pod("b")).await.expect(201);
    server.delete(&format!("{PODS}/b"), json!(null)).await.expect(200);
    server.get(&format!("{PODS}/b")).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn most_fields_of_a_pods_specification_are_immutable() {
    let server = server();
    server.post(PODS, pod("a")).await.expect(201);
    let rejected = server
        .patch(&format!("{PODS}/a"), "merge-patch", json!({"spec": {"nodeSelector": {"a": "b"}}}))
        .await
        .expect(422);
    assert!(
        rejected["message"].as_str().unwrap().contains("pod updates may not change fields other than"),
        "{rejected}"
    );
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
async fn connections_to_containers_need_a_connection_to_their_nodes() {
    let server = server();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    server.post(pods, pod).await.expect(201);
    for what in ["exec?command=sh", "attach", "portforward", "proxy"] {
        let rejected = server.post(&format!("{pods}/p/{what}"), serde_json::Value::Null).await.expect(400);
        assert!(rejected["message"].as_str().unwrap().contains("is not possible for pod p"), "{rejected}");
    }
    server.post(&format!("{pods}/missing/exec"), serde_json::Value::Null).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn ephemeral_containers_can_be_added_but_not_changed() {
    let server = server();
    server.post(PODS, pod("a")).await.expect(201);
    let uri = format!("{PODS}/a/ephemeralcontainers?fieldManager=debugger");
    let add = |container: Value| json!({"metadata": {"labels": {"x": "y"}}, "spec": {"hostname": "h", "ephemeralContainers": [container]}});
    let change = "strategic-merge-patch";
    let debugger = json!({"name": "debug", "image": "busybox:1", "targetContainerName": "main", "stdin": true});
    let added = server.patch(&uri, change, add(debugger)).await.expect(200);
    let container = &added["spec"]["ephemeralContainers"][0];
    assert_eq!((&container["name"], &container["imagePullPolicy"]), (&json!("debug"), &json!("IfNotPresent")));
    assert_eq!((&added["spec"]["hostname"], &added["metadata"]["labels"]), (&Value::Null, &Value::Null));
    assert_eq!(added["metadata"]["generation"], 2);
    let entry = &added["metadata"]["managedFields"].as_array().unwrap().iter().find(|it| it["manager"] == "debugger");
    assert_eq!(entry.expect("an entry")["subresource"], "ephemeralcontainers");
    for (container, why) in [
        (json!({"name": "debug", "image": "busybox:2"}), "existing ephemeral containers \"debug\" may not be changed"),
        (json!({"name": "debug", "$patch": "delete"}), "existing ephemeral containers \"debug\" may not be removed"),
        (json!({"name": "main", "image": "i"}), "spec.ephemeralContainers[0].name: Duplicate value: \"main\""),
        (
            json!({"name": "d", "image": "i", "ports": [{"containerPort": 1}]}),
            "ports: Forbidden: cannot be set for an Ephemeral",
        ),
        (json!({"name": "d", "image": "i", "targetContainerName": "no"}), "targetContainerName: Not found: \"no\""),
    ] {
        let rejected = server.patch(&uri, change, add(container)).await.expect(422);
        assert!(rejected["message"].as_str().unwrap().contains(why), "{rejected}");
    }
    let read = server.get(&format!("{PODS}/a/ephemeralcontainers")).await.expect(200);
    assert_eq!(read["kind"], "Pod");
    let mut new = pod("b");
    new["spec"]["ephemeralContainers"] = json!([{"name": "debug", "image": "busybox"}]);
    let rejected = server.post(PODS, new).await.expect(422);
    assert!(rejected["message"].as_str().unwrap().contains("cannot be set on create"), "{rejected}");
}

#[tokio::test(start_paused = true)]
async fn a_resize_changes_only_container_resources() {
    let server = server();
    let resources = |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"memory": "2Gi"}});
    let pod = json!({"metadata": {"name": "p", "labels": {"a": "1"}}, "spec": {
        "containers": [{"name": "main", "image": "i", "resources": resources("1")}, {"name": "other", "image": "i"}],
        "initContainers": [{"name": "setup", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}});
    server.post(PODS, pod).await.expect(201);
    let uri = format!("{PODS}/p/resize?fieldManager=resizer");
    let patch = |container: &str, resources: Value| {
        json!({"metadata": {"labels": {"b": "2"}}, "spec": {"hostname": "h",
            "containers": [{"name": container, "image": "changed", "resources": resources}]}})
    };
    let change = "strategic-merge-patch";
    let resized = server.patch(&uri, change, patch("main", json!({"requests": {"cpu": "1500m"}}))).await.expect(200);
    assert_eq!(resized["spec"]["containers"][0]["resources"], resources("1500m"));
    assert_eq!(resized["spec"]["containers"][0]["image"], "i");
    assert_eq!((&resized["spec"]["hostname"], &resized["metadata"]["labels"]), (&Value::Null, &json!({"a": "1"})));
    assert_eq!(resized["metadata"]["generation"], 2);
    let entry = resized["metadata"]["managedFields"].as_array().unwrap().iter().find(|it| it["manager"] == "resizer");
    let entry = entry.expect("an entry");
    assert_eq!(entry["subresource"], "resize");
    let owned = &entry["fieldsV1"]["f:spec"]["f:containers"]["k:{\"name\":\"main\"}"];
    assert_eq!(*owned, json!({"f:resources": {"f:requests": {"f:cpu": {}}}}));
    // An update of the pod itself is rejected.
    let direct = patch("main", json!({"requests": {"cpu": "2"}}));
    server.patch(&format!("{PODS}/p"), change, direct).await.expect(422);

    let whole = server.get(&format!("{PODS}/p/resize")).await.expect(200);
    let edited = |edit: &dyn Fn(&mut Value)| {
        let mut pod = whole.clone();
        edit(&mut pod["spec"]);
        pod
    };
    for (pod, expected) in [
        (
            edited(&|spec| spec["containers"][0]["resources"]["requests"] = json!({"memory": "1Gi"})),
            "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
        ),
        (
            edited(&|spec| spec["containers"][0]["resources"]["limits"]["ephemeral-storage"] = "1Gi".into()),
            "spec.containers[0].resources.limits: Forbidden: only cpu and memory resources are mutable",
        ),
        (
            edited(&|spec| spec["initContainers"][0]["resources"]["requests"]["cpu"] = "2".into()),
            "spec.initContainers[0].resources: Forbidden: only cpu and memory resources for sidecar containers are mutable",
        ),
        (
            edited(&|spec| spec["containers"].as_array_mut().unwrap().truncate(1)),
            "spec.containers: Forbidden: containers may not be added or removed on resize",
        ),
        (
            edited(&|spec| spec["containers"].as_array_mut().unwrap().swap(0, 1)),
            "spec.containers[0]: Forbidden: containers may not be renamed or reordered on resize",
        ),
        (
            edited(&|spec| spec["containers"][0]["resources"]["requests"]["memory"] = "3Gi".into()),
            "must be less than or equal to memory limit of 2Gi",
        ),
    ] {
        let rejected = server.put(&format!("{PODS}/p/resize"), pod).await.expect(422);
        assert!(rejected["message"].as_str().unwrap().contains(expected), "{rejected:#}");
    }
    let small = json!({"metadata": {"name": "q"}, "spec": {"containers": [{"name": "main", "image": "i"}]}});
    server.post(PODS, small).await.expect(201);
    let grown = patch("main", json!({"requests": {"cpu": "1"}}));
    let rejected = server.patch(&format!("{PODS}/q/resize"), change, grown).await.expect(422);
    assert!(rejected["message"].as_str().unwrap().contains("Pod QOS Class may not change"), "{rejected:#}");
}

#[tokio::test(start_paused = true)]
async fn a_resize_must_satisfy_quotas_and_limit_ranges() {
    let server = server();
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "3"}}});
    server.post("/api/v1/namespaces/default/resourcequotas", quota).await.expect(201);
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", "min": {"cpu": "500m"}}]}});
    server.post("/api/v1/namespaces/default/limitranges", range).await.expect(201);
    let container = json!({"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}});
    server.post(PODS, json!({"metadata": {"name": "p"}, "spec": {"containers": [container]}})).await.expect(201);
    let resize = async |cpu: &str| {
        let requests = json!({"requests": {"cpu": cpu}});
        let patch = json!({"spec": {"containers": [{"name": "main", "resources": requests}]}});
        server.patch(&format!("{PODS}/p/resize"), "strategic-merge-patch", patch).await
    };
    let used = async || {
        let quota = server.get("/api/v1/namespaces/default/resourcequotas/q").await.expect(200);
        quota["status"]["used"]["requests.cpu"].clone()
    };
    resize("2").await.expect(200);
    assert_eq!(used().await, "2");
    let rejected = resize("4").await.expect(403);
    assert!(rejected["message"].as_str().unwrap().contains("exceeded quota: q"), "{rejected}");
    let rejected = resize("100m").await.expect(403);
    assert!(rejected["message"].as_str().unwrap().contains("minimum cpu usage per Container"), "{rejected}");
    resize("500m").await.expect(200);
    assert_eq!(used().await, "500m");
}

#[tokio::test(start_paused = true)]
async fn deadlines_can_only_be_shortened_and_grace_periods_not_changed() {
    let server = server();
    let patch = async |name: &str, spec: Value| {
        server.patch(&format!("{PODS}/{name}"), "merge-patch", json!({"spec": spec})).await
    };
    let mut wanted = pod("a");
    wanted["spec"]["terminationGracePeriodSeconds"] = json!(-5);
    wanted["spec"]["nodeName"] = json!("n");
    server.post(PODS, wanted).await.expect(201);
    server.post(PODS, pod("b")).await.expect(201);
    let rejected = async |name: &str, field: &str, value: Value, why: &str| {
        let rejected = patch(name, json!({field: value})).await.expect(422);
        assert!(rejected["message"].as_str().unwrap().contains(why), "{rejected}");
    };
    let deadline = "activeDeadlineSeconds";
    patch("a", json!({deadline: 100})).await.expect(200);
    patch("a", json!({deadline: 50})).await.expect(200);
    rejected("a", deadline, json!(51), "Invalid value: 51: must be less than or equal to previous value").await;
    rejected("a", deadline, json!(-1), "must be between 0 and 2147483647, inclusive").await;
    rejected("a", deadline, Value::Null, "must not update from a positive integer to nil value").await;
    let period = "terminationGracePeriodSeconds";
    rejected("a", period, json!(2), "pod updates may not change fields other than").await;
    rejected("b", period, json!(1), "pod updates may not change fields other than").await;
    rejected("b", period, json!(3600), "pod updates may not change fields other than").await;
    patch("a", json!({period: 1})).await.expect(200);
    // A negative grace period means one second.
    let mut wanted = pod("c");
    wanted["spec"]["terminationGracePeriodSeconds"] = json!(-5);
    wanted["spec"]["nodeName"] = json!("n");
    server.post(PODS, wanted).await.expect(201);
    let going = server.delete(&format!("{PODS}/c"), Value::Null).await.expect(200);
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_mirror_pod_cannot_reference_api_objects() {
    let server = server();
    let mirror = |name: &str, spec: Value| {
        let mut mirror = pod(name);
        mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        mirror["spec"]["nodeName"] = json!("n");
        for (field, value) in spec.as_object().unwrap() {
            mirror["spec"][field] = value.clone();
        }
        mirror
    };
    let container = |field: &str, value: Value| json!({"containers": [{"name": "main", "image": "i", field: value}]});
    let volume = |volume: Value| {
        let mut volume = volume;
        volume["name"] = json!("v");
        json!({"volumes": [volume]})
    };
    let secret = json!({"name": "s"});
    for (spec, why) in [
        (json!({"serviceAccountName": "default"}), "reference service accounts"),
        (json!({"serviceAccount": "default"}), "reference service accounts"),
        (json!({"imagePullSecrets": [secret]}), "reference secrets"),
        (
            container("env", json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}])),
            "reference secrets",
        ),
        (container("envFrom", json!([{"secretRef": secret}])), "reference secrets"),
        (volume(json!({"secret": {"secretName": "s"}})), "reference secrets"),
        (volume(json!({"csi": {"driver": "d.example.com", "nodePublishSecretRef": secret}})), "reference secrets"),
        (volume(json!({"projected": {"sources": [{"secret": secret}]}})), "reference secrets"),
        (
            volume(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}})),
            "use ServiceAccountToken volume projections",
        ),
    ] {
        let rejected = server.post(PODS, mirror("m", spec.clone())).await.expect(403);
        let message = format!("pods \"m\" is forbidden: a mirror pod may not {why}");
        assert_eq!(rejected["message"], message, "{spec}");
    }
    let rejected = server.post(PODS, mirror("m", json!({"nodeName": ""}))).await.expect(422);
    let why = "must set spec.nodeName if mirror pod annotation is set";
    assert!(rejected["message"].as_str().unwrap().contains(why), "{rejected}");
    let made = server.post(PODS, mirror("m", volume(json!({"hostPath": {"path": "/etc"}})))).await.expect(201);
    assert!(made["spec"]["serviceAccountName"].is_null(), "{made}");
    // The annotation cannot be added or removed later.
    server.post(PODS, pod("plain")).await.expect(201);
    for (name, value, why) in [("plain", json!("x"), "may not add"), ("m", Value::Null, "may not remove or update")] {
        let patch = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": value}}});
        let rejected = server.patch(&format!("{PODS}/{name}"), "merge-patch", patch).await.expect(422);
        assert!(rejected["message"].as_str().unwrap().contains(&format!("{why} mirror pod annotation")), "{rejected}");
    }
}
