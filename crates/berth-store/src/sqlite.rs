//! The durable store: an append-only log of writes in SQLite, one row a revision.
//!
//! One thread owns the connection. It takes everything that is queued, plans it in order, writes all rows in one
//! transaction (WAL, `synchronous = FULL`: one sync for the whole batch), and only then makes the writes visible and
//! answers. A failed transaction (disk full, read-only) answers every write of the batch with an error and leaves no
//! trace; reads go on.
//!
//! At start the log is read back into memory. Rows nobody can ask for any more go out with later batches.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot;

use crate::mvcc::{Mvcc, Planned};
use crate::{
    CommitError, CommitFuture, Committed, HISTORY_DEFAULT, ListQuery, Listing, ReadError, Record, Store, Watcher, Write,
};

/// Writes in one transaction at most, so that the first of a long queue does not wait for all of it.
const BATCH_MAX: usize = 1_024;
/// Writes waiting for the disk at most; beyond, commits are refused rather than memory filled.
const QUEUE_MAX: usize = 65_536;
/// Old rows removed with one batch at most.
const GARBAGE_BATCH: usize = 2_048;

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
    /// Largest size of the file in pages of 4 KiB; `None` for no limit but the disk.
    pub pages_max: Option<u32>,
}

impl Default for SqliteOptions {
    fn default() -> SqliteOptions {
        SqliteOptions { history: HISTORY_DEFAULT, watcher_buffer: None, pages_max: None }
    }
}

/// Why a store file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// SQLite refused: not a database, no permission, another process has it open.
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

enum Request {
    Write(Write, oneshot::Sender<Result<Committed, CommitError>>),
    Compact(u64),
    Close,
}

/// Objects in a SQLite file.
pub struct SqliteStore {
    mvcc: Arc<Mvcc>,
    queue: mpsc::Sender<Request>,
    queued: Arc<AtomicUsize>,
    writer: Option<JoinHandle<()>>,
}

impl SqliteStore {
    /// Opens or creates the file at `path` and reads it into memory.
    pub fn open(path: &Path, options: SqliteOptions) -> Result<SqliteStore, OpenError> {
        let shown = path.display().to_string();
        let engine_error = |source| OpenError::Engine { path: shown.clone(), source };
        let connection = connect(path, &options).map_err(engine_error)?;
        let mvcc = Arc::new(Mvcc::new(options.history, options.watcher_buffer, true));
        load(&connection, &mvcc, &shown)?;
        let (queue, requests) = mpsc::channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let mut writer = Writer { connection, mvcc: mvcc.clone(), queued: queued.clone() };
        let writer = std::thread::Builder::new()
            .name("berth-store".to_owned())
            .spawn(move || writer.run(&requests))
            .map_err(|error| engine_error(rusqlite::Error::ToSqlConversionFailure(Box::new(error))))?;
        Ok(SqliteStore { mvcc, queue, queued, writer: Some(writer) })
    }
}

impl Drop for SqliteStore {
    /// Waits until everything queued is on disk.
    fn drop(&mut self) {
        // A send fails only when the writer is gone already.
        let _ = self.queue.send(Request::Close);
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn connect(path: &Path, options: &SqliteOptions) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    // One process at a time; its death releases the lock.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    if let Some(pages) = options.pages_max {
        connection.pragma_update(None, "max_page_count", pages)?;
    }
    connection.execute_batch(SCHEMA)?;
    Ok(connection)
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
    connection: Connection,
    mvcc: Arc<Mvcc>,
    queued: Arc<AtomicUsize>,
}

impl Writer {
    fn run(&mut self, requests: &mpsc::Receiver<Request>) {
        let mut open = true;
        while open {
            let Ok(first) = requests.recv() else { return };
            let mut writes = Vec::new();
            let mut next = Some(first);
            while let Some(request) = next {
                match request {
                    Request::Write(write, reply) => writes.push((write, reply)),
                    Request::Compact(revision) => self.mvcc.compact(revision),
                    Request::Close => open = false,
                }
                next = if open && writes.len() < BATCH_MAX { requests.try_recv().ok() } else { None };
            }
            self.queued.fetch_sub(writes.len(), Ordering::Relaxed);
            self.batch(writes);
        }
    }

    /// Plans, persists, publishes and answers one batch.
    fn batch(&mut self, writes: Vec<(Write, oneshot::Sender<Result<Committed, CommitError>>)>) {
        let mut plan = self.mvcc.plan();
        let mut planned = Vec::with_capacity(writes.len());
        let mut replies = Vec::with_capacity(writes.len());
        for (write, reply) in writes {
            let outcome = plan.add(write).map(|write| {
                planned.push(write);
                planned.len() - 1
            });
            replies.push((reply, outcome));
        }
        let (garbage, compacted) = self.mvcc.take_garbage(GARBAGE_BATCH);
        let failure = match self.persist(&planned, &garbage, compacted) {
            Ok(()) => {
                self.mvcc.publish(plan, &planned);
                None
            }
            Err(error) => {
                tracing::warn!(%error, writes = planned.len(), "the store could not write");
                self.mvcc.return_garbage(garbage);
                Some(CommitError::Unavailable { reason: error.to_string() })
            }
        };
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
        transaction.commit()
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

    fn commit(&self, write: Write) -> CommitFuture {
        let refuse = |reason: &str| -> CommitFuture {
            let error = CommitError::Unavailable { reason: reason.to_owned() };
            Box::pin(std::future::ready(Err(error)))
        };
        if self.queued.fetch_add(1, Ordering::Relaxed) >= QUEUE_MAX {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            return refuse("too many writes are waiting for the disk");
        }
        let (reply, answer) = oneshot::channel();
        if self.queue.send(Request::Write(write, reply)).is_err() {
            return refuse("the store's writer has stopped");
        }
        Box::pin(async move {
            let stopped = CommitError::Unavailable { reason: "the store's writer has stopped".to_owned() };
            answer.await.unwrap_or(Err(stopped))
        })
    }

    fn watch(&self, prefix: &str, after: u64) -> Result<Watcher, ReadError> {
        self.mvcc.watch(prefix, after)
    }

    fn compact(&self, revision: u64) {
        // Done by the writer, so that no batch is half before and half after it.
        let _ = self.queue.send(Request::Compact(revision));
    }

    fn compacted(&self) -> u64 {
        self.mvcc.compacted()
    }
}
