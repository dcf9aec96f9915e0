//! Immutable fields of built-in kinds, and rules that apply to pods but not to templates.

use berth_store::Write;
use serde_json::{Value, json};

use crate::harness::{Server, server};

/// Sends a merge patch and compares the causes of its rejection. Without expected causes, the patch
/// must be accepted.
async fn change(server: &Server, path: &str, patch: Value, expected: &[&str]) {
    let answer = server.patch(path, "merge-patch", patch.clone()).await;
    let causes = answer.body["details"]["causes"].as_array().cloned().unwrap_or_default();
    let text = |cause: &Value, field: &str| cause[field].as_str().unwrap_or_default().to_owned();
    let reported: Vec<String> =
        causes.iter().map(|cause| format!("{}: {}", text(cause, "field"), text(cause, "message"))).collect();
    assert_eq!(reported, expected, "{patch}");
    assert_eq!(answer.code, if expected.is_empty() { 200 } else { 422 }, "{}", answer.body);
}

fn pod_spec() -> Value {
    json!({"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]})
}

#[tokio::test(start_paused = true)]
async fn most_fields_of_a_stateful_sets_specification_are_immutable() {
    let server = server();
    let labels = json!({"app": "a"});
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let spec = json!({"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
        "spec": pod_spec()}, "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}]});
    let sets = "/apis/apps/v1/namespaces/default/statefulsets";
    let made = server.post(sets, json!({"metadata": {"name": "s"}, "spec": spec})).await.expect(201);
    let path = format!("{sets}/s");
    server.put(&path, made).await.expect(200);
    let free = json!({"spec": {"replicas": 2, "ordinals": {"start": 1}, "minReadySeconds": 1, "revisionHistoryLimit": 2,
        "template": {"spec": {"terminationGracePeriodSeconds": 1}}, "updateStrategy": {"rollingUpdate": {"partition": 1}},
        "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}}});
    change(&server, &path, free, &[]).await;
    let forbidden = "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', \
                     'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                     'minReadySeconds' are forbidden";
    for fixed in [
        json!({"serviceName": "other"}),
        json!({"podManagementPolicy": "Parallel"}),
        json!({"selector": {"matchLabels": {"app": "a", "b": null}, "matchExpressions": [
            {"key": "app", "operator": "Exists"}]}}),
        json!({"volumeClaimTemplates": null}),
    ] {
        change(&server, &path, json!({"spec": fixed}), &[forbidden]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn finalizers_added_by_an_update_must_be_qualified() {
    let server = server();
    let maps = "/api/v1/namespaces/default/configmaps";
    let made = json!({"metadata": {"name": "m", "finalizers": ["example.com/f"]}});
    server.post(maps, made).await.expect(201);
    let path = format!("{maps}/m");
    let finalizers = |list: &[&str]| json!({"metadata": {"finalizers": list}});
    let rejected = "metadata.finalizers[1]: Invalid value: \"mine\": name is neither a standard finalizer name nor is it \
                   fully qualified";
    change(&server, &path, finalizers(&["example.com/f", "mine"]), &[rejected]).await;
    // Stored finalizers from before this check are accepted.
    let store = server.api.store_handle();
    let key = "/core/configmaps/default/m";
    let record = store.get(key).expect("stored");
    let mut older = record.value().as_ref().clone();
    older["metadata"]["finalizers"] = json!(["old", "older"]);
    let write = Write::Update { key: key.to_owned(), expected: record.revision, value: older };
    store.commit(write).await.expect("stored");
    change(&server, &path, json!({"data": {"a": "1"}}), &[]).await;
    change(&server, &path, finalizers(&["older", "mine"]), &[rejected]).await;
    change(&server, &path, finalizers(&["older", "orphan"]), &[]).await;
}

#[tokio::test(start_paused = true)]
async fn the_specification_of_a_claim_is_immutable_until_it_is_bound() {
    let server = server();
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let class = json!({"metadata": {"name": "fast"}, "provisioner": "x.io/disks", "allowVolumeExpansion": true});
    server.post("/apis/storage.k8s.io/v1/storageclasses", class).await.expect(201);
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}});
    server.post(claims, json!({"metadata": {"name": "c"}, "spec": claim})).await.expect(201);
    let path = format!("{claims}/c");
    let size = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    let forbidden = "spec: Forbidden: spec is immutable after creation except resources.requests and \
                     volumeAttributesClassName for bound claims";
    change(&server, &path, size("3Gi"), &[forbidden]).await;
    change(&server, &path, json!({"spec": {"storageClassName": "fast", "volumeName": "v"}}), &[]).await;
    for fixed in
        [json!({"storageClassName": "slow"}), json!({"volumeName": "w"}), json!({"accessModes": ["ReadOnlyMany"]})]
    {
        change(&server, &path, json!({"spec": fixed}), &[forbidden]).await;
    }
    let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "2Gi"}}});
    server.patch(&format!("{path}/status"), "merge-patch", bound).await.expect(200);
    change(&server, &path, size("4Gi"), &[]).await;
    change(&server, &path, size("3Gi"), &[]).await;
    let less = "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity";
    change(&server, &path, size("1Gi"), &[less]).await;
    change(&server, &path, size("2048Mi"), &[less]).await;
    change(&server, &path, json!({"spec": {"volumeAttributesClassName": "gold"}}), &[]).await;
    let mode = "volumeMode: Invalid value: \"Block\": field is immutable";
    change(&server, &path, json!({"spec": {"volumeMode": "Block"}}), &[forbidden, mode]).await;
}

#[tokio::test(start_paused = true)]
async fn sources_of_volumes_and_parameters_of_classes_are_immutable() {
    let server = server();
    let volume = json!({"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"}, "csi": {"driver": "d.example.com", "volumeHandle": "h"}}});
    server.post("/api/v1/persistentvolumes", volume).await.expect(201);
    let path = "/api/v1/persistentvolumes/v";
    let secret = json!({"spec": {"csi": {"controllerExpandSecretRef": {"name": "s", "namespace": "n"}}}});
    change(&server, path, secret, &[]).await;
    change(&server, path, json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}), &[]).await;
    let source = "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation";
    change(&server, path, json!({"spec": {"csi": {"volumeHandle": "i"}}}), &[source]).await;

    let storage = "/apis/storage.k8s.io/v1";
    let class = json!({"metadata": {"name": "c"}, "provisioner": "example.com/disks", "parameters": {"a": "b"}});
    server.post(&format!("{storage}/storageclasses"), class).await.expect(201);
    let path = format!("{storage}/storageclasses/c");
    change(&server, &path, json!({"allowVolumeExpansion": true}), &[]).await;
    for (field, value) in [
        ("provisioner", json!("example.com/other")),
        ("parameters", json!({"a": "c"})),
        ("reclaimPolicy", json!("Retain")),
        ("volumeBindingMode", json!("WaitForFirstConsumer")),
    ] {
        let immutable = format!("{field}: Invalid value: {value}: field is immutable");
        change(&server, &path, json!({ field: value }), &[immutable.as_str()]).await;
    }

    let networking = "/apis/networking.k8s.io/v1/ingressclasses";
    let class = json!({"metadata": {"name": "c"}, "spec": {"controller": "example.com/x"}});
    server.post(networking, class).await.expect(201);
    let immutable = "spec.controller: Invalid value: \"example.com/y\": field is immutable";
    change(&server, &format!("{networking}/c"), json!({"spec": {"controller": "example.com/y"}}), &[immutable]).await;
}

