//! Options of the process runtime, and the isolation level it reports.

use std::path::PathBuf;
use std::sync::Arc;

use berth_pod_runtime::Images;

use crate::helper::Helper;

/// The separation of pods from the host and from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// One session and process group per container. Has no requirements.
    Plain,
    /// Namespaces in a user namespace. Requires user namespaces.
    Rootless,
    /// Namespaces and control groups. Requires root.
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
    /// Sentences for the user: why a higher level is not available, and which parts of this level
    /// are missing.
    pub reasons: Vec<String>,
}

/// Options of [`crate::ProcessRuntime::prepare`].
pub struct Options {
    /// Folder of the node, with the pods' folders and the runtime's records.
    pub folder: PathBuf,
    /// Folders other than `folder` that must be hidden from containers, such as the data folder of
    /// `berth up`.
    pub hidden: Vec<PathBuf>,
    /// Requested level; `None` for the highest level that works.
    pub level: Option<Level>,
    /// Provider of images.
    pub images: Arc<dyn Images>,
    /// How to run a supervisor and an entry helper.
    pub helper: Helper,
    /// Maximum number of processes and threads of a pod.
    pub pids_max: u64,
}

impl Options {
    /// Default options: the highest level that works, at most 1024 processes per pod.
    pub fn new(folder: PathBuf, images: Arc<dyn Images>, helper: Helper) -> Self {
        Self { folder, hidden: Vec::new(), level: None, images, helper, pids_max: 1024 }
    }
}
