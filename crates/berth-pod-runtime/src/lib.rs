//! The interface between a kubelet and the runtime that runs its pods.
//!
//! The kubelet (`berth_cluster::kubelet`) decides the order of containers, probes, restarts, status
//! and events. A [`PodRuntime`] executes the decisions. It resembles the Container Runtime
//! Interface of Kubernetes, so that an implementation over a CRI socket could follow. One runtime
//! runs processes of this machine (`berth-node`). Simulated pods need no runtime, because their
//! state is computed from their status and the time.
//!
//! This crate has only data types and traits. It does not depend on Kubernetes types, a server or
//! an operating system: the kubelet translates a pod's spec into [`SandboxConfig`] and
//! [`ContainerConfig`], which can be written to disk and sent to another process.

mod config;
mod gpu;
mod machine;
mod state;
mod streams;

pub use config::{
    Capabilities, ContainerConfig, ContainerId, ContainerKind, Device, DnsConfig, FileContent, HostAlias, HostPathType,
    HostPort, ImagePullPolicy, ImageRequest, Limits, Mount, PodLimits, PodUid, Propagation, Protocol,
    RegistryCredential, SandboxConfig, Security, TerminationMessagePolicy, UserSpec, Volume,
};
pub use gpu::{GpuReading, GpuValues};
pub use machine::{Machine, MachineFacts, Margin, Pressure};
pub use state::{
    ContainerState, ContainerStats, ContainerStatus, ExecOutput, Exit, Image, ImageRoot, PodDisk, PodState, PodStats,
};
pub use streams::{Duplex, ExitStatus, Input, LogQuery, LogStream, Output, StreamIo, StreamName, TerminalSize};

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tokio::net::TcpStream;

/// Failure of a call of a [`PodRuntime`].
#[derive(Clone, Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The pod or container does not exist, or has ended.
    #[error("{0}")]
    NotFound(String),
    /// The image does not exist locally and must not be pulled, or it cannot be pulled. The kubelet
    /// reports `ErrImagePull` (or `ErrImageNeverPull`) and retries with back-off.
    #[error("{message}")]
    Image {
        /// Reason of the container's waiting state, such as `ErrImagePull`.
        reason: &'static str,
        /// The error, and the remedy.
        message: String,
    },
    /// The configuration cannot be carried out on this machine, such as a user name that the image
    /// does not have. The kubelet reports `CreateContainerConfigError`.
    #[error("{0}")]
    Config(String),
    /// The container's program cannot be started, such as a missing file. The kubelet reports
    /// `RunContainerError`, with exit code 127 or 128 as container runtimes do.
    #[error("{message}")]
    Start {
        /// Exit code of the container's terminated state: 127 if the program does not exist, 126 if
        /// it cannot be executed, 128 otherwise.
        exit_code: i32,
        /// The error.
        message: String,
    },
    /// The runtime does not support this feature at this isolation level.
    #[error("{0}")]
    Unsupported(String),
    /// The call did not end within its time limit.
    #[error("{0}")]
    TimedOut(String),
    /// Any other failure. The call can be repeated.
    #[error("{0}")]
    Internal(String),
}

/// Result of a call of a [`PodRuntime`].
pub type Result<T> = std::result::Result<T, RuntimeError>;

