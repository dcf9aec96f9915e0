//! The pages over an embedded cluster with its controllers.

use std::time::Duration;

use berth_apiserver::UserInfo;
use berth_embedded::{Embedded, Options};
use berth_runtime::Clock;
use http::{Method, StatusCode};
use kube::Client;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::{ask, dashboard, get};

pub async fn create(client: &Client, object: Value) {
    let (group, version) = object["apiVersion"].as_str().unwrap().split_once('/').unwrap_or(("", "v1"));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, object["kind"].as_str().unwrap()));
    let api: kube::Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => kube::Api::namespaced_with(client.clone(), namespace, &resource),
        None => kube::Api::all_with(client.clone(), &resource),
    };
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.expect("created");
}

fn queue(name: &str, cpus: u32) -> Value {
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": name}, "spec": {
        "cohortName": "research", "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
            {"name": "default", "resources": [{"name": "cpu", "nominalQuota": cpus}]}]}]}})
}

pub fn job(name: &str, cpus: u32) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "labels": {"kueue.x-k8s.io/queue-name": "main"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [
            {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": cpus}}}]}}}})
}

/// Two queues of a cohort. `one` runs on three of four CPUs; `two` and `three` wait.
pub async fn cluster() -> (Embedded, Clock) {
    let clock = Clock::scaled("2026-01-05T09:00:00Z".parse().expect("a timestamp"), 1.0);
    let options = Options::in_memory(clock.clone(), 1, Some(json!({"nodePools": []})), None);
    let embedded = Embedded::start(options).await.expect("the cluster starts");
    let client = embedded.admin_client();
    let flavor =
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "default"}});
    create(&client, flavor).await;
    create(&client, queue("blue", 2)).await;
    create(&client, queue("green", 2)).await;
    create(
        &client,
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
            "metadata": {"name": "main", "namespace": "default"}, "spec": {"clusterQueue": "blue"}}),
    )
    .await;
    for (name, cpus) in [("one", 3), ("two", 4), ("three", 2)] {
        create(&client, job(name, cpus)).await;
        clock.sleep(Duration::from_secs(2)).await;
    }
    (embedded, clock)
}

/// Creates the namespace `team` with a LocalQueue of `blue`.
pub async fn create_team(client: &Client) {
    create(client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})).await;
    let queue = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
        "metadata": {"name": "main", "namespace": "team"}, "spec": {"clusterQueue": "blue"}});
    create(client, queue).await;
}

