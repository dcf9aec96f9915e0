//! Unpacking of layers: untrusted tar archives become folders.
//!
//! An entry is only created below the folder of its layer. Its parent folders are resolved
//! component by component as in a `chroot` ([`tree`]): a symbolic link leads to its target within
//! the image, and a missing folder is created with the attributes that it has in the layers below.
//! The last component is never followed.
//!
//! Device nodes are not created, because containers get `/dev` from their runtime. The only
//! extended attributes that are set are file capabilities and `user.*`, because `trusted.overlay.*`
//! could refer to other layers.

mod attributes;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat};
use tar::{Entry, EntryType};

use self::attributes::Attributes;
use self::tree::{Path as EntryPath, entry_path};
use crate::{Error, Result};

/// Bytes of the disk that images must leave free.
const FREE_BYTES_MIN: u64 = 256 << 20;
/// Inodes of the disk that images must leave free.
const FREE_FILES_MIN: u64 = 10_000;
/// Number of bytes after which the disk's free space is read again.
const SPACE_BYTES: u64 = 64 << 20;
/// Number of entries after which the disk's free space is read again.
const SPACE_ENTRIES: u64 = 4096;
/// Limit on the headers of one entry: long names and extended attributes. The tar reader keeps them
/// in memory.
const HEADER_BYTES_MAX: u64 = 1 << 20;
/// Prefix of the names that delete an entry of a lower layer.
const WHITEOUT: &[u8] = b".wh.";
/// Name that deletes all entries of lower layers in its folder.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Prefix of names that remain from old storage drivers. They have no meaning.
const RESERVED: &[u8] = b".wh..wh.";
/// Attribute by which overlayfs hides the content of the same folder in lower layers.
const OVERLAY_OPAQUE: &str = "trusted.overlay.opaque";

/// The form in which unpacked layers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One folder for each layer, with overlayfs' own whiteouts. Needs root.
    Overlay,
    /// One folder for each image, with all layers applied. Files belong to the user that runs
    /// Berth.
    Flat,
}

impl Form {
    /// Checks in `folder` whether overlay folders are possible. They need device nodes, trusted
    /// attributes and other owners.
    pub(crate) fn probe(folder: &Path) -> Result<Self> {
        let probe = tempfile::tempdir_in(folder).map_err(Error::io(folder))?;
        let path = probe.path().join("probe");
        let works = write_whiteout(&path).is_ok()
            && rustix::fs::lsetxattr(probe.path(), OVERLAY_OPAQUE, b"y", XattrFlags::empty()).is_ok()
            && std::os::unix::fs::lchown(&path, Some(1), Some(1)).is_ok();
        Ok(if works { Self::Overlay } else { Self::Flat })
    }
}

fn write_whiteout(path: &Path) -> rustix::io::Result<()> {
    mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), makedev(0, 0))
}

fn is_whiteout(meta: &fs::Metadata) -> bool {
    meta.file_type().is_char_device() && meta.rdev() == 0
}

/// Applies layers to a folder.
pub(crate) struct Unpacker<'a> {
    /// Name of the image in errors.
    image: &'a str,
    root: PathBuf,
    /// Folders of the layers below, the lowest first; none for [`Form::Flat`].
    lowers: &'a [PathBuf],
    form: Form,
    /// True if owners are set.
    owns: bool,
    /// Attributes of folders, set at the end, because files must be written to read-only folders
    /// first.
    folders: BTreeMap<PathBuf, Attributes>,
    /// Entries of the current layer. Its whiteouts do not apply to them.
    created: BTreeSet<PathBuf>,
    /// Folders of this layer that hide the same folder of the layers below.
    opaque: BTreeSet<PathBuf>,
    /// The last resolved parent folder.
    parent: Option<(EntryPath, PathBuf)>,
    space: Space,
    /// Bytes of all files.
    bytes: u64,
}

