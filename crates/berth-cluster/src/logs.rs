//! What simulated containers print.
//!
//! Nothing is stored: a container's log is a function of its pod, so it reads the same after a restart.

use std::sync::{Arc, OnceLock};

use berth_runtime::{Cache, Clock, Manager};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

/// Reads the logs of simulated pods; clones share it. Empty until the cluster is installed.
#[derive(Clone, Default)]
pub struct PodLogs {
    source: Arc<OnceLock<(Cache<Pod>, Clock)>>,
}

impl std::fmt::Debug for PodLogs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PodLogs").field("connected", &self.source.get().is_some()).finish()
    }
}

/// What part of a log is wanted; the fields of Kubernetes' `PodLogOptions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// The log of the container's previous run.
    pub previous: bool,
    /// Only lines of the last so many seconds.
    pub since_seconds: Option<i64>,
    /// Only lines since this time.
    pub since_time: Option<Timestamp>,
    /// Starts each line with its time.
    pub timestamps: bool,
    /// Only the last so many lines.
    pub tail_lines: Option<i64>,
    /// At most so many bytes, from the start.
    pub limit_bytes: Option<i64>,
}

impl PodLogs {
    pub(crate) fn connect(&self, manager: &mut Manager) {
        let source = (manager.cache::<Pod>(), manager.clock());
        // A second installation would describe the same API; the first one stays.
        let _ = self.source.set(source);
    }

    /// The log of a container (the only or default one when `container` is `None`) as text, `None` when there is no
    /// such pod or container.
    pub fn read(&self, namespace: &str, pod: &str, container: Option<&str>, options: &LogOptions) -> Option<String> {
        let _ = (namespace, pod, container, options);
        None
    }
}