pub fn without_markup(page: &str) -> String {
    let mut text = String::new();
    for part in page.split('<') {
        text.push_str(part.split_once('>').map_or(part, |(_, text)| text));
        text.push(' ');
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test(start_paused = true)]
async fn the_page_of_a_preempted_workload_shows_the_decision() {
    let (embedded, clock) = cluster().await;
    let client = embedded.admin_client();
    let mut reclaiming = queue("red", 2);
    reclaiming["spec"]["preemption"] = json!({"reclaimWithinCohort": "Any"});
    create(&client, reclaiming).await;
    create(
        &client,
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
            "metadata": {"name": "red", "namespace": "default"}, "spec": {"clusterQueue": "red"}}),
    )
    .await;
    // Red's two CPUs are lent to blue, which then uses all six.
    create(&client, job("lent", 3)).await;
    clock.sleep(Duration::from_secs(2)).await;
    let mut urgent = job("urgent", 2);
    urgent["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = json!("red");
    create(&client, urgent).await;
    clock.sleep(Duration::from_secs(5)).await;
    let page = get(&dashboard(client, clock), "/workloads/default/lent").await;
    let text = without_markup(&page);
    assert!(text.contains("preempted by default/job-urgent-"), "{text}");
    assert!(text.contains("Rule: reclaimWithinCohort of ClusterQueue red is Any."), "{text}");
    assert!(text.contains("Lost: 3 cpu of flavor default, held for"), "{text}");
    assert!(text.contains("red ClusterQueue cpu default 2 0 2"), "{text}");
    assert!(page.contains("Preempted by <a href=\"/workloads/default/job-urgent-"), "{page}");
    embedded.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pages_show_quota_order_and_reasons() {
    let (embedded, clock) = cluster().await;
    let pages = dashboard(embedded.admin_client(), clock);

    let overview = get(&pages, "/").await;
    let shown = without_markup(&overview);
    assert!(shown.contains("2 ClusterQueues in 1 cohort; 2 workloads wait and 1 runs."), "{shown}");
    assert!(shown.contains("research cohort default cpu 3 / 4 1 1 2 1 blue default cpu 3 / 2 1 2 1"), "{shown}");
    assert!(shown.contains("green default cpu 0 / 2 1 0 0"), "{shown}");
    assert!(overview.contains("<a href=\"/queues/blue\">blue</a>"), "{overview}");
    // Two of the three CPUs are blue's own.
    let bar = "<rect class=\"own\" x=\"0.0\" width=\"66.7\" height=\"8\"></rect>\
               <rect class=\"over\" x=\"66.7\" width=\"33.3\" height=\"8\"></rect></svg>";
    assert!(overview.contains(bar), "{overview}");
    assert!(shown.contains("Waiting 2 Running 1 Preempted in the last hour 0"), "{shown}");
    assert!(overview.contains("<a href=\"/jobs?state=Waiting\">"), "{overview}");

    let queue = get(&pages, "/queues/blue").await;
    let shown = without_markup(&queue);
    let (two, three) = (shown.find("Job two").expect("it waits"), shown.find("Job three").expect("it waits"));
    assert!(two < three && shown.contains("WaitingForQuota"), "{shown}");
    assert!(shown.contains("Running 3 cpu of default"), "{shown}");
    assert!(shown.contains("withinClusterQueue Never, reclaimWithinCohort Never, borrowWithinCohort Never"), "{shown}");

    // The page of a workload, requested by the name of its job, has the text of `berth explain`.
    let path = "/apis/explain.berth.dev/v1alpha1/namespaces/default/workloads/three/explanation";
    let request = http::Request::get(path).body(Vec::new()).expect("a request");
    let explained: Value = embedded.admin_client().request(request).await.expect("an explanation");
    let workload = get(&pages, "/workloads/default/three").await;
    let shown = without_markup(&workload);
    assert!(
        shown.contains("It waits at position 2 of its ClusterQueue and position 2 of its LocalQueue, with priority 0."),
        "{shown}"
    );
    assert!(shown.contains("insufficient unused quota for cpu in flavor default, 1 more needed"), "{shown}");
    assert!(shown.contains("research Cohort short here 0 4 3 1 – –"), "{shown}");
    assert!(shown.contains("3 0 protected: withinClusterQueue is Never"), "{shown}");
    assert!(shown.contains("QuotaReserved False WaitingForQuota"), "{shown}");
    let text = explained["text"].as_str().expect("its text").replace('\'', "&#39;").replace('>', "&gt;");
    assert!(workload.contains(&text.replace('<', "&lt;").replace('"', "&quot;")), "{workload}\n{text}");
    let running = explained["outlook"]["shortages"][0]["holders"][0]["workload"]["name"].as_str().expect("a holder");
    assert!(
        workload.contains(&format!("<a href=\"/workloads/default/{running}\">default/{running}</a>")),
        "{workload}"
    );
    assert!(without_markup(&get(&pages, &format!("/workloads/default/{running}")).await).contains("It is admitted."));

    // The YAML of a job is found by the job's name too.
    let yaml = get(&pages, "/workloads/default/three/yaml").await;
    assert!(yaml.contains("kind: Job") && yaml.contains("kind: Workload"), "{yaml}");

    // A workload that is not in a queue has the same reason as in other explanations.
    let doors = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
        "metadata": {"name": "shut", "namespace": "default"}, "spec": {"clusterQueue": "blue", "stopPolicy": "Hold"}});
    create(&embedded.admin_client(), doors).await;
    let mut held = job("held", 1);
    held["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = json!("shut");
    create(&embedded.admin_client(), held).await;
    pages.clock.sleep(Duration::from_secs(2)).await;
    let shown = without_markup(&get(&pages, "/workloads/default/held").await);
    assert!(shown.contains("is not in a queue: its LocalQueue shut is stopped (spec.stopPolicy)"), "{shown}");

    let none = ask(&pages, Method::GET, "/workloads/default/none", "localhost").await;
    assert_eq!(none.status(), StatusCode::NOT_FOUND);
    assert!(none.body().contains("not found"), "{}", none.body());
    embedded.stop().await;
}

