//! The root file system of a container, and its mounts.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use berth_pod_runtime::{ImageRoot, Mount, Propagation};
use rustix::fs::{CWD, Mode, OFlags, XattrFlags, openat};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change, unmount,
};

use super::mounts::{Bind, Root, Target, mounted, open_within};
use super::{Result, at, devices, internal, secrets, touch};
use crate::folder::TERMINATION;
use crate::options::Level;
use crate::overlay::{self, Changes};
use crate::protocol::{ContainerEntry, HostRoot, WireError};

/// Kernel files that reveal or change the state of the machine.
const HIDDEN_IN_PROC: [&str; 9] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/sys/firmware",
];

/// Kernel settings that a container may read but not write.
const READ_ONLY_IN_PROC: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Folders of the host's files that each container replaces with an empty folder of its own.
pub(super) const PRIVATE: [(&str, u32); 3] = [("run", 0o755), ("tmp", 0o1777), ("var/tmp", 0o1777)];

/// Options of the file system that covers parts of the host's files.
const COVER_OPTIONS: &CStr = c"mode=755,size=16m";

/// Types of file systems that do not belong to the host's files.
const VIRTUAL: [&str; 20] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "sysfs",
    "tracefs",
];

/// Builds the root.
pub(super) fn build(entry: &ContainerEntry) -> Result<Root> {
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).map_err(|error| internal("mount propagation", error))?;
    let path = entry.folder.join("root");
    make_folders(&path)?;
    let files = mount_root(entry, &path)?;
    let root = Root::open(&path)?;
    if let Files::Host { covered } = files {
        bind_host_mounts(entry.level, &root)?;
        for hidden in &entry.hidden {
            if !covered.contains(hidden) || !secrets::is_hidden(&root, hidden)? {
                root.hide(hidden)?;
            }
        }
    }
    mount_kernel(entry, &root)?;
    devices::mount(entry, &root)?;
    bind_etc(entry, &root)?;
    let mut mounts: Vec<&Mount> = entry.config.mounts.iter().collect();
    mounts.sort_by_key(|mount| Path::new(&mount.path).components().count());
    for mount in mounts {
        mount_volume(entry, &root, mount)?;
    }
    bind_termination_message(entry, &root)?;
    if !entry.config.security.privileged {
        protect_kernel(entry, &root)?;
    }
    if entry.config.security.read_only_root_filesystem {
        root.make_read_only(Path::new("/"))?;
    }
    Ok(root)
}

impl Root {
    /// Makes this root the root of the process.
    pub(super) fn enter(self) -> Result<()> {
        enter(&self.path)
    }
}

fn enter(path: &Path) -> Result<()> {
    let failed = |error: rustix::io::Errno| at("enter", path, error);
    std::env::set_current_dir(path).map_err(|error| at("enter", path, error))?;
    rustix::process::pivot_root(".", ".").map_err(failed)?;
    unmount(".", UnmountFlags::DETACH).map_err(failed)?;
    std::env::set_current_dir("/").map_err(|error| at("enter", path, error))
}

/// Makes an empty read-only folder the root of the process.
pub(super) fn enter_empty() -> Result<()> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(|error| internal("mount propagation", error))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // The mount namespace belongs to this process, so the use of the folder on the host does not
    // matter.
    mount("tmpfs", "/proc", "tmpfs", flags, c"size=0,nr_inodes=2").map_err(|error| internal("mount", error))?;
    enter(Path::new("/proc"))
}

/// The files of a root.
enum Files {
    /// Those of an image.
    Image,
    /// Those of the host. A layer above them covers some of its secrets.
    Host { covered: BTreeSet<PathBuf> },
}

