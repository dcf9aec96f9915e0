//! The in-memory part that both stores share: the current state as a persistent map, the recent
//! history, and the watchers.
//!
//! A write takes two steps. [`Plan::add`] checks the guard against the state and all writes planned
//! before, and creates the new record. [`Mvcc::publish`] makes the planned writes visible. In
//! between the durable store commits them to disk; if that fails, it drops the plan.

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

/// Number of recently created objects whose parsed form is kept, so that their first change need
/// not parse them. At ten to twenty kilobytes each this takes one or two megabytes.
const CREATED_MAX: usize = 128;
/// Number of recently changed objects whose parsed form is kept. In a small cluster this covers
/// most objects in use.
const CHANGED_MAX: usize = 384;

/// Number of list pages for which the count of remaining objects is cached. This allows as many
/// clients to list in pages at the same time.
const PAGES_MAX: usize = 64;

/// Expected size of a new object, and expected growth of a changed one, in bytes.
const EXPECTED_GROWTH: usize = 1024;

/// The live objects, by key.
type State = rpds::RedBlackTreeMapSync<Arc<str>, Arc<Record>>;

/// The state that readers see; replaced as a whole.
#[derive(Clone)]
struct Snapshot {
    state: State,
    revision: u64,
}

/// A bounded list of parsed objects, oldest first. A key occurs at most once.
#[derive(Default)]
struct RecentObjects(VecDeque<(Arc<str>, Arc<Value>)>);

impl RecentObjects {
    fn keep(&mut self, key: &Arc<str>, value: &Arc<Value>, max: usize) {
        if self.0.len() == max {
            self.0.pop_front();
        }
        self.0.push_back((key.clone(), value.clone()));
    }

    /// Removes the object with this key. Keys are compared by pointer, because all revisions of an
    /// object share one allocation of the key.
    fn forget(&mut self, key: &Arc<str>) {
        if let Some(at) = self.0.iter().rposition(|(kept, _)| Arc::ptr_eq(kept, key)) {
            self.0.remove(at);
        }
    }
}

/// Cache of the number of remaining objects per list page, oldest first: prefix, revision and last
/// key of a page, and the number of keys after it at that revision. Counting them again for each
/// page would make a list of n objects cost n².
#[derive(Default)]
struct Pages(VecDeque<(String, u64, Arc<str>, usize)>);

impl Pages {
    fn remaining_after(&self, prefix: &str, revision: u64, last: &str) -> Option<usize> {
        let matches =
            |page: &&(String, u64, Arc<str>, usize)| page.1 == revision && *page.2 == *last && page.0 == prefix;
        self.0.iter().rev().find(matches).map(|page| page.3)
    }

    fn remember(&mut self, prefix: &str, revision: u64, last: Arc<str>, remaining: usize) {
        if self.remaining_after(prefix, revision, &last).is_some() {
            return;
        }
        if self.0.len() == PAGES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((prefix.to_owned(), revision, last, remaining));
    }
}

/// History and watchers. The lock is held while a change is added or a watcher is registered, and
/// never during serialising, parsing or disk writes.
struct Feed {
    /// Changes after `compacted`, oldest first, in strictly rising order of revision.
    history: VecDeque<Arc<Event>>,
    compacted: u64,
    watchers: Watchers,
    /// Parsed objects that were recently created, and recently changed: they are the likeliest to
    /// be read, changed and compared next. The two lists are separate because many created objects,
    /// such as events, never change. They would displace the ones that do.
    created: RecentObjects,
    changed: RecentObjects,
    /// Revisions whose rows no reader needs any more, if the durable store collects them. Rows must
    /// be deleted in this order: without the row of a delete, an older row of the key would restore
    /// the object at the next start.
    garbage: Option<VecDeque<u64>>,
}

impl Feed {
    /// Removes the oldest changes while `too_old` returns true. Returns the records that they
    /// stored.
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
    /// Condensers by kind. A record that is still current when its change leaves the history is
    /// rarely read, so it is condensed.
    condensers: Mutex<BTreeMap<String, Condenser>>,
    pages: Mutex<Pages>,
    /// Counters of the changes below prefixes, from [`Mvcc::changes`].
    counted: RwLock<Vec<(String, Arc<AtomicU64>)>>,
    history_max: usize,
    watcher_buffer: usize,
}

/// A write that passed its guard and has a revision, but is not visible yet.
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

/// A sequence of writes, each planned on top of the one before.
pub(crate) struct Plan {
    base: Snapshot,
}

