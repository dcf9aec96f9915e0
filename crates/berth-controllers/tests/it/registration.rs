//! Guarantees for a controller that is registered after Berth's own controllers.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use berth_api::kueue::v1beta2::{ClusterQueue, LocalQueue, Workload};
use berth_controllers::Config;
use berth_controllers::visibility::Page;
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