impl<'a> Unpacker<'a> {
    /// Unpacks into the existing, empty folder `root`, which no other user may write to.
    pub(crate) fn new(image: &'a str, root: &Path, lowers: &'a [PathBuf], form: Form) -> Result<Self> {
        let space = Space { folder: root.to_owned(), bytes: 0, entries: 0 };
        space.check()?;
        // The topmost layer determines the attributes of the root folder, unless an entry does.
        let lower = lowers.last().and_then(|lower| fs::symlink_metadata(lower).ok());
        let root_attributes = lower.map_or_else(Attributes::folder, |meta| Attributes::of_existing(&meta));
        let folders = BTreeMap::from([(PathBuf::new(), root_attributes)]);
        Ok(Self {
            image,
            root: root.to_owned(),
            lowers,
            form,
            owns: form == Form::Overlay,
            folders,
            created: BTreeSet::new(),
            opaque: BTreeSet::new(),
            parent: None,
            space,
            bytes: 0,
        })
    }

    /// Applies one layer: an uncompressed tar archive.
    pub(crate) fn apply(&mut self, layer: impl Read) -> Result<()> {
        self.created.clear();
        self.parent = None;
        let budget = HeaderBudget::default();
        let mut archive = tar::Archive::new(BudgetReader { stream: layer, budget: &budget });
        let mut entries = archive.entries().map_err(|error| self.damaged(error))?;
        loop {
            // The previous entry was read to its end, so that only headers are read here.
            budget.limit();
            let Some(entry) = entries.next() else { return Ok(()) };
            let mut entry = entry.map_err(|error| self.damaged(error))?;
            budget.lift();
            self.entry(&mut entry)?;
            io::copy(&mut entry, &mut io::sink()).map_err(|error| self.damaged(error))?;
        }
    }

    /// Sets the attributes of folders. Returns the bytes of all files.
    pub(crate) fn finish(self) -> Result<u64> {
        // Deepest first: a folder's modification time changes with its content.
        for (path, attributes) in self.folders.iter().rev() {
            let full = self.root.join(path);
            if fs::symlink_metadata(&full).is_ok_and(|meta| meta.is_dir()) {
                attributes.apply(&full, self.owns)?;
            }
        }
        Ok(self.bytes)
    }

    fn damaged(&self, error: io::Error) -> Error {
        match error.downcast::<Error>() {
            Ok(inner) => inner,
            Err(error) => Error::invalid(self.image, format!("a layer cannot be read: {error}")),
        }
    }

