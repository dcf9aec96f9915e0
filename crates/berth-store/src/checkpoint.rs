//! Runs checkpoints, which move the write-ahead log into the database file, in the background.
//!
//! By default SQLite runs a checkpoint in the commit that makes the log longer than a thousand
//! pages. To write and sync them takes thirty times as long as a commit. All writes of that commit,
//! and all that arrive in that time, would wait for it. Here a thread with its own connection does
//! that work while commits continue. SQLite can restart the log only when all of it has been moved,
//! but commits extend it all the time. So when the log is long, the writer moves the remainder
//! itself, right after the thread has left as little as possible.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use rusqlite::hooks::Wal;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, ErrorCode};

use crate::file::page_size;

/// Log growth in bytes after which the thread runs. Small steps leave little for the last one.
const STEP: usize = 2 * 1024 * 1024;
/// Remainder in bytes that the writer may move itself: this takes not much longer than a commit.
const REMAINDER_MAX: usize = STEP / 8;
/// Log length in bytes at which the log should be restarted. Reading this much after a crash takes
/// some hundredths of a second.
const LOG_LENGTH: usize = 32 * 1024 * 1024;
/// Log length in bytes at which the writer moves the remainder regardless of its size.
const LOG_LENGTH_MAX: usize = 4 * LOG_LENGTH;
/// Log length in bytes at which the writer no longer waits for the thread, which may have ended.
const LOG_LENGTH_STUCK: usize = 2 * LOG_LENGTH_MAX;

/// Schema name of the database.
const MAIN: Option<&str> = Some("main");

