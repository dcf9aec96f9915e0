//! The memory side shared by both stores: the current state as a persistent map, the recent history, the watchers.
//!
//! A write goes through two steps. [`Plan`] checks the guard and makes the new record against the state plus everything
//! planned before it; [`Mvcc::publish`] makes a planned write visible. In between the engine makes it durable, or the
//! plan is dropped and nothing happened.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use berth_apimachinery::condensed::Condenser;
use parking_lot::{Mutex, MutexGuard, RwLock};
use serde_json::Value;

use crate::record::{Change, Event, Record};
use crate::watch::{WATCHER_BUFFER, Watcher, Watchers};
use crate::{CommitError, Committed, ListQuery, Listing, ReadError, Write};

/// Objects whose parsed form is kept, of those that were created last, so that an object is not parsed for its first change:
/// at ten to twenty kilobytes each a megabyte or two.
const CREATED_MAX: usize = 128;
/// The same of those that were changed last: most of what works in a small cluster is among them.
const CHANGED_MAX: usize = 384;

/// Pages remembered: of as many clients that list at once it is known what is left.
const PAGES_MAX: usize = 64;

/// Bytes a text may have grown by, or a new one is expected to have.
const ROOM: usize = 1024;

/// The live objects by key.
type State = rpds::RedBlackTreeMapSync<Arc<str>, Arc<Record>>;

/// What readers see: swapped as a whole.
#[derive(Clone)]
struct Snapshot {
    state: State,
    revision: u64,
}

/// The parsed form of some objects, oldest first; each once.
#[derive(Default)]
struct Recent(VecDeque<(Arc<str>, Arc<Value>)>);

impl Recent {
    fn keep(&mut self, key: &Arc<str>, value: &Arc<Value>, max: usize) {
        if self.0.len() == max {
            self.0.pop_front();
        }
        self.0.push_back((key.clone(), value.clone()));
    }

    /// Every revision of an object has the same key, not only an equal one.
    fn forget(&mut self, key: &Arc<str>) {
        if let Some(at) = self.0.iter().rposition(|(kept, _)| Arc::ptr_eq(kept, key)) {
            self.0.remove(at);
        }
    }
}

/// What is left of lists that are read in pages, the one begun last at the end: prefix, revision and last key of a page, and how
/// many keys come after it at that revision. Counting them anew for each page would make a list of n objects cost n².
#[derive(Default)]
struct Pages(VecDeque<(String, u64, Arc<str>, usize)>);

impl Pages {
    fn behind(&self, prefix: &str, revision: u64, last: &str) -> Option<usize> {
        let is_it = |page: &&(String, u64, Arc<str>, usize)| page.1 == revision && *page.2 == *last && page.0 == prefix;
        self.0.iter().rev().find(is_it).map(|page| page.3)
    }

    fn remember(&mut self, prefix: &str, revision: u64, last: Arc<str>, behind: usize) {
        if self.behind(prefix, revision, &last).is_some() {
            return;
        }
        if self.0.len() == PAGES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((prefix.to_owned(), revision, last, behind));
    }
}

/// History and watchers; locked for as long as a change is put in or a watcher is registered, never while serialising,
/// parsing or writing to disk.
struct Feed {
    /// Changes after `compacted`, oldest first, revisions strictly rising.
    history: VecDeque<Arc<Event>>,
    compacted: u64,
    watchers: Watchers,
    /// The parsed form of what was created and of what was changed last: it is what is read, changed and compared next.
    /// Apart, because much of what is created is never touched again (events), and would push out what is.
    created: Recent,
    changed: Recent,
    /// Revisions whose rows no reader can ask for any more, if an engine wants to know. They go in this order: the row of a
    /// delete may not go before older rows of its key, which would otherwise be found alive at the next start.
    garbage: Option<VecDeque<u64>>,
}

impl Feed {
    /// Forgets the oldest changes as long as `too_old` says so; returns what they stored.
    fn forget(&mut self, too_old: impl Fn(&Event, usize) -> bool) -> Vec<Arc<Record>> {
        let mut stored = Vec::new();
        while let Some(event) = self.history.front()
            && too_old(event, self.history.len())
        {
            self.compacted = self.compacted.max(event.revision());
            if let Some(garbage) = &mut self.garbage {
                garbage.extend(event.previous_record().map(|record| record.revision));
                if matches!(event.change, Change::Deleted(_)) {
                    garbage.push_back(event.revision());
                }
            }
            if !matches!(event.change, Change::Deleted(_)) {
                stored.push(event.record.clone());
            }
            self.history.pop_front();
        }
        stored
    }
}

