//! The last decisions that were written about each workload, with their circumstances.
//!
//! The engine can explain why a workload waits now, but not what happened to it before. Therefore
//! the writer of decisions adds a record of each decision here. [`crate::explain`] includes the
//! records in explanations, and a journal may store them ([`journal`]). Evictions that other
//! controllers wrote are recorded from the object.
//!
//! It also has the stays of workloads that ended ([`stay`]): what [`crate::usage`] sums up.
//!
//! Memory is bounded: see [`OF_WORKLOAD_MAX`], [`WAITS_MAX`], [`OTHERS_MAX`] and [`STAYS_MAX`].
//! Records survive a change of leader within the process. After a restart, only the records of the
//! journal are available.

mod entries;
mod files;
pub mod journal;
mod page;
mod record;
pub mod stay;
mod stays;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use berth_api::berth::decision::{DecisionOutcome, DecisionRecord};
use berth_api::berth::usage::{Stay, StayState};
use berth_api::kueue::v1beta2::Workload;
use berth_apimachinery::exposition::{Exposition, Family};
use berth_runtime::ObjectKey;
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};

use entries::Entries;
pub use entries::{ENTRIES_MAX, Parts};
pub(crate) use page::{CANDIDATES_MAX, page};
pub use page::{eviction, summary};
pub(crate) use record::{of_change, of_object};
pub use stays::STAYS_MAX;
use stays::{EndedStays, end_of};

/// Maximum number of records of one workload.
pub const OF_WORKLOAD_MAX: usize = 8;
/// Maximum number of records of waiting workloads. They have a limit of their own, so that a burst
/// of submissions does not displace the records of evictions.
pub const WAITS_MAX: usize = 4_096;
/// Maximum number of other records, over all workloads. A record is usually below 4 KiB.
pub const OTHERS_MAX: usize = 8_192;
/// Maximum number of records that wait to be written to the journal; further ones are dropped.
const JOURNAL_WAITING_MAX: usize = 16_384;

/// Which stays a reader asks for.
#[derive(Clone, Debug)]
pub struct WantedStays {
    /// Those that ended then or later.
    pub since: Timestamp,
    /// Those that ended in one of these states; empty for all.
    pub states: Vec<StayState>,
    /// Those of Workloads, or of jobs, with this name; empty for all.
    pub name: String,
}

/// The records; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Decisions {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    records: Mutex<Records>,
    stays: Mutex<EndedStays>,
    /// All stays of the journal, if there is one.
    entries: Mutex<Option<Entries>>,
    journal: Mutex<Option<Writer>>,
    dropped: AtomicU64,
}

/// A journal that is written.
#[derive(Debug)]
struct Writer {
    folder: PathBuf,
    lines: SyncSender<Line>,
}

/// A line of the journal.
#[derive(Debug)]
enum Line {
    Decision(Arc<DecisionRecord>),
    Stay(Arc<Stay>),
}

/// Records in the order they came, by number.
#[derive(Debug, Default)]
struct Records {
    last: u64,
    waits: BTreeMap<u64, Arc<DecisionRecord>>,
    others: BTreeMap<u64, Arc<DecisionRecord>>,
    /// Numbers of each workload's records, oldest first.
    of: HashMap<ObjectKey, Vec<u64>>,
    /// Evictions that are being written, by workload: the second at which each was decided.
    writing: HashMap<ObjectKey, i64>,
}

impl Records {
    fn get(&self, number: u64) -> Option<&Arc<DecisionRecord>> {
        self.others.get(&number).or_else(|| self.waits.get(&number))
    }

    fn of(&self, key: &ObjectKey) -> impl DoubleEndedIterator<Item = &Arc<DecisionRecord>> {
        self.of.get(key).into_iter().flatten().filter_map(|number| self.get(*number))
    }

