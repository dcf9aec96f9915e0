//! An in-memory store whose writes are intercepted by the test.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use berth_store::{CommitFuture, ListQuery, Listing, MemoryStore, ReadError, Record, Store, Trouble, Watcher, Write};

/// Handles the writes of an [`InterceptedStore`].
pub trait CommitInterceptor: Send + Sync + 'static {
    fn commit(&self, store: &MemoryStore, user: &str, write: Write) -> CommitFuture;

    /// Why the store cannot write, if it cannot.
    fn trouble(&self) -> Option<Trouble> {
        None
    }
}

/// A store that passes all writes to its interceptor.
pub struct InterceptedStore<M> {
    pub store: MemoryStore,
    pub interceptor: M,
}

impl<M: CommitInterceptor> InterceptedStore<M> {
    pub fn new(interceptor: M) -> Arc<InterceptedStore<M>> {
        Arc::new(InterceptedStore { store: MemoryStore::new(), interceptor })
    }
}

impl<M: CommitInterceptor> Store for InterceptedStore<M> {
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
        self.interceptor.commit(&self.store, user, write)
    }

    fn trouble(&self) -> Option<Trouble> {
        self.interceptor.trouble()
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