/// Mounts the image's files, or the host's.
fn mount_root(entry: &ContainerEntry, path: &Path) -> Result<Files> {
    let mut lower = match &entry.config.image.root {
        Some(ImageRoot::Layers { folders }) => folders.clone(),
        Some(ImageRoot::Folder { path }) => vec![path.clone()],
        None if entry.host_root == HostRoot::Binds => {
            bind_host(entry, path)?;
            return Ok(Files::Host { covered: BTreeSet::new() });
        }
        None => vec![PathBuf::from("/")],
    };
    let is_host = entry.config.image.root.is_none();
    let mut base = entry.folder.clone();
    if entry.host_root == HostRoot::MemoryOverlay {
        base = base.join("memory");
        make_folders(&base)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", &base, "tmpfs", flags, None).map_err(|error| at("mount", &base, error))?;
    }
    let (upper, work) = (base.join("upper"), base.join("work"));
    make_folders(&upper)?;
    make_folders(&work)?;
    let is_user = entry.level == Level::Rootless;
    copy_owner(&lower[lower.len() - 1], &upper);
    let mut files = Files::Image;
    if is_host {
        let layer = cover_layer(&upper, path, is_user)?;
        files = Files::Host { covered: secrets::cover(&layer, &entry.hidden, is_user) };
        if layer != upper {
            lower.push(layer);
        }
    }
    mount_overlay(&lower, &upper, &work, path, is_user)?;
    Ok(files)
}

/// The layer that covers parts of the host's files: a file system in memory at `path`, below the
/// overlay that is mounted there next. On a disk, some twenty files per container would be written
/// and removed, and a removal waits for the disk if each free block is discarded (mount option
/// `discard`). Old kernels do not support the needed attributes in memory (user namespaces before
/// Linux 6.6). There, the writable layer covers these parts.
fn cover_layer(upper: &Path, path: &Path, is_user: bool) -> Result<PathBuf> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", path, "tmpfs", flags, COVER_OPTIONS).map_err(|error| at("mount", path, error))?;
    copy_owner(Path::new("/"), path);
    if make_private(path, is_user).is_ok() {
        return Ok(path.to_owned());
    }
    unmount(path, UnmountFlags::DETACH).map_err(|error| at("unmount", path, error))?;
    make_private(upper, is_user)?;
    Ok(upper.to_owned())
}

/// Mounts an overlay. `lower` has the lowest folder first.
fn mount_overlay(lower: &[PathBuf], upper: &Path, work: &Path, path: &Path, is_user: bool) -> Result<()> {
    let options = overlay::options(lower, Some(&Changes { upper, work }), is_user).map_err(WireError::Config)?;
    // A container's writes have no use after a crash of the machine, so they need not be synced.
    for options in [format!("{options},volatile"), options] {
        let options = CString::new(options).map_err(|error| WireError::Config(error.to_string()))?;
        match mount("overlay", path, "overlay", MountFlags::NODEV, options.as_c_str()) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(at("mount an overlay at", path, error)),
        }
    }
    Err(at("mount an overlay at", path, rustix::io::Errno::INVAL))
}

/// The attribute of a folder in a layer that shows nothing of the layers below.
pub(super) fn opaque(is_user: bool) -> &'static CStr {
    if is_user { c"user.overlay.opaque" } else { c"trusted.overlay.opaque" }
}

/// Creates folders in a layer that hide the folders of the layers below.
fn make_private(layer: &Path, is_user: bool) -> Result<()> {
    for (name, mode) in PRIVATE {
        let host = Path::new("/").join(name);
        if !std::fs::symlink_metadata(&host).is_ok_and(|file| file.is_dir()) {
            continue;
        }
        let folder = layer.join(name);
        if let Some(parent) = folder.parent()
            && parent != layer
        {
            make_folders(parent)?;
            copy_owner(&Path::new("/").join(name).parent().map(Path::to_owned).unwrap_or_default(), parent);
        }
        make_folders(&folder)?;
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(mode))
            .map_err(|error| at("create", &folder, error))?;
        rustix::fs::setxattr(&folder, opaque(is_user), b"y", XattrFlags::empty())
            .map_err(|error| at("hide the host's", &host, error))?;
    }
    Ok(())
}

