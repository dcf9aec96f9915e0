//! The writer thread.
//!
//! It takes all queued writes, plans them in order, and writes their rows in one transaction (WAL,
//! `synchronous = FULL`: one sync for the batch). Then it makes the writes visible and sends their
//! results. If the transaction fails, every write of the batch gets an error and none is applied;
//! reads continue. A second thread moves SQLite's log into the file (`checkpoint`). Rows that no
//! reader needs any more are deleted in later batches.
//!
//! When the disk is full, the reserve is released for deletions, and all other writes are rejected
//! until there is space. After any other failure the content of SQLite's memory and of the system's
//! caches is unknown. So the file is opened again, and must match the acknowledged writes before
//! the next write.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

use crate::checkpoint::Checkpoints;
use crate::file::{Lock, keep_log, page_size};
use crate::format::{self, Format, Totals};
use crate::mark::Mark;
use crate::mvcc::{Mvcc, Plan, Planned};
use crate::queue::{Next, Queue};
use crate::reserve::{self, Reserve};
use crate::sqlite::{Opened, examine, unreadable};
use crate::{CommitError, Committed, OpenError, Trouble, Write};

/// Maximum number of writes in one transaction, even on a slow disk.
const BATCH_MAX: usize = 1024;
/// Number of writes that may be in one transaction even on a fast disk.
const BATCH_MIN: usize = 64;
/// Approximate time that a write adds to its transaction.
const WRITE_TIME: Duration = Duration::from_micros(40);
/// Number of commits of which the shortest shows the speed of the disk. The others also waited for
/// a processor or for another sync.
const COMMITS_COMPARED: usize = 64;
/// Object bytes after which a transaction takes no further write. With more bytes, writing them
/// would take longer than the sync.
const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// First and longest wait between attempts to write again after a failure.
const RETRY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];
/// Duration after which a commit that waits for the disk is reported as trouble.
const STUCK: Duration = Duration::from_secs(15);

/// Returns the maximum number of old rows to delete with one batch: a little more than the batch
/// can add, because callers of the batch also wait for these deletions.
const fn garbage_max(writes: usize) -> usize {
    64 + 2 * writes
}

/// The channel for the result of a write.
pub(crate) type Reply = oneshot::Sender<Result<Committed, CommitError>>;

/// A write and the channel for its result.
type Request = (Write, Reply);

/// State of the writer thread that other threads read.
#[derive(Default)]
pub(crate) struct Shared {
    /// Duration of the shortest recent commit, in nanoseconds.
    least: AtomicU64,
    trouble: Mutex<Option<Trouble>>,
    /// Start of the current commit, if one is in progress.
    began: Mutex<Option<Instant>>,
}

#[expect(clippy::disallowed_methods, reason = "the duration of disk writes is not in cluster time")]
fn now() -> Instant {
    Instant::now()
}

impl Shared {
    pub(crate) fn commit_time(&self) -> Duration {
        Duration::from_nanos(self.least.load(Ordering::Relaxed))
    }

    pub(crate) fn trouble(&self) -> Option<Trouble> {
        if let Some(trouble) = self.trouble.lock().clone() {
            return Some(trouble);
        }
        let began = *self.began.lock();
        let waited = now().saturating_duration_since(began?);
        let reason = || format!("a write has been waiting for the disk for {} s", waited.as_secs());
        (waited >= STUCK).then(|| Trouble { reason: reason(), restart_helps: false })
    }

    fn set_trouble(&self, reason: Option<String>) {
        let trouble = reason.map(|reason| Trouble { reason, restart_helps: false });
        *self.trouble.lock() = trouble;
    }

    fn set_began(&self, began: Option<Instant>) {
        *self.began.lock() = began;
    }
}

/// A file that is open for writing.
struct Database {
    /// Dropped before `connection`, because the connection that closes last moves the rest of the
    /// log.
    checkpoints: Checkpoints,
    connection: Connection,
    mark: Mark,
}

