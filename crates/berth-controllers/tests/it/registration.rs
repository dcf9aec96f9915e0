//! Guarantees for a controller that is registered after Berth's own controllers.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use berth_api::kueue::v1beta2::{ClusterQueue, LocalQueue, Workload};
use berth_controllers::configuration::frameworks;
use berth_controllers::visibility::Page;
use berth_controllers::{Config, configuration, controllers};
use berth_runtime::{Action, Clock, Error, Manager, ObjectKey, Reconciler};
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

struct Idle;

impl Reconciler for Idle {
    async fn reconcile(&self, _key: ObjectKey) -> Result<Action, Error> {
        Ok(Action::Wait)
    }
}

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

#[tokio::test]
async fn a_controller_registered_after_the_scheduler_sees_an_engine_that_has_applied_the_change() {
    let service = tower::service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
    let mut manager = Manager::new(Client::new(service, "default"), Clock::system());
    let installed = berth_controllers::install(&mut manager, Config::default());
    let (stores, visibility) = (installed.stores.clone(), installed.visibility);
    let seen: Arc<Mutex<Vec<usize>>> = Arc::default();
    let pending = seen.clone();
    manager
        .controller("probe")
        .watch(&stores.workloads, move |_| {
            let page = Page::parse("").expect("an empty query");
            let summary = visibility.of_cluster_queue("queue", "v1beta2", page).unwrap_or_default();
            pending.lock().expect("no test panics here").push(summary["items"].as_array().map_or(0, Vec::len));
            None::<ObjectKey>
        })
        .run(Idle);
    stores.cluster_queues.observe(object::<ClusterQueue>(json!({
        "metadata": {"name": "queue", "resourceVersion": "1"}, "spec": {"namespaceSelector": {}},
    })));
    stores.local_queues.observe(object::<LocalQueue>(json!({
        "metadata": {"name": "main", "namespace": "team", "resourceVersion": "2"}, "spec": {"clusterQueue": "queue"},
    })));
    stores.workloads.observe(object::<Workload>(json!({
        "metadata": {"name": "first", "namespace": "team", "resourceVersion": "3"},
        "spec": {"queueName": "main", "podSets": []},
    })));
    assert_eq!(*seen.lock().expect("no test panics here"), [1]);
}

/// Names that `--controllers` accepts are the names of the controllers that can be registered.
#[tokio::test]
async fn the_names_of_controllers_are_those_that_are_registered() {
    let service = tower::service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
    let mut manager = Manager::new(Client::new(service, "default"), Clock::system());
    let frameworks: Vec<&str> =
        frameworks::names().into_iter().filter(|name| berth_controllers::jobs::is_integrated(name)).collect();
    let gates =
        json!({"ConcurrentAdmission": true, "FailureRecoveryPolicy": true, "SparkApplicationIntegration": true});
    let file = json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "fairSharing": {},
        "integrations": {"frameworks": frameworks}, "featureGates": gates,
    });
    let config = configuration::read(file, "berth-system").expect("a configuration").config;
    berth_controllers::install(&mut manager, config);
    let mut registered: Vec<String> = manager.controllers().into_iter().map(str::to_owned).collect();
    registered.sort_unstable();
    assert_eq!(registered, controllers::names());
}

#[test]
fn a_selection_of_an_unknown_controller_is_reported() {
    let selection = "*,-scheduler,-schedulers,appwrapper".parse().expect("a selection");
    assert_eq!(controllers::unknown(&selection, &["appwrapper"]), ["schedulers"]);
    assert_eq!(controllers::unknown(&selection, &[]), ["schedulers", "appwrapper"]);
}
