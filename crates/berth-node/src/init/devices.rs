//! `/dev` of a container.

use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mount::MountFlags;

use super::mounts::{Bind, Root};
use super::{Result, at};
use crate::options::Level;
use crate::protocol::ContainerEntry;

/// Devices of every container: name, major and minor number.
const NODES: [(&str, u32, u32); 6] =
    [("full", 1, 7), ("null", 1, 3), ("random", 1, 8), ("tty", 5, 0), ("urandom", 1, 9), ("zero", 1, 5)];

/// Links of every container.
const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Entries of the host's `/dev` that a privileged container does not share with the host.
const OWN: [&str; 11] =
    ["console", "fd", "hugepages", "mqueue", "ptmx", "pts", "shm", "stderr", "stdin", "stdout", "termination-log"];

/// Mounts `/dev` with the devices of the container.
pub(super) fn mount(entry: &ContainerEntry, root: &Root) -> Result<()> {
    root.mount("tmpfs", "/dev", MountFlags::NOSUID | MountFlags::STRICTATIME, Some(c"mode=755,size=65536k"))?;
    // The folder was created by this process, so its names need no safe resolution.
    let dev = root.path.join("dev");
    if entry.config.security.privileged {
        add_all(root, &dev)?;
    }
    for (name, major, minor) in NODES {
        let path = dev.join(name);
        if path.exists() {
            continue;
        }
        if entry.level == Level::Rootless {
            root.bind(&Path::new("/dev").join(name), &Path::new("/dev").join(name), Bind::default())?;
        } else {
            make_node(&path, FileType::CharacterDevice, rustix::fs::makedev(major, minor), 0o666)?;
        }
    }
    for (name, target) in LINKS {
        symlink(target, dev.join(name)).map_err(|error| at("link", dev.join(name), error))?;
    }
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    // An ordinary user's user namespace has no group 5 (tty).
    let options = if entry.level == Level::Rootless {
        c"newinstance,ptmxmode=0666,mode=0620"
    } else {
        c"newinstance,ptmxmode=0666,mode=0620,gid=5"
    };
    root.mount("devpts", "/dev/pts", flags, Some(options))?;
    root.mount("mqueue", "/dev/mqueue", flags | MountFlags::NODEV, None)?;
    root.bind(&entry.shm, Path::new("/dev/shm"), Bind::default())?;
    for path in entry.config.devices.iter().flat_map(|device| &device.paths) {
        root.bind(path, path, Bind::default())?;
    }
    Ok(())
}

/// Adds the devices of the host.
fn add_all(root: &Root, dev: &Path) -> Result<()> {
    let entries = std::fs::read_dir("/dev").map_err(|error| at("read", "/dev", error))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let (Ok(kind), path) = (entry.file_type(), dev.join(&name)) else { continue };
        if OWN.iter().any(|own| name == *own) {
            continue;
        }
        if kind.is_symlink() {
            if let Ok(target) = std::fs::read_link(entry.path()) {
                symlink(target, &path).map_err(|error| at("link", &path, error))?;
            }
        } else if kind.is_dir() {
            root.bind(&entry.path(), &PathBuf::from("/dev").join(&name), Bind { read_only: false, recursive: true })?;
        } else if kind.is_char_device() || kind.is_block_device() {
            let Ok(metadata) = entry.metadata() else { continue };
            let kind = if kind.is_block_device() { FileType::BlockDevice } else { FileType::CharacterDevice };
            make_node(&path, kind, metadata.rdev(), metadata.mode() & 0o777)?;
        }
    }
    Ok(())
}

fn make_node(path: &Path, kind: FileType, device: u64, mode: u32) -> Result<()> {
    mknodat(CWD, path, kind, Mode::from_raw_mode(mode), device).map_err(|error| at("create device", path, error))?;
    // The process's mask may have removed permissions.
    rustix::fs::chmod(path, Mode::from_raw_mode(mode)).map_err(|error| at("create device", path, error))
}
