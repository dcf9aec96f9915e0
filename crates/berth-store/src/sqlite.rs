//! The durable store: an append-only log of writes in SQLite, one row a revision.
//!
//! One thread owns the connection. It takes everything that is queued, plans it in order, writes all rows in one
//! transaction (WAL, `synchronous = FULL`: one sync for the whole batch), and only then makes the writes visible and
//! answers. A failed transaction (disk full, read-only) answers every write of the batch with an error and leaves no
//! trace; reads go on.
//!
//! What SQLite's own log holds is moved into the file beside that (`checkpoint`).
//!
//! At start the log is read back into memory. Rows nobody can ask for any more go out with later batches.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot;

use crate::checkpoint::Checkpoints;
use crate::mvcc::{Mvcc, Plan, Planned};
use crate::queue::{Next, Queue};
use crate::{
    CommitError, CommitFuture, Committed, HISTORY_DEFAULT, ListQuery, Listing, ReadError, Record, Store, Watcher, Write,
};

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
/// Old rows removed with one batch at most: more than a write makes, for each of its writes, and some more. Those who wait for
/// the batch wait for that too.
const fn garbage_max(writes: usize) -> usize {
    64 + 2 * writes
}

/// Size of the pages of a file that is made. With SQLite's usual 4 KiB, of which an object takes a half, a commit of ten writes is
/// ten pages, each with a header, a checksum and two system calls. A file keeps what it was made with.
const PAGE: u32 = 16 * 1024;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS log (
        revision INTEGER PRIMARY KEY,
        key TEXT NOT NULL,
        value BLOB
    ) STRICT;
    CREATE TABLE IF NOT EXISTS meta (
        name TEXT PRIMARY KEY,
        value INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
";

/// How to open a store.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// Changes kept for watchers and older lists.
    pub history: usize,
    /// Changes a watcher may lag behind; `None` for [`crate::Watcher`]'s usual bound.
    pub watcher_buffer: Option<usize>,
    /// Largest size of the file in bytes, rounded down to whole pages; `None` for no limit but the disk.
    pub bytes_max: Option<u64>,
}

impl Default for SqliteOptions {
    fn default() -> SqliteOptions {
        SqliteOptions { history: HISTORY_DEFAULT, watcher_buffer: None, bytes_max: None }
    }
}