/// Bind-mounts the host's folders read-only in an otherwise empty root.
fn bind_host(entry: &ContainerEntry, path: &Path) -> Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", path, "tmpfs", flags, c"mode=755").map_err(|error| at("mount", path, error))?;
    let root = Root::open(path)?;
    let host = std::fs::read_dir("/").map_err(|error| at("read", "/", error))?;
    for item in host.flatten() {
        let (name, source) = (item.file_name(), item.path());
        let Ok(kind) = item.file_type() else { continue };
        let is_private = PRIVATE.iter().any(|(private, _)| name == *private);
        if is_private || ["proc", "sys", "dev"].iter().any(|other| name == *other) {
            continue;
        }
        if kind.is_symlink() {
            if let Ok(target) = std::fs::read_link(&source) {
                symlink(target, path.join(&name)).map_err(|error| at("link", &source, error))?;
            }
        } else if kind.is_dir() && !entry.hidden.contains(&source) {
            root.bind(&source, &Path::new("/").join(&name), Bind { read_only: true, recursive: true })?;
        }
    }
    for (name, mode) in PRIVATE {
        let folder = path.join(name);
        if name.contains('/') {
            let flags = MountFlags::NOSUID | MountFlags::NODEV;
            if root.resolve(&Path::new("/").join(name))?.is_some() {
                root.mount("tmpfs", &format!("/{name}"), flags, Some(c"mode=1777"))?;
            }
            continue;
        }
        make_folders(&folder)?;
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(mode))
            .map_err(|error| at("create", &folder, error))?;
    }
    // The bind mounts include the mounts within the host's folders.
    for (inner, _) in mounted().into_iter().filter(|(inner, _)| inner.starts_with(path) && inner != path) {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let is_private = PRIVATE.iter().any(|(name, _)| inner == path.join(name));
        if !is_private && let Ok(opened) = openat(CWD, &inner, flags, Mode::empty()) {
            super::mounts::read_only(&opened).map_err(|error| at("make read-only", &inner, error))?;
        }
    }
    Ok(())
}

/// Bind-mounts the host's other file systems, which an overlay of `/` does not show.
///
/// A user namespace may not take a mount apart from the mounts within it, because that would show
/// the files below them (mount_namespaces(7), locked mounts). There, such a mount is bound together
/// with the mounts within it.
fn bind_host_mounts(level: Level, root: &Root) -> Result<()> {
    let is_shown = |path: &Path, fs: &str| {
        path != Path::new("/")
            && !VIRTUAL.contains(&fs)
            && !["/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/etc"]
                .iter()
                .any(|other| path.starts_with(other))
    };
    let mounts = mounted();
    let mut whole: Vec<&Path> = Vec::new();
    for (path, fs) in &mounts {
        if path.starts_with(&root.path) {
            continue;
        }
        if whole.iter().any(|outer| path.starts_with(outer)) {
            if root.resolve(path)?.is_some() {
                root.make_read_only(path)?;
            }
            continue;
        }
        if !is_shown(path, fs) || root.path.starts_with(path) && fs == "tmpfs" {
            continue;
        }
        let is_folder = std::fs::metadata(path).is_ok_and(|file| file.is_dir());
        if is_folder && root.resolve(path)?.is_some() {
            let has_inner = mounts.iter().any(|(other, _)| other != path && other.starts_with(path));
            let recursive = level == Level::Rootless && has_inner;
            root.bind(path, path, Bind { read_only: true, recursive })?;
            if recursive {
                whole.push(path);
            }
        }
    }
    Ok(())
}

/// Mounts `/proc`, `/sys` and the container's control groups.
fn mount_kernel(entry: &ContainerEntry, root: &Root) -> Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    root.mount("proc", "/proc", flags, None)?;
    let is_privileged = entry.config.security.privileged;
    let sys_flags = if is_privileged { flags } else { flags | MountFlags::RDONLY };
    if entry.level == Level::Rootless && entry.host_network {
        let target = root.ensure(Path::new("/sys"), Target::Folder)?;
        mount_bind_recursive("/sys", super::fd_path(&target)).map_err(|error| internal("mount /sys", error))?;
        return Ok(());
    }
    root.mount("sysfs", "/sys", sys_flags, None)?;
    let at = Path::new("/sys/fs/cgroup");
    let Some(group) = entry.group.as_ref().filter(|group| !group.folders().is_empty()) else { return Ok(()) };
    if root.resolve(at)?.is_none() {
        return Ok(());
    }
    let options = Bind { read_only: !is_privileged, recursive: false };
    if let (Some(source), true) = (&group.v2, group.v1.is_empty()) {
        return root.bind(source, at, options);
    }
    root.mount("tmpfs", "/sys/fs/cgroup", flags, Some(c"mode=755,size=64k"))?;
    group.v1.iter().try_for_each(|(controller, source)| root.bind(source, &at.join(controller), options))
}

