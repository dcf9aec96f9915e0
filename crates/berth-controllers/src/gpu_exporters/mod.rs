//! What the GPUs of any cluster report: read from NVIDIA's dcgm-exporter, which runs on each node
//! with GPUs.
//!
//! The exporters' pods are reached through the API server (`pods/proxy`), in one namespace, with
//! the rights of the controllers. They are read when a reader asks, and not more often than every
//! ten seconds. The answer is about nodes, and names neither pods nor namespaces of jobs.

mod report;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::berth::gpus::{GpuUseList, NodeGpus};
use berth_api::pod::node_of;
use berth_apimachinery::percent::segment;
use futures::StreamExt;
use http::Request;
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::client::Body;
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

/// Labels of the exporters' pods: of dcgm-exporter's chart and of Google's managed exporter, and of
/// NVIDIA's GPU operator.
const SELECTORS: [&str; 2] = [
    "app.kubernetes.io/name in (dcgm-exporter,gke-managed-dcgm-exporter)",
    "app in (nvidia-dcgm-exporter,dcgm-exporter)",
];
/// Name of the port of the metrics, and its usual number.
const PORT: (&str, i32) = ("metrics", 9400);
/// Age from which figures are read again.
const FRESH: Duration = Duration::from_secs(10);
/// Age up to which figures are shown while new ones are read.
const USABLE: Duration = Duration::from_secs(60);
/// Time limit for one exporter.
const PATIENCE: Duration = Duration::from_secs(5);
/// Exporters that are read at the same time.
const AT_ONCE: usize = 32;
/// Maximum size of an exporter's response. A GPU has about 10 KB.
const BYTES_MAX: usize = 4 << 20;
/// Number of failed exporters that a note names.
const NAMED_MAX: usize = 3;

/// The exporters of a cluster. Clones share the figures that were read last.
#[derive(Clone)]
pub struct GpuExporters(Arc<Shared>);

struct Shared {
    client: Client,
    /// Namespace of the exporters; empty if none are read.
    namespace: String,
    last: Mutex<Option<(Instant, GpuUseList)>>,
    /// Held while the exporters are read.
    reading: tokio::sync::Mutex<()>,
}

