//! The host's secrets in a container on the host's files: a layer above these files covers them.
//!
//! A secret file does not exist in the container, a secret folder is empty, and the password files
//! lock the password of every user. The programs of the container can create their own files there,
//! such as the keys of an SSH server or `~/.ssh/authorized_keys`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, fstat, makedev, mknodat};

use super::mounts::Root;
use super::root::{PRIVATE, copy_owner, opaque};
use super::{Result, at};

/// Password files, with the list of the same names that everyone may read, and the fields after the
/// name: a password that no text matches, and no aging.
const PASSWORDS: [(&str, &str, &str); 2] =
    [("/etc/shadow", "/etc/passwd", ":*:::::::"), ("/etc/gshadow", "/etc/group", ":*::")];

/// Covers the secrets of the file system `/` in a layer above it. Returns the covered ones; the
/// others need a mount.
pub(super) fn cover(layer: &Path, secrets: &[PathBuf], is_user: bool) -> BTreeSet<PathBuf> {
    let Ok(top) = std::fs::metadata("/") else { return BTreeSet::new() };
    // A mount hides what a link leads to.
    let is_on_top =
        |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|file| file.dev() == top.dev() && !file.is_symlink());
    // The container does not see the host's files in these folders.
    let is_private = |path: &Path| PRIVATE.iter().any(|(name, _)| path.starts_with(Path::new("/").join(name)));
    let is_covered = |path: &&PathBuf| is_private(path) || is_on_top(path) && cover_one(layer, path, is_user).is_ok();
    secrets.iter().filter(is_covered).cloned().collect()
}

/// True if the container sees nothing of a covered secret. It does where the host has mounted a
/// file system over a folder above the secret.
pub(super) fn is_hidden(root: &Root, path: &Path) -> Result<bool> {
    if passwords_of(path).is_some() {
        return Ok(true);
    }
    let Some(found) = root.resolve(path)? else { return Ok(true) };
    let Some(top) = root.resolve(Path::new("/"))? else { return Ok(false) };
    let device = |fd| fstat(fd).map_err(|error| at("hide", path, error));
    let (found, top) = (device(&found)?, device(&top)?);
    Ok(FileType::from_raw_mode(found.st_mode) == FileType::Directory && found.st_dev == top.st_dev)
}

fn passwords_of(path: &Path) -> Option<(&'static str, &'static str)> {
    let found = PASSWORDS.iter().find(|(file, ..)| Path::new(file) == path);
    found.map(|(_, names, fields)| (*names, *fields))
}

fn cover_one(top: &Path, path: &Path, is_user: bool) -> std::io::Result<()> {
    let mut layer = top.to_owned();
    let mut host = PathBuf::from("/");
    let names: Vec<_> = path.iter().skip(1).collect();
    let (name, folders) = names.split_last().ok_or(std::io::ErrorKind::InvalidInput)?;
    for folder in folders {
        layer.push(folder);
        host.push(folder);
        if std::fs::symlink_metadata(&host)?.is_symlink() {
            return Err(std::io::ErrorKind::Unsupported.into());
        }
        if !layer.exists() {
            std::fs::create_dir(&layer)?;
            copy_owner(&host, &layer);
        }
    }
    layer.push(name);
    if std::fs::symlink_metadata(&layer).is_ok() {
        // A former attempt made it.
        return Ok(());
    }
    if let Some((names, fields)) = passwords_of(path) {
        std::fs::write(&layer, locked(&std::fs::read_to_string(names)?, fields))?;
        std::fs::set_permissions(&layer, PermissionsExt::from_mode(0o600))?;
        copy_owner(path, &layer);
    } else if std::fs::metadata(path)?.is_dir() {
        std::fs::create_dir(&layer)?;
        copy_owner(path, &layer);
        rustix::fs::setxattr(&layer, opaque(is_user), b"y", XattrFlags::empty())?;
    } else {
        // This file says that the layers below have none.
        mknodat(CWD, &layer, FileType::CharacterDevice, Mode::empty(), makedev(0, 0))?;
    }
    Ok(())
}

/// A password file for the names of a list, such as `/etc/passwd`.
fn locked(list: &str, fields: &str) -> String {
    let names = list.lines().filter_map(|line| line.split(':').next()).filter(|name| !name.is_empty());
    names.fold(String::new(), |mut file, name| {
        // Writing to a string does not fail.
        let _ = writeln!(file, "{name}{fields}");
        file
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_user_of_the_list_is_locked() {
        let list = "root:x:0:0:root:/root:/bin/bash\n\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n";
        assert_eq!(locked(list, PASSWORDS[0].2), "root:*:::::::\nsshd:*:::::::\n");
        assert_eq!(locked("root:x:0:\n", PASSWORDS[1].2), "root:*::\n");
    }
}
