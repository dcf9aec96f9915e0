//! The thread that writes.
//!
//! It takes everything that is queued, plans it in order, writes all rows in one transaction (WAL, `synchronous = FULL`: one
//! sync for the whole batch), and only then makes the writes visible and answers. A failed transaction answers every write of
//! the batch with an error and leaves no trace; reads go on. What SQLite's own log holds is moved into the file beside that
//! (`checkpoint`). Rows nobody can ask for any more go out with later batches.
//!
//! When the disk is full, room that was kept is given to deletions, and nothing else is written until there is some again. After
//! any other failure nobody knows what SQLite has in memory and the system in its caches: the file is opened anew, and has to
//! agree with what was acknowledged before anything is written.

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
use crate::sqlite::{Start, examine, unreadable};
use crate::{CommitError, Committed, OpenError, Trouble, Write};

/// Writes in one transaction at most, however slow the disk is.
const BATCH_MAX: usize = 1024;
/// Writes that may be in one transaction however fast the disk is.
const BATCH_MIN: usize = 64;
/// About what a write adds to the time of its transaction.
const WRITE_TIME: Duration = Duration::from_micros(40);
/// Commits of which the shortest one shows what the disk needs; the others waited for a processor too, or for another sync.
const COMMITS_COMPARED: usize = 64;
/// Bytes of objects in one transaction, the last one not counted: with larger ones the disk takes longer than its sync.
const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// How long after a failure it is tried first whether writing is possible again, and how long at most.
const RETRY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];
/// A commit that has waited for the disk for so long is as good as none.
const STUCK: Duration = Duration::from_secs(15);

/// Old rows removed with one batch at most: more than a write makes, for each of its writes, and some more. Those who wait for
/// the batch wait for that too.
const fn garbage_max(writes: usize) -> usize {
    64 + 2 * writes
}

/// How a write is answered.
pub(crate) type Reply = oneshot::Sender<Result<Committed, CommitError>>;

/// A write and who waits for it.
type Request = (Write, Reply);

/// What others want to know of the thread.
#[derive(Default)]
pub(crate) struct Shared {
    /// What the shortest of some commits took, in nanoseconds.
    least: AtomicU64,
    trouble: Mutex<Option<Trouble>>,
    /// When the commit began that is under way.
    began: Mutex<Option<Instant>>,
}

#[expect(clippy::disallowed_methods, reason = "how long the disk takes is no matter of the cluster's time")]
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

/// A file that is written to.
struct Database {
    /// Before the connection: the last one that closes moves what is left.
    checkpoints: Checkpoints,
    connection: Connection,
    mark: Mark,
}

impl Database {
    /// Begins to write to a file that has been read, and is sound. `may_be_full`: reads and deletions are served all the same
    /// where there is no room; what was written before an error has to be in the file for certain.
    fn begin(file: &Path, start: Start, limits: Limits, may_be_full: bool) -> Result<Database, OpenError> {
        let Start { mut connection, format, totals } = start;
        let engine = |error: rusqlite::Error| unreadable(file, error.into());
        limits.set(&connection, false).map_err(engine)?;
        if format == Format::Empty {
            format::create(&mut connection).map_err(engine)?;
        }
        let mark = Mark::open(file, totals.revision);
        let mark =
            mark.map_err(|source| OpenError::Lock { path: crate::mark::path_of(file).display().to_string(), source })?;
        let open = Totals { is_open: true, ..totals };
        // That it is open is said by any row that is added, too.
        let begun = format::set_base(&connection, &open).and_then(|()| move_all(&connection));
        begun.or_else(|error| if may_be_full && is_full(&error) { Ok(()) } else { Err(engine(error)) })?;
        keep_log(&connection, false).map_err(engine)?;
        let handle = mark.handle();
        let handle = handle.map_err(|source| OpenError::Lock { path: file.display().to_string(), source })?;
        let checkpoints = Checkpoints::start(file, &mut connection, handle).map_err(engine)?;
        Ok(Database { checkpoints, connection, mark })
    }
}

/// Moves all of SQLite's log into the file and empties it: what is in it then has been written since.
fn move_all(connection: &Connection) -> rusqlite::Result<()> {
    connection.wal_checkpoint_v2(Some("main"), CheckpointMode::TRUNCATE).map(|_| ())
}

fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// How large the file may be, in bytes.
#[derive(Clone, Copy)]
struct Limits(Option<u64>);

impl Limits {
    /// What is kept for deletions.
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
        // SQLite answers with the limit that it has then.
        connection.pragma_update_and_check(None, "max_page_count", i64::try_from(pages).unwrap_or(i64::MAX), |_| Ok(()))
    }

    /// Whether there is room without what is kept.
    fn has_room(self, connection: &Connection) -> rusqlite::Result<bool> {
        let Some(pages) = self.pages(connection, false)? else { return Ok(true) };
        let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let used = number("page_count")? - number("freelist_count")?;
        // As much as a commit may take, or there would be room for a moment only.
        Ok(u64::try_from(used).unwrap_or(0) + pages / 16 < pages)
    }
}

/// Whether writing is possible.
enum State {
    Sound,
    /// There is no room; only deletions are taken.
    Full(String),
    /// The file has been closed after an error.
    Broken(String),
}

pub(crate) struct Writer {
    database: Option<Database>,
    state: State,
    /// When writing is tried again, and how long after that.
    retry: (Instant, Duration),
    file: PathBuf,
    limits: Limits,
    reserve: Reserve,
    /// What the rows add up to: exactly those that were acknowledged, and those they made superfluous.
    totals: Totals,
    mvcc: Arc<Mvcc>,
    queue: Arc<Queue<Request>>,
    shared: Arc<Shared>,
    /// How long the last transactions took to commit, on average.
    commit_time: Duration,
    /// The shortest one since that was said, and how many there have been.
    lately: (Duration, usize),
    /// Given up last.
    lock: Lock,
}

impl Drop for Writer {
    /// However it ends, nobody waits for it any more.
    fn drop(&mut self) {
        self.queue.abandon();
    }
}

/// Writes that become durable together, and who waits for them.
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

