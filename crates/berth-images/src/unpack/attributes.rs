//! Owner, permissions, times and extended attributes of an entry.

use std::fs::{self, Metadata, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags, utimensat};
use tar::Entry;

use crate::{Error, Result};

/// Prefix of the tar records with extended attributes.
const XATTR: &[u8] = b"SCHILY.xattr.";
/// Mode of folders that no layer describes.
const FOLDER_MODE: u32 = 0o755;

/// Properties of an entry other than its content.
#[derive(Clone, Debug)]
pub(super) struct Attributes {
    user: u32,
    group: u32,
    mode: u32,
    /// Seconds since 1970.
    modified: i64,
    extended: Vec<(String, Vec<u8>)>,
}

impl Attributes {
    /// Attributes of a folder that no layer describes.
    pub(super) fn folder() -> Self {
        Self { user: 0, group: 0, mode: FOLDER_MODE, modified: 0, extended: Vec::new() }
    }

    /// Attributes of a tar entry. Numbers that cannot be read are zero, as in other tar programs.
    pub(super) fn of(entry: &mut Entry<'_, impl Read>) -> Self {
        let header = entry.header();
        let number = |value: u64| u32::try_from(value).unwrap_or(0);
        let mut found = Self {
            user: number(header.uid().unwrap_or(0)),
            group: number(header.gid().unwrap_or(0)),
            mode: header.mode().unwrap_or(0o644) & 0o7777,
            modified: header.mtime().ok().and_then(|time| i64::try_from(time).ok()).unwrap_or(0),
            extended: Vec::new(),
        };
        let Ok(Some(records)) = entry.pax_extensions() else { return found };
        for record in records.flatten() {
            if let Some(name) = record.key_bytes().strip_prefix(XATTR) {
                let name = String::from_utf8_lossy(name).into_owned();
                if is_allowed(&name) {
                    found.extended.push((name, record.value_bytes().to_owned()));
                }
            } else if let (Ok(key), Ok(value)) = (record.key(), record.value()) {
                match key {
                    "uid" => found.user = value.parse().unwrap_or(found.user),
                    "gid" => found.group = value.parse().unwrap_or(found.group),
                    "mtime" => {
                        let seconds = value.split('.').next().and_then(|seconds| seconds.parse().ok());
                        found.modified = seconds.unwrap_or(found.modified);
                    }
                    _ => {}
                }
            }
        }
        found
    }

    /// Attributes of an existing file or folder.
    pub(super) fn of_existing(meta: &Metadata) -> Self {
        Self {
            user: meta.uid(),
            group: meta.gid(),
            mode: meta.mode() & 0o7777,
            modified: meta.mtime(),
            extended: Vec::new(),
        }
    }

    /// Sets the attributes of a file or folder, but not of a symbolic link.
    pub(super) fn apply(&self, path: &Path, owns: bool) -> Result<()> {
        let mut mode = self.mode;
        if owns {
            lchown(path, Some(self.user), Some(self.group)).map_err(Error::io(path))?;
        } else if path.is_dir() {
            // The user must be able to read and to remove the image.
            mode |= 0o700;
        } else {
            mode |= 0o400;
        }
        // After the owner: a change of the owner clears the set-user-ID bit and capabilities.
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(Error::io(path))?;
        for (name, value) in &self.extended {
            // Some file systems lack extended attributes, and some users lack the privilege to set
            // them. The file works without them.
            if let Err(error) = rustix::fs::lsetxattr(path, name.as_str(), value, XattrFlags::empty()) {
                tracing::debug!(path = %path.display(), name, %error, "cannot set an extended attribute");
            }
        }
        self.apply_times(path)
    }

    /// Sets the attributes of a symbolic link.
    pub(super) fn apply_to_link(&self, path: &Path, owns: bool) -> Result<()> {
        if owns {
            lchown(path, Some(self.user), Some(self.group)).map_err(Error::io(path))?;
        }
        self.apply_times(path)
    }

    fn apply_times(&self, path: &Path) -> Result<()> {
        let time = Timespec { tv_sec: self.modified, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(Error::os(path))
    }
}

/// Extended attributes that have no effect outside of their file.
fn is_allowed(name: &str) -> bool {
    name == "security.capability" || (name.starts_with("user.") && !name.starts_with("user.overlay."))
}
