//! The durable store: an append-only log of writes in SQLite, with one row per revision.
//!
//! One thread owns the connection ([`crate::writer`]). At start the log is read into memory and
//! checked. A file with damage is not opened and stays unchanged.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

use crate::file::{Lock, connect, page_size, with_suffix};
use crate::format::{self, Format, Totals, Unreadable};
use crate::mark;
use crate::mvcc::Mvcc;
use crate::queue::Queue;
use crate::recover;
use crate::wal::Log;
use crate::writer::{Reply, Shared, Writer};
use crate::{
    CommitError, CommitFuture, HISTORY_DEFAULT, ListQuery, Listing, OpenError, ReadError, Record, Store, Trouble,
    Watcher, Write,
};

/// Options to open a store.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// Number of changes to keep for watchers and for lists at older revisions.
    pub history: usize,
    /// Number of changes that a watcher may lag behind; `None` for the default.
    pub watcher_buffer: Option<usize>,
    /// Maximum size of the file in bytes, rounded down to whole pages; `None` for no limit but the
    /// disk. A part of it is reserved for deletions, as on a full disk.
    pub bytes_max: Option<u64>,
}

impl Default for SqliteOptions {
    fn default() -> SqliteOptions {
        SqliteOptions { history: HISTORY_DEFAULT, watcher_buffer: None, bytes_max: None }
    }
}

/// A store in a SQLite file.
pub struct SqliteStore {
    mvcc: Arc<Mvcc>,
    queue: Arc<Queue<(Write, Reply)>>,
    shared: Arc<Shared>,
    /// The thread also owns the lock of the file, and releases it when it ends.
    writer: Option<JoinHandle<()>>,
}

impl SqliteStore {
    /// Opens or creates the file at `path` and reads it into memory.
    ///
    /// # Errors
    /// When another process has the file open, when the operating system or SQLite reports an
    /// error, or when the file is damaged. [`recover`](crate::recover()) repairs a damaged file.
    pub fn open(path: &Path, options: SqliteOptions) -> Result<SqliteStore, OpenError> {
        let (lock, file) = Lock::take(path)?;
        recover::finish(&file)?;
        let read = || {
            let mvcc = Mvcc::new(options.history, options.watcher_buffer, true);
            let opened = examine(&file, |revision, key, value| {
                mvcc.replay(Arc::from(key), revision, value.map(Bytes::copy_from_slice));
            })?;
            Ok((mvcc, opened))
        };
        let (mut mvcc, mut opened) = read()?;
        if opened.format == Format::Unsummed {
            recover::migrate(&file, opened.connection, &opened.totals)?;
            (mvcc, opened) = read()?;
        }
        mvcc.finish_replay(opened.totals.revision, opened.totals.compacted);
        let (mvcc, queue, shared) = (Arc::new(mvcc), Arc::new(Queue::new()), Arc::new(Shared::default()));
        let (path, source) = (path.display().to_string(), (mvcc.clone(), queue.clone(), shared.clone()));
        let mut writer = Writer::new(file, lock, options.bytes_max, opened, source)?;
        let writer = std::thread::Builder::new().name("berth-store".to_owned()).spawn(move || writer.run());
        let writer = writer.map_err(|source| OpenError::Lock { path, source })?;
        Ok(SqliteStore { mvcc, queue, shared, writer: Some(writer) })
    }
}

impl Drop for SqliteStore {
    /// Waits until all queued writes are on disk.
    fn drop(&mut self) {
        self.queue.close();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// An opened file that has been read and checked.
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    pub(crate) format: Format,
    pub(crate) totals: Totals,
}

/// Opens and reads a file, and checks that it contains exactly the rows that were written. The
/// caller holds the lock. The file is not changed.
pub(crate) fn examine(file: &Path, each: impl FnMut(u64, &str, Option<&[u8]>)) -> Result<Opened, OpenError> {
    let path = || file.display().to_string();
    let engine = |source: rusqlite::Error| unreadable(file, source.into());
    let mark = mark::read(file).map_err(|source| OpenError::Lock { path: path(), source })?;
    let length = std::fs::metadata(file).map_err(|source| OpenError::Lock { path: path(), source })?.len();
    if length == 0 && !matches!(mark, mark::Content::Missing | mark::Content::Revision(0)) {
        // SQLite would create a new database here and remove the log of the old one.
        let problem = format!(
            "the file is missing or empty, but it had content before (to begin with an empty store, remove {}-mark too)",
            path()
        );
        return Err(OpenError::EndLost { path: path(), problem });
    }
    let connection = connect(file).map_err(engine)?;
    let log = match std::fs::read(with_suffix(file, "-wal")) {
        Ok(log) => log,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(source) => return Err(OpenError::Lock { path: path(), source }),
    };
    let page = page_size(&connection).map_err(engine)? as usize;
    if let Some(frame) = Log::read(&log, page).damage() {
        let problem =
            format!("frame {frame} of {}-wal is damaged, and SQLite does not read the commits after it", path());
        return Err(OpenError::EndLost { path: path(), problem });
    }
    drop(log);
    let unreadable = |error| unreadable(file, error);
    let format = format::check(&connection).map_err(unreadable)?;
    let totals = format::read(&connection, format, each).map_err(unreadable)?;
    match mark {
        mark::Content::Revision(acknowledged) if acknowledged > totals.revision => {
            let problem = format!("its last revision is {}, but {acknowledged} was acknowledged", totals.revision);
            Err(OpenError::EndLost { path: path(), problem })
        }
        mark::Content::Missing | mark::Content::Damaged if totals.is_open => {
            let state = if mark == mark::Content::Missing { "missing" } else { "damaged" };
            let problem = format!(
                "the store was not closed, and {}-mark, which has the last acknowledged revision, is {state}: the last \
                 writes may be missing",
                path()
            );
            Err(OpenError::Damaged { path: path(), problem })
        }
        _ => Ok(Opened { connection, format, totals }),
    }
}

/// Converts a read error into an error for the caller of `open` or `recover`.
pub(crate) fn unreadable(file: &Path, error: Unreadable) -> OpenError {
    let path = file.display().to_string();
    match error {
        Unreadable::Damaged(mut problem) => {
            // SQLite creates an empty log when it opens the file.
            if std::fs::metadata(with_suffix(file, "-wal")).map_or(0, |log| log.len()) == 0 {
                problem.push_str(&format!(" (there is no {path}-wal: if it was moved away, put it back)"));
            }
            OpenError::Damaged { path, problem }
        }
        Unreadable::Engine(source) => match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenError::Locked { path },
            _ => OpenError::Engine { path, source },
        },
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
        self.shared.commit_time()
    }

    fn trouble(&self) -> Option<Trouble> {
        if self.writer.as_ref().is_none_or(JoinHandle::is_finished) {
            return Some(Trouble { reason: "the store's writer thread has ended".to_owned(), restart_helps: true });
        }
        self.shared.trouble()
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
