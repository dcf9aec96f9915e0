//! Adding images to the store.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{Origin, Record, Store};
use crate::archive::open;
use crate::decompress::{Decompressed, Digested};
use crate::oci::{ImageConfig, LayerFile};
use crate::unpack::{Form, Unpacker, sync};
use crate::{Error, Result};

/// Suffix of folders with all layers of an image.
const FLAT: &str = "-flat";

/// Adds images. While it exists, no garbage is removed.
pub(crate) struct Session {
    store: Store,
    temporary: PathBuf,
    _lock: File,
}

/// An image to add.
pub(crate) struct NewImage<'a> {
    /// File or reference, for errors.
    pub(crate) shown: &'a str,
    /// Full names.
    pub(crate) names: &'a [String],
    pub(crate) digest: &'a str,
    pub(crate) index_digest: Option<&'a str>,
    pub(crate) config: &'a ImageConfig,
    /// Files of the layers, the lowest first. Files of layers that are not in [`Session::missing`]
    /// need not exist.
    pub(crate) layers: Vec<LayerFile>,
    pub(crate) origin: Origin,
}

/// A layer that is unpacked and not moved to its final folder yet.
struct Unpacked {
    id: String,
    folder: TempDir,
}

impl Unpacked {
    fn root(&self) -> PathBuf {
        self.folder.path().join("fs")
    }
}

impl Session {
    pub(super) fn new(store: Store, lock: File) -> Self {
        Self { temporary: store.folder.join("tmp"), store, _lock: lock }
    }

    /// Folder for unfinished files, on the disk of the store.
    pub(crate) fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Positions of the layers whose files [`Session::add`] needs.
    pub(crate) fn missing(&self, config: &ImageConfig) -> Vec<usize> {
        let chains = config.chains();
        let is_there = |id: &str| self.store.layer(id).is_dir();
        match (self.store.form, chains.last()) {
            (Form::Overlay, _) => (0..chains.len()).filter(|i| !is_there(&chains[*i])).collect(),
            (Form::Flat, Some(last)) if !is_there(&flat_id(last)) => (0..chains.len()).collect(),
            (Form::Flat, _) => Vec::new(),
        }
    }

    /// Unpacks an image and records it under its names.
    pub(crate) fn add(&self, image: NewImage<'_>) -> Result<Record> {
        let chains = image.config.chains();
        if chains.len() != image.layers.len() {
            let problem =
                format!("its configuration lists {} layers, its manifest {}", chains.len(), image.layers.len());
            return Err(Error::invalid(image.shown, problem));
        }
        let layers = match self.store.form {
            Form::Overlay => self.add_layers(&image, &chains)?,
            Form::Flat => self.add_flat(&image, chains.last())?,
        };
        let record = Record {
            digest: image.digest.to_owned(),
            index_digest: image.index_digest.map(str::to_owned),
            origin: image.origin,
            size_bytes: layers.iter().map(|layer| self.size(layer)).sum(),
            architecture: image.config.architecture.clone(),
            layers,
            run: image.config.run(),
        };
        self.store.change(|images| {
            for name in image.names {
                images.insert(name.clone(), record.clone());
            }
        })?;
        Ok(record)
    }

    fn add_layers(&self, image: &NewImage<'_>, chains: &[String]) -> Result<Vec<String>> {
        let mut folders = Vec::new();
        let mut unpacked: Vec<Unpacked> = Vec::new();
        for (i, (id, layer)) in chains.iter().zip(&image.layers).enumerate() {
            let present = self.store.layer(id);
            if present.is_dir() {
                folders.push(present);
                continue;
            }
            let new = self.start(id.clone())?;
            let mut unpacker = Unpacker::new(image.shown, &new.root(), &folders, Form::Overlay)?;
            apply(image, i, layer, &mut unpacker)?;
            self.end(&new, unpacker)?;
            folders.push(new.root());
            unpacked.push(new);
        }
        self.publish(unpacked)?;
        Ok(chains.to_vec())
    }

    fn add_flat(&self, image: &NewImage<'_>, chain: Option<&String>) -> Result<Vec<String>> {
        let Some(chain) = chain else { return Ok(Vec::new()) };
        let id = flat_id(chain);
        if !self.store.layer(&id).is_dir() {
            let new = self.start(id.clone())?;
            let mut unpacker = Unpacker::new(image.shown, &new.root(), &[], Form::Flat)?;
            for (i, layer) in image.layers.iter().enumerate() {
                apply(image, i, layer, &mut unpacker)?;
            }
            self.end(&new, unpacker)?;
            self.publish(vec![new])?;
        }
        Ok(vec![id])
    }

    fn start(&self, id: String) -> Result<Unpacked> {
        let folder = tempfile::Builder::new().prefix("layer-").tempdir_in(&self.temporary);
        let new = Unpacked { id, folder: folder.map_err(Error::io(&self.temporary))? };
        fs::create_dir(new.root()).map_err(Error::io(&new.root()))?;
        Ok(new)
    }

    fn end(&self, new: &Unpacked, unpacker: Unpacker<'_>) -> Result<()> {
        let bytes = unpacker.finish()?;
        let path = new.folder.path().join("bytes");
        fs::write(&path, bytes.to_string()).map_err(Error::io(&path))
    }

    /// Moves unpacked layers to their final folders, after they are on the disk.
    fn publish(&self, unpacked: Vec<Unpacked>) -> Result<()> {
        if unpacked.is_empty() {
            return Ok(());
        }
        sync(&self.temporary)?;
        for new in unpacked {
            let place = self.store.folder.join("layers").join(&new.id);
            if let Err(error) = fs::rename(new.folder.path(), &place) {
                // Another process was faster. The content is the same.
                if !place.join("fs").is_dir() {
                    return Err(Error::io(&place)(error));
                }
            } else {
                // The folder was renamed, so it must not be deleted.
                let _ = new.folder.keep();
            }
        }
        Ok(())
    }

    fn size(&self, id: &str) -> u64 {
        let path = self.store.folder.join("layers").join(id).join("bytes");
        fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
}

fn flat_id(chain: &str) -> String {
    format!("{chain}{FLAT}")
}

/// Unpacks one layer, and compares its digests with the manifest's and the configuration's.
fn apply(image: &NewImage<'_>, position: usize, layer: &LayerFile, unpacker: &mut Unpacker<'_>) -> Result<()> {
    let read = Error::io(&layer.path);
    let part = || format!("layer {}", position + 1);
    let file = Digested::new(open(&layer.path, layer.within.as_deref())?);
    let mut content = Digested::new(Decompressed::new(file).map_err(Error::io(&layer.path))?);
    unpacker.apply(&mut content)?;
    let check = |found: String, expected: &str| {
        if found == expected {
            return Ok(());
        }
        Err(Error::Digest { image: image.shown.to_owned(), part: part(), found, expected: expected.to_owned() })
    };
    let (found, stream) = content.finish().map_err(read)?;
    check(found, &image.config.diff_ids()[position])?;
    let (found, _) = stream.into_inner().into_inner().finish().map_err(Error::io(&layer.path))?;
    layer.digest.as_deref().map_or(Ok(()), |expected| check(found, expected))
}
