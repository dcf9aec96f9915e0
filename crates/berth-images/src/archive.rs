//! Files and folders that contain images: an OCI image layout or the output of `docker save`, as a
//! folder or as a tar archive.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use oci_spec::image::{Descriptor, ImageManifest};
use serde::Deserialize;
use tempfile::TempDir;

use crate::decompress::{Decompressed, sha256};
use crate::oci::{self, Document, ImageConfig, LayerFile, read_document};
use crate::unpack::{Form, Unpacker};
use crate::{Error, Name, Result};

/// Limit on the levels of nested image indexes.
const INDEX_DEPTH_MAX: usize = 4;

/// An open image archive.
pub(crate) struct Archive {
    /// Name of the archive in errors.
    shown: String,
    folder: PathBuf,
    /// The unpacked archive; `None` for a folder of the user.
    unpacked: Option<TempDir>,
}

/// An image of an archive.
pub(crate) struct Found {
    /// Names in the archive.
    pub(crate) names: Vec<Name>,
    /// Digest of its manifest, or of its configuration if it has no manifest.
    pub(crate) digest: String,
    pub(crate) config: ImageConfig,
    pub(crate) layers: Vec<LayerFile>,
}

/// An entry of `manifest.json`, the index of `docker save`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SavedImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Vec<String>,
}

impl Archive {
    /// Opens a folder or a tar archive, which may be compressed. Archives are unpacked below
    /// `temporary`.
    pub(crate) fn open(path: &Path, temporary: &Path) -> Result<Self> {
        let shown = path.display().to_string();
        let file = File::open(path).map_err(Error::io(path))?;
        if file.metadata().map_err(Error::io(path))?.is_dir() {
            return Ok(Self { shown, folder: path.to_owned(), unpacked: None });
        }
        let unpacked =
            tempfile::Builder::new().prefix("import-").tempdir_in(temporary).map_err(Error::io(temporary))?;
        let stream = Decompressed::new(file).map_err(Error::io(path))?;
        let mut unpacker = Unpacker::new(&shown, unpacked.path(), &[], Form::Flat)?;
        unpacker.apply(stream)?;
        unpacker.finish()?;
        Ok(Self { shown, folder: unpacked.path().to_owned(), unpacked: Some(unpacked) })
    }

    /// The images for this machine. An image that only exists for other platforms is an error.
    pub(crate) fn images(&self) -> Result<Vec<Found>> {
        if let Some(index) = self.read_if_there("index.json")? {
            let found = self.oci_images(&index)?;
            // Docker's archives have both forms, and older archives have the names only in
            // `manifest.json`.
            if found.iter().all(|image| !image.names.is_empty()) || !self.exists("manifest.json") {
                return Ok(found);
            }
        }
        if let Some(manifest) = self.read_if_there("manifest.json")? {
            return self.saved_images(&manifest);
        }
        let problem = "it contains no image: expected an OCI image layout (index.json) or the output of docker save \
                       (manifest.json)";
        Err(Error::invalid(&self.shown, problem))
    }

    fn oci_images(&self, index: &[u8]) -> Result<Vec<Found>> {
        let Document::Index(index) = Document::parse(&self.shown, index)? else {
            return Err(Error::invalid(&self.shown, "index.json lists no manifests"));
        };
        // Manifests with the same name are the platforms of one image.
        let mut groups: Vec<(Option<Name>, Vec<Descriptor>)> = Vec::new();
        for entry in index.manifests() {
            let name = annotated_name(entry)?;
            match groups.iter_mut().find(|(known, _)| *known == name) {
                Some((_, entries)) => entries.push(entry.clone()),
                None => groups.push((name, vec![entry.clone()])),
            }
        }
        let mut images: Vec<Found> = Vec::new();
        for (name, entries) in groups {
            let (digest, manifest) = self.resolve(&entries, INDEX_DEPTH_MAX)?;
            if let Some(known) = images.iter_mut().find(|known| known.digest == digest) {
                known.names.extend(name);
                continue;
            }
            let config = self.read_blob(manifest.config())?;
            let config = ImageConfig::parse(&self.shown, &config)?;
            let layers = manifest.layers().iter().map(|layer| LayerFile {
                path: self.folder.join(blob_path(layer)),
                within: self.within(),
                digest: Some(layer.digest().to_string()),
            });
            images.push(Found { names: name.into_iter().collect(), digest, config, layers: layers.collect() });
        }
        Ok(images)
    }