    fn add(&mut self, record: Arc<DecisionRecord>) {
        let key = key_of(&record);
        self.last += 1;
        let number = self.last;
        let waits = is_wait(&record);
        let numbers = self.of.entry(key).or_default();
        // Only the last of several consecutive waits is kept.
        let replaced = numbers.last().copied().filter(|last| waits && self.waits.contains_key(last));
        let full = (numbers.len() >= OF_WORKLOAD_MAX).then(|| numbers.first().copied()).flatten();
        numbers.push(number);
        let (records, max) = if waits { (&mut self.waits, WAITS_MAX) } else { (&mut self.others, OTHERS_MAX) };
        records.insert(number, record);
        let over = (records.len() > max).then(|| records.first_key_value().map(|(number, _)| *number)).flatten();
        for number in replaced.or(full).into_iter().chain(over) {
            self.remove(number);
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(record) = self.others.remove(&number).or_else(|| self.waits.remove(&number)) else { return };
        let key = key_of(&record);
        if let Some(numbers) = self.of.get_mut(&key) {
            numbers.retain(|it| *it != number);
            if numbers.is_empty() {
                self.of.remove(&key);
            }
        }
    }
}

fn is_wait(record: &DecisionRecord) -> bool {
    record.outcome == DecisionOutcome::Waiting
}

/// True for the record of an eviction, be it a preemption by another workload or for another
/// reason.
pub(crate) fn is_eviction(record: &DecisionRecord) -> bool {
    matches!(record.outcome, DecisionOutcome::Preempted | DecisionOutcome::Evicted)
}

/// The second in which a decision was taken. Conditions of objects have the same resolution.
fn second(record: &DecisionRecord) -> Option<i64> {
    record.time.as_ref().map(|time| time.0.as_second())
}

fn key_of(record: &DecisionRecord) -> ObjectKey {
    ObjectKey::namespaced(record.workload.namespace.as_str(), record.workload.name.as_str())
}

impl Decisions {
    /// Adds the records of an earlier process, oldest first, from its journal. They are not written
    /// to the journal again.
    fn restore(&self, earlier: impl IntoIterator<Item = DecisionRecord>) {
        let mut records = self.records();
        earlier.into_iter().for_each(|record| records.add(Arc::new(record)));
    }

    /// Receiver of the lines that a journal in this folder stores, in order; `None` if there
    /// already is a journal. Records that arrive faster than the journal takes them are dropped,
    /// and counted by [`Decisions::dropped`].
    fn journal(&self, folder: &Path) -> Option<Receiver<Line>> {
        let mut journal = self.writer();
        if journal.is_some() {
            return None;
        }
        let (lines, receiver) = sync_channel(JOURNAL_WAITING_MAX);
        *journal = Some(Writer { folder: folder.to_owned(), lines });
        Some(receiver)
    }

    /// Stops sending records to the journal.
    fn end_journal(&self) {
        *self.writer() = None;
    }

    fn writer(&self) -> MutexGuard<'_, Option<Writer>> {
        self.inner.journal.lock()
    }

    /// Sends a line to the journal, if there is one.
    fn send(&self, line: Line) {
        let sent = self.writer().as_ref().map(|writer| writer.lines.try_send(line));
        if let Some(Err(TrySendError::Full(_))) = sent {
            self.count_dropped(1);
        }
    }

    fn journal_folder(&self) -> Option<PathBuf> {
        self.writer().as_ref().map(|writer| writer.folder.clone())
    }

    fn count_dropped(&self, records: u64) {
        self.inner.dropped.fetch_add(records, Ordering::Relaxed);
    }

    /// Number of records that were dropped instead of being written to the journal.
    pub fn dropped(&self) -> u64 {
        self.inner.dropped.load(Ordering::Relaxed)
    }

    /// Writes the metric of the records.
    pub fn write(&self, exposition: &mut Exposition) {
        const DROPPED: Family = Family::counter(
            "berth_decision_records_dropped_total",
            "Records of decisions that were not written to the decision journal",
        );
        exposition.add(&DROPPED, &[], self.dropped() as f64);
    }

    /// Announces that a decision is about to be written: the object may show an eviction before the
    /// response to its write arrives. [`Decisions::add`] or [`Decisions::abandon`] follows.
    pub(crate) fn begin(&self, record: &DecisionRecord) {
        if let Some(second) = second(record).filter(|_| is_eviction(record)) {
            self.records().writing.insert(key_of(record), second);
        }
    }

    /// Handles a failed write of a decision. If the object shows the eviction nevertheless, it is
    /// recorded.
    pub(crate) fn abandon(&self, key: &ObjectKey, workload: Option<&Workload>) {
        if self.records().writing.remove(key).is_some()
            && let Some(workload) = workload
        {
            self.observe(workload);
        }
    }

    /// Adds the record of a decision that was written.
    pub(crate) fn add(&self, record: DecisionRecord) {
        let record = Arc::new(record);
        if is_eviction(&record) {
            self.records().writing.remove(&key_of(&record));
        }
        self.send(Line::Decision(record.clone()));
        self.records().add(record);
    }

    /// Adds the record of an eviction that an object shows, unless it has one.
    pub(crate) fn observe(&self, workload: &Workload) {
        let Some(record) = of_object(workload) else { return };
        let same = |known: &Arc<DecisionRecord>| {
            is_eviction(known) && known.uid == record.uid && second(known) == second(&record)
        };
        let is_known = {
            let (records, key) = (self.records(), key_of(&record));
            let being_written = records.writing.get(&key).copied();
            (being_written.is_some() && being_written == second(&record)) || records.of(&key).any(same)
        };
        if !is_known {
            self.add(record);
        }
    }