#[tokio::test(start_paused = true)]
async fn some_defaults_and_rules_apply_to_pods_but_not_to_templates() {
    let server = server();
    let mut spec = pod_spec();
    spec["hostNetwork"] = true.into();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = server.post(pods, json!({"metadata": {"name": "p"}, "spec": spec})).await.expect(201);
    assert_eq!(pod["spec"]["containers"][0]["ports"][0]["hostPort"], 80);
    let labels = json!({"app": "a"});
    let deployment = |spec: &Value| {
        let template = json!({"metadata": {"labels": labels}, "spec": spec});
        json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": labels}, "template": template}})
    };
    let deployments = "/apis/apps/v1/namespaces/default/deployments?dryRun=All";
    let made = server.post(deployments, deployment(&spec)).await.expect(201);
    let port = &made["spec"]["template"]["spec"]["containers"][0]["ports"][0];
    assert_eq!(port, &json!({"containerPort": 80, "protocol": "TCP"}));
    spec["containers"][0]["ports"][0]["hostPort"] = 81.into();
    server.post(deployments, deployment(&spec)).await.expect(422);

    let blank = json!({"containers": [{"name": "c", "image": " "}], "volumes": [{"name": "v", "image": {}}]});
    server.post(deployments, deployment(&blank)).await.expect(201);
    let rejected = server.post(pods, json!({"metadata": {"name": "q"}, "spec": blank})).await.expect(422);
    let message = rejected["message"].as_str().unwrap();
    assert!(message.contains("spec.containers[0].image: Invalid value: \" \": must not have leading"), "{message}");
    assert!(message.contains("spec.volumes[0].image.reference: Required value"), "{message}");
    let padded = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "i "}]);
    server.patch(&format!("{pods}/p"), "json-patch", padded).await.expect(422);
}

#[tokio::test(start_paused = true)]
async fn images_with_the_latest_tag_have_the_pull_policy_always() {
    let server = server();
    let hash = "a".repeat(64);
    for (image, policy) in [
        ("shop".to_owned(), "Always"),
        ("shop:latest".to_owned(), "Always"),
        ("shop:1".to_owned(), "IfNotPresent"),
        (format!("shop@sha256:{hash}"), "IfNotPresent"),
        (format!("shop:1@sha256:{hash}"), "IfNotPresent"),
        (format!("example.com:5000/shop:latest@sha256:{hash}"), "Always"),
        ("shop:latest@sha256:short".to_owned(), "IfNotPresent"),
    ] {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": image}]}});
        let made = server.post("/api/v1/namespaces/default/pods?dryRun=All", pod).await.expect(201);
        assert_eq!(made["spec"]["containers"][0]["imagePullPolicy"], policy, "{image}");
    }
}

#[tokio::test(start_paused = true)]
async fn long_lists_are_validated_and_the_number_of_errors_is_limited() {
    const MANY: usize = 20_000;
    let server = server();
    let name = |index: usize| format!("v{index}");
    let volumes: Vec<Value> = (0..MANY).map(|index| json!({"name": name(index)})).collect();
    let mounts: Vec<Value> =
        (0..MANY).map(|index| json!({"name": name(index), "mountPath": format!("/{index}")})).collect();
    let container = json!({"name": "c", "image": "i", "volumeMounts": mounts});
    let mut pod = json!({"metadata": {"name": "p"}, "spec": {"volumes": volumes, "containers": [container]}});
    let pods = "/api/v1/namespaces/default/pods?dryRun=All";
    server.post(pods, pod.clone()).await.expect(201);
    pod["spec"]["volumes"].as_array_mut().unwrap().pop();
    let rejected = server.post(pods, pod.clone()).await.expect(422);
    assert_eq!(rejected["details"]["causes"].as_array().unwrap().len(), 1);
    pod["spec"]["volumes"] = json!([]);
    let rejected = server.post(pods, pod).await.expect(422);
    assert_eq!(rejected["details"]["causes"].as_array().unwrap().len(), 1000, "the maximum number of causes");
}