    /// The manifest for this machine's platform.
    fn resolve(&self, entries: &[Descriptor], depth: usize) -> Result<(String, ImageManifest)> {
        let entry = oci::select(&self.shown, entries, oci::architecture())?;
        match Document::parse(&self.shown, &self.read_blob(entry)?)? {
            Document::Manifest(manifest) => {
                oci::check_manifest(&self.shown, &manifest)?;
                Ok((entry.digest().to_string(), manifest))
            }
            Document::Index(_) if depth == 0 => Err(Error::invalid(&self.shown, "its indexes are nested too deeply")),
            Document::Index(index) => self.resolve(index.manifests(), depth - 1),
        }
    }

    fn saved_images(&self, manifest: &[u8]) -> Result<Vec<Found>> {
        let saved: Vec<SavedImage> = serde_json::from_slice(manifest)
            .map_err(|error| Error::invalid(&self.shown, format!("manifest.json is invalid: {error}")))?;
        saved.into_iter().map(|image| self.saved_image(image)).collect()
    }

    fn saved_image(&self, image: SavedImage) -> Result<Found> {
        let tags = image.repo_tags.unwrap_or_default();
        let path = self.folder.join(&image.config);
        let config = read_document(&path, self.open_file(Path::new(&image.config))?)?;
        Ok(Found {
            names: tags.iter().map(|tag| Name::parse(tag)).collect::<Result<_>>()?,
            digest: sha256(&config),
            config: ImageConfig::parse(&self.shown, &config)?,
            layers: image
                .layers
                .iter()
                .map(|layer| LayerFile { path: self.folder.join(layer), within: self.within(), digest: None })
                .collect(),
        })
    }

    /// The folder that symbolic links must not lead out of.
    fn within(&self) -> Option<PathBuf> {
        self.unpacked.as_ref().map(|folder| folder.path().to_owned())
    }

    fn exists(&self, name: &str) -> bool {
        fs::symlink_metadata(self.folder.join(name)).is_ok()
    }

    fn read_if_there(&self, name: &str) -> Result<Option<Vec<u8>>> {
        if !self.exists(name) {
            return Ok(None);
        }
        read_document(&self.folder.join(name), self.open_file(Path::new(name))?).map(Some)
    }

    fn read_blob(&self, blob: &Descriptor) -> Result<Vec<u8>> {
        let path = blob_path(blob);
        if !oci::is_sha256(blob.digest().as_ref()) {
            return Err(Error::invalid(&self.shown, format!("{} is not a digest that can be verified", blob.digest())));
        }
        let bytes = read_document(&self.folder.join(&path), self.open_file(&path)?)?;
        let (found, expected) = (sha256(&bytes), blob.digest().to_string());
        if found != expected {
            let (image, part) = (self.shown.clone(), path.display().to_string());
            return Err(Error::Digest { image, part, found, expected });
        }
        Ok(bytes)
    }

    fn open_file(&self, path: &Path) -> Result<File> {
        open(&self.folder.join(path), self.within().as_deref())
    }
}

/// Opens a file. If `within` is set, the file must be in that folder, also after symbolic links are
/// resolved.
pub(crate) fn open(path: &Path, within: Option<&Path>) -> Result<File> {
    let found = fs::canonicalize(path).map_err(Error::io(path))?;
    if let Some(folder) = within
        && !found.starts_with(fs::canonicalize(folder).map_err(Error::io(folder))?)
    {
        return Err(Error::invalid(&path.display().to_string(), "the path leads out of the archive"));
    }
    // A FIFO would block, so only regular files are opened.
    if !fs::metadata(&found).map_err(Error::io(path))?.is_file() {
        return Err(Error::invalid(&path.display().to_string(), "it is not a file"));
    }
    File::open(&found).map_err(Error::io(path))
}

/// Path of a blob in an OCI image layout.
fn blob_path(blob: &Descriptor) -> PathBuf {
    let digest = blob.digest();
    Path::new("blobs").join(digest.algorithm().as_ref()).join(digest.digest())
}

/// The name that builders write into the index.
fn annotated_name(entry: &Descriptor) -> Result<Option<Name>> {
    let Some(annotations) = entry.annotations() else { return Ok(None) };
    if let Some(name) = annotations.get("io.containerd.image.name") {
        return Name::parse(name).map(Some);
    }
    // Some builders write only the tag, which is not a name.
    let name = annotations.get("org.opencontainers.image.ref.name").filter(|name| name.contains([':', '/']));
    name.map(|name| Name::parse(name)).transpose()
}