#[tokio::test(start_paused = true)]
async fn workloads_of_others_are_counted_and_not_named() {
    let (embedded, clock) = cluster().await;
    let admin = embedded.admin_client();
    create_team(&admin).await;
    let mut own = job("wanted", 2);
    own["metadata"]["namespace"] = json!("team");
    create(&admin, own).await;
    clock.sleep(Duration::from_secs(2)).await;
    let rbac = "rbac.authorization.k8s.io";
    for (namespace, role) in [
        (Some("team"), "kueue-workload-viewer-role"),
        (Some("team"), "berth-explanation-viewer-role"),
        (None, "kueue-clusterqueue-viewer-role"),
        (None, "berth-holders-viewer-role"),
    ] {
        let kind = if namespace.is_some() { "RoleBinding" } else { "ClusterRoleBinding" };
        let mut binding = json!({"apiVersion": format!("{rbac}/v1"), "kind": kind, "metadata": {"name": role},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": "ann"}]});
        if let Some(namespace) = namespace {
            binding["metadata"]["namespace"] = json!(namespace);
        }
        create(&admin, binding).await;
    }
    let ann = Client::new(embedded.server().in_process(UserInfo::new("ann", &[])), "default");
    let (hers, whole) = (dashboard(ann, clock.clone()), dashboard(admin, clock));
    let path = "/workloads/team/wanted";
    let page = get(&whole, path).await;
    assert!(
        page.contains("default/job-one") && page.contains("default/job-two") && !page.contains("not named"),
        "{page}"
    );
    let page = get(&hers, path).await;
    let shown = without_markup(&page);
    assert!(!page.contains("job-one") && !page.contains("job-two") && !page.contains("job-three"), "{page}");
    assert!(shown.contains("Ahead of it: 2 workloads."), "{shown}");
    assert!(shown.contains("1 workload that is not named blue 3 protected: withinClusterQueue is Never"), "{shown}");
    assert!(shown.contains("Some workloads are only counted, because you may not list"), "{shown}");
    let page = get(&hers, "/queues/blue").await;
    assert!(!page.contains("job-one"), "{page}");
    assert!(without_markup(&page).contains("1 workload not named here holds 3 cpu of default."), "{page}");
    embedded.stop().await;
}

#[tokio::test(start_paused = true)]
async fn missing_rights_are_reported_on_the_page() {
    let (embedded, clock) = cluster().await;
    let admin = embedded.admin_client();
    let stranger = Client::new(embedded.server().in_process(UserInfo::new("eve", &[])), "default");
    let pages = dashboard(stranger, clock);
    for path in ["/", "/queues/blue", "/workloads/default/two"] {
        let refused = ask(&pages, Method::GET, path, "localhost").await;
        assert_eq!(refused.status(), StatusCode::FORBIDDEN, "{path}");
        assert!(refused.body().contains("You may not read this: "), "{path}: {}", refused.body());
    }
    // With some of the permissions, a part of the page is shown.
    let rules = json!([{"apiGroups": ["kueue.x-k8s.io"], "resources": ["clusterqueues"], "verbs": ["get", "list"]}]);
    let rbac = "rbac.authorization.k8s.io";
    create(
        &admin,
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": "reader"}, "rules": rules}),
    )
    .await;
    create(
        &admin,
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "reader"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "reader"},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": "eve"}]}),
    )
    .await;
    let overview = get(&pages, "/").await;
    assert!(
        overview.contains("Cohorts are shown without their own quota and without their parents. You may not read this"),
        "{overview}"
    );
    assert!(overview.contains("/queues/blue"), "{overview}");
    let queue = get(&pages, "/queues/blue").await;
    assert!(queue.contains("The waiting workloads are not shown. You may not read this"), "{queue}");
    assert!(queue.contains("The holders of quota are not shown. You may not read this"), "{queue}");
    embedded.stop().await;
}

#[tokio::test(start_paused = true)]
async fn usage_has_the_cost_of_what_was_used() {
    let (embedded, clock) = cluster().await;
    let pages = dashboard(embedded.admin_client(), clock.clone());
    assert!(!get(&pages, "/usage").await.contains("Cost"), "there are no prices");
    clock.sleep(Duration::from_secs(600)).await;
    // Three CPUs for ten minutes, at two per CPU and hour.
    let shown = without_markup(&get(&pages, "/usage?since=1h&by=queue&prices=default%2Fcpu%3D2").await);
    assert!(shown.contains("Cost Cost of lost blue 1 0 0 0 0 0s 0s cpu 0.5 0.0 150 % 1.0"), "{shown}");
    let shown = without_markup(&get(&pages, "/usage?prices=cpu").await);
    assert!(shown.contains("Prices: cpu: expected FLAVOR/RESOURCE=PRICE"), "{shown}");
    embedded.stop().await;
}