    /// Records the stay that a change of a workload ended, if any. `cluster_queue` is that of its
    /// local queue.
    pub(crate) fn changed(&self, old: Option<&Workload>, new: Option<&Workload>, cluster_queue: &str, now: Timestamp) {
        let uid = new.or(old).and_then(|workload| workload.metadata.uid.as_deref()).unwrap_or_default();
        let since = self.last_end(uid);
        if let Some(stay) = stay::ended(old, new, since, cluster_queue, now) {
            self.add_stay(stay);
        }
        if new.is_none() {
            self.inner.stays.lock().deleted(uid);
        }
    }

    /// End of the last stay of a workload that has not finished.
    pub(crate) fn last_end(&self, uid: &str) -> Option<Timestamp> {
        self.inner.stays.lock().last_end(uid)
    }

    fn add_stay(&self, stay: Stay) {
        let stay = Arc::new(stay);
        let is_new = self.inner.stays.lock().add(stay.clone());
        if is_new {
            self.add_entry(&stay);
            self.send(Line::Stay(stay));
        }
    }

    /// Adds a stay of an earlier process, from its journal.
    fn restore_stay(&self, stay: Stay) {
        let stay = Arc::new(stay);
        if self.inner.stays.lock().add(stay.clone()) {
            self.add_entry(&stay);
        }
    }

    /// Keeps entries of all stays from now on.
    fn keep_entries(&self) {
        self.inner.entries.lock().get_or_insert_default();
    }

    fn add_entry(&self, stay: &Stay) {
        if let Some(entries) = &mut *self.inner.entries.lock() {
            entries.add(stay);
        }
    }

    /// Entries of the known stays that ended at `since` or later, and of others. `None` if memory
    /// does not have all of them: then [`Decisions::each_stay`] has.
    pub fn entries(&self, since: Timestamp) -> Option<Parts> {
        self.inner.entries.lock().as_ref()?.since(since.as_second())
    }

    /// Passes known stays that ended to `each`, oldest first: at least those that ended at `since`
    /// or later in one of `states` (none stands for all), of a workload or job with `name`. If
    /// memory does not have all of them, the files of the journal are read: a second per 256 MiB,
    /// or a twentieth of it with a name.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn each_stay(&self, wanted: &WantedStays, each: &mut dyn FnMut(&Stay)) -> io::Result<()> {
        let (kept, has_all) = {
            let stays = self.inner.stays.lock();
            (stays.kept(), stays.has_all_since(wanted.since, &wanted.states))
        };
        if let Some(folder) = self.journal_folder().filter(|_| !has_all) {
            // The last stays may not be on disk yet.
            let in_memory: std::collections::HashSet<_> = kept.iter().map(|stay| end_of(stay)).collect();
            journal::each_stay_named(&folder, &wanted.name, &mut |stay| {
                if !in_memory.contains(&end_of(&stay)) {
                    each(&stay);
                }
            })?;
        }
        kept.iter().for_each(|stay| each(stay));
        Ok(())
    }

    /// Drops the records of a workload that was deleted. The journal still has them.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        let mut records = self.records();
        for number in records.of.get(key).cloned().unwrap_or_default() {
            records.remove(number);
        }
    }

    /// The records of a workload, newest first.
    pub fn of(&self, key: &ObjectKey, uid: &str) -> Vec<DecisionRecord> {
        let records = self.records();
        records.of(key).rev().filter(|record| record.uid == uid).map(|record| (**record).clone()).collect()
    }

    /// All records of a workload, oldest first: those of the journal, or else those in memory.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn all_of(&self, key: &ObjectKey, uid: &str) -> io::Result<Vec<DecisionRecord>> {
        let mut found = Vec::new();
        if let Some(folder) = self.journal_folder() {
            journal::each_decision_of(&folder, uid, &mut |record| found.push(record))?;
        }
        // The last records may not be on disk yet.
        for record in self.of(key, uid).into_iter().rev() {
            if !found.contains(&record) {
                found.push(record);
            }
        }
        found.sort_by_key(|record| record.time.as_ref().map(|time| time.0));
        Ok(found)
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.inner.records.lock()
    }
}

#[cfg(test)]
mod tests {
    use berth_api::berth::explanation::ObjectName;

    use super::*;
    use crate::Gates;
    use crate::workload::status;

    fn record(name: &str, outcome: DecisionOutcome, reason: &str) -> DecisionRecord {
        let workload = ObjectName { namespace: "team".to_owned(), name: name.to_owned() };
        DecisionRecord { workload, outcome, reason: reason.to_owned(), ..DecisionRecord::default() }
    }

    fn reasons(decisions: &Decisions, name: &str) -> Vec<String> {
        decisions.of(&ObjectKey::namespaced("team", name), "").into_iter().map(|it| it.reason).collect()
    }