impl Database {
    /// Prepares an examined file for writing. With `may_be_full`, a full disk is not an error, so
    /// that reads and deletions still work. After an error it must be false, because all rows of
    /// earlier commits must be in the file.
    fn begin(file: &Path, opened: Opened, limits: Limits, may_be_full: bool) -> Result<Database, OpenError> {
        let Opened { mut connection, format, totals } = opened;
        let engine = |error: rusqlite::Error| unreadable(file, error.into());
        limits.set(&connection, false).map_err(engine)?;
        if format == Format::Empty {
            format::create(&mut connection).map_err(engine)?;
        }
        let mark = Mark::open(file, totals.revision);
        let mark =
            mark.map_err(|source| OpenError::Lock { path: crate::mark::path_of(file).display().to_string(), source })?;
        let open = Totals { is_open: true, ..totals };
        // Each row that is added later also states that the file is open.
        let begun = format::set_base(&connection, &open).and_then(|()| checkpoint_all(&connection));
        begun.or_else(|error| if may_be_full && is_full(&error) { Ok(()) } else { Err(engine(error)) })?;
        keep_log(&connection, false).map_err(engine)?;
        let handle = mark.handle();
        let handle = handle.map_err(|source| OpenError::Lock { path: file.display().to_string(), source })?;
        let checkpoints = Checkpoints::start(file, &mut connection, handle).map_err(engine)?;
        Ok(Database { checkpoints, connection, mark })
    }
}

/// Moves all of SQLite's log into the file and empties it, so that it has only later writes from
/// then on.
fn checkpoint_all(connection: &Connection) -> rusqlite::Result<()> {
    connection.wal_checkpoint_v2(Some("main"), CheckpointMode::TRUNCATE).map(|_| ())
}

fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// Maximum size of the file, in bytes.
#[derive(Clone, Copy)]
struct Limits(Option<u64>);

impl Limits {
    /// Returns the bytes of the limit that are reserved for deletions.
    fn reserve(bytes: u64) -> u64 {
        reserve::BYTES.min(bytes / 4)
    }

    fn pages(self, connection: &Connection, with_reserve: bool) -> rusqlite::Result<Option<u64>> {
        let Some(bytes) = self.0 else { return Ok(None) };
        let bytes = if with_reserve { bytes } else { bytes - Limits::reserve(bytes) };
        Ok(Some(bytes / u64::from(page_size(connection)?)))
    }

    fn set(self, connection: &Connection, with_reserve: bool) -> rusqlite::Result<()> {
        let Some(pages) = self.pages(connection, with_reserve)? else { return Ok(()) };
        // The pragma returns the limit in effect.
        connection.pragma_update_and_check(None, "max_page_count", i64::try_from(pages).unwrap_or(i64::MAX), |_| Ok(()))
    }

    /// True if there is free space besides the reserve.
    fn has_space(self, connection: &Connection) -> rusqlite::Result<bool> {
        let Some(pages) = self.pages(connection, false)? else { return Ok(true) };
        let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let used = number("page_count")? - number("freelist_count")?;
        // Require the space of a commit as a margin, or the file would be full again at once.
        Ok(u64::try_from(used).unwrap_or(0) + pages / 16 < pages)
    }
}

/// Whether the store accepts writes.
enum State {
    Writable,
    /// The disk is full; only deletions are accepted.
    Full(String),
    /// The file was closed after an error.
    Broken(String),
}

pub(crate) struct Writer {
    database: Option<Database>,
    state: State,
    /// Time of the next attempt to write again, and the wait after that.
    retry: (Instant, Duration),
    file: PathBuf,
    limits: Limits,
    reserve: Reserve,
    /// Totals of the rows in the file: the acknowledged ones, including garbage that was not
    /// deleted yet.
    totals: Totals,
    mvcc: Arc<Mvcc>,
    queue: Arc<Queue<Request>>,
    shared: Arc<Shared>,
    /// Average duration of the last commits.
    commit_time: Duration,
    /// Shortest commit since `Shared::least` was last set, and the number of commits since then.
    recent: (Duration, usize),
    /// Last field, so that the lock is released last.
    lock: Lock,
}

