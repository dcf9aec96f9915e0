//! What can go wrong.

/// Why a write did not happen. Nothing was applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// Create: there already is an object at the key.
    #[error("{key} already exists at revision {revision}")]
    Exists {
        /// The key.
        key: String,
        /// Revision of the object that is there.
        revision: u64,
    },
    /// Update or delete: there is no object at the key.
    #[error("{key} does not exist")]
    NotFound {
        /// The key.
        key: String,
    },
    /// Update or delete: the object changed since the writer looked.
    #[error("{key} is at revision {actual}, not at {expected}")]
    Conflict {
        /// The key.
        key: String,
        /// What the writer saw.
        expected: u64,
        /// What is stored.
        actual: u64,
    },
    /// Too much waits for the disk already: it may be tried again.
    #[error("{reason}")]
    Busy {
        /// Whose writes are too many.
        reason: &'static str,
    },
    /// The engine could not make the write durable: disk full, read-only, broken.
    #[error("the write could not be made durable: {reason}")]
    Unavailable {
        /// The engine's words.
        reason: String,
    },
}

/// Why a state or history can not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The revision is older than the kept history.
    #[error("revision {requested} is gone: history begins at {oldest}")]
    Compacted {
        /// The revision asked for.
        requested: u64,
        /// The oldest revision that can be asked for.
        oldest: u64,
    },
    /// The revision is newer than the last write.
    #[error("revision {requested} does not exist yet: the last one is {current}")]
    Future {
        /// The revision asked for.
        requested: u64,
        /// The last revision.
        current: u64,
    },
}