    fn entry(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<()> {
        self.space.entry()?;
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader | EntryType::Block | EntryType::Char) {
            return Ok(());
        }
        let path = entry_path(&entry.path_bytes()).map_err(|problem| self.hostile(entry, problem))?;
        let Some((name, parent)) = path.split_last() else {
            self.folders.insert(PathBuf::new(), Attributes::of(entry));
            return Ok(());
        };
        let name = name.as_encoded_bytes();
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            return match name {
                OPAQUE => self.hide_all(parent),
                _ if name.starts_with(RESERVED) => Ok(()),
                _ => {
                    let hidden = entry_path(hidden).map_err(|problem| self.hostile(entry, problem))?;
                    match hidden.as_slice() {
                        [hidden] => self.hide(parent, hidden),
                        _ => Err(self.hostile(entry, "its whiteout does not name exactly one entry")),
                    }
                }
            };
        }
        let parent = self.parent(parent)?;
        let place = parent.join(&path[path.len() - 1]);
        self.create(entry, kind, place)
    }

    /// Creates an entry at `place`, a path below the root without symbolic links in its parents.
    fn create(&mut self, entry: &mut Entry<'_, impl Read>, kind: EntryType, place: PathBuf) -> Result<()> {
        let full = self.root.join(&place);
        let attributes = Attributes::of(entry);
        match kind {
            EntryType::Directory => {
                self.make_room(&place, true)?;
                self.folder(&place, attributes)?;
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                if target.is_empty() {
                    return Err(self.hostile(entry, "it is a symbolic link without a target"));
                }
                self.make_room(&place, false)?;
                symlink(tree::os(&target), &full).map_err(Error::io(&full))?;
                attributes.apply_to_link(&full, self.owns)?;
            }
            EntryType::Link => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                let target = entry_path(&target).map_err(|problem| self.hostile(entry, problem))?;
                let Some(target) = self.link_target(&target)? else {
                    return Err(self.hostile(entry, "it is a hard link to a file that does not exist"));
                };
                if target != place {
                    self.make_room(&place, false)?;
                    let target = self.root.join(target);
                    fs::hard_link(&target, &full).map_err(Error::io(&full))?;
                }
            }
            EntryType::Fifo => {
                self.make_room(&place, false)?;
                mknodat(CWD, &full, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).map_err(Error::os(&full))?;
                attributes.apply(&full, self.owns)?;
            }
            // POSIX: entries of unknown types are regular files.
            _ => {
                self.make_room(&place, false)?;
                self.file(entry, &full)?;
                attributes.apply(&full, self.owns)?;
            }
        }
        self.created.insert(place);
        Ok(())
    }

    fn file(&mut self, entry: &mut impl Read, full: &Path) -> Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(full).map_err(Error::io(full))?;
        loop {
            let count = io::copy(&mut Read::take(&mut *entry, SPACE_BYTES), &mut file);
            let count = count.map_err(|error| match error.kind() {
                // A full disk is not a fault of the image.
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::io(full)(error),
                _ => self.damaged(error),
            })?;
            self.bytes += count;
            self.space.bytes(count)?;
            if count < SPACE_BYTES {
                return Ok(());
            }
        }
    }

    /// Creates a folder that does not exist yet, and records its attributes.
    fn folder(&mut self, place: &Path, attributes: Attributes) -> Result<()> {
        let full = self.root.join(place);
        match fs::DirBuilder::new().create(&full) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(Error::io(&full)(error)),
            _ => {}
        }
        self.folders.insert(place.to_owned(), attributes);
        Ok(())
    }

    /// Removes the entry at `place`, unless a folder replaces a folder.
    fn make_room(&mut self, place: &Path, for_folder: bool) -> Result<()> {
        let full = self.root.join(place);
        let meta = match fs::symlink_metadata(&full) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Error::io(&full)(error)),
        };
        if meta.is_dir() && for_folder {
            return Ok(());
        }
        self.remove(place, &meta)?;
        if is_whiteout(&meta) && for_folder && self.form == Form::Overlay {
            // The lower folder stays deleted, although a new folder has its name.
            fs::create_dir(&full).map_err(Error::io(&full))?;
            self.set_opaque(place)?;
        }
        Ok(())
    }

    fn remove(&mut self, place: &Path, meta: &fs::Metadata) -> Result<()> {
        let full = self.root.join(place);
        self.parent = None;
        if !meta.is_dir() {
            return fs::remove_file(&full).map_err(Error::io(&full));
        }
        self.folders.retain(|path, _| !path.starts_with(place));
        self.opaque.retain(|path| !path.starts_with(place));
        self.created.retain(|path| !path.starts_with(place));
        fs::remove_dir_all(&full).map_err(Error::io(&full))
    }

    /// Applies the whiteout of one entry.
    fn hide(&mut self, parent: &[std::ffi::OsString], name: &std::ffi::OsStr) -> Result<()> {
        let place = self.parent(parent)?.join(name);
        if self.form == Form::Flat {
            return self.remove_older(&place);
        }
        let full = self.root.join(&place);
        match fs::symlink_metadata(&full) {
            Ok(meta) if meta.is_dir() => self.set_opaque(&place),
            // An entry of the same layer hides the lower one already.
            Ok(_) => Ok(()),
            Err(_) => write_whiteout(&full).map_err(Error::os(&full)),
        }
    }

    /// Applies an opaque whiteout: the folder has entries of this layer only.
    fn hide_all(&mut self, folder: &[std::ffi::OsString]) -> Result<()> {
        let place = self.parent(folder)?;
        if self.form == Form::Overlay {
            return self.set_opaque(&place);
        }
        for name in tree::names(&self.root.join(&place))? {
            self.remove_older(&place.join(name))?;
        }
        Ok(())
    }

    fn set_opaque(&mut self, place: &Path) -> Result<()> {
        let full = self.root.join(place);
        rustix::fs::lsetxattr(&full, OVERLAY_OPAQUE, b"y", XattrFlags::empty()).map_err(Error::os(&full))?;
        self.opaque.insert(place.to_owned());
        Ok(())
    }

    /// Removes the entries of earlier layers at `place`.
    fn remove_older(&mut self, place: &Path) -> Result<()> {
        let full = self.root.join(place);
        let Ok(meta) = fs::symlink_metadata(&full) else { return Ok(()) };
        // Paths below a folder follow it in the order of the set.
        let is_kept = self.created.range(place.to_owned()..).next().is_some_and(|path| path.starts_with(place));
        if !is_kept {
            return self.remove(place, &meta);
        }
        if meta.is_dir() {
            for name in tree::names(&full)? {
                self.remove_older(&place.join(name))?;
            }
        }
        Ok(())
    }

    fn hostile(&self, entry: &Entry<'_, impl Read>, problem: &str) -> Error {
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        Error::invalid(self.image, format!("the entry {path:?} of a layer is rejected: {problem}"))
    }
}