/// State of the log as the writer knows it, and the checkpoint thread.
pub(crate) struct Checkpoints {
    /// Pages in the log after the last commit.
    pages: Arc<AtomicUsize>,
    /// Pages of the log that the thread has moved.
    moved: Arc<AtomicUsize>,
    is_moving: Arc<AtomicBool>,
    /// True if the last checkpoint failed. Only changes to this value are logged.
    is_failing: Arc<AtomicBool>,
    /// Log length in pages when the writer last checked.
    checked_at: usize,
    /// Log length in pages when the thread was last signalled.
    asked_at: usize,
    /// Log length in pages when the writer last moved the remainder.
    ended_at: usize,
    /// Page size in bytes.
    page: usize,
    ask: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpoints {
    /// Disables checkpoints in the commits of `writer` and starts the thread. Each checkpoint also
    /// syncs `mark`.
    pub(crate) fn start(path: &Path, writer: &mut Connection, mark: File) -> rusqlite::Result<Checkpoints> {
        let page = usize::try_from(page_size(writer)?).unwrap_or(usize::MAX);
        let pages = Arc::new(AtomicUsize::new(0));
        let counted = pages.clone();
        // This replaces the hook of SQLite that runs checkpoints in commits.
        writer.wal_hook(Some(move |_: &mut Wal, pages: std::ffi::c_int| {
            counted.store(usize::try_from(pages).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))?;
        let mover = Connection::open(path)?;
        // Without a sync, a power loss could lose acknowledged writes that a checkpoint has moved.
        mover.pragma_update(None, "synchronous", "FULL")?;
        let (ask, asked) = sync_channel(1);
        let (moved, is_moving) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let is_failing = Arc::new(AtomicBool::new(false));
        let (found, is_done, fails) = (moved.clone(), is_moving.clone(), is_failing.clone());
        let thread = std::thread::Builder::new()
            .name("berth-checkpoint".to_owned())
            .spawn(move || {
                while asked.recv().is_ok() {
                    if let Some(moved) = checkpoint(&mover, &fails) {
                        found.store(moved, Ordering::Relaxed);
                    }
                    // Errors are ignored: if the mark file on disk is older, a start after damage
                    // only notices fewer lost writes.
                    let _ = mark.sync_data();
                    is_done.store(false, Ordering::Release);
                }
            })
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
        Ok(Checkpoints {
            pages,
            moved,
            is_moving,
            is_failing,
            checked_at: 0,
            asked_at: 0,
            ended_at: 0,
            page,
            ask: Some(ask),
            thread: Some(thread),
        })
    }

    /// Runs a checkpoint if one is due. The writer calls this after it has acknowledged a batch.
    pub(crate) fn run_if_due(&mut self, writer: &Connection) {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages < self.checked_at {
            // SQLite has restarted the log.
            (self.asked_at, self.ended_at) = (0, 0);
        }
        self.checked_at = pages;
        let to_pages = |bytes: usize| bytes / self.page;
        let is_moving = self.is_moving.load(Ordering::Acquire);
        if is_moving && pages < to_pages(LOG_LENGTH_STUCK) {
            return;
        }
        let left = pages.saturating_sub(self.moved.load(Ordering::Relaxed));
        let is_long = pages >= to_pages(LOG_LENGTH).max(self.ended_at + to_pages(STEP));
        if is_long && (left <= to_pages(REMAINDER_MAX) || pages >= to_pages(LOG_LENGTH_MAX)) {
            // The next commit restarts the log.
            self.ended_at = pages;
            checkpoint(writer, &self.is_failing);
        } else if !is_moving && (is_long || pages >= self.asked_at + to_pages(STEP)) {
            // The thread runs again on a long log, each time for the pages that arrived during the
            // last run, until little is left.
            self.asked_at = pages;
            self.is_moving.store(true, Ordering::Release);
            if self.ask.as_ref().is_none_or(|ask| ask.try_send(()).is_err()) {
                self.is_moving.store(false, Ordering::Release);
            }
        }
    }

    /// Runs a checkpoint after a failed commit. On a full disk it needs little or no space, and the
    /// next commit can reuse the log's space.
    pub(crate) fn after_failure(&self, writer: &Connection) {
        checkpoint(writer, &self.is_failing);
    }
}

impl Drop for Checkpoints {
    /// Stops the thread. The last connection to the file is then the writer's, which moves the
    /// remainder when it closes.
    fn drop(&mut self) {
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs a checkpoint that waits for no other connection. Returns the number of moved pages.
fn checkpoint(connection: &Connection, is_failing: &AtomicBool) -> Option<usize> {
    match connection.wal_checkpoint_v2(MAIN, CheckpointMode::PASSIVE) {
        Ok((_, moved)) => {
            if is_failing.swap(false, Ordering::Relaxed) {
                tracing::info!("checkpoints succeed again");
            }
            usize::try_from(moved).ok()
        }
        // The other connection runs a checkpoint.
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => None,
        Err(error) => {
            if !is_failing.swap(true, Ordering::Relaxed) {
                tracing::warn!(%error, "a checkpoint failed: the store's log grows until one succeeds");
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a log of about a hundred pages, of which none has been moved.
    fn long_log(folder: &Path) -> (Connection, Checkpoints) {
        let path = folder.join("store.db");
        let mut writer = Connection::open(&path).expect("a file");
        writer.pragma_update(None, "journal_mode", "WAL").expect("a mode");
        writer.execute_batch("CREATE TABLE t (v BLOB)").expect("a table");
        let mark = File::create(folder.join("mark")).expect("a file");
        let checkpoints = Checkpoints::start(&path, &mut writer, mark).expect("a thread");
        writer.execute_batch("INSERT INTO t VALUES (zeroblob(400000))").expect("inserts");
        (writer, checkpoints)
    }

    /// Returns the number of pages in the log after another, small commit.
    fn pages(writer: &Connection, checkpoints: &Checkpoints) -> usize {
        writer.execute_batch("INSERT INTO t VALUES (1)").expect("inserts");
        checkpoints.pages.load(Ordering::Relaxed)
    }

    #[test]
    fn the_log_is_restarted_after_a_failed_commit() {
        let folder = tempfile::tempdir().expect("a folder");
        let (writer, checkpoints) = long_log(folder.path());
        assert!(pages(&writer, &checkpoints) > 90);
        checkpoints.after_failure(&writer);
        assert!(pages(&writer, &checkpoints) < 10);
    }

    #[test]
    fn the_writer_moves_a_very_long_log_without_the_thread() {
        let folder = tempfile::tempdir().expect("a folder");
        let (writer, mut checkpoints) = long_log(folder.path());
        checkpoints.is_moving.store(true, Ordering::Release);
        let too_long = LOG_LENGTH_STUCK / checkpoints.page;
        for (length, is_moved) in [(too_long - 1, false), (too_long, true)] {
            checkpoints.pages.store(length, Ordering::Relaxed);
            checkpoints.run_if_due(&writer);
            assert_eq!(pages(&writer, &checkpoints) < 10, is_moved, "at {length} pages");
        }
    }
}
