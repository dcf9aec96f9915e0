//! HorizontalPodAutoscalers in both versions.

use serde_json::{Value, json};

use crate::harness::{Server, server};

const V1: &str = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
const V2: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";

fn new() -> Value {
    json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"}, "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": 5,
        "metrics": [
            {"type": "Pods", "pods": {"metric": {"name": "depth"}, "target": {"type": "AverageValue", "averageValue": "5"}}},
            {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}}})
}

fn old() -> Value {
    json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"}, "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": 5}})
}

async fn get(server: &Server, collection: &str) -> Value {
    server.get(&format!("{collection}/a")).await.expect(200)
}

#[tokio::test(start_paused = true)]
async fn each_version_shows_objects_written_in_the_other_version() {
    let server = server();
    let created = server.post(V2, new()).await.expect(201);
    assert_eq!(created["spec"]["minReplicas"], 1);
    assert_eq!(created["spec"]["behavior"]["scaleUp"]["policies"][0]["value"], 4);
    let shown = get(&server, V1).await;
    assert_eq!(shown["apiVersion"], "autoscaling/v1");
    assert_eq!(shown["spec"]["targetCPUUtilizationPercentage"], 60);
    assert_eq!(shown["spec"].get("metrics"), None);
    assert!(shown["metadata"]["annotations"][METRICS].as_str().unwrap().contains("depth"));
    let list = server.get(V1).await.expect(200);
    assert_eq!(list["apiVersion"], "autoscaling/v1");
    assert_eq!(list["items"][0]["spec"], shown["spec"]);

    // A v1 client that reads the object and writes it back keeps the fields that only v2 has.
    let mut changed = shown;
    changed["spec"]["targetCPUUtilizationPercentage"] = 70.into();
    let answer = server.put(&format!("{V1}/a"), changed).await.expect(200);
    assert_eq!(
        (&answer["apiVersion"], &answer["spec"]["targetCPUUtilizationPercentage"]),
        (&json!("autoscaling/v1"), &json!(70))
    );
    let stored = get(&server, V2).await;
    assert_eq!(stored["metadata"].get("annotations"), None);
    assert_eq!(stored["spec"]["metrics"][0], created["spec"]["metrics"][0]);
    assert_eq!(stored["spec"]["metrics"][1]["resource"]["target"]["averageUtilization"], 70);
    assert_eq!(stored["spec"]["behavior"], created["spec"]["behavior"]);
}

#[tokio::test(start_paused = true)]
async fn v1_writes_of_specification_and_status_keep_the_annotations_of_the_other() {
    let server = server();
    server.post(V2, new()).await.expect(201);
    let status = json!({"status": {"currentReplicas": 2, "desiredReplicas": 2,
        "conditions": [{"type": "AbleToScale", "status": "True"}]}});
    server.patch(&format!("{V2}/a/status"), "merge-patch", status).await.expect(200);
    assert!(get(&server, V1).await["metadata"]["annotations"][CONDITIONS].as_str().unwrap().contains("AbleToScale"));
    // A client that does not know the annotations replaces the whole object: the status is kept.
    let replaced = server.put(&format!("{V1}/a"), old()).await.expect(200);
    assert!(replaced["metadata"]["annotations"][CONDITIONS].is_string());
    assert_eq!(replaced["spec"]["targetCPUUtilizationPercentage"], 80);
    let stored = get(&server, V2).await;
    assert_eq!(stored["status"]["conditions"][0]["type"], "AbleToScale");
    assert_eq!(stored["spec"]["metrics"].as_array().unwrap().len(), 1);
    // It replaces the status: the specification is kept.
    server.put(&format!("{V2}/a"), new()).await.expect(200);
    let mut whole = old();
    whole["status"] = json!({"currentReplicas": 3, "desiredReplicas": 3, "currentCPUUtilizationPercentage": 12});
    let answer = server.put(&format!("{V1}/a/status"), whole).await.expect(200);
    assert_eq!(answer["status"]["currentCPUUtilizationPercentage"], 12);
    let stored = get(&server, V2).await;
    assert_eq!(stored["spec"]["metrics"][0]["type"], "Pods");
    assert_eq!(stored["status"]["currentMetrics"][0]["resource"]["current"]["averageUtilization"], 12);
    assert_eq!(stored["status"].get("conditions"), None);
}