impl Drop for Writer {
    /// Fails all waiting writes, also if the thread panics.
    fn drop(&mut self) {
        self.queue.abandon();
    }
}

/// Writes that become durable together, and the channels for their results.
struct Batch {
    plan: Plan,
    planned: Vec<Planned>,
    bytes: usize,
    replies: Vec<(Reply, Result<usize, CommitError>)>,
}

impl Batch {
    fn add(&mut self, write: Write, reply: Reply) {
        let outcome = self.plan.add(write).map(|write| {
            self.bytes += write.event.record.size();
            self.planned.push(write);
            self.planned.len() - 1
        });
        self.replies.push((reply, outcome));
    }

    fn is_full(&self, writes_max: usize) -> bool {
        self.replies.len() >= writes_max || self.bytes >= BATCH_BYTES_MAX
    }
}

/// True if a write is part of a deletion: it deletes an object, or changes one that is being
/// deleted (finalizers).
fn is_deletion(write: &Write) -> bool {
    match write {
        Write::Delete { .. } => true,
        Write::Update { value, .. } => value["metadata"]["deletionTimestamp"].is_string(),
        Write::Create { .. } => false,
    }
}

impl Writer {
    pub(crate) fn new(
        file: PathBuf,
        lock: Lock,
        bytes_max: Option<u64>,
        opened: Opened,
        (mvcc, queue, shared): (Arc<Mvcc>, Arc<Queue<Request>>, Arc<Shared>),
    ) -> Result<Writer, OpenError> {
        let (limits, totals) = (Limits(bytes_max), Totals { is_open: true, ..opened.totals });
        let database = Database::begin(&file, opened, limits, true)?;
        let mut writer = Writer {
            database: Some(database),
            state: State::Writable,
            retry: (now(), RETRY[0]),
            reserve: Reserve::of(&file),
            file,
            limits,
            totals,
            mvcc,
            queue,
            shared,
            commit_time: Duration::ZERO,
            recent: (Duration::MAX, 0),
            lock,
        };
        match writer.take_reserve() {
            State::Writable => {}
            full => writer.fail(full),
        }
        Ok(writer)
    }

    pub(crate) fn run(&mut self) {
        loop {
            let wait = match self.state {
                State::Writable => None,
                _ => Some(self.retry.0.saturating_duration_since(now())),
            };
            if wait == Some(Duration::ZERO) {
                self.retry_writing();
                continue;
            }
            let mut next = match self.queue.next(wait) {
                Next::Write(write) => Some(write),
                // History is compacted between batches, so that every batch is either before or
                // after a compaction.
                Next::Compact(revision) => {
                    self.mvcc.compact(revision);
                    continue;
                }
                Next::TimedOut => continue,
                Next::Closed => return self.close(),
            };
            let mut batch = Batch { plan: self.mvcc.plan(), planned: Vec::new(), bytes: 0, replies: Vec::new() };
            while let Some((write, reply)) = next {
                match self.rejection(&write) {
                    Some(rejection) => batch.replies.push((reply, Err(rejection))),
                    None => batch.add(write, reply),
                }
                next = if batch.is_full(self.batch_max()) { None } else { self.queue.try_next() };
            }
            self.finish(batch);
        }
    }

    /// Returns the error for a write that is rejected without an attempt.
    fn rejection(&self, write: &Write) -> Option<CommitError> {
        let reason = match &self.state {
            State::Full(_) if is_deletion(write) => return None,
            State::Writable => return None,
            State::Full(reason) | State::Broken(reason) => reason.clone(),
        };
        Some(CommitError::Unavailable { reason })
    }

    /// Returns the number of writes that together take as long as a commit without them. With this
    /// limit, a single write waits at most twice as long as alone, and the disk is still used
    /// fully.
    fn batch_max(&self) -> usize {
        let fitting = self.commit_time.as_nanos() / WRITE_TIME.as_nanos();
        usize::try_from(fitting).unwrap_or(BATCH_MAX).clamp(BATCH_MIN, BATCH_MAX)
    }

