//! The lock of a helper process's folder.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// Maximum number of attempts to take a lock.
const ATTEMPTS: u32 = 50;

/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// A lock that at most one process holds. The kernel releases it when the process ends.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Takes the lock in this file, which is created if it does not exist. A process that only
    /// checks whether the lock is held may hold it for a moment, so several attempts are made.
    /// Blocks for half a second at most. Returns `None` if another process holds the lock.
    ///
    /// # Errors
    /// The file cannot be opened.
    #[expect(
        clippy::disallowed_methods,
        reason = "a helper process that starts has no other work, and waits in real time"
    )]
    pub fn take(path: &Path) -> io::Result<Option<Self>> {
        let file = File::options().create(true).append(true).open(path)?;
        for _ in 0..ATTEMPTS {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self(file))),
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(PAUSE),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// True if a path still leads to the file of this lock.
    pub fn is_at(&self, path: &Path) -> bool {
        let id = |found: rustix::fs::Stat| (found.st_dev, found.st_ino);
        let (Ok(open), Ok(found)) = (rustix::fs::fstat(&self.0), rustix::fs::stat(path)) else { return false };
        id(open) == id(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_one_holder_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = Lock::take(&path).unwrap().unwrap();
        assert!(Lock::take(&path).unwrap().is_none());
        assert!(first.is_at(&path));
        std::fs::remove_file(&path).unwrap();
        assert!(!first.is_at(&path));
        drop(first);
        assert!(Lock::take(&path).unwrap().is_some());
    }
}
