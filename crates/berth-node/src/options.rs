//! Options of the process runtime, and the isolation level it reports.

use std::path::PathBuf;
use std::sync::Arc;

use berth_pod_runtime::{Images, SandboxNetwork};

use crate::helper::Helper;

/// How strongly pods are separated from the host and from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A session and a process group per container. Needs nothing.
    Plain,
    /// Namespaces inside a user namespace. Needs user namespaces.
    Rootless,
    /// Namespaces and control groups. Needs root.
    Full,
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Rootless => "rootless",
            Self::Full => "full",
        })
    }
}

/// The isolation that pods get on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolation {
    /// Level.
    pub level: Level,
    /// Sentences for the user: why a higher level is not available, and which part of this level is
    /// missing.
    pub reasons: Vec<String>,
}

/// Options of [`crate::ProcessRuntime::open`].
pub struct Options {
    /// Folder of the node: the pods' folders and what the runtime records.
    pub folder: PathBuf,
    /// Folders that no container may see besides `folder`, such as the data folder of `berth up`.
    pub hidden: Vec<PathBuf>,
    /// Requested level; `None` for the highest that works.
    pub level: Option<Level>,
    /// Images.
    pub images: Arc<dyn Images>,
    /// Pod network. Without it pods have a loopback interface only.
    pub network: Option<Arc<dyn SandboxNetwork>>,
    /// How to run the supervisor and the entry helper.
    pub helper: Helper,
    /// Maximum number of processes and threads of a pod.
    pub pids_max: u64,
}

impl Options {
    /// Options with the defaults: the highest level that works, no pod network, 1024 processes a pod.
    pub fn new(folder: PathBuf, images: Arc<dyn Images>, helper: Helper) -> Self {
        Self { folder, hidden: Vec::new(), level: None, images, network: None, helper, pids_max: 1024 }
    }
}
