//! The API group `metrics.k8s.io`: CPU and memory usage of pods and nodes, for `kubectl top` and
//! HorizontalPodAutoscalers.
//!
//! Each request lists the pods or nodes of this API server, with the request's selectors, and adds
//! the measurements of [`ClusterMetrics`], and for nodes what their GPUs report ([`Gpus`]). Pods
//! that do not run have no measurements.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use berth_api::pod::node_of;
use berth_apimachinery::meta::GroupResource;
use berth_apimachinery::percent::decode_component;
use berth_apimachinery::status::Status;
use berth_apimachinery::table::Column;
use berth_apiserver::{Answer, Asked, Extension, RequestInfo};
use berth_cluster::gpus::Gpus;
use berth_cluster::metrics::{ClusterMetrics, GROUP, VERSION, node_metrics, pod_metrics};
use berth_runtime::Clock;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// Serves the usage of pods and nodes. Clones share their state.
#[derive(Clone)]
pub(crate) struct Metrics {
    clock: Clock,
    source: ClusterMetrics,
    gpus: Gpus,
    /// A client of the API server that serves this group; set once the server exists.
    client: Arc<OnceLock<Client>>,
}

impl Metrics {
    /// Serves the usage by a clock. `gpus` are those of the nodes.
    pub(crate) fn new(clock: Clock, gpus: Gpus) -> Self {
        Self { clock, source: ClusterMetrics::default(), gpus, client: Arc::default() }
    }

    /// Connects to the pods and nodes of an API server.
    pub(crate) fn connect(&self, client: Client) {
        // A second call would connect to the same server.
        let _ = self.client.set(client);
    }

    /// The sources of measurements.
    pub(crate) fn source(&self) -> ClusterMetrics {
        self.source.clone()
    }

    async fn answer(&self, asked: Asked<'_>) -> Result<Value, Status> {
        let client = self.client.get().ok_or_else(|| Status::service_unavailable("the API server is starting"))?;
        let (info, now) = (asked.info, self.clock.now());
        let params = selectors(asked.query);
        match (info.resource.as_str(), info.subresource.as_str()) {
            ("pods", "") if !info.name.is_empty() && !info.namespace.is_empty() => self.pod(client, info, now).await,
            ("pods", "") if info.name.is_empty() => self.pods(client, info, &params, now).await,
            ("nodes", "") if info.namespace.is_empty() => self.nodes(client, info, &params, now).await,
            _ => Err(Status::no_such_path()),
        }
    }

    async fn pod(&self, client: &Client, info: &RequestInfo, now: Timestamp) -> Result<Value, Status> {
        let api: Api<Pod> = Api::namespaced(client.clone(), &info.namespace);
        let pod = api.get_opt(&info.name).await.map_err(failed)?;
        let metrics = pod.and_then(|pod| Some(pod_metrics(&pod, &self.source.of_pod(&pod, now)?)));
        metrics.ok_or_else(|| Status::not_found(&GroupResource::new(GROUP, "pods"), &info.name))
    }

    async fn pods(
        &self,
        client: &Client,
        info: &RequestInfo,
        params: &ListParams,
        now: Timestamp,
    ) -> Result<Value, Status> {
        let api: Api<Pod> = match info.namespace.as_str() {
            "" => Api::all(client.clone()),
            namespace => Api::namespaced(client.clone(), namespace),
        };
        let pods = api.list(params).await.map_err(failed)?.items;
        let items = pods.iter().filter_map(|pod| Some(pod_metrics(pod, &self.source.of_pod(pod, now)?)));
        Ok(list("PodMetricsList", items.collect()))
    }