/// Whether a write is part of a deletion: it removes an object, or is one of those that come before it goes (finalizers).
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
        start: Start,
        (mvcc, queue, shared): (Arc<Mvcc>, Arc<Queue<Request>>, Arc<Shared>),
    ) -> Result<Writer, OpenError> {
        let (limits, totals) = (Limits(bytes_max), Totals { is_open: true, ..start.totals });
        let database = Database::begin(&file, start, limits, true)?;
        let mut writer = Writer {
            database: Some(database),
            state: State::Sound,
            retry: (now(), RETRY[0]),
            reserve: Reserve::of(&file),
            file,
            limits,
            totals,
            mvcc,
            queue,
            shared,
            commit_time: Duration::ZERO,
            lately: (Duration::MAX, 0),
            lock,
        };
        match writer.kept_room() {
            State::Sound => {}
            full => writer.fail(full),
        }
        Ok(writer)
    }

    pub(crate) fn run(&mut self) {
        loop {
            let wait = match self.state {
                State::Sound => None,
                _ => Some(self.retry.0.saturating_duration_since(now())),
            };
            if wait == Some(Duration::ZERO) {
                self.try_again();
                continue;
            }
            let mut next = match self.queue.next(wait) {
                Next::Write(write) => Some(write),
                // Done here, so that no batch is half before and half after it.
                Next::Compact(revision) => {
                    self.mvcc.compact(revision);
                    continue;
                }
                Next::Nothing => continue,
                Next::Closed => return self.close(),
            };
            let mut batch = Batch { plan: self.mvcc.plan(), planned: Vec::new(), bytes: 0, replies: Vec::new() };
            while let Some((write, reply)) = next {
                match self.refusal(&write) {
                    Some(refusal) => batch.replies.push((reply, Err(refusal))),
                    None => batch.add(write, reply),
                }
                next = if batch.is_full(self.batch_max()) { None } else { self.queue.try_next() };
            }
            self.finish(batch);
        }
    }

    /// Why a write need not be tried.
    fn refusal(&self, write: &Write) -> Option<CommitError> {
        let reason = match &self.state {
            State::Full(_) if is_deletion(write) => return None,
            State::Sound => return None,
            State::Full(reason) | State::Broken(reason) => reason.clone(),
        };
        Some(CommitError::Unavailable { reason })
    }

    /// As many writes as add no more to a transaction than it takes anyway: who has one write waits at most twice as long
    /// as alone, and the disk still gets all it can take.
    fn batch_max(&self) -> usize {
        let fitting = self.commit_time.as_nanos() / WRITE_TIME.as_nanos();
        usize::try_from(fitting).unwrap_or(BATCH_MAX).clamp(BATCH_MIN, BATCH_MAX)
    }

    /// Remembers how long a commit took; a single slow one counts for little.
    fn took(&mut self, time: Duration) {
        self.commit_time = (self.commit_time * 7 + time) / 8;
        self.lately = (self.lately.0.min(time), self.lately.1 + 1);
        if self.lately.1 == COMMITS_COMPARED {
            let nanoseconds = u64::try_from(self.lately.0.as_nanos()).unwrap_or(u64::MAX);
            self.shared.least.store(nanoseconds, Ordering::Relaxed);
            self.lately = (Duration::MAX, 0);
        }
    }

    /// Persists, publishes and answers one batch.
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
                    self.failed(&error);
                }
            }
        }
        for (reply, outcome) in replies {
            // Refused guards are answered after the batch too: what they were checked against is visible only now. When
            // the batch failed, what they were checked against may never have happened.
            let answer = match (&failure, outcome) {
                (Some(failure), _) => Err(failure.clone()),
                (None, Ok(index)) => Ok(planned[index].committed()),
                (None, Err(refused)) => Err(refused),
            };
            // Whoever asked may have gone.
            let _ = reply.send(answer);
        }
        // Nobody waits for this.
        if let Some(database) = &mut self.database {
            database.checkpoints.look(&database.connection);
        }
        self.mvcc.condense(&old);
    }

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
                // One that is gone already went with a commit that seemed to fail.
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
        let took = written?;
        self.totals = totals;
        database.mark.set(totals.revision);
        self.took(took);
        Ok(())
    }

    /// After a commit that failed.
    fn failed(&mut self, error: &rusqlite::Error) {
        let Some(database) = &self.database else { return };
        if is_full(error) {
            database.checkpoints.after_failure(&database.connection);
            if let Err(error) = self.limits.set(&database.connection, true) {
                tracing::warn!(%error, "no room can be made for deletions");
            }
            self.reserve.release();
            self.fail(State::Full(error.to_string()));
        } else {
            // What is in the log may be more than was acknowledged.
            let _ = keep_log(&database.connection, true);
            self.fail(State::Broken(error.to_string()));
            self.database = None;
        }
    }

    /// Remembers that nothing can be written, and why.
    fn fail(&mut self, state: State) {
        let state = match state {
            State::Full(why) => {
                State::Full(format!("there is no room ({why}): only deletions are taken until there is"))
            }
            State::Broken(why) => State::Broken(format!("{why}; it is tried again and again")),
            State::Sound => State::Sound,
        };
        if let State::Full(reason) | State::Broken(reason) = &state {
            self.shared.set_trouble(Some(reason.clone()));
        }
        self.state = state;
        self.retry = (now() + RETRY[0], RETRY[0]);
    }

    /// Finds out whether writing is possible again.
    fn try_again(&mut self) {
        let tried = match &self.state {
            State::Sound => return,
            State::Full(_) => self.room(),
            State::Broken(_) => self.reopen(),
        };
        let reason = match tried {
            Ok(State::Sound) => {
                tracing::info!("the store can write again");
                self.state = State::Sound;
                return self.shared.set_trouble(None);
            }
            Ok(state) => return self.fail(state),
            Err(reason) => reason,
        };
        let wait = (self.retry.1 * 2).min(RETRY[1]);
        if matches!(&self.state, State::Broken(known) if !known.starts_with(&reason)) {
            tracing::warn!(reason, "the store cannot be opened again");
            self.fail(State::Broken(reason));
        }
        self.retry = (now() + wait, wait);
    }

    /// Has the room that is kept for deletions, if there is that much.
    fn kept_room(&self) -> State {
        match self.reserve.take() {
            Ok(()) => State::Sound,
            Err(error) => State::Full(error.to_string()),
        }
    }

    /// Takes back the room that was given to deletions, if there is some to spare.
    fn room(&self) -> Result<State, String> {
        let Some(database) = &self.database else { return Err("the file is closed".to_owned()) };
        let (limits, connection) = (self.limits, &database.connection);
        match limits.has_room(connection) {
            Ok(true) => {}
            Ok(false) => return Err("the file is as large as it may be".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
        match self.kept_room() {
            State::Sound => limits.set(connection, false).map(|()| State::Sound).map_err(|error| error.to_string()),
            State::Full(why) | State::Broken(why) => Err(why),
        }
    }

    /// Opens the file again after an error. It must have all that was acknowledged; what it has beyond that was not, and goes.
    fn reopen(&mut self) -> Result<State, String> {
        self.database = None;
        let text = |error: OpenError| error.to_string();
        if !std::fs::metadata(&self.file).is_ok_and(|metadata| metadata.len() > 0) {
            return Err(format!("{} is missing or empty", self.file.display()));
        }
        self.lock.renew(&self.file).map_err(text)?;
        let mut revisions = BTreeSet::new();
        let start = examine(&self.file, |revision, _, _| {
            revisions.insert(revision);
        });
        let start = self.reconcile(start.map_err(text)?, revisions)?;
        let totals = start.totals;
        self.database = Some(Database::begin(&self.file, start, self.limits, false).map_err(text)?);
        self.totals = Totals { is_open: true, ..totals };
        Ok(self.kept_room())
    }

    /// Has the file hold what was acknowledged and nothing else; `revisions`: what it holds.
    fn reconcile(&self, start: Start, mut revisions: BTreeSet<u64>) -> Result<Start, String> {
        let Start { mut connection, format, mut totals } = start;
        let (shown, last) = (self.file.display(), self.totals.revision);
        if totals.revision < last {
            return Err(format!("{shown} goes to revision {} only, and {last} was acknowledged", totals.revision));
        }
        if let Some(revision) = self.mvcc.stored().into_iter().find(|revision| !revisions.contains(revision)) {
            return Err(format!("{shown} has lost revision {revision}, which was acknowledged"));
        }
        // Of a commit that was written and could not be synced, say.
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
        Ok(Start { connection, format, totals })
    }

    /// Says in the file that it was closed: nothing was acknowledged after what is in it.
    fn close(&mut self) {
        let Some(database) = &self.database else { return };
        if let Err(error) = format::set_base(&database.connection, &Totals { is_open: false, ..self.totals }) {
            tracing::warn!(%error, "the store is closed as if the process had been killed");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::file::beside;

    /// A writer whose thread is the test's.
    fn writer(folder: &Path, bytes_max: Option<u64>) -> Writer {
        let (lock, file) = Lock::take(&folder.join("store.db")).unwrap();
        let start = examine(&file, |_, _, _| {}).unwrap();
        let mvcc = Arc::new(Mvcc::new(100, None, true));
        Writer::new(file, lock, bytes_max, start, (mvcc, Arc::new(Queue::new()), Arc::default())).unwrap()
    }

    impl Writer {
        /// Does one write, as `run` does.
        fn write(&mut self, write: Write) -> Result<u64, CommitError> {
            let (reply, mut answer) = oneshot::channel();
            let mut batch = Batch { plan: self.mvcc.plan(), planned: Vec::new(), bytes: 0, replies: Vec::new() };
            match self.refusal(&write) {
                Some(refusal) => batch.replies.push((reply, Err(refusal))),
                None => batch.add(write, reply),
            }
            self.finish(batch);
            answer.try_recv().unwrap().map(|committed| committed.record.revision)
        }

        fn create(&mut self, key: &str) -> Result<u64, CommitError> {
            self.write(Write::Create { key: key.to_owned(), value: json!({"text": "x".repeat(1000)}) })
        }

        /// Has the next commit fail.
        fn break_next(&mut self) {
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
    fn after_an_error_nothing_is_written_until_the_file_was_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = writer(folder.path(), None);
        writer.create("/a/1").unwrap();
        writer.break_next();
        assert!(matches!(writer.create("/a/2"), Err(CommitError::Unavailable { .. })));
        let trouble = writer.shared.trouble().expect("it is known");
        assert!(!trouble.restart_helps && trouble.reason.contains("again"), "{trouble:?}");
        let Err(CommitError::Unavailable { reason }) = writer.create("/a/2") else { panic!("written") };
        assert_eq!(reason, trouble.reason);
        writer.try_again();
        assert_eq!(writer.shared.trouble(), None);
        assert_eq!(writer.create("/a/2"), Ok(2));
        drop(writer);
        assert_eq!(rows(folder.path()), [1, 2]);
    }

    #[test]
    fn what_a_failed_commit_left_in_the_file_goes() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = writer(folder.path(), None);
        writer.create("/a/1").unwrap();
        let mut landed = writer.totals;
        writer.break_next();
        writer.create("/a/2").unwrap_err();
        // As if it had been written all the same, and the sync had failed.
        landed.revision = 2;
        landed.add(2);
        let text = br#"{"metadata":{"resourceVersion":"2"}}"#;
        format::insert(&other(folder.path()), 2, "/a/2", Some(text), Some(&landed)).unwrap();
        writer.try_again();
        assert_eq!((writer.shared.trouble(), rows(folder.path())), (None, vec![1]));
        assert_eq!(writer.create("/a/3"), Ok(2));
        drop(writer);
        let mut keys = Vec::new();
        examine(&folder.path().join("store.db"), |_, key, _| keys.push(key.to_owned()))
            .unwrap_or_else(|_| panic!("sound"));
        assert_eq!(keys, ["/a/1", "/a/3"]);
    }

    #[test]
    fn a_file_that_lost_what_was_acknowledged_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = writer(folder.path(), None);
        for number in 1..=3 {
            writer.create(&format!("/a/{number}")).unwrap();
        }
        writer.break_next();
        writer.create("/a/4").unwrap_err();
        let sound = folder.path().join("sound");
        other(folder.path()).execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        std::fs::copy(&writer.file, &sound).unwrap();
        // One that is sound by itself, of a moment before.
        let without = other(folder.path());
        let mut totals = Totals { revision: 2, ..Totals::default() };
        [1, 2].into_iter().for_each(|revision| totals.add(revision));
        format::remove(&without, 3).unwrap();
        format::set_base(&without, &totals).unwrap();
        let mark = beside(&writer.file, "-mark");
        let said = std::fs::read(&mark).unwrap();
        drop((without, Mark::open(&writer.file, 2).unwrap()));
        writer.try_again();
        let trouble = writer.shared.trouble().unwrap();
        assert!(trouble.reason.contains("revision 2 only, and 3 was acknowledged"), "{trouble:?}");
        assert!(writer.create("/a/4").is_err());
        // One that is gone.
        std::fs::remove_file(&writer.file).unwrap();
        writer.try_again();
        assert!(writer.shared.trouble().unwrap().reason.contains("missing"));
        assert!(!writer.file.exists(), "none is made in its place");
        // The one that was there, put back.
        std::fs::copy(&sound, &writer.file).unwrap();
        std::fs::write(&mark, said).unwrap();
        writer.try_again();
        assert_eq!(writer.shared.trouble(), None);
        assert_eq!(writer.create("/a/4"), Ok(4));
    }

    #[test]
    fn where_there_is_no_room_deletions_are_taken_and_make_some() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = writer(folder.path(), Some(1024 * 1024));
        let mut written = 0;
        while writer.create(&format!("/a/{written}")).is_ok() {
            written += 1;
        }
        assert!(written > 100);
        let trouble = writer.shared.trouble().expect("it is known");
        assert!(trouble.reason.contains("full") && trouble.reason.contains("deletions"), "{trouble:?}");
        assert!(!beside(&writer.file, "-reserve").exists(), "its room is given to deletions");
        writer.try_again();
        assert!(writer.shared.trouble().is_some(), "there still is none");
        // A finalizer first, as objects go that have some; nothing else is changed.
        let update = |value: Value| Write::Update { key: "/a/0".to_owned(), expected: 1, value };
        assert!(writer.write(update(json!({"text": "y"}))).is_err());
        let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x"]}});
        let going = writer.write(update(going)).expect("it is a deletion");
        writer.write(Write::Delete { key: "/a/0".to_owned(), expected: going, last: None }).expect("a deletion");
        for number in 1..written {
            let key = format!("/a/{number}");
            writer.write(Write::Delete { key, expected: number + 1, last: None }).expect("a deletion");
        }
        writer.mvcc.compact(u64::MAX);
        // Rows go with the writes that come after.
        for _ in 0..4 {
            writer.try_again();
            let _ = writer
                .create("/b")
                .and_then(|expected| writer.write(Write::Delete { key: "/b".to_owned(), expected, last: None }));
        }
        assert_eq!(writer.shared.trouble(), None);
        writer.create("/c").expect("there is room again");
        assert!(beside(&writer.file, "-reserve").exists());
    }
}
