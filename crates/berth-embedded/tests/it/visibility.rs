//! Pending workloads, explanations and holders of quota, as `kubectl get --raw` requests them.

use std::time::Duration;

use berth_apiserver::UserInfo;
use kube::Client;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::cluster;

pub async fn create(client: &Client, object: Value) {
    let (group, version) = object["apiVersion"].as_str().unwrap().split_once('/').unwrap_or(("", "v1"));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, object["kind"].as_str().unwrap()));
    let api: kube::Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => kube::Api::namespaced_with(client.clone(), namespace, &resource),
        None => kube::Api::all_with(client.clone(), &resource),
    };
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.expect("created");
}

pub fn job(name: &str, queue: &str, class: &str) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "priorityClassName": class, "containers": [
            {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}]}}}})
}

async fn ask(client: &Client, path: &str) -> Result<Value, kube::Error> {
    client.request(http::Request::get(path).body(Vec::new()).unwrap()).await
}

#[tokio::test(start_paused = true)]
async fn waiting_workloads_are_listed_in_queue_order() {
    let (embedded, clock) = cluster().await;
    let client = embedded.admin_client();
    let kueue = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec});
    create(&client, kueue("ResourceFlavor", "default", json!({}))).await;
    let quota = json!([{"coveredResources": ["cpu"], "flavors": [
        {"name": "default", "resources": [{"name": "cpu", "nominalQuota": 0}]}]}]);
    create(&client, kueue("ClusterQueue", "cq", json!({"namespaceSelector": {}, "resourceGroups": quota}))).await;
    for name in ["a", "b"] {
        let mut queue = kueue("LocalQueue", name, json!({"clusterQueue": "cq"}));
        queue["metadata"]["namespace"] = json!("default");
        create(&client, queue).await;
    }
    create(
        &client,
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "high"}, "value": 100}),
    )
    .await;
    for (name, queue, class) in [("one", "a", ""), ("two", "b", ""), ("three", "b", "high")] {
        create(&client, job(name, queue, class)).await;
        clock.sleep(Duration::from_secs(2)).await;
    }
    const BASE: &str = "/apis/visibility.kueue.x-k8s.io/v1beta2";
    let seen = |summary: &Value| -> Vec<(String, i64, i64, i64)> {
        let items = summary["items"].as_array().expect("items").iter();
        items
            .map(|item| {
                let number = |field: &str| item[field].as_i64().expect("a number");
                let owner = item["metadata"]["ownerReferences"][0]["name"].as_str().expect("an owner").to_owned();
                (owner, number("priority"), number("positionInClusterQueue"), number("positionInLocalQueue"))
            })
            .collect()
    };
    let all = ask(&client, &format!("{BASE}/clusterqueues/cq/pendingworkloads")).await.expect("a response");
    assert_eq!(all["kind"], "PendingWorkloadsSummary");
    let expected = [("three", 100, 0, 0), ("one", 0, 1, 0), ("two", 0, 2, 1)];
    assert_eq!(seen(&all), expected.map(|(name, a, b, c)| (name.to_owned(), a, b, c)));
    let page =
        ask(&client, &format!("{BASE}/clusterqueues/cq/pendingworkloads?offset=1&limit=1")).await.expect("a page");
    assert_eq!(seen(&page), [("one".to_owned(), 0, 1, 0)]);
    let of_b = ask(&client, &format!("{BASE}/namespaces/default/localqueues/b/pendingworkloads")).await.expect("b's");
    assert_eq!(seen(&of_b).len(), 2);
    let code = |answer: Result<Value, kube::Error>| match answer.expect_err("refused") {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    };
    assert_eq!(code(ask(&client, &format!("{BASE}/clusterqueues/none/pendingworkloads")).await), 404);
    assert_eq!(code(ask(&client, &format!("{BASE}/clusterqueues/cq/pendingworkloads?limit=x")).await), 400);
    // Access is authorized as for any other resource.
    let stranger = Client::new(embedded.server().in_process(UserInfo::new("eve", &[])), "default");
    assert_eq!(code(ask(&stranger, &format!("{BASE}/clusterqueues/cq/pendingworkloads")).await), 403);

    // The explanation of a workload, by the name of its job and of the workload.
    let explain =
        |name: &str| format!("/apis/explain.berth.dev/v1alpha1/namespaces/default/workloads/{name}/explanation");
    let two = ask(&client, &explain("two")).await.expect("an explanation");
    assert_eq!((&two["job"]["name"], &two["clusterQueue"]), (&json!("two"), &json!("cq")), "{two:#}");
    assert_eq!(two["standing"]["positionInClusterQueue"], 2);
    assert_eq!(two["standing"]["ahead"].as_array().map(Vec::len), Some(2));
    let message = two["outlook"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("insufficient quota for cpu in flavor default"), "{two:#}");
    // The attempted flavors, as fields in addition to the text.
    let attempt = &two["outlook"]["podSets"][0]["flavors"][0];
    let expected = json!({"resource": "cpu", "asked": "1", "maximum": "0", "shortAt": "cq"});
    assert_eq!((&attempt["flavor"], &attempt["findings"][0]["quota"]), (&json!("default"), &expected), "{two:#}");
    assert_eq!(attempt["reason"], "ExceedsMaxQuota");
    assert!(two["text"].as_str().unwrap_or_default().contains(message), "{two:#}");
    let name = two["metadata"]["name"].as_str().unwrap_or_default();
    assert_eq!(ask(&client, &explain(name)).await.expect("the same"), two);
    assert_eq!(code(ask(&client, &explain("none")).await), 404);
    assert_eq!(code(ask(&stranger, &explain("two")).await), 403);

    // The holders of the cluster queue's quota.
    let holders = "/apis/explain.berth.dev/v1alpha1/clusterqueues/cq/holders";
    assert_eq!(ask(&client, holders).await.expect("a response")["total"], 0);
    let flavors = json!([{"coveredResources": ["cpu"], "flavors": [
        {"name": "default", "resources": [{"name": "cpu", "nominalQuota": 2}]}]}]);
    let path = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/cq";
    let patch = json!({"spec": {"resourceGroups": flavors}}).to_string().into_bytes();
    let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
    let _: Value = client.request(request.body(patch).unwrap()).await.expect("patched");
    clock.sleep(Duration::from_secs(5)).await;
    let held = ask(&client, &format!("{holders}?limit=1")).await.expect("a response");
    assert_eq!((&held["total"], held["items"].as_array().map(Vec::len)), (&json!(2), Some(1)), "{held:#}");
    // Both reserved quota in the same second, so they are ordered by name.
    let first = &held["items"][0];
    assert_eq!(first["metadata"]["ownerReferences"][0]["name"], "one");
    assert_eq!(first["holds"], json!([{"flavor": "default", "resource": "cpu", "amount": "1"}]));
    assert_eq!((&first["admitted"], &first["priority"]), (&json!(true), &json!(0)));
    assert_eq!(code(ask(&client, "/apis/explain.berth.dev/v1alpha1/clusterqueues/none/holders").await), 404);
    assert_eq!(code(ask(&stranger, holders).await), 403);
    // What forecasts elsewhere need beside the objects.
    let memory = "/apis/explain.berth.dev/v1alpha1/forecasts?memory=true";
    let known = ask(&client, memory).await.expect("a response");
    assert_eq!((&known["kind"], known["memory"].is_object()), (&json!("Forecasts"), true), "{known:#}");
    assert_eq!(code(ask(&stranger, memory).await), 403);
    // The group lists its subresources only, so that its names do not shadow Kueue's kinds.
    let listed = ask(&client, "/apis/explain.berth.dev/v1alpha1").await.expect("its resources");
    let names: Vec<_> = listed["resources"].as_array().into_iter().flatten().map(|it| it["name"].clone()).collect();
    let served = [
        "workloads/explanation",
        "clusterqueues/holders",
        "workloads/history",
        "forecasts",
        "whatifs",
        "currentjobs",
        "gpus",
        "stays",
        "usage",
    ];
    assert_eq!(names, served);
    // Every in-process writer has a field manager.
    let full = embedded.admin_client();
    for path in ["/apis/kueue.x-k8s.io/v1beta2/clusterqueues/cq", "/api/v1/namespaces/kueue-system"] {
        let object = ask(&full, path).await.expect("it");
        let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        let managers: Vec<_> = entries.iter().filter_map(|entry| entry["manager"].as_str()).collect();
        assert!(!managers.is_empty() && !managers.contains(&""), "{path}: {managers:?}");
    }
    embedded.stop().await;
}
