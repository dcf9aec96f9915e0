//! The time of each page as workloads grow.
//!
//! An embedded cluster has ten teams, each with a queue. One workload in a hundred is admitted, and
//! the others wait. Printed is a row per address, reader and number of workloads: the size of the
//! page, and the time of the first view, of a repeated one (median of nine), and of one after a
//! workload changed (median of nine). `cargo bench -p berth-dashboard --bench pages -- 1000 10000`
//! measures other numbers of workloads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use berth_apiserver::UserInfo;
use berth_dashboard::{Dashboard, Hosts, Prices, Session, live};
use berth_embedded::{Embedded, Options};
use berth_runtime::Clock;
use futures::StreamExt;
use http::{Method, Request};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::Instant;

/// The allocator of `berth`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SIZES: [usize; 3] = [1_000, 10_000, 100_000];
const TEAMS: usize = 10;
/// One workload in so many is admitted.
const PER_ADMITTED: usize = 100;
const REPEATS: usize = 9;
/// Number of objects that are created at the same time.
const AT_ONCE: usize = 64;
/// Longest time without progress until the cluster counts as settled.
const SETTLED: Duration = Duration::from_secs(5);

fn api(client: &Client, object: &Value) -> Api<DynamicObject> {
    let text = |field: &str| object[field].as_str().expect("a text").to_owned();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let (group, version) = version.split_once('/').unwrap_or(("", &version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

async fn create(client: &Client, object: Value) {
    let api = api(client, &object);
    let object = serde_json::from_value(object).expect("an object");
    api.create(&PostParams::default(), &object).await.expect("the object is created");
}

fn team(number: usize) -> String {
    format!("team-{}", number % TEAMS)
}

fn workload(number: usize) -> Value {
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {"name": format!("job-train-{number}"), "namespace": team(number),
            "labels": {"project": format!("project-{}", number % 37), "run": format!("uid-{number}")},
            "annotations": {"berth.dev/submitted-by": format!("user-{}", number % 211)}},
        "spec": {"queueName": "main", "priority": 0, "podSets": [{"name": "main", "count": 1 + number % 4,
            "template": {"spec": {"restartPolicy": "Never", "containers": [
                {"name": "c", "image": "train", "resources": {"requests": {"cpu": "1"}}}]}}}]}})
}

async fn configure(client: &Client, workloads: usize) {
    let flavor =
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "default"}});
    create(client, flavor).await;
    // Workloads have two and a half CPUs on average.
    let quota = (workloads * 5 / 2).div_ceil(TEAMS * PER_ADMITTED);
    for number in 0..TEAMS {
        let name = team(number);
        create(client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
        create(
            client,
            json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": name},
            "spec": {"cohortName": "all", "namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"],
                "flavors": [{"name": "default", "resources": [{"name": "cpu", "nominalQuota": quota}]}]}]}}),
        )
        .await;
        create(
            client,
            json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
            "metadata": {"name": "main", "namespace": name}, "spec": {"clusterQueue": name}}),
        )
        .await;
    }
    let rbac = "rbac.authorization.k8s.io";
    for role in ["kueue-workload-viewer-role", "berth-explanation-viewer-role", "view"] {
        create(
            client,
            json!({"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding",
            "metadata": {"name": role, "namespace": team(0)},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": "ann"}]}),
        )
        .await;
    }
}

/// The number of jobs, and of those that were decided.
async fn progress(client: &Client) -> (u64, u64) {
    let path = "/apis/explain.berth.dev/v1alpha1/currentjobs?limit=1&group=reason";
    let request = Request::get(path).body(Vec::new()).expect("a request");
    let jobs: Value = client.request(request).await.unwrap_or_default();
    let groups = jobs["groups"].as_array().cloned().unwrap_or_default();
    let undecided = groups.iter().find(|group| group["value"] == "").and_then(|group| group["jobs"].as_u64());
    let total = jobs["total"].as_u64().unwrap_or(0);
    (total, total - undecided.unwrap_or(0))
}

async fn fill(client: &Client, workloads: usize) {
    let creations = futures::stream::iter(0..workloads).map(|number| create(client, workload(number)));
    creations.buffer_unordered(AT_ONCE).collect::<()>().await;
    let (mut last, mut at) = ((0, 0), Instant::now());
    loop {
        let now = progress(client).await;
        if now == (workloads as u64, workloads as u64) || at.elapsed() > SETTLED {
            return;
        }
        if now != last {
            (last, at) = (now, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn pages(client: Client, clock: Clock) -> Dashboard {
    Dashboard {
        client,
        hosts: Hosts::default(),
        clock,
        session: Session::default(),
        prices: |_, _, _| Ok(Prices::default()),
    }
}

async fn view(pages: &Dashboard, path: &str) -> (Duration, usize) {
    let request = Request::builder().method(Method::GET).uri(path).header("Host", "localhost");
    let begin = Instant::now();
    let page = pages.answer(&request.body(String::new()).expect("a request")).await;
    let took = begin.elapsed();
    assert!(page.status().is_success(), "{path}: {}", page.body());
    (took, page.body().len())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Changes a workload that waits, and lets the controllers see it.
async fn change(client: &Client, number: usize) {
    static CHANGES: AtomicUsize = AtomicUsize::new(0);
    let (object, change) = (workload(number), CHANGES.fetch_add(1, Ordering::Relaxed));
    let patch = json!({"metadata": {"labels": {"changed": change.to_string()}}});
    let name = object["metadata"]["name"].as_str().expect("a name");
    api(client, &object).patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.expect("it is changed");
    tokio::time::sleep(Duration::from_millis(20)).await;
}

fn print(workloads: usize, address: &str, bytes: usize, times: [Duration; 3]) {
    let [first, again, changed] = times.map(|it| format!("{:.1}", it.as_secs_f64() * 1000.0));
    println!("{workloads:>9}  {address:<58} {bytes:>8} {first:>9} {again:>9} {changed:>9}");
}

async fn measure(client: &Client, pages: &Dashboard, workloads: usize, reader: &str, address: &str) {
    let (first, bytes) = view(pages, address).await;
    let (mut again, mut changed) = (Vec::new(), Vec::new());
    for repeat in 0..REPEATS {
        again.push(view(pages, address).await.0);
        change(client, workloads / 2 + repeat).await;
        changed.push(view(pages, address).await.0);
    }
    print(workloads, &format!("{reader}{address}"), bytes, [first, median(again), median(changed)]);
}

/// The time from a change to the update of an open page.
async fn stream(client: &Client, pages: &Dashboard, workloads: usize, address: &str) {
    let updates = live::updates(pages.clone(), address, None).expect("a page");
    let mut updates = std::pin::pin!(updates);
    let begin = Instant::now();
    let bytes = updates.next().await.expect("an update").expect("a text").len();
    let (first, mut changed) = (begin.elapsed(), Vec::new());
    for repeat in 0..3 {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let begin = Instant::now();
        let ((), update) = tokio::join!(change(client, workloads / 3 + repeat), updates.next());
        update.expect("an update").expect("a text");
        changed.push(begin.elapsed());
    }
    let changed = median(changed);
    print(workloads, &format!("update of {address}"), bytes, [first, changed, changed]);
}

async fn run(workloads: usize) {
    let clock = Clock::system();
    let options = Options::in_memory(clock.clone(), 1, Some(json!({"nodePools": []})), None);
    let embedded = Embedded::start(options).await.expect("the cluster starts");
    let admin = embedded.admin_client();
    configure(&admin, workloads).await;
    let begin = Instant::now();
    fill(&admin, workloads).await;
    eprintln!("{workloads} workloads created and decided in {:.1} s", begin.elapsed().as_secs_f64());
    let whole = pages(admin.clone(), clock.clone());
    let ann = pages(Client::new(embedded.server().in_process(UserInfo::new("ann", &[])), "default"), clock);
    let job = format!("/workloads/team-{}/job-train-{}", (workloads / 2) % TEAMS, workloads / 2);
    for address in [
        "/",
        "/jobs",
        "/jobs?q=train-77",
        "/jobs?q=user-7+project",
        "/jobs?state=Waiting&sort=-priority",
        "/jobs?sort=name&from=500",
        "/jobs?group=user",
        "/jobs?group=label%3Aproject",
        "/jobs?labels=project%3Dproject-7",
        "/queues/team-3",
        job.as_str(),
        "/usage",
        "/preemptions",
    ] {
        measure(&admin, &whole, workloads, "", address).await;
    }
    measure(&admin, &ann, workloads, "ann: ", "/jobs?ns=team-0").await;
    measure(&admin, &ann, workloads, "ann: ", "/jobs?ns=team-0&q=train-77").await;
    stream(&admin, &whole, workloads, "/jobs").await;
    embedded.stop().await;
}

fn main() {
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let sizes = if given.is_empty() { SIZES.to_vec() } else { given };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    println!(
        "{:>9}  {:<58} {:>8} {:>9} {:>9} {:>9}",
        "WORKLOADS", "ADDRESS", "BYTES", "FIRST ms", "AGAIN ms", "CHANGE ms"
    );
    for workloads in sizes {
        runtime.block_on(run(workloads));
    }
}