/// Hides or write-protects the kernel files that belong to the machine.
fn protect_kernel(entry: &ContainerEntry, root: &Root) -> Result<()> {
    if entry.config.security.unmasked_proc {
        return Ok(());
    }
    for path in HIDDEN_IN_PROC {
        root.hide(Path::new(path))?;
    }
    for path in READ_ONLY_IN_PROC {
        root.freeze(Path::new(path))?;
    }
    Ok(())
}

/// Bind-mounts the pod's `hosts`, `hostname` and `resolv.conf`, unless a volume is mounted at the
/// same path.
fn bind_etc(entry: &ContainerEntry, root: &Root) -> Result<()> {
    for name in ["hosts", "hostname", "resolv.conf"] {
        let path = Path::new("/etc").join(name);
        let is_mounted = entry.config.mounts.iter().any(|mount| Path::new(&mount.path) == path);
        let source = entry.etc.join(name);
        if !is_mounted && source.exists() {
            let read_only = entry.config.security.read_only_root_filesystem;
            root.bind(&source, &path, Bind { read_only, recursive: false })?;
        }
    }
    Ok(())
}

fn mount_volume(entry: &ContainerEntry, root: &Root, mount: &Mount) -> Result<()> {
    let missing = || WireError::Config(format!("volume {}: the pod has no volume with this name", mount.volume));
    let volume = entry.volumes.get(&mount.volume).ok_or_else(missing)?;
    if mount.propagation == Propagation::Bidirectional {
        let message = "mountPropagation Bidirectional is not supported: mounts of a pod stay within the pod";
        return Err(WireError::Unsupported(message.to_owned()));
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let mut source = openat(CWD, &volume.path, flags, Mode::empty()).map_err(|error| {
        let reason = std::io::Error::from(error);
        WireError::Config(format!("volume {}: {}: {reason}", mount.volume, volume.path.display()))
    })?;
    if !mount.sub_path.is_empty() {
        source = open_within(&source, &mount.sub_path, volume.writable && !mount.read_only)?;
    }
    let path = Path::new("/").join(&mount.path);
    let options = Bind { read_only: mount.read_only || volume.read_only, recursive: volume.recursive };
    root.bind_opened(&source, &path, options)?;
    if mount.propagation == Propagation::Private
        && let Some(mounted) = root.resolve(&path)?
    {
        mount_change(super::fd_path(&mounted), MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .map_err(|error| at("mount propagation of", &path, error))?;
    }
    Ok(())
}

/// Bind-mounts the file to which the container writes its termination message.
fn bind_termination_message(entry: &ContainerEntry, root: &Root) -> Result<()> {
    if entry.config.termination_message_path.is_empty() {
        return Ok(());
    }
    let source = entry.folder.join(TERMINATION);
    touch(&source, 0o666)?;
    std::fs::set_permissions(&source, PermissionsExt::from_mode(0o666))
        .map_err(|error| at("create", &source, error))?;
    let path = Path::new("/").join(&entry.config.termination_message_path);
    root.bind(&source, &path, Bind::default())
}

fn make_folders(path: &Path) -> Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(|error| at("create", path, error))
}

/// Gives a folder of a layer the owner and permissions of the folder that it hides.
pub(super) fn copy_owner(from: &Path, to: &Path) {
    if let Ok(metadata) = std::fs::metadata(from) {
        let _ = chown(to, Some(metadata.uid()), Some(metadata.gid()));
        let _ = std::fs::set_permissions(to, PermissionsExt::from_mode(metadata.mode() & 0o7777));
    }
}
