//! Mounts in the root of a container, whose content is not trusted.
//!
//! Every target is resolved inside the root (`openat2` with `RESOLVE_IN_ROOT`) and mounted over
//! through its file descriptor. A symbolic link in an image therefore cannot lead a mount to the
//! host's files.

use std::cell::OnceCell;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, fstat, fstatvfs, mkdirat, openat, openat2,
    unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive, mount_remount};

use super::{Result, at, fd_path};
use crate::protocol::WireError;

/// The root folder of a container during its setup.
pub(super) struct Root {
    pub path: PathBuf,
    folder: OwnedFd,
    /// The mount of an empty folder that hides others as well.
    empty: OnceCell<OwnedFd>,
}

/// Kind of file that a mount needs as its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Folder,
    File,
}

impl Root {
    /// Opens a root, which is a mount point.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, path, flags, Mode::empty()).map_err(|error| at("open", path, error))?;
        Ok(Self { path: path.to_owned(), folder, empty: OnceCell::new() })
    }

    /// Opens a path in the root; `None` if it does not exist.
    pub fn resolve(&self, path: &Path) -> Result<Option<OwnedFd>> {
        match self.try_open(path) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(at("open in the container", path, error)),
        }
    }

    fn try_open(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        openat2(&self.folder, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
    }

    /// Opens a path in the root. Creates the path and its parent folders if they do not exist.
    /// Replaces a symbolic link that leads to nothing.
    pub fn ensure(&self, path: &Path, target: Target) -> Result<OwnedFd> {
        let failed = |error: Errno| mount_point(path, error);
        let mut folder = self.try_open(Path::new("/")).map_err(failed)?;
        let mut prefix = PathBuf::from("/");
        let parts: Vec<_> =
            path.components().filter(|part| !matches!(part, Component::RootDir | Component::CurDir)).collect();
        for (index, part) in parts.iter().enumerate() {
            let Component::Normal(name) = part else {
                return Err(WireError::Config(format!("mount path {}: \"..\" is not allowed", path.display())));
            };
            prefix.push(name);
            let target = if index + 1 == parts.len() { target } else { Target::Folder };
            let mut opened = self.try_open(&prefix);
            if opened.as_ref().is_err_and(|error| *error == Errno::NOENT) {
                create(&folder, name.as_ref(), target).map_err(failed)?;
                opened = self.try_open(&prefix);
            }
            folder = opened.map_err(failed)?;
        }
        Ok(folder)
    }

    /// Mounts a virtual file system of the kernel.
    pub fn mount(&self, fs: &str, path: &str, flags: MountFlags, data: Option<&CStr>) -> Result<()> {
        let target = self.ensure(Path::new(path), Target::Folder)?;
        mount(fs, fd_path(&target), fs, flags, data).map_err(|error| at(&format!("mount {fs} at"), path, error))
    }

    /// Bind-mounts a file or folder of the host.
    pub fn bind(&self, source: &Path, path: &Path, options: Bind) -> Result<()> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let source = openat(CWD, source, flags, Mode::empty()).map_err(|error| config_at("open", source, error))?;
        self.bind_opened(&source, path, options)
    }

    /// Bind-mounts an open file or folder of the host.
    pub fn bind_opened(&self, source: &OwnedFd, path: &Path, options: Bind) -> Result<()> {
        let failed = |error: Errno| at("bind", path, error);
        let is_folder = FileType::from_raw_mode(fstat(source).map_err(failed)?.st_mode) == FileType::Directory;
        let target = self.ensure(path, if is_folder { Target::Folder } else { Target::File })?;
        let (from, to) = (fd_path(source), fd_path(&target));
        if options.recursive { mount_bind_recursive(from, to) } else { mount_bind(from, to) }.map_err(failed)?;
        if options.read_only {
            self.make_read_only(path)?;
        }
        Ok(())
    }

    /// Makes the mount at a path read-only.
    pub fn make_read_only(&self, path: &Path) -> Result<()> {
        let mounted = self.try_open(path).map_err(|error| at("open", path, error))?;
        read_only(&mounted).map_err(|error| at("make read-only", path, error))
    }

    /// Hides the file or folder at a path behind an empty one that cannot be written. A path that
    /// does not exist needs no hiding.
    pub fn hide(&self, path: &Path) -> Result<()> {
        let Some(found) = self.resolve(path)? else { return Ok(()) };
        let stat = fstat(&found).map_err(|error| at("hide", path, error))?;
        let done = if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            self.hide_folder(path, &found)
        } else {
            mount_bind("/dev/null", fd_path(&found))
        };
        done.map_err(|error| at("hide", path, error))
    }

    /// Hides a folder. All hidden folders of a container are mounts of one file system.
    fn hide_folder(&self, path: &Path, found: &OwnedFd) -> rustix::io::Result<()> {
        if let Some(empty) = self.empty.get() {
            // Such a mount has the flags of the first one.
            return mount_bind(fd_path(empty), fd_path(found));
        }
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("tmpfs", fd_path(found), "tmpfs", flags, c"size=0,nr_inodes=2,mode=555")?;
        let _ = self.empty.set(self.try_open(path)?);
        Ok(())
    }

    /// Makes the file or folder at a path read-only with a bind mount onto itself.
    pub fn freeze(&self, path: &Path) -> Result<()> {
        let Some(found) = self.resolve(path)? else { return Ok(()) };
        mount_bind_recursive(fd_path(&found), fd_path(&found)).map_err(|error| at("bind", path, error))?;
        self.make_read_only(path)
    }
}

