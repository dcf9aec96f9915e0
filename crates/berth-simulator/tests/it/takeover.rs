//! A replica that takes over while its watches lag: what it has not been shown is still there.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use berth_api::kueue::v1beta2::Workload;
use berth_apiserver::{Body, InProcess, UserInfo};
use berth_runtime::{Clock, Manager};
use berth_simulator::api::{ApiOptions, Apiserver};
use berth_simulator::embedded::Storage;
use http::{Request, Response};
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// A connection whose watches show what becomes of one workload, and nothing else: as if all other changes were still on
/// their way.
#[derive(Clone)]
struct Lagging(InProcess);

/// The workload that is shown.
const SHOWN: &str = "modest";

impl tower::Service<Request<kube::client::Body>> for Lagging {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        tower::Service::<Request<kube::client::Body>>::poll_ready(&mut self.0, context)
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        if !request.uri().query().is_some_and(|query| query.contains("watch=true")) {
            return self.0.call(request);
        }
        if !request.uri().path().ends_with("/workloads") {
            return Box::pin(async { Ok(Response::new(Body::stream(futures::stream::pending()))) });
        }
        let (mut parts, body) = request.into_parts();
        let uri = format!("{}&fieldSelector=metadata.name%3D{SHOWN}", parts.uri);
        parts.uri = uri.parse().expect("a selector added to what was a URI");
        self.0.call(Request::from_parts(parts, body))
    }
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

/// Runs controllers until dropped.
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

#[tokio::test(start_paused = true)]
async fn quota_that_was_given_unseen_is_not_given_again() {
    let clock = Clock::scaled("2026-01-05T09:00:00Z".parse().expect("a timestamp"), 1.0);
    let api = Apiserver::start(ApiOptions {
        clock: clock.clone(),
        seed: 1,
        storage: Storage::Memory,
        controllers: berth_controllers::Config::default(),
        token_key: None,
        audit: None,
        front_proxy: None,
        controllers_elsewhere: true,
        bare: false,
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
    workload(&client, SHOWN, "main", 0).await;

    // The second replica fills its caches, and then sees no more than this workload: it could admit it.
    let (elect, elected) = oneshot::channel::<()>();
    let user = UserInfo::master(berth_controllers::rights::USER);
    let lagging = Client::new(Lagging(api.server().in_process(user).lean()), "default");
    let second = controllers(lagging, &clock, async move { elected.await.expect("elected") });
    clock.sleep(Duration::from_secs(5)).await;

    // The first gives all quota to somebody who came meanwhile.
    workload(&client, "urgent", "main", 100).await;
    let first = controllers(api.client(berth_controllers::rights::USER), &clock, std::future::ready(()));
    clock.sleep(Duration::from_secs(5)).await;
    assert_eq!(admitted(&client).await, ["urgent"]);
    first.abort();
    assert!(first.await.expect_err("stopped").is_cancelled());

    workload(&client, "late", "other", 0).await;
    elect.send(()).expect("it stands by");
    clock.sleep(Duration::from_secs(30)).await;
    // It acts, on what it has read, and gives nothing away twice.
    assert_eq!(admitted(&client).await, ["late", "urgent"]);
    second.abort();
}
