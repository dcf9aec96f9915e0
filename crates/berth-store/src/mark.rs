//! How far writes have been acknowledged, in a file beside the store.
//!
//! A store that has lost its end looks like one that never had it. So the last revision is written here too: after the
//! commit is on disk and before anybody hears of it, hence never more than the store has. It is not synced with each commit,
//! which would double what a commit takes: it is exact when a process was killed, as the system keeps what was written; after
//! a loss of power it may be as old as the last checkpoint.

use std::fs::File;
use std::io::{ErrorKind, Seek, Write};
use std::path::{Path, PathBuf};

use crate::file::{beside, private, sync_folder};

/// What the file says, or why it says nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// The last revision.
    Revision(u64),
    /// There is no such file.
    Missing,
    /// It is not what was written.
    Damaged,
}

/// The file, open.
#[derive(Debug)]
pub(crate) struct Mark {
    file: File,
    path: PathBuf,
    is_failing: bool,
}

/// The file's name.
pub(crate) fn path_of(store: &Path) -> PathBuf {
    beside(store, "-mark")
}

/// What the file beside a store says.
pub(crate) fn read(store: &Path) -> std::io::Result<Said> {
    match std::fs::read(path_of(store)) {
        Ok(bytes) => Ok(parse(&bytes).map_or(Said::Damaged, Said::Revision)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Said::Missing),
        Err(error) => Err(error),
    }
}

/// The text is as long whatever the revision, so that nothing of an earlier one is left behind it.
fn text(revision: u64) -> String {
    let said = format!("revision {revision:020}");
    format!("{said} sum {:08x}\n", crc32fast::hash(said.as_bytes()))
}

fn parse(bytes: &[u8]) -> Option<u64> {
    let said = std::str::from_utf8(bytes).ok()?;
    let revision = said.strip_prefix("revision ")?.get(..20)?.parse().ok()?;
    (text(revision) == said).then_some(revision)
}

impl Mark {
    /// Opens or makes the file, so that it says `revision`, on disk.
    pub(crate) fn open(store: &Path, revision: u64) -> std::io::Result<Mark> {
        let path = path_of(store);
        let file = private(File::options().create(true).truncate(false).write(true)).open(&path)?;
        let mut mark = Mark { file, path, is_failing: false };
        mark.put(revision)?;
        mark.file.set_len(text(revision).len() as u64)?;
        mark.file.sync_all()?;
        sync_folder(store)?;
        Ok(mark)
    }

    /// Another handle, for who syncs it now and then.
    pub(crate) fn handle(&self) -> std::io::Result<File> {
        self.file.try_clone()
    }

    fn put(&mut self, revision: u64) -> std::io::Result<()> {
        self.file.rewind()?;
        self.file.write_all(text(revision).as_bytes())
    }

    /// Says a later revision. When that fails a lost end may go unnoticed, and nothing else: it is no reason to refuse a write.
    pub(crate) fn set(&mut self, revision: u64) {
        match self.put(revision) {
            Ok(()) => self.is_failing = false,
            Err(error) if !self.is_failing => {
                self.is_failing = true;
                let path = self.path.display();
                tracing::warn!(%path, %error, "cannot write down how far writes are acknowledged: a lost end may go unnoticed");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_back_and_a_flipped_bit_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store.db");
        assert_eq!(read(&store).unwrap(), Said::Missing);
        let mut mark = Mark::open(&store, 9_999).unwrap();
        mark.set(12);
        assert_eq!(read(&store).unwrap(), Said::Revision(12));
        let whole = std::fs::read(path_of(&store)).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(path_of(&store), flipped).unwrap();
            assert_eq!(read(&store).unwrap(), Said::Damaged, "bit {bit}");
        }
    }
}
