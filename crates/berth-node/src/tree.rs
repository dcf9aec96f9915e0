//! Folders whose content a container wrote: removal, size and ownership.
//!
//! Such a tree may be deeper than a stack allows, longer than the maximum length of a path, and
//! full of symbolic links. The functions here do not recurse, build long paths or follow links.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, IFlags, Mode, OFlags, RenameFlags, Stat, ioctl_getflags, ioctl_setflags, openat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

/// Maximum number of folders that are open at the same time during a walk. Deeper folders are
/// skipped.
const DEPTH_MAX: usize = 256;

const OPEN_FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Marks the folders within this one as unrelated for ext4, which then puts each of them into the
/// part of the disk with the fewest folders. Other file systems have no such attribute.
///
/// By default all pods are in one part of the disk. ext4 without a journal does not use the inode
/// of a removed file again for a minute, and for another five until it was written. Until then,
/// each new file makes the kernel look at all inodes of files that were removed in the same part.
pub(crate) fn spread(folder: &Path) {
    let Ok(folder) = openat(CWD, folder, OPEN_FOLDER, Mode::empty()) else { return };
    if let Ok(flags) = ioctl_getflags(&folder) {
        let _ = ioctl_setflags(&folder, flags | IFlags::TOPDIR);
    }
}

/// Removes a tree. Succeeds if it does not exist. Nested folders are first moved to the top of the
/// tree, so that depth does not matter.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let top = match openat(CWD, path, OPEN_FOLDER, Mode::empty()) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return std::fs::remove_file(path),
        Err(Errno::ACCESS) => open_forbidden(CWD, path)?,
        Err(error) => return Err(error.into()),
    };
    let mut moved = 0u64;
    // Each pass empties the folders at the top and moves the folders in them up.
    loop {
        let mut is_empty = true;
        for (name, kind) in entries(&top)? {
            is_empty = false;
            if kind != FileType::Directory {
                unlinkat(&top, &name, AtFlags::empty())?;
                continue;
            }
            let folder = match openat(&top, &name, OPEN_FOLDER, Mode::empty()) {
                Ok(folder) => folder,
                Err(Errno::ACCESS) => open_forbidden(&top, &name)?,
                Err(error) => return Err(error.into()),
            };
            for (inner, kind) in entries(&folder)? {
                let is_folder = kind == FileType::Directory;
                if !is_folder {
                    unlinkat(&folder, &inner, AtFlags::empty())?;
                } else if unlinkat(&folder, &inner, AtFlags::REMOVEDIR).is_err() {
                    move_up(&folder, &inner, &top, &mut moved)?;
                }
            }
            unlinkat(&top, &name, AtFlags::REMOVEDIR)?;
        }
        if is_empty {
            break;
        }
    }
    match rustix::fs::rmdir(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Moves a folder to the top of the tree under an unused name.
fn move_up(folder: &OwnedFd, name: &CString, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    loop {
        *moved += 1;
        match renameat_with(folder, name, top, format!("..removed-{moved}"), RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            // The kernel does not move a folder that its owner may not write.
            Err(Errno::ACCESS) => {
                rustix::fs::chmodat(folder, name, Mode::RWXU, AtFlags::empty())?;
                return Ok(renameat_with(folder, name, top, format!("..removed-{moved}"), RenameFlags::NOREPLACE)?);
            }
            result => return Ok(result?),
        }
    }
}

/// Opens a folder of this user whose permissions forbid reading, such as overlayfs' work folder.
fn open_forbidden<P: rustix::path::Arg + Copy>(parent: impl AsFd, name: P) -> io::Result<OwnedFd> {
    rustix::fs::chmodat(&parent, name, Mode::RWXU, AtFlags::empty())?;
    Ok(openat(&parent, name, OPEN_FOLDER, Mode::empty())?)
}

/// The entries of a folder with their types, without `.` and `..`.
fn entries(folder: impl AsFd) -> io::Result<Vec<(CString, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let mut kind = entry.file_type();
        if kind == FileType::Unknown {
            let stat = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
            kind = FileType::from_raw_mode(stat.st_mode);
        }
        found.push((name.to_owned(), kind));
    }
    Ok(found)
}

