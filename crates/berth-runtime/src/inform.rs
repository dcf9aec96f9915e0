//! Keeps one cache equal to the server's state.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::StreamExt;
use kube::runtime::watcher;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{RwLock, watch};

use crate::kinds::Serving;
use crate::wire::Seen;
use crate::{Cache, Clock, ObjectKey};

/// First delay before a failed watch is tried again; doubles up to [`WATCH_BACKOFF_MAX`].
pub(crate) const WATCH_BACKOFF_BASE: Duration = Duration::from_millis(100);
pub(crate) const WATCH_BACKOFF_MAX: Duration = Duration::from_secs(30);
/// From this delay on failures are shown to the operator.
pub(crate) const WATCH_BACKOFF_WARN: Duration = Duration::from_millis(1600);

/// Where a cache is filled from.
pub(crate) struct Source<K> {
    pub(crate) api: Api<Seen<K>>,
    pub(crate) cache: Cache<K>,
    pub(crate) clock: Clock,
    /// Whether others wait until the cache is filled, however long that takes: a kind of another project whose objects cannot be
    /// listed, for want of its conversion webhook say, holds up no other.
    pub(crate) required: bool,
    /// Held while the cache is changed: who holds it for writing has the caches to itself.
    pub(crate) gate: Arc<RwLock<()>>,
}

impl<K> Source<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
{
    /// List, watch, and list again when the watch was lost too long.
    pub(crate) async fn inform(&self, synced: &watch::Sender<bool>) {
        let Self { api, cache, clock, required, gate } = self;
        let mut stream = pin!(watcher(api.clone(), watcher::Config::default()));
        let mut listed: BTreeSet<ObjectKey> = BTreeSet::new();
        let mut backoff = WATCH_BACKOFF_BASE;
        while let Some(event) = stream.next().await {
            let open = gate.read().await;
            match event {
                Ok(watcher::Event::Init) => listed.clear(),
                Ok(watcher::Event::InitApply(object)) => {
                    listed.insert(ObjectKey::of(&object));
                    take(cache, &object);
                }
                Ok(watcher::Event::InitDone) => {
                    cache.retain(&listed);
                    cache.set_complete(true);
                    listed.clear();
                    // No receiver is left only when the manager is stopping.
                    let _ = synced.send(true);
                    backoff = WATCH_BACKOFF_BASE;
                }
                Ok(watcher::Event::Apply(object)) => {
                    backoff = WATCH_BACKOFF_BASE;
                    take(cache, &object);
                }
                Ok(watcher::Event::Delete(object)) => {
                    backoff = WATCH_BACKOFF_BASE;
                    cache.remove(&object);
                }
                Err(error) => {
                    drop(open);
                    let error = crate::brief(&error);
                    // One lost watch is an everyday matter; one that does not come back is not.
                    if backoff >= WATCH_BACKOFF_WARN {
                        if !required {
                            let _ = synced.send(true);
                        }
                        tracing::warn!(kind = %K::kind(&()), %error, ?backoff, "watch failed, retrying");
                    } else {
                        tracing::debug!(kind = %K::kind(&()), %error, ?backoff, "watch failed, retrying");
                    }
                    clock.sleep(backoff).await;
                    backoff = (backoff * 2).min(WATCH_BACKOFF_MAX);
                }
            }
        }
    }

    /// The same while the cluster serves the kind; the cache counts as filled while it does not. When the definition is gone, so
    /// are its objects, whether or not a watch has shown it.
    pub(crate) async fn inform_while_served(self, synced: watch::Sender<bool>, mut serving: watch::Receiver<Serving>) {
        let mut known = false;
        loop {
            let now = *serving.borrow_and_update();
            match now {
                Serving::Unknown => {}
                Serving::Served => {
                    if !known {
                        self.cache.set_complete(false);
                    }
                    known = true;
                    // A definition that is written again while it serves the kind is no reason to list again.
                    let ends = serving.wait_for(|now| *now != Serving::Served);
                    tokio::select! {
                        biased;
                        _ = ends => {}
                        () = self.inform(&synced) => {}
                    }
                    continue;
                }
                Serving::Dormant => {
                    let _ = synced.send(true);
                }
                Serving::Absent => {
                    let _open = self.gate.read().await;
                    self.cache.retain(&BTreeSet::new());
                    self.cache.set_complete(true);
                    known = false;
                    let _ = synced.send(true);
                }
            }
            if serving.changed().await.is_err() {
                // Who knows of the kinds has died, which is reported there.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Takes in what a watch has shown, decoding it only if it is news.
pub(crate) fn take<K>(cache: &Cache<K>, object: &Seen<K>)
where
    K: Resource<DynamicType = ()> + DeserializeOwned + 'static,
{
    if cache.knows(object) {
        return;
    }
    match object.decode() {
        Ok(object) => cache.apply(object),
        // One object that is not what its schema promises must not blind the controllers to all others.
        Err(error) => {
            tracing::warn!(kind = %K::kind(&()), key = %ObjectKey::of(object), %error, "cannot read an object");
        }
    }
}