pub(crate) struct Mvcc {
    current: RwLock<Snapshot>,
    feed: Mutex<Feed>,
    /// By kind. What has not changed for as long as the history goes back is mostly what nobody looks at.
    condensers: Mutex<BTreeMap<String, Condenser>>,
    pages: Mutex<Pages>,
    /// Prefixes whose changes somebody counts.
    counted: RwLock<Vec<(String, Arc<AtomicU64>)>>,
    history_max: usize,
    watcher_buffer: usize,
}

/// A write that passed its guard and has its revision, but is not visible yet.
pub(crate) struct Planned {
    pub(crate) event: Arc<Event>,
    pub(crate) value: Arc<Value>,
}

impl Planned {
    pub(crate) fn committed(&self) -> Committed {
        Committed { record: self.event.record.clone(), value: self.value.clone() }
    }

    pub(crate) fn is_delete(&self) -> bool {
        matches!(self.event.change, Change::Deleted(_))
    }
}

/// A sequence of writes planned on top of each other.
pub(crate) struct Plan {
    base: Snapshot,
}

impl Plan {
    /// Checks the guard of `write` and makes its record.
    pub(crate) fn add(&mut self, write: Write) -> Result<Planned, CommitError> {
        let revision = self.base.revision + 1;
        let found = |key: &str| self.base.state.get(key).cloned();
        let guarded = |key: String, expected: u64| match found(&key) {
            None => Err(CommitError::NotFound { key }),
            Some(record) if record.revision != expected => {
                Err(CommitError::Conflict { key, expected, actual: record.revision })
            }
            Some(record) => Ok(record),
        };
        let (record, value, change) = match write {
            Write::Create { key, value } => {
                if let Some(record) = found(&key) {
                    return Err(CommitError::Exists { key, revision: record.revision });
                }
                let (record, value) = Record::stamp(Arc::from(key), revision, value, ROOM);
                (record, value, Change::Created)
            }
            Write::Update { key, expected, value } => {
                let previous = guarded(key, expected)?;
                let (record, value) = Record::stamp(previous.key.clone(), revision, value, previous.size() + ROOM);
                (record, value, Change::Updated(previous))
            }
            Write::Delete { key, expected, last } => {
                let previous = guarded(key, expected)?;
                let last = last.unwrap_or_else(|| previous.value().as_ref().clone());
                let (record, value) = Record::stamp(previous.key.clone(), revision, last, previous.size() + ROOM);
                (record, value, Change::Deleted(previous))
            }
        };
        self.base.revision = revision;
        match change {
            Change::Deleted(_) => self.base.state.remove_mut(record.key.as_ref()),
            _ => {
                self.base.state.insert_mut(record.key.clone(), record.clone());
                true
            }
        };
        Ok(Planned { event: Arc::new(Event { record, change }), value })
    }
}

impl Mvcc {
    /// `collect_garbage`: whether an engine will call [`Mvcc::take_garbage`].
    pub(crate) fn new(history_max: usize, watcher_buffer: Option<usize>, collect_garbage: bool) -> Mvcc {
        Mvcc {
            current: RwLock::new(Snapshot { state: State::new_sync(), revision: 0 }),
            feed: Mutex::new(Feed {
                history: VecDeque::new(),
                compacted: 0,
                watchers: Watchers::default(),
                created: Recent::default(),
                changed: Recent::default(),
                garbage: collect_garbage.then(VecDeque::new),
            }),
            condensers: Mutex::default(),
            pages: Mutex::default(),
            counted: RwLock::default(),
            history_max,
            watcher_buffer: watcher_buffer.unwrap_or(WATCHER_BUFFER),
        }
    }

    fn snapshot(&self) -> Snapshot {
        self.current.read().clone()
    }

