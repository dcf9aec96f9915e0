//! The interface to the source of `pods/log`.

/// Source of the text that `pods/log` returns (the node agent).
pub trait PodLogs: Send + Sync {
    /// Lines that `container` of a pod has written so far. An error becomes the message of a 400
    /// response.
    fn read(&self, namespace: &str, pod: &str, container: &str, part: &LogPart) -> Result<String, String>;
}

/// Selects the lines of a log and their form; fields of Kubernetes' `PodLogOptions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPart {
    /// Lines of the container's previous run instead of the current one.
    pub previous: bool,
    /// Only lines of the last so many seconds.
    pub since_seconds: Option<i64>,
    /// Only lines since this time.
    pub since_time: Option<jiff::Timestamp>,
    /// Prefix each line with its time.
    pub timestamps: bool,
}