    /// One node, or all nodes that the selectors allow.
    async fn nodes(
        &self,
        client: &Client,
        info: &RequestInfo,
        params: &ListParams,
        now: Timestamp,
    ) -> Result<Value, Status> {
        let api: Api<Node> = Api::all(client.clone());
        let one = !info.name.is_empty();
        let nodes = match one {
            true => api.get_opt(&info.name).await.map_err(failed)?.into_iter().collect(),
            false => api.list(params).await.map_err(failed)?.items,
        };
        let of_node = one.then(|| ListParams::default().fields(&format!("spec.nodeName={}", info.name)));
        let pods = Api::<Pod>::all(client.clone()).list(&of_node.unwrap_or_default()).await.map_err(failed)?.items;
        let mut on_node: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
        for pod in &pods {
            let node = node_of(pod).unwrap_or_default();
            on_node.entry(node).or_default().push(pod);
        }
        let metrics = |node: &Node| {
            let pods = on_node.get(node.name_any().as_str()).map(Vec::as_slice).unwrap_or_default();
            let usage = self.source.of_node(node, pods.iter().copied(), now)?;
            Some(node_metrics(node, &usage, &self.gpus.of_node(node, pods, now)))
        };
        let mut items: Vec<Value> = nodes.iter().filter_map(metrics).collect();
        match one {
            true => items.pop().ok_or_else(|| Status::not_found(&GroupResource::new(GROUP, "nodes"), &info.name)),
            false => Ok(list("NodeMetricsList", items)),
        }
    }
}

/// The role that lets users that may view pods read the usage, as metrics-server installs it.
pub(crate) fn reader_role() -> Value {
    let aggregate = |role: &str| (format!("rbac.authorization.k8s.io/aggregate-to-{role}"), json!("true"));
    let labels: serde_json::Map<String, Value> = ["view", "edit", "admin"].map(aggregate).into_iter().collect();
    let rule = json!({"apiGroups": [GROUP], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]});
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "system:aggregated-metrics-reader", "labels": labels}, "rules": [rule]})
}

fn list(kind: &str, items: Vec<Value>) -> Value {
    json!({"kind": kind, "apiVersion": format!("{GROUP}/{VERSION}"), "metadata": {}, "items": items})
}

/// The selectors of a request. The API server checks them when it lists the pods or nodes.
fn selectors(query: &str) -> ListParams {
    let mut params = ListParams::default();
    for (name, value) in query.split('&').filter_map(|part| part.split_once('=')) {
        let value = decode_component(value);
        match name {
            "labelSelector" if !value.is_empty() => params.label_selector = Some(value),
            "fieldSelector" if !value.is_empty() => params.field_selector = Some(value),
            _ => {}
        }
    }
    params
}

fn failed(error: kube::Error) -> Status {
    match &error {
        kube::Error::Api(status) if status.code == 400 => Status::bad_request(status.message.clone()),
        other => Status::internal(berth_runtime::message(other)),
    }
}

impl Extension for Metrics {
    fn group(&self) -> &str {
        GROUP
    }

    fn versions(&self) -> &[&str] {
        &[VERSION]
    }

    fn resources(&self) -> Vec<Value> {
        vec![
            json!({"name": "nodes", "singularName": "", "namespaced": false, "kind": "NodeMetrics", "verbs": ["get", "list"]}),
            json!({"name": "pods", "singularName": "", "namespaced": true, "kind": "PodMetrics", "verbs": ["get", "list"]}),
        ]
    }

    fn get<'a>(&'a self, asked: Asked<'a>) -> Answer<'a> {
        Box::pin(self.answer(asked))
    }

    fn columns(&self, _resource: &str) -> Vec<Column> {
        let column = |(name, format, description): (&str, &str, &str)| Column {
            name: name.to_owned(),
            column_type: "string".to_owned(),
            format: format.to_owned(),
            description: description.to_owned(),
            priority: 0,
        };
        let columns = [
            ("Name", "name", "Name of the pod or node"),
            ("cpu", "", "CPU in use, in cores"),
            ("memory", "", "Memory in use, in bytes"),
            ("Window", "", "Time over which the CPU usage was measured"),
        ];
        columns.map(column).to_vec()
    }

    fn cells(&self, resource: &str, object: &Value) -> Vec<Value> {
        let [cpu, memory] = ["cpu", "memory"].map(|name| match resource {
            "nodes" => object["usage"][name].clone(),
            _ => total(object, name).into(),
        });
        vec![object["metadata"]["name"].clone(), cpu, memory, object["window"].clone()]
    }
}

/// The sum of a pod's containers.
fn total(pod: &Value, name: &str) -> String {
    use berth_apimachinery::quantity::Quantity;
    let amounts = pod["containers"].as_array().into_iter().flatten();
    let amounts = amounts.filter_map(|container| Quantity::parse(container["usage"][name].as_str()?).ok());
    let sum = amounts.reduce(|mut sum, amount| {
        sum.add(amount);
        sum
    });
    sum.map(|sum| sum.to_string()).unwrap_or_default()
}
