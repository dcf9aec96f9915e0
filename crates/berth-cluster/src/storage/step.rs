//! Plans of the binder: one write for a claim or a volume, and the event to record with it.

use berth_runtime::EventType;

/// An event about the object of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// Type of the event.
    pub event_type: EventType,
    /// Reason in CamelCase.
    pub reason: &'static str,
    /// Message.
    pub message: String,
}

impl Note {
    /// A warning.
    pub fn warning(reason: &'static str, message: impl Into<String>) -> Note {
        Note { event_type: EventType::Warning, reason, message: message.into() }
    }

    /// An event of type Normal.
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Note {
        Note { event_type: EventType::Normal, reason, message: message.into() }
    }
}

/// The next write for an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<S> {
    /// The write.
    pub step: S,
    /// Event to record with it.
    pub note: Option<Note>,
}

impl<S> From<S> for Plan<S> {
    fn from(step: S) -> Self {
        Plan { step, note: None }
    }
}