/// The rules of the right to read the exporters, in their namespace. Pods are listed with the
/// rights that the controllers have anyway.
pub fn rules() -> Value {
    json!([{"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}])
}

impl GpuExporters {
    /// Exporters in this namespace. An empty name reads none.
    pub fn new(client: Client, namespace: &str) -> Self {
        let (last, reading) = (Mutex::default(), tokio::sync::Mutex::default());
        Self(Arc::new(Shared { client, namespace: namespace.to_owned(), last, reading }))
    }

    /// What the GPUs report. Figures of less than a minute are returned at once, and read again in
    /// the background if they are older than ten seconds.
    pub async fn gpus(&self) -> GpuUseList {
        let shared = &self.0;
        if shared.namespace.is_empty() {
            return none(not_configured());
        }
        let last = shared.last.lock().clone();
        let age = last.as_ref().map(|(at, _)| at.elapsed());
        if let (Some((_, list)), Some(age)) = (&last, age)
            && age <= FRESH
        {
            return list.clone();
        }
        // Reading goes on if the reader of the page leaves.
        let reading = tokio::spawn(shared.clone().read());
        match last {
            Some((_, list)) if age.is_some_and(|age| age <= USABLE) => list,
            _ => reading.await.unwrap_or_default(),
        }
    }
}

impl Shared {
    /// Reads all exporters, unless another task has just done so.
    async fn read(self: Arc<Self>) -> GpuUseList {
        let _one_at_a_time = self.reading.lock().await;
        if let Some((at, list)) = &*self.last.lock()
            && at.elapsed() <= FRESH
        {
            return list.clone();
        }
        let read = self.exporters().await;
        *self.last.lock() = Some((Instant::now(), read.clone()));
        read
    }

    async fn exporters(&self) -> GpuUseList {
        let namespace = &self.namespace;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let mut exporters: BTreeMap<String, Pod> = BTreeMap::new();
        for selector in SELECTORS {
            match pods.list(&ListParams::default().labels(selector)).await {
                Ok(found) => exporters.extend(found.items.into_iter().map(|pod| (pod.name_any(), pod))),
                Err(error) => {
                    let message = berth_runtime::message(&error);
                    let note = format!("GPU exporters cannot be listed in namespace {namespace}: {message}");
                    return none(note);
                }
            }
        }
        exporters.retain(|_, pod| is_running(pod));
        if exporters.is_empty() {
            return none(none_found(namespace));
        }
        let all = exporters.len();
        let reads = exporters.into_values().map(|pod| async move {
            let read = timeout(PATIENCE, self.metrics(&pod)).await;
            let read = read.unwrap_or_else(|_| Err(format!("no response within {} seconds", PATIENCE.as_secs())));
            (pod, read)
        });
        let reads: Vec<_> = futures::stream::iter(reads).buffer_unordered(AT_ONCE).collect().await;
        let (mut nodes, mut failed) = (BTreeMap::new(), BTreeMap::new());
        for (pod, read) in reads {
            match read.map(|text| report::gpus(&text)) {
                Ok(gpus) if gpus.is_empty() => {}
                Ok(gpus) => drop(nodes.insert(node_of(&pod).unwrap_or_default().to_owned(), gpus)),
                Err(problem) => drop(failed.insert(pod.name_any(), problem)),
            }
        }
        let items = nodes.into_iter().map(|(node, gpus)| NodeGpus { node, gpus }).collect();
        GpuUseList::of(items, failures(namespace, all, &failed))
    }

    /// The metrics of an exporter.
    async fn metrics(&self, pod: &Pod) -> Result<String, String> {
        let (namespace, name) = (segment(&self.namespace), segment(&pod.name_any()).to_string());
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{}/proxy/metrics", port(pod));
        let request = Request::get(path).body(Body::empty()).map_err(|error| error.to_string())?;
        let response = self.client.send(request).await.map_err(|error| berth_runtime::message(&error))?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, BYTES_MAX).collect().await.map_err(|error| error.to_string())?.to_bytes();
        let text = String::from_utf8_lossy(&body);
        if parts.status.is_success() {
            return Ok(text.into_owned());
        }
        // The API server's own refusal is a Status; an exporter's may be any text.
        let status = serde_json::from_str::<kube::core::Status>(&text).map(|status| status.message);
        Err(status.ok().filter(|message| !message.is_empty()).unwrap_or_else(|| parts.status.to_string()))
    }
}

/// A list without nodes.
fn none(note: String) -> GpuUseList {
    GpuUseList::of(Vec::new(), vec![note])
}

fn not_configured() -> String {
    "The controllers read no GPU exporter. To show what GPUs report, install dcgm-exporter and run the \
     controllers with --gpu-exporters NAMESPACE (berth install --gpu-exporters NAMESPACE adds the right)."
        .to_owned()
}

fn none_found(namespace: &str) -> String {
    format!(
        "No running pod of dcgm-exporter is in namespace {namespace}. Its pods have the label \
         app.kubernetes.io/name=dcgm-exporter, or app=nvidia-dcgm-exporter in NVIDIA's GPU operator."
    )
}

/// The note about exporters that do not respond.
fn failures(namespace: &str, all: usize, failed: &BTreeMap<String, String>) -> Vec<String> {
    if failed.is_empty() {
        return Vec::new();
    }
    let named: Vec<String> =
        failed.iter().take(NAMED_MAX).map(|(pod, problem)| format!("{namespace}/{pod}: {problem}")).collect();
    let more = if failed.len() > NAMED_MAX { "; …" } else { "" };
    vec![format!("{} of {all} GPU exporters cannot be read ({}{more}).", failed.len(), named.join("; "))]
}

fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}

/// Number of the port of a pod's metrics.
fn port(pod: &Pod) -> i32 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let named = ports.find(|port| port.name.as_deref() == Some(PORT.0));
    named.map_or(PORT.1, |port| port.container_port)
}

#[cfg(test)]
mod tests;
