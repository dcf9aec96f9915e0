//! Streams of the programs in pods: connects the API server to the runtimes of the nodes.
//!
//! Nodes with a runtime run real programs. The pods of all other nodes are simulated and have no
//! program. Requests for one are rejected, unless the pod has a scripted response ([`simulated`]).

mod run;
mod simulated;
mod summary;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::meta;
use berth_apimachinery::status::Status;
use berth_apiserver::{Command, Container, Dial, Forward, PodStreams};
use berth_pod_runtime::{Duplex, LogQuery, LogStream, PodRuntime, PodState, PodUid, RuntimeError};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::RwLock;
use serde_json::Value;
use tokio::net::TcpStream;

/// Time for a pod to accept a connection at its address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes between a client and a forwarded connection.
const PIPE_BYTES: usize = 64 * 1024;

/// The runtimes of nodes, for the API server. Clones share them.
#[derive(Clone, Default)]
pub struct Streams {
    runtimes: Arc<RwLock<BTreeMap<String, Arc<dyn PodRuntime>>>>,
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let runtimes = self.runtimes.read();
        f.debug_struct("Streams").field("nodes", &runtimes.keys().collect::<Vec<_>>()).finish()
    }
}

impl Streams {
    /// Serves the pods of a node from its runtime.
    pub fn add_node(&self, node: impl Into<String>, runtime: Arc<dyn PodRuntime>) {
        self.runtimes.write().insert(node.into(), runtime);
    }

    /// Connects to an address of a pod or of another machine. The runtime of this machine's node
    /// reaches a pod network in a namespace of its own.
    pub(crate) fn dialer(&self) -> Dial {
        let streams = self.clone();
        Arc::new(move |address| match streams.runtimes.read().values().next() {
            Some(runtime) => runtime.dial(address),
            None => TcpStream::connect(address).boxed(),
        })
    }

    /// The runtime of a pod; `None` for a simulated pod. The pods of hosted nodes are in the
    /// runtime of another node.
    fn runtime(&self, pod: &Value) -> Option<Arc<dyn PodRuntime>> {
        let node = pod["spec"]["nodeName"].as_str()?;
        let runtimes = self.runtimes.read();
        let has_pod = |runtime: &&Arc<dyn PodRuntime>| runtime.pod(&PodUid(meta::uid(pod).to_owned())).is_some();
        runtimes.get(node).or_else(|| runtimes.values().find(has_pod)).cloned()
    }

    /// The runtime of a pod's node, and the runtime's state of the pod.
    fn running_pod(&self, pod: &Value, what: &str) -> Result<(Arc<dyn PodRuntime>, Arc<PodState>), Status> {
        let runtime = self.runtime(pod).ok_or_else(|| simulated::refusal(what, pod))?;
        let state = runtime.pod(&PodUid(meta::uid(pod).to_owned())).filter(|state| state.is_ready);
        let state = state.ok_or_else(|| {
            run::kubelet_error(format!("pod not found (\"{}_{}\")", meta::name(pod), meta::namespace(pod)))
        })?;
        Ok((runtime, state))
    }
}

impl PodStreams for Streams {
    fn exec(&self, container: &Container, command: Vec<String>) -> Result<Command, Status> {
        let Container { pod, name } = container;
        let Some(runtime) = self.runtime(pod) else { return simulated::exec(pod, name) };
        let id = run::running(pod, name)?;
        Ok(Box::new(move |io| runtime.exec(id, command, io)))
    }

    fn attach(&self, container: &Container) -> Result<Command, Status> {
        let Container { pod, name } = container;
        let runtime = self.runtime(pod).ok_or_else(|| simulated::refusal("attach", pod))?;
        let id = run::running(pod, name)?;
        Ok(Box::new(move |io| runtime.attach(id, io)))
    }

    fn port_forward(&self, pod: &Arc<Value>) -> Result<Forward, Status> {
        let (runtime, state) = self.running_pod(pod, "portforward")?;
        Ok(Arc::new(move |port, stream| runtime.port_forward(state.uid.clone(), port, stream)))
    }

    fn logs(
        &self,
        container: &Container,
        previous: bool,
        query: LogQuery,
    ) -> Option<BoxFuture<'static, Result<LogStream, Status>>> {
        let runtime = self.runtime(&container.pod)?;
        let id = match run::logged(&container.pod, &container.name, previous) {
            Ok(id) => id,
            Err(status) => return Some(std::future::ready(Err(status)).boxed()),
        };
        Some(async move { runtime.logs(id, query).await.map_err(|error| log_error(&error)) }.boxed())
    }

    fn connect(&self, pod: &Arc<Value>, port: u16) -> BoxFuture<'static, Result<Box<dyn Duplex>, Status>> {
        let found = self.running_pod(pod, "proxy");
        async move {
            let (runtime, state) = found?;
            Ok(open(runtime, &state, port).await)
        }
        .boxed()
    }

    fn node_summary(&self, node: &Arc<Value>) -> BoxFuture<'static, Option<Value>> {
        let name = meta::name(node).to_owned();
        let runtime = self.runtimes.read().get(&name).cloned();
        async move { Some(summary::of(&name, &*runtime?).await) }.boxed()
    }
}

/// A connection to a port of a pod: at its address, or through the runtime if this process cannot
/// reach the pod network.
async fn open(runtime: Arc<dyn PodRuntime>, state: &PodState, port: u16) -> Box<dyn Duplex> {
    if let Some(address) = state.ips.first().and_then(|address| address.parse::<IpAddr>().ok()) {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, runtime.dial(SocketAddr::new(address, port))).await;
        if let Ok(Ok(stream)) = connected {
            return Box::new(stream);
        }
    }
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    let (uid, name) = (state.uid.clone(), state.name.clone());
    // Ends with the connection.
    tokio::spawn(async move {
        if let Err(error) = runtime.port_forward(uid, port, Box::new(far)).await {
            tracing::debug!(pod = name, port, %error, "the connection of a proxy failed");
        }
    });
    Box::new(near)
}

fn log_error(error: &RuntimeError) -> Status {
    match error {
        RuntimeError::NotFound(_) | RuntimeError::Unsupported(_) => Status::bad_request(error.to_string()),
        error => Status::internal(error.to_string()),
    }
}
