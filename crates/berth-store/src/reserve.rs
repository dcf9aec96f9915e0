//! Room that is kept so that something can be deleted when the disk is full.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::file::{beside, private, remove_if_there};

/// Bytes that are kept: of what a deletion writes, some hundreds of pages, and SQLite uses them again and again.
pub(crate) const BYTES: u64 = 4 * 1024 * 1024;
/// Bytes there must be besides: what was given away could be had back at once otherwise, though there is no room.
const MORE: u64 = BYTES;

/// A file of nothing but its size.
#[derive(Debug)]
pub(crate) struct Reserve(PathBuf);

impl Reserve {
    /// The one beside a store; it is not made yet.
    pub(crate) fn of(store: &Path) -> Reserve {
        Reserve(beside(store, "-reserve"))
    }

    /// Has the room, if it is not there already; an error where there is none.
    pub(crate) fn take(&self) -> std::io::Result<()> {
        if std::fs::metadata(&self.0).is_ok_and(|metadata| metadata.len() == BYTES) {
            return Ok(());
        }
        let Err(error) = self.fill() else { return Ok(()) };
        // What was got of it is needed.
        self.release();
        if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge) {
            return Err(error);
        }
        tracing::warn!(path = %self.0.display(), %error, "no room is kept for deletions when the disk is full");
        Ok(())
    }

    fn fill(&self) -> std::io::Result<()> {
        let mut file = private(File::options().create(true).truncate(true).write(true)).open(&self.0)?;
        // Written, as a file of holes keeps no room.
        let part = vec![0; 64 * 1024];
        for _ in 0..(BYTES + MORE) / part.len() as u64 {
            file.write_all(&part)?;
        }
        file.set_len(BYTES)?;
        file.sync_data()
    }

    /// Gives the room away.
    pub(crate) fn release(&self) {
        if let Err(error) = remove_if_there(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "cannot make room for deletions");
        }
    }
}
