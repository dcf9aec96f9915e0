//! The volumes of a pod on disk.
//!
//! Files from the API are written in the same way as in kubelets. Each version is a folder of its
//! own, the link `..data` points to the current version, and each visible name is a link through
//! `..data`. A reader sees either all old or all new files, because a single rename changes
//! `..data`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use berth_pod_runtime::{FileContent, HostPathType, ImageRoot, Result, RuntimeError, SandboxConfig, Volume};

use crate::folder::{PodFolder, check_name};
use crate::protocol::VolumeSource;
use crate::tree;

/// Link to the folder with the current files.
const DATA: &str = "..data";

/// Creates the pod's volumes. A second call with the same volumes changes nothing.
pub(crate) fn create(folder: &PodFolder, config: &SandboxConfig, may_chown: bool) -> Result<()> {
    for (name, volume) in &config.volumes {
        check_name("volume", name)?;
        let path = folder.volume(name);
        let failed = |error: io::Error| RuntimeError::Internal(format!("volume {name}: {error}"));
        match volume {
            Volume::EmptyDir { .. } => {
                make_folder(&path, 0o777).map_err(failed)?;
                give(&path, config.fs_group.filter(|_| may_chown), true).map_err(failed)?;
            }
            Volume::Files { files } => {
                make_folder(&path, 0o755).map_err(failed)?;
                write_files(name, &path, files, config.fs_group.filter(|_| may_chown))?;
            }
            Volume::HostPath { path, kind } => check_host_path(name, path, *kind)?,
            Volume::Folder { path } => {
                if !path.is_dir() {
                    return Err(RuntimeError::Config(format!("volume {name}: {} is not a folder", path.display())));
                }
                give(path, config.fs_group.filter(|_| may_chown), true).map_err(failed)?;
            }
            Volume::Image { root } => {
                if overlaid(root).is_some() {
                    make_folder(&path, 0o755).map_err(failed)?;
                }
            }
        }
    }
    Ok(())
}

/// The layers of an image volume that need an overlay mount; `None` for a single folder, which is
/// bound directly.
pub(crate) fn overlaid(root: &ImageRoot) -> Option<&[PathBuf]> {
    match root {
        ImageRoot::Layers { folders } if folders.len() > 1 => Some(folders),
        ImageRoot::Layers { .. } | ImageRoot::Folder { .. } => None,
    }
}

/// The location of an image volume's files; `mounted` is the folder of its overlay.
fn image_files(mounted: PathBuf, root: &ImageRoot) -> PathBuf {
    match root {
        ImageRoot::Layers { folders } if folders.len() == 1 => folders[0].clone(),
        ImageRoot::Layers { .. } => mounted,
        ImageRoot::Folder { path } => path.clone(),
    }
}

/// The location of each volume's files.
pub(crate) fn sources(folder: &PodFolder, config: &SandboxConfig) -> BTreeMap<String, VolumeSource> {
    let source = |name: &String, volume: &Volume| match volume {
        Volume::EmptyDir { .. } => {
            VolumeSource { path: folder.volume(name), read_only: false, writable: true, recursive: false }
        }
        Volume::Files { .. } => {
            VolumeSource { path: folder.volume(name), read_only: true, writable: false, recursive: false }
        }
        Volume::HostPath { path, .. } => {
            VolumeSource { path: path.clone(), read_only: false, writable: true, recursive: true }
        }
        Volume::Folder { path } => {
            VolumeSource { path: path.clone(), read_only: false, writable: true, recursive: false }
        }
        Volume::Image { root } => VolumeSource {
            path: image_files(folder.volume(name), root),
            read_only: true,
            writable: false,
            recursive: false,
        },
    };
    config.volumes.iter().map(|(name, volume)| (name.clone(), source(name, volume))).collect()
}

/// Replaces the files of a volume atomically.
pub(crate) fn write_files(
    volume: &str,
    path: &Path,
    files: &BTreeMap<String, FileContent>,
    group: Option<u32>,
) -> Result<()> {
    for name in files.keys() {
        let is_valid = !name.is_empty()
            && !name.starts_with("..")
            && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        if !is_valid {
            let message = format!("volume {volume}: file {name:?}: expected a relative path without \"..\"");
            return Err(RuntimeError::Config(message));
        }
    }
    replace(path, files, group).map_err(|error| RuntimeError::Internal(format!("volume {volume}: {error}")))
}

fn replace(path: &Path, files: &BTreeMap<String, FileContent>, group: Option<u32>) -> io::Result<()> {
    let link = path.join(DATA);
    let present = std::fs::read_link(&link).ok();
    if let Some(present) = &present
        && same_files(&path.join(present), files)
    {
        // A crash after the rename may have left names without links.
        return link_names(path, files);
    }
    let number = present.as_ref().and_then(|name| name.to_str()?.strip_prefix("..v")?.parse::<u64>().ok());
    let next = format!("..v{}", number.map_or(0, |number| number + 1));
    let folder = path.join(&next);
    tree::remove(&folder)?;
    make_folder(&folder, 0o755)?;
    for (name, content) in files {
        let file = folder.join(name);
        if let Some(parent) = file.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
        }
        let mut options = std::fs::File::options();
        io::Write::write_all(&mut options.write(true).create_new(true).mode(0o600).open(&file)?, &content.data)?;
        std::fs::set_permissions(&file, PermissionsExt::from_mode(content.mode & 0o777))?;
    }
    if let Some(group) = group {
        tree::give_to_group(&folder, group, false)?;
    }
    let temporary = path.join("..data_tmp");
    let _ = std::fs::remove_file(&temporary);
    symlink(&next, &temporary)?;
    std::fs::rename(&temporary, &link)?;
    link_names(path, files)?;
    match present {
        Some(old) => tree::remove(&path.join(old)),
        None => Ok(()),
    }
}