    fn feed(&self) -> MutexGuard<'_, Feed> {
        self.feed.lock()
    }

    /// A plan on top of what is visible. There must be only one writer between this and `publish`.
    pub(crate) fn plan(&self) -> Plan {
        Plan { base: self.snapshot() }
    }

    /// Makes the writes of a plan visible, to watchers and readers at once: whoever reads a revision finds all changes
    /// up to it in the buffers already, and whoever was told of a change and reads then finds it in the state (readers
    /// wait while the state is held here). Returns what has fallen out of the history, to be [condensed](Mvcc::condense) when
    /// there is time.
    pub(crate) fn publish(&self, plan: Plan, writes: &[Planned]) -> Vec<Arc<Record>> {
        let mut feed = self.feed();
        let mut current = self.current.write();
        let counted = self.counted.read();
        for write in writes {
            for (_, count) in counted.iter().filter(|(prefix, _)| write.event.record.key.starts_with(prefix)) {
                count.fetch_add(1, Ordering::AcqRel);
            }
            feed.history.push_back(write.event.clone());
            feed.watchers.publish(&write.event);
            let key = &write.event.record.key;
            match write.event.change {
                Change::Created => feed.created.keep(key, &write.value, CREATED_MAX),
                Change::Updated(_) => {
                    feed.created.forget(key);
                    feed.changed.forget(key);
                    feed.changed.keep(key, &write.value, CHANGED_MAX);
                }
                Change::Deleted(_) => {
                    feed.created.forget(key);
                    feed.changed.forget(key);
                }
            }
        }
        *current = plan.base;
        drop(current);
        feed.forget(|_, length| length > self.history_max)
    }

    /// Counts the changes below a prefix from now on.
    pub(crate) fn changes(&self, prefix: &str) -> Arc<AtomicU64> {
        let mut counted = self.counted.write();
        if let Some((_, count)) = counted.iter().find(|(known, _)| known == prefix) {
            return count.clone();
        }
        let count = Arc::new(AtomicU64::new(0));
        counted.push((prefix.to_owned(), count.clone()));
        count
    }

    /// Keeps those of the records that are current in less memory. Where there are fewer objects than the history has room
    /// for changes it would take more time than the memory is worth.
    pub(crate) fn condense(&self, records: &[Arc<Record>]) {
        if records.is_empty() || self.snapshot().state.size() < self.history_max {
            return;
        }
        let mut condensers = self.condensers.lock();
        for record in records {
            if self.get(&record.key).is_none_or(|current| !Arc::ptr_eq(&current, record)) {
                continue;
            }
            let kind = kind_of(&record.key);
            match condensers.get_mut(kind) {
                Some(condenser) => record.condense(condenser),
                None => record.condense(condensers.entry(kind.to_owned()).or_default()),
            }
        }
    }

    /// Puts back one row of the log at start. Rows come in the order of their revisions; `value` is `None` for a delete.
    pub(crate) fn replay(&self, key: Arc<str>, revision: u64, bytes: Option<bytes::Bytes>) {
        let mut current = self.current.write();
        let previous = current.state.get(key.as_ref()).cloned();
        let (record, change) = match (bytes, previous) {
            (Some(bytes), previous) => {
                let record = Arc::new(Record::new(key, revision, bytes));
                current.state.insert_mut(record.key.clone(), record.clone());
                (record, previous.map_or(Change::Created, Change::Updated))
            }
            (None, Some(previous)) => {
                current.state.remove_mut(key.as_ref());
                let last = previous.value().as_ref().clone();
                (Record::stamp(key, revision, last, previous.size()).0, Change::Deleted(previous))
            }
            // The delete of an object whose own row was compacted away: nothing to tell.
            (None, None) => {
                current.revision = revision;
                if let Some(garbage) = &mut self.feed().garbage {
                    garbage.push_back(revision);
                }
                return;
            }
        };
        current.revision = revision;
        let mut feed = self.feed();
        feed.history.push_back(Arc::new(Event { record, change }));
        let old = feed.forget(|_, length| length > self.history_max);
        drop((feed, current));
        self.condense(&old);
    }

    /// After [`Mvcc::replay`]: the last revision and the end of forgotten history, which the rows alone may not show.
    pub(crate) fn finish_replay(&self, revision: u64, compacted: u64) {
        let mut current = self.current.write();
        current.revision = current.revision.max(revision);
        drop(current);
        self.compact(compacted);
    }

    /// Takes at most `max` revisions whose rows can go, and the revision up to which history is forgotten.
    pub(crate) fn take_garbage(&self, max: usize) -> (Vec<u64>, u64) {
        let mut feed = self.feed();
        let compacted = feed.compacted;
        let taken =
            feed.garbage.as_mut().map_or_else(Vec::new, |garbage| garbage.drain(..max.min(garbage.len())).collect());
        (taken, compacted)
    }

    /// Gives back what [`Mvcc::take_garbage`] took, when it could not be removed.
    pub(crate) fn return_garbage(&self, revisions: Vec<u64>) {
        if let Some(garbage) = &mut self.feed().garbage {
            revisions.into_iter().rev().for_each(|revision| garbage.push_front(revision));
        }
    }

    /// The revisions of all objects that are there.
    pub(crate) fn stored(&self) -> Vec<u64> {
        self.snapshot().state.values().map(|record| record.revision).collect()
    }

    pub(crate) fn revision(&self) -> u64 {
        self.current.read().revision
    }

    pub(crate) fn compacted(&self) -> u64 {
        self.feed().compacted
    }

    pub(crate) fn get(&self, key: &str) -> Option<Arc<Record>> {
        self.current.read().state.get(key).cloned()
    }

    pub(crate) fn list(&self, query: &ListQuery<'_>) -> Result<Listing, ReadError> {
        let (snapshot, undo) = match query.at_revision {
            None => (self.snapshot(), BTreeMap::new()),
            Some(revision) => self.undo(query.prefix, revision)?,
        };
        let start = match query.start_after {
            Some(after) if after > query.prefix => Bound::Excluded(after),
            _ => Bound::Included(query.prefix),
        };
        let revision = query.at_revision.unwrap_or(snapshot.revision);
        let current = snapshot
            .state
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(query.prefix))
            .filter(|(key, _)| !undo.contains_key(key.as_ref()))
            .map(|(key, record)| (key.as_ref(), record));
        let mut listing = Listing { records: Vec::new(), revision, remaining: 0 };
        // The page before has counted what comes after it.
        let behind = query.start_after.and_then(|after| self.pages().behind(query.prefix, revision, after));
        // Whether more is to be looked at.
        let mut take = |record: &Arc<Record>| {
            if query.limit == 0 || listing.records.len() < query.limit {
                listing.records.push(record.clone());
                return true;
            }
            listing.remaining += 1;
            behind.is_none()
        };
        // Merge what still is as it was with what the undone changes bring back.
        let mut restored = undo
            .iter()
            .filter(|(key, _)| query.start_after.is_none_or(|after| key.as_ref() > after))
            .filter_map(|(key, record)| record.as_ref().map(|record| (key.as_ref(), record)))
            .peekable();
        let mut more = true;
        for (key, record) in current {
            while more && let Some((_, earlier)) = restored.next_if(|(other, _)| *other < key) {
                more = take(earlier);
            }
            more = more && take(record);
            if !more {
                break;
            }
        }
        while more && let Some((_, record)) = restored.next() {
            more = take(record);
        }
        if let Some(behind) = behind {
            listing.remaining = behind.saturating_sub(listing.records.len());
        }
        if let (Some(last), true) = (listing.records.last(), listing.remaining > 0) {
            self.pages().remember(query.prefix, revision, last.key.clone(), listing.remaining);
        }
        Ok(listing)
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock()
    }

    /// The current state, and for each key below `prefix` that changed after `revision` what was there at `revision`.
    fn undo(
        &self,
        prefix: &str,
        revision: u64,
    ) -> Result<(Snapshot, BTreeMap<Arc<str>, Option<Arc<Record>>>), ReadError> {
        let feed = self.feed();
        // Under the feed's lock nothing is published, so state and history belong together.
        let snapshot = self.snapshot();
        check_revision(revision, feed.compacted, snapshot.revision)?;
        let mut undo = BTreeMap::new();
        for event in feed.history.iter().rev().take_while(|event| event.revision() > revision) {
            if event.record.key.starts_with(prefix) {
                undo.insert(event.record.key.clone(), event.previous_record().cloned());
            }
        }
        Ok((snapshot, undo))
    }

    pub(crate) fn watch(&self, prefix: &str, after: u64) -> Result<Watcher, ReadError> {
        let mut feed = self.feed();
        check_revision(after, feed.compacted, self.revision())?;
        let from = feed.history.partition_point(|event| event.revision() <= after);
        let is_below = |event: &&Arc<Event>| event.record.key.starts_with(prefix);
        let backlog = feed.history.range(from..).filter(is_below).cloned().collect();
        Ok(feed.watchers.add(prefix, backlog, self.watcher_buffer))
    }

    pub(crate) fn compact(&self, revision: u64) {
        let revision = revision.min(self.revision());
        let mut feed = self.feed();
        let old = feed.forget(|event, _| event.revision() <= revision);
        feed.compacted = feed.compacted.max(revision);
        drop(feed);
        self.condense(&old);
    }
}

/// The part of a key that objects of one kind have in common: its first two segments.
fn kind_of(key: &str) -> &str {
    key.match_indices('/').nth(2).map_or(key, |(at, _)| &key[..at])
}

/// Whether the state at `revision`, and all changes after it, are known.
fn check_revision(revision: u64, compacted: u64, current: u64) -> Result<(), ReadError> {
    if revision < compacted {
        return Err(ReadError::Compacted { requested: revision, oldest: compacted });
    }
    if revision > current {
        return Err(ReadError::Future { requested: revision, current });
    }
    Ok(())
}
