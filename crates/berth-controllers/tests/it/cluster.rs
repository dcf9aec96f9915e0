//! A server with Berth's controllers only, without Job controller and kubelet. Tests do their work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_apiserver::{ApiServer, Config as ServerConfig, RequestInfo, UserInfo};
use berth_controllers::explain::Explain;
use berth_controllers::{Config, rights};
use berth_runtime::{Clock, Manager, Selection};
use berth_store::MemoryStore;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

/// A write of the controllers.
#[derive(Clone, Debug)]
pub struct Write {
    /// Method of the request: POST, PUT, PATCH or DELETE.
    pub method: String,
    /// Path of the request, without the query.
    pub path: String,
    /// Body of the request; null if it has none.
    pub body: Value,
    /// Status code of the response.
    pub code: u16,
}

/// True if the role of the controllers allows a request.
fn is_allowed(calls: &BTreeMap<(String, String), BTreeSet<String>>, asked: &RequestInfo) -> bool {
    let resource = match asked.subresource.as_str() {
        "" => asked.resource.clone(),
        subresource => format!("{}/{subresource}", asked.resource),
    };
    calls.get(&(asked.api_group.clone(), resource)).is_some_and(|verbs| verbs.contains(&asked.verb))
}

pub struct Cluster {
    pub client: Client,
    pub clock: Clock,
    /// `422 PATCH /path` for each request of the controllers that the API server rejected as
    /// invalid.
    pub refused: Arc<Mutex<Vec<String>>>,
    /// `get /path` for each request of the controllers that their role does not allow.
    pub beyond_role: Arc<Mutex<Vec<String>>>,
    /// The writes of the controllers, oldest first.
    pub writes: Arc<Mutex<Vec<Write>>>,
    /// Explanations of the controllers.
    pub explain: Explain,
}

impl Cluster {
    /// Starts a server and the controllers.
    pub async fn start(config: Config) -> Cluster {
        let (cluster, manager) = Self::without_controllers(config).await;
        tokio::spawn(manager.run(std::future::pending()));
        cluster
    }

    /// Starts a server; the controllers start when the returned manager runs.
    pub async fn without_controllers(config: Config) -> (Cluster, Manager) {
        Self::with_some_controllers(config, Selection::default()).await
    }

