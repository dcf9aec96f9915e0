//! A store without a durable log: writes are visible when `commit` returns. It is for simulation
//! and tests, and works with paused time because it uses no thread and never waits.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use crate::mvcc::Mvcc;
use crate::{CommitFuture, HISTORY_DEFAULT, ListQuery, Listing, ReadError, Record, Store, Watcher, Write};

/// A store in memory only.
pub struct MemoryStore {
    mvcc: Mvcc,
    /// Held during a commit, so that there is one writer at a time.
    writer: Mutex<()>,
}

impl MemoryStore {
    /// Creates an empty store that keeps [`HISTORY_DEFAULT`] changes.
    pub fn new() -> MemoryStore {
        MemoryStore::with_limits(HISTORY_DEFAULT, None)
    }

    /// Creates an empty store that keeps `history` changes and drops watchers that lag more than
    /// `watcher_buffer` changes behind.
    pub fn with_limits(history: usize, watcher_buffer: Option<usize>) -> MemoryStore {
        MemoryStore { mvcc: Mvcc::new(history, watcher_buffer, false), writer: Mutex::new(()) }
    }
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl Store for MemoryStore {
    fn revision(&self) -> u64 {
        self.mvcc.revision()
    }

    fn get(&self, key: &str) -> Option<Arc<Record>> {
        self.mvcc.get(key)
    }

    fn list(&self, query: &ListQuery<'_>) -> Result<Listing, ReadError> {
        self.mvcc.list(query)
    }

    fn commit_for(&self, _user: &str, write: Write) -> CommitFuture {
        let _writer = self.writer.lock();
        let mut plan = self.mvcc.plan();
        let result = plan.add(write).map(|planned| {
            let committed = planned.committed();
            let old = self.mvcc.publish(plan, &[planned]);
            self.mvcc.condense(&old);
            committed
        });
        Box::pin(std::future::ready(result))
    }

    fn watch(&self, prefix: &str, after: u64) -> Result<Watcher, ReadError> {
        self.mvcc.watch(prefix, after)
    }

    fn changes(&self, prefix: &str) -> Arc<AtomicU64> {
        self.mvcc.changes(prefix)
    }

    fn compact(&self, revision: u64) {
        self.mvcc.compact(revision);
    }

    fn compacted(&self) -> u64 {
        self.mvcc.compacted()
    }
}
