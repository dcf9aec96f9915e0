//! The durable store: an append-only log of writes in SQLite, one row a revision.
//!
//! One thread owns the connection ([`crate::writer`]). At start the log is read back into memory, and checked: what is not
//! what was written is not served, and left as it was found.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

use crate::file::{Lock, beside, connect, page_size};
use crate::format::{self, Format, Totals, Unreadable};
use crate::mark::{self, Said};
use crate::mvcc::Mvcc;
use crate::queue::Queue;
use crate::recover;
use crate::wal::Log;
use crate::writer::{Reply, Shared, Writer};
use crate::{
    CommitError, CommitFuture, HISTORY_DEFAULT, ListQuery, Listing, OpenError, ReadError, Record, Store, Trouble,
    Watcher, Write,
};

/// How to open a store.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// Changes kept for watchers and older lists.
    pub history: usize,
    /// Changes a watcher may lag behind; `None` for [`crate::Watcher`]'s usual bound.
    pub watcher_buffer: Option<usize>,
    /// Largest size of the file in bytes, rounded down to whole pages; `None` for no limit but the disk. Some of it is kept
    /// for deletions, as on a disk.
    pub bytes_max: Option<u64>,
}

impl Default for SqliteOptions {
    fn default() -> SqliteOptions {
        SqliteOptions { history: HISTORY_DEFAULT, watcher_buffer: None, bytes_max: None }
    }
}

/// Objects in a SQLite file.
pub struct SqliteStore {
    mvcc: Arc<Mvcc>,
    queue: Arc<Queue<(Write, Reply)>>,
    shared: Arc<Shared>,
    /// It has the lock, too: held as long as the file is open, and gone with the process, however that ends.
    writer: Option<JoinHandle<()>>,
}

impl SqliteStore {
    /// Opens or creates the file at `path` and reads it into memory.
    ///
    /// # Errors
    /// When somebody else has it open, when the system refuses, and when it is not what was written: then
    /// [`recover`](crate::recover()) makes it so.
    pub fn open(path: &Path, options: SqliteOptions) -> Result<SqliteStore, OpenError> {
        let (lock, file) = Lock::take(path)?;
        recover::finish(&file)?;
        let read = || {
            let mvcc = Mvcc::new(options.history, options.watcher_buffer, true);
            let start = examine(&file, |revision, key, value| {
                mvcc.replay(Arc::from(key), revision, value.map(Bytes::copy_from_slice));
            })?;
            Ok((mvcc, start))
        };
        let (mut mvcc, mut start) = read()?;
        if start.format == Format::Unsummed {
            recover::migrate(&file, start.connection, &start.totals)?;
            (mvcc, start) = read()?;
        }
        mvcc.finish_replay(start.totals.revision, start.totals.compacted);
        let (mvcc, queue, shared) = (Arc::new(mvcc), Arc::new(Queue::new()), Arc::new(Shared::default()));
        let (path, source) = (path.display().to_string(), (mvcc.clone(), queue.clone(), shared.clone()));
        let mut writer = Writer::new(file, lock, options.bytes_max, start, source)?;
        let writer = std::thread::Builder::new().name("berth-store".to_owned()).spawn(move || writer.run());
        let writer = writer.map_err(|source| OpenError::Lock { path, source })?;
        Ok(SqliteStore { mvcc, queue, shared, writer: Some(writer) })
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

/// A file that has been read.
pub(crate) struct Start {
    pub(crate) connection: Connection,
    pub(crate) format: Format,
    pub(crate) totals: Totals,
}

/// Reads a file that nobody else has open, and checks that it is what was written, to the end. Changes nothing.
pub(crate) fn examine(file: &Path, each: impl FnMut(u64, &str, Option<&[u8]>)) -> Result<Start, OpenError> {
    let path = || file.display().to_string();
    let engine = |source: rusqlite::Error| unreadable(file, source.into());
    let said = mark::read(file).map_err(|source| OpenError::Lock { path: path(), source })?;
    let length = std::fs::metadata(file).map_err(|source| OpenError::Lock { path: path(), source })?.len();
    if length == 0 && !matches!(said, Said::Missing | Said::Revision(0)) {
        // SQLite would make a new one of it, and remove its log.
        let what = format!("it is missing or empty, and there was one (to begin anew, remove {}-mark too)", path());
        return Err(OpenError::EndLost { path: path(), what });
    }
    let connection = connect(file).map_err(engine)?;
    let log = match std::fs::read(beside(file, "-wal")) {
        Ok(log) => log,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(source) => return Err(OpenError::Lock { path: path(), source }),
    };
    let page = page_size(&connection).map_err(engine)? as usize;
    if let Some(frame) = Log::read(&log, page).damage() {
        let what = format!("frame {frame} of {}-wal is damaged, and what follows it is not read", path());
        return Err(OpenError::EndLost { path: path(), what });
    }
    drop(log);
    let unreadable = |error| unreadable(file, error);
    let format = format::check(&connection).map_err(unreadable)?;
    let totals = format::read(&connection, format, each).map_err(unreadable)?;
    match said {
        Said::Revision(acknowledged) if acknowledged > totals.revision => {
            let what = format!("its last revision is {}, and {acknowledged} was acknowledged", totals.revision);
            Err(OpenError::EndLost { path: path(), what })
        }
        Said::Missing | Said::Damaged if totals.is_open => {
            let how = if said == Said::Missing { "missing" } else { "damaged" };
            let what = format!(
                "it was not closed, and {}-mark, which says how far writes were acknowledged, is {how}: it is not known whether \
                 the last ones are there",
                path()
            );
            Err(OpenError::Damaged { path: path(), what })
        }
        _ => Ok(Start { connection, format, totals }),
    }
}

/// Why a file cannot be read, in the words of who opens it.
pub(crate) fn unreadable(file: &Path, error: Unreadable) -> OpenError {
    let path = file.display().to_string();
    match error {
        Unreadable::Damaged(mut what) => {
            // It is made again, empty, by looking.
            if std::fs::metadata(beside(file, "-wal")).map_or(0, |log| log.len()) == 0 {
                what.push_str(&format!(" (there is no {path}-wal: if it was moved away, put it back)"));
            }
            OpenError::Damaged { path, what }
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
            return Some(Trouble { reason: "the thread that writes has ended".to_owned(), restart_helps: true });
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
