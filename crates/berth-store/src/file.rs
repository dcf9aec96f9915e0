//! The files of a store: names, modes, and the lock against other processes.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::OpenError;

/// Page size of new files. An object takes about half of a page of SQLite's usual 4 KiB, so a
/// commit of ten writes would be ten pages, each with a header, a checksum and two system calls. An
/// existing file keeps its page size.
pub(crate) const PAGE_SIZE: u32 = 16 * 1024;

/// The lock on a store, held while the store is open.
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Unlock explicitly: a forked child that has not started its program yet also holds the
        // file.
        let _ = self.file.unlock();
    }
}

impl Lock {
    /// Locks the store, because one process at a time may have it open. SQLite's own exclusive lock
    /// would also exclude the checkpoint thread. The lock file is next to the store file itself,
    /// after symbolic links are resolved. Returns the lock and the resolved path of the store.
    pub(crate) fn take(path: &Path) -> Result<(Lock, PathBuf), OpenError> {
        let unknown = |source| OpenError::Lock { path: path.display().to_string(), source };
        let mut file = path.canonicalize();
        if file.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            // An empty file is an empty database. Do not open an existing file: closing it would
            // release the locks that SQLite holds on it in this process.
            owner_only(File::options().create(true).append(true)).open(path).map_err(unknown)?;
            file = path.canonicalize();
        }
        let file = file.map_err(unknown)?;
        restrict_permissions(&file);
        let lock = Lock::of(&file, &path.display().to_string())?;
        Ok((lock, file))
    }

    fn of(file: &Path, shown: &str) -> Result<Lock, OpenError> {
        let path = with_suffix(file, "-lock");
        let failed = |source| OpenError::Lock { path: path.display().to_string(), source };
        let file = owner_only(File::options().create(true).truncate(false).write(true)).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Lock { file, path }),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: shown.to_owned() }),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    /// True if the locked file is still the file at its path. It is not if another file system was
    /// mounted there.
    #[cfg(unix)]
    fn is_in_place(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let (held, found) = (self.file.metadata().map(identity), std::fs::metadata(&self.path).map(identity));
        held.is_ok() && found.is_ok() && held.ok() == found.ok()
    }

    #[cfg(not(unix))]
    fn is_in_place(&self) -> bool {
        true
    }

    /// Locks the lock file at the path again if it was replaced.
    pub(crate) fn renew(&mut self, store: &Path) -> Result<(), OpenError> {
        if !self.is_in_place() {
            *self = Lock::of(store, &store.display().to_string())?;
        }
        Ok(())
    }
}

/// Returns the path with a suffix: `store.sqlite-wal` for `store.sqlite`.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(suffix);
    PathBuf::from(name)
}

/// Makes a created file accessible by its owner only, because objects contain secrets. SQLite gives
/// its log files the mode of the database.
pub(crate) fn owner_only(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// Removes the permissions of group and others on the existing files of a store. It does not open
/// the files: closing one would release the locks that SQLite holds on it in this process.
#[cfg(unix)]
fn restrict_permissions(file: &Path) {
    use std::os::unix::fs::PermissionsExt;
    for suffix in ["", "-wal", "-shm", "-lock", "-mark", "-reserve"] {
        let path = with_suffix(file, suffix);
        let Ok(permissions) = std::fs::metadata(&path).map(|metadata| metadata.permissions()) else { continue };
        if permissions.mode() & 0o077 == 0 {
            continue;
        }
        let own = std::fs::Permissions::from_mode(permissions.mode() & 0o700);
        if let Err(error) = std::fs::set_permissions(&path, own) {
            // The file belongs to another user, or the file system has no modes. The store still
            // works.
            tracing::warn!(path = %path.display(), %error, "store file is readable by users other than its owner");
        }
    }
}

#[cfg(not(unix))]
fn restrict_permissions(_: &Path) {}

/// Syncs the folder of a file, so that created, renamed and removed files are durable.
pub(crate) fn sync_folder(file: &Path) -> std::io::Result<()> {
    match file.parent() {
        Some(folder) if cfg!(unix) && !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}

/// Removes a file if it exists.
pub(crate) fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens a connection to an existing file.
pub(crate) fn open(path: &Path) -> rusqlite::Result<Connection> {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)
}

/// Opens a connection for writing. Until the caller disables [`keep_log`], closing the connection
/// leaves SQLite's log unchanged, so that a file that turns out to be damaged is not changed.
pub(crate) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = open(path)?;
    keep_log(&connection, true)?;
    connection.pragma_update(None, "page_size", PAGE_SIZE)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

/// Sets whether closing the last connection keeps SQLite's log unchanged (`true`) or moves it into
/// the file.
pub(crate) fn keep_log(connection: &Connection, keep: bool) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep).map(|_| ())
}

/// Returns the page size of the file in bytes.
pub(crate) fn page_size(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "page_size", |row| row.get(0))
}
