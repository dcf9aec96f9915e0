//! The interface between this server and the nodes that run pods.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use berth_apimachinery::status::Status;
use berth_pod_runtime::{Duplex, ExitStatus, LogQuery, LogStream, RuntimeError, StreamIo};
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::net::TcpStream;

/// A container in the spec of a pod. The implementation of [`PodStreams`] finds out whether it
/// runs.
#[derive(Clone, Debug)]
pub struct Container {
    /// The pod as stored.
    pub pod: Arc<Value>,
    /// Name of the container.
    pub name: String,
}

/// Connects streams to a program that was found, and returns when it has ended. Errors are reported
/// to the client through the connection. Dropping the future ends a command of `exec`, and
/// disconnects from a container that `attach` connected to.
pub type Command = Box<dyn FnOnce(StreamIo) -> BoxFuture<'static, Result<ExitStatus, RuntimeError>> + Send>;

/// Connects a stream to a port of a pod, and returns when either side has closed it.
pub type Forward = Arc<dyn Fn(u16, Box<dyn Duplex>) -> BoxFuture<'static, Result<(), RuntimeError>> + Send + Sync>;

/// Opens a TCP connection to an address of a pod or of another machine. This process may be unable
/// to reach the pod network by itself.
pub type Dial = Arc<dyn Fn(SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> + Send + Sync>;

/// Streams of the programs in pods: replaces the servers of the kubelets.
///
/// The methods find the program without waiting. An error is the response to the client's request.
/// One with the reason `InternalError` is sent as plain text, as a kubelet does, for example
/// `container not found ("main")` with code 500.
pub trait PodStreams: Send + Sync + 'static {
    /// Finds a running container, to run `command` in it.
    ///
    /// # Errors
    /// The container does not run, or its node cannot run commands.
    fn exec(&self, container: &Container, command: Vec<String>) -> Result<Command, Status>;

    /// Finds a running container, to connect to its own input and output.
    ///
    /// # Errors
    /// The container does not run, or its node cannot connect to it.
    fn attach(&self, container: &Container) -> Result<Command, Status>;

    /// Finds a running pod, to connect to its ports.
    ///
    /// # Errors
    /// The pod does not run, or its node cannot connect to it.
    fn port_forward(&self, pod: &Arc<Value>) -> Result<Forward, Status>;

    /// The log of the container's current or `previous` run. `None` for a pod whose log comes from
    /// [`crate::Config::pod_logs`].
    fn logs(
        &self,
        container: &Container,
        previous: bool,
        query: LogQuery,
    ) -> Option<BoxFuture<'static, Result<LogStream, Status>>>;

    /// Opens a connection to a TCP port at the address of a pod, for `proxy`.
    fn connect(&self, pod: &Arc<Value>, port: u16) -> BoxFuture<'static, Result<Box<dyn Duplex>, Status>>;

    /// Resource usage of a node, as `/stats/summary` of its kubelet; `None` for a node without such
    /// statistics.
    fn node_summary(&self, node: &Arc<Value>) -> BoxFuture<'static, Option<Value>>;
}
