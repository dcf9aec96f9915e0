//! States and results that a runtime reports.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{ContainerId, PodUid, UserSpec};

/// An available image, with the defaults that it declares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// Reference as requested.
    pub reference: String,
    /// Digest, or a description of the mapping, such as `host` or `folder:/srv/images/torch`.
    pub id: String,
    /// Root file system; `None` for the host's own files.
    pub root: Option<ImageRoot>,
    /// Entrypoint.
    pub entrypoint: Vec<String>,
    /// Default arguments.
    pub cmd: Vec<String>,
    /// Environment, `NAME=value`.
    pub env: Vec<String>,
    /// User.
    pub user: UserSpec,
    /// Working directory.
    pub working_dir: String,
    /// Signal that stops a container; if empty, SIGTERM.
    pub stop_signal: String,
    /// Size in bytes; zero if unknown.
    pub size_bytes: u64,
    /// A notice for users, such as "no image was imported: runs on the host's files". The kubelet
    /// reports it in an event.
    pub notice: Option<String>,
}

/// Location of the root file system of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum ImageRoot {
    /// Unpacked layers, the lowest first; each is a folder for overlayfs.
    Layers {
        /// Folders.
        folders: Vec<PathBuf>,
    },
    /// A folder that is used unchanged, read-only.
    Folder {
        /// Folder.
        path: PathBuf,
    },
}

/// State of a pod in its runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodState {
    /// UID.
    pub uid: PodUid,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Addresses, the primary one first.
    pub ips: Vec<String>,
    /// True if the sandbox exists and its supervisor runs. Without the supervisor, running
    /// containers of the pod are lost: their exit codes are unknown.
    pub is_ready: bool,
    /// When the sandbox was created.
    pub created_at: Timestamp,
    /// All runs of containers that the runtime knows, in order of their starts.
    pub containers: Vec<ContainerStatus>,
}

/// State of one run of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    /// ID of the run.
    pub id: ContainerId,
    /// ID of the image.
    pub image_id: String,
    /// State.
    pub state: ContainerState,
}

/// State of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum ContainerState {
    /// The program runs.
    Running {
        /// When it started.
        started_at: Timestamp,
    },
    /// The program ended.
    Exited(Exit),
    /// The start was recorded, but the supervisor ended before it recorded the program's end. The
    /// kubelet reports `ContainerStatusUnknown` with exit code 137.
    Unknown {
        /// When it started; `None` if that is unknown.
        started_at: Option<Timestamp>,
    },
}

/// End of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exit {
    /// When the program started.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
    /// Exit code, or 128 plus the signal's number if a signal ended the program.
    pub exit_code: i32,
    /// Signal that ended it.
    pub signal: Option<i32>,
    /// True if the kernel, or the runtime's own memory watch, killed it for exceeding its memory
    /// limit.
    pub oom_killed: bool,
    /// Termination message, at most 4096 bytes.
    pub message: String,
}

/// Result of a command that ran to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Exit code.
    pub exit_code: i32,
    /// Standard output and standard error, at most 10 KiB.
    pub output: Vec<u8>,
}

/// CPU and memory usage of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodStats {
    /// UID.
    pub uid: PodUid,
    /// Time of the measurement.
    pub at: Timestamp,
    /// Running containers.
    pub containers: Vec<ContainerStats>,
}

/// CPU and memory usage of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStats {
    /// Name.
    pub name: String,
    /// When the container started.
    pub started_at: Timestamp,
    /// CPU time used since the start, in nanoseconds.
    pub cpu_nanos: u64,
    /// Memory in use without reclaimable page cache, in bytes.
    pub memory_bytes: u64,
}

/// Disk usage of a pod, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDisk {
    /// Size of the files and logs that running containers have written, by container name.
    pub containers: BTreeMap<String, u64>,
    /// Size of volumes of type `emptyDir` on disk, by name.
    pub volumes: BTreeMap<String, u64>,
}

impl PodDisk {
    /// The sum over containers and volumes.
    pub fn total_bytes(&self) -> u64 {
        self.containers.values().chain(self.volumes.values()).fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}
