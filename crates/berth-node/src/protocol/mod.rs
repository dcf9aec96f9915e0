//! Messages between the runtime, a pod's supervisor and a container's entry helper.
//!
//! A message is four bytes with the length of its JSON, most significant first, and the JSON. File
//! descriptors travel with a message's first bytes ([`wire`]).

pub(crate) mod wire;

use std::collections::BTreeMap;
use std::path::PathBuf;

use berth_pod_runtime::{
    ContainerConfig, ContainerId, ContainerStatus, PodLimits, RuntimeError, SandboxConfig, Security,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::cgroup::Group;
use crate::options::Level;

/// `pod.json`: what a supervisor needs to serve a pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Launch {
    pub config: SandboxConfig,
    pub created_at: Timestamp,
    /// Addresses of the pod.
    pub ips: Vec<String>,
    pub level: Level,
    /// The pod's control group, if control groups can be written.
    pub group: Option<Group>,
    /// Executable and arguments of the entry helper.
    pub init: Vec<String>,
    /// Folders that containers may not see.
    pub hidden: Vec<PathBuf>,
    /// How the host's files become a container's root.
    pub host_root: HostRoot,
    pub pids_max: u64,
    /// Memory of the machine in bytes, for the order in which the kernel kills.
    pub machine_memory_bytes: u64,
}

/// How the host's own files become the root file system of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum HostRoot {
    /// An overlay whose writable layer is in the pod's folder.
    Overlay,
    /// An overlay whose writable layer is in memory.
    MemoryOverlay,
    /// Read-only binds of the host's folders.
    Binds,
}

/// A command to a supervisor; one per connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Request {
    /// Send the containers' states now and after each change, until the connection closes.
    Watch,
    /// Start one run of a container.
    Start(Box<ContainerConfig>),
    /// Send the stop signal now and SIGKILL after the grace period.
    Stop { id: ContainerId, grace_ms: u64 },
    /// Change the limits of the pod and of running containers.
    Limit(Box<PodLimits>),
    /// Kill everything and end.
    Shutdown,
    /// Run a command in a container. Its standard streams come with the message, unless it runs on
    /// a terminal. Closing the connection kills the command.
    Exec { id: ContainerId, command: Vec<String>, tty: bool },
    /// Copy the container's output to the pipes that come with the message: output, error output
    /// and input, as far as `streams` names them.
    Attach { id: ContainerId, streams: AttachStreams },
    /// Connect to a port of the pod. The socket comes with the answer.
    Connect { port: u16 },
}

/// Streams of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttachStreams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

/// An answer of a supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Reply {
    /// The containers of the pod in order of starts.
    Containers(Vec<ContainerStatus>),
    /// State of a container that was started.
    Container(ContainerStatus),
    /// The command was carried out, or the stream begins. A terminal or a socket may come with it.
    Done,
    /// The command or container ended.
    Exited {
        code: i32,
    },
    Error(WireError),
}

/// A [`RuntimeError`] on the wire and in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum WireError {
    NotFound(String),
    Config(String),
    Start { exit_code: i32, message: String },
    Unsupported(String),
    Internal(String),
}

impl std::fmt::Display for WireError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound(message) | Self::Config(message) | Self::Unsupported(message) | Self::Internal(message) => {
                f.write_str(message)
            }
            Self::Start { message, .. } => f.write_str(message),
        }
    }
}

impl From<WireError> for RuntimeError {
    fn from(error: WireError) -> Self {
        match error {
            WireError::NotFound(message) => Self::NotFound(message),
            WireError::Config(message) => Self::Config(message),
            WireError::Start { exit_code, message } => Self::Start { exit_code, message },
            WireError::Unsupported(message) => Self::Unsupported(message),
            WireError::Internal(message) => Self::Internal(message),
        }
    }
}

impl From<RuntimeError> for WireError {
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::NotFound(message) => Self::NotFound(message),
            RuntimeError::Config(message) => Self::Config(message),
            RuntimeError::Start { exit_code, message } => Self::Start { exit_code, message },
            RuntimeError::Unsupported(message) => Self::Unsupported(message),
            other => Self::Internal(other.to_string()),
        }
    }
}

impl From<std::io::Error> for WireError {
    fn from(error: std::io::Error) -> Self {
        Self::Internal(error.to_string())
    }
}

/// What an entry helper becomes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Entry {
    /// A container's program. Standard streams come with the message, unless it has a terminal.
    Container(Box<ContainerEntry>),
    /// A command in a running container. The message carries the container's process handle first,
    /// then the standard streams.
    Exec(Box<ExecEntry>),
    /// The first process of a PID namespace that the pod's containers share.
    Pause,
}

/// Entry of a container's program.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerEntry {
    pub config: ContainerConfig,
    pub level: Level,
    /// Folder of this run in the pod's folder.
    pub folder: PathBuf,
    /// The pod's `etc` folder.
    pub etc: PathBuf,
    /// Source of each mounted volume.
    pub volumes: BTreeMap<String, VolumeSource>,
    pub hidden: Vec<PathBuf>,
    pub host_root: HostRoot,
    /// Shared memory of the pod.
    pub shm: PathBuf,
    /// The container uses the host's network.
    pub host_network: bool,
    /// Control groups of the container by the path at which they appear in it.
    pub groups: BTreeMap<PathBuf, PathBuf>,
    /// Host name, for the environment.
    pub hostname: String,
    /// Marks the processes of the pod where nothing else does.
    pub cookie: String,
}

/// Where a volume's files are on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeSource {
    pub path: PathBuf,
    /// The files come from the API: mounts are read-only.
    pub read_only: bool,
    /// A missing sub-path may be created.
    pub writable: bool,
    /// The host's own mounts below the path belong to the volume.
    pub recursive: bool,
}

/// A command in a running container.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExecEntry {
    pub command: Vec<String>,
    pub tty: bool,
    pub isolated: bool,
    pub program: Program,
    pub security: Security,
}

/// How a program runs: user, environment and working directory, as resolved in the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Program {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub env: Vec<(String, String)>,
    pub working_dir: PathBuf,
    /// Landlock rules of the plain level: paths that may be written, and read.
    pub landlock: Option<LandlockRules>,
}

/// Paths that processes of a pod at the plain level may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LandlockRules {
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
}

/// A message of an entry helper. Its connection closes when the program is executed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Report {
    /// Set up, and waits for [`Go`]. The terminal comes with the message.
    Ready(Program),
    /// Failed. Before [`Go`], nothing was recorded and the start may be repeated.
    Failed(WireError),
}

/// The start is recorded: execute the program.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Go;