    /// Records the duration of a commit. A single slow commit has little weight.
    fn record_commit_time(&mut self, time: Duration) {
        self.commit_time = (self.commit_time * 7 + time) / 8;
        self.recent = (self.recent.0.min(time), self.recent.1 + 1);
        if self.recent.1 == COMMITS_COMPARED {
            let nanoseconds = u64::try_from(self.recent.0.as_nanos()).unwrap_or(u64::MAX);
            self.shared.least.store(nanoseconds, Ordering::Relaxed);
            self.recent = (Duration::MAX, 0);
        }
    }

    /// Persists a batch, publishes it and sends the results.
    fn finish(&mut self, batch: Batch) {
        let Batch { plan, planned, replies, .. } = batch;
        let (mut old, mut failure) = (Vec::new(), None);
        if !planned.is_empty() {
            let (garbage, compacted) = self.mvcc.take_garbage(garbage_max(planned.len()));
            match self.persist(&planned, &garbage, compacted) {
                Ok(()) => old = self.mvcc.publish(plan, &planned),
                Err(error) => {
                    tracing::warn!(%error, writes = planned.len(), "the store could not write");
                    self.mvcc.return_garbage(garbage);
                    failure = Some(CommitError::Unavailable { reason: error.to_string() });
                    self.handle_failure(&error);
                }
            }
        }
        for (reply, outcome) in replies {
            // The results of failed guards are also sent after the batch, because the state that
            // they were checked against becomes visible only now. If the batch failed, that state
            // never existed.
            let answer = match (&failure, outcome) {
                (Some(failure), _) => Err(failure.clone()),
                (None, Ok(index)) => Ok(planned[index].committed()),
                (None, Err(rejected)) => Err(rejected),
            };
            // The caller may have dropped the future.
            let _ = reply.send(answer);
        }
        // No caller waits for the work that follows.
        if let Some(database) = &mut self.database {
            database.checkpoints.run_if_due(&database.connection);
        }
        self.mvcc.condense(&old);
    }

    /// Writes the rows of a batch in one transaction, and deletes the rows of `garbage`.
    fn persist(&mut self, writes: &[Planned], garbage: &[u64], compacted: u64) -> rusqlite::Result<()> {
        let (Some(database), Some(last)) = (&mut self.database, writes.last()) else {
            return Err(rusqlite::Error::InvalidQuery);
        };
        let began = now();
        self.shared.set_began(Some(began));
        let mut totals = self.totals;
        let written: rusqlite::Result<Duration> = (|| {
            let transaction = database.connection.transaction()?;
            for revision in garbage {
                // The row may be deleted already: its deletion was part of a commit that seemed to
                // fail.
                if format::remove(&transaction, *revision)? {
                    totals.remove(*revision);
                }
            }
            if !garbage.is_empty() {
                totals.compacted = totals.compacted.max(compacted);
            }
            totals.revision = last.event.revision();
            writes.iter().for_each(|write| totals.add(write.event.revision()));
            for write in writes {
                let record = &write.event.record;
                let value = (!write.is_delete()).then(|| record.bytes());
                let totals = (record.revision == totals.revision).then_some(&totals);
                format::insert(&transaction, record.revision, &record.key, value.as_deref(), totals)?;
            }
            let start = now();
            transaction.commit()?;
            Ok(start.elapsed())
        })();
        self.shared.set_began(None);
        let duration = written?;
        self.totals = totals;
        database.mark.set(totals.revision);
        self.record_commit_time(duration);
        Ok(())
    }

    /// Handles a failed commit.
    fn handle_failure(&mut self, error: &rusqlite::Error) {
        let Some(database) = &self.database else { return };
        if is_full(error) {
            database.checkpoints.after_failure(&database.connection);
            if let Err(error) = self.limits.set(&database.connection, true) {
                tracing::warn!(%error, "cannot release the space reserved for deletions");
            }
            self.reserve.release();
            self.fail(State::Full(error.to_string()));
        } else {
            // The log may have more than the acknowledged writes, so keep it.
            let _ = keep_log(&database.connection, true);
            self.fail(State::Broken(error.to_string()));
            self.database = None;
        }
    }

