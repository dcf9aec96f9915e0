//! Forecasts on Workloads: which Workloads have them, what they say, and how often they are
//! written.

use std::time::Duration;

use berth_api::berth::forecast::{FORECAST_ANNOTATION, FORECAST_START_ANNOTATION, Forecast};
use berth_api::kueue::v1beta2::Workload;
use berth_apiserver::UserInfo;
use berth_embedded::written_forecasts;
use berth_embedded::{Embedded, Options};
use berth_runtime::Clock;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::visibility::create;

/// A cluster with a queue of one CPU for two namespaces, which writes the forecasts of two places.
async fn cluster() -> (Embedded, Clock, Client) {
    let clock = Clock::scaled("2026-01-05T09:00:00Z".parse().expect("a timestamp"), 1.0);
    let pools = json!({"nodePools": [{"name": "cpu", "machineType": "n2-standard-16", "initialNodes": 1, "minNodes": 1, "maxNodes": 1}]});
    let forecasts = Some(written_forecasts::Options { places: 2, every: Duration::from_secs(30) });
    let options = Options { forecasts, ..Options::in_memory(clock.clone(), 1, Some(pools), None) };
    let embedded = Embedded::start(options).await.expect("a cluster");
    let client = embedded.admin_client();
    let kueue = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec});
    create(&client, kueue("ResourceFlavor", "default", json!({}))).await;
    let quota = json!([{"name": "default", "resources": [{"name": "cpu", "nominalQuota": "1"}]}]);
    let groups = json!([{"coveredResources": ["cpu"], "flavors": quota}]);
    create(&client, kueue("ClusterQueue", "q", json!({"namespaceSelector": {}, "resourceGroups": groups}))).await;
    for namespace in ["blue", "green"] {
        create(&client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})).await;
        let mut queue = kueue("LocalQueue", "main", json!({"clusterQueue": "q"}));
        queue["metadata"]["namespace"] = json!(namespace);
        create(&client, queue).await;
    }
    (embedded, clock, client)
}

/// A job of one CPU for an hour.
fn job(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": {"kueue.x-k8s.io/queue-name": "main"}},
        "spec": {"template": {"metadata": {"annotations": {"berth.dev/run-duration": "1h"}},
            "spec": {"restartPolicy": "Never", "containers": [
                {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}}}})
}

/// The Workload of a job.
async fn of(client: &Client, namespace: &str, job: &str) -> Workload {
    let all = Api::<Workload>::namespaced(client.clone(), namespace).list(&ListParams::default()).await;
    let mut all = all.expect("a list").items;
    all.retain(|it| it.owner_references().iter().any(|owner| owner.name == job));
    all.pop().unwrap_or_else(|| panic!("{job} has no Workload"))
}

fn forecast(workload: &Workload) -> Option<Forecast> {
    let text = workload.annotations().get(FORECAST_ANNOTATION)?;
    Some(serde_json::from_str(text).expect("a forecast"))
}

/// Waits until the annotations of Workloads are those of the places, by job.
async fn until(client: &Client, clock: &Clock, wanted: [(&str, &str, Option<usize>); 4]) {
    for _ in 0..200 {
        let mut places = Vec::new();
        for (namespace, job, _) in wanted {
            places.push((namespace, job, forecast(&of(client, namespace, job).await).map(|it| it.place)));
        }
        if places == wanted {
            return;
        }
        clock.sleep(Duration::from_secs(2)).await;
    }
    panic!("the forecasts never were {wanted:?}");
}