/// Why a store file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("the store {path} is in use: another berth has it open")]
    InUse {
        /// The file.
        path: String,
    },
    /// The file that says that it is open cannot be written.
    #[error("cannot open the store {path}: {source}")]
    Lock {
        /// The file beside the store.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// SQLite refused: not a database, no permission, an older berth has it open.
    #[error("cannot open the store {path}: {source} (is another berth using it?)")]
    Engine {
        /// The file.
        path: String,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// A row does not hold an object.
    #[error("the store {path} is damaged: revision {revision} of {key} is not JSON: {source}")]
    Damaged {
        /// The file.
        path: String,
        /// The row.
        revision: u64,
        /// Its key.
        key: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

type Reply = oneshot::Sender<Result<Committed, CommitError>>;

/// A write and who waits for it.
type Request = (Write, Reply);

/// Objects in a SQLite file.
pub struct SqliteStore {
    mvcc: Arc<Mvcc>,
    queue: Arc<Queue<Request>>,
    least: Arc<Least>,
    writer: Option<JoinHandle<()>>,
    /// Held as long as the file is open; goes with the process, however that ends.
    #[expect(dead_code, reason = "dropping it is what gives it up")]
    lock: Lock,
}

/// The lock on a store.
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing it would leave it to a child process that has been forked and not yet started its program.
        let _ = self.0.unlock();
    }
}

impl SqliteStore {
    /// Opens or creates the file at `path` and reads it into memory.
    pub fn open(path: &Path, options: SqliteOptions) -> Result<SqliteStore, OpenError> {
        let shown = path.display().to_string();
        let engine_error = |source| OpenError::Engine { path: shown.clone(), source };
        let lock = lock(path)?;
        let mut connection = connect(path, &options).map_err(engine_error)?;
        let mvcc = Arc::new(Mvcc::new(options.history, options.watcher_buffer, true));
        load(&connection, &mvcc, &shown)?;
        let checkpoints = Checkpoints::start(path, &mut connection).map_err(engine_error)?;
        let queue = Arc::new(Queue::new());
        let least = Arc::new(Least::default());
        let mut writer = Writer {
            checkpoints,
            connection,
            mvcc: mvcc.clone(),
            queue: queue.clone(),
            commit_time: Duration::ZERO,
            least: least.clone(),
            lately: (Duration::MAX, 0),
        };
        let writer = std::thread::Builder::new()
            .name("berth-store".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| engine_error(rusqlite::Error::ToSqlConversionFailure(Box::new(error))))?;
        Ok(SqliteStore { mvcc, queue, least, writer: Some(writer), lock })
    }
}

impl Drop for SqliteStore {
    /// Waits until everything queued is on disk.
    fn drop(&mut self) {
        self.queue.close();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// One process at a time has a store open. SQLite's own lock for that would keep out the thread that makes checkpoints too.
/// What says so is beside the file itself, whatever links lead there.
fn lock(path: &Path) -> Result<Lock, OpenError> {
    let unknown = |source| OpenError::Lock { path: path.display().to_string(), source };
    let mut file = path.canonicalize();
    if file.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        // An empty file is an empty database. One that is there is not opened: closing it would give up the locks SQLite has
        // on it in this process.
        private(File::options().create(true).append(true)).open(path).map_err(unknown)?;
        file = path.canonicalize();
    }
    let file = file.map_err(unknown)?;
    tighten(&file);
    let mut beside = file.into_os_string();
    beside.push("-lock");
    let failed = |source| OpenError::Lock { path: beside.display().to_string(), source };
    let file = private(File::options().create(true).truncate(false).write(true)).open(&beside).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(Lock(file)),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: path.display().to_string() }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// Objects hold secrets: a file that is made is for its owner alone. SQLite gives the files of its own log the mode of the
/// file itself.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// Takes the files of a store that is there from everybody but their owner. They are not opened for that: closing one would
/// give up the locks that SQLite has on it in this process.
#[cfg(unix)]
fn tighten(file: &Path) {
    use std::os::unix::fs::PermissionsExt;
    for suffix in ["", "-wal", "-shm", "-lock"] {
        let mut path = file.as_os_str().to_owned();
        path.push(suffix);
        let path = Path::new(&path);
        let Ok(permissions) = std::fs::metadata(path).map(|metadata| metadata.permissions()) else { continue };
        if permissions.mode() & 0o077 == 0 {
            continue;
        }
        let own = std::fs::Permissions::from_mode(permissions.mode() & 0o700);
        if let Err(error) = std::fs::set_permissions(path, own) {
            // Somebody else's file, or a file system that knows no modes: it worked so far.
            tracing::warn!(path = %path.display(), %error, "others than its owner may read the store");
        }
    }
}

#[cfg(not(unix))]
fn tighten(_: &Path) {}

fn connect(path: &Path, options: &SqliteOptions) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "page_size", PAGE)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    if let Some(bytes) = options.bytes_max {
        let pages = bytes / u64::from(page_size(&connection)?);
        connection.pragma_update(None, "max_page_count", i64::try_from(pages).unwrap_or(i64::MAX))?;
    }
    connection.execute_batch(SCHEMA)?;
    Ok(connection)
}

/// Bytes of a page of the file.
pub(crate) fn page_size(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "page_size", |row| row.get(0))
}

fn load(connection: &Connection, mvcc: &Mvcc, path: &str) -> Result<(), OpenError> {
    let engine_error = |source| OpenError::Engine { path: path.to_owned(), source };
    let mut statement =
        connection.prepare("SELECT revision, key, value FROM log ORDER BY revision").map_err(engine_error)?;
    let mut rows = statement.query(()).map_err(engine_error)?;
    while let Some(row) = rows.next().map_err(engine_error)? {
        let revision = row.get::<_, i64>(0).map_err(engine_error)? as u64;
        let key: String = row.get(1).map_err(engine_error)?;
        let value: Option<Vec<u8>> = row.get(2).map_err(engine_error)?;
        if let Some(value) = &value {
            serde_json::from_slice::<serde::de::IgnoredAny>(value).map_err(|source| OpenError::Damaged {
                path: path.to_owned(),
                revision,
                key: key.clone(),
                source,
            })?;
        }
        mvcc.replay(Arc::from(key), revision, value.map(Bytes::from));
    }
    let meta = |name: &str| {
        connection
            .query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| row.get::<_, i64>(0))
            .optional()
            .map(|value| value.unwrap_or(0) as u64)
            .map_err(engine_error)
    };
    mvcc.finish_replay(meta("revision")?, meta("compacted")?);
    Ok(())
}

struct Writer {
    /// Before the connection: the last one that closes moves what is left.
    checkpoints: Checkpoints,
    connection: Connection,
    mvcc: Arc<Mvcc>,
    queue: Arc<Queue<Request>>,
    /// How long the last transactions took to commit, on average.
    commit_time: Duration,
    /// What the shortest of some took, for who wants to know.
    least: Arc<Least>,
    /// The shortest one since that was said, and how many there have been.
    lately: (Duration, usize),
}

