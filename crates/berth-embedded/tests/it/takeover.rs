//! Replicas that gain and lose the lead. A replica that takes over while its watches lag respects
//! objects that it has not received yet. A replica that lost the lead keeps its caches and drops
//! its unwritten decisions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use berth_api::kueue::v1beta2::Workload;
use berth_apiserver::{Body, InProcess, UserInfo};
use berth_controllers::Installed;
use berth_controllers::visibility::Page;
use berth_embedded::Storage;
use berth_embedded::api::{ApiOptions, Apiserver};
use berth_runtime::{Clock, Manager};
use http::{Method, Request, Response};
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tower::Service;

/// The workload whose events a lagging connection delivers.
const SHOWN: &str = "modest";

/// A client on a connection whose watches deliver events of one workload only, as if all other
/// events were delayed.
fn lagging(connection: InProcess) -> Client {
    let service = tower::service_fn(move |mut request: Request<kube::client::Body>| {
        let mut connection = connection.clone();
        async move {
            let uri = request.uri();
            if uri.query().is_some_and(|query| query.contains("watch=true")) {
                if !uri.path().ends_with("/workloads") {
                    return Ok(Response::new(Body::stream(futures::stream::pending())));
                }
                let shown = format!("{uri}&fieldSelector=metadata.name%3D{SHOWN}");
                *request.uri_mut() = shown.parse().expect("a selector added to what was a URI");
            }
            connection.call(request).await
        }
    });
    Client::new(service, "default")
}

async fn create(client: &Client, kind: &str, namespace: Option<&str>, name: &str, spec: Value) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", kind));
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let object =
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec});
    api.create(&PostParams::default(), &serde_json::from_value(object).expect("an object")).await.expect("created");
}

async fn workload(client: &Client, name: &str, queue: &str, priority: i64) {
    let pods = json!({"spec": {"restartPolicy": "Never", "containers": [
        {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}]}});
    let spec = json!({"queueName": queue, "priority": priority,
        "podSets": [{"name": "main", "count": 1, "template": pods}]});
    create(client, "Workload", Some("default"), name, spec).await;
}

async fn admitted(client: &Client) -> Vec<String> {
    let all = Api::<Workload>::all(client.clone()).list(&Default::default()).await.expect("listed");
    let has = all.items.into_iter().filter(|it| it.status.as_ref().is_some_and(|status| status.admission.is_some()));
    has.filter_map(|it| it.metadata.name).collect()
}

/// Runs controllers until the task is aborted.
fn controllers(
    client: Client,
    clock: &Clock,
    elected: impl Future<Output = ()> + Send + 'static,
) -> tokio::task::JoinHandle<()> {
    let mut manager = Manager::new(client, clock.clone());
    berth_controllers::install(&mut manager, berth_controllers::Config::default());
    tokio::spawn(async move {
        manager.run_when(elected, std::future::pending()).await.expect("runs");
    })
}

/// An API server with two queues of one CPU each.
async fn two_queues(clock: &Clock) -> (Apiserver, Client) {
    let api = Apiserver::start(ApiOptions {
        operators: Default::default(),
        clock: clock.clone(),
        seed: 1,
        storage: Storage::Memory,
        controllers: berth_controllers::Config::default(),
        pod_security: Default::default(),
        token_key: None,
        audit: None,
        front_proxy: None,
        controllers_elsewhere: true,
        bare: false,
        field_owners: true,
    })
    .await
    .expect("the server starts");
    let client = api.client("test");
    create(&client, "ResourceFlavor", None, "default", json!({})).await;
    let quota = json!([{"coveredResources": ["cpu"], "flavors": [
        {"name": "default", "resources": [{"name": "cpu", "nominalQuota": 1}]}]}]);
    for queue in ["main", "other"] {
        let spec = json!({"namespaceSelector": {}, "resourceGroups": quota});
        create(&client, "ClusterQueue", None, queue, spec).await;
        create(&client, "LocalQueue", Some("default"), queue, json!({"clusterQueue": queue})).await;
    }
    (api, client)
}

#[tokio::test(start_paused = true)]
async fn quota_reserved_by_an_earlier_leader_is_not_reserved_again() {
    let clock = Clock::scaled("2026-01-05T09:00:00Z".parse().expect("a timestamp"), 1.0);
    let (api, client) = two_queues(&clock).await;
    workload(&client, SHOWN, "main", 0).await;

    // The second replica fills its caches. After that it receives events of this workload only,
    // and could admit it.
    let (elect, elected) = oneshot::channel::<()>();
    let user = UserInfo::master(berth_controllers::rights::USER);
    let lagging = lagging(api.server().in_process(user).lean());
    let second = controllers(lagging, &clock, async move { elected.await.expect("elected") });
    clock.sleep(Duration::from_secs(5)).await;

    // The first replica admits a workload that was created in the meantime and uses all quota.
    workload(&client, "urgent", "main", 100).await;
    let first = controllers(api.client(berth_controllers::rights::USER), &clock, std::future::ready(()));
    clock.sleep(Duration::from_secs(5)).await;
    assert_eq!(admitted(&client).await, ["urgent"]);
    first.abort();
    assert!(first.await.expect_err("stopped").is_cancelled());

    workload(&client, "late", "other", 0).await;
    elect.send(()).expect("the second replica stands by");
    clock.sleep(Duration::from_secs(30)).await;
    // The second replica reads the workloads again before it acts, and reserves no quota twice.
    assert_eq!(admitted(&client).await, ["late", "urgent"]);
    second.abort();
}

