//! The mark file: the last acknowledged revision, in a file next to the store.
//!
//! A store file that has lost its last rows looks like one that never had them, so the last
//! revision is also written here. It is written after the commit is on disk and before the commit
//! is acknowledged, so it is never ahead of the store. It is not synced with each commit, which
//! would double the time of a commit. After a kill of the process it is exact, because the
//! operating system still has the written data. After a power loss it may be as old as the last
//! checkpoint.

use std::fs::File;
use std::io::{ErrorKind, Seek, Write};
use std::path::{Path, PathBuf};

use crate::file::{owner_only, sync_folder, with_suffix};

/// Content of the mark file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The last acknowledged revision.
    Revision(u64),
    /// The file does not exist.
    Missing,
    /// The checksum is wrong.
    Damaged,
}

/// The open mark file.
#[derive(Debug)]
pub(crate) struct Mark {
    file: File,
    path: PathBuf,
    is_failing: bool,
}

/// Returns the path of the mark file of a store.
pub(crate) fn path_of(store: &Path) -> PathBuf {
    with_suffix(store, "-mark")
}

/// Reads the mark file of a store.
pub(crate) fn read(store: &Path) -> std::io::Result<Content> {
    match std::fs::read(path_of(store)) {
        Ok(bytes) => Ok(parse(&bytes).map_or(Content::Damaged, Content::Revision)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Content::Missing),
        Err(error) => Err(error),
    }
}

/// The text has the same length for every revision, so overwriting it leaves no part of an earlier
/// one.
fn text(revision: u64) -> String {
    let content = format!("revision {revision:020}");
    format!("{content} sum {:08x}\n", crc32fast::hash(content.as_bytes()))
}

fn parse(bytes: &[u8]) -> Option<u64> {
    let content = std::str::from_utf8(bytes).ok()?;
    let revision = content.strip_prefix("revision ")?.get(..20)?.parse().ok()?;
    (text(revision) == content).then_some(revision)
}

impl Mark {
    /// Opens or creates the file, writes `revision` and syncs it.
    pub(crate) fn open(store: &Path, revision: u64) -> std::io::Result<Mark> {
        let path = path_of(store);
        let file = owner_only(File::options().create(true).truncate(false).write(true)).open(&path)?;
        let mut mark = Mark { file, path, is_failing: false };
        mark.put(revision)?;
        mark.file.set_len(text(revision).len() as u64)?;
        mark.file.sync_all()?;
        sync_folder(store)?;
        Ok(mark)
    }

    /// Returns another handle, with which the checkpoint thread syncs the file.
    pub(crate) fn handle(&self) -> std::io::Result<File> {
        self.file.try_clone()
    }

    fn put(&mut self, revision: u64) -> std::io::Result<()> {
        self.file.rewind()?;
        self.file.write_all(text(revision).as_bytes())
    }

    /// Writes a later revision. A failure is only logged, because its one consequence is that lost
    /// rows at the end of the store may go unnoticed. The write itself must not fail for that.
    pub(crate) fn set(&mut self, revision: u64) {
        match self.put(revision) {
            Ok(()) => self.is_failing = false,
            Err(error) if !self.is_failing => {
                self.is_failing = true;
                let path = self.path.display();
                tracing::warn!(%path, %error, "cannot record the last acknowledged revision: a later loss of writes may go unnoticed");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_is_read_back_and_a_flipped_bit_is_damage() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store.db");
        assert_eq!(read(&store).unwrap(), Content::Missing);
        let mut mark = Mark::open(&store, 9_999).unwrap();
        mark.set(12);
        assert_eq!(read(&store).unwrap(), Content::Revision(12));
        let intact = std::fs::read(path_of(&store)).unwrap();
        for bit in 0..intact.len() * 8 {
            let mut flipped = intact.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(path_of(&store), flipped).unwrap();
            assert_eq!(read(&store).unwrap(), Content::Damaged, "bit {bit}");
        }
    }
}
