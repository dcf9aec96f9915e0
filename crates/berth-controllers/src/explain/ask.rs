//! Requests for explanations over the Kubernetes API, with the permissions of the client's user.

use berth_api::berth::explanation::{GROUP, VERSION};
use berth_api::berth::gpus::GpuUseList;
use berth_apimachinery::percent::segment;
use http::Request;
use kube::Client;
use serde_json::Value;

/// Requests an explanation from the API group `explain.berth.dev`. The embedded API server serves
/// this group itself; for another API server, the controllers serve it. `name` is that of the
/// Workload or its job.
///
/// # Errors
/// The API server's error; see [`is_elsewhere`].
pub async fn api_server(client: &Client, namespace: &str, name: &str) -> kube::Result<Value> {
    let (namespace, name) = (segment(namespace), segment(name));
    get(client, &format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/workloads/{name}/explanation")).await
}

/// Requests the workloads that hold quota of a cluster queue: `limit` of them from `offset` on, the
/// longest-holding first, and their total number.
///
/// # Errors
/// The API server's error.
pub async fn holders(client: &Client, cluster_queue: &str, limit: usize, offset: usize) -> kube::Result<Value> {
    let name = segment(cluster_queue);
    get(client, &format!("/apis/{GROUP}/{VERSION}/clusterqueues/{name}/holders?limit={limit}&offset={offset}")).await
}

/// Requests an explanation from the controllers themselves; `client` connects to the address of
/// their metrics on this machine.
///
/// # Errors
/// The controllers' error.
pub async fn controllers(client: &Client, namespace: &str, name: &str) -> kube::Result<Value> {
    get(client, &format!("/explain/{}/{}", segment(namespace), segment(name))).await
}

/// Requests the use of quota of a namespace, or of all; `query` has the parameters `by`, `since`
/// and `until`.
///
/// # Errors
/// The API server's error.
pub async fn usage(client: &Client, namespace: Option<&str>, query: &str) -> kube::Result<Value> {
    list(client, namespace, "usage", query).await
}

/// Requests the stays of a namespace, or of all; `query` has the parameters `since`, `until` and
/// `limit`.
///
/// # Errors
/// The API server's error.
pub async fn stays(client: &Client, namespace: Option<&str>, query: &str) -> kube::Result<Value> {
    list(client, namespace, "stays", query).await
}

/// Requests a page of the jobs that exist now in a namespace, or in all; docs/dashboard.md lists
/// the parameters of `query`.
///
/// # Errors
/// The API server's error.
pub async fn current_jobs(client: &Client, namespace: Option<&str>, query: &str) -> kube::Result<Value> {
    list(client, namespace, "currentjobs", query).await
}

/// Requests what the controllers know beside the objects: the field `memory` of the response.
///
/// # Errors
/// The API server's error.
pub async fn memory(client: &Client) -> kube::Result<Value> {
    list(client, None, "forecasts", "memory=true").await
}

/// Requests the history of a Workload or job.
///
/// # Errors
/// The API server's error; see [`is_elsewhere`].
pub async fn history(client: &Client, namespace: &str, name: &str) -> kube::Result<Value> {
    let (namespace, name) = (segment(namespace), segment(name));
    get(client, &format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/workloads/{name}/history")).await
}

/// Requests what the GPUs of the nodes report to the exporters that the controllers read.
///
/// # Errors
/// The API server's error.
pub async fn gpus(client: &Client) -> kube::Result<GpuUseList> {
    let path = format!("/apis/{GROUP}/{VERSION}/gpus");
    client.request(Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?).await
}

async fn list(client: &Client, namespace: Option<&str>, resource: &str, query: &str) -> kube::Result<Value> {
    let scope = namespace.map(|namespace| format!("namespaces/{}/", segment(namespace))).unwrap_or_default();
    get(client, &format!("/apis/{GROUP}/{VERSION}/{scope}{resource}?{query}")).await
}

/// True if this server does not serve explanations, so that another server may have the
/// explanation.
pub fn is_elsewhere(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let names_object = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    (status.code == 404 && !names_object) || status.code == 503
}

async fn get(client: &Client, path: &str) -> kube::Result<Value> {
    client.request(Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?).await
}
