//! Messages between the runtime, a pod's supervisor and a container's entry helper. They are sent
//! with [`berth_helper::wire`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use berth_pod_runtime::{
    ContainerConfig, ContainerId, ContainerStatus, PodLimits, RuntimeError, SandboxConfig, Security,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::cgroup::Group;
use crate::options::Level;

/// Content of `pod.json`: the information that a supervisor needs to serve a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Launch {
    pub config: SandboxConfig,
    pub created_at: Timestamp,
    /// Addresses of the pod.
    pub ips: Vec<String>,
    /// True if the pod network has no namespaces. The pod then uses the machine's network namespace
    /// although it is not on the host's network.
    #[serde(default)]
    pub shared_network: bool,
    /// True if the supervisor enters the user namespace that is its standard input.
    #[serde(default)]
    pub user_namespace: bool,
    pub level: Level,
    /// The pod's control group; `None` if control groups cannot be written.
    pub group: Option<Group>,
    /// Executable and arguments of the entry helper.
    pub init: Vec<String>,
    /// Folders that are hidden from containers.
    pub hidden: Vec<PathBuf>,
    /// How to build a container's root from the host's files.
    pub host_root: HostRoot,
    pub pids_max: u64,
    /// Memory of the machine in bytes, to compute the order in which the kernel kills processes.
    pub machine_memory_bytes: u64,
}

impl Launch {
    /// True if the pod has a network namespace. Does not consider the level plain, which has none.
    pub fn has_network_namespace(&self) -> bool {
        !self.config.host_network && !self.shared_network
    }
}

/// How to build the root file system of a container from the host's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum HostRoot {
    /// An overlay whose writable layer is in the pod's folder.
    Overlay,
    /// An overlay whose writable layer is in memory.
    MemoryOverlay,
    /// Read-only bind mounts of the host's folders.
    Binds,
}

/// A command to a supervisor. Each connection carries one command.
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
    /// Kill all processes of the pod and end.
    Shutdown,
    /// Run a command in a container. Unless it runs on a terminal, its standard streams are sent
    /// with the message. Closing the connection kills the command.
    Exec { id: ContainerId, command: Vec<String>, tty: bool },
    /// Copy the container's output to pipes that are sent with the message: output, error output
    /// and input, if `streams` selects them.
    Attach { id: ContainerId, streams: AttachStreams },
    /// Connect to a port of the pod. The socket is sent with the response.
    Connect { port: u16 },
}

/// Streams of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttachStreams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

/// A response of a supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Reply {
    /// The containers of the pod in order of starts.
    Containers(Vec<ContainerStatus>),
    /// State of a container after its start.
    Container(ContainerStatus),
    /// The command was carried out, or the stream starts. A terminal or a socket may be sent with
    /// it.
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

/// The program that an entry helper executes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Entry {
    /// A container's program. Its standard streams are sent with the message, unless it has a
    /// terminal.
    Container(Box<ContainerEntry>),
    /// A command in a running container. The message carries the process handle of the container,
    /// then the standard streams.
    Exec(Box<ExecEntry>),
    /// The first process of a PID namespace that the pod's containers share, and its control group.
    Pause(Option<Group>),
}

/// Configuration of a container's program.
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
    /// Folder with the shared memory of the pod.
    pub shm: PathBuf,
    /// True if the container uses the host's network.
    pub host_network: bool,
    /// Control group of the container, which the entry helper joins.
    pub group: Option<Group>,
    /// Host name, for the environment.
    pub hostname: String,
    /// Value of an environment variable that marks the processes of the pod if no other mark does.
    pub cookie: String,
}

/// Location of a volume's files on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeSource {
    pub path: PathBuf,
    /// True if the files come from the API. Mounts are then read-only.
    pub read_only: bool,
    /// True if a missing sub-path may be created.
    pub writable: bool,
    /// True if the host's mounts below the path belong to the volume.
    pub recursive: bool,
}

/// Configuration of a command in a running container.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExecEntry {
    /// Control group of the container, which the entry helper joins.
    pub group: Option<Group>,
    pub command: Vec<String>,
    pub tty: bool,
    pub isolated: bool,
    pub program: Program,
    pub security: Security,
}

/// User, environment and working directory of a program, resolved in the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Program {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub env: Vec<(String, String)>,
    pub working_dir: PathBuf,
    /// Landlock rules of the plain level.
    pub landlock: Option<LandlockRules>,
}

/// Paths that processes of a pod at the plain level may write or read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LandlockRules {
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
}

/// A message of an entry helper. The connection closes when the program is executed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Report {
    /// The setup is complete, and the helper waits for [`Go`]. The terminal is sent with the
    /// message.
    Ready(Program),
    /// The setup or the start failed. Before [`Go`], nothing is recorded and the start may be
    /// repeated.
    Failed(WireError),
}

/// The start is recorded. The entry helper executes the program.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Go;
