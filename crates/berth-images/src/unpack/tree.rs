//! Paths within an image: parsing, and resolution across its layers.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, PathBuf};

use super::attributes::Attributes;
use super::{Form, OVERLAY_OPAQUE, Unpacker, is_whiteout};
use crate::{Error, Result};

/// Components of a path below the root of an image.
pub(super) type Path = Vec<OsString>;

/// Maximum number of symbolic links in the resolution of one path, as in the kernel.
const LINKS_MAX: usize = 40;

/// A file name of any bytes.
pub(super) fn os(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Components of an entry's path. A leading `/` and `.` are ignored; `..` is rejected.
pub(super) fn entry_path(bytes: &[u8]) -> std::result::Result<Path, &'static str> {
    let mut path = Vec::new();
    for part in bytes.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err("its path has the component \"..\""),
            _ if part.contains(&0) => return Err("its path has a zero byte"),
            _ => path.push(os(part).to_owned()),
        }
    }
    Ok(path)
}

/// Names of the entries of a folder.
pub(super) fn names(folder: &std::path::Path) -> Result<Vec<OsString>> {
    let entries = fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>());
    entries.map_err(Error::io(folder))
}

/// The entry of the layers below at a path.
enum Below {
    Absent,
    Folder(Metadata),
    Link(PathBuf),
    Other(PathBuf, Metadata),
}

impl Unpacker<'_> {
    /// Resolves a folder of the image as in a `chroot`, and creates it in this layer if it is
    /// missing. Returns its path below the root, without symbolic links.
    pub(super) fn parent(&mut self, path: &[OsString]) -> Result<PathBuf> {
        if let Some((known, found)) = &self.parent
            && known == path
        {
            return Ok(found.clone());
        }
        let mut todo: VecDeque<OsString> = path.iter().cloned().collect();
        let mut done = PathBuf::new();
        let mut links = 0;
        while let Some(name) = todo.pop_front() {
            if name == ".." {
                // The parent of the root is the root.
                done.pop();
                continue;
            }
            let here = done.join(&name);
            let full = self.root.join(&here);
            let link = match fs::symlink_metadata(&full) {
                Ok(meta) if meta.is_dir() => None,
                Ok(meta) if meta.is_symlink() => Some(fs::read_link(&full).map_err(Error::io(&full))?),
                // A whiteout of this layer, followed by an entry below it.
                Ok(meta) if is_whiteout(&meta) && self.form == Form::Overlay => {
                    self.make_room(&here, true)?;
                    self.folder(&here, Attributes::folder())?;
                    None
                }
                Ok(_) => return Err(self.no_folder(&here)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.copy_folder(&here)?,
                Err(error) => return Err(Error::io(&full)(error)),
            };
            let Some(link) = link else {
                done = here;
                continue;
            };
            links += 1;
            if links > LINKS_MAX {
                return Err(self.no_folder(&here));
            }
            for component in link.components().rev() {
                match component {
                    Component::Normal(part) => todo.push_front(part.to_owned()),
                    Component::ParentDir => todo.push_front("..".into()),
                    _ => {}
                }
            }
            if link.is_absolute() {
                done = PathBuf::new();
            }
        }
        self.parent = Some((path.to_vec(), done.clone()));
        Ok(done)
    }

    fn no_folder(&self, place: &std::path::Path) -> Error {
        let problem = format!("a layer has an entry below {:?}, which is not a folder", place.display().to_string());
        Error::invalid(self.image, problem)
    }

    /// Creates a folder with its attributes in the layers below. If it is a symbolic link there,
    /// returns the target.
    fn copy_folder(&mut self, place: &std::path::Path) -> Result<Option<PathBuf>> {
        let attributes = match self.below(place)? {
            Below::Link(target) => return Ok(Some(target)),
            Below::Folder(meta) => Attributes::of_existing(&meta),
            Below::Other(..) => return Err(self.no_folder(place)),
            Below::Absent => Attributes::folder(),
        };
        self.folder(place, attributes)?;
        Ok(None)
    }

    /// The entry of the layers below at a path whose parents exist in this layer.
    fn below(&self, place: &std::path::Path) -> Result<Below> {
        if place.ancestors().any(|above| self.opaque.contains(above)) {
            return Ok(Below::Absent);
        }
        'layers: for layer in self.lowers.iter().rev() {
            let mut here = layer.clone();
            let mut is_opaque = false;
            let mut parts = place.components().peekable();
            while let Some(part) = parts.next() {
                here.push(part);
                let meta = match fs::symlink_metadata(&here) {
                    Ok(meta) => meta,
                    Err(error) if error.kind() == io::ErrorKind::NotFound && is_opaque => return Ok(Below::Absent),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue 'layers,
                    Err(error) => return Err(Error::io(&here)(error)),
                };
                if is_whiteout(&meta) {
                    return Ok(Below::Absent);
                }
                if parts.peek().is_none() {
                    return Ok(if meta.is_dir() {
                        Below::Folder(meta)
                    } else if meta.is_symlink() {
                        Below::Link(fs::read_link(&here).map_err(Error::io(&here))?)
                    } else {
                        Below::Other(here, meta)
                    });
                }
                if !meta.is_dir() {
                    return Ok(Below::Absent);
                }
                is_opaque |= rustix::fs::lgetxattr(&here, OVERLAY_OPAQUE, [0u8; 1].as_mut_slice()).is_ok();
            }
        }
        Ok(Below::Absent)
    }

    /// The file that a hard link refers to, as a path in this layer. A file of a lower layer is
    /// copied. `None` if it does not exist.
    pub(super) fn link_target(&mut self, target: &[OsString]) -> Result<Option<PathBuf>> {
        let Some((name, parent)) = target.split_last() else { return Ok(None) };
        let place = self.parent(parent)?.join(name);
        let full = self.root.join(&place);
        match fs::symlink_metadata(&full) {
            Ok(meta) if meta.is_dir() || is_whiteout(&meta) => return Ok(None),
            Ok(_) => return Ok(Some(place)),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::io(&full)(error)),
            Err(_) => {}
        }
        match self.below(&place)? {
            Below::Link(link) => std::os::unix::fs::symlink(link, &full).map_err(Error::io(&full))?,
            Below::Other(source, meta) if meta.is_file() => {
                let mut file = fs::File::open(&source).map_err(Error::io(&source))?;
                self.file(&mut file, &full)?;
                Attributes::of_existing(&meta).apply(&full, self.owns)?;
            }
            _ => return Ok(None),
        }
        Ok(Some(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_entries_are_relative_and_never_lead_up() {
        let path = |text: &str| entry_path(text.as_bytes()).map(|path| path.join(OsStr::new("|")));
        assert_eq!(path("a/b"), Ok("a|b".into()));
        assert_eq!(path("/a//./b/"), Ok("a|b".into()));
        assert_eq!(path("./"), Ok("".into()));
        assert_eq!(path("a/..b"), Ok("a|..b".into()));
        assert!(path("a/../b").is_err() && path("..").is_err() && path("a\0b").is_err());
    }
}
