//! Removal of layers that no image needs.

use std::collections::BTreeSet;
use std::fs::{self, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::{Removed, Store, lock_file};
use crate::{Error, Result};

impl Store {
    /// Removes layers that no name refers to and no pod uses, and remains of unfinished imports and
    /// pulls. Does nothing while an image is being added.
    ///
    /// # Errors
    /// The store cannot be read, or a folder cannot be removed.
    pub fn collect_garbage(&self) -> Result<Removed> {
        let path = self.folder.join("use.lock");
        let lock = lock_file(&path)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Removed { is_postponed: true, ..Removed::default() }),
            Err(TryLockError::Error(error)) => return Err(Error::io(&path)(error)),
        }
        let state = self.state()?;
        let needed: BTreeSet<&str> =
            state.images.values().flat_map(|record| record.layers.iter().map(String::as_str)).collect();
        let mut removed = Removed::default();
        let layers = self.folder.join("layers");
        let mounts = Mounts::read();
        for id in names(&layers)?.into_iter().filter(|id| !needed.contains(id.as_str())) {
            if mounts.have(&id) {
                removed.layers_in_use += 1;
                continue;
            }
            // A folder in `tmp` is never used as a layer, even if it is removed only partly.
            let place = layers.join(&id);
            let bytes = fs::read_to_string(place.join("bytes")).ok().and_then(|text| text.trim().parse().ok());
            let doomed = self.folder.join("tmp").join(format!("removed-{id}"));
            match fs::rename(&place, &doomed) {
                Ok(()) => removed.bytes += bytes.unwrap_or(0),
                // The remains of an earlier removal have this path.
                Err(_) => remove(&place)?,
            }
        }
        for folder in ["tmp", "blobs"] {
            for name in names(&self.folder.join(folder))? {
                remove(&self.folder.join(folder).join(name))?;
            }
        }
        Ok(removed)
    }
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let name = |entry: std::io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    fs::read_dir(folder).and_then(|entries| entries.map(name).collect()).map_err(Error::io(folder))
}

/// Removes a file or a folder with its content. Succeeds if it does not exist.
fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path).or_else(|_| {
            open_folders(path)?;
            fs::remove_dir_all(path)
        }),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path)(error)),
        _ => Ok(()),
    }
}

/// Makes folders writable: images have read-only folders, which only root can empty.
fn open_folders(folder: &Path) -> std::io::Result<()> {
    let mode = fs::symlink_metadata(folder)?.permissions().mode();
    fs::set_permissions(folder, fs::Permissions::from_mode(mode | 0o700))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_folders(&entry.path())?;
        }
    }
    Ok(())
}

/// The mounts of all processes: pods have their own mount namespaces, and outlive `berth up`.
struct Mounts(Vec<String>);

impl Mounts {
    fn read() -> Self {
        let mut namespaces = BTreeSet::new();
        let mut tables = Vec::new();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        for process in processes.filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit()) {
            // Processes that end in the meantime have no mounts; processes of other users cannot
            // use the store.
            let Ok(namespace) = fs::metadata(process.path().join("ns/mnt")) else { continue };
            if namespaces.insert((namespace.dev(), namespace.ino()))
                && let Ok(table) = fs::read_to_string(process.path().join("mountinfo"))
            {
                tables.push(table);
            }
        }
        Self(tables)
    }

    /// True if a layer is mounted: overlayfs lists its layers in the mount's options.
    fn have(&self, layer: &str) -> bool {
        self.0.iter().any(|table| table.contains(layer))
    }
}