    /// Starts a server; the selected controllers start when the returned manager runs.
    pub async fn with_some_controllers(config: Config, selection: Selection) -> (Cluster, Manager) {
        let clock = Clock::scaled("2026-01-01T00:00:00Z".parse().unwrap(), 1.0);
        let now = clock.clone();
        let server = ApiServer::new(ServerConfig::new(Arc::new(MemoryStore::new()), Arc::new(move || now.now())));
        server.ready().await.unwrap();
        let client = Client::new(server.in_process(UserInfo::master("test")), "default");
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        for definition in berth_api::crds() {
            let definition: CustomResourceDefinition = serde_json::from_value(definition.clone()).unwrap();
            definitions.create(&PostParams::default(), &definition).await.unwrap();
        }
        let refused: Arc<Mutex<Vec<String>>> = Arc::default();
        let writes: Arc<Mutex<Vec<Write>>> = Arc::default();
        let (seen, service) = (refused.clone(), server.in_process(UserInfo::master("controllers")));
        let (written, beyond_role) = (writes.clone(), Arc::<Mutex<Vec<String>>>::default());
        let (beyond, calls) = (beyond_role.clone(), Arc::new(rights::calls()));
        let watched = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (seen, written, service) = (seen.clone(), written.clone(), service.clone());
            let (beyond, calls) = (beyond.clone(), calls.clone());
            async move {
                let (parts, body) = request.into_parts();
                let asked = RequestInfo::parse(&parts.method, parts.uri.path(), parts.uri.query().unwrap_or_default());
                if asked.is_resource_request && !is_allowed(&calls, &asked) {
                    beyond.lock().unwrap().push(format!("{} {}", asked.verb, asked.path));
                }
                let (method, path) = (parts.method.to_string(), parts.uri.path().to_owned());
                let body = body.collect_bytes().await.expect("a body in memory");
                let sent = serde_json::from_slice(&body).unwrap_or_default();
                let request = http::Request::from_parts(parts, kube::client::Body::from(body));
                let answer = tower::ServiceExt::oneshot(service, request).await?;
                let code = answer.status().as_u16();
                if matches!(code, 400 | 403 | 422) {
                    seen.lock().unwrap().push(format!("{code} {method} {path}"));
                }
                if method != "GET" {
                    written.lock().unwrap().push(Write { method, path, body: sent, code });
                }
                Ok::<_, std::convert::Infallible>(answer)
            }
        });
        let mut manager = Manager::new(Client::new(watched, "default"), clock.clone());
        manager.select(selection);
        let explain = berth_controllers::install(&mut manager, config).explain;
        (Cluster { client, clock, refused, beyond_role, writes, explain }, manager)
    }

    /// The API of an object's kind, in its namespace.
    pub fn api(&self, object: &Value) -> Api<DynamicObject> {
        let (group, version) = object["apiVersion"].as_str().unwrap().split_once('/').unwrap_or(("", "v1"));
        let kind = object["kind"].as_str().unwrap();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Creates an object.
    pub async fn create(&self, object: Value) -> Value {
        let typed: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        let made = self.api(&object).create(&PostParams::default(), &typed).await;
        let made = made.unwrap_or_else(|error| panic!("create {object}: {error}"));
        serde_json::to_value(made).unwrap()
    }

    /// Reads an object.
    pub async fn get(&self, api_version: &str, kind: &str, namespace: Option<&str>, name: &str) -> Value {
        let key = json!({"apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace}});
        match self.api(&key).get_opt(name).await.unwrap() {
            Some(object) => serde_json::to_value(object).unwrap(),
            None => Value::Null,
        }
    }

    /// All objects of a kind in a namespace.
    pub async fn list(&self, api_version: &str, kind: &str, namespace: &str) -> Vec<Value> {
        let key = json!({"apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace}});
        let list = self.api(&key).list(&Default::default()).await.unwrap();
        list.items.into_iter().map(|object| serde_json::to_value(object).unwrap()).collect()
    }

    /// Merges a patch into an object.
    pub async fn patch(&self, object: &Value, patch: Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        self.api(object).patch(name, &Default::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    /// Merges a patch into the status of an object.
    pub async fn patch_status(&self, object: &Value, patch: Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        self.api(object).patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Deletes an object.
    pub async fn delete(&self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        self.api(object).delete(name, &Default::default()).await.unwrap();
    }

    /// Advances the cluster's clock.
    pub async fn pass(&self, seconds: u64) {
        self.clock.sleep(Duration::from_secs(seconds)).await;
    }

    /// The Workload whose controlling owner is this job.
    pub async fn workload_of(&self, namespace: &str, job: &str) -> Value {
        let all = self.list("kueue.x-k8s.io/v1beta2", "Workload", namespace).await;
        let owned = all.into_iter().find(|workload| workload["metadata"]["ownerReferences"][0]["name"] == job);
        owned.unwrap_or(Value::Null)
    }

    /// `reason: message` of the events about an object, oldest first.
    pub async fn events(&self, namespace: &str, name: &str) -> Vec<String> {
        let mut events = self.list("v1", "Event", namespace).await;
        events.sort_by_key(|event| event["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse::<u64>().ok()));
        let about = events.iter().filter(|event| event["involvedObject"]["name"] == name);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        about.map(|event| format!("{}: {}", text(&event["reason"]), text(&event["message"]))).collect()
    }
}

/// Status and reason of a condition, as `True/Reason`.
pub fn condition(object: &Value, type_: &str) -> String {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    match conditions.iter().find(|condition| condition["type"] == type_) {
        Some(condition) => format!(
            "{}/{}",
            condition["status"].as_str().unwrap_or_default(),
            condition["reason"].as_str().unwrap_or_default()
        ),
        None => "absent".to_owned(),
    }
}

/// The message of a condition.
pub fn message(object: &Value, type_: &str) -> String {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == type_);
    found.and_then(|condition| condition["message"].as_str()).unwrap_or_default().to_owned()
}
