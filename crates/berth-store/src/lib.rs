//! Revisions, watch history and compaction behind one small trait.
//!
//! The store keeps JSON objects under keys. Every committed write gets the next number of one global sequence, the
//! *revision*, which is also stamped into the object as `metadata.resourceVersion`. Readers get consistent snapshots at a
//! revision; watchers get every change after a revision, in order, without gaps, or are told that the history they need
//! is gone.
//!
//! All live objects and the recent history are in memory as serialised bytes, in a persistent map: taking a snapshot is
//! one pointer copy, so readers never wait for the writer. Below that sits an engine that makes writes durable:
//! [`MemoryStore`] has none and answers at once, on the calling thread; [`SqliteStore`] writes each batch of queued
//! commits in one transaction and acknowledges them when it is on disk.
//!
//! The store knows nothing of Kubernetes but the place of `resourceVersion`.

mod checkpoint;
mod error;
mod file;
mod format;
mod key;
mod mark;
mod memory;
mod mvcc;
mod pages;
mod queue;
mod record;
mod recover;
mod reserve;
mod sqlite;
mod wal;
mod watch;
mod writer;

pub use error::{CommitError, OpenError, ReadError, Trouble};
pub use memory::MemoryStore;
pub use record::{Change, Event, Record};
pub use recover::{Recovery, recover};
pub use sqlite::{SqliteOptions, SqliteStore};
pub use watch::{WatchEnd, Watcher};

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use serde_json::Value;

/// Changes a store keeps for watchers and for lists at older revisions, unless told otherwise: at a few kilobytes each
/// this bounds history to tens of megabytes, and gives a client that pauses for minutes a fair chance to resume.
pub const HISTORY_DEFAULT: usize = 10_000;

/// One write, guarded by what the writer believes to be stored.
#[derive(Clone, Debug)]
pub enum Write {
    /// Stores a new object; refused if the key exists.
    Create {
        /// Where.
        key: String,
        /// What; its `metadata.resourceVersion` is overwritten.
        value: Value,
    },
    /// Replaces an object; refused if it is not at `expected`.
    Update {
        /// Where.
        key: String,
        /// Revision the writer saw.
        expected: u64,
        /// What; its `metadata.resourceVersion` is overwritten.
        value: Value,
    },
    /// Removes an object; refused if it is not at `expected`.
    Delete {
        /// Where.
        key: String,
        /// Revision the writer saw.
        expected: u64,
        /// The object's last state for watchers; the stored one when `None`.
        last: Option<Value>,
    },
}

impl Write {
    /// About how many bytes it takes in memory while it waits.
    fn memory(&self) -> usize {
        match self {
            Write::Create { value, .. } | Write::Update { value, .. } => memory_of(value),
            Write::Delete { last, .. } => last.as_ref().map_or(0, memory_of),
        }
    }
}

/// About how many bytes a value takes beside its own place in whatever holds it.
fn memory_of(value: &Value) -> usize {
    /// Of a map's node, which has room for eleven members.
    const NODE: usize = 640;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| size_of::<Value>() + memory_of(item)).sum(),
        Value::Object(members) => {
            let texts = members.iter().map(|(name, member)| name.len() + memory_of(member));
            // Nodes are half full at least.
            members.len().div_ceil(11).max(members.len() / 6) * NODE + texts.sum::<usize>()
        }
    }
}

/// A write that happened.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The object as stored, or (after a delete) its last state, stamped with the revision of the write.
    pub record: Arc<Record>,
    /// The same, parsed.
    pub value: Arc<Value>,
}

/// A question for [`Store::list`].
#[derive(Clone, Debug)]
pub struct ListQuery<'a> {
    /// What keys must begin with.
    pub prefix: &'a str,
    /// Only keys after this one.
    pub start_after: Option<&'a str>,
    /// At most this many; 0 for no limit.
    pub limit: usize,
    /// State at this revision instead of the current one.
    pub at_revision: Option<u64>,
}

impl<'a> ListQuery<'a> {
    /// Everything below `prefix`, now.
    pub fn all(prefix: &'a str) -> ListQuery<'a> {
        ListQuery { prefix, start_after: None, limit: 0, at_revision: None }
    }
}

/// Answer of [`Store::list`]: the state at one revision.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The objects in the order of their keys.
    pub records: Vec<Arc<Record>>,
    /// The revision this is the state of.
    pub revision: u64,
    /// How many more objects there are behind the limit.
    pub remaining: usize,
}

/// Result of a commit that may still be on its way to the disk.
pub type CommitFuture = Pin<Box<dyn Future<Output = Result<Committed, CommitError>> + Send>>;

/// Objects under keys, with one global revision. See the crate's documentation for what holds across implementations.
pub trait Store: Send + Sync + 'static {
    /// The revision of the last visible write.
    fn revision(&self) -> u64;

    /// The object at `key`.
    fn get(&self, key: &str) -> Option<Arc<Record>>;

    /// The objects below a prefix, at one revision.
    ///
    /// # Errors
    /// [`ReadError::Compacted`] and [`ReadError::Future`], when `at_revision` is out of what the history covers.
    fn list(&self, query: &ListQuery<'_>) -> Result<Listing, ReadError>;

    /// Queues a write at once, in the order of calls; the future resolves when it is durable and visible. Dropping the
    /// future does not take the write back.
    fn commit(&self, write: Write) -> CommitFuture {
        self.commit_for("", write)
    }

    /// The same on behalf of `user`: in order with that user's other writes, while users take turns where many writes wait.
    fn commit_for(&self, user: &str, write: Write) -> CommitFuture;

    /// How long a commit takes at the least, of late: what a write waits for whoever else writes. Zero where nothing is waited
    /// for.
    fn commit_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Why nothing can be written at the moment, if so. Reads are not affected.
    fn trouble(&self) -> Option<Trouble> {
        None
    }

    /// Every change below `prefix` after revision `after`, as it happened.
    ///
    /// # Errors
    /// [`ReadError::Compacted`] when changes after `after` were already forgotten; [`ReadError::Future`] when `after`
    /// was never reached.
    fn watch(&self, prefix: &str, after: u64) -> Result<Watcher, ReadError>;

    /// A number that is another one after every write below `prefix`, before anybody can read what was written: who works
    /// something out from what is there looks at it first, and works it out anew when it has changed.
    fn changes(&self, prefix: &str) -> Arc<AtomicU64>;

    /// Forgets history up to and including `revision`. Watches from there on and live objects are not affected.
    fn compact(&self, revision: u64);

    /// The revision up to which history is forgotten: the oldest one [`Store::watch`] accepts.
    fn compacted(&self) -> u64;
}
