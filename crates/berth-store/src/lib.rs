//! Object store with revisions, watch history and compaction behind one small trait, [`Store`].
//!
//! The store keeps JSON objects under keys. Every committed write gets the next number of one
//! global sequence, the *revision*. The revision is also stamped into the object as
//! `metadata.resourceVersion`. Readers get consistent snapshots at a revision. Watchers get every
//! change after a revision, in order and without gaps, or an error if the history that they need
//! has been compacted.
//!
//! All live objects and the recent history are in memory as serialised bytes, in a persistent map.
//! A snapshot is a copy of one pointer, so readers never wait for the writer. There are two
//! implementations:
//!
//! - [`MemoryStore`] is not durable: a write is visible when `commit` returns.
//! - [`SqliteStore`] writes each batch of queued commits in one transaction and acknowledges them
//!   when the transaction is on disk.
//!
//! The store knows few fields of Kubernetes objects. It stamps `resourceVersion` and finds
//! `managedFields`. When it reads a file, it compares each object's name and namespace with the
//! object's key. On a full disk, a `deletionTimestamp` makes a write part of a deletion.
//!
//! ```
//! use berth_store::{ListQuery, MemoryStore, Store, Write};
//! use serde_json::json;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let store = MemoryStore::new();
//! let before = store.revision();
//! let pod = json!({"metadata": {"name": "a", "namespace": "default"}});
//! let created = store.commit(Write::Create { key: "/pods/default/a".into(), value: pod.clone() }).await.unwrap();
//!
//! // The revision of the write is the object's resourceVersion.
//! let revision = store.revision();
//! assert_eq!(created.value["metadata"]["resourceVersion"], revision.to_string());
//!
//! // An update at another revision than the object's is rejected.
//! let stale = Write::Update { key: "/pods/default/a".into(), expected: before, value: pod };
//! assert!(store.commit(stale).await.is_err());
//!
//! // Lists show the state at one revision. Watchers get each change after a revision.
//! assert_eq!(store.list(&ListQuery::all("/pods/")).unwrap().records.len(), 1);
//! let mut watcher = store.watch("/pods/", before).unwrap();
//! assert_eq!(watcher.next().await.unwrap().revision(), revision);
//! # }
//! ```

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

/// Default number of changes that a store keeps for watchers and for lists at older revisions. At a
/// few kilobytes each the history takes tens of megabytes, and a client that pauses for minutes can
/// usually resume its watch.
pub const HISTORY_DEFAULT: usize = 10_000;

/// One write, guarded by the state that its author expects.
#[derive(Clone, Debug)]
pub enum Write {
    /// Stores a new object; rejected if the key exists.
    Create {
        /// The object's key.
        key: String,
        /// The object; its `metadata.resourceVersion` is overwritten.
        value: Value,
    },
    /// Replaces an object; rejected if the object is not at revision `expected`.
    Update {
        /// The object's key.
        key: String,
        /// Revision that the writer saw.
        expected: u64,
        /// The new object; its `metadata.resourceVersion` is overwritten.
        value: Value,
    },
    /// Deletes an object; rejected if the object is not at revision `expected`.
    Delete {
        /// The object's key.
        key: String,
        /// Revision that the writer saw.
        expected: u64,
        /// Last state of the object for watchers; the stored state if `None`.
        last: Option<Value>,
    },
}

impl Write {
    /// Approximate number of bytes that a queued write takes in memory.
    fn memory(&self) -> usize {
        match self {
            Write::Create { value, .. } | Write::Update { value, .. } => memory_of(value),
            Write::Delete { last, .. } => last.as_ref().map_or(0, memory_of),
        }
    }
}

/// Approximate number of bytes that a value takes on the heap, without its own `size_of`.
fn memory_of(value: &Value) -> usize {
    /// Bytes of a map's node, which has space for eleven members.
    const NODE: usize = 640;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| size_of::<Value>() + memory_of(item)).sum(),
        Value::Object(members) => {
            let texts = members.iter().map(|(name, member)| name.len() + memory_of(member));
            // Nodes are at least half full.
            members.len().div_ceil(11).max(members.len() / 6) * NODE + texts.sum::<usize>()
        }
    }
}

/// A committed write.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The object as stored. After a delete, its last state stamped with the revision of the
    /// delete.
    pub record: Arc<Record>,
    /// The parsed object.
    pub value: Arc<Value>,
}

/// A query for [`Store::list`].
#[derive(Clone, Debug)]
pub struct ListQuery<'a> {
    /// Prefix of the keys to list.
    pub prefix: &'a str,
    /// Lists only keys after this one.
    pub start_after: Option<&'a str>,
    /// Maximum number of objects; 0 for no limit.
    pub limit: usize,
    /// Revision to list; the current one if `None`.
    pub at_revision: Option<u64>,
}

impl<'a> ListQuery<'a> {
    /// A query for all objects below `prefix` at the current revision.
    pub fn all(prefix: &'a str) -> ListQuery<'a> {
        ListQuery { prefix, start_after: None, limit: 0, at_revision: None }
    }
}

/// Result of [`Store::list`]: the state at one revision.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The objects, ordered by key.
    pub records: Vec<Arc<Record>>,
    /// Revision of the listed state.
    pub revision: u64,
    /// Number of matching objects after the last listed one.
    pub remaining: usize,
}

/// Result of a commit, which resolves when the write is durable and visible.
pub type CommitFuture = Pin<Box<dyn Future<Output = Result<Committed, CommitError>> + Send>>;

/// Objects under keys, with one global revision. The documentation of the crate describes the
/// guarantees of every implementation.
pub trait Store: Send + Sync + 'static {
    /// Returns the revision of the last visible write.
    fn revision(&self) -> u64;

    /// Returns the object at `key`.
    fn get(&self, key: &str) -> Option<Arc<Record>>;

    /// Returns the objects below a prefix, at one revision.
    ///
    /// # Errors
    /// [`ReadError::Compacted`] and [`ReadError::Future`] when the history does not cover
    /// `at_revision`.
    fn list(&self, query: &ListQuery<'_>) -> Result<Listing, ReadError>;

    /// Queues a write before it returns, in the order of the calls. The future resolves when the
    /// write is durable and visible. Dropping the future does not cancel the write.
    fn commit(&self, write: Write) -> CommitFuture {
        self.commit_for("", write)
    }

    /// Queues a write on behalf of `user`, in order with the other writes of that user. If many
    /// writes wait, users take turns.
    fn commit_for(&self, user: &str, write: Write) -> CommitFuture;

    /// Returns the shortest recent time of a commit: the time that a write takes even if no other
    /// write waits. Zero if commits are not durable.
    fn commit_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the reason why writes fail at the moment, if they do. Reads are not affected.
    fn trouble(&self) -> Option<Trouble> {
        None
    }

    /// Returns a watcher for every change below `prefix` after revision `after`.
    ///
    /// # Errors
    /// [`ReadError::Compacted`] when changes after `after` were already compacted;
    /// [`ReadError::Future`] when the store has not reached `after` yet.
    fn watch(&self, prefix: &str, after: u64) -> Result<Watcher, ReadError>;

    /// Returns a counter of the writes below `prefix`. It grows before a write becomes visible to
    /// readers. A caller that caches a result computed from these objects loads the counter before
    /// it reads them, and computes the result again when the counter has changed.
    fn changes(&self, prefix: &str) -> Arc<AtomicU64>;

    /// Removes the history up to and including `revision`. Later history and live objects are not
    /// affected.
    fn compact(&self, revision: u64);

    /// Returns the last compacted revision, which is the oldest one that [`Store::watch`] accepts.
    fn compacted(&self) -> u64;
}