/// A client on a connection that counts lists of Jobs, and gives no response to writes while `mute`
/// is set.
fn counting(connection: InProcess, lists: Arc<AtomicUsize>, mute: Arc<AtomicBool>) -> Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (query, path) = (request.uri().query().unwrap_or_default(), request.uri().path());
        if request.method() == Method::GET && !query.contains("watch=true") && path.ends_with("/jobs") {
            lists.fetch_add(1, Ordering::SeqCst);
        }
        let is_mute = request.method() != Method::GET && mute.load(Ordering::SeqCst);
        let mut connection = connection.clone();
        async move {
            if is_mute {
                std::future::pending::<()>().await;
            }
            connection.call(request).await
        }
    });
    Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_loses_the_lead_stands_by_and_may_lead_again() {
    let clock = Clock::scaled("2026-01-05T09:00:00Z".parse().expect("a timestamp"), 1.0);
    let (api, client) = two_queues(&clock).await;
    let user = UserInfo::master(berth_controllers::rights::USER);
    let (lists, mute) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let connection = api.server().in_process(user).lean();
    let mut manager = Manager::new(counting(connection, lists.clone(), mute.clone()), clock.clone());
    let install = |manager: &mut Manager| berth_controllers::install(manager, berth_controllers::Config::default());
    let first_term = install(&mut manager);
    manager.fill().await.expect("filled");

    // The replica decides, but its write gets no response: the decision is not in the API.
    mute.store(true, Ordering::SeqCst);
    workload(&client, "unwritten", "main", 0).await;
    manager.act(clock.sleep(Duration::from_secs(5))).await.expect("acts");
    assert!(admitted(&client).await.is_empty());
    let waiting = |term: &Installed| {
        let page = Page { offset: 0, limit: 10 };
        let waiting = term.visibility.of_cluster_queue("main", "v1beta2", page).expect("the queue");
        waiting["items"].as_array().map_or(0, Vec::len)
    };
    assert_eq!(waiting(&first_term), 0, "the replica has decided about the workload");
    mute.store(false, Ordering::SeqCst);

    // Another replica leads, and admits a workload of higher priority.
    let other = controllers(api.client("other"), &clock, std::future::ready(()));
    workload(&client, "urgent", "main", 100).await;
    let mut second_term = None;
    manager.renew(|manager| second_term = Some(install(manager))).await;
    let second_term = second_term.expect("installed");
    tokio::select! {
        () = clock.sleep(Duration::from_secs(30)) => {}
        died = manager.follow() => panic!("{died}"),
    }
    assert_eq!(admitted(&client).await.len(), 1, "a replica that stands by admits no workload");
    assert_eq!(waiting(&second_term), 1, "a replica that stands by follows the changes");
    let state = second_term.dump.queues();
    let names: Vec<&str> = state.iter().map(|queue| queue.cluster_queue.as_str()).collect();
    assert_eq!(names, ["main", "other"]);
    assert_eq!((state[0].status.reserving, state[0].status.pending), (1, 1));
    assert_eq!(state[0].waiting, ["default/unwritten"]);
    other.abort();
    assert!(other.await.expect_err("stopped").is_cancelled());

    // The first replica leads again. Its caches were kept up to date.
    let listed = lists.load(Ordering::SeqCst);
    workload(&client, "late", "other", 0).await;
    manager.act(clock.sleep(Duration::from_secs(30))).await.expect("acts");
    let admitted = admitted(&client).await;
    assert_eq!(admitted.len(), 2, "{admitted:?}");
    assert!(admitted.contains(&"late".to_owned()));
    assert_eq!(lists.load(Ordering::SeqCst), listed, "jobs are not listed again");
    assert_eq!(second_term.stores.workloads.len(), 3);
}

/// A client on a connection on which JobSets cannot be listed, as if the webhook that converts them
/// were down.
fn unconverted(mut connection: InProcess) -> Client {
    let service = tower::service_fn(move |mut request: Request<kube::client::Body>| {
        if request.uri().path().ends_with("/jobsets") {
            *request.uri_mut() = "/apis/jobset.x-k8s.io/v1alpha2/jobsets?continue=broken".parse().expect("a URI");
        }
        connection.call(request)
    });
    Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_cannot_be_listed_does_not_block_other_kinds() {
    let clock = Clock::scaled("2026-01-05T09:00:00Z".parse().expect("a timestamp"), 1.0);
    let (api, client) = two_queues(&clock).await;
    let user = UserInfo::master(berth_controllers::rights::USER);
    let broken = unconverted(api.server().in_process(user).lean());
    workload(&client, "waits", "main", 0).await;
    let running = controllers(broken, &clock, std::future::ready(()));
    clock.sleep(Duration::from_secs(30)).await;
    assert_eq!(admitted(&client).await, ["waits"]);
    running.abort();
}
