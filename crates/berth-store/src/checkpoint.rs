//! Moving what is in the write-ahead log into the file, beside the writing.
//!
//! By itself SQLite does that in the commit that makes the log too long: a thousand pages and a sync, thirty times as long as
//! a commit, for which everybody waits whose write is in that commit or comes meanwhile. Here a thread with a connection of its
//! own does it while commits go on. The log can begin anew only when all of it has been moved, and commits add to it all the
//! time: so when it is long the writer moves the rest itself, right after the thread has left as little as it can.

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

/// Bytes that are moved at once, so that what is left behind after the last of them is little.
const PART: usize = 2 * 1024 * 1024;
/// Bytes the writer moves itself without making anybody wait much longer than for a commit.
const LITTLE: usize = PART / 8;
/// Bytes in the log when it is to begin anew. Reading them back takes some hundredths of a second, after a crash.
const LOG: usize = 32 * 1024 * 1024;
/// Bytes in the log when it is to begin anew however many are left to be moved.
const LOG_MAX: usize = 4 * LOG;
/// Bytes in the log when the thread is not waited for any more: it may be gone.
const LOG_TOO_LONG: usize = 2 * LOG_MAX;

/// The database whose log it is.
const MAIN: Option<&str> = Some("main");

/// What the writer knows of the log, and the thread that shortens it.
pub(crate) struct Checkpoints {
    /// Pages in the log after the last commit.
    pages: Arc<AtomicUsize>,
    /// Pages of it that the thread found moved when it last looked.
    moved: Arc<AtomicUsize>,
    is_moving: Arc<AtomicBool>,
    /// Whether the last checkpoint failed; said when it changes.
    is_failing: Arc<AtomicBool>,
    /// How long the log was at the last look.
    looked_at: usize,
    /// How long it was when the thread was last asked.
    asked_at: usize,
    /// How long it was when the writer last moved what was left.
    ended_at: usize,
    /// Bytes of a page.
    page: usize,
    ask: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpoints {
    /// Takes checkpoints out of the writer's commits. `mark` is synced with each of them.
    pub(crate) fn start(path: &Path, writer: &mut Connection, mark: File) -> rusqlite::Result<Checkpoints> {
        let page = usize::try_from(page_size(writer)?).unwrap_or(usize::MAX);
        let pages = Arc::new(AtomicUsize::new(0));
        let counted = pages.clone();
        // In the place of SQLite's own, which would move them.
        writer.wal_hook(Some(move |_: &mut Wal, pages: std::ffi::c_int| {
            counted.store(usize::try_from(pages).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))?;
        let mover = Connection::open(path)?;
        // What a checkpoint does not sync is lost with the machine, though it was acknowledged.
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
                    // It may be older on the disk without harm: less is noticed then.
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
            looked_at: 0,
            asked_at: 0,
            ended_at: 0,
            page,
            ask: Some(ask),
            thread: Some(thread),
        })
    }

    /// Has moved what is to be; called when a batch has been answered.
    pub(crate) fn look(&mut self, writer: &Connection) {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages < self.looked_at {
            // It began anew.
            (self.asked_at, self.ended_at) = (0, 0);
        }
        self.looked_at = pages;
        let of = |bytes: usize| bytes / self.page;
        let is_moving = self.is_moving.load(Ordering::Acquire);
        if is_moving && pages < of(LOG_TOO_LONG) {
            return;
        }
        let left = pages.saturating_sub(self.moved.load(Ordering::Relaxed));
        let is_long = pages >= of(LOG).max(self.ended_at + of(PART));
        if is_long && (left <= of(LITTLE) || pages >= of(LOG_MAX)) {
            // With the next commit the log begins anew.
            self.ended_at = pages;
            checkpoint(writer, &self.is_failing);
        } else if !is_moving && (is_long || pages >= self.asked_at + of(PART)) {
            // A long log is moved again and again, each time what came during the last, until little is left.
            self.asked_at = pages;
            self.is_moving.store(true, Ordering::Release);
            if self.ask.as_ref().is_none_or(|ask| ask.try_send(()).is_err()) {
                self.is_moving.store(false, Ordering::Release);
            }
        }
    }

    /// Moves what can be after a commit that failed. Where the disk is full that takes no room or little, and the next commit
    /// has the log's.
    pub(crate) fn after_failure(&self, writer: &Connection) {
        checkpoint(writer, &self.is_failing);
    }
}

impl Drop for Checkpoints {
    /// The last connection to the file is the writer's, which moves what is left when it closes.
    fn drop(&mut self) {
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Moves what can be without holding up anybody; how much of the log has been.
fn checkpoint(connection: &Connection, is_failing: &AtomicBool) -> Option<usize> {
    match connection.wal_checkpoint_v2(MAIN, CheckpointMode::PASSIVE) {
        Ok((_, moved)) => {
            if is_failing.swap(false, Ordering::Relaxed) {
                tracing::info!("checkpoints work again");
            }
            usize::try_from(moved).ok()
        }
        // The other connection is at it.
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

    /// A log of a good hundred pages that nobody has moved yet.
    fn long_log(folder: &Path) -> (Connection, Checkpoints) {
        let path = folder.join("store.db");
        let mut writer = Connection::open(&path).expect("a file");
        writer.pragma_update(None, "journal_mode", "WAL").expect("a mode");
        writer.execute_batch("CREATE TABLE t (v BLOB)").expect("a table");
        let mark = File::create(folder.join("mark")).expect("a file");
        let checkpoints = Checkpoints::start(&path, &mut writer, mark).expect("a thread");
        writer.execute_batch("INSERT INTO t VALUES (zeroblob(400000))").expect("room");
        (writer, checkpoints)
    }

    /// Pages in the log after another, small commit.
    fn pages(writer: &Connection, checkpoints: &Checkpoints) -> usize {
        writer.execute_batch("INSERT INTO t VALUES (1)").expect("room");
        checkpoints.pages.load(Ordering::Relaxed)
    }

    #[test]
    fn the_log_begins_anew_after_a_commit_that_failed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (writer, checkpoints) = long_log(folder.path());
        assert!(pages(&writer, &checkpoints) > 90);
        checkpoints.after_failure(&writer);
        assert!(pages(&writer, &checkpoints) < 10);
    }

    #[test]
    fn a_thread_that_does_not_come_back_is_not_waited_for_without_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let (writer, mut checkpoints) = long_log(folder.path());
        checkpoints.is_moving.store(true, Ordering::Release);
        let too_long = LOG_TOO_LONG / checkpoints.page;
        for (said, is_moved) in [(too_long - 1, false), (too_long, true)] {
            checkpoints.pages.store(said, Ordering::Relaxed);
            checkpoints.look(&writer);
            assert_eq!(pages(&writer, &checkpoints) < 10, is_moved, "at {said} pages");
        }
    }
}
