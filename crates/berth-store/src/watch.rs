//! Watchers: bounded buffers between the writer and readers of changes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::key::prefixes;
use crate::record::Event;

/// Default number of changes that a watcher may lag behind before it is dropped. A slower reader
/// would otherwise keep all of the history in memory; it must list again instead.
pub const WATCHER_BUFFER: usize = 4_096;

/// The reason why a watcher has no more events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// The reader was too slow and its buffer is full, or the store was closed.
    #[error("the watcher was too slow and has been dropped")]
    Dropped,
}

/// A stream of the changes below one prefix, in order and without gaps.
#[derive(Debug)]
pub struct Watcher {
    /// Changes from the history, delivered before live ones.
    backlog: VecDeque<Arc<Event>>,
    live: mpsc::Receiver<Arc<Event>>,
}

impl Watcher {
    /// Returns the next change; waits for it.
    pub async fn next(&mut self) -> Result<Arc<Event>, WatchEnd> {
        match self.backlog.pop_front() {
            Some(event) => Ok(event),
            None => self.live.recv().await.ok_or(WatchEnd::Dropped),
        }
    }

    /// Returns the next change, or `None` if all visible changes were returned.
    pub fn try_next(&mut self) -> Result<Option<Arc<Event>>, WatchEnd> {
        if let Some(event) = self.backlog.pop_front() {
            return Ok(Some(event));
        }
        match self.live.try_recv() {
            Ok(event) => Ok(Some(event)),
            Err(mpsc::error::TryRecvError::Empty) => Ok(None),
            Err(mpsc::error::TryRecvError::Disconnected) => Err(WatchEnd::Dropped),
        }
    }
}

/// The senders to all watchers, by prefix.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    by_prefix: BTreeMap<String, Vec<mpsc::Sender<Arc<Event>>>>,
}

impl Watchers {
    /// Registers a watcher, which first returns `backlog`.
    pub(crate) fn add(&mut self, prefix: &str, backlog: VecDeque<Arc<Event>>, buffer: usize) -> Watcher {
        let (sender, live) = mpsc::channel(buffer);
        let senders = self.by_prefix.entry(prefix.to_owned()).or_default();
        senders.retain(|sender| !sender.is_closed());
        senders.push(sender);
        Watcher { backlog, live }
    }

    /// Sends an event to the watchers of its key. Drops watchers that are closed or too slow.
    pub(crate) fn publish(&mut self, event: &Arc<Event>) {
        for prefix in prefixes(&event.record.key) {
            let Some(senders) = self.by_prefix.get_mut(prefix) else { continue };
            senders.retain(|sender| match sender.try_send(event.clone()) {
                Ok(()) => true,
                Err(TrySendError::Full(_) | TrySendError::Closed(_)) => false,
            });
            if senders.is_empty() {
                self.by_prefix.remove(prefix);
            }
        }
    }
}