/// A duration in nanoseconds that one thread changes.
#[derive(Default)]
struct Least(AtomicU64);

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

impl Writer {
    fn run(&mut self) {
        loop {
            let mut next = match self.queue.next() {
                Next::Write(write) => Some(write),
                // Done here, so that no batch is half before and half after it.
                Next::Compact(revision) => {
                    self.mvcc.compact(revision);
                    continue;
                }
                Next::Closed => return,
            };
            let mut batch = Batch { plan: self.mvcc.plan(), planned: Vec::new(), bytes: 0, replies: Vec::new() };
            while let Some((write, reply)) = next {
                batch.add(write, reply);
                next = if batch.is_full(self.batch_max()) { None } else { self.queue.try_next() };
            }
            self.finish(batch);
        }
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
            self.least.0.store(nanoseconds, Ordering::Relaxed);
            self.lately = (Duration::MAX, 0);
        }
    }

    /// Persists, publishes and answers one batch.
    fn finish(&mut self, batch: Batch) {
        let Batch { plan, planned, replies, .. } = batch;
        let (garbage, compacted) = self.mvcc.take_garbage(garbage_max(planned.len()));
        let (mut old, mut failure) = (Vec::new(), None);
        match self.persist(&planned, &garbage, compacted) {
            Ok(()) => old = self.mvcc.publish(plan, &planned),
            Err(error) => {
                tracing::warn!(%error, writes = planned.len(), "the store could not write");
                self.mvcc.return_garbage(garbage);
                self.checkpoints.after_failure(&self.connection);
                failure = Some(CommitError::Unavailable { reason: error.to_string() });
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
        self.checkpoints.look(&self.connection);
        self.mvcc.condense(&old);
    }

    fn persist(&mut self, writes: &[Planned], garbage: &[u64], compacted: u64) -> rusqlite::Result<()> {
        if writes.is_empty() && garbage.is_empty() {
            return Ok(());
        }
        let transaction = self.connection.transaction()?;
        {
            let mut insert =
                transaction.prepare_cached("INSERT INTO log (revision, key, value) VALUES (?1, ?2, ?3)")?;
            for write in writes {
                let record = &write.event.record;
                let value = (!write.is_delete()).then(|| record.bytes());
                insert.execute(params![record.revision as i64, record.key.as_ref(), value.as_deref()])?;
            }
        }
        if !garbage.is_empty() {
            let mut delete = transaction.prepare_cached("DELETE FROM log WHERE revision = ?1")?;
            for revision in garbage {
                delete.execute([*revision as i64])?;
            }
            let mut meta = transaction.prepare_cached("INSERT OR REPLACE INTO meta (name, value) VALUES (?1, ?2)")?;
            meta.execute(params!["compacted", compacted as i64])?;
            // The rows alone may not show the last revision, when it was a delete.
            let last = writes.last().map_or_else(|| self.mvcc.revision(), |write| write.event.revision());
            meta.execute(params!["revision", last as i64])?;
        }
        #[expect(clippy::disallowed_methods, reason = "how long the disk takes is no matter of the cluster's time")]
        let start = Instant::now();
        transaction.commit()?;
        self.took(start.elapsed());
        Ok(())
    }
}

impl Store for SqliteStore {
    fn revision(&self) -> u64 {
        self.mvcc.revision()
    }

    fn get(&self, key: &str) -> Option<Arc<Record>> {
        self.mvcc.get(key)
    }

    fn list(&self, query: &ListQuery<'_>) -> Result<Listing, ReadError> {
        self.mvcc.list(query)
    }

    fn commit_for(&self, user: &str, write: Write) -> CommitFuture {
        let (reply, answer) = oneshot::channel();
        if let Err(refused) = self.queue.push(user, write.memory(), (write, reply)) {
            return Box::pin(std::future::ready(Err(refused)));
        }
        Box::pin(async move {
            let stopped = CommitError::Unavailable { reason: "the store's writer has stopped".to_owned() };
            answer.await.unwrap_or(Err(stopped))
        })
    }

    fn commit_time(&self) -> Duration {
        Duration::from_nanos(self.least.0.load(Ordering::Relaxed))
    }

    fn watch(&self, prefix: &str, after: u64) -> Result<Watcher, ReadError> {
        self.mvcc.watch(prefix, after)
    }

    fn changes(&self, prefix: &str) -> Arc<AtomicU64> {
        self.mvcc.changes(prefix)
    }

    fn compact(&self, revision: u64) {
        self.queue.compact(revision);
    }

    fn compacted(&self) -> u64 {
        self.mvcc.compacted()
    }
}