    /// Sets a state in which writes are rejected, and reports the reason.
    fn fail(&mut self, state: State) {
        let state = match state {
            State::Full(why) => {
                State::Full(format!("the disk is full ({why}): only deletions are accepted until there is space"))
            }
            State::Broken(why) => State::Broken(format!("{why}; retrying to open the file")),
            State::Writable => State::Writable,
        };
        if let State::Full(reason) | State::Broken(reason) = &state {
            self.shared.set_trouble(Some(reason.clone()));
        }
        self.state = state;
        self.retry = (now() + RETRY[0], RETRY[0]);
    }

    /// Tries to accept writes again.
    fn retry_writing(&mut self) {
        let outcome = match &self.state {
            State::Writable => return,
            State::Full(_) => self.reclaim_reserve(),
            State::Broken(_) => self.reopen(),
        };
        let reason = match outcome {
            Ok(State::Writable) => {
                tracing::info!("the store accepts writes again");
                self.state = State::Writable;
                return self.shared.set_trouble(None);
            }
            Ok(state) => return self.fail(state),
            Err(reason) => reason,
        };
        let wait = (self.retry.1 * 2).min(RETRY[1]);
        if matches!(&self.state, State::Broken(known) if !known.starts_with(&reason)) {
            tracing::warn!(reason, "the store file cannot be opened again");
            self.fail(State::Broken(reason));
        }
        self.retry = (now() + wait, wait);
    }

    /// Creates the reserve file. The state is full if there is no space for it.
    fn take_reserve(&self) -> State {
        match self.reserve.take() {
            Ok(()) => State::Writable,
            Err(error) => State::Full(error.to_string()),
        }
    }

