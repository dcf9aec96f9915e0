//! Errors of the store.

/// A rejected or failed write. Nothing was applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// Create: the key already exists.
    #[error("{key} already exists at revision {revision}")]
    Exists {
        /// The key.
        key: String,
        /// Revision of the stored object.
        revision: u64,
    },
    /// Update or delete: the key does not exist.
    #[error("{key} does not exist")]
    NotFound {
        /// The key.
        key: String,
    },
    /// Update or delete: the object is not at the expected revision.
    #[error("{key} is at revision {actual}, not at {expected}")]
    Conflict {
        /// The key.
        key: String,
        /// Revision that the writer expected.
        expected: u64,
        /// Revision of the stored object.
        actual: u64,
    },
    /// Too many writes wait for the disk; the write may be retried.
    #[error("{reason}")]
    Busy {
        /// States whether the user or the whole store has too many writes.
        reason: &'static str,
    },
    /// The write could not be made durable: the disk is full, read-only or broken.
    #[error("the write could not be made durable: {reason}")]
    Unavailable {
        /// Error of SQLite, or the reason why the store accepts no writes.
        reason: String,
    },
}

/// The reason why the store accepts no writes at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Description for the operator.
    pub reason: String,
    /// True if only a restart of the process helps. Otherwise writes resume once the cause is
    /// removed.
    pub restart_helps: bool,
}

/// A revision whose state or later changes cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The revision is older than the kept history.
    #[error("revision {requested} was compacted: history begins at {oldest}")]
    Compacted {
        /// The requested revision.
        requested: u64,
        /// The oldest available revision.
        oldest: u64,
    },
    /// The revision is newer than the last write.
    #[error("revision {requested} does not exist yet: the last one is {current}")]
    Future {
        /// The requested revision.
        requested: u64,
        /// The current revision.
        current: u64,
    },
}

/// The reason why a store file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another Berth process has the store open.
    #[error("the store {path} is in use: another berth has it open")]
    InUse {
        /// The file.
        path: String,
    },
    /// Another program holds SQLite's own lock on the file.
    #[error("the store {path} is in use: another program has it open (an older berth, or sqlite3)")]
    Locked {
        /// The file.
        path: String,
    },
    /// A file of the store cannot be opened, read or written.
    #[error("cannot open the store {path}: {source}")]
    Lock {
        /// The file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// SQLite cannot open the file: no permission, no space, or a broken disk.
    #[error("cannot open the store {path}: {source}")]
    Engine {
        /// The file.
        path: String,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// The file does not contain the data that was written.
    #[error("the store {path} is damaged: {problem}. {REMEDY}")]
    Damaged {
        /// The file.
        path: String,
        /// Description of the damage.
        problem: String,
    },
    /// Acknowledged writes at the end of the log are missing.
    #[error(
        "the store {path} has lost its last writes: {problem}. If {path}-wal was moved away, put it back. Otherwise: {REMEDY}"
    )]
    EndLost {
        /// The file.
        path: String,
        /// Last revision that was found, and the one that was expected.
        problem: String,
    },
}

/// How to repair a damaged store.
const REMEDY: &str = "Restore a copy of the whole data folder, or start once with --recover: it keeps all intact objects, lists the \
                      damaged ones, and leaves the damaged files in the folder";
