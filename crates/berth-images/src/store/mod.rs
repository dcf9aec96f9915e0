//! The store: unpacked layers by content, and the names of images.
//!
//! ```text
//! images.json       names, and for each the layers and the configuration of its image
//! images.lock       held while images.json is changed
//! use.lock          held shared while images are added, exclusively while garbage is removed
//! layers/ID/fs      an unpacked layer; ID follows from its content and the layers below
//! layers/ID/bytes   its size
//! blobs/            complete downloads of unfinished pulls
//! tmp/              everything unfinished
//! ```
//!
//! Layers are unpacked in `tmp`, written to the disk and renamed. `images.json` is replaced last. A
//! process can end at any point: files to which no name refers are garbage and are removed later.
//! Several processes may use a store at the same time.

mod garbage;
mod session;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use berth_pod_runtime::{Image, ImageRoot, UserSpec};
use serde::{Deserialize, Serialize};

pub(crate) use self::session::{NewImage, Session};
use crate::oci::{self, RunConfig};
use crate::unpack::Form;
use crate::{Error, Name, Result};

/// Version of the layout of `images.json`. A later version is rejected.
const VERSION: u32 = 1;

/// The images of one node, in a folder.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    form: Form,
}

/// Origin of an image in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// From a file. The registry is never checked for a newer version.
    Imported,
    /// From its registry.
    Pulled,
}

/// An image of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Digest of its manifest, or of its configuration if it was imported without one.
    pub digest: String,
    /// Digest of the index that lists it among other platforms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index_digest: Option<String>,
    /// Origin of the image.
    pub origin: Origin,
    /// Bytes of its unpacked files.
    pub size_bytes: u64,
    /// Architecture, in the words of image manifests.
    pub architecture: String,
    layers: Vec<String>,
    run: RunConfig,
}

/// Result of a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Bytes of the layers that were removed.
    pub bytes: u64,
    /// Number of layers that no image needs and that a running pod still has mounted. They are
    /// removed later.
    pub layers_in_use: usize,
    /// True if no layer was removed, because another process is adding an image. They are removed
    /// later.
    pub is_postponed: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct State {
    version: u32,
    images: BTreeMap<String, Record>,
}

impl Store {
    /// Opens the store in `folder`, and creates it if it does not exist.
    ///
    /// # Errors
    /// The folder cannot be created or written to.
    pub fn open(folder: &Path) -> Result<Self> {
        // Layers contain set-user-ID programs of other systems, so no other user may reach them.
        private_folder(folder)?;
        for name in ["layers", "blobs", "tmp"] {
            private_folder(&folder.join(name))?;
        }
        let form = Form::probe(&folder.join("tmp"))?;
        Ok(Self { folder: folder.to_owned(), form })
    }

    /// Opens a store that keeps layers in the given form, instead of the best possible form.
    ///
    /// # Errors
    /// The folder cannot be created or written to.
    pub fn open_as(folder: &Path, form: Form) -> Result<Self> {
        Ok(Self { form, ..Self::open(folder)? })
    }