    /// Takes the reserve back from deletions, if there is enough space.
    fn reclaim_reserve(&self) -> Result<State, String> {
        let Some(database) = &self.database else { return Err("the file is closed".to_owned()) };
        let (limits, connection) = (self.limits, &database.connection);
        match limits.has_space(connection) {
            Ok(true) => {}
            Ok(false) => return Err("the file has its maximum size".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
        match self.take_reserve() {
            State::Writable => {
                limits.set(connection, false).map(|()| State::Writable).map_err(|error| error.to_string())
            }
            State::Full(why) | State::Broken(why) => Err(why),
        }
    }

    /// Opens the file again after an error. It must have all acknowledged writes. Rows beyond those
    /// are deleted.
    fn reopen(&mut self) -> Result<State, String> {
        self.database = None;
        let text = |error: OpenError| error.to_string();
        if !std::fs::metadata(&self.file).is_ok_and(|metadata| metadata.len() > 0) {
            return Err(format!("{} is missing or empty", self.file.display()));
        }
        self.lock.renew(&self.file).map_err(text)?;
        let mut revisions = BTreeSet::new();
        let opened = examine(&self.file, |revision, _, _| {
            revisions.insert(revision);
        });
        let opened = self.reconcile(opened.map_err(text)?, revisions)?;
        let totals = opened.totals;
        self.database = Some(Database::begin(&self.file, opened, self.limits, false).map_err(text)?);
        self.totals = Totals { is_open: true, ..totals };
        Ok(self.take_reserve())
    }

    /// Checks that the file has all acknowledged writes, and deletes all later rows. `revisions`
    /// are those of the rows in the file.
    fn reconcile(&self, opened: Opened, mut revisions: BTreeSet<u64>) -> Result<Opened, String> {
        let Opened { mut connection, format, mut totals } = opened;
        let (shown, last) = (self.file.display(), self.totals.revision);
        if totals.revision < last {
            return Err(format!("{shown} ends at revision {}, but {last} was acknowledged", totals.revision));
        }
        if let Some(revision) = self.mvcc.stored().into_iter().find(|revision| !revisions.contains(revision)) {
            return Err(format!("{shown} lacks revision {revision}, which was acknowledged"));
        }
        // Such rows are from a commit that was written, but whose sync failed, for example.
        let beyond = revisions.split_off(&(last + 1));
        totals.revision = last;
        totals.compacted = totals.compacted.min(last);
        let mut undo = || {
            let transaction = connection.transaction()?;
            for revision in &beyond {
                if format::remove(&transaction, *revision)? {
                    totals.remove(*revision);
                }
            }
            format::set_base(&transaction, &Totals { is_open: true, ..totals })?;
            transaction.commit()
        };
        undo().map_err(|error: rusqlite::Error| error.to_string())?;
        Ok(Opened { connection, format, totals })
    }

    /// Marks the file as closed: it has all acknowledged writes.
    fn close(&mut self) {
        let Some(database) = &self.database else { return };
        if let Err(error) = format::set_base(&database.connection, &Totals { is_open: false, ..self.totals }) {
            tracing::warn!(%error, "cannot mark the store as closed: the next start treats it as after a kill");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::file::with_suffix;

    /// Returns a writer that runs on the thread of the test.
    fn writer(folder: &Path, bytes_max: Option<u64>) -> Writer {
        let (lock, file) = Lock::take(&folder.join("store.db")).unwrap();
        let opened = examine(&file, |_, _, _| {}).unwrap();
        let mvcc = Arc::new(Mvcc::new(100, None, true));
        Writer::new(file, lock, bytes_max, opened, (mvcc, Arc::new(Queue::new()), Arc::default())).unwrap()
    }

    impl Writer {
        /// Executes one write, as `run` does.
        fn write(&mut self, write: Write) -> Result<u64, CommitError> {
            let (reply, mut answer) = oneshot::channel();
            let mut batch = Batch { plan: self.mvcc.plan(), planned: Vec::new(), bytes: 0, replies: Vec::new() };
            match self.rejection(&write) {
                Some(rejection) => batch.replies.push((reply, Err(rejection))),
                None => batch.add(write, reply),
            }
            self.finish(batch);
            answer.try_recv().unwrap().map(|committed| committed.record.revision)
        }

        fn create(&mut self, key: &str) -> Result<u64, CommitError> {
            self.write(Write::Create { key: key.to_owned(), value: json!({"text": "x".repeat(1000)}) })
        }

        /// Makes the next commit fail.
        fn fail_next(&mut self) {
            let hook = self.database.as_mut().unwrap().connection.commit_hook(Some(|| true));
            hook.unwrap();
        }
    }

    fn other(folder: &Path) -> Connection {
        Connection::open(folder.join("store.db")).unwrap()
    }

    fn rows(folder: &Path) -> Vec<i64> {
        let other = other(folder);
        let mut rows = other.prepare("SELECT revision FROM log ORDER BY revision").unwrap();
        rows.query_map((), |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn after_an_error_writes_are_rejected_until_the_file_is_open_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = writer(folder.path(), None);
        writer.create("/a/1").unwrap();
        writer.fail_next();
        assert!(matches!(writer.create("/a/2"), Err(CommitError::Unavailable { .. })));
        let trouble = writer.shared.trouble().expect("trouble is reported");
        assert!(!trouble.restart_helps && trouble.reason.contains("retrying"), "{trouble:?}");
        let Err(CommitError::Unavailable { reason }) = writer.create("/a/2") else { panic!("the write succeeded") };
        assert_eq!(reason, trouble.reason);
        writer.retry_writing();
        assert_eq!(writer.shared.trouble(), None);
        assert_eq!(writer.create("/a/2"), Ok(2));
        drop(writer);
        assert_eq!(rows(folder.path()), [1, 2]);
    }

    #[test]
    fn rows_of_a_failed_commit_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = writer(folder.path(), None);
        writer.create("/a/1").unwrap();
        let mut written_totals = writer.totals;
        writer.fail_next();
        writer.create("/a/2").unwrap_err();
        // Simulates that the row was written and only the sync failed.
        written_totals.revision = 2;
        written_totals.add(2);
        let text = br#"{"metadata":{"resourceVersion":"2"}}"#;
        format::insert(&other(folder.path()), 2, "/a/2", Some(text), Some(&written_totals)).unwrap();
        writer.retry_writing();
        assert_eq!((writer.shared.trouble(), rows(folder.path())), (None, vec![1]));
        assert_eq!(writer.create("/a/3"), Ok(2));
        drop(writer);
        let mut keys = Vec::new();
        examine(&folder.path().join("store.db"), |_, key, _| keys.push(key.to_owned()))
            .unwrap_or_else(|_| panic!("not intact"));
        assert_eq!(keys, ["/a/1", "/a/3"]);
    }

    #[test]
    fn a_file_that_lacks_acknowledged_writes_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = writer(folder.path(), None);
        for number in 1..=3 {
            writer.create(&format!("/a/{number}")).unwrap();
        }
        writer.fail_next();
        writer.create("/a/4").unwrap_err();
        let intact = folder.path().join("intact");
        other(folder.path()).execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        std::fs::copy(&writer.file, &intact).unwrap();
        // An older file that is intact by itself.
        let without = other(folder.path());
        let mut totals = Totals { revision: 2, ..Totals::default() };
        [1, 2].into_iter().for_each(|revision| totals.add(revision));
        format::remove(&without, 3).unwrap();
        format::set_base(&without, &totals).unwrap();
        let mark = with_suffix(&writer.file, "-mark");
        let content = std::fs::read(&mark).unwrap();
        drop((without, Mark::open(&writer.file, 2).unwrap()));
        writer.retry_writing();
        let trouble = writer.shared.trouble().unwrap();
        assert!(trouble.reason.contains("ends at revision 2, but 3 was acknowledged"), "{trouble:?}");
        assert!(writer.create("/a/4").is_err());
        // A missing file.
        std::fs::remove_file(&writer.file).unwrap();
        writer.retry_writing();
        assert!(writer.shared.trouble().unwrap().reason.contains("missing"));
        assert!(!writer.file.exists(), "no new file is created");
        // The original file, restored.
        std::fs::copy(&intact, &writer.file).unwrap();
        std::fs::write(&mark, content).unwrap();
        writer.retry_writing();
        assert_eq!(writer.shared.trouble(), None);
        assert_eq!(writer.create("/a/4"), Ok(4));
    }

    #[test]
    fn a_full_disk_accepts_deletions_and_they_free_space() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = writer(folder.path(), Some(1024 * 1024));
        let mut written = 0;
        while writer.create(&format!("/a/{written}")).is_ok() {
            written += 1;
        }
        assert!(written > 100);
        let trouble = writer.shared.trouble().expect("trouble is reported");
        assert!(trouble.reason.contains("full") && trouble.reason.contains("deletions"), "{trouble:?}");
        assert!(!with_suffix(&writer.file, "-reserve").exists(), "the reserve is released for deletions");
        writer.retry_writing();
        assert!(writer.shared.trouble().is_some(), "the disk is still full");
        // Deletion begins with a finalizer. Other changes are rejected.
        let update = |value: Value| Write::Update { key: "/a/0".to_owned(), expected: 1, value };
        assert!(writer.write(update(json!({"text": "y"}))).is_err());
        let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x"]}});
        let going = writer.write(update(going)).expect("a change of an object that is being deleted");
        writer.write(Write::Delete { key: "/a/0".to_owned(), expected: going, last: None }).expect("deletes");
        for number in 1..written {
            let key = format!("/a/{number}");
            writer.write(Write::Delete { key, expected: number + 1, last: None }).expect("deletes");
        }
        writer.mvcc.compact(u64::MAX);
        // Rows are deleted with later writes.
        for _ in 0..4 {
            writer.retry_writing();
            let _ = writer
                .create("/b")
                .and_then(|expected| writer.write(Write::Delete { key: "/b".to_owned(), expected, last: None }));
        }
        assert_eq!(writer.shared.trouble(), None);
        writer.create("/c").expect("there is space again");
        assert!(with_suffix(&writer.file, "-reserve").exists());
    }
}