/// Links every visible name through `..data`, and removes the links of names that no longer exist.
fn link_names(path: &Path, files: &BTreeMap<String, FileContent>) -> io::Result<()> {
    let names: BTreeSet<&str> = files.keys().map(|name| name.split('/').next().unwrap_or(name)).collect();
    for name in &names {
        let target = PathBuf::from(DATA).join(name);
        if std::fs::read_link(path.join(name)).ok().as_ref() != Some(&target) {
            symlink(&target, path.join(name))?;
        }
    }
    for entry in std::fs::read_dir(path)? {
        let name = entry?.file_name();
        let is_gone = name.to_str().is_some_and(|name| !name.starts_with("..") && !names.contains(name));
        if is_gone {
            std::fs::remove_file(path.join(name))?;
        }
    }
    Ok(())
}

/// True if a folder has exactly these files with this content.
fn same_files(folder: &Path, files: &BTreeMap<String, FileContent>) -> bool {
    let mut found = 0;
    let mut open = vec![folder.to_owned()];
    while let Some(path) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&path) else { return false };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            } else {
                found += 1;
            }
        }
    }
    let is_same = |name: &str, content: &FileContent| {
        let file = folder.join(name);
        let mode = std::fs::metadata(&file).map(|metadata| metadata.permissions().mode() & content.mode & 0o777);
        mode.is_ok_and(|mode| mode == content.mode & 0o777)
            && std::fs::read(&file).is_ok_and(|data| data == content.data)
    };
    found == files.len() && files.iter().all(|(name, content)| is_same(name, content))
}

fn give(path: &Path, group: Option<u32>, is_writable: bool) -> io::Result<()> {
    group.map_or(Ok(()), |group| tree::give_to_group(path, group, is_writable))
}

/// Creates a folder with these permissions, regardless of the process's umask.
fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    match std::fs::create_dir(path) {
        Ok(()) => std::fs::set_permissions(path, PermissionsExt::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

fn check_host_path(volume: &str, path: &Path, kind: HostPathType) -> Result<()> {
    let failed = |error: io::Error| RuntimeError::Config(format!("volume {volume}: {}: {error}", path.display()));
    match kind {
        // For a `hostPath` without a type, container runtimes create a missing folder.
        HostPathType::Unchecked | HostPathType::DirectoryOrCreate if !path.exists() => {
            return std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(failed);
        }
        HostPathType::FileOrCreate if !path.exists() => {
            return std::fs::File::options().create_new(true).write(true).open(path).map(drop).map_err(failed);
        }
        _ => {}
    }
    let found = std::fs::metadata(path).map_err(failed)?.file_type();
    let (is_right, expected) = match kind {
        HostPathType::Unchecked => (true, ""),
        HostPathType::DirectoryOrCreate | HostPathType::Directory => (found.is_dir(), "a directory"),
        HostPathType::FileOrCreate | HostPathType::File => (found.is_file(), "a file"),
        HostPathType::Socket => (found.is_socket(), "a Unix socket"),
        HostPathType::CharDevice => (found.is_char_device(), "a character device"),
        HostPathType::BlockDevice => (found.is_block_device(), "a block device"),
    };
    if is_right {
        return Ok(());
    }
    Err(RuntimeError::Config(format!("volume {volume}: hostPath {} is not {expected}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(entries: &[(&str, &str)]) -> BTreeMap<String, FileContent> {
        let content = |data: &str| FileContent { data: data.as_bytes().to_vec(), mode: 0o644 };
        entries.iter().map(|(name, data)| ((*name).to_owned(), content(data))).collect()
    }

    #[test]
    fn an_update_replaces_all_files_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        write_files("v", path, &files(&[("a", "1"), ("sub/b", "1"), ("gone", "1")]), None).unwrap();
        let before = std::fs::canonicalize(path.join(DATA)).unwrap();
        write_files("v", path, &files(&[("a", "1"), ("sub/b", "1"), ("gone", "1")]), None).unwrap();
        assert_eq!(std::fs::canonicalize(path.join(DATA)).unwrap(), before, "equal files are not written again");
        write_files("v", path, &files(&[("a", "2"), ("sub/b", "2")]), None).unwrap();
        assert_eq!(std::fs::read_to_string(path.join("a")).unwrap(), "2");
        assert_eq!(std::fs::read_to_string(path.join("sub/b")).unwrap(), "2");
        assert!(std::fs::symlink_metadata(path.join("gone")).is_err());
        assert!(!before.exists());
    }

    #[test]
    fn file_names_that_leave_the_volume_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["../x", "/x", "", "a/../b", "..data"] {
            assert!(write_files("v", folder.path(), &files(&[(name, "1")]), None).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_host_path_of_the_wrong_kind_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let error = check_host_path("v", folder.path(), HostPathType::File).unwrap_err();
        assert!(error.to_string().ends_with("is not a file"), "{error}");
        let created = folder.path().join("new/folder");
        check_host_path("v", &created, HostPathType::DirectoryOrCreate).unwrap();
        assert!(created.is_dir());
        assert!(check_host_path("v", &folder.path().join("none"), HostPathType::Directory).is_err());
    }
}
