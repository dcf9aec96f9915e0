//! The files of a store: their names, their modes, and the lock that keeps other processes out.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::OpenError;

/// Size of the pages of a file that is made. With SQLite's usual 4 KiB, of which an object takes a half, a commit of ten writes is
/// ten pages, each with a header, a checksum and two system calls. A file keeps what it was made with.
pub(crate) const PAGE: u32 = 16 * 1024;

/// The lock on a store.
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing it would leave it to a child process that has been forked and not yet started its program.
        let _ = self.file.unlock();
    }
}

impl Lock {
    /// One process at a time has a store open. SQLite's own lock for that would keep out the thread that makes checkpoints too.
    /// What says so is beside the file itself, whatever links lead there. Returns the path of that file, too.
    pub(crate) fn take(path: &Path) -> Result<(Lock, PathBuf), OpenError> {
        let unknown = |source| OpenError::Lock { path: path.display().to_string(), source };
        let mut file = path.canonicalize();
        if file.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            // An empty file is an empty database. One that is there is not opened: closing it would give up the locks SQLite has
            // on it in this process.
            private(File::options().create(true).append(true)).open(path).map_err(unknown)?;
            file = path.canonicalize();
        }
        let file = file.map_err(unknown)?;
        tighten(&file);
        let lock = Lock::of(&file, &path.display().to_string())?;
        Ok((lock, file))
    }

    fn of(file: &Path, shown: &str) -> Result<Lock, OpenError> {
        let path = beside(file, "-lock");
        let failed = |source| OpenError::Lock { path: path.display().to_string(), source };
        let file = private(File::options().create(true).truncate(false).write(true)).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Lock { file, path }),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: shown.to_owned() }),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    /// Whether the file that is locked is still the one at its place: a file system may have been mounted anew there.
    #[cfg(unix)]
    fn is_in_place(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let number = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let (held, found) = (self.file.metadata().map(number), std::fs::metadata(&self.path).map(number));
        held.is_ok() && found.is_ok() && held.ok() == found.ok()
    }

    #[cfg(not(unix))]
    fn is_in_place(&self) -> bool {
        true
    }

    /// Takes the lock of the file that is there now, unless it is the one that is held.
    pub(crate) fn renew(&mut self, store: &Path) -> Result<(), OpenError> {
        if !self.is_in_place() {
            *self = Lock::of(store, &store.display().to_string())?;
        }
        Ok(())
    }
}

/// The name of a file beside another one: `store.sqlite-wal` is beside `store.sqlite`.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(suffix);
    PathBuf::from(name)
}

/// Objects hold secrets: a file that is made is for its owner alone. SQLite gives the files of its own log the mode of the
/// file itself.
pub(crate) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// Takes the files of a store that is there from everybody but their owner. They are not opened for that: closing one would
/// give up the locks that SQLite has on it in this process.
#[cfg(unix)]
fn tighten(file: &Path) {
    use std::os::unix::fs::PermissionsExt;
    for suffix in ["", "-wal", "-shm", "-lock", "-mark", "-reserve"] {
        let path = beside(file, suffix);
        let Ok(permissions) = std::fs::metadata(&path).map(|metadata| metadata.permissions()) else { continue };
        if permissions.mode() & 0o077 == 0 {
            continue;
        }
        let own = std::fs::Permissions::from_mode(permissions.mode() & 0o700);
        if let Err(error) = std::fs::set_permissions(&path, own) {
            // Somebody else's file, or a file system that knows no modes: it worked so far.
            tracing::warn!(path = %path.display(), %error, "others than its owner may read the store");
        }
    }
}

#[cfg(not(unix))]
fn tighten(_: &Path) {}

/// Makes durable which files are in the folder of a file.
pub(crate) fn sync_folder(file: &Path) -> std::io::Result<()> {
    match file.parent() {
        Some(folder) if cfg!(unix) && !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}

/// Removes a file that may not be there.
pub(crate) fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A connection to a file that is there.
pub(crate) fn open(path: &Path) -> rusqlite::Result<Connection> {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)
}

/// The same to write to. Until [`keep_log`] is taken back, closing it leaves SQLite's log as it is: what
/// turns out to be damaged is left as it was found.
pub(crate) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = open(path)?;
    keep_log(&connection, true)?;
    connection.pragma_update(None, "page_size", PAGE)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

/// Whether the last connection that closes leaves SQLite's log alone, or moves it into the file.
pub(crate) fn keep_log(connection: &Connection, keep: bool) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep).map(|_| ())
}

/// Bytes of a page of the file.
pub(crate) fn page_size(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "page_size", |row| row.get(0))
}
