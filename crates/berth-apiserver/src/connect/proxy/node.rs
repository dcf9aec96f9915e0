//! `nodes/proxy`: the paths of a kubelet that tools read. This module serves them, because the
//! nodes of this cluster have no kubelet with a port of its own.

use std::sync::Arc;

use berth_apimachinery::status::Status;
use berth_apimachinery::well_known::KUBELET_PORT;
use berth_apimachinery::{meta, packed};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, header};
use serde_json::{Value, json};

use super::super::Wire;
use super::resource_metrics;
use super::target::Backend;
use crate::rest::{self, Call};
use crate::{Body, RequestInfo};

/// The media type of Prometheus' text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The served paths.
const PATHS: &str = "/containerLogs/NAMESPACE/POD/CONTAINER, /healthz, /metrics/resource, /pods and /stats/summary";

/// Answers a request to a node's kubelet.
pub(super) async fn handle(
    call: &Call,
    backend: &Backend,
    path: &str,
    wire: Wire<'_>,
) -> Result<Response<Body>, Status> {
    let node = call.server.inner.objects.get("", "nodes", "", &backend.name);
    let node = node.ok_or_else(|| Status::not_found(&call.group_resource(), &backend.name))?;
    if !backend.port.is_empty() && backend.port != KUBELET_PORT.to_string() {
        return Err(Status::bad_request(format!(
            "port {1} of node {0} cannot be reached; port {KUBELET_PORT} serves {PATHS}",
            backend.name, backend.port
        )));
    }
    if !matches!(*wire.method, Method::GET | Method::HEAD) {
        return Err(Status::method_not_supported(&call.group_resource(), &wire.method.as_str().to_lowercase()));
    }
    match *path.trim_matches('/').split('/').collect::<Vec<_>>() {
        ["healthz"] => Ok(Response::new(Body::from("ok"))),
        ["pods"] | ["runningpods"] => Ok(json_response(&pods_of(call, &backend.name))),
        ["stats", "summary"] => Ok(json_response(&summary(call, &node).await?)),
        ["metrics", "resource"] => {
            let mut response = Response::new(Body::from(resource_metrics::text(&summary(call, &node).await?)));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(METRICS_TYPE));
            Ok(response)
        }
        ["containerLogs", namespace, pod, container] => {
            let lines = container_logs(call, &backend.name, namespace, pod, container, wire.query);
            lines.await
        }
        _ => Err(Status::service_unavailable(format!(
            "the kubelet of node {} does not serve {path}; it serves {PATHS}",
            backend.name
        ))),
    }
}

/// The use of resources on a node.
async fn summary(call: &Call, node: &Arc<Value>) -> Result<Value, Status> {
    let summary = super::super::pod_streams(call)?.node_summary(node).await;
    summary.ok_or_else(|| {
        Status::service_unavailable(format!("node {} has no statistics: its pods are simulated", meta::name(node)))
    })
}

fn json_response(value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The pods on a node.
fn pods_of(call: &Call, node: &str) -> Value {
    let pods = call.server.inner.objects.list("", "pods", None);
    let on_node = pods.iter().filter(|pod| pod["spec"]["nodeName"] == node).map(|pod| {
        let mut pod = Value::clone(pod);
        packed::take(&mut pod);
        pod
    });
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": on_node.collect::<Vec<_>>()})
}

/// The log of a container on the node, in the format of `pods/log`.
async fn container_logs(
    call: &Call,
    node: &str,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &str,
) -> Result<Response<Body>, Status> {
    let missing = || Status::not_found(&meta::GroupResource::new("", "pods"), pod);
    let object: Arc<Value> = call.server.inner.objects.get("", "pods", namespace, pod).ok_or_else(missing)?;
    if object["spec"]["nodeName"] != node {
        return Err(missing());
    }
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/log");
    let query = format!("{query}&container={container}");
    let info = RequestInfo::parse(&Method::GET, &path, &query);
    let row = call.server.registry().get("", "pods").cloned().ok_or_else(Status::no_such_path)?;
    let user = call.user.clone();
    let log = Call::new(&call.server, info, row, 0, None, &HeaderMap::new(), &query, Bytes::new(), user)?;
    rest::read_log(&log).await
}