    #[test]
    fn of_several_waits_in_a_row_only_the_last_is_kept() {
        let decisions = Decisions::default();
        for reason in ["a", "b"] {
            decisions.add(record("w", DecisionOutcome::Waiting, reason));
        }
        decisions.add(record("w", DecisionOutcome::Admitted, "c"));
        decisions.add(record("w", DecisionOutcome::Waiting, "d"));
        assert_eq!(reasons(&decisions, "w"), ["d", "c", "b"]);
    }

    #[test]
    fn records_are_bounded_per_workload_and_over_all() {
        let decisions = Decisions::default();
        for number in 0..2 * OF_WORKLOAD_MAX {
            decisions.add(record("w", DecisionOutcome::Evicted, &number.to_string()));
        }
        assert_eq!(reasons(&decisions, "w").len(), OF_WORKLOAD_MAX);
        assert_eq!(reasons(&decisions, "w")[0], (2 * OF_WORKLOAD_MAX - 1).to_string());
        for number in 0..WAITS_MAX + 10 {
            decisions.add(record(&format!("waits-{number}"), DecisionOutcome::Waiting, ""));
        }
        assert_eq!(reasons(&decisions, "w").len(), OF_WORKLOAD_MAX, "waits push out waits only");
        assert!(reasons(&decisions, "waits-9").is_empty());
        assert_eq!(reasons(&decisions, "waits-10").len(), 1);
        for number in 0..OTHERS_MAX {
            decisions.add(record(&format!("other-{number}"), DecisionOutcome::Admitted, ""));
        }
        assert!(reasons(&decisions, "w").is_empty());
        let records = decisions.records();
        assert_eq!((records.waits.len(), records.others.len()), (WAITS_MAX, OTHERS_MAX));
        assert_eq!(records.of.len(), WAITS_MAX + OTHERS_MAX);
    }

    #[test]
    fn an_eviction_that_the_object_shows_before_its_write_returns_is_recorded_once() {
        let mut workload = Workload::named("w");
        workload.metadata.namespace = Some("team".to_owned());
        let at: jiff::Timestamp = "2026-01-01T00:00:00.5Z".parse().expect("a time");
        let eviction = status::Eviction { reason: "Preempted", cause: "", message: "" };
        status::evict(&mut workload, &eviction, &Gates::default(), at);
        let mut full = record("w", DecisionOutcome::Preempted, "InClusterQueue");
        full.time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at));

        let decisions = Decisions::default();
        decisions.begin(&full);
        decisions.observe(&workload);
        assert!(reasons(&decisions, "w").is_empty(), "the record of the decision says more");
        decisions.add(full.clone());
        decisions.observe(&workload);
        assert_eq!(reasons(&decisions, "w"), ["InClusterQueue"]);

        let decisions = Decisions::default();
        decisions.begin(&full);
        decisions.abandon(&key_of(&full), None);
        assert!(reasons(&decisions, "w").is_empty(), "nothing was written");
        decisions.begin(&full);
        decisions.observe(&workload);
        decisions.abandon(&key_of(&full), Some(&workload));
        assert_eq!(reasons(&decisions, "w"), ["Preempted"], "the write arrived, its response did not");
    }

    #[test]
    fn a_deleted_workload_leaves_no_records() {
        let decisions = Decisions::default();
        decisions.add(record("w", DecisionOutcome::Waiting, ""));
        decisions.add(record("w", DecisionOutcome::Admitted, ""));
        decisions.forget(&ObjectKey::namespaced("team", "w"));
        let records = decisions.records();
        assert!(records.of.is_empty() && records.waits.is_empty() && records.others.is_empty());
    }

    #[test]
    fn a_journal_gets_all_records_except_restored_ones() {
        let decisions = Decisions::default();
        let journal = decisions.journal(Path::new("")).expect("the first");
        assert!(decisions.journal(Path::new("")).is_none());
        decisions.restore([record("w", DecisionOutcome::Admitted, "old")]);
        decisions.add(record("w", DecisionOutcome::Evicted, "new"));
        assert_eq!(reasons(&decisions, "w"), ["new", "old"]);
        let reason = |line| match line {
            Line::Decision(record) => record.reason.clone(),
            Line::Stay(stay) => stay.reason.clone(),
        };
        let arrived: Vec<String> = journal.try_iter().map(reason).collect();
        assert_eq!(arrived, ["new"]);
        for _ in 0..JOURNAL_WAITING_MAX + 3 {
            decisions.add(record("w", DecisionOutcome::Evicted, "more"));
        }
        let text = Exposition::text(|exposition| decisions.write(exposition));
        assert!(text.ends_with("berth_decision_records_dropped_total 3\n"), "{text}");
    }
}