/// Calls `visit` for every entry of a tree with its parent folder, name and status. Skips entries
/// that are removed during the walk.
fn walk(path: &Path, mut visit: impl FnMut(&OwnedFd, &CString, &Stat)) -> io::Result<()> {
    let top = match openat(CWD, path, OPEN_FOLDER, Mode::empty()) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut stack = vec![(entries(&top)?, top)];
    while let Some((open, folder)) = stack.last_mut() {
        let Some((name, _)) = open.pop() else {
            stack.pop();
            continue;
        };
        let Ok(stat) = statat(&*folder, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        visit(folder, &name, &stat);
        let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_folder
            && stack.len() < DEPTH_MAX
            && let Some((_, folder)) = stack.last()
            && let Ok(inner) = openat(folder, &name, OPEN_FOLDER, Mode::empty())
            && let Ok(open) = entries(&inner)
        {
            stack.push((open, inner));
        }
    }
    Ok(())
}

/// Disk space that a tree occupies, in bytes.
pub(crate) fn disk_bytes(path: &Path) -> u64 {
    let mut bytes = 0;
    let counted = walk(path, |_, _, stat| bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512);
    if counted.is_err() { 0 } else { bytes }
}

/// Gives a tree to a group. The group may read everything that the owner may read, and write if
/// `is_writable` is set. New files in the tree belong to the group.
pub(crate) fn give_to_group(path: &Path, gid: u32, is_writable: bool) -> io::Result<()> {
    let group = Gid::from_raw(gid);
    let top = openat(CWD, path, OPEN_FOLDER, Mode::empty())?;
    let stat = rustix::fs::fstat(&top)?;
    rustix::fs::fchown(&top, None::<Uid>, Some(group))?;
    rustix::fs::fchmod(&top, group_mode(stat.st_mode, is_writable))?;
    let mut failed = None;
    walk(path, |folder, name, stat| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let mut done = rustix::fs::chownat(folder, name, None, Some(group), AtFlags::SYMLINK_NOFOLLOW);
        if done.is_ok() && matches!(kind, FileType::Directory | FileType::RegularFile) {
            // The entry may have been replaced with a link, so it is opened without following
            // links.
            done = openat(folder, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK, Mode::empty())
                .and_then(|file| rustix::fs::fchmod(file, group_mode(stat.st_mode, is_writable)));
        }
        if let Err(error) = done
            && error != Errno::NOENT
        {
            failed = Some(error);
        }
    })?;
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// The permissions of a file or folder for the group that owns a volume.
fn group_mode(mode: u32, is_writable: bool) -> Mode {
    let is_folder = FileType::from_raw_mode(mode) == FileType::Directory;
    let mut bits = mode & 0o7777 | if is_writable { 0o660 } else { 0o440 };
    if is_folder {
        bits |= 0o2110;
    }
    Mode::from_raw_mode(bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn a_tree_deeper_than_a_path_may_be_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("top");
        std::fs::create_dir(&top).unwrap();
        let mut inner = openat(CWD, &top, OPEN_FOLDER, Mode::empty()).unwrap();
        let name = "d".repeat(100);
        for _ in 0..2000 {
            rustix::fs::mkdirat(&inner, &name, Mode::RWXU).unwrap();
            openat(&inner, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
            inner = openat(&inner, &name, OPEN_FOLDER, Mode::empty()).unwrap();
        }
        assert!(disk_bytes(&top) > 0);
        remove(&top).unwrap();
        assert!(!top.exists());
        remove(&top).unwrap();
    }

    #[test]
    fn the_folders_within_a_folder_are_spread_on_ext4() {
        let folder = tempfile::tempdir().unwrap();
        spread(folder.path());
        spread(&folder.path().join("missing"));
        let is_ext4 = rustix::fs::statfs(folder.path()).unwrap().f_type == 0xef53;
        if is_ext4 {
            let opened = openat(CWD, folder.path(), OPEN_FOLDER, Mode::empty()).unwrap();
            assert!(ioctl_getflags(&opened).unwrap().contains(IFlags::TOPDIR));
        }
        assert_eq!(entries(openat(CWD, folder.path(), OPEN_FOLDER, Mode::empty()).unwrap()).unwrap(), []);
    }

    #[test]
    fn removal_does_not_follow_links_out_of_the_tree() {
        let folder = tempfile::tempdir().unwrap();
        let (top, other) = (folder.path().join("top"), folder.path().join("other"));
        std::fs::create_dir_all(top.join("sub")).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("kept"), "x").unwrap();
        symlink(&other, top.join("link")).unwrap();
        symlink(&other, top.join("sub/link")).unwrap();
        remove(&top).unwrap();
        assert!(other.join("kept").exists());
    }

    #[test]
    fn the_group_of_a_volume_may_use_its_files() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        std::fs::write(folder.path().join("sub/file"), "x").unwrap();
        let gid = std::fs::metadata(folder.path()).unwrap().gid();
        give_to_group(folder.path(), gid, true).unwrap();
        let mode = |path: &str| std::fs::metadata(folder.path().join(path)).unwrap().mode() & 0o7777;
        assert_eq!(mode("sub") & 0o2770, 0o2770);
        assert_eq!(mode("sub/file") & 0o660, 0o660);
    }
}
