//! A store in memory with somebody between it and who writes.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use berth_store::{CommitFuture, ListQuery, Listing, MemoryStore, ReadError, Record, Store, Trouble, Watcher, Write};

/// What becomes of a write on its way into the store.
pub trait Meddler: Send + Sync + 'static {
    fn commit(&self, store: &MemoryStore, user: &str, write: Write) -> CommitFuture;

    /// Why it can write nothing.
    fn trouble(&self) -> Option<Trouble> {
        None
    }
}

/// The store, with all writes through the meddler's hands.
pub struct Meddled<M> {
    pub store: MemoryStore,
    pub meddler: M,
}

impl<M: Meddler> Meddled<M> {
    pub fn by(meddler: M) -> Arc<Meddled<M>> {
        Arc::new(Meddled { store: MemoryStore::new(), meddler })
    }
}

impl<M: Meddler> Store for Meddled<M> {
    fn revision(&self) -> u64 {
        self.store.revision()
    }

    fn get(&self, key: &str) -> Option<Arc<Record>> {
        self.store.get(key)
    }

    fn list(&self, query: &ListQuery<'_>) -> Result<Listing, ReadError> {
        self.store.list(query)
    }

    fn commit_for(&self, user: &str, write: Write) -> CommitFuture {
        self.meddler.commit(&self.store, user, write)
    }

    fn trouble(&self) -> Option<Trouble> {
        self.meddler.trouble()
    }

    fn watch(&self, prefix: &str, after: u64) -> Result<Watcher, ReadError> {
        self.store.watch(prefix, after)
    }

    fn changes(&self, prefix: &str) -> Arc<AtomicU64> {
        self.store.changes(prefix)
    }

    fn compact(&self, revision: u64) {
        self.store.compact(revision);
    }

    fn compacted(&self) -> u64 {
        self.store.compacted()
    }
}