impl Plan {
    /// Checks the guard of `write` and creates its record.
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
                let (record, value) = Record::stamp(Arc::from(key), revision, value, EXPECTED_GROWTH);
                (record, value, Change::Created)
            }
            Write::Update { key, expected, value } => {
                let previous = guarded(key, expected)?;
                let (record, value) =
                    Record::stamp(previous.key.clone(), revision, value, previous.size() + EXPECTED_GROWTH);
                (record, value, Change::Updated(previous))
            }
            Write::Delete { key, expected, last } => {
                let previous = guarded(key, expected)?;
                let last = last.unwrap_or_else(|| previous.value().as_ref().clone());
                let (record, value) =
                    Record::stamp(previous.key.clone(), revision, last, previous.size() + EXPECTED_GROWTH);
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
    /// Creates an empty state. `collect_garbage` is true if the caller will call
    /// [`Mvcc::take_garbage`].
    pub(crate) fn new(history_max: usize, watcher_buffer: Option<usize>, collect_garbage: bool) -> Mvcc {
        Mvcc {
            current: RwLock::new(Snapshot { state: State::new_sync(), revision: 0 }),
            feed: Mutex::new(Feed {
                history: VecDeque::new(),
                compacted: 0,
                watchers: Watchers::default(),
                created: RecentObjects::default(),
                changed: RecentObjects::default(),
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

    /// Returns a plan on top of the visible state. The caller must be the only writer until
    /// `publish`.
    pub(crate) fn plan(&self) -> Plan {
        Plan { base: self.snapshot() }
    }

    /// Makes the writes of a plan visible to watchers and readers at once. When a reader sees a
    /// revision, all changes up to it are already in the buffers of the watchers. When a watcher
    /// gets a change and then reads, the state has that change, because readers wait while this
    /// function holds the lock on the state. Returns the records that left the history; the caller
    /// [condenses](Mvcc::condense) them when there is time.
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

    /// Returns a counter of the changes below a prefix, which counts from the first call for the
    /// prefix.
    pub(crate) fn changes(&self, prefix: &str) -> Arc<AtomicU64> {
        let mut counted = self.counted.write();
        if let Some((_, count)) = counted.iter().find(|(known, _)| known == prefix) {
            return count.clone();
        }
        let count = Arc::new(AtomicU64::new(0));
        counted.push((prefix.to_owned(), count.clone()));
        count
    }

    /// Condenses the current versions among the records. It does nothing while there are fewer
    /// objects than the maximum length of the history: the saved memory would not be worth the CPU
    /// time.
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

    /// Adds one row of the log at start. Rows must come in order of revision; `value` is `None` for
    /// a delete.
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
            // The object was deleted, and its own row was compacted: there is no change to add.
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

    /// Sets the last revision and the last compacted one after [`Mvcc::replay`], because the
    /// remaining rows may not show them.
    pub(crate) fn finish_replay(&self, revision: u64, compacted: u64) {
        let mut current = self.current.write();
        current.revision = current.revision.max(revision);
        drop(current);
        self.compact(compacted);
    }

    /// Returns at most `max` revisions whose rows can be deleted, and the last compacted revision.
    pub(crate) fn take_garbage(&self, max: usize) -> (Vec<u64>, u64) {
        let mut feed = self.feed();
        let compacted = feed.compacted;
        let taken =
            feed.garbage.as_mut().map_or_else(Vec::new, |garbage| garbage.drain(..max.min(garbage.len())).collect());
        (taken, compacted)
    }

    /// Puts back revisions from [`Mvcc::take_garbage`] whose rows could not be deleted.
    pub(crate) fn return_garbage(&self, revisions: Vec<u64>) {
        if let Some(garbage) = &mut self.feed().garbage {
            revisions.into_iter().rev().for_each(|revision| garbage.push_front(revision));
        }
    }

    /// Returns the revisions of all live objects.
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
        // Cached when the previous page was listed.
        let known_remaining =
            query.start_after.and_then(|after| self.pages().remaining_after(query.prefix, revision, after));
        // Adds a record to the listing. Returns false once the rest need not be visited.
        let mut take = |record: &Arc<Record>| {
            if query.limit == 0 || listing.records.len() < query.limit {
                listing.records.push(record.clone());
                return true;
            }
            listing.remaining += 1;
            known_remaining.is_none()
        };
        // Merge the unchanged objects with the restored ones, in order of key.
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
        if let Some(remaining) = known_remaining {
            listing.remaining = remaining.saturating_sub(listing.records.len());
        }
        if let (Some(last), true) = (listing.records.last(), listing.remaining > 0) {
            self.pages().remember(query.prefix, revision, last.key.clone(), listing.remaining);
        }
        Ok(listing)
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock()
    }

    /// Returns the current state, and for each key below `prefix` that changed after `revision` the
    /// record at `revision`.
    fn undo(
        &self,
        prefix: &str,
        revision: u64,
    ) -> Result<(Snapshot, BTreeMap<Arc<str>, Option<Arc<Record>>>), ReadError> {
        let feed = self.feed();
        // Nothing is published while the feed is locked, so state and history match.
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

/// Returns the part of a key that objects of one kind share: its first two segments.
fn kind_of(key: &str) -> &str {
    key.match_indices('/').nth(2).map_or(key, |(at, _)| &key[..at])
}

/// Returns an error unless the state at `revision` and all changes after it are available.
fn check_revision(revision: u64, compacted: u64, current: u64) -> Result<(), ReadError> {
    if revision < compacted {
        return Err(ReadError::Compacted { requested: revision, oldest: compacted });
    }
    if revision > current {
        return Err(ReadError::Future { requested: revision, current });
    }
    Ok(())
}
