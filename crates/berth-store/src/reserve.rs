//! Disk space reserved for deletions on a full disk: a file that is removed when the disk is full.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::file::{owner_only, remove_if_there, with_suffix};

/// Size of the reserve. A deletion writes some hundreds of pages, and SQLite reuses them.
pub(crate) const BYTES: u64 = 4 * 1024 * 1024;
/// Free bytes required in addition to the reserve. Without them a reserve that was just released
/// could be taken back at once, although the disk is still full.
const HEADROOM: u64 = BYTES;

/// The reserve file of a store.
#[derive(Debug)]
pub(crate) struct Reserve(PathBuf);

impl Reserve {
    /// Returns the reserve of a store, without creating the file.
    pub(crate) fn of(store: &Path) -> Reserve {
        Reserve(with_suffix(store, "-reserve"))
    }

    /// Creates the reserve file unless it exists. Returns an error only if the disk is full; other
    /// failures are logged.
    pub(crate) fn take(&self) -> std::io::Result<()> {
        if std::fs::metadata(&self.0).is_ok_and(|metadata| metadata.len() == BYTES) {
            return Ok(());
        }
        let Err(error) = self.fill() else { return Ok(()) };
        // The part of the file that was written is freed.
        self.release();
        if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge) {
            return Err(error);
        }
        tracing::warn!(path = %self.0.display(), %error, "cannot reserve disk space: deletions will fail when the disk is full");
        Ok(())
    }

    fn fill(&self) -> std::io::Result<()> {
        let mut file = owner_only(File::options().create(true).truncate(true).write(true)).open(&self.0)?;
        // Write zeros, because a sparse file reserves no space.
        let chunk = vec![0; 64 * 1024];
        for _ in 0..(BYTES + HEADROOM) / chunk.len() as u64 {
            file.write_all(&chunk)?;
        }
        file.set_len(BYTES)?;
        file.sync_data()
    }

    /// Removes the reserve file so that deletions can use its space.
    pub(crate) fn release(&self) {
        if let Err(error) = remove_if_there(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "cannot release the disk space reserved for deletions");
        }
    }
}
