//! Compacts the store's history: no client resumes from changes that are many minutes old.
//!
//! As kube-apiserver does with etcd (`--etcd-compaction-interval`): each interval drops all
//! history that existed at the previous one, so that a watch or a paged list can resume for one to
//! two intervals. The store's own limit on the number of changes applies as well.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use berth_store::Store;

use crate::ApiServer;

/// Upstream's default.
const INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Compacts regularly until the server's store has no other owner. Must be called within a runtime.
pub fn forget_history(server: &ApiServer) {
    tokio::spawn(run(Arc::downgrade(server.store()), server.store().revision(), server.inner.forgotten.clone()));
}

async fn run(store: Weak<dyn Store>, mut before: u64, times: Arc<AtomicU64>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let Some(store) = store.upgrade() else { return };
        store.compact(before);
        before = store.revision();
        times.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use berth_store::{MemoryStore, Write};
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn history_older_than_one_interval_is_compacted() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let create =
            |name: &str| Write::Create { key: format!("/a/{name}"), value: json!({"metadata": {"name": name}}) };
        let times: Arc<AtomicU64> = Arc::default();
        tokio::spawn(run(Arc::downgrade(&store), store.revision(), times.clone()));
        store.commit(create("x")).await.expect("stored");
        tokio::time::sleep(INTERVAL + Duration::from_secs(1)).await;
        assert!(store.watch("/a/", 1).is_ok(), "only one interval has passed since the write");
        store.commit(create("y")).await.expect("stored");
        tokio::time::sleep(INTERVAL).await;
        assert_eq!((store.compacted(), times.load(Ordering::Relaxed)), (1, 2));
        assert!(store.watch("/a/", 0).is_err());
        assert!(store.watch("/a/", 1).is_ok());
        let alive = Arc::downgrade(&store);
        drop(store);
        tokio::time::sleep(INTERVAL).await;
        assert!(alive.upgrade().is_none());
    }
}