/// Options of a bind mount.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bind {
    pub read_only: bool,
    pub recursive: bool,
}

/// Creates a mount point in a folder.
fn create(folder: &OwnedFd, name: &Path, target: Target) -> rustix::io::Result<()> {
    let attempt = || match target {
        Target::Folder => mkdirat(folder, name, Mode::from_raw_mode(0o755)),
        Target::File => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            openat(folder, name, flags, Mode::from_raw_mode(0o644)).map(drop)
        }
    };
    match attempt() {
        // There is a symbolic link that leads to nothing.
        Err(Errno::EXIST) => {
            unlinkat(folder, name, AtFlags::empty())?;
            attempt()
        }
        result => result,
    }
}

/// Makes the mount of an open file read-only. Keeps its other flags, because a user namespace may
/// not clear those of its parent.
pub(super) fn read_only(mounted: &OwnedFd) -> rustix::io::Result<()> {
    let present = fstatvfs(mounted)?.f_flag;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    for (is_set, flag) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        if present.contains(is_set) {
            flags |= flag;
        }
    }
    mount_remount(fd_path(mounted), flags, c"")
}

/// Opens a path within a volume without leaving the volume. With `may_create`, creates missing
/// folders.
pub(super) fn open_within(volume: &OwnedFd, sub_path: &str, may_create: bool) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let open = |path: &Path| openat2(volume, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve);
    let path = Path::new(sub_path);
    if path.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        let message = format!("subPath {sub_path:?}: expected a relative path without \"..\"");
        return Err(WireError::Config(message));
    }
    let failed = |error: Errno| {
        let reason = match error {
            Errno::XDEV => "leads out of the volume".to_owned(),
            other => std::io::Error::from(other).to_string(),
        };
        WireError::Config(format!("subPath {sub_path:?} {reason}"))
    };
    match open(path) {
        Err(Errno::NOENT) if may_create => {}
        result => return result.map_err(failed),
    }
    let mut prefix = PathBuf::new();
    let mut folder = open(Path::new(".")).map_err(failed)?;
    for part in path.components() {
        prefix.push(part);
        folder = match open(&prefix) {
            Err(Errno::NOENT) => {
                mkdirat(&folder, Path::new(&part), Mode::from_raw_mode(0o755)).map_err(failed)?;
                open(&prefix).map_err(failed)?
            }
            result => result.map_err(failed)?,
        };
    }
    Ok(folder)
}

fn mount_point(path: &Path, error: Errno) -> WireError {
    config_at("mount path", path, error)
}

fn config_at(what: &str, path: &Path, error: Errno) -> WireError {
    WireError::Config(format!("{what} {}: {}", path.display(), std::io::Error::from(error)))
}

/// Mount points and types of the file systems that this process sees, outer ones first.
pub(super) fn mounted() -> Vec<(PathBuf, String)> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found: Vec<(PathBuf, String)> = text
        .lines()
        .filter_map(|line| {
            let (mount, filesystem) = line.split_once(" - ")?;
            let path = mount.split(' ').nth(4)?;
            Some((PathBuf::from(unescape(path)), filesystem.split(' ').next()?.to_owned()))
        })
        .collect();
    found.sort();
    found.dedup_by(|left, right| left.0 == right.0);
    found
}

/// Decodes the octal escapes of a path in `mountinfo`, such as `\040` for a space.
fn unescape(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn open(path: &Path) -> OwnedFd {
        openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn links_in_a_volume_cannot_lead_a_sub_path_out_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        symlink("/etc", path.join("absolute")).unwrap();
        symlink("../..", path.join("up")).unwrap();
        symlink("inside", path.join("link")).unwrap();
        std::fs::create_dir(path.join("inside")).unwrap();
        for sub_path in ["absolute", "absolute/passwd", "up", "up/x", "../x", "/etc"] {
            assert!(open_within(&open(path), sub_path, true).is_err(), "{sub_path}");
        }
        open_within(&open(path), "link", false).unwrap();
        open_within(&open(path), "link/new/deep", true).unwrap();
        assert!(path.join("inside/new/deep").is_dir());
        assert!(open_within(&open(path), "missing", false).is_err());
    }

    #[test]
    fn links_in_an_image_are_resolved_inside_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        symlink("/elsewhere/berth-test", path.join("link")).unwrap();
        symlink("../../../..", path.join("up")).unwrap();
        let root = Root::open(path).unwrap();
        root.ensure(Path::new("/link/file"), Target::File).unwrap();
        root.ensure(Path::new("/up/data"), Target::Folder).unwrap();
        assert!(path.join("link/file").is_file(), "the link to nothing was replaced by a folder");
        assert!(path.join("data").is_dir());
        assert!(root.ensure(Path::new("/../x"), Target::Folder).is_err());
    }

    #[test]
    fn escaped_mount_points_are_decoded() {
        assert_eq!(unescape(r"/a\040b\134c"), r"/a b\c");
        assert_eq!(unescape("/plain"), "/plain");
    }
}