    /// The form in which layers are stored.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Finds an image by its name, or by the digest in the name.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn get(&self, name: &Name) -> Result<Option<Record>> {
        let images = self.list()?;
        let repository = name.repository();
        let found = images.get(&name.to_string()).or_else(|| {
            let digest = name.reference().digest()?;
            let of_repository = images
                .iter()
                .filter(|(known, _)| Name::parse(known).is_ok_and(|known| known.repository() == repository));
            let has_digest =
                |record: &Record| record.digest == digest || record.index_digest.as_deref() == Some(digest);
            of_repository.map(|(_, record)| record).find(|record| has_digest(record))
        });
        // A user may have emptied the folder by hand.
        Ok(found.filter(|record| record.layers.iter().all(|layer| self.layer(layer).is_dir())).cloned())
    }

    /// All images by name.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn list(&self) -> Result<BTreeMap<String, Record>> {
        Ok(self.state()?.images)
    }

    /// Properties of an image for a runtime.
    pub fn image(&self, name: &Name, record: &Record) -> Image {
        let run = &record.run;
        let own = oci::architecture();
        let is_foreign = !record.architecture.is_empty() && record.architecture != own;
        Image {
            reference: name.written().to_owned(),
            id: match record.origin {
                Origin::Pulled => format!("{}@{}", name.repository(), record.digest),
                Origin::Imported => record.digest.clone(),
            },
            root: Some(ImageRoot::Layers { folders: record.layers.iter().map(|layer| self.layer(layer)).collect() }),
            entrypoint: run.entrypoint.clone().unwrap_or_default(),
            cmd: run.cmd.clone().unwrap_or_default(),
            env: run.env.clone().unwrap_or_default(),
            user: UserSpec(run.user.clone().unwrap_or_default()),
            working_dir: run.working_dir.clone().unwrap_or_default(),
            stop_signal: run.stop_signal.clone().unwrap_or_default(),
            size_bytes: record.size_bytes,
            notice: is_foreign.then(|| {
                format!(
                    "image {:?} is for {}, this machine is {own}: its programs need an emulator",
                    name.written(),
                    record.architecture
                )
            }),
        }
    }

    /// Removes the names, and all layers that no other name needs and no pod uses. Returns unknown
    /// names.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn remove(&self, names: &[Name]) -> Result<(Removed, Vec<Name>)> {
        let mut unknown = Vec::new();
        self.change(|images| {
            for name in names {
                if images.remove(&name.to_string()).is_none() {
                    unknown.push(name.clone());
                }
            }
        })?;
        Ok((self.collect_garbage()?, unknown))
    }

    /// Starts to add images. Garbage collection waits until the session is dropped.
    pub(crate) fn begin(&self) -> Result<Session> {
        let path = self.folder.join("use.lock");
        let lock = lock_file(&path)?;
        lock.lock_shared().map_err(Error::io(&path))?;
        Ok(Session::new(self.clone(), lock))
    }

    /// The root folder of a layer.
    fn layer(&self, id: &str) -> PathBuf {
        self.folder.join("layers").join(id).join("fs")
    }

    /// File of a download, by digest.
    pub(crate) fn blob(&self, digest: &str) -> PathBuf {
        self.folder.join("blobs").join(digest.replace(':', "-"))
    }

    fn state(&self) -> Result<State> {
        let path = self.folder.join("images.json");
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(State { version: VERSION, images: BTreeMap::new() });
            }
            Err(error) => return Err(Error::io(&path)(error)),
        };
        let shown = path.display().to_string();
        let state: State = serde_json::from_slice(&bytes).map_err(|error| {
            Error::invalid(&shown, format!("it cannot be read ({error}); remove it, and import the images again"))
        })?;
        if state.version > VERSION {
            let problem = format!("it has version {}, this program reads up to {VERSION}", state.version);
            return Err(Error::invalid(&shown, problem));
        }
        Ok(state)
    }

    /// Changes the table of images atomically.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Record>)) -> Result<()> {
        let path = self.folder.join("images.lock");
        let lock = lock_file(&path)?;
        lock.lock().map_err(Error::io(&path))?;
        let mut state = self.state()?;
        change(&mut state.images);
        let path = self.folder.join("images.json");
        let write = || {
            let mut file = tempfile::NamedTempFile::new_in(self.folder.join("tmp"))?;
            serde_json::to_writer_pretty(&mut file, &state)?;
            file.flush()?;
            file.as_file().sync_all()?;
            file.persist(&path).map_err(|error| error.error)?;
            File::open(&self.folder)?.sync_all()
        };
        write().map_err(Error::io(&path))
    }
}

fn private_folder(path: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(Error::io(path))
}

fn lock_file(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600).open(path).map_err(Error::io(path))
}