/// Watches the free space of the disk.
struct Space {
    folder: PathBuf,
    bytes: u64,
    entries: u64,
}

impl Space {
    fn bytes(&mut self, count: u64) -> Result<()> {
        self.bytes += count;
        if self.bytes < SPACE_BYTES {
            return Ok(());
        }
        self.bytes = 0;
        self.check()
    }

    fn entry(&mut self) -> Result<()> {
        self.entries += 1;
        if !self.entries.is_multiple_of(SPACE_ENTRIES) {
            return Ok(());
        }
        self.check()
    }

    fn check(&self) -> Result<()> {
        let found = rustix::fs::statvfs(&self.folder).map_err(Error::os(&self.folder))?;
        let free_bytes = found.f_bavail.saturating_mul(found.f_frsize);
        // Some file systems (btrfs) do not count inodes.
        let free_files = if found.f_files == 0 { u64::MAX } else { found.f_favail };
        if free_bytes >= FREE_BYTES_MIN && free_files >= FREE_FILES_MIN {
            return Ok(());
        }
        Err(Error::DiskFull {
            path: self.folder.clone(),
            free_bytes,
            free_files,
            limit_bytes: FREE_BYTES_MIN,
            limit_files: FREE_FILES_MIN,
        })
    }
}

/// Number of bytes that may be read; unlimited between headers.
#[derive(Default)]
struct HeaderBudget(std::cell::Cell<Option<u64>>);

impl HeaderBudget {
    fn limit(&self) {
        self.0.set(Some(HEADER_BYTES_MAX));
    }

    fn lift(&self) {
        self.0.set(None);
    }
}

struct BudgetReader<'b, R> {
    stream: R,
    budget: &'b HeaderBudget,
}

impl<R: Read> Read for BudgetReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        if let Some(left) = self.budget.0.get() {
            let Some(left) = left.checked_sub(count as u64) else {
                return Err(io::Error::other(format!("the headers of an entry exceed {HEADER_BYTES_MAX} bytes")));
            };
            self.budget.0.set(Some(left));
        }
        Ok(count)
    }
}

/// Writes the unpacked files to the disk.
pub(crate) fn sync(folder: &Path) -> Result<()> {
    let file = File::open(folder).map_err(Error::io(folder))?;
    rustix::fs::syncfs(&file).map_err(Error::os(folder))
}