#[tokio::test(start_paused = true)]
async fn the_first_places_of_a_queue_have_their_forecast_until_they_get_quota() {
    let (embedded, clock, client) = cluster().await;
    for (namespace, name) in [("blue", "a"), ("green", "b"), ("blue", "c"), ("blue", "d")] {
        create(&client, job(namespace, name)).await;
        clock.sleep(Duration::from_secs(5)).await;
    }
    let first = [("blue", "a", None), ("green", "b", Some(1)), ("blue", "c", Some(2)), ("blue", "d", None)];
    until(&client, &clock, first).await;

    // Green's job waits for one of blue's, which its annotation does not name.
    let (b, c) = (of(&client, "green", "b").await, of(&client, "blue", "c").await);
    let known = forecast(&b).expect("a forecast");
    assert_eq!((known.waits_for.len(), known.waits_for_others), (0, 1), "{known:?}");
    let minutes = clock.now().duration_until(known.start.median.expect("a start")).as_secs() / 60;
    assert!((50..=60).contains(&minutes), "a has run for some minutes of its hour: {minutes} left");
    assert_eq!(b.annotations()[FORECAST_START_ANNOTATION], known.start_text());

    // The annotations belong to a field manager of their own, and fill a column.
    let whole = Client::new(embedded.server().in_process(UserInfo::master("reader")), "default");
    let managers = of(&whole, "green", "b").await.metadata.managed_fields.unwrap_or_default();
    let owner = managers.iter().find(|it| it.manager.as_deref() == Some(written_forecasts::FIELD_MANAGER));
    assert_eq!(owner.and_then(|it| it.operation.as_deref()), Some("Apply"), "{managers:?}");
    let request = http::Request::get("/apis/kueue.x-k8s.io/v1beta2/namespaces/green/workloads")
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .expect("a request");
    let table: Value = client.request(request).await.expect("a table");
    let columns = table["columnDefinitions"].as_array().expect("columns");
    let column = columns.iter().position(|it| it["name"] == "Forecast").expect("the column");
    assert_eq!(table["rows"][0]["cells"][column], json!(known.start_text()));

    // Nothing is written while nothing changes.
    clock.sleep(Duration::from_secs(600)).await;
    for before in [b, c] {
        let after = Api::<Workload>::namespaced(client.clone(), &before.namespace().unwrap_or_default());
        let after = after.get(&before.name_any()).await.expect("the Workload");
        assert_eq!(after.resource_version(), before.resource_version(), "{}", before.name_any());
    }

    // After an hour the next job starts.
    clock.sleep(Duration::from_secs(2_800)).await;
    let second = [("blue", "a", None), ("green", "b", None), ("blue", "c", Some(1)), ("blue", "d", Some(2))];
    until(&client, &clock, second).await;
    assert!(!of(&client, "green", "b").await.annotations().contains_key(FORECAST_START_ANNOTATION));
}

#[tokio::test(start_paused = true)]
async fn a_rejected_write_does_not_keep_other_workloads_without_forecasts() {
    let (_embedded, clock, client) = cluster().await;
    let policy = |kind: &str, spec: Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "green"}, "spec": spec});
    let rule = json!({"apiGroups": ["kueue.x-k8s.io"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["workloads"]});
    let expression = format!(
        "request.namespace != 'green' || !has(object.metadata.annotations) || \
         !('{FORECAST_ANNOTATION}' in object.metadata.annotations)"
    );
    let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": expression}]});
    create(&client, policy("ValidatingAdmissionPolicy", spec)).await;
    let spec = json!({"policyName": "green", "validationActions": ["Deny"]});
    create(&client, policy("ValidatingAdmissionPolicyBinding", spec)).await;
    for (namespace, name) in [("blue", "a"), ("green", "b"), ("blue", "c"), ("blue", "d")] {
        create(&client, job(namespace, name)).await;
        clock.sleep(Duration::from_secs(5)).await;
    }
    let wanted = [("blue", "a", None), ("green", "b", None), ("blue", "c", Some(2)), ("blue", "d", None)];
    until(&client, &clock, wanted).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_on_hold_has_the_reason_for_its_unknown_start() {
    let (_embedded, clock, client) = cluster().await;
    create(&client, job("blue", "a")).await;
    clock.sleep(Duration::from_secs(5)).await;
    create(&client, job("blue", "b")).await;
    for _ in 0..100 {
        let b = of(&client, "blue", "b").await;
        let api = Api::<Workload>::namespaced(client.clone(), "blue");
        if b.spec.active != Some(false) {
            let patch = kube::api::Patch::Merge(json!({"spec": {"active": false}}));
            api.patch(&b.name_any(), &Default::default(), &patch).await.expect("patched");
        }
        if let Some(known) = forecast(&b).filter(|it| it.unknown.is_some()) {
            assert_eq!(known.unknown.as_deref(), Some("it is not active (spec.active is false)"));
            assert_eq!(b.annotations()[FORECAST_START_ANNOTATION], "unknown");
            return;
        }
        clock.sleep(Duration::from_secs(2)).await;
    }
    panic!("the reason was never written");
}