#[tokio::test(start_paused = true)]
async fn field_managers_are_recorded_with_the_version_that_they_wrote() {
    let server = server();
    let applied = server.patch(&format!("{V2}/a?fieldManager=new"), "apply", new()).await.expect(201);
    assert_eq!(applied["metadata"]["managedFields"][0]["apiVersion"], "autoscaling/v2");
    let mut other = old();
    other["spec"] = json!({"maxReplicas": 9});
    let rejected = server.patch(&format!("{V1}/a?fieldManager=old"), "apply", other.clone()).await.expect(409);
    assert_eq!(rejected["details"]["causes"][0]["field"], ".spec.maxReplicas");
    let forced = server.patch(&format!("{V1}/a?fieldManager=old&force=true"), "apply", other).await.expect(200);
    assert_eq!(forced["spec"]["maxReplicas"], 9);
    let entries: Vec<(&str, &str)> = forced["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["manager"].as_str().unwrap(), entry["apiVersion"].as_str().unwrap()))
        .collect();
    assert_eq!(entries, [("new", "autoscaling/v2"), ("old", "autoscaling/v1")]);
    // A manager that changes a metric in v1 takes it over from its owner in v2.
    let patch = json!({"spec": {"targetCPUUtilizationPercentage": 75}});
    let patched = server.patch(&format!("{V1}/a?fieldManager=third"), "merge-patch", patch).await.expect(200);
    let owned = |manager: &str, field: &str| {
        let entries = patched["metadata"]["managedFields"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["manager"] == manager).unwrap();
        entry["fieldsV1"]["f:spec"].get(field).is_some()
    };
    assert!(owned("third", "f:targetCPUUtilizationPercentage"));
    assert!(!owned("new", "f:metrics"), "{patched:#}");
}

#[tokio::test(start_paused = true)]
async fn both_versions_are_discovered_validated_watched_and_printed() {
    let server = server();
    let group = server.get("/apis/autoscaling").await.expect(200);
    assert_eq!(group["preferredVersion"]["version"], "v2");
    let versions: Vec<&str> =
        group["versions"].as_array().unwrap().iter().map(|it| it["version"].as_str().unwrap()).collect();
    assert_eq!(versions, ["v2", "v1"]);
    let resources = server.get("/apis/autoscaling/v1").await.expect(200);
    assert_eq!(resources["resources"][0]["name"], "horizontalpodautoscalers");
    let document = server.get("/openapi/v3/apis/autoscaling/v1").await.expect(200);
    assert!(document["components"]["schemas"]["io.k8s.api.autoscaling.v1.HorizontalPodAutoscaler"].is_object());

    let mut wrong = old();
    wrong["spec"]["minReplicas"] = 7.into();
    wrong["metadata"]["annotations"] = json!({METRICS: "[{\"type\":\"Pods\",\"pods\":{\"metricName\":\"\"}}]"});
    let rejected = server.post(V1, wrong).await.expect(422);
    let fields: Vec<&str> =
        rejected["details"]["causes"].as_array().unwrap().iter().map(|it| it["field"].as_str().unwrap()).collect();
    let expected = ["spec.maxReplicas", "spec.metrics[0].pods.metric.name", "spec.metrics[0].pods.target.averageValue"];
    assert_eq!(fields, expected);

    let mut watch = server.watch(&format!("{V1}?watch=true")).await;
    server.post(V2, new()).await.expect(201);
    let (kind, seen) = watch.next().await.unwrap();
    assert_eq!((kind.as_str(), &seen["spec"]["targetCPUUtilizationPercentage"]), ("ADDED", &json!(60)));
    let (old, new) = (server.table(V1).await.expect(200), server.table(V2).await.expect(200));
    assert_eq!(old["rows"][0]["cells"], new["rows"][0]["cells"]);
    assert!(old["rows"][0]["cells"][2].as_str().unwrap().contains("/60%"), "{old:#}");
    server.delete(&format!("{V1}/a"), Value::Null).await.expect(200);
    assert_eq!(watch.brief().await, "DELETED a");
}
