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

/// Why nothing can be written for the time being.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What is wrong.
    pub reason: String,
    /// Whether it will stay so until the process is started anew. Otherwise writes go on by themselves once the cause is gone.
    pub restart_helps: bool,
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

/// Why a store file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("the store {path} is in use: another berth has it open")]
    InUse {
        /// The file.
        path: String,
    },
    /// Another program holds SQLite's own lock on it.
    #[error("the store {path} is in use: another program has it open (an older berth, or sqlite3)")]
    Locked {
        /// The file.
        path: String,
    },
    /// A file that belongs to the store cannot be opened or written.
    #[error("cannot open the store {path}: {source}")]
    Lock {
        /// The file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// SQLite refused: no permission, no room, a broken disk.
    #[error("cannot open the store {path}: {source}")]
    Engine {
        /// The file.
        path: String,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// It does not hold what was written.
    #[error("the store {path} is damaged: {what}. {REMEDY}")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong with it.
        what: String,
    },
    /// Writes at its end are gone that were acknowledged.
    #[error(
        "the store {path} has lost its end: {what}. If {path}-wal was moved away, put it back. Otherwise: {REMEDY}"
    )]
    EndLost {
        /// The file.
        path: String,
        /// How far it goes and how far it should.
        what: String,
    },
}

/// What to do about a damaged store.
const REMEDY: &str = "Put back a copy of the whole data folder, or start once with --recover: it keeps what is sound, lists what \
                      is not, and leaves the damaged files beside it";
