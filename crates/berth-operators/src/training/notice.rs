//! Events that a plan records.

use berth_runtime::{EventType, Recorder};
use kube::Resource;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// True for type Warning.
    pub is_warning: bool,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
}

impl Notice {
    /// An event of type Normal.
    pub fn normal(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { is_warning: false, reason: reason.into(), message: message.into() }
    }

    /// An event of type Warning.
    pub fn warning(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { is_warning: true, reason: reason.into(), message: message.into() }
    }

    /// Records the event about an object.
    pub fn record<K: Resource<DynamicType = ()>>(&self, recorder: &Recorder, object: &K) {
        let kind = if self.is_warning { EventType::Warning } else { EventType::Normal };
        recorder.event(object, kind, &self.reason, &self.message);
    }
}