/// Runs the pods of one node.
///
/// Every call is idempotent: a kubelet that restarts repeats calls whose result it has not seen. No
/// call starts a container twice: a [`ContainerId`] names one run (`attempt`), and the runtime
/// records a start durably before the program begins.
pub trait PodRuntime: Send + Sync + 'static {
    /// Name and version, as in a node's `containerRuntimeVersion`: `berth://0.1.0`.
    fn version(&self) -> String;

    /// Makes an image available according to its pull policy. Returns the image with its defaults.
    fn ensure_image<'a>(&'a self, request: &'a ImageRequest) -> BoxFuture<'a, Result<Image>>;

    /// True if [`PodRuntime::ensure_image`] will pull the image from its registry.
    fn needs_pull<'a>(&'a self, request: &'a ImageRequest) -> BoxFuture<'a, bool>;

    /// Creates a pod's sandbox: folder, volumes, namespaces, network and control groups. Returns
    /// the state of the sandbox, which exists already if this call is repeated.
    fn run_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> BoxFuture<'a, Result<PodState>>;

    /// Replaces the files of a [`Volume::Files`] atomically: readers see either all old or all new
    /// files.
    fn update_files<'a>(&'a self, pod: &'a PodUid, volume: &'a str, files: &'a Volume) -> BoxFuture<'a, Result<()>>;

    /// Starts one run of a container. Returns its state.
    ///
    /// If this run was started before, returns its current state and starts nothing.
    fn start_container<'a>(&'a self, config: &'a ContainerConfig) -> BoxFuture<'a, Result<ContainerStatus>>;

    /// Stops a container: sends its stop signal, and SIGKILL after `grace`. Returns once the stop
    /// signal was sent. The end is reported in [`PodRuntime::pod`].
    fn stop_container<'a>(&'a self, container: &'a ContainerId, grace: Duration) -> BoxFuture<'a, Result<()>>;

    /// Kills the remaining processes of a pod and releases its network, mounts and control groups.
    /// The folder with logs and exit codes remains until [`PodRuntime::remove_sandbox`].
    fn stop_sandbox<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, Result<()>>;

    /// Removes a stopped pod's folder. Succeeds if it does not exist.
    fn remove_sandbox<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, Result<()>>;

    /// The current state of a pod; `None` if the runtime has no sandbox of this UID.
    fn pod(&self, pod: &PodUid) -> Option<Arc<PodState>>;

    /// All sandboxes, including those that an earlier process of this program created.
    fn pods(&self) -> Vec<Arc<PodState>>;

    /// UIDs of pods whose state changed (a container started or ended, the sandbox ended). Repeated
    /// changes may be merged for a slow reader, but it receives the last change to each pod.
    fn changes(&self) -> BoxStream<'static, PodUid>;

    /// Runs a command in a running container and returns its output, for probes and hooks. Output
    /// beyond 10 KiB is cut off. After `timeout` the command is killed
    /// ([`RuntimeError::TimedOut`]).
    fn exec_sync<'a>(
        &'a self,
        container: &'a ContainerId,
        command: &'a [String],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutput>>;

    /// Runs a command in a running container with the client's streams. Returns when the command
    /// has ended and its output was written. The command is killed when the future is dropped.
    fn exec(
        &self,
        container: ContainerId,
        command: Vec<String>,
        io: StreamIo,
    ) -> BoxFuture<'static, Result<ExitStatus>>;

    /// Connects a client's streams to a container's own input and output. Returns when the
    /// container ends; dropping the future only disconnects.
    fn attach(&self, container: ContainerId, io: StreamIo) -> BoxFuture<'static, Result<ExitStatus>>;

    /// Connects a byte stream to a TCP port on the loopback address of a pod.
    fn port_forward(&self, pod: PodUid, port: u16, stream: Box<dyn Duplex>) -> BoxFuture<'static, Result<()>>;

    /// Opens a TCP connection to an address of a pod or of another network, as this node reaches
    /// it.
    fn dial(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(address))
    }

    /// The log of one run of a container.
    fn logs(&self, container: ContainerId, query: LogQuery) -> BoxFuture<'static, Result<LogStream>>;

    /// Changes the limits of a running pod and of running containers of it.
    ///
    /// # Errors
    /// A container uses more memory than its new limit, or the runtime cannot change limits.
    fn update_limits<'a>(&'a self, pod: &'a PodUid, limits: &'a PodLimits) -> BoxFuture<'a, Result<()>>;

    /// CPU and memory usage of a pod; `None` if it does not run.
    fn stats<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, Option<PodStats>>;

    /// Disk usage of a pod; `None` if it does not run. Visits every file that the pod has
    /// written.
    fn disk<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, Option<PodDisk>>;
}

/// The images of one node.
pub trait Images: Send + Sync + 'static {
    /// Makes an image available; see [`PodRuntime::ensure_image`].
    fn ensure<'a>(&'a self, request: &'a ImageRequest) -> BoxFuture<'a, Result<Image>>;

    /// True if [`Images::ensure`] will pull the image from its registry.
    fn needs_pull<'a>(&'a self, request: &'a ImageRequest) -> BoxFuture<'a, bool>;
}

/// The pod network of one node.
pub trait SandboxNetwork: Send + Sync + 'static {
    /// True if pods stay in the machine's own network namespace, regardless of their other
    /// isolation.
    fn is_shared(&self) -> bool {
        false
    }

    /// The user namespace above those of pods, if pods must have such user namespaces to be
    /// connected.
    ///
    /// # Errors
    /// The namespace cannot be opened.
    fn user_namespace(&self) -> Result<Option<File>> {
        Ok(None)
    }

    /// True if this network was created anew, so that pods of an earlier process must be connected
    /// again.
    fn is_new(&self) -> bool {
        false
    }

    /// The address of a pod. The first call allocates it and records it durably. It remains the
    /// same until [`SandboxNetwork::release`].
    fn allocate<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, Result<IpAddr>>;

    /// Connects the network namespace of the process `pid` to the pod network: sets the pod's
    /// address and routes, and brings the loopback interface up. Repeating the call has no effect.
    fn connect<'a>(&'a self, pod: &'a PodUid, pid: u32) -> BoxFuture<'a, Result<()>>;

    /// Disconnects a pod and releases its address. Succeeds if the pod has none.
    fn release<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, Result<()>>;

    /// Opens a TCP connection to an address of the pod network, which may be separate from the
    /// machine's, or of another network.
    fn dial(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(address))
    }
}

/// The devices of one node: GPUs and other extended resources.
pub trait Devices: Send + Sync + 'static {
    /// Number of healthy devices by resource, such as `nvidia.com/gpu: 8`.
    fn capacity(&self) -> BTreeMap<String, usize>;

    /// Assigns `count` devices of a resource to a container and records the assignment durably. A
    /// repeated call returns the same devices.
    ///
    /// # Errors
    /// Fewer than `count` devices are free, or the assignment cannot be recorded.
    fn assign(&self, pod: &PodUid, container: &str, resource: &str, count: usize) -> Result<Vec<Device>>;

    /// Environment variables that limit the programs of a container to these devices, such as
    /// `CUDA_VISIBLE_DEVICES`. A container without devices may get variables that hide all devices.
    fn environment(&self, devices: &[Device]) -> Vec<(String, String)>;

    /// What the drivers report about the GPUs now, with the containers that hold them. It may take
    /// seconds, and is empty without GPUs.
    fn readings(&self) -> Vec<GpuReading> {
        Vec::new()
    }

    /// Releases the devices of a pod.
    fn release(&self, pod: &PodUid);

    /// Releases the devices of all pods that are not in `pods`. The kubelet calls this when it
    /// starts.
    fn retain(&self, pods: &BTreeSet<PodUid>);
}
